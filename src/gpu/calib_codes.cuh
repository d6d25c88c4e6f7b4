/* What a calibration's kernels share: stored weights, jobs of those in calib.cuh. */
#ifndef KD_GPU_CALIB_CODES_CUH
#define KD_GPU_CALIB_CODES_CUH

#include "gpu/lanes.cuh"
#include "num/exl3_ring.h"

enum kd_calib_stored { KD_CALIB_F32, KD_CALIB_BF16, KD_CALIB_MXFP4 };

/* The state of position p of a tile (kd_ring_states has all of them). */
KD_DEV unsigned kd_calib_state(const uint8_t *tile, struct kd_rate rate, unsigned p)
{
    const unsigned halves = kd_rate_to16(rate), r = p % 16;
    unsigned end = p / 16 * halves + (r + 1) * rate.base;

    for (unsigned i = 0; i <= r; i++)
        end += rate.mask >> i & 1u;
    const unsigned u = (end + 15) / 16 - 1, before = u ? u - 1 : halves - 1;
    const uint32_t two = kd_ring_half(tile, halves, before) << 16 | kd_ring_half(tile, halves, u);
    return two >> (16 * (u + 1) - end) & 0xffffu;
}

/* y[t][c0 + c] for the n columns of c, those under `cols`; a thread has four. */
struct kd_calib_sums_job {
    const float *c;
    int64_t rows, n, T, c0, cols;
    float *y;
    int64_t ldy;
    const uint16_t *svh; /* EXL3: of column c0 */
};

/* An expert's inner rows. */
struct kd_calib_inner_job {
    const float *gate, *up; /* [half][rows][n], as kd_calib_chains leaves them */
    int64_t rows, n, T, cols;
    const uint16_t *gate_svh, *up_svh;
    float beta, linear;
    float *inner; /* [T][n], zeros from cols on */
    int32_t *bad; /* not 0: some value is not finite */
};

#endif
