/* Spans and requests, and which layers and experts a list means. */
#include "base/mem.h"
#include "slice/keep.h"
#include "slice/spans.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static const int64_t parts[] = {1000, 5000};
static const struct kd_slice_limits limits = {.gap_bytes = 100, .request_bytes = 400};

static struct kd_slice_span span(int part, int64_t begin, int64_t bytes, int64_t out_at)
{
    return (struct kd_slice_span){.part = part,
                                  .tensor = -1,
                                  .to = -1,
                                  .begin = begin,
                                  .bytes = bytes,
                                  .out_at = out_at,
                                  .unit = 1,
                                  .out_unit = 1};
}

/* Every byte once, in its place; requests within their limit, in order, apart. */
static void hold(const struct kd_slice_spans *p, const struct kd_slice_span *in, int64_t n)
{
    static int32_t from[8000];
    int64_t wanted = 0, read = 0, k = 0;
    memset(from, 0xff, sizeof from);
    for (int64_t i = 0; i < n; i++)
        for (int64_t b = 0; b < in[i].bytes; b++)
            from[in[i].part * 1000 + in[i].begin + b] = (int32_t)(in[i].out_at + b);
    for (int64_t i = 0; i < n; i++)
        wanted += in[i].bytes;
    for (int64_t r = 0; r < p->request_count; r++) {
        const struct kd_slice_request *q = &p->r[r];
        assert_true(q->bytes > 0 && q->bytes <= limits.request_bytes);
        assert_int_equal(q->first, k);
        read += q->bytes;
        for (; k < q->first + q->count; k++) {
            const struct kd_slice_span *s = &p->s[k];
            assert_true(s->part == q->part && s->begin >= q->begin &&
                        s->begin + s->bytes <= q->begin + q->bytes);
            for (int64_t b = 0; b < s->bytes; b++) {
                int32_t *f = &from[s->part * 1000 + s->begin + b];
                assert_int_equal(*f, s->out_at + b);
                *f = -1;
            }
        }
        if (r)
            assert_true(q[-1].part < q->part || q[-1].begin + q[-1].bytes <= q->begin);
    }
    assert_int_equal(k, p->count);
    for (size_t i = 0; i < sizeof from / sizeof *from; i++)
        assert_int_equal(from[i], -1);
    assert_int_equal(p->wanted_bytes, wanted);
    assert_int_equal(p->gap_bytes, read - wanted);
}

static void test_requests(void **state)
{
    /* Out of order; touching, near, far; longer than a request; another part. */
    const struct kd_slice_span in[] = {span(0, 500, 100, 0),    span(0, 0, 50, 900),
                                       span(0, 50, 50, 200),    span(0, 150, 10, 300),
                                       span(1, 0, 1700, 2000),  span(1, 1800, 300, 5000),
                                       span(1, 2500, 500, 6000)};
    struct kd_slice_spans p, again;
    struct kd_err err;
    (void)state;
    if (kd_slice_spans_make(&p, in, 7, parts, 2, &limits, &err))
        fail_msg("%s", err.msg);
    hold(&p, in, 7);
    assert_int_equal(p.r[0].bytes, 160); /* 0-50, 50-100 and, past a gap of 50, 150-160 */
    assert_int_equal(p.r[1].begin, 500); /* 340 bytes on: a request of its own */
    assert_int_equal(kd_slice_spans_make(&again, in, 7, parts, 2, &limits, &err), 0);
    assert_string_equal(p.hash, again.hash);
    kd_slice_spans_release(&again);
    assert_int_equal(kd_slice_spans_make(&again, in, 6, parts, 2, &limits, &err), 0);
    assert_string_not_equal(p.hash, again.hash);
    kd_slice_spans_release(&again);
    kd_slice_spans_release(&p);
    assert_int_equal(kd_slice_spans_make(&p, NULL, 0, parts, 2, &limits, &err), 0);
    assert_int_equal(p.request_count, 0);
    kd_slice_spans_release(&p);
}

static void test_units(void **state)
{
    /* Rows of 36 bytes become rows of 8: cuts fall between rows, and places follow. */
    struct kd_slice_span in[] = {span(1, 0, 360, 64), span(1, 360, 360, 4000)};
    struct kd_slice_spans p;
    struct kd_err err;
    (void)state;
    in[1].unit = 36;
    in[1].out_unit = 8;
    in[1].to = 1;
    assert_int_equal(kd_slice_spans_make(&p, in, 2, parts, 2, &limits, &err), 0);
    assert_int_equal(p.request_count, 2);
    assert_int_equal(p.count, 3);
    assert_int_equal(p.s[1].bytes, 36);
    assert_int_equal(p.s[1].out_at, 4000);
    assert_int_equal(p.s[2].bytes, 324);
    assert_int_equal(p.s[2].out_at, 4008);
    kd_slice_spans_release(&p);
}

static void test_bad_spans(void **state)
{
    const struct {
        struct kd_slice_span s[2];
        int64_t unit;
        const char *says;
    } cases[] = {{{span(0, 0, 100, 0), span(0, 99, 100, 200)}, 1, "share the bytes at 99"},
                 {{span(0, 0, 100, 0), span(0, 901, 100, 200)}, 1, "not inside"},
                 {{span(0, 0, 100, 0), span(2, 0, 10, 200)}, 1, "not inside"},
                 {{span(0, 0, 100, 0), span(1, -1, 10, 200)}, 1, "not inside"},
                 {{span(0, 0, 100, 0), span(1, INT64_MAX, 10, 200)}, 1, "not inside"},
                 {{span(0, 0, 100, 0), span(1, 0, 100, 200)}, 30, "not inside"},
                 {{span(0, 0, 100, 0), span(1, 0, 1200, 200)}, 600, "over the limit"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kd_slice_span s[2] = {cases[i].s[0], cases[i].s[1]};
        struct kd_slice_spans p;
        struct kd_err err = {.code = KD_OK};
        s[1].unit = s[1].out_unit = cases[i].unit;
        assert_int_equal(kd_slice_spans_make(&p, s, 2, parts, 2, &limits, &err), -1);
        if (!strstr(err.msg, cases[i].says))
            fail_msg("%zu: %s", i, err.msg);
    }
}

static void test_memory(void **state)
{
    const struct kd_slice_span in[] = {span(0, 0, 100, 0), span(1, 0, 900, 100)};
    int64_t live = kd_mem_live_bytes();
    (void)state;
    for (int64_t n = 1;; n++) {
        struct kd_slice_spans p;
        struct kd_err err;
        kd_mem_fail_nth(n);
        int rc = kd_slice_spans_make(&p, in, 2, parts, 2, &limits, &err);
        kd_mem_fail_nth(0);
        if (!rc) {
            kd_slice_spans_release(&p);
            assert_true(n > 3);
            break;
        }
        assert_int_equal(err.code, KD_ENOMEM);
        assert_int_equal(kd_mem_live_bytes(), live);
    }
    assert_int_equal(kd_mem_live_bytes(), live);
}

/* K3's layers: blocks of 12, the last one of 9. */
static void k3(struct kd_k3_cfg *c)
{
    memset(c, 0, sizeof *c);
    c->layers = 93;
    c->dense_layers = 1;
    c->experts = 896;
    c->topk = 16;
    c->block = 12;
    for (int l = 0; l < 93; l++)
        c->mla[l] = l % 4 == 3 || l == 92;
}

static void test_keep(void **state)
{
    static struct kd_k3_cfg c;
    const struct {
        const char *layers, *experts;
        int64_t used;
        bool break_blocks;
        int64_t kept;
        const char *says;
    } cases[] = {
        {NULL, NULL, 0, false, 93, ""},
        {"12", "16", 0, false, 12, ""},
        {"24-35,84-92", "16", 2, false, 21, ""},
        {"84-92", "880-895", 0, false, 9, ""},
        {"13", NULL, 0, false, 0, "the block 12-23 is not kept whole (13 is missing)"},
        {"0-11,84-91", NULL, 0, false, 0, "the block 84-92 is not kept whole (92 is missing)"},
        {"13", NULL, 0, true, 13, ""},
        {"0-2", NULL, 0, true, 0, "none of those kept is MLA"},
        {"91-92", NULL, 0, true, 0, "none of those kept is KDA"},
        {"12", "15", 0, false, 0, "name --experts-used"},
        {"12", "15", 16, false, 0, "16 of the 15 kept"},
        {"12", "15", 15, false, 12, ""},
        {"94", NULL, 0, false, 0, "layers"},
        {"0-93", NULL, 0, false, 0, "'0-93' is not within 0 to 92"},
        {"12", "1,2,1", 1, false, 0, "1 is listed twice"},
        {"12", "5-3,9", 1, false, 0, "'5-3' is not within"},
        {"12", "1,,2", 1, false, 0, "experts"},
        {"12", "-3", 1, false, 0, "experts"},
        {"12", "99999999999999999999999,1", 1, false, 0, "experts"},
        {"12", "top:", 1, false, 0, "needs a file's name"},
        {"12", "top:/nowhere/at/all:4", 1, false, 0, "/nowhere/at/all"},
    };
    (void)state;
    k3(&c);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kd_keep_wish w = {cases[i].experts, cases[i].layers, cases[i].used,
                                 cases[i].break_blocks};
        struct kd_keep k;
        struct kd_err err = {.code = KD_OK};
        int rc = kd_keep_make(&k, &c, &w, &err);
        if (rc != (cases[i].kept ? 0 : -1) || !strstr(err.msg, cases[i].says))
            fail_msg("%zu: %d, %s", i, rc, err.msg);
        if (rc)
            continue;
        assert_int_equal(k.layer_count, cases[i].kept);
        assert_int_equal(k.blocks_whole, !cases[i].break_blocks);
        assert_int_equal(k.all, i == 0);
        assert_true(k.one_list);
        for (int64_t l = 0; l < k.layer_count; l++)
            assert_int_equal(kd_keep_layer(&k, k.layers[l]), l);
        assert_int_equal(kd_keep_layer(&k, 93), -1);
        assert_int_equal(kd_keep_expert(&k, 0, k.experts[k.expert_count - 1]), k.expert_count - 1);
        kd_keep_release(&k);
    }
}

static void test_trace(void **state)
{
    /* Pairs (layer, expert), little-endian; JSON lists; neither. */
    static const uint8_t pairs[] = {1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0,
                                    2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t outside[] = {4, 0, 0, 0, 0, 0, 0, 0};
    static const char *const bad[] = {"{\"1\": [0, 0]}",  "{\"4\": [0]}", "{\"1\": [5]}",
                                      "{\"1\": [\"a\"]}", "{\"x\": [1]}", "{",
                                      "{\"1\": [1.5]}"};
    int64_t count[4 * 5] = {0};
    struct kd_err err;
    bool listed;
    (void)state;
    assert_int_equal(kd_keep_trace(count, 4, 5, pairs, sizeof pairs, &listed, &err), 0);
    assert_false(listed);
    assert_int_equal(count[1 * 5 + 2], 2);
    assert_int_equal(count[3 * 5], 1);
    assert_int_equal(kd_keep_trace(count, 4, 5, outside, sizeof outside, &listed, &err), -1);
    assert_int_equal(kd_keep_trace(count, 4, 5, pairs, 7, &listed, &err), -1);
    assert_int_equal(kd_keep_trace(count, 4, 5, pairs, 0, &listed, &err), -1);
    memset(count, 0, sizeof count);
    const char *json = " {\"1\": [4, 0], \"2\": [1]}";
    assert_int_equal(kd_keep_trace(count, 4, 5, json, strlen(json), &listed, &err), 0);
    assert_true(listed);
    assert_int_equal(count[5 + 4] + count[5] + count[11], 3);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memset(count, 0, sizeof count);
        if (!kd_keep_trace(count, 4, 5, bad[i], strlen(bad[i]), &listed, &err))
            fail_msg("taken: %s", bad[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),  cmocka_unit_test(test_units),
        cmocka_unit_test(test_bad_spans), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_keep),      cmocka_unit_test(test_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
