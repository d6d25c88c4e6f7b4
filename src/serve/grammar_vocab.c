#include "base/mem.h"
#include "serve/grammar_int.h"
#include "text/uclass.h"

#include <stdlib.h>
#include <string.h>

struct word {
    const unsigned char *s;
    size_t n;
    int32_t id;
};

static int by_bytes(const void *pa, const void *pb)
{
    const struct word *a = pa, *b = pb;
    size_t n = a->n < b->n ? a->n : b->n;
    int c = memcmp(a->s, b->s, n);
    if (c)
        return c;
    if (a->n != b->n)
        return a->n < b->n ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

static size_t common(const struct word *a, const struct word *b)
{
    size_t n = 0;
    while (n < a->n && n < b->n && a->s[n] == b->s[n])
        n++;
    return n;
}

static int build(struct kd_trie *t, const struct word *w, int64_t n, struct kd_err *err)
{
    int64_t nodes = 0, longest = 0, at = 0;
    int32_t *open;
    for (int64_t i = 0; i < n; i++) {
        nodes += (int64_t)(w[i].n - (i ? common(&w[i - 1], &w[i]) : 0));
        longest = (int64_t)w[i].n > longest ? (int64_t)w[i].n : longest;
    }
    if (kd_mem_new(&t->byte, nodes + 1, 1, "vocabulary trie", err) ||
        kd_mem_new(&t->depth, nodes + 1, sizeof *t->depth, "vocabulary trie", err) ||
        kd_mem_new(&t->end, nodes + 1, sizeof *t->end, "vocabulary trie", err) ||
        kd_mem_new(&t->first, nodes + 1, sizeof *t->first, "vocabulary trie", err) ||
        kd_mem_new(&t->id, n + 1, sizeof *t->id, "vocabulary trie", err) ||
        kd_mem_new(&open, longest + 1, sizeof *open, "vocabulary trie", err))
        return -1;
    size_t depth = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t same = i ? common(&w[i - 1], &w[i]) : 0;
        for (; depth > same; depth--)
            t->end[open[depth - 1]] = (int32_t)at;
        for (; depth < w[i].n; depth++, at++) {
            t->byte[at] = w[i].s[depth];
            t->depth[at] = (uint16_t)(depth + 1);
            t->first[at] = (int32_t)i;
            open[depth] = (int32_t)at;
        }
        t->id[i] = w[i].id;
    }
    for (; depth; depth--)
        t->end[open[depth - 1]] = (int32_t)at;
    t->first[at] = (int32_t)n;
    t->count = at;
    t->ids = n;
    kd_mem_free(open);
    return 0;
}

/* 1 plain, 2 other, 3 holds control characters. */
static uint8_t kind_of(const unsigned char *s, size_t n)
{
    uint8_t kind = 1;
    for (size_t i = 0, k; i < n; i += k) {
        uint32_t cp;
        k = kd_utf8_char(s + i, n - i, &cp);
        if (s[i] < 0x20)
            return 3;
        if (!k || s[i] == '"' || s[i] == '\\')
            kind = 2;
        k = k ? k : 1;
    }
    return kind;
}

static void set(uint64_t *bits, int32_t id)
{
    bits[id / 64] |= 1ull << (id % 64);
}

static int sort_words(struct kd_vocab *v, struct word *w, struct kd_err *err)
{
    int64_t count[4] = {0, 0, 0, 0};
    struct word *part[3] = {NULL, w, w + v->vocab};
    for (int32_t id = 0; id < v->vocab; id++) {
        size_t n = 0;
        const unsigned char *s = (const unsigned char *)kd_tok_bytes(v->tok, id, &n);
        if (!s || !n || n > UINT16_MAX || kd_tok_is_special(v->tok, id))
            continue;
        uint8_t kind = v->kind[id] = kind_of(s, n);
        int64_t chars = 0;
        for (size_t i = 0; i < n; i++)
            chars += (s[i] & 0xc0) != 0x80;
        v->chars[id] = (uint16_t)chars;
        v->chars_max = chars > v->chars_max ? chars : v->chars_max;
        if (kind == 1 && chars > v->plain_chars_max)
            v->plain_chars_max = chars;
        if (kind == 1)
            set(v->plain_bits, id);
        set(v->all_bits, id);
        if (kind < 3)
            part[kind][count[kind]++] = (struct word){s, n, id};
    }
    for (int k = 1; k < 3; k++)
        qsort(part[k], (size_t)count[k], sizeof *w, by_bytes);
    return build(&v->plain, part[1], count[1], err) || build(&v->other, part[2], count[2], err);
}

int kd_vocab_open(struct kd_vocab **out, const struct kd_tok *tok, struct kd_err *err)
{
    struct kd_vocab *v;
    struct word *w = NULL;
    int64_t n = kd_tok_vocab(tok);
    *out = NULL;
    if (kd_mem_zero(&v, 1, sizeof *v, "vocabulary", err))
        return -1;
    v->tok = tok;
    v->vocab = n;
    v->words = (n + 63) / 64;
    v->open = kd_tok_special(tok, "<|open|>");
    v->close = kd_tok_special(tok, "<|close|>");
    v->sep = kd_tok_special(tok, "<|sep|>");
    v->stop = kd_tok_special(tok, "<|end_of_msg|>");
    int rc = kd_mem_zero(&v->plain_bits, v->words, 8, "vocabulary", err) ||
             kd_mem_zero(&v->all_bits, v->words, 8, "vocabulary", err) ||
             kd_mem_zero(&v->chars, n, sizeof *v->chars, "vocabulary", err) ||
             kd_mem_zero(&v->kind, n, 1, "vocabulary", err) ||
             kd_mem_new(&w, 2 * n, sizeof *w, "vocabulary", err) || sort_words(v, w, err);
    kd_mem_free(w);
    if (!rc && (v->open < 0 || v->close < 0 || v->sep < 0 || v->stop < 0))
        rc = kd_fail(err, KD_ENOTSUP, "the tokenizer lacks the chat format's control tokens");
    if (rc) {
        kd_vocab_close(v);
        return -1;
    }
    *out = v;
    return 0;
}

static void release(struct kd_trie *t)
{
    kd_mem_free(t->byte);
    kd_mem_free(t->depth);
    kd_mem_free(t->end);
    kd_mem_free(t->first);
    kd_mem_free(t->id);
}

void kd_vocab_close(struct kd_vocab *v)
{
    if (!v)
        return;
    release(&v->plain);
    release(&v->other);
    kd_mem_free(v->plain_bits);
    kd_mem_free(v->all_bits);
    kd_mem_free(v->chars);
    kd_mem_free(v->kind);
    kd_mem_free(v);
}
