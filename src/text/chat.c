#include "text/chat.h"

#include "base/mem.h"
#include "text/jtree.h"
#include "text/render.h"
#include "text/uclass.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CHAT_BYTES_MAX = 512 << 20 };

static const char tools_head[] =
    "# Tools\nHere are the available tools, described in JSONSchema.\n\n";
static const char more_tools_head[] =
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n";
static const char effort_head[] =
    "`thinking_effort` guides on how much to think in your thinking channel (not including "
    "the response channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort=";
static const char must_call[] = "The system is invoked with `tool_choice=required`.\n"
                                "You MUST call tools in the next message.";
static const char must_not_call[] = "The system is invoked with `tool_choice=none`.\n"
                                    "You MUST NOT call any tools in the next message.";
static const char raw_json[] =
    "Your response must be raw JSON data without markdown code blocks (```json) or any "
    "additional formatting.";

struct render {
    struct kd_chat *c;
    const struct kd_jtree *t;
    const struct kd_jnode *root, *calls; /* calls: tool_calls of the assistant message before */
    int64_t message;                     /* the one at hand */
    bool thinking;
    struct kd_err *err;
};

/* Segments: failures collect in the text's kd_buf. */
static void end_segment(struct kd_chat *c, size_t begin, bool markup)
{
    if (c->text.failed || c->text.size_bytes == begin)
        return;
    if (c->count == c->cap) {
        int64_t cap = c->cap ? c->cap * 2 : 64;
        struct kd_segment *seg;
        if (kd_mem_new(&seg, cap, sizeof *seg, "chat segments", NULL)) {
            c->text.failed = true;
            return;
        }
        if (c->count)
            memcpy(seg, c->seg, (size_t)c->count * sizeof *seg);
        kd_mem_free(c->seg);
        c->seg = seg;
        c->cap = cap;
    }
    c->seg[c->count++] = (struct kd_segment){begin, c->text.size_bytes - begin, markup};
}

static void put(struct kd_chat *c, bool markup, const char *s, size_t bytes)
{
    size_t begin = c->text.size_bytes;
    kd_buf_add(&c->text, s, bytes);
    end_segment(c, begin, markup);
}

static void mark(struct kd_chat *c, const char *s)
{
    put(c, true, s, strlen(s));
}

static void text(struct kd_chat *c, const char *s)
{
    put(c, false, s, strlen(s));
}

/* An opening tag is open(), attr()..., mark(SEP); an attribute is four segments. */
static void open_tag(struct kd_chat *c, const char *tag)
{
    mark(c, "<|open|>");
    text(c, tag);
}

static void attr(struct kd_chat *c, const char *key, const char *value, size_t bytes)
{
    size_t begin = c->text.size_bytes;
    kd_buf_char(&c->text, ' ');
    kd_buf_str(&c->text, key);
    end_segment(c, begin, false);
    text(c, "=\"");
    begin = c->text.size_bytes;
    for (size_t i = 0; i < bytes; i++) {
        if (value[i] == '&')
            kd_buf_str(&c->text, "&amp;");
        else if (value[i] == '"')
            kd_buf_str(&c->text, "&quot;");
        else
            kd_buf_char(&c->text, value[i]);
    }
    end_segment(c, begin, false);
    text(c, "\"");
}

static void attr_str(struct kd_chat *c, const char *key, const char *value)
{
    attr(c, key, value, strlen(value));
}

static void attr_int(struct kd_chat *c, const char *key, int64_t value)
{
    char s[32];
    snprintf(s, sizeof s, "%" PRId64, value);
    attr_str(c, key, s);
}

static void end_open(struct kd_chat *c)
{
    mark(c, "<|sep|>");
}

static void close_tag(struct kd_chat *c, const char *tag)
{
    mark(c, "<|close|>");
    text(c, tag);
    mark(c, "<|sep|>");
}

static void end_message(struct kd_chat *c)
{
    close_tag(c, "message");
    mark(c, "<|end_of_msg|>");
}

static void open_message(struct kd_chat *c, const char *role)
{
    open_tag(c, "message");
    attr_str(c, "role", role);
}

/* A system message with a type; its body is what the caller adds to the text before end_note(). */
static size_t open_note(struct kd_chat *c, const char *type)
{
    open_message(c, "system");
    attr_str(c, "type", type);
    end_open(c);
    return c->text.size_bytes;
}

static void end_note(struct kd_chat *c, size_t begin)
{
    end_segment(c, begin, false);
    end_message(c);
}

/* A request's option: at the top, or in the objects that servers put template options into. */
static const struct kd_jnode *option(const struct render *r, const char *key)
{
    static const char *const groups[] = {"kwargs", "chat_template_kwargs"};
    const struct kd_jnode *v = kd_jtree_get(r->t, r->root, key);
    for (int i = 0; i < 2 && !v; i++)
        v = kd_jtree_get(r->t, kd_jtree_get(r->t, r->root, groups[i]), key);
    return v;
}

static int flag(const struct render *r, const char *key, bool *out)
{
    const struct kd_jnode *v = option(r, key);
    if (v && v->kind != KD_JSON_BOOL)
        return kd_fail(r->err, KD_EINVAL, "'%s' is not true or false", key);
    if (v)
        *out = v->text[0] == 't';
    return 0;
}

static int put_tools(struct render *r, const struct kd_jnode *tools, const char *head)
{
    size_t begin = open_note(r->c, "tool-declare");
    kd_buf_str(&r->c->text, head);
    kd_buf_str(&r->c->text, "```json\n[");
    const struct kd_jnode *first = kd_jtree_first(r->t, tools);
    for (const struct kd_jnode *tool = first; tool; tool = kd_jtree_next(r->t, tool)) {
        if (tool->kind != KD_JSON_OBJECT)
            return kd_fail(r->err, KD_EINVAL, "'tools' has an item that is not an object");
        if (tool != first)
            kd_buf_char(&r->c->text, ',');
        if (kd_jtree_dump_tool(&r->c->text, r->t, tool, r->err))
            return -1;
    }
    kd_buf_str(&r->c->text, "]\n```");
    end_note(r->c, begin);
    return 0;
}

/* The array in *out, or NULL when it is absent or empty. */
static int list(const struct render *r, const struct kd_jnode *v, const char *what,
                const struct kd_jnode **out)
{
    *out = v && v->count ? v : NULL;
    if (v && v->kind != KD_JSON_ARRAY)
        return kd_fail(r->err, KD_EINVAL, "%s is not a list", what);
    return 0;
}

static int put_part(struct render *r, const struct kd_jnode *part)
{
    const struct kd_jnode *type = kd_jtree_get(r->t, part, "type"),
                          *s = kd_jtree_get(r->t, part, "text");
    if (part->kind == KD_JSON_STR)
        s = part;
    else if (kd_jnode_is(type, "image") || kd_jnode_is(type, "image_url")) {
        mark(r->c, "<|kimi_image_placeholder|>");
        return 0;
    } else if (type && !kd_jnode_is(type, "text"))
        return kd_fail(r->err, KD_ENOTSUP, "a content part of type '%.40s' is not supported",
                       type->kind == KD_JSON_STR ? type->text : "?");
    if (!s || s->kind != KD_JSON_STR)
        return kd_fail(r->err, KD_EINVAL, "a content part is neither text nor an image");
    put(r->c, false, s->text, s->bytes);
    return 0;
}

static int put_content(struct render *r, const struct kd_jnode *content)
{
    if (!content)
        return 0;
    if (content->kind != KD_JSON_STR && content->kind != KD_JSON_ARRAY)
        return kd_fail(r->err, KD_EINVAL, "'content' is neither text nor a list of parts");
    if (content->kind == KD_JSON_STR)
        return put_part(r, content);
    for (const struct kd_jnode *p = kd_jtree_first(r->t, content); p; p = kd_jtree_next(r->t, p))
        if (put_part(r, p))
            return -1;
    return 0;
}

static bool is_blank(const struct kd_jnode *s)
{
    for (size_t at = 0, n; at < s->bytes; at += n) {
        uint32_t cp;
        n = kd_utf8_char((const unsigned char *)s->text + at, s->bytes - at, &cp);
        if (!n || !kd_utf8_is_space(cp))
            return false;
    }
    return true;
}

static const char *type_name(const struct kd_jnode *v)
{
    static const char *const names[] = {"null",   "boolean", "number", "number",
                                        "string", "array",   "object"};
    return names[v->kind];
}

static int put_arguments(struct render *r, const struct kd_jtree *t, const struct kd_jnode *args)
{
    struct kd_chat *c = r->c;
    if (args->kind == KD_JSON_NULL)
        return 0;
    if (args->kind != KD_JSON_OBJECT)
        return kd_fail(r->err, KD_EINVAL, "the arguments of a tool call are not an object");
    for (const struct kd_jnode *v = kd_jtree_first(t, args); v; v = kd_jtree_next(t, v)) {
        open_tag(c, "argument");
        attr(c, "key", v->key, v->key_bytes);
        attr_str(c, "type", type_name(v));
        end_open(c);
        size_t begin = c->text.size_bytes;
        if (v->kind == KD_JSON_STR)
            kd_buf_add(&c->text, v->text, v->bytes);
        else if (kd_jtree_dump(&c->text, t, v, KD_JSTYLE_SPACED, r->err))
            return -1;
        end_segment(c, begin, false);
        close_tag(c, "argument");
    }
    return 0;
}

static int put_call(struct render *r, const struct kd_jnode *call, int64_t index)
{
    struct kd_chat *c = r->c;
    const struct kd_jnode *f = kd_jtree_get(r->t, call, "function"),
                          *args = kd_jtree_get(r->t, f, "arguments");
    const struct kd_jnode *name = kd_jtree_get(r->t, f, "name");
    struct kd_jtree parsed;
    int rc = 0;
    if (!name || name->kind != KD_JSON_STR)
        return kd_fail(r->err, KD_EINVAL, "a tool call has no function name");
    open_tag(c, "call");
    attr(c, "tool", name->text, name->bytes);
    attr_int(c, "index", index);
    end_open(c);
    if (args && args->kind != KD_JSON_STR) {
        rc = put_arguments(r, r->t, args);
    } else if (args && !is_blank(args)) {
        struct kd_err why = {.code = KD_OK};
        if (!kd_jtree_parse(&parsed, args->text, args->bytes, &why)) {
            rc = put_arguments(r, &parsed, kd_jtree_root(&parsed));
            kd_jtree_release(&parsed);
        } else if (why.code == KD_ECORRUPT) {
            open_tag(c, "json");
            attr_str(c, "type", "object");
            end_open(c);
            put(c, false, args->text, args->bytes);
            close_tag(c, "json");
        } else {
            rc = kd_fail(r->err, why.code, "arguments of a tool call: %s", why.msg);
        }
    }
    close_tag(c, "call");
    return rc;
}

/* What follows from segment `first` on is an assistant's turn. */
static void note_turn(struct render *r, int64_t first)
{
    struct kd_chat *c = r->c;
    if (c->turns == c->turn_cap) {
        struct kd_chat_turn *more;
        int64_t cap = c->turn_cap ? 2 * c->turn_cap : 16;
        if (kd_mem_new(&more, cap, sizeof *more, "chat turns", NULL)) {
            c->text.failed = true;
            return;
        }
        if (c->turns)
            memcpy(more, c->turn, (size_t)c->turns * sizeof *more);
        kd_mem_free(c->turn);
        c->turn = more;
        c->turn_cap = cap;
    }
    c->turn[c->turns++] =
        (struct kd_chat_turn){.message = r->message, .first = first, .count = c->count - first};
}

static int put_assistant(struct render *r, const struct kd_jnode *m)
{
    struct kd_chat *c = r->c;
    const struct kd_jnode *why = kd_jtree_get(r->t, m, "reasoning_content");
    int64_t index = 0, first = 0;
    if (list(r, kd_jtree_get(r->t, m, "tool_calls"), "'tool_calls'", &r->calls))
        return -1;
    end_open(c);
    if (!why || (why->kind == KD_JSON_STR && !why->bytes))
        why = kd_jtree_get(r->t, m, "reasoning");
    if (why && why->kind != KD_JSON_STR)
        return kd_fail(r->err, KD_EINVAL, "'reasoning_content' is not text");
    if (r->thinking) {
        open_tag(c, "think");
        end_open(c);
        first = c->count;
        if (why && !is_blank(why))
            put(c, false, why->text, why->bytes);
        close_tag(c, "think");
    }
    open_tag(c, "response");
    end_open(c);
    first = r->thinking ? first : c->count;
    if (put_content(r, kd_jtree_get(r->t, m, "content")))
        return -1;
    close_tag(c, "response");
    if (r->calls) {
        open_tag(c, "tools");
        end_open(c);
        for (const struct kd_jnode *call = kd_jtree_first(r->t, r->calls); call;
             call = kd_jtree_next(r->t, call))
            if (put_call(r, call, ++index))
                return -1;
        close_tag(c, "tools");
    }
    end_message(c);
    note_turn(r, first);
    return 0;
}

/* Results of a run of tool messages, and calls by their ids. */
struct result {
    const struct kd_jnode *message, *id;
    int64_t place; /* of the call, or of the message in the run while no call is known */
};

static int compare_ids(const struct kd_jnode *a, const struct kd_jnode *b)
{
    if (!a || !b)
        return (a != NULL) - (b != NULL);
    size_t n = a->bytes < b->bytes ? a->bytes : b->bytes;
    int c = memcmp(a->text, b->text, n);
    return c ? c : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int by_id(const void *pa, const void *pb)
{
    const struct result *a = pa, *b = pb;
    int c = compare_ids(a->id, b->id);
    return c ? c : (a->place > b->place) - (a->place < b->place);
}

/* By place; equal places keep the order of the messages, which lie in one array. */
static int by_place(const void *pa, const void *pb)
{
    const struct result *a = pa, *b = pb;
    int c = (a->place > b->place) - (a->place < b->place);
    return c ? c : (a->message > b->message) - (a->message < b->message);
}

/* The last of the calls with this id, or NULL. */
static const struct result *find_call(const struct result *calls, int64_t count,
                                      const struct kd_jnode *id)
{
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t mid = (low + high) / 2;
        if (compare_ids(calls[mid].id, id) <= 0)
            low = mid + 1;
        else
            high = mid;
    }
    return id && low && !compare_ids(calls[low - 1].id, id) ? &calls[low - 1] : NULL;
}

/* A member that is text, or NULL. */
static const struct kd_jnode *text_of(const struct render *r, const struct kd_jnode *n,
                                      const char *key)
{
    const struct kd_jnode *id = kd_jtree_get(r->t, n, key);
    return id && id->kind == KD_JSON_STR ? id : NULL;
}

/* by_ids: the calls sorted by id; calls: as the assistant made them. */
static int put_results(struct render *r, struct result *run, int64_t count,
                       const struct result *by_ids, const struct result *calls, int64_t call_count)
{
    bool all = true;
    for (int64_t i = 0; i < count; i++) {
        const struct result *call = find_call(by_ids, call_count, run[i].id);
        all = all && call;
        run[i].place = call ? call->place : i;
    }
    if (all)
        qsort(run, (size_t)count, sizeof *run, by_place);
    for (int64_t i = 0; i < count; i++) {
        const struct kd_jnode *name = NULL;
        if (run[i].place < call_count)
            name = text_of(r, kd_jtree_get(r->t, calls[run[i].place].message, "function"), "name");
        name = name ? name : text_of(r, run[i].message, "tool");
        name = name ? name : text_of(r, run[i].message, "name");
        open_message(r->c, "tool");
        attr(r->c, "tool", name ? name->text : "", name ? name->bytes : 0);
        attr_int(r->c, "index", i + 1);
        end_open(r->c);
        if (put_content(r, kd_jtree_get(r->t, run[i].message, "content")))
            return -1;
        end_message(r->c);
    }
    return 0;
}

/* A run of tool messages from *m on; *m becomes the message after it. */
static int put_tool_run(struct render *r, const struct kd_jnode **m)
{
    int64_t calls = r->calls ? r->calls->count : 0, count = 0, n = 0;
    const struct kd_jnode *k;
    struct result *v;
    for (k = *m; k && kd_jnode_is(kd_jtree_get(r->t, k, "role"), "tool");
         k = kd_jtree_next(r->t, k))
        count++;
    if (kd_mem_new(&v, 2 * calls + count, sizeof *v, "tool results", r->err))
        return -1;
    for (k = kd_jtree_first(r->t, r->calls); k; k = kd_jtree_next(r->t, k), n++)
        v[n] = v[calls + n] = (struct result){k, text_of(r, k, "id"), n};
    qsort(v, (size_t)calls, sizeof *v, by_id);
    struct result *run = v + 2 * calls;
    for (k = *m, n = 0; n < count; k = kd_jtree_next(r->t, k), n++)
        run[n] = (struct result){k, text_of(r, k, "tool_call_id"), 0};
    *m = k;
    int rc = put_results(r, run, count, v, v + calls, calls);
    kd_mem_free(v);
    return rc;
}

static int put_message(struct render *r, const struct kd_jnode *m)
{
    const struct kd_jnode *role = kd_jtree_get(r->t, m, "role"),
                          *name = kd_jtree_get(r->t, m, "name"), *tools;
    bool system = kd_jnode_is(role, "system") || kd_jnode_is(role, "developer");
    bool assistant = kd_jnode_is(role, "assistant");
    if (!system && !assistant && !kd_jnode_is(role, "user"))
        return kd_fail(r->err, KD_EINVAL, "'role' is %s%.40s", role ? "unknown: " : "missing",
                       role && role->kind == KD_JSON_STR ? role->text : "");
    if (name && name->kind != KD_JSON_STR)
        return kd_fail(r->err, KD_EINVAL, "'name' is not text");
    if (list(r, system ? kd_jtree_get(r->t, m, "tools") : NULL, "'tools'", &tools))
        return -1;
    if (tools)
        return put_tools(r, tools, more_tools_head);
    open_message(r->c, system ? "system" : assistant ? "assistant" : "user");
    if (name && name->bytes)
        attr(r->c, "name", name->text, name->bytes);
    if (assistant)
        return put_assistant(r, m);
    end_open(r->c);
    if (put_content(r, kd_jtree_get(r->t, m, "content")))
        return -1;
    end_message(r->c);
    return 0;
}

static int put_messages(struct render *r)
{
    const struct kd_jnode *messages = kd_jtree_get(r->t, r->root, "messages"), *m;
    if (!messages || messages->kind != KD_JSON_ARRAY || !messages->count)
        return kd_fail(r->err, KD_EINVAL, "'messages' is missing, not a list, or empty");
    for (m = kd_jtree_first(r->t, messages); m;) {
        const struct kd_jnode *from = m;
        bool tool = kd_jnode_is(kd_jtree_get(r->t, m, "role"), "tool");
        if (tool ? put_tool_run(r, &m) : put_message(r, m))
            return kd_wrap(r->err, "message %" PRId64, r->message + 1);
        m = tool ? m : kd_jtree_next(r->t, m);
        for (; from != m; from = kd_jtree_next(r->t, from))
            r->message++;
    }
    return 0;
}

/* Thinking and its effort. "thinking_effort" is the template's word and rendered as given;
 * "reasoning_effort" is the API's, whose levels map to it (serving, decision 4). */
static int read_effort(struct render *r, const char **effort)
{
    static const char *const names[][3] = {{"none", NULL, NULL},     {"minimal", "low", "low"},
                                           {"low", "low", "low"},    {"medium", "medium", "high"},
                                           {"high", "high", "high"}, {"xhigh", "max", "max"},
                                           {"max", "max", "max"}};
    const struct kd_jnode *v = option(r, "thinking_effort");
    int column = v ? 1 : 2;
    *effort = NULL;
    r->thinking = true;
    if (flag(r, "enable_thinking", &r->thinking) || flag(r, "thinking", &r->thinking))
        return -1;
    if (!v && !(v = option(r, "reasoning_effort")))
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (kd_jnode_is(v, names[i][0])) {
            *effort = names[i][column];
            r->thinking = r->thinking && i;
            return 0;
        }
    return kd_fail(r->err, KD_EINVAL,
                   "the thinking effort '%.40s' is not none, low, medium, high or max",
                   v->kind == KD_JSON_STR ? v->text : "?");
}

static int put_tool_choice(struct render *r)
{
    const struct kd_jnode *v = option(r, "tool_choice");
    bool named = v && v->kind == KD_JSON_OBJECT &&
                 kd_jtree_get(r->t, kd_jtree_get(r->t, v, "function"), "name");
    bool required = named || kd_jnode_is(v, "required"), none = kd_jnode_is(v, "none");
    if (v && !required && !none && !kd_jnode_is(v, "auto"))
        return kd_fail(r->err, KD_EINVAL,
                       "'tool_choice' is not auto, none, required or a function");
    if (required || none) {
        size_t begin = open_note(r->c, "tool-choice");
        kd_buf_str(&r->c->text, required ? must_call : must_not_call);
        end_note(r->c, begin);
    }
    return 0;
}

static int put_response_format(struct render *r)
{
    const struct kd_jnode *v = option(r, "response_format"), *type = kd_jtree_get(r->t, v, "type");
    bool schema = kd_jnode_is(type, "json_schema");
    struct kd_buf *out = &r->c->text;
    if (!v || kd_jnode_is(type, "text"))
        return 0;
    if (!schema && !kd_jnode_is(type, "json_object"))
        return kd_fail(r->err, KD_EINVAL,
                       "'response_format' is not text, json_object or json_schema");
    size_t begin = open_note(r->c, "response-format");
    kd_buf_printf(out, "The system is invoked with `response_format=%s`.\n", type->text);
    kd_buf_str(out, raw_json);
    if (schema) {
        const struct kd_jnode *body = kd_jtree_get(r->t, v, "json_schema"),
                              *inner = kd_jtree_get(r->t, body, "schema");
        if (!body || body->kind != KD_JSON_OBJECT)
            return kd_fail(r->err, KD_EINVAL, "'response_format' has no json_schema");
        kd_buf_str(out, "\nThe JSON data must match the following schema:\n```json\n");
        if (kd_jtree_dump(out, r->t, inner ? inner : body, KD_JSTYLE_SORTED, r->err))
            return -1;
        kd_buf_str(out, "\n```");
    }
    end_note(r->c, begin);
    return 0;
}

static int render(struct render *r, bool generate)
{
    const struct kd_jnode *tools;
    const char *effort;
    if (r->root->kind != KD_JSON_OBJECT)
        return kd_fail(r->err, KD_EINVAL, "a chat request is a JSON object");
    if (list(r, kd_jtree_get(r->t, r->root, "tools"), "'tools'", &tools) ||
        read_effort(r, &effort) || flag(r, "add_generation_prompt", &generate))
        return -1;
    if (tools && put_tools(r, tools, tools_head))
        return -1;
    if (r->thinking && effort) {
        size_t begin = open_note(r->c, "thinking-effort");
        kd_buf_printf(&r->c->text, "%s%s`.", effort_head, effort);
        end_note(r->c, begin);
    }
    if (put_messages(r) || put_tool_choice(r) || put_response_format(r))
        return -1;
    if (generate) {
        open_message(r->c, "assistant");
        end_open(r->c);
        open_tag(r->c, r->thinking ? "think" : "response");
        end_open(r->c);
    }
    return kd_buf_ok(&r->c->text, "chat prompt", r->err);
}

int kd_chat_render_tree(struct kd_chat *c, const struct kd_jtree *request, bool generate,
                        struct kd_err *err)
{
    struct render r = {.c = c, .t = request, .root = kd_jtree_root(request), .err = err};
    memset(c, 0, sizeof *c);
    kd_buf_init(&c->text, CHAT_BYTES_MAX);
    if (render(&r, generate)) {
        kd_chat_release(c);
        return -1;
    }
    return 0;
}

int kd_chat_render(struct kd_chat *c, const char *request_json, size_t bytes, struct kd_err *err)
{
    struct kd_jtree t;
    memset(c, 0, sizeof *c);
    if (kd_jtree_parse(&t, request_json, bytes, err))
        return kd_wrap(err, "chat request");
    int rc = kd_chat_render_tree(c, &t, true, err);
    kd_jtree_release(&t);
    return rc;
}

void kd_chat_release(struct kd_chat *c)
{
    kd_buf_release(&c->text);
    kd_mem_free(c->seg);
    kd_mem_free(c->turn);
    memset(c, 0, sizeof *c);
}
