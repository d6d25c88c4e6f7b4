/* net/get_answer: heads of answers, and what a 206 must say. */
#include "net/get_answer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

static void head(struct kd_answer *a, const char *text)
{
    bool end = false;
    kd_answer_init(a);
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "\n") + 1;
        assert_false(end);
        end = kd_answer_line(a, p, n);
        p += n;
    }
    assert_true(end);
}

static void ranges(void **state)
{
    int64_t b, e, t;
    static const char *const none[] = {"bytes 5-4/9",  "bytes 0-9/9",
                                       "bytes -1/5",   "bytes 1-2",
                                       "bytes",        "items 0-1/2",
                                       "bytes 0-1/2x", "bytes */*",
                                       "bytes 0-/9",   "bytes 99999999999999999999-1/2"};
    (void)state;
    assert_int_equal(kd_answer_range("bytes 0-4/10", &b, &e, &t), 0);
    assert_true(b == 0 && e == 4 && t == 10);
    assert_int_equal(kd_answer_range("Bytes  1-2/*", &b, &e, &t), 0);
    assert_true(b == 1 && e == 2 && t == -1);
    assert_int_equal(kd_answer_range("bytes */0", &b, &e, &t), 0);
    assert_true(b == -1 && t == 0);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_int_equal(kd_answer_range(none[i], &b, &e, &t), -1);
}

static void heads(void **state)
{
    struct kd_answer a;
    (void)state;
    head(&a, "HTTP/1.1 100 Continue\r\nETag: \"old\"\r\nHTTP/1.1 206 Partial\r\ncontent-RANGE: "
             "bytes 2-3/9\r\n"
             "Content-Type: text/plain; charset=x\r\nContent-Length: 2 \r\nETag:\"e\"\r\n"
             "Link: <https://h/1>; rel=\"prev\", <https://h/2?c=3>; rel=\"next\"\r\nX-Error-Code: "
             "a\033b\r\n\r\n");
    assert_int_equal(a.status, 206);
    assert_true(a.has_range && a.range_begin == 2 && a.length == 2);
    assert_string_equal(a.type, "text/plain");
    assert_string_equal(a.etag, "\"e\"");
    assert_string_equal(a.next, "https://h/2?c=3");
    assert_string_equal(a.code, "a?b");
    kd_answer_init(&a);
    assert_false(kd_answer_line(&a, "HTTP/1.1 100 x\r\n", 16));
    assert_false(kd_answer_line(&a, "\r\n", 2)); /* of the interim answer */
}

static void checks(void **state)
{
    static const struct {
        const char *head, *says; /* of [10, 20) of 100, ETag "e" */
    } cases[] = {
        {"206 x\r\nContent-Range: bytes 10-19/100\r\nETag: \"e\"", NULL},
        {"206 x\r\nContent-Range: bytes 10-19/*", NULL},
        {"200 OK\r\nContent-Length: 100", "ignores byte ranges"},
        {"200 OK\r\nContent-Type: text/html", "a page"},
        {"206 x", "without saying which"},
        {"206 x\r\nContent-Range: bytes 11-20/100", "sends bytes 11-20"},
        {"206 x\r\nContent-Range: bytes 10-18/100", "sends bytes 10-18"},
        {"206 x\r\nContent-Range: bytes 10-19/101", "changed"},
        {"206 x\r\nContent-Range: bytes 10-19/100\r\nContent-Length: 11", "sends 11 bytes"},
        {"206 x\r\nContent-Range: bytes 10-19/100\r\nETag: \"f\"", "another ETag"},
        {"206 x\r\nContent-Range: bytes 10-19/100\r\nContent-Encoding: gzip", "sends 'gzip'"},
        {"206 x\r\nContent-Range: bytes 10-19/100\r\nContent-Encoding: identity", NULL},
        {"206 x\r\nContent-Range: bytes 10-19/100\r\nContent-Type: text/html", "a page"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        struct kd_answer a;
        struct kd_err err = {.msg = ""};
        snprintf(text, sizeof text, "HTTP/1.1 %s\r\n\r\n", cases[i].head);
        head(&a, text);
        assert_int_equal(kd_answer_check(&a, 10, 10, 100, "\"e\"", &err), cases[i].says ? -1 : 0);
        if (cases[i].says)
            assert_non_null(strstr(err.msg, cases[i].says));
    }
    struct kd_answer a;
    struct kd_err err;
    head(&a, "HTTP/1.1 206 x\r\nContent-Range: bytes 10-14/15\r\n\r\n");
    assert_int_equal(kd_answer_check(&a, 10, 10, -1, "", &err), -1);
    assert_non_null(strstr(err.msg, "ends at byte 15"));
    assert_true(kd_answer_again(429) && kd_answer_again(503) && !kd_answer_again(404) &&
                !kd_answer_again(416));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranges), cmocka_unit_test(heads),
                                       cmocka_unit_test(checks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
