/* net/url, net/pieces, net/links: addresses, names of pieces, pages of links. */
#include "net/links.h"
#include "net/url.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

static void origins(void **state)
{
    struct kd_origin a, b;
    struct kd_err err;
    (void)state;
    assert_int_equal(kd_url_origin(&a, "https://Host.Example/x?y", &err), 0);
    assert_string_equal(a.host, "host.example");
    assert_int_equal(a.port, 443);
    assert_int_equal(kd_url_origin(&b, "https://host.example:443/z", &err), 0);
    assert_true(kd_origin_same(&a, &b));
    assert_int_equal(kd_url_origin(&b, "http://host.example/", &err), 0);
    assert_false(kd_origin_same(&a, &b));
    assert_int_equal(kd_url_origin(&a, "http://[::1]:80/", &err), 0);
    assert_string_equal(a.host, "::1");
    assert_true(kd_host_loopback(a.host));
    static const char *const none[] = {"ftp://a/b",     "https://u:geheim@h/", "https://u@h/", "x",
                                       "https://h/a b", "file:///etc/passwd",  "https://"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_int_equal(kd_url_origin(&a, none[i], &err), -1);
        assert_null(strstr(err.msg, "geheim"));
    }
}

static void addresses(void **state)
{
    static const char *const inside[] = {
        "127.0.0.1", "10.1.2.3", "192.168.0.1", "172.31.0.1", "169.254.1.1",    "::1",
        "fe80::1",   "fd00::1",  "0.0.0.0",     "100.64.0.1", "::ffff:10.0.0.1"};
    static const char *const outside[] = {"8.8.8.8", "172.32.0.1", "2001:db8::1", "host",
                                          "11.0.0.1"};
    (void)state;
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++)
        assert_true(kd_ip_private(inside[i]));
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        assert_false(kd_ip_private(outside[i]));
    assert_true(kd_host_loopback("localhost") && kd_host_loopback("127.9.9.9"));
    assert_false(kd_host_loopback("localhost.example") || kd_host_loopback("128.0.0.1"));
}

static void texts(void **state)
{
    struct kd_err err;
    struct kd_buf b;
    char out[256], name[32] = "a%20b%41", bad[8] = "%0";
    (void)state;
    assert_string_equal(kd_url_show(out, sizeof out, "https://h/p?sig=hush#x"), "https://h/p");
    assert_string_equal(kd_url_show(out, sizeof out, "https://u:geheim@h/p?a=@"), "https://h/p");
    assert_int_equal(kd_url_join(out, sizeof out, "https://h/a/b?c", "../d?e=1", &err), 0);
    assert_string_equal(out, "https://h/d?e=1");
    assert_int_equal(kd_url_join(out, sizeof out, "https://h/a", "http://i/", &err), 0);
    assert_string_equal(out, "http://i/");
    assert_int_equal(kd_url_join(out, sizeof out, "https://h/a", "a\r\nX: y", &err), -1);
    kd_buf_init(&b, 100);
    kd_url_escape(&b, "a b/%?#.gguf");
    assert_string_equal(b.data, "a%20b/%25%3F%23.gguf");
    kd_buf_release(&b);
    assert_int_equal(kd_url_unescape(name), 0);
    assert_string_equal(name, "a bA");
    assert_int_equal(kd_url_unescape(bad), -1);
    assert_int_equal(kd_path_check("UD-IQ1_S/x-00001-of-00014.gguf", &err), 0);
    static const char *const none[] = {"",     "/a", "a/",   "a//b", "../a",
                                       "a/..", "-a", "a/-b", "a\nb"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_int_equal(kd_path_check(none[i], &err), -1);
}

static int note(void *ctx, const char *name, struct kd_err *err)
{
    (void)err;
    kd_buf_printf(ctx, "%s|", name);
    return 0;
}

static void links(void **state)
{
    static const char page[] = "<a href=\"../\">up</a><a HREF='a.gguf'>a</a><a "
                               "href=\"b%20c.json?x\">n</a><a href=\"./d&amp;e\">"
                               "<a href=\"/etc\"><a href=\"sub/\"><a href=\"https://x/y\"><a "
                               "href=\".hidden\"><a href=\"%2e%2e%2fz\">"
                               "<a href=\"f%20g.json\"><a href=\"-rf\"><a href=\"unfinished";
    struct kd_buf found;
    struct kd_err err;
    (void)state;
    kd_buf_init(&found, 1000);
    assert_int_equal(kd_links_scan(page, sizeof page - 1, note, &found, &err), 0);
    assert_string_equal(found.data, "a.gguf|d&e|f g.json|");
    kd_buf_release(&found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(origins), cmocka_unit_test(addresses),
                                       cmocka_unit_test(texts), cmocka_unit_test(links)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
