/* The product of class `fast` on Hopper: whether it is there, and its launch. */
#include "gpu/calib_int.cuh"
#include "gpu/calib_wide.cuh"

namespace kd_calib
{

#ifdef KD_GPU_EMULATE
/* What a test chooses. */
static bool emulated_wide;
enum { EMULATED_BLOCKS = 2 };

bool wide_is_here(void)
{
    return emulated_wide;
}
static int wide_blocks(void)
{
    return EMULATED_BLOCKS;
}
static int make_map(kd_box_map *out, const uint16_t *at, int64_t cols, int64_t rows, int64_t pitch,
                    int box, struct kd_err *)
{
    *out = {at, cols, rows, pitch, box};
    return 0;
}
#else
static int attribute(enum cudaDeviceAttr a)
{
    int device = 0, value = 0;

    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&value, a, device);
    return value;
}
/* On compute capability 9.0, where the kernel has a body: one without takes next to no registers.
 */
bool wide_is_here(void)
{
    enum { BODY_REGISTERS = 64 };
    struct cudaFuncAttributes a;

    return attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
           attribute(cudaDevAttrComputeCapabilityMinor) == 0 &&
           cudaFuncGetAttributes(&a, kd_fast::multiply_wide<kd_fast::SUMS>) == cudaSuccess &&
           a.numRegs > BODY_REGISTERS;
}
static int wide_blocks(void)
{
    return attribute(cudaDevAttrMultiProcessorCount);
}

typedef CUresult (*encode_map)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                               const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                               const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                               CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static int make_map(kd_box_map *out, const uint16_t *at, int64_t cols, int64_t rows, int64_t pitch,
                    int box, struct kd_err *err)
{
    const cuuint64_t size[2] = {(cuuint64_t)cols, (cuuint64_t)rows};
    const cuuint64_t apart[1] = {2 * (cuuint64_t)pitch};
    const cuuint32_t boxes[2] = {KD_BOX_COLS, (cuuint32_t)box}, each[2] = {1, 1};
    enum cudaDriverEntryPointQueryResult how;
    void *entry = nullptr;

    if (kd_gpu_failed(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                       cudaEnableDefault, &how),
                      err, "boxes of a matrix"))
        return -1;
    const CUresult rc =
        !entry ? CUDA_ERROR_NOT_FOUND
               : ((encode_map)entry)(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)at, size,
                                     apart, boxes, each, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return rc == CUDA_SUCCESS
               ? 0
               : kd_fail(err, KD_EGPU, "boxes of a matrix [%lld][%lld], rows %lld apart: error %d",
                         (long long)rows, (long long)cols, (long long)pitch, (int)rc);
}
#endif

template <enum kd_fast::kind KIND>
static int launch(cudaStream_t stream, const kd_fast::wide_job &w, struct kd_err *err)
{
    if (kd_gpu_failed(cudaFuncSetAttribute((const void *)kd_fast::multiply_wide<KIND>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           kd_fast::WIDE_SHARED),
                      err, "shared memory for a product"))
        return -1;
    KD_LAUNCH(kd_fast::multiply_wide<KIND>, kd_least64(w.items, wide_blocks()),
              kd_fast::WIDE_THREADS, kd_fast::WIDE_SHARED, stream, w);
    return 0;
}

int64_t fast_count_bytes(int64_t k)
{
    return 4 * (1 + 2 * ((k + kd_fast::WIDE_M - 1) / kd_fast::WIDE_M) *
                        ((k + kd_fast::WIDE_N - 1) / kd_fast::WIDE_N));
}

int wide_multiply(cudaStream_t stream, enum kd_fast::kind kind, const kd_fast::multiply_job &j,
                  int32_t *count, struct kd_err *err)
{
    const bool sums = kind == kd_fast::SUMS;
    kd_fast::wide_job w;

    for (int i = 0; i < j.planes; i++)
        if (make_map(&w.a[i], j.plane[i].a, j.k, j.m, j.lda, kd_fast::WIDE_M, err) ||
            make_map(&w.b[i], j.plane[i].b, j.k, kind < kd_fast::INNER ? j.n : j.rows, j.ldb,
                     kd_fast::WIDE_N, err))
            return -1;
    w.j = j;
    w.count = count;
    w.items = sums ? (int64_t)kd_fast::wide_tiles<kd_fast::SUMS>(j) * kd_fast::wide_segments(j)
                   : kd_fast::wide_tiles<kd_fast::ROWS>(j);
    if (count &&
        kd_gpu_failed(cudaMemsetAsync(count, 0, (size_t)(sums ? fast_count_bytes(j.m) : 4), stream),
                      err, "a product"))
        return -1;
    switch (kind) {
    case kd_fast::ROWS:
        return launch<kd_fast::ROWS>(stream, w, err);
    case kd_fast::SUMS:
        return launch<kd_fast::SUMS>(stream, w, err);
    case kd_fast::INNER:
        return launch<kd_fast::INNER>(stream, w, err);
    case kd_fast::TURNED:
        break;
    }
    return launch<kd_fast::TURNED>(stream, w, err);
}

} // namespace kd_calib
