#include "net/fetch.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/show.h"
#include "net/fetch_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Data and journal are synced when so much is done, or after so long. */
enum { FLUSH_BYTES = 256 << 20, FLUSH_S = 2, MARGIN = 64 << 20 };

static int64_t piece_size(const struct kd_fetch *f, const struct kd_fetch_item *t, int64_t no)
{
    int64_t left = t->pub.bytes - no * f->o.piece_bytes;
    return left < f->o.piece_bytes ? left : f->o.piece_bytes;
}

/* --- what is there --- */

static int paths(struct kd_fetch *f, struct kd_fetch_item *t, struct kd_err *err)
{
    size_t n = strlen(f->dst) + strlen(t->pub.name) + 16;
    if (kd_mem_new(&t->path, (int64_t)n, 1, "path", err) ||
        kd_mem_new(&t->part, (int64_t)n, 1, "path", err) ||
        kd_path_join(t->path, n, f->dst, t->pub.name, err))
        return -1;
    snprintf(t->part, n, "%s.part", t->path);
    char *slash = strrchr(t->path, '/');
    *slash = 0;
    int rc = kd_dir_make(t->path, err);
    *slash = '/';
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct kd_fetch_item *)a)->pub.name,
                  ((const struct kd_fetch_item *)b)->pub.name);
}

static struct kd_fetch_item *find(struct kd_fetch *f, const char *name)
{
    struct kd_fetch_item key = {.pub.name = name};
    return bsearch(&key, f->items, (size_t)f->count, sizeof key, by_name);
}

/* One line of an older run. Lines of files that are not wanted this time are left alone. */
static int see(void *ctx, const struct kd_journal_line *l, struct kd_err *err)
{
    struct kd_fetch *f = ctx;
    struct kd_fetch_item *t = find(f, l->name);
    (void)err;
    if (!t)
        return 0;
    if (l->kind == KD_JOURNAL_DROP) {
        memset(t->have, 0, (size_t)t->pieces);
        t->pub.state = KD_FETCH_WANTED;
        return 0;
    }
    if (l->kind == KD_JOURNAL_DONE) {
        t->pub.state = l->bytes == t->pub.bytes ? KD_FETCH_THERE : KD_FETCH_WANTED;
        const char *sha = kd_source_at(f->s, t->pub.file)->sha256;
        t->pub.verified = sha && !strcmp(sha, l->sha256);
        return 0;
    }
    int64_t no = l->begin / f->o.piece_bytes;
    if (l->begin % f->o.piece_bytes || no >= t->pieces || l->bytes != piece_size(f, t, no))
        return 0; /* cut otherwise in that run: fetched again */
    if (t->tag && l->tag && t->tag != l->tag)
        memset(t->have, 0, (size_t)t->pieces);
    t->tag = l->tag ? l->tag : t->tag;
    t->xxh[no] = l->xxh;
    t->have[no] = 1;
    return 0;
}

/* XXH3 of a piece on disk; -1 when it cannot be read whole. Through a map: pieces may be large, and
 * their pages are in the cache. */
static int hash_piece(int fd, int64_t begin, int64_t bytes, uint64_t *xxh)
{
    struct stat st;
    int64_t page = begin % sysconf(_SC_PAGESIZE);
    if (fstat(fd, &st) || st.st_size < begin + bytes)
        return -1;
    void *at = mmap(NULL, (size_t)(bytes + page), PROT_READ, MAP_SHARED, fd, begin - page);
    if (at == MAP_FAILED)
        return -1;
    *xxh = kd_xxh64((const char *)at + page, (size_t)bytes, 0);
    munmap(at, (size_t)(bytes + page));
    return 0;
}

/* Pieces of an unfinished file that are what the journal says. */
static int look_at_part(struct kd_fetch *f, struct kd_fetch_item *t, struct kd_err *err)
{
    int fd = open(t->part, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        memset(t->have, 0, (size_t)t->pieces);
        return 0;
    }
    int rc = 0;
    for (int64_t i = 0; i < t->pieces && !rc; i++) {
        uint64_t xxh;
        int64_t bytes = piece_size(f, t, i);
        bool sound =
            t->have[i] && !hash_piece(fd, i * f->o.piece_bytes, bytes, &xxh) && xxh == t->xxh[i];
        t->have[i] = sound ? 2 : 0;
        t->pub.had_bytes += sound ? bytes : 0;
        t->left -= sound;
        if (f->o.stopped && f->o.stopped())
            rc = kd_fail(err, KD_ECANCEL, "stopped");
    }
    close(fd);
    if (t->pub.had_bytes)
        t->pub.state = KD_FETCH_PARTLY;
    return rc;
}

static int look_at(struct kd_fetch *f, struct kd_fetch_item *t, struct kd_err *err)
{
    struct stat st;
    bool told = t->pub.state == KD_FETCH_THERE;
    if (lstat(t->path, &st)) {
        t->pub.state = KD_FETCH_WANTED;
        t->pub.verified = false;
        return look_at_part(f, t, err);
    }
    if (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
        return kd_fail(err, KD_EUSAGE, "'%s' is there and is no file", t->path);
    if (kd_file_size(t->path, err) != t->pub.bytes)
        return kd_fail(err, KD_EUSAGE,
                       "'%s' is there with another size (the source has %lld bytes): move it away "
                       "or choose another folder",
                       t->path, (long long)t->pub.bytes);
    t->pub.had_bytes = t->pub.bytes;
    t->left = 0;
    t->pub.state = KD_FETCH_THERE;
    if (told)
        return 0;
    /* Put there by somebody else: looked at once. */
    struct kd_journal_line line = {
        .kind = KD_JOURNAL_DONE, .name = t->pub.name, .bytes = t->pub.bytes};
    int rc = kd_fetch_hold(f, t->pub.file, t->path, &t->pub.verified, line.sha256, err);
    if (rc)
        return kd_wrap(err, "'%s' is there, but it is another file", t->path);
    kd_journal_add(&f->journal, &line);
    return 0;
}

static int open_items(struct kd_fetch *f, const int *files, struct kd_err *err)
{
    for (int i = 0; i < f->count; i++) {
        struct kd_fetch_item *t = &f->items[i];
        if (kd_source_stat(f->s, files[i], err))
            return -1;
        const struct kd_source_file *sf = kd_source_at(f->s, files[i]);
        t->pub.file = files[i];
        t->pub.name = sf->name;
        t->pub.bytes = sf->bytes;
        t->pieces = t->left = (sf->bytes + f->o.piece_bytes - 1) / f->o.piece_bytes;
        if (kd_mem_zero(&t->xxh, t->pieces, sizeof *t->xxh, "pieces", err) ||
            kd_mem_zero(&t->have, t->pieces, 1, "pieces", err) || paths(f, t, err))
            return -1;
    }
    if (f->count)
        qsort(f->items, (size_t)f->count, sizeof *f->items, by_name);
    if (kd_journal_open(&f->journal, f->dst, kd_source_where(f->s), kd_source_commit(f->s), see, f,
                        err))
        return -1;
    for (int i = 0; i < f->count; i++)
        if (look_at(f, &f->items[i], err))
            return -1;
    return kd_journal_flush(&f->journal, err);
}

int kd_fetch_open(struct kd_fetch **out, struct kd_source *s, const int *files, int count,
                  const char *dst, const struct kd_fetch_opts *opts, struct kd_err *err)
{
    struct kd_fetch *f;
    *out = NULL;
    if (kd_mem_zero(&f, 1, sizeof *f, "fetch", err))
        return -1;
    f->s = s;
    f->lock = f->journal.fd = -1;
    if (opts)
        f->o = *opts;
    if (f->o.piece_bytes <= 0)
        f->o.piece_bytes = KD_GET_PIECE_BYTES;
    pthread_mutex_init(&f->mutex, NULL);
    pthread_cond_init(&f->wake, NULL);
    size_t n = strlen(dst) + 1;
    int rc = kd_mem_new(&f->dst, (int64_t)n, 1, "path", err);
    if (!rc) {
        memcpy(f->dst, dst, n);
        rc = kd_mem_zero(&f->items, count, sizeof *f->items, "files", err);
    }
    if (!rc) {
        for (f->count = 0; f->count < count; f->count++)
            f->items[f->count].fd = -1;
        rc = kd_mem_new(&f->queue, count, sizeof *f->queue, "files", err) ||
                     kd_dir_make(dst, err) || kd_dir_lock(dst, &f->lock, err) ||
                     kd_source_stat(s, -1, err) || open_items(f, files, err)
                 ? -1
                 : 0;
    }
    if (rc) {
        kd_fetch_close(f);
        return -1;
    }
    *out = f;
    return 0;
}

/* --- the run --- */

/* Syncs what is done, then the journal that says so. */
static int flush(struct kd_fetch *f, struct kd_err *err)
{
    int rc = 0;
    for (int i = 0; i < f->count && !rc; i++) {
        struct kd_fetch_item *t = &f->items[i];
        if (t->dirty && t->fd >= 0 && fdatasync(t->fd))
            rc = kd_fail_sys(err, "cannot sync '%s'", t->part);
        t->dirty = false;
    }
    pthread_mutex_lock(&f->mutex);
    if (!rc)
        rc = kd_journal_flush(&f->journal, err);
    pthread_mutex_unlock(&f->mutex);
    f->pending_bytes = 0;
    f->flushed_s = kd_clock_s();
    return rc;
}

static int open_part(struct kd_fetch_item *t, struct kd_err *err)
{
    struct stat st;
    /* A part of which nothing is sound begins empty, so that no old byte is taken for a new one. */
    int flags = O_RDWR | O_CREAT | O_CLOEXEC | (t->pub.had_bytes ? 0 : O_TRUNC);
    if (!lstat(t->part, &st) && !S_ISREG(st.st_mode))
        return kd_fail(err, KD_EUSAGE, "'%s' is there and is no file", t->part);
    t->fd = open(t->part, flags, 0666);
    return t->fd < 0 ? kd_fail_sys(err, "cannot open '%s'", t->part) : 0;
}

/* The piece is whole: hashed as it lies there, written down, and the file sealed with its last. */
static int piece_done(struct kd_fetch_piece *p, struct kd_err *err)
{
    struct kd_fetch *f = p->f;
    struct kd_fetch_item *t = &f->items[p->item];
    struct kd_journal_line line = {
        .kind = KD_JOURNAL_SPAN, .name = t->pub.name, .begin = p->begin, .bytes = p->bytes};
    const char *tag = kd_source_tag(f->s, t->pub.file);
    if (*tag)
        line.tag = kd_fnv64(tag);
    if (t->pub.had_bytes && t->tag && line.tag && t->tag != line.tag)
        return kd_fail(err, KD_EREMOTE,
                       "'%s' changed at its source since it was begun: remove '%s' and run again",
                       t->pub.name, t->part);
    if (hash_piece(t->fd, p->begin, p->bytes, &line.xxh))
        return kd_fail(err, KD_EIO, "cannot read '%s' back", t->part);
    pthread_mutex_lock(&f->mutex);
    kd_journal_add(&f->journal, &line);
    int rc = kd_journal_write(&f->journal, err);
    bool failed = f->failed;
    pthread_mutex_unlock(&f->mutex);
    if (rc)
        return -1;
    t->dirty = true;
    t->have[p->no] = 2;
    f->pending_bytes += p->bytes;
    bool whole = --t->left == 0;
    if ((whole || f->pending_bytes >= FLUSH_BYTES || kd_clock_s() - f->flushed_s > FLUSH_S) &&
        flush(f, err))
        return -1;
    if (whole)
        kd_fetch_seal_put(f, p->item);
    return failed ? kd_fail(err, KD_ECANCEL, "a file was not sound") : 0;
}

static int take(void *ctx, int64_t at, const void *data, int64_t bytes, struct kd_err *err)
{
    struct kd_fetch_piece *p = ctx;
    struct kd_fetch_item *t = &p->f->items[p->item];
    const char *from = data;
    if (t->fd < 0 && open_part(t, err))
        return -1;
    for (int64_t left = bytes, to = p->begin + at; left;) {
        ssize_t n = pwrite(t->fd, from, (size_t)left, to);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == ENOSPC || errno == EDQUOT))
            return kd_fail(err, KD_EIO,
                           "the disk is full at '%s': make room and run the same command again",
                           t->part);
        if (n < 0)
            return kd_fail_sys(err, "cannot write '%s'", t->part);
        from += n;
        to += n;
        left -= n;
    }
    if (!p->f->o.quiet)
        kd_progress_add(bytes, t->pub.name);
    p->got += bytes;
    if (p->f->o.stopped && p->f->o.stopped())
        return kd_fail(err, KD_ECANCEL, "stopped; the same command goes on from here");
    return p->got == p->bytes ? piece_done(p, err) : 0;
}

/* A file of which no piece must come: an empty one, or one whose fetch was killed between its last
 * piece and its name. */
static int seal_at_once(struct kd_fetch *f, int item, struct kd_err *err)
{
    if (open_part(&f->items[item], err))
        return -1;
    kd_fetch_seal_put(f, item);
    return 0;
}

/* The pieces that must come, in the files' order. */
static int wish(struct kd_fetch *f, struct kd_fetch_piece **pieces, struct kd_source_span **spans,
                int64_t *count, struct kd_err *err)
{
    int64_t n = 0;
    for (int i = 0; i < f->count; i++)
        n += f->items[i].left;
    *count = 0;
    if (kd_mem_zero(pieces, n, sizeof **pieces, "pieces", err) ||
        kd_mem_zero(spans, n, sizeof **spans, "pieces", err))
        return -1;
    for (int i = 0; i < f->count; i++) {
        struct kd_fetch_item *t = &f->items[i];
        for (int64_t k = 0; k < t->pieces && t->left; k++) {
            if (t->have[k] == 2)
                continue;
            int64_t begin = k * f->o.piece_bytes, bytes = piece_size(f, t, k);
            struct kd_fetch_piece *p = &(*pieces)[*count];
            *p = (struct kd_fetch_piece){f, i, k, begin, bytes, 0};
            (*spans)[*count] = (struct kd_source_span){
                .file = t->pub.file, .begin = begin, .bytes = bytes, .sink = take, .ctx = p};
            ++*count;
        }
    }
    return 0;
}

static int check_room(const struct kd_fetch *f, struct kd_err *err)
{
    int64_t need = kd_fetch_left_bytes(f), have = kd_disk_free_bytes(f->dst);
    char a[32], b[32];
    if (!need || have >= need + MARGIN)
        return 0;
    kd_show_bytes(a, sizeof a, need + MARGIN);
    kd_show_bytes(b, sizeof b, have);
    return kd_fail(err, KD_EIO, "'%s' needs %s of disk, %s are free: make room and run again",
                   f->dst, a, b);
}

static int run(struct kd_fetch *f, const struct kd_source_span *spans, int64_t count,
               struct kd_err *err)
{
    struct kd_err more;
    if (kd_fetch_seal_begin(f, err))
        return -1;
    f->flushed_s = kd_clock_s();
    int rc = 0;
    for (int i = 0; i < f->count && !rc; i++)
        if (!f->items[i].left && f->items[i].pub.state != KD_FETCH_THERE)
            rc = seal_at_once(f, i, err);
    if (!rc && count)
        rc = kd_source_read_many(f->s, spans, count, err);
    /* What is whole stays, whatever happened. */
    if (flush(f, &more) && !rc) {
        *err = more;
        rc = -1;
    }
    if (kd_fetch_seal_end(f, &more) && (!rc || err->code == KD_ECANCEL)) {
        *err = more; /* the cause of the stop */
        rc = -1;
    }
    return rc;
}

int kd_fetch_run(struct kd_fetch *f, struct kd_err *err)
{
    struct kd_fetch_piece *pieces = NULL;
    struct kd_source_span *spans = NULL;
    int64_t count, total = 0, had = 0;
    if (check_room(f, err))
        return -1;
    for (int i = 0; i < f->count; i++) {
        total += f->items[i].pub.bytes;
        had += f->items[i].pub.had_bytes;
    }
    int rc = wish(f, &pieces, &spans, &count, err);
    if (!rc) {
        if (!f->o.quiet)
            kd_progress_begin("fetch", "bytes", total, had);
        rc = run(f, spans, count, err);
        if (!f->o.quiet)
            kd_progress_end();
    }
    kd_mem_free(pieces);
    kd_mem_free(spans);
    return rc;
}

void kd_fetch_close(struct kd_fetch *f)
{
    if (!f)
        return;
    for (int i = 0; i < f->count; i++) {
        struct kd_fetch_item *t = &f->items[i];
        if (t->fd >= 0)
            close(t->fd);
        kd_mem_free(t->path);
        kd_mem_free(t->part);
        kd_mem_free(t->xxh);
        kd_mem_free(t->have);
    }
    kd_mem_free(f->items);
    kd_mem_free(f->queue);
    kd_journal_close(&f->journal);
    if (f->lock >= 0)
        close(f->lock);
    pthread_mutex_destroy(&f->mutex);
    pthread_cond_destroy(&f->wake);
    kd_mem_free(f->dst);
    kd_mem_free(f);
}

int kd_fetch_count(const struct kd_fetch *f)
{
    return f->count;
}

const struct kd_fetch_file *kd_fetch_at(const struct kd_fetch *f, int i)
{
    return &f->items[i].pub;
}

int64_t kd_fetch_left_bytes(const struct kd_fetch *f)
{
    int64_t left = 0;
    for (int i = 0; i < f->count; i++)
        left += f->items[i].pub.bytes - f->items[i].pub.had_bytes;
    return left;
}
