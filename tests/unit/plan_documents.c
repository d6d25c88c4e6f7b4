/* plan/documents: every figure of the documents from its own assumptions, one named check each, and
 * the planner of the serving specification's appendix B. */
#include "plan/documents.h"

#include "plan/roofline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct kd_doc doc;
static struct kd_err err;

static int setup(void **state)
{
    (void)state;
    if (kd_doc_make(&doc, &err))
        fail_msg("%s", err.msg);
    return 0;
}

/* id, what the document prints, what is right (0: it stands). */
static const struct {
    const char *id;
    double quoted, right, right_tolerance;
} names[] = {
    {"size-2.3", 758, 765.2, 0.1},
    {"size-2.0", 663, 670.1, 0.3},
    {"native-size", 1454, 0, 0},
    {"nvfp4-size", 1500, 0, 0},
    {"spark-room", 97, 0, 0},
    {"sparks-room", 776, 0, 0},
    {"gb300-room", 680, 0, 0},
    {"gb300-hbm", 250.7, 0, 0},
    {"trunk-read", 28.9, 33, 2},
    {"expert-read", 14.0, 14.05, 0.05},
    {"trunk-fp8", 55, 55.6, 0.05},
    {"trunk-bf16", 107, 111.1, 0.05},
    {"rank-read", 5.36, 5.53, 0.01},
    {"rank-ms", 24.4, 0, 0},
    {"net-ms", 7.4, 11.12, 0.01},
    {"spark-weights", 94.7, 98, 1},
    {"gb300-hot", 201, 0, 0},
    {"gb300-cold", 432, 0, 0},
    {"spark-tok", 31, 25.9, 0.1},
    {"gb300-tok", 67, 52.8, 0.1},
    {"h100-21", 21, 0, 0},
    {"h100-22", 22, 0, 0},
    {"thread-bf16", 5600, 1560.86, 0.01},
    {"thread-int8", 2800, 1560.86, 0.01},
    {"thread-int4", 1540, 1560.86, 0.01},
    {"thread-q2k", 980, 1560.86, 0.01},
    {"spark-hours-low", 104, 77.4, 0.5},
    {"spark-hours-high", 159, 235, 1},
    {"gb300-hours-low", 35, 0, 0},
    {"gb300-hours-high", 64, 0, 0},
    {"farm-hours-low", 14, 0, 0},
    {"farm-hours-high", 28, 16, 0},
    {"pilot-low", 23, 0, 0},
    {"pilot-high", 42, 0, 0},
    {"calib-flop", 4.67, 2.66, 0},
    {"layer-hessians", 74, 31.5, 0.05},
    {"layer-net", 130, 30.4, 0},
    {"thread-experts", 112, 180.8, 0.05},
};

static void named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct kd_doc_figure *f = kd_doc_find(&doc, names[i].id);
        if (!f)
            fail_msg("no figure '%s'", names[i].id);
        if (fabs(f->quoted - names[i].quoted) > 1e-9)
            fail_msg("%s: %g is quoted, not %g", f->id, f->quoted, names[i].quoted);
        if (names[i].right > 0 && !f->corrected)
            fail_msg("%s: nothing stands beside it", f->id);
        if (names[i].right > 0 && fabs(f->right - names[i].right) > names[i].right_tolerance + 1e-9)
            fail_msg("%s: corrected to %g, not %g", f->id, f->right, names[i].right);
    }
    assert_null(kd_doc_find(&doc, "nothing"));
}

static void reproduced(void **state)
{
    (void)state;
    assert_true(doc.count > 50 && doc.count < KD_DOC_FIGURES);
    for (int i = 0; i < doc.count; i++) {
        const struct kd_doc_figure *f = &doc.f[i];
        if (!(fabs(f->value - f->quoted) <= f->tolerance + 1e-9))
            fail_msg("%s: %s: computed %.6g, quoted %.6g", f->id, f->formula, f->value, f->quoted);
        assert_true(f->formula[0] && strlen(f->formula) + 1 < sizeof f->formula);
        assert_true(!f->corrected || f->reason);
        assert_ptr_equal(kd_doc_find(&doc, f->id), f); /* ids are unique */
        /* A tolerance is the rounding of what is printed, or a few percent where it does not
         * follow. */
        assert_true(f->tolerance <= 0.045 * f->quoted);
    }
}

static void near(double got, double printed, double unit)
{
    if (!(fabs(got - printed) <= unit / 2 + 1e-9))
        fail_msg("%.4f is not %.1f", got, printed);
}

static void appendix_b(void **state)
{
    (void)state;
    struct kd_doc_plan p[KD_DOC_PLANS];
    kd_doc_plans(p);
    for (int i = 0; i < KD_DOC_PLANS; i++) {
        near(p[i].got_ms, p[i].ms, 0.1);
        near(p[i].got_tok_s, p[i].tok_s, 0.1);
        near(p[i].got_tok_s_256k, p[i].tok_s_256k, 0.1);
        near(p[i].got_tok_s_draft, p[i].tok_s_draft, 0.1);
        near(p[i].got_prefill, p[i].prefill, 1);
    }
}

/* Serving 7.3: hit rates in a GB300, one memory after the other and both at once. */
static void hits(void **state)
{
    (void)state;
    static const double h[] = {0.50, 0.635, 0.75, 0.85, 0.90},
                        serial[] = {42.8, 52.8, 66.0, 84.2, 97.7},
                        both[] = {57.4, 78.7, 115, 150, 148};
    struct kd_roof r = {.trunk_gb = 28.9,
                        .token_expert_gb = 16 * 92 * 33030144.0 / 4 / 1e9,
                        .state_gb = 0.4646,
                        .experts_over_topk = 56,
                        .ranks = 1,
                        .gb_s = 6035,
                        .tiers = 2,
                        .tier_gb_s = {6035, 349},
                        .sequences = 1};
    for (int i = 0; i < 5; i++) {
        r.tier_share[0] = h[i];
        r.tier_share[1] = 1 - h[i];
        r.overlap = false;
        near(kd_roof_decode(&r).tokens_s, serial[i], 0.21);
        r.overlap = true;
        near(kd_roof_decode(&r).tokens_s, both[i], i > 1 ? 1.1 : 0.21);
    }
    assert_true(fabs(kd_hit_rate(0, 0.32) - 0.35) < 1e-9);
    assert_true(fabs(kd_hit_rate(1, 0.32) - 0.50) < 1e-9);
    assert_true(fabs(kd_hit_rate(2, 0.32) - 0.63) < 1e-9);
    assert_true(fabs(kd_hit_rate(3, 0.32) - 0.75) < 1e-9);
    assert_true(kd_hit_rate(2, 0) == 0 && kd_hit_rate(2, 1) == 1);
    /* The measured curve of serving 4.1 within four points from a tenth to a half. */
    assert_true(fabs(kd_hit_rate(2, 0.25) - 0.554) < 0.04);
    assert_true(fabs(kd_hit_rate(2, 0.50) - 0.784) < 0.04);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(named), cmocka_unit_test(reproduced),
                                       cmocka_unit_test(appendix_b), cmocka_unit_test(hits)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
