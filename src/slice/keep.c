#include "slice/keep.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/opt.h"

#include <stdlib.h>
#include <string.h>

enum { TRACE_MAX = 1 << 30 };

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void add_range(struct kd_buf *out, int64_t first, int64_t last)
{
    for (int64_t i = first; i <= last; i++) {
        int32_t id = (int32_t)i;
        kd_buf_add(out, &id, sizeof id);
    }
}

/* "7" or "3-9" of `n` characters. */
static int parse_range(const char *text, size_t n, int64_t *first, int64_t *last,
                       struct kd_err *err)
{
    char a[24];
    size_t dash = 0;
    while (dash < n && text[dash] != '-')
        dash++;
    /* Quoted as it was typed: of "-1" the part before the dash is nothing. */
    if (!n || !dash || dash + 1 == n || n >= sizeof a)
        return kd_fail(err, KD_EUSAGE,
                       "'%.*s' is neither a number from 0 up nor a range such as 3-9",
                       (int)(n < 40 ? n : 40), text);
    snprintf(a, sizeof a, "%.*s", (int)dash, text);
    if (kd_parse_int(a, 0, INT32_MAX, first, err))
        return -1;
    *last = *first;
    if (dash == n)
        return 0;
    snprintf(a, sizeof a, "%.*s", (int)(n - dash - 1), text + dash + 1);
    return kd_parse_int(a, 0, INT32_MAX, last, err);
}

int kd_keep_list(struct kd_buf *out, const char *text, int64_t of, const char *what,
                 struct kd_err *err)
{
    int64_t first, last;
    size_t from = out->size_bytes;
    if (!strpbrk(text, ",-")) {
        if (kd_parse_int(text, 1, of, &last, err))
            return kd_wrap(err, "%s", what);
        add_range(out, 0, last - 1);
        return kd_buf_ok(out, what, err);
    }
    for (const char *at = text;;) {
        size_t n = strcspn(at, ",");
        if (parse_range(at, n, &first, &last, err))
            return kd_wrap(err, "%s", what);
        if (last < first || last >= of)
            return kd_fail(err, KD_EUSAGE, "%s: '%.*s' is not within 0 to %lld", what, (int)n, at,
                           (long long)of - 1);
        add_range(out, first, last);
        if (kd_buf_ok(out, what, err))
            return -1;
        if (!at[n])
            break;
        at += n + 1;
    }
    int32_t *ids = (int32_t *)(void *)(out->data + from);
    size_t count = (out->size_bytes - from) / sizeof *ids;
    qsort(ids, count, sizeof *ids, by_id);
    for (size_t i = 1; i < count; i++)
        if (ids[i] == ids[i - 1])
            return kd_fail(err, KD_EUSAGE, "%s: %d is listed twice", what, ids[i]);
    return 0;
}

static int read_lists(int64_t *count, int64_t layers, int64_t experts, const char *text,
                      size_t bytes, struct kd_err *err)
{
    struct kd_json *root, *list;
    const char *key;
    void *iter = NULL;
    if (kd_json_parse(&root, text, bytes, "list of experts", err))
        return -1;
    int rc = 0;
    if (kd_json_kind(root) != KD_JSON_OBJECT)
        rc = kd_fail(err, KD_EINVAL, "list of experts: not of the form {layer: [ids]}");
    while (!rc && kd_json_next(root, &iter, &key, &list)) {
        int64_t layer;
        rc = kd_parse_int(key, 0, layers - 1, &layer, err);
        for (size_t i = 0; !rc && i < kd_json_count(list); i++) {
            const struct kd_json *v = kd_json_at(list, i);
            int64_t e = kd_json_kind(v) == KD_JSON_INT ? kd_json_int_value(v) : -1;
            if (e < 0 || e >= experts)
                rc = kd_fail(err, KD_EINVAL, "layer %s: entry %zu is no expert of 0 to %lld", key,
                             i, (long long)experts - 1);
            else if (count[layer * experts + e]++)
                rc = kd_fail(err, KD_EINVAL, "layer %s: expert %lld is listed twice", key,
                             (long long)e);
        }
    }
    kd_json_free(root);
    return rc ? -1 : 0;
}

static uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

int kd_keep_trace(int64_t *count, int64_t layers, int64_t experts, const void *data, size_t bytes,
                  bool *listed, struct kd_err *err)
{
    const uint8_t *p = data;
    size_t space = 0;
    while (space < bytes && strchr(" \t\r\n", p[space]) && p[space])
        space++;
    *listed = space < bytes && p[space] == '{';
    if (*listed)
        return read_lists(count, layers, experts, data, bytes, err);
    if (!bytes || bytes % 8)
        return kd_fail(err, KD_ECORRUPT,
                       "%zu bytes are no whole pairs of u32 (layer, expert), and no JSON", bytes);
    for (size_t i = 0; i < bytes; i += 8) {
        uint32_t layer = u32_at(p + i), expert = u32_at(p + i + 4);
        if (layer >= layers || expert >= experts)
            return kd_fail(err, KD_EINVAL,
                           "pair %zu is layer %u, expert %u: the model has %lld layers of %lld "
                           "experts",
                           i / 8, layer, expert, (long long)layers, (long long)experts);
        count[layer * (size_t)experts + expert]++;
    }
    return 0;
}

/* "top:FILE" or "top:FILE:N" */
static int split_top(const char *text, char *path, size_t size, int64_t *n, struct kd_err *err)
{
    text += strlen("top:");
    const char *colon = strrchr(text, ':');
    size_t bytes = strlen(text);
    *n = 0;
    if (colon && colon[1] && strspn(colon + 1, "0123456789") == strlen(colon + 1)) {
        if (kd_parse_int(colon + 1, 1, INT32_MAX, n, err))
            return -1;
        bytes = (size_t)(colon - text);
    }
    if (!bytes || bytes >= size)
        return kd_fail(err, KD_EUSAGE, "experts: 'top:' needs a file's name");
    snprintf(path, size, "%.*s", (int)bytes, text);
    return 0;
}

struct counted {
    int64_t count;
    int32_t id;
};

static int most_first(const void *a, const void *b)
{
    const struct counted *x = a, *y = b;
    if (x->count != y->count)
        return x->count > y->count ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The n most counted of a layer, ties by id, in ascending order of ids. */
static void pick_top(int32_t *out, const int64_t *count, int64_t experts, int64_t n,
                     struct counted *scratch)
{
    for (int64_t e = 0; e < experts; e++)
        scratch[e] = (struct counted){count[e], (int32_t)e};
    qsort(scratch, (size_t)experts, sizeof *scratch, most_first);
    for (int64_t i = 0; i < n; i++)
        out[i] = scratch[i].id;
    qsort(out, (size_t)n, sizeof *out, by_id);
}

static int64_t listed_of(const int64_t *count, int64_t experts)
{
    int64_t n = 0;
    for (int64_t e = 0; e < experts; e++)
        n += count[e] != 0;
    return n;
}

/* How many a listed file keeps: the same number in every kept layer with experts. */
static int listed_count(const struct kd_keep *k, const struct kd_k3_cfg *cfg, const int64_t *count,
                        int64_t *n, struct kd_err *err)
{
    int64_t first = -1;
    for (int64_t i = 0; i < k->layer_count; i++) {
        int64_t l = k->layers[i];
        if (!kd_k3_is_moe(cfg, l))
            continue;
        int64_t have = listed_of(count + l * cfg->experts, cfg->experts);
        if (!have)
            return kd_fail(err, KD_EINVAL, "layer %lld has no list of experts", (long long)l);
        if (first >= 0 && have != *n)
            return kd_fail(err, KD_EINVAL,
                           "layer %lld keeps %lld experts, layer %lld keeps %lld: a model has one "
                           "number for all",
                           (long long)first, (long long)*n, (long long)l, (long long)have);
        first = l;
        *n = have;
    }
    return 0;
}

static int top_experts(struct kd_keep *k, const struct kd_k3_cfg *cfg, const char *text,
                       struct kd_err *err)
{
    char path[4096];
    int64_t n, *count;
    bool listed;
    struct kd_buf b;
    struct counted *scratch = NULL;
    if (split_top(text, path, sizeof path, &n, err) ||
        kd_mem_zero(&count, cfg->layers * cfg->experts, sizeof *count, "counts", err))
        return -1;
    kd_buf_init(&b, TRACE_MAX);
    int rc = kd_file_read(&b, path, TRACE_MAX, err) ||
             kd_mem_new(&scratch, cfg->experts, sizeof *scratch, "counts", err);
    if (!rc && kd_keep_trace(count, cfg->layers, cfg->experts, b.data, b.size_bytes, &listed, err))
        rc = kd_wrap(err, "%s", path);
    kd_buf_release(&b);
    if (!rc && listed && n)
        rc = kd_fail(err, KD_EUSAGE, "experts: '%s' lists them: it takes no number", path);
    if (!rc && listed)
        rc = listed_count(k, cfg, count, &n, err);
    if (!rc)
        n = n ? n : cfg->topk;
    if (!rc && n > cfg->experts)
        rc =
            kd_fail(err, KD_EUSAGE, "experts: %lld of %lld", (long long)n, (long long)cfg->experts);
    k->expert_count = n;
    if (!rc)
        rc = kd_mem_new(&k->experts, k->layer_count * n, sizeof *k->experts, "experts", err);
    for (int64_t i = 0; !rc && i < k->layer_count; i++) {
        int64_t l = k->layers[i];
        int32_t *out = k->experts + i * n;
        if (kd_k3_is_moe(cfg, l))
            pick_top(out, count + l * cfg->experts, cfg->experts, n, scratch);
        for (int64_t e = 0; !kd_k3_is_moe(cfg, l) && e < n; e++)
            out[e] = (int32_t)e;
    }
    kd_mem_free(scratch);
    kd_mem_free(count);
    return rc ? -1 : 0;
}

static int same_experts(struct kd_keep *k, const struct kd_k3_cfg *cfg, const char *text,
                        struct kd_err *err)
{
    struct kd_buf b;
    kd_buf_init(&b, 1 << 24);
    int rc = 0;
    if (text)
        rc = kd_keep_list(&b, text, cfg->experts, "experts", err);
    else
        add_range(&b, 0, cfg->experts - 1);
    rc = rc ? rc : kd_buf_ok(&b, "experts", err);
    k->expert_count = (int64_t)(b.size_bytes / sizeof *k->experts);
    if (!rc)
        rc = kd_mem_new(&k->experts, k->layer_count * k->expert_count, sizeof *k->experts,
                        "experts", err);
    for (int64_t i = 0; !rc && i < k->layer_count; i++)
        memcpy(k->experts + i * k->expert_count, b.data, b.size_bytes);
    kd_buf_release(&b);
    return rc ? -1 : 0;
}

static bool same_lists(const struct kd_keep *k, const struct kd_k3_cfg *cfg)
{
    const int32_t *first = NULL;
    for (int64_t i = 0; i < k->layer_count; i++) {
        const int32_t *list = k->experts + i * k->expert_count;
        if (!kd_k3_is_moe(cfg, k->layers[i]))
            continue;
        if (first && memcmp(first, list, (size_t)k->expert_count * sizeof *list) != 0)
            return false;
        first = list;
    }
    return true;
}

static int blocks_check(struct kd_keep *k, const struct kd_k3_cfg *cfg, bool may_break,
                        struct kd_err *err)
{
    int64_t i = 0, block = cfg->block;
    while (i < k->layer_count) {
        int64_t first = k->layers[i] / block * block;
        int64_t end = first + block < cfg->layers ? first + block : cfg->layers;
        for (int64_t l = first; l < end; l++, i++)
            if (i >= k->layer_count || k->layers[i] != l) {
                k->blocks_whole = false;
                if (may_break)
                    return 0;
                return kd_fail(err, KD_EUSAGE,
                               "layers: the block %lld-%lld is not kept whole (%lld is missing): "
                               "attention residuals are shared within %lld layers; name whole "
                               "blocks, or --break-blocks",
                               (long long)first, (long long)end - 1, (long long)l,
                               (long long)block);
            }
    }
    k->blocks_whole = true;
    return 0;
}

static int layers_check(struct kd_keep *k, const struct kd_k3_cfg *cfg, bool may_break,
                        struct kd_err *err)
{
    int64_t mla = 0;
    for (int64_t i = 0; i < k->layer_count; i++)
        mla += cfg->mla[k->layers[i]];
    if (!mla || mla == k->layer_count)
        return kd_fail(err, KD_EUSAGE,
                       "layers: none of those kept is %s: a loader needs at least one of each "
                       "kind",
                       mla ? "KDA" : "MLA");
    return blocks_check(k, cfg, may_break, err);
}

static int used_check(struct kd_keep *k, const struct kd_k3_cfg *cfg, int64_t wish,
                      struct kd_err *err)
{
    k->used = wish ? wish : cfg->topk;
    if (k->used <= k->expert_count)
        return 0;
    return wish ? kd_fail(err, KD_EUSAGE, "experts-used: %lld of the %lld kept", (long long)wish,
                          (long long)k->expert_count)
                : kd_fail(err, KD_EUSAGE,
                          "the model uses %lld experts for a token and %lld are kept: name "
                          "--experts-used",
                          (long long)cfg->topk, (long long)k->expert_count);
}

int kd_keep_make(struct kd_keep *k, const struct kd_k3_cfg *cfg, const struct kd_keep_wish *w,
                 struct kd_err *err)
{
    struct kd_buf b;
    memset(k, 0, sizeof *k);
    kd_buf_init(&b, 1 << 24);
    int rc = 0;
    if (w->layers)
        rc = kd_keep_list(&b, w->layers, cfg->layers, "layers", err);
    else
        add_range(&b, 0, cfg->layers - 1);
    rc = rc ? rc : kd_buf_ok(&b, "layers", err);
    k->layer_count = (int64_t)(b.size_bytes / sizeof *k->layers);
    if (!rc)
        rc = kd_mem_new(&k->layers, k->layer_count, sizeof *k->layers, "layers", err);
    if (!rc)
        memcpy(k->layers, b.data, b.size_bytes);
    kd_buf_release(&b);
    if (!rc)
        rc = layers_check(k, cfg, w->break_blocks, err);
    if (!rc)
        rc = w->experts && !strncmp(w->experts, "top:", 4) ? top_experts(k, cfg, w->experts, err)
                                                           : same_experts(k, cfg, w->experts, err);
    if (!rc)
        rc = used_check(k, cfg, w->used, err);
    if (rc) {
        kd_keep_release(k);
        return -1;
    }
    k->one_list = same_lists(k, cfg);
    k->all =
        k->layer_count == cfg->layers && k->expert_count == cfg->experts && k->used == cfg->topk;
    return 0;
}

void kd_keep_release(struct kd_keep *k)
{
    kd_mem_free(k->layers);
    kd_mem_free(k->experts);
    memset(k, 0, sizeof *k);
}

static int64_t find(const int32_t *list, int64_t n, int64_t id)
{
    int32_t key = (int32_t)id;
    const int32_t *at = bsearch(&key, list, (size_t)n, sizeof *list, by_id);
    return at ? at - list : -1;
}

int64_t kd_keep_layer(const struct kd_keep *k, int64_t layer)
{
    return find(k->layers, k->layer_count, layer);
}

int64_t kd_keep_expert(const struct kd_keep *k, int64_t at, int64_t expert)
{
    return find(k->experts + at * k->expert_count, k->expert_count, expert);
}
