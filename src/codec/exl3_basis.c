/* Loading, signs and scales, and the rotation into the basis of the codes (EXL3 4.4). */
#include "codec/exl3_work.h"

#include "base/mem.h"
#include "base/rand.h"

#include <math.h>
#include <string.h>

enum { STRIP = 64 };

double kd_exl3_pow32(double x, int m)
{
    double power = m & 32 ? x : 1.0;
    for (int bit = 16; bit; bit >>= 1) {
        x = sqrt(x);
        if (m & bit)
            power *= x;
    }
    return power;
}

float kd_exl3_f16_round(float x)
{
    return kd_f16_f32(kd_f32_f16(x));
}

struct basis_job {
    const struct kd_exl3_work *q;
    const struct kd_run *run;
    float *x;
    int64_t rows, cols, ld;
    double *sums;
    bool inverse;
};

/* [rows][cols] (outputs first) -> [k][n], STRIP inputs an item. */
static void transpose_item(void *ctx, int64_t item, int worker)
{
    (void)worker;
    const struct basis_job *j = ctx;
    const struct kd_exl3_work *q = j->q;
    int64_t i1 = (item + 1) * STRIP < q->k ? (item + 1) * STRIP : q->k;
    for (int64_t i = item * STRIP; i < i1; i++)
        memset(q->w + i * q->n, 0, (size_t)q->n * sizeof *q->w);
    for (int64_t c0 = 0; c0 < q->rows; c0 += STRIP)
        for (int64_t i = item * STRIP; i < i1 && i < q->cols; i++)
            for (int64_t c = c0; c < c0 + STRIP && c < q->rows; c++)
                q->w[i * q->n + c] = j->x[c * q->cols + i];
}

static int not_finite(const float *row, int64_t r, int64_t cols, struct kd_err *err)
{
    int64_t c = 0;
    while (c < cols && isfinite(row[c]))
        c++;
    return c == cols ? 0
                     : kd_fail(err, KD_ECORRUPT, "weight at row %lld, column %lld is not finite",
                               (long long)r, (long long)c);
}

/* A device only says that there is one. */
static int find_not_finite(const struct kd_exl3_work *q, const struct kd_mat *w, struct kd_err *err)
{
    float *row;
    int rc = kd_mem_new(&row, q->cols, sizeof *row, "weights", err);
    for (int64_t r = 0; !rc && r < q->rows; r++)
        rc = kd_mat_row(q->run, w, r, row, err) || not_finite(row, r, q->cols, err);
    kd_mem_free(row);
    return rc ? -1 : kd_fail(err, KD_EGPU, "the device found a weight that is not finite");
}

int kd_exl3_load(struct kd_exl3_work *q, const struct kd_mat *w, struct kd_err *err)
{
    bool finite = true;
    if (q->run->encoder)
        return kd_exl3_device_load(q, w, &finite, err) ? -1
               : finite                                ? 0
                                                       : find_not_finite(q, w, err);
    /* q->t is free until the weights are rotated and large enough. */
    if (kd_mat_dequant(q->run, w, q->t, q->cols, err))
        return -1;
    for (int64_t r = 0; r < q->rows; r++)
        if (not_finite(q->t + r * q->cols, r, q->cols, err))
            return -1;
    struct basis_job j = {.q = q, .x = q->t};
    kd_pool_run(q->run->pool, (q->k + STRIP - 1) / STRIP, transpose_item, &j);
    return 0;
}

static void column_ms_item(void *ctx, int64_t item, int worker)
{
    (void)worker;
    const struct basis_job *j = ctx;
    const struct kd_exl3_work *q = j->q;
    double sum[STRIP] = {0};
    for (int64_t i = 0; i < q->cols; i++)
        for (int64_t c = 0; c < STRIP; c++) {
            double v = (double)q->w[i * q->n + item * STRIP + c];
            sum[c] += v * v;
        }
    memcpy(j->sums + item * STRIP, sum, sizeof sum);
}

static void row_ms_item(void *ctx, int64_t i, int worker)
{
    (void)worker;
    const struct basis_job *j = ctx;
    const struct kd_exl3_work *q = j->q;
    double sum = 0.0;
    for (int64_t c = 0; c < q->rows; c++)
        if (q->sv[c] != 0.0f) {
            double v = (double)q->w[i * q->n + c] / (double)q->sv[c];
            sum += v * v;
        }
    j->sums[i] = sum;
}

static float sign_of(uint64_t seed, int64_t i)
{
    return kd_rand_u64(seed, (uint64_t)i) >> 63 ? -1.0f : 1.0f;
}

static int column_scales(struct kd_exl3_work *q, struct kd_err *err)
{
    double *ms;
    if (kd_mem_new(&ms, q->n, sizeof *ms, "column sums", err))
        return -1;
    struct basis_job j = {.q = q, .sums = ms};
    if (!q->device) {
        kd_pool_run(q->run->pool, q->n / STRIP, column_ms_item, &j);
    } else if (kd_gpu_tensor_columns(q->device, ms, err)) {
        kd_mem_free(ms);
        return -1;
    }
    double sum = 0.0;
    int64_t count = 0;
    for (int64_t c = 0; c < q->n; c++) {
        ms[c] = sqrt(ms[c]);
        sum += ms[c];
        count += ms[c] > 0.0;
    }
    q->zero = !count;
    /* An all-zero column (padding is one) decodes to zero by sv = 0. */
    for (int64_t b = 0; b < q->n; b += KD_HAD) {
        /* The Hadamard spreads a block's energy over its zero columns too. */
        int64_t used = 0;
        for (int64_t c = b; c < b + KD_HAD; c++)
            used += ms[c] > 0.0;
        double factor = count ? sqrt((double)used / (double)KD_HAD) * (double)count / sum : 0.0;
        for (int64_t c = b; c < b + KD_HAD; c++)
            q->sv[c] = sign_of(q->spec->seed, c) * (float)(ms[c] * factor);
    }
    kd_mem_free(ms);
    return 0;
}

/* r = RMS^(1 - t/2) H_ii^(-t/4), t in eighths. H_ii is damped so that a dead input stays finite. */
static double row_scale(const struct kd_exl3_work *q, int64_t i)
{
    const struct kd_recipe *recipe = &q->spec->recipe;
    int t = (int)(recipe->row_power * 8.0f);
    double rms = sqrt(q->row_ms[i]);
    if (!t || !q->h || rms == 0.0)
        return rms;
    double hii = (double)q->h->h[i * q->h->k + i] / (double)q->h->rows;
    hii = hii / q->mean_diag + (double)recipe->damping;
    return kd_exl3_pow32(rms, 32 - 2 * t) / kd_exl3_pow32(hii, t);
}

int kd_exl3_scales(struct kd_exl3_work *q, struct kd_err *err)
{
    if (column_scales(q, err))
        return -1;
    struct basis_job j = {.q = q, .sums = q->row_ms};
    if (!q->device)
        kd_pool_run(q->run->pool, q->k, row_ms_item, &j);
    else if (kd_gpu_tensor_rows(q->device, q->sv, q->row_ms, err))
        return -1;
    for (int64_t i = 0; i < q->k; i++)
        q->row_ms[i] /= (double)q->n;
    /* Each block of 128 inputs gets the factor that makes its mean square in the rotated basis 1.
     */
    for (int64_t b = 0; b < q->k; b += KD_HAD) {
        double energy = 0.0;
        for (int64_t i = b; i < b + KD_HAD; i++) {
            double r = row_scale(q, i);
            energy += r > 0.0 ? q->row_ms[i] / (r * r) : 0.0;
        }
        double factor = sqrt(energy / (double)KD_HAD);
        for (int64_t i = b; i < b + KD_HAD; i++)
            q->su[i] = sign_of(q->spec->input_seed, i) * (float)(row_scale(q, i) * factor);
    }
    return 0;
}

static float largest(const float *x, int64_t count)
{
    float most = 0.0f;
    for (int64_t i = 0; i < count; i++)
        if (fabsf(x[i]) > most)
            most = fabsf(x[i]);
    return most;
}

/* x in [2^e, 2^(e+1)), x > 0. */
static int exponent_of(double x)
{
    int e = 0;
    for (; x >= 2.0; x *= 0.5)
        e++;
    for (; x < 1.0; x *= 2.0)
        e--;
    return e;
}

static double power_of_two(int e)
{
    double x = 1.0;
    for (; e > 0; e--)
        x *= 2.0;
    for (; e < 0; e++)
        x *= 0.5;
    return x;
}

int kd_exl3_round_scales(struct kd_exl3_work *q, double scale, struct kd_err *err)
{
    double most = (double)largest(q->su, q->k) / scale;
    int shift = 0;
    if (!isfinite(most))
        return kd_fail(err, KD_ENOTSUP, "weights are too large for fp32 scales");
    if (most > 0.0 && (most < 1.0 / 128 || most >= 128.0))
        shift = exponent_of(most) / 2;
    double down = power_of_two(-shift), up = power_of_two(shift);
    for (int64_t i = 0; i < q->k; i++)
        q->su[i] = kd_exl3_f16_round((float)((double)q->su[i] / scale * down));
    for (int64_t c = 0; c < q->n; c++)
        q->sv[c] = kd_exl3_f16_round((float)((double)q->sv[c] * up));
    /* Half the range stays free for the refit. */
    if (largest(q->su, q->k) > 32768.0f || largest(q->sv, q->n) > 32768.0f)
        return kd_fail(err, KD_ENOTSUP, "weights are too large for the format's fp16 scales");
    return 0;
}

static void divide_item(void *ctx, int64_t i, int worker)
{
    (void)worker;
    const struct basis_job *j = ctx;
    const struct kd_exl3_work *q = j->q;
    const float *in = q->w + i * q->n;
    float *out = j->x + i * q->n, su = q->su[i];
    for (int64_t c = 0; c < q->n; c++) {
        /* The quotient of the product: a scale alone may be tiny. */
        double d = (double)su * (double)q->sv[c];
        out[c] = d != 0.0 ? (float)((double)in[c] / d) : 0.0f;
    }
}

static void multiply_item(void *ctx, int64_t i, int worker)
{
    (void)worker;
    const struct basis_job *j = ctx;
    const struct kd_exl3_work *q = j->q;
    float *x = j->x + i * q->n, su = q->su[i];
    for (int64_t c = 0; c < q->n; c++)
        x[c] = su * x[c] * q->sv[c];
}

/* One 128 x 128 block: rows, then columns through a transposed copy. */
static void hadamard_item(void *ctx, int64_t item, int worker)
{
    (void)worker;
    const struct basis_job *j = ctx;
    int64_t across = j->cols / KD_HAD;
    float *x = j->x + item / across * KD_HAD * j->cols + item % across * KD_HAD;
    _Alignas(64) float block[KD_HAD * KD_HAD];
    for (int64_t r = 0; r < KD_HAD; r++)
        j->run->kern->hadamard(x + r * j->cols, x + r * j->cols, 1);
    for (int64_t r0 = 0; r0 < KD_HAD; r0 += 16)
        for (int64_t c = 0; c < KD_HAD; c++)
            for (int64_t r = r0; r < r0 + 16; r++)
                block[c * KD_HAD + r] = x[r * j->cols + c];
    j->run->kern->hadamard(block, block, KD_HAD);
    for (int64_t c0 = 0; c0 < KD_HAD; c0 += 16)
        for (int64_t r = 0; r < KD_HAD; r++)
            for (int64_t c = c0; c < c0 + 16; c++)
                x[r * j->cols + c] = block[c * KD_HAD + r];
}

void kd_exl3_hadamard_2d(const struct kd_run *run, float *x, int64_t rows, int64_t cols)
{
    struct basis_job j = {.run = run, .x = x, .rows = rows, .cols = cols};
    kd_pool_run(run->pool, rows / KD_HAD * (cols / KD_HAD), hadamard_item, &j);
}

int kd_exl3_rotate(struct kd_exl3_work *q, float *out, struct kd_err *err)
{
    struct basis_job j = {.q = q, .x = out};
    if (q->device)
        return kd_gpu_tensor_rotate(q->device, q->su, q->sv, err);
    kd_pool_run(q->run->pool, q->k, divide_item, &j);
    kd_exl3_hadamard_2d(q->run, out, q->k, q->n);
    return 0;
}

int kd_exl3_unrotate(struct kd_exl3_work *q, struct kd_err *err)
{
    struct basis_job j = {.q = q, .x = q->t};
    if (q->device)
        return kd_gpu_tensor_unrotate(q->device, q->su, q->sv, err);
    kd_exl3_hadamard_2d(q->run, q->t, q->k, q->n);
    kd_pool_run(q->run->pool, q->k, multiply_item, &j);
    return 0;
}
