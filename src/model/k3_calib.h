/* One layer's trunk on a device, for a calibration in class `fast` (gpu/encoder.h): a block of rows
 * at a time, each row a sequence of its own from position 0. The stages are those of model/k3.h;
 * their rows stay on the device, where the Hessian takes them (codec/hess.h), and the stream passes
 * in the precision it is stored in. Activations, attention and KDA in closed form are those of a
 * model on a device (gpu/product.h, KD_GPU_FAST), within the bounds of docs/numerics.md.
 *
 *     kd_k3_calib_open(&c, run, &cfg, &L, rows, cols, err);      c NULL: compute on the CPU
 *     for each block:
 *         kd_k3_calib_stream(c, &stream, T, err);
 *         kd_k3_calib_attn_in(c, &x, err); ...                   x is valid until the next stage
 *     kd_k3_calib_close(c);
 *
 * One thread at a time. All pointers but kd_k3_rows.x are host memory. */
#ifndef KD_MODEL_K3_CALIB_H
#define KD_MODEL_K3_CALIB_H

#include "model/k3.h"

struct kd_k3_calib;

/* Rows of a stage. */
struct kd_k3_rows {
    const float *x; /* [T][width], memory of the device that CUDA calls `index` */
    int64_t T, width;
    int index;
};

/* The stream of a block as it is stored: BF16 or fp32 [T][hidden]. */
struct kd_k3_stored {
    bool bf16;
    int64_t banks;
    const void *p, *const *bank;
};

/* L stays and is not changed until the close; blocks have at most `rows` tokens, `cols` a row. *out
 * NULL without an error: the run has no device in class `fast`, or it has no room, or no kernels
 * for these widths or types. */
int kd_k3_calib_open(struct kd_k3_calib **out, const struct kd_run *run,
                     const struct kd_k3_cfg *cfg, struct kd_k3_layer *L, int64_t rows, int64_t cols,
                     struct kd_err *err) KD_MUST;
void kd_k3_calib_close(struct kd_k3_calib *c);
/* Device bytes that it holds for the largest layer of a model whose trunk is BF16 or F32; 0 where
 * the run has no device in class `fast`. */
int kd_k3_calib_bytes(const struct kd_run *run, const struct kd_k3_cfg *cfg, bool f32, int64_t rows,
                      int64_t cols, int64_t *bytes, struct kd_err *err) KD_MUST;

/* The block's stream. */
int kd_k3_calib_stream(struct kd_k3_calib *c, const struct kd_k3_stored *s, int64_t T,
                       struct kd_err *err) KD_MUST;
/* After _stream: the normed mix. */
int kd_k3_calib_attn_in(struct kd_k3_calib *c, struct kd_k3_rows *x, struct kd_err *err) KD_MUST;
/* After _attn_in: MLA's normed query latent; the input of o_proj. */
int kd_k3_calib_q_latent(struct kd_k3_calib *c, struct kd_k3_rows *x, struct kd_err *err) KD_MUST;
int kd_k3_calib_attn_core(struct kd_k3_calib *c, struct kd_k3_rows *x, struct kd_err *err) KD_MUST;
/* After _attn_core: the stream after the attention into `mid`, stored as `bf16` says, and the FFN's
 * normed input of what was stored. */
int kd_k3_calib_attn_out(struct kd_k3_calib *c, bool bf16, void *mid, struct kd_k3_rows *x,
                         struct kd_err *err) KD_MUST;
/* After _stream of `mid` and its banks: the FFN's normed input. */
int kd_k3_calib_ffn_in(struct kd_k3_calib *c, struct kd_k3_rows *x, struct kd_err *err) KD_MUST;
/* After _ffn_in: the inner rows of the dense MLP or the shared experts; latents rounded to BF16,
 * z [T][latent], and routing [T][topk]. */
int kd_k3_calib_inner(struct kd_k3_calib *c, struct kd_k3_rows *x, struct kd_err *err) KD_MUST;
int kd_k3_calib_latents(struct kd_k3_calib *c, uint16_t *z, int32_t *ids, float *weight,
                        struct kd_k3_rows *x, struct kd_err *err) KD_MUST;
/* The input of routed_up for T sums of experts u [T][latent]. */
int kd_k3_calib_latent_out(struct kd_k3_calib *c, const float *u, int64_t T, struct kd_k3_rows *x,
                           struct kd_err *err) KD_MUST;
/* After _inner: the stream after the layer into `next`, stored as `bf16` says. u: NULL in a dense
 * layer. */
int kd_k3_calib_out(struct kd_k3_calib *c, const float *u, bool bf16, void *next,
                    struct kd_k3_rows *x, struct kd_err *err) KD_MUST;

/* Waits for the stage. *finite false: some value of the rows is not. */
int kd_k3_calib_check(struct kd_k3_calib *c, const struct kd_k3_rows *x, bool *finite,
                      struct kd_err *err) KD_MUST;
/* The rows, to the host. */
int kd_k3_calib_fetch(struct kd_k3_calib *c, const struct kd_k3_rows *x, float *to,
                      struct kd_err *err) KD_MUST;

#endif
