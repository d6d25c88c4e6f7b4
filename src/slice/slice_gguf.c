/* The one GGUF file of a slice: its keys and where its tensors lie. */
#include "slice/slice_int.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/show.h"

#include <string.h>

#define P "kimi-k3."

/* Arrays with one value a layer; others of that length are copied with a warning. */
static const char *const per_layer[] = {
    P "attention.head_count_kv",         P "attention.head_count", P "feed_forward_length",
    P "expert_feed_forward_length",      P "expert_count",         P "expert_used_count",
    P "attention.sliding_window_pattern"};

static bool starts(const char *key, const char *with)
{
    return !strncmp(key, with, strlen(with));
}

static int gather(struct kd_slice *s, struct kd_gguf_plan *p, const struct kd_gguf_kv *kv,
                  struct kd_err *err)
{
    struct kd_buf b;
    int64_t width = kv->value_bytes / kv->count;
    kd_buf_init(&b, (size_t)kv->value_bytes + 1);
    for (int64_t i = 0; i < s->keep.layer_count; i++)
        kd_buf_add(&b, kv->value + s->keep.layers[i] * width, (size_t)width);
    int rc = kd_buf_ok(&b, kv->key, err);
    if (!rc)
        kd_gguf_plan_array(p, kv->key, kv->item, s->keep.layer_count, b.data,
                           (int64_t)b.size_bytes);
    kd_buf_release(&b);
    return rc;
}

/* Keys that describe the whole model and get new values. */
static bool put_changed(const struct kd_slice *s, struct kd_gguf_plan *p,
                        const struct kd_gguf_kv *kv, const char *name, const char *size)
{
    const struct kd_keep *k = &s->keep;
    int64_t dense = 0;
    for (int64_t i = 0; i < k->layer_count; i++)
        dense += !kd_k3_is_moe(&s->h->cfg, k->layers[i]);
    const struct {
        const char *key;
        int64_t value;
        bool changed;
    } whole[] = {
        {P "block_count", k->layer_count, true},
        {P "expert_count", k->expert_count, true},
        {P "expert_used_count", k->used, true},
        {P "leading_dense_block_count", dense, true},
        {"general.file_type", s->o.requant >= 0 ? kd_gguf_type_info(s->o.requant)->file_type : -1,
         s->f.converted > 0},
        {"general.quantization_version", 2, s->f.converted > 0},
    };
    if (!strcmp(kv->key, "general.name"))
        kd_gguf_plan_str(p, kv->key, name, (int64_t)strlen(name));
    else if (!strcmp(kv->key, "general.size_label"))
        kd_gguf_plan_str(p, kv->key, size, (int64_t)strlen(size));
    else
        for (size_t i = 0; i <= sizeof whole / sizeof *whole; i++) {
            if (i == sizeof whole / sizeof *whole)
                return false;
            if (kv->type == KD_GV_ARRAY || strcmp(kv->key, whole[i].key) != 0 ||
                !whole[i].changed || whole[i].value < 0)
                continue;
            kd_gguf_plan_int(p, kv->key, kv->type, whole[i].value);
            break;
        }
    return true;
}

static int put_key(struct kd_slice *s, struct kd_gguf_plan *p, const struct kd_gguf_kv *kv,
                   const char *name, const char *size, struct kd_err *err)
{
    char as[KD_GGUF_KEY_MAX + 1];
    if (starts(kv->key, "slice.") || put_changed(s, p, kv, name, size))
        return 0;
    if (kv->type == KD_GV_ARRAY && kv->count == s->h->cfg.layers && starts(kv->key, P)) {
        for (size_t i = 0; i < sizeof per_layer / sizeof *per_layer; i++)
            if (!strcmp(kv->key, per_layer[i]) && kv->item != KD_GV_STR)
                return gather(s, p, kv, err);
        kd_log(KD_LOG_WARN, "slice",
               "msg=\"key '%s' has as many values as the model has layers; it is copied as it "
               "is\"",
               kv->key);
    }
    if (starts(kv->key, "quantize.imatrix.")) { /* measured on another model */
        snprintf(as, sizeof as, "source.%s", kv->key);
        kd_gguf_plan_copy_as(p, as, kv);
        return 0;
    }
    kd_gguf_plan_copy(p, kv);
    return 0;
}

static int put_keys(struct kd_slice *s, struct kd_gguf_plan *p, struct kd_err *err)
{
    const struct kd_gguf *g = &s->h->set.parts[0].head;
    const struct kd_slice_record *r = &s->record;
    char name[640], count[32], size[40];
    kd_show_count(count, sizeof count, s->f.params_kept);
    size_t n = 0;
    for (const char *c = count; *c; c++) /* "15.6 B" as labels have it: "15.6B" */
        if (*c != ' ')
            size[n++] = *c;
    size[n] = 0;
    snprintf(name, sizeof name, "slice of %s: %lld of %lld layers, %lld of %lld experts", r->name,
             (long long)r->layer_count, (long long)r->layers, (long long)r->expert_count,
             (long long)r->experts);
    for (int64_t i = 0; i < g->kv_count; i++) {
        const struct kd_gguf_kv *kv = &g->kv[i];
        if (starts(kv->key, "split."))
            continue;
        if (s->f.everything)
            kd_gguf_plan_copy(p, kv);
        else if (put_key(s, p, kv, name, size, err))
            return -1;
    }
    if (s->f.everything)
        return 0;
    /* Where nothing was quantized before, nobody said how. */
    if (s->f.converted && kd_gguf_type_info(s->o.requant)->elems > 1 &&
        !kd_gguf_key(g, "general.quantization_version"))
        kd_gguf_plan_int(p, "general.quantization_version", KD_GV_U32, 2);
    if (!kd_gguf_key(g, "general.name"))
        kd_gguf_plan_str(p, "general.name", name, (int64_t)strlen(name));
    if (!kd_gguf_key(g, "general.size_label"))
        kd_gguf_plan_str(p, "general.size_label", size, (int64_t)strlen(size));
    return kd_slice_record_keys(p, r, err);
}

static int lay(struct kd_slice *s, struct kd_gguf_plan *p, struct kd_err *err)
{
    int64_t *offset;
    if (put_keys(s, p, err) || kd_mem_new(&offset, s->h->count, sizeof *offset, "offsets", err))
        return -1;
    int rc = 0;
    for (int64_t i = 0; !rc && i < s->h->count; i++) {
        const struct kd_slice_item *it = &s->items[i];
        int64_t ne[KD_GGUF_RANK_MAX];
        if (it->fate == KD_FATE_DROP)
            continue;
        for (int d = 0; d < it->rank; d++)
            ne[d] = it->shape[it->rank - 1 - d];
        rc = kd_gguf_plan_tensor(p, s->names.at[it->name], it->to >= 0 ? it->to : s->h->t[i].type,
                                 it->rank, ne, &offset[i], err);
    }
    struct kd_slice_file *f = s->files;
    if (!rc)
        rc = kd_gguf_plan_head(p, &f->head, err);
    f->bytes = kd_gguf_plan_file_bytes(p);
    for (int64_t i = 0; !rc && i < s->h->count; i++)
        if (s->items[i].fate != KD_FATE_DROP)
            kd_slice_span_add(s, i, 0, (int64_t)f->head.size_bytes + offset[i]);
    kd_mem_free(offset);
    return rc ? -1 : 0;
}

int kd_slice_lay_gguf(struct kd_slice *s, struct kd_err *err)
{
    struct kd_gguf_plan p;
    if (kd_mem_zero(&s->files, 1, sizeof *s->files, "files", err))
        return -1;
    s->file_count = 1;
    snprintf(s->files->name, sizeof s->files->name, "model.gguf");
    kd_buf_init(&s->files->head, KD_GGUF_HEAD_MAX);
    kd_gguf_plan_init(&p);
    p.version = s->h->set.parts[0].head.version;
    int rc = lay(s, &p, err);
    kd_gguf_plan_release(&p);
    return rc;
}
