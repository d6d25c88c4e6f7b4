/* plan/machine: presets, descriptions in JSON and their refusals. */
#include "plan/machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static struct kd_machine m;
static struct kd_err err;

static const char good[] =
    "{\"format\": 1, \"name\": \"box\", \"title\": \"a box\", \"tiers\": ["
    "{\"kind\": \"ram\", \"gib\": {\"value\": 64, \"source\": \"a bill, May 2026\"}, \"gb_s\": 40,"
    " \"reserve_gib\": 8}, {\"kind\": \"nvme\", \"gib\": 900, \"gb_s\": 6}],"
    " \"tflops\": 1.5, \"watts\": 200, \"note\": \"n\"}";

static int parse(const char *text)
{
    err.msg[0] = 0;
    return kd_machine_parse(&m, text, strlen(text), "box.json", &err);
}

static void presets(void **state)
{
    (void)state;
    static const char *const wanted[] = {"spark", "gb300",        "h100", "h200", "b200",
                                         "b300",  "rtx-pro-6000", "3090", "4090", "5090",
                                         "8gb",   "pc",           "mac"};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (kd_machine_find(&m, wanted[i], &err))
            fail_msg("%s", err.msg);
        assert_int_equal(m.count, 1);
        assert_true(m.tiers >= 1);
        /* No number without its source. */
        const struct kd_sourced *n[] = {&m.tflops,        &m.fp32_tflops, &m.tiles_s,  &m.link_gb_s,
                                        &m.collective_us, &m.watts,       &m.price_usd};
        for (size_t k = 0; k < sizeof n / sizeof *n; k++)
            assert_true(strlen(n[k]->source) > 3);
        for (int t = 0; t < m.tiers; t++) {
            assert_true(strlen(m.tier[t].gib.source) > 3 && strlen(m.tier[t].gb_s.source) > 3);
            assert_true(m.tier[t].reserve.v < m.tier[t].gib.v);
            assert_true(!t || m.tier[t].gb_s.v <= m.tier[t - 1].gb_s.v);
        }
        assert_int_equal(m.supported, strcmp(wanted[i], "mac") != 0);
    }
    assert_int_equal(kd_machine_find(&m, "spark:8", &err), 0);
    assert_int_equal(m.count, 8);
    /* The plan document's 97 GiB once the cache has its 7. */
    assert_true(kd_machine_room_gib(&m) > 103.9 && kd_machine_room_gib(&m) < 104.1);
    assert_int_equal(kd_machine_find(&m, "gb300", &err), 0);
    assert_true(kd_machine_room_gib(&m) > 679.9 && kd_machine_room_gib(&m) < 680.1);
}

/* What is written is read again as the same. */
static void around(void **state)
{
    (void)state;
    struct kd_buf b;
    for (int i = 0; kd_machine_preset(i); i++) {
        struct kd_machine was;
        if (!strcmp(kd_machine_preset(i), "mac"))
            continue;
        assert_int_equal(kd_machine_find(&was, kd_machine_preset(i), &err), 0);
        kd_buf_init(&b, 1 << 16);
        kd_machine_write(&b, &was);
        if (kd_machine_parse(&m, b.data, b.size_bytes, "written", &err))
            fail_msg("%s", err.msg);
        assert_memory_equal(&m, &was, sizeof m);
        kd_buf_release(&b);
    }
}

static void reads(void **state)
{
    (void)state;
    if (parse(good))
        fail_msg("%s", err.msg);
    assert_string_equal(m.key, "box");
    assert_int_equal(m.tiers, 2);
    assert_string_equal(m.tier[0].gib.source, "a bill, May 2026");
    assert_string_equal(m.tier[0].gb_s.source, "machine file");
    assert_string_equal(m.price_usd.source, "not given");
    assert_true(kd_machine_room_gib(&m) > 55.9 && kd_machine_room_gib(&m) < 56.1);
}

/* `good` with one piece replaced. */
static void refuse(const char *from, const char *to, const char *reason)
{
    char text[1024];
    const char *at = strstr(good, from);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
    if (!parse(text))
        fail_msg("accepted: %s", text);
    assert_int_equal(err.code, KD_ECORRUPT);
    if (!strstr(err.msg, reason) || !strstr(err.msg, "box.json"))
        fail_msg("'%s' does not say '%s'", err.msg, reason);
}

static void refuses(void **state)
{
    (void)state;
    refuse("\"watts\"", "\"watt\"", "'watt' is not a key; known are: format, name, title, tiers");
    refuse("\"watts\"", "\"price\"", "'price' is not a key");
    refuse("\"reserve_gib\"", "\"reserve\"", "known are: kind, gib, gb_s, reserve_gib");
    refuse("\"source\"", "\"origin\"", "known are: value, source");
    refuse("\"format\": 1", "\"format\": 2", "'format' is 2, outside 1 to 1");
    refuse("\"format\": 1, ", "", "'format' is missing");
    refuse("\"ram\"", "\"dram\"", "'kind' is 'dram'");
    refuse("\"reserve_gib\": 8", "\"reserve_gib\": 64", "leaves nothing");
    refuse("\"gb_s\": 6}", "\"gb_s\": 60}", "faster than the one before");
    refuse("\"kind\": \"ram\"", "\"kind\": \"nvme\"", "must be the last");
    refuse("\"gb_s\": 40", "\"gb_s\": -1", "outside");
    refuse("\"gb_s\": 40", "\"gb_s\": \"40\"", "not a number");
    refuse("\"tflops\": 1.5, ", "", "'tflops' is missing");
    refuse("\"tiers\": [", "\"tiers\": [3, ", "tier 1: a tier is not an object");
    refuse("}]", "}", "not valid JSON");
    assert_int_equal(parse("[]"), -1);
    assert_int_equal(parse("{\"format\":1,\"name\":\"x\",\"tflops\":1,\"tiers\":[]}"), -1);
    assert_non_null(strstr(err.msg, "'tiers' is not an array of 1 to 4"));
    assert_int_equal(kd_machine_find(&m, "sprk", &err), -1);
    assert_int_equal(err.code, KD_EUSAGE);
    assert_non_null(strstr(err.msg, "one of spark, gb300, h100"));
    assert_int_equal(kd_machine_find(&m, "spark:0", &err), -1);
    assert_int_equal(kd_machine_find(&m, "./nowhere.json", &err), -1);
    assert_int_equal(err.code, KD_EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(presets), cmocka_unit_test(around),
                                       cmocka_unit_test(reads), cmocka_unit_test(refuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
