/* JSON whose numbers keep their spelling, for prompts: what the reference reads with json.loads and
 * writes with json.dumps has to come out with the same bytes, since bytes decide token ids.
 * (base/json.h is for everything else: its numbers become int64 or double.)
 *
 * Nodes live in one array and texts in one block; pointers are good until the tree is released. A
 * null member counts as absent in kd_jtree_get. Of equal keys the last value wins at the place of
 * the first, as in Python. */
#ifndef KD_TEXT_JTREE_H
#define KD_TEXT_JTREE_H

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

struct kd_jnode {
    enum kd_json_kind kind;
    const char *text; /* strings decoded, numbers and words as written; NUL-terminated */
    size_t bytes;
    const char *key; /* of a member */
    size_t key_bytes;
    int32_t first, next; /* child, sibling: node numbers, 0 for none (the root is never one) */
    int32_t count;       /* children */
};

struct kd_jtree {
    struct kd_jnode *node;
    int64_t count, cap;
    char *text;
    size_t text_bytes;
};

enum { KD_JTREE_DEPTH_MAX = 64, KD_JTREE_NODES_MAX = 1000000 };

/* KD_ECORRUPT: not JSON (or not UTF-8, or half a surrogate pair); KD_EINVAL: over a limit above. */
int kd_jtree_parse(struct kd_jtree *t, const char *text, size_t bytes, struct kd_err *err) KD_MUST;
void kd_jtree_release(struct kd_jtree *t);
const struct kd_jnode *kd_jtree_root(const struct kd_jtree *t);
/* First child and next sibling, NULL at the end. */
const struct kd_jnode *kd_jtree_first(const struct kd_jtree *t, const struct kd_jnode *n);
const struct kd_jnode *kd_jtree_next(const struct kd_jtree *t, const struct kd_jnode *n);
/* A member that is not null, or NULL; n may be NULL or of any kind. */
const struct kd_jnode *kd_jtree_get(const struct kd_jtree *t, const struct kd_jnode *n,
                                    const char *key);
bool kd_jnode_is(const struct kd_jnode *n, const char *text); /* a string with this content */

/* The first two as Python's json.dumps(value, ensure_ascii=False), numbers too ("1E2" is 100.0,
 * "-0" is 0, and what overflows is Infinity); the third is always JSON. */
enum kd_jstyle {
    KD_JSTYLE_SPACED, /* ", " and ": ", keys as they came */
    KD_JSTYLE_SORTED, /* "," and ":", keys sorted at every level */
    KD_JSTYLE_COMPACT /* "," and ":", keys as they came, numbers as they were written */
};
int kd_jtree_dump(struct kd_buf *out, const struct kd_jtree *t, const struct kd_jnode *n,
                  enum kd_jstyle style, struct kd_err *err) KD_MUST;
/* A tool's declaration, sorted: the wrapper and its function lose null members, what lies deeper
 * (the parameters) keeps them. */
int kd_jtree_dump_tool(struct kd_buf *out, const struct kd_jtree *t, const struct kd_jnode *n,
                       struct kd_err *err) KD_MUST;
/* A string in quotes, as json.dumps writes it; the bytes must be UTF-8. */
void kd_jtree_quote(struct kd_buf *out, const char *text, size_t bytes);

#endif
