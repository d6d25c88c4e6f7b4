/* Device memory and copies. */
#include "gpu/device.cuh"

extern "C" {
#include "gpu/memory.h"
}

static int choose(struct kd_gpu *g, struct kd_err *err)
{
    return kd_gpu_failed(cudaSetDevice(g->index), err, "choosing the device");
}

extern "C" int kd_gpu_free_bytes(struct kd_gpu *g, int64_t *bytes, struct kd_err *err)
{
    size_t free_bytes = 0, all = 0;

    if (choose(g, err) ||
        kd_gpu_failed(cudaMemGetInfo(&free_bytes, &all), err, "asking for device memory"))
        return -1;
    *bytes = (int64_t)free_bytes;
    return 0;
}

extern "C" int kd_gpu_alloc(struct kd_gpu *g, void **out, int64_t bytes, const char *what,
                            struct kd_err *err)
{
    const size_t size = (size_t)(bytes > 0 ? bytes : 1);
    int64_t left = 0;

    *out = NULL;
    if (choose(g, err))
        return -1;
    const cudaError_t rc = cudaMalloc(out, size);
    if (rc == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        *out = NULL;
        if (kd_gpu_free_bytes(g, &left, err))
            return -1;
        return kd_fail(err, KD_ENOMEM, "%s: %.1f MiB of device memory, %.1f MiB are free", what,
                       (double)bytes / 1048576.0, (double)left / 1048576.0);
    }
    if (kd_gpu_failed(rc, err, what) ||
        kd_gpu_failed(cudaMemsetAsync(*out, 0, size, g->stream), err, what)) {
        kd_gpu_release(g, *out);
        *out = NULL;
        return -1;
    }
    return 0;
}

extern "C" void kd_gpu_release(struct kd_gpu *g, void *p)
{
    if (p && cudaSetDevice(g->index) == cudaSuccess)
        cudaFree(p);
}

extern "C" int kd_gpu_host_alloc(struct kd_gpu *g, void **out, int64_t bytes, const char *what,
                                 struct kd_err *err)
{
    *out = NULL;
    if (choose(g, err) ||
        kd_gpu_failed(cudaMallocHost(out, (size_t)(bytes > 0 ? bytes : 1)), err, what)) {
        *out = NULL;
        return -1;
    }
    return 0;
}

extern "C" void kd_gpu_host_release(struct kd_gpu *g, void *p)
{
    if (p && cudaSetDevice(g->index) == cudaSuccess)
        cudaFreeHost(p);
}

static int copy(struct kd_gpu *g, void *to, const void *from, int64_t bytes, cudaMemcpyKind kind,
                const char *what, struct kd_err *err)
{
    if (bytes <= 0)
        return 0;
    return choose(g, err) ||
                   kd_gpu_failed(cudaMemcpyAsync(to, from, (size_t)bytes, kind, g->stream), err,
                                 what)
               ? -1
               : 0;
}

extern "C" int kd_gpu_upload(struct kd_gpu *g, void *to, const void *from, int64_t bytes,
                             struct kd_err *err)
{
    return copy(g, to, from, bytes, cudaMemcpyHostToDevice, "copying to the device", err);
}

extern "C" int kd_gpu_copy(struct kd_gpu *g, void *to, const void *from, int64_t bytes,
                           struct kd_err *err)
{
    return copy(g, to, from, bytes, cudaMemcpyDeviceToDevice, "copying on the device", err);
}

extern "C" int kd_gpu_download(struct kd_gpu *g, void *to, const void *from, int64_t bytes,
                               struct kd_err *err)
{
    if (copy(g, to, from, bytes, cudaMemcpyDeviceToHost, "copying from the device", err))
        return -1;
    return kd_gpu_wait(g, err);
}

extern "C" int kd_gpu_zero(struct kd_gpu *g, void *p, int64_t bytes, struct kd_err *err)
{
    if (bytes <= 0)
        return 0;
    return choose(g, err) || kd_gpu_failed(cudaMemsetAsync(p, 0, (size_t)bytes, g->stream), err,
                                           "zeros on the device")
               ? -1
               : 0;
}

extern "C" int kd_gpu_wait(struct kd_gpu *g, struct kd_err *err)
{
    return choose(g, err) ||
                   kd_gpu_failed(cudaStreamSynchronize(g->stream), err, "work on the device")
               ? -1
               : 0;
}
