/* The vector a body is written in, for NEON; see x86/vf_avx512.h. */
#ifndef KD_KERN_VF_NEON_H
#define KD_KERN_VF_NEON_H

#include <arm_neon.h>
#include <stdint.h>

enum {
    VF_W = 4,
    LANE_REGS = 16 / VF_W,
    GEMV_ROWS = 4,
    MM_ROWS = 4,
    MM_TOKENS = 6,
    TN_ROWS = 8,
    TN_REGS = 3
};

typedef float32x4_t vf;

static inline vf vf_zero(void)
{
    return vdupq_n_f32(0.0f);
}

static inline vf vf_set1(float x)
{
    return vdupq_n_f32(x);
}

static inline vf vf_load(const float *p)
{
    return vld1q_f32(p);
}

static inline void vf_store(float *p, vf v)
{
    vst1q_f32(p, v);
}

static inline vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}

static inline vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}

static inline vf vf_load_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

static inline vf vf_load_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

/* The scale; the values come from two byte tables, the upper halves of their fp32 patterns. */
typedef float32x4_t fp4_key;

static inline fp4_key fp4_prepare(float scale)
{
    return vdupq_n_f32(scale);
}

/* The values of 16 codes times the scale; that of code 8 is `zero`'s upper byte. */
static inline void fp4_values16(uint8x16_t index, uint8_t zero, fp4_key key, vf out[LANE_REGS])
{
    const uint8_t high[16] = {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                              zero, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
    static const uint8_t low[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0,
                                    0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0};
    uint8x16x2_t half =
        vzipq_u8(vqtbl1q_u8(vld1q_u8(low), index), vqtbl1q_u8(vld1q_u8(high), index));
    for (int l = 0; l < 2; l++) {
        uint16x8_t h = vreinterpretq_u16_u8(half.val[l]);
        out[2 * l] = vmulq_f32(vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)), key);
        out[2 * l + 1] = vmulq_f32(vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(h), 16)), key);
    }
}

static inline void fp4_load16(const uint8_t *p, fp4_key key, vf out[LANE_REGS])
{
    uint8x8_t codes = vld1_u8(p);
    uint8x8x2_t nibbles = vzip_u8(vand_u8(codes, vdup_n_u8(15)), vshr_n_u8(codes, 4));
    fp4_values16(vcombine_u8(nibbles.val[0], nibbles.val[1]), 0x80, key, out);
}

/* VF_W signed bytes. */
static inline vf vf_load_i8(const uint8_t *p)
{
    int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}

/* One block of ggml's MXFP4, codes alone: 32 values, low nibbles first. A zero is +0 whatever its
 * sign. */
static inline void fp4_load32(const uint8_t *p, fp4_key key, vf out[2 * LANE_REGS])
{
    uint8x16_t codes = vld1q_u8(p);
    fp4_values16(vandq_u8(codes, vdupq_n_u8(15)), 0, key, out);
    fp4_values16(vshrq_n_u8(codes, 4), 0, key, out + LANE_REGS);
}

static inline float vf_fold16(const float *lane)
{
    float32x4_t a = vaddq_f32(vld1q_f32(lane), vld1q_f32(lane + 8));
    float32x4_t b = vaddq_f32(vld1q_f32(lane + 4), vld1q_f32(lane + 12));
    a = vaddq_f32(a, b);
    float32x2_t c = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
}

static inline vf vf_butterfly(vf v, int h)
{
    const uint32x4_t odd = {0, 0xffffffffu, 0, 0xffffffffu},
                     high = {0, 0, 0xffffffffu, 0xffffffffu};
    float32x4_t s = h == 1 ? vrev64q_f32(v) : vextq_f32(v, v, 2);
    return vbslq_f32(h == 1 ? odd : high, vsubq_f32(s, v), vaddq_f32(s, v));
}

#endif
