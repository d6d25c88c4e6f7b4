/* How products with EXL3 codes multiply: the two classes of product.h. */
#ifndef KD_GPU_PRODUCT_MODES_CUH
#define KD_GPU_PRODUCT_MODES_CUH

#include "gpu/hadamard.cuh"
#include "gpu/product_codes.cuh"

namespace kd_exl3
{

using namespace kd_codes;

enum {
    WARPS = 8,        /* of a block: a chunk has at most 8 * 128 inputs */
    GROUP = 16,       /* rows of a task, at most */
    UNIT_OUTS = 32,   /* outputs of a unit: 4 g + 2 (column & 1) + (1 for columns from 8 on) */
    ROW_STRIDE = 33,  /* words between a unit's rows of sums, so that lanes meet no bank twice */
    HALF_RANGE = 510, /* what a byte sum is counted from */
    SUM_SHIFT = 3     /* bits that a warp's sum leaves away, so that eight fit 32 bits */
};

/* How inputs are cut; blocks of 128: chunks of so many, one for each warp. */
struct cut {
    int32_t chunks, warps;
};
KD_HD static inline struct cut cut_of(int blocks)
{
    const int chunks = (blocks + WARPS - 1) / WARPS;

    return {chunks, (blocks + chunks - 1) / chunks};
}

/* How units are cut into ranges: the first `extra` have one more than `less`. */
struct spread {
    int32_t ranges, less, extra;
};
KD_HD static inline struct spread spread_of(int ranges, int units)
{
    return {ranges, units / ranges, units % ranges};
}
KD_HD static inline int spread_first(const struct spread &s, int range)
{
    return range * s.less + (range < s.extra ? range : s.extra);
}
KD_HD static inline int spread_most(const struct spread &s)
{
    return s.less + (s.extra > 0);
}

struct matrix {
    const uint32_t *codes;
    const uint16_t *suh, *svh;
    int32_t rows, cols;
    int32_t ins, outs; /* padded, in blocks of 128 */
    int32_t rate16, codebook;
    struct cut cut; /* of the inputs */
};

struct task {
    matrix w;
    const float *x; /* row t at x + row[t] * ldx, row NULL: t */
    int64_t ldx;
    const int32_t *row;
    int32_t rows, chunk, first, last; /* units first .. last - 1 */
    float *sums;                      /* [chunks][rows][outs * 128] */
    int32_t *counter;                 /* [rows][outs] units that are there */
};

/* This lane's four scales of a block of inputs, as they are stored. */
KD_DEV uint2 input_scales(const task &k, int block, int lane)
{
    const int at = SIDE * block + 4 * lane;

    return at < k.w.cols ? *(const uint2 *)(k.w.suh + at) : make_uint2(0, 0);
}
KD_DEV void scale_values(uint2 v, float s[4])
{
    s[0] = kd_half_float((uint16_t)v.x);
    s[1] = kd_half_float((uint16_t)(v.x >> 16));
    s[2] = kd_half_float((uint16_t)v.y);
    s[3] = kd_half_float((uint16_t)(v.y >> 16));
}
/* Inputs `at` .. at + 3 of `rows` rows of ALL, others 0. All rows' loads are on their way before
 * the first is used. */
template <int ALL> KD_DEV void row_inputs(const task &k, int rows, int at, float (*v)[4])
{
    const bool whole = at + 4 <= k.w.cols;
    const float *x = k.x + at;
    const int32_t *row = k.row;
    const int64_t ldx = k.ldx;

#pragma unroll
    for (int t = 0; t < ALL; t++) {
        float4 f = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (t < rows && whole)
            f = *(const float4 *)(x + (row ? row[t] : t) * ldx);
        v[t][0] = f.x;
        v[t][1] = f.y;
        v[t][2] = f.z;
        v[t][3] = f.w;
    }
    if (whole || at >= k.w.cols)
        return;
#pragma unroll
    for (int t = 0; t < ALL; t++)
#pragma unroll
        for (int i = 0; i < 3; i++)
            if (t < rows && at + i < k.w.cols)
                v[t][i] = x[(row ? row[t] : t) * ldx + i];
}
/* This warp's 128 inputs of some rows, scaled by s and rotated; most[t][warp]: the largest
 * magnitude of each. */
template <int ROWS>
KD_DEV void rotate_rows(float (*v)[4], const float s[4], uint32_t (*most)[WARPS], int warp,
                        int lane)
{
#pragma unroll
    for (int t = 0; t < ROWS; t++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[t][i] = kd_mul(v[t][i], s[i]);
    kd_hadamard128_rows<ROWS>(v, lane);
#pragma unroll
    for (int t = 0; t < ROWS; t++) {
        uint32_t m = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t bits = kd_f32_bits(v[t][i]) & 0x7fffffffu;
            m = bits > m ? bits : m;
        }
        m = kd_warp_max(m);
        if (lane == 0)
            most[t][warp] = m;
    }
}

/* The largest magnitude of a row. */
KD_DEV float largest(const uint32_t most[WARPS])
{
    const uint4 *p = (const uint4 *)most;
    uint32_t m = 0;

#pragma unroll
    for (int i = 0; i < WARPS / 4; i++) {
        const uint4 v = p[i];
        m = v.x > m ? v.x : m;
        m = v.y > m ? v.y : m;
        m = v.z > m ? v.z : m;
        m = v.w > m ? v.w : m;
    }
    return kd_bits_f32(m);
}

/* Column g of the B side is row g / 2: its coarse part where g is even, its fine part where it is
 * odd; so lane 4 g + t finds both sums of row t in one fragment of D. SETS of four rows. Its own
 * sums begin here in a unit's rows. */
KD_DEV int sums_at(int lane)
{
    return lane % 4 * ROW_STRIDE + lane / 4 * 4;
}
/* A warp's accumulators into a unit's rows of sums, as the integers that `of` makes of their two
 * halves. */
template <int SETS, class T, class OF>
KD_DEV void add_sums(const T (&d)[SETS][2][4], int32_t *sums, int rows, int lane, OF of)
{
#pragma unroll
    for (int s = 0; s < SETS; s++) {
        if (4 * s + lane % 4 < rows)
#pragma unroll
            for (int i = 0; i < 4; i++)
                kd_shared_add(sums + 4 * s * ROW_STRIDE + i,
                              of(s, d[s][i / 2][i % 2 * 2], d[s][i / 2][i % 2 * 2 + 1]));
    }
}

/* mul1's values before their rounding, activations as 16-bit integers 256 h + l: a value is
 * (887 (b - 510) - 238) / 2^17 with b the sum of the product's bytes, and the matrix instruction
 * sums bytes by itself. */
template <int SETS> struct fast {
    static constexpr bool mul1 = true, masked = true;
    static constexpr int rows = 4 * SETS;
    /* Four rows: words as the matrix instruction wants them, a byte of an activation four times.
     * More rows: just the bytes, as shared memory is scarce. */
    static constexpr bool wide = SETS == 1;
    static constexpr int packed = wide ? 1024 : SETS * 256; /* words of a block of 128 inputs */
    const uint4 *from;                                      /* this lane's */
    uint32_t start[SETS];

    KD_DEV explicit fast(int)
    {
    }
    /* 32639 / most, rounded as C does; 0 for what is zero or too large. A division in C may call a
     * function, which would move the activations out of their registers. */
    static KD_DEV float steps_in(float most)
    {
        const uint32_t e = kd_f32_bits(most) >> 23;

        return e > 0 && e < 254
                   ? kd_mul(kd_div_near_one(32639.0f, kd_bits_f32((kd_f32_bits(most) & 0x7fffffu) |
                                                                  127u << 23)),
                            kd_bits_f32((254 - e) << 23))
                   : 0.0f;
    }
    /* A block's rotated activations as integers, in the order in which lanes want them: [set][step]
     * [lane] four words, of which word r has the bytes of tile rows 2 r, 2 r + 1, 2 r + 8, 2 r + 9.
     * Wide: [step][r][lane] four words, one for each of these bytes. total[row][block]: sums of the
     * coarse and the fine parts, 2^16 h + l. */
    static KD_DEV void pack(const float (*v)[4], int count, const uint32_t (*most)[WARPS],
                            int32_t (*total)[WARPS], int block, uint32_t *to, int lane)
    {
        const int step = lane / 16, t = lane / 4 % 4, half = lane % 4 / 2, word = lane % 2 * 2;
        const float mine = steps_in(lane < count ? largest(most[lane]) : 0.0f);
#pragma unroll
        for (int row = 0; row < rows; row++) {
            if (row >= count)
                continue;
            const float up = kd_shuffle(mine, row);
            int32_t sum = 0;
            uint32_t high[4], low[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int32_t q = kd_round_int(kd_mul(v[row][i], up)), h = (q + 128) >> 8;
                high[i] = (uint32_t)h & 0xffu;
                low[i] = (uint32_t)(q - 256 * h) & 0xffu;
                sum += 65536 * h + q - 256 * h;
            }
            sum = kd_warp_sum(sum);
            if (lane == 0)
                total[row][block] = sum;
            if constexpr (wide) {
                uint2 *at = (uint2 *)to + (((4 * step + word) * 8 + 2 * row) * 4 + t) * 2 + half;
                const uint32_t four = 0x01010101u;
                at[0] = make_uint2(high[0] * four, high[1] * four);
                at[64] = make_uint2(high[2] * four, high[3] * four);
                at[8] = make_uint2(low[0] * four, low[1] * four);
                at[72] = make_uint2(low[2] * four, low[3] * four);
            } else {
                uint16_t *at = (uint16_t *)to +
                               (((row / 4 * 2 + step) * 32 + row % 4 * 8 + t) * 4 + word) * 2 +
                               half;
                at[0] = (uint16_t)(high[0] | high[1] << 8);
                at[2] = (uint16_t)(high[2] | high[3] << 8);
                at[32] = (uint16_t)(low[0] | low[1] << 8);
                at[34] = (uint16_t)(low[2] | low[3] << 8);
            }
        }
    }
    static KD_DEV int32_t total(int32_t sums)
    {
        const int32_t low = (int16_t)sums;

        return ((sums - low) >> 8) + low;
    }
    /* Rows that are not there are read as others, or as anything: nobody reads their sums. */
    KD_DEV void open(const float *, int, const uint32_t *packed_block, int rows,
                     const uint32_t (*)[WARPS], const int32_t (*totals)[WARPS], int block, int lane)
    {
        const int g = lane / 4, t = lane % 4;

        from = (const uint4 *)packed_block + (wide && g >= 2 * rows ? g % 2 * 4 + t : lane);
#pragma unroll
        for (int s = 0; s < SETS; s++)
            start[s] = (uint32_t)total(totals[4 * s + t][block]) * (uint32_t)-HALF_RANGE +
                       (1u << (SUM_SHIFT - 1));
    }

    /* Four times the byte for word h of the B side, h < 4. */
    static KD_DEV uint32_t activation(const uint4 &b, int r, int h)
    {
        if constexpr (wide)
            return h == 0 ? b.x : h == 1 ? b.y : h == 2 ? b.z : b.w;
        return kd_bytes(r == 0 ? b.x : r == 1 ? b.y : r == 2 ? b.z : b.w, 0, 0x1111u * (uint32_t)h);
    }
    template <int R, int STEP>
    KD_DEV void step(const unit_codes<R> &u, int unit, int32_t d[SETS][2][4]) const
    {
        constexpr int apart = rate_of<R>::apart;
        uint32_t str[rate_of<R>::stream], p[64];
        uint4 b[SETS];

        if constexpr (!wide)
#pragma unroll
            for (int s = 0; s < SETS; s++)
                b[s] = from[(s * 2 + STEP) * 32];
        unit_stream<STEP>(u, unit, str);
#pragma unroll
        for (int r = 0; r < 4; r++) {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const int at = 32 * (i / 8) + 8 * r + i % 8, bit = u.end(at);
                /* Where the window 16 bits before is at hand, the multipliers take its part away,
                 * not a byte selection: for as many as make their work and the rest's equal. */
                if (at % 32 >= apart && at % 16 < 8 && window_part(bit) == 2)
                    p[at] = p[at - apart] * 0xffff0000u + window_bits(str, bit) * 0x83DCD12Du;
                else
                    p[at] = window(str, bit) * 0x83DCD12Du;
            }
            if constexpr (wide)
                b[0] = from[(4 * STEP + r) * 32];
                /* The activations serve both halves of the columns. */
#pragma unroll
            for (int h = 0; h < 4; h += 2)
#pragma unroll
                for (int s = 0; s < SETS; s++) {
                    const uint32_t low = activation(b[s], r, h), high = activation(b[s], r, h + 1);
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        const uint32_t *x = p + 32 * c + 8 * r + h;
                        kd_mma_bytes(d[s][c], x[0], x[4], x[1], x[5], low, high, d[s][c][0],
                                     d[s][c][1], d[s][c][2], d[s][c][3]);
                    }
                }
        }
    }

    template <int R>
    KD_DEV void unit(const unit_codes<R> &u, int unit, int32_t *sums, int rows, int lane) const
    {
        int32_t d[SETS][2][4];

#pragma unroll
        for (int s = 0; s < SETS; s++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                d[s][i / 4][i % 4] = 0;
        step<R, 0>(u, unit, d);
        step<R, 1>(u, unit, d);
        add_sums<SETS>(d, sums, rows, lane, [this](int s, int32_t high, int32_t low) {
            return (int32_t)((uint32_t)high * 256 + (uint32_t)low + start[s]) >> SUM_SHIFT;
        });
    }

    /* What a row's sums are in units of. */
    static KD_DEV float size(float most)
    {
        return kd_mul(most / 32639.0f, 1.0f / 131072.0f);
    }
    static KD_DEV float value(int32_t sum, float size, int32_t total)
    {
        return kd_mul(fmaf((float)sum, 887.0f * (1 << SUM_SHIFT), -238.0f * (float)total), size);
    }
};

/* The codebook's fp16 values, activations as h + l / 2^11, both fp16; sums of 128 in the matrix
 * unit's fp32, then in units of 2^-18 of the chunk's largest activation (rounded up to a power of
 * two). MUL1: byte sums by a matrix instruction whose B side picks each lane's own. */
enum { SUM_UNITS = 18 };

KD_DEV float power_above(float most)
{
    const uint32_t e = kd_f32_bits(most) >> 23;

    return e == 255 ? kd_bits_f32(0x7fc00000u) : kd_bits_f32((e < 252 ? e + 1 : 253) << 23);
}

template <int SETS, bool MUL1> struct values {
    static constexpr bool mul1 = MUL1, masked = false;
    static constexpr int rows = 4 * SETS;
    static constexpr int packed = 0; /* rotated activations stay until the end */
    kd_h2 b[SETS][16];
    uint32_t own[2];         /* MUL1: the B side that picks */
    uint32_t factor, addend; /* of the other codebooks */

    KD_DEV explicit values(int codebook)
    {
        factor = codebook == KD_CB_MCG ? 0xCBAC1FEDu : 89226354u;
        addend = codebook == KD_CB_MCG ? 0 : 64248484u;
    }
    static KD_DEV void pack(const float (*)[4], int, const uint32_t (*)[WARPS], int32_t (*)[WARPS],
                            int, uint32_t *, int)
    {
    }
    static KD_DEV int32_t total(int32_t)
    {
        return 0;
    }
    KD_DEV void open(const float *rotated, int stride, const uint32_t *, int rows,
                     const uint32_t (*most)[WARPS], const int32_t (*)[WARPS], int, int lane)
    {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            const int row = 4 * s + g / 2;
            const float down = power_above(row < rows ? largest(most[row]) : 1.0f);
            const float up = kd_bits_f32(0x7f000000u - kd_f32_bits(down));
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const int in = i / 8 * 64 + 16 * t + i % 8 / 2 * 2 + i % 2 * 8;
                float v[2];
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    v[j] = row < rows ? kd_mul(rotated[row * stride + in + j], up) : 0.0f;
                    if (g & 1)
                        v[j] = kd_mul(v[j] - kd_half_float(kd_float_half(v[j])), 2048.0f);
                }
                b[s][i] = kd_h2_of(v[0], v[1]);
            }
        }
        own[0] = g == 2 * t ? 0x01010101u : 0;
        own[1] = g == 2 * t + 1 ? 0x01010101u : 0;
    }

    /* 16 values of a row of A, from the products of 8 positions. */
    KD_DEV void decode(const uint32_t x[8], kd_h2 a[4]) const
    {
        if constexpr (MUL1) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int32_t d[4];
                kd_mma_bytes(d, x[2 * h], x[2 * h + 4], x[2 * h + 1], x[2 * h + 5], own[0], own[1],
                             0x6400, 0x6400, 0x6400, 0x6400);
#pragma unroll
                for (int i = 0; i < 2; i++)
                    a[2 * h + i] = kd_h2_fma(
                        kd_bits_h2(kd_bytes((uint32_t)d[2 * i], (uint32_t)d[2 * i + 1], 0x5410)),
                        kd_bits_h2(0x1eee1eeeu), kd_bits_h2(0xc931c931u));
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = i % 2 * 4 + i / 2 * 2;
                const uint32_t p = (x[at] & 0x8fff8fffu) ^ 0x3b603b60u,
                               q = (x[at + 1] & 0x8fff8fffu) ^ 0x3b603b60u;
                a[i] = kd_h2_add(kd_bits_h2(kd_bytes(p, q, 0x5410)),
                                 kd_bits_h2(kd_bytes(p, q, 0x7632)));
            }
        }
    }

    template <int R, int STEP>
    KD_DEV void step(const unit_codes<R> &u, int unit, float d[SETS][2][4]) const
    {
        uint32_t str[rate_of<R>::stream];

        unit_stream<STEP>(u, unit, str);
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int r = 0; r < 4; r++) {
                uint32_t x[8];
                kd_h2 a[4];
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    x[j] = window(str, u.end(32 * c + 8 * r + j));
                    x[j] = MUL1 ? x[j] * 0x83DCD12Du : x[j] * factor + addend;
                }
                decode(x, a);
#pragma unroll
                for (int s = 0; s < SETS; s++)
                    kd_mma_halves(d[s][c], a, b[s][8 * STEP + 2 * r], b[s][8 * STEP + 2 * r + 1]);
            }
    }

    template <int R>
    KD_DEV void unit(const unit_codes<R> &u, int unit, int32_t *sums, int rows, int lane) const
    {
        float d[SETS][2][4];

#pragma unroll
        for (int s = 0; s < SETS; s++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                d[s][i / 4][i % 4] = 0.0f;
        step<R, 0>(u, unit, d);
        step<R, 1>(u, unit, d);
        add_sums<SETS>(d, sums, rows, lane, [](int, float high, float low) {
            return kd_round_int(kd_mul(fmaf(low, 1.0f / 2048.0f, high), (float)(1 << SUM_UNITS)));
        });
    }

    static KD_DEV float size(float most)
    {
        return kd_mul(power_above(most), 1.0f / (1 << SUM_UNITS));
    }
    static KD_DEV float value(int32_t sum, float size, int32_t)
    {
        return kd_mul((float)sum, size);
    }
};

} // namespace kd_exl3
#endif
