/* The heads of a model, wherever its files are: tensors by name, place and shape, and its config.
 * Only heads are read: of a GGUF set the first bytes of each part, of safetensors each shard's
 * header and config.json. Where there is a shard index it says which files are the shards; else
 * their names and numbers do.
 *
 *     struct kd_heads *h;
 *     if (kd_heads_open(&h, source, err)) ...
 *
 * Immutable once opened. The source is borrowed and must stay. */
#ifndef KD_SLICE_HEADS_H
#define KD_SLICE_HEADS_H

#include "fmt/gguf.h"
#include "fmt/st.h"
#include "model/k3_cfg.h"
#include "model/k3_names.h"
#include "net/source.h"

struct kd_head_tensor {
    const char *name;
    int32_t part;
    int type;             /* GGUF's id; -1 in safetensors */
    int64_t begin, bytes; /* in the part's file */
    int rank;
    int64_t shape[KD_RANK_MAX]; /* outermost first */
    char dtype[16];             /* "BF16", "Q8_0" */
};

struct kd_head_part {
    int file;         /* of the source */
    const char *name; /* there */
    int64_t bytes;
    int64_t head_bytes; /* up to the first data byte */
    int64_t read_bytes; /* of it, to find that out */
    struct kd_buf text; /* a GGUF's head */
    struct kd_st st;
};

struct kd_heads {
    struct kd_source *src;
    bool gguf;
    struct kd_head_part *parts;
    int part_count;
    struct kd_gguf_set set;   /* GGUF: the parsed heads, nothing mapped */
    struct kd_head_tensor *t; /* by part, then place */
    int64_t count;
    struct kd_buf config_text; /* config.json as it is; empty: none */
    struct kd_json *config;    /* of a GGUF: its keys told as one; NULL: none, or not K3's */
    bool k3;
    struct kd_err why; /* k3 false: why not */
    struct kd_k3_cfg cfg;
    struct kd_k3_map map;
    int64_t file_bytes, data_bytes; /* data: of tensors, unpadded */
};

int kd_heads_open(struct kd_heads **out, struct kd_source *src, struct kd_err *err) KD_MUST;
void kd_heads_close(struct kd_heads *h);
/* Parameters of the model that a tensor stands for: packed codes count as the values they hold,
 * EXL3 tiles as the matrix behind them, scales and side vectors as none, padding of A_log as none.
 */
int64_t kd_head_params(const struct kd_heads *h, const struct kd_head_tensor *t);
/* Parameters and bytes by what they are to a token. */
struct kd_heads_sum {
    int64_t params, bytes;
    int64_t routed_params, routed_bytes; /* of experts that tokens choose among */
    int64_t embed_params, embed_bytes;   /* one row of which is read */
    int64_t vision_params, vision_bytes; /* tower and projector: not read for text */
};
void kd_heads_sum(const struct kd_heads *h, struct kd_heads_sum *sum);
/* Parameters that a token of text goes through: all but the input embedding and the experts not
 * chosen. */
int64_t kd_heads_active(const struct kd_heads_sum *sum, int64_t used, int64_t experts);
/* The type that a tensor's bytes are in, whatever the container calls it: "Q1_0", "BF16"; "MXFP4"
 * for packed codes and their scales, "EXL3" for all that belongs to it. */
const char *kd_head_type(const struct kd_head_tensor *t);
/* Types by bytes, the largest first: "MXFP4, BF16, F32". */
void kd_heads_mix(const struct kd_heads *h, char *out, size_t size);
/* A config.json member, looked for in text_config too; NULL: none. */
const struct kd_json *kd_heads_config(const struct kd_heads *h, const char *key);
/* How the model is called: hf's owner/name, else the last component of where it is. */
void kd_heads_name(const struct kd_heads *h, char *out, size_t size);

#endif
