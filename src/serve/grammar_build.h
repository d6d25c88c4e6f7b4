/* Inside grammar*.c: making nodes. Everything is built backwards: a function takes the node to go
 * on at and returns the node to start from; -1 once something has failed (err has it). */
#ifndef KD_SERVE_GRAMMAR_BUILD_H
#define KD_SERVE_GRAMMAR_BUILD_H

#include "base/buf.h"
#include "serve/grammar_int.h"

enum kd_gstyle { KD_G_COMPACT, KD_G_SPACED, KD_G_STYLES };

struct kd_gb {
    struct kd_grammar *g;
    struct kd_err *err;
    bool failed;
    double until; /* of this thread's time */
    int32_t ret, end;
    int32_t any[KD_G_STYLES], object[KD_G_STYLES], array[KD_G_STYLES]; /* rules, or -1 */
    int32_t string, raw, key;                                          /* rules, or -1 */
    const struct kd_jtree *t;
    const struct kd_jnode *root; /* of the schema: what "#" means */
    char path[384];
    struct kd_gmemo {
        const struct kd_jnode *schema;
        int32_t rule;
        uint8_t style, xml;
    } * memo;
    int64_t memos, memo_cap;
    int depth;
};

void kd_gb_open(struct kd_gb *b, struct kd_grammar *g, struct kd_err *err);
void kd_gb_close(struct kd_gb *b);
int32_t kd_gb_fail(struct kd_gb *b, enum kd_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int32_t kd_gb_node(struct kd_gb *b, enum kd_gop op, int32_t next, int32_t arg);
void kd_gb_edge(struct kd_gb *b, int32_t node, int lo, int hi, int32_t to, unsigned flags);
int32_t kd_gb_text(struct kd_gb *b, const char *s, size_t n, int32_t next);
int32_t kd_gb_str(struct kd_gb *b, const char *s, int32_t next);
/* Any of the texts, which get sorted; equal beginnings share nodes. */
int32_t kd_gb_texts(struct kd_gb *b, struct kd_buf *texts, int64_t count, int32_t next);
int32_t kd_gb_call(struct kd_gb *b, int32_t rule, int32_t next);
int32_t kd_gb_id(struct kd_gb *b, int32_t id, int32_t next);
int32_t kd_gb_bound(struct kd_gb *b, int64_t least, int64_t most);
int32_t kd_gb_num(struct kd_gb *b, bool integer, const double *min, const double *max,
                  int32_t next);
/* A rule without its start, which the caller sets. */
int32_t kd_gb_rule(struct kd_gb *b);
/* Rules for a JSON string (bound -1: any length), raw text, an object's key without escapes that is
 * none of `taken` (texts without quotes, may be NULL). */
int32_t kd_gb_string_rule(struct kd_gb *b, int32_t bound);
int32_t kd_gb_raw_rule(struct kd_gb *b, int32_t bound);
int32_t kd_gb_key(struct kd_gb *b, struct kd_buf *taken, int64_t count, int32_t next);
/* Any value, any object, any array. */
int32_t kd_gb_any(struct kd_gb *b, enum kd_gstyle style);
int32_t kd_gb_object(struct kd_gb *b, enum kd_gstyle style);
int32_t kd_gb_array(struct kd_gb *b, enum kd_gstyle style);

/* The rule of a schema's JSON (grammar_schema.c). */
int32_t kd_gb_schema(struct kd_gb *b, const struct kd_jnode *schema, enum kd_gstyle style);
/* Arguments of a call in the turn's own form, before `next`. */
int32_t kd_gb_arguments(struct kd_gb *b, const struct kd_jnode *schema, int32_t next);

#endif
