#include "fmt/gguf.h"

#include "base/mem.h"
#include "base/show.h"

#include <stdlib.h>
#include <string.h>

/* Where parsing stands. A read past the bytes at hand sets `need`, and every later one fails too.
 */
struct cur {
    const uint8_t *data;
    int64_t at, bytes, file_bytes;
    int64_t need;
    struct kd_err *err;
};

/* -1: not here (need is set), or an error. */
static int want(struct cur *c, uint64_t n)
{
    if (c->bytes - c->at >= 0 && n <= (uint64_t)(c->bytes - c->at))
        return 0;
    if (n > (uint64_t)KD_GGUF_HEAD_MAX || c->at > KD_GGUF_HEAD_MAX - (int64_t)n)
        return kd_fail(c->err, KD_ECORRUPT, "a head over the limit of %d bytes", KD_GGUF_HEAD_MAX);
    if (c->file_bytes >= 0 && n > (uint64_t)(c->file_bytes - c->at))
        return kd_fail(c->err, KD_ECORRUPT,
                       "the file ends inside its head: %llu bytes wanted at %lld, %lld are left",
                       (unsigned long long)n, (long long)c->at, (long long)(c->file_bytes - c->at));
    c->need = c->at + (int64_t)n;
    return -1;
}

static uint64_t load(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static int take(struct cur *c, int bytes, uint64_t *out)
{
    if (want(c, (uint64_t)bytes))
        return -1;
    *out = load(c->data + c->at, bytes);
    c->at += bytes;
    return 0;
}

/* A length and so many bytes. */
static int take_str(struct cur *c, int64_t max, const char *what, const char **text, int64_t *bytes)
{
    uint64_t n;
    if (take(c, 8, &n))
        return -1;
    if (n > (uint64_t)max)
        return kd_fail(c->err, KD_ECORRUPT, "%s of %llu bytes at %lld, over %lld", what,
                       (unsigned long long)n, (long long)c->at - 8, (long long)max);
    if (want(c, n))
        return -1;
    *text = (const char *)c->data + c->at;
    *bytes = (int64_t)n;
    c->at += *bytes;
    return 0;
}

/* A name for `set`: not empty, printable, new. */
static int take_name(struct cur *c, int64_t max, const char *what, struct kd_names *set,
                     const char **out)
{
    const char *text;
    int64_t bytes, id;
    bool fresh;
    char shown[128];
    if (take_str(c, max, what, &text, &bytes))
        return -1;
    if (!bytes)
        return kd_fail(c->err, KD_ECORRUPT, "an empty %s at %lld", what, (long long)c->at);
    for (int64_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return kd_fail(c->err, KD_ECORRUPT, "a %s with a control character at %lld", what,
                           (long long)(c->at - bytes + i));
    if (kd_names_add(set, text, (size_t)bytes, &id, &fresh, c->err))
        return -1;
    *out = set->at[id];
    if (!fresh)
        return kd_fail(c->err, KD_ECORRUPT, "%s '%s' twice", what,
                       kd_show_text(shown, sizeof shown, *out));
    return 0;
}

/* Bytes of a number, 0 for strings and arrays. */
static int value_width(enum kd_gguf_value type)
{
    static const uint8_t width[KD_GV_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return width[type];
}

static int take_value_type(struct cur *c, const char *what, enum kd_gguf_value *out)
{
    uint64_t v;
    if (take(c, 4, &v))
        return -1;
    if (v >= KD_GV_COUNT)
        return kd_fail(c->err, KD_ECORRUPT, "%s %llu is not known", what, (unsigned long long)v);
    *out = (enum kd_gguf_value)v;
    return 0;
}

static int take_array(struct cur *c, struct kd_gguf_kv *kv)
{
    uint64_t n;
    const char *text;
    int64_t bytes;
    if (take_value_type(c, "array element type", &kv->item) || take(c, 8, &n))
        return -1;
    if (kv->item == KD_GV_ARRAY)
        return kd_fail(c->err, KD_ENOTSUP, "an array of arrays");
    int width = value_width(kv->item);
    uint64_t least = width ? (uint64_t)width : 8;
    if (n > (uint64_t)KD_GGUF_HEAD_MAX / least)
        return kd_fail(c->err, KD_ECORRUPT, "an array of %llu elements is over the head's limit",
                       (unsigned long long)n);
    int64_t from = c->at;
    kv->count = (int64_t)n;
    if (width) {
        if (want(c, n * least))
            return -1;
        c->at += (int64_t)(n * least);
    } else {
        if (want(c, n * least)) /* their lengths alone: no loop over what cannot be there */
            return -1;
        for (uint64_t i = 0; i < n; i++)
            if (take_str(c, KD_GGUF_STRING_MAX, "a string", &text, &bytes))
                return -1;
    }
    kv->value = c->data + from;
    kv->value_bytes = c->at - from;
    return 0;
}

static int take_value(struct cur *c, struct kd_gguf_kv *kv)
{
    const char *text;
    kv->count = 1;
    if (take_value_type(c, "value type", &kv->type))
        return -1;
    kv->item = kv->type;
    if (kv->type == KD_GV_ARRAY)
        return take_array(c, kv);
    if (kv->type == KD_GV_STR) {
        if (take_str(c, KD_GGUF_STRING_MAX, "a string", &text, &kv->value_bytes))
            return -1;
        kv->value = (const uint8_t *)text;
        return 0;
    }
    kv->value_bytes = value_width(kv->type);
    if (want(c, (uint64_t)kv->value_bytes))
        return -1;
    kv->value = c->data + c->at;
    c->at += kv->value_bytes;
    return 0;
}

/* Room for one more in a list that grows with what was really there, not with what a file claims.
 */
static int room(void *list, int64_t count, int64_t size, struct kd_err *err)
{
    void *old = *(void **)list, *grown;
    if (count & (count - 1) || (count && count < 16))
        return 0;
    if (kd_mem_new((void *)&grown, count ? 2 * count : 16, size, "GGUF head", err))
        return -1;
    if (count)
        memcpy(grown, old, (size_t)(count * size));
    kd_mem_free(old);
    *(void **)list = grown;
    return 0;
}

static int read_kv(struct kd_gguf *g, struct cur *c)
{
    if (room((void *)&g->kv, g->kv_count, sizeof *g->kv, c->err))
        return -1;
    struct kd_gguf_kv *kv = &g->kv[g->kv_count];
    int64_t from = c->at;
    char shown[96];
    *kv = (struct kd_gguf_kv){0};
    if (take_name(c, KD_GGUF_KEY_MAX, "key", &g->keys, &kv->key))
        return -1;
    if (take_value(c, kv))
        return c->need ? -1
                       : kd_wrap(c->err, "key '%s'", kd_show_text(shown, sizeof shown, kv->key));
    kv->raw = c->data + from;
    kv->raw_bytes = c->at - from;
    g->kv_count++;
    return 0;
}

static int read_extents(struct cur *c, struct kd_gguf_tensor *t)
{
    uint64_t v;
    if (take(c, 4, &v))
        return -1;
    if (v < 1 || v > KD_GGUF_RANK_MAX)
        return kd_fail(c->err, KD_ECORRUPT, "%llu dimensions, outside 1 to %d",
                       (unsigned long long)v, KD_GGUF_RANK_MAX);
    t->rank = (int)v;
    for (int i = 0; i < KD_GGUF_RANK_MAX; i++) {
        t->ne[i] = 1;
        if (i >= t->rank)
            continue;
        if (take(c, 8, &v))
            return -1;
        if (v < 1 || v > UINT64_C(1) << 40)
            return kd_fail(c->err, KD_ECORRUPT, "extent %llu is outside 1 to 2^40",
                           (unsigned long long)v);
        t->ne[i] = (int64_t)v;
    }
    return 0;
}

/* end: where the data of the tensors so far ends, padded. */
static int read_rest(const struct kd_gguf *g, struct cur *c, struct kd_gguf_tensor *t, int64_t *end)
{
    uint64_t type, offset;
    int64_t next;
    if (read_extents(c, t) || take(c, 4, &type) || take(c, 8, &offset) ||
        kd_gguf_bytes((int64_t)type, t->rank, t->ne, &t->bytes, c->err))
        return -1;
    t->type = (int)type;
    if (offset != (uint64_t)*end)
        return kd_fail(c->err, KD_ECORRUPT, "offset %llu, where the data before it ends at %lld",
                       (unsigned long long)offset, (long long)*end);
    t->offset = *end;
    if (__builtin_add_overflow(t->offset, t->bytes, &next) || next > INT64_MAX - g->alignment)
        return kd_fail(c->err, KD_ECORRUPT, "it ends past 2^63");
    *end = (next + g->alignment - 1) & -g->alignment;
    return 0;
}

static int read_tensor(struct kd_gguf *g, struct cur *c, int64_t *end)
{
    if (room((void *)&g->tensors, g->tensor_count, sizeof *g->tensors, c->err))
        return -1;
    struct kd_gguf_tensor *t = &g->tensors[g->tensor_count];
    *t = (struct kd_gguf_tensor){0};
    if (take_name(c, KD_GGUF_NAME_MAX, "tensor name", &g->names, &t->name))
        return -1;
    if (read_rest(g, c, t, end))
        return c->need ? -1 : kd_wrap(c->err, "tensor '%s'", t->name);
    g->tensor_count++;
    return 0;
}

static int read_counts(struct kd_gguf *g, struct cur *c, int64_t *tensors, int64_t *kvs)
{
    uint64_t version, n, k;
    if (want(c, 4))
        return -1;
    if (memcmp(c->data, "GGUF", 4) != 0)
        return kd_fail(c->err, KD_ECORRUPT, "does not begin with GGUF");
    c->at = 4;
    if (take(c, 4, &version))
        return -1;
    if (version && !(version & 0xffff))
        return kd_fail(c->err, KD_ENOTSUP, "a big-endian GGUF");
    if (version < 2 || version > 3)
        return kd_fail(c->err, KD_ENOTSUP, "GGUF version %llu; 2 and 3 are read here",
                       (unsigned long long)version);
    if (take(c, 8, &n) || take(c, 8, &k))
        return -1;
    if (n > KD_GGUF_TENSORS_MAX || k > KD_GGUF_KV_MAX)
        return kd_fail(c->err, KD_ECORRUPT, "%llu tensors and %llu keys, over %d and %d",
                       (unsigned long long)n, (unsigned long long)k, KD_GGUF_TENSORS_MAX,
                       KD_GGUF_KV_MAX);
    g->version = (int)version;
    *tensors = (int64_t)n;
    *kvs = (int64_t)k;
    return 0;
}

static int read_alignment(struct kd_gguf *g, struct kd_err *err)
{
    const struct kd_gguf_kv *kv = kd_gguf_key(g, "general.alignment");
    g->alignment = 32;
    if (!kv)
        return 0;
    if (kv->type != KD_GV_U32)
        return kd_fail(err, KD_ECORRUPT, "general.alignment is a %s, not a u32",
                       kd_gguf_value_name(kv->type));
    uint64_t a = load(kv->value, 4);
    if (a < 8 || a > KD_GGUF_ALIGN_MAX || (a & (a - 1)))
        return kd_fail(err, KD_ECORRUPT,
                       "general.alignment %llu is not a power of two from 8 to %d",
                       (unsigned long long)a, KD_GGUF_ALIGN_MAX);
    g->alignment = (int64_t)a;
    return 0;
}

/* The last tensor's end against the file; its padding may be missing. */
static int check_size(struct kd_gguf *g, const struct cur *c)
{
    g->head_bytes = c->at;
    g->data_offset = (c->at + g->alignment - 1) & -g->alignment;
    if (!g->tensor_count)
        return 0;
    const struct kd_gguf_tensor *last = &g->tensors[g->tensor_count - 1];
    g->data_bytes = last->offset + last->bytes;
    if (g->data_bytes > INT64_MAX - g->data_offset)
        return kd_fail(c->err, KD_ECORRUPT, "its data ends past 2^63");
    if (c->file_bytes >= 0 && g->data_offset + g->data_bytes > c->file_bytes)
        return kd_fail(c->err, KD_ECORRUPT,
                       "the file has %lld bytes, tensor '%s' ends at %lld: it is cut short",
                       (long long)c->file_bytes, last->name,
                       (long long)(g->data_offset + g->data_bytes));
    return 0;
}

static int parse(struct kd_gguf *g, struct cur *c)
{
    int64_t tensors, kvs, end = 0;
    if (read_counts(g, c, &tensors, &kvs))
        return -1;
    for (int64_t i = 0; i < kvs; i++)
        if (read_kv(g, c))
            return -1;
    if (read_alignment(g, c->err))
        return -1;
    for (int64_t i = 0; i < tensors; i++)
        if (read_tensor(g, c, &end))
            return -1;
    return check_size(g, c);
}

int kd_gguf_parse(struct kd_gguf *g, const void *head, int64_t bytes, int64_t file_bytes,
                  const char *what, int64_t *need, struct kd_err *err)
{
    struct kd_err mine;
    if (file_bytes >= 0 && bytes > file_bytes)
        bytes = file_bytes;
    struct cur c = {
        .data = head, .bytes = bytes, .file_bytes = file_bytes, .err = err ? err : &mine};
    memset(g, 0, sizeof *g);
    kd_names_init(&g->keys);
    kd_names_init(&g->names);
    if (need)
        *need = 0;
    if (!parse(g, &c))
        return 0;
    kd_gguf_release(g);
    if (c.need && need) {
        *need = c.need;
        return 0;
    }
    if (c.need)
        kd_fail(c.err, KD_ECORRUPT, "its head is longer than the %lld bytes at hand",
                (long long)bytes);
    return kd_wrap(err, "%s", what);
}

void kd_gguf_release(struct kd_gguf *g)
{
    kd_names_release(&g->keys);
    kd_names_release(&g->names);
    kd_mem_free(g->kv);
    kd_mem_free(g->tensors);
    memset(g, 0, sizeof *g);
}

const struct kd_gguf_kv *kd_gguf_key(const struct kd_gguf *g, const char *key)
{
    int64_t id = kd_names_find(&g->keys, key);
    return id < 0 ? NULL : &g->kv[id];
}

const struct kd_gguf_tensor *kd_gguf_find(const struct kd_gguf *g, const char *name)
{
    int64_t id = kd_names_find(&g->names, name);
    return id < 0 ? NULL : &g->tensors[id];
}
