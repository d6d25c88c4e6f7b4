/* fmt/gguf_block: the golden hashes of the gguf-slicing specification, sections 2.6 and 2.7, and
 * the encoders against bytes made by the Python package gguf 0.19.0 (tests/golden/README.md). */
#include "base/hash.h"
#include "fmt/gguf.h"
#include "fmt/gguf_block.h"
#include "num/mxfp4_block.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kd_err err;

static void expect_hash(const void *data, size_t bytes, const char *hash, const char *what)
{
    char hex[65];
    assert_int_equal(kd_sha256_of(data, bytes, hex, &err), 0);
    if (strncmp(hex, hash, 16) != 0)
        fail_msg("%s: %.16s, not %s", what, hex, hash);
}

/* Scales of wild bytes would overflow: the specification's taming. */
static void tame(int type, int64_t elems, uint8_t *b)
{
    static const struct {
        int type, at[2];
    } halves[] = {{KD_GT_Q4_1, {0, 2}},    {KD_GT_Q5_1, {0, 2}},    {KD_GT_Q4_K, {0, 2}},
                  {KD_GT_Q5_K, {0, 2}},    {KD_GT_Q2_K, {80, 82}},  {KD_GT_Q3_K, {108, -1}},
                  {KD_GT_Q6_K, {208, -1}}, {KD_GT_TQ1_0, {52, -1}}, {KD_GT_TQ2_0, {64, -1}}};
    int at[2] = {0, -1};
    if (type == KD_GT_NVFP4)
        return;
    if (type == KD_GT_BF16) {
        b[1] = (uint8_t)((b[1] & 0x80) | 0x3f);
        return;
    }
    if (type == KD_GT_MXFP4) {
        b[0] = (uint8_t)(120 + (b[0] & 7));
        return;
    }
    if (type == KD_GT_IQ1_M) {
        b[48 + 7] = (uint8_t)((b[48 + 7] & 15) | 0x20);
        b[48 + 5] = (uint8_t)((b[48 + 5] & 15) | 0x80);
        return;
    }
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        if (halves[i].type == type)
            memcpy(at, halves[i].at, sizeof at);
    (void)elems;
    for (int i = 0; i < 2; i++)
        if (at[i] >= 0)
            b[at[i] + 1] = (uint8_t)((b[at[i] + 1] & 0x83) | 0x28);
}

static void decoders(void **state)
{
    static const struct {
        int type;
        const char *in, *out;
    } golden[] = {
        {KD_GT_F16, "619a944190b9543f", "8ec7f5984a497d0d"},
        {KD_GT_BF16, "87db77ef0d211f10", "50310e0729327f7b"},
        {KD_GT_Q8_0, "5462abedc480361b", "62318a859e9b569c"},
        {KD_GT_Q4_0, "1f68f86ab0ac2c51", "25b3b63728e131ab"},
        {KD_GT_Q4_1, "ebae4e0ca7a9c2bc", "957a6e293914e4b5"},
        {KD_GT_Q5_0, "2d88972ea024ea3c", "a3b3fbfa6582be4d"},
        {KD_GT_Q5_1, "7c3a5f6e507501d4", "61a0dd4efafae501"},
        {KD_GT_Q2_K, "d1ed78447ecdf6d8", "9e0cca9ec2075042"},
        {KD_GT_Q3_K, "58839eb6ffe590bf", "c632dcd646b2dc8a"},
        {KD_GT_Q4_K, "cee421deb446d54f", "4a05dd0f0c7b2cb3"},
        {KD_GT_Q5_K, "3b5c20679fa4f625", "e1e1fa760df93e6b"},
        {KD_GT_Q6_K, "6461d000d205c168", "24a581c776852da7"},
        {KD_GT_Q1_0, "8925503b056d9728", "fda578c1d5b842bd"},
        {KD_GT_Q2_0, "975c89f1dbcbc423", "9c224515ab3dae61"},
        {KD_GT_IQ1_S, "7a4b21fa5c3ea6b0", "888d0b6890fc3db2"},
        {KD_GT_IQ1_M, "5dcd716ae2bc0c66", "9b78802edde8ee31"},
        {KD_GT_IQ2_XXS, "64f8208a471e07b1", "b5ebf0598e891398"},
        {KD_GT_IQ2_XS, "3890b3bcbd2673e0", "c2db1c123e48ba5f"},
        {KD_GT_IQ2_S, "96cb450179c40d7f", "307e1c9214e32c1b"},
        {KD_GT_IQ3_XXS, "d352713c129b386d", "d41d53c9e8f17e63"},
        {KD_GT_IQ3_S, "45112453c5508a16", "b62fe925a0e49c6d"},
        {KD_GT_IQ4_NL, "1f68f86ab0ac2c51", "21ddacdcf06538f9"},
        {KD_GT_IQ4_XS, "7f9bb0ff32b3d2cc", "162625ac6a93d015"},
        {KD_GT_MXFP4, "f2721733f0ae11da", "212908683b5503cb"},
        {KD_GT_NVFP4, "98828f52ce93965f", "b96ccf56038243f4"},
        {KD_GT_TQ1_0, "46ca524747a4b54a", "5461e6e0e68ab6ff"},
        {KD_GT_TQ2_0, "41acbb949882ba48", "5787592371d40fd9"},
    };
    (void)state;
    for (size_t g = 0; g < sizeof golden / sizeof *golden; g++) {
        const struct kd_block_format *f = kd_gguf_format(golden[g].type);
        const struct kd_gguf_type_info *t = kd_gguf_type_info(golden[g].type);
        assert_string_equal(f->name, t->name);
        assert_true(f->elems == t->elems && f->bytes == t->bytes);
        int64_t blocks = 1024 / f->elems;
        size_t bytes = (size_t)(blocks * f->bytes);
        /* Exact sizes, so that a read past a block is seen. */
        uint8_t *in = malloc(bytes);
        float *out = malloc(1024 * sizeof *out);
        uint32_t x = 0x12345678u;
        for (size_t i = 0; i < bytes; i++) {
            x = x * 1664525u + 1013904223u;
            in[i] = (uint8_t)(x >> 24);
        }
        for (int64_t i = 0; i < blocks; i++)
            tame(golden[g].type, f->elems, in + i * f->bytes);
        expect_hash(in, bytes, golden[g].in, f->name);
        f->decode(in, blocks, out);
        expect_hash(out, 1024 * sizeof *out, golden[g].out, f->name);
        free(in);
        free(out);
    }
    assert_null(kd_gguf_format(KD_GT_Q8_K));
    assert_null(kd_gguf_format(36));
}

static void grids(void **state)
{
    static const struct {
        int type, rows, values;
        const char *hash;
    } golden[] = {
        {KD_GT_IQ1_S, 2048, 8, "07540ffc1aeaf6ad"},  {KD_GT_IQ2_XXS, 256, 8, "05826b5d3e472a3a"},
        {KD_GT_IQ2_XS, 512, 8, "06e47aaca60b4dc1"},  {KD_GT_IQ2_S, 1024, 8, "e1aa1473412b0552"},
        {KD_GT_IQ3_XXS, 256, 4, "46e35f5a997efdee"}, {KD_GT_IQ3_S, 512, 4, "bd1af4945a1717c6"},
    };
    static int8_t all[2048 * 8];
    int8_t none[8];
    (void)state;
    for (size_t g = 0; g < sizeof golden / sizeof *golden; g++) {
        for (int i = 0; i < golden[g].rows; i++)
            assert_int_equal(kd_gguf_grid(golden[g].type, i, all + i * golden[g].values),
                             golden[g].values);
        assert_int_equal(kd_gguf_grid(golden[g].type, golden[g].rows, none), 0);
        expect_hash(all, (size_t)(golden[g].rows * golden[g].values), golden[g].hash, "grid");
    }
}

/* Values of many sizes: bits of the generator as a float between 2^-20 and 2^12, now and then 0, -0
 * or one just under a power of two. */
static void fill(float *x, int64_t n)
{
    uint32_t u = 0x2545f491u;
    for (int64_t i = 0; i < n; i++) {
        u = u * 1664525u + 1013904223u;
        uint32_t e = 107u + (u >> 27);
        if (i / 512 % 2)
            e = 120u + (u >> 30); /* blocks of like sizes too */
        uint32_t bits = (u << 31) | e << 23 | (u >> 4 & 0x7fffffu);
        if (u >> 9 < 40000u)
            bits = u << 31;
        else if (u >> 9 < 120000u)
            bits |= 0x7ffff0u;
        memcpy(&x[i], &bits, sizeof bits);
    }
}

static void encoders(void **state)
{
    enum { N = 1 << 16 };
    /* sha256/16 of what gguf.quants gives for fill(); Q1_0, which that package does not write, of
     * a program that follows the reference's text. */
    static const struct {
        int type;
        const char *hash;
    } golden[] = {{KD_GT_BF16, "c41c151f4dcc5df4"},
                  {KD_GT_Q8_0, "a82106c73726b60e"},
                  {KD_GT_MXFP4, "9a7d65c80a9f5c7a"},
                  {KD_GT_Q1_0, "ec362326cc3abff3"}};
    float *x = malloc(N * sizeof *x);
    uint8_t *out = malloc(N * 4);
    (void)state;
    fill(x, N);
    expect_hash(x, N * sizeof *x, "f10b21c392373d3a", "values");
    for (size_t g = 0; g < sizeof golden / sizeof *golden; g++) {
        const struct kd_gguf_type_info *t = kd_gguf_type_info(golden[g].type);
        struct kd_gguf_encoded stats = {0};
        assert_int_equal(kd_gguf_encode(golden[g].type, x, N, out, &stats, &err), 0);
        expect_hash(out, (size_t)(N / t->elems * t->bytes), golden[g].hash, t->name);
        assert_int_equal(stats.zero_scale, 0);
    }
    free(x);
    free(out);
}

/* The near side of a power of two, where the float logarithm is already the next whole number. */
static void mxfp4_exponents(void **state)
{
    static const struct {
        uint32_t bits;
        int e;
    } golden[] = {{0x3f800000u, 125}, {0x3fffffffu, 125}, {0x43ffffffu, 134}, {0x43fffffdu, 134},
                  {0x43fffff0u, 133}, {0x5effffffu, 188}, {0x5effffe8u, 187}, {0x5effffd0u, 187},
                  {0x3effffffu, 123}, {0x00000001u, 0},   {0x01000000u, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        float x[32] = {kd_bits_f32(golden[i].bits)};
        uint8_t out[17];
        assert_int_equal(kd_gguf_encode(KD_GT_MXFP4, x, 32, out, NULL, &err), 0);
        if (out[0] != golden[i].e)
            fail_msg("0x%08x: %d, not %d", golden[i].bits, out[0], golden[i].e);
    }
}

static void one_bit_ramp(void **state)
{
    float x[128];
    uint8_t out[18];
    (void)state;
    for (int i = 0; i < 128; i++)
        x[i] = (float)(i - 64) / 64;
    assert_int_equal(kd_gguf_encode(KD_GT_Q1_0, x, 128, out, NULL, &err), 0);
    assert_int_equal(kd_block_u16(out), 0x3800);
    for (int i = 0; i < 16; i++)
        assert_int_equal(out[2 + i], i < 8 ? 0 : 0xff);
}

static void refused(void **state)
{
    float x[256] = {0};
    uint8_t out[1024];
    static const int types[] = {KD_GT_BF16, KD_GT_Q8_0, KD_GT_Q1_0, KD_GT_MXFP4};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        x[130] = NAN;
        assert_int_equal(kd_gguf_encode(types[i], x, 256, out, NULL, &err), -1);
        assert_string_equal(err.msg, "value 130 is not finite");
        x[130] = -INFINITY;
        assert_int_equal(kd_gguf_encode(types[i], x, 256, out, NULL, &err), -1);
    }
    x[130] = 1e38f;
    assert_int_equal(kd_gguf_encode(KD_GT_Q1_0, x, 256, out, NULL, &err), -1);
    assert_non_null(strstr(err.msg, "from 128 on is over 65504"));
    assert_int_equal(kd_gguf_encode(KD_GT_Q8_0, x, 256, out, NULL, &err), -1);
    assert_int_equal(kd_gguf_encode(KD_GT_MXFP4, x, 256, out, NULL, &err), 0);
    assert_int_equal(kd_gguf_encode(KD_GT_Q4_K, x, 256, out, NULL, &err), -1);
    assert_string_equal(err.msg, "Q4_K cannot be written here");
    assert_int_equal(kd_gguf_encode(KD_GT_Q8_0, x, 33, out, NULL, &err), -1);
    /* Values whose scale is under half of the smallest half are all lost, and that is counted. */
    struct kd_gguf_encoded stats = {0};
    x[130] = 1e-12f;
    assert_int_equal(kd_gguf_encode(KD_GT_Q8_0, x, 256, out, &stats, &err), 0);
    assert_int_equal(stats.blocks * 10 + stats.zero_scale, 81);
    x[130] = 1e-44f;
    assert_int_equal(kd_gguf_encode(KD_GT_Q8_0, x, 256, out, &stats, &err), 0);
}

static void repacked(void **state)
{
    uint8_t pairs[16], block[17];
    float out[32];
    (void)state;
    for (unsigned i = 0; i < 16; i++)
        pairs[i] = (uint8_t)(37u * i + 11u);
    for (unsigned e = 0; e < 255; e += 17) {
        uint8_t scale = (uint8_t)e;
        kd_gguf_mxfp4_from_pairs(pairs, scale, block);
        kd_gguf_format(KD_GT_MXFP4)->decode(block, 1, out);
        for (int64_t i = 0; i < 32; i++)
            assert_true(out[i] == kd_mxfp4_f32(pairs, &scale, i));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoders),     cmocka_unit_test(grids),
        cmocka_unit_test(encoders),     cmocka_unit_test(mxfp4_exponents),
        cmocka_unit_test(one_bit_ramp), cmocka_unit_test(refused),
        cmocka_unit_test(repacked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
