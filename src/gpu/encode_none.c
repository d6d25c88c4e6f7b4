/* Encoding on a device in a build without CUDA: no encoder is ever open. */
#include "gpu/encode.h"
#include "gpu/gpu.h"

#include <string.h>

int kd_gpu_encoder_open(struct kd_gpu_encoder **out, const int *index, int count,
                        int64_t memory_bytes, struct kd_err *err)
{
    struct kd_gpu *g;
    (void)memory_bytes;
    *out = NULL;
    return kd_gpu_open(&g, count ? index[0] : 0, err);
}

void kd_gpu_encoder_close(struct kd_gpu_encoder *e)
{
    (void)e;
}

void kd_gpu_encoder_facts(struct kd_gpu_encoder *e, struct kd_gpu_encoder_facts *f)
{
    (void)e;
    memset(f, 0, sizeof *f);
}

int64_t kd_gpu_tensor_bytes(const struct kd_gpu_tensor_shape *s)
{
    (void)s;
    return 0;
}

static int no_tensor(struct kd_err *err)
{
    return kd_fail(err, KD_ENOTSUP, "this kondense was built without CUDA");
}

int kd_gpu_tensor_open(struct kd_gpu_tensor **out, struct kd_gpu_encoder *e,
                       const struct kd_gpu_tensor_shape *s, struct kd_err *err)
{
    (void)e;
    (void)s;
    *out = NULL;
    return no_tensor(err);
}

void kd_gpu_tensor_close(struct kd_gpu_tensor *t)
{
    (void)t;
}

int kd_gpu_tensor_put(struct kd_gpu_tensor *t, enum kd_gpu_part p, const float *from,
                      struct kd_err *err)
{
    (void)t;
    (void)p;
    (void)from;
    return no_tensor(err);
}

int kd_gpu_tensor_get(struct kd_gpu_tensor *t, enum kd_gpu_part p, float *to, struct kd_err *err)
{
    (void)t;
    (void)p;
    (void)to;
    return no_tensor(err);
}

int kd_gpu_tensor_ldlq(struct kd_gpu_tensor *t, struct kd_gpu_ldlq *job, struct kd_err *err)
{
    (void)t;
    (void)job;
    return no_tensor(err);
}

int kd_gpu_tensor_scale(struct kd_gpu_tensor *t, const struct kd_gpu_scale *job, struct kd_err *err)
{
    (void)t;
    (void)job;
    return no_tensor(err);
}
