/* Products of up to 16 rows of activations with F32, BF16 and MXFP4 matrices, with the bits of
 * kern's (DOT16, docs/numerics.md), bounded by memory: a block has some rows of the matrix, pieces
 * of 128 inputs of them come into shared memory ahead of use, and a thread has some of DOT16's
 * lanes of one row or two. */
#ifndef KD_GPU_PRODUCT_PLAIN_CUH
#define KD_GPU_PRODUCT_PLAIN_CUH

#include "gpu/mma_lanes.cuh"
#include "num/mxfp4_block.h"

namespace kd_plain
{

enum type { F32, BF16, MXFP4 };
enum { PIECE = 128 };

/* ld bytes between rows, a multiple of 16; lds between rows of scales, a multiple of 4. */
struct matrix {
    const uint8_t *w, *scale;
    int64_t ld, lds;
    int32_t rows, cols;
};

/* Rows first .. of w for `tokens` rows of x, row t at x + from[t] * ldx (NULL: t), to y + to[t] *
 * ldy. */
struct task {
    matrix w;
    const float *x;
    float *y;
    int64_t ldx, ldy;
    const int32_t *from, *to;
    int32_t tokens, first;
};

template <type TYPE, int TOKENS> struct shape {
    static constexpr int lanes = TYPE == MXFP4 ? 8 : 4; /* of a thread */
    static constexpr int row_threads = 16 / lanes;
    static constexpr int each = TYPE != MXFP4 && TOKENS > 4 ? 2 : 1; /* rows of a thread */
    static constexpr int threads = TOKENS > 4 ? 128 : 64;
    static constexpr int rows = threads / row_threads * each;
    static constexpr int row_bytes = TYPE == F32 ? 512 : TYPE == BF16 ? 256 : 64;
    /* Between rows in shared memory, so that rows that are read at once lie in other banks. */
    static constexpr int stride = row_bytes + (TYPE == F32 ? 64 : TYPE == BF16 ? 32 : 16);
    static constexpr int scales_at = rows * stride;
    static constexpr int x_at = scales_at + (TYPE == MXFP4 ? 4 * rows : 0);
    static constexpr int bytes = x_at + TOKENS * PIECE * 4;
    static constexpr int pieces = TOKENS <= 4 ? 6 : TYPE == F32 ? 2 : 3; /* at a time */
};

/* Piece p of all rows and of x on its way into shared memory. */
template <type TYPE, int TOKENS> KD_DEV void fetch(const task &k, int piece, unsigned char *to)
{
    using s = shape<TYPE, TOKENS>;
    constexpr int parts = s::row_bytes / 16;
    const int64_t at = (int64_t)piece * s::row_bytes;

    for (int i = kd_thread(); i < s::rows * parts; i += s::threads) {
        const int r = i / parts, c = i % parts * 16;
        if (k.first + r < k.w.rows && at + c < k.w.ld)
            kd_copy16(to + r * s::stride + c, k.w.w + (k.first + r) * k.w.ld + at + c);
    }
    if (TYPE == MXFP4)
        for (int r = kd_thread(); r < s::rows; r += s::threads)
            if (k.first + r < k.w.rows && 4 * piece < k.w.lds)
                kd_copy4(to + s::scales_at + 4 * r,
                         k.w.scale + (k.first + r) * k.w.lds + 4 * piece);
    for (int i = kd_thread(); i < k.tokens * (PIECE / 4); i += s::threads) {
        const int t = i / (PIECE / 4), c = i % (PIECE / 4) * 4, col = piece * PIECE + c;
        if (col < k.w.cols)
            kd_copy16(to + s::x_at + (t * PIECE + c) * 4,
                      k.x + (k.from ? (int64_t)k.from[t] : t) * k.ldx + col);
    }
    kd_copy_group();
}

/* This thread's lanes of step i (16 inputs) of a row in shared memory. */
template <type TYPE, int LANES>
KD_DEV void weights(const unsigned char *row, const unsigned char *scale, int i, int part,
                    float w[LANES])
{
    if constexpr (TYPE == F32) {
        const float4 v = *(const float4 *)(row + 64 * i + 16 * part);
        w[0] = v.x;
        w[1] = v.y;
        w[2] = v.z;
        w[3] = v.w;
    } else if constexpr (TYPE == BF16) {
        const uint2 v = *(const uint2 *)(row + 32 * i + 8 * part);
        w[0] = kd_bits_f32(v.x << 16);
        w[1] = kd_bits_f32(v.x & 0xffff0000u);
        w[2] = kd_bits_f32(v.y << 16);
        w[3] = kd_bits_f32(v.y & 0xffff0000u);
    } else {
        /* A code's three bits as an fp32's exponent and mantissa are its value over 2^126; that
         * product is exact, so the one with the scale rounds once. */
        const uint32_t v = *(const uint32_t *)(row + 8 * i + 4 * part);
        const float s = kd_e8m0_f32(scale[i / 2]);
#pragma unroll
        for (int l = 0; l < LANES; l++) {
            const uint32_t bits = (l < 6 ? v << (22 - 4 * l) : v >> (4 * l - 22)) & 0x01c00000u;
            w[l] =
                kd_mul(kd_mul(kd_bits_f32(bits | (v << (28 - 4 * l) & 0x80000000u)), 0x1p126f), s);
        }
    }
}

/* One step of 16 inputs, of which `left` are there. */
template <type TYPE, int TOKENS, bool WHOLE>
KD_DEV void step(const unsigned char *piece, int i, int left,
                 float sum[shape<TYPE, TOKENS>::each][TOKENS][shape<TYPE, TOKENS>::lanes])
{
    using s = shape<TYPE, TOKENS>;
    const int part = kd_thread() % s::row_threads, row = kd_thread() / s::row_threads;
    const float *x = (const float *)(piece + s::x_at) + 16 * i + s::lanes * part;
    float w[s::each][s::lanes];

#pragma unroll
    for (int e = 0; e < s::each; e++) {
        const int r = row + e * (s::rows / s::each);
        weights<TYPE, s::lanes>(piece + r * s::stride, piece + s::scales_at + 4 * r, i, part, w[e]);
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
#pragma unroll
        for (int l = 0; l < s::lanes; l += 4) {
            const float4 v = *(const float4 *)(x + t * PIECE + l);
            const float u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int e = 0; e < s::each; e++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (WHOLE || s::lanes * part + l + j < left)
                        sum[e][t][l + j] = fmaf(w[e][l + j], u[j], sum[e][t][l + j]);
        }
}

/* DOT16's fold; lanes lie 4 or 8 to a thread. */
template <int LANES> KD_DEV float fold(float v[LANES])
{
#pragma unroll
    for (int l = 0; l < LANES; l++)
        v[l] += kd_shuffle_xor(v[l], LANES == 4 ? 2 : 1);
#pragma unroll
    for (int l = 0; l < 4; l++)
        v[l] += LANES == 4 ? kd_shuffle_xor(v[l], 1) : v[LANES - 4 + l];
    return (v[0] + v[2]) + (v[1] + v[3]);
}

/* A block's work; its shared memory has shape::pieces * shape::bytes. */
template <type TYPE, int TOKENS> KD_DEV void multiply(const task &k, unsigned char *memory)
{
    using s = shape<TYPE, TOKENS>;
    constexpr int ahead = s::pieces - 1;
    const int pieces = (k.w.cols + PIECE - 1) / PIECE;
    float sum[s::each][TOKENS][s::lanes] = {};

#pragma unroll 1
    for (int p = 0; p < ahead; p++)
        if (p < pieces)
            fetch<TYPE, TOKENS>(k, p, memory + p * s::bytes);
        else
            kd_copy_group();
#pragma unroll 1
    for (int p = 0; p < pieces; p++) {
        const unsigned char *piece = memory + p % s::pieces * s::bytes;
        const int left = k.w.cols - p * PIECE;

        kd_copy_wait<ahead - 1>();
        kd_sync_block();
        if (p + ahead < pieces)
            fetch<TYPE, TOKENS>(k, p + ahead, memory + (p + ahead) % s::pieces * s::bytes);
        else
            kd_copy_group();
        if (left >= PIECE) {
#pragma unroll
            for (int i = 0; i < PIECE / 16; i++)
                step<TYPE, TOKENS, true>(piece, i, 16, sum);
        } else {
#pragma unroll 1
            for (int i = 0; 16 * i < left; i++)
                step<TYPE, TOKENS, false>(piece, i, left - 16 * i, sum);
        }
    }
#pragma unroll
    for (int e = 0; e < s::each; e++) {
        const int row = k.first + kd_thread() / s::row_threads + e * (s::rows / s::each);
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            const float y = fold<s::lanes>(sum[e][t]);
            if (kd_thread() % s::row_threads == 0 && row < k.w.rows && t < k.tokens)
                k.y[(k.to ? (int64_t)k.to[t] : t) * k.ldy + row] = y;
        }
    }
    kd_sync_block(); /* shared memory may be filled again */
}

/* Matrices with the same number of rows of activations, side by side. */
struct dense_job {
    matrix w;
    const float *x;
    float *y;
    int64_t ldx, ldy;
    int32_t first; /* its first task */
};
struct dense_args {
    dense_job job[8];
    int32_t jobs, tokens, tasks;
};

template <type TYPE, int TOKENS>
KD_KERNEL void KD_BOUNDS((shape<TYPE, TOKENS>::threads), 1) multiply_plain(KD_ARGS dense_args a)
{
    KD_SHARED(memory);

    kd_launch_next();
    kd_launch_wait();
    for (int i = kd_block(); i < a.tasks; i += kd_blocks()) {
        int j = 0;
        while (j + 1 < a.jobs && i >= a.job[j + 1].first)
            j++;
        const dense_job &job = a.job[j];
        const task k = {job.w,   job.x,    job.y,
                        job.ldx, job.ldy,  nullptr,
                        nullptr, a.tokens, (i - job.first) * shape<TYPE, TOKENS>::rows};
        multiply<TYPE, TOKENS>(k, memory);
    }
}

} // namespace kd_plain
#endif
