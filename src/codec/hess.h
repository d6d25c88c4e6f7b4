/* A Hessian: sum of x^T x over calibration rows, its row count, and what the quantizer makes of it.
 */
#ifndef KD_CODEC_HESS_H
#define KD_CODEC_HESS_H

#include "kern/mat.h"

struct kd_gpu_square;
struct kd_gpu_sums;

struct kd_hess {
    int64_t k; /* inputs, padded to 128 (surplus rows and columns zero) */
    int64_t k_real;
    int64_t rows;                 /* rows added; h / rows is the mean of x^T x */
    int64_t bad_rows;             /* dropped: not finite */
    float *h;                     /* k x k; only the block-upper part until kd_hess_close */
    struct kd_gpu_square *shared; /* see kd_hess_share */
    struct kd_gpu_sums *sums;     /* see kd_hess_on_device */
};
int kd_hess_open(struct kd_hess *h, int64_t k_real, struct kd_err *err) KD_MUST;
void kd_hess_release(struct kd_hess *h);
/* Adds T rows of k_real floats; rows with a non-finite element are dropped. Order of calls matters
 * (ascending tokens), cutting into calls does not. */
int kd_hess_add(const struct kd_run *run, struct kd_hess *h, const float *x, int64_t ldx, int64_t T,
                struct kd_err *err) KD_MUST;
/* The same of finite rows in the memory of the device that CUDA calls `index` (gpu/calib.h, class
 * `fast`). *done false: the sums are not there, nothing was added. */
int kd_hess_add_there(struct kd_hess *h, int index, const float *x, int64_t ldx, int64_t T,
                      bool *done, struct kd_err *err) KD_MUST;
/* Before the first row, for a run with an encoder: rows are added on one of its devices, the bits
 * are the same. Without an encoder, and where there is no room, nothing. kd_hess_finish brings the
 * sums here, and kd_hess_release comes before the encoder's end. */
int kd_hess_on_device(const struct kd_run *run, struct kd_hess *h, struct kd_err *err) KD_MUST;
int kd_hess_finish(struct kd_hess *h, struct kd_err *err) KD_MUST;
/* Where all rows were added here. Mirrors the triangle; after this, read only. */
void kd_hess_close(struct kd_hess *h);
/* After the close, for a run with an encoder: a copy on its devices serves all tensors of these
 * inputs, until kd_hess_release, which comes before the encoder's end. Without an encoder, and
 * where there is no room for it, nothing. */
int kd_hess_share(const struct kd_run *run, struct kd_hess *h, struct kd_err *err) KD_MUST;
/* Whether a quantizer can use it (EXL3 4.3): rows were added and the mean diagonal is finite and at
 * least 1e-20. The mean is over k_real inputs of h / rows. h may be NULL. */
bool kd_hess_usable(const struct kd_hess *h, double *mean_diag);
/* SHA-256 over k_real, rows and the upper triangle's bytes, row by row. Needs no close. */
int kd_hess_digest(const struct kd_hess *h, char out[65], struct kd_err *err) KD_MUST;

#endif
