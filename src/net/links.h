/* The page of links that web servers make of a folder (nginx, Apache, Caddy, python -m
 * http.server): names of files in it. Pure, thread-safe. */
#ifndef KD_NET_LINKS_H
#define KD_NET_LINKS_H

#include "base/buf.h"
#include "base/err.h"

/* Calls found for each link to a plain file right in the folder, its name unescaped and checked;
 * links elsewhere, to folders and to hidden files are left out. A name may come twice. Stops at the
 * first non-zero result and returns it. */
int kd_links_scan(const char *html, size_t bytes,
                  int (*found)(void *ctx, const char *name, struct kd_err *err), void *ctx,
                  struct kd_err *err) KD_MUST;

#endif
