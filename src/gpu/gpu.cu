/* Devices and the host's side of the kernels. */
extern "C" {
#include "base/mem.h"
#include "gpu/gpu.h"
}
#include "gpu/trellis_search.cuh"

#include <cuda_runtime.h>
#include <stdio.h>

struct kd_gpu {
    int index;
    struct kd_gpu_facts facts;
    cudaStream_t stream;
    cudaEvent_t begin, end;
};

static int failed(cudaError_t rc, struct kd_err *err, const char *what)
{
    if (rc == cudaSuccess)
        return 0;
    cudaGetLastError(); /* the next call starts clean */
    return kd_fail(err, KD_EGPU, "%s: %s", what, cudaGetErrorString(rc));
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
    int count = 0;
    struct kd_gpu *g;

    *out = NULL;
    if (failed(cudaGetDeviceCount(&count), err, "CUDA finds no device; use the CPU (--device cpu)"))
        return -1;
    if (index < 0 || index >= count)
        return kd_fail(err, KD_EGPU, "device cuda:%d: there are %d here", index, count);
    if (kd_mem_zero(&g, 1, sizeof *g, "a device", err))
        return -1;
    g->index = index;
    if (failed(cudaSetDevice(index), err, "choosing the device") ||
        failed(cudaGetDeviceProperties(&p, index), err, "asking the device") ||
        failed(cudaMemGetInfo(&free_bytes, &bytes), err, "asking for its memory") ||
        failed(cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking), err, "a stream") ||
        failed(cudaEventCreate(&g->begin), err, "an event") ||
        failed(cudaEventCreate(&g->end), err, "an event")) {
        kd_gpu_close(g);
        return -1;
    }
    snprintf(g->facts.name, sizeof g->facts.name, "%s", p.name);
    g->facts.major = p.major;
    g->facts.minor = p.minor;
    g->facts.sms = p.multiProcessorCount;
    g->facts.memory_bytes = (int64_t)bytes;
    g->facts.free_bytes = (int64_t)free_bytes;
    g->facts.block_shared_bytes = (int64_t)p.sharedMemPerBlockOptin;
    *out = g;
    return 0;
}

extern "C" void kd_gpu_close(struct kd_gpu *g)
{
    if (!g)
        return;
    if (g->begin)
        cudaEventDestroy(g->begin);
    if (g->end)
        cudaEventDestroy(g->end);
    if (g->stream)
        cudaStreamDestroy(g->stream);
    kd_mem_free(g);
}

extern "C" const struct kd_gpu_facts *kd_gpu_facts(const struct kd_gpu *g)
{
    return &g->facts;
}

namespace
{

/* Device memory that goes with its scope. */
struct device_bytes {
    void *at = nullptr;
    ~device_bytes()
    {
        cudaFree(at);
    }
    int get(int64_t bytes, struct kd_err *err, const char *what)
    {
        return failed(cudaMalloc(&at, (size_t)bytes), err, what);
    }
};

typedef void (*search_kernel)(kd_gpu_search_args);

template <int BASE> search_kernel kernel_of(bool masked)
{
    using namespace kd_trellis;
    return masked ? kd_gpu_search_tiles<half_steps<BASE, true>, BASE, true, 1>
                  : kd_gpu_search_tiles<half_steps<BASE, false>, BASE, false, 1>;
}

template <int BASE> search_kernel fine_kernel_of(bool masked)
{
    using namespace kd_trellis;
    return masked ? kd_gpu_search_tiles<fine_steps, BASE, true, 1>
                  : kd_gpu_search_tiles<fine_steps, BASE, false, 1>;
}

search_kernel kernel_for(struct kd_rate r)
{
    const bool masked = r.mask != 0;

    switch (r.base) {
    case 1:
        return kernel_of<1>(masked);
    case 2:
        return kernel_of<2>(masked);
    case 3:
        return kernel_of<3>(masked);
    case 4:
        return masked ? fine_kernel_of<4>(true) : kernel_of<4>(false);
    case 5:
        return fine_kernel_of<5>(masked);
    case 6:
        return fine_kernel_of<6>(masked);
    case 7:
        return fine_kernel_of<7>(masked);
    default:
        return fine_kernel_of<8>(false);
    }
}

/* The values of rates that do not fit registers. */
int copy_values(struct kd_gpu *g, const struct kd_gpu_tiles *job, struct device_bytes *value,
                struct kd_err *err)
{
    const struct kd_search_grid grid = kd_search_grid_of(job->rate, job->codebook, 0);
    int16_t *v;
    int rc;

    if (kd_mem_new(&v, 65536, sizeof *v, "codebook values", err))
        return -1;
    for (uint32_t i = 0; i < 65536; i++)
        v[i] = (int16_t)kd_search_value(grid, kd_codebook_f16(job->codebook, i));
    rc = value->get(65536 * 2, err, "device memory for the codebook") ||
         failed(cudaMemcpyAsync(value->at, v, 65536 * 2, cudaMemcpyHostToDevice, g->stream), err,
                "copying the codebook") ||
         failed(cudaStreamSynchronize(g->stream), err, "copying the codebook");
    kd_mem_free(v);
    return rc ? -1 : 0;
}

} // namespace

extern "C" int kd_gpu_search(struct kd_gpu *g, const struct kd_gpu_tiles *job,
                             struct kd_gpu_tile_figures *figures, struct kd_err *err)
{
    const search_kernel kernel = kernel_for(job->rate);
    const int segment = kd_gpu_search_segment(job->rate);
    const int64_t shared = kd_gpu_search_shared(job->rate, 1);
    const int most = job->blocks > 0 && job->blocks < g->facts.sms ? job->blocks : g->facts.sms;
    const int blocks = job->tiles < most ? (int)job->tiles : most;
    device_bytes target, states, good, kept, value;
    float ms = 0;

    if (job->tiles <= 0)
        return 0;
    if (job->seam < 8 || job->seam > 128 || job->seam % 8)
        return kd_fail(err, KD_EINVAL, "a seam of %d positions: 8 to 128 by eights", job->seam);
    if (shared > g->facts.block_shared_bytes)
        return kd_fail(err, KD_EGPU,
                       "%s: %lld bytes of shared memory a block, this rate needs %lld; use the CPU",
                       g->facts.name, (long long)g->facts.block_shared_bytes, (long long)shared);
    if (failed(cudaSetDevice(g->index), err, "choosing the device") ||
        target.get(job->tiles * 1024, err, "device memory for tiles") ||
        states.get(job->tiles * 512, err, "device memory for states") ||
        good.get(job->tiles, err, "device memory for flags") ||
        kept.get(blocks * kd_gpu_search_kept(job->rate, segment, 1) * 2, err,
                 "device memory for kept costs"))
        return -1;
    if (kd_rate_bits_at(job->rate, 0) > 4 || job->rate.base + (job->rate.mask ? 1 : 0) > 4)
        if (copy_values(g, job, &value, err))
            return -1;
    const kd_gpu_search_args a = {(const float *)target.at,
                                  (uint16_t *)states.at,
                                  (uint8_t *)good.at,
                                  (uint16_t *)kept.at,
                                  job->tiles,
                                  job->rate,
                                  (const int16_t *)value.at,
                                  job->codebook,
                                  job->seam,
                                  segment};
    if (failed(cudaFuncSetAttribute((const void *)kernel,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
               err, "shared memory for the search") ||
        failed(cudaMemcpyAsync(target.at, job->target, (size_t)job->tiles * 1024,
                               cudaMemcpyHostToDevice, g->stream),
               err, "copying tiles") ||
        failed(cudaEventRecord(g->begin, g->stream), err, "an event"))
        return -1;
    kernel<<<blocks, KD_GPU_WORKERS + 32, (size_t)shared, g->stream>>>(a);
    if (failed(cudaGetLastError(), err, "starting the search") ||
        failed(cudaEventRecord(g->end, g->stream), err, "an event") ||
        failed(cudaMemcpyAsync(job->states, states.at, (size_t)job->tiles * 512,
                               cudaMemcpyDeviceToHost, g->stream),
               err, "copying states") ||
        failed(cudaMemcpyAsync(job->good, good.at, (size_t)job->tiles, cudaMemcpyDeviceToHost,
                               g->stream),
               err, "copying flags") ||
        failed(cudaStreamSynchronize(g->stream), err, "the search") ||
        failed(cudaEventElapsedTime(&ms, g->begin, g->end), err, "an event"))
        return -1;
    if (figures) {
        const int64_t all = (255 + segment) / segment, half = (job->seam - 1 + segment) / segment;
        *figures = {ms * 1e-3, blocks, shared, (all + half) * (65536 >> job->rate.base) * 2};
    }
    return 0;
}
