/* Addresses of remote files: http and https alone, without a user or password in them. What is
 * shown to people and logs never holds a query or fragment. Thread-safe. */
#ifndef KD_NET_URL_H
#define KD_NET_URL_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>

enum { KD_URL_MAX = 8192 };

/* Who is asked. */
struct kd_origin {
    char scheme[8], host[256]; /* lower case; an IPv6 host without brackets */
    int port;
};

/* Checks a URL and says whose it is. */
int kd_url_origin(struct kd_origin *o, const char *url, struct kd_err *err) KD_MUST;
bool kd_origin_same(const struct kd_origin *a, const struct kd_origin *b);
/* localhost, 127.0.0.0/8 or ::1. */
bool kd_host_loopback(const char *host);
/* A numeric address that no public server has: loopback, private, link-local, unspecified. */
bool kd_ip_private(const char *ip);
/* The address that a Location or link means on a page at base. */
int kd_url_join(char *out, size_t size, const char *base, const char *link,
                struct kd_err *err) KD_MUST;
/* scheme://host/path for people, control bytes made harmless. Returns out. */
const char *kd_url_show(char *out, size_t size, const char *url);
/* Appends path percent-encoded; '/' stays. */
void kd_url_escape(struct kd_buf *out, const char *path);
/* Turns %41 into 'A' in place; -1 for a broken or zero byte. */
int kd_url_unescape(char *text) KD_MUST;
/* -1 unless name is a relative path of plain components (kd_name_check), none with a leading '-'.
 */
int kd_path_check(const char *name, struct kd_err *err) KD_MUST;

#endif
