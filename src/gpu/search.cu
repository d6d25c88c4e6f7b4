/* The host's side of the trellis search. */
#include "gpu/device.cuh"
#include "gpu/trellis_search.cuh"

namespace
{

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
int copy_values(struct kd_gpu *g, const struct kd_gpu_tiles *job, struct kd_gpu_bytes *value,
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
         kd_gpu_failed(cudaMemcpyAsync(value->at, v, 65536 * 2, cudaMemcpyHostToDevice, g->stream),
                       err, "copying the codebook") ||
         kd_gpu_failed(cudaStreamSynchronize(g->stream), err, "copying the codebook");
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
    kd_gpu_bytes target, states, good, kept, value;
    float ms = 0;

    if (job->tiles <= 0)
        return 0;
    if (job->seam < 8 || job->seam > 128 || job->seam % 8)
        return kd_fail(err, KD_EINVAL, "a seam of %d positions: 8 to 128 by eights", job->seam);
    if (shared > g->facts.block_shared_bytes)
        return kd_fail(err, KD_EGPU,
                       "%s: %lld bytes of shared memory a block, this rate needs %lld; use the CPU",
                       g->facts.name, (long long)g->facts.block_shared_bytes, (long long)shared);
    if (kd_gpu_failed(cudaSetDevice(g->index), err, "choosing the device") ||
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
    if (kd_gpu_failed(cudaFuncSetAttribute((const void *)kernel,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)shared),
                      err, "shared memory for the search") ||
        kd_gpu_failed(cudaMemcpyAsync(target.at, job->target, (size_t)job->tiles * 1024,
                                      cudaMemcpyHostToDevice, g->stream),
                      err, "copying tiles") ||
        kd_gpu_failed(cudaEventRecord(g->begin, g->stream), err, "an event"))
        return -1;
    kernel<<<blocks, KD_GPU_WORKERS + 32, (size_t)shared, g->stream>>>(a);
    if (kd_gpu_failed(cudaGetLastError(), err, "starting the search") ||
        kd_gpu_failed(cudaEventRecord(g->end, g->stream), err, "an event") ||
        kd_gpu_failed(cudaMemcpyAsync(job->states, states.at, (size_t)job->tiles * 512,
                                      cudaMemcpyDeviceToHost, g->stream),
                      err, "copying states") ||
        kd_gpu_failed(cudaMemcpyAsync(job->good, good.at, (size_t)job->tiles,
                                      cudaMemcpyDeviceToHost, g->stream),
                      err, "copying flags") ||
        kd_gpu_failed(cudaStreamSynchronize(g->stream), err, "the search") ||
        kd_gpu_failed(cudaEventElapsedTime(&ms, g->begin, g->end), err, "an event"))
        return -1;
    if (figures) {
        const int64_t all = (255 + segment) / segment, half = (job->seam - 1 + segment) / segment;
        *figures = {ms * 1e-3, blocks, shared, (all + half) * (65536 >> job->rate.base) * 2};
    }
    return 0;
}
