/* Products of many rows with F32 matrices, with the bits of kern's (DOT16, docs/numerics.md): a
 * block has 64 outputs of 32 rows of activations, pieces of 64 inputs of both in shared memory; a
 * thread has four of DOT16's lanes of 4 outputs of 8 rows, so that 12 loads serve 128 fma. */
#ifndef KD_GPU_PRODUCT_F32_CUH
#define KD_GPU_PRODUCT_F32_CUH

#include "gpu/product_plain.cuh"

namespace kd_f32
{

using kd_plain::dense_args;
using kd_plain::dense_job;

enum {
    THREADS = 256,
    OUTS = 64,
    ROWS = 32,
    PIECE = 64,
    STAGES = 3,
    STRIDE = PIECE * 4 + 64, /* of outputs: those that are read at once lie in other banks */
    ROW_BYTES = PIECE * 4,
    X_AT = OUTS * STRIDE,
    STAGE_BYTES = X_AT + ROWS * ROW_BYTES,
    EACH = 4,     /* outputs of a thread, OUTS / EACH apart */
    ROWS_EACH = 8 /* its rows, side by side */
};

/* One of a job's parts. */
struct part {
    kd_plain::matrix w;
    const float *x;
    float *y;
    int64_t ldx, ldy;
    int32_t first, tokens; /* output; rows of x and y */
};

KD_DEV void fetch(const part &k, int piece, unsigned char *to)
{
    constexpr int parts = ROW_BYTES / 16;
    const int64_t at = (int64_t)piece * ROW_BYTES;

#pragma unroll
    for (int j = 0; j < OUTS * parts / THREADS; j++) {
        const int i = j * THREADS + kd_thread(), r = i / parts, c = i % parts * 16;
        if (k.first + r < k.w.rows && at + c < k.w.ld)
            kd_copy16(to + r * STRIDE + c, k.w.w + (k.first + r) * k.w.ld + at + c);
    }
#pragma unroll
    for (int j = 0; j < ROWS * parts / THREADS; j++) {
        const int i = j * THREADS + kd_thread(), t = i / parts, c = i % parts * 4,
                  col = piece * PIECE + c;
        if (t < k.tokens && col < k.w.cols)
            kd_copy16(to + X_AT + t * ROW_BYTES + 4 * c, k.x + t * k.ldx + col);
    }
}

/* 16 inputs, of which `left` are there. */
template <bool WHOLE>
KD_DEV void step(const unsigned char *piece, int i, int left, float sum[EACH][ROWS_EACH][4])
{
    const int lanes = kd_thread() % 4 * 4, out = kd_thread() / 4 % (OUTS / EACH);
    const unsigned char *x =
        piece + X_AT + kd_thread() / OUTS * ROWS_EACH * ROW_BYTES + 64 * i + 4 * lanes;
    float w[EACH][4];

#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const float4 v =
            *(const float4 *)(piece + (out + e * (OUTS / EACH)) * STRIDE + 64 * i + 4 * lanes);
        w[e][0] = v.x;
        w[e][1] = v.y;
        w[e][2] = v.z;
        w[e][3] = v.w;
    }
#pragma unroll
    for (int t = 0; t < ROWS_EACH; t++) {
        const float4 v = *(const float4 *)(x + t * ROW_BYTES);
        const float u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < EACH; e++)
#pragma unroll
            for (int l = 0; l < 4; l++)
                if (WHOLE || lanes + l < left)
                    sum[e][t][l] = fmaf(w[e][l], u[l], sum[e][t][l]);
    }
}

KD_DEV void multiply(const part &k, unsigned char *memory)
{
    const int pieces = (k.w.cols + PIECE - 1) / PIECE;
    float sum[EACH][ROWS_EACH][4] = {};

#pragma unroll 1
    for (int p = 0; p < STAGES - 1; p++) {
        if (p < pieces)
            fetch(k, p, memory + p * STAGE_BYTES);
        kd_copy_group();
    }
#pragma unroll 1
    for (int p = 0; p < pieces; p++) {
        const unsigned char *piece = memory + p % STAGES * STAGE_BYTES;
        const int left = k.w.cols - p * PIECE, next = p + STAGES - 1;

        kd_copy_wait<STAGES - 2>();
        kd_sync_block();
        if (next < pieces)
            fetch(k, next, memory + next % STAGES * STAGE_BYTES);
        kd_copy_group();
        if (left >= PIECE) {
#pragma unroll
            for (int i = 0; i < PIECE / 16; i++)
                step<true>(piece, i, 16, sum);
        } else {
#pragma unroll 1
            for (int i = 0; 16 * i < left; i++)
                step<false>(piece, i, left - 16 * i, sum);
        }
    }
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int out = k.first + kd_thread() / 4 % (OUTS / EACH) + e * (OUTS / EACH);
#pragma unroll
        for (int t = 0; t < ROWS_EACH; t++) {
            const int row = kd_thread() / OUTS * ROWS_EACH + t;
            const float y = kd_plain::fold<4>(sum[e][t]);
            if (kd_thread() % 4 == 0 && out < k.w.rows && row < k.tokens)
                k.y[row * k.ldy + out] = y;
        }
    }
    kd_sync_block(); /* shared memory may be filled again */
}

KD_KERNEL void KD_BOUNDS(THREADS, 1) multiply_f32(KD_ARGS dense_args a)
{
    KD_SHARED(memory);

    kd_launch_next();
    kd_launch_wait();
#pragma unroll 1
    for (int i = kd_block(); i < a.tasks; i += kd_blocks()) {
        int j = 0;
        while (j + 1 < a.jobs && i >= a.job[j + 1].first)
            j++;
        const dense_job &job = a.job[j];
        const int tiles = (a.tokens + ROWS - 1) / ROWS, at = (i - job.first) % tiles * ROWS;
        const part k = {job.w,
                        job.x + at * job.ldx,
                        job.y + at * job.ldy,
                        job.ldx,
                        job.ldy,
                        (i - job.first) / tiles * OUTS,
                        a.tokens - at < ROWS ? a.tokens - at : (int)ROWS};
        multiply(k, memory);
    }
}

} // namespace kd_f32
#endif
