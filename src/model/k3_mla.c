/* Gated latent attention in its absorbed form: the cache holds one latent and one pe row a token,
 * each head's query is taken into the latent space, attention runs over the cache, and each head's
 * value rows bring the result back (k3-model 3.5). The first and the last of these decode rows of
 * kv_b, so they are done for all sequences of a batch at once. Blocks of the context lie at
 * absolute multiples of 64, so a token's bits do not depend on the tokens it is fed with. */
#include "base/mem.h"
#include "model/k3_int.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum {
    SLAB = 64, /* tokens whose latent queries are kept at a time */
    TILE = 32, /* queries (tokens x heads) of one item of work */
    ROWS = 32  /* rows of kv_b decoded at a time */
};

struct item {
    const struct kd_k3_seg *seg;
    int64_t t0, tn, h0, hn; /* tokens of the segment, heads */
};

/* A slab: rows [r0, r0 + T) of the batch. */
struct mla_job {
    const struct kd_kern *kern;
    const struct kd_k3_cfg *c;
    const struct kd_k3_layer *L;
    const float *q;    /* [rows][heads * (nope + rope)] */
    const float *gate; /* [rows][heads * v] */
    float *y;          /* [rows][heads * v] */
    int64_t r0, T;
    struct item *items;
    float *lq;  /* [heads][T][kv_lora + rope] latent queries */
    float *acc; /* [heads][T][kv_lora] what attention makes of them */
    float *mem; /* [worker][mem_each] */
    int64_t mem_each;
    atomic_int failed;
    struct kd_err first; /* what the first item to fail said */
};

/* Query rows are head-major: row = (head - h0) * tn + token. */
struct tile {
    int64_t rows, width;    /* width = kv_lora + rope */
    float *q;               /* [rows][width] */
    float *acc;             /* [rows][kv_lora] */
    float *sc;              /* [CTX_BLOCK][rows] */
    float *max, *sum, *fix; /* [rows] */
};

/* One worker's: a tile, or what absorb_item needs, rows of kv_b and queries of one head. */
static int64_t worker_floats(const struct kd_k3_cfg *c)
{
    int64_t tile = TILE * (2 * c->kv_lora + c->rope + KD_K3_CTX_BLOCK + 3);
    int64_t absorb = ROWS * c->kv_lora + c->nope * TILE;
    return tile > absorb ? tile : absorb;
}

static struct tile tile_of(const struct mla_job *j, const struct item *it, int worker)
{
    const struct kd_k3_cfg *c = j->c;
    struct tile t = {.rows = it->tn * it->hn, .width = c->kv_lora + c->rope};
    t.q = j->mem + worker * j->mem_each;
    t.acc = t.q + TILE * t.width;
    t.sc = t.acc + TILE * c->kv_lora;
    t.max = t.sc + TILE * KD_K3_CTX_BLOCK;
    t.sum = t.max + TILE;
    t.fix = t.sum + TILE;
    return t;
}

static void keep_failure(struct mla_job *j, const struct kd_err *err)
{
    if (!atomic_exchange(&j->failed, 1))
        j->first = *err;
}

/* Item i of those that take up to TILE tokens of one head. */
static int64_t head_tokens(const struct mla_job *j, int64_t i, int64_t *h, int64_t *t0)
{
    *h = i % j->L->heads;
    *t0 = i / j->L->heads * TILE;
    return j->T - *t0 < TILE ? j->T - *t0 : TILE;
}

/* The latent query of a head: U_k^T q_nope (an fma chain over ascending rows of U_k), then q_pe. */
static void absorb_item(void *ctx, int64_t item, int worker)
{
    struct mla_job *j = ctx;
    const struct kd_k3_cfg *c = j->c;
    struct kd_run alone = {.kern = j->kern};
    struct kd_err err;
    int64_t h, t0, tn = head_tokens(j, item, &h, &t0);
    int64_t qd = c->nope + c->rope, ld = j->L->heads * qd, width = c->kv_lora + c->rope;
    float *u = j->mem + worker * j->mem_each, *qt = u + ROWS * c->kv_lora;
    float *out = j->lq + (h * j->T + t0) * width;
    for (int64_t i = 0; i < tn; i++) {
        const float *q = j->q + (j->r0 + t0 + i) * ld + h * qd;
        for (int64_t d = 0; d < c->nope; d++)
            qt[d * tn + i] = q[d];
        memset(out + i * width, 0, (size_t)c->kv_lora * sizeof *out);
        memcpy(out + i * width + c->kv_lora, q + c->nope, (size_t)c->rope * sizeof *out);
    }
    for (int64_t d = 0; d < c->nope; d += ROWS) {
        int64_t n = c->nope - d < ROWS ? c->nope - d : ROWS;
        for (int64_t i = 0; i < n; i++)
            if (kd_mat_row(&alone, &j->L->kv_b, h * (c->nope + c->v_dim) + d + i,
                           u + i * c->kv_lora, &err)) {
                keep_failure(j, &err);
                return;
            }
        j->kern->gemm_tn(qt + d * tn, tn, u, c->kv_lora, n, tn, c->kv_lora, out, width);
    }
}

/* Scores of one block to weights relative to the new maxima; sums and accumulators follow. */
static void block_weights(const struct mla_job *j, const struct item *it, struct tile *t,
                          int64_t s0, int64_t n, float scale)
{
    int64_t rows = t->rows, first = it->seg->state->pos + it->t0;
    memcpy(t->fix, t->max, (size_t)rows * sizeof *t->fix);
    for (int64_t s = 0; s < n; s++) {
        float *sc = t->sc + s * rows;
        for (int64_t i = 0; i < rows; i++)
            sc[i] *= scale;
        for (int64_t i = 0; s0 + s > first && i < rows; i++)
            if (s0 + s > first + i % it->tn) /* row i sees positions up to its own */
                sc[i] = -INFINITY;
        for (int64_t i = 0; i < rows; i++)
            t->max[i] = sc[i] > t->max[i] ? sc[i] : t->max[i];
    }
    for (int64_t i = 0; i < rows; i++)
        t->fix[i] = s0 ? t->fix[i] - t->max[i] : 0.0f;
    j->kern->exp(t->fix, t->fix, rows);
    for (int64_t s = 0; s < n; s++)
        for (int64_t i = 0; i < rows; i++) {
            float *sc = t->sc + s * rows + i;
            *sc = *sc == -INFINITY ? -200.0f : *sc - t->max[i]; /* exp gives exactly 0 there */
        }
    j->kern->exp(t->sc, t->sc, n * rows);
    for (int64_t i = 0; i < rows; i++)
        t->sum[i] *= t->fix[i];
    for (int64_t s = 0; s < n; s++)
        for (int64_t i = 0; i < rows; i++)
            t->sum[i] += t->sc[s * rows + i];
    for (int64_t i = 0; i < rows; i++) {
        float f = t->fix[i], *acc = t->acc + i * j->c->kv_lora;
        for (int64_t d = 0; f != 1.0f && d < j->c->kv_lora; d++)
            acc[d] *= f;
    }
}

/* Reads a page's rows once, in order, which the hardware foresees: the products take six of these
 * short rows side by side, which it does not, and each line would be waited for. */
static void bring_near(const float *rows, int64_t n)
{
    for (int64_t i = 0; i < n; i += 64 / (int64_t)sizeof(float))
        (void)*(const volatile float *)(rows + i);
}

static void attend_item(void *ctx, int64_t i, int worker)
{
    struct mla_job *j = ctx;
    const struct kd_k3_cfg *c = j->c;
    const struct item *it = &j->items[i];
    const struct kd_k3_state *st = it->seg->state;
    struct tile t = tile_of(j, it, worker);
    int64_t row = it->seg->first + it->t0 - j->r0, end = st->pos + it->t0 + it->tn;
    float scale = 1.0f / sqrtf((float)(c->nope + c->rope));
    for (int64_t h = 0; h < it->hn; h++)
        memcpy(t.q + h * it->tn * t.width, j->lq + ((it->h0 + h) * j->T + row) * t.width,
               (size_t)(it->tn * t.width) * sizeof *t.q);
    memset(t.acc, 0, (size_t)(t.rows * c->kv_lora) * sizeof *t.acc);
    memset(t.sum, 0, (size_t)t.rows * sizeof *t.sum);
    for (int64_t r = 0; r < t.rows; r++)
        t.max[r] = -INFINITY;
    for (int64_t s0 = 0; s0 < end; s0 += KD_K3_CTX_BLOCK) {
        int64_t n = end - s0 < KD_K3_CTX_BLOCK ? end - s0 : KD_K3_CTX_BLOCK;
        const float *rows = kd_k3_row(st, s0, t.width);
        bring_near(rows, n * t.width);
        j->kern->mm_f32(t.q, t.width, t.rows, t.width, rows, t.width, n, t.sc, t.rows);
        block_weights(j, it, &t, s0, n, scale);
        j->kern->gemm_tn(t.sc, t.rows, rows, t.width, n, t.rows, c->kv_lora, t.acc, c->kv_lora);
    }
    for (int64_t r = 0; r < t.rows; r++) {
        float *out = j->acc + ((it->h0 + r / it->tn) * j->T + row + r % it->tn) * c->kv_lora;
        for (int64_t d = 0; d < c->kv_lora; d++)
            out[d] = t.acc[r * c->kv_lora + d] / t.sum[r];
    }
}

/* Back from the latent space, and the gate. */
static void return_item(void *ctx, int64_t item, int worker)
{
    struct mla_job *j = ctx;
    const struct kd_k3_cfg *c = j->c;
    struct kd_run alone = {.kern = j->kern};
    struct kd_err err;
    struct kd_mat uv;
    int64_t h, t0, tn = head_tokens(j, item, &h, &t0), ld = j->L->heads * c->v_dim;
    int64_t u0 = h * (c->nope + c->v_dim) + c->nope, at = (j->r0 + t0) * ld + h * c->v_dim;
    (void)worker;
    if (kd_mat_slice(&j->L->kv_b, u0, u0 + c->v_dim, 0, c->kv_lora, &uv, &err) ||
        kd_mat_mul(&alone, &uv, j->acc + (h * j->T + t0) * c->kv_lora, c->kv_lora, tn, j->y + at,
                   ld, &err)) {
        keep_failure(j, &err);
        return;
    }
    for (int64_t i = 0; i < tn; i++)
        for (int64_t d = 0; d < c->v_dim; d += KD_K3_CTX_BLOCK) {
            float g[KD_K3_CTX_BLOCK], *y = j->y + at + i * ld + d;
            int64_t n = c->v_dim - d < KD_K3_CTX_BLOCK ? c->v_dim - d : KD_K3_CTX_BLOCK;
            j->kern->sigmoid(j->gate + at + i * ld + d, g, n);
            for (int64_t e = 0; e < n; e++)
                y[e] *= g[e];
        }
}

/* Cuts a slab's part of the segments into items: at most TILE queries each, and enough items for
 * all threads. The cut changes no bits. items may be NULL to count. */
static int64_t cut_items(const struct mla_job *j, const struct kd_k3_seg *segs, int64_t seg_count,
                         int64_t group, struct item *items)
{
    int64_t n = 0, heads = j->L->heads;
    for (int64_t s = 0; s < seg_count; s++) {
        int64_t lo = segs[s].first > j->r0 ? segs[s].first : j->r0, last = j->r0 + j->T;
        int64_t hi = segs[s].first + segs[s].count;
        hi = hi < last ? hi : last;
        for (int64_t r = lo; r < hi; r += TILE) {
            int64_t tn = hi - r < TILE ? hi - r : TILE;
            int64_t step = TILE / tn < group ? TILE / tn : group;
            for (int64_t h = 0; h < heads; h += step, n++)
                if (items)
                    items[n] = (struct item){.seg = &segs[s],
                                             .t0 = r - segs[s].first,
                                             .tn = tn,
                                             .h0 = h,
                                             .hn = heads - h < step ? heads - h : step};
        }
    }
    return n;
}

static int attend_slab(const struct kd_run *r, struct mla_job *j, const struct kd_k3_seg *segs,
                       int64_t seg_count, struct kd_err *err)
{
    int64_t threads = kd_pool_threads(r->pool), group = TILE, count;
    int64_t parts = (j->T + TILE - 1) / TILE * j->L->heads;
    while ((count = cut_items(j, segs, seg_count, group, NULL)) < threads && group > 1)
        group /= 2;
    if (kd_mem_new(&j->items, count, sizeof *j->items, "attention items", err))
        return -1;
    cut_items(j, segs, seg_count, group, j->items);
    kd_pool_run(r->pool, parts, absorb_item, j);
    if (!atomic_load(&j->failed)) {
        kd_pool_run(r->pool, count, attend_item, j);
        kd_pool_run(r->pool, parts, return_item, j);
    }
    kd_mem_free(j->items);
    if (!atomic_load(&j->failed))
        return 0;
    *err = j->first;
    return -1;
}

static int attention(const struct kd_run *r, struct mla_job *j, const struct kd_k3_seg *segs,
                     int64_t seg_count, int64_t rows, struct kd_err *err)
{
    const struct kd_k3_cfg *c = j->c;
    int64_t most = rows < SLAB ? rows : SLAB, threads = kd_pool_threads(r->pool);
    int64_t queries = most * j->L->heads, width = c->kv_lora + c->rope;
    j->mem_each = worker_floats(c);
    if (kd_mem_new(&j->lq, queries * (width + c->kv_lora) + threads * j->mem_each, sizeof(float),
                   "attention scratch", err))
        return -1;
    j->acc = j->lq + queries * width;
    j->mem = j->acc + queries * c->kv_lora;
    int rc = 0;
    for (j->r0 = 0; !rc && j->r0 < rows; j->r0 += j->T) {
        j->T = rows - j->r0 < SLAB ? rows - j->r0 : SLAB;
        rc = attend_slab(r, j, segs, seg_count, err);
    }
    kd_mem_free(j->lq);
    return rc;
}

/* New cache rows: normed latent, then pe as it is. */
static int extend_cache(const struct kd_run *r, const struct kd_k3_cfg *c,
                        const struct kd_k3_layer *L, const float *kv, const struct kd_k3_seg *segs,
                        int64_t seg_count, struct kd_err *err)
{
    int64_t w = c->kv_lora + c->rope;
    for (int64_t s = 0; s < seg_count; s++) {
        struct kd_k3_state *st = segs[s].state;
        if (kd_k3_state_reserve(st, st->pos + segs[s].count, w, err))
            return -1;
        for (int64_t t = 0; t < segs[s].count; t++) {
            const float *from = kv + (segs[s].first + t) * w;
            float *to = kd_k3_row(st, st->pos + t, w);
            r->kern->rmsnorm(from, L->kv_a_norm, c->eps_latent, c->kv_lora, to);
            memcpy(to + c->kv_lora, from + c->kv_lora, (size_t)c->rope * sizeof *to);
        }
    }
    return 0;
}

int kd_k3_q_latent(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                   const float *x, int64_t T, float *cq, struct kd_err *err)
{
    if (kd_mat_mul(r, &L->q_a, x, c->hidden, T, cq, c->q_lora, err))
        return -1;
    for (int64_t t = 0; t < T; t++)
        r->kern->rmsnorm(cq + t * c->q_lora, L->q_a_norm, c->eps_latent, c->q_lora,
                         cq + t * c->q_lora);
    return 0;
}

int kd_k3_mla_core(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                   const float *x, int64_t T, const struct kd_k3_seg *segs, int64_t seg_count,
                   float *y, struct kd_err *err)
{
    int64_t qw = L->heads * (c->nope + c->rope), vw = L->heads * c->v_dim, w = c->kv_lora + c->rope;
    float *buf;
    if (kd_mem_new(&buf, T * (c->q_lora + qw + vw + w), sizeof *buf, "attention inputs", err))
        return -1;
    float *cq = buf, *q = cq + T * c->q_lora, *gate = q + T * qw, *kv = gate + T * vw;
    const struct kd_mat_job jobs[] = {{&L->q_b, cq, c->q_lora, T, q, qw},
                                      {&L->g, x, c->hidden, T, gate, vw},
                                      {&L->kv_a, x, c->hidden, T, kv, w}};
    struct mla_job j = {.kern = r->kern, .c = c, .L = L, .q = q, .gate = gate, .y = y};
    int rc = kd_k3_q_latent(r, c, L, x, T, cq, err) || kd_mat_mul_many(r, jobs, 3, err) ||
                     extend_cache(r, c, L, kv, segs, seg_count, err) ||
                     attention(r, &j, segs, seg_count, T, err)
                 ? -1
                 : 0;
    for (int64_t s = 0; !rc && s < seg_count; s++)
        segs[s].state->pos += segs[s].count;
    kd_mem_free(buf);
    return rc;
}
