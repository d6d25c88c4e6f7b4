/* Two models' logits at one position compared: KLD(src||dst) in nats over the whole vocabulary,
 * top-1 ids, and the loss on the token that follows. Double accumulation in a fixed order, so a
 * position's figures do not depend on threads, blocks or instruction set. */
#ifndef KD_GATE_KLD_H
#define KD_GATE_KLD_H

#include "kern/mat.h"

#include <stdbool.h>
#include <stdint.h>

struct kd_pos {
    double kld;               /* >= 0; exactly 0 for equal logits */
    double nll_src, nll_dst;  /* nats for the next token; 0 without one */
    int32_t top_src, top_dst; /* lowest id on ties */
    bool has_next;
    bool bad; /* a logit of either model is not finite; then kld is NaN */
};

/* next < 0: no token follows. */
void kd_kld_pos(const float *src, const float *dst, int64_t vocab, int32_t next,
                struct kd_pos *out);

/* `count` positions at once over the pool: rows of `vocab` logits, one after the other. */
void kd_kld_block(const struct kd_run *run, const float *src, const float *dst, int64_t vocab,
                  const int32_t *next, int64_t count, struct kd_pos *out);

/* exp of the mean loss over the positions that have a next token; 0 without any. */
double kd_ppl_src(const struct kd_pos *pos, int64_t count);
double kd_ppl_dst(const struct kd_pos *pos, int64_t count);

#endif
