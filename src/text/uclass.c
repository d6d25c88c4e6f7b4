#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/uclass.h"

#include "base/buf.h"
#include "base/mem.h"

#include <pcre2.h>
#include <string.h>

enum { CODE_POINTS = 0x110000, BLOCKS_MAX = 1024 };

static const uint8_t group_class[] = {
    0,
    KD_UC_UPPER | KD_UC_LETTER,
    KD_UC_LOWER | KD_UC_LETTER,
    KD_UC_UPPER | KD_UC_LOWER | KD_UC_LETTER,
    KD_UC_UPPER | KD_UC_LOWER,
    KD_UC_NUMBER,
    KD_UC_SPACE,
    0,
    KD_UC_HAN,
};
/* Groups 1 to 7 are the classes above. sc: because a bare script name means script extensions in
 * PCRE2 since 10.40, which would make the ideographic comma Han. */
static const char general[] =
    "([\\p{Lu}\\p{Lt}]+)|(\\p{Ll}+)|([\\p{Lm}\\p{Lo}]+)|(\\p{M}+)|(\\p{N}+)|(\\p{Z}+)|"
    "([^\\p{L}\\p{M}\\p{N}\\p{Z}]+)";
static const char script[] = "()()()()()()()(\\p{sc:Han}+)";

size_t kd_utf8_put(char *s, uint32_t c)
{
    if (c < 0x80) {
        s[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6)
        s[i] = (char)(0x80u | (c & 0x3fu));
    s[0] = (char)((0xf00u >> n & 0xffu) | c);
    return n;
}

/* Marks every run that `pattern` finds in text; cls has one byte a code point. */
static int mark(const char *pattern, const unsigned char *text, size_t bytes, uint8_t *cls,
                struct kd_err *err)
{
    int code, rc = 0;
    PCRE2_SIZE at = 0;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    pcre2_match_data *md = re ? pcre2_match_data_create_from_pattern(re, NULL) : NULL;
    if (!md) {
        pcre2_code_free(re);
        return kd_fail(
            err, re ? KD_ENOMEM : KD_ENOTSUP,
            "PCRE2 cannot compile the character classes (10.40 or newer is needed), error %d",
            code);
    }
    (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE); /* without JIT it is only slower */
    PCRE2_SIZE *ov = pcre2_get_ovector_pointer(md);
    at = 0;
    while (at < bytes) {
        int n = pcre2_match(re, text, bytes, at, PCRE2_NO_UTF_CHECK, md, NULL);
        if (n == PCRE2_ERROR_NOMATCH)
            break;
        if (n < 2) {
            rc = kd_fail(err, KD_ENOTSUP, "PCRE2 cannot find the character classes, error %d", n);
            break;
        }
        for (at = ov[0]; at < ov[1];) {
            uint32_t cp = 0;
            at += kd_utf8_char(text + at, bytes - at, &cp);
            cls[cp] = n - 1 == 8 ? KD_UC_HAN | (cls[cp] & (KD_UC_LETTER | KD_UC_NUMBER))
                                 : group_class[n - 1];
        }
    }
    pcre2_match_data_free(md);
    pcre2_code_free(re);
    return rc;
}

static int fold(struct kd_uclass *u, const uint8_t *cls, struct kd_err *err)
{
    if (kd_mem_new(&u->table, BLOCKS_MAX, 256, "character classes", err))
        return -1;
    for (int64_t b = 0; b < CODE_POINTS / 256; b++) {
        int64_t i = 0;
        while (i < u->table_count && memcmp(u->table[i], cls + b * 256, 256))
            i++;
        if (i == BLOCKS_MAX)
            return kd_fail(err, KD_ENOTSUP, "more than %d kinds of character blocks", BLOCKS_MAX);
        if (i == u->table_count)
            memcpy(u->table[u->table_count++], cls + b * 256, 256);
        u->block[b] = (uint16_t)i;
    }
    memcpy(u->ascii, cls, 128);
    return 0;
}

int kd_uclass_open(struct kd_uclass *u, struct kd_err *err)
{
    memset(u, 0, sizeof *u);
    uint8_t *cls = NULL;
    unsigned char *text = NULL;
    size_t bytes = 0;
    int rc = kd_mem_zero(&cls, CODE_POINTS, 1, "character classes", err);
    if (!rc)
        rc = kd_mem_new(&text, CODE_POINTS, 4, "character classes", err);
    if (!rc) {
        for (uint32_t c = 0; c < CODE_POINTS; c++)
            if (c < 0xd800 || c > 0xdfff)
                bytes += kd_utf8_put((char *)text + bytes, c);
        rc = mark(general, text, bytes, cls, err) || mark(script, text, bytes, cls, err);
    }
    if (!rc) {
        for (uint32_t c = '\t'; c <= '\r'; c++)
            cls[c] = KD_UC_SPACE;
        cls[0x85] = KD_UC_SPACE;
        cls['\r'] = cls['\n'] = KD_UC_SPACE | KD_UC_NEWLINE;
        rc = fold(u, cls, err);
    }
    kd_mem_free(text);
    kd_mem_free(cls);
    if (rc)
        kd_uclass_close(u);
    return rc ? -1 : 0;
}

void kd_uclass_close(struct kd_uclass *u)
{
    kd_mem_free(u->table);
    u->table = NULL;
}

bool kd_utf8_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}
