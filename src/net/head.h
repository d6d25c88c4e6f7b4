/* The head of an HTTP/1.x request, checked before anybody acts on it: strict where readers are
 * known to differ (line ends, lengths, blanks around names), so that no two of them can see
 * different requests in the same bytes. A pure function. */
#ifndef KD_NET_HEAD_H
#define KD_NET_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KD_HEAD_BYTES_MAX = 32 << 10, KD_HEAD_LINES_MAX = 100 };

enum kd_head_state {
    KD_HEAD_MORE, /* no end of the head yet */
    KD_HEAD_OK,
    KD_HEAD_BAD /* status and why say what to answer before closing */
};

struct kd_head {
    bool http10, keep_alive, chunked, has_length;
    int64_t length; /* of the body; 0 without */
    size_t head_bytes;
    int status;
    const char *why; /* a constant sentence */
};

/* body_max: a Content-Length over it is 413. */
enum kd_head_state kd_head_parse(struct kd_head *h, const char *s, size_t bytes, int64_t body_max);

#endif
