#include "convert/rates.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/show.h"
#include "fmt/exl3_file.h"
#include "model/k3_names.h"
#include "model/k3_quant.h"
#include "num/mxfp4_block.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "...layers.12.rest": the layer's number and the rest, or -1 for names outside the text model. */
static int32_t layer_of(const char *name, const char **rest)
{
    *rest = name;
    if (!strncmp(name, "vision_tower.", 13) || !strncmp(name, "mm_projector.", 13))
        return -1;
    const char *at = strstr(name, "layers.");
    if (!at || (at != name && at[-1] != '.') || !isdigit((unsigned char)at[7]))
        return -1;
    char *end;
    long n = strtol(at + 7, &end, 10);
    if (*end != '.' || n >= KD_K3_LAYERS_MAX)
        return -1;
    *rest = end + 1;
    return (int32_t)n;
}

static int expert_of(const char *rest, struct kd_out_tensor *t)
{
    int expert, used = 0;
    char w;
    if (sscanf(rest, "block_sparse_moe.experts.%d.w%c%n", &expert, &w, &used) != 2 || !used)
        return 0;
    t->expert = expert;
    t->proj = w == '1' ? KD_PROJ_W1 : w == '3' ? KD_PROJ_W3 : KD_PROJ_W2;
    return w >= '1' && w <= '3';
}

/* With or without "language_model." before it. */
static bool is_head(const char *name)
{
    static const char head[] = "lm_head.weight";
    return !strcmp(name, head) || kd_name_ends(name, head);
}

/* The rate wished for a trunk tensor of this name, 0 for one that stays as stored. */
static unsigned trunk_rate(const struct kd_rate_wish *w, const struct kd_out_tensor *t,
                           const char *rest)
{
    if (t->layer < 0)
        return is_head(rest) && w->head_bpw > 0 ? kd_k3_rate16(w->head_bpw) : 0;
    return kd_k3_trunk_rate16(rest, strlen(rest) - strlen(".weight"), w->trunk_bpw);
}

/* Shape and dtype: the header's, or what the config says where only the index is there. */
static int take_shape(struct kd_out_tensor *t, const struct kd_tensor *s,
                      const struct kd_k3_map *map, struct kd_err *err)
{
    memset(t, 0, sizeof *t);
    t->src = s;
    if (s->rank >= 0) {
        memcpy(t->dtype_name, s->dtype_name, sizeof t->dtype_name);
        memcpy(t->shape, s->shape, sizeof t->shape);
        t->rank = s->rank;
        t->src_bytes = s->bytes;
        return 0;
    }
    struct kd_k3_name name;
    if (!kd_k3_name_parse(map, s->name, &name) || name.rank < 0 || !name.dtype)
        return kd_fail(err, KD_EINVAL,
                       "'%s': its shard is not there and the config does not tell its shape",
                       s->name);
    snprintf(t->dtype_name, sizeof t->dtype_name, "%s", name.dtype);
    t->rank = name.rank;
    t->src_bytes = !strcmp(name.dtype, "F32") ? 4 : !strcmp(name.dtype, "BF16") ? 2 : 1;
    for (int d = 0; d < name.rank; d++) {
        t->shape[d] = name.shape[d];
        t->src_bytes *= name.shape[d];
    }
    return 0;
}

/* Decides one source tensor. Returns 0 when it has no entry of its own: the weight_scale of an
 * expert's matrix that is quantized. Where the matrix is kept its scales are kept beside it. */
static int classify(struct kd_out_tensor *t, const struct kd_rate_wish *wish)
{
    const char *rest;
    const struct kd_tensor *s = t->src;
    t->layer = layer_of(s->name, &rest);
    t->expert = -1;
    t->bytes = t->src_bytes;
    bool packed = kd_name_ends(s->name, ".weight_packed");
    bool expert = t->layer >= 0 && expert_of(rest, t);
    bool keep = wish->experts_bpw <= 0 && wish->size_bytes <= 0;
    if (expert && t->rank == 2 && kd_name_ends(s->name, ".weight_scale"))
        return keep || !kd_k3_pads_well(t->shape[0], t->shape[1] * KD_MXFP4_GROUP);
    if (t->rank != 2 || (!packed && !kd_name_ends(s->name, ".weight")))
        return 1;
    t->rows = t->shape[0];
    t->cols = t->shape[1] * (packed ? 2 : 1);
    unsigned rate = expert   ? (keep ? 0 : (unsigned)KD_RATE16_MIN)
                    : packed ? 0
                             : trunk_rate(wish, t, rest);
    if (rate && !kd_k3_pads_well(t->rows, t->cols)) {
        t->kept_for_padding = true;
        rate = 0;
    }
    t->quantized = rate != 0;
    t->rate16 = rate;
    return 1;
}

/* Readers want every tensor on a multiple of its element: wide ones first, then the quantized
 * groups, whose sizes are multiples of four bytes, then 16-bit ones and bytes. */
static int alignment_class(const struct kd_out_tensor *t)
{
    static const char *const narrow[] = {"BF16", "F16", "I16", "U16"};
    if (t->quantized)
        return 1;
    if (!strcmp(t->dtype_name, "F32") || strstr(t->dtype_name, "64") || strstr(t->dtype_name, "32"))
        return 0;
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        if (!strcmp(t->dtype_name, narrow[i]))
            return 2;
    return 3;
}

static int order(const void *pa, const void *pb)
{
    const struct kd_out_tensor *a = pa, *b = pb;
    /* Layers ascending, then the globals, then vision. */
    int32_t sa = a->shard, sb = b->shard;
    if (sa != sb)
        return sa < sb ? -1 : 1;
    int ca = alignment_class(a), cb = alignment_class(b);
    if (ca != cb)
        return ca < cb ? -1 : 1;
    if (a->expert != b->expert)
        return a->expert < b->expert ? -1 : 1;
    if (a->expert >= 0 && a->quantized && b->quantized && a->proj != b->proj)
        return a->proj < b->proj ? -1 : 1;
    return strcmp(a->src->name, b->src->name);
}

static int make_key(struct kd_out_tensor *t, char **at)
{
    const char *name = t->src->name;
    size_t n = strlen(name);
    t->key = *at;
    memcpy(t->key, name, n + 1);
    if (t->quantized)
        t->key[n - (kd_name_ends(name, ".weight_packed") ? 14 : 7)] = 0;
    *at += n + 1;
    return 0;
}

/* Expert rates so that they sum to `steps` sixteenths: neighbours spread evenly in plan order. */
static void spread(struct kd_rates *r, int64_t steps)
{
    int64_t n = r->expert_tensors > 0 ? r->expert_tensors : 1, base = steps / n, extra = steps % n,
            i = 0;
    for (int64_t k = 0; k < r->count; k++) {
        struct kd_out_tensor *t = &r->t[k];
        if (t->expert < 0 || !t->quantized)
            continue;
        t->rate16 = (unsigned)(base + ((i + 1) * extra / n - i * extra / n));
        i++;
    }
    r->expert_steps = steps;
}

/* Whole bits, equal over a layer's experts for each projection; `steps` counts sixteenths. */
static void spread_uniform(struct kd_rates *r, const struct kd_k3_cfg *cfg, int64_t steps)
{
    int64_t n = r->expert_tensors, groups = (cfg->layers - cfg->dense_layers) * KD_PROJ_COUNT;
    double bits = n ? (double)steps / 16 / (double)n : 0;
    int64_t base = (int64_t)floor(bits + 1e-9),
            extra = (int64_t)floor((bits - (double)base) * (double)groups + 1e-9);
    r->expert_steps = 0;
    for (int64_t k = 0; k < r->count; k++) {
        struct kd_out_tensor *t = &r->t[k];
        if (t->expert < 0 || !t->quantized)
            continue;
        int64_t i = (t->layer - cfg->dense_layers) * KD_PROJ_COUNT + (int64_t)t->proj;
        t->rate16 = 16 * (unsigned)(base + ((i + 1) * extra / groups - i * extra / groups));
        r->expert_steps += t->rate16;
    }
}

int kd_rates_shard_plan(const struct kd_rates *r, int32_t shard, struct kd_st_plan *p,
                        struct kd_err *err)
{
    kd_st_plan_init(p);
    for (int64_t i = r->shard_first[shard]; i < r->shard_first[shard + 1]; i++) {
        const struct kd_out_tensor *t = &r->t[i];
        int rc;
        if (t->quantized)
            rc = kd_exl3_plan(p, t->key, kd_exl3_pad(t->cols), kd_exl3_pad(t->rows),
                              kd_rate_from16(t->rate16), r->wish.cb, err);
        else
            rc = kd_st_plan_add(p, t->key, t->dtype_name, t->rank, t->shape, t->src_bytes, err);
        if (rc) {
            kd_st_plan_release(p);
            return -1;
        }
    }
    return 0;
}

/* Rates for that many steps, and every tensor's bytes. */
static void apply(struct kd_rates *r, const struct kd_k3_cfg *cfg, int64_t steps)
{
    if (r->wish.uniform_k)
        spread_uniform(r, cfg, steps);
    else
        spread(r, steps);
    for (int64_t i = 0; i < r->count; i++)
        if (r->t[i].quantized)
            r->t[i].bytes = kd_exl3_bytes(kd_exl3_pad(r->t[i].cols), kd_exl3_pad(r->t[i].rows),
                                          kd_rate_from16(r->t[i].rate16), r->wish.cb);
}

/* The same, and the files' sizes with their headers. */
static int set_steps(struct kd_rates *r, const struct kd_k3_cfg *cfg, int64_t steps,
                     struct kd_err *err)
{
    apply(r, cfg, steps);
    r->total_bytes = 0;
    for (int32_t s = 0; s < r->shard_count; s++) {
        struct kd_st_plan p;
        if (kd_rates_shard_plan(r, s, &p, err))
            return -1;
        r->shard_bytes[s] = kd_st_plan_file_bytes(&p);
        r->total_bytes += r->shard_bytes[s];
        kd_st_plan_release(&p);
    }
    return 0;
}

static int64_t data_bytes(const struct kd_rates *r)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < r->count; i++)
        sum += r->t[i].bytes;
    return sum;
}

/* The most steps from lo to hi whose tensors take at most `bytes`. */
static int64_t most_steps(struct kd_rates *r, const struct kd_k3_cfg *cfg, int64_t lo, int64_t hi,
                          int64_t bytes)
{
    while (lo < hi) {
        int64_t mid = lo + (hi - lo + 1) / 2;
        apply(r, cfg, mid);
        if (data_bytes(r) <= bytes)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static int too_small(const struct kd_rates *r, struct kd_err *err)
{
    char asked[32], takes[32], least[32];
    kd_show_bytes(asked, sizeof asked, r->wish.size_bytes);
    kd_show_bytes(takes, sizeof takes, r->total_bytes);
    kd_size_text(least, sizeof least, r->total_bytes);
    return kd_fail(err, KD_EUSAGE,
                   "--size: %s is too small: at 1 bit for the experts the model takes %s, so "
                   "--size %s is the least (or lower --trunk-bpw or --head-bpw)",
                   asked, takes, least);
}

/* The largest number of steps whose shards fit into size_bytes. Headers are long to make (a masked
 * rate has one more entry than a whole one), so they are made for a few candidates only: each guess
 * takes the headers of the one before, then single steps decide. */
static int fit(struct kd_rates *r, const struct kd_k3_cfg *cfg, struct kd_err *err)
{
    int64_t lo = KD_RATE16_MIN * r->expert_tensors, hi = KD_RATE16_MAX * r->expert_tensors, at = lo;
    if (set_steps(r, cfg, lo, err))
        return -1;
    if (r->total_bytes > r->wish.size_bytes)
        return too_small(r, err);
    for (int guess = 0; guess < 3; guess++) {
        at = most_steps(r, cfg, lo, hi, r->wish.size_bytes - (r->total_bytes - data_bytes(r)));
        if (set_steps(r, cfg, at, err))
            return -1;
    }
    while (at > lo && r->total_bytes > r->wish.size_bytes)
        if (set_steps(r, cfg, --at, err))
            return -1;
    for (int more = 0; more < 4 && at < hi && r->total_bytes <= r->wish.size_bytes; more++)
        if (set_steps(r, cfg, ++at, err))
            return -1;
    return r->total_bytes > r->wish.size_bytes ? set_steps(r, cfg, at - 1, err) : 0;
}

static int assign_shards(struct kd_rates *r, const struct kd_k3_cfg *cfg, struct kd_err *err)
{
    bool other = false;
    for (int64_t i = 0; i < r->count; i++) {
        struct kd_out_tensor *t = &r->t[i];
        bool vision = !strncmp(t->src->name, "vision_tower.", 13) ||
                      !strncmp(t->src->name, "mm_projector.", 13);
        if (t->layer >= cfg->layers)
            return kd_fail(err, KD_ECORRUPT,
                           "tensor '%s' is of layer %d, the config has %lld layers", t->src->name,
                           t->layer, (long long)cfg->layers);
        t->shard = t->layer >= 0 ? t->layer : (int32_t)cfg->layers + (vision ? 1 : 0);
        other |= vision;
    }
    r->shard_count = (int32_t)cfg->layers + 1 + (other ? 1 : 0);
    if (kd_mem_zero(&r->shard_first, r->shard_count + 1, sizeof *r->shard_first, "shards", err) ||
        kd_mem_zero(&r->shard_bytes, r->shard_count, sizeof *r->shard_bytes, "shards", err))
        return -1;
    qsort(r->t, (size_t)r->count, sizeof *r->t, order);
    for (int64_t i = 0; i < r->count; i++)
        r->shard_first[r->t[i].shard + 1] = i + 1;
    for (int32_t s = 0; s < r->shard_count; s++)
        if (r->shard_first[s + 1] < r->shard_first[s])
            r->shard_first[s + 1] = r->shard_first[s];
    return 0;
}

/* Where the tensors come from: a checkpoint, or a list of names. */
struct names {
    const struct kd_ckpt *ck;
    const struct kd_tensor *list;
    int64_t count;
    const struct kd_json *config;
};

static int collect(struct kd_rates *r, const struct names *from, const struct kd_k3_cfg *cfg,
                   struct kd_err *err)
{
    struct kd_k3_map map;
    int64_t n = from->count, name_bytes = 0;
    if (kd_k3_map_init(&map, cfg, from->config, err) ||
        kd_mem_zero(&r->t, n, sizeof *r->t, "tensor list", err))
        return -1;
    for (int64_t i = 0; i < n; i++) {
        const struct kd_tensor *s = from->ck ? kd_ckpt_at(from->ck, i) : &from->list[i];
        if (take_shape(&r->t[r->count], s, &map, err))
            return -1;
        if (!classify(&r->t[r->count], &r->wish))
            continue;
        name_bytes += (int64_t)strlen(s->name) + 1;
        r->count++;
    }
    char *at;
    if (kd_mem_new(&r->names, name_bytes, 1, "tensor names", err))
        return -1;
    at = r->names;
    for (int64_t i = 0; i < r->count; i++) {
        make_key(&r->t[i], &at);
        r->expert_tensors += r->t[i].expert >= 0 && r->t[i].quantized;
    }
    return 0;
}

static int plan_of(struct kd_rates *r, const struct names *from, const struct kd_k3_cfg *cfg,
                   const struct kd_rate_wish *wish, struct kd_err *err)
{
    memset(r, 0, sizeof *r);
    r->wish = *wish;
    if (collect(r, from, cfg, err) || assign_shards(r, cfg, err))
        goto fail;
    if (wish->size_bytes > 0) {
        if (fit(r, cfg, err))
            goto fail;
        return 0;
    }
    /* The average is met from below: 2.3 bits are 36.8 sixteenths a tensor. */
    if (set_steps(r, cfg, (int64_t)floor(wish->experts_bpw * 16 * (double)r->expert_tensors + 1e-6),
                  err))
        goto fail;
    return 0;
fail:
    kd_rates_release(r);
    return -1;
}

int kd_rates_plan(struct kd_rates *r, const struct kd_ckpt *ck, const struct kd_k3_cfg *cfg,
                  const struct kd_rate_wish *wish, struct kd_err *err)
{
    struct names from = {.ck = ck, .count = kd_ckpt_count(ck), .config = kd_ckpt_config(ck)};
    return plan_of(r, &from, cfg, wish, err);
}

int kd_rates_plan_names(struct kd_rates *r, const struct kd_tensor *list, int64_t count,
                        const struct kd_json *config, const struct kd_k3_cfg *cfg,
                        const struct kd_rate_wish *wish, struct kd_err *err)
{
    struct names from = {.list = list, .count = count, .config = config};
    return plan_of(r, &from, cfg, wish, err);
}

int kd_rates_keep_experts(struct kd_rates *r, int32_t layer, const bool *keep, struct kd_err *err)
{
    struct kd_st_plan p;
    int64_t at = 0, i = 0;
    for (int32_t s = 0; s < r->shard_count; s++) {
        int64_t end = r->shard_first[s + 1];
        r->shard_first[s] = at;
        for (; i < end; i++)
            if (r->t[i].layer != layer || r->t[i].expert < 0 || keep[r->t[i].expert])
                r->t[at++] = r->t[i];
            else
                r->expert_tensors -= r->t[i].quantized;
    }
    r->count = r->shard_first[r->shard_count] = at;
    if (kd_rates_shard_plan(r, layer, &p, err))
        return -1;
    r->total_bytes -= r->shard_bytes[layer];
    r->shard_bytes[layer] = kd_st_plan_file_bytes(&p);
    r->total_bytes += r->shard_bytes[layer];
    kd_st_plan_release(&p);
    return 0;
}

void kd_rates_release(struct kd_rates *r)
{
    kd_mem_free(r->t);
    kd_mem_free(r->names);
    kd_mem_free(r->shard_first);
    kd_mem_free(r->shard_bytes);
    memset(r, 0, sizeof *r);
}

void kd_rates_shard_name(const struct kd_rates *r, int32_t shard, char *out, size_t size)
{
    snprintf(out, size, "model-%05d-of-%06d.safetensors", shard + 1, r->shard_count);
}

static char class_of(const struct kd_out_tensor *t)
{
    if (!t->quantized)
        return 's';
    return t->expert >= 0 ? 'e' : t->layer < 0 ? 'h' : 't';
}

struct kd_rate_sum kd_rates_sum(const struct kd_rates *r, char which)
{
    struct kd_rate_sum s = {0};
    double bits = 0;
    for (int64_t i = 0; i < r->count; i++) {
        const struct kd_out_tensor *t = &r->t[i];
        if (class_of(t) != which)
            continue;
        s.tensors++;
        s.bytes += t->bytes;
        if (!t->quantized) {
            int64_t n = 1;
            for (int d = 0; d < t->rank; d++)
                n *= t->shape[d];
            s.weights += n;
            continue;
        }
        int64_t padded = kd_exl3_pad(t->rows) * kd_exl3_pad(t->cols);
        s.weights += t->rows * t->cols;
        s.trellis_weights += padded;
        bits += (double)padded * t->rate16 / 16;
    }
    s.k = s.trellis_weights ? bits / (double)s.trellis_weights : 0;
    s.real = s.weights ? 8.0 * (double)s.bytes / (double)s.weights : 0;
    return s;
}
