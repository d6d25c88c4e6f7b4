/* bench forward: prefill and decoding of a whole model. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"
#include "cmd/bench.h"
#include "cmd/cmd.h"
#include "model/k3.h"

#include <stdio.h>

enum { PREFILL = 512, BATCH = 8 };

struct forward {
    struct kd_k3_model *m;
    struct kd_k3_seq *seq[BATCH];
    int64_t batch, fed;
    int64_t vocab;
    float *logits; /* [BATCH][vocab] */
    int32_t ids[PREFILL];
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

/* n new sequences of PREFILL tokens, one after the other, logits of the last. */
static int prefill(void *ctx, int64_t n, struct kd_err *err)
{
    struct forward *f = ctx;
    for (int64_t i = 0; i < n; i++) {
        if (kd_cmd_stop)
            return kd_fail(err, KD_ECANCEL, "stopped");
        close_seqs(f);
        if (kd_k3_seq_open(&f->seq[0], f->m, err))
            return -1;
        struct kd_k3_feed feed = {.seq = f->seq[0], .ids = f->ids, .count = PREFILL, .want = 1};
        if (kd_k3_forward(f->m, &feed, 1, NULL, f->logits, err))
            return -1;
    }
    return 0;
}

/* n steps of `batch` sequences, begun anew every PREFILL tokens. */
static int decode(void *ctx, int64_t n, struct kd_err *err)
{
    struct forward *f = ctx;
    struct kd_k3_feed feed[BATCH];
    for (int64_t i = 0; i < n; i++, f->fed++) {
        if (kd_cmd_stop)
            return kd_fail(err, KD_ECANCEL, "stopped");
        if (f->fed == PREFILL)
            close_seqs(f);
        for (int64_t s = 0; s < f->batch; s++) {
            if (!f->seq[s] && kd_k3_seq_open(&f->seq[s], f->m, err))
                return -1;
            feed[s] = (struct kd_k3_feed){
                .seq = f->seq[s], .ids = &f->ids[f->fed], .count = 1, .want = 1};
        }
        if (kd_k3_forward(f->m, feed, f->batch, NULL, f->logits, err))
            return -1;
    }
    return 0;
}

static int one(const struct kd_bench *b, struct forward *f, const char *name,
               int (*work)(void *, int64_t, struct kd_err *), double per_unit, struct kd_err *err)
{
    struct kd_series s;
    close_seqs(f);
    if (kd_bench_series(b, work, f, per_unit, &s, err))
        return -1;
    kd_jw_open(b->w, NULL, '{');
    kd_jw_str(b->w, "phase", name);
    kd_jw_int(b->w, "batch", f->batch);
    kd_bench_put(b, "tokens_s", &s);
    kd_jw_close(b->w, '}');
    if (b->screen)
        printf("%-8s batch %-2lld %9.1f tokens/s (%.1f to %.1f)\n", name, (long long)f->batch,
               kd_series_median(&s), s.v[0], s.v[s.count - 1]);
    return 0;
}

int kd_bench_forward(const struct kd_bench *b, struct kd_err *err)
{
    struct forward *f;
    if (!b->model)
        return kd_fail(err, KD_EUSAGE, "the model to run is needed (--model)");
    if (kd_mem_zero(&f, 1, sizeof *f, "bench", err))
        return -1;
    f->batch = 1;
    int rc = kd_k3_open(&f->m, b->model, b->run, NULL, err);
    if (!rc) {
        f->vocab = kd_k3_config(f->m)->vocab;
        rc = kd_mem_new(&f->logits, BATCH * f->vocab, sizeof *f->logits, "logits", err);
    }
    for (int i = 0; i < PREFILL && !rc; i++)
        f->ids[i] = (int32_t)(kd_rand_u64(3, (uint64_t)i) % (uint64_t)f->vocab);
    if (!rc)
        rc = one(b, f, "prefill", prefill, PREFILL, err) || one(b, f, "decode", decode, 1, err);
    f->batch = BATCH;
    if (!rc)
        rc = one(b, f, "decode", decode, BATCH, err);
    if (!rc) {
        int64_t peak = kd_mem_peak_bytes();
        kd_jw_open(b->w, NULL, '{');
        kd_jw_int(b->w, "peak_memory_bytes", peak);
        kd_jw_close(b->w, '}');
        if (b->screen)
            printf("peak memory %.1f MB, the mapped model not counted\n", (double)peak * 1e-6);
    }
    close_seqs(f);
    if (f->m)
        kd_k3_close(f->m);
    kd_mem_free(f->logits);
    kd_mem_free(f);
    return rc ? -1 : 0;
}
