/* /v1/messages and /v1/messages/count_tokens: the request becomes a chat completion's, the
 * fragments become content blocks. A thinking block's signature carries nothing: the text comes
 * back with it. */
#include "base/hash.h"
#include "base/mem.h"
#include "serve/api_stream.h"

#include <inttypes.h>
#include <string.h>

enum { BYTES_MAX = 512 << 20 };

/* The request. */

struct convert {
    const struct kd_jtree *t;
    struct kd_buf *out;
    struct kd_bad *bad;
    bool first; /* no message yet */
};

static const struct kd_jnode *get(const struct convert *q, const struct kd_jnode *n,
                                  const char *key)
{
    return kd_jtree_get(q->t, n, key);
}

static void quote(struct kd_buf *out, const struct kd_jnode *s)
{
    kd_jtree_quote(out, s ? s->text : "", s ? s->bytes : 0);
}

static void dump(struct convert *q, const struct kd_jnode *n)
{
    if (kd_jtree_dump(q->out, q->t, n, KD_JSTYLE_COMPACT, NULL))
        q->out->failed = true;
}

static int bad(struct convert *q, const char *param, const char *message)
{
    return kd_bad_at(q->bad, 400, NULL, param, "%s: %s", param, message);
}

static void begin_message(struct convert *q, const char *role)
{
    kd_buf_printf(q->out, "%s{\"role\":\"%s\"", q->first ? "" : ",", role);
    q->first = false;
}

/* Text of a string or of text blocks as one list of parts. */
static int put_text(struct convert *q, const struct kd_jnode *c, const char *param)
{
    bool any = false;
    if (!c || c->kind == KD_JSON_STR) {
        quote(q->out, c);
        return 0;
    }
    if (c->kind != KD_JSON_ARRAY)
        return bad(q, param, "neither a string nor a list of blocks");
    kd_buf_char(q->out, '[');
    for (const struct kd_jnode *b = kd_jtree_first(q->t, c); b; b = kd_jtree_next(q->t, b)) {
        const struct kd_jnode *type = get(q, b, "type"), *text = get(q, b, "text");
        if (kd_jnode_is(type, "image") || kd_jnode_is(type, "document"))
            return bad(q, param, "image and document input is not supported by this server");
        if (!kd_jnode_is(type, "text") || !text || text->kind != KD_JSON_STR)
            return bad(q, param, "a block is not text");
        kd_buf_str(q->out, any ? ",{\"type\":\"text\",\"text\":" : "{\"type\":\"text\",\"text\":");
        quote(q->out, text);
        kd_buf_char(q->out, '}');
        any = true;
    }
    kd_buf_char(q->out, ']');
    return 0;
}

/* Blocks of one type of a message, as text parts. */
static int put_texts(struct convert *q, const struct kd_jnode *list)
{
    bool any = false;
    kd_buf_str(q->out, ",\"content\":[");
    for (const struct kd_jnode *b = kd_jtree_first(q->t, list); b; b = kd_jtree_next(q->t, b)) {
        const struct kd_jnode *text = get(q, b, "text");
        if (!kd_jnode_is(get(q, b, "type"), "text"))
            continue;
        if (!text || text->kind != KD_JSON_STR)
            return bad(q, "messages", "a text block has no text");
        kd_buf_str(q->out, any ? ",{\"type\":\"text\",\"text\":" : "{\"type\":\"text\",\"text\":");
        quote(q->out, text);
        kd_buf_char(q->out, '}');
        any = true;
    }
    kd_buf_char(q->out, ']');
    return 0;
}

static bool has(const struct convert *q, const struct kd_jnode *list, const char *type)
{
    for (const struct kd_jnode *b = kd_jtree_first(q->t, list); b; b = kd_jtree_next(q->t, b))
        if (kd_jnode_is(get(q, b, "type"), type))
            return true;
    return false;
}

static int put_assistant(struct convert *q, const struct kd_jnode *c)
{
    bool any = false, think = false;
    begin_message(q, "assistant");
    for (const struct kd_jnode *b = kd_jtree_first(q->t, c); b; b = kd_jtree_next(q->t, b)) {
        const struct kd_jnode *text = get(q, b, "thinking");
        if (!kd_jnode_is(get(q, b, "type"), "thinking") || !text || text->kind != KD_JSON_STR)
            continue;
        if (!think)
            kd_buf_str(q->out, ",\"reasoning_content\":\"");
        size_t at = q->out->size_bytes;
        kd_jtree_quote(q->out, text->text, text->bytes);
        if (q->out->failed)
            break;
        /* Several blocks are one text: take the quotes off again. */
        q->out->size_bytes--;
        memmove(q->out->data + at, q->out->data + at + 1, q->out->size_bytes - at - 1);
        q->out->size_bytes--;
        think = true;
    }
    if (think)
        kd_buf_char(q->out, '"');
    if (put_texts(q, c))
        return -1;
    for (const struct kd_jnode *b = kd_jtree_first(q->t, c); b; b = kd_jtree_next(q->t, b)) {
        const struct kd_jnode *type = get(q, b, "type"), *name = get(q, b, "name"),
                              *id = get(q, b, "id"), *input = get(q, b, "input");
        if (kd_jnode_is(type, "tool_use")) {
            if (!name || name->kind != KD_JSON_STR || !id || id->kind != KD_JSON_STR)
                return bad(q, "messages", "a tool_use block has no name or id");
            kd_buf_str(q->out, any ? ",{\"id\":" : ",\"tool_calls\":[{\"id\":");
            quote(q->out, id);
            kd_buf_str(q->out, ",\"type\":\"function\",\"function\":{\"name\":");
            quote(q->out, name);
            kd_buf_str(q->out, ",\"arguments\":");
            if (input)
                dump(q, input);
            else
                kd_buf_str(q->out, "{}");
            kd_buf_str(q->out, "}}");
            any = true;
        } else if (!kd_jnode_is(type, "text") && !kd_jnode_is(type, "thinking") &&
                   !kd_jnode_is(type, "redacted_thinking")) {
            return bad(q, "messages",
                       "a block of an assistant message is not text, thinking or "
                       "tool_use");
        }
    }
    kd_buf_str(q->out, any ? "]}" : "}");
    return 0;
}

/* Results come first: they answer the calls of the message before. */
static int put_user(struct convert *q, const struct kd_jnode *c)
{
    for (const struct kd_jnode *b = kd_jtree_first(q->t, c); b; b = kd_jtree_next(q->t, b)) {
        const struct kd_jnode *type = get(q, b, "type"), *id = get(q, b, "tool_use_id"),
                              *error = get(q, b, "is_error"), *content = get(q, b, "content");
        if (kd_jnode_is(type, "image") || kd_jnode_is(type, "document"))
            return bad(q, "messages", "image and document input is not supported by this server");
        if (!kd_jnode_is(type, "tool_result") && !kd_jnode_is(type, "text"))
            return bad(q, "messages", "a block of a user message is not text or tool_result");
        if (!kd_jnode_is(type, "tool_result"))
            continue;
        if (!id || id->kind != KD_JSON_STR)
            return bad(q, "messages", "a tool_result has no tool_use_id");
        begin_message(q, "tool");
        kd_buf_str(q->out, ",\"tool_call_id\":");
        quote(q->out, id);
        kd_buf_str(q->out, ",\"content\":");
        if (error && error->kind == KD_JSON_BOOL && error->text[0] == 't') {
            /* The format has no mark for a failed call: the text says so. */
            kd_buf_str(q->out, "[\"Error: \"");
            if (content && content->kind == KD_JSON_STR) {
                kd_buf_char(q->out, ',');
                quote(q->out, content);
            }
            for (const struct kd_jnode *p = kd_jtree_first(q->t, content);
                 content && content->kind == KD_JSON_ARRAY && p; p = kd_jtree_next(q->t, p)) {
                kd_buf_char(q->out, ',');
                dump(q, p);
            }
            kd_buf_char(q->out, ']');
        } else if (put_text(q, content, "messages")) {
            return -1;
        }
        kd_buf_char(q->out, '}');
    }
    if (!has(q, c, "text"))
        return 0;
    begin_message(q, "user");
    if (put_texts(q, c))
        return -1;
    kd_buf_char(q->out, '}');
    return 0;
}

static int put_messages(struct convert *q, const struct kd_jnode *root)
{
    const struct kd_jnode *system = get(q, root, "system"), *list = get(q, root, "messages");
    if (!list || list->kind != KD_JSON_ARRAY || !list->count)
        return bad(q, "messages", "missing, not a list, or empty");
    kd_buf_str(q->out, "\"messages\":[");
    if (system) {
        begin_message(q, "system");
        kd_buf_str(q->out, ",\"content\":");
        if (put_text(q, system, "system"))
            return -1;
        kd_buf_char(q->out, '}');
    }
    for (const struct kd_jnode *m = kd_jtree_first(q->t, list); m; m = kd_jtree_next(q->t, m)) {
        const struct kd_jnode *role = get(q, m, "role"), *c = get(q, m, "content");
        bool assistant = kd_jnode_is(role, "assistant"), system_role = kd_jnode_is(role, "system");
        if (!assistant && !system_role && !kd_jnode_is(role, "user"))
            return bad(q, "messages", "a role is not user or assistant");
        if (!c || (c->kind != KD_JSON_STR && c->kind != KD_JSON_ARRAY))
            return bad(q, "messages", "a content is missing or neither a string nor a list");
        if (c->kind == KD_JSON_STR || system_role) {
            begin_message(q, assistant ? "assistant" : system_role ? "system" : "user");
            kd_buf_str(q->out, ",\"content\":");
            if (put_text(q, c, "messages"))
                return -1;
            kd_buf_char(q->out, '}');
        } else if (assistant ? put_assistant(q, c) : put_user(q, c)) {
            return -1;
        }
    }
    kd_buf_char(q->out, ']');
    return 0;
}

static int put_tools(struct convert *q, const struct kd_jnode *root)
{
    const struct kd_jnode *list = get(q, root, "tools"), *choice = get(q, root, "tool_choice"),
                          *type = get(q, choice, "type"), *name = get(q, choice, "name"),
                          *single = get(q, choice, "disable_parallel_tool_use");
    bool any = false;
    if (list && list->kind != KD_JSON_ARRAY)
        return bad(q, "tools", "not a list");
    if (list)
        kd_buf_str(q->out, ",\"tools\":[");
    for (const struct kd_jnode *t = kd_jtree_first(q->t, list); t; t = kd_jtree_next(q->t, t)) {
        const struct kd_jnode *k = get(q, t, "type"), *schema = get(q, t, "input_schema"),
                              *text = get(q, t, "description");
        if (k && !kd_jnode_is(k, "custom"))
            return bad(q, "tools", "only tools of the client are supported");
        if (!schema || schema->kind != KD_JSON_OBJECT)
            return bad(q, "tools", "a tool has no input_schema");
        if (!get(q, t, "name") || get(q, t, "name")->kind != KD_JSON_STR)
            return bad(q, "tools", "a tool has no name");
        kd_buf_str(q->out, any ? ",{" : "{");
        kd_buf_str(q->out, "\"type\":\"function\",\"function\":{\"name\":");
        quote(q->out, get(q, t, "name"));
        if (text && text->kind == KD_JSON_STR) {
            kd_buf_str(q->out, ",\"description\":");
            quote(q->out, text);
        }
        kd_buf_str(q->out, ",\"parameters\":");
        dump(q, schema);
        kd_buf_str(q->out, "}}");
        any = true;
    }
    if (list)
        kd_buf_char(q->out, ']');
    if (!choice)
        return 0;
    if (kd_jnode_is(type, "any"))
        kd_buf_str(q->out, ",\"tool_choice\":\"required\"");
    else if (kd_jnode_is(type, "none") || kd_jnode_is(type, "auto"))
        kd_buf_printf(q->out, ",\"tool_choice\":\"%s\"", type->text);
    else if (kd_jnode_is(type, "tool") && name && name->kind == KD_JSON_STR) {
        kd_buf_str(q->out, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
        quote(q->out, name);
        kd_buf_str(q->out, "}}");
    } else {
        return bad(q, "tool_choice", "not auto, any, none or a tool");
    }
    if (single && single->kind == KD_JSON_BOOL && single->text[0] == 't')
        kd_buf_str(q->out, ",\"parallel_tool_calls\":false");
    return 0;
}

static int put_thinking(struct convert *q, const struct kd_jnode *root)
{
    const struct kd_jnode *t = get(q, root, "thinking"), *type = get(q, t, "type"),
                          *budget = get(q, t, "budget_tokens"),
                          *effort = get(q, get(q, root, "output_config"), "effort");
    /* Unlike elsewhere, thinking is off unless asked for: the API's clients count on it. */
    if (!t) {
        kd_buf_str(q->out, ",\"thinking\":{\"type\":\"disabled\"}");
        return 0;
    }
    if (!kd_jnode_is(type, "enabled") && !kd_jnode_is(type, "disabled") &&
        !kd_jnode_is(type, "adaptive"))
        return bad(q, "thinking", "the type is not enabled, disabled or adaptive");
    kd_buf_printf(q->out, ",\"thinking\":{\"type\":\"%s\"}", type->text);
    if (budget && kd_jnode_is(type, "enabled")) {
        if (budget->kind != KD_JSON_INT || budget->text[0] == '-' || budget->bytes > 9)
            return bad(q, "thinking", "budget_tokens is not a count");
        kd_buf_printf(q->out, ",\"thinking_budget\":%s", budget->text);
    }
    if (effort && !kd_jnode_is(type, "disabled")) {
        kd_buf_str(q->out, ",\"reasoning_effort\":");
        dump(q, effort);
    }
    return 0;
}

static void copy(struct convert *q, const struct kd_jnode *root, const char *key, const char *as)
{
    const struct kd_jnode *v = get(q, root, key);
    if (!v)
        return;
    kd_buf_printf(q->out, ",\"%s\":", as);
    dump(q, v);
}

/* Anthropic's request as a chat completion's. */
static int convert(const struct kd_jtree *t, bool count_only, struct kd_buf *out,
                   struct kd_bad *bad_out)
{
    struct convert q = {t, out, bad_out, true};
    const struct kd_jnode *root = kd_jtree_root(t), *stop = get(&q, root, "stop_sequences");
    if (!count_only && !get(&q, root, "max_tokens"))
        return bad(&q, "max_tokens", "missing");
    if (stop && stop->kind != KD_JSON_ARRAY)
        return bad(&q, "stop_sequences", "not a list");
    kd_buf_char(out, '{');
    if (put_messages(&q, root) || put_tools(&q, root) || put_thinking(&q, root))
        return -1;
    copy(&q, root, "model", "model");
    copy(&q, root, "max_tokens", "max_tokens");
    copy(&q, root, "temperature", "temperature");
    copy(&q, root, "top_p", "top_p");
    copy(&q, root, "top_k", "top_k");
    copy(&q, root, "stop_sequences", "stop");
    copy(&q, root, "stream", "stream");
    copy(&q, root, "seed", "seed");
    kd_buf_char(out, '}');
    return out->failed ? kd_bad_at(bad_out, 500, NULL, NULL, "no memory for the request") : 0;
}

/* The reply. */

enum block { B_NONE, B_THINK, B_TEXT, B_TOOL };

struct reply {
    struct kd_flow flow;
    struct kd_api *api;
    struct kd_buf *out;
    enum block open;
    int64_t index; /* of the open block, or of the next */
    bool begun;
    char id[40];
};

static void event(struct reply *p, const char *type)
{
    kd_buf_printf(p->out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void end_event(struct reply *p)
{
    kd_buf_str(p->out, "}\n\n");
}

/* An opaque mark of what was thought: the first digits of its hash. */
static void put_signature(struct kd_buf *out, const struct kd_buf *think)
{
    char hex[65];
    if (kd_sha256_of(think->data ? think->data : "", think->size_bytes, hex, NULL))
        snprintf(hex, sizeof hex, "none");
    kd_buf_printf(out, "\"signature\":\"kondense-%.32s\"", hex);
}

static void close_block(struct reply *p)
{
    if (p->open == B_NONE)
        return;
    if (p->open == B_THINK) {
        event(p, "content_block_delta");
        kd_buf_printf(p->out, ",\"index\":%" PRId64 ",\"delta\":{\"type\":\"signature_delta\",",
                      p->index);
        put_signature(p->out, &p->flow.choice[0].think);
        kd_buf_char(p->out, '}');
        end_event(p);
    }
    event(p, "content_block_stop");
    kd_buf_printf(p->out, ",\"index\":%" PRId64, p->index);
    end_event(p);
    p->index++;
    p->open = B_NONE;
}

static void open_block(struct reply *p, enum block kind, const struct kd_call *call)
{
    if (p->open == kind && kind != B_TOOL)
        return;
    close_block(p);
    event(p, "content_block_start");
    kd_buf_printf(p->out, ",\"index\":%" PRId64 ",\"content_block\":", p->index);
    if (kind == B_THINK) {
        kd_buf_str(p->out, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    } else if (kind == B_TEXT) {
        kd_buf_str(p->out, "{\"type\":\"text\",\"text\":\"\"}");
    } else {
        kd_buf_printf(p->out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", call->id);
        kd_json_quote(p->out, call->name.data, call->name.size_bytes);
        kd_buf_str(p->out, ",\"input\":{}}");
    }
    end_event(p);
    p->open = kind;
}

static void delta(struct reply *p, const char *type, const char *key, const char *text,
                  size_t bytes)
{
    event(p, "content_block_delta");
    kd_buf_printf(p->out, ",\"index\":%" PRId64 ",\"delta\":{\"type\":\"%s\",\"%s\":", p->index,
                  type, key);
    kd_json_quote(p->out, text, bytes);
    kd_buf_char(p->out, '}');
    end_event(p);
}

static void on_part(void *ctx, struct kd_choice *c, enum kd_part part, const struct kd_call *call,
                    const char *text, size_t bytes)
{
    struct reply *p = ctx;
    (void)c;
    switch (part) {
    case KD_PART_THINK:
        open_block(p, B_THINK, NULL);
        delta(p, "thinking_delta", "thinking", text, bytes);
        break;
    case KD_PART_TEXT:
        open_block(p, B_TEXT, NULL);
        delta(p, "text_delta", "text", text, bytes);
        break;
    case KD_PART_CALL:
        open_block(p, B_TOOL, call);
        break;
    case KD_PART_ARGS:
        delta(p, "input_json_delta", "partial_json", text, bytes);
        break;
    case KD_PART_CALL_END:
        close_block(p);
        break;
    }
}

static void put_usage(struct kd_buf *out, struct reply *p, bool final)
{
    const struct kd_usage *u = kd_flow_usage(&p->flow);
    /* Here the two add up to the prompt, as the API has it. */
    kd_buf_printf(out,
                  "\"usage\":{\"input_tokens\":%" PRId64 ",\"cache_creation_input_tokens\":0,"
                  "\"cache_read_input_tokens\":%" PRId64 ",\"output_tokens\":%" PRId64 "}",
                  u->prompt_tokens - u->cached_tokens, u->cached_tokens,
                  final ? u->made_tokens : 0);
}

static void put_stop(struct kd_buf *out, const struct reply *p)
{
    const struct kd_choice *c = &p->flow.choice[0];
    const char *reason = kd_choice_reason(c);
    bool sequence = c->finish == KD_FINISH_STOP && c->stop >= 0;
    kd_buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":",
                  !strcmp(reason, "length")       ? "max_tokens"
                  : !strcmp(reason, "tool_calls") ? "tool_use"
                  : sequence                      ? "stop_sequence"
                                                  : "end_turn");
    if (sequence)
        kd_json_quote(out, p->flow.ask.stops[c->stop], p->flow.ask.stop_bytes[c->stop]);
    else
        kd_buf_str(out, "null");
}

static void put_head(struct kd_buf *out, struct reply *p)
{
    kd_buf_printf(out,
                  "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", p->id);
    kd_json_quote(out, p->api->o.model_id, strlen(p->api->o.model_id));
    kd_flow_making(&p->flow, out);
}

static int fault(struct reply *p)
{
    struct kd_bad b;
    kd_flow_fault(&p->flow, &b);
    kd_buf_str(p->out, "event: error\ndata: ");
    kd_api_fail(p->api, "/v1/messages", &b.f, p->id, p->out);
    kd_buf_str(p->out, "\n\n");
    return -1;
}

static int next(void *ctx, struct kd_buf *out, double timeout_s)
{
    struct reply *p = ctx;
    p->out = out;
    if (!p->begun) {
        p->begun = true;
        event(p, "message_start");
        kd_buf_str(out, ",\"message\":");
        put_head(out, p);
        kd_buf_str(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
        put_usage(out, p, false);
        kd_buf_char(out, '}');
        end_event(p);
        return 0;
    }
    int rc = kd_flow_next(&p->flow, timeout_s);
    if (rc < 0 || (rc && p->flow.choice[0].finish == KD_FINISH_CANCEL))
        return fault(p);
    if (!rc)
        return 0;
    close_block(p);
    event(p, "message_delta");
    kd_buf_str(out, ",\"delta\":{");
    put_stop(out, p);
    kd_buf_str(out, "},");
    put_usage(out, p, true);
    end_event(p);
    event(p, "message_stop");
    end_event(p);
    return 1;
}

static void over(void *ctx, struct kd_req *r, bool done)
{
    struct reply *p = ctx;
    (void)done;
    kd_flow_close(&p->flow, r);
    kd_mem_free(p);
}

static void put_content(struct kd_buf *out, const struct kd_choice *c)
{
    bool any = false;
    kd_buf_str(out, ",\"content\":[");
    if (c->think.size_bytes) {
        kd_buf_str(out, "{\"type\":\"thinking\",\"thinking\":");
        kd_json_quote(out, c->think.data, c->think.size_bytes);
        kd_buf_char(out, ',');
        put_signature(out, &c->think);
        kd_buf_char(out, '}');
        any = true;
    }
    if (c->text.size_bytes) {
        kd_buf_str(out, any ? ",{\"type\":\"text\",\"text\":" : "{\"type\":\"text\",\"text\":");
        kd_json_quote(out, c->text.data, c->text.size_bytes);
        kd_buf_char(out, '}');
        any = true;
    }
    for (int64_t i = 0; i < c->call_count; i++) {
        const struct kd_call *k = c->calls[i];
        if (!k->complete)
            continue;
        kd_buf_printf(out, "%s{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", any ? "," : "",
                      k->id);
        kd_json_quote(out, k->name.data, k->name.size_bytes);
        kd_buf_str(out, ",\"input\":");
        kd_buf_add(out, k->args.data, k->args.size_bytes);
        kd_buf_char(out, '}');
        any = true;
    }
    kd_buf_char(out, ']');
}

static void send_whole(struct reply *p, struct kd_req *r)
{
    struct kd_buf out;
    struct kd_bad b;
    int rc = kd_flow_wait(&p->flow, r);
    if (rc || p->flow.choice[0].finish == KD_FINISH_CANCEL) {
        kd_flow_fault(&p->flow, &b);
        kd_flow_refuse(r, 1, &b);
        return;
    }
    kd_buf_init(&out, BYTES_MAX);
    put_head(&out, p);
    put_content(&out, &p->flow.choice[0]);
    kd_buf_char(&out, ',');
    put_stop(&out, p);
    kd_buf_char(&out, ',');
    put_usage(&out, p, true);
    kd_buf_char(&out, '}');
    if (out.failed)
        kd_req_fail(r, &(struct kd_fault){.status = 500, .message = "no memory for the answer"});
    else
        kd_req_reply(r, 200, "application/json", out.data, out.size_bytes);
    kd_buf_release(&out);
}

/* The request as a chat completion's, checked; -1 after answering. */
static int read_ask(struct kd_api *api, struct kd_req *r, bool count_only, struct kd_ask *ask)
{
    struct kd_jtree t;
    struct kd_bad b;
    struct kd_buf text;
    size_t n;
    const char *body = kd_req_body(r, &n);
    if (!kd_api_engine(api, r))
        return -1;
    if (kd_ask_parse(&t, body, n, &b)) {
        kd_bad_reply(r, &b);
        return -1;
    }
    kd_buf_init(&text, KD_ASK_BYTES_MAX);
    int rc = convert(&t, count_only, &text, &b);
    kd_jtree_release(&t);
    if (!rc) {
        const char *owner = kd_api_owner(api, r);
        rc = count_only ? kd_ask_count(ask, api, owner, text.data, text.size_bytes, &b)
                        : kd_ask_chat(ask, api, owner, text.data, text.size_bytes, &b);
        if (rc)
            kd_ask_release(ask);
    }
    kd_buf_release(&text);
    if (rc)
        kd_flow_refuse(r, 0, &b);
    return rc;
}

void kd_api_messages(void *ctx, struct kd_req *r)
{
    struct kd_api *api = ctx;
    struct kd_ask ask;
    struct kd_bad b;
    struct reply *p;
    double retry_s;
    if (read_ask(api, r, false, &ask))
        return;
    if (kd_mem_zero(&p, 1, sizeof *p, "reply", NULL)) {
        kd_ask_release(&ask);
        kd_req_fail(r, &(struct kd_fault){.status = 500, .message = "no memory for a reply"});
        return;
    }
    p->api = api;
    kd_api_new_id(api, "msg_", p->id);
    if (kd_flow_open(&p->flow, api, &ask, kd_api_owner(api, r), &retry_s, &b)) {
        kd_mem_free(p);
        kd_flow_refuse(r, retry_s, &b);
        return;
    }
    if (p->flow.ask.stream) {
        p->flow.sink = (struct kd_sink){p, on_part, NULL};
        kd_req_stream(r, "text/event-stream; charset=utf-8",
                      &(struct kd_stream){.ctx = p,
                                          .next = next,
                                          .end = over,
                                          .idle = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                          .idle_s = 5});
        return;
    }
    send_whole(p, r);
    over(p, r, true);
}

void kd_api_count_tokens(void *ctx, struct kd_req *r)
{
    struct kd_ask ask;
    char text[64];
    if (read_ask(ctx, r, true, &ask))
        return;
    int n = snprintf(text, sizeof text, "{\"input_tokens\":%" PRId64 "}", ask.prompt[0].count);
    kd_ask_release(&ask);
    kd_req_reply(r, 200, "application/json", text, (size_t)n);
}
