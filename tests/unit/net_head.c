/* net/head: what is a sound request's head, and the status of each that is not. */
#include "net/head.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define GET  "GET / HTTP/1.1\r\nHost: a\r\n"
#define POST "POST / HTTP/1.1\r\nHost: a\r\n"

static enum kd_head_state parse(struct kd_head *h, const char *s)
{
    return kd_head_parse(h, s, strlen(s), 1000);
}

static void takes(void **state)
{
    struct kd_head h;
    (void)state;
    assert_int_equal(parse(&h, GET "\r\nrest"), KD_HEAD_OK);
    assert_int_equal(h.head_bytes, strlen(GET "\r\n"));
    assert_true(h.keep_alive && !h.http10 && !h.chunked && !h.has_length);
    assert_int_equal(parse(&h, POST "Content-Length: 1000\r\nConnection: x, Close\r\n\r\n"),
                     KD_HEAD_OK);
    assert_true(h.has_length && h.length == 1000 && !h.keep_alive);
    assert_int_equal(parse(&h, "\r\nGET /a?b=%20 HTTP/1.0\r\n\r\n"), KD_HEAD_OK);
    assert_true(h.http10 && !h.keep_alive);
    assert_int_equal(parse(&h, "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"), KD_HEAD_OK);
    assert_true(h.keep_alive);
}

static void refuses(void **state)
{
    static const struct {
        const char *text;
        int status;
    } t[] = {
        {"GET /\r\n\r\n", 400},
        {"GET / HTTP/1.1\n\n", 400},
        {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
        {"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505},
        {"GET / http/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"\x16\x03\x01\x02\x01\x01\n", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {GET "Host: b\r\n\r\n", 400},
        {GET " folded: b\r\n\r\n", 400},
        {GET "a : b\r\n\r\n", 400},
        {GET "a\r\n\r\n", 400},
        {GET ": b\r\n\r\n", 400},
        {GET "a: b\x01\r\n\r\n", 400},
        {GET "a: b\rc: d\r\n\r\n", 400},
        {GET "a: b\n\r\n", 400},
        {POST "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
        {POST "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
        {POST "Content-Length: 1, 1\r\n\r\n", 400},
        {POST "Content-Length: +1\r\n\r\n", 400},
        {POST "Content-Length: -1\r\n\r\n", 400},
        {POST "Content-Length: 0x1\r\n\r\n", 400},
        {POST "Content-Length:\r\n\r\n", 400},
        {POST "Content-Length: 1001\r\n\r\n", 413},
        {POST "Content-Length: 99999999999999999999\r\n\r\n", 413},
        {POST "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400},
        {POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {POST "Transfer-Encoding: gzip, chunked\r\n\r\n", 400},
        {POST "Transfer-Encoding: identity\r\n\r\n", 400},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {POST "Transfer-Encoding: Chunked\r\n\r\n", 411},
        {POST "Expect: magic\r\n\r\n", 417},
    };
    struct kd_head h;
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        if (parse(&h, t[i].text) != KD_HEAD_BAD || h.status != t[i].status || !h.why)
            fail_msg("case %zu: status %d, not %d", i, h.status, t[i].status);
    }
    assert_int_equal(kd_head_parse(&h, GET "a: \0\r\n\r\n", sizeof GET + 8, 1), KD_HEAD_BAD);
}

/* A head cut anywhere is awaited, and judged as when it came whole. */
static void waits(void **state)
{
    static const char s[] = POST "Content-Length: 3\r\n\r\n";
    struct kd_head h;
    (void)state;
    for (size_t n = 0; n + 1 < sizeof s; n++)
        assert_int_equal(kd_head_parse(&h, s, n, 10), KD_HEAD_MORE);
    assert_int_equal(kd_head_parse(&h, s, sizeof s - 1, 10), KD_HEAD_OK);
}

static void limits(void **state)
{
    static char s[2 * KD_HEAD_BYTES_MAX];
    struct kd_head h;
    (void)state;
    size_t n = (size_t)snprintf(s, sizeof s, GET "a: ");
    memset(s + n, 'x', sizeof s - n);
    assert_int_equal(kd_head_parse(&h, s, KD_HEAD_BYTES_MAX - 1, 1), KD_HEAD_MORE);
    assert_int_equal(kd_head_parse(&h, s, KD_HEAD_BYTES_MAX + 1, 1), KD_HEAD_BAD);
    assert_int_equal(h.status, 431);
    n = (size_t)snprintf(s, sizeof s, GET);
    for (int i = 0; i < 200; i++)
        n += (size_t)snprintf(s + n, sizeof s - n, "a: b\r\n");
    assert_int_equal(kd_head_parse(&h, s, n, 1), KD_HEAD_BAD);
    assert_int_equal(h.status, 431);
    n = (size_t)snprintf(s, sizeof s, "GET /");
    memset(s + n, 'x', 9000);
    snprintf(s + n + 9000, 64, " HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_int_equal(parse(&h, s), KD_HEAD_BAD);
    assert_int_equal(h.status, 414);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(takes), cmocka_unit_test(refuses),
                                       cmocka_unit_test(waits), cmocka_unit_test(limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
