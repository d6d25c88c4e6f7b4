#include "net/fetch_int.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { CHUNK = 1 << 20 };

int kd_fetch_magic(const char *name, const uint8_t *head, int64_t n, int64_t bytes,
                   struct kd_err *err)
{
    const char *text = (const char *)head;
    if ((n >= 9 && !strncasecmp(text, "<!doctype", 9)) ||
        (n >= 5 && !strncasecmp(text, "<html", 5)))
        return kd_fail(err, KD_EREMOTE, "'%s' is a web page, not the file", name);
    if (n >= 23 && !strncmp(text, "version https://git-lfs", 23))
        return kd_fail(err, KD_EREMOTE, "'%s' is a pointer to a large file, not the file", name);
    if (kd_name_ends(name, ".gguf") && (n < 4 || memcmp(head, "GGUF", 4)))
        return kd_fail(err, KD_EREMOTE, "'%s' does not begin as a GGUF file does", name);
    if (kd_name_ends(name, ".safetensors")) {
        uint64_t size = 0;
        for (int i = 7; i >= 0 && n >= 9; i--)
            size = size << 8 | head[i];
        if (n < 9 || size > (uint64_t)bytes - 8 || head[8] != '{')
            return kd_fail(err, KD_EREMOTE, "'%s' does not begin as a safetensors file does", name);
    }
    return 0;
}

/* SHA-256 of [begin, begin + bytes) of a file. */
static int hash_part(int fd, int64_t begin, int64_t bytes, char out[65], struct kd_err *err)
{
    struct kd_sha256 h;
    char *chunk;
    if (kd_mem_new(&chunk, CHUNK, 1, "read buffer", err))
        return -1;
    int rc = kd_sha256_init(&h, err);
    for (int64_t at = 0; at < bytes && !rc;) {
        int64_t want = bytes - at < CHUNK ? bytes - at : CHUNK;
        ssize_t n = pread(fd, chunk, (size_t)want, begin + at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            rc = n ? kd_fail_sys(err, "cannot read it back")
                   : kd_fail(err, KD_EIO, "it became shorter while it was checked");
            char dropped[65];
            kd_sha256_hex(&h, dropped); /* releases the state */
            break;
        }
        kd_sha256_add(&h, chunk, (size_t)n);
        at += n;
    }
    if (!rc)
        kd_sha256_hex(&h, out);
    kd_mem_free(chunk);
    return rc;
}

static int hold(struct kd_fetch *f, int file, int fd, bool *verified, char sha256[65],
                struct kd_err *err)
{
    const struct kd_source_file *sf = kd_source_at(f->s, file);
    uint8_t head[64];
    *verified = sf->bytes > 0;
    *sha256 = 0;
    ssize_t n = pread(fd, head, sizeof head, 0);
    if (n < 0)
        return kd_fail_sys(err, "cannot read it back");
    if (kd_fetch_magic(sf->name, head, n, sf->bytes, err))
        return 1;
    for (int i = 0; i < sf->pieces; i++) {
        int64_t begin, bytes;
        char real[65];
        const char *said = kd_source_piece(f->s, file, i, &begin, &bytes);
        if (!said) {
            *verified = false;
            continue;
        }
        if (hash_part(fd, begin, bytes, real, err))
            return -1;
        if (strcmp(real, said)) {
            kd_fail(err, KD_ECORRUPT, "its SHA-256 is %.16s..., the source says %.16s...", real,
                    said);
            return 1;
        }
        if (sf->pieces == 1)
            memcpy(sha256, real, 65);
    }
    return 0;
}

int kd_fetch_hold(struct kd_fetch *f, int file, const char *path, bool *verified, char sha256[65],
                  struct kd_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return kd_fail_sys(err, "cannot open '%s'", path);
    int rc = hold(f, file, fd, verified, sha256, err);
    close(fd);
    return rc;
}

/* Syncs the folder that holds path, so that a new name in it lasts. */
static int sync_folder(const char *path, struct kd_err *err)
{
    char dir[4096];
    const char *slash = strrchr(path, '/');
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    int fd = open(*dir ? dir : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return kd_fail_sys(err, "cannot open the folder '%s'", dir);
    int rc = fsync(fd) ? kd_fail_sys(err, "cannot sync the folder '%s'", dir) : 0;
    close(fd);
    return rc;
}

static int seal(struct kd_fetch *f, struct kd_fetch_item *t, struct kd_err *err)
{
    struct kd_journal_line line = {
        .kind = KD_JOURNAL_DONE, .name = t->pub.name, .bytes = t->pub.bytes};
    bool verified;
    int rc =
        ftruncate(t->fd, t->pub.bytes) || fsync(t->fd) ? kd_fail_sys(err, "cannot sync it") : 0;
    if (!rc)
        rc = hold(f, t->pub.file, t->fd, &verified, line.sha256, err);
    close(t->fd);
    t->fd = -1;
    if (rc > 0) { /* not what was wanted: none of it is worth keeping */
        line.kind = KD_JOURNAL_DROP;
        unlink(t->part);
        kd_wrap(err, "what came was dropped, run again to fetch it anew");
    }
    if (!rc && rename(t->part, t->path))
        rc = kd_fail_sys(err, "cannot rename it to '%s'", t->path);
    if (!rc)
        rc = sync_folder(t->path, err);
    if (rc >= 0) {
        struct kd_err full;
        pthread_mutex_lock(&f->mutex);
        kd_journal_add(&f->journal, &line);
        if (kd_journal_flush(&f->journal, &full) && !rc) {
            *err = full;
            rc = -1;
        }
        pthread_mutex_unlock(&f->mutex);
    }
    if (rc)
        return kd_wrap(err, "%s", t->pub.name);
    kd_log(KD_LOG_INFO, "get", "file=%s bytes=%lld sha256=%s", t->pub.name, (long long)t->pub.bytes,
           verified ? "verified" : "unknown");
    t->pub.state = KD_FETCH_FETCHED;
    t->pub.verified = verified;
    return 0;
}

static void *work(void *ctx)
{
    struct kd_fetch *f = ctx;
    pthread_mutex_lock(&f->mutex);
    for (;;) {
        while (f->queue_head == f->queue_tail && !f->last)
            pthread_cond_wait(&f->wake, &f->mutex);
        if (f->queue_head == f->queue_tail || f->failed)
            break;
        struct kd_fetch_item *t = &f->items[f->queue[f->queue_head++]];
        struct kd_err err;
        pthread_mutex_unlock(&f->mutex);
        int rc = seal(f, t, &err);
        pthread_mutex_lock(&f->mutex);
        if (rc) {
            f->failed = true;
            f->err = err;
        }
    }
    pthread_mutex_unlock(&f->mutex);
    return NULL;
}

int kd_fetch_seal_begin(struct kd_fetch *f, struct kd_err *err)
{
    f->last = f->failed = false;
    f->queue_head = f->queue_tail = 0;
    if (pthread_create(&f->thread, NULL, work, f))
        return kd_fail_sys(err, "cannot start a thread");
    f->running = true;
    return 0;
}

void kd_fetch_seal_put(struct kd_fetch *f, int item)
{
    pthread_mutex_lock(&f->mutex);
    f->queue[f->queue_tail++] = item;
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->mutex);
}

int kd_fetch_seal_end(struct kd_fetch *f, struct kd_err *err)
{
    pthread_mutex_lock(&f->mutex);
    f->last = true;
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->mutex);
    pthread_join(f->thread, NULL);
    f->running = false;
    if (!f->failed)
        return 0;
    *err = f->err;
    return -1;
}
