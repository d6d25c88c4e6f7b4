/* The largest of many values, in lanes that compilers make vectors of: the largest does not depend
 * on the order in which they are looked at. */
#ifndef KD_NUM_LARGEST_H
#define KD_NUM_LARGEST_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* NaN does not count; -INFINITY of none. */
static inline float kd_largest(const float *x, int64_t n)
{
    enum { LANES = 16 };
    float lane[LANES], max = -INFINITY;
    int64_t i = 0;
    for (int l = 0; l < LANES; l++)
        lane[l] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (int l = 0; l < LANES; l++)
        max = lane[l] > max ? lane[l] : max;
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

static inline bool kd_any_nan(const float *x, int64_t n)
{
    int any = 0;
    for (int64_t i = 0; i < n; i++)
        any |= x[i] != x[i];
    return any;
}

#endif
