/* Reading tests/data/vectors/exl3-vectors.json. */
#ifndef KD_TEST_EXL3_VECTORS_H
#define KD_TEST_EXL3_VECTORS_H

#include "base/json.h"
#include "num/trellis_step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const codebook_names[3] = {"3inst", "mcg", "mul1"};

static inline struct kd_json *vectors_open(void)
{
    const char *dir = getenv("KONDENSE_TEST_DATA");
    struct kd_json *root = NULL;
    struct kd_err err = {0};
    char path[1024];

    snprintf(path, sizeof path, "%s/vectors/exl3-vectors.json", dir ? dir : "tests/data");
    if (kd_json_load(&root, path, 1 << 24, &err))
        fail_msg("%s", err.msg);
    return root;
}

/* `count` words of four hex digits. */
static inline void hex_words(const struct kd_json *text, uint16_t *out, size_t count)
{
    const char *s = kd_json_text(text, NULL);

    assert_non_null(s);
    for (size_t i = 0; i < count; i++) {
        char *end;
        out[i] = (uint16_t)strtoul(s, &end, 16);
        assert_true(end == s + 4);
        s = *end == ' ' ? end + 1 : end;
    }
    assert_true(*s == 0);
}

static inline void words_bytes(const uint16_t *words, size_t count, uint8_t *out)
{
    for (size_t i = 0; i < count; i++) {
        out[2 * i] = (uint8_t)words[i];
        out[2 * i + 1] = (uint8_t)(words[i] >> 8);
    }
}

static inline int64_t vectors_int(const struct kd_json *obj, const char *key)
{
    const struct kd_json *v = kd_json_get(obj, key);
    assert_non_null(v);
    return kd_json_int_value(v);
}

/* The vectors' own generator of code words. */
static inline uint16_t vectors_word(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return (uint16_t)(*x >> 16);
}

#endif
