/* exp and log in double with + - * / alone, so that a figure is the same on every machine, whatever
 * its C library. Both are within 2 ulp; branch-free where a compiler should make vectors of them.
 */
#ifndef KD_NUM_LOGSUM_H
#define KD_NUM_LOGSUM_H

#include <stdint.h>
#include <string.h>

/* exp(x) for x <= 700; below -708 the value of -708 (3e-308, nothing beside a sum of at least 1).
 */
static inline double kd_exp64(double x)
{
    static const double l2e = 1.4426950408889634, hi = 6.93147180369123816490e-01,
                        lo = 1.90821492927058770002e-10, magic = 6755399441055744.0;
    x = x < -708.0 ? -708.0 : x;
    double t = x * l2e + magic; /* rounds to the nearest integer in the low bits */
    double k = t - magic;
    double r = (x - k * hi) - k * lo;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t bits;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

/* Natural logarithm of a positive normal number. */
static inline double kd_log64(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t e = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0xFFFFFFFFFFFFFu) | 0x3FF0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double f = (m - 1.0) / (m + 1.0), z = f * f, s = 0;
    for (int n = 23; n >= 3; n -= 2)
        s = (s + 1.0 / (double)n) * z;
    double lm = 2.0 * (f + f * s), k = (double)e;
    return k * 6.93147180369123816490e-01 + (lm + k * 1.90821492927058770002e-10);
}

#endif
