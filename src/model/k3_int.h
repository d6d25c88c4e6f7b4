/* Pieces the stages of the model share; nothing outside src/model includes this. */
#ifndef KD_MODEL_K3_INT_H
#define KD_MODEL_K3_INT_H

#include "model/k3.h"
#include "num/logsum.h"

#include <stdatomic.h>

enum {
    KD_K3_CHUNK = 64,             /* tokens of a KDA chunk, at absolute multiples */
    KD_K3_BLOCK = 128,            /* ranks cut widths at multiples of this */
    KD_K3_CTX_BLOCK = KD_K3_PAGE, /* positions of an attention block, at absolute multiples */
    KD_K3_CONV_MAX = 16,          /* taps of the short convolution */
    KD_K3_FORWARD_ROWS = 512,     /* rows of one pass of kd_k3_forward */
    KD_K3_DEVICE_ROWS = 4096      /* the same on a device that has the memory */
};

/* out[i] = log(1 + exp(x[i])), tmp[n] scratch: the gate of configs without gate_lower_bound. */
void kd_k3_softplus(const struct kd_kern *k, const float *x, float *tmp, float *out, int64_t n);
/* Short convolution and SiLU of n channels: out[i] = silu(sum over taps of w[i][tap] * x[tap][i]).
 */
void kd_k3_conv(const struct kd_kern *k, const float *w, int64_t taps, const float *const *x,
                int64_t n, float *out);
/* exp(A_log) of one head, as every loader and writer has it: kd_exp64 rounded to float. */
static inline float kd_k3_decay_of(float a_log)
{
    return a_log < 700 ? (float)kd_exp64((double)a_log) : (float)kd_exp64(700);
}
/* Log decay g[kda_dim] of one head; ea = exp(A_log), tmp[2 * kda_dim]. */
void kd_k3_decay(const struct kd_kern *k, const struct kd_k3_cfg *c, const float *z,
                 const float *dt_bias, float ea, float *tmp, float *g);

/* kern's situ of `count` values over the pool; out may be g or u. */
void kd_k3_situ(const struct kd_run *r, const struct kd_k3_cfg *c, const float *g, const float *u,
                float *out, int64_t count);
int kd_k3_kda_core(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                   const float *x, int64_t T, const struct kd_k3_seg *segs, int64_t seg_count,
                   float *y, struct kd_err *err) KD_MUST;
int kd_k3_mla_core(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                   const float *x, int64_t T, const struct kd_k3_seg *segs, int64_t seg_count,
                   float *y, struct kd_err *err) KD_MUST;
/* Pages that only this state holds for positions pos .. rows-1 of an MLA cache, `width` floats a
 * row. */
int kd_k3_state_reserve(struct kd_k3_state *s, int64_t rows, int64_t width,
                        struct kd_err *err) KD_MUST;
struct kd_k3_page {
    atomic_int refs;
    int charged; /* kd_k3_seq_charge */
    _Alignas(64) float row[];
};
static inline float *kd_k3_row(const struct kd_k3_state *s, int64_t pos, int64_t width)
{
    return s->page[pos / KD_K3_PAGE]->row + pos % KD_K3_PAGE * width;
}

/* Copies an MLA layer's cache into a fresh state. */
int kd_k3_state_copy(struct kd_k3_state *s, const struct kd_k3_state *from, int64_t width,
                     struct kd_err *err) KD_MUST;
/* Floats of S and conv, one block. */
int64_t kd_k3_kda_floats(const struct kd_k3_cfg *c, int64_t heads);

struct kd_k3_model {
    struct kd_ckpt *ck;
    struct kd_k3_cfg cfg;
    struct kd_run run;
    struct kd_comm *comm;
    struct kd_k3_layer *layers;
    struct kd_k3_ends ends;
    struct kd_store *store;
    struct kd_k3_device *dev; /* NULL: the CPU; model/k3_device.h */
    bool made;                /* by kd_k3_make */
};
void kd_k3_made_store_close(struct kd_store *s);
/* A layer of that shape, all of it BF16 or F32 and without weights; its vectors are made. */
int kd_k3_made_layer(struct kd_k3_layer *L, const struct kd_k3_cfg *c, int64_t index, bool f32,
                     struct kd_err *err) KD_MUST;

struct kd_k3_seq {
    const struct kd_k3_model *m;
    struct kd_k3_device_seq *dev; /* its states, when the model has a device; `state` is unused */
    int64_t pos;
    int64_t drafted;            /* tokens of the last feed, if it was a draft */
    struct kd_k3_state state[]; /* [layers] */
};

/* What takes drafts back: the KDA state and the columns of the convolution as they were, then each
 * token's inputs. */
struct kd_k3_undo {
    float *S, *conv; /* as in the state */
    float *k, *v, *alpha,
        *raw[3]; /* [DRAFT_MAX][heads * dim]; raw: q, k, v before the convolution */
    float *out;  /* [heads * dim] outputs of a replay, of no use */
    float *beta; /* [DRAFT_MAX][heads] */
};
struct kd_k3_undo kd_k3_undo_of(const struct kd_k3_state *s, const struct kd_k3_cfg *c,
                                int64_t heads);
int64_t kd_k3_undo_floats(const struct kd_k3_cfg *c, int64_t heads);
/* Room for it, once. */
int kd_k3_undo_reserve(struct kd_k3_state *s, const struct kd_k3_cfg *c, int64_t heads,
                       struct kd_err *err) KD_MUST;
/* One head of one KDA layer back to the state before the draft, then its first `kept` tokens. */
void kd_k3_kda_replay(const struct kd_kern *k, const struct kd_k3_cfg *c, int64_t heads,
                      struct kd_k3_state *s, int64_t h, int64_t kept);

/* This rank's units [lo, hi) of `count` units of `width` channels, cut where 128 channels end. */
int kd_k3_share(const struct kd_k3_part *p, int64_t count, int64_t width, const char *what,
                int64_t *lo, int64_t *hi, struct kd_err *err) KD_MUST;
/* A matrix, or this rank's rows or columns of it. */
int kd_k3_mat_part(const struct kd_ckpt *ck, int64_t layer, const char *key, int64_t rows,
                   int64_t cols, int64_t r0, int64_t r1, int64_t c0, int64_t c1, struct kd_mat *out,
                   struct kd_err *err) KD_MUST;

#endif
