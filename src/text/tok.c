#include "text/tok.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/opt.h"
#include "fmt/gguf.h"
#include "text/split.h"
#include "text/tok_int.h"

#include <stdio.h>
#include <string.h>

enum { SPECIAL_BYTES_MAX = 256, MODEL_BYTES_MAX = 256 << 20, CONFIG_BYTES_MAX = 16 << 20 };

static int ids_reserve(struct kd_ids *ids, int64_t more, struct kd_err *err)
{
    if (ids->cap - ids->count >= more)
        return 0;
    int64_t cap = ids->cap + ids->cap / 2 + 64;
    if (cap - ids->count < more)
        cap = ids->count + more;
    int32_t *id;
    if (kd_mem_new(&id, cap, sizeof *id, "token ids", err))
        return -1;
    if (ids->count)
        memcpy(id, ids->id, (size_t)ids->count * sizeof *id);
    kd_mem_free(ids->id);
    ids->id = id;
    ids->cap = cap;
    return 0;
}

int kd_ids_add(struct kd_ids *ids, int32_t id, struct kd_err *err)
{
    if (ids_reserve(ids, 1, err))
        return -1;
    ids->id[ids->count++] = id;
    return 0;
}

void kd_ids_release(struct kd_ids *ids)
{
    kd_mem_free(ids->id);
    memset(ids, 0, sizeof *ids);
}

int kd_tok_set_special(struct kd_tok *t, int64_t slot, const char *content, size_t bytes,
                       struct kd_err *err)
{
    if (!bytes || bytes > SPECIAL_BYTES_MAX || memchr(content, 0, bytes))
        return kd_fail(err, KD_ECORRUPT,
                       "special token %lld is empty, over %d bytes or has a zero byte",
                       (long long)(t->bpe.count + slot), SPECIAL_BYTES_MAX);
    if (kd_mem_new(&t->special[slot], (int64_t)bytes + 1, 1, "special tokens", err))
        return -1;
    memcpy(t->special[slot], content, bytes);
    t->special[slot][bytes] = 0;
    t->special_bytes[slot] = bytes;
    return 0;
}

static int read_special(struct kd_tok *t, const struct kd_json *table, struct kd_err *err)
{
    void *iter = NULL;
    const char *key;
    struct kd_json *v;
    while (kd_json_next(table, &iter, &key, &v)) {
        int64_t id;
        if (kd_parse_int(key, t->bpe.count, t->bpe.count + KD_TOK_SPECIALS - 1, &id, err))
            return kd_fail(err, KD_ECORRUPT, "added token '%.40s' is not in %lld to %lld", key,
                           (long long)t->bpe.count,
                           (long long)(t->bpe.count + KD_TOK_SPECIALS - 1));
        size_t bytes;
        const char *content = kd_json_text(kd_json_get(v, "content"), &bytes);
        if (!content)
            return kd_fail(err, KD_ECORRUPT, "added token %.40s has no content", key);
        if (t->special[id - t->bpe.count])
            return kd_fail(err, KD_ECORRUPT, "added token %lld is there twice", (long long)id);
        if (kd_tok_set_special(t, id - t->bpe.count, content, bytes, err))
            return -1;
    }
    return 0;
}

/* Names the slots that the configuration leaves open, and refuses two of one name. */
int kd_tok_complete(struct kd_tok *t, struct kd_err *err)
{
    for (int64_t i = 0; i < KD_TOK_SPECIALS; i++) {
        char name[64];
        int n =
            snprintf(name, sizeof name, "<|reserved_token_%lld|>", (long long)(t->bpe.count + i));
        if (!t->special[i] && kd_tok_set_special(t, i, name, (size_t)n, err))
            return -1;
    }
    for (int i = 0; i < KD_TOK_SPECIALS; i++)
        for (int j = 0; j < i; j++)
            if (!strcmp(t->special[i], t->special[j]))
                return kd_fail(err, KD_ECORRUPT, "two added tokens are '%s'", t->special[i]);
    return 0;
}

int kd_tok_load_files(struct kd_tok *t, const char *dir, struct kd_err *err)
{
    char path[4096];
    struct kd_buf model;
    struct kd_json *config = NULL;
    kd_buf_init(&model, MODEL_BYTES_MAX);
    int rc = kd_path_join(path, sizeof path, dir, "tiktoken.model", err);
    if (!rc)
        rc = kd_file_read(&model, path, MODEL_BYTES_MAX, err);
    if (!rc && kd_bpe_open(&t->bpe, model.data ? model.data : "", model.size_bytes, err))
        rc = kd_wrap(err, "%s", path);
    kd_buf_release(&model);
    if (!rc)
        rc = kd_path_join(path, sizeof path, dir, "tokenizer_config.json", err);
    if (!rc)
        rc = kd_json_load(&config, path, CONFIG_BYTES_MAX, err);
    if (rc)
        return -1;
    const struct kd_json *table = kd_json_get(config, "added_tokens_decoder");
    if (kd_json_kind(table) != KD_JSON_OBJECT)
        rc = kd_fail(err, KD_ECORRUPT, "'added_tokens_decoder' is missing");
    else if (read_special(t, table, err) || kd_tok_complete(t, err))
        rc = -1;
    kd_json_free(config);
    return rc ? kd_wrap(err, "%s", path) : 0;
}

int kd_tok_open(struct kd_tok **tok, const char *dir, struct kd_err *err)
{
    *tok = NULL;
    struct kd_tok *t;
    if (kd_mem_zero(&t, 1, sizeof *t, "tokenizer", err))
        return -1;
    char beside[4096];
    bool keys = false;
    int rc = kd_uclass_open(&t->classes, err);
    if (!rc && kd_gguf_is(dir)) {
        rc = kd_tok_load_gguf(t, dir, &keys, err);
        kd_tok_folder(beside, sizeof beside, dir);
        dir = beside;
    }
    if (!rc && !keys)
        rc = kd_tok_load_files(t, dir, err);
    if (rc) {
        kd_tok_close(t);
        return -1;
    }
    *tok = t;
    return 0;
}

void kd_tok_close(struct kd_tok *tok)
{
    if (!tok)
        return;
    for (int i = 0; i < KD_TOK_SPECIALS; i++)
        kd_mem_free(tok->special[i]);
    kd_bpe_close(&tok->bpe);
    kd_uclass_close(&tok->classes);
    kd_mem_free(tok);
}

int32_t kd_tok_rank(const struct kd_tok *tok, const char *text, size_t bytes)
{
    return kd_bpe_rank(&tok->bpe, (const uint8_t *)text, bytes);
}

int64_t kd_tok_vocab(const struct kd_tok *tok)
{
    return tok->bpe.count + KD_TOK_SPECIALS;
}

int kd_tok_encode(const struct kd_tok *tok, const char *text, size_t bytes, struct kd_ids *out,
                  struct kd_err *err)
{
    const unsigned char *s = (const unsigned char *)text;
    struct kd_bpe_work work = {0};
    int64_t chars = 0;
    int rc = 0;
    while (bytes && !rc) {
        size_t chunk = kd_split_chunk(s, bytes, &chars);
        bytes -= chunk;
        while (chunk && !rc) {
            size_t n = kd_split_piece(&tok->classes, s, chunk);
            int64_t added = ids_reserve(out, (int64_t)n, err)
                                ? -1
                                : kd_bpe_encode(&tok->bpe, &work, s, n, out->id + out->count, err);
            rc = added < 0 ? -1 : 0;
            out->count += rc ? 0 : added;
            s += n;
            chunk -= n;
        }
    }
    kd_bpe_work_release(&work);
    return rc;
}

const char *kd_tok_bytes(const struct kd_tok *tok, int32_t id, size_t *bytes)
{
    if (kd_tok_is_special(tok, id)) {
        *bytes = tok->special_bytes[id - tok->bpe.count];
        return tok->special[id - tok->bpe.count];
    }
    if (id < 0 || id >= tok->bpe.count)
        return NULL;
    *bytes = tok->bpe.begin[id + 1] - tok->bpe.begin[id];
    return (const char *)tok->bpe.bytes + tok->bpe.begin[id];
}

int kd_tok_decode(const struct kd_tok *tok, const int32_t *ids, int64_t count, struct kd_buf *out,
                  struct kd_err *err)
{
    for (int64_t i = 0; i < count; i++) {
        size_t n;
        const char *s = kd_tok_bytes(tok, ids[i], &n);
        if (!s)
            return kd_fail(err, KD_EINVAL, "id %d is outside the vocabulary of %lld", ids[i],
                           (long long)kd_tok_vocab(tok));
        kd_buf_add(out, s, n);
    }
    return kd_buf_ok(out, "decoded text", err);
}

int32_t kd_tok_special(const struct kd_tok *tok, const char *content)
{
    for (int i = 0; i < KD_TOK_SPECIALS; i++)
        if (!strcmp(tok->special[i], content))
            return (int32_t)tok->bpe.count + i;
    return -1;
}

int32_t kd_tok_special_at(const struct kd_tok *tok, const char *text, size_t left, size_t *bytes)
{
    int32_t id = -1;
    *bytes = 0;
    for (int i = 0; i < KD_TOK_SPECIALS && left; i++) {
        size_t n = tok->special_bytes[i];
        if (*text == *tok->special[i] && n > *bytes && n <= left &&
            !memcmp(text, tok->special[i], n)) {
            id = (int32_t)tok->bpe.count + i;
            *bytes = n;
        }
    }
    return id;
}

bool kd_tok_is_special(const struct kd_tok *tok, int32_t id)
{
    return id >= tok->bpe.count && id < tok->bpe.count + KD_TOK_SPECIALS;
}
