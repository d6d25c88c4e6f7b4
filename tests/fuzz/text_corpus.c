/* Any bytes as a calibration text, plain or JSONL: refused, or whole rows of ids, each of a
 * document, in their order. */
#include "base/assert.h"
#include "fuzz/files.h"
#include "fuzz/nano.h"
#include "text/corpus.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static struct kd_tok *tok;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_corpus c;
    struct kd_err err;
    tok = fuzz_tok();
    if (kd_corpus_load(&c, tok, fuzz_file("text", data, bytes), 0, 4, &err)) {
        KD_ASSERT(err.msg[0]);
        return 0;
    }
    KD_ASSERT(c.rows > 0 && c.cols == 4 && c.rows * c.cols <= c.tokens_total);
    for (int64_t i = 0; i < c.rows * c.cols; i++)
        KD_ASSERT(c.ids[i] >= 0 && c.ids[i] < kd_tok_vocab(tok) && c.doc[i] >= 0 &&
                  c.doc[i] < c.doc_count && (!i || c.doc[i] >= c.doc[i - 1]));
    kd_corpus_release(&c);
    return 0;
}
