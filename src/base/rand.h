/* Counter-based random numbers: value i of stream `seed` depends on nothing else, so threads and
 * resumed runs draw the same. splitmix64's finaliser over seed + (i + 1) * golden ratio. */
#ifndef KD_BASE_RAND_H
#define KD_BASE_RAND_H

#include <stdint.h>

static inline uint64_t kd_rand_u64(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* In [0, 1), 53 bits. */
static inline double kd_rand_unit(uint64_t seed, uint64_t i)
{
    return (double)(kd_rand_u64(seed, i) >> 11) * (1.0 / 9007199254740992.0);
}

/* A sum of four uniforms of one draw: near enough to normal, mean 0, unit variance. */
static inline float kd_rand_bell(uint64_t seed, uint64_t i)
{
    uint64_t x = kd_rand_u64(seed, i);
    int32_t sum = (int32_t)((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));
    return (float)(sum - 131070) * (1.7320508f / 65536.0f);
}

/* A new stream for (seed, part). */
static inline uint64_t kd_rand_fork(uint64_t seed, uint64_t part)
{
    return kd_rand_u64(seed ^ 0x6b6f6e64656e7365u, part);
}

#endif
