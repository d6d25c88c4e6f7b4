/* States of a tile to and from its packed ring (docs/formats/exl3.md). */
#ifndef KD_CODEC_EXL3_PACK_H
#define KD_CODEC_EXL3_PACK_H

#include "num/trellis_step.h"

#include <stdint.h>

/* 256 states (only the low bits, each position's symbol, are read) to a tile of
 * kd_rate_tile_bytes(rate) bytes. */
void kd_exl3_pack(const uint16_t states[256], struct kd_rate rate, uint8_t *tile);
void kd_exl3_unpack(const uint8_t *tile, struct kd_rate rate, uint16_t states[256]);

#endif
