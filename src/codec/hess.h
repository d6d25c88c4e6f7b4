/* A Hessian: sum of x^T x over calibration rows, its row count, and what the quantizer makes of it. */
#ifndef KD_CODEC_HESS_H
#define KD_CODEC_HESS_H

#include "kern/mat.h"

struct kd_hess {
    int64_t k;      /* inputs, padded to 128 (surplus rows and columns zero) */
    int64_t k_real;
    int64_t rows;   /* rows added (or their weight, rounded, for weighted ones) */
    int64_t bad_rows; /* dropped: not finite */
    float *h;       /* k x k; only the block-upper part until kd_hess_close */
};
int kd_hess_open(struct kd_hess *h, int64_t k_real, struct kd_err *err) KD_MUST;
void kd_hess_release(struct kd_hess *h);
/* Adds T rows of k_real floats; rows with a non-finite element are dropped. Order of calls matters
 * (ascending tokens), cutting into calls does not. */
int kd_hess_add(const struct kd_run *run, struct kd_hess *h, const float *x, int64_t ldx, int64_t T,
                struct kd_err *err) KD_MUST;
/* Mirrors the triangle; after this, read only. */
void kd_hess_close(struct kd_hess *h);

#endif
