/* EXL3 products with the codebook's own values. */
#include "gpu/product.cuh"

kd_tasks_kernel kd_gpu_tasks_values(bool mul1)
{
    return mul1 ? kd_experts::multiply_tasks<kd_exl3::values<2, true>>
                : kd_experts::multiply_tasks<kd_exl3::values<2, false>>;
}
