#include "serve/api_stream.h"

#include "base/clock.h"
#include "base/mem.h"
#include "serve/api_args.h"
#include "serve/api_echo.h"
#include "text/uclass.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { TEXT_BYTES_MAX = 256 << 20, EVENTS = 64, KEYS_BYTES_MAX = 16 << 20 };

/* One choice's inner state: the worker's half (hooks) and the reader's half never touch. */
struct kd_choice_work {
    struct kd_flow *f;
    struct kd_choice *c;
    /* worker */
    struct kd_turn *wturn;
    struct kd_turn_rule *rule;
    struct kd_buf *visible;
    int64_t wmade, wthink;
    bool wthinking;
    int64_t force;        /* ids of `budget` already forced, or -1 */
    struct kd_ids budget; /* what ends thinking */
    struct kd_ids stop;
    /* reader */
    struct kd_turn *turn;
    int64_t limit;   /* bytes of answer this token may still add, or -1 */
    int64_t settled; /* tokens whose channel is known */
    bool tag_open, call_open, dropping;
    struct kd_ids made;    /* all tokens of the turn */
    bool untold;           /* a call was dropped: the client does not know the whole turn */
    struct kd_buf pending; /* logprobs of tokens whose text has not come yet */
    struct kd_buf held;    /* of plain text: bytes of a character not yet whole */
    /* the argument being made */
    struct kd_buf keys; /* seen in this call, NUL after each */
    struct kd_buf value, scratch;
    enum { ARG_NONE, ARG_STREAM, ARG_WAIT, ARG_DROP } arg;
    bool arg_string;
    unsigned types;
    bool any_arg;
};

/* Worker's half. */

static void on_visible(void *ctx, enum kd_turn_part part, const char *name, const char *type,
                       const char *text, size_t bytes)
{
    struct kd_choice_work *w = ctx;
    (void)name;
    (void)type;
    if (part == KD_TURN_RESPONSE)
        kd_buf_add(w->visible, text, bytes);
    w->wthinking = part == KD_TURN_THINK && w->force < 0;
}

static int hook_token(void *ctx, int32_t id, struct kd_buf *visible, struct kd_err *err)
{
    struct kd_choice_work *w = ctx;
    w->visible = visible;
    w->wmade++;
    if (w->force >= 0)
        w->force++;
    else if (w->wthinking)
        w->wthink++;
    /* A tag begins: thinking is over, unless text of it follows after all. */
    if (kd_tok_is_special(w->f->api->tok, id))
        w->wthinking = false;
    if (w->rule && kd_turn_rule_take(w->rule, id, err))
        return -1;
    if (w->f->ask.chat)
        return kd_turn_feed(w->wturn, id, err) < 0 ? -1 : 0;
    size_t n = 0;
    const char *s = kd_tok_bytes(w->f->api->tok, id, &n);
    if (s && !kd_tok_is_special(w->f->api->tok, id))
        kd_buf_add(visible, s, n);
    return 0;
}

static void only(uint64_t *bits, int64_t vocab, int32_t id)
{
    memset(bits, 0, (size_t)((vocab + 63) / 64) * sizeof *bits);
    bits[id / 64] |= 1ull << (id % 64);
}

static int hook_mask(void *ctx, uint64_t *bits, int64_t vocab, struct kd_err *err)
{
    struct kd_choice_work *w = ctx;
    const struct kd_ask *a = &w->f->ask;
    bool changed = false;
    if (a->chat && w->force < 0 && w->wthinking && a->thinking_budget >= 0 &&
        w->wthink >= a->thinking_budget)
        w->force = 0;
    if (w->force >= 0 && w->force < w->budget.count) {
        only(bits, vocab, w->budget.id[w->force]);
        return 1;
    }
    if (w->rule) {
        if (kd_turn_rule_mask(w->rule, bits, vocab, err))
            return -1;
        changed = true;
    } else if (w->wmade < a->min_tokens) {
        for (int64_t i = 0; i < w->stop.count; i++)
            bits[w->stop.id[i] / 64] &= ~(1ull << (w->stop.id[i] % 64));
        changed = true;
    }
    return changed;
}

/* Reader's half. */

static void tell(struct kd_choice_work *w, enum kd_part part, const struct kd_call *call,
                 const char *text, size_t bytes)
{
    if (w->f->sink.part)
        w->f->sink.part(w->f->sink.ctx, w->c, part, call, text, bytes);
}

static void flush_logprobs(struct kd_choice_work *w)
{
    struct kd_buf *to[] = {&w->c->logprobs, &w->c->all_logprobs};
    if (!w->pending.size_bytes)
        return;
    for (int i = 0; i < 2; i++) {
        if (to[i]->size_bytes)
            kd_buf_char(to[i], ',');
        kd_buf_add(to[i], w->pending.data, w->pending.size_bytes);
    }
    kd_buf_clear(&w->pending);
}

static void add_text(struct kd_choice_work *w, const char *text, size_t bytes)
{
    if (w->limit >= 0 && bytes > (size_t)w->limit)
        bytes = (size_t)w->limit;
    if (w->limit >= 0)
        w->limit -= (int64_t)bytes;
    flush_logprobs(w);
    if (!bytes)
        return;
    kd_buf_add(&w->c->text, text, bytes);
    tell(w, KD_PART_TEXT, NULL, text, bytes);
}

static void add_think(struct kd_choice_work *w, const char *text, size_t bytes)
{
    w->c->reasoning += w->c->made - w->settled;
    kd_buf_clear(&w->pending);
    kd_buf_add(&w->c->think, text, bytes);
    tell(w, KD_PART_THINK, NULL, text, bytes);
}

static struct kd_call *open_call(struct kd_choice_work *w, const char *name)
{
    struct kd_choice *c = w->c;
    const struct kd_ask *a = &w->f->ask;
    struct kd_call *call;
    if (a->choose == KD_CHOOSE_NONE || (!a->parallel && c->call_count))
        return NULL;
    if (!kd_ask_tool(a, name)) {
        w->f->api->dropped_calls++;
        w->f->dropped++;
        return NULL;
    }
    if (c->call_count == c->call_cap) {
        struct kd_call **more;
        c->call_cap = c->call_cap ? 2 * c->call_cap : 8;
        if (kd_mem_new(&more, c->call_cap, sizeof *more, "calls", NULL)) {
            w->f->oom = true;
            return NULL;
        }
        if (c->call_count)
            memcpy(more, c->calls, (size_t)c->call_count * sizeof(struct kd_call *));
        kd_mem_free(c->calls);
        c->calls = more;
    }
    if (kd_mem_zero(&call, 1, sizeof *call, "call", NULL)) {
        w->f->oom = true;
        return NULL;
    }
    call->index = c->call_count;
    kd_api_new_id(w->f->api, "call_", call->id);
    kd_buf_init(&call->name, KEYS_BYTES_MAX);
    kd_buf_init(&call->args, TEXT_BYTES_MAX);
    kd_buf_str(&call->name, name);
    kd_buf_str(&call->args, "");
    c->calls[c->call_count++] = call;
    return call;
}

static void put_args(struct kd_choice_work *w, const char *text, size_t bytes)
{
    struct kd_call *call = w->c->calls[w->c->call_count - 1];
    if (!bytes)
        return;
    kd_buf_add(&call->args, text, bytes);
    tell(w, KD_PART_ARGS, call, text, bytes);
}

static bool seen(struct kd_choice_work *w, const char *key)
{
    const char *s = w->keys.data, *end = s ? s + w->keys.size_bytes : s;
    for (; s < end; s += strlen(s) + 1)
        if (!strcmp(s, key))
            return true;
    kd_buf_add(&w->keys, key, strlen(key) + 1);
    return false;
}

static void begin_arg(struct kd_choice_work *w, const char *key, const char *type)
{
    struct kd_call *call = w->c->calls[w->c->call_count - 1];
    const struct kd_tool *tool = kd_ask_tool(&w->f->ask, call->name.data);
    if (seen(w, key)) {
        w->arg = ARG_DROP;
        return;
    }
    w->arg_string = !strcmp(type, "string");
    w->types = tool ? kd_arg_types(&w->f->ask.tree, tool->schema, key) : 0;
    w->arg = w->arg_string && w->types == KD_TYPE_STR ? ARG_STREAM : ARG_WAIT;
    kd_buf_clear(&w->value);
    kd_buf_clear(&w->scratch);
    kd_buf_char(&w->scratch, w->any_arg ? ',' : '{');
    kd_jtree_quote(&w->scratch, key, strlen(key));
    kd_buf_char(&w->scratch, ':');
    w->any_arg = true;
    if (w->arg == ARG_STREAM) {
        kd_buf_char(&w->scratch, '"');
        put_args(w, w->scratch.data, w->scratch.size_bytes);
    }
}

static void more_arg(struct kd_choice_work *w, const char *text, size_t bytes)
{
    if (w->arg == ARG_WAIT)
        kd_buf_add(&w->value, text, bytes);
    if (w->arg != ARG_STREAM)
        return;
    kd_buf_clear(&w->scratch);
    kd_jtree_quote(&w->scratch, text, bytes);
    if (w->scratch.size_bytes > 2)
        put_args(w, w->scratch.data + 1, w->scratch.size_bytes - 2);
}

static void end_arg(struct kd_choice_work *w)
{
    if (w->arg == ARG_STREAM)
        put_args(w, "\"", 1);
    if (w->arg == ARG_WAIT) {
        kd_arg_value(&w->scratch, w->value.data ? w->value.data : "", w->value.size_bytes,
                     w->arg_string, w->types);
        put_args(w, w->scratch.data, w->scratch.size_bytes);
    }
    w->arg = ARG_NONE;
}

static void begin_call(struct kd_choice_work *w, const char *name)
{
    struct kd_call *call = open_call(w, name);
    w->dropping = !call;
    w->untold = w->untold || !call;
    w->any_arg = false;
    kd_buf_clear(&w->keys);
    kd_buf_clear(&w->pending);
    if (call)
        tell(w, KD_PART_CALL, call, NULL, 0);
}

static void end_call(struct kd_choice_work *w)
{
    struct kd_call *call = w->c->calls[w->c->call_count - 1];
    put_args(w, w->any_arg ? "}" : "{}", w->any_arg ? 1 : 2);
    call->complete = true;
    tell(w, KD_PART_CALL_END, call, NULL, 0);
}

static void on_part(void *ctx, enum kd_turn_part part, const char *name, const char *type,
                    const char *text, size_t bytes)
{
    struct kd_choice_work *w = ctx;
    if (part == KD_TURN_THINK)
        add_think(w, text, bytes);
    else if (part == KD_TURN_RESPONSE)
        add_text(w, text, bytes);
    else if (part == KD_TURN_CALL_BEGIN)
        begin_call(w, name);
    else if (part == KD_TURN_ARG_BEGIN && !w->dropping)
        begin_arg(w, name, type);
    else if (part == KD_TURN_ARG && !w->dropping)
        more_arg(w, text, bytes);
    else if (part == KD_TURN_ARG_END && !w->dropping)
        end_arg(w);
    else if (part == KD_TURN_CALL_END && !w->dropping)
        end_call(w);
    w->settled = w->c->made;
}

/* Text of a completion: whole characters, each byte that is not UTF-8 as U+FFFD. */
static void add_plain(struct kd_choice_work *w, const char *text, size_t bytes, bool last)
{
    struct kd_buf *h = &w->held;
    size_t at = 0;
    kd_buf_clear(&w->scratch);
    kd_buf_add(h, text, bytes);
    while (h->data && at < h->size_bytes) {
        uint32_t cp;
        const unsigned char *s = (const unsigned char *)h->data + at;
        size_t left = h->size_bytes - at, n = kd_utf8_char(s, left, &cp);
        size_t need = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : s[0] >= 0xc2 ? 2 : 1;
        bool grows = !n && left < need && s[0] < 0xf5;
        for (size_t i = 1; i < left && grows; i++)
            grows = (s[i] & 0xc0) == 0x80;
        if (grows && !last)
            break;
        kd_buf_add(&w->scratch, n ? (const char *)s : "\xef\xbf\xbd", n ? n : 3);
        at += n ? n : 1;
    }
    if (at && h->data) {
        h->size_bytes -= at;
        memmove(h->data, h->data + at, h->size_bytes);
    }
    if (w->scratch.size_bytes)
        add_text(w, w->scratch.data, w->scratch.size_bytes);
}

void kd_flow_token_json(struct kd_buf *out, const struct kd_tok *tok, int32_t id, double logprob)
{
    size_t n = 0;
    const char *s = kd_tok_bytes(tok, id, &n);
    n = s ? n : 0;
    s = s ? s : "";
    kd_buf_str(out, "\"token\":");
    kd_json_quote(out, s, n);
    /* JSON has no infinity; the API's own servers print this for it. */
    kd_buf_printf(out, ",\"logprob\":%.9g,\"bytes\":[", isfinite(logprob) ? logprob : -9999.0);
    for (size_t i = 0; i < n; i++)
        kd_buf_printf(out, "%s%d", i ? "," : "", (unsigned char)s[i]);
    kd_buf_char(out, ']');
}

static void note_logprob(struct kd_choice_work *w, const struct kd_event *e)
{
    struct kd_buf *p = &w->pending;
    const struct kd_tok *tok = w->f->api->tok;
    if (p->size_bytes)
        kd_buf_char(p, ',');
    kd_buf_char(p, '{');
    kd_flow_token_json(p, tok, e->id, (double)e->logprob);
    kd_buf_str(p, ",\"top_logprobs\":[");
    for (int i = 0; i < e->top_count; i++) {
        kd_buf_str(p, i ? ",{" : "{");
        kd_flow_token_json(p, tok, e->top[i].id, (double)e->top[i].logprob);
        kd_buf_char(p, '}');
    }
    kd_buf_str(p, "]}");
}

static int take_token(struct kd_choice_work *w, const struct kd_event *e, struct kd_err *err)
{
    const struct kd_tok *tok = w->f->api->tok;
    bool special = kd_tok_is_special(tok, e->id);
    w->c->made++;
    w->limit = e->keep_bytes;
    if (w->f->ask.token_ids)
        kd_buf_printf(&w->c->ids, "%s%d", w->c->ids.size_bytes ? "," : "", e->id);
    if (special) {
        kd_buf_clear(&w->pending);
        w->tag_open =
            e->id == kd_tok_special(tok, "<|open|>") || e->id == kd_tok_special(tok, "<|close|>");
    } else if (w->f->ask.logprobs && !w->tag_open) {
        note_logprob(w, e);
    }
    if (w->f->ask.chat)
        return kd_ids_add(&w->made, e->id, err) || kd_turn_feed(w->turn, e->id, err) < 0 ? -1 : 0;
    if (!special)
        add_plain(w, e->text, e->text_bytes, false);
    return 0;
}

static int finish_choice(struct kd_choice_work *w, const struct kd_event *e, struct kd_request *run,
                         struct kd_err *err)
{
    struct kd_choice *c = w->c;
    c->finish = e->finish;
    c->stop = e->stop;
    if (e->stop >= 0)
        w->limit = 0; /* bytes held back come after the stop string */
    else
        w->limit = -1;
    if (w->f->ask.chat && kd_turn_finish(w->turn, err))
        return -1;
    if (!w->f->ask.chat)
        add_plain(w, "", 0, true);
    if (e->finish == KD_FINISH_ERROR) {
        const struct kd_err *why = kd_request_error(run);
        c->err = why ? *why : (struct kd_err){.code = KD_EINVAL, .msg = "the engine failed"};
    }
    if (w->f->ask.chat && e->finish == KD_FINISH_STOP && e->stop < 0 && !w->untold)
        kd_echo_keep(w->f->api, w->f->owner, c, w->f->ask.thinking, &w->made);
    w->f->ended++;
    w->f->api->reasoning_tokens += c->reasoning;
    w->f->api->answer_tokens += c->made - c->reasoning;
    if (w->f->sink.end)
        w->f->sink.end(w->f->sink.ctx, c);
    return 0;
}

static int take_event(struct kd_flow *f, int64_t run, const struct kd_event *e)
{
    struct kd_choice *c = &f->choice[run * f->ask.choices + e->choice];
    struct kd_choice_work *w = c->work;
    if (c->finish != KD_FINISH_NONE)
        return 0;
    if ((e->id >= 0 && take_token(w, e, &c->err)) ||
        (e->finish != KD_FINISH_NONE && finish_choice(w, e, f->runs[run], &c->err)) || f->oom) {
        if (f->oom)
            kd_fail(&c->err, KD_ENOMEM, "no memory for the answer");
        c->finish = KD_FINISH_ERROR;
        return -1;
    }
    return c->finish == KD_FINISH_ERROR ? -1 : 0;
}

/* Events of a run that does not end yet are few at a time, so prompts of one request, which are
 * rarely more than one, take turns. */
int kd_flow_next(struct kd_flow *f, double timeout_s)
{
    struct kd_event *e;
    int rc = 0;
    if (kd_mem_new(&e, EVENTS, sizeof *e, "events", NULL))
        return -1;
    double share = timeout_s / (double)(f->running ? f->running : 1);
    for (int64_t r = 0; r < f->run_count && !rc; r++) {
        if (f->ended == f->choice_count)
            break;
        int64_t n = kd_request_wait(f->runs[r], e, EVENTS, share);
        for (int64_t i = 0; i < n && !rc; i++)
            rc = take_event(f, r, &e[i]);
    }
    kd_mem_free(e);
    if (rc)
        return -1;
    return f->ended == f->choice_count;
}

int kd_flow_wait(struct kd_flow *f, struct kd_req *r)
{
    int rc;
    while (!(rc = kd_flow_next(f, 0.1)))
        if (r && kd_req_gone(r))
            return -1;
    return rc < 0 ? -1 : 0;
}

/* Opening and closing. */

static int open_choice(struct kd_flow *f, int64_t i, struct kd_err *err)
{
    struct kd_choice *c = &f->choice[i];
    const struct kd_ask *a = &f->ask;
    struct kd_choice_work *w;
    static const char budget[] = "<|close|>think<|sep|><|open|>response<|sep|>";
    enum kd_turn_part start = a->thinking ? KD_TURN_THINK : KD_TURN_RESPONSE;
    const char *const stops[] = {"<|end_of_msg|>", "[EOS]"};
    if (kd_mem_zero(&w, 1, sizeof *w, "choice", err))
        return -1;
    c->work = w;
    c->index = i;
    c->prompt = i / a->choices;
    c->stop = -1;
    w->f = f;
    w->c = c;
    w->force = w->limit = -1;
    w->wthinking = a->chat && a->thinking;
    struct kd_buf *b[] = {&c->think,   &c->text, &c->logprobs, &c->all_logprobs, &c->ids,
                          &w->pending, &w->held, &w->keys,     &w->value,        &w->scratch};
    for (size_t k = 0; k < sizeof b / sizeof *b; k++)
        kd_buf_init(b[k], TEXT_BYTES_MAX);
    for (int k = 0; k < 2; k++) {
        int32_t id = kd_tok_special(f->api->tok, stops[k]);
        if (id >= 0 && kd_ids_add(&w->stop, id, err))
            return -1;
    }
    if (!a->chat)
        return 0;
    if (kd_turn_open(&w->turn, f->api->tok, start, on_part, w, err) ||
        kd_turn_open(&w->wturn, f->api->tok, start, on_visible, w, err))
        return -1;
    if (a->thinking_budget >= 0 &&
        kd_chat_markup_ids(f->api->tok, budget, sizeof budget - 1, &w->budget, err))
        return -1;
    return a->grammar ? kd_turn_rule_open(&w->rule, a->grammar, err) : 0;
}

static int start(struct kd_flow *f, int64_t p, const char *owner, double *retry_s,
                 struct kd_bad *bad)
{
    const struct kd_ask *a = &f->ask;
    const struct kd_api_options *o = &f->api->o;
    struct kd_choice_work *w = f->choice[p * a->choices].work;
    struct kd_refused why = {.why = KD_REFUSE_NONE};
    struct kd_err err = {.code = KD_OK};
    struct kd_request_spec s = {.prompt = a->prompt[p].id,
                                .prompt_count = a->prompt[p].count,
                                .max_tokens = a->max_tokens,
                                .choices = a->choices,
                                .sampling = a->sampling,
                                .presence = a->presence,
                                .frequency = a->frequency,
                                .repetition = a->repetition,
                                .bias = a->bias,
                                .bias_count = a->bias_count,
                                .logprobs = a->logprobs,
                                .stop_ids = w->stop.id,
                                .stop_id_count = w->stop.count,
                                .stops = a->stops,
                                .stop_bytes = a->stop_bytes,
                                .stop_count = a->stop_count,
                                .ignore_eos = a->ignore_eos,
                                .experts_used = o->experts_used,
                                .expert_mass = o->expert_mass,
                                .deadline_s = o->timeout_s > 0 ? kd_clock_s() + o->timeout_s : 0,
                                .background = a->background,
                                .hooks = f->hooks ? f->hooks + p * a->choices : NULL};
    /* Several prompts draw as choices after one another, so that each has draws of its own. */
    s.sampling.choice = (uint64_t)(p * a->choices);
    snprintf(s.owner, sizeof s.owner, "%s", owner);
    if (!kd_engine_submit(f->api->engine, &s, &f->runs[p], &why, &err)) {
        f->run_count++;
        return 0;
    }
    *retry_s = why.retry_s;
    switch (why.why) {
    case KD_REFUSE_BAD:
        return kd_bad_at(bad, 400, NULL, NULL, "%s", err.msg);
    case KD_REFUSE_TOO_LONG:
        return kd_bad_at(bad, 400, "context_length_exceeded", a->chat ? "messages" : "prompt", "%s",
                         err.msg);
    case KD_REFUSE_FULL:
        return kd_bad_at(bad, 429, "queue_full", NULL, "%s", err.msg);
    case KD_REFUSE_DRAINING:
        return kd_bad_at(bad, 503, "shutting_down", NULL, "%s", err.msg);
    case KD_REFUSE_NONE:
    case KD_REFUSE_ERROR:
        break;
    }
    return kd_bad_at(bad, 500, NULL, NULL, "%s", err.msg);
}

int kd_flow_open(struct kd_flow *f, struct kd_api *api, struct kd_ask *ask, const char *owner,
                 double *retry_s, struct kd_bad *bad)
{
    struct kd_err err;
    struct kd_sink sink = f->sink;
    memset(f, 0, sizeof *f);
    f->sink = sink;
    f->api = api;
    snprintf(f->owner, sizeof f->owner, "%s", owner);
    f->ask = *ask;
    memset(ask, 0, sizeof *ask);
    int64_t count = f->ask.prompt_count * f->ask.choices;
    int rc = kd_mem_zero(&f->choice, count, sizeof *f->choice, "choices", &err) ||
             kd_mem_zero(&f->runs, f->ask.prompt_count, sizeof *f->runs, "requests", &err) ||
             kd_mem_zero(&f->hooks, count, sizeof *f->hooks, "hooks", &err);
    f->choice_count = f->choice ? count : 0;
    *retry_s = 0;
    if (!rc && (!f->choice || !f->runs || !f->hooks))
        rc = kd_fail(&err, KD_EINVAL, "a request without a prompt");
    for (int64_t i = 0; i < count && !rc; i++) {
        rc = open_choice(f, i, &err);
        bool masked = f->ask.grammar || f->ask.min_tokens || f->ask.thinking_budget >= 0;
        f->hooks[i] = (struct kd_hooks){
            .ctx = f->choice[i].work, .token = hook_token, .mask = masked ? hook_mask : NULL};
    }
    if (rc)
        kd_bad_at(bad, err.code == KD_ENOTSUP ? 400 : 500, NULL,
                  err.code == KD_ENOTSUP ? "response_format" : NULL, "%s", err.msg);
    for (int64_t p = 0; p < f->ask.prompt_count && !rc; p++)
        rc = start(f, p, owner, retry_s, bad);
    f->running = f->run_count;
    if (rc) {
        kd_flow_close(f, NULL);
        return -1;
    }
    return 0;
}

static void close_choice(struct kd_choice *c)
{
    struct kd_choice_work *w = c->work;
    if (!w)
        return;
    struct kd_buf *b[] = {&c->think,   &c->text, &c->logprobs, &c->all_logprobs, &c->ids,
                          &w->pending, &w->held, &w->keys,     &w->value,        &w->scratch};
    for (size_t k = 0; k < sizeof b / sizeof *b; k++)
        kd_buf_release(b[k]);
    for (int64_t i = 0; i < c->call_count; i++) {
        kd_buf_release(&c->calls[i]->name);
        kd_buf_release(&c->calls[i]->args);
        kd_mem_free(c->calls[i]);
    }
    kd_mem_free(c->calls);
    kd_turn_close(w->turn);
    kd_turn_close(w->wturn);
    kd_turn_rule_close(w->rule);
    kd_ids_release(&w->budget);
    kd_ids_release(&w->stop);
    kd_ids_release(&w->made);
    kd_mem_free(w);
}

const struct kd_usage *kd_flow_usage(struct kd_flow *f)
{
    struct kd_usage *s = &f->usage, u;
    memset(s, 0, sizeof *s);
    for (int64_t i = 0; i < f->run_count; i++) {
        kd_request_usage(f->runs[i], &u);
        s->prompt_tokens += u.prompt_tokens;
        s->cached_tokens += u.cached_tokens;
        s->draft_tokens += u.draft_tokens;
        s->draft_accepted += u.draft_accepted;
        s->experts_used = u.experts_used;
        s->expert_mass = u.expert_mass;
        if (!i || u.first_token_s < s->first_token_s)
            s->first_token_s = u.first_token_s;
        if (u.queued_s > s->queued_s)
            s->queued_s = u.queued_s;
        if (u.total_s > s->total_s)
            s->total_s = u.total_s;
    }
    for (int64_t i = 0; i < f->choice_count; i++)
        s->made_tokens += f->choice[i].made;
    return s;
}

int64_t kd_flow_reasoning(const struct kd_flow *f)
{
    int64_t n = 0;
    for (int64_t i = 0; i < f->choice_count; i++)
        n += f->choice[i].reasoning;
    return n;
}

void kd_flow_making(struct kd_flow *f, struct kd_buf *out)
{
    const struct kd_usage *u = kd_flow_usage(f);
    kd_buf_printf(out, ",\"kondense\":{\"experts_used\":%" PRId64, u->experts_used);
    if (u->expert_mass > 0)
        kd_buf_printf(out, ",\"expert_mass\":%g", u->expert_mass);
    kd_buf_char(out, '}');
}

int64_t kd_choice_calls(const struct kd_choice *c)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->call_count; i++)
        n += c->calls[i]->complete;
    return n;
}

const char *kd_choice_reason(const struct kd_choice *c)
{
    /* Running out of time is running out of room to a client: neither will be better next time. */
    if (c->finish == KD_FINISH_LENGTH || c->finish == KD_FINISH_TIMEOUT)
        return "length";
    return kd_choice_calls(c) ? "tool_calls" : "stop";
}

static void note(struct kd_flow *f, struct kd_req *r)
{
    const struct kd_usage *u = kd_flow_usage(f);
    double decode = u->total_s - u->first_token_s - u->queued_s;
    const char *finish = f->choice_count ? kd_finish_name(f->choice[0].finish) : "none";
    kd_req_note(r,
                "prompt=%" PRId64 " cached=%" PRId64 " tokens=%" PRId64 " queue_s=%.3f ttft_s=%.3f "
                "tok_s=%.1f finish=%s experts=%" PRId64,
                u->prompt_tokens, u->cached_tokens, u->made_tokens, u->queued_s, u->first_token_s,
                decode > 1e-3 ? (double)u->made_tokens / decode : 0.0, finish, u->experts_used);
    if (u->expert_mass > 0)
        kd_req_note(r, " mass=%g", u->expert_mass);
    if (f->dropped)
        kd_req_note(r, " dropped_calls=%" PRId64, f->dropped);
    if (f->choice_count && f->choice[0].finish == KD_FINISH_ERROR)
        kd_req_note(r, " error=\"%s\"", f->choice[0].err.msg);
}

void kd_flow_close(struct kd_flow *f, struct kd_req *r)
{
    if (r)
        note(f, r);
    if (r && f->ended < f->choice_count)
        f->api->aborted++;
    for (int64_t i = 0; i < f->run_count; i++)
        kd_request_release(f->runs[i]);
    for (int64_t i = 0; i < f->choice_count; i++)
        close_choice(&f->choice[i]);
    kd_mem_free(f->runs);
    kd_mem_free(f->choice);
    kd_mem_free(f->hooks);
    kd_ask_release(&f->ask);
    f->run_count = f->choice_count = 0;
    f->runs = NULL;
    f->choice = NULL;
    f->hooks = NULL;
}

void kd_flow_refuse(struct kd_req *r, double retry_s, const struct kd_bad *bad)
{
    char text[32];
    if (bad->f.status == 429 || bad->f.status == 503) {
        double s = retry_s > 0.01 ? retry_s : 1;
        snprintf(text, sizeof text, "%.0f", ceil(s));
        kd_req_add_header(r, "Retry-After", text);
        snprintf(text, sizeof text, "%.0f", ceil(s * 1000));
        kd_req_add_header(r, "Retry-After-Ms", text);
    }
    if (bad->f.status == 500)
        kd_req_add_header(r, "X-Should-Retry", "false");
    kd_bad_reply(r, bad);
}

void kd_flow_fault(const struct kd_flow *f, struct kd_bad *bad)
{
    kd_bad_at(bad, 500, "engine_error", NULL, "the model's run failed");
    for (int64_t i = 0; i < f->choice_count; i++)
        if (f->choice[i].finish == KD_FINISH_ERROR) {
            kd_bad_at(bad, 500, "engine_error", NULL, "%s", f->choice[i].err.msg);
            return;
        }
}
