/* Growable bytes with a mandatory maximum. Always NUL-terminated once something was added, so
 * `data` can be used as a C string. An add past the maximum or a failed allocation sets `failed`,
 * and every later add does nothing: check once at the end with kd_buf_ok.
 *
 *     struct kd_buf b;
 *     kd_buf_init(&b, 1 << 20);
 *     kd_buf_printf(&b, "%d layers", n);
 *     ...
 *     kd_buf_release(&b);
 */
#ifndef KD_BASE_BUF_H
#define KD_BASE_BUF_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kd_buf {
    char *data;
    size_t size_bytes; /* used, without the NUL */
    size_t cap_bytes;
    size_t max_bytes;
    bool failed;
};

void kd_buf_init(struct kd_buf *b, size_t max_bytes);
void kd_buf_release(struct kd_buf *b);
void kd_buf_clear(struct kd_buf *b); /* empties it and keeps the memory */
void kd_buf_add(struct kd_buf *b, const void *data, size_t bytes);
void kd_buf_str(struct kd_buf *b, const char *s);
void kd_buf_char(struct kd_buf *b, char c);
void kd_buf_printf(struct kd_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* `bytes` more bytes at the end for the caller to fill, or NULL. */
void *kd_buf_grow(struct kd_buf *b, size_t bytes);
/* 0, or -1 with "WHAT: larger than its limit" in err. */
int kd_buf_ok(const struct kd_buf *b, const char *what, struct kd_err *err) KD_MUST;

#endif
