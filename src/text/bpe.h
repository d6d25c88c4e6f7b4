/* Byte-pair encoding with tiktoken's ranks: a table from bytes to rank, and merging. Immutable
 * after opening and then thread-safe; one struct kd_bpe_work belongs to one thread. */
#ifndef KD_TEXT_BPE_H
#define KD_TEXT_BPE_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct kd_bpe {
    int64_t count;   /* ranks */
    uint8_t *bytes;  /* of all tokens, rank after rank */
    uint32_t *begin; /* [count + 1] into bytes */
    struct kd_bpe_slot {
        uint32_t tag; /* of the hash */
        int32_t rank; /* -1: free */
    } * slot;
    uint64_t mask;
    size_t longest_bytes;
};
/* `text`: a tiktoken.model file, one "base64 rank" a line. Refuses gaps, duplicates, a missing
 * single byte and tokens over 1,024 bytes. */
int kd_bpe_open(struct kd_bpe *b, const char *text, size_t bytes, struct kd_err *err) KD_MUST;
/* The same from tokens one after the other: `bytes` holds those of all ranks, begin[r] where rank r
 * begins (count + 1 entries). Copies. */
int kd_bpe_open_list(struct kd_bpe *b, const uint8_t *bytes, const uint32_t *begin, int64_t count,
                     struct kd_err *err) KD_MUST;
void kd_bpe_close(struct kd_bpe *b);
/* Rank of a token, or -1. */
int32_t kd_bpe_rank(const struct kd_bpe *b, const uint8_t *s, size_t bytes);

/* Scratch for one caller: zero it, release it at the end. */
struct kd_bpe_work {
    int64_t cap; /* bytes of the longest piece so far */
    struct kd_bpe_part *part;
    uint64_t *heap;
};
void kd_bpe_work_release(struct kd_bpe_work *w);
/* Ids of one piece into out (room for `bytes` ids); their number, or -1. */
int64_t kd_bpe_encode(const struct kd_bpe *b, struct kd_bpe_work *w, const uint8_t *s, size_t bytes,
                      int32_t *out, struct kd_err *err);

#endif
