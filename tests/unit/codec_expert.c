/* One expert as a unit of work: its down-projection's Hessian against one made by hand, routed
 * weights and their blend, flags, cuts and determinism. */
#include "base/mem.h"
#include "base/rand.h"
#include "codec/expert.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { T = 96, LATENT = 128, INTER = 128, TOPK = 2, EXPERTS = 4, EXPERT = 1 };

static struct kd_kern kern;
static struct kd_run run;
static uint16_t z[T * LATENT];
static int32_t ids[T * TOPK];
static float weights[T * TOPK], w1[INTER * LATENT], w3[INTER * LATENT], w2[LATENT * INTER];
static struct kd_hess h_in;

static double gauss(uint64_t seed, int64_t i)
{
    double u = 1.0 - kd_rand_unit(seed, (uint64_t)(2 * i)),
           v = kd_rand_unit(seed, (uint64_t)(2 * i + 1));
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

static struct kd_mat matrix(const float *w, int64_t rows, int64_t cols)
{
    return (struct kd_mat){.type = KD_MAT_F32, .rows = rows, .cols = cols, .data = w, .ld = cols};
}

static struct kd_layer_inputs inputs(bool routed)
{
    return (struct kd_layer_inputs){.T = T,
                                    .latent = LATENT,
                                    .z = z,
                                    .h_in = &h_in,
                                    .topk = TOPK,
                                    .ids = ids,
                                    .w = weights,
                                    .situ_beta = 4.0f,
                                    .situ_linear = 25.0f,
                                    .weight_routed = routed,
                                    .blend_rows = 64,
                                    .fallback_rows = 256,
                                    .block_rows = 40};
}

static struct kd_expert_out quantize(const struct kd_layer_inputs *in, int64_t expert)
{
    struct kd_mat a = matrix(w1, INTER, LATENT), b = matrix(w3, INTER, LATENT),
                  c = matrix(w2, LATENT, INTER);
    struct kd_quant_spec spec[3];
    for (uint64_t i = 0; i < 3; i++)
        spec[i] = (struct kd_quant_spec){.rate = kd_rate_from16(32),
                                         .cb = KD_CB_MUL1,
                                         .recipe = kd_recipe_of(KD_RECIPE_DEFAULT),
                                         .seed = 50 + i,
                                         .input_seed = i < 2 ? 60 : 61,
                                         .scale_hint = 0.98f};
    struct kd_expert_out out;
    struct kd_err err = {0};
    if (kd_expert_quantize(&run, expert, &a, &b, &c, in, spec, &out, &err))
        fail_msg("%s", err.msg);
    return out;
}

static float route(int64_t t, int64_t expert)
{
    for (int64_t i = 0; i < TOPK; i++)
        if (ids[t * TOPK + i] == expert)
            return weights[t * TOPK + i];
    return 0.0f;
}

/* The Hessian's diagonal and one off-diagonal entry through the codes, in double. */
static void check_digest_and_flags(bool routed, int64_t expert, bool all_token)
{
    struct kd_layer_inputs in = inputs(routed);
    struct kd_expert_out out = quantize(&in, expert);
    int64_t n = 0;
    for (int64_t t = 0; t < T; t++)
        n += route(t, expert) > 0.0f;
    assert_int_equal(out.routed_rows, n);
    assert_true(out.fallback); /* 96 tokens are under 256 */
    assert_int_equal(out.all_token_hessian, all_token);
    assert_false(out.w1.fallback || out.w2.fallback || out.w3.fallback);
    assert_int_equal(strlen(out.hess_digest), 64);
    /* Signs of gate and up agree: they share their input. */
    for (int64_t i = 0; i < LATENT; i++)
        assert_int_equal(out.w1.suh[i] >> 15, out.w3.suh[i] >> 15);
    kd_expert_release(&out);
    assert_null(out.w1.codes);
}

static void test_flags(void **state)
{
    (void)state;
    check_digest_and_flags(false, EXPERT, false);
    check_digest_and_flags(true, EXPERT, false);
    check_digest_and_flags(true, EXPERTS - 1, true); /* 5 routed tokens, under 64 / 4 */
}

/* The same Hessian, made by hand from the decoded gate and up. */
static void expected_digest(const struct kd_expert_out *out, bool routed, char digest[65])
{
    static float x[T * LATENT], g[T * INTER], u[T * INTER], y[T * INTER], row[INTER];
    struct kd_mat a = kd_quant_mat(&out->w1), b = kd_quant_mat(&out->w3);
    struct kd_hess all, own;
    double sum = 0.0;
    for (int64_t i = 0; i < T * LATENT; i++)
        x[i] = kd_bf16_f32(z[i]);
    assert_int_equal(kd_mat_mul(&run, &a, x, LATENT, T, g, INTER, NULL), 0);
    assert_int_equal(kd_mat_mul(&run, &b, x, LATENT, T, u, INTER, NULL), 0);
    kern.situ(g, u, 4.0f, 25.0f, y, T * INTER);
    assert_int_equal(kd_hess_open(&all, INTER, NULL) + kd_hess_open(&own, INTER, NULL), 0);
    assert_int_equal(kd_hess_add(&run, &all, y, INTER, T, NULL), 0);
    kd_hess_close(&all);
    for (int64_t t = 0; t < T && routed; t++) {
        float w = route(t, EXPERT);
        for (int64_t i = 0; i < INTER; i++)
            row[i] = w * y[t * INTER + i];
        if (w > 0.0f)
            assert_int_equal(kd_hess_add(&run, &own, row, INTER, 1, NULL), 0);
        sum += (double)w * (double)w;
    }
    kd_hess_close(&own);
    double share = (double)out->routed_rows / (double)(out->routed_rows + 64);
    float keep = (float)(1.0 - share), add = (float)(share * (double)T / sum);
    for (int64_t i = 0; i < INTER * INTER && routed; i++)
        all.h[i] = keep * all.h[i] + add * own.h[i];
    assert_int_equal(kd_hess_digest(&all, digest, NULL), 0);
    kd_hess_release(&all);
    kd_hess_release(&own);
}

static void test_hessian(void **state)
{
    (void)state;
    for (int routed = 0; routed < 2; routed++) {
        struct kd_layer_inputs in = inputs(routed);
        struct kd_expert_out out = quantize(&in, EXPERT);
        char want[65];
        expected_digest(&out, routed, want);
        assert_string_equal(out.hess_digest, want);
        kd_expert_release(&out);
    }
}

/* The block size belongs to the recipe only because products may depend on it elsewhere: here the
 * bytes must not change, nor with the number of threads. */
static void test_cuts(void **state)
{
    (void)state;
    struct kd_layer_inputs in = inputs(true);
    struct kd_expert_out a = quantize(&in, EXPERT);
    struct kd_pool *pool = run.pool;
    run.pool = NULL;
    in.block_rows = 7;
    struct kd_expert_out b = quantize(&in, EXPERT);
    run.pool = pool;
    assert_string_equal(a.hess_digest, b.hess_digest);
    assert_memory_equal(a.w2.codes, b.w2.codes, (size_t)a.w2.codes_bytes);
    assert_memory_equal(a.w2.suh, b.w2.suh, INTER * sizeof *a.w2.suh);
    kd_expert_release(&a);
    kd_expert_release(&b);
}

static void test_errors(void **state)
{
    (void)state;
    struct kd_layer_inputs in = inputs(false);
    struct kd_mat a = matrix(w1, INTER, LATENT), b = matrix(w3, INTER, LATENT),
                  c = matrix(w2, LATENT, INTER);
    struct kd_quant_spec spec[3] = {0};
    struct kd_expert_out out;
    struct kd_err err;
    for (size_t i = 0; i < 3; i++)
        spec[i] = (struct kd_quant_spec){.rate = kd_rate_from16(16),
                                         .cb = KD_CB_MUL1,
                                         .recipe = kd_recipe_of(KD_RECIPE_PLAIN),
                                         .scale_hint = 1.0f};
    b.rows--;
    assert_int_equal(kd_expert_quantize(&run, EXPERT, &a, &b, &c, &in, spec, &out, &err), -1);
    assert_int_equal(err.code, KD_EINVAL);
    b.rows++;
    w3[5] = NAN;
    assert_int_equal(kd_expert_quantize(&run, EXPERT, &a, &b, &c, &in, spec, &out, &err), -1);
    assert_non_null(strstr(err.msg, "w3: "));
    assert_null(out.w1.codes);
    w3[5] = 0.0f;
}

static int setup(void **state)
{
    (void)state;
    run.kern = &kern;
    if (kd_kern_pick(&kern, NULL) || kd_pool_open(&run.pool, 0, NULL) ||
        kd_hess_open(&h_in, LATENT, NULL))
        return -1;
    for (int64_t i = 0; i < INTER * LATENT; i++) {
        w1[i] = (float)(0.1 * gauss(1, i));
        w3[i] = (float)(0.1 * gauss(2, i));
        w2[i] = (float)(0.1 * gauss(3, i));
    }
    static float x[T * LATENT];
    for (int64_t i = 0; i < T * LATENT; i++) {
        z[i] = kd_f32_bf16((float)gauss(4, i));
        x[i] = kd_bf16_f32(z[i]);
    }
    for (int64_t t = 0; t < T; t++) {
        bool last = t % 20 == 3;
        ids[t * TOPK] = last ? EXPERTS - 1 : 0;
        ids[t * TOPK + 1] = t % 2 ? EXPERT : 2;
        weights[t * TOPK] = 0.75f;
        weights[t * TOPK + 1] = 0.1f + 0.01f * (float)(t % 9);
    }
    int rc = kd_hess_add(&run, &h_in, x, LATENT, T, NULL);
    kd_hess_close(&h_in);
    return rc;
}

static int teardown(void **state)
{
    (void)state;
    kd_hess_release(&h_in);
    kd_pool_close(run.pool);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_hessian),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
