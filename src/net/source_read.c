#include "net/source_int.h"

#include "base/assert.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 1 << 20 };

/* A span, or what of it lies in one part. */
struct item {
    int part;
    int64_t begin, bytes; /* in the part */
    int64_t at;           /* of its first byte in the span */
    int64_t reach;        /* the highest end of this and earlier items of its request */
    const struct kd_source_span *span;
};

/* Items that are read together: one range of one part. */
struct joined {
    const struct item *items;
    int64_t count, begin, end;
};

struct batch {
    struct item *items;
    struct joined *joined;
    int64_t item_count, joined_count;
};

static void batch_release(struct batch *b)
{
    kd_mem_free(b->items);
    kd_mem_free(b->joined);
}

static int check(struct kd_source *s, const struct kd_source_span *sp, struct kd_err *err)
{
    KD_ASSERT(sp->file >= 0 && sp->file < s->file_count);
    const struct kd_source_file *f = &s->files[sp->file].pub;
    if (f->bytes < 0 && kd_source_stat(s, sp->file, err))
        return -1;
    if (sp->begin < 0 || sp->bytes < 0 || sp->begin > f->bytes || sp->bytes > f->bytes - sp->begin)
        return kd_fail(err, KD_ECORRUPT, "%s/%s: has %lld bytes, %lld from %lld on were wanted",
                       s->where, f->name, (long long)f->bytes, (long long)sp->bytes,
                       (long long)sp->begin);
    return 0;
}

/* The items of a span into out (or counted alone when out is NULL). */
static int64_t cut(const struct kd_source *s, const struct kd_source_span *sp, struct item *out)
{
    const struct kd_source_entry *f = &s->files[sp->file];
    int64_t n = 0, at = 0;
    for (int i = 0; i < f->pub.pieces && at < sp->bytes; i++) {
        const struct kd_source_part *p = &s->parts[f->first + i];
        int64_t from = sp->begin + at - p->start;
        if (from >= p->bytes)
            continue;
        int64_t take = p->bytes - from < sp->bytes - at ? p->bytes - from : sp->bytes - at;
        if (out)
            out[n] = (struct item){f->first + i, from, take, at, 0, sp};
        at += take;
        n++;
    }
    return n;
}

static int by_place(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->part != y->part)
        return x->part < y->part ? -1 : 1;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int plan(struct kd_source *s, const struct kd_source_span *spans, int64_t count,
                struct batch *b, struct kd_err *err)
{
    memset(b, 0, sizeof *b);
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++) {
        if (check(s, &spans[i], err))
            return -1;
        n += cut(s, &spans[i], NULL);
    }
    if (kd_mem_new(&b->items, n, sizeof *b->items, "spans", err) ||
        kd_mem_new(&b->joined, n, sizeof *b->joined, "spans", err)) {
        batch_release(b);
        return -1;
    }
    for (int64_t i = 0; n && i < count; i++) /* of nothing but empty spans there is no list */
        b->item_count += cut(s, &spans[i], b->items + b->item_count);
    if (n)
        qsort(b->items, (size_t)n, sizeof *b->items, by_place);
    struct joined *j = NULL;
    for (int64_t i = 0; i < n; i++) {
        struct item *t = &b->items[i];
        int64_t end = t->begin + t->bytes;
        if (!j || t[-1].part != t->part ||
            t->begin - j->end > (s->o.gap_bytes < 0 ? 0 : s->o.gap_bytes)) {
            j = &b->joined[b->joined_count++];
            *j = (struct joined){t, 0, t->begin, t->begin};
        }
        j->count++;
        if (end > j->end)
            j->end = end;
        t->reach = j->end;
    }
    return 0;
}

static int give(const struct item *t, int64_t at, const char *data, int64_t bytes,
                struct kd_err *err)
{
    if (t->span->buf) {
        memcpy((char *)t->span->buf + t->at + at, data, (size_t)bytes);
        return 0;
    }
    return t->span->sink(t->span->ctx, t->at + at, data, bytes, err);
}

/* Bytes of a joined range to the items that want them; those in a gap fall away. */
static int scatter(void *ctx, int64_t at, const void *data, int64_t bytes, struct kd_err *err)
{
    const struct joined *j = ctx;
    int64_t from = j->begin + at, to = from + bytes;
    int64_t low = 0, high = j->count;
    while (low < high) { /* the first item that reaches into these bytes */
        int64_t mid = (low + high) / 2;
        if (j->items[mid].reach <= from)
            low = mid + 1;
        else
            high = mid;
    }
    for (const struct item *t = j->items + low; t < j->items + j->count && t->begin < to; t++) {
        int64_t a = t->begin > from ? t->begin : from;
        int64_t e = t->begin + t->bytes < to ? t->begin + t->bytes : to;
        if (a < e && give(t, a - t->begin, (const char *)data + (a - from), e - a, err))
            return -1;
    }
    return 0;
}

static int read_local(const struct kd_source *s, const struct item *t, struct kd_err *err)
{
    const struct kd_source_part *p = &s->parts[t->part];
    char *chunk = NULL;
    int fd = open(p->path, O_RDONLY | O_CLOEXEC), rc = 0;
    if (fd < 0)
        return kd_fail_sys(err, "cannot open '%s'", p->path);
    if (!t->span->buf)
        rc = kd_mem_new(&chunk, t->bytes < CHUNK ? t->bytes : CHUNK, 1, "read buffer", err);
    for (int64_t at = 0; at < t->bytes && !rc;) {
        int64_t want = t->bytes - at < CHUNK ? t->bytes - at : CHUNK;
        char *to = chunk ? chunk : (char *)t->span->buf + t->at + at;
        ssize_t n = pread(fd, to, (size_t)want, t->begin + at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            rc = kd_fail_sys(err, "cannot read '%s'", p->path);
        else if (!n)
            rc = kd_fail(err, KD_EIO, "'%s' became shorter while it was read", p->path);
        else if (chunk)
            rc = t->span->sink(t->span->ctx, t->at + at, chunk, n, err);
        at += n;
    }
    kd_mem_free(chunk);
    close(fd);
    return rc;
}

static int run(struct kd_source *s, struct batch *b, struct kd_err *err)
{
    struct kd_get_span *spans;
    int64_t n = 0;
    int rc = kd_mem_zero(&spans, b->joined_count, sizeof *spans, "spans", err);
    for (int64_t i = 0; i < b->joined_count && !rc; i++) {
        struct joined *j = &b->joined[i];
        const struct kd_source_part *p = &s->parts[j->items->part];
        for (int64_t k = 0; k < j->count; k++)
            s->stats.wanted_bytes += j->items[k].bytes;
        for (int64_t k = 0; k < j->count && p->path && !rc; k++)
            rc = read_local(s, &j->items[k], err);
        if (!p->path)
            spans[n++] = (struct kd_get_span){.file = p->get,
                                              .begin = j->begin,
                                              .bytes = j->end - j->begin,
                                              .sink = scatter,
                                              .ctx = j};
    }
    if (!rc && n) {
        rc = kd_get_run(s->get, spans, n, err);
        const struct kd_get_stats *g = kd_get_stats(s->get);
        s->stats.requests = g->requests;
        s->stats.retries = g->retries;
        s->stats.resolves = g->resolves;
        s->stats.fetched_bytes = g->bytes;
    }
    kd_mem_free(spans);
    return rc;
}

int kd_source_read_many(struct kd_source *s, const struct kd_source_span *spans, int64_t count,
                        struct kd_err *err)
{
    struct batch b;
    if (plan(s, spans, count, &b, err))
        return -1;
    int rc = run(s, &b, err);
    batch_release(&b);
    return rc;
}

int kd_source_read(struct kd_source *s, int file, int64_t offset, int64_t bytes, void *buf,
                   struct kd_err *err)
{
    struct kd_source_span span = {.file = file, .begin = offset, .bytes = bytes, .buf = buf};
    return kd_source_read_many(s, &span, 1, err);
}

int kd_source_load(struct kd_source *s, int file, size_t max_bytes, struct kd_buf *out,
                   struct kd_err *err)
{
    const struct kd_source_file *f = &s->files[file].pub;
    if (f->bytes < 0 && kd_source_stat(s, file, err))
        return -1;
    if (f->bytes > (int64_t)max_bytes)
        return kd_fail(err, KD_EINVAL, "%s/%s: %lld bytes, the limit is %zu", s->where, f->name,
                       (long long)f->bytes, max_bytes);
    void *room = kd_buf_grow(out, (size_t)f->bytes);
    if (f->bytes && !room)
        return kd_buf_ok(out, f->name, err) ? -1 : kd_fail(err, KD_ENOMEM, "%s", f->name);
    return kd_source_read(s, file, 0, f->bytes, room, err);
}

int kd_source_cost(struct kd_source *s, const struct kd_source_span *spans, int64_t count,
                   int64_t *requests, int64_t *fetched_bytes, struct kd_err *err)
{
    struct batch b;
    int64_t piece = s->o.get.piece_bytes > 0 ? s->o.get.piece_bytes : KD_GET_PIECE_BYTES;
    *requests = *fetched_bytes = 0;
    if (plan(s, spans, count, &b, err))
        return -1;
    for (int64_t i = 0; i < b.joined_count; i++) {
        const struct joined *j = &b.joined[i];
        *requests += (j->end - j->begin + piece - 1) / piece;
        *fetched_bytes += j->end - j->begin;
    }
    batch_release(&b);
    return 0;
}
