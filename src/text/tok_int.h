/* The tokenizer's inside, for the files that fill it. */
#ifndef KD_TEXT_TOK_INT_H
#define KD_TEXT_TOK_INT_H

#include "text/bpe.h"
#include "text/tok.h"
#include "text/uclass.h"

struct kd_gguf;

enum { KD_TOK_SPECIALS = 256 };

struct kd_tok {
    struct kd_uclass classes;
    struct kd_bpe bpe;
    char *special[KD_TOK_SPECIALS]; /* contents, each NUL-terminated */
    size_t special_bytes[KD_TOK_SPECIALS];
};

int kd_tok_set_special(struct kd_tok *t, int64_t slot, const char *content, size_t bytes,
                       struct kd_err *err) KD_MUST;
/* Names the slots that the configuration leaves open, and refuses two of one name. */
int kd_tok_complete(struct kd_tok *t, struct kd_err *err) KD_MUST;
/* Ranks and special tokens from tiktoken.model and tokenizer_config.json. */
int kd_tok_load_files(struct kd_tok *t, const char *dir, struct kd_err *err) KD_MUST;
/* Ranks and special tokens from a GGUF's keys; *found = false when it has none. */
int kd_tok_load_gguf(struct kd_tok *t, const char *path, bool *found, struct kd_err *err) KD_MUST;
/* The same from a head that has tokens. */
int kd_tok_read_gguf(struct kd_tok *t, const struct kd_gguf *g, struct kd_err *err) KD_MUST;
/* The folder of a file, or the folder itself. */
void kd_tok_folder(char *out, size_t size, const char *path);

#endif
