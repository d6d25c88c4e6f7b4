/* The head of one HTTP answer to a range request, line by line as it comes, and what may be said of
 * it. Pure: no connection here. One answer belongs to one thread. */
#ifndef KD_NET_GET_ANSWER_H
#define KD_NET_GET_ANSWER_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KD_LOCATION_MAX = 8192 };

struct kd_answer {
    int status; /* 0: no status line yet */
    bool has_range;
    int64_t range_begin, range_end; /* inclusive; -1 and -1 for an unsatisfied one */
    int64_t range_total;            /* -1: unknown ("*") */
    int64_t length;                 /* Content-Length, or -1 */
    char type[64], encoding[32], etag[160], commit[64], code[64];
    char location[KD_LOCATION_MAX]; /* "" when absent or too long */
    char next[2048];                /* of the Link header's rel="next" */
};

void kd_answer_init(struct kd_answer *a);
/* One line of the head, with or without its line end. A status line begins a new answer (after 100
 * Continue). True when the line is the empty one that ends a head other than 1xx. */
bool kd_answer_line(struct kd_answer *a, const char *line, size_t bytes);
/* "bytes A-B/T", "bytes A-B/" and '*', or "bytes" with '*' and "/T": 0, or -1 when it is none. */
int kd_answer_range(const char *text, int64_t *begin, int64_t *end, int64_t *total) KD_MUST;
/* Holds a 206 against what was asked: [begin, begin + bytes) of a file of total bytes (-1: not
 * known) with this ETag ("": not known). KD_EREMOTE with the first thing that is wrong. */
int kd_answer_check(const struct kd_answer *a, int64_t begin, int64_t bytes, int64_t total,
                    const char *etag, struct kd_err *err) KD_MUST;
/* Worth asking again: 408, 429, 500, 502, 503, 504. */
bool kd_answer_again(int status);

#endif
