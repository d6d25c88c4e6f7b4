#include "kern/exl3_mul.h"

#include "base/mem.h"

#include <math.h>

enum {
    BLOCK = 128,     /* one Hadamard block of outputs is one item of work */
    FORESEEN = 256,  /* scales after which the hardware sees where reading goes */
    TOKENS_MAX = 256 /* tokens that share one decoding of the codes */
};

static void ask_for(const uint16_t *scales, int64_t n)
{
    for (int64_t i = 0; i < n && i < FORESEEN; i += 64 / (int64_t)sizeof *scales)
        __builtin_prefetch(scales + i);
}

void kd_exl3_foresee(const struct kd_mat *w)
{
    ask_for(w->suh, w->cols);
}

/* The sum of a token's rotated inputs is sqrt(128) times that of each block's first one before the
 * rotation; a value is 887/2^17 times its byte sum less 510, less 238/2^17. */
static float sum_of(const float *scaled, int64_t n)
{
    float sum = 0.0f;

    for (int64_t i = 0; i < n; i += BLOCK)
        sum += scaled[i];
    return sum * (11.3137085f * (-238.0f / 131072.0f));
}

void kd_exl3_turn(const struct kd_kern *kern, const struct kd_mat *w, const float *x, int64_t ldx,
                  int64_t T, float *rotated, float *sums)
{
    for (int64_t t = 0; t < T; t++, x += ldx, rotated += w->cols_padded) {
        kern->scale_f16(x, w->suh, w->cols, rotated);
        for (int64_t i = w->cols; i < w->cols_padded; i++)
            rotated[i] = 0.0f;
        if (sums)
            sums[t] = sum_of(rotated, w->cols_padded);
        kern->hadamard(rotated, rotated, w->cols_padded / BLOCK);
    }
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

int64_t kd_exl3_out_floats(int64_t T)
{
    return (T < TOKENS_MAX ? T : TOKENS_MAX) * BLOCK;
}

void kd_exl3_block_mul(const struct kd_kern *kern, const struct kd_mat *w, int64_t item,
                       const float *rotated, const float *sums, int64_t T, float *out, float *y,
                       int64_t ldy)
{
    struct kd_exl3_block b = block_of(w, item);
    int64_t row = item * BLOCK, rows = w->rows - row < BLOCK ? w->rows - row : BLOCK;

    b.sums = sums && w->cb == KD_CB_MUL1;
    ask_for(w->svh + row, rows);
    for (int64_t t0 = 0; t0 < T; t0 += TOKENS_MAX) {
        int64_t tokens = T - t0 < TOKENS_MAX ? T - t0 : TOKENS_MAX;
        kern->mm_exl3(&b, rotated + t0 * w->cols_padded, w->cols_padded, tokens, out, BLOCK);
        for (int64_t i = 0; b.sums && i < tokens * BLOCK; i++)
            out[i] = out[i] * (887.0f / 131072.0f) + sums[t0 + i / BLOCK];
        kern->hadamard(out, out, tokens);
        for (int64_t t = 0; t < tokens; t++)
            kern->scale_f16(out + t * BLOCK, w->svh + row, rows, y + (t0 + t) * ldy + row);
    }
}

struct int8_job {
    const struct kd_run *run;
    const struct kd_mat *w;
    const int8_t *q; /* one rotated token and its step */
    float step;
    float *y;
};

static void multiply_block_int8(void *ctx, int64_t item, int worker)
{
    const struct int8_job *j = ctx;
    const struct kd_mat *w = j->w;
    struct kd_exl3_block b = block_of(w, item);
    int64_t row = item * BLOCK, rows = w->rows - row < BLOCK ? w->rows - row : BLOCK;
    float out[BLOCK];

    (void)worker;
    j->run->kern->mv_exl3_int8(&b, j->q, j->step, out);
    j->run->kern->hadamard(out, out, 1);
    j->run->kern->scale_f16(out, w->svh + row, rows, j->y + row);
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
    struct int8_job j = {.run = run, .w = w, .y = y};
    float *rotated;
    int8_t *q;

    if (w->cb != KD_CB_MUL1)
        return kd_fail(err, KD_ENOTSUP, "int8 activations need codebook mul1");
    if (kd_mem_new(&rotated, w->cols_padded, sizeof *rotated, "rotated activations", err))
        return kd_wrap(err, "EXL3 product");
    if (kd_mem_new(&q, w->cols_padded, 1, "rounded activations", err)) {
        kd_mem_free(rotated);
        return kd_wrap(err, "EXL3 product");
    }
    kd_exl3_turn(run->kern, w, x, w->cols, 1, rotated, NULL);
    j.step = round_token(rotated, w->cols_padded, q);
    j.q = q;
    kd_pool_run(run->pool, (w->rows + BLOCK - 1) / BLOCK, multiply_block_int8, &j);
    kd_mem_free(q);
    kd_mem_free(rotated);
    return 0;
}
