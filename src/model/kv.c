/* The state of one sequence in one layer. */
#include "base/mem.h"
#include "model/k3_int.h"

#include <string.h>

static int64_t conv_floats(const struct kd_k3_cfg *c, int64_t heads)
{
    return 3 * (c->conv - 1) * heads * c->kda_dim;
}

int kd_k3_state_init(struct kd_k3_state *s, const struct kd_k3_cfg *cfg,
                     const struct kd_k3_layer *L, struct kd_err *err)
{
    memset(s, 0, sizeof *s);
    if (L->mla)
        return 0;
    if (kd_mem_zero(&s->S, L->heads * cfg->kda_dim, cfg->kda_dim * (int64_t)sizeof(float),
                    "KDA state", err))
        return -1;
    if (kd_mem_zero(&s->conv, conv_floats(cfg, L->heads), sizeof(float), "convolution state",
                    err)) {
        kd_k3_state_release(s);
        return -1;
    }
    return 0;
}

void kd_k3_state_release(struct kd_k3_state *s)
{
    kd_mem_free(s->S);
    kd_mem_free(s->conv);
    kd_mem_free(s->cache);
    memset(s, 0, sizeof *s);
}

int64_t kd_k3_state_bytes(const struct kd_k3_cfg *cfg, int64_t context)
{
    int64_t bytes = 0;
    for (int64_t l = 0; l < cfg->layers; l++)
        bytes +=
            (int64_t)sizeof(float) * (cfg->mla[l] ? context * (cfg->kv_lora + cfg->rope)
                                                  : cfg->kda_heads * cfg->kda_dim * cfg->kda_dim +
                                                        conv_floats(cfg, cfg->kda_heads));
    return bytes;
}

int kd_k3_state_reserve(struct kd_k3_state *s, int64_t rows, int64_t width, struct kd_err *err)
{
    if (rows <= s->cache_rows)
        return 0;
    int64_t cap = s->cache_rows ? s->cache_rows + s->cache_rows / 2 : KD_K3_CTX_BLOCK;
    cap = cap < rows ? rows : cap;
    float *grown;
    if (kd_mem_new(&grown, cap, width * (int64_t)sizeof(float), "attention cache", err))
        return -1;
    if (s->pos)
        memcpy(grown, s->cache, (size_t)(s->pos * width) * sizeof(float));
    kd_mem_free(s->cache);
    s->cache = grown;
    s->cache_rows = cap;
    return 0;
}
