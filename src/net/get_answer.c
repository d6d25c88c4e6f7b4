#include "net/get_answer.h"

#include "base/show.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

void kd_answer_init(struct kd_answer *a)
{
    memset(a, 0, sizeof *a);
    a->range_begin = a->range_end = a->range_total = a->length = -1;
}

/* Digits at *p, moved past them; -1 without any or over 64 bits. */
static int64_t digits(const char **p)
{
    int64_t v = 0;
    if (**p < '0' || **p > '9')
        return -1;
    for (; **p >= '0' && **p <= '9'; ++*p)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, **p - '0', &v))
            return -1;
    return v;
}

int kd_answer_range(const char *text, int64_t *begin, int64_t *end, int64_t *total)
{
    const char *p = text;
    if (strncasecmp(p, "bytes", 5))
        return -1;
    p += 5;
    if (*p != ' ')
        return -1;
    p += strspn(p, " ");
    *begin = *end = -1;
    if (*p == '*') {
        p++;
    } else {
        *begin = digits(&p);
        if (*begin < 0 || *p++ != '-')
            return -1;
        *end = digits(&p);
        if (*end < *begin)
            return -1;
    }
    if (*p++ != '/')
        return -1;
    *total = -1;
    if (*p == '*')
        p++;
    else if ((*total = digits(&p)) < 0)
        return -1;
    p += strspn(p, " \t");
    if (*p || (*end >= 0 && *total >= 0 && *end >= *total) || (*begin < 0 && *total < 0))
        return -1;
    return 0;
}

static void copy(char *out, size_t size, const char *text, size_t n)
{
    if (n >= size)
        n = 0; /* a cut address or tag would be another one */
    memcpy(out, text, n);
    out[n] = 0;
}

/* The address of rel="next" in a Link header: <address>; rel="next", <...>; ... */
static void link_next(char *out, size_t size, const char *text)
{
    for (const char *p = text; (p = strchr(p, '<'));) {
        const char *end = strchr(p, '>');
        if (!end)
            return;
        size_t n = strcspn(end, ",<");
        for (const char *rel = end; (rel = strstr(rel, "rel=")) && rel < end + n; rel += 4) {
            rel += 4 + (rel[4] == '"');
            if (!strncmp(rel, "next", 4) && (!rel[4] || strchr("\"; ,", rel[4]))) {
                copy(out, size, p + 1, (size_t)(end - p - 1));
                return;
            }
        }
        p = end;
    }
}

static void field(struct kd_answer *a, const char *name, const char *v)
{
    size_t n = strlen(v);
    if (!strcasecmp(name, "content-range"))
        a->has_range = !kd_answer_range(v, &a->range_begin, &a->range_end, &a->range_total);
    else if (!strcasecmp(name, "content-length")) {
        const char *p = v;
        a->length = digits(&p);
    } else if (!strcasecmp(name, "content-type"))
        copy(a->type, sizeof a->type, v, strcspn(v, "; "));
    else if (!strcasecmp(name, "content-encoding"))
        kd_show_text(a->encoding, sizeof a->encoding, v);
    else if (!strcasecmp(name, "etag"))
        copy(a->etag, sizeof a->etag, v, n);
    else if (!strcasecmp(name, "location"))
        copy(a->location, sizeof a->location, v, n);
    else if (!strcasecmp(name, "x-repo-commit"))
        copy(a->commit, sizeof a->commit, v, n);
    else if (!strcasecmp(name, "x-error-code"))
        kd_show_text(a->code, sizeof a->code, v);
    else if (!strcasecmp(name, "link"))
        link_next(a->next, sizeof a->next, v);
}

bool kd_answer_line(struct kd_answer *a, const char *line, size_t bytes)
{
    char text[KD_LOCATION_MAX + 64];
    while (bytes && (line[bytes - 1] == '\n' || line[bytes - 1] == '\r'))
        bytes--;
    if (!bytes)
        return a->status >= 200;
    if (bytes >= sizeof text || memchr(line, 0, bytes))
        return false;
    memcpy(text, line, bytes);
    text[bytes] = 0;
    if (!strncmp(text, "HTTP/", 5)) {
        const char *p = text + strcspn(text, " ");
        kd_answer_init(a);
        p += strspn(p, " ");
        int64_t status = digits(&p);
        a->status = status >= 100 && status <= 999 ? (int)status : 0;
        return false;
    }
    char *colon = strchr(text, ':');
    if (!colon)
        return false;
    *colon = 0;
    const char *value = colon + 1 + strspn(colon + 1, " \t");
    for (char *end = text + bytes; end > value && (end[-1] == ' ' || end[-1] == '\t');)
        *--end = 0;
    field(a, text, value);
    return false;
}

int kd_answer_check(const struct kd_answer *a, int64_t begin, int64_t bytes, int64_t total,
                    const char *etag, struct kd_err *err)
{
    if (a->status == 200 && !strcasecmp(a->type, "text/html"))
        return kd_fail(err, KD_EREMOTE, "the server sends a page (text/html), not the file");
    if (a->status != 206)
        return kd_fail(err, KD_EREMOTE,
                       "the server ignores byte ranges (status %d for a range); nothing was taken",
                       a->status);
    if (*a->encoding && strcasecmp(a->encoding, "identity"))
        return kd_fail(err, KD_EREMOTE, "the server sends '%s' where plain bytes were asked for",
                       a->encoding);
    if (!a->has_range)
        return kd_fail(err, KD_EREMOTE, "the server sends a part without saying which");
    if (total >= 0 && a->range_total >= 0 && a->range_total != total)
        return kd_fail(err, KD_EREMOTE, "the file changed: it had %lld bytes, now %lld",
                       (long long)total, (long long)a->range_total);
    if (a->range_begin == begin && a->range_total >= 0 && a->range_end == a->range_total - 1 &&
        a->range_end < begin + bytes - 1)
        return kd_fail(err, KD_EREMOTE,
                       "the file ends at byte %lld, bytes up to %lld were expected",
                       (long long)a->range_total, (long long)(begin + bytes));
    if (a->range_begin != begin || a->range_end != begin + bytes - 1)
        return kd_fail(err, KD_EREMOTE,
                       "the server sends bytes %lld-%lld, asked for were %lld-%lld",
                       (long long)a->range_begin, (long long)a->range_end, (long long)begin,
                       (long long)(begin + bytes - 1));
    if (a->range_total < 0 && total < 0)
        return kd_fail(err, KD_EREMOTE, "the server does not say how large the file is");
    if (a->length > bytes)
        return kd_fail(err, KD_EREMOTE, "the server sends %lld bytes, asked for were %lld",
                       (long long)a->length, (long long)bytes);
    if (*etag && *a->etag && strcmp(etag, a->etag))
        return kd_fail(err, KD_EREMOTE, "the file changed while it was read (another ETag)");
    if (!strcasecmp(a->type, "text/html"))
        return kd_fail(err, KD_EREMOTE, "the server sends a page (text/html), not the file");
    return 0;
}

bool kd_answer_again(int status)
{
    return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 ||
           status == 504;
}
