/* Any ids as an answer of a request with tools: fragments are UTF-8, arguments are JSON, and what
 * is told piece by piece is what is collected, however the tokens are handed over. Bytes under 20
 * choose words of the format, others a token. The engine is this file. */
#include "base/assert.h"
#include "base/mem.h"
#include "fuzz/nano.h"
#include "serve/api_stream.h"
#include "serve/said.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static struct kd_tok *tok;
static struct kd_ids ids;
static int64_t at, step;
static struct kd_hooks hook;
static struct kd_k3_cfg cfg = {.bos = -1, .context = 4096};
const double kd_histogram_bound[KD_HISTOGRAM_BINS - 1] = {0};

const char *kd_finish_name(enum kd_finish f)
{
    (void)f;
    return "";
}

int64_t kd_engine_room(const struct kd_engine *e, int64_t prompt_count, int64_t choices)
{
    (void)e;
    (void)choices;
    return 4096 - prompt_count;
}

const struct kd_tok *kd_engine_tok(const struct kd_engine *e)
{
    (void)e;
    return tok;
}

const struct kd_k3_cfg *kd_engine_config(const struct kd_engine *e)
{
    (void)e;
    return &cfg;
}

int kd_engine_submit(struct kd_engine *e, const struct kd_request_spec *spec,
                     struct kd_request **out, struct kd_refused *refused, struct kd_err *err)
{
    (void)refused;
    (void)err;
    at = 0;
    hook = spec->hooks[0];
    *out = (struct kd_request *)(void *)e;
    return 0;
}

int64_t kd_request_wait(struct kd_request *r, struct kd_event *ev, int64_t max, double timeout_s)
{
    int64_t n = 0;
    struct kd_buf visible;
    (void)r;
    (void)timeout_s;
    if (at > ids.count)
        return -1;
    for (; n < max && n < step && at < ids.count; n++, at++) {
        kd_buf_init(&visible, 1 << 20);
        KD_ASSERT(!hook.token(hook.ctx, ids.id[at], &visible, NULL));
        kd_buf_release(&visible);
        memset(&ev[n], 0, sizeof ev[n]);
        ev[n].id = ids.id[at];
        ev[n].text = kd_tok_bytes(tok, ids.id[at], &ev[n].text_bytes);
        ev[n].keep_bytes = -1;
        ev[n].stop = -1;
    }
    if (at == ids.count && n < max) {
        memset(&ev[n], 0, sizeof ev[n]);
        ev[n].id = -1;
        ev[n].keep_bytes = ev[n].stop = -1;
        ev[n++].finish = KD_FINISH_STOP;
        at++;
    }
    return n;
}

void kd_request_release(struct kd_request *r)
{
    (void)r;
}

const struct kd_err *kd_request_error(const struct kd_request *r)
{
    (void)r;
    return NULL;
}

void kd_request_usage(const struct kd_request *r, struct kd_usage *u)
{
    (void)r;
    memset(u, 0, sizeof *u);
}

void kd_engine_metrics(struct kd_engine *e, struct kd_engine_metrics *m)
{
    (void)e;
    memset(m, 0, sizeof *m);
}

const char *kd_engine_model_hash(const struct kd_engine *e)
{
    (void)e;
    return "0";
}

int64_t kd_engine_slots(struct kd_engine *e, struct kd_slot *out, int64_t max)
{
    (void)e;
    (void)out;
    (void)max;
    return 0;
}

bool kd_engine_healthy(struct kd_engine *e, struct kd_err *err)
{
    (void)e;
    (void)err;
    return true;
}

static const char *const words[20] = {"<|open|>",
                                      "<|close|>",
                                      "<|sep|>",
                                      "<|end_of_msg|>",
                                      "<|close|>think<|sep|>",
                                      "<|open|>response<|sep|>",
                                      "<|close|>response<|sep|>",
                                      "<|open|>tools<|sep|>",
                                      "<|open|>call tool=\"f\" index=\"1\"<|sep|>",
                                      "<|open|>call tool=\"none\" index=\"1\"<|sep|>",
                                      "<|open|>argument key=\"s\" type=\"string\"<|sep|>",
                                      "<|open|>argument key=\"s\" type=\"number\"<|sep|>",
                                      "<|open|>argument key=\"n\" type=\"number\"<|sep|>",
                                      "<|open|>argument key=\"o\" type=\"string\"<|sep|>",
                                      "<|close|>argument<|sep|>",
                                      "<|close|>call<|sep|>",
                                      "<|close|>tools<|sep|>",
                                      "12",
                                      "{\"a\": [1]}",
                                      "\\\"\n"};

/* What was told, as one text. */
static void on_part(void *ctx, struct kd_choice *c, enum kd_part part, const struct kd_call *call,
                    const char *text, size_t bytes)
{
    struct kd_buf *told = ctx;
    (void)c;
    kd_buf_printf(told, "%d:", part == KD_PART_THINK || part == KD_PART_TEXT ? (int)part : 9);
    if (part == KD_PART_ARGS)
        kd_buf_printf(told, "%d", (int)call->index);
    kd_buf_add(told, text, bytes);
}

static void run(struct kd_api *api, struct kd_buf *told, int64_t tokens_a_time)
{
    static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{"
                               "\"type\":\"function\",\"function\":"
                               "{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":"
                               "\"string\"},\"n\":{\"type\":\"integer\"},"
                               "\"o\":{\"type\":\"object\"}}}}}]}";
    struct kd_ask ask;
    struct kd_bad bad;
    struct kd_flow f = {.sink = {told, on_part, NULL}};
    struct kd_jtree t;
    double retry;
    step = tokens_a_time;
    KD_ASSERT(!kd_ask_chat(&ask, api, "", body, sizeof body - 1, &bad));
    KD_ASSERT(!kd_flow_open(&f, api, &ask, "", &retry, &bad));
    KD_ASSERT(!kd_flow_wait(&f, NULL));
    const struct kd_choice *c = &f.choice[0];
    for (int64_t i = 0; i < c->call_count; i++) {
        const struct kd_buf *a = &c->calls[i]->args;
        if (!c->calls[i]->complete)
            continue;
        KD_ASSERT(!kd_jtree_parse(&t, a->data, a->size_bytes, NULL));
        KD_ASSERT(kd_jtree_root(&t)->kind == KD_JSON_OBJECT);
        kd_jtree_release(&t);
    }
    struct kd_buf q;
    kd_buf_init(&q, 1 << 24);
    kd_json_quote(&q, c->text.data ? c->text.data : "", c->text.size_bytes);
    KD_ASSERT(!kd_jtree_parse(&t, q.data, q.size_bytes, NULL));
    kd_jtree_release(&t);
    kd_buf_release(&q);
    kd_buf_printf(told, "|%s|%d", kd_choice_reason(c), (int)c->reasoning);
    kd_flow_close(&f, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct kd_api api;
    struct kd_buf one, many;
    tok = fuzz_tok();
    api.o.model_id = "m";
    api.tok = tok;
    api.cfg = &cfg;
    api.context = 4096;
    if (!api.said)
        KD_ASSERT(!kd_said_open(&api.said, 1 << 16, NULL));
    ids.count = 0;
    for (size_t i = 0; i < bytes && i < 400; i++) {
        if (data[i] < 20)
            KD_ASSERT(!kd_chat_markup_ids(tok, words[data[i]], strlen(words[data[i]]), &ids, NULL));
        else
            KD_ASSERT(!kd_ids_add(
                &ids, (int32_t)((data[i] * 16u + (i + 1 < bytes ? data[i + 1] % 16u : 0)) % 4096u),
                NULL));
    }
    kd_buf_init(&one, 1 << 26);
    kd_buf_init(&many, 1 << 26);
    run(&api, &one, 1);
    run(&api, &many, 7);
    KD_ASSERT(one.size_bytes == many.size_bytes && !memcmp(one.data, many.data, one.size_bytes));
    kd_buf_release(&one);
    kd_buf_release(&many);
    return 0;
}
