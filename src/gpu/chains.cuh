/* The chains of many outputs, two after each other and added: the part of a product that takes its
 * time (gpu/calib.cuh). All in device memory. */
#ifndef KD_GPU_CHAINS_CUH
#define KD_GPU_CHAINS_CUH

#include "gpu/device.cuh"

struct kd_calib_chains_job {
    const float *a, *b;         /* [2 half deep][lda], [2 half deep][n] */
    int64_t lda, n, deep, rows; /* rows: a multiple of 128, as n */
    int half;
    float *c; /* [half][rows][n]: chain q plus chain q + half */
};

/* Asynchronous on `stream`; an error of the launch is cudaGetLastError's. */
void kd_gpu_chains_launch(cudaStream_t stream, const struct kd_calib_chains_job *j);

#endif
