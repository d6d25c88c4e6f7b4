/* EXL3 decoding and products: released vectors, and the reference's bits for every rate. */
#include "base/hash.h"
#include "kern/exl3_mul.h"
#include "kern/trellis_scratch.h"
#include "unit/exl3_vectors.h"
#include "unit/kern_util.h"

#include <math.h>

enum { LAYER = 128 };

static void codebooks(void **unused)
{
    struct kd_json *root = vectors_open(), *books = kd_json_get(root, "codebooks");
    (void)unused;

    for (int cb = 0; cb < 3; cb++) {
        const struct kd_json *book = kd_json_get(books, codebook_names[cb]);
        const struct kd_json *entries = kd_json_get(book, "entries");
        const uint16_t *table = kd_codebook_table((enum kd_codebook)cb);
        static uint8_t bytes[2 * 65536];
        char hex[65];
        words_bytes(table, 65536, bytes);
        assert_int_equal(kd_sha256_of(bytes, sizeof bytes, hex, NULL), 0);
        assert_string_equal(hex,
                            kd_json_text(kd_json_get(book, "sha256_of_65536_le_uint16"), NULL));
        assert_int_equal(kd_json_count(entries), 21);
        for (size_t i = 0; i < 21; i++) {
            const struct kd_json *e = kd_json_at(entries, i);
            uint16_t want;
            hex_words(kd_json_get(e, "fp16"), &want, 1);
            assert_int_equal(
                kd_codebook_f16((enum kd_codebook)cb, (unsigned)vectors_int(e, "state")), want);
        }
    }
    kd_json_free(root);
}

static void permutation(void **unused)
{
    struct kd_json *root = vectors_open();
    const struct kd_json *list =
        kd_json_get(kd_json_get(root, "tile_permutation"), "row_col_of_position");
    (void)unused;

    assert_int_equal(kd_json_count(list), 256);
    for (unsigned p = 0; p < 256; p++) {
        const struct kd_json *at = kd_json_at(list, p);
        assert_int_equal(kd_tile_row(p), kd_json_int_value(kd_json_at(at, 0)));
        assert_int_equal(kd_tile_col(p), kd_json_int_value(kd_json_at(at, 1)));
    }
    kd_json_free(root);
}

static void tiles(void **unused)
{
    struct kd_json *root = vectors_open(), *list = kd_json_get(root, "tile_decode");
    (void)unused;

    for (size_t i = 0; i < kd_json_count(list); i++) {
        const struct kd_json *v = kd_json_at(list, i);
        unsigned K = (unsigned)vectors_int(v, "K");
        struct kd_rate rate = {.base = (uint8_t)K};
        uint16_t words[128];
        uint8_t bytes[256];
        hex_words(kd_json_get(v, "file_words"), words, 16 * K);
        words_bytes(words, 16 * K, bytes);
        for (int cb = 0; cb < 3; cb++) {
            const struct kd_json *rows =
                kd_json_get(kd_json_get(v, "tile_rows_fp16"), codebook_names[cb]);
            float found[256];
            isa.trellis_decode(bytes, rate, (enum kd_codebook)cb, found);
            for (unsigned r = 0; r < 16; r++) {
                uint16_t want[16];
                hex_words(kd_json_at(rows, r), want, 16);
                for (unsigned c = 0; c < 16; c++)
                    assert_true(kd_f32_bits(found[16 * r + c]) == kd_f32_bits(kd_f16_f32(want[c])));
            }
        }
    }
    kd_json_free(root);
}

/* Every state of every codebook, as the reference has it. */
static void every_state(void **unused)
{
    struct kd_rate rate = {.base = 8};
    (void)unused;

    for (int cb = 0; cb < 3; cb++)
        for (unsigned tile = 0; tile < 512; tile++) {
            uint8_t bytes[256];
            float a[256], b[256];
            /* 256 symbols of 8 bits hold 256 windows: first byte h against all others. */
            for (unsigned i = 0; i < 256; i++) {
                unsigned p = tile < 256 ? (i & 1 ? tile : i) : (i & 1 ? i : tile - 256);
                bytes[(i / 4 * 4) + 3 - i % 4] = (uint8_t)p;
            }
            isa.trellis_decode(bytes, rate, (enum kd_codebook)cb, a);
            ref.trellis_decode(bytes, rate, (enum kd_codebook)cb, b);
            same(a, b, 256, "decode");
        }
}

/* 128 x 128, codes by the vectors' generator. */
static void layer_codes(uint8_t *codes)
{
    uint32_t x = 77;
    uint16_t words[64 * 32];

    for (unsigned i = 0; i < 64 * 32; i++)
        words[i] = vectors_word(&x);
    words_bytes(words, 64 * 32, codes);
}

static void layer(void **unused)
{
    struct kd_json *root = vectors_open(), *v = kd_json_get(root, "layer_128x128_K2_mul1");
    static uint8_t codes[64 * 64], halves[2 * LAYER * LAYER];
    uint16_t suh[LAYER], svh[LAYER], x16[LAYER];
    float x[LAYER], y[LAYER], tile[256];
    struct kd_rate rate = {.base = 2};
    struct kd_err err = {0};
    char hex[65];
    (void)unused;

    layer_codes(codes);
    assert_int_equal(kd_sha256_of(codes, sizeof codes, hex, NULL), 0);
    assert_string_equal(hex, kd_json_text(kd_json_get(v, "trellis_sha256_le"), NULL));
    for (unsigned t = 0; t < 64; t++) {
        isa.trellis_decode(codes + 64 * t, rate, KD_CB_MUL1, tile);
        for (unsigned i = 0; i < 256; i++) {
            uint16_t h = kd_f32_f16(tile[i]);
            unsigned at = (t / 8 * 16 + i / 16) * LAYER + t % 8 * 16 + i % 16;
            words_bytes(&h, 1, halves + 2 * at);
        }
    }
    assert_int_equal(kd_sha256_of(halves, sizeof halves, hex, NULL), 0);
    assert_string_equal(hex, kd_json_text(kd_json_get(v, "Wq_fp16_rowmajor_sha256"), NULL));

    hex_words(kd_json_get(v, "suh_fp16"), suh, LAYER);
    hex_words(kd_json_get(v, "svh_fp16"), svh, LAYER);
    hex_words(kd_json_get(v, "x_fp16"), x16, LAYER);
    for (unsigned i = 0; i < LAYER; i++)
        x[i] = kd_f16_f32(x16[i]);
    struct kd_mat w = {.type = KD_MAT_EXL3,
                       .rows = LAYER,
                       .cols = LAYER,
                       .data = codes,
                       .ld = 8,
                       .rows_padded = LAYER,
                       .cols_padded = LAYER,
                       .suh = suh,
                       .svh = svh,
                       .rate = rate,
                       .cb = KD_CB_MUL1};
    struct kd_run run = {.kern = &isa};
    assert_int_equal(kd_mat_mul(&run, &w, x, LAYER, 1, y, LAYER, &err), 0);
    double worst = 0, scale = 0;
    for (unsigned i = 0; i < LAYER; i++) {
        double want = kd_json_num_value(kd_json_at(kd_json_get(v, "y_f64"), i));
        double d = fabs((double)y[i] - want);
        worst = d > worst ? d : worst;
        scale = fabs(want) > scale ? fabs(want) : scale;
    }
    if (!(worst <= 1e-6 * scale))
        fail_msg("largest difference %g of %g", worst, scale);
    kd_json_free(root);
}

static uint8_t *random_codes(uint64_t seed, int64_t bytes)
{
    uint8_t *codes = malloc((size_t)bytes);
    assert_non_null(codes);
    for (int64_t i = 0; i < bytes; i++)
        codes[i] = (uint8_t)kd_rand_u64(seed, (uint64_t)i);
    return codes;
}

/* All rates and codebooks and mul1's byte sums, token counts round the panels' edges, blocks inside
 * a wider matrix. The codes end where their allocation ends, which sanitizers hold to. */
static void products(void **unused)
{
    enum { KT = 19, NT = 3, ROW = 4, T_MAX = 66 };
    static const int64_t ts[] = {1, 2, 3, 4, 5, 64, T_MAX};
    float *x = floats(1, T_MAX * (16 * KT + 3)), *a = floats(2, T_MAX * 16 * NT),
          *b = floats(3, T_MAX * 16 * NT);
    (void)unused;

    for (unsigned n = 16; n <= 128; n += n < 50 ? 1 : 7) {
        struct kd_exl3_block blk = {
            .k_tiles = KT, .n_tiles = NT, .row_tiles = ROW, .rate = kd_rate_from16(n)};
        int64_t bytes = ((KT - 1) * ROW + NT) * (int64_t)kd_rate_tile_bytes(blk.rate);
        uint8_t *codes = random_codes(n, bytes);
        blk.codes = codes;
        for (int cb = 0; cb < 4; cb++) {
            blk.cb = cb < 3 ? (enum kd_codebook)cb : KD_CB_MUL1;
            blk.sums = cb == 3;
            /* The reference once, for all tokens: a token's bits depend on no other. */
            ref.mm_exl3(&blk, x, 16 * KT + 3, n % 5 ? 5 : T_MAX, b, 16 * NT);
            for (size_t i = 0; i < (n % 5 ? 5 : 7); i++) {
                isa.mm_exl3(&blk, x, 16 * KT + 3, ts[i], a, 16 * NT);
                same(a, b, ts[i] * 16 * NT, "mm_exl3");
            }
        }
        free(codes);
    }
    floats_free(x);
    floats_free(a);
    floats_free(b);
}

/* The order that docs/numerics.md states, written out for one output. */
static void written_order(void **unused)
{
    enum { KT = 5 };
    static const unsigned row_of[8] = {0, 1, 8, 9, 2, 3, 10, 11};
    struct kd_exl3_block blk = {
        .k_tiles = KT, .n_tiles = 1, .row_tiles = 1, .rate = {.base = 2}, .cb = KD_CB_MUL1};
    uint8_t *codes = random_codes(7, KT * 64);
    float *x = floats(8, 16 * KT), y[16], chain[8] = {0}, tile[256];
    (void)unused;

    blk.codes = codes;
    isa.mm_exl3(&blk, x, 16 * KT, 1, y, 16);
    for (unsigned k = 0; k < KT; k++) {
        ref.trellis_decode(codes + 64 * k, blk.rate, blk.cb, tile);
        for (unsigned q = 0; q < 8; q++)
            for (unsigned half = 0; half < 2; half++) {
                unsigned r = row_of[q] + 4 * half;
                chain[q] = fmaf(tile[16 * r + 11], x[16 * k + r], chain[q]);
            }
    }
    for (unsigned n = 4; n; n /= 2)
        for (unsigned q = 0; q < n; q++)
            chain[q] += chain[q + n];
    same(&y[11], &chain[0], 1, "written order");
    free(codes);
    floats_free(x);
}

static void int8_products(void **unused)
{
    enum { KT = 40, NT = 2 };
    int8_t q[16 * KT];
    float a[16 * NT], b[16 * NT], c[16 * NT], x[16 * KT];
    (void)unused;

    for (unsigned i = 0; i < 16 * KT; i++) {
        q[i] = (int8_t)((int)(kd_rand_u64(9, i) % 255) - 127);
        x[i] = 0.125f * (float)q[i];
    }
    for (unsigned n = 16; n <= 128; n += 3) {
        struct kd_exl3_block blk = {.k_tiles = KT,
                                    .n_tiles = NT,
                                    .row_tiles = NT,
                                    .rate = kd_rate_from16(n),
                                    .cb = KD_CB_MUL1};
        uint8_t *codes = random_codes(n, KT * NT * (int64_t)kd_rate_tile_bytes(blk.rate));
        blk.codes = codes;
        isa.mv_exl3_int8(&blk, q, 0.125f, a);
        ref.mv_exl3_int8(&blk, q, 0.125f, b);
        same(a, b, 16 * NT, "mv_exl3_int8");
        /* Half a unit in the last place of fp16 (2^-10 at most) a weight, at random. */
        ref.mm_exl3(&blk, x, 16 * KT, 1, c, 16 * NT);
        for (unsigned i = 0; i < 16 * NT; i++)
            assert_true(fabsf(a[i] - c[i]) < 0x1p-10f * 16 * 16 * (float)KT / 4);
        free(codes);
    }
}

/* Outputs whose sums of q * byte sum leave 32 bits. */
static void int8_far(void **unused)
{
    enum { KT = 2100 };
    struct kd_exl3_block blk = {
        .k_tiles = KT, .n_tiles = 1, .row_tiles = 1, .rate = {.base = 2}, .cb = KD_CB_MUL1};
    uint8_t *codes = random_codes(13, KT * 64);
    static int8_t q[16 * KT];
    float a[16], b[16];
    (void)unused;

    memset(q, 127, sizeof q);
    blk.codes = codes;
    isa.mv_exl3_int8(&blk, q, 1.0f, a);
    ref.mv_exl3_int8(&blk, q, 1.0f, b);
    same(a, b, 16, "mv_exl3_int8, far");
    free(codes);
}

/* Long enough that activations are laid out in several pieces, wide enough for two groups of
 * columns. */
static void pieces(void **unused)
{
    enum { KT = 131, NT = 9, ROW = 10 };
    static const unsigned rates[] = {24, 32, 37, 61, 101};
    float *x = floats(11, 16 * KT), a[16 * NT], b[16 * NT];
    int8_t q[16 * KT];
    (void)unused;

    for (unsigned i = 0; i < 16 * KT; i++)
        q[i] = (int8_t)(kd_rand_u64(12, i) % 256);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        struct kd_exl3_block blk = {.k_tiles = KT,
                                    .n_tiles = NT,
                                    .row_tiles = ROW,
                                    .rate = kd_rate_from16(rates[i]),
                                    .cb = KD_CB_MUL1};
        int64_t bytes = ((KT - 1) * ROW + NT) * (int64_t)kd_rate_tile_bytes(blk.rate);
        uint8_t *codes = random_codes(rates[i], bytes);
        blk.codes = codes;
        isa.mm_exl3(&blk, x, 16 * KT, 1, a, 16 * NT);
        ref.mm_exl3(&blk, x, 16 * KT, 1, b, 16 * NT);
        same(a, b, 16 * NT, "mm_exl3, long");
        blk.sums = true;
        isa.mm_exl3(&blk, x, 16 * KT, 1, a, 16 * NT);
        ref.mm_exl3(&blk, x, 16 * KT, 1, b, 16 * NT);
        same(a, b, 16 * NT, "mm_exl3 of byte sums, long");
        isa.mv_exl3_int8(&blk, q, 0.125f, a);
        ref.mv_exl3_int8(&blk, q, 0.125f, b);
        same(a, b, 16 * NT, "mv_exl3_int8, long");
        free(codes);
    }
    floats_free(x);
}

/* Root of the mean square of a - b over that of b. */
static double off_by(const float *a, const float *b, int64_t n)
{
    double d = 0, all = 0;

    for (int64_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        all += (double)b[i] * (double)b[i];
    }
    return sqrt(d / all);
}

/* Cropped widths, many tokens and a pool give the same bits as one at a time. */
static void whole_product(void **unused)
{
    enum { ROWS = 200, COLS = 300, RP = 256, CP = 384, T = 5 };
    struct kd_rate rate = kd_rate_from16(37);
    uint8_t *codes = random_codes(5, RP / 16 * (CP / 16) * (int64_t)kd_rate_tile_bytes(rate));
    uint16_t suh[CP], svh[RP];
    float *x = floats(6, T * COLS), *all = floats(7, T * ROWS), *one = floats(8, ROWS);
    struct kd_pool *pool;
    struct kd_err err = {0};
    (void)unused;

    for (unsigned i = 0; i < CP; i++)
        suh[i] = kd_f32_f16(0.02f * value(9, i));
    for (unsigned i = 0; i < RP; i++)
        svh[i] = kd_f32_f16(value(10, i));
    struct kd_mat w = {.type = KD_MAT_EXL3,
                       .rows = ROWS,
                       .cols = COLS,
                       .data = codes,
                       .ld = RP / 16,
                       .rows_padded = RP,
                       .cols_padded = CP,
                       .suh = suh,
                       .svh = svh,
                       .rate = rate,
                       .cb = KD_CB_MUL1};
    assert_int_equal(kd_pool_open(&pool, 3, &err), 0);
    struct kd_run many = {.kern = &isa, .pool = pool}, plain = {.kern = &ref};
    struct kd_run fast_many = {.kern = &isa, .pool = pool, .fast = true},
                  fast_plain = {.kern = &ref, .fast = true};
    float *fast = floats(11, T * ROWS);
    assert_int_equal(kd_mat_mul(&many, &w, x, COLS, T, all, ROWS, &err), 0);
    for (int t = 0; t < T; t++) {
        assert_int_equal(kd_mat_mul(&plain, &w, x + t * COLS, COLS, 1, one, ROWS, &err), 0);
        same(all + t * ROWS, one, ROWS, "a product");
    }
    /* Of values before their rounding to fp16: a little off, by 2e-4 here (docs/numerics.md). */
    assert_int_equal(kd_mat_mul(&fast_many, &w, x, COLS, T, fast, ROWS, &err), 0);
    for (int t = 0; t < T; t++) {
        assert_int_equal(kd_mat_mul(&fast_plain, &w, x + t * COLS, COLS, 1, one, ROWS, &err), 0);
        same(fast + t * ROWS, one, ROWS, "a fast product");
        double off = off_by(one, all + t * ROWS, ROWS);
        if (!(off > 2e-5 && off < 3e-4))
            fail_msg("a fast product is off by %g", off);
    }
    w.cb = KD_CB_MCG; /* has no such form */
    assert_int_equal(kd_mat_mul(&fast_many, &w, x, COLS, T, fast, ROWS, &err), 0);
    for (int t = 0; t < T; t++) {
        assert_int_equal(kd_mat_mul(&plain, &w, x + t * COLS, COLS, 1, one, ROWS, &err), 0);
        same(fast + t * ROWS, one, ROWS, "a fast product of MCG");
    }
    w.cb = KD_CB_MUL1;
    floats_free(fast);
    /* With int8 activations: within 2 % of the largest output. */
    float largest = 0, off = 0;
    assert_int_equal(kd_exl3_mul_int8(&many, &w, x, all, &err), 0);
    assert_int_equal(kd_mat_mul(&plain, &w, x, COLS, 1, one, ROWS, &err), 0);
    for (int i = 0; i < ROWS; i++) {
        largest = fabsf(one[i]) > largest ? fabsf(one[i]) : largest;
        off = fabsf(one[i] - all[i]) > off ? fabsf(one[i] - all[i]) : off;
    }
    if (!(off < 0.02f * largest))
        fail_msg("int8 activations are off by %g of %g", off, largest);
    kd_pool_close(pool);
    free(codes);
    floats_free(x);
    floats_free(all);
    floats_free(one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codebooks),     cmocka_unit_test(permutation),
        cmocka_unit_test(tiles),         cmocka_unit_test(every_state),
        cmocka_unit_test(layer),         cmocka_unit_test(products),
        cmocka_unit_test(written_order), cmocka_unit_test(int8_products),
        cmocka_unit_test(int8_far),      cmocka_unit_test(pieces),
        cmocka_unit_test(whole_product),
    };
    int rc = kern_open();
    return rc ? rc : cmocka_run_group_tests(tests, NULL, NULL);
}
