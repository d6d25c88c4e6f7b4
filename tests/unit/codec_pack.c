/* Packed rings against the released rule's vectors, and round trips of every rate. */
#include "base/rand.h"
#include "codec/exl3_pack.h"
#include "unit/exl3_vectors.h"

static void vectors(void **unused)
{
    struct kd_json *root = vectors_open(), *list = kd_json_get(root, "pack");
    (void)unused;

    assert_int_equal(kd_json_count(list), 8);
    for (size_t i = 0; i < 8; i++) {
        const struct kd_json *v = kd_json_at(list, i);
        unsigned K = (unsigned)vectors_int(v, "K");
        struct kd_rate rate = {.base = (uint8_t)K};
        uint16_t words[128], states[256], symbols[256], found[256];
        uint8_t bytes[256], packed[256];
        hex_words(kd_json_get(v, "file_words"), words, 16 * K);
        hex_words(kd_json_get(v, "states"), states, 256);
        words_bytes(words, 16 * K, bytes);
        for (unsigned p = 0; p < 256; p++)
            symbols[p] = (uint16_t)((7 * p * p + 13 * p + 5 * K + p / 8) % (1u << K));
        assert_int_equal(kd_rate_tile_bytes(rate), 32 * K);
        kd_exl3_unpack(bytes, rate, found);
        assert_memory_equal(found, states, sizeof states);
        kd_exl3_pack(symbols, rate, packed);
        assert_memory_equal(packed, bytes, 32 * K);
        kd_exl3_pack(states, rate, packed);
        assert_memory_equal(packed, bytes, 32 * K);
    }
    kd_json_free(root);
}

static void half_rate(void **unused)
{
    struct kd_json *root = vectors_open(), *v = kd_json_get(root, "fractional_K2_5_UNVERIFIED");
    struct kd_rate rate = kd_rate_from16(40);
    uint16_t words[40], states[256], found[256], symbols[256];
    uint8_t bytes[80], packed[80];
    (void)unused;

    assert_int_equal(rate.mask, 0xAAAA);
    hex_words(kd_json_get(v, "file_words"), words, 40);
    hex_words(kd_json_get(v, "states"), states, 256);
    words_bytes(words, 40, bytes);
    kd_exl3_unpack(bytes, rate, found);
    assert_memory_equal(found, states, sizeof states);
    for (unsigned p = 0; p < 256; p++)
        symbols[p] = (uint16_t)((5 * p * p + 11 * p + 3) % (1u << kd_rate_bits_at(rate, p)));
    kd_exl3_pack(symbols, rate, packed);
    assert_memory_equal(packed, bytes, sizeof bytes);
    kd_json_free(root);
}

/* The worked example of docs/formats/exl3.md, whose bytes another program made. */
static void example(void **unused)
{
    static const char hex[] =
        "9e3475e4a4a923674d1d39f3eac8992747ce3c6972e64953334f9a3a79d2d49193a68e9c"
        "3475e4cca923679e1d39f3a4c899274dce3c69eae64953474f9a3a72d2d49133a68e9c79"
        "cc93";
    static const uint16_t first[4] = {0x4f33, 0x3cce, 0xf339, 0x99c8};
    struct kd_rate rate = kd_rate_from16(37);
    uint16_t symbols[256], states[256];
    uint8_t bytes[74];
    char text[2 * 74 + 1];
    (void)unused;

    assert_int_equal(rate.mask, 0x9248);
    assert_int_equal(kd_rate_tile_bytes(rate), 74);
    for (unsigned p = 0; p < 256; p++)
        symbols[p] = (uint16_t)((7 * p + 3) % (1u << kd_rate_bits_at(rate, p)));
    kd_exl3_pack(symbols, rate, bytes);
    for (unsigned i = 0; i < 74; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    assert_string_equal(text, hex);
    kd_exl3_unpack(bytes, rate, states);
    assert_memory_equal(states, first, sizeof first);
    assert_int_equal(kd_codebook_f16(KD_CB_MUL1, states[0]), 0x3a97);
}

/* Every rate: symbols come back, states chain round the ring, and each bit of the tile counts once.
 */
static void round_trips(void **unused)
{
    (void)unused;
    for (unsigned n = 16; n <= 128; n++) {
        struct kd_rate rate = kd_rate_from16(n);
        uint16_t symbols[256], states[256];
        uint8_t bytes[256 + 1], again[256];
        unsigned size = kd_rate_tile_bytes(rate);
        assert_int_equal(size, 2 * n);
        for (unsigned p = 0; p < 256; p++)
            symbols[p] = (uint16_t)(kd_rand_u64(n, p) & ((1u << kd_rate_bits_at(rate, p)) - 1u));
        bytes[size] = 0xa5;
        kd_exl3_pack(symbols, rate, bytes);
        assert_int_equal(bytes[size], 0xa5);
        kd_exl3_unpack(bytes, rate, states);
        for (unsigned p = 0; p < 256; p++) {
            unsigned next = (p + 1) % 256, bits = kd_rate_bits_at(rate, next);
            assert_int_equal(states[p] & ((1u << kd_rate_bits_at(rate, p)) - 1u), symbols[p]);
            assert_int_equal(states[next],
                             (((unsigned)states[p] << bits) & 0xffffu) | symbols[next]);
        }
        kd_exl3_pack(states, rate, again);
        assert_memory_equal(bytes, again, size);
        for (unsigned i = 0; i < size; i++) /* any bytes are a ring */
            bytes[i] = (uint8_t)kd_rand_u64(1000 + n, i);
        kd_exl3_unpack(bytes, rate, states);
        kd_exl3_pack(states, rate, again);
        assert_memory_equal(bytes, again, size);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors),
        cmocka_unit_test(half_rate),
        cmocka_unit_test(example),
        cmocka_unit_test(round_trips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
