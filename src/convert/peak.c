/* The most anonymous memory a conversion takes, known before it starts. Every large block is
 * counted where it is taken: Hessians and the quantizer's working set grow with the square of a
 * tensor's inputs, stage scratch with the block's tokens. Maps (source, streams, units) are the
 * page cache's. */
#include "base/mem.h"
#include "convert/job.h"

#include <string.h>

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* kd_quant_tensor's working set (codec/quant.c) for a tensor of k inputs, n outputs, padded. */
static int64_t quantizer(const struct kd_job *j, int64_t k, int64_t n)
{
    int64_t threads = kd_pool_threads(j->run->pool);
    int64_t square = j->recipe.feedback || j->recipe.refit ? 4 * k * k : 0;
    int64_t panels = most(4 * 512 * k, 4 * 128 * n);
    return 12 * k * n + square + panels + k * n + threads * (int64_t)kd_trellis_scratch_bytes();
}

/* Rows of `width` floats that the stages around a tensor hold for a block. */
static int64_t block(const struct kd_job *j, int64_t width)
{
    return 4 * j->block_T * width;
}

static int64_t trunk_peak(const struct kd_job *j, const struct kd_out_tensor *t)
{
    const struct kd_k3_cfg *c = &j->cfg;
    int64_t k = kd_exl3_pad(t->cols), n = kd_exl3_pad(t->rows);
    int64_t hessian = j->recipe.feedback || j->recipe.row_power > 0 ? 4 * k * k : 0;
    /* The widest stage is the attention's core: q, k, v, gates, decay and output at once. */
    int64_t channels = c->kda_heads * c->kda_dim + c->heads * (c->nope + c->rope + c->v_dim);
    int64_t stage = block(j, k + c->hidden) + block(j, 8 * channels);
    return hessian + most(quantizer(j, k, n), stage);
}

static int64_t expert_peak(const struct kd_job *j)
{
    const struct kd_k3_cfg *c = &j->cfg;
    int64_t latent = kd_exl3_pad(c->latent), inter = kd_exl3_pad(c->moe_inter);
    int64_t hessian = j->recipe.feedback || j->recipe.row_power > 0 ? 4 * latent * latent : 0;
    int64_t own =
        kd_expert_scratch_bytes(c->latent, c->moe_inter, 512, kd_pool_threads(j->run->pool));
    int64_t quant =
        most(quantizer(j, latent, inter), quantizer(j, inter, latent) + 8 * inter * inter);
    int64_t units = c->experts * (int64_t)sizeof(struct kd_unit);
    /* The forward pass over a block: routed rows gathered, gate, up, inner and output. */
    int64_t forward = block(j, c->latent * (2 + c->topk) + 3 * c->moe_inter * c->topk);
    return hessian + units + most(most(own, quant), forward);
}

int64_t kd_job_peak_bytes(const struct kd_job *j)
{
    const struct kd_k3_cfg *c = &j->cfg;
    int64_t peak = 0;
    for (int64_t i = 0; i < j->rates.count; i++)
        if (j->rates.t[i].quantized && j->rates.t[i].expert < 0)
            peak = most(peak, trunk_peak(j, &j->rates.t[i]));
    if (j->rates.expert_tensors)
        peak = most(peak, expert_peak(j));
    /* Held throughout: the plan, the calibration ids, the window of a block, and what is there now
     * (names and headers of the source, tokenizer, code). */
    int64_t window = block(j, c->hidden * (1 + kd_k3_banks(c)));
    return kd_mem_anon_bytes() + (j->win.p ? 0 : window) + peak;
}
