/* A safetensors file of which only the head is here: its first bytes are the source's, the rest is
 * a hole of the right size, so that it opens as the whole file does and takes no room. */
#ifndef KD_NET_HOLLOW_H
#define KD_NET_HOLLOW_H

#include "net/source.h"

enum { KD_HOLLOW_HEAD_MAX = 100000000 };

/* True for NAME.safetensors at the top of a source. */
bool kd_hollow_is(const struct kd_source_file *f);
/* Makes it at `path` unless a file of its size is there. `work` is a path on the same file system
 * for the time until it is complete. */
int kd_hollow_make(struct kd_source *s, int file, const char *path, const char *work,
                   struct kd_err *err) KD_MUST;

#endif
