/* Router, routed experts in their latent space, and the gated MLPs (k3-model 3.3 and 3.6). */
#include "base/assert.h"
#include "base/mem.h"
#include "gpu/calib.h"
#include "kern/mat_source.h"
#include "model/k3_int.h"

#include <math.h>
#include <string.h>

enum {
    WAVE_ROWS =
        1024, /* (token, expert) pairs worked on at a time; with a device T if that is more */
    THERE_ROWS = 64, /* under so many an expert is not worth its way to a device */
    ELEM_CUT = 4096  /* values of an elementwise piece */
};

struct situ_job {
    const struct kd_kern *kern;
    const float *g, *u;
    float *out;
    float beta, linear;
    int64_t count;
};

static void situ_item(void *ctx, int64_t i, int worker)
{
    const struct situ_job *j = ctx;
    (void)worker;
    int64_t at = i * ELEM_CUT, n = j->count - at < ELEM_CUT ? j->count - at : ELEM_CUT;
    j->kern->situ(j->g + at, j->u + at, j->beta, j->linear, j->out + at, n);
}

void kd_k3_situ(const struct kd_run *r, const struct kd_k3_cfg *c, const float *g, const float *u,
                float *out, int64_t count)
{
    struct situ_job j = {.kern = r->kern,
                         .g = g,
                         .u = u,
                         .out = out,
                         .beta = c->situ_beta,
                         .linear = c->situ_linear,
                         .count = count};
    kd_pool_run(r->pool, (count + ELEM_CUT - 1) / ELEM_CUT, situ_item, &j);
}

int kd_k3_mlp_inner(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_mat *gate,
                    const struct kd_mat *up, const float *x, int64_t T, float *out,
                    struct kd_err *err)
{
    int64_t w = gate->rows;
    float *buf;
    if (kd_mem_new(&buf, T * w, sizeof *buf, "MLP scratch", err))
        return -1;
    const struct kd_mat_job jobs[] = {{gate, x, c->hidden, T, out, w},
                                      {up, x, c->hidden, T, buf, w}};
    int rc = kd_mat_mul_many(r, jobs, 2, err);
    if (!rc)
        kd_k3_situ(r, c, out, buf, out, T * w);
    kd_mem_free(buf);
    return rc;
}

struct route_job {
    const struct kd_kern *kern;
    const struct kd_k3_cfg *c;
    const float *bias;
    float *score;  /* in: logits, out: sigmoid scores; [T][experts] */
    float *biased; /* [T][experts] */
    int64_t used;
    int32_t *ids;
    float *w;
};

/* The `used` largest, descending, ties to the lower index; NaN counts as the smallest. */
static void top(const float *v, int64_t n, int64_t used, int32_t *ids)
{
    int64_t have = 0;
    for (int64_t e = 0; e < n; e++) {
        float x = v[e];
        if (have == used && !(x > v[ids[used - 1]]))
            continue;
        int64_t at = have < used ? have++ : used - 1;
        for (; at > 0 && x > v[ids[at - 1]]; at--)
            ids[at] = ids[at - 1];
        ids[at] = (int32_t)e;
    }
}

static void route_item(void *ctx, int64_t t, int worker)
{
    const struct route_job *j = ctx;
    const struct kd_k3_cfg *c = j->c;
    (void)worker;
    float *s = j->score + t * c->experts, *b = j->biased + t * c->experts, *w = j->w + t * c->topk;
    int32_t *ids = j->ids + t * c->topk;
    j->kern->sigmoid(s, s, c->experts);
    for (int64_t e = 0; e < c->experts; e++) {
        b[e] = s[e] + j->bias[e];
        if (b[e] != b[e])
            b[e] = -INFINITY;
    }
    top(b, c->experts, j->used, ids);
    float sum = 0.0f;
    for (int64_t i = 0; i < j->used; i++)
        sum += s[ids[i]];
    for (int64_t i = 0; i < c->topk; i++) {
        if (i >= j->used) {
            ids[i] = -1;
            w[i] = 0.0f;
            continue;
        }
        w[i] = (c->renormalize ? s[ids[i]] / (sum + 1e-20f) : s[ids[i]]) * c->routed_scale;
    }
}

int kd_k3_route(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                const float *x, int64_t T, int64_t experts_used, int32_t *ids, float *w,
                float *score, struct kd_err *err)
{
    if (experts_used < 0 || experts_used > c->topk)
        return kd_fail(err, KD_EINVAL, "%lld experts a token: the model is made for up to %lld",
                       (long long)experts_used, (long long)c->topk);
    float *buf;
    if (kd_mem_new(&buf, 2 * T * c->experts, sizeof *buf, "router scores", err))
        return -1;
    struct route_job j = {.kern = r->kern,
                          .c = c,
                          .bias = L->router_bias,
                          .score = buf,
                          .biased = score ? score : buf + T * c->experts,
                          .used = experts_used ? experts_used : c->topk,
                          .ids = ids,
                          .w = w};
    int rc = kd_mat_mul(r, &L->router, x, c->hidden, T, buf, c->experts, err);
    if (!rc)
        kd_pool_run(r->pool, T, route_item, &j);
    kd_mem_free(buf);
    return rc;
}

void kd_k3_route_mass(const struct kd_k3_cfg *c, int64_t T, double mass, int32_t *ids, float *w)
{
    for (int64_t t = 0; t < T; t++, ids += c->topk, w += c->topk) {
        float all = 0.0f, kept = 0.0f;
        int64_t n = 0;
        while (n < c->topk && ids[n] >= 0)
            all += w[n++];
        /* By weight, ties in the router's order; the router sorts by biased score. */
        for (int64_t i = 1; i < n; i++)
            for (int64_t j = i; j > 0 && w[j] > w[j - 1]; j--) {
                float fw = w[j];
                int32_t id = ids[j];
                w[j] = w[j - 1];
                ids[j] = ids[j - 1];
                w[j - 1] = fw;
                ids[j - 1] = id;
            }
        int64_t used = 0;
        while (used < n && (used == 0 || (double)kept < mass * (double)all))
            kept += w[used++];
        for (int64_t i = 0; i < n; i++) {
            ids[i] = i < used ? ids[i] : -1;
            w[i] = i < used ? w[i] * (all / kept) : 0.0f;
        }
    }
}

/* Tokens by expert: expert e has the pairs start[e]..start[e+1]-1, in token order. */
struct groups {
    int64_t *start; /* [experts + 1] */
    int32_t *token; /* [pairs] */
    int32_t *order; /* [T][topk]: slots of a token in ascending expert id; -1 ends */
    int64_t *pair;  /* [T][topk]: the pair of each slot */
};

static void sort_slots(const int32_t *ids, int64_t topk, int32_t *order)
{
    int64_t n = 0;
    for (int64_t i = 0; i < topk; i++) {
        if (ids[i] < 0)
            continue;
        int64_t at = n++;
        for (; at > 0 && ids[order[at - 1]] > ids[i]; at--)
            order[at] = order[at - 1];
        order[at] = (int32_t)i;
    }
    if (n < topk)
        order[n] = -1;
}

static int group(struct groups *g, const struct kd_k3_cfg *c, const int32_t *ids, int64_t T,
                 struct kd_err *err)
{
    int64_t n = T * c->topk, E = c->experts;
    memset(g, 0, sizeof *g);
    if (kd_mem_zero(&g->start, E + 1 + n, sizeof *g->start, "expert groups", err) ||
        kd_mem_new(&g->token, 2 * n, sizeof *g->token, "expert groups", err))
        return -1;
    g->pair = g->start + E + 1;
    g->order = g->token + n;
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] >= E)
            return kd_fail(err, KD_EINVAL, "expert %d of %lld", ids[i], (long long)E);
        if (ids[i] >= 0)
            g->start[ids[i] + 1]++;
    }
    for (int64_t e = 0; e < E; e++)
        g->start[e + 1] += g->start[e];
    for (int64_t i = 0; i < n; i++)
        if (ids[i] >= 0) {
            int64_t p = g->start[ids[i]]++;
            g->pair[i] = p;
            g->token[p] = (int32_t)(i / c->topk);
        }
    for (int64_t e = E; e > 0; e--)
        g->start[e] = g->start[e - 1];
    g->start[0] = 0;
    for (int64_t t = 0; t < T; t++)
        sort_slots(ids + t * c->topk, c->topk, g->order + t * c->topk);
    return 0;
}

static void groups_release(struct groups *g)
{
    kd_mem_free(g->start);
    kd_mem_free(g->token);
}

/* One wave: experts [e0, e1), pairs [p0, p1). */
struct wave {
    const struct kd_run *r;
    const struct kd_k3_cfg *c;
    const struct groups *g;
    int64_t layer, e0, e1, p0, p1;
    struct kd_expert *ex;    /* of the experts with pairs, in order */
    struct kd_mat_job *jobs; /* two for each of them */
    int64_t *first;          /* [count + 1] their first pairs */
    int64_t count, inter;
    float *x, *y; /* [pairs][latent]: gathered inputs, outputs */
    float *a, *b; /* [pairs][inter] */
    bool *there;  /* [count] made by a device */
    atomic_int failed;
    struct kd_err err; /* of the one that set `failed` */
    const float *z, *w;
    const int32_t *ids;
    float *u;
};

static void gather_item(void *ctx, int64_t i, int worker)
{
    const struct wave *v = ctx;
    (void)worker;
    int64_t n = v->c->latent;
    memcpy(v->x + i * n, v->z + v->g->token[v->p0 + i] * n, (size_t)n * sizeof *v->x);
}

static void sum_item(void *ctx, int64_t t, int worker)
{
    const struct wave *v = ctx;
    (void)worker;
    int64_t k = v->c->topk, n = v->c->latent;
    for (int64_t i = 0; i < k && v->g->order[t * k + i] >= 0; i++) {
        int64_t slot = t * k + v->g->order[t * k + i], p = v->g->pair[slot];
        if (p >= v->p0 && p < v->p1)
            v->r->kern->axpy(v->w[slot], v->y + (p - v->p0) * n, v->u + t * n, n);
    }
}

static int wave_experts(struct wave *v, struct kd_store *store, struct kd_err *err)
{
    v->count = 0;
    for (int64_t e = v->e0; e < v->e1; e++) {
        if (v->g->start[e] == v->g->start[e + 1])
            continue;
        struct kd_expert *x = &v->ex[v->count];
        v->first[v->count] = v->g->start[e];
        if (store->get(store, v->layer, e, x, err))
            return -1;
        v->count++;
        if (!x->ready && (!store->wait || store->wait(store, v->layer, e, x, err)))
            return store->wait
                       ? -1
                       : kd_fail(err, KD_EINVAL, "expert %lld never becomes ready", (long long)e);
        if (v->count == 1)
            v->inter = x->w1.rows;
        if (x->w1.rows != v->inter || x->w3.rows != v->inter || x->w2.cols != v->inter)
            return kd_fail(err, KD_EINVAL, "experts of unlike widths in layer %lld",
                           (long long)v->layer);
    }
    v->first[v->count] = v->p1;
    return 0;
}

static void wave_done(struct wave *v, struct kd_store *store)
{
    int64_t left = v->count;
    for (int64_t e = v->e0; store->done && e < v->e1 && left; e++)
        if (v->g->start[e] != v->g->start[e + 1]) {
            store->done(store, v->layer, e);
            left--;
        }
}

/* The pairs of the wave's i-th expert that has any: how many, and where they begin. */
static int64_t pairs_of(const struct wave *v, int64_t i, int64_t *at)
{
    *at = v->first[i] - v->p0;
    return v->first[i + 1] - v->first[i];
}

static void there_item(void *ctx, int64_t i, int worker)
{
    struct wave *v = ctx;
    const struct kd_expert *x = &v->ex[i];
    int64_t lat = v->c->latent, at, n = pairs_of(v, i, &at);
    (void)worker;
    v->there[i] = false;
    if (n < THERE_ROWS)
        return;
    const struct kd_gpu_source w[3] = {kd_mat_source(&x->w1), kd_mat_source(&x->w3),
                                       kd_mat_source(&x->w2)};
    struct kd_err err = {0};
    if (kd_gpu_calib_expert(v->r->encoder, w, v->x + at * lat, n, v->c->situ_beta,
                            v->c->situ_linear, v->y + at * lat, &v->there[i], &err) &&
        !atomic_exchange(&v->failed, 1))
        v->err = err;
}

/* Experts with many rows on the run's devices, some at a time. */
static int wave_there(struct wave *v, struct kd_err *err)
{
    memset(v->there, 0, (size_t)v->count);
    if (!v->r->encoder)
        return 0;
    kd_pool_run(v->r->pool, v->count, there_item, v);
    return atomic_load(&v->failed) ? kd_fail(err, v->err.code, "%s", v->err.msg) : 0;
}

static int wave_products(struct wave *v, struct kd_err *err)
{
    int64_t lat = v->c->latent, in = v->inter, jobs = 0, at, n;
    kd_pool_run(v->r->pool, v->p1 - v->p0, gather_item, v);
    if (wave_there(v, err))
        return -1;
    for (int64_t i = 0; i < v->count; i++) {
        n = pairs_of(v, i, &at);
        if (v->there[i])
            continue;
        v->jobs[jobs++] =
            (struct kd_mat_job){&v->ex[i].w1, v->x + at * lat, lat, n, v->a + at * in, in};
        v->jobs[jobs++] =
            (struct kd_mat_job){&v->ex[i].w3, v->x + at * lat, lat, n, v->b + at * in, in};
    }
    if (kd_mat_mul_many(v->r, v->jobs, jobs, err))
        return -1;
    /* Neighbours together: with none elsewhere that is all of them. */
    for (int64_t i = 0, k; i < v->count; i = k + (k == i)) {
        for (k = i; k < v->count && !v->there[k]; k++)
            ;
        n = v->first[k] - v->first[i];
        at = v->first[i] - v->p0;
        kd_k3_situ(v->r, v->c, v->a + at * in, v->b + at * in, v->a + at * in, n * in);
    }
    jobs = 0;
    for (int64_t i = 0; i < v->count; i++) {
        n = pairs_of(v, i, &at);
        if (!v->there[i])
            v->jobs[jobs++] =
                (struct kd_mat_job){&v->ex[i].w2, v->a + at * in, in, n, v->y + at * lat, lat};
    }
    return kd_mat_mul_many(v->r, v->jobs, jobs, err);
}

static int wave_run(struct wave *v, struct kd_store *store, int64_t T, struct kd_err *err)
{
    int64_t pairs = v->p1 - v->p0, lat = v->c->latent;
    float *buf = NULL;
    int rc = wave_experts(v, store, err);
    if (!rc)
        rc = kd_mem_new(&buf, pairs * 2 * (lat + v->inter), sizeof *buf, "expert scratch", err);
    if (!rc) {
        v->x = buf;
        v->y = v->x + pairs * lat;
        v->a = v->y + pairs * lat;
        v->b = v->a + pairs * v->inter;
        rc = wave_products(v, err);
    }
    if (!rc)
        kd_pool_run(v->r->pool, T, sum_item, v);
    wave_done(v, store);
    kd_mem_free(buf);
    return rc;
}

int kd_k3_experts(const struct kd_run *r, const struct kd_k3_cfg *c, int64_t layer,
                  struct kd_store *store, const float *z, const int32_t *ids, const float *w,
                  int64_t T, float *u, struct kd_err *err)
{
    struct groups g;
    struct wave v = {.r = r, .c = c, .g = &g, .layer = layer, .z = z, .w = w, .ids = ids, .u = u};
    int rc = group(&g, c, ids, T, err);
    memset(u, 0, (size_t)(T * c->latent) * sizeof *u);
    int64_t rows = r->encoder && T > WAVE_ROWS ? T : WAVE_ROWS;
    int64_t most = c->experts < rows ? c->experts : rows;
    if (!rc)
        rc = kd_mem_new(&v.ex, most, sizeof *v.ex, "expert table", err);
    if (!rc)
        rc = kd_mem_new(&v.jobs, 2 * most, sizeof *v.jobs, "expert jobs", err);
    if (!rc)
        rc = kd_mem_new(&v.first, most + 1, sizeof *v.first, "expert pairs", err) ||
             kd_mem_new(&v.there, most, sizeof *v.there, "expert pairs", err);
    /* Waves of consecutive experts, so that every token's sum runs in ascending expert id. */
    for (int64_t e = 0; !rc && e < c->experts; e = v.e1) {
        v.e0 = v.e1 = e;
        do {
            v.e1++;
        } while (v.e1 < c->experts && g.start[v.e1 + 1] - g.start[e] <= rows);
        v.p0 = g.start[v.e0];
        v.p1 = g.start[v.e1];
        if (v.p1 > v.p0)
            rc = wave_run(&v, store, T, err);
    }
    kd_mem_free(v.ex);
    kd_mem_free(v.jobs);
    kd_mem_free(v.first);
    kd_mem_free(v.there);
    groups_release(&g);
    return rc ? kd_wrap(err, "experts of layer %lld", (long long)layer) : 0;
}

struct norm_job {
    const struct kd_kern *kern;
    const float *x, *w;
    float eps;
    int64_t n;
    float *out;
};

static void norm_item(void *ctx, int64_t t, int worker)
{
    const struct norm_job *j = ctx;
    (void)worker;
    j->kern->rmsnorm(j->x + t * j->n, j->w, j->eps, j->n, j->out + t * j->n);
}

void kd_k3_latent_norm(const struct kd_run *r, const struct kd_k3_cfg *c,
                       const struct kd_k3_layer *L, const float *u, int64_t T, float *out)
{
    int64_t n = c->latent;
    if (!L->routed_norm) {
        memmove(out, u, (size_t)(T * n) * sizeof *out);
        return;
    }
    struct norm_job j = {r->kern, u, L->routed_norm, c->eps, n, out};
    kd_pool_run(r->pool, T, norm_item, &j);
}
