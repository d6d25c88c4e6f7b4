/* What get.c (spans, scheduling), get_ask.c (one request) and get_page.c (small answers) share. */
#ifndef KD_NET_GET_INT_H
#define KD_NET_GET_INT_H

#include "base/assert.h"
#include "net/get.h"
#include "net/get_answer.h"
#include "net/url.h"

#include <curl/curl.h>

enum { KD_GET_JOBS_MAX = 64, KD_GET_HOPS_MAX = 5, KD_GET_EXCERPT = 512 };

struct kd_get_file {
    char *url, *token; /* token NULL: none */
    char *real;        /* where a redirect led; NULL: ask url */
    bool known;        /* url or real has answered with bytes */
    bool asking;       /* a request that may find out the real address is on its way */
    int denied;        /* 403 from real addresses in a row */
    int generation;    /* of real */
    bool private_ok;   /* the file's own server is in a private network itself */
    int64_t bytes;     /* -1: not known */
    char etag[160];
};

/* A piece of a span on its way. */
struct kd_get_slot {
    struct kd_get *g;
    CURL *easy;
    struct curl_slist *head;
    enum { KD_SLOT_IDLE, KD_SLOT_WAITS, KD_SLOT_RUNS } state;
    struct kd_get_span *span;
    int64_t at, bytes, got; /* the piece [at, at + bytes) of the span; received of it */
    int64_t got_before;     /* of `got`, when this request began */
    int tries;
    double not_before;
    /* this request */
    char *url;
    bool with_token, redirected;
    int hops, generation;
    struct kd_answer answer;
    bool taken; /* the head was sound: its body is the piece */
    bool fatal; /* err says why */
    struct kd_err err;
    char excerpt[KD_GET_EXCERPT + 1]; /* the beginning of a refusal's body */
    int excerpt_bytes;
};

struct kd_get {
    struct kd_get_opts o;
    CURLM *multi;
    struct kd_get_file *files;
    int file_count, file_cap;
    struct kd_get_slot slots[KD_GET_JOBS_MAX];
    struct kd_get_stats stats;
    double last_byte_s;
    double pace_s;        /* when the bytes received are paid for at the rate */
    double pause_until_s; /* asked for by pause_origin */
    struct kd_origin pause_origin;
    uint64_t draws;
    bool probe; /* one byte of each file, absent ones tolerated */
};

enum kd_get_next {
    KD_NEXT_DONE,   /* the piece is there */
    KD_NEXT_AGAIN,  /* at once, e.g. at another address */
    KD_NEXT_LATER,  /* after a wait: slot->not_before */
    KD_NEXT_ABSENT, /* 404 or an empty file, while probing */
    KD_NEXT_FAIL
};

/* What all requests have in common; `private_ok` and redirected are looked at when it connects. */
int kd_ask_setup(struct kd_get *g, CURL **easy, struct kd_err *err) KD_MUST;
/* Headers of a request: no compression, and the token where it may go. */
int kd_ask_head(struct curl_slist **head, const char *token, struct kd_err *err) KD_MUST;
/* Checks that a URL may be asked at all (http to loopback alone). */
int kd_ask_allowed(const struct kd_get *g, const char *url, struct kd_err *err) KD_MUST;
/* Where a redirect leads: the new address in *url (owned), and whether it is another origin. */
int kd_ask_hop(const struct kd_get *g, const struct kd_answer *a, char **url, bool *elsewhere,
               struct kd_err *err) KD_MUST;
/* A copy of an address in *out, which is freed first. */
int kd_ask_copy(char **out, const char *url, struct kd_err *err) KD_MUST;
/* True for a broken connection that may do better next time. */
bool kd_ask_broken(CURLcode code);
/* The sentence for a refusal: status, host, the server's words. */
int kd_ask_refused(const struct kd_answer *a, const char *url, const char *excerpt, bool token,
                   struct kd_err *err);
/* Seconds to wait before try number `tries` (from 1), with jitter; at least `asked`. */
double kd_ask_backoff(struct kd_get *g, int tries, double asked);
/* Puts a slot's request on its way; the piece is set. */
int kd_slot_start(struct kd_get_slot *s, struct kd_err *err) KD_MUST;
/* What a finished request means; with KD_NEXT_FAIL err is filled. */
enum kd_get_next kd_slot_finish(struct kd_get_slot *s, CURLcode code, struct kd_err *err);

#endif
