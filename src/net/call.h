/* Calls to a server that speaks JSON over HTTP, over libcurl. Certificates are checked, redirects
 * not followed (they would carry the key elsewhere), plain http only to this machine unless
 * allowed. The key comes from a file, never from a URL or a command line.
 *
 *     struct kd_client *c;
 *     struct kd_reply r;
 *     if (kd_client_open(&c, &opts, err)) ...
 *     kd_reply_init(&r);
 *     if (kd_client_send(c, url, body, bytes, &r, err)) ...   a body: POST, without: GET
 *     if (r.status != 200) kd_reply_fail(&r, url, err);
 *     kd_reply_release(&r);
 *     kd_client_close(c);
 *
 * One thread at a time for each kd_client; it keeps its connection open between calls. */
#ifndef KD_NET_CALL_H
#define KD_NET_CALL_H

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

struct kd_client_opts {
    const char *key_file;     /* first line that is neither empty nor a # comment; NULL: no key */
    const char *key;          /* instead of the file: one word; NULL: no key */
    const char *ca_pem;       /* the only authority trusted, as text; NULL: the system's */
    bool allow_http;          /* plain http to other machines too */
    double connect_s;         /* 0: 10 s */
    double total_s;           /* of one try, from its begin to the last byte; 0: 600 s */
    size_t reply_bytes_max;   /* 0: 16 MiB */
    int tries;                /* of one call; 0: 6 */
    double wait_s;            /* longest wait between tries; 0: 60 s */
    const volatile int *stop; /* looked at while waiting; may be NULL */
};

struct kd_reply {
    int status;
    struct kd_buf body;
};
void kd_reply_init(struct kd_reply *r);
void kd_reply_release(struct kd_reply *r);

struct kd_client;
int kd_client_open(struct kd_client **c, const struct kd_client_opts *o,
                   struct kd_err *err) KD_MUST;
void kd_client_close(struct kd_client *c);
/* 0 with any final status in r. 429 and 503 are tried again after Retry-After seconds, or 1,
 * 2, 4... where there is none, and so is a connection that fails once the server has answered at
 * least one call. KD_ENET: no connection, or it broke; KD_ETIMEOUT; KD_EREMOTE: no HTTP, or a reply
 * over its limit; KD_ECANCEL: stop; KD_EUSAGE: the URL. Each names the URL. */
int kd_client_send(struct kd_client *c, const char *url, const char *body, size_t bytes,
                   struct kd_reply *r, struct kd_err *err) KD_MUST;
/* The same for bytes under a name: PUT, application/octet-stream. */
int kd_client_put(struct kd_client *c, const char *url, const void *body, size_t bytes,
                  struct kd_reply *r, struct kd_err *err) KD_MUST;
/* Returns -1 with KD_EREMOTE: "URL answered 400: what the server says". */
int kd_reply_fail(const struct kd_reply *r, const char *url, struct kd_err *err);
/* The sentence in an error body ({"error":{"message"}}, {"error"}, {"message"}, {"detail"}, or the
 * text itself), cut to size and harmless on a terminal; "" for an empty body. */
void kd_reply_why(char *out, size_t size, const char *body, size_t bytes);

/* Whether a URL may be called: https, or http to loopback, or any http where allowed; no user or
 * password in it. *loopback may be NULL. */
int kd_url_check(const char *url, bool allow_http, bool *loopback, struct kd_err *err) KD_MUST;
/* The key of a key file into out; refuses a file that others can read. */
int kd_key_read(char *out, size_t size, const char *path, struct kd_err *err) KD_MUST;

#endif
