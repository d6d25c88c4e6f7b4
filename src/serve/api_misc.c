/* What the endpoints share, the table of routes, and the small ones: tokenize, health, metrics. */
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rand.h"
#include "serve/api_request.h"
#include "serve/page.h"
#include "serve/said.h"
#include "serve/stored.h"

#include <inttypes.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

const struct kd_route kd_api_routes[] = {
    {"POST", "/v1/chat/completions", kd_api_chat},
    {"POST", "/v1/completions", kd_api_completions},
    {"GET", "/v1/models", kd_api_models},
    {"GET", "/v1/models/*", kd_api_model},
    {"POST", "/v1/responses", kd_api_responses},
    {"GET", "/v1/responses/*", kd_api_response_get},
    {"DELETE", "/v1/responses/*", kd_api_response_delete},
    {"POST", "/v1/messages", kd_api_messages},
    {"POST", "/v1/messages/count_tokens", kd_api_count_tokens},
    {"POST", "/tokenize", kd_api_tokenize},
    {"POST", "/detokenize", kd_api_detokenize},
    {"POST", "/apply-template", kd_api_template},
    {"GET", "/props", kd_api_props},
    {"GET", "/slots", kd_api_slots},
    {"GET", "/health", kd_api_health, .open = true, .quiet = true},
    {"GET", "/healthz", kd_api_health, .open = true, .quiet = true},
    {"GET", "/readyz", kd_api_ready, .open = true, .quiet = true},
    {"GET", "/metrics", kd_api_metrics, .quiet = true},
    {"GET", "/version", kd_api_version, .open = true, .quiet = true},
    {"GET", "/", kd_page_html, .open = true, .quiet = true},
    {"GET", "/chat.js", kd_page_js, .open = true, .quiet = true},
    {"GET", "/chat.css", kd_page_css, .open = true, .quiet = true},
    {0}};

int kd_api_init(struct kd_api *api, const struct kd_api_options *o, struct kd_err *err)
{
    memset(api, 0, sizeof *api);
    api->o = *o;
    api->o.model_id = o->model_id ? o->model_id : "kimi-k3";
    api->o.fingerprint = o->fingerprint ? o->fingerprint : "kondense-" KD_VERSION;
    api->created = kd_api_now();
    if (getrandom(&api->salt, sizeof api->salt, 0) != sizeof api->salt)
        api->salt = (uint64_t)(kd_clock_s() * 1e9);
    kd_counts_init(&api->replies);
    return kd_said_open(&api->said, o->said_bytes ? o->said_bytes : 32 << 20, err) ||
                   kd_store_open(&api->store, o->store_bytes ? o->store_bytes : 64 << 20,
                                 o->store_s > 0 ? o->store_s : 3600, err)
               ? -1
               : 0;
}

int kd_api_attach(struct kd_api *api, struct kd_engine *e, struct kd_err *err)
{
    api->tok = kd_engine_tok(e);
    api->cfg = kd_engine_config(e);
    if (!api->context || api->context > api->cfg->context)
        api->context = api->cfg->context;
    if (kd_vocab_open(&api->vocab, api->tok, err))
        return -1;
    if (api->o.cache_dir) {
        char path[4096];
        if (kd_path_join(path, sizeof path, api->o.cache_dir, "answers.kdsaid", err) ||
            kd_said_keep(api->said, path, kd_engine_model_hash(e), err))
            return -1;
    }
    api->engine = e;
    return 0;
}

void kd_api_release(struct kd_api *api)
{
    kd_vocab_close(api->vocab);
    kd_store_close(api->store);
    kd_said_close(api->said);
    kd_counts_release(&api->replies);
    memset(api, 0, sizeof *api);
}

int64_t kd_api_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec;
}

void kd_api_new_id(struct kd_api *api, const char *prefix, char out[40])
{
    uint64_t n = ++api->serial;
    snprintf(out, 40, "%s%016" PRIx64 "%08" PRIx64, prefix, kd_rand_u64(api->salt, n),
             n & 0xffffffff);
}

const char *kd_api_owner(const struct kd_api *api, const struct kd_req *r)
{
    return api->o.shared_cache ? "" : kd_req_owner(r);
}

struct kd_engine *kd_api_engine(struct kd_api *api, struct kd_req *r)
{
    struct kd_engine *e = api->engine;
    struct kd_fault f = {.status = 503, .code = "loading", .message = "the model is being loaded"};
    if (e && !api->draining && kd_engine_healthy(e, NULL))
        return e;
    if (e && api->draining)
        f = (struct kd_fault){
            .status = 503, .code = "shutting_down", .message = "the server is shutting down"};
    else if (e)
        f = (struct kd_fault){
            .status = 503, .code = "engine_failed", .message = "the model has failed"};
    kd_req_add_header(r, "Retry-After", e ? "30" : "5");
    kd_req_fail(r, &f);
    return NULL;
}

/* Errors. */

static const char *type_of(const struct kd_fault *f, bool anthropic)
{
    if (f->type)
        return f->type;
    switch (f->status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return anthropic ? "not_found_error" : "invalid_request_error";
    case 413:
        return anthropic ? "request_too_large" : "invalid_request_error";
    case 429:
        return "rate_limit_error";
    case 503:
    case 529:
        return anthropic ? "overloaded_error" : "server_error";
    default:
        return f->status < 500 ? "invalid_request_error" : anthropic ? "api_error" : "server_error";
    }
}

static void text_or_null(struct kd_buf *out, const char *key, const char *s)
{
    kd_buf_printf(out, ",\"%s\":", key);
    if (s)
        kd_json_quote(out, s, strlen(s));
    else
        kd_buf_str(out, "null");
}

void kd_api_fail(void *ctx, const char *path, const struct kd_fault *f, const char *id,
                 struct kd_buf *out)
{
    const char *message = f->message ? f->message : "the request failed";
    bool anthropic = path && !strncmp(path, "/v1/messages", 12);
    (void)ctx;
    kd_buf_str(out,
               anthropic ? "{\"type\":\"error\",\"error\":{\"type\":" : "{\"error\":{\"message\":");
    if (anthropic) {
        const char *type = type_of(f, true);
        kd_json_quote(out, type, strlen(type));
        text_or_null(out, "message", message);
        kd_buf_char(out, '}');
        text_or_null(out, "request_id", id);
    } else {
        kd_json_quote(out, message, strlen(message));
        text_or_null(out, "type", type_of(f, false));
        text_or_null(out, "param", f->param);
        text_or_null(out, "code", f->code);
        kd_buf_char(out, '}');
    }
    kd_buf_char(out, '}');
}

/* tokenize, detokenize */

static void send(struct kd_req *r, struct kd_buf *out)
{
    if (out->failed)
        kd_req_fail(r, &(struct kd_fault){.status = 500, .message = "no memory for the reply"});
    else
        kd_req_reply(r, 200, "application/json", out->data ? out->data : "", out->size_bytes);
    kd_buf_release(out);
}

static void put_ids(struct kd_buf *out, const struct kd_ids *ids)
{
    for (int64_t i = 0; i < ids->count; i++)
        kd_buf_printf(out, "%s%d", i ? "," : "", ids->id[i]);
}

static int tokenize(struct kd_api *api, const char *owner, const char *body, size_t n,
                    struct kd_buf *out, struct kd_bad *bad)
{
    struct kd_jtree t;
    struct kd_ids ids = {0};
    struct kd_ask ask;
    struct kd_err err;
    if (kd_ask_parse(&t, body, n, bad))
        return -1;
    const struct kd_jnode *root = kd_jtree_root(&t), *s = kd_jtree_get(&t, root, "prompt");
    s = s ? s : kd_jtree_get(&t, root, "content");
    int rc = kd_ask_model(api, &t, bad);
    if (!rc && kd_jtree_get(&t, root, "messages")) {
        rc = kd_ask_count(&ask, api, owner, body, n, bad);
        if (!rc)
            ids = ask.prompt[0];
        if (!rc)
            ask.prompt[0] = (struct kd_ids){0};
        kd_ask_release(&ask);
    } else if (!rc && (!s || s->kind != KD_JSON_STR)) {
        rc = kd_bad_at(bad, 400, NULL, "prompt", "'prompt' is missing or not a string");
    } else if (!rc && kd_tok_encode(api->tok, s->text, s->bytes, &ids, &err)) {
        rc = kd_bad_at(bad, 500, NULL, NULL, "%s", err.msg);
    }
    kd_jtree_release(&t);
    if (!rc) {
        kd_buf_printf(out, "{\"count\":%" PRId64 ",\"max_model_len\":%" PRId64 ",\"tokens\":[",
                      ids.count, api->context);
        put_ids(out, &ids);
        kd_buf_str(out, "]}");
    }
    kd_ids_release(&ids);
    return rc;
}

/* A request whose answer is made of its body alone. */
static void answer(struct kd_api *api, struct kd_req *r,
                   int (*make)(struct kd_api *, const char *owner, const char *body, size_t n,
                               struct kd_buf *out, struct kd_bad *bad))
{
    struct kd_bad bad;
    struct kd_buf out;
    size_t n;
    const char *body = kd_req_body(r, &n);
    if (!kd_api_engine(api, r))
        return;
    kd_buf_init(&out, 1u << 30);
    if (!make(api, kd_api_owner(api, r), body, n, &out, &bad)) {
        send(r, &out);
        return;
    }
    kd_buf_release(&out);
    kd_bad_reply(r, &bad);
}

void kd_api_tokenize(void *ctx, struct kd_req *r)
{
    answer(ctx, r, tokenize);
}

/* A chat as the model reads it, control tokens written out. */
static int apply_template(struct kd_api *api, const char *owner, const char *body, size_t n,
                          struct kd_buf *out, struct kd_bad *bad)
{
    struct kd_ask ask;
    struct kd_buf text;
    struct kd_err err;
    kd_buf_init(&text, 1u << 30);
    int rc = kd_ask_count(&ask, api, owner, body, n, bad);
    if (!rc && kd_tok_decode(api->tok, ask.prompt[0].id, ask.prompt[0].count, &text, &err))
        rc = kd_bad_at(bad, 500, NULL, NULL, "%s", err.msg);
    if (!rc) {
        kd_buf_printf(out, "{\"count\":%" PRId64 ",\"prompt\":", ask.prompt[0].count);
        kd_json_quote(out, text.data ? text.data : "", text.size_bytes);
        kd_buf_char(out, '}');
    }
    kd_ask_release(&ask);
    kd_buf_release(&text);
    return rc;
}

void kd_api_template(void *ctx, struct kd_req *r)
{
    answer(ctx, r, apply_template);
}

static int detokenize(struct kd_api *api, const struct kd_jtree *t, struct kd_buf *out,
                      struct kd_bad *bad)
{
    const struct kd_jnode *list = kd_jtree_get(t, kd_jtree_root(t), "tokens");
    if (!list || list->kind != KD_JSON_ARRAY)
        return kd_bad_at(bad, 400, NULL, "tokens", "'tokens' is missing or not a list");
    for (const struct kd_jnode *v = kd_jtree_first(t, list); v; v = kd_jtree_next(t, v)) {
        size_t n = 0;
        int64_t id = 0;
        for (const char *s = v->text; v->kind == KD_JSON_INT && *s && id >= 0; s++)
            id = *s < '0' || *s > '9' || id > INT32_MAX / 16 ? -1 : id * 10 + (*s - '0');
        const char *s = v->kind == KD_JSON_INT && id >= 0 && id < kd_tok_vocab(api->tok)
                            ? kd_tok_bytes(api->tok, (int32_t)id, &n)
                            : NULL;
        if (!s)
            return kd_bad_at(bad, 400, NULL, "tokens", "an item of 'tokens' is no token's id");
        kd_buf_add(out, s, n);
    }
    return 0;
}

void kd_api_detokenize(void *ctx, struct kd_req *r)
{
    struct kd_api *api = ctx;
    struct kd_jtree t;
    struct kd_bad bad;
    struct kd_buf text, out;
    size_t n;
    const char *body = kd_req_body(r, &n);
    if (!kd_api_engine(api, r))
        return;
    if (kd_ask_parse(&t, body, n, &bad)) {
        kd_bad_reply(r, &bad);
        return;
    }
    kd_buf_init(&text, 1u << 30);
    kd_buf_init(&out, 1u << 30);
    if (detokenize(api, &t, &text, &bad)) {
        kd_bad_reply(r, &bad);
    } else {
        kd_buf_str(&out, "{\"prompt\":");
        kd_json_quote(&out, text.data ? text.data : "", text.size_bytes);
        kd_buf_char(&out, '}');
        send(r, &out);
    }
    kd_jtree_release(&t);
    kd_buf_release(&text);
}

/* For operators: how the server is set up, and what it is at. */

void kd_api_props(void *ctx, struct kd_req *r)
{
    struct kd_api *api = ctx;
    struct kd_engine *e = kd_api_engine(api, r);
    struct kd_engine_metrics m;
    struct kd_buf out;
    if (!e)
        return;
    kd_engine_metrics(e, &m);
    kd_buf_init(&out, 1 << 20);
    struct kd_jw w = {.out = &out, .compact = true};
    kd_jw_open(&w, NULL, '{');
    kd_jw_str(&w, "model", api->o.model_id);
    kd_jw_str(&w, "model_hash", kd_engine_model_hash(e));
    kd_jw_str(&w, "build_info", "kondense " KD_VERSION);
    kd_jw_int(&w, "n_ctx", api->context);
    kd_jw_int(&w, "vocab", api->cfg->vocab);
    kd_jw_str(&w, "effort", api->o.effort ? api->o.effort : "max");
    kd_jw_int(&w, "max_tokens", api->o.max_tokens ? api->o.max_tokens : 131072);
    kd_jw_int(&w, "experts_used", api->o.experts_used ? api->o.experts_used : api->cfg->topk);
    if (api->o.expert_mass > 0)
        kd_jw_num(&w, "expert_mass", api->o.expert_mass);
    kd_jw_int(&w, "memory_planned_bytes", m.memory_planned_bytes);
    kd_jw_close(&w, '}');
    send(r, &out);
}

/* Of this key alone, and no text of anybody. */
void kd_api_slots(void *ctx, struct kd_req *r)
{
    enum { SLOTS = 1024 };
    struct kd_api *api = ctx;
    struct kd_engine *e = kd_api_engine(api, r);
    struct kd_slot *s;
    struct kd_buf out;
    if (!e)
        return;
    if (kd_mem_new(&s, SLOTS, sizeof *s, "slots", NULL)) {
        kd_req_fail(r, &(struct kd_fault){.status = 500, .message = "no memory for the reply"});
        return;
    }
    int64_t n = kd_engine_slots(e, s, SLOTS);
    kd_buf_init(&out, 4 << 20);
    struct kd_jw w = {.out = &out, .compact = true};
    kd_jw_open(&w, NULL, '[');
    for (int64_t i = 0; i < n; i++) {
        if (strcmp(s[i].owner, kd_api_owner(api, r)) != 0)
            continue;
        kd_jw_open(&w, NULL, '{');
        kd_jw_str(&w, "state", s[i].running ? "running" : "waiting");
        kd_jw_int(&w, "choices", s[i].choices);
        kd_jw_int(&w, "prompt_tokens", s[i].prompt_tokens);
        kd_jw_int(&w, "cached_tokens", s[i].cached_tokens);
        kd_jw_int(&w, "made_tokens", s[i].made_tokens);
        kd_jw_num(&w, "queued_s", s[i].queued_s);
        kd_jw_num(&w, "running_s", s[i].running_s);
        kd_jw_close(&w, '}');
    }
    kd_jw_close(&w, ']');
    kd_mem_free(s);
    send(r, &out);
}

/* Health: is the process worth keeping; ready: is it worth sending to. */

static void state(struct kd_req *r, bool good, const char *word)
{
    char text[128];
    int n = snprintf(text, sizeof text, "{\"status\":\"%s\"}", word);
    if (!good)
        kd_req_add_header(r, "Retry-After", "5");
    kd_req_reply(r, good ? 200 : 503, "application/json", text, (size_t)n);
}

void kd_api_health(void *ctx, struct kd_req *r)
{
    struct kd_api *api = ctx;
    struct kd_engine *e = api->engine;
    if (!e)
        state(r, false, "loading");
    else if (!kd_engine_healthy(e, NULL))
        state(r, false, "failed");
    else
        state(r, true, "ok");
}

void kd_api_ready(void *ctx, struct kd_req *r)
{
    struct kd_api *api = ctx;
    if (api->draining)
        state(r, false, "draining");
    else
        kd_api_health(ctx, r);
}

void kd_api_version(void *ctx, struct kd_req *r)
{
    static const char text[] = "{\"version\":\"" KD_VERSION "\"}";
    (void)ctx;
    kd_req_reply(r, 200, "application/json", text, sizeof text - 1);
}

/* Metrics. */

void kd_api_count(struct kd_api *api, const struct kd_access *a)
{
    const char *path = "other";
    for (const struct kd_route *k = kd_api_routes; k->method; k++) {
        size_t n = strlen(k->path);
        bool prefix = n && k->path[n - 1] == '*';
        if (prefix ? !strncmp(k->path, a->path, n - 1) : !strcmp(k->path, a->path))
            path = k->path;
    }
    kd_counts_add(&api->replies, path, a->status, 1);
}

struct row {
    const char *name, *help;
    double value;
};

static void put_rows(struct kd_buf *out, enum kd_metric_kind kind, const struct row *rows)
{
    for (; rows->name; rows++)
        kd_metric(out, rows->name, kind, rows->help, rows->value);
}

static void put_counters(struct kd_buf *out, const struct kd_api *api,
                         const struct kd_engine_metrics *m)
{
    const struct row rows[] = {
        {"kondense_requests_total", "Requests the engine took.", (double)m->requests},
        {"kondense_refused_total", "Requests the engine refused.", (double)m->refused},
        {"kondense_aborted_total", "Answers whose client went early.", (double)api->aborted},
        {"kondense_prompt_tokens_total", "Tokens of prompts.", (double)m->prompt_tokens},
        {"kondense_prefill_tokens_total", "Prompt tokens computed.", (double)m->prefill_tokens},
        {"kondense_generation_tokens_total", "Tokens made.", (double)m->decode_tokens},
        {"kondense_reasoning_tokens_total", "Tokens made in thinking.",
         (double)api->reasoning_tokens},
        {"kondense_answer_tokens_total", "Tokens made outside thinking.",
         (double)api->answer_tokens},
        {"kondense_idle_prefill_tokens_total", "Tokens prefilled again while idle.",
         (double)m->idle_prefill_tokens},
        {"kondense_cached_tokens_total", "Prompt tokens found in a cache.",
         (double)m->cached_tokens},
        {"kondense_cache_hits_total", "Prompts with a cached prefix.", (double)m->cache_hits},
        {"kondense_cache_misses_total", "Prompts without.", (double)m->cache_misses},
        {"kondense_cache_evicted_total", "Cached states dropped.", (double)m->cache_evicted},
        {"kondense_disk_cache_hits_total", "Prefixes read from disk.", (double)m->disk_hits},
        {"kondense_disk_cache_written_total", "Prefixes written to disk.", (double)m->disk_written},
        {"kondense_disk_cache_refused_total", "Prefix files that were damaged or foreign.",
         (double)m->disk_refused},
        {"kondense_draft_tokens_total", "Tokens drafted.", (double)m->draft_tokens},
        {"kondense_draft_accepted_total", "Drafted tokens accepted.", (double)m->draft_accepted},
        {"kondense_dropped_calls_total", "Calls of tools that were not declared.",
         (double)api->dropped_calls},
        {"kondense_steps_total", "Steps of the engine.", (double)m->steps},
        {"kondense_busy_seconds_total", "Time in the model.", m->busy_s},
        {"kondense_engine_cpu_seconds_total", "CPU time of the engine's threads.", m->cpu_s},
        {"process_cpu_seconds_total", "CPU time of the whole process.", kd_clock_cpu_s()},
        {0}};
    put_rows(out, KD_METRIC_COUNTER, rows);
    kd_metric_head(out, "kondense_finished_total", KD_METRIC_COUNTER, "Choices by end.");
    for (int i = 0; i <= KD_FINISH_ERROR; i++) {
        char label[64];
        if (i == KD_FINISH_NONE)
            continue;
        snprintf(label, sizeof label, "reason=\"%s\"", kd_finish_name((enum kd_finish)i));
        kd_metric_value(out, "kondense_finished_total", label, (double)m->finished[i]);
    }
}

static void put_gauges(struct kd_buf *out, struct kd_api *api, const struct kd_engine_metrics *m)
{
    const struct row rows[] = {
        {"kondense_running", "Sequences that run.", (double)m->running},
        {"kondense_waiting", "Requests that wait.", (double)m->queued},
        {"kondense_paused", "Sequences whose reader is slow.", (double)m->paused},
        {"kondense_memory_planned_bytes", "Memory for sequences.", (double)m->memory_planned_bytes},
        {"kondense_memory_used_bytes", "Of it in use.", (double)m->memory_used_bytes},
        {"kondense_cache_bytes", "Prefix cache in memory.", (double)m->cache_bytes},
        {"kondense_cache_entries", "States in it.", (double)m->cache_entries},
        {"kondense_disk_cache_bytes", "Prefix cache on disk.", (double)m->disk_bytes},
        {"kondense_disk_cache_entries", "States in it.", (double)m->disk_entries},
        {"kondense_prefill_tokens_per_second", "Recent.", m->prefill_rate},
        {"kondense_decode_tokens_per_second", "Recent.", m->decode_rate},
        {"kondense_draft_accept_ratio", "Recent.", m->draft_rate},
        {"kondense_stored_responses_bytes", "Responses kept.", (double)kd_store_bytes(api->store)},
        {"kondense_connections", "Open connections.",
         api->srv ? (double)kd_srv_connections(api->srv) : 0},
        {"vllm:num_requests_running", "As kondense_running.", (double)m->running},
        {"vllm:num_requests_waiting", "As kondense_waiting.", (double)m->queued},
        {0}};
    put_rows(out, KD_METRIC_GAUGE, rows);
}

void kd_api_metrics(void *ctx, struct kd_req *r)
{
    static const char replies[] = "kondense_replies_total";
    struct kd_api *api = ctx;
    struct kd_engine_metrics m;
    struct kd_buf out;
    struct kd_engine *e = api->engine;
    kd_buf_init(&out, 1 << 20);
    kd_metric(&out, "kondense_up", KD_METRIC_GAUGE, "1 when the model is open.", e != NULL);
    kd_metric_head(&out, replies, KD_METRIC_COUNTER, "Replies by path and status.");
    kd_counts_write(&api->replies, &out, replies, "path", "status");
    if (e) {
        const struct {
            const char *name, *help;
            const struct kd_histogram *h;
        } h[] = {{"kondense_time_to_first_token_seconds", "Submit to first token.", &m.first_token},
                 {"kondense_time_per_output_token_seconds", "Between tokens.", &m.per_token},
                 {"kondense_queue_seconds", "Waiting for a place.", &m.queue_wait},
                 {"kondense_step_seconds", "One step of the engine.", &m.step}};
        kd_engine_metrics(e, &m);
        put_counters(&out, api, &m);
        put_gauges(&out, api, &m);
        for (size_t i = 0; i < sizeof h / sizeof *h; i++)
            kd_metric_histogram(&out, h[i].name, h[i].help, kd_histogram_bound, h[i].h->count,
                                KD_HISTOGRAM_BINS, h[i].h->sum);
    }
    kd_req_reply(r, 200, "text/plain; version=0.0.4; charset=utf-8", out.data, out.size_bytes);
    kd_buf_release(&out);
}
