/* Which kernels a call of gpu/k3_ops.h starts, in which grids. STREAM: the device's, or anything
 * where kernels run on the CPU. */
#ifndef KD_GPU_K3_LAUNCH_CUH
#define KD_GPU_K3_LAUNCH_CUH

#include "gpu/k3_mla.cuh"

namespace kd_k3
{

template <class STREAM> void launch_mix(const kd_gpu_k3_mix &m, [[maybe_unused]] STREAM stream)
{
    const int banks = m.query ? m.banks + (m.push ? 1 : 0) : 0;

    if (banks < 4)
        KD_LAUNCH((mix_rows<4>), m.rows, MIX_THREADS, sizeof(mix_shared), stream, m);
    else if (banks < 9)
        KD_LAUNCH((mix_rows<9>), m.rows, MIX_THREADS, sizeof(mix_shared), stream, m);
    else
        KD_LAUNCH((mix_rows<MIX_CANDIDATES>), m.rows, MIX_THREADS, sizeof(mix_shared), stream, m);
}

template <class STREAM>
void launch_kda(const kd_gpu_k3_batch &b, const kd_gpu_k3_kda &a, [[maybe_unused]] STREAM stream)
{
    KD_LAUNCH(kda_heads, b.segs * a.heads, KDA_THREADS, sizeof(kda_shared), stream, b, a);
}

template <class STREAM>
void launch_latents(const kd_gpu_k3_batch &b, const kd_gpu_k3_latents &a,
                    [[maybe_unused]] STREAM stream)
{
    KD_LAUNCH(latent_rows, b.rows, NORM_THREADS, 2 * NORM_THREADS / 32 * sizeof(float), stream, b,
              a);
}

template <class STREAM> void launch_route(const kd_gpu_k3_route &r, [[maybe_unused]] STREAM stream)
{
    KD_LAUNCH(route_rows, r.rows, 32, sizeof(route_shared), stream, r);
}

template <int LORA, bool BF16, int ROWS, class STREAM>
void launch_mla_rows(const mla_args &a, [[maybe_unused]] STREAM stream)
{
    constexpr int GROUPS = VALUE_THREADS / (LORA / 8);
    const int64_t tiles = (a.b.rows + ROWS - 1) / ROWS * a.heads;
    const int64_t groups = (a.heads + MLA_HEADS - 1) / MLA_HEADS;

    KD_LAUNCH((absorb_heads<LORA, BF16, ROWS>), tiles, VALUE_THREADS,
              (ROWS * KD_GPU_K3_DIM + GROUPS * LORA) * sizeof(float), stream, a);
    KD_LAUNCH(attend_rows<LORA>, a.b.rows * a.parts * groups, MLA_THREADS, sizeof(mla_shared<LORA>),
              stream, a);
    KD_LAUNCH((value_heads<LORA, BF16, ROWS>), tiles, VALUE_THREADS, ROWS * LORA * sizeof(float),
              stream, a);
}

/* Several rows share what is read of kv_b once there are blocks enough. */
template <int LORA, class STREAM>
void launch_mla(const mla_args &a, bool bf16, [[maybe_unused]] STREAM stream)
{
    const bool many = a.b.rows > 4;

    if (bf16 && many)
        launch_mla_rows<LORA, true, 4>(a, stream);
    else if (bf16)
        launch_mla_rows<LORA, true, 1>(a, stream);
    else if (many)
        launch_mla_rows<LORA, false, 4>(a, stream);
    else
        launch_mla_rows<LORA, false, 1>(a, stream);
}

/* The kernels' arguments and the parts of the work space. */
static inline mla_args mla_args_of(const kd_gpu_k3_batch &b, const kd_gpu_k3_mla &m)
{
    const int64_t latent = b.rows * m.heads * (m.kv_lora + KD_GPU_K3_ROPE);

    return {b, m.heads, m.page, m.q, m.gate, m.kv_b, m.work, m.work + latent, m.parts, m.y};
}

static inline int64_t mla_floats(int64_t heads, int64_t kv_lora, int64_t rows, int64_t longest,
                                 int64_t most, int64_t *parts)
{
    const int64_t part = mla_part(longest);
    const int64_t latent = rows * heads * (kv_lora + KD_GPU_K3_ROPE),
                  slot = rows * heads * (kv_lora + MLA_SLOT);

    /* A power of two, so that few grids serve all contexts; a shorter one may have more parts than
     * the longest, never more than MLA_PARTS. */
    *parts = 1;
    while (*parts < MLA_PARTS && *parts * part < (part > KD_GPU_K3_PAGE ? 2 : 1) * longest)
        *parts *= 2;
    if (latent + *parts * slot > most)
        *parts = 1;
    return latent + *parts * slot;
}

} // namespace kd_k3

#endif
