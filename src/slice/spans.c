#include "slice/spans.h"

#include "base/hash.h"
#include "base/mem.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_place(const void *a, const void *b)
{
    const struct kd_slice_span *x = a, *y = b;
    if (x->part != y->part)
        return x->part < y->part ? -1 : 1;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int check(const struct kd_slice_span *s, const struct kd_slice_span *before,
                 const int64_t *part_bytes, int32_t parts, int64_t request, struct kd_err *err)
{
    if (s->part < 0 || s->part >= parts || s->begin < 0 || s->bytes < 0 || s->unit < 1 ||
        s->bytes % s->unit || s->begin > part_bytes[s->part] ||
        s->bytes > part_bytes[s->part] - s->begin)
        return kd_fail(err, KD_ECORRUPT, "part %d: %lld bytes at %lld are not inside it",
                       s->part + 1, (long long)s->bytes, (long long)s->begin);
    if (before && before->part == s->part && before->begin + before->bytes > s->begin)
        return kd_fail(err, KD_ECORRUPT, "part %d: two tensors share the bytes at %lld",
                       s->part + 1, (long long)s->begin);
    if (s->unit > request)
        return kd_fail(err, KD_ENOTSUP, "rows of %lld bytes are over the limit of %lld",
                       (long long)s->unit, (long long)request);
    return 0;
}

/* Cuts and joins. With NULL arrays it only counts. */
struct walk {
    struct kd_slice_span *s;
    struct kd_slice_request *r;
    int64_t count, requests, gaps;
};

static void walk(struct walk *w, const struct kd_slice_span *sorted, int64_t n,
                 const struct kd_slice_limits *limits)
{
    struct kd_slice_request now = {.part = -1};
    for (int64_t i = 0; i < n; i++) {
        struct kd_slice_span left = sorted[i];
        while (left.bytes) {
            int64_t gap = left.begin - (now.begin + now.bytes);
            int64_t room = limits->request_bytes - (left.begin - now.begin);
            bool fits = now.part == left.part && gap <= limits->gap_bytes && room >= left.unit;
            if (!fits) {
                now = (struct kd_slice_request){.part = left.part, .begin = left.begin};
                now.first = w->count;
                gap = 0;
                room = limits->request_bytes;
                w->requests++;
            }
            int64_t take = (left.bytes < room ? left.bytes : room) / left.unit * left.unit;
            w->gaps += gap;
            now.bytes = left.begin + take - now.begin;
            now.count++;
            if (w->s) {
                w->s[w->count] = left;
                w->s[w->count].bytes = take;
                w->r[w->requests - 1] = now;
            }
            w->count++;
            left.begin += take;
            left.bytes -= take;
            left.out_at += take / left.unit * left.out_unit;
        }
    }
}

static int hash(struct kd_slice_spans *p, struct kd_err *err)
{
    struct kd_sha256 h;
    char line[256];
    if (kd_sha256_init(&h, err))
        return -1;
    for (int64_t i = 0; i < p->request_count; i++) {
        const struct kd_slice_request *r = &p->r[i];
        int n = snprintf(line, sizeof line, "read %d %lld %lld\n", r->part, (long long)r->begin,
                         (long long)r->bytes);
        kd_sha256_add(&h, line, (size_t)n);
        for (int64_t k = r->first; k < r->first + r->count; k++) {
            const struct kd_slice_span *s = &p->s[k];
            n = snprintf(line, sizeof line, "%lld %lld > %d %lld as %d\n", (long long)s->begin,
                         (long long)s->bytes, s->out, (long long)s->out_at, s->to);
            kd_sha256_add(&h, line, (size_t)n);
        }
    }
    kd_sha256_hex(&h, p->hash);
    return 0;
}

int kd_slice_spans_make(struct kd_slice_spans *out, const struct kd_slice_span *spans,
                        int64_t count, const int64_t *part_bytes, int32_t parts,
                        const struct kd_slice_limits *limits, struct kd_err *err)
{
    struct kd_slice_span *sorted;
    struct walk w = {.s = NULL};
    memset(out, 0, sizeof *out);
    if (kd_mem_new(&sorted, count, sizeof *sorted, "spans", err))
        return -1;
    int rc = 0;
    if (count) {
        memcpy(sorted, spans, (size_t)count * sizeof *sorted);
        qsort(sorted, (size_t)count, sizeof *sorted, by_place);
    }
    for (int64_t i = 0; !rc && i < count; i++) {
        rc = check(&sorted[i], i ? &sorted[i - 1] : NULL, part_bytes, parts, limits->request_bytes,
                   err);
        out->wanted_bytes += sorted[i].bytes;
    }
    if (!rc) {
        walk(&w, sorted, count, limits);
        out->count = w.count;
        out->request_count = w.requests;
        out->gap_bytes = w.gaps;
        rc = kd_mem_new(&out->s, w.count, sizeof *out->s, "spans", err) ||
             kd_mem_new(&out->r, w.requests, sizeof *out->r, "requests", err);
    }
    if (!rc) {
        w = (struct walk){.s = out->s, .r = out->r};
        if (w.s && w.r)
            walk(&w, sorted, count, limits);
        else
            out->count = out->request_count = 0;
        rc = hash(out, err);
    }
    kd_mem_free(sorted);
    if (rc)
        kd_slice_spans_release(out);
    return rc ? -1 : 0;
}

void kd_slice_spans_release(struct kd_slice_spans *s)
{
    kd_mem_free(s->s);
    kd_mem_free(s->r);
    memset(s, 0, sizeof *s);
}
