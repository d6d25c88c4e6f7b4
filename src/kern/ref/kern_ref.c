/* The reference kernels: plain loops that state each order. Slow where the machine has no fma
 * (libm's fmaf is exact everywhere); the tests hold every instruction set to these bits. */
#include "kern/kern.h"
#include "num/mxfp4_block.h"

#include <string.h>

static float fold(float lane[16])
{
    for (int h = 8; h; h /= 2)
        for (int l = 0; l < h; l++)
            lane[l] += lane[l + h];
    return lane[0];
}

static float dot(const float *x, const float *y, int64_t n)
{
    float lane[16] = {0};
    for (int64_t i = 0; i < n; i++)
        lane[i % 16] = fmaf(x[i], y[i], lane[i % 16]);
    return fold(lane);
}

#define KD_DOT dot
#include "kern/elem_body.h"

static void mm_f32(const float *w, int64_t ldw, int64_t R, int64_t K, const float *x, int64_t ldx,
                   int64_t T, float *y, int64_t ldy)
{
    for (int64_t r = 0; r < R; r++)
        for (int64_t t = 0; t < T; t++)
            y[t * ldy + r] = dot(w + r * ldw, x + t * ldx, K);
}

static void mm_bf16(const uint16_t *w, int64_t ldw, int64_t R, int64_t K, const float *x,
                    int64_t ldx, int64_t T, float *y, int64_t ldy)
{
    for (int64_t r = 0; r < R; r++)
        for (int64_t t = 0; t < T; t++) {
            float lane[16] = {0};
            for (int64_t i = 0; i < K; i++)
                lane[i % 16] = fmaf(kd_bf16_f32(w[r * ldw + i]), x[t * ldx + i], lane[i % 16]);
            y[t * ldy + r] = fold(lane);
        }
}

static void mm_mxfp4(const uint8_t *packed, int64_t ldp, const uint8_t *scale, int64_t lds,
                     int64_t R, int64_t K, const float *x, int64_t ldx, int64_t T, float *y,
                     int64_t ldy)
{
    for (int64_t r = 0; r < R; r++)
        for (int64_t t = 0; t < T; t++) {
            float lane[16] = {0};
            for (int64_t i = 0; i < K; i++)
                lane[i % 16] = fmaf(kd_mxfp4_f32(packed + r * ldp, scale + r * lds, i),
                                    x[t * ldx + i], lane[i % 16]);
            y[t * ldy + r] = fold(lane);
        }
}

static void mm_block(const struct kd_block_format *f, const uint8_t *w, int64_t ldw, int64_t R,
                     int64_t K, const float *x, int64_t ldx, int64_t T, float *y, int64_t ldy)
{
    float v[256];
    for (int64_t r = 0; r < R; r++)
        for (int64_t t = 0; t < T; t++) {
            float lane[16] = {0};
            for (int64_t i = 0; i < K; i++) {
                if (i % f->elems == 0)
                    f->decode(w + r * ldw + i / f->elems * f->bytes, 1, v);
                lane[i % 16] = fmaf(v[i % f->elems], x[t * ldx + i], lane[i % 16]);
            }
            y[t * ldy + r] = fold(lane);
        }
}

static void gemm_tn(const float *a, int64_t lda, const float *b, int64_t ldb, int64_t S, int64_t I,
                    int64_t J, float *c, int64_t ldc)
{
    for (int64_t s = 0; s < S; s++)
        for (int64_t i = 0; i < I; i++)
            for (int64_t j = 0; j < J; j++)
                c[i * ldc + j] = fmaf(a[s * lda + i], b[s * ldb + j], c[i * ldc + j]);
}

static void scale_f16(const float *x, const uint16_t *h, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i] * kd_f16_f32(h[i]);
}

/* Butterflies at distance 1, 2, ..., 64, then 1/sqrt(128) once. */
static void hadamard(const float *x, float *out, int64_t blocks)
{
    if (out != x)
        memmove(out, x, (size_t)blocks * 128 * sizeof *x);
    for (float *v = out; v < out + blocks * 128; v += 128) {
        for (int h = 1; h < 128; h *= 2)
            for (int i = 0; i < 128; i++)
                if (!(i & h)) {
                    float p = v[i], q = v[i + h];
                    v[i] = p + q;
                    v[i + h] = p - q;
                }
        for (int i = 0; i < 128; i++)
            v[i] *= 0x1.6a09e6p-4f;
    }
}

static void kda_step(float *S, const float *q, const float *k, const float *v, const float *alpha,
                     float beta, int64_t dk, int64_t dv, float *out)
{
    for (int64_t j = 0; j < dv; j++) {
        float r = 0, o = 0;
        for (int64_t i = 0; i < dk; i++) {
            S[i * dv + j] *= alpha[i];
            r = fmaf(k[i], S[i * dv + j], r);
        }
        float d = beta * (v[j] - r);
        for (int64_t i = 0; i < dk; i++) {
            S[i * dv + j] = fmaf(k[i], d, S[i * dv + j]);
            o = fmaf(q[i], S[i * dv + j], o);
        }
        out[j] = o;
    }
}

void kd_kern_set_ref(struct kd_kern *k)
{
    k->name = "ref";
    k->isa = KD_ISA_REF;
    k->mm_f32 = mm_f32;
    k->mm_bf16 = mm_bf16;
    k->mm_mxfp4 = mm_mxfp4;
    k->mm_block = mm_block;
    k->gemm_tn = gemm_tn;
    k->dot = dot;
    k->scale_f16 = scale_f16;
    k->hadamard = hadamard;
    k->kda_step = kda_step;
    set_elem(k);
}
