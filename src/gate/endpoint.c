#include "gate/endpoint.h"

#include "base/mem.h"
#include "base/pool.h"
#include "base/progress.h"
#include "base/show.h"
#include "gate/span.h"
#include "net/call.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { REPLY_BYTES_MAX = 16 << 20, REFUSED_MAX = 8, PARALLEL_MAX = 256 };

/* What became of one request. */
struct outcome {
    bool asked, refused;
    bool rest;       /* answer and calls are right, and the turn ended */
    bool call;       /* the call alone */
    bool think_want; /* thinking is expected */
    bool think_shown, think_right;
};

struct run {
    const struct kd_battery_file *file;
    const struct kd_endpoint *e;
    char url[2048], model[128];
    struct kd_pool *pool;
    struct kd_client *call[PARALLEL_MAX]; /* one for each worker */
    int calls;
    struct outcome *out; /* [requests] */
    atomic_bool failed;
    struct kd_err err[PARALLEL_MAX]; /* of each worker */
    int first;                       /* worker that failed first */
    _Atomic int64_t taken, refused;
    atomic_flag told; /* `why` is taken */
    char why[sizeof((struct kd_battery_remote *)0)->why];
};

/* "https://host", "https://host/v1" or ".../chat/completions" into the address of `what`. */
static int address(char *out, size_t size, const char *url, const char *what, struct kd_err *err)
{
    static const char chat[] = "/chat/completions";
    size_t n = strlen(url), c = strlen(chat);
    while (n && url[n - 1] == '/')
        n--;
    if (n > c && !memcmp(url + n - c, chat, c))
        n -= c;
    const char *host = strstr(url, "://");
    bool bare = host && !memchr(host + 3, '/',
                                n > (size_t)(host + 3 - url) ? n - (size_t)(host + 3 - url) : 0);
    int len = snprintf(out, size, "%.*s%s%s", (int)n, url, bare ? "/v1" : "", what);
    return len > 0 && (size_t)len < size ? 0 : kd_fail(err, KD_EUSAGE, "the URL is too long");
}

int kd_endpoint_model(char *out, size_t size, const char *body, size_t bytes, struct kd_err *err)
{
    struct kd_json *root;
    char shown[100];
    if (kd_json_parse(&root, body ? body : "", bytes, "its list of models", err)) {
        err->code = KD_EREMOTE;
        return -1;
    }
    const struct kd_json *list = kd_json_get(root, "data");
    size_t count = kd_json_kind(list) == KD_JSON_ARRAY ? kd_json_count(list) : 0;
    const char *id = kd_json_text(kd_json_get(kd_json_at(list, 0), "id"), NULL);
    int rc = 0;
    if (!count || !id || !*id)
        rc = kd_fail(err, KD_EREMOTE, "it does not say which model it serves; give --model NAME");
    else if (count > 1)
        rc = kd_fail(err, KD_EUSAGE, "it serves %zu models ('%s' and others); give --model NAME",
                     count, kd_show_text(shown, sizeof shown, id));
    else if (strlen(id) >= size)
        rc = kd_fail(err, KD_EREMOTE, "the name of its model is longer than %zu bytes", size - 1);
    else
        snprintf(out, size, "%s", id);
    kd_json_free(root);
    return rc;
}

static int copy_member(struct kd_buf *out, const struct kd_battery_item *it, const char *key,
                       struct kd_err *err)
{
    struct kd_span at;
    bool found;
    if (kd_span_member(it->request, it->request_bytes, 0, key, &at, &found, err) || !found)
        return found ? -1 : 0;
    kd_buf_char(out, ',');
    kd_json_quote(out, key, strlen(key));
    kd_buf_char(out, ':');
    kd_buf_add(out, it->request + at.begin, at.end - at.begin);
    return 0;
}

int kd_endpoint_body(struct kd_buf *out, const struct kd_battery_item *it, const char *model,
                     struct kd_err *err)
{
    /* Ours, and the template's: those go where servers look for them. */
    static const char *const skip[] = {
        "model",           "stream",     "temperature", "thinking",
        "thinking_effort", "max_tokens", "n",           "add_generation_prompt"};
    const struct kd_json *req = it->parsed;
    void *iter = NULL;
    const char *key;
    struct kd_json *value;
    kd_buf_str(out, "{\"model\":");
    kd_json_quote(out, model, strlen(model));
    while (kd_json_next(req, &iter, &key, &value)) {
        bool ours = false;
        for (size_t i = 0; i < sizeof skip / sizeof *skip; i++)
            ours = ours || !strcmp(key, skip[i]);
        if (!ours && copy_member(out, it, key, err))
            return -1;
    }
    /* A byte of the written-out turn is at most a token, so this is room for half again as much as
     * is expected, as in the battery of a local model. */
    kd_buf_printf(out,
                  ",\"stream\":false,\"temperature\":0,\"max_tokens\":%zu,"
                  "\"chat_template_kwargs\":{\"thinking\":%s",
                  it->expected_bytes + it->expected_bytes / 2 + 32,
                  it->thinking ? "true" : "false");
    size_t n;
    const char *effort = kd_json_text(kd_json_get(req, "thinking_effort"), &n);
    if (effort) {
        kd_buf_str(out, ",\"thinking_effort\":");
        kd_json_quote(out, effort, n);
    }
    kd_buf_str(out, "}}");
    return kd_buf_ok(out, "request", err);
}

/* Text up to `end` into out; *at goes behind it. False when there is no `end`. */
static bool text_until(struct kd_buf *out, const char **at, const char *stop, const char *end)
{
    const char *hit = memmem(*at, (size_t)(stop - *at), end, strlen(end));
    if (!hit)
        return false;
    kd_buf_add(out, *at, (size_t)(hit - *at));
    *at = hit + strlen(end);
    return true;
}

int kd_want_parse(struct kd_want *w, const struct kd_battery_item *it, struct kd_err *err)
{
    static const char response[] = "<|open|>response<|sep|>";
    const char *at = it->expected, *stop = at + it->expected_bytes;
    memset(w, 0, sizeof *w);
    kd_buf_init(&w->think, REPLY_BYTES_MAX);
    kd_buf_init(&w->content, REPLY_BYTES_MAX);
    bool ok = !it->thinking || text_until(&w->think, &at, stop, "<|close|>think<|sep|>");
    bool answers = ok;
    if (ok && it->thinking) {
        answers =
            (size_t)(stop - at) >= strlen(response) && !memcmp(at, response, strlen(response));
        at += answers ? strlen(response) : 0;
    }
    if (answers)
        ok = text_until(&w->content, &at, stop, "<|close|>response<|sep|>");
    bool calls = memmem(at, (size_t)(stop - at), "<|open|>call ", 13) != NULL;
    if (!ok || calls != (kd_json_kind(it->call) == KD_JSON_OBJECT))
        return kd_fail(err, KD_ECORRUPT, "'expected_text' is not a turn with the expected call");
    return kd_buf_ok(&w->think, "expected turn", err) ||
                   kd_buf_ok(&w->content, "expected turn", err)
               ? -1
               : 0;
}

void kd_want_release(struct kd_want *w)
{
    kd_buf_release(&w->think);
    kd_buf_release(&w->content);
}

void kd_said_release(struct kd_said *a)
{
    kd_buf_release(&a->think);
    kd_buf_release(&a->content);
    if (a->calls)
        kd_json_free(a->calls);
    memset(a, 0, sizeof *a);
}

/* One call as {"name":...,"arguments":{...}}; arguments are JSON text, the text of an object. */
static void add_call(struct kd_said *a, struct kd_buf *list, const struct kd_json *v)
{
    struct kd_json *args;
    size_t n, m;
    const struct kd_json *f = kd_json_get(v, "function");
    const char *name = kd_json_text(kd_json_get(f, "name"), &n);
    const char *text = kd_json_text(kd_json_get(f, "arguments"), &m);
    if (!name || !text || kd_json_parse(&args, text, m, "arguments", NULL)) {
        a->bad_call = true;
        return;
    }
    a->bad_call = a->bad_call || kd_json_kind(args) != KD_JSON_OBJECT;
    kd_json_free(args);
    kd_buf_str(list, list->size_bytes > 1 ? ",{\"name\":" : "{\"name\":");
    kd_json_quote(list, name, n);
    kd_buf_str(list, ",\"arguments\":");
    kd_buf_add(list, text, m);
    kd_buf_char(list, '}');
}

static int take_calls(struct kd_said *a, const struct kd_json *calls, struct kd_err *err)
{
    struct kd_buf list;
    kd_buf_init(&list, 4 * (size_t)REPLY_BYTES_MAX);
    kd_buf_char(&list, '[');
    for (size_t i = 0; i < kd_json_count(calls); i++)
        add_call(a, &list, kd_json_at(calls, i));
    kd_buf_char(&list, ']');
    int rc = kd_buf_ok(&list, "tool calls", err);
    if (!rc && kd_json_parse(&a->calls, list.data, list.size_bytes, "tool calls", NULL)) {
        a->calls = NULL; /* nested too deep for one more level */
        a->bad_call = true;
    }
    kd_buf_release(&list);
    return rc;
}

/* A string or nothing into out. */
static int take_text(struct kd_buf *out, const struct kd_json *v, const char *what,
                     struct kd_err *err)
{
    size_t n;
    const char *text = kd_json_text(v, &n);
    if (text)
        kd_buf_add(out, text, n);
    else if (kd_json_kind(v) != KD_JSON_NULL)
        return kd_fail(err, KD_EREMOTE, "no chat completion: '%s' is not a string", what);
    return kd_buf_ok(out, what, err);
}

static int take_message(struct kd_said *a, const struct kd_json *root, struct kd_err *err)
{
    const struct kd_json *choice = kd_json_at(kd_json_get(root, "choices"), 0);
    const struct kd_json *m = kd_json_get(choice, "message");
    const struct kd_json *calls = kd_json_get(m, "tool_calls");
    if (kd_json_kind(m) != KD_JSON_OBJECT)
        return kd_fail(err, KD_EREMOTE, "no chat completion: it has no choices[0].message");
    if (kd_json_kind(calls) != KD_JSON_NULL && kd_json_kind(calls) != KD_JSON_ARRAY)
        return kd_fail(err, KD_EREMOTE, "no chat completion: 'tool_calls' is not an array");
    const char *end = kd_json_text(kd_json_get(choice, "finish_reason"), NULL);
    a->ended = !end || (strcmp(end, "length") != 0 && strcmp(end, "content_filter") != 0);
    const char *key =
        kd_json_text(kd_json_get(m, "reasoning_content"), NULL) ? "reasoning_content" : "reasoning";
    const struct kd_json *think = kd_json_get(m, key);
    a->has_think = kd_json_kind(think) == KD_JSON_STR;
    if (take_text(&a->think, think, key, err) ||
        take_text(&a->content, kd_json_get(m, "content"), "content", err))
        return -1;
    return take_calls(a, calls, err);
}

int kd_said_parse(struct kd_said *a, const char *body, size_t bytes, struct kd_err *err)
{
    struct kd_json *root;
    memset(a, 0, sizeof *a);
    kd_buf_init(&a->think, REPLY_BYTES_MAX);
    kd_buf_init(&a->content, REPLY_BYTES_MAX);
    if (kd_json_parse(&root, body ? body : "", bytes, "no chat completion", err)) {
        err->code = KD_EREMOTE;
        return -1;
    }
    int rc = take_message(a, root, err);
    kd_json_free(root);
    if (rc)
        kd_said_release(a);
    return rc;
}

static bool same_text(const struct kd_buf *a, const struct kd_buf *b)
{
    return a->size_bytes == b->size_bytes &&
           (!a->size_bytes || !memcmp(a->data, b->data, a->size_bytes));
}

static int judge(struct outcome *o, const struct kd_battery_item *it, const struct kd_reply *r,
                 struct kd_err *err)
{
    struct kd_want want;
    struct kd_said a;
    int rc = kd_want_parse(&want, it, err);
    if (!rc && !(rc = kd_said_parse(&a, r->body.data, r->body.size_bytes, err))) {
        o->call = a.ended && !a.bad_call && kd_battery_call_fits(it->call, a.calls);
        o->rest = o->call && same_text(&want.content, &a.content);
        o->think_want = want.think.size_bytes > 0;
        o->think_shown = a.has_think;
        o->think_right = same_text(&want.think, &a.think);
        kd_said_release(&a);
    }
    kd_want_release(&want);
    return rc;
}

/* Whether an answer is the server's way of not taking this one request. */
static bool is_refusal(int status)
{
    return status == 400 || status == 413 || status == 422 || status == 500;
}

static int refuse(struct run *r, struct outcome *o, const struct kd_reply *reply,
                  struct kd_err *err)
{
    o->refused = true;
    if (!atomic_flag_test_and_set(&r->told)) {
        char why[sizeof r->why - 8];
        kd_reply_why(why, sizeof why, reply->body.data, reply->body.size_bytes);
        snprintf(r->why, sizeof r->why, "%d%s%s", reply->status, *why ? ": " : "", why);
    }
    if (atomic_fetch_add(&r->refused, 1) + 1 >= REFUSED_MAX && !atomic_load(&r->taken))
        return kd_reply_fail(reply, r->url, err);
    return 0;
}

static int ask(struct run *r, int64_t i, int worker, struct kd_err *err)
{
    const struct kd_battery_item *it = &r->file->item[i];
    struct outcome *o = &r->out[i];
    struct kd_reply reply;
    struct kd_buf body;
    kd_reply_init(&reply);
    kd_buf_init(&body, it->request_bytes + it->expected_bytes + (1 << 16));
    int rc = kd_endpoint_body(&body, it, r->model, err);
    if (!rc)
        rc = kd_client_send(r->call[worker], r->url, body.data, body.size_bytes, &reply, err);
    o->asked = !rc;
    if (!rc && reply.status == 200) {
        atomic_fetch_add(&r->taken, 1);
        rc = judge(o, it, &reply, err);
        if (rc)
            rc = kd_wrap(err, "%s", r->url);
    } else if (!rc) {
        rc = is_refusal(reply.status) ? refuse(r, o, &reply, err)
                                      : kd_reply_fail(&reply, r->url, err);
    }
    kd_buf_release(&body);
    kd_reply_release(&reply);
    return rc;
}

static void one(void *ctx, int64_t i, int worker)
{
    struct run *r = ctx;
    if (atomic_load(&r->failed))
        return;
    if (ask(r, i, worker, &r->err[worker])) {
        (void)kd_wrap(&r->err[worker], "battery request %lld", (long long)i);
        if (!atomic_exchange(&r->failed, true))
            r->first = worker;
    }
    kd_progress_add(1, NULL);
}

static int find_model(struct run *r, struct kd_err *err)
{
    char url[sizeof r->url];
    struct kd_reply reply;
    if (r->e->model) {
        if (snprintf(r->model, sizeof r->model, "%s", r->e->model) >= (int)sizeof r->model)
            return kd_fail(err, KD_EUSAGE, "--model: a name is at most %zu bytes",
                           sizeof r->model - 1);
        return 0;
    }
    kd_reply_init(&reply);
    int rc = address(url, sizeof url, r->e->url, "/models", err) ||
                     kd_client_send(r->call[0], url, NULL, 0, &reply, err)
                 ? -1
                 : 0;
    if (!rc && reply.status != 200)
        rc = kd_reply_fail(&reply, url, err);
    else if (!rc && kd_endpoint_model(r->model, sizeof r->model, reply.body.data,
                                      reply.body.size_bytes, err))
        rc = kd_wrap(err, "%s", url);
    kd_reply_release(&reply);
    return rc;
}

static int open_all(struct run *r, struct kd_err *err)
{
    struct kd_client_opts o = {.key_file = r->e->key_file,
                               .allow_http = r->e->allow_http,
                               .total_s = r->e->timeout_s,
                               .reply_bytes_max = REPLY_BYTES_MAX,
                               .stop = r->e->stop};
    int64_t n = r->e->parallel < r->file->count ? r->e->parallel : r->file->count;
    n = n < 1 ? 1 : n > PARALLEL_MAX ? PARALLEL_MAX : n;
    if (address(r->url, sizeof r->url, r->e->url, "/chat/completions", err) ||
        kd_url_check(r->url, o.allow_http, NULL, err) ||
        kd_mem_zero(&r->out, r->file->count, sizeof *r->out, "battery results", err) ||
        kd_pool_open(&r->pool, (int)n, err))
        return -1;
    for (int64_t i = 0; i < r->file->count; i++) {
        struct kd_want want;
        int rc = kd_want_parse(&want, &r->file->item[i], err);
        kd_want_release(&want);
        if (rc)
            return kd_wrap(err, "battery request %lld", (long long)i);
    }
    for (; r->calls < kd_pool_threads(r->pool); r->calls++)
        if (kd_client_open(&r->call[r->calls], &o, err))
            return -1;
    return find_model(r, err);
}

/* Thinking counts where the server shows any at all. */
static int tally(struct run *r, bool *exact, bool *call, struct kd_battery_remote *info,
                 struct kd_err *err)
{
    memset(info, 0, sizeof *info);
    for (int64_t i = 0; i < r->file->count; i++) {
        const struct outcome *o = &r->out[i];
        info->refused += o->refused;
        info->think_wanted += o->think_want;
        info->think_shown += o->think_want && o->think_shown;
        info->shows_thinking = info->shows_thinking || o->think_shown;
    }
    if (info->refused == r->file->count)
        return kd_fail(err, KD_EREMOTE, "%s took none of the %lld requests: %s", r->url,
                       (long long)info->refused, r->why);
    for (int64_t i = 0; i < r->file->count; i++) {
        const struct outcome *o = &r->out[i];
        call[i] = o->call;
        exact[i] = o->rest && (!info->shows_thinking || o->think_right);
    }
    kd_show_text(info->url, sizeof info->url, r->url);
    kd_show_text(info->model, sizeof info->model, r->model);
    kd_show_text(info->why, sizeof info->why, r->why);
    return 0;
}

int kd_endpoint_run(bool *exact, bool *call, struct kd_battery_remote *info,
                    const struct kd_endpoint *e, const struct kd_battery_file *file,
                    struct kd_err *err)
{
    struct run *r;
    if (kd_mem_zero(&r, 1, sizeof *r, "battery run", err))
        return -1;
    r->file = file;
    r->e = e;
    int rc = open_all(r, err);
    if (!rc) {
        kd_progress_begin("battery", "requests", file->count, 0);
        kd_pool_run(r->pool, file->count, one, r);
        kd_progress_end();
        if (atomic_load(&r->failed)) {
            *err = r->err[r->first];
            rc = -1;
        }
    }
    if (!rc)
        rc = tally(r, exact, call, info, err);
    for (int i = 0; i < r->calls; i++)
        kd_client_close(r->call[i]);
    if (r->pool)
        kd_pool_close(r->pool);
    kd_mem_free(r->out);
    kd_mem_free(r);
    return rc;
}
