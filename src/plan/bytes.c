#include "plan/bytes.h"

#include "base/mem.h"
#include "base/show.h"
#include "fmt/exl3_file.h"
#include "model/k3_quant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The plan document's recipe: the trunk's bytes are given there, not derived (gguf-slicing,
 * Decision 9: 28.9 GB = 55.568e9 weights at a back-solved 4.16 bits). */
static const int64_t document_trunk = 28900000000;

enum { GROUP = 32, ITEMS_MAX = KD_K3_ROWS_MAX };

/* What every device of a cut model holds in full (serving 5.3). */
static bool is_replicated(const char *row, enum kd_k3_kind kind)
{
    return kind == KD_K3_NORMS || kind == KD_K3_FINAL || !strcmp(row, "self_attn.q_a_proj") ||
           !strcmp(row, "self_attn.kv_a_proj_with_mqa") || !strcmp(row, "self_attn.f_a_proj");
}

static int digits(int64_t v)
{
    int n = 1;
    while (v > 9) {
        v /= 10;
        n++;
    }
    return n;
}

/* One tensor of a layer, or of the globals. */
struct item {
    char name[160]; /* as the source has it */
    const char *row;
    enum kd_k3_kind kind;
    int64_t shape[KD_K3_DIMS_MAX], elements, bytes;
    int rank, width; /* width: bytes a value as stored */
    unsigned rate16; /* 0: stays as stored */
};

struct walk {
    const struct kd_plan_model *m;
    const struct kd_plan_target *t;
    struct kd_plan_bytes *b;
    int64_t header, data; /* of the shard at hand */
    int64_t expert_at, expert_count, steps;
};

/* One entry of a safetensors header: ,"name":{"dtype":"..","shape":[..],"data_offsets":[a,b]} */
static void entry(struct walk *w, int64_t name, int dtype, int rank, const int64_t *shape,
                  int64_t bytes)
{
    int64_t n = (int64_t)strlen(",\"\":{\"dtype\":\"\",\"shape\":[],\"data_offsets\":[,]}");
    n += name + dtype + (rank > 1 ? rank - 1 : 0);
    for (int i = 0; i < rank; i++)
        n += digits(shape[i]);
    n += digits(w->data) + digits(w->data + bytes);
    w->header += n;
    w->data += bytes;
}

static void shard_begin(struct walk *w)
{
    w->header = (int64_t)strlen("{\"__metadata__\":{\"format\":\"pt\"}");
    w->data = 0;
}

static void shard_end(struct walk *w)
{
    int64_t used = w->header + 1;
    w->b->file_bytes += 8 + used + (8 - used % 8) % 8 + w->data;
}

/* The entries of one quantized matrix; returns their bytes. */
static int64_t put_exl3(struct walk *w, int64_t key, int64_t rows, int64_t cols, unsigned rate16)
{
    int64_t k = kd_exl3_pad(cols), n = kd_exl3_pad(rows), codes[3] = {k / 16, n / 16, rate16};
    struct kd_rate rate = kd_rate_from16(rate16);
    int64_t before = w->data;
    bool masked = rate.mask != 0;
    entry(w, key + (masked ? 9 : 8), 3, 3, codes,
          codes[0] * codes[1] * (int64_t)kd_rate_tile_bytes(rate));
    entry(w, key + 4, 3, 1, &k, 2 * k);
    entry(w, key + 4, 3, 1, &n, 2 * n);
    entry(w, key + 5, 3, 0, NULL, 4);
    if (masked)
        entry(w, key + 6, 3, 0, NULL, 4);
    return w->data - before;
}

static void add(struct walk *w, const char *row, enum kd_k3_kind kind, int64_t bytes)
{
    struct kd_plan_bytes *b = w->b;
    b->kind[kind] += bytes;
    b->tensor_bytes += bytes;
    if (kind == KD_K3_ROUTED)
        b->routed += bytes;
    else if (kind == KD_K3_EMBED)
        b->embed += bytes;
    else if (kind == KD_K3_VISION || kind == KD_K3_PROJECTOR)
        b->vision += bytes;
    else
        b->trunk += bytes;
    if (kind != KD_K3_ROUTED && is_replicated(row, kind))
        b->replicated += bytes;
}

unsigned kd_plan_rate16(const struct kd_plan_target *t, const char *row, enum kd_k3_kind kind,
                        int64_t rows, int64_t cols)
{
    if (t->form != KD_FORM_EXL3 || !kd_k3_pads_well(rows, cols))
        return 0;
    if (kind != KD_K3_ROUTED && kind != KD_K3_HEAD)
        return kd_k3_trunk_rate16(row, strlen(row), t->trunk_bpw);
    double bits = kind == KD_K3_HEAD ? t->head_bpw : t->experts_bpw;
    return bits > 0 ? kd_k3_rate16(bits) : 0;
}

/* Stored wide tensors, quantized ones, 16-bit ones: the order of convert's shards. */
static int class_of(const struct item *i)
{
    return i->rate16 ? 1 : i->width == 4 ? 0 : 2;
}

static int by_class(const void *pa, const void *pb)
{
    const struct item *a = pa, *b = pb;
    int ca = class_of(a), cb = class_of(b);
    return ca != cb ? (ca < cb ? -1 : 1) : strcmp(a->name, b->name);
}

/* Fills `i` with a row's tensor in a layer (or vision block, or -1); false where it has none. */
static bool describe(const struct walk *w, int row, int64_t layer, bool block, struct item *i)
{
    struct kd_k3_name n;
    memset(i, 0, sizeof *i);
    i->row = kd_k3_row_name(row);
    i->kind = kd_k3_row_kind(row);
    bool vision = i->kind == KD_K3_VISION || i->kind == KD_K3_PROJECTOR;
    if ((layer >= 0 && vision != block) ||
        !kd_k3_row_tensor(&w->m->map, row, layer, i->name, sizeof i->name, &n))
        return false;
    i->rank = n.rank;
    memcpy(i->shape, n.shape, sizeof i->shape);
    i->elements = n.params;
    i->width = n.dtype && !strcmp(n.dtype, "F32") ? 4 : 2;
    i->bytes = i->elements * i->width;
    i->rate16 = i->rank == 2 ? kd_plan_rate16(w->t, i->row, i->kind, i->shape[0], i->shape[1]) : 0;
    return true;
}

static void put_item(struct walk *w, const struct item *i)
{
    struct kd_plan_bytes *b = w->b;
    int64_t bytes = i->bytes;
    if (i->rate16) {
        bytes = put_exl3(w, (int64_t)(strlen(i->name) - strlen(".weight")), i->shape[0],
                         i->shape[1], i->rate16);
        b->quantized_weights += i->elements;
        b->trunk_quantized_weights += i->elements;
    } else {
        entry(w, (int64_t)strlen(i->name), i->width == 4 ? 3 : 4, i->rank, i->shape, bytes);
    }
    add(w, i->row, i->kind, bytes);
}

/* Steps of sixteenths, spread evenly in (layer, expert, projection) order. */
static unsigned next_rate(struct walk *w)
{
    int64_t n = w->expert_count > 0 ? w->expert_count : 1, base = w->steps / n,
            extra = w->steps % n, i = w->expert_at++;
    return (unsigned)(base + ((i + 1) * extra / n - i * extra / n));
}

static void put_experts(struct walk *w, int64_t layer)
{
    const struct kd_k3_cfg *c = &w->m->cfg;
    int64_t latent = c->latent ? c->latent : c->hidden;
    int64_t shape[3][2] = {{c->moe_inter, latent}, {c->moe_inter, latent}, {latent, c->moe_inter}};
    bool exl3 = w->t->form == KD_FORM_EXL3;
    for (int64_t e = 0; e < c->experts; e++)
        for (int p = 0; p < 3; p++) {
            int64_t rows = shape[p][0], cols = shape[p][1], bytes;
            /* "...model.layers.L.block_sparse_moe.experts.E.wN" */
            int64_t key = (c->nested ? 15 : 0) + 13 + digits(layer) + 26 + digits(e) + 3;
            if (exl3 && kd_k3_pads_well(rows, cols)) {
                bytes = put_exl3(w, key, rows, cols, next_rate(w));
                w->b->quantized_weights += rows * cols;
            } else {
                int64_t packed[2] = {rows, cols / 2}, scale[2] = {rows, cols / GROUP};
                entry(w, key + 14, 2, 2, packed, packed[0] * packed[1]);
                entry(w, key + 13, 2, 2, scale, scale[0] * scale[1]);
                bytes = rows * (cols / 2 + cols / GROUP);
            }
            add(w, "", KD_K3_ROUTED, bytes);
        }
}

/* A shard of the text model: a layer (experts after the quantized trunk), or the globals. */
static int put_shard(struct walk *w, int64_t layer, struct kd_err *err)
{
    struct item *item;
    int count = 0, at = 0;
    if (kd_mem_new(&item, ITEMS_MAX, sizeof *item, "tensors of a layer", err))
        return -1;
    for (int row = 0; row < kd_k3_row_count(); row++) {
        enum kd_k3_kind kind = kd_k3_row_kind(row);
        if (kind != KD_K3_VISION && kind != KD_K3_PROJECTOR)
            count += describe(w, row, layer, false, &item[count]);
    }
    qsort(item, (size_t)count, sizeof *item, by_class);
    while (at < count && class_of(&item[at]) <= 1)
        put_item(w, &item[at++]);
    if (layer >= 0 && kd_k3_is_moe(&w->m->cfg, layer))
        put_experts(w, layer);
    while (at < count)
        put_item(w, &item[at++]);
    kd_mem_free(item);
    return 0;
}

/* In the order of their names, blocks among the others. */
static int put_vision(struct walk *w, struct kd_err *err)
{
    int64_t blocks = w->m->map.vision.blocks, count = 0;
    struct item *item;
    if (kd_mem_new(&item, (blocks + 1) * ITEMS_MAX, sizeof *item, "vision tensors", err))
        return -1;
    for (int64_t block = -1; block < blocks; block++)
        for (int row = 0; row < kd_k3_row_count(); row++)
            if (kd_k3_row_kind(row) == KD_K3_VISION || kd_k3_row_kind(row) == KD_K3_PROJECTOR)
                count += describe(w, row, block, block >= 0, &item[count]);
    qsort(item, (size_t)count, sizeof *item, by_class);
    for (int64_t i = 0; i < count; i++)
        put_item(w, &item[i]);
    kd_mem_free(item);
    return 0;
}

static int put_model(struct walk *w, struct kd_err *err)
{
    const struct kd_k3_cfg *c = &w->m->cfg;
    int64_t latent = c->latent ? c->latent : c->hidden;
    bool fits = kd_k3_pads_well(c->moe_inter, latent) && kd_k3_pads_well(latent, c->moe_inter);
    w->expert_count = fits ? w->m->moe_layers * c->experts * 3 : 0;
    w->steps = (int64_t)floor(w->t->experts_bpw * 16 * (double)w->expert_count + 1e-6);
    for (int64_t l = -1; l < c->layers; l++) {
        shard_begin(w);
        if (put_shard(w, l, err))
            return -1;
        shard_end(w);
    }
    if (w->m->map.vision.blocks) {
        shard_begin(w);
        if (put_vision(w, err))
            return -1;
        shard_end(w);
    }
    return 0;
}

/* The tensors of a checkpoint: headers where they are there, else what the config says. */
static int put_stored(struct walk *w, struct kd_err *err)
{
    for (int64_t i = 0; i < kd_ckpt_count(w->t->ck); i++) {
        const struct kd_tensor *t = kd_ckpt_at(w->t->ck, i);
        struct kd_k3_name n;
        char shown[160];
        if (!kd_k3_name_parse(&w->m->map, t->name, &n))
            n.row = -1;
        int64_t bytes = t->bytes;
        if (t->rank < 0) {
            if (n.row < 0 || n.rank < 0 || !n.dtype)
                return kd_fail(err, KD_EINVAL,
                               "'%s': its shard is not there and the config does not tell its size",
                               kd_show_text(shown, sizeof shown, t->name));
            bytes = !strcmp(n.dtype, "F32") ? 4 : !strcmp(n.dtype, "BF16") ? 2 : 1;
            for (int d = 0; d < n.rank; d++)
                bytes *= n.shape[d];
        }
        add(w, n.row < 0 ? "" : kd_k3_row_name(n.row), n.kind, bytes);
    }
    return 0;
}

static void scale_published(struct kd_plan_bytes *b, const struct kd_plan_target *t)
{
    /* Unsloth's recipes: Q8_0 and F32 outside the experts, 8.5 bits (gguf-slicing 3.3); what the
     * rest of the file leaves is the experts'. */
    double rest = 0;
    for (int k = 0; k < KD_K3_KINDS; k++)
        if (k != KD_K3_ROUTED)
            rest += (double)b->kind[k] / 16 * 8.5;
    for (int k = 0; k < KD_K3_KINDS; k++)
        if (k != KD_K3_ROUTED)
            b->kind[k] = (int64_t)((double)b->kind[k] / 16 * 8.5);
    b->trunk = (int64_t)((double)b->trunk / 16 * 8.5);
    b->replicated = (int64_t)((double)b->replicated / 16 * 8.5);
    b->embed = (int64_t)((double)b->embed / 16 * 8.5);
    b->vision = 0;
    b->kind[KD_K3_ROUTED] = b->routed = t->file_bytes - (int64_t)rest;
    b->tensor_bytes = b->file_bytes = t->file_bytes;
}

static int document(struct kd_plan_bytes *b, const struct kd_plan_model *m,
                    const struct kd_plan_target *t, struct kd_err *err)
{
    int64_t routed = (int64_t)((double)m->params[KD_K3_ROUTED] * t->experts_bpw / 8);
    if (m->params[KD_K3_ROUTED] != 2722740830208)
        return kd_fail(err, KD_EINVAL, "the plan document's recipe is for Kimi K3's shape only");
    double scale = (double)document_trunk / (double)b->trunk;
    for (int k = 0; k < KD_K3_KINDS; k++)
        if (k != KD_K3_ROUTED && k != KD_K3_EMBED)
            b->kind[k] = k == KD_K3_VISION || k == KD_K3_PROJECTOR
                             ? 0
                             : (int64_t)((double)b->kind[k] * scale);
    b->replicated = (int64_t)((double)b->replicated * scale);
    b->kind[KD_K3_ROUTED] = b->routed = routed;
    b->trunk = document_trunk;
    b->vision = 0;
    b->tensor_bytes = b->file_bytes = routed + document_trunk + b->embed;
    return 0;
}

int kd_plan_count(struct kd_plan_bytes *b, const struct kd_plan_model *m,
                  const struct kd_plan_target *t, struct kd_err *err)
{
    struct walk w = {.m = m, .t = t, .b = b};
    memset(b, 0, sizeof *b);
    if (t->form == KD_FORM_STORED ? put_stored(&w, err) : put_model(&w, err))
        return -1;
    if (t->form != KD_FORM_EXL3)
        b->file_bytes = b->tensor_bytes;
    if (t->form == KD_FORM_DOCUMENT && document(b, m, t, err))
        return -1;
    if (t->form == KD_FORM_PUBLISHED)
        scale_published(b, t);
    double routed = (double)m->params[KD_K3_ROUTED];
    double bits = routed > 0 ? 8 * (double)b->routed / routed : 0;
    /* Others' formats are block formats along a row too. */
    bool exl3 = t->form == KD_FORM_EXL3 || t->form == KD_FORM_DOCUMENT ||
                (t->form == KD_FORM_STORED && (bits < 4.24 || bits > 4.26));
    b->cut_block = exl3 ? 128 : 32;
    b->real_bpw = bits;
    b->token_expert = (double)b->routed * (double)m->cfg.topk / (double)m->cfg.experts;
    return 0;
}
