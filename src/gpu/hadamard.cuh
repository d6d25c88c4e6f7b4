/* The Hadamard rotation of 128 values by a warp. */
#ifndef KD_GPU_HADAMARD_CUH
#define KD_GPU_HADAMARD_CUH

#include "gpu/lanes.cuh"

/* Four values a lane, in kern's order of operations: butterflies at distance 1, 2, 4, ..., 64, then
 * 1 / sqrt(128) in fp32. `lane`: of the warp, or the thread's number in its block. ROWS times 128
 * values side by side, as each alone would wait for its shuffles. */
template <int ROWS> KD_DEV void kd_hadamard128_rows(float (*v)[4], int lane)
{
#pragma unroll
    for (int t = 0; t < ROWS; t++) {
        const float a = v[t][0] + v[t][1], b = v[t][0] - v[t][1], c = v[t][2] + v[t][3],
                    d = v[t][2] - v[t][3];

        v[t][0] = a + c;
        v[t][1] = b + d;
        v[t][2] = a - c;
        v[t][3] = b - d;
    }
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2)
#pragma unroll
        for (int i = 0; i < 4 * ROWS; i++) {
            const float x = v[i / 4][i % 4], other = kd_shuffle_xor(x, mask);
            v[i / 4][i % 4] = lane & mask ? other - x : x + other;
        }
#pragma unroll
    for (int i = 0; i < 4 * ROWS; i++)
        v[i / 4][i % 4] *= 0.088388346f;
}
KD_DEV void kd_hadamard128(float v[4], int lane)
{
    kd_hadamard128_rows<1>((float(*)[4])v, lane);
}

#endif
