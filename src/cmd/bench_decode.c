/* bench decode: products with stored matrices, their bytes streamed from memory, beside what the
 * memory gives a plain reader in the same run and, for EXL3 codes, what the multipliers allow:
 * decoding a weight and using it takes a few of their operations, and they finish so many lanes a
 * cycle. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"
#include "cmd/bench.h"
#include "cmd/cmd.h"
#include "kern/exl3_mul.h"

#include <stdio.h>
#include <string.h>

enum { ROWS = 3072, COLS = 3584, T_MAX = 16 };
static const int64_t pool_bytes = 256 << 20; /* well over the caches of a desktop part */

/* Of EXL3: as conversion and checks take it, as generate, chat and serve do (struct kd_run's fast),
 * and with activations rounded to int8. */
enum product { EXACT, FAST, INT8 };
static const char *const product_names[] = {"float32", "fast", "int8"};

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
    enum product product;
    double read_core; /* GB/s of a plain reader on one core */
    int lanes;        /* products that one core's multipliers finish in a cycle */
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
        if (d->product == INT8 ? kd_exl3_mul_int8(d->run, &m, d->x, d->y, err)
                               : kd_mat_mul(d->run, &m, d->x, COLS, d->T, d->y, ROWS, err))
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

/* Multiplier operations to get a weight from its code and use it for one token: the state's
 * product, the sum of its bytes (two steps on AVX2), the value, the product with x; only EXACT
 * needs the value, and int8's product with x sums the bytes too where it can. */
static int operations(const struct decode *d)
{
    static const int table[KD_ISA_COUNT][3] = {[KD_ISA_AVX2] = {5, 4, 4},
                                               [KD_ISA_AVX512] = {4, 3, 2},
                                               [KD_ISA_AVX512FP16] = {4, 3, 2},
                                               [KD_ISA_NEON] = {4, 3, 3}};
    return d->m.type == KD_MAT_EXL3 ? table[d->run->kern->isa][d->product] : 0;
}

/* Gweights/s a core that the multipliers allow, 0 when unknown. */
static double multiplier_bound(const struct decode *d)
{
    int n = operations(d);
    return n ? d->b->ghz * d->lanes / (double)(n - 1 + d->T) : 0;
}

static void put_one(struct decode *d, const char *name, double rate, const struct kd_series *core,
                    const struct kd_series *all)
{
    const struct kd_bench *b = d->b;
    double per_weight = (double)kd_mat_bytes(&d->m) / ((double)ROWS * COLS);
    double speed = kd_series_median(core), bound = d->read_core / per_weight,
           multipliers = multiplier_bound(d);
    bool memory = multipliers <= 0 || bound < multipliers;

    bound = memory ? bound : multipliers;
    kd_jw_open(b->w, NULL, '{');
    kd_jw_str(b->w, "type", name);
    if (rate > 0)
        kd_jw_num(b->w, "rate", rate);
    kd_jw_int(b->w, "rows", ROWS);
    kd_jw_int(b->w, "cols", COLS);
    kd_jw_int(b->w, "tokens", d->T);
    kd_jw_str(b->w, "activations", d->product == INT8 ? "int8" : "float32");
    kd_jw_bool(b->w, "fast", d->product == FAST);
    kd_bench_put(b, "gweights_s_core", core);
    kd_bench_put(b, "gweights_s", all);
    kd_jw_num(b->w, "gb_s_core", speed * per_weight);
    kd_jw_num(b->w, "gb_s", kd_series_median(all) * per_weight);
    kd_jw_num(b->w, "cycles_16_weights", 16 * b->ghz / speed);
    kd_jw_str(b->w, "bound", memory ? "memory" : "multipliers");
    kd_jw_num(b->w, "bound_cycles_16_weights", 16 * b->ghz / bound);
    kd_jw_num(b->w, "bound_share", speed / bound);
    kd_jw_close(b->w, '}');
    if (b->screen)
        printf("%-5s %6.4g  %-7s T=%-2lld  %6.2f Gweights/s a core (%.2f to %.2f)  %6.2f in all  "
               "%6.2f GB/s a core  %5.1f cycles a 16 weights, %3.0f %% of what %s\n",
               name, rate, product_names[d->product], (long long)d->T, speed, core->v[0],
               core->v[core->count - 1], kd_series_median(all), speed * per_weight,
               16 * b->ghz / speed, 100 * speed / bound,
               memory ? "memory allows" : "the multipliers allow");
}

static int one(struct decode *d, const char *name, double rate, struct kd_err *err)
{
    static const int tokens[] = {1, 4, 16};
    double weights = (double)ROWS * COLS;
    size_t n = d->product == INT8 ? 1 : sizeof tokens / sizeof *tokens;
    struct kd_run all_cores = *d->b->run, one_core = d->b->one;
    all_cores.fast = one_core.fast = d->product == FAST;

    for (size_t i = 0; i < n; i++) {
        struct kd_series core, all;
        d->T = tokens[i];
        d->run = &all_cores;
        if (kd_bench_series(d->b, multiply, d, weights * 1e-9, &all, err))
            return -1;
        d->run = &one_core;
        if (kd_bench_series(d->b, multiply, d, weights * 1e-9, &core, err))
            return -1;
        put_one(d, name, rate, &core, &all);
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
    int rc = 0;
    for (d->product = EXACT; d->product <= INT8 && !rc; d->product++)
        rc = one(d, "EXL3", (double)sixteenths / 16, err);
    d->product = EXACT;
    return rc;
}

struct reader {
    const uint8_t *data;
    struct kd_pool *pool;
    uint64_t sum;
};

static int read_all(void *ctx, int64_t n, struct kd_err *err)
{
    struct reader *r = ctx;
    (void)err;
    for (int64_t i = 0; i < n; i++)
        r->sum ^= kd_pool_read(r->pool, r->data, pool_bytes);
    return 0;
}

static int memory(struct decode *d, struct kd_err *err)
{
    const struct kd_bench *b = d->b;
    struct reader r = {.data = d->pool, .pool = b->run->pool};
    struct kd_series core, all;
    if (kd_bench_series(b, read_all, &r, (double)pool_bytes * 1e-9, &all, err))
        return -1;
    r.pool = NULL;
    if (kd_bench_series(b, read_all, &r, (double)pool_bytes * 1e-9, &core, err))
        return -1;
    volatile uint64_t keep = r.sum;
    (void)keep;
    d->read_core = kd_series_median(&core);
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
    int index;
    if (kd_bench_device(b, &index, err))
        return -1;
    if (index >= 0)
        return kd_bench_decode_on(b, index, err);
    int rc = kd_bench_rates(b, standard, rates, err) ||
             kd_mem_new(&d.pool, pool_bytes, 1, "weights", err) ||
             kd_mem_new(&d.scale, (int64_t)ROWS * COLS / 32, 1, "scales", err) ||
             kd_mem_new(&d.sign, COLS, sizeof *d.sign, "signs", err) ||
             kd_mem_new(&d.x, (int64_t)COLS * T_MAX, sizeof *d.x, "inputs", err) ||
             kd_mem_new(&d.y, (int64_t)ROWS * T_MAX, sizeof *d.y, "outputs", err);
    if (!rc) {
        fill(&d);
        rc = memory(&d, err) || kd_bench_lanes(b, &d.lanes, err);
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
