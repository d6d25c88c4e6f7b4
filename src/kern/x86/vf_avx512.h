/* The vector a body is written in, for AVX-512: VF_W floats a register, LANE_REGS registers for
 * the 16 lanes of DOT16. The same names exist in vf_avx2.h and vf_neon.h. */
#ifndef KD_KERN_VF_AVX512_H
#define KD_KERN_VF_AVX512_H

#include <immintrin.h>
#include <stdint.h>

enum {
    VF_W = 16,
    LANE_REGS = 16 / VF_W,
    GEMV_ROWS = 8,
    MM_ROWS = 4,   /* register block of the products: rows ... */
    MM_TOKENS = 6, /* ... by tokens; at most 6 */
    TN_ROWS = 8,   /* register block of gemm_tn: rows ... */
    TN_REGS = 3    /* ... by registers */
};

typedef __m512 vf;

static inline vf vf_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* VF_W bf16 values. */
static inline vf vf_load_bf16(const uint16_t *p)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* VF_W fp16 values. */
static inline vf vf_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

/* What decodes the codes of one MXFP4 group: here all 16 values times the group's scale. */
typedef __m512 fp4_key;

static inline fp4_key fp4_prepare(float scale)
{
    const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f,
                                         -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    return _mm512_mul_ps(values, _mm512_set1_ps(scale));
}

/* 16 codes from 8 bytes: each dword gets the byte that starts at its nibble, and the permutation
 * looks at 4 bits of it only. */
static inline void fp4_load16(const uint8_t *p, fp4_key key, vf out[LANE_REGS])
{
    const __m512i nibbles =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);
    long long codes;
    __builtin_memcpy(&codes, p, sizeof codes);
    __m512i index = _mm512_multishift_epi64_epi8(nibbles, _mm512_set1_epi64(codes));
    out[0] = _mm512_permutexvar_ps(index, key);
}

/* VF_W signed bytes. */
static inline vf vf_load_i8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

/* One block of ggml's MXFP4, codes alone: 32 values, low nibbles first. A zero is +0 whatever its
 * sign. */
static inline void fp4_load32(const uint8_t *p, fp4_key key, vf out[2 * LANE_REGS])
{
    __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    out[0] = _mm512_add_ps(_mm512_permutexvar_ps(codes, key), _mm512_setzero_ps());
    out[1] =
        _mm512_add_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), key), _mm512_setzero_ps());
}

static inline float vf_fold16(const float *lane)
{
    __m256 a = _mm256_add_ps(_mm256_loadu_ps(lane), _mm256_loadu_ps(lane + 8));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* The butterfly at distance h < VF_W inside each register: lane l becomes v[l] + v[l + h] where bit
 * h of l is clear, v[l - h] - v[l] where it is set. */
static inline vf vf_butterfly(vf v, int h)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512 s = h == 1   ? _mm512_permute_ps(v, 0xB1)
               : h == 2 ? _mm512_permute_ps(v, 0x4E)
               : h == 4 ? _mm512_shuffle_f32x4(v, v, 0xB1)
                        : _mm512_shuffle_f32x4(v, v, 0x4E);
    return _mm512_mask_sub_ps(_mm512_add_ps(s, v),
                              _mm512_test_epi32_mask(lane, _mm512_set1_epi32(h)), s, v);
}

#endif
