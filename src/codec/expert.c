#include "codec/expert.h"

#include "base/mem.h"
#include "base/parts.h"
#include "gpu/calib.h"
#include "kern/mat_source.h"

#include <string.h>

/* Scratch of one call: a block of latents, gate, up and inner rows, and the routed rows among them.
 */
struct block {
    float *z, *g, *u, *inner, *routed;
};

static int block_open(struct block *b, const struct kd_layer_inputs *in, int64_t inter,
                      struct kd_err *err)
{
    const char *what = "expert activations";
    int64_t rows = in->block_rows;
    if (kd_mem_new(&b->z, rows * in->latent, sizeof *b->z, what, err) ||
        kd_mem_new(&b->g, rows * inter, sizeof *b->g, what, err) ||
        kd_mem_new(&b->u, rows * inter, sizeof *b->u, what, err) ||
        kd_mem_new(&b->inner, rows * inter, sizeof *b->inner, what, err) ||
        kd_mem_new(&b->routed, in->weight_routed ? rows * inter : 0, sizeof *b->routed, what, err))
        return -1;
    return 0;
}

static void block_release(struct block *b)
{
    kd_mem_free(b->z);
    kd_mem_free(b->g);
    kd_mem_free(b->u);
    kd_mem_free(b->inner);
    kd_mem_free(b->routed);
}

struct kd_expert_room kd_expert_room_of(const struct kd_run *run, const struct kd_layer_inputs *in,
                                        int64_t inter, const struct kd_quant_spec spec[3])
{
    const struct kd_quant_spec *most = spec;
    struct kd_gpu_encoder_facts f;
    for (int i = 1; i < 3; i++)
        if (kd_rate_tile_bytes(spec[i].rate) > kd_rate_tile_bytes(most->rate))
            most = spec + i;
    const int64_t k = (in->latent + 127) / 128 * 128, n = (inter + 127) / 128 * 128;
    const bool hessian = most->recipe.feedback || most->recipe.row_power > 0;
    const struct kd_gpu_source w = {.type = KD_GPU_MAT_EXL3,
                                    .rows = inter,
                                    .cols = in->latent,
                                    .rows_padded = n,
                                    .cols_padded = k,
                                    .rate = most->rate};
    float some; /* only whether there is one is looked at */
    const struct kd_gpu_inner inner = {.w1 = &w,
                                       .w3 = &w,
                                       .T = in->T,
                                       .routed_h = in->weight_routed ? &some : NULL,
                                       .routed = in->weight_routed ? in->T : 0};
    struct kd_expert_room r = {.shared_bytes = (hessian ? 4 * k * k : 0) + 2 * in->T * in->latent,
                               .each_bytes = kd_gpu_inner_bytes(run->encoder, &inner)};
    for (int down = 0; down < 2; down++) {
        const struct kd_gpu_tensor_shape t = {.k = down ? n : k,
                                              .n = down ? k : n,
                                              .rate = most->rate,
                                              .cb = most->cb,
                                              .seam = most->recipe.seam,
                                              .square = true};
        const int64_t bytes = kd_gpu_tensor_bytes(&t);
        r.each_bytes = bytes > r.each_bytes ? bytes : r.each_bytes;
    }
    kd_gpu_encoder_facts(run->encoder, &f);
    int64_t lanes = (f.memory_bytes - r.shared_bytes) / (r.each_bytes > 1 ? r.each_bytes : 1);
    lanes = lanes < 1 ? 1 : lanes > KD_EXPERT_LANES ? KD_EXPERT_LANES : lanes;
    r.lanes = f.devices * (int)lanes;
    return r;
}

/* The weight with which token t goes to this expert; < 0: it does not. */
static float routed_weight(const struct kd_layer_inputs *in, int64_t t, int64_t expert)
{
    for (int64_t k = 0; k < in->topk; k++)
        if (in->ids[t * in->topk + k] == expert)
            return in->w[t * in->topk + k];
    return -1.0f;
}

/* What the down-projection sees for tokens [first, first + T): SiTU(gate, up) of the quantized two.
 */
static int inner_rows(const struct kd_run *run, const struct kd_layer_inputs *in,
                      const struct kd_mat *w1, const struct kd_mat *w3, struct block *b,
                      int64_t first, int64_t T, struct kd_err *err)
{
    const uint16_t *z = in->z + first * in->latent;
    for (int64_t i = 0; i < T * in->latent; i++)
        b->z[i] = kd_bf16_f32(z[i]);
    if (kd_mat_mul(run, w1, b->z, in->latent, T, b->g, w1->rows, err) ||
        kd_mat_mul(run, w3, b->z, in->latent, T, b->u, w1->rows, err))
        return -1;
    run->kern->situ(b->g, b->u, in->situ_beta, in->situ_linear, b->inner, T * w1->rows);
    return 0;
}

/* Rows of the routed tokens times their weight, so that their squares carry w^2. */
static int64_t gather(const struct kd_layer_inputs *in, int64_t expert, struct block *b,
                      int64_t first, int64_t T, int64_t inter, double *weight)
{
    int64_t n = 0;
    for (int64_t t = 0; t < T; t++) {
        float w = routed_weight(in, first + t, expert);
        if (w < 0.0f)
            continue;
        for (int64_t i = 0; i < inter; i++)
            b->routed[n * inter + i] = w * b->inner[t * inter + i];
        *weight += (double)w * (double)w;
        n++;
    }
    return n;
}

/* all <- T * (share of the routed mean + the rest of the all-token mean), in place (Decision 10).
 */
static void blend(struct kd_hess *all, const struct kd_hess *routed, double weight, int64_t n,
                  int64_t k)
{
    double share = (double)n / (double)(n + k);
    float keep = (float)(1.0 - share), add = (float)(share * (double)all->rows / weight);
    for (int64_t i = 0; i < all->k * all->k; i++)
        all->h[i] = keep * all->h[i] + add * routed->h[i];
}

/* Both sums over all tokens, here. *weight: the sum of the routed rows' squared weights. */
static int sums_here(const struct kd_run *run, const struct kd_layer_inputs *in, int64_t expert,
                     const struct kd_mat *w1, const struct kd_mat *w3, struct kd_hess *all,
                     struct kd_hess *routed, double *weight, struct kd_err *err)
{
    struct block b = {0};
    int64_t inter = w1->rows;
    int rc = block_open(&b, in, inter, err);
    for (int64_t first = 0; !rc && first < in->T; first += in->block_rows) {
        int64_t T = in->T - first < in->block_rows ? in->T - first : in->block_rows;
        rc = inner_rows(run, in, w1, w3, &b, first, T, err) ||
             kd_hess_add(run, all, b.inner, inter, T, err);
        if (rc || !in->weight_routed)
            continue;
        int64_t n = gather(in, expert, &b, first, T, inter, weight);
        rc = kd_hess_add(run, routed, b.routed, inter, n, err);
    }
    block_release(&b);
    return rc ? -1 : 0;
}

/* The routed rows and their weights, for a device. */
static int list_routed(const struct kd_layer_inputs *in, int64_t expert, int64_t count,
                       int32_t **row, float **at, double *weight, struct kd_err *err)
{
    int64_t n = 0;
    if (kd_mem_new(row, count, sizeof **row, "routed rows", err) ||
        kd_mem_new(at, count, sizeof **at, "routed rows", err))
        return -1;
    for (int64_t t = 0; t < in->T; t++) {
        float w = routed_weight(in, t, expert);
        if (w < 0.0f)
            continue;
        (*row)[n] = (int32_t)t;
        (*at)[n++] = w;
        *weight += (double)w * (double)w;
    }
    return 0;
}

/* The same on one of the run's devices, unless it has no room (*done false). */
static int sums_there(const struct kd_run *run, const struct kd_layer_inputs *in, int64_t expert,
                      const struct kd_mat *w1, const struct kd_mat *w3, struct kd_hess *all,
                      struct kd_hess *routed, struct kd_expert_out *out, double *weight, bool *done,
                      struct kd_err *err)
{
    const struct kd_gpu_source g = kd_mat_source(w1), u = kd_mat_source(w3);
    struct kd_gpu_inner j = {.w1 = &g,
                             .w3 = &u,
                             .T = in->T,
                             .z = in->z,
                             .latents = in->z_there,
                             .beta = in->situ_beta,
                             .linear = in->situ_linear,
                             .h = all->h};
    int32_t *row = NULL;
    float *at = NULL;
    double sum = 0.0;
    int rc = 0;
    if (in->weight_routed) {
        rc = list_routed(in, expert, out->routed_rows, &row, &at, &sum, err);
        j.routed_h = routed->h;
        j.row = row;
        j.weight = at;
        j.routed = out->routed_rows;
    }
    if (!rc)
        rc = kd_gpu_inner_sums(run->encoder, &j, done, err);
    kd_mem_free(row);
    kd_mem_free(at);
    if (rc || !*done)
        return rc;
    all->rows = in->T;
    routed->rows = j.routed;
    *weight = sum;
    return 0;
}

/* Both sums on one of the run's devices (*there), where the inner rows count as part of them, or
 * here. */
static int inner_sums(const struct kd_run *run, const struct kd_layer_inputs *in, int64_t expert,
                      const struct kd_mat *w1, const struct kd_mat *w3, struct kd_hess *all,
                      struct kd_hess *routed, struct kd_expert_out *out, double *weight,
                      bool *there, struct kd_err *err)
{
    int was = kd_part_enter(KD_PART_HESSIAN), rc = 0;
    *there = false;
    if (run->encoder)
        rc = sums_there(run, in, expert, w1, w3, all, routed, out, weight, there, err);
    kd_part_leave(was);
    return rc || *there ? rc : sums_here(run, in, expert, w1, w3, all, routed, weight, err);
}

int kd_expert_inner_sums(const struct kd_run *run, const struct kd_layer_inputs *in,
                         const struct kd_mat *w1, const struct kd_mat *w3, struct kd_hess *all,
                         bool *there, struct kd_err *err)
{
    struct kd_layer_inputs plain = *in;
    struct kd_hess none = {0};
    struct kd_expert_out out = {0};
    double weight = 0.0;
    plain.weight_routed = false;
    return inner_sums(run, &plain, 0, w1, w3, all, &none, &out, &weight, there, err);
}

static int down_hessian(const struct kd_run *run, const struct kd_layer_inputs *in, int64_t expert,
                        const struct kd_mat *w1, const struct kd_mat *w3, struct kd_hess *all,
                        struct kd_expert_out *out, struct kd_err *err)
{
    struct kd_hess routed = {0};
    double weight = 0.0;
    bool there;
    int rc = kd_hess_open(all, w1->rows, err) ||
             (in->weight_routed && kd_hess_open(&routed, w1->rows, err)) ||
             inner_sums(run, in, expert, w1, w3, all, &routed, out, &weight, &there, err);
    if (!rc)
        kd_hess_close(all);
    out->all_token_hessian =
        in->weight_routed && (out->routed_rows < in->blend_rows / 4 || !(weight > 0.0));
    if (!rc && in->weight_routed && !out->all_token_hessian) {
        kd_hess_close(&routed);
        blend(all, &routed, weight, out->routed_rows, in->blend_rows);
    }
    if (!rc)
        rc = kd_hess_digest(all, out->hess_digest, err);
    kd_hess_release(&routed);
    return rc ? -1 : 0;
}

static int check(const struct kd_mat *w1, const struct kd_mat *w3, const struct kd_mat *w2,
                 const struct kd_layer_inputs *in, struct kd_err *err)
{
    if (w1->cols != in->latent || w3->cols != in->latent || w2->rows != in->latent ||
        w3->rows != w1->rows || w2->cols != w1->rows)
        return kd_fail(
            err, KD_EINVAL,
            "an expert of %lld x %lld, %lld x %lld, %lld x %lld does not fit latents of %lld",
            (long long)w1->rows, (long long)w1->cols, (long long)w3->rows, (long long)w3->cols,
            (long long)w2->rows, (long long)w2->cols, (long long)in->latent);
    if (in->T < 1 || in->block_rows < 1)
        return kd_fail(err, KD_EINVAL, "an expert needs calibration tokens");
    return 0;
}

int kd_expert_quantize(const struct kd_run *run, int64_t expert, const struct kd_mat *w1,
                       const struct kd_mat *w3, const struct kd_mat *w2,
                       const struct kd_layer_inputs *in, const struct kd_quant_spec spec[3],
                       struct kd_expert_out *out, struct kd_err *err)
{
    struct kd_hess h = {0};
    memset(out, 0, sizeof *out);
    if (check(w1, w3, w2, in, err))
        return -1;
    for (int64_t t = 0; t < in->T; t++)
        out->routed_rows += routed_weight(in, t, expert) >= 0.0f;
    out->fallback = out->routed_rows < in->fallback_rows;
    int rc = 0;
    if (kd_quant_tensor(run, w1, in->h_in, &spec[0], &out->w1, err))
        rc = kd_wrap(err, "w1");
    else if (kd_quant_tensor(run, w3, in->h_in, &spec[1], &out->w3, err))
        rc = kd_wrap(err, "w3");
    struct kd_mat q1 = kd_quant_mat(&out->w1), q3 = kd_quant_mat(&out->w3);
    /* A recipe without feedback and activation-aware rows has no use for the Hessian but its
     * figure. */
    if (!rc)
        rc = down_hessian(run, in, expert, &q1, &q3, &h, out, err);
    if (!rc && kd_quant_tensor(run, w2, &h, &spec[2], &out->w2, err))
        rc = kd_wrap(err, "w2");
    kd_hess_release(&h);
    if (rc)
        kd_expert_release(out);
    return rc;
}

void kd_expert_release(struct kd_expert_out *o)
{
    kd_quant_release(&o->w1);
    kd_quant_release(&o->w3);
    kd_quant_release(&o->w2);
    memset(o, 0, sizeof *o);
}
