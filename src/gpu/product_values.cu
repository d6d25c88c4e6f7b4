/* EXL3 products with the codebook's own values. */
#include "gpu/product.cuh"

kd_dense_kernel kd_gpu_dense_values(bool mul1)
{
    return mul1 ? kd_exl3::multiply_dense<kd_exl3::values<2, true>>
                : kd_exl3::multiply_dense<kd_exl3::values<2, false>>;
}

kd_experts_kernel kd_gpu_experts_values(bool mul1)
{
    return mul1 ? kd_experts::multiply_experts<kd_exl3::values<2, true>>
                : kd_experts::multiply_experts<kd_exl3::values<2, false>>;
}
