/* Blocks whose values come from codebooks (gguf-slicing specification 2.4). */
#include "fmt/gguf.h"
#include "fmt/gguf_decode.h"
#include "num/gguf_grids.h"

static const int8_t map_iq1[] = {-1, 0, 1, 0}, map_iq2[] = {8, 25, 43, 0},
                    map_iq3xxs[] = {4, 12, 20, 28, 36, 44, 52, 62},
                    map_iq3s[] = {1, 3, 5, 7, 9, 11, 13, 15},
                    iq4nl[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                               1,    13,   25,  38,  53,  69,  89,  113};

static float half_at(const uint8_t *p)
{
    return kd_f16_f32(kd_block_u16(p));
}

static uint32_t u32_at(const uint8_t *p)
{
    return kd_block_u16(p) | (uint32_t)kd_block_u16(p + 2) << 16;
}

/* Seven signs; the eighth makes their number even. */
static unsigned signs_of(unsigned selector)
{
    return selector | ((unsigned)__builtin_popcount(selector) & 1u) << 7;
}

/* n values of a packed row, times db, with signs. */
static void put8(unsigned row, const int8_t *map, float db, unsigned signs, float *out)
{
    for (int j = 0; j < 8; j++) {
        float v = db * (float)map[row >> (2 * j) & 3u];
        out[j] = kd_bits_f32(kd_f32_bits(v) ^ (signs >> j & 1u) << 31);
    }
}

static void put4(unsigned row, const int8_t *map, float db, unsigned signs, float *out)
{
    for (int j = 0; j < 4; j++) {
        float v = db * (float)map[row >> (3 * j) & 7u];
        out[j] = kd_bits_f32(kd_f32_bits(v) ^ (signs >> j & 1u) << 31);
    }
}

void kd_iq2_xxs_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 66) {
        float d = half_at(b);
        for (int g = 0; g < 8; g++) {
            const uint8_t *sub = b + 2 + 8 * g;
            uint32_t word = u32_at(sub + 4);
            float db = d * (0.5f + (float)(word >> 28)) * 0.25f;
            for (int l = 0; l < 4; l++, out += 8)
                put8(grid_iq2xxs[sub[l]], map_iq2, db, signs_of(word >> (7 * l) & 127u), out);
        }
    }
}

void kd_iq2_xs_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 74) {
        float d = half_at(b);
        for (int l = 0; l < 32; l++, out += 8) {
            unsigned q = kd_block_u16(b + 2 + 2 * l);
            unsigned s = b[66 + l / 4] >> (l % 4 / 2 * 4) & 15u;
            put8(grid_iq2xs[q & 511u], map_iq2, d * (0.5f + (float)s) * 0.25f, signs_of(q >> 9),
                 out);
        }
    }
}

void kd_iq2_s_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 82) {
        float d = half_at(b);
        for (int l = 0; l < 32; l++, out += 8) {
            unsigned row = b[2 + l] | (b[66 + l / 4] >> (l % 4 * 2) & 3u) << 8;
            unsigned s = b[74 + l / 4] >> (l % 4 / 2 * 4) & 15u;
            put8(grid_iq2s[row], map_iq2, d * (0.5f + (float)s) * 0.25f, b[34 + l], out);
        }
    }
}

void kd_iq3_xxs_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 98) {
        float d = half_at(b);
        for (int g = 0; g < 8; g++) {
            uint32_t word = u32_at(b + 66 + 4 * g);
            float db = d * (0.5f + (float)(word >> 28)) * 0.5f;
            for (int l = 0; l < 4; l++, out += 8) {
                unsigned signs = signs_of(word >> (7 * l) & 127u);
                put4(grid_iq3xxs[b[2 + 8 * g + 2 * l]], map_iq3xxs, db, signs, out);
                put4(grid_iq3xxs[b[3 + 8 * g + 2 * l]], map_iq3xxs, db, signs >> 4, out + 4);
            }
        }
    }
}

void kd_iq3_s_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 110) {
        float d = half_at(b);
        for (int i = 0; i < 64; i++, out += 4) { /* four values each */
            unsigned row = b[2 + i] | (b[66 + i / 8] >> (i % 8) & 1u) << 8;
            unsigned s = b[106 + i / 16] >> (i / 8 % 2 * 4) & 15u;
            put4(grid_iq3s[row], map_iq3s, d * (float)(1 + 2 * s),
                 (unsigned)b[74 + i / 2] >> (i % 2 * 4), out);
        }
    }
}

/* Eight values of the ternary codebook, each moved by delta. */
static void put_iq1(unsigned row, float dl, float delta, float *out)
{
    for (int j = 0; j < 8; j++)
        out[j] = dl * ((float)map_iq1[grid_iq1s[row] >> (2 * j) & 3] + delta);
}

void kd_iq1_s_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 50) {
        float d = half_at(b);
        for (int g = 0; g < 8; g++) {
            unsigned h = kd_block_u16(b + 34 + 2 * g);
            float dl = d * (float)(2 * (h >> 12 & 7u) + 1);
            for (unsigned l = 0; l < 4; l++, out += 8)
                put_iq1(b[2 + 4 * (unsigned)g + l] | (h >> (3 * l) & 7u) << 8, dl,
                        h & 0x8000u ? -0.125f : 0.125f, out);
        }
    }
}

void kd_iq1_m_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 56) {
        const uint8_t *qh = b + 32, *sc = b + 48;
        /* The top nibbles of four words are the half d. */
        float d = kd_f16_f32(
            (uint16_t)(sc[1] >> 4 | sc[3] >> 4 << 4 | sc[5] >> 4 << 8 | sc[7] >> 4 << 12));
        for (int i = 0; i < 32; i++, out += 8) {
            int g = i / 4, l = i % 4;
            unsigned word = kd_block_u16(sc + g / 2 * 2);
            unsigned s = word >> (6 * (g % 2) + 3 * (l / 2)) & 7u;
            unsigned high = qh[2 * g + l / 2] >> (l % 2 * 4) & 15u;
            put_iq1(b[i] | (high & 7u) << 8, d * (float)(2 * s + 1), high & 8u ? -0.125f : 0.125f,
                    out);
        }
    }
}

void kd_iq4_nl_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 18, out += 32) {
        float d = half_at(b);
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)iq4nl[b[2 + j] & 15];
            out[j + 16] = d * (float)iq4nl[b[2 + j] >> 4];
        }
    }
}

void kd_iq4_xs_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 136) {
        float d = half_at(b);
        unsigned high = kd_block_u16(b + 2);
        for (int g = 0; g < 8; g++, out += 32) {
            int s = (int)((b[4 + g / 2] >> (g % 2 * 4) & 15u) | (high >> (2 * g) & 3u) << 4);
            float dl = d * (float)(s - 32);
            for (int j = 0; j < 16; j++) {
                out[j] = dl * (float)iq4nl[b[8 + 16 * g + j] & 15];
                out[j + 16] = dl * (float)iq4nl[b[8 + 16 * g + j] >> 4];
            }
        }
    }
}

int kd_gguf_grid(int64_t type, int i, int8_t out[8])
{
    static const struct {
        int type, rows, values;
        const uint16_t *grid;
        const int8_t *map;
    } grids[] = {
        {KD_GT_IQ1_S, 2048, 8, grid_iq1s, map_iq1},
        {KD_GT_IQ2_XXS, 256, 8, grid_iq2xxs, map_iq2},
        {KD_GT_IQ2_XS, 512, 8, grid_iq2xs, map_iq2},
        {KD_GT_IQ2_S, 1024, 8, grid_iq2s, map_iq2},
        {KD_GT_IQ3_XXS, 256, 4, grid_iq3xxs, map_iq3xxs},
        {KD_GT_IQ3_S, 512, 4, grid_iq3s, map_iq3s},
    };
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
        if (grids[g].type != type || i < 0 || i >= grids[g].rows)
            continue;
        int bits = grids[g].values == 8 ? 2 : 3;
        for (int j = 0; j < grids[g].values; j++)
            out[j] = grids[g].map[grids[g].grid[i] >> (bits * j) & ((1 << bits) - 1)];
        return grids[g].values;
    }
    return 0;
}
