/* The most anonymous memory a conversion takes, known before it starts. Every large block is
 * counted where it is taken, and what is held at the same time is added: Hessians and the
 * quantizer's working set grow with the square of a tensor's inputs, the stages' scratch with the
 * block's tokens. Maps (source, streams, units) are the page cache's. */
#include "base/mem.h"
#include "convert/job.h"
#include "fmt/exl3_file.h"
#include "gpu/calib.h"
#include "model/k3_calib.h"

#include <string.h>

/* Tokens that share one decoding of EXL3 codes; (token, expert) pairs of one wave of experts. */
enum { EXL3_TOKENS = 256, WAVE_PAIRS = 1024, EXPERT_BLOCK_ROWS = 512 };
/* Tiles that a thread searches at once, and so many such pieces of a row of tiles a thread that its
 * threads are busy nearly all the time. */
enum { PIECE_TILES = 4, PIECES = 3 };
/* What a device's driver takes of the host's memory as kernels are first used and copies staged. */
enum { DRIVER_BYTES = 64 << 20 };

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t threads_of(const struct kd_job *j)
{
    return kd_pool_threads(j->run->pool);
}

static int64_t lanes_of(const struct kd_job *j)
{
    return j->lanes > 1 ? j->lanes : 1;
}

/* Threads of one lane, at most. */
static int64_t lane_threads(const struct kd_job *j)
{
    return (threads_of(j) + lanes_of(j) - 1) / lanes_of(j);
}

/* Of k inputs, where something that reads them is quantized. */
static int64_t hessian(const struct kd_job *j, int64_t k)
{
    k = kd_exl3_pad(k);
    return j->recipe.feedback || j->recipe.row_power > 0 ? 4 * k * k : 0;
}

static int64_t trunk_hessian(const struct kd_job *j, int64_t k)
{
    return j->rates.wish.trunk_bpw > 0 ? hessian(j, k) : 0;
}

/* kd_quant_tensor's working set (codec/quant.c) for a tensor of k inputs and n outputs. */
static int64_t quantizer(const struct kd_job *j, int64_t k, int64_t n, unsigned rate16,
                         int64_t threads)
{
    k = kd_exl3_pad(k);
    n = kd_exl3_pad(n);
    int64_t square = j->recipe.feedback || j->recipe.refit ? 4 * k * k : 0;
    int64_t panels = most(4 * 512 * k, 4 * 128 * n);
    if (j->run->encoder) /* the rest lies on the device: tiles' energies, sums of LDLQ, codes */
        return k * n / 32 + k * n / 128 + 64 * (k + n) + k * n * (int64_t)rate16 / 128;
    return 12 * k * n + square + panels + k * n * (int64_t)rate16 / 128 +
           threads * ((int64_t)kd_trellis_scratch_bytes() + 4 * KD_TILE_WEIGHTS * 6);
}

/* Rows of `width` floats for a block. */
static int64_t block(const struct kd_job *j, int64_t width)
{
    return 4 * j->block_T * width;
}

/* `count` products at once of `rows` activations with matrices of k inputs (kern/mat.c): as many as
 * there are threads run side by side, fewer one after the other. EXL3 rotates the activations and
 * keeps a block of outputs for each thread. */
static int64_t products(int64_t threads, int64_t rows, int64_t k, int64_t count)
{
    int64_t tokens = rows < EXL3_TOKENS ? rows : EXL3_TOKENS;
    return (count >= threads ? threads : 1) * 4 * (rows * kd_exl3_pad(k) + threads * tokens * 128);
}

static int64_t product(const struct kd_job *j, int64_t rows, int64_t k, int64_t count)
{
    return products(threads_of(j), rows, k, count);
}

/* The same with trunk matrices, which may stay as stored. */
static int64_t trunk_product(const struct kd_job *j, int64_t k, int64_t count)
{
    return j->rates.wish.trunk_bpw > 0 ? product(j, j->block_T, k, count) : 0;
}

/* The attention's core over a block, its inputs made anew and its outputs kept (rows_attn_core). */
static int64_t attention(const struct kd_job *j, bool mla)
{
    const struct kd_k3_cfg *c = &j->cfg;
    int64_t ch = c->kda_heads * c->kda_dim, vw = c->heads * c->v_dim;
    int64_t rows = j->text->cols ? j->block_T / j->text->cols : 1;
    int64_t out = mla ? vw : ch, inside, states;
    if (j->trunk_bytes)
        return trunk_hessian(j, out);
    if (mla) {
        int64_t cache = c->kv_lora + c->rope;
        inside = c->q_lora + c->heads * (c->nope + c->rope) + vw + cache;
        states = block(j, cache);
    } else {
        inside = 5 * ch + c->kda_dim + c->kda_heads;
        states = 4 * rows * ch * (c->kda_dim + 3 * c->conv);
    }
    return trunk_hessian(j, out) + block(j, out + c->hidden + inside) + states +
           trunk_product(j, c->hidden, mla ? 2 : 4);
}

/* Stages of the feed-forward part: inputs, inner rows, the layer's output. */
static int64_t feed_forward(const struct kd_job *j, bool mla, bool moe)
{
    const struct kd_k3_cfg *c = &j->cfg;
    int64_t inner = moe ? c->moe_inter * c->shared : c->dense_inter, H = c->hidden;
    int64_t heads = mla ? c->heads * c->v_dim : c->kda_heads * c->kda_dim;
    if (j->trunk_bytes)
        return most(trunk_hessian(j, H), trunk_hessian(j, inner));
    int64_t in = trunk_hessian(j, H) + block(j, 2 * H) + trunk_product(j, heads, 1);
    int64_t gate_up = block(j, H + inner) + trunk_product(j, H, 2);
    int64_t mid = trunk_hessian(j, inner) + block(j, inner) + gate_up;
    int64_t out = block(j, most(inner, moe ? c->latent : 0) + 2 * H) +
                  most(gate_up, trunk_product(j, inner, 1));
    return most(in, most(mid, out));
}

/* kd_k3_experts over T rows. */
static int64_t experts_of_rows(const struct kd_job *j, int64_t T)
{
    const struct kd_k3_cfg *c = &j->cfg;
    int64_t pairs = T * c->topk, wide = kd_exl3_pad(most(c->latent, c->moe_inter));
    int64_t threads = threads_of(j);
    if (pairs > most(WAVE_PAIRS, T))
        pairs = most(WAVE_PAIRS, T);
    /* Activations of all pairs are rotated at most once at a time. */
    return 8 * pairs * (c->latent + c->moe_inter) + 4 * pairs * wide +
           4 * threads * threads * EXL3_TOKENS * 128 + 12 * T * c->topk;
}

/* The samples' matrices of recipe auto: four experts by two recipes. */
static int64_t samples(const struct kd_job *j, unsigned rate16)
{
    return j->set.recipe == KD_RECIPE_AUTO
               ? 24 * kd_exl3_pad(j->cfg.latent) * kd_exl3_pad(j->cfg.moe_inter) * (int64_t)rate16 /
                     128
               : 0;
}

/* Latents and routing; the comparison of recipe auto; the sum of the layer's experts, block by
 * block or, with devices, from lists of all tokens' experts. */
static int64_t experts_forward(const struct kd_job *j, unsigned rate16)
{
    const struct kd_k3_cfg *c = &j->cfg;
    int64_t rows = block(j, c->hidden + c->latent) +
                   most(block(j, 2 * c->experts), trunk_product(j, c->hidden, 1));
    int64_t latents = hessian(j, c->latent) + (j->trunk_bytes ? 0 : rows);
    int64_t sum = block(j, c->latent) + experts_of_rows(j, j->block_T) +
                  (j->run->encoder ? 8 * j->T * c->topk : 0);
    int64_t held = kd_job_held_rows(j);
    if (j->set.recipe != KD_RECIPE_AUTO)
        return most(latents, sum);
    int64_t compared = samples(j, rate16) + hessian(j, c->latent) +
                       held * (16 * c->latent + 8 * c->topk) + experts_of_rows(j, held);
    return most(latents, most(sum, compared));
}

/* An expert in its lane: gate and up from the layer's Hessian, then the inner rows' own for down.
 */
static int64_t expert_alone(const struct kd_job *j, unsigned rate16, int64_t threads)
{
    const struct kd_k3_cfg *c = &j->cfg;
    int64_t inter = c->moe_inter, own = hessian(j, inter) * (j->set.weight_routed ? 2 : 1);
    int64_t codes = 2 * kd_exl3_pad(c->latent) * kd_exl3_pad(inter) * (int64_t)rate16 / 128;
    int64_t inner = own + 4 * EXPERT_BLOCK_ROWS * (c->latent + 4 * inter) +
                    products(threads, EXPERT_BLOCK_ROWS, c->latent, 1);
    int64_t down = hessian(j, inter) + quantizer(j, inter, c->latent, rate16, threads);
    return most(quantizer(j, c->latent, inter, rate16, threads), codes + most(inner, down));
}

/* Those of all lanes. */
static int64_t expert(const struct kd_job *j, unsigned rate16)
{
    return hessian(j, j->cfg.latent) + samples(j, rate16) +
           lanes_of(j) * expert_alone(j, rate16, lane_threads(j));
}

/* The layer's vectors and its kv_b, the table of its experts' units. */
static int64_t layer_held(const struct kd_job *j, bool mla, bool moe)
{
    const struct kd_k3_cfg *c = &j->cfg;
    return (mla ? 2 * c->heads * (c->nope + c->v_dim) * c->kv_lora : 0) +
           (moe ? c->experts * (int64_t)sizeof(struct kd_unit) : 0);
}

static unsigned experts_rate(const struct kd_job *j)
{
    unsigned rate16 = 16;
    for (int64_t i = 0; i < j->rates.count; i++)
        if (j->rates.t[i].quantized && j->rates.t[i].expert >= 0 && j->rates.t[i].rate16 > rate16)
            rate16 = j->rates.t[i].rate16;
    return rate16;
}

static int64_t layers_peak(const struct kd_job *j)
{
    const struct kd_k3_cfg *c = &j->cfg;
    unsigned rate16 = experts_rate(j);
    int64_t peak = 0;
    for (int64_t i = 0; i < j->rates.count; i++) {
        const struct kd_out_tensor *t = &j->rates.t[i];
        if (!t->quantized || t->expert >= 0)
            continue;
        int64_t held = t->layer < 0 ? block(j, c->hidden) : 0;
        int64_t one = quantizer(j, t->cols, t->rows, t->rate16, threads_of(j));
        if (j->run->encoder && t->layer >= 0)
            one *= KD_JOB_BESIDE;
        peak = most(peak, hessian(j, t->cols) + most(held, one));
    }
    for (int64_t l = 0; l < c->layers; l++) {
        bool mla = c->mla[l], moe = l >= c->dense_layers;
        int64_t stages = most(attention(j, mla), feed_forward(j, mla, moe));
        if (moe)
            stages = most(stages, experts_forward(j, rate16));
        if (moe && j->rates.expert_tensors)
            stages = most(stages, expert(j, rate16));
        peak = most(peak, layer_held(j, mla, moe) + stages);
    }
    return peak;
}

int64_t kd_job_peak_bytes(const struct kd_job *jobs, int count)
{
    int64_t peak = 0, held = kd_mem_anon_bytes();
    for (int v = 0; v < count; v++) {
        const struct kd_job *j = &jobs[v];
        if (j->finished)
            continue;
        peak = most(peak, layers_peak(j));
        /* Each rate keeps its window; none is touched yet when this is asked. */
        held += block(j, j->cfg.hidden * (1 + kd_k3_banks(&j->cfg)));
    }
    struct kd_gpu_encoder_facts f = {0};
    if (count && jobs[0].run->encoder) {
        kd_gpu_encoder_facts(jobs[0].run->encoder, &f);
        held += f.host_bytes + DRIVER_BYTES;
    }
    return held + peak;
}

/* On a device: a tensor of the plan. */
static int64_t on_device(const struct kd_job *j, const struct kd_out_tensor *t)
{
    struct kd_gpu_tensor_shape s = {.k = kd_exl3_pad(t->cols),
                                    .n = kd_exl3_pad(t->rows),
                                    .rate = kd_rate_from16(t->rate16),
                                    .cb = j->rates.wish.cb,
                                    .seam = j->recipe.seam,
                                    .square = t->expert >= 0 || hessian(j, t->cols) > 0};
    return kd_gpu_tensor_bytes(&s);
}

/* The experts' shared Hessian, which stays there while each of them is at work. (A trunk tensor's
 * is its own or shared, never both.) */
static int64_t latent_on_device(const struct kd_job *j)
{
    return hessian(j, j->cfg.latent);
}

static void device_bytes(const struct kd_job *j, int64_t *trunk, int64_t *expert)
{
    for (int64_t i = 0; !j->finished && i < j->rates.count; i++) {
        const struct kd_out_tensor *t = &j->rates.t[i];
        int64_t *to = t->expert >= 0 ? expert : trunk;
        if (t->quantized)
            *to = most(*to, on_device(j, t));
    }
}

/* Of the trunk, a matrix that is multiplied as it is stored. (Those of other types than the two are
 * not multiplied on a device.) */
static bool is_f32(const struct kd_out_tensor *t)
{
    return !strcmp(t->dtype_name, "F32");
}
static bool trunk_matrix(const struct kd_out_tensor *t)
{
    return t->expert < 0 && t->rows > 0; /* vectors have none */
}

/* The calibration beside it, which needs none of it: a sum of x^T x that grows, and products of a
 * block's rows. */
static int64_t stage_on_device(const struct kd_job *j)
{
    int64_t peak = 0;
    for (int64_t i = 0; !j->finished && i < j->rates.count; i++) {
        const struct kd_out_tensor *t = &j->rates.t[i];
        const struct kd_gpu_source w = {.type = is_f32(t) ? KD_GPU_MAT_F32 : KD_GPU_MAT_BF16,
                                        .rows = t->rows,
                                        .cols = t->cols,
                                        .ld = t->cols};
        if (trunk_matrix(t))
            peak = most(
                peak,
                most(kd_gpu_calib_mul_bytes(j->run->encoder, &w, j->block_T), j->trunk_bytes) +
                    (hessian(j, t->cols) ? kd_gpu_sums_bytes(j->run->encoder, kd_exl3_pad(t->cols))
                                         : 0));
    }
    return peak;
}

int kd_job_find_trunk(struct kd_job *j, struct kd_err *err)
{
    struct kd_gpu_encoder_facts f;
    int64_t bytes = 0;
    bool f32 = false;
    if (!j->run->encoder)
        return 0;
    for (int64_t i = 0; i < j->rates.count; i++)
        f32 |= trunk_matrix(&j->rates.t[i]) && j->rates.t[i].layer >= 0 && is_f32(&j->rates.t[i]);
    /* Some in F32 count as all of it; the largest of either form, as their kernels differ. */
    if (kd_k3_calib_bytes(j->run, &j->cfg, false, j->block_T, j->text->cols, &j->trunk_bytes,
                          err) ||
        (f32 && kd_k3_calib_bytes(j->run, &j->cfg, true, j->block_T, j->text->cols, &bytes, err)))
        return -1;
    j->trunk_bytes = most(j->trunk_bytes, bytes);
    kd_gpu_encoder_facts(j->run->encoder, &f);
    if (stage_on_device(j) > f.memory_bytes)
        j->trunk_bytes = 0;
    return 0;
}

/* Experts in their lanes. */
static struct kd_expert_room experts_on_device(const struct kd_job *j)
{
    const struct kd_layer_inputs in = {
        .T = j->T_hess, .latent = j->cfg.latent, .weight_routed = j->set.weight_routed};
    const struct kd_quant_spec s = {.rate = kd_rate_from16(experts_rate(j)),
                                    .cb = j->rates.wish.cb,
                                    .recipe = j->recipe},
                               spec[3] = {s, s, s};
    return kd_expert_room_of(j->run, &in, j->cfg.moe_inter, spec);
}

int64_t kd_job_device_bytes(const struct kd_job *jobs, int count)
{
    int64_t peak = 0;
    for (int v = 0; v < count && jobs[v].run->encoder; v++) {
        struct kd_gpu_encoder_facts f;
        int64_t trunk = 0, expert = 0;
        kd_gpu_encoder_facts(jobs[v].run->encoder, &f);
        device_bytes(&jobs[v], &trunk, &expert);
        int64_t lanes = (lanes_of(&jobs[v]) + f.devices - 1) / f.devices;
        if (expert) {
            const struct kd_expert_room r = experts_on_device(&jobs[v]);
            expert = r.shared_bytes + lanes * r.each_bytes;
        }
        trunk *= KD_JOB_BESIDE;
        peak = most(peak, most(most(trunk, stage_on_device(&jobs[v])), expert));
    }
    return peak;
}

int64_t kd_job_device_least(const struct kd_job *jobs, int count)
{
    int64_t least = 0;
    for (int v = 0; v < count && jobs[v].run->encoder; v++) {
        int64_t trunk = 0, expert = 0;
        device_bytes(&jobs[v], &trunk, &expert);
        least = most(least, most(trunk, latent_on_device(&jobs[v]) + expert));
    }
    return least;
}

/* As many as the devices like and have room for; beyond one for each thread only as many as half of
 * this machine's free memory has room for. */
static int64_t device_lanes(const struct kd_job *j)
{
    int64_t lanes = experts_on_device(j).lanes;
    int64_t here =
        most(threads_of(j), kd_mem_available_bytes() / 2 / expert_alone(j, experts_rate(j), 1));
    return here < lanes ? here : lanes;
}

int kd_job_lanes(const struct kd_job *j, int64_t wish)
{
    const struct kd_k3_cfg *c = &j->cfg;
    int64_t threads = threads_of(j), narrow = c->latent < c->moe_inter ? c->latent : c->moe_inter;
    int64_t busy = kd_exl3_pad(narrow) / KD_TILE / PIECE_TILES / PIECES, n = wish;
    if (!c->experts)
        return 1;
    if (!n)
        n = j->run->encoder ? device_lanes(j) : busy < 1 ? threads : (threads + busy - 1) / busy;
    if (!j->run->encoder && n > threads)
        n = threads;
    return n > KD_FARM_LANES ? KD_FARM_LANES : (int)n;
}
