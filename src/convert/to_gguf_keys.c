/* The key-values of a converted file: the model's figures, and the tokenizer. */
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "convert/to_gguf_int.h"
#include "text/gpt2.h"
#include "text/tok.h"

#include <stdio.h>
#include <string.h>

#define P "kimi-k3."

enum {
    TYPE_NORMAL = 1,
    TYPE_CONTROL = 3,
    TYPE_UNUSED = 5,
    TEMPLATE_MAX = 16 << 20,
    TOKENS_MAX = 200 << 20
};

void kd_to_gguf_name(char *out, size_t size, const char *path)
{
    size_t n = strlen(path), from;
    while (n > 1 && path[n - 1] == '/')
        n--;
    for (from = n; from > 0 && path[from - 1] != '/';)
        from--;
    snprintf(out, size, "%.*s", (int)(n - from), path + from);
}

static void put_u32(struct kd_gguf_plan *p, const char *key, int64_t v)
{
    kd_gguf_plan_int(p, key, KD_GV_U32, v);
}

static void put_figures(struct kd_gguf_plan *p, const struct kd_k3_cfg *c)
{
    int32_t kinds[KD_K3_LAYERS_MAX];
    for (int64_t l = 0; l < c->layers; l++)
        kinds[l] = c->mla[l]; /* heads of keys and values: one latent head, or none (KDA) */
    put_u32(p, P "block_count", c->layers);
    put_u32(p, P "context_length", c->context);
    put_u32(p, P "embedding_length", c->hidden);
    put_u32(p, P "feed_forward_length", c->dense_inter);
    put_u32(p, P "vocab_size", c->vocab);
    put_u32(p, P "attention.head_count", c->heads);
    kd_gguf_plan_array(p, P "attention.head_count_kv", KD_GV_I32, c->layers, kinds, 4 * c->layers);
    kd_gguf_plan_f32(p, P "attention.layer_norm_rms_epsilon", c->eps);
    put_u32(p, P "attention.key_length", c->kv_lora + c->rope);
    put_u32(p, P "attention.value_length", c->kv_lora);
    put_u32(p, P "attention.key_length_mla", c->nope + c->rope);
    put_u32(p, P "attention.value_length_mla", c->v_dim);
    put_u32(p, P "attention.q_lora_rank", c->q_lora);
    put_u32(p, P "attention.kv_lora_rank", c->kv_lora);
    put_u32(p, P "rope.dimension_count", c->rope);
    put_u32(p, P "ssm.conv_kernel", c->conv);
    put_u32(p, P "kda.head_dim", c->kda_dim);
    if (c->bounded_gate)
        kd_gguf_plan_f32(p, P "kda.gate_lower_bound", c->gate_lower_bound);
    put_u32(p, P "expert_count", c->experts);
    put_u32(p, P "expert_used_count", c->topk);
    put_u32(p, P "expert_shared_count", c->shared);
    put_u32(p, P "expert_feed_forward_length", c->moe_inter);
    put_u32(p, P "expert_latent_length", c->latent);
    kd_gguf_plan_f32(p, P "expert_weights_scale", c->routed_scale);
    kd_gguf_plan_int(p, P "expert_weights_norm", KD_GV_BOOL, c->renormalize);
    put_u32(p, P "expert_gating_func", 2); /* sigmoid */
    put_u32(p, P "leading_dense_block_count", c->dense_layers);
    put_u32(p, P "attn_res.block_size", c->block);
    kd_gguf_plan_f32(p, P "activation.situ_beta", c->situ_beta);
    kd_gguf_plan_f32(p, P "activation.situ_linear_beta", c->situ_linear);
}

/* "AB" of rank r as the two tokens that merging with lower ranks alone leaves; false when it does
 * not leave two (then no merge makes this token). */
static bool last_merge(const struct kd_tok *tok, const char *s, size_t n, int32_t r, size_t *cut)
{
    uint16_t end[1024]; /* of each part; tokens have at most so many bytes */
    size_t parts = n;
    if (n < 2 || n > sizeof end / sizeof *end)
        return false;
    for (size_t i = 0; i < n; i++)
        end[i] = (uint16_t)(i + 1);
    while (parts > 2) {
        int32_t least = r;
        size_t at = 0;
        for (size_t i = 0; i + 1 < parts; i++) {
            size_t from = i ? end[i - 1] : 0;
            int32_t rank = kd_tok_rank(tok, s + from, end[i + 1] - from);
            if (rank >= 0 && rank < least) {
                least = rank;
                at = i;
            }
        }
        if (least == r)
            return false;
        memmove(end + at, end + at + 1, (parts - at - 1) * sizeof *end);
        parts--;
    }
    *cut = end[0];
    return true;
}

/* `rows` tokens: a model may have more rows than its tokenizer has ids. */
static int put_lists(struct kd_gguf_plan *p, const struct kd_tok *tok, int64_t rows,
                     struct kd_err *err)
{
    struct kd_buf tokens, merges, both;
    int32_t *types;
    int64_t vocab = kd_tok_vocab(tok), merge_count = 0;
    if (kd_mem_new(&types, rows, sizeof *types, "token types", err))
        return -1;
    kd_buf_init(&tokens, TOKENS_MAX);
    kd_buf_init(&merges, TOKENS_MAX);
    kd_buf_init(&both, 1 << 16);
    for (int64_t id = 0; id < vocab; id++) {
        size_t n, cut;
        const char *s = kd_tok_bytes(tok, (int32_t)id, &n);
        bool special = kd_tok_is_special(tok, (int32_t)id);
        types[id] = special ? TYPE_CONTROL : TYPE_NORMAL;
        kd_buf_clear(&both);
        if (special) {
            kd_gguf_put_str(&tokens, s, (int64_t)n);
            continue;
        }
        kd_gpt2_put(&both, (const uint8_t *)s, n);
        kd_gguf_put_str(&tokens, both.data, (int64_t)both.size_bytes);
        if (!last_merge(tok, s, n, (int32_t)id, &cut))
            continue;
        kd_buf_clear(&both);
        kd_gpt2_put(&both, (const uint8_t *)s, cut);
        kd_buf_char(&both, ' ');
        kd_gpt2_put(&both, (const uint8_t *)s + cut, n - cut);
        kd_gguf_put_str(&merges, both.data, (int64_t)both.size_bytes);
        merge_count++;
    }
    for (int64_t id = vocab; id < rows; id++) {
        char name[32];
        int n = snprintf(name, sizeof name, "[PAD%lld]", (long long)id);
        types[id] = TYPE_UNUSED;
        kd_gguf_put_str(&tokens, name, n);
    }
    int rc = kd_buf_ok(&tokens, "tokens", err) || kd_buf_ok(&merges, "merges", err) ||
             kd_buf_ok(&both, "token", err);
    if (!rc) {
        kd_gguf_plan_array(p, "tokenizer.ggml.tokens", KD_GV_STR, rows, tokens.data,
                           (int64_t)tokens.size_bytes);
        kd_gguf_plan_array(p, "tokenizer.ggml.token_type", KD_GV_I32, rows, types, 4 * rows);
        kd_gguf_plan_array(p, "tokenizer.ggml.merges", KD_GV_STR, merge_count, merges.data,
                           (int64_t)merges.size_bytes);
    }
    kd_buf_release(&both);
    kd_buf_release(&merges);
    kd_buf_release(&tokens);
    kd_mem_free(types);
    return rc ? -1 : 0;
}

/* The template as opaque bytes: the file asked for, chat_template.jinja beside the model, or what
 * tokenizer_config.json holds. K3's release has none of them. */
static int put_template(struct kd_gguf_plan *p, const char *src, const char *asked,
                        struct kd_err *err)
{
    static const char key[] = "tokenizer.chat_template";
    char path[4096];
    struct kd_buf b;
    struct kd_json *root;
    size_t n;
    if (kd_path_join(path, sizeof path, src, "chat_template.jinja", err))
        return -1;
    if (asked || kd_file_exists(path)) {
        kd_buf_init(&b, TEMPLATE_MAX);
        int rc = kd_file_read(&b, asked ? asked : path, TEMPLATE_MAX, err);
        if (!rc)
            kd_gguf_plan_str(p, key, b.data ? b.data : "", (int64_t)b.size_bytes);
        kd_buf_release(&b);
        return rc;
    }
    if (kd_path_join(path, sizeof path, src, "tokenizer_config.json", err) ||
        kd_json_load(&root, path, TEMPLATE_MAX, err))
        return -1;
    const char *text = kd_json_text(kd_json_get(root, "chat_template"), &n);
    if (text)
        kd_gguf_plan_str(p, key, text, (int64_t)n);
    kd_json_free(root);
    return 0;
}

static int put_tokenizer(struct kd_gguf_plan *p, const struct kd_k3_cfg *c, const char *src,
                         const char *template, struct kd_err *err)
{
    struct kd_tok *tok;
    char path[4096];
    if (kd_path_join(path, sizeof path, src, "tiktoken.model", err))
        return -1;
    if (!kd_file_exists(path)) {
        kd_log(KD_LOG_WARN, "convert", "msg=\"%s is not there: the file gets no tokenizer\"", path);
        return 0;
    }
    if (kd_tok_open(&tok, src, err))
        return -1;
    int64_t vocab = kd_tok_vocab(tok);
    int rc = vocab <= c->vocab
                 ? 0
                 : kd_fail(err, KD_EINVAL, "%s: the tokenizer has %lld tokens, the model %lld", src,
                           (long long)vocab, (long long)c->vocab);
    kd_gguf_plan_str(p, "tokenizer.ggml.model", "gpt2", 4);
    kd_gguf_plan_str(p, "tokenizer.ggml.pre", "kimi-k2", 7);
    if (!rc)
        rc = put_lists(p, tok, c->vocab, err);
    int32_t unknown = kd_tok_special(tok, "[UNK]");
    kd_tok_close(tok);
    if (c->bos >= 0)
        put_u32(p, "tokenizer.ggml.bos_token_id", c->bos);
    if (c->eos >= 0) { /* the config's: the end of a turn, not of a document */
        put_u32(p, "tokenizer.ggml.eos_token_id", c->eos);
        put_u32(p, "tokenizer.ggml.eot_token_id", c->eos);
    }
    if (unknown >= 0)
        put_u32(p, "tokenizer.ggml.unknown_token_id", unknown);
    if (c->pad >= 0)
        put_u32(p, "tokenizer.ggml.padding_token_id", c->pad);
    kd_gguf_plan_int(p, "tokenizer.ggml.add_bos_token", KD_GV_BOOL, 0);
    return rc ? -1 : put_template(p, src, template, err);
}

int kd_to_gguf_keys(struct kd_gguf_plan *p, const struct kd_k3_cfg *cfg, const char *src,
                    const struct kd_to_gguf *set, int file_type, struct kd_err *err)
{
    char name[256];
    kd_to_gguf_name(name, sizeof name, src);
    kd_gguf_plan_str(p, "general.architecture", "kimi-k3", 7);
    kd_gguf_plan_str(p, "general.type", "model", 5);
    kd_gguf_plan_str(p, "general.name", name, (int64_t)strlen(name));
    put_u32(p, "general.file_type", file_type);
    put_u32(p, "general.quantization_version", 2);
    put_figures(p, cfg);
    return put_tokenizer(p, cfg, src, set->chat_template, err);
}
