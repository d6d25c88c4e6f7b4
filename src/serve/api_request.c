#include "serve/api_request.h"

#include "base/mem.h"
#include "serve/api_echo.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

int kd_bad_at(struct kd_bad *b, int status, const char *code, const char *param, const char *fmt,
              ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(b->message, sizeof b->message, fmt, ap);
    va_end(ap);
    snprintf(b->param, sizeof b->param, "%s", param ? param : "");
    b->f = (struct kd_fault){
        .status = status, .code = code, .param = param ? b->param : NULL, .message = b->message};
    return -1;
}

void kd_bad_reply(struct kd_req *r, const struct kd_bad *b)
{
    kd_req_fail(r, &b->f);
}

#define bad_value(b, param, ...) kd_bad_at(b, 400, NULL, param, __VA_ARGS__)

/* Parsing in progress. */
struct asking {
    struct kd_ask *a;
    struct kd_api *api;
    const char *owner;
    const struct kd_jtree *t;
    const struct kd_jnode *root;
    struct kd_bad *bad;
    int64_t tool_cap;
};

static const struct kd_jnode *get(const struct asking *q, const char *key)
{
    return kd_jtree_get(q->t, q->root, key);
}

int kd_ask_parse(struct kd_jtree *t, const char *json, size_t bytes, struct kd_bad *bad)
{
    struct kd_err err;
    if (kd_jtree_parse(t, json, bytes, &err))
        return err.code == KD_ENOMEM ? kd_bad_at(bad, 500, NULL, NULL, "%s", err.msg)
                                     : bad_value(bad, NULL, "the body is %s", err.msg);
    if (kd_jtree_root(t)->kind != KD_JSON_OBJECT)
        return bad_value(bad, NULL, "the body is not a JSON object");
    return 0;
}

int kd_ask_model(const struct kd_api *api, const struct kd_jtree *t, struct kd_bad *bad)
{
    const struct kd_jnode *m = kd_jtree_get(t, kd_jtree_root(t), "model");
    if (!m || api->o.any_model)
        return 0;
    if (m->kind != KD_JSON_STR)
        return bad_value(bad, "model", "'model' is not a string");
    if (!kd_jnode_is(m, api->o.model_id))
        return kd_bad_at(bad, 404, "model_not_found", "model", "the model '%.100s' does not exist",
                         m->text);
    return 0;
}

/* Fields of one kind each. *out keeps its value when the field is absent or null. */
static int get_num(struct asking *q, const char *key, double min, double max, bool open_min,
                   double *out)
{
    const struct kd_jnode *v = get(q, key);
    if (!v)
        return 0;
    if (v->kind != KD_JSON_INT && v->kind != KD_JSON_REAL)
        return bad_value(q->bad, key, "'%s' is not a number", key);
    double d = strtod(v->text, NULL);
    if (!isfinite(d) || d > max || (open_min ? d <= min : d < min))
        return bad_value(q->bad, key, "'%s' is %.30s, outside %s%g to %g", key, v->text,
                         open_min ? "more than " : "", min, max);
    *out = d;
    return 0;
}

static bool whole(const struct kd_jnode *v, int64_t *out)
{
    char *end;
    if (v->kind != KD_JSON_INT)
        return false;
    errno = 0;
    long long n = strtoll(v->text, &end, 10);
    if (*end || errno)
        return false;
    *out = n;
    return true;
}

static int get_int(struct asking *q, const char *key, int64_t min, int64_t max, int64_t *out)
{
    const struct kd_jnode *v = get(q, key);
    int64_t n;
    if (!v)
        return 0;
    if (!whole(v, &n))
        return bad_value(q->bad, key, "'%s' is not a whole number of 64 bits", key);
    if (n < min || n > max)
        return bad_value(q->bad, key, "'%s' is %" PRId64 ", outside %" PRId64 " to %" PRId64, key,
                         n, min, max);
    *out = n;
    return 0;
}

static int get_bool(struct asking *q, const char *key, bool *out)
{
    const struct kd_jnode *v = get(q, key);
    if (v && v->kind != KD_JSON_BOOL)
        return bad_value(q->bad, key, "'%s' is not true or false", key);
    if (v)
        *out = v->text[0] == 't';
    return 0;
}

static bool is_true(const struct kd_jnode *v)
{
    return v && v->kind == KD_JSON_BOOL && v->text[0] == 't';
}

/* Messages. */

static int check_parts(struct asking *q, const struct kd_jnode *content, int64_t i)
{
    int64_t j = 0;
    char param[96];
    for (const struct kd_jnode *p = kd_jtree_first(q->t, content); p;
         p = kd_jtree_next(q->t, p), j++) {
        const struct kd_jnode *type = kd_jtree_get(q->t, p, "type"),
                              *text = kd_jtree_get(q->t, p, "text");
        snprintf(param, sizeof param, "messages[%" PRId64 "].content[%" PRId64 "]", i, j);
        if (p->kind == KD_JSON_STR)
            continue;
        if (p->kind != KD_JSON_OBJECT || !type || type->kind != KD_JSON_STR)
            return bad_value(q->bad, param, "a content part is not an object with a type");
        if (!strncmp(type->text, "image", 5) || kd_jnode_is(type, "input_image"))
            return bad_value(q->bad, param, "image input is not supported by this server");
        if (!kd_jnode_is(type, "text"))
            return bad_value(q->bad, param, "content parts of type '%.40s' are not supported",
                             type->text);
        if (!text || text->kind != KD_JSON_STR)
            return bad_value(q->bad, param, "a text part has no text");
    }
    return 0;
}

static int check_call(struct asking *q, const struct kd_jnode *c, int64_t i, int64_t j)
{
    const struct kd_jnode *type = kd_jtree_get(q->t, c, "type"),
                          *f = kd_jtree_get(q->t, c, "function"),
                          *name = kd_jtree_get(q->t, f, "name"),
                          *args = kd_jtree_get(q->t, f, "arguments");
    struct kd_jtree t;
    char param[128];
    snprintf(param, sizeof param, "messages[%" PRId64 "].tool_calls[%" PRId64 "]", i, j);
    if (type && !kd_jnode_is(type, "function"))
        return bad_value(q->bad, param, "the only type of tool call is 'function'");
    if (!name || name->kind != KD_JSON_STR || !name->bytes)
        return bad_value(q->bad, param, "a tool call has no function name");
    if (!args || args->kind == KD_JSON_OBJECT)
        return 0;
    if (args->kind != KD_JSON_STR)
        return bad_value(q->bad, param, "the arguments of a tool call are not an object");
    struct kd_err err;
    if (kd_jtree_parse(&t, args->text, args->bytes, &err))
        return err.code == KD_EINVAL ? bad_value(q->bad, param, "arguments: %s", err.msg) : 0;
    enum kd_json_kind kind = kd_jtree_root(&t)->kind;
    kd_jtree_release(&t);
    if (kind != KD_JSON_OBJECT && kind != KD_JSON_NULL)
        return bad_value(q->bad, param, "the arguments of a tool call are JSON but not an object");
    return 0;
}

static int check_assistant(struct asking *q, const struct kd_jnode *m, int64_t i)
{
    static const char *const names[] = {"reasoning_content", "reasoning"};
    const struct kd_jnode *calls = kd_jtree_get(q->t, m, "tool_calls");
    int64_t j = 0;
    char param[96];
    for (int k = 0; k < 2; k++) {
        const struct kd_jnode *v = kd_jtree_get(q->t, m, names[k]);
        snprintf(param, sizeof param, "messages[%" PRId64 "].%s", i, names[k]);
        if (v && v->kind != KD_JSON_STR)
            return bad_value(q->bad, param, "'%s' is not a string", names[k]);
    }
    snprintf(param, sizeof param, "messages[%" PRId64 "].tool_calls", i);
    if (calls && calls->kind != KD_JSON_ARRAY)
        return bad_value(q->bad, param, "'tool_calls' is not a list");
    for (const struct kd_jnode *c = kd_jtree_first(q->t, calls); c; c = kd_jtree_next(q->t, c))
        if (check_call(q, c, i, j++))
            return -1;
    return 0;
}

static int add_tools(struct asking *q, const struct kd_jnode *list, const char *param);

static int check_message(struct asking *q, const struct kd_jnode *m, int64_t i)
{
    char param[96];
    const struct kd_jnode *role = kd_jtree_get(q->t, m, "role"),
                          *content = kd_jtree_get(q->t, m, "content"),
                          *tools = kd_jtree_get(q->t, m, "tools"),
                          *id = kd_jtree_get(q->t, m, "tool_call_id"),
                          *name = kd_jtree_get(q->t, m, "name");
    snprintf(param, sizeof param, "messages[%" PRId64 "]", i);
    if (m->kind != KD_JSON_OBJECT)
        return bad_value(q->bad, param, "a message is not an object");
    bool system = kd_jnode_is(role, "system") || kd_jnode_is(role, "developer");
    bool assistant = kd_jnode_is(role, "assistant"), tool = kd_jnode_is(role, "tool");
    snprintf(param, sizeof param, "messages[%" PRId64 "].role", i);
    if (!system && !assistant && !tool && !kd_jnode_is(role, "user"))
        return bad_value(q->bad, param,
                         "the role is not system, developer, user, assistant or tool");
    snprintf(param, sizeof param, "messages[%" PRId64 "].name", i);
    if (name && name->kind != KD_JSON_STR)
        return bad_value(q->bad, param, "'name' is not a string");
    snprintf(param, sizeof param, "messages[%" PRId64 "].tools", i);
    if (tools && !system)
        return bad_value(q->bad, param, "only system messages declare tools");
    if (tools && content && content->count + (int64_t)content->bytes)
        return bad_value(q->bad, param, "a system message has both content and tools");
    if (tools && add_tools(q, tools, param))
        return -1;
    snprintf(param, sizeof param, "messages[%" PRId64 "].tool_call_id", i);
    if (tool && (!id || id->kind != KD_JSON_STR || !id->bytes))
        return bad_value(q->bad, param, "a tool message has no tool_call_id");
    snprintf(param, sizeof param, "messages[%" PRId64 "].content", i);
    if (content && content->kind != KD_JSON_STR && content->kind != KD_JSON_ARRAY)
        return bad_value(q->bad, param, "'content' is neither a string nor a list of parts");
    if (!content && !assistant && !tools)
        return bad_value(q->bad, param, "'content' is missing");
    if (content && check_parts(q, content, i))
        return -1;
    return assistant ? check_assistant(q, m, i) : 0;
}

static int check_messages(struct asking *q)
{
    const struct kd_jnode *list = get(q, "messages");
    int64_t i = 0;
    if (!list)
        return bad_value(q->bad, "messages", "'messages' is missing");
    if (list->kind != KD_JSON_ARRAY)
        return bad_value(q->bad, "messages", "'messages' is not a list");
    if (!list->count)
        return bad_value(q->bad, "messages", "'messages' is empty");
    for (const struct kd_jnode *m = kd_jtree_first(q->t, list); m; m = kd_jtree_next(q->t, m))
        if (check_message(q, m, i++))
            return -1;
    return 0;
}

/* Tools. */

static bool name_is_good(const struct kd_jnode *n)
{
    if (!n->bytes || n->bytes > 256 || (n->text[0] >= '0' && n->text[0] <= '9'))
        return false;
    for (size_t i = 0; i < n->bytes; i++) {
        char c = n->text[i];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || (c == '$' && !i); /* $: the vendor's built-in tools */
        if (!ok)
            return false;
    }
    return true;
}

static int add_tool(struct asking *q, const struct kd_jnode *tool, const char *param)
{
    struct kd_ask *a = q->a;
    const struct kd_jnode *type = kd_jtree_get(q->t, tool, "type"),
                          *f = kd_jtree_get(q->t, tool, "function"),
                          *name = kd_jtree_get(q->t, f, "name"),
                          *schema = kd_jtree_get(q->t, f, "parameters"),
                          *strict = kd_jtree_get(q->t, f, "strict");
    if (tool->kind != KD_JSON_OBJECT)
        return bad_value(q->bad, param, "a tool is not an object");
    if (!kd_jnode_is(type, "function"))
        return bad_value(q->bad, param, "a tool's 'type' is missing or not 'function'");
    if (!f || f->kind != KD_JSON_OBJECT)
        return bad_value(q->bad, param, "a tool has no 'function'");
    if (!name || name->kind != KD_JSON_STR)
        return bad_value(q->bad, param, "a tool's function has no 'name'");
    if (!name_is_good(name))
        return bad_value(q->bad, param,
                         "a function name is 1 to 256 letters, digits, '_' or '-' and does not "
                         "begin with a digit");
    if (schema && schema->kind != KD_JSON_OBJECT)
        return bad_value(q->bad, param, "a function's 'parameters' is not an object");
    if (strict && strict->kind != KD_JSON_BOOL)
        return bad_value(q->bad, param, "a function's 'strict' is not true or false");
    if (kd_ask_tool(a, name->text))
        return bad_value(q->bad, param, "the tool '%.100s' is declared twice", name->text);
    if (a->tool_count == KD_ASK_TOOLS_MAX)
        return bad_value(q->bad, param, "more than %d tools", KD_ASK_TOOLS_MAX);
    if (a->tool_count == q->tool_cap) {
        struct kd_tool *more;
        q->tool_cap = q->tool_cap ? 2 * q->tool_cap : 32;
        if (kd_mem_new(&more, q->tool_cap, sizeof *more, "tools", NULL))
            return kd_bad_at(q->bad, 500, NULL, NULL, "no memory for the tools");
        if (a->tool_count)
            memcpy(more, a->tools, (size_t)a->tool_count * sizeof *more);
        kd_mem_free(a->tools);
        a->tools = more;
    }
    a->tools[a->tool_count++] = (struct kd_tool){name->text, schema, is_true(strict)};
    return 0;
}

static int add_tools(struct asking *q, const struct kd_jnode *list, const char *param)
{
    int64_t i = 0;
    char at[128];
    if (list->kind != KD_JSON_ARRAY)
        return bad_value(q->bad, param, "'%s' is not a list", param);
    for (const struct kd_jnode *t = kd_jtree_first(q->t, list); t; t = kd_jtree_next(q->t, t)) {
        snprintf(at, sizeof at, "%s[%" PRId64 "]", param, i++);
        if (add_tool(q, t, at))
            return -1;
    }
    return 0;
}

const struct kd_tool *kd_ask_tool(const struct kd_ask *a, const char *name)
{
    for (int64_t i = 0; i < a->tool_count; i++)
        if (!strcmp(a->tools[i].name, name))
            return &a->tools[i];
    return NULL;
}

static int read_tool_choice(struct asking *q)
{
    const struct kd_jnode *v = get(q, "tool_choice"), *f = kd_jtree_get(q->t, v, "function"),
                          *name = kd_jtree_get(q->t, f, "name");
    struct kd_ask *a = q->a;
    a->parallel = true;
    if (get_bool(q, "parallel_tool_calls", &a->parallel))
        return -1;
    if (!v || kd_jnode_is(v, "auto"))
        return 0;
    if (kd_jnode_is(v, "none")) {
        a->choose = KD_CHOOSE_NONE;
        return 0;
    }
    if (kd_jnode_is(v, "required")) {
        a->choose = KD_CHOOSE_REQUIRED;
        if (!a->tool_count)
            return bad_value(q->bad, "tool_choice",
                             "'tool_choice' is required but there are no "
                             "tools");
        return 0;
    }
    if (v->kind != KD_JSON_OBJECT || !kd_jnode_is(kd_jtree_get(q->t, v, "type"), "function") ||
        !name || name->kind != KD_JSON_STR)
        return bad_value(q->bad, "tool_choice",
                         "'tool_choice' is not auto, none, required or a function");
    if (!kd_ask_tool(a, name->text))
        return bad_value(q->bad, "tool_choice",
                         "'tool_choice' names '%.100s', which is not among "
                         "the tools",
                         name->text);
    a->choose = KD_CHOOSE_NAMED;
    a->chosen = name->text;
    return 0;
}

static int read_format(struct asking *q, const struct kd_jnode **schema)
{
    static const char at[] = "response_format";
    const struct kd_jnode *v = get(q, at), *type = kd_jtree_get(q->t, v, "type"),
                          *body = kd_jtree_get(q->t, v, "json_schema"),
                          *name = kd_jtree_get(q->t, body, "name"),
                          *strict = kd_jtree_get(q->t, body, "strict");
    *schema = kd_jtree_get(q->t, body, "schema");
    if (!v || kd_jnode_is(type, "text"))
        return 0;
    if (v->kind != KD_JSON_OBJECT)
        return bad_value(q->bad, at, "'response_format' is not an object");
    if (kd_jnode_is(type, "json_object")) {
        q->a->answer = KD_ANSWER_OBJECT;
        return 0;
    }
    if (!kd_jnode_is(type, "json_schema"))
        return bad_value(q->bad, "response_format.type",
                         "'response_format.type' is not text, json_object or json_schema");
    if (!body || body->kind != KD_JSON_OBJECT)
        return bad_value(q->bad, "response_format.json_schema", "there is no json_schema");
    if (!name || name->kind != KD_JSON_STR || !name->bytes)
        return bad_value(q->bad, "response_format.json_schema.name", "the schema has no name");
    if (!*schema || (*schema)->kind != KD_JSON_OBJECT)
        return bad_value(q->bad, "response_format.json_schema.schema",
                         "the schema is missing or not an object");
    if (strict && strict->kind != KD_JSON_BOOL)
        return bad_value(q->bad, "response_format.json_schema.strict",
                         "'strict' is not true or false");
    q->a->answer = KD_ANSWER_SCHEMA;
    return 0;
}

/* Thinking: thinking.effort over reasoning_effort over the template's own words over the default.
 */

static int set_effort(struct asking *q, const struct kd_jnode *v, const char *param)
{
    static const char *const names[][2] = {{"none", NULL},   {"disabled", NULL}, {"minimal", "low"},
                                           {"low", "low"},   {"medium", "high"}, {"high", "high"},
                                           {"xhigh", "max"}, {"max", "max"}};
    if (!v)
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (kd_jnode_is(v, names[i][0])) {
            q->a->thinking = names[i][1] != NULL;
            q->a->effort = names[i][1] ? names[i][1] : q->a->effort;
            return 0;
        }
    return bad_value(q->bad, param, "'%s' is not none, minimal, low, medium, high, xhigh or max",
                     param);
}

static int set_thinking(struct asking *q, const struct kd_jnode *v, const char *param)
{
    if (v && v->kind != KD_JSON_BOOL)
        return bad_value(q->bad, param, "'%s' is not true or false", param);
    if (v)
        q->a->thinking = is_true(v);
    return 0;
}

static int read_thinking(struct asking *q)
{
    const struct kd_jnode *k = get(q, "chat_template_kwargs"), *t = get(q, "thinking"),
                          *type = kd_jtree_get(q->t, t, "type");
    q->a->thinking = true;
    q->a->effort = q->api->o.effort ? q->api->o.effort : "max";
    q->a->thinking_budget = -1;
    if (k && k->kind != KD_JSON_OBJECT)
        return bad_value(q->bad, "chat_template_kwargs", "'chat_template_kwargs' is not an object");
    if (set_effort(q, kd_jtree_get(q->t, k, "thinking_effort"),
                   "chat_template_kwargs.thinking_effort") ||
        set_thinking(q, kd_jtree_get(q->t, k, "enable_thinking"),
                     "chat_template_kwargs.enable_thinking") ||
        set_thinking(q, kd_jtree_get(q->t, k, "thinking"), "chat_template_kwargs.thinking") ||
        set_effort(q, get(q, "reasoning_effort"), "reasoning_effort"))
        return -1;
    if (t && t->kind == KD_JSON_BOOL) {
        q->a->thinking = is_true(t);
    } else if (t) {
        if (t->kind != KD_JSON_OBJECT)
            return bad_value(q->bad, "thinking", "'thinking' is not an object");
        if (type && !kd_jnode_is(type, "enabled") && !kd_jnode_is(type, "disabled") &&
            !kd_jnode_is(type, "adaptive"))
            return bad_value(q->bad, "thinking.type",
                             "'thinking.type' is not enabled, disabled or adaptive");
        if (type)
            q->a->thinking = !kd_jnode_is(type, "disabled");
        if (set_effort(q, kd_jtree_get(q->t, t, "effort"), "thinking.effort"))
            return -1;
        if (kd_jnode_is(type, "disabled"))
            q->a->thinking = false;
    }
    return get_int(q, "thinking_budget", 0, INT32_MAX, &q->a->thinking_budget);
}

/* Sampling and limits. */

static int read_bias(struct asking *q)
{
    const struct kd_jnode *v = get(q, "logit_bias");
    struct kd_ask *a = q->a;
    int64_t vocab = kd_tok_vocab(q->api->tok);
    if (!v)
        return 0;
    if (v->kind != KD_JSON_OBJECT || v->count > 65536)
        return bad_value(q->bad, "logit_bias", "'logit_bias' is not an object of ids and numbers");
    if (!v->count)
        return 0;
    if (kd_mem_new(&a->bias, v->count, sizeof *a->bias, "logit bias", NULL))
        return kd_bad_at(q->bad, 500, NULL, NULL, "no memory for logit_bias");
    for (const struct kd_jnode *b = kd_jtree_first(q->t, v); b; b = kd_jtree_next(q->t, b)) {
        char *end;
        long long id = strtoll(b->key, &end, 10);
        double add =
            b->kind == KD_JSON_INT || b->kind == KD_JSON_REAL ? strtod(b->text, NULL) : 1e9;
        if (!b->key_bytes || b->key_bytes > 10 || *end || id < 0 || id >= vocab ||
            b->key[0] < '0' || b->key[0] > '9')
            return bad_value(q->bad, "logit_bias", "'%.40s' is not the id of a token", b->key);
        if (!(add >= -100 && add <= 100))
            return bad_value(q->bad, "logit_bias", "a bias is not a number from -100 to 100");
        a->bias[a->bias_count++] = (struct kd_bias){(int32_t)id, (float)add};
    }
    return 0;
}

static int add_stop(struct asking *q, const struct kd_jnode *v)
{
    struct kd_ask *a = q->a;
    if (v->kind != KD_JSON_STR || !v->bytes)
        return bad_value(q->bad, "stop", "a stop is not a string or is empty");
    if (v->bytes > KD_ENGINE_STOP_BYTES)
        return bad_value(q->bad, "stop", "a stop is longer than %d bytes", KD_ENGINE_STOP_BYTES);
    if (a->stop_count == KD_ASK_STOPS_MAX)
        return bad_value(q->bad, "stop", "more than %d stops", KD_ASK_STOPS_MAX);
    a->stops[a->stop_count] = v->text;
    a->stop_bytes[a->stop_count++] = v->bytes;
    return 0;
}

static int read_stops(struct asking *q)
{
    const struct kd_jnode *v = get(q, "stop");
    if (v && v->kind != KD_JSON_STR && v->kind != KD_JSON_ARRAY)
        return bad_value(q->bad, "stop", "'stop' is neither a string nor a list");
    if (v && v->kind == KD_JSON_STR)
        return v->bytes ? add_stop(q, v) : 0;
    for (v = kd_jtree_first(q->t, v); v; v = kd_jtree_next(q->t, v))
        if (add_stop(q, v))
            return -1;
    return 0;
}

static int read_sampling(struct asking *q)
{
    struct kd_ask *a = q->a;
    struct kd_sampling *s = &a->sampling;
    int64_t seed = 0;
    *s = (struct kd_sampling){.temperature = 1.0, .top_p = 0.95};
    a->repetition = 1;
    a->choices = 1;
    a->max_tokens = -1;
    if (get_num(q, "temperature", 0, 2, false, &s->temperature) ||
        get_num(q, "top_p", 0, 1, true, &s->top_p) || get_int(q, "top_k", -1, 1 << 20, &s->top_k) ||
        get_num(q, "min_p", 0, 1, false, &s->min_p) ||
        get_num(q, "presence_penalty", -2, 2, false, &a->presence) ||
        get_num(q, "frequency_penalty", -2, 2, false, &a->frequency) ||
        get_num(q, "repetition_penalty", 0, 100, true, &a->repetition) ||
        get_int(q, "seed", INT64_MIN, INT64_MAX, &seed) ||
        get_int(q, "n", 1, KD_ENGINE_CHOICES_MAX, &a->choices) ||
        get_int(q, "max_tokens", 1, INT32_MAX, &a->max_tokens) ||
        get_int(q, "max_completion_tokens", 1, INT32_MAX, &a->max_tokens) ||
        get_int(q, "min_tokens", 0, INT32_MAX, &a->min_tokens) || read_bias(q) || read_stops(q))
        return -1;
    if (s->temperature < 1e-5)
        s->temperature = 0;
    if (s->top_k < 0)
        s->top_k = 0;
    a->seeded = get(q, "seed") != NULL;
    s->seed = (uint64_t)seed;
    if (!a->seeded && getrandom(&s->seed, sizeof s->seed, 0) != sizeof s->seed)
        s->seed = q->api->salt + ++q->api->serial;
    return 0;
}

static int read_output(struct asking *q)
{
    struct kd_ask *a = q->a;
    const struct kd_jnode *so = get(q, "stream_options"),
                          *usage = kd_jtree_get(q->t, so, "include_usage");
    int64_t priority = 0;
    if (get_bool(q, "stream", &a->stream) || get_bool(q, "ignore_eos", &a->ignore_eos) ||
        get_bool(q, "return_token_ids", &a->token_ids) ||
        get_int(q, "priority", INT32_MIN, INT32_MAX, &priority))
        return -1;
    if (so && so->kind != KD_JSON_OBJECT)
        return bad_value(q->bad, "stream_options", "'stream_options' is not an object");
    if (usage && usage->kind != KD_JSON_BOOL)
        return bad_value(q->bad, "stream_options.include_usage",
                         "'include_usage' is not true or false");
    a->include_usage = is_true(usage);
    a->background = priority > 0;
    return 0;
}

static int read_chat_logprobs(struct asking *q)
{
    bool on = false;
    int64_t top = 0;
    if (get_bool(q, "logprobs", &on) || get_int(q, "top_logprobs", 0, KD_ENGINE_TOP_MAX, &top))
        return -1;
    if (top && !on)
        return bad_value(q->bad, "top_logprobs", "'top_logprobs' needs 'logprobs'");
    q->a->logprobs = on ? 1 + (int)top : 0;
    return 0;
}

/* The prompt. */

static int fit(struct asking *q, int64_t prompt)
{
    struct kd_ask *a = q->a;
    int64_t context = q->api->context, room = context - prompt;
    int64_t engine = kd_engine_room(q->api->engine, prompt, a->choices);
    room = engine < room ? engine : room;
    if (room < 1)
        return kd_bad_at(q->bad, 400, "context_length_exceeded", a->chat ? "messages" : "prompt",
                         "the prompt has %" PRId64 " tokens and this model's context is %" PRId64
                         " tokens: please shorten it",
                         prompt, context);
    if (a->max_tokens < 0)
        a->max_tokens = q->api->o.max_tokens ? q->api->o.max_tokens : 131072;
    if (a->max_tokens > room)
        a->max_tokens = room;
    return 0;
}

static void copy_field(struct asking *q, struct kd_buf *out, const char *key, struct kd_err *err)
{
    const struct kd_jnode *v = get(q, key);
    if (!v)
        return;
    kd_buf_printf(out, ",\"%s\":", key);
    if (kd_jtree_dump(out, q->t, v, KD_JSTYLE_COMPACT, err))
        out->failed = true;
}

static int render(struct asking *q)
{
    struct kd_ask *a = q->a;
    struct kd_buf text;
    struct kd_chat chat;
    struct kd_err err;
    kd_buf_init(&text, KD_ASK_BYTES_MAX);
    kd_buf_printf(&text, "{\"thinking\":%s,\"thinking_effort\":\"%s\"",
                  a->thinking ? "true" : "false", a->effort);
    copy_field(q, &text, "messages", &err);
    copy_field(q, &text, "tools", &err);
    copy_field(q, &text, "response_format", &err);
    if (a->tool_count || a->choose == KD_CHOOSE_NONE)
        copy_field(q, &text, "tool_choice", &err);
    kd_buf_char(&text, '}');
    int rc = kd_buf_ok(&text, "the request", &err) ||
             kd_chat_render(&chat, text.data, text.size_bytes, &err);
    kd_buf_release(&text);
    if (!rc) {
        a->prompt_count = 1;
        rc = kd_echo_ids(q->api, q->owner, q->t, get(q, "messages"), a->thinking, &chat,
                         &a->prompt[0], &err);
        kd_chat_release(&chat);
    }
    if (rc)
        return err.code == KD_EINVAL || err.code == KD_ENOTSUP || err.code == KD_ECORRUPT
                   ? bad_value(q->bad, "messages", "%s", err.msg)
                   : kd_bad_at(q->bad, 500, NULL, NULL, "%s", err.msg);
    return 0;
}

/* Rules are needed when the form of the answer is prescribed, or of calls that the model is free to
 * make: a strict tool's by its schema, not more than one where only one is wanted. */
static int compile(struct asking *q, const struct kd_jnode *schema)
{
    struct kd_ask *a = q->a;
    bool must = a->choose == KD_CHOOSE_REQUIRED || a->choose == KD_CHOOSE_NAMED;
    bool may = a->tool_count && a->choose == KD_CHOOSE_AUTO, strict = false;
    struct kd_grammar_tool *tools;
    struct kd_err err;
    for (int64_t i = 0; i < a->tool_count; i++)
        strict = strict || a->tools[i].strict;
    bool free_text = !must && a->answer == KD_ANSWER_TEXT;
    if (free_text && !(may && (strict || !a->parallel)))
        return 0;
    if (kd_mem_new(&tools, a->tool_count + 1, sizeof *tools, "tools", &err))
        return kd_bad_at(q->bad, 500, NULL, NULL, "%s", err.msg);
    int64_t n = 0;
    for (int64_t i = 0; i < a->tool_count; i++)
        if (a->choose != KD_CHOOSE_NAMED || !strcmp(a->tools[i].name, a->chosen))
            tools[n++] = (struct kd_grammar_tool){
                a->tools[i].name, q->t,
                free_text && !a->tools[i].strict ? NULL : a->tools[i].schema};
    struct kd_grammar_spec spec = {.think = a->thinking,
                                   .answer = must ? KD_ANSWER_TEXT : a->answer,
                                   .tree = q->t,
                                   .schema = schema,
                                   .calls = must  ? KD_CALLS_MUST
                                            : may ? KD_CALLS_MAY
                                                  : KD_CALLS_NONE,
                                   .tools = tools,
                                   .tool_count = n,
                                   .one_call = !a->parallel || a->choose == KD_CHOOSE_NAMED};
    int rc = kd_grammar_compile(&a->grammar, q->api->vocab, &spec, &err);
    kd_mem_free(tools);
    if (!rc)
        return 0;
    return err.code == KD_ENOMEM
               ? kd_bad_at(q->bad, 500, NULL, NULL, "%s", err.msg)
               : bad_value(q->bad,
                           a->answer == KD_ANSWER_SCHEMA && !must ? "response_format" : "tools",
                           "%s", err.msg);
}

static int refuse_prefill(struct asking *q)
{
    bool go_on = false, generate = true;
    if (get_bool(q, "continue_final_message", &go_on) ||
        get_bool(q, "add_generation_prompt", &generate))
        return -1;
    if (go_on || !generate)
        return bad_value(q->bad, go_on ? "continue_final_message" : "add_generation_prompt",
                         "answers always begin a new assistant message on this server");
    return 0;
}

static int begin(struct asking *q, struct kd_ask *a, struct kd_api *api, const char *owner,
                 const char *json, size_t bytes, struct kd_bad *bad)
{
    memset(a, 0, sizeof *a);
    *q = (struct asking){.a = a, .api = api, .owner = owner, .bad = bad};
    if (kd_ask_parse(&a->tree, json, bytes, bad))
        return -1;
    q->t = &a->tree;
    q->root = kd_jtree_root(&a->tree);
    return kd_ask_model(api, &a->tree, bad);
}

static int shape(struct asking *q, const struct kd_jnode **schema)
{
    const struct kd_jnode *tools = get(q, "tools");
    q->a->chat = true;
    return (tools && add_tools(q, tools, "tools")) || check_messages(q) || read_tool_choice(q) ||
                   read_format(q, schema) || read_thinking(q)
               ? -1
               : 0;
}

int kd_ask_chat(struct kd_ask *a, struct kd_api *api, const char *owner, const char *json,
                size_t bytes, struct kd_bad *bad)
{
    struct asking q;
    const struct kd_jnode *schema;
    if (begin(&q, a, api, owner, json, bytes, bad) || shape(&q, &schema) || read_sampling(&q) ||
        read_output(&q) || read_chat_logprobs(&q) || refuse_prefill(&q) || render(&q) ||
        fit(&q, a->prompt[0].count) || compile(&q, schema))
        return -1;
    return 0;
}

int kd_ask_count(struct kd_ask *a, struct kd_api *api, const char *owner, const char *json,
                 size_t bytes, struct kd_bad *bad)
{
    struct asking q;
    const struct kd_jnode *schema;
    return begin(&q, a, api, owner, json, bytes, bad) || shape(&q, &schema) || render(&q) ? -1 : 0;
}

/* Prompts of a text completion: a string, ids, or a list of either. */

static int add_ids(struct asking *q, const struct kd_jnode *list, struct kd_ids *out)
{
    int64_t id, vocab = kd_tok_vocab(q->api->tok);
    struct kd_err err;
    for (const struct kd_jnode *v = kd_jtree_first(q->t, list); v; v = kd_jtree_next(q->t, v)) {
        if (!whole(v, &id) || id < 0 || id >= vocab)
            return bad_value(q->bad, "prompt", "the prompt has an item that is no token's id");
        if (kd_ids_add(out, (int32_t)id, &err))
            return kd_bad_at(q->bad, 500, NULL, NULL, "%s", err.msg);
    }
    return 0;
}

static int add_prompt(struct asking *q, const struct kd_jnode *v)
{
    struct kd_ask *a = q->a;
    struct kd_err err;
    if (a->prompt_count == KD_ASK_PROMPTS_MAX)
        return bad_value(q->bad, "prompt", "more than %d prompts", KD_ASK_PROMPTS_MAX);
    struct kd_ids *out = &a->prompt[a->prompt_count++];
    if (v->kind == KD_JSON_ARRAY ? add_ids(q, v, out) : 0)
        return -1;
    if (v->kind == KD_JSON_STR && kd_tok_encode(q->api->tok, v->text, v->bytes, out, &err))
        return kd_bad_at(q->bad, 500, NULL, NULL, "%s", err.msg);
    if (v->kind != KD_JSON_STR && v->kind != KD_JSON_ARRAY)
        return bad_value(q->bad, "prompt", "the prompt is neither text nor ids");
    if (!out->count && q->api->cfg->bos >= 0 && kd_ids_add(out, (int32_t)q->api->cfg->bos, &err))
        return kd_bad_at(q->bad, 500, NULL, NULL, "%s", err.msg);
    return fit(q, out->count);
}

static int read_prompts(struct asking *q)
{
    const struct kd_jnode *v = get(q, "prompt"), *first = kd_jtree_first(q->t, v);
    if (!v)
        return bad_value(q->bad, "prompt", "'prompt' is missing");
    if (v->kind == KD_JSON_ARRAY && !first)
        return bad_value(q->bad, "prompt", "'prompt' is empty");
    if (v->kind != KD_JSON_ARRAY || (first->kind != KD_JSON_STR && first->kind != KD_JSON_ARRAY))
        return add_prompt(q, v);
    for (v = first; v; v = kd_jtree_next(q->t, v))
        if (add_prompt(q, v))
            return -1;
    return 0;
}

int kd_ask_text(struct kd_ask *a, struct kd_api *api, const char *json, size_t bytes,
                struct kd_bad *bad)
{
    struct asking q;
    int64_t top = -1, best = 1;
    if (begin(&q, a, api, "", json, bytes, bad) || read_sampling(&q) || read_output(&q) ||
        get_int(&q, "logprobs", 0, KD_ENGINE_TOP_MAX, &top) || get_bool(&q, "echo", &a->echo) ||
        get_int(&q, "best_of", 1, 1, &best))
        return -1;
    a->logprobs = (int)top + 1;
    if (a->max_tokens < 0)
        a->max_tokens = 16; /* as the API has it */
    if (a->echo && a->logprobs)
        return bad_value(bad, "echo", "log probabilities of the prompt are not available");
    if (get(&q, "suffix"))
        return bad_value(bad, "suffix", "'suffix' is not supported");
    return read_prompts(&q);
}

void kd_ask_release(struct kd_ask *a)
{
    for (int64_t i = 0; i < a->prompt_count; i++)
        kd_ids_release(&a->prompt[i]);
    kd_grammar_close(a->grammar);
    kd_mem_free(a->bias);
    kd_mem_free(a->tools);
    kd_jtree_release(&a->tree);
    memset(a, 0, sizeof *a);
}
