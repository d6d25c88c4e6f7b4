/* The source's half of a check, taken one layer at a time while another job (a conversion that
 * drops its source) has that layer at hand, and kept on disk between layers: killed anywhere, it
 * goes on. It ends in a reference file (gate/ref.h), against which any model made of the source is
 * checked with the figures of a check that has the source, to the last digit.
 *
 * Work folder: pass.json (text, rows, cols), stream (after the last finished layer), bank.NN,
 * layer.NNN (routing, margins, sampled stream). */
#ifndef KD_GATE_PASS_H
#define KD_GATE_PASS_H

#include "gate/side.h"

struct kd_pass;

struct kd_pass_plan {
    const char *text, *work, *name; /* name: the source's, for reports */
    int64_t rows, cols;             /* rows 0: all there are; cols 0: 512 */
    const volatile int *stop;
};

/* ck is borrowed; what kd_k3_ends_load reads of it must be there now and in kd_pass_finish. */
int kd_pass_open(struct kd_pass **out, const struct kd_run *run, struct kd_ckpt *ck,
                 const struct kd_pass_plan *plan, struct kd_err *err) KD_MUST;
/* The layer that is wanted next; the model's layers when all are done. */
int64_t kd_pass_next(const struct kd_pass *p);
/* Takes layer kd_pass_next through; its weights must be there. */
int kd_pass_layer(struct kd_pass *p, struct kd_err *err) KD_MUST;
/* Writes the reference. source_id: kd_source_id of the source. */
int kd_pass_finish(struct kd_pass *p, const char *ref, const char *source_id,
                   struct kd_err *err) KD_MUST;
void kd_pass_close(struct kd_pass *p);

#endif
