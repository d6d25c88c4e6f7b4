/* The vocabulary of src/gpu/mma_lanes.cuh on the CPU. */
#ifndef KD_TESTS_GPU_EMULATE_MMA_H
#define KD_TESTS_GPU_EMULATE_MMA_H

#include "num/half.h"

#define KD_CALL inline
/* Inlined, these would be most of what there is to compile. */
#define KD_APART __attribute__((noinline)) inline

/* What the lanes of a warp put on the table. */
static uint32_t kd_emulated_words[KD_EMULATED_WARPS][32][8];

KD_APART uint32_t kd_bytes(uint32_t a, uint32_t b, uint32_t sel)
{
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t r = 0;

    for (int i = 0; i < 4; i++)
        r |= (uint32_t)(both >> 8 * (sel >> 4 * i & 7u) & 0xffu) << 8 * i;
    return r;
}
KD_DEV uint32_t kd_funnel(uint32_t high, uint32_t low, uint32_t n)
{
    return (uint32_t)(((uint64_t)high << 32 | low) >> n);
}
KD_DEV kd_h2 kd_h2_add(kd_h2 a, kd_h2 b)
{
    return {(_Float16)((float)a.x + (float)b.x), (_Float16)((float)a.y + (float)b.y)};
}
KD_DEV uint32_t kd_emulated_byte(int lane, int word, int byte)
{
    return kd_emulated_words[kd_emulated.thread / 32][lane][word] >> 8 * byte & 0xffu;
}
KD_APART void kd_mma_bytes(int32_t d[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                           uint32_t b0, uint32_t b1, int32_t c0, int32_t c1, int32_t c2, int32_t c3)
{
    const int lane = kd_emulated.thread % 32, g = lane / 4, t = lane % 4;
    const uint32_t mine[6] = {a0, a1, a2, a3, b0, b1};
    const int32_t c[4] = {c0, c1, c2, c3};

    memcpy(kd_emulated_words[kd_emulated.thread / 32][lane], mine, sizeof mine);
    kd_sync_warp();
    for (int i = 0; i < 4; i++) {
        uint32_t sum = (uint32_t)c[i];
        for (int k = 0; k < 32; k++) {
            const uint32_t a = kd_emulated_byte(4 * g + k % 16 / 4, i / 2 + k / 16 * 2, k % 4);
            const int b =
                (int8_t)kd_emulated_byte(4 * (2 * t + i % 2) + k % 16 / 4, 4 + k / 16, k % 4);
            sum += a * (uint32_t)b;
        }
        d[i] = (int32_t)sum;
    }
    kd_sync_warp();
}
KD_DEV float kd_emulated_half(int lane, int word, int half)
{
    return kd_half_float(
        (uint16_t)(kd_emulated_words[kd_emulated.thread / 32][lane][word] >> 16 * half));
}
KD_DEV float kd_emulated_bf16(int lane, int word, int half)
{
    const uint32_t u = kd_emulated_words[kd_emulated.thread / 32][lane][word];
    const uint32_t bits = half ? u & 0xffff0000u : u << 16;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}
/* The product of m16n8k16, of values that VALUE reads. */
template <float (*VALUE)(int, int, int)>
static inline void kd_emulated_mma(float d[4], const uint32_t mine[6])
{
    const int lane = kd_emulated.thread % 32, g = lane / 4, t = lane % 4;

    memcpy(kd_emulated_words[kd_emulated.thread / 32][lane], mine, 6 * sizeof *mine);
    kd_sync_warp();
    for (int i = 0; i < 4; i++) {
        double sum = (double)d[i];
        for (int k = 0; k < 16; k++)
            sum += (double)VALUE(4 * g + k % 8 / 2, i / 2 + k / 8 * 2, k % 2) *
                   (double)VALUE(4 * (2 * t + i % 2) + k % 8 / 2, 4 + k / 8, k % 2);
        d[i] = (float)sum;
    }
    kd_sync_warp();
}
KD_APART void kd_mma_halves(float d[4], const kd_h2 a[4], kd_h2 b0, kd_h2 b1)
{
    const uint32_t mine[6] = {kd_h2_bits(a[0]), kd_h2_bits(a[1]), kd_h2_bits(a[2]),
                              kd_h2_bits(a[3]), kd_h2_bits(b0),   kd_h2_bits(b1)};
    kd_emulated_mma<kd_emulated_half>(d, mine);
}
KD_APART void kd_mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    kd_emulated_mma<kd_emulated_bf16>(d, mine);
}
KD_DEV double kd_emulated_tf32(int lane, int word)
{
    const uint32_t bits = kd_emulated_words[kd_emulated.thread / 32][lane][word] & 0xffffe000u;
    float x;

    memcpy(&x, &bits, sizeof x);
    return (double)x;
}
KD_APART void kd_mma_tf32(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    const int lane = kd_emulated.thread % 32, g = lane / 4, t = lane % 4;
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};

    memcpy(kd_emulated_words[kd_emulated.thread / 32][lane], mine, sizeof mine);
    kd_sync_warp();
    for (int i = 0; i < 4; i++) {
        double sum = (double)d[i];
        for (int k = 0; k < 8; k++)
            sum += kd_emulated_tf32(4 * g + k % 4, i / 2 + k / 4 * 2) *
                   kd_emulated_tf32(4 * (2 * t + i % 2) + k % 4, 4 + k / 4);
        d[i] = (float)sum;
    }
    kd_sync_warp();
}
KD_DEV uint32_t kd_bf16_mul(uint32_t a, uint32_t b)
{
    uint32_t r = 0;
    for (int i = 0; i < 32; i += 16)
        r |=
            (uint32_t)kd_f32_bf16(kd_bf16_f32((uint16_t)(a >> i)) * kd_bf16_f32((uint16_t)(b >> i)))
            << i;
    return r;
}
KD_DEV void kd_emulated_matrices(uint32_t r[4], const void *row, bool turned)
{
    uint32_t(*v)[8] = kd_emulated_words[kd_emulated.thread / 32];
    const int lane = kd_emulated.thread % 32, g = lane / 4, t = lane % 4;

    if ((uintptr_t)row % 16)
        abort();
    memcpy(v[lane], row, 16);
    kd_sync_warp();
    for (int i = 0; i < 4; i++) {
        uint16_t h[2];
        for (int j = 0; j < 2; j++) {
            const int of = turned ? 2 * t + j : g, at = turned ? g : 2 * t + j;
            h[j] = (uint16_t)(v[8 * i + of][at / 2] >> 16 * (at % 2));
        }
        r[i] = h[0] | (uint32_t)h[1] << 16;
    }
    kd_sync_warp();
}
KD_DEV void kd_load_matrices(uint32_t r[4], const void *row)
{
    kd_emulated_matrices(r, row, false);
}
KD_DEV void kd_load_matrices_turned(uint32_t r[4], const void *row)
{
    kd_emulated_matrices(r, row, true);
}
KD_DEV uint32_t kd_bf16_pair(float low, float high)
{
    return kd_f32_bf16(low) | (uint32_t)kd_f32_bf16(high) << 16;
}
KD_DEV void kd_add_pair(float *to, float x, float y)
{
    if ((uintptr_t)to % 8)
        abort();
    to[0] += x;
    to[1] += y;
}
KD_DEV int32_t kd_shuffle_int(int32_t x, int from)
{
    uint32_t(*v)[8] = kd_emulated_words[kd_emulated.thread / 32];
    int32_t y;

    v[kd_emulated.thread % 32][0] = (uint32_t)x;
    kd_sync_warp();
    y = (int32_t)v[from][0];
    kd_sync_warp();
    return y;
}
KD_DEV uint32_t kd_warp_max(uint32_t x)
{
    return ~kd_warp_min(~x);
}
KD_DEV int32_t kd_warp_sum(int32_t x)
{
    int32_t sum = 0;

    for (int i = 0; i < 32; i++)
        sum += kd_shuffle_int(x, i);
    return sum;
}
KD_DEV int32_t kd_shared_add(int32_t *to, int32_t x)
{
    const int32_t was = *to;

    *to = (int32_t)((uint32_t)was + (uint32_t)x);
    return was;
}
KD_DEV void kd_copy4(void *shared, const void *from)
{
    memcpy(shared, from, 4);
}
KD_DEV int32_t kd_device_add(int32_t *to, int32_t x)
{
    const int32_t was = *to;

    *to = was + x;
    return was;
}
KD_DEV int32_t kd_device_count(int32_t *to, int32_t x)
{
    return kd_device_add(to, x);
}
template <class T> KD_DEV T kd_load_const(const T *from)
{
    return *from;
}
KD_DEV float4 kd_load_fresh(const float *from)
{
    if ((uintptr_t)from % 16)
        abort();
    return *(const float4 *)from;
}
KD_DEV float kd_div_near_one(float a, float b)
{
    return a / b;
}
KD_DEV int32_t kd_round_int(float x)
{
    return x != x               ? 0
           : x >= 2147483648.0f ? INT32_MAX
           : x < -2147483648.0f ? INT32_MIN
                                : (int32_t)rintf(x);
}

#endif
