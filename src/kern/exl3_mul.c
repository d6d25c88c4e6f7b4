#include "kern/exl3_mul.h"

#include "base/mem.h"
#include "num/half.h"

#include <math.h>

enum {
    BLOCK = 128,     /* one Hadamard block of outputs is one item of work */
    TOKENS_MAX = 256 /* tokens that share one decoding of the codes */
};

struct mul_job {
    const struct kd_run *run;
    const struct kd_mat *w;
    const float *x;
    int64_t ldx, T;
    float *y;
    int64_t ldy;
    float *rotated; /* [T][cols_padded] */
    float *out;     /* [worker][min(T, TOKENS_MAX)][BLOCK] */
    int64_t out_tokens;
    const int8_t *q; /* the int8 form: one rotated token and its step */
    float step;
};

static void rotate_token(void *ctx, int64_t t, int worker)
{
    const struct mul_job *j = ctx;
    const struct kd_mat *w = j->w;
    const float *x = j->x + t * j->ldx;
    float *r = j->rotated + t * w->cols_padded;

    (void)worker;
    for (int64_t i = 0; i < w->cols; i++)
        r[i] = x[i] * kd_f16_f32(w->suh[i]);
    for (int64_t i = w->cols; i < w->cols_padded; i++)
        r[i] = 0.0f;
    j->run->kern->hadamard(r, r, w->cols_padded / BLOCK);
}

static struct kd_exl3_block block_of(const struct kd_mat *w, int64_t item)
{
    return (struct kd_exl3_block){.codes = (const uint8_t *)w->data +
                                           item * (BLOCK / KD_TILE) *
                                               (int64_t)kd_rate_tile_bytes(w->rate),
                                  .k_tiles = w->cols_padded / KD_TILE,
                                  .n_tiles = BLOCK / KD_TILE,
                                  .row_tiles = w->ld,
                                  .rate = w->rate,
                                  .cb = w->cb};
}

static void multiply_block(void *ctx, int64_t item, int worker)
{
    const struct mul_job *j = ctx;
    const struct kd_mat *w = j->w;
    const struct kd_kern *kern = j->run->kern;
    struct kd_exl3_block b = block_of(w, item);
    float *out = j->out + worker * j->out_tokens * BLOCK;
    int64_t row = item * BLOCK, rows = w->rows - row < BLOCK ? w->rows - row : BLOCK;
    float scale[BLOCK];

    for (int64_t i = 0; i < rows; i++)
        scale[i] = kd_f16_f32(w->svh[row + i]);
    for (int64_t t0 = 0; t0 < j->T; t0 += j->out_tokens) {
        int64_t tokens = j->T - t0 < j->out_tokens ? j->T - t0 : j->out_tokens;
        kern->mm_exl3(&b, j->rotated + t0 * w->cols_padded, w->cols_padded, tokens, out, BLOCK);
        kern->hadamard(out, out, tokens);
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t i = 0; i < rows; i++)
                j->y[(t0 + t) * j->ldy + row + i] = out[t * BLOCK + i] * scale[i];
    }
}

int kd_exl3_mul(const struct kd_run *run, const struct kd_mat *w, const float *x, int64_t ldx,
                int64_t T, float *y, int64_t ldy, struct kd_err *err)
{
    struct mul_job j = {.run = run, .w = w, .x = x, .ldx = ldx, .T = T, .y = y, .ldy = ldy};
    int64_t blocks = (w->rows + BLOCK - 1) / BLOCK, floats;
    int rc = -1;

    j.out_tokens = T < TOKENS_MAX ? T : TOKENS_MAX;
    if (kd_mul64(T, w->cols_padded, &floats) ||
        kd_mem_new(&j.rotated, floats, sizeof *j.rotated, "rotated activations", err))
        return kd_wrap(err, "EXL3 product");
    if (kd_mem_new(&j.out, kd_pool_threads(run->pool) * j.out_tokens, BLOCK * sizeof *j.out,
                   "a block of outputs", err))
        goto out;
    kd_pool_run(run->pool, T, rotate_token, &j);
    kd_pool_run(run->pool, blocks, multiply_block, &j);
    rc = 0;
out:
    kd_mem_free(j.out);
    kd_mem_free(j.rotated);
    return rc;
}

static void multiply_block_int8(void *ctx, int64_t item, int worker)
{
    const struct mul_job *j = ctx;
    const struct kd_mat *w = j->w;
    struct kd_exl3_block b = block_of(w, item);
    int64_t row = item * BLOCK, rows = w->rows - row < BLOCK ? w->rows - row : BLOCK;
    float out[BLOCK];

    (void)worker;
    j->run->kern->mv_exl3_int8(&b, j->q, j->step, out);
    j->run->kern->hadamard(out, out, 1);
    for (int64_t i = 0; i < rows; i++)
        j->y[row + i] = out[i] * kd_f16_f32(w->svh[row + i]);
}

/* To the nearest multiple of the largest / 127, halves away from zero. Not finite: the step is NaN.
 */
static float round_token(const float *x, int64_t n, int8_t *q)
{
    float largest = 0.0f, sum = 0.0f;

    for (int64_t i = 0; i < n; i++) {
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
        sum += x[i] * 0.0f;
    }
    float up = largest > 0.0f ? 127.0f / largest : 0.0f;
    for (int64_t i = 0; i < n; i++) {
        float v = x[i] * up;
        v = v < 0.0f ? v - 0.5f : v + 0.5f;
        q[i] = (int8_t)(v > -128.0f && v < 128.0f ? v : 0.0f);
    }
    return largest / 127.0f + sum;
}

int kd_exl3_mul_int8(const struct kd_run *run, const struct kd_mat *w, const float *x, float *y,
                     struct kd_err *err)
{
    struct mul_job j = {.run = run, .w = w, .x = x, .T = 1, .y = y};
    int8_t *q;

    if (w->cb != KD_CB_MUL1)
        return kd_fail(err, KD_ENOTSUP, "int8 activations need codebook mul1");
    if (kd_mem_new(&j.rotated, w->cols_padded, sizeof *j.rotated, "rotated activations", err))
        return kd_wrap(err, "EXL3 product");
    if (kd_mem_new(&q, w->cols_padded, 1, "rounded activations", err)) {
        kd_mem_free(j.rotated);
        return kd_wrap(err, "EXL3 product");
    }
    rotate_token(&j, 0, 0);
    j.step = round_token(j.rotated, w->cols_padded, q);
    j.q = q;
    kd_pool_run(run->pool, (w->rows + BLOCK - 1) / BLOCK, multiply_block_int8, &j);
    kd_mem_free(q);
    kd_mem_free(j.rotated);
    return 0;
}
