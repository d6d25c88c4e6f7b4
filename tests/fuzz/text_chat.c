/* A chat request of any bytes: refused with a reason, or rendered so that exactly the markup
 * segments are special ids; and JSON that was read is written so that it reads back the same. */
#include "base/assert.h"
#include "fuzz/nano.h"
#include "text/chat.h"
#include "text/jtree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static struct kd_tok *tok;

static void rewrite(const char *text, size_t bytes)
{
    struct kd_err err;
    struct kd_jtree t;
    struct kd_buf once, twice;
    if (kd_jtree_parse(&t, text, bytes, &err))
        return;
    kd_buf_init(&once, 1 << 26);
    kd_buf_init(&twice, 1 << 26);
    KD_ASSERT(!kd_jtree_dump(&once, &t, kd_jtree_root(&t), KD_JSTYLE_COMPACT, &err));
    kd_jtree_release(&t);
    KD_ASSERT(!kd_jtree_parse(&t, once.data, once.size_bytes, &err));
    KD_ASSERT(!kd_jtree_dump(&twice, &t, kd_jtree_root(&t), KD_JSTYLE_COMPACT, &err));
    KD_ASSERT(once.size_bytes == twice.size_bytes &&
              !memcmp(once.data, twice.data, once.size_bytes));
    kd_jtree_release(&t);
    kd_buf_release(&once);
    kd_buf_release(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_err err = {.code = KD_OK};
    struct kd_chat c;
    const char *text = (const char *)data;
    tok = fuzz_tok();
    rewrite(text, bytes);
    if (kd_chat_render(&c, text, bytes, &err)) {
        KD_ASSERT(err.code != KD_OK && err.msg[0]);
        return 0;
    }
    struct kd_ids ids = {0};
    int64_t special = 0, markup = 0;
    KD_ASSERT(!kd_chat_ids(&c, tok, &ids, &err));
    for (int64_t i = 0; i < ids.count; i++)
        special += kd_tok_is_special(tok, ids.id[i]);
    for (int64_t i = 0; i < c.count; i++)
        markup += c.seg[i].markup && memcmp(c.text.data + c.seg[i].begin, "<|kimi", 6) != 0;
    KD_ASSERT(special == markup);
    kd_ids_release(&ids);
    kd_chat_release(&c);
    return 0;
}
