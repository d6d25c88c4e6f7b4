/* Products in the CPU's order: the launch. */
#include "gpu/tn_tile.cuh"

namespace
{

using namespace kd_tn;

template <bool MINUS> KD_KERNEL void KD_BOUNDS(TN_THREADS, 2) tn_kernel(kd_gpu_tn_job j)
{
    KD_SHARED(shared);
    const int64_t across = j.J / TN_TILE, bi = kd_block() / across, bj = kd_block() % across;
    const int64_t i0 = bi * TN_TILE, j0 = bj * TN_TILE;
    float *mine = tn_mine(j.c, j.ldc, i0, j0), acc[8][8];

    if (j.upper && bj < bi)
        return;
    tn_start(j, i0, j0, (float *)shared);
    tn_get(mine, j.ldc, acc);
    tn_chain<MINUS>(j, i0, j0, (float *)shared, acc);
    tn_put(mine, j.ldc, acc);
}

} // namespace

int kd_gpu_tn_launch(cudaStream_t stream, const struct kd_gpu_tn_job *j, struct kd_err *err)
{
    const int64_t blocks = j->I / TN_TILE * (j->J / TN_TILE);

    if (j->I % TN_TILE || j->J % TN_TILE)
        return kd_fail(err, KD_EINVAL, "a product of %lld x %lld on a device", (long long)j->I,
                       (long long)j->J);
    if (!blocks || !j->S)
        return 0;
    if (j->minus)
        KD_LAUNCH(tn_kernel<true>, blocks, TN_THREADS, TN_SHARED, stream, *j);
    else
        KD_LAUNCH(tn_kernel<false>, blocks, TN_THREADS, TN_SHARED, stream, *j);
    return kd_gpu_failed(cudaGetLastError(), err, "starting a product");
}
