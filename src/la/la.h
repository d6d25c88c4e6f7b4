/* Linear algebra whose results decide output bytes, in one fixed order (class `exact`): the same bits
 * for any thread count and instruction set. Matrices are row-major fp32, symmetric ones stored whole.
 * + - * / sqrt fma only, no libm. */
#ifndef KD_LA_LA_H
#define KD_LA_LA_H

#include "kern/mat.h"

/* h (k x k) += x^T x over T rows, each entry an fma chain over ascending row. Only the upper triangle
 * in 64-blocks is computed during accumulation; kd_la_mirror makes it whole. */
void kd_la_syrk(const struct kd_run *run, const float *x, int64_t ldx, int64_t T, int64_t k, float *h);
void kd_la_mirror(float *h, int64_t k);
/* c (I x J) += a^T b, a: S x I, b: S x J, in parallel over blocks of c. */
void kd_la_gemm_tn(const struct kd_run *run, const float *a, int64_t lda, const float *b, int64_t ldb,
                   int64_t S, int64_t I, int64_t J, float *c, int64_t ldc);
/* In place: lower Cholesky factor (upper left as it was). -1 with KD_EINVAL when not positive
 * definite; the caller damps and tries again. */
int kd_la_cholesky(const struct kd_run *run, float *h, int64_t k, struct kd_err *err) KD_MUST;
/* h (Cholesky factor, lower) -> unit block lower triangular minus I, block 16 (EXL3 4.3). */
int kd_la_block_ldl(const struct kd_run *run, float *h, int64_t k, struct kd_err *err) KD_MUST;
/* Solves (symmetric positive definite, k x k, destroyed) * x = rhs in place. */
int kd_la_solve(const struct kd_run *run, float *h, int64_t k, float *rhs, struct kd_err *err) KD_MUST;

#endif
