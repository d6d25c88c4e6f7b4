/* What a tensor's name means in a Kimi K3: which part of the model, which layer and expert, and the
 * shape and dtype that the config asks for. One table for inspect, planning and accounting. Names
 * are taken with or without the "language_model." prefix; matrices as plain weights, MXFP4 or EXL3;
 * and names of a GGUF, where all experts of a layer are one tensor. */
#ifndef KD_MODEL_K3_NAMES_H
#define KD_MODEL_K3_NAMES_H

#include "model/k3_cfg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kd_k3_kind {
    KD_K3_ROUTED, /* the experts' three matrices */
    KD_K3_KDA,
    KD_K3_MLA,
    KD_K3_ROUTER,
    KD_K3_LATENT, /* routed_expert_down/up_proj and the norm between */
    KD_K3_SHARED,
    KD_K3_DENSE,
    KD_K3_NORMS, /* six vectors a layer: two norms, two pairs of the attention residual */
    KD_K3_EMBED,
    KD_K3_HEAD,
    KD_K3_FINAL, /* last norm and the output's attention residual */
    KD_K3_VISION,
    KD_K3_PROJECTOR,
    KD_K3_UNKNOWN,
    KD_K3_KINDS
};

enum kd_k3_stored {
    KD_K3_PLAIN,  /* values as they are */
    KD_K3_PACKED, /* MXFP4 codes, two a byte */
    KD_K3_SCALE,  /* MXFP4 scales, one byte for 32 values */
    KD_K3_CODES,  /* EXL3 trellis */
    KD_K3_SIDE    /* EXL3's vectors and scalars */
};

enum { KD_K3_ROWS_MAX = 64, KD_K3_DIMS_MAX = 4 };

/* The vision tower's and projector's sizes; blocks 0 when the config has no vision_config. */
struct kd_k3_vision {
    int64_t blocks, hidden, qkv, inter, patch, pos_h, pos_w, merged, text;
};

struct kd_k3_map {
    const struct kd_k3_cfg *cfg;
    bool gguf; /* kd_k3_row_expect counts a GGUF's tensors; names are taken of both kinds */
    struct kd_k3_vision vision;
};

struct kd_k3_name {
    enum kd_k3_kind kind;
    enum kd_k3_stored part;
    int row;    /* of the table: kd_k3_row_name; -1 when unknown */
    int layer;  /* or vision block; -1: neither */
    int expert; /* -1: none */
    /* What the config says: rank -1 where it does not (EXL3 parts, unknown names). */
    int rank;
    int64_t shape[KD_K3_DIMS_MAX];
    const char *dtype; /* as the release stores it; NULL when nothing is expected */
    int64_t params;    /* of the model that this tensor stands for: 0 for scales and side tensors */
    int64_t rows,
        cols; /* the matrix (outputs x inputs) behind packed, scale and EXL3 parts, else 0 */
};

/* The names that a GGUF may have for "self_attn.g_proj.weight" and the like of a layer (-1: of
 * none): start with *at = 0; false when there are no more. Two kinds of layer share some keys. */
bool kd_k3_gguf_name(int *at, int64_t layer, const char *key, char *out, size_t size);

/* cfg must stay. A vision_config out of bounds is an error. */
int kd_k3_map_init(struct kd_k3_map *m, const struct kd_k3_cfg *cfg, const struct kd_json *config,
                   struct kd_err *err) KD_MUST;
/* false, with kind KD_K3_UNKNOWN, for a name that this model does not have. */
bool kd_k3_name_parse(const struct kd_k3_map *m, const char *name, struct kd_k3_name *out);

const char *kd_k3_kind_name(enum kd_k3_kind kind); /* "routed", "kda": JSON keys */
int kd_k3_row_count(void);
const char *kd_k3_row_name(int row); /* "self_attn.q_proj", "block_sparse_moe.experts.*.w1" */
enum kd_k3_kind kd_k3_row_kind(int row);
/* How many matrices or vectors of this row a whole model has in `layer` (-1: outside the layers).
 */
int64_t kd_k3_row_expect(const struct kd_k3_map *m, int row, int64_t layer);
/* The one tensor of a row outside the experts in `layer` (a layer, a vision block, or -1), under
 * the name and as the release stores it; false where there is none. */
bool kd_k3_row_tensor(const struct kd_k3_map *m, int row, int64_t layer, char *name, size_t size,
                      struct kd_k3_name *out);

#endif
