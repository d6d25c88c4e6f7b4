/* bench forward: prefill and decoding of a whole model, on the CPU or on a device; there beside
 * what its memory allows for the bytes of a step. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/show.h"
#include "cmd/bench.h"
#include "cmd/cmd.h"
#include "cmd/model_device.h"
#include "gpu/memory.h"
#include "model/k3.h"
#include "plan/bytes.h"

#include <stdio.h>
#include <string.h>

enum {
    PREFILL = 512,
    LONG_PREFILL = 4096, /* on a device too */
    BATCH = 64,          /* at most */
    DEVICE_SPAN = 256    /* positions of a sequence before it begins anew, on a device */
};

struct forward {
    struct kd_k3_model *m;
    struct kd_k3_seq *seq[BATCH];
    int64_t batch, fed, span;
    int64_t vocab;
    float *logits; /* [BATCH][vocab] */
    int32_t ids[LONG_PREFILL];
    int64_t prompt;   /* tokens of a prefill */
    int device;       /* as struct kd_k3_open has it */
    double copy_gb_s; /* of the device's memory, reads and writes */
    uint8_t *used;    /* [layers][experts] of one step */
    int64_t used_count;
};

static void close_seqs(struct forward *f)
{
    for (int i = 0; i < BATCH; i++) {
        if (f->seq[i])
            kd_k3_seq_close(f->seq[i]);
        f->seq[i] = NULL;
    }
    f->fed = 0;
}

/* n new sequences of `prompt` tokens, one after the other, logits of the last. */
static int prefill(void *ctx, int64_t n, struct kd_err *err)
{
    struct forward *f = ctx;
    for (int64_t i = 0; i < n; i++) {
        if (kd_cmd_stop)
            return kd_fail(err, KD_ECANCEL, "stopped");
        close_seqs(f);
        if (kd_k3_seq_open(&f->seq[0], f->m, err))
            return -1;
        struct kd_k3_feed feed = {.seq = f->seq[0], .ids = f->ids, .count = f->prompt, .want = 1};
        if (kd_k3_forward(f->m, &feed, 1, NULL, f->logits, err))
            return -1;
    }
    return 0;
}

static int step(struct forward *f, const struct kd_k3_options *o, struct kd_err *err)
{
    struct kd_k3_feed feed[BATCH];
    if (f->fed == f->span)
        close_seqs(f);
    for (int64_t s = 0; s < f->batch; s++) {
        if (!f->seq[s] && kd_k3_seq_open(&f->seq[s], f->m, err))
            return -1;
        feed[s] = (struct kd_k3_feed){
            .seq = f->seq[s], .ids = &f->ids[(f->fed + 7 * s) % PREFILL], .count = 1, .want = 1};
    }
    f->fed++;
    return kd_k3_forward(f->m, feed, f->batch, o, f->logits, err);
}

/* n steps of `batch` sequences, begun anew every `span` tokens. */
static int decode(void *ctx, int64_t n, struct kd_err *err)
{
    struct forward *f = ctx;
    for (int64_t i = 0; i < n; i++) {
        if (kd_cmd_stop)
            return kd_fail(err, KD_ECANCEL, "stopped");
        if (step(f, NULL, err))
            return -1;
    }
    return 0;
}

static void routed(void *ctx, int64_t layer, int64_t seq, int64_t pos, const int32_t *ids,
                   const float *w)
{
    struct forward *f = ctx;
    const struct kd_k3_cfg *c = kd_k3_config(f->m);
    (void)seq;
    (void)pos;
    (void)w;
    for (int64_t i = 0; i < c->topk; i++) {
        uint8_t *u = ids[i] >= 0 ? &f->used[layer * c->experts + ids[i]] : NULL;
        f->used_count += u && !*u;
        if (u)
            *u = 1;
    }
}

/* What a step moves, and how far its time is from what the memory needs for that; per 93 layers
 * too, K3's number. */
static int put_bound(const struct kd_bench *b, struct forward *f, double ms, struct kd_err *err)
{
    const struct kd_k3_cfg *c = kd_k3_config(f->m);
    const struct kd_k3_options o = {.trace = routed, .trace_ctx = f};
    struct kd_k3_traffic t;
    memset(f->used, 0, (size_t)(c->layers * c->experts));
    f->used_count = 0;
    if (kd_k3_traffic(f->m, &t, err) || step(f, &o, err))
        return -1;
    double bytes = (double)t.trunk_bytes + (double)(f->used_count * t.expert_bytes) +
                   (double)f->batch *
                       ((double)t.state_bytes + (double)f->span * 0.5 * (double)t.position_bytes);
    double least = bytes / f->copy_gb_s * 1e-6, over = ms - least;
    kd_jw_num(b->w, "step_ms", ms);
    kd_jw_num(b->w, "step_bytes", bytes);
    kd_jw_int(b->w, "experts_read", f->used_count);
    kd_jw_num(b->w, "memory_ms", least);
    kd_jw_num(b->w, "overhead_ms", over);
    kd_jw_num(b->w, "overhead_ms_93_layers", over * 93 / (double)c->layers);
    if (b->screen)
        printf("         step %.3f ms; %.2f GB (%lld experts) take %.3f ms at %.0f GB/s; %.3f ms "
               "more, %.2f for 93 layers\n",
               ms, bytes * 1e-9, (long long)f->used_count, least, f->copy_gb_s, over,
               over * 93 / (double)c->layers);
    return 0;
}

static int one(const struct kd_bench *b, struct forward *f, const char *name,
               int (*work)(void *, int64_t, struct kd_err *), double per_unit, struct kd_err *err)
{
    struct kd_series s;
    close_seqs(f);
    /* Every grid of a span is recorded before it is timed. */
    if (f->device && work == decode && decode(f, f->span, err))
        return -1;
    if (kd_bench_series(b, work, f, per_unit, &s, err))
        return -1;
    kd_jw_open(b->w, NULL, '{');
    kd_jw_str(b->w, "phase", name);
    kd_jw_int(b->w, "batch", f->batch);
    kd_jw_int(b->w, "tokens", work == prefill ? f->prompt : f->batch);
    kd_jw_bool(b->w, "fast", !b->exact);
    kd_bench_put(b, "tokens_s", &s);
    if (b->screen)
        printf("%-8s %s %-4lld %9.1f tokens/s (%.1f to %.1f)\n", name,
               work == prefill ? "of   " : "batch",
               (long long)(work == prefill ? f->prompt : f->batch), kd_series_median(&s), s.v[0],
               s.v[s.count - 1]);
    int rc = f->device && work == decode
                 ? put_bound(b, f, per_unit / kd_series_median(&s) * 1e3, err)
                 : 0;
    kd_jw_close(b->w, '}');
    return rc;
}

static int copy_rate(int index, double *rate, struct kd_err *err)
{
    struct kd_gpu *g;
    if (kd_gpu_open(&g, index, err))
        return -1;
    int rc = kd_bench_copy_rate(g, rate, err);
    kd_gpu_close(g);
    return rc;
}

static int open_model(const struct kd_bench *b, struct forward *f, struct kd_err *err)
{
    struct kd_k3_open o = {.fast = !b->exact};
    if (kd_cmd_model_device(b->device, &f->device, err) ||
        (f->device && copy_rate(f->device - 1, &f->copy_gb_s, err)))
        return -1;
    if (b->account && !f->device)
        return kd_fail(err, KD_EUSAGE, "--account is for --device cuda: a CPU has no events");
    o.device = f->device;
    if (!b->shape)
        return kd_k3_open(&f->m, b->model, b->run, &o, err);
    struct kd_plan_model p;
    const struct kd_k3_made made = {.layers = b->layers,
                                    .bpw = b->bpw,
                                    .trunk_bpw = b->trunk_bpw,
                                    .head_bpw = b->head_bpw,
                                    .seed = 1};
    if (strcmp(b->shape, "k3") ? kd_plan_model_load(&p, b->shape, err) : kd_plan_model_k3(&p, err))
        return -1;
    return kd_k3_make(&f->m, &p.cfg, &made, b->run, f->device, err);
}

static int put_model(const struct kd_bench *b, const struct forward *f, double seconds,
                     struct kd_err *err)
{
    const struct kd_k3_cfg *c = kd_k3_config(f->m);
    struct kd_gpu *g;
    char each[32];
    if (!f->device)
        return 0;
    if (kd_gpu_open(&g, f->device - 1, err))
        return -1;
    const struct kd_gpu_facts *d = kd_gpu_facts(g);
    int64_t held = d->memory_bytes - d->free_bytes;
    kd_show_bytes(each, sizeof each, held);
    kd_jw_open(b->w, NULL, '{');
    kd_jw_str(b->w, "device", d->name);
    kd_jw_int(b->w, "layers", c->layers);
    kd_jw_int(b->w, "device_bytes", held);
    kd_jw_num(b->w, "load_seconds", seconds);
    kd_jw_num(b->w, "copy_gb_s", f->copy_gb_s);
    kd_jw_close(b->w, '}');
    if (b->screen)
        printf("%s: %lld layers, %s of the device in use, there after %.1f s; copies %.0f GB/s\n",
               d->name, (long long)c->layers, each, seconds, f->copy_gb_s);
    kd_gpu_close(g);
    return 0;
}

static int run_all(const struct kd_bench *b, struct forward *f, struct kd_err *err)
{
    static const int64_t batches[] = {1, 8, 64};
    const struct kd_k3_cfg *c = kd_k3_config(f->m);
    int rc = kd_k3_logits_new(f->m, &f->logits, BATCH, err) ||
             kd_mem_new(&f->used, c->layers * c->experts, 1, "experts", err);
    for (int i = 0; i < LONG_PREFILL && !rc; i++)
        f->ids[i] = (int32_t)(kd_rand_u64(3, (uint64_t)i) % (uint64_t)f->vocab);
    f->batch = 1;
    for (f->prompt = PREFILL; f->prompt <= (f->device ? LONG_PREFILL : PREFILL) && !rc;
         f->prompt *= LONG_PREFILL / PREFILL)
        rc = one(b, f, "prefill", prefill, (double)f->prompt, err);
    for (int i = 0; i < (f->device ? 3 : 2) && !rc; i++) {
        f->batch = batches[i];
        rc = one(b, f, "decode", decode, (double)f->batch, err);
    }
    return rc ? -1 : 0;
}

int kd_bench_forward(const struct kd_bench *b, struct kd_err *err)
{
    struct forward *f;
    if (!b->model == !b->shape)
        return kd_fail(err, KD_EUSAGE, "the model to run is needed (--model), or its --shape");
    if (kd_mem_zero(&f, 1, sizeof *f, "bench", err))
        return -1;
    double start = kd_clock_s();
    int rc = open_model(b, f, err);
    if (!rc) {
        f->vocab = kd_k3_config(f->m)->vocab;
        f->span = f->device ? DEVICE_SPAN : PREFILL;
        rc = put_model(b, f, kd_clock_s() - start, err) ||
             (b->account ? kd_bench_account(b, f->m, err) : run_all(b, f, err));
    }
    if (!rc) {
        int64_t peak = kd_mem_peak_bytes();
        kd_jw_open(b->w, NULL, '{');
        kd_jw_int(b->w, "peak_memory_bytes", peak);
        kd_jw_close(b->w, '}');
        if (b->screen)
            printf("peak memory %.1f MB, the mapped model not counted\n", (double)peak * 1e-6);
    }
    close_seqs(f);
    kd_k3_logits_free(f->m, f->logits);
    if (f->m)
        kd_k3_close(f->m);
    kd_mem_free(f->used);
    kd_mem_free(f);
    return rc ? -1 : 0;
}
