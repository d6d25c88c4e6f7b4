/* TLS in front of the plain server: a client that trusts our authority gets through in both
 * directions, one that does not is refused, and so is a name the certificate does not hold. */
#include "base/file.h"
#include "net/call.h"
#include "net/srv.h"
#include "net/tls.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char dir[64];

static void echo(void *ctx, struct kd_req *r)
{
    size_t n;
    const char *body = kd_req_body(r, &n);
    (void)ctx;
    kd_req_reply(r, 200, "application/octet-stream", body, n);
}

static void fault(void *ctx, const char *path, const struct kd_fault *f, const char *id,
                  struct kd_buf *out)
{
    (void)ctx;
    (void)path;
    (void)id;
    kd_buf_printf(out, "{\"error\":\"%s\"}", f->message);
}

struct world {
    struct kd_srv *srv;
    struct kd_tls *tls;
    char ca[128], url[128];
    struct kd_buf ca_text;
    const char *pem;
};

static void open_world(struct world *w, const char *name)
{
    static const struct kd_route routes[] = {
        {"PUT", "/x", echo, .open = true}, {"GET", "/x", echo, .open = true}, {0}};
    struct kd_err err = {0};
    char ca_key[128], cert[128], key[128];
    snprintf(w->ca, sizeof w->ca, "%s/ca.pem", dir);
    snprintf(ca_key, sizeof ca_key, "%s/ca.key", dir);
    snprintf(cert, sizeof cert, "%s/srv.pem", dir);
    snprintf(key, sizeof key, "%s/srv.key", dir);
    const char *names[] = {name, "localhost"};
    struct kd_srv_options o = {.routes = routes, .fail = fault};
    struct kd_tls_options t = {.cert_file = cert, .key_file = key};
    if (kd_cert_authority(w->ca, ca_key, "test", &err) ||
        kd_cert_server(cert, key, w->ca, ca_key, names, 2, &err) || kd_srv_open(&w->srv, &o, &err))
        fail_msg("%s", err.msg);
    t.to_port = kd_srv_port(w->srv);
    if (kd_tls_open(&w->tls, &t, &err))
        fail_msg("%s", err.msg);
    snprintf(w->url, sizeof w->url, "https://127.0.0.1:%d/x", kd_tls_port(w->tls));
    kd_buf_init(&w->ca_text, 1 << 20);
    if (kd_file_read(&w->ca_text, w->ca, 1 << 20, &err))
        fail_msg("%s", err.msg);
    w->pem = w->ca_text.data;
}

static void close_world(struct world *w)
{
    kd_tls_close(w->tls);
    kd_srv_close(w->srv, 1);
    kd_buf_release(&w->ca_text);
}

static void large_bodies_pass_both_ways(void **state)
{
    (void)state;
    struct world w;
    struct kd_client *c;
    struct kd_reply r;
    struct kd_err err = {0};
    size_t n = 9 << 20;
    char *body = malloc(n);
    open_world(&w, "127.0.0.1");
    for (size_t i = 0; i < n; i++)
        body[i] = (char)(i * 131 >> 7);
    kd_reply_init(&r);
    struct kd_client_opts o = {.ca_pem = w.pem, .tries = 1, .total_s = 60, .key = "secret"};
    assert_int_equal(kd_client_open(&c, &o, &err), 0);
    for (int i = 0; i < 3; i++) { /* the connection is kept */
        if (kd_client_put(c, w.url, body, n, &r, &err))
            fail_msg("%s", err.msg);
        assert_int_equal(r.status, 200);
        assert_int_equal(r.body.size_bytes, n);
        assert_memory_equal(r.body.data, body, n);
        if (kd_client_send(c, w.url, NULL, 0, &r, &err))
            fail_msg("%s", err.msg);
        assert_int_equal(r.status, 200);
    }
    kd_client_close(c);
    kd_reply_release(&r);
    free(body);
    close_world(&w);
}

static void strangers_are_refused(void **state)
{
    (void)state;
    struct world w;
    struct kd_client *c;
    struct kd_reply r;
    struct kd_err err = {0};
    open_world(&w, "other.example"); /* not the address called */
    kd_reply_init(&r);
    struct kd_client_opts o = {.ca_pem = w.pem, .tries = 1, .total_s = 10};
    assert_int_equal(kd_client_open(&c, &o, &err), 0);
    assert_int_equal(kd_client_send(c, w.url, NULL, 0, &r, &err), -1);
    kd_client_close(c);
    o.ca_pem = NULL; /* the system's authorities do not know ours */
    assert_int_equal(kd_client_open(&c, &o, &err), 0);
    assert_int_equal(kd_client_send(c, w.url, NULL, 0, &r, &err), -1);
    kd_client_close(c);
    /* Plain HTTP and noise on the port: cut, and the next caller is served. */
    char url[128];
    snprintf(url, sizeof url, "http://127.0.0.1:%d/x", kd_tls_port(w.tls));
    assert_int_equal(kd_client_open(&c, &o, &err), 0);
    assert_int_equal(kd_client_send(c, url, NULL, 0, &r, &err), -1);
    kd_client_close(c);
    o.ca_pem = w.pem;
    snprintf(url, sizeof url, "https://localhost:%d/x", kd_tls_port(w.tls));
    assert_int_equal(kd_client_open(&c, &o, &err), 0);
    if (kd_client_send(c, url, NULL, 0, &r, &err))
        fail_msg("%s", err.msg);
    kd_client_close(c);
    kd_reply_release(&r);
    close_world(&w);
}

static void names_are_checked(void **state)
{
    (void)state;
    struct kd_err err = {0};
    const char *bad[] = {"a,DNS:b", "", "a b", "host\n"};
    for (int i = 0; i < 4; i++)
        assert_int_equal(kd_cert_server("/nonexistent/a", "/nonexistent/b", "/nonexistent/c",
                                        "/nonexistent/d", &bad[i], 1, &err),
                         -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(large_bodies_pass_both_ways),
                                       cmocka_unit_test(strangers_are_refused),
                                       cmocka_unit_test(names_are_checked)};
    struct kd_err err;
    signal(SIGPIPE, SIG_IGN); /* as the program does */
    snprintf(dir, sizeof dir, "/tmp/kondense-tls-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    return kd_dir_remove(dir, &err) ? 1 : rc;
}
