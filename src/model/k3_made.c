/* Models of a shape alone: every matrix with its type and size, random weights made where they are
 * multiplied. For measuring shapes that no file at hand has. */
#include "base/mem.h"
#include "base/rand.h"
#include "fmt/exl3_file.h"
#include "model/k3_device.h"
#include "model/k3_quant.h"

#include <string.h>

/* A matrix of that shape: EXL3 at `rate16` sixteenths of a bit, or BF16 at 0. */
static void shape(struct kd_mat *m, unsigned rate16, int64_t rows, int64_t cols)
{
    *m = (struct kd_mat){.type = KD_MAT_BF16, .rows = rows, .cols = cols, .ld = cols};
    if (!rate16 || !kd_k3_pads_well(rows, cols))
        return;
    m->type = KD_MAT_EXL3;
    m->rows_padded = kd_exl3_pad(rows);
    m->cols_padded = kd_exl3_pad(cols);
    m->ld = m->rows_padded / KD_TILE;
    m->rate = kd_rate_from16(rate16);
    m->cb = KD_CB_MUL1;
}

/* A matrix of the trunk, by its name at the rate that a conversion gives it. */
static void trunk(struct kd_mat *m, const struct kd_k3_made *made, const char *row, int64_t rows,
                  int64_t cols)
{
    shape(m, kd_k3_trunk_rate16(row, strlen(row), made->trunk_bpw), rows, cols);
    if (made->f32 && m->type == KD_MAT_BF16)
        m->type = KD_MAT_F32;
}

struct vectors {
    float *at;
    uint64_t seed;
};

/* count values of middle +- spread. */
static float *vector(struct vectors *v, int64_t count, float middle, float spread)
{
    float *p = v->at;
    v->at += count;
    v->seed++;
    for (int64_t i = 0; i < count; i++)
        p[i] = middle + spread * (float)(2 * kd_rand_unit(v->seed, (uint64_t)i) - 1);
    return p;
}

static void make_kda(struct kd_k3_layer *L, const struct kd_k3_cfg *c,
                     const struct kd_k3_made *made, struct vectors *v)
{
    int64_t d = c->kda_dim, ch = c->kda_heads * d, hid = c->hidden;
    L->heads = c->kda_heads;
    trunk(&L->q, made, "self_attn.q_proj", ch, hid);
    trunk(&L->k, made, "self_attn.k_proj", ch, hid);
    trunk(&L->v, made, "self_attn.v_proj", ch, hid);
    trunk(&L->g, made, "self_attn.g_proj", ch, hid);
    trunk(&L->f_a, made, "self_attn.f_a_proj", d, hid);
    trunk(&L->f_b, made, "self_attn.f_b_proj", ch, d);
    trunk(&L->b, made, "self_attn.b_proj", c->kda_heads, hid);
    trunk(&L->o, made, "self_attn.o_proj", hid, ch);
    L->q_conv = vector(v, ch * c->conv, 0, 0.5f);
    L->k_conv = vector(v, ch * c->conv, 0, 0.5f);
    L->v_conv = vector(v, ch * c->conv, 0, 0.5f);
    L->decay = vector(v, c->kda_heads, 1, 0.5f);
    L->dt_bias = vector(v, ch, -2, 1);
    L->o_norm = vector(v, d, 1, 0.1f);
}

static void make_mla(struct kd_k3_layer *L, const struct kd_k3_cfg *c,
                     const struct kd_k3_made *made, struct vectors *v)
{
    int64_t n = c->heads, vd = n * c->v_dim, hid = c->hidden;
    L->heads = n;
    trunk(&L->q_a, made, "self_attn.q_a_proj", c->q_lora, hid);
    trunk(&L->q_b, made, "self_attn.q_b_proj", n * (c->nope + c->rope), c->q_lora);
    trunk(&L->kv_a, made, "self_attn.kv_a_proj_with_mqa", c->kv_lora + c->rope, hid);
    trunk(&L->kv_b, made, "self_attn.kv_b_proj", n * (c->nope + c->v_dim), c->kv_lora);
    trunk(&L->g, made, "self_attn.g_proj", vd, hid);
    trunk(&L->o, made, "self_attn.o_proj", hid, vd);
    L->q_a_norm = vector(v, c->q_lora, 1, 0.1f);
    L->kv_a_norm = vector(v, c->kv_lora, 1, 0.1f);
}

static void make_ffn(struct kd_k3_layer *L, const struct kd_k3_cfg *c,
                     const struct kd_k3_made *made, struct vectors *v)
{
    int64_t hid = c->hidden, wide = L->moe ? c->shared * c->moe_inter : c->dense_inter;
    const char *gate = "mlp.gate_proj", *up = "mlp.up_proj", *down = "mlp.down_proj";
    if (L->moe) {
        gate = "block_sparse_moe.shared_experts.gate_proj";
        up = "block_sparse_moe.shared_experts.up_proj";
        down = "block_sparse_moe.shared_experts.down_proj";
        trunk(&L->router, made, "block_sparse_moe.gate", c->experts, hid);
        trunk(&L->routed_down, made, "block_sparse_moe.routed_expert_down_proj", c->latent, hid);
        trunk(&L->routed_up, made, "block_sparse_moe.routed_expert_up_proj", hid, c->latent);
        L->router_bias = vector(v, c->experts, 0, 0.01f);
        L->routed_norm = c->latent_norm ? vector(v, c->latent, 1, 0.1f) : NULL;
    }
    if (!wide)
        return;
    trunk(&L->gate, made, gate, wide, hid);
    trunk(&L->up, made, up, wide, hid);
    trunk(&L->down, made, down, hid, wide);
}

static int make_layer(struct kd_k3_layer *L, const struct kd_k3_cfg *c,
                      const struct kd_k3_made *made, int64_t index, struct kd_err *err)
{
    int64_t floats = 4 * c->hidden + c->experts + c->latent + c->q_lora + c->kv_lora +
                     c->kda_heads * (c->kda_dim * (3 * c->conv + 1) + 1) + c->kda_dim;
    L->index = index;
    L->mla = c->mla[index];
    L->moe = kd_k3_is_moe(c, index);
    if (kd_mem_new(&L->owned, floats, sizeof(float), "layer vectors", err))
        return -1;
    struct vectors v = {.at = L->owned, .seed = made->seed + 100 * (uint64_t)index};
    L->input_norm = vector(&v, c->hidden, 1, 0.1f);
    L->post_norm = vector(&v, c->hidden, 1, 0.1f);
    L->attn_res = vector(&v, c->hidden, 0, 0.02f);
    L->mlp_res = vector(&v, c->hidden, 0, 0.02f);
    if (L->mla)
        make_mla(L, c, made, &v);
    else
        make_kda(L, c, made, &v);
    make_ffn(L, c, made, &v);
    return 0;
}

int kd_k3_made_layer(struct kd_k3_layer *L, const struct kd_k3_cfg *c, int64_t index, bool f32,
                     struct kd_err *err)
{
    const struct kd_k3_made plain = {.f32 = f32};
    return make_layer(L, c, &plain, index, err);
}

/* All experts alike. */
struct made_store {
    struct kd_store s;
    struct kd_expert each;
};

static int get(struct kd_store *s, int64_t layer, int64_t expert, struct kd_expert *out,
               struct kd_err *err)
{
    const struct made_store *m = s->ctx;
    (void)layer;
    (void)expert;
    (void)err;
    *out = m->each;
    return 0;
}

static int make_store(struct kd_store **out, const struct kd_k3_cfg *c,
                      const struct kd_k3_made *made, struct kd_err *err)
{
    struct made_store *m;
    unsigned rate16 = kd_k3_rate16(made->bpw);
    if (kd_mem_zero(&m, 1, sizeof *m, "expert store", err))
        return -1;
    m->each = (struct kd_expert){.tier = KD_TIER_HOST, .ready = true};
    shape(&m->each.w1, rate16, c->moe_inter, c->latent);
    shape(&m->each.w3, rate16, c->moe_inter, c->latent);
    shape(&m->each.w2, rate16, c->latent, c->moe_inter);
    m->s.get = get;
    m->s.ctx = m;
    *out = &m->s;
    return 0;
}

void kd_k3_made_store_close(struct kd_store *s)
{
    if (s)
        kd_mem_free(s->ctx);
}

static int make_ends(struct kd_k3_ends *e, const struct kd_k3_cfg *c, const struct kd_k3_made *made,
                     struct kd_err *err)
{
    if (kd_mem_new(&e->owned, 2 * c->hidden, sizeof(float), "final vectors", err))
        return -1;
    struct vectors v = {.at = e->owned, .seed = made->seed + 99};
    e->norm = vector(&v, c->hidden, 1, 0.1f);
    e->out_res = vector(&v, c->hidden, 0, 0.02f);
    shape(&e->embed, 0, c->vocab, c->hidden);
    shape(&e->head, made->head_bpw > 0 ? kd_k3_rate16(made->head_bpw) : 0, c->vocab, c->hidden);
    return 0;
}

static int make_parts(struct kd_k3_model *m, const struct kd_k3_made *made, int device,
                      struct kd_err *err)
{
    if (kd_mem_zero(&m->layers, m->cfg.layers, sizeof *m->layers, "layers", err))
        return -1;
    for (int64_t l = 0; l < m->cfg.layers; l++)
        if (make_layer(&m->layers[l], &m->cfg, made, l, err))
            return -1;
    if (make_ends(&m->ends, &m->cfg, made, err) || make_store(&m->store, &m->cfg, made, err))
        return -1;
    return kd_k3_device_open(&m->dev, m, device - 1, false, err);
}

int kd_k3_make(struct kd_k3_model **out, const struct kd_k3_cfg *cfg, const struct kd_k3_made *made,
               const struct kd_run *run, int device, struct kd_err *err)
{
    struct kd_k3_model *m;
    *out = NULL;
    if (!device)
        return kd_fail(err, KD_EUSAGE, "a model of a shape alone is made on a device");
    if (made->layers < 0 || made->layers > cfg->layers)
        return kd_fail(err, KD_EINVAL, "%lld layers: the shape has %lld", (long long)made->layers,
                       (long long)cfg->layers);
    if (kd_mem_zero(&m, 1, sizeof *m, "model", err))
        return -1;
    m->cfg = *cfg;
    m->cfg.layers = made->layers ? made->layers : cfg->layers;
    m->run = *run;
    m->made = true;
    if (make_parts(m, made, device, err)) {
        kd_k3_close(m);
        return -1;
    }
    *out = m;
    return 0;
}
