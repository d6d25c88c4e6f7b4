/* What is asked of a unit before it counts: see task.h. Its checks are for accidents (a device
 * that computes wrong, memory that flips), not for lies. */
#include "base/hash.h"
#include "base/mem.h"
#include "base/rand.h"
#include "farm/task.h"

#include <math.h>
#include <string.h>

int64_t kd_farm_unit_bytes(const struct kd_farm_task *t)
{
    const struct kd_mat *m[3];
    int64_t shape[3][2];
    struct kd_rate rate[3];
    int n = kd_farm_task_mats(t, m);
    for (int i = 0; i < n; i++) {
        shape[i][0] = m[i]->rows;
        shape[i][1] = m[i]->cols;
        rate[i] = t->spec[i].rate;
    }
    return kd_unit_size((const int64_t(*)[2])shape, rate, n);
}

static bool finite16(const uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if ((x[i] & 0x7c00) == 0x7c00)
            return false;
    return true;
}

static int check_shape(const struct kd_farm_task *t, const struct kd_unit *u, struct kd_err *err)
{
    const struct kd_mat *m[3];
    int n = kd_farm_task_mats(t, m);
    if (u->count != n)
        return kd_fail(err, KD_ECORRUPT, "%d matrices where %d were asked for", u->count, n);
    for (int i = 0; i < n; i++) {
        const struct kd_mat *q = &u->mat[i];
        if (q->rows != m[i]->rows || q->cols != m[i]->cols || q->cb != t->spec[i].cb ||
            kd_rate_to16(q->rate) != kd_rate_to16(t->spec[i].rate))
            return kd_fail(err, KD_ECORRUPT, "matrix %d is not of the shape or rate asked for", i);
        if (!finite16(q->suh, q->cols_padded) || !finite16(q->svh, q->rows_padded))
            return kd_fail(err, KD_ECORRUPT, "matrix %d has a scale that is not finite", i);
    }
    return 0;
}

/* |W - Wq| / |W|, in slabs of 128 rows. */
static int relative_error(const struct kd_run *run, const struct kd_mat *w, const struct kd_mat *q,
                          double *out, struct kd_err *err)
{
    float *a = NULL, *b = NULL;
    double all = 0, bad = 0;
    int rc = kd_mem_new(&a, 128 * w->cols, sizeof *a, "weights", err) ||
             kd_mem_new(&b, 128 * w->cols, sizeof *b, "weights", err);
    for (int64_t r = 0; !rc && r < w->rows; r += 128) {
        int64_t end = r + 128 < w->rows ? r + 128 : w->rows;
        struct kd_mat ws, qs;
        rc = kd_mat_slice(w, r, end, 0, w->cols, &ws, err) ||
             kd_mat_slice(q, r, end, 0, w->cols, &qs, err) ||
             kd_mat_dequant(run, &ws, a, w->cols, err) || kd_mat_dequant(run, &qs, b, w->cols, err);
        for (int64_t i = 0; !rc && i < (end - r) * w->cols; i++) {
            double d = (double)a[i] - (double)b[i];
            all += (double)a[i] * (double)a[i];
            bad += d * d;
        }
    }
    kd_mem_free(a);
    kd_mem_free(b);
    *out = all > 0 ? sqrt(bad / all) : 0;
    return rc ? -1 : 0;
}

/* The expert's output for n rows of z. */
static int output(const struct kd_run *run, const struct kd_layer_inputs *in,
                  const struct kd_mat *w1, const struct kd_mat *w3, const struct kd_mat *w2,
                  const float *z, int64_t n, float *y, struct kd_err *err)
{
    float *g = NULL, *u = NULL;
    int64_t inter = w1->rows;
    int rc = kd_mem_new(&g, n * inter, sizeof *g, "activations", err) ||
             kd_mem_new(&u, n * inter, sizeof *u, "activations", err) ||
             kd_mat_mul(run, w1, z, in->latent, n, g, inter, err) ||
             kd_mat_mul(run, w3, z, in->latent, n, u, inter, err);
    if (!rc) {
        run->kern->situ(g, u, in->situ_beta, in->situ_linear, g, n * inter);
        rc = kd_mat_mul(run, w2, g, inter, n, y, in->latent, err);
    }
    kd_mem_free(g);
    kd_mem_free(u);
    return rc ? -1 : 0;
}

static int64_t routed_rows(const struct kd_layer_inputs *in, int64_t expert, int64_t most, float *z)
{
    int64_t n = 0;
    for (int64_t t = 0; t < in->T && n < most; t++)
        for (int64_t k = 0; k < in->topk; k++)
            if (in->ids[t * in->topk + k] == expert) {
                for (int64_t i = 0; i < in->latent; i++)
                    z[n * in->latent + i] = kd_bf16_f32(in->z[t * in->latent + i]);
                n++;
                break;
            }
    return n;
}

static int check_output(const struct kd_run *run, const struct kd_layer_inputs *in,
                        const struct kd_farm_task *t, const struct kd_unit *u, int64_t rows,
                        double bound, struct kd_err *err)
{
    float *z = NULL, *a = NULL, *b = NULL;
    double all = 0, bad = 0;
    int rc = kd_mem_new(&z, rows * in->latent, sizeof *z, "latents", err) ||
             kd_mem_new(&a, rows * in->latent, sizeof *a, "output", err) ||
             kd_mem_new(&b, rows * in->latent, sizeof *b, "output", err);
    int64_t n = rc ? 0 : routed_rows(in, t->expert, rows, z);
    if (!rc && n)
        rc = output(run, in, &t->w1, &t->w3, &t->w2, z, n, a, err) ||
             output(run, in, &u->mat[0], &u->mat[1], &u->mat[2], z, n, b, err);
    for (int64_t i = 0; !rc && i < n * in->latent; i++) {
        double d = (double)a[i] - (double)b[i];
        all += (double)a[i] * (double)a[i];
        bad += d * d;
    }
    kd_mem_free(z);
    kd_mem_free(a);
    kd_mem_free(b);
    if (rc)
        return -1;
    if (!(bad <= bound * all) && n)
        return kd_fail(err, KD_ECORRUPT, "its output differs from the source's by %.3g, over %.3g",
                       all > 0 ? bad / all : bad, bound);
    return 0;
}

int kd_farm_check(const struct kd_run *run, const struct kd_layer_inputs *in,
                  const struct kd_farm_task *t, const struct kd_unit *u, int64_t rows,
                  struct kd_err *err)
{
    const struct kd_mat *m[3];
    double sum = 0;
    int n = kd_farm_task_mats(t, m);
    if (check_shape(t, u, err))
        return -1;
    for (int i = 0; i < n; i++) {
        double is, said = u->figures[i].rel_fro;
        if (relative_error(run, m[i], &u->mat[i], &is, err))
            return -1;
        /* Decoding is CLOSE, not exact: a thousandth covers it. */
        if (!(fabs(is - said) <= 1e-3 * (said + 1e-3)))
            return kd_fail(err, KD_ECORRUPT,
                           "matrix %d decodes to a relative error of %.6g, its figures say %.6g", i,
                           is, said);
        sum += is * is;
    }
    return t->trunk ? 0 : check_output(run, in, t, u, rows, 4 * sum + 0.05, err);
}

enum { CANARY_LATENT = 128, CANARY_INTER = 128, CANARY_T = 96, CANARY_TOPK = 2 };

static float unit_random(uint64_t seed, uint64_t i)
{
    return (float)(2 * kd_rand_unit(seed, i) - 1);
}

/* All arrays of the canary, one allocation. */
struct canary {
    uint16_t z[CANARY_T * CANARY_LATENT];
    int32_t ids[CANARY_T * CANARY_TOPK];
    float w[CANARY_T * CANARY_TOPK], row[CANARY_LATENT];
    uint16_t m[3][CANARY_INTER * CANARY_LATENT];
};

static int canary_inputs(const struct kd_run *run, struct canary *c, struct kd_hess *h,
                         struct kd_err *err)
{
    for (uint64_t i = 0; i < CANARY_T * CANARY_LATENT; i++)
        c->z[i] = kd_f32_bf16(unit_random(1, i));
    for (uint64_t i = 0; i < CANARY_T * CANARY_TOPK; i++) {
        c->ids[i] = (int32_t)(i % 3);
        c->w[i] = 0.25f + 0.5f * (float)kd_rand_unit(2, i);
    }
    for (uint64_t k = 0; k < 3; k++)
        for (uint64_t i = 0; i < CANARY_INTER * CANARY_LATENT; i++)
            c->m[k][i] = kd_f32_bf16(0.1f * unit_random(3 + k, i));
    if (kd_hess_open(h, CANARY_LATENT, err))
        return -1;
    for (int t = 0; t < CANARY_T; t++) {
        for (int i = 0; i < CANARY_LATENT; i++)
            c->row[i] = kd_bf16_f32(c->z[t * CANARY_LATENT + i]);
        if (kd_hess_add(run, h, c->row, CANARY_LATENT, 1, err))
            return -1;
    }
    kd_hess_close(h);
    return 0;
}

int kd_farm_canary(const struct kd_run *run, char sha256[65], struct kd_err *err)
{
    struct canary *c;
    struct kd_hess h = {0};
    struct kd_buf unit;
    if (kd_mem_zero(&c, 1, sizeof *c, "canary", err))
        return -1;
    int rc = canary_inputs(run, c, &h, err);
    struct kd_layer_inputs in = {.T = CANARY_T,
                                 .latent = CANARY_LATENT,
                                 .z = c->z,
                                 .h_in = &h,
                                 .topk = CANARY_TOPK,
                                 .ids = c->ids,
                                 .w = c->w,
                                 .situ_beta = 4,
                                 .situ_linear = 25,
                                 .weight_routed = true,
                                 .blend_rows = 64,
                                 .fallback_rows = 16,
                                 .block_rows = 32};
    struct kd_farm_task t = {.digest = 1};
    static const int64_t shape[3][2] = {{CANARY_INTER, CANARY_LATENT},
                                        {CANARY_INTER, CANARY_LATENT},
                                        {CANARY_LATENT, CANARY_INTER}};
    struct kd_mat *m[3] = {&t.w1, &t.w3, &t.w2};
    for (int i = 0; i < 3; i++) {
        int64_t rows = shape[i][0], cols = shape[i][1];
        *m[i] = (struct kd_mat){
            .type = KD_MAT_BF16, .rows = rows, .cols = cols, .data = c->m[i], .ld = cols};
        t.spec[i] = (struct kd_quant_spec){.rate = kd_rate_from16(36),
                                           .cb = KD_CB_MUL1,
                                           .recipe = kd_recipe_of(KD_RECIPE_DEFAULT),
                                           .seed = 11 + (uint64_t)i,
                                           .input_seed = i == 2 ? 9 : 7,
                                           /* one search for the scale is enough */
                                           .scale_hint = i ? 1.0f : 0.0f};
    }
    kd_buf_init(&unit, 0);
    if (!rc)
        rc = kd_farm_encode(run, &in, &t, &unit, err);
    if (!rc)
        rc = kd_sha256_of(unit.data, unit.size_bytes, sha256, err);
    kd_buf_release(&unit);
    kd_hess_release(&h);
    kd_mem_free(c);
    return rc ? -1 : 0;
}
