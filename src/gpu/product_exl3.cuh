/* Products of a few rows with EXL3 codes. A block takes a *task*: up to 1,024 inputs (a *chunk*,
 * one warp for each 128) and some units of 32 outputs, for up to 8 rows of activations. It
 *
 * - scales and rotates the chunk's activations and rounds them to a step of the chunk's own;
 *
 * - multiplies: each warp keeps its 128 inputs in registers as the B side of matrix instructions
 * and decodes units straight into the A side; sums are integers in shared memory, so that the order
 * in which warps add does not matter;
 *
 * - writes the sums as floats, by chunks. The last block at 128 outputs adds the chunks in
 * ascending order, rotates and scales.
 *
 * The cut into chunks depends on the matrix alone, that into units and rows matters to nobody. */
#ifndef KD_GPU_PRODUCT_EXL3_CUH
#define KD_GPU_PRODUCT_EXL3_CUH

#include "gpu/product_codes.cuh"

namespace kd_exl3
{

using namespace kd_codes;

enum {
    WARPS = 8,        /* of a block: a chunk has at most 8 * 128 inputs */
    GROUP = 8,        /* rows of a task */
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

/* A block's shared memory: this, the rotated activations [rows][warps * 128], the sums. */
struct alignas(16) shared_head {
    uint32_t most[GROUP][WARPS]; /* largest magnitude, as bits: NaN is above infinity */
    int32_t total[GROUP][WARPS]; /* of the rounded activations */
    int32_t whole[64];           /* blocks of outputs that this block finishes */
    int32_t wholes;
    task k; /* kept here, so that nothing of it takes registers while units are multiplied */
};
KD_HD static inline int64_t shared_bytes(int rows, int warps, int units)
{
    return (int64_t)sizeof(shared_head) + 4ll * rows * (warps * SIDE + units * ROW_STRIDE);
}

/* 128 values, 4 a lane, in kern's order of operations. */
KD_DEV void rotate(float v[4], int lane)
{
    float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];

    v[0] = a + c;
    v[1] = b + d;
    v[2] = a - c;
    v[3] = b - d;
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float other = kd_shuffle_xor(v[i], mask);
            v[i] = lane & mask ? other - v[i] : v[i] + other;
        }
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] *= 0.088388346f; /* fp32 of 1 / sqrt(128) */
}

/* This warp's 128 inputs of all rows, rotated; *most: the largest magnitude of each row. */
KD_DEV void rotate_inputs(const task &k, int block, float *to, int stride, uint32_t (*most)[WARPS],
                          int warp, int lane)
{
    const int at = SIDE * block + 4 * lane;
    float s[4];

#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] = at < k.w.cols ? kd_half_float(k.w.suh[at + i]) : 0.0f;
    for (int t = 0; t < k.rows; t++) {
        const float *x = k.x + (k.row ? (int64_t)k.row[t] : t) * k.ldx + at;
        float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        uint32_t m = 0;

        if (at + 4 <= k.w.cols) {
            const float4 f = *(const float4 *)x;
            v[0] = kd_mul(f.x, s[0]);
            v[1] = kd_mul(f.y, s[1]);
            v[2] = kd_mul(f.z, s[2]);
            v[3] = kd_mul(f.w, s[3]);
        } else {
            for (int i = 0; at + i < k.w.cols; i++)
                v[i] = kd_mul(x[i], s[i]);
        }
        rotate(v, lane);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t bits = kd_f32_bits(v[i]) & 0x7fffffffu;
            m = bits > m ? bits : m;
        }
        *(float4 *)(to + t * stride + 4 * lane) = make_float4(v[0], v[1], v[2], v[3]);
        m = kd_warp_max(m);
        if (lane == 0)
            most[t][warp] = m;
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
 * odd; so lane 4 g + t finds both sums of row t in one fragment of D. SETS of four rows. */

/* mul1's values before their rounding, activations as 16-bit integers 256 h + l: a value is
 * (887 (b - 510) - 238) / 2^17 with b the sum of the product's bytes, and the matrix instruction
 * sums bytes by itself. */
template <int SETS> struct fast {
    static constexpr bool mul1 = true, masked = true;
    uint32_t b[SETS][32];
    int32_t start[SETS][2];

    KD_DEV void open(const float *rotated, int stride, int rows, int warps, uint32_t (*most)[WARPS],
                     int32_t (*total)[WARPS], int warp, int lane)
    {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            const int row = 4 * s + g / 2;
            int32_t sum = 0;
            const float m = row < rows ? largest(most[row], warps) : 0.0f;
            const float up = m > 0.0f && m < 3.0e38f ? 32639.0f / m : 0.0f;
#pragma unroll
            for (int i = 0; i < 32; i++) {
                /* Words 4 r + {0 .. 3} of a step are tile rows 2 r, 2 r + 1, 2 r + 8, 2 r + 9. */
                const int in = i / 16 * 64 + 16 * t + 2 * (i % 16 / 4) + (i & 1) + 8 * (i >> 1 & 1);
                const int32_t q =
                    row < rows ? kd_round_int(kd_mul(rotated[row * stride + in], up)) : 0;
                const int32_t h = (q + 128) >> 8, part = g & 1 ? q - 256 * h : h;
                sum += part;
                b[s][i] = ((uint32_t)part & 0xffu) * 0x01010101u;
            }
            sum += kd_shuffle_int(sum, lane ^ 1);
            sum += kd_shuffle_int(sum, lane ^ 2);
            const int32_t high = kd_shuffle_int(sum, 8 * t), low = kd_shuffle_int(sum, 8 * t + 4);
            start[s][0] = -HALF_RANGE * high;
            start[s][1] = -HALF_RANGE * low + (1 << (SUM_SHIFT - 1));
            if (g == 0 && 4 * s + t < rows)
                total[4 * s + t][warp] = 256 * high + low;
        }
    }

    template <int R, int STEP>
    KD_DEV void step(const unit_codes<R> &u, int unit, int32_t d[SETS][2][4]) const
    {
        uint32_t str[rate_of<R>::stream];

        unit_stream<STEP>(u, unit, str);
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int r = 0; r < 4; r++) {
                uint32_t x[8];
#pragma unroll
                for (int j = 0; j < 8; j++)
                    x[j] = window(str, u.end(32 * c + 8 * r + j)) * 0x83DCD12Du;
#pragma unroll
                for (int h = 0; h < 4; h += 2)
#pragma unroll
                    for (int s = 0; s < SETS; s++)
                        kd_mma_bytes(d[s][c], x[h], x[h + 4], x[h + 1], x[h + 5],
                                     b[s][16 * STEP + 4 * r + h], b[s][16 * STEP + 4 * r + h + 1],
                                     d[s][c][0], d[s][c][1], d[s][c][2], d[s][c][3]);
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
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            const int row = 4 * s + lane % 4;
            if (row < rows)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    kd_shared_add(sums + row * ROW_STRIDE + lane / 4 * 4 + i,
                                  (d[s][i / 2][i % 2 * 2] * 256 + d[s][i / 2][i % 2 * 2 + 1]) >>
                                      SUM_SHIFT);
        }
    }

    static KD_DEV float value(int32_t sum, float most, const int32_t total[WARPS], int warps)
    {
        int32_t q = 0;

        for (int i = 0; i < warps; i++)
            q += total[i];
        return kd_mul(fmaf((float)sum, 887.0f * (1 << SUM_SHIFT), -238.0f * (float)q),
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
    kd_h2 b[SETS][16];
    uint32_t own[2];         /* MUL1: the B side that picks */
    uint32_t factor, addend; /* of the other codebooks */

    KD_DEV void open(const float *rotated, int stride, int rows, int warps, uint32_t (*most)[WARPS],
                     int32_t (*)[WARPS], int, int lane)
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
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            const int row = 4 * s + lane % 4;
            if (row < rows)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    kd_shared_add(sums + row * ROW_STRIDE + lane / 4 * 4 + i,
                                  kd_round_int(kd_mul(fmaf(d[s][i / 2][i % 2 * 2 + 1],
                                                           1.0f / 2048.0f, d[s][i / 2][i % 2 * 2]),
                                                      (float)(1 << SUM_UNITS))));
        }
    }

    static KD_DEV float value(int32_t sum, float most, const int32_t *, int)
    {
        return kd_mul((float)sum, kd_mul(power_above(most), 1.0f / (1 << SUM_UNITS)));
    }
};

/* All units of a warp, the next one's codes under way while one is multiplied. A function of its
 * own for each rate, or the compiler would make one of all and run out of registers. */
template <int R, class MODE>
KD_CALL void run_units(const MODE &mode, int rate16, const uint32_t *codes, int first, int last,
                       int rows, int32_t *sums)
{
    const MODE m = mode; /* into registers */
    const int lane = kd_thread() % 32;
    unit_codes<R> now(rate16), next(rate16);

    now.load(now.block(codes, first / UNITS), first % UNITS, lane);
#pragma unroll 1
    for (int u = first; u < last; u++, sums += rows * ROW_STRIDE) {
        if (u + 1 < last)
            next.load(next.block(codes, (u + 1) / UNITS), (u + 1) % UNITS, lane);
        m.template unit<R>(now, u % UNITS, sums, rows, lane);
        now.take(next);
    }
}

/* Rates that have code of their own: whole ones in every mode, those that experts use in the mode
 * for decoding. */
#define KD_RATE(r)                                                                                 \
    case r:                                                                                        \
        run_units<r>(m, r, codes, k.first, k.last, k.rows, sums);                                  \
        return;
template <class MODE>
KD_DEV void run_rate(const MODE &m, const uint32_t *codes, const task &k, int32_t *sums)
{
    switch (k.w.rate16) {
        KD_RATE(16)
        KD_RATE(32)
        KD_RATE(48) KD_RATE(64) KD_RATE(80) KD_RATE(96) KD_RATE(112) KD_RATE(128) default : break;
    }
    if constexpr (MODE::masked)
        switch (k.w.rate16) {
            KD_RATE(24)
            KD_RATE(28)
            KD_RATE(33)
            KD_RATE(34)
            KD_RATE(35) KD_RATE(36) KD_RATE(37) KD_RATE(38) KD_RATE(39) KD_RATE(40) KD_RATE(41)
                KD_RATE(42) KD_RATE(43) KD_RATE(44) KD_RATE(45) KD_RATE(46) KD_RATE(47) KD_RATE(52)
                    KD_RATE(56) KD_RATE(60) default : break;
        }
    run_units<0>(m, k.w.rate16, codes, k.first, k.last, k.rows, sums);
}
#undef KD_RATE

/* The parts of a block's shared memory. */
struct parts {
    shared_head *head;
    float *rotated;
    int32_t *sums;
    int32_t stride, warps,
        block; /* of `rotated`; warps that have inputs; this warp's block of them */
};
KD_DEV struct parts parts_of(unsigned char *memory)
{
    shared_head *head = (shared_head *)memory;
    const task &k = head->k;
    const struct cut c = cut_of(k.w.ins);
    const int left = k.w.ins - k.chunk * c.warps;
    float *rotated = (float *)(memory + sizeof *head);

    return {head,
            rotated,
            (int32_t *)(rotated + k.rows * c.warps * SIDE),
            c.warps * SIDE,
            left < c.warps ? left : c.warps,
            k.chunk * c.warps + kd_thread() / 32};
}

/* head->k (which all threads see) up to its sums in shared memory, and a barrier. */
template <class MODE> KD_DEV void multiply(unsigned char *memory)
{
    const int thread = kd_thread(), warp = thread / 32, lane = thread % 32;
    {
        const struct parts p = parts_of(memory);
        const task &k = p.head->k;
        const int words = (k.last - k.first) * k.rows * ROW_STRIDE;

        for (int i = thread; i < words; i += 32 * WARPS)
            p.sums[i] = 0;
        if (warp < p.warps)
            rotate_inputs(k, p.block, p.rotated + warp * SIDE, p.stride, p.head->most, warp, lane);
    }
    kd_sync_block();
    const struct parts p = parts_of(memory);
    if (warp < p.warps) {
        const task &k = p.head->k;
        MODE m;
        if constexpr (!MODE::mul1) {
            m.factor = k.w.codebook == KD_CB_MCG ? 0xCBAC1FEDu : 89226354u;
            m.addend = k.w.codebook == KD_CB_MCG ? 0 : 64248484u;
        }
        m.open(p.rotated + warp * SIDE, p.stride, k.rows, p.warps, p.head->most, p.head->total,
               warp, lane);
        run_rate(m, k.w.codes + (int64_t)p.block * k.w.outs * 32 * k.w.rate16, k, p.sums);
    }
    kd_sync_block();
}

/* The sums into device memory. Counts this task's units in; head->whole then names the blocks of
 * 128 outputs of which all of `chunks` chunks are there, this block having brought the last.
 * Counters go back to 0. */
template <class MODE> KD_DEV void deliver(unsigned char *memory, int chunks)
{
    const struct parts p = parts_of(memory);
    const task &k = p.head->k;
    const int count = (k.last - k.first) * k.rows * UNIT_OUTS;
    float *to = k.sums + (int64_t)k.chunk * k.rows * k.w.outs * SIDE;

    for (int i = kd_thread(); i < count; i += 32 * WARPS) {
        const int u = i / UNIT_OUTS / k.rows, t = i / UNIT_OUTS % k.rows, o = i % UNIT_OUTS;
        to[((int64_t)t * k.w.outs * UNITS + k.first + u) * UNIT_OUTS + o] =
            MODE::value(p.sums[(u * k.rows + t) * ROW_STRIDE + o],
                        largest(p.head->most[t], p.warps), p.head->total[t], p.warps);
    }
    kd_device_fence();
    kd_sync_block();
    if (kd_thread() == 0) {
        int n = 0;
        for (int i = k.first / UNITS; i < (k.last + UNITS - 1) / UNITS; i++) {
            const int a = k.first > UNITS * i ? k.first : UNITS * i,
                      b = k.last < UNITS * i + UNITS ? k.last : UNITS * i + UNITS;
            if (kd_device_add(k.counter + i, b - a) + b - a == UNITS * chunks) {
                k.counter[i] = 0;
                p.head->whole[n++] = i;
            }
        }
        p.head->wholes = n;
        kd_device_fence();
    }
    kd_sync_block();
}

/* 128 outputs of one row, 4 a lane: chunks added in order, rotated, scaled. `sums` are a chunk's,
 * at this block of outputs; chunks are `step` floats apart. */
KD_DEV void finish(const float *sums, int64_t step, int chunks, const uint16_t *svh, int lane,
                   float v[4])
{
    /* Output 4 lane + i is tile column 4 (lane & 3) + i of tile lane / 4. */
    const int at = (lane & 1) * 2 * UNIT_OUTS + lane / 4 * 4 + (lane >> 1 & 1);

#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = kd_load_fresh(sums + at + i / 2 * UNIT_OUTS + i % 2 * 2);
    for (int c = 1; c < chunks; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] += kd_load_fresh(sums + c * step + at + i / 2 * UNIT_OUTS + i % 2 * 2);
    rotate(v, lane);
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = kd_mul(v[i], kd_half_float(svh[4 * lane + i]));
}

/* Matrices with the same number of rows of activations, side by side. */
struct dense_job {
    matrix w;
    const float *x;
    float *y;
    int64_t ldx, ldy;
    int64_t sums;          /* floats from args.sums */
    int32_t counter;       /* from args.counter, [groups][outs / 128] */
    int32_t first, ranges; /* its first task; cuts of its units */
};
struct dense_args {
    dense_job job[8];
    int32_t jobs, rows, tasks;
    float *sums;
    int32_t *counter;
};

/* The job of a task, and what of it the task is. */
KD_DEV int dense_pick(const dense_args &a, int index, int *group, task *k)
{
    int j = 0;
    while (j + 1 < a.jobs && index >= a.job[j + 1].first)
        j++;
    const dense_job &job = a.job[j];
    const struct cut c = cut_of(job.w.ins);
    const int local = index - job.first, range = local / c.chunks % job.ranges;
    const int units = job.w.outs * UNITS, left = a.rows - local / c.chunks / job.ranges * GROUP;

    *group = local / c.chunks / job.ranges;
    *k = {job.w,
          job.x + (int64_t)*group * GROUP * job.ldx,
          job.ldx,
          nullptr,
          left < GROUP ? left : (int)GROUP,
          local % c.chunks,
          (int)((int64_t)range * units / job.ranges),
          (int)((int64_t)(range + 1) * units / job.ranges),
          a.sums + job.sums + (int64_t)*group * GROUP * c.chunks * job.w.outs * SIDE,
          a.counter + job.counter + *group * job.w.outs};
    return j;
}

template <class MODE> KD_DEV void dense_task(const dense_args &a, int index, unsigned char *memory)
{
    shared_head *head = (shared_head *)memory;
    int group;

    if (kd_thread() == 0)
        dense_pick(a, index, &group, &head->k);
    kd_sync_block();
    multiply<MODE>(memory);
    const struct cut c = cut_of(head->k.w.ins);
    deliver<MODE>(memory, c.chunks);
    if (!head->wholes)
        return;
    task k;
    const dense_job &job = a.job[dense_pick(a, index, &group, &k)];
    for (int i = kd_thread() / 32; i < head->wholes * k.rows; i += WARPS) {
        const int n = head->whole[i / k.rows], t = i % k.rows, lane = kd_thread() % 32;
        const int at = SIDE * n + 4 * lane;
        float v[4], *y = job.y + (int64_t)(group * GROUP + t) * job.ldy + at;

        finish(k.sums + ((int64_t)t * k.w.outs + n) * SIDE, (int64_t)k.rows * k.w.outs * SIDE,
               c.chunks, k.w.svh + SIDE * n, lane, v);
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (at + e < k.w.rows)
                y[e] = v[e];
    }
}

template <class MODE> KD_KERNEL void KD_BOUNDS(256, 2) multiply_dense(KD_ARGS dense_args a)
{
    KD_SHARED(memory);

    kd_launch_next();
    kd_launch_wait();
    for (int i = kd_block(); i < a.tasks; i += kd_blocks()) {
        dense_task<MODE>(a, i, memory);
        kd_sync_block();
    }
}

} // namespace kd_exl3
#endif
