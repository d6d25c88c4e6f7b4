/* net/srv over real sockets on loopback: routes, keys, refusals in our own words, smuggling, slow
 * and vanishing clients, streams that end well and badly, and a stop that leaves nothing behind. */
#include "net/srv.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct kd_srv *srv;
static atomic_int ended, ended_whole;
static char hash[65];
static const char *keys[1] = {hash};

static void fail_body(void *ctx, const char *path, const struct kd_fault *f, const char *id,
                      struct kd_buf *out)
{
    (void)ctx;
    (void)path;
    (void)id;
    kd_buf_printf(out, "{\"error\":%d}", f->status);
}

static void echo(void *ctx, struct kd_req *r)
{
    size_t n;
    const char *body = kd_req_body(r, &n);
    (void)ctx;
    kd_req_reply(r, 200, "text/plain", body, n);
}

static void rest(void *ctx, struct kd_req *r)
{
    (void)ctx;
    kd_req_reply(r, 200, "text/plain", kd_req_rest(r), strlen(kd_req_rest(r)));
}

/* Counts down; 0: ends well, then on: fails. A stream of "endless" never ends. */
struct source {
    int left;
    bool fails, endless, silent;
};

static int source_next(void *ctx, struct kd_buf *out, double timeout_s)
{
    struct source *s = ctx;
    if (s->silent) {
        poll(NULL, 0, (int)(timeout_s * 1000));
        return 0;
    }
    if (s->endless) {
        for (int i = 0; i < 1000; i++)
            kd_buf_str(out, "0123456789012345678901234567890123456789");
        return 0;
    }
    if (!s->left)
        return s->fails ? -1 : 1;
    kd_buf_printf(out, "%d;", s->left--);
    return 0;
}

static void source_end(void *ctx, struct kd_req *r, bool done)
{
    (void)r;
    ended++;
    ended_whole += done;
    free(ctx);
}

static void stream(void *ctx, struct kd_req *r)
{
    struct source *s = calloc(1, sizeof *s);
    (void)ctx;
    assert_non_null(s);
    s->left = 3;
    s->fails = !strcmp(kd_req_rest(r), "fails");
    s->endless = !strcmp(kd_req_rest(r), "endless");
    s->silent = !strcmp(kd_req_rest(r), "silent");
    kd_req_stream(
        r, "text/plain",
        &(struct kd_stream){
            .ctx = s, .next = source_next, .end = source_end, .idle = "idle;", .idle_s = 0.3});
}

static const struct kd_route routes[] = {{"GET", "/open", echo, .open = true},
                                         {"POST", "/echo", echo},
                                         {"GET", "/rest/*", rest},
                                         {"GET", "/stream/*", stream},
                                         {0}};

static int dial(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)kd_srv_port(srv)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void put(int fd, const char *s)
{
    size_t n = strlen(s);
    assert_int_equal(send(fd, s, n, MSG_NOSIGNAL), (ssize_t)n);
}

/* All up to the end of the stream, or until `until` has come; empty after `ms` of silence. */
static char answer[1 << 20];
static const char *take(int fd, const char *until, int ms)
{
    size_t n = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    answer[0] = 0;
    while (n + 1 < sizeof answer && !(until && strstr(answer, until)) && poll(&p, 1, ms) > 0) {
        ssize_t k = recv(fd, answer + n, sizeof answer - 1 - n, 0);
        if (k <= 0)
            break;
        n += (size_t)k;
        answer[n] = 0;
    }
    return answer;
}

static const char *ask(const char *text)
{
    int fd = dial();
    put(fd, text);
    take(fd, NULL, 3000);
    close(fd);
    return answer;
}

#define AUTH "Authorization: Bearer secret\r\nConnection: close\r\nHost: localhost\r\n"
#define expect(text, what)                                                                         \
    do {                                                                                           \
        const char *got_ = ask(text);                                                              \
        if (!strstr(got_, what))                                                                   \
            fail_msg("%s\n... no '%s' in:\n%s", text, what, got_);                                 \
    } while (0)

static void routing(void **state)
{
    (void)state;
    expect("GET /open HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "HTTP/1.1 200");
    assert_non_null(strstr(answer, "X-Request-Id: req_"));
    expect("GET /open HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine-1\r\nConnection: close"
           "\r\n\r\n",
           "X-Request-Id: mine-1\r\n");
    expect("GET /none HTTP/1.1\r\n" AUTH "\r\n", "{\"error\":404}");
    expect("PUT /echo HTTP/1.1\r\n" AUTH "Content-Length: 0\r\n\r\n", "Allow: POST\r\n");
    assert_non_null(strstr(answer, "{\"error\":405}"));
    expect("GET /rest/a%2Fb HTTP/1.1\r\n" AUTH "\r\n", "\r\n\r\na/b");
    expect("HEAD /open HTTP/1.1\r\n" AUTH "\r\n", "HTTP/1.1 200");
    expect("POST /echo HTTP/1.1\r\n" AUTH "Content-Type: application/json; charset=utf-8\r\n"
           "Content-Length: 2\r\n\r\nhi",
           "\r\n\r\nhi");
    expect("POST /echo HTTP/1.1\r\n" AUTH "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\nhi",
           "{\"error\":415}");
}

static void keys_and_names(void **state)
{
    (void)state;
    expect("GET /rest/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
           "WWW-Authenticate: Bearer\r\n");
    assert_non_null(strstr(answer, "{\"error\":401}"));
    expect("GET /rest/a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secreT\r\n"
           "Connection: close\r\n\r\n",
           "{\"error\":401}");
    expect("GET /rest/a HTTP/1.1\r\nHost: localhost\r\nx-api-key: secret\r\n"
           "Connection: close\r\n\r\n",
           "HTTP/1.1 200");
    expect("GET /open HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
           "{\"error\":403}");
    expect("GET /open HTTP/1.1\r\nHost: localhost.evil.example\r\nConnection: close\r\n\r\n",
           "{\"error\":403}");
    expect("GET /open HTTP/1.1\r\nHost: [::1]:80\r\nConnection: close\r\n\r\n", "HTTP/1.1 200");
    expect("GET /open HTTP/1.1\r\nHost: localhost:80\r\nOrigin: http://evil.example\r\n"
           "Connection: close\r\n\r\n",
           "{\"error\":403}");
    expect("GET /open HTTP/1.1\r\nHost: localhost:80\r\nOrigin: null\r\nConnection: close\r\n\r\n",
           "{\"error\":403}");
    expect("GET /open HTTP/1.1\r\nHost: localhost:80\r\nOrigin: http://localhost:80\r\n"
           "Connection: close\r\n\r\n",
           "HTTP/1.1 200");
}

static void hostile(void **state)
{
    static const char *const bad[] = {
        "GET /open HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
        "POST /echo HTTP/1.1\r\n" AUTH "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
        "0\r\n\r\n",
        "\x16\x03\x01\x02\x01\n",
        "GET /open\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" AUTH "Content-Length: -5\r\n\r\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        expect(bad[i], "HTTP/1.1 400");
        assert_non_null(strstr(answer, "{\"error\":400}"));
        assert_non_null(strstr(answer, "Connection: close"));
    }
    expect("POST /echo HTTP/1.1\r\n" AUTH "Content-Length: 5000\r\n\r\n", "{\"error\":413}");
    /* The same behind a sound request on a kept connection. */
    int fd = dial();
    put(fd, "GET /open HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_non_null(strstr(take(fd, "\r\n\r\n", 2000), "HTTP/1.1 200"));
    assert_null(strstr(answer, "Connection: close"));
    put(fd, "GET /open HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_non_null(strstr(take(fd, "\r\n\r\n", 2000), "HTTP/1.1 200"));
    put(fd, bad[0]);
    assert_non_null(strstr(take(fd, NULL, 2000), "{\"error\":400}"));
    close(fd);
    /* And sent at once with it: only the first is served. */
    fd = dial();
    put(fd, "GET /open HTTP/1.1\r\nHost: localhost\r\n\r\nGET /rest/x HTTP/1.1\r\n" AUTH "\r\n");
    take(fd, NULL, 2000);
    assert_non_null(strstr(answer, "HTTP/1.1 200"));
    assert_null(strstr(answer + 10, "HTTP/1.1 200"));
    close(fd);
    expect("POST /echo HTTP/1.1\r\n" AUTH "Transfer-Encoding: chunked\r\n\r\nzz\r\nhi\r\n0\r\n\r\n",
           "{\"error\":411}");
}

static void slow(void **state)
{
    double t0 = kd_clock_s();
    (void)state;
    int fd = dial(), other = dial(), body = dial();
    put(body, "POST /echo HTTP/1.1\r\n" AUTH
              "Content-Type: application/json\r\nContent-Length: 100\r\n\r\nx");
    for (int i = 0; i < 4; i++) { /* a byte now and then does not help */
        send(fd, "G", 1, MSG_NOSIGNAL);
        send(body, "x", 1, MSG_NOSIGNAL);
        poll(NULL, 0, 100);
    }
    assert_non_null(strstr(take(fd, NULL, 4000), "{\"error\":408}"));
    assert_string_equal(take(other, NULL, 4000), "");
    take(body, NULL, 4000);
    assert_null(strstr(answer, "200"));
    assert_true(kd_clock_s() - t0 < 5);
    close(fd);
    close(other);
    close(body);
}

static void streams(void **state)
{
    (void)state;
    int before = ended, whole = ended_whole;
    expect("GET /stream/x HTTP/1.1\r\n" AUTH "\r\n", "\r\n0\r\n\r\n");
    assert_non_null(strstr(answer, "Transfer-Encoding: chunked"));
    assert_non_null(strstr(answer, "3;"));
    assert_int_equal(ended, before + 1);
    assert_int_equal(ended_whole, whole + 1);
    /* A failed one has no last chunk, with or without Connection: close. */
    ask("GET /stream/fails HTTP/1.1\r\n" AUTH "\r\n");
    assert_non_null(strstr(answer, "1;"));
    assert_null(strstr(answer, "\r\n0\r\n"));
    ask("GET /stream/fails HTTP/1.1\r\nHost: localhost\r\nx-api-key: secret\r\n\r\n");
    assert_non_null(strstr(answer, "1;"));
    assert_null(strstr(answer, "\r\n0\r\n"));
    assert_int_equal(ended_whole, whole + 1);
    /* Silence is filled. */
    int fd = dial();
    put(fd, "GET /stream/silent HTTP/1.1\r\n" AUTH "\r\n");
    assert_non_null(strstr(take(fd, "idle;", 3000), "idle;"));
    /* The client that goes, or half-goes, ends its stream. */
    before = ended;
    shutdown(fd, SHUT_WR);
    for (int i = 0; i < 100 && ended == before; i++)
        poll(NULL, 0, 20);
    assert_int_equal(ended, before + 1);
    close(fd);
    /* So does one that does not read. */
    before = ended;
    fd = dial();
    put(fd, "GET /stream/endless HTTP/1.1\r\n" AUTH "\r\n");
    for (int i = 0; i < 300 && ended == before; i++)
        poll(NULL, 0, 20);
    assert_int_equal(ended, before + 1);
    close(fd);
}

static void crowd(void **state)
{
    int fd[20];
    (void)state;
    for (int i = 0; i < 500 && kd_srv_connections(srv); i++)
        poll(NULL, 0, 10);
    for (int i = 0; i < 20; i++)
        fd[i] = dial();
    for (int i = 0; i < 100 && kd_srv_connections(srv) < 16; i++)
        poll(NULL, 0, 10);
    expect("GET /open HTTP/1.1\r\nHost: localhost\r\n\r\n", "{\"error\":503}");
    for (int i = 0; i < 20; i++)
        close(fd[i]);
    for (int i = 0; i < 500 && kd_srv_connections(srv); i++)
        poll(NULL, 0, 10);
    assert_int_equal(kd_srv_connections(srv), 0);
    expect("GET /open HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "HTTP/1.1 200");
}

static void stops(void **state)
{
    (void)state;
    int fd = dial(), idle = dial(), kept = dial();
    put(fd, "GET /stream/silent HTTP/1.1\r\n" AUTH "\r\n");
    put(kept, "GET /open HTTP/1.1\r\nHost: localhost\r\n\r\n");
    take(kept, "\r\n\r\n", 2000);
    take(fd, "idle;", 3000);
    double t0 = kd_clock_s();
    kd_srv_close(srv, 0.5);
    srv = NULL;
    assert_true(kd_clock_s() - t0 < 4);
    close(fd);
    close(idle);
    close(kept);
}

int main(void)
{
    struct kd_err err;
    if (kd_sha256_of("secret", 6, hash, &err) ||
        kd_srv_open(&srv,
                    &(struct kd_srv_options){.routes = routes,
                                             .fail = fail_body,
                                             .body_bytes = 4000,
                                             .request_s = 1,
                                             .stall_s = 1,
                                             .connections = 16,
                                             .key_sha256 = keys,
                                             .keys = 1},
                    &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(routing), cmocka_unit_test(keys_and_names),
                                       cmocka_unit_test(hostile), cmocka_unit_test(slow),
                                       cmocka_unit_test(streams), cmocka_unit_test(crowd),
                                       cmocka_unit_test(stops)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
