/* Cuts text into the pieces that BPE works on: Kimi's pattern as a linear scanner. Pure functions.
 */
#ifndef KD_TEXT_SPLIT_H
#define KD_TEXT_SPLIT_H

#include "text/uclass.h"

/* Bytes up to the next cut that the reference makes before its pattern: after 400,000 characters
 * and inside runs of more than 25,000 characters that are all space or all not. left >= 1, result
 * >= 1. `chars` counts the characters since the last cut at 400,000; starts as 0, kept by the
 * caller. */
size_t kd_split_chunk(const unsigned char *s, size_t left, int64_t *chars);
/* Bytes of the first piece of a chunk; left >= 1, result >= 1. */
size_t kd_split_piece(const struct kd_uclass *u, const unsigned char *s, size_t left);

#endif
