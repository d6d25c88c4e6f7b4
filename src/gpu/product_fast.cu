/* EXL3 products for decoding. */
#include "gpu/product.cuh"

kd_dense_kernel kd_gpu_dense_fast(bool four)
{
    return four ? kd_exl3::multiply_dense<kd_exl3::fast<1>>
                : kd_exl3::multiply_dense<kd_exl3::fast<2>>;
}

kd_experts_kernel kd_gpu_experts_fast(bool four)
{
    return four ? kd_experts::multiply_experts<kd_exl3::fast<1>>
                : kd_experts::multiply_experts<kd_exl3::fast<2>>;
}
