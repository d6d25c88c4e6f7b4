/* The expert store: (layer, expert) -> three matrices, where they are, and whether they are ready.
 * The forward pass asks only here, so experts can later live on other devices or on disk. */
#ifndef KD_MODEL_STORE_H
#define KD_MODEL_STORE_H

#include "base/err.h"
#include "kern/mat.h"

#include <stdbool.h>

enum kd_tier { KD_TIER_HOST, KD_TIER_DISK, KD_TIER_DEVICE };

struct kd_expert {
    struct kd_mat w1, w3, w2; /* gate, up: inter x latent; down: latent x inter */
    enum kd_tier tier;
    bool ready; /* false: bytes are on their way; `wait` blocks */
};

struct kd_store {
    /* Borrowed until `done` for the same (layer, expert) or until the store closes. */
    int (*get)(struct kd_store *s, int64_t layer, int64_t expert, struct kd_expert *out,
               struct kd_err *err);
    int (*wait)(struct kd_store *s, int64_t layer, int64_t expert, struct kd_expert *out,
                struct kd_err *err); /* NULL: everything is ready at once */
    void (*done)(struct kd_store *s, int64_t layer, int64_t expert); /* NULL: nothing to do */
    void *ctx;
};

#endif
