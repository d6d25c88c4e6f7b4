/* Working memory of the trellis search, of every instruction set. Every part starts on a cache line. */
#ifndef KD_KERN_TRELLIS_SCRATCH_H
#define KD_KERN_TRELLIS_SCRATCH_H

#include "num/trellis_step.h"

#include <stdint.h>

enum {
    KD_TRELLIS_TABLES = 4, /* (in-bits, out-bits) pairs of a masked rate */
    KD_TRELLIS_PAIR = 2    /* tiles searched side by side */
};

struct kd_trellis_scratch {
    int16_t natural[65536];                   /* codebook on the grid, by state */
    int16_t value[KD_TRELLIS_TABLES][65536];  /* the same in the order of the inner loops */
    uint16_t cost[KD_TRELLIS_PAIR][2][32768]; /* by edge */
    uint8_t trace[256 * 32768];               /* branches, in the instruction set's own form */
};

/* All 65536 fp16 values of a codebook; made on first use, thread-safe. */
const uint16_t *kd_codebook_table(enum kd_codebook cb);

#endif
