/* Products with EXL3 codes in plain C: the order every other instruction set keeps.
 *
 * A column keeps eight fma chains. Of each tile, in ascending order, chain q takes row row_of[q]
 * and then row_of[q] + 4: the order in which a vector of sixteen ring positions meets them. The
 * chains fold q + (q+4), q + (q+2), q + (q+1). */
#include "kern/exl3_sets.h"
#include "num/exl3_ring.h"

#include <string.h>

enum { TOKENS = 8 }; /* that share the decoding of a tile */

static const unsigned char row_of[8] = {0, 1, 8, 9, 2, 3, 10, 11};

static void add_tile(const float value[256], const float *x, float sum[16][8])
{
    for (unsigned c = 0; c < 16; c++)
        for (unsigned half = 0; half < 2; half++)
            for (unsigned q = 0; q < 8; q++) {
                unsigned row = row_of[q] + 4 * half;
                sum[c][q] = fmaf(value[16 * row + c], x[row], sum[c][q]);
            }
}

static float fold(const float sum[8])
{
    float a[4];

    for (unsigned q = 0; q < 4; q++)
        a[q] = sum[q] + sum[q + 4];
    return (a[0] + a[2]) + (a[1] + a[3]);
}

static unsigned byte_sum(uint16_t state)
{
    uint32_t x = state * 0x83DCD12Du;
    return (x & 255u) + (x >> 8 & 255u) + (x >> 16 & 255u) + (x >> 24);
}

static void decode_sums(const uint8_t *tile, struct kd_rate rate, float out[256])
{
    uint16_t states[256];

    kd_ring_states(tile, rate, states);
    for (unsigned p = 0; p < 256; p++)
        out[16 * kd_tile_row(p) + kd_tile_col(p)] =
            (float)((int)byte_sum(states[p]) - KD_EXL3_SUM_LESS);
}

void kd_mm_exl3_ref(const struct kd_exl3_block *b, const float *x, int64_t ldx, int64_t T, float *y,
                    int64_t ldy)
{
    int64_t bytes = kd_rate_tile_bytes(b->rate);
    float sum[TOKENS][16][8], value[256];

    for (int64_t n = 0; n < b->n_tiles; n++)
        for (int64_t t0 = 0; t0 < T; t0 += TOKENS) {
            int64_t tokens = T - t0 < TOKENS ? T - t0 : TOKENS;
            memset(sum, 0, sizeof sum);
            for (int64_t k = 0; k < b->k_tiles; k++) {
                const uint8_t *tile = b->codes + (k * b->row_tiles + n) * bytes;
                if (b->sums)
                    decode_sums(tile, b->rate, value);
                else
                    kd_trellis_decode_ref(tile, b->rate, b->cb, value);
                for (int64_t t = 0; t < tokens; t++)
                    add_tile(value, x + (t0 + t) * ldx + 16 * k, sum[t]);
            }
            for (int64_t t = 0; t < tokens; t++)
                for (unsigned c = 0; c < 16; c++)
                    y[(t0 + t) * ldy + 16 * n + c] = fold(sum[t][c]);
        }
}

void kd_mv_exl3_int8_ref(const struct kd_exl3_block *b, const int8_t *q, float scale, float *y)
{
    int64_t bytes = kd_rate_tile_bytes(b->rate), total = 0;
    uint16_t states[256];

    for (int64_t i = 0; i < 16 * b->k_tiles; i++)
        total += q[i];
    for (int64_t n = 0; n < b->n_tiles; n++) {
        int64_t sum[16] = {0};
        for (int64_t k = 0; k < b->k_tiles; k++) {
            kd_ring_states(b->codes + (k * b->row_tiles + n) * bytes, b->rate, states);
            for (unsigned p = 0; p < 256; p++)
                sum[kd_tile_col(p)] += (int64_t)byte_sum(states[p]) * q[16 * k + kd_tile_row(p)];
        }
        for (unsigned c = 0; c < 16; c++)
            y[16 * n + c] = kd_exl3_int8_sum(sum[c], total, scale);
    }
}
