/* The host's side of a device, for the .cu files of this folder alone. */
#ifndef KD_GPU_DEVICE_CUH
#define KD_GPU_DEVICE_CUH

extern "C" {
#include "base/mem.h"
#include "gpu/gpu.h"
}

#include <cuda_runtime.h>
#include <pthread.h>

struct kd_gpu {
    int index;
    struct kd_gpu_facts facts;
    pthread_mutex_t lock; /* kd_gpu_lock */
    cudaStream_t stream;
    cudaEvent_t begin, end;
    struct kd_gpu_search_scratch *search; /* NULL before the first */
    int product_blocks;                   /* of a product at once, 0: as many as fit */
    struct kd_gpu_account_run *account;   /* NULL: none is under way */
};

/* 0, or -1 with what was tried and CUDA's words for the error. */
int kd_gpu_failed(cudaError_t rc, struct kd_err *err, const char *what);

/* A kernel of this name was started: ends its time where there is an account of each. */
void kd_gpu_mark(struct kd_gpu *g, const char *kernel);

/* Device memory that goes with its scope. */
struct kd_gpu_bytes {
    void *at = nullptr;
    kd_gpu_bytes() = default;
    kd_gpu_bytes(const kd_gpu_bytes &) = delete;
    kd_gpu_bytes &operator=(const kd_gpu_bytes &) = delete;
    ~kd_gpu_bytes()
    {
        cudaFree(at);
    }
    int get(int64_t bytes, struct kd_err *err, const char *what)
    {
        return kd_gpu_failed(cudaMalloc(&at, (size_t)bytes), err, what);
    }
};

#endif
