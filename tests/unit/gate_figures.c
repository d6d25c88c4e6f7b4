/* KLD, perplexity, quantiles, intervals and router agreement against closed forms. */
#include "base/mem.h"
#include "gate/kld.h"
#include "gate/router.h"
#include "gate/stats.h"
#include "num/logsum.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

static void near(double got, double want, double tol)
{
    if (!(fabs(got - want) <= tol)) {
        print_error("got %.17g, want %.17g\n", got, want);
        fail();
    }
}

static void exp_log(void **state)
{
    (void)state;
    for (int i = -7000; i <= 500; i++) {
        double x = (double)i / 10 + 0.0123, want = exp(x);
        near(kd_exp64(x) / want, 1, 1e-15);
        near(kd_log64(want), x, 4e-16 * (fabs(x) + 1));
    }
    assert_true(kd_exp64(0) == 1.0);
    assert_true(kd_exp64(-1e300) < 1e-300);
    assert_true(kd_log64(1) == 0.0);
}

static void kld_two(void **state)
{
    (void)state;
    /* (3/4, 1/4) against (1/2, 1/2): 3/4 ln 3/2 + 1/4 ln 1/2. */
    float a[2] = {logf(3) + 7, 7}, b[2] = {-40, -40};
    struct kd_pos p;
    kd_kld_pos(a, b, 2, 1, &p);
    near(p.kld, 0.75 * log(1.5) + 0.25 * log(0.5), 1e-6);
    near(p.nll_src, log(4), 1e-6);
    near(p.nll_dst, log(2), 1e-15);
    assert_int_equal(p.top_src, 0);
    assert_int_equal(p.top_dst, 0); /* a tie: the lowest id */
    assert_true(p.has_next);
    assert_false(p.bad);
}

/* A peak of height h over V-1 zeros against the uniform distribution, V odd for the tail lanes. */
static void kld_peak(void **state)
{
    (void)state;
    enum { V = 4099 };
    static float a[V], b[V];
    double h = 9;
    for (int at = 0; at < V; at += 683) {
        memset(a, 0, sizeof a);
        a[at] = (float)h;
        double z = exp(h) + V - 1, p = exp(h) / z;
        struct kd_pos pos;
        kd_kld_pos(a, b, V, -1, &pos);
        near(pos.kld, p * h - log(z) + log(V), 1e-13);
        kd_kld_pos(b, a, V, -1, &pos);
        near(pos.kld, -h / V + log(z) - log(V), 1e-13);
        assert_false(pos.has_next);
        assert_int_equal(pos.top_dst, at);
        kd_kld_pos(a, a, V, 3, &pos);
        assert_true(pos.kld == 0.0);
        assert_true(pos.nll_src == pos.nll_dst);
    }
    a[5] = NAN;
    struct kd_pos pos;
    kd_kld_pos(b, a, V, -1, &pos);
    assert_true(pos.bad && isnan(pos.kld));
    a[5] = INFINITY;
    kd_kld_pos(a, b, V, -1, &pos);
    assert_true(pos.bad);
}

static void kld_threads(void **state)
{
    (void)state;
    enum { V = 777, T = 37 };
    static float a[T * V], b[T * V];
    int32_t next[T];
    static struct kd_pos one[T], many[T];
    for (int i = 0; i < T * V; i++) {
        a[i] = (float)((i % 9973 * 7919) % 1000) / 100;
        b[i] = a[i] + (float)((i % 1009 * 104729) % 100) / 300;
    }
    for (int t = 0; t < T; t++)
        next[t] = t == T - 1 ? -1 : t * 20;
    struct kd_run run = {0};
    kd_kld_block(&run, a, b, V, next, T, one);
    struct kd_err err;
    assert_int_equal(kd_pool_open(&run.pool, 4, &err), 0);
    kd_kld_block(&run, a, b, V, next, T, many);
    kd_pool_close(run.pool);
    double sum = 0;
    for (int t = 0; t < T; t++) {
        assert_true(one[t].kld == many[t].kld && one[t].nll_dst == many[t].nll_dst);
        assert_true(one[t].kld > 0);
        sum += one[t].nll_src;
    }
    near(kd_ppl_src(one, T), exp(sum / (T - 1)), 1e-9 * exp(sum / (T - 1)));
    assert_true(kd_ppl_dst(one, 0) == 0);
}

static void quantiles(void **state)
{
    (void)state;
    double v[5] = {5, 1, 4, 2, 3};
    kd_stats_sort(v, 5);
    near(kd_stats_quantile(v, 5, 0.5), 3, 0);
    near(kd_stats_quantile(v, 5, 0.95), 4.8, 1e-15);
    near(kd_stats_quantile(v, 5, 0), 1, 0);
    near(kd_stats_quantile(v, 5, 1), 5, 0);
    near(kd_stats_quantile(v, 1, 0.99), 1, 0);
    near(kd_stats_quantile(v, 0, 0.5), 0, 0);
    near(kd_stats_mean(v, 5), 3, 0);
}

static void bootstrap(void **state)
{
    (void)state;
    enum { N = 400 };
    double sum[N], w[N];
    for (int i = 0; i < N; i++) {
        w[i] = 10;
        sum[i] = 10.0 * (i % 2); /* mean 1/2, standard error 0.025 */
    }
    struct kd_interval a, b, c;
    struct kd_err err;
    assert_int_equal(kd_stats_bootstrap(sum, w, N, 7, &a, &err), 0);
    assert_int_equal(kd_stats_bootstrap(sum, w, N, 7, &b, &err), 0);
    assert_int_equal(kd_stats_bootstrap(sum, w, N, 8, &c, &err), 0);
    assert_true(a.lo == b.lo && a.hi == b.hi);
    assert_true(a.lo != c.lo || a.hi != c.hi);
    near(a.lo, 0.5 - 1.96 * 0.025, 0.006);
    near(a.hi, 0.5 + 1.96 * 0.025, 0.006);
    assert_int_equal(kd_stats_bootstrap(sum + 1, w, 1, 7, &a, &err), 0);
    assert_true(a.lo == 1 && a.hi == 1);
    kd_mem_fail_nth(1);
    assert_int_equal(kd_stats_bootstrap(sum, w, N, 7, &a, &err), -1);
    assert_int_equal(err.code, KD_ENOMEM);
    kd_mem_fail_nth(0);
}

static void shares(void **state)
{
    (void)state;
    /* Wilson, 1 of 10: 0.0179, 0.4042 (Brown, Cai and DasGupta's example values). */
    struct kd_interval i = kd_stats_wilson(1, 10);
    near(i.lo, 0.01788, 1e-4);
    near(i.hi, 0.40415, 1e-4);
    i = kd_stats_wilson(0, 20);
    assert_true(i.lo == 0 && i.hi > 0.15 && i.hi < 0.17);
    i = kd_stats_paired(3, 12, 100); /* up 13/102, down 4/102 */
    double d = 9.0 / 102, half = 1.959963984540054 * sqrt((17.0 / 102 - d * d) / 102);
    near(i.lo, d - half, 1e-15);
    near(i.hi, d + half, 1e-15);
    i = kd_stats_paired(0, 0, 50);
    near(i.lo, -i.hi, 1e-15);
    assert_true(i.hi > 0);
    near(kd_stats_mcnemar(0, 0), 1, 0);
    near(kd_stats_mcnemar(0, 5), 2.0 / 32, 1e-14);
    near(kd_stats_mcnemar(5, 1), 2.0 * 7 / 64, 1e-14);
    near(kd_stats_mcnemar(9, 9), 1, 0);
}

static void router(void **state)
{
    (void)state;
    const float score[5] = {0.5f, 0.25f, 0.25f, 0.75f, 0.125f};
    const int32_t two[2] = {3, 0}, three[3] = {3, 0, 1};
    near((double)kd_router_margin(score, 5, two, 2), 0.25, 0);
    near((double)kd_router_margin(score, 5, three, 3), 0, 0); /* 1 and 2 tie: 1 is taken */
    const int32_t src[6] = {3, 0, 3, 0, 1, 2}, dst[6] = {0, 3, 3, 2, 4, 0};
    const float margin[3] = {0.25f, 0, 1.0f / 65536};
    struct kd_agreement g = {0};
    kd_router_add(&g, src, dst, margin, 2, 2);
    kd_router_add(&g, src + 4, dst + 4, margin + 2, 1, 2);
    assert_int_equal(g.tokens, 3);
    assert_int_equal(g.kept, 3);
    assert_int_equal(g.whole, 1);
    assert_int_equal(g.ties, 1);
    near(kd_router_share(&g), 0.5, 0);
    assert_int_equal(g.bin_kept[15], 1);
    assert_int_equal(g.bin_lost[0], 1);
    assert_int_equal(g.bin_lost[1], 1);
    near(kd_router_bin_floor(1), 1.0 / 65536, 0);
    near(kd_router_bin_floor(15), 0.25, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_log),     cmocka_unit_test(kld_two),   cmocka_unit_test(kld_peak),
        cmocka_unit_test(kld_threads), cmocka_unit_test(quantiles), cmocka_unit_test(bootstrap),
        cmocka_unit_test(shares),      cmocka_unit_test(router),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
