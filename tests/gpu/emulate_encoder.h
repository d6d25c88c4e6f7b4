/* An encoder on an emulated device: its own program over a fake runtime (tests/gpu/fake), kernels
 * emulated, the searches by the CPU's kernel. For one program; `kern` is made by it. */
#ifndef KD_TESTS_GPU_EMULATE_ENCODER_H
#define KD_TESTS_GPU_EMULATE_ENCODER_H

#define KD_GPU_EMULATE
#include "gpu/encode.cu"
#include "gpu/encode_la.cu"
#include "gpu/encode_stage.cu"
#include "gpu/encode_tensor.cu"
#include "gpu/tn.cu"

#include "gpu/encode_check.h"

static struct kd_kern kern;

int kd_gpu_failed(cudaError_t rc, struct kd_err *err, const char *what)
{
    return rc == cudaSuccess ? 0 : kd_fail(err, KD_EGPU, "%s: %s", what, cudaGetErrorString(rc));
}

enum { EMULATED_DEVICES = 2 };
static int64_t emulated_free = (int64_t)4 << 30;

/* Without KD_EMULATED_DEVICE: a device for whoever wants an encoder alone (device_emulated.cpp). */
#ifndef KD_EMULATED_DEVICE
extern "C" int kd_gpu_open(struct kd_gpu **out, int index, struct kd_err *err)
{
    *out = NULL;
    if (index >= EMULATED_DEVICES)
        return kd_fail(err, KD_EGPU, "device cuda:%d: there are %d here", index, EMULATED_DEVICES);
    if (kd_mem_zero(out, 1, sizeof **out, "a device", err))
        return -1;
    (*out)->index = index;
    (*out)->facts.free_bytes = emulated_free;
    (*out)->facts.sms = 12;
    snprintf((*out)->facts.name, sizeof(*out)->facts.name, "emulated");
    return 0;
}

extern "C" void kd_gpu_close(struct kd_gpu *g)
{
    kd_mem_free(g);
}

extern "C" const struct kd_gpu_facts *kd_gpu_facts(const struct kd_gpu *g)
{
    return &g->facts;
}
#endif

/* A block's shared memory, of which searches below 2 bits need more than a GB10's 99 KB. */
static int64_t emulated_shared = 227 << 10;
bool kd_gpu_search_fits(const struct kd_gpu_facts *, struct kd_rate rate)
{
    return rate.base > 1 || emulated_shared > 128 << 10;
}

/* The CPU's kernel takes none of it; a number that must be seen in the plan. */
int64_t kd_gpu_search_room(const struct kd_gpu_facts *, int64_t tiles)
{
    return (12 << 20) + tiles;
}

int kd_gpu_search_launch(struct kd_gpu *, cudaStream_t, struct kd_rate rate,
                         enum kd_codebook codebook, int seam, int blocks, const float *target,
                         uint16_t *states, int64_t tiles, struct kd_err *err)
{
    void *scratch;
    if (blocks < 0 || blocks > 12) /* some are left to the linear algebra, or none (0) */
        return kd_fail(err, KD_EINVAL, "a search by %d blocks", blocks);
    if (kd_gpu_failed(kd_fake_call(), err, "starting the search") ||
        kd_mem_new(&scratch, 1, (int64_t)kd_trellis_scratch_bytes(), "search", err))
        return -1;
    kern.trellis_search(target, tiles, rate, codebook, seam, states, scratch);
    kd_mem_free(scratch);
    return 0;
}

#endif
