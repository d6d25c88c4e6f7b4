/* Primitives of the trellis search for NEON: 8 lanes. */
#include "kern/exl3_sets.h"
#include "kern/trellis_scratch.h"

#include <arm_neon.h>

#define LANES   8u
#define TILES   1
#define ABREAST 1
/* The doubling product drops one bit less. */
#define TRUNC_BITS 1
#define TRUNC_FREE 1

typedef int16x8_t vi;

#define INLINE static inline __attribute__((always_inline))

INLINE uint16x8_t vi_u(vi a)
{
    return vreinterpretq_u16_s16(a);
}
INLINE vi vi_s(uint16x8_t a)
{
    return vreinterpretq_s16_u16(a);
}
INLINE vi vi_load(const void *p)
{
    return vld1q_s16(p);
}
INLINE void vi_store(void *p, vi a)
{
    vst1q_s16(p, a);
}
INLINE vi vi_set1(int x)
{
    return vdupq_n_s16((int16_t)x);
}
INLINE vi vi_add(vi a, vi b)
{
    return vaddq_s16(a, b);
}
INLINE vi vi_sub(vi a, vi b)
{
    return vsubq_s16(a, b);
}
INLINE vi vi_sub_sat(vi a, vi b)
{
    return vqsubq_s16(a, b);
}
INLINE vi vi_addu_sat(vi a, vi b)
{
    return vi_s(vqaddq_u16(vi_u(a), vi_u(b)));
}
INLINE vi vi_minu(vi a, vi b)
{
    return vi_s(vminq_u16(vi_u(a), vi_u(b)));
}
/* a < b ? yes : no, unsigned */
INLINE vi vi_less_u(vi a, vi b, vi yes, vi no)
{
    return vbslq_s16(vcltq_u16(vi_u(a), vi_u(b)), yes, no);
}
INLINE vi vi_trunc(vi x)
{
    return vqdmulhq_s16(x, x);
}
/* m | 1 */
INLINE vi vi_trunc_clean(vi m)
{
    return vorrq_s16(m, vi_set1(1));
}
INLINE vi vi_round(vi x)
{
    return vqrdmulhq_s16(x, vqaddq_s16(x, x));
}
/* min(|v - w|, 255)^2 */
INLINE vi vi_square(vi v, vi w)
{
    vi d = vi_minu(vabdq_s16(v, w), vi_set1(255));
    return vmulq_s16(d, d);
}
/* (m & ~63) | 32 */
INLINE vi vi_exact_clean(vi m)
{
    return vaddq_s16(vorrq_s16(m, vi_set1(63)), vi_set1(-31));
}
INLINE vi vi_zip_lo(vi a, vi b)
{
    return vzip1q_s16(a, b);
}
INLINE vi vi_zip_hi(vi a, vi b)
{
    return vzip2q_s16(a, b);
}
INLINE void vi_store_row(const vi *v, unsigned count, uint16_t *to)
{
    for (unsigned j = 0; j < count; j++)
        vi_store(to + j * LANES, v[j]);
}

/* Each value * grid to the nearest integer, halves up, then * 2^shift. */
static void natural_values(const uint16_t *f16, float grid, int shift, int16_t *out)
{
    float32x4_t half = vdupq_n_f32(0.5f);

    for (unsigned s = 0; s < 65536; s += 4) {
        float32x4_t x = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(f16 + s)));
        x = vaddq_f32(vmulq_n_f32(x, grid), half);
        int32x4_t i = vshlq_s32(vcvtmq_s32_f32(x), vdupq_n_s32(shift));
        vst1_s16(out + s, vmovn_s32(i));
    }
}

#define HALF 1

/* x / 8 as half-precision numbers */
INLINE vi vi_half(vi x)
{
    return vreinterpretq_s16_f16(vmulq_n_f16(vcvtq_f16_s16(x), 0.125f));
}
INLINE vi vi_half_sum(vi w, vi value, vi cost)
{
    float16x8_t d = vsubq_f16(vreinterpretq_f16_s16(w), vreinterpretq_f16_s16(value));
    return vreinterpretq_s16_f16(vfmaq_f16(vreinterpretq_f16_s16(cost), d, d));
}
/* As integers: positive numbers have their order. */
INLINE vi vi_half_min(vi a, vi b)
{
    return vi_minu(a, b);
}

#include "kern/trellis_body.h"

void kd_kern_set_exl3_neon(struct kd_kern *k)
{
    k->trellis_search = search_tiles;
    kd_exl3_set_products_neon(k);
}
