/* Eight values of a block of ggml's formats, as a thread of a product takes them: the floats of the
 * decoders of whole blocks (fmt/gguf_block.h), bit for bit. Products and sums are in their order;
 * nothing is contracted. */
#ifndef KD_GPU_BLOCK_VALUES_CUH
#define KD_GPU_BLOCK_VALUES_CUH

#include "gpu/mma_lanes.cuh"
#include "num/block.h"
#ifndef KD_GPU_EMULATE
#define KD_GRID static __device__ const
#endif
#include "num/gguf_grids.h"

namespace kd_eights
{

KD_DEV float half_at(const uint8_t *p)
{
    return kd_f16_f32(kd_block_u16(p));
}
KD_DEV uint32_t word_at(const uint8_t *p)
{
    return kd_block_u16(p) | (uint32_t)kd_block_u16(p + 2) << 16;
}
/* Of values in nibbles, the first half of a block low: eight of them. */
KD_DEV uint32_t nibble(const uint8_t *quants, int e, int j)
{
    return quants[8 * (e % 2) + j] >> 4 * (e / 2) & 15u;
}
/* The codebooks' small alphabets, a byte each. */
KD_DEV int iq4_value(uint32_t code)
{
    const uint64_t low = 0xf6eaddcfbfad9881u, high = 0x7159453526190d01u;
    return (int8_t)((code < 8 ? low : high) >> 8 * (code & 7u));
}
KD_DEV float iq2_value(uint32_t row, int j)
{
    return (float)(0x2b1908u >> 8 * (row >> 2 * j & 3u) & 255u);
}
KD_DEV float iq3_value(uint64_t alphabet, uint32_t row, int j)
{
    return (float)(alphabet >> 8 * (row >> 3 * j & 7u) & 255u);
}
/* Seven signs; the eighth makes their number even. */
KD_DEV uint32_t signs_of(uint32_t seven)
{
    const uint32_t four = seven ^ seven >> 4, two = four ^ four >> 2;
    return seven | ((two ^ two >> 1) & 1u) << 7;
}
KD_DEV float with_sign(float v, uint32_t signs, int j)
{
    return kd_bits_f32(kd_f32_bits(v) ^ (signs >> j & 1u) << 31);
}
KD_DEV void put_iq2(uint32_t row, float db, uint32_t signs, float v[8])
{
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = with_sign(db * iq2_value(row, j), signs, j);
}
KD_DEV void put_iq3(uint64_t alphabet, uint32_t first, uint32_t second, float db, uint32_t signs,
                    float v[8])
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        v[j] = with_sign(db * iq3_value(alphabet, first, j), signs, j);
        v[4 + j] = with_sign(db * iq3_value(alphabet, second, j), signs, 4 + j);
    }
}
KD_DEV void put_iq1(uint32_t at, float dl, float delta, float v[8])
{
    const uint32_t row = grid_iq1s[at];
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = dl * ((float)((int)(row >> 2 * j & 3u) - 1) + delta);
}

/* ---- one format each: the eight from 8 e on ---- */

/* fifth: where the fifth bits are, NULL: none; least: what code 0 stands for. */
KD_DEV void legacy(float d, const uint8_t *fifth, const uint8_t *quants, int least, int e,
                   float v[8])
{
    const uint32_t high = fifth ? word_at(fifth) >> 8 * e : 0;
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = (float)((int)(nibble(quants, e, j) | (high >> j & 1u) << 4) + least) * d;
}
KD_DEV void add_all(float m, float v[8])
{
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = v[j] + m;
}
KD_DEV void q2_k(const uint8_t *b, int e, float v[8])
{
    const int k = e / 2, shift = k % 8 / 2 * 2;
    const uint8_t *q = b + 16 + k / 8 * 32 + k % 2 * 16 + 8 * (e % 2);
    const float dl = half_at(b + 80) * (float)(b[k] & 15),
                ml = half_at(b + 82) * (float)(b[k] >> 4);
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = dl * (float)(q[j] >> shift & 3) - ml;
}
KD_DEV void q3_k(const uint8_t *b, int e, float v[8])
{
    const int k = e / 2, from = k % 2 * 16 + 8 * (e % 2), shift = k % 8 / 2 * 2;
    const uint8_t *q = b + 32 + k / 8 * 32 + from, *high = b + from, *sc = b + 96;
    const int low = k < 8 ? sc[k] & 15 : sc[k - 8] >> 4;
    const float dl =
        half_at(b + 108) * (float)((low | (sc[8 + k % 4] >> (k / 4 * 2) & 3) << 4) - 32);
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = dl * (float)((q[j] >> shift & 3) + (high[j] >> (k / 2) & 1) * 4 - 4);
}
KD_DEV void q45_k(const uint8_t *b, bool five, int e, float v[8])
{
    const int g = e / 4, l = 8 * (e % 4);
    const uint8_t *q = b + (five ? 48 : 16) + g / 2 * 32 + l, *sc = b + 4;
    const int s = g < 4 ? sc[g] & 63 : (sc[g + 4] & 15) | sc[g - 4] >> 6 << 4;
    const int m = g < 4 ? sc[g + 4] & 63 : sc[g + 4] >> 4 | sc[g] >> 6 << 4;
    const float dl = half_at(b) * (float)s, ml = half_at(b + 2) * (float)m;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int code = q[j] >> (g % 2 * 4) & 15;
        if (five)
            code += (b[16 + l + j] >> g & 1) << 4;
        v[j] = dl * (float)code - ml;
    }
}
KD_DEV void q6_k(const uint8_t *b, int e, float v[8])
{
    const int k = e / 2, half = k / 8, part = k % 8 / 2, from = k % 2 * 16 + 8 * (e % 2);
    const uint8_t *low = b + half * 64 + part % 2 * 32 + from, *high = b + 128 + half * 32 + from;
    const float dl = half_at(b + 208) * (float)(int8_t)b[192 + k];
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] =
            dl * (float)(((low[j] >> (part / 2 * 4) & 15) | (high[j] >> (part * 2) & 3) << 4) - 32);
}
KD_DEV void fp4(float d, const uint8_t *quants, int shift, float v[8])
{
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = (float)kd_fp4_doubled(quants[j] >> shift & 15u) * d;
}
KD_DEV float ue4m3(uint8_t x)
{
    const uint32_t e = x >> 3 & 15u, m = x & 7u;
    return !x || x == 0x7f ? 0.0f
           : !e            ? (float)m * 0.0009765625f
                           : kd_bits_f32((e + 119u) << 23 | m << 20);
}
KD_DEV void tq1_0(const uint8_t *b, int e, float v[8])
{
    const float d = half_at(b + 52);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int i = 8 * e + j, at = i < 160 ? i % 32 : i < 240 ? 32 + i % 16 : 48 + i % 4;
        const int n = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
        const uint32_t power = n == 4 ? 81u : 0x1b090301u >> 8 * n & 255u;
        v[j] = (float)((int)((b[at] * power & 255u) * 3u >> 8) - 1) * d;
    }
}
KD_DEV void tq2_0(const uint8_t *b, int e, float v[8])
{
    const float d = half_at(b + 64);
    const uint8_t *q = b + e / 16 * 32 + e % 4 * 8;
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = (float)((q[j] >> (e % 16 / 4 * 2) & 3) - 1) * d;
}
KD_DEV void q1_0(const uint8_t *b, int e, float v[8])
{
    const float d = half_at(b);
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = with_sign(d, ~(uint32_t)b[2 + e], j);
}
KD_DEV void q2_0(const uint8_t *b, int e, float v[8])
{
    const float d = half_at(b);
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = (float)((b[2 + 2 * e + j / 4] >> (j % 4 * 2) & 3) - 1) * d;
}
KD_DEV void iq2_xxs(const uint8_t *b, int e, float v[8])
{
    const uint8_t *sub = b + 2 + e / 4 * 8;
    const uint32_t word = word_at(sub + 4);
    const float db = half_at(b) * (0.5f + (float)(word >> 28)) * 0.25f;
    put_iq2(grid_iq2xxs[sub[e % 4]], db, signs_of(word >> (7 * (e % 4)) & 127u), v);
}
KD_DEV void iq2_xs(const uint8_t *b, int e, float v[8])
{
    const uint32_t q = kd_block_u16(b + 2 + 2 * e), s = b[66 + e / 4] >> (e % 4 / 2 * 4) & 15u;
    put_iq2(grid_iq2xs[q & 511u], half_at(b) * (0.5f + (float)s) * 0.25f, signs_of(q >> 9), v);
}
KD_DEV void iq2_s(const uint8_t *b, int e, float v[8])
{
    const uint32_t row = b[2 + e] | (b[66 + e / 4] >> (e % 4 * 2) & 3u) << 8,
                   s = b[74 + e / 4] >> (e % 4 / 2 * 4) & 15u;
    put_iq2(grid_iq2s[row], half_at(b) * (0.5f + (float)s) * 0.25f, b[34 + e], v);
}
KD_DEV void iq3_xxs(const uint8_t *b, int e, float v[8])
{
    const uint32_t word = word_at(b + 66 + e / 4 * 4);
    const float db = half_at(b) * (0.5f + (float)(word >> 28)) * 0.5f;
    put_iq3(0x3e342c241c140c04u, grid_iq3xxs[b[2 + 2 * e]], grid_iq3xxs[b[3 + 2 * e]], db,
            signs_of(word >> (7 * (e % 4)) & 127u), v);
}
KD_DEV void iq3_s(const uint8_t *b, int e, float v[8])
{
    const uint32_t high = b[66 + e / 4] >> (2 * e % 8), s = b[106 + e / 8] >> (e / 4 % 2 * 4) & 15u;
    put_iq3(0x0f0d0b0907050301u, grid_iq3s[b[2 + 2 * e] | (high & 1u) << 8],
            grid_iq3s[b[3 + 2 * e] | (high >> 1 & 1u) << 8], half_at(b) * (float)(1 + 2 * s),
            b[74 + e], v);
}
KD_DEV void iq1_s(const uint8_t *b, int e, float v[8])
{
    const uint32_t h = kd_block_u16(b + 34 + e / 4 * 2);
    put_iq1(b[2 + e] | (h >> (3 * (e % 4)) & 7u) << 8, half_at(b) * (float)(2 * (h >> 12 & 7u) + 1),
            h & 0x8000u ? -0.125f : 0.125f, v);
}
KD_DEV void iq1_m(const uint8_t *b, int e, float v[8])
{
    const uint8_t *sc = b + 48;
    const int g = e / 4, l = e % 4;
    const float d =
        kd_f16_f32((uint16_t)(sc[1] >> 4 | sc[3] >> 4 << 4 | sc[5] >> 4 << 8 | sc[7] >> 4 << 12));
    const uint32_t s = kd_block_u16(sc + g / 2 * 2) >> (6 * (g % 2) + 3 * (l / 2)) & 7u,
                   high = b[32 + 2 * g + l / 2] >> (l % 2 * 4) & 15u;
    put_iq1(b[e] | (high & 7u) << 8, d * (float)(2 * s + 1), high & 8u ? -0.125f : 0.125f, v);
}
KD_DEV void iq4(float d, const uint8_t *quants, int e, float v[8])
{
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = d * (float)iq4_value(nibble(quants, e, j));
}
KD_DEV void iq4_xs(const uint8_t *b, int e, float v[8])
{
    const int g = e / 4;
    const int s = (int)((b[4 + g / 2] >> (g % 2 * 4) & 15u) |
                        ((uint32_t)kd_block_u16(b + 2) >> (2 * g) & 3u) << 4);
    iq4(half_at(b) * (float)(s - 32), b + 8 + 16 * g, e % 4, v);
}

/* v = the values 8 e .. 8 e + 7 of block b. */
KD_DEV void eight(int kind, const uint8_t *b, int e, float v[8])
{
    switch (kind) {
    case KD_BLOCK_Q8_0: {
        const float d = half_at(b);
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = (float)(int8_t)b[2 + 8 * e + j] * d;
        return;
    }
    case KD_BLOCK_MXFP4:
        return fp4(kd_e8m0_half_f32(b[0]), b + 1 + 8 * (e % 2), 4 * (e / 2), v);
    case KD_BLOCK_Q4_0:
        return legacy(half_at(b), nullptr, b + 2, -8, e, v);
    case KD_BLOCK_Q4_1:
        legacy(half_at(b), nullptr, b + 4, 0, e, v);
        return add_all(half_at(b + 2), v);
    case KD_BLOCK_Q5_0:
        return legacy(half_at(b), b + 2, b + 6, -16, e, v);
    case KD_BLOCK_Q5_1:
        legacy(half_at(b), b + 4, b + 8, 0, e, v);
        return add_all(half_at(b + 2), v);
    case KD_BLOCK_Q2_K:
        return q2_k(b, e, v);
    case KD_BLOCK_Q3_K:
        return q3_k(b, e, v);
    case KD_BLOCK_Q4_K:
        return q45_k(b, false, e, v);
    case KD_BLOCK_Q5_K:
        return q45_k(b, true, e, v);
    case KD_BLOCK_Q6_K:
        return q6_k(b, e, v);
    case KD_BLOCK_IQ2_XXS:
        return iq2_xxs(b, e, v);
    case KD_BLOCK_IQ2_XS:
        return iq2_xs(b, e, v);
    case KD_BLOCK_IQ2_S:
        return iq2_s(b, e, v);
    case KD_BLOCK_IQ3_XXS:
        return iq3_xxs(b, e, v);
    case KD_BLOCK_IQ3_S:
        return iq3_s(b, e, v);
    case KD_BLOCK_IQ1_S:
        return iq1_s(b, e, v);
    case KD_BLOCK_IQ1_M:
        return iq1_m(b, e, v);
    case KD_BLOCK_IQ4_NL:
        return iq4(half_at(b), b + 2, e, v);
    case KD_BLOCK_IQ4_XS:
        return iq4_xs(b, e, v);
    case KD_BLOCK_TQ1_0:
        return tq1_0(b, e, v);
    case KD_BLOCK_TQ2_0:
        return tq2_0(b, e, v);
    case KD_BLOCK_NVFP4:
        return fp4(ue4m3(b[e / 2]), b + 4 + e / 2 * 8, e % 2 * 4, v);
    case KD_BLOCK_Q1_0:
        return q1_0(b, e, v);
    default: /* KD_BLOCK_Q2_0 */
        return q2_0(b, e, v);
    }
}

} // namespace kd_eights
#endif
