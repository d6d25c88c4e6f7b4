/* What must not matter: how a prompt is cut, who else is in the batch, how many threads there are
 * and which instruction set. Cuts change last bits only in KDA (docs/numerics.md), the rest
 * nothing. */
#include "model_kat.h"

static void same_bits(const float *a, const float *b, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++)
        if (kd_f32_bits(a[i]) != kd_f32_bits(b[i]))
            fail_msg("%s: value %lld is %a, not %a", what, (long long)i, (double)a[i],
                     (double)b[i]);
}

/* The longest golden prompt, 259 tokens. */
static int64_t long_prompt(const char *dir, int32_t ids[512])
{
    char path[600];
    struct kd_ckpt *ck;
    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    must(kd_ckpt_open(&ck, path, false, &err));
    const struct kd_tensor *t = kd_ckpt_find(ck, "2.ids");
    assert_non_null(t);
    int64_t n = t->shape[0];
    assert_true(n > 130 && n <= 512);
    memcpy(ids, t->data, (size_t)n * 4);
    kd_ckpt_close(ck);
    return n;
}

/* Prompt in steps, then 8 greedy tokens; against the prompt as a whole. */
static void cuts_of(const char *dir, const int32_t *ids, int64_t n, double bound)
{
    static const int64_t steps[] = {1, 2, 3, 7, 16, 64, 65};
    enum { MORE = 8 };
    struct fixture f;
    int32_t whole_ids[MORE], cut_ids[MORE];
    double worst = 0;
    fixture_open(&f, dir, KD_ISA_COUNT, 0, NULL);
    int64_t vocab = kd_k3_config(f.m)->vocab;
    float *whole = new_floats(vocab), *cut = new_floats(vocab);
    greedy(&f, ids, n, n, whole_ids, MORE, whole);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        greedy(&f, ids, n, steps[i], cut_ids, MORE, cut);
        double rel = apart(whole, cut, vocab) / greatest(whole, vocab);
        worst = rel > worst || rel != rel ? rel : worst;
        assert_memory_equal(whole_ids, cut_ids, sizeof cut_ids);
        if (steps[i] == 64) /* the chunks of the whole prompt */
            same_bits(cut, whole, vocab, "steps of 64");
    }
    printf("cuts: logits %.2e of the largest apart\n", worst);
    assert_true(worst <= bound);
    free(whole);
    free(cut);
    fixture_close(&f);
}

static void cuts(void **state)
{
    char dir[512];
    int32_t ids[512];
    (void)state;
    int64_t n = long_prompt(data_path(dir, "k3-nano"), ids);
    cuts_of(dir, ids, n, 1e-5);
}

/* The softplus gate has no lower bound: decays of e^-100 and more inside a chunk. */
static void cuts_softplus(void **state)
{
    const struct kat old = {.softplus = true, .uncapped = true};
    char dir[512];
    int32_t ids[KAT_TOKENS];
    (void)state;
    for (int64_t t = 0; t < KAT_TOKENS; t++)
        ids[t] = kat_token(t);
    kat_write(&old, dir);
    cuts_of(dir, ids, KAT_TOKENS, 1e-4);
    kat_remove(dir);
}

/* Five sequences of unlike lengths at once, in two rounds, against each alone. */
static void batch(void **state)
{
    enum { N = 5 };
    static const int64_t first[N] = {9, 1, 64, 33, 2}, second[N] = {1, 5, 1, 64, 70};
    char dir[512];
    struct fixture f;
    struct kd_k3_seq *s[N], *alone;
    struct kd_k3_feed feeds[N];
    int32_t ids[512];
    int64_t rows = 0;
    (void)state;
    long_prompt(data_path(dir, "k3-nano"), ids);
    fixture_open(&f, dir, KD_ISA_COUNT, 2, NULL);
    int64_t vocab = kd_k3_config(f.m)->vocab;
    float *many = new_floats(200 * vocab), *one = new_floats(100 * vocab);
    for (int i = 0; i < N; i++) {
        must(kd_k3_seq_open(&s[i], f.m, &err));
        feeds[i] = (struct kd_k3_feed){s[i], ids + 3 * i, first[i], i % 3};
    }
    must(kd_k3_forward(f.m, feeds, N, NULL, many, &err));
    for (int i = 0; i < N; i++) {
        feeds[i] = (struct kd_k3_feed){s[i], ids + 3 * i + first[i], second[i], 2};
        rows += second[i];
    }
    assert_true(rows <= 200);
    must(kd_k3_forward(f.m, feeds, N, NULL, many, &err));
    rows = 0;
    for (int i = 0; i < N; i++) {
        must(kd_k3_seq_open(&alone, f.m, &err));
        struct kd_k3_feed a = {alone, ids + 3 * i, first[i], 0};
        must(kd_k3_forward(f.m, &a, 1, NULL, NULL, &err));
        a = (struct kd_k3_feed){alone, ids + 3 * i + first[i], second[i], 2};
        must(kd_k3_forward(f.m, &a, 1, NULL, one, &err));
        same_bits(many + rows * vocab, one, second[i] * vocab, "batch");
        assert_int_equal(kd_k3_seq_pos(alone), kd_k3_seq_pos(s[i]));
        rows += second[i];
        kd_k3_seq_close(alone);
        kd_k3_seq_close(s[i]);
    }
    struct kd_k3_seq *twice;
    must(kd_k3_seq_open(&twice, f.m, &err));
    feeds[0] = feeds[1] = (struct kd_k3_feed){twice, ids, 1, 0};
    assert_int_equal(kd_k3_forward(f.m, feeds, 2, NULL, NULL, &err), -1);
    kd_k3_seq_close(twice);
    free(many);
    free(one);
    fixture_close(&f);
}

/* Logits of the last rows of `count` tokens fed in one call. */
static void last_rows(const char *dir, enum kd_isa isa, int threads, const int32_t *ids,
                      int64_t count, int64_t split, float *out)
{
    struct fixture f;
    struct kd_k3_seq *s;
    fixture_open(&f, dir, isa, threads, NULL);
    must(kd_k3_seq_open(&s, f.m, &err));
    struct kd_k3_feed a = {s, ids, split, 0}, b = {s, ids + split, count - split, 1};
    if (split)
        must(kd_k3_forward(f.m, &a, 1, NULL, NULL, &err));
    must(kd_k3_forward(f.m, &b, 1, NULL, out, &err));
    kd_k3_seq_close(s);
    fixture_close(&f);
}

static void threads_and_sets(void **state)
{
    char dir[512];
    int32_t ids[512];
    enum { VOCAB = 4096 };
    float *want = new_floats(VOCAB), *got = new_floats(VOCAB);
    (void)state;
    long_prompt(data_path(dir, "k3-nano"), ids);
    last_rows(dir, KD_ISA_REF, 0, ids, 70, 69, want);
    for (int isa = 0; isa < KD_ISA_COUNT; isa++) {
        struct kd_kern k;
        if (kd_kern_for(&k, (enum kd_isa)isa, &err))
            continue;
        for (int threads = isa == KD_ISA_REF ? 3 : 1; threads <= 3; threads += 2) {
            last_rows(dir, (enum kd_isa)isa, threads, ids, 70, 69, got);
            same_bits(got, want, VOCAB, kd_isa_name((enum kd_isa)isa));
        }
    }
    free(want);
    free(got);
}

/* More tokens than one pass takes: cut inside, at chunks, with no change of bits. */
static void long_feed(void **state)
{
    char dir[512];
    int32_t ids[1300];
    enum { VOCAB = 4096 };
    float *want = new_floats(VOCAB), *got = new_floats(VOCAB);
    (void)state;
    int64_t n = long_prompt(data_path(dir, "k3-nano"), ids);
    for (int64_t i = n; i < 1300; i++)
        ids[i] = ids[i - n];
    last_rows(dir, KD_ISA_COUNT, 2, ids, 1300, 0, want);
    last_rows(dir, KD_ISA_COUNT, 2, ids, 1300, 10 * 64, got);
    same_bits(got, want, VOCAB, "long feed");
    free(want);
    free(got);
}

static void bad_ids(void **state)
{
    char dir[512];
    struct fixture f;
    struct kd_k3_seq *s;
    int32_t ids[2] = {1, 4096};
    (void)state;
    fixture_open(&f, data_path(dir, "k3-nano"), KD_ISA_COUNT, 0, NULL);
    must(kd_k3_seq_open(&s, f.m, &err));
    struct kd_k3_feed feed = {s, ids, 2, 0};
    assert_int_equal(kd_k3_forward(f.m, &feed, 1, NULL, NULL, &err), -1);
    assert_non_null(strstr(err.msg, "4096"));
    kd_k3_seq_close(s);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts),      cmocka_unit_test(cuts_softplus),
        cmocka_unit_test(batch),     cmocka_unit_test(threads_and_sets),
        cmocka_unit_test(long_feed), cmocka_unit_test(bad_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
