/* One layer on a device, its experts excepted: the work space of a batch, the products that run
 * side by side, attention, the router, and what lies between two halves of a layer (adding,
 * banking, mixing, the norm), which is one launch. */
#include "model/k3_device.h"

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

/* Rows of logits: without a head there are none. */
static int64_t logits_of(const struct kd_k3_device *d)
{
    return d->head.type != KD_GPU_MAT_NONE ? KD_K3_DEVICE_LOGITS : 0;
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
    w->mla_floats = kd_gpu_k3_mla_floats(d->fast, c->heads, c->kv_lora, R, d->context, 0, &parts);
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
    w->h = take(a, logits_of(d) * hid);
    w->head = take(a, logits_of(d) * c->vocab);
    w->scratch = take(a, (w->scratch_bytes + 3) / 4);
}

/* The products of a list, which run side by side. */
static int list_of(const struct kd_k3_device *d, int64_t l, enum kd_k3_device_list list,
                   struct kd_gpu_job *j)
{
    const struct kd_k3_device_layer *D = &d->layers[l];
    const struct kd_k3_layer *L = &d->m->layers[l];
    const struct kd_k3_cfg *c = &d->m->cfg;
    const struct kd_k3_device_work *w = &d->w;
    int64_t hid = c->hidden, ch = L->heads * c->kda_dim, wide = L->gate.rows;
    int64_t qd = L->heads * (c->nope + c->rope), yd = L->o.cols;
    const bool mlp = L->gate.type != KD_MAT_NONE;
    int n = 0;
    switch (list) {
    case KD_K3_KDA_IN:
        if (L->mla)
            return 0;
        j[n++] = (struct kd_gpu_job){&D->q, w->x, hid, w->q, ch};
        j[n++] = (struct kd_gpu_job){&D->k, w->x, hid, w->k, ch};
        j[n++] = (struct kd_gpu_job){&D->v, w->x, hid, w->v, ch};
        j[n++] = (struct kd_gpu_job){&D->g, w->x, hid, w->gate, ch};
        j[n++] = (struct kd_gpu_job){&D->f_a, w->x, hid, w->fa, c->kda_dim};
        j[n++] = (struct kd_gpu_job){&D->b, w->x, hid, w->beta, L->heads};
        return n;
    case KD_K3_KDA_GATE:
        if (!L->mla)
            j[n++] = (struct kd_gpu_job){&D->f_b, w->fa, c->kda_dim, w->z, ch};
        return n;
    case KD_K3_MLA_IN:
        if (!L->mla)
            return 0;
        j[n++] = (struct kd_gpu_job){&D->q_a, w->x, hid, w->cq, c->q_lora};
        j[n++] = (struct kd_gpu_job){&D->kv_a, w->x, hid, w->kv, c->kv_lora + c->rope};
        j[n++] = (struct kd_gpu_job){&D->g, w->x, hid, w->gate, L->heads * c->v_dim};
        return n;
    case KD_K3_MLA_QUERY:
        if (L->mla)
            j[n++] = (struct kd_gpu_job){&D->q_b, w->cq, c->q_lora, w->q, qd};
        return n;
    case KD_K3_ATTN_OUT:
        j[n++] = (struct kd_gpu_job){&D->o, w->y, yd, w->a, hid};
        return n;
    case KD_K3_FFN_IN:
    case KD_K3_LATENT_IN:
        if (L->moe) {
            j[n++] = (struct kd_gpu_job){&D->router, w->x, hid, w->logits, c->experts};
            j[n++] = (struct kd_gpu_job){&D->routed_down, w->x, hid, w->latent, c->latent};
        }
        if (list == KD_K3_LATENT_IN)
            return n;
        __attribute__((fallthrough));
    case KD_K3_MLP_IN:
        if (mlp) {
            j[n++] = (struct kd_gpu_job){&D->gate, w->x, hid, w->inner, wide};
            j[n++] = (struct kd_gpu_job){&D->up, w->x, hid, w->up, wide};
        }
        return n;
    case KD_K3_FFN_OUT:
        if (L->moe)
            j[n++] = (struct kd_gpu_job){&D->routed_up, w->u, c->latent, w->f, hid};
        if (mlp)
            j[n++] = (struct kd_gpu_job){&D->down, w->inner, wide, L->moe ? w->shared : w->f, hid};
        return n;
    case KD_K3_LISTS:
        break;
    }
    return 0;
}

/* Scratch of the largest of all products, whatever the rows. */
static int64_t scratch_bytes(const struct kd_k3_device *d)
{
    const int64_t rows[] = {1, KD_GPU_ROWS, KD_GPU_ROWS + 1, d->rows_max};
    const struct kd_gpu_job head = {.w = &d->head, .ldx = d->m->cfg.hidden, .ldy = d->m->cfg.vocab};
    const int64_t logits = logits_of(d);
    int64_t most = logits ? kd_gpu_mul_scratch(&head, 1, logits) : 0;
    struct kd_gpu_job jobs[KD_GPU_JOBS];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (logits && i < 3)
            most = larger(most, kd_gpu_mul_scratch(&head, 1, rows[i]));
        for (int64_t l = 0; l < d->layer_count; l++)
            for (int k = 0; k < KD_K3_LISTS; k++) {
                int n = list_of(d, l, (enum kd_k3_device_list)k, jobs);
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

void kd_k3_device_work_place(struct kd_k3_device *d)
{
    struct arena a = {.base = d->work_memory};
    lay_out(d, &d->w, &a);
}

int kd_k3_device_fits(const struct kd_k3_model *m, struct kd_err *err)
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

void kd_k3_device_place_states(struct kd_k3_device *d)
{
    const struct kd_k3_cfg *c = &d->m->cfg;
    for (int64_t l = 0; l < d->layer_count; l++) {
        const struct kd_k3_layer *L = &d->m->layers[l];
        d->layers[l].state = L->mla ? d->page_values : d->kda_floats;
        if (L->mla)
            d->page_values += KD_K3_PAGE * (c->kv_lora + c->rope);
        else
            d->kda_floats += kd_k3_kda_floats(c, L->heads);
    }
}

int kd_k3_device_mul(const struct kd_k3_device_at *at, int64_t l, enum kd_k3_device_list list,
                     struct kd_err *err)
{
    struct kd_k3_device *d = at->d;
    static const char *const part[KD_K3_LISTS] = {"KDA's projections",
                                                  "KDA's gate",
                                                  "MLA's projections",
                                                  "MLA's queries",
                                                  "attention's out",
                                                  "latents in, router",
                                                  "MLP in",
                                                  "FFN in",
                                                  "FFN out"};
    struct kd_gpu_job jobs[KD_GPU_JOBS];
    int n = list_of(d, l, list, jobs);
    if (!n)
        return 0;
    kd_gpu_account_at(d->g, part[list]);
    return kd_gpu_mul(d->g, d->cls, jobs, n, at->b.rows, d->w.scratch, d->w.scratch_bytes, err);
}

static int kda(const struct kd_k3_device_at *at, int64_t l, struct kd_err *err)
{
    const struct kd_k3_device_layer *D = &at->d->layers[l];
    const struct kd_k3_device_work *w = &at->d->w;
    const struct kd_k3_cfg *c = &at->d->m->cfg;
    const struct kd_gpu_k3_kda k = {.heads = at->d->m->layers[l].heads,
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
    if (kd_k3_device_mul(at, l, KD_K3_KDA_IN, err) || kd_k3_device_mul(at, l, KD_K3_KDA_GATE, err))
        return -1;
    kd_gpu_account_at(at->d->g, "KDA");
    return kd_gpu_k3_kda_run(at->d->g, &at->b, &k, err);
}

int kd_k3_device_q_latent(const struct kd_k3_device_at *at, int64_t l, struct kd_err *err)
{
    const struct kd_k3_device_layer *D = &at->d->layers[l];
    const struct kd_k3_device_work *w = &at->d->w;
    const struct kd_k3_cfg *c = &at->d->m->cfg;
    const struct kd_gpu_k3_latents in = {.q_lora = c->q_lora,
                                         .kv_lora = c->kv_lora,
                                         .fast = at->d->fast,
                                         .eps = c->eps_latent,
                                         .cq = w->cq,
                                         .kv = w->kv,
                                         .q_norm = D->q_a_norm,
                                         .kv_norm = D->kv_a_norm,
                                         .page = D->state};
    return kd_k3_device_mul(at, l, KD_K3_MLA_IN, err) ||
                   kd_gpu_k3_latents_run(at->d->g, &at->b, &in, err)
               ? -1
               : 0;
}

static int mla(const struct kd_k3_device_at *at, int64_t l, struct kd_err *err)
{
    const struct kd_k3_device_layer *D = &at->d->layers[l];
    const struct kd_k3_device_work *w = &at->d->w;
    const struct kd_k3_cfg *c = &at->d->m->cfg;
    const struct kd_gpu_k3_mla m = {.heads = at->d->m->layers[l].heads,
                                    .kv_lora = c->kv_lora,
                                    .fast = at->d->fast,
                                    .q = w->q,
                                    .gate = w->gate,
                                    .kv_b = D->kv_b,
                                    .bf16 = D->kv_b_bf16,
                                    .page = D->state,
                                    .work = w->mla,
                                    .parts = at->parts,
                                    .y = w->y,
                                    .floats = w->mla_floats};
    if (kd_k3_device_q_latent(at, l, err) || kd_k3_device_mul(at, l, KD_K3_MLA_QUERY, err))
        return -1;
    kd_gpu_account_at(at->d->g, "MLA");
    return kd_gpu_k3_mla_run(at->d->g, &at->b, &m, err);
}

/* The router over what KD_K3_LATENT_IN made. */
int kd_k3_device_route(const struct kd_k3_device_at *at, int64_t l, int64_t used, double mass,
                       struct kd_err *err)
{
    const struct kd_k3_device_work *w = &at->d->w;
    const struct kd_k3_cfg *c = &at->d->m->cfg;
    const struct kd_gpu_k3_route route = {.rows = at->b.rows,
                                          .experts = c->experts,
                                          .topk = c->topk,
                                          .used = used,
                                          .renormalize = c->renormalize,
                                          .scale = c->routed_scale,
                                          .mass = mass,
                                          .logits = w->logits,
                                          .bias = at->d->layers[l].router_bias,
                                          .ids = w->ids,
                                          .w = w->weight};
    kd_gpu_account_at(at->d->g, "router");
    return kd_gpu_k3_route_run(at->d->g, &route, err);
}

int kd_k3_device_latent_norm(const struct kd_k3_device_at *at, int64_t l, struct kd_err *err)
{
    const struct kd_k3_device_layer *D = &at->d->layers[l];
    const struct kd_k3_cfg *c = &at->d->m->cfg;
    float *u = at->d->w.u;
    kd_gpu_account_at(at->d->g, "latents' norm");
    return D->routed_norm
               ? kd_gpu_k3_norm(at->d->g, u, D->routed_norm, c->eps, at->b.rows, c->latent, u, err)
               : 0;
}

int kd_k3_device_mlp(const struct kd_k3_device_at *at, int64_t l, struct kd_err *err)
{
    const struct kd_k3_layer *L = &at->d->m->layers[l];
    const struct kd_k3_device_work *w = &at->d->w;
    const struct kd_k3_cfg *c = &at->d->m->cfg;
    kd_gpu_account_at(at->d->g, "SiTU");
    return L->gate.type != KD_MAT_NONE
               ? kd_gpu_k3_situ(at->d->g, w->inner, w->up, c->situ_beta, c->situ_linear,
                                at->b.rows * L->gate.rows, w->inner, err)
               : 0;
}

int kd_k3_device_mix(struct kd_k3_device_at *at, struct kd_gpu_k3_mix m, struct kd_err *err)
{
    const struct kd_k3_device_work *w = &at->d->w;
    const struct kd_k3_cfg *c = &at->d->m->cfg;
    m.rows = m.pick ? m.rows : at->b.rows;
    m.hidden = c->hidden;
    m.p = w->p;
    m.bank = w->bank;
    m.bank_rows = at->b.rows;
    m.banks = at->banks;
    m.eps = c->eps;
    at->banks += m.push;
    kd_gpu_account_at(at->d->g, "residual mix");
    return kd_gpu_k3_mix_run(at->d->g, &m, err);
}

int kd_k3_device_attention(const struct kd_k3_device_at *at, int64_t l, struct kd_err *err)
{
    return at->d->m->layers[l].mla ? mla(at, l, err) : kda(at, l, err);
}
