/* A checkpoint on disk: a folder of safetensors shards with or without an index, mapped read-only,
 * or a folder with config.json and the (maybe gzipped) index alone; or a GGUF file, split set or
 * folder with one, whose keys are told as a config (fmt/gguf_config.h). Names, offsets and sizes
 * are checked against the format's rules (docs/formats/safetensors.md, gguf.md) before anything is
 * used.
 *
 *     struct kd_ckpt *ck;
 *     if (kd_ckpt_open(&ck, "k3-nano", err)) ...
 *     const struct kd_tensor *t = kd_ckpt_find(ck, "language_model.lm_head.weight");
 *
 * Opening reads headers only; data pages come in when touched. Immutable after opening and then
 * thread-safe. Tensor pointers live until kd_ckpt_close. */
#ifndef KD_FMT_CKPT_H
#define KD_FMT_CKPT_H

#include "base/err.h"
#include "base/json.h"
#include "num/block.h"

#include <stdbool.h>
#include <stdint.h>

enum kd_dtype {
    KD_DT_BOOL,
    KD_DT_U8,
    KD_DT_I8,
    KD_DT_F8_E4M3,
    KD_DT_F8_E5M2,
    KD_DT_F8_E8M0,
    KD_DT_I16,
    KD_DT_U16,
    KD_DT_F16,
    KD_DT_BF16,
    KD_DT_I32,
    KD_DT_U32,
    KD_DT_F32,
    KD_DT_I64,
    KD_DT_U64,
    KD_DT_F64,
    KD_DT_OTHER, /* legal in safetensors, of no use to a forward pass; carried as bytes */
    KD_DT_COUNT
};
enum { KD_RANK_MAX = 8 };

struct kd_tensor {
    const char *name;
    enum kd_dtype dtype;
    char dtype_name[16]; /* as written in the file */
    int rank;
    int64_t shape[KD_RANK_MAX];
    int64_t bytes;
    const uint8_t *data; /* aligned to its element; NULL when the shard is not there (index only) */
    int shard;           /* index into the shard list */
    /* GGUF: how its rows (the last dimension) are stored, when dtype is KD_DT_OTHER; else NULL. The
     * shape is outermost first, as in safetensors. */
    const struct kd_block_format *format;
};

struct kd_ckpt;
struct kd_gguf_set;

/* dir may also name one .safetensors file: then there is no config (kd_ckpt_config is NULL).
 * `allow_missing`: shards named by the index may be absent (inspect, verify on part of a model);
 * then tensors of those shards are known by name only (shape unknown, rank -1). */
int kd_ckpt_open(struct kd_ckpt **out, const char *dir, bool allow_missing,
                 struct kd_err *err) KD_MUST;
void kd_ckpt_close(struct kd_ckpt *ck);
const struct kd_tensor *kd_ckpt_find(const struct kd_ckpt *ck,
                                     const char *name); /* NULL: not there */
int64_t kd_ckpt_count(const struct kd_ckpt *ck);
const struct kd_tensor *kd_ckpt_at(const struct kd_ckpt *ck, int64_t i); /* sorted by name */
const struct kd_json *kd_ckpt_config(const struct kd_ckpt *ck);          /* config.json, or NULL */
const char *kd_ckpt_dir(const struct kd_ckpt *ck);
int kd_ckpt_shard_count(const struct kd_ckpt *ck);
const char *kd_ckpt_shard_name(const struct kd_ckpt *ck, int shard);
bool kd_ckpt_shard_present(const struct kd_ckpt *ck, int shard);
/* Its file's bytes, all pieces of a chopped one; -1 when it is not there. */
int64_t kd_ckpt_shard_bytes(const struct kd_ckpt *ck, int shard);
/* The GGUF behind it, or NULL. */
const struct kd_gguf_set *kd_ckpt_gguf(const struct kd_ckpt *ck);
/* metadata.total_size of the index, or -1 without an index. */
int64_t kd_ckpt_index_total(const struct kd_ckpt *ck);
/* For a source of which only a few shards are there at a time: the folder holds each shard's head
 * and a hole of its size. _drop closes a shard's bytes: touching one is a crash, not a zero. _load
 * puts the file at `path` in the shard's place, which must be of its size and have its very head;
 * tensors keep their pointers. Not while another thread uses the shard. */
int kd_ckpt_shard_load(struct kd_ckpt *ck, int shard, const char *path, struct kd_err *err) KD_MUST;
int kd_ckpt_shard_drop(struct kd_ckpt *ck, int shard, struct kd_err *err) KD_MUST;
/* The pages of these tensors' bytes may leave memory (they are clean). */
void kd_ckpt_forget(const struct kd_ckpt *ck, const struct kd_tensor *t);

int kd_dtype_bits(enum kd_dtype d); /* 0 for OTHER */
const char *kd_dtype_name(enum kd_dtype d);

/* Whether a file of this name in a checkpoint's folder is one of the small ones beside the weights
 * that another form of the model takes over: tokenizer, templates, licence. */
bool kd_ckpt_is_beside(const char *name);

#endif
