/* bench serve: a server in this process, clients in this process, over real sockets. */
#include "cmd/bench_serve.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"
#include "cmd/cmd.h"
#include "serve/api.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

enum { BATCH = 16, ROUNDS = KD_BENCH_REPEATS, WAIT_S = 300 };

/* What is reported, and what --require can ask for. */
enum { TOKS, BATCHED, RATIO, SHARE, OVERHEAD, TTFT, WARM, FIGURES };
static const struct {
    const char *key, *what, *unit;
    double bar; /* 0: none */
    bool most;  /* of the bar and of --require: at most, else at least */
} figures[FIGURES] = {
    {"toks", "one sequence", "tokens/s", 0, false},
    {"batch", "16 sequences", "tokens/s", 0, false},
    {"ratio", "16 sequences to one", "", 2.5, false},
    {"share", "of the bound that the matrices set", "", 0.6, false},
    {"overhead", "CPU time outside the engine", "of all", 0.05, true},
    {"ttft", "first token of a new prompt", "s", 0, true},
    {"warm", "first token of a prompt seen before", "s", 0.05, true},
};

/* A window while answers run. */
struct window {
    double rate, engine_cpu, other_cpu, client_cpu, events, tokens;
};

struct round {
    struct window one, batch;
};

/* Steps of a layer with BATCH tokens, and the experts that they went through. */
struct route {
    _Atomic int64_t steps, distinct;
};

struct bench {
    const struct kd_bench *b;
    struct kd_engine *engine;
    struct kd_api api;
    struct kd_srv *srv;
    struct kd_bound *bound;
    struct kd_call call[BATCH];
    struct round round[ROUNDS];
    struct kd_series figure[FIGURES];
    int64_t prompt_tokens;
    double bound_one, bound_batch; /* tokens/s */
    double bound_cpu;              /* of BATCH, tokens in a second of CPU time */
    /* routing of steps with BATCH tokens; the first four are the worker's */
    int64_t layer, last_seq, tokens;
    uint8_t *seen;       /* [experts] */
    struct route *route; /* [layers] */
};

static void end_group(struct bench *s)
{
    int64_t n = 0, experts = kd_engine_config(s->engine)->experts;
    for (int64_t e = 0; e < experts; e++)
        n += s->seen[e];
    if (s->tokens == BATCH) {
        s->route[s->layer].steps++;
        s->route[s->layer].distinct += n;
    }
    memset(s->seen, 0, (size_t)experts);
    s->tokens = 0;
}

/* All tokens of a step come layer by layer. */
static void on_route(void *ctx, int64_t layer, int64_t seq, int64_t pos, const int32_t *ids,
                     const float *w)
{
    struct bench *s = ctx;
    const struct kd_k3_cfg *c = kd_engine_config(s->engine);
    (void)pos;
    (void)w;
    if (layer != s->layer || seq < s->last_seq)
        end_group(s);
    s->layer = layer;
    s->last_seq = seq;
    s->tokens++;
    for (int64_t i = 0; i < c->topk; i++)
        if (ids[i] >= 0)
            s->seen[ids[i]] = 1;
}

static int open_server(struct bench *s, const char *model, struct kd_err *err)
{
    const struct kd_k3_open fast = {.fast = true};
    struct kd_engine_options o = {.threads = kd_pool_threads(s->b->run->pool),
                                  .max_running = BATCH,
                                  .draft_max = -1,
                                  .model = &fast};
    struct kd_api_options a = {.model_id = "bench"};
    if (kd_engine_open(&s->engine, model, &o, err) || kd_api_init(&s->api, &a, err))
        return -1;
    const struct kd_k3_cfg *c = kd_engine_config(s->engine);
    if (kd_mem_zero(&s->seen, c->experts, 1, "routing", err) ||
        kd_mem_zero(&s->route, c->layers, sizeof *s->route, "routing", err))
        return -1;
    kd_engine_trace(s->engine, on_route, s);
    struct kd_srv_options so = {.routes = kd_api_routes, .ctx = &s->api, .fail = kd_api_fail};
    if (kd_api_attach(&s->api, s->engine, err) || kd_srv_open(&s->srv, &so, err))
        return -1;
    s->api.srv = s->srv;
    return kd_bound_open(&s->bound, c, kd_engine_ckpt(s->engine), s->b->run, err);
}

static void close_server(struct bench *s)
{
    kd_srv_close(s->srv, 2);
    kd_engine_close(s->engine);
    kd_api_release(&s->api);
    kd_bound_close(s->bound);
    kd_mem_free(s->seen);
    kd_mem_free(s->route);
    for (int i = 0; i < BATCH; i++)
        kd_call_release(&s->call[i]);
}

/* Words nobody has said in this order before, `tokens` of them and no fewer. */
static int add_words(const struct bench *s, struct kd_buf *out, uint64_t seed, int64_t tokens,
                     struct kd_err *err)
{
    static const char *const words[] = {"river", "stone",  "market", "letter", "seven", "winter",
                                        "green", "number", "window", "train",  "paper", "mountain"};
    struct kd_ids ids = {0};
    int rc = 0;
    for (uint64_t i = 0; !rc && ids.count < tokens; i++) {
        char word[48];
        uint64_t r = kd_rand_u64(seed, i);
        int n = snprintf(word, sizeof word, " %s %u", words[r % (sizeof words / sizeof *words)],
                         (unsigned)(r >> 32) % 1000);
        kd_buf_add(out, word, (size_t)n);
        rc = kd_tok_encode(kd_engine_tok(s->engine), word, (size_t)n, &ids, err);
    }
    kd_ids_release(&ids);
    return rc;
}

/* A chat whose answer is text as long as it is let: no control tokens. */
static int set_request(const struct bench *s, struct kd_call *c, uint64_t seed, int64_t words,
                       int64_t max_tokens, struct kd_err *err)
{
    static const char *const control[] = {"<|open|>", "<|close|>", "<|end_of_msg|>", "[EOS]"};
    struct kd_buf *b = &c->body;
    bool any = false;
    kd_buf_release(b);
    kd_buf_init(b, 64 << 20);
    c->port = kd_srv_port(s->srv);
    c->path = "/v1/chat/completions";
    kd_buf_printf(
        b, "{\"stream\":true,\"max_tokens\":%" PRId64 ",\"seed\":%" PRIu64 ",\"logit_bias\":{",
        max_tokens, seed);
    for (size_t i = 0; i < sizeof control / sizeof *control; i++) {
        int32_t id = kd_tok_special(kd_engine_tok(s->engine), control[i]);
        if (id >= 0)
            kd_buf_printf(b, "%s\"%d\":-100", any ? "," : "", id);
        any = any || id >= 0;
    }
    kd_buf_str(b, "},\"messages\":[{\"role\":\"user\",\"content\":\"Go on with this:");
    int rc = add_words(s, b, seed, words, err);
    kd_buf_str(b, "\"}]}");
    return rc;
}

static int nap(int ms, struct kd_err *err)
{
    poll(NULL, 0, ms);
    return kd_cmd_stop ? kd_fail(err, KD_ECANCEL, "stopped") : 0;
}

static int wait_idle(const struct bench *s, struct kd_err *err)
{
    struct kd_engine_metrics m;
    double until = kd_clock_s() + WAIT_S;
    do {
        if (nap(2, err))
            return -1;
        kd_engine_metrics(s->engine, &m);
    } while ((m.running || m.queued) && kd_clock_s() < until);
    return m.running ? kd_fail(err, KD_ETIMEOUT, "answers that were hung up still run") : 0;
}

/* First tokens: an answer of one token, from the request's first byte to the reply's last. */

static int time_answer(struct bench *s, double *seconds, struct kd_err *err)
{
    struct kd_call *c = &s->call[0];
    if (kd_call_start(c, err) || kd_call_end(c, false, err))
        return -1;
    *seconds = c->end_s - c->sent_s;
    kd_buf_release(&c->reply);
    return wait_idle(s, err);
}

static int first_tokens(struct bench *s, struct kd_err *err)
{
    struct kd_engine_metrics before, after;
    kd_engine_metrics(s->engine, &before);
    for (int i = 0; i < ROUNDS; i++) {
        double cold, warm;
        int64_t words = s->b->prompt + 13 * i; /* what follows the last multiple of 64 differs */
        if (set_request(s, &s->call[0], 1000 + (uint64_t)i, words, 1, err) ||
            time_answer(s, &cold, err) || time_answer(s, &warm, err))
            return -1;
        s->figure[TTFT].v[s->figure[TTFT].count++] = cold;
        s->figure[WARM].v[s->figure[WARM].count++] = warm;
    }
    kd_engine_metrics(s->engine, &after);
    s->prompt_tokens = (after.prompt_tokens - before.prompt_tokens) / (2 * (int64_t)ROUNDS);
    if (after.cache_hits - before.cache_hits < ROUNDS)
        return kd_fail(err, KD_ENOMEM, "the prefix cache had no room for a prompt");
    return 0;
}

/* Decoding. */

static double clients_cpu(const struct bench *s, int n)
{
    double sum = kd_clock_thread_s(pthread_self());
    for (int i = 0; i < n; i++)
        sum += kd_clock_thread_s(s->call[i].thread);
    return sum;
}

static int64_t all_events(const struct bench *s, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += s->call[i].events;
    return sum;
}

/* Until every client has had its first token: the first event is the role alone. */
static int wait_started(const struct bench *s, int n, struct kd_err *err)
{
    double until = kd_clock_s() + WAIT_S;
    for (;;) {
        int started = 0;
        for (int i = 0; i < n; i++)
            started += s->call[i].events > 2;
        if (started == n)
            return 0;
        if (kd_clock_s() > until)
            return kd_fail(err, KD_ETIMEOUT, "%d of %d answers have not begun", n - started, n);
        if (nap(2, err))
            return -1;
    }
}

static int watch(const struct bench *s, int n, struct window *w, struct kd_err *err)
{
    struct kd_engine_metrics m0, m1;
    double client0 = clients_cpu(s, n), all0 = kd_clock_cpu_s(), t0 = kd_clock_s();
    int64_t events0 = all_events(s, n);
    kd_engine_metrics(s->engine, &m0);
    do { /* at least two tokens each, however busy the machine is */
        if (nap(20, err))
            return -1;
        kd_engine_metrics(s->engine, &m1);
        if (kd_clock_s() - t0 > WAIT_S)
            return kd_fail(err, KD_ETIMEOUT, "no tokens come");
    } while (kd_clock_s() - t0 < s->b->seconds || m1.decode_tokens < m0.decode_tokens + 2 * n);
    double t1 = kd_clock_s(), client = clients_cpu(s, n) - client0, engine = m1.cpu_s - m0.cpu_s,
           all = kd_clock_cpu_s() - all0;
    *w = (struct window){.rate = (double)(m1.decode_tokens - m0.decode_tokens) / (t1 - t0),
                         .engine_cpu = engine,
                         .other_cpu = all > client + engine ? all - client - engine : 0,
                         .client_cpu = client,
                         .events = (double)(all_events(s, n) - events0),
                         .tokens = (double)(m1.decode_tokens - m0.decode_tokens)};
    return 0;
}

static int decode(struct bench *s, int n, uint64_t seed, struct window *w, struct kd_err *err)
{
    struct kd_err later;
    int started = 0, rc = 0;
    for (; started < n && !rc; started += !rc)
        rc = set_request(s, &s->call[started], seed + (uint64_t)started, 64, 100000, err) ||
             kd_call_start(&s->call[started], err);
    if (!rc)
        rc = wait_started(s, n, err) || watch(s, n, w, err);
    for (int i = 0; i < started; i++) {
        if (kd_call_end(&s->call[i], true, rc ? &later : err))
            rc = -1;
        kd_buf_release(&s->call[i].reply);
    }
    return rc || wait_idle(s, err) ? -1 : 0;
}

static void take(struct bench *s, int figure, double value)
{
    s->figure[figure].v[s->figure[figure].count++] = value;
}

static int rounds(struct bench *s, struct kd_err *err)
{
    for (int i = 0; i < ROUNDS; i++) {
        struct round *r = &s->round[i];
        uint64_t seed = 10000 + 100 * (uint64_t)i;
        if (decode(s, 1, seed, &r->one, err) || decode(s, BATCH, seed, &r->batch, err) ||
            kd_bound_measure(s->bound, err))
            return -1;
        take(s, TOKS, r->one.rate);
        take(s, BATCHED, r->batch.rate);
        take(s, RATIO, r->batch.rate / r->one.rate);
        take(s, OVERHEAD, r->batch.other_cpu / (r->batch.other_cpu + r->batch.engine_cpu));
    }
    return 0;
}

static int find_bound(struct bench *s, struct kd_err *err)
{
    const struct kd_k3_cfg *c = kd_engine_config(s->engine);
    double *d;
    if (kd_mem_new(&d, c->layers, sizeof *d, "bound", err))
        return -1;
    for (int64_t l = 0; l < c->layers; l++)
        d[l] = (double)c->topk;
    s->bound_one = 1 / kd_bound_step_s(s->bound, 1, d, false);
    for (int64_t l = 0; l < c->layers; l++)
        d[l] = s->route[l].steps ? (double)s->route[l].distinct / (double)s->route[l].steps : 0;
    s->bound_batch = BATCH / kd_bound_step_s(s->bound, BATCH, d, false);
    s->bound_cpu = BATCH / kd_bound_step_s(s->bound, BATCH, d, true);
    kd_mem_free(d);
    for (int i = 0; i < ROUNDS; i++)
        take(s, SHARE, s->round[i].batch.rate / s->bound_batch);
    return 0;
}

/* What came of it. */

static double mean_distinct(const struct bench *s)
{
    double steps = 0, distinct = 0;
    for (int64_t l = 0; l < kd_engine_config(s->engine)->layers; l++) {
        steps += (double)s->route[l].steps;
        distinct += (double)s->route[l].distinct;
    }
    return steps > 0 ? distinct / steps : 0;
}

static void put_bound(struct bench *s)
{
    const struct kd_k3_cfg *c = kd_engine_config(s->engine);
    if (s->b->screen)
        printf("the bound: every matrix decoded once a step and multiplied for each token; %.1f of "
               "%" PRId64 " experts a layer at %d tokens\n",
               mean_distinct(s), c->experts, BATCH);
    kd_bound_put(s->bound, s->b);
    kd_jw_open(s->b->w, NULL, '{');
    kd_jw_num(s->b->w, "bound_one_tokens_s", s->bound_one);
    kd_jw_num(s->b->w, "bound_batch_tokens_s", s->bound_batch);
    kd_jw_num(s->b->w, "experts_a_layer", mean_distinct(s));
    kd_jw_int(s->b->w, "prompt_tokens", s->prompt_tokens);
    kd_jw_close(s->b->w, '}');
    if (s->b->screen)
        printf("  so at most %.1f tokens/s for one sequence, %.1f for %d; the prompts have %" PRId64
               " tokens\n",
               s->bound_one, s->bound_batch, BATCH, s->prompt_tokens);
}

static struct window sum_windows(const struct bench *s, bool batch)
{
    struct window sum = {0};
    for (int i = 0; i < ROUNDS; i++) {
        const struct window *w = batch ? &s->round[i].batch : &s->round[i].one;
        sum.engine_cpu += w->engine_cpu;
        sum.other_cpu += w->other_cpu;
        sum.client_cpu += w->client_cpu;
        sum.events += w->events;
        sum.tokens += w->tokens;
    }
    return sum;
}

/* What other work on the machine changes least: tokens a second of CPU time. */
static void put_cpu(struct bench *s)
{
    struct window one = sum_windows(s, false), all = sum_windows(s, true);
    double single = one.tokens / one.engine_cpu, batch = all.tokens / all.engine_cpu;
    kd_jw_open(s->b->w, NULL, '{');
    kd_jw_num(s->b->w, "engine_cpu_s", all.engine_cpu);
    kd_jw_num(s->b->w, "server_cpu_s", all.other_cpu);
    kd_jw_num(s->b->w, "client_cpu_s", all.client_cpu);
    kd_jw_num(s->b->w, "events", all.events);
    kd_jw_num(s->b->w, "tokens", all.tokens);
    kd_jw_num(s->b->w, "one_tokens_cpu_s", single);
    kd_jw_num(s->b->w, "batch_tokens_cpu_s", batch);
    kd_jw_num(s->b->w, "bound_batch_tokens_cpu_s", s->bound_cpu);
    kd_jw_close(s->b->w, '}');
    if (s->b->screen)
        printf(
            "CPU time while %d answers stream: engine %.2f s, the server besides %.2f s, clients "
            "%.2f s (not counted); %.0f tokens in %.0f events\n"
            "tokens a second of the engine's CPU time: one sequence %.1f, %d %.1f (%.2f times), "
            "%.0f %% of the bound in CPU time\n",
            BATCH, all.engine_cpu, all.other_cpu, all.client_cpu, all.tokens, all.events, single,
            BATCH, batch, batch / single, 100 * batch / s->bound_cpu);
}

static void put_figure(struct bench *s, int i)
{
    struct kd_series *f = &s->figure[i];
    kd_series_close(f);
    double v = kd_series_median(f), bar = figures[i].bar;
    bool met = figures[i].most ? v <= bar : v >= bar;
    kd_jw_open(s->b->w, NULL, '{');
    kd_jw_str(s->b->w, "figure", figures[i].key);
    kd_bench_put(s->b, "value", f);
    if (bar > 0) {
        kd_jw_num(s->b->w, figures[i].most ? "at_most" : "at_least", bar);
        kd_jw_bool(s->b->w, "met", met);
    }
    kd_jw_close(s->b->w, '}');
    if (!s->b->screen)
        return;
    printf("%-9s %9.4g %-8s (%.4g to %.4g)  %s", figures[i].key, v, figures[i].unit, f->v[0],
           f->v[f->count - 1], figures[i].what);
    if (bar > 0)
        printf("; at %s %g: %s", figures[i].most ? "most" : "least", bar, met ? "met" : "MISSED");
    putchar('\n');
}

/* --require: "toks=15,ttft=2". Before anything runs, s is NULL: only the list is looked at. */
static int require(const struct bench *s, const char *list, struct kd_err *err)
{
    char missed[256] = "";
    for (const char *at = list; at && *at;) {
        size_t n = strcspn(at, ","), key = strcspn(at, "=");
        char number[32];
        double want = 0;
        int i = 0;
        while (i < FIGURES && (strlen(figures[i].key) != key || strncmp(figures[i].key, at, key)))
            i++;
        if (key >= n || i == FIGURES)
            return kd_fail(err, KD_EUSAGE,
                           "--require: '%.*s' is not toks, batch, ratio, share, overhead, ttft or "
                           "warm, '=' and a number",
                           (int)n, at);
        snprintf(number, sizeof number, "%.*s", (int)(n - key - 1), at + key + 1);
        if (kd_parse_num(number, &want, err))
            return kd_wrap(err, "--require");
        double v = s ? kd_series_median(&s->figure[i]) : want;
        size_t used = strlen(missed);
        if (figures[i].most ? v > want : v < want)
            snprintf(missed + used, sizeof missed - used, "%s%s is %.4g, not at %s %g",
                     used ? ", " : "", figures[i].key, v, figures[i].most ? "most" : "least", want);
        at += n + (at[n] == ',');
    }
    return missed[0] ? kd_fail(err, KD_EGATE, "%s", missed) : 0;
}

int kd_bench_serve(const struct kd_bench *b, struct kd_err *err)
{
    struct bench *s;
    if (!b->model)
        return kd_fail(err, KD_EUSAGE, "the model to serve is needed");
    if (require(NULL, b->require, err) || kd_mem_zero(&s, 1, sizeof *s, "bench", err))
        return -1;
    s->b = b;
    s->last_seq = -1;
    int rc = open_server(s, b->model, err) || first_tokens(s, err) || rounds(s, err) ||
             find_bound(s, err);
    if (!rc) {
        put_bound(s);
        put_cpu(s);
        for (int i = 0; i < FIGURES; i++)
            put_figure(s, i);
    }
    close_server(s);
    if (!rc && b->texts)
        rc = kd_bench_drafts(b, err);
    if (!rc)
        rc = require(s, b->require, err);
    kd_mem_free(s);
    return rc ? -1 : 0;
}
