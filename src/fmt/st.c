#include "fmt/st.h"

#include "base/mem.h"
#include "base/show.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    enum kd_dtype dtype;
    int bits;
} dtypes[] = {
    {"BOOL", KD_DT_BOOL, 8},         {"U8", KD_DT_U8, 8},           {"I8", KD_DT_I8, 8},
    {"F8_E4M3", KD_DT_F8_E4M3, 8},   {"F8_E5M2", KD_DT_F8_E5M2, 8}, {"F8_E8M0", KD_DT_F8_E8M0, 8},
    {"I16", KD_DT_I16, 16},          {"U16", KD_DT_U16, 16},        {"F16", KD_DT_F16, 16},
    {"BF16", KD_DT_BF16, 16},        {"I32", KD_DT_I32, 32},        {"U32", KD_DT_U32, 32},
    {"F32", KD_DT_F32, 32},          {"I64", KD_DT_I64, 64},        {"U64", KD_DT_U64, 64},
    {"F64", KD_DT_F64, 64},          {"F4", KD_DT_OTHER, 4},        {"F6_E2M3", KD_DT_OTHER, 6},
    {"F6_E3M2", KD_DT_OTHER, 6},     {"C64", KD_DT_OTHER, 64},      {"F8_E4M3FNUZ", KD_DT_OTHER, 8},
    {"F8_E5M2FNUZ", KD_DT_OTHER, 8},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

int kd_st_dtype(const char *name, enum kd_dtype *dtype, int *bits)
{
    for (int i = 0; i < DTYPES; i++)
        if (!strcmp(dtypes[i].name, name)) {
            *dtype = dtypes[i].dtype;
            *bits = dtypes[i].bits;
            return 0;
        }
    return -1;
}

int kd_dtype_bits(enum kd_dtype d)
{
    return d < KD_DT_OTHER ? dtypes[d].bits : 0;
}

const char *kd_dtype_name(enum kd_dtype d)
{
    return d < KD_DT_OTHER ? dtypes[d].name : "other";
}

int kd_st_bytes(int rank, const int64_t *shape, int bits, int64_t *bytes, struct kd_err *err)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        if (kd_mul64(n, shape[i], &n))
            return kd_fail(err, KD_ECORRUPT, "the product of its shape does not fit in 64 bits");
    if (kd_mul64(n, bits, &n))
        return kd_fail(err, KD_ECORRUPT, "its size does not fit in 64 bits");
    if (n % 8)
        return kd_fail(err, KD_ECORRUPT, "its %lld bits do not end on a byte", (long long)n);
    *bytes = n / 8;
    return 0;
}

int kd_st_name_check(const char *name, size_t bytes, struct kd_err *err)
{
    if (!bytes)
        return kd_fail(err, KD_ECORRUPT, "a tensor without a name");
    if (bytes > KD_ST_NAME_MAX)
        return kd_fail(err, KD_ECORRUPT, "a tensor name of %zu bytes, over %d", bytes,
                       KD_ST_NAME_MAX);
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)name[i];
        if (c < 0x20 || c == 0x7f || (c == 0xc2 && (unsigned char)name[i + 1] < 0xa0)) {
            char shown[128];
            return kd_fail(err, KD_ECORRUPT, "tensor name '%s' has a control character",
                           kd_show_text(shown, sizeof shown, name));
        }
    }
    return 0;
}

static int fresh_key(struct kd_names *keys, const struct kd_jscan *s, struct kd_err *err)
{
    int64_t id;
    bool fresh;
    char shown[128];
    if (kd_names_add(keys, s->text, s->text_bytes, &id, &fresh, err))
        return -1;
    if (!fresh)
        return kd_fail(err, KD_ECORRUPT, "key '%s' twice in one object",
                       kd_show_text(shown, sizeof shown, s->text));
    return 0;
}

/* Drops the value whose first token is s->tok. Recursion is bounded by the scanner's depth. */
static int skip_rest(struct kd_jscan *s, struct kd_err *err)
{
    if (s->tok != KD_JT_OBJECT && s->tok != KD_JT_ARRAY)
        return 0;
    struct kd_names keys;
    kd_names_init(&keys);
    int rc;
    while (!(rc = kd_jscan_next(s, err)) && s->tok != KD_JT_OBJECT_END &&
           s->tok != KD_JT_ARRAY_END) {
        rc = s->tok == KD_JT_NAME ? fresh_key(&keys, s, err) : skip_rest(s, err);
        if (rc)
            break;
    }
    kd_names_release(&keys);
    return rc;
}

int kd_st_skip(struct kd_jscan *s, struct kd_err *err)
{
    return kd_jscan_next(s, err) || skip_rest(s, err) ? -1 : 0;
}

static int read_metadata(struct kd_jscan *s, struct kd_err *err)
{
    if (kd_jscan_next(s, err))
        return -1;
    if (s->tok != KD_JT_OBJECT)
        return kd_fail(err, KD_ECORRUPT, "__metadata__ is not an object");
    struct kd_names keys;
    kd_names_init(&keys);
    int rc;
    while (!(rc = kd_jscan_next(s, err)) && s->tok == KD_JT_NAME) {
        rc = fresh_key(&keys, s, err) || kd_jscan_next(s, err) ? -1 : 0;
        if (!rc && s->tok != KD_JT_STR)
            rc = kd_fail(err, KD_ECORRUPT, "a value of __metadata__ is not a string");
        if (rc)
            break;
    }
    kd_names_release(&keys);
    return rc ? kd_wrap(err, "__metadata__") : 0;
}

/* An array of whole numbers >= 0 into out; more than max is an error. */
static int read_numbers(struct kd_jscan *s, int max, int64_t *out, int *count, struct kd_err *err)
{
    *count = 0;
    if (kd_jscan_next(s, err))
        return -1;
    if (s->tok != KD_JT_ARRAY)
        return kd_fail(err, KD_ECORRUPT, "not an array");
    for (;;) {
        if (kd_jscan_next(s, err))
            return -1;
        if (s->tok == KD_JT_ARRAY_END)
            return 0;
        if (s->tok != KD_JT_INT || s->integer < 0)
            return kd_fail(err, KD_ECORRUPT,
                           "holds something that is not a whole number from 0 up");
        if (*count == max)
            return kd_fail(err, KD_ENOTSUP, "more than %d numbers", max);
        out[(*count)++] = s->integer;
    }
}

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4 };

static int read_field(struct kd_jscan *s, struct kd_st_tensor *e, int64_t offsets[2], unsigned *has,
                      struct kd_err *err)
{
    int n;
    char shown[80];
    unsigned field = !strcmp(s->text, "dtype")          ? HAS_DTYPE
                     : !strcmp(s->text, "shape")        ? HAS_SHAPE
                     : !strcmp(s->text, "data_offsets") ? HAS_OFFSETS
                                                        : 0;
    if (!field || *has & field)
        return kd_fail(err, KD_ECORRUPT, "key '%s' %s", kd_show_text(shown, sizeof shown, s->text),
                       field ? "twice" : "is not one of dtype, shape, data_offsets");
    *has |= field;
    if (field == HAS_SHAPE) {
        if (read_numbers(s, KD_RANK_MAX, e->t.shape, &e->t.rank, err))
            return kd_wrap(err, "shape");
        return 0;
    }
    if (field == HAS_OFFSETS) {
        if (read_numbers(s, 2, offsets, &n, err))
            return kd_wrap(err, "data_offsets");
        return n == 2 ? 0 : kd_fail(err, KD_ECORRUPT, "data_offsets does not hold two numbers");
    }
    if (kd_jscan_next(s, err))
        return -1;
    if (s->tok != KD_JT_STR)
        return kd_fail(err, KD_ECORRUPT, "dtype is not a string");
    if (s->text_bytes >= sizeof e->t.dtype_name || kd_st_dtype(s->text, &e->t.dtype, &n))
        return kd_fail(err, KD_ENOTSUP, "dtype '%s' is not known",
                       kd_show_text(shown, sizeof shown, s->text));
    memcpy(e->t.dtype_name, s->text, s->text_bytes + 1);
    return 0;
}

static int read_entry(struct kd_jscan *s, struct kd_st_tensor *e, struct kd_err *err)
{
    int64_t offsets[2] = {0, 0}, bytes;
    unsigned has = 0;
    int bits = 0;
    if (kd_jscan_next(s, err))
        return -1;
    if (s->tok != KD_JT_OBJECT)
        return kd_fail(err, KD_ECORRUPT, "its entry is not an object");
    for (;;) {
        if (kd_jscan_next(s, err))
            return -1;
        if (s->tok == KD_JT_OBJECT_END)
            break;
        if (read_field(s, e, offsets, &has, err))
            return -1;
    }
    if (has != (HAS_DTYPE | HAS_SHAPE | HAS_OFFSETS))
        return kd_fail(err, KD_ECORRUPT, "dtype, shape or data_offsets is missing");
    if (kd_st_dtype(e->t.dtype_name, &e->t.dtype, &bits) ||
        kd_st_bytes(e->t.rank, e->t.shape, bits, &bytes, err))
        return -1;
    if (offsets[1] < offsets[0] || offsets[1] - offsets[0] != bytes)
        return kd_fail(err, KD_ECORRUPT,
                       "data_offsets [%lld, %lld] do not hold the %lld bytes of its shape",
                       (long long)offsets[0], (long long)offsets[1], (long long)bytes);
    e->begin = offsets[0];
    e->t.bytes = bytes;
    return 0;
}

static int read_header(struct kd_st *st, struct kd_jscan *s, struct kd_buf *list,
                       struct kd_err *err)
{
    bool has_metadata = false;
    char shown[256];
    if (kd_jscan_next(s, err))
        return -1;
    for (;;) {
        if (kd_jscan_next(s, err))
            return -1;
        if (s->tok == KD_JT_OBJECT_END)
            break;
        if (!strcmp(s->text, "__metadata__")) {
            if (has_metadata)
                return kd_fail(err, KD_ECORRUPT, "__metadata__ twice");
            has_metadata = true;
            if (read_metadata(s, err))
                return -1;
            continue;
        }
        int64_t id;
        bool fresh;
        if (kd_st_name_check(s->text, s->text_bytes, err) ||
            kd_names_add(&st->names, s->text, s->text_bytes, &id, &fresh, err))
            return -1;
        const char *name = st->names.at[id];
        if (!fresh)
            return kd_fail(err, KD_ECORRUPT, "tensor '%s' twice",
                           kd_show_text(shown, sizeof shown, name));
        struct kd_st_tensor e = {.t.name = name};
        if (read_entry(s, &e, err))
            return kd_wrap(err, "tensor '%s'", kd_show_text(shown, sizeof shown, name));
        kd_buf_add(list, &e, sizeof e);
    }
    if (kd_jscan_next(s, err))
        return -1;
    return kd_buf_ok(list, "tensor list", err);
}

static int by_begin(const void *a, const void *b)
{
    const struct kd_st_tensor *x = *(const struct kd_st_tensor *const *)a;
    const struct kd_st_tensor *y = *(const struct kd_st_tensor *const *)b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->t.bytes < y->t.bytes ? -1 : x->t.bytes > y->t.bytes;
}

/* The tensors must follow each other from 0 without hole or overlap, up to the end of the file. */
static int check_chain(const struct kd_st *st, struct kd_err *err)
{
    const struct kd_st_tensor **order;
    char shown[256];
    if (kd_mem_new(&order, st->count, sizeof *order, "tensor list", err))
        return -1;
    bool sorted = true;
    for (int64_t i = 0; i < st->count; i++) {
        order[i] = &st->tensors[i];
        sorted = sorted && (!i || by_begin(&order[i - 1], &order[i]) <= 0);
    }
    if (!sorted)
        qsort((void *)order, (size_t)st->count, sizeof *order, by_begin);
    int64_t at = 0, size = st->file_bytes - st->data_offset;
    int rc = 0;
    for (int64_t i = 0; i < st->count && !rc; i++) {
        const struct kd_st_tensor *e = order[i];
        kd_show_text(shown, sizeof shown, e->t.name);
        if (e->begin != at)
            rc =
                kd_fail(err, KD_ECORRUPT, "tensor '%s' begins at %lld, %s: it should begin at %lld",
                        shown, (long long)e->begin,
                        e->begin < at ? "over the one before it" : "after a hole", (long long)at);
        else if (e->t.bytes > size - at)
            rc = kd_fail(
                err, KD_ECORRUPT,
                "tensor '%s' ends at %lld, but the file holds %lld bytes of data (truncated?)",
                shown, (long long)(at + e->t.bytes), (long long)size);
        at += rc ? 0 : e->t.bytes;
    }
    kd_mem_free((void *)order);
    if (!rc && at != size)
        rc = kd_fail(err, KD_ECORRUPT, "%lld bytes after the last tensor belong to none",
                     (long long)(size - at));
    return rc;
}

static int parse(struct kd_st *st, const uint8_t *head, int64_t head_bytes, struct kd_err *err)
{
    if (st->file_bytes < 8 || head_bytes < 8)
        return kd_fail(err, KD_ECORRUPT, "%lld bytes are too few for a safetensors file",
                       (long long)st->file_bytes);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | head[i];
    if (n > KD_ST_HEADER_MAX)
        return kd_fail(
            err, KD_ECORRUPT,
            "its header claims %llu bytes, over the format's limit of %d (is it safetensors?)",
            (unsigned long long)n, KD_ST_HEADER_MAX);
    if ((int64_t)n > st->file_bytes - 8)
        return kd_fail(err, KD_ECORRUPT,
                       "its header claims %llu bytes, but the file has only %lld (truncated?)",
                       (unsigned long long)n, (long long)st->file_bytes);
    if ((int64_t)n > head_bytes - 8)
        return kd_fail(err, KD_EINVAL, "its header of %llu bytes is not whole here",
                       (unsigned long long)n);
    if (!n || head[8] != '{')
        return kd_fail(err, KD_ECORRUPT, "its header does not begin with '{'");
    st->data_offset = 8 + (int64_t)n;
    /* The file, an entry, an array in it, and one level to spare for a clear message. */
    struct kd_jscan_limits limits = {
        .depth = 4, .string_bytes = 1 << 20, .total_bytes = KD_ST_HEADER_MAX};
    struct kd_jscan s;
    struct kd_buf list;
    kd_buf_init(&list, (size_t)KD_NAMES_MAX * sizeof(struct kd_st_tensor));
    kd_jscan_open(&s, head + 8, (size_t)n, &limits);
    int rc = read_header(st, &s, &list, err);
    kd_jscan_close(&s);
    if (!rc) {
        st->count = st->names.count;
        rc = kd_mem_new(&st->tensors, st->count, sizeof *st->tensors, "tensor list", err);
    }
    if (!rc && st->count)
        memcpy(st->tensors, list.data, (size_t)st->count * sizeof *st->tensors);
    kd_buf_release(&list);
    return rc ? -1 : check_chain(st, err);
}

int kd_st_parse(struct kd_st *st, const void *head, int64_t head_bytes, int64_t file_bytes,
                const char *what, struct kd_err *err)
{
    memset(st, 0, sizeof *st);
    kd_names_init(&st->names);
    st->file_bytes = file_bytes;
    if (!parse(st, head, head_bytes < file_bytes ? head_bytes : file_bytes, err))
        return 0;
    kd_st_release(st);
    return kd_wrap(err, "%s", what);
}

int kd_st_map(struct kd_st *st, const char *path, struct kd_err *err)
{
    struct kd_map map;
    memset(st, 0, sizeof *st);
    if (kd_file_map(&map, path, err))
        return -1;
    if (kd_st_parse(st, map.data, map.size_bytes, map.size_bytes, path, err)) {
        kd_map_release(&map);
        return -1;
    }
    st->map = map;
    for (int64_t i = 0; i < st->count; i++)
        st->tensors[i].t.data = map.data + st->data_offset + st->tensors[i].begin;
    return 0;
}

void kd_st_release(struct kd_st *st)
{
    kd_names_release(&st->names);
    kd_mem_free(st->tensors);
    kd_map_release(&st->map);
    memset(st, 0, sizeof *st);
}

const struct kd_tensor *kd_st_find(const struct kd_st *st, const char *name)
{
    int64_t id = kd_names_find(&st->names, name);
    return id < 0 ? NULL : &st->tensors[id].t;
}
