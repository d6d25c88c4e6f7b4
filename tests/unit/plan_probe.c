/* plan/probe and plan/forecast: what is measured is plausible, and what is foretold grows as it
 * must.
 *
 * labels: heavy figures
 * timeout: 200 */
#include "plan/forecast.h"
#include "plan/probe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct kd_kern kern;
static struct kd_run run = {.kern = &kern};
static struct kd_err err;

static int setup(void **state)
{
    (void)state;
    return kd_kern_pick(&kern, &err) || kd_pool_open(&run.pool, 1, &err);
}

static int teardown(void **state)
{
    (void)state;
    kd_pool_close(run.pool);
    return 0;
}

static void measures(void **state)
{
    (void)state;
    struct kd_probe p;
    char dir[] = "/tmp/kondense-probe-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    if (kd_probe_make(&p, &run, dir, &err))
        fail_msg("%s", err.msg);
    rmdir(dir); /* nothing was left in it */
    assert_int_not_equal(access(dir, F_OK), 0);
    assert_true(p.ram_gib > 0.1 && p.ram_free_gib <= p.ram_gib && p.ram_free_gib > 0);
    assert_true(p.ram_gb_s > 0.01 && p.ram_gb_s < 20000);
    assert_true(p.disk_gb_s > 0 || strlen(p.disk_why) > 3);
    assert_true(p.gpu.there ? p.gpu.gib > 0 : strlen(p.gpu.why) > 3);
    assert_true(p.tiles_s > 0 && p.fma_gflops > 0);
    for (int i = 0; i < 3; i++)
        assert_true(p.decode_gweights[i] > 0 && p.mul_gmacs[i] > 0);
    /* A machine like any other. */
    struct kd_machine m, again;
    struct kd_buf b;
    kd_probe_machine(&m, &p);
    kd_buf_init(&b, 1 << 20);
    kd_machine_write(&b, &m);
    if (kd_machine_parse(&again, b.data, b.size_bytes, "this machine", &err))
        fail_msg("%s in %s", err.msg, b.data);
    assert_true(kd_machine_room_gib(&again) > 0);
    kd_buf_release(&b);
}

static void load_nano(struct kd_plan_model *m)
{
    const char *dir = getenv("KONDENSE_TEST_DATA");
    char path[1200];
    snprintf(path, sizeof path, "%s/k3-nano", dir ? dir : "tests/data");
    if (access(path, F_OK))
        skip();
    if (kd_plan_model_load(m, path, &err))
        fail_msg("%s", err.msg);
}

static void foretells_decoding(void **state)
{
    (void)state;
    struct kd_plan_model m;
    struct kd_forecast f;
    struct kd_plan_target native = kd_plan_native(), exl3 = kd_plan_exl3(2.3);
    load_nano(&m);
    if (kd_forecast_decode(&f, &run, &m, &native, 256 << 20, &err))
        fail_msg("%s", err.msg);
    assert_true(f.whole && f.stand_ins == 9);
    assert_true(f.head_s > 0 && f.layers_s > f.head_s && f.token_s < 1);
    if (kd_forecast_decode(&f, &run, &m, &exl3, 256 << 20, &err))
        fail_msg("%s", err.msg);
    assert_true(f.token_s > 0 && f.token_s < 1);
    /* Too little memory for all layers: one of each kind. */
    if (kd_forecast_decode(&f, &run, &m, &native, 12 << 20, &err))
        fail_msg("%s", err.msg);
    assert_false(f.whole);
    assert_int_equal(f.stand_ins, 3);
    assert_int_equal(kd_forecast_decode(&f, &run, &m, &native, 1 << 20, &err), -1);
    assert_int_equal(err.code, KD_EINVAL);
}

static void foretells_converting(void **state)
{
    (void)state;
    struct kd_plan_model m;
    struct kd_forecast f = {.token_s = 0}, twice = {.token_s = 0};
    struct kd_plan_target exl3 = kd_plan_exl3(2.3);
    struct kd_plan_bytes b;
    load_nano(&m);
    if (kd_forecast_convert(&f, &run, &m, &exl3, 64, 512, &err) ||
        kd_forecast_convert(&twice, &run, &m, &exl3, 128, 512, &err) ||
        kd_plan_count(&b, &m, &exl3, &err))
        fail_msg("%s", err.msg);
    /* Searches: every tile once, and the samples of the scale search; not a matter of the text. */
    double tiles = (double)b.quantized_weights / 256;
    assert_true(f.tiles > tiles * 1.05 && f.tiles < tiles * 2.2);
    assert_true(f.tiles == twice.tiles);
    assert_true(twice.hessian_gmac > 1.99 * f.hessian_gmac);
    assert_true(twice.products_gmac > 1.99 * f.products_gmac);
    assert_true(f.convert_s > 0 && f.search_s > 0 && f.hessian_s > 0 && f.products_s > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(measures),
                                       cmocka_unit_test(foretells_decoding),
                                       cmocka_unit_test(foretells_converting)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
