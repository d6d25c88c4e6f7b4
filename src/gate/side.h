/* One of the two models of a check: its residual streams over all rows, taken through one layer at
 * a time in blocks of rows. Private to the gate. */
#ifndef KD_GATE_SIDE_H
#define KD_GATE_SIDE_H

#include "base/file.h"
#include "model/k3.h"

struct kd_side {
    struct kd_ckpt *ck;
    bool borrowed; /* ck is somebody else's */
    bool quiet;    /* says nothing of its progress: somebody else counts */
    struct kd_k3_cfg cfg;
    struct kd_store *store;
    struct kd_k3_ends ends;
    struct kd_rwmap map; /* the streams in a work file, or in `memory` */
    float *memory;
    float *p, *bank; /* [T][hidden], [banks][T][hidden] */
    int64_t banks;   /* filled */
    bool started;
    int32_t *ids;  /* [T][topk] of the layer at hand */
    float *margin; /* [T], only where asked for */
    int64_t rows, cols;
};

int kd_side_open(struct kd_side *s, const char *dir, struct kd_err *err) KD_MUST;
/* The same over a checkpoint that is open and stays its owner's. */
int kd_side_take(struct kd_side *s, struct kd_ckpt *ck, struct kd_err *err) KD_MUST;
/* Makes room for the streams (work: a folder, or NULL for memory) and embeds all rows. name tells
 * the work files of two sides apart. */
int kd_side_begin(struct kd_side *s, const struct kd_run *run, const int32_t *ids, int64_t rows,
                  int64_t cols, bool margins, const char *work, const char *name,
                  struct kd_err *err) KD_MUST;
int kd_side_layer(struct kd_side *s, const struct kd_run *run, int64_t layer,
                  const volatile int *stop, struct kd_err *err) KD_MUST;
/* The same with the layer's weights out of another checkpoint, which need not hold more. */
int kd_side_layer_of(struct kd_side *s, const struct kd_run *run, struct kd_ckpt *ck, int64_t layer,
                     const volatile int *stop, struct kd_err *err) KD_MUST;
/* Goes on where `from` is, on its streams, which stay from's. */
void kd_side_go_on(struct kd_side *s, const struct kd_side *from);
/* Final hidden states, normed, in place of p. */
int kd_side_final(struct kd_side *s, const struct kd_run *run, struct kd_err *err) KD_MUST;
void kd_side_close(struct kd_side *s);

#endif
