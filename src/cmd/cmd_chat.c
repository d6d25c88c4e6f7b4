#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "cmd/cmd.h"
#include "cmd/model_device.h"
#include "model/k3.h"
#include "model/sample.h"
#include "text/chat.h"
#include "text/jtree.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HISTORY_BYTES_MAX = 64 << 20, TOOLS_BYTES_MAX = 16 << 20 };

static struct {
    const char *system, *effort, *prompt, *tools, *device;
    int64_t seed, max, experts_used, threads;
    double temp, top_p;
    bool no_think, exact, json;
} o = {.effort = "max", .max = 1024, .temp = 1.0, .top_p = 0.95};

static const struct kd_opt opts[] = {
    {"prompt", 'p', KD_OPT_STR, &o.prompt, "TEXT", "answer this one message and end"},
    {"system", 's', KD_OPT_STR, &o.system, "TEXT",
     "system message at the start of the conversation"},
    {"no-think", 0, KD_OPT_FLAG, &o.no_think, NULL, "answer without thinking"},
    {"effort", 'e', KD_OPT_STR, &o.effort, "LEVEL",
     "how much to think: low, medium, high or max (max)", .choices = "low|medium|high|max"},
    {"tools", 0, KD_OPT_STR, &o.tools, "FILE", "JSON list of the tools the model may call"},
    {"max-tokens", 'n', KD_OPT_INT, &o.max, "N",
     "tokens an answer may have, thinking included (1024)", .min = 1, .max = 1 << 20},
    {"temp", 0, KD_OPT_NUM, &o.temp, "T", "temperature; 0 takes the likeliest token (1.0)",
     .num_min = 0, .num_max = 100},
    {"top-p", 0, KD_OPT_NUM, &o.top_p, "P",
     "draw from the likeliest tokens that hold this share (0.95)", .num_min = 0, .num_max = 1},
    {"seed", 0, KD_OPT_INT, &o.seed, "N",
     "seed of the draws; the same seed gives the same answers (0)", .min = 0, .max = INT64_MAX},
    {"experts-used", 0, KD_OPT_INT, &o.experts_used, "N",
     "experts a token goes through (as the model says)", .min = 1, .max = 1024},
    KD_OPT_ROW_MODEL_DEVICE(&o.device),
    KD_OPT_ROW_EXACT(&o.exact),
    KD_OPT_ROW_THREADS(&o.threads),
    {"json", 'j', KD_OPT_FLAG, &o.json, NULL, "one JSON object a line for each answer"},
    {0}};

struct session {
    struct kd_kern kern;
    struct kd_run run;
    struct kd_k3_model *model;
    struct kd_k3_seq *seq;
    struct kd_tok *tok;
    struct kd_ids fed;     /* what seq has seen */
    struct kd_buf history; /* JSON messages, with commas between */
    struct kd_buf tools;   /* JSON list, or empty */
    float *logits;
    int64_t vocab, calls, results; /* calls ever made, results given */
    bool terminal;                 /* standard output is one */
    bool dim;                      /* it shows dimmed text now */
};

/* One answer, as counted. */
struct answer {
    struct kd_ids ids;
    struct kd_turn_text text;
    int64_t prompt, reused;
    const char *finish;
};

static void add_message(struct session *s, const char *role, const char *content, size_t bytes)
{
    struct kd_buf *h = &s->history;
    kd_buf_printf(h, "%s{\"role\":\"%s\",\"content\":", h->size_bytes ? "," : "", role);
    kd_json_quote(h, content, bytes);
    kd_buf_char(h, '}');
}

static void reset(struct session *s)
{
    kd_buf_clear(&s->history);
    s->calls = s->results = 0;
    if (o.system)
        add_message(s, "system", o.system, strlen(o.system));
}

/* The answer as a message, so that the next prompt begins with what the model has seen. */
static int add_answer(struct session *s, const struct kd_turn_text *t, struct kd_err *err)
{
    struct kd_buf *h = &s->history;
    struct kd_jtree calls;
    if (kd_jtree_parse(&calls, t->calls_json.data, t->calls_json.size_bytes, err))
        return -1;
    kd_buf_printf(h, "%s{\"role\":\"assistant\",\"reasoning_content\":", h->size_bytes ? "," : "");
    kd_json_quote(h, t->think.data, t->think.size_bytes);
    kd_buf_str(h, ",\"content\":");
    kd_json_quote(h, t->content.data, t->content.size_bytes);
    kd_buf_str(h, ",\"tool_calls\":[");
    const struct kd_jnode *first = kd_jtree_first(&calls, kd_jtree_root(&calls));
    int rc = 0;
    for (const struct kd_jnode *c = first; c && !rc; c = kd_jtree_next(&calls, c)) {
        kd_buf_printf(h, "%s{\"id\":\"call_%" PRId64 "\",\"function\":", c == first ? "" : ",",
                      ++s->calls);
        rc = kd_jtree_dump(h, &calls, c, KD_JSTYLE_COMPACT, err);
        kd_buf_char(h, '}');
    }
    kd_buf_str(h, "]}");
    kd_jtree_release(&calls);
    return rc ? -1 : kd_buf_ok(h, "the conversation", err);
}

static int add_result(struct session *s, const char *text, struct kd_err *err)
{
    struct kd_buf *h = &s->history;
    if (s->results == s->calls)
        return kd_fail(err, KD_EUSAGE, "no tool call waits for a result");
    kd_buf_printf(
        h, ",{\"role\":\"tool\",\"tool_call_id\":\"call_%" PRId64 "\",\"content\":", ++s->results);
    kd_json_quote(h, text, strlen(text));
    kd_buf_char(h, '}');
    return kd_buf_ok(h, "the conversation", err);
}

static int prompt_ids(struct session *s, struct kd_ids *ids, struct kd_err *err)
{
    struct kd_buf request;
    struct kd_chat chat;
    kd_buf_init(&request, 2u * HISTORY_BYTES_MAX);
    kd_buf_printf(&request, "{\"thinking\":%s,\"thinking_effort\":\"%s\",\"messages\":[",
                  o.no_think ? "false" : "true", o.effort);
    kd_buf_add(&request, s->history.data, s->history.size_bytes);
    kd_buf_str(&request, "],\"tools\":");
    kd_buf_str(&request, s->tools.size_bytes ? s->tools.data : "null");
    kd_buf_char(&request, '}');
    int rc = kd_buf_ok(&s->history, "the conversation", err) ||
             kd_buf_ok(&request, "the conversation", err) ||
             kd_chat_render(&chat, request.data, request.size_bytes, err);
    kd_buf_release(&request);
    if (rc)
        return -1;
    rc = kd_chat_ids(&chat, s->tok, ids, err);
    kd_chat_release(&chat);
    return rc;
}

static int feed(struct session *s, const int32_t *ids, int64_t count, struct kd_err *err)
{
    struct kd_k3_feed f = {s->seq, ids, count, 1};
    struct kd_k3_options options = {.experts_used = o.experts_used};
    int rc = 0;
    for (int64_t i = 0; i < count && !rc; i++)
        rc = kd_ids_add(&s->fed, ids[i], err);
    if (!rc && !kd_k3_forward(s->model, &f, 1, &options, s->logits, err))
        return 0;
    kd_k3_seq_close(s->seq); /* what it has seen is not known any more */
    s->seq = NULL;
    s->fed.count = 0;
    return -1;
}

/* Feeds the prompt; what the sequence has already seen of it is kept, and a sequence that has seen
 * something else starts anew. */
static int feed_prompt(struct session *s, const struct kd_ids *ids, struct answer *a,
                       struct kd_err *err)
{
    int64_t context = kd_k3_config(s->model)->context, seen = s->fed.count;
    if (ids->count + 1 > context)
        return kd_fail(err, KD_EINVAL,
                       "the conversation has %" PRId64 " tokens, the model takes %" PRId64
                       ": /reset starts a new one",
                       ids->count, context);
    bool keep = s->seq && seen < ids->count &&
                (!seen || !memcmp(s->fed.id, ids->id, (size_t)seen * sizeof *ids->id));
    if (!keep) {
        kd_k3_seq_close(s->seq);
        s->seq = NULL;
        s->fed.count = seen = 0;
        if (kd_k3_seq_open(&s->seq, s->model, err))
            return -1;
    }
    a->prompt = ids->count;
    a->reused = seen;
    return feed(s, ids->id + seen, ids->count - seen, err);
}

static void set_dim(struct session *s, bool dim)
{
    if (s->terminal && s->dim != dim)
        fputs(dim ? "\033[2m" : "\033[0m", stdout);
    s->dim = dim;
}

/* Model text; on a terminal without control characters, which could be commands to it. */
static void show(const struct session *s, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        bool c1 = c == 0xc2 && i + 1 < bytes && (unsigned char)text[i + 1] < 0xa0;
        if (s->terminal && ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f || c1)) {
            putchar('?');
            i += c1;
        } else {
            putchar(c);
        }
    }
    fflush(stdout);
}

static void on_part(void *ctx, enum kd_turn_part part, const char *name, const char *type,
                    const char *text, size_t bytes)
{
    struct session *s = ctx;
    (void)name;
    (void)type;
    if (o.json || (part != KD_TURN_THINK && part != KD_TURN_RESPONSE))
        return;
    bool think = part == KD_TURN_THINK;
    if (!think && s->dim) {
        set_dim(s, false);
        fputs("\n\n", stdout);
    }
    set_dim(s, think);
    show(s, text, bytes);
}

static int generate(struct session *s, struct answer *a, struct kd_turn *turn, struct kd_err *err)
{
    struct kd_sampling draw = {.temperature = o.temp, .top_p = o.top_p, .seed = (uint64_t)o.seed};
    int64_t context = kd_k3_config(s->model)->context;
    a->finish = "length";
    while (a->ids.count < o.max && s->fed.count < context) {
        int32_t id;
        if (kd_cmd_stop) {
            a->finish = "cancelled";
            break;
        }
        if (kd_sample(&draw, s->logits, s->vocab, s->fed.count, &id, err) ||
            kd_ids_add(&a->ids, id, err))
            return -1;
        int ended = kd_turn_feed(turn, id, err);
        if (ended < 0)
            return -1;
        if (ended) {
            a->finish = "stop";
            break;
        }
        if (feed(s, &id, 1, err))
            return -1;
    }
    return 0;
}

static void print_json(const struct answer *a)
{
    struct kd_buf b;
    kd_buf_init(&b, 4u * HISTORY_BYTES_MAX);
    kd_buf_str(&b, "{\"thinking\": ");
    kd_json_quote(&b, a->text.think.data, a->text.think.size_bytes);
    kd_buf_str(&b, ", \"content\": ");
    kd_json_quote(&b, a->text.content.data, a->text.content.size_bytes);
    kd_buf_printf(&b,
                  ", \"finish\": \"%s\", \"prompt_tokens\": %" PRId64
                  ", \"reused_tokens\": %" PRId64 ", \"tokens\": %" PRId64 ", \"tool_calls\": ",
                  a->finish, a->prompt, a->reused, a->ids.count);
    kd_buf_add(&b, a->text.calls_json.data, a->text.calls_json.size_bytes);
    kd_buf_str(&b, "}\n");
    fwrite(b.data, 1, b.size_bytes, stdout);
    fflush(stdout);
    kd_buf_release(&b);
}

/* What comes after the streamed text: the calls, one a line. */
static int print_end(struct session *s, const struct answer *a, struct kd_err *err)
{
    struct kd_jtree calls;
    set_dim(s, false);
    putchar('\n');
    if (!a->text.call_count)
        return 0;
    if (kd_jtree_parse(&calls, a->text.calls_json.data, a->text.calls_json.size_bytes, err))
        return -1;
    const struct kd_jnode *c = kd_jtree_first(&calls, kd_jtree_root(&calls));
    int rc = 0;
    for (; c && !rc; c = kd_jtree_next(&calls, c)) {
        struct kd_buf b;
        kd_buf_init(&b, HISTORY_BYTES_MAX);
        rc = kd_jtree_dump(&b, &calls, c, KD_JSTYLE_COMPACT, err);
        if (!rc)
            show(s, b.data, b.size_bytes);
        putchar('\n');
        kd_buf_release(&b);
    }
    kd_jtree_release(&calls);
    return rc;
}

static int answer(struct session *s, struct kd_err *err)
{
    struct answer a = {0};
    struct kd_ids prompt = {0};
    struct kd_turn *turn = NULL;
    enum kd_turn_part start = o.no_think ? KD_TURN_RESPONSE : KD_TURN_THINK;
    double t0 = kd_clock_s(), t1;
    int rc = kd_turn_open(&turn, s->tok, start, on_part, s, err) || prompt_ids(s, &prompt, err) ||
             feed_prompt(s, &prompt, &a, err);
    t1 = kd_clock_s();
    rc = rc || generate(s, &a, turn, err) || kd_turn_finish(turn, err) ||
         kd_turn_parse(s->tok, start, a.ids.id, a.ids.count, &a.text, err);
    if (!rc) {
        kd_log(KD_LOG_INFO, "chat",
               "prompt=%" PRId64 " reused=%" PRId64 " prefill_s=%.3f tokens=%" PRId64
               " decode_s=%.3f finish=%s",
               a.prompt, a.reused, t1 - t0, a.ids.count, kd_clock_s() - t1, a.finish);
        if (o.json)
            print_json(&a);
        else
            rc = print_end(s, &a, err);
        rc = rc || add_answer(s, &a.text, err);
        kd_turn_text_release(&a.text);
    }
    set_dim(s, false);
    kd_turn_close(turn);
    kd_ids_release(&prompt);
    kd_ids_release(&a.ids);
    return rc ? -1 : 0;
}

static const char help[] = "/help        this\n"
                           "/reset       forget the conversation\n"
                           "/tool TEXT   the result of the next tool call that waits for one\n"
                           "/quit        end (so does the end of input)\n"
                           "Anything else is a message.\n";

/* One line of input. 1: end. */
static int take_line(struct session *s, const char *line, size_t bytes, struct kd_err *err)
{
    if (!strcmp(line, "/quit"))
        return 1;
    if (!strcmp(line, "/help")) {
        fputs(help, o.json ? stderr : stdout);
        return 0;
    }
    if (!strcmp(line, "/reset")) {
        reset(s);
        return 0;
    }
    if (!strncmp(line, "/tool ", 6)) {
        if (add_result(s, line + 6, err))
            return -1;
        return s->results < s->calls ? 0 : answer(s, err);
    }
    if (line[strspn(line, " \t")] == 0 && strlen(line) == bytes)
        return 0;
    add_message(s, "user", line, bytes);
    s->results = s->calls;
    return answer(s, err);
}

/* Reads lines until the end of input. At a terminal an error or an interrupt ends the answer, not
 * the conversation. */
static int converse(struct session *s, struct kd_err *err)
{
    bool person = isatty(STDIN_FILENO) && s->terminal;
    char *line = NULL;
    size_t cap = 0;
    int rc = 0;
    while (!rc) {
        if (person) {
            fputs("> ", stdout);
            fflush(stdout);
        }
        ssize_t n = getline(&line, &cap, stdin);
        if (n < 0) {
            if (ferror(stdin) && errno != EINTR)
                rc = kd_fail_sys(err, "cannot read the next message");
            if (person)
                putchar('\n');
            break;
        }
        while (n && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            line[--n] = 0;
        if ((size_t)n > HISTORY_BYTES_MAX / 8)
            rc =
                kd_fail(err, KD_EINVAL, "a message is longer than %d bytes", HISTORY_BYTES_MAX / 8);
        else
            rc = take_line(s, line, (size_t)n, err);
        if (person && rc < 0 && !s->history.failed) {
            fprintf(stderr, "%s\n", err->msg);
            rc = 0;
        }
        if (person)
            kd_cmd_stop = 0;
        else if (!rc && kd_cmd_stop)
            break;
    }
    free(line);
    if (rc >= 0 && kd_cmd_stop)
        rc = kd_fail(err, KD_ECANCEL, "stopped");
    return rc < 0 ? -1 : 0;
}

/* Each tool is {"function": {"name": ...}}, or the function alone; a model can call none without a
 * name. */
static int check_tools(const struct kd_jtree *t, struct kd_err *err)
{
    const struct kd_jnode *list = kd_jtree_root(t);
    int64_t i = 0;
    if (list->kind != KD_JSON_ARRAY)
        return kd_fail(err, KD_EINVAL, "%s: not a JSON list of tools", o.tools);
    for (const struct kd_jnode *n = kd_jtree_first(t, list); n; n = kd_jtree_next(t, n), i++) {
        const struct kd_jnode *f = kd_jtree_get(t, n, "function"),
                              *name = kd_jtree_get(t, f ? f : n, "name");
        if (!name || name->kind != KD_JSON_STR || !name->bytes)
            return kd_fail(err, KD_EINVAL, "%s: tool %lld has no name", o.tools, (long long)i + 1);
    }
    return 0;
}

static int load_tools(struct session *s, struct kd_err *err)
{
    struct kd_jtree t;
    if (!o.tools)
        return 0;
    if (kd_file_read(&s->tools, o.tools, TOOLS_BYTES_MAX, err))
        return -1;
    if (kd_jtree_parse(&t, s->tools.data ? s->tools.data : "", s->tools.size_bytes, err))
        return kd_wrap(err, "%s", o.tools);
    int rc = check_tools(&t, err);
    kd_jtree_release(&t);
    return rc;
}

static int open_session(struct session *s, const char *dir, struct kd_err *err)
{
    struct kd_k3_open open = {.fast = !o.exact};
    kd_buf_init(&s->history, HISTORY_BYTES_MAX);
    kd_buf_init(&s->tools, TOOLS_BYTES_MAX);
    s->terminal = isatty(STDOUT_FILENO) && !o.json;
    if (kd_cmd_model_device(o.device, &open.device, err) || load_tools(s, err) ||
        kd_tok_open(&s->tok, dir, err) || kd_cmd_run_open(&s->run, &s->kern, o.threads, err) ||
        kd_k3_open(&s->model, dir, &s->run, &open, err))
        return -1;
    int64_t vocab = kd_k3_config(s->model)->vocab, known = kd_tok_vocab(s->tok);
    s->vocab = vocab < known ? vocab : known;
    reset(s);
    return kd_k3_logits_new(s->model, &s->logits, 1, err);
}

static void close_session(struct session *s)
{
    kd_k3_seq_close(s->seq);
    kd_k3_logits_free(s->model, s->logits);
    kd_k3_close(s->model);
    kd_cmd_run_close(&s->run);
    kd_tok_close(s->tok);
    kd_ids_release(&s->fed);
    kd_buf_release(&s->history);
    kd_buf_release(&s->tools);
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    struct session s = {.vocab = 0};
    (void)argc;
    int rc = open_session(&s, argv[0], err);
    if (!rc && o.prompt) {
        add_message(&s, "user", o.prompt, strlen(o.prompt));
        rc = answer(&s, err);
        if (!rc && kd_cmd_stop)
            rc = kd_fail(err, KD_ECANCEL, "stopped");
    } else if (!rc) {
        rc = converse(&s, err);
    }
    close_session(&s);
    return rc;
}

const struct kd_cmd kd_cmd_chat = {
    .name = "chat",
    .summary = "talk to a model",
    .args = "MODEL",
    .example = "kondense chat k3-nano\n"
               "echo 'What is the weather in York?' | kondense chat k3-nano --tools tools.json\n"
               "kondense chat k3-nano -p 'Name three rivers.' --no-think --json",
    .opts = opts,
    .args_min = 1,
    .args_max = 1,
    .run = run,
    .details =
        "Each line of standard input is a message; the conversation is kept, thinking included, "
        "and "
        "so is the model's state of it, as long as the next prompt begins with what the model has "
        "seen. Thinking is shown dimmed on a terminal. Tool calls are printed as JSON, one a line; "
        "/tool gives a result. /reset, /help and /quit do what they say.\n\n"
        "--json prints one object a line: thinking, content, finish (stop, length or cancelled), "
        "prompt_tokens, reused_tokens (of the prompt, not computed again), tokens (of the answer) "
        "and tool_calls (name, arguments)."};
