/* Calibration on a device in a build without CUDA: there is never room. */
#include "gpu/calib.h"

/* Signatures are the device's. NOLINTBEGIN(readability-non-const-parameter) */

int kd_gpu_calib_mul(struct kd_gpu_encoder *e, const struct kd_gpu_source *w, const float *x,
                     int64_t ldx, int64_t T, float *y, int64_t ldy, bool *done, struct kd_err *err)
{
    (void)e;
    (void)w;
    (void)x;
    (void)ldx;
    (void)T;
    (void)y;
    (void)ldy;
    (void)err;
    *done = false;
    return 0;
}

int64_t kd_gpu_calib_mul_bytes(const struct kd_gpu_encoder *e, const struct kd_gpu_source *w,
                               int64_t T)
{
    (void)e;
    (void)w;
    (void)T;
    return 0;
}

int kd_gpu_calib_expert(struct kd_gpu_encoder *e, const struct kd_gpu_source w[3], const float *x,
                        int64_t T, float beta, float linear, float *y, bool *done,
                        struct kd_err *err)
{
    (void)e;
    (void)w;
    (void)x;
    (void)T;
    (void)beta;
    (void)linear;
    (void)y;
    (void)err;
    *done = false;
    return 0;
}

int kd_gpu_sums_open(struct kd_gpu_sums **out, struct kd_gpu_encoder *e, int64_t k,
                     struct kd_err *err)
{
    (void)e;
    (void)k;
    (void)err;
    *out = NULL;
    return 0;
}

void kd_gpu_sums_close(struct kd_gpu_sums *s)
{
    (void)s;
}

int kd_gpu_sums_add(struct kd_gpu_sums *s, const float *x, int64_t ldx, int64_t cols, int64_t T,
                    struct kd_err *err)
{
    (void)s;
    (void)x;
    (void)ldx;
    (void)cols;
    (void)T;
    return kd_fail(err, KD_ENOTSUP, "this kondense was built without CUDA");
}

int kd_gpu_sums_take(struct kd_gpu_sums *s, float *h, struct kd_err *err)
{
    (void)s;
    (void)h;
    return kd_fail(err, KD_ENOTSUP, "this kondense was built without CUDA");
}

int kd_gpu_routed_open(struct kd_gpu_routed **out, struct kd_gpu_encoder *e, int part,
                       const uint16_t *z, int64_t T, int64_t latent, struct kd_err *err)
{
    (void)e;
    (void)part;
    (void)z;
    (void)T;
    (void)latent;
    (void)err;
    *out = NULL;
    return 0;
}

void kd_gpu_routed_close(struct kd_gpu_routed *r)
{
    (void)r;
}

int kd_gpu_routed_add(struct kd_gpu_routed *r, const struct kd_gpu_source w[3], const int32_t *row,
                      const float *weight, int64_t count, float beta, float linear, bool *done,
                      struct kd_err *err)
{
    (void)r;
    (void)w;
    (void)row;
    (void)weight;
    (void)count;
    (void)beta;
    (void)linear;
    *done = false;
    return kd_fail(err, KD_ENOTSUP, "this kondense was built without CUDA");
}

int kd_gpu_routed_take(struct kd_gpu_routed *r, float *u, struct kd_err *err)
{
    (void)r;
    (void)u;
    return kd_fail(err, KD_ENOTSUP, "this kondense was built without CUDA");
}

int64_t kd_gpu_sums_bytes(const struct kd_gpu_encoder *e, int64_t k)
{
    (void)e;
    (void)k;
    return 0;
}

int kd_gpu_latents_open(struct kd_gpu_latents **out, struct kd_gpu_encoder *e, const uint16_t *z,
                        int64_t T, int64_t latent, struct kd_err *err)
{
    (void)e;
    (void)z;
    (void)T;
    (void)latent;
    (void)err;
    *out = NULL;
    return 0;
}

void kd_gpu_latents_close(struct kd_gpu_latents *l)
{
    (void)l;
}

int kd_gpu_inner_sums(struct kd_gpu_encoder *e, const struct kd_gpu_inner *j, bool *done,
                      struct kd_err *err)
{
    (void)e;
    (void)j;
    (void)err;
    *done = false;
    return 0;
}

int64_t kd_gpu_inner_bytes(const struct kd_gpu_encoder *e, const struct kd_gpu_inner *j)
{
    (void)e;
    (void)j;
    return 0;
}

int kd_gpu_sums_add_there(struct kd_gpu_sums *s, int index, const float *x, int64_t ldx,
                          int64_t cols, int64_t T, bool *done, struct kd_err *err)
{
    (void)s;
    (void)index;
    (void)x;
    (void)ldx;
    (void)cols;
    (void)T;
    (void)err;
    *done = false;
    return 0;
}

bool kd_gpu_calib_is_fast(const struct kd_gpu_encoder *e)
{
    (void)e;
    return false;
}

bool kd_gpu_calib_hold(struct kd_gpu_encoder *e, int64_t bytes, int *index)
{
    (void)e;
    (void)bytes;
    (void)index;
    return false;
}

void kd_gpu_calib_let_go(struct kd_gpu_encoder *e, int64_t bytes)
{
    (void)e;
    (void)bytes;
}

int kd_gpu_ferry_open(struct kd_gpu_ferry **out, struct kd_gpu_encoder *e, struct kd_err *err)
{
    (void)e;
    *out = NULL;
    return kd_fail(err, KD_ENOTSUP, "this kondense was built without CUDA");
}

void kd_gpu_ferry_close(struct kd_gpu_ferry *f)
{
    (void)f;
}

int kd_gpu_ferry_up(struct kd_gpu_ferry *f, void *to, const void *from, int64_t bytes,
                    struct kd_err *err)
{
    (void)f;
    (void)to;
    (void)from;
    (void)bytes;
    return kd_fail(err, KD_ENOTSUP, "this kondense was built without CUDA");
}

int kd_gpu_ferry_down(struct kd_gpu_ferry *f, void *to, const void *from, int64_t bytes,
                      struct kd_err *err)
{
    return kd_gpu_ferry_up(f, to, from, bytes, err);
}

int kd_gpu_ferry_wait(struct kd_gpu_ferry *f, struct kd_err *err)
{
    (void)f;
    return kd_fail(err, KD_ENOTSUP, "this kondense was built without CUDA");
}

/* NOLINTEND(readability-non-const-parameter) */
