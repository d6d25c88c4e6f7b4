#include "plan/roofline.h"

#include <math.h>

const double kd_hit_at_032[KD_HITS] = {0.35, 0.50, 0.63, 0.75};
const char *const kd_hit_name[KD_HITS] = {"almost no skew", "half-way",
                                          "mixed text, measured saliency (serving 4.1)",
                                          "the plan document's, plausible for one domain"};

/* Low: K3 on Sparks at 122 to 147 of 273 GB/s (serving 5.5). High: GLM-5.3 at 3 bits on four
 * Sparks, 26.9 of a ceiling of some 40 tok/s (exl3 6.5). */
const double kd_roof_band[2] = {0.45, 0.70};

const char *kd_roof_part_name(enum kd_roof_part p)
{
    static const char *const names[KD_ROOF_PARTS] = {"trunk", "experts", "replicated", "state",
                                                     "cache", "network", "fixed"};
    return names[p];
}

double kd_hit_rate(int curve, double share)
{
    if (!(share > 0))
        return 0;
    if (share >= 1)
        return 1;
    return pow(share, log(kd_hit_at_032[curve]) / log(0.32));
}

/* Distinct experts of n tokens over those of one. */
static double touched(const struct kd_roof *r, double n)
{
    double all = r->experts_over_topk;
    return all * (1 - pow(1 - 1 / all, n));
}

static double expert_ms(const struct kd_roof *r, double before_ms, double experts_gb)
{
    double sum = 0, slow = 0, first;
    if (!r->tiers)
        return experts_gb / r->ranks / r->gb_s * 1e3;
    for (int i = 0; i < r->tiers; i++) {
        double ms = r->tier_share[i] * experts_gb / r->ranks / r->tier_gb_s[i] * 1e3;
        sum += ms;
        if (i > 0 && ms > slow)
            slow = ms;
    }
    if (!r->overlap)
        return sum;
    first = before_ms + r->tier_share[0] * experts_gb / r->ranks / r->tier_gb_s[0] * 1e3;
    return (first > slow ? first : slow) - before_ms;
}

double kd_roof_imbalance(int ranks)
{
    /* 1.19, 1.37, 1.53, 1.84, 2.09 at 2, 3, 4, 6, 8 ranks: a straight line within 0.03, which goes
     * on to 3.3 at 16 (16 picks in 16 bins: 3.1). */
    return ranks > 1 ? 1 + 0.156 * (ranks - 1) : 1;
}

struct kd_roof_step kd_roof_decode(const struct kd_roof *r)
{
    struct kd_roof_step s = {.total_ms = 0};
    double n = r->ranks, tokens = r->sequences * (1 + r->drafts), cut = r->cut_cache;
    s.ms[KD_ROOF_TRUNK] = (r->trunk_gb - r->trunk_spill_gb) / n / r->gb_s * 1e3;
    if (r->trunk_spill_gb > 0)
        s.ms[KD_ROOF_TRUNK] += r->trunk_spill_gb / n / r->spill_gb_s * 1e3;
    if (n > 1)
        s.ms[KD_ROOF_REPLICATED] = r->replicated_gb * (n - 1) / n / r->gb_s * 1e3;
    s.ms[KD_ROOF_STATE] = r->sequences * 2 * r->state_gb / n / r->gb_s * 1e3;
    s.ms[KD_ROOF_CACHE] =
        r->sequences * r->context * r->cache_token_kb * 1e-6 / (cut > 1 ? cut : 1) / r->gb_s * 1e3;
    double base =
        s.ms[KD_ROOF_TRUNK] + s.ms[KD_ROOF_REPLICATED] + s.ms[KD_ROOF_STATE] + s.ms[KD_ROOF_CACHE];
    double experts_gb = r->token_expert_gb * touched(r, tokens);
    s.ms[KD_ROOF_EXPERTS] = expert_ms(r, base, experts_gb * (r->imbalance > 0 ? r->imbalance : 1));
    if (n > 1) {
        double payload = 2 * (n - 1) / n * r->payload_bytes * tokens / (r->link_gb_s * 1e9);
        s.ms[KD_ROOF_NET] = r->collectives * (r->collective_us * 1e-6 + payload) * 1e3;
    }
    s.ms[KD_ROOF_FIXED] = r->fixed_ms;
    for (int p = 0; p < KD_ROOF_PARTS; p++)
        s.total_ms += s.ms[p];
    double expected = 1, product = 1;
    for (int i = 0; i < 2 && i < (int)r->drafts; i++) {
        product *= r->accept[i];
        expected += product;
    }
    s.tokens_s = r->sequences * expected / s.total_ms * 1e3;
    return s;
}

struct kd_roof_chunk kd_roof_prefill(const struct kd_roof *r, double chunk, double context)
{
    struct kd_roof_chunk c = {.tokens_s = 0};
    double n = r->ranks, all = r->experts_over_topk, hit = 1 - pow(1 - 1 / all, chunk);
    c.read_s = (r->trunk_gb - r->trunk_spill_gb) / n / r->gb_s;
    if (r->trunk_spill_gb > 0)
        c.read_s += r->trunk_spill_gb / n / r->spill_gb_s;
    if (!r->tiers)
        c.read_s += r->all_expert_gb * hit / n / r->gb_s;
    for (int i = 0; i < r->tiers; i++)
        c.read_s += r->tier_store[i] * r->all_expert_gb * hit / n / r->tier_gb_s[i];
    c.compute_s =
        chunk * (r->linear_gflop * 1e9 + r->context_mflop * 1e6 * context) / (r->tflops * 1e12 * n);
    /* In 16 bits. */
    if (n > 1)
        c.net_s = chunk * 2 * (n - 1) / n * r->row_sums * r->hidden * 2 / (r->link_gb_s * 1e9);
    double slow = c.read_s > c.compute_s ? c.read_s : c.compute_s;
    slow = slow > c.net_s ? slow : c.net_s;
    c.tokens_s = chunk / slow;
    return c;
}
