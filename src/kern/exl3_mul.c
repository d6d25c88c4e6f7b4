#include "kern/exl3_mul.h"

#include "base/mem.h"
#include "num/half.h"

enum {
    BLOCK = 128,    /* one Hadamard block of outputs is one item of work */
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

static void multiply_block(void *ctx, int64_t item, int worker)
{
    const struct mul_job *j = ctx;
    const struct kd_mat *w = j->w;
    const struct kd_kern *kern = j->run->kern;
    struct kd_exl3_block b = {.k_tiles = w->cols_padded / KD_TILE,
                              .n_tiles = BLOCK / KD_TILE,
                              .row_tiles = w->ld,
                              .rate = w->rate,
                              .cb = w->cb};
    float *out = j->out + worker * j->out_tokens * BLOCK;
    int64_t row = item * BLOCK, rows = w->rows - row < BLOCK ? w->rows - row : BLOCK;
    float scale[BLOCK];

    b.codes = (const uint8_t *)w->data + item * (BLOCK / KD_TILE) * (int64_t)kd_rate_tile_bytes(w->rate);
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

int kd_exl3_mul(const struct kd_run *run, const struct kd_mat *w, const float *x, int64_t ldx, int64_t T,
                float *y, int64_t ldy, struct kd_err *err)
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
