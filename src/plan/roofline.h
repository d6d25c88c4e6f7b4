/* How long one step of decoding, or one chunk of a prompt, takes at least: bytes over bandwidth,
 * collectives over the network (serving 7.1 and appendix B). A ceiling, never a promise.
 *
 * GB are 1e9 bytes; bandwidths are what a plain reader sustains, not the sheet's figure. */
#ifndef KD_PLAN_ROOFLINE_H
#define KD_PLAN_ROOFLINE_H

#include <stdbool.h>
#include <stdint.h>

enum { KD_ROOF_TIERS = 4 };

struct kd_roof {
    /* model */
    double trunk_gb; /* read for every token */
    double token_expert_gb, all_expert_gb;
    double replicated_gb;     /* of the trunk, read in full by every rank */
    double state_gb;          /* of a sequence: read and written once a step */
    double cache_token_kb;    /* kB (1e3) of cache read for each token of context */
    double experts_over_topk; /* 56 for K3: distinct experts of n tokens */
    double hidden, row_sums;  /* rows of hidden values summed over ranks in a token's prefill */
    double linear_gflop, context_mflop; /* a token's prefill: fixed, and per token of context */
    /* machine */
    int ranks;
    double gb_s;                      /* of the tier that holds trunk and cache */
    double tflops;                    /* of one rank, effective */
    double tier_share[KD_ROOF_TIERS]; /* of the expert reads */
    double tier_store[KD_ROOF_TIERS]; /* of the experts' bytes */
    double tier_gb_s[KD_ROOF_TIERS];
    int tiers;        /* 0: all experts beside the trunk */
    double imbalance; /* fullest rank over the mean, experts dealt out whole; 0: cut by width */
    bool overlap;     /* both memories at once: the slower one decides */
    double trunk_spill_gb, spill_gb_s; /* part of the trunk in a slower tier */
    double collectives, collective_us, link_gb_s, payload_bytes, fixed_ms;
    double cut_cache; /* ranks the cache is dealt over; 0 or 1: every rank has all of it */
    /* work */
    double sequences, context, drafts;
    double accept[2]; /* probabilities of the first two drafts */
};

enum kd_roof_part {
    KD_ROOF_TRUNK,
    KD_ROOF_EXPERTS,
    KD_ROOF_REPLICATED,
    KD_ROOF_STATE,
    KD_ROOF_CACHE,
    KD_ROOF_NET,
    KD_ROOF_FIXED,
    KD_ROOF_PARTS
};
const char *kd_roof_part_name(enum kd_roof_part p);

struct kd_roof_step {
    double ms[KD_ROOF_PARTS], total_ms;
    double tokens_s; /* of all sequences together */
};
struct kd_roof_step kd_roof_decode(const struct kd_roof *r);

struct kd_roof_chunk {
    double read_s, compute_s, net_s; /* of a chunk */
    double tokens_s;                 /* at the slowest of the three */
};
struct kd_roof_chunk kd_roof_prefill(const struct kd_roof *r, double chunk, double context);

/* Hit rate of the hottest `share` of a layer's experts, on one of four curves h = share^a that go
 * through these rates at a share of 0.32: no skew at all, half-way, the measured saliency of mixed
 * text (serving 4.1), and the plan document's. */
enum { KD_HITS = 4 };
extern const double kd_hit_at_032[KD_HITS];
extern const char *const kd_hit_name[KD_HITS];
double kd_hit_rate(int curve, double share);

/* Fullest rank over the mean when the experts of one token are dealt to n ranks (serving 5.4). */
double kd_roof_imbalance(int ranks);

/* The factors an engine's speed is of its ceiling, low and high (docs/plan.md has the cases). */
extern const double kd_roof_band[2];

#endif
