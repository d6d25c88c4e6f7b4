/* How GPT-2's vocabularies, and so GGUF's, write a token's bytes as text: each byte as one
 * character, printable Latin-1 as itself, the other 68 as U+0100 and up. */
#ifndef KD_TEXT_GPT2_H
#define KD_TEXT_GPT2_H

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

void kd_gpt2_put(struct kd_buf *out, const uint8_t *bytes, size_t count);
/* Appends the bytes; -1 when a character stands for none. */
int kd_gpt2_get(struct kd_buf *out, const char *text, size_t bytes) KD_MUST;

#endif
