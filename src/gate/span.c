#include "gate/span.h"

#include "base/json.h"

#include <string.h>

size_t kd_span_skip_space(const char *text, size_t bytes, size_t at)
{
    while (at < bytes &&
           (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r'))
        at++;
    return at;
}

static int broken(size_t at, struct kd_err *err)
{
    return kd_fail(err, KD_ECORRUPT, "JSON at byte %zu: not what was expected", at);
}

/* From an opening quote to after the closing one; 0 when it never closes. */
static size_t skip_string(const char *text, size_t bytes, size_t at)
{
    for (at++; at < bytes; at++) {
        if (text[at] == '\\')
            at++;
        else if (text[at] == '"')
            return at + 1;
    }
    return 0;
}

/* From a value's first byte to after its last; 0 when it is broken. */
static size_t skip_value(const char *text, size_t bytes, size_t at)
{
    int depth = 0;
    while (at < bytes) {
        char c = text[at];
        if (c == '"') {
            at = skip_string(text, bytes, at);
            if (!at || !depth)
                return at;
            continue;
        }
        if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']') && depth && !--depth)
            return at + 1;
        else if (!depth && (c == ',' || c == '}' || c == ']' || c == ' ' || c == '\n'))
            return at;
        at++;
    }
    return depth ? 0 : at;
}

/* Whether a name in quotes is the key, however it is spelled. */
static bool is_key(const char *name, size_t bytes, const char *key)
{
    size_t key_bytes = strlen(key);
    if (!memchr(name, '\\', bytes))
        return bytes - 2 == key_bytes && !memcmp(name + 1, key, key_bytes);
    struct kd_json *v;
    size_t n;
    if (kd_json_parse(&v, name, bytes, "name", NULL))
        return false;
    const char *text = kd_json_text(v, &n);
    bool is = text && n == key_bytes && !memcmp(text, key, n);
    kd_json_free(v);
    return is;
}

int kd_span_member(const char *text, size_t bytes, size_t at, const char *key, struct kd_span *span,
                   bool *found, struct kd_err *err)
{
    *found = false;
    if (at >= bytes || text[at] != '{')
        return broken(at, err);
    at = kd_span_skip_space(text, bytes, at + 1);
    while (at < bytes && text[at] != '}') {
        size_t end = text[at] == '"' ? skip_string(text, bytes, at) : 0;
        size_t colon = end ? kd_span_skip_space(text, bytes, end) : 0;
        if (!end || colon >= bytes || text[colon] != ':')
            return broken(at, err);
        span->begin = kd_span_skip_space(text, bytes, colon + 1);
        span->end = skip_value(text, bytes, span->begin);
        if (span->end <= span->begin)
            return broken(span->begin, err);
        if (is_key(text + at, end - at, key)) {
            *found = true;
            return 0;
        }
        at = kd_span_skip_space(text, bytes, span->end);
        if (at < bytes && text[at] == ',')
            at = kd_span_skip_space(text, bytes, at + 1);
        else if (at < bytes && text[at] != '}')
            return broken(at, err);
    }
    if (at >= bytes)
        return broken(at, err);
    span->begin = span->end = at;
    return 0;
}

int kd_span_item(const char *text, size_t bytes, size_t *at, struct kd_span *item, bool *found,
                 struct kd_err *err)
{
    size_t i = kd_span_skip_space(text, bytes, *at);
    if (i < bytes && text[i] == ',')
        i = kd_span_skip_space(text, bytes, i + 1);
    if (i >= bytes)
        return broken(i, err);
    *found = text[i] != ']';
    if (!*found)
        return 0;
    item->begin = i;
    item->end = skip_value(text, bytes, i);
    if (item->end <= item->begin)
        return broken(i, err);
    *at = item->end;
    return 0;
}
