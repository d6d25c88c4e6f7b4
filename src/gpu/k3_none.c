/* K3's operations and graphs in a build without CUDA. Nothing here is reached with a device, for
 * there is none. */
#include "gpu/account.h"
#include "gpu/graph.h"
#include "gpu/k3_ops.h"

/* The signatures are the device's: NOLINTBEGIN(readability-non-const-parameter) */

static int none(struct kd_err *err)
{
    return kd_fail(err, KD_ENOTSUP, "this kondense was built without CUDA");
}

int kd_gpu_k3_fits(const struct kd_gpu_k3_shape *s, struct kd_err *err)
{
    (void)s;
    return none(err);
}

int kd_gpu_k3_embed(struct kd_gpu *g, const struct kd_gpu_k3_batch *b, const void *table, bool bf16,
                    int64_t hidden, float *p, struct kd_err *err)
{
    (void)g;
    (void)b;
    (void)table;
    (void)bf16;
    (void)hidden;
    (void)p;
    return none(err);
}

int kd_gpu_k3_mix_run(struct kd_gpu *g, const struct kd_gpu_k3_mix *m, struct kd_err *err)
{
    (void)g;
    (void)m;
    return none(err);
}

int kd_gpu_k3_norm(struct kd_gpu *g, const float *x, const float *w, float eps, int64_t rows,
                   int64_t n, float *out, struct kd_err *err)
{
    (void)g;
    (void)x;
    (void)w;
    (void)eps;
    (void)rows;
    (void)n;
    (void)out;
    return none(err);
}

int kd_gpu_k3_round(struct kd_gpu *g, float *x, int64_t count, uint16_t *out, struct kd_err *err)
{
    (void)g;
    (void)x;
    (void)count;
    (void)out;
    return none(err);
}

int kd_gpu_k3_finite(struct kd_gpu *g, const float *x, int64_t count, int32_t *bad,
                     struct kd_err *err)
{
    (void)g;
    (void)x;
    (void)count;
    (void)bad;
    return none(err);
}

int kd_gpu_k3_situ(struct kd_gpu *g, const float *a, const float *b, float beta, float linear,
                   int64_t count, float *out, struct kd_err *err)
{
    (void)g;
    (void)a;
    (void)b;
    (void)beta;
    (void)linear;
    (void)count;
    (void)out;
    return none(err);
}

int64_t kd_gpu_k3_kda_floats(int64_t heads, int64_t rows)
{
    (void)heads;
    (void)rows;
    return 0;
}

int kd_gpu_k3_kda_run(struct kd_gpu *g, const struct kd_gpu_k3_batch *b,
                      const struct kd_gpu_k3_kda *k, struct kd_err *err)
{
    (void)g;
    (void)b;
    (void)k;
    return none(err);
}

int kd_gpu_k3_latents_run(struct kd_gpu *g, const struct kd_gpu_k3_batch *b,
                          const struct kd_gpu_k3_latents *m, struct kd_err *err)
{
    (void)g;
    (void)b;
    (void)m;
    return none(err);
}

int64_t kd_gpu_k3_mla_floats(bool fast, int64_t heads, int64_t kv_lora, int64_t rows,
                             int64_t longest, int64_t most, int64_t *parts)
{
    (void)fast;
    (void)heads;
    (void)kv_lora;
    (void)rows;
    (void)longest;
    (void)most;
    *parts = 1;
    return 0;
}

int kd_gpu_k3_mla_run(struct kd_gpu *g, const struct kd_gpu_k3_batch *b,
                      const struct kd_gpu_k3_mla *m, struct kd_err *err)
{
    (void)g;
    (void)b;
    (void)m;
    return none(err);
}

int kd_gpu_k3_route_run(struct kd_gpu *g, const struct kd_gpu_k3_route *r, struct kd_err *err)
{
    (void)g;
    (void)r;
    return none(err);
}

int kd_gpu_graph_begin(struct kd_gpu *g, struct kd_err *err)
{
    (void)g;
    return none(err);
}

int kd_gpu_graph_end(struct kd_gpu *g, struct kd_gpu_graph **out, struct kd_err *err)
{
    (void)g;
    *out = NULL;
    return none(err);
}

void kd_gpu_graph_cancel(struct kd_gpu *g)
{
    (void)g;
}

int kd_gpu_graph_run(struct kd_gpu *g, const struct kd_gpu_graph *graph, struct kd_err *err)
{
    (void)g;
    (void)graph;
    return none(err);
}

void kd_gpu_graph_free(struct kd_gpu_graph *graph)
{
    (void)graph;
}

int kd_gpu_account_begin(struct kd_gpu *g, bool each, struct kd_err *err)
{
    (void)g;
    (void)each;
    return none(err);
}

void kd_gpu_account_at(struct kd_gpu *g, const char *part)
{
    (void)g;
    (void)part;
}

int kd_gpu_account_end(struct kd_gpu *g, struct kd_gpu_account *a, struct kd_err *err)
{
    (void)g;
    (void)a;
    return none(err);
}

/* NOLINTEND(readability-non-const-parameter) */
