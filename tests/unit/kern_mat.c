/* Stored matrices: rows, slices, products over pools, a released expert's first values. */
#include "unit/kern_util.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "kern/finite.h"

#include <math.h>

enum { ROWS = 200, COLS = 288, T = 100, LD = COLS + 32 };

struct store {
    float *f32;
    uint16_t *bf16;
    uint8_t *packed, *scale;
    struct kd_mat mat[3]; /* F32, BF16, MXFP4 */
};

static struct store store_new(void)
{
    struct store s = {.f32 = floats(1, ROWS * LD),
                      .bf16 = malloc(ROWS * LD * 2),
                      .packed = malloc(ROWS * LD / 2),
                      .scale = malloc(ROWS * LD / 32)};
    assert_true(s.bf16 && s.packed && s.scale);
    for (int64_t i = 0; i < ROWS * LD; i++)
        s.bf16[i] = kd_f32_bf16(s.f32[i]);
    for (int64_t i = 0; i < ROWS * LD / 2; i++)
        s.packed[i] = (uint8_t)kd_rand_u64(2, (uint64_t)i);
    for (int64_t i = 0; i < ROWS * LD / 32; i++)
        s.scale[i] = (uint8_t)(118 + kd_rand_u64(3, (uint64_t)i) % 6);
    s.mat[0] = (struct kd_mat){.type = KD_MAT_F32, .data = s.f32, .ld = LD};
    s.mat[1] = (struct kd_mat){.type = KD_MAT_BF16, .data = s.bf16, .ld = LD};
    s.mat[2] = (struct kd_mat){.type = KD_MAT_MXFP4,
                               .data = s.packed,
                               .ld = LD / 2,
                               .scale = s.scale,
                               .ld_scale = LD / 32};
    for (int i = 0; i < 3; i++) {
        s.mat[i].rows = ROWS;
        s.mat[i].cols = COLS;
    }
    return s;
}

static void store_free(struct store *s)
{
    floats_free(s->f32);
    free(s->bf16);
    free(s->packed);
    free(s->scale);
}

static struct kd_run alone(void)
{
    return (struct kd_run){.kern = &isa};
}

static void test_rows_and_slices(void **state)
{
    (void)state;
    struct store s = store_new();
    struct kd_run run = alone();
    struct kd_err err;
    float *all = floats(0, ROWS * COLS), *part = floats(0, ROWS * COLS), *x = floats(4, COLS);
    for (int m = 0; m < 3; m++) {
        assert_int_equal(kd_mat_dequant(&run, &s.mat[m], all, COLS, &err), 0);
        float line[COLS], a[ROWS], b[ROWS];
        for (int64_t r = 0; r < ROWS; r += 37) {
            assert_int_equal(kd_mat_row(&run, &s.mat[m], r, line, &err), 0);
            same(line, all + r * COLS, COLS, "row");
        }
        if (m == 0)
            same(all + COLS, s.f32 + LD, COLS, "plain floats");
        if (m == 1)
            assert_true(all[3 * COLS + 5] == kd_bf16_f32(s.bf16[3 * LD + 5]));
        static const int64_t cuts[][4] = {
            {0, ROWS, 0, COLS}, {3, 150, 32, 256}, {199, 200, 256, COLS}, {10, 10, 0, 32}};
        for (size_t i = 0; i < 4; i++) {
            const int64_t *c = cuts[i];
            struct kd_mat w;
            assert_int_equal(kd_mat_slice(&s.mat[m], c[0], c[1], c[2], c[3], &w, &err), 0);
            assert_int_equal(w.rows, c[1] - c[0]);
            assert_int_equal(w.cols, c[3] - c[2]);
            assert_int_equal(kd_mat_dequant(&run, &w, part, COLS, &err), 0);
            for (int64_t r = 0; r < w.rows; r++)
                same(part + r * COLS, all + (c[0] + r) * COLS + c[2], w.cols, "slice");
            /* The product with a slice is that with its floats. */
            struct kd_mat f = {
                .type = KD_MAT_F32, .rows = w.rows, .cols = w.cols, .data = part, .ld = COLS};
            assert_int_equal(kd_mat_mul(&run, &w, x, COLS, 1, a, ROWS, &err), 0);
            assert_int_equal(kd_mat_mul(&run, &f, x, COLS, 1, b, ROWS, &err), 0);
            same(a, b, w.rows, "product of a slice");
        }
        struct kd_mat w;
        assert_int_equal(kd_mat_slice(&s.mat[m], 0, ROWS + 1, 0, COLS, &w, &err), -1);
        assert_int_equal(kd_mat_slice(&s.mat[m], 5, 4, 0, COLS, &w, &err), -1);
        assert_int_equal(kd_mat_slice(&s.mat[m], 0, 4, 16, COLS, &w, &err), m == 2 ? -1 : 0);
    }
    assert_int_equal(kd_mat_bytes(&s.mat[0]), ROWS * COLS * 4);
    assert_int_equal(kd_mat_bytes(&s.mat[1]), ROWS * COLS * 2);
    assert_int_equal(kd_mat_bytes(&s.mat[2]), ROWS * COLS / 32 * 17);
    floats_free(all);
    floats_free(part);
    floats_free(x);
    store_free(&s);
}

/* The same bits with 1, 2 and 5 threads, many matrices at once or one by one, and by the reference.
 */
static void test_pools(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 5};
    struct store s = store_new();
    struct kd_err err;
    float *x = floats(7, T * COLS), *want = floats(0, T * ROWS), *y[3];
    for (int m = 0; m < 3; m++)
        y[m] = floats(0, T * ROWS);
    for (int i = 0; i < 3; i++) {
        struct kd_run run = alone();
        assert_int_equal(kd_pool_open(&run.pool, threads[i], &err), 0);
        static const int64_t ts[3] = {1, 7, T};
        struct kd_mat_job jobs[70];
        for (int m = 0; m < 3; m++)
            jobs[m] = (struct kd_mat_job){&s.mat[m], x, COLS, ts[(m + i) % 3], y[m], ROWS};
        assert_int_equal(kd_mat_mul_many(&run, jobs, 3, &err), 0);
        for (int m = 0; m < 3; m++) {
            const struct kd_run by_ref = {.kern = &ref};
            int64_t n = jobs[m].T;
            assert_int_equal(kd_mat_mul(&by_ref, &s.mat[m], x, COLS, n, want, ROWS, &err), 0);
            same(y[m], want, n * ROWS, "many");
            memset(y[m], 0, (size_t)(n * ROWS) * sizeof *want);
            assert_int_equal(kd_mat_mul(&run, &s.mat[m], x, COLS, n, y[m], ROWS, &err), 0);
            same(y[m], want, n * ROWS, "one");
        }
        /* More matrices than the short list holds: row j of 70 gets token j. */
        struct kd_mat rows[70];
        for (int64_t j = 0; j < 70; j++) {
            assert_int_equal(kd_mat_slice(&s.mat[1], j, j + 1, 0, COLS, &rows[j], &err), 0);
            jobs[j] = (struct kd_mat_job){&rows[j], x + j * COLS, COLS, 1, y[0] + j, 1};
        }
        assert_int_equal(kd_mat_mul_many(&run, jobs, 70, &err), 0);
        for (int64_t j = 0; j < 70; j++)
            ref.mm_bf16(s.bf16 + j * LD, LD, 1, COLS, x + j * COLS, COLS, 1, want + j, 1);
        same(y[0], want, 70, "seventy");
        kd_pool_close(run.pool);
    }
    for (int m = 0; m < 3; m++)
        floats_free(y[m]);
    floats_free(x);
    floats_free(want);
    store_free(&s);
}

/* data_offsets of the one tensor whose name ends so. */
static const uint8_t *tensor(const struct kd_map *map, const struct kd_json *head,
                             int64_t head_bytes, const char *end)
{
    void *iter = NULL;
    const char *key;
    struct kd_json *v;
    while (kd_json_next(head, &iter, &key, &v)) {
        size_t n = strlen(key), m = strlen(end);
        if (n < m || strcmp(key + n - m, end))
            continue;
        return map->data + 8 + head_bytes +
               kd_json_int_value(kd_json_at(kd_json_get(v, "data_offsets"), 0));
    }
    fail_msg("no %s", end);
    return NULL;
}

static void test_released_expert(void **state)
{
    (void)state;
    const char *dir = getenv("KONDENSE_TEST_DATA");
    if (!dir)
        skip();
    char path[4096];
    struct kd_map map;
    struct kd_err err;
    struct kd_json *head;
    int64_t bytes;
    snprintf(path, sizeof path, "%s/vectors/k3_l1_e0_w1_rows64.safetensors", dir);
    assert_int_equal(kd_file_map(&map, path, &err), 0);
    memcpy(&bytes, map.data, 8);
    assert_int_equal(kd_json_parse(&head, (const char *)map.data + 8, (size_t)bytes, path, &err),
                     0);
    struct kd_mat w = {.type = KD_MAT_MXFP4,
                       .rows = 64,
                       .cols = 3584,
                       .ld = 1792,
                       .ld_scale = 112,
                       .data = tensor(&map, head, bytes, "weight_packed"),
                       .scale = tensor(&map, head, bytes, "weight_scale")};
    static const float want[16] = {0.0625f,     0.0078125f,  -0.0078125f, -0.0234375f,
                                   -0.0625f,    -0.03125f,   0.0234375f,  0.015625f,
                                   0.046875f,   -0.0f,       -0.0234375f, -0.015625f,
                                   -0.0234375f, -0.0078125f, 0.015625f,   -0.015625f};
    float row[3584], y[64];
    struct kd_run run = alone();
    assert_int_equal(kd_mat_row(&run, &w, 0, row, &err), 0);
    same(row, want, 16, "released values");
    /* The kernels see the same values: unit vectors pick them out. */
    for (int64_t k = 0; k < 3584; k += k < 64 ? 1 : 333) {
        float x[3584] = {0};
        x[k] = 1;
        assert_int_equal(kd_mat_mul(&run, &w, x, 3584, 1, y, 64, &err), 0);
        assert_true(y[0] == row[k]);
    }
    kd_json_free(head);
    kd_map_release(&map);
}

/* EXL3 with random codes: a row equals that of the whole, a slice that part of it, and the product
 * comes close to the product with the floats. */
static void test_exl3(void **state)
{
    (void)state;
    enum { N = 300, K = 200, NP = 384, KP = 256, TOKENS = 3 };
    struct kd_run run = alone();
    struct kd_err err;
    struct kd_mat w = {.type = KD_MAT_EXL3,
                       .rows = N,
                       .cols = K,
                       .rows_padded = NP,
                       .cols_padded = KP,
                       .ld = NP / 16,
                       .rate = kd_rate_from16(32),
                       .cb = KD_CB_MUL1};
    int64_t bytes = NP / 16 * (KP / 16) * kd_rate_tile_bytes(w.rate);
    uint8_t *codes = malloc((size_t)bytes);
    uint16_t suh[KP], svh[NP];
    assert_non_null(codes);
    for (int64_t i = 0; i < bytes; i++)
        codes[i] = (uint8_t)kd_rand_u64(1, (uint64_t)i);
    for (int64_t i = 0; i < KP; i++)
        suh[i] = kd_f32_f16(value(2, i) < 0 ? -1.0f : 1.0f);
    for (int64_t i = 0; i < NP; i++)
        svh[i] = kd_f32_f16(value(3, i));
    w.data = codes;
    w.suh = suh;
    w.svh = svh;
    assert_int_equal(kd_mat_bytes(&w), bytes + 2 * (NP + KP));
    float *all = floats(0, N * K), *part = floats(0, N * K), line[K];
    assert_int_equal(kd_mat_dequant(&run, &w, all, K, &err), 0);
    for (int64_t r = 0; r < N; r += 71) {
        assert_int_equal(kd_mat_row(&run, &w, r, line, &err), 0);
        same(line, all + r * K, K, "row");
    }
    struct kd_mat s;
    assert_int_equal(kd_mat_slice(&w, 128, N, 128, K, &s, &err), 0);
    assert_int_equal(kd_mat_dequant(&run, &s, part, K, &err), 0);
    for (int64_t r = 0; r < s.rows; r++)
        same(part + r * K, all + (128 + r) * K + 128, K - 128, "slice");
    assert_int_equal(kd_mat_slice(&w, 64, N, 0, K, &s, &err), -1);

    float *x = floats(5, TOKENS * K), *y = floats(0, TOKENS * N);
    assert_int_equal(kd_mat_mul(&run, &w, x, K, TOKENS, y, N, &err), 0);
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t r = 0; r < N; r++) {
            double sum = 0;
            for (int64_t k = 0; k < K; k++)
                sum += (double)all[r * K + k] * (double)x[t * K + k];
            assert_true(fabs(sum - (double)y[t * N + r]) < 1e-4);
        }
    struct kd_mat_job jobs[2] = {{&w, x, K, TOKENS, y, N}, {&w, x, K, 1, part, N}};
    assert_int_equal(kd_mat_mul_many(&run, jobs, 2, &err), 0);
    same(part, y, N, "many");
    floats_free(x);
    floats_free(y);
    floats_free(all);
    floats_free(part);
    free(codes);
}

/* One bad value anywhere, in long rows and in many; what lies between rows does not count. */
static void test_finite(void **state)
{
    enum { WIDE = 70000, GAP = 3, MANY = 5000, NARROW = 37 };
    const float bad[] = {INFINITY, -INFINITY, NAN};
    struct kd_run run = {0};
    struct kd_err err;
    float *x;
    (void)state;
    assert_int_equal(kd_pool_open(&run.pool, 3, &err), 0);
    assert_int_equal(kd_mem_new(&x, 3 * WIDE, sizeof *x, "rows", &err), 0);
    for (int64_t i = 0; i < 3 * WIDE; i++)
        x[i] = i % (NARROW + GAP) < NARROW ? 3.4e38f : NAN;
    assert_true(kd_finite_rows(&run, x, NARROW + GAP, NARROW, MANY));
    for (int64_t i = 0; i < 3 * WIDE; i++)
        x[i] = i % 2 ? -3.4e38f : 1e-45f;
    assert_true(kd_finite_rows(&run, x, WIDE, WIDE, 3));
    for (int64_t i = 0; i < 30; i++) {
        const int64_t at = (int64_t)(kd_rand_u64(5, (uint64_t)i) % (3 * WIDE));
        const float was = x[at];
        x[at] = bad[i % 3];
        assert_false(kd_finite_rows(&run, x, WIDE, WIDE, 3));
        x[at] = was;
    }
    assert_true(kd_finite_rows(&run, x, WIDE, WIDE, 0));
    kd_mem_free(x);
    kd_pool_close(run.pool);
}

int main(void)
{
    int rc = kern_open();
    if (rc)
        return rc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_and_slices), cmocka_unit_test(test_pools),
        cmocka_unit_test(test_released_expert), cmocka_unit_test(test_exl3),
        cmocka_unit_test(test_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
