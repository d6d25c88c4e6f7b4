#include "base/file.h"
#include "base/hash.h"
#include "convert/window_int.h"
#include "net/fetch.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* One window at a time fetches: kd_fetch asks a function without a context. */
static _Atomic bool ending;
static bool (*_Atomic outer)(void);

static bool stopped(void)
{
    bool (*ask)(void) = outer;
    return ending || (ask && ask());
}

/* The digest of a shard whose source says none: read once, written down for a resume. */
static int add_digest(struct kd_window *w, int shard, const char *path, struct kd_err *err)
{
    char hex[65], line[1200], file[4096];
    const char *name = kd_ckpt_shard_name(w->ck, shard);
    if (*w->digest[shard])
        return 0;
    if (kd_sha256_file(path, hex, err) || kd_path_join(file, sizeof file, w->dir, "digests", err))
        return -1;
    int n = snprintf(line, sizeof line, "%s %s\n", hex, name);
    int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, line, (size_t)n) != n || fdatasync(fd)) {
        kd_fail_sys(err, "cannot write '%s'", file);
        if (fd >= 0)
            close(fd);
        return -1;
    }
    close(fd);
    memcpy(w->digest[shard], hex, 65);
    return 0;
}

static int bring(struct kd_window *w, int shard, struct kd_err *err)
{
    struct kd_fetch *f = NULL;
    char path[4096];
    struct kd_fetch_opts o = {.stopped = stopped, .quiet = true};
    if (kd_path_join(path, sizeof path, w->shards, kd_ckpt_shard_name(w->ck, shard), err))
        return -1;
    int rc = kd_fetch_open(&f, w->src, &w->file[shard], 1, w->shards, &o, err);
    int64_t come = rc ? 0 : kd_fetch_left_bytes(f);
    if (!rc)
        rc = kd_fetch_run(f, err);
    kd_fetch_close(f);
    if (!rc)
        rc = add_digest(w, shard, path, err);
    pthread_mutex_lock(&w->mutex);
    w->fetched_bytes += rc ? 0 : come;
    pthread_mutex_unlock(&w->mutex);
    return rc;
}

/* The next shard to bring, -1 when none is wanted. */
static int choose(struct kd_window *w)
{
    if (w->urgent >= 0 && w->state[w->urgent] == KD_SHARD_WANTED)
        return w->urgent;
    for (int i = 0; i < w->shard_count; i++)
        if (w->state[i] == KD_SHARD_WANTED)
            return i;
    return -1;
}

/* What lies there counts from its first byte to its removal. */
static void count(struct kd_window *w)
{
    int64_t bytes = 0;
    int shards = 0;
    for (int i = 0; i < w->shard_count; i++)
        if (w->state[i] >= KD_SHARD_COMES) {
            bytes += kd_source_at(w->src, w->file[i])->bytes;
            shards++;
        }
    if (bytes > w->peak_bytes)
        w->peak_bytes = bytes;
    if (shards > w->peak_shards)
        w->peak_shards = shards;
}

static void *work(void *ctx)
{
    struct kd_window *w = ctx;
    pthread_mutex_lock(&w->mutex);
    while (!w->last && !w->failed) {
        int shard = choose(w);
        if (shard < 0) {
            pthread_cond_wait(&w->wake, &w->mutex);
            continue;
        }
        struct kd_err err;
        w->state[shard] = KD_SHARD_COMES;
        count(w);
        pthread_mutex_unlock(&w->mutex);
        int rc = bring(w, shard, &err);
        pthread_mutex_lock(&w->mutex);
        w->state[shard] = rc ? KD_SHARD_WANTED : KD_SHARD_THERE;
        if (rc) {
            w->failed = true;
            w->err = err;
        }
        pthread_cond_broadcast(&w->wake);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

int kd_window_thread_begin(struct kd_window *w, struct kd_err *err)
{
    w->urgent = -1;
    ending = false;
    outer = w->stopped;
    if (pthread_create(&w->thread, NULL, work, w))
        return kd_fail_sys(err, "cannot start a thread");
    w->running = true;
    return 0;
}

void kd_window_thread_end(struct kd_window *w)
{
    if (!w->running)
        return;
    pthread_mutex_lock(&w->mutex);
    w->last = true;
    ending = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->mutex);
    pthread_join(w->thread, NULL);
    w->running = false;
}
