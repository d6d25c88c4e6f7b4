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

/* The arrays of a feed-forward part. */
struct ffn {
    int64_t T, width;  /* width of the MLP; 0: none */
    float *x, *f, *g;  /* [T][hidden]: its input; what the routed experts and the MLP make of it */
    float *inner, *up; /* [T][width] */
    float *z, *u;      /* [T][latent]: the experts' input, their sum */
    float *w;          /* [T][topk] */
    int32_t *ids;      /* [T][topk] */
};

static int ffn_init(struct ffn *a, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                    int64_t T, struct kd_err *err)
{
    int64_t n = T * c->hidden, lat = L->moe ? T * c->latent : 0, k = L->moe ? T * c->topk : 0;
    *a = (struct ffn){.T = T, .width = L->gate.type != KD_MAT_NONE ? L->gate.rows : 0};
    if (kd_mem_new(&a->x, 3 * n + 2 * T * a->width + 2 * lat + 2 * k, sizeof *a->x,
                   "feed-forward buffers", err))
        return -1;
    a->f = a->x + n;
    a->g = a->f + n;
    a->inner = a->g + n;
    a->up = a->inner + T * a->width;
    a->z = a->up + T * a->width;
    a->u = a->z + lat;
    a->w = a->u + lat;
    a->ids = (int32_t *)(void *)(a->w + k);
    return 0;
}

/* Everything that takes x side by side: latents, and the inner rows of the MLP. */
static int ffn_down(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                    const struct ffn *a, struct kd_err *err)
{
    int64_t T = a->T, h = c->hidden, w = a->width, n = 0;
    struct kd_mat_job jobs[3];
    if (L->moe)
        jobs[n++] = (struct kd_mat_job){&L->routed_down, a->x, h, T, a->z, c->latent};
    if (w) {
        jobs[n++] = (struct kd_mat_job){&L->gate, a->x, h, T, a->inner, w};
        jobs[n++] = (struct kd_mat_job){&L->up, a->x, h, T, a->up, w};
    }
    if (kd_mat_mul_many(r, jobs, n, err))
        return -1;
    kd_k3_situ(r, c, a->inner, a->up, a->inner, T * w);
    return 0;
}

/* u = the sum over the experts of each token, over all ranks. */
static int ffn_experts(const struct kd_run *r, const struct kd_k3_cfg *c,
                       const struct kd_k3_layer *L, struct kd_store *store, struct kd_comm *comm,
                       const struct kd_k3_probe *p, const struct ffn *a, struct kd_err *err)
{
    int64_t n = a->T * c->latent;
    float *w = p && p->w ? p->w : a->w;
    int32_t *ids = p && p->ids ? p->ids : a->ids;
    if (kd_k3_route(r, c, L, a->x, a->T, p ? p->experts_used : 0, ids, w, p ? p->score : NULL, err))
        return -1;
    if (p && p->expert_mass > 0)
        kd_k3_route_mass(c, a->T, p->expert_mass, ids, w);
    if (p && p->round_latents)
        for (int64_t i = 0; i < n; i++)
            a->z[i] = kd_bf16_f32(kd_f32_bf16(a->z[i]));
    return kd_k3_experts(r, c, L->index, store, a->z, ids, w, a->T, a->u, err) ||
                   reduce(comm, a->u, n, err)
               ? -1
               : 0;
}

/* Both parts back to the stream's width, f = their sum. */
static int ffn_up(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                  struct kd_comm *comm, const struct ffn *a, struct kd_err *err)
{
    int64_t T = a->T, h = c->hidden, n = 0;
    float *mlp = L->moe ? a->g : a->f;
    struct kd_mat_job jobs[2];
    if (L->moe) {
        kd_k3_latent_norm(r, c, L, a->u, T, a->z);
        jobs[n++] = (struct kd_mat_job){&L->routed_up, a->z, c->latent, T, a->f, h};
    }
    if (a->width)
        jobs[n++] = (struct kd_mat_job){&L->down, a->inner, a->width, T, mlp, h};
    if (kd_mat_mul_many(r, jobs, n, err) || (a->width && reduce(comm, mlp, T * h, err)))
        return -1;
    for (int64_t i = 0; L->moe && a->width && i < T * h; i++)
        a->f[i] += a->g[i];
    return 0;
}

static int ffn_part(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                    struct kd_store *store, struct kd_comm *comm, const struct kd_k3_probe *probe,
                    struct kd_k3_stream *s, struct kd_err *err)
{
    struct ffn a;
    if (ffn_init(&a, c, L, s->T, err))
        return -1;
    int rc = kd_k3_ffn_in(r, c, L, s, a.x, err) || ffn_down(r, c, L, &a, err) ||
                     (L->moe && ffn_experts(r, c, L, store, comm, probe, &a, err)) ||
                     ffn_up(r, c, L, comm, &a, err)
                 ? -1
                 : 0;
    if (!rc)
        kd_k3_add_ffn(r, s, a.f);
    kd_mem_free(a.x);
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
