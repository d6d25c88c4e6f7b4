/* base/jscan: tokens, exact integers, strings, limits, and that windows of any size change nothing.
 */
#include "base/jscan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static const struct kd_jscan_limits wide = {.depth = 8, .string_bytes = 64, .total_bytes = 1 << 20};

struct pieces {
    const char *at;
    size_t left, step;
};

static int fill(void *ctx, const uint8_t **data, size_t *bytes, struct kd_err *err)
{
    struct pieces *p = ctx;
    (void)err;
    size_t n = p->left < p->step ? p->left : p->step;
    *data = (const uint8_t *)p->at;
    *bytes = n;
    if (n)
        p->at += n;
    p->left -= n;
    return 0;
}

/* The tokens as one line: { } [ ] N:name S:text I:1 F:0.5 t f n */
static int trace(struct kd_jscan *s, char *out, size_t size, struct kd_err *err)
{
    size_t n = 0;
    out[0] = 0;
    for (;;) {
        if (kd_jscan_next(s, err))
            return -1;
        static const char marks[] = "${}[]NSIFtfn";
        n += (size_t)snprintf(out + n, size - n, "%c", marks[s->tok]);
        if (s->tok == KD_JT_NAME || s->tok == KD_JT_STR)
            n += (size_t)snprintf(out + n, size - n, ":%s ", s->text);
        if (s->tok == KD_JT_INT)
            n += (size_t)snprintf(out + n, size - n, ":%lld ", (long long)s->integer);
        if (s->tok == KD_JT_NUM)
            n += (size_t)snprintf(out + n, size - n, ":%g ", s->number);
        if (s->tok == KD_JT_END)
            return 0;
    }
}

/* By memory and by windows of 1 to 9 bytes, which must agree to the token and to the error. */
static int run(const char *text, size_t bytes, const struct kd_jscan_limits *limits, char *out,
               size_t size, struct kd_err *err)
{
    struct kd_jscan s;
    kd_jscan_open(&s, text, bytes, limits);
    int rc = trace(&s, out, size, err);
    kd_jscan_close(&s);
    for (size_t step = 1; step < 10; step++) {
        struct pieces p = {text, bytes, step};
        struct kd_err other = {.code = KD_OK};
        char again[1024];
        kd_jscan_open_fill(&s, fill, &p, limits);
        assert_int_equal(trace(&s, again, sizeof again, &other), rc);
        /* A text over the limit is refused at once when its size is known at once. */
        if (limits->total_bytes >= (int64_t)bytes) {
            assert_string_equal(again, out);
            assert_string_equal(rc ? other.msg : "", rc ? err->msg : "");
        }
        kd_jscan_close(&s);
    }
    return rc;
}

static void good(const char *text, const char *want)
{
    char out[1024];
    struct kd_err err = {.msg = ""};
    int rc = run(text, strlen(text), &wide, out, sizeof out, &err);
    if (rc)
        fail_msg("%s: %s", text, err.msg);
    assert_string_equal(out, want);
}

static void bad(const char *text, const char *reason)
{
    char out[1024];
    struct kd_err err = {.msg = ""};
    if (!run(text, strlen(text), &wide, out, sizeof out, &err))
        fail_msg("'%s' was taken", text);
    assert_int_equal(err.code, KD_ECORRUPT);
    if (!strstr(err.msg, reason))
        fail_msg("'%s': '%s' does not say '%s'", text, err.msg, reason);
}

static void tokens(void **state)
{
    (void)state;
    good("{}", "{}$");
    good(" [ ] \n", "[]$");
    good("{\"a\": [1, -2, 0.5, 1e3, true, false, null], \"b\": {\"c\": \"x\"}}",
         "{N:a [I:1 I:-2 F:0.5 F:1000 tfn]N:b {N:c S:x }}$");
    good("\"only\"", "S:only $");
    good("7", "I:7 $");
    good("-0", "I:0 $");
    good("[[[[[[[[]]]]]]]]", "[[[[[[[[]]]]]]]]$");
}

static void exact_integers(void **state)
{
    (void)state;
    good("[9007199254740993, 9223372036854775807, -9223372036854775808]",
         "[I:9007199254740993 I:9223372036854775807 I:-9223372036854775808 ]$");
    bad("9223372036854775808", "does not fit in 64 bits");
    bad("-9223372036854775809", "does not fit in 64 bits");
    bad("99999999999999999999999999", "does not fit in 64 bits");
    bad("1e999", "does not fit in a double");
}

static void strings(void **state)
{
    (void)state;
    good("\"a\\\"\\\\\\/\\n\\t\\u0041\\u00e9\\u20ac\\ud83d\\ude00\"",
         "S:a\"\\/\n\tA\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 $");
    good("\"\xc3\xa9\xe2\x82\xac\"", "S:\xc3\xa9\xe2\x82\xac $");
    good("{\"\\u0061\":1}", "{N:a I:1 }$");
    bad("\"\\u0000\"", "NUL");
    bad("{\"a\\u0000b\":1}", "NUL");
    bad("\"\\ud800\"", "surrogate");
    bad("\"\\ud800\\u0041\"", "surrogate");
    bad("\"\\udc00\"", "surrogate");
    bad("\"\\u12g4\"", "four hex digits");
    bad("\"\\x41\"", "no such escape");
    bad("\"a\nb\"", "control byte");
    bad("\"abc", "ends inside a string");
    bad("\"\xff\"", "UTF-8");
    bad("\"\xc0\x80\"", "UTF-8");
    bad("\"\xed\xa0\x80\"", "UTF-8");
    bad("\"\xf4\x90\x80\x80\"", "UTF-8");
    bad("\"\xe2\x82\"", "UTF-8");
}

static void broken(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"a\" 1}", "{\"a\":}", "{\"a\":1,}", "{,}", "[1,]",   "[1 2]",   "{\"a\":1]", "[1}",
        "{1:2}",     "{}{}",     "1 2",        "tru", "nulL",   "NaN",     "Infinity",  "-",
        "+1",        "01",       "1.",         ".5",  "1e",     "1e+",     "--1",       "{\"a\"}",
        "",          " ",        "[",          "{",   "{\"a\"", "{\"a\":", "[1",        "{\"a\":1",
        "'a'",       "[1,\"a\"", "0x10",       "]"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        bad(texts[i], "JSON at byte");
}

static void limits(void **state)
{
    (void)state;
    char out[1024], text[400];
    struct kd_err err;
    struct kd_jscan_limits l = {.depth = 2, .string_bytes = 4, .total_bytes = 20};
    assert_int_equal(run("[[1]]", 5, &l, out, sizeof out, &err), 0);
    assert_int_equal(run("[[[1]]]", 7, &l, out, sizeof out, &err), -1);
    assert_non_null(strstr(err.msg, "more than 2 levels"));
    assert_int_equal(run("\"abcd\"", 6, &l, out, sizeof out, &err), 0);
    assert_int_equal(run("\"abcde\"", 7, &l, out, sizeof out, &err), -1);
    assert_non_null(strstr(err.msg, "limit of 4 bytes"));
    memset(text, ' ', sizeof text);
    text[0] = '1';
    assert_int_equal(run(text, 20, &l, out, sizeof out, &err), 0);
    assert_int_equal(run(text, 21, &l, out, sizeof out, &err), -1);
    assert_non_null(strstr(err.msg, "limit of 20 bytes"));
    memset(text, '[', sizeof text);
    assert_int_equal(run(text, sizeof text, &wide, out, sizeof out, &err), -1);
    assert_non_null(strstr(err.msg, "more than 8 levels"));
    memset(text, '1', sizeof text);
    text[1] = '.';
    assert_int_equal(run(text, sizeof text, &wide, out, sizeof out, &err), -1);
    assert_non_null(strstr(err.msg, "too many digits"));
}

/* A NUL byte is no white space and no end. */
static void raw_nul(void **state)
{
    (void)state;
    char out[1024];
    struct kd_err err;
    assert_int_equal(run("1\0", 2, &wide, out, sizeof out, &err), -1);
    assert_int_equal(run("\"a\0b\"", 5, &wide, out, sizeof out, &err), -1);
    assert_int_equal(run(NULL, 0, &wide, out, sizeof out, &err), -1);
}

static int broken_fill(void *ctx, const uint8_t **data, size_t *bytes, struct kd_err *err)
{
    (void)ctx;
    *data = NULL;
    *bytes = 0;
    return kd_fail(err, KD_EIO, "gone");
}

static void reports_its_source(void **state)
{
    (void)state;
    struct kd_jscan s;
    struct kd_err err;
    kd_jscan_open_fill(&s, broken_fill, NULL, &wide);
    assert_int_equal(kd_jscan_next(&s, &err), -1);
    assert_int_equal(err.code, KD_EIO);
    kd_jscan_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens),
        cmocka_unit_test(exact_integers),
        cmocka_unit_test(strings),
        cmocka_unit_test(broken),
        cmocka_unit_test(limits),
        cmocka_unit_test(raw_nul),
        cmocka_unit_test(reports_its_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
