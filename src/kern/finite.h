/* Whether floats are finite, at the speed of memory. */
#ifndef KD_KERN_FINITE_H
#define KD_KERN_FINITE_H

#include "kern/mat.h"

#include <string.h>

static inline bool kd_finite(const float *x, int64_t n)
{
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

/* `rows` rows of n floats, ld apart, over the run's pool. */
bool kd_finite_rows(const struct kd_run *run, const float *x, int64_t ld, int64_t n, int64_t rows);

#endif
