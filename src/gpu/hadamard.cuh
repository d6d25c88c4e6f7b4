/* The Hadamard rotation of 128 values by a warp. */
#ifndef KD_GPU_HADAMARD_CUH
#define KD_GPU_HADAMARD_CUH

#include "gpu/lanes.cuh"

/* Four values a lane, in kern's order of operations: butterflies at distance 1, 2, 4, ..., 64, then
 * 1 / sqrt(128) in fp32. `lane`: of the warp, or the thread's number in its block. */
KD_DEV void kd_hadamard128(float v[4], int lane)
{
    const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];

    v[0] = a + c;
    v[1] = b + d;
    v[2] = a - c;
    v[3] = b - d;
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float other = kd_shuffle_xor(v[i], mask);
            v[i] = lane & mask ? other - v[i] : v[i] + other;
        }
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] *= 0.088388346f;
}

#endif
