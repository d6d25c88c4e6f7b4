/* /v1/responses: the request becomes a chat completion's, the fragments become items with the
 * events of their lives. A stored response is kept with its conversation, for previous_response_id.
 */
#include "base/mem.h"
#include "serve/api_stream.h"
#include "serve/stored.h"

#include <inttypes.h>
#include <string.h>

enum { BYTES_MAX = 512 << 20 };

/* The request. */

struct convert {
    const struct kd_jtree *t;
    struct kd_buf *messages; /* JSON objects with commas between */
    struct kd_bad *bad;
    bool open_calls; /* the last message is an assistant's whose tool_calls list is open */
    bool open_turn;  /* ... an assistant's message that is still open */
};

static const struct kd_jnode *get(const struct convert *q, const struct kd_jnode *n,
                                  const char *key)
{
    return kd_jtree_get(q->t, n, key);
}

static void quote(struct kd_buf *out, const struct kd_jnode *s)
{
    kd_jtree_quote(out, s && s->text ? s->text : "", s ? s->bytes : 0);
}

static void dump(struct kd_buf *out, const struct kd_jtree *t, const struct kd_jnode *n)
{
    if (kd_jtree_dump(out, t, n, KD_JSTYLE_COMPACT, NULL))
        out->failed = true;
}

static int bad(struct convert *q, const char *param, const char *message)
{
    return kd_bad_at(q->bad, 400, NULL, param, "%s: %s", param, message);
}

static void close_turn(struct convert *q)
{
    if (q->open_calls)
        kd_buf_char(q->messages, ']');
    if (q->open_turn)
        kd_buf_char(q->messages, '}');
    q->open_calls = q->open_turn = false;
}

static void begin_message(struct convert *q, const char *role)
{
    close_turn(q);
    kd_buf_printf(q->messages, "%s{\"role\":\"%s\"", q->messages->size_bytes ? "," : "", role);
}

static int put_parts(struct convert *q, const struct kd_jnode *c)
{
    struct kd_buf *out = q->messages;
    bool any = false;
    if (!c || c->kind == KD_JSON_STR) {
        quote(out, c);
        return 0;
    }
    if (c->kind != KD_JSON_ARRAY)
        return bad(q, "input", "a content is neither a string nor a list");
    kd_buf_char(out, '[');
    for (const struct kd_jnode *p = kd_jtree_first(q->t, c); p; p = kd_jtree_next(q->t, p)) {
        const struct kd_jnode *type = get(q, p, "type"), *text = get(q, p, "text");
        if (kd_jnode_is(type, "input_image") || kd_jnode_is(type, "input_file"))
            return bad(q, "input", "image input is not supported by this server");
        if (kd_jnode_is(type, "refusal"))
            text = get(q, p, "refusal");
        else if (!kd_jnode_is(type, "input_text") && !kd_jnode_is(type, "output_text") &&
                 !kd_jnode_is(type, "text"))
            return bad(q, "input", "a content part is not text");
        if (!text || text->kind != KD_JSON_STR)
            return bad(q, "input", "a text part has no text");
        kd_buf_str(out, any ? ",{\"type\":\"text\",\"text\":" : "{\"type\":\"text\",\"text\":");
        quote(out, text);
        kd_buf_char(out, '}');
        any = true;
    }
    kd_buf_char(out, ']');
    return 0;
}

/* Reasoning, a message and calls that follow one another are one assistant turn; so parts of it are
 * put into the turn that is open as long as their order allows. */
static void open_turn(struct convert *q)
{
    if (q->open_turn)
        return;
    begin_message(q, "assistant");
    q->open_turn = true;
}

static int put_reasoning(struct convert *q, const struct kd_jnode *item)
{
    const struct kd_jnode *list = get(q, item, "content");
    struct kd_buf text;
    if (!list || list->kind != KD_JSON_ARRAY || !list->count)
        return 0;
    close_turn(q);
    open_turn(q);
    kd_buf_init(&text, KD_ASK_BYTES_MAX);
    for (const struct kd_jnode *p = kd_jtree_first(q->t, list); p; p = kd_jtree_next(q->t, p)) {
        const struct kd_jnode *s = get(q, p, "text");
        if (s && s->kind == KD_JSON_STR)
            kd_buf_add(&text, s->text, s->bytes);
    }
    kd_buf_str(q->messages, ",\"reasoning_content\":");
    kd_jtree_quote(q->messages, text.data ? text.data : "", text.size_bytes);
    kd_buf_release(&text);
    return 0;
}

static int put_call(struct convert *q, const struct kd_jnode *item)
{
    const struct kd_jnode *name = get(q, item, "name"), *id = get(q, item, "call_id"),
                          *args = get(q, item, "arguments");
    if (!name || name->kind != KD_JSON_STR || !id || id->kind != KD_JSON_STR)
        return bad(q, "input", "a function_call has no name or call_id");
    open_turn(q);
    kd_buf_str(q->messages, q->open_calls ? ",{\"id\":" : ",\"tool_calls\":[{\"id\":");
    q->open_calls = true;
    quote(q->messages, id);
    kd_buf_str(q->messages, ",\"type\":\"function\",\"function\":{\"name\":");
    quote(q->messages, name);
    kd_buf_str(q->messages, ",\"arguments\":");
    if (args)
        dump(q->messages, q->t, args);
    else
        kd_buf_str(q->messages, "\"{}\"");
    kd_buf_str(q->messages, "}}");
    return 0;
}

static int put_item(struct convert *q, const struct kd_jnode *item)
{
    const struct kd_jnode *type = get(q, item, "type"), *role = get(q, item, "role"),
                          *id = get(q, item, "call_id");
    if (item->kind != KD_JSON_OBJECT)
        return bad(q, "input", "an item is not an object");
    if (kd_jnode_is(type, "reasoning"))
        return put_reasoning(q, item);
    if (kd_jnode_is(type, "function_call"))
        return put_call(q, item);
    if (kd_jnode_is(type, "function_call_output")) {
        if (!id || id->kind != KD_JSON_STR)
            return bad(q, "input", "a function_call_output has no call_id");
        begin_message(q, "tool");
        kd_buf_str(q->messages, ",\"tool_call_id\":");
        quote(q->messages, id);
        kd_buf_str(q->messages, ",\"content\":");
        if (put_parts(q, get(q, item, "output")))
            return -1;
        kd_buf_char(q->messages, '}');
        return 0;
    }
    if (type && !kd_jnode_is(type, "message"))
        return bad(q, "input",
                   "an item is not a message, function_call, function_call_output or "
                   "reasoning");
    bool assistant = kd_jnode_is(role, "assistant");
    if (!assistant && !kd_jnode_is(role, "user") && !kd_jnode_is(role, "system") &&
        !kd_jnode_is(role, "developer"))
        return bad(q, "input", "a role is not user, assistant, system or developer");
    if (!assistant || !q->open_turn || q->open_calls)
        begin_message(q, role->text);
    q->open_turn = assistant;
    kd_buf_str(q->messages, ",\"content\":");
    if (put_parts(q, get(q, item, "content")))
        return -1;
    if (!assistant)
        kd_buf_char(q->messages, '}');
    return 0;
}

static int put_input(struct convert *q, const struct kd_jnode *input)
{
    if (!input)
        return bad(q, "input", "missing");
    if (input->kind == KD_JSON_STR) {
        begin_message(q, "user");
        kd_buf_str(q->messages, ",\"content\":");
        quote(q->messages, input);
        kd_buf_char(q->messages, '}');
        return 0;
    }
    if (input->kind != KD_JSON_ARRAY)
        return bad(q, "input", "neither a string nor a list");
    for (const struct kd_jnode *i = kd_jtree_first(q->t, input); i; i = kd_jtree_next(q->t, i))
        if (put_item(q, i))
            return -1;
    close_turn(q);
    return 0;
}

/* Flat tools become the chat API's; those that are not functions cannot be done. */
static int put_tools(struct convert *q, struct kd_buf *out, const struct kd_jnode *root)
{
    static const char *const keys[] = {"name", "description", "parameters", "strict"};
    const struct kd_jnode *list = get(q, root, "tools"), *choice = get(q, root, "tool_choice");
    if (list && list->kind != KD_JSON_ARRAY)
        return bad(q, "tools", "not a list");
    kd_buf_str(out, ",\"tools\":[");
    for (const struct kd_jnode *t = kd_jtree_first(q->t, list), *f = t; t;
         t = kd_jtree_next(q->t, t)) {
        bool any = false;
        if (!kd_jnode_is(get(q, t, "type"), "function"))
            return bad(q, "tools", "only tools of type 'function' are supported");
        kd_buf_str(out, t == f ? "{" : ",{");
        kd_buf_str(out, "\"type\":\"function\",\"function\":{");
        for (int i = 0; i < 4; i++) {
            const struct kd_jnode *v = get(q, t, keys[i]);
            if (!v)
                continue;
            kd_buf_printf(out, "%s\"%s\":", any ? "," : "", keys[i]);
            dump(out, q->t, v);
            any = true;
        }
        kd_buf_str(out, "}}");
    }
    kd_buf_char(out, ']');
    if (choice && choice->kind == KD_JSON_OBJECT) {
        const struct kd_jnode *name = get(q, choice, "name");
        if (!kd_jnode_is(get(q, choice, "type"), "function") || !name || name->kind != KD_JSON_STR)
            return bad(q, "tool_choice", "not auto, none, required or a function");
        kd_buf_str(out, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
        quote(out, name);
        kd_buf_str(out, "}}");
    } else if (choice) {
        kd_buf_str(out, ",\"tool_choice\":");
        dump(out, q->t, choice);
    }
    return 0;
}

static int put_format(struct convert *q, struct kd_buf *out, const struct kd_jnode *root)
{
    static const char *const keys[] = {"name", "schema", "strict", "description"};
    const struct kd_jnode *f = get(q, get(q, root, "text"), "format"), *type = get(q, f, "type");
    bool any = false;
    if (!f)
        return 0;
    if (!type || type->kind != KD_JSON_STR)
        return bad(q, "text.format", "no type");
    kd_buf_str(out, ",\"response_format\":{\"type\":");
    quote(out, type);
    if (kd_jnode_is(type, "json_schema")) {
        kd_buf_str(out, ",\"json_schema\":{");
        for (int i = 0; i < 4; i++) {
            const struct kd_jnode *v = get(q, f, keys[i]);
            if (!v)
                continue;
            kd_buf_printf(out, "%s\"%s\":", any ? "," : "", keys[i]);
            dump(out, q->t, v);
            any = true;
        }
        kd_buf_char(out, '}');
    }
    kd_buf_char(out, '}');
    return 0;
}

static void copy(struct convert *q, struct kd_buf *out, const struct kd_jnode *from,
                 const char *key, const char *as)
{
    const struct kd_jnode *v = get(q, from, key);
    if (!v)
        return;
    kd_buf_printf(out, ",\"%s\":", as);
    dump(out, q->t, v);
}

static int put_rest(struct convert *q, struct kd_buf *out, const struct kd_jnode *root)
{
    const struct kd_jnode *reasoning = get(q, root, "reasoning");

    if (reasoning && reasoning->kind != KD_JSON_OBJECT)
        return bad(q, "reasoning", "not an object");
    if (put_tools(q, out, root) || put_format(q, out, root))
        return -1;
    copy(q, out, root, "model", "model");
    copy(q, out, root, "max_output_tokens", "max_completion_tokens");
    copy(q, out, root, "temperature", "temperature");
    copy(q, out, root, "top_p", "top_p");
    copy(q, out, root, "top_k", "top_k");
    copy(q, out, root, "min_p", "min_p");
    copy(q, out, root, "seed", "seed");
    copy(q, out, root, "stop", "stop");
    copy(q, out, root, "stream", "stream");
    copy(q, out, root, "parallel_tool_calls", "parallel_tool_calls");
    copy(q, out, root, "chat_template_kwargs", "chat_template_kwargs");
    copy(q, out, reasoning, "effort", "reasoning_effort");
    return 0;
}

/* The reply. */

enum item { I_NONE, I_REASONING, I_MESSAGE, I_CALL };

struct reply {
    struct kd_flow flow;
    struct kd_api *api;
    struct kd_buf *out;
    struct kd_buf echo;    /* fields of the request that the response repeats, ",..." */
    struct kd_buf history; /* conversation with this turn's input, as messages */
    struct kd_buf items;   /* finished output items, with commas between */
    bool begun, store;
    enum item open;
    int64_t index, sequence, created;
    size_t item_text; /* where the open item's text begins in the choice's buffer */
    int64_t items_made;
    char id[40], item[48], owner[65];
};

static void event(struct reply *p, const char *type)
{
    kd_buf_printf(p->out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%" PRId64, type,
                  type, p->sequence++);
}

static void end_event(struct reply *p)
{
    kd_buf_str(p->out, "}\n\n");
}

static void place(struct reply *p, bool part)
{
    kd_buf_printf(p->out, ",\"item_id\":\"%s\",\"output_index\":%" PRId64, p->item, p->index);
    if (part)
        kd_buf_str(p->out, ",\"content_index\":0");
}

static void put_usage(struct kd_buf *out, struct reply *p)
{
    const struct kd_usage *u = kd_flow_usage(&p->flow);
    kd_buf_printf(
        out,
        "{\"input_tokens\":%" PRId64 ",\"input_tokens_details\":{\"cached_tokens\":%" PRId64
        "},\"output_tokens\":%" PRId64 ",\"output_tokens_details\":{\"reasoning_tokens\":%" PRId64
        "},\"total_tokens\":%" PRId64 "}",
        u->prompt_tokens, u->cached_tokens, u->made_tokens, kd_flow_reasoning(&p->flow),
        u->prompt_tokens + u->made_tokens);
}

/* status: in_progress, completed, incomplete, failed. */
static void put_response(struct kd_buf *out, struct reply *p, const char *status,
                         const struct kd_bad *why)
{
    bool done = strcmp(status, "in_progress") != 0;
    kd_buf_printf(out,
                  "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%" PRId64
                  ",\"status\":\"%s\",\"background\":false,\"model\":",
                  p->id, p->created, status);
    kd_json_quote(out, p->api->o.model_id, strlen(p->api->o.model_id));
    kd_buf_str(out, ",\"output\":[");
    kd_buf_add(out, p->items.data ? p->items.data : "", done ? p->items.size_bytes : 0);
    kd_buf_str(out, "],\"error\":");
    if (why) {
        kd_buf_str(out, "{\"code\":\"server_error\",\"message\":");
        kd_json_quote(out, why->message, strlen(why->message));
        kd_buf_char(out, '}');
    } else {
        kd_buf_str(out, "null");
    }
    kd_buf_printf(out, ",\"incomplete_details\":%s",
                  strcmp(status, "incomplete") ? "null" : "{\"reason\":\"max_output_tokens\"}");
    kd_buf_add(out, p->echo.data ? p->echo.data : "", p->echo.size_bytes);
    kd_buf_str(out, ",\"usage\":");
    if (done)
        put_usage(out, p);
    else
        kd_buf_str(out, "null");
    kd_flow_making(&p->flow, out);
    kd_buf_char(out, '}');
}

static void put_item_json(struct kd_buf *out, const struct reply *p, const char *status, bool whole)
{
    const struct kd_choice *c = &p->flow.choice[0];
    const struct kd_buf *b = p->open == I_REASONING ? &c->think : &c->text;
    const char *text = whole && b->data ? b->data + p->item_text : "";
    size_t bytes = whole ? b->size_bytes - p->item_text : 0;
    if (p->open == I_CALL) {
        const struct kd_call *k = c->calls[c->call_count - 1];
        kd_buf_printf(
            out,
            "{\"id\":\"%s\",\"type\":\"function_call\",\"status\":\"%s\",\"call_id\":\"%s\","
            "\"name\":",
            p->item, status, k->id);
        kd_json_quote(out, k->name.data, k->name.size_bytes);
        kd_buf_str(out, ",\"arguments\":");
        kd_json_quote(out, whole ? k->args.data : "", whole ? k->args.size_bytes : 0);
        kd_buf_char(out, '}');
        return;
    }
    if (p->open == I_REASONING)
        kd_buf_printf(out,
                      "{\"id\":\"%s\",\"type\":\"reasoning\",\"status\":\"%s\",\"summary\":[],"
                      "\"encrypted_content\":null,\"content\":[",
                      p->item, status);
    else
        kd_buf_printf(out,
                      "{\"id\":\"%s\",\"type\":\"message\",\"status\":\"%s\",\"role\":"
                      "\"assistant\",\"content\":[",
                      p->item, status);
    if (whole) {
        kd_buf_str(out, p->open == I_REASONING ? "{\"type\":\"reasoning_text\",\"text\":"
                                               : "{\"type\":\"output_text\",\"annotations\":[],"
                                                 "\"logprobs\":[],\"text\":");
        kd_json_quote(out, text, bytes);
        kd_buf_char(out, '}');
    }
    kd_buf_str(out, "]}");
}

static void done_event(struct reply *p, const char *type, const char *key, const char *text,
                       size_t bytes)
{
    event(p, type);
    place(p, p->open != I_CALL);
    kd_buf_printf(p->out, ",\"%s\":", key);
    kd_json_quote(p->out, text, bytes);
    if (p->open == I_MESSAGE)
        kd_buf_str(p->out, ",\"logprobs\":[]");
    end_event(p);
}

static void part_event(struct reply *p, const char *type, const char *text, size_t bytes)
{
    event(p, type);
    place(p, true);
    kd_buf_str(p->out, p->open == I_REASONING ? ",\"part\":{\"type\":\"reasoning_text\",\"text\":"
                                              : ",\"part\":{\"type\":\"output_text\","
                                                "\"annotations\":[],\"logprobs\":[],\"text\":");
    kd_json_quote(p->out, text, bytes);
    kd_buf_char(p->out, '}');
    end_event(p);
}

/* Ends the open item; what is not whole (a call that was cut) is said to be incomplete. */
static void close_item(struct reply *p, bool whole)
{
    const struct kd_choice *c = &p->flow.choice[0];
    const struct kd_buf *b = p->open == I_REASONING ? &c->think : &c->text;
    const char *status = whole ? "completed" : "incomplete";
    if (p->open == I_NONE)
        return;
    if (p->out && p->open == I_CALL && whole) {
        const struct kd_call *k = c->calls[c->call_count - 1];
        done_event(p, "response.function_call_arguments.done", "arguments", k->args.data,
                   k->args.size_bytes);
    } else if (p->out && p->open != I_CALL) {
        const char *text = b->data + p->item_text;
        size_t bytes = b->size_bytes - p->item_text;
        done_event(p,
                   p->open == I_REASONING ? "response.reasoning_text.done"
                                          : "response.output_text.done",
                   "text", text, bytes);
        part_event(p, "response.content_part.done", text, bytes);
    }
    if (p->out) {
        event(p, "response.output_item.done");
        kd_buf_printf(p->out, ",\"output_index\":%" PRId64 ",\"item\":", p->index);
        put_item_json(p->out, p, status, true);
        end_event(p);
    }
    if (whole || p->open != I_CALL) {
        if (p->items.size_bytes)
            kd_buf_char(&p->items, ',');
        put_item_json(&p->items, p, status, true);
    }
    p->index++;
    p->open = I_NONE;
}

static void open_item(struct reply *p, enum item kind)
{
    static const char *const prefix[] = {"", "rs_", "msg_", "fc_"};
    const struct kd_choice *c = &p->flow.choice[0];
    if (p->open == kind && kind != I_CALL)
        return;
    close_item(p, true);
    kd_api_new_id(p->api, prefix[kind], p->item);
    p->open = kind;
    p->item_text = kind == I_REASONING ? c->think.size_bytes : c->text.size_bytes;
    if (!p->out)
        return;
    event(p, "response.output_item.added");
    kd_buf_printf(p->out, ",\"output_index\":%" PRId64 ",\"item\":", p->index);
    put_item_json(p->out, p, "in_progress", false);
    end_event(p);
    if (kind != I_CALL)
        part_event(p, "response.content_part.added", "", 0);
}

static void put_delta(struct reply *p, const char *type, bool part, const char *text, size_t bytes)
{
    if (!p->out)
        return;
    event(p, type);
    place(p, part);
    kd_buf_str(p->out, ",\"delta\":");
    kd_json_quote(p->out, text, bytes);
    if (p->open == I_MESSAGE)
        kd_buf_str(p->out, ",\"logprobs\":[]");
    end_event(p);
}

/* The fragment is already part of the choice's text, so an item that it opens begins before it. */
static void on_part(void *ctx, struct kd_choice *c, enum kd_part part, const struct kd_call *call,
                    const char *text, size_t bytes)
{
    struct reply *p = ctx;
    (void)c;
    (void)call;
    enum item kind = part == KD_PART_THINK  ? I_REASONING
                     : part == KD_PART_TEXT ? I_MESSAGE
                                            : I_CALL;
    if (part == KD_PART_CALL_END) {
        close_item(p, true);
    } else if (part == KD_PART_CALL) {
        open_item(p, I_CALL);
    } else if (kind == I_CALL) {
        put_delta(p, "response.function_call_arguments.delta", false, text, bytes);
    } else {
        bool fresh = p->open != kind;
        open_item(p, kind);
        if (fresh)
            p->item_text -= bytes;
        put_delta(
            p, kind == I_REASONING ? "response.reasoning_text.delta" : "response.output_text.delta",
            true, text, bytes);
    }
}

/* This turn as a message, for the next. */
static void put_turn(struct reply *p)
{
    const struct kd_choice *c = &p->flow.choice[0];
    struct kd_buf *h = &p->history;
    bool any = false;
    kd_buf_str(h, h->size_bytes ? ",{\"role\":\"assistant\",\"reasoning_content\":"
                                : "{\"role\":\"assistant\",\"reasoning_content\":");
    kd_json_quote(h, c->think.data ? c->think.data : "", c->think.size_bytes);
    kd_buf_str(h, ",\"content\":");
    kd_json_quote(h, c->text.data ? c->text.data : "", c->text.size_bytes);
    for (int64_t i = 0; i < c->call_count; i++) {
        const struct kd_call *k = c->calls[i];
        if (!k->complete)
            continue;
        kd_buf_printf(h, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":",
                      any ? "," : ",\"tool_calls\":[", k->id);
        kd_json_quote(h, k->name.data, k->name.size_bytes);
        kd_buf_str(h, ",\"arguments\":");
        kd_json_quote(h, k->args.data, k->args.size_bytes);
        kd_buf_str(h, "}}");
        any = true;
    }
    kd_buf_str(h, any ? "]}" : "}");
}

/* Ends the response: its JSON into body, kept if asked for. */
static void finish(struct reply *p, struct kd_buf *body, const char **status)
{
    const struct kd_choice *c = &p->flow.choice[0];
    bool cut = !strcmp(kd_choice_reason(c), "length");
    close_item(p, p->open != I_CALL);
    *status = cut ? "incomplete" : "completed";
    put_response(body, p, *status, NULL);
    if (p->store) {
        put_turn(p);
        kd_store_put(p->api->store, p->owner, p->id, body, &p->history);
    }
}

static int fail_stream(struct reply *p)
{
    struct kd_bad why;
    kd_flow_fault(&p->flow, &why);
    event(p, "response.failed");
    kd_buf_str(p->out, ",\"response\":");
    put_response(p->out, p, "failed", &why);
    end_event(p);
    return -1;
}

static int next(void *ctx, struct kd_buf *out, double timeout_s)
{
    static const char *const first[] = {"response.created", "response.in_progress"};
    struct reply *p = ctx;
    struct kd_buf body;
    const char *status;
    p->out = out;
    if (!p->begun) {
        p->begun = true;
        for (int i = 0; i < 2; i++) {
            event(p, first[i]);
            kd_buf_str(out, ",\"response\":");
            put_response(out, p, "in_progress", NULL);
            end_event(p);
        }
        return 0;
    }
    int rc = kd_flow_next(&p->flow, timeout_s);
    if (rc < 0 || (rc && p->flow.choice[0].finish == KD_FINISH_CANCEL))
        return fail_stream(p);
    if (!rc)
        return 0;
    kd_buf_init(&body, BYTES_MAX);
    finish(p, &body, &status);
    event(p, strcmp(status, "completed") ? "response.incomplete" : "response.completed");
    kd_buf_str(out, ",\"response\":");
    kd_buf_add(out, body.data, body.size_bytes);
    end_event(p);
    kd_buf_release(&body);
    return 1;
}

static void release(struct reply *p)
{
    kd_buf_release(&p->echo);
    kd_buf_release(&p->history);
    kd_buf_release(&p->items);
    kd_mem_free(p);
}

static void over(void *ctx, struct kd_req *r, bool done)
{
    struct reply *p = ctx;
    (void)done;
    kd_flow_close(&p->flow, r);
    release(p);
}

/* What the response repeats of the request. */
static void put_echo(struct reply *p, const struct kd_jtree *t, bool parallel)
{
    static const struct {
        const char *key, *other;
    } f[] = {{"instructions", "null"},
             {"max_output_tokens", "null"},
             {"metadata", "{}"},
             {"previous_response_id", "null"},
             {"reasoning", "{\"effort\":null,\"summary\":null}"},
             {"temperature", "1.0"},
             {"text", "{\"format\":{\"type\":\"text\"}}"},
             {"tool_choice", "\"auto\""},
             {"tools", "[]"},
             {"top_p", "0.95"},
             {"truncation", "\"disabled\""},
             {"user", "null"}};
    struct kd_buf *out = &p->echo;
    kd_buf_printf(out, ",\"parallel_tool_calls\":%s,\"store\":%s", parallel ? "true" : "false",
                  p->store ? "true" : "false");
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) {
        const struct kd_jnode *v = kd_jtree_get(t, kd_jtree_root(t), f[i].key);
        kd_buf_printf(out, ",\"%s\":", f[i].key);
        if (v)
            dump(out, t, v);
        else
            kd_buf_str(out, f[i].other);
    }
}

/* The conversation before and this turn's input into p->history, the whole as a chat request. */
static int convert(struct reply *p, const struct kd_jtree *t, struct kd_buf *out,
                   struct kd_bad *bad_out)
{
    struct convert q = {.t = t, .messages = &p->history, .bad = bad_out};
    const struct kd_jnode *root = kd_jtree_root(t), *store = get(&q, root, "store"),
                          *before = get(&q, root, "previous_response_id"),
                          *text = get(&q, root, "instructions"),
                          *background = get(&q, root, "background");
    p->store = true;
    if (store && store->kind != KD_JSON_BOOL)
        return bad(&q, "store", "not true or false");
    if (store)
        p->store = store->text[0] == 't';
    if (background && background->kind == KD_JSON_BOOL && background->text[0] == 't')
        return bad(&q, "background", "not supported");
    if (before && before->kind != KD_JSON_STR)
        return bad(&q, "previous_response_id", "not a string");
    if (before && !kd_store_get(p->api->store, p->owner, before->text, NULL, &p->history))
        return kd_bad_at(bad_out, 404, "previous_response_not_found", "previous_response_id",
                         "there is no stored response '%.64s'", before->text);
    if (put_input(&q, get(&q, root, "input")))
        return -1;
    if (text && text->kind != KD_JSON_STR)
        return bad(&q, "instructions", "not a string");
    kd_buf_str(out, "{\"messages\":[");
    if (text) {
        kd_buf_str(out, "{\"role\":\"system\",\"content\":");
        quote(out, text);
        kd_buf_str(out, p->history.size_bytes ? "}," : "}");
    }
    kd_buf_add(out, p->history.data ? p->history.data : "", p->history.size_bytes);
    kd_buf_char(out, ']');
    if (put_rest(&q, out, root))
        return -1;
    kd_buf_char(out, '}');
    return out->failed || p->history.failed
               ? kd_bad_at(bad_out, 500, NULL, NULL, "no memory for the request")
               : 0;
}

/* Everything up to the running flow; -1 with what is wrong. */
static int begin(struct reply *p, struct kd_req *r, double *retry_s, struct kd_bad *bad_out)
{
    struct kd_jtree t;
    struct kd_buf text;
    struct kd_ask ask;
    size_t n;
    const char *body = kd_req_body(r, &n);
    if (kd_ask_parse(&t, body, n, bad_out))
        return -1;
    kd_buf_init(&text, KD_ASK_BYTES_MAX);
    int rc = convert(p, &t, &text, bad_out);
    if (!rc) {
        rc = kd_ask_chat(&ask, p->api, p->owner, text.data, text.size_bytes, bad_out);
        if (rc)
            kd_ask_release(&ask);
    }
    if (!rc)
        put_echo(p, &t, ask.parallel);
    if (!rc)
        rc = kd_flow_open(&p->flow, p->api, &ask, p->owner, retry_s, bad_out);
    kd_buf_release(&text);
    kd_jtree_release(&t);
    return rc;
}

static void send_whole(struct reply *p, struct kd_req *r)
{
    struct kd_bad why;
    struct kd_buf body;
    const char *status;
    int rc = kd_flow_wait(&p->flow, r);
    if (rc || p->flow.choice[0].finish == KD_FINISH_CANCEL) {
        kd_flow_fault(&p->flow, &why);
        kd_flow_refuse(r, 1, &why);
        return;
    }
    kd_buf_init(&body, BYTES_MAX);
    finish(p, &body, &status);
    if (body.failed)
        kd_req_fail(r, &(struct kd_fault){.status = 500, .message = "no memory for the answer"});
    else
        kd_req_reply(r, 200, "application/json", body.data, body.size_bytes);
    kd_buf_release(&body);
}

void kd_api_responses(void *ctx, struct kd_req *r)
{
    struct kd_api *api = ctx;
    struct kd_bad why;
    struct reply *p;
    double retry_s = 0;
    if (!kd_api_engine(api, r))
        return;
    if (kd_mem_zero(&p, 1, sizeof *p, "reply", NULL)) {
        kd_req_fail(r, &(struct kd_fault){.status = 500, .message = "no memory for a reply"});
        return;
    }
    p->api = api;
    p->created = kd_api_now();
    snprintf(p->owner, sizeof p->owner, "%s", kd_api_owner(api, r));
    kd_api_new_id(api, "resp_", p->id);
    kd_buf_init(&p->echo, BYTES_MAX);
    kd_buf_init(&p->history, BYTES_MAX);
    kd_buf_init(&p->items, BYTES_MAX);
    if (begin(p, r, &retry_s, &why)) {
        release(p);
        kd_flow_refuse(r, retry_s, &why);
        return;
    }
    p->flow.sink = (struct kd_sink){p, on_part, NULL};
    if (p->flow.ask.stream) {
        kd_req_stream(
            r, "text/event-stream; charset=utf-8",
            &(struct kd_stream){
                .ctx = p, .next = next, .end = over, .idle = ": keep-alive\n\n", .idle_s = 5});
        return;
    }
    send_whole(p, r);
    over(p, r, true);
}

static void missing(struct kd_req *r)
{
    kd_req_fail(r, &(struct kd_fault){.status = 404,
                                      .code = "response_not_found",
                                      .message = "there is no stored response of this id"});
}

void kd_api_response_get(void *ctx, struct kd_req *r)
{
    struct kd_api *api = ctx;
    struct kd_buf body;
    kd_buf_init(&body, BYTES_MAX);
    if (!kd_store_get(api->store, kd_api_owner(api, r), kd_req_rest(r), &body, NULL))
        missing(r);
    else
        kd_req_reply(r, 200, "application/json", body.data, body.size_bytes);
    kd_buf_release(&body);
}

void kd_api_response_delete(void *ctx, struct kd_req *r)
{
    struct kd_api *api = ctx;
    struct kd_buf body;
    if (!kd_store_remove(api->store, kd_api_owner(api, r), kd_req_rest(r))) {
        missing(r);
        return;
    }
    kd_buf_init(&body, 1024);
    kd_buf_str(&body, "{\"id\":");
    kd_json_quote(&body, kd_req_rest(r), strlen(kd_req_rest(r)));
    kd_buf_str(&body, ",\"object\":\"response\",\"deleted\":true}");
    kd_req_reply(r, 200, "application/json", body.data, body.size_bytes);
    kd_buf_release(&body);
}
