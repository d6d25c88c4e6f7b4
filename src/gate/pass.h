/* One model's half of a check, taken one layer at a time while another job (a conversion that drops
 * its source) has that layer at hand, and kept on disk between layers: killed anywhere, it goes on.
 *
 * The source's half ends in a reference file (gate/ref.h), against which any model made of the
 * source is checked with the figures of a check that has the source, to the last digit. A half of
 * the model that is being made goes through the layers as they are finished, and is all that
 * kd_check_run needs of them (kd_check_plan.made): the figures are there when the model is.
 *
 * Work folder: pass.json (text, rows, cols), stream (after the last finished layer), bank.NN,
 * layer.NNN (routing, margins of the source, sampled stream). */
#ifndef KD_GATE_PASS_H
#define KD_GATE_PASS_H

#include "gate/side.h"

struct kd_pass;

struct kd_pass_plan {
    const char *text, *work, *name; /* name: the source's, for reports */
    int64_t rows, cols;             /* rows 0: all there are; cols 0: 512 */
    const volatile int *stop;
    /* NULL, or the source's half, for the half of a model that is being made of it: text, rows,
     * cols and name are the source's, as are the embedding and the last norm, which no conversion
     * changes. It must stay open. */
    const struct kd_pass *of;
};

/* ck is borrowed; what kd_k3_ends_load reads of it must be there now and in kd_pass_finish. */
int kd_pass_open(struct kd_pass **out, const struct kd_run *run, struct kd_ckpt *ck,
                 const struct kd_pass_plan *plan, struct kd_err *err) KD_MUST;
/* The layer that is wanted next; the model's layers when all are done. */
int64_t kd_pass_next(const struct kd_pass *p);
/* Takes layer kd_pass_next through; its weights must be there, in ck (NULL: the one that the pass
 * was opened with). */
int kd_pass_layer(struct kd_pass *p, struct kd_ckpt *ck, struct kd_err *err) KD_MUST;
/* What is kept of a finished layer; its map is the caller's to release. */
struct kd_pass_kept {
    struct kd_map map;
    const int32_t *ids;  /* [T][topk]; NULL for a dense layer */
    const float *margin; /* [T] of the source; else NULL */
    const float *stream; /* [samples][hidden] */
};
int kd_pass_load(const struct kd_pass *p, int64_t layer, struct kd_pass_kept *k,
                 struct kd_err *err) KD_MUST;
/* Its streams, after the last finished layer. */
const struct kd_side *kd_pass_side(const struct kd_pass *p);
/* Writes the reference (of a source's half). source_id: kd_source_id of the source. */
int kd_pass_finish(struct kd_pass *p, const char *ref, const char *source_id,
                   struct kd_err *err) KD_MUST;
void kd_pass_close(struct kd_pass *p);

#endif
