/* The folder of a slice of safetensors: shards as the source has them, those without a kept tensor
 * left out; config.json and the index made anew where something changed. */
#include "slice/slice_int.h"

#include "base/mem.h"
#include "fmt/st_write.h"

#include <string.h>

/* A shard that keeps everything under its old names is copied whole, header included. */
static bool untouched(const struct kd_slice *s, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i++)
        if (s->items[i].fate != KD_FATE_COPY ||
            strcmp(s->names.at[s->items[i].name], s->h->t[i].name) != 0)
            return false;
    return true;
}

static int lay_shard(struct kd_slice *s, int32_t out, int64_t first, int64_t end,
                     struct kd_err *err)
{
    struct kd_slice_file *f = &s->files[out];
    struct kd_st_plan p;
    int32_t part = s->h->t[first].part;
    kd_buf_init(&f->head, KD_ST_HEADER_MAX + 8);
    if (untouched(s, first, end)) {
        struct kd_slice_span sp = {.part = part, .out = out, .tensor = -1, .to = -1};
        sp.bytes = f->bytes = s->h->parts[part].bytes;
        sp.unit = sp.out_unit = 1;
        kd_buf_add(&s->spans, &sp, sizeof sp);
        return 0;
    }
    kd_st_plan_init(&p);
    int rc = 0;
    for (int64_t i = first; !rc && i < end; i++) {
        const struct kd_slice_item *it = &s->items[i];
        if (it->fate != KD_FATE_DROP)
            rc = kd_st_plan_add(&p, s->names.at[it->name], s->h->t[i].dtype, it->rank, it->shape,
                                it->bytes, err);
    }
    if (!rc)
        rc = kd_st_plan_head(&p, f->name, &f->head, err);
    f->bytes = kd_st_plan_file_bytes(&p);
    int64_t at = (int64_t)f->head.size_bytes;
    for (int64_t i = first; !rc && i < end; i++)
        if (s->items[i].fate != KD_FATE_DROP) {
            kd_slice_span_add(s, i, out, at);
            at += s->items[i].bytes;
        }
    kd_st_plan_release(&p);
    return rc ? -1 : 0;
}

/* Shard `no` of `count` as the source names them, or as the release does. */
static void shard_name(const struct kd_slice *s, char *out, size_t size, int64_t no, int64_t count)
{
    if (count == s->h->part_count)
        snprintf(out, size, "%s", s->h->parts[no].name);
    else
        snprintf(out, size, "model-%05lld-of-%06lld.safetensors", (long long)no + 1,
                 (long long)count);
}

static int lay_shards(struct kd_slice *s, struct kd_err *err)
{
    const struct kd_heads *h = s->h;
    int64_t kept = 0, first = 0;
    bool *any;
    if (kd_mem_zero(&any, h->part_count, sizeof *any, "shards", err))
        return -1;
    for (int64_t i = 0; i < h->count; i++)
        any[h->t[i].part] |= s->items[i].fate != KD_FATE_DROP;
    for (int i = 0; i < h->part_count; i++)
        kept += any[i];
    int rc = kd_mem_zero(&s->files, kept, sizeof *s->files, "files", err);
    for (int i = 0; !rc && i < h->part_count; i++) {
        int64_t end = first;
        while (end < h->count && h->t[end].part == i)
            end++;
        if (any[i]) {
            struct kd_slice_file *f = &s->files[s->file_count];
            shard_name(s, f->name, sizeof f->name, s->file_count, kept);
            rc = lay_shard(s, (int32_t)s->file_count++, first, end, err);
        }
        first = end;
    }
    kd_mem_free(any);
    return rc ? -1 : 0;
}

static int set_number(struct kd_json *text, const char *key, int64_t value, struct kd_err *err)
{
    struct kd_json *root;
    char json[64];
    int n = snprintf(json, sizeof json, "{\"v\":%lld}", (long long)value);
    if (kd_json_parse(&root, json, (size_t)n, key, err))
        return -1;
    int rc = kd_json_set_copy(text, key, kd_json_get(root, "v"));
    kd_json_free(root);
    return rc ? kd_fail(err, KD_ENOMEM, "config.json") : 0;
}

/* Layers are counted from 1 there. */
static int set_layers(const struct kd_slice *s, struct kd_json *text, const char *key, bool mla,
                      struct kd_err *err)
{
    struct kd_buf b;
    struct kd_json *list;
    kd_buf_init(&b, 1 << 20);
    kd_buf_char(&b, '[');
    int n = 0;
    for (int64_t i = 0; i < s->keep.layer_count; i++)
        if ((s->h->cfg.mla[s->keep.layers[i]] != 0) == mla)
            kd_buf_printf(&b, "%s%lld", n++ ? "," : "", (long long)i + 1);
    kd_buf_char(&b, ']');
    if (kd_buf_ok(&b, key, err) || kd_json_parse(&list, b.data, b.size_bytes, key, err)) {
        kd_buf_release(&b);
        return -1;
    }
    kd_buf_release(&b);
    struct kd_json *linear = kd_json_get(text, "linear_attn_config");
    int rc = kd_json_set_copy(linear, key, list);
    kd_json_free(list);
    return rc ? kd_fail(err, KD_ENOMEM, "config.json") : 0;
}

static int edit_config(struct kd_slice *s, struct kd_err *err)
{
    const struct kd_keep *k = &s->keep;
    struct kd_json *root;
    int64_t dense = 0;
    if (kd_json_parse(&root, s->h->config_text.data, s->h->config_text.size_bytes, "config.json",
                      err))
        return -1;
    for (int64_t i = 0; i < k->layer_count; i++)
        dense += !kd_k3_is_moe(&s->h->cfg, k->layers[i]);
    struct kd_json *text = s->h->cfg.nested ? kd_json_get(root, "text_config") : root;
    int rc = set_number(text, "num_hidden_layers", k->layer_count, err) ||
             set_number(text, "num_experts", k->expert_count, err) ||
             set_number(text, "num_experts_per_token", k->used, err) ||
             set_number(text, "first_k_dense_replace", dense, err) ||
             set_layers(s, text, "full_attn_layers", true, err) ||
             set_layers(s, text, "kda_layers", false, err) || kd_json_dump(&s->config, root, err);
    kd_json_free(root);
    return rc ? -1 : 0;
}

static int load_whole(const struct kd_slice *s, const char *name, struct kd_buf *out, bool *found,
                      struct kd_err *err)
{
    int f = kd_source_find(s->h->src, name);
    *found = f >= 0;
    return f >= 0 ? kd_source_load(s->h->src, f, out->max_bytes, out, err) : 0;
}

static int make_index(struct kd_slice *s, struct kd_err *err)
{
    int64_t total = 0, i = 0;
    for (int64_t k = 0; k < s->h->count; k++)
        total += s->items[k].bytes;
    struct kd_jw w = {.out = &s->index};
    kd_jw_open(&w, NULL, '{');
    kd_jw_open(&w, "metadata", '{');
    kd_jw_int(&w, "total_size", total);
    kd_jw_close(&w, '}');
    kd_jw_open(&w, "weight_map", '{');
    for (int64_t file = 0; i < s->h->count;) {
        int32_t part = s->h->t[i].part;
        bool any = false;
        for (; i < s->h->count && s->h->t[i].part == part; i++)
            if (s->items[i].fate != KD_FATE_DROP) {
                kd_jw_str(&w, s->names.at[s->items[i].name], s->files[file].name);
                any = true;
            }
        file += any;
    }
    kd_jw_close(&w, '}');
    kd_jw_close(&w, '}');
    kd_buf_char(&s->index, '\n');
    return kd_buf_ok(&s->index, "index", err);
}

int kd_slice_lay_st(struct kd_slice *s, struct kd_err *err)
{
    bool found = false;
    if (!s->h->config_text.size_bytes)
        return kd_fail(err, KD_EINVAL, "'%s' has no config.json", kd_source_where(s->h->src));
    if (lay_shards(s, err))
        return -1;
    if (!s->f.everything)
        return edit_config(s, err) || make_index(s, err) ? -1 : 0;
    kd_buf_add(&s->config, s->h->config_text.data, s->h->config_text.size_bytes);
    if (kd_buf_ok(&s->config, "config.json", err) ||
        load_whole(s, "model.safetensors.index.json", &s->index, &found, err))
        return -1;
    return !found && s->file_count > 1 ? make_index(s, err) : 0;
}
