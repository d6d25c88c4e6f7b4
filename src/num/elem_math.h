/* exp, tanh and sigmoid of one float from + - * / and fmaf alone, so that every instruction set
 * computes the same bits. Written without branches: loops over them become vector code.
 * NaN in gives NaN out (which NaN is not specified). */
#ifndef KD_NUM_ELEM_MATH_H
#define KD_NUM_ELEM_MATH_H

#include "num/half.h"

#include <math.h>
#include <stdint.h>

/* x = n ln 2 + r with |r| <= 0.3466; e^r = 1 + r + r^2 P(r), P minimax of degree 4 (relative error
 * 3e-9). 2^n goes on in two factors, so results fall through the subnormals to 0 and rise to
 * infinity with one rounding. */
KD_HD static inline float kd_exp1(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float z = fmaf(x, 0x1.715476p+0f, magic);
    float n = z - magic;
    float r = fmaf(n, -0x1.62e430p-1f, x);
    r = fmaf(n, 0x1.05c610p-29f, r);
    float p = fmaf(0x1.6a2336p-10f, r, 0x1.123b5ap-7f);
    p = fmaf(p, r, 0x1.5558f8p-5f);
    p = fmaf(p, r, 0x1.555490p-3f);
    p = fmaf(p, r, 0x1.fffffcp-2f);
    p = fmaf(p, r * r, r) + 1.0f;
    int32_t k = (int32_t)(kd_f32_bits(z) - 0x4B400000u), h = k >> 1;
    p *= kd_bits_f32(((uint32_t)h + 127u) << 23);
    return p * kd_bits_f32(((uint32_t)k - (uint32_t)h + 127u) << 23);
}

/* Both tails keep their relative accuracy, down to where exp leaves the subnormals. */
KD_HD static inline float kd_sigmoid1(float x)
{
    float e = kd_exp1(kd_bits_f32(kd_f32_bits(x) | 0x80000000u));
    float one = 1.0f;
    return (x < 0.0f ? e : one) / (one + e);
}

KD_HD static inline float kd_silu1(float x)
{
    return x * kd_sigmoid1(x);
}

/* Below 0.625 an odd polynomial (small arguments keep their relative accuracy), above it
 * 1 - 2/(e^2|x| + 1). */
KD_HD static inline float kd_tanh1(float x)
{
    uint32_t bits = kd_f32_bits(x), sign = bits & 0x80000000u;
    float a = kd_bits_f32(bits & 0x7fffffffu), z = x * x;
    float p = fmaf(-0x1.76b3ccp-8f, z, 0x1.5258cap-6f);
    p = fmaf(p, z, -0x1.b844a2p-5f);
    p = fmaf(p, z, 0x1.11076cp-3f);
    p = fmaf(p, z, -0x1.555534p-2f);
    p = fmaf(p, x * z, x);
    float big = 1.0f - 2.0f / (kd_exp1(a + a) + 1.0f);
    /* A choice by bits: as a condition it would move the work above into a branch. */
    uint32_t small = a < 0.625f ? 0xffffffffu : 0u;
    return kd_bits_f32((kd_f32_bits(p) & small) | ((kd_f32_bits(big) | sign) & ~small));
}

/* log(1 + exp(x)), given u = exp(-|x|): max(x, 0) + 2 atanh(u / (2 + u)), whose argument is at most
 * a third, so eight terms of the series reach 1e-8. */
KD_HD static inline float kd_softplus1(float x, float u)
{
    float s = u / (2.0f + u), s2 = s * s;
    float a = 1.0f / 15.0f;
    a = a * s2 + 1.0f / 13.0f;
    a = a * s2 + 1.0f / 11.0f;
    a = a * s2 + 1.0f / 9.0f;
    a = a * s2 + 1.0f / 7.0f;
    a = a * s2 + 1.0f / 5.0f;
    a = a * s2 + 1.0f / 3.0f;
    a = a * s2 + 1.0f;
    return (x > 0.0f ? x : 0.0f) + 2.0f * (s * a);
}

/* linear <= 0: no bound on u. */
KD_HD static inline float kd_situ1(float g, float u, float beta, float linear)
{
    float x = beta * kd_tanh1(g / beta) * kd_sigmoid1(g);
    return x * (linear > 0.0f ? linear * kd_tanh1(u / linear) : u);
}

#endif
