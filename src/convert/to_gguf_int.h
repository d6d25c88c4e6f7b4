/* Pieces of to_gguf; nothing else includes this. */
#ifndef KD_CONVERT_TO_GGUF_INT_H
#define KD_CONVERT_TO_GGUF_INT_H

#include "convert/to_gguf.h"
#include "fmt/gguf.h"

/* Every key but those of a split set. */
int kd_to_gguf_keys(struct kd_gguf_plan *p, const struct kd_k3_cfg *cfg, const char *src,
                    const struct kd_to_gguf *set, int file_type, struct kd_err *err) KD_MUST;
/* The last component of a path, without slashes at its end. */
void kd_to_gguf_name(char *out, size_t size, const char *path);

/* Rows [r0, r0 + R) of a matrix in another type, each to whole blocks. */
int kd_to_gguf_rows(const struct kd_run *run, const struct kd_mat *m, int64_t r0, int64_t R,
                    int type, uint8_t *out, struct kd_err *err) KD_MUST;

#endif
