/* Elementwise kernels: bounds against double libm, the same bits as the reference, the vectors of
 * an independent program. */
#include "unit/kern_util.h"

#include "base/hash.h"
#include "base/json.h"

#include <math.h>

/* Units in the last place of float between a result and the true value; below 2^e_min those of
 * 2^e_min. Products with a sigmoid that is subnormal itself (arguments under -87) cannot keep their
 * relative accuracy: they are held to the units of 2^-117. */
enum { FLOAT_MIN = -125, PRODUCT_MIN = -117 };

static double ulps(float got, double want, int e_min)
{
    if (isnan(want))
        return isnan(got) ? 0 : 1e9;
    if (isinf(got) || fabs(want) >= 0x1.ffffffp127)
        return isinf(got) && fabs(want) >= 0x1.fffffep127 && (got > 0) == (want > 0) ? 0 : 1e9;
    int e;
    frexp(want, &e);
    double unit = ldexp(1, (e < e_min ? e_min : e) - 24);
    return fabs((double)got - want) / unit;
}

typedef void (*map)(const float *x, float *out, int64_t n);

static double exp_d(double x)
{
    return exp(x);
}

static double sigmoid_d(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

static double silu_d(double x)
{
    return x * sigmoid_d(x);
}

/* Every 1009th float pattern, both signs: all sizes, subnormals, infinities and NaN. */
static double worst(map f, double (*truth)(double), double limit, int e_min)
{
    enum { N = 4096 };
    static float x[N], y[N];
    double most = 0;
    int64_t n = 0;
    for (uint64_t u = 0; u < UINT64_C(1) << 32; u += 1009) {
        float v = kd_bits_f32((uint32_t)u);
        if (fabs((double)v) <= limit || isnan(v))
            x[n++] = v;
        if (n < N && u + 1009 < UINT64_C(1) << 32)
            continue;
        f(x, y, n);
        for (int64_t i = 0; i < n; i++) {
            double d = ulps(y[i], truth((double)x[i]), e_min);
            if (d > most)
                most = d;
        }
        n = 0;
    }
    return most;
}

static void test_bounds(void **state)
{
    (void)state;
    double e = worst(isa.exp, exp_d, HUGE_VAL, FLOAT_MIN);
    double s = worst(isa.sigmoid, sigmoid_d, HUGE_VAL, FLOAT_MIN);
    double l = worst(isa.silu, silu_d, 3e38, PRODUCT_MIN);
    print_message("ulps: exp %.3f, sigmoid %.3f, silu %.3f\n", e, s, l);
    assert_true(e <= 2 && s <= 3 && l <= 4);
}

static void test_ends(void **state)
{
    (void)state;
    const float x[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 88.72f, 88.73f, -103.9f, -104};
    enum { N = sizeof x / sizeof *x };
    float y[N];
    isa.exp(x, y, N);
    assert_true(y[0] == 1 && y[1] == 1 && isinf(y[2]) && y[3] == 0 && isnan(y[4]));
    assert_true(isfinite(y[5]) && isinf(y[6]) && y[7] > 0 && y[8] == 0);
    isa.sigmoid(x, y, N);
    assert_true(y[0] == 0.5f && y[2] == 1 && y[3] == 0 && isnan(y[4]) && y[7] > 0);
    isa.silu(x, y, N);
    assert_true(y[0] == 0 && isinf(y[2]) && isnan(y[4]));
}

/* Every fp16 value as kd_f16_f32 has it, and every length. */
static void test_scale_f16(void **state)
{
    (void)state;
    enum { ALL = 1 << 16 };
    static uint16_t h[ALL];
    static float one[ALL], y[ALL];
    for (int i = 0; i < ALL; i++) {
        h[i] = (uint16_t)i;
        one[i] = 1;
    }
    isa.scale_f16(one, h, ALL, y);
    for (int i = 0; i < ALL; i++) {
        float want = kd_f16_f32(h[i]);
        assert_true(isnan(want) ? isnan(y[i]) : kd_f32_bits(y[i]) == kd_f32_bits(want));
    }
    for (int64_t n = 0; n < 150; n++) {
        for (int64_t i = 0; i <= n; i++)
            y[i] = value(5, i);
        isa.scale_f16(y, h + 15000, n, y);
        for (int64_t i = 0; i <= n; i++)
            assert_true(y[i] == (i < n ? value(5, i) * kd_f16_f32(h[15000 + i]) : value(5, i)));
    }
}

static double situ_d(double g, double u, double beta, double linear)
{
    double r = beta * tanh(g / beta) * sigmoid_d(g);
    return r * (linear > 0 ? linear * tanh(u / linear) : u);
}

static void test_situ_bound(void **state)
{
    (void)state;
    enum { N = 60000 };
    static float g[N], u[N], y[N];
    static const float linears[] = {25, 7, 0};
    for (int round = 0; round < 3; round++) {
        float beta = round == 1 ? 3 : 4, linear = linears[round];
        for (int64_t i = 0; i < N; i++) {
            /* Sizes from 2^-30 to 2^7, so that small values keep their relative accuracy. */
            g[i] = value(1, i) * ldexpf(1, (int)(kd_rand_u64(2, (uint64_t)i) % 38) - 30);
            u[i] = value(3, i) * ldexpf(1, (int)(kd_rand_u64(4, (uint64_t)i) % 38) - 30);
        }
        isa.situ(g, u, beta, linear, y, N);
        double most = 0;
        for (int64_t i = 0; i < N; i++) {
            double d = ulps(y[i], situ_d((double)g[i], (double)u[i], (double)beta, (double)linear),
                            PRODUCT_MIN);
            if (d > most)
                most = d;
        }
        print_message("situ beta %g linear %g: %.3f ulp\n", (double)beta, (double)linear, most);
        assert_true(most <= 8);
    }
}

static void test_same_bits(void **state)
{
    (void)state;
    enum { N = 300 };
    float *x = floats(1, N), *u = floats(2, N), a[N], b[N];
    for (int64_t i = 0; i < N; i++)
        x[i] *= ldexpf(1, (int)(i % 40) - 30);
    x[7] = NAN, x[20] = INFINITY, x[33] = -INFINITY, x[40] = -0.0f;
    for (int64_t n = 0; n < N; n += n < 140 ? 1 : 53) {
        memset(a, 1, sizeof a);
        memset(b, 1, sizeof b);
#define BOTH(call_isa, call_ref, what)                                                             \
    call_isa;                                                                                      \
    call_ref;                                                                                      \
    same(a, b, N, what)
        BOTH(isa.exp(x, a, n), ref.exp(x, b, n), "exp");
        BOTH(isa.sigmoid(x, a, n), ref.sigmoid(x, b, n), "sigmoid");
        BOTH(isa.silu(x, a, n), ref.silu(x, b, n), "silu");
        BOTH(isa.situ(x, u, 4, 25, a, n), ref.situ(x, u, 4, 25, b, n), "situ");
        BOTH(isa.situ(u, x, 4, 0, a, n), ref.situ(u, x, 4, 0, b, n), "situ, plain");
        BOTH(isa.rmsnorm(u, x, 1e-5f, n, a), ref.rmsnorm(u, x, 1e-5f, n, b), "rmsnorm");
        BOTH(isa.rmsnorm(u, NULL, 1e-6f, n, a), ref.rmsnorm(u, NULL, 1e-6f, n, b), "rmsnorm alone");
        memcpy(a, u, sizeof a);
        memcpy(b, u, sizeof b);
        BOTH(isa.softmax(a, n), ref.softmax(b, n), "softmax");
        BOTH(isa.silu(a, a, n), ref.silu(b, b, n), "silu in place");
        BOTH(isa.rmsnorm(a, u, 1e-5f, n, a), ref.rmsnorm(b, u, 1e-5f, n, b), "rmsnorm in place");
#undef BOTH
    }
    floats_free(x);
    floats_free(u);
}

/* The bits themselves, so that neither a compiler nor a processor can change them unseen. */
static void test_known_bits(void **state)
{
    (void)state;
    enum { N = 65536 };
    static float x[N], u[N], y[5][N];
    for (int64_t i = 0; i < N; i++) {
        /* Every 65,521st pattern; NaN and infinity replaced. */
        uint32_t bits = (uint32_t)i * 65521u;
        x[i] = kd_bits_f32((bits & 0x7f800000u) == 0x7f800000u ? bits & 0xbfffffffu : bits);
        u[i] = value(1, i) * 60;
    }
    isa.exp(x, y[0], N);
    isa.sigmoid(x, y[1], N);
    isa.silu(x, y[2], N);
    isa.situ(x, u, 4, 25, y[3], N);
    isa.rmsnorm(u, u, 1e-5f, N, y[4]);
    static const uint64_t want[5] = {0x4ae2b51f0c948d94, 0x68f47e0fefda2556, 0xcadbe8e932500106,
                                     0xed2918421992efbf, 0xe8c56890a666e118};
    for (int i = 0; i < 5; i++) {
        uint64_t got = kd_xxh64(y[i], sizeof y[i], 0);
        if (got != want[i])
            fail_msg("function %d: 0x%016llx", i, (unsigned long long)got);
    }
    /* rmsnorm's order, written out. */
    float scale = 1.0f / sqrtf(ref.dot(u, u, 100) / 100.0f + 1e-5f);
    isa.rmsnorm(u, x, 1e-5f, 100, y[0]);
    for (int i = 0; i < 100; i++) {
        float scaled = u[i] * scale;
        assert_true(y[0][i] == scaled * x[i]);
    }
}

static void test_softmax(void **state)
{
    (void)state;
    float x[100];
    double sum = 0, total = 0;
    for (int i = 0; i < 100; i++) {
        x[i] = 30 * value(9, i);
        sum += exp((double)x[i]);
    }
    float y[100];
    memcpy(y, x, sizeof y);
    isa.softmax(y, 100);
    for (int i = 0; i < 100; i++) {
        assert_true(fabs((double)y[i] - exp((double)x[i]) / sum) <= 4e-6 * exp((double)x[i]) / sum);
        total += (double)y[i];
    }
    assert_true(fabs(total - 1) < 1e-6);
    float z[3] = {-INFINITY, 1, -INFINITY};
    isa.softmax(z, 3);
    assert_true(z[0] == 0 && z[1] == 1 && z[2] == 0);
}

static int64_t numbers(const struct kd_json *root, const char *key, float *out, int64_t max)
{
    const struct kd_json *data = kd_json_get(kd_json_get(root, key), "data");
    if (!data)
        data = kd_json_get(root, key);
    int64_t n = (int64_t)kd_json_count(data);
    assert_true(n > 0 && n <= max);
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)kd_json_num_value(kd_json_at(data, (size_t)i));
    return n;
}

static struct kd_json *fixture(const char *name)
{
    const char *dir = getenv("KONDENSE_TEST_DATA");
    char path[4096];
    struct kd_err err = {0};
    struct kd_json *root;
    if (!dir)
        skip();
    snprintf(path, sizeof path, "%s/vectors/ops/%s.json", dir, name);
    if (kd_json_load(&root, path, 1 << 20, &err))
        fail_msg("%s", err.msg);
    return root;
}

/* The fixtures' own tolerance (MANIFEST.json). */
static void near(const float *got, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-5f + 1e-4f * fabsf(want[i])))
            fail_msg("value %lld: %g, not %g", (long long)i, (double)got[i], (double)want[i]);
}

static void test_fixture_rmsnorm(void **state)
{
    (void)state;
    struct kd_json *root = fixture("rmsnorm");
    float w[128], x[384], want[384], y[384];
    assert_int_equal(numbers(root, "weight", w, 128), 128);
    assert_int_equal(numbers(root, "in", x, 384), 384);
    numbers(root, "out", want, 384);
    for (int t = 0; t < 3; t++)
        isa.rmsnorm(x + t * 128, w, 1e-5f, 128, y + t * 128);
    near(y, want, 384);
    kd_json_free(root);
}

static void test_fixture_situ(void **state)
{
    (void)state;
    struct kd_json *root = fixture("situ_glu");
    float x[96], want[48], y[48];
    assert_int_equal(numbers(root, "in", x, 96), 96);
    numbers(root, "out", want, 48);
    for (int t = 0; t < 6; t++)
        isa.situ(x + t * 16, x + t * 16 + 8, 4, 25, y + t * 8, 8);
    near(y, want, 48);
    kd_json_free(root);
}

static void test_fixture_kda(void **state)
{
    (void)state;
    struct kd_json *root = fixture("kda_recur1");
    float q[64], k[64], v[64], alpha[64], beta[4], out[64], end[1024], y[64];
    static float s[1024], start[1024];
    numbers(root, "q", q, 64);
    numbers(root, "k", k, 64);
    numbers(root, "v", v, 64);
    numbers(root, "alpha", alpha, 64);
    numbers(root, "beta", beta, 4);
    numbers(root, "out", out, 64);
    numbers(root, "state_out", end, 1024);
    if (kd_json_get(root, "state_in"))
        numbers(root, "state_in", start, 1024);
    memcpy(s, start, sizeof s);
    for (int h = 0; h < 4; h++) {
        for (int i = 0; i < 16; i++)
            q[h * 16 + i] *= 0.25f;
        isa.kda_step(s + h * 256, q + h * 16, k + h * 16, v + h * 16, alpha + h * 16, beta[h], 16,
                     16, y + h * 16);
    }
    near(y, out, 64);
    near(s, end, 1024);
    kd_json_free(root);
}

int main(void)
{
    int rc = kern_open();
    if (rc)
        return rc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds),       cmocka_unit_test(test_ends),
        cmocka_unit_test(test_scale_f16),    cmocka_unit_test(test_situ_bound),
        cmocka_unit_test(test_same_bits),    cmocka_unit_test(test_known_bits),
        cmocka_unit_test(test_softmax),      cmocka_unit_test(test_fixture_rmsnorm),
        cmocka_unit_test(test_fixture_situ), cmocka_unit_test(test_fixture_kda),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
