/* Decoding and products for sets of up to eight lanes, written once. A tile's values are decoded in
 * ring order, panels of tiles at a time, and tokens then pass over the panel with the chains of a
 * few columns in registers. The includer defines WIDTH              positions of one vector: 4 or 8
 *   windows(back, at, pick, shift), values_of(states, cb), sums_of(states), put_floats(p, v)
 *   add_panel(panel, count, x, sum), fold_sums(sum, y): 128 sums of 16 columns in an order of its
 * own add_int8(sum, b, q): sum[0..WIDTH) += b * q[0..WIDTH) */
#include "kern/exl3_sets.h"
#include "kern/exl3_unpack.h"

enum {
    CHUNKS = 256 / WIDTH,
    PANEL = 16, /* 16 KiB of floats */
    TOKENS = 64 /* that share a panel */
};

struct unpack {
    unsigned bytes;
    enum kd_codebook cb;
    uint16_t at[CHUNKS]; /* first byte in the reversed tile */
    uint8_t pick[CHUNKS][4 * WIDTH];
    int32_t shift[CHUNKS][WIDTH];
};

static void unpack_open(struct unpack *u, struct kd_rate rate, enum kd_codebook cb)
{
    uint16_t place[256];

    u->bytes = kd_rate_tile_bytes(rate);
    u->cb = cb;
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

/* `count` tiles, `step` bytes apart, to 256 floats each in ring order. A tile is turned round while
 * the one before it is decoded: its bytes are read in other pieces than they were written in, which
 * waits until they have left the store queue. */
static void decode_rings(const struct unpack *u, const uint8_t *tile, int64_t step, int64_t count,
                         float *out)
{
    uint8_t back[2][KD_TILE_BACK];

    kd_tile_reverse(tile, u->bytes, back[0]);
    for (int64_t i = 0; i < count; i++, out += 256) {
        const uint8_t *b = back[i & 1];
        kd_tile_prefetch(tile + (i + 8) * step, u->bytes);
        if (i + 1 < count)
            kd_tile_reverse(tile + (i + 1) * step, u->bytes, back[(i + 1) & 1]);
        for (unsigned g = 0; g < CHUNKS; g++)
            put_floats(out + WIDTH * g,
                       values_of(windows(b + u->at[g], u->pick[g], u->shift[g]), u->cb));
    }
}

static void decode_tile(const uint8_t *tile, struct kd_rate rate, enum kd_codebook cb,
                        float out[256])
{
    struct unpack u;
    float ring[256];

    unpack_open(&u, rate, cb);
    decode_rings(&u, tile, 0, 1, ring);
    for (unsigned p = 0; p < 256; p++)
        out[16 * kd_tile_row(p) + kd_tile_col(p)] = ring[p];
}

static void mm_exl3(const struct kd_exl3_block *b, const float *x, int64_t ldx, int64_t T, float *y,
                    int64_t ldy)
{
    struct unpack u;
    float panel[PANEL * 256], sum[TOKENS][128];

    unpack_open(&u, b->rate, b->cb);
    for (int64_t n = 0; n < b->n_tiles; n++)
        for (int64_t t0 = 0; t0 < T; t0 += TOKENS) {
            int64_t tokens = T - t0 < TOKENS ? T - t0 : TOKENS;
            memset(sum, 0, (size_t)tokens * sizeof sum[0]);
            for (int64_t k = 0; k < b->k_tiles; k += PANEL) {
                int64_t count = b->k_tiles - k < PANEL ? b->k_tiles - k : PANEL;
                decode_rings(&u, b->codes + (k * b->row_tiles + n) * u.bytes,
                             b->row_tiles * u.bytes, count, panel);
                for (int64_t t = 0; t < tokens; t++)
                    add_panel(panel, count, x + (t0 + t) * ldx + 16 * k, sum[t]);
            }
            for (int64_t t = 0; t < tokens; t++)
                fold_sums(sum[t], y + (t0 + t) * ldy + 16 * n);
        }
}

static void mv_exl3_int8(const struct kd_exl3_block *b, const int8_t *q, float scale, float *y)
{
    struct unpack u;
    uint8_t back[KD_TILE_BACK];
    int64_t total = 0;

    unpack_open(&u, b->rate, KD_CB_MUL1);
    for (int64_t i = 0; i < 16 * b->k_tiles; i++)
        total += q[i];
    for (int64_t n = 0; n < b->n_tiles; n++) {
        int32_t sum[256] = {0}, qs[32];
        int64_t column[16] = {0};
        for (int64_t k = 0; k < b->k_tiles; k++) {
            /* Columns repeat the same 32 rows: those of the first four lanes of eight positions. */
            for (unsigned p = 0; p < 32; p++)
                qs[p] = q[16 * k + kd_tile_row(p)];
            const uint8_t *tile = b->codes + (k * b->row_tiles + n) * u.bytes;
            kd_tile_prefetch(tile + 8 * b->row_tiles * u.bytes, u.bytes);
            kd_tile_reverse(tile, u.bytes, back);
            for (unsigned g = 0; g < CHUNKS; g++)
                add_int8(sum + WIDTH * g, sums_of(windows(back + u.at[g], u.pick[g], u.shift[g])),
                         qs + WIDTH * g % 32);
        }
        for (unsigned p = 0; p < 256; p++)
            column[kd_tile_col(p)] += sum[p];
        for (unsigned c = 0; c < 16; c++)
            y[16 * n + c] = kd_exl3_int8_sum(column[c], total, scale);
    }
}
