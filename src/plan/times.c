#include "plan/times.h"

#include <string.h>

/* Encodings of the scale search over those of a tensor: 224-tile matrices of K3 try 6,300 sample
 * tiles beside 43,008 (codec/exl3_scale.c; exl3 4.7). */
static const double search_share = 1.146;
/* Farm Decision 9: 8 x 3.67 GB in 27 s. */
static const double ship_gb_s = 1.087;
/* Farm 2.5: SHA-256 with the machine's instructions, one core. */
static const double hash_gb_s = 2.04;
static const double fp32_share[2] = {0.70, 0.35}, tile_share[2] = {1.0, 0.25};
/* Each stage of the trunk computes its inputs anew: attention inputs twice, the core, FFN inputs
 * three times (convert/layers.c). */
static const double trunk_passes = 3;

/* 2 T k^2 for every Hessian of a layer outside the experts. */
static double hessian_flop(const struct kd_plan_model *m, int64_t layer, double tokens)
{
    const struct kd_k3_cfg *c = &m->cfg;
    double hidden = (double)c->hidden, kda = (double)(c->kda_heads * c->kda_dim);
    double mla = (double)(c->heads * c->v_dim), shared = (double)(c->shared * c->moe_inter);
    double latent = (double)c->latent, dense = (double)c->dense_inter, q = (double)c->q_lora;
    double sum = 2 * hidden * hidden;
    sum += c->mla[layer] ? mla * mla + q * q : kda * kda;
    sum += kd_k3_is_moe(c, layer) ? shared * shared + 2 * latent * latent : dense * dense;
    return 2 * tokens * sum;
}

/* Forward and Hessian of one expert. */
static double expert_flop(const struct kd_plan_model *m, double tokens)
{
    double inter = (double)m->cfg.moe_inter;
    return 2 * tokens * (2.0 / 3 * (double)m->expert_params + inter * inter);
}

void kd_plan_effort(struct kd_plan_effort *e, const struct kd_plan_model *m,
                    const struct kd_plan_bytes *b, double tokens)
{
    const struct kd_k3_cfg *c = &m->cfg;
    double trunk = (double)b->trunk_quantized_weights;
    memset(e, 0, sizeof *e);
    e->tiles = (double)(b->quantized_weights - b->trunk_quantized_weights) / 256 * search_share;
    e->trunk_tiles = trunk / 256 * search_share;
    e->calibrate_flop = (double)(m->moe_layers * c->experts) * expert_flop(m, tokens);
    e->trunk_flop = trunk_passes * 2 * tokens * trunk;
    for (int64_t l = 0; l < c->layers; l++)
        e->trunk_flop += hessian_flop(m, l, tokens);
    e->forward_flop = 2 * tokens * (double)(m->moe_layers * c->topk) * (double)m->expert_params;
    e->latent_gb = tokens * (double)c->latent * 2 / 1e9;
    e->layers = m->moe_layers;
    e->sealed_gb = e->layers ? (double)b->routed / (double)e->layers / 1e9 : 0;
    e->source_gb = 0;
    for (int k = 0; k < KD_K3_KINDS; k++)
        e->source_gb += (double)m->params[k] * (k == KD_K3_ROUTED ? 4.25 : 16) / 8 / 1e9;
}

void kd_plan_effort_layer(struct kd_plan_effort *e, const struct kd_plan_model *m,
                          const struct kd_plan_target *t, int64_t layer, double experts,
                          double tokens, double hess_tokens)
{
    double trunk = 0;
    memset(e, 0, sizeof *e);
    for (int row = 0; row < kd_k3_row_count(); row++) {
        char name[160];
        struct kd_k3_name n;
        enum kd_k3_kind kind = kd_k3_row_kind(row);
        if (kind != KD_K3_VISION && kd_k3_row_tensor(&m->map, row, layer, name, sizeof name, &n) &&
            n.rank == 2 && kd_plan_rate16(t, kd_k3_row_name(row), kind, n.shape[0], n.shape[1]))
            trunk += (double)n.params;
    }
    e->tiles = experts * (double)m->expert_params / 256 * search_share;
    e->trunk_tiles = trunk / 256 * search_share;
    e->calibrate_flop = experts * expert_flop(m, hess_tokens);
    e->trunk_flop = hessian_flop(m, layer, tokens) + trunk_passes * 2 * tokens * trunk;
    e->forward_flop = 2 * tokens * (double)m->cfg.topk * (double)m->expert_params;
    e->layers = 1;
}

static double flop_hours(double flop, const struct kd_machine *m, int scale)
{
    return m->fp32_tflops.v > 0 ? flop / (m->fp32_tflops.v * 1e12 * fp32_share[scale]) / 3600 : 0;
}

static double tile_hours(double tiles, const struct kd_machine *m, int scale)
{
    return m->tiles_s.v > 0 ? tiles / (m->tiles_s.v * tile_share[scale]) / 3600 : 0;
}

/* What only the coordinator can do: the quantized layer's output, and checking and sealing. */
static double serial_hours(const struct kd_plan_effort *e, const struct kd_machine *m, int scale)
{
    return flop_hours(e->forward_flop, m, scale) +
           (double)e->layers * e->sealed_gb / hash_gb_s / 3600;
}

static double trunk_hours(const struct kd_plan_effort *e, const struct kd_machine *m, int scale)
{
    return tile_hours(e->trunk_tiles, m, scale) + flop_hours(e->trunk_flop, m, scale);
}

struct kd_plan_hours kd_plan_hours_one(const struct kd_plan_effort *e, const struct kd_machine *m,
                                       int scale)
{
    struct kd_plan_hours h = {.encode = tile_hours(e->tiles, m, scale),
                              .calibrate = flop_hours(e->calibrate_flop, m, scale),
                              .trunk = trunk_hours(e, m, scale),
                              .serial = serial_hours(e, m, scale)};
    /* A machine that cannot encode or calibrate makes nothing. */
    if (!(m->tiles_s.v > 0) || !(m->fp32_tflops.v > 0) || !m->supported)
        return (struct kd_plan_hours){.total = 0};
    h.total = h.encode + h.calibrate + h.trunk + h.serial;
    return h;
}

double kd_plan_ship_s(const struct kd_plan_effort *e, int workers)
{
    return workers * e->latent_gb / ship_gb_s;
}

struct kd_plan_hours kd_plan_hours_farm(const struct kd_plan_effort *e, const struct kd_machine *m,
                                        int machines, int scale)
{
    struct kd_plan_hours h = {.total = 0};
    double rate = 0, encode = 0, best_hours = 0;
    const struct kd_machine *best = NULL;
    int devices = 0;
    for (int i = 0; i < machines; i++) {
        struct kd_plan_hours one = kd_plan_hours_one(e, &m[i], scale);
        double unit = one.encode + one.calibrate;
        if (!(one.encode > 0) || !(one.calibrate > 0) || !m[i].supported)
            continue;
        rate += m[i].count / unit;
        encode += m[i].count / unit * (one.encode / unit);
        devices += m[i].count;
        if (!best || unit < best_hours) {
            best = &m[i];
            best_hours = unit;
        }
    }
    if (!best)
        return h;
    h.encode = encode / rate / rate;
    h.calibrate = 1 / rate - h.encode;
    h.trunk = trunk_hours(e, best, scale);
    h.serial =
        serial_hours(e, best, scale) + (double)e->layers * kd_plan_ship_s(e, devices - 1) / 3600;
    h.total = h.encode + h.calibrate + h.trunk + h.serial;
    return h;
}
