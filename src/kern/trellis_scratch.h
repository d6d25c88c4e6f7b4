/* Working memory of the trellis search, of every instruction set. Every part starts on a cache line. */
#ifndef KD_KERN_TRELLIS_SCRATCH_H
#define KD_KERN_TRELLIS_SCRATCH_H

#include <stdint.h>

enum {
    KD_TRELLIS_TABLES = 4,             /* (in-bits, out-bits) pairs of a masked rate */
    KD_TRELLIS_STEP_TRACE = 8192,      /* bytes of branches a position takes when packed */
    KD_TRELLIS_PAIR = 2                /* tiles searched side by side */
};

struct kd_trellis_scratch {
    int16_t value[KD_TRELLIS_TABLES][65536];
    uint16_t cost[2 * KD_TRELLIS_PAIR][32768];
    uint8_t trace[256 * 32768];        /* packed forms use KD_TRELLIS_PAIR * 256 * 8192 of it */
};

#endif
