/* EXL3 kernels that other files of this folder put into their tables. */
#ifndef KD_KERN_EXL3_SETS_H
#define KD_KERN_EXL3_SETS_H

#include "kern/kern.h"

void kd_mm_exl3_ref(const struct kd_exl3_block *b, const float *x, int64_t ldx, int64_t T, float *y,
                    int64_t ldy);

void kd_trellis_decode_ref(const uint8_t *tile, struct kd_rate rate, enum kd_codebook cb,
                           float out[256]);
void kd_mv_exl3_int8_ref(const struct kd_exl3_block *b, const int8_t *q, float scale, float *y);
void kd_exl3_set_products_avx2(struct kd_kern *k);
void kd_exl3_set_products_avx512(struct kd_kern *k);
void kd_exl3_set_products_avx512fp16(struct kd_kern *k);
void kd_exl3_set_products_neon(struct kd_kern *k);

/* Byte sums are taken less this, about their mean: an odd 1,021 of them, from 0 to 1,020. */
enum { KD_EXL3_SUM_LESS = 510 };

/* An output from its sum of q * byte sum and the sum of all q: exact integers, three roundings. */
static inline float kd_exl3_int8_sum(int64_t sum, int64_t total, float scale)
{
    return (float)(887 * sum - 452608 * total) * (scale * 7.62939453125e-6f);
}

#endif
