/* fmt/st: one safetensors file. Each rule of docs/formats/safetensors.md is broken once. */
#include "fmt/st.h"

#include "unit/fmt_util.h"

static struct kd_err err;

static int parse(const char *header, size_t data)
{
    static uint8_t image[1 << 16];
    struct kd_st st;
    size_t n = fmt_image(image, header, data);
    /* A copy of the exact size, so that a read past the end is seen by the sanitizer. */
    uint8_t *copy = malloc(n);
    memcpy(copy, image, n);
    err = (struct kd_err){.msg = ""};
    int rc = kd_st_parse(&st, copy, (int64_t)n, (int64_t)n, "f.safetensors", &err);
    if (!rc)
        kd_st_release(&st);
    free(copy);
    return rc;
}

static void good(const char *header, size_t data)
{
    if (parse(header, data))
        fail_msg("%s: %s", header, err.msg);
}

static void bad(const char *header, size_t data, const char *reason)
{
    if (!parse(header, data))
        fail_msg("'%s' was taken", header);
    assert_memory_equal(err.msg, "f.safetensors: ", 15);
    if (!strstr(err.msg, reason))
        fail_msg("'%s': '%s' does not say '%s'", header, err.msg, reason);
}

#define T(name, dtype, shape, a, b)                                                                \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #a "," #b "]}"

static void legal(void **state)
{
    (void)state;
    good("{}", 0);
    good("{}   ", 0);
    good("{" T("a", "F32", "[2,3]", 0, 24) "}", 24);
    good("{" T("a", "F32", "[]", 0, 4) "}", 4);
    good("{" T("b", "U8", "[4]", 4, 8) "," T("a", "U8", "[4]", 0, 4) "}  ", 8);
    good("{" T("a", "U8", "[0]", 0, 0) "," T("b", "U8", "[3]", 0, 3) "," T("c", "I64", "[0,9]", 3,
                                                                           3) "}",
         3);
    good("{" T("a", "F4", "[4]", 0, 2) "}", 2);
    good("{" T("a", "F6_E2M3", "[4]", 0, 3) "}", 3);
    good("{" T("a", "F8_E4M3FNUZ", "[4]", 0, 4) "," T("b", "C64", "[1]", 4, 12) "}", 12);
    good("{\"__metadata__\":{\"format\":\"pt\",\"x\":\"\"}," T("a", "BF16", "[1]", 0, 2) "}", 2);
    good("{\"a\":{\"data_offsets\":[0,2],\"shape\":[1],\"dtype\":\"F16\"},\"__metadata__\":{}}", 2);
    good("{" T("\\u0061", "U8", "[1]", 0, 1) "}", 1);
    good("{" T("a", "U8", "[1,1,1,1,1,1,1,1]", 0, 1) "}", 1);
}

static void contents(void **state)
{
    (void)state;
    struct kd_st st;
    fmt_shard("x.safetensors",
              "{" T("b", "F32", "[1,2]", 4, 12) "," T("a", "BF16", "[2]", 0, 4) "}", 12);
    assert_int_equal(kd_st_map(&st, fmt_path("x.safetensors"), &err), 0);
    assert_int_equal(st.count, 2);
    const struct kd_tensor *t = kd_st_find(&st, "b");
    assert_non_null(t);
    assert_int_equal(t->dtype, KD_DT_F32);
    assert_string_equal(t->dtype_name, "F32");
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->shape[1], 2);
    assert_int_equal(t->bytes, 8);
    assert_int_equal(t->data[0], 4);
    assert_int_equal(kd_st_find(&st, "a")->data[3], 3);
    assert_null(kd_st_find(&st, "c"));
    kd_st_release(&st);
    assert_int_equal(kd_st_map(&st, fmt_path("none.safetensors"), &err), -1);
    assert_non_null(strstr(err.msg, "none.safetensors"));
}

static void broken_header(void **state)
{
    (void)state;
    bad("", 0, "does not begin with '{'");
    bad(" {}", 0, "does not begin with '{'");
    bad("[]", 0, "does not begin with '{'");
    bad("{", 0, "JSON at byte");
    bad("{}x", 0, "follows the end");
    bad("{\"a\":1}", 0, "'a': its entry is not an object");
    bad("{\"a\":[]}", 0, "not an object");
    bad("{" T("a", "U8", "[1]", 0, 1) "," T("a", "U8", "[1]", 1, 2) "}", 2, "tensor 'a' twice");
    bad("{" T("a", "U8", "[1]", 0, 1) "," T("\\u0061", "U8", "[1]", 1, 2) "}", 2,
        "tensor 'a' twice");
    bad("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1,
        "'dtype' twice");
    bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"x\":1}}", 1, "key 'x'");
    bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", 0, "missing");
    bad("{\"a\":{\"shape\":[],\"data_offsets\":[0,1]}}", 1, "missing");
    bad("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "missing");
    bad("{\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "without a name");
    bad("{" T("a\\u0000", "U8", "[1]", 0, 1) "}", 1, "NUL");
    bad("{" T("a\\u001b[2J", "U8", "[1]", 0, 1) "}", 1, "control character");
    bad("{" T("a\\u009b2J", "U8", "[1]", 0, 1) "}", 1, "control character");
    bad("{" T("a", "U9", "[1]", 0, 1) "}", 1, "dtype 'U9' is not known");
    bad("{" T("a", "u8", "[1]", 0, 1) "}", 1, "is not known");
    bad("{" T("a", "AVERYLONGDTYPENAME", "[1]", 0, 1) "}", 1, "is not known");
    bad("{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype is not a string");
    bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[[[[[1]]]]],\"data_offsets\":[0,1]}}", 1, "shape");
    bad("{\"a\":{\"dtype\":\"U8\",\"shape\":{\"b\":{\"c\":{\"d\":1}}},\"data_offsets\":[0,1]}}", 1,
        "shape");
    bad("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "key 'a' twice");
    bad("{\"__metadata__\":{\"a\":1}}", 0, "not a string");
    bad("{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, "not a string");
    bad("{\"__metadata__\":[]}", 0, "not an object");
    bad("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ twice");
    char name[2000] = "{\"", deep[4000];
    memset(name + 2, 'n', 1025);
    snprintf(name + 1027, sizeof name - 1027,
             "\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}");
    bad(name, 1, "over 1024");
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    deep[sizeof deep - 1] = 0;
    bad(deep, 0, "tensor 'a'");
}

static void broken_sizes(void **state)
{
    (void)state;
    bad("{" T("a", "U8", "[-1]", 0, 1) "}", 1, "whole number");
    bad("{" T("a", "U8", "[1.5]", 0, 1) "}", 1, "whole number");
    bad("{" T("a", "U8", "[1e0]", 0, 1) "}", 1, "whole number");
    bad("{" T("a", "U8", "[\"1\"]", 0, 1) "}", 1, "whole number");
    bad("{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1) "}", 1, "more than 8");
    bad("{" T("a", "U8", "[9223372036854775807,2]", 0, 1) "}", 1, "does not fit in 64 bits");
    bad("{" T("a", "U8", "[4294967296,4294967296]", 0, 0) "}", 0, "does not fit in 64 bits");
    bad("{" T("a", "F64", "[1152921504606846976]", 0, 0) "}", 0, "does not fit in 64 bits");
    bad("{" T("a", "U8", "[18446744073709551616]", 0, 1) "}", 1, "64 bits");
    bad("{" T("a", "F32", "[2]", 0, 4) "}", 4, "do not hold the 8 bytes");
    bad("{" T("a", "F32", "[1]", 4, 0) "}", 4, "do not hold");
    bad("{" T("a", "U8", "[1]", 9223372036854775807, 0) "}", 1, "do not hold");
    bad("{" T("a", "F4", "[3]", 0, 1) "}", 1, "do not end on a byte");
    bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "two numbers");
    bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, "more than 2");
    bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}}", 1, "whole number");
    bad("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":\"0,1\"}}", 1, "not an array");
}

static void broken_chain(void **state)
{
    (void)state;
    bad("{" T("a", "U8", "[4]", 0, 4) "," T("b", "U8", "[4]", 2, 6) "}", 6, "over the one before");
    bad("{" T("a", "U8", "[4]", 0, 4) "," T("b", "U8", "[4]", 0, 4) "}", 8, "over the one before");
    bad("{" T("a", "U8", "[4]", 0, 4) "," T("b", "U8", "[4]", 5, 9) "}", 9, "after a hole");
    bad("{" T("a", "U8", "[4]", 1, 5) "}", 5, "after a hole");
    bad("{" T("a", "U8", "[0]", 7, 7) "," T("b", "U8", "[4]", 0, 4) "}", 4, "after a hole");
    bad("{" T("a", "U8", "[4]", 0, 4) "}", 5, "1 bytes after the last tensor");
    bad("{" T("a", "U8", "[4]", 0, 4) "}", 3, "truncated");
    bad("{" T("a", "U8", "[4611686018427387904]", 0, 4611686018427387904) "}", 4, "do");
    bad("{" T("a", "U8", "[1099511627776]", 0, 1099511627776) "}", 4, "truncated");
    bad("{}", 3, "3 bytes after");
}

static int raw(const void *bytes, size_t n, int64_t file)
{
    struct kd_st st;
    err = (struct kd_err){.msg = ""};
    int rc = kd_st_parse(&st, bytes, (int64_t)n, file, "f", &err);
    if (!rc)
        kd_st_release(&st);
    return rc;
}

static void length_lies(void **state)
{
    (void)state;
    assert_int_equal(raw("", 0, 0), -1);
    assert_non_null(strstr(err.msg, "too few"));
    assert_int_equal(raw("\2\0\0\0\0\0\0", 7, 7), -1);
    assert_int_equal(raw("\3\0\0\0\0\0\0\0{}", 10, 10), -1);
    assert_non_null(strstr(err.msg, "claims 3 bytes"));
    assert_int_equal(raw("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, 10), -1);
    assert_non_null(strstr(err.msg, "over the format's limit"));
    assert_int_equal(raw("\1\xe1\xf5\5\0\0\0\0{}", 10, INT64_MAX), -1); /* 100,000,001 */
    assert_non_null(strstr(err.msg, "over the format's limit"));
    assert_int_equal(raw("\0\xe1\xf5\5\0\0\0\0{}", 10, INT64_MAX), -1); /* 100,000,000 */
    assert_non_null(strstr(err.msg, "not whole here"));
    assert_int_equal(raw("\2\0\0\0\0\0\0\0{}", 10, 10), 0);
    assert_int_equal(raw("GGUF\3\0\0\0\0\0\0\0", 12, 12), -1);
}

/* A header alone, as a fetch has it: the size of the whole file comes from elsewhere. */
static void header_alone(void **state)
{
    (void)state;
    uint8_t image[512];
    struct kd_st st;
    size_t n = fmt_image(image, "{" T("a", "U8", "[5000000000]", 0, 5000000000) "}", 0);
    assert_int_equal(kd_st_parse(&st, image, (int64_t)n, (int64_t)n + 5000000000, "f", &err), 0);
    assert_int_equal(kd_st_find(&st, "a")->bytes, 5000000000);
    assert_null(kd_st_find(&st, "a")->data);
    assert_int_equal(st.data_offset, (int64_t)n);
    kd_st_release(&st);
    assert_int_equal(kd_st_parse(&st, image, (int64_t)n, (int64_t)n + 4999999999, "f", &err), -1);
}

/* Every prefix of a good file is refused, and no byte changed makes the parser read elsewhere. */
static void prefixes_and_flips(void **state)
{
    (void)state;
    uint8_t image[512];
    struct kd_st st;
    size_t n =
        fmt_image(image, "{" T("ab", "F16", "[2,2]", 0, 8) "," T("c", "U8", "[3]", 8, 11) "} ", 11);
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *copy = malloc(cut + 1);
        memcpy(copy, image, cut);
        assert_int_equal(kd_st_parse(&st, copy, (int64_t)cut, (int64_t)cut, "f", &err), -1);
        free(copy);
    }
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            uint8_t *copy = malloc(n);
            memcpy(copy, image, n);
            copy[i] ^= (uint8_t)(1 << bit);
            if (!kd_st_parse(&st, copy, (int64_t)n, (int64_t)n, "f", &err))
                kd_st_release(&st);
            free(copy);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(legal),
        cmocka_unit_test_setup_teardown(contents, fmt_setup, fmt_teardown),
        cmocka_unit_test(broken_header),
        cmocka_unit_test(broken_sizes),
        cmocka_unit_test(broken_chain),
        cmocka_unit_test(length_lies),
        cmocka_unit_test(header_alone),
        cmocka_unit_test(prefixes_and_flips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
