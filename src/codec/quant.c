#include "codec/quant.h"

#include "base/mem.h"
#include "base/parts.h"
#include "codec/exl3_work.h"

#include <string.h>

enum { DIMENSION_MAX = 1 << 24 };

static int check(const struct kd_mat *w, const struct kd_hess *h, const struct kd_quant_spec *spec,
                 struct kd_err *err)
{
    float eighths = spec->recipe.row_power * 8.0f;
    if (w->rows < 1 || w->cols < 1 || w->rows > DIMENSION_MAX || w->cols > DIMENSION_MAX)
        return kd_fail(err, KD_EINVAL, "a weight of %lld x %lld cannot be quantized",
                       (long long)w->rows, (long long)w->cols);
    if (spec->rate.base < 1 || kd_rate_to16(spec->rate) > 128)
        return kd_fail(err, KD_EINVAL, "rate of %u/16 bits: give 1 to 8 bits",
                       kd_rate_to16(spec->rate));
    if (eighths < 0.0f || eighths > 8.0f || (float)(int)eighths != eighths)
        return kd_fail(err, KD_EINVAL, "row power %g: give a multiple of 1/8 from 0 to 1",
                       (double)spec->recipe.row_power);
    if (spec->recipe.seam < 1 || spec->recipe.seam > 128)
        return kd_fail(err, KD_EINVAL, "seam of %d positions: give 1 to 128", spec->recipe.seam);
    if (h && h->k_real != w->cols)
        return kd_fail(err, KD_EINVAL, "Hessian of %lld inputs for a weight of %lld",
                       (long long)h->k_real, (long long)w->cols);
    return 0;
}

static void work_release(struct kd_exl3_work *q)
{
    kd_gpu_tensor_close(q->device);
    for (int i = 0; q->search_scratch && i < kd_pool_threads(q->run->pool); i++)
        kd_mem_free(q->search_scratch[i]);
    kd_mem_free(q->search_scratch);
    kd_mem_free(q->w);
    kd_mem_free(q->t);
    kd_mem_free(q->r);
    kd_mem_free(q->l);
    kd_mem_free(q->su);
    kd_mem_free(q->sv);
    kd_mem_free(q->row_ms);
    kd_mem_free(q->weighed);
    kd_mem_free(q->targets);
    kd_mem_free(q->states);
}

static int work_open(struct kd_exl3_work *q, struct kd_err *err)
{
    const char *what = "quantizing a tensor";
    int64_t threads = kd_pool_threads(q->run->pool),
            group = threads * KD_EXL3_GROUP * KD_TILE_WEIGHTS;
    bool here = !q->run->encoder;
    bool square = here && q->h && (q->spec->recipe.feedback || q->spec->recipe.refit);
    if (!here)
        threads = group = 0;
    int64_t count = here ? q->k * q->n : 0;
    if (kd_mem_new(&q->w, count, sizeof *q->w, what, err) ||
        kd_mem_new(&q->t, count, sizeof *q->t, what, err) ||
        kd_mem_new(&q->r, count, sizeof *q->r, what, err) ||
        kd_mem_new(&q->l, square ? q->k * q->k : 0, sizeof *q->l, what, err) ||
        kd_mem_new(&q->su, q->k, sizeof *q->su, what, err) ||
        kd_mem_new(&q->sv, q->n, sizeof *q->sv, what, err) ||
        kd_mem_new(&q->row_ms, q->k, sizeof *q->row_ms, what, err) ||
        kd_mem_new(&q->weighed, here ? 0 : q->n, sizeof *q->weighed, what, err) ||
        kd_mem_new(&q->targets, group, sizeof *q->targets, what, err) ||
        kd_mem_new(&q->states, group, sizeof *q->states, what, err) ||
        kd_mem_zero(&q->search_scratch, threads, sizeof *q->search_scratch, what, err))
        return -1;
    for (int64_t i = 0; i < threads; i++)
        if (kd_mem_new(&q->search_scratch[i], 1, (int64_t)kd_trellis_scratch_bytes(), what, err))
            return -1;
    return 0;
}

static int encode(struct kd_exl3_work *q, struct kd_quant_out *out, struct kd_err *err)
{
    const struct kd_recipe *recipe = &q->spec->recipe;
    double drift = 1.0, scale = (double)q->spec->scale_hint;
    bool feedback = q->h && recipe->feedback && !q->zero;
    if (kd_exl3_scales(q, err))
        return -1;
    if (feedback) {
        if (kd_exl3_make_l(q, &out->cholesky_tries, err))
            return -1;
        if (!out->cholesky_tries) {
            feedback = false;
            out->fallback = true;
        } else {
            drift = kd_exl3_drift(q->spec->rate);
        }
    }
    if (q->zero) {
        scale = 1.0;
    } else if (!(scale > 0.0)) {
        if (kd_exl3_rotate(q, q->t, err) || kd_exl3_scale_search(q, drift, &scale, err))
            return -1;
    }
    out->scale = (float)scale;
    if (kd_exl3_round_scales(q, (double)out->scale, err) || kd_exl3_rotate(q, q->r, err))
        return -1;
    if (!q->device)
        memcpy(q->t, q->r, (size_t)(q->k * q->n) * sizeof *q->t);
    if (kd_exl3_ldlq(q, feedback, &out->mse, err) || kd_exl3_unrotate(q, err))
        return -1;
    bool refit = q->h && recipe->refit && !q->zero;
    if (refit && kd_exl3_refit(q, err))
        return -1;
    return kd_exl3_figures(q, refit, out, err);
}

static int out_open(struct kd_quant_out *out, const struct kd_exl3_work *q, struct kd_err *err)
{
    *out = (struct kd_quant_out){.k = q->k,
                                 .n = q->n,
                                 .rows = q->rows,
                                 .cols = q->cols,
                                 .rate = q->spec->rate,
                                 .cb = q->spec->cb,
                                 .fallback = !q->h};
    out->codes_bytes = q->k / KD_TILE * (q->n / KD_TILE) * kd_rate_tile_bytes(q->spec->rate);
    if (kd_mem_zero(&out->codes, out->codes_bytes, 1, "codes", err) ||
        kd_mem_new(&out->suh, q->k, sizeof *out->suh, "scales", err) ||
        kd_mem_new(&out->svh, q->n, sizeof *out->svh, "scales", err))
        return -1;
    return 0;
}

static int quantize(const struct kd_run *run, const struct kd_mat *w, const struct kd_hess *h,
                    const struct kd_quant_spec *spec, struct kd_quant_out *out, struct kd_err *err)
{
    *out = (struct kd_quant_out){0};
    if (check(w, h, spec, err))
        return -1;
    struct kd_exl3_work q = {.run = run, .spec = spec, .rows = w->rows, .cols = w->cols};
    q.k = (w->cols + KD_HAD - 1) / KD_HAD * KD_HAD;
    q.n = (w->rows + KD_HAD - 1) / KD_HAD * KD_HAD;
    q.h = kd_hess_usable(h, &q.mean_diag) ? h : NULL;
    int rc = out_open(out, &q, err) || work_open(&q, err);
    q.codes = out->codes;
    rc = rc || kd_exl3_load(&q, w, err) || encode(&q, out, err) ? -1 : 0;
    for (int64_t i = 0; i < q.k && !rc; i++)
        out->suh[i] = kd_f32_f16(q.su[i]);
    for (int64_t i = 0; i < q.n && !rc; i++)
        out->svh[i] = kd_f32_f16(q.sv[i]);
    work_release(&q);
    if (rc)
        kd_quant_release(out);
    return rc;
}

int kd_quant_tensor(const struct kd_run *run, const struct kd_mat *w, const struct kd_hess *h,
                    const struct kd_quant_spec *spec, struct kd_quant_out *out, struct kd_err *err)
{
    int was = kd_part_enter(KD_PART_SEARCH), rc = quantize(run, w, h, spec, out, err);
    kd_part_leave(was);
    return rc;
}

void kd_quant_release(struct kd_quant_out *q)
{
    kd_mem_free(q->codes);
    kd_mem_free(q->suh);
    kd_mem_free(q->svh);
    *q = (struct kd_quant_out){0};
}

struct kd_mat kd_quant_mat(const struct kd_quant_out *q)
{
    return (struct kd_mat){.type = KD_MAT_EXL3,
                           .rows = q->rows,
                           .cols = q->cols,
                           .data = q->codes,
                           .ld = q->n / KD_TILE,
                           .rows_padded = q->n,
                           .cols_padded = q->k,
                           .suh = q->suh,
                           .svh = q->svh,
                           .rate = q->rate,
                           .cb = q->cb};
}
