/* Character classes of Kimi's splitting pattern, one byte a code point. They are asked of PCRE2
 * once, when a tokenizer opens, so that the Unicode tables stay PCRE2's and no text ever meets its
 * matcher: a scanner over classes has no backtracking limits. Immutable after opening and then
 * thread-safe. */
#ifndef KD_TEXT_UCLASS_H
#define KD_TEXT_UCLASS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KD_UC_UPPER = 1,    /* Lu Lt Lm Lo M, not Han: first class of a word */
    KD_UC_LOWER = 2,    /* Ll Lm Lo M, not Han: second class of a word */
    KD_UC_LETTER = 4,   /* L */
    KD_UC_NUMBER = 8,   /* N */
    KD_UC_SPACE = 16,   /* White_Space */
    KD_UC_NEWLINE = 32, /* \r \n */
    KD_UC_HAN = 64      /* Script = Han */
};

struct kd_uclass {
    uint8_t ascii[128];
    uint16_t block[0x1100]; /* of 256 code points */
    uint8_t (*table)[256];
    int64_t table_count;
};
int kd_uclass_open(struct kd_uclass *u, struct kd_err *err) KD_MUST;
void kd_uclass_close(struct kd_uclass *u);

/* Bytes of the well-formed UTF-8 character at s (left >= 1), or 0. cp may not be NULL. */
static inline size_t kd_utf8_char(const unsigned char *s, size_t left, uint32_t *cp)
{
    uint32_t c = s[0];
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    size_t n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c < 0xc2 || c > 0xf4 || n > left)
        return 0;
    uint32_t v = c & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        v = v << 6 | (s[i] & 0x3fu);
    }
    if ((n == 3 && (v < 0x800 || (v >= 0xd800 && v <= 0xdfff))) ||
        (n == 4 && (v < 0x10000 || v > 0x10ffff)))
        return 0;
    *cp = v;
    return n;
}

/* Writes c as UTF-8 (room for 4 bytes); the number of bytes. */
size_t kd_utf8_put(char *s, uint32_t c);

/* Class and length of the character at s. A byte that is not UTF-8 is a character of its own that
 * is neither space, letter nor number. */
static inline unsigned kd_uclass_at(const struct kd_uclass *u, const unsigned char *s, size_t left,
                                    size_t *n)
{
    if (s[0] < 0x80) {
        *n = 1;
        return u->ascii[s[0]];
    }
    uint32_t cp;
    *n = kd_utf8_char(s, left, &cp);
    if (!*n) {
        *n = 1;
        return 0;
    }
    return u->table[u->block[cp >> 8]][cp & 0xff];
}

/* What Python's str.isspace says: White_Space and the four separators U+001C to U+001F. */
bool kd_utf8_is_space(uint32_t cp);

#endif
