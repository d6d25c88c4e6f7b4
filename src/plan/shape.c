/* The models that plan knows: K3's own config, built in, or one from a file; what follows from the
 * shape alone; and how it is cut over devices. */
#include "plan/bytes.h"

#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The released config.json, as far as sizes and the forward pass go. The full-attention layers are
 * every fourth and the last. */
static const char k3_config[] =
    "{\"architectures\":[\"KimiK3ForConditionalGeneration\"],\"model_type\":\"kimi_k3\","
    "\"dtype\":\"bfloat16\",\"tie_word_embeddings\":false,"
    "\"text_config\":{\"model_type\":\"kimi_linear\",\"hidden_act\":\"situ\","
    "\"moe_router_activation_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\",\"mla_use_nope\":true,"
    "\"mla_use_output_gate\":true,\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
    "\"format\":\"mxfp4-pack-quantized\",\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],"
    "\"format\":\"mxfp4-pack-quantized\",\"weights\":{\"num_bits\":4,\"group_size\":32,\"type\":"
    "\"float\",\"strategy\":\"group\",\"symmetric\":true,\"dynamic\":false,\"scale_dtype\":"
    "\"torch.uint8\"}}}},\"hidden_size\":7168,\"num_hidden_layers\":93,"
    "\"num_attention_heads\":96,\"num_key_value_heads\":96,\"intermediate_size\":33792,"
    "\"vocab_size\":163840,\"rms_norm_eps\":1e-5,\"max_position_embeddings\":1048576,"
    "\"activation_situ_beta\":4.0,\"activation_situ_linear_beta\":25.0,\"attn_res_block_size\":12,"
    "\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
    "\"v_head_dim\":128,\"num_experts\":896,\"num_experts_per_token\":16,\"num_shared_experts\":2,"
    "\"moe_intermediate_size\":3072,\"routed_expert_hidden_size\":3584,\"latent_moe_use_norm\":"
    "true,"
    "\"first_k_dense_replace\":1,\"moe_renormalize\":true,\"routed_scaling_factor\":1.0,"
    "\"linear_attn_config\":{\"head_dim\":128,\"num_heads\":96,\"short_conv_kernel_size\":4,"
    "\"gate_lower_bound\":-5.0,\"full_attn_layers\":[%s],\"kda_layers\":[%s]}},"
    "\"vision_config\":{\"vt_num_hidden_layers\":27,\"vt_hidden_size\":1024,"
    "\"qkv_hidden_size\":1536,\"vt_intermediate_size\":4096,\"patch_size\":14,"
    "\"init_pos_emb_height\":64,\"init_pos_emb_width\":64,\"mm_hidden_size\":1024,"
    "\"text_hidden_size\":7168,\"merge_kernel_size\":[2,2]}}";

enum { K3_LAYERS = 93, MLA_EVERY = 4 };

/* Parameters by kind, from the native form: BF16 and F32 tensors and two values a packed byte. */
static void count_layers(struct kd_plan_model *m)
{
    const struct kd_k3_cfg *c = &m->cfg;
    for (int64_t l = 0; l < c->layers; l++) {
        m->mla_layers += c->mla[l] != 0;
        m->moe_layers += kd_k3_is_moe(c, l);
    }
    m->kda_layers = c->layers - m->mla_layers;
}

static void add_params(struct kd_plan_model *m, int row, int64_t layer, const char *place)
{
    char name[160];
    struct kd_k3_name n;
    int64_t count = kd_k3_row_expect(&m->map, row, layer);
    enum kd_k3_kind kind = kd_k3_row_kind(row);
    static const char *const tails[] = {".weight", "", ".weight_packed"};
    if (!count)
        return;
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s%s%s", place, kd_k3_row_name(row), tails[i]);
        char *star = strchr(name, '*');
        if (star)
            *star = '0';
        if (kd_k3_name_parse(&m->map, name, &n)) {
            m->params[kind] += count * n.params;
            return;
        }
    }
}

static void count_params(struct kd_plan_model *m)
{
    const struct kd_k3_cfg *c = &m->cfg;
    char place[64];
    for (int row = 0; row < kd_k3_row_count(); row++) {
        bool vision = kd_k3_row_kind(row) == KD_K3_VISION;
        add_params(m, row, -1, "");
        for (int64_t l = 0; !vision && l < c->layers; l++) {
            snprintf(place, sizeof place, "model.layers.%lld.", (long long)l);
            add_params(m, row, l, place);
        }
        for (int64_t b = 0; vision && b < m->map.vision.blocks; b++) {
            snprintf(place, sizeof place, "vision_tower.encoder.blocks.%lld.", (long long)b);
            add_params(m, row, b, place);
        }
    }
    for (int k = 0; k < KD_K3_KINDS; k++)
        m->total_params += m->params[k];
    m->expert_params = m->moe_layers ? m->params[KD_K3_ROUTED] / (m->moe_layers * c->experts) : 0;
    m->active_params = m->total_params - m->params[KD_K3_ROUTED] - m->params[KD_K3_EMBED] -
                       m->params[KD_K3_VISION] - m->params[KD_K3_PROJECTOR] +
                       m->moe_layers * c->topk * m->expert_params;
}

int kd_plan_model_of(struct kd_plan_model *m, const struct kd_json *config, const char *name,
                     struct kd_err *err)
{
    memset(m, 0, sizeof *m);
    snprintf(m->name, sizeof m->name, "%s", name);
    if (kd_k3_cfg_parse(&m->cfg, config, NULL, err) ||
        kd_k3_map_init(&m->map, &m->cfg, config, err))
        return -1;
    count_layers(m);
    count_params(m);
    return 0;
}

int kd_plan_config_k3(struct kd_json **config, struct kd_err *err)
{
    char mla[256] = "", kda[512] = "", text[4096];
    size_t nm = 0, nk = 0;
    for (int l = 1; l <= K3_LAYERS; l++) {
        bool full = l % MLA_EVERY == 0 || l == K3_LAYERS;
        if (full)
            nm += (size_t)snprintf(mla + nm, sizeof mla - nm, "%s%d", nm ? "," : "", l);
        else
            nk += (size_t)snprintf(kda + nk, sizeof kda - nk, "%s%d", nk ? "," : "", l);
    }
    int n = snprintf(text, sizeof text, k3_config, mla, kda);
    return kd_json_parse(config, text, (size_t)n, "Kimi K3's own config", err);
}

int kd_plan_model_k3(struct kd_plan_model *m, struct kd_err *err)
{
    struct kd_json *config;
    if (kd_plan_config_k3(&config, err))
        return -1;
    int rc = kd_plan_model_of(m, config, "Kimi K3", err);
    kd_json_free(config);
    m->built_in = true;
    return rc;
}

int kd_plan_model_load(struct kd_plan_model *m, const char *path, struct kd_err *err)
{
    char file[4096];
    struct kd_json *config;
    if (kd_dir_exists(path)) {
        if (kd_path_join(file, sizeof file, path, "config.json", err))
            return -1;
    } else if (snprintf(file, sizeof file, "%s", path) >= (int)sizeof file) {
        return kd_fail(err, KD_EINVAL, "path '%.60s...' is too long", path);
    }
    if (kd_json_load(&config, file, 16 << 20, err))
        return -1;
    int rc = kd_plan_model_of(m, config, path, err);
    kd_json_free(config);
    return rc ? kd_wrap(err, "%s", file) : 0;
}

struct kd_plan_target kd_plan_native(void)
{
    return (struct kd_plan_target){.form = KD_FORM_NATIVE, .name = "MXFP4 native"};
}

struct kd_plan_target kd_plan_exl3(double experts_bpw)
{
    struct kd_plan_target t = {
        .form = KD_FORM_EXL3, .experts_bpw = experts_bpw, .trunk_bpw = 4, .head_bpw = 6};
    bool tenths = experts_bpw * 10 == (double)(int)(experts_bpw * 10);
    snprintf(t.name, sizeof t.name, tenths ? "EXL3 %.1f bits" : "EXL3 %.4g bits", experts_bpw);
    return t;
}

struct kd_plan_target kd_plan_document(double experts_bpw)
{
    struct kd_plan_target t = {.form = KD_FORM_DOCUMENT, .experts_bpw = experts_bpw};
    snprintf(t.name, sizeof t.name, "document's %.1f bits", experts_bpw);
    return t;
}

/* gguf-slicing 3.3: the model card's table, sizes in decimal GB as printed there. */
#define CARD "unsloth/Kimi-K3-GGUF model card, read Aug 2026"
const struct kd_plan_target kd_plan_published[] = {
    {KD_FORM_PUBLISHED, "UD-IQ1_S", 0, 0, 0, 593990834560, 0.5645, CARD, NULL},
    {KD_FORM_PUBLISHED, "UD-IQ1_M", 0, 0, 0, 648900000000, 0.4789, CARD, NULL},
    {KD_FORM_PUBLISHED, "UD-IQ2_XXS", 0, 0, 0, 711100000000, 0.3784, CARD, NULL},
    {KD_FORM_PUBLISHED, "UD-Q2_K_XL", 0, 0, 0, 861300000000, 0.1779, CARD, NULL},
    {KD_FORM_PUBLISHED, "Cubic 2.5-bit", 0, 0, 0, 965293899776, 0,
     "QuantTrio, 899 GiB in the plan document, Oct 2026", NULL},
    {KD_FORM_PUBLISHED, "UD-Q4_K_XL", 0, 0, 0, 1510000000000, 0, CARD, NULL},
    {KD_FORM_PUBLISHED, "UD-Q8_K_XL", 0, 0, 0, 1560000000000, 0, CARD, NULL},
    {KD_FORM_PUBLISHED, "NVFP4", 0, 0, 0, 1610612736000, 0,
     "nvidia, 1,500 GiB in the plan document, Oct 2026", NULL},
    {KD_FORM_NATIVE, "", 0, 0, 0, 0, 0, NULL, NULL}};
#undef CARD

/* Share of `blocks` that the fullest of n devices gets. */
static double fullest(int64_t blocks, int64_t n)
{
    int64_t most = (blocks + n - 1) / n;
    return blocks > 0 ? (double)most / (double)blocks : 1;
}

struct kd_plan_cut kd_plan_cut_of(const struct kd_plan_bytes *b, const struct kd_plan_model *m,
                                  int64_t n)
{
    const struct kd_k3_cfg *c = &m->cfg;
    int64_t block = b->cut_block;
    const int64_t blocks[KD_K3_KINDS] = {[KD_K3_KDA] = c->kda_heads,
                                         [KD_K3_MLA] = c->heads,
                                         [KD_K3_ROUTER] = c->experts,
                                         [KD_K3_LATENT] = (c->latent + block - 1) / block,
                                         [KD_K3_SHARED] =
                                             (c->shared * c->moe_inter + block - 1) / block,
                                         [KD_K3_DENSE] = (c->dense_inter + block - 1) / block,
                                         [KD_K3_HEAD] = (c->vocab + block - 1) / block};
    if (n <= 1)
        return (struct kd_plan_cut){.bytes = b->tensor_bytes, .experts = b->routed};
    double sum = (double)b->replicated, width = fullest((c->moe_inter + block - 1) / block, n),
           whole = fullest(c->experts, n);
    /* Norms are among the replicated; of attention the replicated part comes off below. */
    for (int k = 0; k < KD_K3_KINDS; k++)
        if (k != KD_K3_NORMS && k != KD_K3_FINAL && k != KD_K3_ROUTED)
            sum += (double)b->kind[k] * (blocks[k] ? fullest(blocks[k], n) : 1);
    double attention =
        (double)b->replicated - (double)b->kind[KD_K3_NORMS] - (double)b->kind[KD_K3_FINAL];
    sum -= attention > 0 ? attention * fullest(c->heads, n) : 0;
    struct kd_plan_cut cut = {.whole = whole < width};
    cut.experts = (int64_t)((double)b->routed * (cut.whole ? whole : width));
    cut.bytes = (int64_t)sum + cut.experts;
    return cut;
}

int64_t kd_plan_cache_token_bytes(const struct kd_plan_model *m, int64_t width)
{
    return m->mla_layers * (m->cfg.kv_lora + m->cfg.rope) * width;
}

int64_t kd_plan_state_bytes(const struct kd_plan_model *m)
{
    const struct kd_k3_cfg *c = &m->cfg;
    int64_t channels = c->kda_heads * c->kda_dim;
    return m->kda_layers * 4 * (channels * c->kda_dim + 3 * (c->conv - 1) * channels);
}

double kd_plan_experts_touched(const struct kd_plan_model *m, double tokens)
{
    double all = (double)m->cfg.experts / (double)m->cfg.topk;
    return all * (1 - pow(1 - 1 / all, tokens));
}
