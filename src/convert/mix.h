/* Two finished models of one source at two rates, combined layer by layer under a size: whole
 * shards are taken from one or the other. Where the higher rate buys most is read from the
 * receipts: the fall of the experts' mean proxy error per byte. */
#ifndef KD_CONVERT_MIX_H
#define KD_CONVERT_MIX_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { KD_MIX_SHARDS_MAX = 4096 };

struct kd_mix {
    int shards;
    int64_t layers;
    int64_t a_bytes, b_bytes, bytes; /* of the weight files */
    bool from_b[KD_MIX_SHARDS_MAX];
    int64_t layers_from_b;
};

/* a is the smaller. Fails when they are not of one source, trunk and layout, or size_bytes holds
 * not even a. */
int kd_mix_plan(struct kd_mix *m, const char *a, const char *b, int64_t size_bytes,
                struct kd_err *err) KD_MUST;
/* Writes dst (must not hold a model): shards are hard links where the file system allows, else
 * copies; index, receipt and config.json, the last last. */
int kd_mix_write(const struct kd_mix *m, const char *a, const char *b, const char *dst,
                 struct kd_err *err) KD_MUST;

#endif
