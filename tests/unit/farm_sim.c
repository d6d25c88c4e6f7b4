/* The simulation against the plan's own figures (farm specification, section 3 and Decision 9). */
#include "farm/sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A GB300 of `big` units and 8 Sparks of one; encode_s is what the plan gives for all together. */
static struct kd_sim plan(double big, double together_s, double calib_s)
{
    struct kd_sim s = {.layers = 92, .jobs = 896, .units = 9, .calib_s = calib_s};
    s.speed[0] = big;
    for (int i = 1; i < 9; i++)
        s.speed[i] = 1;
    s.encode_s = together_s * (big + 8);
    return s;
}

static void near(double is, double want)
{
    if (is < want * 0.975 || is > want * 1.025)
        fail_msg("%.2f h where the plan has %.1f h", is, want);
}

static void the_plans_own_hours(void **state)
{
    (void)state;
    struct kd_sim_out o;
    struct kd_sim low = plan(3, 317, 205), high = plan(2.5, 447, 626);
    low.ship_s = high.ship_s = 12; /* 30 GiB at 2 GB/s were not hidden in the first plan */
    low.checkpoint_s = 2;
    high.checkpoint_s = 3;
    kd_farm_sim(&low, KD_SIM_SERIAL, &o);
    near(o.hours, 13.7);
    kd_farm_sim(&high, KD_SIM_SERIAL, &o);
    near(o.hours, 27.8);
    assert_true(o.idle_share > 0.39 && o.idle_share < 0.62);
    low.ship_s = high.ship_s = low.checkpoint_s = high.checkpoint_s = 0;
    kd_farm_sim(&low, KD_SIM_STREAMED, &o);
    near(o.hours, 9.5);
    kd_farm_sim(&high, KD_SIM_STREAMED, &o);
    near(o.hours, 16);
    kd_farm_sim(&low, KD_SIM_EXPERT, &o);
    near(o.hours, 9.4);
    kd_farm_sim(&high, KD_SIM_EXPERT, &o);
    near(o.hours, 15.2);
}

static void terms_add_up(void **state)
{
    (void)state;
    struct kd_sim s = plan(3, 317, 205);
    struct kd_sim_out o;
    s.ship_s = 27;
    s.trunk_s = 40;
    s.forward_s = 9;
    s.checkpoint_s = 2;
    for (int m = 0; m < 3; m++) {
        kd_farm_sim(&s, (enum kd_sim_mode)m, &o);
        double sum = o.calib_h + o.encode_h + o.ship_h + o.trunk_h + o.forward_h + o.checkpoint_h;
        assert_true(sum > o.hours * 0.999999 && sum < o.hours * 1.000001);
        assert_true(o.idle_share >= 0 && o.idle_share < 1);
    }
    /* One machine alone: everything one after the other. */
    struct kd_sim one = {.layers = 10, .jobs = 8, .units = 1, .encode_s = 80, .calib_s = 40};
    one.speed[0] = 1;
    kd_farm_sim(&one, KD_SIM_EXPERT, &o);
    near(o.hours, 10 * 120 / 3600.0);
    kd_farm_sim(&one, KD_SIM_SERIAL, &o);
    near(o.hours, 10 * 120 / 3600.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_plans_own_hours),
                                       cmocka_unit_test(terms_add_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
