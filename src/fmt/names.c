#include "fmt/names.h"

#include "base/hash.h"
#include "base/mem.h"

#include <string.h>

enum { BLOCK_BYTES = 1 << 18, FIRST = 64 };

struct kd_names_block {
    struct kd_names_block *next;
    size_t used_bytes, cap_bytes;
    char text[];
};

void kd_names_init(struct kd_names *n)
{
    memset(n, 0, sizeof *n);
}

void kd_names_release(struct kd_names *n)
{
    while (n->blocks) {
        struct kd_names_block *next = n->blocks->next;
        kd_mem_free(n->blocks);
        n->blocks = next;
    }
    kd_mem_free(n->at);
    kd_mem_free(n->hash);
    kd_mem_free(n->table);
    memset(n, 0, sizeof *n);
}

/* The slot that holds text, or the free one where it belongs. */
static int64_t slot_of(const struct kd_names *n, uint64_t hash, const char *text, size_t bytes)
{
    int64_t mask = n->slots - 1, i = (int64_t)(hash & (uint64_t)mask);
    for (;; i = (i + 1) & mask) {
        int64_t id = n->table[i] - 1;
        if (id < 0 ||
            (n->hash[id] == hash && !strncmp(n->at[id], text, bytes) && !n->at[id][bytes]))
            return i;
    }
}

static int grow(struct kd_names *n, struct kd_err *err)
{
    if (n->count == KD_NAMES_MAX)
        return kd_fail(err, KD_ECORRUPT, "more than %d names", KD_NAMES_MAX);
    int64_t cap = n->cap ? n->cap * 2 : FIRST;
    const char **at;
    uint64_t *hash = NULL;
    int32_t *table = NULL;
    if (kd_mem_new(&at, cap, sizeof *at, "names", err))
        return -1;
    if (kd_mem_new(&hash, cap, sizeof *hash, "names", err) ||
        kd_mem_zero(&table, cap * 2, sizeof *table, "names", err)) {
        kd_mem_free(at);
        kd_mem_free(hash);
        return -1;
    }
    if (n->count) {
        memcpy(at, n->at, (size_t)n->count * sizeof *at);
        memcpy(hash, n->hash, (size_t)n->count * sizeof *hash);
    }
    kd_mem_free(n->at);
    kd_mem_free(n->hash);
    kd_mem_free(n->table);
    n->at = at;
    n->hash = hash;
    n->table = table;
    n->cap = cap;
    n->slots = cap * 2;
    for (int64_t id = 0; id < n->count; id++) {
        int64_t i = (int64_t)(hash[id] & (uint64_t)(n->slots - 1));
        while (table[i])
            i = (i + 1) & (n->slots - 1);
        table[i] = (int32_t)(id + 1);
    }
    return 0;
}

static int copy(struct kd_names *n, const char *text, size_t bytes, const char **out,
                struct kd_err *err)
{
    struct kd_names_block *b = n->blocks;
    if (!b || b->cap_bytes - b->used_bytes < bytes + 1) {
        /* Small sets (the keys of one object) must not cost a whole block. */
        size_t cap = n->count < FIRST ? 4096 : BLOCK_BYTES;
        if (cap < bytes + 1)
            cap = bytes + 1;
        if (kd_mem_new(&b, 1, (int64_t)(sizeof *b + cap), "names", err))
            return -1;
        b->next = n->blocks;
        b->used_bytes = 0;
        b->cap_bytes = cap;
        n->blocks = b;
    }
    char *to = b->text + b->used_bytes;
    memcpy(to, text, bytes);
    to[bytes] = 0;
    b->used_bytes += bytes + 1;
    *out = to;
    return 0;
}

int kd_names_add(struct kd_names *n, const char *text, size_t bytes, int64_t *id, bool *fresh,
                 struct kd_err *err)
{
    if (n->count == n->cap && grow(n, err))
        return -1;
    uint64_t hash = kd_xxh64(text, bytes, 0);
    int64_t slot = slot_of(n, hash, text, bytes);
    *fresh = !n->table[slot];
    if (!*fresh) {
        *id = n->table[slot] - 1;
        return 0;
    }
    if (copy(n, text, bytes, &n->at[n->count], err))
        return -1;
    n->hash[n->count] = hash;
    *id = n->count++;
    n->table[slot] = (int32_t)n->count;
    return 0;
}

int64_t kd_names_find(const struct kd_names *n, const char *text)
{
    if (!n->count)
        return -1;
    size_t bytes = strlen(text);
    return n->table[slot_of(n, kd_xxh64(text, bytes, 0), text, bytes)] - 1;
}
