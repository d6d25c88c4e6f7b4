/* bench encode: the trellis search on fixed Gaussian tiles. */
#include "base/mem.h"
#include "base/rand.h"
#include "cmd/bench.h"
#include "cmd/cmd.h"

#include <math.h>
#include <stdio.h>

enum { ITEM_TILES = 4, ERROR_TILES = 1024, SEAM = 128 };
/* Candidates of a tile's full search: 256 positions once for the seam and once for good, each with
 * all 2^16 states. */
static const double candidates = (2.0 * SEAM + 256) * 65536;

struct encode {
    const struct kd_bench *b;
    struct kd_pool *pool; /* NULL: one core */
    struct kd_rate rate;
    int64_t tiles;
    float *target; /* [tiles][256], ring order, scaled */
    uint16_t *states;
    void **scratch; /* one a worker */
};

static void encode_item(void *ctx, int64_t item, int worker)
{
    const struct encode *e = ctx;
    int64_t first = item * ITEM_TILES % e->tiles;
    int64_t n = e->tiles - first < ITEM_TILES ? e->tiles - first : ITEM_TILES;
    e->b->run->kern->trellis_search(e->target + first * KD_TILE_WEIGHTS, n, e->rate, KD_CB_MUL1,
                                    SEAM, e->states + first * KD_TILE_WEIGHTS, e->scratch[worker]);
}

/* n tiles, in items of ITEM_TILES. */
static int encode_tiles(void *ctx, int64_t n, struct kd_err *err)
{
    struct encode *e = ctx;
    if (kd_cmd_stop)
        return kd_fail(err, KD_ECANCEL, "stopped");
    kd_pool_run(e->pool, n, encode_item, e);
    return 0;
}

double kd_bench_scale(struct kd_rate rate)
{
    /* by whole rate */
    static const double scale[9] = {1.12, 1.00, 0.96, 0.92, 0.88, 0.88, 0.84, 0.80, 0.80};
    double part = (double)(kd_rate_to16(rate) % 16) / 16;
    return scale[rate.base - 1] + part * (scale[rate.base] - scale[rate.base - 1]);
}

/* Box and Muller over a fixed stream. */
void kd_bench_gauss(float *target, int64_t tiles, double scale)
{
    for (int64_t i = 0; i < tiles * KD_TILE_WEIGHTS; i++) {
        double u = 1 - kd_rand_unit(7, (uint64_t)(2 * i)),
               v = kd_rand_unit(7, (uint64_t)(2 * i + 1));
        target[i] = (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v) * scale);
    }
}

double kd_bench_error(const float *target, const uint16_t *states, int64_t tiles, double scale)
{
    double sum = 0;
    int64_t count = tiles * KD_TILE_WEIGHTS;
    for (int64_t i = 0; i < count; i++) {
        double d = (double)kd_f16_f32(kd_codebook_f16(KD_CB_MUL1, states[i])) - (double)target[i];
        sum += d * d / (scale * scale);
    }
    return sum / (double)count;
}

static int one_rate(struct encode *e, unsigned sixteenths, struct kd_err *err)
{
    const struct kd_bench *b = e->b;
    struct kd_series core, all;
    e->rate = kd_rate_from16(sixteenths);
    double scale = kd_bench_scale(e->rate);
    kd_bench_gauss(e->target, e->tiles, scale);
    e->pool = b->run->pool;
    if (encode_tiles(e, (e->tiles + ITEM_TILES - 1) / ITEM_TILES, err))
        return -1;
    double mse = kd_bench_error(e->target, e->states, e->tiles, scale);
    if (kd_bench_series(b, encode_tiles, e, ITEM_TILES, &all, err))
        return -1;
    e->pool = NULL;
    if (kd_bench_series(b, encode_tiles, e, ITEM_TILES, &core, err))
        return -1;
    double per_cycle = kd_series_median(&core) * candidates / (b->ghz * 1e9);
    kd_jw_open(b->w, NULL, '{');
    kd_jw_num(b->w, "rate", (double)sixteenths / 16);
    kd_bench_put(b, "tiles_s_core", &core);
    kd_bench_put(b, "tiles_s", &all);
    kd_jw_num(b->w, "candidates_per_cycle", per_cycle);
    kd_jw_num(b->w, "mse", mse);
    kd_jw_int(b->w, "mse_tiles", e->tiles);
    kd_jw_close(b->w, '}');
    if (b->screen)
        printf(
            "%7.4f  %9.0f tiles/s a core (%.0f to %.0f)  %9.0f in all  %6.2f candidates/cycle  MSE "
            "%.3e\n",
            (double)sixteenths / 16, kd_series_median(&core), core.v[0], core.v[core.count - 1],
            kd_series_median(&all), per_cycle, mse);
    return 0;
}

int kd_bench_encode(const struct kd_bench *b, struct kd_err *err)
{
    static const unsigned standard[] = {16, 32, 33, 37, 48, 64, 80, 96, 112, 128, 0};
    unsigned rates[KD_BENCH_RATES + 1];
    const int64_t tiles = b->tiles ? b->tiles : ERROR_TILES;
    struct encode e = {.b = b, .tiles = (tiles + ITEM_TILES - 1) / ITEM_TILES * ITEM_TILES};
    int threads = kd_pool_threads(b->run->pool), made = 0, index;
    if (kd_bench_device(b, &index, err))
        return -1;
    if (index >= 0)
        return kd_bench_encode_on(b, index, err);
    int rc = kd_bench_rates(b, standard, rates, err) ||
             kd_mem_new(&e.target, e.tiles * KD_TILE_WEIGHTS, sizeof *e.target, "tiles", err) ||
             kd_mem_new(&e.states, e.tiles * KD_TILE_WEIGHTS, sizeof *e.states, "states", err) ||
             kd_mem_zero(&e.scratch, threads, sizeof *e.scratch, "scratch", err);
    for (; made < threads && !rc; made++)
        rc = kd_mem_new(&e.scratch[made], 1, (int64_t)kd_trellis_scratch_bytes(), "search", err);
    for (int i = 0; !rc && rates[i]; i++)
        rc = one_rate(&e, rates[i], err);
    for (int i = 0; e.scratch && i < threads; i++)
        kd_mem_free(e.scratch[i]);
    kd_mem_free(e.scratch);
    kd_mem_free(e.states);
    kd_mem_free(e.target);
    return rc ? -1 : 0;
}
