/* Primitives of the trellis search for AVX-512: 32 lanes. */
#include "kern/exl3_sets.h"
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

static const uint16_t zip_index[2][32] __attribute__((aligned(64))) = {
    {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
     8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
    {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
     24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};

INLINE vi vi_zip_lo(vi a, vi b)
{
    return _mm512_permutex2var_epi16(a, _mm512_load_si512(zip_index[0]), b);
}
INLINE vi vi_zip_hi(vi a, vi b)
{
    return _mm512_permutex2var_epi16(a, _mm512_load_si512(zip_index[1]), b);
}
INLINE void vi_store_row(const vi *v, unsigned count, uint16_t *to)
{
    for (unsigned j = 0; j < count; j++)
        vi_store(to + j * LANES, v[j]);
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

#include "kern/trellis_body.h"

void kd_kern_set_exl3_avx512(struct kd_kern *k)
{
    k->trellis_search = search_tiles;
    kd_exl3_set_products_avx512(k);
}
