/* c += a^T b on a device, every element one fma chain over ascending s, as gemm_tn of kern.h: the
 * CPU's bits. The matrices lie in device memory. */
#ifndef KD_GPU_TN_CUH
#define KD_GPU_TN_CUH

#include "gpu/device.cuh"

struct kd_gpu_tn_job {
    const float *a, *b; /* [S][lda], [S][ldb]; 16-byte aligned, as c; leading dimensions by fours */
    float *c;           /* [I][ldc] */
    int64_t lda, ldb, ldc;
    int64_t S, I, J; /* S below 2^31, I and J multiples of 128 */
    bool upper;      /* only the 128 x 128 blocks on and above the diagonal */
    bool minus;      /* c -= a^T b */
};

/* Asynchronous on `stream`. */
int kd_gpu_tn_launch(cudaStream_t stream, const struct kd_gpu_tn_job *j, struct kd_err *err);
/* Products that have nothing to do with each other, side by side; all sums, no `upper`. */
int kd_gpu_tn_launch_all(cudaStream_t stream, const struct kd_gpu_tn_job *j, int count,
                         struct kd_err *err);

#endif
