#include "net/head.h"

#include <string.h>
#include <strings.h>

static enum kd_head_state bad(struct kd_head *h, int status, const char *why)
{
    h->status = status;
    h->why = why;
    return KD_HEAD_BAD;
}

static bool is_token(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is(const char *s, size_t n, const char *word)
{
    return n == strlen(word) && !strncasecmp(s, word, n);
}

/* Whether the comma-separated list has the word. */
static bool has(const char *s, size_t n, const char *word)
{
    while (n) {
        const char *comma = memchr(s, ',', n);
        size_t k = comma ? (size_t)(comma - s) : n, skip = k + (comma != NULL);
        const char *w = s;
        while (k && (*w == ' ' || *w == '\t'))
            w++, k--;
        while (k && (w[k - 1] == ' ' || w[k - 1] == '\t'))
            k--;
        if (is(w, k, word))
            return true;
        s += skip;
        n -= skip;
    }
    return false;
}

static enum kd_head_state request_line(struct kd_head *h, const char *s, size_t n)
{
    const char *end = s + n, *p = s;
    while (p < end && is_token((unsigned char)*p))
        p++;
    if (p == s || p == end || *p != ' ' || p - s > 15)
        return bad(h, 400, "the request line does not begin with a method");
    const char *target = ++p;
    while (p < end && (unsigned char)*p > ' ' && (unsigned char)*p < 0x7f)
        p++;
    if (p == end || *p != ' ')
        return bad(h, 400, "the request line has no target or stray bytes in it");
    size_t bytes = (size_t)(p - target);
    if (bytes > 8192)
        return bad(h, 414, "the request's target is too long");
    if (*target != '/')
        return bad(h, 400, "the request's target is not a path");
    if (memmem(target, bytes, "%00", 3))
        return bad(h, 400, "the request's target has a NUL");
    p++;
    n = (size_t)(end - p);
    if (n != 8 || memcmp(p, "HTTP/", 5) != 0 || p[6] != '.')
        return bad(h, 400, "the request line does not end with the version of HTTP");
    if (p[5] != '1' || (p[7] != '0' && p[7] != '1'))
        return bad(h, 505, "only HTTP/1.0 and HTTP/1.1 are understood");
    h->http10 = p[7] == '0';
    h->keep_alive = !h->http10;
    return KD_HEAD_OK;
}

static enum kd_head_state length_of(struct kd_head *h, const char *v, size_t n)
{
    if (h->has_length)
        return bad(h, 400, "more than one Content-Length");
    if (!n || n > 18)
        return bad(h, n ? 413 : 400, "Content-Length is not a length this server takes");
    for (size_t i = 0; i < n; i++) {
        if (v[i] < '0' || v[i] > '9')
            return bad(h, 400, "Content-Length is not a number");
        h->length = h->length * 10 + (v[i] - '0');
    }
    h->has_length = true;
    return KD_HEAD_OK;
}

static enum kd_head_state field(struct kd_head *h, const char *s, size_t n, int *hosts)
{
    size_t k = 0;
    while (k < n && is_token((unsigned char)s[k]))
        k++;
    if (!k || k == n || s[k] != ':')
        return bad(h, 400, "a header line is not 'name: value'");
    const char *v = s + k + 1;
    size_t m = n - k - 1;
    while (m && (*v == ' ' || *v == '\t'))
        v++, m--;
    while (m && (v[m - 1] == ' ' || v[m - 1] == '\t'))
        m--;
    for (size_t i = 0; i < m; i++)
        if (((unsigned char)v[i] < ' ' && v[i] != '\t') || v[i] == 0x7f)
            return bad(h, 400, "a control character in a header");
    if (is(s, k, "content-length"))
        return length_of(h, v, m);
    if (is(s, k, "transfer-encoding")) {
        if (h->chunked || !is(v, m, "chunked"))
            return bad(h, 400, "the only Transfer-Encoding is one 'chunked'");
        h->chunked = true;
    } else if (is(s, k, "host")) {
        if (++*hosts > 1)
            return bad(h, 400, "more than one Host");
    } else if (is(s, k, "expect")) {
        if (!is(v, m, "100-continue"))
            return bad(h, 417, "the only Expect is 100-continue");
    } else if (is(s, k, "connection")) {
        if (has(v, m, "close"))
            h->keep_alive = false;
        else if (h->http10 && has(v, m, "keep-alive"))
            h->keep_alive = true;
    }
    return KD_HEAD_OK;
}

static enum kd_head_state finish(struct kd_head *h, int hosts, int64_t body_max)
{
    if (!hosts && !h->http10)
        return bad(h, 400, "no Host");
    if (h->chunked && (h->has_length || h->http10))
        return bad(h, 400, "Transfer-Encoding with Content-Length or HTTP/1.0");
    /* libmicrohttpd answers a broken chunk in words of its own, and a body whose size is told first
     * can be refused before it is read. */
    if (h->chunked)
        return bad(h, 411, "a body needs a Content-Length");
    if (h->length > body_max)
        return bad(h, 413, "the body is larger than this server takes");
    return KD_HEAD_OK;
}

enum kd_head_state kd_head_parse(struct kd_head *h, const char *s, size_t bytes, int64_t body_max)
{
    const char *end = s + bytes, *p = s;
    int lines = 0, hosts = 0;
    memset(h, 0, sizeof *h);
    /* A line end after a body is a known slip of old clients. */
    for (int i = 0; i < 2 && end - p >= 2 && p[0] == '\r' && p[1] == '\n'; i++)
        p += 2;
    while (p < end) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        const char *stop = nl ? nl : end;
        if (memchr(p, 0, (size_t)(stop - p)))
            return bad(h, 400, "a NUL in the request's head");
        if ((size_t)(stop - s) >= KD_HEAD_BYTES_MAX)
            return bad(h, 431, "the request's head is too large");
        if (!nl)
            return KD_HEAD_MORE;
        if (nl == p || nl[-1] != '\r')
            return bad(h, 400, "a line does not end with CR LF");
        size_t n = (size_t)(nl - p) - 1;
        if (memchr(p, '\r', n))
            return bad(h, 400, "a CR inside a line");
        enum kd_head_state st;
        if (lines && !n) {
            h->head_bytes = (size_t)(nl + 1 - s);
            return finish(h, hosts, body_max);
        }
        if (lines > KD_HEAD_LINES_MAX)
            return bad(h, 431, "too many headers");
        st = lines++ ? field(h, p, n, &hosts) : request_line(h, p, n);
        if (st != KD_HEAD_OK)
            return st;
        p = nl + 1;
    }
    return KD_HEAD_MORE;
}
