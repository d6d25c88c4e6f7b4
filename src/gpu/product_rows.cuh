/* Around the products of many rows with matrices side by side: their activations, and sums of
 * several chunks. */
#ifndef KD_GPU_PRODUCT_ROWS_CUH
#define KD_GPU_PRODUCT_ROWS_CUH

#include "gpu/product_prepare.cuh"

namespace kd_gemm
{

KD_KERNEL void KD_BOUNDS(THREADS, 4) prepare_dense(KD_ARGS dense_args a)
{
    KD_SHARED(memory);

    kd_launch_next();
    kd_launch_wait();
#pragma unroll 1
    for (int i = kd_block(); i < a.jobs * a.rows; i += kd_blocks()) {
        const dense_job &job = a.job[i / a.rows];
        const int t = i % a.rows;
        const bool coded = job.w.codes != nullptr;
        const int64_t step = whole_rows(a.rows) * 128;
        const row_in r = {job.from + t * job.ldx,
                          coded ? job.w.suh : nullptr,
                          coded ? job.w.cols : job.plain.cols,
                          job.ins,
                          a.planes,
                          job.x + t * 128,
                          step,
                          step * 2 * job.ins,
                          t % 8,
                          job.scale + t,
                          nullptr,
                          0.0f,
                          0.0f};
        prepare_row(r, (uint32_t *)memory);
    }
}

/* Jobs that have several chunks: their sums, in order. */
KD_KERNEL void KD_BOUNDS(THREADS, 1) finish_dense(KD_ARGS dense_args a)
{
    const int lane = kd_thread() % 32, warps = THREADS / 32;

    kd_launch_next();
    kd_launch_wait();
    for (int j = 0; j < a.jobs; j++) {
        const dense_job &job = a.job[j];
        const bool coded = job.w.codes != nullptr;
        const int64_t wide = (int64_t)job.outs * SIDE,
                      columns = coded ? job.w.rows : job.plain.rows;
        if (job.chunks < 2)
            continue;
        for (int64_t i = (int64_t)kd_block() * warps + kd_thread() / 32;
             i < (int64_t)a.rows * job.outs; i += (int64_t)kd_blocks() * warps) {
            const int64_t t = i / job.outs, col = i % job.outs * SIDE + 4 * lane;
            const float *from = job.part + t * wide + col;
            float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 8
            for (int c = 0; c < job.chunks; c++) {
                const float4 f = *(const float4 *)(from + c * a.rows * wide);
                v[0] += f.x;
                v[1] += f.y;
                v[2] += f.z;
                v[3] += f.w;
            }
            if (coded)
                finish(v, job.scale[t], job.w.svh + i % job.outs * SIDE, lane);
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (col + e < columns)
                    job.y[t * job.ldy + col + e] = v[e];
        }
    }
}

} // namespace kd_gemm
#endif
