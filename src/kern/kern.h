/* The kernel table: every CPU SIMD kernel of the program, one row an operation, each with its
 * contract. kd_kern_for fills the table with the plain C reference and overlays what the chosen
 * instruction set does better. Every kernel here is EXACT: the same bits on every instruction set,
 * for every way of cutting rows and tokens among calls. docs/numerics.md defines the orders.
 *
 * Shapes: T tokens, R rows (outputs), K columns (inputs). Matrices are row-major with a leading
 * dimension in elements. Pointers need no alignment. Kernels are pure and thread-safe.
 *
 * The order DOT16: lane i mod 16 collects element i by fma in ascending i, starting from +0;
 * then lanes fold pairwise: l + (l+8), l + (l+4), l + (l+2), l + (l+1). Trailing elements (K not a
 * multiple of 16) act as if padded with zeros (their lanes are simply not updated). */
#ifndef KD_KERN_KERN_H
#define KD_KERN_KERN_H

#include "base/err.h"
#include "num/block.h"
#include "num/trellis_step.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* avx512fp16 is avx512 with a search in half precision. */
enum kd_isa {
    KD_ISA_REF,
    KD_ISA_AVX2,
    KD_ISA_AVX512,
    KD_ISA_AVX512FP16,
    KD_ISA_NEON,
    KD_ISA_COUNT
};

/* A block of EXL3 codes seen by a kernel: `k_tiles` x `n_tiles` tiles out of a matrix whose tile
 * rows are `row_tiles` tiles apart. All in the rotated basis (no Hadamard, no scales). */
struct kd_exl3_block {
    const uint8_t *codes; /* first tile */
    int64_t k_tiles, n_tiles;
    int64_t row_tiles; /* tiles between tile rows (n/16 of the whole matrix) */
    struct kd_rate rate;
    enum kd_codebook cb;
    /* mul1 only: mm_exl3 multiplies by the byte sums of the products less 510, integers, in place
     * of the values they stand for: 887/2^17 times them is a value before its rounding to fp16,
     * less 238/2^17. */
    bool sums;
};

struct kd_kern {
    const char *name;
    enum kd_isa isa;

    /* y[t*ldy + r] = DOT16 over K of w[r] and x[t]. One row of y's bits depends on that row's
     * inputs only (row-invariant): any T, R give the same bits. */
    void (*mm_f32)(const float *w, int64_t ldw, int64_t R, int64_t K, const float *x, int64_t ldx,
                   int64_t T, float *y, int64_t ldy);
    void (*mm_bf16)(const uint16_t *w, int64_t ldw, int64_t R, int64_t K, const float *x,
                    int64_t ldx, int64_t T, float *y, int64_t ldy);
    /* ldp bytes and lds bytes between rows of packed codes and scales; K a multiple of 32. */
    void (*mm_mxfp4)(const uint8_t *packed, int64_t ldp, const uint8_t *scale, int64_t lds,
                     int64_t R, int64_t K, const float *x, int64_t ldx, int64_t T, float *y,
                     int64_t ldy);
    /* Rows of blocks, ldw bytes apart; K whole blocks. What f->decode gives is multiplied. */
    void (*mm_block)(const struct kd_block_format *f, const uint8_t *w, int64_t ldw, int64_t R,
                     int64_t K, const float *x, int64_t ldx, int64_t T, float *y, int64_t ldy);
    /* The same product for EXL3 codes and activations already rotated (order: docs/numerics.md):
     * y[t*ldy + c], c < 16*n_tiles, x[t*ldx + i], i < 16*k_tiles. */
    void (*mm_exl3)(const struct kd_exl3_block *b, const float *x, int64_t ldx, int64_t T, float *y,
                    int64_t ldy);

    /* One token with activations as int8 (x[i] = scale * q[i]) and mul1's values before their
     * rounding to fp16: y[c] = scale * sum of q[i] * v[i][c], sums in exact integers. Serves
     * decoding only; conversion and checks never use it. */
    void (*mv_exl3_int8)(const struct kd_exl3_block *b, const int8_t *q, float scale, float *y);

    /* c[i*ldc + j] = fma chain over s = 0..S-1 ascending of a[s*lda + i] * b[s*ldb + j], starting
     * from the c that is there. A Hessian's rank-S update (a == b), LDLQ's feedback. */
    void (*gemm_tn)(const float *a, int64_t lda, const float *b, int64_t ldb, int64_t S, int64_t I,
                    int64_t J, float *c, int64_t ldc);

    float (*dot)(const float *x, const float *y, int64_t n);    /* DOT16 */
    void (*axpy)(float a, const float *x, float *y, int64_t n); /* y += a*x, one fma each */
    /* out = w .* x * rsqrt, rsqrt = 1/sqrtf(DOT16(x,x)/n + eps), ((x*rsqrt)*w), w may be NULL */
    void (*rmsnorm)(const float *x, const float *w, float eps, int64_t n, float *out);
    /* out = x times the fp16 values h; out may be x */
    void (*scale_f16)(const float *x, const uint16_t *h, int64_t n, float *out);
    /* Elementwise; out may be x (or g, u). NaN in gives NaN out. Formulas: docs/numerics.md. */
    /* Own polynomial, within 1 ulp; through the subnormals to 0 below -103.97, infinity
     * above 88.72. */
    void (*exp)(const float *x, float *out, int64_t n);
    void (*sigmoid)(const float *x, float *out, int64_t n); /* e/(1+e) or 1/(1+e), e = exp(-|x|) */
    void (*silu)(const float *x, float *out, int64_t n);    /* x*sigmoid(x) */
    /* beta*tanh(g/beta)*sigmoid(g) * linear*tanh(u/linear); linear <= 0: the last factor is u */
    void (*situ)(const float *g, const float *u, float beta, float linear, float *out, int64_t n);
    /* in place over n values; the maximum, exp of differences, sum in DOT16 order, division */
    void (*softmax)(float *x, int64_t n);

    /* 128-point normalised Hadamard of `blocks` adjacent blocks, in place is allowed. */
    void (*hadamard)(const float *x, float *out, int64_t blocks);

    /* One KDA step of one head: S (dk x dv, row = key channel) decayed by alpha[dk], delta rule,
     * out[dv]. r_j and o_j are fma chains over ascending key channel. q already scaled. */
    void (*kda_step)(float *S, const float *q, const float *k, const float *v, const float *alpha,
                     float beta, int64_t dk, int64_t dv, float *out);

    /* The 16 x 16 fp16 values of one tile as floats, row-major [k][n]. */
    void (*trellis_decode)(const uint8_t *tile, struct kd_rate rate, enum kd_codebook cb,
                           float out[256]);
    /* Full Viterbi search with the corrected seam. target: `tiles` x 256 floats in RING order;
     * writes 256 states a tile. seam = positions searched on each side of the seam in pass 1
     * (128 is the full search). scratch: kd_trellis_scratch_bytes() bytes, 64-byte aligned. */
    void (*trellis_search)(const float *target, int64_t tiles, struct kd_rate rate,
                           enum kd_codebook cb, int seam, uint16_t *states, void *scratch);
};

/* -1 when this CPU cannot run that set. */
int kd_kern_for(struct kd_kern *k, enum kd_isa isa, struct kd_err *err) KD_MUST;
/* KONDENSE_ISA (ref, avx2, avx512, avx512fp16, neon), or the best this CPU runs. Names that cannot
 * run are an error, never a silent fallback. */
int kd_kern_pick(struct kd_kern *k, struct kd_err *err) KD_MUST;
const char *kd_isa_name(enum kd_isa isa);

size_t kd_trellis_scratch_bytes(void);

/* Overlays, one per file family (kern.c calls them). */
void kd_kern_set_ref(struct kd_kern *k);
void kd_kern_set_avx2(struct kd_kern *k);
void kd_kern_set_avx512(struct kd_kern *k);
void kd_kern_set_neon(struct kd_kern *k);
void kd_kern_set_exl3_ref(struct kd_kern *k);
void kd_kern_set_exl3_avx2(struct kd_kern *k);
void kd_kern_set_exl3_avx512(struct kd_kern *k);
void kd_kern_set_exl3_avx512fp16(struct kd_kern *k);
void kd_kern_set_exl3_neon(struct kd_kern *k);

#endif
