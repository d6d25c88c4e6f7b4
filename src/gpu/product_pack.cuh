/* EXL3 codes into the order of product_codes.cuh. */
#ifndef KD_GPU_PRODUCT_PACK_CUH
#define KD_GPU_PRODUCT_PACK_CUH

#include "gpu/product_codes.cuh"

namespace kd_codes
{

/* From the file's order (docs/formats/exl3.md) into this one; a thread for each lane of a unit. */
struct pack_args {
    const uint8_t *tiles;
    int64_t ld; /* tiles between tile rows */
    uint32_t *codes;
    int32_t rate16, ins, outs; /* blocks of 128 */
};

/* The 16 bits of a tile's ring from `bit` on. */
KD_DEV uint32_t ring_bits(const uint8_t *tile, int halves, int bit)
{
    const int u = bit / 16 % halves, v = (u + 1) % halves;
    const int lone = halves % 2 ? halves - 1 : halves, a = u < lone ? u ^ 1 : u,
              b = v < lone ? v ^ 1 : v;
    const uint32_t two = (uint32_t)((const uint16_t *)tile)[a] << 16 | ((const uint16_t *)tile)[b];

    return two >> (16 - bit % 16) & 0xffffu;
}

KD_KERNEL void KD_BOUNDS(256, 4) pack_codes(KD_ARGS pack_args a)
{
    const int64_t index = (int64_t)kd_block() * 256 + kd_thread();
    const int lane = (int)(index % 32), unit = (int)(index / 32 % UNITS), rate = a.rate16;
    const int64_t block = index / 32 / UNITS;
    const int words = rate / 4, j = rate % 4, m = rate / 8 - 1, more = rate % 8 >= 4;
    const int start = unit * 4 * rate, rest = start + 16 + 32 * m;
    uint32_t tail = 0, head = 0, bits = 0, after = 0;

    if (block >= (int64_t)a.ins * a.outs)
        return;
    uint32_t *to = a.codes + block * 32 * rate, *at = to + unit * words * 32;
    for (int step = 0; step < 2; step++) {
        const int64_t row = block / a.outs * 8 + 4 * step + lane % 4;
        const uint8_t *tile = a.tiles + (row * a.ld + block % a.outs * 8 + lane / 4) * 2 * rate;

        tail = tail << 16 | ring_bits(tile, rate, start + 4 * rate - 16);
        head = head << 16 | ring_bits(tile, rate, start);
        for (int i = 0; i < m; i++) {
            const int w = 2 + step * m + i, bit = start + 16 + 32 * i;
            at[word_row(words, w) + word_step(words, w) * lane] =
                ring_bits(tile, rate, bit) << 16 | ring_bits(tile, rate, bit + 16);
        }
        bits = bits << 16 | ring_bits(tile, rate, rest);
        after = after << 4 * j | ring_bits(tile, rate, rest + 16 * more) >> (16 - 4 * j);
    }
    at[word_row(words, 0) + word_step(words, 0) * lane] = tail;
    at[word_row(words, 1) + word_step(words, 1) * lane] = head;
    if (more)
        at[word_row(words, words - 1) + word_step(words, words - 1) * lane] = bits;
    for (int i = 0; i < j; i++)
        ((uint8_t *)(to + (UNITS * words + i) * 32 + lane))[unit] = (uint8_t)(after >> 8 * i);
}

} // namespace kd_codes
#endif
