/* 128 x 128 elements of c a block, 8 x 8 a thread; a and b pass through shared memory in pieces of
 * 16 rows, three pieces under way. */
#ifndef KD_GPU_TN_TILE_CUH
#define KD_GPU_TN_TILE_CUH

#include "gpu/lanes.cuh"
#include "gpu/tn.cuh"

#include <math.h>

namespace kd_tn
{

enum { TN_TILE = 128, TN_DEPTH = 16, TN_STAGES = 3, TN_THREADS = 256 };
enum { TN_PIECE = TN_DEPTH * TN_TILE, TN_SHARED = TN_STAGES * 2 * TN_PIECE * 4 };

/* Rows s0.. of a and b, those there are, into one stage. */
KD_DEV void tn_fetch(const kd_gpu_tn_job &j, int64_t i0, int64_t j0, int64_t s0, float *stage)
{
    for (int u = kd_thread(); u < TN_PIECE / 4; u += TN_THREADS) {
        const int s = u / (TN_TILE / 4), at = u % (TN_TILE / 4) * 4;
        if (s0 + s >= j.S)
            continue;
        kd_copy16(stage + s * TN_TILE + at, j.a + (s0 + s) * j.lda + i0 + at);
        kd_copy16(stage + TN_PIECE + s * TN_TILE + at, j.b + (s0 + s) * j.ldb + j0 + at);
    }
}

KD_DEV float4 tn_load(const float *from)
{
    return *(const float4 *)from;
}

/* One s. Rows and columns of a thread are two runs of four, 64 apart: no two threads of a quarter
 * warp meet in a bank. */
template <bool MINUS>
KD_DEV void tn_step(const float *stage, int s, int ty, int tx, float acc[8][8])
{
    const float *as = stage + s * TN_TILE + 4 * ty, *bs = stage + TN_PIECE + s * TN_TILE + 4 * tx;
    const float4 a0 = tn_load(as), a1 = tn_load(as + 64), b0 = tn_load(bs), b1 = tn_load(bs + 64);
    const float av[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w};
    const float bv[8] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w};

#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int c = 0; c < 8; c++)
            acc[i][c] = fmaf(MINUS ? -av[i] : av[i], bv[c], acc[i][c]);
}

/* The first pieces on their way; no thread still reads shared memory from before. */
KD_DEV void tn_start(const kd_gpu_tn_job &j, int64_t i0, int64_t j0, float *stages)
{
    for (int p = 0; p < TN_STAGES - 1; p++) {
        tn_fetch(j, i0, j0, p * TN_DEPTH, stages + p * 2 * TN_PIECE);
        kd_copy_group();
    }
}

/* After tn_start: acc += a^T b over all s of the job for the block's elements. */
template <bool MINUS>
KD_DEV void tn_chain(const kd_gpu_tn_job &j, int64_t i0, int64_t j0, float *stages, float acc[8][8])
{
    const int64_t pieces = (j.S + TN_DEPTH - 1) / TN_DEPTH;
    const int ty = kd_thread() / 16, tx = kd_thread() % 16;

    for (int64_t p = 0; p < pieces; p++) {
        kd_copy_wait<TN_STAGES - 2>();
        kd_sync_block(); /* the piece is there for all, and all are done with the one before */
        const int64_t next = p + TN_STAGES - 1;
        if (next < pieces)
            tn_fetch(j, i0, j0, next * TN_DEPTH, stages + next % TN_STAGES * 2 * TN_PIECE);
        kd_copy_group();
        const float *stage = stages + p % TN_STAGES * 2 * TN_PIECE;
        if (j.S - p * TN_DEPTH >= TN_DEPTH) {
#pragma unroll
            for (int s = 0; s < TN_DEPTH; s++)
                tn_step<MINUS>(stage, s, ty, tx, acc);
        } else {
            for (int s = 0; s < (int)(j.S - p * TN_DEPTH); s++)
                tn_step<MINUS>(stage, s, ty, tx, acc);
        }
    }
}

/* This thread's first element; row i of its 8 is so many rows on, and its columns are two runs of
 * four. */
KD_DEV float *tn_mine(float *c, int64_t ldc, int64_t i0, int64_t j0)
{
    return c + (i0 + 4 * (kd_thread() / 16)) * ldc + j0 + 4 * (kd_thread() % 16);
}
KD_DEV int64_t tn_row(int i)
{
    return i % 4 + i / 4 * 64;
}

KD_DEV void tn_get(const float *mine, int64_t ldc, float acc[8][8])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float4 v = tn_load(mine + tn_row(i) * ldc + 64 * h);
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
            *(float4 *)(mine + tn_row(i) * ldc + 64 * h) =
                make_float4(acc[i][4 * h], acc[i][4 * h + 1], acc[i][4 * h + 2], acc[i][4 * h + 3]);
}

} // namespace kd_tn
#endif
