/* Which matrices of K3 a conversion quantizes and at what rate (EXL3 specification, Decisions 1 to
 * 3). `convert` goes by it and `plan` foretells it. */
#ifndef KD_MODEL_K3_QUANT_H
#define KD_MODEL_K3_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rates in sixteenths of a bit. */
enum { KD_RATE16_MIN = 16, KD_RATE16_MAX = 128 };

/* The nearest rate to so many bits, inside the limits. */
unsigned kd_k3_rate16(double bits);
/* The rate of a matrix outside the experts by its row ("self_attn.o_proj", n bytes), for a trunk of
 * so many bits; 0: it stays as stored, as all do at trunk_bpw <= 0. */
unsigned kd_k3_trunk_rate16(const char *row, size_t n, double trunk_bpw);
/* Whether padding to 128 adds at most 25 %; what it would swell more is kept. */
bool kd_k3_pads_well(int64_t rows, int64_t cols);

#endif
