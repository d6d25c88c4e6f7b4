/* The weighted sum of a layer's experts: with devices expert by expert over all tokens, whose
 * latents and sums stay there; else, and where they have no room, block by block. The bits are the
 * same. */
#include "base/mem.h"
#include "convert/layer_work.h"
#include "gpu/calib.h"
#include "kern/mat_source.h"

#include <stdatomic.h>
#include <string.h>

/* Parts of the tokens a device works on side by side, so that it computes while it is sent weights;
 * tokens that are worth a part. */
enum { PARTS = 2, PART_TOKENS = 64 };

/* The layer's experts as the forward pass sees them: quantized units, or the source where kept. */
static int unit_get(struct kd_store *s, int64_t layer, int64_t e, struct kd_expert *out,
                    struct kd_err *err)
{
    void **ctx = s->ctx;
    struct kd_layer_work *w = ctx[0];
    struct kd_job *j = ctx[1];
    const struct kd_unit *u = &w->expert[e];
    if (!u->count)
        return j->source->get(j->source, layer, e, out, err);
    *out = (struct kd_expert){
        .w1 = u->mat[0], .w3 = u->mat[1], .w2 = u->mat[2], .tier = KD_TIER_HOST, .ready = true};
    return 0;
}

struct sum {
    struct kd_job *j;
    struct kd_layer_work *w;
    struct kd_store store;
    struct kd_expert *expert; /* [experts], with devices */
    int64_t each;             /* tokens of a part */
    atomic_int failed;
    struct kd_err err; /* of the one that set `failed` */
};

static const int32_t *ids_at(const struct sum *s, int64_t t)
{
    return (const int32_t *)(const void *)s->w->ids.data + t * s->j->cfg.topk;
}

static const float *weights_at(const struct sum *s, int64_t t)
{
    return (const float *)(const void *)s->w->wts.data + t * s->j->cfg.topk;
}

static float *out_at(const struct sum *s, int64_t t)
{
    return (float *)(void *)s->w->u.data + t * s->j->cfg.latent;
}

/* Tokens [first, first + T) here. */
static int sum_here(struct sum *s, int64_t first, int64_t T, struct kd_err *err)
{
    struct kd_job *j = s->j;
    int64_t latent = j->cfg.latent;
    float *z;
    if (kd_mem_new(&z, (T < j->block_T ? T : j->block_T) * latent, sizeof *z, "latents", err))
        return -1;
    int rc = 0;
    for (int64_t end = first + T; !rc && first < end; first += T) {
        T = end - first < j->block_T ? end - first : j->block_T;
        const uint16_t *zb = (const uint16_t *)(const void *)s->w->z.data + first * latent;
        for (int64_t i = 0; i < T * latent; i++)
            z[i] = kd_bf16_f32(zb[i]);
        rc = kd_job_stop_check(j, err) ||
             kd_k3_experts(j->run, &j->cfg, s->w->L.index, &s->store, z, ids_at(s, first),
                           weights_at(s, first), T, out_at(s, first), err);
    }
    kd_mem_free(z);
    return rc ? -1 : 0;
}

/* Tokens by expert: expert e has the pairs start[e] .. start[e + 1] - 1, in token order. */
struct pairs {
    int64_t *start; /* [experts + 1] */
    int32_t *token;
    float *weight;
};

static void pairs_release(struct pairs *p)
{
    kd_mem_free(p->start);
    kd_mem_free(p->token);
    kd_mem_free(p->weight);
}

static int pairs_make(struct pairs *p, const struct sum *s, int64_t first, int64_t T,
                      struct kd_err *err)
{
    const struct kd_k3_cfg *c = &s->j->cfg;
    const int32_t *ids = ids_at(s, first);
    const float *weight = weights_at(s, first);
    int64_t n = T * c->topk;
    memset(p, 0, sizeof *p);
    if (kd_mem_zero(&p->start, c->experts + 2, sizeof *p->start, "expert groups", err) ||
        kd_mem_new(&p->token, n, sizeof *p->token, "expert groups", err) ||
        kd_mem_new(&p->weight, n, sizeof *p->weight, "expert groups", err))
        return -1;
    /* Shifted by two, so that filling leaves the starts in place. */
    for (int64_t i = 0; i < n; i++)
        if (ids[i] >= 0)
            p->start[ids[i] + 2]++;
    for (int64_t e = 1; e <= c->experts; e++)
        p->start[e + 1] += p->start[e];
    for (int64_t i = 0; i < n; i++)
        if (ids[i] >= 0) {
            int64_t at = p->start[ids[i] + 1]++;
            p->token[at] = (int32_t)(i / c->topk);
            p->weight[at] = weight[i];
        }
    return 0;
}

static int add_expert(struct sum *s, struct kd_gpu_routed *r, const struct pairs *p, int64_t e,
                      bool *done, struct kd_err *err)
{
    const struct kd_k3_cfg *c = &s->j->cfg;
    int64_t at = p->start[e], n = p->start[e + 1] - at;
    const struct kd_expert *x = &s->expert[e];
    if (!n)
        return 0;
    if (kd_job_stop_check(s->j, err))
        return -1;
    const struct kd_gpu_source w[3] = {kd_mat_source(&x->w1), kd_mat_source(&x->w3),
                                       kd_mat_source(&x->w2)};
    return kd_gpu_routed_add(r, w, p->token + at, p->weight + at, n, c->situ_beta, c->situ_linear,
                             done, err);
}

/* The same on a device; *done false: it has no room, or no products with some expert. */
static int sum_there(struct sum *s, int part, int64_t first, int64_t T, bool *done,
                     struct kd_err *err)
{
    struct kd_job *j = s->j;
    const uint16_t *z = (const uint16_t *)(const void *)s->w->z.data + first * j->cfg.latent;
    struct kd_gpu_routed *r = NULL;
    struct pairs p = {0};
    int rc = kd_gpu_routed_open(&r, j->run->encoder, part, z, T, j->cfg.latent, err);
    *done = r != NULL;
    if (!rc && r)
        rc = pairs_make(&p, s, first, T, err);
    for (int64_t e = 0; !rc && *done && e < j->cfg.experts; e++)
        rc = add_expert(s, r, &p, e, done, err);
    if (!rc && *done)
        rc = kd_gpu_routed_take(r, out_at(s, first), err);
    kd_gpu_routed_close(r);
    pairs_release(&p);
    return rc ? -1 : 0;
}

/* A part, in as large pieces as there is room for. */
static void sum_part(void *ctx, int64_t part, int worker)
{
    struct sum *s = ctx;
    struct kd_err err = {0};
    int64_t end = (part + 1) * s->each, n = s->each;
    int rc = 0;
    (void)worker;
    if (end > s->j->T)
        end = s->j->T;
    for (int64_t first = part * s->each; !rc && first < end;) {
        int64_t T = end - first < n ? end - first : n;
        bool done;
        rc = sum_there(s, (int)part, first, T, &done, &err);
        if (!rc && !done && T > s->j->block_T) {
            n = (T + 1) / 2;
            continue;
        }
        if (!rc && !done)
            rc = sum_here(s, first, T, &err);
        first += T;
    }
    if (rc && !atomic_exchange(&s->failed, 1))
        s->err = err;
}

/* Stores belong to one thread: all experts before the parts begin. */
static int find_experts(struct sum *s, struct kd_err *err)
{
    struct kd_store *source = s->j->source;
    int64_t n = s->j->cfg.experts, layer = s->w->L.index;
    if (kd_mem_new(&s->expert, n, sizeof *s->expert, "expert table", err))
        return -1;
    for (int64_t e = 0; e < n; e++) {
        struct kd_expert *x = &s->expert[e];
        if (s->store.get(&s->store, layer, e, x, err) ||
            (!x->ready && source->wait(source, layer, e, x, err)))
            return -1;
    }
    return 0;
}

int kd_layer_sum_experts(struct kd_job *j, struct kd_layer_work *w, struct kd_err *err)
{
    void *ctx[2] = {w, j};
    struct sum s = {.j = j, .w = w, .store = {.get = unit_get, .ctx = ctx}};
    struct kd_gpu_encoder_facts f;
    if (!j->run->encoder)
        return sum_here(&s, 0, j->T, err);
    kd_gpu_encoder_facts(j->run->encoder, &f);
    int64_t parts = PARTS * f.devices, most = (j->T + PART_TOKENS - 1) / PART_TOKENS;
    if (parts > most)
        parts = most;
    s.each = (j->T + parts - 1) / parts;
    int rc = find_experts(&s, err);
    if (!rc)
        kd_pool_run(j->run->pool, parts, sum_part, &s);
    kd_mem_free(s.expert);
    return rc ? -1 : atomic_load(&s.failed) ? kd_fail(err, s.err.code, "%s", s.err.msg) : 0;
}
