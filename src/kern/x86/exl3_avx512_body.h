/* Decoding and products for AVX-512, written once for two sets. Before including it, MULTISHIFT
 * says how windows are taken from 64 bits: 1 where the instruction for that has a port to spare
 * (Intel's, one of whose two ports has to multiply), 0 where it has the multiplier's. A vector is a
 * row of a tile: its sixteen columns, one state a 32-bit lane. Rows 2t, 2t + 1, 2t + 8 and 2t + 9
 * are ring positions i = 0..3 (columns 0..7) and 4..7 (columns 8..15) of lanes 4c + t of the
 * format, so one gathering of bytes serves four rows, and the eight chains of a column
 * (docs/numerics.md) are eight vectors. */
#include "kern/exl3_sets.h"
#include "kern/exl3_unpack.h"

#include <immintrin.h>
#include <stdbool.h>

#define FLAT static inline __attribute__((always_inline))

enum {
    PANEL = 16,  /* tiles decoded before tokens pass over them: 16 KiB of floats */
    TOKENS = 64, /* that share a panel */
    FEW = 4,     /* tokens at most for which values stay in registers */
    WIDE = 8     /* columns of tiles side by side: an item of a product (kern/exl3_mul.c) */
};

/* How states come out of a tile: 64-byte registers that hold it, and whether 32 bits hold the
 * windows of four successive positions (up to 3 bits each) or of two. WHOLE2: K = 2, where a row's
 * windows have the same place in all lanes. */
enum layout { WHOLE2, ONE_QUADS, TWO_QUADS, TWO_PAIRS, FOUR_PAIRS };

struct unpack {
    enum layout layout;
    struct kd_rate rate;
    unsigned bytes; /* 0: not made yet */
    enum kd_codebook cb;
    bool sums;      /* of mul1, in place of its values */
    __mmask64 mask; /* bytes of a tile of less than 64 */
    /* The tile's bytes for each t; for PAIRS i = 0, 1 and i = 2, 3 apart. */
    _Alignas(64) uint8_t pick[8][64];
    /* [4 t + i] */
    _Alignas(64) uint32_t shift[16][16];
    /* [4 t + i]: the bit of a pair of lanes where each byte begins. */
    _Alignas(64) uint8_t bit[16][64];
};

/* Where byte `at` of the stream is stored. */
static unsigned stored_byte(unsigned at, unsigned bytes)
{
    unsigned half = at / 2, halves = bytes / 2;

    half = half + 1 == halves && halves % 2 ? half : half ^ 1;
    return 2 * half + (1 - at % 2);
}

/* Its place in the registers, of which the last holds the tile's last 64 bytes: none reads beyond
 * the tile. A masked load of less waits for the whole line all the same. */
static unsigned register_byte(unsigned at, unsigned bytes)
{
    unsigned last = (bytes - 1) / 64;

    return last && at / 64 == last ? 64 * last + at - (bytes - 64) : at;
}

static void unpack_open(struct unpack *u, struct kd_rate rate)
{
    unsigned n = kd_rate_to16(rate), pairs = n > 48;
    uint16_t place[256];

    u->rate = rate;
    u->bytes = kd_rate_tile_bytes(rate);
    u->layout = n == 32  ? WHOLE2
                : n < 32 ? ONE_QUADS
                : !pairs ? TWO_QUADS
                : n < 65 ? TWO_PAIRS
                         : FOUR_PAIRS;
    u->mask = UINT64_MAX >> (63 - (u->bytes - 1) % 64);
    kd_tile_places(rate, place);
    for (unsigned row = 0; row < 16; row++)
        for (unsigned lane = 0; lane < 16; lane++) {
            unsigned t = row / 4, i = row % 4, p = 8 * (4 * (lane % 8) + t) + lane / 8 * 4;
            /* Counted from the stream's end, the byte that holds the end of the last window. */
            unsigned end = place[p + (pairs ? i | 1 : 3)] / 8;
            u->shift[row][lane] = place[p + i] - 8 * end;
            for (unsigned j = 0; j < 4; j++) {
                unsigned at = stored_byte((2 * u->bytes - 1 - end - j) % u->bytes, u->bytes);
                u->bit[row][4 * lane + j] =
                    (uint8_t)((u->shift[row][lane] + 32 * (lane % 2) + 8 * j) & 63);
                u->pick[pairs ? 2 * t + i / 2 : t][4 * lane + j] =
                    (uint8_t)register_byte(at, u->bytes);
            }
        }
}

/* Making one takes as long as a hundred tiles, and small matrices have fewer; so each thread keeps
 * them. Not inlined, or the loops would ask for the thread's copy again and again. */
static __attribute__((noinline)) struct unpack *unpack_for(struct kd_rate rate, enum kd_codebook cb,
                                                           bool sums)
{
    static _Thread_local struct unpack kept[KD_UNPACK_KEPT];
    struct unpack *u = &kept[kd_rate_to16(rate) % KD_UNPACK_KEPT];

    if (!u->bytes || u->rate.base != rate.base || u->rate.mask != rate.mask)
        unpack_open(u, rate);
    u->cb = cb;
    u->sums = sums;
    return u;
}

FLAT void load_tile(const struct unpack *u, const enum layout layout, const uint8_t *tile,
                    __m512i r[4])
{
    const uint8_t *last = layout == ONE_QUADS ? tile : tile + (u->bytes - 64);

    r[0] = layout == ONE_QUADS ? _mm512_maskz_loadu_epi8(u->mask, tile) : _mm512_loadu_si512(tile);
    if (layout == TWO_QUADS || layout == TWO_PAIRS)
        r[1] = _mm512_loadu_si512(last);
    else if (layout == FOUR_PAIRS) {
        r[1] = _mm512_loadu_si512(tile + 64);
        r[2] = _mm512_loadu_si512(u->bytes > 192 ? tile + 128 : last);
        r[3] = _mm512_loadu_si512(last);
    }
}

FLAT __m512i pick_bytes(const enum layout layout, const uint8_t *pick, const __m512i r[4])
{
    __m512i at = _mm512_loadu_si512(pick);

    if (layout <= ONE_QUADS)
        return _mm512_permutexvar_epi8(at, r[0]);
    __m512i low = _mm512_permutex2var_epi8(r[0], at, r[1]);
    if (layout <= TWO_PAIRS)
        return low;
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(at), low,
                                  _mm512_permutex2var_epi8(r[2], at, r[3]));
}

/* The states of rows 2t, 2t + 1, 2t + 8, 2t + 9. */
FLAT void states(const struct unpack *u, const enum layout layout, const __m512i r[4], unsigned t,
                 __m512i s[4])
{
    const __m512i low = _mm512_set1_epi32(0xffff);

    const __mmask64 halves = 0x3333333333333333u;

    if (layout == WHOLE2) {
        __m512i x = pick_bytes(layout, u->pick[t], r);
#pragma GCC unroll 4
        for (unsigned i = 0; i < 3; i++)
            s[i] = MULTISHIFT ? _mm512_maskz_multishift_epi64_epi8(halves,
                                                                   _mm512_loadu_si512(u->bit[i]), x)
                              : _mm512_and_si512(_mm512_srli_epi32(x, 6 - 2 * i), low);
        s[3] = _mm512_and_si512(x, low);
        return;
    }
    const bool pairs = layout >= TWO_PAIRS;
    __m512i x = pick_bytes(layout, u->pick[pairs ? 2 * t : t], r), x2 = x;
    if (pairs)
        x2 = pick_bytes(layout, u->pick[2 * t + 1], r);
        /* Without ports to spare, one of the four in one instruction of the multiplier's ports
         * instead of two of others. */
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++)
        s[i] = MULTISHIFT || i == 1
                   ? _mm512_maskz_multishift_epi64_epi8(
                         halves, _mm512_loadu_si512(u->bit[4 * t + i]), i < 2 ? x : x2)
                   : _mm512_and_si512(
                         _mm512_srlv_epi32(i < 2 ? x : x2, _mm512_loadu_si512(u->shift[4 * t + i])),
                         low);
}

/* mul1: the byte sums in the low bits of the floats 2^23, four vectors abreast, stage by stage here
 * and below, because one after the other would fill the scheduler with work that waits. */
FLAT void raw_sums_mul1(const __m512i s[4], __m512i x[4])
{
    const __m512i mul = _mm512_set1_epi32((int)0x83DCD12Du), ones = _mm512_set1_epi32(0x01010101);

#pragma GCC unroll 4
    for (unsigned j = 0; j < 4; j++)
        x[j] = _mm512_mullo_epi32(s[j], mul);
#pragma GCC unroll 4
    for (unsigned j = 0; j < 4; j++)
        x[j] = _mm512_dpbusd_epi32(_mm512_set1_epi32(0x4B000000), x[j], ones);
}

/* One fma makes 8192 times the value f, exactly; (8192 f + f) - 8192 f then rounds f to the 11 bits
 * of fp16, to nearest even (tested for every state). 8193 f is a product, or a subtraction from the
 * exponent and a sum: half each way loads all ports alike, where there are others. */
FLAT void values_mul1(const __m512i s[4], __m512 v[4])
{
    const __m512 slope = _mm512_set1_ps(887.0f / 16.0f),
                 start = _mm512_set1_ps(-56771.453125f * 8192.0f);
    __m512i x[4];
    __m512 t[4];

    raw_sums_mul1(s, x);
#pragma GCC unroll 4
    for (unsigned j = 0; j < 4; j++)
        v[j] = _mm512_fmadd_ps(_mm512_castsi512_ps(x[j]), slope, start);
#pragma GCC unroll 4
    for (unsigned j = 0; j < 4; j++)
        if (MULTISHIFT || j % 2)
            t[j] = _mm512_mul_ps(v[j], _mm512_set1_ps(8193.0f / 8192.0f));
        else
            t[j] =
                _mm512_add_ps(v[j], _mm512_castsi512_ps(_mm512_sub_epi32(
                                        _mm512_castps_si512(v[j]), _mm512_set1_epi32(13 << 23))));
#pragma GCC unroll 4
    for (unsigned j = 0; j < 4; j++)
        v[j] = _mm512_sub_ps(t[j], v[j]);
}

/* The byte sums less 510. */
FLAT void sums_mul1(const __m512i s[4], __m512 v[4])
{
    __m512i x[4];

    raw_sums_mul1(s, x);
#pragma GCC unroll 4
    for (unsigned j = 0; j < 4; j++)
        v[j] = _mm512_sub_ps(_mm512_castsi512_ps(x[j]), _mm512_set1_ps(8388608.0f + 510.0f));
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

/* The tile's row of vector i of t. */
FLAT unsigned row_of(unsigned t, unsigned i)
{
    return 2 * t + i % 2 + i / 2 * 8;
}

FLAT void values(const struct unpack *u, const enum layout layout, const __m512i r[4], unsigned t,
                 __m512 v[4])
{
    __m512i s[4];

    states(u, layout, r, t, s);
    if (u->sums)
        sums_mul1(s, v);
    else if (u->cb == KD_CB_MUL1)
        values_mul1(s, v);
    else
        for (unsigned i = 0; i < 4; i++)
            v[i] = value_halves(s[i], u->cb == KD_CB_MCG);
}

FLAT void decode_layout(const struct unpack *u, const enum layout layout, const uint8_t *tile,
                        float out[256])
{
    __m512i r[4];
    __m512 v[4];

    load_tile(u, layout, tile, r);
    for (unsigned t = 0; t < 4; t++) {
        values(u, layout, r, t, v);
        for (unsigned i = 0; i < 4; i++)
            _mm512_storeu_ps(out + 16 * row_of(t, i), v[i]);
    }
}

/* `call` with the layout as a constant. */
#define BY_LAYOUT(u, call, ...)                                                                    \
    do {                                                                                           \
        if ((u)->layout == WHOLE2)                                                                 \
            call(u, WHOLE2, __VA_ARGS__);                                                          \
        else if ((u)->layout == ONE_QUADS)                                                         \
            call(u, ONE_QUADS, __VA_ARGS__);                                                       \
        else if ((u)->layout == TWO_QUADS)                                                         \
            call(u, TWO_QUADS, __VA_ARGS__);                                                       \
        else if ((u)->layout == TWO_PAIRS)                                                         \
            call(u, TWO_PAIRS, __VA_ARGS__);                                                       \
        else                                                                                       \
            call(u, FOUR_PAIRS, __VA_ARGS__);                                                      \
    } while (0)

static void decode_rows(const struct unpack *u, const uint8_t *tile, float out[256])
{
    BY_LAYOUT(u, decode_layout, tile, out);
}

static void decode_tile(const uint8_t *tile, struct kd_rate rate, enum kd_codebook cb,
                        float out[256])
{
    decode_rows(unpack_for(rate, cb, false), tile, out);
}

/* The chains of sixteen columns. */
FLAT void fold(float (*q)[16], float *y)
{
    __m512 a[4];

    for (unsigned i = 0; i < 4; i++)
        a[i] = _mm512_add_ps(_mm512_loadu_ps(q[i]), _mm512_loadu_ps(q[i + 4]));
    _mm512_storeu_ps(y, _mm512_add_ps(_mm512_add_ps(a[0], a[2]), _mm512_add_ps(a[1], a[3])));
}

/* What sums begin with: read from here, they need not be cleared. */
static const float nothing[FEW * 8 * 16];

/* Some tiles of a column, as many tokens as the function that gets them says. */
struct piece {
    const uint8_t *tile;
    int64_t step, count;
    int64_t left; /* tiles of the column from here on */
    const float *x;
    int64_t ldx;
    const float *from; /* sums of the tiles before, [token][8][16] */
    float (*sum)[8][16];
};

/* A few tokens with mul1, values straight from the codes; `chains` of the eight, those of rows 2t
 * with t = t0, t0 + 2 or all. */
FLAT void add_piece(const struct unpack *u, const struct piece *p, const enum layout layout,
                    const bool sums, const unsigned tokens, const unsigned t0,
                    const unsigned chains)
{
    const uint8_t *tile = p->tile;
    const int64_t step = p->step;
    const float *x = p->x;
    __m512 a[FEW][8];

#pragma GCC unroll 4
    for (unsigned m = 0; m < tokens; m++)
#pragma GCC unroll 8
        for (unsigned q = 0; q < chains; q++)
            a[m][q] = _mm512_loadu_ps(p->from + (8 * m + 4 * t0 + q) * 16);
    for (int64_t k = 0; k < p->count; k++, tile += step, x += 16) {
        __m512i r[4];
        const float *from[FEW];
        /* One register a token: compilers would keep an offset for each row and token instead. */
#pragma GCC unroll 4
        for (unsigned m = 0; m < tokens; m++) {
            from[m] = x + m * p->ldx;
            __asm__("" : "+r"(from[m]));
        }
        load_tile(u, layout, tile, r);
        if (t0 == 0 && k + PANEL < p->left)
            kd_tile_prefetch(tile + PANEL * step, u->bytes);
#pragma GCC unroll 4
        for (unsigned j = 0; j < chains / 2; j++) {
            const unsigned t = chains == 8 ? j : t0 + 2 * j;
            __m512i s[4];
            __m512 v[4];
            states(u, layout, r, t, s);
            if (sums)
                sums_mul1(s, v);
            else
                values_mul1(s, v);
#pragma GCC unroll 4
            for (unsigned i = 0; i < 4; i++)
#pragma GCC unroll 4
                for (unsigned m = 0; m < tokens; m++)
                    a[m][4 * j % chains + i] = _mm512_fmadd_ps(
                        v[i], _mm512_set1_ps(from[m][row_of(t, i)]), a[m][4 * j % chains + i]);
        }
    }
#pragma GCC unroll 4
    for (unsigned m = 0; m < tokens; m++)
#pragma GCC unroll 8
        for (unsigned q = 0; q < chains; q++)
            _mm512_storeu_ps(p->sum[m][4 * t0 + q], a[m][q]);
}

/* The sums of three and four tokens do not fit the registers: a piece is decoded once for each half
 * of the chains. */
FLAT void column(const struct unpack *u, const struct piece *p, const enum layout layout,
                 const bool sums, const unsigned tokens)
{
    if (tokens <= 2)
        add_piece(u, p, layout, sums, tokens, 0, 8);
    else {
        add_piece(u, p, layout, sums, tokens, 0, 4);
        add_piece(u, p, layout, sums, tokens, 1, 4);
    }
}

/* Each a function of its own: in one large function compilers run out of registers. */
#define COLUMN(layout, tokens)                                                                     \
    static __attribute__((noinline)) void column_##layout##_##tokens(const struct unpack *u,       \
                                                                     const struct piece *p)        \
    {                                                                                              \
        column(u, p, layout, false, tokens);                                                       \
    }                                                                                              \
    static __attribute__((noinline)) void sums_##layout##_##tokens(const struct unpack *u,         \
                                                                   const struct piece *p)          \
    {                                                                                              \
        column(u, p, layout, true, tokens);                                                        \
    }
#define COLUMNS(layout) COLUMN(layout, 1) COLUMN(layout, 2) COLUMN(layout, 3) COLUMN(layout, 4)
COLUMNS(WHOLE2)
COLUMNS(ONE_QUADS)
COLUMNS(TWO_QUADS)
COLUMNS(TWO_PAIRS)
COLUMNS(FOUR_PAIRS)
#undef COLUMNS
#undef COLUMN

#define ROW(what, layout)                                                                          \
    [layout] = {what##_##layout##_1, what##_##layout##_2, what##_##layout##_3, what##_##layout##_4}
#define ROWS(what)                                                                                 \
    {                                                                                              \
        ROW(what, WHOLE2), ROW(what, ONE_QUADS), ROW(what, TWO_QUADS), ROW(what, TWO_PAIRS),       \
            ROW(what, FOUR_PAIRS)                                                                  \
    }
static void (*const column_of[2][5][FEW])(const struct unpack *u,
                                          const struct piece *p) = {ROWS(column), ROWS(sums)};
#undef ROWS
#undef ROW

/* A few columns side by side, piece by piece, so that what they share of memory's lines and pages
 * is read once and in order. */
static void columns(const struct unpack *u, const struct kd_exl3_block *b, const float *x,
                    int64_t ldx, int64_t T, float *y, int64_t ldy)
{
    _Alignas(64) float sum[WIDE][FEW][8][16];
    const int64_t step = b->row_tiles * u->bytes;
    struct piece p = {.step = step, .ldx = ldx};

    for (int64_t n0 = 0; n0 < b->n_tiles; n0 += WIDE) {
        int64_t wide = b->n_tiles - n0 < WIDE ? b->n_tiles - n0 : WIDE;
        for (int64_t k = 0; k < b->k_tiles; k += PANEL) {
            p.left = b->k_tiles - k;
            p.count = p.left < PANEL ? p.left : PANEL;
            p.x = x + 16 * k;
            for (int64_t n = 0; n < wide; n++) {
                p.tile = b->codes + k * step + (n0 + n) * u->bytes;
                p.from = k ? sum[n][0][0] : nothing;
                p.sum = sum[n];
                column_of[b->sums][u->layout][T - 1](u, &p);
            }
        }
        for (int64_t n = 0; n < wide; n++)
            for (int64_t t = 0; t < T; t++)
                fold(sum[n][t], y + t * ldy + 16 * (n0 + n));
    }
}

/* Many tokens: sums of 16 columns for `tokens` over `count` decoded tiles, those of the tiles
 * before in `from`; `chains` of the eight, those of rows 2t with t = t0, t0 + 2 or all. */
FLAT void add_panel(const float *panel, int64_t count, const float *x, int64_t ldx,
                    const unsigned tokens, const unsigned t0, const unsigned chains,
                    const float *from, float (*sum)[8][16])
{
    __m512 s[4][8];

#pragma GCC unroll 4
    for (unsigned a = 0; a < tokens; a++)
#pragma GCC unroll 8
        for (unsigned q = 0; q < chains; q++)
            s[a][q] = _mm512_loadu_ps(from + (8 * a + 4 * t0 + q) * 16);
    for (int64_t k = 0; k < count; k++, panel += 256, x += 16)
#pragma GCC unroll 16
        for (unsigned j = 0; j < 2 * chains; j++) {
            unsigned row = row_of(chains == 8 ? j / 4 : t0 + j / 4 * 2, j % 4), q = j % chains;
            __m512 v = _mm512_loadu_ps(panel + 16 * row);
            /* In a register, so that the broadcasts are the memory operands: those cost no port. */
            __asm__("" : "+v"(v));
#pragma GCC unroll 4
            for (unsigned a = 0; a < tokens; a++)
                s[a][q] = _mm512_fmadd_ps(v, _mm512_set1_ps(x[a * ldx + row]), s[a][q]);
        }
#pragma GCC unroll 4
    for (unsigned a = 0; a < tokens; a++)
#pragma GCC unroll 8
        for (unsigned q = 0; q < chains; q++)
            _mm512_storeu_ps(sum[a][4 * t0 + q], s[a][q]);
}

static void add_panel_all(const float *panel, int64_t count, const float *x, int64_t ldx,
                          int64_t tokens, bool first, float (*sum)[8][16])
{
    for (; tokens >= 4; tokens -= 4, x += 4 * ldx, sum += 4) {
        const float *from = first ? nothing : sum[0][0];
        add_panel(panel, count, x, ldx, 4, 0, 4, from, sum);
        add_panel(panel, count, x, ldx, 4, 1, 4, from, sum);
    }
    for (; tokens >= 2; tokens -= 2, x += 2 * ldx, sum += 2)
        add_panel(panel, count, x, ldx, 2, 0, 8, first ? nothing : sum[0][0], sum);
    if (tokens)
        add_panel(panel, count, x, ldx, 1, 0, 8, first ? nothing : sum[0][0], sum);
}

static void mm_exl3(const struct kd_exl3_block *b, const float *x, int64_t ldx, int64_t T, float *y,
                    int64_t ldy)
{
    const struct unpack *u = unpack_for(b->rate, b->cb, b->sums);
    _Alignas(64) float panel[PANEL * 256], sum[TOKENS][8][16];

    if (T <= FEW && b->cb == KD_CB_MUL1) {
        columns(u, b, x, ldx, T, y, ldy);
        return;
    }
    const int64_t step = b->row_tiles * u->bytes;
    kd_column_prefetch(b->codes, step, b->k_tiles, u->bytes);
    for (int64_t n = 0; n < b->n_tiles; n++) {
        kd_column_prefetch(b->codes + (n + 1) * u->bytes, step, b->k_tiles, u->bytes);
        for (int64_t t0 = 0; t0 < T; t0 += TOKENS) {
            int64_t tokens = T - t0 < TOKENS ? T - t0 : TOKENS;
            for (int64_t k = 0; k < b->k_tiles; k += PANEL) {
                int64_t count = b->k_tiles - k < PANEL ? b->k_tiles - k : PANEL;
                for (int64_t i = 0; i < count; i++) {
                    const uint8_t *tile = b->codes + (k + i) * step + n * u->bytes;
                    if (k + i + KD_TILES_AHEAD < b->k_tiles)
                        kd_tile_prefetch(tile + KD_TILES_AHEAD * step, u->bytes);
                    decode_rows(u, tile, panel + 256 * i);
                }
                add_panel_all(panel, count, x + t0 * ldx + 16 * k, ldx, tokens, k == 0, sum);
            }
            for (int64_t t = 0; t < tokens; t++)
                fold(sum[t], y + (t0 + t) * ldy + 16 * n);
        }
    }
}

/* With int8 activations so many tiles of a column are summed in 32 bits: a lane of a sum takes at
 * most 128 * 1020 sixteen times from each. */
enum { NARROW = 1024 };
_Static_assert(NARROW % PANEL == 0 && NARROW * 16LL * 128 * 1020 <= INT32_MAX, "sums fit 32 bits");

FLAT void column_int8(const struct unpack *u, const enum layout layout, const uint8_t *tile,
                      int64_t step, int64_t count, int64_t left, const int32_t *q, int32_t sum[16])
{
    const __m512i m = _mm512_set1_epi32((int)0x83DCD12Du);
    __m512i a[4] = {_mm512_loadu_si512(sum)};

    for (unsigned j = 1; j < 4; j++)
        a[j] = _mm512_setzero_si512();
    for (int64_t k = 0; k < count; k++, tile += step, q += 16) {
        __m512i r[4];
        load_tile(u, layout, tile, r);
        if (k + PANEL < left)
            kd_tile_prefetch(tile + PANEL * step, u->bytes);
#pragma GCC unroll 4
        for (unsigned t = 0; t < 4; t++) {
            __m512i s[4];
            states(u, layout, r, t, s);
#pragma GCC unroll 4
            for (unsigned i = 0; i < 4; i++)
                s[i] = _mm512_mullo_epi32(s[i], m);
#pragma GCC unroll 4
            for (unsigned i = 0; i < 4; i++)
                a[i] = _mm512_dpbusd_epi32(a[i], s[i], _mm512_set1_epi32(q[row_of(t, i)]));
        }
    }
    _mm512_storeu_si512(
        sum, _mm512_add_epi32(_mm512_add_epi32(a[0], a[1]), _mm512_add_epi32(a[2], a[3])));
}

static void mv_exl3_int8(const struct kd_exl3_block *b, const int8_t *q, float scale, float *y)
{
    const struct unpack *u = unpack_for(b->rate, KD_CB_MUL1, false);
    const int64_t step = b->row_tiles * u->bytes;
    int64_t total = 0;
    int32_t fours[16 * PANEL]; /* q four times: a product's bytes are summed by themselves */

    for (int64_t i = 0; i < 16 * b->k_tiles; i++)
        total += q[i];
    for (int64_t n0 = 0; n0 < b->n_tiles; n0 += WIDE) {
        int64_t wide = b->n_tiles - n0 < WIDE ? b->n_tiles - n0 : WIDE, sum[WIDE][16] = {{0}};
        int32_t narrow[WIDE][16] = {{0}};
        for (int64_t k = 0; k < b->k_tiles; k += PANEL) {
            int64_t left = b->k_tiles - k, count = left < PANEL ? left : PANEL;
            for (int64_t i = 0; i < 16 * count; i++)
                fours[i] = (int32_t)((uint8_t)q[16 * k + i] * 0x01010101u);
            for (int64_t n = 0; n < wide; n++)
                BY_LAYOUT(u, column_int8, b->codes + k * step + (n0 + n) * u->bytes, step, count,
                          left, fours, narrow[n]);
            if ((k + PANEL) % NARROW && count < left)
                continue;
            for (unsigned i = 0; i < WIDE * 16; i++)
                sum[i / 16][i % 16] += narrow[i / 16][i % 16];
            memset(narrow, 0, sizeof narrow);
        }
        for (int64_t n = 0; n < wide; n++)
            for (unsigned c = 0; c < 16; c++)
                y[16 * (n0 + n) + c] = kd_exl3_int8_sum(sum[n][c], total, scale);
    }
}

static void set_products(struct kd_kern *k)
{
    k->trellis_decode = decode_tile;
    k->mm_exl3 = mm_exl3;
    k->mv_exl3_int8 = mv_exl3_int8;
}
