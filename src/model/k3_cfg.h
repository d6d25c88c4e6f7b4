/* Kimi K3's text config: every figure the forward pass needs, from config.json as released (nested
 * text_config) or a bare text config (model_type kimi_linear at the top level). Anything that is
 * not understood and not at its default is refused by kd_k3_cfg_check (k3-model, Decision 4), named
 * by kd_k3_cfg_parse in `unknown`. */
#ifndef KD_MODEL_K3_CFG_H
#define KD_MODEL_K3_CFG_H

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

#include <stdbool.h>
#include <stdint.h>

enum { KD_K3_LAYERS_MAX = 1024 };

struct kd_k3_cfg {
    bool nested; /* text_config inside a kimi_k3 config */
    int64_t hidden, layers, vocab;
    int64_t heads; /* MLA heads */
    int64_t kda_heads, kda_dim, conv;
    bool bounded_gate;      /* gate_lower_bound present */
    float gate_lower_bound; /* -5 */
    int64_t q_lora;         /* 0: plain q_proj (not in K3; refused) */
    int64_t kv_lora, nope, rope, v_dim;
    int64_t dense_layers; /* first_k_dense_replace */
    int64_t dense_inter;
    int64_t experts, topk, shared, moe_inter, latent;
    float routed_scale;
    bool renormalize, latent_norm;
    int64_t block;                /* attn_res_block_size */
    float eps;                    /* 1e-5 */
    float eps_latent;             /* q_a/kv_a norms: 1e-6 by default (--latent-eps) */
    float situ_beta, situ_linear; /* linear <= 0: uncapped */
    int64_t bos, eos, pad;
    int64_t context;               /* max_position_embeddings */
    uint8_t mla[KD_K3_LAYERS_MAX]; /* 1: MLA layer, 0: KDA (0-based) */
    char arch[64];                 /* architectures[0] */
};

/* Fills cfg; names keys it does not know (comma separated) in unknown, which may be NULL. */
int kd_k3_cfg_parse(struct kd_k3_cfg *cfg, const struct kd_json *config, struct kd_buf *unknown,
                    struct kd_err *err) KD_MUST;
/* -1 with the reason when a forward pass of this config cannot be run exactly. */
int kd_k3_cfg_check(const struct kd_k3_cfg *cfg, const struct kd_json *config,
                    struct kd_err *err) KD_MUST;
static inline bool kd_k3_is_moe(const struct kd_k3_cfg *c, int64_t layer)
{
    return layer >= c->dense_layers;
}
/* Banks filled when layer `layer` has run: layer / block + 1. */
static inline int64_t kd_k3_banks(const struct kd_k3_cfg *c)
{
    return (c->layers + c->block - 1) / c->block;
}

#endif
