#include "base/mem.h"
#include "model/k3_int.h"

#include <stdio.h>

/* Experts where the checkpoint's map has them. A layer's table is made when it is first asked for,
 * so a checkpoint with shards missing can be used as far as it goes. One thread at a time. */
struct mapped {
    struct kd_store s;
    const struct kd_ckpt *ck;
    struct kd_k3_cfg cfg;
    struct kd_k3_part part;
    struct kd_expert *layer[KD_K3_LAYERS_MAX]; /* [experts] each */
};

static int fill(struct mapped *m, int64_t layer, struct kd_expert *table, struct kd_err *err)
{
    const struct kd_k3_cfg *c = &m->cfg;
    int64_t r0, r1, in = c->moe_inter, lat = c->latent;
    if (kd_k3_share(&m->part, in, 1, "expert width", &r0, &r1, err))
        return -1;
    for (int64_t e = 0; e < c->experts; e++) {
        char key[3][64];
        for (int i = 0; i < 3; i++)
            snprintf(key[i], sizeof key[i], "block_sparse_moe.experts.%lld.w%d", (long long)e,
                     i + 1);
        struct kd_expert *x = &table[e];
        x->tier = KD_TIER_HOST;
        x->ready = true;
        if (kd_k3_mat_part(m->ck, layer, key[0], in, lat, r0, r1, 0, lat, &x->w1, err) ||
            kd_k3_mat_part(m->ck, layer, key[2], in, lat, r0, r1, 0, lat, &x->w3, err) ||
            kd_k3_mat_part(m->ck, layer, key[1], lat, in, 0, lat, r0, r1, &x->w2, err))
            return -1;
    }
    return 0;
}

static int get(struct kd_store *s, int64_t layer, int64_t expert, struct kd_expert *out,
               struct kd_err *err)
{
    struct mapped *m = s->ctx;
    if (layer < m->cfg.dense_layers || layer >= m->cfg.layers || expert < 0 ||
        expert >= m->cfg.experts)
        return kd_fail(err, KD_EINVAL, "expert %lld of layer %lld", (long long)expert,
                       (long long)layer);
    if (!m->layer[layer]) {
        struct kd_expert *table;
        if (kd_mem_zero(&table, m->cfg.experts, sizeof *table, "expert table", err))
            return -1;
        if (fill(m, layer, table, err)) {
            kd_mem_free(table);
            return -1;
        }
        m->layer[layer] = table;
    }
    *out = m->layer[layer][expert];
    return 0;
}

int kd_k3_store_open(struct kd_store **s, const struct kd_k3_cfg *cfg, const struct kd_ckpt *ck,
                     const struct kd_k3_part *part, struct kd_err *err)
{
    struct mapped *m;
    *s = NULL;
    if (kd_mem_zero(&m, 1, sizeof *m, "expert store", err))
        return -1;
    m->ck = ck;
    m->cfg = *cfg;
    if (part)
        m->part = *part;
    m->s.get = get;
    m->s.ctx = m;
    *s = &m->s;
    return 0;
}

void kd_k3_store_close(struct kd_store *s)
{
    if (!s)
        return;
    struct mapped *m = s->ctx;
    for (int64_t l = 0; l < KD_K3_LAYERS_MAX; l++)
        kd_mem_free(m->layer[l]);
    kd_mem_free(m);
}
