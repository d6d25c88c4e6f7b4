#include "net/srv.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "net/srv_int.h"

#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>

enum { STREAM_BYTES_MAX = 512 << 20, BLOCK = 32 << 10, NOTE_BYTES = 512, CUT_MS = 100 };
#define WAIT_S 0.2

struct kd_req {
    struct kd_srv *s;
    struct kd_conn *c;
    struct MHD_Connection *mc;
    const struct kd_route *route;
    struct kd_fault refused;     /* status 0: the route's handler runs */
    struct MHD_Response *reply;  /* while headers are added */
    struct kd_buf body, headers; /* headers: name NUL value NUL ... */
    bool discard;                /* the body is not kept */
    bool answered, finished;
    int status;
    int64_t out_bytes, in_bytes;
    double began;
    /* of a stream */
    struct kd_stream stream;
    bool streams, stream_done, stream_failed, stream_whole;
    struct kd_buf out;
    size_t out_at;
    double last_out;
    char id[72], owner[65], method[16], allow[64];
    char note[NOTE_BYTES];
    size_t rest_at;
    struct kd_buf path;
};

const char *kd_req_id(const struct kd_req *r)
{
    return r->id;
}

const char *kd_req_path(const struct kd_req *r)
{
    return r->path.data;
}

const char *kd_req_method(const struct kd_req *r)
{
    return r->method;
}

const char *kd_req_rest(const struct kd_req *r)
{
    return r->path.data + r->rest_at;
}

const char *kd_req_owner(const struct kd_req *r)
{
    return r->owner;
}

const char *kd_req_header(const struct kd_req *r, const char *name)
{
    return MHD_lookup_connection_value(r->mc, MHD_HEADER_KIND, name);
}

const char *kd_req_body(const struct kd_req *r, size_t *bytes)
{
    *bytes = r->body.size_bytes;
    return r->body.data ? r->body.data : "";
}

bool kd_req_gone(struct kd_req *r)
{
    struct pollfd p = {.fd = r->c->fd, .events = POLLRDHUP};
    if (r->s->over)
        return true;
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

void kd_req_note(struct kd_req *r, const char *fmt, ...)
{
    size_t n = strlen(r->note);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->note + n, sizeof r->note - n, fmt, ap);
    va_end(ap);
}

void kd_req_add_header(struct kd_req *r, const char *name, const char *value)
{
    kd_buf_add(&r->headers, name, strlen(name) + 1);
    kd_buf_add(&r->headers, value, strlen(value) + 1);
}

static void queue(struct kd_req *r, int status, const char *type, struct MHD_Response *m)
{
    const char *h = r->headers.data, *end = h ? h + r->headers.size_bytes : h;
    if (!m)
        return;
    MHD_add_response_header(m, "Content-Type", type);
    MHD_add_response_header(m, "X-Request-Id", r->id);
    MHD_add_response_header(m, "Request-Id", r->id); /* the same by Anthropic's name */
    MHD_add_response_header(m, "X-Content-Type-Options", "nosniff");
    while (h < end) {
        const char *value = h + strlen(h) + 1;
        MHD_add_response_header(m, h, value);
        h = value + strlen(value) + 1;
    }
    if (r->s->stopping)
        r->c->last_request = true;
    if (r->c->last_request)
        MHD_add_response_header(m, "Connection", "close");
    r->status = status;
    r->answered = MHD_queue_response(r->mc, (unsigned)status, m) == MHD_YES;
    MHD_destroy_response(m);
}

void kd_req_reply(struct kd_req *r, int status, const char *type, const void *data, size_t bytes)
{
    /* microhttpd takes a pointer to what may be written, but copies. */
    union {
        const void *in;
        void *out;
    } p = {.in = data};
    r->out_bytes = (int64_t)bytes;
    r->c->deadline = kd_clock_s() + r->s->o.stall_s + (double)bytes / 65536;
    r->c->state = KD_CONN_WRITING;
    queue(r, status, type, MHD_create_response_from_buffer(bytes, p.out, MHD_RESPMEM_MUST_COPY));
}

void kd_req_fail(struct kd_req *r, const struct kd_fault *f)
{
    struct kd_buf b;
    kd_buf_init(&b, 64 << 10);
    r->s->o.fail(r->s->o.ctx, r->path.data, f, r->id, &b);
    if (f->status == 401)
        kd_req_add_header(r, "WWW-Authenticate", "Bearer");
    if (f->status == 405 && r->allow[0])
        kd_req_add_header(r, "Allow", r->allow);
    kd_req_reply(r, f->status, "application/json", b.data ? b.data : "", b.size_bytes);
    if (!*r->note)
        kd_req_note(r, "%s", f->message ? f->message : "");
    kd_buf_release(&b);
}

/* Streams. The reader blocks on the handler's source, a little at a time, and looks at the socket
 * in between. */
static ssize_t stream_read(void *ctx, uint64_t pos, char *out, size_t max)
{
    struct kd_req *r = ctx;
    (void)pos;
    r->c->state = KD_CONN_RUNNING;
    r->c->deadline = 0;
    while (r->out_at == r->out.size_bytes) {
        kd_buf_clear(&r->out);
        r->out_at = 0;
        if (r->stream_failed) {
            /* What was said last should be read before the cut is seen: some clients drop what they
             * have not handed on yet. */
            if (r->out_bytes && !kd_req_gone(r))
                poll(NULL, 0, CUT_MS);
            return MHD_CONTENT_READER_END_WITH_ERROR;
        }
        if (r->stream_done) {
            r->stream_whole = true;
            return MHD_CONTENT_READER_END_OF_STREAM;
        }
        if (kd_req_gone(r))
            return MHD_CONTENT_READER_END_WITH_ERROR;
        int rc = r->stream.next(r->stream.ctx, &r->out, WAIT_S);
        r->stream_done = rc > 0;
        r->stream_failed = rc < 0 || r->out.failed;
        if (!rc && !r->out.size_bytes && r->stream.idle &&
            kd_clock_s() - r->last_out > r->stream.idle_s)
            kd_buf_str(&r->out, r->stream.idle);
    }
    size_t n = r->out.size_bytes - r->out_at;
    n = n < max ? n : max;
    memcpy(out, r->out.data + r->out_at, n);
    r->out_at += n;
    r->out_bytes += (int64_t)n;
    r->last_out = kd_clock_s();
    r->c->deadline = r->last_out + r->s->o.stall_s;
    r->c->state = KD_CONN_WRITING;
    return (ssize_t)n;
}

static void stream_end(struct kd_req *r)
{
    if (!r->streams)
        return;
    r->streams = false;
    r->stream.end(r->stream.ctx, r, r->stream_whole);
    kd_buf_release(&r->out);
}

void kd_req_stream(struct kd_req *r, const char *type, const struct kd_stream *st)
{
    r->stream = *st;
    r->streams = true;
    r->last_out = kd_clock_s();
    kd_buf_init(&r->out, STREAM_BYTES_MAX);
    kd_req_add_header(r, "Cache-Control", "no-cache");
    kd_req_add_header(r, "X-Accel-Buffering", "no");
    queue(r, 200, type,
          MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, stream_read, r, NULL));
    if (!r->answered)
        stream_end(r);
}

/* What a request must be before its handler sees it. */

static void find_route(struct kd_req *r)
{
    const char *method = !strcmp(r->method, "HEAD") ? "GET" : r->method;
    bool path = false;
    for (const struct kd_route *k = r->s->o.routes; k->method; k++) {
        size_t n = strlen(k->path);
        bool prefix = n && k->path[n - 1] == '*';
        if (prefix ? strncmp(k->path, r->path.data, n - 1) || !r->path.data[n - 1]
                   : strcmp(k->path, r->path.data))
            continue;
        if (!strcmp(k->method, method)) {
            r->route = k;
            r->rest_at = prefix ? n - 1 : n;
            return;
        }
        size_t at = strlen(r->allow);
        snprintf(r->allow + at, sizeof r->allow - at, "%s%s", at ? ", " : "", k->method);
        path = true;
    }
    if (path)
        r->refused =
            (struct kd_fault){.status = 405, .message = "this path does not take this method"};
    else
        r->refused = (struct kd_fault){
            .status = 404, .code = "unknown_url", .message = "there is nothing at this path"};
}

static enum MHD_Result count_header(void *ctx, enum MHD_ValueKind kind, const char *key,
                                    const char *value)
{
    int *n = ctx;
    (void)kind;
    (void)value;
    n[0] += !strcasecmp(key, "content-length");
    n[1] += !strcasecmp(key, "transfer-encoding");
    n[2] += !strcasecmp(key, "host");
    return MHD_YES;
}

/* The gate has seen to this for what came alone; a request that hid behind another has not been
 * through it. */
static bool ambiguous(struct kd_req *r)
{
    int n[3] = {0, 0, 0};
    MHD_get_connection_values(r->mc, MHD_HEADER_KIND, count_header, n);
    return n[0] + n[1] > 1 || n[2] > 1;
}

static bool same_name(const char *host, const char *name)
{
    size_t n = strlen(name);
    const char *end = *host == '[' ? strchr(host, ']') : strchr(host, ':');
    if (*host == '[') {
        host++;
        if (!end)
            return false;
    }
    size_t m = end ? (size_t)(end - host) : strlen(host);
    return m == n && !strncasecmp(host, name, n);
}

static bool host_is_ours(struct kd_req *r, const char *host)
{
    static const char *const loopback[] = {"localhost", "127.0.0.1", "::1"};
    for (int i = 0; i < 3; i++)
        if (same_name(host, loopback[i]))
            return true;
    for (int i = 0; i < r->s->o.host_count; i++)
        if (same_name(host, r->s->o.hosts[i]))
            return true;
    return same_name(host, r->c->local) || same_name(host, r->s->host);
}

static bool origin_is_ours(struct kd_req *r, const char *origin, const char *host)
{
    const char *name = !strncmp(origin, "http://", 7)    ? origin + 7
                       : !strncmp(origin, "https://", 8) ? origin + 8
                                                         : NULL;
    if (name && host && !strcasecmp(name, host))
        return true;
    for (int i = 0; i < r->s->o.origin_count; i++)
        if (!strcasecmp(origin, r->s->o.origins[i]))
            return true;
    return false;
}

/* The hash of the key given, in r->owner; whether it is one of ours. Takes the same time for each.
 */
static bool key_is_ours(struct kd_req *r)
{
    const char *a = kd_req_header(r, "Authorization"), *key = kd_req_header(r, "x-api-key");
    char hex[65];
    unsigned any = 0;
    pthread_rwlock_rdlock(&r->s->keys_lock);
    int keys = r->s->keys;
    pthread_rwlock_unlock(&r->s->keys_lock);
    if (!keys)
        return true;
    if (a && !strncasecmp(a, "Bearer ", 7))
        key = a + 7 + strspn(a + 7, " ");
    if (!key || kd_sha256_of(key, strlen(key), hex, NULL))
        return false;
    pthread_rwlock_rdlock(&r->s->keys_lock);
    for (int i = 0; i < r->s->keys; i++) {
        unsigned diff = 0;
        for (int k = 0; k < 64; k++)
            diff |= (unsigned)(hex[k] ^ r->s->key[i][k]);
        any |= diff == 0;
    }
    pthread_rwlock_unlock(&r->s->keys_lock);
    memcpy(r->owner, hex, sizeof hex);
    return any;
}

static bool is_json(const char *type)
{
    static const char json[] = "application/json";
    size_t n = sizeof json - 1;
    return type && !strncasecmp(type, json, n) && (!type[n] || strchr("; \t", type[n]));
}

static void refuse(struct kd_req *r, int status, const char *type, const char *code,
                   const char *message)
{
    r->refused =
        (struct kd_fault){.status = status, .type = type, .code = code, .message = message};
}

static void check(struct kd_req *r)
{
    const char *host = kd_req_header(r, "Host"), *origin = kd_req_header(r, "Origin");
    if (ambiguous(r)) {
        r->c->last_request = true;
        refuse(r, 400, NULL, NULL, "more than one length or Host");
    } else if (host && !host_is_ours(r, host)) {
        refuse(r, 403, "permission_error", "host_not_allowed",
               "this Host is not one the server answers to (see --allow-host)");
    } else if (origin && !origin_is_ours(r, origin, host)) {
        refuse(r, 403, "permission_error", "origin_not_allowed",
               "this Origin may not call the server (see --allow-origin)");
    } else {
        find_route(r);
        if (!(r->route && r->route->open) && !key_is_ours(r))
            refuse(r, 401, NULL, "invalid_api_key", "the API key is missing or wrong");
        else if (r->route && !strcmp(r->method, "POST") &&
                 !is_json(kd_req_header(r, "Content-Type")))
            refuse(r, 415, NULL, NULL, "Content-Type must be application/json");
    }
    r->discard = r->refused.status != 0;
}

static void take_id(struct kd_req *r)
{
    const char *id = kd_req_header(r, "X-Request-Id");
    size_t n = id ? strlen(id) : 0;
    if (n && n < sizeof r->id &&
        strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == n)
        memcpy(r->id, id, n + 1);
    else
        kd_srv_new_id(r->s, r->id);
}

static struct kd_req *new_request(struct kd_srv *s, struct MHD_Connection *mc, const char *url,
                                  const char *method)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mc, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct kd_req *r;
    if (!info || !info->socket_context || kd_mem_zero(&r, 1, sizeof *r, "request", NULL))
        return NULL;
    r->s = s;
    r->c = info->socket_context;
    r->mc = mc;
    r->began = kd_clock_s();
    kd_buf_init(&r->path, 16 << 10);
    kd_buf_str(&r->path, url);
    kd_buf_init(&r->headers, 16 << 10);
    kd_buf_init(&r->body, (size_t)s->o.body_bytes + 1);
    snprintf(r->method, sizeof r->method, "%s", method);
    take_id(r);
    if (r->path.failed || !r->path.data) {
        kd_mem_free(r);
        return NULL;
    }
    check(r);
    return r;
}

static enum MHD_Result access_cb(void *ctx, struct MHD_Connection *mc, const char *url,
                                 const char *method, const char *version, const char *data,
                                 size_t *bytes, void **con)
{
    struct kd_srv *s = ctx;
    struct kd_req *r = *con;
    (void)version;
    if (!r) {
        r = new_request(s, mc, url, method);
        *con = r;
        return r ? MHD_YES : MHD_NO;
    }
    if (*bytes) {
        r->in_bytes += (int64_t)*bytes;
        if (r->in_bytes > s->o.body_bytes && r->refused.status != 413) {
            refuse(r, 413, NULL, NULL, "the body is larger than this server takes");
            r->c->last_request = r->discard = true;
        }
        if (!r->discard)
            kd_buf_add(&r->body, data, *bytes);
        *bytes = 0;
        /* Past the limit by as much again nobody is listening: cut. */
        return r->in_bytes > 2 * s->o.body_bytes ? MHD_NO : MHD_YES;
    }
    r->c->state = KD_CONN_RUNNING;
    r->c->deadline = 0;
    if (!r->refused.status && r->body.failed)
        refuse(r, 500, NULL, NULL, "no memory for the request's body");
    if (r->refused.status)
        kd_req_fail(r, &r->refused);
    else
        r->route->run(s->o.ctx, r);
    return r->answered ? MHD_YES : MHD_NO;
}

static void completed_cb(void *ctx, struct MHD_Connection *mc, void **con,
                         enum MHD_RequestTerminationCode toe)
{
    struct kd_srv *s = ctx;
    struct kd_req *r = *con;
    (void)mc;
    *con = NULL;
    if (!r)
        return;
    bool whole = toe == MHD_REQUEST_TERMINATED_COMPLETED_OK && (!r->streams || r->stream_whole);
    struct kd_conn *c = r->c;
    c->deadline = 0;
    stream_end(r);
    if (s->o.log)
        s->o.log(s->o.ctx, &(struct kd_access){.id = r->id,
                                               .method = r->method,
                                               .path = r->path.data,
                                               .note = r->note,
                                               .peer = c->peer,
                                               .owner = r->owner,
                                               .status = r->answered ? r->status : 0,
                                               .in_bytes = r->in_bytes,
                                               .out_bytes = r->out_bytes,
                                               .seconds = kd_clock_s() - r->began,
                                               .whole = whole,
                                               .quiet = r->route && r->route->quiet});
    kd_buf_release(&r->path);
    kd_buf_release(&r->headers);
    kd_buf_release(&r->body);
    kd_mem_free(r);
    if (toe == MHD_REQUEST_TERMINATED_COMPLETED_OK && !c->last_request)
        kd_srv_next_head(s, c);
}

static void connection_cb(void *ctx, struct MHD_Connection *mc, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct kd_srv *s = ctx;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (*socket_context)
            kd_srv_forget(s, *socket_context);
        *socket_context = NULL;
        return;
    }
    int fd = MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    pthread_mutex_lock(&s->lock);
    struct kd_conn *c = s->conns;
    while (c && (c->fd != fd || c->state != KD_CONN_READING))
        c = c->next;
    pthread_mutex_unlock(&s->lock);
    *socket_context = c;
}

static void set_defaults(struct kd_srv_options *o)
{
    o->host = o->host ? o->host : "127.0.0.1";
    o->connections = o->connections ? o->connections : 256;
    o->body_bytes = o->body_bytes ? o->body_bytes : 64 << 20;
    o->request_s = o->request_s > 0 ? o->request_s : 10;
    o->idle_s = o->idle_s > 0 ? o->idle_s : 75;
    o->stall_s = o->stall_s > 0 ? o->stall_s : 60;
}

int kd_srv_open(struct kd_srv **out, const struct kd_srv_options *o, struct kd_err *err)
{
    struct kd_srv *s;
    uint64_t salt;
    *out = NULL;
    if (kd_mem_zero(&s, 1, sizeof *s, "server", err))
        return -1;
    s->o = *o;
    set_defaults(&s->o);
    snprintf(s->host, sizeof s->host, "%s", s->o.host);
    pthread_mutex_init(&s->lock, NULL);
    pthread_rwlock_init(&s->keys_lock, NULL);
    kd_srv_set_keys(s, o->key_sha256, o->keys);
    if (getrandom(&salt, sizeof salt, 0) != sizeof salt)
        salt = (uint64_t)(kd_clock_s() * 1e9);
    snprintf(s->salt, sizeof s->salt, "%016" PRIx64, salt);
    s->mhd = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION |
                                  MHD_USE_POLL | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ITC,
                              0, NULL, NULL, access_cb, s, MHD_OPTION_NOTIFY_COMPLETED,
                              completed_cb, s, MHD_OPTION_NOTIFY_CONNECTION, connection_cb, s,
                              MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)(128 << 10),
                              MHD_OPTION_CONNECTION_LIMIT, (unsigned)(s->o.connections + 16),
                              MHD_OPTION_THREAD_STACK_SIZE, (size_t)(8 << 20), MHD_OPTION_END);
    int rc = s->mhd ? kd_srv_gate_open(s, err)
                    : kd_fail(err, KD_EIO, "cannot start the HTTP library's thread");
    if (rc) {
        if (s->mhd)
            MHD_stop_daemon(s->mhd);
        pthread_mutex_destroy(&s->lock);
        pthread_rwlock_destroy(&s->keys_lock);
        kd_mem_free(s);
        return -1;
    }
    *out = s;
    return 0;
}

void kd_srv_set_keys(struct kd_srv *s, const char *const *key_sha256, int keys)
{
    pthread_rwlock_wrlock(&s->keys_lock);
    s->keys = keys < KD_SRV_KEYS_MAX ? keys : KD_SRV_KEYS_MAX;
    for (int i = 0; i < s->keys; i++)
        snprintf(s->key[i], sizeof s->key[i], "%s", key_sha256[i]);
    pthread_rwlock_unlock(&s->keys_lock);
}

int kd_srv_port(const struct kd_srv *s)
{
    return s->port;
}

void kd_srv_stop(struct kd_srv *s)
{
    s->stopping = true;
}

int64_t kd_srv_connections(struct kd_srv *s)
{
    pthread_mutex_lock(&s->lock);
    int64_t n = s->count;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void kd_srv_close(struct kd_srv *s, double timeout_s)
{
    double until = kd_clock_s() + timeout_s;
    if (!s)
        return;
    s->stopping = true;
    while (kd_srv_connections(s) && kd_clock_s() < until)
        poll(NULL, 0, 20);
    kd_srv_gate_close(s);
    /* Threads in handlers see that clients count as gone now; those that write are cut. */
    pthread_mutex_lock(&s->lock);
    for (struct kd_conn *c = s->conns; c; c = c->next)
        shutdown(c->fd, SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
    MHD_stop_daemon(s->mhd);
    pthread_mutex_destroy(&s->lock);
    pthread_rwlock_destroy(&s->keys_lock);
    kd_mem_free(s);
}
