/* bench encode and bench decode on a device: its kernels alone, by what they are limited. */
#include "base/clock.h"
#include "base/mem.h"
#include "cmd/bench.h"
#include "cmd/cmd.h"
#include "cmd/device.h"
#include "cmd/model_device.h"
#include "gpu/graph.h"
#include "gpu/product.h"

#include <stdio.h>
#include <string.h>

enum { SEAM = 128, TILES_EACH = 64 /* tiles of a multiprocessor in one launch */ };
/* As in bench encode. */
static const double candidates = (2.0 * SEAM + 256) * 65536;
static const int64_t pool_bytes = 512 << 20; /* well over a device's caches */

int kd_bench_device(const struct kd_bench *b, int *index, struct kd_err *err)
{
    int device;
    if (kd_cmd_model_device(b->device, &device, err))
        return -1;
    *index = device - 1;
    return 0;
}

int kd_bench_copy_rate(struct kd_gpu *g, double *rate, struct kd_err *err)
{
    const int64_t bytes = (int64_t)1 << 29;
    void *a = NULL, *b = NULL;
    *rate = 0;
    int rc =
        kd_gpu_alloc(g, &a, bytes, "copying", err) || kd_gpu_alloc(g, &b, bytes, "copying", err);
    for (int i = 0; i < 10 && !rc; i++) {
        enum { COPIES = 8 };
        rc = kd_gpu_wait(g, err);
        double start = kd_clock_s();
        for (int k = 0; k < COPIES && !rc; k++)
            rc = kd_gpu_copy(g, b, a, bytes, err);
        rc = rc || kd_gpu_wait(g, err);
        double now = 2e-9 * COPIES * (double)bytes / (kd_clock_s() - start);
        *rate = now > *rate ? now : *rate;
    }
    kd_gpu_release(g, a);
    kd_gpu_release(g, b);
    return rc ? -1 : 0;
}

/* The device and what its memory gives; a result of its own. */
static int open_device(const struct kd_bench *b, int index, struct kd_gpu **g, double *copy_gb_s,
                       struct kd_err *err)
{
    if (kd_gpu_open(g, index, err)) {
        kd_cmd_offer_cpu(err, "use --device cpu");
        return -1;
    }
    if (kd_bench_copy_rate(*g, copy_gb_s, err)) {
        kd_gpu_close(*g);
        return -1;
    }
    const struct kd_gpu_facts *f = kd_gpu_facts(*g);
    kd_jw_open(b->w, NULL, '{');
    kd_jw_str(b->w, "device", f->name);
    kd_jw_int(b->w, "multiprocessors", f->sms);
    kd_jw_num(b->w, "ghz", f->ghz);
    kd_jw_num(b->w, "copy_gb_s", *copy_gb_s);
    if (b->blocks)
        kd_jw_int(b->w, "blocks", b->blocks);
    kd_jw_close(b->w, '}');
    if (b->screen)
        printf("%s, %d multiprocessors at up to %.2f GHz, copies %.0f GB/s\n", f->name, f->sms,
               f->ghz, *copy_gb_s);
    return 0;
}

/* ---- encode ---- */

struct encode_on {
    struct kd_gpu *g;
    struct kd_gpu_tiles job;
    struct kd_gpu_tile_figures figures; /* of the last launch */
    float *target;
    uint16_t *states;
    double copy_gb_s;
};

static int encode_rate(const struct kd_bench *b, struct encode_on *e, unsigned sixteenths,
                       struct kd_err *err)
{
    const struct kd_gpu_facts *facts = kd_gpu_facts(e->g);
    struct kd_series s = {.count = 0};
    struct kd_gpu_tiles *j = &e->job;
    j->rate = kd_rate_from16(sixteenths);
    double scale = kd_bench_scale(j->rate);
    kd_bench_gauss(e->target, j->tiles, scale);
    for (int i = -1; i < KD_BENCH_REPEATS; i++) { /* the first one warms up */
        if (kd_cmd_stop)
            return kd_fail(err, KD_ECANCEL, "stopped");
        if (kd_gpu_search(e->g, j, &e->figures, err))
            return -1;
        if (i >= 0)
            s.v[s.count++] = (double)j->tiles / e->figures.seconds;
    }
    kd_series_close(&s);
    double speed = kd_series_median(&s), written = (double)e->figures.tile_written_bytes,
           traffic = written + (double)e->figures.tile_read_bytes;
    double each = speed / e->figures.blocks * candidates / (facts->ghz * 1e9);
    double share = speed * 1e-9 * traffic / e->copy_gb_s;
    double mse = kd_bench_error(e->target, e->states, j->tiles, scale);
    kd_jw_open(b->w, NULL, '{');
    kd_jw_num(b->w, "rate", (double)sixteenths / 16);
    kd_bench_put(b, "tiles_s", &s);
    kd_jw_int(b->w, "blocks", e->figures.blocks);
    kd_jw_int(b->w, "block_shared_bytes", e->figures.shared_bytes);
    kd_jw_num(b->w, "candidates_per_cycle", each);
    kd_jw_num(b->w, "tile_bytes", traffic);
    kd_jw_num(b->w, "tile_written_bytes", written);
    if (e->figures.cheap) {
        kd_jw_num(b->w, "tile_segments_walked", e->figures.tile_walks);
        kd_jw_int(b->w, "tiles_again", e->figures.again);
    }
    kd_jw_num(b->w, "memory_share", share);
    kd_jw_num(b->w, "mse", mse);
    kd_jw_int(b->w, "mse_tiles", j->tiles);
    kd_jw_close(b->w, '}');
    if (b->screen)
        printf("%7.4f  %9.0f tiles/s (%.0f to %.0f) on %d blocks  %6.2f candidates/cycle a block  "
               "%5.0f KB a tile, %3.0f %% of the memory's rate  MSE %.3e%s\n",
               (double)sixteenths / 16, speed, s.v[0], s.v[s.count - 1], e->figures.blocks, each,
               traffic / 1024, 100 * share, mse,
               e->figures.cheap ? "  (costs of cheap states alone kept)" : "");
    return 0;
}

/* The way that the device takes, and where that is another one the way for little bandwidth. */
static int encode_ways(const struct kd_bench *b, struct encode_on *e, unsigned sixteenths,
                       struct kd_err *err)
{
    e->job.way = KD_SEARCH_BY_DEVICE;
    if (encode_rate(b, e, sixteenths, err))
        return -1;
    e->job.way = KD_SEARCH_CHEAP;
    return sixteenths / 16 == 2 && !e->figures.cheap && kd_gpu_facts(e->g)->major >= 9
               ? encode_rate(b, e, sixteenths, err)
               : 0;
}

int kd_bench_encode_on(const struct kd_bench *b, int index, struct kd_err *err)
{
    static const unsigned standard[] = {16, 32, 33, 37, 48, 64, 80, 96, 112, 128, 0};
    unsigned rates[KD_BENCH_RATES + 1];
    struct encode_on e = {.target = NULL};
    if (kd_bench_rates(b, standard, rates, err) || open_device(b, index, &e.g, &e.copy_gb_s, err))
        return -1;
    int64_t tiles = TILES_EACH * (int64_t)kd_gpu_facts(e.g)->sms;
    tiles = b->tiles > tiles ? b->tiles : tiles;
    int rc = kd_mem_new(&e.target, tiles * KD_TILE_WEIGHTS, sizeof *e.target, "tiles", err) ||
             kd_mem_new(&e.states, tiles * KD_TILE_WEIGHTS, sizeof *e.states, "states", err);
    e.job = (struct kd_gpu_tiles){.target = e.target,
                                  .tiles = tiles,
                                  .codebook = KD_CB_MUL1,
                                  .seam = SEAM,
                                  .blocks = (int)b->blocks,
                                  .states = e.states};
    for (int i = 0; !rc && rates[i]; i++)
        rc = encode_ways(b, &e, rates[i], err);
    kd_mem_free(e.target);
    kd_mem_free(e.states);
    kd_gpu_close(e.g);
    return rc ? -1 : 0;
}

/* ---- decode ---- */

enum {
    MATS = 64,
    ROWS_MAX = 64,
    X_FLOATS = 16384,
    EXPERTS = 64,
    TOP = 16,
    CALLS = 32 /* that are recorded as one, so that none waits for the host */
};

struct decode_on {
    const struct kd_bench *b;
    struct kd_gpu *g;
    double copy_gb_s;
    struct kd_gpu_mat mat[MATS];
    void *memory, *scratch;
    float *x, *y;
    int64_t mats, next, T, scratch_bytes;
    /* experts */
    struct kd_gpu_experts *experts;
    struct kd_gpu_experts_call call;
    int32_t *ids; /* [EXPERTS / TOP][TOP] on the device: lists that share no expert */
    struct kd_gpu_graph *graph;
};

static int multiply_on(struct decode_on *d, struct kd_err *err)
{
    const struct kd_gpu_mat *w = &d->mat[d->next++ % d->mats];
    const struct kd_gpu_job job = {w, d->x, w->cols, d->y, w->rows};
    return kd_gpu_mul(d->g, KD_GPU_FAST, &job, 1, d->T, d->scratch, d->scratch_bytes, err);
}

static int experts_on(struct decode_on *d, struct kd_err *err)
{
    struct kd_gpu_experts_call c = d->call;
    c.ids = d->ids + d->next++ % (EXPERTS / TOP) * TOP;
    return kd_gpu_experts_mul(d->experts, KD_GPU_FAST, &c, err);
}

static int record_on(struct decode_on *d, int (*call)(struct decode_on *, struct kd_err *),
                     struct kd_err *err)
{
    if (kd_gpu_graph_begin(d->g, err))
        return -1;
    for (int i = 0; i < CALLS; i++)
        if (call(d, err)) {
            kd_gpu_graph_cancel(d->g);
            return -1;
        }
    return kd_gpu_graph_end(d->g, &d->graph, err);
}
static int replay_on(void *ctx, int64_t n, struct kd_err *err)
{
    struct decode_on *d = ctx;
    for (int64_t i = 0; i < n; i++) {
        if (kd_cmd_stop)
            return kd_fail(err, KD_ECANCEL, "stopped");
        if (kd_gpu_graph_run(d->g, d->graph, err))
            return -1;
    }
    return kd_gpu_wait(d->g, err);
}

/* The share of what the multiprocessors in use could take if nothing but the issue of instructions
 * took time; 0 where nobody has counted them. */
static double issue_share(const struct decode_on *d, const char *name, double rate,
                          double weights_s)
{
    const struct kd_gpu_facts *f = kd_gpu_facts(d->g);
    const int sms = d->b->blocks > 0 && d->b->blocks < f->sms ? (int)d->b->blocks : f->sms;
    if (f->major != 9 || strncmp(name, "EXL3", 4) != 0)
        return 0;
    return weights_s * kd_gpu_mul_cost((unsigned)(rate * 16), d->T, KD_GPU_MUL_MATRIX) /
           (128.0 * sms * f->ghz * 1e9);
}

/* One figure: `weights` weights of `bytes` bytes a call. */
static int put_on(struct decode_on *d, const char *name, double rate, double weights, double bytes,
                  int (*call)(struct decode_on *, struct kd_err *), struct kd_err *err)
{
    const struct kd_bench *b = d->b;
    struct kd_series s;
    if (record_on(d, call, err))
        return -1;
    int rc = kd_bench_series(b, replay_on, d, CALLS * weights * 1e-9, &s, err);
    kd_gpu_graph_free(d->graph);
    if (rc)
        return -1;
    double speed = kd_series_median(&s), us = weights / speed * 1e-3;
    double share = bytes / us * 1e-3 / d->copy_gb_s;
    double issued = issue_share(d, name, rate, speed * 1e9);
    kd_jw_open(b->w, NULL, '{');
    kd_jw_str(b->w, "type", name);
    kd_jw_num(b->w, "rate", rate);
    kd_jw_int(b->w, "tokens", d->T);
    kd_bench_put(b, "gweights_s", &s);
    kd_jw_num(b->w, "us", us);
    kd_jw_num(b->w, "gb_s", bytes / us * 1e-3);
    kd_jw_num(b->w, "memory_share", share);
    if (issued > 0)
        kd_jw_num(b->w, "issue_share", issued);
    kd_jw_close(b->w, '}');
    if (b->screen) {
        printf("%-17s %7.4f  T=%-2lld  %8.1f us  %8.1f Gweights/s (%.1f to %.1f)  %6.0f GB/s, "
               "%3.0f %% of what copies reach",
               name, rate, (long long)d->T, us, speed, s.v[0], s.v[s.count - 1], bytes / us * 1e-3,
               100 * share);
        if (issued > 0)
            printf(", %2.0f %% of what can be issued", 100 * issued);
        printf("\n");
    }
    return 0;
}

static struct kd_gpu_source source_on(enum kd_gpu_mat_type type, int64_t rows, int64_t cols,
                                      unsigned sixteenths)
{
    return (struct kd_gpu_source){.type = type,
                                  .rows = rows,
                                  .cols = cols,
                                  .ld = type == KD_GPU_MAT_EXL3    ? rows / KD_TILE
                                        : type == KD_GPU_MAT_MXFP4 ? cols / 2
                                                                   : cols,
                                  .ld_scale = cols / 32,
                                  .rows_padded = rows,
                                  .cols_padded = cols,
                                  .rate = kd_rate_from16(sixteenths),
                                  .cb = KD_CB_MUL1};
}

/* As many matrices of a shape as do not stay in a cache. */
static int make_mats(struct decode_on *d, const struct kd_gpu_source *s, struct kd_err *err)
{
    int64_t each = kd_gpu_mat_bytes(s);
    d->mats = pool_bytes / each + 2;
    d->mats = d->mats < MATS ? d->mats : MATS;
    d->next = 0;
    if (kd_gpu_alloc(d->g, &d->memory, d->mats * each, "matrices", err))
        return -1;
    for (int64_t i = 0; i < d->mats; i++)
        if (kd_gpu_mat_make(d->g, &d->mat[i], s, (uint64_t)(2 * i + 1),
                            (unsigned char *)d->memory + i * each, err))
            return -1;
    return 0;
}

static int dense_on(struct decode_on *d, const char *name, enum kd_gpu_mat_type type, int64_t rows,
                    int64_t cols, unsigned sixteenths, struct kd_err *err)
{
    static const int tokens[] = {1, 4, 16, ROWS_MAX};
    const struct kd_gpu_source s = source_on(type, rows, cols, sixteenths);
    int rc = make_mats(d, &s, err);
    for (size_t i = 0; !rc && i < sizeof tokens / sizeof *tokens; i++) {
        const struct kd_gpu_job job = {&d->mat[0], d->x, cols, d->y, rows};
        d->T = tokens[i];
        d->scratch_bytes = kd_gpu_mul_scratch(&job, 1, d->T);
        rc = kd_gpu_alloc(d->g, &d->scratch, d->scratch_bytes, "work space", err) ||
             put_on(d, name, (double)sixteenths / 16, (double)rows * (double)cols,
                    (double)kd_gpu_mat_bytes(&s), multiply_on, err);
        kd_gpu_release(d->g, d->scratch);
        d->scratch = NULL;
    }
    kd_gpu_release(d->g, d->memory);
    d->memory = NULL;
    return rc ? -1 : 0;
}

/* Sixteen experts of K3's for one token, others each time. */
static int routed_on(struct decode_on *d, unsigned sixteenths, struct kd_err *err)
{
    enum { LATENT = 3584, INNER = 3072 };
    const struct kd_gpu_experts_shape shape = {
        .experts = EXPERTS, .cols = LATENT, .inner = INNER, .tokens = 1, .top = TOP};
    const struct kd_gpu_source in = source_on(KD_GPU_MAT_EXL3, INNER, LATENT, sixteenths),
                               out = source_on(KD_GPU_MAT_EXL3, LATENT, INNER, sixteenths);
    int64_t a = kd_gpu_mat_bytes(&in), b = kd_gpu_mat_bytes(&out);
    struct kd_gpu_mat(*table)[3] = NULL;
    int32_t ids[EXPERTS];
    float weight[TOP];
    void *lists = NULL, *weights = NULL;
    for (int i = 0; i < EXPERTS; i++)
        ids[i] = i;
    for (int i = 0; i < TOP; i++)
        weight[i] = 1.0f / TOP;
    int rc = kd_mem_new(&table, EXPERTS, sizeof *table, "experts", err) ||
             kd_gpu_alloc(d->g, &d->memory, EXPERTS * (2 * a + b), "experts", err) ||
             kd_gpu_alloc(d->g, &lists, sizeof ids, "lists of experts", err) ||
             kd_gpu_alloc(d->g, &weights, sizeof weight, "lists of experts", err) ||
             kd_gpu_upload(d->g, lists, ids, sizeof ids, err) ||
             kd_gpu_upload(d->g, weights, weight, sizeof weight, err) ||
             kd_gpu_experts_open(&d->experts, d->g, &shape, NULL, err);
    for (int e = 0; !rc && e < EXPERTS; e++) {
        unsigned char *at = (unsigned char *)d->memory + e * (2 * a + b);
        uint64_t seed = (uint64_t)(6 * e + 1);
        rc = kd_gpu_mat_make(d->g, &table[e][0], &in, seed, at, err) ||
             kd_gpu_mat_make(d->g, &table[e][1], &in, seed + 2, at + a, err) ||
             kd_gpu_mat_make(d->g, &table[e][2], &out, seed + 4, at + 2 * a, err);
    }
    if (!rc)
        rc = kd_gpu_experts_set(d->experts, 0, EXPERTS, (const struct kd_gpu_mat(*)[3])table, err);
    d->ids = lists;
    d->T = 1;
    d->call = (struct kd_gpu_experts_call){.x = d->x,
                                           .ldx = LATENT,
                                           .T = 1,
                                           .weight = weights,
                                           .top = TOP,
                                           .beta = 4,
                                           .linear = 25,
                                           .y = d->y,
                                           .ldy = LATENT};
    if (!rc)
        rc = put_on(d, "EXL3, 16 experts", (double)sixteenths / 16, 3.0 * TOP * LATENT * INNER,
                    (double)(TOP * (2 * a + b)), experts_on, err);
    kd_gpu_experts_close(d->experts);
    kd_gpu_release(d->g, lists);
    kd_gpu_release(d->g, weights);
    kd_gpu_release(d->g, d->memory);
    d->experts = NULL;
    d->memory = NULL;
    kd_mem_free(table);
    return rc ? -1 : 0;
}

int kd_bench_decode_on(const struct kd_bench *b, int index, struct kd_err *err)
{
    enum { WIDE = 12288, NARROW = 7168 };
    static const unsigned standard[] = {32, 37, 48, 64, 0};
    unsigned rates[KD_BENCH_RATES + 1];
    struct decode_on d = {.b = b};
    void *x = NULL, *y = NULL;
    if (kd_bench_rates(b, standard, rates, err) || open_device(b, index, &d.g, &d.copy_gb_s, err))
        return -1;
    kd_gpu_mul_limit(d.g, (int)b->blocks);
    int rc = kd_gpu_alloc(d.g, &x, ROWS_MAX * X_FLOATS * 4, "inputs", err) ||
             kd_gpu_alloc(d.g, &y, ROWS_MAX * X_FLOATS * 4, "outputs", err);
    d.x = x;
    d.y = y;
    for (int i = 0; !rc && rates[i]; i++)
        rc = dense_on(&d, "EXL3 12288 > 7168", KD_GPU_MAT_EXL3, NARROW, WIDE, rates[i], err) ||
             dense_on(&d, "EXL3 7168 > 12288", KD_GPU_MAT_EXL3, WIDE, NARROW, rates[i], err) ||
             routed_on(&d, rates[i], err);
    if (!rc)
        rc = dense_on(&d, "MXFP4", KD_GPU_MAT_MXFP4, NARROW, WIDE, 68, err) ||
             dense_on(&d, "BF16", KD_GPU_MAT_BF16, NARROW, WIDE, 256, err);
    kd_gpu_release(d.g, x);
    kd_gpu_release(d.g, y);
    kd_gpu_close(d.g);
    return rc ? -1 : 0;
}
