#include "gate/view.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "fmt/gguf.h"
#include "fmt/st.h"
#include "net/hollow.h"
#include "slice/heads.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONFIG_MAX = 16 << 20, SPANS_MAX = 1 << 30 };

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

/* A remote checkpoint's config.json in v->dir. */
static int bring_config(struct kd_view *v, struct kd_err *err)
{
    char path[4096];
    struct kd_buf text;
    int file = kd_source_find(v->src, "config.json");
    if (file < 0)
        return kd_fail(err, KD_EINVAL, "'%s' holds no config.json", kd_source_where(v->src));
    kd_buf_init(&text, CONFIG_MAX);
    int rc = kd_path_join(path, sizeof path, v->dir, "config.json", err) ||
             kd_source_load(v->src, file, CONFIG_MAX - 1, &text, err);
    if (!rc)
        rc = kd_file_write(path, text.data ? text.data : "", text.size_bytes, err);
    kd_buf_release(&text);
    return rc ? -1 : 0;
}

/* Where the hollow file of a remote GGUF's part lies. */
static int part_path(const struct kd_view *v, int part, char *path, size_t size, struct kd_err *err)
{
    const char *name = v->heads->parts[part].name, *slash = strrchr(name, '/');
    return kd_path_join(path, size, v->dir, slash ? slash + 1 : name, err);
}

/* A remote GGUF as files with holes behind their heads. */
static int bring_heads(struct kd_view *v, struct kd_err *err)
{
    char path[4096];
    if (kd_heads_open(&v->heads, v->src, err))
        return -1;
    for (int i = 0; i < v->heads->part_count; i++) {
        const struct kd_head_part *p = &v->heads->parts[i];
        if (part_path(v, i, path, sizeof path, err) ||
            kd_file_write(path, p->text.data, p->text.size_bytes, err))
            return -1;
        if (truncate(path, p->bytes))
            return kd_fail_sys(err, "cannot make '%s' (%lld bytes, most of it a hole)", path,
                               (long long)p->bytes);
    }
    return kd_ckpt_open(&v->ck, v->dir, false, err);
}

/* Whether a remote source is a GGUF and no safetensors checkpoint, as kd_gguf_is says of a folder.
 */
static bool is_gguf(const struct kd_source *s)
{
    bool gguf = false, safetensors = false;
    for (int i = 0; i < kd_source_count(s); i++) {
        const char *name = kd_source_at(s, i)->name;
        gguf = gguf || kd_name_ends(name, ".gguf");
        safetensors = safetensors || kd_name_ends(name, ".safetensors");
    }
    return gguf && !(safetensors && kd_source_find(s, "config.json") >= 0);
}

int kd_view_open(struct kd_view *v, const char *where, const struct kd_source_opts *opts,
                 const char *dir, struct kd_err *err)
{
    memset(v, 0, sizeof *v);
    if (snprintf(v->dir, sizeof v->dir, "%s", dir) >= (int)sizeof v->dir)
        return kd_fail(err, KD_EINVAL, "path '%.60s...' is too long", dir);
    if (kd_source_open(&v->src, where, opts, err))
        return -1;
    if (kd_source_dir(v->src))
        return kd_gguf_is(where) ? kd_ckpt_open(&v->ck, where, false, err) : 0;
    if (kd_dir_make(dir, err))
        return -1;
    return is_gguf(v->src) ? bring_heads(v, err) : bring_config(v, err);
}

static const char *folder(const struct kd_view *v)
{
    const char *local = kd_source_dir(v->src);
    return local ? local : v->dir;
}

int kd_view_config(struct kd_view *v, const struct kd_json **config, struct kd_err *err)
{
    char path[4096];
    if (v->ck)
        *config = kd_ckpt_config(v->ck);
    else if (kd_path_join(path, sizeof path, folder(v), "config.json", err) ||
             kd_json_load(&v->json, path, CONFIG_MAX, err))
        return -1;
    else
        *config = v->json;
    return 0;
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

/* Reads spans (of struct kd_source_span, all of one file) to their places in the file at `path`. */
static int fill_holes(struct kd_view *v, const char *path, struct kd_buf *list, struct kd_err *err)
{
    struct kd_source_span *spans = (void *)list->data;
    int64_t n = (int64_t)(list->size_bytes / sizeof *spans);
    struct hole *holes = NULL;
    if (kd_buf_ok(list, "spans", err))
        return -1;
    if (!n)
        return 0;
    if (kd_mem_new(&holes, n, sizeof *holes, "spans", err))
        return -1;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    int rc = fd < 0 ? kd_fail_sys(err, "cannot open '%s'", path) : 0;
    for (int64_t i = 0; i < n && !rc; i++) {
        holes[i] = (struct hole){fd, spans[i].begin};
        spans[i].ctx = &holes[i];
    }
    if (!rc)
        rc = kd_source_read_many(v->src, spans, n, err);
    if (fd >= 0)
        close(fd);
    kd_mem_free(holes);
    return rc;
}

/* One shard's head, then what is wanted of it. */
static int take_shard(struct kd_view *v, int file, bool (*chosen)(void *, int64_t, int64_t),
                      void *ctx, struct kd_err *err)
{
    const struct kd_source_file *f = kd_source_at(v->src, file);
    char path[4096], work[4096];
    struct kd_buf spans;
    if (kd_path_join(path, sizeof path, v->dir, f->name, err) ||
        kd_path_join(work, sizeof work, v->dir, "head", err) ||
        kd_hollow_make(v->src, file, path, work, err))
        return -1;
    v->all_bytes += f->bytes;
    kd_buf_init(&spans, SPANS_MAX);
    int rc = spans_of(file, path, chosen, ctx, &spans, err) || fill_holes(v, path, &spans, err);
    kd_buf_release(&spans);
    return rc ? -1 : 0;
}

/* The slabs of chosen experts in one part of a GGUF: the expert is the outermost dimension. */
static int take_part(struct kd_view *v, int part, bool (*chosen)(void *, int64_t, int64_t),
                     void *ctx, struct kd_err *err)
{
    const struct kd_heads *h = v->heads;
    char path[4096];
    struct kd_buf spans;
    struct kd_k3_name name;
    if (part_path(v, part, path, sizeof path, err))
        return -1;
    kd_buf_init(&spans, SPANS_MAX);
    for (int64_t i = 0; i < h->count; i++) {
        const struct kd_head_tensor *t = &h->t[i];
        if (t->part != part || !kd_k3_name_parse(&h->map, t->name, &name) ||
            name.kind != KD_K3_ROUTED)
            continue;
        int64_t slab = t->bytes / t->shape[0]; /* as many as the config's: kd_k3_known */
        for (int64_t e = 0; e < t->shape[0]; e++)
            if (chosen(ctx, name.layer, e)) {
                struct kd_source_span s = {.file = h->parts[part].file,
                                           .begin = t->begin + e * slab,
                                           .bytes = slab,
                                           .sink = fill};
                kd_buf_add(&spans, &s, sizeof s);
            }
    }
    int rc = fill_holes(v, path, &spans, err);
    kd_buf_release(&spans);
    return rc;
}

static int take_gguf(struct kd_view *v, bool (*chosen)(void *ctx, int64_t layer, int64_t expert),
                     void *ctx, struct kd_err *err)
{
    int rc = 0;
    for (int i = 0; i < kd_ckpt_shard_count(v->ck); i++)
        v->all_bytes += kd_ckpt_shard_bytes(v->ck, i);
    if (!v->heads) /* all of it is here */
        return 0;
    kd_progress_begin("read", "parts", v->heads->part_count, 0);
    for (int i = 0; i < v->heads->part_count && !rc; i++) {
        kd_progress_add(0, v->heads->parts[i].name);
        rc = take_part(v, i, chosen, ctx, err);
        kd_progress_add(1, NULL);
    }
    kd_progress_end();
    return rc ? kd_wrap(err, "%s", kd_source_where(v->src)) : 0;
}

static bool none(void *ctx, int64_t layer, int64_t expert)
{
    (void)ctx;
    (void)layer;
    (void)expert;
    return false;
}

int kd_view_take(struct kd_view *v, bool (*chosen)(void *ctx, int64_t layer, int64_t expert),
                 void *ctx, struct kd_err *err)
{
    int64_t shards = 0;
    chosen = chosen ? chosen : none;
    if (v->ck)
        return take_gguf(v, chosen, ctx, err);
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
    kd_json_free(v->json);
    kd_heads_close(v->heads);
    kd_source_close(v->src);
    memset(v, 0, sizeof *v);
}
