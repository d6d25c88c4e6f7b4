/* Decoding and encoding ggml's blocks. Decoders give ggml's own float values bit for bit (plain C
 * path, no contraction); encoders give the bytes of its reference encoders. Thread-safe. */
#ifndef KD_FMT_GGUF_BLOCK_H
#define KD_FMT_GGUF_BLOCK_H

#include "base/err.h"
#include "num/block.h"

/* NULL for types that hold no weights (integers, Q8_1, Q8_K) or are unknown. */
const struct kd_block_format *kd_gguf_format(int64_t type);

struct kd_gguf_encoded {
    int64_t blocks;
    int64_t zero_scale; /* blocks whose scale is 0 although not all their values are */
};
/* n values, whole blocks, as F32, F16, BF16, Q8_0, Q1_0 or MXFP4. Values that are not finite and
 * scales that overflow are refused with the value's index. stats may be NULL; it adds up. */
int kd_gguf_encode(int64_t type, const float *x, int64_t n, uint8_t *out,
                   struct kd_gguf_encoded *stats, struct kd_err *err) KD_MUST;
/* The nibbles of 32 values as safetensors checkpoints pack them (element 2j low, 2j + 1 high) and
 * their scale byte as one block of MXFP4: nothing is lost. */
void kd_gguf_mxfp4_from_pairs(const uint8_t *pairs, uint8_t scale, uint8_t *block);

/* For tests: entry i (4 or 8 values) of a codebook; the format's name says which. */
int kd_gguf_grid(int64_t type, int i, int8_t out[8]);

#endif
