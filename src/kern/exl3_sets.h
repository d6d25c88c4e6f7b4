/* EXL3 kernels that other files of this folder put into their tables. */
#ifndef KD_KERN_EXL3_SETS_H
#define KD_KERN_EXL3_SETS_H

#include "kern/kern.h"

void kd_mm_exl3_ref(const struct kd_exl3_block *b, const float *x, int64_t ldx, int64_t T, float *y,
                    int64_t ldy);

void kd_trellis_decode_ref(const uint8_t *tile, struct kd_rate rate, enum kd_codebook cb,
                           float out[256]);

#endif
