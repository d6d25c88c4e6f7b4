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
#define KD_KERNEL static inline
#define KD_BOUNDS(threads, blocks)
#define KD_ARGS         const
#define KD_SHARED(name) unsigned char *name = kd_emulated_shared()

struct uint2 {
    uint32_t x, y;
};
static inline uint2 make_uint2(uint32_t x, uint32_t y)
{
    return {x, y};
}
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
enum { KD_EMULATED_CLUSTER = 8, KD_EMULATED_WARPS = 32 * KD_EMULATED_CLUSTER };
/* The blocks of a cluster (mostly one); thread, warps: counted through all of them. */
struct kd_emulated_block {
    int block, blocks, cluster, thread, threads, running;
    unsigned char *shared;
    size_t shared_step; /* from one block's to the next one's */
    void *main;
    std::vector<void *> fiber; /* stack pointers of those that wait */
    std::vector<uint8_t> done;
    struct block_barriers {
        kd_barrier all, first, last, teams[3], meets[2];
    } of[KD_EMULATED_CLUSTER];
    kd_barrier team, warp[KD_EMULATED_WARPS];
    uint32_t value[2][KD_EMULATED_WARPS]
                  [32];      /* of the lanes, in turns: who is a barrier ahead overwrites nobody */
    int64_t switches, gates; /* gates: how often one opened (emulate_wgmma.h) */
    std::function<void()> kernel;

    block_barriers &mine()
    {
        return of[thread / threads];
    }
    int64_t rounds() const
    {
        int64_t n = running + team.round + gates;
        for (int i = 0; i < cluster; i++)
            n += of[i].all.round + of[i].first.round + of[i].last.round + of[i].teams[0].round +
                 of[i].teams[1].round + of[i].teams[2].round;
        for (int i = 0; i < cluster * ((threads + 31) / 32); i++)
            n += warp[i].round;
        return n;
    }
};
inline kd_emulated_block kd_emulated; /* one of a program */

static inline unsigned char *kd_emulated_shared(void)
{
    return kd_emulated.shared +
           (size_t)(kd_emulated.thread / kd_emulated.threads) * kd_emulated.shared_step;
}

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

static inline void kd_emulate(int blocks, int threads, size_t shared, std::function<void()> kernel,
                              int cluster = 1)
{
    kd_emulated_block &e = kd_emulated;
    const size_t stack = 96 << 10;
    static std::vector<unsigned char> stacks; /* kept: their pages cost more than the threads */
    std::vector<unsigned char> memory;
    const int all = threads * cluster;

    if (cluster > KD_EMULATED_CLUSTER || blocks % cluster || (cluster > 1 && threads % 32)) {
        fprintf(stderr, "%d blocks of %d threads in clusters of %d\n", blocks, threads, cluster);
        abort();
    }
    if (stacks.size() < stack * (size_t)all)
        stacks.resize(stack * (size_t)all);

    e.kernel = kernel;
    e.blocks = blocks;
    e.cluster = cluster;
    e.threads = threads;
    e.shared_step = (shared + 15) / 16 * 16;
    memory.resize(e.shared_step * (size_t)cluster + 16);
    e.shared = memory.data() + (16 - (uintptr_t)memory.data() % 16);
    for (e.block = 0; e.block < blocks; e.block += cluster) {
        memset(memory.data(), 0xa5, memory.size()); /* shared memory starts as anything */
        memset(e.of, 0, sizeof e.of);
        memset(e.warp, 0, sizeof e.warp);
        e.team = {};
        e.fiber.assign((size_t)all, nullptr);
        e.done.assign((size_t)all, 0);
        e.running = all;
        for (int t = 0; t < all; t++) {
            /* Six registers, then where the switch returns to. */
            uintptr_t top = (uintptr_t)(stacks.data() + stack * (size_t)(t + 1)) / 16 * 16 - 32;
            void (*entry)(void) = kd_emulated_thread;
            memcpy((void *)top, &entry, sizeof entry);
            memset((void *)(top - 48), 0, 48);
            e.fiber[(size_t)t] = (void *)(top - 48);
        }
        for (int64_t idle = 0; e.running;) {
            const int64_t rounds = e.rounds();
            for (e.thread = 0; e.thread < all; e.thread++)
                if (!e.done[(size_t)e.thread])
                    kd_fiber_switch(&e.main, e.fiber[(size_t)e.thread]);
            idle = e.rounds() == rounds ? idle + 1 : 0;
            if (idle > 2) {
                fprintf(stderr, "the threads of block %d wait for each other\n", e.block);
                abort();
            }
        }
    }
}

/* One at a time, whichever thread of the host it is. */
inline std::mutex kd_emulated_one;
#define KD_LAUNCH(kernel, blocks, threads, shared, stream, ...)                                    \
    do {                                                                                           \
        std::lock_guard<std::mutex> one(kd_emulated_one);                                          \
        (void)(stream);                                                                            \
        kd_emulate((int)(blocks), threads, (size_t)(shared), [&] { kernel(__VA_ARGS__); });        \
    } while (0)
#define KD_LAUNCH_EARLY(kernel, cluster, blocks, threads, shared, stream, ...)                     \
    do {                                                                                           \
        std::lock_guard<std::mutex> one(kd_emulated_one);                                          \
        (void)(stream);                                                                            \
        kd_emulate((int)(blocks), threads, (size_t)(shared), [&] { kernel(__VA_ARGS__); },         \
                   cluster);                                                                       \
    } while (0)

KD_DEV int kd_thread(void)
{
    return kd_emulated.thread % kd_emulated.threads;
}
KD_DEV int kd_block(void)
{
    return kd_emulated.block + kd_emulated.thread / kd_emulated.threads;
}
KD_DEV int kd_blocks(void)
{
    return kd_emulated.blocks;
}
KD_DEV void kd_sync_block(void)
{
    kd_emulated_wait(&kd_emulated.mine().all, kd_emulated.threads);
}
template <int threads> KD_DEV void kd_sync_first(void)
{
    kd_emulated_wait(&kd_emulated.mine().first, threads);
}
template <int registers> KD_DEV void kd_more_registers(void)
{
}
template <int registers> KD_DEV void kd_fewer_registers(void)
{
}
template <int threads> KD_DEV void kd_sync_last(void)
{
    kd_emulated_wait(&kd_emulated.mine().last, threads);
}
template <int threads> KD_DEV void kd_sync_team(int team)
{
    kd_emulated_wait(&kd_emulated.mine().teams[team], threads);
}
template <int threads> KD_DEV void kd_meet(int number)
{
    kd_emulated_wait(&kd_emulated.mine().meets[number], threads);
}
template <int threads> KD_DEV void kd_arrive(int number)
{
    kd_barrier *b = &kd_emulated.mine().meets[number];

    if (++b->waiting == threads) {
        b->waiting = 0;
        b->round++;
    }
}
KD_DEV int kd_cluster_rank(void)
{
    return kd_emulated.thread / kd_emulated.threads;
}
/* Nobody runs ahead of a barrier here, so both halves are in the second. */
KD_DEV void kd_cluster_arrive(void)
{
}
KD_DEV void kd_cluster_wait(void)
{
    kd_emulated_wait(&kd_emulated.team, kd_emulated.threads * kd_emulated.cluster);
}
KD_DEV void kd_cluster_store(float *shared, int rank, float x)
{
    const int64_t from = rank - kd_cluster_rank();

    *(float *)((unsigned char *)shared + from * (int64_t)kd_emulated.shared_step) = x;
}
KD_DEV void kd_launch_next(void)
{
}
KD_DEV void kd_launch_wait(void)
{
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

KD_DEV uint32_t kd_shuffle(uint32_t x, int from)
{
    return kd_emulated_lanes(x)[from];
}
KD_DEV uint32_t kd_shuffle_up(uint32_t x, int by)
{
    const int lane = kd_emulated.thread % 32;
    return kd_shuffle(x, lane < by ? lane : lane - by);
}
KD_DEV uint32_t kd_bits_set(uint32_t x)
{
    return (uint32_t)__builtin_popcount(x);
}
KD_DEV uint32_t kd_ballot(bool mine)
{
    const uint32_t *v = kd_emulated_lanes(mine);
    uint32_t all = 0;

    for (int i = 0; i < 32; i++)
        all |= v[i] << i;
    return all;
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
KD_DEV kd_h2 kd_h2_low_sub(kd_h2 a, kd_h2 b)
{
    return kd_h2_sub(kd_h2_lows(a), b);
}
KD_DEV kd_h2 kd_h2_high_sub(kd_h2 a, kd_h2 b)
{
    return kd_h2_sub(kd_h2_highs(a), b);
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
KD_DEV float kd_exp_near(float x)
{
    return expf(x);
}
KD_DEV float kd_exp2_near(float x)
{
    return exp2f(x);
}
KD_DEV float kd_div_near(float a, float b)
{
    return a / b;
}
KD_DEV int kd_low_plus(uint32_t pair, int more)
{
    return (int16_t)pair + more;
}
KD_DEV int kd_high_plus(uint32_t pair, int more)
{
    return (int16_t)(pair >> 16) + more;
}
KD_DEV uint32_t kd_byte_sum(uint32_t x, uint32_t more)
{
    return more + (x & 255u) + (x >> 8 & 255u) + (x >> 16 & 255u) + (x >> 24);
}
KD_DEV void kd_copy16(void *shared, const void *from)
{
    memcpy(shared, from, 16);
}
KD_DEV void kd_copy16_if(bool there, void *shared, const void *from)
{
    if (there)
        memcpy(shared, from, 16);
    else
        memset(shared, 0, 16);
}
KD_DEV void kd_copy_group(void)
{
}
template <int later> KD_DEV void kd_copy_wait(void)
{
}
#ifndef KD_COPY_OUT
#define KD_COPY_OUT true
#endif
KD_DEV void kd_copy_out_ready(void)
{
}
KD_DEV void kd_copy_out(void *to, const void *shared, int bytes)
{
    memcpy(to, shared, (size_t)bytes);
}
KD_DEV void kd_copy_out_read(void)
{
}
KD_DEV void kd_copy_out_done(void)
{
}
KD_DEV void kd_prefetch(const void *)
{
}
KD_DEV void kd_store_once(uint2 *to, uint2 v)
{
    *to = v;
}
KD_DEV void kd_store_once(uint32_t *to, uint32_t v)
{
    *to = v;
}
KD_DEV void kd_store_once(uint16_t *to, uint32_t v)
{
    *to = (uint16_t)v;
}
KD_DEV uint16_t kd_load_once(const uint16_t *from)
{
    return *from;
}
KD_DEV uint32_t kd_load_once(const uint32_t *from)
{
    return *from;
}
KD_DEV uint8_t kd_load_once(const uint8_t *from)
{
    return *from;
}

#endif
