/* Kimi K3's text forward pass, in stages, for whoever runs a whole model (generate, chat, serve)
 * and for whoever takes it apart layer by layer (convert, check). Formulas: k3-model specification,
 * section 3, mode F (everything in fp32).
 *
 * A *batch* is T token rows cut into segments; a segment is consecutive tokens of one sequence,
 * with that sequence's state for the layer at hand. Rows are independent except through their
 * segment's state. All arrays are row-major, one row a token. Every stage gives the same bits for
 * any thread count and instruction set. Prefill (segments of more than one token) uses the chunked
 * KDA form at absolute multiples of 64 tokens; single tokens use the recurrence.
 *
 *     kd_k3_layer_load(&L, &cfg, ck, l, &part, err);
 *     kd_k3_layer_forward(&run, &cfg, &L, store, &stream, segs, nseg, &probe, err);
 *
 * Memory: stages allocate scratch of O(T * widest row) and free it; callers pass at most some
 * thousand tokens at a time. */
#ifndef KD_MODEL_K3_H
#define KD_MODEL_K3_H

#include "comm/comm.h"
#include "fmt/ckpt.h"
#include "kern/mat.h"
#include "model/k3_cfg.h"
#include "model/store.h"

/* This rank's share of a tensor-parallel group; NULL or {0, 1} is all of it. Heads, shared, dense
 * and expert widths are cut on 128-blocks. */
struct kd_k3_part {
    int rank, ranks;
};

/* One layer's weights. Matrices point into the checkpoint; vectors are fp32 copies owned here. A
 * user may replace a matrix by another of the same shape (convert does, as it quantizes). */
struct kd_k3_layer {
    int64_t index;
    bool mla, moe;
    int64_t heads;                 /* of this part */
    float *input_norm, *post_norm; /* [hidden] */
    float *attn_res, *mlp_res;     /* norm .* proj folded, [hidden] */
    /* KDA */
    struct kd_mat q, k, v, f_a, f_b, b;
    float *q_conv, *k_conv, *v_conv; /* [channels][conv] */
    float *decay;                    /* exp(A_log), [heads] */
    float *dt_bias;                  /* [heads*dim] */
    float *o_norm;                   /* [dim] */
    /* MLA */
    struct kd_mat q_a, q_b, kv_a, kv_b;
    float *q_a_norm, *kv_a_norm;
    /* both */
    struct kd_mat g, o;
    /* dense MLP or shared experts (gate, up: width x hidden; down) */
    struct kd_mat gate, up, down;
    /* MoE */
    struct kd_mat router;
    float *router_bias; /* [experts] */
    struct kd_mat routed_down, routed_up;
    float *routed_norm; /* [latent] */
    void *owned;        /* block behind the vectors */
    void *owned_kv_b;   /* GGUF: kv_b put together again, else NULL */
};

/* Tensor names: "language_model.model.layers.3.self_attn.q_proj" style, found with or without the
 * prefix. `suffix` such as "self_attn.q_proj.weight". */
int kd_k3_tensor(const struct kd_ckpt *ck, int64_t layer, const char *suffix,
                 const struct kd_tensor **t, struct kd_err *err) KD_MUST;
/* A matrix by key without ".weight" (EXL3, MXFP4, BF16, F32: whatever is stored). layer -1 for
 * globals: "lm_head", "model.embed_tokens". */
int kd_k3_mat(const struct kd_ckpt *ck, int64_t layer, const char *key, int64_t rows, int64_t cols,
              struct kd_mat *out, struct kd_err *err) KD_MUST;
/* -1 naming the first tensor that a model of this config does not have (k3-model, Decision 4). */
int kd_k3_known(const struct kd_k3_cfg *cfg, const struct kd_ckpt *ck, struct kd_err *err) KD_MUST;
int kd_k3_layer_load(struct kd_k3_layer *L, const struct kd_k3_cfg *cfg, const struct kd_ckpt *ck,
                     int64_t layer, const struct kd_k3_part *part, struct kd_err *err) KD_MUST;
void kd_k3_layer_release(struct kd_k3_layer *L);
/* The experts of a checkpoint, mapped. */
int kd_k3_store_open(struct kd_store **s, const struct kd_k3_cfg *cfg, const struct kd_ckpt *ck,
                     const struct kd_k3_part *part, struct kd_err *err) KD_MUST;
void kd_k3_store_close(struct kd_store *s);

/* State of one sequence in one layer. The cache of an MLA layer is cut into pages of KD_K3_PAGE
 * positions; sequences made by kd_k3_seq_copy share the pages that are full. */
enum { KD_K3_PAGE = 64, KD_K3_DRAFT_MAX = 16 };
struct kd_k3_page;
struct kd_k3_state {
    int64_t pos;              /* tokens seen */
    float *S;                 /* KDA: [heads][dim][dim], row = key channel */
    float *conv;              /* KDA: q, k, v: [3][conv-1][channels], oldest first */
    float *undo;              /* KDA, once drafts were fed: what takes them back */
    struct kd_k3_page **page; /* MLA: rows of latent after the norm, then pe */
    int64_t pages, page_cap;  /* held; room in the table */
};
int kd_k3_state_init(struct kd_k3_state *s, const struct kd_k3_cfg *cfg,
                     const struct kd_k3_layer *L, struct kd_err *err) KD_MUST;
void kd_k3_state_release(struct kd_k3_state *s);
/* The cached row [kv_lora + rope] of one position of an MLA layer. */
const float *kd_k3_state_row(const struct kd_k3_state *s, const struct kd_k3_cfg *cfg, int64_t pos);
int64_t kd_k3_state_bytes(const struct kd_k3_cfg *cfg,
                          int64_t context); /* a whole sequence, all layers */

struct kd_k3_seg {
    int64_t first, count; /* rows of the batch */
    struct kd_k3_state *state;
    bool draft; /* tokens one by one, each by the recurrence, and can be taken back */
};

/* The residual stream of T tokens: prefix p and the banks so far (k3-model 3.2). */
struct kd_k3_stream {
    int64_t T, hidden;
    int64_t banks;     /* filled */
    bool started;      /* false right after a bank push: the next attention output replaces p */
    float *p;          /* [T][hidden] */
    float *bank;       /* [banks_max][T][hidden] */
    int64_t bank_rows; /* rows between banks in `bank` (>= T), so a stream can be a window of a
                          larger one */
};

/* Stages of one layer, in order. x, y, ... are caller's arrays. */
int kd_k3_attn_in(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                  const struct kd_k3_stream *s, float *x /* [T][hidden] */,
                  struct kd_err *err) KD_MUST;
/* MLA only: the normed query latent, input of q_b. */
int kd_k3_q_latent(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                   const float *x, int64_t T, float *cq /* [T][q_lora] */,
                   struct kd_err *err) KD_MUST;
/* Everything up to the input of o_proj. Updates the segments' states. */
int kd_k3_attn_core(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                    const float *x, int64_t T, const struct kd_k3_seg *segs, int64_t seg_count,
                    float *y /* [T][heads*v_dim or heads*kda_dim] */, struct kd_err *err) KD_MUST;
/* p = a or p + a, with the bank push of layers l mod block == 0 before it. */
void kd_k3_add_attn(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                    struct kd_k3_stream *s, const float *a);
int kd_k3_ffn_in(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                 const struct kd_k3_stream *s, float *x, struct kd_err *err) KD_MUST;
/* Router: ids[T][topk] in descending biased score (ties: lowest index), w[T][topk]. score may be
 * NULL, else [T][experts] biased scores (for margins). experts_used <= topk limits the number (0:
 * topk). */
int kd_k3_route(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                const float *x, int64_t T, int64_t experts_used, int32_t *ids, float *w,
                float *score, struct kd_err *err) KD_MUST;
/* Leaves each token the fewest experts that have `mass` (0 to 1) of its weights, the heaviest
 * first, and scales their weights to the old sum. Dropped slots are -1, at the end. */
void kd_k3_route_mass(const struct kd_k3_cfg *c, int64_t T, double mass, int32_t *ids, float *w);
/* u[t] = sum of w * expert(z[t]) in ascending expert id, fp32 (before the latent norm). `store`
 * gives the weights; partial sums of ranks are not yet added. */
int kd_k3_experts(const struct kd_run *r, const struct kd_k3_cfg *c, int64_t layer,
                  struct kd_store *store, const float *z, const int32_t *ids, const float *w,
                  int64_t T, float *u, struct kd_err *err) KD_MUST;
/* out = SiTU(gate x, up x): [T][width]; the input of `down`. For shared experts and dense layers.
 */
int kd_k3_mlp_inner(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_mat *gate,
                    const struct kd_mat *up, const float *x, int64_t T, float *out,
                    struct kd_err *err) KD_MUST;
void kd_k3_latent_norm(const struct kd_run *r, const struct kd_k3_cfg *c,
                       const struct kd_k3_layer *L, const float *u, int64_t T,
                       float *out /* input of routed_up */);
void kd_k3_add_ffn(const struct kd_run *r, struct kd_k3_stream *s, const float *f);

/* What a run of a layer may show: any pointer may be NULL. */
struct kd_k3_probe {
    int32_t *ids; /* [T][topk] of this layer */
    float *w;
    float *score; /* [T][experts] */
    int64_t experts_used;
    double expert_mass; /* kd_k3_route_mass; 0: off */
    bool round_latents; /* latents through BF16 once (convert and check of its results) */
};
/* All stages of one layer. comm may be NULL (one rank). */
int kd_k3_layer_forward(const struct kd_run *r, const struct kd_k3_cfg *c,
                        const struct kd_k3_layer *L, struct kd_store *store, struct kd_comm *comm,
                        struct kd_k3_stream *s, const struct kd_k3_seg *segs, int64_t seg_count,
                        const struct kd_k3_probe *probe, struct kd_err *err) KD_MUST;

/* The ends. */
struct kd_k3_ends {
    struct kd_mat embed, head;
    float *norm, *out_res; /* [hidden] */
    void *owned;
};
int kd_k3_ends_load(struct kd_k3_ends *e, const struct kd_k3_cfg *cfg, const struct kd_ckpt *ck,
                    struct kd_err *err) KD_MUST;
void kd_k3_ends_release(struct kd_k3_ends *e);
int kd_k3_stream_init(struct kd_k3_stream *s, const struct kd_k3_cfg *cfg, int64_t T,
                      struct kd_err *err) KD_MUST;
void kd_k3_stream_release(struct kd_k3_stream *s);
int kd_k3_embed(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_ends *e,
                const int32_t *ids, int64_t T, struct kd_k3_stream *s, struct kd_err *err) KD_MUST;
/* h = RMS(mix(p, banks)): the input of lm_head, [T][hidden]. */
int kd_k3_final(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_ends *e,
                const struct kd_k3_stream *s, float *h, struct kd_err *err) KD_MUST;

/* A whole model: opened checkpoint, layers, store; and sequences. */
struct kd_k3_model;
struct kd_k3_seq; /* one sequence's state in all layers */
struct kd_k3_open {
    float eps_latent;     /* 0: the default */
    struct kd_comm *comm; /* NULL: one rank */
    struct kd_k3_part part;
    /* 0: the CPU; N + 1: the whole model, its sequences and all arithmetic on CUDA device N. Not
     * there: drafts (kd_k3_feed); GGUF types but BF16 and F32. Sums run in other orders than the
     * CPU's (docs/numerics.md), and passes of more than KD_K3_DEVICE_FEW rows in others than
     * passes of fewer. */
    int device;
    /* Products as fast as they come, for talking: struct kd_run's `fast` on the CPU, KD_GPU_FAST
     * (gpu/product.h) on a device. Else as conversion and checks take them. */
    bool fast;
};
int kd_k3_open(struct kd_k3_model **out, const char *dir, const struct kd_run *run,
               const struct kd_k3_open *o, struct kd_err *err) KD_MUST;
/* A model of cfg's shape with random weights, on a device alone: for measuring. No checkpoint
 * (kd_k3_ckpt is NULL). */
struct kd_k3_made {
    int64_t layers;                  /* the first so many; 0: all */
    double bpw, trunk_bpw, head_bpw; /* as of a conversion; trunk and head 0: BF16 */
    bool f32;                        /* layers' matrices of the trunk: F32 instead of BF16 */
    uint64_t seed;
};
int kd_k3_make(struct kd_k3_model **out, const struct kd_k3_cfg *cfg, const struct kd_k3_made *made,
               const struct kd_run *run, int device, struct kd_err *err) KD_MUST;
void kd_k3_close(struct kd_k3_model *m);
enum { KD_K3_DEVICE_FEW = 16 };
/* Of a model on a device: bytes that are free there for sequences. */
int kd_k3_room(const struct kd_k3_model *m, int64_t *bytes, struct kd_err *err) KD_MUST;
/* What a step of decoding reads and writes. */
struct kd_k3_traffic {
    int64_t trunk_bytes;    /* weights outside the experts, the head too, once a step */
    int64_t expert_bytes;   /* of one routed expert */
    int64_t state_bytes;    /* of a sequence: KDA states, read and written */
    int64_t position_bytes; /* of a position of a sequence: read of the latent cache */
};
int kd_k3_traffic(const struct kd_k3_model *m, struct kd_k3_traffic *t, struct kd_err *err) KD_MUST;
const struct kd_k3_cfg *kd_k3_config(const struct kd_k3_model *m);
const struct kd_ckpt *kd_k3_ckpt(const struct kd_k3_model *m);
int kd_k3_seq_open(struct kd_k3_seq **out, const struct kd_k3_model *m, struct kd_err *err) KD_MUST;
void kd_k3_seq_close(struct kd_k3_seq *s);
int64_t kd_k3_seq_pos(const struct kd_k3_seq *s);
/* A second sequence in the same state. KDA states and a page that is not full are copied, full
 * pages shared, so a copy at a multiple of KD_K3_PAGE costs the KDA states alone. Each of the two
 * goes on (or is closed) without the other's knowing; they may live on different threads. */
int kd_k3_seq_copy(struct kd_k3_seq **out, const struct kd_k3_seq *from,
                   struct kd_err *err) KD_MUST;
/* Takes back the tail of the last feed, which was a draft: its first `kept` >= 1 tokens stay, with
 * the bits that feeding only those would have left. KDA layers go back to the copy of their state
 * and replay the recurrence on the inputs that were logged. */
int kd_k3_seq_keep(struct kd_k3_seq *s, int64_t kept, struct kd_err *err) KD_MUST;
/* What a sequence holds besides kd_k3_state_bytes once a draft was fed to it. */
int64_t kd_k3_draft_bytes(const struct kd_k3_cfg *cfg);
/* Accounting of what several sequences hold together: counts each page once. by 1: this sequence
 * is added; the bytes (KDA states and pages nobody added so far) that came with it. by -1: it is
 * taken out; the bytes that went. One thread at a time over sequences that share pages. */
int64_t kd_k3_seq_charge(struct kd_k3_seq *s, int by);
/* State to bytes and back, exactly kd_k3_seq_bytes(s): layer by layer the KDA states or the cached
 * rows, fp32 as in memory. `io` returns -1 with err filled to stop. A read sequence stands at
 * `pos`; its bytes are used as they come: whoever stores them checks that they are the ones
 * written. */
int64_t kd_k3_seq_bytes(const struct kd_k3_seq *s);
int kd_k3_seq_write(const struct kd_k3_seq *s,
                    int (*io)(void *ctx, const void *data, int64_t bytes, struct kd_err *err),
                    void *ctx, struct kd_err *err) KD_MUST;
int kd_k3_seq_read(struct kd_k3_seq **out, const struct kd_k3_model *m, int64_t pos,
                   int (*io)(void *ctx, void *data, int64_t bytes, struct kd_err *err), void *ctx,
                   struct kd_err *err) KD_MUST;
/* 64 hex digits that change with the config, the names and shapes of the tensors, and samples of
 * their bytes (some thousand tensors, spread evenly): tells models apart, is no proof of integrity.
 */
int kd_k3_fingerprint(const struct kd_k3_model *m, char out[65], struct kd_err *err) KD_MUST;
int kd_k3_ckpt_fingerprint(const struct kd_ckpt *ck, const struct kd_k3_cfg *cfg, char out[65],
                           struct kd_err *err) KD_MUST;
/* Feeds ids to several sequences at once. want[i] rows of logits: 0 none, 1 last position, 2 all.
 * logits are written one after the other, [vocab] each. trace (may be NULL) gets each layer's
 * routing called as trace(ctx, layer, seq index, position, ids, w). */
struct kd_k3_feed {
    struct kd_k3_seq *seq;
    const int32_t *ids;
    int64_t count;
    int want;
    bool draft; /* at most KD_K3_DRAFT_MAX ids, fed with the bits of one call for each, and
                   kd_k3_seq_keep may take the last of them back */
};
/* Where a device's time goes in a forward pass: in the parts of a layer, in each kernel of them (in
 * both nothing is recorded, and parts begin one after the other), or a step as it is. */
struct kd_gpu_account;
enum kd_k3_account_of { KD_K3_ACCOUNT_STEP, KD_K3_ACCOUNT_PARTS, KD_K3_ACCOUNT_KERNELS };
struct kd_k3_options {
    int64_t experts_used; /* 0: the config's */
    double expert_mass;   /* 0: off; else experts beyond this share of a token's weights are left */
    void (*trace)(void *ctx, int64_t layer, int64_t seq, int64_t pos, const int32_t *ids,
                  const float *w);
    void *trace_ctx;
    void (*after_layer)(void *ctx, int64_t layer,
                        const struct kd_k3_stream *s); /* verify, goldens */
    void *after_ctx;
    struct kd_gpu_account *account; /* gpu/account.h, on a device: is added to; or NULL */
    enum kd_k3_account_of account_of;
};
int kd_k3_forward(struct kd_k3_model *m, const struct kd_k3_feed *feeds, int64_t count,
                  const struct kd_k3_options *o, float *logits, struct kd_err *err) KD_MUST;
/* Memory for `rows` rows of logits: any will do, but a device's copies to this one need no staging,
 * where there is enough of it. Released before the model is closed; NULL is released as nothing. */
int kd_k3_logits_new(const struct kd_k3_model *m, float **out, int64_t rows,
                     struct kd_err *err) KD_MUST;
void kd_k3_logits_free(const struct kd_k3_model *m, float *logits);

#endif
