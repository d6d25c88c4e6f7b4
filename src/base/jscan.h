/* A streaming pull tokenizer for JSON with limits, for headers and indexes of 100 MB. It builds
 * nothing: the caller walks the tokens and keeps what it needs. Integers are exact in 64 bits (one
 * that does not fit is an error, never a double). Strings are checked UTF-8 with escapes resolved;
 * a NUL in one is an error. Duplicate keys are the caller's to find.
 *
 *     struct kd_jscan s;
 *     kd_jscan_open(&s, data, bytes, &limits);
 *     while (!(rc = kd_jscan_next(&s, err)) && s.tok != KD_JT_END) ...
 *     kd_jscan_close(&s);
 *
 * One thread per scanner. Errors give the byte offset. */
#ifndef KD_BASE_JSCAN_H
#define KD_BASE_JSCAN_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KD_JSCAN_DEPTH_MAX = 64 };

enum kd_jtok {
    KD_JT_END, /* the top value and white space after it are over */
    KD_JT_OBJECT,
    KD_JT_OBJECT_END,
    KD_JT_ARRAY,
    KD_JT_ARRAY_END,
    KD_JT_NAME, /* of a member; its value follows */
    KD_JT_STR,
    KD_JT_INT,
    KD_JT_NUM, /* with a fraction or an exponent */
    KD_JT_TRUE,
    KD_JT_FALSE,
    KD_JT_NULL
};

struct kd_jscan_limits {
    int depth;           /* open brackets, at most KD_JSCAN_DEPTH_MAX */
    size_t string_bytes; /* of one name or string after its escapes */
    int64_t total_bytes; /* of the whole text */
};

/* Gives the next bytes (0 at the end): -1 with err. */
typedef int (*kd_jscan_fill)(void *ctx, const uint8_t **data, size_t *bytes, struct kd_err *err);

struct kd_jscan {
    /* The token read last. text is NUL-terminated and lives until the next call. */
    enum kd_jtok tok;
    const char *text;
    size_t text_bytes;
    int64_t integer;
    double number;
    int depth; /* open brackets, the token's own included */
    /* private */
    struct kd_jscan_limits limits;
    const uint8_t *at, *end;
    int64_t seen_bytes; /* before `at` of earlier windows plus this window's size */
    kd_jscan_fill fill;
    void *ctx;
    struct kd_buf scratch;
    bool is_object[KD_JSCAN_DEPTH_MAX];
    int state;
};

/* Over memory, which must stay. */
void kd_jscan_open(struct kd_jscan *s, const void *data, size_t bytes,
                   const struct kd_jscan_limits *limits);
/* Over windows that `fill` hands out; a window must stay until the next call of fill. */
void kd_jscan_open_fill(struct kd_jscan *s, kd_jscan_fill fill, void *ctx,
                        const struct kd_jscan_limits *limits);
void kd_jscan_close(struct kd_jscan *s);
/* The next token in s->tok; KD_ECORRUPT with "JSON at byte N: ..." */
int kd_jscan_next(struct kd_jscan *s, struct kd_err *err) KD_MUST;

#endif
