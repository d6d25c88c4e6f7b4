/* The ring of a tile: 16-position-periodic symbol lengths, 16-bit windows (docs/formats/exl3.md).
 * Tiles are multiples of 2 bytes; the halves of each 32-bit word are swapped, and a last half word
 * without a partner stays where it is. */
#ifndef KD_NUM_EXL3_RING_H
#define KD_NUM_EXL3_RING_H

#include "num/trellis_step.h"

/* The 16 bits of the stream from bit 16*u on. halves = 16-bit words of the tile. */
KD_HD static inline unsigned kd_ring_half(const uint8_t *tile, unsigned halves, unsigned u)
{
    unsigned at = u + 1 == halves && (halves & 1u) ? u : u ^ 1u;
    return tile[2 * at] | (unsigned)tile[2 * at + 1] << 8;
}

/* States of all 256 positions. */
KD_HD static inline void kd_ring_states(const uint8_t *tile, struct kd_rate rate,
                                        uint16_t states[256])
{
    unsigned halves = kd_rate_to16(rate), end = 0;

    for (unsigned p = 0; p < 256; p++) {
        end += kd_rate_bits_at(rate, p);
        unsigned u = (end + 15) / 16 - 1; /* the half that holds the last bit of the window */
        unsigned before = u ? u - 1 : halves - 1;
        uint32_t two = kd_ring_half(tile, halves, before) << 16 | kd_ring_half(tile, halves, u);
        states[p] = (uint16_t)(two >> (16 * (u + 1) - end));
    }
}

/* Makes the states agree with the ring of their own symbols (the low bits of each). */
KD_HD static inline void kd_ring_close(struct kd_rate rate, uint16_t states[256])
{
    unsigned s = 0;

    for (unsigned p = 240; p < 256 + 256; p++) {
        unsigned n = kd_rate_bits_at(rate, p);
        s = (s << n | (states[p & 255u] & ((1u << n) - 1u))) & 0xffffu;
        if (p >= 256)
            states[p - 256] = (uint16_t)s;
    }
}

/* Writes the tile of kd_rate_tile_bytes(rate) bytes from states or bare symbols. */
KD_HD static inline void kd_ring_pack(struct kd_rate rate, const uint16_t states[256],
                                      uint8_t *tile)
{
    unsigned halves = kd_rate_to16(rate), u = 0, have = 0;
    uint32_t bits = 0;

    for (unsigned p = 0; p < 256; p++) {
        unsigned n = kd_rate_bits_at(rate, p);
        bits = bits << n | (states[p] & ((1u << n) - 1u));
        have += n;
        if (have < 16)
            continue;
        have -= 16;
        unsigned half = (bits >> have) & 0xffffu;
        unsigned at = u + 1 == halves && (halves & 1u) ? u : u ^ 1u;
        tile[2 * at] = (uint8_t)half;
        tile[2 * at + 1] = (uint8_t)(half >> 8);
        u++;
    }
}

#endif
