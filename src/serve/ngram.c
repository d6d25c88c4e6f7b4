#include "serve/ngram.h"

#include "base/mem.h"
#include "base/rand.h"

#include <string.h>

enum { N = 3, AGREE_MAX = 16, CAP_MIN = 1024 };

void kd_ngram_release(struct kd_ngram *g)
{
    kd_mem_free(g->end);
    memset(g, 0, sizeof *g);
}

/* The slot of the three tokens before ids + end: theirs, or the free one where they belong. The
 * table is never more than half full. */
static int32_t *slot(const struct kd_ngram *g, const int32_t *ids, int64_t end)
{
    uint64_t h = 0, mask = (uint64_t)(g->cap - 1);
    for (int i = N; i > 0; i--)
        h = kd_rand_u64(h, (uint32_t)ids[end - i]);
    for (;; h++) {
        int32_t *s = &g->end[h & mask];
        if (!*s || !memcmp(ids + *s - N, ids + end - N, N * sizeof *ids))
            return s;
    }
}

/* Enters all triples that end before `count`. A later one takes the place of its like. */
static int enter(struct kd_ngram *g, const int32_t *ids, int64_t count)
{
    if (g->cap < 2 * count) {
        int64_t cap = g->cap ? g->cap : CAP_MIN;
        while (cap < 2 * count)
            cap *= 2;
        kd_ngram_release(g);
        if (count > INT32_MAX / 4 || kd_mem_zero(&g->end, cap, sizeof *g->end, "n-grams", NULL))
            return -1;
        g->cap = cap;
    }
    for (g->seen = g->seen < N ? N : g->seen; g->seen < count; g->seen++)
        *slot(g, ids, g->seen) = (int32_t)g->seen;
    return 0;
}

int64_t kd_ngram_draft(struct kd_ngram *g, const int32_t *ids, int64_t count, int64_t max,
                       int32_t *out, int64_t *agree)
{
    *agree = 0;
    if (count <= N || max <= 0 || enter(g, ids, count))
        return 0;
    int64_t at = *slot(g, ids, count), n = 0;
    while (n < AGREE_MAX && n < at && ids[at - 1 - n] == ids[count - 1 - n])
        n++;
    if (n < N)
        return 0;
    *agree = n;
    /* A draft may run into itself: a loop of any length goes on as it was. */
    for (n = 0; n < max; n++)
        out[n] = at + n < count ? ids[at + n] : out[at + n - count];
    return n;
}
