/* What the benchmarks share: repeats and their spread, the machine, and where results go. */
#ifndef KD_CMD_BENCH_H
#define KD_CMD_BENCH_H

#include "base/json.h"
#include "kern/mat.h"

enum { KD_BENCH_REPEATS = 5, KD_BENCH_RATES = 10 };

/* One figure, measured KD_BENCH_REPEATS times; higher is better. */
struct kd_series {
    double v[KD_BENCH_REPEATS]; /* ascending after kd_series_close */
    int count;
};
void kd_series_close(struct kd_series *s);
double kd_series_median(const struct kd_series *s);

struct kd_bench {
    const struct kd_run *run; /* all cores */
    struct kd_run one;        /* the same kernels, no pool */
    double seconds;           /* of one figure, all repeats together */
    const char *model;        /* forward, serve */
    const char *require;      /* serve: "toks=15,ttft=2", farm: "pgbench=0.5,memory=5", or NULL */
    int64_t prompt;           /* serve: tokens of a long prompt */
    int64_t passages;         /* of each of them */
    const char *texts;        /* serve: files to draft on, comma separated, or NULL */
    const char *rate;         /* NULL: the benchmark's own list */
    int64_t tiles;            /* encode: of the error, quantize: of all tensors; 0: as they like */
    double ghz;
    const char *ledger; /* farm: PostgreSQL's address; NULL: SQLite in a temporary folder */
    const char *units;  /* farm: the coordinator and each worker, for the simulation; or NULL */
    int64_t layers;     /* farm: 0: K3's; forward with a shape: the first so many, 0: all */
    const char *device; /* encode, decode, quantize, calib, forward: where that runs, or NULL */
    int64_t blocks;     /* encode, decode on a device: at most so many at once; 0: as fit */
    int lanes;          /* quantize: tensors under way at once; 0: as in a conversion */
    const char *shape;  /* forward: "k3" or a config, in place of a model; or NULL */
    const char *calib_class;         /* calib: "fast", or NULL */
    int64_t rows;                    /* calib: tokens; 0: as it likes */
    double bpw, trunk_bpw, head_bpw; /* of the shape's weights */
    bool account;                    /* forward on a device: where the time goes */
    bool exact;                      /* forward: not fast (struct kd_k3_open) */
    struct kd_jw *w;                 /* inside "results": [ */
    bool screen;                     /* lines on standard output too */
};
/* Runs work(ctx, n) with n grown until one repeat takes its share of b->seconds; each repeat gives
 * n * per_unit / seconds. work returns 0 or -1. */
int kd_bench_series(const struct kd_bench *b, int (*work)(void *ctx, int64_t n, struct kd_err *err),
                    void *ctx, double per_unit, struct kd_series *s, struct kd_err *err) KD_MUST;
/* "key": {"median": .., "min": .., "max": .., "repeats": 5} */
void kd_bench_put(const struct kd_bench *b, const char *key, const struct kd_series *s);
/* The rates asked for in sixteenths of a bit, 0 ends the list. */
int kd_bench_rates(const struct kd_bench *b, const unsigned *standard,
                   unsigned out[KD_BENCH_RATES + 1], struct kd_err *err) KD_MUST;
/* Clock of the core this runs on now, from a chain of dependent single-cycle operations. */
double kd_bench_ghz(void);
/* Lanes of one core's multipliers, from products of floats that stay in the nearest cache: ports
 * are as wide as powers of two, and this product reaches over half of what they give. A result of
 * its own. */
int kd_bench_lanes(const struct kd_bench *b, int *lanes, struct kd_err *err) KD_MUST;
void kd_bench_machine(struct kd_jw *w, const struct kd_bench *b);
void kd_bench_cpu_name(char *out, size_t size);

int kd_bench_encode(const struct kd_bench *b, struct kd_err *err) KD_MUST;
int kd_bench_decode(const struct kd_bench *b, struct kd_err *err) KD_MUST;
/* The same two on b->device, number `index`. */
int kd_bench_encode_on(const struct kd_bench *b, int index, struct kd_err *err) KD_MUST;
int kd_bench_decode_on(const struct kd_bench *b, int index, struct kd_err *err) KD_MUST;
int kd_bench_quantize(const struct kd_bench *b, struct kd_err *err) KD_MUST; /* on b->device */
int kd_bench_calib(const struct kd_bench *b, struct kd_err *err) KD_MUST;
/* The number of b->device; -1: the CPU. */
int kd_bench_device(const struct kd_bench *b, int *index, struct kd_err *err) KD_MUST;
/* GB/s of copying in a device's memory, reads and writes together: the best of ten. */
struct kd_gpu;
int kd_bench_copy_rate(struct kd_gpu *g, double *rate, struct kd_err *err) KD_MUST;
/* What a unit Gaussian tile is multiplied by before the search (mul1); n tiles of them. */
double kd_bench_scale(struct kd_rate rate);
void kd_bench_gauss(float *target, int64_t tiles, double scale);
/* Mean squared error of the states' values, in units of the tiles before the scale. */
double kd_bench_error(const float *target, const uint16_t *states, int64_t tiles, double scale);
int kd_bench_forward(const struct kd_bench *b, struct kd_err *err) KD_MUST;
/* Where the time of steps and of a prefill goes, on a device. */
struct kd_k3_model;
int kd_bench_account(const struct kd_bench *b, struct kd_k3_model *m, struct kd_err *err) KD_MUST;
int kd_bench_serve(const struct kd_bench *b, struct kd_err *err) KD_MUST;
int kd_bench_drafts(const struct kd_bench *b, struct kd_err *err) KD_MUST; /* part of serve */

int kd_bench_farm(const struct kd_bench *b, struct kd_err *err) KD_MUST;
/* Its parts: whether --units can be read, and the simulation. */
int kd_bench_farm_units(const struct kd_bench *b, struct kd_err *err) KD_MUST;
int kd_bench_farm_sim(const struct kd_bench *b, struct kd_err *err) KD_MUST;
#endif
