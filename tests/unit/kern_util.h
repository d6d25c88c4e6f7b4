/* For the kernel tests: the table under test (KONDENSE_ISA) beside the reference, and values. */
#ifndef KD_TEST_KERN_UTIL_H
#define KD_TEST_KERN_UTIL_H

#include "base/rand.h"
#include "kern/kern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kd_kern ref, isa;

/* 0, or 77 where this CPU cannot run the set that was asked for. */
static inline int kern_open(void)
{
    struct kd_err err = {0};
    if (kd_kern_for(&ref, KD_ISA_REF, &err) || kd_kern_pick(&isa, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return err.code == KD_ENOTSUP ? 77 : 1;
    }
    return 0;
}

static inline float value(uint64_t seed, int64_t i)
{
    return (float)(2 * kd_rand_unit(seed, (uint64_t)i) - 1);
}

/* n floats in [-1, 1), one float after the start of an aligned block. */
static inline float *floats(uint64_t seed, int64_t n)
{
    float *p = malloc((size_t)(n + 1) * sizeof *p);
    assert_non_null(p);
    for (int64_t i = 0; i <= n; i++)
        p[i] = value(seed, i);
    return p + 1;
}

static inline void floats_free(float *p)
{
    free(p - 1);
}

/* Same bits, or NaN both. */
static inline void same(const float *a, const float *b, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = kd_f32_bits(a[i]), v = kd_f32_bits(b[i]);
        if (u != v && !(a[i] != a[i] && b[i] != b[i]))
            fail_msg("%s: value %lld is %a (%08x) by %s, %a (%08x) by the reference", what,
                     (long long)i, (double)a[i], u, isa.name, (double)b[i], v);
    }
}

#endif
