/* The Kimi tokenizer: tiktoken ranks, the Kimi pattern, special tokens from tokenizer_config.json.
 * Text never yields special ids; markup does only through kd_tok_special. Immutable after opening
 * and then thread-safe.
 *
 *     struct kd_tok *tok;
 *     kd_tok_open(&tok, "k3-nano", err);
 *     struct kd_ids ids = {0};
 *     kd_tok_encode(tok, text, bytes, &ids, err);
 */
#ifndef KD_TEXT_TOK_H
#define KD_TEXT_TOK_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kd_ids {
    int32_t *id;
    int64_t count, cap;
};
int kd_ids_add(struct kd_ids *ids, int32_t id, struct kd_err *err) KD_MUST;
void kd_ids_release(struct kd_ids *ids);

struct kd_tok;
/* dir holds tiktoken.model and tokenizer_config.json, or is a GGUF (file, split set or folder with
 * one): then the tokenizer comes from its keys, or from those two files beside it when it has none.
 */
int kd_tok_open(struct kd_tok **tok, const char *dir, struct kd_err *err) KD_MUST;
void kd_tok_close(struct kd_tok *tok);
int64_t kd_tok_vocab(const struct kd_tok *tok); /* ranks + special slots */
/* Appends. Invalid UTF-8 is encoded as its bytes. */
int kd_tok_encode(const struct kd_tok *tok, const char *text, size_t bytes, struct kd_ids *out,
                  struct kd_err *err) KD_MUST;
/* Bytes of one id; special tokens give their content. NULL for an id outside the vocabulary. */
const char *kd_tok_bytes(const struct kd_tok *tok, int32_t id, size_t *bytes);
int kd_tok_decode(const struct kd_tok *tok, const int32_t *ids, int64_t count, struct kd_buf *out,
                  struct kd_err *err) KD_MUST;
/* Rank of exactly these bytes, or -1. */
int32_t kd_tok_rank(const struct kd_tok *tok, const char *text, size_t bytes);
/* Id of "<|open|>" and the like, or -1. */
int32_t kd_tok_special(const struct kd_tok *tok, const char *content);
/* The special token that `text` begins with (the longest, if several), and its length; or -1. */
int32_t kd_tok_special_at(const struct kd_tok *tok, const char *text, size_t left, size_t *bytes);
bool kd_tok_is_special(const struct kd_tok *tok, int32_t id);

#endif
