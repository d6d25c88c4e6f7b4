/* Devices: which there are, opening and closing. */
#include "gpu/search.cuh"

#include <stdio.h>

int kd_gpu_failed(cudaError_t rc, struct kd_err *err, const char *what)
{
    if (rc == cudaSuccess)
        return 0;
    cudaGetLastError(); /* the next call starts clean */
    return kd_fail(err, KD_EGPU, "%s: %s", what, cudaGetErrorString(rc));
}

/* Looked at to see whether this program has code for a device. */
__global__ void kd_gpu_any_kernel(void)
{
}

/* Why there are no devices to count, in words that say what to do. */
static int no_devices(cudaError_t rc, struct kd_err *err)
{
    int driver = 0, runtime = 0;

    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    cudaGetLastError();
    if (rc != cudaErrorInsufficientDriver)
        return kd_gpu_failed(rc, err, "CUDA finds no device; use the CPU (--device cpu)");
    if (!driver)
        return kd_fail(err, KD_EGPU,
                       "no NVIDIA driver is here: install one, or use the CPU (--device cpu)");
    return kd_fail(err, KD_EGPU,
                   "the NVIDIA driver knows CUDA %d.%d, this kondense needs %d.%d: renew the "
                   "driver, or use the CPU (--device cpu)",
                   driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}

/* Without code for it every kernel would fail, each with CUDA's words for it. */
static int has_code(const cudaDeviceProp *p, int index, struct kd_err *err)
{
    struct cudaFuncAttributes a;
    const cudaError_t rc = cudaFuncGetAttributes(&a, kd_gpu_any_kernel);

    if (rc != cudaErrorNoKernelImageForDevice && rc != cudaErrorInvalidDeviceFunction)
        return kd_gpu_failed(rc, err, "asking for kernels");
    cudaGetLastError();
    return kd_fail(err, KD_EGPU,
                   "device cuda:%d, %s: this kondense has no code for compute capability %d.%d "
                   "(KD_CUDA_ARCHS); use the CPU (--device cpu)",
                   index, p->name, p->major, p->minor);
}

extern "C" int kd_gpu_count(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : (cudaGetLastError(), 0);
}

extern "C" int kd_gpu_open(struct kd_gpu **out, int index, struct kd_err *err)
{
    cudaDeviceProp p;
    size_t free_bytes, bytes;
    int count = 0, khz = 0;
    struct kd_gpu *g;

    *out = NULL;
    const cudaError_t rc = cudaGetDeviceCount(&count);
    if (rc != cudaSuccess)
        return no_devices(rc, err);
    if (index < 0 || index >= count)
        return kd_fail(err, KD_EGPU,
                       "device cuda:%d: there are %d here, or use the CPU (--device cpu)", index,
                       count);
    if (kd_mem_zero(&g, 1, sizeof *g, "a device", err))
        return -1;
    g->index = index;
    pthread_mutex_init(&g->lock, NULL);
    if (kd_gpu_failed(cudaSetDevice(index), err, "choosing the device") ||
        kd_gpu_failed(cudaGetDeviceProperties(&p, index), err, "asking the device") ||
        has_code(&p, index, err) ||
        kd_gpu_failed(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, index), err,
                      "asking the device") ||
        kd_gpu_failed(cudaMemGetInfo(&free_bytes, &bytes), err, "asking for its memory") ||
        kd_gpu_failed(cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking), err,
                      "a stream") ||
        kd_gpu_failed(cudaEventCreate(&g->begin), err, "an event") ||
        kd_gpu_failed(cudaEventCreate(&g->end), err, "an event")) {
        kd_gpu_close(g);
        return -1;
    }
    snprintf(g->facts.name, sizeof g->facts.name, "%s", p.name);
    g->facts.major = p.major;
    g->facts.minor = p.minor;
    g->facts.sms = p.multiProcessorCount;
    g->facts.memory_bytes = (int64_t)bytes;
    g->facts.free_bytes = (int64_t)free_bytes;
    g->facts.ghz = khz * 1e-6;
    g->facts.block_shared_bytes = (int64_t)p.sharedMemPerBlockOptin;
    *out = g;
    return 0;
}

extern "C" void kd_gpu_close(struct kd_gpu *g)
{
    if (!g)
        return;
    kd_gpu_search_close(g);
    if (g->begin)
        cudaEventDestroy(g->begin);
    if (g->end)
        cudaEventDestroy(g->end);
    if (g->stream)
        cudaStreamDestroy(g->stream);
    pthread_mutex_destroy(&g->lock);
    kd_mem_free(g);
}

extern "C" void kd_gpu_lock(struct kd_gpu *g)
{
    pthread_mutex_lock(&g->lock);
}

extern "C" void kd_gpu_unlock(struct kd_gpu *g)
{
    pthread_mutex_unlock(&g->lock);
}

extern "C" const struct kd_gpu_facts *kd_gpu_facts(const struct kd_gpu *g)
{
    return &g->facts;
}
