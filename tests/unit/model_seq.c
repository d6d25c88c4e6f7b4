/* Sequences: copies, drafts taken back, bytes and back; and the bits of a batch against those of
 * each sequence alone. */
#include "unit/model_util.h"

enum { LONG = 150 };

struct setup {
    struct fixture f;
    const struct kd_k3_cfg *c;
    int32_t ids[LONG + 64];
    float *a, *b; /* logits of up to 64 rows */
};

static void begin(struct setup *s, int threads)
{
    char dir[512];
    fixture_open(&s->f, data_path(dir, "k3-nano"), KD_ISA_COUNT, threads, NULL);
    s->c = kd_k3_config(s->f.m);
    for (int64_t i = 0; i < LONG + 64; i++)
        s->ids[i] = (int32_t)((i * 7919 + i * i * 31) % 3800);
    must(kd_mem_zero(&s->a, 64 * s->c->vocab, sizeof(float), "logits", &err));
    must(kd_mem_zero(&s->b, 64 * s->c->vocab, sizeof(float), "logits", &err));
}

static void end(struct setup *s)
{
    kd_mem_free(s->a);
    kd_mem_free(s->b);
    fixture_close(&s->f);
}

static void feed(struct setup *s, struct kd_k3_seq *q, int64_t at, int64_t n, int want, bool draft,
                 float *logits)
{
    struct kd_k3_feed f = {q, s->ids + at, n, want, draft};
    must(kd_k3_forward(s->f.m, &f, 1, NULL, logits, &err));
}

static void same_rows(const struct setup *s, const float *a, const float *b, int64_t rows,
                      const char *what)
{
    if (memcmp(a, b, (size_t)(rows * s->c->vocab) * sizeof *a))
        fail_msg("%s: the logits differ", what);
}

static void copies_go_their_own_way(void **state)
{
    struct setup s;
    (void)state;
    begin(&s, 2);
    static const int64_t at[] = {1, 63, 64, 65, 128, 130};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        struct kd_k3_seq *q, *copy;
        must(kd_k3_seq_open(&q, s.f.m, &err));
        feed(&s, q, 0, at[i], 0, false, NULL);
        must(kd_k3_seq_copy(&copy, q, &err));
        feed(&s, q, at[i], 9, 1, false, s.a);
        feed(&s, q, 3, 70, 0, false, NULL); /* elsewhere: must not touch the copy */
        kd_k3_seq_close(q);
        feed(&s, copy, at[i], 9, 1, false, s.b);
        same_rows(&s, s.a, s.b, 1, "copy");
        kd_k3_seq_close(copy);
    }
    end(&s);
}

static void drafts_are_single_tokens(void **state)
{
    struct setup s;
    (void)state;
    begin(&s, 2);
    struct kd_k3_seq *plain, *draft;
    must(kd_k3_seq_open(&plain, s.f.m, &err));
    feed(&s, plain, 0, 125, 0, false, NULL);
    must(kd_k3_seq_copy(&draft, plain, &err));
    for (int64_t i = 0; i < 12; i++)
        feed(&s, plain, 125 + i, 1, 1, false, s.a + i * s.c->vocab);
    feed(&s, draft, 125, 12, 2, true, s.b);
    same_rows(&s, s.a, s.b, 12, "draft");
    feed(&s, plain, 140, 5, 1, false, s.a);
    feed(&s, draft, 140, 5, 1, false, s.b);
    same_rows(&s, s.a, s.b, 1, "after the draft");
    kd_k3_seq_close(plain);
    kd_k3_seq_close(draft);
    end(&s);
}

/* Every number kept, across a page's end, leaves the state that those tokens alone leave. */
static void drafts_taken_back(void **state)
{
    struct setup s;
    (void)state;
    begin(&s, 2);
    struct kd_k3_seq *start;
    must(kd_k3_seq_open(&start, s.f.m, &err));
    feed(&s, start, 0, 60, 0, false, NULL);
    for (int64_t kept = 1; kept <= 8; kept++) {
        struct kd_k3_seq *plain, *draft, *other;
        must(kd_k3_seq_copy(&plain, start, &err));
        must(kd_k3_seq_copy(&draft, start, &err));
        feed(&s, draft, 60, 8, 2, true, s.b);
        must(kd_k3_seq_copy(&other, draft, &err)); /* shares the page just filled */
        must(kd_k3_seq_keep(draft, kept, &err));
        assert_int_equal(kd_k3_seq_pos(draft), 60 + kept);
        for (int64_t i = 0; i < kept; i++)
            feed(&s, plain, 60 + i, 1, 0, false, NULL);
        feed(&s, plain, 100, 3, 2, true, s.a);
        feed(&s, draft, 100, 3, 2, true, s.b);
        same_rows(&s, s.a, s.b, 3, "after taking back");
        must(kd_k3_seq_keep(plain, 2, &err));
        must(kd_k3_seq_keep(draft, 2, &err));
        feed(&s, plain, 90, 20, 1, false, s.a);
        feed(&s, draft, 90, 20, 1, false, s.b);
        same_rows(&s, s.a, s.b, 1, "after taking back twice");
        kd_k3_seq_close(plain);
        kd_k3_seq_close(draft);
        kd_k3_seq_close(other);
    }
    assert_int_equal(kd_k3_seq_keep(start, 1, &err), -1);
    kd_k3_seq_close(start);
    end(&s);
}

struct tape {
    struct kd_buf bytes;
    size_t at;
};

static int tape_in(void *ctx, const void *data, int64_t bytes, struct kd_err *e)
{
    struct tape *t = ctx;
    kd_buf_add(&t->bytes, data, (size_t)bytes);
    return kd_buf_ok(&t->bytes, "tape", e);
}

static int tape_out(void *ctx, void *data, int64_t bytes, struct kd_err *e)
{
    struct tape *t = ctx;
    if (t->bytes.size_bytes - t->at < (size_t)bytes)
        return kd_fail(e, KD_ECORRUPT, "the tape has ended");
    memcpy(data, t->bytes.data + t->at, (size_t)bytes);
    t->at += (size_t)bytes;
    return 0;
}

static void bytes_and_back(void **state)
{
    struct setup s;
    (void)state;
    begin(&s, 1);
    struct kd_k3_seq *q, *r;
    struct tape t = {0};
    kd_buf_init(&t.bytes, 1 << 28);
    must(kd_k3_seq_open(&q, s.f.m, &err));
    feed(&s, q, 0, 130, 0, false, NULL);
    must(kd_k3_seq_write(q, tape_in, &t, &err));
    assert_int_equal(t.bytes.size_bytes, kd_k3_seq_bytes(q));
    must(kd_k3_seq_read(&r, s.f.m, 130, tape_out, &t, &err));
    assert_int_equal(t.at, t.bytes.size_bytes);
    assert_int_equal(kd_k3_seq_pos(r), 130);
    feed(&s, q, 130, 20, 1, false, s.a);
    feed(&s, r, 130, 20, 1, false, s.b);
    same_rows(&s, s.a, s.b, 1, "read back");
    kd_k3_seq_close(r);
    t.at = 0;
    t.bytes.size_bytes -= 4;
    assert_int_equal(kd_k3_seq_read(&r, s.f.m, 130, tape_out, &t, &err), -1);
    assert_null(r);
    kd_buf_release(&t.bytes);
    kd_k3_seq_close(q);
    end(&s);
}

static void pages_are_charged_once(void **state)
{
    struct setup s;
    (void)state;
    begin(&s, 1);
    struct kd_k3_seq *q, *a, *b;
    int64_t fixed = kd_k3_state_bytes(s.c, 0), page = kd_k3_state_bytes(s.c, 64) - fixed;
    must(kd_k3_seq_open(&q, s.f.m, &err));
    feed(&s, q, 0, 64, 0, false, NULL);
    must(kd_k3_seq_copy(&a, q, &err));
    feed(&s, q, 64, 64, 0, false, NULL);
    must(kd_k3_seq_copy(&b, q, &err));
    assert_int_equal(kd_k3_seq_charge(a, 1), fixed + page);
    assert_int_equal(kd_k3_seq_charge(b, 1), fixed + page);
    assert_int_equal(kd_k3_seq_charge(a, -1), fixed);
    assert_int_equal(kd_k3_seq_charge(b, -1), fixed + 2 * page);
    kd_k3_seq_close(a);
    kd_k3_seq_close(b);
    kd_k3_seq_close(q);
    end(&s);
}

/* Sixteen sequences decoded together, one of them prefilling at the same time, against each alone,
 * for one, two and three threads. */
static void a_crowd_changes_no_bits(void **state)
{
    enum { N = 16 };
    struct setup s, t;
    (void)state;
    begin(&s, 2);
    begin(&t, 3);
    struct kd_k3_seq *all[N + 1], *one;
    struct kd_k3_feed f[N + 1];
    for (int i = 0; i <= N; i++) {
        must(kd_k3_seq_open(&all[i], s.f.m, &err));
        if (i < N)
            feed(&s, all[i], i, 20 + 7 * i, 0, false, NULL);
    }
    for (int i = 0; i < N; i++)
        f[i] = (struct kd_k3_feed){all[i], s.ids + 40 + i, 1, 1, false};
    f[N] = (struct kd_k3_feed){all[N], s.ids, 100, 1, false};
    must(kd_k3_forward(s.f.m, f, N + 1, NULL, s.a, &err));
    for (int i = 0; i <= N; i++) {
        must(kd_k3_seq_open(&one, t.f.m, &err));
        if (i < N) {
            feed(&t, one, i, 20 + 7 * i, 0, false, NULL);
            feed(&t, one, 40 + i, 1, 1, false, t.b);
        } else {
            feed(&t, one, 0, 100, 1, false, t.b);
        }
        same_rows(&s, s.a + i * s.c->vocab, t.b, 1, "crowd");
        kd_k3_seq_close(one);
        kd_k3_seq_close(all[i]);
    }
    end(&s);
    end(&t);
}

static void fewer_experts_by_weight(void **state)
{
    struct kd_k3_cfg c = {.topk = 4};
    int32_t ids[8] = {5, 1, 9, 3, 7, 2, -1, -1};
    float w[8] = {0.1f, 0.4f, 0.3f, 0.2f, 0.5f, 0.5f, 0.0f, 0.0f};
    (void)state;
    kd_k3_route_mass(&c, 2, 0.65, ids, w);
    static const int32_t want[8] = {1, 9, -1, -1, 7, 2, -1, -1};
    assert_memory_equal(ids, want, sizeof want);
    assert_true(fabsf(w[0] - 0.4f / 0.7f) < 1e-6f && fabsf(w[1] - 0.3f / 0.7f) < 1e-6f);
    assert_true(w[2] == 0.0f && w[3] == 0.0f && w[4] == 0.5f && w[5] == 0.5f);
    kd_k3_route_mass(&c, 2, 0.01, ids, w);
    assert_int_equal(ids[1], -1);
    assert_int_equal(ids[5], -1);
    assert_true(fabsf(w[0] - 1.0f) < 1e-6f && w[4] == 1.0f);
}

static void fingerprints(void **state)
{
    struct setup s;
    char a[65], b[65];
    (void)state;
    begin(&s, 1);
    must(kd_k3_fingerprint(s.f.m, a, &err));
    end(&s);
    begin(&s, 2);
    must(kd_k3_fingerprint(s.f.m, b, &err));
    assert_string_equal(a, b);
    end(&s);
    char dir[512];
    struct kd_k3_open o = {.eps_latent = 1e-5f};
    fixture_open(&s.f, data_path(dir, "k3-nano"), KD_ISA_COUNT, 1, &o);
    must(kd_k3_fingerprint(s.f.m, b, &err));
    assert_string_not_equal(a, b);
    fixture_close(&s.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_go_their_own_way), cmocka_unit_test(drafts_are_single_tokens),
        cmocka_unit_test(drafts_taken_back),       cmocka_unit_test(bytes_and_back),
        cmocka_unit_test(pages_are_charged_once),  cmocka_unit_test(a_crowd_changes_no_bits),
        cmocka_unit_test(fewer_experts_by_weight), cmocka_unit_test(fingerprints)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
