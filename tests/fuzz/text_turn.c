/* Any ids as an assistant turn: text is UTF-8 and calls are JSON. Bytes under 16 choose words of
 * the format, others a token. */
#include "base/assert.h"
#include "base/json.h"
#include "fuzz/nano.h"
#include "text/chat.h"
#include "text/uclass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char *const words[16] = {"<|open|>",
                                      "<|close|>",
                                      "<|sep|>",
                                      "<|end_of_msg|>",
                                      "think",
                                      "response",
                                      "tools",
                                      "call tool=\"f\"",
                                      "call",
                                      "argument key=\"k\" type=\"number\"",
                                      "argument key=\"s\" type=\"string\"",
                                      "argument",
                                      "message",
                                      "[PAD]",
                                      "1",
                                      "{}"};
static struct kd_tok *tok;

static void check_text(const struct kd_buf *b)
{
    for (size_t at = 0, n; at < b->size_bytes; at += n) {
        uint32_t cp;
        n = kd_utf8_char((const unsigned char *)b->data + at, b->size_bytes - at, &cp);
        KD_ASSERT(n);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_err err;
    struct kd_ids ids = {0};
    struct kd_turn_text t;
    struct kd_json *calls;
    tok = fuzz_tok();
    if (!bytes)
        return 0;
    for (size_t i = 1; i < bytes; i++) {
        if (data[i] < 16) {
            KD_ASSERT(!kd_chat_markup_ids(tok, words[data[i]], strlen(words[data[i]]), &ids, &err));
        } else {
            int32_t id =
                (int32_t)((data[i] * 16u + (i + 1 < bytes ? data[i + 1] % 16u : 0)) % 4096u);
            KD_ASSERT(!kd_ids_add(&ids, id, &err));
        }
    }
    enum kd_turn_part start = *data % 2 ? KD_TURN_THINK : KD_TURN_RESPONSE;
    KD_ASSERT(!kd_turn_parse(tok, start, ids.id, ids.count, &t, &err));
    check_text(&t.think);
    check_text(&t.content);
    KD_ASSERT(!kd_json_parse(&calls, t.calls_json.data, t.calls_json.size_bytes, "calls", &err));
    KD_ASSERT((int64_t)kd_json_count(calls) == t.call_count);
    kd_json_free(calls);
    kd_turn_text_release(&t);
    kd_ids_release(&ids);
    return 0;
}
