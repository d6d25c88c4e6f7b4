/* The plan of a conversion: rates, sizes, padding; on the shipped model and, where it is at hand,
 * on the released index. */
#include "convert/rates.h"
#include "fmt/exl3_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kd_ckpt *ck;
static struct kd_k3_cfg cfg;

static void open_model(const char *dir, bool partly)
{
    struct kd_err err = {0};
    if (kd_ckpt_open(&ck, dir, partly, &err) ||
        kd_k3_cfg_parse(&cfg, kd_ckpt_config(ck), NULL, &err))
        fail_msg("%s: %s", dir, err.msg);
}

static void nano(void)
{
    char dir[4096];
    snprintf(dir, sizeof dir, "%s/k3-nano", getenv("KONDENSE_TEST_DATA"));
    open_model(dir, false);
}

static struct kd_rates plan(struct kd_rate_wish wish)
{
    struct kd_rates r;
    struct kd_err err = {0};
    if (kd_rates_plan(&r, ck, &cfg, &wish, &err))
        fail_msg("%s", err.msg);
    return r;
}

static const struct kd_rate_wish usual = {
    .experts_bpw = 2.3, .trunk_bpw = 4, .head_bpw = 6, .cb = KD_CB_MUL1};

static void average_is_met_from_below(void **state)
{
    (void)state;
    nano();
    struct kd_rates r = plan(usual);
    struct kd_rate_sum e = kd_rates_sum(&r, 'e');
    assert_int_equal(e.tensors, 8 * 32 * 3);
    double step = 1.0 / 16 / (double)e.tensors;
    assert_true(e.k <= 2.3 + 1e-12 && e.k > 2.3 - step);
    unsigned low = 128, high = 0;
    for (int64_t i = 0; i < r.count; i++)
        if (r.t[i].expert >= 0 && r.t[i].quantized) {
            low = r.t[i].rate16 < low ? r.t[i].rate16 : low;
            high = r.t[i].rate16 > high ? r.t[i].rate16 : high;
        }
    assert_int_equal(low, 36);
    assert_int_equal(high, 37);
    /* suh, svh and scalars of 128 x 128 experts: 2 * 16 / 128 bits and the scalars. */
    assert_true(e.real > e.k + 0.25 && e.real < e.k + 0.26);
    kd_rates_release(&r);
    kd_ckpt_close(ck);
}

static void trunk_rates_follow_the_decision(void **state)
{
    (void)state;
    nano();
    struct kd_rates r = plan(usual);
    int64_t seen = 0;
    for (int64_t i = 0; i < r.count; i++) {
        const struct kd_out_tensor *t = &r.t[i];
        if (strstr(t->key, "embed_tokens") || strstr(t->key, "f_a_proj") ||
            strstr(t->key, "f_b_proj") || strstr(t->key, "b_proj.weight") ||
            strstr(t->key, "kv_a_proj") || strstr(t->key, "kv_b_proj") ||
            strstr(t->key, "conv1d") || strstr(t->key, "moe.gate.") || strstr(t->key, "norm") ||
            strstr(t->key, "vision_tower") || strstr(t->key, "res_proj")) {
            assert_false(t->quantized);
            continue;
        }
        if (!t->quantized || t->expert >= 0)
            continue;
        unsigned want = strstr(t->key, "lm_head")                  ? 96
                        : strstr(t->key, "o_proj")                 ? 80
                        : strstr(t->key, "routed_expert_") != NULL ? 96
                                                                   : 64;
        assert_int_equal(t->rate16, want);
        seen++;
    }
    /* 6 KDA layers of 5, 3 MLA layers of 4, 9 MLPs of 3, 8 pairs of latent projections, the head.
     */
    assert_int_equal(seen, 6 * 5 + 3 * 4 + 9 * 3 + 8 * 2 + 1);
    kd_rates_release(&r);
    struct kd_rate_wish stored = usual;
    stored.trunk_bpw = stored.head_bpw = 0;
    r = plan(stored);
    assert_int_equal(kd_rates_sum(&r, 't').tensors, 0);
    assert_int_equal(kd_rates_sum(&r, 'h').tensors, 0);
    kd_rates_release(&r);
    kd_ckpt_close(ck);
}

static void size_is_never_exceeded(void **state)
{
    (void)state;
    nano();
    struct kd_rates low = plan(
        (struct kd_rate_wish){.experts_bpw = 2, .trunk_bpw = 4, .head_bpw = 6, .cb = KD_CB_MUL1});
    struct kd_rates high = plan(
        (struct kd_rate_wish){.experts_bpw = 3, .trunk_bpw = 4, .head_bpw = 6, .cb = KD_CB_MUL1});
    int64_t step = 64 * 2; /* one sixteenth on a tensor of 64 tiles */
    for (int64_t size = low.total_bytes + 12345; size < high.total_bytes;
         size += (high.total_bytes - low.total_bytes) / 7) {
        struct kd_rate_wish w = usual;
        w.size_bytes = size;
        struct kd_rates r = plan(w);
        assert_true(r.total_bytes <= size);
        /* A step may bring a kmask entry of the header with it. */
        assert_true(size - r.total_bytes < step + 400);
        kd_rates_release(&r);
    }
    struct kd_rates r;
    struct kd_err err = {0};
    struct kd_rate_wish small = usual;
    small.size_bytes = 1000;
    assert_int_equal(kd_rates_plan(&r, ck, &cfg, &small, &err), -1);
    assert_non_null(strstr(err.msg, "too small"));
    kd_rates_release(&low);
    kd_rates_release(&high);
    kd_ckpt_close(ck);
}

static void uniform_k_is_whole_and_equal(void **state)
{
    (void)state;
    nano();
    struct kd_rate_wish w = usual;
    w.uniform_k = true;
    struct kd_rates r = plan(w);
    unsigned rate[16][KD_PROJ_COUNT] = {{0}};
    for (int64_t i = 0; i < r.count; i++) {
        const struct kd_out_tensor *t = &r.t[i];
        if (t->expert < 0 || !t->quantized)
            continue;
        assert_int_equal(t->rate16 % 16, 0);
        if (rate[t->layer][t->proj])
            assert_int_equal(rate[t->layer][t->proj], t->rate16);
        rate[t->layer][t->proj] = t->rate16;
    }
    struct kd_rate_sum e = kd_rates_sum(&r, 'e');
    assert_true(e.k <= 2.3 && e.k > 2.3 - 1.0 / 24);
    kd_rates_release(&r);
    kd_ckpt_close(ck);
}

/* K3 itself: the counts of the released index, about 765 GiB at 2.3 bits (exl3 Decision 1). */
static void true_size(void **state)
{
    (void)state;
    char dir[4096];
    const char *shared = getenv("KONDENSE_SHARED");
    snprintf(dir, sizeof dir, "%s/release", shared ? shared : "../shared");
    FILE *f = fopen(dir, "r");
    if (!f)
        skip();
    fclose(f);
    open_model(dir, true);
    struct kd_rates r = plan(usual);
    struct kd_rate_sum e = kd_rates_sum(&r, 'e');
    assert_int_equal(e.tensors, 92 * 896 * 3);
    assert_true(e.weights == 2722740830208);
    assert_true(e.real - e.k > 0.0096 && e.real - e.k < 0.0099);
    double gib = (double)r.total_bytes / (1 << 30);
    print_message("K3 at 2.3 bits: %.2f GiB, experts real %.4f\n", gib, e.real);
    assert_true(gib > 760 && gib < 770);
    struct kd_rate_sum t = kd_rates_sum(&r, 't'), h = kd_rates_sum(&r, 'h');
    /* 54.3 G of the trunk with the head are quantized (Decision 2). */
    assert_true(t.weights + h.weights > 54200000000 && t.weights + h.weights < 54400000000);
    kd_rates_release(&r);
    kd_ckpt_close(ck);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(average_is_met_from_below),
        cmocka_unit_test(trunk_rates_follow_the_decision),
        cmocka_unit_test(size_is_never_exceeded),
        cmocka_unit_test(uniform_k_is_whole_and_equal),
        cmocka_unit_test(true_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
