/* What a conversion writes: every tensor of the output, which shard it goes to, quantized at which
 * rate or kept as stored, and the size of every shard to the byte before anything is computed
 * (exl3 Decisions 1 to 5).
 *
 * Rates are counted in sixteenths of a bit. The routed experts' average is met from below within
 * one step, a step being one sixteenth on one tensor: neighbouring sixteenths are spread evenly
 * over the tensors in (layer, expert, projection) order. */
#ifndef KD_CONVERT_RATES_H
#define KD_CONVERT_RATES_H

#include "fmt/ckpt.h"
#include "fmt/st_write.h"
#include "kern/mat.h"
#include "model/k3_cfg.h"

enum kd_proj { KD_PROJ_W1, KD_PROJ_W3, KD_PROJ_W2, KD_PROJ_COUNT };

struct kd_out_tensor {
    const struct kd_tensor
        *src;            /* the source tensor (weight or weight_packed); its data may be absent */
    char dtype_name[16]; /* of the source, with rank and shape: from its header, or from the */
    int rank;            /* config where only the index is there */
    int64_t shape[KD_RANK_MAX], src_bytes;
    char *key;         /* quantized: name without ".weight"; stored: the whole name */
    int32_t layer;     /* -1: not of a layer */
    int32_t expert;    /* -1: not an expert */
    enum kd_proj proj; /* of experts */
    bool quantized;
    bool kept_for_padding; /* stored since padding to 128 would add over 25 % */
    int64_t rows, cols;    /* outputs, inputs (quantized) */
    unsigned rate16;       /* sixteenths of a bit (quantized) */
    int64_t bytes;         /* in the output, without header */
    int32_t shard;
};

/* 0 in a rate means: keep as stored. */
struct kd_rate_wish {
    double experts_bpw; /* average K of the routed experts */
    double trunk_bpw; /* 4: o_proj gets one more, routed_expert_down/up_proj two more, 8 at most */
    double head_bpw;  /* 6 */
    int64_t
        size_bytes; /* > 0: the largest rate of the experts whose shards fit; experts_bpw unused */
    bool uniform_k; /* one whole K for each layer and projection */
    enum kd_codebook cb;
};

struct kd_rates {
    struct kd_out_tensor *t;
    int64_t count;
    int32_t shard_count;
    int64_t *shard_first; /* [shard_count + 1]: tensors of a shard are t[first[s]] .. */
    int64_t *shard_bytes; /* file sizes */
    int64_t total_bytes;  /* of all shards */
    int64_t expert_tensors, expert_steps; /* sum of rate16 over them */
    struct kd_rate_wish wish;
    void *names;
};

/* Works on an index alone too (planning); then only the size of the output is known, not its bytes.
 */
int kd_rates_plan(struct kd_rates *r, const struct kd_ckpt *ck, const struct kd_k3_cfg *cfg,
                  const struct kd_rate_wish *wish, struct kd_err *err) KD_MUST;
/* The same of tensors that are nowhere yet: names alone (rank -1), shapes and dtypes are the
 * config's. `list` must stay. */
int kd_rates_plan_names(struct kd_rates *r, const struct kd_tensor *list, int64_t count,
                        const struct kd_json *config, const struct kd_k3_cfg *cfg,
                        const struct kd_rate_wish *wish, struct kd_err *err) KD_MUST;
/* Leaves out the experts of a layer that `keep` has not; nothing else changes. */
int kd_rates_keep_experts(struct kd_rates *r, int32_t layer, const bool *keep,
                          struct kd_err *err) KD_MUST;
void kd_rates_release(struct kd_rates *r);
/* The header of one shard, for writing it. */
int kd_rates_shard_plan(const struct kd_rates *r, int32_t shard, struct kd_st_plan *p,
                        struct kd_err *err) KD_MUST;
/* "model-00003-of-000010.safetensors" */
void kd_rates_shard_name(const struct kd_rates *r, int32_t shard, char *out, size_t size);

/* The three figures that are always told apart, for a class of tensors. */
struct kd_rate_sum {
    int64_t tensors, weights; /* source weights */
    int64_t trellis_weights;  /* after padding */
    double k;                 /* average K over trellis weights */
    double real;              /* all bytes * 8 / source weights */
    int64_t bytes;
};
/* which: 'e' routed experts, 't' quantized trunk without head, 'h' head, 's' kept as stored */
struct kd_rate_sum kd_rates_sum(const struct kd_rates *r, char which);

#endif
