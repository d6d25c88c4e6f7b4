/* fmt/names: ids in order, pointers that stay, and failing allocations. */
#include "fmt/names.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { COUNT = 20000 };

static void ids_and_pointers(void **state)
{
    (void)state;
    struct kd_names n;
    struct kd_err err;
    static const char *kept[COUNT];
    int64_t id;
    bool fresh;
    kd_names_init(&n);
    assert_int_equal(kd_names_find(&n, "x"), -1);
    for (int i = 0; i < COUNT; i++) {
        char text[32];
        int len = snprintf(text, sizeof text, "name.%d", i);
        assert_int_equal(kd_names_add(&n, text, (size_t)len, &id, &fresh, &err), 0);
        assert_true(fresh && id == i);
        kept[i] = n.at[i];
        assert_int_equal(kd_names_add(&n, text, (size_t)len, &id, &fresh, &err), 0);
        assert_true(!fresh && id == i);
    }
    for (int i = 0; i < COUNT; i++) {
        char text[32];
        snprintf(text, sizeof text, "name.%d", i);
        assert_int_equal(kd_names_find(&n, text), i);
        assert_ptr_equal(n.at[i], kept[i]);
        assert_string_equal(kept[i], text);
    }
    assert_int_equal(kd_names_find(&n, "name."), -1);
    assert_int_equal(kd_names_find(&n, "name.00"), -1);
    /* Part of a longer text, and the empty one. */
    assert_int_equal(kd_names_add(&n, "name.77777", 7, &id, &fresh, &err), 0);
    assert_true(!fresh && id == 77);
    assert_int_equal(kd_names_add(&n, "", 0, &id, &fresh, &err), 0);
    assert_true(fresh && id == COUNT);
    assert_int_equal(kd_names_find(&n, ""), COUNT);
    kd_names_release(&n);
}

static void memory_runs_out(void **state)
{
    (void)state;
    int64_t before = kd_mem_live_bytes();
    for (int nth = 1; nth < 40; nth++) {
        struct kd_names n;
        struct kd_err err;
        bool failed = false;
        kd_names_init(&n);
        kd_mem_fail_nth(nth);
        for (int i = 0; i < 3000 && !failed; i++) {
            char text[32];
            int64_t id;
            bool fresh;
            int len = snprintf(text, sizeof text, "%d", i);
            failed = kd_names_add(&n, text, (size_t)len, &id, &fresh, &err);
        }
        for (int64_t i = 0; i < n.count; i++) {
            char text[32];
            snprintf(text, sizeof text, "%lld", (long long)i);
            assert_int_equal(kd_names_find(&n, text), i);
        }
        kd_mem_fail_nth(0);
        if (failed)
            assert_int_equal(err.code, KD_ENOMEM);
        else
            assert_int_equal(n.count, 3000);
        kd_names_release(&n);
        assert_int_equal(kd_mem_live_bytes(), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_and_pointers),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
