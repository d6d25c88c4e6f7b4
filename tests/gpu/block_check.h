/* Blocks of ggml's formats for the tests of products on a device: random bytes whose scales are
 * ordinary numbers. */
#ifndef KD_TESTS_GPU_BLOCK_CHECK_H
#define KD_TESTS_GPU_BLOCK_CHECK_H

extern "C" {
#include "fmt/gguf_block.h"
}

#include <math.h>
#include <stdlib.h>

enum { BLOCK_TYPES = 64 }; /* ggml's numbers are below */

static inline const kd_block_format *block_format(enum kd_block_kind kind)
{
    for (int64_t t = 0; t < BLOCK_TYPES; t++) {
        const kd_block_format *f = kd_gguf_format(t);
        if (f && f->kind == kind)
            return f;
    }
    abort();
}

/* Random until all of its values are finite and none is huge. */
template <class BITS> static void block_make(const kd_block_format *f, uint8_t *to, BITS bits)
{
    float v[256];
    bool good;

    do {
        good = true;
        for (int64_t i = 0; i < f->bytes; i++)
            to[i] = (uint8_t)bits();
        f->decode(to, 1, v);
        for (int64_t i = 0; i < f->elems; i++)
            good &= fabsf(v[i]) < 1e4f;
    } while (!good);
}

#endif
