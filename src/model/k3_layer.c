/* One layer: its stages in order, and the sums over ranks between them. */
#include "base/mem.h"
#include "model/k3_int.h"
#include "num/half.h"

static int reduce(struct kd_comm *comm, float *buf, int64_t count, struct kd_err *err)
{
    return comm && comm->ranks > 1 ? comm->all_reduce(comm, buf, count, err) : 0;
}

static int attn_part(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                     struct kd_comm *comm, struct kd_k3_stream *s, const struct kd_k3_seg *segs,
                     int64_t seg_count, struct kd_err *err)
{
    int64_t T = s->T, w = L->o.cols;
    float *x, *y;
    if (kd_mem_new(&x, T * (c->hidden + w), sizeof *x, "attention buffers", err))
        return -1;
    y = x + T * c->hidden;
    int rc = kd_k3_attn_in(r, c, L, s, x, err) ||
                     kd_k3_attn_core(r, c, L, x, T, segs, seg_count, y, err) ||
                     kd_mat_mul(r, &L->o, y, w, T, x, c->hidden, err) ||
                     reduce(comm, x, T * c->hidden, err)
                 ? -1
                 : 0;
    if (!rc)
        kd_k3_add_attn(r, c, L, s, x);
    kd_mem_free(x);
    return rc;
}

/* f = down SiTU(gate x, up x), summed over ranks. */
static int mlp(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
               struct kd_comm *comm, const float *x, int64_t T, float *f, struct kd_err *err)
{
    int64_t w = L->gate.rows;
    float *inner;
    if (kd_mem_new(&inner, T * w, sizeof *inner, "MLP buffers", err))
        return -1;
    int rc = kd_k3_mlp_inner(r, c, &L->gate, &L->up, x, T, inner, err) ||
                     kd_mat_mul(r, &L->down, inner, w, T, f, c->hidden, err) ||
                     reduce(comm, f, T * c->hidden, err)
                 ? -1
                 : 0;
    kd_mem_free(inner);
    return rc;
}

/* f = routed part for x. buf: [T][2 * latent], then topk weights and ids where the probe has none.
 */
static int routed(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                  struct kd_store *store, struct kd_comm *comm, const struct kd_k3_probe *p,
                  const float *x, int64_t T, float *f, struct kd_err *err)
{
    int64_t n = T * c->latent, k = T * c->topk;
    float *z;
    if (kd_mem_new(&z, 2 * n + 2 * k, sizeof *z, "latents", err))
        return -1;
    float *u = z + n, *w = p && p->w ? p->w : u + n;
    int32_t *ids = p && p->ids ? p->ids : (int32_t *)(void *)(u + n + k);
    int rc =
        kd_k3_route(r, c, L, x, T, p ? p->experts_used : 0, ids, w, p ? p->score : NULL, err) ||
                kd_mat_mul(r, &L->routed_down, x, c->hidden, T, z, c->latent, err)
            ? -1
            : 0;
    if (!rc && p && p->expert_mass > 0)
        kd_k3_route_mass(c, T, p->expert_mass, ids, w);
    if (!rc && p && p->round_latents)
        for (int64_t i = 0; i < n; i++)
            z[i] = kd_bf16_f32(kd_f32_bf16(z[i]));
    if (!rc)
        rc = kd_k3_experts(r, c, L->index, store, z, ids, w, T, u, err) || reduce(comm, u, n, err)
                 ? -1
                 : 0;
    if (!rc) {
        kd_k3_latent_norm(r, c, L, u, T, z);
        rc = kd_mat_mul(r, &L->routed_up, z, c->latent, T, f, c->hidden, err);
    }
    kd_mem_free(z);
    return rc;
}

static int ffn_part(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                    struct kd_store *store, struct kd_comm *comm, const struct kd_k3_probe *probe,
                    struct kd_k3_stream *s, struct kd_err *err)
{
    int64_t T = s->T, n = T * c->hidden;
    float *x;
    if (kd_mem_new(&x, 3 * n, sizeof *x, "feed-forward buffers", err))
        return -1;
    float *f = x + n, *g = f + n;
    bool has_mlp = L->gate.type != KD_MAT_NONE;
    int rc = kd_k3_ffn_in(r, c, L, s, x, err);
    if (!rc && L->moe)
        rc = routed(r, c, L, store, comm, probe, x, T, f, err);
    if (!rc && has_mlp)
        rc = mlp(r, c, L, comm, x, T, L->moe ? g : f, err);
    if (!rc) {
        for (int64_t i = 0; L->moe && has_mlp && i < n; i++)
            f[i] += g[i];
        kd_k3_add_ffn(r, s, f);
    }
    kd_mem_free(x);
    return rc;
}

int kd_k3_layer_forward(const struct kd_run *r, const struct kd_k3_cfg *c,
                        const struct kd_k3_layer *L, struct kd_store *store, struct kd_comm *comm,
                        struct kd_k3_stream *s, const struct kd_k3_seg *segs, int64_t seg_count,
                        const struct kd_k3_probe *probe, struct kd_err *err)
{
    if (attn_part(r, c, L, comm, s, segs, seg_count, err) ||
        ffn_part(r, c, L, store, comm, probe, s, err))
        return kd_wrap(err, "layer %lld", (long long)L->index);
    return 0;
}
