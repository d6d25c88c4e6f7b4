/* Products of up to 16 rows of activations with F32, BF16 and MXFP4 matrices and those of ggml's
 * blocks, with the bits of kern's (DOT16, docs/numerics.md): a block has some rows of the matrix,
 * pieces of 128 inputs or 256 of them come into shared memory ahead of use, and a thread has some
 * of DOT16's lanes of one row or several. MXFP4's values are those of bf16, whatever the scale: a
 * block makes them so, once for all its threads, a piece before it multiplies that. */
#ifndef KD_GPU_PRODUCT_PLAIN_CUH
#define KD_GPU_PRODUCT_PLAIN_CUH

#include "gpu/block_values.cuh"
#include "gpu/mma_lanes.cuh"
#include "num/mxfp4_block.h"

namespace kd_plain
{

enum type { F32, BF16, MXFP4, BLOCK };

/* Rows of a thread, where matrices have enough for all multiprocessors. MXFP4 waits for arithmetic,
 * not for memory, so few tokens need more warps. */
template <type TYPE, int TOKENS>
constexpr int tile_rows = TYPE == BLOCK   ? 1
                          : TYPE == MXFP4 ? (TOKENS <= 4   ? 2
                                             : TOKENS <= 8 ? 3
                                                           : 6)
                                          : 6;
/* The same of experts. */
template <type TYPE> constexpr int expert_rows = TYPE == MXFP4 ? 3 : 1;

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

/* But for blocks: what a thread reads from shared memory is to serve many products, so it has up to
 * eight tokens and several rows, but just two lanes. With a row alone, pieces are longer, as there
 * is a barrier for each. */
template <type TYPE, int TOKENS, int EACH = 1> struct shape {
    static constexpr bool tiled = TYPE != BLOCK, packed = TYPE == MXFP4;
    /* inputs; of blocks whole ones */
    static constexpr int piece = (tiled && !packed && EACH == 1) || TYPE == BLOCK ? 256 : 128;
    static constexpr int lanes = tiled ? 2 : 8; /* of a thread */
    static constexpr int parts = 16 / lanes;    /* threads that share a row and tokens */
    static constexpr int halves = tiled && TOKENS > (packed ? 8 : 4) ? 2 : 1;
    static constexpr int tokens = TOKENS / halves; /* of a thread */
    static constexpr int threads = packed || TOKENS > 4 ? 128 : 64;
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
    static constexpr int x_at = scales_at + (packed ? 4 * rows : 0);
    static constexpr int bytes = x_at + halves * half_stride;
    /* MXFP4 as bf16: of two pieces, behind all others. */
    static constexpr int wide_stride = 2 * piece + 16;
    static constexpr int wide_bytes = packed ? rows * wide_stride : 0;
    static constexpr int most = ((96 << 10) - 2 * wide_bytes) / bytes;
    static constexpr int ahead = TYPE == BLOCK ? 3 : 6;
    static constexpr int pieces = most < ahead ? most : ahead; /* at a time */
    static constexpr int memory = pieces * bytes + 2 * wide_bytes;
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
            if (s::rows % some == 0 || r < s::rows)
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

/* Eight codes of MXFP4 as bf16, in order. A code's three bits as the end of an exponent and the
 * first of a mantissa are its value over 2^126. LARGE: a scale over 128, which 2^126 leaves no room
 * for, is multiplied by on its own. Pairs of codes are four apart until the end. */
template <bool LARGE> KD_DEV uint4 eight_of_mxfp4(uint32_t v, unsigned scale)
{
    constexpr uint32_t bits = 0x01c001c0u, sign = 0x80008000u;
    const uint32_t by = LARGE ? 0x7e807e80u : (scale + 126) * 0x00800080u;
    uint32_t p[4] = {(v << 6 & bits) | (v << 12 & sign), (v << 2 & bits) | (v << 8 & sign),
                     (v >> 2 & bits) | (v << 4 & sign), (v >> 6 & bits) | (v & sign)};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        p[i] = kd_bf16_mul(p[i], by);
        if (LARGE)
            p[i] = kd_bf16_mul(p[i], (kd_f32_bits(kd_e8m0_f32((uint8_t)scale)) >> 16) * 0x10001u);
    }
    return make_uint4(kd_bytes(p[0], p[1], 0x5410), kd_bytes(p[2], p[3], 0x5410),
                      kd_bytes(p[0], p[1], 0x7632), kd_bytes(p[2], p[3], 0x7632));
}

/* Where eight inputs lie, half `second` of step i, in a row of MXFP4 as bf16: so that eight rows
 * are written at once, and four are read, from different banks. */
KD_DEV int wide_at(int i, int second)
{
    return i % 2 * 128 + second * 64 + i / 2 * 16;
}

/* A thread's share of a piece of codes on its way to bf16: some steps, each of one row. */
template <class S> struct widening {
    static constexpr int all = S::rows * S::piece / 16, each = (all + S::threads - 1) / S::threads;
    uint2 v[each];
    unsigned scale[each];
    bool large;

    /* The last one also by those who have none. */
    static KD_DEV int unit(int j)
    {
        const int n = j * S::threads + kd_thread();
        return all % S::threads && n >= all ? all - 1 : n;
    }
    KD_DEV void take(const unsigned char *piece)
    {
        large = false;
#pragma unroll
        for (int j = 0; j < each; j++) {
            const int n = unit(j);
            v[j] = *(const uint2 *)(piece + n % S::rows * S::stride + 8 * (n / S::rows));
            scale[j] = piece[S::scales_at + 4 * (n % S::rows) + n / S::rows / 2];
            large |= scale[j] > 128;
        }
    }
    template <bool LARGE> KD_DEV void put(unsigned char *wide) const
    {
#pragma unroll
        for (int j = 0; j < each; j++) {
            const int n = unit(j), i = n / S::rows;
            unsigned char *to = wide + n % S::rows * S::wide_stride;
            *(uint4 *)(to + wide_at(i, 0)) = eight_of_mxfp4<LARGE>(v[j].x, scale[j]);
            *(uint4 *)(to + wide_at(i, 1)) = eight_of_mxfp4<LARGE>(v[j].y, scale[j]);
        }
    }
};

/* This thread's lanes of step i (16 inputs) of a row in shared memory; m, at: of blocks, where the
 * piece begins. */
template <type TYPE, int LANES>
KD_DEV void weights(const matrix &m, int at, const unsigned char *row, int i, int part,
                    float w[LANES])
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
    } else {
        const uint32_t v =
            *(const uint32_t *)(TYPE == BF16 ? row + 32 * i + 4 * part
                                             : row + wide_at(i, part / 4) + part % 4 * 4);
        w[0] = kd_bits_f32(v << 16);
        w[1] = kd_bits_f32(v & 0xffff0000u);
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

/* One step of 16 inputs, of which `left` are there; rows: of weights, or where they are bf16. */
template <type TYPE, int TOKENS, int EACH, bool WHOLE>
KD_DEV void step(const matrix &m, int at, const unsigned char *piece, const unsigned char *rows,
                 int i, int left,
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
        weights<TYPE, s::lanes>(m, at, rows + r * (s::packed ? s::wide_stride : s::stride), i, part,
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

/* All steps of a piece while codes of the next become bf16: one block of instructions, so that the
 * multipliers have the waits of the others. */
template <type TYPE, int TOKENS, int EACH, bool LARGE>
KD_DEV void
steps_widening(const matrix &m, const unsigned char *piece, const unsigned char *rows,
               const widening<shape<TYPE, TOKENS, EACH>> &next, unsigned char *to,
               float (*sum)[shape<TYPE, TOKENS, EACH>::tokens][shape<TYPE, TOKENS, EACH>::lanes])
{
#pragma unroll
    for (int i = 0; i < shape<TYPE, TOKENS, EACH>::piece / 16; i++)
        step<TYPE, TOKENS, EACH, true>(m, 0, piece, rows, i, 16, sum);
    next.template put<LARGE>(to);
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

/* A block's work; its shared memory has shape::memory bytes. */
template <type TYPE, int TOKENS, int EACH = 1>
KD_DEV void multiply(const task &k, unsigned char *memory)
{
    using s = shape<TYPE, TOKENS, EACH>;
    constexpr int ahead = s::pieces - 1;
    const int pieces = (k.w.cols + s::piece - 1) / s::piece;
    unsigned char *wide = memory + s::pieces * s::bytes;
    float sum[EACH][s::tokens][s::lanes] = {};

#pragma unroll 1
    for (int p = 0; p < ahead; p++)
        if (p < pieces)
            fetch<TYPE, TOKENS, EACH>(k, p, memory + p * s::bytes);
        else
            kd_copy_group();
    if constexpr (s::packed) {
        kd_copy_wait<ahead - 1>();
        kd_sync_block();
        widening<s> next;
        next.take(memory);
        if (next.large)
            next.template put<true>(wide);
        else
            next.template put<false>(wide);
    }
#pragma unroll 1
    for (int p = 0; p < pieces; p++) {
        const unsigned char *piece = memory + p % s::pieces * s::bytes,
                            *rows = s::packed ? wide + p % 2 * s::wide_bytes : piece;
        const int left = k.w.cols - p * s::piece;
        const int at = TYPE == BLOCK ? (int)(piece_at(k.w, p) % 16) : 0;

        kd_copy_wait<ahead - 1 - s::packed>();
        kd_sync_block();
        if (p + ahead < pieces)
            fetch<TYPE, TOKENS, EACH>(k, p + ahead, memory + (p + ahead) % s::pieces * s::bytes);
        else
            kd_copy_group();
        if (TYPE == BLOCK) { /* whole steps, and code for each format */
#pragma unroll 1
            for (int i = 0; i < s::piece / 16 && 16 * i < left; i++)
                step<TYPE, TOKENS, EACH, true>(k.w, at, piece, rows, i, 16, sum);
        } else if (s::packed && left >= s::piece) {
            widening<s> next; /* of the last piece: of what is there, nobody reads it */
            unsigned char *to = wide + (p + 1) % 2 * s::wide_bytes;
            next.take(memory + (p + 1) % s::pieces * s::bytes);
            if (next.large)
                steps_widening<TYPE, TOKENS, EACH, true>(k.w, piece, rows, next, to, sum);
            else
                steps_widening<TYPE, TOKENS, EACH, false>(k.w, piece, rows, next, to, sum);
        } else if (left >= s::piece) {
#pragma unroll 8
            for (int i = 0; i < s::piece / 16; i++)
                step<TYPE, TOKENS, EACH, true>(k.w, at, piece, rows, i, 16, sum);
        } else {
#pragma unroll 1
            for (int i = 0; 16 * i < left; i++)
                step<TYPE, TOKENS, EACH, false>(k.w, at, piece, rows, i, left - 16 * i, sum);
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
