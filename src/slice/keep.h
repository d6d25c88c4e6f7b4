/* Which layers and experts of a K3 stay. Lists are sorted; one list of experts serves the router's
 * rows, the correction bias and the three matrices of its layer. Pure, apart from kd_keep_make's
 * reading of a file. */
#ifndef KD_SLICE_KEEP_H
#define KD_SLICE_KEEP_H

#include "model/k3_cfg.h"

struct kd_keep_wish {
    /* NULL: all. "N": the first N; "0-15,20": these; experts also "top:FILE" (as many as the model
     * uses for a token) or "top:FILE:N": a trace's most used, or JSON {layer: [ids]}. */
    const char *experts, *layers;
    int64_t used;      /* experts of a token; 0: as in the source */
    bool break_blocks; /* layers may break blocks of the attention residual */
};

struct kd_keep {
    int64_t layer_count, expert_count, used;
    int32_t *layers;  /* ids in the source, ascending */
    int32_t *experts; /* [layer_count][expert_count], ascending; of dense layers: 0, 1, ... */
    bool one_list;    /* all layers keep the same experts */
    bool blocks_whole;
    bool all; /* nothing is dropped or changed */
};

/* Which of `of` things: "N" or "0-15,20,33". Appends ascending ids to out (of int32_t). */
int kd_keep_list(struct kd_buf *out, const char *text, int64_t of, const char *what,
                 struct kd_err *err) KD_MUST;
/* How often each expert was chosen: a trace of u32 pairs (layer, expert) adds to
 * count[layers][experts]. JSON {layer: [ids]} lists them instead: count becomes 1 for these and
 * *listed true. */
int kd_keep_trace(int64_t *count, int64_t layers, int64_t experts, const void *data, size_t bytes,
                  bool *listed, struct kd_err *err) KD_MUST;

int kd_keep_make(struct kd_keep *k, const struct kd_k3_cfg *cfg, const struct kd_keep_wish *w,
                 struct kd_err *err) KD_MUST;
void kd_keep_release(struct kd_keep *k);
/* The place of a layer among those kept, or -1; and of an expert in kept layer `at`. */
int64_t kd_keep_layer(const struct kd_keep *k, int64_t layer);
int64_t kd_keep_expert(const struct kd_keep *k, int64_t at, int64_t expert);

#endif
