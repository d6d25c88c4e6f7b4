/* The routed experts of a layer: latents and routing once, then one unit of work an expert, then
 * their weighted sum from the sealed units. */
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/parts.h"
#include "base/progress.h"
#include "convert/layer_work.h"
#include "convert/trial.h"
#include "gpu/calib.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* Calibration constants of the recipe: under FALLBACK_ROWS routed tokens an expert is listed;
 * BLEND_ROWS is k of n/(n+k) in exl3 Decision 10. */
enum { FALLBACK_ROWS = 256, BLEND_ROWS = 2048, EXPERT_BLOCK_ROWS = 512, AUTO_EXPERTS = 4 };

/* Rows to BF16, and what they are as such. */
struct round_job {
    float *z;
    uint16_t *to;
    int64_t n;
};

static void round_item(void *ctx, int64_t t, int worker)
{
    const struct round_job *j = ctx;
    float *z = j->z + t * j->n;
    uint16_t *to = j->to + t * j->n;
    (void)worker;
    for (int64_t i = 0; i < j->n; i++) {
        to[i] = kd_f32_bf16(z[i]);
        z[i] = kd_bf16_f32(to[i]);
    }
}

static int latents_here(struct kd_job *j, struct kd_layer_work *w, struct kd_hess *h,
                        struct kd_err *err)
{
    int64_t H = j->cfg.hidden, latent = j->cfg.latent, topk = j->cfg.topk, B = j->block_T;
    float *x = NULL, *z = NULL;
    int rc = kd_mem_new(&x, B * H, sizeof *x, "FFN inputs", err) ||
             kd_mem_new(&z, B * latent, sizeof *z, "latents", err);
    for (int64_t b = 0; !rc && b < kd_job_blocks(j); b++) {
        int64_t first, T;
        kd_job_block(j, b, &first, &T);
        int32_t *ids = (int32_t *)(void *)w->ids.data + first * topk;
        float *wts = (float *)(void *)w->wts.data + first * topk;
        rc = kd_job_stop_check(j, err) || kd_layer_ffn_in(j, w, first, T, x, err) ||
             kd_k3_route(j->run, &j->cfg, &w->L, x, T, 0, ids, wts, NULL, err) ||
             kd_mat_mul(j->run, &w->L.routed_down, x, H, T, z, latent, err);
        struct round_job round = {z, (uint16_t *)(void *)w->z.data + first * latent, latent};
        if (!rc)
            kd_pool_run(j->run->pool, T, round_item, &round);
        rc = rc || kd_job_finite(j, "latents", z, latent, T, err);
        /* Only the tokens the Hessians may see (recipe auto holds some back). */
        int64_t seen = first + T <= j->T_hess ? T : j->T_hess - first;
        if (!rc && seen > 0)
            rc = kd_hess_add(j->run, h, z, latent, seen, err);
    }
    kd_mem_free(x);
    kd_mem_free(z);
    return rc ? -1 : 0;
}

static int latents(struct kd_job *j, struct kd_layer_work *w, struct kd_hess *h, struct kd_err *err)
{
    int64_t latent = j->cfg.latent, topk = j->cfg.topk;
    bool done;
    return kd_layer_scratch(j, &w->z, "latents", j->T * latent * 2, err) ||
                   kd_layer_scratch(j, &w->ids, "routing_ids", j->T * topk * 4, err) ||
                   kd_layer_scratch(j, &w->wts, "routing_weights", j->T * topk * 4, err) ||
                   kd_layer_scratch(j, &w->u, "experts_sum", j->T * latent * 4, err) ||
                   kd_there_run(j, w, kd_there_latents, "latents", h, j->T_hess, &done, err) ||
                   (!done && latents_here(j, w, h, err)) || kd_hess_finish(h, err)
               ? -1
               : 0;
}

/* The three plan entries of an expert, NULL where a matrix stays as stored. */
struct trio {
    const struct kd_out_tensor *t[KD_PROJ_COUNT];
};

static void find_trios(const struct kd_job *j, int64_t layer, struct trio *trios)
{
    for (int64_t i = j->rates.shard_first[layer]; i < j->rates.shard_first[layer + 1]; i++) {
        const struct kd_out_tensor *t = &j->rates.t[i];
        if (t->quantized && t->expert >= 0 && t->expert < j->cfg.experts)
            trios[t->expert].t[t->proj] = t;
    }
}

static int check_trios(const struct kd_job *j, const struct trio *trios, struct kd_err *err)
{
    for (int64_t e = 0; e < j->cfg.experts; e++)
        for (int p = 1; p < KD_PROJ_COUNT; p++)
            if (!trios[e].t[0] != !trios[e].t[p])
                return kd_fail(
                    err, KD_ENOTSUP,
                    "expert %lld: some of its matrices are quantized and some kept as stored "
                    "(padding rule); this shape is not supported",
                    (long long)e);
    return 0;
}

static int source_expert(struct kd_job *j, int64_t layer, int64_t e, struct kd_expert *src,
                         struct kd_err *err)
{
    return j->source->get(j->source, layer, e, src, err) ||
                   (!src->ready && j->source->wait(j->source, layer, e, src, err))
               ? -1
               : 0;
}

static void specs_of(const struct kd_job *j, const struct trio *t, int64_t e,
                     const struct kd_recipe *recipe, struct kd_quant_spec spec[KD_PROJ_COUNT])
{
    for (int p = 0; p < KD_PROJ_COUNT; p++) {
        /* Gate and up share the latents' signs over the whole layer; down's input is its own. */
        char own[48];
        snprintf(own, sizeof own, "expert.%lld.inner", (long long)e);
        spec[p] = kd_layer_spec(j, t->t[p], p == KD_PROJ_W2 ? own : "latent");
        spec[p].recipe = *recipe;
    }
}

static int quantize(struct kd_job *j, struct kd_layer_work *w, const struct kd_layer_inputs *in,
                    const struct trio *t, int64_t e, const struct kd_recipe *recipe,
                    struct kd_expert_out *out, struct kd_err *err)
{
    struct kd_expert src;
    struct kd_quant_spec spec[KD_PROJ_COUNT];
    int64_t layer = w->L.index;
    if (source_expert(j, layer, e, &src, err))
        return -1;
    specs_of(j, t, e, recipe, spec);
    int rc = kd_expert_quantize(j->run, e, &src.w1, &src.w3, &src.w2, in, spec, out, err);
    if (j->source->done)
        j->source->done(j->source, layer, e);
    return rc ? kd_wrap(err, "expert %lld", (long long)e) : 0;
}

/* A few experts of a layer encoded by one recipe; the others are the source's. */
struct sample {
    struct kd_job *j;
    int64_t id[AUTO_EXPERTS];
    struct kd_expert_out out[AUTO_EXPERTS];
    int count;
};

static int sample_get(struct kd_store *s, int64_t layer, int64_t e, struct kd_expert *out,
                      struct kd_err *err)
{
    const struct sample *m = s->ctx;
    for (int i = 0; i < m->count; i++)
        if (m->id[i] == e) {
            *out = (struct kd_expert){.w1 = kd_quant_mat(&m->out[i].w1),
                                      .w3 = kd_quant_mat(&m->out[i].w3),
                                      .w2 = kd_quant_mat(&m->out[i].w2),
                                      .tier = KD_TIER_HOST,
                                      .ready = true};
            return 0;
        }
    return m->j->source->get(m->j->source, layer, e, out, err);
}

static bool routed_to(const int32_t *ids, int64_t topk, const struct sample *m)
{
    for (int64_t k = 0; k < topk; k++)
        for (int i = 0; i < m->count; i++)
            if (ids[k] == m->id[i])
                return true;
    return false;
}

/* Rows held back that are routed to a sampled expert, some at a time; no other row counts. */
struct held {
    float *z, *u, *n[2]; /* [rows][latent]: latents, sums, normed: of the source, of a sample */
    int32_t *ids;
    float *wts;
    int64_t rows, next; /* at a time; the first token not yet looked at */
};

static void held_release(struct held *h)
{
    kd_mem_free(h->z);
    kd_mem_free(h->u);
    kd_mem_free(h->n[0]);
    kd_mem_free(h->n[1]);
    kd_mem_free(h->ids);
    kd_mem_free(h->wts);
}

static int held_open(struct held *h, const struct kd_job *j, struct kd_err *err)
{
    int64_t latent = j->cfg.latent, topk = j->cfg.topk;
    memset(h, 0, sizeof *h);
    h->next = j->T_hess;
    h->rows = kd_job_held_rows(j);
    return kd_mem_new(&h->z, h->rows * latent, sizeof *h->z, "held-out latents", err) ||
                   kd_mem_new(&h->u, h->rows * latent, sizeof *h->u, "held-out sums", err) ||
                   kd_mem_new(&h->n[0], h->rows * latent, sizeof *h->u, "held-out outputs", err) ||
                   kd_mem_new(&h->n[1], h->rows * latent, sizeof *h->u, "held-out outputs", err) ||
                   kd_mem_new(&h->ids, h->rows * topk, sizeof *h->ids, "held-out routing", err) ||
                   kd_mem_new(&h->wts, h->rows * topk, sizeof *h->wts, "held-out routing", err)
               ? -1
               : 0;
}

/* The next rows, in order; how many. */
static int64_t held_next(struct held *h, const struct kd_job *j, const struct kd_layer_work *w,
                         const struct sample *m)
{
    int64_t latent = j->cfg.latent, topk = j->cfg.topk, n = 0;
    for (; n < h->rows && h->next < j->T; h->next++) {
        const int32_t *ids = (const int32_t *)(const void *)w->ids.data + h->next * topk;
        const float *wts = (const float *)(const void *)w->wts.data + h->next * topk;
        const uint16_t *z = (const uint16_t *)(const void *)w->z.data + h->next * latent;
        if (!routed_to(ids, topk, m))
            continue;
        for (int64_t i = 0; i < latent; i++)
            h->z[n * latent + i] = kd_bf16_f32(z[i]);
        memcpy(h->ids + n * topk, ids, (size_t)topk * sizeof *ids);
        memcpy(h->wts + n * topk, wts, (size_t)topk * sizeof *wts);
        n++;
    }
    return n;
}

/* The layer's normed latents for n rows of h. */
static int held_outputs(struct kd_job *j, struct kd_layer_work *w, struct kd_store *store,
                        struct held *h, int64_t n, float *out, struct kd_err *err)
{
    if (kd_job_stop_check(j, err) ||
        kd_k3_experts(j->run, &j->cfg, w->L.index, store, h->z, h->ids, h->wts, n, h->u, err))
        return -1;
    kd_k3_latent_norm(j->run, &j->cfg, &w->L, h->u, n, out);
    return 0;
}

/* Of two samples of the same experts: mean squared error, relative to the mean square, of the
 * layer's normed latents over the rows held back that are routed to one of them. The norm is part
 * of the layer's output: without it the tokens with the largest sums would decide alone. */
static int held_out_errors(struct kd_job *j, struct kd_layer_work *w, struct sample m[2],
                           double error[2], struct kd_err *err)
{
    double bad[2] = {0, 0}, all = 0;
    struct held h;
    int64_t n = 0;
    int rc = held_open(&h, j, err);
    while (!rc && (n = held_next(&h, j, w, &m[0])) > 0) {
        rc = held_outputs(j, w, j->source, &h, n, h.n[0], err);
        for (int64_t i = 0; !rc && i < n * j->cfg.latent; i++)
            all += (double)h.n[0][i] * (double)h.n[0][i];
        for (int r = 0; r < 2 && !rc; r++) {
            struct kd_store store = {.get = sample_get, .ctx = &m[r]};
            rc = held_outputs(j, w, &store, &h, n, h.n[1], err);
            for (int64_t i = 0; !rc && i < n * j->cfg.latent; i++) {
                double d = (double)h.n[1][i] - (double)h.n[0][i];
                bad[r] += d * d;
            }
        }
    }
    held_release(&h);
    for (int r = 0; r < 2; r++)
        error[r] = all > 0 ? bad[r] / all : 0;
    return rc ? -1 : 0;
}

/* The experts of two samples, each encoded by its recipe: item r + 2 i is the i-th of sample r. */
struct sampling {
    struct kd_job *j;
    struct kd_layer_work *w;
    const struct kd_layer_inputs *in;
    const struct trio *trios;
    struct kd_recipe recipe[2];
    struct sample *m;
    atomic_int failed;
    struct kd_err err; /* of the one that set `failed` */
};

static void sample_item(void *ctx, int64_t item, int worker)
{
    struct sampling *s = ctx;
    struct sample *m = &s->m[item % 2];
    int64_t i = item / 2, e = m->id[i];
    struct kd_err err = {0};
    (void)worker;
    if (!atomic_load(&s->failed) &&
        quantize(s->j, s->w, s->in, &s->trios[e], e, &s->recipe[item % 2], &m->out[i], &err) &&
        !atomic_exchange(&s->failed, 1))
        s->err = err;
}

/* On a device side by side, where so many lanes are planned for: one tensor alone leaves it idle.
 */
static int encode_samples(struct sampling *s, struct kd_err *err)
{
    struct kd_job *j = s->j;
    int64_t most = j->cfg.experts < AUTO_EXPERTS ? j->cfg.experts : AUTO_EXPERTS;
    struct kd_expert first;
    for (int64_t i = 0; i < most; i++) {
        int64_t e = (2 * i + 1) * j->cfg.experts / (2 * most);
        if (!s->trios[e].t[0])
            continue;
        for (int r = 0; r < 2; r++)
            s->m[r].id[s->m[r].count++] = e;
    }
    /* The source's table is made here: a store belongs to one thread until then. */
    if (s->m[0].count && source_expert(j, s->w->L.index, s->m[0].id[0], &first, err))
        return -1;
    int64_t items = 2 * s->m[0].count;
    if (j->run->encoder && j->lanes >= items)
        kd_pool_run(j->run->pool, items, sample_item, s);
    else
        for (int64_t i = 0; i < items; i++)
            sample_item(s, i, 0);
    return atomic_load(&s->failed) ? kd_fail(err, s->err.code, "%s", s->err.msg) : 0;
}

/* For the receipt, where a resume finds it. */
static int keep_choice(const struct kd_job *j, int64_t layer, bool plain, const double error[2],
                       struct kd_err *err)
{
    struct kd_buf b;
    struct kd_jw w = {.out = &b};
    char path[4096];
    kd_buf_init(&b, 4096);
    kd_jw_open(&w, NULL, '{');
    kd_jw_int(&w, "layer", layer);
    kd_jw_str(&w, "recipe", plain ? "plain" : "default");
    kd_jw_num(&w, "held_out_default", error[0]);
    kd_jw_num(&w, "held_out_plain", error[1]);
    kd_jw_close(&w, '}');
    int rc = kd_job_path(j, path, sizeof path, err, "recipe.%03lld", (long long)layer) ||
             kd_buf_ok(&b, path, err) || kd_file_write(path, b.data, b.size_bytes, err);
    kd_buf_release(&b);
    return rc ? -1 : 0;
}

/* Recipe auto: a sample of experts is encoded plain and default; the smaller error of the layer's
 * output on held-out rows decides for the layer. A trial is told both and goes on as it was. */
static int choose(struct kd_job *j, struct kd_layer_work *w, const struct kd_layer_inputs *in,
                  const struct trio *trios, struct kd_recipe *recipe, uint32_t *plain_won,
                  struct kd_err *err)
{
    struct sample m[2] = {{.j = j}, {.j = j}};
    struct sampling s = {.j = j,
                         .w = w,
                         .in = in,
                         .trios = trios,
                         .recipe = {kd_recipe_of(KD_RECIPE_DEFAULT), kd_recipe_of(KD_RECIPE_PLAIN)},
                         .m = m};
    double error[2] = {0, 0};
    s.recipe[0].damping = j->recipe.damping;
    int rc = encode_samples(&s, err) || held_out_errors(j, w, m, error, err);
    if (j->trial)
        j->trial->compared = m[0].count;
    for (int r = 0; r < 2; r++)
        while (m[r].count)
            kd_expert_release(&m[r].out[--m[r].count]);
    if (rc)
        return -1;
    if (j->trial) {
        memcpy(j->trial->error, error, sizeof error);
        return 0;
    }
    *plain_won = error[1] < error[0];
    *recipe = s.recipe[*plain_won];
    kd_log(KD_LOG_INFO, "convert", "layer=%lld recipe=%s held_out_default=%.6f held_out_plain=%.6f",
           (long long)w->L.index, *plain_won ? "plain" : "default", error[0], error[1]);
    return keep_choice(j, w->L.index, *plain_won, error, err);
}

/* What the farm asks of the layer. */
struct crew {
    struct kd_job *j;
    struct kd_layer_work *w;
    const struct trio *trios;
    struct kd_recipe recipe;
    uint32_t plain_won;
};

static int task_of(void *ctx, int64_t e, struct kd_farm_task *t, bool *wanted, struct kd_err *err)
{
    const struct crew *c = ctx;
    struct kd_job *j = c->j;
    struct kd_expert src;
    const struct trio *trio = &c->trios[e];
    *wanted = trio->t[0] != NULL;
    if (!*wanted)
        return 0;
    if (source_expert(j, c->w->L.index, e, &src, err))
        return -1;
    *t = (struct kd_farm_task){.expert = e,
                               .w1 = src.w1,
                               .w3 = src.w3,
                               .w2 = src.w2,
                               .plain_won = c->plain_won,
                               .digest = j->digest};
    specs_of(j, trio, e, &c->recipe, t->spec);
    return kd_job_unit_path(j, trio->t[0], t->path, sizeof t->path, err);
}

static void count_unit(void *ctx, int64_t e)
{
    const struct crew *c = ctx;
    int64_t tiles = 0;
    char note[112];
    for (int p = 0; p < KD_PROJ_COUNT; p++)
        tiles += c->trios[e].t[p]->rows * c->trios[e].t[p]->cols / 256;
    snprintf(note, sizeof note, "layer %lld of %lld, expert %lld of %lld",
             (long long)c->w->L.index + 1, (long long)c->j->cfg.layers, (long long)e + 1,
             (long long)c->j->cfg.experts);
    kd_progress_add(tiles, note);
}

/* Whether an expert has no unit yet. */
static int any_missing(struct kd_job *j, const struct trio *trios, bool *missing,
                       struct kd_err *err)
{
    char path[4096];
    *missing = false;
    for (int64_t e = 0; e < j->cfg.experts && !*missing; e++) {
        if (!trios[e].t[0])
            continue;
        if (kd_job_unit_path(j, trios[e].t[0], path, sizeof path, err))
            return -1;
        *missing = !kd_file_exists(path);
    }
    return 0;
}

static int encode_all(struct kd_job *j, struct kd_layer_work *w, const struct kd_layer_inputs *in,
                      const struct trio *trios, struct kd_err *err)
{
    struct crew c = {.j = j, .w = w, .trios = trios, .recipe = j->recipe};
    struct kd_farm_layer l = {.layer = w->L.index,
                              .experts = j->cfg.experts,
                              .in = in,
                              .ctx = &c,
                              .plan = task_of,
                              .done = count_unit};
    char path[4096];
    bool missing;
    if (any_missing(j, trios, &missing, err))
        return -1;
    int was = kd_scope_enter(KD_SCOPE_COMPARE, KD_PART_FORWARD);
    int rc = missing && j->set.recipe == KD_RECIPE_AUTO
                 ? choose(j, w, in, trios, &c.recipe, &c.plain_won, err)
                 : 0;
    kd_part_leave(was);
    was = kd_scope_enter(KD_SCOPE_LAYER, KD_PART_WAIT);
    double begun = kd_clock_s();
    if (!rc)
        rc = (!j->farm && kd_job_farm(j, NULL, err)) || kd_farm_layer(j->farm, &l, err);
    if (j->trial)
        j->trial->experts_s += kd_clock_s() - begun;
    kd_part_leave(was);
    if (rc)
        return -1;
    for (int64_t e = 0; e < j->cfg.experts; e++)
        if (trios[e].t[0] && (kd_job_unit_path(j, trios[e].t[0], path, sizeof path, err) ||
                              kd_unit_open(&w->expert[e], path, j->digest, err)))
            return -1;
    return 0;
}

int kd_layer_experts(struct kd_job *j, struct kd_layer_work *w, struct kd_err *err)
{
    struct kd_hess h;
    struct trio *trios = NULL;
    memset(&h, 0, sizeof h);
    w->expert_count = j->cfg.experts;
    if (kd_mem_zero(&w->expert, j->cfg.experts, sizeof *w->expert, "expert units", err) ||
        kd_mem_zero(&trios, j->cfg.experts, sizeof *trios, "expert plan", err))
        return -1;
    find_trios(j, w->L.index, trios);
    int rc = check_trios(j, trios, err) || kd_hess_open(&h, j->cfg.latent, err) ||
             kd_hess_on_device(j->run, &h, err) || latents(j, w, &h, err) ||
             kd_hess_share(j->run, &h, err);
    struct kd_layer_inputs in = {.T = j->T_hess,
                                 .latent = j->cfg.latent,
                                 .z = (const uint16_t *)(const void *)w->z.data,
                                 .h_in = &h,
                                 .topk = j->cfg.topk,
                                 .ids = (const int32_t *)(const void *)w->ids.data,
                                 .w = (const float *)(const void *)w->wts.data,
                                 .situ_beta = j->cfg.situ_beta,
                                 .situ_linear = j->cfg.situ_linear,
                                 .weight_routed = j->set.weight_routed,
                                 .blend_rows = BLEND_ROWS,
                                 .fallback_rows = FALLBACK_ROWS,
                                 .block_rows = EXPERT_BLOCK_ROWS};
    struct kd_gpu_latents *there = NULL;
    if (!rc && j->run->encoder)
        rc = kd_gpu_latents_open(&there, j->run->encoder, in.z, in.T, in.latent, err);
    in.z_there = there;
    if (!rc)
        rc = encode_all(j, w, &in, trios, err);
    kd_gpu_latents_close(there);
    kd_hess_release(&h);
    kd_mem_free(trios);
    if (!rc)
        rc = kd_layer_sum_experts(j, w, err);
    return rc ? -1 : 0;
}
