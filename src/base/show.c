#include "base/show.h"

#include <stdio.h>

const char *kd_show_text(char *out, size_t size, const char *text)
{
    size_t n = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c && n + 1 < size; c++) {
        if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) {
            out[n++] = '?';
            c++;
        } else {
            out[n++] = *c < 0x20 || *c == 0x7f ? '?' : (char)*c;
        }
    }
    out[n] = 0;
    return out;
}

static void scaled(char *out, size_t size, int64_t value, const char *tail)
{
    static const char units[] = " kMGTPE";
    double v = (double)value;
    int u = 0;
    while ((v >= 999.95 || v <= -999.95) && units[u + 1]) {
        v /= 1000;
        u++;
    }
    if (!u)
        snprintf(out, size, "%lld%s%s", (long long)value, *tail ? " " : "", tail);
    else
        snprintf(out, size, "%.*f %c%s", u >= 3 ? 3 : 1, v, units[u], tail);
}

void kd_show_bytes(char *out, size_t size, int64_t bytes)
{
    scaled(out, size, bytes, "B");
}

void kd_show_count(char *out, size_t size, int64_t count)
{
    scaled(out, size, count, "");
}

void kd_show_exact(char *out, size_t size, int64_t value)
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)value), first = digits[0] == '-';
    size_t used = 0;
    for (int i = 0; i < n && used + 2 < size; i++) {
        if (i > first && (n - i) % 3 == 0)
            out[used++] = ',';
        out[used++] = digits[i];
    }
    out[used] = 0;
}

void kd_html_text(struct kd_buf *out, const char *text)
{
    for (const char *at = text; *at; at++)
        switch (*at) {
        case '<':
            kd_buf_str(out, "&lt;");
            break;
        case '>':
            kd_buf_str(out, "&gt;");
            break;
        case '&':
            kd_buf_str(out, "&amp;");
            break;
        case '"':
            kd_buf_str(out, "&quot;");
            break;
        case '\'':
            kd_buf_str(out, "&#39;");
            break;
        default:
            if ((unsigned char)*at >= 32 && *at != 127)
                kd_buf_char(out, *at);
            else
                kd_buf_char(out, '?');
        }
}
