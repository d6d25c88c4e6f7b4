#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kd_buf_init(struct kd_buf *b, size_t max_bytes)
{
    memset(b, 0, sizeof *b);
    b->max_bytes = max_bytes;
}

void kd_buf_release(struct kd_buf *b)
{
    free(b->data);
    memset(b, 0, sizeof *b);
}

void kd_buf_clear(struct kd_buf *b)
{
    b->size_bytes = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = 0;
}

void *kd_buf_grow(struct kd_buf *b, size_t bytes)
{
    if (b->failed)
        return NULL;
    if (bytes > b->max_bytes || b->size_bytes > b->max_bytes - bytes) {
        b->failed = true;
        return NULL;
    }
    size_t need = b->size_bytes + bytes + 1;
    if (need > b->cap_bytes) {
        size_t cap = b->cap_bytes ? b->cap_bytes : 64;
        while (cap < need)
            cap += cap / 2 + 64;
        char *data = realloc(b->data, cap);
        if (!data) {
            b->failed = true;
            return NULL;
        }
        b->data = data;
        b->cap_bytes = cap;
    }
    char *at = b->data + b->size_bytes;
    b->size_bytes += bytes;
    b->data[b->size_bytes] = 0;
    return at;
}

void kd_buf_add(struct kd_buf *b, const void *data, size_t bytes)
{
    void *at = kd_buf_grow(b, bytes);
    if (at && bytes)
        memcpy(at, data, bytes);
}

void kd_buf_str(struct kd_buf *b, const char *s)
{
    kd_buf_add(b, s, strlen(s));
}

void kd_buf_char(struct kd_buf *b, char c)
{
    kd_buf_add(b, &c, 1);
}

void kd_buf_printf(struct kd_buf *b, const char *fmt, ...)
{
    char small[256];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n < 0) {
        b->failed = true;
        return;
    }
    if ((size_t)n < sizeof small) {
        kd_buf_add(b, small, (size_t)n);
        return;
    }
    char *at = kd_buf_grow(b, (size_t)n);
    if (!at)
        return;
    va_start(ap, fmt);
    vsnprintf(at, (size_t)n + 1, fmt, ap);
    va_end(ap);
}

int kd_buf_ok(const struct kd_buf *b, const char *what, struct kd_err *err)
{
    if (!b->failed)
        return 0;
    return kd_fail(err, KD_ENOMEM, "%s: larger than its limit of %zu bytes, or out of memory", what,
                   b->max_bytes);
}
