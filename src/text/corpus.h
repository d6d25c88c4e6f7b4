/* Calibration and evaluation text: a plain UTF-8 file (documents separated by "\n\n<|doc|>\n", each
 * tokenised alone, joined without the separator and without BOS) or JSONL, told by its first line:
 * one
 * {"text": "..."} or one chat request a line; a "messages" key makes a line a chat, which the
 * template renders (without a generation prompt unless the request asks for it). Tokens are cut
 * into rows of exactly `cols`; the tail is dropped. */
#ifndef KD_TEXT_CORPUS_H
#define KD_TEXT_CORPUS_H

#include "text/tok.h"

struct kd_corpus {
    int64_t rows, cols;
    int32_t *ids; /* [rows][cols] */
    int32_t *doc; /* [rows][cols] document number of each token, for intervals */
    int64_t doc_count;
    int64_t tokens_total; /* tokens the text has */
    char sha256[65];
};
/* Takes the first `rows` rows; rows = 0: as many as there are. Too little text is an error that
 * names the shortfall. */
int kd_corpus_load(struct kd_corpus *c, const struct kd_tok *tok, const char *path, int64_t rows,
                   int64_t cols, struct kd_err *err) KD_MUST;
void kd_corpus_release(struct kd_corpus *c);

#endif
