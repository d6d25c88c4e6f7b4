/* The vector a body is written in, for AVX2; see vf_avx512.h. */
#ifndef KD_KERN_VF_AVX2_H
#define KD_KERN_VF_AVX2_H

#include <immintrin.h>
#include <stdint.h>

enum {
    VF_W = 8,
    LANE_REGS = 16 / VF_W,
    GEMV_ROWS = 4,
    MM_ROWS = 4,
    MM_TOKENS = 3,
    TN_ROWS = 4,
    TN_REGS = 3
};

typedef __m256 vf;

static inline vf vf_zero(void)
{
    return _mm256_setzero_ps();
}

static inline vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf vf_load_bf16(const uint16_t *p)
{
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static inline vf vf_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* The eight magnitudes times the scale; the sign is put on by exclusive or. */
typedef __m256 fp4_key;

static inline fp4_key fp4_prepare(float scale)
{
    const __m256 values = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    return _mm256_mul_ps(values, _mm256_set1_ps(scale));
}

static inline void fp4_load16(const uint8_t *p, fp4_key key, vf out[LANE_REGS])
{
    const __m256i nibbles = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i sign = _mm256_set1_epi32((int)0x80000000u);
    for (int l = 0; l < LANE_REGS; l++) {
        int codes;
        __builtin_memcpy(&codes, p + 4 * l, sizeof codes);
        __m256i index = _mm256_srlv_epi32(_mm256_set1_epi32(codes), nibbles);
        __m256i flip = _mm256_and_si256(_mm256_slli_epi32(index, 28), sign);
        out[l] = _mm256_xor_ps(_mm256_permutevar8x32_ps(key, index), _mm256_castsi256_ps(flip));
    }
}

/* VF_W signed bytes. */
static inline vf vf_load_i8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

/* One block of ggml's MXFP4, codes alone: 32 values, low nibbles first. A zero is +0 whatever its
 * sign. */
static inline void fp4_load32(const uint8_t *p, fp4_key key, vf out[2 * LANE_REGS])
{
    const __m256i sign = _mm256_set1_epi32((int)0x80000000u);
    for (int l = 0; l < 2 * LANE_REGS; l++) {
        __m256i code =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p + l % 2 * 8)));
        if (l >= LANE_REGS)
            code = _mm256_srli_epi32(code, 4);
        __m256i flip = _mm256_and_si256(_mm256_slli_epi32(code, 28), sign);
        __m256 v = _mm256_xor_ps(_mm256_permutevar8x32_ps(key, code), _mm256_castsi256_ps(flip));
        out[l] = _mm256_add_ps(v, _mm256_setzero_ps());
    }
}

static inline float vf_fold16(const float *lane)
{
    __m256 a = _mm256_add_ps(_mm256_loadu_ps(lane), _mm256_loadu_ps(lane + 8));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

static inline vf vf_butterfly(vf v, int h)
{
    if (h == 1) {
        __m256 s = _mm256_permute_ps(v, 0xB1);
        return _mm256_blend_ps(_mm256_add_ps(s, v), _mm256_sub_ps(s, v), 0xAA);
    }
    if (h == 2) {
        __m256 s = _mm256_permute_ps(v, 0x4E);
        return _mm256_blend_ps(_mm256_add_ps(s, v), _mm256_sub_ps(s, v), 0xCC);
    }
    __m256 s = _mm256_permute2f128_ps(v, v, 1);
    return _mm256_blend_ps(_mm256_add_ps(s, v), _mm256_sub_ps(s, v), 0xF0);
}

#endif
