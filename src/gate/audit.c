#include "gate/audit.h"

#include "base/file.h"
#include "base/jscan.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/rand.h"
#include "fmt/exl3_file.h"
#include "gate/stats.h"
#include "gate/view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECEIPT_MAX = 1 << 30 };

struct work {
    struct kd_audit *a;
    const struct kd_audit_plan *plan;
    const struct kd_run *run;
    struct kd_k3_cfg cfg;
    struct kd_view model, source;
    uint8_t *picked; /* [layers * experts] */
};

/* w1 and w3 are inter x latent, w2 latent x inter. */
static const char *const proj[3] = {"w1", "w3", "w2"};

static bool chosen(void *ctx, int64_t layer, int64_t expert)
{
    const struct work *w = ctx;
    return layer >= 0 && layer < w->cfg.layers && expert >= 0 && expert < w->cfg.experts &&
           w->picked[layer * w->cfg.experts + expert];
}

/* n different ones of all, each set of n as likely: Floyd's way of sampling without replacement. */
static int pick(struct work *w, struct kd_err *err)
{
    const struct kd_k3_cfg *c = &w->cfg;
    struct kd_audit *a = w->a;
    int64_t first = c->dense_layers * c->experts, all = (c->layers - c->dense_layers) * c->experts;
    int64_t n = w->plan->n < all ? w->plan->n : all;
    if (all < 1)
        return kd_fail(err, KD_EINVAL, "'%s' has no experts", w->plan->source);
    if (kd_mem_zero(&w->picked, c->layers * c->experts, 1, "choice", err) ||
        kd_mem_zero(&a->expert, n, sizeof *a->expert, "choice", err))
        return -1;
    for (int64_t i = all - n; i < all; i++) {
        int64_t r = (int64_t)(kd_rand_u64(w->plan->seed, (uint64_t)i) % (uint64_t)(i + 1));
        w->picked[first + (w->picked[first + r] ? i : r)] = 1;
    }
    for (int64_t i = 0; i < c->layers * c->experts; i++)
        if (w->picked[i])
            a->expert[a->n++] =
                (struct kd_audit_expert){i / c->experts, i % c->experts, .said = {-1, -1, -1}};
    a->population = all;
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct kd_audit_expert *x = a, *y = b;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

/* The expert of the sample that a receipt's entry is of; *p: which of its matrices. */
static struct kd_audit_expert *entry_of(const struct kd_audit *a, const char *key, int *p)
{
    const char *l = strstr(key, "layers."), *e = l ? strstr(l, ".experts.") : NULL;
    const char *dot = e ? strrchr(e, '.') : NULL;
    if (!dot)
        return NULL;
    struct kd_audit_expert at = {.layer = strtol(l + 7, NULL, 10),
                                 .expert = strtol(e + 9, NULL, 10)};
    for (*p = 0; *p < 3 && strcmp(dot + 1, proj[*p]) != 0;)
        ++*p;
    return *p == 3 ? NULL : bsearch(&at, a->expert, (size_t)a->n, sizeof at, by_place);
}

/* "tensors": {KEY: {"rel": X, ...}}, streamed: a K3 receipt has a million entries. */
int kd_audit_receipt(struct kd_audit *a, const char *text, size_t bytes, struct kd_err *err)
{
    struct kd_jscan_limits limits = {
        .depth = 32, .string_bytes = 1 << 20, .total_bytes = RECEIPT_MAX};
    struct kd_jscan s;
    struct kd_audit_expert *at = NULL;
    bool tensors = false, rel = false;
    int p = 0, rc;
    kd_jscan_open(&s, text, bytes, &limits);
    while (!(rc = kd_jscan_next(&s, err)) && s.tok != KD_JT_END) {
        if (s.tok == KD_JT_NAME && s.depth == 1)
            tensors = !strcmp(s.text, "tensors");
        else if (s.tok == KD_JT_NAME && s.depth == 2 && tensors)
            at = entry_of(a, s.text, &p);
        else if (s.tok == KD_JT_NAME && s.depth == 3)
            rel = tensors && at && !strcmp(s.text, "rel");
        else if (rel && s.depth == 3 && (s.tok == KD_JT_NUM || s.tok == KD_JT_INT))
            at->said[p] = s.tok == KD_JT_INT ? (double)s.integer : s.number;
        if (s.tok != KD_JT_NAME)
            rel = false;
    }
    kd_jscan_close(&s);
    return rc;
}

static int read_receipt(struct work *w, struct kd_err *err)
{
    struct kd_source *s = w->model.src;
    struct kd_buf text;
    int file = kd_source_find(s, "kondense.json");
    if (file < 0 || w->model.ck) /* one beside a GGUF is of another model */
        return 0;
    kd_buf_init(&text, (size_t)RECEIPT_MAX + 1);
    int rc = kd_source_load(s, file, RECEIPT_MAX, &text, err);
    if (!rc)
        rc = kd_audit_receipt(w->a, text.data ? text.data : "", text.size_bytes, err);
    kd_buf_release(&text);
    if (rc)
        return kd_wrap(err, "%s/kondense.json", kd_source_where(s));
    w->a->has_receipt = true;
    return 0;
}

/* Opens one of the two. Of a GGUF all names are there already: a tensor beside the blocks (a scale
 * that some formats keep apart) would be left out without a word. */
static int open_one(struct work *w, struct kd_view *v, const char *where, const char *name,
                    struct kd_k3_cfg *cfg, struct kd_err *err)
{
    const struct kd_json *config;
    char dir[4096];
    if (kd_path_join(dir, sizeof dir, w->plan->work, name, err) ||
        kd_view_open(v, where, w->plan->opts, dir, err))
        return -1;
    if (kd_view_config(v, &config, err) || kd_k3_cfg_parse(cfg, config, NULL, err) ||
        (v->ck && kd_k3_known(cfg, v->ck, err)))
        return kd_wrap(err, "%s", kd_source_where(v->src));
    return 0;
}

static int open_both(struct work *w, struct kd_err *err)
{
    struct kd_k3_cfg other;
    if (open_one(w, &w->model, w->plan->model, "model", &other, err) ||
        open_one(w, &w->source, w->plan->source, "source", &w->cfg, err))
        return -1;
    if (w->cfg.layers != other.layers || w->cfg.experts != other.experts ||
        w->cfg.latent != other.latent || w->cfg.moe_inter != other.moe_inter ||
        w->cfg.dense_layers != other.dense_layers)
        return kd_fail(err, KD_EINVAL,
                       "the two models differ in shape: one is not made of the other");
    return 0;
}

/* Sums of squares of Wq - W and of W. */
static int differ(struct work *w, const struct kd_audit_expert *e, int p, float *q, float *s,
                  double *diff, double *power, double *k, struct kd_err *err)
{
    int64_t rows = p == 2 ? w->cfg.latent : w->cfg.moe_inter;
    int64_t cols = p == 2 ? w->cfg.moe_inter : w->cfg.latent;
    struct kd_mat a, b;
    char key[96];
    snprintf(key, sizeof key, "block_sparse_moe.experts.%lld.%s", (long long)e->expert, proj[p]);
    if (kd_k3_mat(w->model.ck, e->layer, key, rows, cols, &a, err) ||
        kd_k3_mat(w->source.ck, e->layer, key, rows, cols, &b, err) ||
        kd_mat_dequant(w->run, &a, q, cols, err) || kd_mat_dequant(w->run, &b, s, cols, err))
        return kd_wrap(err, "layer %lld", (long long)e->layer);
    *diff = *power = 0;
    for (int64_t i = 0; i < rows * cols; i++) {
        double x = (double)s[i], d = (double)q[i] - x;
        *diff += d * d;
        *power += x * x;
    }
    *k += 8 * (double)kd_mat_bytes(&a) / (double)(rows * cols) / 3;
    return 0;
}

static int compare(struct work *w, struct kd_err *err)
{
    struct kd_audit *a = w->a;
    int64_t count = w->cfg.latent * w->cfg.moe_inter;
    float *q, *s = NULL;
    if (kd_mem_new(&q, count, sizeof *q, "expert", err))
        return -1;
    int rc = kd_mem_new(&s, count, sizeof *s, "expert", err);
    kd_progress_begin("compare", "experts", a->n, 0);
    for (int64_t i = 0; i < a->n && !rc; i++) {
        struct kd_audit_expert *e = &a->expert[i];
        double diff = 0, power = 0;
        for (int p = 0; p < 3 && !rc; p++) {
            double d = 0, x = 0;
            rc = differ(w, e, p, q, s, &d, &x, &e->k, err);
            if (rc)
                break;
            e->rel_of[p] = x > 0 ? sqrt(d / x) : d > 0 ? (double)INFINITY : 0;
            diff += d;
            power += x;
        }
        e->rel = power > 0 ? sqrt(diff / power) : diff > 0 ? (double)INFINITY : 0;
        kd_progress_add(1, NULL);
        if (!rc && w->plan->stop && *w->plan->stop)
            rc = kd_fail(err, KD_ECANCEL, "stopped");
    }
    kd_progress_end();
    kd_mem_free(q);
    kd_mem_free(s);
    return rc;
}

static int judge(struct work *w, struct kd_err *err)
{
    struct kd_audit *a = w->a;
    double tolerance = w->plan->tolerance > 0 ? w->plan->tolerance : 0.001, *v;
    int64_t finite = 0;
    if (kd_mem_new(&v, a->n, sizeof *v, "errors", err))
        return -1;
    for (int64_t i = 0; i < a->n; i++)
        if (isfinite(a->expert[i].rel))
            v[finite++] = a->expert[i].rel;
    kd_stats_sort(v, finite);
    a->median = kd_stats_quantile(v, finite, 0.5);
    kd_mem_free(v);
    a->limit = w->plan->limit > 0 ? w->plan->limit : 1.5 * a->median;
    for (int64_t i = 0; i < a->n; i++) {
        struct kd_audit_expert *e = &a->expert[i];
        bool told = e->said[0] >= 0 && e->said[1] >= 0 && e->said[2] >= 0;
        e->bad = !isfinite(e->rel) || e->rel >= 1;
        for (int p = 0; p < 3 && told; p++)
            e->bad = e->bad || fabs(e->rel_of[p] - e->said[p]) > tolerance * e->said[p] + 1e-9;
        if (!told || w->plan->limit > 0)
            e->bad = e->bad || e->rel > a->limit;
        if (!(e->rel <= a->worst)) /* NaN too */
            a->worst = e->rel;
        a->bad += e->bad;
    }
    a->bound = kd_audit_bound(a->bad, a->n);
    return 0;
}

/* P(at most `bad` of n) at share p, by its logarithms. */
static double at_most(int64_t bad, int64_t n, double p)
{
    double sum = 0;
    for (int64_t i = 0; i <= bad; i++)
        sum += exp(lgamma((double)n + 1) - lgamma((double)i + 1) - lgamma((double)(n - i) + 1) +
                   (double)i * log(p) + (double)(n - i) * log1p(-p));
    return sum;
}

double kd_audit_bound(int64_t bad, int64_t n)
{
    double low = 0, high = 1;
    if (bad >= n)
        return 1;
    for (int i = 0; i < 60; i++) {
        double mid = (low + high) / 2;
        if (at_most(bad, n, mid) > 0.05)
            low = mid;
        else
            high = mid;
    }
    return high;
}

static int audit(struct work *w, struct kd_err *err)
{
    struct kd_audit *a = w->a;
    if (open_both(w, err) || pick(w, err) || read_receipt(w, err))
        return -1;
    snprintf(a->model, sizeof a->model, "%s", kd_source_where(w->model.src));
    snprintf(a->source, sizeof a->source, "%s", kd_source_where(w->source.src));
    snprintf(a->model_commit, sizeof a->model_commit, "%s", kd_source_commit(w->model.src));
    snprintf(a->source_commit, sizeof a->source_commit, "%s", kd_source_commit(w->source.src));
    if (kd_view_take(&w->model, chosen, w, err) || kd_view_take(&w->source, chosen, w, err))
        return -1;
    a->model_bytes = kd_source_stats(w->model.src)->fetched_bytes;
    a->source_bytes = kd_source_stats(w->source.src)->fetched_bytes;
    a->model_total = w->model.all_bytes;
    a->source_total = w->source.all_bytes;
    return compare(w, err) || judge(w, err) ? -1 : 0;
}

int kd_audit_run(struct kd_audit *a, const struct kd_run *run, const struct kd_audit_plan *plan,
                 struct kd_err *err)
{
    struct work w = {.a = a, .plan = plan, .run = run};
    struct kd_err more;
    memset(a, 0, sizeof *a);
    int rc = audit(&w, err);
    kd_view_close(&w.model);
    kd_view_close(&w.source);
    kd_mem_free(w.picked);
    static const char *const made[] = {"model", "source"};
    for (int i = 0; i < 2; i++) {
        char dir[4096];
        if (kd_path_join(dir, sizeof dir, plan->work, made[i], &more) || kd_dir_remove(dir, &more))
            rc = rc ? rc : kd_fail(err, more.code, "%s", more.msg);
    }
    return rc;
}

void kd_audit_release(struct kd_audit *a)
{
    kd_mem_free(a->expert);
    memset(a, 0, sizeof *a);
}
