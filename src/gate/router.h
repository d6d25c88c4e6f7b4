/* Agreement of two models' routers, each on its own path. Tie rule: a model takes the experts with
 * the highest biased scores, the lowest index first among equal scores, and the ids so taken are
 * compared as sets; tokens whose k-th and (k+1)-th scores are equal in the source are counted in
 * `ties`. */
#ifndef KD_GATE_ROUTER_H
#define KD_GATE_ROUTER_H

#include <stdint.h>

/* Bin 0: margins under 2^-16 (ties too); bin b: [2^(b-17), 2^(b-16)); the last takes all above. */
enum { KD_MARGIN_BINS = 16 };

struct kd_agreement {
    int64_t tokens, topk;
    int64_t kept;  /* source experts that dst takes too, over all tokens */
    int64_t whole; /* tokens whose whole set is kept */
    int64_t ties;  /* tokens with margin 0 */
    int64_t bin_kept[KD_MARGIN_BINS], bin_lost[KD_MARGIN_BINS]; /* tokens: set kept whole, or not */
};

/* k-th minus (k+1)-th highest of `experts` biased scores, ids being those of the k highest; 0 when
 * k >= experts. */
float kd_router_margin(const float *score, int64_t experts, const int32_t *ids, int64_t k);
/* Number of ids of b that are in a. */
int64_t kd_router_kept(const int32_t *a, const int32_t *b, int64_t topk);
/* Adds `tokens` tokens of one layer. ids [tokens][topk]; margin [tokens], of the source. */
void kd_router_add(struct kd_agreement *g, const int32_t *src, const int32_t *dst,
                   const float *margin, int64_t tokens, int64_t topk);
double kd_router_share(const struct kd_agreement *g); /* kept / (tokens * topk); 0 without tokens */
double kd_router_bin_floor(int bin);                  /* lower edge of a bin */

#endif
