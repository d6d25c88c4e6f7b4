/* base/hash and base/rand: published values, pieces equal the whole. */
#include "base/hash.h"
#include "base/rand.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
static const char *const none = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

static void sha256_knows_its_values(void **state)
{
    (void)state;
    char hex[65];
    assert_int_equal(kd_sha256_of("abc", 3, hex, NULL), 0);
    assert_string_equal(hex, abc);
    assert_int_equal(kd_sha256_of("", 0, hex, NULL), 0);
    assert_string_equal(hex, none);
}

static void sha256_in_pieces(void **state)
{
    (void)state;
    uint8_t data[1000];
    char whole[65], pieces[65];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)kd_rand_u64(1, i);
    assert_int_equal(kd_sha256_of(data, sizeof data, whole, NULL), 0);
    for (size_t step = 1; step < 200; step += 63) {
        struct kd_sha256 h;
        assert_int_equal(kd_sha256_init(&h, NULL), 0);
        for (size_t at = 0; at < sizeof data; at += step)
            kd_sha256_add(&h, data + at, at + step < sizeof data ? step : sizeof data - at);
        kd_sha256_hex(&h, pieces);
        assert_string_equal(pieces, whole);
    }
}

static void sha256_of_files(void **state)
{
    (void)state;
    struct kd_err err = {.code = KD_OK};
    char path[] = "/tmp/kondense-hash-XXXXXX", hex[65];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(kd_sha256_file(path, hex, &err), 0);
    assert_string_equal(hex, none);
    assert_int_equal(write(fd, "abc", 3), 3);
    close(fd);
    assert_int_equal(kd_sha256_file(path, hex, &err), 0);
    assert_string_equal(hex, abc);
    unlink(path);
    assert_int_equal(kd_sha256_file(path, hex, &err), -1);
    assert_int_equal(err.code, KD_EIO);
    assert_non_null(strstr(err.msg, path));
}

static void small_hashes(void **state)
{
    (void)state;
    assert_true(kd_xxh64("", 0, 0) == 0x2d06800538d394c2u);
    assert_true(kd_xxh64("a", 1, 0) != kd_xxh64("a", 1, 1));
    assert_true(kd_fnv64("") == 0xcbf29ce484222325u);
    assert_true(kd_fnv64("a") == 0xaf63dc4c8601ec8cu);
    assert_true(kd_fnv64("foobar") == 0x85944171f73967e8u);
}

/* The first values of splitmix64 from zero; any value without those before it. */
static void random_streams(void **state)
{
    (void)state;
    assert_true(kd_rand_u64(0, 0) == 0xe220a8397b1dcdafu);
    assert_true(kd_rand_u64(0, 1) == 0x6e789e6aa1b965f4u);
    assert_true(kd_rand_u64(0, 2) == 0x06c45d188009454fu);
    assert_true(kd_rand_fork(7, 0) != kd_rand_fork(7, 1) && kd_rand_fork(7, 0) != 7);
    double sum = 0;
    enum { COUNT = 100000 };
    for (uint64_t i = 0; i < COUNT; i++) {
        double u = kd_rand_unit(kd_rand_fork(3, 4), i);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    assert_true(sum / COUNT > 0.497 && sum / COUNT < 0.503);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_knows_its_values), cmocka_unit_test(sha256_in_pieces),
        cmocka_unit_test(sha256_of_files),         cmocka_unit_test(small_hashes),
        cmocka_unit_test(random_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
