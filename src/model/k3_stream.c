/* The residual stream: banks, mixes, norms, and the two ends of the model. */
#include "base/assert.h"
#include "base/mem.h"
#include "model/k3_int.h"

#include <math.h>
#include <string.h>

struct mix_job {
    const struct kd_kern *kern;
    const struct kd_k3_stream *s;
    const float *query; /* NULL: no mix, the prefix itself */
    const float *norm;
    float eps;
    float *out;
};

/* Scores from normalised candidates, values raw (k3-model 3.2). */
static void mix_row(const struct mix_job *j, int64_t t, float *out)
{
    const struct kd_k3_stream *s = j->s;
    const struct kd_kern *k = j->kern;
    float score[KD_K3_LAYERS_MAX + 2];
    const float *v;
    int64_t n = s->hidden, m = s->banks + 1;
    KD_ASSERT(m <= KD_K3_LAYERS_MAX + 1);
    for (int64_t i = 0; i < m; i++) {
        v = i < s->banks ? s->bank + (i * s->bank_rows + t) * n : s->p + t * n;
        float scale = 1.0f / sqrtf(k->dot(v, v, n) / (float)n + j->eps);
        score[i] = k->dot(v, j->query, n) * scale;
    }
    k->softmax(score, m);
    memset(out, 0, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < m; i++) {
        v = i < s->banks ? s->bank + (i * s->bank_rows + t) * n : s->p + t * n;
        k->axpy(score[i], v, out, n);
    }
}

static void mix_item(void *ctx, int64_t t, int worker)
{
    const struct mix_job *j = ctx;
    (void)worker;
    int64_t n = j->s->hidden;
    float *out = j->out + t * n;
    if (j->query && j->s->banks) {
        mix_row(j, t, out);
        j->kern->rmsnorm(out, j->norm, j->eps, n, out);
    } else {
        j->kern->rmsnorm(j->s->p + t * n, j->norm, j->eps, n, out);
    }
}

static void mix_norm(const struct kd_run *r, const struct kd_k3_cfg *c,
                     const struct kd_k3_stream *s, const float *query, const float *norm,
                     float *out)
{
    struct mix_job j = {
        .kern = r->kern, .s = s, .query = query, .norm = norm, .eps = c->eps, .out = out};
    kd_pool_run(r->pool, s->T, mix_item, &j);
}

int kd_k3_attn_in(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                  const struct kd_k3_stream *s, float *x, struct kd_err *err)
{
    if (s->banks && !L->attn_res)
        return kd_fail(err, KD_EINVAL, "layer %lld cannot follow another one", (long long)L->index);
    mix_norm(r, c, s, L->attn_res, L->input_norm, x);
    return 0;
}

int kd_k3_ffn_in(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                 const struct kd_k3_stream *s, float *x, struct kd_err *err)
{
    if (!s->banks)
        return kd_fail(err, KD_EINVAL, "layer %lld: no bank before its feed-forward part",
                       (long long)L->index);
    mix_norm(r, c, s, L->mlp_res, L->post_norm, x);
    return 0;
}

struct add_job {
    float *p, *bank;
    const float *add;
    int64_t hidden;
    bool replace;
};

static void add_item(void *ctx, int64_t t, int worker)
{
    const struct add_job *j = ctx;
    (void)worker;
    int64_t n = j->hidden;
    float *p = j->p + t * n;
    const float *a = j->add + t * n;
    if (j->bank)
        memcpy(j->bank + t * n, p, (size_t)n * sizeof *p);
    if (j->replace)
        memcpy(p, a, (size_t)n * sizeof *p);
    else
        for (int64_t i = 0; i < n; i++)
            p[i] += a[i];
}

void kd_k3_add_attn(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                    struct kd_k3_stream *s, const float *a)
{
    struct add_job j = {.p = s->p, .add = a, .hidden = s->hidden, .replace = !s->started};
    if (L->index % c->block == 0) {
        KD_ASSERT(s->banks < kd_k3_banks(c));
        j.bank = s->bank + s->banks * s->bank_rows * s->hidden;
        j.replace = true;
        s->banks++;
    }
    kd_pool_run(r->pool, s->T, add_item, &j);
    s->started = true;
}

void kd_k3_add_ffn(const struct kd_run *r, struct kd_k3_stream *s, const float *f)
{
    struct add_job j = {.p = s->p, .add = f, .hidden = s->hidden};
    kd_pool_run(r->pool, s->T, add_item, &j);
}

int kd_k3_stream_init(struct kd_k3_stream *s, const struct kd_k3_cfg *cfg, int64_t T,
                      struct kd_err *err)
{
    memset(s, 0, sizeof *s);
    s->T = s->bank_rows = T;
    s->hidden = cfg->hidden;
    int64_t row = cfg->hidden * (int64_t)sizeof(float);
    if (kd_mem_new(&s->p, T, row, "residual stream", err))
        return -1;
    if (kd_mem_new(&s->bank, T * kd_k3_banks(cfg), row, "residual banks", err)) {
        kd_k3_stream_release(s);
        return -1;
    }
    return 0;
}

void kd_k3_stream_release(struct kd_k3_stream *s)
{
    kd_mem_free(s->p);
    kd_mem_free(s->bank);
    memset(s, 0, sizeof *s);
}

int kd_k3_embed(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_ends *e,
                const int32_t *ids, int64_t T, struct kd_k3_stream *s, struct kd_err *err)
{
    KD_ASSERT(T <= s->bank_rows);
    for (int64_t t = 0; t < T; t++) {
        if (ids[t] < 0 || ids[t] >= c->vocab)
            return kd_fail(err, KD_EINVAL, "token %d at place %lld: the vocabulary has %lld",
                           ids[t], (long long)t, (long long)c->vocab);
        if (kd_mat_row(r, &e->embed, ids[t], s->p + t * c->hidden, err))
            return -1;
    }
    s->T = T;
    s->banks = 0;
    s->started = true;
    return 0;
}

int kd_k3_final(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_ends *e,
                const struct kd_k3_stream *s, float *h, struct kd_err *err)
{
    if (!s->banks)
        return kd_fail(err, KD_EINVAL, "no layer has run before the final norm");
    mix_norm(r, c, s, e->out_res, e->norm, h);
    return 0;
}
