/* After LDLQ: scales refit with the codes fixed (EXL3 4.8), and the figures of the receipt. */
#include "codec/exl3_work.h"

#include "base/mem.h"
#include "la/la.h"

#include <math.h>
#include <string.h>

enum { ROUNDS = 2, PANEL = 512, STRIP = 128, COLUMNS = 16 };

struct refit_job {
    struct kd_exl3_work *q;
    const float *x, *y; /* [k][n], or y [k][PANEL] */
    int64_t ldy;
    float *panel; /* [k][PANEL] H x, or [STRIP][k] x transposed */
    int64_t first, width;
    double *out;
    double *row; /* [k] */
    float *change;
};

/* out[c] = sum over rows of x[.][first + c] y[.][c], COLUMNS of them an item. */
static void column_dot_item(void *ctx, int64_t item, int worker)
{
    (void)worker;
    const struct refit_job *j = ctx;
    const float *x = j->x + j->first + item * COLUMNS, *y = j->y + item * COLUMNS;
    double sum[COLUMNS] = {0};
    for (int64_t i = 0; i < j->q->k; i++)
        for (int64_t c = 0; c < COLUMNS; c++)
            sum[c] += (double)x[i * j->q->n + c] * (double)y[i * j->ldy + c];
    memcpy(j->out + j->first + item * COLUMNS, sum, sizeof sum);
}

/* out[c] = x_c^T H x_c for every column of q->t. */
static int column_quads(struct kd_exl3_work *q, double *out, struct kd_err *err)
{
    struct refit_job j = {.q = q, .x = q->t, .out = out};
    if (q->device)
        return kd_gpu_tensor_quads(q->device, out, err);
    if (kd_mem_new(&j.panel, q->k * PANEL, sizeof *j.panel, "refit", err))
        return -1;
    j.y = j.panel;
    j.ldy = PANEL;
    for (j.first = 0; j.first < q->n; j.first += PANEL) {
        j.width = q->n - j.first < PANEL ? q->n - j.first : PANEL;
        memset(j.panel, 0, (size_t)(q->k * PANEL) * sizeof *j.panel);
        kd_la_gemm_tn(q->run, q->h->h, q->k, q->t + j.first, q->n, q->k, q->k, j.width, j.panel,
                      PANEL);
        kd_pool_run(q->run->pool, j.width / COLUMNS, column_dot_item, &j);
    }
    kd_mem_free(j.panel);
    return 0;
}

/* q->r = H W. */
static int weigh(struct kd_exl3_work *q, struct kd_err *err)
{
    if (q->device)
        return kd_gpu_tensor_weigh(q->device, q->weighed, err);
    memset(q->r, 0, (size_t)(q->k * q->n) * sizeof *q->r);
    kd_la_gemm_tn(q->run, q->h->h, q->k, q->w, q->n, q->k, q->k, q->n, q->r, q->n);
    return 0;
}

/* out[c] = sum over rows of q->t[.][c] q->r[.][c]. */
static int column_dots(struct kd_exl3_work *q, double *out, struct kd_err *err)
{
    struct refit_job j = {.q = q, .x = q->t, .y = q->r, .ldy = q->n, .out = out};
    if (q->device)
        return kd_gpu_tensor_dots(q->device, out, NULL, err);
    kd_pool_run(q->run->pool, q->n / COLUMNS, column_dot_item, &j);
    return 0;
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

/* Row i of q->t times a factor for each column. */
static void change_item(void *ctx, int64_t i, int worker)
{
    (void)worker;
    const struct refit_job *j = ctx;
    float *t = j->q->t + i * j->q->n;
    for (int64_t c = 0; c < j->q->n; c++)
        t[c] *= j->change[c];
}

static int refit_columns(struct kd_exl3_work *q, struct kd_err *err)
{
    double *quad = NULL, *dot = NULL;
    struct refit_job j = {.q = q};
    int rc = -1;
    if (kd_mem_new(&quad, q->n, sizeof *quad, "refit", err) ||
        kd_mem_new(&dot, q->n, sizeof *dot, "refit", err) ||
        kd_mem_new(&j.change, q->n, sizeof *j.change, "refit", err) || column_quads(q, quad, err) ||
        column_dots(q, dot, err))
        goto out;
    for (int64_t c = 0; c < q->n; c++)
        j.change[c] = refit_one(&q->sv[c], dot[c] / quad[c]);
    rc = 0;
    if (q->device)
        rc = kd_gpu_tensor_stretch(q->device, NULL, j.change, err);
    else
        kd_pool_run(q->run->pool, q->k, change_item, &j);
out:
    kd_mem_free(quad);
    kd_mem_free(dot);
    kd_mem_free(j.change);
    return rc;
}

static void strip_item(void *ctx, int64_t i, int worker)
{
    (void)worker;
    const struct refit_job *j = ctx;
    for (int64_t c = 0; c < j->width; c++)
        j->panel[c * j->q->k + i] = j->x[i * j->q->n + j->first + c];
}

/* Row i of the system: the Gram matrix times H, and the right side in row[i]. */
static void system_item(void *ctx, int64_t i, int worker)
{
    (void)worker;
    const struct refit_job *j = ctx;
    const struct kd_exl3_work *q = j->q;
    for (int64_t c = i; c < q->k; c++)
        q->l[i * q->k + c] *= q->h->h[i * q->k + c];
    double dot = 0.0;
    for (int64_t c = 0; c < q->n; c++)
        dot += (double)q->t[i * q->n + c] * (double)q->r[i * q->n + c];
    j->row[i] = dot;
}

/* q->l = (Q Q^T) o H, row = rowsum(Q o (H W)), diagonal = q->l's. */
static int row_system(struct kd_exl3_work *q, float *diagonal, double *row, struct kd_err *err)
{
    int64_t k = q->k;
    struct refit_job j = {.q = q, .x = q->t, .row = row};
    if (q->device)
        return kd_gpu_tensor_gram(q->device, diagonal, err) ||
                       kd_gpu_tensor_dots(q->device, NULL, row, err)
                   ? -1
                   : 0;
    if (kd_mem_new(&j.panel, STRIP * k, sizeof *j.panel, "refit", err))
        return -1;
    memset(q->l, 0, (size_t)(k * k) * sizeof *q->l);
    j.width = STRIP;
    for (j.first = 0; j.first < q->n; j.first += STRIP) {
        kd_pool_run(q->run->pool, k, strip_item, &j);
        kd_la_syrk(q->run, j.panel, k, STRIP, k, q->l, k);
    }
    kd_mem_free(j.panel);
    kd_pool_run(q->run->pool, k, system_item, &j);
    for (int64_t i = 0; i < k; i++)
        diagonal[i] = q->l[i * k + i];
    return 0;
}

/* rhs <- (q->l + add I)^-1 rhs; *good false: too singular. */
static int solve(struct kd_exl3_work *q, float add, float *rhs, bool *good, struct kd_err *err)
{
    int64_t k = q->k;
    if (!q->device) {
        for (int64_t i = 0; i < k; i++)
            q->l[i * k + i] += add;
        *good = !kd_la_solve(q->run, q->l, k, rhs, NULL);
        return 0;
    }
    return kd_gpu_tensor_cholesky(q->device, add, good, err) ||
                   (*good && kd_gpu_tensor_solve(q->device, rhs, err))
               ? -1
               : 0;
}

/* Row i of q->t times change[i]. */
static int change_rows(struct kd_exl3_work *q, const float *change, struct kd_err *err)
{
    if (q->device)
        return kd_gpu_tensor_stretch(q->device, change, NULL, err);
    for (int64_t i = 0; i < q->k; i++)
        for (int64_t c = 0; c < q->n && change[i] != 1.0f; c++)
            q->t[i * q->n + c] *= change[i];
    return 0;
}

static int refit_rows(struct kd_exl3_work *q, struct kd_err *err)
{
    int64_t k = q->k;
    double *row = NULL, mean = 0.0;
    float *rhs = NULL, *diagonal = NULL;
    bool good;
    int rc = -1;
    if (kd_mem_new(&row, k, sizeof *row, "refit", err) ||
        kd_mem_new(&rhs, k, sizeof *rhs, "refit", err) ||
        kd_mem_new(&diagonal, k, sizeof *diagonal, "refit", err) ||
        row_system(q, diagonal, row, err))
        goto out;
    for (int64_t i = 0; i < k; i++)
        mean += (double)diagonal[i];
    float add = (float)(1e-6 * mean / (double)k);
    /* A row without weights or activations keeps its scale. */
    for (int64_t i = 0; i < k; i++)
        rhs[i] = q->su[i] == 0.0f || q->h->h[i * k + i] == 0.0f ? diagonal[i] + add : (float)row[i];
    /* Too singular a system, or a scale that would turn round: all stay as they are. */
    if (solve(q, add, rhs, &good, err))
        goto out;
    for (int64_t i = 0; i < k && good; i++)
        good = isfinite(rhs[i]) && rhs[i] > 0.0f;
    for (int64_t i = 0; i < k && good; i++)
        rhs[i] = refit_one(&q->su[i], (double)rhs[i]);
    rc = good ? change_rows(q, rhs, err) : 0;
out:
    kd_mem_free(row);
    kd_mem_free(rhs);
    kd_mem_free(diagonal);
    return rc;
}

int kd_exl3_refit(struct kd_exl3_work *q, struct kd_err *err)
{
    if (weigh(q, err))
        return -1;
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

/* out[i] = sum of squares of row i of x. */
static void square_item(void *ctx, int64_t i, int worker)
{
    (void)worker;
    const struct refit_job *j = ctx;
    double sum = 0.0;
    for (int64_t c = 0; c < j->q->n; c++)
        sum += (double)j->x[i * j->q->n + c] * (double)j->x[i * j->q->n + c];
    j->out[i] = sum;
}

static void error_item(void *ctx, int64_t i, int worker)
{
    const struct refit_job *j = ctx;
    struct kd_exl3_work *q = j->q;
    for (int64_t c = i * q->n; c < (i + 1) * q->n; c++)
        q->t[c] = q->w[c] - q->t[c];
    square_item(ctx, i, worker);
}

/* q->t = W - q->t; sums of squares of the rows of W and of that. */
static int errors(struct kd_exl3_work *q, double *power, double *error, struct kd_err *err)
{
    struct refit_job j = {.q = q, .x = q->w, .out = power};
    if (q->device)
        return kd_gpu_tensor_error(q->device, power, error, err);
    kd_pool_run(q->run->pool, q->k, square_item, &j);
    j.x = q->t;
    j.out = error;
    kd_pool_run(q->run->pool, q->k, error_item, &j);
    return 0;
}

/* sum of columns of W o (H W), q->r = H W there. */
static double weight_of(struct kd_exl3_work *q, double *sums)
{
    struct refit_job j = {.q = q, .x = q->w, .y = q->r, .ldy = q->n, .out = sums};
    if (q->device)
        return sum_of(q->weighed, q->n);
    kd_pool_run(q->run->pool, q->n / COLUMNS, column_dot_item, &j);
    return sum_of(sums, q->n);
}

int kd_exl3_figures(struct kd_exl3_work *q, bool refitted, struct kd_quant_out *out,
                    struct kd_err *err)
{
    double *sums;
    int rc = -1;
    if (kd_mem_new(&sums, q->n > 2 * q->k ? q->n : 2 * q->k, sizeof *sums, "error figures", err))
        return -1;
    if (errors(q, sums, sums + q->k, err))
        goto out;
    double power = sum_of(sums, q->k), error = sum_of(sums + q->k, q->k);
    out->rel_fro = power > 0.0 ? sqrt(error / power) : 0.0;
    out->proxy = -1.0;
    if (q->h) {
        if (!refitted && weigh(q, err))
            goto out;
        double whole = weight_of(q, sums);
        if (column_quads(q, sums, err))
            goto out;
        out->proxy = whole > 0.0 ? sum_of(sums, q->n) / whole : 0.0;
    }
    rc = 0;
out:
    kd_mem_free(sums);
    return rc;
}
