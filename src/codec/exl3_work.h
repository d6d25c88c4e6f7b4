/* The quantizer's working set for one tensor; inside this folder only. Matrices are [k][n] fp32
 * (inputs by outputs, the transpose of a checkpoint's), k and n padded to 128. "Rotated" is the
 * basis of the codes: H_k diag(1/su) W diag(1/sv) H_n. */
#ifndef KD_CODEC_EXL3_WORK_H
#define KD_CODEC_EXL3_WORK_H

#include "codec/quant.h"
#include "gpu/encoder.h"

enum { KD_HAD = 128, KD_LDLQ_SPAN = 128 };

struct kd_exl3_work {
    const struct kd_run *run;
    const struct kd_quant_spec *spec;
    const struct kd_hess *h;  /* NULL: no usable Hessian */
    double mean_diag;         /* of h / rows */
    int64_t k, n, cols, rows; /* padded and real inputs, outputs */
    bool zero;                /* W is all zero */
    /* NULL with a device, which has them: */
    float *w;       /* [k][n] the weights */
    float *t;       /* [k][n] rotated targets; after LDLQ the codes' values; then decoded W */
    float *r;       /* [k][n] rotated weights; then H W */
    float *l;       /* [k][k] L, then scratch of the refit; NULL where neither is needed */
    float *su, *sv; /* [k], [n] */
    double *row_ms; /* [k] mean square of the rows of W diag(1/sv) */
    /* encoding */
    void **search_scratch; /* one a worker */
    float *targets;        /* GROUP tiles a worker, ring order */
    uint16_t *states;      /* likewise */
    uint8_t *codes;
    struct kd_gpu_tensor *device; /* NULL: all runs here */
    double *weighed;              /* [n] with a device: column sums of W o (H W) */
};

/* Most tiles of one item of work. */
enum { KD_EXL3_GROUP = 4 };

/* Half-integer powers by roots alone: x^(m/32), 0 <= m <= 32, x > 0. */
double kd_exl3_pow32(double x, int m);
/* What a unit Gaussian tile is multiplied by for the rate (5.2), and how much wider than the
 * weights LDLQ's targets are (4.7). */
double kd_exl3_unit_scale(struct kd_rate rate, enum kd_codebook cb);
double kd_exl3_drift(struct kd_rate rate);

/* exl3_basis.c */
int kd_exl3_load(struct kd_exl3_work *q, const struct kd_mat *w, struct kd_err *err) KD_MUST;
/* su and sv, unit variance in the rotated basis, values not yet rounded. */
int kd_exl3_scales(struct kd_exl3_work *q, struct kd_err *err) KD_MUST;
/* su / scale and sv as fp16 can hold them (a power of two moves between them where needed). */
int kd_exl3_round_scales(struct kd_exl3_work *q, double scale, struct kd_err *err) KD_MUST;
float kd_exl3_f16_round(float x);
/* out = rotated w (out may not be w); with a device its own rotated weights, and out is nothing. */
int kd_exl3_rotate(struct kd_exl3_work *q, float *out, struct kd_err *err) KD_MUST;
/* q->t: rotated -> original basis. */
int kd_exl3_unrotate(struct kd_exl3_work *q, struct kd_err *err) KD_MUST;
/* In place, both sides, x: rows x cols, multiples of 128. */
void kd_exl3_hadamard_2d(const struct kd_run *run, float *x, int64_t rows, int64_t cols);

/* exl3_ldlq.c */
/* q->l from q->h and q->su; *tries is how many dampings were needed (0: never positive definite).
 */
int kd_exl3_make_l(struct kd_exl3_work *q, int *tries, struct kd_err *err) KD_MUST;
/* q->t (rotated weights) -> the codes' values, q->codes; feedback with q->l unless `feedback` is
 * false. */
int kd_exl3_ldlq(struct kd_exl3_work *q, bool feedback, double *mse, struct kd_err *err) KD_MUST;
/* One search for `tiles` (at most KD_EXL3_GROUP) tiles in ring order. */
void kd_exl3_search(const struct kd_exl3_work *q, int worker, const float *targets, int64_t tiles,
                    uint16_t *states);

/* exl3_device.c: with an encoder. q->device is opened, with the weights and H; then LDLQ. */
int kd_exl3_device_load(struct kd_exl3_work *q, const struct kd_mat *w, bool *finite,
                        struct kd_err *err) KD_MUST;
int kd_exl3_device_ldlq(struct kd_exl3_work *q, bool feedback, double *mse,
                        struct kd_err *err) KD_MUST;

/* exl3_scale.c: the factor for q->t (rotated, unit variance). */
int kd_exl3_scale_search(struct kd_exl3_work *q, double drift, double *scale,
                         struct kd_err *err) KD_MUST;

/* exl3_refit.c, both with q->t the decoded weights in the original basis. */
int kd_exl3_refit(struct kd_exl3_work *q, struct kd_err *err) KD_MUST;
/* proxy and rel_fro; destroys q->t. refitted: q->r is H W already. */
int kd_exl3_figures(struct kd_exl3_work *q, bool refitted, struct kd_quant_out *out,
                    struct kd_err *err) KD_MUST;

#endif
