#include "fmt/gguf_config.h"

#include "base/show.h"

#include <stdio.h>
#include <string.h>

#define P "kimi-k3."

enum { LAYERS_MAX = 4096 };

/* Whole numbers that are the same on both sides. `other` < 0: the key must be there. */
static const struct {
    const char *gguf, *config;
    int64_t other;
} whole[] = {
    {P "embedding_length", "hidden_size", -1},
    {P "block_count", "num_hidden_layers", -1},
    {P "attention.head_count", "num_attention_heads", -1},
    {P "attention.q_lora_rank", "q_lora_rank", -1},
    {P "attention.kv_lora_rank", "kv_lora_rank", -1},
    {P "attention.value_length_mla", "v_head_dim", -1},
    {P "rope.dimension_count", "qk_rope_head_dim", -1},
    {P "context_length", "max_position_embeddings", 1 << 20},
    {P "attn_res.block_size", "attn_res_block_size", -1},
    {P "expert_count", "num_experts", -1},
    {P "expert_used_count", "num_experts_per_token", -1},
    {P "expert_shared_count", "num_shared_experts", -1},
    {P "leading_dense_block_count", "first_k_dense_replace", -1},
};

static const struct {
    const char *gguf, *config;
} numbers[] = {
    {P "attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {P "expert_weights_scale", "routed_scaling_factor"},
    {P "activation.situ_beta", "activation_situ_beta"},
    {P "activation.situ_linear_beta", "activation_situ_linear_beta"},
};

/* A number, or an array with one value for all layers that have it. */
static int uniform(const struct kd_gguf *g, const char *key, int64_t *out, struct kd_err *err)
{
    const struct kd_gguf_kv *kv = kd_gguf_key(g, key);
    if (!kv || kv->type != KD_GV_ARRAY)
        return kd_gguf_int(g, key, 1, INT32_MAX, out, err);
    *out = 0;
    for (int64_t i = 0; i < kv->count; i++) {
        int64_t v;
        if (kd_gguf_item(kv, i, &v) || v < 0 || (v && *out && v != *out))
            return kd_fail(err, KD_ENOTSUP, "key '%s': layers of different widths", key);
        *out = v ? v : *out;
    }
    return *out ? 0 : kd_fail(err, KD_ECORRUPT, "key '%s' holds no width", key);
}

static int put_whole(struct kd_jw *w, const struct kd_gguf *g, struct kd_err *err)
{
    int64_t v, rope;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        int rc = whole[i].other < 0
                     ? kd_gguf_int(g, whole[i].gguf, 0, INT32_MAX, &v, err)
                     : kd_gguf_int_or(g, whole[i].gguf, 0, INT32_MAX, whole[i].other, &v, err);
        if (rc)
            return -1;
        kd_jw_int(w, whole[i].config, v);
    }
    if (uniform(g, P "feed_forward_length", &v, err))
        return -1;
    kd_jw_int(w, "intermediate_size", v);
    if (uniform(g, P "expert_feed_forward_length", &v, err))
        return -1;
    kd_jw_int(w, "moe_intermediate_size", v);
    if (kd_gguf_int(g, P "attention.key_length_mla", 1, INT32_MAX, &v, err) ||
        kd_gguf_int(g, P "rope.dimension_count", 0, INT32_MAX, &rope, err))
        return -1;
    if (rope >= v)
        return kd_fail(err, KD_ECORRUPT,
                       "key '" P "attention.key_length_mla': %lld leaves nothing beside a "
                       "rope.dimension_count of %lld",
                       (long long)v, (long long)rope);
    kd_jw_int(w, "qk_nope_head_dim", v - rope);
    if (kd_gguf_int_or(g, P "nextn_predict_layers", 0, 0, 0, &v, err))
        return -1;
    return 0;
}

static int put_numbers(struct kd_jw *w, const struct kd_gguf *g, struct kd_err *err)
{
    double v;
    bool yes;
    int64_t gating;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (kd_gguf_num(g, numbers[i].gguf, &v, err))
            return -1;
        kd_jw_num(w, numbers[i].config, v);
    }
    if (!kd_gguf_key(g, P "expert_weights_norm"))
        return kd_fail(err, KD_ECORRUPT, "key '" P "expert_weights_norm' is missing");
    if (kd_gguf_bool_or(g, P "expert_weights_norm", false, &yes, err) ||
        kd_gguf_int(g, P "expert_gating_func", 0, 1000, &gating, err))
        return -1;
    if (gating != 2)
        return kd_fail(err, KD_ENOTSUP,
                       "key '" P "expert_gating_func': %lld; only 2 (sigmoid) is supported",
                       (long long)gating);
    kd_jw_bool(w, "moe_renormalize", yes);
    return 0;
}

/* Layers are counted from 1 in a config. */
static void put_list(struct kd_jw *w, const char *name, const struct kd_gguf_kv *kv, bool mla)
{
    kd_jw_open(w, name, '[');
    for (int64_t i = 0; i < kv->count; i++) {
        int64_t v = 0;
        if (!kd_gguf_item(kv, i, &v) && (v != 0) == mla)
            kd_jw_int(w, NULL, i + 1);
    }
    kd_jw_close(w, ']');
}

static int put_linear(struct kd_jw *w, const struct kd_gguf *g, struct kd_err *err)
{
    static const char kinds[] = P "attention.head_count_kv";
    const struct kd_gguf_kv *kv = kd_gguf_key(g, kinds);
    int64_t layers, dim, heads, conv, v;
    double bound;
    if (kd_gguf_int(g, P "block_count", 1, LAYERS_MAX, &layers, err) ||
        kd_gguf_int(g, P "kda.head_dim", 1, INT32_MAX, &dim, err) ||
        kd_gguf_int(g, P "attention.head_count", 1, INT32_MAX, &heads, err) ||
        kd_gguf_int(g, P "ssm.conv_kernel", 1, INT32_MAX, &conv, err) ||
        kd_gguf_num_or(g, P "kda.gate_lower_bound", 0, &bound, err))
        return -1;
    if (!kv || kv->type != KD_GV_ARRAY || kv->count != layers)
        return kd_fail(err, KD_ECORRUPT,
                       "key '%s' is not an array with one number for each of %lld "
                       "layers",
                       kinds, (long long)layers);
    for (int64_t i = 0; i < layers; i++)
        if (kd_gguf_item(kv, i, &v) || v < 0 || v > 1)
            return kd_fail(err, KD_ECORRUPT, "key '%s': layer %lld is neither 0 (KDA) nor 1 (MLA)",
                           kinds, (long long)i);
    kd_jw_open(w, "linear_attn_config", '{');
    kd_jw_int(w, "head_dim", dim);
    kd_jw_int(w, "num_heads", heads);
    kd_jw_int(w, "short_conv_kernel_size", conv);
    kd_jw_bool(w, "use_full_rank_gate", true);
    if (kd_gguf_key(g, P "kda.gate_lower_bound"))
        kd_jw_num(w, "gate_lower_bound", bound);
    put_list(w, "full_attn_layers", kv, true);
    put_list(w, "kda_layers", kv, false);
    kd_jw_close(w, '}');
    return 0;
}

static bool has_tensor(const struct kd_gguf_set *set, const char *name)
{
    for (int64_t i = 0; i < set->part_count; i++)
        if (kd_gguf_find(&set->parts[i].head, name))
            return true;
    return false;
}

/* The latent width is that of the experts where the key is missing: never a guess. */
static int put_latent(struct kd_jw *w, const struct kd_gguf_set *set, struct kd_err *err)
{
    const struct kd_gguf *g = &set->parts[0].head;
    int64_t latent;
    bool norm = false;
    for (int64_t l = 0; l < LAYERS_MAX && !norm; l++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%lld.ffn_routed_norm.weight", (long long)l);
        norm = has_tensor(set, name);
    }
    if (kd_gguf_int(g, P "expert_latent_length", 1, INT32_MAX, &latent, err))
        return -1;
    kd_jw_int(w, "routed_expert_hidden_size", latent);
    kd_jw_bool(w, "latent_moe_use_norm", norm);
    return 0;
}

static int put_tokens(struct kd_jw *w, const struct kd_gguf *g, struct kd_err *err)
{
    static const struct {
        const char *gguf, *config;
    } ids[] = {{"tokenizer.ggml.bos_token_id", "bos_token_id"},
               {"tokenizer.ggml.eos_token_id", "eos_token_id"},
               {"tokenizer.ggml.padding_token_id", "pad_token_id"}};
    const struct kd_gguf_kv *tokens = kd_gguf_key(g, "tokenizer.ggml.tokens");
    int64_t v;
    if (kd_gguf_int_or(g, P "vocab_size", 1, INT32_MAX, tokens ? tokens->count : 0, &v, err))
        return -1;
    if (!v)
        return kd_fail(err, KD_ECORRUPT, "key '" P "vocab_size' is missing");
    kd_jw_int(w, "vocab_size", v);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        if (kd_gguf_int_or(g, ids[i].gguf, 0, INT32_MAX, -1, &v, err))
            return -1;
        if (v >= 0)
            kd_jw_int(w, ids[i].config, v);
    }
    return 0;
}

static int put_all(struct kd_jw *w, const struct kd_gguf_set *set, struct kd_err *err)
{
    const struct kd_gguf *g = &set->parts[0].head;
    kd_jw_open(w, NULL, '{');
    kd_jw_str(w, "model_type", "kimi_linear");
    kd_jw_open(w, "architectures", '[');
    kd_jw_str(w, NULL, "KimiLinearForCausalLM");
    kd_jw_close(w, ']');
    kd_jw_str(w, "hidden_act", "situ");
    kd_jw_str(w, "moe_router_activation_func", "sigmoid");
    kd_jw_bool(w, "mla_use_nope", true);
    kd_jw_bool(w, "mla_use_output_gate", true);
    if (put_whole(w, g, err) || put_numbers(w, g, err) || put_linear(w, g, err) ||
        put_latent(w, set, err) || put_tokens(w, g, err))
        return -1;
    kd_jw_close(w, '}');
    return kd_buf_ok(w->out, "config", err);
}

int kd_gguf_config(struct kd_json **config, const struct kd_gguf_set *set, struct kd_err *err)
{
    const char *arch;
    int64_t bytes;
    *config = NULL;
    if (kd_gguf_str_or(&set->parts[0].head, "general.architecture", &arch, &bytes, err))
        return kd_wrap(err, "%s", set->parts[0].path);
    if (!arch || bytes != 7 || memcmp(arch, "kimi-k3", 7) != 0) {
        char text[64], shown[64];
        snprintf(text, sizeof text, "%.*s", (int)(bytes < 60 ? bytes : 60), arch ? arch : "");
        return kd_fail(err, KD_ENOTSUP, "%s: architecture '%s' is not supported (only kimi-k3)",
                       set->parts[0].path, kd_show_text(shown, sizeof shown, text));
    }
    struct kd_buf b;
    kd_buf_init(&b, 1 << 20);
    struct kd_jw w = {.out = &b, .compact = true};
    int rc = put_all(&w, set, err);
    if (!rc)
        rc = kd_json_parse(config, b.data, b.size_bytes, "config", err);
    kd_buf_release(&b);
    return rc ? kd_wrap(err, "%s", set->parts[0].path) : 0;
}
