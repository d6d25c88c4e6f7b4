/* Stop strings in a stream of text. What is found does not depend on how the stream is cut: the
 * first byte at which any of the strings is complete ends it; of several complete there, the
 * longest counts. */
#ifndef KD_SERVE_STOPS_H
#define KD_SERVE_STOPS_H

#include "base/buf.h"

#include <stdint.h>

struct kd_stops {
    int64_t count;
    char *const *text; /* none empty */
    const size_t *bytes;
};

struct kd_stop_scan {
    struct kd_buf tail; /* bytes that may be the start of a stop string */
    int64_t certain;    /* bytes of the stream that are no part of one */
    int64_t match;      /* which string was found, or -1: then it begins at `certain` */
};
void kd_stop_scan_init(struct kd_stop_scan *s);
void kd_stop_scan_release(struct kd_stop_scan *s);
/* Looks at more text; not after a match. */
int kd_stop_scan_add(struct kd_stop_scan *s, const struct kd_stops *stops, const char *text,
                     size_t bytes, struct kd_err *err) KD_MUST;

#endif
