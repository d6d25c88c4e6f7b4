/* plan/pilot: layers' efforts add up to the whole's; a machine exactly as fast as planned gets the
 * plan's hours, one that is slower so much more, others in proportion; limits; the three reports.
 */
#include "plan/pilot.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct kd_err err;
static struct kd_plan_model model;

static void near_to(double got, double want)
{
    if (!(fabs(got - want) <= 1e-9 * fabs(want)))
        fail_msg("%.12g, not %.12g", got, want);
}

static int setup(void **state)
{
    (void)state;
    return kd_plan_model_k3(&model, &err);
}

static void layers_add_up(void **state)
{
    struct kd_plan_target t = kd_plan_exl3(2.3);
    struct kd_plan_effort all, one, sum = {0};
    struct kd_plan_bytes b;
    const double tokens = 512000;
    (void)state;
    assert_int_equal(kd_plan_count(&b, &model, &t, &err), 0);
    kd_plan_effort(&all, &model, &b, tokens);
    for (int64_t l = 0; l < model.cfg.layers; l++) {
        bool moe = kd_k3_is_moe(&model.cfg, l);
        kd_plan_effort_layer(&one, &model, &t, l, moe ? (double)model.cfg.experts : 0, tokens,
                             tokens);
        sum.tiles += one.tiles;
        sum.trunk_tiles += one.trunk_tiles;
        sum.calibrate_flop += one.calibrate_flop;
        sum.trunk_flop += one.trunk_flop;
        sum.forward_flop += moe ? one.forward_flop : 0;
    }
    /* The head is in no layer. */
    double head = (double)model.params[KD_K3_HEAD];
    near_to(sum.tiles, all.tiles);
    near_to(sum.trunk_tiles + all.trunk_tiles * head / (double)b.trunk_quantized_weights,
            all.trunk_tiles);
    near_to(sum.calibrate_flop, all.calibrate_flop);
    near_to(sum.trunk_flop + 3 * 2 * tokens * head, all.trunk_flop);
    near_to(sum.forward_flop, all.forward_flop);
}

/* A pilot of layer 1 on a machine `slower` times as slow as planned, with a sample of experts. */
static void measured(struct kd_pilot *p, double slower, double sample)
{
    struct kd_plan_effort e;
    const double tokens = 250 * 2048.0, flop_s = 0.7e12 * 67, tile_s = 300000;
    memset(p, 0, sizeof *p);
    p->model = &model;
    p->form = kd_plan_exl3(2.3);
    p->source = "a <b> & c";
    p->computes = "a test";
    p->why = "asked for";
    p->layer = 1;
    p->rows = 250;
    p->cols = 2048;
    p->experts = (int64_t)sample;
    p->here = (struct kd_machine){.count = 1, .supported = true};
    p->here.tiles_s.v = tile_s;
    p->here.fp32_tflops.v = 67;
    kd_plan_effort_layer(&e, &model, &p->form, 1, sample, tokens, tokens);
    double *trunk = p->part_s[KD_SCOPE_LAYER], *expert = p->part_s[KD_SCOPE_EXPERT];
    trunk[KD_PART_SEARCH] = slower * e.trunk_tiles / tile_s;
    trunk[KD_PART_FORWARD] = slower * (e.trunk_flop + e.forward_flop) / flop_s * 0.75;
    trunk[KD_PART_HESSIAN] = slower * (e.trunk_flop + e.forward_flop) / flop_s * 0.25;
    expert[KD_PART_SEARCH] = slower * e.tiles / tile_s;
    expert[KD_PART_HESSIAN] = slower * e.calibrate_flop / flop_s;
    p->row[0] = (struct kd_pilot_row){.name = "this machine"};
    p->row[1] = (struct kd_pilot_row){.name = "twice <that>", .machines = 1};
    p->row[1].machine[0] = p->here;
    p->row[1].machine[0].tiles_s.v *= 2;
    p->row[1].machine[0].fp32_tflops.v *= 4;
    p->row[2] = (struct kd_pilot_row){.name = "none of that", .machines = 1};
    p->row[2].machine[0] = (struct kd_machine){.count = 1, .supported = false};
    p->rows_count = 3;
}

static void plan_times_measure(void **state)
{
    struct kd_plan_effort e;
    struct kd_plan_bytes b;
    static struct kd_pilot p;
    (void)state;
    struct kd_plan_target t = kd_plan_exl3(2.3);
    assert_int_equal(kd_plan_count(&b, &model, &t, &err), 0);
    kd_plan_effort(&e, &model, &b, 250 * 2048.0);
    for (int i = 0; i < 3; i++) {
        double slower = i == 0 ? 1 : 2.5, sample = i == 2 ? 16 : 896;
        measured(&p, slower, sample);
        assert_int_equal(kd_pilot_make(&p, &err), 0);
        e.sealed_gb = 0;
        struct kd_plan_hours plan = kd_plan_hours_one(&e, &p.here, 0);
        const struct kd_pilot_hours *h = &p.row[0].hours, *other = &p.row[1].hours;
        near_to(h->encode, slower * plan.encode);
        near_to(h->calibrate, slower * plan.calibrate);
        near_to(h->trunk, slower * (plan.trunk + plan.serial));
        near_to(h->total, slower * plan.total);
        near_to(other->encode, h->encode / 2);
        near_to(other->calibrate, h->calibrate / 4);
        assert_true(p.row[0].able && p.row[1].able && !p.row[2].able && !p.over);
        near_to(p.tiles_s[KD_SCOPE_EXPERT], 300000 / slower);
    }
    /* Reading and writing are the drive's, wherever the rest is done. */
    measured(&p, 1, 896);
    p.read_s = 10;
    p.read_bytes = 1000000000;
    p.part_s[KD_SCOPE_LAYER][KD_PART_WRITE] = 3;
    p.written_bytes = 1000000000;
    assert_int_equal(kd_pilot_make(&p, &err), 0);
    near_to(p.row[0].hours.write, 3 * (double)b.file_bytes / 1e9 / 3600);
    near_to(p.row[1].hours.read, 10 * e.source_gb / 3600);
    near_to(p.row[0].hours.total, p.row[0].hours.read + p.row[0].hours.encode +
                                      p.row[0].hours.calibrate + p.row[0].hours.trunk +
                                      p.row[0].hours.write);
}

/* Class fast: the experts' calibration and the trunk's go by 16-bit products, this machine's
 * measured time stays. */
static void fast_goes_by_sixteen_bits(void **state)
{
    static struct kd_pilot exact, fast;
    (void)state;
    measured(&exact, 2.5, 896);
    measured(&fast, 2.5, 896);
    fast.fast = true;
    fast.here.tflops.v = 400;
    fast.row[1].machine[0].tflops.v = 40;
    assert_int_equal(kd_pilot_make(&exact, &err), 0);
    assert_int_equal(kd_pilot_make(&fast, &err), 0);
    near_to(fast.row[0].hours.total, exact.row[0].hours.total);
    near_to(exact.row[1].hours.calibrate, exact.row[0].hours.calibrate / 4);
    near_to(fast.row[1].hours.calibrate, fast.row[0].hours.calibrate * 10);
    near_to(fast.row[1].hours.encode, exact.row[1].hours.encode);
    assert_true(fast.row[1].hours.trunk > exact.row[1].hours.trunk);
}

static void limits(void **state)
{
    static struct kd_pilot p;
    char text[256];
    (void)state;
    measured(&p, 1, 896);
    p.peak_bytes = 2000000;
    p.max_bytes = 2000000;
    assert_int_equal(kd_pilot_make(&p, &err), 0);
    double own = p.row[0].hours.total, other = p.row[1].hours.total;
    assert_true(other < own && !p.over && !kd_pilot_limit(&p, 0, text, sizeof text));
    p.max_hours = (own + other) / 2;
    assert_int_equal(kd_pilot_make(&p, &err), 0);
    assert_true(p.over && p.row[0].late && !p.row[1].late && p.row[2].late && !p.row[2].able);
    assert_true(kd_pilot_limit(&p, 0, text, sizeof text) && strstr(text, "this machine"));
    assert_true(kd_pilot_limit(&p, 1, text, sizeof text) && strstr(text, "cannot encode"));
    assert_false(kd_pilot_limit(&p, 2, text, sizeof text));
    p.max_bytes = 1999999;
    assert_int_equal(kd_pilot_make(&p, &err), 0);
    assert_true(kd_pilot_limit(&p, 0, text, sizeof text) && strstr(text, "memory"));
    assert_true(kd_pilot_limit(&p, 1, text, sizeof text) && strstr(text, "hours"));
}

static void reports(void **state)
{
    static struct kd_pilot p;
    struct kd_buf b;
    struct kd_json *root;
    (void)state;
    kd_buf_init(&b, 1 << 20);
    measured(&p, 1e4, 16);
    p.compared = 4;
    p.error[0] = 0.01;
    p.error[1] = 0.02;
    p.held_out = 65536;
    p.max_hours = 1;
    p.device_bytes = p.peak_bytes = p.planned_bytes = INT64_MAX / 2;
    memset(p.row[1].name, '<', sizeof p.row[1].name - 1);
    assert_int_equal(kd_pilot_make(&p, &err), 0);
    kd_pilot_text(&b, &p);
    kd_buf_char(&b, 0);
    assert_int_equal(kd_buf_ok(&b, "text", &err), 0);
    assert_non_null(strstr(b.data, "50 % less"));
    int lines = 0;
    for (char *at = b.data, *end; (end = strchr(at, '\n')); at = end + 1, lines++)
        if (strncmp(at, "past", 4) != 0 && end - at > 100)
            fail_msg("%d columns: %.*s", (int)(end - at), (int)(end - at), at);
    assert_true(lines < 25);
    kd_buf_clear(&b);
    kd_pilot_json(&b, &p);
    if (kd_json_parse(&root, b.data, b.size_bytes, "pilot", &err))
        fail_msg("%s", err.msg);
    assert_int_equal(kd_json_count(kd_json_get(root, "whole_run")), 3);
    for (size_t i = 0; i < 3; i++) /* a list that cannot encode says so, too */
        assert_true(kd_json_true(
            kd_json_get(kd_json_at(kd_json_get(root, "whole_run"), i), "past_max_hours")));
    assert_true(kd_json_true(kd_json_get(root, "past_a_limit")));
    assert_string_equal(kd_json_text(kd_json_get(root, "source"), NULL), "a <b> & c");
    kd_json_free(root);
    kd_buf_clear(&b);
    kd_pilot_html(&b, &p);
    kd_buf_char(&b, 0);
    assert_int_equal(kd_buf_ok(&b, "page", &err), 0);
    assert_non_null(strstr(b.data, "a &lt;b&gt; &amp; c"));
    assert_null(strstr(b.data, "<b>"));
    assert_null(strstr(b.data, "<<"));
    kd_buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(layers_add_up),
                                       cmocka_unit_test(plan_times_measure),
                                       cmocka_unit_test(fast_goes_by_sixteen_bits),
                                       cmocka_unit_test(limits), cmocka_unit_test(reports)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
