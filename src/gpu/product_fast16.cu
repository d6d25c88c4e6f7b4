/* EXL3 products for decoding, up to 16 rows of a task. */
#include "gpu/product.cuh"

kd_tasks_kernel kd_gpu_tasks_fast16(void)
{
    return kd_experts::multiply_tasks<kd_exl3::fast<4>>;
}
