/* More of lanes.cuh's vocabulary, for products: matrix instructions, bytes of registers, sums that
 * many add to. A warp's lane is 4 g + t with g < 8, t < 4; fragments are those of mma.m16n8 (PTX).
 */
#ifndef KD_GPU_MMA_LANES_CUH
#define KD_GPU_MMA_LANES_CUH

#include "gpu/lanes.cuh"

#ifdef KD_GPU_EMULATE
#include "gpu/emulate_mma.h"
#else

/* A function that is called. */
#ifdef KD_CALL_INLINE
#define KD_CALL __device__ __forceinline__
#else
#define KD_CALL __device__ __noinline__
#endif

/* Byte i of the result is byte (sel >> 4i & 7) of b:a (a has bytes 0 to 3). */
KD_DEV uint32_t kd_bytes(uint32_t a, uint32_t b, uint32_t sel)
{
    return __byte_perm(a, b, sel);
}
/* The low word of high:low >> n, n < 32. */
KD_DEV uint32_t kd_funnel(uint32_t high, uint32_t low, uint32_t n)
{
    return __funnelshift_r(low, high, n);
}
KD_DEV kd_h2 kd_h2_add(kd_h2 a, kd_h2 b)
{
    kd_h2 r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r.bits) : "r"(a.bits), "r"(b.bits));
    return r;
}
/* d[16][8] = a[16][32] b[32][8] + c: unsigned bytes times signed bytes, sums modulo 2^32. Lane 4 g
 * + t has a: rows g and g + 8 at 4 t, then both at 4 t + 16 (four bytes each); b: column g at 4 t,
 * at 4 t + 16; c, d: row g at columns 2 t and 2 t + 1, then row g + 8. */
KD_DEV void kd_mma_bytes(int32_t d[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                         uint32_t b0, uint32_t b1, int32_t c0, int32_t c1, int32_t c2, int32_t c3)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c0), "r"(c1), "r"(c2), "r"(c3));
}
/* d += a[16][16] b[16][8] in half floats, sums in fp32. a: rows g and g + 8 at 2 t, then both at
 * 2 t + 8 (two halves each); b: column g at 2 t, at 2 t + 8; d as above. */
KD_DEV void kd_mma_halves(float d[4], const kd_h2 a[4], kd_h2 b0, kd_h2 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0].bits), "r"(a[1].bits), "r"(a[2].bits), "r"(a[3].bits), "r"(b0.bits),
          "r"(b1.bits));
}
/* The same in bf16. */
KD_DEV void kd_mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* d += a[16][8] b[8][8] in tf32: of each fp32 value the upper 19 bits; sums in fp32. a: rows g and
 * g + 8 at t, then both at t + 4; b: column g at t, at t + 4; d as above. */
KD_DEV void kd_mma_tf32(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* Two bf16 products, rounded. */
KD_DEV uint32_t kd_bf16_mul(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
    return r;
}
/* Rounded; low in the low half. */
KD_DEV uint32_t kd_bf16_pair(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
/* to[0] += x, to[1] += y, in device memory; `to` at a multiple of 8 bytes, which nobody else reads
 * or writes meanwhile. */
KD_DEV void kd_add_pair(float *to, float x, float y)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y)
                 : "memory");
#else
    const float2 was = *(const float2 *)to;
    *(float2 *)to = make_float2(was.x + x, was.y + y);
#endif
}
/* Four 8 x 8 matrices of 16-bit values from shared memory: lane l points to the 16 bytes of row l %
 * 8 of matrix l / 8. r[i] has, of matrix i, row g at 2 t and 2 t + 1; turned: column g at rows 2 t
 * and 2 t + 1. */
KD_DEV void kd_load_matrices(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}
KD_DEV void kd_load_matrices_turned(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}
KD_DEV int32_t kd_shuffle_int(int32_t x, int from)
{
    return __shfl_sync(0xffffffffu, x, from);
}
KD_DEV uint32_t kd_warp_max(uint32_t x)
{
    return __reduce_max_sync(0xffffffffu, x);
}
KD_DEV int32_t kd_warp_sum(int32_t x)
{
    return __reduce_add_sync(0xffffffffu, x);
}
/* *to += x, in shared memory; any number of threads at a time. Returns what it was. */
KD_DEV int32_t kd_shared_add(int32_t *to, int32_t x)
{
    return atomicAdd(to, x);
}
/* As kd_copy16. */
KD_DEV void kd_copy4(void *shared, const void *from)
{
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
/* What *to was; in device memory. */
KD_DEV int32_t kd_device_add(int32_t *to, int32_t x)
{
    return atomicAdd(to, x);
}
/* The same, after all that this thread knows to be written (its own stores, and those before a
 * barrier) and before all that it reads or writes later, for all threads of the device that add to
 * *to. */
KD_DEV int32_t kd_device_count(int32_t *to, int32_t x)
{
    int32_t was;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;"
                 : "=r"(was)
                 : "l"(to), "r"(x)
                 : "memory");
    return was;
}
/* Device memory that no kernel of this moment writes. */
template <class T> KD_DEV T kd_load_const(const T *from)
{
    return __ldg(from);
}
/* Values that other blocks of this launch wrote. */
KD_DEV float4 kd_load_fresh(const float *from)
{
    return __ldcg((const float4 *)from);
}
/* a / b, correctly rounded, for 1 <= b < 2 and a from 1 to 2^30: without a call, as there is in the
 * compiler's division. */
KD_DEV float kd_div_near_one(float a, float b)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
    r = __fmaf_rn(__fmaf_rn(-b, r, 1.0f), r, r);
    const float q = __fmul_rn(a, r), better = __fmaf_rn(__fmaf_rn(-b, q, a), r, q);
    return __fmaf_rn(__fmaf_rn(-b, better, a), r, better);
}
KD_DEV int32_t kd_round_int(float x)
{
    return __float2int_rn(x);
}
#endif
#endif
