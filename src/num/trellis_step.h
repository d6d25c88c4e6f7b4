/* EXL3's trellis: rates, ring bits, state step, codebook values. Shared by CPU and CUDA.
 * Sections named are those of the EXL3 specification. */
#ifndef KD_NUM_TRELLIS_STEP_H
#define KD_NUM_TRELLIS_STEP_H

#include "num/half.h"

#include <math.h>

enum { KD_TILE = 16, KD_TILE_WEIGHTS = 256 };

enum kd_codebook { KD_CB_3INST, KD_CB_MCG, KD_CB_MUL1 };

/* Bits per ring position: base, plus one where the 16-position mask has bit (position & 15).
 * mask 0 is the whole rate K = base. A rate of base + m/16 always uses kd_rate_mask(m). */
struct kd_rate {
    uint8_t base; /* 1..8 */
    uint16_t mask;
};

/* The evenly spread mask with m of 16 positions set; m = 8 gives 0xAAAA (half rates). */
KD_HD static inline uint16_t kd_rate_mask(unsigned m)
{
    unsigned mask = 0;
    for (unsigned i = 0; i < 16; i++)
        if ((i + 1) * m / 16 != i * m / 16)
            mask |= 1u << i;
    return (uint16_t)mask;
}

/* Rate from sixteenths of a bit: 37 is 2.3125. */
KD_HD static inline struct kd_rate kd_rate_from16(unsigned sixteenths)
{
    struct kd_rate r;
    r.base = (uint8_t)(sixteenths / 16);
    r.mask = kd_rate_mask(sixteenths % 16);
    return r;
}

KD_HD static inline unsigned kd_rate_to16(struct kd_rate r)
{
    unsigned n = 16u * r.base;
    for (unsigned i = 0; i < 16; i++)
        n += (r.mask >> i) & 1u;
    return n;
}

KD_HD static inline unsigned kd_rate_bits_at(struct kd_rate r, unsigned position)
{
    return r.base + ((r.mask >> (position & 15u)) & 1u);
}

/* Bytes of one tile: 2 * sixteenths (256 positions * bits / 8). */
KD_HD static inline unsigned kd_rate_tile_bytes(struct kd_rate r)
{
    return 2u * kd_rate_to16(r);
}

/* Row (input channel) and column (output) of ring position p inside its 16x16 tile. */
KD_HD static inline unsigned kd_tile_row(unsigned p)
{
    unsigned lane = p / 8, j = p % 8;
    return 2 * (lane % 4) + (j & 1) + 8 * ((j >> 1) & 1);
}

KD_HD static inline unsigned kd_tile_col(unsigned p)
{
    unsigned lane = p / 8, j = p % 8;
    return lane / 4 + 8 * (j >> 2);
}

/* fp16 bits of the value of a state (section 2). */
KD_HD static inline uint16_t kd_codebook_f16(enum kd_codebook cb, unsigned state)
{
    uint32_t x = state;
    if (cb == KD_CB_MUL1) {
        x *= 0x83DCD12Du;
        uint32_t b = (x & 255u) + ((x >> 8) & 255u) + ((x >> 16) & 255u) + (x >> 24);
        return kd_f32_f16(fmaf((float)(1024u + b), 887.0f / 131072.0f, -1329.0f / 128.0f));
    }
    x = cb == KD_CB_MCG ? x * 0xCBAC1FEDu : x * 89226354u + 64248484u;
    x = (x & 0x8FFF8FFFu) ^ 0x3B603B60u;
    return kd_f32_f16(kd_f16_f32((uint16_t)(x & 0xFFFFu)) + kd_f16_f32((uint16_t)(x >> 16)));
}

/* The trellis search's arithmetic: integers throughout, so that every instruction set and device
 * finds the same states. Values and targets are rounded to multiples of 1 / grid, a difference D
 * costs round(D^2 / 64) (ties cannot occur), and a cost over KD_SEARCH_CAP is no path any more.
 * Costs kept as 1024 + cost are half-precision numbers whose fma with D / 8 gives the same integer.
 * docs/numerics.md has the whole definition, src/kern/ref/trellis_ref.c the plain program. */
enum {
    KD_SEARCH_SHIFT = 6,
    KD_SEARCH_CAP = 1000,
    KD_SEARCH_LOWER = 16, /* after so many positions of a pass the least cost is subtracted */
    KD_SEARCH_LEVELS = 6  /* a tile whose costs pass the cap is searched again on half the grid */
};

struct kd_search_grid {
    float grid;
    int low, high; /* targets are cut to this range, a little wider than the codebook's */
};

KD_HD static inline int kd_search_round(float grid, float x)
{
#ifdef __CUDA_ARCH__
    return (int)floorf(__fadd_rn(__fmul_rn(x, grid), 0.5f));
#else
    return (int)floorf(x * grid + 0.5f);
#endif
}

/* The grid doubles with each bit, as the error that a rate leaves halves. */
KD_HD static inline struct kd_search_grid kd_search_grid_of(struct kd_rate r, enum kd_codebook cb,
                                                            unsigned level)
{
    static const unsigned char step[16] = {45, 47, 49, 51, 54, 56, 58, 61,
                                           64, 66, 69, 72, 76, 79, 83, 86};
    unsigned n = kd_rate_to16(r);
    float grid = (float)(step[n % 16u] << (n / 16u - 1u));
    struct kd_search_grid g;
    float low, high;
    int cut;

    /* 3INST and MCG are 1.244 times as wide as mul1. */
    g.grid = (cb == KD_CB_MUL1 ? grid : grid * 0.8125f) / (float)(1u << level);
    /* A target outside the codebook by n units costs n^2 / 64 at its nearest value: well under the
     * cap, yet enough to tell that value from others. The wide codebooks are used nearer to their
     * ends. */
    cut = cb == KD_CB_MUL1 || g.grid <= 104.0f ? 96 : 232;
    low = cb == KD_CB_MUL1 ? -3.453125f : cb == KD_CB_MCG ? -3.94921875f : -3.95703125f;
    high = cb == KD_CB_MUL1 ? 3.34765625f : cb == KD_CB_MCG ? 3.94921875f : 3.97265625f;
    g.low = kd_search_round(g.grid, low) - cut;
    g.high = kd_search_round(g.grid, high) + cut;
    return g;
}

KD_HD static inline int kd_search_value(struct kd_search_grid g, uint16_t f16)
{
    return kd_search_round(g.grid, kd_f16_f32(f16));
}

/* NaN counts as the low end. */
KD_HD static inline int kd_search_target(struct kd_search_grid g, float w)
{
    int t;

    if (!(w > -8.0f)) /* wider than any codebook */
        return g.low;
    t = w < 8.0f ? kd_search_round(g.grid, w) : g.high;
    return t < g.low ? g.low : t > g.high ? g.high : t;
}

KD_HD static inline int kd_search_add(int cost, int d)
{
    return cost + ((d * d + (1 << (KD_SEARCH_SHIFT - 1))) >> KD_SEARCH_SHIFT);
}

#endif
