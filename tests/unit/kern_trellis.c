/* The trellis search: the reference's states on every instruction set for every rate, codebook and
 * seam, on ordinary and extreme targets. */
#include "base/mem.h"
#include "num/exl3_ring.h"
#include "unit/kern_util.h"

#include <math.h>

static void *scratch[2];

static double gauss(uint64_t seed, uint64_t i)
{
    double u = kd_rand_unit(seed, 2 * i) + 1e-17, v = kd_rand_unit(seed, 2 * i + 1);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Tile `kind`: Gaussian, then what breaks ranges. */
static void make_tile(unsigned kind, uint64_t seed, float scale, float tile[256])
{
    for (unsigned p = 0; p < 256; p++) {
        float g = (float)gauss(seed, p) * scale;
        switch (kind) {
        case 0:
            tile[p] = g;
            break;
        case 1:
            tile[p] = 0.0f;
            break;
        case 2:
            tile[p] = p % 2 ? 3.3f : -3.4f;
            break;
        case 3:
            tile[p] = p % 3 ? INFINITY : -INFINITY;
            break;
        case 4:
            tile[p] = p == 128 ? NAN : g;
            break;
        case 5:
            tile[p] = p < 128 ? 0.01f * g : 4.0f * g;
            break;
        case 6:
            tile[p] = p % 17 ? g : 1e30f * g;
            break;
        default:
            tile[p] = 3.97f;
            break;
        }
    }
}
enum { KINDS = 8, SHORT = 20 /* a seam where searches are emulated */ };

static void compare(struct kd_rate rate, enum kd_codebook cb, int seam, const float *target,
                    int64_t count)
{
    uint16_t a[4 * 256], b[4 * 256], ring[256];

    assert_true(count <= 4);
    memset(a, 0xff, sizeof a);
    isa.trellis_search(target, count, rate, cb, seam, a, scratch[0]);
    ref.trellis_search(target, count, rate, cb, seam, b, scratch[1]);
    for (int64_t i = 0; i < 256 * count; i++)
        if (a[i] != b[i])
            fail_msg(
                "%u/16 bits, codebook %d, seam %d, tile %lld, position %lld: %04x by %s, not %04x",
                kd_rate_to16(rate), (int)cb, seam, (long long)(i / 256), (long long)(i % 256), a[i],
                isa.name, b[i]);
    for (int64_t t = 0; t < count; t++) { /* and the ring is closed */
        memcpy(ring, a + 256 * t, sizeof ring);
        kd_ring_close(rate, ring);
        assert_memory_equal(ring, a + 256 * t, sizeof ring);
    }
}

static void rates(void **unused)
{
    static const unsigned list[] = {16, 17, 24, 31, 32, 33, 35, 37, 38, 39, 40,  47,  48,  50,
                                    56, 57, 63, 64, 72, 74, 79, 80, 88, 96, 104, 112, 120, 128};
    float target[3 * 256];
    (void)unused;

    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        if (KD_TEST_SLOW && i % 3 != 1)
            continue;
        for (unsigned t = 0; t < 3; t++)
            make_tile(0, list[i] + t, 1.0f, target + 256 * t);
        compare(kd_rate_from16(list[i]), KD_CB_MUL1, KD_TEST_SLOW ? SHORT : 128, target,
                list[i] % (KD_TEST_SLOW ? 16u : 5u) ? 1 : 3);
    }
}

static void codebooks(void **unused)
{
    float target[256];
    (void)unused;

    for (int cb = 0; cb < 2; cb++)
        for (unsigned n = 16; n <= 128; n += KD_TEST_SLOW ? 48 : 16) {
            make_tile(0, n, 1.24f, target);
            compare(kd_rate_from16(n), (enum kd_codebook)cb, KD_TEST_SLOW ? SHORT : 128, target, 1);
        }
}

static void seams(void **unused)
{
    static const int list[] = {1, 2, 7, 16, 32, 64, 127};
    float target[256];
    (void)unused;

    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        if (KD_TEST_SLOW && list[i] > 32)
            continue;
        make_tile(0, i, 1.0f, target);
        compare(kd_rate_from16(i % 2 ? 37 : 32), KD_CB_MUL1, list[i], target, 1);
    }
}

static void extremes(void **unused)
{
    static const unsigned list[] = {16, 32, 36, 64, 67, 80, 128};
    float target[256];
    (void)unused;

    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (unsigned kind = 1; kind < KINDS; kind++) {
            /* AVX2 and AVX-512 are one text (trellis_body.h) and share these. */
            if (KD_TEST_SLOW && (kind + i) % 9 != (isa.isa == KD_ISA_AVX2 ? 0 : 3))
                continue;
            if (!KD_TEST_SLOW && isa.isa != KD_ISA_NEON &&
                (kind + i) % 2 != (isa.isa >= KD_ISA_AVX512))
                continue;
            make_tile(kind, kind, 1.0f, target);
            compare(kd_rate_from16(list[i]), kind % 2 ? KD_CB_MCG : KD_CB_MUL1,
                    KD_TEST_SLOW ? SHORT : 128, target, 1);
        }
}

/* A mask that is not evenly spread: all pairs of neighbouring bit counts occur. */
static void any_mask(void **unused)
{
    float target[256];
    (void)unused;

    for (unsigned base = 1; base < 8; base += KD_TEST_SLOW ? 3 : 1) {
        struct kd_rate rate = {.base = (uint8_t)base, .mask = 0x0f35};
        make_tile(0, base, 1.0f, target);
        compare(rate, KD_CB_MUL1, KD_TEST_SLOW ? SHORT : 128, target, 1);
    }
}

/* A tile's states depend on nothing but the tile. */
static void alone(void **unused)
{
    float target[3 * 256];
    uint16_t all[3 * 256], one[256];
    struct kd_rate rate = {.base = 2};
    int seam = KD_TEST_SLOW ? SHORT : 128;
    (void)unused;

    make_tile(0, 1, 1.0f, target);
    make_tile(3, 2, 1.0f, target + 256); /* is searched again, on other grids */
    make_tile(0, 3, 1.0f, target + 512);
    isa.trellis_search(target, 3, rate, KD_CB_MUL1, seam, all, scratch[0]);
    for (unsigned t = 0; t < 3; t++) {
        isa.trellis_search(target + 256 * t, 1, rate, KD_CB_MUL1, seam, one, scratch[0]);
        assert_memory_equal(one, all + 256 * t, sizeof one);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates),    cmocka_unit_test(codebooks), cmocka_unit_test(seams),
        cmocka_unit_test(extremes), cmocka_unit_test(any_mask),  cmocka_unit_test(alone),
    };
    int rc = kern_open();
    if (rc || isa.isa == KD_ISA_REF) /* the reference against itself says nothing */
        return rc ? rc : 77;
    for (int i = 0; i < 2; i++)
        if (kd_mem_new(&scratch[i], (int64_t)kd_trellis_scratch_bytes(), 1, "scratch", NULL))
            return 1;
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    kd_mem_free(scratch[0]);
    kd_mem_free(scratch[1]);
    return rc;
}
