/* The host's side of gpu/k3_ops.h. */
#include "gpu/device.cuh"
#include "gpu/k3_launch.cuh"

using namespace kd_k3;

static int started(struct kd_gpu *g, struct kd_err *err, const char *what)
{
    kd_gpu_mark(g, what);
    return kd_gpu_failed(cudaGetLastError(), err, what);
}

extern "C" int kd_gpu_k3_fits(const struct kd_gpu_k3_shape *s, struct kd_err *err)
{
    const struct {
        const char *what;
        int64_t value, want;
    } exact[] = {{"kda head_dim", s->kda_dim, KD_GPU_K3_DIM},
                 {"short_conv_kernel_size", s->conv, KD_GPU_K3_TAPS},
                 {"qk_nope_head_dim", s->nope, KD_GPU_K3_DIM},
                 {"v_head_dim", s->v_dim, KD_GPU_K3_DIM},
                 {"qk_rope_head_dim", s->rope, KD_GPU_K3_ROPE}};

    for (const auto &e : exact)
        if (e.value != e.want)
            return kd_fail(err, KD_ENOTSUP,
                           "%s %lld: the device's kernels are for %lld; use the CPU", e.what,
                           (long long)e.value, (long long)e.want);
    if (s->kv_lora != 128 && s->kv_lora != 256 && s->kv_lora != 512)
        return kd_fail(err, KD_ENOTSUP,
                       "kv_lora_rank %lld: the device's kernels are for 128, 256 and 512; use the "
                       "CPU",
                       (long long)s->kv_lora);
    const struct {
        const char *what;
        int64_t value;
    } widths[] = {{"hidden_size", s->hidden},
                  {"q_lora_rank", s->q_lora},
                  {"routed_expert_hidden_size", s->latent}};
    for (const auto &w : widths)
        if (w.value % 4 || w.value > KD_GPU_K3_WIDTH)
            return kd_fail(err, KD_ENOTSUP,
                           "%s %lld: the device's kernels are for multiples of 4 up to %d; use the "
                           "CPU",
                           w.what, (long long)w.value, KD_GPU_K3_WIDTH);
    if (s->experts > KD_GPU_K3_EXPERTS || s->topk > KD_GPU_K3_TOPK || s->banks > KD_GPU_K3_BANKS)
        return kd_fail(err, KD_ENOTSUP,
                       "%lld experts, %lld of them a token, %lld residual banks: the device's "
                       "kernels are for up to %d, %d and %d; use the CPU",
                       (long long)s->experts, (long long)s->topk, (long long)s->banks,
                       KD_GPU_K3_EXPERTS, KD_GPU_K3_TOPK, KD_GPU_K3_BANKS);
    return 0;
}

extern "C" int kd_gpu_k3_embed(struct kd_gpu *g, const struct kd_gpu_k3_batch *b, const void *table,
                               bool bf16, int64_t hidden, float *p, struct kd_err *err)
{
    launch_embed(*b, table, bf16, hidden, p, g->stream);
    return started(g, err, "starting the embedding");
}

extern "C" int kd_gpu_k3_mix_run(struct kd_gpu *g, const struct kd_gpu_k3_mix *m,
                                 struct kd_err *err)
{
    launch_mix(*m, kd_device_is_modern(), g->stream);
    return started(g, err, "starting a residual mix");
}

extern "C" int kd_gpu_k3_norm(struct kd_gpu *g, const float *x, const float *w, float eps,
                              int64_t rows, int64_t n, float *out, struct kd_err *err)
{
    launch_norm(x, w, eps, rows, n, out, g->stream);
    return started(g, err, "starting a norm");
}

extern "C" int kd_gpu_k3_round(struct kd_gpu *g, float *x, int64_t count, uint16_t *out,
                               struct kd_err *err)
{
    launch_round(x, count, out, g->stream);
    return started(g, err, "starting to round");
}

extern "C" int kd_gpu_k3_finite(struct kd_gpu *g, const float *x, int64_t count, int32_t *bad,
                                struct kd_err *err)
{
    launch_finite(x, count, bad, g->stream);
    return started(g, err, "starting a check");
}

extern "C" int kd_gpu_k3_situ(struct kd_gpu *g, const float *a, const float *b, float beta,
                              float linear, int64_t count, float *out, struct kd_err *err)
{
    launch_situ(a, b, beta, linear, count, out, g->stream);
    return started(g, err, "starting an activation");
}

extern "C" int64_t kd_gpu_k3_kda_floats(int64_t heads, int64_t rows)
{
    return kda_floats(heads, rows);
}

extern "C" int kd_gpu_k3_kda_run(struct kd_gpu *g, const struct kd_gpu_k3_batch *b,
                                 const struct kd_gpu_k3_kda *k, struct kd_err *err)
{
    if (k->work && kd_gpu_failed(cudaFuncSetAttribute((const void *)kda_chunk_inputs,
                                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                      sizeof(chunk_shared)),
                                 err, "shared memory for KDA"))
        return -1;
    launch_kda(*b, *k, g->stream);
    return started(g, err, "starting KDA");
}

extern "C" int kd_gpu_k3_latents_run(struct kd_gpu *g, const struct kd_gpu_k3_batch *b,
                                     const struct kd_gpu_k3_latents *m, struct kd_err *err)
{
    launch_latents(*b, *m, g->stream);
    return started(g, err, "starting the latents' norms");
}

extern "C" int64_t kd_gpu_k3_mla_floats(bool fast, int64_t heads, int64_t kv_lora, int64_t rows,
                                        int64_t longest, int64_t most, int64_t *parts)
{
    return mla_floats(fast, heads, kv_lora, rows, longest, most, parts);
}

/* 99 KB: a block of a GB10 and of RTX cards has no more. */
static_assert(sizeof(chunk_shared) <= 99 << 10 && sizeof(fast_shared<512, 1>) <= 99 << 10 &&
                  sizeof(fast_shared<512, 3>) <= 99 << 10 &&
                  sizeof(value_shared<512, 4>) <= 99 << 10 && sizeof(expand_shared) <= 99 << 10 &&
                  sizeof(prompt_shared) <= 99 << 10 && sizeof(mla_shared<512>) <= 99 << 10,
              "attention on the smallest device");

/* More shared memory than a block has without asking. */
static int allow(const void *kernel, size_t bytes, struct kd_err *err)
{
    return kd_gpu_failed(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes), err,
        "shared memory for attention");
}

/* On compute capability 9.0, where the kernel has a body: one without takes next to no registers.
 */
static bool wide_is_here(void)
{
    enum { BODY_REGISTERS = 64 };
    struct cudaFuncAttributes a;
    int device = 0, major = 0, minor = 0;

    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    return major == 9 && minor == 0 &&
           cudaFuncGetAttributes(&a, attend_prompt_wide) == cudaSuccess &&
           a.numRegs > BODY_REGISTERS;
}

template <int LORA>
static int attention(struct kd_gpu *g, const struct kd_gpu_k3_batch *b,
                     const struct kd_gpu_k3_mla *m, struct kd_err *err)
{
    const bool wide = m->fast && b->host && b->rows > PROMPT_ROWS && wide_is_here();

    if (m->fast && !m->bf16)
        return kd_fail(err, KD_ENOTSUP, "fast attention with a kv_b that is not BF16");
    if (m->fast
            ? allow((const void *)attend_fast<LORA, 1>, sizeof(fast_shared<LORA, 1>), err) ||
                  allow((const void *)attend_fast<LORA, 3>, sizeof(fast_shared<LORA, 3>), err) ||
                  allow((const void *)value_fast<LORA, 4>, sizeof(value_shared<LORA, 4>), err) ||
                  allow((const void *)expand_pairs<LORA>, sizeof(expand_shared), err) ||
                  allow((const void *)attend_prompt, sizeof(prompt_shared), err) ||
                  (wide && allow((const void *)attend_prompt_wide, WIDE_PROMPT_SHARED, err))
            : allow((const void *)attend_rows<LORA>, sizeof(mla_shared<LORA>), err))
        return -1;
    if (m->fast)
        launch_mla_batch<LORA>(*b, *m, wide, g->stream);
    else
        launch_mla<LORA>(mla_args_of(*b, *m), m->bf16, g->stream);
    return started(g, err, "starting attention");
}

extern "C" int kd_gpu_k3_mla_run(struct kd_gpu *g, const struct kd_gpu_k3_batch *b,
                                 const struct kd_gpu_k3_mla *m, struct kd_err *err)
{
    switch (m->kv_lora) {
    case 128:
        return attention<128>(g, b, m, err);
    case 256:
        return attention<256>(g, b, m, err);
    case 512:
        return attention<512>(g, b, m, err);
    default:
        return kd_fail(err, KD_ENOTSUP, "kv_lora_rank %lld on a device", (long long)m->kv_lora);
    }
}

extern "C" int kd_gpu_k3_route_run(struct kd_gpu *g, const struct kd_gpu_k3_route *r,
                                   struct kd_err *err)
{
    launch_route(*r, g->stream);
    return started(g, err, "starting the router");
}
