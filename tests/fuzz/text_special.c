/* Any bytes as tiktoken.model and, after a zero byte, tokenizer_config.json: refused, or every
 * special token is found by its content and by where text begins with it, and none is two. */
#include "base/assert.h"
#include "base/mem.h"
#include "fuzz/files.h"
#include "text/tok_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void look(const struct kd_tok *tok)
{
    int64_t vocab = kd_tok_vocab(tok);
    KD_ASSERT(vocab > 0 && !kd_tok_bytes(tok, (int32_t)vocab, &(size_t){0}));
    for (int32_t id = 0; id < vocab; id++) {
        size_t n, m;
        const char *text = kd_tok_bytes(tok, id, &n);
        KD_ASSERT(text && n);
        if (!kd_tok_is_special(tok, id)) {
            KD_ASSERT(kd_tok_rank(tok, text, n) == id);
            continue;
        }
        KD_ASSERT(strlen(text) == n && kd_tok_special(tok, text) == id);
        KD_ASSERT(kd_tok_special_at(tok, text, n, &m) == id && m == n);
    }
}

static void release(struct kd_tok *tok)
{
    for (int i = 0; i < KD_TOK_SPECIALS; i++)
        kd_mem_free(tok->special[i]);
    kd_bpe_close(&tok->bpe);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct kd_uclass classes; /* the same for all, and made of all Unicode */
    static bool opened;
    struct kd_tok tok = {0};
    struct kd_ids ids = {0};
    struct kd_buf back;
    struct kd_err err;
    const char *text = (const char *)data;
    size_t all = bytes < 4096 ? bytes : 4096;
    bytes = fuzz_next_file("tiktoken.model", &data, bytes);
    fuzz_file("tokenizer_config.json", data, bytes);
    KD_ASSERT(opened || !kd_uclass_open(&classes, &err));
    opened = true;
    tok.classes = classes;
    if (kd_tok_load_files(&tok, fuzz_dir(), &err)) {
        KD_ASSERT(err.code == KD_ECORRUPT && err.msg[0]);
        release(&tok);
        return 0;
    }
    look(&tok);
    kd_buf_init(&back, 1 << 20);
    KD_ASSERT(!kd_tok_encode(&tok, text, all, &ids, &err));
    KD_ASSERT(!kd_tok_decode(&tok, ids.id, ids.count, &back, &err));
    KD_ASSERT(back.size_bytes == all && !memcmp(back.data, text, all));
    kd_ids_release(&ids);
    kd_buf_release(&back);
    release(&tok);
    return 0;
}
