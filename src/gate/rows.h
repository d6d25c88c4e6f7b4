/* The rows of a check and its sampled positions, the same for a check that has both models and one
 * that is taken in two halves. */
#ifndef KD_GATE_ROWS_H
#define KD_GATE_ROWS_H

#include "text/corpus.h"

/* Rows of the text at `path` by the tokenizer in `dir`, and which of their tokens are special
 * ([rows*cols], the caller's). Refuses a token outside the vocabulary. Both outputs are the
 * caller's to release, failed or not. */
int kd_check_rows(struct kd_corpus *text, uint8_t **special, const char *path, const char *dir,
                  int64_t rows, int64_t cols, int64_t vocab, struct kd_err *err) KD_MUST;
/* How many positions of the stream are kept, and which the i-th is. */
int64_t kd_check_samples(int64_t tokens);
int64_t kd_check_sample(int64_t tokens, int64_t samples, int64_t i);

#endif
