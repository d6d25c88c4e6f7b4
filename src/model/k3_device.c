/* The forward pass on a device: the stages of k3_layer.c as launches on one stream. What lies
 * between two halves of a layer (adding, banking, mixing, the norm) is one launch. */
#include "model/k3_device.h"

#include "base/mem.h"

#include <string.h>

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Bump allocation over the work space; base NULL only counts. */
struct arena {
    unsigned char *base;
    int64_t at;
};

static void *take(struct arena *a, int64_t count)
{
    void *p = a->base ? a->base + a->at : NULL;
    a->at += (count * 4 + 255) / 256 * 256;
    return p;
}

static void lay_out(const struct kd_k3_device *d, struct kd_k3_device_work *w, struct arena *a)
{
    const struct kd_k3_cfg *c = &d->m->cfg;
    int64_t R = d->rows_max, hid = c->hidden, ch = c->kda_heads * c->kda_dim, parts;
    int64_t qd = c->heads * (c->nope + c->rope), vd = c->heads * c->v_dim;
    int64_t inner = larger(c->dense_inter, c->shared * c->moe_inter);
    w->p = take(a, R * hid);
    w->bank = take(a, R * hid * kd_k3_banks(c));
    w->x = take(a, R * hid);
    w->a = take(a, R * hid);
    w->y = take(a, R * larger(ch, vd));
    w->q = take(a, R * larger(ch, qd));
    w->gate = take(a, R * larger(ch, vd));
    w->k = take(a, R * ch);
    w->v = take(a, R * ch);
    w->z = take(a, R * ch);
    w->fa = take(a, R * c->kda_dim);
    w->beta = take(a, R * c->kda_heads);
    w->chunks = d->cls == KD_GPU_FAST ? take(a, kd_gpu_k3_kda_floats(c->kda_heads, R)) : NULL;
    w->cq = take(a, R * c->q_lora);
    w->kv = take(a, R * (c->kv_lora + c->rope));
    w->mla_floats = kd_gpu_k3_mla_floats(d->fast, c->heads, c->kv_lora, R, c->context, 0, &parts);
    w->mla = take(a, w->mla_floats);
    w->inner = take(a, R * inner);
    w->up = take(a, R * inner);
    w->f = take(a, R * hid);
    w->shared = take(a, R * hid);
    w->logits = take(a, R * c->experts);
    w->latent = take(a, R * c->latent);
    w->u = take(a, R * c->latent);
    w->weight = take(a, R * c->topk);
    w->ids = take(a, R * c->topk);
    w->h = take(a, KD_K3_DEVICE_LOGITS * hid);
    w->head = take(a, KD_K3_DEVICE_LOGITS * c->vocab);
    w->scratch = take(a, (w->scratch_bytes + 3) / 4);
}

/* The products of a layer, those that run side by side in one list. */
enum list { KDA_IN, KDA_GATE, MLA_IN, MLA_QUERY, ATTN_OUT, DENSE_IN, MOE_IN, FFN_OUT, LISTS };

static int list_of(const struct kd_k3_device *d, const struct kd_k3_device_layer *D,
                   const struct kd_k3_layer *L, enum list list, struct kd_gpu_job *j)
{
    const struct kd_k3_cfg *c = &d->m->cfg;
    const struct kd_k3_device_work *w = &d->w;
    int64_t hid = c->hidden, ch = L->heads * c->kda_dim, wide = L->gate.rows;
    int64_t qd = L->heads * (c->nope + c->rope), yd = L->o.cols;
    const bool mlp = L->gate.type != KD_MAT_NONE;
    int n = 0;
    switch (list) {
    case KDA_IN:
        if (L->mla)
            return 0;
        j[n++] = (struct kd_gpu_job){&D->q, w->x, hid, w->q, ch};
        j[n++] = (struct kd_gpu_job){&D->k, w->x, hid, w->k, ch};
        j[n++] = (struct kd_gpu_job){&D->v, w->x, hid, w->v, ch};
        j[n++] = (struct kd_gpu_job){&D->g, w->x, hid, w->gate, ch};
        j[n++] = (struct kd_gpu_job){&D->f_a, w->x, hid, w->fa, c->kda_dim};
        j[n++] = (struct kd_gpu_job){&D->b, w->x, hid, w->beta, L->heads};
        return n;
    case KDA_GATE:
        if (!L->mla)
            j[n++] = (struct kd_gpu_job){&D->f_b, w->fa, c->kda_dim, w->z, ch};
        return n;
    case MLA_IN:
        if (!L->mla)
            return 0;
        j[n++] = (struct kd_gpu_job){&D->q_a, w->x, hid, w->cq, c->q_lora};
        j[n++] = (struct kd_gpu_job){&D->kv_a, w->x, hid, w->kv, c->kv_lora + c->rope};
        j[n++] = (struct kd_gpu_job){&D->g, w->x, hid, w->gate, L->heads * c->v_dim};
        return n;
    case MLA_QUERY:
        if (L->mla)
            j[n++] = (struct kd_gpu_job){&D->q_b, w->cq, c->q_lora, w->q, qd};
        return n;
    case ATTN_OUT:
        j[n++] = (struct kd_gpu_job){&D->o, w->y, yd, w->a, hid};
        return n;
    case MOE_IN:
        if (L->moe) {
            j[n++] = (struct kd_gpu_job){&D->router, w->x, hid, w->logits, c->experts};
            j[n++] = (struct kd_gpu_job){&D->routed_down, w->x, hid, w->latent, c->latent};
        }
        __attribute__((fallthrough));
    case DENSE_IN:
        if (mlp && (list == MOE_IN) == L->moe) {
            j[n++] = (struct kd_gpu_job){&D->gate, w->x, hid, w->inner, wide};
            j[n++] = (struct kd_gpu_job){&D->up, w->x, hid, w->up, wide};
        }
        return n;
    case FFN_OUT:
        if (L->moe)
            j[n++] = (struct kd_gpu_job){&D->routed_up, w->u, c->latent, w->f, hid};
        if (mlp)
            j[n++] = (struct kd_gpu_job){&D->down, w->inner, wide, L->moe ? w->shared : w->f, hid};
        return n;
    case LISTS:
        break;
    }
    return 0;
}

/* Scratch of the largest of all products, whatever the rows. */
static int64_t scratch_bytes(const struct kd_k3_device *d)
{
    const int64_t rows[] = {1, KD_GPU_ROWS, KD_GPU_ROWS + 1, d->rows_max};
    const struct kd_gpu_job head = {.w = &d->head, .ldx = d->m->cfg.hidden, .ldy = d->m->cfg.vocab};
    int64_t most = kd_gpu_mul_scratch(&head, 1, KD_K3_DEVICE_LOGITS);
    struct kd_gpu_job jobs[KD_GPU_JOBS];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        most = larger(most, i < 3 ? kd_gpu_mul_scratch(&head, 1, rows[i]) : 0);
        for (int64_t l = 0; l < d->m->cfg.layers; l++)
            for (int k = 0; k < LISTS; k++) {
                int n = list_of(d, &d->layers[l], &d->m->layers[l], (enum list)k, jobs);
                most = larger(most, n ? kd_gpu_mul_scratch(jobs, n, rows[i]) : 0);
            }
    }
    return most;
}

int64_t kd_k3_device_work_bytes(struct kd_k3_device *d)
{
    struct arena a = {0};
    d->w.scratch_bytes = scratch_bytes(d);
    lay_out(d, &d->w, &a);
    return a.at;
}

static int fits(const struct kd_k3_model *m, struct kd_err *err)
{
    const struct kd_k3_cfg *c = &m->cfg;
    const struct kd_gpu_k3_shape s = {.hidden = c->hidden,
                                      .kda_heads = c->kda_heads,
                                      .kda_dim = c->kda_dim,
                                      .conv = c->conv,
                                      .heads = c->heads,
                                      .q_lora = c->q_lora,
                                      .kv_lora = c->kv_lora,
                                      .nope = c->nope,
                                      .rope = c->rope,
                                      .v_dim = c->v_dim,
                                      .experts = c->experts,
                                      .topk = c->topk,
                                      .banks = kd_k3_banks(c),
                                      .latent = c->latent};
    if (m->comm && m->comm->ranks > 1)
        return kd_fail(err, KD_ENOTSUP, "a device holds a whole model, not a part of one");
    return kd_gpu_k3_fits(&s, err);
}

/* Where each layer's state lies in a sequence's. */
static void place_states(struct kd_k3_device *d)
{
    const struct kd_k3_cfg *c = &d->m->cfg;
    for (int64_t l = 0; l < c->layers; l++) {
        const struct kd_k3_layer *L = &d->m->layers[l];
        d->layers[l].state = L->mla ? d->page_values : d->kda_floats;
        if (L->mla)
            d->page_values += KD_K3_PAGE * (c->kv_lora + c->rope);
        else
            d->kda_floats += kd_k3_kda_floats(c, L->heads);
    }
}

_Static_assert((int)KD_K3_DEVICE_FEW == (int)KD_GPU_ROWS, "model/k3.h tells it without gpu/");
enum { BATCH_ROW = sizeof(struct kd_gpu_k3_seg) + 3 * sizeof(int32_t) };

static int open_parts(struct kd_k3_device *d, struct kd_err *err)
{
    struct arena a = {0};
    void *batch, *host;
    if (kd_gpu_open(&d->g, d->index, err) || fits(d->m, err) ||
        kd_mem_zero(&d->layers, d->m->cfg.layers, sizeof *d->layers, "layers", err))
        return -1;
    place_states(d);
    if (kd_k3_device_load(d, err) ||
        kd_gpu_alloc(d->g, &d->work_memory, kd_k3_device_work_bytes(d), "work space", err) ||
        kd_gpu_alloc(d->g, &batch, d->rows_max * BATCH_ROW, "a batch", err))
        return -1;
    d->batch = batch;
    if (kd_gpu_host_alloc(d->g, &host, d->rows_max * BATCH_ROW, "a batch", err))
        return -1;
    d->batch_host = host;
    a.base = d->work_memory;
    lay_out(d, &d->w, &a);
    return 0;
}

/* Fast attention is made for kv_b as it is released. */
static bool plain_kv_b(const struct kd_k3_model *m)
{
    for (int64_t l = 0; l < m->cfg.layers; l++) {
        const struct kd_mat *w = &m->layers[l].kv_b;
        if (m->layers[l].mla && (w->type != KD_MAT_BF16 || w->ld != w->cols))
            return false;
    }
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
    for (int64_t l = d->layers ? d->m->cfg.layers - 1 : -1; l >= 0; l--) {
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
    struct kd_k3_device *d;
    const struct kd_k3_device_pass *p;
    struct kd_gpu_k3_batch b;
    const int32_t *pick; /* on the device: the wanted rows */
    int64_t used;        /* experts a token */
    int64_t parts;
    int banks;
    struct kd_k3_stream seen; /* for after_layer */
};

static int mul(const struct run *r, int64_t layer, enum list list, struct kd_err *err)
{
    struct kd_k3_device *d = r->d;
    struct kd_gpu_job jobs[KD_GPU_JOBS];
    int n = list_of(d, &d->layers[layer], &d->m->layers[layer], list, jobs);
    return n ? kd_gpu_mul(d->g, d->cls, jobs, n, r->b.rows, d->w.scratch, d->w.scratch_bytes, err)
             : 0;
}

static int kda(const struct run *r, int64_t l, struct kd_err *err)
{
    const struct kd_k3_device_layer *D = &r->d->layers[l];
    const struct kd_k3_device_work *w = &r->d->w;
    const struct kd_k3_cfg *c = &r->d->m->cfg;
    const struct kd_gpu_k3_kda k = {.heads = r->d->m->layers[l].heads,
                                    .taps = c->conv,
                                    .bounded = c->bounded_gate,
                                    .lower_bound = c->gate_lower_bound,
                                    .eps = c->eps,
                                    .q = w->q,
                                    .k = w->k,
                                    .v = w->v,
                                    .gate = w->gate,
                                    .z = w->z,
                                    .beta = w->beta,
                                    .q_conv = D->q_conv,
                                    .k_conv = D->k_conv,
                                    .v_conv = D->v_conv,
                                    .decay = D->decay,
                                    .dt_bias = D->dt_bias,
                                    .o_norm = D->o_norm,
                                    .state = D->state,
                                    .y = w->y,
                                    .work = w->chunks};
    return mul(r, l, KDA_IN, err) || mul(r, l, KDA_GATE, err) ||
                   kd_gpu_k3_kda_run(r->d->g, &r->b, &k, err)
               ? -1
               : 0;
}

static int mla(const struct run *r, int64_t l, struct kd_err *err)
{
    const struct kd_k3_device_layer *D = &r->d->layers[l];
    const struct kd_k3_device_work *w = &r->d->w;
    const struct kd_k3_cfg *c = &r->d->m->cfg;
    const struct kd_gpu_k3_latents in = {.q_lora = c->q_lora,
                                         .kv_lora = c->kv_lora,
                                         .fast = r->d->fast,
                                         .eps = c->eps_latent,
                                         .cq = w->cq,
                                         .kv = w->kv,
                                         .q_norm = D->q_a_norm,
                                         .kv_norm = D->kv_a_norm,
                                         .page = D->state};
    const struct kd_gpu_k3_mla m = {.heads = r->d->m->layers[l].heads,
                                    .kv_lora = c->kv_lora,
                                    .fast = r->d->fast,
                                    .q = w->q,
                                    .gate = w->gate,
                                    .kv_b = D->kv_b,
                                    .bf16 = D->kv_b_bf16,
                                    .page = D->state,
                                    .work = w->mla,
                                    .parts = r->parts,
                                    .y = w->y};
    return mul(r, l, MLA_IN, err) || kd_gpu_k3_latents_run(r->d->g, &r->b, &in, err) ||
                   mul(r, l, MLA_QUERY, err) || kd_gpu_k3_mla_run(r->d->g, &r->b, &m, err)
               ? -1
               : 0;
}

static int moe(const struct run *r, int64_t l, struct kd_err *err)
{
    const struct kd_k3_device_layer *D = &r->d->layers[l];
    const struct kd_k3_device_work *w = &r->d->w;
    const struct kd_k3_cfg *c = &r->d->m->cfg;
    const struct kd_gpu_k3_route route = {.rows = r->b.rows,
                                          .experts = c->experts,
                                          .topk = c->topk,
                                          .used = r->used,
                                          .renormalize = c->renormalize,
                                          .scale = c->routed_scale,
                                          .mass = r->p->o ? r->p->o->expert_mass : 0,
                                          .logits = w->logits,
                                          .bias = D->router_bias,
                                          .ids = w->ids,
                                          .w = w->weight};
    const struct kd_gpu_experts_call call = {.x = w->latent,
                                             .ldx = c->latent,
                                             .T = r->b.rows,
                                             .ids = w->ids,
                                             .weight = w->weight,
                                             .top = c->topk,
                                             .beta = c->situ_beta,
                                             .linear = c->situ_linear,
                                             .y = w->u,
                                             .ldy = c->latent};
    if (kd_gpu_k3_route_run(r->d->g, &route, err) ||
        kd_gpu_experts_mul(D->experts, r->d->cls, &call, err))
        return -1;
    return D->routed_norm ? kd_gpu_k3_norm(r->d->g, w->u, D->routed_norm, c->eps, r->b.rows,
                                           c->latent, w->u, err)
                          : 0;
}

static int ffn(const struct run *r, int64_t l, struct kd_err *err)
{
    const struct kd_k3_layer *L = &r->d->m->layers[l];
    const struct kd_k3_device_work *w = &r->d->w;
    const struct kd_k3_cfg *c = &r->d->m->cfg;
    if (mul(r, l, L->moe ? MOE_IN : DENSE_IN, err) || (L->moe && moe(r, l, err)) ||
        (L->gate.type != KD_MAT_NONE &&
         kd_gpu_k3_situ(r->d->g, w->inner, w->up, c->situ_beta, c->situ_linear,
                        r->b.rows * L->gate.rows, w->inner, err)))
        return -1;
    return mul(r, l, FFN_OUT, err);
}

/* x = the norm of the mix, after what the half layer before it left was added. */
static int between(struct run *r, struct kd_gpu_k3_mix m, struct kd_err *err)
{
    const struct kd_k3_device_work *w = &r->d->w;
    const struct kd_k3_cfg *c = &r->d->m->cfg;
    m.rows = m.pick ? m.rows : r->b.rows;
    m.hidden = c->hidden;
    m.p = w->p;
    m.bank = w->bank;
    m.bank_rows = r->b.rows;
    m.banks = r->banks;
    m.eps = c->eps;
    r->banks += m.push;
    return kd_gpu_k3_mix_run(r->d->g, &m, err);
}

/* What the feed-forward part of a layer left to add; nothing before layer 0. */
static struct kd_gpu_k3_mix after(const struct run *r, int64_t layer)
{
    const struct kd_k3_layer *L = layer >= 0 ? &r->d->m->layers[layer] : NULL;
    return (struct kd_gpu_k3_mix){
        .add = L ? r->d->w.f : NULL,
        .more = L && L->moe && L->gate.type != KD_MAT_NONE ? r->d->w.shared : NULL};
}

/* Shows the stream after a layer: the device adds its last part only with the next mix. */
static int show_stream(struct run *r, int64_t l, struct kd_err *err)
{
    const struct kd_k3_device_work *w = &r->d->w;
    const struct kd_gpu_k3_mix add = after(r, l);
    struct kd_k3_stream *s = &r->seen;
    int64_t n = r->b.rows * s->hidden;
    float *f = s->bank + r->banks * n, *g = f + n;
    if (kd_gpu_download(r->d->g, s->p, w->p, n * 4, err) ||
        kd_gpu_download(r->d->g, s->bank, w->bank, r->banks * n * 4, err) ||
        kd_gpu_download(r->d->g, f, add.add, n * 4, err) ||
        (add.more && kd_gpu_download(r->d->g, g, add.more, n * 4, err)))
        return -1;
    for (int64_t i = 0; i < n; i++)
        s->p[i] += add.more ? f[i] + g[i] : f[i];
    s->banks = r->banks;
    s->started = true;
    r->p->o->after_layer(r->p->o->after_ctx, l, s);
    return 0;
}

static int watch(struct run *r, int64_t l, struct kd_err *err)
{
    const struct kd_k3_device_work *w = &r->d->w;
    int64_t n = r->b.rows * r->d->m->cfg.topk * 4;
    if (r->p->topk && r->d->m->layers[l].moe) {
        if (kd_gpu_download(r->d->g, r->p->topk, w->ids, n, err) ||
            kd_gpu_download(r->d->g, r->p->weight, w->weight, n, err))
            return -1;
        r->p->routed(r->p->ctx, l);
    }
    return r->seen.p ? show_stream(r, l, err) : 0;
}

static int layers(struct run *r, struct kd_err *err)
{
    const struct kd_k3_model *m = r->d->m;
    const struct kd_k3_device_work *w = &r->d->w;
    r->banks = 0;
    if (kd_gpu_k3_embed(r->d->g, &r->b, r->d->embed, r->d->embed_bf16, m->cfg.hidden, w->p, err))
        return -1;
    for (int64_t l = 0; l < m->cfg.layers; l++) {
        const struct kd_k3_device_layer *D = &r->d->layers[l];
        struct kd_gpu_k3_mix in = after(r, l - 1), mid = {.add = w->a};
        in.query = l ? D->attn_res : NULL;
        in.norm = D->input_norm;
        mid.push = mid.replace = l % m->cfg.block == 0;
        mid.query = D->mlp_res;
        mid.norm = D->post_norm;
        in.out = mid.out = w->x;
        if (between(r, in, err) || (m->layers[l].mla ? mla(r, l, err) : kda(r, l, err)) ||
            mul(r, l, ATTN_OUT, err) || between(r, mid, err) || ffn(r, l, err) || watch(r, l, err))
            return kd_wrap(err, "layer %lld", (long long)l);
    }
    return 0;
}

/* Logits of `count` of the wanted rows, from number `first`. */
static int head(struct run *r, int64_t first, int64_t count, struct kd_err *err)
{
    const struct kd_k3_device_work *w = &r->d->w;
    const struct kd_k3_cfg *c = &r->d->m->cfg;
    const struct kd_gpu_job job = {&r->d->head, w->h, c->hidden, w->head, c->vocab};
    struct kd_gpu_k3_mix m = after(r, c->layers - 1);
    m.rows = count;
    m.query = r->d->out_res;
    m.norm = r->d->norm;
    m.pick = r->pick + first;
    m.out = w->h;
    return between(r, m, err) ||
                   kd_gpu_mul(r->d->g, r->d->cls, &job, 1, count, w->scratch, w->scratch_bytes, err)
               ? -1
               : 0;
}

static int fetch_logits(const struct run *r, int64_t first, int64_t count, struct kd_err *err)
{
    const struct kd_k3_device_pass *p = r->p;
    int64_t vocab = r->d->m->cfg.vocab;
    for (int64_t i = 0, n; i < count; i += n) {
        const int64_t *at = p->place + first + i;
        for (n = 1; i + n < count && at[n] == at[0] + n; n++)
            ;
        if (kd_gpu_download(r->d->g, p->logits + at[0] * vocab, r->d->w.head + i * vocab,
                            n * vocab * 4, err))
            return -1;
    }
    return 0;
}

/* Segments, tokens, rows: to the device in one copy. */
static int send_batch(struct run *r, struct kd_err *err)
{
    struct kd_k3_device *d = r->d;
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
    r->b = (struct kd_gpu_k3_batch){.rows = p->rows, .segs = p->seg_count, .longest = longest};
    r->b.seg = (const struct kd_gpu_k3_seg *)(const void *)d->batch;
    r->b.ids = (const int32_t *)(const void *)(r->b.seg + p->seg_count);
    r->b.row_seg = r->b.ids + p->rows;
    r->pick = r->b.row_seg + p->rows;
    return kd_gpu_upload(d->g, d->batch, d->batch_host, end - d->batch_host, err);
}

/* The oldest place, or the one that holds what is asked for. */
static struct kd_k3_device_graph *graph_of(const struct run *r)
{
    struct kd_k3_device *d = r->d;
    struct kd_k3_device_graph *best = &d->graphs[0];
    for (int i = 0; i < KD_K3_DEVICE_GRAPHS; i++) {
        struct kd_k3_device_graph *a = &d->graphs[i];
        if (a->graph && a->rows == r->b.rows && a->wanted == r->p->wanted_count &&
            a->parts == r->parts && a->used == r->used)
            return a;
        if (a->last < best->last)
            best = a;
    }
    kd_gpu_graph_free(best->graph);
    *best = (struct kd_k3_device_graph){
        .rows = r->b.rows, .wanted = r->p->wanted_count, .parts = r->parts, .used = r->used};
    return best;
}

/* One token each, recorded once for this many of them. */
static int decode(struct run *r, struct kd_err *err)
{
    struct kd_k3_device *d = r->d;
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
    const struct kd_k3_cfg *c = &r->d->m->cfg;
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

static int start(struct run *r, struct kd_err *err)
{
    struct kd_k3_device *d = r->d;
    const struct kd_k3_device_pass *p = r->p;
    const struct kd_k3_cfg *c = &d->m->cfg;
    bool one = p->seg_count == p->rows;
    for (int64_t s = 0; s < p->seg_count; s++)
        if (kd_k3_device_seq_reserve(p->seq[s]->dev, d, p->seq[s]->pos + p->segs[s].count, err))
            return -1;
    if (send_batch(r, err))
        return -1;
    kd_gpu_k3_mla_floats(d->fast, c->heads, c->kv_lora, p->rows, r->b.longest, d->w.mla_floats,
                         &r->parts);
    if (p->o && p->o->after_layer) {
        /* Two banks more than a model fills: room for what is not added yet. */
        struct kd_k3_cfg wide = *c;
        wide.layers += 2 * c->block;
        if (kd_k3_stream_init(&r->seen, &wide, p->rows, err))
            return -1;
    }
    bool plain = one && !p->topk && !r->seen.p && p->wanted_count <= KD_K3_DEVICE_LOGITS &&
                 (!p->o || p->o->expert_mass <= 0);
    return plain ? decode(r, err) : prefill(r, err);
}

int kd_k3_device_run(struct kd_k3_device *d, const struct kd_k3_device_pass *p, struct kd_err *err)
{
    struct run r = {.d = d, .p = p};
    r.used = p->o && p->o->experts_used ? p->o->experts_used : d->m->cfg.topk;
    int rc = check(&r, err) || start(&r, err) || kd_gpu_wait(d->g, err) ? -1 : 0;
    if (r.seen.p)
        kd_k3_stream_release(&r.seen);
    return rc ? kd_wrap(err, "cuda:%d", d->index) : 0;
}
