/* The trellis search for what is on a device already. */
#ifndef KD_GPU_SEARCH_CUH
#define KD_GPU_SEARCH_CUH

#include "gpu/device.cuh"

/* The states of kern.h's trellis_search, bit for bit, asynchronously on `stream`. target:
 * [tiles][256] in ring order, states: [tiles][256], both on the device. At most `blocks` blocks (0:
 * one a multiprocessor). Scratch is the device's own, so searches run one after another whatever
 * their streams; it grows, which waits for the device, when a search needs more than all before. */
int kd_gpu_search_launch(struct kd_gpu *g, cudaStream_t stream, struct kd_rate rate,
                         enum kd_codebook codebook, int seam, int blocks, const float *target,
                         uint16_t *states, int64_t tiles, struct kd_err *err);

/* Device memory that searches of up to so many tiles take at most, whatever their rates: costs that
 * are kept, by every multiprocessor at the rate that keeps most, and a few bytes a tile. */
int64_t kd_gpu_search_room(const struct kd_gpu_facts *f, int64_t tiles);

/* Whether a block's shared memory has room for a search at this rate: below 2 bits not every
 * device's has. */
bool kd_gpu_search_fits(const struct kd_gpu_facts *f, struct kd_rate rate);

/* kd_gpu_close calls it. */
void kd_gpu_search_close(struct kd_gpu *g);

#endif
