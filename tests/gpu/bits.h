/* Random bits of a device's tests: the same ones in every run (xorshift64). */
#ifndef KD_TESTS_GPU_BITS_H
#define KD_TESTS_GPU_BITS_H

#include <stdint.h>

static uint64_t state = 88172645463325252ull;
static uint32_t bits(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 24);
}

#endif
