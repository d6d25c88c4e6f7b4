#include "gate/rows.h"

#include "base/mem.h"
#include "text/tok.h"

enum { SAMPLES = 2048 };

int kd_check_rows(struct kd_corpus *text, uint8_t **special, const char *path, const char *dir,
                  int64_t rows, int64_t cols, int64_t vocab, struct kd_err *err)
{
    struct kd_tok *tok;
    if (kd_tok_open(&tok, dir, err))
        return -1;
    int rc = kd_corpus_load(text, tok, path, rows, cols, err);
    int64_t n = rc ? 0 : text->rows * text->cols;
    if (!rc)
        rc = kd_mem_new(special, n, 1, "special tokens", err);
    for (int64_t i = 0; i < n && !rc; i++) {
        (*special)[i] = kd_tok_is_special(tok, text->ids[i]);
        if (text->ids[i] >= vocab)
            rc = kd_fail(err, KD_EINVAL, "%s: token %d lies outside the model's vocabulary of %lld",
                         path, text->ids[i], (long long)vocab);
    }
    kd_tok_close(tok);
    return rc;
}

int64_t kd_check_samples(int64_t tokens)
{
    return tokens < SAMPLES ? tokens : SAMPLES;
}

int64_t kd_check_sample(int64_t tokens, int64_t samples, int64_t i)
{
    return i * tokens / samples;
}
