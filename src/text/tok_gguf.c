/* The tokenizer in a GGUF's keys: tokens by id in GPT-2's writing, their types, and merges in the
 * order of ranks. Ids are ranks; the last 256 of those in use are special. */
#include "base/file.h"
#include "base/mem.h"
#include "fmt/gguf.h"
#include "text/gpt2.h"
#include "text/tok_int.h"

#include <stdio.h>
#include <string.h>

enum { TYPE_CONTROL = 3, TYPE_UNUSED = 5, BYTES_MAX = 256 << 20 };

void kd_tok_folder(char *out, size_t size, const char *path)
{
    snprintf(out, size, "%s", path);
    if (kd_dir_exists(path))
        return;
    char *slash = strrchr(out, '/');
    if (slash)
        slash[slash == out] = 0;
    else
        snprintf(out, size, ".");
}

static int expect_str(const struct kd_gguf *g, const char *key, const char *want,
                      struct kd_err *err)
{
    const char *text;
    int64_t bytes;
    if (kd_gguf_str_or(g, key, &text, &bytes, err))
        return -1;
    if (!text || (size_t)bytes != strlen(want) || memcmp(text, want, (size_t)bytes) != 0)
        return kd_fail(err, KD_ENOTSUP, "key '%s' is not '%s': another tokenizer", key, want);
    return 0;
}

/* Bytes of the ranks into `bytes` and begin[]; the tokens after them are special. */
static int read_tokens(struct kd_tok *t, const struct kd_gguf_kv *tokens, int64_t ranks,
                       struct kd_buf *bytes, uint32_t *begin, struct kd_err *err)
{
    const char *text;
    int64_t at = 0, n;
    t->bpe.count = ranks; /* for the messages of special tokens */
    for (int64_t i = 0; i < ranks + KD_TOK_SPECIALS && kd_gguf_next_str(tokens, &at, &text, &n);
         i++) {
        if (i >= ranks) {
            if (kd_tok_set_special(t, i - ranks, text, (size_t)n, err))
                return -1;
            continue;
        }
        begin[i] = (uint32_t)bytes->size_bytes;
        if (kd_gpt2_get(bytes, text, (size_t)n))
            return kd_fail(err, KD_ECORRUPT, "token %lld is not in GPT-2's writing", (long long)i);
    }
    begin[ranks] = (uint32_t)bytes->size_bytes;
    return kd_buf_ok(bytes, "tokens", err);
}

/* Merges in another order than the ids would cut words in another way. */
static int check_merges(const struct kd_tok *t, const struct kd_gguf_kv *merges, struct kd_err *err)
{
    struct kd_buf both;
    const char *text;
    int64_t at = 0, n, last = -1, number = 0;
    int rc = 0;
    kd_buf_init(&both, 1 << 20);
    while (!rc && kd_gguf_next_str(merges, &at, &text, &n)) {
        const char *gap = memchr(text, ' ', (size_t)n);
        kd_buf_clear(&both);
        if (!gap || kd_gpt2_get(&both, text, (size_t)(gap - text)) ||
            kd_gpt2_get(&both, gap + 1, (size_t)(text + n - gap - 1)) || both.failed) {
            rc = kd_fail(err, KD_ECORRUPT, "merge %lld is not two tokens", (long long)number);
            break;
        }
        int32_t rank = kd_tok_rank(t, both.data ? both.data : "", both.size_bytes);
        if (rank <= last)
            rc = kd_fail(err, KD_ENOTSUP, "merge %lld %s: another tokenizer", (long long)number,
                         rank < 0 ? "makes no token" : "is not in the order of the ids");
        last = rank;
        number++;
    }
    kd_buf_release(&both);
    return rc;
}

int kd_tok_read_gguf(struct kd_tok *t, const struct kd_gguf *g, struct kd_err *err)
{
    const struct kd_gguf_kv *tokens = kd_gguf_key(g, "tokenizer.ggml.tokens"),
                            *types = kd_gguf_key(g, "tokenizer.ggml.token_type"),
                            *merges = kd_gguf_key(g, "tokenizer.ggml.merges");
    if (expect_str(g, "tokenizer.ggml.model", "gpt2", err) ||
        expect_str(g, "tokenizer.ggml.pre", "kimi-k2", err))
        return -1;
    int64_t ids = tokens->count, type;
    if (!types || types->type != KD_GV_ARRAY || types->count != ids)
        return kd_fail(err, KD_ECORRUPT,
                       "key 'tokenizer.ggml.token_type' is not one number a token");
    while (ids > 0 && !kd_gguf_item(types, ids - 1, &type) && type == TYPE_UNUSED)
        ids--; /* rows of the model that no token has */
    int64_t ranks = ids - KD_TOK_SPECIALS;
    if (tokens->type != KD_GV_ARRAY || tokens->item != KD_GV_STR || ranks < 256)
        return kd_fail(err, KD_ECORRUPT,
                       "key 'tokenizer.ggml.tokens' is not an array of at least %d strings",
                       KD_TOK_SPECIALS + 256);
    for (int64_t i = 0; i < ranks; i++)
        if (kd_gguf_item(types, i, &type) || type == TYPE_CONTROL)
            return kd_fail(err, KD_ENOTSUP, "token %lld is special, and not one of the last %d",
                           (long long)i, KD_TOK_SPECIALS);
    struct kd_buf bytes;
    uint32_t *begin;
    kd_buf_init(&bytes, BYTES_MAX);
    if (kd_mem_new(&begin, ranks + 1, sizeof *begin, "tokens", err))
        return -1;
    int rc = read_tokens(t, tokens, ranks, &bytes, begin, err);
    if (!rc)
        rc = kd_bpe_open_list(&t->bpe, (const uint8_t *)bytes.data, begin, ranks, err);
    kd_mem_free(begin);
    kd_buf_release(&bytes);
    if (rc || kd_tok_complete(t, err))
        return -1;
    if (!merges || merges->type != KD_GV_ARRAY || merges->item != KD_GV_STR)
        return kd_fail(err, KD_ECORRUPT, "key 'tokenizer.ggml.merges' is not an array of strings");
    return check_merges(t, merges, err);
}

int kd_tok_load_gguf(struct kd_tok *t, const char *path, bool *found, struct kd_err *err)
{
    struct kd_gguf_set set;
    if (kd_gguf_open(&set, path, err))
        return -1;
    *found = kd_gguf_key(&set.parts[0].head, "tokenizer.ggml.tokens") != NULL;
    int rc = *found ? kd_tok_read_gguf(t, &set.parts[0].head, err) : 0;
    if (rc)
        kd_wrap(err, "%s", set.parts[0].path);
    kd_gguf_close(&set);
    return rc;
}
