/* Files that are pieces of one: shards that a format numbers, and bytes chopped in parts, which are
 * one file again when they lie one after the other. Thread-safe. */
#ifndef KD_BASE_PIECES_H
#define KD_BASE_PIECES_H

#include "base/file.h"

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
/* The name of piece `no` beside `name`, in out; false when there is none of that number or it does
 * not fit. */
bool kd_piece_sister(char *out, size_t size, const char *name, const struct kd_piece *p,
                     int64_t no);
/* Maps the whole file that the chopped piece at `path` belongs to: all pieces beside it, one after
 * the other (lettered ones as far as there are any). A piece that begins on a page of the whole is
 * mapped; another one is copied into memory, and refused when that would take more than half of the
 * machine's. whole (size bytes): the whole file's path, of which no file is there. */
int kd_pieces_map(struct kd_map *m, const char *path, char *whole, size_t size,
                  struct kd_err *err) KD_MUST;

#endif
