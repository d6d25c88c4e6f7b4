/* Decoding and products for AVX-512. Sixteen successive ring positions are one vector: columns c
 * and c + 8 of a tile, four rows each, twice (docs/numerics.md); the eight chains of a column are
 * lanes. */
#include "kern/exl3_sets.h"
#include "kern/exl3_unpack.h"

#include <immintrin.h>
#include <stdbool.h>

#define FLAT static inline __attribute__((always_inline))

enum {
    PANEL = 16, /* tiles decoded before tokens pass over them: 16 KiB of floats */
    TOKENS = 64 /* that share a panel */
};

/* How windows come out of a tile. WORDS: K = 2, straight from the stored words. QUADS: sixteen
 * windows fit 64 bits. BYTES: any rate. */
enum layout { WORDS, QUADS, BYTES };

struct unpack {
    enum layout layout;
    unsigned bytes;
    enum kd_codebook cb;
    uint16_t at[16];        /* first byte of a group of sixteen positions, in the reversed tile */
    uint8_t pick[16][64];   /* QUADS, WORDS: bit of each byte; BYTES: byte of each byte */
    uint32_t shift[16][16]; /* BYTES */
};

static void unpack_words(struct unpack *u)
{
    for (unsigned j = 0; j < 16; j++) {
        /* A stored pair of words is the ring's 64 bits with their halves swapped. */
        unsigned bit = 30 - 2 * j + 32;
        u->pick[0][4 * j] = (uint8_t)(bit & 63);
        u->pick[0][4 * j + 1] = (uint8_t)((bit + 8) & 63);
    }
}

static void unpack_open(struct unpack *u, struct kd_rate rate, enum kd_codebook cb)
{
    uint16_t place[256];
    bool quads = true;

    u->bytes = kd_rate_tile_bytes(rate);
    u->cb = cb;
    u->layout = WORDS;
    if (rate.base == 2 && rate.mask == 0) {
        unpack_words(u);
        return;
    }
    kd_tile_places(rate, place);
    for (unsigned g = 0; g < 16; g++) {
        u->at[g] = place[16 * g + 15] / 8;
        quads = quads && place[16 * g] + 16 - 8 * u->at[g] <= 64;
    }
    u->layout = quads ? QUADS : BYTES;
    for (unsigned g = 0; g < 16; g++)
        for (unsigned j = 0; j < 16; j++) {
            unsigned bit = place[16 * g + j] - 8u * u->at[g];
            for (unsigned i = 0; i < 4; i++)
                u->pick[g][4 * j + i] = (uint8_t)(quads ? (bit + 8 * i) & 63 : bit / 8 + i);
            u->shift[g][j] = bit % 8;
        }
}

/* The states of group g, in 32-bit lanes. */
FLAT __m512i states(const struct unpack *u, const enum layout layout, const uint8_t *tile,
                    const uint8_t *back, unsigned g)
{
    const __mmask64 low = 0x3333333333333333u;
    uint64_t bits;

    if (layout == WORDS) {
        if (g)
            memcpy(&bits, tile + 4 * g - 4, 8);
        else {
            uint32_t first, last;
            memcpy(&first, tile, 4);
            memcpy(&last, tile + 60, 4);
            bits = (uint64_t)first << 32 | last;
        }
        return _mm512_maskz_multishift_epi64_epi8(low, _mm512_loadu_si512(u->pick[0]),
                                                  _mm512_set1_epi64((long long)bits));
    }
    if (layout == QUADS) {
        memcpy(&bits, back + u->at[g], 8);
        return _mm512_maskz_multishift_epi64_epi8(low, _mm512_loadu_si512(u->pick[g]),
                                                  _mm512_set1_epi64((long long)bits));
    }
    __m512i x = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)(back + u->at[g])));
    x = _mm512_permutexvar_epi8(_mm512_loadu_si512(u->pick[g]), x);
    x = _mm512_srlv_epi32(x, _mm512_loadu_si512(u->shift[g]));
    return _mm512_and_si512(x, _mm512_set1_epi32(0xffff));
}

/* mul1, GROUPS vectors abreast, stage by stage, because one after the other would fill the
 * scheduler with work that waits. The byte sum lands in the low bits of the float 2^23 and one fma
 * makes the value f (exact). Splitting it at 11 bits then rounds it to fp16: t = 8193 f, t - (t -
 * f); no value is zero, subnormal or a tie that this would round the wrong way (tested). 8192 f is
 * an addition to the exponent. */
enum { GROUPS = 4 };

FLAT void values_mul1(const __m512i s[GROUPS], __m512 v[GROUPS])
{
    const __m512i mul = _mm512_set1_epi32((int)0x83DCD12Du), ones = _mm512_set1_epi32(0x01010101);
    const __m512 slope = _mm512_set1_ps(887.0f / 131072.0f), start = _mm512_set1_ps(-56771.453125f);
    __m512i x[GROUPS];
    __m512 t[GROUPS];

#pragma GCC unroll 4
    for (unsigned j = 0; j < GROUPS; j++)
        x[j] = _mm512_mullo_epi32(s[j], mul);
#pragma GCC unroll 4
    for (unsigned j = 0; j < GROUPS; j++)
        x[j] = _mm512_dpbusd_epi32(_mm512_set1_epi32(0x4B000000), x[j], ones);
#pragma GCC unroll 4
    for (unsigned j = 0; j < GROUPS; j++)
        v[j] = _mm512_fmadd_ps(_mm512_castsi512_ps(x[j]), slope, start);
#pragma GCC unroll 4
    for (unsigned j = 0; j < GROUPS; j++) {
        __m512i up = _mm512_add_epi32(_mm512_castps_si512(v[j]), _mm512_set1_epi32(13 << 23));
        t[j] = _mm512_add_ps(v[j], _mm512_castsi512_ps(up));
    }
#pragma GCC unroll 4
    for (unsigned j = 0; j < GROUPS; j++)
        v[j] = _mm512_sub_ps(t[j], v[j]);
#pragma GCC unroll 4
    for (unsigned j = 0; j < GROUPS; j++)
        v[j] = _mm512_sub_ps(t[j], v[j]);
}

FLAT __m512 value_halves(__m512i s, bool mcg)
{
    __m512i x = mcg ? _mm512_mullo_epi32(s, _mm512_set1_epi32((int)0xCBAC1FEDu))
                    : _mm512_add_epi32(_mm512_mullo_epi32(s, _mm512_set1_epi32(89226354)),
                                       _mm512_set1_epi32(64248484));
    x = _mm512_xor_si512(_mm512_and_si512(x, _mm512_set1_epi32((int)0x8FFF8FFFu)),
                         _mm512_set1_epi32(0x3B603B60));
    __m512 a = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x));
    __m512 b = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16)));
    return _mm512_cvtph_ps(_mm512_cvtps_ph(_mm512_add_ps(a, b), _MM_FROUND_TO_NEAREST_INT));
}

/* 256 floats in ring order. */
FLAT void decode_layout(const struct unpack *u, const enum layout layout, const uint8_t *tile,
                        const uint8_t *back, float *out)
{
    for (unsigned g = 0; g < 16; g += GROUPS) {
        __m512i s[GROUPS];
        __m512 v[GROUPS];
#pragma GCC unroll 4
        for (unsigned j = 0; j < GROUPS; j++)
            s[j] = states(u, layout, tile, back, g + j);
        if (u->cb == KD_CB_MUL1)
            values_mul1(s, v);
        else
            for (unsigned j = 0; j < GROUPS; j++)
                v[j] = value_halves(s[j], u->cb == KD_CB_MCG);
        for (unsigned j = 0; j < GROUPS; j++)
            _mm512_storeu_ps(out + 16 * (g + j), v[j]);
    }
}

static void decode_ring(const struct unpack *u, const uint8_t *tile, float *out)
{
    uint8_t back[KD_TILE_BACK];

    if (u->layout == WORDS) {
        decode_layout(u, WORDS, tile, NULL, out);
        return;
    }
    kd_tile_reverse(tile, u->bytes, back);
    if (u->layout == QUADS)
        decode_layout(u, QUADS, tile, back, out);
    else
        decode_layout(u, BYTES, tile, back, out);
}

static void decode_tile(const uint8_t *tile, struct kd_rate rate, enum kd_codebook cb,
                        float out[256])
{
    struct unpack u;
    float ring[256];

    unpack_open(&u, rate, cb);
    decode_ring(&u, tile, ring);
    for (unsigned p = 0; p < 256; p++)
        out[16 * kd_tile_row(p) + kd_tile_col(p)] = ring[p];
}

static const int32_t row_lanes[2][16] = {{0, 1, 8, 9, 0, 1, 8, 9, 2, 3, 10, 11, 2, 3, 10, 11},
                                         {4, 5, 12, 13, 4, 5, 12, 13, 6, 7, 14, 15, 6, 7, 14, 15}};

/* Sums of columns c and c + 8 for each pair c into y[16]. */
FLAT void fold(const __m512 sum[8], float *y)
{
    for (unsigned c = 0; c < 8; c++) {
        __m256 a = _mm256_add_ps(_mm512_castps512_ps256(sum[c]), _mm512_extractf32x8_ps(sum[c], 1));
        a = _mm256_add_ps(a, _mm256_shuffle_ps(a, a, 0x4e));
        a = _mm256_add_ps(a, _mm256_shuffle_ps(a, a, 0xb1));
        y[c] = _mm256_cvtss_f32(a);
        y[c + 8] = _mm_cvtss_f32(_mm256_extractf128_ps(a, 1));
    }
}

/* One token with mul1: sixteen outputs, values straight from the codes. */
FLAT void column(const struct unpack *u, const enum layout layout, const uint8_t *tile,
                 int64_t step, int64_t k_tiles, const float *x, float *y)
{
    const __m512i lanes0 = _mm512_loadu_si512(row_lanes[0]),
                  lanes1 = _mm512_loadu_si512(row_lanes[1]);
    uint8_t back[2][KD_TILE_BACK];
    __m512 sum[8];

    for (unsigned c = 0; c < 8; c++)
        sum[c] = _mm512_setzero_ps();
    if (layout != WORDS)
        kd_tile_reverse(tile, u->bytes, back[0]);
    for (int64_t k = 0; k < k_tiles; k++, tile += step) {
        __m512 xk = _mm512_loadu_ps(x + 16 * k);
        __m512 x0 = _mm512_permutexvar_ps(lanes0, xk), x1 = _mm512_permutexvar_ps(lanes1, xk);
        kd_tile_prefetch(tile + 8 * step, u->bytes);
        /* The next tile is turned round while this one is used. */
        if (layout != WORDS && k + 1 < k_tiles)
            kd_tile_reverse(tile + step, u->bytes, back[(k + 1) & 1]);
#pragma GCC unroll 4
        for (unsigned c = 0; c < 8; c += GROUPS / 2) {
            __m512i s[GROUPS];
            __m512 v[GROUPS];
#pragma GCC unroll 4
            for (unsigned j = 0; j < GROUPS; j++)
                s[j] = states(u, layout, tile, back[k & 1], 2 * c + j);
            values_mul1(s, v);
#pragma GCC unroll 4
            for (unsigned j = 0; j < GROUPS; j++)
                sum[c + j / 2] = _mm512_fmadd_ps(v[j], j % 2 ? x1 : x0, sum[c + j / 2]);
        }
    }
    fold(sum, y);
}

static void columns(const struct unpack *u, const struct kd_exl3_block *b, const float *x, float *y)
{
    int64_t step = b->row_tiles * u->bytes;

    for (int64_t n = 0; n < b->n_tiles; n++) {
        const uint8_t *tile = b->codes + n * u->bytes;
        if (u->layout == WORDS)
            column(u, WORDS, tile, step, b->k_tiles, x, y + 16 * n);
        else if (u->layout == QUADS)
            column(u, QUADS, tile, step, b->k_tiles, x, y + 16 * n);
        else
            column(u, BYTES, tile, step, b->k_tiles, x, y + 16 * n);
    }
}

/* Many tokens: sums of 16 columns for a token over `count` decoded tiles. */
static void add_panel(const float *panel, int64_t count, const float *x, float (*sum)[16])
{
    const __m512i lanes0 = _mm512_loadu_si512(row_lanes[0]),
                  lanes1 = _mm512_loadu_si512(row_lanes[1]);
    __m512 s[8];

    for (unsigned c = 0; c < 8; c++)
        s[c] = _mm512_loadu_ps(sum[c]);
    for (int64_t k = 0; k < count; k++) {
        __m512 xk = _mm512_loadu_ps(x + 16 * k);
        __m512 x0 = _mm512_permutexvar_ps(lanes0, xk), x1 = _mm512_permutexvar_ps(lanes1, xk);
        for (unsigned c = 0; c < 8; c++) {
            s[c] = _mm512_fmadd_ps(_mm512_loadu_ps(panel + 256 * k + 32 * c), x0, s[c]);
            s[c] = _mm512_fmadd_ps(_mm512_loadu_ps(panel + 256 * k + 32 * c + 16), x1, s[c]);
        }
    }
    for (unsigned c = 0; c < 8; c++)
        _mm512_storeu_ps(sum[c], s[c]);
}

static void mm_exl3(const struct kd_exl3_block *b, const float *x, int64_t ldx, int64_t T, float *y,
                    int64_t ldy)
{
    struct unpack u;
    float panel[PANEL * 256], sum[TOKENS][8][16];

    unpack_open(&u, b->rate, b->cb);
    if (T == 1 && b->cb == KD_CB_MUL1) {
        columns(&u, b, x, y);
        return;
    }
    for (int64_t n = 0; n < b->n_tiles; n++)
        for (int64_t t0 = 0; t0 < T; t0 += TOKENS) {
            int64_t tokens = T - t0 < TOKENS ? T - t0 : TOKENS;
            memset(sum, 0, sizeof sum);
            for (int64_t k = 0; k < b->k_tiles; k += PANEL) {
                int64_t count = b->k_tiles - k < PANEL ? b->k_tiles - k : PANEL;
                for (int64_t i = 0; i < count; i++) {
                    const uint8_t *tile = b->codes + ((k + i) * b->row_tiles + n) * u.bytes;
                    kd_tile_prefetch(tile + 8 * b->row_tiles * u.bytes, u.bytes);
                    decode_ring(&u, tile, panel + 256 * i);
                }
                for (int64_t t = 0; t < tokens; t++)
                    add_panel(panel, count, x + (t0 + t) * ldx + 16 * k, sum[t]);
            }
            for (int64_t t = 0; t < tokens; t++) {
                __m512 s[8];
                for (unsigned c = 0; c < 8; c++)
                    s[c] = _mm512_loadu_ps(sum[t][c]);
                fold(s, y + (t0 + t) * ldy + 16 * n);
            }
        }
}

/* q replicated into the four bytes of the lanes of both halves of a tile's rows. */
FLAT __m512i rows_bytes(const int8_t *q, unsigned half)
{
    static const uint8_t rows[2][16] = {{0, 1, 8, 9, 0, 1, 8, 9, 2, 3, 10, 11, 2, 3, 10, 11},
                                        {4, 5, 12, 13, 4, 5, 12, 13, 6, 7, 14, 15, 6, 7, 14, 15}};
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const void *)q));
    __m512i at = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)rows[half]));
    at = _mm512_mullo_epi32(at, _mm512_set1_epi32(0x01010101));
    return _mm512_permutexvar_epi8(at, x);
}

FLAT void column_int8(const struct unpack *u, const enum layout layout, const uint8_t *tile,
                      int64_t step, int64_t k_tiles, const int8_t *q, int64_t *sum)
{
    uint8_t back[2][KD_TILE_BACK];
    __m512i s[8];

    for (unsigned c = 0; c < 8; c++)
        s[c] = _mm512_setzero_si512();
    if (layout != WORDS)
        kd_tile_reverse(tile, u->bytes, back[0]);
    for (int64_t k = 0; k < k_tiles; k++, tile += step) {
        __m512i q0 = rows_bytes(q + 16 * k, 0), q1 = rows_bytes(q + 16 * k, 1);
        const __m512i m = _mm512_set1_epi32((int)0x83DCD12Du);
        kd_tile_prefetch(tile + 8 * step, u->bytes);
        if (layout != WORDS && k + 1 < k_tiles)
            kd_tile_reverse(tile + step, u->bytes, back[(k + 1) & 1]);
#pragma GCC unroll 8
        for (unsigned c = 0; c < 8; c++) {
            __m512i a = _mm512_mullo_epi32(states(u, layout, tile, back[k & 1], 2 * c), m);
            __m512i b = _mm512_mullo_epi32(states(u, layout, tile, back[k & 1], 2 * c + 1), m);
            s[c] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(s[c], a, q0), b, q1);
        }
    }
    for (unsigned c = 0; c < 8; c++) {
        int32_t lane[16];
        _mm512_storeu_si512(lane, s[c]);
        sum[c] = sum[c + 8] = 0;
        for (unsigned j = 0; j < 16; j++)
            sum[c + (j & 4) * 2] += lane[j];
    }
}

static void mv_exl3_int8(const struct kd_exl3_block *b, const int8_t *q, float scale, float *y)
{
    struct unpack u;
    int64_t sum[16], total = 0, step;

    unpack_open(&u, b->rate, KD_CB_MUL1);
    step = b->row_tiles * u.bytes;
    for (int64_t i = 0; i < 16 * b->k_tiles; i++)
        total += q[i];
    for (int64_t n = 0; n < b->n_tiles; n++) {
        const uint8_t *tile = b->codes + n * u.bytes;
        if (u.layout == WORDS)
            column_int8(&u, WORDS, tile, step, b->k_tiles, q, sum);
        else if (u.layout == QUADS)
            column_int8(&u, QUADS, tile, step, b->k_tiles, q, sum);
        else
            column_int8(&u, BYTES, tile, step, b->k_tiles, q, sum);
        for (unsigned c = 0; c < 16; c++)
            y[16 * n + c] = kd_exl3_int8_sum(sum[c], total, scale);
    }
}

void kd_exl3_set_products_avx512(struct kd_kern *k)
{
    k->trellis_decode = decode_tile;
    k->mm_exl3 = mm_exl3;
    k->mv_exl3_int8 = mv_exl3_int8;
}
