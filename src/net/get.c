#include "net/get_int.h"

#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* What a run walks: spans in order, cut into pieces. */
struct run {
    struct kd_get_span *spans;
    int64_t count, next, at; /* the next piece begins at `at` of span `next` */
};

static void curl_begin(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

int kd_get_open(struct kd_get **out, const struct kd_get_opts *opts, struct kd_err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct kd_get *g;
    *out = NULL;
    pthread_once(&once, curl_begin);
    if (kd_mem_zero(&g, 1, sizeof *g, "fetcher", err))
        return -1;
    if (opts)
        g->o = *opts;
    struct kd_get_opts *o = &g->o;
    o->jobs = o->jobs <= 0 ? 8 : o->jobs > KD_GET_JOBS_MAX ? KD_GET_JOBS_MAX : o->jobs;
    o->piece_bytes = o->piece_bytes > 0 ? o->piece_bytes : KD_GET_PIECE_BYTES;
    o->tries = o->tries > 0 ? o->tries : 6;
    o->connect_s = o->connect_s > 0 ? o->connect_s : 20;
    o->stall_s = o->stall_s > 0 ? o->stall_s : 30;
    o->budget_s = o->budget_s > 0 ? o->budget_s : 600;
    o->backoff_s = o->backoff_s > 0 ? o->backoff_s : 1;
    g->multi = curl_multi_init();
    if (!g->multi) {
        kd_get_close(g);
        return kd_fail(err, KD_ENOMEM, "cannot start the fetcher");
    }
    curl_multi_setopt(g->multi, CURLMOPT_MAXCONNECTS, 2L * o->jobs);
    for (int i = 0; i < KD_GET_JOBS_MAX; i++)
        g->slots[i].g = g;
    *out = g;
    return 0;
}

void kd_get_close(struct kd_get *g)
{
    if (!g)
        return;
    for (int i = 0; i < KD_GET_JOBS_MAX; i++) {
        struct kd_get_slot *s = &g->slots[i];
        if (s->easy)
            curl_easy_cleanup(s->easy);
        curl_slist_free_all(s->head);
        kd_mem_free(s->url);
    }
    if (g->multi)
        curl_multi_cleanup(g->multi);
    for (int i = 0; i < g->file_count; i++) {
        struct kd_get_file *f = &g->files[i];
        kd_mem_free(f->url);
        kd_mem_free(f->real);
        if (f->token)
            explicit_bzero(f->token, strlen(f->token));
        kd_mem_free(f->token);
    }
    kd_mem_free(g->files);
    kd_mem_free(g);
}

int kd_get_add(struct kd_get *g, const char *url, const char *token, int64_t bytes,
               struct kd_err *err)
{
    if (kd_ask_allowed(g, url, err))
        return -1;
    if (token && (strlen(token) > 1024 || strpbrk(token, "\r\n")))
        return kd_fail(err, KD_EINVAL, "the token is none: it has line ends or is too long");
    if (g->file_count == g->file_cap) {
        int cap = g->file_cap ? 2 * g->file_cap : 64;
        struct kd_get_file *more;
        if (kd_mem_zero(&more, cap, sizeof *more, "files", err))
            return -1;
        if (g->file_count)
            memcpy(more, g->files, (size_t)g->file_count * sizeof *more);
        kd_mem_free(g->files);
        g->files = more;
        g->file_cap = cap;
    }
    struct kd_get_file *f = &g->files[g->file_count];
    memset(f, 0, sizeof *f);
    f->bytes = bytes;
    if (kd_ask_copy(&f->url, url, err))
        return -1;
    if (token && kd_ask_copy(&f->token, token, err)) {
        kd_mem_free(f->url);
        return -1;
    }
    return g->file_count++;
}

/* Gives an idle slot the next piece; false when none is left. */
static bool take_piece(struct run *r, struct kd_get_slot *s)
{
    while (r->next < r->count && r->at >= r->spans[r->next].bytes) {
        r->next++;
        r->at = 0;
    }
    if (r->next >= r->count)
        return false;
    struct kd_get_span *span = &r->spans[r->next];
    int64_t left = span->bytes - r->at;
    s->span = span;
    s->at = r->at;
    s->bytes = left < s->g->o.piece_bytes ? left : s->g->o.piece_bytes;
    s->got = 0;
    s->tries = s->hops = 0;
    s->not_before = 0;
    s->state = KD_SLOT_WAITS;
    r->at += s->bytes;
    return true;
}

static bool paused(const struct kd_get *g, const struct kd_get_file *f, double now)
{
    struct kd_origin o;
    return now < g->pause_until_s && !kd_url_origin(&o, f->real ? f->real : f->url, NULL) &&
           kd_origin_same(&o, &g->pause_origin);
}

/* Starts what may start. *wait_s: how long nothing else can, *busy: pieces not yet there. */
static int start_some(struct kd_get *g, struct run *r, double *wait_s, int *busy,
                      struct kd_err *err)
{
    double now = kd_clock_s();
    *wait_s = 0.2;
    *busy = 0;
    for (int i = 0; i < g->o.jobs; i++) {
        struct kd_get_slot *s = &g->slots[i];
        if (s->state == KD_SLOT_IDLE && !take_piece(r, s))
            continue;
        ++*busy;
        if (s->state != KD_SLOT_WAITS)
            continue;
        struct kd_get_file *f = &g->files[s->span->file];
        if (s->not_before > now) {
            if (s->not_before - now < *wait_s)
                *wait_s = s->not_before - now;
            continue;
        }
        /* While one request finds out where a file lies, others of it wait. */
        if (paused(g, f, now) || now < g->pace_s || (!f->known && f->asking && !s->hops))
            continue;
        f->asking = f->asking || !f->known;
        if (kd_slot_start(s, err))
            return -1;
    }
    return 0;
}

static int end_piece(struct kd_get_slot *s, enum kd_get_next next, struct kd_err *err)
{
    struct kd_get_span *span = s->span;
    struct kd_get_file *f = &s->g->files[span->file];
    if (next != KD_NEXT_AGAIN || !s->hops)
        f->asking = false;
    s->state = next == KD_NEXT_AGAIN || next == KD_NEXT_LATER ? KD_SLOT_WAITS : KD_SLOT_IDLE;
    if (next == KD_NEXT_AGAIN)
        s->not_before = 0;
    if (next == KD_NEXT_DONE && span->piece_done)
        return span->piece_done(span->ctx, s->at, s->bytes, err);
    return next == KD_NEXT_FAIL ? -1 : 0;
}

/* Takes finished requests off. */
static int reap(struct kd_get *g, struct kd_err *err)
{
    CURLMsg *m;
    int left, rc = 0;
    while (!rc && (m = curl_multi_info_read(g->multi, &left))) {
        struct kd_get_slot *s;
        if (m->msg != CURLMSG_DONE)
            continue;
        CURLcode code = m->data.result;
        char *private;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &private);
        s = (struct kd_get_slot *)(void *)private;
        curl_multi_remove_handle(g->multi, s->easy);
        rc = end_piece(s, kd_slot_finish(s, code, err), err);
    }
    return rc;
}

static void drop_all(struct kd_get *g)
{
    for (int i = 0; i < g->o.jobs; i++) {
        struct kd_get_slot *s = &g->slots[i];
        if (s->state == KD_SLOT_RUNS)
            curl_multi_remove_handle(g->multi, s->easy);
        if (s->state != KD_SLOT_IDLE)
            g->files[s->span->file].asking = false;
        s->state = KD_SLOT_IDLE;
    }
}

static int running_slots(const struct kd_get *g)
{
    int n = 0;
    for (int i = 0; i < g->o.jobs; i++)
        n += g->slots[i].state == KD_SLOT_RUNS;
    return n;
}

static int run_all(struct kd_get *g, struct run *r, struct kd_err *err)
{
    g->last_byte_s = kd_clock_s();
    for (;;) {
        double wait;
        int busy, running;
        if (start_some(g, r, &wait, &busy, err))
            return -1;
        if (!busy)
            return 0;
        /* No waiting while a finished one is there to be taken off. */
        if (curl_multi_perform(g->multi, &running) ||
            (running == running_slots(g) &&
             curl_multi_poll(g->multi, NULL, 0, 1 + (int)(wait * 1000), NULL)))
            return kd_fail(err, KD_ENET, "the fetcher failed inside");
        if (reap(g, err))
            return -1;
        if (g->o.stopped && g->o.stopped())
            return kd_fail(err, KD_ECANCEL, "stopped; the same command resumes");
        if (kd_clock_s() - g->last_byte_s > g->o.budget_s)
            return kd_fail(err, KD_ETIMEOUT, "no byte came for %.0f s", g->o.budget_s);
    }
}

int kd_get_run(struct kd_get *g, struct kd_get_span *spans, int64_t count, struct kd_err *err)
{
    struct run r = {.spans = spans, .count = count};
    for (int64_t i = 0; i < count; i++) {
        const struct kd_get_span *s = &spans[i];
        KD_ASSERT(s->file >= 0 && s->file < g->file_count && s->begin >= 0 && s->bytes >= 0);
        int64_t total = g->files[s->file].bytes;
        if (total >= 0 && (s->begin > total || s->bytes > total - s->begin)) {
            char shown[200];
            return kd_fail(err, KD_EINVAL, "%s has %lld bytes, %lld from %lld on were asked for",
                           kd_url_show(shown, sizeof shown, g->files[s->file].url),
                           (long long)total, (long long)s->bytes, (long long)s->begin);
        }
    }
    int rc = run_all(g, &r, err);
    drop_all(g);
    return rc;
}

int kd_get_sizes(struct kd_get *g, const int *files, int64_t count, int64_t *sizes,
                 struct kd_err *err)
{
    struct kd_get_span *spans;
    char *bytes = NULL;
    int64_t n = 0;
    if (kd_mem_zero(&spans, count, sizeof *spans, "sizes", err))
        return -1;
    int rc = kd_mem_new(&bytes, count, 1, "sizes", err);
    for (int64_t i = 0; i < count && !rc; i++)
        if (g->files[files[i]].bytes < 0) {
            spans[n] = (struct kd_get_span){.file = files[i], .bytes = 1, .buf = bytes + n};
            n++;
        }
    if (!rc && n) {
        g->probe = true;
        rc = kd_get_run(g, spans, n, err);
        g->probe = false;
    }
    for (int64_t i = 0; i < count && !rc; i++)
        sizes[i] = g->files[files[i]].bytes;
    kd_mem_free(bytes);
    kd_mem_free(spans);
    return rc;
}

int64_t kd_get_size(struct kd_get *g, int file, struct kd_err *err)
{
    int64_t size;
    char shown[200];
    if (kd_get_sizes(g, &file, 1, &size, err))
        return -1;
    if (size < 0)
        return kd_fail(err, KD_EREMOTE, "%s: not there (status 404)",
                       kd_url_show(shown, sizeof shown, g->files[file].url));
    return size;
}

const char *kd_get_etag(const struct kd_get *g, int file)
{
    return g->files[file].etag;
}

const struct kd_get_stats *kd_get_stats(const struct kd_get *g)
{
    return &g->stats;
}
