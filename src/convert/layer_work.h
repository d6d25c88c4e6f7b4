/* What one layer of a conversion has open. Shared by layers.c, layers_there.c, experts.c,
 * experts_sum.c and trial.c only. */
#ifndef KD_CONVERT_LAYER_WORK_H
#define KD_CONVERT_LAYER_WORK_H

#include "base/assert.h"
#include "convert/job.h"
#include "model/k3_calib.h"

enum { KD_LAYER_TRUNK_MAX = 16, KD_LAYER_BANKS_MAX = 64 };

struct kd_layer_work {
    struct kd_k3_layer L; /* matrices become the quantized ones as they are made */
    struct kd_unit trunk[KD_LAYER_TRUNK_MAX];
    int trunk_count;
    struct kd_unit *expert; /* [experts], mapped units */
    int64_t expert_count;
    int64_t banks_before, banks_after; /* seen by the attention's mix, by the FFN's */
    struct kd_rwmap p, bank[KD_LAYER_BANKS_MAX];
    struct kd_rwmap mid;      /* stream after the attention */
    struct kd_rwmap next;     /* stream after the layer */
    struct kd_rwmap y;        /* fp32 [T][y_width]: o_proj's inputs, unless they are made again */
    struct kd_rwmap z;        /* BF16 [T][latent] */
    struct kd_rwmap ids, wts; /* [T][topk] */
    struct kd_rwmap u;        /* fp32 [T][latent]: weighted sum of the experts */
    int64_t y_width;
    struct kd_k3_stream win;
};

typedef int kd_layer_rows(struct kd_job *j, struct kd_layer_work *w, int64_t first, int64_t T,
                          float *x, struct kd_err *err);
/* The same on a device, where the rows stay. */
typedef int kd_layer_there(struct kd_job *j, struct kd_layer_work *w, struct kd_k3_calib *c,
                           int64_t first, int64_t T, struct kd_k3_rows *x, struct kd_err *err);

/* The plan's entry of a quantized trunk linear of this layer, or NULL when it stays as stored. */
const struct kd_out_tensor *kd_layer_tensor(const struct kd_job *j, int64_t layer,
                                            const char *suffix);
struct kd_quant_spec kd_layer_spec(const struct kd_job *j, const struct kd_out_tensor *t,
                                   const char *input);
int kd_layer_linear(struct kd_job *j, struct kd_layer_work *w, const struct kd_out_tensor *t,
                    const char *input, const struct kd_hess *h, struct kd_mat *mat,
                    struct kd_err *err) KD_MUST;
void kd_layer_window(const struct kd_job *j, struct kd_layer_work *w, const struct kd_rwmap *p,
                     int64_t banks, bool started, int64_t first, int64_t T);
/* Each row of a block is a sequence of its own, from position 0: j->states and j->segs of `rows`.
 * After an error nothing is left to end. */
int kd_layer_rows_begin(struct kd_job *j, const struct kd_layer_work *w, int64_t rows,
                        struct kd_err *err) KD_MUST;
void kd_layer_rows_end(struct kd_job *j, int64_t rows);
/* Opens what a layer needs; kd_layer_work_close of what was opened, also after an error. */
int kd_layer_work_open(struct kd_job *j, struct kd_layer_work *w, int64_t layer,
                       struct kd_err *err) KD_MUST;
void kd_layer_work_close(struct kd_layer_work *w);
int kd_layer_scratch(struct kd_job *j, struct kd_rwmap *m, const char *name, int64_t bytes,
                     struct kd_err *err) KD_MUST;
int kd_layer_ffn_in(struct kd_job *j, struct kd_layer_work *w, int64_t first, int64_t T, float *x,
                    struct kd_err *err) KD_MUST;
/* layers_there.c */
kd_layer_there kd_there_attn_in, kd_there_q_latent, kd_there_attn_core, kd_there_attn_out,
    kd_there_inner, kd_there_latents, kd_there_latent_out, kd_there_out;
/* All blocks: rows that must be finite, the first `tokens` into h (or NULL). *done false: this job
 * has no device for it, nothing was done. `what` names the rows. */
int kd_there_run(struct kd_job *j, struct kd_layer_work *w, kd_layer_there *rows, const char *what,
                 struct kd_hess *h, int64_t tokens, bool *done, struct kd_err *err) KD_MUST;
/* Latents, routing, the experts' units and their weighted sum u; the sum alone. */
int kd_layer_sum_experts(struct kd_job *j, struct kd_layer_work *w, struct kd_err *err) KD_MUST;
int kd_layer_experts(struct kd_job *j, struct kd_layer_work *w, struct kd_err *err) KD_MUST;

#endif
