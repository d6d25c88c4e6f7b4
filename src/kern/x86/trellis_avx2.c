/* Primitives of the trellis search for AVX2: 16 lanes. */
#include "kern/exl3_sets.h"
#include "kern/trellis_scratch.h"

#include <immintrin.h>

#define LANES      16u
#define TILES      KD_TRELLIS_PAIR
#define ABREAST    1
#define TRUNC_BITS 2
#define TRUNC_FREE 3

typedef __m256i vi;

#define INLINE static inline __attribute__((always_inline))

INLINE vi vi_load(const void *p)
{
    return _mm256_loadu_si256(p);
}
INLINE void vi_store(void *p, vi a)
{
    _mm256_storeu_si256(p, a);
}
INLINE vi vi_set1(int x)
{
    return _mm256_set1_epi16((short)x);
}
INLINE vi vi_add(vi a, vi b)
{
    return _mm256_add_epi16(a, b);
}
INLINE vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi16(a, b);
}
INLINE vi vi_sub_sat(vi a, vi b)
{
    return _mm256_subs_epi16(a, b);
}
INLINE vi vi_addu_sat(vi a, vi b)
{
    return _mm256_adds_epu16(a, b);
}
INLINE vi vi_minu(vi a, vi b)
{
    return _mm256_min_epu16(a, b);
}
/* a < b ? yes : no, unsigned */
INLINE vi vi_less_u(vi a, vi b, vi yes, vi no)
{
    return _mm256_blendv_epi8(yes, no, _mm256_cmpeq_epi16(_mm256_max_epu16(a, b), a));
}
INLINE vi vi_trunc(vi x)
{
    return _mm256_mulhi_epi16(x, x);
}
/* (m & ~3) | 2 */
INLINE vi vi_trunc_clean(vi m)
{
    return _mm256_add_epi16(_mm256_or_si256(m, vi_set1(3)), vi_set1(-1));
}
INLINE vi vi_round(vi x)
{
    return _mm256_mulhrs_epi16(x, _mm256_adds_epi16(x, x));
}
/* min(|v - w|, 255)^2 */
INLINE vi vi_square(vi v, vi w)
{
    vi d = _mm256_min_epu16(_mm256_abs_epi16(_mm256_sub_epi16(v, w)), vi_set1(255));
    return _mm256_mullo_epi16(d, d);
}
/* (m & ~63) | 32 */
INLINE vi vi_exact_clean(vi m)
{
    return _mm256_add_epi16(_mm256_or_si256(m, vi_set1(63)), vi_set1(-31));
}

/* Within 128-bit halves; vi_store_row puts the halves in order. */
INLINE vi vi_zip_lo(vi a, vi b)
{
    return _mm256_unpacklo_epi16(a, b);
}
INLINE vi vi_zip_hi(vi a, vi b)
{
    return _mm256_unpackhi_epi16(a, b);
}
INLINE void vi_store_row(const vi *v, unsigned count, uint16_t *to)
{
    for (unsigned j = 0; j < count; j++) {
        _mm_storeu_si128((void *)(to + j * 8), _mm256_castsi256_si128(v[j]));
        _mm_storeu_si128((void *)(to + (j + count) * 8), _mm256_extracti128_si256(v[j], 1));
    }
}

/* Each value * grid to the nearest integer, halves up, then * 2^shift. */
static void natural_values(const uint16_t *f16, float grid, int shift, int16_t *out)
{
    __m256 scale = _mm256_set1_ps(grid), half = _mm256_set1_ps(0.5f);
    __m128i left = _mm_cvtsi32_si128(shift);

    for (unsigned s = 0; s < 65536; s += 8) {
        __m256 x = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(f16 + s)));
        x = _mm256_floor_ps(_mm256_add_ps(_mm256_mul_ps(x, scale), half));
        __m256i i = _mm256_sll_epi32(_mm256_cvttps_epi32(x), left);
        _mm_storeu_si128((void *)(out + s), _mm_packs_epi32(_mm256_castsi256_si128(i),
                                                            _mm256_extracti128_si256(i, 1)));
    }
}

#define HALF 0
#include "kern/trellis_body.h"

void kd_kern_set_exl3_avx2(struct kd_kern *k)
{
    k->trellis_search = search_tiles;
    kd_exl3_set_products_avx2(k);
}
