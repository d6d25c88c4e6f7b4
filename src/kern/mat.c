#include "kern/mat.h"

#include "base/assert.h"
#include "base/mem.h"
#include "gpu/calib.h"
#include "kern/exl3_mul.h"
#include "kern/mat_source.h"
#include "num/mxfp4_block.h"

#include <stdatomic.h>
#include <string.h>

/* Cuts are a function of the shape alone. A piece is about 2^18 multiply-adds (some 10 us), its
 * rows a multiple of 16, the kernels' block; 96 tokens keep their activations near the core. */
enum { TOKENS_PER_ITEM = 96, MACS_PER_ITEM = 1 << 18, ROW_BLOCK = 16, H = 128 };
/* Under so many tokens a matrix is not worth its way to a device. */
enum { DEVICE_TOKENS = 256 };

/* EXL3: inputs rotated by one item (about a microsecond), and at one time (16 MiB). */
enum { TURN_FLOATS = 4096, ROTATED_MAX = 1 << 22 };

static int64_t rows_per_item(const struct kd_mat_job *j)
{
    int64_t t = j->T < TOKENS_PER_ITEM ? j->T : TOKENS_PER_ITEM;
    int64_t macs = j->w->cols * t;
    int64_t rows = macs > 0 ? MACS_PER_ITEM / macs / ROW_BLOCK * ROW_BLOCK : j->w->rows;
    return rows < ROW_BLOCK ? ROW_BLOCK : rows;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Rows [r0, r0 + R) of one job for tokens [t0, t0 + T). */
static void dense_part(const struct kd_kern *k, const struct kd_mat_job *j, int64_t r0, int64_t R,
                       int64_t t0, int64_t T)
{
    const struct kd_mat *w = j->w;
    const float *x = j->x + t0 * j->ldx;
    float *y = j->y + t0 * j->ldy + r0;
    switch (w->type) {
    case KD_MAT_F32:
        k->mm_f32((const float *)w->data + r0 * w->ld, w->ld, R, w->cols, x, j->ldx, T, y, j->ldy);
        return;
    case KD_MAT_BF16:
        k->mm_bf16((const uint16_t *)w->data + r0 * w->ld, w->ld, R, w->cols, x, j->ldx, T, y,
                   j->ldy);
        return;
    case KD_MAT_MXFP4:
        k->mm_mxfp4((const uint8_t *)w->data + r0 * w->ld, w->ld, w->scale + r0 * w->ld_scale,
                    w->ld_scale, R, w->cols, x, j->ldx, T, y, j->ldy);
        return;
    case KD_MAT_BLOCK:
        k->mm_block(w->format, (const uint8_t *)w->data + r0 * w->ld, w->ld, R, w->cols, x, j->ldx,
                    T, y, j->ldy);
        return;
    case KD_MAT_NONE:
    case KD_MAT_EXL3:
        break;
    }
    KD_ASSERT(false);
}

/* Products side by side. Those with EXL3 take two runs over the pool: inputs are rotated, then
 * blocks of 128 outputs made; the others are items of the second run. */
struct many {
    const struct kd_run *run;
    const struct kd_mat_job *jobs;
    int64_t count;
    int64_t *turn, *first; /* [count + 1] the first item of each job in the two runs */
    int64_t *at;           /* [count + 1] floats of `rotated` before each job */
    float *rotated;        /* [T][cols_padded] of each EXL3 job, and [T] sums for fast products */
    float *out;            /* [worker][out_floats] blocks of outputs on their way back */
    int64_t out_floats;
};

/* The job with item i. */
static int64_t job_of(const int64_t *first, int64_t count, int64_t i)
{
    int64_t lo = 0, hi = count - 1;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo + 1) / 2;
        if (first[mid] <= i)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static int64_t tokens_per_turn(const struct kd_mat *w)
{
    return w->cols_padded < TURN_FLOATS ? TURN_FLOATS / w->cols_padded : 1;
}

/* Sums of the inputs of job n, where products are fast. */
static float *sums_of(const struct many *m, int64_t n)
{
    const struct kd_mat_job *j = &m->jobs[n];
    return m->run->fast ? m->rotated + m->at[n] + j->T * j->w->cols_padded : NULL;
}

static void turn_item(void *ctx, int64_t i, int worker)
{
    const struct many *m = ctx;
    int64_t n = job_of(m->turn, m->count, i);
    const struct kd_mat_job *j = &m->jobs[n];
    int64_t step = tokens_per_turn(j->w), t0 = (i - m->turn[n]) * step;
    int64_t T = j->T - t0 < step ? j->T - t0 : step;
    (void)worker;
    if (n + 2 < m->count && m->jobs[n + 2].w->type == KD_MAT_EXL3)
        kd_exl3_foresee(m->jobs[n + 2].w);
    float *sums = sums_of(m, n);
    kd_exl3_turn(m->run->kern, j->w, j->x + t0 * j->ldx, j->ldx, T,
                 m->rotated + m->at[n] + t0 * j->w->cols_padded, sums ? sums + t0 : NULL);
}

static void many_item(void *ctx, int64_t i, int worker)
{
    const struct many *m = ctx;
    int64_t n = job_of(m->first, m->count, i), part = i - m->first[n];
    const struct kd_mat_job *j = &m->jobs[n];
    if (j->w->type == KD_MAT_EXL3) {
        kd_exl3_block_mul(m->run->kern, j->w, part, m->rotated + m->at[n], sums_of(m, n), j->T,
                          m->out + worker * m->out_floats, j->y, j->ldy);
        return;
    }
    /* Token blocks of one row block are neighbours: the second finds the weights in the cache. */
    int64_t rows = rows_per_item(j), blocks = ceil_div(j->T, TOKENS_PER_ITEM);
    int64_t r0 = part / blocks * rows, t0 = part % blocks * TOKENS_PER_ITEM;
    int64_t R = j->w->rows - r0 < rows ? j->w->rows - r0 : rows;
    int64_t T = j->T - t0 < TOKENS_PER_ITEM ? j->T - t0 : TOKENS_PER_ITEM;
    dense_part(m->run->kern, j, r0, R, t0, T);
}

/* Items and places of all jobs, as far as the rotated inputs stay within ROTATED_MAX; a job by
 * itself may take more. How many jobs that are. */
static int64_t lay_out(struct many *m, int64_t jobs, struct kd_err *err)
{
    m->turn[0] = m->first[0] = m->at[0] = m->out_floats = 0;
    for (int64_t n = 0; n < jobs; n++) {
        const struct kd_mat_job *j = &m->jobs[n];
        const struct kd_mat *w = j->w;
        int64_t turns = 0, items = 0, floats = 0, out = 0;
        if (j->T <= 0 || w->rows <= 0) {
            /* nothing to do */
        } else if (w->type == KD_MAT_EXL3) {
            if (kd_mul64(j->T, w->cols_padded + (m->run->fast ? 1 : 0), &floats))
                return kd_fail(err, KD_ENOMEM, "an EXL3 product of %lld tokens", (long long)j->T);
            turns = ceil_div(j->T, tokens_per_turn(w));
            items = ceil_div(w->rows, H);
            out = kd_exl3_out_floats(j->T);
        } else {
            items = ceil_div(w->rows, rows_per_item(j)) * ceil_div(j->T, TOKENS_PER_ITEM);
        }
        if (n && floats > ROTATED_MAX - m->at[n])
            return n;
        m->turn[n + 1] = m->turn[n] + turns;
        m->first[n + 1] = m->first[n] + items;
        m->at[n + 1] = m->at[n] + floats;
        m->out_floats = out > m->out_floats ? out : m->out_floats;
    }
    return jobs;
}

/* Products on the devices of a run. */
struct there {
    const struct kd_run *run;
    const struct kd_mat_job *jobs;
    bool *done;
    atomic_int failed;
    struct kd_err err; /* of the one that set `failed` */
};

static void there_item(void *ctx, int64_t i, int worker)
{
    struct there *d = ctx;
    const struct kd_mat_job *j = &d->jobs[i];
    const struct kd_gpu_source w = kd_mat_source(j->w);
    struct kd_err err = {0};
    (void)worker;
    d->done[i] = false;
    if (j->T >= DEVICE_TOKENS &&
        kd_gpu_calib_mul(d->run->encoder, &w, j->x, j->ldx, j->T, j->y, j->ldy, &d->done[i],
                         &err) &&
        !atomic_exchange(&d->failed, 1))
        d->err = err;
}

/* As many at a time as there are threads to wait for them; what has few tokens, or finds no room,
 * is done here. */
static int there(const struct kd_run *run, const struct kd_mat_job *jobs, int64_t count,
                 struct kd_err *err)
{
    enum { FEW = 64 };
    bool few[FEW];
    struct there d = {.run = run, .jobs = jobs, .done = few};
    struct kd_run here = *run;
    int rc = 0;
    if (count > FEW && kd_mem_new(&d.done, count, sizeof *d.done, "list of products", err))
        return -1;
    here.encoder = NULL;
    if (count == 1)
        there_item(&d, 0, 0); /* not inside a run: its copies may take the threads of one */
    else
        kd_pool_run(run->pool, count, there_item, &d);
    if (atomic_load(&d.failed))
        rc = kd_fail(err, d.err.code, "%s", d.err.msg);
    for (int64_t i = 0, n; !rc && i < count; i += n ? n : 1) {
        for (n = 0; i + n < count && !d.done[i + n]; n++)
            ;
        rc = n ? kd_mat_mul_many(&here, jobs + i, n, err) : 0;
    }
    if (d.done != few)
        kd_mem_free(d.done);
    return rc;
}

int kd_mat_mul_many(const struct kd_run *run, const struct kd_mat_job *jobs, int64_t count,
                    struct kd_err *err)
{
    enum { FEW = 64 };
    int64_t few[3 * (FEW + 1)], *table = few;
    if (run->encoder)
        return there(run, jobs, count, err);
    if (count > FEW && kd_mem_new(&table, 3 * (count + 1), sizeof *table, "list of products", err))
        return -1;
    int rc = 0;
    for (int64_t done = 0; !rc && done < count;) {
        struct many m = {.run = run,
                         .jobs = jobs + done,
                         .turn = table,
                         .first = table + count + 1,
                         .at = table + 2 * (count + 1)};
        m.count = lay_out(&m, count - done, err);
        done += m.count;
        int64_t floats = m.count > 0 ? m.at[m.count] : 0;
        if (m.count < 0 ||
            (floats && kd_mem_new(&m.rotated, floats + kd_pool_threads(run->pool) * m.out_floats,
                                  sizeof *m.rotated, "rotated activations", err))) {
            rc = -1;
            break;
        }
        m.out = m.rotated ? m.rotated + floats : NULL;
        /* A few are turned sooner than another thread is told. */
        kd_pool_run(floats > 2 * TURN_FLOATS ? run->pool : NULL, m.turn[m.count], turn_item, &m);
        kd_pool_run(run->pool, m.first[m.count], many_item, &m);
        kd_mem_free(m.rotated);
    }
    if (table != few)
        kd_mem_free(table);
    return rc;
}

int kd_mat_mul(const struct kd_run *run, const struct kd_mat *w, const float *x, int64_t ldx,
               int64_t T, float *y, int64_t ldy, struct kd_err *err)
{
    struct kd_mat_job job = {w, x, ldx, T, y, ldy};
    return kd_mat_mul_many(run, &job, 1, err);
}

static void dense_row(const struct kd_mat *w, int64_t row, float *out)
{
    KD_ASSERT(w->type != KD_MAT_NONE && w->type != KD_MAT_EXL3);
    if (w->type == KD_MAT_BLOCK) {
        w->format->decode((const uint8_t *)w->data + row * w->ld, w->cols / w->format->elems, out);
    } else if (w->type == KD_MAT_F32) {
        memcpy(out, (const float *)w->data + row * w->ld, (size_t)w->cols * sizeof *out);
    } else if (w->type == KD_MAT_BF16) {
        const uint16_t *p = (const uint16_t *)w->data + row * w->ld;
        for (int64_t c = 0; c < w->cols; c++)
            out[c] = kd_bf16_f32(p[c]);
    } else {
        const uint8_t *p = (const uint8_t *)w->data + row * w->ld,
                      *s = w->scale + row * w->ld_scale;
        for (int64_t c = 0; c < w->cols; c++)
            out[c] = kd_mxfp4_f32(p, s, c);
    }
}

/* Rows [r0, r0 + R) of EXL3, all inside the 128-block that starts at n0, from one 128 x 128 block
 * of codes at a time: decode, rotate along n, transpose, rotate along k. block: 2 * 128 * 128. */
static void exl3_rows(const struct kd_kern *kern, const struct kd_mat *w, int64_t n0, int64_t r0,
                      int64_t R, float *block, float *out, int64_t ldo)
{
    float *turned = block + H * H;
    int64_t tile_bytes = kd_rate_tile_bytes(w->rate);
    for (int64_t k0 = 0; k0 < w->cols; k0 += H) {
        const uint8_t *codes =
            (const uint8_t *)w->data + (k0 / KD_TILE * w->ld + n0 / KD_TILE) * tile_bytes;
        for (int64_t t = 0; t < H / KD_TILE * (H / KD_TILE); t++) {
            int64_t tk = t / (H / KD_TILE), tn = t % (H / KD_TILE);
            float tile[KD_TILE_WEIGHTS];
            kern->trellis_decode(codes + (tk * w->ld + tn) * tile_bytes, w->rate, w->cb, tile);
            for (int64_t i = 0; i < KD_TILE; i++)
                memcpy(block + (tk * KD_TILE + i) * H + tn * KD_TILE, tile + i * KD_TILE,
                       KD_TILE * sizeof *tile);
        }
        kern->hadamard(block, block, H);
        int64_t width = w->cols - k0 < H ? w->cols - k0 : H;
        for (int64_t r = r0; r < r0 + R; r++) {
            float *line = turned + (r - r0) * H, sv = kd_f16_f32(w->svh[r]);
            for (int64_t k = 0; k < H; k++)
                line[k] = block[k * H + (r - n0)] * sv;
            kern->hadamard(line, line, 1);
            for (int64_t k = 0; k < width; k++)
                out[(r - r0) * ldo + k0 + k] = line[k] * kd_f16_f32(w->suh[k0 + k]);
        }
    }
}

int kd_mat_row(const struct kd_run *run, const struct kd_mat *w, int64_t row, float *out,
               struct kd_err *err)
{
    KD_ASSERT(row >= 0 && row < w->rows);
    if (w->type != KD_MAT_EXL3) {
        dense_row(w, row, out);
        return 0;
    }
    float *block;
    if (kd_mem_new(&block, 2 * H * H, sizeof *block, "decoded weights", err))
        return -1;
    exl3_rows(run->kern, w, row / H * H, row, 1, block, out, w->cols);
    kd_mem_free(block);
    return 0;
}

struct dequant {
    const struct kd_run *run;
    const struct kd_mat *w;
    float *out, *blocks; /* blocks: 2 * 128 * 128 for each worker, EXL3 only */
    int64_t ldo;
};

static void dequant_rows(void *ctx, int64_t i, int worker)
{
    struct dequant *d = ctx;
    int64_t r0 = i * H, R = d->w->rows - r0 < H ? d->w->rows - r0 : H;
    if (d->w->type == KD_MAT_EXL3) {
        exl3_rows(d->run->kern, d->w, r0, r0, R, d->blocks + worker * (int64_t)(2 * H * H),
                  d->out + r0 * d->ldo, d->ldo);
        return;
    }
    for (int64_t r = r0; r < r0 + R; r++)
        dense_row(d->w, r, d->out + r * d->ldo);
}

int kd_mat_dequant(const struct kd_run *run, const struct kd_mat *w, float *out, int64_t ldo,
                   struct kd_err *err)
{
    struct dequant d = {.run = run, .w = w, .out = out, .ldo = ldo};
    if (w->type == KD_MAT_EXL3 &&
        kd_mem_new(&d.blocks, kd_pool_threads(run->pool), 2 * H * H * (int64_t)sizeof *d.blocks,
                   "decoded weights", err))
        return -1;
    kd_pool_run(run->pool, ceil_div(w->rows, H), dequant_rows, &d);
    kd_mem_free(d.blocks);
    return 0;
}

int kd_mat_slice(const struct kd_mat *w, int64_t r0, int64_t r1, int64_t c0, int64_t c1,
                 struct kd_mat *out, struct kd_err *err)
{
    if (r0 < 0 || r0 > r1 || r1 > w->rows || c0 < 0 || c0 > c1 || c1 > w->cols)
        return kd_fail(err, KD_EINVAL,
                       "rows %lld to %lld, columns %lld to %lld of a %lld x %lld matrix",
                       (long long)r0, (long long)r1, (long long)c0, (long long)c1,
                       (long long)w->rows, (long long)w->cols);
    int64_t row_step = w->type == KD_MAT_EXL3 ? H : 1;
    int64_t col_step = w->type == KD_MAT_EXL3    ? H
                       : w->type == KD_MAT_MXFP4 ? KD_MXFP4_GROUP
                       : w->type == KD_MAT_BLOCK ? w->format->elems
                                                 : 1;
    if (r0 % row_step || (r1 % row_step && r1 != w->rows) || c0 % col_step ||
        (c1 % col_step && c1 != w->cols))
        return kd_fail(err, KD_EINVAL,
                       "a cut at rows %lld to %lld, columns %lld to %lld is not on "
                       "blocks of %lld x %lld",
                       (long long)r0, (long long)r1, (long long)c0, (long long)c1,
                       (long long)row_step, (long long)col_step);
    *out = *w;
    out->rows = r1 - r0;
    out->cols = c1 - c0;
    const uint8_t *data = w->data;
    switch (w->type) {
    case KD_MAT_F32:
        out->data = data + (r0 * w->ld + c0) * (int64_t)sizeof(float);
        break;
    case KD_MAT_BF16:
        out->data = data + (r0 * w->ld + c0) * (int64_t)sizeof(uint16_t);
        break;
    case KD_MAT_MXFP4:
        out->data = data + r0 * w->ld + c0 / 2;
        out->scale = w->scale + r0 * w->ld_scale + c0 / KD_MXFP4_GROUP;
        break;
    case KD_MAT_EXL3:
        out->data = data + (c0 / KD_TILE * w->ld + r0 / KD_TILE) * kd_rate_tile_bytes(w->rate);
        out->suh = w->suh + c0;
        out->svh = w->svh + r0;
        out->rows_padded = (r1 == w->rows ? w->rows_padded : r1) - r0;
        out->cols_padded = (c1 == w->cols ? w->cols_padded : c1) - c0;
        break;
    case KD_MAT_BLOCK:
        out->data = data + r0 * w->ld + c0 / w->format->elems * w->format->bytes;
        break;
    case KD_MAT_NONE:
        break;
    }
    return 0;
}

int64_t kd_mat_bytes(const struct kd_mat *w)
{
    switch (w->type) {
    case KD_MAT_F32:
        return w->rows * w->cols * (int64_t)sizeof(float);
    case KD_MAT_BF16:
        return w->rows * w->cols * (int64_t)sizeof(uint16_t);
    case KD_MAT_MXFP4:
        return w->rows * (w->cols / 2 + w->cols / KD_MXFP4_GROUP);
    case KD_MAT_EXL3:
        return w->rows_padded / KD_TILE * (w->cols_padded / KD_TILE) * kd_rate_tile_bytes(w->rate) +
               (w->rows_padded + w->cols_padded) * (int64_t)sizeof(uint16_t);
    case KD_MAT_BLOCK:
        return w->rows * (w->cols / w->format->elems * w->format->bytes);
    case KD_MAT_NONE:
        break;
    }
    return 0;
}
