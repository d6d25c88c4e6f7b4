/* For the engine's tests: engines on k3-nano, requests asked and collected. */
#ifndef KD_TEST_SERVE_UTIL_H
#define KD_TEST_SERVE_UTIL_H

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "serve/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct kd_err err;

#define must(expr)                                                                                 \
    do {                                                                                           \
        if (expr)                                                                                  \
            fail_msg("%s: %s", #expr, err.msg);                                                    \
    } while (0)

enum { MADE_MAX = 512, CHOICES = 4 };

/* What one request gave. */
struct answer {
    int32_t ids[CHOICES][MADE_MAX];
    float logprob[CHOICES][MADE_MAX];
    struct kd_event last[CHOICES]; /* with its finish */
    int64_t count[CHOICES];        /* tokens reported */
    struct kd_usage usage;
    struct kd_err err;
};

static inline struct kd_engine *engine_on_nano(const struct kd_engine_options *o)
{
    const char *dir = getenv("KONDENSE_TEST_DATA");
    char path[512];
    struct kd_engine *e;
    snprintf(path, sizeof path, "%s/k3-nano", dir ? dir : "tests/data");
    must(kd_engine_open(&e, path, o, &err));
    return e;
}

/* A prompt of its own for every number, in the model's text range. */
static inline void make_prompt(int32_t *ids, int64_t count, int64_t number)
{
    for (int64_t i = 0; i < count; i++)
        ids[i] = (int32_t)(((i + 3) * 7919 + number * 104729 + i * i * 31) % 3500);
}

static inline void collect(struct kd_request *r, struct answer *a)
{
    struct kd_event ev[8];
    int64_t n;
    memset(a, 0, sizeof *a);
    while ((n = kd_request_wait(r, ev, 8, 30)) >= 0) {
        if (!n)
            fail_msg("nothing came for 30 s");
        for (int64_t i = 0; i < n; i++) {
            int64_t c = ev[i].choice;
            assert_true(c >= 0 && c < CHOICES);
            assert_int_equal(a->last[c].finish, KD_FINISH_NONE); /* nothing after the end */
            if (ev[i].id >= 0) {
                assert_true(a->count[c] < MADE_MAX);
                a->logprob[c][a->count[c]] = ev[i].logprob;
                a->ids[c][a->count[c]++] = ev[i].id;
            }
            a->last[c] = ev[i];
        }
    }
    kd_request_usage(r, &a->usage);
    a->err = *kd_request_error(r);
}

static inline struct kd_request *submit(struct kd_engine *e, const struct kd_request_spec *s)
{
    struct kd_request *r;
    struct kd_refused no;
    must(kd_engine_submit(e, s, &r, &no, &err));
    assert_int_equal(no.why, KD_REFUSE_NONE);
    return r;
}

static inline void ask(struct kd_engine *e, const struct kd_request_spec *s, struct answer *a)
{
    struct kd_request *r = submit(e, s);
    collect(r, a);
    kd_request_release(r);
}

/* Group teardown: engines, requests and caches gave back all they took. */
static inline int nothing_left(void **state)
{
    (void)state;
    if (kd_mem_live_bytes())
        print_error("%lld bytes were not freed\n", (long long)kd_mem_live_bytes());
    return kd_mem_live_bytes() ? -1 : 0;
}

static inline void same_choice(const struct answer *a, int64_t ca, const struct answer *b,
                               int64_t cb, const char *what)
{
    if (a->count[ca] != b->count[cb] ||
        memcmp(a->ids[ca], b->ids[cb], (size_t)a->count[ca] * sizeof(int32_t)) ||
        memcmp(a->logprob[ca], b->logprob[cb], (size_t)a->count[ca] * sizeof(float)))
        fail_msg("%s: the answers differ (%lld and %lld tokens)", what, (long long)a->count[ca],
                 (long long)b->count[cb]);
    assert_int_equal(a->last[ca].finish, b->last[cb].finish);
}

#endif
