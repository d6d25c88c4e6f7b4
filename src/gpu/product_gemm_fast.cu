/* EXL3 products of many rows, for decoding. */
#include "gpu/product_gemm_host.cuh"

const struct kd_gemm_kind *kd_gpu_gemm_fast(void)
{
    return kd_gemm_kind_of<kd_gemm::fast>(kd_gpu_gemm_narrow());
}
