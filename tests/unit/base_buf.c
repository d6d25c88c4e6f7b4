/* base/buf: growth, the limit, sticky failure. */
#include "base/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

static void grows(void **state)
{
    (void)state;
    struct kd_buf b;
    kd_buf_init(&b, 1 << 20);
    assert_null(b.data);
    kd_buf_str(&b, "");
    assert_string_equal(b.data, "");
    kd_buf_str(&b, "one");
    kd_buf_char(&b, ' ');
    kd_buf_printf(&b, "%d/%s", 2, "three");
    assert_string_equal(b.data, "one 2/three");
    assert_int_equal(b.size_bytes, 11);
    kd_buf_add(&b, "a\0b", 3);
    assert_int_equal(b.size_bytes, 14);
    assert_memory_equal(b.data + 11, "a\0b", 4);
    for (int i = 0; i < 5000; i++)
        kd_buf_printf(&b, "%04d,", i);
    assert_int_equal(b.size_bytes, 14 + 5 * 5000);
    assert_memory_equal(b.data + 14 + 5 * 4321, "4321,", 5);
    assert_int_equal(kd_buf_ok(&b, "text", NULL), 0);
    char *data = b.data;
    kd_buf_clear(&b);
    assert_ptr_equal(b.data, data);
    assert_int_equal(b.size_bytes, 0);
    assert_string_equal(b.data, "");
    kd_buf_release(&b);
    assert_null(b.data);
}

/* Lines longer than the formatter's first try. */
static void prints_long_lines(void **state)
{
    (void)state;
    char word[1000];
    for (size_t n = 250; n < 262; n++) {
        struct kd_buf b;
        kd_buf_init(&b, sizeof word);
        memset(word, 'x', n);
        word[n] = 0;
        kd_buf_printf(&b, "%s", word);
        assert_int_equal(b.size_bytes, n);
        assert_string_equal(b.data, word);
        kd_buf_release(&b);
    }
}

static void keeps_its_limit(void **state)
{
    (void)state;
    struct kd_err err = {.code = KD_OK};
    struct kd_buf b;
    kd_buf_init(&b, 10);
    kd_buf_add(&b, "0123456789", 10);
    assert_int_equal(kd_buf_ok(&b, "ten", &err), 0);
    kd_buf_char(&b, 'x');
    assert_true(b.failed);
    kd_buf_clear(&b);
    assert_false(b.failed);
    kd_buf_str(&b, "12345678");
    kd_buf_str(&b, "too much");
    assert_true(b.failed);
    kd_buf_char(&b, 'y'); /* would fit, but what follows a failure does nothing */
    assert_string_equal(b.data, "12345678");
    assert_null(kd_buf_grow(&b, 1));
    assert_int_equal(kd_buf_ok(&b, "header", &err), -1);
    assert_int_equal(err.code, KD_ENOMEM);
    assert_non_null(strstr(err.msg, "header: larger than its limit of 10 bytes"));
    kd_buf_release(&b);
    kd_buf_init(&b, SIZE_MAX);
    kd_buf_str(&b, "a");
    assert_null(kd_buf_grow(&b, SIZE_MAX));
    assert_true(b.failed);
    kd_buf_release(&b);
}

static void lends_room(void **state)
{
    (void)state;
    struct kd_buf b;
    kd_buf_init(&b, 100);
    kd_buf_str(&b, "ab");
    char *at = kd_buf_grow(&b, 3);
    assert_non_null(at);
    memcpy(at, "cde", 3);
    assert_string_equal(b.data, "abcde");
    kd_buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows),
        cmocka_unit_test(prints_long_lines),
        cmocka_unit_test(keeps_its_limit),
        cmocka_unit_test(lends_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
