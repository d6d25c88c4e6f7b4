#include "text/corpus.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "text/render.h"

#include <inttypes.h>
#include <string.h>

static const char separator[] = "\n\n<|doc|>\n";

/* Ids of all documents so far, and the document that each belongs to. */
struct gather {
    const struct kd_tok *tok;
    struct kd_ids ids, doc;
    int64_t doc_count;
    struct kd_err *err;
};

/* The ids added since `from` are one document; one without ids is none. */
static int end_document(struct gather *g, int64_t from)
{
    if (g->ids.count == from)
        return 0;
    if (g->doc_count > INT32_MAX)
        return kd_fail(g->err, KD_EINVAL, "more than %d documents", INT32_MAX);
    for (int64_t i = from; i < g->ids.count; i++)
        if (kd_ids_add(&g->doc, (int32_t)g->doc_count, g->err))
            return -1;
    g->doc_count++;
    return 0;
}

static int add_text(struct gather *g, const char *text, size_t bytes)
{
    int64_t from = g->ids.count;
    return kd_tok_encode(g->tok, text, bytes, &g->ids, g->err) || end_document(g, from) ? -1 : 0;
}

static int add_plain(struct gather *g, const char *text, size_t bytes)
{
    const size_t sep = sizeof separator - 1;
    const char *end = text + bytes, *next;
    while ((next = memmem(text, (size_t)(end - text), separator, sep))) {
        if (add_text(g, text, (size_t)(next - text)))
            return -1;
        text = next + sep;
    }
    return add_text(g, text, (size_t)(end - text));
}

/* A line: a request with "messages", or {"text": "..."}. */
static int add_record(struct gather *g, const struct kd_jtree *t)
{
    const struct kd_jnode *text = kd_jtree_get(t, kd_jtree_root(t), "text");
    struct kd_chat c;
    int64_t from = g->ids.count;
    if (text && text->kind == KD_JSON_STR && !kd_jtree_get(t, kd_jtree_root(t), "messages"))
        return add_text(g, text->text, text->bytes);
    if (kd_chat_render_tree(&c, t, false, g->err))
        return -1;
    int rc = kd_chat_ids(&c, g->tok, &g->ids, g->err);
    kd_chat_release(&c);
    return rc || end_document(g, from) ? -1 : 0;
}

static int add_lines(struct gather *g, const char *text, size_t bytes)
{
    const char *end = text + bytes;
    for (int64_t number = 1; text < end; number++) {
        const char *nl = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((nl ? nl : end) - text);
        struct kd_jtree t;
        if (n > strspn(text, " \t\r")) {
            if (kd_jtree_parse(&t, text, n, g->err))
                return kd_wrap(g->err, "line %" PRId64, number);
            int rc = add_record(g, &t);
            kd_jtree_release(&t);
            if (rc)
                return kd_wrap(g->err, "line %" PRId64, number);
        }
        text += nl ? n + 1 : n;
    }
    return 0;
}

/* Whether the first line is a record of chat JSONL. */
static bool is_lines(const char *text, size_t bytes)
{
    const char *nl = memchr(text, '\n', bytes);
    struct kd_jtree t;
    if (!bytes || *text != '{' || kd_jtree_parse(&t, text, nl ? (size_t)(nl - text) : bytes, NULL))
        return false;
    bool yes = kd_jtree_get(&t, kd_jtree_root(&t), "messages") ||
               kd_jtree_get(&t, kd_jtree_root(&t), "text");
    kd_jtree_release(&t);
    return yes;
}

static int cut_rows(struct kd_corpus *c, const struct gather *g, int64_t rows, int64_t cols)
{
    int64_t have = g->ids.count / cols, total;
    c->rows = rows ? rows : have;
    c->cols = cols;
    c->doc_count = g->doc_count;
    c->tokens_total = g->ids.count;
    if (kd_mul64(c->rows, cols, &total) || have < c->rows || !have)
        return kd_fail(g->err, KD_EINVAL,
                       "%" PRId64 " rows of %" PRId64
                       " tokens are needed, but the text has %" PRId64 " tokens (%" PRId64
                       " rows): give more text or fewer or shorter rows",
                       c->rows ? c->rows : 1, cols, g->ids.count, have);
    if (kd_mem_new(&c->ids, total, sizeof *c->ids, "corpus", g->err) ||
        kd_mem_new(&c->doc, total, sizeof *c->doc, "corpus", g->err))
        return -1;
    memcpy(c->ids, g->ids.id, (size_t)total * sizeof *c->ids);
    memcpy(c->doc, g->doc.id, (size_t)total * sizeof *c->doc);
    return 0;
}

int kd_corpus_load(struct kd_corpus *c, const struct kd_tok *tok, const char *path, int64_t rows,
                   int64_t cols, struct kd_err *err)
{
    struct gather g = {.tok = tok, .err = err};
    struct kd_map m;
    memset(c, 0, sizeof *c);
    if (rows < 0 || cols < 1)
        return kd_fail(err, KD_EINVAL, "rows of %" PRId64 " tokens cannot be cut", cols);
    if (kd_file_map(&m, path, err))
        return -1;
    const char *text = m.data ? (const char *)m.data : "";
    size_t bytes = (size_t)m.size_bytes;
    int rc = kd_sha256_of(text, bytes, c->sha256, err);
    if (!rc)
        rc = is_lines(text, bytes) ? add_lines(&g, text, bytes) : add_plain(&g, text, bytes);
    if (!rc)
        rc = cut_rows(c, &g, rows, cols);
    kd_map_release(&m);
    kd_ids_release(&g.ids);
    kd_ids_release(&g.doc);
    if (rc) {
        kd_corpus_release(c);
        return kd_wrap(err, "%s", path);
    }
    return 0;
}

void kd_corpus_release(struct kd_corpus *c)
{
    kd_mem_free(c->ids);
    kd_mem_free(c->doc);
    memset(c, 0, sizeof *c);
}
