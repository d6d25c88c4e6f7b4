/* The known-answer model K3-KAT of the K3 specification (7.3): written to a folder by formula, so
 * that the real loader reads it. Variants: a config without gate_lower_bound, one without a cap on
 * the up branch, one as a bare text config with F32 trunk and unprefixed names. */
#ifndef KD_TEST_MODEL_KAT_H
#define KD_TEST_MODEL_KAT_H

#include "model_util.h"

#include "base/hash.h"
#include "base/rand.h"
#include "fmt/st_write.h"

#include <unistd.h>

enum { KAT_LAYERS = 13, KAT_TOKENS = 70, KAT_VOCAB = 64 };

struct kat {
    bool softplus, uncapped, bare;
};

struct kat_writer {
    const struct kat *k;
    struct kd_st_plan plan;
    struct kd_st_writer w;
    bool writing;
};

static inline int32_t kat_token(int64_t t)
{
    return (int32_t)((7 * t * t + 3 * t + 5) % KAT_VOCAB);
}

static inline unsigned kat_byte(const char *name, int64_t i)
{
    return (unsigned)(kd_rand_u64(kd_fnv64(name), (uint64_t)i) >> 56);
}

static inline float kat_value(const char *name, char kind, int e, int64_t i)
{
    double b = kat_byte(name, i);
    if (kind == 'N')
        return (float)(1.0 + (floor(b / 8) - 16) / 128);
    if (kind == 'A' && i >= 3)
        return 0.0f;
    return (float)ldexp((b - 128) / 128, e);
}

/* name without "language_model."; the formula always takes the full one. */
static inline void kat_add(struct kat_writer *g, const char *name, char kind, int e, int64_t a,
                           int64_t b, int64_t c, bool f32)
{
    char full[256];
    const int64_t shape[3] = {a, b, c};
    int rank = c ? 3 : b ? 2 : 1;
    int64_t n = a * (b ? b : 1) * (c ? c : 1);
    snprintf(full, sizeof full, "language_model.%s", name);
    const char *stored = g->k->bare ? name : full;
    const char *dtype = kind == 'P' || kind == 'E' ? "U8" : f32 || g->k->bare ? "F32" : "BF16";
    if (!g->writing) {
        must(kd_st_plan_add(&g->plan, stored, dtype, rank, shape, 0, &err));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (*dtype == 'U') {
            uint8_t byte =
                (uint8_t)(kind == 'P' ? kat_byte(full, i) : (unsigned)e + (kat_byte(full, i) & 3));
            must(kd_st_put(&g->w, &byte, 1, &err));
            continue;
        }
        float v = kat_value(full, kind, e, i);
        uint16_t h = kd_f32_bf16(v);
        must(*dtype == 'F' ? kd_st_put(&g->w, &v, 4, &err) : kd_st_put(&g->w, &h, 2, &err));
    }
}

static inline void kat_layer_add(struct kat_writer *g, int64_t l, const char *suffix, char kind,
                                 int e, int64_t a, int64_t b, int64_t c, bool f32)
{
    char name[192];
    snprintf(name, sizeof name, "model.layers.%lld.%s", (long long)l, suffix);
    kat_add(g, name, kind, e, a, b, c, f32);
}

static inline bool kat_mla(int64_t l)
{
    return l % 4 == 3 || l == 12;
}

static inline void kat_mlp(struct kat_writer *g, int64_t l, const char *base, int64_t width)
{
    char name[96];
    snprintf(name, sizeof name, "%sgate_proj.weight", base);
    kat_layer_add(g, l, name, 'M', -1, width, 64, 0, false);
    snprintf(name, sizeof name, "%sup_proj.weight", base);
    kat_layer_add(g, l, name, 'M', 1, width, 64, 0, false);
    snprintf(name, sizeof name, "%sdown_proj.weight", base);
    kat_layer_add(g, l, name, 'M', -5, 64, width, 0, false);
}

static inline void kat_attention(struct kat_writer *g, int64_t l)
{
    kat_layer_add(g, l, "self_attn.g_proj.weight", 'M', -2, 48, 64, 0, false);
    kat_layer_add(g, l, "self_attn.o_proj.weight", 'M', -1, 64, 48, 0, false);
    if (kat_mla(l)) {
        kat_layer_add(g, l, "self_attn.q_a_proj.weight", 'M', -8, 24, 64, 0, false);
        kat_layer_add(g, l, "self_attn.q_a_layernorm.weight", 'N', 0, 24, 0, 0, false);
        kat_layer_add(g, l, "self_attn.q_b_proj.weight", 'M', -1, 72, 24, 0, false);
        kat_layer_add(g, l, "self_attn.kv_a_proj_with_mqa.weight", 'M', -5, 48, 64, 0, false);
        kat_layer_add(g, l, "self_attn.kv_a_layernorm.weight", 'N', 0, 40, 0, 0, false);
        kat_layer_add(g, l, "self_attn.kv_b_proj.weight", 'M', -1, 96, 40, 0, false);
        return;
    }
    kat_layer_add(g, l, "self_attn.q_proj.weight", 'M', -3, 48, 64, 0, false);
    kat_layer_add(g, l, "self_attn.k_proj.weight", 'M', -3, 48, 64, 0, false);
    kat_layer_add(g, l, "self_attn.v_proj.weight", 'M', -3, 48, 64, 0, false);
    kat_layer_add(g, l, "self_attn.q_conv1d.weight", 'M', 0, 48, 1, 4, true);
    kat_layer_add(g, l, "self_attn.k_conv1d.weight", 'M', 0, 48, 1, 4, true);
    kat_layer_add(g, l, "self_attn.v_conv1d.weight", 'M', 0, 48, 1, 4, true);
    kat_layer_add(g, l, "self_attn.f_a_proj.weight", 'M', -3, 16, 64, 0, false);
    kat_layer_add(g, l, "self_attn.f_b_proj.weight", 'M', 0, 48, 16, 0, false);
    kat_layer_add(g, l, "self_attn.b_proj.weight", 'M', -2, 3, 64, 0, false);
    kat_layer_add(g, l, "self_attn.A_log", 'A', 0, 16, 0, 0, true);
    kat_layer_add(g, l, "self_attn.dt_bias", 'M', 1, 48, 0, 0, true);
    kat_layer_add(g, l, "self_attn.o_norm.weight", 'N', 0, 16, 0, 0, true);
}

static inline void kat_moe(struct kat_writer *g, int64_t l)
{
    static const int exponent[3] = {124, 120, 126}; /* w1, w2, w3 */
    char name[128];
    kat_layer_add(g, l, "block_sparse_moe.gate.weight", 'M', -3, 12, 64, 0, false);
    kat_layer_add(g, l, "block_sparse_moe.gate.e_score_correction_bias", 'M', -2, 12, 0, 0, true);
    kat_layer_add(g, l, "block_sparse_moe.routed_expert_down_proj.weight", 'M', -3, 32, 64, 0,
                  false);
    kat_layer_add(g, l, "block_sparse_moe.routed_expert_norm.weight", 'N', 0, 32, 0, 0, false);
    kat_layer_add(g, l, "block_sparse_moe.routed_expert_up_proj.weight", 'M', -3, 64, 32, 0, false);
    kat_mlp(g, l, "block_sparse_moe.shared_experts.", 64);
    for (int e = 0; e < 12; e++)
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "block_sparse_moe.experts.%d.w%d.weight_packed", e, i + 1);
            kat_layer_add(g, l, name, 'P', 0, 32, 16, 0, false);
            snprintf(name, sizeof name, "block_sparse_moe.experts.%d.w%d.weight_scale", e, i + 1);
            kat_layer_add(g, l, name, 'E', exponent[i], 32, 1, 0, false);
        }
}

static inline void kat_tensors(struct kat_writer *g)
{
    kat_add(g, "model.embed_tokens.weight", 'M', 0, 64, 64, 0, false);
    kat_add(g, "lm_head.weight", 'M', -3, 64, 64, 0, false);
    kat_add(g, "model.norm.weight", 'N', 0, 64, 0, 0, false);
    kat_add(g, "model.output_attn_res_norm.weight", 'N', 0, 64, 0, 0, false);
    kat_add(g, "model.output_attn_res_proj.weight", 'M', -1, 1, 64, 0, false);
    for (int64_t l = 0; l < KAT_LAYERS; l++) {
        kat_layer_add(g, l, "input_layernorm.weight", 'N', 0, 64, 0, 0, false);
        kat_layer_add(g, l, "post_attention_layernorm.weight", 'N', 0, 64, 0, 0, false);
        kat_layer_add(g, l, "self_attention_res_norm.weight", 'N', 0, 64, 0, 0, false);
        kat_layer_add(g, l, "self_attention_res_proj.weight", 'M', -1, 1, 64, 0, false);
        kat_layer_add(g, l, "mlp_res_norm.weight", 'N', 0, 64, 0, 0, false);
        kat_layer_add(g, l, "mlp_res_proj.weight", 'M', -1, 1, 64, 0, false);
        kat_attention(g, l);
        if (l)
            kat_moe(g, l);
        else
            kat_mlp(g, l, "mlp.", 96);
    }
}

static inline void kat_config(const struct kat *k, struct kd_buf *b)
{
    if (!k->bare)
        kd_buf_str(
            b, "{\"architectures\":[\"KimiK3ForConditionalGeneration\"],\"model_type\":\"kimi_k3\","
               "\"text_config\":");
    kd_buf_str(
        b,
        "{\"architectures\":[\"KimiLinearForCausalLM\"],\"model_type\":\"kimi_linear\","
        "\"activation_situ_beta\":4.0,\"attn_res_block_size\":5,\"bos_token_id\":0,"
        "\"eos_token_id\":63,\"pad_token_id\":62,\"first_k_dense_replace\":1,"
        "\"hidden_act\":\"situ\",\"hidden_size\":64,\"intermediate_size\":96,\"kv_lora_rank\":40,"
        "\"latent_moe_use_norm\":true,\"max_position_embeddings\":1048576,\"mla_use_nope\":true,"
        "\"mla_use_output_gate\":true,\"moe_intermediate_size\":32,\"moe_layer_freq\":1,"
        "\"moe_renormalize\":true,\"moe_router_activation_func\":\"sigmoid\","
        "\"num_attention_heads\":3,\"num_expert_group\":1,\"num_experts\":12,"
        "\"num_experts_per_token\":3,\"num_hidden_layers\":13,\"num_key_value_heads\":3,"
        "\"num_nextn_predict_layers\":0,\"num_shared_experts\":2,\"q_lora_rank\":24,"
        "\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"rms_norm_eps\":1e-05,"
        "\"routed_expert_hidden_size\":32,\"routed_scaling_factor\":1.0,"
        "\"tie_word_embeddings\":false,\"topk_group\":1,\"topk_method\":\"noaux_tc\","
        "\"use_cache\":true,\"use_grouped_topk\":true,\"v_head_dim\":16,\"vocab_size\":64,");
    kd_buf_str(b, k->uncapped ? "\"activation_situ_linear_beta\":null,"
                              : "\"activation_situ_linear_beta\":25.0,");
    kd_buf_printf(b,
                  "\"linear_attn_config\":{%s\"full_attn_layers\":[4,8,12,13],"
                  "\"kda_layers\":[1,2,3,5,6,7,9,10,11],\"head_dim\":16,\"num_heads\":3,"
                  "\"short_conv_kernel_size\":4,\"use_full_rank_gate\":true},",
                  k->softplus ? "" : "\"gate_lower_bound\":-5.0,");
    kd_buf_str(b, "\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
                  "\"format\":\"mxfp4-pack-quantized\",\"config_groups\":{\"group_0\":{\"weights\":"
                  "{\"group_size\":32,\"num_bits\":4,\"symmetric\":true,\"type\":\"float\"}}}}}");
    if (!k->bare)
        kd_buf_char(b, '}');
}

/* Writes the model into a fresh folder whose name goes to dir. */
static inline void kat_write(const struct kat *k, char dir[512])
{
    struct kat_writer g = {.k = k};
    struct kd_buf b;
    char path[600];
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, 512, "%s/k3-kat-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    kd_buf_init(&b, 1 << 16);
    kat_config(k, &b);
    must(kd_buf_ok(&b, "config", &err));
    snprintf(path, sizeof path, "%s/config.json", dir);
    must(kd_file_write(path, b.data, b.size_bytes, &err));
    kd_buf_release(&b);
    kd_st_plan_init(&g.plan);
    kat_tensors(&g);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    must(kd_st_open(&g.w, path, &g.plan, &err));
    g.writing = true;
    kat_tensors(&g);
    must(kd_st_commit(&g.w, &err));
    kd_st_plan_release(&g.plan);
}

static inline void kat_remove(const char *dir)
{
    must(kd_dir_remove(dir, &err));
}

#endif
