/* Any bytes as the body of a chat request (first byte even) or of a text completion: refused in
 * words, or a prompt of known ids. */
#include "base/assert.h"
#include "fuzz/nano.h"
#include "serve/api_request.h"
#include "serve/said.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* The one thing that is asked of the engine. */
int64_t kd_engine_room(const struct kd_engine *e, int64_t prompt_count, int64_t choices)
{
    (void)e;
    (void)choices;
    return 4096 - prompt_count;
}

static struct kd_tok *tok;
static struct kd_vocab *vocab;

static void open_vocab(void)
{
    struct kd_err err;
    if (vocab)
        return;
    tok = fuzz_tok();
    KD_ASSERT(!kd_vocab_open(&vocab, tok, &err));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct kd_api api;
    static struct kd_k3_cfg cfg = {.bos = -1};
    struct kd_ask ask;
    struct kd_bad bad;
    open_vocab();
    api.o.model_id = "m";
    api.tok = tok;
    api.vocab = vocab;
    api.cfg = &cfg;
    api.context = 4096;
    if (!api.said)
        KD_ASSERT(!kd_said_open(&api.said, 1 << 16, NULL));
    if (!bytes)
        return 0;
    const char *body = (const char *)data + 1;
    bool chat = !(*data % 2);
    int rc = chat ? kd_ask_chat(&ask, &api, "", body, bytes - 1, &bad)
                  : kd_ask_text(&ask, &api, body, bytes - 1, &bad);
    if (rc) {
        KD_ASSERT(bad.f.status >= 400 && bad.f.status <= 500 && bad.message[0]);
    } else {
        KD_ASSERT(ask.prompt_count >= 1 && ask.max_tokens >= 1 && ask.choices >= 1);
        for (int64_t p = 0; p < ask.prompt_count; p++)
            for (int64_t i = 0; i < ask.prompt[p].count; i++)
                KD_ASSERT(ask.prompt[p].id[i] >= 0 && ask.prompt[p].id[i] < kd_tok_vocab(tok));
    }
    kd_ask_release(&ask);
    return 0;
}
