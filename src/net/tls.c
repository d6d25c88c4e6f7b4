/* The front: one thread accepts, one a connection pumps between the wire and the plain server. */
#include "net/tls.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BLOCK = 64 << 10, TICK_MS = 200 };
#define HANDSHAKE_S 10.0

struct kd_tls {
    SSL_CTX *ctx;
    pthread_t thread;
    int listener, port, to_port;
    int64_t most;
    atomic_bool over;
    atomic_llong open;
};

/* One direction's bytes under way. */
struct half {
    unsigned char data[BLOCK];
    size_t at, end;
    bool closed; /* nothing more comes */
};

struct pipe {
    struct kd_tls *t;
    SSL *ssl;
    int wire, plain;
    struct half in, out; /* from the wire, to the wire */
    bool want_write;     /* TLS itself has something to send */
};

static void *fail_thread(struct pipe *p)
{
    SSL_free(p->ssl);
    close(p->wire);
    if (p->plain >= 0)
        close(p->plain);
    atomic_fetch_sub(&p->t->open, 1);
    kd_mem_free(p);
    return NULL;
}

static bool handshake(struct pipe *p)
{
    double until = kd_clock_s() + HANDSHAKE_S;
    while (!p->t->over && kd_clock_s() < until) {
        int rc = SSL_accept(p->ssl);
        if (rc == 1)
            return true;
        int why = SSL_get_error(p->ssl, rc);
        if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE)
            return false;
        struct pollfd f = {.fd = p->wire, .events = why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT};
        if (poll(&f, 1, TICK_MS) < 0 && errno != EINTR)
            return false;
    }
    return false;
}

static int reach_plain(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a)) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

/* -1: the connection is over; 1: something moved. */
static int from_wire(struct pipe *p)
{
    struct half *h = &p->in;
    if (h->closed || h->end)
        return 0;
    int n = SSL_read(p->ssl, h->data, BLOCK);
    if (n > 0) {
        h->end = (size_t)n;
        return 1;
    }
    int why = SSL_get_error(p->ssl, n);
    if (why == SSL_ERROR_WANT_READ)
        return 0;
    if (why == SSL_ERROR_WANT_WRITE) {
        p->want_write = true;
        return 0;
    }
    h->closed = true;
    shutdown(p->plain, SHUT_WR);
    return why == SSL_ERROR_ZERO_RETURN ? 1 : -1;
}

static int to_plain(struct pipe *p)
{
    struct half *h = &p->in;
    if (h->at == h->end)
        return 0;
    ssize_t n = send(p->plain, h->data + h->at, h->end - h->at, MSG_NOSIGNAL);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    h->at += (size_t)n;
    if (h->at == h->end)
        h->at = h->end = 0;
    return 1;
}

static int from_plain(struct pipe *p)
{
    struct half *h = &p->out;
    if (h->closed || h->end)
        return 0;
    ssize_t n = recv(p->plain, h->data, BLOCK, 0);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    h->closed = n == 0;
    h->end = (size_t)n;
    return 1;
}

static int to_wire(struct pipe *p)
{
    struct half *h = &p->out;
    if (h->at == h->end)
        return h->closed ? -1 : 0;
    int n = SSL_write(p->ssl, h->data + h->at, (int)(h->end - h->at));
    if (n > 0) {
        h->at += (size_t)n;
        if (h->at == h->end)
            h->at = h->end = 0;
        return 1;
    }
    int why = SSL_get_error(p->ssl, n);
    p->want_write = why == SSL_ERROR_WANT_WRITE;
    return why == SSL_ERROR_WANT_WRITE || why == SSL_ERROR_WANT_READ ? 0 : -1;
}

static void pump(struct pipe *p)
{
    while (!p->t->over) {
        p->want_write = false;
        int moved = 0, rc = 0;
        int (*const steps[])(struct pipe *) = {from_wire, to_plain, from_plain, to_wire};
        for (int i = 0; i < 4 && rc >= 0; i++) {
            rc = steps[i](p);
            moved |= rc > 0;
        }
        if (rc < 0)
            break;
        if (moved)
            continue;
        struct pollfd f[2] = {{.fd = p->wire,
                               .events = (short)((p->in.end || p->in.closed ? 0 : POLLIN) |
                                                 (p->out.end || p->want_write ? POLLOUT : 0))},
                              {.fd = p->plain,
                               .events = (short)((p->out.end || p->out.closed ? 0 : POLLIN) |
                                                 (p->in.end ? POLLOUT : 0))}};
        /* A side that wants nothing is still heard when it breaks. */
        if (poll(f, 2, TICK_MS) < 0 && errno != EINTR)
            break;
        if ((f[0].revents & (POLLERR | POLLNVAL)) || (f[1].revents & (POLLERR | POLLNVAL)))
            break;
        if ((f[0].revents & POLLHUP) && p->in.closed)
            break;
    }
    SSL_shutdown(p->ssl);
}

static void *serve(void *arg)
{
    struct pipe *p = arg;
    p->ssl = SSL_new(p->t->ctx);
    if (!p->ssl || SSL_set_fd(p->ssl, p->wire) != 1 || !handshake(p))
        return fail_thread(p);
    p->plain = reach_plain(p->t->to_port);
    if (p->plain >= 0)
        pump(p);
    ERR_clear_error();
    return fail_thread(p);
}

static void take(struct kd_tls *t)
{
    int one = 1, fd = accept4(t->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct pipe *p;
    pthread_t thread;
    pthread_attr_t attr;
    if (fd < 0)
        return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    if (t->open >= t->most || kd_mem_zero(&p, 1, sizeof *p, "connection", NULL)) {
        close(fd);
        return;
    }
    p->t = t;
    p->wire = fd;
    p->plain = -1;
    atomic_fetch_add(&t->open, 1);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, 256 << 10);
    if (pthread_create(&thread, &attr, serve, p))
        fail_thread(p);
    pthread_attr_destroy(&attr);
}

static void *accept_all(void *arg)
{
    struct kd_tls *t = arg;
    struct pollfd f = {.fd = t->listener, .events = POLLIN};
    while (!t->over)
        if (poll(&f, 1, TICK_MS) > 0)
            take(t);
    return NULL;
}

static int listen_on(struct kd_tls *t, const char *host, int port, struct kd_err *err)
{
    struct addrinfo hint = {.ai_family = AF_UNSPEC,
                            .ai_socktype = SOCK_STREAM,
                            .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *list, *a;
    char text[16];
    int one = 1;
    snprintf(text, sizeof text, "%d", port);
    int rc = getaddrinfo(host, text, &hint, &list);
    if (rc)
        return kd_fail(err, KD_EINVAL, "host '%s': %s", host, gai_strerror(rc));
    for (a = list; a && t->listener < 0; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, 256)) {
            int e = errno;
            close(fd);
            errno = e;
            continue;
        }
        t->listener = fd;
    }
    freeaddrinfo(list);
    struct sockaddr_storage me = {0};
    socklen_t size = sizeof me;
    if (t->listener < 0 || getsockname(t->listener, (struct sockaddr *)&me, &size))
        return kd_fail_sys(err, "cannot listen on %s port %d", host, port);
    t->port = ntohs(me.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&me)->sin6_port
                                             : ((struct sockaddr_in *)(void *)&me)->sin_port);
    return 0;
}

int kd_tls_open(struct kd_tls **out, const struct kd_tls_options *o, struct kd_err *err)
{
    struct kd_tls *t;
    char why[160];
    *out = NULL;
    if (kd_mem_zero(&t, 1, sizeof *t, "TLS", err))
        return -1;
    t->listener = -1;
    t->to_port = o->to_port;
    t->most = o->connections > 0 ? o->connections : 256;
    t->ctx = SSL_CTX_new(TLS_server_method());
    int rc = 0;
    if (!t->ctx || SSL_CTX_set_min_proto_version(t->ctx, TLS1_2_VERSION) != 1 ||
        SSL_CTX_use_certificate_chain_file(t->ctx, o->cert_file) != 1 ||
        SSL_CTX_use_PrivateKey_file(t->ctx, o->key_file, SSL_FILETYPE_PEM) != 1) {
        ERR_error_string_n(ERR_get_error(), why, sizeof why);
        rc = kd_fail(err, KD_EINVAL, "'%s' with '%s': %s", o->cert_file, o->key_file, why);
    }
    if (!rc) {
        SSL_CTX_set_mode(t->ctx,
                         SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
        rc = listen_on(t, o->host ? o->host : "127.0.0.1", o->port, err);
    }
    if (!rc && pthread_create(&t->thread, NULL, accept_all, t))
        rc = kd_fail(err, KD_ENOMEM, "cannot start a thread");
    if (rc) {
        if (t->listener >= 0)
            close(t->listener);
        SSL_CTX_free(t->ctx);
        kd_mem_free(t);
        return -1;
    }
    *out = t;
    return 0;
}

int kd_tls_port(const struct kd_tls *t)
{
    return t->port;
}

void kd_tls_close(struct kd_tls *t)
{
    if (!t)
        return;
    t->over = true;
    pthread_join(t->thread, NULL);
    close(t->listener);
    while (t->open > 0)
        poll(NULL, 0, 10);
    SSL_CTX_free(t->ctx);
    kd_mem_free(t);
}
