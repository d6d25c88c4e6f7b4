/* Which bytes of which file go where, and the requests that bring them: sorted, near ones joined,
 * long ones cut. The same spans give the same requests and the same hash. Pure. */
#ifndef KD_SLICE_SPANS_H
#define KD_SLICE_SPANS_H

#include "base/err.h"

#include <stdint.h>

/* Source bytes [begin, begin + bytes) of a part; they become bytes / unit * out_unit bytes at
 * out_at of output file `out`. unit = out_unit where they are copied. A span is cut at whole units
 * only. */
struct kd_slice_span {
    int32_t part, out;
    int32_t tensor; /* the caller's; -1: none */
    int32_t to;     /* the caller's: a type to convert to, or -1 */
    int64_t begin, bytes, out_at;
    int64_t unit, out_unit; /* 1, 1: bytes */
};

/* One range to read: [begin, begin + bytes) of a part, with spans first .. first + count - 1 in it.
 */
struct kd_slice_request {
    int32_t part;
    int64_t begin, bytes;
    int64_t first, count;
};

struct kd_slice_spans {
    struct kd_slice_span *s; /* sorted by part and begin; cut, so that each lies in one request */
    int64_t count;
    struct kd_slice_request *r;
    int64_t request_count;
    int64_t wanted_bytes; /* of the spans */
    int64_t gap_bytes;    /* read between them and dropped */
    char hash[65];        /* SHA-256 of all spans and requests */
};

struct kd_slice_limits {
    int64_t gap_bytes;     /* spans of a part nearer than this are read in one go */
    int64_t request_bytes; /* of one request at most */
};

/* part_bytes: sizes of the parts. -1 for spans that overlap, or leave their part (KD_ECORRUPT), or
 * whose unit is over a request (KD_ENOTSUP). `spans` is not changed. */
int kd_slice_spans_make(struct kd_slice_spans *out, const struct kd_slice_span *spans,
                        int64_t count, const int64_t *part_bytes, int32_t parts,
                        const struct kd_slice_limits *limits, struct kd_err *err) KD_MUST;
void kd_slice_spans_release(struct kd_slice_spans *s);

#endif
