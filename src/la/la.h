/* Linear algebra whose results decide output bytes, in one fixed order (class `exact`): the same
 * bits for any thread count and instruction set. Matrices are row-major fp32, symmetric ones stored
 * whole.
 * + - * / sqrt fma only, no libm. Every entry is one fma chain over ascending index, so the bits do
 * not depend on how the work is cut into blocks either. */
#ifndef KD_LA_LA_H
#define KD_LA_LA_H

#include "kern/mat.h"

enum { KD_LA_BLOCK = 96 };

/* h[i*ldh + j] (i, j < k) += sum over t of x[t*ldx + i] x[t*ldx + j], each entry an fma chain over
 * ascending row. Only the upper triangle, in blocks of KD_LA_BLOCK, is computed; kd_la_mirror makes
 * it whole. */
void kd_la_syrk(const struct kd_run *run, const float *x, int64_t ldx, int64_t T, int64_t k,
                float *h, int64_t ldh);
/* Copies the upper triangle (k x k) to the lower one. */
void kd_la_mirror(const struct kd_run *run, float *h, int64_t k);
/* c (I x J) += a^T b, a: S x I, b: S x J, in parallel over blocks of c. */
void kd_la_gemm_tn(const struct kd_run *run, const float *a, int64_t lda, const float *b,
                   int64_t ldb, int64_t S, int64_t I, int64_t J, float *c, int64_t ldc);
/* In place: reads the upper triangle of h and leaves U there, h = U^T U; what is below the diagonal
 * is undefined afterwards. -1 with KD_EINVAL when not positive definite (h is then destroyed); the
 * caller damps and tries again. */
int kd_la_cholesky(const struct kd_run *run, float *h, int64_t k, struct kd_err *err) KD_MUST;
/* h (U of kd_la_cholesky) -> L of the block LDL, block 16, minus I: row-major, lower, diagonal
 * blocks and all above zero (EXL3 4.3). k a multiple of 16. */
void kd_la_block_ldl(const struct kd_run *run, float *h, int64_t k);
/* Solves U^T U x = rhs in place; u: the U of kd_la_cholesky. */
void kd_la_solve_factored(const struct kd_run *run, const float *u, int64_t k, float *rhs);
/* Solves (symmetric positive definite, k x k, destroyed) * x = rhs in place. */
int kd_la_solve(const struct kd_run *run, float *h, int64_t k, float *rhs,
                struct kd_err *err) KD_MUST;

#endif
