/* Decoders of gguf_decode_iq.c for the table in gguf_decode.c; nothing else includes this. */
#ifndef KD_FMT_GGUF_DECODE_H
#define KD_FMT_GGUF_DECODE_H

#include "fmt/gguf_block.h"

void kd_iq2_xxs_decode(const uint8_t *b, int64_t count, float *out);
void kd_iq2_xs_decode(const uint8_t *b, int64_t count, float *out);
void kd_iq2_s_decode(const uint8_t *b, int64_t count, float *out);
void kd_iq3_xxs_decode(const uint8_t *b, int64_t count, float *out);
void kd_iq3_s_decode(const uint8_t *b, int64_t count, float *out);
void kd_iq1_s_decode(const uint8_t *b, int64_t count, float *out);
void kd_iq1_m_decode(const uint8_t *b, int64_t count, float *out);
void kd_iq4_nl_decode(const uint8_t *b, int64_t count, float *out);
void kd_iq4_xs_decode(const uint8_t *b, int64_t count, float *out);

#endif
