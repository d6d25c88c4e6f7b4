/* A device on the CPU: each thread of a block is a coroutine, barriers switch between them. It
 * tests a kernel's logic and arithmetic, bit for bit, where there is no device; it says nothing of
 * races between two barriers (threads run in one order) or of speed. clang's _Float16.
 *
 *     kd_emulate(blocks, threads, shared_bytes, [&] { kernel(args); });
 */
#ifndef KD_TESTS_GPU_EMULATE_H
#define KD_TESTS_GPU_EMULATE_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <functional>
#include <mutex>
#include <vector>

#define KD_DEV    inline
#define KD_KERNEL static
#define KD_BOUNDS(threads, blocks)
#define KD_ARGS         const
#define KD_SHARED(name) unsigned char *name = kd_emulated.shared

struct uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct float2 {
    float x, y;
};
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}

struct kd_barrier {
    int waiting, round;
};
struct kd_emulated_block {
    int block, blocks, thread, threads, running;
    unsigned char *shared;
    void *main;
    std::vector<void *> fiber; /* stack pointers of those that wait */
    std::vector<uint8_t> done;
    kd_barrier all, first, last, warp[32];
    uint32_t value[2][32]
                  [32]; /* of the lanes, in turns: who is a barrier ahead overwrites nobody */
    int64_t switches;
    std::function<void()> kernel;
};
static kd_emulated_block kd_emulated;

/* Leaves what a call must keep on this stack, and goes on with another one (x86-64). */
extern "C" void kd_fiber_switch(void **from, void *to);
asm(".pushsection .text\n"
    ".weak kd_fiber_switch\n"
    ".type kd_fiber_switch, @function\n"
    "kd_fiber_switch:\n"
    "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    "mov %rsp, (%rdi)\n mov %rsi, %rsp\n"
    "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n"
    ".popsection\n");

static inline void kd_emulated_wait(kd_barrier *b, int count)
{
    kd_emulated_block &e = kd_emulated;
    const int round = b->round, me = e.thread;

    if (++b->waiting == count) {
        b->waiting = 0;
        b->round++;
    }
    while (b->round == round) {
        e.switches++;
        kd_fiber_switch(&e.fiber[(size_t)me], e.main);
    }
}

static void kd_emulated_thread(void)
{
    kd_emulated.kernel();
    kd_emulated.done[kd_emulated.thread] = 1;
    kd_emulated.running--;
    for (;;)
        kd_fiber_switch(&kd_emulated.fiber[(size_t)kd_emulated.thread], kd_emulated.main);
}

static inline void kd_emulate(int blocks, int threads, size_t shared, std::function<void()> kernel)
{
    kd_emulated_block &e = kd_emulated;
    const size_t stack = 96 << 10;
    static std::vector<unsigned char> stacks; /* kept: their pages cost more than the threads */
    std::vector<unsigned char> memory(shared + 16);

    if (stacks.size() < stack * (size_t)threads)
        stacks.resize(stack * (size_t)threads);

    e.kernel = kernel;
    e.blocks = blocks;
    e.threads = threads;
    e.shared = memory.data() + (16 - (uintptr_t)memory.data() % 16);
    for (e.block = 0; e.block < blocks; e.block++) {
        memset(memory.data(), 0xa5, memory.size()); /* shared memory starts as anything */
        e.all = e.first = e.last = {};
        memset(e.warp, 0, sizeof e.warp);
        e.fiber.assign((size_t)threads, nullptr);
        e.done.assign((size_t)threads, 0);
        e.running = threads;
        for (int t = 0; t < threads; t++) {
            /* Six registers, then where the switch returns to. */
            uintptr_t top = (uintptr_t)(stacks.data() + stack * (size_t)(t + 1)) / 16 * 16 - 32;
            void (*entry)(void) = kd_emulated_thread;
            memcpy((void *)top, &entry, sizeof entry);
            memset((void *)(top - 48), 0, 48);
            e.fiber[(size_t)t] = (void *)(top - 48);
        }
        for (int64_t idle = 0; e.running;) {
            int64_t rounds = e.all.round + e.first.round + e.last.round + e.running;
            for (int i = 0; i < 32; i++)
                rounds += e.warp[i].round;
            for (e.thread = 0; e.thread < threads; e.thread++)
                if (!e.done[e.thread])
                    kd_fiber_switch(&e.main, e.fiber[(size_t)e.thread]);
            int64_t now = e.all.round + e.first.round + e.last.round + e.running;
            for (int i = 0; i < 32; i++)
                now += e.warp[i].round;
            idle = now == rounds ? idle + 1 : 0;
            if (idle > 2) {
                fprintf(stderr, "the threads of block %d wait for each other\n", e.block);
                abort();
            }
        }
    }
}

/* One at a time, whichever thread of the host it is. */
static std::mutex kd_emulated_one;
#define KD_LAUNCH(kernel, blocks, threads, shared, stream, ...)                                    \
    do {                                                                                           \
        std::lock_guard<std::mutex> one(kd_emulated_one);                                          \
        (void)(stream);                                                                            \
        kd_emulate((int)(blocks), threads, (size_t)(shared), [&] { kernel(__VA_ARGS__); });        \
    } while (0)

KD_DEV int kd_thread(void)
{
    return kd_emulated.thread;
}
KD_DEV int kd_block(void)
{
    return kd_emulated.block;
}
KD_DEV int kd_blocks(void)
{
    return kd_emulated.blocks;
}
KD_DEV void kd_sync_block(void)
{
    kd_emulated_wait(&kd_emulated.all, kd_emulated.threads);
}
template <int threads> KD_DEV void kd_sync_first(void)
{
    kd_emulated_wait(&kd_emulated.first, threads);
}
template <int registers> KD_DEV void kd_more_registers(void)
{
}
template <int registers> KD_DEV void kd_fewer_registers(void)
{
}
template <int threads> KD_DEV void kd_sync_last(void)
{
    kd_emulated_wait(&kd_emulated.last, threads);
}
KD_DEV void kd_sync_warp(void)
{
    kd_emulated_wait(&kd_emulated.warp[kd_emulated.thread / 32], 32);
}
/* What the lanes of this warp put there, once all have. */
static inline const uint32_t *kd_emulated_lanes(uint32_t mine)
{
    const int warp = kd_emulated.thread / 32;
    uint32_t *v = kd_emulated.value[kd_emulated.warp[warp].round & 1][warp];

    v[kd_emulated.thread % 32] = mine;
    kd_sync_warp();
    return v;
}
KD_DEV uint32_t kd_warp_min(uint32_t x)
{
    const uint32_t *v = kd_emulated_lanes(x);
    uint32_t m = x;

    for (int i = 0; i < 32; i++)
        m = v[i] < m ? v[i] : m;
    return m;
}

KD_DEV float kd_shuffle(float x, int from)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    u = kd_emulated_lanes(u)[from];
    memcpy(&x, &u, sizeof x);
    return x;
}
KD_DEV float kd_shuffle_xor(float x, int mask)
{
    return kd_shuffle(x, kd_emulated.thread % 32 ^ mask);
}
KD_DEV uint32_t kd_shuffle_xor(uint32_t x, int mask)
{
    float f;
    memcpy(&f, &x, sizeof f);
    f = kd_shuffle_xor(f, mask);
    memcpy(&x, &f, sizeof x);
    return x;
}

struct kd_h2 {
    _Float16 x, y;
};

/* The exact product and sum of half floats fit a double's 53 bits unless the result overflows. */
static inline _Float16 kd_emulated_fma(_Float16 a, _Float16 b, _Float16 c)
{
    return (_Float16)((double)a * (double)b + (double)c);
}
KD_DEV kd_h2 kd_h2_sub(kd_h2 a, kd_h2 b)
{
    return {(_Float16)(a.x - b.x), (_Float16)(a.y - b.y)};
}
KD_DEV kd_h2 kd_h2_fma(kd_h2 a, kd_h2 b, kd_h2 c)
{
    return {kd_emulated_fma(a.x, b.x, c.x), kd_emulated_fma(a.y, b.y, c.y)};
}
KD_DEV kd_h2 kd_h2_min(kd_h2 a, kd_h2 b)
{
    return {a.x < b.x ? a.x : b.x, a.y < b.y ? a.y : b.y};
}
KD_DEV uint32_t kd_h2_less(kd_h2 a, kd_h2 b)
{
    return (a.x < b.x ? 0xffffu : 0u) | (a.y < b.y ? 0xffff0000u : 0u);
}
KD_DEV uint32_t kd_h2_bits(kd_h2 a)
{
    uint32_t u;
    memcpy(&u, &a, sizeof u);
    return u;
}
KD_DEV kd_h2 kd_bits_h2(uint32_t u)
{
    kd_h2 a;
    memcpy(&a, &u, sizeof a);
    return a;
}
KD_DEV kd_h2 kd_h2_lows(kd_h2 a)
{
    return {a.x, a.x};
}
KD_DEV kd_h2 kd_h2_highs(kd_h2 a)
{
    return {a.y, a.y};
}
KD_DEV kd_h2 kd_h2_of(float low, float high)
{
    return {(_Float16)low, (_Float16)high};
}
KD_DEV float kd_h2_low(kd_h2 a)
{
    return (float)a.x;
}
KD_DEV uint16_t kd_float_half(float x)
{
    _Float16 h = (_Float16)x;
    uint16_t u;
    memcpy(&u, &h, sizeof u);
    return u;
}
KD_DEV float kd_half_float(uint16_t bits)
{
    _Float16 h;
    memcpy(&h, &bits, sizeof h);
    return (float)h;
}
KD_DEV float kd_mul(float a, float b)
{
    return a * b;
}
KD_DEV float kd_add(float a, float b)
{
    return a + b;
}
KD_DEV uint32_t kd_byte_sum(uint32_t x, uint32_t more)
{
    return more + (x & 255u) + (x >> 8 & 255u) + (x >> 16 & 255u) + (x >> 24);
}
KD_DEV void kd_copy16(void *shared, const void *from)
{
    memcpy(shared, from, 16);
}
KD_DEV void kd_copy_group(void)
{
}
template <int later> KD_DEV void kd_copy_wait(void)
{
}
KD_DEV void kd_store_once(uint4 *to, uint4 v)
{
    *to = v;
}
KD_DEV uint16_t kd_load_once(const uint16_t *from)
{
    return *from;
}

#endif
