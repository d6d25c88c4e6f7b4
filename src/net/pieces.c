#include "net/pieces.h"

#include <stdio.h>
#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The number at name[at..], 1 to KD_PIECES_MAX; its digits in *n. */
static int64_t number(const char *name, size_t at, size_t *n)
{
    int64_t v = 0;
    for (*n = 0; is_digit(name[at + *n]) && *n < 6; ++*n)
        v = v * 10 + (name[at + *n] - '0');
    return *n && !is_digit(name[at + *n]) && v >= 1 && v <= KD_PIECES_MAX ? v : 0;
}

/* "A<middle>B" at name[at..]: piece A of B. */
static bool pair(struct kd_piece *p, const char *name, size_t at, const char *middle, size_t *end)
{
    size_t n, m = strlen(middle);
    p->no_at = at;
    p->no = number(name, at, &p->no_digits);
    if (!p->no || strncmp(name + at + p->no_digits, middle, m))
        return false;
    p->count = number(name, at + p->no_digits + m, &n);
    *end = at + p->no_digits + m + n;
    return p->count >= p->no;
}

/* split's own letters: a to z, or aa to zz. */
static bool letters(struct kd_piece *p, const char *at)
{
    size_t n = strlen(at);
    if (n < 1 || n > 2 || strspn(at, "abcdefghijklmnopqrstuvwxyz") != n)
        return false;
    p->no = n == 1 ? at[0] - 'a' + 1 : (at[0] - 'a') * 26 + (at[1] - 'a') + 1;
    p->count = 0;
    p->no_digits = n;
    return true;
}

bool kd_piece_parse(struct kd_piece *p, const char *name)
{
    size_t end, bytes = strlen(name);
    *p = (struct kd_piece){.count = 0};
    const char *at = strstr(name, ".part");
    if (at && at > name) {
        size_t from = (size_t)(at - name);
        bool dash = at[5] == '-';
        p->chopped = true;
        p->base_bytes = from;
        return pair(p, name, from + 5 + dash, dash ? "-of-" : "of", &end) && end == bytes;
    }
    at = strstr(name, "-split-");
    if (at && at > name) {
        p->chopped = true;
        p->base_bytes = (size_t)(at - name);
        p->no_at = p->base_bytes + 7;
        return letters(p, at + 7);
    }
    at = strstr(name, "-of-");
    size_t digits = 0;
    while (at && digits < (size_t)(at - name) && is_digit(at[-1 - (long)digits]))
        digits++;
    return digits && pair(p, name, (size_t)(at - name) - digits, "-of-", &end) && name[end] == '.';
}

bool kd_piece_sister(char *out, size_t size, const char *name, const struct kd_piece *p, int64_t no)
{
    if (!p->count || no < 1 || no > p->count)
        return false;
    int n = snprintf(out, size, "%.*s%0*lld%s", (int)p->no_at, name, (int)p->no_digits,
                     (long long)no, name + p->no_at + p->no_digits);
    return n > 0 && (size_t)n < size;
}
