/* The parts of K3's forward pass that are no matrix products, on a device (k3-model, section 3;
 * products: gpu/product.h). All pointers but `err` point to device memory unless said otherwise;
 * arrays are fp32, row-major, one row a token. Every call only adds kernels to the device's stream:
 * it allocates nothing, waits for nothing and may be captured in a graph. Whoever asks for a
 * result copies it over the stream. Kernels begin before the one in front is done and then wait for
 * it (programmatic launches), where a device can do that.
 *
 * A row's bits depend on its own sequence alone: not on the other rows, nor on how its sequence is
 * cut into calls. One thing of the cut is seen, by MLA's attention of class fast: whether its
 * segment has more than 64 rows (a prompt), as in products more than 64 rows of a call have bits of
 * their own. The short convolutions, the gates and the recurrence of KDA give the CPU's bits
 * for the same inputs (a token at a time, without `work`); sums over a row (norms, mixes,
 * attention) run in another fixed order than the CPU's.
 *
 * Widths that a kernel is built for are checked once by kd_gpu_k3_fits. */
#ifndef KD_GPU_K3_OPS_H
#define KD_GPU_K3_OPS_H

#include "gpu/gpu.h"

#include <stdbool.h>

enum {
    KD_GPU_K3_DIM = 128,     /* of a KDA head; of an MLA head's keys and of its values */
    KD_GPU_K3_ROPE = 64,     /* of MLA's shared key */
    KD_GPU_K3_TAPS = 4,      /* of a short convolution */
    KD_GPU_K3_PAGE = 64,     /* positions of a page of the latent cache */
    KD_GPU_K3_WIDTH = 8192,  /* of the residual stream and of what is normed, at most */
    KD_GPU_K3_BANKS = 16,    /* of the residual stream, at most */
    KD_GPU_K3_TOPK = 32,     /* experts a token, at most */
    KD_GPU_K3_EXPERTS = 1024 /* at most */
};

/* One sequence's part of a batch. */
struct kd_gpu_k3_seg {
    int64_t first, count; /* rows of the batch */
    int64_t pos;          /* tokens seen before them */
    float *kda;           /* states of all its KDA layers */
    void *const *page;    /* [pages] of its cache, pos + count positions at least */
};

/* The arrays lie in device memory, the struct in the host's. */
struct kd_gpu_k3_batch {
    int64_t rows, segs;
    const int32_t *ids;     /* [rows] tokens */
    const int32_t *row_seg; /* [rows] */
    const struct kd_gpu_k3_seg *seg;
    int64_t longest; /* pos + count of the longest segment, or more: grids are sized by it */
    const struct kd_gpu_k3_seg *host; /* NULL, or `seg` in the host's memory, for prompts */
};

/* The shapes of one model that kernels depend on. */
struct kd_gpu_k3_shape {
    int64_t hidden, kda_heads, kda_dim, conv;
    int64_t heads, q_lora, kv_lora, nope, rope, v_dim;
    int64_t experts, topk, banks, latent;
};
/* -1 naming the width that no kernel here is built for. */
int kd_gpu_k3_fits(const struct kd_gpu_k3_shape *s, struct kd_err *err) KD_MUST;

/* p[t] = row ids[t] of the table (BF16 values, or fp32). */
int kd_gpu_k3_embed(struct kd_gpu *g, const struct kd_gpu_k3_batch *b, const void *table, bool bf16,
                    int64_t hidden, float *p, struct kd_err *err) KD_MUST;

/* What lies between two halves of a layer, in one launch. hidden: a multiple of 4, up to
 * KD_GPU_K3_WIDTH. With `add`: a = add (+ more); the prefix
 * becomes a (replace) or p + a; its old value goes into bank number `banks` before that (push).
 * Then out = RMSNorm(mix(p, banks), norm) with attention-residual scores against `query`; without
 * a query or a bank the mix is p itself. */
struct kd_gpu_k3_mix {
    int64_t rows, hidden;
    float *p;          /* [rows][hidden] */
    float *bank;       /* [][bank_rows][hidden] */
    int64_t bank_rows; /* rows from one bank to the next */
    int banks;         /* filled before this call */
    const float *add, *more;
    bool replace, push;
    const float *query, *norm; /* [hidden]; query = norm times proj, folded */
    const int32_t *pick;       /* NULL, or [rows]: row of p and banks for each row of out */
    float eps;
    float *out; /* [rows][hidden] */
};
int kd_gpu_k3_mix_run(struct kd_gpu *g, const struct kd_gpu_k3_mix *m, struct kd_err *err) KD_MUST;

/* out[t] = RMSNorm(x[t], w), w NULL: ones. out may be x; n: a multiple of 4, up to
 * KD_GPU_K3_WIDTH; x, w and out aligned to 16. */
int kd_gpu_k3_norm(struct kd_gpu *g, const float *x, const float *w, float eps, int64_t rows,
                   int64_t n, float *out, struct kd_err *err) KD_MUST;
/* x becomes what BF16 has of it, which also goes to `out`; count values. */
int kd_gpu_k3_round(struct kd_gpu *g, float *x, int64_t count, uint16_t *out,
                    struct kd_err *err) KD_MUST;
/* *bad = 1 where one of `count` values is NaN or infinite. */
int kd_gpu_k3_finite(struct kd_gpu *g, const float *x, int64_t count, int32_t *bad,
                     struct kd_err *err) KD_MUST;
/* out = SiTU(a, b), count values; out may be a or b. */
int kd_gpu_k3_situ(struct kd_gpu *g, const float *a, const float *b, float beta, float linear,
                   int64_t count, float *out, struct kd_err *err) KD_MUST;

/* KDA from its projections to the input of o_proj: convolutions, gates, the recurrence over each
 * segment's tokens, gated norm. A layer's state is [heads][128][128] (row = key channel), then
 * q, k, v of the last taps-1 tokens, [3][taps-1][channels], oldest first, as k3.h has it; read and
 * written once a call. */
struct kd_gpu_k3_kda {
    int64_t heads, taps;
    bool bounded; /* the gate's form (k3-model 3.4) */
    float lower_bound, eps;
    const float *q, *k, *v, *gate, *z;     /* [rows][heads * 128] */
    const float *beta;                     /* [rows][heads], before the sigmoid */
    const float *q_conv, *k_conv, *v_conv; /* [channels][taps] */
    const float *decay, *dt_bias, *o_norm;
    int64_t state; /* floats from seg.kda to this layer's state */
    float *y;      /* [rows][heads * 128] */
    /* NULL, or kd_gpu_k3_kda_floats(): whole chunks of 64 tokens at absolute multiples of 64 are
     * taken in closed form (k3-model 4.2), which is much faster and has other last bits. Then a cut
     * inside a chunk changes bits, too; cuts at multiples of 64 change none. */
    float *work;
};
int64_t kd_gpu_k3_kda_floats(int64_t heads, int64_t rows);
int kd_gpu_k3_kda_run(struct kd_gpu *g, const struct kd_gpu_k3_batch *b,
                      const struct kd_gpu_k3_kda *k, struct kd_err *err) KD_MUST;

/* MLA's cache and attention come in two classes (docs/numerics.md). For checks: a cache of fp32 and
 * sums of fp32 products. Fast: a cache of fp16, products of fp16 on tensor cores; kv_b must be
 * BF16. A page holds [layers][64][kv_lora + rope] values. */

/* MLA's two norms: cq in place; kv rows into the cache (latent after the norm, then pe). */
struct kd_gpu_k3_latents {
    int64_t q_lora, kv_lora;
    bool fast;
    float eps;
    float *cq;       /* [rows][q_lora] */
    const float *kv; /* [rows][kv_lora + rope] */
    const float *q_norm, *kv_norm;
    int64_t page; /* values from a page's start to this layer */
};
int kd_gpu_k3_latents_run(struct kd_gpu *g, const struct kd_gpu_k3_batch *b,
                          const struct kd_gpu_k3_latents *m, struct kd_err *err) KD_MUST;

/* MLA from its queries to the input of o_proj, absorbed: latent queries, attention over the cache
 * (which holds these rows already), value rows, gate. Each row's context is cut into parts by its
 * own position; parts are merged in order. Class fast, segments of more than 64 rows, where the
 * batch has `host`: keys and values of each head are made from the latents, and attended to. */
struct kd_gpu_k3_mla {
    int64_t heads, kv_lora;
    bool fast;
    const float *q;    /* [rows][heads * 192] */
    const float *gate; /* [rows][heads * 128] */
    const void *kv_b;  /* [heads * 256][kv_lora], BF16 or fp32; aligned to 16 */
    bool bf16;
    int64_t page;   /* as above */
    float *work;    /* kd_gpu_k3_mla_floats() */
    int64_t parts;  /* as given there */
    float *y;       /* [rows][heads * 128] */
    int64_t floats; /* of `work`, 0: what is given there. More is used for prompts */
};
/* Work space for `rows` rows and contexts up to `longest`, with at most `most`
 * floats: parts that do not fit are taken one after the other, with the same bits. *parts: for the
 * struct above. */
int64_t kd_gpu_k3_mla_floats(bool fast, int64_t heads, int64_t kv_lora, int64_t rows,
                             int64_t longest, int64_t most, int64_t *parts);
int kd_gpu_k3_mla_run(struct kd_gpu *g, const struct kd_gpu_k3_batch *b,
                      const struct kd_gpu_k3_mla *m, struct kd_err *err) KD_MUST;

/* The router: as kd_k3_route and, with mass > 0, kd_k3_route_mass (model/k3.h), from its logits. */
struct kd_gpu_k3_route {
    int64_t rows, experts, topk, used;
    bool renormalize;
    float scale;
    double mass;
    const float *logits; /* [rows][experts] */
    const float *bias;   /* [experts] */
    int32_t *ids;        /* [rows][topk], -1: none */
    float *w;            /* [rows][topk] */
};
int kd_gpu_k3_route_run(struct kd_gpu *g, const struct kd_gpu_k3_route *r,
                        struct kd_err *err) KD_MUST;

#endif
