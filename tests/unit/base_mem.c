/* base/mem: checked sizes, alignment, counting, and failing the n-th allocation. */
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void multiplies_with_care(void **state)
{
    (void)state;
    int64_t out = 0;
    assert_int_equal(kd_mul64(3, 5, &out), 0);
    assert_int_equal(out, 15);
    assert_int_equal(kd_mul64(INT64_MAX, 1, &out), 0);
    assert_true(out == INT64_MAX);
    assert_int_equal(kd_mul64(INT64_MAX, 0, &out), 0);
    assert_int_equal(out, 0);
    assert_int_equal(kd_mul64(INT64_MAX / 2 + 1, 2, &out), -1);
    assert_int_equal(kd_mul64(-1, 5, &out), -1);
    assert_int_equal(kd_mul64(5, -1, &out), -1);
}

static void gives_aligned_blocks_and_counts(void **state)
{
    (void)state;
    struct kd_err err = {.code = KD_OK};
    int64_t before = kd_mem_live_bytes();
    for (int64_t n = 1; n < 300; n += 7) {
        uint8_t *a, *b;
        assert_int_equal(kd_mem_new(&a, n, 3, "a", &err), 0);
        assert_int_equal(kd_mem_zero(&b, n, 5, "b", &err), 0);
        assert_int_equal((uintptr_t)a % 64, 0);
        assert_int_equal((uintptr_t)b % 64, 0);
        memset(a, 0xff, (size_t)n * 3);
        for (int64_t i = 0; i < 5 * n; i++)
            assert_int_equal(b[i], 0);
        assert_int_equal(kd_mem_live_bytes(), before + 8 * n);
        assert_true(kd_mem_live_peak_bytes() >= before + 8 * n);
        kd_mem_free(a);
        kd_mem_free(b);
    }
    assert_int_equal(kd_mem_live_bytes(), before);
    kd_mem_free(NULL);
}

static void refuses_bad_sizes(void **state)
{
    (void)state;
    struct kd_err err = {.code = KD_OK};
    void *p = &err;
    assert_int_equal(kd_mem_new(&p, 0, 8, "none", &err), 0);
    assert_null(p);
    p = &err;
    assert_int_equal(kd_mem_new(&p, INT64_MAX / 4, 8, "rows", &err), -1);
    assert_int_equal(err.code, KD_EINVAL);
    assert_null(p);
    assert_non_null(strstr(err.msg, "rows: "));
    p = &err;
    assert_int_equal(kd_mem_new(&p, -1, 8, "rows", &err), -1);
    assert_null(p);
    assert_int_equal(kd_mem_new(&p, INT64_MAX, 1, "all", &err), -1);
    assert_null(p);
}

/* More than any address space: the system says no, and it is an error like another. */
static void reports_what_cannot_be_had(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    skip();
#endif
#endif
    struct kd_err err = {.code = KD_OK};
    void *p = &err;
    assert_int_equal(kd_mem_new(&p, INT64_C(1) << 60, 1, "weights", &err), -1);
    assert_int_equal(err.code, KD_ENOMEM);
    assert_int_equal(err.sys, ENOMEM);
    assert_null(p);
    assert_non_null(strstr(err.msg, "weights: 1152921504606846976 bytes: "));
}

/* Three allocations that must all go or none stay: the shape of every constructor here. */
static int build(void *out[3], struct kd_err *err)
{
    memset(out, 0, 3 * sizeof *out);
    for (int i = 0; i < 3; i++)
        if (kd_mem_new(&out[i], 10 + i, 8, "part", err)) {
            for (int j = 0; j < i; j++)
                kd_mem_free(out[j]);
            return -1;
        }
    return 0;
}

static void fails_the_nth(void **state)
{
    (void)state;
    struct kd_err err = {.code = KD_OK};
    int64_t before = kd_mem_live_bytes();
    void *part[3];
    int rc = -1, n = 0;
    for (n = 1; rc && n < 10; n++) {
        kd_mem_fail_nth(n);
        rc = build(part, &err);
        if (rc) {
            assert_int_equal(err.code, KD_ENOMEM);
            assert_int_equal(kd_mem_live_bytes(), before);
        }
    }
    assert_int_equal(n, 5); /* the first, second and third failed; the fourth was never reached */
    for (int i = 0; i < 3; i++)
        kd_mem_free(part[i]);
    kd_mem_fail_nth(0);
    void *p;
    assert_int_equal(kd_mem_new(&p, 1, 1, "p", &err), 0);
    kd_mem_free(p);
    kd_mem_fail_nth(1);
    assert_int_equal(kd_mem_zero(&p, 1, 1, "p", &err), -1);
    assert_int_equal(kd_mem_zero(&p, 1, 1, "p", &err), 0); /* only that one */
    kd_mem_free(p);
}

/* Handed out when another's release was noted, touched at once after it. */
static void notes_what_is_touched_late(void **state)
{
    (void)state;
    struct kd_err err = {.code = KD_OK};
    int64_t before = kd_mem_peak_bytes();
    if (!before)
        skip();
    enum { MIB = 32 };
    char *p, *other;
    assert_int_equal(kd_mem_new(&p, MIB, 1 << 20, "p", &err), 0);
    assert_int_equal(kd_mem_new(&other, 1, 1 << 20, "other", &err), 0);
    kd_mem_free(other);
    memset(p, 1, (size_t)MIB << 20);
    kd_mem_free(p);
    assert_true(kd_mem_peak_bytes() - before > (int64_t)(MIB - 8) << 20);
}

static void tells_memory_in_use(void **state)
{
    (void)state;
    struct kd_err err = {.code = KD_OK};
    int64_t before = kd_mem_anon_bytes();
    if (!before)
        skip(); /* qemu-user's /proc does not tell */
    enum { MIB = 64 };
    char *p;
    assert_int_equal(kd_mem_new(&p, MIB, 1 << 20, "p", &err), 0);
    memset(p, 1, (size_t)MIB << 20);
    assert_true(kd_mem_anon_bytes() - before > (int64_t)(MIB - 8) << 20);
    assert_true(kd_mem_peak_bytes() - before > (int64_t)(MIB - 8) << 20);
    kd_mem_free(p);
    assert_true(kd_mem_peak_bytes() - before > (int64_t)(MIB - 8) << 20);
    /* Nobody asked while it was there. */
    assert_int_equal(kd_mem_new(&p, 2 * MIB, 1 << 20, "p", &err), 0);
    memset(p, 1, (size_t)(2 * MIB) << 20);
    kd_mem_free(p);
    assert_true(kd_mem_peak_bytes() - before > (int64_t)(2 * MIB - 8) << 20);
}

/* Pages of a mapped file are the system's to take back: no peak of ours, before or after. */
static void leaves_files_out(void **state)
{
    (void)state;
    struct kd_err err = {.code = KD_OK};
    enum { MIB = 256 };
    char path[] = "/tmp/kd-mem-XXXXXX";
    int fd = mkstemp(path);
    unlink(path);
    int64_t before = kd_mem_peak_bytes(), resident = kd_mem_resident_peak_bytes();
    if (!before || !resident || fd < 0 || ftruncate(fd, (off_t)MIB << 20))
        skip();
    char *m = mmap(NULL, (size_t)MIB << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), *p;
    assert_ptr_not_equal(m, MAP_FAILED);
    memset(m, 1, (size_t)MIB << 20);
    assert_int_equal(kd_mem_new(&p, 1, 1 << 20, "p", &err), 0);
    kd_mem_free(p);
    munmap(m, (size_t)MIB << 20);
    close(fd);
    assert_true(kd_mem_peak_bytes() - before < (int64_t)8 << 20);
    assert_true(kd_mem_resident_peak_bytes() >= (int64_t)MIB << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(multiplies_with_care),
        cmocka_unit_test(gives_aligned_blocks_and_counts),
        cmocka_unit_test(refuses_bad_sizes),
        cmocka_unit_test(reports_what_cannot_be_had),
        cmocka_unit_test(fails_the_nth),
        cmocka_unit_test(notes_what_is_touched_late), /* the first peak */
        cmocka_unit_test(tells_memory_in_use),
        cmocka_unit_test(leaves_files_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
