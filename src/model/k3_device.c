/* The forward pass on a device: the stages of k3_layer.c as launches on one stream. */
#include "model/k3_device.h"

#include "base/mem.h"

#include <string.h>

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

_Static_assert((int)KD_K3_DEVICE_FEW == (int)KD_GPU_ROWS, "model/k3.h tells it without gpu/");
enum { BATCH_ROW = sizeof(struct kd_gpu_k3_seg) + 3 * sizeof(int32_t) };

static int open_parts(struct kd_k3_device *d, struct kd_err *err)
{
    void *batch, *host;
    if (kd_gpu_open(&d->g, d->index, err) || kd_k3_device_fits(d->m, err) ||
        kd_mem_zero(&d->layers, d->layer_count, sizeof *d->layers, "layers", err))
        return -1;
    kd_k3_device_place_states(d);
    if (kd_k3_device_load(d, err) ||
        kd_gpu_alloc(d->g, &d->work_memory, kd_k3_device_work_bytes(d), "work space", err) ||
        kd_gpu_alloc(d->g, &batch, d->rows_max * BATCH_ROW, "a batch", err))
        return -1;
    d->batch = batch;
    if (kd_gpu_host_alloc(d->g, &host, d->rows_max * BATCH_ROW, "a batch", err))
        return -1;
    d->batch_host = host;
    kd_k3_device_work_place(d);
    return 0;
}

static bool plain_kv_b(const struct kd_k3_model *m)
{
    for (int64_t l = 0; l < m->cfg.layers; l++)
        if (!kd_k3_device_plain_kv_b(&m->layers[l]))
            return false;
    return true;
}

int kd_k3_device_open(struct kd_k3_device **out, const struct kd_k3_model *m, int index,
                      bool checks, struct kd_err *err)
{
    struct kd_k3_device *d;
    *out = NULL;
    if (kd_mem_zero(&d, 1, sizeof *d, "a device", err))
        return -1;
    d->m = m;
    d->layer_count = m->cfg.layers;
    d->context = m->cfg.context;
    d->index = index;
    d->cls = checks ? KD_GPU_VALUES : KD_GPU_FAST;
    d->fast = !checks && plain_kv_b(m);
    if (open_parts(d, err)) {
        kd_k3_device_close(d);
        return -1;
    }
    *out = d;
    return 0;
}

void kd_k3_device_close(struct kd_k3_device *d)
{
    if (!d)
        return;
    for (int i = 0; i < KD_K3_DEVICE_GRAPHS; i++)
        kd_gpu_graph_free(d->graphs[i].graph);
    /* The first layer's experts lend the others their work space. */
    for (int64_t l = d->layers ? d->layer_count - 1 : -1; l >= 0; l--) {
        kd_gpu_experts_close(d->layers[l].experts);
        kd_gpu_release(d->g, d->layers[l].experts_memory);
        kd_gpu_release(d->g, d->layers[l].memory);
    }
    kd_k3_device_states_release(d);
    if (d->g) {
        kd_gpu_release(d->g, d->ends_memory);
        kd_gpu_release(d->g, d->work_memory);
        kd_gpu_release(d->g, d->batch);
        kd_gpu_host_release(d->g, d->batch_host);
    }
    kd_mem_free(d->layers);
    kd_gpu_close(d->g);
    kd_mem_free(d);
}

/* A pass under way. */
struct run {
    struct kd_k3_device_at at;
    const struct kd_k3_device_pass *p;
    const int32_t *pick;      /* on the device: the wanted rows */
    int64_t used;             /* experts a token */
    struct kd_k3_stream seen; /* for after_layer */
};

static int moe(const struct run *r, int64_t l, struct kd_err *err)
{
    const struct kd_k3_device *d = r->at.d;
    const struct kd_k3_device_work *w = &d->w;
    const struct kd_k3_cfg *c = &d->m->cfg;
    const struct kd_gpu_experts_call call = {.x = w->latent,
                                             .ldx = c->latent,
                                             .T = r->at.b.rows,
                                             .ids = w->ids,
                                             .weight = w->weight,
                                             .top = c->topk,
                                             .beta = c->situ_beta,
                                             .linear = c->situ_linear,
                                             .y = w->u,
                                             .ldy = c->latent,
                                             .norm = d->layers[l].routed_norm,
                                             .eps = c->eps};
    if (kd_k3_device_route(&r->at, l, r->used, r->p->o ? r->p->o->expert_mass : 0, err))
        return -1;
    kd_gpu_account_at(d->g, "experts");
    return kd_gpu_experts_mul(d->layers[l].experts, d->cls, &call, err);
}

static int ffn(const struct run *r, int64_t l, struct kd_err *err)
{
    return kd_k3_device_mul(&r->at, l, KD_K3_FFN_IN, err) ||
                   (r->at.d->m->layers[l].moe && moe(r, l, err)) ||
                   kd_k3_device_mlp(&r->at, l, err) ||
                   kd_k3_device_mul(&r->at, l, KD_K3_FFN_OUT, err)
               ? -1
               : 0;
}

/* What the feed-forward part of a layer left to add; nothing before layer 0. */
static struct kd_gpu_k3_mix after(const struct run *r, int64_t layer)
{
    const struct kd_k3_layer *L = layer >= 0 ? &r->at.d->m->layers[layer] : NULL;
    return (struct kd_gpu_k3_mix){
        .add = L ? r->at.d->w.f : NULL,
        .more = L && L->moe && L->gate.type != KD_MAT_NONE ? r->at.d->w.shared : NULL};
}

/* Shows the stream after a layer: the device adds its last part only with the next mix. */
static int show_stream(struct run *r, int64_t l, struct kd_err *err)
{
    const struct kd_k3_device_work *w = &r->at.d->w;
    const struct kd_gpu_k3_mix add = after(r, l);
    struct kd_k3_stream *s = &r->seen;
    int64_t n = r->at.b.rows * s->hidden;
    float *f = s->bank + r->at.banks * n, *g = f + n;
    if (kd_gpu_download(r->at.d->g, s->p, w->p, n * 4, err) ||
        kd_gpu_download(r->at.d->g, s->bank, w->bank, r->at.banks * n * 4, err) ||
        kd_gpu_download(r->at.d->g, f, add.add, n * 4, err) ||
        (add.more && kd_gpu_download(r->at.d->g, g, add.more, n * 4, err)))
        return -1;
    for (int64_t i = 0; i < n; i++)
        s->p[i] += add.more ? f[i] + g[i] : f[i];
    s->banks = r->at.banks;
    s->started = true;
    r->p->o->after_layer(r->p->o->after_ctx, l, s);
    return 0;
}

static int watch(struct run *r, int64_t l, struct kd_err *err)
{
    const struct kd_k3_device_work *w = &r->at.d->w;
    int64_t n = r->at.b.rows * r->at.d->m->cfg.topk * 4;
    if (r->p->topk && r->at.d->m->layers[l].moe) {
        if (kd_gpu_download(r->at.d->g, r->p->topk, w->ids, n, err) ||
            kd_gpu_download(r->at.d->g, r->p->weight, w->weight, n, err))
            return -1;
        r->p->routed(r->p->ctx, l);
    }
    return r->seen.p ? show_stream(r, l, err) : 0;
}

static int layers(struct run *r, struct kd_err *err)
{
    const struct kd_k3_model *m = r->at.d->m;
    const struct kd_k3_device_work *w = &r->at.d->w;
    r->at.banks = 0;
    kd_gpu_account_at(r->at.d->g, "embedding");
    if (kd_gpu_k3_embed(r->at.d->g, &r->at.b, r->at.d->embed, r->at.d->embed_bf16, m->cfg.hidden,
                        w->p, err))
        return -1;
    for (int64_t l = 0; l < m->cfg.layers; l++) {
        const struct kd_k3_device_layer *D = &r->at.d->layers[l];
        struct kd_gpu_k3_mix in = after(r, l - 1), mid = {.add = w->a};
        in.query = l ? D->attn_res : NULL;
        in.norm = D->input_norm;
        mid.push = mid.replace = l % m->cfg.block == 0;
        mid.query = D->mlp_res;
        mid.norm = D->post_norm;
        in.out = mid.out = w->x;
        if (kd_k3_device_mix(&r->at, in, err) || kd_k3_device_attention(&r->at, l, err) ||
            kd_k3_device_mul(&r->at, l, KD_K3_ATTN_OUT, err) ||
            kd_k3_device_mix(&r->at, mid, err) || ffn(r, l, err) || watch(r, l, err))
            return kd_wrap(err, "layer %lld", (long long)l);
    }
    return 0;
}

/* Logits of `count` of the wanted rows, from number `first`. */
static int head(struct run *r, int64_t first, int64_t count, struct kd_err *err)
{
    const struct kd_k3_device_work *w = &r->at.d->w;
    const struct kd_k3_cfg *c = &r->at.d->m->cfg;
    const struct kd_gpu_job job = {&r->at.d->head, w->h, c->hidden, w->head, c->vocab};
    struct kd_gpu_k3_mix m = after(r, c->layers - 1);
    m.rows = count;
    m.query = r->at.d->out_res;
    m.norm = r->at.d->norm;
    m.pick = r->pick + first;
    m.out = w->h;
    if (kd_k3_device_mix(&r->at, m, err))
        return -1;
    kd_gpu_account_at(r->at.d->g, "head");
    return kd_gpu_mul(r->at.d->g, r->at.d->cls, &job, 1, count, w->scratch, w->scratch_bytes, err);
}

static int fetch_logits(const struct run *r, int64_t first, int64_t count, struct kd_err *err)
{
    const struct kd_k3_device_pass *p = r->p;
    int64_t vocab = r->at.d->m->cfg.vocab;
    kd_gpu_account_at(r->at.d->g, "logits to the host");
    for (int64_t i = 0, n; i < count; i += n) {
        const int64_t *at = p->place + first + i;
        for (n = 1; i + n < count && at[n] == at[0] + n; n++)
            ;
        if (kd_gpu_download(r->at.d->g, p->logits + at[0] * vocab, r->at.d->w.head + i * vocab,
                            n * vocab * 4, err))
            return -1;
    }
    return 0;
}

/* Segments, tokens, rows: to the device in one copy. */
static int send_batch(struct run *r, struct kd_err *err)
{
    struct kd_k3_device *d = r->at.d;
    const struct kd_k3_device_pass *p = r->p;
    struct kd_gpu_k3_seg *seg = (struct kd_gpu_k3_seg *)(void *)d->batch_host;
    int32_t *ids = (int32_t *)(void *)(seg + p->seg_count), *row_seg = ids + p->rows,
            *pick = row_seg + p->rows;
    int64_t longest = 0;
    for (int64_t s = 0; s < p->seg_count; s++) {
        const struct kd_k3_device_seq *q = p->seq[s]->dev;
        seg[s] = (struct kd_gpu_k3_seg){.first = p->segs[s].first,
                                        .count = p->segs[s].count,
                                        .pos = p->seq[s]->pos,
                                        .kda = q->kda,
                                        .page = q->table};
        longest = larger(longest, seg[s].pos + seg[s].count);
        for (int64_t t = 0; t < seg[s].count; t++)
            row_seg[seg[s].first + t] = (int32_t)s;
    }
    memcpy(ids, p->ids, (size_t)p->rows * sizeof *ids);
    memcpy(pick, p->wanted, (size_t)p->wanted_count * sizeof *pick);
    const unsigned char *end = (const unsigned char *)(pick + p->wanted_count);
    r->at.b = (struct kd_gpu_k3_batch){
        .rows = p->rows, .segs = p->seg_count, .longest = longest, .host = seg};
    r->at.b.seg = (const struct kd_gpu_k3_seg *)(const void *)d->batch;
    r->at.b.ids = (const int32_t *)(const void *)(r->at.b.seg + p->seg_count);
    r->at.b.row_seg = r->at.b.ids + p->rows;
    r->pick = r->at.b.row_seg + p->rows;
    return kd_gpu_upload(d->g, d->batch, d->batch_host, end - d->batch_host, err);
}

/* The oldest place, or the one that holds what is asked for. */
static struct kd_k3_device_graph *graph_of(const struct run *r)
{
    struct kd_k3_device *d = r->at.d;
    struct kd_k3_device_graph *best = &d->graphs[0];
    for (int i = 0; i < KD_K3_DEVICE_GRAPHS; i++) {
        struct kd_k3_device_graph *a = &d->graphs[i];
        if (a->graph && a->rows == r->at.b.rows && a->wanted == r->p->wanted_count &&
            a->parts == r->at.parts && a->used == r->used)
            return a;
        if (a->last < best->last)
            best = a;
    }
    kd_gpu_graph_free(best->graph);
    *best = (struct kd_k3_device_graph){
        .rows = r->at.b.rows, .wanted = r->p->wanted_count, .parts = r->at.parts, .used = r->used};
    return best;
}

/* One token each, recorded once for this many of them. */
static int decode(struct run *r, struct kd_err *err)
{
    struct kd_k3_device *d = r->at.d;
    struct kd_k3_device_graph *a = graph_of(r);
    a->last = ++d->runs;
    if (!a->graph) {
        if (kd_gpu_graph_begin(d->g, err))
            return -1;
        if (layers(r, err) || (r->p->wanted_count && head(r, 0, r->p->wanted_count, err))) {
            kd_gpu_graph_cancel(d->g);
            return -1;
        }
        if (kd_gpu_graph_end(d->g, &a->graph, err))
            return -1;
    }
    kd_gpu_account_at(d->g, "a step, recorded");
    return kd_gpu_graph_run(d->g, a->graph, err) || fetch_logits(r, 0, r->p->wanted_count, err) ? -1
                                                                                                : 0;
}

static int prefill(struct run *r, struct kd_err *err)
{
    int64_t wanted = r->p->wanted_count;
    if (layers(r, err))
        return -1;
    for (int64_t i = 0; i < wanted; i += KD_K3_DEVICE_LOGITS) {
        int64_t n = wanted - i < KD_K3_DEVICE_LOGITS ? wanted - i : KD_K3_DEVICE_LOGITS;
        if (head(r, i, n, err) || fetch_logits(r, i, n, err))
            return -1;
    }
    return 0;
}

/* What must hold before anything is started. */
static int check(const struct run *r, struct kd_err *err)
{
    const struct kd_k3_device_pass *p = r->p;
    const struct kd_k3_cfg *c = &r->at.d->m->cfg;
    for (int64_t t = 0; t < p->rows; t++)
        if (p->ids[t] < 0 || p->ids[t] >= c->vocab)
            return kd_fail(err, KD_EINVAL, "token %d at place %lld: the vocabulary has %lld",
                           p->ids[t], (long long)t, (long long)c->vocab);
    for (int64_t s = 0; s < p->seg_count; s++)
        if (p->segs[s].draft)
            return kd_fail(err, KD_ENOTSUP, "drafts are not for a device; use the CPU");
    if (r->used < 1 || r->used > c->topk)
        return kd_fail(err, KD_EINVAL, "%lld experts a token: the model is made for up to %lld",
                       (long long)r->used, (long long)c->topk);
    return 0;
}

static bool in_parts(const struct kd_k3_options *o)
{
    return o && o->account && o->account_of != KD_K3_ACCOUNT_STEP;
}

static int start(struct run *r, struct kd_err *err)
{
    struct kd_k3_device *d = r->at.d;
    const struct kd_k3_device_pass *p = r->p;
    const struct kd_k3_cfg *c = &d->m->cfg;
    bool one = p->seg_count == p->rows;
    for (int64_t s = 0; s < p->seg_count; s++)
        if (kd_k3_device_seq_reserve(p->seq[s]->dev, d, p->seq[s]->pos + p->segs[s].count, err))
            return -1;
    if (send_batch(r, err))
        return -1;
    kd_gpu_k3_mla_floats(d->fast, c->heads, c->kv_lora, p->rows, r->at.b.longest, d->w.mla_floats,
                         &r->at.parts);
    if (p->o && p->o->after_layer) {
        /* Two banks more than a model fills: room for what is not added yet. */
        struct kd_k3_cfg wide = *c;
        wide.layers += 2 * c->block;
        if (kd_k3_stream_init(&r->seen, &wide, p->rows, err))
            return -1;
    }
    bool plain = one && !p->topk && !r->seen.p && p->wanted_count <= KD_K3_DEVICE_LOGITS &&
                 (!p->o || p->o->expert_mass <= 0);
    return plain && !in_parts(p->o) ? decode(r, err) : prefill(r, err);
}

/* The same, with an account of it. */
static int start_account(struct run *r, struct kd_err *err)
{
    const struct kd_k3_options *o = r->p->o;
    struct kd_err late;
    if (kd_gpu_account_begin(r->at.d->g, o->account_of == KD_K3_ACCOUNT_KERNELS, err))
        return -1;
    int rc = start(r, err);
    return kd_gpu_account_end(r->at.d->g, o->account, rc ? &late : err) || rc ? -1 : 0;
}

int kd_k3_device_run(struct kd_k3_device *d, const struct kd_k3_device_pass *p, struct kd_err *err)
{
    struct run r = {.at = {.d = d}, .p = p};
    r.used = p->o && p->o->experts_used ? p->o->experts_used : d->m->cfg.topk;
    const bool account = p->o && p->o->account;
    int rc = check(&r, err) || (account ? start_account(&r, err) : start(&r, err)) ||
                     kd_gpu_wait(d->g, err)
                 ? -1
                 : 0;
    if (r.seen.p)
        kd_k3_stream_release(&r.seen);
    return rc ? kd_wrap(err, "cuda:%d", d->index) : 0;
}
