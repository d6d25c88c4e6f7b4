/* What `kondense inspect` knows of a checkpoint: counts and bytes by kind of tensor, rates, and
 * what is odd about it. Gathered once, printed as text or JSON. Sizes come from the shards' headers
 * where they are there and from the config where they are not. */
#ifndef KD_CMD_INSPECT_H
#define KD_CMD_INSPECT_H

#include "fmt/ckpt.h"
#include "fmt/names.h"
#include "model/k3_names.h"

/* Sentences and how often each was found, in the order of the first. */
struct kd_tally {
    struct kd_names text;
    struct kd_buf counts; /* of int64_t, by id */
};
int kd_tally_add(struct kd_tally *t, const char *text, int64_t count, struct kd_err *err) KD_MUST;
int64_t kd_tally_count(const struct kd_tally *t, int64_t i);
int64_t kd_tally_total(const struct kd_tally *t);

/* Weights whose bits are told apart. */
enum kd_inspect_class {
    KD_CLASS_EXPERTS, /* routed experts, however stored */
    KD_CLASS_TRUNK,   /* EXL3 matrices outside the experts and the head */
    KD_CLASS_HEAD,
    KD_CLASS_STORED, /* all others, at their own width */
    KD_CLASSES
};

struct kd_inspect_sum {
    int64_t tensors, params, bytes;
};

struct kd_inspect {
    const struct kd_ckpt *ck;
    struct kd_k3_cfg cfg;
    struct kd_k3_map map;
    struct kd_buf unknown_keys; /* comma separated */
    struct kd_inspect_sum kinds[KD_K3_KINDS], total;
    struct kd_inspect_sum classes[KD_CLASSES];
    double rate16[KD_CLASSES];         /* sum of params * sixteenths of a bit in the codes */
    int64_t packed_bytes, scale_bytes; /* of routed MXFP4 experts */
    int64_t parts[KD_K3_SIDE + 1];     /* tensors of each kd_k3_part */
    int64_t active;                    /* parameters used for a token */
    int64_t unsized;                   /* tensors whose size nothing tells */
    int64_t layers_kda, layers_mla, layers_moe;
    int shards_present;
    struct kd_tally unknown, dtypes, odd_dtypes, odd_shapes, missing;
    struct kd_err refusal; /* code KD_OK: a forward pass can be run */
};

/* ck must stay. */
int kd_inspect_open(struct kd_inspect *in, const struct kd_ckpt *ck, struct kd_err *err) KD_MUST;
void kd_inspect_close(struct kd_inspect *in);

#endif
