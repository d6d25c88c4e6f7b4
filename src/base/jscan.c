#include "base/jscan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    WANT_VALUE,
    WANT_VALUE_OR_CLOSE,
    WANT_NAME,
    WANT_NAME_OR_CLOSE,
    WANT_COMMA_OR_CLOSE,
    WANT_END
};
enum { NUMBER_MAX = 128 };

static int64_t offset(const struct kd_jscan *s)
{
    return s->seen_bytes - (s->end - s->at);
}

static int bad(const struct kd_jscan *s, struct kd_err *err, const char *what)
{
    return kd_fail(err, KD_ECORRUPT, "JSON at byte %lld: %s", (long long)offset(s), what);
}

void kd_jscan_open_fill(struct kd_jscan *s, kd_jscan_fill fill, void *ctx,
                        const struct kd_jscan_limits *limits)
{
    memset(s, 0, sizeof *s);
    s->limits = *limits;
    if (s->limits.depth > KD_JSCAN_DEPTH_MAX)
        s->limits.depth = KD_JSCAN_DEPTH_MAX;
    s->fill = fill;
    s->ctx = ctx;
    kd_buf_init(&s->scratch, limits->string_bytes);
    s->state = WANT_VALUE;
}

void kd_jscan_open(struct kd_jscan *s, const void *data, size_t bytes,
                   const struct kd_jscan_limits *limits)
{
    kd_jscan_open_fill(s, NULL, NULL, limits);
    s->at = data;
    s->end = s->at ? s->at + bytes : NULL;
    s->seen_bytes = s->at ? (int64_t)bytes : 0;
}

void kd_jscan_close(struct kd_jscan *s)
{
    kd_buf_release(&s->scratch);
}

/* Makes *c the next byte without taking it, or -1 at the end of the text. */
static int peek(struct kd_jscan *s, int *c, struct kd_err *err)
{
    *c = -1;
    if (s->at == s->end && s->fill) {
        const uint8_t *data = NULL;
        size_t bytes = 0;
        if (s->fill(s->ctx, &data, &bytes, err))
            return -1;
        s->at = data;
        s->end = bytes ? data + bytes : data;
        s->seen_bytes += (int64_t)bytes;
    }
    if (s->seen_bytes > s->limits.total_bytes)
        return kd_fail(err, KD_ECORRUPT, "JSON text is larger than its limit of %lld bytes",
                       (long long)s->limits.total_bytes);
    if (s->at != s->end)
        *c = *s->at;
    return 0;
}

static int hex4(struct kd_jscan *s, unsigned *out, struct kd_err *err)
{
    *out = 0;
    for (int i = 0; i < 4; i++) {
        int c;
        if (peek(s, &c, err))
            return -1;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return bad(s, err, "\\u needs four hex digits");
        *out = *out * 16 + (unsigned)digit;
        s->at++;
    }
    return 0;
}

static int take(struct kd_jscan *s, const char *literal, struct kd_err *err)
{
    for (const char *l = literal; *l; l++) {
        int c;
        if (peek(s, &c, err))
            return -1;
        if (c != *l)
            return bad(s, err, "not a JSON value");
        s->at++;
    }
    return 0;
}

static int escape_u(struct kd_jscan *s, struct kd_err *err)
{
    unsigned u, low;
    if (hex4(s, &u, err))
        return -1;
    if (!u)
        return bad(s, err, "a NUL inside a string");
    if (u >= 0xdc00 && u <= 0xdfff)
        return bad(s, err, "half of a surrogate pair");
    if (u >= 0xd800 && u <= 0xdbff) {
        int c = 0;
        for (const char *l = "\\u"; *l; l++) {
            if (peek(s, &c, err))
                return -1;
            if (c != *l)
                return bad(s, err, "half of a surrogate pair");
            s->at++;
        }
        if (hex4(s, &low, err))
            return -1;
        if (low < 0xdc00 || low > 0xdfff)
            return bad(s, err, "half of a surrogate pair");
        u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
    }
    unsigned lead = u < 0x80 ? 0 : u < 0x800 ? 1 : u < 0x10000 ? 2 : 3;
    static const unsigned mark[] = {0, 0xc0, 0xe0, 0xf0};
    kd_buf_char(&s->scratch, (char)(mark[lead] | (u >> (6 * lead))));
    while (lead--)
        kd_buf_char(&s->scratch, (char)(0x80 | ((u >> (6 * lead)) & 0x3f)));
    return 0;
}

static int escape(struct kd_jscan *s, struct kd_err *err)
{
    int c;
    if (peek(s, &c, err))
        return -1;
    const char *from = "\"\\/bfnrt", *to = "\"\\/\b\f\n\r\t";
    const char *hit = c > 0 ? strchr(from, c) : NULL;
    if (!hit && c != 'u')
        return bad(s, err, "no such escape");
    s->at++;
    if (c == 'u')
        return escape_u(s, err);
    kd_buf_char(&s->scratch, to[hit - from]);
    return 0;
}

static bool utf8_ok(const unsigned char *p, size_t left)
{
    while (left) {
        size_t n = p[0] < 0x80 ? 1 : p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
        if (n > 1 && (p[0] < 0xc2 || p[0] > 0xf4 || n > left))
            return false;
        for (size_t i = 1; i < n; i++)
            if ((p[i] & 0xc0) != 0x80)
                return false;
        if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
            (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
            return false;
        p += n;
        left -= n;
    }
    return true;
}

/* After the opening quote. */
static int string(struct kd_jscan *s, struct kd_err *err)
{
    bool high = false;
    int64_t start = offset(s);
    kd_buf_clear(&s->scratch);
    for (;;) {
        int c;
        if (peek(s, &c, err))
            return -1;
        if (c < 0)
            return bad(s, err, "the text ends inside a string");
        const uint8_t *from = s->at;
        while (s->at < s->end && *s->at != '"' && *s->at != '\\' && *s->at >= 0x20) {
            high |= *s->at >= 0x80;
            s->at++;
        }
        kd_buf_add(&s->scratch, from, (size_t)(s->at - from));
        if (s->at < s->end) {
            c = *s->at++;
            if (c == '"')
                break;
            if (c != '\\')
                return bad(s, err, "a control byte inside a string");
            if (escape(s, err))
                return -1;
        }
        if (s->scratch.failed)
            break;
    }
    if (s->scratch.failed)
        return kd_fail(err, KD_ECORRUPT, "JSON at byte %lld: a string over the limit of %zu bytes",
                       (long long)start, s->limits.string_bytes);
    s->text = s->scratch.data ? s->scratch.data : "";
    s->text_bytes = s->scratch.size_bytes;
    if (high && !utf8_ok((const unsigned char *)s->text, s->text_bytes))
        return bad(s, err, "a string is not valid UTF-8");
    return 0;
}

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Whether text is a JSON number; *whole when it has neither fraction nor exponent. */
static bool number_form(const char *t, bool *whole)
{
    *whole = true;
    t += *t == '-';
    if (!digit(*t) || (*t == '0' && digit(t[1])))
        return false;
    while (digit(*t))
        t++;
    if (*t == '.') {
        *whole = false;
        t++;
        if (!digit(*t))
            return false;
        while (digit(*t))
            t++;
    }
    if (*t == 'e' || *t == 'E') {
        *whole = false;
        t++;
        t += *t == '+' || *t == '-';
        if (!digit(*t))
            return false;
        while (digit(*t))
            t++;
    }
    return !*t;
}

static int number(struct kd_jscan *s, struct kd_err *err)
{
    char text[NUMBER_MAX];
    size_t n = 0;
    for (;;) {
        int c;
        if (peek(s, &c, err))
            return -1;
        if (c < 0 || !strchr("+-.0123456789eE", c) || !c)
            break;
        if (n + 1 == sizeof text)
            return bad(s, err, "a number of too many digits");
        text[n++] = (char)c;
        s->at++;
    }
    text[n] = 0;
    bool whole;
    if (!number_form(text, &whole))
        return bad(s, err, "not a JSON number");
    if (!whole) {
        s->tok = KD_JT_NUM;
        s->number = strtod(text, NULL);
        return isfinite(s->number) ? 0 : bad(s, err, "a number that does not fit in a double");
    }
    uint64_t v = 0;
    bool minus = *text == '-';
    for (const char *t = text + minus; *t; t++)
        if (__builtin_mul_overflow(v, 10u, &v) ||
            __builtin_add_overflow(v, (unsigned)(*t - '0'), &v))
            return bad(s, err, "an integer that does not fit in 64 bits");
    if (v > (uint64_t)INT64_MAX + minus)
        return bad(s, err, "an integer that does not fit in 64 bits");
    s->tok = KD_JT_INT;
    s->integer = minus ? (int64_t)(0 - v) : (int64_t)v;
    s->number = (double)s->integer;
    return 0;
}

static int open_bracket(struct kd_jscan *s, bool object, struct kd_err *err)
{
    if (s->depth >= s->limits.depth)
        return kd_fail(err, KD_ECORRUPT, "JSON at byte %lld: more than %d levels",
                       (long long)offset(s), s->limits.depth);
    s->at++;
    s->is_object[s->depth++] = object;
    s->tok = object ? KD_JT_OBJECT : KD_JT_ARRAY;
    s->state = object ? WANT_NAME_OR_CLOSE : WANT_VALUE_OR_CLOSE;
    return 0;
}

static int close_bracket(struct kd_jscan *s)
{
    s->at++;
    s->tok = s->is_object[--s->depth] ? KD_JT_OBJECT_END : KD_JT_ARRAY_END;
    s->state = s->depth ? WANT_COMMA_OR_CLOSE : WANT_END;
    return 0;
}

static int value(struct kd_jscan *s, int c, struct kd_err *err)
{
    if (c == '{' || c == '[')
        return open_bracket(s, c == '{', err);
    s->state = s->depth ? WANT_COMMA_OR_CLOSE : WANT_END;
    switch (c) {
    case '"':
        s->at++;
        s->tok = KD_JT_STR;
        return string(s, err);
    case 't':
        s->tok = KD_JT_TRUE;
        return take(s, "true", err);
    case 'f':
        s->tok = KD_JT_FALSE;
        return take(s, "false", err);
    case 'n':
        s->tok = KD_JT_NULL;
        return take(s, "null", err);
    case -1:
        return bad(s, err, "the text ends too early");
    default:
        break;
    }
    if (c != '-' && !digit((char)c))
        return bad(s, err, "not a JSON value");
    return number(s, err);
}

/* The next byte that is not white space, not taken; -1 at the end. */
static int next_byte(struct kd_jscan *s, int *c, struct kd_err *err)
{
    do {
        while (s->at != s->end &&
               (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t'))
            s->at++;
        if (peek(s, c, err))
            return -1;
    } while (*c == ' ' || *c == '\n' || *c == '\r' || *c == '\t');
    return 0;
}

static int name(struct kd_jscan *s, int c, struct kd_err *err)
{
    if (c != '"')
        return bad(s, err, c < 0 ? "the text ends too early" : "a name in quotes must stand here");
    s->at++;
    if (string(s, err) || next_byte(s, &c, err))
        return -1;
    if (c != ':')
        return bad(s, err, "a colon must stand here");
    s->at++;
    s->tok = KD_JT_NAME;
    s->state = WANT_VALUE;
    return 0;
}

int kd_jscan_next(struct kd_jscan *s, struct kd_err *err)
{
    int c;
    if (next_byte(s, &c, err))
        return -1;
    if (s->state == WANT_COMMA_OR_CLOSE) {
        bool object = s->is_object[s->depth - 1];
        if (c == (object ? '}' : ']'))
            return close_bracket(s);
        if (c != ',')
            return bad(s, err,
                       c < 0 ? "the text ends too early" : "a comma or a bracket must stand here");
        s->at++;
        s->state = object ? WANT_NAME : WANT_VALUE;
        if (next_byte(s, &c, err))
            return -1;
    }
    switch (s->state) {
    case WANT_END:
        if (c >= 0)
            return bad(s, err, "something follows the end");
        s->tok = KD_JT_END;
        return 0;
    case WANT_NAME_OR_CLOSE:
        return c == '}' ? close_bracket(s) : name(s, c, err);
    case WANT_NAME:
        return name(s, c, err);
    case WANT_VALUE_OR_CLOSE:
        return c == ']' ? close_bracket(s) : value(s, c, err);
    default:
        return value(s, c, err);
    }
}
