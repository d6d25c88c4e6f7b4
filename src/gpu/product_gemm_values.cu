/* EXL3 products of many rows, for checks and for the codebooks other than mul1. */
#include "gpu/product_gemm_host.cuh"

const struct kd_gemm_kind *kd_gpu_gemm_values(bool mul1)
{
    return mul1 ? kd_gemm_kind_of<kd_gemm::values<true>>(NULL)
                : kd_gemm_kind_of<kd_gemm::values<false>>(NULL);
}
