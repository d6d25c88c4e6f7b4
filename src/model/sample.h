/* Choosing the next token. A draw depends on (seed, choice, position) and the logits alone, so a
 * request gives the same answer alone or in a crowd. */
#ifndef KD_MODEL_SAMPLE_H
#define KD_MODEL_SAMPLE_H

#include "base/err.h"

#include <stdint.h>

struct kd_sampling {
    double temperature; /* 0: greedy, lowest id on ties */
    double top_p;       /* 1: off */
    int64_t top_k;      /* 0: off */
    double min_p;       /* 0: off */
    uint64_t seed;
    uint64_t choice;
};
/* logits[vocab] is not changed. -1 only when all logits are NaN or memory is out. */
int kd_sample(const struct kd_sampling *s, const float *logits, int64_t vocab, int64_t position,
              int32_t *id, struct kd_err *err) KD_MUST;

#endif
