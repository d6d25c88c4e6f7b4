/* Drafts from a sequence's own past: where its last three tokens stood before, what followed is
 * likely to follow again. */
#ifndef KD_SERVE_NGRAM_H
#define KD_SERVE_NGRAM_H

#include "base/err.h"

#include <stdint.h>

struct kd_ngram {
    int32_t *end; /* [cap] by three tokens: position after their latest occurrence, or 0 */
    int64_t cap;  /* a power of two */
    int64_t seen; /* positions in the table */
};
void kd_ngram_release(struct kd_ngram *g);
/* Up to `max` tokens that may follow ids[0..count) into out; their number, 0 when nothing is known
 * or memory is out. *agree: how many tokens before agree (3 to 16). ids only ever grows. */
int64_t kd_ngram_draft(struct kd_ngram *g, const int32_t *ids, int64_t count, int64_t max,
                       int32_t *out, int64_t *agree);

#endif
