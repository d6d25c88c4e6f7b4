/* /v1/chat/completions, /v1/completions, /v1/models. */
#include "base/mem.h"
#include "serve/api_stream.h"

#include <inttypes.h>
#include <string.h>

enum { REPLY_BYTES_MAX = 512 << 20 };

struct reply {
    struct kd_flow flow;
    struct kd_api *api;
    struct kd_buf *out; /* of a stream, while next runs */
    bool begun, told_end;
    int64_t created;
    char id[40];
};

static void head(struct kd_buf *out, const struct reply *p, const char *object)
{
    kd_buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", p->id,
                  object, p->created);
    kd_json_quote(out, p->api->o.model_id, strlen(p->api->o.model_id));
    kd_buf_str(out, ",\"system_fingerprint\":");
    kd_json_quote(out, p->api->o.fingerprint, strlen(p->api->o.fingerprint));
}

static void put_usage(struct kd_buf *out, struct reply *p)
{
    const struct kd_usage *u = kd_flow_usage(&p->flow);
    kd_buf_printf(out,
                  "\"usage\":{\"prompt_tokens\":%" PRId64 ",\"completion_tokens\":%" PRId64
                  ",\"total_tokens\":%" PRId64
                  ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRId64
                  "},\"completion_tokens_details\":{\"reasoning_tokens\":%" PRId64 "}}",
                  u->prompt_tokens, u->made_tokens, u->prompt_tokens + u->made_tokens,
                  u->cached_tokens, kd_flow_reasoning(&p->flow));
}

static void quote(struct kd_buf *out, const struct kd_buf *s)
{
    kd_json_quote(out, s->data ? s->data : "", s->size_bytes);
}

/* Chat, streamed. */

static void chunk_begin(struct reply *p, const char *object)
{
    kd_buf_str(p->out, "data: ");
    head(p->out, p, object);
}

static void chunk_end(struct reply *p)
{
    kd_buf_str(p->out, "}\n\n");
}

/* One choice's chunk; delta is written by the caller between the two. */
static void delta_begin(struct reply *p, const struct kd_choice *c)
{
    chunk_begin(p, "chat.completion.chunk");
    kd_buf_printf(p->out, ",\"choices\":[{\"index\":%" PRId64 ",\"delta\":{", c->index);
}

static void delta_end(struct reply *p, struct kd_choice *c, const char *reason, bool text)
{
    kd_buf_str(p->out, "},\"logprobs\":");
    if (text && p->flow.ask.logprobs) {
        kd_buf_str(p->out, "{\"content\":[");
        kd_buf_add(p->out, c->logprobs.data ? c->logprobs.data : "", c->logprobs.size_bytes);
        kd_buf_str(p->out, "],\"refusal\":null}");
        kd_buf_clear(&c->logprobs);
    } else {
        kd_buf_str(p->out, "null");
    }
    if (reason)
        kd_buf_printf(p->out, ",\"finish_reason\":\"%s\"", reason);
    else
        kd_buf_str(p->out, ",\"finish_reason\":null");
    if (p->flow.ask.token_ids && reason) {
        kd_buf_str(p->out, ",\"token_ids\":[");
        kd_buf_add(p->out, c->ids.data ? c->ids.data : "", c->ids.size_bytes);
        kd_buf_char(p->out, ']');
    }
    if (reason && p->api->o.tell_usage_last) {
        kd_buf_char(p->out, ',');
        put_usage(p->out, p);
    }
    kd_buf_str(p->out, "}]");
    if (p->flow.ask.include_usage)
        kd_buf_str(p->out, ",\"usage\":null");
    if (reason)
        kd_flow_making(&p->flow, p->out);
    chunk_end(p);
}

static void chat_part(void *ctx, struct kd_choice *c, enum kd_part part, const struct kd_call *call,
                      const char *text, size_t bytes)
{
    struct reply *p = ctx;
    if (part == KD_PART_CALL_END)
        return;
    delta_begin(p, c);
    if (part == KD_PART_THINK || part == KD_PART_TEXT) {
        kd_buf_str(p->out, part == KD_PART_THINK ? "\"reasoning_content\":" : "\"content\":");
        kd_json_quote(p->out, text, bytes);
    } else if (part == KD_PART_CALL) {
        kd_buf_printf(p->out,
                      "\"tool_calls\":[{\"index\":%" PRId64
                      ",\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":",
                      call->index, call->id);
        quote(p->out, &call->name);
        kd_buf_str(p->out, ",\"arguments\":\"\"}}]");
    } else {
        kd_buf_printf(p->out, "\"tool_calls\":[{\"index\":%" PRId64 ",\"function\":{\"arguments\":",
                      call->index);
        kd_json_quote(p->out, text, bytes);
        kd_buf_str(p->out, "}}]");
    }
    delta_end(p, c, NULL, part == KD_PART_TEXT);
}

static void chat_end(void *ctx, struct kd_choice *c)
{
    struct reply *p = ctx;
    if (c->finish == KD_FINISH_ERROR || c->finish == KD_FINISH_CANCEL)
        return;
    delta_begin(p, c);
    delta_end(p, c, kd_choice_reason(c), c->logprobs.size_bytes > 0);
}

/* An error after the headers are out. */
static int stream_fault(struct reply *p)
{
    struct kd_bad bad;
    kd_flow_fault(&p->flow, &bad);
    kd_buf_str(p->out, "data: ");
    kd_api_fail(p->api, "/v1/chat/completions", &bad.f, "", p->out);
    kd_buf_str(p->out, "\n\n");
    return -1;
}

static bool any_cancelled(const struct kd_flow *f)
{
    for (int64_t i = 0; i < f->choice_count; i++)
        if (f->choice[i].finish == KD_FINISH_CANCEL)
            return true;
    return false;
}

static int end_stream(struct reply *p, const char *object)
{
    if (any_cancelled(&p->flow))
        return stream_fault(p);
    if (p->flow.ask.include_usage) {
        chunk_begin(p, object);
        kd_buf_str(p->out, ",\"choices\":[],");
        put_usage(p->out, p);
        kd_flow_making(&p->flow, p->out);
        chunk_end(p);
    }
    kd_buf_str(p->out, "data: [DONE]\n\n");
    return 1;
}

static int chat_next(void *ctx, struct kd_buf *out, double timeout_s)
{
    struct reply *p = ctx;
    p->out = out;
    for (int64_t i = 0; !p->begun && i < p->flow.choice_count; i++) {
        delta_begin(p, &p->flow.choice[i]);
        kd_buf_str(out, "\"role\":\"assistant\",\"content\":\"\",\"refusal\":null");
        delta_end(p, &p->flow.choice[i], NULL, true);
    }
    if (!p->begun) {
        p->begun = true;
        return 0;
    }
    int rc = kd_flow_next(&p->flow, timeout_s);
    if (rc < 0)
        return stream_fault(p);
    return rc ? end_stream(p, "chat.completion.chunk") : 0;
}

static void stream_over(void *ctx, struct kd_req *r, bool done)
{
    struct reply *p = ctx;
    (void)done;
    kd_flow_close(&p->flow, r);
    kd_mem_free(p);
}

/* Chat, whole. */

static void put_calls(struct kd_buf *out, const struct kd_choice *c)
{
    bool any = false;
    if (!kd_choice_calls(c))
        return;
    kd_buf_str(out, ",\"tool_calls\":[");
    for (int64_t i = 0; i < c->call_count; i++) {
        const struct kd_call *k = c->calls[i];
        if (!k->complete)
            continue;
        kd_buf_printf(out, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":",
                      any ? "," : "", k->id);
        quote(out, &k->name);
        kd_buf_str(out, ",\"arguments\":");
        quote(out, &k->args);
        kd_buf_str(out, "}}");
        any = true;
    }
    kd_buf_char(out, ']');
}

static void put_choice(struct kd_buf *out, const struct reply *p, const struct kd_choice *c)
{
    kd_buf_printf(
        out, "{\"index\":%" PRId64 ",\"message\":{\"role\":\"assistant\",\"content\":", c->index);
    if (c->text.size_bytes || !kd_choice_calls(c))
        quote(out, &c->text);
    else
        kd_buf_str(out, "null");
    kd_buf_str(out, ",\"refusal\":null");
    if (c->think.size_bytes) {
        kd_buf_str(out, ",\"reasoning_content\":");
        quote(out, &c->think);
    }
    put_calls(out, c);
    kd_buf_str(out, "},\"logprobs\":");
    if (p->flow.ask.logprobs) {
        kd_buf_str(out, "{\"content\":[");
        kd_buf_add(out, c->all_logprobs.data ? c->all_logprobs.data : "",
                   c->all_logprobs.size_bytes);
        kd_buf_str(out, "],\"refusal\":null}");
    } else {
        kd_buf_str(out, "null");
    }
    kd_buf_printf(out, ",\"finish_reason\":\"%s\"", kd_choice_reason(c));
    if (p->flow.ask.token_ids) {
        kd_buf_str(out, ",\"token_ids\":[");
        kd_buf_add(out, c->ids.data ? c->ids.data : "", c->ids.size_bytes);
        kd_buf_char(out, ']');
    }
    kd_buf_char(out, '}');
}

static void send_whole(struct reply *p, struct kd_req *r, const char *object,
                       void (*put)(struct kd_buf *, const struct reply *, const struct kd_choice *))
{
    struct kd_buf out;
    kd_buf_init(&out, REPLY_BYTES_MAX);
    head(&out, p, object);
    kd_buf_str(&out, ",\"choices\":[");
    for (int64_t i = 0; i < p->flow.choice_count; i++) {
        if (i)
            kd_buf_char(&out, ',');
        put(&out, p, &p->flow.choice[i]);
    }
    kd_buf_str(&out, "],");
    put_usage(&out, p);
    kd_flow_making(&p->flow, &out);
    kd_buf_char(&out, '}');
    if (out.failed)
        kd_req_fail(r, &(struct kd_fault){.status = 500, .message = "no memory for the answer"});
    else
        kd_req_reply(r, 200, "application/json", out.data, out.size_bytes);
    kd_buf_release(&out);
}

/* Waits for the whole answer; false after answering with what went wrong. */
static bool wait_whole(struct reply *p, struct kd_req *r)
{
    struct kd_bad bad;
    int rc = kd_flow_wait(&p->flow, r);
    if (!rc && !any_cancelled(&p->flow))
        return true;
    if (kd_req_gone(r))
        kd_bad_at(&bad, 503, "cancelled", NULL, "the request was cancelled");
    else
        kd_flow_fault(&p->flow, &bad);
    kd_flow_refuse(r, 1, &bad);
    return false;
}

/* Starts a request; NULL after answering with what is wrong with it. */
static struct reply *begin(struct kd_api *api, struct kd_req *r, bool chat)
{
    struct kd_bad bad;
    struct kd_ask ask;
    struct reply *p;
    double retry_s = 0;
    size_t n;
    const char *body = kd_req_body(r, &n);
    if (!kd_api_engine(api, r))
        return NULL;
    if (chat ? kd_ask_chat(&ask, api, kd_api_owner(api, r), body, n, &bad)
             : kd_ask_text(&ask, api, body, n, &bad)) {
        kd_ask_release(&ask);
        kd_flow_refuse(r, 0, &bad);
        return NULL;
    }
    if (kd_mem_zero(&p, 1, sizeof *p, "reply", NULL)) {
        kd_ask_release(&ask);
        kd_req_fail(r, &(struct kd_fault){.status = 500, .message = "no memory for a reply"});
        return NULL;
    }
    p->api = api;
    p->created = kd_api_now();
    kd_api_new_id(api, chat ? "chatcmpl-" : "cmpl-", p->id);
    if (kd_flow_open(&p->flow, api, &ask, kd_api_owner(api, r), &retry_s, &bad)) {
        kd_mem_free(p);
        kd_flow_refuse(r, retry_s, &bad);
        return NULL;
    }
    return p;
}

static void stream(struct reply *p, struct kd_req *r, int (*next)(void *, struct kd_buf *, double))
{
    kd_req_stream(
        r, "text/event-stream; charset=utf-8",
        &(struct kd_stream){
            .ctx = p, .next = next, .end = stream_over, .idle = ": keep-alive\n\n", .idle_s = 5});
}

void kd_api_chat(void *ctx, struct kd_req *r)
{
    struct reply *p = begin(ctx, r, true);
    if (!p)
        return;
    if (p->flow.ask.stream) {
        p->flow.sink = (struct kd_sink){p, chat_part, chat_end};
        stream(p, r, chat_next);
        return;
    }
    if (wait_whole(p, r))
        send_whole(p, r, "chat.completion", put_choice);
    stream_over(p, r, true);
}

/* Text completions. */

static void put_text_choice(struct kd_buf *out, const struct reply *p, const struct kd_choice *c)
{
    const struct kd_ask *a = &p->flow.ask;
    struct kd_buf echo;
    struct kd_err err;
    kd_buf_init(&echo, REPLY_BYTES_MAX);
    if (a->echo && kd_tok_decode(p->api->tok, a->prompt[c->prompt].id, a->prompt[c->prompt].count,
                                 &echo, &err))
        out->failed = true;
    kd_buf_add(&echo, c->text.data ? c->text.data : "", c->text.size_bytes);
    kd_buf_printf(out, "{\"index\":%" PRId64 ",\"text\":", c->index);
    quote(out, &echo);
    kd_buf_release(&echo);
    kd_buf_str(out, ",\"logprobs\":");
    if (a->logprobs) {
        kd_buf_str(out, "{\"content\":[");
        kd_buf_add(out, c->all_logprobs.data ? c->all_logprobs.data : "",
                   c->all_logprobs.size_bytes);
        kd_buf_str(out, "]}");
    } else {
        kd_buf_str(out, "null");
    }
    kd_buf_printf(out, ",\"finish_reason\":\"%s\"", kd_choice_reason(c));
    if (a->token_ids) {
        kd_buf_str(out, ",\"token_ids\":[");
        kd_buf_add(out, c->ids.data ? c->ids.data : "", c->ids.size_bytes);
        kd_buf_char(out, ']');
    }
    kd_buf_char(out, '}');
}

static void text_chunk(struct reply *p, struct kd_choice *c, const char *text, size_t bytes,
                       const char *reason)
{
    chunk_begin(p, "text_completion");
    kd_buf_printf(p->out, ",\"choices\":[{\"index\":%" PRId64 ",\"text\":", c->index);
    kd_json_quote(p->out, text, bytes);
    kd_buf_str(p->out, ",\"logprobs\":");
    if (p->flow.ask.logprobs) {
        kd_buf_str(p->out, "{\"content\":[");
        kd_buf_add(p->out, c->logprobs.data ? c->logprobs.data : "", c->logprobs.size_bytes);
        kd_buf_str(p->out, "]}");
        kd_buf_clear(&c->logprobs);
    } else {
        kd_buf_str(p->out, "null");
    }
    if (reason)
        kd_buf_printf(p->out, ",\"finish_reason\":\"%s\"}]", reason);
    else
        kd_buf_str(p->out, ",\"finish_reason\":null}]");
    if (reason)
        kd_flow_making(&p->flow, p->out);
    chunk_end(p);
}

static void text_part(void *ctx, struct kd_choice *c, enum kd_part part, const struct kd_call *call,
                      const char *text, size_t bytes)
{
    (void)call;
    if (part == KD_PART_TEXT)
        text_chunk(ctx, c, text, bytes, NULL);
}

static void text_end(void *ctx, struct kd_choice *c)
{
    if (c->finish != KD_FINISH_ERROR && c->finish != KD_FINISH_CANCEL)
        text_chunk(ctx, c, "", 0, kd_choice_reason(c));
}

static int text_next(void *ctx, struct kd_buf *out, double timeout_s)
{
    struct reply *p = ctx;
    const struct kd_ask *a = &p->flow.ask;
    p->out = out;
    if (!p->begun && a->echo) {
        for (int64_t i = 0; i < p->flow.choice_count; i++) {
            struct kd_choice *c = &p->flow.choice[i];
            struct kd_buf echo;
            kd_buf_init(&echo, REPLY_BYTES_MAX);
            if (kd_tok_decode(p->api->tok, a->prompt[c->prompt].id, a->prompt[c->prompt].count,
                              &echo, NULL))
                out->failed = true;
            text_chunk(p, c, echo.data ? echo.data : "", echo.size_bytes, NULL);
            kd_buf_release(&echo);
        }
    }
    p->begun = true;
    int rc = kd_flow_next(&p->flow, timeout_s);
    if (rc < 0)
        return stream_fault(p);
    return rc ? end_stream(p, "text_completion") : 0;
}

void kd_api_completions(void *ctx, struct kd_req *r)
{
    struct reply *p = begin(ctx, r, false);
    if (!p)
        return;
    if (p->flow.ask.stream) {
        p->flow.sink = (struct kd_sink){p, text_part, text_end};
        stream(p, r, text_next);
        return;
    }
    if (wait_whole(p, r))
        send_whole(p, r, "text_completion", put_text_choice);
    stream_over(p, r, true);
}

/* Models: the one that is served. */

static void put_model(struct kd_buf *out, const struct kd_api *api)
{
    kd_buf_str(out, "{\"id\":");
    kd_json_quote(out, api->o.model_id, strlen(api->o.model_id));
    kd_buf_printf(out,
                  ",\"object\":\"model\",\"created\":%" PRId64
                  ",\"owned_by\":\"kondense\",\"context_length\":%" PRId64
                  ",\"max_model_len\":%" PRId64
                  ",\"supports_reasoning\":true,\"supports_image_in\":false,"
                  "\"supports_tool_use\":true,\"type\":\"model\",\"display_name\":",
                  api->created, api->context, api->context);
    kd_json_quote(out, api->o.model_id, strlen(api->o.model_id));
    kd_buf_char(out, '}');
}

void kd_api_models(void *ctx, struct kd_req *r)
{
    struct kd_api *api = ctx;
    struct kd_buf out;
    if (!kd_api_engine(api, r))
        return;
    kd_buf_init(&out, 1 << 20);
    kd_buf_str(&out, "{\"object\":\"list\",\"data\":[");
    put_model(&out, api);
    kd_buf_str(&out, "],\"has_more\":false}");
    kd_req_reply(r, 200, "application/json", out.data, out.size_bytes);
    kd_buf_release(&out);
}

void kd_api_model(void *ctx, struct kd_req *r)
{
    struct kd_api *api = ctx;
    struct kd_buf out;
    if (!kd_api_engine(api, r))
        return;
    if (!api->o.any_model && strcmp(kd_req_rest(r), api->o.model_id) != 0) {
        kd_req_fail(r, &(struct kd_fault){.status = 404,
                                          .code = "model_not_found",
                                          .param = "model",
                                          .message = "this model does not exist"});
        return;
    }
    kd_buf_init(&out, 1 << 20);
    put_model(&out, api);
    kd_req_reply(r, 200, "application/json", out.data, out.size_bytes);
    kd_buf_release(&out);
}
