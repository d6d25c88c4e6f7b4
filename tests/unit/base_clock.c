/* base/clock: how time is written. */
#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void speaks_to_people(void **state)
{
    (void)state;
    static const struct {
        double seconds;
        const char *text;
    } want[] = {{0, "0.0 s"},
                {0.84, "0.8 s"},
                {9.9, "9.9 s"},
                {12.3, "12 s"},
                {60, "1 min 00 s"},
                {200, "3 min 20 s"},
                {3599, "59 min 59 s"},
                {3900, "1 h 05 min"},
                {47.5 * 3600, "47 h 30 min"},
                {5 * 86400, "5.0 days"},
                {-1, "unknown"},
                {(double)NAN, "unknown"},
                {(double)INFINITY, "unknown"}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        char out[32];
        kd_clock_human(out, sizeof out, want[i].seconds);
        assert_string_equal(out, want[i].text);
    }
    char small[4];
    kd_clock_human(small, sizeof small, 200);
    assert_string_equal(small, "3 m");
}

static void goes_forward(void **state)
{
    (void)state;
    char stamp[32];
    double wall = kd_clock_s(), cpu = kd_clock_cpu_s();
    volatile double work = 1;
    for (int i = 0; i < 3000000; i++)
        work = work * 1.0000001;
    assert_true(kd_clock_s() > wall);
    assert_true(kd_clock_cpu_s() > cpu);
    kd_clock_stamp(stamp, sizeof stamp);
    int year, month, day, hour, minute, second, used = 0;
    assert_int_equal(sscanf(stamp, "%4d-%2d-%2dT%2d:%2d:%2dZ%n", &year, &month, &day, &hour,
                            &minute, &second, &used),
                     6);
    assert_int_equal((size_t)used, strlen(stamp));
    assert_true(year > 2000 && month >= 1 && month <= 12 && day >= 1 && day <= 31);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(speaks_to_people),
        cmocka_unit_test(goes_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
