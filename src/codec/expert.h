/* One expert, memory to memory: the unit of work of a conversion, on one machine or a farm. Its
 * latents and their Hessian belong to the layer and are shared by all its experts; the Hessian of
 * its down-projection is made here, used and dropped (exl3 Decisions 10 and 14, farm Decisions 1 to
 * 6). */
#ifndef KD_CODEC_EXPERT_H
#define KD_CODEC_EXPERT_H

#include "codec/quant.h"

struct kd_gpu_latents;

/* What all experts of a layer share. */
struct kd_layer_inputs {
    int64_t T, latent;
    const uint16_t *z;                    /* BF16 latents [T][latent] */
    const struct kd_gpu_latents *z_there; /* z on the run's devices, or NULL */
    const struct kd_hess *h_in;           /* of z, all tokens */
    int64_t topk;
    const int32_t *ids; /* [T][topk] routing */
    const float *w;     /* [T][topk] */
    float situ_beta, situ_linear;
    bool weight_routed;    /* --calib-weight routed */
    int64_t blend_rows;    /* k of n/(n+k) */
    int64_t fallback_rows; /* under this many routed tokens: fallback is recorded (256) */
    int64_t block_rows;    /* rows a step; part of the recipe, never of memory or threads */
};

struct kd_expert_out {
    struct kd_quant_out w1, w3, w2;
    int64_t routed_rows;
    bool fallback, all_token_hessian;
    char hess_digest[65]; /* of w2's Hessian */
};
/* `expert` is its id in the routing. spec[0..2]: w1, w3, w2. */
int kd_expert_quantize(const struct kd_run *run, int64_t expert, const struct kd_mat *w1,
                       const struct kd_mat *w3, const struct kd_mat *w2,
                       const struct kd_layer_inputs *in, const struct kd_quant_spec spec[3],
                       struct kd_expert_out *out, struct kd_err *err) KD_MUST;
void kd_expert_release(struct kd_expert_out *o);

/* The part of it that grows with the tokens: x^T x over the inner rows of all of them, w1 and w3
 * EXL3, added to `all`, which is open. *there: a device of the run did it, and `all` has these sums
 * alone; false: the run has none, or none with room. */
int kd_expert_inner_sums(const struct kd_run *run, const struct kd_layer_inputs *in,
                         const struct kd_mat *w1, const struct kd_mat *w3, struct kd_hess *all,
                         bool *there, struct kd_err *err) KD_MUST;

/* Memory of each of the run's devices (it has some) while experts of a layer are encoded. `in`: T,
 * latent and weight_routed are read; the spec with the most bits counts. */
struct kd_expert_room {
    int64_t shared_bytes; /* the latents and their Hessian */
    int64_t each_bytes;   /* of an expert: a tensor, or the sums over its inner rows */
    int lanes;            /* experts that fit side by side on all devices together, one a device at
                             least and at most KD_EXPERT_LANES: full rounds of searches while some
                             are at linear algebra, Hessians or files (docs/performance.md) */
};
enum { KD_EXPERT_LANES = 48 };
struct kd_expert_room kd_expert_room_of(const struct kd_run *run, const struct kd_layer_inputs *in,
                                        int64_t inter, const struct kd_quant_spec spec[3]);

#endif
