/* EXL3 decoding and products for AVX2: eight positions, which are four rows of columns c and c + 8.
 */
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define WIDTH   8
#define ABREAST 4
#define INTS    __m256i
#define FLOATS  __m256
#define INLINE  static inline __attribute__((always_inline))

#include "num/trellis_step.h"

INLINE __m256i windows(const uint8_t *back, const uint8_t *pick, const int32_t *shift)
{
    __m256i x = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)back));

    x = _mm256_shuffle_epi8(x, _mm256_loadu_si256((const void *)pick));
    x = _mm256_srlv_epi32(x, _mm256_loadu_si256((const void *)shift));
    return _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
}

/* mul1: the sum of the bytes of each product. */
INLINE __m256i sums_of(__m256i s)
{
    __m256i x = _mm256_mullo_epi32(s, _mm256_set1_epi32((int)0x83DCD12Du));
    return _mm256_madd_epi16(_mm256_maddubs_epi16(x, _mm256_set1_epi8(1)), _mm256_set1_epi16(1));
}

/* The sum in the low bits of the float 2^23; one fma makes 8192 times the value f, exactly, and
 * (8192 f + f) - 8192 f rounds f to 11 bits. */
INLINE void values_mul1(const __m256i s[ABREAST], __m256 v[ABREAST])
{
    const __m256i mul = _mm256_set1_epi32((int)0x83DCD12Du);
    __m256i x[ABREAST];
    __m256 t[ABREAST];

#pragma GCC unroll 8
    for (int j = 0; j < ABREAST; j++)
        x[j] = _mm256_mullo_epi32(s[j], mul);
#pragma GCC unroll 8
    for (int j = 0; j < ABREAST; j++)
        x[j] = _mm256_maddubs_epi16(x[j], _mm256_set1_epi8(1));
#pragma GCC unroll 8
    for (int j = 0; j < ABREAST; j++)
        x[j] = _mm256_madd_epi16(x[j], _mm256_set1_epi16(1));
#pragma GCC unroll 8
    for (int j = 0; j < ABREAST; j++)
        x[j] = _mm256_or_si256(x[j], _mm256_set1_epi32(0x4B000000));
#pragma GCC unroll 8
    for (int j = 0; j < ABREAST; j++)
        v[j] = _mm256_fmadd_ps(_mm256_castsi256_ps(x[j]), _mm256_set1_ps(887.0f / 16.0f),
                               _mm256_set1_ps(-56771.453125f * 8192.0f));
#pragma GCC unroll 8
    for (int j = 0; j < ABREAST; j++)
        x[j] = _mm256_sub_epi32(_mm256_castps_si256(v[j]), _mm256_set1_epi32(13 << 23));
#pragma GCC unroll 8
    for (int j = 0; j < ABREAST; j++)
        t[j] = _mm256_add_ps(v[j], _mm256_castsi256_ps(x[j]));
#pragma GCC unroll 8
    for (int j = 0; j < ABREAST; j++)
        v[j] = _mm256_sub_ps(t[j], v[j]);
}

/* The byte sums less 510, the same way. */
INLINE void sums_mul1(const __m256i s[ABREAST], __m256 v[ABREAST])
{
    __m256i x[ABREAST];

#pragma GCC unroll 8
    for (int j = 0; j < ABREAST; j++)
        x[j] = _mm256_or_si256(sums_of(s[j]), _mm256_set1_epi32(0x4B000000));
#pragma GCC unroll 8
    for (int j = 0; j < ABREAST; j++)
        v[j] = _mm256_sub_ps(_mm256_castsi256_ps(x[j]), _mm256_set1_ps(8388608.0f + 510.0f));
}

INLINE __m256 value_halves(__m256i s, bool mcg)
{
    __m256i x = mcg ? _mm256_mullo_epi32(s, _mm256_set1_epi32((int)0xCBAC1FEDu))
                    : _mm256_add_epi32(_mm256_mullo_epi32(s, _mm256_set1_epi32(89226354)),
                                       _mm256_set1_epi32(64248484));
    x = _mm256_xor_si256(_mm256_and_si256(x, _mm256_set1_epi32((int)0x8FFF8FFFu)),
                         _mm256_set1_epi32(0x3B603B60));
    __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(0xffff)), high = _mm256_srli_epi32(x, 16);
    __m256 a = _mm256_cvtph_ps(
        _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
    __m256 b = _mm256_cvtph_ps(
        _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)));
    return _mm256_cvtph_ps(_mm256_cvtps_ph(_mm256_add_ps(a, b), _MM_FROUND_TO_NEAREST_INT));
}

INLINE __m256 get_floats(const float *p)
{
    return _mm256_loadu_ps(p);
}

INLINE __m256 add_floats(__m256 sum, __m256 v, const float *x)
{
    return _mm256_fmadd_ps(v, _mm256_loadu_ps(x), sum);
}

INLINE void put_floats(float *p, __m256 v)
{
    _mm256_storeu_ps(p, v);
}

/* Rows 2m, 2m + 1, 2m + 8, 2m + 9, twice. */
INLINE __m256 rows(const float *x, int m)
{
    __m256d a = _mm256_castps_pd(_mm256_castps128_ps256(
        _mm_castpd_ps(_mm_loadh_pd(_mm_load_sd((const double *)(const void *)(x + 2 * m)),
                                   (const double *)(const void *)(x + 2 * m + 8)))));
    return _mm256_castpd_ps(_mm256_permute2f128_pd(a, a, 0));
}

/* Columns c and c + 8 keep chains 0..3 in sum[16 c], 4..7 in sum[16 c + 8]; four c at a time. */
static void add_panel(const float *panel, int64_t count, const float *x, float *sum)
{
    for (int half = 0; half < 2; half++, sum += 64) {
        const float *v = panel + 128 * half;
        __m256 s[8];
        for (int c = 0; c < 8; c++)
            s[c] = _mm256_loadu_ps(sum + 8 * c);
        for (int64_t k = 0; k < count; k++, v += 256) {
            __m256 x0 = rows(x + 16 * k, 0), x1 = rows(x + 16 * k, 1), x2 = rows(x + 16 * k, 2),
                   x3 = rows(x + 16 * k, 3);
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) {
                s[2 * c] = _mm256_fmadd_ps(_mm256_loadu_ps(v + 32 * c), x0, s[2 * c]);
                s[2 * c + 1] = _mm256_fmadd_ps(_mm256_loadu_ps(v + 32 * c + 8), x1, s[2 * c + 1]);
                s[2 * c] = _mm256_fmadd_ps(_mm256_loadu_ps(v + 32 * c + 16), x2, s[2 * c]);
                s[2 * c + 1] = _mm256_fmadd_ps(_mm256_loadu_ps(v + 32 * c + 24), x3, s[2 * c + 1]);
            }
        }
        for (int c = 0; c < 8; c++)
            _mm256_storeu_ps(sum + 8 * c, s[c]);
    }
}

static void fold_sums(const float *sum, float *y)
{
    for (int c = 0; c < 8; c++) {
        __m256 a = _mm256_add_ps(_mm256_loadu_ps(sum + 16 * c), _mm256_loadu_ps(sum + 16 * c + 8));
        a = _mm256_add_ps(a, _mm256_shuffle_ps(a, a, 0x4e));
        a = _mm256_add_ps(a, _mm256_shuffle_ps(a, a, 0xb1));
        y[c] = _mm256_cvtss_f32(a);
        y[c + 8] = _mm_cvtss_f32(_mm256_extractf128_ps(a, 1));
    }
}

INLINE __m256i zeros(void)
{
    return _mm256_setzero_si256();
}

INLINE void put_ints(int32_t *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}

/* Both fit 16 bits; the upper half of b is zero. */
INLINE __m256i add_int8(__m256i sum, __m256i b, const int32_t *q)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(b, _mm256_loadu_si256((const void *)q)));
}

#include "kern/exl3_body.h"

void kd_exl3_set_products_avx2(struct kd_kern *k)
{
    k->trellis_decode = decode_tile;
    k->mm_exl3 = mm_exl3;
    k->mv_exl3_int8 = mv_exl3_int8;
}
