/* Primitives of the trellis search for AVX-512: 32 lanes, branches as mask registers. */
#include "kern/exl3_sets.h"
#include "kern/trellis_scratch.h"

#include <immintrin.h>

#define LANES 32u
#define TILES KD_TRELLIS_PAIR
#define STEP_TRACE 8192
#define TRUNC_BITS 2

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
INLINE vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
INLINE vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
INLINE vi vi_min(vi a, vi b)
{
    return _mm512_min_epi16(a, b);
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
/* All surplus bits of a minimum set, and as a cost. */
INLINE vi vi_trunc_full(vi m)
{
    return _mm512_or_si512(m, _mm512_set1_epi16(3));
}
INLINE vi vi_trunc_clean(vi m)
{
    return _mm512_ternarylogic_epi32(m, _mm512_set1_epi16(3), _mm512_set1_epi16(2), (0xF0 & ~0xCC) | 0xAA);
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
/* (x & ~mask) | label */
INLINE vi vi_label(vi x, vi mask, vi label)
{
    return _mm512_ternarylogic_epi32(x, mask, label, (0xF0 & ~0xCC) | 0xAA);
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
INLINE void store_bytes(uint8_t *to, vi v)
{
    _mm256_storeu_si256((void *)to, _mm512_cvtepi16_epi8(v));
}

/* Branches of FORM_TRUNC: a mask of the lanes that hold the minimum for each branch but the last. */
INLINE unsigned trunc_trace_bytes(unsigned c)
{
    return 4u * ((1u << c) - 1u);
}
INLINE void trunc_record(uint8_t *to, const vi *x, unsigned branches, vi m)
{
#pragma GCC unroll 16
    for (unsigned b = 0; b + 1 < branches; b++) {
        __mmask32 k = _mm512_cmple_epi16_mask(x[b], m);
        __builtin_memcpy(to + 4 * b, &k, 4);
    }
}
INLINE unsigned trunc_branch(const uint8_t *from, unsigned lane, unsigned c)
{
    unsigned b = 0, last = (1u << c) - 1u;
    while (b < last && !(from[4 * b + lane / 8] >> lane % 8 & 1))
        b++;
    return b;
}

/* Branches of FORM_ROUND: masks of the lanes where a branch is less than all before it. */
INLINE unsigned round_trace_bytes(unsigned c)
{
    return 4u << c;
}
struct round_trace {
    char unused;
};
INLINE struct round_trace round_begin(unsigned branches)
{
    (void)branches;
    return (struct round_trace){0};
}
INLINE void round_note(struct round_trace *r, uint8_t *to, unsigned b, vi x, vi m)
{
    __mmask32 k = _mm512_cmplt_epu16_mask(x, m);
    (void)r;
    __builtin_memcpy(to + 4 * b, &k, 4);
}
INLINE void round_end(struct round_trace *r, uint8_t *to)
{
    (void)r, (void)to;
}
INLINE unsigned round_branch(const uint8_t *from, unsigned lane, unsigned c)
{
    unsigned last = (1u << c) - 1u, b = last;
    while (!(from[4 * b + lane / 8] >> lane % 8 & 1))
        if (!b--)
            return last;
    return b;
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
