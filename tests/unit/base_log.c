/* base/log: levels per component, the lines themselves, the file. */
#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What fn writes to standard error. */
static void caught(char *out, size_t size, void (*fn)(void))
{
    char path[] = "/tmp/kondense-log-XXXXXX";
    int fd = mkstemp(path), old = dup(STDERR_FILENO);
    assert_true(fd >= 0 && old >= 0);
    fflush(stderr);
    assert_true(dup2(fd, STDERR_FILENO) >= 0);
    fn();
    fflush(stderr);
    assert_true(dup2(old, STDERR_FILENO) >= 0);
    close(old);
    ssize_t n = pread(fd, out, size - 1, 0);
    assert_true(n >= 0);
    out[n] = 0;
    close(fd);
    unlink(path);
}

static void levels_by_component(void **state)
{
    (void)state;
    struct kd_err err = {.code = KD_OK};
    assert_int_equal(kd_log_setup(NULL, &err), 0);
    assert_true(kd_log_on(KD_LOG_WARN, "fmt"));
    assert_false(kd_log_on(KD_LOG_INFO, "fmt"));
    assert_int_equal(kd_log_setup("info,convert=debug,fmt=error", &err), 0);
    assert_true(kd_log_on(KD_LOG_INFO, "gate"));
    assert_false(kd_log_on(KD_LOG_DEBUG, "gate"));
    assert_true(kd_log_on(KD_LOG_DEBUG, "convert"));
    assert_false(kd_log_on(KD_LOG_WARN, "fmt"));
    assert_true(kd_log_on(KD_LOG_ERROR, "fmt"));
    /* A setting replaces the one before, whole. */
    assert_int_equal(kd_log_setup("error", &err), 0);
    assert_false(kd_log_on(KD_LOG_WARN, "convert"));
}

static void refuses_bad_settings(void **state)
{
    (void)state;
    static const char *const bad[] = {"loud",
                                      "convert=",
                                      "convert=loud",
                                      "=",
                                      "info;debug",
                                      "Info",
                                      "a-component-with-too-long-a-name=info"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kd_err err = {.code = KD_OK};
        assert_int_equal(kd_log_setup(bad[i], &err), -1);
        assert_int_equal(err.code, KD_EUSAGE);
    }
    struct kd_err err = {.code = KD_OK};
    char many[400] = "";
    for (size_t used = 0, i = 0; i < 17; i++)
        used += (size_t)snprintf(many + used, sizeof many - used, "%sc%zu=info", i ? "," : "", i);
    assert_int_equal(kd_log_setup(many, &err), -1);
    assert_int_equal(kd_log_setup(NULL, &err), 0);
}

static void talk(void)
{
    kd_log(KD_LOG_INFO, "convert", "layer=%d", 1);
    kd_log(KD_LOG_WARN, "convert", "name=\"%s\"", "a\nt=0 lvl=error at=forged");
    kd_log(KD_LOG_DEBUG, "gate", "n=%d", 2);
}

static void writes_one_line_a_record(void **state)
{
    (void)state;
    struct kd_err err = {.code = KD_OK};
    char out[4096];
    assert_int_equal(kd_log_setup("warn,gate=debug", &err), 0);
    caught(out, sizeof out, talk);
    int year, used = 0;
    assert_int_equal(sscanf(out, "t=%4d-%*2d-%*2dT%*2d:%*2d:%*2dZ lvl=warn%n", &year, &used), 1);
    assert_true(used > 0);
    assert_non_null(strstr(out, " at=convert name=\"a t=0 lvl=error at=forged\"\n"));
    assert_non_null(strstr(out, " lvl=debug at=gate n=2\n"));
    assert_null(strstr(out, "layer=1"));
    int lines = 0;
    for (const char *c = out; *c; c++)
        lines += *c == '\n';
    assert_int_equal(lines, 2);
    assert_int_equal(kd_log_setup(NULL, &err), 0);
}

static void keeps_a_file(void **state)
{
    (void)state;
    struct kd_err err = {.code = KD_OK};
    char path[] = "/tmp/kondense-log-XXXXXX", out[4096];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(kd_log_file(path, &err), 0);
    caught(out, sizeof out, talk);
    assert_null(strstr(out, "layer=1")); /* standard error keeps its own level */
    assert_int_equal(kd_log_file(NULL, &err), 0);
    caught(out, sizeof out, talk);
    ssize_t n = read(fd, out, sizeof out - 1);
    assert_true(n > 0);
    out[n] = 0;
    assert_non_null(strstr(out, "lvl=info at=convert layer=1\n"));
    assert_non_null(strstr(out, "lvl=warn at=convert name="));
    assert_null(strstr(out, "lvl=debug"));
    assert_ptr_equal(strstr(strstr(out, "layer=1") + 1, "layer=1"), NULL); /* closed means closed */
    close(fd);
    unlink(path);
    assert_int_equal(kd_log_file("/no/such/folder/x.log", &err), -1);
    assert_int_equal(err.code, KD_EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_by_component),
        cmocka_unit_test(refuses_bad_settings),
        cmocka_unit_test(writes_one_line_a_record),
        cmocka_unit_test(keeps_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
