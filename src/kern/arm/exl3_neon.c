/* EXL3 decoding and products for NEON: four positions, which are four rows of one column. */
#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>

#define WIDTH   4
#define ABREAST 4
#define INTS    uint32x4_t
#define FLOATS  float32x4_t
#define INLINE  static inline __attribute__((always_inline))

#include "num/trellis_step.h"

INLINE uint32x4_t windows(const uint8_t *back, const uint8_t *pick, const int32_t *shift)
{
    uint32x4_t x = vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(back), vld1q_u8(pick)));
    return vandq_u32(vshlq_u32(x, vnegq_s32(vld1q_s32(shift))), vdupq_n_u32(0xffff));
}

/* mul1: the sum of the bytes of each product. */
INLINE uint32x4_t sums_of(uint32x4_t s)
{
    uint32x4_t x = vmulq_u32(s, vdupq_n_u32(0x83DCD12Du));
    return vdotq_u32(vdupq_n_u32(0), vreinterpretq_u8_u32(x), vdupq_n_u8(1));
}

/* The fma is exact; the conversion to half precision and back rounds. */
INLINE void values_mul1(const uint32x4_t s[ABREAST], float32x4_t v[ABREAST])
{
    uint32x4_t x[ABREAST];

#pragma GCC unroll 8
    for (int j = 0; j < ABREAST; j++)
        x[j] = sums_of(s[j]);
#pragma GCC unroll 8
    for (int j = 0; j < ABREAST; j++)
        v[j] = vfmaq_f32(vdupq_n_f32(-3.453125f), vcvtq_f32_u32(x[j]),
                         vdupq_n_f32(887.0f / 131072.0f));
#pragma GCC unroll 8
    for (int j = 0; j < ABREAST; j++)
        v[j] = vcvt_f32_f16(vcvt_f16_f32(v[j]));
}

/* The byte sums less 510. */
INLINE void sums_mul1(const uint32x4_t s[ABREAST], float32x4_t v[ABREAST])
{
#pragma GCC unroll 8
    for (int j = 0; j < ABREAST; j++)
        v[j] = vsubq_f32(vcvtq_f32_u32(sums_of(s[j])), vdupq_n_f32(510.0f));
}

INLINE float32x4_t value_halves(uint32x4_t s, bool mcg)
{
    uint32x4_t x = mcg ? vmulq_u32(s, vdupq_n_u32(0xCBAC1FEDu))
                       : vaddq_u32(vmulq_u32(s, vdupq_n_u32(89226354)), vdupq_n_u32(64248484));
    x = veorq_u32(vandq_u32(x, vdupq_n_u32(0x8FFF8FFFu)), vdupq_n_u32(0x3B603B60u));
    float32x4_t a = vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(x)));
    float32x4_t b = vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(x, 16)));
    return vcvt_f32_f16(vcvt_f16_f32(vaddq_f32(a, b)));
}

INLINE float32x4_t get_floats(const float *p)
{
    return vld1q_f32(p);
}

INLINE float32x4_t add_floats(float32x4_t sum, float32x4_t v, const float *x)
{
    return vfmaq_f32(sum, v, vld1q_f32(x));
}

INLINE void put_floats(float *p, float32x4_t v)
{
    vst1q_f32(p, v);
}

/* Rows 2m, 2m + 1, 2m + 8, 2m + 9. */
INLINE float32x4_t rows(const float *x, int m)
{
    return vcombine_f32(vld1_f32(x + 2 * m), vld1_f32(x + 2 * m + 8));
}

/* Columns c and c + 8 keep chains 0..3 in sum[16 c] and sum[16 c + 4], 4..7 eight further on; four
 * c at a time. */
static void add_panel(const float *panel, int64_t count, const float *x, float *sum)
{
    for (int half = 0; half < 2; half++, sum += 64) {
        const float *v = panel + 128 * half;
        float32x4_t s[16];
        for (int c = 0; c < 16; c++)
            s[c] = vld1q_f32(sum + 4 * c);
        for (int64_t k = 0; k < count; k++, v += 256) {
            float32x4_t r[4];
#pragma GCC unroll 4
            for (int m = 0; m < 4; m++)
                r[m] = rows(x + 16 * k, m);
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++)
#pragma GCC unroll 8
                for (int j = 0; j < 8; j++)
                    s[4 * c + j % 4] =
                        vfmaq_f32(s[4 * c + j % 4], vld1q_f32(v + 32 * c + 4 * j), r[j / 2]);
        }
        for (int c = 0; c < 16; c++)
            vst1q_f32(sum + 4 * c, s[c]);
    }
}

static void fold_sums(const float *sum, float *y)
{
    for (int c = 0; c < 8; c++)
        for (int h = 0; h < 2; h++) {
            float32x4_t a =
                vaddq_f32(vld1q_f32(sum + 16 * c + 4 * h), vld1q_f32(sum + 16 * c + 8 + 4 * h));
            float32x2_t b = vadd_f32(vget_low_f32(a), vget_high_f32(a));
            y[c + 8 * h] = vget_lane_f32(b, 0) + vget_lane_f32(b, 1);
        }
}

INLINE uint32x4_t zeros(void)
{
    return vdupq_n_u32(0);
}

INLINE void put_ints(int32_t *p, uint32x4_t v)
{
    vst1q_s32(p, vreinterpretq_s32_u32(v));
}

INLINE uint32x4_t add_int8(uint32x4_t sum, uint32x4_t b, const int32_t *q)
{
    return vmlaq_u32(sum, b, vreinterpretq_u32_s32(vld1q_s32(q)));
}

#include "kern/exl3_body.h"

void kd_exl3_set_products_neon(struct kd_kern *k)
{
    k->trellis_decode = decode_tile;
    k->mm_exl3 = mm_exl3;
    k->mv_exl3_int8 = mv_exl3_int8;
}
