/* model/k3_cfg: the shipped config, each bound and each refusal, one change at a time. */
#include "model/k3_cfg.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kd_err err;

static struct kd_json *load(const char *dir, const char *file)
{
    char path[1200];
    struct kd_json *c;
    snprintf(path, sizeof path, "%s/%s", dir, file);
    if (!kd_file_exists(path))
        return NULL;
    if (kd_json_load(&c, path, 1 << 20, &err))
        fail_msg("%s", err.msg);
    return c;
}

static const char *data_dir(void)
{
    const char *dir = getenv("KONDENSE_TEST_DATA");
    return dir ? dir : "tests/data";
}

static struct kd_json *nano(void)
{
    struct kd_json *c = load(data_dir(), "k3-nano/config.json");
    if (!c)
        skip();
    return c;
}

static int both(const struct kd_json *config, struct kd_k3_cfg *c)
{
    err = (struct kd_err){.msg = ""};
    return kd_k3_cfg_parse(c, config, NULL, &err) || kd_k3_cfg_check(c, config, &err) ? -1 : 0;
}

static void shipped(void **state)
{
    (void)state;
    struct kd_k3_cfg c;
    struct kd_json *config = nano();
    struct kd_buf unknown;
    kd_buf_init(&unknown, 1 << 16);
    assert_int_equal(kd_k3_cfg_parse(&c, config, &unknown, &err), 0);
    assert_int_equal(unknown.size_bytes, 0);
    if (kd_k3_cfg_check(&c, config, &err))
        fail_msg("%s", err.msg);
    assert_true(c.nested);
    assert_string_equal(c.arch, "KimiK3ForConditionalGeneration");
    assert_int_equal(c.layers, 9);
    assert_int_equal(c.hidden, 256);
    assert_int_equal(c.rope, 64);
    assert_int_equal(c.dense_layers, 1);
    assert_int_equal(c.block, 4);
    assert_int_equal(kd_k3_banks(&c), 3);
    assert_false(kd_k3_is_moe(&c, 0));
    assert_true(kd_k3_is_moe(&c, 1));
    static const uint8_t mla[] = {0, 0, 0, 1, 0, 0, 0, 1, 1, 0};
    assert_memory_equal(c.mla, mla, sizeof mla);
    assert_true(c.bounded_gate);
    assert_true(c.gate_lower_bound == -5.0f);
    assert_true(c.eps == 1e-5f && c.eps_latent == 1e-6f);
    assert_true(c.situ_beta == 4.0f && c.situ_linear == 25.0f);
    assert_int_equal(c.eos, 3842);
    assert_int_equal(c.pad, 4095);
    kd_buf_release(&unknown);
    kd_json_free(config);
}

/* The text config by itself, as model_type kimi_linear at the top level. */
static void bare(void **state)
{
    (void)state;
    struct kd_k3_cfg nested, c;
    struct kd_json *config = nano();
    const struct kd_json *text = kd_json_get(config, "text_config");
    assert_int_equal(both(config, &nested), 0);
    if (both(text, &c))
        fail_msg("%s", err.msg);
    assert_false(c.nested);
    assert_string_equal(c.arch, "KimiLinearForCausalLM");
    c.nested = true;
    memcpy(c.arch, nested.arch, sizeof c.arch);
    assert_memory_equal(&c, &nested, sizeof c);
    kd_json_free(config);
}

static void released(void **state)
{
    (void)state;
    const char *shared = getenv("KONDENSE_SHARED");
    char dir[1024];
    snprintf(dir, sizeof dir, "%s", shared ? shared : "../shared");
    if (!shared && !kd_dir_exists(dir))
        snprintf(dir, sizeof dir, "%s/../../../shared", data_dir());
    struct kd_json *config = load(dir, "release/config.json");
    struct kd_k3_cfg c;
    struct kd_buf unknown;
    if (!config)
        skip();
    kd_buf_init(&unknown, 1 << 16);
    assert_int_equal(kd_k3_cfg_parse(&c, config, &unknown, &err), 0);
    assert_int_equal(unknown.size_bytes, 0);
    if (kd_k3_cfg_check(&c, config, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(c.layers, 93);
    assert_true(c.mla[91] && c.mla[92] && !c.mla[90]);
    assert_int_equal(kd_k3_banks(&c), 8);
    kd_buf_release(&unknown);
    kd_json_free(config);
}

/* One change to a text (or linear_attn) key, as JSON text; NULL removes it. */
struct change {
    const char *place; /* "", "text" or "linear" */
    const char *key, *value;
    const char *reason;
};

static struct kd_json *changed(const struct change *ch)
{
    struct kd_json *config = nano(), *at = config, *v;
    if (*ch->place)
        at = kd_json_get(config, "text_config");
    if (*ch->place == 'l')
        at = kd_json_get(at, "linear_attn_config");
    if (!ch->value) {
        kd_json_del(at, ch->key);
        return config;
    }
    if (kd_json_parse(&v, ch->value, strlen(ch->value), "value", &err))
        fail_msg("%s", err.msg);
    assert_int_equal(kd_json_set(at, ch->key, v), 0);
    return config;
}

static void expect(const struct change *list, size_t count, bool at_parse)
{
    for (size_t i = 0; i < count; i++) {
        struct kd_json *config = changed(&list[i]);
        struct kd_k3_cfg c;
        err = (struct kd_err){.msg = ""};
        int rc = kd_k3_cfg_parse(&c, config, NULL, &err);
        if ((rc != 0) != at_parse)
            fail_msg("%s=%s: parse says %d %s", list[i].key, list[i].value, rc, err.msg);
        if (!rc)
            rc = kd_k3_cfg_check(&c, config, &err);
        if (!rc)
            fail_msg("%s=%s was taken", list[i].key, list[i].value ? list[i].value : "(none)");
        assert_int_equal(err.code, at_parse ? KD_ECORRUPT : KD_ENOTSUP);
        assert_non_null(strstr(err.msg, "config.json"));
        if (!strstr(err.msg, list[i].reason))
            fail_msg("'%s' does not say '%s'", err.msg, list[i].reason);
        kd_json_free(config);
    }
}

static void bounds(void **state)
{
    (void)state;
    static const struct change list[] = {
        {"text", "hidden_size", "0", "'hidden_size' is 0"},
        {"text", "hidden_size", "-256", "outside"},
        {"text", "hidden_size", "9223372036854775807", "outside"},
        {"text", "hidden_size", "256.0", "not an integer"},
        {"text", "hidden_size", "\"256\"", "not an integer"},
        {"text", "hidden_size", NULL, "missing"},
        {"text", "num_hidden_layers", "1025", "outside 1 to 1024"},
        {"text", "num_hidden_layers", "8", "outside 1 to 8"},
        {"text", "num_hidden_layers", "10", "layer 10 is in neither"},
        {"text", "num_attention_heads", "0", "outside"},
        {"text", "vocab_size", "100000000", "outside"},
        {"text", "vocab_size", "3000", "token_id"},
        {"text", "eos_token_id", "-2", "outside"},
        {"text", "eos_token_id", "[1,2]", "not an integer"},
        {"text", "rms_norm_eps", "0", "outside"},
        {"text", "rms_norm_eps", "-1e-5", "outside"},
        {"text", "rms_norm_eps", "1e300", "outside"},
        {"text", "rms_norm_eps", "\"nan\"", "not a number"},
        {"text", "routed_scaling_factor", "-1", "outside"},
        {"text", "activation_situ_beta", "0", "outside"},
        {"text", "num_experts", "0", "outside"},
        {"text", "num_experts_per_token", "33", "outside 1 to 32"},
        {"text", "num_experts_per_token", "0", "outside"},
        {"text", "first_k_dense_replace", "10", "outside 0 to 9"},
        {"text", "attn_res_block_size", "0", "outside"},
        {"text", "moe_renormalize", "1", "not true or false"},
        {"text", "linear_attn_config", NULL, "missing"},
        {"text", "linear_attn_config", "[]", "not an object"},
        {"linear", "kda_layers", "[1,2,3,5,6]", "layer 7 is in neither"},
        {"linear", "kda_layers", "[1,2,3,5,6,7,7]", "layer 7 is named twice"},
        {"linear", "kda_layers", "[1,2,3,4,5,6,7]", "layer 4 is named twice"},
        {"linear", "kda_layers", "[0,1,2,3,5,6,7]", "outside 1 to 9"},
        {"linear", "kda_layers", "[1,2,3,5,6,7,10]", "outside 1 to 9"},
        {"linear", "kda_layers", "[1,2,3,5,6,7.0]", "outside 1 to 9"},
        {"linear", "kda_layers", "[1,2,3,5,6,9223372036854775807]", "outside 1 to 9"},
        {"linear", "kda_layers", "{}", "not an array"},
        {"linear", "full_attn_layers", NULL, "not an array"},
        {"linear", "gate_lower_bound", "1", "outside"},
        {"linear", "short_conv_kernel_size", "0", "outside"},
        {"linear", "head_dim", "4096", "outside"},
    };
    expect(list, sizeof list / sizeof *list, true);
}

static void refusals(void **state)
{
    (void)state;
    static const struct change list[] = {
        {"", "architectures", "[\"LlamaForCausalLM\"]", "architecture 'LlamaForCausalLM'"},
        {"", "architectures", "[\"Evil\\u001b[2J\"]", "architecture 'Evil?[2J'"},
        {"", "model_type", "\"kimi_k31\"", "model_type 'kimi_k31'"},
        {"", "tie_word_embeddings", "true", "tie_word_embeddings"},
        {"", "surprise", "1", "key 'surprise' is not known"},
        {"", "quantization_config", "{\"quant_method\":\"gptq\"}", "method 'gptq'"},
        {"text", "model_type", "\"deepseek_v3\"", "model_type"},
        {"text", "attn_res_block_size", NULL, "attn_res_block_size"},
        {"text", "routed_expert_hidden_size", "null", "routed_expert_hidden_size"},
        {"text", "hidden_act", "\"silu\"", "'hidden_act' is \"silu\""},
        {"text", "hidden_act", NULL, "'hidden_act' is missing"},
        {"text", "moe_router_activation_func", "\"softmax\"", "moe_router_activation_func"},
        {"text", "num_expert_group", "2", "num_expert_group"},
        {"text", "topk_group", "2", "topk_group"},
        {"text", "moe_layer_freq", "2", "moe_layer_freq"},
        {"text", "q_lora_rank", "null", "q_lora_rank null"},
        {"text", "mla_use_nope", "false", "mla_use_nope"},
        {"text", "mla_use_nope", NULL, "mla_use_nope"},
        {"text", "mla_use_output_gate", "false", "mla_use_output_gate"},
        {"text", "num_key_value_heads", "1", "key-value heads"},
        {"text", "num_nextn_predict_layers", "1", "num_nextn_predict_layers"},
        {"text", "topk_method", "\"greedy\"", "topk_method"},
        {"text", "tie_word_embeddings", "true", "tie_word_embeddings"},
        {"text", "rope_scaling", "{\"type\":\"yarn\"}", "rope_scaling"},
        {"text", "index_topk", "2048", "key 'index_topk' is not known"},
        {"text", "temperature", "0.7", "'temperature' is 0.7"},
        {"text", "top_k", "40", "top_k"},
        {"text", "is_decoder", "true", "is_decoder"},
        {"text", "pruned_heads", "{\"1\":[2]}", "pruned_heads"},
        {"text", "return_dict", "false", "return_dict"},
        {"text", "quantization_config", "{\"quant_method\":\"fp8\"}", "method 'fp8'"},
        {"text", "quantization_config",
         "{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\"}",
         "format 'int-quantized'"},
        {"text", "quantization_config",
         "{\"quant_method\":\"compressed-tensors\",\"format\":\"mxfp4-pack-quantized\",\"config_"
         "groups\":"
         "{\"g\":{\"weights\":{\"group_size\":16}}}}",
         "group_size"},
        {"text", "quantization_config",
         "{\"quant_method\":\"compressed-tensors\",\"format\":\"mxfp4-pack-quantized\",\"config_"
         "groups\":"
         "{\"g\":{\"input_activations\":{\"num_bits\":4}}}}",
         "quantized activations"},
        {"text", "quantization_config",
         "{\"quant_method\":\"compressed-tensors\",\"format\":\"mxfp4-pack-quantized\",\"kv_cache_"
         "scheme\":{}}",
         "quantized cache"},
        {"linear", "use_full_rank_gate", "false", "use_full_rank_gate"},
        {"linear", "surprise", "1", "key 'linear_attn_config.surprise'"},
    };
    expect(list, sizeof list / sizeof *list, false);
}

/* What a forward pass may take although it is not what the release says. */
static void accepted(void **state)
{
    (void)state;
    static const struct change list[] = {
        {"", "quantization_config", "{\"quant_method\":\"exl3\",\"bits\":2.3}", NULL},
        {"text", "quantization_config", NULL, NULL},
        {"text", "surprise", "null", NULL},
        {"text", "temperature", "1.0", NULL},
        {"text", "temperature", "1", NULL},
        {"text", "top_k", "50", NULL},
        {"text", "transformers_version", "\"9.9\"", NULL},
        {"text", "activation_situ_linear_beta", "null", NULL},
        {"text", "routed_scaling_factor", "2.5", NULL},
        {"text", "num_shared_experts", "0", NULL},
        {"text", "moe_renormalize", "false", NULL},
        {"text", "rope_theta", "10000.0", NULL},
        {"linear", "gate_lower_bound", NULL, NULL},
        {"", "bos_token_id", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct kd_json *config = changed(&list[i]);
        struct kd_k3_cfg c;
        if (both(config, &c))
            fail_msg("%s=%s: %s", list[i].key, list[i].value ? list[i].value : "(none)", err.msg);
        if (!strcmp(list[i].key, "gate_lower_bound"))
            assert_false(c.bounded_gate);
        if (!strcmp(list[i].key, "activation_situ_linear_beta"))
            assert_true(c.situ_linear <= 0);
        kd_json_free(config);
    }
}

/* A newer K3: parsed, its keys named with their place, its terminal tricks disarmed. */
static void names_unknown_keys(void **state)
{
    (void)state;
    struct kd_json *config = nano(), *v;
    struct kd_k3_cfg c;
    struct kd_buf unknown;
    kd_buf_init(&unknown, 1 << 16);
    const char *keys[] = {"index_topk", "a\x1b[31m"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kd_json_parse(&v, "[1]", 3, "v", &err), 0);
        assert_int_equal(kd_json_set(kd_json_get(config, "text_config"), keys[i], v), 0);
    }
    assert_int_equal(kd_json_parse(&v, "2", 1, "v", &err), 0);
    assert_int_equal(kd_json_set(config, "audio_config", v), 0);
    assert_int_equal(kd_k3_cfg_parse(&c, config, &unknown, &err), 0);
    assert_string_equal(unknown.data, "audio_config, text_config.index_topk, text_config.a?[31m");
    kd_buf_release(&unknown);
    kd_json_free(config);
}

static void not_a_config(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{}", "[]", "7", "null", "{\"text_config\":{}}", "{\"text_config\":7}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct kd_json *config;
        struct kd_k3_cfg c;
        assert_int_equal(kd_json_parse(&config, texts[i], strlen(texts[i]), "v", &err), 0);
        assert_int_equal(kd_k3_cfg_parse(&c, config, NULL, &err), -1);
        kd_json_free(config);
    }
    struct kd_k3_cfg c;
    assert_int_equal(kd_k3_cfg_parse(&c, NULL, NULL, &err), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shipped),
        cmocka_unit_test(bare),
        cmocka_unit_test(released),
        cmocka_unit_test(bounds),
        cmocka_unit_test(refusals),
        cmocka_unit_test(accepted),
        cmocka_unit_test(names_unknown_keys),
        cmocka_unit_test(not_a_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
