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
    PART = 4,         /* that are rotated at a time */
    UNIT_OUTS = 32,   /* outputs of a unit: 4 g + 2 (column & 1) + (1 for columns from 8 on) */
    ROW_STRIDE = 33,  /* words between a unit's rows of sums, so that lanes meet no bank twice */
    HALF_RANGE = 510, /* what a byte sum is counted from */
    SUM_SHIFT = 3     /* bits that a warp's sum leaves away, so that eight fit 32 bits */
};

struct matrix {
    const uint32_t *codes;
    const uint16_t *suh, *svh;
    int32_t rows, cols;
    int32_t ins, outs; /* padded, in blocks of 128 */
    int32_t rate16, codebook;
};

/* How the inputs are cut; blocks of 128. */
struct cut {
    int32_t chunks, warps;
};
KD_HD static inline struct cut cut_of(int blocks)
{
    const int chunks = (blocks + WARPS - 1) / WARPS;

    return {chunks, (blocks + chunks - 1) / chunks};
}

struct task {
    matrix w;
    const float *x; /* row t at x + row[t] * ldx, row NULL: t */
    int64_t ldx;
    const int32_t *row;
    int32_t rows, chunk, first, last; /* units first .. last - 1 */
    float *sums;                      /* [chunks][rows][outs * 128] */
    int32_t *counter;                 /* [outs] units that are there */
};

/* This lane's four scales of a block of inputs. */
KD_DEV void input_scales(const task &k, int block, int lane, float s[4])
{
    const int at = SIDE * block + 4 * lane;

#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] = at < k.w.cols ? kd_half_float(k.w.suh[at + i]) : 0.0f;
}
/* This warp's 128 inputs of rows begin .. end - 1, scaled by s and rotated, the first one's to
 * `to`; most[t][warp]: the largest magnitude of each row. PART rows come at a time, as loads take
 * long. */
KD_DEV void rotate_inputs(const task &k, const float s[4], int begin, int end, int block, float *to,
                          int stride, uint32_t (*most)[WARPS], int warp, int lane)
{
    const int at = SIDE * block + 4 * lane;

#pragma unroll 1
    for (int first = begin; first < end; first += PART) {
        float4 f[PART];
#pragma unroll
        for (int j = 0; j < PART; j++) {
            const int t = first + j;
            f[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (t >= end)
                continue;
            const float *x = k.x + (k.row ? (int64_t)k.row[t] : t) * k.ldx + at;
            if (at + 4 <= k.w.cols) {
                f[j] = *(const float4 *)x;
            } else {
                f[j].x = at < k.w.cols ? x[0] : 0.0f;
                f[j].y = at + 1 < k.w.cols ? x[1] : 0.0f;
                f[j].z = at + 2 < k.w.cols ? x[2] : 0.0f;
            }
        }
#pragma unroll
        for (int j = 0; j < PART; j++) {
            const int t = first + j;
            if (t >= end)
                break;
            float v[4] = {kd_mul(f[j].x, s[0]), kd_mul(f[j].y, s[1]), kd_mul(f[j].z, s[2]),
                          kd_mul(f[j].w, s[3])};
            uint32_t m = 0;
            kd_hadamard128(v, lane);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t bits = kd_f32_bits(v[i]) & 0x7fffffffu;
                m = bits > m ? bits : m;
            }
            *(float4 *)(to + (t - begin) * stride + 4 * lane) = make_float4(v[0], v[1], v[2], v[3]);
            m = kd_warp_max(m);
            if (lane == 0)
                most[t][warp] = m;
        }
    }
}

KD_DEV float largest(const uint32_t most[WARPS], int warps)
{
    uint32_t m = 0;

    for (int i = 0; i < warps; i++)
        m = most[i] > m ? most[i] : m;
    return kd_bits_f32(m);
}

/* Column g of the B side is row g / 2: its coarse part where g is even, its fine part where it is
 * odd; so lane 4 g + t finds both sums of row t in one fragment of D. SETS of four rows.
 *
 * A warp's accumulators into a unit's rows of sums, as the integers that `of` makes of their two
 * halves. */
template <int SETS, class T, class OF>
KD_DEV void add_sums(const T (&d)[SETS][2][4], int32_t *sums, int rows, int lane, OF of)
{
#pragma unroll
    for (int s = 0; s < SETS; s++) {
        const int row = 4 * s + lane % 4;
        if (row < rows)
#pragma unroll
            for (int i = 0; i < 4; i++)
                kd_shared_add(sums + row * ROW_STRIDE + lane / 4 * 4 + i,
                              of(d[s][i / 2][i % 2 * 2], d[s][i / 2][i % 2 * 2 + 1]));
    }
}

/* mul1's values before their rounding, activations as 16-bit integers 256 h + l: a value is
 * (887 (b - 510) - 238) / 2^17 with b the sum of the product's bytes, and the matrix instruction
 * sums bytes by itself. */
template <int SETS> struct fast {
    static constexpr bool mul1 = true, masked = true;
    static constexpr int rows = 4 * SETS;
    static constexpr int packed = SETS * 256; /* words of a block of 128 inputs */
    uint32_t b[SETS][8];                      /* packed: registers are scarcer than time */
    int32_t start[SETS][2];

    KD_DEV explicit fast(int)
    {
    }
    /* A block's rotated activations as integers, in the order in which lanes want them: [set][step]
     * [lane] four words, a byte for each of words 4 r + {0 .. 3} of b. Those four are tile rows
     * 2 r, 2 r + 1, 2 r + 8, 2 r + 9. rotated: of row `begin`. */
    static KD_DEV void pack(const float *rotated, int stride, int begin, int end, int warps,
                            uint32_t (*most)[WARPS], uint32_t *to, int lane)
    {
        const int step = lane / 16, t = lane / 4 % 4, half = lane % 4 / 2, word = lane % 2 * 2;
#pragma unroll 1
        for (int row = begin; row < end; row++) {
            const float m = largest(most[row], warps);
            const float up = m > 0.0f && m < 3.0e38f ? 32639.0f / m : 0.0f;
            const float4 f = *(const float4 *)(rotated + (row - begin) * stride + 4 * lane);
            const float v[4] = {f.x, f.y, f.z, f.w};
            uint32_t high[4], low[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int32_t q = kd_round_int(kd_mul(v[i], up)), h = (q + 128) >> 8;
                high[i] = (uint32_t)h & 0xffu;
                low[i] = (uint32_t)(q - 256 * h) & 0xffu;
            }
            uint16_t *at = (uint16_t *)to +
                           (((row / 4 * 2 + step) * 32 + row % 4 * 8 + t) * 4 + word) * 2 + half;
            at[0] = (uint16_t)(high[0] | high[1] << 8);
            at[2] = (uint16_t)(high[2] | high[3] << 8);
            at[32] = (uint16_t)(low[0] | low[1] << 8);
            at[34] = (uint16_t)(low[2] | low[3] << 8);
        }
    }
    KD_DEV void open(const float *, int, const uint32_t *from, int rows, int, uint32_t (*)[WARPS],
                     int32_t (*total)[WARPS], int block, int lane)
    {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int s = 0; s < SETS; s++) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                b[s][i] = 0;
            int32_t sum = -128 * 32;
            if (4 * s + g / 2 < rows)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint4 v = ((const uint4 *)from)[(s * 2 + i) * 32 + lane];
                    b[s][4 * i] = v.x;
                    b[s][4 * i + 1] = v.y;
                    b[s][4 * i + 2] = v.z;
                    b[s][4 * i + 3] = v.w;
                }
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum = (int32_t)kd_byte_sum(b[s][i] ^ 0x80808080u, (uint32_t)sum);
            sum += kd_shuffle_int(sum, lane ^ 1);
            sum += kd_shuffle_int(sum, lane ^ 2);
            const int32_t high = kd_shuffle_int(sum, 8 * t), low = kd_shuffle_int(sum, 8 * t + 4);
            start[s][0] = -HALF_RANGE * high;
            start[s][1] = -HALF_RANGE * low + (1 << (SUM_SHIFT - 1));
            if (g == 0 && 4 * s + t < rows)
                total[4 * s + t][block] = 256 * high + low;
        }
    }

    /* Four times the byte for word i of the B side of set s. */
    KD_DEV uint32_t activation(int s, int i) const
    {
        return kd_bytes(b[s][i / 4], 0, 0x1111u * (uint32_t)(i % 4));
    }
    template <int R, int STEP>
    KD_DEV void step(const unit_codes<R> &u, int unit, int32_t d[SETS][2][4]) const
    {
        constexpr int apart = rate_of<R>::apart;
        uint32_t str[rate_of<R>::stream], p[64];

        unit_stream<STEP>(u, unit, str);
#pragma unroll
        for (int r = 0; r < 4; r++) {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const int at = 32 * (i / 8) + 8 * r + i % 8, bit = u.end(at);
                /* Half of those that may do so leave a byte selection to the multipliers. */
                if (at % 32 >= apart && window_part(bit) == 2 && (bit + 16) / 24 % 2)
                    p[at] = p[at - apart] * 0xffff0000u + window_bits(str, bit) * 0x83DCD12Du;
                else
                    p[at] = window(str, bit) * 0x83DCD12Du;
            }
            /* The activations serve both halves of the columns. */
#pragma unroll
            for (int h = 0; h < 4; h += 2)
#pragma unroll
                for (int s = 0; s < SETS; s++) {
                    const uint32_t low = activation(s, 16 * STEP + 4 * r + h),
                                   high = activation(s, 16 * STEP + 4 * r + h + 1);
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
                d[s][i / 4][i % 4] = start[s][i & 1];
        step<R, 0>(u, unit, d);
        step<R, 1>(u, unit, d);
        add_sums<SETS>(d, sums, rows, lane,
                       [](int32_t high, int32_t low) { return (high * 256 + low) >> SUM_SHIFT; });
    }

    static KD_DEV float value(int32_t sum, float most, int32_t total)
    {
        return kd_mul(fmaf((float)sum, 887.0f * (1 << SUM_SHIFT), -238.0f * (float)total),
                      kd_mul(most / 32639.0f, 1.0f / 131072.0f));
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
    static KD_DEV void pack(const float *, int, int, int, int, uint32_t (*)[WARPS], uint32_t *, int)
    {
    }
    KD_DEV void open(const float *rotated, int stride, const uint32_t *, int rows, int warps,
                     uint32_t (*most)[WARPS], int32_t (*)[WARPS], int, int lane)
    {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            const int row = 4 * s + g / 2;
            const float down = power_above(row < rows ? largest(most[row], warps) : 1.0f);
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
        add_sums<SETS>(d, sums, rows, lane, [](float high, float low) {
            return kd_round_int(kd_mul(fmaf(low, 1.0f / 2048.0f, high), (float)(1 << SUM_UNITS)));
        });
    }

    static KD_DEV float value(int32_t sum, float most, int32_t)
    {
        return kd_mul((float)sum, kd_mul(power_above(most), 1.0f / (1 << SUM_UNITS)));
    }
};

} // namespace kd_exl3
#endif
