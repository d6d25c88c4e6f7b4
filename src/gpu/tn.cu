/* Products in the CPU's order: the launch. */
#include "gpu/tn_tile.cuh"

namespace
{

using namespace kd_tn;

enum { TN_MANY = 32 }; /* products of one launch */

struct tn_jobs {
    int count;
    int64_t end[TN_MANY]; /* blocks of all up to each */
    kd_gpu_tn_job job[TN_MANY];
};

template <bool MINUS>
KD_DEV void tn_block(const kd_gpu_tn_job &j, int64_t block, unsigned char *shared)
{
    const int64_t across = j.J / TN_TILE, bi = block / across, bj = block % across;
    const int64_t i0 = bi * TN_TILE, j0 = bj * TN_TILE;
    float *mine = tn_mine(j.c, j.ldc, i0, j0), acc[8][8];

    if (j.upper && bj < bi)
        return;
    tn_start(j, i0, j0, (float *)shared);
    tn_get(mine, j.ldc, acc);
    tn_chain<MINUS>(j, i0, j0, (float *)shared, acc);
    tn_put(mine, j.ldc, acc);
}

template <bool MINUS> KD_KERNEL void KD_BOUNDS(TN_THREADS, 2) tn_kernel(kd_gpu_tn_job j)
{
    KD_SHARED(shared);
    tn_block<MINUS>(j, kd_block(), shared);
}

KD_KERNEL void KD_BOUNDS(TN_THREADS, 2) tn_kernel_all(KD_ARGS tn_jobs q)
{
    KD_SHARED(shared);
    int i = 0;

    while (kd_block() >= q.end[i])
        i++;
    tn_block<false>(q.job[i], kd_block() - (i ? q.end[i - 1] : 0), shared);
}

int64_t tn_blocks(const kd_gpu_tn_job *j)
{
    return j->S ? j->I / TN_TILE * (j->J / TN_TILE) : 0;
}

int tn_check(const kd_gpu_tn_job *j, struct kd_err *err)
{
    return j->I % TN_TILE || j->J % TN_TILE
               ? kd_fail(err, KD_EINVAL, "a product of %lld x %lld on a device", (long long)j->I,
                         (long long)j->J)
               : 0;
}

} // namespace

int kd_gpu_tn_launch(cudaStream_t stream, const struct kd_gpu_tn_job *j, struct kd_err *err)
{
    const int64_t blocks = tn_blocks(j);

    if (tn_check(j, err))
        return -1;
    if (!blocks)
        return 0;
    if (j->minus)
        KD_LAUNCH(tn_kernel<true>, blocks, TN_THREADS, TN_SHARED, stream, *j);
    else
        KD_LAUNCH(tn_kernel<false>, blocks, TN_THREADS, TN_SHARED, stream, *j);
    return kd_gpu_failed(cudaGetLastError(), err, "starting a product");
}

int kd_gpu_tn_launch_all(cudaStream_t stream, const struct kd_gpu_tn_job *j, int count,
                         struct kd_err *err)
{
    for (int at = 0; at < count;) {
        struct tn_jobs q = {};
        int64_t blocks = 0;
        for (; at < count && q.count < TN_MANY; at++) {
            if (tn_check(&j[at], err))
                return -1;
            if (!tn_blocks(&j[at]))
                continue;
            blocks += tn_blocks(&j[at]);
            q.end[q.count] = blocks;
            q.job[q.count++] = j[at];
        }
        if (blocks)
            KD_LAUNCH(tn_kernel_all, blocks, TN_THREADS, TN_SHARED, stream, q);
    }
    return kd_gpu_failed(cudaGetLastError(), err, "starting products");
}
