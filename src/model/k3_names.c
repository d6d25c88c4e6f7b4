#include "model/k3_names.h"

#include <stdio.h>
#include <string.h>

enum dim {
    END,
    ONE,
    HIDDEN,
    VOCAB,
    KDA_CH, /* heads * dim */
    KDA_DIM,
    KDA_HEADS,
    KDA_ALOG, /* A_log is stored padded to the head's width when that is more */
    CONV,
    Q_LORA,
    Q_ROWS,
    KV_LORA,
    KV_A_ROWS,
    KV_B_ROWS,
    MLA_CH,
    EXPERTS,
    LATENT,
    MOE,
    SHARED,
    DENSE,
    V_HIDDEN,
    V_QKV,
    V_QKV3,
    V_INTER,
    V_PATCH,
    V_POS_H,
    V_POS_W,
    V_MERGED,
    V_TEXT,
    THREE
};

enum where { GLOBAL, EVERY, ON_KDA, ON_MLA, ON_DENSE, ON_MOE, ON_EXPERT, ON_VISION, ON_BLOCK };

static const struct row {
    const char *base; /* after "model.layers.N." and the like, before the suffix */
    enum kd_k3_kind kind;
    uint8_t where;
    bool bare; /* the name ends here: no ".weight" */
    bool f32;  /* the release stores it as F32, else BF16 */
    uint8_t dims[KD_K3_DIMS_MAX];
    /* In a GGUF, after "blk.N." and without ".weight"; NULL: not there (folded into another, or not
     * text). */
    const char *gguf;
} rows[] = {
    {"block_sparse_moe.experts.*.w1",
     KD_K3_ROUTED,
     ON_EXPERT,
     0,
     0,
     {MOE, LATENT},
     "ffn_gate_exps"},
    {"block_sparse_moe.experts.*.w2",
     KD_K3_ROUTED,
     ON_EXPERT,
     0,
     0,
     {LATENT, MOE},
     "ffn_down_exps"},
    {"block_sparse_moe.experts.*.w3", KD_K3_ROUTED, ON_EXPERT, 0, 0, {MOE, LATENT}, "ffn_up_exps"},
    {"input_layernorm", KD_K3_NORMS, EVERY, 0, 0, {HIDDEN}, "attn_norm"},
    {"post_attention_layernorm", KD_K3_NORMS, EVERY, 0, 0, {HIDDEN}, "ffn_norm"},
    {"self_attention_res_norm", KD_K3_NORMS, EVERY, 0, 0, {HIDDEN}, NULL},
    {"self_attention_res_proj", KD_K3_NORMS, EVERY, 0, 0, {ONE, HIDDEN}, "attn_res_score"},
    {"mlp_res_norm", KD_K3_NORMS, EVERY, 0, 0, {HIDDEN}, NULL},
    {"mlp_res_proj", KD_K3_NORMS, EVERY, 0, 0, {ONE, HIDDEN}, "ffn_res_score"},
    {"self_attn.q_proj", KD_K3_KDA, ON_KDA, 0, 0, {KDA_CH, HIDDEN}, "attn_q"},
    {"self_attn.k_proj", KD_K3_KDA, ON_KDA, 0, 0, {KDA_CH, HIDDEN}, "attn_k"},
    {"self_attn.v_proj", KD_K3_KDA, ON_KDA, 0, 0, {KDA_CH, HIDDEN}, "attn_v"},
    {"self_attn.g_proj", KD_K3_KDA, ON_KDA, 0, 0, {KDA_CH, HIDDEN}, "ssm_g"},
    {"self_attn.q_conv1d", KD_K3_KDA, ON_KDA, 0, 1, {KDA_CH, ONE, CONV}, "ssm_conv1d_q"},
    {"self_attn.k_conv1d", KD_K3_KDA, ON_KDA, 0, 1, {KDA_CH, ONE, CONV}, "ssm_conv1d_k"},
    {"self_attn.v_conv1d", KD_K3_KDA, ON_KDA, 0, 1, {KDA_CH, ONE, CONV}, "ssm_conv1d_v"},
    {"self_attn.f_a_proj", KD_K3_KDA, ON_KDA, 0, 0, {KDA_DIM, HIDDEN}, "ssm_f_a"},
    {"self_attn.f_b_proj", KD_K3_KDA, ON_KDA, 0, 0, {KDA_CH, KDA_DIM}, "ssm_f_b"},
    {"self_attn.b_proj", KD_K3_KDA, ON_KDA, 0, 0, {KDA_HEADS, HIDDEN}, "ssm_beta"},
    {"self_attn.A_log", KD_K3_KDA, ON_KDA, 1, 1, {KDA_ALOG}, "ssm_a"},
    {"self_attn.dt_bias", KD_K3_KDA, ON_KDA, 1, 1, {KDA_CH}, "ssm_dt.bias"},
    {"self_attn.o_norm", KD_K3_KDA, ON_KDA, 0, 1, {KDA_DIM}, "ssm_norm"},
    {"self_attn.o_proj", KD_K3_KDA, ON_KDA, 0, 0, {HIDDEN, KDA_CH}, "attn_output"},
    {"self_attn.q_a_proj", KD_K3_MLA, ON_MLA, 0, 0, {Q_LORA, HIDDEN}, "attn_q_a"},
    {"self_attn.q_a_layernorm", KD_K3_MLA, ON_MLA, 0, 0, {Q_LORA}, "attn_q_a_norm"},
    {"self_attn.q_b_proj", KD_K3_MLA, ON_MLA, 0, 0, {Q_ROWS, Q_LORA}, "attn_q_b"},
    {"self_attn.kv_a_proj_with_mqa", KD_K3_MLA, ON_MLA, 0, 0, {KV_A_ROWS, HIDDEN}, "attn_kv_a_mqa"},
    {"self_attn.kv_a_layernorm", KD_K3_MLA, ON_MLA, 0, 0, {KV_LORA}, "attn_kv_a_norm"},
    {"self_attn.kv_b_proj", KD_K3_MLA, ON_MLA, 0, 0, {KV_B_ROWS, KV_LORA}, "attn_k_b"},
    {"self_attn.g_proj", KD_K3_MLA, ON_MLA, 0, 0, {MLA_CH, HIDDEN}, "attn_gate"},
    {"self_attn.o_proj", KD_K3_MLA, ON_MLA, 0, 0, {HIDDEN, MLA_CH}, "attn_output"},
    {"mlp.gate_proj", KD_K3_DENSE, ON_DENSE, 0, 0, {DENSE, HIDDEN}, "ffn_gate"},
    {"mlp.up_proj", KD_K3_DENSE, ON_DENSE, 0, 0, {DENSE, HIDDEN}, "ffn_up"},
    {"mlp.down_proj", KD_K3_DENSE, ON_DENSE, 0, 0, {HIDDEN, DENSE}, "ffn_down"},
    {"block_sparse_moe.gate", KD_K3_ROUTER, ON_MOE, 0, 0, {EXPERTS, HIDDEN}, "ffn_gate_inp"},
    {"block_sparse_moe.gate.e_score_correction_bias",
     KD_K3_ROUTER,
     ON_MOE,
     1,
     1,
     {EXPERTS},
     "exp_probs_b.bias"},
    {"block_sparse_moe.routed_expert_down_proj",
     KD_K3_LATENT,
     ON_MOE,
     0,
     0,
     {LATENT, HIDDEN},
     "ffn_routed_down"},
    {"block_sparse_moe.routed_expert_norm",
     KD_K3_LATENT,
     ON_MOE,
     0,
     0,
     {LATENT},
     "ffn_routed_norm"},
    {"block_sparse_moe.routed_expert_up_proj",
     KD_K3_LATENT,
     ON_MOE,
     0,
     0,
     {HIDDEN, LATENT},
     "ffn_routed_up"},
    {"block_sparse_moe.shared_experts.gate_proj",
     KD_K3_SHARED,
     ON_MOE,
     0,
     0,
     {SHARED, HIDDEN},
     "ffn_gate_shexp"},
    {"block_sparse_moe.shared_experts.up_proj",
     KD_K3_SHARED,
     ON_MOE,
     0,
     0,
     {SHARED, HIDDEN},
     "ffn_up_shexp"},
    {"block_sparse_moe.shared_experts.down_proj",
     KD_K3_SHARED,
     ON_MOE,
     0,
     0,
     {HIDDEN, SHARED},
     "ffn_down_shexp"},
    {"model.embed_tokens", KD_K3_EMBED, GLOBAL, 0, 0, {VOCAB, HIDDEN}, "token_embd"},
    {"lm_head", KD_K3_HEAD, GLOBAL, 0, 0, {VOCAB, HIDDEN}, "output"},
    {"model.norm", KD_K3_FINAL, GLOBAL, 0, 0, {HIDDEN}, "output_norm"},
    {"model.output_attn_res_norm", KD_K3_FINAL, GLOBAL, 0, 0, {HIDDEN}, NULL},
    {"model.output_attn_res_proj", KD_K3_FINAL, GLOBAL, 0, 0, {ONE, HIDDEN}, "output_res_score"},
    {"vision_tower.patch_embed.proj",
     KD_K3_VISION,
     ON_VISION,
     0,
     0,
     {V_HIDDEN, THREE, V_PATCH, V_PATCH},
     NULL},
    {"vision_tower.patch_embed.pos_emb",
     KD_K3_VISION,
     ON_VISION,
     0,
     0,
     {V_POS_H, V_POS_W, V_HIDDEN},
     NULL},
    {"vision_tower.encoder.final_layernorm", KD_K3_VISION, ON_VISION, 0, 0, {V_HIDDEN}, NULL},
    {"norm0", KD_K3_VISION, ON_BLOCK, 0, 0, {V_HIDDEN}, NULL},
    {"norm1", KD_K3_VISION, ON_BLOCK, 0, 0, {V_HIDDEN}, NULL},
    {"wqkv", KD_K3_VISION, ON_BLOCK, 0, 0, {V_QKV3, V_HIDDEN}, NULL},
    {"wo", KD_K3_VISION, ON_BLOCK, 0, 0, {V_HIDDEN, V_QKV}, NULL},
    {"mlp.fc0", KD_K3_VISION, ON_BLOCK, 0, 0, {V_INTER, V_HIDDEN}, NULL},
    {"mlp.fc1", KD_K3_VISION, ON_BLOCK, 0, 0, {V_HIDDEN, V_INTER}, NULL},
    {"mm_projector.proj.0", KD_K3_PROJECTOR, ON_VISION, 0, 0, {V_MERGED, V_MERGED}, NULL},
    {"mm_projector.proj.2", KD_K3_PROJECTOR, ON_VISION, 0, 0, {V_TEXT, V_MERGED}, NULL},
    {"mm_projector.post_norm", KD_K3_PROJECTOR, ON_VISION, 0, 0, {V_TEXT}, NULL},
};
enum { ROWS = sizeof rows / sizeof *rows };
_Static_assert((int)ROWS <= (int)KD_K3_ROWS_MAX, "callers keep arrays of KD_K3_ROWS_MAX");

static int64_t dim(const struct kd_k3_map *m, enum dim d)
{
    const struct kd_k3_cfg *c = m->cfg;
    const struct kd_k3_vision *v = &m->vision;
    switch (d) {
    case END:
        break;
    case ONE:
        return 1;
    case THREE:
        return 3;
    case HIDDEN:
        return c->hidden;
    case VOCAB:
        return c->vocab;
    case KDA_CH:
        return c->kda_heads * c->kda_dim;
    case KDA_DIM:
        return c->kda_dim;
    case KDA_HEADS:
        return c->kda_heads;
    case KDA_ALOG:
        return c->kda_dim > c->kda_heads ? c->kda_dim : c->kda_heads;
    case CONV:
        return c->conv;
    case Q_LORA:
        return c->q_lora;
    case Q_ROWS:
        return c->heads * (c->nope + c->rope);
    case KV_LORA:
        return c->kv_lora;
    case KV_A_ROWS:
        return c->kv_lora + c->rope;
    case KV_B_ROWS:
        return c->heads * (c->nope + c->v_dim);
    case MLA_CH:
        return c->heads * c->v_dim;
    case EXPERTS:
        return c->experts;
    case LATENT:
        return c->latent ? c->latent : c->hidden;
    case MOE:
        return c->moe_inter;
    case SHARED:
        return c->shared * c->moe_inter;
    case DENSE:
        return c->dense_inter;
    case V_HIDDEN:
        return v->hidden;
    case V_QKV:
        return v->qkv;
    case V_QKV3:
        return 3 * v->qkv;
    case V_INTER:
        return v->inter;
    case V_PATCH:
        return v->patch;
    case V_POS_H:
        return v->pos_h;
    case V_POS_W:
        return v->pos_w;
    case V_MERGED:
        return v->merged;
    case V_TEXT:
        return v->text;
    }
    return 0;
}

static bool in_layer(const struct kd_k3_map *m, const struct row *r, int64_t layer)
{
    const struct kd_k3_cfg *c = m->cfg;
    bool text = layer >= 0 && layer < c->layers;
    switch ((enum where)r->where) {
    case GLOBAL:
        return layer < 0;
    case ON_VISION:
        return layer < 0 && m->vision.blocks > 0;
    case ON_BLOCK:
        return layer >= 0 && layer < m->vision.blocks;
    case EVERY:
        return text;
    case ON_KDA:
        return text && !c->mla[layer];
    case ON_MLA:
        return text && c->mla[layer];
    case ON_DENSE:
        return text && !kd_k3_is_moe(c, layer);
    case ON_MOE:
    case ON_EXPERT:
        return text && kd_k3_is_moe(c, layer);
    }
    return false;
}

int64_t kd_k3_row_expect(const struct kd_k3_map *m, int row, int64_t layer)
{
    const struct row *r = &rows[row];
    if (!in_layer(m, r, layer))
        return 0;
    /* A model without shared experts has none of their matrices either. */
    for (int i = 0; i < KD_K3_DIMS_MAX && r->dims[i]; i++)
        if (!dim(m, r->dims[i]))
            return 0;
    if (m->gguf)
        return r->gguf != NULL;
    return r->where == ON_EXPERT ? m->cfg->experts : 1;
}

int kd_k3_row_count(void)
{
    return ROWS;
}

const char *kd_k3_row_name(int row)
{
    return rows[row].base;
}

enum kd_k3_kind kd_k3_row_kind(int row)
{
    return rows[row].kind;
}

const char *kd_k3_kind_name(enum kd_k3_kind kind)
{
    static const char *const names[KD_K3_KINDS] = {
        "routed", "kda",   "mla",  "router", "latent", "shared",    "dense",
        "norms",  "embed", "head", "final",  "vision", "projector", "unknown"};
    return names[kind];
}

int kd_k3_map_init(struct kd_k3_map *m, const struct kd_k3_cfg *cfg, const struct kd_json *config,
                   struct kd_err *err)
{
    enum { WIDE = 1 << 18 };
    struct kd_k3_vision *v = &m->vision;
    memset(m, 0, sizeof *m);
    m->cfg = cfg;
    const struct kd_json *vc = cfg->nested ? kd_json_get(config, "vision_config") : NULL;
    if (kd_json_kind(vc) == KD_JSON_NULL)
        return 0;
    int64_t mm, merge[2] = {1, 1};
    const struct kd_json *kernel = kd_json_get(vc, "merge_kernel_size");
    if (kd_json_int(vc, "vt_num_hidden_layers", 1, 1024, &v->blocks, err) ||
        kd_json_int(vc, "vt_hidden_size", 1, WIDE, &v->hidden, err) ||
        kd_json_int_or(vc, "qkv_hidden_size", 1, WIDE, v->hidden, &v->qkv, err) ||
        kd_json_int(vc, "vt_intermediate_size", 1, WIDE, &v->inter, err) ||
        kd_json_int(vc, "patch_size", 1, 1024, &v->patch, err) ||
        kd_json_int(vc, "init_pos_emb_height", 1, 4096, &v->pos_h, err) ||
        kd_json_int(vc, "init_pos_emb_width", 1, 4096, &v->pos_w, err) ||
        kd_json_int_or(vc, "mm_hidden_size", 1, WIDE, v->hidden, &mm, err) ||
        kd_json_int_or(vc, "text_hidden_size", 1, WIDE, cfg->hidden, &v->text, err))
        return kd_wrap(err, "config.json: vision_config");
    for (size_t i = 0; i < 2 && i < kd_json_count(kernel); i++) {
        merge[i] = kd_json_int_value(kd_json_at(kernel, i));
        if (merge[i] < 1 || merge[i] > 16)
            return kd_fail(err, KD_ECORRUPT,
                           "config.json: vision_config: 'merge_kernel_size' is outside 1 to 16");
    }
    v->merged = mm * merge[0] * merge[1];
    return 0;
}

/* A number without sign or leading zeros at *s, below `limit`; moves *s behind the '.' after it. */
static bool number(const char **s, int64_t limit, int *out)
{
    const char *c = *s;
    int64_t v = 0;
    if (*c == '0' && c[1] != '.')
        return false;
    for (; *c >= '0' && *c <= '9' && v < limit; c++)
        v = v * 10 + (*c - '0');
    if (c == *s || *c != '.' || v >= limit)
        return false;
    *out = (int)v;
    *s = c + 1;
    return true;
}

static bool starts(const char **s, const char *with)
{
    size_t n = strlen(with);
    if (strncmp(*s, with, n) != 0)
        return false;
    *s += n;
    return true;
}

static const char *weight(const struct row *r)
{
    return r->bare ? "" : ".weight";
}

/* Shape, dtype and parameters of one part of a row. */
static bool describe(const struct kd_k3_map *m, const struct row *r, const char *suffix,
                     struct kd_k3_name *out)
{
    static const struct {
        const char *suffix;
        enum kd_k3_stored part;
        const char *dtype;
    } parts[] = {{".weight_packed", KD_K3_PACKED, "U8"},
                 {".weight_scale", KD_K3_SCALE, "U8"},
                 {".trellis", KD_K3_CODES, "I16"},
                 {".ktrellis", KD_K3_CODES, "I16"},
                 {".suh", KD_K3_SIDE, "F16"},
                 {".svh", KD_K3_SIDE, "F16"},
                 {".mul1", KD_K3_SIDE, "I32"},
                 {".mcg", KD_K3_SIDE, "I32"},
                 {".kmask", KD_K3_SIDE, "I32"}};
    int64_t d[KD_K3_DIMS_MAX];
    int rank = 0;
    out->params = 1;
    for (; rank < KD_K3_DIMS_MAX && r->dims[rank]; rank++) {
        d[rank] = dim(m, (enum dim)r->dims[rank]);
        out->params *= d[rank];
    }
    if (!strcmp(suffix, weight(r))) {
        out->part = KD_K3_PLAIN;
        out->dtype = r->f32 ? "F32" : "BF16";
        out->rank = rank;
        memcpy(out->shape, d, (size_t)rank * sizeof *d);
        return true;
    }
    if (rank != 2 || r->bare)
        return false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strcmp(suffix, parts[i].suffix) != 0)
            continue;
        out->part = parts[i].part;
        out->dtype = parts[i].dtype;
        out->rows = d[0];
        out->cols = d[1];
        if (out->part == KD_K3_SCALE || out->part == KD_K3_SIDE)
            out->params = 0;
        if (out->part == KD_K3_PACKED || out->part == KD_K3_SCALE) {
            out->rank = 2;
            out->shape[0] = d[0];
            out->shape[1] = d[1] / (out->part == KD_K3_PACKED ? 2 : 32);
        }
        return true;
    }
    return false;
}

/* Routed experts are nearly all names of a checkpoint: found without a walk through the table. */
static bool parse_expert(const struct kd_k3_map *m, const char *rest, struct kd_k3_name *out)
{
    if (!number(&rest, m->cfg->experts, &out->expert) || rest[0] != 'w' || rest[1] < '1' ||
        rest[1] > '3')
        return false;
    out->row = rest[1] - '1';
    return in_layer(m, &rows[out->row], out->layer) && describe(m, &rows[out->row], rest + 2, out);
}

static bool parse_rest(const struct kd_k3_map *m, const char *rest, bool block,
                       struct kd_k3_name *out)
{
    for (out->row = 3; out->row < ROWS; out->row++) {
        const struct row *r = &rows[out->row];
        const char *suffix = rest;
        if ((r->where == ON_BLOCK) == block && starts(&suffix, r->base) &&
            (!*suffix || *suffix == '.') && in_layer(m, r, out->layer) &&
            describe(m, r, suffix, out))
            return true;
    }
    return false;
}

/* The one tensor more than its row has a name for: the value rows of kv_b. */
static const char gguf_v_b[] = "attn_v_b", gguf_k_b[] = "attn_k_b";

/* What a GGUF's tensor stands for; outermost dimension first. */
static void describe_gguf(const struct kd_k3_map *m, const struct row *r, bool v_b,
                          struct kd_k3_name *out)
{
    const struct kd_k3_cfg *c = m->cfg;
    int64_t *s = out->shape;
    out->part = KD_K3_PLAIN;
    out->params = 1;
    if (r->where == ON_EXPERT)
        s[out->rank++] = c->experts;
    for (int i = 0; i < KD_K3_DIMS_MAX && r->dims[i]; i++)
        if (r->dims[i] != ONE) /* written or not */
            s[out->rank++] = r->dims[i] == KDA_ALOG ? c->kda_heads : dim(m, (enum dim)r->dims[i]);
    if (r->dims[0] == KV_B_ROWS) {
        out->rank = 3;
        s[0] = c->heads;
        s[1] = v_b ? c->v_dim : c->kv_lora;
        s[2] = v_b ? c->kv_lora : c->nope;
    }
    for (int i = 0; i < out->rank; i++)
        out->params *= s[i];
}

static bool parse_gguf(const struct kd_k3_map *m, const char *name, struct kd_k3_name *out)
{
    if (starts(&name, "blk.") && !number(&name, m->cfg->layers, &out->layer))
        return false;
    const char *rest = name;
    bool v_b = starts(&rest, gguf_v_b);
    for (out->row = 0; out->row < ROWS; out->row++) {
        const struct row *r = &rows[out->row];
        if (!v_b)
            rest = name;
        if (!r->gguf || (v_b ? strcmp(r->gguf, gguf_k_b) != 0 : !starts(&rest, r->gguf)) ||
            strcmp(rest, weight(r)) != 0 || !in_layer(m, r, out->layer))
            continue;
        out->rank = 0;
        describe_gguf(m, r, v_b, out);
        return true;
    }
    return false;
}

bool kd_k3_gguf_name(int *at, int64_t layer, const char *key, char *out, size_t size)
{
    for (; *at < ROWS; ++*at) {
        const struct row *r = &rows[*at];
        size_t n = strlen(r->base);
        if (!r->gguf || strncmp(key, r->base, n) != 0 || strcmp(key + n, weight(r)) != 0)
            continue;
        if (layer < 0)
            snprintf(out, size, "%s%s", r->gguf, weight(r));
        else
            snprintf(out, size, "blk.%lld.%s%s", (long long)layer, r->gguf, weight(r));
        ++*at;
        return true;
    }
    return false;
}

static bool parse(const struct kd_k3_map *m, const char *name, struct kd_k3_name *out)
{
    if (!strncmp(name, "blk.", 4) || !strncmp(name, "output", 6) || !strncmp(name, "token_", 6))
        return parse_gguf(m, name, out);
    starts(&name, "language_model.");
    if (starts(&name, "model.layers.")) {
        if (!number(&name, m->cfg->layers, &out->layer))
            return false;
        return starts(&name, "block_sparse_moe.experts.") ? parse_expert(m, name, out)
                                                          : parse_rest(m, name, false, out);
    }
    if (starts(&name, "vision_tower.encoder.blocks."))
        return number(&name, m->vision.blocks, &out->layer) && parse_rest(m, name, true, out);
    return parse_rest(m, name, false, out);
}

static const struct kd_k3_name nothing = {
    .kind = KD_K3_UNKNOWN, .row = -1, .layer = -1, .expert = -1, .rank = -1};

bool kd_k3_row_tensor(const struct kd_k3_map *m, int row, int64_t layer, char *name, size_t size,
                      struct kd_k3_name *out)
{
    const struct row *r = &rows[row];
    bool vision = r->kind == KD_K3_VISION || r->kind == KD_K3_PROJECTOR;
    char place[64] = "";
    *out = nothing;
    if (r->where == ON_EXPERT || !kd_k3_row_expect(m, row, layer))
        return false;
    if (layer >= 0)
        snprintf(place, sizeof place,
                 vision ? "vision_tower.encoder.blocks.%lld." : "model.layers.%lld.",
                 (long long)layer);
    snprintf(name, size, "%s%s%s%s", m->cfg->nested && !vision ? "language_model." : "", place,
             r->base, weight(r));
    out->kind = r->kind;
    out->row = row;
    out->layer = (int)layer;
    return describe(m, r, weight(r), out);
}

bool kd_k3_name_parse(const struct kd_k3_map *m, const char *name, struct kd_k3_name *out)
{
    *out = nothing;
    if (!parse(m, name, out)) {
        *out = nothing;
        return false;
    }
    out->kind = rows[out->row].kind;
    return true;
}
