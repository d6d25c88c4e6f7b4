/* EXL3 codes as products read them on a device: all in registers, at places known when compiled.
 *
 * A warp takes blocks of 128 inputs x 128 outputs, 8 x 8 tiles. Lane 4 g + t has whole tiles: those
 * of outputs n = g and inputs k = t (step 0), k = 4 + t (step 1). A *unit* is a quarter of the
 * block: 64 ring positions (columns 2 q, 2 q + 1, and those + 8) of both tiles. So the windows of
 * all lanes lie at the same bits, masked rates too, and a window that reaches back over the unit's
 * start finds the bits in the unit before.
 *
 * In memory: blocks [inputs / 128][outputs / 128]; a block of rate R / 16 bits is 32 lanes x R
 * words: 4 units of V = R / 4 words a lane, then R % 4 words with R % 4 bytes of each unit (word i,
 * byte q). A unit is rows of 4 words a lane, then 2, then 1, as V has them:
 *
 *     tail     the last 16 bits of both tiles' parts (tile of step 0 high)
 *     head     the first 16 bits
 *     middles  R / 8 - 1 words of tile 0, then of tile 1
 *     more     where R % 8 >= 4: the next 16 bits of both
 *
 * and the bytes hold the 4 (R % 4) bits after that, of tile 0 then tile 1. */
#ifndef KD_GPU_PRODUCT_CODES_CUH
#define KD_GPU_PRODUCT_CODES_CUH

#include "gpu/mma_lanes.cuh"
#include "num/trellis_step.h"

namespace kd_codes
{

enum { SIDE = 128, UNITS = 4, UNIT_POSITIONS = 64 };

KD_HD static inline int unit_words(int rate16)
{
    return rate16 / 4;
}
/* Word of lane 0 of a unit's word i, and what a lane adds to it. */
KD_HD static inline int word_row(int words, int i)
{
    const int fours = words / 4 * 4;

    return i < fours                       ? i / 4 * 128 + i % 4
           : i < fours + words % 4 / 2 * 2 ? 32 * fours + i % 2
                                           : 32 * (words - 1);
}
KD_HD static inline int word_step(int words, int i)
{
    const int fours = words / 4 * 4;

    return i < fours ? 4 : i < fours + words % 4 / 2 * 2 ? 2 : 1;
}

/* Where tile positions end: bits before the end of position i of 16. */
template <int R> struct rate_of {
    static constexpr int base = R / 16;
    /* The end of position i, i < 64, from the unit's start. */
    KD_HD static constexpr int end(int i)
    {
        return (i + 1) / 16 * R + base * ((i + 1) % 16) + (i + 1) % 16 * (R % 16) / 16;
    }
    static constexpr int words = R / 4;
    static constexpr int middles = R / 8 - 1;
    static constexpr bool more = R % 8 >= 4;
    static constexpr int bytes = R % 4;
    static constexpr int stream = middles + 3; /* words of one tile's part */
    /* The window 16 bits before another one is so many positions before it, or nowhere. */
    static constexpr int apart = 256 % R == 0 && R > 16 ? 256 / R : UNIT_POSITIONS;
};
/* Rates that are known at run time only; slower. */
template <> struct rate_of<0> {
    static constexpr int stream = 128 / 8 + 2, apart = UNIT_POSITIONS;
};

/* What a lane loads for a unit. */
template <int R> struct unit_codes {
    uint32_t word[rate_of<R>::words];
    uint32_t before; /* the tail of the unit before */
    uint32_t byte[rate_of<R>::bytes ? rate_of<R>::bytes : 1];

    KD_DEV explicit unit_codes(int)
    {
    }
    KD_DEV int end(int i) const
    {
        return rate_of<R>::end(i);
    }
    /* All but `before`, from a copy in shared memory, of which `from` is this lane's place, 4 lane
     * words on: words as in a unit, then the bytes. */
    KD_DEV void take(const uint32_t *from, int lane)
    {
        constexpr int words = rate_of<R>::words, fours = words / 4 * 4;

#pragma unroll
        for (int i = 0; i < fours; i += 4) {
            const uint4 v = *(const uint4 *)(from + i * 32);
            word[i] = v.x;
            word[i + 1] = v.y;
            word[i + 2] = v.z;
            word[i + 3] = v.w;
        }
        if constexpr (words % 4 >= 2) {
            const uint2 v = *(const uint2 *)(from - 2 * lane + fours * 32);
            word[fours] = v.x;
            word[fours + 1] = v.y;
        }
        if constexpr (words % 2)
            word[words - 1] = (from - 3 * lane)[(words - 1) * 32];
#pragma unroll
        for (int i = 0; i < rate_of<R>::bytes; i++)
            byte[i] = (from - 3 * lane)[(words + i) * 32];
    }
};

template <> struct unit_codes<0> {
    const uint32_t *at;
    int rate, lane;

    KD_DEV explicit unit_codes(int rate16) : at(nullptr), rate(rate16), lane(0)
    {
    }
    KD_DEV int end(int i) const
    {
        const int n = (i + 1) % 16;
        return (i + 1) / 16 * rate + rate / 16 * n + n * (rate % 16) / 16;
    }
    KD_DEV void load(const uint32_t *block, int of)
    {
        at = block;
        lane = of;
    }
    KD_DEV uint32_t word(int unit, int i) const
    {
        const int words = rate / 4;
        return kd_load_const(at + unit * words * 32 + word_row(words, i) +
                             word_step(words, i) * lane);
    }
};

/* The part of tile `STEP`: its 16 bits before, then the stream, most significant bit first. */
template <int STEP, int R> KD_DEV void unit_stream(const unit_codes<R> &u, int unit, uint32_t *s)
{
    using rate = rate_of<R>;
    constexpr int j = rate::bytes, m = rate::middles;
    const uint32_t tail = u.word[0];

    s[0] = kd_bytes(u.word[1], u.before, STEP ? 0x5410 : 0x7632);
#pragma unroll
    for (int i = 0; i < m; i++)
        s[1 + i] = u.word[2 + STEP * m + i];
    /* What is left, left-aligned: 16 bits of `more`, 4 j bits, the tail; then anything. */
    uint32_t c = STEP ? tail << 16 : tail;
    if constexpr (j > 0) {
        uint32_t e = u.byte[0] >> 8 * unit & 0xffu;
        if constexpr (j > 1)
            e |= (u.byte[1] >> 8 * unit & 0xffu) << 8;
        if constexpr (j > 2)
            e |= (u.byte[2] >> 8 * unit & 0xffu) << 16;
        e = (STEP ? e : e >> 4 * j) << (32 - 4 * j);
        c = e | c >> 16 << (16 - 4 * j);
    }
    if constexpr (rate::more) {
        s[m + 1] = kd_bytes(c, u.word[2 + 2 * m], STEP ? 0x5432 : 0x7632);
        s[m + 2] = c << 16;
    } else {
        s[m + 1] = c;
        s[m + 2] = 0;
    }
}

template <int STEP> KD_DEV void unit_stream(const unit_codes<0> &u, int unit, uint32_t *s)
{
    const int j = u.rate % 4, m = u.rate / 8 - 1;
    const uint32_t tail = u.word(unit, 0);
    uint32_t c = STEP ? tail << 16 : tail, e = 0;

    s[0] = kd_bytes(u.word(unit, 1), u.word((unit + 3) % UNITS, 0), STEP ? 0x5410 : 0x7632);
    for (int i = 0; i < m; i++)
        s[1 + i] = u.word(unit, 2 + STEP * m + i);
    if (j) {
        for (int i = 0; i < j; i++)
            e |= (u.at[(UNITS * (u.rate / 4) + i) * 32 + u.lane] >> 8 * unit & 0xffu) << 8 * i;
        e = (STEP ? e : e >> 4 * j) << (32 - 4 * j);
        c = e | c >> 16 << (16 - 4 * j);
    }
    if (u.rate % 8 >= 4) {
        s[m + 1] = kd_bytes(c, u.word(unit, 2 + 2 * m), STEP ? 0x5432 : 0x7632);
        s[m + 2] = c << 16;
    } else {
        s[m + 1] = c;
    }
}

/* 32 bits of a stream in which up to three windows end, 8 bits apart: those at bits E - 16, E - 8
 * and E (the window after bit `bit` of the stream ends at bit + 16). All places are known when
 * compiled, and what several windows need is made once. */
KD_DEV int window_part(int bit)
{
    return (bit + 16) / 8 % 3;
}
KD_DEV uint32_t window_bits(const uint32_t *s, int bit)
{
    const int end = bit + 16 + 8 * (2 - window_part(bit)), word = (end - 1) / 32,
              n = 32 * (word + 1) - end;

    return n == 0 ? s[word] : word ? kd_funnel(s[word - 1], s[word], (uint32_t)n) : s[0] >> n;
}
/* Bits bit .. bit + 15 of a stream, as a number. */
KD_DEV uint32_t window(const uint32_t *s, int bit)
{
    const int part = window_part(bit);

    return kd_bytes(window_bits(s, bit), 0, part == 2 ? 0x4410u : part == 1 ? 0x4421u : 0x4432u);
}

} // namespace kd_codes
#endif
