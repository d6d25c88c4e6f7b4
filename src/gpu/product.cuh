/* What the .cu files of products share. Kernels of one mode are compiled apart, as each holds code
 * for every rate. */
#ifndef KD_GPU_PRODUCT_CUH
#define KD_GPU_PRODUCT_CUH

#include "gpu/device.cuh"
#include "gpu/product_exl3.cuh"

extern "C" {
#include "gpu/product.h"
}

typedef void (*kd_dense_kernel)(kd_exl3::dense_args);

/* For up to 4 rows of a task, or 8. */
kd_dense_kernel kd_gpu_dense_fast(bool four);
kd_dense_kernel kd_gpu_dense_values(bool mul1);

/* A matrix as kernels see it. */
static inline kd_exl3::matrix kd_gpu_matrix(const struct kd_gpu_mat *m)
{
    return {(const uint32_t *)m->data,
            m->suh,
            m->svh,
            (int32_t)m->rows,
            (int32_t)m->cols,
            (int32_t)(m->cols_padded / kd_codes::SIDE),
            (int32_t)(m->rows_padded / kd_codes::SIDE),
            (int32_t)kd_rate_to16(m->rate),
            (int32_t)m->cb};
}

/* A launch that may begin before the one ahead of it in the stream is done; such a kernel waits by
 * itself (kd_launch_wait). */
int kd_gpu_launch(struct kd_gpu *g, const void *kernel, int64_t blocks, int threads, int64_t shared,
                  void **arguments, const char *what, struct kd_err *err);

#endif
