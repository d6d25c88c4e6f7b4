/* A whole model on a device against the same model on the CPU and its goldens:
 *
 *     gpu_model_device [MODEL ...]
 *
 * (default: tests/data/k3-nano). Linked with CUDA it runs on a GPU and skips (77) where there is
 * none; linked with tests/gpu/device_emulated.cpp it runs everywhere, on short prompts. Bounds are
 * of the largest value compared (docs/numerics.md). */
#include "base/mem.h"
#include "gpu/account.h"
#include "model/k3.h"
#include "must.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef KD_EMULATED
enum { SHORT = 9, CONTINUED = 2, PROMPTS = 1 };
#else
enum { SHORT = 1 << 20, CONTINUED = 24, PROMPTS = 16 };
#endif

static int failures;
static struct kd_err err;

static void hold(bool good, const char *what)
{
    if (good)
        return;
    printf("WRONG: %s\n", what);
    failures++;
}

struct pair {
    bool checks; /* the device's class: tokens must be the CPU's */
    struct kd_kern kern;
    struct kd_run run;
    struct kd_k3_model *cpu, *dev;
    const struct kd_k3_cfg *c;
};

static float *floats(int64_t n)
{
    float *p;
    must(kd_mem_zero(&p, n, sizeof *p, "floats", &err));
    return p;
}

static double greatest(const float *a, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fabs((double)a[i]) > most ? fabs((double)a[i]) : most;
    return most;
}

/* Of the largest of b. */
static double apart(const float *a, const float *b, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        most = d > most || d != d ? d : most;
    }
    return most / greatest(b, n);
}

static int32_t likeliest(const float *logits, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return (int32_t)best;
}

/* What a run shows: the stream after each layer, the routing. */
struct seen {
    const struct kd_k3_cfg *c;
    int64_t T;
    float *stream; /* [layers][T][hidden] */
    int32_t *ids;  /* [layers][T][topk] */
    float *weight;
};

static void after_layer(void *ctx, int64_t layer, const struct kd_k3_stream *s)
{
    struct seen *v = ctx;
    memcpy(v->stream + layer * v->T * s->hidden, s->p, (size_t)(s->T * s->hidden) * sizeof(float));
}

static void routed(void *ctx, int64_t layer, int64_t seq, int64_t pos, const int32_t *ids,
                   const float *w)
{
    struct seen *v = ctx;
    int64_t k = v->c->topk;
    (void)seq;
    memcpy(v->ids + (layer * v->T + pos) * k, ids, (size_t)k * sizeof *ids);
    memcpy(v->weight + (layer * v->T + pos) * k, w, (size_t)k * sizeof *w);
}

static void watch(struct kd_k3_model *m, const int32_t *ids, int64_t T, struct seen *v,
                  float *logits)
{
    const struct kd_k3_cfg *c = kd_k3_config(m);
    struct kd_k3_options o = {
        .trace = routed, .trace_ctx = v, .after_layer = after_layer, .after_ctx = v};
    struct kd_k3_seq *s;
    *v = (struct seen){.c = c, .T = T};
    v->stream = floats(c->layers * T * c->hidden);
    v->weight = floats(c->layers * T * c->topk);
    v->ids = (int32_t *)(void *)floats(c->layers * T * c->topk);
    must(kd_k3_seq_open(&s, m, &err));
    struct kd_k3_feed feed = {.seq = s, .ids = ids, .count = T, .want = 2};
    must(kd_k3_forward(m, &feed, 1, &o, logits, &err));
    hold(kd_k3_seq_pos(s) == T, "the position after a feed");
    kd_k3_seq_close(s);
}

static void seen_free(struct seen *v)
{
    kd_mem_free(v->stream);
    kd_mem_free(v->ids);
    kd_mem_free(v->weight);
}

/* Experts of one list that the other has not; *margin: their largest weight, which is how far they
 * were from being left out by both. */
static int64_t flips(const struct seen *a, const struct seen *b, double *margin)
{
    const struct kd_k3_cfg *c = a->c;
    int64_t n = 0;
    for (int64_t at = c->dense_layers * a->T; at < c->layers * a->T; at++)
        for (int64_t i = 0; i < c->topk; i++) {
            bool there = false;
            for (int64_t j = 0; j < c->topk; j++)
                there = there || a->ids[at * c->topk + i] == b->ids[at * c->topk + j];
            n += !there;
            if (!there && (double)a->weight[at * c->topk + i] > *margin)
                *margin = (double)a->weight[at * c->topk + i];
        }
    return n;
}

/* Prefill at once: streams, routing, logits of every position. */
static void compare_prefill(struct pair *p, const int32_t *ids, int64_t T, double bound)
{
    const struct kd_k3_cfg *c = p->c;
    struct seen a, b;
    float *la = floats(T * c->vocab), *lb = floats(T * c->vocab);
    double margin = 0, stream = 0;
    watch(p->dev, ids, T, &a, la);
    watch(p->cpu, ids, T, &b, lb);
    for (int64_t l = 0; l < c->layers; l++) {
        int64_t n = T * c->hidden;
        double d = apart(a.stream + l * n, b.stream + l * n, n);
        stream = d > stream || d != d ? d : stream;
    }
    int64_t flipped = flips(&a, &b, &margin);
    double logits = apart(la, lb, T * c->vocab);
    printf("  prefill of %lld: stream %.2e, logits %.2e; %lld of %lld expert ids differ",
           (long long)T, stream, logits, (long long)flipped,
           (long long)((c->layers - c->dense_layers) * T * c->topk));
    printf(flipped ? " (largest weight %.3f)\n" : "\n", margin);
    hold(flipped || (stream <= bound && logits <= bound), "prefill's bound");
    int64_t other = 0;
    for (int64_t t = 0; t < T; t++)
        other += likeliest(la + t * c->vocab, c->vocab) != likeliest(lb + t * c->vocab, c->vocab);
    printf("  likeliest token: %lld of %lld positions differ\n", (long long)other, (long long)T);
    seen_free(&a);
    seen_free(&b);
    kd_mem_free(la);
    kd_mem_free(lb);
}

/* Feeds ids in pieces, then goes on greedily; logits: after the prompt. */
static void greedy(struct kd_k3_model *m, const int32_t *ids, int64_t T, int64_t step, int32_t *out,
                   float *logits)
{
    int64_t vocab = kd_k3_config(m)->vocab;
    float *l = floats(vocab);
    struct kd_k3_seq *s;
    must(kd_k3_seq_open(&s, m, &err));
    for (int64_t t = 0; t < T; t += step) {
        struct kd_k3_feed f = {
            .seq = s, .ids = ids + t, .count = T - t < step ? T - t : step, .want = 1};
        must(kd_k3_forward(m, &f, 1, NULL, l, &err));
    }
    memcpy(logits, l, (size_t)vocab * sizeof *l);
    for (int64_t i = 0; i < CONTINUED; i++) {
        out[i] = likeliest(l, vocab);
        struct kd_k3_feed f = {.seq = s, .ids = &out[i], .count = 1, .want = 1};
        must(kd_k3_forward(m, &f, 1, NULL, l, &err));
    }
    kd_k3_seq_close(s);
    kd_mem_free(l);
}

static void compare_cuts(struct pair *p, const int32_t *ids, int64_t T, double bound)
{
    static const int64_t steps[] = {1, 7, 16, 64, 4096};
    int64_t vocab = p->c->vocab;
    float *want = floats(vocab), *first = floats(vocab), *l = floats(vocab);
    int32_t tokens[CONTINUED], mine[CONTINUED];
    greedy(p->cpu, ids, T, T, tokens, want);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        greedy(p->dev, ids, T, steps[i], mine, i ? l : first);
        double d = apart(i ? l : first, want, vocab);
        printf("  in pieces of %-4lld: logits %.2e of the CPU's%s; %s\n", (long long)steps[i], d,
               !i || memcmp(l, first, (size_t)vocab * sizeof *l) ? "" : ", bits of one by one",
               memcmp(mine, tokens, sizeof mine) ? "OTHER TOKENS" : "the same tokens");
        hold(d <= bound && (!p->checks || !memcmp(mine, tokens, sizeof mine)), "pieces");
    }
    kd_mem_free(want);
    kd_mem_free(first);
    kd_mem_free(l);
}

/* Several sequences at once: the bits of each alone. */
static void compare_batch(struct pair *p, const int32_t *ids, int64_t T)
{
    enum { N = 5 };
    int64_t vocab = p->c->vocab, n = T < 6 ? T : 6, bad = 0;
    float *alone = floats(N * vocab), *all = floats(N * vocab);
    struct kd_k3_seq *s[2 * N];
    struct kd_k3_feed feed[N];
    for (int64_t i = 0; i < 2 * N; i++)
        must(kd_k3_seq_open(&s[i], p->dev, &err));
    for (int64_t t = 0; t < n; t++) {
        int64_t count = 0;
        for (int64_t i = 0; i < N; i++) {
            struct kd_k3_feed f = {.seq = s[i], .ids = &ids[(t + i) % T], .count = 1, .want = 1};
            if (i > t + 1) /* they begin one after the other */
                continue;
            must(kd_k3_forward(p->dev, &f, 1, NULL, alone + i * vocab, &err));
            f.seq = s[N + i];
            feed[count++] = f;
        }
        must(kd_k3_forward(p->dev, feed, count, NULL, all, &err));
        bad += memcmp(all, alone, (size_t)(count * vocab) * sizeof *all) != 0;
    }
    for (int64_t i = 0; i < 2 * N; i++)
        kd_k3_seq_close(s[i]);
    printf("  %d sequences at once and alone: %lld of %lld steps differ in bits\n", N,
           (long long)bad, (long long)n);
    hold(!bad, "a batch changes bits");
    kd_mem_free(alone);
    kd_mem_free(all);
}

struct bytes {
    unsigned char *data;
    int64_t size, at;
};

static int put(void *ctx, const void *data, int64_t n, struct kd_err *e)
{
    struct bytes *b = ctx;
    (void)e;
    memcpy(b->data + b->at, data, (size_t)n);
    b->at += n;
    return 0;
}

static int get(void *ctx, void *data, int64_t n, struct kd_err *e)
{
    struct bytes *b = ctx;
    (void)e;
    memcpy(data, b->data + b->at, (size_t)n);
    b->at += n;
    return 0;
}

/* Copies and states written and read go on with the same bits; the CPU takes a device's state. */
static void compare_states(struct pair *p, const int32_t *ids, int64_t T, double bound)
{
    int64_t vocab = p->c->vocab, n = T - 1;
    float *l[4];
    struct kd_k3_seq *s[4];
    for (int i = 0; i < 4; i++)
        l[i] = floats(vocab);
    must(kd_k3_seq_open(&s[0], p->dev, &err));
    struct kd_k3_feed f = {.seq = s[0], .ids = ids, .count = n, .want = 0};
    must(kd_k3_forward(p->dev, &f, 1, NULL, NULL, &err));
    must(kd_k3_seq_copy(&s[1], s[0], &err));
    struct bytes b = {.size = kd_k3_seq_bytes(s[0])};
    must(kd_mem_new(&b.data, b.size, 1, "a state", &err));
    must(kd_k3_seq_write(s[0], put, &b, &err));
    hold(b.at == b.size, "the size of a written state");
    b.at = 0;
    must(kd_k3_seq_read(&s[2], p->dev, n, get, &b, &err));
    b.at = 0;
    must(kd_k3_seq_read(&s[3], p->cpu, n, get, &b, &err));
    for (int i = 0; i < 4; i++) {
        struct kd_k3_feed one = {.seq = s[i], .ids = ids + n, .count = 1, .want = 1};
        must(kd_k3_forward(i < 3 ? p->dev : p->cpu, &one, 1, NULL, l[i], &err));
    }
    double d = apart(l[3], l[0], vocab);
    printf("  a copy, a state read back, the CPU going on from it: %s, %s, logits %.2e\n",
           memcmp(l[1], l[0], (size_t)vocab * 4) ? "DIFFERENT" : "same bits",
           memcmp(l[2], l[0], (size_t)vocab * 4) ? "DIFFERENT" : "same bits", d);
    hold(!memcmp(l[1], l[0], (size_t)vocab * 4) && !memcmp(l[2], l[0], (size_t)vocab * 4) &&
             d <= bound,
         "states");
    for (int i = 0; i < 4; i++) {
        kd_k3_seq_close(s[i]);
        kd_mem_free(l[i]);
    }
    kd_mem_free(b.data);
}

static void refusals(struct pair *p)
{
    const int32_t ids[2] = {0, (int32_t)p->c->vocab};
    float *l = floats(2 * p->c->vocab);
    struct kd_k3_seq *s;
    must(kd_k3_seq_open(&s, p->dev, &err));
    struct kd_k3_feed f = {.seq = s, .ids = ids, .count = 2, .want = 2};
    hold(kd_k3_forward(p->dev, &f, 1, NULL, l, &err) == -1 && strstr(err.msg, "vocabulary"),
         "a token that is none");
    f.count = 1;
    f.draft = true;
    hold(kd_k3_forward(p->dev, &f, 1, NULL, l, &err) == -1 && strstr(err.msg, "draft"), "a draft");
    struct kd_k3_options o = {.experts_used = p->c->topk + 1};
    f.draft = false;
    hold(kd_k3_forward(p->dev, &f, 1, &o, l, &err) == -1 && strstr(err.msg, "experts a token"),
         "too many experts");
    o = (struct kd_k3_options){.experts_used = 1, .expert_mass = 0.5};
    must(kd_k3_forward(p->dev, &f, 1, &o, l, &err));
    hold(kd_k3_seq_pos(s) == 1, "a feed that was refused leaves the sequence");
    kd_k3_seq_close(s);
    kd_mem_free(l);
}

static void check_model(const char *dir, bool checks)
{
    struct pair p = {.checks = checks};
    char path[600];
    struct kd_ckpt *golden;
    struct kd_k3_open o = {.device = 1, .fast = !checks};
    const double bound = checks ? 1e-5 : 2e-2;
    must(kd_kern_pick(&p.kern, &err));
    p.run.kern = &p.kern;
    must(kd_pool_open(&p.run.pool, 2, &err));
    must(kd_k3_open(&p.cpu, dir, &p.run, NULL, &err));
    must(kd_k3_open(&p.dev, dir, &p.run, &o, &err));
    p.c = kd_k3_config(p.cpu);
    printf("%s, %s\n", dir, checks ? "for checks" : "fast");
    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    must(kd_ckpt_open(&golden, path, false, &err));
    for (int i = 0; i < PROMPTS; i++) {
        snprintf(path, sizeof path, "%d.ids", i);
        const struct kd_tensor *t = kd_ckpt_find(golden, path);
        if (!t)
            break;
        int64_t T = t->shape[0] < SHORT ? t->shape[0] : SHORT;
        const int32_t *ids = (const int32_t *)(const void *)t->data;
        compare_prefill(&p, ids, T, bound);
        compare_cuts(&p, ids, T, bound);
        if (i == 0) {
            compare_batch(&p, ids, T);
            compare_states(&p, ids, T, bound);
        }
    }
    refusals(&p);
    kd_ckpt_close(golden);
    kd_k3_close(p.dev);
    kd_k3_close(p.cpu);
    kd_pool_close(p.run.pool);
}

/* An account of a pass names each part of every layer and changes no bits. */
static void check_account(struct kd_k3_model *m, const int32_t *ids, int64_t count,
                          const float *want)
{
    const struct kd_k3_cfg *c = kd_k3_config(m);
    struct kd_gpu_account a = {0};
    const struct kd_k3_options o = {.account = &a, .account_of = KD_K3_ACCOUNT_PARTS};
    struct kd_k3_seq *s;
    float *l = floats(count * c->vocab);
    int64_t found = 0, moe = 0;
    must(kd_k3_seq_open(&s, m, &err));
    struct kd_k3_feed f = {.seq = s, .ids = ids, .count = count, .want = 2};
    must(kd_k3_forward(m, &f, 1, &o, l, &err));
    for (int64_t i = 0; i < c->layers; i++)
        moe += kd_k3_is_moe(c, i);
    for (int i = 0; i < a.rows; i++)
        found += (!strcmp(a.row[i].part, "experts") && a.row[i].count == moe) +
                 (!strcmp(a.row[i].part, "attention's out") && a.row[i].count == c->layers);
    hold(found == 2 && moe > 0, "an account's parts");
    hold(!memcmp(l, want, (size_t)(count * c->vocab) * sizeof *l), "an account changes bits");
    kd_k3_seq_close(s);
    kd_mem_free(l);
}

/* A model of a shape alone runs, and its traffic is what its matrices weigh. */
static void check_made(const char *dir)
{
    struct kd_kern kern;
    struct kd_run run = {.kern = &kern};
    struct kd_k3_model *cpu, *m;
    struct kd_k3_seq *s;
    const struct kd_k3_made made = {.layers = 5, .bpw = 2.3125, .trunk_bpw = 4, .head_bpw = 6};
    struct kd_k3_traffic t, stored;
    must(kd_kern_pick(&kern, &err));
    must(kd_k3_open(&cpu, dir, &run, NULL, &err));
    const struct kd_k3_cfg *c = kd_k3_config(cpu);
    hold(kd_k3_make(&m, c, &made, &run, 0, &err) == -1, "a made model on the CPU");
    must(kd_k3_make(&m, c, &made, &run, 1, &err));
    must(kd_k3_traffic(m, &t, &err));
    must(kd_k3_traffic(cpu, &stored, &err));
    hold(t.trunk_bytes < stored.trunk_bytes && t.expert_bytes < stored.expert_bytes &&
             stored.expert_bytes == 3 * c->moe_inter * c->latent * 17 / 32 &&
             t.state_bytes * 6 == stored.state_bytes * 4 && t.position_bytes > 0,
         "traffic");
    float *l = floats(2 * c->vocab);
    const int32_t ids[2] = {3, 5};
    must(kd_k3_seq_open(&s, m, &err));
    struct kd_k3_feed f = {.seq = s, .ids = ids, .count = 2, .want = 2};
    must(kd_k3_forward(m, &f, 1, NULL, l, &err));
    double most = greatest(l, 2 * c->vocab);
    printf("  made of %lld layers: logits up to %.3g\n", (long long)kd_k3_config(m)->layers, most);
    hold(most > 1e-3 && most < 1e6, "a made model's logits");
    check_account(m, ids, 2, l);
    kd_k3_seq_close(s);
    kd_k3_close(m);
    kd_k3_close(cpu);
    kd_mem_free(l);
}

int main(int argc, char **argv)
{
    const char *data = getenv("KONDENSE_TEST_DATA");
    char dir[512];
    if (!kd_gpu_count()) {
        printf("no device: skipped\n");
        return 77;
    }
    snprintf(dir, sizeof dir, "%s/k3-nano", data ? data : "tests/data");
    if (argc < 2) {
        check_model(dir, true);
        check_model(dir, false);
        check_made(dir);
    }
    for (int i = 1; i < argc; i++) {
        check_model(argv[i], true);
        check_model(argv[i], false);
    }
    printf(failures ? "%d WRONG\n" : "all as it should be\n", failures);
    return failures != 0;
}
