#include "text/split.h"

#include "base/assert.h"

enum { CHUNK_CHARS = 400000, RUN_CHARS = 25000 };

size_t kd_split_chunk(const unsigned char *s, size_t left, int64_t *chars)
{
    /* Neither limit can be reached. */
    if (left <= RUN_CHARS && *chars + (int64_t)left < CHUNK_CHARS) {
        *chars += (int64_t)left;
        return left;
    }
    size_t at = 0;
    int64_t run = 0;
    bool space = false;
    while (at < left) {
        if (*chars == CHUNK_CHARS) {
            *chars = 0;
            return at;
        }
        uint32_t cp;
        size_t n = kd_utf8_char(s + at, left - at, &cp);
        bool now = n && kd_utf8_is_space(cp);
        run = now == space ? run + 1 : 1;
        space = now;
        if (run > RUN_CHARS)
            return at;
        ++*chars;
        at += n ? n : 1;
    }
    return at;
}

/* End of the run of characters that have one of the bits, from `at`. */
static size_t run_end(const struct kd_uclass *u, const unsigned char *s, size_t left, size_t at,
                      unsigned bits)
{
    size_t n;
    while (at < left && kd_uclass_at(u, s + at, left - at, &n) & bits)
        at += n;
    return at;
}

/* UPPER* LOWER+ (kind 2) or else UPPER+ (kind 3) at `at`; kind 0: neither. Returns the end. */
static size_t word(const struct kd_uclass *u, const unsigned char *s, size_t left, size_t at,
                   int *kind)
{
    size_t begin = at, both_end = 0, n;
    unsigned c = 0;
    while (at < left) {
        c = kd_uclass_at(u, s + at, left - at, &n);
        if (!(c & KD_UC_UPPER))
            break;
        at += n;
        if (c & KD_UC_LOWER)
            both_end = at; /* UPPER* can give back up to here */
    }
    *kind = 2;
    if (at < left && c & KD_UC_LOWER && !(c & KD_UC_UPPER))
        return run_end(u, s, left, at, KD_UC_LOWER);
    if (both_end)
        return both_end;
    *kind = at > begin ? 3 : 0;
    return at;
}

/* 's 't 're 've 'm 'll 'd in any case; U+017F folds to s. */
static size_t contraction(const unsigned char *s, size_t left)
{
    if (left < 2 || s[0] != '\'')
        return 0;
    if (s[1] == 0xc5 && left > 2 && s[2] == 0xbf)
        return 3;
    unsigned a = s[1] | 0x20u, b = left > 2 ? s[2] | 0x20u : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* Alternatives 6 to 8: up to the last newline of the run, or all but its last character when
 * something follows, or all. */
static size_t blank(const struct kd_uclass *u, const unsigned char *s, size_t left)
{
    size_t at = 0, last = 0, newline = 0, n;
    while (at < left) {
        unsigned c = kd_uclass_at(u, s + at, left - at, &n);
        if (!(c & KD_UC_SPACE))
            break;
        last = at;
        at += n;
        if (c & KD_UC_NEWLINE)
            newline = at;
    }
    if (newline)
        return newline;
    return at < left && last ? last : at;
}

size_t kd_split_piece(const struct kd_uclass *u, const unsigned char *s, size_t left)
{
    const unsigned word_stop = KD_UC_NEWLINE | KD_UC_LETTER | KD_UC_NUMBER;
    const unsigned not_other = KD_UC_SPACE | KD_UC_LETTER | KD_UC_NUMBER;
    size_t n, n2 = 0;
    unsigned c = kd_uclass_at(u, s, left, &n);
    if (c & KD_UC_HAN)
        return run_end(u, s, left, n, KD_UC_HAN);
    int kind = 0, kind2 = 0;
    size_t end = 0, end2 = 0;
    if (!(c & word_stop) && n < left)
        end = word(u, s, left, n, &kind);
    if (kind != 2 && c & (KD_UC_UPPER | KD_UC_LOWER))
        end2 = word(u, s, left, 0, &kind2);
    if (kind == 2 || (kind == 3 && kind2 != 2))
        return end + contraction(s + end, left - end);
    if (kind2)
        return end2 + contraction(s + end2, left - end2);
    if (c & KD_UC_NUMBER) {
        for (int i = 1; i < 3 && n < left && kd_uclass_at(u, s + n, left - n, &n2) & KD_UC_NUMBER;
             i++)
            n += n2;
        return n;
    }
    bool lead = s[0] == ' ' && n < left && !(kd_uclass_at(u, s + n, left - n, &n2) & not_other);
    if (!lead && c & KD_UC_SPACE)
        return blank(u, s, left);
    KD_DASSERT(lead || !(c & not_other));
    while (n < left && !(kd_uclass_at(u, s + n, left - n, &n2) & not_other))
        n += n2;
    return run_end(u, s, left, n, KD_UC_NEWLINE);
}
