/* A whole model on one device: weights, the states of its sequences, forward passes (docs/map.md,
 * gpu/). kd_k3_open, kd_k3_forward and kd_k3_seq_* lead here when a model was opened with a device;
 * nothing outside src/model includes this.
 *
 * Nothing of a pass is cut: a token's bits depend on its sequence alone as long as passes have at
 * most KD_GPU_ROWS rows, and above that on no more than their being longer (gpu/product.h). */
#ifndef KD_MODEL_K3_DEVICE_H
#define KD_MODEL_K3_DEVICE_H

#include "gpu/account.h"
#include "gpu/graph.h"
#include "gpu/k3_ops.h"
#include "gpu/product.h"
#include "model/k3_int.h"

enum {
    KD_K3_DEVICE_LOGITS = 64, /* rows of logits on the device at a time */
    KD_K3_DEVICE_GRAPHS = 64, /* kept */
    KD_K3_DEVICE_SLAB = 16    /* pages allocated at a time */
};

/* One layer's weights on the device. */
struct kd_k3_device_layer {
    struct kd_gpu_mat q, k, v, f_a, f_b, b;
    struct kd_gpu_mat q_a, q_b, kv_a;
    struct kd_gpu_mat g, o, gate, up, down, router, routed_down, routed_up;
    const void *kv_b; /* [heads * (nope + v_dim)][kv_lora] */
    bool kv_b_bf16;
    float *input_norm, *post_norm, *attn_res, *mlp_res;
    float *q_conv, *k_conv, *v_conv, *decay, *dt_bias, *o_norm;
    float *q_a_norm, *kv_a_norm, *router_bias, *routed_norm;
    struct kd_gpu_experts *experts;
    void *memory; /* behind all of it but the experts */
    void *experts_memory;
    int64_t
        state; /* KDA: floats from a sequence's states to this layer's; MLA: from a page's start */
};

/* Arrays of a pass, all in device memory. */
struct kd_k3_device_work {
    float *p, *bank, *x, *y,
        *a; /* stream, banks, normed input, attention before o_proj and after */
    float *q, *k, *v, *gate, *z, *fa, *beta; /* KDA; q and gate also MLA's */
    float *chunks;                           /* of KDA; NULL for checks */
    float *cq, *kv, *mla;
    float *inner, *up, *f, *shared; /* MLPs: gate half, then the product; up half; routed, shared */
    float *logits, *latent, *u, *weight;
    int32_t *ids;
    float *h, *head; /* final rows and their logits */
    int64_t mla_floats;
    void *scratch;
    int64_t scratch_bytes;
};

struct kd_k3_device_page {
    struct kd_k3_device_page *next; /* free ones */
    void *at;
    int refs, charged;
};

struct kd_k3_device_graph {
    int64_t rows, wanted, parts, used; /* what it was made for */
    int64_t last;                      /* when it was used */
    struct kd_gpu_graph *graph;
};

struct kd_k3_device {
    struct kd_gpu *g;
    int index;
    const struct kd_k3_model *m;
    enum kd_gpu_class cls;
    struct kd_k3_device_layer *layers; /* of m->layers */
    int64_t layer_count, context;      /* positions of a sequence, at most */
    bool quiet;                        /* weights come without progress of their own */
    const void *embed;
    bool embed_bf16;
    struct kd_gpu_mat head;
    float *norm, *out_res;
    void *ends_memory, *work_memory;
    struct kd_k3_device_work w;
    int64_t rows_max;
    /* What a pass tells the kernels: segments, ids, their segments, wanted rows. */
    unsigned char *batch, *batch_host;
    bool fast;                       /* attention's class: a cache of fp16 (gpu/k3_ops.h) */
    int64_t kda_floats, page_values; /* of one sequence; of one page, all layers */
    void **slab;
    int64_t slabs;
    struct kd_k3_device_page *pages_free;
    void **states_free; /* KDA states of closed sequences */
    int64_t states, states_cap;
    struct kd_k3_device_graph graphs[KD_K3_DEVICE_GRAPHS];
    int64_t runs;
};

/* One sequence's states there. */
struct kd_k3_device_seq {
    float *kda;
    struct kd_k3_device_page **page;
    int64_t pages, page_cap;
    void **table; /* the pages' addresses, on the device */
    int64_t table_cap;
};

/* Fast attention is made for kv_b as it is released. */
static inline bool kd_k3_device_plain_kv_b(const struct kd_k3_layer *L)
{
    return !L->mla || (L->kv_b.type == KD_MAT_BF16 && L->kv_b.ld == L->kv_b.cols);
}

static inline int64_t kd_k3_device_page_bytes(const struct kd_k3_device *d)
{
    return d->page_values * (d->fast ? 2 : 4);
}

/* m is open and stays, its device not yet; needs m->layers, ends and store. */
int kd_k3_device_open(struct kd_k3_device **out, const struct kd_k3_model *m, int index,
                      bool checks, struct kd_err *err) KD_MUST;
void kd_k3_device_close(struct kd_k3_device *d);
/* All weights; says what is needed where there is too little room. */
int kd_k3_device_load(struct kd_k3_device *d, struct kd_err *err) KD_MUST;
/* A layer's weights but its experts' into D->memory; counted alone where `bytes` is not NULL. */
int kd_k3_device_load_trunk(struct kd_k3_device *d, int64_t l, int64_t *bytes,
                            struct kd_err *err) KD_MUST;
/* What closed sequences left, and all pages. */
void kd_k3_device_states_release(struct kd_k3_device *d);

/* k3_device_layer.c; l: of d->layers, not the layer's index. */
/* -1 naming the width that no kernel is built for. */
int kd_k3_device_fits(const struct kd_k3_model *m, struct kd_err *err) KD_MUST;
/* Where each layer's state lies in a sequence's. */
void kd_k3_device_place_states(struct kd_k3_device *d);
/* Bytes of the work space, once the shapes of all matrices stand in d->layers; its parts, in
 * d->work_memory. */
int64_t kd_k3_device_work_bytes(struct kd_k3_device *d);
void kd_k3_device_work_place(struct kd_k3_device *d);

/* A batch on its way through the layers. */
struct kd_k3_device_at {
    struct kd_k3_device *d;
    struct kd_gpu_k3_batch b;
    int64_t parts; /* of attention */
    int banks;     /* filled so far */
};
/* Products that run side by side; FFN_IN is LATENT_IN and MLP_IN. */
enum kd_k3_device_list {
    KD_K3_KDA_IN,
    KD_K3_KDA_GATE,
    KD_K3_MLA_IN,
    KD_K3_MLA_QUERY,
    KD_K3_ATTN_OUT,
    KD_K3_LATENT_IN,
    KD_K3_MLP_IN,
    KD_K3_FFN_IN,
    KD_K3_FFN_OUT,
    KD_K3_LISTS
};
int kd_k3_device_mul(const struct kd_k3_device_at *at, int64_t l, enum kd_k3_device_list list,
                     struct kd_err *err) KD_MUST;
/* x = the norm of the mix, after what the half layer before it left was added. */
int kd_k3_device_mix(struct kd_k3_device_at *at, struct kd_gpu_k3_mix m,
                     struct kd_err *err) KD_MUST;
/* From x to the input of o_proj; MLA: its normed query latent alone. */
int kd_k3_device_attention(const struct kd_k3_device_at *at, int64_t l, struct kd_err *err) KD_MUST;
int kd_k3_device_q_latent(const struct kd_k3_device_at *at, int64_t l, struct kd_err *err) KD_MUST;
/* After LATENT_IN; after the experts; after MLP_IN. */
int kd_k3_device_route(const struct kd_k3_device_at *at, int64_t l, int64_t used, double mass,
                       struct kd_err *err) KD_MUST;
int kd_k3_device_latent_norm(const struct kd_k3_device_at *at, int64_t l,
                             struct kd_err *err) KD_MUST;
int kd_k3_device_mlp(const struct kd_k3_device_at *at, int64_t l, struct kd_err *err) KD_MUST;

int kd_k3_device_seq_open(struct kd_k3_device_seq **out, struct kd_k3_device *d,
                          struct kd_err *err) KD_MUST;
void kd_k3_device_seq_close(struct kd_k3_device_seq *s, struct kd_k3_device *d);
/* Pages for positions up to `rows`. The last page, which is not full, is always this sequence's
 * own. */
int kd_k3_device_seq_reserve(struct kd_k3_device_seq *s, struct kd_k3_device *d, int64_t rows,
                             struct kd_err *err) KD_MUST;
int kd_k3_device_seq_copy(struct kd_k3_device_seq *to, const struct kd_k3_device_seq *from,
                          int64_t pos, struct kd_k3_device *d, struct kd_err *err) KD_MUST;
/* kd_k3_seq_charge; _write (to io) and _read (from io; the pages must be there). */
int64_t kd_k3_device_seq_charge(struct kd_k3_device_seq *s, const struct kd_k3_device *d, int by);
int kd_k3_device_seq_io(struct kd_k3_device_seq *q, struct kd_k3_device *d, int64_t pos, bool write,
                        int (*io)(void *ctx, void *data, int64_t bytes, struct kd_err *err),
                        void *ctx, struct kd_err *err) KD_MUST;

/* Several threads may use a model's sequences, one at a time what is on the device. */
static inline void kd_k3_enter(const struct kd_k3_model *m)
{
    if (m->dev)
        kd_gpu_lock(m->dev->g);
}
static inline void kd_k3_leave(const struct kd_k3_model *m)
{
    if (m->dev)
        kd_gpu_unlock(m->dev->g);
}

/* One pass: tokens of some sequences, at most rows_max of them. */
struct kd_k3_device_pass {
    const struct kd_k3_seg *segs; /* first and count alone */
    struct kd_k3_seq *const *seq; /* [seg_count] */
    int64_t seg_count, rows;
    const int32_t *ids;
    const int32_t *wanted; /* rows whose logits are asked for, ascending */
    const int64_t *place;  /* and where they go */
    int64_t wanted_count;
    float *logits;
    const struct kd_k3_options *o;
    int32_t *topk; /* routing of a layer, for whoever watches: NULL, or [rows][topk] */
    float *weight;
    void (*routed)(void *ctx, int64_t layer); /* topk and weight are filled */
    void *ctx;
};
int kd_k3_device_run(struct kd_k3_device *d, const struct kd_k3_device_pass *p,
                     struct kd_err *err) KD_MUST;

#endif
