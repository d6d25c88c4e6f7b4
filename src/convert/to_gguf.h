/* A safetensors K3 as GGUF v3, as llama.cpp's loader of "kimi-k3" wants it (k3-model 6.2): MXFP4
 * experts are repacked and nothing of them is lost, the trunk is written in one type, norms, router
 * and convolutions as F32. Files are laid out before any data is written; each part of a split set
 * appears under its name when it is whole. Ask for `resume` to keep the parts that are there. */
#ifndef KD_CONVERT_TO_GGUF_H
#define KD_CONVERT_TO_GGUF_H

#include "fmt/ckpt.h"
#include "kern/mat.h"
#include "model/k3_cfg.h"

#include <stdbool.h>

struct kd_to_gguf {
    int trunk_type;      /* KD_GT_BF16, KD_GT_F32 or KD_GT_Q8_0 */
    int64_t split_bytes; /* data of a part at most, unless one tensor is larger; 0: one file */
    const char *chat_template; /* a file, or NULL: what the source has */
    bool resume, dry;
    bool (*stopped)(void);
};

/* What was (or, dry, would be) written. */
struct kd_to_gguf_done {
    int64_t parts, tensors, parameters, data_bytes, file_bytes;
    int64_t mxfp4_bytes, trunk_bytes, f32_bytes; /* of data_bytes */
    char path[4096];                             /* of the first part */
};

/* src: the folder ck was opened from (for the tokenizer). dst: a name that ends in .gguf, or a
 * folder. */
int kd_to_gguf(const struct kd_ckpt *ck, const struct kd_k3_cfg *cfg, const char *src,
               const char *dst, const struct kd_to_gguf *set, const struct kd_run *run,
               struct kd_to_gguf_done *done, struct kd_err *err) KD_MUST;

#endif
