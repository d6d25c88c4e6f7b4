/* 128 x 128 elements of c a block, 8 x 8 a thread; a and b pass through shared memory in pieces of
 * 16 rows, three pieces under way. A warp has 32 x 64 elements, so that what its threads read of a
 * row of a or b are 16 or 32 floats in a line. */
#ifndef KD_GPU_TN_TILE_CUH
#define KD_GPU_TN_TILE_CUH

#include "gpu/lanes.cuh"
#include "gpu/tn.cuh"

#include <math.h>

namespace kd_tn
{

enum { TN_TILE = 128, TN_DEPTH = 16, TN_STAGES = 3, TN_THREADS = 256 };
enum { TN_PIECE = TN_DEPTH * TN_TILE, TN_SHARED = TN_STAGES * 2 * TN_PIECE * 4 };
/* Between the two runs of four rows, and of four columns, that a thread has. */
enum { TN_ROWS = 16, TN_COLS = 32, TN_HALF = TN_DEPTH / 2 };

/* The thread's first row and column in the block's elements. */
KD_DEV int tn_top(void)
{
    return kd_thread() / 64 * 32 + kd_thread() / 8 % 4 * 4;
}
KD_DEV int tn_left(void)
{
    return kd_thread() / 32 % 2 * 64 + kd_thread() % 8 * 4;
}

/* What a thread brings of each piece: four floats of two rows of a, and of b. */
struct tn_source {
    const float *a, *b;
    int left; /* rows from the first of its two on */
};

/* After so many pieces. */
KD_DEV tn_source tn_source_of(const kd_gpu_tn_job &j, int64_t i0, int64_t j0, int pieces)
{
    const int s = pieces * TN_DEPTH + kd_thread() / (TN_TILE / 4);
    const int at = kd_thread() % (TN_TILE / 4) * 4;
    return {j.a + s * j.lda + i0 + at, j.b + s * j.ldb + j0 + at, (int)j.S - s};
}

/* The next piece into one stage. */
KD_DEV void tn_fetch(const kd_gpu_tn_job &j, tn_source *q, float *stage)
{
    float *to = stage + 4 * kd_thread();

    if (q->left > 0) {
        kd_copy16(to, q->a);
        kd_copy16(to + TN_PIECE, q->b);
    }
    if (q->left > TN_HALF) {
        kd_copy16(to + TN_PIECE / 2, q->a + TN_HALF * j.lda);
        kd_copy16(to + TN_PIECE + TN_PIECE / 2, q->b + TN_HALF * j.ldb);
    }
    q->a += TN_DEPTH * j.lda;
    q->b += TN_DEPTH * j.ldb;
    q->left -= TN_DEPTH;
}

KD_DEV float4 tn_load(const float *from)
{
    return *(const float4 *)from;
}

/* What a thread needs of one s: the values of its eight rows and of its eight columns. */
struct alignas(16) tn_values {
    float a[8], b[8];
};

KD_DEV void tn_read(const float *at, const float *bt, tn_values *v)
{
    *(float4 *)v->a = tn_load(at);
    *(float4 *)(v->a + 4) = tn_load(at + TN_ROWS);
    *(float4 *)v->b = tn_load(bt);
    *(float4 *)(v->b + 4) = tn_load(bt + TN_COLS);
}

template <bool MINUS> KD_DEV void tn_step(const tn_values &v, float acc[8][8])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int c = 0; c < 8; c++)
            acc[i][c] = fmaf(MINUS ? -v.a[i] : v.a[i], v.b[c], acc[i][c]);
}

/* The first pieces on their way; no thread still reads shared memory from before. */
KD_DEV void tn_start(const kd_gpu_tn_job &j, int64_t i0, int64_t j0, float *stages)
{
    tn_source q = tn_source_of(j, i0, j0, 0);

#pragma unroll
    for (int p = 0; p < TN_STAGES - 1; p++) {
        tn_fetch(j, &q, stages + p * 2 * TN_PIECE);
        kd_copy_group();
    }
}

/* The next piece is there for all, and all have read the one before it for the last time. */
KD_DEV void tn_arrive(void)
{
    kd_copy_wait<TN_STAGES - 2>();
    kd_sync_block();
}

/* After tn_start: acc += a^T b over all s of the job for the block's elements. The values of an s
 * are read while those of the one before are multiplied; after the last they are nobody's. */
template <bool MINUS>
KD_DEV void tn_chain(const kd_gpu_tn_job &j, int64_t i0, int64_t j0, float *stages, float acc[8][8])
{
    tn_source q = tn_source_of(j, i0, j0, TN_STAGES - 1);
    const float *at = stages + tn_top(), *bt = stages + TN_PIECE + tn_left();
    int now = 0, next = (TN_STAGES - 1) * 2 * TN_PIECE;
    int left = (int)j.S;
    tn_values v[2];

    tn_arrive();
    tn_read(at, bt, &v[0]);
#pragma unroll 1
    for (; left >= TN_DEPTH; left -= TN_DEPTH) {
        const int after = now == (TN_STAGES - 1) * 2 * TN_PIECE ? 0 : now + 2 * TN_PIECE;
        tn_fetch(j, &q, stages + next);
        kd_copy_group();
#pragma unroll
        for (int s = 0; s < TN_DEPTH; s++) {
            if (s + 1 == TN_DEPTH)
                tn_arrive();
            const int from = s + 1 == TN_DEPTH ? after : now + (s + 1) * TN_TILE;
            tn_read(at + from, bt + from, &v[(s + 1) % 2]);
            tn_step<MINUS>(v[s % 2], acc);
        }
        next = now;
        now = after;
    }
#pragma unroll 1
    for (int s = 0; s < left; s++) {
        tn_read(at + now + s * TN_TILE, bt + now + s * TN_TILE, &v[0]);
        tn_step<MINUS>(v[0], acc);
    }
}

/* This thread's first element; row i of its 8 is so many rows on, and its columns are two runs of
 * four. */
KD_DEV float *tn_mine(float *c, int64_t ldc, int64_t i0, int64_t j0)
{
    return c + (i0 + tn_top()) * ldc + j0 + tn_left();
}
KD_DEV int64_t tn_row(int i)
{
    return i % 4 + i / 4 * TN_ROWS;
}

KD_DEV void tn_get(const float *mine, int64_t ldc, float acc[8][8])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float4 v = tn_load(mine + tn_row(i) * ldc + TN_COLS * h);
            acc[i][4 * h] = v.x;
            acc[i][4 * h + 1] = v.y;
            acc[i][4 * h + 2] = v.z;
            acc[i][4 * h + 3] = v.w;
        }
}

KD_DEV void tn_put(float *mine, int64_t ldc, const float acc[8][8])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float4 *)(mine + tn_row(i) * ldc + TN_COLS * h) =
                make_float4(acc[i][4 * h], acc[i][4 * h + 1], acc[i][4 * h + 2], acc[i][4 * h + 3]);
}

} // namespace kd_tn
#endif
