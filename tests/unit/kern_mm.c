/* Products, gemm_tn, hadamard and kda_step: the same bits as the reference for awkward sizes, and
 * the reference against double precision. */
#include "unit/kern_util.h"

#include <math.h>

static const int64_t ks[] = {0, 1, 15, 16, 17, 31, 32, 33, 96, 127, 128, 511, 512, 513, 1040};
static const int64_t ts[] = {1, 2, 3, 4, 5, 6, 7, 13, 49};
static const int64_t rs[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33};
enum { K_MAX = 1088, T_MAX = 49, R_MAX = 33, GAP = 3 };
#define EACH(i, list) (size_t i = 0; i < sizeof list / sizeof *list; i++)

/* Signs of zero and subnormals matter too: now and then a tiny value. */
static void spice(float *x, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t u = kd_rand_u64(seed, (uint64_t)i) % 23;
        if (u == 0)
            x[i] *= 0x1p-140f;
        else if (u == 1)
            x[i] = -0.0f;
    }
}

struct weights {
    float *f32;
    uint16_t *bf16;
    uint8_t *packed, *scale;
};

static struct weights weights_new(void)
{
    enum { LD = K_MAX + GAP };
    struct weights w = {floats(1, R_MAX * LD), malloc(R_MAX * LD * 2), malloc(R_MAX * LD),
                        malloc(R_MAX * LD)};
    assert_true(w.bf16 && w.packed && w.scale);
    spice(w.f32, R_MAX * LD, 2);
    for (int64_t i = 0; i < R_MAX * LD; i++) {
        w.bf16[i] = kd_f32_bf16(w.f32[i]);
        w.packed[i] = (uint8_t)kd_rand_u64(3, (uint64_t)i);
        uint64_t u = kd_rand_u64(4, (uint64_t)i);
        w.scale[i] = (uint8_t)(u % 50 == 0 ? 0 : u % 50 == 1 ? 1 : 110 + u % 17);
    }
    return w;
}

static void weights_free(struct weights *w)
{
    floats_free(w->f32);
    free(w->bf16);
    free(w->packed);
    free(w->scale);
}

static void product(const struct kd_kern *k, int type, const struct weights *w, int64_t R,
                    int64_t K, const float *x, int64_t T, float *y)
{
    enum { LD = K_MAX + GAP };
    if (type == 0)
        k->mm_f32(w->f32, LD, R, K, x, LD, T, y, R_MAX + GAP);
    else if (type == 1)
        k->mm_bf16(w->bf16, LD, R, K, x, LD, T, y, R_MAX + GAP);
    else
        k->mm_mxfp4(w->packed + 1, LD, w->scale + 1, LD - 1, R, K, x, LD, T, y, R_MAX + GAP);
}

static void test_products(void **state)
{
    (void)state;
    enum { LDX = K_MAX + GAP, LDY = R_MAX + GAP };
    struct weights w = weights_new();
    float *x = floats(5, T_MAX * LDX), *a = floats(6, T_MAX * LDY), *b = floats(6, T_MAX * LDY);
    spice(x, T_MAX * LDX, 7);
    for (int type = 0; type < 3; type++)
        for
            EACH(k, ks)
            {
                if (type == 2 && ks[k] % 32)
                    continue;
                /* All rows and tokens once by the reference; parts of it must then come out the
                 * same. */
                product(&ref, type, &w, R_MAX, ks[k], x, T_MAX, b);
            for
                EACH(t, ts)
                for
                    EACH(r, rs)
                    {
                        char what[80];
                        snprintf(what, sizeof what, "type %d, K %lld, T %lld, R %lld", type,
                                 (long long)ks[k], (long long)ts[t], (long long)rs[r]);
                        for (int64_t i = 0; i < T_MAX * LDY; i++)
                            a[i] = 77;
                        product(&isa, type, &w, rs[r], ks[k], x, ts[t], a);
                        for (int64_t i = 0; i < ts[t]; i++) {
                            same(a + i * LDY, b + i * LDY, rs[r], what);
                            for (int64_t j = rs[r]; j < LDY; j++)
                                assert_true(a[i * LDY + j] == 77);
                        }
                    }
            }
    floats_free(x);
    floats_free(a);
    floats_free(b);
    weights_free(&w);
}

/* Formats of 1, 32 and 256 values; the last, of any kind: a scale and signed bytes. */
static void any_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 258, out += 256)
        for (int i = 0; i < 256; i++)
            out[i] = kd_f16_f32(kd_block_u16(b)) * (float)(int8_t)b[2 + i];
}

static void q8_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += KD_Q8_0_BYTES, out += KD_Q8_0_ELEMS)
        kd_q8_0_decode(b, out);
}

static void fp4_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += KD_MXFP4_BYTES, out += KD_MXFP4_ELEMS)
        kd_mxfp4_decode(b, out);
}

static void half_decode(const uint8_t *b, int64_t count, float *out)
{
    for (; count > 0; count--, b += 2)
        *out++ = kd_f16_f32(kd_block_u16(b));
}

static void test_blocks(void **state)
{
    (void)state;
    static const struct kd_block_format formats[] = {
        {"F16", 1, 2, half_decode, KD_BLOCK_ANY},
        {"Q8_0", KD_Q8_0_ELEMS, KD_Q8_0_BYTES, q8_decode, KD_BLOCK_Q8_0},
        {"MXFP4", KD_MXFP4_ELEMS, KD_MXFP4_BYTES, fp4_decode, KD_BLOCK_MXFP4},
        {"any", 256, 258, any_decode, KD_BLOCK_ANY}};
    static const int64_t widths[][5] = {{0, 1, 17, 33, 530},
                                        {32, 64, 96, 512, 544},
                                        {32, 64, 96, 512, 1056},
                                        {256, 512, 768, 1024, 1280}};
    enum { ROW = 3000, LDX = 1280 + GAP, LDY = R_MAX + GAP };
    uint8_t *w = malloc(R_MAX * ROW);
    float *x = floats(5, T_MAX * LDX), *a = floats(6, T_MAX * LDY), *b = floats(6, T_MAX * LDY);
    assert_non_null(w);
    spice(x, T_MAX * LDX, 7);
    for (size_t f = 0; f < 4; f++) {
        for (int64_t i = 0; i < R_MAX * ROW; i++)
            w[i] = (uint8_t)kd_rand_u64(8, (uint64_t)i);
        /* Scales of every size: halves that are 0 or subnormal, exponents 0, 1, 254, 255. */
        for (int64_t r = 0; r < R_MAX; r++)
            for (int64_t i = 1 + r * ROW; i + formats[f].bytes <= (r + 1) * ROW;
                 i += formats[f].bytes) {
                uint64_t u = kd_rand_u64(9, (uint64_t)i);
                if (formats[f].kind == KD_BLOCK_MXFP4)
                    w[i] = (uint8_t)(u % 40 < 2 ? u % 40 : u % 400 == 7 ? 255 : 100 + u % 40);
                else
                    w[i + 1] = (uint8_t)(u % 9 == 0 ? u % 4 | (u & 128) : (w[i + 1] & 0x83) | 0x28);
            }
        for (size_t k = 0; k < 5; k++) {
            formats[f].decode(w + 1, 0, NULL); /* nothing to do */
            ref.mm_block(&formats[f], w + 1, ROW, R_MAX, widths[f][k], x, LDX, T_MAX, b, LDY);
            for
                EACH(t, ts)
                for
                    EACH(r, rs)
                    {
                        char what[80];
                        snprintf(what, sizeof what, "%s, K %lld, T %lld, R %lld", formats[f].name,
                                 (long long)widths[f][k], (long long)ts[t], (long long)rs[r]);
                        for (int64_t i = 0; i < T_MAX * LDY; i++)
                            a[i] = 77;
                        isa.mm_block(&formats[f], w + 1, ROW, rs[r], widths[f][k], x, LDX, ts[t], a,
                                     LDY);
                        for (int64_t i = 0; i < ts[t]; i++) {
                            same(a + i * LDY, b + i * LDY, rs[r], what);
                            for (int64_t j = rs[r]; j < LDY; j++)
                                assert_true(a[i * LDY + j] == 77);
                        }
                    }
        }
    }
    free(w);
    floats_free(x);
    floats_free(a);
    floats_free(b);
}

static void test_product_is_right(void **state)
{
    (void)state;
    enum { K = 96, R = 5, T = 3, LD = K_MAX + GAP };
    struct weights w = weights_new();
    float *x = floats(5, T * LD), *y = floats(6, T_MAX * (R_MAX + GAP));
    static const float fp4[16] = {0,    .5f,  1,  1.5f,  2,  3,  4,  6,
                                  -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    for (int type = 0; type < 3; type++) {
        product(&isa, type, &w, R, K, x, T, y);
        for (int64_t t = 0; t < T; t++)
            for (int64_t r = 0; r < R; r++) {
                double sum = 0, size = 0;
                for (int64_t k = 0; k < K; k++) {
                    unsigned byte = w.packed[1 + r * LD + k / 2];
                    double v = type == 0   ? (double)w.f32[r * LD + k]
                               : type == 1 ? (double)kd_bf16_f32(w.bf16[r * LD + k])
                                           : (double)fp4[k % 2 ? byte >> 4 : byte & 15] *
                                                 ldexp(1, w.scale[1 + r * (LD - 1) + k / 32] - 127);
                    sum += v * (double)x[t * LD + k];
                    size += fabs(v * (double)x[t * LD + k]);
                }
                assert_true(fabs(sum - (double)y[t * (R_MAX + GAP) + r]) <= 1e-6 * size);
            }
    }
    floats_free(x);
    floats_free(y);
    weights_free(&w);
}

static void test_not_finite(void **state)
{
    (void)state;
    enum { K = 40, T = 3 };
    float *w = floats(1, K), *x = floats(2, T * K), a[T], b[T];
    x[K - 1] = INFINITY;
    w[K - 1] = 0;
    x[2 * K - 3] = NAN;
    x[2 * K + 35] = -INFINITY;
    isa.mm_f32(w, K, 1, K, x, K, T, a, 1);
    ref.mm_f32(w, K, 1, K, x, K, T, b, 1);
    same(a, b, T, "not finite");
    assert_true(isnan(a[0]) && isnan(a[1]) && isinf(a[2]));
    floats_free(w);
    floats_free(x);
}

/* A lane that ends as -0 (a negative product under the subnormals) stays -0 past the last element.
 */
static void test_negative_zero(void **state)
{
    (void)state;
    enum { K = 17, T = 5 };
    float w[K], x[T * K], y[T];
    for (int i = 0; i < K; i++)
        w[i] = -0x1p-100f;
    for (int i = 0; i < T * K; i++)
        x[i] = 0x1p-100f;
    for (int64_t t = 1; t <= T; t += T - 1) {
        isa.mm_f32(w, K, 1, K, x, K, t, y, 1);
        for (int64_t i = 0; i < t; i++)
            assert_int_equal(kd_f32_bits(y[i]), 0x80000000u);
    }
}

static void test_dot_and_axpy(void **state)
{
    (void)state;
    float *x = floats(1, K_MAX), *y = floats(2, K_MAX), *z = floats(2, K_MAX);
    for (int64_t n = 0; n < 140; n++) {
        float a = isa.dot(x, y, n), b = ref.dot(x, y, n);
        same(&a, &b, 1, "dot");
        isa.axpy(0.37f, x, y, n);
        ref.axpy(0.37f, x, z, n);
        same(y, z, K_MAX, "axpy");
    }
    floats_free(x);
    floats_free(y);
    floats_free(z);
}

static void test_gemm_tn(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},     {0, 3, 3},     {3, 7, 5},     {16, 16, 130},
                                        {5, 8, 48},    {129, 9, 49},  {130, 97, 51}, {257, 5, 24},
                                        {2, 4, 23},    {17, 100, 12}, {33, 1, 70},   {64, 2, 128},
                                        {130, 3, 131}, {64, 4, 138}};
    enum { LD = 140, S_MAX = 257 };
    float *a = floats(1, S_MAX * LD), *b = floats(2, S_MAX * LD);
    spice(a, S_MAX * LD, 3);
    for
        EACH(i, shapes)
        {
            int64_t S = shapes[i][0], I = shapes[i][1], J = shapes[i][2];
            float *c = floats(4, LD * LD), *d = floats(4, LD * LD);
            isa.gemm_tn(a, LD, b, LD - 1, S, I, J, c, LD - 2);
            ref.gemm_tn(a, LD, b, LD - 1, S, I, J, d, LD - 2);
            same(c, d, LD * LD, "gemm_tn");
            for (int64_t r = 0; r < I; r++)
                for (int64_t j = 0; j < J; j++) {
                    double sum = (double)value(4, r * (LD - 2) + j + 1);
                    for (int64_t s = 0; s < S; s++)
                        sum += (double)a[s * LD + r] * (double)b[s * (LD - 1) + j];
                    assert_true(fabs(sum - (double)c[r * (LD - 2) + j]) < 1e-4);
                }
            /* Cut anywhere, the same bits: s in two calls, the first rows alone. */
            float *e = floats(4, LD * LD);
            isa.gemm_tn(a, LD, b, LD - 1, S / 3, I, J, e, LD - 2);
            isa.gemm_tn(a + S / 3 * LD, LD, b + S / 3 * (LD - 1), LD - 1, S - S / 3, I / 2, J, e,
                        LD - 2);
            for (int64_t r = 0; r < I / 2; r++)
                same(e + r * (LD - 2), c + r * (LD - 2), J, "gemm_tn in parts");
            floats_free(c);
            floats_free(d);
            floats_free(e);
        }
    floats_free(a);
    floats_free(b);
}

static void test_hadamard(void **state)
{
    (void)state;
    enum { N = 3 * 128 };
    float *x = floats(1, N), a[N], b[N];
    isa.hadamard(x, a, 3);
    ref.hadamard(x, b, 3);
    same(a, b, N, "hadamard");
    for (int i = 0; i < N; i++) {
        double sum = 0;
        for (int j = 0; j < 128; j++)
            sum += (__builtin_popcount((unsigned)(i % 128 & j)) & 1 ? -1 : 1) *
                   (double)x[i / 128 * 128 + j];
        assert_true(fabs(sum / sqrt(128) - (double)a[i]) < 1e-6);
    }
    isa.hadamard(a, a, 3);
    for (int i = 0; i < N; i++)
        assert_true(fabs((double)a[i] - (double)x[i]) < 1e-6);
    floats_free(x);
}

static void test_kda_step(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{128, 128}, {16, 16}, {5, 3}, {64, 100}, {7, 65}};
    for
        EACH(i, shapes)
        {
            int64_t dk = shapes[i][0], dv = shapes[i][1];
            float *s = floats(1, dk * dv), *u = floats(1, dk * dv), a[128], b[128];
            float *q = floats(2, dk), *k = floats(3, dk), *v = floats(4, dv),
                  *alpha = floats(5, dk);
            for (int64_t c = 0; c < dk; c++)
                alpha[c] = fabsf(alpha[c]);
            double r[128] = {0}, o[128] = {0};
            for (int64_t c = 0; c < dk; c++)
                for (int64_t j = 0; j < dv; j++)
                    r[j] += (double)k[c] * (double)alpha[c] * (double)s[c * dv + j];
            for (int64_t c = 0; c < dk; c++)
                for (int64_t j = 0; j < dv; j++)
                    o[j] += (double)q[c] * ((double)alpha[c] * (double)s[c * dv + j] +
                                            (double)k[c] * 0.7 * ((double)v[j] - r[j]));
            isa.kda_step(s, q, k, v, alpha, 0.7f, dk, dv, a);
            ref.kda_step(u, q, k, v, alpha, 0.7f, dk, dv, b);
            same(s, u, dk * dv, "kda state");
            same(a, b, dv, "kda output");
            for (int64_t j = 0; j < dv; j++)
                assert_true(fabs((double)a[j] - o[j]) < 2e-4);
            floats_free(s);
            floats_free(u);
            floats_free(q);
            floats_free(k);
            floats_free(v);
            floats_free(alpha);
        }
}

int main(void)
{
    int rc = kern_open();
    if (rc)
        return rc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),         cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_product_is_right), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_negative_zero),    cmocka_unit_test(test_dot_and_axpy),
        cmocka_unit_test(test_gemm_tn),          cmocka_unit_test(test_hadamard),
        cmocka_unit_test(test_kda_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
