#include "convert/window.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "convert/window_int.h"
#include "net/fetch.h"
#include "net/hollow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- opening --- */

/* Files that are fetched whole: all at the top that are no weights. */
static bool is_small(const struct kd_source_file *f)
{
    static const char *const weights[] = {".safetensors", ".gguf", ".bin",  ".pt", ".pth",
                                          ".onnx",        ".png",  ".jpeg", ".mp4"};
    if (strchr(f->name, '/') || f->bytes > KD_WINDOW_SMALL_MAX)
        return false;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        if (kd_name_ends(f->name, weights[i]))
            return false;
    return true;
}

static int fetch_small(struct kd_window *w, struct kd_err *err)
{
    struct kd_fetch *f = NULL;
    int *files, count = 0;
    if (kd_source_stat(w->src, -1, err) ||
        kd_mem_new(&files, kd_source_count(w->src), sizeof *files, "files", err))
        return -1;
    for (int i = 0; i < kd_source_count(w->src); i++)
        if (is_small(kd_source_at(w->src, i)))
            files[count++] = i;
    int rc = kd_fetch_open(&f, w->src, files, count, w->model,
                           &(struct kd_fetch_opts){.stopped = w->stopped}, err);
    if (!rc)
        rc = kd_fetch_run(f, err);
    kd_fetch_close(f);
    kd_mem_free(files);
    return rc;
}

static int fetch_heads(struct kd_window *w, struct kd_err *err)
{
    int shards = 0;
    for (int i = 0; i < kd_source_count(w->src); i++) {
        const struct kd_source_file *f = kd_source_at(w->src, i);
        char path[4096], work[4096];
        if (!kd_hollow_is(f))
            continue;
        if (w->stopped && w->stopped())
            return kd_fail(err, KD_ECANCEL, "stopped");
        /* Made elsewhere: all that lies in model/ goes along with the output. */
        if (kd_path_join(path, sizeof path, w->model, f->name, err) ||
            kd_path_join(work, sizeof work, w->dir, "head", err) ||
            kd_hollow_make(w->src, i, path, work, err))
            return -1;
        shards++;
    }
    if (!shards)
        return kd_fail(err, KD_EINVAL, "'%s' holds no *.safetensors file", kd_source_where(w->src));
    return 0;
}

/* The layer of a tensor's name, or -1. */
static int64_t layer_of(const char *name)
{
    const char *at = strstr(name, "layers.");
    if (!at || strstr(name, "vision") || strstr(name, "projector"))
        return -1;
    return strtol(at + 7, NULL, 10);
}

/* Embedding, head and the norms around them: what the forward pass needs outside layers. */
static bool is_end(const char *name)
{
    return layer_of(name) < 0 && !strstr(name, "vision") && !strstr(name, "projector");
}

/* Which shards each layer wants. */
static int map_layers(struct kd_window *w, struct kd_err *err)
{
    for (int64_t i = 0; i < kd_ckpt_count(w->ck); i++) {
        int64_t l = layer_of(kd_ckpt_at(w->ck, i)->name);
        if (l >= w->layers)
            w->layers = l + 1;
    }
    if (w->layers > KD_WINDOW_LAYERS_MAX)
        return kd_fail(err, KD_ENOTSUP, "%lld layers", (long long)w->layers);
    if (kd_mem_zero(&w->wants, (w->layers + 2) * w->shard_count, 1, "shards", err))
        return -1;
    for (int64_t i = 0; i < kd_ckpt_count(w->ck); i++) {
        const struct kd_tensor *t = kd_ckpt_at(w->ck, i);
        int64_t l = layer_of(t->name);
        if (l >= 0)
            w->wants[(l + 1) * w->shard_count + t->shard] = 1;
        else if (is_end(t->name))
            w->wants[t->shard] = 1;
        if (l < 0)
            w->wants[(w->layers + 1) * w->shard_count + t->shard] = 1;
    }
    for (int64_t l = 0; l < w->layers + 2; l++)
        for (int i = 0; i < w->shard_count; i++)
            if (w->wants[l * w->shard_count + i])
                w->until[i] = l;
    return 0;
}

/* Digests: what the source says, else what was read in an earlier run. */
static int read_digests(struct kd_window *w, struct kd_err *err)
{
    char path[4096];
    struct kd_buf text;
    kd_buf_init(&text, 16 << 20);
    int rc = kd_path_join(path, sizeof path, w->dir, "digests", err);
    if (!rc && kd_file_exists(path))
        rc = kd_file_read(&text, path, 16 << 20, err);
    for (int i = 0; i < w->shard_count && !rc; i++) {
        const char *name = kd_ckpt_shard_name(w->ck, i);
        w->file[i] = kd_source_find(w->src, name);
        if (w->file[i] < 0) {
            rc = kd_fail(err, KD_EREMOTE, "'%s' has no file '%s', which its index names",
                         kd_source_where(w->src), name);
            break;
        }
        const struct kd_source_file *f = kd_source_at(w->src, w->file[i]);
        w->source_bytes += f->bytes;
        if (f->sha256) {
            memcpy(w->digest[i], f->sha256, 65);
            memcpy(w->said[i], f->sha256, 65);
        }
        for (const char *at = text.data; at && *at && !*w->digest[i];) {
            size_t n = strcspn(at, "\n");
            if (n == 65 + strlen(name) && !strncmp(at + 65, name, n - 65))
                snprintf(w->digest[i], 65, "%.64s", at);
            at += n + (at[n] == '\n');
        }
    }
    kd_buf_release(&text);
    return rc;
}

static int open_all(struct kd_window *w, const char *where, const struct kd_source_opts *so,
                    struct kd_err *err)
{
    if (kd_dir_make(w->model, err) || kd_dir_make(w->shards, err) ||
        kd_source_open(&w->src, where, so, err) || fetch_small(w, err) || fetch_heads(w, err) ||
        kd_ckpt_open(&w->ck, w->model, false, err))
        return -1;
    w->shard_count = kd_ckpt_shard_count(w->ck);
    if (kd_mem_zero(&w->digest, w->shard_count, sizeof *w->digest, "digests", err) ||
        kd_mem_zero(&w->said, w->shard_count, sizeof *w->said, "digests", err) ||
        kd_mem_zero(&w->file, w->shard_count, sizeof *w->file, "shards", err) ||
        kd_mem_zero(&w->state, w->shard_count, sizeof *w->state, "shards", err) ||
        kd_mem_zero(&w->until, w->shard_count, sizeof *w->until, "shards", err) ||
        kd_mem_zero(&w->loaded, w->shard_count, sizeof *w->loaded, "shards", err) ||
        map_layers(w, err) || read_digests(w, err))
        return -1;
    for (int i = 0; i < w->shard_count; i++)
        if (kd_ckpt_shard_drop(w->ck, i, err))
            return -1;
    return 0;
}

int kd_window_open(struct kd_window **out, const char *where, const struct kd_source_opts *so,
                   const char *dst, bool (*stopped)(void), struct kd_err *err)
{
    struct kd_window *w;
    *out = NULL;
    if (kd_mem_zero(&w, 1, sizeof *w, "source", err))
        return -1;
    w->stopped = stopped;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->wake, NULL);
    int rc = 0;
    if (snprintf(w->dir, sizeof w->dir, "%s/.source", dst) >= (int)sizeof w->dir)
        rc = kd_fail(err, KD_EINVAL, "path '%.60s...' is too long", dst);
    snprintf(w->model, sizeof w->model, "%s/model", w->dir);
    snprintf(w->shards, sizeof w->shards, "%s/shards", w->dir);
    struct kd_source_opts o = *so;
    o.gap_bytes = -1;
    if (!rc)
        rc = open_all(w, where, &o, err) || kd_window_thread_begin(w, err) ? -1 : 0;
    if (rc) {
        kd_window_close(w, false, NULL);
        return kd_wrap(err, "source");
    }
    *out = w;
    return 0;
}

/* --- shards that come and go --- */

static const uint8_t *wish_of(const struct kd_window *w, int64_t layer)
{
    return w->wants + (layer + 1) * w->shard_count;
}

void kd_window_ahead(struct kd_window *w, int64_t layer)
{
    const uint8_t *want = wish_of(w, layer);
    pthread_mutex_lock(&w->mutex);
    for (int i = 0; i < w->shard_count; i++)
        if (want[i] && w->state[i] == KD_SHARD_AWAY)
            w->state[i] = KD_SHARD_WANTED;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->mutex);
}

/* Waits for a shard; 0 once it is on disk. */
static int wait_for(struct kd_window *w, int shard, struct kd_err *err)
{
    pthread_mutex_lock(&w->mutex);
    w->urgent = shard; /* before what was wished ahead */
    if (w->state[shard] == KD_SHARD_AWAY)
        w->state[shard] = KD_SHARD_WANTED;
    pthread_cond_broadcast(&w->wake);
    while (w->state[shard] != KD_SHARD_THERE && !w->failed)
        pthread_cond_wait(&w->wake, &w->mutex);
    bool there = w->state[shard] == KD_SHARD_THERE;
    if (!there)
        *err = w->err;
    w->urgent = -1;
    pthread_mutex_unlock(&w->mutex);
    return there ? 0 : -1;
}

int kd_window_need(struct kd_window *w, int64_t layer, struct kd_err *err)
{
    const uint8_t *want = wish_of(w, layer);
    char path[4096];
    for (int i = 0; i < w->shard_count; i++) {
        if (!want[i])
            continue;
        if (w->loaded[i])
            continue;
        char note[96];
        snprintf(note, sizeof note, "waits for shard %d of %d", i + 1, w->shard_count);
        kd_progress_add(0, note);
        if (wait_for(w, i, err) ||
            kd_path_join(path, sizeof path, w->shards, kd_ckpt_shard_name(w->ck, i), err) ||
            kd_ckpt_shard_load(w->ck, i, path, err))
            return kd_wrap(err, "source");
        w->loaded[i] = 1;
    }
    return 0;
}

int kd_window_done(struct kd_window *w, int64_t layer, struct kd_err *err)
{
    const uint8_t *want = wish_of(w, layer);
    char path[4096];
    for (int i = 0; i < w->shard_count; i++) {
        if (!want[i] || !w->loaded[i] || w->until[i] > layer + 1)
            continue;
        if (kd_ckpt_shard_drop(w->ck, i, err) ||
            kd_path_join(path, sizeof path, w->shards, kd_ckpt_shard_name(w->ck, i), err))
            return -1;
        w->loaded[i] = 0;
        if (unlink(path))
            return kd_fail_sys(err, "cannot remove '%s'", path);
        pthread_mutex_lock(&w->mutex);
        w->state[i] = KD_SHARD_AWAY;
        pthread_mutex_unlock(&w->mutex);
    }
    return 0;
}

/* --- what it is --- */

struct kd_ckpt *kd_window_ckpt(struct kd_window *w)
{
    return w->ck;
}

int64_t kd_window_layers(const struct kd_window *w)
{
    return w->layers;
}

const char (*kd_window_digests(const struct kd_window *w, bool read))[65]
{
    return (const char(*)[65])(read ? w->digest : w->said);
}

const char *kd_window_where(const struct kd_window *w)
{
    return kd_source_where(w->src);
}

const char *kd_window_commit(const struct kd_window *w)
{
    return kd_source_commit(w->src);
}

struct kd_window_stats kd_window_stats(struct kd_window *w)
{
    int64_t three[3] = {0};
    for (int i = 0; i < w->shard_count; i++) {
        int64_t v = kd_source_at(w->src, w->file[i])->bytes;
        for (int k = 0; k < 3; k++)
            if (v > three[k]) {
                int64_t less = three[k];
                three[k] = v;
                v = less;
            }
    }
    pthread_mutex_lock(&w->mutex);
    struct kd_window_stats s = {.peak_bytes = w->peak_bytes,
                                .peak_shards = w->peak_shards,
                                .largest_three_bytes = three[0] + three[1] + three[2],
                                .fetched_bytes = w->fetched_bytes,
                                .source_bytes = w->source_bytes};
    pthread_mutex_unlock(&w->mutex);
    return s;
}

int kd_window_close(struct kd_window *w, bool remove, struct kd_err *err)
{
    if (!w)
        return 0;
    kd_window_thread_end(w);
    if (w->ck)
        kd_ckpt_close(w->ck);
    kd_source_close(w->src);
    int rc = remove ? kd_dir_remove(w->dir, err) : 0;
    kd_mem_free(w->digest);
    kd_mem_free(w->said);
    kd_mem_free(w->file);
    kd_mem_free(w->state);
    kd_mem_free(w->until);
    kd_mem_free(w->loaded);
    kd_mem_free(w->wants);
    pthread_mutex_destroy(&w->mutex);
    pthread_cond_destroy(&w->wake);
    kd_mem_free(w);
    return rc;
}
