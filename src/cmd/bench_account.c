/* bench forward --account: a model's steps and a prefill on a device, by parts of a layer and by
 * kernels. */
#include "base/mem.h"
#include "base/rand.h"
#include "cmd/bench.h"
#include "cmd/cmd.h"
#include "gpu/account.h"
#include "model/k3.h"

#include <stdio.h>

enum {
    SEQUENCES = 64, /* at most */
    PROMPT = 4096,
    BEFORE = 200, /* positions of a sequence before a step is measured */
    WARM = 3,     /* of each kind, not counted */
    TIMES = 5     /* that are */
};

struct accounts {
    struct kd_k3_model *m;
    struct kd_k3_seq *seq[SEQUENCES];
    int32_t ids[PROMPT];
    float *logits; /* [SEQUENCES][vocab] */
    int64_t batch;
};

static void close_seqs(struct accounts *a)
{
    for (int i = 0; i < SEQUENCES; i++) {
        kd_k3_seq_close(a->seq[i]);
        a->seq[i] = NULL;
    }
}

/* Every sequence one token on. */
static int step(struct accounts *a, const struct kd_k3_options *o, struct kd_err *err)
{
    struct kd_k3_feed feed[SEQUENCES];
    for (int64_t s = 0; s < a->batch; s++)
        feed[s] = (struct kd_k3_feed){.seq = a->seq[s],
                                      .ids = &a->ids[(kd_k3_seq_pos(a->seq[s]) + 7 * s) % PROMPT],
                                      .count = 1,
                                      .want = 1};
    return kd_k3_forward(a->m, feed, a->batch, o, a->logits, err);
}

/* A new sequence of so many tokens. */
static int feed(struct accounts *a, int64_t s, int64_t count, const struct kd_k3_options *o,
                struct kd_err *err)
{
    kd_k3_seq_close(a->seq[s]);
    a->seq[s] = NULL;
    if (kd_k3_seq_open(&a->seq[s], a->m, err))
        return -1;
    struct kd_k3_feed f = {.seq = a->seq[s], .ids = a->ids, .count = count, .want = 1};
    return kd_k3_forward(a->m, &f, 1, o, a->logits, err);
}

static void put(const struct kd_bench *b, const struct kd_gpu_account *a)
{
    double all = 0;
    for (int i = 0; i < a->rows; i++)
        all += a->row[i].ms;
    kd_jw_open(b->w, "parts", '[');
    for (int i = 0; i < a->rows; i++) {
        const char *kernel = a->row[i].kernel;
        double ms = a->row[i].ms / TIMES, each = a->row[i].ms / (double)a->row[i].count;
        kd_jw_open(b->w, NULL, '{');
        kd_jw_str(b->w, "part", a->row[i].part ? a->row[i].part : "before");
        if (kernel)
            kd_jw_str(b->w, "kernel", kernel);
        kd_jw_num(b->w, "count", (double)a->row[i].count / TIMES);
        kd_jw_num(b->w, "ms", ms);
        kd_jw_close(b->w, '}');
        if (b->screen)
            printf("  %-20s %-26s %5.1f x %9.4f ms = %9.4f ms, %4.1f %%\n",
                   a->row[i].part ? a->row[i].part : "before", kernel ? kernel : "",
                   (double)a->row[i].count / TIMES, each, ms, 100 * a->row[i].ms / all);
    }
    kd_jw_close(b->w, ']');
    kd_jw_num(b->w, "ms", all / TIMES);
    if (b->screen)
        printf("  %-20s %-26s %31.4f ms\n", "all", "", all / TIMES);
}

/* TIMES of one kind of work, of them all in one account. */
static int measure(const struct kd_bench *b, struct accounts *a, bool prompt,
                   enum kd_k3_account_of of, struct kd_err *err)
{
    static const char *const names[] = {"as it is", "by parts", "by kernels"};
    struct kd_gpu_account all = {0}, none = {0};
    char what[64];
    if (prompt)
        snprintf(what, sizeof what, "a prompt of %d tokens", PROMPT);
    else
        snprintf(what, sizeof what, "a step of %lld", (long long)a->batch);
    for (int i = 0; i < WARM + TIMES; i++) {
        const struct kd_k3_options o = {.account = i < WARM ? &none : &all, .account_of = of};
        if (kd_cmd_stop)
            return kd_fail(err, KD_ECANCEL, "stopped");
        if (prompt ? feed(a, 0, PROMPT, &o, err) : step(a, &o, err))
            return -1;
    }
    kd_jw_open(b->w, NULL, '{');
    kd_jw_str(b->w, "work", what);
    kd_jw_str(b->w, "of", names[of]);
    if (b->screen)
        printf("%s, %s\n", what, names[of]);
    put(b, &all);
    kd_jw_close(b->w, '}');
    return 0;
}

static int run(const struct kd_bench *b, struct accounts *a, struct kd_err *err)
{
    static const int64_t batches[] = {1, 8, SEQUENCES};
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        a->batch = batches[i];
        for (int64_t s = 0; s < a->batch; s++)
            if (feed(a, s, BEFORE, NULL, err))
                return -1;
        for (int of = KD_K3_ACCOUNT_STEP; of <= KD_K3_ACCOUNT_KERNELS; of++)
            if (measure(b, a, false, (enum kd_k3_account_of)of, err))
                return -1;
        close_seqs(a);
    }
    return measure(b, a, true, KD_K3_ACCOUNT_PARTS, err) ||
                   measure(b, a, true, KD_K3_ACCOUNT_KERNELS, err)
               ? -1
               : 0;
}

int kd_bench_account(const struct kd_bench *b, struct kd_k3_model *m, struct kd_err *err)
{
    const int64_t vocab = kd_k3_config(m)->vocab;
    struct accounts *a;
    if (kd_mem_zero(&a, 1, sizeof *a, "accounts", err))
        return -1;
    a->m = m;
    for (int i = 0; i < PROMPT; i++)
        a->ids[i] = (int32_t)(kd_rand_u64(3, (uint64_t)i) % (uint64_t)vocab);
    int rc = kd_k3_logits_new(m, &a->logits, SEQUENCES, err) || run(b, a, err);
    close_seqs(a);
    kd_k3_logits_free(m, a->logits);
    kd_mem_free(a);
    return rc ? -1 : 0;
}
