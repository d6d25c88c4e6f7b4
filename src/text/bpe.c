#include "text/bpe.h"

#include "base/mem.h"

#include <stdbool.h>
#include <string.h>

enum { TOKEN_BYTES_MAX = 1024, RANKS_MAX = 1 << 21 };

/* A part of the piece being merged; parts form a doubly linked list. */
struct kd_bpe_part {
    uint32_t begin, end; /* in the piece */
    int32_t prev, next;  /* -1: none */
    int32_t rank;        /* of this part joined with the next, or -1 */
};

static uint64_t load(const uint8_t *s, size_t n)
{
    uint64_t v = 0;
    memcpy(&v, s, n);
    return v;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    a *= b;
    return a ^ a >> 32;
}

static uint64_t hash(const uint8_t *s, size_t n)
{
    uint64_t h = 0x9E3779B97F4A7C15u ^ n;
    for (; n > 8; s += 8, n -= 8)
        h = mix(h ^ load(s, 8), 0xA0761D6478BD642Fu);
    uint64_t tail = n == 8   ? load(s, 8)
                    : n >= 4 ? load(s, 4) | load(s + n - 4, 4) << 32
                             : load(s, n);
    return mix(h ^ tail, 0xE7037ED1A0B428DBu);
}

int32_t kd_bpe_rank(const struct kd_bpe *b, const uint8_t *s, size_t bytes)
{
    if (!bytes || bytes > b->longest_bytes)
        return -1;
    uint64_t h = hash(s, bytes);
    uint32_t tag = (uint32_t)(h >> 32);
    for (uint64_t i = h & b->mask; b->slot[i].rank >= 0; i = (i + 1) & b->mask) {
        int32_t r = b->slot[i].rank;
        if (b->slot[i].tag == tag && b->begin[r + 1] - b->begin[r] == bytes &&
            !memcmp(b->bytes + b->begin[r], s, bytes))
            return r;
    }
    return -1;
}

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes s into out (room for n * 3 / 4 bytes); the number of bytes, or 0 if it is not base64. */
static size_t base64(const char *s, size_t n, uint8_t *out)
{
    if (n < 4 || n % 4)
        return 0;
    size_t pad = s[n - 1] != '=' ? 0 : s[n - 2] != '=' ? 1 : 2, size = 0;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t v = 0;
        for (size_t k = 0; k < 4; k++) {
            int d = i + k >= n - pad ? 0 : base64_digit(s[i + k]);
            if (d < 0)
                return 0;
            v = v << 6 | (uint32_t)d;
        }
        for (int k = 16; k >= 0; k -= 8)
            out[size++] = (uint8_t)(v >> k);
    }
    for (size_t k = 1; k <= pad; k++)
        if (out[size - k])
            return 0;
    return size - pad;
}

struct line {
    const char *token;
    size_t token_bytes;
    int64_t rank;
};

/* One "base64 rank" line without its newline. */
static int parse_line(struct line *l, const char *s, size_t n, int64_t number, struct kd_err *err)
{
    const char *gap = memchr(s, ' ', n);
    if (!gap || (size_t)(s + n - gap) < 2 || (size_t)(s + n - gap) > 10)
        return kd_fail(err, KD_ECORRUPT, "line %lld is not 'token rank'", (long long)number);
    l->token = s;
    l->token_bytes = (size_t)(gap - s);
    l->rank = 0;
    for (const char *p = gap + 1; p < s + n; p++) {
        if (*p < '0' || *p > '9')
            return kd_fail(err, KD_ECORRUPT, "line %lld: the rank is not a number",
                           (long long)number);
        l->rank = l->rank * 10 + (*p - '0');
    }
    if (!l->token_bytes || l->token_bytes > TOKEN_BYTES_MAX * 4 / 3 + 4)
        return kd_fail(err, KD_ECORRUPT, "line %lld: the token is empty or longer than %d bytes",
                       (long long)number, TOKEN_BYTES_MAX);
    return 0;
}

/* The next line that is not empty; false at the end. */
static bool next_line(const char **at, const char *end, const char **s, size_t *n, int64_t *number)
{
    while (*at < end) {
        const char *nl = memchr(*at, '\n', (size_t)(end - *at));
        *s = *at;
        *n = (size_t)((nl ? nl : end) - *at);
        *at = nl ? nl + 1 : end;
        ++*number;
        if (*n && (*s)[*n - 1] == '\r')
            --*n;
        if (*n)
            return true;
    }
    return false;
}

static int insert(struct kd_bpe *b, int32_t rank, struct kd_err *err)
{
    const uint8_t *s = b->bytes + b->begin[rank];
    size_t n = b->begin[rank + 1] - b->begin[rank];
    int32_t other = kd_bpe_rank(b, s, n);
    if (other >= 0)
        return kd_fail(err, KD_ECORRUPT, "ranks %d and %d are the same token", other, rank);
    uint64_t h = hash(s, n), i = h & b->mask;
    while (b->slot[i].rank >= 0)
        i = (i + 1) & b->mask;
    b->slot[i].tag = (uint32_t)(h >> 32);
    b->slot[i].rank = rank;
    return 0;
}

/* The table from bytes to rank. */
static int index_ranks(struct kd_bpe *b, struct kd_err *err)
{
    for (int64_t r = 0; r < b->count; r++)
        if (b->begin[r + 1] - b->begin[r] > b->longest_bytes)
            b->longest_bytes = b->begin[r + 1] - b->begin[r];
    for (int64_t r = 0; r < b->count; r++)
        if (insert(b, (int32_t)r, err))
            return -1;
    for (unsigned c = 0; c < 256; c++) {
        uint8_t byte = (uint8_t)c;
        if (kd_bpe_rank(b, &byte, 1) < 0)
            return kd_fail(err, KD_ECORRUPT, "no token for the byte 0x%02x", c);
    }
    return 0;
}

static int fill(struct kd_bpe *b, const struct line *by_rank, struct kd_err *err)
{
    uint32_t at = 0;
    for (int64_t r = 0; r < b->count; r++) {
        size_t n = base64(by_rank[r].token, by_rank[r].token_bytes, b->bytes + at);
        if (!n || n > TOKEN_BYTES_MAX)
            return kd_fail(err, KD_ECORRUPT,
                           "the token of rank %lld is not base64 of 1 to %d bytes", (long long)r,
                           TOKEN_BYTES_MAX);
        b->begin[r] = at;
        at += (uint32_t)n;
        b->begin[r + 1] = at;
    }
    return index_ranks(b, err);
}
static int read_lines(struct line *by_rank, int64_t count, const char *text, size_t bytes,
                      struct kd_err *err)
{
    const char *at = text, *s;
    size_t n;
    int64_t number = 0;
    while (next_line(&at, text + bytes, &s, &n, &number)) {
        struct line l;
        if (parse_line(&l, s, n, number, err))
            return -1;
        if (l.rank >= count)
            return kd_fail(err, KD_ECORRUPT, "line %lld: rank %lld, but there are only %lld tokens",
                           (long long)number, (long long)l.rank, (long long)count);
        if (by_rank[l.rank].token)
            return kd_fail(err, KD_ECORRUPT, "line %lld: rank %lld is there twice",
                           (long long)number, (long long)l.rank);
        by_rank[l.rank] = l;
    }
    return 0;
}

/* Room for b->count tokens of `bytes` bytes in all. */
static int make_room(struct kd_bpe *b, int64_t bytes, struct kd_err *err)
{
    if (b->count < 256 || b->count > RANKS_MAX || bytes > UINT32_MAX)
        return kd_fail(err, KD_ECORRUPT, "%lld tokens, expected 256 to %d", (long long)b->count,
                       RANKS_MAX);
    int64_t slots = 1024;
    while (slots < 3 * b->count)
        slots *= 2;
    b->mask = (uint64_t)slots - 1;
    if (kd_mem_new(&b->bytes, bytes, 1, "tokens", err) ||
        kd_mem_new(&b->begin, b->count + 1, sizeof *b->begin, "tokens", err) ||
        kd_mem_new(&b->slot, slots, sizeof *b->slot, "tokens", err))
        return -1;
    memset(b->slot, 0xff, (size_t)slots * sizeof *b->slot);
    return 0;
}

int kd_bpe_open_list(struct kd_bpe *b, const uint8_t *bytes, const uint32_t *begin, int64_t count,
                     struct kd_err *err)
{
    memset(b, 0, sizeof *b);
    b->count = count;
    int rc = make_room(b, count >= 0 ? begin[count] : 0, err);
    for (int64_t r = 0; !rc && r < count; r++)
        if (begin[r + 1] <= begin[r] || begin[r + 1] - begin[r] > TOKEN_BYTES_MAX)
            rc = kd_fail(err, KD_ECORRUPT, "token %lld has not 1 to %d bytes", (long long)r,
                         TOKEN_BYTES_MAX);
    if (!rc) {
        memcpy(b->bytes, bytes, begin[count]);
        memcpy(b->begin, begin, (size_t)(count + 1) * sizeof *begin);
        rc = index_ranks(b, err);
    }
    if (rc)
        kd_bpe_close(b);
    return rc;
}

int kd_bpe_open(struct kd_bpe *b, const char *text, size_t bytes, struct kd_err *err)
{
    memset(b, 0, sizeof *b);
    const char *at = text, *s;
    size_t n;
    int64_t number = 0;
    while (next_line(&at, text + bytes, &s, &n, &number))
        b->count++;
    struct line *by_rank = NULL;
    int rc = make_room(b, bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes, err);
    if (!rc)
        rc = kd_mem_zero(&by_rank, b->count, sizeof *by_rank, "tokens", err);
    if (!rc)
        rc = read_lines(by_rank, b->count, text, bytes, err);
    if (!rc)
        rc = fill(b, by_rank, err);
    kd_mem_free(by_rank);
    if (rc)
        kd_bpe_close(b);
    return rc;
}

void kd_bpe_close(struct kd_bpe *b)
{
    kd_mem_free(b->bytes);
    kd_mem_free(b->begin);
    kd_mem_free(b->slot);
    memset(b, 0, sizeof *b);
}

void kd_bpe_work_release(struct kd_bpe_work *w)
{
    kd_mem_free(w->part);
    kd_mem_free(w->heap);
    memset(w, 0, sizeof *w);
}

/* A piece of n bytes has n parts at first; each of its merges adds at most two heap entries. */
static int reserve(struct kd_bpe_work *w, size_t bytes, struct kd_err *err)
{
    if ((int64_t)bytes <= w->cap)
        return 0;
    int64_t cap = 256;
    while (cap < (int64_t)bytes)
        cap *= 2;
    kd_bpe_work_release(w);
    if (kd_mem_new(&w->part, cap, sizeof *w->part, "pieces", err) ||
        kd_mem_new(&w->heap, cap * 3, sizeof *w->heap, "pieces", err)) {
        kd_bpe_work_release(w);
        return -1;
    }
    w->cap = cap;
    return 0;
}

/* Heap of (rank << 32 | position of the left part): lowest rank first, leftmost among equals. */
static void push(uint64_t *heap, int64_t *count, uint64_t v)
{
    int64_t i = (*count)++;
    while (i && heap[(i - 1) / 2] > v) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = v;
}

static uint64_t pop(uint64_t *heap, int64_t *count)
{
    uint64_t top = heap[0], v = heap[--*count];
    int64_t i = 0, kid;
    while ((kid = 2 * i + 1) < *count) {
        if (kid + 1 < *count && heap[kid + 1] < heap[kid])
            kid++;
        if (heap[kid] >= v)
            break;
        heap[i] = heap[kid];
        i = kid;
    }
    heap[i] = v;
    return top;
}

/* Ranks the pair that begins at part i and queues it. */
static void rank_pair(const struct kd_bpe *b, struct kd_bpe_work *w, const uint8_t *s, int32_t i,
                      int64_t *count)
{
    struct kd_bpe_part *p = &w->part[i];
    p->rank = p->next < 0 ? -1 : kd_bpe_rank(b, s + p->begin, w->part[p->next].end - p->begin);
    if (p->rank >= 0)
        push(w->heap, count, (uint64_t)(uint32_t)p->rank << 32 | (uint32_t)i);
}

int64_t kd_bpe_encode(const struct kd_bpe *b, struct kd_bpe_work *w, const uint8_t *s, size_t bytes,
                      int32_t *out, struct kd_err *err)
{
    int32_t whole = kd_bpe_rank(b, s, bytes);
    if (whole >= 0) {
        out[0] = whole;
        return 1;
    }
    if (reserve(w, bytes, err))
        return -1;
    int64_t queued = 0, count = 0;
    for (size_t i = 0; i < bytes; i++)
        w->part[i] = (struct kd_bpe_part){(uint32_t)i, (uint32_t)i + 1, (int32_t)i - 1,
                                          i + 1 < bytes ? (int32_t)i + 1 : -1, -1};
    for (size_t i = 0; i < bytes; i++)
        rank_pair(b, w, s, (int32_t)i, &queued);
    while (queued) {
        uint64_t v = pop(w->heap, &queued);
        int32_t i = (int32_t)(v & 0xffffffffu);
        struct kd_bpe_part *p = &w->part[i];
        if (p->rank != (int32_t)(v >> 32))
            continue; /* merged away or into something else since it was queued */
        struct kd_bpe_part *gone = &w->part[p->next];
        gone->rank = -1;
        p->end = gone->end;
        p->next = gone->next;
        if (p->next >= 0)
            w->part[p->next].prev = i;
        rank_pair(b, w, s, i, &queued);
        if (p->prev >= 0)
            rank_pair(b, w, s, p->prev, &queued);
    }
    for (int32_t i = 0; i >= 0; i = w->part[i].next)
        out[count++] = kd_bpe_rank(b, s + w->part[i].begin, w->part[i].end - w->part[i].begin);
    return count;
}
