/* Text for people: control bytes of foreign strings made harmless, sizes and counts in units. */
#ifndef KD_BASE_SHOW_H
#define KD_BASE_SHOW_H

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

/* Copies at most size - 1 bytes of text; control characters (C0, DEL, C1) become '?', so nothing
 * from a file can reach the terminal as a command. Returns out. */
const char *kd_show_text(char *out, size_t size, const char *text);
/* "1.453 TB", "17.5 MB", "512 B": decimal units. */
void kd_show_bytes(char *out, size_t size, int64_t bytes);
/* "2.780 T", "33.0 M", "512" */
void kd_show_count(char *out, size_t size, int64_t count);
/* "2,779,931,837,184" */
void kd_show_exact(char *out, size_t size, int64_t value);
/* text with <, >, &, quotes and control characters made harmless for HTML. */
void kd_html_text(struct kd_buf *out, const char *text);

#endif
