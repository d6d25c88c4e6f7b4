/* The quantizer: recipes against each other on a synthetic layer (EXL3 4.4), decoding, determinism,
 * rates, padding and hostile inputs. */
#include "base/mem.h"
#include "base/rand.h"
#include "codec/quant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kd_kern kern;
static struct kd_run run;

struct layer {
    int64_t rows, cols;
    float *w;
    struct kd_hess h;
    struct kd_mat mat;
};

static double gauss(uint64_t seed, int64_t i)
{
    double u = 1.0 - kd_rand_unit(seed, (uint64_t)(2 * i)),
           v = kd_rand_unit(seed, (uint64_t)(2 * i + 1));
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

static float *floats(int64_t count)
{
    float *x;
    assert_int_equal(kd_mem_zero(&x, count, sizeof *x, "test", NULL), 0);
    return x;
}

/* Rank-32 activations plus noise with log-normal channel scales, weights with log-normal input
 * scales. */
static struct layer layer_new(int64_t rows, int64_t cols, int64_t tokens, uint64_t seed)
{
    enum { RANK = 32 };
    struct layer l = {.rows = rows, .cols = cols, .w = floats(rows * cols)};
    for (int64_t i = 0; i < rows * cols; i++)
        l.w[i] = (float)(0.02 * exp(0.3 * gauss(seed + 1, i % cols)) * gauss(seed, i));
    l.mat =
        (struct kd_mat){.type = KD_MAT_F32, .rows = rows, .cols = cols, .data = l.w, .ld = cols};
    float *x = floats(tokens * cols), *mix = floats(RANK * cols);
    for (int64_t i = 0; i < RANK * cols; i++)
        mix[i] = (float)(gauss(seed + 2, i) / sqrt((double)RANK));
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < cols; i++) {
            double v = 0.5 * gauss(seed + 3, t * cols + i);
            for (int64_t r = 0; r < RANK; r++)
                v += (double)mix[r * cols + i] * gauss(seed + 4, t * RANK + r);
            x[t * cols + i] = (float)(v * exp(0.5 * gauss(seed + 5, i)));
        }
    assert_int_equal(kd_hess_open(&l.h, cols, NULL), 0);
    assert_int_equal(kd_hess_add(&run, &l.h, x, cols, tokens, NULL), 0);
    kd_hess_close(&l.h);
    kd_mem_free(x);
    kd_mem_free(mix);
    return l;
}

static void layer_free(struct layer *l)
{
    kd_mem_free(l->w);
    kd_hess_release(&l->h);
}

static struct kd_quant_spec spec_of(enum kd_recipe_name name, unsigned sixteenths)
{
    return (struct kd_quant_spec){.rate = kd_rate_from16(sixteenths),
                                  .cb = KD_CB_MUL1,
                                  .recipe = kd_recipe_of(name),
                                  .seed = 11,
                                  .input_seed = 22};
}

static struct kd_quant_out quantize(const struct layer *l, const struct kd_quant_spec *spec)
{
    struct kd_quant_out out;
    struct kd_err err = {0};
    if (kd_quant_tensor(&run, &l->mat, &l->h, spec, &out, &err))
        fail_msg("%s", err.msg);
    return out;
}

static double proxy_of(const struct layer *l, enum kd_recipe_name name)
{
    struct kd_quant_spec spec = spec_of(name, 32);
    struct kd_quant_out out = quantize(l, &spec);
    double proxy = out.proxy;
    assert_false(out.fallback);
    print_message("%s: proxy %.5f, rel_fro %.4f, mse %.5f, scale %.3f\n", kd_recipe_text(name),
                  proxy, out.rel_fro, out.mse, (double)out.scale);
    kd_quant_release(&out);
    return proxy;
}

static void test_recipes(void **state)
{
    (void)state;
    struct layer l = layer_new(128, 512, 1024, 100);
    double plain = proxy_of(&l, KD_RECIPE_PLAIN), upstream = proxy_of(&l, KD_RECIPE_UPSTREAM),
           best = proxy_of(&l, KD_RECIPE_DEFAULT);
    assert_true(plain > 0.064 && plain < 0.073);
    assert_true(upstream < 0.6 * plain);
    assert_true(best < 0.8 * upstream);
    layer_free(&l);
}

/* What the codes decode to, by another way, is what the figures say. */
static void check_decode(const struct layer *l, const struct kd_quant_out *out)
{
    struct kd_mat m = kd_quant_mat(out);
    float *wq = floats(l->rows * l->cols), *x = floats(3 * l->cols), *y = floats(3 * l->rows);
    assert_int_equal(kd_mat_dequant(&run, &m, wq, l->cols, NULL), 0);
    double error = 0.0, power = 0.0;
    for (int64_t i = 0; i < l->rows * l->cols; i++) {
        double d = (double)wq[i] - (double)l->w[i];
        error += d * d;
        power += (double)l->w[i] * (double)l->w[i];
    }
    assert_true(fabs(sqrt(error / power) - out->rel_fro) < 1e-4 * out->rel_fro + 1e-7);
    for (int64_t i = 0; i < 3 * l->cols; i++)
        x[i] = (float)gauss(7, i);
    assert_int_equal(kd_mat_mul(&run, &m, x, l->cols, 3, y, l->rows, NULL), 0);
    for (int64_t t = 0; t < 3; t++)
        for (int64_t r = 0; r < l->rows; r++) {
            double want = 0.0, size = 0.0;
            for (int64_t i = 0; i < l->cols; i++) {
                double p = (double)wq[r * l->cols + i] * (double)x[t * l->cols + i];
                want += p;
                size += fabs(p);
            }
            assert_true(fabs((double)y[t * l->rows + r] - want) <= 2e-5 * size);
        }
    kd_mem_free(wq);
    kd_mem_free(x);
    kd_mem_free(y);
}

/* Of the error in blocks of 128, the share that falls on what is real: the zeros of a block take
 * their part of its codes. */
static double kept(int64_t width)
{
    double sum = 0.0;
    for (int64_t at = 0; at < width; at += 128) {
        double used = (double)(width - at < 128 ? width - at : 128);
        sum += used * used / 128.0;
    }
    return sum / (double)width;
}

/* Relative error against the rate's on Gaussian tiles (5.2), with widths that need padding. */
static void test_rates_and_widths(void **state)
{
    (void)state;
    static const struct {
        unsigned sixteenths;
        int64_t rows, cols;
        double error; /* sqrt of 5.2's MSE, or Decision 5's for a mask */
    } cases[] = {{16, 128, 128, 0.5216}, {32, 200, 72, 0.2615}, {37, 128, 256, 0.2114},
                 {40, 256, 128, 0.1868}, {48, 72, 200, 0.1318}, {64, 128, 128, 0.0666},
                 {128, 128, 128, 0.0046}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct layer l = layer_new(cases[i].rows, cases[i].cols, 64, 200 + i);
        struct kd_quant_spec spec = spec_of(KD_RECIPE_PLAIN, cases[i].sixteenths);
        struct kd_quant_out out = quantize(&l, &spec);
        /* What of the error falls on padding does not count. */
        double error = cases[i].error * sqrt(kept(l.rows) * kept(l.cols));
        print_message("%u/16 bits, %lld x %lld: rel_fro %.5f, expected %.5f\n", cases[i].sixteenths,
                      (long long)l.rows, (long long)l.cols, out.rel_fro, error);
        assert_true(out.rel_fro < 1.09 * error);
        assert_true(out.rel_fro > 0.92 * error);
        assert_int_equal(out.k % 128 + out.n % 128, 0);
        assert_int_equal(out.codes_bytes, out.k * out.n * cases[i].sixteenths / 128);
        for (int64_t c = l.rows; c < out.n; c++)
            assert_int_equal(out.svh[c] & 0x7fff, 0);
        for (int64_t r = l.cols; r < out.k; r++)
            assert_int_equal(out.suh[r] & 0x7fff, 0);
        check_decode(&l, &out);
        kd_quant_release(&out);
        spec.recipe = kd_recipe_of(KD_RECIPE_DEFAULT);
        out = quantize(&l, &spec);
        check_decode(&l, &out);
        kd_quant_release(&out);
        layer_free(&l);
    }
}

static void assert_same(const struct kd_quant_out *a, const struct kd_quant_out *b)
{
    assert_int_equal(a->codes_bytes, b->codes_bytes);
    assert_memory_equal(a->codes, b->codes, (size_t)a->codes_bytes);
    assert_memory_equal(a->suh, b->suh, (size_t)a->k * sizeof *a->suh);
    assert_memory_equal(a->svh, b->svh, (size_t)a->n * sizeof *a->svh);
    assert_true(a->proxy == b->proxy && a->rel_fro == b->rel_fro && a->mse == b->mse);
}

/* The reference search, which is slow, on one tile of every other call, another each time, held
 * against the states of the search that the rest takes; what it does alone is in kern_trellis.c. */
static struct {
    struct kd_kern slow;
    int64_t calls;
} sampled;

static void sampled_search(const float *target, int64_t tiles, struct kd_rate rate,
                           enum kd_codebook cb, int seam, uint16_t *states, void *scratch)
{
    uint16_t again[256];
    kern.trellis_search(target, tiles, rate, cb, seam, states, scratch);
    if (sampled.calls++ % 2)
        return;
    int64_t one = sampled.calls / 2 % tiles;
    sampled.slow.trellis_search(target + one * 256, 1, rate, cb, seam, again, scratch);
    assert_memory_equal(states + one * 256, again, sizeof again);
}

/* The bytes of a default encoding on every instruction set here, threads 1, 2 and 5. */
static void test_determinism(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 5};
    struct layer l = layer_new(128, 128, 128, 300);
    struct kd_quant_spec spec = spec_of(KD_RECIPE_DEFAULT, 37);
    spec.recipe.seam = 32; /* faster; the reference search takes its time */
    struct kd_quant_out want = quantize(&l, &spec);
    struct kd_run before = run;
    for (int isa = 0; isa < KD_ISA_COUNT; isa++) {
        struct kd_kern other;
        if (kd_kern_for(&other, (enum kd_isa)isa, NULL) || (KD_TEST_SLOW && isa == KD_ISA_REF))
            continue;
        if (isa == KD_ISA_REF && kern.trellis_search != other.trellis_search) {
            sampled.slow = other;
            other.trellis_search = sampled_search;
        }
        /* Its other kernels are slow, too: once. */
        for (size_t t = 0; t < (isa == KD_ISA_REF ? 1 : sizeof threads / sizeof *threads); t++) {
            struct kd_pool *pool;
            assert_int_equal(kd_pool_open(&pool, threads[t], NULL), 0);
            run = (struct kd_run){.kern = &other, .pool = pool};
            struct kd_quant_out out = quantize(&l, &spec);
            assert_same(&want, &out);
            kd_quant_release(&out);
            kd_pool_close(pool);
        }
    }
    assert_true(!sampled.slow.trellis_search || sampled.calls >= 16);
    run = before;
    spec.seed++;
    struct kd_quant_out out = quantize(&l, &spec);
    assert_memory_not_equal(want.codes, out.codes, (size_t)want.codes_bytes);
    kd_quant_release(&out);
    kd_quant_release(&want);
    layer_free(&l);
}

static void test_scale_hint(void **state)
{
    (void)state;
    struct layer l = layer_new(128, 128, 128, 400);
    struct kd_quant_spec spec = spec_of(KD_RECIPE_DEFAULT, 32);
    struct kd_quant_out a = quantize(&l, &spec);
    spec.scale_hint = a.scale;
    struct kd_quant_out b = quantize(&l, &spec);
    assert_same(&a, &b);
    kd_quant_release(&a);
    kd_quant_release(&b);
    layer_free(&l);
}

static void test_bad_hessians(void **state)
{
    (void)state;
    struct layer l = layer_new(128, 128, 128, 500);
    struct kd_quant_spec spec = spec_of(KD_RECIPE_DEFAULT, 32);
    struct kd_quant_out none, out;
    assert_int_equal(kd_quant_tensor(&run, &l.mat, NULL, &spec, &none, NULL), 0);
    assert_true(none.fallback && none.proxy < 0.0);
    check_decode(&l, &none);
    /* All zero: as none. */
    float *h = l.h.h, *other = floats(128 * 128);
    l.h.h = other;
    out = quantize(&l, &spec);
    assert_true(out.fallback);
    assert_same(&none, &out);
    kd_quant_release(&out);
    kd_quant_release(&none);
    /* Rank one: everything but one direction is free. */
    for (int64_t i = 0; i < 128 * 128; i++)
        other[i] = (float)(gauss(1, i / 128) * gauss(1, i % 128));
    out = quantize(&l, &spec);
    assert_false(out.fallback);
    assert_true(out.proxy >= 0.0 && out.proxy < 0.01);
    check_decode(&l, &out);
    kd_quant_release(&out);
    /* Not finite: not usable. */
    other[5 * 128 + 5] = INFINITY;
    out = quantize(&l, &spec);
    assert_true(out.fallback);
    kd_quant_release(&out);
    /* Indefinite beyond what damping mends: plain tiles, and said so. */
    memcpy(other, h, 128 * 128 * sizeof *other);
    for (int64_t i = 0; i < 128; i++)
        other[i * 128 + (i ^ 1)] = 9.0f * (other[i * 128 + i] + other[(i ^ 1) * 128 + (i ^ 1)]);
    out = quantize(&l, &spec);
    assert_true(out.fallback);
    assert_int_equal(out.cholesky_tries, 0);
    check_decode(&l, &out);
    kd_quant_release(&out);
    l.h.h = h;
    kd_mem_free(other);
    layer_free(&l);
}

static void test_bad_weights(void **state)
{
    (void)state;
    struct layer l = layer_new(128, 128, 128, 600);
    struct kd_quant_spec spec = spec_of(KD_RECIPE_DEFAULT, 32);
    struct kd_quant_out out;
    struct kd_err err;
    float was = l.w[3 * 128 + 7];
    l.w[3 * 128 + 7] = NAN;
    assert_int_equal(kd_quant_tensor(&run, &l.mat, &l.h, &spec, &out, &err), -1);
    assert_non_null(strstr(err.msg, "row 3, column 7"));
    assert_null(out.codes);
    l.w[3 * 128 + 7] = was;
    /* Dead rows and columns decode to zero. */
    for (int64_t i = 0; i < 128; i++)
        l.w[9 * 128 + i] = l.w[i * 128 + 4] = 0.0f;
    out = quantize(&l, &spec);
    assert_int_equal(out.svh[9] & 0x7fff, 0);
    assert_int_equal(out.suh[4] & 0x7fff, 0);
    check_decode(&l, &out);
    double usual = out.rel_fro;
    kd_quant_release(&out);
    /* Sizes that neither scale alone could hold. */
    static const float sizes[] = {1e-6f, 1e6f};
    for (size_t s = 0; s < 2; s++) {
        for (int64_t i = 0; i < 128 * 128; i++)
            l.w[i] *= sizes[s];
        out = quantize(&l, &spec);
        assert_true(out.rel_fro < 1.02 * usual);
        check_decode(&l, &out);
        kd_quant_release(&out);
        for (int64_t i = 0; i < 128 * 128; i++)
            l.w[i] /= sizes[s];
    }
    for (int64_t i = 0; i < 128 * 128; i++)
        l.w[i] *= 1e20f;
    assert_int_equal(kd_quant_tensor(&run, &l.mat, &l.h, &spec, &out, &err), -1);
    assert_int_equal(err.code, KD_ENOTSUP);
    memset(l.w, 0, 128 * 128 * sizeof *l.w);
    out = quantize(&l, &spec);
    assert_true(out.rel_fro == 0.0 && out.proxy == 0.0);
    kd_quant_release(&out);
    layer_free(&l);
}

static void test_bad_arguments(void **state)
{
    (void)state;
    struct layer l = layer_new(16, 32, 8, 700);
    struct kd_quant_spec spec = spec_of(KD_RECIPE_DEFAULT, 32);
    struct kd_quant_out out;
    struct kd_err err;
    spec.recipe.row_power = 0.3f;
    assert_int_equal(kd_quant_tensor(&run, &l.mat, &l.h, &spec, &out, &err), -1);
    spec = spec_of(KD_RECIPE_DEFAULT, 129);
    assert_int_equal(kd_quant_tensor(&run, &l.mat, &l.h, &spec, &out, &err), -1);
    spec = spec_of(KD_RECIPE_DEFAULT, 32);
    l.h.k_real = 31;
    assert_int_equal(kd_quant_tensor(&run, &l.mat, &l.h, &spec, &out, &err), -1);
    assert_int_equal(err.code, KD_EINVAL);
    layer_free(&l);
}

/* Every allocation may fail; nothing leaks. */
static void test_no_memory(void **state)
{
    (void)state;
    struct layer l = layer_new(16, 32, 8, 800);
    struct kd_quant_spec spec = spec_of(KD_RECIPE_DEFAULT, 32);
    struct kd_quant_out out;
    struct kd_err err;
    int64_t before = kd_mem_live_bytes();
    for (int64_t nth = 1; nth < 40; nth++) {
        kd_mem_fail_nth(nth);
        int rc = kd_quant_tensor(&run, &l.mat, &l.h, &spec, &out, &err);
        kd_mem_fail_nth(0);
        kd_quant_release(&out);
        assert_int_equal(kd_mem_live_bytes(), before);
        if (!rc)
            break;
        assert_int_equal(err.code, KD_ENOMEM);
    }
    layer_free(&l);
}

static void test_hessian(void **state)
{
    (void)state;
    enum { T = 50, K = 70 };
    struct kd_hess a, b;
    char da[65], db[65];
    float *x = floats(T * K);
    for (int64_t i = 0; i < T * K; i++)
        x[i] = (float)gauss(9, i);
    x[7 * K + 3] = NAN;
    x[8 * K] = INFINITY;
    assert_int_equal(kd_hess_open(&a, K, NULL) + kd_hess_open(&b, K, NULL), 0);
    assert_false(kd_hess_usable(&a, NULL));
    assert_int_equal(kd_hess_add(&run, &a, x, K, T, NULL), 0);
    for (int64_t t = 0; t < T; t += 9)
        assert_int_equal(kd_hess_add(&run, &b, x + t * K, K, T - t < 9 ? T - t : 9, NULL), 0);
    kd_hess_close(&a);
    kd_hess_close(&b);
    assert_int_equal(a.k, 128);
    assert_int_equal(a.rows, T - 2);
    assert_int_equal(a.bad_rows, 2);
    assert_memory_equal(a.h, b.h, 128 * 128 * sizeof *a.h);
    for (int64_t i = 0; i < 128; i++)
        for (int64_t j = 0; j < 128; j++) {
            double want = 0.0;
            for (int64_t t = 0; t < T && i < K && j < K; t++)
                if (t != 7 && t != 8)
                    want += (double)x[t * K + i] * (double)x[t * K + j];
            assert_true(fabs((double)a.h[i * 128 + j] - want) < 1e-4);
        }
    assert_true(kd_hess_usable(&a, NULL));
    assert_int_equal(kd_hess_digest(&a, da, NULL) + kd_hess_digest(&b, db, NULL), 0);
    assert_string_equal(da, db);
    b.h[1] += 1.0f;
    assert_int_equal(kd_hess_digest(&b, db, NULL), 0);
    assert_string_not_equal(da, db);
    kd_hess_release(&a);
    kd_hess_release(&b);
    kd_mem_free(x);
}

static int setup(void **state)
{
    (void)state;
    run.kern = &kern;
    return kd_kern_pick(&kern, NULL) || kd_pool_open(&run.pool, 0, NULL);
}

static int teardown(void **state)
{
    (void)state;
    kd_pool_close(run.pool);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hessian),     cmocka_unit_test(test_recipes),
        cmocka_unit_test(test_determinism), cmocka_unit_test(test_rates_and_widths),
        cmocka_unit_test(test_scale_hint),  cmocka_unit_test(test_bad_hessians),
        cmocka_unit_test(test_bad_weights), cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
