/* net/source over local files, net/journal: positional reads, batches, pieces of one file, lines.
 */
#include "base/file.h"
#include "net/journal.h"
#include "net/source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[] = "/tmp/kd-source-XXXXXX";

static void put(const char *name, const char *text)
{
    char path[256];
    struct kd_err err;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(kd_file_write(path, text, strlen(text), &err), 0);
}

static int set_up(void **state)
{
    char path[256];
    struct kd_err err;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/sub", dir);
    assert_int_equal(kd_dir_make(path, &err), 0);
    put("x.gguf.part1of3", "0123");
    put("x.gguf.part2of3", "4");
    put("x.gguf.part3of3", "56789");
    put("y.gguf.part1of2", "alone");
    put("sub/a.json", "{}");
    put(".hidden", "no");
    return 0;
}

static int tear_down(void **state)
{
    struct kd_err err;
    (void)state;
    return kd_dir_remove(dir, &err);
}

/* Collects what a sink gets, at its place. */
static int collect(void *ctx, int64_t at, const void *data, int64_t bytes, struct kd_err *err)
{
    (void)err;
    memcpy((char *)ctx + at, data, (size_t)bytes);
    return 0;
}

static void reads(void **state)
{
    struct kd_source *s;
    struct kd_err err;
    char buf[16] = "", a[8] = "", b[8] = "", c[8] = "";
    (void)state;
    assert_int_equal(kd_source_open(&s, dir, NULL, &err), 0);
    assert_int_equal(kd_source_count(s), 3);
    int x = kd_source_find(s, "x.gguf");
    assert_true(x >= 0 && kd_source_find(s, "sub/a.json") >= 0 &&
                kd_source_find(s, "y.gguf.part1of2") >= 0);
    assert_int_equal(kd_source_find(s, "y.gguf"), -1); /* a piece of it is missing */
    assert_int_equal(kd_source_at(s, x)->bytes, 10);
    assert_int_equal(kd_source_at(s, x)->pieces, 3);
    assert_null(kd_source_path(s, x));
    assert_int_equal(kd_source_read(s, x, 0, 10, buf, &err), 0);
    assert_memory_equal(buf, "0123456789", 10);
    /* Any order, overlapping, over pieces; buffers and sinks. */
    struct kd_source_span spans[] = {{x, 7, 3, a, NULL, NULL},
                                     {x, 2, 5, NULL, collect, b},
                                     {x, 3, 2, c, NULL, NULL},
                                     {x, 10, 0, c, NULL, NULL}};
    assert_int_equal(kd_source_read_many(s, spans, 4, &err), 0);
    assert_string_equal(a, "789");
    assert_string_equal(b, "23456");
    assert_string_equal(c, "34");
    int64_t requests, bytes;
    assert_int_equal(kd_source_cost(s, spans, 4, &requests, &bytes, &err), 0);
    assert_int_equal(requests, 3); /* one a piece */
    assert_int_equal(bytes, 8);    /* [2, 10) */
    assert_int_equal(kd_source_read(s, x, 8, 3, buf, &err), -1);
    assert_int_equal(err.code, KD_ECORRUPT);
    assert_int_equal(kd_source_read(s, x, INT64_MAX, 1, buf, &err), -1);
    kd_source_close(s);
    /* One piece's path stands for the file. */
    char path[256];
    snprintf(path, sizeof path, "%s/x.gguf.part2of3", dir);
    assert_int_equal(kd_source_open(&s, path, NULL, &err), 0);
    assert_int_equal(kd_source_count(s), 1);
    assert_string_equal(kd_source_at(s, 0)->name, "x.gguf");
    kd_source_close(s);
    snprintf(path, sizeof path, "%s/y.gguf.part1of2", dir);
    assert_int_equal(kd_source_open(&s, path, NULL, &err), -1);
    assert_int_equal(kd_source_open(&s, "/nonexistent/x", NULL, &err), -1);
}

struct seen {
    int spans, done, drops;
    char last[64];
};

static int see(void *ctx, const struct kd_journal_line *l, struct kd_err *err)
{
    struct seen *s = ctx;
    (void)err;
    s->spans += l->kind == KD_JOURNAL_SPAN;
    s->done += l->kind == KD_JOURNAL_DONE;
    s->drops += l->kind == KD_JOURNAL_DROP;
    snprintf(s->last, sizeof s->last, "%s", l->name);
    return 0;
}

static void journal(void **state)
{
    struct kd_journal j;
    struct kd_err err;
    struct seen s = {0};
    char path[256];
    struct kd_buf text;
    (void)state;
    snprintf(path, sizeof path, "%s/.fetch", dir);
    assert_int_equal(kd_journal_open(&j, dir, "hf:a/b", "c1", see, &s, &err), 0);
    kd_journal_add(&j, &(struct kd_journal_line){
                           .kind = KD_JOURNAL_SPAN, .name = "a b", .bytes = 5, .xxh = 7, .tag = 9});
    kd_journal_add(&j,
                   &(struct kd_journal_line){.kind = KD_JOURNAL_DONE, .name = "a b", .bytes = 5});
    kd_journal_add(&j, &(struct kd_journal_line){.kind = KD_JOURNAL_DROP, .name = "sub/c"});
    assert_int_equal(kd_journal_flush(&j, &err), 0);
    kd_journal_close(&j);
    kd_buf_init(&text, 4096);
    assert_int_equal(kd_file_read(&text, path, 4096, &err), 0);
    /* Whole, and torn at every byte: what is before the tear counts. */
    for (size_t n = 0; n <= text.size_bytes; n++) {
        assert_int_equal(kd_file_write(path, text.data, n, &err), 0);
        memset(&s, 0, sizeof s);
        assert_int_equal(kd_journal_open(&j, dir, "hf:a/b", "c1", see, &s, &err), 0);
        kd_journal_close(&j);
        assert_true(s.spans >= s.done && s.done >= s.drops);
        assert_int_equal(s.spans + s.done + s.drops, n == text.size_bytes ? 3 : s.spans + s.done);
    }
    assert_string_equal(s.last, "sub/c");
    assert_int_equal(kd_journal_open(&j, dir, "hf:a/x", "c1", see, &s, &err), -1);
    assert_int_equal(kd_journal_open(&j, dir, "hf:a/b", "c2", see, &s, &err), -1);
    assert_non_null(strstr(err.msg, "moved on"));
    text.data[text.size_bytes / 2] ^= 1;
    assert_int_equal(kd_file_write(path, text.data, text.size_bytes, &err), 0);
    assert_int_equal(kd_journal_open(&j, dir, "hf:a/b", "c1", see, &s, &err), -1);
    assert_int_equal(err.code, KD_ECORRUPT);
    kd_buf_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads), cmocka_unit_test(journal)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
