/* The turn around the answer: thinking, response, tools. */
#include "base/mem.h"
#include "serve/grammar_build.h"

#include <string.h>

enum { CALLS_MAX = 1024 };

static int32_t open_tag(struct kd_gb *b, const char *tag, int32_t next)
{
    const struct kd_vocab *v = b->g->v;
    return kd_gb_id(b, v->open, kd_gb_str(b, tag, kd_gb_id(b, v->sep, next)));
}

static int32_t close_tag(struct kd_gb *b, const char *tag, int32_t next)
{
    const struct kd_vocab *v = b->g->v;
    return kd_gb_id(b, v->close, kd_gb_str(b, tag, kd_gb_id(b, v->sep, next)));
}

static int32_t end_message(struct kd_gb *b)
{
    return close_tag(b, "message", kd_gb_id(b, b->g->v->stop, b->end));
}

/* ` tool="NAME" index="N"<|sep|> arguments <|close|>call<|sep|>`, one way for each tool. */
static int32_t calls(struct kd_gb *b, const struct kd_grammar_spec *s)
{
    int32_t rule = kd_gb_rule(b), split = kd_gb_node(b, KD_G_SPLIT, -1, -1);
    for (int64_t i = 0; i < s->tool_count && !b->failed; i++) {
        const struct kd_grammar_tool *t = &s->tools[i];
        b->t = t->tree;
        b->root = t->schema;
        snprintf(b->path, sizeof b->path, "tool '%.100s': $", t->name);
        int32_t end = close_tag(b, "call", b->ret);
        int32_t args = kd_gb_arguments(b, t->schema, end);
        int32_t index =
            kd_gb_node(b, KD_G_INDEX, kd_gb_str(b, "\"", kd_gb_id(b, b->g->v->sep, args)), -1);
        int32_t name = kd_gb_str(b, t->name, kd_gb_str(b, "\" index=\"", index));
        kd_gb_edge(b, split, 0, 0, name, 0);
    }
    if (b->failed)
        return -1;
    b->path[0] = 0;
    b->g->rule[rule] = kd_gb_id(b, b->g->v->open, kd_gb_str(b, "call tool=\"", split));
    return rule;
}

/* call+ <|close|>tools<|sep|> and the end: from inside the tools element on. */
static int32_t tools(struct kd_gb *b, const struct kd_grammar_spec *s)
{
    int32_t rule = kd_gb_rule(b);
    int32_t bound = kd_gb_bound(b, 1, s->one_call ? 1 : CALLS_MAX);
    int32_t loop = kd_gb_node(b, KD_G_SPLIT, -1, bound), call = calls(b, s);
    if (b->failed)
        return -1;
    kd_gb_edge(b, loop, 0, 0, kd_gb_call(b, call, loop), KD_G_INC);
    kd_gb_edge(b, loop, 0, 0, close_tag(b, "tools", b->ret), KD_G_NEED);
    b->g->rule[rule] = loop;
    return kd_gb_call(b, rule, end_message(b));
}

/* From inside the response element on. */
static int32_t response(struct kd_gb *b, const struct kd_grammar_spec *s, int32_t tools_node)
{
    if (s->answer == KD_ANSWER_TEXT) {
        int32_t after = s->calls == KD_CALLS_MUST ? tools_node : end_message(b);
        if (tools_node >= 0 && s->calls == KD_CALLS_MAY) {
            int32_t end = after;
            after = kd_gb_node(b, KD_G_SPLIT, -1, -1);
            kd_gb_edge(b, after, 0, 0, end, 0);
            kd_gb_edge(b, after, 0, 0, tools_node, 0);
        }
        return kd_gb_call(b, kd_gb_raw_rule(b, -1), close_tag(b, "response", after));
    }
    b->t = s->tree;
    b->root = s->schema;
    snprintf(b->path, sizeof b->path, "%s", s->answer == KD_ANSWER_SCHEMA ? "$" : "");
    int32_t rule = s->answer == KD_ANSWER_SCHEMA ? kd_gb_schema(b, s->schema, KD_G_COMPACT)
                                                 : kd_gb_object(b, KD_G_COMPACT);
    if (b->failed)
        return -1;
    b->path[0] = 0;
    int32_t after = end_message(b);
    if (tools_node < 0)
        return kd_gb_call(b, rule, close_tag(b, "response", after));
    /* An answer, calls, or both. */
    int32_t split = kd_gb_node(b, KD_G_SPLIT, -1, -1), either = kd_gb_node(b, KD_G_SPLIT, -1, -1);
    kd_gb_edge(b, either, 0, 0, after, 0);
    kd_gb_edge(b, either, 0, 0, tools_node, 0);
    kd_gb_edge(b, split, 0, 0, kd_gb_call(b, rule, close_tag(b, "response", either)), 0);
    kd_gb_edge(b, split, 0, 0, close_tag(b, "response", tools_node), 0);
    return split;
}

/* Thinking ends with its closing tag, or with the next element's opening one. */
static int32_t thinking(struct kd_gb *b, int32_t response_node, int32_t inside_tools)
{
    int32_t opens = kd_gb_node(b, KD_G_SPLIT, -1, -1), ends = kd_gb_node(b, KD_G_SPLIT, -1, -1);
    int32_t sep = b->g->v->sep;
    kd_gb_edge(b, opens, 0, 0, kd_gb_str(b, "response", kd_gb_id(b, sep, response_node)), 0);
    if (inside_tools >= 0)
        kd_gb_edge(b, opens, 0, 0, kd_gb_str(b, "tools", kd_gb_id(b, sep, inside_tools)), 0);
    kd_gb_edge(b, ends, 0, 0, close_tag(b, "think", open_tag(b, "response", response_node)), 0);
    kd_gb_edge(b, ends, 0, 0, kd_gb_id(b, b->g->v->open, opens), 0);
    return kd_gb_call(b, kd_gb_raw_rule(b, -1), ends);
}

/* Whether a rule can come back to its own beginning without a byte in between: state 1 is on the
 * way, 2 is done. */
static bool loops(struct kd_gb *b, int32_t node, uint8_t *state, int depth)
{
    struct kd_grammar *g = b->g;
    const struct kd_gnode *n = &g->node[node];
    if (n->op == KD_G_CALL) {
        int32_t r = n->arg;
        if (state[r] == 1 || depth > 4000)
            return true;
        if (state[r] == 2)
            return false;
        state[r] = 1;
        bool bad = loops(b, g->rule[r], state, depth + 1);
        state[r] = 2;
        return bad;
    }
    for (int32_t e = n->op == KD_G_SPLIT ? n->edge : -1; e >= 0; e = g->edge[e].more)
        if (loops(b, g->edge[e].to, state, depth + 1))
            return true;
    return false;
}

static int check_loops(struct kd_gb *b)
{
    uint8_t *state;
    if (kd_mem_zero(&state, b->g->rules + 1, 1, "grammar", b->err)) {
        b->failed = true;
        return -1;
    }
    for (int32_t r = 0; r < b->g->rules && !b->failed; r++) {
        if (state[r])
            continue;
        state[r] = 1;
        if (loops(b, b->g->rule[r], state, 0))
            kd_gb_fail(b, KD_ENOTSUP, "$: a $ref leads back to itself with nothing in between");
        state[r] = 2;
    }
    kd_mem_free(state);
    return b->failed ? -1 : 0;
}

int kd_grammar_compile(struct kd_grammar **out, const struct kd_vocab *v,
                       const struct kd_grammar_spec *s, struct kd_err *err)
{
    struct kd_grammar *g;
    struct kd_gb b;
    *out = NULL;
    if (kd_mem_zero(&g, 1, sizeof *g, "grammar", err))
        return -1;
    g->v = v;
    kd_gb_open(&b, g, err);
    int32_t inside = s->calls != KD_CALLS_NONE && s->tool_count ? tools(&b, s) : -1;
    int32_t outside = inside >= 0 ? open_tag(&b, "tools", inside) : -1;
    int32_t node = b.failed ? -1 : response(&b, s, outside);
    if (!b.failed && s->think)
        node = thinking(&b, node, inside);
    g->start = node;
    int rc = b.failed || check_loops(&b);
    kd_gb_close(&b);
    if (rc) {
        kd_grammar_close(g);
        return -1;
    }
    *out = g;
    return 0;
}
