#include "model/k3_cfg.h"

#include "base/show.h"

#include <string.h>

/* What a key of text_config may hold for a forward pass. */
enum rule {
    USED,   /* read by parse; bounds are checked there */
    ANY,    /* says nothing about the forward pass */
    NONE,   /* null */
    FALSE_, /* false or null */
    TRUE_,  /* true */
    NUM,    /* the number `num` */
    STR,    /* the string `str` */
    EMPTY   /* an empty object or array, or null */
};

struct key {
    const char *name;
    enum rule rule;
    double num;
    const char *str;
};

static const struct key text_keys[] = {
    {"hidden_size", USED, 0, NULL},
    {"num_hidden_layers", USED, 0, NULL},
    {"num_attention_heads", USED, 0, NULL},
    {"num_key_value_heads", USED, 0, NULL},
    {"intermediate_size", USED, 0, NULL},
    {"vocab_size", USED, 0, NULL},
    {"rms_norm_eps", USED, 0, NULL},
    {"max_position_embeddings", USED, 0, NULL},
    {"activation_situ_beta", USED, 0, NULL},
    {"activation_situ_linear_beta", USED, 0, NULL},
    {"attn_res_block_size", USED, 0, NULL},
    {"q_lora_rank", USED, 0, NULL},
    {"kv_lora_rank", USED, 0, NULL},
    {"qk_nope_head_dim", USED, 0, NULL},
    {"qk_rope_head_dim", USED, 0, NULL},
    {"v_head_dim", USED, 0, NULL},
    {"num_experts", USED, 0, NULL},
    {"num_experts_per_token", USED, 0, NULL},
    {"num_shared_experts", USED, 0, NULL},
    {"moe_intermediate_size", USED, 0, NULL},
    {"routed_expert_hidden_size", USED, 0, NULL},
    {"latent_moe_use_norm", USED, 0, NULL},
    {"first_k_dense_replace", USED, 0, NULL},
    {"moe_renormalize", USED, 0, NULL},
    {"routed_scaling_factor", USED, 0, NULL},
    {"bos_token_id", USED, 0, NULL},
    {"eos_token_id", USED, 0, NULL},
    {"pad_token_id", USED, 0, NULL},
    {"linear_attn_config", USED, 0, NULL},
    {"quantization_config", USED, 0, NULL},
    {"model_type", STR, 0, "kimi_linear"},
    {"hidden_act", STR, 0, "situ"},
    {"moe_router_activation_func", STR, 0, "sigmoid"},
    {"topk_method", STR, 0, "noaux_tc"},
    {"mla_use_nope", TRUE_, 0, NULL},
    {"mla_use_output_gate", TRUE_, 0, NULL},
    {"num_nextn_predict_layers", NUM, 0, NULL},
    {"moe_layer_freq", NUM, 1, NULL},
    {"num_expert_group", NUM, 1, NULL},
    {"topk_group", NUM, 1, NULL},
    {"tie_word_embeddings", FALSE_, 0, NULL},
    {"use_grouped_topk", ANY, 0, NULL}, /* one group: no choice to make */
    {"architectures", ANY, 0, NULL},
    {"auto_map", ANY, 0, NULL},
    {"dtype", ANY, 0, NULL},
    {"torch_dtype", ANY, 0, NULL},
    {"initializer_range", ANY, 0, NULL},
    {"use_cache", ANY, 0, NULL},
    {"transformers_version", ANY, 0, NULL},
    {"_name_or_path", ANY, 0, NULL},
    {"id2label", ANY, 0, NULL},
    {"label2id", ANY, 0, NULL},
    {"rope_theta", ANY, 0, NULL}, /* nothing rotates: mla_use_nope must be true */
    {"rope_scaling", NONE, 0, NULL},
    {"head_dim", NONE, 0, NULL},
    /* Defaults of the library that wrote the file. */
    {"add_cross_attention", FALSE_, 0, NULL},
    {"bad_words_ids", NONE, 0, NULL},
    {"begin_suppress_tokens", NONE, 0, NULL},
    {"chunk_size_feed_forward", NUM, 0, NULL},
    {"cross_attention_hidden_size", NONE, 0, NULL},
    {"decoder_start_token_id", NONE, 0, NULL},
    {"diversity_penalty", NUM, 0, NULL},
    {"do_sample", FALSE_, 0, NULL},
    {"early_stopping", FALSE_, 0, NULL},
    {"encoder_no_repeat_ngram_size", NUM, 0, NULL},
    {"exponential_decay_length_penalty", NONE, 0, NULL},
    {"finetuning_task", NONE, 0, NULL},
    {"forced_bos_token_id", NONE, 0, NULL},
    {"forced_eos_token_id", NONE, 0, NULL},
    {"is_decoder", FALSE_, 0, NULL},
    {"is_encoder_decoder", FALSE_, 0, NULL},
    {"length_penalty", NUM, 1, NULL},
    {"max_length", NUM, 20, NULL},
    {"min_length", NUM, 0, NULL},
    {"no_repeat_ngram_size", NUM, 0, NULL},
    {"num_beam_groups", NUM, 1, NULL},
    {"num_beams", NUM, 1, NULL},
    {"num_return_sequences", NUM, 1, NULL},
    {"output_attentions", FALSE_, 0, NULL},
    {"output_hidden_states", FALSE_, 0, NULL},
    {"output_scores", FALSE_, 0, NULL},
    {"prefix", NONE, 0, NULL},
    {"problem_type", NONE, 0, NULL},
    {"pruned_heads", EMPTY, 0, NULL},
    {"remove_invalid_values", FALSE_, 0, NULL},
    {"repetition_penalty", NUM, 1, NULL},
    {"return_dict", TRUE_, 0, NULL},
    {"return_dict_in_generate", FALSE_, 0, NULL},
    {"sep_token_id", NONE, 0, NULL},
    {"suppress_tokens", NONE, 0, NULL},
    {"task_specific_params", NONE, 0, NULL},
    {"temperature", NUM, 1, NULL},
    {"tf_legacy_loss", FALSE_, 0, NULL},
    {"tie_encoder_decoder", FALSE_, 0, NULL},
    {"tokenizer_class", NONE, 0, NULL},
    {"top_k", NUM, 50, NULL},
    {"top_p", NUM, 1, NULL},
    {"torchscript", FALSE_, 0, NULL},
    {"typical_p", NUM, 1, NULL},
    {"use_bfloat16", FALSE_, 0, NULL},
    {NULL, ANY, 0, NULL}};

static const struct key linear_keys[] = {
    {"full_attn_layers", USED, 0, NULL},    {"kda_layers", USED, 0, NULL},
    {"gate_lower_bound", USED, 0, NULL},    {"head_dim", USED, 0, NULL},
    {"num_heads", USED, 0, NULL},           {"short_conv_kernel_size", USED, 0, NULL},
    {"use_full_rank_gate", TRUE_, 0, NULL}, {NULL, ANY, 0, NULL}};

/* Around a nested text_config. */
static const struct key top_keys[] = {{"architectures", ANY, 0, NULL},
                                      {"auto_map", ANY, 0, NULL},
                                      {"model_type", STR, 0, "kimi_k3"},
                                      {"dtype", ANY, 0, NULL},
                                      {"torch_dtype", ANY, 0, NULL},
                                      {"transformers_version", ANY, 0, NULL},
                                      {"_name_or_path", ANY, 0, NULL},
                                      {"bos_token_id", USED, 0, NULL},
                                      {"eos_token_id", USED, 0, NULL},
                                      {"pad_token_id", USED, 0, NULL},
                                      {"media_placeholder_token_id", ANY, 0, NULL},
                                      {"image_placeholder", ANY, 0, NULL},
                                      {"ignore_index", ANY, 0, NULL},
                                      {"tie_word_embeddings", FALSE_, 0, NULL},
                                      {"quantization_config", USED, 0, NULL},
                                      {"use_cache", ANY, 0, NULL},
                                      {"text_config", USED, 0, NULL},
                                      {"vision_config", ANY, 0, NULL}, /* carried, never run */
                                      {NULL, ANY, 0, NULL}};

static const struct key *find_key(const struct key *keys, const char *name)
{
    for (; keys->name; keys++)
        if (!strcmp(keys->name, name))
            return keys;
    return NULL;
}

static const struct kd_json *text_of(const struct kd_json *config)
{
    const struct kd_json *text = kd_json_get(config, "text_config");
    return kd_json_kind(text) == KD_JSON_OBJECT ? text : config;
}

/* Sizes: `or_zero` ones may be absent (0) in configs that only inspect looks at. */
static int read_sizes(struct kd_k3_cfg *c, const struct kd_json *t, struct kd_err *err)
{
    /* Tight enough that no product of sizes here or in k3_names.c leaves 64 bits. */
    enum { WIDE = 1 << 18, MANY = 1 << 14 };
    const struct {
        const char *key;
        int64_t *out, min, max, other; /* other < 0: the key must be there */
    } sizes[] = {
        {"hidden_size", &c->hidden, 1, WIDE, -1},
        {"num_hidden_layers", &c->layers, 1, KD_K3_LAYERS_MAX, -1},
        {"num_attention_heads", &c->heads, 1, 4096, -1},
        {"intermediate_size", &c->dense_inter, 1, 1 << 24, -1},
        {"vocab_size", &c->vocab, 1, 1 << 24, -1},
        {"max_position_embeddings", &c->context, 1, INT64_C(1) << 40, INT64_C(1) << 20},
        {"attn_res_block_size", &c->block, 1, KD_K3_LAYERS_MAX, 0},
        {"q_lora_rank", &c->q_lora, 1, WIDE, 0},
        {"kv_lora_rank", &c->kv_lora, 1, WIDE, -1},
        {"qk_nope_head_dim", &c->nope, 1, 1 << 14, -1},
        {"qk_rope_head_dim", &c->rope, 0, 1 << 14, -1},
        {"v_head_dim", &c->v_dim, 1, 1 << 14, -1},
        {"num_experts", &c->experts, 1, MANY, -1},
        {"num_shared_experts", &c->shared, 0, 1024, 0},
        {"moe_intermediate_size", &c->moe_inter, 1, WIDE, -1},
        {"routed_expert_hidden_size", &c->latent, 1, WIDE, 0},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int rc = sizes[i].other < 0
                     ? kd_json_int(t, sizes[i].key, sizes[i].min, sizes[i].max, sizes[i].out, err)
                     : kd_json_int_or(t, sizes[i].key, sizes[i].min, sizes[i].max, sizes[i].other,
                                      sizes[i].out, err);
        if (rc)
            return -1;
    }
    return kd_json_int(t, "num_experts_per_token", 1, c->experts, &c->topk, err) ||
                   kd_json_int_or(t, "first_k_dense_replace", 0, c->layers, 0, &c->dense_layers,
                                  err)
               ? -1
               : 0;
}

static int read_numbers(struct kd_k3_cfg *c, const struct kd_json *t, struct kd_err *err)
{
    double eps, scale, beta, linear;
    if (kd_json_num(t, "rms_norm_eps", 1e-30, 1, &eps, err) ||
        kd_json_num_or(t, "routed_scaling_factor", 1e-6, 1e6, 1, &scale, err) ||
        kd_json_num_or(t, "activation_situ_beta", 1e-3, 1e6, 0, &beta, err) ||
        kd_json_num_or(t, "activation_situ_linear_beta", -1e6, 1e6, 0, &linear, err) ||
        kd_json_bool_or(t, "moe_renormalize", true, &c->renormalize, err) ||
        kd_json_bool_or(t, "latent_moe_use_norm", false, &c->latent_norm, err))
        return -1;
    c->eps = (float)eps;
    c->eps_latent = 1e-6f;
    c->routed_scale = (float)scale;
    c->situ_beta = (float)beta;
    c->situ_linear = (float)linear;
    return 0;
}

/* Special tokens stand in the text config or around it; -1 where there is none. */
static int read_tokens(struct kd_k3_cfg *c, const struct kd_json *t, const struct kd_json *config,
                       struct kd_err *err)
{
    const struct {
        const char *key;
        int64_t *out;
    } ids[] = {{"bos_token_id", &c->bos}, {"eos_token_id", &c->eos}, {"pad_token_id", &c->pad}};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        int64_t outer;
        if (kd_json_int_or(config, ids[i].key, 0, c->vocab - 1, -1, &outer, err) ||
            kd_json_int_or(t, ids[i].key, 0, c->vocab - 1, outer, ids[i].out, err))
            return -1;
    }
    return 0;
}

/* The two lists count layers from 1 and must name each once. */
static int read_layer_list(struct kd_k3_cfg *c, const struct kd_json *lin, const char *key,
                           uint8_t mla, uint8_t *seen, struct kd_err *err)
{
    const struct kd_json *list = kd_json_get(lin, key);
    if (kd_json_kind(list) != KD_JSON_ARRAY)
        return kd_fail(err, KD_ECORRUPT, "'%s' is not an array", key);
    for (size_t i = 0; i < kd_json_count(list); i++) {
        const struct kd_json *v = kd_json_at(list, i);
        int64_t layer = kd_json_int_value(v);
        if (kd_json_kind(v) != KD_JSON_INT || layer < 1 || layer > c->layers)
            return kd_fail(err, KD_ECORRUPT, "'%s' names a layer outside 1 to %lld", key,
                           (long long)c->layers);
        if (seen[layer - 1])
            return kd_fail(err, KD_ECORRUPT,
                           "layer %lld is named twice in kda_layers and full_attn_layers",
                           (long long)layer);
        seen[layer - 1] = 1;
        c->mla[layer - 1] = mla;
    }
    return 0;
}

static int read_linear(struct kd_k3_cfg *c, const struct kd_json *t, struct kd_err *err)
{
    uint8_t seen[KD_K3_LAYERS_MAX] = {0};
    const struct kd_json *lin = kd_json_get(t, "linear_attn_config");
    double bound;
    if (kd_json_kind(lin) != KD_JSON_OBJECT)
        return kd_fail(err, KD_ECORRUPT, "'linear_attn_config' is %s",
                       lin ? "not an object" : "missing (is this a Kimi K3?)");
    if (kd_json_int(lin, "head_dim", 1, 1024, &c->kda_dim, err) ||
        kd_json_int(lin, "num_heads", 1, 4096, &c->kda_heads, err) ||
        kd_json_int(lin, "short_conv_kernel_size", 1, 64, &c->conv, err) ||
        kd_json_num_or(lin, "gate_lower_bound", -1e4, 0, 0, &bound, err) ||
        read_layer_list(c, lin, "kda_layers", 0, seen, err) ||
        read_layer_list(c, lin, "full_attn_layers", 1, seen, err))
        return kd_wrap(err, "linear_attn_config");
    c->bounded_gate = kd_json_kind(kd_json_get(lin, "gate_lower_bound")) != KD_JSON_NULL;
    c->gate_lower_bound = (float)bound;
    for (int64_t l = 0; l < c->layers; l++)
        if (!seen[l])
            return kd_fail(
                err, KD_ECORRUPT,
                "linear_attn_config: layer %lld is in neither kda_layers nor full_attn_layers",
                (long long)l + 1);
    return 0;
}

static void add_unknown(struct kd_buf *out, const struct kd_json *obj, const struct key *keys,
                        const char *place)
{
    void *iter = NULL;
    const char *name;
    struct kd_json *v;
    char shown[128];
    while (kd_json_next(obj, &iter, &name, &v))
        if (!find_key(keys, name))
            kd_buf_printf(out, "%s%s%s", out->size_bytes ? ", " : "", place,
                          kd_show_text(shown, sizeof shown, name));
}

/* In a bare config the top level is the text config, so keys of both places may stand there. */
static void name_unknown(struct kd_buf *out, const struct kd_k3_cfg *c,
                         const struct kd_json *config)
{
    const struct kd_json *text = text_of(config);
    if (c->nested)
        add_unknown(out, config, top_keys, "");
    add_unknown(out, text, text_keys, c->nested ? "text_config." : "");
    add_unknown(out, kd_json_get(text, "linear_attn_config"), linear_keys,
                c->nested ? "text_config.linear_attn_config." : "linear_attn_config.");
}

static void read_arch(struct kd_k3_cfg *c, const struct kd_json *config)
{
    const char *arch = kd_json_text(kd_json_at(kd_json_get(config, "architectures"), 0), NULL);
    kd_show_text(c->arch, sizeof c->arch, arch ? arch : "");
}

int kd_k3_cfg_parse(struct kd_k3_cfg *cfg, const struct kd_json *config, struct kd_buf *unknown,
                    struct kd_err *err)
{
    memset(cfg, 0, sizeof *cfg);
    if (kd_json_kind(config) != KD_JSON_OBJECT)
        return kd_fail(err, KD_ECORRUPT, "config.json: not an object");
    const struct kd_json *text = text_of(config);
    cfg->nested = text != config;
    read_arch(cfg, config);
    if (read_sizes(cfg, text, err) || read_numbers(cfg, text, err) ||
        read_tokens(cfg, text, config, err) || read_linear(cfg, text, err))
        return kd_wrap(err, "config.json%s", cfg->nested ? ": text_config" : "");
    if (!unknown)
        return 0;
    name_unknown(unknown, cfg, config);
    return kd_buf_ok(unknown, "unknown keys of config.json", err);
}

static bool holds(const struct key *k, const struct kd_json *v)
{
    enum kd_json_kind kind = kd_json_kind(v);
    const char *text = kd_json_text(v, NULL);
    switch (k->rule) {
    case USED:
    case ANY:
        return true;
    case NONE:
        return kind == KD_JSON_NULL;
    case FALSE_:
        return kind == KD_JSON_NULL || (kind == KD_JSON_BOOL && !kd_json_true(v));
    case TRUE_:
        return kd_json_true(v);
    case NUM:
        return (kind == KD_JSON_INT || kind == KD_JSON_REAL) && kd_json_num_value(v) == k->num;
    case STR:
        return text && !strcmp(text, k->str);
    case EMPTY:
        return kind == KD_JSON_NULL ||
               ((kind == KD_JSON_OBJECT || kind == KD_JSON_ARRAY) && !kd_json_count(v));
    }
    return false;
}

/* The value as one short line, for a message. */
static const char *shown_value(char *out, size_t size, const struct kd_json *v)
{
    struct kd_buf b;
    kd_buf_init(&b, 1 << 16);
    struct kd_jw w = {.out = &b, .compact = true};
    kd_jw_copy(&w, NULL, v);
    kd_show_text(out, size, b.data && !b.failed ? b.data : "(long)");
    kd_buf_release(&b);
    return out;
}

static int check_keys(const struct kd_json *obj, const struct key *keys, const char *place,
                      struct kd_err *err)
{
    void *iter = NULL;
    const char *name;
    struct kd_json *v;
    char shown[96], value[64];
    while (kd_json_next(obj, &iter, &name, &v)) {
        const struct key *k = find_key(keys, name);
        kd_show_text(shown, sizeof shown, name);
        if (!k && kd_json_kind(v) != KD_JSON_NULL)
            return kd_fail(err, KD_ENOTSUP,
                           "config.json: key '%s%s' is not known here, so no forward pass "
                           "of this model can be trusted",
                           place, shown);
        if (k && !holds(k, v))
            return kd_fail(err, KD_ENOTSUP, "config.json: '%s%s' is %s, which is not supported",
                           place, shown, shown_value(value, sizeof value, v));
    }
    return 0;
}

/* Keys whose absence means something other than what runs here. */
static int check_present(const struct kd_json *text, struct kd_err *err)
{
    static const char *const needed[] = {"hidden_act", "moe_router_activation_func", "mla_use_nope",
                                         "mla_use_output_gate", "activation_situ_beta"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (kd_json_kind(kd_json_get(text, needed[i])) == KD_JSON_NULL)
            return kd_fail(err, KD_ENOTSUP, "config.json: '%s' is missing", needed[i]);
    return 0;
}

static int check_group(const struct kd_json *group, struct kd_err *err)
{
    static const struct key weights[] = {{"group_size", NUM, 32, NULL},
                                         {"num_bits", NUM, 4, NULL},
                                         {"type", STR, 0, "float"},
                                         {"symmetric", TRUE_, 0, NULL},
                                         {"dynamic", FALSE_, 0, NULL},
                                         {"actorder", NONE, 0, NULL},
                                         {"strategy", STR, 0, "group"},
                                         {"zp_dtype", NONE, 0, NULL},
                                         {"block_structure", NONE, 0, NULL},
                                         {"observer", ANY, 0, NULL},
                                         {"observer_kwargs", ANY, 0, NULL},
                                         {"scale_dtype", STR, 0, "torch.uint8"},
                                         {NULL, ANY, 0, NULL}};
    if (kd_json_kind(kd_json_get(group, "input_activations")) != KD_JSON_NULL ||
        kd_json_kind(kd_json_get(group, "output_activations")) != KD_JSON_NULL)
        return kd_fail(err, KD_ENOTSUP, "config.json: quantized activations are not supported");
    return check_keys(kd_json_get(group, "weights"), weights, "quantization_config.weights.", err);
}

/* Weights as stored: MXFP4 by compressed-tensors, EXL3, or neither. */
static int check_quantization(const struct kd_json *q, struct kd_err *err)
{
    if (kd_json_kind(q) == KD_JSON_NULL)
        return 0;
    char shown[64];
    const char *method = kd_json_text(kd_json_get(q, "quant_method"), NULL);
    const char *format = kd_json_text(kd_json_get(q, "format"), NULL);
    if (method && (!strcmp(method, "exl3") || !strcmp(method, "exl3-masked")))
        return 0;
    if (!method || strcmp(method, "compressed-tensors") != 0)
        return kd_fail(err, KD_ENOTSUP,
                       "config.json: quantization_config: method '%s' is not supported",
                       kd_show_text(shown, sizeof shown, method ? method : "(none)"));
    if (!format || strcmp(format, "mxfp4-pack-quantized") != 0)
        return kd_fail(err, KD_ENOTSUP,
                       "config.json: quantization_config: format '%s' is not supported",
                       kd_show_text(shown, sizeof shown, format ? format : "(none)"));
    if (kd_json_kind(kd_json_get(q, "kv_cache_scheme")) != KD_JSON_NULL)
        return kd_fail(err, KD_ENOTSUP,
                       "config.json: quantization_config: a quantized cache is not supported");
    const struct kd_json *groups = kd_json_get(q, "config_groups");
    void *iter = NULL;
    const char *name;
    struct kd_json *group;
    while (kd_json_next(groups, &iter, &name, &group))
        if (check_group(group, err))
            return -1;
    return 0;
}

static int check_arch(const struct kd_k3_cfg *c, const struct kd_json *config, struct kd_err *err)
{
    const char *want = c->nested ? "KimiK3ForConditionalGeneration" : "KimiLinearForCausalLM";
    const char *type = kd_json_text(kd_json_get(config, "model_type"), NULL);
    const char *want_type = c->nested ? "kimi_k3" : "kimi_linear";
    char shown[64];
    if (c->arch[0] && strcmp(c->arch, want) != 0)
        return kd_fail(err, KD_ENOTSUP, "config.json: architecture '%s' is not supported (only %s)",
                       c->arch, want);
    if (!type || strcmp(type, want_type) != 0)
        return kd_fail(err, KD_ENOTSUP, "config.json: model_type '%s' is not supported (only %s)",
                       kd_show_text(shown, sizeof shown, type ? type : "(none)"), want_type);
    return 0;
}

int kd_k3_cfg_check(const struct kd_k3_cfg *cfg, const struct kd_json *config, struct kd_err *err)
{
    const struct kd_json *text = text_of(config);
    int64_t kv;
    if (check_arch(cfg, config, err))
        return -1;
    if (!cfg->block || !cfg->latent)
        return kd_fail(err, KD_ENOTSUP,
                       "config.json: '%s' is missing: a plain Kimi-Linear is not supported",
                       cfg->block ? "routed_expert_hidden_size" : "attn_res_block_size");
    if (!cfg->q_lora)
        return kd_fail(err, KD_ENOTSUP,
                       "config.json: q_lora_rank null (a plain q_proj) is not supported");
    if ((cfg->nested && check_keys(config, top_keys, "", err)) ||
        check_keys(text, text_keys, "", err) ||
        check_keys(kd_json_get(text, "linear_attn_config"), linear_keys, "linear_attn_config.",
                   err) ||
        check_present(text, err))
        return -1;
    if (kd_json_int_or(text, "num_key_value_heads", 1, 1 << 20, cfg->heads, &kv, err))
        return kd_wrap(err, "config.json");
    if (kv != cfg->heads)
        return kd_fail(err, KD_ENOTSUP,
                       "config.json: %lld key-value heads for %lld heads is not supported",
                       (long long)kv, (long long)cfg->heads);
    if (check_quantization(kd_json_get(text, "quantization_config"), err))
        return -1;
    return cfg->nested ? check_quantization(kd_json_get(config, "quantization_config"), err) : 0;
}
