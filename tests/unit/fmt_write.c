/* fmt/st_write and fmt/exl3_file: the size is known beforehand to the byte, what is written reads
 * back, and EXL3 groups of the wrong shape are refused. */
#include "fmt/exl3_file.h"
#include "fmt/st.h"
#include "unit/fmt_util.h"

static struct kd_err err;

static void round_trip(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "b.\"quoted\"\\", "\xc3\xa9", "zero", "scalar", "f4"};
    static const int64_t shapes[][2] = {{3, 5}, {2, 1}, {1, 1}, {0, 7}, {0, 0}, {4, 2}};
    static const char *const dtypes[] = {"U8", "F32", "BF16", "I64", "I32", "F4"};
    static const int ranks[] = {2, 2, 1, 2, 0, 2};
    for (int count = 0; count <= 6; count++) {
        struct kd_st_plan p;
        struct kd_st_writer w;
        uint8_t data[64];
        for (int i = 0; i < 64; i++)
            data[i] = (uint8_t)(i * 7);
        kd_st_plan_init(&p);
        for (int i = 0; i < count; i++)
            assert_int_equal(kd_st_plan_add(&p, names[i], dtypes[i], ranks[i], shapes[i], 4, &err),
                             0);
        assert_int_equal(p.count, count);
        assert_int_equal(kd_st_open(&w, fmt_path("w.safetensors"), &p, &err), 0);
        for (int64_t at = 0; at < p.data_bytes; at += 3)
            assert_int_equal(
                kd_st_put(&w, data + at, p.data_bytes - at < 3 ? p.data_bytes - at : 3, &err), 0);
        assert_int_equal(kd_st_put(&w, data, 1, &err), -1);
        assert_int_equal(kd_st_commit(&w, &err), 0);
        assert_int_equal(kd_file_size(fmt_path("w.safetensors"), &err), kd_st_plan_file_bytes(&p));
        struct kd_st st;
        if (kd_st_map(&st, fmt_path("w.safetensors"), &err))
            fail_msg("%s", err.msg);
        assert_int_equal(st.count, count);
        assert_int_equal(st.data_offset % 8, 0);
        if (p.data_bytes)
            assert_memory_equal(st.map.data + st.data_offset, data, (size_t)p.data_bytes);
        for (int i = 0; i < count; i++) {
            const struct kd_tensor *t = kd_st_find(&st, names[i]);
            assert_non_null(t);
            assert_string_equal(t->dtype_name, dtypes[i]);
            assert_int_equal(t->rank, ranks[i]);
            for (int d = 0; d < ranks[i]; d++)
                assert_int_equal(t->shape[d], shapes[i][d]);
        }
        kd_st_release(&st);
        kd_st_plan_release(&p);
    }
}

static void refuses(void **state)
{
    (void)state;
    struct kd_st_plan p;
    struct kd_st_writer w;
    int64_t two = 2, huge[2] = {INT64_MAX, 2}, many[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    kd_st_plan_init(&p);
    assert_int_equal(kd_st_plan_add(&p, "a", "Q8", 1, &two, 0, &err), -1);
    assert_int_equal(kd_st_plan_add(&p, "", "U8", 1, &two, 0, &err), -1);
    assert_int_equal(kd_st_plan_add(&p, "a\n", "U8", 1, &two, 0, &err), -1);
    assert_int_equal(kd_st_plan_add(&p, "a", "U8", 2, huge, 0, &err), -1);
    assert_int_equal(kd_st_plan_add(&p, "a", "U8", 9, many, 0, &err), -1);
    assert_int_equal(kd_st_plan_add(&p, "a", "U8", -1, many, 0, &err), -1);
    assert_int_equal(kd_st_plan_add(&p, "a", "F4", 1, &two, 9, &err), -1);
    assert_int_equal(p.count, 0);
    assert_int_equal(kd_st_plan_add(&p, "a", "U8", 1, &two, 0, &err), 0);
    /* Fewer bytes than planned: no file appears. */
    assert_int_equal(kd_st_open(&w, fmt_path("w.safetensors"), &p, &err), 0);
    assert_int_equal(kd_st_put(&w, "x", 1, &err), 0);
    assert_int_equal(kd_st_commit(&w, &err), -1);
    assert_non_null(strstr(err.msg, "1 of 2 planned bytes"));
    assert_false(kd_file_exists(fmt_path("w.safetensors")));
    assert_int_equal(kd_st_open(&w, fmt_path("no/w.safetensors"), &p, &err), -1);
    kd_st_abort(&w);
    kd_st_plan_release(&p);
}

enum { K = 256, N = 128, CODES = K / 16 * (N / 16) };
static uint8_t codes[CODES * 512];
static uint16_t suh[K], svh[N];

static void fill(void)
{
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)(i * 31 + i / 256);
    for (int i = 0; i < K; i++)
        suh[i] = (uint16_t)(i * 3);
    for (int i = 0; i < N; i++)
        svh[i] = (uint16_t)(i * 5);
}

/* Every rate and codebook that can be stored comes back as it was, at the predicted size. */
static void exl3_round_trip(void **state)
{
    (void)state;
    fill();
    fmt_text("config.json", "{}");
    static const unsigned rates[] = {16, 24, 32, 33, 37, 48, 56, 63, 64, 80, 127, 128};
    for (size_t r = 0; r < sizeof rates / sizeof *rates; r++)
        for (int cb = KD_CB_3INST; cb <= KD_CB_MUL1; cb++) {
            struct kd_st_plan p;
            struct kd_st_writer w;
            struct kd_ckpt *ck;
            struct kd_exl3_tensor x = {.k = K, .n = N, .codes = codes, .suh = suh, .svh = svh}, y;
            bool found;
            x.rate = kd_rate_from16(rates[r]);
            x.cb = (enum kd_codebook)cb;
            kd_st_plan_init(&p);
            assert_int_equal(kd_exl3_plan(&p, "m.w1", K, N, x.rate, x.cb, &err), 0);
            assert_int_equal(p.data_bytes, kd_exl3_bytes(K, N, x.rate, x.cb));
            assert_int_equal(kd_st_open(&w, fmt_path("model.safetensors"), &p, &err), 0);
            assert_int_equal(kd_exl3_put(&w, &x, &err), 0);
            assert_int_equal(kd_st_commit(&w, &err), 0);
            assert_int_equal(kd_ckpt_open(&ck, fmt_dir, false, &err), 0);
            if (kd_exl3_find(ck, "m.w1", &y, &found, &err))
                fail_msg("%s", err.msg);
            assert_true(found);
            assert_int_equal(y.k, K);
            assert_int_equal(y.n, N);
            assert_int_equal(kd_rate_to16(y.rate), rates[r]);
            assert_int_equal(y.rate.mask, x.rate.mask);
            assert_int_equal(y.cb, cb);
            assert_int_equal(y.codes_bytes, CODES * 2 * (int)rates[r]);
            assert_int_equal(y.bytes, p.data_bytes);
            assert_memory_equal(y.codes, codes, (size_t)y.codes_bytes);
            assert_memory_equal(y.suh, suh, sizeof suh);
            assert_memory_equal(y.svh, svh, sizeof svh);
            /* Only whole rates bear the name that other loaders know. */
            assert_true((kd_ckpt_find(ck, "m.w1.trellis") != NULL) == (rates[r] % 16 == 0));
            assert_int_equal(kd_exl3_find(ck, "m.w2", &y, &found, &err), 0);
            assert_false(found);
            kd_ckpt_close(ck);
            kd_st_plan_release(&p);
        }
}

/* One tensor of a group: dtype, rank, shape, and the scalar's value. */
struct part {
    const char *name, *dtype;
    int rank;
    int64_t shape[3];
    uint32_t value;
};

static int find(const struct part *parts, struct kd_exl3_tensor *x)
{
    struct kd_st_plan p;
    struct kd_st_writer w;
    struct kd_ckpt *ck;
    bool found;
    kd_st_plan_init(&p);
    for (const struct part *t = parts; t->name; t++)
        assert_int_equal(kd_st_plan_add(&p, t->name, t->dtype, t->rank, t->shape, 0, &err), 0);
    assert_int_equal(kd_st_open(&w, fmt_path("model.safetensors"), &p, &err), 0);
    for (const struct part *t = parts; t->name; t++) {
        struct kd_st_plan one;
        kd_st_plan_init(&one);
        assert_int_equal(kd_st_plan_add(&one, t->name, t->dtype, t->rank, t->shape, 0, &err), 0);
        assert_int_equal(kd_st_put(&w, one.data_bytes == 4 ? (const void *)&t->value : codes,
                                   one.data_bytes, &err),
                         0);
        kd_st_plan_release(&one);
    }
    assert_int_equal(kd_st_commit(&w, &err), 0);
    kd_st_plan_release(&p);
    assert_int_equal(kd_ckpt_open(&ck, fmt_dir, false, &err), 0);
    int rc = kd_exl3_find(ck, "x", x, &found, &err);
    assert_true(found);
    kd_ckpt_close(ck);
    return rc;
}

#define TRELLIS(w)                                                                                 \
    {                                                                                              \
        "x.trellis", "I16", 3, {16, 8, w}, 0                                                       \
    }
#define KTRELLIS(w)                                                                                \
    {                                                                                              \
        "x.ktrellis", "I16", 3, {16, 8, w}, 0                                                      \
    }
#define SUH                                                                                        \
    {                                                                                              \
        "x.suh", "F16", 1, {256}, 0                                                                \
    }
#define SVH                                                                                        \
    {                                                                                              \
        "x.svh", "F16", 1, {128}, 0                                                                \
    }
#define MUL1                                                                                       \
    {                                                                                              \
        "x.mul1", "I32", 0, {0}, 0x83DCD12Du                                                       \
    }
#define MCG                                                                                        \
    {                                                                                              \
        "x.mcg", "I32", 0, {0}, 0xCBAC1FEDu                                                        \
    }
#define MASK(m)                                                                                    \
    {                                                                                              \
        "x.kmask", "I32", 0, {0}, m                                                                \
    }

static void exl3_hostile(void **state)
{
    (void)state;
    fill();
    fmt_text("config.json", "{}");
    static const struct {
        const char *reason;
        struct part parts[7];
    } cases[] = {
        {"'.suh' is missing", {TRELLIS(32), SVH}},
        {"'.svh' is missing", {TRELLIS(32), SUH}},
        {"'.suh' is not F16 [256]", {TRELLIS(32), {"x.suh", "F16", 1, {128}, 0}, SVH}},
        {"'.suh' is not F16", {TRELLIS(32), {"x.suh", "BF16", 1, {256}, 0}, SVH}},
        {"'.svh' is not F16", {TRELLIS(32), SUH, {"x.svh", "F16", 2, {128, 1}, 0}}},
        {"both '.mcg' and '.mul1'", {TRELLIS(32), SUH, SVH, MCG, MUL1}},
        {"codebook that is not known", {TRELLIS(32), SUH, SVH, {"x.mul1", "I32", 0, {0}, 7}}},
        {"not one I32", {TRELLIS(32), SUH, SVH, {"x.mul1", "I64", 0, {0}, 7}}},
        {"outside 1 to 8", {TRELLIS(0), SUH, SVH}},
        {"outside 1 to 8", {TRELLIS(8), SUH, SVH}},
        {"outside 1 to 8", {TRELLIS(144), SUH, SVH}},
        {"neither whole nor half", {TRELLIS(36), SUH, SVH, MUL1}},
        {"another codebook than mul1", {TRELLIS(40), SUH, SVH, MCG}},
        {"'.kmask' beside '.trellis'", {TRELLIS(32), SUH, SVH, MUL1, MASK(0)}},
        {"'.ktrellis' without '.kmask'", {KTRELLIS(37), SUH, SVH, MUL1}},
        {"'.kmask' is 0x1F", {KTRELLIS(37), SUH, SVH, MUL1, MASK(0x1F)}},
        {"'.kmask' is 0x0", {KTRELLIS(32), SUH, SVH, MUL1, MASK(0)}},
        {"both '.trellis' and '.ktrellis'", {TRELLIS(32), KTRELLIS(37), SUH, SVH, MUL1, MASK(0)}},
        {"not I16 of rank 3", {{"x.trellis", "U16", 3, {16, 8, 32}, 0}, SUH, SVH}},
        {"not I16 of rank 3", {{"x.trellis", "I16", 2, {16, 256}, 0}, SUH, SVH}},
        {"128-blocks", {{"x.trellis", "I16", 3, {16, 4, 32}, 0}, SUH, SVH}},
        {"128-blocks", {{"x.trellis", "I16", 3, {0, 8, 32}, 0}, SUH, SVH}},
        {"128-blocks", {{"x.trellis", "I16", 3, {8, 576460752303423488, 0}, 0}, SUH, SVH}},
        {"'.su' is there", {TRELLIS(32), SUH, SVH, {"x.su", "I16", 1, {16}, 0}}},
        {"'.bias' is there", {TRELLIS(32), SUH, SVH, {"x.bias", "F16", 1, {128}, 0}}},
        {"'.scale' is there", {TRELLIS(32), SUH, SVH, {"x.scale", "F32", 0, {0}, 0}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kd_exl3_tensor x;
        if (!find(cases[i].parts, &x))
            fail_msg("case %zu was taken: %s", i, cases[i].reason);
        if (!strstr(err.msg, cases[i].reason) || !strstr(err.msg, "EXL3 tensor 'x'"))
            fail_msg("'%s' does not say '%s'", err.msg, cases[i].reason);
    }
    /* Half rates as newer writers store them, and a scalar of rank 1. */
    static const struct part half[] = {
        TRELLIS(40), SUH, SVH, {"x.mul1", "I32", 1, {1}, 0x83DCD12Du}, {NULL}};
    struct kd_exl3_tensor x;
    if (find(half, &x))
        fail_msg("%s", err.msg);
    assert_int_equal(x.rate.base, 2);
    assert_int_equal(x.rate.mask, 0xAAAA);
}

static void exl3_plan_bounds(void **state)
{
    (void)state;
    struct kd_st_plan p;
    struct kd_rate two = {2, 0};
    kd_st_plan_init(&p);
    assert_int_equal(kd_exl3_plan(&p, "x", 100, 128, two, KD_CB_MUL1, &err), -1);
    assert_int_equal(kd_exl3_plan(&p, "x", 128, 0, two, KD_CB_MUL1, &err), -1);
    assert_int_equal(kd_exl3_plan(&p, "x", 128, 128, (struct kd_rate){0, 0}, KD_CB_MUL1, &err), -1);
    assert_int_equal(kd_exl3_plan(&p, "x", 128, 128, (struct kd_rate){9, 0}, KD_CB_MUL1, &err), -1);
    assert_int_equal(kd_exl3_plan(&p, "x", 128, 128, (struct kd_rate){2, 1}, KD_CB_MUL1, &err), -1);
    assert_int_equal(p.count, 0);
    kd_st_plan_release(&p);
    assert_int_equal(kd_exl3_pad(1), 128);
    assert_int_equal(kd_exl3_pad(128), 128);
    assert_int_equal(kd_exl3_pad(129), 256);
    /* Real bits at K=2: 2.25 on 128 x 128, 2.0097 on K3's experts (exl3.md, Decision 1). */
    assert_int_equal(kd_exl3_bytes(128, 128, two, KD_CB_MUL1), 128 * 128 / 4 + 4 * 128 + 4);
    double real = 8.0 *
                  (double)(2 * kd_exl3_bytes(3584, 3072, two, KD_CB_MUL1) +
                           kd_exl3_bytes(3072, 3584, two, KD_CB_MUL1)) /
                  (3.0 * 3584 * 3072);
    assert_true(real > 2.00965 && real < 2.00975);
}

#define IN_DIR(f) cmocka_unit_test_setup_teardown(f, fmt_setup, fmt_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(round_trip),
        IN_DIR(refuses),
        IN_DIR(exl3_round_trip),
        IN_DIR(exl3_hostile),
        cmocka_unit_test(exl3_plan_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
