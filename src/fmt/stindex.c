#include "fmt/stindex.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/show.h"
#include "fmt/st.h"

#include <errno.h>
#include <string.h>
#include <zlib.h>

static const struct kd_jscan_limits limits = {
    .depth = 8, .string_bytes = 4096, .total_bytes = KD_STINDEX_BYTES_MAX};

static int read_total(struct kd_stindex *ix, struct kd_jscan *s, struct kd_err *err)
{
    if (ix->total_bytes >= 0)
        return kd_fail(err, KD_ECORRUPT, "total_size twice");
    if (kd_jscan_next(s, err))
        return -1;
    /* Some writers print the sum as a float. */
    double v = s->number;
    bool whole = s->tok == KD_JT_NUM && v >= 0 && v < 9e15 && (double)(int64_t)v == v;
    if (s->tok == KD_JT_INT && s->integer >= 0)
        ix->total_bytes = s->integer;
    else if (whole)
        ix->total_bytes = (int64_t)v;
    else
        return kd_fail(err, KD_ECORRUPT, "total_size is not a whole number from 0 up");
    return 0;
}

/* Takes the name token into keys; a second one of the same name is an error. */
static int key(struct kd_names *keys, const struct kd_jscan *s, struct kd_err *err)
{
    int64_t id;
    bool fresh;
    char shown[128];
    if (kd_names_add(keys, s->text, s->text_bytes, &id, &fresh, err))
        return -1;
    return fresh ? 0
                 : kd_fail(err, KD_ECORRUPT, "key '%s' twice in one object",
                           kd_show_text(shown, sizeof shown, s->text));
}

static int read_metadata(struct kd_stindex *ix, struct kd_jscan *s, struct kd_err *err)
{
    if (kd_jscan_next(s, err))
        return -1;
    if (s->tok != KD_JT_OBJECT)
        return kd_fail(err, KD_ECORRUPT, "metadata is not an object");
    struct kd_names keys;
    kd_names_init(&keys);
    int rc;
    while (!(rc = kd_jscan_next(s, err)) && s->tok == KD_JT_NAME) {
        bool total = !strcmp(s->text, "total_size");
        rc = key(&keys, s, err) || (total ? read_total(ix, s, err) : kd_st_skip(s, err)) ? -1 : 0;
        if (rc)
            break;
    }
    kd_names_release(&keys);
    return rc ? kd_wrap(err, "metadata") : 0;
}

static int read_shard(struct kd_stindex *ix, struct kd_jscan *s, int32_t *shard, struct kd_err *err)
{
    int64_t id;
    bool fresh;
    if (kd_jscan_next(s, err))
        return -1;
    if (s->tok != KD_JT_STR)
        return kd_fail(err, KD_ECORRUPT, "its shard is not a string");
    if (kd_names_add(&ix->shards, s->text, s->text_bytes, &id, &fresh, err))
        return -1;
    *shard = (int32_t)id;
    if (!fresh)
        return 0;
    if (kd_name_check(s->text, err))
        return kd_wrap(err, "its shard");
    if (s->text_bytes > 255 || *s->text == '-')
        return kd_fail(err, KD_ECORRUPT, "its shard's file name is too long or begins with '-'");
    if (ix->shards.count > KD_SHARDS_MAX)
        return kd_fail(err, KD_ECORRUPT, "more than %d shards", KD_SHARDS_MAX);
    return 0;
}

static int read_map(struct kd_stindex *ix, struct kd_jscan *s, struct kd_buf *list,
                    struct kd_err *err)
{
    char shown[256];
    if (kd_jscan_next(s, err))
        return -1;
    if (s->tok != KD_JT_OBJECT)
        return kd_fail(err, KD_ECORRUPT, "weight_map is not an object");
    for (;;) {
        if (kd_jscan_next(s, err))
            return -1;
        if (s->tok == KD_JT_OBJECT_END)
            return 0;
        int64_t id;
        int32_t shard;
        bool fresh;
        if (kd_st_name_check(s->text, s->text_bytes, err) ||
            kd_names_add(&ix->names, s->text, s->text_bytes, &id, &fresh, err))
            return -1;
        const char *name = ix->names.at[id];
        if (!fresh)
            return kd_fail(err, KD_ECORRUPT, "tensor '%s' twice",
                           kd_show_text(shown, sizeof shown, name));
        if (read_shard(ix, s, &shard, err))
            return kd_wrap(err, "tensor '%s'", kd_show_text(shown, sizeof shown, name));
        kd_buf_add(list, &shard, sizeof shard);
    }
}

static int read_top(struct kd_stindex *ix, struct kd_jscan *s, struct kd_names *keys,
                    struct kd_buf *list, struct kd_err *err)
{
    bool has_map = false;
    if (kd_jscan_next(s, err))
        return -1;
    if (s->tok != KD_JT_OBJECT)
        return kd_fail(err, KD_ECORRUPT, "not an object");
    for (;;) {
        if (kd_jscan_next(s, err))
            return -1;
        if (s->tok == KD_JT_OBJECT_END)
            break;
        if (key(keys, s, err))
            return -1;
        bool map = !strcmp(s->text, "weight_map");
        has_map |= map;
        if (map                            ? read_map(ix, s, list, err)
            : !strcmp(s->text, "metadata") ? read_metadata(ix, s, err)
                                           : kd_st_skip(s, err))
            return -1;
    }
    if (!has_map)
        return kd_fail(err, KD_ECORRUPT, "weight_map is missing");
    return kd_jscan_next(s, err) || kd_buf_ok(list, "weight_map", err) ? -1 : 0;
}

static int parse(struct kd_stindex *ix, struct kd_jscan *s, const char *what, struct kd_err *err)
{
    struct kd_names keys;
    struct kd_buf list;
    kd_names_init(&keys);
    kd_buf_init(&list, (size_t)KD_NAMES_MAX * sizeof(int32_t));
    int rc = read_top(ix, s, &keys, &list, err);
    if (!rc)
        rc = kd_mem_new(&ix->shard, ix->names.count, sizeof *ix->shard, "weight_map", err);
    if (!rc && ix->names.count)
        memcpy(ix->shard, list.data, (size_t)ix->names.count * sizeof *ix->shard);
    kd_names_release(&keys);
    kd_buf_release(&list);
    if (!rc)
        return 0;
    kd_stindex_release(ix);
    return kd_wrap(err, "%s", what);
}

static void init(struct kd_stindex *ix)
{
    memset(ix, 0, sizeof *ix);
    kd_names_init(&ix->names);
    kd_names_init(&ix->shards);
    ix->total_bytes = -1;
}

int kd_stindex_parse(struct kd_stindex *ix, const void *text, size_t bytes, const char *what,
                     struct kd_err *err)
{
    struct kd_jscan s;
    init(ix);
    kd_jscan_open(&s, text, bytes, &limits);
    int rc = parse(ix, &s, what, err);
    kd_jscan_close(&s);
    return rc;
}

struct source {
    gzFile file;
    uint8_t data[65536];
};

static int fill(void *ctx, const uint8_t **data, size_t *bytes, struct kd_err *err)
{
    struct source *src = ctx;
    int n = gzread(src->file, src->data, sizeof src->data), code = Z_OK;
    const char *why = gzerror(src->file, &code);
    /* A gzip file cut short ends like a whole one but for this. */
    if (n < 0 || (!n && code == Z_BUF_ERROR))
        return code == Z_ERRNO ? kd_fail_sys(err, "cannot read")
                               : kd_fail(err, KD_ECORRUPT, "broken gzip data: %s",
                                         code == Z_BUF_ERROR ? "it ends too early" : why);
    *data = src->data;
    *bytes = (size_t)n;
    return 0;
}

int kd_stindex_load(struct kd_stindex *ix, const char *path, struct kd_err *err)
{
    struct source *src;
    init(ix);
    if (kd_mem_new(&src, 1, sizeof *src, "index", err))
        return -1;
    errno = 0;
    src->file = gzopen(path, "rbe"); /* reads plain text too */
    if (!src->file) {
        kd_mem_free(src);
        return kd_fail_sys(err, "cannot open '%s'", path);
    }
    gzbuffer(src->file, 1 << 17);
    struct kd_jscan s;
    kd_jscan_open_fill(&s, fill, src, &limits);
    int rc = parse(ix, &s, path, err);
    kd_jscan_close(&s);
    gzclose_r(src->file);
    kd_mem_free(src);
    return rc;
}

void kd_stindex_release(struct kd_stindex *ix)
{
    kd_names_release(&ix->names);
    kd_names_release(&ix->shards);
    kd_mem_free(ix->shard);
    memset(ix, 0, sizeof *ix);
}
