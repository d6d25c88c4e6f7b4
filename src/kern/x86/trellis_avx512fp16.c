/* The trellis search for AVX-512 with arithmetic in half precision (AVX512-FP16). */
#include "kern/exl3_sets.h"
#include "kern/x86/trellis_avx512.h"

#define HALF 1

/* x / 8 as half-precision numbers */
INLINE vi vi_half(vi x)
{
    return (vi)_mm512_mul_ph(_mm512_cvtepi16_ph(x), (__m512h)vi_set1(0x3000));
}
INLINE vi vi_half_sum(vi w, vi value, vi cost)
{
    __m512h d = _mm512_sub_ph((__m512h)w, (__m512h)value);
    return (vi)_mm512_fmadd_ph(d, d, (__m512h)cost);
}
INLINE vi vi_half_min(vi a, vi b)
{
    return (vi)_mm512_min_ph((__m512h)a, (__m512h)b);
}

#include "kern/trellis_body.h"

void kd_kern_set_exl3_avx512fp16(struct kd_kern *k)
{
    k->trellis_search = search_tiles;
    kd_exl3_set_products_avx512fp16(k);
}
