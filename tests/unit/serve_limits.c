/* What ends, waits, is refused or is held back. */
#include "unit/serve_util.h"

#include <math.h>
#include <stdatomic.h>

static struct kd_request_spec spec_of(int32_t *ids, int64_t count, int64_t number, int64_t max)
{
    make_prompt(ids, count, number);
    return (struct kd_request_spec){
        .prompt = ids, .prompt_count = count, .max_tokens = max, .ignore_eos = true};
}

static void wait_first(struct kd_request *r)
{
    struct kd_event ev;
    assert_int_equal(kd_request_wait(r, &ev, 1, 30), 1);
}

/* Cancels its request from the worker, at the fifth token. */
struct canceller {
    struct kd_request *_Atomic r;
    int64_t tokens, at;
};

static int cancel_there(void *ctx, int32_t id, struct kd_buf *visible, struct kd_err *e)
{
    struct canceller *c = ctx;
    struct kd_request *r = atomic_load(&c->r);
    (void)id;
    (void)visible;
    (void)e;
    c->tokens++;
    if (c->tokens >= 5 && r && !c->at) {
        c->at = c->tokens;
        kd_request_cancel(r);
    }
    return 0;
}

static void cancel(void **state)
{
    struct kd_engine *e = engine_on_nano(
        &(struct kd_engine_options){.threads = 2, .draft_max = -1, .events = 100000});
    struct kd_engine_metrics after;
    struct canceller where = {0};
    struct kd_hooks h[3] = {{&where, NULL, cancel_there}};
    struct answer *a;
    int32_t ids[64];
    (void)state;
    must(kd_mem_zero(&a, 1, sizeof *a, "answer", &err));
    struct kd_request_spec s = spec_of(ids, 20, 1, 100000);
    s.choices = 3;
    s.hooks = h;
    struct kd_request *r = submit(e, &s);
    atomic_store(&where.r, r);
    collect(r, a);
    kd_engine_metrics(e, &after);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(a->last[i].finish, KD_FINISH_CANCEL);
        assert_int_equal(a->count[i], where.at); /* that step was the last */
    }
    assert_int_equal(after.finished[KD_FINISH_CANCEL], 3);
    kd_request_release(r);
    kd_engine_metrics(e, &after);
    assert_int_equal(after.running, 0);
    assert_int_equal(after.memory_used_bytes, 0);
    s.hooks = NULL;
    r = submit(e, &s); /* a client that simply goes */
    wait_first(r);
    kd_request_release(r);
    kd_engine_metrics(e, &after);
    assert_int_equal(after.running, 0);
    kd_mem_free(a);
    kd_engine_close(e);
}

static void queue_limits(void **state)
{
    struct kd_engine *e = engine_on_nano(&(struct kd_engine_options){
        .threads = 1, .max_running = 1, .max_queued = 3, .max_queued_owner = 2});
    struct kd_request *r[4], *none;
    struct kd_refused no;
    struct kd_usage u;
    int32_t ids[64];
    (void)state;
    struct kd_request_spec s = spec_of(ids, 20, 1, 5000), b = s, other = s;
    b.background = true;
    snprintf(other.owner, sizeof other.owner, "other");
    r[0] = submit(e, &s);
    wait_first(r[0]);
    r[1] = submit(e, &b);
    r[2] = submit(e, &s);
    kd_request_usage(r[2], &u);
    assert_int_equal(u.place, 1);
    assert_false(u.running);
    assert_int_equal(kd_engine_submit(e, &s, &none, &no, &err), -1); /* this owner's share */
    assert_int_equal(no.why, KD_REFUSE_FULL);
    assert_true(no.retry_s >= 1);
    r[3] = submit(e, &other);
    assert_int_equal(kd_engine_submit(e, &other, &none, &no, &err), -1);
    assert_int_equal(no.why, KD_REFUSE_FULL);
    kd_request_release(r[0]);
    wait_first(r[2]); /* before the background one, which came first */
    kd_request_usage(r[1], &u);
    assert_false(u.running);
    for (int i = 1; i < 4; i++)
        kd_request_release(r[i]);
    struct kd_engine_metrics m;
    kd_engine_metrics(e, &m);
    assert_int_equal(m.refused, 2);
    assert_int_equal(m.requests, 4);
    assert_int_equal(m.queued, 0);
    kd_engine_close(e);
}

static void deadlines(void **state)
{
    struct kd_engine *e =
        engine_on_nano(&(struct kd_engine_options){.threads = 1, .max_running = 1});
    struct answer *a;
    int32_t ids[64];
    (void)state;
    must(kd_mem_zero(&a, 1, sizeof *a, "answer", &err));
    struct kd_request_spec s = spec_of(ids, 20, 1, 100000), q = s;
    s.deadline_s = kd_clock_s() + 0.4;
    q.deadline_s = kd_clock_s() + 0.1;
    struct kd_request *running = submit(e, &s), *queued = submit(e, &q);
    collect(queued, a);
    assert_int_equal(a->last[0].finish, KD_FINISH_TIMEOUT);
    assert_int_equal(a->count[0], 0);
    struct kd_event ev;
    int64_t n;
    enum kd_finish why = KD_FINISH_NONE;
    while ((n = kd_request_wait(running, &ev, 1, 30)) >= 0)
        why = n ? ev.finish : why;
    assert_int_equal(why, KD_FINISH_TIMEOUT);
    struct kd_usage u;
    kd_request_usage(running, &u);
    assert_true(u.made_tokens > 0 && u.total_s >= 0.39 && a->usage.total_s >= 0.09);
    assert_true(a->usage.total_s < u.total_s); /* it did not wait for the other */
    kd_request_release(running);
    kd_request_release(queued);
    kd_mem_free(a);
    kd_engine_close(e);
}

static void drain(void **state)
{
    struct kd_engine *e = engine_on_nano(&(struct kd_engine_options){.threads = 2});
    struct answer *a;
    struct kd_request *none;
    struct kd_refused no;
    int32_t ids[64];
    (void)state;
    must(kd_mem_zero(&a, 1, sizeof *a, "answer", &err));
    struct kd_request_spec s = spec_of(ids, 20, 1, 60);
    struct kd_request *r = submit(e, &s);
    assert_int_equal(kd_engine_drain(e, 30), 0);
    collect(r, a);
    assert_int_equal(a->last[0].finish, KD_FINISH_LENGTH);
    assert_int_equal(a->count[0], 60);
    assert_int_equal(kd_engine_submit(e, &s, &none, &no, &err), -1);
    assert_int_equal(no.why, KD_REFUSE_DRAINING);
    kd_request_release(r);
    kd_engine_close(e);

    e = engine_on_nano(&(struct kd_engine_options){.threads = 2});
    s.max_tokens = 100000;
    r = submit(e, &s);
    wait_first(r);
    assert_int_equal(kd_engine_drain(e, 0.05), -1);
    struct kd_event ev[64];
    int64_t n;
    enum kd_finish why = KD_FINISH_NONE;
    while ((n = kd_request_wait(r, ev, 64, 30)) >= 0)
        why = n ? ev[n - 1].finish : why;
    assert_int_equal(why, KD_FINISH_CANCEL);
    kd_request_release(r);
    kd_engine_close(e);
    kd_mem_free(a);
}

static void count_call(void *ctx)
{
    atomic_int *calls = ctx;
    atomic_fetch_add(calls, 1);
}

/* One that is not read stops after so many events; another goes on; read later, the first one's
 * answer is what it would have been. */
static void slow_reader(void **state)
{
    struct kd_engine *e =
        engine_on_nano(&(struct kd_engine_options){.threads = 2, .events = 8, .draft_max = -1});
    struct answer *a, *b;
    struct kd_engine_metrics m;
    int32_t ids[64], more[64];
    atomic_int calls = 0;
    (void)state;
    must(kd_mem_zero(&a, 2, sizeof *a, "answers", &err));
    b = a + 1;
    struct kd_request_spec s = spec_of(ids, 20, 1, 100), t = spec_of(more, 30, 2, 200);
    s.ready = count_call;
    s.ready_ctx = &calls;
    struct kd_request *slow = submit(e, &s);
    ask(e, &t, b);
    assert_int_equal(b->count[0], 200);
    double until = kd_clock_s() + 20;
    struct kd_usage u;
    do {
        usleep(1000);
        kd_engine_metrics(e, &m);
        kd_request_usage(slow, &u);
    } while ((m.paused != 1 || u.made_tokens < 8) && kd_clock_s() < until);
    assert_int_equal(m.paused, 1);
    assert_int_equal(u.made_tokens, 8);
    assert_int_equal(atomic_load(&calls), 8);
    collect(slow, a);
    assert_int_equal(a->count[0], 100);
    kd_request_release(slow);
    ask(e, &s, b);
    same_choice(a, 0, b, 0, "a slow reader's answer");
    kd_mem_free(a);
    kd_engine_close(e);
}

static void admission_by_memory(void **state)
{
    struct kd_engine *e = engine_on_nano(&(struct kd_engine_options){.threads = 1});
    int64_t one = kd_k3_state_bytes(kd_engine_config(e), 128);
    (void)state;
    kd_engine_close(e);
    e = engine_on_nano(&(struct kd_engine_options){
        .threads = 2, .memory_bytes = 2 * one + one / 2, .cache_bytes = -1});
    struct kd_engine_metrics m;
    struct kd_request *r[4], *none;
    struct kd_refused no;
    struct answer *a;
    int32_t ids[4][64];
    int64_t most = 0;
    must(kd_mem_zero(&a, 1, sizeof *a, "answer", &err));
    for (int i = 0; i < 4; i++) {
        struct kd_request_spec s = spec_of(ids[i], 60, i, 68);
        r[i] = submit(e, &s);
    }
    do {
        kd_engine_metrics(e, &m);
        assert_true(m.memory_used_bytes <= m.memory_planned_bytes);
        most = m.running > most ? m.running : most;
        usleep(200);
    } while (m.queued + m.running);
    assert_int_equal(most, 2);
    for (int i = 0; i < 4; i++) {
        collect(r[i], a);
        assert_int_equal(a->count[0], 68);
        kd_request_release(r[i]);
    }
    struct kd_request_spec s = spec_of(ids[0], 60, 0, 4000);
    assert_int_equal(kd_engine_submit(e, &s, &none, &no, &err), -1);
    assert_int_equal(no.why, KD_REFUSE_TOO_LONG);
    s.max_tokens = 68;
    s.choices = 3;
    assert_int_equal(kd_engine_submit(e, &s, &none, &no, &err), -1);
    assert_int_equal(no.why, KD_REFUSE_TOO_LONG);
    kd_mem_free(a);
    kd_engine_close(e);
    assert_int_equal(kd_mem_live_bytes(), 0);
}

/* Room for one long answer, and for two at their beginnings: one is parked on the way, comes back
 * by replay, and has the answer it has alone. */
static void parked_and_back(void **state)
{
    struct kd_engine *e = engine_on_nano(&(struct kd_engine_options){.threads = 2});
    int64_t fixed = kd_k3_state_bytes(kd_engine_config(e), 0),
            all = kd_k3_state_bytes(kd_engine_config(e), 70 + 400);
    int64_t draft = kd_k3_draft_bytes(kd_engine_config(e));
    struct answer *a;
    struct kd_request *r[3];
    struct kd_engine_metrics m;
    int32_t ids[3][70];
    (void)state;
    must(kd_mem_zero(&a, 6, sizeof *a, "answers", &err));
    struct kd_request_spec s[3];
    for (int i = 0; i < 3; i++) {
        s[i] = spec_of(ids[i], 70, 20 + i, 400);
        s[i].sampling = (struct kd_sampling){.temperature = 1, .top_p = 0.9, .seed = 5};
        s[i].logprobs = 1;
        s[i].choices = i == 1 ? 2 : 1;
        s[i].max_tokens = i == 1 ? 150 : 400;
        ask(e, &s[i], &a[i]);
    }
    kd_engine_close(e);
    /* replay in ones; as drafts */
    for (int64_t extra = KD_TEST_SLOW ? draft : 0; extra <= draft; extra += draft) {
        struct kd_engine_options o = {.threads = 2,
                                      .grow_tokens = 64,
                                      .no_idle_prefill = true,
                                      .events = 1000,
                                      .draft_max = extra ? 4 : -1,
                                      .memory_bytes = all + 2 * fixed + extra,
                                      .cache_bytes = extra ? 1 << 24 : -1};
        e = engine_on_nano(&o);
        assert_true(kd_engine_room(e, 70, 1) >= 400);
        assert_true(kd_engine_room(e, 70, 4) < 200);
        s[2].max_tokens = kd_engine_room(e, 70, 1) + 1;
        struct kd_refused no;
        assert_int_equal(kd_engine_submit(e, &s[2], &r[2], &no, &err), -1);
        assert_int_equal(no.why, KD_REFUSE_TOO_LONG);
        s[2].max_tokens = 400;
        for (int i = 0; i < 3; i++)
            r[i] = submit(e, &s[i]);
        for (int i = 0; i < 3; i++) {
            collect(r[i], &a[3 + i]);
            same_choice(&a[i], 0, &a[3 + i], 0, "parked");
            if (i == 1)
                same_choice(&a[i], 1, &a[3 + i], 1, "parked, second choice");
            kd_request_release(r[i]);
        }
        kd_engine_metrics(e, &m);
        assert_true(m.parkings > 0);
        assert_int_equal(m.parked, 0);
        assert_int_equal(m.memory_used_bytes, 0);
        kd_engine_close(e);
    }
    kd_mem_free(a);
}

/* While a long prompt is read, another's tokens go on coming. */
static void decode_during_prefill(void **state)
{
    struct kd_engine *e = engine_on_nano(&(struct kd_engine_options){
        .threads = 2, .chunk = 64, .cache_bytes = -1, .draft_max = -1, .events = 10000});
    int32_t few[20], *many;
    struct kd_usage before, after;
    (void)state;
    must(kd_mem_zero(&many, 1280, sizeof *many, "prompt", &err));
    struct kd_request_spec s = spec_of(few, 20, 1, 5000), t = spec_of(many, 1280, 2, 1);
    struct kd_request *r = submit(e, &s);
    wait_first(r);
    kd_request_usage(r, &before);
    struct kd_request *big = submit(e, &t);
    wait_first(big);
    kd_request_usage(r, &after);
    assert_true(after.made_tokens - before.made_tokens >= 19); /* one for each chunk of 64 */
    kd_request_release(r);
    kd_request_release(big);
    kd_mem_free(many);
    kd_engine_close(e);
}

/* Visible text by a script, `step` bytes a token. */
struct script {
    const char *text;
    size_t at, step;
};

static int recite(void *ctx, int32_t id, struct kd_buf *visible, struct kd_err *e)
{
    struct script *s = ctx;
    size_t left = strlen(s->text) - s->at, n = s->step < left ? s->step : left;
    (void)id;
    (void)e;
    kd_buf_add(visible, s->text + s->at, n);
    s->at += n;
    return 0;
}

static void stop_strings(void **state)
{
    static const char *const stops[] = {"END", "\n\nUser:", "er: no"};
    static const size_t bytes[] = {3, 7, 6};
    static const struct {
        const char *text, *kept;
        int which;
    } cases[] = {{"It is the EN of it. END more", "It is the EN of it. ", 0},
                 {"a\n\n\nUser: no", "a\n", 1},
                 {"nothing to\n\nUse", "nothing to\n\nUse", -1},
                 {"ENEND", "EN", 0},
                 {"ENDEND", "", 0},
                 {"User: not", "Us", 2}};
    struct kd_engine *e = engine_on_nano(&(struct kd_engine_options){.threads = 1});
    int32_t ids[20];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t step = 1; step <= 12; step++) {
            struct script sc = {.text = cases[i].text, .step = step};
            struct kd_hooks h = {.ctx = &sc, .token = recite};
            struct kd_request_spec s = spec_of(ids, 20, 1, 40);
            s.stops = stops;
            s.stop_bytes = bytes;
            s.stop_count = 3;
            s.hooks = &h;
            struct kd_request *r = submit(e, &s);
            struct kd_event ev, last = {0};
            char kept[64];
            size_t at = 0, n = 0;
            int64_t got;
            while ((got = kd_request_wait(r, &ev, 1, 30)) >= 0) {
                assert_int_equal(got, 1);
                last = ev;
                if (ev.id < 0)
                    continue;
                size_t left = strlen(cases[i].text) - at, k = step < left ? step : left;
                size_t keep = ev.keep_bytes < 0 ? k : (size_t)ev.keep_bytes;
                assert_true(keep <= k);
                memcpy(kept + n, cases[i].text + at, keep);
                at += k;
                n += keep;
            }
            kept[n] = 0;
            assert_string_equal(kept, cases[i].kept);
            assert_int_equal(last.stop, cases[i].which);
            assert_int_equal(last.finish, cases[i].which < 0 ? KD_FINISH_LENGTH : KD_FINISH_STOP);
            kd_request_release(r);
        }
    kd_engine_close(e);
}

/* Without a hook the text is the tokens' own: the stop is taken from an answer seen before. */
static void stop_strings_in_tokens(void **state)
{
    struct kd_engine *e = engine_on_nano(&(struct kd_engine_options){.threads = 1});
    int32_t ids[20];
    struct answer *a;
    char text[4096] = "", stop[12];
    (void)state;
    must(kd_mem_zero(&a, 2, sizeof *a, "answers", &err));
    struct kd_request_spec s = spec_of(ids, 20, 4, 40);
    s.sampling = (struct kd_sampling){.temperature = 1.5, .top_p = 1, .seed = 3};
    ask(e, &s, &a[0]);
    size_t n = 0, cut = 0;
    for (int64_t i = 0; i < a[0].count[0]; i++) {
        size_t k;
        const char *t = kd_tok_bytes(kd_engine_tok(e), a[0].ids[0][i], &k);
        if (t && !kd_tok_is_special(kd_engine_tok(e), a[0].ids[0][i])) {
            memcpy(text + n, t, k);
            n += k;
        }
        if (i == 19)
            cut = n;
    }
    assert_true(cut > 3 && n > cut + 3);
    memcpy(stop, text + cut - 3, 6); /* over the border of tokens 19 and 20 */
    const char *stops[] = {stop};
    size_t bytes[] = {6};
    s.stops = stops;
    s.stop_bytes = bytes;
    s.stop_count = 1;
    ask(e, &s, &a[1]);
    assert_int_equal(a[1].last[0].finish, KD_FINISH_STOP);
    assert_int_equal(a[1].last[0].stop, 0);
    assert_true(a[1].count[0] <= 20);
    assert_memory_equal(a[0].ids[0], a[1].ids[0], (size_t)a[1].count[0] * sizeof(int32_t));
    kd_mem_free(a);
    kd_engine_close(e);
}

/* A grammar that allows one id at a time, counting up; then none. */
struct counter {
    int32_t next, last;
    int64_t tokens;
};

static int only_next(void *ctx, uint64_t *bits, int64_t vocab, struct kd_err *e)
{
    struct counter *c = ctx;
    (void)e;
    memset(bits, 0, (size_t)((vocab + 63) / 64) * 8);
    if (c->next <= c->last)
        bits[c->next / 64] |= (uint64_t)1 << (c->next % 64);
    return 1;
}

static int went(void *ctx, int32_t id, struct kd_buf *visible, struct kd_err *e)
{
    struct counter *c = ctx;
    (void)visible;
    c->tokens++;
    if (id == 2000)
        return kd_fail(e, KD_EINVAL, "two thousand");
    c->next = id + 1;
    return 0;
}

static void masks(void **state)
{
    struct kd_engine *e = engine_on_nano(&(struct kd_engine_options){.threads = 2});
    int32_t ids[100];
    struct answer *a;
    (void)state;
    must(kd_mem_zero(&a, 1, sizeof *a, "answer", &err));
    struct kd_request_spec s = spec_of(ids, 100, 1, 30);
    for (int32_t i = 0; i < 100; i++)
        ids[i] = 100 + i; /* drafts that the mask agrees with */
    struct counter c[2] = {{100, 1000, 0}, {2500, 2509, 0}};
    struct kd_hooks h[2] = {{&c[0], only_next, went}, {&c[1], only_next, went}};
    s.hooks = h;
    s.choices = 2;
    s.sampling = (struct kd_sampling){.temperature = 2, .top_p = 0.5, .seed = 1};
    ask(e, &s, a);
    assert_int_equal(a->count[0], 30);
    for (int32_t i = 0; i < 30; i++)
        assert_int_equal(a->ids[0][i], 100 + i);
    assert_int_equal(c[0].tokens, 30);
    assert_int_equal(a->count[1], 10); /* then nothing is allowed */
    assert_int_equal(a->last[1].finish, KD_FINISH_ERROR);
    assert_non_null(strstr(a->err.msg, "no token is allowed"));
    c[0] = (struct counter){1995, 3000, 0};
    s.choices = 1;
    ask(e, &s, a);
    assert_int_equal(a->last[0].finish, KD_FINISH_ERROR);
    assert_string_equal(a->err.msg, "two thousand");
    assert_true(kd_engine_healthy(e, &err));
    kd_mem_free(a);
    kd_engine_close(e);
}

static void bias_and_penalties(void **state)
{
    struct kd_engine *e = engine_on_nano(&(struct kd_engine_options){.threads = 1});
    int32_t ids[40];
    struct answer *a;
    (void)state;
    must(kd_mem_zero(&a, 1, sizeof *a, "answer", &err));
    struct kd_request_spec s = spec_of(ids, 40, 1, 12);
    struct kd_bias b[2] = {{77, 1000.0f}, {78, 900.0f}};
    s.bias = b;
    s.bias_count = 2;
    s.logprobs = 3;
    ask(e, &s, a);
    for (int i = 0; i < 12; i++)
        assert_int_equal(a->ids[0][i], 77);
    assert_int_equal(a->last[0].top_count, 2);
    assert_true(a->last[0].top[0].logprob >= a->last[0].top[1].logprob);
    assert_true(a->logprob[0][0] < a->last[0].top[0].logprob); /* of the model, not of the bias */
    s.frequency = 40; /* 77 loses 40 each time: they take turns */
    ask(e, &s, a);
    int64_t seen[2] = {0};
    for (int i = 0; i < 12; i++) {
        assert_true(a->ids[0][i] == 77 || a->ids[0][i] == 78);
        seen[a->ids[0][i] - 77]++;
    }
    assert_true(seen[0] > 3 && seen[1] > 3);
    int32_t stop[] = {78};
    s.ignore_eos = false;
    s.stop_ids = stop;
    s.stop_id_count = 1;
    ask(e, &s, a);
    assert_int_equal(a->last[0].finish, KD_FINISH_STOP);
    assert_int_equal(a->last[0].id, 78);
    b[0] = (struct kd_bias){(int32_t)kd_engine_config(e)->eos, 2000};
    ask(e, &s, a);
    assert_int_equal(a->last[0].finish, KD_FINISH_STOP);
    assert_int_equal(a->count[0], 1);
    s.max_tokens = 0;
    ask(e, &s, a);
    assert_int_equal(a->last[0].finish, KD_FINISH_LENGTH);
    assert_int_equal(a->count[0], 0);
    kd_mem_free(a);
    kd_engine_close(e);
}

static void bad_specs(void **state)
{
    struct kd_engine *e = engine_on_nano(&(struct kd_engine_options){.threads = 1, .context = 500});
    int32_t ids[600];
    struct kd_request *r;
    struct kd_refused no;
    static const char *const stops[] = {""};
    static const size_t bytes[] = {0};
    struct kd_bias b = {4096, 1};
    (void)state;
    make_prompt(ids, 600, 1);
    struct kd_request_spec good = {.prompt = ids, .prompt_count = 20, .max_tokens = 1};
    struct kd_request_spec bad[] = {good, good, good, good, good, good, good, good, good, good};
    bad[0].prompt_count = 0;
    bad[1].sampling.top_p = 1.5;
    bad[2].stops = stops;
    bad[2].stop_bytes = bytes;
    bad[2].stop_count = 1;
    bad[3].bias = &b;
    bad[3].bias_count = 1;
    bad[4].logprobs = 22;
    bad[5].experts_used = 99;
    bad[6].max_tokens = -1;
    memset(bad[7].owner, 'x', sizeof bad[7].owner);
    bad[8].sampling.temperature = (double)NAN;
    bad[9].prompt_count = 501;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(kd_engine_submit(e, &bad[i], &r, &no, &err), -1);
        assert_int_equal(no.why, i < 9 ? KD_REFUSE_BAD : KD_REFUSE_TOO_LONG);
        assert_null(r);
    }
    struct answer *a;
    must(kd_mem_zero(&a, 1, sizeof *a, "answer", &err));
    good.prompt_count = 490;
    good.max_tokens = 100;
    good.ignore_eos = true;
    ask(e, &good, a); /* up to the context's end */
    assert_int_equal(a->count[0], 10);
    assert_int_equal(a->last[0].finish, KD_FINISH_LENGTH);
    kd_mem_free(a);
    kd_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cancel),          cmocka_unit_test(queue_limits),
        cmocka_unit_test(deadlines),       cmocka_unit_test(drain),
        cmocka_unit_test(slow_reader),     cmocka_unit_test(admission_by_memory),
        cmocka_unit_test(parked_and_back), cmocka_unit_test(decode_during_prefill),
        cmocka_unit_test(stop_strings),    cmocka_unit_test(stop_strings_in_tokens),
        cmocka_unit_test(masks),           cmocka_unit_test(bias_and_penalties),
        cmocka_unit_test(bad_specs)};
    return cmocka_run_group_tests(tests, NULL, nothing_left);
}
