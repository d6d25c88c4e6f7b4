/* Pieces the stages of the model share; nothing outside src/model includes this. */
#ifndef KD_MODEL_K3_INT_H
#define KD_MODEL_K3_INT_H

#include "model/k3.h"

enum {
    KD_K3_CHUNK = 64,        /* tokens of a KDA chunk, at absolute multiples */
    KD_K3_BLOCK = 128,       /* ranks cut widths at multiples of this */
    KD_K3_CTX_BLOCK = 64,    /* positions of an attention block, at absolute multiples */
    KD_K3_CONV_MAX = 16,     /* taps of the short convolution */
    KD_K3_FORWARD_ROWS = 512 /* rows of one pass of kd_k3_forward */
};

/* out[i] = log(1 + exp(x[i])), tmp[n] scratch: the gate of configs without gate_lower_bound. */
void kd_k3_softplus(const struct kd_kern *k, const float *x, float *tmp, float *out, int64_t n);
/* Short convolution and SiLU of n channels: out[i] = silu(sum over taps of w[i][tap] * x[tap][i]).
 */
void kd_k3_conv(const struct kd_kern *k, const float *w, int64_t taps, const float *const *x,
                int64_t n, float *out);
/* Log decay g[kda_dim] of one head; ea = exp(A_log), tmp[2 * kda_dim]. */
void kd_k3_decay(const struct kd_kern *k, const struct kd_k3_cfg *c, const float *z,
                 const float *dt_bias, float ea, float *tmp, float *g);

int kd_k3_kda_core(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                   const float *x, int64_t T, const struct kd_k3_seg *segs, int64_t seg_count,
                   float *y, struct kd_err *err) KD_MUST;
int kd_k3_mla_core(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                   const float *x, int64_t T, const struct kd_k3_seg *segs, int64_t seg_count,
                   float *y, struct kd_err *err) KD_MUST;
/* Room for `rows` positions in an MLA cache. */
int kd_k3_state_reserve(struct kd_k3_state *s, int64_t rows, int64_t width,
                        struct kd_err *err) KD_MUST;

/* This rank's units [lo, hi) of `count` units of `width` channels, cut where 128 channels end. */
int kd_k3_share(const struct kd_k3_part *p, int64_t count, int64_t width, const char *what,
                int64_t *lo, int64_t *hi, struct kd_err *err) KD_MUST;
/* A matrix, or this rank's rows or columns of it. */
int kd_k3_mat_part(const struct kd_ckpt *ck, int64_t layer, const char *key, int64_t rows,
                   int64_t cols, int64_t r0, int64_t r1, int64_t c0, int64_t c1, struct kd_mat *out,
                   struct kd_err *err) KD_MUST;

#endif
