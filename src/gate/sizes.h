/* Bits and bytes of a checkpoint by kind of tensor, from the tensors themselves. */
#ifndef KD_GATE_SIZES_H
#define KD_GATE_SIZES_H

#include "fmt/ckpt.h"

/* Experts: routed experts. Trunk: everything else inside a layer. Ends: norms and mixing vectors
 * outside layers. Vision: tower and projector. */
enum kd_part_kind {
    KD_PART_EXPERTS,
    KD_PART_TRUNK,
    KD_PART_HEAD,
    KD_PART_EMBED,
    KD_PART_ENDS,
    KD_PART_VISION,
    KD_PART_COUNT
};
const char *kd_part_name(enum kd_part_kind p);

struct kd_sizes {
    int64_t bytes[KD_PART_COUNT];   /* of tensors, scales and vectors included */
    int64_t weights[KD_PART_COUNT]; /* EXL3: of the padded matrix */
    double k[KD_PART_COUNT]; /* average bits a weight of its quantized matrices, of its stored ones
                                where none is quantized; codes alone (a GGUF's blocks: with their
                                scales), 0 without any matrix */
    int64_t file_bytes;      /* of all shards, headers included */
};
int kd_sizes_of(const struct kd_ckpt *ck, struct kd_sizes *out, struct kd_err *err) KD_MUST;
int64_t kd_sizes_weights(const struct kd_sizes *s); /* all parts */

#endif
