/* bench decode: products with stored matrices, their bytes streamed from memory, beside what the
 * memory gives a plain reader in the same run. */
#include "base/mem.h"
#include "base/rand.h"
#include "cmd/bench.h"
#include "cmd/cmd.h"

#include <stdio.h>
#include <string.h>

enum { ROWS = 3072, COLS = 3584, T_MAX = 16 };
static const int64_t pool_bytes = 256 << 20; /* well over the caches of a desktop part */

struct decode {
    const struct kd_bench *b;
    const struct kd_run *run;
    uint8_t *pool;  /* pool_bytes of random codes */
    uint8_t *scale; /* MXFP4 */
    uint16_t *sign; /* EXL3: ones of either sign */
    float *x, *y;
    struct kd_mat m;
    int64_t stride; /* bytes from one matrix to the next */
    int64_t next, T;
};

static int multiply(void *ctx, int64_t n, struct kd_err *err)
{
    struct decode *d = ctx;
    if (kd_cmd_stop)
        return kd_fail(err, KD_ECANCEL, "stopped");
    for (int64_t i = 0; i < n; i++) {
        struct kd_mat m = d->m;
        if ((d->next + 1) * d->stride > pool_bytes)
            d->next = 0;
        m.data = d->pool + d->next++ * d->stride;
        if (kd_mat_mul(d->run, &m, d->x, COLS, d->T, d->y, ROWS, err))
            return -1;
    }
    return 0;
}

static void fill(struct decode *d)
{
    uint64_t v;
    for (int64_t i = 0; i < pool_bytes / 8; i++) {
        v = kd_rand_u64(11, (uint64_t)i);
        memcpy(d->pool + 8 * i, &v, 8);
    }
    memset(d->scale, 127, (size_t)ROWS * COLS / 32);
    for (int64_t i = 0; i < COLS; i++)
        d->sign[i] = kd_rand_u64(12, (uint64_t)i) & 1 ? 0x3c00 : 0xbc00;
    for (int64_t i = 0; i < (int64_t)COLS * T_MAX; i++)
        d->x[i] = (float)(kd_rand_unit(13, (uint64_t)i) * 2 - 1);
}

/* BF16 codes must be ordinary numbers: exponents of 0.5 to 1. */
static void fill_bf16(struct decode *d)
{
    uint16_t v;
    for (int64_t i = 0; i < pool_bytes / 2; i++) {
        memcpy(&v, d->pool + 2 * i, 2);
        v = (uint16_t)((v & 0x807fu) | 0x3f00u);
        memcpy(d->pool + 2 * i, &v, 2);
    }
}

static int one(struct decode *d, const char *name, double rate, struct kd_err *err)
{
    static const int tokens[] = {1, 4, 16};
    double weights = (double)ROWS * COLS, bytes = (double)kd_mat_bytes(&d->m);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        struct kd_series core, all;
        d->T = tokens[i];
        d->run = d->b->run;
        if (kd_bench_series(d->b, multiply, d, weights * 1e-9, &all, err))
            return -1;
        d->run = &d->b->one;
        if (kd_bench_series(d->b, multiply, d, weights * 1e-9, &core, err))
            return -1;
        kd_jw_open(d->b->w, NULL, '{');
        kd_jw_str(d->b->w, "type", name);
        if (rate > 0)
            kd_jw_num(d->b->w, "rate", rate);
        kd_jw_int(d->b->w, "rows", ROWS);
        kd_jw_int(d->b->w, "cols", COLS);
        kd_jw_int(d->b->w, "tokens", tokens[i]);
        kd_bench_put(d->b, "gweights_s_core", &core);
        kd_bench_put(d->b, "gweights_s", &all);
        kd_jw_num(d->b->w, "gb_s_core", kd_series_median(&core) * bytes / weights);
        kd_jw_num(d->b->w, "gb_s", kd_series_median(&all) * bytes / weights);
        kd_jw_close(d->b->w, '}');
        if (d->b->screen)
            printf(
                "%-5s %6.4g  T=%-2d  %7.2f Gweights/s a core (%.2f to %.2f)  %7.2f in all  %6.2f "
                "GB/s a core  %6.2f in all\n",
                name, rate, tokens[i], kd_series_median(&core), core.v[0], core.v[core.count - 1],
                kd_series_median(&all), kd_series_median(&core) * bytes / weights,
                kd_series_median(&all) * bytes / weights);
    }
    return 0;
}

static int exl3(struct decode *d, unsigned sixteenths, struct kd_err *err)
{
    struct kd_rate rate = kd_rate_from16(sixteenths);
    d->m = (struct kd_mat){.type = KD_MAT_EXL3,
                           .rows = ROWS,
                           .cols = COLS,
                           .ld = ROWS / 16,
                           .rows_padded = ROWS,
                           .cols_padded = COLS,
                           .suh = d->sign,
                           .svh = d->sign,
                           .rate = rate,
                           .cb = KD_CB_MUL1};
    d->stride = (int64_t)(ROWS / 16) * (COLS / 16) * kd_rate_tile_bytes(rate);
    return one(d, "EXL3", (double)sixteenths / 16, err);
}

/* A plain reader: every 64-bit word once, in pieces for the pool. */
struct reader {
    const uint8_t *data;
    struct kd_pool *pool;
    uint64_t sum[1024];
};
enum { PIECE = 1 << 20 };

static void read_piece(void *ctx, int64_t i, int worker)
{
    struct reader *r = ctx;
    const uint8_t *at = r->data + i % (pool_bytes / PIECE) * PIECE;
    uint64_t s[4] = {0}, v[4];
    for (int64_t j = 0; j < PIECE; j += 32) {
        memcpy(v, at + j, 32);
        for (int l = 0; l < 4; l++)
            s[l] ^= v[l];
    }
    r->sum[worker & 1023] += s[0] ^ s[1] ^ s[2] ^ s[3];
}

static int read_all(void *ctx, int64_t n, struct kd_err *err)
{
    struct reader *r = ctx;
    (void)err;
    for (int64_t i = 0; i < n; i++)
        kd_pool_run(r->pool, pool_bytes / PIECE, read_piece, r);
    return 0;
}

static int memory(struct decode *d, struct kd_err *err)
{
    const struct kd_bench *b = d->b;
    struct reader *r;
    struct kd_series core, all;
    if (kd_mem_zero(&r, 1, sizeof *r, "reader", err))
        return -1;
    r->data = d->pool;
    r->pool = b->run->pool;
    int rc = kd_bench_series(b, read_all, r, (double)pool_bytes * 1e-9, &all, err);
    r->pool = NULL;
    if (!rc)
        rc = kd_bench_series(b, read_all, r, (double)pool_bytes * 1e-9, &core, err);
    volatile uint64_t keep = r->sum[0];
    (void)keep;
    kd_mem_free(r);
    if (rc)
        return -1;
    kd_jw_open(b->w, NULL, '{');
    kd_jw_str(b->w, "type", "memory read");
    kd_bench_put(b, "gb_s_core", &core);
    kd_bench_put(b, "gb_s", &all);
    kd_jw_close(b->w, '}');
    if (b->screen)
        printf("memory read: %.2f GB/s a core, %.2f in all\n", kd_series_median(&core),
               kd_series_median(&all));
    return 0;
}

int kd_bench_decode(const struct kd_bench *b, struct kd_err *err)
{
    static const unsigned standard[] = {32, 37, 48, 64, 0};
    unsigned rates[KD_BENCH_RATES + 1];
    struct decode d = {.b = b};
    int rc = kd_bench_rates(b, standard, rates, err) ||
             kd_mem_new(&d.pool, pool_bytes, 1, "weights", err) ||
             kd_mem_new(&d.scale, (int64_t)ROWS * COLS / 32, 1, "scales", err) ||
             kd_mem_new(&d.sign, COLS, sizeof *d.sign, "signs", err) ||
             kd_mem_new(&d.x, (int64_t)COLS * T_MAX, sizeof *d.x, "inputs", err) ||
             kd_mem_new(&d.y, (int64_t)ROWS * T_MAX, sizeof *d.y, "outputs", err);
    if (!rc) {
        fill(&d);
        rc = memory(&d, err);
    }
    for (int i = 0; !rc && rates[i]; i++)
        rc = exl3(&d, rates[i], err);
    if (!rc) {
        d.m = (struct kd_mat){.type = KD_MAT_MXFP4,
                              .rows = ROWS,
                              .cols = COLS,
                              .ld = COLS / 2,
                              .scale = d.scale,
                              .ld_scale = COLS / 32};
        d.stride = (int64_t)ROWS * COLS / 2;
        d.next = 0;
        rc = one(&d, "MXFP4", 4.25, err);
    }
    if (!rc) {
        fill_bf16(&d);
        d.m = (struct kd_mat){.type = KD_MAT_BF16, .rows = ROWS, .cols = COLS, .ld = COLS};
        d.stride = (int64_t)ROWS * COLS * 2;
        d.next = 0;
        rc = one(&d, "BF16", 16, err);
    }
    kd_mem_free(d.pool);
    kd_mem_free(d.scale);
    kd_mem_free(d.sign);
    kd_mem_free(d.x);
    kd_mem_free(d.y);
    return rc ? -1 : 0;
}
