#include "gate/audit_view.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "fmt/st.h"
#include "net/hollow.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONFIG_MAX = 16 << 20 };

/* Where the bytes of one span go. */
struct hole {
    int fd;
    int64_t at;
};

static int fill(void *ctx, int64_t at, const void *data, int64_t bytes, struct kd_err *err)
{
    const struct hole *h = ctx;
    const char *from = data;
    while (bytes) {
        ssize_t n = pwrite(h->fd, from, (size_t)bytes, h->at + at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return kd_fail_sys(err, "cannot write what was received");
        from += n;
        at += n;
        bytes -= n;
    }
    return 0;
}

int kd_view_open(struct kd_view *v, const char *where, const struct kd_source_opts *opts,
                 const char *dir, struct kd_err *err)
{
    char path[4096];
    struct kd_buf text;
    memset(v, 0, sizeof *v);
    if (snprintf(v->dir, sizeof v->dir, "%s", dir) >= (int)sizeof v->dir)
        return kd_fail(err, KD_EINVAL, "path '%.60s...' is too long", dir);
    if (kd_source_open(&v->src, where, opts, err))
        return -1;
    if (kd_source_dir(v->src))
        return 0;
    int file = kd_source_find(v->src, "config.json");
    if (file < 0)
        return kd_fail(err, KD_EINVAL, "'%s' holds no config.json", kd_source_where(v->src));
    kd_buf_init(&text, CONFIG_MAX);
    int rc = kd_dir_make(dir, err) || kd_path_join(path, sizeof path, dir, "config.json", err) ||
             kd_source_load(v->src, file, CONFIG_MAX - 1, &text, err);
    if (!rc)
        rc = kd_file_write(path, text.data ? text.data : "", text.size_bytes, err);
    kd_buf_release(&text);
    return rc ? -1 : 0;
}

static const char *folder(const struct kd_view *v)
{
    const char *local = kd_source_dir(v->src);
    return local ? local : v->dir;
}

int kd_view_config(struct kd_view *v, struct kd_json **config, struct kd_err *err)
{
    char path[4096];
    return kd_path_join(path, sizeof path, folder(v), "config.json", err) ||
                   kd_json_load(config, path, CONFIG_MAX, err)
               ? -1
               : 0;
}

/* ...layers.L. ... .experts.E. ...: both numbers. */
static bool expert_of(const char *name, int64_t *layer, int64_t *expert)
{
    const char *l = strstr(name, "layers."), *e = l ? strstr(l, ".experts.") : NULL;
    if (!e || strstr(name, "shared_experts"))
        return false;
    *layer = strtol(l + 7, NULL, 10);
    *expert = strtol(e + 9, NULL, 10);
    return true;
}

/* Adds the spans of one shard's chosen experts. */
static int spans_of(int file, const char *path, bool (*chosen)(void *, int64_t, int64_t), void *ctx,
                    struct kd_buf *spans, struct kd_err *err)
{
    struct kd_st st;
    if (kd_st_map(&st, path, err))
        return -1;
    for (int64_t i = 0; i < st.count; i++) {
        const struct kd_st_tensor *t = &st.tensors[i];
        int64_t layer, expert;
        if (!expert_of(t->t.name, &layer, &expert) || !chosen(ctx, layer, expert))
            continue;
        struct kd_source_span s = {
            .file = file, .begin = st.data_offset + t->begin, .bytes = t->t.bytes, .sink = fill};
        kd_buf_add(spans, &s, sizeof s);
    }
    kd_st_release(&st);
    return kd_buf_ok(spans, "spans", err);
}

/* One shard's head, then what is wanted of it. */
static int take_shard(struct kd_view *v, int file, bool (*chosen)(void *, int64_t, int64_t),
                      void *ctx, struct kd_err *err)
{
    const struct kd_source_file *f = kd_source_at(v->src, file);
    char path[4096], work[4096];
    struct kd_buf buf;
    if (kd_path_join(path, sizeof path, v->dir, f->name, err) ||
        kd_path_join(work, sizeof work, v->dir, "head", err) ||
        kd_hollow_make(v->src, file, path, work, err))
        return -1;
    v->all_bytes += f->bytes;
    kd_buf_init(&buf, 1 << 30);
    int rc = spans_of(file, path, chosen, ctx, &buf, err);
    struct kd_source_span *spans = (void *)buf.data;
    int64_t n = (int64_t)(buf.size_bytes / sizeof *spans);
    struct hole *holes = NULL;
    int fd = -1;
    if (!rc && n) {
        rc = kd_mem_new(&holes, n, sizeof *holes, "spans", err);
        fd = open(path, O_WRONLY | O_CLOEXEC);
        if (!rc && fd < 0)
            rc = kd_fail_sys(err, "cannot open '%s'", path);
    }
    for (int64_t i = 0; i < n && !rc; i++) {
        holes[i] = (struct hole){fd, spans[i].begin};
        spans[i].ctx = &holes[i];
    }
    if (!rc && n)
        rc = kd_source_read_many(v->src, spans, n, err);
    if (fd >= 0)
        close(fd);
    kd_mem_free(holes);
    kd_buf_release(&buf);
    return rc;
}

int kd_view_take(struct kd_view *v, bool (*chosen)(void *ctx, int64_t layer, int64_t expert),
                 void *ctx, struct kd_err *err)
{
    int64_t shards = 0;
    int rc = kd_source_stat(v->src, -1, err);
    for (int i = 0; i < kd_source_count(v->src); i++)
        shards += kd_hollow_is(kd_source_at(v->src, i));
    kd_progress_begin("read", "shards", shards, 0);
    for (int i = 0; i < kd_source_count(v->src) && !rc; i++) {
        const struct kd_source_file *f = kd_source_at(v->src, i);
        if (!kd_hollow_is(f))
            continue;
        kd_progress_add(0, f->name);
        if (kd_source_dir(v->src))
            v->all_bytes += f->bytes;
        else
            rc = take_shard(v, i, chosen, ctx, err);
        kd_progress_add(1, NULL);
    }
    kd_progress_end();
    if (rc)
        return kd_wrap(err, "%s", kd_source_where(v->src));
    return kd_ckpt_open(&v->ck, folder(v), false, err);
}

void kd_view_close(struct kd_view *v)
{
    if (v->ck)
        kd_ckpt_close(v->ck);
    kd_source_close(v->src);
    memset(v, 0, sizeof *v);
}
