/* A weight matrix as it is stored: F32, BF16, MXFP4, EXL3 or blocks of ggml, never expanded whole.
 * A kd_mat borrows its bytes (from a map, a store or a buffer) and is cheap to copy. Products run
 * over a pool in fixed cuts; the bits do not depend on the number of threads or tokens.
 *
 *     struct kd_mat w = ...;                       // rows = outputs, cols = inputs
 *     kd_mat_mul(run, &w, x, ldx, T, y, ldy);      // y[t][r] = sum_k w[r][k] x[t][k]
 */
#ifndef KD_KERN_MAT_H
#define KD_KERN_MAT_H

#include "base/err.h"
#include "base/pool.h"
#include "kern/kern.h"

#include <stdbool.h>
#include <stdint.h>

enum kd_mat_type { KD_MAT_NONE, KD_MAT_F32, KD_MAT_BF16, KD_MAT_MXFP4, KD_MAT_EXL3, KD_MAT_BLOCK };

struct kd_mat {
    enum kd_mat_type type;
    int64_t rows, cols;   /* outputs, inputs: what the model sees */
    const void *data;     /* F32, BF16 values; MXFP4 packed codes; EXL3 codes [k/16][n/16] tiles */
    int64_t ld;           /* F32, BF16: elements between rows; MXFP4: bytes between packed rows;
                             EXL3: tiles between tile rows; BLOCK: bytes between rows */
    const uint8_t *scale; /* MXFP4 */
    int64_t ld_scale;     /* bytes between scale rows */
    /* EXL3: rows and cols padded to 128 (the stored size), signs and scales as fp16 bits */
    int64_t rows_padded, cols_padded;
    const uint16_t *suh; /* cols_padded */
    const uint16_t *svh; /* rows_padded */
    struct kd_rate rate;
    enum kd_codebook cb;
    const struct kd_block_format *format; /* BLOCK; cols are whole blocks */
};

struct kd_gpu_encoder;

/* What a computation runs on. */
struct kd_run {
    const struct kd_kern *kern;
    struct kd_pool *pool;           /* may be NULL */
    struct kd_gpu_encoder *encoder; /* devices that encode (gpu/encoder.h), or NULL: this CPU */
    /* EXL3 products with codebook mul1 take its values before their rounding to fp16, which is
     * half again as fast for one token and off by some 2e-4 (docs/numerics.md). For talking, never
     * for conversions and checks. As EXACT as the others: the same bits for any threads, tokens and
     * instruction set. */
    bool fast;
};

/* y[t*ldy + r] for r < w->rows. Fails for lack of memory (EXL3 rotates x into scratch), or when a
 * device of the run does: products of many tokens go there where it has room, the bits are the
 * same. */
int kd_mat_mul(const struct kd_run *run, const struct kd_mat *w, const float *x, int64_t ldx,
               int64_t T, float *y, int64_t ldy, struct kd_err *err) KD_MUST;
/* Many matrices with their own inputs in one parallel region, e.g. the experts of one token. */
struct kd_mat_job {
    const struct kd_mat *w;
    const float *x;
    int64_t ldx, T;
    float *y;
    int64_t ldy;
};
int kd_mat_mul_many(const struct kd_run *run, const struct kd_mat_job *jobs, int64_t count,
                    struct kd_err *err) KD_MUST;

/* One row, or all, as floats. For EXL3 the original basis: diag(suh) H Wq H diag(svh), transposed
 * to [row][col] (each value CLOSE, see docs/numerics.md). */
int kd_mat_row(const struct kd_run *run, const struct kd_mat *w, int64_t row, float *out,
               struct kd_err *err) KD_MUST;
int kd_mat_dequant(const struct kd_run *run, const struct kd_mat *w, float *out, int64_t ldo,
                   struct kd_err *err) KD_MUST;

/* The part rows [r0, r1) x cols [c0, c1); cuts of EXL3 lie on multiples of 128, of MXFP4 columns on
 * multiples of 32, of BLOCK columns on blocks. */
int kd_mat_slice(const struct kd_mat *w, int64_t r0, int64_t r1, int64_t c0, int64_t c1,
                 struct kd_mat *out, struct kd_err *err) KD_MUST;
/* Bytes of codes, scales and vectors of this matrix. */
int64_t kd_mat_bytes(const struct kd_mat *w);

#endif
