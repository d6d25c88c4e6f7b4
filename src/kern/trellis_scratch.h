/* Working memory of the trellis search, of every instruction set. Every part starts on a cache
 * line. */
#ifndef KD_KERN_TRELLIS_SCRATCH_H
#define KD_KERN_TRELLIS_SCRATCH_H

#include "num/trellis_step.h"

#include <stdint.h>

enum {
    KD_TRELLIS_TABLES = 4, /* (in-bits, out-bits) pairs of a masked rate */
    KD_TRELLIS_PAIR = 2,   /* tiles searched side by side */
    KD_TRELLIS_AGAIN = 256 /* states of a position that are looked at again on the way back */
};

struct kd_trellis_scratch {
    int16_t natural[65536];                   /* codebook on the grid, by state */
    int16_t swapped[65536];                   /* the same, by state with its bytes exchanged */
    int16_t value[KD_TRELLIS_TABLES][65536];  /* the same in the order of the inner loops */
    uint16_t cost[KD_TRELLIS_PAIR][2][32768]; /* by edge */
    /* Costs kept along the way, at most 128 times 16384 of 2 bytes a tile; in the plain search a
     * byte for the branch of each position and edge, which takes both tiles' room. */
    uint8_t kept[KD_TRELLIS_PAIR][64 * 65536];
    uint8_t branch[8][KD_TRELLIS_AGAIN]; /* of those states */
};

/* All 65536 fp16 values of a codebook; made on first use, thread-safe. */
const uint16_t *kd_codebook_table(enum kd_codebook cb);

#endif
