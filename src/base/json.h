/* JSON. This folder is the one user of jansson; others see struct kd_json, which is never
 * NULL-checked away: the getters say the path of what is wrong. Parsing refuses duplicate keys,
 * more than `depth_max` levels and text over the caller's limit. For headers and indexes of 100 MB
 * use base/jscan.h, which streams.
 *
 *     struct kd_json *root;
 *     if (kd_json_parse(&root, text, bytes, "config.json", err)) ...
 *     if (kd_json_int(root, "hidden_size", 1, 1 << 20, &hidden, err)) ...
 *     kd_json_free(root);
 *
 * Values got from a document are borrowed and live as long as it. Not thread-safe per document. */
#ifndef KD_BASE_JSON_H
#define KD_BASE_JSON_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kd_json;

enum kd_json_kind {
    KD_JSON_NULL,
    KD_JSON_BOOL,
    KD_JSON_INT,
    KD_JSON_REAL,
    KD_JSON_STR,
    KD_JSON_ARRAY,
    KD_JSON_OBJECT
};

int kd_json_parse(struct kd_json **root, const char *text, size_t bytes, const char *what,
                  struct kd_err *err) KD_MUST;
int kd_json_load(struct kd_json **root, const char *path, size_t max_bytes,
                 struct kd_err *err) KD_MUST;
void kd_json_free(struct kd_json *root);

enum kd_json_kind kd_json_kind(const struct kd_json *v);
size_t kd_json_count(const struct kd_json *v); /* items of an array or object, else 0 */
/* NULL when absent or not an object/array. */
struct kd_json *kd_json_get(const struct kd_json *obj, const char *key);
struct kd_json *kd_json_at(const struct kd_json *array, size_t i);
/* NULL unless a string; bytes may be NULL. */
const char *kd_json_text(const struct kd_json *v, size_t *bytes);
bool kd_json_true(const struct kd_json *v); /* true only for true */
int64_t kd_json_int_value(const struct kd_json *v);
double kd_json_num_value(const struct kd_json *v);
/* Walks an object in file order: start with *iter = NULL, ends with false. */
bool kd_json_next(const struct kd_json *obj, void **iter, const char **key, struct kd_json **value);

/* Typed members with bounds; the error names the key. The _or forms take a default when the key is
 * absent or null. */
int kd_json_int(const struct kd_json *obj, const char *key, int64_t min, int64_t max, int64_t *out,
                struct kd_err *err) KD_MUST;
int kd_json_int_or(const struct kd_json *obj, const char *key, int64_t min, int64_t max,
                   int64_t other, int64_t *out, struct kd_err *err) KD_MUST;
int kd_json_num(const struct kd_json *obj, const char *key, double min, double max, double *out,
                struct kd_err *err) KD_MUST;
int kd_json_num_or(const struct kd_json *obj, const char *key, double min, double max, double other,
                   double *out, struct kd_err *err) KD_MUST;
int kd_json_str(const struct kd_json *obj, const char *key, const char **out,
                struct kd_err *err) KD_MUST;
int kd_json_bool_or(const struct kd_json *obj, const char *key, bool other, bool *out,
                    struct kd_err *err) KD_MUST;

/* Editing and building a document (config.json): returns 0 or -1 (out of memory). */
struct kd_json *kd_json_new_object(void);
struct kd_json *kd_json_new_array(void);
int kd_json_set(struct kd_json *obj, const char *key,
                struct kd_json *value) KD_MUST; /* takes value */
int kd_json_set_copy(struct kd_json *obj, const char *key, const struct kd_json *value) KD_MUST;
void kd_json_del(struct kd_json *obj, const char *key);
/* Two-space indent, keys in insertion order, non-ASCII kept, newline at the end. */
int kd_json_dump(struct kd_buf *out, const struct kd_json *v, struct kd_err *err) KD_MUST;

/* A streaming writer, for results and files. Numbers print so that they read back exactly; NaN and
 * infinity print as null. Level 0 indents by two spaces; compact writes one line.
 *
 *     struct kd_jw w = {.out = &buf};
 *     kd_jw_open(&w, NULL, '{');  kd_jw_int(&w, "layers", 93);  kd_jw_close(&w, '}');
 *
 * key is NULL inside arrays and at the top. Failures collect in the kd_buf. */
struct kd_jw {
    struct kd_buf *out;
    bool compact;
    int depth;
    bool has_item[64];
};
void kd_jw_open(struct kd_jw *w, const char *key, char bracket);
void kd_jw_close(struct kd_jw *w, char bracket);
void kd_jw_str(struct kd_jw *w, const char *key, const char *value);
void kd_jw_strn(struct kd_jw *w, const char *key, const char *value, size_t bytes);
void kd_jw_int(struct kd_jw *w, const char *key, int64_t value);
void kd_jw_num(struct kd_jw *w, const char *key, double value);
void kd_jw_bool(struct kd_jw *w, const char *key, bool value);
void kd_jw_null(struct kd_jw *w, const char *key);
void kd_jw_copy(struct kd_jw *w, const char *key, const struct kd_json *v); /* a parsed value */
/* A quoted JSON string with escapes; invalid UTF-8 becomes U+FFFD. */
void kd_json_quote(struct kd_buf *out, const char *text, size_t bytes);

#endif
