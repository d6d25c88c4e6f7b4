#include "text/gpt2.h"

#include <stdbool.h>

static bool is_itself(unsigned c)
{
    return (c > 32 && c < 127) || (c > 160 && c < 256 && c != 173);
}

/* The character of a byte. */
static unsigned char_of(unsigned byte)
{
    if (is_itself(byte))
        return byte;
    return byte < 33 ? 256 + byte : byte < 161 ? 256 + 33 + byte - 127 : 256 + 67;
}

void kd_gpt2_put(struct kd_buf *out, const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        unsigned c = char_of(bytes[i]);
        if (c >= 128)
            kd_buf_char(out, (char)(0xc0 | c >> 6));
        kd_buf_char(out, (char)(c < 128 ? c : 0x80 | (c & 63)));
    }
}

int kd_gpt2_get(struct kd_buf *out, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned c = (unsigned char)text[i];
        if (c >= 128) {
            if (c < 0xc2 || c > 0xc5 || i + 1 == bytes ||
                ((unsigned char)text[i + 1] & 0xc0) != 0x80)
                return -1;
            c = (c & 31) << 6 | ((unsigned char)text[++i] & 63);
        }
        unsigned byte = c < 256        ? c
                        : c < 256 + 33 ? c - 256
                        : c < 256 + 67 ? c - 256 - 33 + 127
                                       : 173;
        if (char_of(byte) != c)
            return -1;
        kd_buf_char(out, (char)byte);
    }
    return 0;
}
