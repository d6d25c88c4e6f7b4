/* Weights stored in blocks of values that share a scale, as ggml lays them out (gguf-slicing
 * specification, section 2). Whoever multiplies needs to know of a format only this; the formats
 * themselves are in fmt/gguf_block.h. */
#ifndef KD_NUM_BLOCK_H
#define KD_NUM_BLOCK_H

#include "num/half.h"

/* Which one it is, for who decodes on his own: instruction sets Q8_0 and MXFP4, devices all but
 * ANY. */
enum kd_block_kind {
    KD_BLOCK_ANY,
    KD_BLOCK_Q8_0,
    KD_BLOCK_MXFP4,
    KD_BLOCK_Q4_0,
    KD_BLOCK_Q4_1,
    KD_BLOCK_Q5_0,
    KD_BLOCK_Q5_1,
    KD_BLOCK_Q2_K,
    KD_BLOCK_Q3_K,
    KD_BLOCK_Q4_K,
    KD_BLOCK_Q5_K,
    KD_BLOCK_Q6_K,
    KD_BLOCK_IQ2_XXS,
    KD_BLOCK_IQ2_XS,
    KD_BLOCK_IQ2_S,
    KD_BLOCK_IQ3_XXS,
    KD_BLOCK_IQ3_S,
    KD_BLOCK_IQ1_S,
    KD_BLOCK_IQ1_M,
    KD_BLOCK_IQ4_NL,
    KD_BLOCK_IQ4_XS,
    KD_BLOCK_TQ1_0,
    KD_BLOCK_TQ2_0,
    KD_BLOCK_NVFP4,
    KD_BLOCK_Q1_0,
    KD_BLOCK_Q2_0
};

struct kd_block_format {
    const char *name;
    int64_t elems, bytes; /* of one block; elems is 1 or a multiple of 16, at most 256 */
    /* `count` adjacent blocks into count * elems floats; the one meaning of their bytes. */
    void (*decode)(const uint8_t *blocks, int64_t count, float *out);
    enum kd_block_kind kind;
};

enum { KD_Q8_0_ELEMS = 32, KD_Q8_0_BYTES = 34, KD_MXFP4_ELEMS = 32, KD_MXFP4_BYTES = 17 };

KD_HD static inline uint16_t kd_block_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

/* 2^(e - 128): ggml's table of E2M1 is doubled, its scale halved. */
KD_HD static inline float kd_e8m0_half_f32(uint8_t e)
{
    return kd_bits_f32(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

/* Twice the value of an E2M1 code. */
KD_HD static inline int kd_fp4_doubled(unsigned code)
{
    unsigned e = (code >> 1) & 3u, f = code & 1u;
    int mag = e ? (int)((2u + f) << (e - 1u)) : (int)f;
    return code & 8u ? -mag : mag;
}

/* Half d, then 32 signed bytes. */
KD_HD static inline void kd_q8_0_decode(const uint8_t *block, float *out)
{
    float d = kd_f16_f32(kd_block_u16(block));
    for (int i = 0; i < KD_Q8_0_ELEMS; i++)
        out[i] = (float)(int8_t)block[2 + i] * d;
}

/* An E8M0 byte, then 16 bytes: byte j holds element j (low nibble) and j + 16. */
KD_HD static inline void kd_mxfp4_decode(const uint8_t *block, float *out)
{
    float d = kd_e8m0_half_f32(block[0]);
    for (int i = 0; i < 16; i++) {
        out[i] = (float)kd_fp4_doubled(block[1 + i] & 15u) * d;
        out[i + 16] = (float)kd_fp4_doubled(block[1 + i] >> 4) * d;
    }
}

#endif
