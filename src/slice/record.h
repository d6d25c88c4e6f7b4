/* What a slice says of itself: keys slice.* of a GGUF, slice.json beside safetensors. It names the
 * model that was cut first, so a slice of a slice says what the direct slice would say; the receipt
 * reads it. Its hash covers all of it: a record that was edited is told. */
#ifndef KD_SLICE_RECORD_H
#define KD_SLICE_RECORD_H

#include "slice/heads.h"
#include "slice/keep.h"

struct kd_slice_record {
    char tool[64];
    char name[256];  /* the source's general.name, or its folder's */
    char repo[256];  /* hf's owner/name, or the file's or folder's name */
    char commit[65]; /* "" where none is known */
    char chain[256]; /* "MXFP4, BF16, F32 > Q1_0" */
    int64_t layers, dense, experts, used, width, params; /* of the source */
    int64_t active;                                      /* its parameters used for a token */
    int64_t data_bytes;                                  /* of its tensors */
    bool blocks_whole;
    int64_t layer_count, expert_count; /* kept */
    int32_t *layers_kept;
    int64_t lists;         /* of experts: 1 for all layers, or one for each kept layer */
    int32_t *experts_kept; /* [lists][expert_count] */
};

/* found false: the model says nothing (then r is zeroed). A broken one is KD_ECORRUPT; *intact
 * tells whether its hash is right. */
int kd_slice_record_read(struct kd_slice_record *r, const struct kd_heads *h, bool *found,
                         bool *intact, struct kd_err *err) KD_MUST;
/* The record of cutting `k` out of h, on top of the record that h itself carries. to: the type that
 * was converted to, or NULL. */
int kd_slice_record_make(struct kd_slice_record *r, const struct kd_heads *h,
                         const struct kd_keep *k, const char *to, struct kd_err *err) KD_MUST;
void kd_slice_record_release(struct kd_slice_record *r);
/* Adds the keys. */
int kd_slice_record_keys(struct kd_gguf_plan *p, const struct kd_slice_record *r,
                         struct kd_err *err) KD_MUST;
/* slice.json's text, its hash last. */
int kd_slice_record_json(struct kd_buf *out, const struct kd_slice_record *r,
                         struct kd_err *err) KD_MUST;

#endif
