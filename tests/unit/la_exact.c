/* la_exact against double precision, and the same bits for every thread count, cut and instruction
 * set. */
#include "base/mem.h"
#include "base/rand.h"
#include "la/la.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int thread_counts[] = {1, 2, 5};

static float *floats(int64_t count)
{
    float *x;
    assert_int_equal(kd_mem_zero(&x, count, sizeof *x, "test", NULL), 0);
    return x;
}

static float *random_floats(uint64_t seed, int64_t count)
{
    float *x = floats(count);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)(2.0 * kd_rand_unit(seed, (uint64_t)i) - 1.0);
    return x;
}

/* Runs `work` under every instruction set and thread count; each must leave the bytes of the first.
 */
static void every_way(void (*work)(const struct kd_run *run, float *out, void *ctx), int64_t count,
                      float *out, void *ctx)
{
    float *other = floats(count);
    bool first = true;
    for (int isa = 0; isa < KD_ISA_COUNT; isa++) {
        struct kd_kern kern;
        struct kd_err err;
        if (kd_kern_for(&kern, (enum kd_isa)isa, &err))
            continue;
        for (size_t t = 0; t < sizeof thread_counts / sizeof *thread_counts; t++) {
            struct kd_pool *pool;
            assert_int_equal(kd_pool_open(&pool, thread_counts[t], &err), 0);
            struct kd_run run = {.kern = &kern, .pool = pool};
            memset(other, 0, (size_t)count * sizeof *other);
            work(&run, first ? out : other, ctx);
            if (!first)
                assert_memory_equal(out, other, (size_t)count * sizeof *out);
            first = false;
            kd_pool_close(pool);
        }
    }
    assert_false(first);
    kd_mem_free(other);
}

enum { K = 208, ROWS = 301 };

static void work_syrk(const struct kd_run *run, float *h, void *ctx)
{
    const float *x = ctx;
    /* The cut into calls must not matter: vary it with the thread count. */
    int64_t cut = 100 + kd_pool_threads(run->pool);
    kd_la_syrk(run, x, K + 3, cut, K, h, K);
    kd_la_syrk(run, x + cut * (K + 3), K + 3, ROWS - cut, K, h, K);
    kd_la_mirror(run, h, K);
}

static void test_syrk(void **state)
{
    (void)state;
    float *x = random_floats(1, ROWS * (K + 3)), *h = floats(K * K);
    every_way(work_syrk, K * K, h, x);
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < K; j++) {
            double want = 0.0;
            float chain = 0.0f;
            for (int64_t t = 0; t < ROWS; t++) {
                float a = x[t * (K + 3) + i], b = x[t * (K + 3) + j];
                want += (double)a * (double)b;
                chain = fmaf(a, b, chain);
            }
            assert_true(fabs((double)h[i * K + j] - want) < 1e-4);
            assert_true(h[i * K + j] == chain); /* the order itself */
        }
    kd_mem_free(x);
    kd_mem_free(h);
}

static void work_gemm(const struct kd_run *run, float *c, void *ctx)
{
    const float *x = ctx;
    kd_la_gemm_tn(run, x, 131, x + 40, 131, ROWS, 90, 71, c, 77);
}

static void test_gemm(void **state)
{
    (void)state;
    float *x = random_floats(2, ROWS * 131), *c = floats(90 * 77);
    every_way(work_gemm, 90 * 77, c, x);
    for (int64_t i = 0; i < 90; i++)
        for (int64_t j = 0; j < 77; j++) {
            float chain = 0.0f;
            for (int64_t s = 0; s < ROWS && j < 71; s++)
                chain = fmaf(x[s * 131 + i], x[s * 131 + 40 + j], chain);
            assert_true(c[i * 77 + j] == chain);
        }
    kd_mem_free(x);
    kd_mem_free(c);
}

/* H = X^T X / rows + I. */
static float *spd(int64_t k, int64_t rows)
{
    float *x = random_floats(3, rows * k), *h = floats(k * k);
    struct kd_kern kern;
    assert_int_equal(kd_kern_for(&kern, KD_ISA_REF, NULL), 0);
    struct kd_run run = {.kern = &kern};
    kd_la_syrk(&run, x, k, rows, k, h, k);
    kd_la_mirror(&run, h, k);
    for (int64_t i = 0; i < k; i++)
        h[i * k + i] += 1.0f;
    kd_mem_free(x);
    return h;
}

static void work_cholesky(const struct kd_run *run, float *u, void *ctx)
{
    memcpy(u, ctx, K * K * sizeof *u);
    assert_int_equal(kd_la_cholesky(run, u, K, NULL), 0);
    for (int64_t i = 0; i < K; i++)
        memset(u + i * K, 0, (size_t)i * sizeof *u);
}

static void test_cholesky(void **state)
{
    (void)state;
    float *h = spd(K, 250), *u = floats(K * K);
    every_way(work_cholesky, K * K, u, h);
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = i; j < K; j++) {
            double s = 0.0;
            for (int64_t p = 0; p <= i; p++)
                s += (double)u[p * K + i] * (double)u[p * K + j];
            assert_true(fabs(s - (double)h[i * K + j]) < 2e-5 * (double)h[i * K + i]);
        }
    kd_mem_free(h);
    kd_mem_free(u);
}

static void work_ldl(const struct kd_run *run, float *l, void *ctx)
{
    memcpy(l, ctx, K * K * sizeof *l);
    assert_int_equal(kd_la_cholesky(run, l, K, NULL), 0);
    kd_la_block_ldl(run, l, K);
}

/* With M = I + L, M^-1 H M^-T must be block diagonal: eliminated here in double precision. */
static void test_block_ldl(void **state)
{
    (void)state;
    float *h = spd(K, 250), *l = floats(K * K);
    every_way(work_ldl, K * K, l, h);
    double *d = malloc(sizeof *d * K * K);
    assert_non_null(d);
    for (int64_t i = 0; i < K * K; i++)
        d[i] = (double)h[i];
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < K; j++)
            if (j / 16 >= i / 16)
                assert_true(l[i * K + j] == 0.0f);
    for (int side = 0; side < 2; side++)
        for (int64_t i = 0; i < K; i++)
            for (int64_t j = 0; j < i; j++)
                for (int64_t c = 0; c < K; c++) {
                    if (side)
                        d[c * K + i] -= (double)l[i * K + j] * d[c * K + j];
                    else
                        d[i * K + c] -= (double)l[i * K + j] * d[j * K + c];
                }
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < K; j++)
            if (i / 16 != j / 16)
                assert_true(fabs(d[i * K + j]) < 1e-3);
    free(d);
    kd_mem_free(h);
    kd_mem_free(l);
}

static void work_solve(const struct kd_run *run, float *x, void *ctx)
{
    const float *h = ctx;
    float *copy = floats(K * K);
    memcpy(copy, h, K * K * sizeof *copy);
    for (int64_t i = 0; i < K; i++)
        x[i] = (float)(i % 7) - 3.0f;
    assert_int_equal(kd_la_solve(run, copy, K, x, NULL), 0);
    kd_mem_free(copy);
}

static void test_solve(void **state)
{
    (void)state;
    float *h = spd(K, 250), *x = floats(K);
    every_way(work_solve, K, x, h);
    for (int64_t i = 0; i < K; i++) {
        double s = 0.0;
        for (int64_t j = 0; j < K; j++)
            s += (double)h[i * K + j] * (double)x[j];
        assert_true(fabs(s - (double)(i % 7 - 3)) < 1e-4);
    }
    kd_mem_free(h);
    kd_mem_free(x);
}

static void test_not_positive(void **state)
{
    (void)state;
    struct kd_kern kern;
    struct kd_err err;
    assert_int_equal(kd_kern_pick(&kern, &err), 0);
    struct kd_run run = {.kern = &kern};
    float *h = spd(K, 20);
    h[150 * K + 150] = -1.0f;
    assert_int_equal(kd_la_cholesky(&run, h, K, &err), -1);
    assert_int_equal(err.code, KD_EINVAL);
    assert_non_null(strstr(err.msg, "row 150"));
    kd_mem_free(h);
    h = spd(K, 20);
    h[3 * K + 90] = NAN;
    assert_int_equal(kd_la_cholesky(&run, h, K, &err), -1);
    kd_mem_free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_syrk),     cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_cholesky), cmocka_unit_test(test_block_ldl),
        cmocka_unit_test(test_solve),    cmocka_unit_test(test_not_positive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
