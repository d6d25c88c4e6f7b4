/* The routed experts of a layer: latents and routing once, then one unit of work an expert, then
 * their weighted sum from the sealed units. */
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"
#include "convert/layer_work.h"

#include <stdio.h>
#include <string.h>

/* Calibration constants of the recipe: under FALLBACK_ROWS routed tokens an expert is listed; BLEND_ROWS
 * is k of n/(n+k) in exl3 Decision 10. */
enum { FALLBACK_ROWS = 256, BLEND_ROWS = 2048, EXPERT_BLOCK_ROWS = 512, AUTO_EXPERTS = 4 };

static int latents(struct kd_job *j, struct kd_layer_work *w, struct kd_hess *h, struct kd_err *err)
{
    int64_t H = j->cfg.hidden, latent = j->cfg.latent, topk = j->cfg.topk, B = j->block_T;
    float *x = NULL, *z = NULL;
    if (kd_layer_scratch(j, &w->z, "latents", j->T * latent * 2, err) ||
        kd_layer_scratch(j, &w->ids, "routing_ids", j->T * topk * 4, err) ||
        kd_layer_scratch(j, &w->wts, "routing_weights", j->T * topk * 4, err) ||
        kd_layer_scratch(j, &w->u, "experts_sum", j->T * latent * 4, err))
        return -1;
    int rc = kd_mem_new(&x, B * H, sizeof *x, "FFN inputs", err) ||
             kd_mem_new(&z, B * latent, sizeof *z, "latents", err);
    for (int64_t b = 0; !rc && b < kd_job_blocks(j); b++) {
        int64_t first, T;
        kd_job_block(j, b, &first, &T);
        int32_t *ids = (int32_t *)(void *)w->ids.data + first * topk;
        float *wts = (float *)(void *)w->wts.data + first * topk;
        uint16_t *zb = (uint16_t *)(void *)w->z.data + first * latent;
        rc = kd_job_stop_check(j, err) || kd_layer_ffn_in(j, w, first, T, x, err) ||
             kd_k3_route(j->run, &j->cfg, &w->L, x, T, 0, ids, wts, NULL, err) ||
             kd_mat_mul(j->run, &w->L.routed_down, x, H, T, z, latent, err);
        for (int64_t i = 0; !rc && i < T * latent; i++) {
            zb[i] = kd_f32_bf16(z[i]);
            z[i] = kd_bf16_f32(zb[i]);
        }
        /* Only the tokens the Hessians may see (recipe auto holds some back). */
        int64_t seen = first + T <= j->T_hess ? T : j->T_hess - first;
        if (!rc && seen > 0)
            rc = kd_hess_add(j->run, h, z, latent, seen, err);
    }
    kd_hess_close(h);
    kd_mem_free(x);
    kd_mem_free(z);
    return rc ? -1 : 0;
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
                return kd_fail(err, KD_ENOTSUP,
                               "expert %lld: some of its matrices are quantized and some kept as stored "
                               "(padding rule); this shape is not supported",
                               (long long)e);
    return 0;
}

static int quantize(struct kd_job *j, struct kd_layer_work *w, const struct kd_layer_inputs *in,
                    const struct trio *t, int64_t e, const struct kd_recipe *recipe,
                    struct kd_expert_out *out, struct kd_err *err)
{
    struct kd_expert src;
    struct kd_quant_spec spec[KD_PROJ_COUNT];
    int64_t layer = w->L.index;
    if (j->source->get(j->source, layer, e, &src, err) ||
        (!src.ready && j->source->wait(j->source, layer, e, &src, err)))
        return -1;
    for (int p = 0; p < KD_PROJ_COUNT; p++) {
        /* Gate and up share the latents' signs over the whole layer; down's input is its own. */
        char own[48];
        snprintf(own, sizeof own, "expert.%lld.inner", (long long)e);
        spec[p] = kd_layer_spec(j, t->t[p], p == KD_PROJ_W2 ? own : "latent");
        spec[p].recipe = *recipe;
    }
    int rc = kd_expert_quantize(j->run, e, &src.w1, &src.w3, &src.w2, in, spec, out, err);
    if (j->source->done)
        j->source->done(j->source, layer, e);
    return rc ? kd_wrap(err, "expert %lld", (long long)e) : 0;
}

/* out[n][latent] = w2 SiTU(w1 z, w3 z) for n token rows of z. */
static int expert_rows(struct kd_job *j, const struct kd_mat *w1, const struct kd_mat *w3,
                       const struct kd_mat *w2, const float *z, int64_t n, float *out, struct kd_err *err)
{
    float *inner;
    if (kd_mem_new(&inner, n * w1->rows, sizeof *inner, "expert inner", err))
        return -1;
    int rc = kd_k3_mlp_inner(j->run, &j->cfg, w1, w3, z, n, inner, err);
    if (!rc)
        rc = kd_mat_mul(j->run, w2, inner, w1->rows, n, out, j->cfg.latent, err);
    kd_mem_free(inner);
    return rc;
}

/* Weighted squared error of an encoded expert's outputs on the tokens held back that are routed to it,
 * and the outputs' own square, added to *bad and *all. */
static int held_out_error(struct kd_job *j, struct kd_layer_work *w, int64_t e, const struct kd_expert_out *q,
                          double *bad, double *all, struct kd_err *err)
{
    int64_t latent = j->cfg.latent, topk = j->cfg.topk, most = j->T - j->T_hess, n = 0;
    const int32_t *ids = (const int32_t *)(const void *)w->ids.data;
    const float *wts = (const float *)(const void *)w->wts.data;
    const uint16_t *zb = (const uint16_t *)(const void *)w->z.data;
    struct kd_expert src;
    float *z = NULL, *a = NULL, *b = NULL, *weight = NULL;
    if (kd_mem_new(&z, most * latent, sizeof *z, "held-out latents", err) ||
        kd_mem_new(&a, most * latent, sizeof *a, "held-out outputs", err) ||
        kd_mem_new(&b, most * latent, sizeof *b, "held-out outputs", err) ||
        kd_mem_new(&weight, most, sizeof *weight, "held-out weights", err))
        goto fail;
    for (int64_t t = j->T_hess; t < j->T; t++)
        for (int64_t k = 0; k < topk; k++)
            if (ids[t * topk + k] == e) {
                for (int64_t i = 0; i < latent; i++)
                    z[n * latent + i] = kd_bf16_f32(zb[t * latent + i]);
                weight[n++] = wts[t * topk + k];
            }
    struct kd_mat m1 = kd_quant_mat(&q->w1), m3 = kd_quant_mat(&q->w3), m2 = kd_quant_mat(&q->w2);
    if (j->source->get(j->source, w->L.index, e, &src, err) ||
        (n && (expert_rows(j, &src.w1, &src.w3, &src.w2, z, n, a, err) ||
               expert_rows(j, &m1, &m3, &m2, z, n, b, err))))
        goto fail;
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < latent; i++) {
            double s = (double)weight[t] * (double)a[t * latent + i];
            double d = (double)weight[t] * ((double)b[t * latent + i] - (double)a[t * latent + i]);
            *all += s * s;
            *bad += d * d;
        }
    kd_mem_free(z);
    kd_mem_free(a);
    kd_mem_free(b);
    kd_mem_free(weight);
    return 0;
fail:
    kd_mem_free(z);
    kd_mem_free(a);
    kd_mem_free(b);
    kd_mem_free(weight);
    return -1;
}

/* Recipe auto: a sample of experts is encoded plain and default; the smaller error of the layer's
 * outputs on held-out rows decides for the layer. */
static int choose(struct kd_job *j, struct kd_layer_work *w, const struct kd_layer_inputs *in,
                  const struct trio *trios, struct kd_recipe *recipe, uint32_t *plain_won, struct kd_err *err)
{
    struct kd_recipe both[2] = {kd_recipe_of(KD_RECIPE_DEFAULT), kd_recipe_of(KD_RECIPE_PLAIN)};
    double error[2];
    both[0].damping = j->recipe.damping;
    for (int r = 0; r < 2; r++) {
        double bad = 0, all = 0;
        for (int s = 0; s < AUTO_EXPERTS; s++) {
            int64_t e = (2 * s + 1) * j->cfg.experts / (2 * AUTO_EXPERTS);
            struct kd_expert_out q;
            if (!trios[e].t[0])
                continue;
            if (quantize(j, w, in, &trios[e], e, &both[r], &q, err))
                return -1;
            int rc = held_out_error(j, w, e, &q, &bad, &all, err);
            kd_expert_release(&q);
            if (rc)
                return -1;
        }
        error[r] = all > 0 ? bad / all : 0;
    }
    *plain_won = error[1] < error[0];
    *recipe = both[*plain_won];
    kd_log(KD_LOG_INFO, "convert", "layer=%lld recipe=%s held_out_default=%.6f held_out_plain=%.6f",
           (long long)w->L.index, *plain_won ? "plain" : "default", error[0], error[1]);
    return 0;
}

static int one_unit(struct kd_job *j, struct kd_layer_work *w, const struct kd_layer_inputs *in,
                    const struct trio *t, int64_t e, const struct kd_recipe *recipe, uint32_t plain_won,
                    const char *path, struct kd_err *err)
{
    struct kd_expert_out q;
    char note[64];
    snprintf(note, sizeof note, "layer %lld of %lld, expert %lld of %lld", (long long)w->L.index + 1,
             (long long)j->cfg.layers, (long long)e + 1, (long long)j->cfg.experts);
    kd_progress_add(0, note);
    if (quantize(j, w, in, t, e, recipe, &q, err))
        return -1;
    struct kd_unit_info info = {.routed_rows = q.routed_rows, .few_rows = q.fallback,
                                .all_token_hessian = q.all_token_hessian, .plain_won = plain_won};
    memcpy(info.hess_digest, q.hess_digest, sizeof q.hess_digest);
    const struct kd_quant_out *three[] = {&q.w1, &q.w3, &q.w2};
    int rc = kd_unit_write(path, j->digest, three, 3, &info, err);
    kd_expert_release(&q);
    return rc;
}

static int encode_all(struct kd_job *j, struct kd_layer_work *w, const struct kd_layer_inputs *in,
                      const struct trio *trios, struct kd_err *err)
{
    struct kd_recipe recipe = j->recipe;
    uint32_t plain_won = 0;
    bool chosen = j->set.recipe != KD_RECIPE_AUTO;
    char path[4096];
    for (int64_t e = 0; e < j->cfg.experts; e++) {
        if (!trios[e].t[0])
            continue;
        if (kd_job_stop_check(j, err))
            return -1;
        if (kd_job_unit_path(j, trios[e].t[0], path, sizeof path, err))
            return -1;
        if (!kd_file_exists(path)) {
            if (!chosen && choose(j, w, in, trios, &recipe, &plain_won, err))
                return -1;
            chosen = true;
            if (one_unit(j, w, in, &trios[e], e, &recipe, plain_won, path, err))
                return -1;
        }
        if (kd_unit_open(&w->expert[e], path, j->digest, err))
            return -1;
        int64_t tiles = 0;
        for (int p = 0; p < KD_PROJ_COUNT; p++)
            tiles += trios[e].t[p]->rows * trios[e].t[p]->cols / 256;
        kd_progress_add(tiles, NULL);
    }
    return 0;
}

/* The layer's experts as the forward pass sees them: quantized units, or the source where kept. */
static int unit_get(struct kd_store *s, int64_t layer, int64_t e, struct kd_expert *out, struct kd_err *err)
{
    void **ctx = s->ctx;
    struct kd_layer_work *w = ctx[0];
    struct kd_job *j = ctx[1];
    const struct kd_unit *u = &w->expert[e];
    if (!u->count)
        return j->source->get(j->source, layer, e, out, err);
    *out = (struct kd_expert){.w1 = u->mat[0], .w3 = u->mat[1], .w2 = u->mat[2],
                              .tier = KD_TIER_HOST, .ready = true};
    return 0;
}

static int sum_experts(struct kd_job *j, struct kd_layer_work *w, struct kd_err *err)
{
    int64_t latent = j->cfg.latent, topk = j->cfg.topk;
    void *ctx[2] = {w, j};
    struct kd_store store = {.get = unit_get, .ctx = ctx};
    float *z;
    if (kd_mem_new(&z, j->block_T * latent, sizeof *z, "latents", err))
        return -1;
    int rc = 0;
    for (int64_t b = 0; !rc && b < kd_job_blocks(j); b++) {
        int64_t first, T;
        kd_job_block(j, b, &first, &T);
        const uint16_t *zb = (const uint16_t *)(const void *)w->z.data + first * latent;
        for (int64_t i = 0; i < T * latent; i++)
            z[i] = kd_bf16_f32(zb[i]);
        rc = kd_job_stop_check(j, err) ||
             kd_k3_experts(j->run, &j->cfg, w->L.index, &store, z,
                           (const int32_t *)(const void *)w->ids.data + first * topk,
                           (const float *)(const void *)w->wts.data + first * topk, T,
                           (float *)(void *)w->u.data + first * latent, err);
    }
    kd_mem_free(z);
    return rc;
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
    int rc = check_trios(j, trios, err) || kd_hess_open(&h, j->cfg.latent, err) || latents(j, w, &h, err);
    struct kd_layer_inputs in = {.T = j->T_hess, .latent = j->cfg.latent,
                                 .z = (const uint16_t *)(const void *)w->z.data, .h_in = &h,
                                 .topk = j->cfg.topk, .ids = (const int32_t *)(const void *)w->ids.data,
                                 .w = (const float *)(const void *)w->wts.data,
                                 .situ_beta = j->cfg.situ_beta, .situ_linear = j->cfg.situ_linear,
                                 .weight_routed = j->set.weight_routed, .blend_rows = BLEND_ROWS,
                                 .fallback_rows = FALLBACK_ROWS, .block_rows = EXPERT_BLOCK_ROWS};
    if (!rc)
        rc = encode_all(j, w, &in, trios, err);
    kd_hess_release(&h);
    kd_mem_free(trios);
    if (!rc)
        rc = sum_experts(j, w, err);
    return rc ? -1 : 0;
}
