/* The simulation against the plan's own figures (farm specification, section 3 and Decision 9). */
#include "farm/sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A GB300 of `big` units and 8 Sparks of one; together_s is what the plan gives for all of them. */
static struct kd_sim plan(double big, double together_s, double calib_s)
{
    struct kd_sim s = {.layers = 92, .jobs = 896, .units = 9};
    for (int i = 0; i < 9; i++) {
        s.encode_s[i] = together_s * (big + 8) / (i ? 1 : big);
        s.calib_s[i] = calib_s * big / (i ? 1 : big);
    }
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
    s.inputs_s = 11;
    for (int i = 0; i < 9; i++)
        s.trunk_s[i] = 40;
    s.forward_s = 9;
    s.checkpoint_s = 2;
    for (int m = 0; m < 3; m++) {
        kd_farm_sim(&s, (enum kd_sim_mode)m, &o);
        double sum = o.calib_h + o.encode_h + o.ship_h + o.trunk_h + o.inputs_h + o.forward_h +
                     o.checkpoint_h;
        assert_true(sum > o.hours * 0.999999 && sum < o.hours * 1.000001);
        assert_true(o.idle_share >= 0 && o.idle_share < 1);
    }
    /* One machine alone: everything one after the other. */
    struct kd_sim one = {.layers = 10, .jobs = 8, .units = 1, .encode_s = {80}, .calib_s = {40}};
    kd_farm_sim(&one, KD_SIM_EXPERT, &o);
    near(o.hours, 10 * 120 / 3600.0);
    kd_farm_sim(&one, KD_SIM_SERIAL, &o);
    near(o.hours, 10 * 120 / 3600.0);
}

/* Tensors that share an input are made side by side, the others one after the other. */
static void the_trunk_is_shared_by_stage(void **state)
{
    (void)state;
    struct kd_sim s = {.layers = 3600, .jobs = 4, .units = 1, .encode_s = {4}, .trunk_s = {100}};
    struct kd_sim_out one, four, alone;
    kd_farm_sim(&s, KD_SIM_EXPERT, &one);
    near(one.trunk_h, 100);
    s.units = 4;
    for (int i = 1; i < 4; i++) {
        s.encode_s[i] = 4;
        s.trunk_s[i] = 100;
    }
    kd_farm_sim(&s, KD_SIM_EXPERT, &four);
    near(four.trunk_h, 14.12 + 14.12 + 7.06 + 7.06 + 4.12);
    assert_string_equal(four.limit, "encoding of the trunk");
    s.trunk_alone = 1;
    kd_farm_sim(&s, KD_SIM_EXPERT, &alone);
    near(alone.trunk_h, 100);
    /* One that encodes nothing is given nothing. */
    s.trunk_alone = 0;
    s.encode_s[0] = s.trunk_s[0] = 0;
    kd_farm_sim(&s, KD_SIM_EXPERT, &alone);
    near(alone.encode_h, 2);
    assert_true(alone.idle_share < 0.7);
}

/* Units of two kinds: the one that calibrates slowly gets fewer, and the shares of the time are the
 * shares of the work. */
static void calibration_counts_where_it_is_done(void **state)
{
    (void)state;
    struct kd_sim s = {.layers = 3600, .jobs = 1000, .units = 2, .encode_s = {100, 100}};
    struct kd_sim_out o;
    s.calib_s[1] = 300;
    kd_farm_sim(&s, KD_SIM_EXPERT, &o);
    near(o.hours, 80); /* 100 and 400 seconds alone */
    near(o.calib_h, 80 * 60 / 160.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_plans_own_hours),
                                       cmocka_unit_test(terms_add_up),
                                       cmocka_unit_test(the_trunk_is_shared_by_stage),
                                       cmocka_unit_test(calibration_counts_where_it_is_done)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
