/* One token from one row of logits, in this order: bias, penalties, mask, then kd_sample
 * (temperature, top-k, top-p, min-p, draw by seed, choice and position). Log probabilities are of
 * the row as it came. Thread-safe. */
#ifndef KD_SERVE_PICK_H
#define KD_SERVE_PICK_H

#include "serve/engine.h"

struct kd_pick {
    struct kd_sampling sampling; /* of this choice */
    double presence, frequency;
    double repetition; /* 1: off */
    const struct kd_bias *bias;
    int64_t bias_count;
    int logprobs; /* as in the request */
};
/* Whether counts are needed. */
bool kd_pick_counts(const struct kd_pick *p);

/* counts[id]: times made, plus KD_PICK_PROMPT if it is in the prompt; NULL without penalties. */
enum { KD_PICK_PROMPT = 1 << 30 };
struct kd_picked {
    int32_t id;
    float logprob;
    int top_count;
    struct kd_top top[KD_ENGINE_TOP_MAX];
};
/* mask: vocab bits or NULL. scratch: vocab floats. -1 when a logit is NaN or no token is allowed.
 */
int kd_pick_token(const struct kd_pick *p, const int32_t *counts, const uint64_t *mask,
                  const float *logits, int64_t vocab, int64_t position, float *scratch,
                  struct kd_picked *out, struct kd_err *err) KD_MUST;

#endif
