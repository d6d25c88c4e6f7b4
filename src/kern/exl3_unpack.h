/* Windows of a tile for vector code. The tile is first written backwards, so that in memory the
 * ring is one little-endian number whose bit 0 is the last of the stream: then each window is 16
 * neighbouring bits, any byte can be loaded from, and the window's place within that byte is a
 * shift. The first positions reach over the seam, so the number is followed by its own beginning.
 */
#ifndef KD_KERN_EXL3_UNPACK_H
#define KD_KERN_EXL3_UNPACK_H

#include "num/trellis_step.h"

#include <stdint.h>
#include <string.h>

enum {
    KD_TILE_BACK = 256 + 128, /* bytes of a tile written backwards, and what loads read beyond */
    KD_UNPACK_KEPT = 13       /* tables of rates that a thread keeps; usual rates do not collide */
};

static inline void kd_tile_reverse(const uint8_t *tile, unsigned bytes, uint8_t back[KD_TILE_BACK])
{
    unsigned lone = bytes % 4, words = bytes / 4;

    if (lone) /* a last half word without a partner */
        memcpy(back, tile + bytes - 2, 2);
    for (unsigned i = 0; i + 2 <= words; i += 2) {
        uint64_t two;
        memcpy(&two, tile + 4 * (words - 2 - i), 8);
        two = two << 32 | two >> 32;
        memcpy(back + lone + 4 * i, &two, 8);
    }
    if (words % 2)
        memcpy(back + bytes - 4, tile, 4);
    memcpy(back + bytes, back, 8);
}

/* Asks for a tile this many before it is read. Tiles of one column are a row of the matrix apart,
 * which no hardware foresees. */
enum { KD_TILES_AHEAD = 8 };

static inline void kd_tile_prefetch(const uint8_t *tile, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i += 64)
        __builtin_prefetch(tile + i);
    __builtin_prefetch(tile + (bytes > 64 ? bytes : 64) - 1);
}

/* Asks for the first tiles of the column that comes next, which may lie past the end of the matrix:
 * of short columns they are a quarter or a half. */
static inline void kd_column_prefetch(const uint8_t *tile, int64_t step, int64_t k_tiles,
                                      unsigned bytes)
{
    for (int64_t k = 0; k < KD_TILES_AHEAD && k < k_tiles; k++)
        kd_tile_prefetch(tile + k * step, bytes);
}

/* The lowest bit of each position's window in that number. */
static inline void kd_tile_places(struct kd_rate rate, uint16_t place[256])
{
    unsigned left = 16u * kd_rate_to16(rate);

    for (unsigned p = 0; p < 256; p++) {
        left -= kd_rate_bits_at(rate, p);
        place[p] = (uint16_t)left;
    }
}

#endif
