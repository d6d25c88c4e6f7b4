/* The gate: accepts, looks at heads in the socket, and reaps what takes too long. */
#include "base/clock.h"
#include "base/mem.h"
#include "net/srv_int.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 64, TICK_MS = 100 };

void kd_srv_new_id(struct kd_srv *s, char out[40])
{
    snprintf(out, 40, "req_%s%06" PRIx64, s->salt, ++s->serial & 0xffffff);
}

static void name_of(const struct sockaddr_storage *a, char *out, size_t size)
{
    const void *ip = a->ss_family == AF_INET6
                         ? (const void *)&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr
                         : (const void *)&((const struct sockaddr_in *)(const void *)a)->sin_addr;
    if (!inet_ntop(a->ss_family, ip, out, (socklen_t)size))
        snprintf(out, size, "?");
    if (!strncmp(out, "::ffff:", 7))
        memmove(out, out + 7, strlen(out + 7) + 1);
}

void kd_srv_forget(struct kd_srv *s, struct kd_conn *c)
{
    pthread_mutex_lock(&s->lock);
    struct kd_conn **p = &s->conns;
    while (*p && *p != c)
        p = &(*p)->next;
    if (*p) {
        *p = c->next;
        s->count--;
    }
    pthread_mutex_unlock(&s->lock);
    kd_mem_free(c);
}

void kd_srv_refuse(struct kd_srv *s, struct kd_conn *c, const struct kd_head *h)
{
    struct kd_fault f = {.status = h->status, .message = h->why};
    struct kd_buf body, all;
    char id[40];
    kd_buf_init(&body, 16 << 10);
    kd_buf_init(&all, 32 << 10);
    kd_srv_new_id(s, id);
    s->o.fail(s->o.ctx, NULL, &f, id, &body);
    kd_buf_printf(
        &all,
        "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
        "Connection: close\r\nX-Request-Id: %s\r\nX-Content-Type-Options: nosniff\r\n%s\r\n",
        h->status, MHD_get_reason_phrase_for((unsigned)h->status), body.size_bytes, id,
        h->status == 503 ? "Retry-After: 1\r\n" : "");
    kd_buf_add(&all, body.data, body.size_bytes);
    ssize_t sent = all.failed ? -1 : send(c->fd, all.data, all.size_bytes, MSG_NOSIGNAL);
    shutdown(c->fd, SHUT_WR);
    if (s->o.log)
        s->o.log(s->o.ctx, &(struct kd_access){.id = id,
                                               .method = "-",
                                               .path = "-",
                                               .note = h->why,
                                               .peer = c->peer,
                                               .owner = "",
                                               .status = h->status,
                                               .out_bytes = (int64_t)body.size_bytes,
                                               .seconds = kd_clock_s() - c->born,
                                               .whole = sent > 0});
    kd_buf_release(&body);
    kd_buf_release(&all);
}

/* Looks at what lies in the socket. -1: the client has gone. */
static int look(struct kd_srv *s, struct kd_conn *c, enum kd_head_state *state)
{
    char buf[KD_HEAD_BYTES_MAX + 4096];
    ssize_t n = recv(c->fd, buf, sizeof buf, MSG_PEEK | MSG_DONTWAIT);
    *state = KD_HEAD_MORE;
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (!n)
        return -1;
    if (!c->first_byte) {
        c->first_byte = true;
        c->born = kd_clock_s();
        c->deadline = c->born + s->o.request_s;
    }
    *state = kd_head_parse(&c->head, buf, (size_t)n, s->o.body_bytes);
    if (*state == KD_HEAD_OK) {
        size_t rest = (size_t)n - c->head.head_bytes;
        /* What follows the body was sent unasked; it will not be looked at here, so it is not
         * served either. */
        bool more = rest > (size_t)c->head.length;
        c->last_request = !c->head.keep_alive || more;
    }
    return 0;
}

static void throw_away(int fd, double seconds)
{
    char buf[4096];
    double until = kd_clock_s() + seconds;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (kd_clock_s() < until && poll(&p, 1, 50) >= 0) {
        ssize_t n = recv(fd, buf, sizeof buf, MSG_DONTWAIT);
        if (!n || (n < 0 && errno != EAGAIN && errno != EINTR))
            break;
    }
}

bool kd_srv_next_head(struct kd_srv *s, struct kd_conn *c)
{
    double idle_until = kd_clock_s() + s->o.idle_s;
    enum kd_head_state st = KD_HEAD_MORE;
    struct pollfd p = {.fd = c->fd, .events = POLLIN | POLLRDHUP};
    c->first_byte = false;
    c->deadline = 0;
    c->state = KD_CONN_IDLE;
    while (!s->stopping || c->first_byte) {
        int rc = poll(&p, 1, TICK_MS);
        if (rc > 0 && look(s, c, &st))
            break;
        double now = kd_clock_s();
        if (st == KD_HEAD_OK) {
            c->state = KD_CONN_READING;
            return true;
        }
        if (st == KD_HEAD_BAD) {
            kd_srv_refuse(s, c, &c->head);
            throw_away(c->fd, 0.3);
            break;
        }
        if (now > (c->first_byte ? c->deadline : idle_until) || s->over)
            break;
        if (rc > 0) /* a part of a head: the socket stays readable */
            poll(NULL, 0, 5);
    }
    shutdown(c->fd, SHUT_RDWR);
    return false;
}

static void drop(struct kd_srv *s, struct kd_conn *c)
{
    int fd = c->fd;
    kd_srv_forget(s, c);
    close(fd);
}

/* To microhttpd, which owns the socket from here on; `c` may be gone when this returns. */
static void hand_on(struct kd_srv *s, struct kd_conn *c)
{
    struct sockaddr_storage a = {0};
    socklen_t size = sizeof a;
    int fd = c->fd;
    epoll_ctl(s->epoll, EPOLL_CTL_DEL, fd, NULL);
    c->state = KD_CONN_READING;
    if (getpeername(fd, (struct sockaddr *)&a, &size)) {
        drop(s, c);
        return;
    }
    if (MHD_add_connection(s->mhd, fd, (struct sockaddr *)&a, size) != MHD_YES) {
        /* microhttpd has closed the socket; whether it said so depends on how far it came. */
        pthread_mutex_lock(&s->lock);
        struct kd_conn *k = s->conns;
        while (k && k != c)
            k = k->next;
        bool mine = k && k->fd == fd;
        pthread_mutex_unlock(&s->lock);
        if (mine)
            kd_srv_forget(s, c);
    }
}

static void linger(struct kd_srv *s, struct kd_conn *c, const struct kd_head *h)
{
    kd_srv_refuse(s, c, h);
    c->state = KD_CONN_LINGER;
    c->deadline = kd_clock_s() + 1;
}

static void serve_gate(struct kd_srv *s, struct kd_conn *c)
{
    enum kd_head_state st;
    char buf[16 << 10];
    if (c->state == KD_CONN_LINGER) {
        ssize_t n;
        while ((n = recv(c->fd, buf, sizeof buf, MSG_DONTWAIT)) > 0)
            ;
        if (!n || (errno != EAGAIN && errno != EINTR))
            drop(s, c);
        return;
    }
    if (look(s, c, &st))
        drop(s, c);
    else if (st == KD_HEAD_OK)
        hand_on(s, c);
    else if (st == KD_HEAD_BAD)
        linger(s, c, &c->head);
}

static void take(struct kd_srv *s)
{
    struct sockaddr_storage a = {0};
    socklen_t size = sizeof a;
    struct kd_conn *c;
    int one = 1,
        fd = accept4(s->listener, (struct sockaddr *)&a, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            poll(NULL, 0, 20); /* the queue stays readable; do not spin on it */
        return;
    }
    if (kd_mem_zero(&c, 1, sizeof *c, "connection", NULL)) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    name_of(&a, c->peer, sizeof c->peer);
    size = sizeof a;
    if (!getsockname(fd, (struct sockaddr *)&a, &size))
        name_of(&a, c->local, sizeof c->local);
    c->fd = fd;
    c->born = kd_clock_s();
    c->deadline = c->born + s->o.request_s;
    c->state = KD_CONN_GATE;
    pthread_mutex_lock(&s->lock);
    c->next = s->conns;
    s->conns = c;
    bool full = ++s->count > s->o.connections;
    pthread_mutex_unlock(&s->lock);
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &e)) {
        drop(s, c);
    } else if (full) {
        struct kd_head h = {.status = 503, .why = "too many connections"};
        linger(s, c, &h);
    }
}

/* Shuts what is over its time. The gate's own connections are freed here, microhttpd's only shut:
 * their threads see that and end. */
static void reap(struct kd_srv *s)
{
    double now = kd_clock_s();
    struct kd_conn *gone[EVENTS];
    int n = 0;
    pthread_mutex_lock(&s->lock);
    for (struct kd_conn *c = s->conns; c; c = c->next) {
        int st = c->state;
        bool late = c->deadline > 0 && now > c->deadline;
        bool ours = st == KD_CONN_GATE || st == KD_CONN_LINGER;
        if (s->over || (s->stopping && st == KD_CONN_GATE && !c->first_byte))
            late = true;
        if (!late || st == KD_CONN_IDLE)
            continue;
        if (!ours)
            shutdown(c->fd, SHUT_RDWR);
        else if (n < EVENTS)
            gone[n++] = c;
    }
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < n; i++) {
        if (gone[i]->state == KD_CONN_GATE && gone[i]->first_byte && !s->over) {
            struct kd_head h = {.status = 408, .why = "the request did not come in time"};
            linger(s, gone[i], &h);
        } else {
            drop(s, gone[i]);
        }
    }
}

static void *gate(void *arg)
{
    struct kd_srv *s = arg;
    struct epoll_event e[EVENTS];
    double reaped = 0;
    bool listening = true;
    while (!s->over || s->conns) {
        int n = epoll_wait(s->epoll, e, EVENTS, TICK_MS);
        if (s->stopping && listening) {
            epoll_ctl(s->epoll, EPOLL_CTL_DEL, s->listener, NULL);
            close(s->listener);
            s->listener = -1;
            listening = false;
        }
        for (int i = 0; i < n; i++) {
            uint64_t v;
            if (e[i].data.ptr == &s->listener) {
                if (listening)
                    take(s);
            } else if (e[i].data.ptr == &s->wake) {
                if (read(s->wake, &v, sizeof v) < 0)
                    continue;
            } else {
                serve_gate(s, e[i].data.ptr);
            }
        }
        if (kd_clock_s() - reaped > TICK_MS / 1000.0) {
            reap(s);
            reaped = kd_clock_s();
        }
        if (s->over) {
            pthread_mutex_lock(&s->lock);
            bool left = false;
            for (struct kd_conn *c = s->conns; c; c = c->next)
                left = left || c->state == KD_CONN_GATE || c->state == KD_CONN_LINGER;
            pthread_mutex_unlock(&s->lock);
            if (!left)
                break;
        }
    }
    return NULL;
}

static int bind_to(struct kd_srv *s, struct kd_err *err)
{
    struct addrinfo hint = {.ai_family = AF_UNSPEC,
                            .ai_socktype = SOCK_STREAM,
                            .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *list, *a;
    char port[16];
    int one = 1;
    snprintf(port, sizeof port, "%d", s->o.port);
    int rc = getaddrinfo(s->host, port, &hint, &list);
    if (rc)
        return kd_fail(err, KD_EINVAL, "host '%s': %s", s->host, gai_strerror(rc));
    s->listener = -1;
    for (a = list; a && s->listener < 0; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, 512)) {
            int e = errno;
            close(fd);
            errno = e;
            continue;
        }
        s->listener = fd;
    }
    freeaddrinfo(list);
    if (s->listener < 0)
        return kd_fail_sys(err, "cannot listen on %s port %d", s->host, s->o.port);
    struct sockaddr_storage me = {0};
    socklen_t size = sizeof me;
    if (getsockname(s->listener, (struct sockaddr *)&me, &size))
        return kd_fail_sys(err, "cannot tell the port");
    s->port = ntohs(me.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&me)->sin6_port
                                             : ((struct sockaddr_in *)(void *)&me)->sin_port);
    return 0;
}

int kd_srv_gate_open(struct kd_srv *s, struct kd_err *err)
{
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->listener = -1;
    struct epoll_event l = {.events = EPOLLIN, .data.ptr = &s->listener};
    struct epoll_event w = {.events = EPOLLIN, .data.ptr = &s->wake};
    int rc = 0;
    if (s->epoll < 0 || s->wake < 0)
        rc = kd_fail_sys(err, "cannot watch sockets");
    else if (!(rc = bind_to(s, err)) && (epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->listener, &l) ||
                                         epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->wake, &w)))
        rc = kd_fail_sys(err, "cannot watch the listening socket");
    if (!rc && pthread_create(&s->thread, NULL, gate, s))
        rc = kd_fail(err, KD_ENOMEM, "cannot start a thread");
    if (rc) {
        if (s->listener >= 0)
            close(s->listener);
        if (s->epoll >= 0)
            close(s->epoll);
        if (s->wake >= 0)
            close(s->wake);
    }
    return rc;
}

void kd_srv_gate_close(struct kd_srv *s)
{
    uint64_t one = 1;
    s->stopping = true;
    s->over = true;
    if (write(s->wake, &one, sizeof one) < 0)
        s->over = true; /* the gate looks every tick anyway */
    pthread_join(s->thread, NULL);
    if (s->listener >= 0)
        close(s->listener);
    close(s->epoll);
    close(s->wake);
}
