#include "serve/stops.h"

#include <string.h>

void kd_stop_scan_init(struct kd_stop_scan *s)
{
    memset(s, 0, sizeof *s);
    kd_buf_init(&s->tail, 1 << 20);
    s->match = -1;
}

void kd_stop_scan_release(struct kd_stop_scan *s)
{
    kd_buf_release(&s->tail);
}

/* The longest string that the first n bytes of the tail end with, or -1. */
static int64_t complete(const struct kd_stop_scan *s, const struct kd_stops *stops, size_t n)
{
    int64_t best = -1;
    for (int64_t i = 0; i < stops->count; i++) {
        size_t len = stops->bytes[i];
        if (len <= n && !memcmp(s->tail.data + n - len, stops->text[i], len) &&
            (best < 0 || len > stops->bytes[best]))
            best = i;
    }
    return best;
}

/* Bytes at the tail's end that some string begins with. */
static size_t undecided(const struct kd_stop_scan *s, const struct kd_stops *stops)
{
    size_t n = s->tail.size_bytes, longest = 0;
    for (int64_t i = 0; i < stops->count; i++) {
        size_t k = stops->bytes[i] - 1 < n ? stops->bytes[i] - 1 : n;
        while (k > longest && memcmp(s->tail.data + n - k, stops->text[i], k))
            k--;
        longest = k > longest ? k : longest;
    }
    return longest;
}

int kd_stop_scan_add(struct kd_stop_scan *s, const struct kd_stops *stops, const char *text,
                     size_t bytes, struct kd_err *err)
{
    size_t before = s->tail.size_bytes;
    if (!stops->count) {
        s->certain += (int64_t)bytes;
        return 0;
    }
    kd_buf_add(&s->tail, text, bytes);
    if (kd_buf_ok(&s->tail, "text of one token", err))
        return -1;
    for (size_t n = before + 1; n <= before + bytes; n++) {
        int64_t i = complete(s, stops, n);
        if (i < 0)
            continue;
        s->match = i;
        s->certain += (int64_t)(n - stops->bytes[i]);
        return 0;
    }
    size_t keep = undecided(s, stops), drop = s->tail.size_bytes - keep;
    s->certain += (int64_t)drop;
    if (keep && drop)
        memmove(s->tail.data, s->tail.data + drop, keep);
    s->tail.size_bytes = keep;
    return 0;
}
