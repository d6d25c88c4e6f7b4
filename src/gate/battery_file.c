/* Reading a battery and judging its turns. */
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "gate/battery.h"
#include "gate/span.h"

#include <string.h>

static int take_item(struct kd_battery_item *it, const char *text, size_t bytes, struct kd_span at,
                     const struct kd_json *v, struct kd_err *err)
{
    struct kd_span request;
    bool found;
    const struct kd_json *req = kd_json_get(v, "request");
    if (kd_json_kind(req) != KD_JSON_OBJECT)
        return kd_fail(err, KD_ECORRUPT, "'request' is not an object");
    it->parsed = req;
    it->expected = kd_json_text(kd_json_get(v, "expected_text"), &it->expected_bytes);
    if (!it->expected || !it->expected_bytes)
        return kd_fail(err, KD_ECORRUPT, "'expected_text' is not a text");
    it->call = kd_json_get(v, "expected_call");
    if (kd_json_kind(it->call) != KD_JSON_NULL && kd_json_kind(it->call) != KD_JSON_OBJECT)
        return kd_fail(err, KD_ECORRUPT, "'expected_call' is neither an object nor null");
    if (kd_span_member(text, bytes, at.begin, "request", &request, &found, err))
        return -1;
    it->request = text + request.begin;
    it->request_bytes = request.end - request.begin;
    const struct kd_json *think = kd_json_get(req, "thinking");
    it->thinking = !think || kd_json_kind(think) == KD_JSON_NULL || kd_json_true(think);
    return found ? 0 : kd_fail(err, KD_ECORRUPT, "'request' is missing");
}

int kd_battery_load(struct kd_battery_file *f, const char *path, int64_t limit, struct kd_err *err)
{
    const size_t most = (size_t)256 << 20;
    memset(f, 0, sizeof *f);
    kd_buf_init(&f->text, most);
    if (kd_file_read(&f->text, path, most, err) ||
        kd_json_parse(&f->root, f->text.data ? f->text.data : "", f->text.size_bytes, path, err) ||
        kd_sha256_of(f->text.data, f->text.size_bytes, f->sha256, err))
        goto failed;
    if (kd_json_kind(f->root) != KD_JSON_ARRAY || !kd_json_count(f->root)) {
        (void)kd_fail(err, KD_ECORRUPT, "%s: not an array of requests", path);
        goto failed;
    }
    f->count = (int64_t)kd_json_count(f->root);
    if (limit && limit < f->count)
        f->count = limit;
    if (kd_mem_zero(&f->item, f->count, sizeof *f->item, "battery", err))
        goto failed;
    size_t at = kd_span_skip_space(f->text.data, f->text.size_bytes, 0) + 1;
    for (int64_t i = 0; i < f->count; i++) {
        struct kd_span span;
        bool found;
        if (kd_span_item(f->text.data, f->text.size_bytes, &at, &span, &found, err) || !found ||
            take_item(&f->item[i], f->text.data, f->text.size_bytes, span,
                      kd_json_at(f->root, (size_t)i), err)) {
            (void)kd_wrap(err, "%s: request %lld", path, (long long)i);
            goto failed;
        }
    }
    return 0;
failed:
    kd_battery_file_release(f);
    return -1;
}

void kd_battery_file_release(struct kd_battery_file *f)
{
    kd_mem_free(f->item);
    if (f->root)
        kd_json_free(f->root);
    kd_buf_release(&f->text);
    memset(f, 0, sizeof *f);
}

static bool same(const struct kd_json *a, const struct kd_json *b)
{
    enum kd_json_kind ka = kd_json_kind(a), kb = kd_json_kind(b);
    bool na = ka == KD_JSON_INT || ka == KD_JSON_REAL, nb = kb == KD_JSON_INT || kb == KD_JSON_REAL;
    if (na && nb)
        return ka == KD_JSON_INT && kb == KD_JSON_INT
                   ? kd_json_int_value(a) == kd_json_int_value(b)
                   : kd_json_num_value(a) == kd_json_num_value(b);
    if (ka != kb)
        return false;
    if (ka == KD_JSON_BOOL)
        return kd_json_true(a) == kd_json_true(b);
    if (ka == KD_JSON_STR) {
        size_t n, m;
        const char *x = kd_json_text(a, &n), *y = kd_json_text(b, &m);
        return n == m && !memcmp(x, y, n);
    }
    if (kd_json_count(a) != kd_json_count(b))
        return false;
    if (ka == KD_JSON_ARRAY) {
        for (size_t i = 0; i < kd_json_count(a); i++)
            if (!same(kd_json_at(a, i), kd_json_at(b, i)))
                return false;
        return true;
    }
    void *iter = NULL;
    const char *key;
    struct kd_json *value;
    while (kd_json_next(a, &iter, &key, &value)) {
        const struct kd_json *other = kd_json_get(b, key);
        if (!other || !same(value, other))
            return false;
    }
    return true;
}

bool kd_battery_call_fits(const struct kd_json *expected, const struct kd_json *calls)
{
    if (!expected || kd_json_kind(expected) == KD_JSON_NULL)
        return kd_json_count(calls) == 0;
    const struct kd_json *got = kd_json_at(calls, 0);
    if (kd_json_count(calls) != 1)
        return false;
    const struct kd_json *wa = kd_json_get(expected, "arguments"),
                         *ga = kd_json_get(got, "arguments");
    return same(kd_json_get(expected, "name"), kd_json_get(got, "name")) && wa && ga &&
           same(wa, ga);
}

void kd_battery_flips(struct kd_flips *f, const bool *src, const bool *dst, int64_t count)
{
    memset(f, 0, sizeof *f);
    for (int64_t i = 0; i < count; i++) {
        f->src_right += src[i];
        f->dst_right += dst[i];
        f->lost += src[i] && !dst[i];
        f->gained += !src[i] && dst[i];
    }
    f->src_range = kd_stats_wilson(f->src_right, count);
    f->dst_range = kd_stats_wilson(f->dst_right, count);
    f->change = kd_stats_paired(f->lost, f->gained, count);
    f->probability = kd_stats_mcnemar(f->lost, f->gained);
}
