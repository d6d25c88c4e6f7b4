/* bench quantize: an expert's projection from Hessian to packed tiles, over and over in as many
 * lanes as a conversion has, beside the bare trellis search of the same device in the same run. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/show.h"
#include "cmd/bench.h"
#include "cmd/cmd.h"
#include "cmd/device.h"
#include "codec/quant.h"
#include "farm/farm.h"
#include "farm/worker.h"
#include "plan/bytes.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS = 512,   /* rows of the Hessian */
    TENSORS = 10,   /* of a lane, unless --tiles says otherwise */
    SEARCHED = 256, /* tiles of a multiprocessor in the bare search */
    SCALE = 118,
    SCALES = 5 /* MXFP4 scales 2^-9 to 2^-5 */
};

struct quantize {
    const struct kd_bench *b;
    struct kd_run run;
    struct kd_mat w; /* [rows][cols], MXFP4: */
    uint8_t *codes, *scale;
    struct kd_hess h;
    struct kd_rate rate;
    int lanes, tensors;
    double hessian_s, bare; /* tiles a second */
    struct kd_gpu_encoder_facts facts;
    pthread_mutex_t lock; /* of what follows */
    int next, done;
    double began, *ended; /* of each tensor, in the order of their ends */
    bool failed;
    struct kd_err err; /* the first one's */
};

static int make_weights(struct quantize *q, struct kd_err *err)
{
    struct kd_mat *w = &q->w;
    w->type = KD_MAT_MXFP4;
    w->ld = w->cols / 2;
    w->ld_scale = (w->cols + 31) / 32;
    if (kd_mem_new(&q->codes, w->rows * w->ld, 1, "weights", err) ||
        kd_mem_new(&q->scale, w->rows * w->ld_scale, 1, "scales", err))
        return -1;
    w->data = q->codes;
    w->scale = q->scale;
    for (int64_t i = 0; i < w->rows * w->ld; i++)
        q->codes[i] = (uint8_t)(kd_rand_u64(1, (uint64_t)i) >> 56);
    for (int64_t i = 0; i < w->rows * w->ld_scale; i++)
        q->scale[i] = (uint8_t)(SCALE + kd_rand_u64(2, (uint64_t)i) % SCALES);
    return 0;
}

/* Activations of uneven sizes that have something in common. */
static int make_hessian(struct quantize *q, struct kd_err *err)
{
    const int64_t k = q->w.cols;
    float *x = NULL;
    int rc =
        kd_hess_open(&q->h, k, err) || kd_mem_new(&x, TOKENS * k, sizeof *x, "activations", err);
    for (int64_t i = 0; i < TOKENS * k && !rc; i++)
        x[i] = (1 + (float)kd_rand_unit(3, (uint64_t)(i % k))) *
               (kd_rand_bell(4, (uint64_t)i) + kd_rand_bell(5, (uint64_t)(i / k)));
    double start = kd_clock_s();
    rc = rc || kd_hess_on_device(&q->run, &q->h, err) ||
         kd_hess_add(&q->run, &q->h, x, k, TOKENS, err) || kd_hess_finish(&q->h, err);
    q->hessian_s = kd_clock_s() - start;
    kd_mem_free(x);
    return rc || kd_hess_share(&q->run, &q->h, err) ? -1 : 0;
}

/* The bare search, on the device alone. */
static int measure_search(struct quantize *q, int index, struct kd_err *err)
{
    struct kd_gpu *g;
    struct kd_series s = {.count = 0};
    struct kd_gpu_tile_figures f;
    float *target = NULL;
    uint16_t *states = NULL;
    if (kd_gpu_open(&g, index, err)) {
        kd_cmd_offer_cpu(err, "bench encode measures this CPU");
        return -1;
    }
    int64_t tiles = (int64_t)SEARCHED * kd_gpu_facts(g)->sms;
    if (q->b->tiles > 0 && q->b->tiles < tiles)
        tiles = q->b->tiles;
    int rc = kd_mem_new(&target, tiles * KD_TILE_WEIGHTS, sizeof *target, "tiles", err) ||
             kd_mem_new(&states, tiles * KD_TILE_WEIGHTS, sizeof *states, "states", err);
    if (!rc)
        kd_bench_gauss(target, tiles, kd_bench_scale(q->rate));
    const struct kd_gpu_tiles job = {.target = target,
                                     .tiles = tiles,
                                     .rate = q->rate,
                                     .codebook = KD_CB_MUL1,
                                     .seam = kd_recipe_of(KD_RECIPE_DEFAULT).seam,
                                     .states = states};
    for (int i = -1; i < KD_BENCH_REPEATS && !rc; i++) { /* the first one warms up */
        rc = kd_cmd_stop ? kd_fail(err, KD_ECANCEL, "stopped") : kd_gpu_search(g, &job, &f, err);
        if (i >= 0 && !rc)
            s.v[s.count++] = (double)tiles / f.seconds;
    }
    kd_series_close(&s);
    q->bare = kd_series_median(&s);
    kd_mem_free(target);
    kd_mem_free(states);
    kd_gpu_close(g);
    return rc ? -1 : 0;
}

/* The next tensor's number, or -1. */
static int take(struct quantize *q)
{
    pthread_mutex_lock(&q->lock);
    if (kd_cmd_stop && !q->failed) {
        q->failed = true;
        kd_fail(&q->err, KD_ECANCEL, "stopped");
    }
    int i = q->failed || q->next == q->tensors ? -1 : q->next++;
    pthread_mutex_unlock(&q->lock);
    return i;
}

static void *work(void *ctx)
{
    struct quantize *q = ctx;
    for (int i = take(q); i >= 0; i = take(q)) {
        const struct kd_quant_spec spec = {.rate = q->rate,
                                           .cb = KD_CB_MUL1,
                                           .recipe = kd_recipe_of(KD_RECIPE_DEFAULT),
                                           .seed = 100 + (uint64_t)i,
                                           .input_seed = 9};
        struct kd_quant_out out;
        struct kd_err err;
        int rc = kd_quant_tensor(&q->run, &q->w, &q->h, &spec, &out, &err);
        if (!rc)
            kd_quant_release(&out);
        pthread_mutex_lock(&q->lock);
        if (!rc)
            q->ended[q->done++] = kd_clock_s() - q->began;
        else if (!q->failed)
            q->err = err;
        q->failed = q->failed || rc;
        pthread_mutex_unlock(&q->lock);
    }
    return NULL;
}

static int run_lanes(struct quantize *q, struct kd_err *err)
{
    pthread_t thread[KD_FARM_LANES];
    int started = 0;
    q->began = kd_clock_s();
    for (; started < q->lanes; started++)
        if (pthread_create(&thread[started], NULL, work, q))
            break;
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    if (q->failed) {
        *err = q->err;
        return -1;
    }
    if (q->done < q->tensors)
        return kd_fail(err, KD_EIO, "no thread could be started");
    q->lanes = started;
    kd_gpu_encoder_facts(q->run.encoder, &q->facts);
    return 0;
}

static void put_result(const struct quantize *q)
{
    const struct kd_bench *b = q->b;
    const int64_t tiles = q->h.k / 16 * ((q->w.rows + 127) / 128 * 8); /* of a tensor, padded */
    const double each = (double)tiles, wall = q->ended[q->done - 1], net = each * q->done / wall,
                 searched = (double)q->facts.tiles / wall, share = searched / q->bare;
    /* While every lane had a tensor: from the end of the first `lanes` to that of the last one that
     * left others behind. */
    const int from = q->lanes - 1, to = q->done - q->lanes - 1;
    const double steady =
        to > from ? each * (to - from) / (q->ended[to] - q->ended[from]) * searched / net : 0;
    const int64_t bytes = q->facts.used_bytes;
    char used[32];
    kd_show_bytes(used, sizeof used, bytes);
    kd_jw_open(b->w, NULL, '{');
    kd_jw_num(b->w, "rate", (double)kd_rate_to16(q->rate) / 16);
    kd_jw_int(b->w, "outputs", q->w.rows);
    kd_jw_int(b->w, "inputs", q->w.cols);
    kd_jw_int(b->w, "tensors", q->done);
    kd_jw_int(b->w, "lanes", q->lanes);
    kd_jw_num(b->w, "seconds", wall);
    kd_jw_num(b->w, "tiles_s", net);
    kd_jw_num(b->w, "searched_tiles_s", searched);
    kd_jw_num(b->w, "bare_tiles_s", q->bare);
    kd_jw_num(b->w, "share", share);
    if (steady > 0)
        kd_jw_num(b->w, "steady_share", steady / q->bare);
    kd_jw_int(b->w, "device_bytes", bytes);
    kd_jw_int(b->w, "hessian_tokens", TOKENS);
    kd_jw_num(b->w, "hessian_seconds", q->hessian_s);
    kd_jw_close(b->w, '}');
    if (!b->screen)
        return;
    printf("%7.4f  %9.0f tiles/s from Hessian to packed tiles: %d tensors of %lld x %lld in %d "
           "lanes, %.2f s, %s of the device\n",
           (double)kd_rate_to16(q->rate) / 16, net, q->done, (long long)q->w.rows,
           (long long)q->w.cols, q->lanes, wall, used);
    printf("         %9.0f searched, those for the scales too: %.1f %% of the bare search's %.0f",
           searched, 100 * share, q->bare);
    if (steady > 0)
        printf(", %.1f %% while all lanes were at work", 100 * steady / q->bare);
    printf("\n         %9.3f s beside it for the Hessian of %d tokens\n", q->hessian_s, TOKENS);
}

static int one_rate(struct quantize *q, int index, struct kd_err *err)
{
    int rc = measure_search(q, index, err) ||
             kd_gpu_encoder_open(&q->run.encoder, &index, 1, 0, err) || make_hessian(q, err) ||
             kd_mem_new(&q->ended, q->tensors, sizeof *q->ended, "times", err) || run_lanes(q, err);
    if (!rc)
        put_result(q);
    kd_mem_free(q->ended);
    q->ended = NULL;
    q->next = q->done = 0;
    kd_hess_release(&q->h);
    memset(&q->h, 0, sizeof q->h);
    kd_gpu_encoder_close(q->run.encoder);
    q->run.encoder = NULL;
    return rc ? -1 : 0;
}

int kd_bench_quantize(const struct kd_bench *b, struct kd_err *err)
{
    static const unsigned standard[] = {32, 37, 0};
    unsigned rates[KD_BENCH_RATES + 1];
    struct quantize q = {.b = b, .run = *b->run, .lanes = b->lanes ? b->lanes : KD_WORKER_LANES};
    struct kd_plan_model m;
    int index;
    if (kd_bench_device(b, &index, err) || kd_bench_rates(b, standard, rates, err))
        return -1;
    if (index < 0)
        return kd_fail(err, KD_EUSAGE, "bench quantize is of a device: --device cuda");
    if (b->shape && strcmp(b->shape, "k3") ? kd_plan_model_load(&m, b->shape, err)
                                           : kd_plan_model_k3(&m, err))
        return -1;
    q.w.rows = m.cfg.moe_inter;
    q.w.cols = m.cfg.latent;
    const int64_t each = (q.w.rows / 16) * (q.w.cols / 16);
    q.tensors = TENSORS * q.lanes;
    if (b->tiles > 0 && b->tiles / each < q.tensors)
        q.tensors = (int)(b->tiles > each ? b->tiles / each : 1);
    pthread_mutex_init(&q.lock, NULL);
    int rc = make_weights(&q, err);
    for (int i = 0; !rc && rates[i]; i++) {
        q.rate = kd_rate_from16(rates[i]);
        rc = one_rate(&q, index, err);
    }
    pthread_mutex_destroy(&q.lock);
    kd_mem_free(q.codes);
    kd_mem_free(q.scale);
    return rc ? -1 : 0;
}
