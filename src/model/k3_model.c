#include "base/mem.h"
#include "model/k3_device.h"

#include <string.h>

static int open_parts(struct kd_k3_model *m, const char *dir, const struct kd_k3_open *o,
                      struct kd_err *err)
{
    if (kd_ckpt_open(&m->ck, dir, false, err))
        return -1;
    if (!kd_ckpt_config(m->ck))
        return kd_fail(err, KD_EINVAL, "'%s' has no config.json; name the model's folder", dir);
    if (kd_k3_cfg_parse(&m->cfg, kd_ckpt_config(m->ck), NULL, err) ||
        kd_k3_cfg_check(&m->cfg, kd_ckpt_config(m->ck), err) || kd_k3_known(&m->cfg, m->ck, err))
        return -1;
    if (o && o->eps_latent > 0)
        m->cfg.eps_latent = o->eps_latent;
    const struct kd_k3_part *part = o ? &o->part : NULL;
    if (kd_mem_zero(&m->layers, m->cfg.layers, sizeof *m->layers, "layers", err))
        return -1;
    for (int64_t l = 0; l < m->cfg.layers; l++)
        if (kd_k3_layer_load(&m->layers[l], &m->cfg, m->ck, l, part, err))
            return -1;
    if (kd_k3_ends_load(&m->ends, &m->cfg, m->ck, err) ||
        kd_k3_store_open(&m->store, &m->cfg, m->ck, part, err))
        return -1;
    return o && o->device ? kd_k3_device_open(&m->dev, m, o->device - 1, !o->fast, err) : 0;
}

int kd_k3_open(struct kd_k3_model **out, const char *dir, const struct kd_run *run,
               const struct kd_k3_open *o, struct kd_err *err)
{
    struct kd_k3_model *m;
    *out = NULL;
    if (o && o->part.ranks > 1 && (!o->comm || o->comm->ranks != o->part.ranks))
        return kd_fail(err, KD_EINVAL, "a part of a model needs its group of %d ranks",
                       o->part.ranks);
    if (kd_mem_zero(&m, 1, sizeof *m, "model", err))
        return -1;
    m->run = *run;
    m->run.fast = o && o->fast;
    m->comm = o ? o->comm : NULL;
    if (open_parts(m, dir, o, err)) {
        kd_k3_close(m);
        return -1;
    }
    *out = m;
    return 0;
}

void kd_k3_close(struct kd_k3_model *m)
{
    if (!m)
        return;
    kd_k3_device_close(m->dev);
    for (int64_t l = 0; m->layers && l < m->cfg.layers; l++)
        kd_k3_layer_release(&m->layers[l]);
    kd_mem_free(m->layers);
    kd_k3_ends_release(&m->ends);
    if (m->made)
        kd_k3_made_store_close(m->store);
    else
        kd_k3_store_close(m->store);
    if (m->ck)
        kd_ckpt_close(m->ck);
    kd_mem_free(m);
}

int kd_k3_room(const struct kd_k3_model *m, int64_t *bytes, struct kd_err *err)
{
    *bytes = 0;
    if (!m->dev)
        return kd_fail(err, KD_EINVAL, "a model on the CPU has the machine's memory");
    kd_k3_enter(m);
    int rc = kd_gpu_free_bytes(m->dev->g, bytes, err);
    kd_k3_leave(m);
    return rc;
}

const struct kd_k3_cfg *kd_k3_config(const struct kd_k3_model *m)
{
    return &m->cfg;
}

const struct kd_ckpt *kd_k3_ckpt(const struct kd_k3_model *m)
{
    return m->ck;
}

int kd_k3_traffic(const struct kd_k3_model *m, struct kd_k3_traffic *t, struct kd_err *err)
{
    const struct kd_k3_cfg *c = &m->cfg;
    *t = (struct kd_k3_traffic){.trunk_bytes = kd_mat_bytes(&m->ends.head)};
    for (int64_t l = 0; l < c->layers; l++) {
        const struct kd_k3_layer *L = &m->layers[l];
        const struct kd_mat *const mats[] = {
            &L->q,    &L->k,   &L->v,    &L->f_a,    &L->f_b,         &L->b,
            &L->q_a,  &L->q_b, &L->kv_a, &L->kv_b,   &L->g,           &L->o,
            &L->gate, &L->up,  &L->down, &L->router, &L->routed_down, &L->routed_up};
        struct kd_expert x;
        for (size_t i = 0; i < sizeof mats / sizeof *mats; i++)
            t->trunk_bytes += mats[i]->type != KD_MAT_NONE ? kd_mat_bytes(mats[i]) : 0;
        if (L->mla)
            t->position_bytes += (c->kv_lora + c->rope) * (m->dev && m->dev->fast ? 2 : 4);
        else
            t->state_bytes += 2 * kd_k3_kda_floats(c, L->heads) * (int64_t)sizeof(float);
        if (!L->moe || t->expert_bytes)
            continue;
        if (m->store->get(m->store, l, 0, &x, err))
            return -1;
        t->expert_bytes = kd_mat_bytes(&x.w1) + kd_mat_bytes(&x.w3) + kd_mat_bytes(&x.w2);
        if (m->store->done)
            m->store->done(m->store, l, 0);
    }
    return 0;
}

/* One pass: some tokens of some feeds, at most rows_max rows. */
struct pass {
    const struct kd_k3_feed *feeds;
    const struct kd_k3_options *o;
    int64_t feed_count;
    int64_t *done;          /* [feeds] tokens fed so far */
    int64_t *out;           /* [feeds] first row of each feed's logits */
    int64_t *part;          /* [feeds] feed number of each segment */
    struct kd_k3_seq **seq; /* [feeds] its sequence, for a device */
    struct kd_k3_seg *segs;
    int64_t seg_count, rows, rows_max;
    int32_t *ids;  /* [rows] */
    int32_t *topk; /* [rows][topk] routing, for the trace */
    float *weight;
    float *h;        /* [rows][hidden], not with a device */
    int32_t *wanted; /* [rows] rows whose logits are asked for */
    int64_t *place;  /* [rows] and where they go */
    const struct kd_k3_model *m;
};

/* Chooses the tokens of the next pass. A feed that does not fit is cut at a multiple of the chunk,
 * so the cut changes no bits; a draft stays whole. */
static void next_pass(struct pass *p)
{
    p->seg_count = p->rows = 0;
    for (int64_t f = 0; f < p->feed_count && p->rows < p->rows_max; f++) {
        const struct kd_k3_feed *feed = &p->feeds[f];
        int64_t take = feed->count - p->done[f], room = p->rows_max - p->rows;
        if (take > room && feed->draft)
            continue;
        if (take > room)
            take = room - (feed->seq->pos + room) % KD_K3_CHUNK;
        if (take <= 0)
            continue;
        p->segs[p->seg_count] =
            (struct kd_k3_seg){.first = p->rows, .count = take, .draft = feed->draft};
        p->part[p->seg_count++] = f;
        memcpy(p->ids + p->rows, feed->ids + p->done[f], (size_t)take * sizeof *p->ids);
        p->rows += take;
    }
}

static void trace(void *ctx, int64_t layer)
{
    const struct pass *p = ctx;
    const struct kd_k3_model *m = p->m;
    for (int64_t s = 0; s < p->seg_count; s++)
        for (int64_t t = 0; t < p->segs[s].count; t++) {
            int64_t row = p->segs[s].first + t;
            p->o->trace(p->o->trace_ctx, layer, p->part[s], p->feeds[p->part[s]].seq->pos + t,
                        p->topk + row * m->cfg.topk, p->weight + row * m->cfg.topk);
        }
}

static int run_layers(struct kd_k3_model *m, struct pass *p, struct kd_k3_stream *st,
                      struct kd_err *err)
{
    const struct kd_k3_options *o = p->o;
    struct kd_k3_probe probe = {.ids = p->topk,
                                .w = p->weight,
                                .experts_used = o ? o->experts_used : 0,
                                .expert_mass = o ? o->expert_mass : 0};
    for (int64_t l = 0; l < m->cfg.layers; l++) {
        for (int64_t s = 0; s < p->seg_count; s++)
            p->segs[s].state = &p->feeds[p->part[s]].seq->state[l];
        if (kd_k3_layer_forward(&m->run, &m->cfg, &m->layers[l], m->store, m->comm, st, p->segs,
                                p->seg_count, &probe, err))
            return -1;
        if (o && o->trace && m->layers[l].moe)
            trace(p, l);
        if (o && o->after_layer)
            o->after_layer(o->after_ctx, l, st);
    }
    return 0;
}

/* Which rows' logits are asked for. */
static int64_t wanted(const struct pass *p)
{
    int64_t n = 0;
    for (int64_t s = 0; s < p->seg_count; s++) {
        int64_t f = p->part[s], count = p->segs[s].count;
        const struct kd_k3_feed *feed = &p->feeds[f];
        for (int64_t t = 0; t < count; t++) {
            int64_t at = p->done[f] + t;
            if (!feed->want || (feed->want == 1 && at != feed->count - 1))
                continue;
            p->wanted[n] = (int32_t)(p->segs[s].first + t);
            p->place[n++] = p->out[f] + (feed->want == 1 ? 0 : at);
        }
    }
    return n;
}

static int heads(struct kd_k3_model *m, struct pass *p, const struct kd_k3_stream *st,
                 float *logits, struct kd_err *err)
{
    int64_t hid = m->cfg.hidden, vocab = m->cfg.vocab;
    if (kd_k3_final(&m->run, &m->cfg, &m->ends, st, p->h, err))
        return -1;
    int64_t n = wanted(p);
    for (int64_t i = 0; i < n; i++)
        memmove(p->h + i * hid, p->h + p->wanted[i] * hid, (size_t)hid * sizeof *p->h);
    for (int64_t i = 0, run; i < n; i += run) {
        for (run = 1; i + run < n && p->place[i + run] == p->place[i] + run; run++)
            ;
        if (kd_mat_mul(&m->run, &m->ends.head, p->h + i * hid, hid, run,
                       logits + p->place[i] * vocab, vocab, err))
            return -1;
    }
    return 0;
}

static int run_on_device(struct kd_k3_model *m, struct pass *p, float *logits, struct kd_err *err)
{
    bool traced = p->o && p->o->trace;
    for (int64_t s = 0; s < p->seg_count; s++)
        p->seq[s] = p->feeds[p->part[s]].seq;
    const struct kd_k3_device_pass d = {.segs = p->segs,
                                        .seq = p->seq,
                                        .seg_count = p->seg_count,
                                        .rows = p->rows,
                                        .ids = p->ids,
                                        .wanted = p->wanted,
                                        .place = p->place,
                                        .wanted_count = logits ? wanted(p) : 0,
                                        .logits = logits,
                                        .o = p->o,
                                        .topk = traced ? p->topk : NULL,
                                        .weight = p->weight,
                                        .routed = trace,
                                        .ctx = p};
    kd_k3_enter(m);
    int rc = kd_k3_device_run(m->dev, &d, err);
    kd_k3_leave(m);
    return rc;
}

static int run_on_cpu(struct kd_k3_model *m, struct pass *p, float *logits, struct kd_err *err)
{
    struct kd_k3_stream st;
    if (kd_k3_stream_init(&st, &m->cfg, p->rows, err))
        return -1;
    int rc = kd_k3_embed(&m->run, &m->cfg, &m->ends, p->ids, p->rows, &st, err) ||
                     run_layers(m, p, &st, err) || (logits && heads(m, p, &st, logits, err))
                 ? -1
                 : 0;
    kd_k3_stream_release(&st);
    return rc;
}

static int run_pass(struct kd_k3_model *m, struct pass *p, float *logits, struct kd_err *err)
{
    int rc = m->dev ? run_on_device(m, p, logits, err) : run_on_cpu(m, p, logits, err);
    for (int64_t s = 0; !rc && s < p->seg_count; s++) {
        p->done[p->part[s]] += p->segs[s].count;
        p->feeds[p->part[s]].seq->pos += p->segs[s].count;
        p->feeds[p->part[s]].seq->drafted = p->segs[s].draft ? p->segs[s].count : 0;
    }
    return rc;
}

/* All of a pass's arrays in one block, widest types first. `tokens` are all that will be fed. */
static int pass_init(struct pass *p, const struct kd_k3_model *m, int64_t tokens, void **block,
                     struct kd_err *err)
{
    int64_t n = p->feed_count, k = m->cfg.topk;
    int64_t most = m->dev ? m->dev->rows_max : KD_K3_FORWARD_ROWS;
    int64_t rows = tokens < most ? tokens : most, hidden = m->dev ? 0 : m->cfg.hidden;
    int64_t bytes = n * (int64_t)(3 * sizeof(int64_t) + sizeof(struct kd_k3_seg) + sizeof *p->seq) +
                    rows * (int64_t)(sizeof(int64_t) + 2 * sizeof(int32_t)) +
                    rows * (2 * k + hidden) * (int64_t)sizeof(float);
    if (kd_mem_zero(block, bytes, 1, "forward pass", err))
        return -1;
    p->rows_max = most;
    p->segs = *block;
    p->seq = (struct kd_k3_seq **)(void *)(p->segs + n);
    p->done = (int64_t *)(void *)(p->seq + n);
    p->out = p->done + n;
    p->part = p->out + n;
    p->place = p->part + n;
    p->h = (float *)(void *)(p->place + rows);
    p->weight = p->h + rows * hidden;
    p->topk = (int32_t *)(void *)(p->weight + rows * k);
    p->ids = p->topk + rows * k;
    p->wanted = p->ids + rows;
    return 0;
}

int kd_k3_forward(struct kd_k3_model *m, const struct kd_k3_feed *feeds, int64_t count,
                  const struct kd_k3_options *o, float *logits, struct kd_err *err)
{
    struct pass p = {.feeds = feeds, .o = o, .feed_count = count, .m = m};
    void *block;
    int64_t rows = 0, left = 0;
    for (int64_t f = 0; f < count; f++) {
        left += feeds[f].count;
        if (feeds[f].draft && feeds[f].count > KD_K3_DRAFT_MAX)
            return kd_fail(err, KD_EINVAL, "a draft of %lld tokens: at most %d",
                           (long long)feeds[f].count, KD_K3_DRAFT_MAX);
        for (int64_t g = 0; g < f; g++)
            if (feeds[g].seq == feeds[f].seq)
                return kd_fail(err, KD_EINVAL, "one sequence is fed twice in a batch");
    }
    if (pass_init(&p, m, left, &block, err))
        return -1;
    for (int64_t f = 0; f < count; f++) {
        p.out[f] = rows;
        rows += feeds[f].want == 2 ? feeds[f].count : feeds[f].count ? feeds[f].want : 0;
    }
    int rc = 0;
    while (!rc && left) {
        next_pass(&p);
        rc = run_pass(m, &p, logits, err);
        left -= p.rows;
    }
    kd_mem_free(block);
    return rc;
}

/* In front of the logits: whether the device gave their memory. */
enum { LOGITS_HEAD = 64 };

int kd_k3_logits_new(const struct kd_k3_model *m, float **out, int64_t rows, struct kd_err *err)
{
    const int64_t row = m->cfg.vocab * (int64_t)sizeof **out;
    int64_t bytes;
    struct kd_err full;
    void *p = NULL;
    *out = NULL;
    if (kd_mul64(rows, row, &bytes) || bytes > INT64_MAX - LOGITS_HEAD)
        return kd_fail(err, KD_ENOMEM, "logits: %lld rows", (long long)rows);
    bytes += LOGITS_HEAD;
    kd_k3_enter(m);
    const bool device = m->dev && !kd_gpu_host_alloc(m->dev->g, &p, bytes, "logits", &full);
    kd_k3_leave(m);
    if (!device && kd_mem_new(&p, bytes, 1, "logits", err))
        return -1;
    *(bool *)p = device;
    *out = (float *)(void *)((unsigned char *)p + LOGITS_HEAD);
    return 0;
}

void kd_k3_logits_free(const struct kd_k3_model *m, float *logits)
{
    if (!logits)
        return;
    void *p = (unsigned char *)(void *)logits - LOGITS_HEAD;
    if (!*(bool *)p) {
        kd_mem_free(p);
        return;
    }
    kd_k3_enter(m);
    kd_gpu_host_release(m->dev->g, p);
    kd_k3_leave(m);
}
