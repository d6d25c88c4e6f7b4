#include "base/json.h"

#include "base/file.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *in(const struct kd_json *v)
{
    return (json_t *)(uintptr_t)v;
}

static struct kd_json *ex(json_t *v)
{
    return (struct kd_json *)v;
}

int kd_json_parse(struct kd_json **root, const char *text, size_t bytes, const char *what,
                  struct kd_err *err)
{
    json_error_t je;
    json_t *v = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
    *root = ex(v);
    if (!v)
        return kd_fail(err, KD_ECORRUPT, "%s: not valid JSON at line %d, column %d: %s", what,
                       je.line, je.column, je.text);
    return 0;
}

int kd_json_load(struct kd_json **root, const char *path, size_t max_bytes, struct kd_err *err)
{
    struct kd_buf b;
    kd_buf_init(&b, max_bytes);
    *root = NULL;
    int rc = kd_file_read(&b, path, max_bytes, err);
    if (!rc)
        rc = kd_json_parse(root, b.data ? b.data : "", b.size_bytes, path, err);
    kd_buf_release(&b);
    return rc;
}

void kd_json_free(struct kd_json *root)
{
    json_decref(in(root));
}

enum kd_json_kind kd_json_kind(const struct kd_json *v)
{
    if (!v)
        return KD_JSON_NULL;
    switch (json_typeof(in(v))) {
    case JSON_OBJECT:
        return KD_JSON_OBJECT;
    case JSON_ARRAY:
        return KD_JSON_ARRAY;
    case JSON_STRING:
        return KD_JSON_STR;
    case JSON_INTEGER:
        return KD_JSON_INT;
    case JSON_REAL:
        return KD_JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return KD_JSON_BOOL;
    case JSON_NULL:
        break;
    }
    return KD_JSON_NULL;
}

size_t kd_json_count(const struct kd_json *v)
{
    return json_is_object(in(v)) ? json_object_size(in(v)) : json_array_size(in(v));
}

struct kd_json *kd_json_get(const struct kd_json *obj, const char *key)
{
    return ex(json_object_get(in(obj), key));
}

struct kd_json *kd_json_at(const struct kd_json *array, size_t i)
{
    return ex(json_array_get(in(array), i));
}

const char *kd_json_text(const struct kd_json *v, size_t *bytes)
{
    if (bytes)
        *bytes = json_string_length(in(v));
    return json_string_value(in(v));
}

bool kd_json_true(const struct kd_json *v)
{
    return json_is_true(in(v));
}

int64_t kd_json_int_value(const struct kd_json *v)
{
    return json_integer_value(in(v));
}

double kd_json_num_value(const struct kd_json *v)
{
    return json_number_value(in(v));
}

bool kd_json_next(const struct kd_json *obj, void **iter, const char **key, struct kd_json **value)
{
    *iter = *iter ? json_object_iter_next(in(obj), *iter) : json_object_iter(in(obj));
    if (!*iter)
        return false;
    *key = json_object_iter_key(*iter);
    *value = ex(json_object_iter_value(*iter));
    return true;
}

static struct kd_json *member(const struct kd_json *obj, const char *key)
{
    struct kd_json *v = kd_json_get(obj, key);
    return kd_json_kind(v) == KD_JSON_NULL ? NULL : v;
}

int kd_json_int(const struct kd_json *obj, const char *key, int64_t min, int64_t max, int64_t *out,
                struct kd_err *err)
{
    struct kd_json *v = member(obj, key);
    if (!v)
        return kd_fail(err, KD_ECORRUPT, "'%s' is missing", key);
    if (kd_json_kind(v) != KD_JSON_INT)
        return kd_fail(err, KD_ECORRUPT, "'%s' is not an integer", key);
    *out = kd_json_int_value(v);
    if (*out < min || *out > max)
        return kd_fail(err, KD_ECORRUPT, "'%s' is %lld, outside %lld to %lld", key, (long long)*out,
                       (long long)min, (long long)max);
    return 0;
}

int kd_json_int_or(const struct kd_json *obj, const char *key, int64_t min, int64_t max,
                   int64_t other, int64_t *out, struct kd_err *err)
{
    *out = other;
    return member(obj, key) ? kd_json_int(obj, key, min, max, out, err) : 0;
}

int kd_json_num(const struct kd_json *obj, const char *key, double min, double max, double *out,
                struct kd_err *err)
{
    struct kd_json *v = member(obj, key);
    if (!v)
        return kd_fail(err, KD_ECORRUPT, "'%s' is missing", key);
    if (!json_is_number(in(v)))
        return kd_fail(err, KD_ECORRUPT, "'%s' is not a number", key);
    *out = kd_json_num_value(v);
    if (!(*out >= min && *out <= max))
        return kd_fail(err, KD_ECORRUPT, "'%s' is %g, outside %g to %g", key, *out, min, max);
    return 0;
}

int kd_json_num_or(const struct kd_json *obj, const char *key, double min, double max, double other,
                   double *out, struct kd_err *err)
{
    *out = other;
    return member(obj, key) ? kd_json_num(obj, key, min, max, out, err) : 0;
}

int kd_json_str(const struct kd_json *obj, const char *key, const char **out, struct kd_err *err)
{
    *out = kd_json_text(kd_json_get(obj, key), NULL);
    if (!*out)
        return kd_fail(err, KD_ECORRUPT, "'%s' is %s", key,
                       kd_json_get(obj, key) ? "not a string" : "missing");
    return 0;
}

int kd_json_bool_or(const struct kd_json *obj, const char *key, bool other, bool *out,
                    struct kd_err *err)
{
    struct kd_json *v = member(obj, key);
    *out = other;
    if (!v)
        return 0;
    if (kd_json_kind(v) != KD_JSON_BOOL)
        return kd_fail(err, KD_ECORRUPT, "'%s' is not true or false", key);
    *out = kd_json_true(v);
    return 0;
}

struct kd_json *kd_json_new_object(void)
{
    return ex(json_object());
}

struct kd_json *kd_json_new_array(void)
{
    return ex(json_array());
}

int kd_json_set(struct kd_json *obj, const char *key, struct kd_json *value)
{
    return json_object_set_new(in(obj), key, in(value));
}

int kd_json_set_copy(struct kd_json *obj, const char *key, const struct kd_json *value)
{
    return json_object_set_new(in(obj), key, json_deep_copy(in(value)));
}

void kd_json_del(struct kd_json *obj, const char *key)
{
    json_object_del(in(obj), key);
}

int kd_json_dump(struct kd_buf *out, const struct kd_json *v, struct kd_err *err)
{
    struct kd_jw w = {.out = out};
    kd_jw_copy(&w, NULL, v);
    kd_buf_char(out, '\n');
    return kd_buf_ok(out, "JSON", err);
}

/* The bytes of one well-formed UTF-8 character at s, or 0. */
static size_t utf8_char(const unsigned char *s, size_t left)
{
    if (s[0] < 0x80)
        return 1;
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || n > left)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

/* How many bytes from s on stand for themselves in a string. */
static size_t plain_run(const unsigned char *s, size_t bytes)
{
    size_t n = 0;
    while (n < bytes && s[n] >= 0x20 && s[n] < 0x80 && s[n] != '"' && s[n] != '\\')
        n++;
    return n;
}

void kd_json_quote(struct kd_buf *out, const char *text, size_t bytes)
{
    const unsigned char *s = (const unsigned char *)text;
    kd_buf_char(out, '"');
    for (size_t i = 0; i < bytes;) {
        size_t n = plain_run(s + i, bytes - i);
        if (n) {
            kd_buf_add(out, s + i, n);
            i += n;
            continue;
        }
        n = utf8_char(s + i, bytes - i);
        if (!n) {
            kd_buf_str(out, "\xef\xbf\xbd");
            i++;
            continue;
        }
        if (s[i] == '"' || s[i] == '\\')
            kd_buf_printf(out, "\\%c", s[i]);
        else if (s[i] == '\n')
            kd_buf_str(out, "\\n");
        else if (s[i] == '\r')
            kd_buf_str(out, "\\r");
        else if (s[i] == '\t')
            kd_buf_str(out, "\\t");
        else if (s[i] < 0x20)
            kd_buf_printf(out, "\\u%04x", s[i]);
        else
            kd_buf_add(out, s + i, n);
        i += n;
    }
    kd_buf_char(out, '"');
}

/* Levels beyond has_item fail the buffer; they are still counted, so that opens and closes match.
 */
static bool *level(struct kd_jw *w)
{
    static const int most = (int)(sizeof w->has_item / sizeof *w->has_item);
    return w->depth < most ? &w->has_item[w->depth] : NULL;
}

static void new_line(struct kd_jw *w)
{
    kd_buf_char(w->out, '\n');
    for (int i = 0; i < w->depth; i++)
        kd_buf_str(w->out, "  ");
}

static void lead(struct kd_jw *w, const char *key)
{
    bool *has = level(w);
    if (!has)
        return;
    if (*has)
        kd_buf_str(w->out, w->compact ? ", " : ",");
    *has = true;
    if (!w->compact && w->depth)
        new_line(w);
    if (key) {
        kd_json_quote(w->out, key, strlen(key));
        kd_buf_str(w->out, ": ");
    }
}

void kd_jw_open(struct kd_jw *w, const char *key, char bracket)
{
    lead(w, key);
    kd_buf_char(w->out, bracket);
    w->depth++;
    bool *has = level(w);
    if (has)
        *has = false;
    else
        w->out->failed = true;
}

void kd_jw_close(struct kd_jw *w, char bracket)
{
    const bool *has = level(w);
    bool any = has && *has;
    w->depth--;
    if (any && !w->compact)
        new_line(w);
    kd_buf_char(w->out, bracket);
}

void kd_jw_strn(struct kd_jw *w, const char *key, const char *value, size_t bytes)
{
    lead(w, key);
    kd_json_quote(w->out, value, bytes);
}

void kd_jw_str(struct kd_jw *w, const char *key, const char *value)
{
    kd_jw_strn(w, key, value, strlen(value));
}

void kd_jw_int(struct kd_jw *w, const char *key, int64_t value)
{
    lead(w, key);
    kd_buf_printf(w->out, "%lld", (long long)value);
}

void kd_jw_num(struct kd_jw *w, const char *key, double value)
{
    lead(w, key);
    if (!isfinite(value)) {
        kd_buf_str(w->out, "null");
        return;
    }
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    kd_buf_str(w->out, text);
    if (!strpbrk(text, ".e"))
        kd_buf_str(w->out, ".0");
}

void kd_jw_bool(struct kd_jw *w, const char *key, bool value)
{
    lead(w, key);
    kd_buf_str(w->out, value ? "true" : "false");
}

void kd_jw_null(struct kd_jw *w, const char *key)
{
    lead(w, key);
    kd_buf_str(w->out, "null");
}

void kd_jw_copy(struct kd_jw *w, const char *key, const struct kd_json *v)
{
    size_t bytes;
    const char *text, *name;
    void *iter = NULL;
    struct kd_json *item;
    switch (kd_json_kind(v)) {
    case KD_JSON_NULL:
        kd_jw_null(w, key);
        return;
    case KD_JSON_BOOL:
        kd_jw_bool(w, key, kd_json_true(v));
        return;
    case KD_JSON_INT:
        kd_jw_int(w, key, kd_json_int_value(v));
        return;
    case KD_JSON_REAL:
        kd_jw_num(w, key, kd_json_num_value(v));
        return;
    case KD_JSON_STR:
        text = kd_json_text(v, &bytes);
        kd_jw_strn(w, key, text, bytes);
        return;
    case KD_JSON_ARRAY:
        kd_jw_open(w, key, '[');
        for (size_t i = 0; i < kd_json_count(v); i++)
            kd_jw_copy(w, NULL, kd_json_at(v, i));
        kd_jw_close(w, ']');
        return;
    case KD_JSON_OBJECT:
        kd_jw_open(w, key, '{');
        while (kd_json_next(v, &iter, &name, &item))
            kd_jw_copy(w, name, item);
        kd_jw_close(w, '}');
        return;
    }
}
