/* Constrained output (serving, Decision 8): a byte-level pushdown automaton over a whole assistant
 * turn. Text of the turn is bytes, its control tokens are symbols of their own, so a rule does not
 * care how the tokenizer cuts the text. Thinking is free; what comes after it follows the rules.
 *
 * JSON Schema: type (and lists of types), enum, const, properties, required, additionalProperties,
 * items, prefixItems, min/maxItems, min/maxLength, minimum/maximum, anyOf, oneOf (as anyOf), allOf
 * of objects, $ref into the same schema, also recursive. Descriptions and format are ignored, any
 * other keyword is refused with its path. Output is compact, keys in the schema's order; keys that
 * the schema does not name only where additionalProperties says so. */
#ifndef KD_SERVE_GRAMMAR_H
#define KD_SERVE_GRAMMAR_H

#include "base/err.h"
#include "text/jtree.h"
#include "text/tok.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    KD_GRAMMAR_STATES_MAX = 10000,
    KD_GRAMMAR_DEPTH_MAX = 256, /* open rules at once */
    KD_GRAMMAR_COMPILE_MS = 100
};

/* A vocabulary as tries of bytes. Immutable, may be shared by threads. */
struct kd_vocab;
int kd_vocab_open(struct kd_vocab **out, const struct kd_tok *tok, struct kd_err *err) KD_MUST;
void kd_vocab_close(struct kd_vocab *v);

enum kd_grammar_answer { KD_ANSWER_TEXT, KD_ANSWER_OBJECT, KD_ANSWER_SCHEMA };
enum kd_grammar_calls { KD_CALLS_NONE, KD_CALLS_MAY, KD_CALLS_MUST };

struct kd_grammar_tool {
    const char *name;
    const struct kd_jtree *tree;
    const struct kd_jnode *schema; /* "parameters", or NULL: any arguments */
};

struct kd_grammar_spec {
    bool think; /* where the prompt left off: in thinking, else in the response */
    enum kd_grammar_answer answer;
    const struct kd_jtree *tree; /* of schema */
    const struct kd_jnode *schema;
    enum kd_grammar_calls calls;
    const struct kd_grammar_tool *tools; /* that may be called */
    int64_t tool_count;
    bool one_call;
};

struct kd_grammar; /* immutable, may be shared by threads; lives no longer than its vocabulary */
/* KD_ENOTSUP: the schema has something that cannot be done; the sentence begins with its path. */
int kd_grammar_compile(struct kd_grammar **out, const struct kd_vocab *v,
                       const struct kd_grammar_spec *spec, struct kd_err *err) KD_MUST;
void kd_grammar_close(struct kd_grammar *g);
int64_t kd_grammar_states(const struct kd_grammar *g);

/* One turn on its way; belongs to one thread at a time. */
struct kd_turn_rule;
int kd_turn_rule_open(struct kd_turn_rule **out, const struct kd_grammar *g,
                      struct kd_err *err) KD_MUST;
void kd_turn_rule_close(struct kd_turn_rule *r);
/* Clears the bits of all ids that may not come next. -1: none may, or memory is out. */
int kd_turn_rule_mask(struct kd_turn_rule *r, uint64_t *bits, int64_t vocab,
                      struct kd_err *err) KD_MUST;
/* The id that came. -1: the rules do not allow it. */
int kd_turn_rule_take(struct kd_turn_rule *r, int32_t id, struct kd_err *err) KD_MUST;
bool kd_turn_rule_done(const struct kd_turn_rule *r); /* the turn is complete */

#endif
