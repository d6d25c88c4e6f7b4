/* text/corpus: documents, chats, rows, shortfalls; the shared text where it is there. */
#include "base/file.h"
#include "base/mem.h"
#include "text/chat.h"
#include "text/corpus.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct kd_tok *tok;
static char dir[] = "/tmp/kd-corpus-XXXXXX", path[128];

static int setup(void **state)
{
    (void)state;
    struct kd_err err;
    char model[4096];
    const char *data = getenv("KONDENSE_TEST_DATA");
    snprintf(model, sizeof model, "%s/k3-nano", data ? data : "tests/data");
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/text", dir);
    return kd_tok_open(&tok, model, &err);
}

static int teardown(void **state)
{
    (void)state;
    struct kd_err err;
    kd_tok_close(tok);
    return kd_dir_remove(dir, &err);
}

static int load(struct kd_corpus *c, const char *text, int64_t rows, int64_t cols,
                struct kd_err *err)
{
    assert_int_equal(kd_file_write(path, text, strlen(text), err), 0);
    return kd_corpus_load(c, tok, path, rows, cols, err);
}

static void assert_row_is(const struct kd_corpus *c, const char *const *docs, int count)
{
    struct kd_err err;
    struct kd_ids want = {0};
    int64_t at = 0;
    for (int d = 0; d < count; d++) {
        assert_int_equal(kd_chat_markup_ids(tok, docs[d], strlen(docs[d]), &want, &err), 0);
        for (; at < want.count && at < c->rows * c->cols; at++) {
            assert_int_equal(c->ids[at], want.id[at]);
            assert_int_equal(c->doc[at], d);
        }
    }
    assert_int_equal(c->tokens_total, want.count);
    assert_int_equal(c->doc_count, count);
    kd_ids_release(&want);
}

static void joins_documents(void **state)
{
    (void)state;
    struct kd_err err;
    struct kd_corpus c;
    const char *text =
        "It was the best\n\n<|doc|>\nof times,\n\n<|doc|>\n\n\n<|doc|>\nit was <|doc|> the worst\n";
    assert_int_equal(load(&c, text, 0, 1, &err), 0);
    assert_row_is(
        &c, (const char *[]){"It was the best", "of times,", "it was <|doc|> the worst\n"}, 3);
    assert_int_equal(c.rows, c.tokens_total);
    assert_int_equal(strlen(c.sha256), 64);
    int64_t total = c.tokens_total;
    kd_corpus_release(&c);
    assert_int_equal(load(&c, text, 0, 3, &err), 0);
    assert_int_equal(c.rows, total / 3);
    kd_corpus_release(&c);
    assert_int_equal(load(&c, text, 2, 3, &err), 0);
    assert_int_equal(c.rows, 2);
    assert_int_equal(c.tokens_total, total);
    kd_corpus_release(&c);
    /* Not a record, though it looks like one. */
    assert_int_equal(load(&c, "{\"a\": 1}\nword", 0, 1, &err), 0);
    assert_int_equal(c.doc_count, 1);
    kd_corpus_release(&c);
}

static void renders_chats(void **state)
{
    (void)state;
    struct kd_err err;
    struct kd_corpus c;
    const char *text =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}\n\n"
        "{\"text\":\"plain <|sep|>\"}\r\n"
        "{\"messages\":[{\"role\":\"user\",\"content\":\"A\"}],\"add_generation_prompt\":true}";
    assert_int_equal(load(&c, text, 0, 1, &err), 0);
    struct kd_ids want = {0};
    const char *first =
        "<|open|>message role=\"user\"<|sep|>Hi<|close|>message<|sep|><|end_of_msg|>";
    const char *last =
        "<|open|>message role=\"user\"<|sep|>A<|close|>message<|sep|><|end_of_msg|><|open|>message "
        "role=\"assistant\"<|sep|><|open|>think<|sep|>";
    assert_int_equal(kd_chat_markup_ids(tok, first, strlen(first), &want, &err), 0);
    assert_int_equal(kd_tok_encode(tok, "plain <|sep|>", 13, &want, &err), 0);
    assert_int_equal(kd_chat_markup_ids(tok, last, strlen(last), &want, &err), 0);
    assert_int_equal(c.tokens_total, want.count);
    assert_memory_equal(c.ids, want.id, (size_t)want.count * sizeof *want.id);
    assert_int_equal(c.doc[want.count - 1], 2);
    kd_ids_release(&want);
    kd_corpus_release(&c);
    assert_int_equal(load(&c, "{\"text\":\"a\"}\n{\"text\":\n", 0, 1, &err), -1);
    assert_non_null(strstr(err.msg, "line 2"));
    assert_int_equal(load(&c, "{\"text\":\"a\"}\n{\"messages\":3}\n", 0, 1, &err), -1);
    assert_non_null(strstr(err.msg, "line 2: 'messages'"));
}

static void names_the_shortfall(void **state)
{
    (void)state;
    struct kd_err err;
    struct kd_corpus c;
    int64_t live = kd_mem_live_bytes();
    assert_int_equal(load(&c, "aaa bbb", 9, 100, &err), -1);
    assert_non_null(strstr(err.msg, "9 rows of 100 tokens are needed"));
    assert_int_equal(load(&c, "", 0, 4, &err), -1);
    assert_non_null(strstr(err.msg, "the text has 0 tokens"));
    assert_int_equal(load(&c, "aaa", 1, 0, &err), -1);
    assert_int_equal(load(&c, "aaa", INT64_MAX, INT64_MAX, &err), -1);
    assert_int_equal(kd_corpus_load(&c, tok, "/nowhere/text", 1, 1, &err), -1);
    assert_int_equal(kd_mem_live_bytes(), live);
}

/* All of each shared file comes back from its ids, document by document. */
static void reads_the_shared_text(void **state)
{
    (void)state;
    static const char *const names[] = {"prose.txt", "code.txt", "multilingual.txt",
                                        "wiki-small.txt"};
    const char *source = getenv("KONDENSE_TEST_ROOT"), *shared = getenv("KONDENSE_SHARED");
    struct kd_err err;
    char file[4096];
    int found = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct kd_corpus c;
        struct kd_buf text, back;
        if (shared)
            snprintf(file, sizeof file, "%s/text/%s", shared, names[i]);
        else
            snprintf(file, sizeof file, "%s/../shared/text/%s", source ? source : ".", names[i]);
        if (!kd_file_exists(file))
            continue;
        found++;
        kd_buf_init(&text, 1 << 24);
        kd_buf_init(&back, 1 << 24);
        assert_int_equal(kd_file_read(&text, file, 1 << 24, &err), 0);
        assert_int_equal(kd_corpus_load(&c, tok, file, 0, 1, &err), 0);
        for (int64_t k = 0; k < c.rows; k++) {
            if (k && c.doc[k] != c.doc[k - 1])
                kd_buf_str(&back, "\n\n<|doc|>\n");
            assert_int_equal(kd_tok_decode(tok, c.ids + k, 1, &back, &err), 0);
        }
        assert_int_equal(back.size_bytes, text.size_bytes);
        assert_memory_equal(back.data, text.data, text.size_bytes);
        kd_buf_release(&text);
        kd_buf_release(&back);
        kd_corpus_release(&c);
    }
    if (!found)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joins_documents), cmocka_unit_test(renders_chats),
        cmocka_unit_test(names_the_shortfall), cmocka_unit_test(reads_the_shared_text)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
