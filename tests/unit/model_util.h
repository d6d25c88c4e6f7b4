/* For the model tests: where checkpoints are, models opened on a chosen instruction set, golden
 * tensors, and greedy runs. */
#ifndef KD_TEST_MODEL_UTIL_H
#define KD_TEST_MODEL_UTIL_H

#include "base/file.h"
#include "base/mem.h"
#include "model/k3.h"
#include "model/sample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kd_err err;

#define must(expr)                                                                                 \
    do {                                                                                           \
        if (expr)                                                                                  \
            fail_msg("%s: %s", #expr, err.msg);                                                    \
    } while (0)

/* A file or folder of tests/data. */
static inline const char *data_path(char out[512], const char *name)
{
    const char *dir = getenv("KONDENSE_TEST_DATA");
    snprintf(out, 512, "%s/%s", dir ? dir : "tests/data", name);
    return out;
}

/* A model of the shared folder, or NULL where it is not there. */
static inline const char *shared_model(char out[512], const char *name)
{
    const char *dir = getenv("KONDENSE_SHARED"), *data = getenv("KONDENSE_TEST_DATA");
    if (dir)
        snprintf(out, 512, "%s/models/%s", dir, name);
    else
        snprintf(out, 512, "%s/../../../shared/models/%s", data ? data : "tests/data", name);
    return kd_dir_exists(out) ? out : NULL;
}

struct fixture {
    struct kd_kern kern;
    struct kd_run run;
    struct kd_k3_model *m;
};

/* isa KD_ISA_COUNT: the one this machine prefers. threads 0: no pool. */
static inline void fixture_open(struct fixture *f, const char *dir, enum kd_isa isa, int threads,
                                const struct kd_k3_open *o)
{
    memset(f, 0, sizeof *f);
    must(isa == KD_ISA_COUNT ? kd_kern_pick(&f->kern, &err) : kd_kern_for(&f->kern, isa, &err));
    f->run.kern = &f->kern;
    if (threads)
        must(kd_pool_open(&f->run.pool, threads, &err));
    must(kd_k3_open(&f->m, dir, &f->run, o, &err));
}

static inline void fixture_close(struct fixture *f)
{
    kd_k3_close(f->m);
    kd_pool_close(f->run.pool);
}

static inline float *new_floats(int64_t n)
{
    float *p = calloc((size_t)n, sizeof *p);
    assert_non_null(p);
    return p;
}

/* max |a - b| */
static inline double apart(const float *a, const float *b, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        most = d > most || d != d ? d : most;
    }
    return most;
}

static inline double greatest(const float *a, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fabs((double)a[i]) > most ? fabs((double)a[i]) : most;
    return most;
}

static inline int32_t argmax(const float *logits, int64_t vocab)
{
    const struct kd_sampling greedy = {.temperature = 0};
    int32_t id;
    must(kd_sample(&greedy, logits, vocab, 0, &id, &err));
    return id;
}

/* Feeds ids in pieces of `step`, then n greedy tokens one by one; out[n] gets them. logits gets
 * those after the prompt. */
static inline void greedy(struct fixture *f, const int32_t *ids, int64_t count, int64_t step,
                          int32_t *out, int64_t n, float *logits)
{
    struct kd_k3_seq *s;
    int64_t vocab = kd_k3_config(f->m)->vocab;
    float *row = new_floats(vocab);
    must(kd_k3_seq_open(&s, f->m, &err));
    for (int64_t at = 0; at < count; at += step) {
        struct kd_k3_feed feed = {s, ids + at, count - at < step ? count - at : step, 1};
        must(kd_k3_forward(f->m, &feed, 1, NULL, row, &err));
    }
    memcpy(logits, row, (size_t)vocab * sizeof *row);
    for (int64_t i = 0; i < n; i++) {
        out[i] = argmax(row, vocab);
        struct kd_k3_feed feed = {s, &out[i], 1, 1};
        if (i + 1 < n)
            must(kd_k3_forward(f->m, &feed, 1, NULL, row, &err));
    }
    kd_k3_seq_close(s);
    free(row);
}

#endif
