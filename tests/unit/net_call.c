/* net/call: which addresses may be called, key files, and the sentence in an error body. Calls
 * themselves: tests/serve/test_endpoint.py. */
#include "base/file.h"
#include "net/call.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void urls(void **state)
{
    static const struct {
        const char *url;
        bool ok, allowed; /* as it is; with plain http allowed */
        bool loopback;
    } t[] = {
        {"https://api.example/v1", true, true, false},
        {"http://127.0.0.1:8000/v1", true, true, true},
        {"http://127.200.3.4", true, true, true},
        {"http://localhost:1/", true, true, true},
        {"http://[::1]:8000", true, true, true},
        {"https://[::1]:8000", true, true, true},
        {"http://127.0.0.1.example/", false, true, false},
        {"http://localhost.example/", false, true, false},
        {"http://[::2]/", false, true, false},
        {"http://10.0.0.1/", false, true, false},
        {"http://0.0.0.0/", false, true, false},
        {"file:///etc/passwd", false, false, false},
        {"127.0.0.1:8000", false, false, false},
        {"https://user@host/", false, false, false},
        {"https://user:pw@host/", false, false, false},
        {"", false, false, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct kd_err err = {.code = KD_OK};
        bool loopback;
        assert_int_equal(kd_url_check(t[i].url, false, NULL, &err), t[i].ok ? 0 : -1);
        assert_int_equal(kd_url_check(t[i].url, true, &loopback, &err), t[i].allowed ? 0 : -1);
        assert_int_equal(loopback, t[i].loopback);
        if (!t[i].ok)
            assert_int_equal(err.code, KD_EUSAGE);
    }
}

static void keys(void **state)
{
    static const struct {
        const char *text, *key; /* NULL: refused */
    } t[] = {{"sk-1\n", "sk-1"},         {"# a comment\r\n\r\nsk-2\r\nsk-3\n", "sk-2"},
             {"sk-4", "sk-4"},           {"", NULL},
             {"# only\n", NULL},         {"two words\n", NULL},
             {"a\tb\n", NULL},           {"caf\xc3\xa9\n", NULL},
             {"0123456789abcdefg", NULL} /* too long for its room */};
    char path[] = "/tmp/kd-key-XXXXXX", key[17];
    struct kd_err err;
    (void)state;
    close(mkstemp(path));
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        assert_int_equal(kd_file_write(path, t[i].text, strlen(t[i].text), &err), 0);
        chmod(path, 0600);
        assert_int_equal(kd_key_read(key, sizeof key, path, &err), t[i].key ? 0 : -1);
        assert_string_equal(key, t[i].key ? t[i].key : "");
    }
    assert_int_equal(kd_file_write(path, "sk", 2, &err), 0);
    chmod(path, 0640);
    assert_int_equal(kd_key_read(key, sizeof key, path, &err), -1);
    assert_non_null(strstr(err.msg, "others can read"));
    unlink(path);
    assert_int_equal(kd_key_read(key, sizeof key, path, &err), -1);
}

static void sentences(void **state)
{
    static const struct {
        const char *body, *why;
    } t[] = {{"{\"error\": {\"message\": \"a\\u001b[2J\", \"code\": 7}}", "a?[2J"},
             {"{\"error\": \"b\"}", "b"},
             {"{\"message\": \"c\"}", "c"},
             {"{\"detail\": \"d\"}", "d"},
             {"\"e\"", "e"},
             {"<html>f\n", "<html>f?"},
             {"{\"x\": 1}", "{\"x\": 1}"},
             {"", ""},
             {"0123456789012345678901234567890123456789", "0123456789012345678901234567890"}};
    char out[32];
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        kd_reply_why(out, sizeof out, t[i].body, strlen(t[i].body));
        assert_string_equal(out, t[i].why);
    }
    kd_reply_why(out, sizeof out, NULL, 0);
    assert_string_equal(out, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(urls),
        cmocka_unit_test(keys),
        cmocka_unit_test(sentences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
