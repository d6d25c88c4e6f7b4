/* An HTTP/1.1 server over libmicrohttpd, hardened: a request's head is looked at (net/head.h) while
 * its bytes still lie in the socket, and only a sound one is handed on; so every refusal is ours,
 * in the caller's error format, and lengths that readers disagree about never arrive. A reaper
 * shuts a connection whose request is not complete in time, or whose client does not read its
 * reply. Each connection has a thread, so handlers may block.
 *
 *     static const struct kd_route routes[] = {{"GET", "/health", health, .open = true}, {0}};
 *     kd_srv_open(&s, &(struct kd_srv_options){.host = "127.0.0.1", .port = 8080,
 *                                              .routes = routes, .fail = fail}, err);
 *     kd_srv_close(s, 30);
 *
 * Threads: handlers run many at once, each on its connection's thread. */
#ifndef KD_NET_SRV_H
#define KD_NET_SRV_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { KD_SRV_KEYS_MAX = 64, KD_SRV_NAMES_MAX = 32 };

struct kd_srv;
struct kd_req;

/* What an error reply says. NULL fields: by the status (type), absent (param, code). */
struct kd_fault {
    int status;
    const char *type, *param, *code, *message;
};

struct kd_route {
    const char *method; /* NULL ends the table */
    const char *path;   /* a trailing '*' takes any rest, see kd_req_rest */
    /* Answers with kd_req_reply, kd_req_fail or kd_req_stream, once. */
    void (*run)(void *ctx, struct kd_req *r);
    bool open;  /* needs no key */
    bool quiet; /* its requests are not logged */
};

/* One finished request, for the log. Texts live during the call. */
struct kd_access {
    const char *id, *method, *path, *note, *peer; /* note: what the handler said of it, or "" */
    const char *owner;                            /* "" without keys, else the key's hash */
    int status; /* 0: the client went before the reply was whole */
    int64_t in_bytes, out_bytes;
    double seconds;
    bool whole, quiet;
};

/* Zero in any field: the default in parentheses. Strings and tables must outlive the server. */
struct kd_srv_options {
    const char *host;              /* (127.0.0.1) */
    int port;                      /* 0: any free one, see kd_srv_port */
    int64_t connections;           /* at once (256) */
    int64_t body_bytes;            /* of a request (64 MiB) */
    double request_s;              /* from a connection's first byte to the whole request (10) */
    double idle_s;                 /* a connection may wait between requests (75) */
    double stall_s;                /* a client may leave a reply unread (60) */
    const char *const *key_sha256; /* accepted keys, 64 hex digits each, copied; none: all may */
    int keys;
    const char *const *hosts; /* names in Host besides loopback and the address bound */
    int host_count;
    const char *const *origins; /* foreign Origins that may call: "https://chat.example" */
    int origin_count;
    const struct kd_route *routes;
    void *ctx; /* of routes and the functions below */
    /* The body of an error reply for a path (NULL: no path known yet), as JSON into out. */
    void (*fail)(void *ctx, const char *path, const struct kd_fault *f, const char *id,
                 struct kd_buf *out);
    void (*log)(void *ctx, const struct kd_access *a); /* may be NULL */
};

int kd_srv_open(struct kd_srv **out, const struct kd_srv_options *o, struct kd_err *err) KD_MUST;
int kd_srv_port(const struct kd_srv *s);
/* Other keys from now on; requests that run go on. Any thread. */
void kd_srv_set_keys(struct kd_srv *s, const char *const *key_sha256, int keys);
/* No new connections from now on; those that are idle are shut. */
void kd_srv_stop(struct kd_srv *s);
/* Connections open now. */
int64_t kd_srv_connections(struct kd_srv *s);
/* Stops, waits up to timeout_s for requests that run, shuts the rest, frees. */
void kd_srv_close(struct kd_srv *s, double timeout_s);

const char *kd_req_id(const struct kd_req *r);   /* x-request-id */
const char *kd_req_path(const struct kd_req *r); /* percent-decoded, without the query */
const char *kd_req_method(const struct kd_req *r);
const char *kd_req_rest(const struct kd_req *r);  /* what '*' took */
const char *kd_req_owner(const struct kd_req *r); /* hash of the API key, or "" */
const char *kd_req_header(const struct kd_req *r, const char *name); /* or NULL */
const char *kd_req_body(const struct kd_req *r, size_t *bytes);      /* never NULL */
/* The client has closed or half-closed its side, or the server is being closed. */
bool kd_req_gone(struct kd_req *r);
/* Text for the log line, printed after those set before. */
void kd_req_note(struct kd_req *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A header of the coming reply. */
void kd_req_add_header(struct kd_req *r, const char *name, const char *value);
void kd_req_reply(struct kd_req *r, int status, const char *type, const void *data, size_t bytes);
void kd_req_fail(struct kd_req *r, const struct kd_fault *f);
/* A streamed reply, status 200. */
struct kd_stream {
    void *ctx;
    /* Appends what there is to out, waiting up to timeout_s for something (adding nothing is fine).
     * 0: go on, 1: that was the end, -1: failed: what is in out is sent, and the connection is cut
     * without the last chunk. */
    int (*next)(void *ctx, struct kd_buf *out, double timeout_s);
    /* Called once, also when the client has gone (done is false). */
    void (*end)(void *ctx, struct kd_req *r, bool done);
    const char *idle; /* sent after idle_s seconds of silence, or NULL */
    double idle_s;
};
void kd_req_stream(struct kd_req *r, const char *type, const struct kd_stream *st);

#endif
