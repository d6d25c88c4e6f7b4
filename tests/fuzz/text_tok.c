/* A tiktoken.model file of any bytes; and any text through the shipped vocabulary: it comes back,
 * and no id of it is special. The first byte chooses. */
#include "base/assert.h"
#include "fuzz/nano.h"
#include "text/bpe.h"
#include "text/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static struct kd_tok *tok;

static void round_trip(const char *text, size_t bytes)
{
    struct kd_err err;
    struct kd_ids ids = {0};
    struct kd_buf back;
    kd_buf_init(&back, 1 << 26);
    KD_ASSERT(!kd_tok_encode(tok, text, bytes, &ids, &err));
    for (int64_t i = 0; i < ids.count; i++)
        KD_ASSERT(!kd_tok_is_special(tok, ids.id[i]));
    KD_ASSERT(!kd_tok_decode(tok, ids.id, ids.count, &back, &err));
    KD_ASSERT(back.size_bytes == bytes && (!bytes || !memcmp(back.data, text, bytes)));
    ids.count = 0;
    kd_buf_clear(&back);
    KD_ASSERT(!kd_chat_markup_ids(tok, text, bytes, &ids, &err));
    KD_ASSERT(!kd_tok_decode(tok, ids.id, ids.count, &back, &err));
    KD_ASSERT(back.size_bytes == bytes && (!bytes || !memcmp(back.data, text, bytes)));
    kd_ids_release(&ids);
    kd_buf_release(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_err err;
    struct kd_bpe b;
    tok = fuzz_tok();
    if (!bytes)
        return 0;
    const char *text = (const char *)data + 1;
    if (*data % 2) {
        round_trip(text, bytes - 1);
    } else if (!kd_bpe_open(&b, text, bytes - 1, &err)) {
        struct kd_bpe_work w = {0};
        int32_t out[64];
        KD_ASSERT(kd_bpe_encode(&b, &w, data, bytes < 64 ? bytes : 64, out, &err) > 0);
        kd_bpe_work_release(&w);
        kd_bpe_close(&b);
    }
    return 0;
}
