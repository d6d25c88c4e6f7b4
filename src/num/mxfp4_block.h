/* MXFP4 as compressed-tensors stores it (k3-model: "MXFP4 as stored"): per row, groups of 32 input
 * elements share one E8M0 scale byte; element 2j of a row is the LOW nibble of byte j. */
#ifndef KD_NUM_MXFP4_BLOCK_H
#define KD_NUM_MXFP4_BLOCK_H

#include "num/half.h"

enum { KD_MXFP4_GROUP = 32 };

KD_HD static inline float kd_fp4_f32(unsigned code)
{
    /* Magnitudes 0 .5 1 1.5 2 3 4 6 as fp32 patterns' upper halves. */
    unsigned m = code & 7u, e = m >> 1, f = m & 1u;
    float mag = e ? (1.0f + 0.5f * (float)f) * (float)(1u << (e - 1u)) : 0.5f * (float)f;
    return (code & 8u) ? -mag : mag;
}

/* Element `col` of a row. */
KD_HD static inline float kd_mxfp4_f32(const uint8_t *packed_row, const uint8_t *scale_row,
                                       int64_t col)
{
    unsigned byte = packed_row[col >> 1], code = (col & 1) ? byte >> 4 : byte & 15u;
    return kd_fp4_f32(code) * kd_e8m0_f32(scale_row[col / KD_MXFP4_GROUP]);
}

#endif
