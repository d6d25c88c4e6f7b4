/* `kondense convert --to gguf`, apart from its options. */
#ifndef KD_CMD_CONVERT_GGUF_H
#define KD_CMD_CONVERT_GGUF_H

#include "convert/to_gguf.h"

/* threads 0: all CPUs; json: a file, or NULL. */
int kd_cmd_convert_gguf(const char *src, const char *dst, const struct kd_to_gguf *set,
                        int64_t threads, const char *json, struct kd_err *err) KD_MUST;

#endif
