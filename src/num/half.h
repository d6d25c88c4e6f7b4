/* fp16, bf16, E8M0 and fp32: one conversion each, used by reference, tests and CUDA alike.
 * All round to nearest even. */
#ifndef KD_NUM_HALF_H
#define KD_NUM_HALF_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define KD_HD __host__ __device__
#else
#define KD_HD
#endif

KD_HD static inline uint32_t kd_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

KD_HD static inline float kd_bits_f32(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

KD_HD static inline float kd_bf16_f32(uint16_t h)
{
    return kd_bits_f32((uint32_t)h << 16);
}

/* NaN stays NaN. */
KD_HD static inline uint16_t kd_f32_bf16(float x)
{
    uint32_t u = kd_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

KD_HD static inline float kd_f16_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu;
    if (e == 31)
        return kd_bits_f32(sign | 0x7f800000u | (m << 13));
    if (e)
        return kd_bits_f32(sign | ((e + 112u) << 23) | (m << 13));
    /* Subnormal: m * 2^-24, exact in fp32. */
    float x = (float)m * 5.9604644775390625e-8f;
    return kd_bits_f32(sign | kd_f32_bits(x));
}

KD_HD static inline uint16_t kd_f32_f16(float x)
{
    uint32_t u = kd_f32_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
    if (a >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* below 2^-14: the sum with 0.5 rounds at 2^-24 */
        uint32_t r = kd_f32_bits(kd_bits_f32(a) + 0.5f);
        return (uint16_t)(sign | (r - 0x3f000000u));
    }
    a += 0xfffu + ((a >> 13) & 1u);
    return (uint16_t)(sign | ((a - 0x38000000u) >> 13));
}

/* 2^(e - 127); e = 0 gives 2^-127 (subnormal, exact). e = 255 is NaN in E8M0 and gives infinity
 * here, as its exponent says; a checkpoint is not expected to hold it (k3-model 2.3), and a
 * conversion refuses one that does. */
KD_HD static inline float kd_e8m0_f32(uint8_t e)
{
    return kd_bits_f32(e ? (uint32_t)e << 23 : 0x00400000u);
}

#endif
