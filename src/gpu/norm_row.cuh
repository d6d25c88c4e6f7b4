/* RMSNorm of a row by a block. */
#ifndef KD_GPU_NORM_ROW_CUH
#define KD_GPU_NORM_ROW_CUH

extern "C" {
#include "gpu/k3_ops.h"
}
#include "gpu/mma_lanes.cuh"

namespace kd_k3
{

enum {
    NORM_THREADS = 512,
    NORM_EACH = KD_GPU_K3_WIDTH / 4 / NORM_THREADS /* of a thread, in fours */
};

/* Sums over a warp: the same tree in every lane. */
KD_DEV float warp_sum(float x)
{
#pragma unroll
    for (int m = 16; m; m >>= 1)
        x += kd_shuffle_xor(x, m);
    return x;
}

/* Sums over a block, `part` has a float for each warp; all threads of it get the sum. */
template <int THREADS> KD_DEV float block_sum(float x, float *part)
{
    float sum = 0;

    x = warp_sum(x);
    if (kd_thread() % 32 == 0)
        part[kd_thread() / 32] = x;
    kd_sync_block();
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++)
        sum += part[i];
    return sum;
}

KD_DEV float square_sum(float4 v, float sum)
{
    sum = fmaf(v.x, v.x, sum);
    sum = fmaf(v.y, v.y, sum);
    sum = fmaf(v.z, v.z, sum);
    return fmaf(v.w, v.w, sum);
}

KD_DEV float4 scaled(float4 v, float s, float4 w)
{
    return make_float4(v.x * s * w.x, v.y * s * w.y, v.z * s * w.z, v.w * s * w.w);
}

/* One row by one block; a column belongs to the same thread throughout. */
struct norm_row {
    float4 v[NORM_EACH];

    KD_DEV void load(const float *x, int64_t n)
    {
#pragma unroll
        for (int i = 0; i < NORM_EACH; i++) {
            const int64_t at = kd_thread() + i * NORM_THREADS;
            v[i] = 4 * at < n ? ((const float4 *)x)[at] : make_float4(0, 0, 0, 0);
        }
    }
    KD_DEV void scale(const float *w, float eps, int64_t n, float *part)
    {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < NORM_EACH; i++)
            sum = square_sum(v[i], sum);
        sum = block_sum<NORM_THREADS>(sum, part);
        const float by = 1.0f / sqrtf(sum / (float)n + eps);
#pragma unroll
        for (int i = 0; i < NORM_EACH; i++) {
            const int64_t at = kd_thread() + i * NORM_THREADS;
            if (4 * at < n)
                v[i] = scaled(v[i], by, w ? ((const float4 *)w)[at] : make_float4(1, 1, 1, 1));
        }
    }
    KD_DEV void store(float *out, int64_t n) const
    {
#pragma unroll
        for (int i = 0; i < NORM_EACH; i++) {
            const int64_t at = kd_thread() + i * NORM_THREADS;
            if (4 * at < n)
                ((float4 *)out)[at] = v[i];
        }
    }
};

} // namespace kd_k3
#endif
