/* What becomes of each tensor, and where its bytes go. */
#include "slice/slice_int.h"

#include "base/hash.h"
#include "base/mem.h"
#include "fmt/gguf_block.h"

#include <string.h>

enum { GAP_BYTES = 1 << 20, REQUEST_BYTES = 16 << 20, NAME_SIZE = KD_ST_NAME_MAX + 64 };

/* "PREFIX N REST": where a number stands in a name. */
struct number {
    int64_t value; /* -1: none */
    size_t at, digits;
};

static struct number number_after(const char *name, const char *prefix)
{
    struct number n = {.value = -1};
    const char *at = strstr(name, prefix);
    if (!at)
        return n;
    at += strlen(prefix);
    n.digits = strspn(at, "0123456789");
    if (!n.digits || n.digits > 9 || at[n.digits] != '.')
        return n;
    n.at = (size_t)(at - name);
    n.value = 0;
    for (size_t i = 0; i < n.digits; i++)
        n.value = n.value * 10 + (at[i] - '0');
    return n;
}

static int put_name(struct kd_slice *s, struct kd_slice_item *it, const char *name,
                    struct number layer, struct number expert, int64_t expert_at,
                    struct kd_err *err)
{
    char out[NAME_SIZE];
    bool fresh;
    size_t n = 0, at = 0;
    out[0] = 0;
    if (layer.value >= 0) {
        n += (size_t)snprintf(out, sizeof out, "%.*s%d", (int)layer.at, name, it->layer_at);
        at = layer.at + layer.digits;
    }
    if (expert.value >= 0) {
        n += (size_t)snprintf(out + n, sizeof out - n, "%.*s%lld", (int)(expert.at - at), name + at,
                              (long long)expert_at);
        at = expert.at + expert.digits;
    }
    n += (size_t)snprintf(out + n, sizeof out - n, "%s", name + at);
    if (kd_names_add(&s->names, out, n, &it->name, &fresh, err))
        return -1;
    return fresh ? 0 : kd_fail(err, KD_ECORRUPT, "two tensors would be called '%s'", out);
}

/* Whether a matrix is converted, as llama.cpp's quantizer has it: of rank 2 and more, named weight,
 * no norm, router or convolution. */
static int choose_type(struct kd_slice *s, const struct kd_head_tensor *t, struct kd_slice_item *it,
                       struct kd_err *err)
{
    static const char *const never[] = {"norm", "ffn_gate_inp", "ssm_conv1d", "res_score"};
    size_t n = strlen(t->name);
    it->to = -1;
    if (s->o.requant < 0 || t->type == s->o.requant || t->rank < 2 || n < 7 ||
        strcmp(t->name + n - 7, ".weight") != 0 ||
        (s->o.keep_head && !strcmp(t->name, "output.weight")))
        return 0;
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        if (strstr(t->name, never[i]))
            return 0;
    int64_t ne[KD_GGUF_RANK_MAX];
    for (int i = 0; i < it->rank; i++)
        ne[i] = it->shape[it->rank - 1 - i];
    if (ne[0] % kd_gguf_type_info(s->o.requant)->elems) {
        s->f.rows_unfit++;
        return 0;
    }
    if (!kd_gguf_format(t->type))
        return kd_fail(err, KD_ENOTSUP, "tensor '%s': %s holds no weights to convert", t->name,
                       t->dtype);
    it->to = s->o.requant;
    s->f.converted++;
    s->f.converted_from += it->bytes;
    if (kd_gguf_bytes(it->to, it->rank, ne, &it->bytes, err))
        return kd_wrap(err, "tensor '%s'", t->name);
    s->f.converted_to += it->bytes;
    return 0;
}

/* A tensor whose outermost dimension counts experts loses some of them. */
static int cut_axis(struct kd_slice *s, const struct kd_head_tensor *t, struct kd_slice_item *it,
                    struct kd_err *err)
{
    int64_t experts = s->h->cfg.experts;
    if (t->rank < 1 || t->shape[0] != experts || t->bytes % experts ||
        (t->type >= 0 && t->rank == 1 && kd_gguf_type_info(t->type)->elems > 1))
        return kd_fail(err, KD_ECORRUPT,
                       "tensor '%s' does not have %lld experts that can be told "
                       "apart",
                       t->name, (long long)experts);
    if (s->keep.expert_count == experts)
        return 0;
    it->fate = KD_FATE_CUT;
    it->shape[0] = s->keep.expert_count;
    it->bytes = t->bytes / experts * s->keep.expert_count;
    return 0;
}

static int decide_one(struct kd_slice *s, int64_t i, struct kd_err *err)
{
    const struct kd_heads *h = s->h;
    const struct kd_head_tensor *t = &h->t[i];
    struct kd_slice_item *it = &s->items[i];
    struct kd_k3_name n;
    struct number layer = number_after(t->name, h->gguf ? "blk." : "model.layers."), expert = layer;
    int64_t expert_at = -1;
    it->name = it->layer_at = it->to = -1;
    if (!kd_k3_name_parse(&h->map, t->name, &n))
        return kd_fail(err, KD_ENOTSUP,
                       "tensor '%s' is no part of a Kimi K3 as it is known here: what to do with "
                       "it would be a guess",
                       t->name);
    bool vision = n.kind == KD_K3_VISION || n.kind == KD_K3_PROJECTOR;
    layer.value = vision ? -1 : layer.value;
    expert.value = -1;
    if (layer.value >= 0 && (it->layer_at = (int32_t)kd_keep_layer(&s->keep, layer.value)) < 0)
        return 0;
    if (n.kind == KD_K3_ROUTED && !h->gguf) {
        expert = number_after(t->name, ".experts.");
        if (expert.value < 0 ||
            (expert_at = kd_keep_expert(&s->keep, it->layer_at, expert.value)) < 0)
            return 0;
    }
    it->fate = KD_FATE_COPY;
    it->bytes = t->bytes;
    it->rank = t->rank;
    memcpy(it->shape, t->shape, sizeof it->shape);
    if (n.kind == KD_K3_ROUTER && n.part != KD_K3_PLAIN)
        return kd_fail(err, KD_ENOTSUP, "tensor '%s': a quantized router cannot be cut", t->name);
    if ((n.kind == KD_K3_ROUTER || (n.kind == KD_K3_ROUTED && h->gguf)) && cut_axis(s, t, it, err))
        return -1;
    if (h->gguf && choose_type(s, t, it, err))
        return -1;
    return put_name(s, it, t->name, layer, expert, expert_at, err);
}

int kd_slice_decide(struct kd_slice *s, struct kd_err *err)
{
    struct kd_slice_figures *f = &s->f;
    if (kd_mem_zero(&s->items, s->h->count, sizeof *s->items, "tensors", err))
        return -1;
    for (int64_t i = 0; i < s->h->count; i++) {
        if (decide_one(s, i, err))
            return -1;
        const struct kd_slice_item *it = &s->items[i];
        f->copied += it->fate == KD_FATE_COPY;
        f->sliced += it->fate == KD_FATE_CUT;
        f->dropped += it->fate == KD_FATE_DROP;
        int64_t params = kd_head_params(s->h, &s->h->t[i]);
        f->params += params;
        if (it->fate == KD_FATE_CUT)
            params = params / s->h->cfg.experts * s->keep.expert_count;
        f->params_kept += it->fate == KD_FATE_DROP ? 0 : params;
    }
    f->tensors = s->h->count;
    f->out_tensors = f->copied + f->sliced;
    return 0;
}

void kd_slice_span_add(struct kd_slice *s, int64_t i, int32_t out, int64_t out_at)
{
    const struct kd_head_tensor *t = &s->h->t[i];
    const struct kd_slice_item *it = &s->items[i];
    struct kd_slice_span sp = {.part = t->part, .out = out, .tensor = (int32_t)i, .to = it->to};
    int64_t slabs = it->fate == KD_FATE_CUT ? s->keep.expert_count : 1;
    int64_t of = it->fate == KD_FATE_CUT ? s->h->cfg.experts : 1;
    sp.unit = sp.out_unit = 1;
    if (it->to >= 0) { /* whole rows */
        const struct kd_gguf_type_info *from = kd_gguf_type_info(t->type),
                                       *to = kd_gguf_type_info(it->to);
        int64_t row = it->shape[it->rank - 1];
        sp.unit = row / from->elems * from->bytes;
        sp.out_unit = row / to->elems * to->bytes;
    }
    sp.bytes = t->bytes / of;
    for (int64_t e = 0; e < slabs; e++) {
        int64_t id =
            it->fate == KD_FATE_CUT ? s->keep.experts[it->layer_at * s->keep.expert_count + e] : 0;
        sp.begin = t->begin + id * sp.bytes;
        sp.out_at = out_at + e * (it->bytes / slabs);
        kd_buf_add(&s->spans, &sp, sizeof sp);
    }
}

/* Bytes of the source that neither heads nor requests touch. */
static int64_t untouched_bytes(const struct kd_slice *s)
{
    int64_t left = s->h->file_bytes;
    for (int i = 0; i < s->h->part_count; i++)
        left -= s->h->parts[i].read_bytes;
    for (int64_t i = 0; i < s->plan.request_count; i++) {
        const struct kd_slice_request *r = &s->plan.r[i];
        int64_t read = s->h->parts[r->part].read_bytes, end = r->begin + r->bytes;
        int64_t from = r->begin > read ? r->begin : read;
        left -= end > from ? end - from : 0;
    }
    return left;
}

/* The spans as requests, and the one hash of everything that decides the output's bytes. */
static int finish_plan(struct kd_slice *s, struct kd_err *err)
{
    const struct kd_heads *h = s->h;
    struct kd_slice_limits limits = s->o.limits;
    struct kd_sha256 sum;
    int64_t *sizes;
    limits.gap_bytes = limits.gap_bytes ? limits.gap_bytes : GAP_BYTES;
    limits.request_bytes = limits.request_bytes ? limits.request_bytes : REQUEST_BYTES;
    if (kd_buf_ok(&s->spans, "spans", err) ||
        kd_mem_new(&sizes, h->part_count, sizeof *sizes, "parts", err))
        return -1;
    for (int i = 0; i < h->part_count; i++)
        sizes[i] = h->parts[i].bytes;
    int rc = kd_slice_spans_make(&s->plan, (const struct kd_slice_span *)(void *)s->spans.data,
                                 (int64_t)(s->spans.size_bytes / sizeof(struct kd_slice_span)),
                                 sizes, h->part_count, &limits, err) ||
             kd_sha256_init(&sum, err);
    kd_mem_free(sizes);
    kd_buf_release(&s->spans);
    if (rc)
        return -1;
    kd_sha256_add(&sum, s->plan.hash, 64);
    for (int64_t i = 0; i < s->file_count; i++) {
        const struct kd_slice_file *f = &s->files[i];
        kd_sha256_add(&sum, f->name, strlen(f->name) + 1);
        kd_sha256_add(&sum, f->head.data ? f->head.data : "", f->head.size_bytes);
        s->f.out_bytes += f->bytes;
    }
    kd_sha256_add(&sum, s->config.data ? s->config.data : "", s->config.size_bytes);
    kd_sha256_hex(&sum, s->hash);
    s->f.plan_hash = s->hash;
    s->f.out_files = s->file_count;
    s->f.requests = s->plan.request_count;
    s->f.wanted_bytes = s->plan.wanted_bytes;
    s->f.gap_bytes = s->plan.gap_bytes;
    s->f.untouched_bytes = untouched_bytes(s);
    return 0;
}

static void figures(struct kd_slice *s)
{
    struct kd_slice_figures *f = &s->f;
    f->gguf = s->h->gguf;
    f->blocks_whole = s->keep.blocks_whole;
    f->everything = s->keep.all && s->o.requant < 0;
    f->layers = s->h->cfg.layers;
    f->layers_kept = s->keep.layer_count;
    f->experts = s->h->cfg.experts;
    f->experts_kept = s->keep.expert_count;
    f->used = s->h->cfg.topk;
    f->used_now = s->keep.used;
    f->source_bytes = s->h->file_bytes;
    for (int i = 0; i < s->h->part_count; i++)
        f->head_bytes += s->h->parts[i].read_bytes;
}

static int plan_all(struct kd_slice *s, struct kd_err *err)
{
    const struct kd_heads *h = s->h;
    if (!h->k3) {
        *err = h->why;
        return kd_wrap(err, "only a Kimi K3 can be sliced");
    }
    if (kd_k3_cfg_check(&h->cfg, h->config, err) ||
        kd_keep_make(&s->keep, &h->cfg, &s->o.keep, err))
        return -1;
    if (s->o.requant >= 0 && !h->gguf)
        return kd_fail(err, KD_EUSAGE,
                       "only a GGUF is requantized: slice first, then convert "
                       "--to gguf and slice that");
    figures(s);
    if (kd_slice_decide(s, err))
        return -1;
    if (!s->f.everything &&
        kd_slice_record_make(&s->record, h, &s->keep,
                             s->f.converted ? kd_gguf_type_info(s->o.requant)->name : NULL, err))
        return -1;
    return (h->gguf ? kd_slice_lay_gguf(s, err) : kd_slice_lay_st(s, err)) || finish_plan(s, err)
               ? -1
               : 0;
}

int kd_slice_open(struct kd_slice **out, struct kd_source *src, const struct kd_slice_opts *o,
                  struct kd_err *err)
{
    struct kd_slice *s;
    *out = NULL;
    if (kd_mem_zero(&s, 1, sizeof *s, "slice", err))
        return -1;
    s->o = *o;
    kd_names_init(&s->names);
    kd_buf_init(&s->spans, (size_t)1 << 31);
    kd_buf_init(&s->config, 64 << 20);
    kd_buf_init(&s->index, (size_t)1 << 30);
    if (kd_heads_open(&s->h, src, err) || plan_all(s, err)) {
        kd_slice_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

void kd_slice_close(struct kd_slice *s)
{
    if (!s)
        return;
    for (int64_t i = 0; i < s->file_count; i++)
        kd_buf_release(&s->files[i].head);
    kd_mem_free(s->files);
    kd_mem_free(s->items);
    kd_names_release(&s->names);
    kd_buf_release(&s->spans);
    kd_buf_release(&s->config);
    kd_buf_release(&s->index);
    kd_slice_spans_release(&s->plan);
    kd_slice_record_release(&s->record);
    kd_keep_release(&s->keep);
    kd_heads_close(s->h);
    kd_mem_free(s);
}

const struct kd_slice_figures *kd_slice_figures(const struct kd_slice *s)
{
    return &s->f;
}

const char *kd_slice_file(const struct kd_slice *s, int64_t i, int64_t *bytes)
{
    *bytes = s->files[i].bytes;
    return s->files[i].name;
}
