/* Plain, legacy, K, FP4, ternary and one-bit blocks (gguf-slicing specification 2.2, 2.3, 2.5). The
 * order of the multiplications is ggml's. */
#include "fmt/gguf_decode.h"
#include "fmt/gguf.h"

#include <string.h>

static float half_at(const uint8_t *p)
{
    return kd_f16_f32(kd_block_u16(p));
}

static void f32_decode(const uint8_t *b, int64_t count, float *out)
{
    memcpy(out, b, (size_t)count * sizeof *out);
}

static void f16_decode(const uint8_t *b, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = half_at(b + 2 * i);
}

static void bf16_decode(const uint8_t *b, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = kd_bf16_f32(kd_block_u16(b + 2 * i));
}

static void q4_0_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 18, out += 32) {
        float d = half_at(b);
        for (int j = 0; j < 16; j++) {
            out[j] = (float)((b[2 + j] & 15) - 8) * d;
            out[j + 16] = (float)((b[2 + j] >> 4) - 8) * d;
        }
    }
}

static void q4_1_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 20, out += 32) {
        float d = half_at(b), m = half_at(b + 2);
        for (int j = 0; j < 16; j++) {
            out[j] = (float)(b[4 + j] & 15) * d + m;
            out[j + 16] = (float)(b[4 + j] >> 4) * d + m;
        }
    }
}

/* The fifth bits of 32 values. */
static uint32_t fifth(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void q5_0_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 22, out += 32) {
        float d = half_at(b);
        uint32_t h = fifth(b + 2);
        for (int j = 0; j < 16; j++) {
            out[j] = (float)((int)((b[6 + j] & 15u) | (h >> j & 1u) << 4) - 16) * d;
            out[j + 16] = (float)((int)(b[6 + j] >> 4 | (h >> (j + 16) & 1u) << 4) - 16) * d;
        }
    }
}

static void q5_1_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 24, out += 32) {
        float d = half_at(b), m = half_at(b + 2);
        uint32_t h = fifth(b + 4);
        for (int j = 0; j < 16; j++) {
            out[j] = (float)((b[8 + j] & 15u) | (h >> j & 1u) << 4) * d + m;
            out[j + 16] = (float)(b[8 + j] >> 4 | (h >> (j + 16) & 1u) << 4) * d + m;
        }
    }
}

static void q8_0_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += KD_Q8_0_BYTES, out += KD_Q8_0_ELEMS)
        kd_q8_0_decode(b, out);
}

/* 16 scale bytes, 64 quants, d, dmin. */
static void q2_k_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 84) {
        float d = half_at(b + 80), min = half_at(b + 82);
        for (int k = 0; k < 16; k++, out += 16) {
            const uint8_t *q = b + 16 + k / 8 * 32 + k % 2 * 16;
            float dl = d * (float)(b[k] & 15), ml = min * (float)(b[k] >> 4);
            int shift = k % 8 / 2 * 2;
            for (int i = 0; i < 16; i++)
                out[i] = dl * (float)(q[i] >> shift & 3) - ml;
        }
    }
}

/* 32 high-bit bytes, 64 low bytes, 12 scale bytes, d. */
static void q3_k_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 110) {
        const uint8_t *sc = b + 96;
        float d = half_at(b + 108);
        for (int k = 0; k < 16; k++, out += 16) {
            const uint8_t *q = b + 32 + k / 8 * 32 + k % 2 * 16, *high = b + k % 2 * 16;
            int low = k < 8 ? sc[k] & 15 : sc[k - 8] >> 4, shift = k % 8 / 2 * 2;
            float dl = d * (float)((low | (sc[8 + k % 4] >> (k / 4 * 2) & 3) << 4) - 32);
            for (int i = 0; i < 16; i++)
                out[i] = dl * (float)((q[i] >> shift & 3) + (high[i] >> (k / 2) & 1) * 4 - 4);
        }
    }
}

/* Scale and minimum j of eight, 6 bits each, from 12 bytes. */
static void scale_min(const uint8_t *b, int j, int *s, int *m)
{
    if (j < 4) {
        *s = b[j] & 63;
        *m = b[j + 4] & 63;
    } else {
        *s = (b[j + 4] & 15) | b[j - 4] >> 6 << 4;
        *m = b[j + 4] >> 4 | b[j] >> 6 << 4;
    }
}

/* d, dmin, 12 scale bytes, (32 fifth-bit bytes,) 128 nibble bytes. */
static void q45_k_decode(const uint8_t *b, bool five, int64_t count, float *out)
{
    for (; count > 0; count--, b += five ? 176 : 144) {
        float d = half_at(b), min = half_at(b + 2);
        const uint8_t *quants = b + (five ? 48 : 16);
        for (int g = 0; g < 8; g++) {
            int s, m;
            scale_min(b + 4, g, &s, &m);
            float dl = d * (float)s, ml = min * (float)m;
            for (int l = 0; l < 32; l++) {
                int q = quants[g / 2 * 32 + l] >> (g % 2 * 4) & 15;
                if (five)
                    q += (b[16 + l] >> g & 1) << 4;
                *out++ = dl * (float)q - ml;
            }
        }
    }
}

static void q4_k_decode(const uint8_t *b, int64_t count, float *out)
{
    q45_k_decode(b, false, count, out);
}

static void q5_k_decode(const uint8_t *b, int64_t count, float *out)
{
    q45_k_decode(b, true, count, out);
}

/* 128 low nibbles, 64 high pairs, 16 signed scales, d. */
static void q6_k_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 210) {
        float d = half_at(b + 208);
        for (int k = 0; k < 16; k++, out += 16) {
            int half = k / 8, part = k % 8 / 2, from = k % 2 * 16;
            const uint8_t *low = b + half * 64 + part % 2 * 32 + from,
                          *high = b + 128 + half * 32 + from;
            float dl = d * (float)(int8_t)b[192 + k];
            for (int i = 0; i < 16; i++)
                out[i] = dl * (float)(((low[i] >> (part / 2 * 4) & 15) | (high[i] >> (part * 2) & 3)
                                                                             << 4) -
                                      32);
        }
    }
}

static void mxfp4_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += KD_MXFP4_BYTES, out += KD_MXFP4_ELEMS)
        kd_mxfp4_decode(b, out);
}

/* Half the value of an E4M3 byte without sign; 0 and 0x7f are 0. */
static float ue4m3(uint8_t x)
{
    unsigned e = x >> 3 & 15u, m = x & 7u;
    if (!x || x == 0x7f)
        return 0;
    if (!e)
        return (float)m * 0.0009765625f; /* 2^-10 */
    return kd_bits_f32((e + 119u) << 23 | m << 20);
}

/* Four scales, then for each 8 bytes: low nibbles are elements 0..7, high ones 8..15. */
static void nvfp4_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 36)
        for (int g = 0; g < 4; g++, out += 16) {
            float d = ue4m3(b[g]);
            for (int i = 0; i < 8; i++) {
                out[i] = (float)kd_fp4_doubled(b[4 + 8 * g + i] & 15u) * d;
                out[i + 8] = (float)kd_fp4_doubled(b[4 + 8 * g + i] >> 4) * d;
            }
        }
}

/* Trit n of a byte that holds a base-3 fraction. */
static float trit(uint8_t q, int n, float d)
{
    static const uint8_t pow3[] = {1, 3, 9, 27, 81};
    unsigned x = (uint8_t)(q * pow3[n]);
    return (float)((int)(x * 3u >> 8) - 1) * d;
}

static void tq1_0_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 54) {
        float d = half_at(b + 52);
        for (int i = 0; i < 160; i++)
            *out++ = trit(b[i % 32], i / 32, d);
        for (int i = 0; i < 80; i++)
            *out++ = trit(b[32 + i % 16], i / 16, d);
        for (int i = 0; i < 16; i++)
            *out++ = trit(b[48 + i % 4], i / 4, d);
    }
}

static void tq2_0_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 66) {
        float d = half_at(b + 64);
        for (int i = 0; i < 256; i++)
            *out++ = (float)((b[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) - 1) * d;
    }
}

static void q1_0_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 18) {
        uint32_t d = kd_f32_bits(half_at(b));
        for (int i = 0; i < 16; i++)
            for (unsigned j = 0; j < 8; j++) /* a clear bit turns the sign */
                *out++ = kd_bits_f32(d ^ (~(uint32_t)b[2 + i] >> j & 1u) << 31);
    }
}

static void q2_0_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 18) {
        float d = half_at(b);
        for (int i = 0; i < 64; i++)
            *out++ = (float)((b[2 + i / 4] >> (i % 4 * 2) & 3) - 1) * d;
    }
}

static const struct {
    int type;
    struct kd_block_format format;
} formats[] = {
    {KD_GT_F32, {"F32", 1, 4, f32_decode}},
    {KD_GT_F16, {"F16", 1, 2, f16_decode}},
    {KD_GT_BF16, {"BF16", 1, 2, bf16_decode}},
    {KD_GT_Q4_0, {"Q4_0", 32, 18, q4_0_decode, KD_BLOCK_Q4_0}},
    {KD_GT_Q4_1, {"Q4_1", 32, 20, q4_1_decode, KD_BLOCK_Q4_1}},
    {KD_GT_Q5_0, {"Q5_0", 32, 22, q5_0_decode, KD_BLOCK_Q5_0}},
    {KD_GT_Q5_1, {"Q5_1", 32, 24, q5_1_decode, KD_BLOCK_Q5_1}},
    {KD_GT_Q8_0, {"Q8_0", KD_Q8_0_ELEMS, KD_Q8_0_BYTES, q8_0_decode, KD_BLOCK_Q8_0}},
    {KD_GT_Q2_K, {"Q2_K", 256, 84, q2_k_decode, KD_BLOCK_Q2_K}},
    {KD_GT_Q3_K, {"Q3_K", 256, 110, q3_k_decode, KD_BLOCK_Q3_K}},
    {KD_GT_Q4_K, {"Q4_K", 256, 144, q4_k_decode, KD_BLOCK_Q4_K}},
    {KD_GT_Q5_K, {"Q5_K", 256, 176, q5_k_decode, KD_BLOCK_Q5_K}},
    {KD_GT_Q6_K, {"Q6_K", 256, 210, q6_k_decode, KD_BLOCK_Q6_K}},
    {KD_GT_IQ2_XXS, {"IQ2_XXS", 256, 66, kd_iq2_xxs_decode, KD_BLOCK_IQ2_XXS}},
    {KD_GT_IQ2_XS, {"IQ2_XS", 256, 74, kd_iq2_xs_decode, KD_BLOCK_IQ2_XS}},
    {KD_GT_IQ2_S, {"IQ2_S", 256, 82, kd_iq2_s_decode, KD_BLOCK_IQ2_S}},
    {KD_GT_IQ3_XXS, {"IQ3_XXS", 256, 98, kd_iq3_xxs_decode, KD_BLOCK_IQ3_XXS}},
    {KD_GT_IQ3_S, {"IQ3_S", 256, 110, kd_iq3_s_decode, KD_BLOCK_IQ3_S}},
    {KD_GT_IQ1_S, {"IQ1_S", 256, 50, kd_iq1_s_decode, KD_BLOCK_IQ1_S}},
    {KD_GT_IQ1_M, {"IQ1_M", 256, 56, kd_iq1_m_decode, KD_BLOCK_IQ1_M}},
    {KD_GT_IQ4_NL, {"IQ4_NL", 32, 18, kd_iq4_nl_decode, KD_BLOCK_IQ4_NL}},
    {KD_GT_IQ4_XS, {"IQ4_XS", 256, 136, kd_iq4_xs_decode, KD_BLOCK_IQ4_XS}},
    {KD_GT_TQ1_0, {"TQ1_0", 256, 54, tq1_0_decode, KD_BLOCK_TQ1_0}},
    {KD_GT_TQ2_0, {"TQ2_0", 256, 66, tq2_0_decode, KD_BLOCK_TQ2_0}},
    {KD_GT_MXFP4, {"MXFP4", KD_MXFP4_ELEMS, KD_MXFP4_BYTES, mxfp4_decode, KD_BLOCK_MXFP4}},
    {KD_GT_NVFP4, {"NVFP4", 64, 36, nvfp4_decode, KD_BLOCK_NVFP4}},
    {KD_GT_Q1_0, {"Q1_0", 128, 18, q1_0_decode, KD_BLOCK_Q1_0}},
    {KD_GT_Q2_0, {"Q2_0", 64, 18, q2_0_decode, KD_BLOCK_Q2_0}},
};

const struct kd_block_format *kd_gguf_format(int64_t type)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].type == type)
            return &formats[i].format;
    return NULL;
}
