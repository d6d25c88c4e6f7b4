/* As much of CUDA's runtime as src/gpu's host code calls, on the CPU: device memory is memory,
 * streams do their work at once, kernels are emulated (tests/gpu/emulate.h). So a whole path is
 * tested where there is no device, threads and all. */
#ifndef KD_TESTS_GPU_FAKE_CUDA_RUNTIME_H
#define KD_TESTS_GPU_FAKE_CUDA_RUNTIME_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>

enum cudaError_t { cudaSuccess, cudaErrorMemoryAllocation, cudaErrorLaunchFailure };
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice
};
enum { cudaStreamNonBlocking = 1, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold };

typedef struct kd_fake_stream *cudaStream_t;
typedef struct kd_fake_event *cudaEvent_t;
typedef struct kd_fake_pool *cudaMemPool_t;

/* What a test sets: the n-th call from now that may fail does (0: none), and goes on failing. */
static std::atomic<int64_t> kd_fake_fail_at;
static std::atomic<bool> kd_fake_broken;

static inline cudaError_t kd_fake_call(void)
{
    if (kd_fake_fail_at > 0 && --kd_fake_fail_at == 0)
        kd_fake_broken = true;
    return kd_fake_broken ? cudaErrorLaunchFailure : cudaSuccess;
}

static inline const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaSuccess                 ? "no error"
           : e == cudaErrorMemoryAllocation ? "out of memory"
                                            : "unspecified launch failure";
}
static inline cudaError_t cudaGetLastError(void)
{
    return kd_fake_call();
}
static inline cudaError_t cudaSetDevice(int)
{
    return cudaSuccess;
}
template <class T> static inline cudaError_t cudaMalloc(T **out, size_t bytes)
{
    *out = (T *)aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!*out)
        return cudaErrorMemoryAllocation;
    memset((void *)*out, 0xcd, bytes); /* starts as anything */
    return cudaSuccess;
}
static inline cudaError_t cudaFree(void *at)
{
    free(at);
    return cudaSuccess;
}
static inline cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    return cudaMalloc(out, bytes);
}
static inline cudaError_t cudaFreeHost(void *at)
{
    return cudaFree(at);
}
template <class T> static inline cudaError_t cudaMallocAsync(T **out, size_t bytes, cudaStream_t)
{
    return cudaMalloc(out, bytes);
}
static inline cudaError_t cudaFreeAsync(void *at, cudaStream_t)
{
    return cudaFree(at);
}
static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind,
                                          cudaStream_t)
{
    const cudaError_t e = kd_fake_call();
    if (e == cudaSuccess)
        memcpy(to, from, bytes);
    return e;
}
static inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(to, from, bytes, kind, NULL);
}
static inline cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from,
                                            size_t from_pitch, size_t width, size_t height,
                                            cudaMemcpyKind, cudaStream_t)
{
    const cudaError_t e = kd_fake_call();
    for (size_t i = 0; e == cudaSuccess && i < height; i++)
        memcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
    return e;
}
static inline cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t)
{
    memset(at, value, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned, int)
{
    *s = (cudaStream_t)malloc(1);
    return cudaSuccess;
}
static inline cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    free(s);
    return cudaSuccess;
}
static inline cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return kd_fake_call();
}
static inline cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -1;
    return cudaSuccess;
}
static inline cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *p, int)
{
    *p = NULL;
    return cudaSuccess;
}
static inline cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *)
{
    return cudaSuccess;
}
static inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    *e = (cudaEvent_t)malloc(1);
    return cudaSuccess;
}
static inline cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    free(e);
    return cudaSuccess;
}
static inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t)
{
    return kd_fake_call();
}
static inline cudaError_t cudaEventSynchronize(cudaEvent_t)
{
    return kd_fake_call();
}
static inline cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int)
{
    return cudaSuccess;
}
static inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t)
{
    *ms = 0;
    return cudaSuccess;
}

#endif
