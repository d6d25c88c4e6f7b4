/* base/opt: strict values, environment below flags, positional arguments, help and man page. */
#include "base/opt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static struct {
    bool quiet;
    int64_t layers, size;
    double temp;
    const char *recipe, *text, *log;
    struct kd_opt_list each;
} o;

static const struct kd_opt opts[] = {
    {"quiet", 'q', KD_OPT_FLAG, &o.quiet, NULL, "say less"},
    {"layers", 'l', KD_OPT_INT, &o.layers, "N", "layers, default 3", .min = 1, .max = 9},
    {"temp", 0, KD_OPT_NUM, &o.temp, "T", "temperature", .num_min = 0, .num_max = 2},
    {"recipe", 0, KD_OPT_STR, &o.recipe, "NAME", "which", .choices = "plain|default"},
    {"text-file", 0, KD_OPT_STR, &o.text, "FILE", "text"},
    {"size", 0, KD_OPT_SIZE, &o.size, "S", "size_"},
    {"log", 0, KD_OPT_STR, &o.log, "FORM", "of the log", .choices = "text|json"},
    {"each", 'e', KD_OPT_LIST, &o.each, "X", "may come again"},
    {0}};

static int nothing(int argc, const char **argv, struct kd_err *err)
{
    (void)argc;
    (void)argv;
    (void)err;
    return 0;
}

static const struct kd_cmd cmd = {
    "probe", "tries *things*", "SRC [DST]", "kondense probe a", opts, 1, 2, nothing, "More of it."};

static const char *args[4];
static int count;
static bool help;
static struct kd_err err;

static int parse(const char *a, const char *b, const char *c, const char *d)
{
    const char *argv[6] = {"probe", a, b, c, d, NULL};
    int argc = 1;
    while (argv[argc])
        argc++;
    memset(&o, 0, sizeof o);
    o.layers = 3;
    memset(args, 0, sizeof args);
    err.msg[0] = 0;
    int rc = kd_opt_parse(&cmd, argc, argv, args, &count, &help, &err);
    if (rc)
        assert_int_equal(err.code, KD_EUSAGE);
    return rc;
}

static void drop_args(void)
{
    for (int i = 0; i < count; i++)
        free((void *)(uintptr_t)args[i]);
}

static void takes(void **state)
{
    (void)state;
    assert_int_equal(parse("--layers", "9", "-q", "src"), 0);
    assert_int_equal(o.layers, 9);
    assert_true(o.quiet);
    assert_int_equal(count, 1);
    assert_string_equal(args[0], "src");
    drop_args();
    assert_int_equal(parse("a", "--layers=2", "b", NULL), 0);
    assert_int_equal(o.layers, 2);
    assert_int_equal(count, 2);
    assert_string_equal(args[1], "b");
    drop_args();
    assert_int_equal(parse("a", "--recipe", "plain", "--temp=0.5"), 0);
    assert_string_equal(o.recipe, "plain");
    free((void *)(uintptr_t)o.recipe);
    assert_true(o.temp == 0.5);
    assert_int_equal(o.layers, 3);
    drop_args();
    assert_int_equal(parse("-h", NULL, NULL, NULL), 0);
    assert_true(help);
    assert_int_equal(parse("--", "--layers", NULL, NULL), 0);
    assert_string_equal(args[0], "--layers");
    drop_args();
}

static void lists(void **state)
{
    (void)state;
    assert_int_equal(parse("-e", "one", "--each=two", "src"), 0);
    assert_int_equal(o.each.count, 2);
    assert_string_equal(o.each.v[0], "one");
    assert_string_equal(o.each.v[1], "two");
    drop_args();
    for (int i = 0; i < o.each.count; i++)
        free((void *)(uintptr_t)o.each.v[i]);
    setenv("KONDENSE_EACH", "other", 1);
    assert_int_equal(parse("src", NULL, NULL, NULL), 0);
    assert_int_equal(o.each.count, 1);
    assert_string_equal(o.each.v[0], "other");
    drop_args();
    assert_int_equal(parse("--each", "mine", "src", NULL), 0);
    assert_int_equal(o.each.count, 1);
    assert_string_equal(o.each.v[0], "mine");
    free((void *)(uintptr_t)o.each.v[0]);
    drop_args();
    unsetenv("KONDENSE_EACH");
}

static void refuse(const char *a, const char *b, const char *c, const char *d, const char *reason)
{
    if (!parse(a, b, c, d))
        fail_msg("%s %s was taken", a, b ? b : "");
    if (!strstr(err.msg, reason))
        fail_msg("'%s' does not say '%s'", err.msg, reason);
    drop_args();
}

static void refuses(void **state)
{
    (void)state;
    refuse("a", "--layers", "10", NULL, "--layers: 10 is outside 1 to 9");
    refuse("a", "--layers", "0", NULL, "outside");
    refuse("a", "--layers", "2x", NULL, "not a whole number");
    refuse("a", "--layers", "", NULL, "not a whole number");
    refuse("a", "--layers", " 2", NULL, "not a whole number");
    refuse("a", "--layers", "99999999999999999999", NULL, "not a whole number");
    refuse("a", "--layers", NULL, NULL, "--layers");
    refuse("a", "--temp", "3", NULL, "outside");
    refuse("a", "--temp", "nan", NULL, "not a number");
    refuse("a", "--temp", "inf", NULL, "not a number");
    refuse("a", "--recipe", "plai", NULL, "not one of plain|default");
    refuse("a", "--recipe", "plain|default", NULL, "not one of");
    refuse("a", "--no-such", NULL, NULL, "no such option");
    refuse("a", "b", "c", NULL, "one argument too many");
    refuse("-q", NULL, NULL, NULL, "too few arguments");
}

static void environment(void **state)
{
    (void)state;
    setenv("KONDENSE_LAYERS", "5", 1);
    setenv("KONDENSE_TEXT_FILE", "some.txt", 1);
    assert_int_equal(parse("a", NULL, NULL, NULL), 0);
    assert_int_equal(o.layers, 5);
    assert_string_equal(o.text, "some.txt");
    drop_args();
    assert_int_equal(parse("a", "--layers", "6", NULL), 0);
    assert_int_equal(o.layers, 6);
    drop_args();
    setenv("KONDENSE_LAYERS", "50", 1);
    refuse("a", NULL, NULL, NULL, "environment variable KONDENSE_LAYERS");
    unsetenv("KONDENSE_LAYERS");
    unsetenv("KONDENSE_TEXT_FILE");
    setenv("KONDENSE_LOG", "info", 1); /* the program's own levels, not this option */
    assert_int_equal(parse("a", NULL, NULL, NULL), 0);
    assert_null(o.log);
    drop_args();
    unsetenv("KONDENSE_LOG");
}

static void sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes; /* -1: refused */
    } cases[] = {{"4096", 4096},
                 {"1k", 1024},
                 {"1K", 1024},
                 {"700M", 734003200},
                 {"1.5G", 1610612736},
                 {"2T", INT64_C(2199023255552)},
                 {"3GiB", INT64_C(3221225472)},
                 {"1MB", 1048576},
                 {"", -1},
                 {"-1", -1},
                 {"1X", -1},
                 {"1G5", -1},
                 {"nan", -1},
                 {"1e30", -1},
                 {" 1", -1},
                 {"0", 0},
                 {"99999999T", -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t v = -1;
        int rc = kd_parse_size(cases[i].text, &v, &err);
        if ((rc != 0) != (cases[i].bytes < 0) || (!rc && v != cases[i].bytes))
            fail_msg("'%s': rc %d, %lld", cases[i].text, rc, (long long)v);
    }
}

static void help_and_man(void **state)
{
    (void)state;
    struct kd_buf b;
    kd_buf_init(&b, 1 << 16);
    kd_opt_help(&b, &cmd);
    assert_non_null(strstr(b.data, "usage: kondense probe [options] SRC [DST]"));
    assert_non_null(strstr(b.data, "-l, --layers N"));
    assert_non_null(strstr(b.data, "layers, default 3"));
    assert_non_null(strstr(b.data, "kondense probe a"));
    for (const struct kd_opt *p = opts; p->name; p++)
        assert_non_null(strstr(b.data, p->name));
    kd_buf_clear(&b);
    kd_opt_man(&b, &cmd);
    assert_non_null(strstr(b.data, "kondense-probe(1)"));
    assert_non_null(strstr(b.data, "tries \\*things\\*"));
    assert_non_null(strstr(b.data, "More of it."));
    assert_non_null(strstr(b.data, "size\\_"));
    kd_buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes),       cmocka_unit_test(lists), cmocka_unit_test(refuses),
        cmocka_unit_test(environment), cmocka_unit_test(sizes), cmocka_unit_test(help_and_man),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
