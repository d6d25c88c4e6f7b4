/* Primitives of the trellis search for AVX-512: 32 lanes. */
#ifndef KD_KERN_X86_TRELLIS_AVX512_H
#define KD_KERN_X86_TRELLIS_AVX512_H

#include "kern/trellis_scratch.h"

#include <immintrin.h>

#define LANES      32u
#define TILES      KD_TRELLIS_PAIR
#define ABREAST    TILES
#define TRUNC_BITS 2
#define TRUNC_FREE 3

typedef __m512i vi;

#define INLINE static inline __attribute__((always_inline))

INLINE vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
INLINE void vi_store(void *p, vi a)
{
    _mm512_storeu_si512(p, a);
}
INLINE vi vi_set1(int x)
{
    return _mm512_set1_epi16((short)x);
}
INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi16(a, b);
}
INLINE vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi16(a, b);
}
INLINE vi vi_sub_sat(vi a, vi b)
{
    return _mm512_subs_epi16(a, b);
}
INLINE vi vi_addu_sat(vi a, vi b)
{
    return _mm512_adds_epu16(a, b);
}
INLINE vi vi_minu(vi a, vi b)
{
    return _mm512_min_epu16(a, b);
}
/* a < b ? yes : no, unsigned */
INLINE vi vi_less_u(vi a, vi b, vi yes, vi no)
{
    return _mm512_mask_mov_epi16(no, _mm512_cmplt_epu16_mask(a, b), yes);
}
INLINE vi vi_trunc(vi x)
{
    return _mm512_mulhi_epi16(x, x);
}
/* (m & ~3) | 2 */
INLINE vi vi_trunc_clean(vi m)
{
    return _mm512_ternarylogic_epi32(m, _mm512_set1_epi16(3), _mm512_set1_epi16(2),
                                     (0xF0 & ~0xCC) | 0xAA);
}
INLINE vi vi_round(vi x)
{
    return _mm512_mulhrs_epi16(x, _mm512_adds_epi16(x, x));
}
/* min(|v - w|, 255)^2 */
INLINE vi vi_square(vi v, vi w)
{
    vi d = _mm512_min_epu16(_mm512_abs_epi16(_mm512_sub_epi16(v, w)), _mm512_set1_epi16(255));
    return _mm512_mullo_epi16(d, d);
}
/* (m & ~63) | 32 */
INLINE vi vi_exact_clean(vi m)
{
    return _mm512_ternarylogic_epi32(m, _mm512_set1_epi16(63), _mm512_set1_epi16(32),
                                     (0xF0 & ~0xCC) | 0xAA);
}

/* Within quarters of 128 bits, which vi_store_row puts in order: a shuffle of words of whole
 * vectors takes as long as three of these. */
INLINE vi vi_zip_lo(vi a, vi b)
{
    return _mm512_unpacklo_epi16(a, b);
}
INLINE vi vi_zip_hi(vi a, vi b)
{
    return _mm512_unpackhi_epi16(a, b);
}
/* Quarter q of v[j] goes to place q * count + j; those of two neighbours are stored together. */
INLINE void vi_store_row(const vi *v, unsigned count, uint16_t *to)
{
    const vi even = _mm512_set_epi64(13, 12, 5, 4, 9, 8, 1, 0),
             odd = _mm512_set_epi64(15, 14, 7, 6, 11, 10, 3, 2);

    for (unsigned j = 0; j < count; j += 2) {
        vi x = _mm512_permutex2var_epi64(v[j], even, v[j + 1]);
        vi y = _mm512_permutex2var_epi64(v[j], odd, v[j + 1]);
        _mm256_storeu_si256((void *)(to + j * 8), _mm512_castsi512_si256(x));
        _mm256_storeu_si256((void *)(to + (count + j) * 8), _mm512_castsi512_si256(y));
        _mm256_storeu_si256((void *)(to + (2 * count + j) * 8), _mm512_extracti64x4_epi64(x, 1));
        _mm256_storeu_si256((void *)(to + (3 * count + j) * 8), _mm512_extracti64x4_epi64(y, 1));
    }
}
/* Each value * grid to the nearest integer, halves up, then * 2^shift. */
static void natural_values(const uint16_t *f16, float grid, int shift, int16_t *out)
{
    __m512 scale = _mm512_set1_ps(grid), half = _mm512_set1_ps(0.5f);
    __m128i left = _mm_cvtsi32_si128(shift);

    for (unsigned s = 0; s < 65536; s += 16) {
        __m512 x = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(f16 + s)));
        x = _mm512_add_ps(_mm512_mul_ps(x, scale), half);
        x = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
        __m512i i = _mm512_sll_epi32(_mm512_cvttps_epi32(x), left);
        _mm256_storeu_si256((void *)(out + s), _mm512_cvtepi32_epi16(i));
    }
}

#endif
