/* The layer-streamed run against the whole model: the same loss at every position, whatever the
 * block a row falls into. */
#include "base/file.h"
#include "base/mem.h"
#include "gate/check.h"
#include "model/k3.h"
#include "num/logsum.h"
#include "text/corpus.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

static char model[4096], text[4096];

/* Mean loss of a row by kd_k3_forward. */
static double loss_of(struct kd_k3_model *m, const int32_t *ids, int64_t cols)
{
    struct kd_k3_seq *seq;
    struct kd_err err;
    float *logits;
    int64_t vocab = kd_k3_config(m)->vocab;
    double sum = 0;
    assert_int_equal(kd_k3_seq_open(&seq, m, &err), 0);
    assert_int_equal(kd_mem_new(&logits, cols * vocab, sizeof *logits, "logits", &err), 0);
    struct kd_k3_feed feed = {.seq = seq, .ids = ids, .count = cols, .want = 2};
    assert_int_equal(kd_k3_forward(m, &feed, 1, NULL, logits, &err), 0);
    for (int64_t t = 0; t + 1 < cols; t++) {
        const float *l = logits + t * vocab;
        double z = 0;
        for (int64_t i = 0; i < vocab; i++)
            z += exp((double)l[i]);
        sum += log(z) - (double)l[ids[t + 1]];
    }
    kd_k3_seq_close(seq);
    kd_mem_free(logits);
    return sum;
}

static void whole_model(int64_t rows, int64_t cols)
{
    struct kd_kern kern;
    struct kd_run run = {.kern = &kern};
    struct kd_k3_model *m;
    struct kd_check c;
    struct kd_tok *tok;
    struct kd_corpus corpus;
    struct kd_err err;
    double sum = 0;
    assert_int_equal(kd_kern_pick(&kern, &err), 0);
    assert_int_equal(kd_pool_open(&run.pool, 0, &err), 0);
    assert_int_equal(kd_tok_open(&tok, model, &err), 0);
    assert_int_equal(kd_corpus_load(&corpus, tok, text, rows, cols, &err), 0);
    assert_int_equal(kd_k3_open(&m, model, &run, NULL, &err), 0);
    for (int64_t r = 0; r < rows; r++)
        sum += loss_of(m, corpus.ids + r * cols, cols);
    kd_k3_close(m);

    struct kd_check_plan plan = {
        .src = model, .dst = model, .text = text, .rows = rows, .cols = cols};
    assert_int_equal(kd_check_run(&c, &run, &plan, &err), 0);
    double want = exp(sum / (double)(rows * (cols - 1)));
    assert_true(fabs(c.ppl_src / want - 1) < 1e-6);
    assert_true(c.kld_mean == 0 && c.top1 == 1 && c.router_min == 1 && c.ppl_dst == c.ppl_src);
    assert_true(c.layer[c.layer_count - 1].stream == 0);
    kd_check_release(&c);
    kd_corpus_release(&corpus);
    kd_tok_close(tok);
    kd_pool_close(run.pool);
}

static void several_rows(void **state)
{
    (void)state;
    whole_model(3, 90); /* not a multiple of the KDA chunk, all rows in one block */
}

static void a_long_row(void **state)
{
    (void)state;
    whole_model(1, 2100); /* longer than a block: taken in two pieces */
}

int main(void)
{
    const char *data = getenv("KONDENSE_TEST_DATA");
    if (!data)
        return 77;
    snprintf(model, sizeof model, "%s/k3-nano", data);
    snprintf(text, sizeof text, "%s/text/eval.txt", data);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_rows),
        cmocka_unit_test(a_long_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
