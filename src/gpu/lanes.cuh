/* What the kernels ask of a device beyond C: who am I, wait for the others, two half floats at a
 * time. tests/gpu/emulate.h gives the same names a meaning on the CPU, so that a kernel's logic is
 * tested where there is no device. */
#ifndef KD_GPU_LANES_CUH
#define KD_GPU_LANES_CUH

#ifdef KD_GPU_EMULATE
#include "gpu/emulate.h"
#else

#include <cuda_fp16.h>
#include <stdint.h>

#define KD_DEV                     __device__ __forceinline__
#define KD_KERNEL                  __global__
#define KD_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
/* The block's dynamic shared memory. */
#define KD_SHARED(name)            extern __shared__ __align__(16) unsigned char name[]
/* A kernel's argument that is a struct, indexed where it lies. */
#define KD_ARGS                    const __grid_constant__
/* From the host: the kernel's arguments after its stream. */
#define KD_LAUNCH(kernel, blocks, threads, shared, stream, ...)                                    \
    kernel<<<(unsigned)(blocks), threads, (size_t)(shared), stream>>>(__VA_ARGS__)
/* The same for a kernel that calls kd_launch_wait: it may start before the one in front is done.
 * cluster: so many blocks run side by side and reach into each other's shared memory. */
#define KD_LAUNCH_EARLY(kernel, cluster, blocks, threads, shared, stream, ...)                     \
    kd_launch_early(kernel, cluster, (unsigned)(blocks), threads, (size_t)(shared), stream,        \
                    __VA_ARGS__)

/* Whether the current device knows clusters and early starts. */
static inline bool kd_device_is_modern(void)
{
    int device = 0, major = 0;

    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major >= 9;
}
/* Errors are cudaGetLastError's, as after <<<>>>. */
template <class... P, class... A>
static inline void kd_launch_early(void (*kernel)(P...), int cluster, unsigned blocks, int threads,
                                   size_t shared, cudaStream_t stream, A... arguments)
{
    cudaLaunchAttribute a[2] = {};
    cudaLaunchConfig_t c = {};

    a[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a[0].val.programmaticStreamSerializationAllowed = 1;
    a[1].id = cudaLaunchAttributeClusterDimension;
    a[1].val.clusterDim.x = (unsigned)cluster;
    a[1].val.clusterDim.y = a[1].val.clusterDim.z = 1;
    c.gridDim = dim3(blocks);
    c.blockDim = dim3((unsigned)threads);
    c.dynamicSmemBytes = shared;
    c.stream = stream;
    c.attrs = a;
    c.numAttrs = !kd_device_is_modern() ? 0 : cluster > 1 ? 2 : 1;
    cudaLaunchKernelEx(&c, kernel, arguments...);
}

struct kd_h2 {
    uint32_t bits;
};

KD_DEV int kd_thread(void)
{
    return (int)threadIdx.x;
}
KD_DEV int kd_block(void)
{
    return (int)blockIdx.x;
}
KD_DEV int kd_blocks(void)
{
    return (int)gridDim.x;
}
/* Waits for all threads of the block; warps may come from different places of the code. */
KD_DEV void kd_sync_block(void)
{
    asm volatile("bar.sync 0;" ::: "memory");
}
/* Waits for the first `threads` threads of the block, whole warps. */
template <int threads> KD_DEV void kd_sync_first(void)
{
    asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory");
}
/* For its last `threads` threads. */
template <int threads> KD_DEV void kd_sync_last(void)
{
    asm volatile("bar.sync 2, %0;" ::"n"(threads) : "memory");
}
/* For `threads` threads that are team 0, 1 or 2 of the block. */
template <int threads> KD_DEV void kd_sync_team(int team)
{
    asm volatile("bar.sync %0, %1;" ::"r"(3 + team), "n"(threads) : "memory");
}
/* Barriers of some threads that wait and some that go on: number 0 or 1, `threads` of both kinds.
 */
template <int threads> KD_DEV void kd_meet(int number)
{
    asm volatile("bar.sync %0, %1;" ::"r"(6 + number), "n"(threads) : "memory");
}
template <int threads> KD_DEV void kd_arrive(int number)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(6 + number), "n"(threads) : "memory");
}
/* More or fewer registers (a multiple of 8) for all threads of four adjacent warps, the first of
 * them a multiple of four; nothing where a device cannot do that. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_SPECIFIC__) ||                       \
    defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
template <int registers> KD_DEV void kd_more_registers(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers> KD_DEV void kd_fewer_registers(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
#else
template <int registers> KD_DEV void kd_more_registers(void)
{
}
template <int registers> KD_DEV void kd_fewer_registers(void)
{
}
#endif
/* Clusters: which of its blocks this is; waiting for all threads of all of them, in one step or in
 * two; a store to the same place of block `rank`'s shared memory (after all blocks have started,
 * and none may end before all have waited for its stores). Where a device has no clusters a block
 * is alone. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
KD_DEV int kd_cluster_rank(void)
{
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
KD_DEV void kd_cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
KD_DEV void kd_cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
KD_DEV void kd_cluster_store(float *shared, int rank, float x)
{
    uint32_t to;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(to)
        : "r"((uint32_t)__cvta_generic_to_shared(shared)), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
/* Lets the next launch of the stream begin, and waits until the one before is done: a kernel may
 * read constant data before that. */
KD_DEV void kd_launch_next(void)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
KD_DEV void kd_launch_wait(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
#else
KD_DEV int kd_cluster_rank(void)
{
    return 0;
}
KD_DEV void kd_cluster_arrive(void)
{
}
KD_DEV void kd_cluster_wait(void)
{
    __syncthreads();
}
KD_DEV void kd_cluster_store(float *shared, int, float x)
{
    *shared = x;
}
KD_DEV void kd_launch_next(void)
{
}
KD_DEV void kd_launch_wait(void)
{
}
#endif
KD_DEV void kd_sync_warp(void)
{
    __syncwarp();
}
KD_DEV uint32_t kd_warp_min(uint32_t x)
{
    return __reduce_min_sync(0xffffffffu, x);
}
/* What lane `lane ^ mask`, or lane `from`, of the warp has; all 32 lanes call. */
KD_DEV float kd_shuffle_xor(float x, int mask)
{
    return __shfl_xor_sync(0xffffffffu, x, mask);
}
KD_DEV uint32_t kd_shuffle_xor(uint32_t x, int mask)
{
    return __shfl_xor_sync(0xffffffffu, x, mask);
}
KD_DEV float kd_shuffle(float x, int from)
{
    return __shfl_sync(0xffffffffu, x, from);
}
KD_DEV uint32_t kd_shuffle(uint32_t x, int from)
{
    return __shfl_sync(0xffffffffu, x, from);
}
/* What lane `lane - by` has, this one's own where there is none. */
KD_DEV uint32_t kd_shuffle_up(uint32_t x, int by)
{
    return __shfl_up_sync(0xffffffffu, x, (unsigned)by);
}
/* A bit for each lane; all 32 call. */
KD_DEV uint32_t kd_ballot(bool mine)
{
    return __ballot_sync(0xffffffffu, mine);
}
KD_DEV uint32_t kd_bits_set(uint32_t x)
{
    return (uint32_t)__popc(x);
}
KD_DEV kd_h2 kd_h2_sub(kd_h2 a, kd_h2 b)
{
    kd_h2 r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r.bits) : "r"(a.bits), "r"(b.bits));
    return r;
}
KD_DEV kd_h2 kd_h2_fma(kd_h2 a, kd_h2 b, kd_h2 c)
{
    kd_h2 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r.bits) : "r"(a.bits), "r"(b.bits), "r"(c.bits));
    return r;
}
KD_DEV kd_h2 kd_h2_min(kd_h2 a, kd_h2 b)
{
    kd_h2 r;
    asm("min.f16x2 %0, %1, %2;" : "=r"(r.bits) : "r"(a.bits), "r"(b.bits));
    return r;
}
/* All ones in each half where a < b. */
KD_DEV uint32_t kd_h2_less(kd_h2 a, kd_h2 b)
{
    uint32_t r;
    asm("set.lt.u32.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a.bits), "r"(b.bits));
    return r;
}
KD_DEV uint32_t kd_h2_bits(kd_h2 a)
{
    return a.bits;
}
KD_DEV kd_h2 kd_bits_h2(uint32_t u)
{
    return {u};
}
/* The low or high half, twice. */
KD_DEV kd_h2 kd_h2_lows(kd_h2 a)
{
    kd_h2 r;
    asm("{.reg .b16 l, h;\n mov.b32 {l, h}, %1;\n mov.b32 %0, {l, l};}"
        : "=r"(r.bits)
        : "r"(a.bits));
    return r;
}
KD_DEV kd_h2 kd_h2_highs(kd_h2 a)
{
    kd_h2 r;
    asm("{.reg .b16 l, h;\n mov.b32 {l, h}, %1;\n mov.b32 %0, {h, h};}"
        : "=r"(r.bits)
        : "r"(a.bits));
    return r;
}
/* The low or high half of a, twice, less b: in one piece, lest the compiler keep the twice. */
KD_DEV kd_h2 kd_h2_low_sub(kd_h2 a, kd_h2 b)
{
    kd_h2 r;
    asm("{.reg .b16 l, h;\n .reg .b32 t;\n mov.b32 {l, h}, %1;\n mov.b32 t, {l, l};\n"
        " sub.rn.f16x2 %0, t, %2;}"
        : "=r"(r.bits)
        : "r"(a.bits), "r"(b.bits));
    return r;
}
KD_DEV kd_h2 kd_h2_high_sub(kd_h2 a, kd_h2 b)
{
    kd_h2 r;
    asm("{.reg .b16 l, h;\n .reg .b32 t;\n mov.b32 {l, h}, %1;\n mov.b32 t, {h, h};\n"
        " sub.rn.f16x2 %0, t, %2;}"
        : "=r"(r.bits)
        : "r"(a.bits), "r"(b.bits));
    return r;
}
KD_DEV kd_h2 kd_h2_of(float low, float high)
{
    return {(uint32_t)__half_as_ushort(__float2half_rn(low)) |
            (uint32_t)__half_as_ushort(__float2half_rn(high)) << 16};
}
KD_DEV float kd_h2_low(kd_h2 a)
{
    return __half2float(__ushort_as_half((unsigned short)a.bits));
}
KD_DEV uint16_t kd_float_half(float x)
{
    return __half_as_ushort(__float2half_rn(x));
}
KD_DEV float kd_half_float(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}
/* Rounded on their own, whatever the compiler's flags. */
KD_DEV float kd_mul(float a, float b)
{
    return __fmul_rn(a, b);
}
KD_DEV float kd_add(float a, float b)
{
    return __fadd_rn(a, b);
}
/* e^x for x <= 0, within 2^-21 of it plus 2^-23 times |x| of it. */
KD_DEV float kd_exp_near(float x)
{
    return __expf(x);
}
/* 2^x for x <= 0, within 2^-22 of it or 2^-126. */
KD_DEV float kd_exp2_near(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
/* Within 2^-22 of a / b, |b| from 2^-126 to 2^126. */
KD_DEV float kd_div_near(float a, float b)
{
    return __fdividef(a, b);
}
/* The low or high one of two signed 16-bit numbers, plus more. */
KD_DEV int kd_low_plus(uint32_t pair, int more)
{
    return __dp2a_lo((int)pair, 1, more);
}
KD_DEV int kd_high_plus(uint32_t pair, int more)
{
    return __dp2a_lo((int)pair, 1 << 8, more);
}
/* The four bytes of x, and `more`. */
KD_DEV uint32_t kd_byte_sum(uint32_t x, uint32_t more)
{
    return __dp4a(x, 0x01010101u, more);
}
/* 16 bytes of device memory on their way into shared memory: copies so far become a group, and
 * a thread waits until all of its groups but the last `later` are there (for the others' copies:
 * then the barrier). */
KD_DEV void kd_copy16(void *shared, const void *from)
{
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/* The same, or zeros (then nothing is read). */
KD_DEV void kd_copy16_if(bool there, void *shared, const void *from)
{
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}
KD_DEV void kd_copy_group(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int later> KD_DEV void kd_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(later) : "memory");
}
/* The way out, which a device's copy engine goes by itself: a multiple of 16 bytes of shared memory
 * to device memory. Before it all threads that wrote them call kd_copy_out_ready, then a barrier;
 * who started copies waits until they have been read, or until all is there. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
#define KD_COPY_OUT true
KD_DEV void kd_copy_out_ready(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
KD_DEV void kd_copy_out(void *to, const void *shared, int bytes)
{
    uint32_t from = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}
KD_DEV void kd_copy_out_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
KD_DEV void kd_copy_out_done(void)
{
    asm volatile("cp.async.bulk.wait_group 0;\nfence.proxy.async;" ::: "memory");
}
#else
#define KD_COPY_OUT false
KD_DEV void kd_copy_out_ready(void)
{
}
KD_DEV void kd_copy_out(void *, const void *, int)
{
}
KD_DEV void kd_copy_out_read(void)
{
}
KD_DEV void kd_copy_out_done(void)
{
}
#endif
/* A hint: the 128 bytes there will be read soon. */
KD_DEV void kd_prefetch(const void *from)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}
/* Loads and stores that leave the first-level cache alone: what one warp wrote another one reads
 * later, and nothing reads it twice. */
KD_DEV void kd_store_once(uint2 *to, uint2 v)
{
    __stcg(to, v);
}
KD_DEV void kd_store_once(uint32_t *to, uint32_t v)
{
    __stcg(to, v);
}
KD_DEV void kd_store_once(uint16_t *to, uint32_t v)
{
    __stcg(to, (uint16_t)v);
}
KD_DEV uint16_t kd_load_once(const uint16_t *from)
{
    return __ldcg(from);
}
KD_DEV uint32_t kd_load_once(const uint32_t *from)
{
    return __ldcg(from);
}
KD_DEV uint8_t kd_load_once(const uint8_t *from)
{
    return __ldcg(from);
}
#endif
#endif
