/* Products of up to 16 rows of activations with F32, BF16 and MXFP4 matrices and those of ggml's
 * blocks, with the bits of kern's (DOT16, docs/numerics.md): a block has some rows of the matrix,
 * pieces of 128 inputs or 256 of them come into shared memory ahead of use, and a thread has some
 * of DOT16's lanes of one row or two. */
#ifndef KD_GPU_PRODUCT_PLAIN_CUH
#define KD_GPU_PRODUCT_PLAIN_CUH

#include "gpu/block_values.cuh"
#include "num/mxfp4_block.h"

namespace kd_plain
{

enum type { F32, BF16, MXFP4, BLOCK };
enum { TILE_ROWS = 6 }; /* of a thread, where matrices have enough for all multiprocessors */

/* ld bytes between rows, a multiple of 16; lds between rows of scales, a multiple of 4. BLOCK:
 * which (num/block.h), values and bytes of one. */
struct matrix {
    const uint8_t *w, *scale;
    int64_t ld, lds;
    int32_t rows, cols;
    int32_t kind, elems, bytes;
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

/* F32 and BF16: what a thread reads from shared memory is to serve many products, so it has up to
 * eight tokens and several rows, but just two lanes. With a row alone, pieces are longer, as there
 * is a barrier for each. */
template <type TYPE, int TOKENS, int EACH = 1> struct shape {
    static constexpr bool tiled = TYPE == F32 || TYPE == BF16;
    /* inputs; of blocks whole ones */
    static constexpr int piece = (tiled && EACH == 1) || TYPE == BLOCK ? 256 : 128;
    static constexpr int lanes = tiled ? 2 : 8; /* of a thread */
    static constexpr int parts = 16 / lanes;    /* threads that share a row and tokens */
    static constexpr int halves = tiled && TOKENS > 4 ? 2 : 1;
    static constexpr int tokens = TOKENS / halves; /* of a thread */
    static constexpr int threads = TOKENS > 4 ? 128 : 64;
    static constexpr int groups = threads / parts / halves; /* of threads that share a row */
    static constexpr int rows = groups * EACH;
    /* Blocks: at most 272, from the multiple of 16 before them on. */
    static constexpr int row_bytes = (TYPE == F32     ? 4 * piece
                                      : TYPE == BF16  ? 2 * piece
                                      : TYPE == BLOCK ? 288
                                                      : piece / 2);
    /* Between rows in shared memory, so that rows that are read at once lie in other banks; the
     * second half of the tokens, too. */
    static constexpr int stride = row_bytes + (TYPE == F32 ? 64 : TYPE == BF16 ? 32 : 16);
    static constexpr int half_stride = tokens * piece * 4 + 64;
    static constexpr int scales_at = rows * stride;
    static constexpr int x_at = scales_at + (TYPE == MXFP4 ? 4 * rows : 0);
    static constexpr int bytes = x_at + halves * half_stride;
    static constexpr int most = (96 << 10) / bytes;
    static constexpr int ahead = TYPE == BLOCK ? 3 : 6;
    static constexpr int pieces = most < ahead ? most : ahead; /* at a time */
};

/* Where a row's piece begins, of blocks. */
KD_DEV int64_t piece_at(const matrix &w, int piece)
{
    return (int64_t)piece * (256 / w.elems * w.bytes);
}

/* Piece p of rows of blocks: from the multiple of 16 before it on. */
template <int ROWS, int THREADS, int STRIDE, int ROW_BYTES>
KD_DEV void fetch_blocks(const task &k, int piece, unsigned char *to)
{
    constexpr int parts = ROW_BYTES / 16;
    const int64_t at = piece_at(k.w, piece) / 16 * 16, end = piece_at(k.w, piece + 1);

    for (int n = kd_thread(); n < ROWS * parts; n += THREADS) {
        const int r = n / parts, row = k.first + r;
        const int64_t c = at + n % parts * 16;
        if (c < end && c < k.w.ld)
            kd_copy16(to + r * STRIDE + n % parts * 16,
                      k.w.w + (row < k.w.rows ? row : k.w.rows - 1) * k.w.ld + c);
    }
}

/* Piece p of all rows and of x on its way into shared memory. */
template <type TYPE, int TOKENS, int EACH>
KD_DEV void fetch(const task &k, int piece, unsigned char *to)
{
    using s = shape<TYPE, TOKENS, EACH>;
    constexpr int parts = s::row_bytes / 16, some = TYPE == BLOCK ? 1 : s::threads / parts;
    constexpr int wide = s::piece / 4, much = s::threads / wide;
    const int c = kd_thread() % parts * 16, x = kd_thread() % wide * 4;
    const int64_t at = (int64_t)piece * s::row_bytes + c, col = (int64_t)piece * s::piece + x;

    /* Past the last row that one again, which nobody reads. */
    if constexpr (TYPE == BLOCK)
        fetch_blocks<s::rows, s::threads, s::stride, s::row_bytes>(k, piece, to);
    else if (at < k.w.ld)
#pragma unroll
        for (int n = 0; n < s::rows; n += some) {
            const int r = n + kd_thread() / parts, row = k.first + r;
            kd_copy16(to + r * s::stride + c,
                      k.w.w + (row < k.w.rows ? row : k.w.rows - 1) * k.w.ld + at);
        }
    if (TYPE == MXFP4)
        for (int r = kd_thread(); r < s::rows; r += s::threads)
            if (k.first + r < k.w.rows && 4 * piece < k.w.lds)
                kd_copy4(to + s::scales_at + 4 * r,
                         k.w.scale + (k.first + r) * k.w.lds + 4 * piece);
    if (col < k.w.cols)
#pragma unroll
        for (int n = 0; n < TOKENS; n += much) {
            const int t = n + kd_thread() / wide;
            if (t < k.tokens)
                kd_copy16(to + s::x_at + t / s::tokens * s::half_stride +
                              (t % s::tokens * s::piece + x) * 4,
                          k.x + (k.from ? (int64_t)k.from[t] : t) * k.ldx + col);
        }
    kd_copy_group();
}

/* This thread's lanes of step i (16 inputs) of a row in shared memory; m, at: of blocks, where the
 * piece begins. */
template <type TYPE, int LANES>
KD_DEV void weights(const matrix &m, int at, const unsigned char *row, const unsigned char *scale,
                    int i, int part, float w[LANES])
{
    if constexpr (TYPE == BLOCK) {
        const int v = 16 * i + 8 * part, block = v / m.elems;
        kd_eights::eight(m.kind, row + at + block * m.bytes, v % m.elems / 8, w);
        return;
    }
    if constexpr (TYPE == F32) {
        const float2 v = *(const float2 *)(row + 64 * i + 8 * part);
        w[0] = v.x;
        w[1] = v.y;
    } else if constexpr (TYPE == BF16) {
        const uint32_t v = *(const uint32_t *)(row + 32 * i + 4 * part);
        w[0] = kd_bits_f32(v << 16);
        w[1] = kd_bits_f32(v & 0xffff0000u);
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

/* LANES inputs of a row of activations. */
template <int LANES> KD_DEV void inputs(const float *x, float v[LANES])
{
    if constexpr (LANES == 2) {
        const float2 f = *(const float2 *)x;
        v[0] = f.x;
        v[1] = f.y;
    } else {
#pragma unroll
        for (int l = 0; l < LANES; l += 4) {
            const float4 f = *(const float4 *)(x + l);
            v[l] = f.x;
            v[l + 1] = f.y;
            v[l + 2] = f.z;
            v[l + 3] = f.w;
        }
    }
}

/* One step of 16 inputs, of which `left` are there. */
template <type TYPE, int TOKENS, int EACH, bool WHOLE>
KD_DEV void step(const matrix &m, int at, const unsigned char *piece, int i, int left,
                 float (*sum)[shape<TYPE, TOKENS, EACH>::tokens][shape<TYPE, TOKENS, EACH>::lanes])
{
    using s = shape<TYPE, TOKENS, EACH>;
    const int part = kd_thread() % s::parts, half = kd_thread() / s::parts % s::halves,
              group = kd_thread() / s::parts / s::halves;
    const float *x =
        (const float *)(piece + s::x_at + half * s::half_stride) + 16 * i + s::lanes * part;
    float w[EACH][s::lanes];

#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int r = group + e * s::groups;
        weights<TYPE, s::lanes>(m, at, piece + r * s::stride, piece + s::scales_at + 4 * r, i, part,
                                w[e]);
    }
#pragma unroll
    for (int t = 0; t < s::tokens; t++) {
        float u[s::lanes];
        inputs<s::lanes>(x + t * s::piece, u);
#pragma unroll
        for (int e = 0; e < EACH; e++)
#pragma unroll
            for (int l = 0; l < s::lanes; l++)
                if (WHOLE || s::lanes * part + l < left)
                    sum[e][t][l] = fmaf(w[e][l], u[l], sum[e][t][l]);
    }
}

/* DOT16's fold; lanes lie 2, 4 or 8 to a thread. */
template <int LANES> KD_DEV float fold(float v[LANES])
{
#pragma unroll
    for (int l = 0; l < LANES; l++)
        v[l] += kd_shuffle_xor(v[l], 8 / LANES);
    if constexpr (LANES == 2) {
#pragma unroll
        for (int l = 0; l < 2; l++)
            v[l] += kd_shuffle_xor(v[l], 2);
#pragma unroll
        for (int l = 0; l < 2; l++)
            v[l] += kd_shuffle_xor(v[l], 1);
        return v[0] + v[1];
    } else {
#pragma unroll
        for (int l = 0; l < 4; l++)
            v[l] += LANES == 4 ? kd_shuffle_xor(v[l], 1) : v[LANES - 4 + l];
        return (v[0] + v[2]) + (v[1] + v[3]);
    }
}

/* A block's work; its shared memory has shape::pieces * shape::bytes. */
template <type TYPE, int TOKENS, int EACH = 1>
KD_DEV void multiply(const task &k, unsigned char *memory)
{
    using s = shape<TYPE, TOKENS, EACH>;
    constexpr int ahead = s::pieces - 1;
    const int pieces = (k.w.cols + s::piece - 1) / s::piece;
    float sum[EACH][s::tokens][s::lanes] = {};

#pragma unroll 1
    for (int p = 0; p < ahead; p++)
        if (p < pieces)
            fetch<TYPE, TOKENS, EACH>(k, p, memory + p * s::bytes);
        else
            kd_copy_group();
#pragma unroll 1
    for (int p = 0; p < pieces; p++) {
        const unsigned char *piece = memory + p % s::pieces * s::bytes;
        const int left = k.w.cols - p * s::piece;
        const int at = TYPE == BLOCK ? (int)(piece_at(k.w, p) % 16) : 0;

        kd_copy_wait<ahead - 1>();
        kd_sync_block();
        if (p + ahead < pieces)
            fetch<TYPE, TOKENS, EACH>(k, p + ahead, memory + (p + ahead) % s::pieces * s::bytes);
        else
            kd_copy_group();
        if (TYPE == BLOCK) { /* whole steps, and code for each format */
#pragma unroll 1
            for (int i = 0; i < s::piece / 16 && 16 * i < left; i++)
                step<TYPE, TOKENS, EACH, true>(k.w, at, piece, i, 16, sum);
        } else if (left >= s::piece) {
#pragma unroll 8
            for (int i = 0; i < s::piece / 16; i++)
                step<TYPE, TOKENS, EACH, true>(k.w, at, piece, i, 16, sum);
        } else {
#pragma unroll 1
            for (int i = 0; 16 * i < left; i++)
                step<TYPE, TOKENS, EACH, false>(k.w, at, piece, i, left - 16 * i, sum);
        }
    }
    const int half = kd_thread() / s::parts % s::halves, group = kd_thread() / s::parts / s::halves;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int row = k.first + group + e * s::groups;
#pragma unroll
        for (int j = 0; j < s::tokens; j++) {
            const float y = fold<s::lanes>(sum[e][j]);
            const int t = half * s::tokens + j;
            if (kd_thread() % s::parts == 0 && row < k.w.rows && t < k.tokens)
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

template <type TYPE, int TOKENS, int EACH>
KD_KERNEL void KD_BOUNDS((shape<TYPE, TOKENS, EACH>::threads), 1)
    multiply_plain(KD_ARGS dense_args a)
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
                        nullptr, a.tokens, (i - job.first) * shape<TYPE, TOKENS, EACH>::rows};
        multiply<TYPE, TOKENS, EACH>(k, memory);
    }
}

} // namespace kd_plain
#endif
