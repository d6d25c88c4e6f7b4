/* The weights of products of many rows: decoded into the A side of matrix instructions.
 *
 * Warp `unit` of a set has the outputs 16 g + 2 unit + c and those + 8 of a block of 128 (c = 0, 1:
 * the two fragments that it makes at a time); lane 4 g + t has rows g and g + 8 of them, and of 64
 * inputs those from 16 t on. Fragment r of four has its inputs 2 r, 2 r + 1 and those + 8. */
#ifndef KD_GPU_PRODUCT_GEMM_CODES_CUH
#define KD_GPU_PRODUCT_GEMM_CODES_CUH

#include "gpu/product_exl3.cuh"
#include "gpu/product_plain.cuh"

namespace kd_gemm
{

using kd_codes::SIDE;

/* 128 outputs for some rows, some blocks of 128 inputs. */
struct task {
    kd_exl3::matrix w;
    kd_plain::matrix plain;  /* or this */
    const unsigned char *x;  /* prepared activations of the first row; inputs 0 .. 63 */
    int64_t x_step, x_plane; /* bytes to the next 64 inputs, to the second plane */
    const float *scale;      /* of the rows */
    const uint16_t *svh;     /* NULL: sums are wanted as they are */
    float *y;
    int64_t ldy;
    int32_t columns, rows, out, first, last; /* of y and x; block of outputs; blocks of inputs */
};

/* EXL3: a warp's ring has two blocks of its unit. */
template <int R, bool MUL1, int PLANES> struct exl3 {
    static constexpr int planes = PLANES;
    static constexpr bool halves = true, flush = PLANES > 1;
    static constexpr int slot = R ? 32 * kd_exl3::ring_words(R) : 0, ring = 2 * slot;
    const uint32_t *codes; /* of this set's first block */
    int64_t apart;         /* words to its next one */
    uint32_t *words;
    int32_t rate16, unit, lane;
    uint32_t factor, addend;
    kd_codes::unit_codes<R> u = kd_codes::unit_codes<R>(0);
    uint32_t str[kd_codes::rate_of<R>::stream];

    KD_DEV void begin(const task &k, uint32_t *to, int set, int of, int at)
    {
        rate16 = R ? R : k.w.rate16;
        codes = k.w.codes + ((int64_t)(k.first + set) * k.w.outs + k.out) * 32 * rate16;
        apart = 2ll * k.w.outs * 32 * rate16;
        words = to;
        unit = of;
        lane = at;
        factor = k.w.codebook == KD_CB_MCG ? 0xCBAC1FEDu : 89226354u;
        addend = k.w.codebook == KD_CB_MCG ? 0 : 64248484u;
        u = kd_codes::unit_codes<R>(rate16);
    }
    KD_DEV void fetch(const uint32_t *block, uint32_t *to) const
    {
        if constexpr (R != 0) {
            kd_copy4(to + slot - 32 + lane,
                     block + (unit + 3) % kd_codes::UNITS * (R / 4) * 32 + lane * 4);
            kd_exl3::fetch_unit(block + unit * (R / 4) * 32 + 4 * lane, R, unit, to + 4 * lane,
                                lane);
        }
    }
    KD_DEV void first() const
    {
        fetch(codes, words);
    }
    template <int STEP> KD_DEV void ahead(bool more, int i)
    {
        if (STEP == 0 && more)
            fetch(codes + (i + 1) * apart, words + (i + 1) % 2 * slot);
    }
    template <int STEP> KD_DEV void open(int i)
    {
        if constexpr (R != 0) {
            const uint32_t *at = words + i % 2 * slot;
            u.take(at + 4 * lane, lane);
            u.before = at[slot - 32 + lane];
        } else {
            u.load(codes + i * apart, lane);
        }
        kd_codes::unit_stream<STEP>(u, unit, str);
    }
    KD_DEV void fragments(int r, uint32_t a[2][4]) const
    {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            uint32_t x[8];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                x[j] = kd_codes::window(str, u.end(32 * c + 8 * r + j));
                x[j] = MUL1 ? x[j] * 0x83DCD12Du : x[j] * factor + addend;
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = i % 2 * 4 + i / 2 * 2;
                a[c][i] = kd_h2_bits(pair(x[at], x[at + 1]));
            }
        }
    }
    /* The codebook's values of two products. */
    static KD_DEV kd_h2 pair(uint32_t x, uint32_t y)
    {
        if (MUL1)
            return kd_h2_fma(
                kd_bits_h2(kd_bytes(kd_byte_sum(x, 0x6400), kd_byte_sum(y, 0x6400), 0x5410)),
                kd_bits_h2(0x1eee1eeeu), kd_bits_h2(0xc931c931u));
        const uint32_t p = (x & 0x8fff8fffu) ^ 0x3b603b60u, q = (y & 0x8fff8fffu) ^ 0x3b603b60u;
        return kd_h2_add(kd_bits_h2(kd_bytes(p, q, 0x5410)), kd_bits_h2(kd_bytes(p, q, 0x7632)));
    }
};

/* BF16 and MXFP4, as bf16: 16 inputs of four rows a lane, the next 64 inputs on their way. */
template <kd_plain::type TYPE> struct plain {
    static constexpr int planes = 2, ring = 0;
    static constexpr bool halves = false, flush = false;
    static constexpr int words = TYPE == kd_plain::BF16 ? 8 : 2;
    const uint8_t *row[4], *scale[4]; /* of 2 c + h */
    int32_t col, cols;                /* this lane's next */
    uint32_t now[4][words], next[4][words];
    uint32_t by[4], next_by[4]; /* MXFP4's scales */

    KD_DEV void begin(const task &k, uint32_t *, int set, int unit, int lane)
    {
        cols = k.plain.cols;
        col = (k.first + set) * SIDE + lane % 4 * 16;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int n = k.out * SIDE + lane / 4 * 16 + 2 * unit + i / 2 + i % 2 * 8;
            const int64_t at = n < k.plain.rows ? n : k.plain.rows - 1;
            row[i] = k.plain.w + at * k.plain.ld;
            if (TYPE == kd_plain::MXFP4)
                scale[i] = k.plain.scale + at * k.plain.lds;
        }
    }
    KD_DEV void load()
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < words; j++)
                next[i][j] = 0;
            if constexpr (TYPE == kd_plain::BF16) {
                const uint8_t *at = row[i] + 2ll * col;
                if (col + 16 <= cols) {
#pragma unroll
                    for (int j = 0; j < 8; j += 4) {
                        const uint4 v = kd_load_const((const uint4 *)(at + 4 * j));
                        next[i][j] = v.x;
                        next[i][j + 1] = v.y;
                        next[i][j + 2] = v.z;
                        next[i][j + 3] = v.w;
                    }
                } else {
#pragma unroll
                    for (int j = 0; j < 16; j++)
                        if (col + j < cols)
                            next[i][j / 2] |= (uint32_t)((const uint16_t *)at)[j] << j % 2 * 16;
                }
            } else if (col < cols) { /* whole groups of 32 */
                const uint2 v = kd_load_const((const uint2 *)(row[i] + col / 2));
                next[i][0] = v.x;
                next[i][1] = v.y;
                next_by[i] = kd_load_const(scale[i] + col / 32);
            } else {
                next_by[i] = 0;
            }
        }
    }
    KD_DEV void first()
    {
        load();
    }
    template <int STEP> KD_DEV void ahead(bool more, int)
    {
        if (STEP == 0 || more) {
            col += STEP == 0 ? 64 : 192;
            load();
        }
    }
    template <int STEP> KD_DEV void open(int)
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < words; j++)
                now[i][j] = next[i][j];
            if (TYPE == kd_plain::MXFP4)
                by[i] = kd_bytes(kd_f32_bits(kd_e8m0_f32((uint8_t)next_by[i])), 0, 0x3232);
        }
    }
    KD_DEV void fragments(int r, uint32_t a[2][4]) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if constexpr (TYPE == kd_plain::BF16) {
                a[i / 2][i % 2] = now[i][r];
                a[i / 2][i % 2 + 2] = now[i][r + 4];
            } else {
                /* Four codes; the bytes of their magnitudes, then signs and scale. */
                const uint32_t v = kd_bytes(now[i][0], now[i][1], (uint32_t)(r | (4 + r) << 4));
                const uint32_t high = kd_bytes(0x3f3f3f00u, 0x40404040u, v),
                               low = kd_bytes(0xc0800000u, 0xc0804000u, v);
                a[i / 2][i % 2] = kd_bf16_mul(kd_bytes(low, high, 0x5140) | (v << 12 & 0x8000u) |
                                                  (v << 24 & 0x80000000u),
                                              by[i]);
                a[i / 2][i % 2 + 2] = kd_bf16_mul(kd_bytes(low, high, 0x7362) | (v << 4 & 0x8000u) |
                                                      (v << 16 & 0x80000000u),
                                                  by[i]);
            }
    }
};

/* 128 outputs of one row, 4 a lane, rotated and scaled. */
KD_DEV void finish(float v[4], float scale, const uint16_t *svh, int lane)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = kd_mul(v[i], scale);
    kd_hadamard128(v, lane);
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = kd_mul(v[i], kd_half_float(svh[4 * lane + i]));
}

} // namespace kd_gemm
#endif
