/* A reference file: what a check needs of the source, so that it can be repeated without it, with
 * the same figures to the last digit. Holds the token ids, the normed final hidden states and the
 * lm_head as stored (BF16 or F32), each layer's routing, and the stream at sampled positions.
 * Layout: docs/formats/reference.md. Little-endian; the last 64 bytes are the SHA-256 of all
 * before.
 *
 * Writing goes in file order: open, head, then per layer, then hidden rows, commit. */
#ifndef KD_GATE_REF_H
#define KD_GATE_REF_H

#include "base/file.h"
#include "base/hash.h"
#include "gate/sizes.h"
#include "kern/mat.h"
#include "model/k3_cfg.h"
#include "text/corpus.h"

struct kd_ref_head {
    char magic[8]; /* "KDREF001" */
    int64_t rows, cols, docs;
    int64_t hidden, layers, dense_layers, vocab, experts, topk;
    int64_t samples;   /* stream positions kept, evenly spaced */
    int64_t head_type; /* enum kd_mat_type: F32 or BF16 */
    int64_t weights;   /* of the source, all parts */
    int64_t file_bytes;
    char text_sha256[72];
    char source_id[72];
    char name[128];
};

struct kd_ref_out {
    struct kd_outfile file;
    struct kd_sha256 sha;
    bool open;
};
int kd_ref_create(struct kd_ref_out *r, const char *path, const struct kd_ref_head *head,
                  const struct kd_corpus *text, const uint8_t *special,
                  const struct kd_mat *lm_head, struct kd_err *err) KD_MUST;
/* ids and margin NULL for a dense layer; stream [samples][hidden]. */
int kd_ref_put_layer(struct kd_ref_out *r, const struct kd_ref_head *head, const int32_t *ids,
                     const float *margin, const float *stream, struct kd_err *err) KD_MUST;
int kd_ref_put(struct kd_ref_out *r, const void *data, int64_t bytes, struct kd_err *err) KD_MUST;
int kd_ref_commit(struct kd_ref_out *r, struct kd_err *err) KD_MUST;
void kd_ref_abort(struct kd_ref_out *r);

struct kd_ref {
    struct kd_map map;
    const struct kd_ref_head *head;
    const int32_t *ids, *doc; /* [rows*cols] */
    const uint8_t *special;   /* [rows*cols] */
    struct kd_mat lm_head;
    const float *hidden; /* [rows*cols][hidden] */
    const uint8_t *layers;
};
int kd_ref_open(struct kd_ref *r, const char *path, struct kd_err *err) KD_MUST;
void kd_ref_close(struct kd_ref *r);
void kd_ref_layer(const struct kd_ref *r, int64_t layer, const int32_t **ids, const float **margin,
                  const float **stream);
/* -1 unless a model of this config can be held against it. */
int kd_ref_fits(const struct kd_ref *r, const struct kd_k3_cfg *cfg, struct kd_err *err) KD_MUST;

/* Names a checkpoint: SHA-256 over the digests of config.json and of every shard, in their order.
 */
int kd_source_id(const struct kd_ckpt *ck, char out[65], struct kd_err *err) KD_MUST;
/* The same from what the receipt in `dir` says of its source; "" where there is none. */
int kd_source_id_receipt(const char *dir, char out[65], struct kd_err *err) KD_MUST;

#endif
