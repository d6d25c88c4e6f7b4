/* A set of strings with dense ids in the order of adding: tensor names of a header or an index
 * (half a million in K3's). Strings live in blocks of their own, so pointers stay until the set is
 * released. Adding is for one thread; finding is thread-safe once nothing is added any more. */
#ifndef KD_FMT_NAMES_H
#define KD_FMT_NAMES_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KD_NAMES_MAX = 8000000 }; /* strings in one set; K3 as EXL3 has one million */

struct kd_names_block;

struct kd_names {
    const char **at; /* by id */
    uint64_t *hash;  /* by id */
    int64_t count, cap;
    int32_t *table; /* id + 1, open addressing; 0 is free */
    int64_t slots;
    struct kd_names_block *blocks;
};

void kd_names_init(struct kd_names *n);
void kd_names_release(struct kd_names *n);
/* Adds a copy of text (`bytes` long, no NUL inside) or finds it; *fresh says which. */
int kd_names_add(struct kd_names *n, const char *text, size_t bytes, int64_t *id, bool *fresh,
                 struct kd_err *err) KD_MUST;
/* The id, or -1. */
int64_t kd_names_find(const struct kd_names *n, const char *text);

#endif
