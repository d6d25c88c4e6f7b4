/* A small HTTP client for bench serve: sends one request and counts what comes. */
#include "base/clock.h"
#include "cmd/bench_serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { KEEP_BYTES = 4096, WAIT_MS = 50 };

static int dial(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)(const void *)&a, sizeof a)) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool send_all(int fd, const char *data, size_t bytes)
{
    while (bytes) {
        ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL);
        if (n <= 0 && errno != EINTR)
            return false;
        if (n > 0) {
            data += n;
            bytes -= (size_t)n;
        }
    }
    return true;
}

static bool ask(const struct kd_call *c, int fd)
{
    struct kd_buf b;
    kd_buf_init(&b, c->body.max_bytes + KEEP_BYTES);
    kd_buf_printf(&b,
                  "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: "
                  "application/json\r\nContent-Length: %zu\r\n\r\n",
                  c->path, c->body.size_bytes);
    kd_buf_add(&b, c->body.data, c->body.size_bytes);
    bool sent = !b.failed && send_all(fd, b.data, b.size_bytes);
    kd_buf_release(&b);
    return sent;
}

/* "\ndata: " begins an event; the words may lie in two pieces. */
static int64_t count_events(const char *data, size_t bytes, size_t *matched)
{
    static const char mark[] = "\ndata: ";
    int64_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        *matched = data[i] == mark[*matched] ? *matched + 1 : data[i] == '\n';
        if (*matched == sizeof mark - 1) {
            n++;
            *matched = 0;
        }
    }
    return n;
}

static void *work(void *arg)
{
    struct kd_call *c = arg;
    char piece[16384];
    size_t matched = 0;
    int fd = dial(c->port);
    c->sent_s = kd_clock_s();
    bool open = fd >= 0 && ask(c, fd);
    while (open && !c->stop) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, WAIT_MS) <= 0)
            continue;
        ssize_t n = recv(fd, piece, sizeof piece, 0);
        if (n < 0 && errno == EINTR)
            continue;
        open = n > 0;
        c->whole = n == 0;
        if (n <= 0)
            break;
        if (c->reply.size_bytes < KEEP_BYTES)
            kd_buf_add(&c->reply, piece, n < KEEP_BYTES ? (size_t)n : KEEP_BYTES);
        c->events += count_events(piece, (size_t)n, &matched);
    }
    c->end_s = kd_clock_s();
    if (fd >= 0)
        close(fd);
    return NULL;
}

int kd_call_start(struct kd_call *c, struct kd_err *err)
{
    c->stop = false;
    c->events = 0;
    c->whole = false;
    c->status = 0;
    kd_buf_init(&c->reply, 4 * KEEP_BYTES + 16384);
    if (kd_buf_ok(&c->body, "request", err))
        return -1;
    if (pthread_create(&c->thread, NULL, work, c))
        return kd_fail(err, KD_ENOMEM, "no thread for a client");
    return 0;
}

int kd_call_end(struct kd_call *c, bool stop, struct kd_err *err)
{
    c->stop = stop;
    pthread_join(c->thread, NULL);
    const char *text = c->reply.data ? c->reply.data : "";
    c->status = !strncmp(text, "HTTP/1.1 ", 9) ? (int)strtol(text + 9, NULL, 10) : 0;
    if (c->status == 200 && (c->whole || stop))
        return 0;
    const char *body = strstr(text, "\r\n\r\n");
    return kd_fail(err, KD_EREMOTE, "the server answered %s with %d: %.200s", c->path, c->status,
                   body ? body + 4 : text);
}

void kd_call_release(struct kd_call *c)
{
    kd_buf_release(&c->body);
    kd_buf_release(&c->reply);
}
