/* GGUF files of Kimi K3's full shape without a weight in them: heads before holes (gguf-slicing
 * specification, 3.2 and 3.3). */
#ifndef KD_TESTS_SLICE_UTIL_H
#define KD_TESTS_SLICE_UTIL_H

#include "fmt/gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct k3_made {
    int64_t layers, experts, used, width, shared;
    int expert_type, matrix_type, embed_type, output_type, beta_type;
    int64_t head_bytes; /* padded by a key to so many; 0: as it comes */
    const char *name, *size_label;
};

static inline bool k3_mla(int64_t l)
{
    return l % 4 == 3 || l == 92;
}

static inline void k3_put(struct kd_gguf_plan *p, int64_t layer, const char *name, int type,
                          int rank, int64_t a, int64_t b, int64_t c)
{
    char full[64];
    struct kd_err err;
    int64_t ne[3] = {a, b, c};
    if (layer >= 0)
        snprintf(full, sizeof full, "blk.%lld.%s", (long long)layer, name);
    else
        snprintf(full, sizeof full, "%s", name);
    if (kd_gguf_plan_tensor(p, full, type, rank, ne, NULL, &err))
        fail_msg("%s", err.msg);
}

static inline void k3_put_layer(struct kd_gguf_plan *p, const struct k3_made *m, int64_t l)
{
    int q = m->matrix_type, f = KD_GT_F32;
    k3_put(p, l, "attn_norm.weight", f, 1, 7168, 1, 1);
    k3_put(p, l, "ffn_norm.weight", f, 1, 7168, 1, 1);
    k3_put(p, l, "attn_res_score.weight", f, 1, 7168, 1, 1);
    k3_put(p, l, "ffn_res_score.weight", f, 1, 7168, 1, 1);
    k3_put(p, l, "attn_output.weight", q, 2, 12288, 7168, 1);
    if (k3_mla(l)) {
        k3_put(p, l, "attn_q_a.weight", q, 2, 7168, 1536, 1);
        k3_put(p, l, "attn_q_a_norm.weight", f, 1, 1536, 1, 1);
        k3_put(p, l, "attn_q_b.weight", q, 2, 1536, 18432, 1);
        k3_put(p, l, "attn_kv_a_mqa.weight", q, 2, 7168, 576, 1);
        k3_put(p, l, "attn_kv_a_norm.weight", f, 1, 512, 1, 1);
        k3_put(p, l, "attn_k_b.weight", q, 3, 128, 512, 96);
        k3_put(p, l, "attn_v_b.weight", q, 3, 512, 128, 96);
        k3_put(p, l, "attn_gate.weight", q, 2, 7168, 12288, 1);
    } else {
        k3_put(p, l, "attn_q.weight", q, 2, 7168, 12288, 1);
        k3_put(p, l, "attn_k.weight", q, 2, 7168, 12288, 1);
        k3_put(p, l, "attn_v.weight", q, 2, 7168, 12288, 1);
        k3_put(p, l, "ssm_g.weight", q, 2, 7168, 12288, 1);
        k3_put(p, l, "ssm_f_a.weight", q, 2, 7168, 128, 1);
        k3_put(p, l, "ssm_f_b.weight", q, 2, 128, 12288, 1);
        k3_put(p, l, "ssm_beta.weight", m->beta_type, 2, 7168, 96, 1);
        k3_put(p, l, "ssm_conv1d_q.weight", f, 3, 4, 1, 12288);
        k3_put(p, l, "ssm_conv1d_k.weight", f, 3, 4, 1, 12288);
        k3_put(p, l, "ssm_conv1d_v.weight", f, 3, 4, 1, 12288);
        k3_put(p, l, "ssm_a", f, 1, 96, 1, 1);
        k3_put(p, l, "ssm_dt.bias", f, 1, 12288, 1, 1);
        k3_put(p, l, "ssm_norm.weight", f, 1, 128, 1, 1);
    }
    if (!l) {
        k3_put(p, l, "ffn_gate.weight", q, 2, 7168, 33792, 1);
        k3_put(p, l, "ffn_up.weight", q, 2, 7168, 33792, 1);
        k3_put(p, l, "ffn_down.weight", q, 2, 33792, 7168, 1);
        return;
    }
    k3_put(p, l, "ffn_gate_inp.weight", f, 2, 7168, m->experts, 1);
    k3_put(p, l, "exp_probs_b.bias", f, 1, m->experts, 1, 1);
    k3_put(p, l, "ffn_gate_exps.weight", m->expert_type, 3, 3584, m->width, m->experts);
    k3_put(p, l, "ffn_up_exps.weight", m->expert_type, 3, 3584, m->width, m->experts);
    k3_put(p, l, "ffn_down_exps.weight", m->expert_type, 3, m->width, 3584, m->experts);
    k3_put(p, l, "ffn_routed_down.weight", q, 2, 7168, 3584, 1);
    k3_put(p, l, "ffn_routed_up.weight", q, 2, 3584, 7168, 1);
    k3_put(p, l, "ffn_routed_norm.weight", f, 1, 3584, 1, 1);
    k3_put(p, l, "ffn_gate_shexp.weight", q, 2, 7168, m->shared * m->width, 1);
    k3_put(p, l, "ffn_up_shexp.weight", q, 2, 7168, m->shared * m->width, 1);
    k3_put(p, l, "ffn_down_shexp.weight", q, 2, m->shared * m->width, 7168, 1);
}

static inline void k3_put_keys(struct kd_gguf_plan *p, const struct k3_made *m)
{
    const struct {
        const char *key;
        int64_t value;
    } whole[] = {{"kimi-k3.block_count", m->layers},
                 {"kimi-k3.context_length", 1048576},
                 {"kimi-k3.embedding_length", 7168},
                 {"kimi-k3.feed_forward_length", 33792},
                 {"kimi-k3.vocab_size", 163840},
                 {"kimi-k3.attention.head_count", 96},
                 {"kimi-k3.attention.key_length", 576},
                 {"kimi-k3.attention.value_length", 512},
                 {"kimi-k3.attention.key_length_mla", 192},
                 {"kimi-k3.attention.value_length_mla", 128},
                 {"kimi-k3.attention.q_lora_rank", 1536},
                 {"kimi-k3.attention.kv_lora_rank", 512},
                 {"kimi-k3.rope.dimension_count", 64},
                 {"kimi-k3.ssm.conv_kernel", 4},
                 {"kimi-k3.kda.head_dim", 128},
                 {"kimi-k3.expert_count", m->experts},
                 {"kimi-k3.expert_used_count", m->used},
                 {"kimi-k3.expert_shared_count", m->shared},
                 {"kimi-k3.expert_feed_forward_length", m->width},
                 {"kimi-k3.expert_latent_length", 3584},
                 {"kimi-k3.expert_gating_func", 2},
                 {"kimi-k3.leading_dense_block_count", 1},
                 {"kimi-k3.attn_res.block_size", 12}};
    int32_t kinds[93];
    for (int64_t l = 0; l < m->layers; l++)
        kinds[l] = k3_mla(l);
    kd_gguf_plan_str(p, "general.architecture", "kimi-k3", 7);
    if (m->name)
        kd_gguf_plan_str(p, "general.name", m->name, (int64_t)strlen(m->name));
    if (m->size_label)
        kd_gguf_plan_str(p, "general.size_label", m->size_label, (int64_t)strlen(m->size_label));
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        kd_gguf_plan_int(p, whole[i].key, KD_GV_U32, whole[i].value);
    kd_gguf_plan_array(p, "kimi-k3.attention.head_count_kv", KD_GV_I32, m->layers, kinds,
                       4 * m->layers);
    kd_gguf_plan_f32(p, "kimi-k3.attention.layer_norm_rms_epsilon", 1e-5f);
    kd_gguf_plan_f32(p, "kimi-k3.kda.gate_lower_bound", -5);
    kd_gguf_plan_f32(p, "kimi-k3.expert_weights_scale", 1);
    kd_gguf_plan_int(p, "kimi-k3.expert_weights_norm", KD_GV_BOOL, 1);
    kd_gguf_plan_f32(p, "kimi-k3.activation.situ_beta", 4);
    kd_gguf_plan_f32(p, "kimi-k3.activation.situ_linear_beta", 25);
}

static inline void k3_plan(struct kd_gguf_plan *p, const struct k3_made *m, int64_t pad)
{
    static char filler[8 << 20];
    kd_gguf_plan_init(p);
    k3_put_keys(p, m);
    if (pad > 0) /* where a tokenizer would be */
        kd_gguf_plan_str(p, "tokenizer.filler", filler, pad);
    k3_put(p, -1, "token_embd.weight", m->embed_type, 2, 7168, 163840, 1);
    k3_put(p, -1, "output.weight", m->output_type, 2, 7168, 163840, 1);
    k3_put(p, -1, "output_norm.weight", KD_GT_F32, 1, 7168, 1, 1);
    k3_put(p, -1, "output_res_score.weight", KD_GT_F32, 1, 7168, 1, 1);
    for (int64_t l = 0; l < m->layers; l++)
        k3_put_layer(p, m, l);
}

/* Writes the head to path and makes the file as long as it says. Returns the file's size. */
static inline int64_t k3_write(const char *path, const struct k3_made *m)
{
    struct kd_gguf_plan p;
    struct kd_buf head;
    struct kd_err err;
    kd_buf_init(&head, KD_GGUF_HEAD_MAX);
    k3_plan(&p, m, 0);
    if (m->head_bytes) { /* key and length of the filler: 8 + 16 + 4 + 8 */
        if (kd_gguf_plan_head(&p, &head, &err))
            fail_msg("%s", err.msg);
        int64_t pad = m->head_bytes - (int64_t)head.size_bytes - 36;
        kd_gguf_plan_release(&p);
        kd_buf_clear(&head);
        k3_plan(&p, m, pad);
    }
    if (kd_gguf_plan_head(&p, &head, &err))
        fail_msg("%s", err.msg);
    int64_t bytes = kd_gguf_plan_file_bytes(&p);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, head.data, head.size_bytes), head.size_bytes);
    assert_int_equal(ftruncate(fd, bytes), 0);
    close(fd);
    kd_gguf_plan_release(&p);
    kd_buf_release(&head);
    return bytes;
}

#endif
