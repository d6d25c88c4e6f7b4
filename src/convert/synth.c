#include "convert/synth.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "fmt/st_write.h"
#include "model/k3_cfg.h"
#include "num/half.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What a tensor is filled with. */
enum fill { LINEAR, NORM, ZERO_ONE, SMALL, CODES, SCALES };

struct item {
    char name[160];
    const char *dtype;
    int rank;
    int64_t shape[3];
    enum fill fill;
    float gain; /* LINEAR: times 1/sqrt(inputs) */
};

enum { ITEMS_MAX = 64 };

struct list {
    struct item item[ITEMS_MAX];
    int count;
    char prefix[96];
};

static void add(struct list *l, const char *name, const char *dtype, int64_t a, int64_t b,
                enum fill fill, float gain)
{
    struct item *i = &l->item[l->count++];
    snprintf(i->name, sizeof i->name, "%s%s", l->prefix, name);
    i->dtype = dtype;
    i->rank = b ? 2 : 1;
    i->shape[0] = a;
    i->shape[1] = b;
    i->fill = fill;
    i->gain = gain;
}

static void linear(struct list *l, const char *name, int64_t rows, int64_t cols, float gain)
{
    add(l, name, "BF16", rows, cols, LINEAR, gain);
}

static void norm(struct list *l, const char *name, int64_t n)
{
    add(l, name, "BF16", n, 0, NORM, 1);
}

static void conv(struct list *l, const char *name, int64_t channels, int64_t taps)
{
    add(l, name, "F32", channels, taps, LINEAR, 1);
    struct item *i = &l->item[l->count - 1];
    i->rank = 3;
    i->shape[1] = 1;
    i->shape[2] = taps;
}

static void attention(struct list *l, const struct kd_k3_cfg *c, int64_t layer)
{
    int64_t H = c->hidden, P = c->kda_heads * c->kda_dim;
    if (c->mla[layer]) {
        int64_t V = c->heads * c->v_dim;
        linear(l, "self_attn.q_a_proj.weight", c->q_lora, H, 1);
        norm(l, "self_attn.q_a_layernorm.weight", c->q_lora);
        linear(l, "self_attn.q_b_proj.weight", c->heads * (c->nope + c->rope), c->q_lora, 1);
        linear(l, "self_attn.kv_a_proj_with_mqa.weight", c->kv_lora + c->rope, H, 1);
        norm(l, "self_attn.kv_a_layernorm.weight", c->kv_lora);
        linear(l, "self_attn.kv_b_proj.weight", c->heads * (c->nope + c->v_dim), c->kv_lora, 1);
        linear(l, "self_attn.g_proj.weight", V, H, 1);
        linear(l, "self_attn.o_proj.weight", H, V, 1);
        return;
    }
    static const char *const qkvg[] = {"q", "k", "v", "g"};
    char name[64];
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "self_attn.%s_proj.weight", qkvg[i]);
        linear(l, name, P, H, 1);
        snprintf(name, sizeof name, "self_attn.%s_conv1d.weight", qkvg[i]);
        if (i < 3)
            conv(l, name, P, c->conv);
    }
    linear(l, "self_attn.f_a_proj.weight", c->kda_dim, H, 1);
    linear(l, "self_attn.f_b_proj.weight", P, c->kda_dim, 1);
    linear(l, "self_attn.b_proj.weight", c->kda_heads, H, 1);
    add(l, "self_attn.A_log", "F32", c->kda_dim > c->kda_heads ? c->kda_dim : c->kda_heads, 0,
        ZERO_ONE, 1);
    add(l, "self_attn.dt_bias", "F32", P, 0, SMALL, 1);
    add(l, "self_attn.o_norm.weight", "F32", c->kda_dim, 0, NORM, 1);
    linear(l, "self_attn.o_proj.weight", H, P, 1);
}

static void layer_items(struct list *l, const struct kd_k3_cfg *c, int64_t layer)
{
    int64_t H = c->hidden;
    snprintf(l->prefix, sizeof l->prefix, "language_model.model.layers.%lld.", (long long)layer);
    l->count = 0;
    norm(l, "input_layernorm.weight", H);
    norm(l, "post_attention_layernorm.weight", H);
    norm(l, "self_attention_res_norm.weight", H);
    norm(l, "mlp_res_norm.weight", H);
    linear(l, "self_attention_res_proj.weight", 1, H, 1);
    linear(l, "mlp_res_proj.weight", 1, H, 1);
    attention(l, c, layer);
    if (!kd_k3_is_moe(c, layer)) {
        linear(l, "mlp.gate_proj.weight", c->dense_inter, H, 1);
        linear(l, "mlp.up_proj.weight", c->dense_inter, H, 1);
        linear(l, "mlp.down_proj.weight", H, c->dense_inter, 1);
        return;
    }
    int64_t S = c->shared * c->moe_inter;
    linear(l, "block_sparse_moe.gate.weight", c->experts, H, 2);
    add(l, "block_sparse_moe.gate.e_score_correction_bias", "F32", c->experts, 0, SMALL, 1);
    linear(l, "block_sparse_moe.routed_expert_down_proj.weight", c->latent, H, 1);
    norm(l, "block_sparse_moe.routed_expert_norm.weight", c->latent);
    linear(l, "block_sparse_moe.routed_expert_up_proj.weight", H, c->latent, 1);
    linear(l, "block_sparse_moe.shared_experts.gate_proj.weight", S, H, 1);
    linear(l, "block_sparse_moe.shared_experts.up_proj.weight", S, H, 1);
    linear(l, "block_sparse_moe.shared_experts.down_proj.weight", H, S, 1);
}

static void expert_items(struct list *l, const struct kd_k3_cfg *c, int64_t layer, int64_t e)
{
    static const char *const w[] = {"w1", "w3", "w2"};
    l->count = 0;
    for (int i = 0; i < 3; i++) {
        int64_t rows = i == 2 ? c->latent : c->moe_inter, cols = i == 2 ? c->moe_inter : c->latent;
        snprintf(l->prefix, sizeof l->prefix,
                 "language_model.model.layers.%lld.block_sparse_moe.experts.%lld.%s.",
                 (long long)layer, (long long)e, w[i]);
        add(l, "weight_packed", "U8", rows, cols / 2, CODES, 1);
        add(l, "weight_scale", "U8", rows, cols / 32, SCALES, 1);
        /* 1/sqrt(inputs): the codes' rms is about 2. */
        int shift = 0;
        while ((int64_t)1 << (2 * shift) < 4 * cols)
            shift++;
        l->item[l->count - 1].gain = (float)(127 - shift);
    }
}

static void ends_items(struct list *l, const struct kd_k3_cfg *c)
{
    l->count = 0;
    snprintf(l->prefix, sizeof l->prefix, "language_model.");
    add(l, "model.embed_tokens.weight", "BF16", c->vocab, c->hidden, LINEAR,
        sqrtf((float)c->hidden));
    linear(l, "lm_head.weight", c->vocab, c->hidden, 1);
    norm(l, "model.norm.weight", c->hidden);
    norm(l, "model.output_attn_res_norm.weight", c->hidden);
    linear(l, "model.output_attn_res_proj.weight", 1, c->hidden, 1);
}

/* A sum of four uniforms: near enough to normal, unit variance. */
static float bell(uint64_t seed, uint64_t i)
{
    double s = 0;
    for (uint64_t k = 0; k < 4; k++)
        s += kd_rand_unit(seed, 4 * i + k);
    return (float)((s - 2) * 1.7320508);
}

static float value(const struct item *it, uint64_t seed, int64_t i)
{
    int64_t cols = it->shape[it->rank - 1];
    switch (it->fill) {
    case LINEAR:
        return bell(seed, (uint64_t)i) * it->gain / sqrtf((float)cols);
    case NORM:
        return 1 + 0.1f * bell(seed, (uint64_t)i);
    case ZERO_ONE:
        return (float)kd_rand_unit(seed, (uint64_t)i);
    case SMALL:
        return 0.2f * bell(seed, (uint64_t)i);
    case CODES:
    case SCALES:
        break;
    }
    return 0;
}

static int put_item(struct kd_st_writer *w, const struct item *it, uint64_t run_seed,
                    struct kd_err *err)
{
    uint64_t seed = kd_rand_fork(run_seed, kd_fnv64(it->name));
    int64_t n = 1;
    for (int d = 0; d < it->rank; d++)
        n *= it->shape[d];
    int64_t width = !strcmp(it->dtype, "F32") ? 4 : !strcmp(it->dtype, "BF16") ? 2 : 1;
    uint8_t chunk[16384];
    for (int64_t at = 0; at < n;) {
        int64_t m = n - at < (int64_t)sizeof chunk / 4 ? n - at : (int64_t)sizeof chunk / 4;
        for (int64_t i = 0; i < m; i++) {
            float x = value(it, seed, at + i);
            uint16_t h = kd_f32_bf16(x);
            if (it->fill == CODES)
                chunk[i] = (uint8_t)kd_rand_u64(seed, (uint64_t)(at + i));
            else if (it->fill == SCALES)
                chunk[i] = (uint8_t)(it->gain + (float)(kd_rand_u64(seed, (uint64_t)(at + i)) & 1));
            else if (width == 4)
                memcpy(chunk + 4 * i, &x, 4);
            else
                memcpy(chunk + 2 * i, &h, 2);
        }
        if (kd_st_put(w, chunk, m * width, err))
            return -1;
        at += m;
    }
    return 0;
}

/* Runs the items of one shard, those of four bytes or the others: pass 0 plans the header, pass 1
 * writes. */
static int shard_part(struct list *l, const struct kd_k3_cfg *c, int64_t layer, int pass, bool f32,
                      struct kd_st_plan *p, struct kd_st_writer *w, struct kd_buf *index,
                      const char *file, uint64_t seed, struct kd_err *err)
{
    int64_t groups = layer < c->layers && kd_k3_is_moe(c, layer) ? c->experts + 1 : 1;
    for (int64_t g = 0; g < groups; g++) {
        if (g)
            expert_items(l, c, layer, g - 1);
        else if (layer < c->layers)
            layer_items(l, c, layer);
        else
            ends_items(l, c);
        for (int i = 0; i < l->count; i++) {
            const struct item *it = &l->item[i];
            if (!strcmp(it->dtype, "F32") != f32)
                continue;
            if (pass) {
                if (put_item(w, it, seed, err))
                    return -1;
                continue;
            }
            if (kd_st_plan_add(p, it->name, it->dtype, it->rank, it->shape, 0, err))
                return -1;
            kd_buf_printf(index, "%s\n    \"%s\": \"%s\"", index->size_bytes ? "," : "", it->name,
                          file);
        }
    }
    return 0;
}

/* Wide elements first, so that each tensor begins on a multiple of its element, whatever the
 * widths. */
static int shard_pass(struct list *l, const struct kd_k3_cfg *c, int64_t layer, int pass,
                      struct kd_st_plan *p, struct kd_st_writer *w, struct kd_buf *index,
                      const char *file, uint64_t seed, struct kd_err *err)
{
    return shard_part(l, c, layer, pass, true, p, w, index, file, seed, err) ||
                   shard_part(l, c, layer, pass, false, p, w, index, file, seed, err)
               ? -1
               : 0;
}

static int write_shard(struct list *l, const struct kd_k3_cfg *c, int64_t layer, const char *dst,
                       struct kd_buf *index, int64_t *total, uint64_t seed, struct kd_err *err)
{
    struct kd_st_plan p;
    struct kd_st_writer w;
    char file[64], path[4096];
    memset(&w, 0, sizeof w);
    snprintf(file, sizeof file, "model-%05lld-of-%06lld.safetensors", (long long)layer + 1,
             (long long)c->layers + 1);
    kd_st_plan_init(&p);
    int rc = kd_path_join(path, sizeof path, dst, file, err) ||
             shard_pass(l, c, layer, 0, &p, NULL, index, file, seed, err) ||
             kd_st_open(&w, path, &p, err);
    if (!rc)
        rc = shard_pass(l, c, layer, 1, NULL, &w, index, file, seed, err);
    if (!rc)
        rc = kd_st_commit(&w, err);
    else if (w.file.fd > 0)
        kd_st_abort(&w);
    *total += p.data_bytes;
    kd_st_plan_release(&p);
    return rc ? -1 : 0;
}

static void base64(struct kd_buf *b, uint8_t byte)
{
    static const char d[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    kd_buf_printf(b, "%c%c==", d[byte >> 2], d[(byte & 3) << 4]);
}

static int write_tokenizer(const char *dst, struct kd_err *err)
{
    static const struct {
        int slot;
        const char *text;
    } special[] = {{0, "[BOS]"},          {1, "[EOS]"},     {2, "<|end_of_msg|>"},
                   {3, "<|open|>"},       {4, "<|close|>"}, {5, "<|sep|>"},
                   {21, "<|media_pad|>"}, {254, "[UNK]"},   {255, "[PAD]"}};
    struct kd_buf b;
    char path[4096];
    kd_buf_init(&b, 1 << 20);
    for (int i = 0; i < 256; i++) {
        base64(&b, (uint8_t)i);
        kd_buf_printf(&b, " %d\n", i);
    }
    int rc = kd_path_join(path, sizeof path, dst, "tiktoken.model", err) ||
             kd_buf_ok(&b, path, err) || kd_file_write(path, b.data, b.size_bytes, err);
    kd_buf_clear(&b);
    kd_buf_str(&b, "{\n  \"added_tokens_decoder\": {");
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        kd_buf_printf(&b, "%s\n    \"%d\": {\"content\": \"%s\", \"special\": %s}", i ? "," : "",
                      256 + special[i].slot, special[i].text, i >= 3 && i <= 5 ? "false" : "true");
    kd_buf_str(&b,
               "\n  },\n  \"bos_token\": \"[BOS]\",\n  \"eos_token\": \"[EOS]\",\n  \"pad_token\": "
               "\"[PAD]\",\n"
               "  \"unk_token\": \"[UNK]\",\n  \"tokenizer_class\": \"TikTokenTokenizer\"\n}\n");
    if (!rc)
        rc = kd_path_join(path, sizeof path, dst, "tokenizer_config.json", err) ||
             kd_buf_ok(&b, path, err) || kd_file_write(path, b.data, b.size_bytes, err);
    kd_buf_release(&b);
    return rc ? -1 : 0;
}

static int write_index(const char *dst, const struct kd_buf *map, int64_t total, struct kd_err *err)
{
    char path[4096], head[128];
    struct kd_outfile f;
    snprintf(head, sizeof head, "{\n  \"metadata\": {\"total_size\": %lld},\n  \"weight_map\": {",
             (long long)total);
    if (kd_path_join(path, sizeof path, dst, "model.safetensors.index.json", err) ||
        kd_out_open(&f, path, err))
        return -1;
    if (kd_out_write(&f, head, (int64_t)strlen(head), err) ||
        kd_out_write(&f, map->data, (int64_t)map->size_bytes, err) ||
        kd_out_write(&f, "\n  }\n}\n", 7, err)) {
        kd_out_abort(&f);
        return -1;
    }
    return kd_out_commit(&f, err);
}

int kd_synth_write(const char *config_path, const char *dst, uint64_t seed, struct kd_err *err)
{
    struct kd_json *config = NULL;
    struct kd_k3_cfg *c = NULL;
    struct list *l = NULL;
    struct kd_buf index, text;
    char path[4096];
    int64_t total = 0;
    kd_buf_init(&index, 1u << 30);
    kd_buf_init(&text, 1 << 24);
    if (kd_path_join(path, sizeof path, dst, "config.json", err))
        return -1;
    if (kd_file_exists(path))
        return kd_fail(err, KD_EUSAGE, "'%s' already holds a model; choose another folder", dst);
    int rc = kd_json_load(&config, config_path, 1 << 24, err) ||
             kd_mem_new(&c, 1, sizeof *c, "config", err) ||
             kd_mem_new(&l, 1, sizeof *l, "tensor list", err) ||
             kd_k3_cfg_parse(c, config, NULL, err) || kd_k3_cfg_check(c, config, err) ||
             kd_dir_make(dst, err);
    if (!rc && (c->moe_inter % 32 || c->latent % 32))
        rc = kd_fail(err, KD_EINVAL, "MXFP4 experts need widths that are multiples of 32");
    for (int64_t layer = 0; !rc && layer <= c->layers; layer++)
        rc = write_shard(l, c, layer, dst, &index, &total, seed, err);
    if (!rc)
        rc = kd_buf_ok(&index, "index", err) || write_index(dst, &index, total, err) ||
             write_tokenizer(dst, err) || kd_file_read(&text, config_path, 1 << 24, err) ||
             kd_path_join(path, sizeof path, dst, "config.json", err) ||
             kd_file_write(path, text.data, text.size_bytes, err);
    kd_json_free(config);
    kd_mem_free(c);
    kd_mem_free(l);
    kd_buf_release(&index);
    kd_buf_release(&text);
    return rc ? -1 : 0;
}
