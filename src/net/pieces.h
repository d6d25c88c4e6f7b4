/* Names of files that are pieces of one: shards that a format numbers, and bytes chopped in parts.
 * Pure, thread-safe. */
#ifndef KD_NET_PIECES_H
#define KD_NET_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KD_PIECES_MAX = 100000 };

struct kd_piece {
    bool chopped;      /* bytes of one file; else a numbered shard, a file by itself */
    size_t base_bytes; /* chopped: the whole file's name is the first so many bytes of this one */
    int64_t no, count; /* no from 1; count 0: not in the name */
    size_t no_at, no_digits; /* where the number stands in the name */
};

/* x.gguf.part-01-of-05, x.gguf.part1of5, x.gguf-split-a(a), x-00001-of-00014.gguf (shard).
 * False for any other name. */
bool kd_piece_parse(struct kd_piece *p, const char *name);
/* The name of piece `no` beside `name`, in out; false without a count in the name or when it does
 * not fit. */
bool kd_piece_sister(char *out, size_t size, const char *name, const struct kd_piece *p,
                     int64_t no);

#endif
