/* base/json: parsing, typed members with bounds, editing, and writing what reads back the same. */
#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

static struct kd_json *parse(const char *text)
{
    struct kd_json *root;
    struct kd_err err = {.msg = ""};
    if (kd_json_parse(&root, text, strlen(text), "t", &err))
        fail_msg("%s: %s", text, err.msg);
    return root;
}

static void refuses(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "{",
                                        "{\"a\":1,\"a\":2}",
                                        "{\"a\":{\"b\":1,\"b\":1}}",
                                        "[1,]",
                                        "NaN",
                                        "[Infinity]",
                                        "{\"a\":9223372036854775808}",
                                        "\"\\u0000\"",
                                        "{\"a\":1} x",
                                        "1e999",
                                        "\"\xff\""};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct kd_json *root;
        struct kd_err err = {.msg = ""};
        assert_int_equal(kd_json_parse(&root, texts[i], strlen(texts[i]), "file.json", &err), -1);
        assert_null(root);
        assert_int_equal(err.code, KD_ECORRUPT);
        assert_non_null(strstr(err.msg, "file.json"));
    }
    char deep[5000];
    memset(deep, '[', sizeof deep);
    struct kd_json *root;
    struct kd_err err;
    assert_int_equal(kd_json_parse(&root, deep, sizeof deep, "deep", &err), -1);
}

static void typed_members(void **state)
{
    (void)state;
    struct kd_json *o =
        parse("{\"i\":7,\"big\":9007199254740993,\"r\":0.25,\"s\":\"text\",\"t\":true,\"n\":null}");
    struct kd_err err;
    int64_t i;
    double d;
    bool b;
    const char *s;
    assert_int_equal(kd_json_int(o, "i", 0, 7, &i, &err), 0);
    assert_int_equal(i, 7);
    assert_int_equal(kd_json_int(o, "big", 0, INT64_MAX, &i, &err), 0);
    assert_int_equal(i, INT64_C(9007199254740993));
    assert_int_equal(kd_json_int(o, "i", 8, 9, &i, &err), -1);
    assert_non_null(strstr(err.msg, "'i' is 7, outside 8 to 9"));
    assert_int_equal(kd_json_int(o, "r", 0, 9, &i, &err), -1);
    assert_int_equal(kd_json_int(o, "s", 0, 9, &i, &err), -1);
    assert_int_equal(kd_json_int(o, "none", 0, 9, &i, &err), -1);
    assert_non_null(strstr(err.msg, "'none' is missing"));
    assert_int_equal(kd_json_int_or(o, "none", 0, 9, 3, &i, &err), 0);
    assert_int_equal(i, 3);
    assert_int_equal(kd_json_int_or(o, "n", 0, 9, 4, &i, &err), 0);
    assert_int_equal(i, 4);
    assert_int_equal(kd_json_int_or(o, "s", 0, 9, 4, &i, &err), -1);
    assert_int_equal(kd_json_num(o, "r", 0, 1, &d, &err), 0);
    assert_true(d == 0.25);
    assert_int_equal(kd_json_num(o, "i", 0, 10, &d, &err), 0);
    assert_true(d == 7);
    assert_int_equal(kd_json_num(o, "r", 1, 2, &d, &err), -1);
    assert_int_equal(kd_json_num(o, "s", 0, 1, &d, &err), -1);
    assert_int_equal(kd_json_num_or(o, "n", 0, 1, 0.5, &d, &err), 0);
    assert_true(d == 0.5);
    assert_int_equal(kd_json_str(o, "s", &s, &err), 0);
    assert_string_equal(s, "text");
    assert_int_equal(kd_json_str(o, "i", &s, &err), -1);
    assert_non_null(strstr(err.msg, "not a string"));
    assert_int_equal(kd_json_bool_or(o, "t", false, &b, &err), 0);
    assert_true(b);
    assert_int_equal(kd_json_bool_or(o, "none", true, &b, &err), 0);
    assert_true(b);
    assert_int_equal(kd_json_bool_or(o, "i", true, &b, &err), -1);
    kd_json_free(o);
}

static void walks_in_file_order(void **state)
{
    (void)state;
    struct kd_json *o = parse("{\"z\":1,\"a\":[1,2,3],\"m\":{}}");
    void *iter = NULL;
    const char *key;
    struct kd_json *v;
    char keys[8] = "";
    size_t n = 0;
    while (kd_json_next(o, &iter, &key, &v))
        keys[n++] = *key;
    assert_string_equal(keys, "zam");
    assert_int_equal(kd_json_count(kd_json_get(o, "a")), 3);
    assert_int_equal(kd_json_int_value(kd_json_at(kd_json_get(o, "a"), 2)), 3);
    assert_null(kd_json_at(kd_json_get(o, "a"), 3));
    assert_null(kd_json_get(o, "q"));
    assert_null(kd_json_get(NULL, "q"));
    assert_int_equal(kd_json_kind(NULL), KD_JSON_NULL);
    kd_json_free(o);
}

/* What is dumped parses again to the same dump, and edits show in it. */
static void dumps(void **state)
{
    (void)state;
    struct kd_json *o =
        parse("{\"b\":1.5,\"a\":[true,null,\"\\u00e9\\n\"],\"drop\":0,\"e\":{},\"f\":[]}");
    struct kd_err err;
    struct kd_buf one, two;
    struct kd_json *extra = kd_json_new_object();
    kd_buf_init(&one, 1 << 16);
    kd_buf_init(&two, 1 << 16);
    assert_int_equal(kd_json_set_copy(extra, "copied", kd_json_get(o, "a")), 0);
    assert_int_equal(kd_json_set(o, "extra", extra), 0);
    kd_json_del(o, "drop");
    assert_int_equal(kd_json_dump(&one, o, &err), 0);
    assert_string_equal(
        one.data, "{\n  \"b\": 1.5,\n  \"a\": [\n    true,\n    null,\n    \"\xc3\xa9\\n\"\n  ],\n"
                  "  \"e\": {},\n  \"f\": [],\n  \"extra\": {\n    \"copied\": [\n      true,\n"
                  "      null,\n      \"\xc3\xa9\\n\"\n    ]\n  }\n}\n");
    struct kd_json *again = parse(one.data);
    assert_int_equal(kd_json_dump(&two, again, &err), 0);
    assert_string_equal(one.data, two.data);
    kd_buf_release(&one);
    kd_buf_release(&two);
    kd_json_free(again);
    kd_json_free(o);
}

static void numbers_read_back(void **state)
{
    (void)state;
    static const double values[] = {0.1,  1.0 / 3, 1e-300, 123456789.123456789,
                                    -0.0, 2.5e20,  1e22,   3};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        struct kd_buf b;
        kd_buf_init(&b, 1 << 10);
        struct kd_jw w = {.out = &b, .compact = true};
        kd_jw_num(&w, NULL, values[i]);
        struct kd_json *v = parse(b.data);
        assert_true(kd_json_num_value(v) == values[i]);
        assert_int_equal(kd_json_kind(v), KD_JSON_REAL);
        kd_json_free(v);
        kd_buf_release(&b);
    }
    struct kd_buf b;
    kd_buf_init(&b, 1 << 10);
    struct kd_jw w = {.out = &b, .compact = true};
    kd_jw_open(&w, NULL, '[');
    kd_jw_num(&w, NULL, (double)NAN);
    kd_jw_num(&w, NULL, (double)INFINITY);
    kd_jw_int(&w, NULL, INT64_MIN);
    kd_jw_close(&w, ']');
    assert_string_equal(b.data, "[null, null, -9223372036854775808]");
    kd_buf_release(&b);
}

static void quotes_anything(void **state)
{
    (void)state;
    static const char bytes[] = "\x01\x1f\"\\\t\xff\xc3\xa9\xe2\x82z\0end";
    struct kd_buf b;
    kd_buf_init(&b, 1 << 10);
    kd_json_quote(&b, bytes, sizeof bytes - 5);
    assert_string_equal(
        b.data, "\"\\u0001\\u001f\\\"\\\\\\t\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\xef\xbf\xbdz\"");
    struct kd_json *v = parse(b.data);
    kd_json_free(v);
    kd_buf_release(&b);
}

static void writer_depth(void **state)
{
    (void)state;
    struct kd_buf b;
    kd_buf_init(&b, 1 << 20);
    struct kd_jw w = {.out = &b};
    for (int i = 0; i < 100; i++)
        kd_jw_open(&w, NULL, '[');
    assert_true(b.failed);
    for (int i = 0; i < 100; i++)
        kd_jw_close(&w, ']');
    assert_int_equal(w.depth, 0); /* what is too deep stays inside the struct */
    kd_buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses),
        cmocka_unit_test(typed_members),
        cmocka_unit_test(walks_in_file_order),
        cmocka_unit_test(dumps),
        cmocka_unit_test(numbers_read_back),
        cmocka_unit_test(quotes_anything),
        cmocka_unit_test(writer_depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
