/* Typed values of a parsed head. */
#include "fmt/gguf.h"

#include <string.h>

/* Bytes of whole numbers, 0 for the rest; negative where signed. */
static const int whole_width[KD_GV_COUNT] = {1, -1, 2, -2, 4, -4, 0, 1, 0, 0, 8, -8, 0};

int kd_gguf_item(const struct kd_gguf_kv *kv, int64_t i, int64_t *out)
{
    int width = whole_width[kv->item], bytes = width < 0 ? -width : width;
    uint64_t v = 0;
    if (i < 0 || i >= kv->count || !width)
        return -1;
    memcpy(&v, kv->value + i * bytes, (size_t)bytes);
    if (kv->item == KD_GV_BOOL)
        v = v != 0;
    if (width > 0) {
        *out = (int64_t)v;
        return v > INT64_MAX ? -1 : 0;
    }
    int shift = 64 - 8 * bytes;
    *out = (int64_t)(v << shift) >> shift;
    return 0;
}

bool kd_gguf_next_str(const struct kd_gguf_kv *kv, int64_t *at, const char **text, int64_t *bytes)
{
    uint64_t n;
    if (kv->type != KD_GV_ARRAY || kv->item != KD_GV_STR || *at >= kv->value_bytes)
        return false;
    memcpy(&n, kv->value + *at, 8);
    *text = (const char *)kv->value + *at + 8;
    *bytes = (int64_t)n;
    *at += 8 + *bytes;
    return true;
}

static int missing(const char *key, struct kd_err *err)
{
    return kd_fail(err, KD_ECORRUPT, "key '%s' is missing", key);
}

int kd_gguf_int(const struct kd_gguf *g, const char *key, int64_t min, int64_t max, int64_t *out,
                struct kd_err *err)
{
    const struct kd_gguf_kv *kv = kd_gguf_key(g, key);
    if (!kv)
        return missing(key, err);
    if (kv->type == KD_GV_ARRAY || kd_gguf_item(kv, 0, out))
        return kd_fail(err, KD_ECORRUPT, "key '%s' is a %s, not a whole number below 2^63", key,
                       kd_gguf_value_name(kv->type));
    if (*out < min || *out > max)
        return kd_fail(err, KD_ECORRUPT, "key '%s': %lld is outside %lld to %lld", key,
                       (long long)*out, (long long)min, (long long)max);
    return 0;
}

int kd_gguf_int_or(const struct kd_gguf *g, const char *key, int64_t min, int64_t max,
                   int64_t other, int64_t *out, struct kd_err *err)
{
    *out = other;
    return kd_gguf_key(g, key) ? kd_gguf_int(g, key, min, max, out, err) : 0;
}

int kd_gguf_num(const struct kd_gguf *g, const char *key, double *out, struct kd_err *err)
{
    const struct kd_gguf_kv *kv = kd_gguf_key(g, key);
    int64_t whole;
    float f;
    if (!kv)
        return missing(key, err);
    if (kv->type == KD_GV_F32) {
        memcpy(&f, kv->value, sizeof f);
        *out = f;
    } else if (kv->type == KD_GV_F64) {
        memcpy(out, kv->value, sizeof *out);
    } else if (kv->type != KD_GV_ARRAY && !kd_gguf_item(kv, 0, &whole)) {
        *out = (double)whole;
    } else {
        return kd_fail(err, KD_ECORRUPT, "key '%s' is a %s, not a number", key,
                       kd_gguf_value_name(kv->type));
    }
    /* Also refuses NaN. */
    if (!(*out >= -1e300 && *out <= 1e300))
        return kd_fail(err, KD_ECORRUPT, "key '%s' is not a finite number", key);
    return 0;
}

int kd_gguf_num_or(const struct kd_gguf *g, const char *key, double other, double *out,
                   struct kd_err *err)
{
    *out = other;
    return kd_gguf_key(g, key) ? kd_gguf_num(g, key, out, err) : 0;
}

int kd_gguf_bool_or(const struct kd_gguf *g, const char *key, bool other, bool *out,
                    struct kd_err *err)
{
    const struct kd_gguf_kv *kv = kd_gguf_key(g, key);
    *out = other;
    if (!kv)
        return 0;
    if (kv->type != KD_GV_BOOL)
        return kd_fail(err, KD_ECORRUPT, "key '%s' is a %s, not a bool", key,
                       kd_gguf_value_name(kv->type));
    *out = *kv->value != 0;
    return 0;
}

int kd_gguf_str_or(const struct kd_gguf *g, const char *key, const char **text, int64_t *bytes,
                   struct kd_err *err)
{
    const struct kd_gguf_kv *kv = kd_gguf_key(g, key);
    *text = NULL;
    *bytes = 0;
    if (!kv)
        return 0;
    if (kv->type != KD_GV_STR)
        return kd_fail(err, KD_ECORRUPT, "key '%s' is a %s, not a string", key,
                       kd_gguf_value_name(kv->type));
    *text = (const char *)kv->value;
    *bytes = kv->value_bytes;
    return 0;
}
