/* A model with EXL3 weights opened exact and fast (struct kd_k3_open): near each other, not equal,
 * each with the same bits for any number of threads and the same within rounding for any cuts. */
#include "model_util.h"

#include "convert/synth.h"

#include <unistd.h>

static char dir[512];

static int make_model(void **unused)
{
    char path[512];
    struct kd_json *config;
    struct kd_synth *s;
    struct kd_kern kern;
    const char *tmp = getenv("TMPDIR");
    const struct kd_synth_opts o = {
        .last = -1,
        .seed = 5,
        .wish = {.experts_bpw = 2.3, .trunk_bpw = 4, .head_bpw = 6, .cb = KD_CB_MUL1}};
    (void)unused;
    snprintf(dir, sizeof dir, "%s/k3-fast-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    must(kd_json_load(&config, data_path(path, "awkward/tiny.json"), 1 << 20, &err));
    must(kd_kern_pick(&kern, &err));
    const struct kd_run run = {.kern = &kern};
    must(kd_synth_open(&s, config, "tiny.json", &o, &err));
    must(kd_synth_write(s, &run, dir, &err));
    kd_synth_close(s);
    kd_json_free(config);
    return 0;
}

static int remove_model(void **unused)
{
    (void)unused;
    return kd_dir_remove(dir, &err);
}

enum { COUNT = 24 };

/* Logits after COUNT tokens, fed in pieces of `step`. */
static float *logits(int threads, const struct kd_k3_open *o, int64_t step, int64_t *vocab)
{
    struct fixture f;
    int32_t ids[COUNT], next;
    for (int i = 0; i < COUNT; i++)
        ids[i] = 7 * i % 101;
    fixture_open(&f, dir, KD_ISA_COUNT, threads, o);
    *vocab = kd_k3_config(f.m)->vocab;
    float *y = new_floats(*vocab);
    greedy(&f, ids, COUNT, step, &next, 1, y);
    fixture_close(&f);
    return y;
}

static void exact_and_fast(void **unused)
{
    const struct kd_k3_open plain = {0}, fast = {.fast = true};
    int64_t n;
    float *a = logits(0, NULL, COUNT, &n), *b = logits(2, &plain, 1, &n),
          *c = logits(0, &fast, COUNT, &n), *d = logits(2, &fast, 1, &n),
          *e = logits(2, &fast, COUNT, &n);
    (void)unused;
    assert_memory_equal(c, e, (size_t)n * sizeof *c);
    double off = apart(a, c, n) / greatest(a, n);
    if (!(off > 1e-6 && off < 1e-2))
        fail_msg("fast logits are off by %g of the largest", off);
    /* Single tokens take KDA's recurrence, prompts its chunks (model/k3.h): equal up to rounding.
     */
    assert_true(apart(a, b, n) <= 1e-4 * greatest(a, n));
    assert_true(apart(c, d, n) <= 1e-4 * greatest(a, n));
    free(a);
    free(b);
    free(c);
    free(d);
    free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(exact_and_fast)};
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
