/* bench calib: what a conversion computes over its calibration tokens before it quantizes, at K3's
 * shapes: the Hessian of an expert's inner rows, that of the inputs of a layer's trunk and the
 * trunk's widest product, on the CPU or on a device in either class. */
#include "base/mem.h"
#include "base/rand.h"
#include "cmd/bench.h"
#include "cmd/cmd.h"
#include "cmd/device.h"
#include "cmd/encode_begin.h"
#include "codec/expert.h"
#include "gpu/calib.h"
#include "gpu/memory.h"
#include "kern/mat_source.h"
#include "num/half.h"
#include "plan/bytes.h"

#include <stdio.h>
#include <string.h>

enum {
    BLOCK = 4096, /* rows of a call, as a conversion passes blocks of them */
    ROWS_CPU = 256,
    ROWS_DEVICE = 16384,
    SIXTEENTHS = 32,   /* the rate of the expert's matrices */
    DEVICE_LANES = 128 /* of fp32 a multiprocessor, from compute capability 8.6 on */
};

struct calib {
    const struct kd_bench *b;
    struct kd_run run;
    struct kd_gpu *g; /* NULL: the CPU */
    int index;
    bool fast;
    int64_t T, hidden;
    struct kd_layer_inputs in; /* of the experts: z, latents */
    struct kd_mat w1, w3, wide;
    struct kd_gpu_latents *latents;
    uint8_t *codes;
    uint16_t *sign, *z, *values;
    float *x, *y; /* BLOCK rows, or T if that is less */
    void *x_there;
    struct kd_hess inner, trunk;
    double peak; /* TFLOP/s, 0: not known */
};

static int64_t block_rows(const struct calib *c)
{
    return c->T < BLOCK ? c->T : BLOCK;
}

static int no_room(const char *what, struct kd_err *err)
{
    return kd_fail(err, KD_ENOMEM, "the device has no room for %s", what);
}

/* ---- the work ---- */

static int work_inner(void *ctx, int64_t n, struct kd_err *err)
{
    struct calib *c = ctx;
    bool there = false;
    for (int64_t i = 0; i < n; i++) {
        if (kd_cmd_stop)
            return kd_fail(err, KD_ECANCEL, "stopped");
        if (kd_expert_inner_sums(&c->run, &c->in, &c->w1, &c->w3, &c->inner, &there, err))
            return -1;
        if (c->g && !there)
            return no_room("an expert's Hessian", err);
    }
    return 0;
}

/* n times T rows by blocks of at most BLOCK. call: *done is whether the device had room. */
static int by_blocks(struct calib *c, int64_t n, const char *what,
                     int (*call)(struct calib *c, int64_t rows, bool *done, struct kd_err *err),
                     struct kd_err *err)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t t = 0; t < c->T; t += BLOCK) {
            bool done = false;
            if (kd_cmd_stop)
                return kd_fail(err, KD_ECANCEL, "stopped");
            if (call(c, c->T - t < BLOCK ? c->T - t : BLOCK, &done, err))
                return -1;
            if (!done)
                return no_room(what, err);
        }
    return 0;
}

/* On a device the sums come back once, as they do after all rows. */
static int take_sums(struct calib *c, struct kd_err *err)
{
    return c->g ? kd_gpu_sums_take(c->trunk.sums, c->trunk.h, err) : 0;
}

static int add_rows(struct calib *c, int64_t rows, bool *done, struct kd_err *err)
{
    *done = true;
    return kd_hess_add(&c->run, &c->trunk, c->x, c->hidden, rows, err);
}

static int work_trunk(void *ctx, int64_t n, struct kd_err *err)
{
    return by_blocks(ctx, n, "a Hessian", add_rows, err) || take_sums(ctx, err) ? -1 : 0;
}

static int add_rows_there(struct calib *c, int64_t rows, bool *done, struct kd_err *err)
{
    return kd_hess_add_there(&c->trunk, c->index, c->x_there, c->hidden, rows, done, err);
}

static int work_trunk_there(void *ctx, int64_t n, struct kd_err *err)
{
    return by_blocks(ctx, n, "a Hessian", add_rows_there, err) || take_sums(ctx, err) ? -1 : 0;
}

static int multiply(struct calib *c, int64_t rows, bool *done, struct kd_err *err)
{
    const struct kd_gpu_source w = kd_mat_source(&c->wide);
    if (c->g)
        return kd_gpu_calib_mul(c->run.encoder, &w, c->x, c->hidden, rows, c->y, c->wide.rows, done,
                                err);
    *done = true;
    return kd_mat_mul(&c->run, &c->wide, c->x, c->hidden, rows, c->y, c->wide.rows, err);
}

static int work_product(void *ctx, int64_t n, struct kd_err *err)
{
    return by_blocks(ctx, n, "a product", multiply, err);
}

/* ---- results ---- */

/* macs: products of a token. */
static int put_work(struct calib *c, const char *work, const char *what, double macs,
                    int (*call)(void *, int64_t, struct kd_err *), struct kd_err *err)
{
    const struct kd_bench *b = c->b;
    struct kd_series s;
    if (kd_bench_series(b, call, c, (double)c->T, &s, err))
        return -1;
    const double speed = kd_series_median(&s), tflops = 2e-12 * macs * speed,
                 ms = 1e3 * (double)c->T / speed, share = c->peak > 0 ? tflops / c->peak : 0;
    kd_jw_open(b->w, NULL, '{');
    kd_jw_str(b->w, "work", work);
    kd_jw_str(b->w, "what", what);
    kd_jw_int(b->w, "rows", c->T);
    kd_bench_put(b, "tokens_s", &s);
    kd_jw_num(b->w, "ms", ms);
    kd_jw_num(b->w, "flop_token", 2 * macs);
    kd_jw_num(b->w, "tflop_s", tflops);
    if (share > 0)
        kd_jw_num(b->w, "share", share);
    kd_jw_close(b->w, '}');
    if (!b->screen)
        return 0;
    printf("%-58s %9.1f ms  %9.0f tokens/s (%.0f to %.0f)  %8.3g TFLOP/s", what, ms, speed, s.v[0],
           s.v[s.count - 1], tflops);
    if (share > 0)
        printf(", %.0f %%", 100 * share);
    printf("\n");
    return 0;
}

static int measure(struct calib *c, struct kd_err *err)
{
    const double k = (double)c->w1.rows, h = (double)c->hidden;
    char what[96];
    snprintf(what, sizeof what, "an expert's inner Hessian, %lld > %lld", (long long)c->in.latent,
             (long long)c->w1.rows);
    if (put_work(c, "inner", what, 2 * (double)c->in.latent * k + 0.5 * k * k, work_inner, err))
        return -1;
    snprintf(what, sizeof what, "a Hessian of %lld inputs of the trunk", (long long)c->hidden);
    if (put_work(c, "trunk", what, 0.5 * h * h, work_trunk, err))
        return -1;
    snprintf(what, sizeof what, "the same, rows on the device");
    if (c->fast && put_work(c, "trunk there", what, 0.5 * h * h, work_trunk_there, err))
        return -1;
    snprintf(what, sizeof what, "a BF16 product, %lld > %lld", (long long)c->hidden,
             (long long)c->wide.rows);
    return put_work(c, "product", what, h * (double)c->wide.rows, work_product, err);
}

/* What all shares are of: a result of its own. */
static int put_limit(struct calib *c, struct kd_err *err)
{
    const struct kd_bench *b = c->b;
    if (!c->g) {
        int lanes;
        if (kd_bench_lanes(b, &lanes, err))
            return -1;
        c->peak = 2e-3 * lanes * b->ghz * kd_pool_threads(b->run->pool);
    } else {
        const struct kd_gpu_facts *f = kd_gpu_facts(c->g);
        const double lanes = 2e-3 * DEVICE_LANES * f->sms * f->ghz;
        c->peak = !c->fast ? lanes : f->major == 9 ? 16 * lanes : 0;
    }
    kd_jw_open(b->w, NULL, '{');
    kd_jw_str(b->w, "device", c->g ? kd_gpu_facts(c->g)->name : "cpu");
    kd_jw_str(b->w, "class", c->fast ? "fast" : "exact");
    if (c->peak > 0)
        kd_jw_num(b->w, "peak_tflop_s", c->peak);
    kd_jw_close(b->w, '}');
    if (!b->screen)
        return 0;
    printf("%s, class %s, %lld tokens", c->g ? kd_gpu_facts(c->g)->name : "CPU",
           c->fast ? "fast" : "exact", (long long)c->T);
    if (c->peak > 0)
        printf("; shares are of %.3g TFLOP/s, %s", c->peak,
               c->fast ? "bf16 of the matrix units"
               : c->g  ? "fp32 at the highest clock"
                       : "the multipliers of all threads");
    printf("\n");
    return 0;
}

/* ---- what is multiplied ---- */

/* Rows of uneven inputs that have something in common. */
static float activation(int64_t row, int64_t i)
{
    return (1 + (float)kd_rand_unit(3, (uint64_t)i)) *
           (kd_rand_bell(4, (uint64_t)row << 20 | (uint64_t)i) + kd_rand_bell(5, (uint64_t)row));
}

/* `rows` different rows, then the same again up to T. */
static int make_rows(struct calib *c, struct kd_err *err)
{
    const int64_t rows = block_rows(c), latent = c->in.latent, hidden = c->hidden;
    if (kd_mem_new(&c->x, rows * hidden, sizeof *c->x, "activations", err) ||
        kd_mem_new(&c->y, rows * c->wide.rows, sizeof *c->y, "outputs", err) ||
        kd_mem_new(&c->z, c->T * latent, sizeof *c->z, "latents", err))
        return -1;
    for (int64_t t = 0; t < rows; t++) {
        for (int64_t i = 0; i < hidden; i++)
            c->x[t * hidden + i] = activation(t, i);
        for (int64_t i = 0; i < latent; i++)
            c->z[t * latent + i] = kd_f32_bf16(activation(BLOCK + t, i));
    }
    for (int64_t t = rows; t < c->T; t++)
        memcpy(c->z + t * latent, c->z + t % rows * latent, (size_t)latent * sizeof *c->z);
    c->in.z = c->z;
    return 0;
}

static struct kd_mat expert_mat(const struct calib *c, int64_t rows, int64_t cols,
                                const uint8_t *codes)
{
    const int64_t rp = (rows + 127) / 128 * 128;
    return (struct kd_mat){.type = KD_MAT_EXL3,
                           .rows = rows,
                           .cols = cols,
                           .data = codes,
                           .ld = rp / KD_TILE,
                           .rows_padded = rp,
                           .cols_padded = (cols + 127) / 128 * 128,
                           .suh = c->sign,
                           .svh = c->sign,
                           .rate = kd_rate_from16(SIXTEENTHS),
                           .cb = KD_CB_MUL1};
}

/* Any bytes are codes; BF16 are values of 2^-7 to 2^-6. Scales of 2^-4 leave outputs of the
 * experts within a few units. */
static int make_weights(struct calib *c, int64_t inner, int64_t wide, struct kd_err *err)
{
    const int64_t latent = c->in.latent, rp = (inner + 127) / 128 * 128,
                  cp = (latent + 127) / 128 * 128, signs = rp > cp ? rp : cp,
                  bytes = rp / KD_TILE * (cp / KD_TILE) *
                          kd_rate_tile_bytes(kd_rate_from16(SIXTEENTHS));
    if (kd_mem_new(&c->codes, 2 * bytes, 1, "weights", err) ||
        kd_mem_new(&c->sign, signs, sizeof *c->sign, "signs", err) ||
        kd_mem_new(&c->values, wide * c->hidden, sizeof *c->values, "weights", err))
        return -1;
    for (int64_t i = 0; i < 2 * bytes; i++)
        c->codes[i] = (uint8_t)(kd_rand_u64(6, (uint64_t)i) >> 56);
    for (int64_t i = 0; i < signs; i++)
        c->sign[i] = kd_rand_u64(7, (uint64_t)i) & 1 ? 0x2c00 : 0xac00;
    for (int64_t i = 0; i < wide * c->hidden; i++)
        c->values[i] = (uint16_t)((kd_rand_u64(8, (uint64_t)i) >> 48 & 0x807f) | 0x3c00);
    c->w1 = expert_mat(c, inner, latent, c->codes);
    c->w3 = expert_mat(c, inner, latent, c->codes + bytes);
    c->wide = (struct kd_mat){
        .type = KD_MAT_BF16, .rows = wide, .cols = c->hidden, .data = c->values, .ld = c->hidden};
    return 0;
}

static int open_device(struct calib *c, struct kd_err *err)
{
    if (!kd_gpu_open(&c->g, c->index, err))
        return 0;
    kd_cmd_offer_cpu(err, "use --device cpu");
    return -1;
}

/* What is on the device from the start. */
static int fill_device(struct calib *c, struct kd_err *err)
{
    const int64_t bytes = block_rows(c) * c->hidden * (int64_t)sizeof *c->x;
    /* Before the encoder, which takes what is free as its own. */
    if (c->fast && (kd_gpu_alloc(c->g, &c->x_there, bytes, "activations", err) ||
                    kd_gpu_upload(c->g, c->x_there, c->x, bytes, err) || kd_gpu_wait(c->g, err)))
        return -1;
    if (kd_gpu_encoder_open(&c->run.encoder, &c->index, 1, 0, err))
        return -1;
    if (c->fast)
        kd_gpu_encoder_calibrate(c->run.encoder, KD_GPU_CALIB_FAST);
    if (kd_gpu_latents_open(&c->latents, c->run.encoder, c->z, c->T, c->in.latent, err) ||
        kd_hess_on_device(&c->run, &c->trunk, err))
        return -1;
    c->in.z_there = c->latents;
    return c->trunk.sums ? 0 : no_room("a Hessian", err);
}

static void release(struct calib *c)
{
    kd_hess_release(&c->inner);
    kd_hess_release(&c->trunk);
    kd_gpu_latents_close(c->latents);
    kd_gpu_encoder_close(c->run.encoder);
    if (c->g)
        kd_gpu_release(c->g, c->x_there);
    kd_gpu_close(c->g);
    kd_mem_free(c->codes);
    kd_mem_free(c->sign);
    kd_mem_free(c->values);
    kd_mem_free(c->x);
    kd_mem_free(c->y);
    kd_mem_free(c->z);
}

int kd_bench_calib(const struct kd_bench *b, struct kd_err *err)
{
    struct calib c = {
        .b = b, .run = *b->run, .fast = b->calib_class && !strcmp(b->calib_class, "fast")};
    struct kd_plan_model m;
    if (kd_bench_device(b, &c.index, err))
        return -1;
    const bool device = c.index >= 0;
    if (c.fast && !device)
        return kd_cmd_encode_class(&c.run, b->calib_class, &c.fast, err);
    if (b->shape && strcmp(b->shape, "k3") ? kd_plan_model_load(&m, b->shape, err)
                                           : kd_plan_model_k3(&m, err))
        return -1;
    c.T = b->rows ? b->rows : device ? ROWS_DEVICE : ROWS_CPU;
    c.hidden = m.cfg.hidden;
    c.in = (struct kd_layer_inputs){.T = c.T,
                                    .latent = m.cfg.latent,
                                    .situ_beta = m.cfg.situ_beta,
                                    .situ_linear = m.cfg.situ_linear,
                                    .block_rows = block_rows(&c)};
    int rc = (device && open_device(&c, err)) ||
             make_weights(&c, m.cfg.moe_inter, m.cfg.kda_heads * m.cfg.kda_dim, err) ||
             make_rows(&c, err) || kd_hess_open(&c.inner, c.w1.rows, err) ||
             kd_hess_open(&c.trunk, c.hidden, err) || (device && fill_device(&c, err)) ||
             put_limit(&c, err) || measure(&c, err);
    release(&c);
    return rc ? -1 : 0;
}
