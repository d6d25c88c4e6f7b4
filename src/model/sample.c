#include "model/sample.h"

#include "base/mem.h"
#include "base/rand.h"
#include "num/largest.h"
#include "num/logsum.h"

#include <stdbool.h>
#include <string.h>

struct cand {
    double p; /* relative to the most likely token's 1 */
    int32_t id;
};

static bool before(const struct cand *a, const struct cand *b)
{
    return a->p != b->p ? a->p > b->p : a->id < b->id;
}

/* The upper half of a weight's bits; positive doubles lie as their bits do. */
static uint32_t upper(const struct cand *c)
{
    uint64_t bits;
    memcpy(&bits, &c->p, sizeof bits);
    return (uint32_t)(bits >> 32);
}

/* By digits of the upper half, largest first, and the few that it does not tell apart by insertion.
 * `room` for as many. */
static void sort(struct cand *c, int64_t n, struct cand *room)
{
    enum { DIGIT = 11, DIGITS = 1 << DIGIT };
    int32_t place[DIGITS];
    struct cand *from = c, *to = room;
    for (unsigned shift = 0; shift < 32 && n > 32; shift += DIGIT) {
        memset(place, 0, sizeof place);
        for (int64_t i = 0; i < n; i++)
            place[upper(&from[i]) >> shift & (DIGITS - 1)]++;
        int32_t sum = 0;
        for (int d = DIGITS - 1; d >= 0; d--) {
            int32_t count = place[d];
            place[d] = sum;
            sum += count;
        }
        for (int64_t i = 0; i < n; i++)
            to[place[upper(&from[i]) >> shift & (DIGITS - 1)]++] = from[i];
        struct cand *t = from;
        from = to;
        to = t;
    }
    if (from != c)
        memcpy(c, from, (size_t)n * sizeof *c);
    for (int64_t i = 1; i < n; i++) {
        struct cand t = c[i];
        int64_t at = i;
        for (; at > 0 && before(&t, &c[at - 1]); at--)
            c[at] = c[at - 1];
        c[at] = t;
    }
}

/* The first of the largest values, -1 if all are NaN. */
static int64_t most_likely(const float *logits, int64_t vocab)
{
    float max = kd_largest(logits, vocab);
    for (int64_t i = 0; i < vocab; i++)
        if (logits[i] == max)
            return i;
    return -1;
}

/* Weights of all tokens that have one, ids ascending. */
static int64_t weights(const struct kd_sampling *s, const float *logits, int64_t vocab, float max,
                       struct cand *c)
{
    enum { BLOCK = 64 };
    int64_t n = 0;
    double p[BLOCK], e[BLOCK];
    for (int64_t i0 = 0; i0 < vocab; i0 += BLOCK) {
        int64_t count = vocab - i0 < BLOCK ? vocab - i0 : BLOCK;
        for (int64_t i = 0; i < count; i++)
            p[i] = ((double)logits[i0 + i] - (double)max) / s->temperature;
        for (int64_t i = 0; i < count; i++)
            e[i] = kd_exp64(p[i]);
        for (int64_t i = 0; i < count; i++) {
            double w = p[i] >= -700.0 ? e[i] : 0.0; /* 0 for NaN too */
            if (logits[i0 + i] == max)              /* also an infinite one */
                w = 1.0;
            c[n] = (struct cand){w, (int32_t)(i0 + i)};
            n += w > 0.0;
        }
    }
    return n;
}

/* Sorts a front of the list that is sure to hold every token the cuts keep: most of a vocabulary is
 * far too unlikely to be looked at. Returns its length. */
static int64_t sorted_front(const struct kd_sampling *s, struct cand *c, int64_t n, double total,
                            struct cand *room)
{
    for (double floor = 1e-3;; floor *= 1e-3) {
        int64_t front = 0;
        double sum = 0.0;
        for (int64_t i = 0; i < n; i++)
            if (c[i].p >= floor) {
                struct cand t = c[front];
                c[front] = c[i];
                c[i] = t;
                sum += c[front++].p;
            }
        bool enough = (s->top_k > 0 && front >= s->top_k) ||
                      (s->top_p < 1.0 && s->top_k <= 0 && sum >= s->top_p * total) || front == n;
        if (enough || floor < 1e-300) {
            sort(c, front, room);
            return front;
        }
    }
}

/* top-k, then top-p of what is left, then min-p. */
static int64_t cut(const struct kd_sampling *s, struct cand *c, int64_t n, struct cand *room)
{
    double total = 0.0, sum = 0.0;
    if (s->top_k > 0 || s->top_p < 1.0) {
        for (int64_t i = 0; i < n; i++)
            total += c[i].p;
        n = sorted_front(s, c, n, total, room);
        if (s->top_k > 0 && n > s->top_k)
            n = s->top_k;
        if (s->top_k > 0) {
            total = 0.0;
            for (int64_t i = 0; i < n; i++)
                total += c[i].p;
        }
        for (int64_t i = 0; s->top_p < 1.0 && i < n; i++) {
            sum += c[i].p;
            if (sum >= s->top_p * total)
                n = i + 1;
        }
    }
    if (s->min_p > 0.0) {
        int64_t kept = 0;
        for (int64_t i = 0; i < n; i++)
            if (c[i].p >= s->min_p)
                c[kept++] = c[i];
        n = kept;
    }
    return n;
}

int kd_sample(const struct kd_sampling *s, const float *logits, int64_t vocab, int64_t position,
              int32_t *id, struct kd_err *err)
{
    int64_t best = most_likely(logits, vocab);
    if (best < 0)
        return kd_fail(err, KD_EINVAL, "no token can be chosen: every logit is NaN");
    *id = (int32_t)best;
    if (s->temperature <= 0.0 || s->top_k == 1)
        return 0;
    struct cand *c;
    if (kd_mem_new(&c, vocab, 2 * sizeof *c, "sampling", err))
        return -1;
    int64_t n = cut(s, c, weights(s, logits, vocab, logits[best], c), c + vocab);
    double sum = 0.0, target;
    for (int64_t i = 0; i < n; i++)
        sum += c[i].p;
    target = sum * kd_rand_unit(kd_rand_fork(s->seed, s->choice), (uint64_t)position);
    for (int64_t i = 0; i < n; i++) {
        *id = c[i].id;
        target -= c[i].p;
        if (target < 0.0)
            break;
    }
    kd_mem_free(c);
    return 0;
}
