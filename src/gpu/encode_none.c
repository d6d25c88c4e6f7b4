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

int kd_gpu_tensor_rotate(struct kd_gpu_tensor *t, const float *su, const float *sv,
                         struct kd_err *err)
{
    (void)t;
    (void)su;
    (void)sv;
    return no_tensor(err);
}

int kd_gpu_tensor_unrotate(struct kd_gpu_tensor *t, const float *su, const float *sv,
                           struct kd_err *err)
{
    (void)t;
    (void)su;
    (void)sv;
    return no_tensor(err);
}

int kd_gpu_tensor_square(struct kd_gpu_tensor *t, const float *left, const float *right,
                         float *diagonal, struct kd_err *err)
{
    (void)t;
    (void)left;
    (void)right;
    (void)diagonal;
    return no_tensor(err);
}

int kd_gpu_tensor_cholesky(struct kd_gpu_tensor *t, float add, bool *good, struct kd_err *err)
{
    (void)t;
    (void)add;
    (void)good;
    return no_tensor(err);
}

int kd_gpu_tensor_ldl(struct kd_gpu_tensor *t, struct kd_err *err)
{
    (void)t;
    return no_tensor(err);
}

int kd_gpu_tensor_weigh(struct kd_gpu_tensor *t, double *dot, struct kd_err *err)
{
    (void)t;
    (void)dot;
    return no_tensor(err);
}

int kd_gpu_tensor_quads(struct kd_gpu_tensor *t, double *quad, struct kd_err *err)
{
    (void)t;
    (void)quad;
    return no_tensor(err);
}

int kd_gpu_tensor_dots(struct kd_gpu_tensor *t, double *column, double *row, struct kd_err *err)
{
    (void)t;
    (void)column;
    (void)row;
    return no_tensor(err);
}

int kd_gpu_tensor_stretch(struct kd_gpu_tensor *t, const float *rows, const float *columns,
                          struct kd_err *err)
{
    (void)t;
    (void)rows;
    (void)columns;
    return no_tensor(err);
}

int kd_gpu_tensor_gram(struct kd_gpu_tensor *t, float *diagonal, struct kd_err *err)
{
    (void)t;
    (void)diagonal;
    return no_tensor(err);
}
