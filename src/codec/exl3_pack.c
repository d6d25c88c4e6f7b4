#include "codec/exl3_pack.h"

#include "num/exl3_ring.h"

void kd_exl3_pack(const uint16_t states[256], struct kd_rate rate, uint8_t *tile)
{
    kd_ring_pack(rate, states, tile);
}

void kd_exl3_unpack(const uint8_t *tile, struct kd_rate rate, uint16_t states[256])
{
    kd_ring_states(tile, rate, states);
}
