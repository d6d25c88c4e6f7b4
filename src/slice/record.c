#include "slice/record.h"

#include "base/hash.h"
#include "base/mem.h"

#include <string.h>

enum {
    RECORD_MAX = 64 << 20,
    EXPERTS_MAX = 1 << 20,
    WIDTH_MAX = 1 << 24,
    IDS_MAX = KD_K3_LAYERS_MAX * 65536
};

void kd_slice_record_release(struct kd_slice_record *r)
{
    kd_mem_free(r->layers_kept);
    kd_mem_free(r->experts_kept);
    memset(r, 0, sizeof *r);
}

/* Texts and whole numbers, in the order they are written. */
static const struct field {
    const char *json, *gguf;
    size_t at, size; /* size 0: an int64_t */
} fields[] = {
#define TEXT(json, gguf, member)                                                                   \
    {                                                                                              \
        json, gguf, offsetof(struct kd_slice_record, member),                                      \
            sizeof((struct kd_slice_record *)0)->member                                            \
    }
#define NUMBER(json, gguf, member)                                                                 \
    {                                                                                              \
        json, gguf, offsetof(struct kd_slice_record, member), 0                                    \
    }
    TEXT("tool", "slice.tool", tool),
    TEXT("source_name", "slice.source.name", name),
    TEXT("source_repo", "slice.source.repo", repo),
    TEXT("source_commit", "slice.source.commit", commit),
    TEXT("chain", "slice.chain", chain),
    NUMBER("source_layers", "slice.source.layers", layers),
    NUMBER("source_dense_layers", "slice.source.dense_layers", dense),
    NUMBER("source_experts", "slice.source.experts", experts),
    NUMBER("source_experts_used", "slice.source.experts_used", used),
    NUMBER("source_expert_width", "slice.source.expert_width", width),
    NUMBER("source_parameters", "slice.params.source", params),
    NUMBER("source_active_parameters", "slice.params.active", active),
    NUMBER("source_data_bytes", "slice.source.data_bytes", data_bytes),
    NUMBER("expert_lists", "slice.experts.lists", lists),
};
enum { FIELDS = sizeof fields / sizeof *fields };

static int64_t *number_at(const struct kd_slice_record *r, const struct field *f)
{
    return (int64_t *)(void *)((char *)(uintptr_t)r + f->at);
}

static char *text_at(const struct kd_slice_record *r, const struct field *f)
{
    return (char *)(uintptr_t)r + f->at;
}

static void put_ids(struct kd_jw *w, const char *key, const int32_t *ids, int64_t n)
{
    kd_jw_open(w, key, '[');
    w->compact = true;
    for (int64_t i = 0; i < n; i++)
        kd_jw_int(w, NULL, ids[i]);
    kd_jw_close(w, ']');
    w->compact = false;
}

static void put_members(struct kd_jw *w, const struct kd_slice_record *r)
{
    for (int i = 0; i < FIELDS; i++)
        if (fields[i].size)
            kd_jw_str(w, fields[i].json, text_at(r, &fields[i]));
        else
            kd_jw_int(w, fields[i].json, *number_at(r, &fields[i]));
    kd_jw_bool(w, "blocks_whole", r->blocks_whole);
    put_ids(w, "layers_kept", r->layers_kept, r->layer_count);
    put_ids(w, "experts_kept", r->experts_kept, r->lists * r->expert_count);
}

/* Over the text of slice.json without its hash. */
static int hash_of(const struct kd_slice_record *r, char hex[65], struct kd_err *err)
{
    struct kd_buf b;
    kd_buf_init(&b, RECORD_MAX);
    struct kd_jw w = {.out = &b};
    kd_jw_open(&w, NULL, '{');
    put_members(&w, r);
    kd_jw_close(&w, '}');
    int rc = kd_buf_ok(&b, "record", err) || kd_sha256_of(b.data, b.size_bytes, hex, err) ? -1 : 0;
    kd_buf_release(&b);
    return rc;
}

int kd_slice_record_json(struct kd_buf *out, const struct kd_slice_record *r, struct kd_err *err)
{
    char hex[65];
    if (hash_of(r, hex, err))
        return -1;
    struct kd_jw w = {.out = out};
    kd_jw_open(&w, NULL, '{');
    put_members(&w, r);
    kd_jw_str(&w, "sha256", hex);
    kd_jw_close(&w, '}');
    kd_buf_char(out, '\n');
    return kd_buf_ok(out, "slice.json", err);
}

int kd_slice_record_keys(struct kd_gguf_plan *p, const struct kd_slice_record *r,
                         struct kd_err *err)
{
    char hex[65];
    if (hash_of(r, hex, err))
        return -1;
    for (int i = 0; i < FIELDS; i++) {
        const struct field *f = &fields[i];
        if (f->size)
            kd_gguf_plan_str(p, f->gguf, text_at(r, f), (int64_t)strlen(text_at(r, f)));
        else
            kd_gguf_plan_int(p, f->gguf, KD_GV_U64, *number_at(r, f));
    }
    kd_gguf_plan_int(p, "slice.blocks.whole", KD_GV_BOOL, r->blocks_whole);
    kd_gguf_plan_array(p, "slice.layers.kept", KD_GV_I32, r->layer_count, r->layers_kept,
                       4 * r->layer_count);
    kd_gguf_plan_array(p, "slice.experts.kept", KD_GV_I32, r->lists * r->expert_count,
                       r->experts_kept, 4 * r->lists * r->expert_count);
    kd_gguf_plan_str(p, "slice.receipt.sha256", hex, 64);
    return 0;
}

static void set_text(char *out, size_t size, const char *text, size_t bytes)
{
    snprintf(out, size, "%.*s", (int)(bytes < size ? bytes : size - 1), text);
}

/* The two lists, with their counts checked against each other, and the source's own. */
static int set_ids(struct kd_slice_record *r, int64_t layers, int64_t experts, struct kd_err *err)
{
    if (r->layers > KD_K3_LAYERS_MAX || r->dense > r->layers || r->experts > EXPERTS_MAX ||
        r->used > r->experts || r->width > WIDTH_MAX)
        return kd_fail(err, KD_ECORRUPT,
                       "its slice record is of a model of %lld layers, %lld of them dense, and "
                       "%lld experts of width %lld, %lld used: there is none",
                       (long long)r->layers, (long long)r->dense, (long long)r->experts,
                       (long long)r->width, (long long)r->used);
    if (layers < 1 || layers > KD_K3_LAYERS_MAX || experts < 1 || experts > IDS_MAX ||
        (r->lists != 1 && r->lists != layers) || experts % r->lists)
        return kd_fail(err, KD_ECORRUPT,
                       "its slice record lists %lld layers, %lld experts in %lld "
                       "lists",
                       (long long)layers, (long long)experts, (long long)r->lists);
    r->layer_count = layers;
    r->expert_count = experts / r->lists;
    return kd_mem_new(&r->layers_kept, layers, sizeof *r->layers_kept, "record", err) ||
                   kd_mem_new(&r->experts_kept, experts, sizeof *r->experts_kept, "record", err)
               ? -1
               : 0;
}

static int id_check(int64_t v, int64_t of, struct kd_err *err)
{
    return v >= 0 && v < of ? 0
                            : kd_fail(err, KD_ECORRUPT, "its slice record names %lld of %lld",
                                      (long long)v, (long long)of);
}

static int read_keys(struct kd_slice_record *r, const struct kd_gguf *g, char *hex,
                     struct kd_err *err)
{
    const char *text;
    int64_t bytes, v;
    for (int i = 0; i < FIELDS; i++) {
        const struct field *f = &fields[i];
        if (!f->size) {
            if (kd_gguf_int(g, f->gguf, 0, INT64_MAX, number_at(r, f), err))
                return -1;
            continue;
        }
        if (kd_gguf_str_or(g, f->gguf, &text, &bytes, err))
            return -1;
        if (text)
            set_text(text_at(r, f), f->size, text, (size_t)bytes);
    }
    if (kd_gguf_bool_or(g, "slice.blocks.whole", false, &r->blocks_whole, err) ||
        kd_gguf_str_or(g, "slice.receipt.sha256", &text, &bytes, err))
        return -1;
    if (text)
        set_text(hex, 65, text, (size_t)bytes);
    const struct kd_gguf_kv *l = kd_gguf_key(g, "slice.layers.kept");
    const struct kd_gguf_kv *e = kd_gguf_key(g, "slice.experts.kept");
    if (!l || !e || l->type != KD_GV_ARRAY || e->type != KD_GV_ARRAY)
        return kd_fail(err, KD_ECORRUPT, "its slice record has no lists of layers and experts");
    if (set_ids(r, l->count, e->count, err))
        return -1;
    for (int64_t i = 0; i < l->count; i++) {
        if (kd_gguf_item(l, i, &v) || id_check(v, r->layers, err))
            return kd_fail(err, KD_ECORRUPT, "key 'slice.layers.kept': entry %lld", (long long)i);
        r->layers_kept[i] = (int32_t)v;
    }
    for (int64_t i = 0; i < e->count; i++) {
        if (kd_gguf_item(e, i, &v) || id_check(v, r->experts, err))
            return kd_fail(err, KD_ECORRUPT, "key 'slice.experts.kept': entry %lld", (long long)i);
        r->experts_kept[i] = (int32_t)v;
    }
    return 0;
}

static int read_list(int32_t *out, const struct kd_json *list, int64_t n, int64_t of,
                     struct kd_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t v = kd_json_int_value(kd_json_at(list, (size_t)i));
        if (id_check(v, of, err))
            return -1;
        out[i] = (int32_t)v;
    }
    return 0;
}

static int read_json(struct kd_slice_record *r, const struct kd_json *root, char *hex,
                     struct kd_err *err)
{
    const char *text;
    for (int i = 0; i < FIELDS; i++) {
        const struct field *f = &fields[i];
        if (!f->size && kd_json_int(root, f->json, 0, INT64_MAX, number_at(r, f), err))
            return -1;
        if (!f->size)
            continue;
        if (kd_json_str(root, f->json, &text, err))
            return -1;
        set_text(text_at(r, f), f->size, text, strlen(text));
    }
    if (kd_json_bool_or(root, "blocks_whole", false, &r->blocks_whole, err) ||
        kd_json_str(root, "sha256", &text, err))
        return -1;
    set_text(hex, 65, text, strlen(text));
    const struct kd_json *l = kd_json_get(root, "layers_kept"),
                         *e = kd_json_get(root, "experts_kept");
    int64_t nl = (int64_t)kd_json_count(l), ne = (int64_t)kd_json_count(e);
    return set_ids(r, nl, ne, err) || read_list(r->layers_kept, l, nl, r->layers, err) ||
                   read_list(r->experts_kept, e, ne, r->experts, err)
               ? -1
               : 0;
}

static int read_any(struct kd_slice_record *r, const struct kd_heads *h, bool *found, char *hex,
                    struct kd_err *err)
{
    struct kd_buf b;
    struct kd_json *root = NULL;
    if (h->gguf) {
        const struct kd_gguf *g = &h->set.parts[0].head;
        *found = kd_gguf_key(g, "slice.tool") != NULL;
        return *found ? read_keys(r, g, hex, err) : 0;
    }
    int f = kd_source_find(h->src, "slice.json");
    *found = f >= 0;
    if (!*found)
        return 0;
    kd_buf_init(&b, RECORD_MAX);
    int rc = kd_source_load(h->src, f, RECORD_MAX, &b, err) ||
             kd_json_parse(&root, b.data, b.size_bytes, "slice.json", err) ||
             read_json(r, root, hex, err);
    kd_json_free(root);
    kd_buf_release(&b);
    return rc ? -1 : 0;
}

int kd_slice_record_read(struct kd_slice_record *r, const struct kd_heads *h, bool *found,
                         bool *intact, struct kd_err *err)
{
    char is[65] = "", should[65];
    memset(r, 0, sizeof *r);
    *intact = false;
    if (read_any(r, h, found, is, err) || (*found && hash_of(r, should, err))) {
        kd_slice_record_release(r);
        return -1;
    }
    *intact = *found && !strcmp(is, should);
    return 0;
}

/* The source as it describes itself. */
static int source_of(struct kd_slice_record *r, const struct kd_heads *h, struct kd_err *err)
{
    const char *text = NULL;
    int64_t bytes = 0;
    struct kd_heads_sum sum;
    snprintf(r->tool, sizeof r->tool, "Kondense " KD_VERSION);
    kd_heads_name(h, r->repo, sizeof r->repo);
    snprintf(r->name, sizeof r->name, "%s", r->repo);
    if (h->gguf && kd_gguf_str_or(&h->set.parts[0].head, "general.name", &text, &bytes, err))
        return -1;
    if (text)
        set_text(r->name, sizeof r->name, text, (size_t)bytes);
    snprintf(r->commit, sizeof r->commit, "%s", kd_source_commit(h->src));
    kd_heads_mix(h, r->chain, sizeof r->chain);
    r->layers = h->cfg.layers;
    r->dense = h->cfg.dense_layers;
    r->experts = h->cfg.experts;
    r->used = h->cfg.topk;
    r->width = h->cfg.moe_inter;
    kd_heads_sum(h, &sum);
    r->params = sum.params;
    r->active = kd_heads_active(&sum, h->cfg.topk, h->cfg.experts);
    r->data_bytes = h->data_bytes;
    r->blocks_whole = true;
    return 0;
}

/* Ids in the first source of what is kept of h, whose own record is `old` (or NULL). */
static void compose(struct kd_slice_record *r, const struct kd_heads *h, const struct kd_keep *k,
                    const struct kd_slice_record *old)
{
    for (int64_t i = 0; i < k->layer_count; i++) {
        int64_t l = k->layers[i];
        r->layers_kept[i] = old ? old->layers_kept[l] : (int32_t)l;
    }
    for (int64_t i = 0; i < r->lists; i++) {
        int64_t at = i;
        while (r->lists == 1 && at + 1 < k->layer_count && !kd_k3_is_moe(&h->cfg, k->layers[at]))
            at++; /* the list of all: that of the first layer with experts */
        bool moe = kd_k3_is_moe(&h->cfg, k->layers[at]);
        for (int64_t e = 0; e < k->expert_count; e++) {
            int64_t id = k->experts[at * k->expert_count + e];
            int64_t list = !old || old->lists == 1 ? 0 : k->layers[at];
            if (!moe)
                id = e;
            else if (old)
                id = old->experts_kept[list * old->expert_count + id];
            r->experts_kept[i * k->expert_count + e] = (int32_t)id;
        }
    }
}

/* One list where all layers with experts have the same: a direct slice would say it so. */
static void join_lists(struct kd_slice_record *r, const struct kd_heads *h, const struct kd_keep *k)
{
    const int32_t *first = NULL;
    size_t bytes = (size_t)r->expert_count * sizeof *first;
    for (int64_t i = 0; r->lists > 1 && i < r->lists; i++) {
        const int32_t *list = r->experts_kept + i * r->expert_count;
        if (!kd_k3_is_moe(&h->cfg, k->layers[i]))
            continue;
        if (first && memcmp(first, list, bytes) != 0)
            return;
        first = first ? first : list;
    }
    if (first)
        memmove(r->experts_kept, first, bytes);
    r->lists = 1;
}

int kd_slice_record_make(struct kd_slice_record *r, const struct kd_heads *h,
                         const struct kd_keep *k, const char *to, struct kd_err *err)
{
    struct kd_slice_record old;
    bool found, intact;
    memset(r, 0, sizeof *r);
    if (kd_slice_record_read(&old, h, &found, &intact, err))
        return -1;
    int rc = 0;
    if (found &&
        (!intact || old.layer_count != h->cfg.layers || old.expert_count != h->cfg.experts))
        rc = kd_fail(err, KD_ECORRUPT,
                     "its slice record does not fit it: what it was cut from "
                     "cannot be told");
    if (!rc && found) {
        *r = old;
        r->layers_kept = r->experts_kept = NULL;
    } else if (!rc) {
        rc = source_of(r, h, err);
    }
    if (!rc && to) {
        size_t n = strlen(r->chain);
        snprintf(r->chain + n, sizeof r->chain - n, " > %s", to);
    }
    r->blocks_whole = r->blocks_whole && k->blocks_whole;
    r->lists = k->one_list && (!found || old.lists == 1) ? 1 : k->layer_count;
    if (!rc)
        rc = set_ids(r, k->layer_count, r->lists * k->expert_count, err);
    if (!rc)
        compose(r, h, k, found ? &old : NULL);
    if (!rc)
        join_lists(r, h, k);
    kd_slice_record_release(&old);
    if (rc)
        kd_slice_record_release(r);
    return rc ? -1 : 0;
}
