/* After LDLQ: scales refit with the codes fixed (EXL3 4.8), and the figures of the receipt. */
#include "codec/exl3_work.h"

#include "base/mem.h"
#include "la/la.h"

#include <math.h>
#include <string.h>

enum { ROUNDS = 2, PANEL = 512, STRIP = 128 };

struct refit_job {
    struct kd_exl3_work *q;
    const float *x; /* [k][n] */
    float *panel;   /* [k][PANEL] H x, or [STRIP][k] x transposed */
    int64_t first, width;
    double *out;
};

/* panel column c: sum of x .* panel over rows. */
static void panel_dot_item(void *ctx, int64_t c, int worker)
{
    (void)worker;
    const struct refit_job *j = ctx;
    double sum = 0.0;
    for (int64_t i = 0; i < j->q->k; i++)
        sum += (double)j->x[i * j->q->n + j->first + c] * (double)j->panel[i * PANEL + c];
    j->out[j->first + c] = sum;
}

/* out[c] = x_c^T H x_c for every column. */
static int column_quads(struct kd_exl3_work *q, const float *x, double *out, struct kd_err *err)
{
    struct refit_job j = {.q = q, .x = x, .out = out};
    if (kd_mem_new(&j.panel, q->k * PANEL, sizeof *j.panel, "refit", err))
        return -1;
    for (j.first = 0; j.first < q->n; j.first += PANEL) {
        j.width = q->n - j.first < PANEL ? q->n - j.first : PANEL;
        memset(j.panel, 0, (size_t)(q->k * PANEL) * sizeof *j.panel);
        kd_la_gemm_tn(q->run, q->h->h, q->k, x + j.first, q->n, q->k, q->k, j.width, j.panel,
                      PANEL);
        kd_pool_run(q->run->pool, j.width, panel_dot_item, &j);
    }
    kd_mem_free(j.panel);
    return 0;
}

/* q->r = H W. */
static void weigh(struct kd_exl3_work *q)
{
    memset(q->r, 0, (size_t)(q->k * q->n) * sizeof *q->r);
    kd_la_gemm_tn(q->run, q->h->h, q->k, q->w, q->n, q->k, q->k, q->n, q->r, q->n);
}

/* The new scale as fp16 holds it, and what the decoded weights change by; unchanged when unusable.
 */
static float refit_one(float *scale, double factor)
{
    if (!isfinite(factor) || factor < 0.25 || factor > 4.0 || *scale == 0.0f)
        return 1.0f;
    float next = kd_exl3_f16_round((float)((double)*scale * factor));
    if (!isfinite(next) || next == 0.0f)
        return 1.0f;
    float change = next / *scale;
    *scale = next;
    return change;
}

static int refit_columns(struct kd_exl3_work *q, struct kd_err *err)
{
    double *quad;
    if (kd_mem_new(&quad, q->n, sizeof *quad, "refit", err))
        return -1;
    if (column_quads(q, q->t, quad, err)) {
        kd_mem_free(quad);
        return -1;
    }
    for (int64_t c = 0; c < q->n; c++) {
        double dot = 0.0;
        for (int64_t i = 0; i < q->k; i++)
            dot += (double)q->t[i * q->n + c] * (double)q->r[i * q->n + c];
        float change = refit_one(&q->sv[c], dot / quad[c]);
        for (int64_t i = 0; i < q->k && change != 1.0f; i++)
            q->t[i * q->n + c] *= change;
    }
    kd_mem_free(quad);
    return 0;
}

static void strip_item(void *ctx, int64_t i, int worker)
{
    (void)worker;
    const struct refit_job *j = ctx;
    for (int64_t c = 0; c < j->width; c++)
        j->panel[c * j->q->k + i] = j->x[i * j->q->n + j->first + c];
}

/* q->l = (Q Q^T) o H + 1e-6 mean diagonal, each with its scale taken out so that fp32 holds it. */
static int row_system(struct kd_exl3_work *q, struct kd_err *err)
{
    int64_t k = q->k;
    struct refit_job j = {.q = q, .x = q->t};
    if (kd_mem_new(&j.panel, STRIP * k, sizeof *j.panel, "refit", err))
        return -1;
    memset(q->l, 0, (size_t)(k * k) * sizeof *q->l);
    for (j.first = 0; j.first < q->n; j.first += STRIP) {
        j.width = STRIP;
        kd_pool_run(q->run->pool, k, strip_item, &j);
        kd_la_syrk(q->run, j.panel, k, STRIP, k, q->l, k);
    }
    kd_mem_free(j.panel);
    double mean = 0.0;
    for (int64_t i = 0; i < k; i++) {
        for (int64_t c = i; c < k; c++)
            q->l[i * k + c] *= q->h->h[i * k + c];
        mean += (double)q->l[i * k + i];
    }
    float add = (float)(1e-6 * mean / (double)k);
    for (int64_t i = 0; i < k; i++)
        q->l[i * k + i] += add;
    return 0;
}

static int refit_rows(struct kd_exl3_work *q, struct kd_err *err)
{
    int64_t k = q->k, n = q->n;
    float *rhs;
    if (kd_mem_new(&rhs, k, sizeof *rhs, "refit", err))
        return -1;
    int rc = row_system(q, err);
    for (int64_t i = 0; i < k && !rc; i++) {
        double dot = 0.0;
        for (int64_t c = 0; c < n; c++)
            dot += (double)q->t[i * n + c] * (double)q->r[i * n + c];
        /* A row without weights or activations keeps its scale. */
        bool dead = q->su[i] == 0.0f || q->h->h[i * k + i] == 0.0f;
        rhs[i] = dead ? q->l[i * k + i] : (float)dot;
    }
    /* Too singular a system: the scales stay as they are. */
    bool good = !rc && !kd_la_solve(q->run, q->l, k, rhs, NULL);
    for (int64_t i = 0; i < k && good; i++)
        good = isfinite(rhs[i]) && rhs[i] > 0.0f;
    for (int64_t i = 0; i < k && good; i++) {
        float change = refit_one(&q->su[i], (double)rhs[i]);
        for (int64_t c = 0; c < n && change != 1.0f; c++)
            q->t[i * n + c] *= change;
    }
    kd_mem_free(rhs);
    return rc;
}

int kd_exl3_refit(struct kd_exl3_work *q, struct kd_err *err)
{
    weigh(q);
    for (int round = 0; round < ROUNDS; round++)
        if (refit_columns(q, err) || refit_rows(q, err))
            return -1;
    return 0;
}

static double sum_of(const double *x, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += x[i];
    return sum;
}

static double squares(const float *x, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

int kd_exl3_figures(struct kd_exl3_work *q, struct kd_quant_out *out, struct kd_err *err)
{
    int64_t count = q->k * q->n;
    for (int64_t i = 0; i < count; i++)
        q->t[i] = q->w[i] - q->t[i];
    double power = squares(q->w, count);
    out->rel_fro = power > 0.0 ? sqrt(squares(q->t, count) / power) : 0.0;
    out->proxy = -1.0;
    if (!q->h)
        return 0;
    double *quad;
    if (kd_mem_new(&quad, q->n, sizeof *quad, "error figures", err))
        return -1;
    int rc = column_quads(q, q->t, quad, err);
    double error = sum_of(quad, q->n);
    rc = rc || column_quads(q, q->w, quad, err) ? -1 : 0;
    double whole = sum_of(quad, q->n);
    if (!rc)
        out->proxy = whole > 0.0 ? error / whole : 0.0;
    kd_mem_free(quad);
    return rc;
}
