/* Decoding and products for sets of up to eight lanes, written once. Vectors hold successive ring
 * positions; a column's eight chains are eight lanes of one or two vectors.
 *
 * The includer defines:
 *
 * - WIDTH, INTS, FLOATS: positions of a vector (4 or 8) and its types;
 *
 * - ABREAST: vectors decoded stage by stage (one after the other would fill the scheduler with work
 *   that waits);
 *
 * - windows(back, pick, shift), sums_of(s), values_mul1(s, v) and sums_mul1(s, v) for ABREAST
 *   vectors, value_halves(s, mcg);
 *
 * - add_panel(panel, count, x, sum), fold_sums(sum, y): 128 sums of 16 columns; of columns c and
 *   c + 8, vector j (of 32 / WIDTH) adds to sum[16 c + WIDTH j % 16 ..];
 *
 * - get_floats(p), put_floats(p, v), add_floats(sum, v, x): sum + v * x[0..WIDTH), fused;
 *
 * - zeros(), put_ints(p, v), add_int8(sum, b, q): sum + b * q[0..WIDTH). */
#include "kern/exl3_sets.h"
#include "kern/exl3_unpack.h"

enum {
    CHUNKS = 256 / WIDTH,
    PANEL = 16,  /* 16 KiB of floats */
    TOKENS = 64, /* that share a panel */
    PIECE = 64,  /* tiles whose activations are laid out as the vectors need them */
    WIDE = 8     /* columns of tiles that share that */
};

/* What states are decoded to: mul1's values, its byte sums, those of the other codebooks. */
enum values { MUL1, SUMS_MUL1, MCG, INST3 };

struct unpack {
    struct kd_rate rate;
    unsigned bytes; /* 0: not made yet */
    enum values values;
    uint16_t at[CHUNKS]; /* first byte in the reversed tile */
    _Alignas(32) uint8_t pick[CHUNKS][4 * WIDTH];
    _Alignas(32) int32_t shift[CHUNKS][WIDTH];
};

static void unpack_open(struct unpack *u, struct kd_rate rate)
{
    uint16_t place[256];

    u->rate = rate;
    u->bytes = kd_rate_tile_bytes(rate);
    kd_tile_places(rate, place);
    for (unsigned g = 0; g < CHUNKS; g++) {
        u->at[g] = place[WIDTH * g + WIDTH - 1] / 8;
        for (unsigned j = 0; j < WIDTH; j++) {
            unsigned bit = place[WIDTH * g + j] - 8u * u->at[g];
            u->shift[g][j] = (int32_t)(bit % 8);
            for (unsigned i = 0; i < 4; i++)
                u->pick[g][4 * j + i] = (uint8_t)(bit / 8 + i);
        }
    }
}

/* Making one takes as long as many tiles, and small matrices have fewer; so each thread keeps them.
 * Not inlined, or the loops would ask for the thread's copy again and again. */
static __attribute__((noinline)) struct unpack *unpack_for(struct kd_rate rate, enum kd_codebook cb,
                                                           bool sums)
{
    static _Thread_local struct unpack kept[KD_UNPACK_KEPT];
    struct unpack *u = &kept[kd_rate_to16(rate) % KD_UNPACK_KEPT];

    if (!u->bytes || u->rate.base != rate.base || u->rate.mask != rate.mask)
        unpack_open(u, rate);
    u->values = sums ? SUMS_MUL1 : cb == KD_CB_MUL1 ? MUL1 : cb == KD_CB_MCG ? MCG : INST3;
    return u;
}

/* `count` tiles, `step` bytes apart, to 256 floats each in ring order. A tile is turned round while
 * the one before it is decoded: its bytes are read in other pieces than they were written in, which
 * waits until they have left the store queue. Inlined with the kind of values as a constant: a
 * choice inside the loop would have every constant made anew for each vector. */
INLINE void decode_rings_of(const struct unpack *u, const enum values kind, const uint8_t *tile,
                            int64_t step, int64_t count, float *out)
{
    uint8_t back[2][KD_TILE_BACK];

    kd_tile_reverse(tile, u->bytes, back[0]);
    for (int64_t i = 0; i < count; i++, out += 256) {
        const uint8_t *b = back[i & 1];
        kd_tile_prefetch(tile + (i + 8) * step, u->bytes);
        if (i + 1 < count)
            kd_tile_reverse(tile + (i + 1) * step, u->bytes, back[(i + 1) & 1]);
        for (unsigned g = 0; g < CHUNKS; g += ABREAST) {
            INTS s[ABREAST];
            FLOATS v[ABREAST];
#pragma GCC unroll 8
            for (unsigned j = 0; j < ABREAST; j++)
                s[j] = windows(b + u->at[g + j], u->pick[g + j], u->shift[g + j]);
            if (kind == MUL1)
                values_mul1(s, v);
            else if (kind == SUMS_MUL1)
                sums_mul1(s, v);
            else
                for (unsigned j = 0; j < ABREAST; j++)
                    v[j] = value_halves(s[j], kind == MCG);
#pragma GCC unroll 8
            for (unsigned j = 0; j < ABREAST; j++)
                put_floats(out + WIDTH * (g + j), v[j]);
        }
    }
}

static void decode_rings(const struct unpack *u, const uint8_t *tile, int64_t step, int64_t count,
                         float *out)
{
    if (u->values == MUL1)
        decode_rings_of(u, MUL1, tile, step, count, out);
    else if (u->values == SUMS_MUL1)
        decode_rings_of(u, SUMS_MUL1, tile, step, count, out);
    else if (u->values == MCG)
        decode_rings_of(u, MCG, tile, step, count, out);
    else
        decode_rings_of(u, INST3, tile, step, count, out);
}

static void decode_tile(const uint8_t *tile, struct kd_rate rate, enum kd_codebook cb,
                        float out[256])
{
    float ring[256];

    decode_rings(unpack_for(rate, cb, false), tile, 0, 1, ring);
    for (unsigned p = 0; p < 256; p++)
        out[16 * kd_tile_row(p) + kd_tile_col(p)] = ring[p];
}

/* One token with mul1, values straight from the codes. */
INLINE void column_of(const struct unpack *u, const bool sums, const uint8_t *tile, int64_t step,
                      int64_t count, float (*rows)[32], float sum[128])
{
    uint8_t back[2][KD_TILE_BACK];

    kd_tile_reverse(tile, u->bytes, back[0]);
    for (int64_t i = 0; i < count; i++, tile += step) {
        const uint8_t *b = back[i & 1];
        kd_tile_prefetch(tile + 8 * step, u->bytes);
        if (i + 1 < count)
            kd_tile_reverse(tile + step, u->bytes, back[(i + 1) & 1]);
#pragma GCC unroll 16
        for (unsigned g = 0; g < CHUNKS; g += ABREAST) {
            INTS s[ABREAST];
            FLOATS v[ABREAST];
#pragma GCC unroll 8
            for (unsigned j = 0; j < ABREAST; j++)
                s[j] = windows(b + u->at[g + j], u->pick[g + j], u->shift[g + j]);
            if (sums)
                sums_mul1(s, v);
            else
                values_mul1(s, v);
#pragma GCC unroll 8
            for (unsigned j = 0; j < ABREAST; j++) {
                float *a = sum + (g + j) * WIDTH / 32 * 16 + (g + j) * WIDTH % 16;
                put_floats(a, add_floats(get_floats(a), v[j], rows[i] + (g + j) * WIDTH % 32));
            }
        }
    }
}

static void column(const struct unpack *u, const uint8_t *tile, int64_t step, int64_t count,
                   float (*rows)[32], float sum[128])
{
    column_of(u, false, tile, step, count, rows, sum);
}

static void column_sums(const struct unpack *u, const uint8_t *tile, int64_t step, int64_t count,
                        float (*rows)[32], float sum[128])
{
    column_of(u, true, tile, step, count, rows, sum);
}

static void columns(const struct unpack *u, const struct kd_exl3_block *b, const float *x, float *y)
{
    _Alignas(64) float rows[PIECE][32], sum[WIDE][128];
    int64_t step = b->row_tiles * u->bytes;

    for (int64_t n0 = 0; n0 < b->n_tiles; n0 += WIDE) {
        int64_t wide = b->n_tiles - n0 < WIDE ? b->n_tiles - n0 : WIDE;
        memset(sum, 0, sizeof sum);
        for (int64_t k = 0; k < b->k_tiles; k += PIECE) {
            int64_t count = b->k_tiles - k < PIECE ? b->k_tiles - k : PIECE;
            /* All columns have the rows of the first 32 positions. */
            for (int64_t i = 0; i < count; i++)
                for (unsigned p = 0; p < 32; p++)
                    rows[i][p] = x[16 * (k + i) + kd_tile_row(p)];
            for (int64_t n = 0; n < wide; n++)
                (b->sums ? column_sums : column)(u,
                                                 b->codes + (k * b->row_tiles + n0 + n) * u->bytes,
                                                 step, count, rows, sum[n]);
        }
        for (int64_t n = 0; n < wide; n++)
            fold_sums(sum[n], y + 16 * (n0 + n));
    }
}

static void mm_exl3(const struct kd_exl3_block *b, const float *x, int64_t ldx, int64_t T, float *y,
                    int64_t ldy)
{
    const struct unpack *u = unpack_for(b->rate, b->cb, b->sums);
    _Alignas(64) float panel[PANEL * 256], sum[TOKENS][128];

    if (T == 1 && b->cb == KD_CB_MUL1) {
        columns(u, b, x, y);
        return;
    }
    for (int64_t n = 0; n < b->n_tiles; n++)
        for (int64_t t0 = 0; t0 < T; t0 += TOKENS) {
            int64_t tokens = T - t0 < TOKENS ? T - t0 : TOKENS;
            memset(sum, 0, (size_t)tokens * sizeof sum[0]);
            for (int64_t k = 0; k < b->k_tiles; k += PANEL) {
                int64_t count = b->k_tiles - k < PANEL ? b->k_tiles - k : PANEL;
                decode_rings(u, b->codes + (k * b->row_tiles + n) * u->bytes,
                             b->row_tiles * u->bytes, count, panel);
                for (int64_t t = 0; t < tokens; t++)
                    add_panel(panel, count, x + (t0 + t) * ldx + 16 * k, sum[t]);
            }
            for (int64_t t = 0; t < tokens; t++)
                fold_sums(sum[t], y + (t0 + t) * ldy + 16 * n);
        }
}

/* With int8 activations a piece of k tiles is summed in 32 bits: a lane of a sum takes four
 * products of at most 128 * 1020 from each tile. Chunks of the same columns share a sum. */
enum { SUMS = 64 / WIDTH };

INLINE unsigned sum_of_chunk(unsigned g)
{
    return WIDTH == 8 ? g / 4 : g / 8 * 2 + g % 2;
}

static void column_int8(const struct unpack *u, const uint8_t *tile, int64_t step, int64_t count,
                        int32_t (*rows)[32], int64_t sums[16])
{
    uint8_t back[2][KD_TILE_BACK];
    INTS sum[SUMS];
    int32_t lane[WIDTH];

#pragma GCC unroll 16
    for (unsigned i = 0; i < SUMS; i++)
        sum[i] = zeros();
    kd_tile_reverse(tile, u->bytes, back[0]);
    for (int64_t i = 0; i < count; i++, tile += step) {
        const uint8_t *b = back[i & 1];
        kd_tile_prefetch(tile + 8 * step, u->bytes);
        if (i + 1 < count)
            kd_tile_reverse(tile + step, u->bytes, back[(i + 1) & 1]);
#pragma GCC unroll 64
        for (unsigned g = 0; g < CHUNKS; g++)
            sum[sum_of_chunk(g)] = add_int8(sum[sum_of_chunk(g)],
                                            sums_of(windows(b + u->at[g], u->pick[g], u->shift[g])),
                                            rows[i] + WIDTH * g % 32);
    }
#pragma GCC unroll 64
    for (unsigned g = 0; g < CHUNKS; g++)
        if (g % (CHUNKS / 8) < SUMS / 8) {
            put_ints(lane, sum[sum_of_chunk(g)]);
            for (unsigned j = 0; j < WIDTH; j++)
                sums[kd_tile_col(WIDTH * g + j)] += lane[j];
        }
}

static void mv_exl3_int8(const struct kd_exl3_block *b, const int8_t *q, float scale, float *y)
{
    const struct unpack *u = unpack_for(b->rate, KD_CB_MUL1, false);
    _Alignas(64) int32_t rows[PIECE][32];
    int64_t total = 0, step;

    step = b->row_tiles * u->bytes;
    for (int64_t i = 0; i < 16 * b->k_tiles; i++)
        total += q[i];
    for (int64_t n0 = 0; n0 < b->n_tiles; n0 += WIDE) {
        int64_t wide = b->n_tiles - n0 < WIDE ? b->n_tiles - n0 : WIDE, sum[WIDE][16] = {{0}};
        for (int64_t k = 0; k < b->k_tiles; k += PIECE) {
            int64_t count = b->k_tiles - k < PIECE ? b->k_tiles - k : PIECE;
            /* All columns have the rows of the first 32 positions. */
            for (int64_t i = 0; i < count; i++)
                for (unsigned p = 0; p < 32; p++)
                    rows[i][p] = (int32_t)q[16 * (k + i) + kd_tile_row(p)];
            for (int64_t n = 0; n < wide; n++)
                column_int8(u, b->codes + (k * b->row_tiles + n0 + n) * u->bytes, step, count, rows,
                            sum[n]);
        }
        for (int64_t n = 0; n < wide; n++)
            for (unsigned c = 0; c < 16; c++)
                y[16 * (n0 + n) + c] = kd_exl3_int8_sum(sum[n][c], total, scale);
    }
}
