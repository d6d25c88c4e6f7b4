/* plan/answer, plan/times and the reports: what fits, how fast, how long, and that every output
 * says so.
 *
 * labels: heavy */
#include "plan/plan_report.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kd_plan_model k3;
static struct kd_err err;
static const struct kd_plan_use usual = {.context = 262144,
                                         .at = 8192,
                                         .sequences = 1,
                                         .cache_width = 2,
                                         .api_usd_out = 15,
                                         .usd_kwh = 0.17};

static int setup(void **state)
{
    (void)state;
    return kd_plan_model_k3(&k3, &err);
}

static struct kd_plan_fit fit_of(const char *machine, struct kd_plan_target t,
                                 struct kd_plan_use use)
{
    struct kd_plan_fit f;
    struct kd_machine m;
    if (kd_machine_find(&m, machine, &err) || kd_plan_fit(&f, &k3, &t, &m, &use, &err))
        fail_msg("%s", err.msg);
    double used = 0, all = 0;
    for (int i = 0; i < m.tiers; i++) {
        const struct kd_plan_place *p = &f.place[i];
        assert_true(p->free > -1e-6);
        assert_true(
            fabs(p->reserve + p->cache + p->trunk + p->experts + p->free - m.tier[i].gib.v) < 1e-6);
        used += p->cache + p->trunk + p->experts;
    }
    /* Everything is somewhere, or it is said not to fit. */
    all = f.device_gib + f.cache_gib;
    assert_true(f.verdict == KD_PLAN_TOO_BIG ? used < all : fabs(used - all) < 1e-6);
    return f;
}

static void eight_sparks(void **state)
{
    (void)state;
    /* The plan document's own recipe and its 7 GiB cache: 97 GiB of room. */
    struct kd_plan_fit f = fit_of("spark:8", kd_plan_document(2.3), usual);
    assert_true(f.device_gib + 7 > 103 && f.device_gib + 7 < 105);
    f = fit_of("spark:8", kd_plan_exl3(2.0), usual);
    assert_int_equal(f.verdict, KD_PLAN_FITS);
    assert_false(f.tiered);
    /* One rate for all curves where everything is in one memory. */
    assert_true(f.step[0].tokens_s == f.step[3].tokens_s && f.hit[0] == 1);
    /* Between the serving specification's 18 (100 us) and 33 (15 us); below at a longer context. */
    assert_true(f.step[0].tokens_s > 20 && f.step[0].tokens_s < 28);
    assert_true(f.full[0] < 16 && f.full[0] > 12);
    assert_true(f.band[0] < f.band[1] && f.band[1] < f.step[0].tokens_s);
    /* Serving 3.5: some 595 tok/s of prefill. */
    assert_true(f.prefill.tokens_s > 500 && f.prefill.tokens_s < 620);
    f = fit_of("spark:8", kd_plan_native(), usual);
    assert_int_equal(f.verdict, KD_PLAN_FROM_DISK);
    /* "By far the best way ... 16 Sparks": they hold the released model. */
    assert_int_equal(f.devices_needed, 16);
}

static void gb300(void **state)
{
    (void)state;
    struct kd_plan_fit f = fit_of("gb300", kd_plan_exl3(2.0), usual);
    assert_int_equal(f.verdict, KD_PLAN_FITS);
    assert_true(f.tiered && f.resident > 0.30 && f.resident < 0.36);
    /* A range of hit rates, never one. */
    static const double at[] = {0.35, 0.50, 0.63, 0.75};
    for (int h = 0; h < KD_HITS; h++) {
        assert_true(fabs(f.hit[h] - at[h]) < 0.03);
        assert_true(!h || f.step[h].tokens_s > f.step[h - 1].tokens_s);
        assert_true(f.overlapped[h] > f.step[h].tokens_s);
    }
    assert_true(f.step[3].tokens_s > 50 && f.step[3].tokens_s < 67);
    f = fit_of("gb300", kd_plan_exl3(2.3), usual);
    assert_int_equal(f.verdict, KD_PLAN_FROM_DISK);
    assert_true(f.short_gib > 80 && f.short_gib < 110);
}

static void small_ones(void **state)
{
    (void)state;
    static const char *const names[] = {"8gb", "pc", "3090", "4090", "5090"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct kd_plan_fit f = fit_of(names[i], kd_plan_exl3(2.0), usual);
        assert_int_equal(f.verdict, KD_PLAN_FROM_DISK);
        /* Serving 7.3: tenths to one and a half tokens a second. */
        assert_true(f.step[0].tokens_s > 0.05 && f.step[3].tokens_s < 5);
        assert_true(f.short_gib > 400);
    }
    struct kd_machine m;
    struct kd_plan_fit f;
    struct kd_plan_target t = kd_plan_exl3(2);
    assert_int_equal(kd_machine_find(&m, "mac", &err), 0);
    assert_int_equal(kd_plan_fit(&f, &k3, &t, &m, &usual, &err), 0);
    assert_int_equal(f.verdict, KD_PLAN_NOT_SUPPORTED);
    /* No room at all: memory alone, no drive. */
    f = fit_of("h100:8", kd_plan_native(), usual);
    assert_int_equal(f.verdict, KD_PLAN_TOO_BIG);
    /* 20 cards would hold the weights alone (gguf-slicing 6.1); a 256K cache on each of them, what
     * all have in full and heads that 96 does not divide by make it more. */
    assert_in_range(f.devices_needed, 24, 32);
    struct kd_plan_use brief = usual;
    brief.context = 8192;
    assert_in_range(fit_of("h100:8", kd_plan_native(), brief).devices_needed, 22, 24);
}

static void best_rates(void **state)
{
    (void)state;
    static const char *const names[] = {"spark:8", "gb300", "h200:8", "b300:8", "rtx-pro-6000:8"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct kd_machine m;
        double best;
        assert_int_equal(kd_machine_find(&m, names[i], &err), 0);
        assert_int_equal(kd_plan_best_rate(&best, &k3, &m, &usual, &err), 0);
        assert_true(best >= 1 && best <= 8);
        assert_int_equal(fit_of(names[i], kd_plan_exl3(best), usual).verdict, KD_PLAN_FITS);
        /* A hundredth more does not fit. */
        if (best < 7.99)
            assert_true(fit_of(names[i], kd_plan_exl3(best + 0.01), usual).short_gib > 0);
    }
    struct kd_machine m;
    double best;
    assert_int_equal(kd_machine_find(&m, "8gb", &err), 0);
    assert_int_equal(kd_plan_best_rate(&best, &k3, &m, &usual, &err), 0);
    assert_true(best == 0);
}

static void more_work(void **state)
{
    (void)state;
    struct kd_plan_use use = usual;
    double one = fit_of("spark:8", kd_plan_exl3(2), use).cache_gib;
    /* 27,648 B a token on each device, an eighth of the state. */
    assert_true(fabs(one - (262144 * 27648.0 + 464633856.0 / 8) / 1073741824) < 1e-6);
    use.sequences = 4;
    struct kd_plan_fit four = fit_of("spark:8", kd_plan_exl3(2), use);
    assert_true(fabs(four.cache_gib - 4 * one) < 1e-9);
    use.cut_cache = true;
    assert_true(fit_of("spark:8", kd_plan_exl3(2), use).cache_gib < four.cache_gib / 7);
    use = usual;
    use.cache_width = 1;
    assert_true(fit_of("spark:8", kd_plan_exl3(2), use).cache_gib < one * 0.51);
    /* Four sequences together are faster than one, and slower each. */
    use = usual;
    use.context = 8192;
    struct kd_plan_fit alone = fit_of("spark:8", kd_plan_exl3(2), use);
    use.sequences = 4;
    four = fit_of("spark:8", kd_plan_exl3(2), use);
    assert_true(four.step[0].tokens_s > alone.step[0].tokens_s);
    assert_true(four.step[0].tokens_s < 4 * alone.step[0].tokens_s);
}

static void hours(void **state)
{
    (void)state;
    struct kd_plan_target t = kd_plan_exl3(2.3);
    struct kd_plan_bytes b;
    struct kd_plan_effort e;
    struct kd_machine m[2];
    assert_int_equal(kd_plan_count(&b, &k3, &t, &err), 0);
    kd_plan_effort(&e, &k3, &b, 512000);
    /* Farm Decision 4: 28.9 PFLOP a layer, 2.66 EFLOP; Decision 2: 0.54 PFLOP and 3.67 GB. */
    assert_true(fabs(e.calibrate_flop / 1e18 - 2.66) < 0.01);
    assert_true(fabs(e.forward_flop / 92 / 1e15 - 0.541) < 0.002);
    assert_true(fabs(e.latent_gb - 3.67) < 0.005);
    assert_true(fabs(kd_plan_ship_s(&e, 8) - 27) < 0.1);
    /* Exl3 5.4: 1.064e10 tiles of the routed experts. */
    assert_true(fabs(e.tiles / 1.146 - 1.064e10) < 0.01e10);
    /* One H200: 7.56 h of search at 391,000 tiles/s, 15.7 h of calibration at 70 % of its peak. */
    assert_int_equal(kd_machine_find(&m[0], "h200", &err), 0);
    struct kd_plan_hours h = kd_plan_hours_one(&e, &m[0], 0);
    assert_true(fabs(h.encode / 1.146 - 7.56) < 0.05);
    assert_true(fabs(h.calibrate - 15.7) < 0.2);
    assert_true(fabs(h.encode + h.calibrate + h.trunk + h.serial - h.total) < 1e-9);
    /* A farm of one is that machine; nine machines are faster, not nine times. */
    struct kd_plan_hours farm = kd_plan_hours_farm(&e, m, 1, 0);
    assert_true(fabs(farm.total - h.total) < 1e-6);
    assert_int_equal(kd_machine_find(&m[0], "gb300", &err), 0);
    assert_int_equal(kd_machine_find(&m[1], "spark:8", &err), 0);
    double alone = kd_plan_hours_one(&e, &m[0], 0).total;
    farm = kd_plan_hours_farm(&e, m, 2, 0);
    assert_true(farm.total < alone / 2 && farm.total > alone / 9);
    assert_true(farm.serial > 0.68); /* 41 min of shipping inputs (farm Decision 9) */
    /* Machines without an encoder do not help. */
    assert_int_equal(kd_machine_find(&m[1], "mac", &err), 0);
    assert_true(fabs(kd_plan_hours_farm(&e, m, 2, 0).total - alone) < 1e-6);
}

static void count(const char *text, const char *what, int least)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++)
        n++;
    if (n < least)
        fail_msg("'%s' stands there %d times, not %d", what, n, least);
}

static struct kd_plan *make(const char *const *machines)
{
    struct kd_plan *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->model = &k3;
    p->use = usual;
    p->tokens = 512000;
    p->target[p->targets++] = kd_plan_native();
    p->target[p->targets++] = kd_plan_exl3(2.3);
    p->target[p->targets++] = kd_plan_exl3(2.0);
    for (; *machines; machines++)
        if (kd_machine_find(&p->column[p->columns++].machine, *machines, &err))
            fail_msg("%s", err.msg);
    if (kd_plan_make(p, &err))
        fail_msg("%s", err.msg);
    return p;
}

static void reports(void **state)
{
    (void)state;
    struct kd_plan *p =
        make((const char *const[]){"spark:8", "gb300", "mac", "h100", "5090", NULL});
    struct kd_buf b;
    kd_buf_init(&b, 16 << 20);
    kd_plan_text(&b, p, &(struct kd_plan_show){.explain = true, .figures = true, .glossary = true});
    assert_int_equal(kd_buf_ok(&b, "text", &err), 0);
    /* The verdicts come first, on one screen. */
    const char *sizes = strstr(b.data, "\nSizes");
    int lines = 0;
    assert_non_null(sizes);
    for (const char *at = b.data; at < sizes; at++)
        lines += *at == '\n';
    assert_in_range(lines, 10, 48);
    count(b.data, "side by side", 1);
    count(b.data, "fits as EXL3 2.0 bits", 2);
    count(b.data, "not supported: Kondense runs on Linux", 1);
    count(b.data, "does not fit: ", 1);
    count(b.data, "821673926484", 1);
    count(b.data, "the rate that just fits", 2);
    count(b.data, "hit rate  ", 1);
    count(b.data, "(mixed text, measured", 1);
    int columns = 0;
    for (const char *at = b.data; *at; at++) {
        columns = *at == '\n' ? 0 : columns + (((unsigned char)*at & 0xc0) != 0x80);
        if (columns > 100)
            fail_msg("a line of more than 100 columns: %.120s", at - 100);
    }
    count(b.data, "[estimate", 5);
    count(b.data, "UD-Q2_K_XL", 4);
    count(b.data, "even after", 3);
    count(b.data, "Hessian", 1);
    count(b.data, "5600", 1);
    assert_null(strstr(b.data, "nan"));
    assert_null(strstr(b.data, "(null)"));
    kd_buf_clear(&b);
    kd_plan_json(&b, p);
    assert_int_equal(kd_buf_ok(&b, "JSON", &err), 0);
    struct kd_json *root;
    if (kd_json_parse(&root, b.data, b.size_bytes, "JSON", &err))
        fail_msg("%s", err.msg);
    assert_int_equal(kd_json_count(kd_json_get(root, "machines")), 5);
    assert_true(kd_json_count(kd_json_get(root, "documents")) > 50);
    const struct kd_json *spark = kd_json_at(kd_json_get(root, "machines"), 0);
    assert_int_equal(kd_json_count(kd_json_get(kd_json_get(spark, "chosen"), "speeds")), KD_HITS);
    assert_int_equal(kd_json_count(kd_json_get(spark, "published")), 8);
    kd_json_free(root);
    kd_buf_clear(&b);
    kd_plan_html(&b, p);
    assert_int_equal(kd_buf_ok(&b, "HTML", &err), 0);
    count(b.data, "<svg", 8);
    count(b.data, "</svg>", 8);
    count(b.data, "experts: ", 3); /* stacked bars say what they are */
    assert_null(strstr(b.data, "<script"));
    assert_null(strstr(b.data, "http"));
    assert_null(strstr(b.data, "nan"));
    kd_buf_release(&b);
    free(p);
}

static void out_of_memory(void **state)
{
    (void)state;
    struct kd_plan_target t = kd_plan_exl3(2);
    struct kd_plan_bytes b;
    for (int n = 1; n < 200; n++) {
        kd_mem_fail_nth(n);
        int rc = kd_plan_count(&b, &k3, &t, &err);
        kd_mem_fail_nth(0);
        if (!rc)
            return;
        assert_int_equal(err.code, KD_ENOMEM);
    }
    fail_msg("never got through");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_sparks), cmocka_unit_test(gb300),
        cmocka_unit_test(small_ones),   cmocka_unit_test(best_rates),
        cmocka_unit_test(more_work),    cmocka_unit_test(hours),
        cmocka_unit_test(reports),      cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
