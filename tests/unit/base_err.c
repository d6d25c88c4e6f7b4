/* base/err: filling, wrapping, cutting, exit codes. */
#include "base/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>

static void fails_and_wraps(void **state)
{
    (void)state;
    struct kd_err err = {.code = KD_OK};
    assert_int_equal(kd_fail(&err, KD_ECORRUPT, "tensor %d is %s", 7, "short"), -1);
    assert_int_equal(err.code, KD_ECORRUPT);
    assert_int_equal(err.sys, 0);
    assert_string_equal(err.msg, "tensor 7 is short");
    assert_int_equal(kd_wrap(&err, "layer %d", 3), -1);
    assert_int_equal(kd_wrap(&err, "'%s'", "model"), -1);
    assert_string_equal(err.msg, "'model': layer 3: tensor 7 is short");
    assert_int_equal(err.code, KD_ECORRUPT);
}

static void says_what_the_system_said(void **state)
{
    (void)state;
    struct kd_err err = {.code = KD_OK};
    errno = ENOENT;
    assert_int_equal(kd_fail_sys(&err, "cannot open '%s'", "x"), -1);
    assert_int_equal(err.code, KD_EIO);
    assert_int_equal(err.sys, ENOENT);
    assert_string_equal(err.msg, "cannot open 'x': No such file or directory");
    errno = ENOMEM;
    assert_int_equal(kd_fail_sys(&err, "map"), -1);
    assert_int_equal(err.code, KD_ENOMEM);
}

static void cuts_what_is_too_long(void **state)
{
    (void)state;
    struct kd_err err = {.code = KD_OK};
    char much[2000];
    memset(much, 'a', sizeof much - 1);
    much[sizeof much - 1] = 0;
    kd_fail(&err, KD_EINVAL, "%s", much);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    kd_wrap(&err, "place");
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    assert_memory_equal(err.msg, "place: aaa", 10);
    kd_wrap(&err, "%s", much);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    errno = EIO;
    kd_fail_sys(&err, "%s", much);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
}

static void takes_no_error_struct(void **state)
{
    (void)state;
    assert_int_equal(kd_fail(NULL, KD_EIO, "x"), -1);
    assert_int_equal(kd_fail_sys(NULL, "x"), -1);
    assert_int_equal(kd_wrap(NULL, "x"), -1);
}

static void maps_to_exit_codes(void **state)
{
    (void)state;
    static const struct {
        enum kd_code code;
        int exit_code;
    } want[] = {{KD_OK, 0},      {KD_EUSAGE, 2},  {KD_EGATE, 3}, {KD_ECANCEL, 4},
                {KD_EINVAL, 1},  {KD_ENOMEM, 1},  {KD_EIO, 1},   {KD_ECORRUPT, 1},
                {KD_ENOTSUP, 1}, {KD_ETIMEOUT, 1}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct kd_err err = {.code = want[i].code};
        assert_int_equal(kd_err_exit(&err), want[i].exit_code);
    }
    for (int a = 0; a < KD_CODE_COUNT; a++) {
        assert_string_not_equal(kd_code_name((enum kd_code)a), "unknown");
        for (int b = 0; b < a; b++)
            assert_string_not_equal(kd_code_name((enum kd_code)a), kd_code_name((enum kd_code)b));
    }
    assert_string_equal(kd_code_name(KD_CODE_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fails_and_wraps),       cmocka_unit_test(says_what_the_system_said),
        cmocka_unit_test(cuts_what_is_too_long), cmocka_unit_test(takes_no_error_struct),
        cmocka_unit_test(maps_to_exit_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
