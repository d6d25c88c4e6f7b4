#include "net/links.h"

#include "base/file.h"
#include "net/url.h"

#include <string.h>
#include <strings.h>

/* Takes &amp; back in place: the one entity that a file's name needs. */
static void unamp(char *text)
{
    for (char *p = text; (p = strstr(p, "&amp;")); p++)
        memmove(p + 1, p + 5, strlen(p + 5) + 1);
}

static int link_to(const char *at, size_t n, int (*found)(void *, const char *, struct kd_err *),
                   void *ctx, struct kd_err *err)
{
    char name[512];
    if (n > 2 && at[0] == '.' && at[1] == '/') {
        at += 2;
        n -= 2;
    }
    if (!n || n >= sizeof name || memchr(at, 0, n))
        return 0;
    memcpy(name, at, n);
    name[n] = 0;
    unamp(name);
    if (strpbrk(name, "/?#:") || kd_url_unescape(name) || *name == '.' || *name == '-' ||
        kd_name_check(name, NULL))
        return 0;
    return found(ctx, name, err);
}

int kd_links_scan(const char *html, size_t bytes,
                  int (*found)(void *ctx, const char *name, struct kd_err *err), void *ctx,
                  struct kd_err *err)
{
    const char *end = html + bytes;
    for (const char *p = html; p + 6 < end; p++) {
        if (*p != 'h' && *p != 'H')
            continue;
        if (strncasecmp(p, "href=", 5) || (p[5] != '"' && p[5] != '\''))
            continue;
        const char *from = p + 6;
        const char *to = memchr(from, p[5], (size_t)(end - from));
        if (!to)
            return 0;
        int rc = link_to(from, (size_t)(to - from), found, ctx, err);
        if (rc)
            return rc;
        p = to;
    }
    return 0;
}
