/* Products in a build without CUDA. Nothing here is reached with a device, for there is none. */
#include "gpu/product.h"

static int none(struct kd_err *err)
{
    return kd_fail(err, KD_ENOTSUP, "this kondense was built without CUDA");
}

int kd_gpu_alloc(struct kd_gpu *g, void **out, int64_t bytes, const char *what, struct kd_err *err)
{
    (void)g;
    (void)bytes;
    (void)what;
    *out = NULL;
    return none(err);
}

void kd_gpu_release(struct kd_gpu *g, void *p)
{
    (void)g;
    (void)p;
}

int kd_gpu_host_alloc(struct kd_gpu *g, void **out, int64_t bytes, const char *what,
                      struct kd_err *err)
{
    return kd_gpu_alloc(g, out, bytes, what, err);
}

void kd_gpu_host_release(struct kd_gpu *g, void *p)
{
    (void)g;
    (void)p;
}

int kd_gpu_free_bytes(struct kd_gpu *g, int64_t *bytes, struct kd_err *err)
{
    (void)g;
    *bytes = 0;
    return none(err);
}

int kd_gpu_upload(struct kd_gpu *g, void *to, const void *from, int64_t bytes, struct kd_err *err)
{
    (void)g;
    (void)to;
    (void)from;
    (void)bytes;
    return none(err);
}

int kd_gpu_copy(struct kd_gpu *g, void *to, const void *from, int64_t bytes, struct kd_err *err)
{
    return kd_gpu_upload(g, to, from, bytes, err);
}

int kd_gpu_zero(struct kd_gpu *g, void *p, int64_t bytes, struct kd_err *err)
{
    return kd_gpu_upload(g, p, NULL, bytes, err);
}

int kd_gpu_download(struct kd_gpu *g, void *to, const void *from, int64_t bytes, struct kd_err *err)
{
    return kd_gpu_upload(g, to, from, bytes, err);
}

int kd_gpu_wait(struct kd_gpu *g, struct kd_err *err)
{
    (void)g;
    return none(err);
}

int64_t kd_gpu_mat_bytes(const struct kd_gpu_source *s)
{
    (void)s;
    return -1;
}

int kd_gpu_mat_load(struct kd_gpu *g, struct kd_gpu_mat *m, const struct kd_gpu_source *s,
                    void *memory, struct kd_err *err)
{
    (void)g;
    (void)m;
    (void)s;
    (void)memory;
    return none(err);
}

int kd_gpu_mat_make(struct kd_gpu *g, struct kd_gpu_mat *m, const struct kd_gpu_source *s,
                    uint64_t seed, void *memory, struct kd_err *err)
{
    (void)seed;
    return kd_gpu_mat_load(g, m, s, memory, err);
}

void kd_gpu_mul_limit(struct kd_gpu *g, int blocks)
{
    (void)g;
    (void)blocks;
}

int64_t kd_gpu_mul_scratch(const struct kd_gpu_job *jobs, int count, int64_t T)
{
    (void)jobs;
    (void)count;
    (void)T;
    return -1;
}

int kd_gpu_mul(struct kd_gpu *g, enum kd_gpu_class cls, const struct kd_gpu_job *jobs, int count,
               int64_t T, void *scratch, int64_t scratch_bytes, struct kd_err *err)
{
    (void)g;
    (void)cls;
    (void)jobs;
    (void)count;
    (void)T;
    (void)scratch;
    (void)scratch_bytes;
    return none(err);
}

int kd_gpu_experts_open(struct kd_gpu_experts **out, struct kd_gpu *g,
                        const struct kd_gpu_experts_shape *shape, struct kd_gpu_experts *share,
                        struct kd_err *err)
{
    (void)g;
    (void)shape;
    (void)share;
    *out = NULL;
    return none(err);
}

void kd_gpu_experts_close(struct kd_gpu_experts *e)
{
    (void)e;
}

int64_t kd_gpu_experts_bytes(const struct kd_gpu_experts_shape *shape, bool shared)
{
    (void)shape;
    (void)shared;
    return -1;
}

int kd_gpu_experts_set(struct kd_gpu_experts *e, int64_t first, int64_t count,
                       const struct kd_gpu_mat (*m)[3], struct kd_err *err)
{
    (void)e;
    (void)first;
    (void)count;
    (void)m;
    return none(err);
}

int kd_gpu_experts_mul(struct kd_gpu_experts *e, enum kd_gpu_class cls,
                       const struct kd_gpu_experts_call *c, struct kd_err *err)
{
    (void)e;
    (void)cls;
    (void)c;
    return none(err);
}
