/* Encoding on a device in a build without CUDA: no encoder is ever open. */
#include "gpu/encoder.h"
#include "gpu/gpu.h"

#include <string.h>

/* Signatures are the device's. NOLINTBEGIN(readability-non-const-parameter) */

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

void kd_gpu_encoder_calibrate(struct kd_gpu_encoder *e, enum kd_gpu_calib_class c)
{
    (void)e;
    (void)c;
}

bool kd_gpu_encoder_searches(const struct kd_gpu_encoder *e, struct kd_rate rate)
{
    (void)e;
    (void)rate;
    return false;
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

int kd_gpu_square_open(struct kd_gpu_square **out, struct kd_gpu_encoder *e, const float *h,
                       int64_t k, struct kd_err *err)
{
    (void)e;
    (void)h;
    (void)k;
    *out = NULL;
    return no_tensor(err);
}

void kd_gpu_square_close(struct kd_gpu_square *s)
{
    (void)s;
}

int kd_gpu_tensor_load(struct kd_gpu_tensor *t, const struct kd_gpu_source *w, bool *finite,
                       struct kd_err *err)
{
    (void)t;
    (void)w;
    *finite = false;
    return no_tensor(err);
}

int kd_gpu_tensor_columns(struct kd_gpu_tensor *t, double *sum, struct kd_err *err)
{
    (void)t;
    (void)sum;
    return no_tensor(err);
}

int kd_gpu_tensor_rows(struct kd_gpu_tensor *t, const float *sv, double *sum, struct kd_err *err)
{
    (void)t;
    (void)sv;
    (void)sum;
    return no_tensor(err);
}

int kd_gpu_tensor_energy(struct kd_gpu_tensor *t, double *energy, struct kd_err *err)
{
    (void)t;
    (void)energy;
    return no_tensor(err);
}

int kd_gpu_tensor_sample(struct kd_gpu_tensor *t, const int64_t *pick, int64_t tiles, double drift,
                         struct kd_err *err)
{
    (void)t;
    (void)pick;
    (void)tiles;
    (void)drift;
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

int kd_gpu_tensor_solve(struct kd_gpu_tensor *t, float *rhs, struct kd_err *err)
{
    (void)t;
    (void)rhs;
    return no_tensor(err);
}

int kd_gpu_tensor_error(struct kd_gpu_tensor *t, double *power, double *error, struct kd_err *err)
{
    (void)t;
    (void)power;
    (void)error;
    return no_tensor(err);
}
/* NOLINTEND(readability-non-const-parameter) */
