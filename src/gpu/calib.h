/* Calibration on an encoder's devices: products of many rows, Hessians, the inner rows of an
 * expert, in the encoder's class of calibration (gpu/encoder.h): `exact`, the CPU's bits, sums are
 * the chains of docs/numerics.md, in fp32; or `fast`, on the matrix units, within the bounds there.
 * All pointers are host memory.
 *
 * Rows pass through a device in pieces, so memory does not grow with their number (the latents of
 * a layer stay on it where there is room). Nothing here is needed: where a device has no room the
 * caller is told so, without an error, and computes on the CPU.
 *
 * Any thread may call, each waits until its work is done (but kd_gpu_sums_add); kd_gpu_sums and
 * kd_gpu_routed belong to one thread at a time. A build without CUDA has the same functions; they
 * never have room. */
#ifndef KD_GPU_CALIB_H
#define KD_GPU_CALIB_H

#include "gpu/encoder.h"

/* y[t*ldy + r] for r < w->rows, as kd_mat_mul (kern/mat.h): F32, BF16, MXFP4, EXL3. *done false:
 * nothing was done. */
int kd_gpu_calib_mul(struct kd_gpu_encoder *e, const struct kd_gpu_source *w, const float *x,
                     int64_t ldx, int64_t T, float *y, int64_t ldy, bool *done,
                     struct kd_err *err) KD_MUST;
/* Device bytes that it takes while it works (w's pointers are not read); 0 where it does nothing.
 */
int64_t kd_gpu_calib_mul_bytes(const struct kd_gpu_encoder *e, const struct kd_gpu_source *w,
                               int64_t T);

/* An expert: y[T][w2 rows] = w2 situ(w1 x, w3 x) for x[T][w1 cols], w = w1, w3, w2 of any types
 * that kd_gpu_calib_mul takes. The CPU's bits in either class. */
int kd_gpu_calib_expert(struct kd_gpu_encoder *e, const struct kd_gpu_source w[3], const float *x,
                        int64_t T, float beta, float linear, float *y, bool *done,
                        struct kd_err *err) KD_MUST;

/* A sum of x^T x that grows on one device, k a multiple of 128. *out NULL without an error: no
 * room. */
struct kd_gpu_sums;
int kd_gpu_sums_open(struct kd_gpu_sums **out, struct kd_gpu_encoder *e, int64_t k,
                     struct kd_err *err) KD_MUST;
void kd_gpu_sums_close(struct kd_gpu_sums *s);
/* T rows of `cols` finite floats (the other inputs are zero). They have been read when it returns;
 * what fails after that is an error of the next call. */
int kd_gpu_sums_add(struct kd_gpu_sums *s, const float *x, int64_t ldx, int64_t cols, int64_t T,
                    struct kd_err *err) KD_MUST;
/* The same of rows in its device's memory, class `fast` alone; waits. *done false: it is not on the
 * device that CUDA calls `index`. */
int kd_gpu_sums_add_there(struct kd_gpu_sums *s, int index, const float *x, int64_t ldx,
                          int64_t cols, int64_t T, bool *done, struct kd_err *err) KD_MUST;
/* Its upper triangle into h [k][k]; what is below the diagonal may be zero. */
int kd_gpu_sums_take(struct kd_gpu_sums *s, float *h, struct kd_err *err) KD_MUST;
int64_t kd_gpu_sums_bytes(const struct kd_gpu_encoder *e, int64_t k);

/* The weighted sum of a layer's experts over T tokens whose latents stay on one device (`part`
 * modulo the number of devices): u[t] += weight * expert(z[t]) for the tokens of each call, in the
 * order of calls, one fma an element. *out NULL without an error: no room. *done false: nothing was
 * done. */
struct kd_gpu_routed;
int kd_gpu_routed_open(struct kd_gpu_routed **out, struct kd_gpu_encoder *e, int part,
                       const uint16_t *z, int64_t T, int64_t latent, struct kd_err *err) KD_MUST;
void kd_gpu_routed_close(struct kd_gpu_routed *r);
/* w: as of kd_gpu_calib_expert; row: `count` different tokens. */
int kd_gpu_routed_add(struct kd_gpu_routed *r, const struct kd_gpu_source w[3], const int32_t *row,
                      const float *weight, int64_t count, float beta, float linear, bool *done,
                      struct kd_err *err) KD_MUST;
/* u [T][latent]. */
int kd_gpu_routed_take(struct kd_gpu_routed *r, float *u, struct kd_err *err) KD_MUST;

/* BF16 latents [T][latent] on every device, for all experts of a layer. *out NULL without an
 * error: no room. Closed when no kd_gpu_inner uses them. */
struct kd_gpu_latents;
int kd_gpu_latents_open(struct kd_gpu_latents **out, struct kd_gpu_encoder *e, const uint16_t *z,
                        int64_t T, int64_t latent, struct kd_err *err) KD_MUST;
void kd_gpu_latents_close(struct kd_gpu_latents *l);

/* The Hessian of an expert's inner rows, situ(w1 z, w3 z) (docs/numerics.md), over all T rows of
 * z; with routed_h also that of some rows times a weight. */
struct kd_gpu_inner {
    const struct kd_gpu_source *w1, *w3; /* EXL3, of one shape */
    int64_t T;
    const uint16_t *z;                    /* BF16 [T][w1->cols] */
    const struct kd_gpu_latents *latents; /* the same rows on the devices, or NULL */
    float beta, linear;
    float *h; /* out: [k][k], k = w1->rows up to 128, as kd_gpu_sums_take */
    float *routed_h;
    const int32_t *row; /* [routed], ascending */
    const float *weight;
    int64_t routed;
};
/* *done false: nothing was done, for lack of room or because a row is not finite. */
int kd_gpu_inner_sums(struct kd_gpu_encoder *e, const struct kd_gpu_inner *j, bool *done,
                      struct kd_err *err) KD_MUST;
int64_t kd_gpu_inner_bytes(const struct kd_gpu_encoder *e, const struct kd_gpu_inner *j);

/* kd_gpu_encoder_calibrate's FAST. */
bool kd_gpu_calib_is_fast(const struct kd_gpu_encoder *e);
/* Memory of the encoder's first device, which CUDA calls *index, for somebody who uses it through
 * gpu/gpu.h; false: there is too little. */
bool kd_gpu_calib_hold(struct kd_gpu_encoder *e, int64_t bytes, int *index);
void kd_gpu_calib_let_go(struct kd_gpu_encoder *e, int64_t bytes);
/* Copies of many bytes between ordinary memory and that device, by several threads at once. Up:
 * `from` has been read when it returns, kd_gpu_ferry_wait until all is there. Down: what lies on
 * the device must be there already; all is here when it returns. */
struct kd_gpu_ferry;
int kd_gpu_ferry_open(struct kd_gpu_ferry **out, struct kd_gpu_encoder *e,
                      struct kd_err *err) KD_MUST;
void kd_gpu_ferry_close(struct kd_gpu_ferry *f);
int kd_gpu_ferry_up(struct kd_gpu_ferry *f, void *to, const void *from, int64_t bytes,
                    struct kd_err *err) KD_MUST;
int kd_gpu_ferry_down(struct kd_gpu_ferry *f, void *to, const void *from, int64_t bytes,
                      struct kd_err *err) KD_MUST;
int kd_gpu_ferry_wait(struct kd_gpu_ferry *f, struct kd_err *err) KD_MUST;

#endif
