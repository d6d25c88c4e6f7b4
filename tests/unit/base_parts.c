/* base/parts: each moment counted once, what is inside WAIT and outside any scope not at all,
 * threads added up, an earlier measurement forgotten. */
#include "base/parts.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>

static void spend(double seconds)
{
    double end = kd_clock_s() + seconds;
    while (kd_clock_s() < end)
        ;
}

static void search(double inside)
{
    int was = kd_part_enter(KD_PART_SEARCH);
    spend(0.005);
    int again = kd_part_enter(KD_PART_WRITE);
    spend(inside);
    kd_part_leave(again);
    spend(0.005);
    kd_part_leave(was);
}

static double sum_of(double s[KD_SCOPES][KD_PARTS], int scope)
{
    double sum = 0;
    for (int i = 0; i < KD_PARTS; i++)
        sum += s[scope][i];
    return sum;
}

static void each_moment_once(void **state)
{
    double s[KD_SCOPES][KD_PARTS];
    (void)state;
    search(0.001); /* off: nothing */
    double begun = kd_clock_s();
    kd_parts_begin();
    double on = kd_clock_s();
    search(0.008);
    int was = kd_scope_enter(KD_SCOPE_COMPARE, KD_PART_FORWARD);
    search(0.002);
    kd_part_leave(was);
    was = kd_scope_enter(KD_SCOPE_LAYER, KD_PART_WAIT);
    search(0.004);
    kd_part_leave(was);
    spend(0.003);
    double wall = kd_clock_s() - on;
    kd_parts_end(s);
    double most = kd_clock_s() - begun;
    double all = sum_of(s, KD_SCOPE_LAYER) + sum_of(s, KD_SCOPE_COMPARE);
    assert_true(all > 0.999 * wall && all < most + 0.001);
    assert_true(s[KD_SCOPE_LAYER][KD_PART_SEARCH] >= 0.0099);
    assert_true(s[KD_SCOPE_LAYER][KD_PART_WRITE] >= 0.0079);
    assert_true(s[KD_SCOPE_LAYER][KD_PART_WAIT] >= 0.0139);
    assert_true(s[KD_SCOPE_LAYER][KD_PART_FORWARD] >= 0.0029);
    assert_true(s[KD_SCOPE_COMPARE][KD_PART_SEARCH] >= 0.0099);
    assert_true(sum_of(s, KD_SCOPE_EXPERT) == 0);
}

static void *lane(void *arg)
{
    (void)arg;
    search(0.001); /* in no scope */
    int was = kd_scope_enter(KD_SCOPE_EXPERT, KD_PART_FORWARD);
    search(0.001);
    kd_part_leave(was);
    search(0.001);
    return NULL;
}

static void lanes_add_up(void **state)
{
    double s[KD_SCOPES][KD_PARTS];
    pthread_t t[3];
    (void)state;
    kd_parts_begin();
    int was = kd_scope_enter(KD_SCOPE_LAYER, KD_PART_WAIT);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&t[i], NULL, lane, NULL), 0);
    lane(NULL); /* who waits may work too */
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    kd_part_leave(was);
    kd_parts_end(s);
    assert_true(s[KD_SCOPE_EXPERT][KD_PART_SEARCH] >= 4 * 0.0099);
    assert_true(s[KD_SCOPE_EXPERT][KD_PART_WRITE] >= 4 * 0.0009);
    assert_true(s[KD_SCOPE_LAYER][KD_PART_SEARCH] == 0 && s[KD_SCOPE_LAYER][KD_PART_WRITE] == 0);
    /* The next one begins at nothing. */
    double begun = kd_clock_s();
    kd_parts_begin();
    kd_parts_end(s);
    assert_true(sum_of(s, KD_SCOPE_EXPERT) == 0);
    assert_true(sum_of(s, KD_SCOPE_LAYER) < kd_clock_s() - begun + 0.001);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_moment_once),
                                       cmocka_unit_test(lanes_add_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
