#include "net/url.h"

#include "base/file.h"
#include "base/show.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>

/* One part of a parsed URL into out; -1 when it is not there or too long. */
static int part(CURLU *u, CURLUPart what, unsigned flags, char *out, size_t size)
{
    char *text = NULL;
    if (curl_url_get(u, what, &text, flags) || !text)
        return -1;
    size_t n = strlen(text);
    int rc = n < size ? 0 : -1;
    if (!rc)
        memcpy(out, text, n + 1);
    curl_free(text);
    return rc;
}

static bool plain(const char *url)
{
    for (const char *p = url; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 127)
            return false;
    return true;
}

static int origin_of(struct kd_origin *o, CURLU *u)
{
    char port[16], host[256];
    if (part(u, CURLUPART_SCHEME, 0, o->scheme, sizeof o->scheme) ||
        part(u, CURLUPART_HOST, 0, host, sizeof host) ||
        part(u, CURLUPART_PORT, CURLU_DEFAULT_PORT, port, sizeof port))
        return -1;
    size_t n = strlen(host);
    bool bracket = *host == '[' && host[n - 1] == ']';
    if (bracket)
        host[n - 1] = 0;
    snprintf(o->host, sizeof o->host, "%s", host + bracket);
    for (char *p = o->host; *p; p++)
        if (*p >= 'A' && *p <= 'Z')
            *p = (char)(*p + 32);
    o->port = (int)strtol(port, NULL, 10);
    return 0;
}

int kd_url_origin(struct kd_origin *o, const char *url, struct kd_err *err)
{
    char shown[256], user[8];
    kd_url_show(shown, sizeof shown, url);
    memset(o, 0, sizeof *o);
    if (strlen(url) >= KD_URL_MAX || !plain(url))
        return kd_fail(err, KD_EINVAL, "'%s' is not an address", shown);
    CURLU *u = curl_url();
    if (!u)
        return kd_fail(err, KD_ENOMEM, "out of memory");
    int rc = curl_url_set(u, CURLUPART_URL, url, 0) || origin_of(o, u) ? -1 : 0;
    if (rc || o->port < 1 || (strcmp(o->scheme, "http") && strcmp(o->scheme, "https")))
        rc = kd_fail(err, KD_EINVAL, "'%s' is not an http or https address", shown);
    else if (!part(u, CURLUPART_USER, 0, user, sizeof user) ||
             !part(u, CURLUPART_PASSWORD, 0, user, sizeof user))
        rc = kd_fail(err, KD_EINVAL, "'%s' holds a user or password; take it out", shown);
    curl_url_cleanup(u);
    return rc;
}

bool kd_origin_same(const struct kd_origin *a, const struct kd_origin *b)
{
    return a->port == b->port && !strcmp(a->scheme, b->scheme) && !strcmp(a->host, b->host);
}

bool kd_host_loopback(const char *host)
{
    struct in_addr a;
    struct in6_addr b;
    if (!strcmp(host, "localhost"))
        return true;
    if (inet_pton(AF_INET, host, &a) == 1)
        return ntohl(a.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &b) == 1 && IN6_IS_ADDR_LOOPBACK(&b);
}

static bool private4(uint32_t a)
{
    return a >> 24 == 127 || a >> 24 == 10 || a >> 24 == 0 || a >> 20 == 0xac1 ||
           a >> 16 == 0xc0a8 || a >> 16 == 0xa9fe || a >> 22 == 0x191;
}

bool kd_ip_private(const char *ip)
{
    struct in_addr a;
    struct in6_addr b;
    if (inet_pton(AF_INET, ip, &a) == 1)
        return private4(ntohl(a.s_addr));
    if (inet_pton(AF_INET6, ip, &b) != 1)
        return false;
    if (IN6_IS_ADDR_V4MAPPED(&b)) {
        uint32_t v4;
        memcpy(&v4, b.s6_addr + 12, 4);
        return private4(ntohl(v4));
    }
    return IN6_IS_ADDR_LOOPBACK(&b) || IN6_IS_ADDR_UNSPECIFIED(&b) || IN6_IS_ADDR_LINKLOCAL(&b) ||
           (b.s6_addr[0] & 0xfe) == 0xfc;
}

int kd_url_join(char *out, size_t size, const char *base, const char *link, struct kd_err *err)
{
    char shown[256];
    CURLU *u = curl_url();
    if (!u)
        return kd_fail(err, KD_ENOMEM, "out of memory");
    int rc = !plain(link) || curl_url_set(u, CURLUPART_URL, base, 0) ||
                     curl_url_set(u, CURLUPART_URL, link, 0) || part(u, CURLUPART_URL, 0, out, size)
                 ? -1
                 : 0;
    curl_url_cleanup(u);
    if (rc)
        return kd_fail(err, KD_EREMOTE, "the server names an address that is none: '%s'",
                       kd_url_show(shown, sizeof shown, link));
    return 0;
}

const char *kd_url_show(char *out, size_t size, const char *url)
{
    char text[512];
    size_t n = strcspn(url, "?#");
    const char *at = strstr(url, "://");
    const char *from = at ? at + 3 : url;
    size_t host = strcspn(from, "/?#");
    const char *user = memchr(from, '@', host);
    /* A user and password are dropped here too: this text is shown when they are refused. */
    snprintf(text, sizeof text, "%.*s%.*s", user ? (int)(from - url) : 0, url,
             user ? (int)(url + n - user - 1) : (int)n, user ? user + 1 : url);
    return kd_show_text(out, size, text);
}

void kd_url_escape(struct kd_buf *out, const char *path)
{
    static const char keep[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~/";
    for (const unsigned char *p = (const unsigned char *)path; *p; p++) {
        if (strchr(keep, *p))
            kd_buf_char(out, (char)*p);
        else
            kd_buf_printf(out, "%%%02X", *p);
    }
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

int kd_url_unescape(char *text)
{
    char *to = text;
    for (const char *p = text; *p; p++) {
        if (*p != '%') {
            *to++ = *p;
            continue;
        }
        int high = hex(p[1]), low = high < 0 ? -1 : hex(p[2]);
        if (low < 0 || high * 16 + low == 0)
            return -1;
        *to++ = (char)(high * 16 + low);
        p += 2;
    }
    *to = 0;
    return 0;
}

int kd_path_check(const char *name, struct kd_err *err)
{
    char part_of[256], shown[256];
    size_t total = strlen(name);
    kd_show_text(shown, sizeof shown, name);
    if (!total || total > 1024 || name[total - 1] == '/')
        return kd_fail(err, KD_ECORRUPT, "'%s' is not a file name", shown);
    for (const char *p = name; *p;) {
        size_t n = strcspn(p, "/");
        if (!n || n >= sizeof part_of)
            return kd_fail(err, KD_ECORRUPT, "'%s' is not a file name", shown);
        memcpy(part_of, p, n);
        part_of[n] = 0;
        if (*part_of == '-')
            return kd_fail(err, KD_ECORRUPT, "'%s' is not a file name: it begins with '-'", shown);
        if (kd_name_check(part_of, err))
            return kd_wrap(err, "'%s' is not a file name", shown);
        p += n + (p[n] == '/');
    }
    return 0;
}
