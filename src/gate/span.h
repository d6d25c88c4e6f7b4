/* Finding a value's text inside JSON text, to keep the spelling of what is copied or left alone. */
#ifndef KD_GATE_SPAN_H
#define KD_GATE_SPAN_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct kd_span {
    size_t begin, end; /* of the value */
};
/* The value of `key` in the object that starts at text[at]; at is past white space. *found false
 * and span->begin = span->end = the offset of the closing brace when there is none. -1 on broken
 * JSON. */
int kd_span_member(const char *text, size_t bytes, size_t at, const char *key, struct kd_span *span,
                   bool *found, struct kd_err *err) KD_MUST;
/* Offset of the next item of an array: pass the offset after '[' or after the item before; returns
 * true with the item's span, false at ']'. */
int kd_span_item(const char *text, size_t bytes, size_t *at, struct kd_span *item, bool *found,
                 struct kd_err *err) KD_MUST;
size_t kd_span_skip_space(const char *text, size_t bytes, size_t at);

#endif
