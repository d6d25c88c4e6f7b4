/* Byte ranges of remote files over libcurl: many at a time, each checked, retried, resumed.
 *
 * A span is wished for; it is cut into requests of at most piece_bytes, and `jobs` requests run at
 * once. Of every answer: status 206, a Content-Range of exactly what was asked, a total that never
 * changes, an ETag that never changes, no Content-Encoding, no page of HTML, no byte less or more.
 * An answer that ignores the range is dropped at its head. Connection errors, 408, 429 and 5xx are
 * retried from the byte after the last one received, with back-off, jitter and Retry-After; 401,
 * 404 and 416 are not. A file given with a token is asked for at its own server, whose redirect to
 * another host is followed by hand and without the token; the address found so is used for all
 * requests until it expires (403), then asked for once more. No query string reaches a log or an
 * error: it may be a key.
 *
 *     struct kd_get *g;
 *     if (kd_get_open(&g, &(struct kd_get_opts){.jobs = 8}, err)) ...
 *     int f = kd_get_add(g, "https://host/model.safetensors", NULL, -1, err);
 *     struct kd_get_span s = {.file = f, .begin = 8, .bytes = n, .buf = head};
 *     if (f < 0 || kd_get_run(g, &s, 1, err)) ...
 *
 * http is for loopback addresses only, unless allowed. One thread at a time per kd_get; several
 * kd_get may live in several threads. Errors: KD_ENET (gave up), KD_EREMOTE (the server says no, or
 * breaks the rules above), KD_ETIMEOUT, KD_ECANCEL, and what a sink returns. */
#ifndef KD_NET_GET_H
#define KD_NET_GET_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { KD_GET_PIECE_BYTES = 32 << 20 };

struct kd_get;

/* Zero in any field: the default in parentheses. */
struct kd_get_opts {
    int jobs;              /* requests at once, at most 64 (8) */
    int64_t piece_bytes;   /* of one request (KD_GET_PIECE_BYTES) */
    int64_t rate;          /* bytes a second, over all requests (no limit) */
    int tries;             /* of one piece in a row without a byte received (6) */
    double connect_s;      /* (20) */
    double stall_s;        /* without a byte (30) */
    double budget_s;       /* without a byte by any request, waits that a server asked for included:
                            * the end (600) */
    double backoff_s;      /* first wait; doubles up to 30 s (1) */
    bool allow_http;       /* to other hosts than loopback */
    bool allow_private;    /* a redirect may lead into a private network */
    bool proxied;          /* the environment names a proxy: the address seen is the proxy's */
    bool (*stopped)(void); /* asked several times a second; true ends with KD_ECANCEL */
};

/* Takes the next bytes of a span: [at, at + bytes) counted from the span's begin. Pieces of one
 * span come at once, so `at` jumps; within a piece it grows, and no byte comes twice. */
typedef int kd_get_sink(void *ctx, int64_t at, const void *data, int64_t bytes, struct kd_err *err);

/* Where the bytes go: buf, else sink, else pwrite into fd at fd_at. */
struct kd_get_span {
    int file; /* from kd_get_add */
    int64_t begin, bytes;
    void *buf;
    kd_get_sink *sink;
    void *ctx;
    int fd;
    int64_t fd_at;
    /* called once all bytes of [at, at + bytes) of this span lie where they should: a piece */
    int (*piece_done)(void *ctx, int64_t at, int64_t bytes, struct kd_err *err); /* or NULL */
};

struct kd_get_stats {
    int64_t requests, retries, resolves; /* resolves: asks for a file's real address */
    int64_t bytes;                       /* of bodies, received and passed on */
};

int kd_get_open(struct kd_get **out, const struct kd_get_opts *opts, struct kd_err *err) KD_MUST;
void kd_get_close(struct kd_get *g);
/* A file. token (or NULL) goes as a bearer to this URL's scheme, host and port, nowhere else.
 * bytes: its size, or -1 when not known yet. Returns its number, or -1. */
int kd_get_add(struct kd_get *g, const char *url, const char *token, int64_t bytes,
               struct kd_err *err) KD_MUST;
/* Its size, asked for (one byte is read) when not known. -1 with the reason. */
int64_t kd_get_size(struct kd_get *g, int file, struct kd_err *err) KD_MUST;
/* The same for many files at once; sizes[i] = -1 for one that the server says is not there (404).
 */
int kd_get_sizes(struct kd_get *g, const int *files, int64_t count, int64_t *sizes,
                 struct kd_err *err) KD_MUST;
/* All spans, in the order given as far as `jobs` allows; returns when all are there or one failed
 * for good. What arrived before a failure has been passed on and announced by piece_done. */
int kd_get_run(struct kd_get *g, struct kd_get_span *spans, int64_t count,
               struct kd_err *err) KD_MUST;
/* The ETag seen with a file's bytes, or "". */
const char *kd_get_etag(const struct kd_get *g, int file);
const struct kd_get_stats *kd_get_stats(const struct kd_get *g);

/* What a plain answer (no range) said beside its body. */
struct kd_get_page {
    int status;
    char type[64];   /* Content-Type without parameters */
    char commit[64]; /* X-Repo-Commit */
    char code[64];   /* X-Error-Code */
    char next[2048]; /* the Link header's rel="next" */
};
/* A small answer whole: listings, an API's JSON. Follows redirects within the same host (with the
 * token) and, without it, to others. 404 is no error here: page->status says so; anything else that
 * is not 200 is. */
int kd_get_page(struct kd_get *g, const char *url, const char *token, size_t max_bytes,
                struct kd_buf *out, struct kd_get_page *page, struct kd_err *err) KD_MUST;

#endif
