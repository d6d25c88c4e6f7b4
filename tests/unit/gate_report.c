/* Requirements, the verdict in the receipt, sizes of spans, and reports that are well-formed. */
#include "base/file.h"
#include "base/mem.h"
#include "gate/report.h"
#include "gate/span.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A check of 12 rows of 100 tokens with figures that are easy to tell. */
static void fill(struct kd_check *c)
{
    struct kd_err err;
    memset(c, 0, sizeof *c);
    snprintf(c->src_name, sizeof c->src_name, "%s", "a<b>&\"c'");
    snprintf(c->dst_name, sizeof c->dst_name, "%s", "<script>alert(1)</script>");
    memset(c->text_sha256, 'a', 64);
    c->has_text = true;
    c->rows = 12;
    c->cols = 100;
    c->docs = 12;
    c->tokens = 1200;
    c->stream_samples = 1200;
    c->layer_count = 3;
    assert_int_equal(kd_mem_zero(&c->layer, 3, sizeof *c->layer, "layers", &err), 0);
    for (int l = 1; l < 3; l++) {
        struct kd_agreement *g = &c->layer[l].agree;
        c->layer[l].moe = true;
        c->layer[l].stream = 0.1 * l;
        *g =
            (struct kd_agreement){.tokens = 1200, .topk = 4, .kept = 4800 - 480 * l, .whole = 1000};
        g->bin_kept[9] = 1000;
        g->bin_lost[3] = 200;
    }
    struct kd_pos *pos;
    int32_t *doc;
    uint8_t *control;
    assert_int_equal(kd_mem_zero(&pos, 1200, sizeof *pos, "p", &err), 0);
    assert_int_equal(kd_mem_zero(&doc, 1200, sizeof *doc, "d", &err), 0);
    assert_int_equal(kd_mem_zero(&control, 1200, 1, "c", &err), 0);
    for (int i = 0; i < 1200; i++) {
        pos[i] = (struct kd_pos){.kld = i % 100 < 64 ? 0.02 : 0.04,
                                 .nll_src = 1,
                                 .nll_dst = 1.5,
                                 .top_src = 1,
                                 .top_dst = i % 10 ? 1 : 2,
                                 .has_next = i % 100 != 99};
        doc[i] = i / 100;
        control[i] = i % 100 == 7;
    }
    assert_int_equal(kd_check_figures(c, pos, doc, control, &err), 0);
    pos[777].bad = true;
    assert_int_equal(kd_check_figures(c, pos, doc, control, &err), -1);
    assert_non_null(strstr(err.msg, "row 7, position 77"));
    kd_mem_free(pos);
    kd_mem_free(doc);
    kd_mem_free(control);
    c->dst.bytes[KD_PART_EXPERTS] = 3000;
    c->dst.weights[KD_PART_EXPERTS] = 10000;
    c->dst.k[KD_PART_EXPERTS] = 2.3;
    c->dst.file_bytes = 5000;
    c->src_weights = 20000;
    c->bits_experts = 2.3;
    c->bits_experts_real = 2.4;
    c->bits_trunk = 4;
    c->bits_trunk_real = 4.1;
    c->bits_file = 2;
    c->src_file_bytes = 10000;
}

static void figures(void **state)
{
    (void)state;
    struct kd_check c;
    fill(&c);
    assert_float_equal(c.kld_mean, 0.0272, 1e-12);
    assert_float_equal(c.kld_median, 0.02, 1e-12);
    assert_float_equal(c.kld_p95, 0.04, 1e-12);
    assert_float_equal(c.kld_range.lo, 0.0272, 1e-12); /* all documents alike */
    assert_true(c.by_documents && c.clusters == 12);
    assert_float_equal(c.top1, 0.9, 1e-12);
    assert_float_equal(c.ppl_src, 2.718281828459045, 1e-12);
    assert_float_equal(c.ppl_dst, 4.481689070338065, 1e-12);
    assert_float_equal(c.router_mean, 0.85, 1e-12);
    assert_float_equal(c.router_min, 0.8, 1e-12);
    assert_int_equal(c.router_min_layer, 2);
    assert_int_equal(c.control_tokens, 12);
    assert_float_equal(c.control_kld, 0.02, 1e-12);
    assert_int_equal(c.band[0].tokens, 768);
    assert_float_equal(c.band[0].kld, 0.02, 1e-12);
    assert_int_equal(c.band[1].tokens, 432);
    assert_float_equal(c.band[1].kld, 0.04, 1e-12);
    assert_int_equal(c.band[2].tokens, 0);
    assert_int_equal(c.kld_bin[15], 768); /* 2^-6 <= 0.02 < 2^-5 */
    assert_int_equal(c.kld_bin[16], 432);
    kd_check_release(&c);
}

static void require(void **state)
{
    (void)state;
    struct kd_check c;
    struct kd_err err;
    struct kd_verdict v = {.count = 0};
    fill(&c);
    assert_int_equal(kd_verdict_parse(&v, "kld=0.0272001,top1=0.9,router=0.85,ppl.ratio=1.7", &err),
                     0);
    kd_verdict_judge(&v, &c);
    assert_true(v.pass);
    assert_int_equal(kd_verdict_fail(&v, &err), 0);
    assert_int_equal(kd_verdict_parse(&v, "kld=0.5", &err), 0); /* the stricter one stays */
    assert_int_equal(v.count, 4);
    assert_float_equal(v.r[0].bound, 0.0272001, 0);
    assert_int_equal(kd_verdict_parse(&v, "router.min=0.81,battery.exact=0.5", &err), 0);
    kd_verdict_judge(&v, &c);
    assert_false(v.pass);
    assert_true(v.r[0].pass);
    assert_false(v.r[4].pass);
    assert_false(v.r[5].measured || v.r[5].pass);
    assert_int_equal(kd_verdict_fail(&v, &err), -1);
    assert_int_equal(err.code, KD_EGATE);
    assert_int_equal(kd_err_exit(&err), KD_EXIT_GATE);
    assert_non_null(strstr(err.msg, "router.min 0.8 is under 0.81"));
    assert_non_null(strstr(err.msg, "battery.exact was not measured"));
    static const char *const bad[] = {
        "", "kl=1", "kld", "kld=", "kld=x", "kld=1,", "kld=0.1 top1=1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kd_verdict none = {.count = 0};
        assert_int_equal(kd_verdict_parse(&none, bad[i], &err), -1);
        assert_int_equal(kd_err_exit(&err), KD_EXIT_USAGE);
    }
    kd_check_release(&c);
}

static void profile(void **state)
{
    (void)state;
    static const double at[][2] = {{1.5, 0.07},    {2.0, 0.07},    {2.25, 0.07},
                                   {2.2998, 0.05}, {2.3125, 0.05}, {4, 0.05}};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        struct kd_verdict v = {.count = 0};
        struct kd_err err;
        assert_int_equal(kd_verdict_profile(&v, "k3", at[i][0], &err), 0);
        assert_int_equal(v.count, 3);
        assert_float_equal(v.r[0].bound, at[i][1], 0);
        assert_float_equal(v.r[1].bound, 0.9, 0);
        assert_float_equal(v.r[2].bound, 0.85, 0);
        assert_int_equal(kd_verdict_profile(&v, "k4", 2, &err), -1);
    }
}

static void span(void **state)
{
    (void)state;
    const char *text = " {\"a\": {\"b\": \"}\\\"]\"}, \"b\" : [1, {\"c\":2}],\"d\":-1.50e3}";
    struct kd_span s;
    struct kd_err err;
    bool found;
    size_t n = strlen(text);
    assert_int_equal(kd_span_member(text, n, 1, "b", &s, &found, &err), 0);
    assert_true(found);
    assert_int_equal(s.end - s.begin, 12);
    assert_memory_equal(text + s.begin, "[1, {\"c\":2}]", 12);
    assert_int_equal(kd_span_member(text, n, 1, "d", &s, &found, &err), 0);
    assert_memory_equal(text + s.begin, "-1.50e3", s.end - s.begin);
    assert_int_equal(kd_span_member(text, n, 1, "c", &s, &found, &err), 0);
    assert_false(found);
    assert_int_equal(s.begin, n - 1);
    for (size_t cut = 1; cut < n; cut++) /* every prefix is refused or finds only whole values */
        if (!kd_span_member(text, cut, 1, "zz", &s, &found, &err))
            fail();
    size_t at = 1;
    const char *list = "[ {\"x\":[]} , 7,\"]\" ]";
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kd_span_item(list, strlen(list), &at, &s, &found, &err), 0);
        assert_true(found);
    }
    assert_int_equal(kd_span_item(list, strlen(list), &at, &s, &found, &err), 0);
    assert_false(found);
}

static void read_back(const char *dir, struct kd_buf *b)
{
    char path[512];
    struct kd_err err;
    snprintf(path, sizeof path, "%s/kondense.json", dir);
    kd_buf_clear(b);
    assert_int_equal(kd_file_read(b, path, 1 << 20, &err), 0);
}

static void receipt(void **state)
{
    (void)state;
    char dir[] = "/tmp/kd-verdict-XXXXXX", path[512];
    struct kd_check c;
    struct kd_err err;
    struct kd_json *root;
    struct kd_verdict v = {.count = 0};
    struct kd_buf first, second;
    kd_buf_init(&first, 1 << 20);
    kd_buf_init(&second, 1 << 20);
    fill(&c);
    assert_non_null(mkdtemp(dir));
    assert_int_equal(kd_verdict_parse(&v, "kld=0.01", &err), 0);
    kd_verdict_judge(&v, &c);
    /* Made when missing. */
    assert_int_equal(kd_verdict_write(&v, &c, dir, &err), 0);
    read_back(dir, &first);
    assert_int_equal(kd_json_parse(&root, first.data, first.size_bytes, "made", &err), 0);
    assert_non_null(kd_json_get(kd_json_get(root, "verdict"), "kld"));
    kd_json_free(root);
    /* Once more: the same bytes. */
    assert_int_equal(kd_verdict_write(&v, &c, dir, &err), 0);
    read_back(dir, &second);
    assert_int_equal(first.size_bytes, second.size_bytes);
    assert_memory_equal(first.data, second.data, first.size_bytes);
    /* Into a receipt, whose other bytes stay, and replaced there. */
    const char *old = "{\n  \"bits\": 2.30000,\n  \"odd\":  [1e2]\n}\n";
    snprintf(path, sizeof path, "%s/kondense.json", dir);
    assert_int_equal(kd_file_write(path, old, strlen(old), &err), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kd_verdict_write(&v, &c, dir, &err), 0);
        read_back(dir, &first);
        assert_memory_equal(first.data, old, strlen(old) - 3);
        assert_memory_equal(first.data + first.size_bytes - 3, "\n}\n", 3);
        assert_int_equal(kd_json_parse(&root, first.data, first.size_bytes, "kept", &err), 0);
        const struct kd_json *put = kd_json_get(root, "verdict");
        assert_int_equal(kd_json_kind(kd_json_get(put, "pass")), KD_JSON_BOOL);
        assert_false(kd_json_true(kd_json_get(put, "pass")));
        assert_int_equal(kd_json_int_value(kd_json_get(put, "tokens")), 1200);
        kd_json_free(root);
    }
    assert_int_equal(kd_file_write(path, "{\"a\": 1", 7, &err), 0);
    assert_int_equal(kd_verdict_write(&v, &c, dir, &err), -1);
    assert_int_equal(kd_dir_remove(dir, &err), 0);
    kd_buf_release(&first);
    kd_buf_release(&second);
    kd_check_release(&c);
}

/* Every tag closed in order, attributes quoted, no bare < or &. Void elements are named. */
static void well_formed(const char *html)
{
    static const char *const empty[] = {"meta", "!DOCTYPE"};
    char open[64][24];
    int depth = 0;
    for (const char *at = html; *at; at++) {
        if (*at == '&') {
            size_t n = strcspn(at, "; <");
            assert_true(at[n] == ';' && n > 1 && n < 8);
        }
        if (*at != '<')
            continue;
        char name[24] = "";
        size_t n = strcspn(at + 1 + (at[1] == '/'), " />\n");
        assert_true(n > 0 && n < sizeof name);
        memcpy(name, at + 1 + (at[1] == '/'), n);
        const char *end = at;
        for (int quoted = 0; *end && (*end != '>' || quoted); end++) {
            quoted ^= *end == '"';
            assert_false(end > at && *end == '<');
        }
        assert_true(*end == '>');
        if (at[1] == '/') {
            assert_true(depth > 0);
            assert_string_equal(open[--depth], name);
        } else if (end[-1] != '/' && strcmp(name, empty[0]) != 0 && strcmp(name, empty[1]) != 0) {
            assert_true(depth < 64);
            memcpy(open[depth++], name, sizeof name);
        }
        at = end;
    }
    assert_int_equal(depth, 0);
}

static void add_battery(struct kd_check *c)
{
    const bool src[10] = {true, true, true, true, true, true, true, false, false, false};
    const bool dst[10] = {true, true, true, true, true, false, false, true, false, false};
    c->has_battery = true;
    c->battery = (struct kd_battery){.requests = 10, .tokens = 300, .kld = 0.01, .top1 = 0.97};
    kd_battery_flips(&c->battery.exact, src, dst, 10);
    kd_battery_flips(&c->battery.calls, src, src, 10);
}

static void reports(void **state)
{
    (void)state;
    struct kd_check c;
    struct kd_err err;
    struct kd_verdict v = {.count = 0};
    struct kd_json *root;
    struct kd_buf b;
    kd_buf_init(&b, 1 << 20);
    fill(&c);
    add_battery(&c);
    assert_int_equal(c.battery.exact.lost, 2);
    assert_int_equal(c.battery.exact.gained, 1);
    assert_int_equal(
        kd_verdict_parse(&v, "kld=0.01,router=0.9,router.min=0.5,top1=0.1,kld.p99=1", &err), 0);
    kd_verdict_judge(&v, &c);

    kd_report_html(&b, &c, &v);
    assert_int_equal(kd_buf_ok(&b, "page", &err), 0);
    well_formed(b.data);
    assert_null(strstr(b.data, "<script"));
    assert_null(strstr(b.data, "http"));
    assert_null(strstr(b.data, "nan"));
    assert_non_null(strstr(b.data, "&lt;script&gt;alert(1)"));

    kd_buf_clear(&b);
    kd_report_text(&b, &c, &v);
    int lines = 0, column = 0;
    for (const char *at = b.data; *at; at++) {
        column = *at == '\n' ? 0 : column + ((*at & 0xC0) != 0x80);
        lines += *at == '\n';
        assert_true(column <= 100);
    }
    assert_true(lines <= 24);
    assert_non_null(strstr(b.data, "FAIL kld"));

    kd_buf_clear(&b);
    kd_report_json(&b, &c, &v);
    assert_int_equal(kd_json_parse(&root, b.data, b.size_bytes, "report", &err), 0);
    const struct kd_json *router = kd_json_get(root, "router");
    assert_int_equal(kd_json_count(kd_json_get(router, "layers")), 2);
    assert_float_equal(kd_json_num_value(kd_json_get(kd_json_get(root, "kld"), "p99")), 0.04,
                       1e-12);
    assert_float_equal(kd_json_num_value(kd_json_get(root, "top1")), 0.9, 1e-12);
    assert_float_equal(kd_json_num_value(kd_json_get(kd_json_get(root, "bits"), "file")), 2, 0);
    assert_int_equal(kd_json_int_value(kd_json_get(kd_json_get(root, "control"), "tokens")), 12);
    kd_json_free(root);
    kd_buf_release(&b);
    kd_check_release(&c);
}

static void calls(void **state)
{
    (void)state;
    static const struct {
        const char *want, *got;
        bool fits;
    } t[] = {
        {"null", "[]", true},
        {"null", "[{\"name\":\"f\",\"arguments\":{}}]", false},
        {"{\"name\":\"f\",\"arguments\":{\"a\":1,\"b\":\"x\"}}", "[]", false},
        {"{\"name\":\"f\",\"arguments\":{\"a\":1,\"b\":\"x\"}}",
         "[{\"name\":\"f\",\"arguments\":{\"b\":\"x\",\"a\":1.0}}]", true},
        {"{\"name\":\"f\",\"arguments\":{\"a\":1}}", "[{\"name\":\"g\",\"arguments\":{\"a\":1}}]",
         false},
        {"{\"name\":\"f\",\"arguments\":{\"a\":1}}",
         "[{\"name\":\"f\",\"arguments\":{\"a\":\"1\"}}]", false},
        {"{\"name\":\"f\",\"arguments\":{\"a\":1}}",
         "[{\"name\":\"f\",\"arguments\":{\"a\":1,\"b\":2}}]", false},
        {"{\"name\":\"f\",\"arguments\":{\"a\":[1,{\"c\":null}]}}",
         "[{\"name\":\"f\",\"arguments\":{\"a\":[1,{\"c\":null}]}}]", true},
        {"{\"name\":\"f\",\"arguments\":{\"a\":true}}",
         "[{\"name\":\"f\",\"arguments\":{\"a\":false}}]", false},
        {"{\"name\":\"f\",\"arguments\":{}}",
         "[{\"name\":\"f\",\"arguments\":{}},{\"name\":\"f\",\"arguments\":{}}]", false},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct kd_json *want, *got;
        struct kd_err err;
        assert_int_equal(kd_json_parse(&want, t[i].want, strlen(t[i].want), "want", &err), 0);
        assert_int_equal(kd_json_parse(&got, t[i].got, strlen(t[i].got), "got", &err), 0);
        assert_int_equal(kd_battery_call_fits(want, got), t[i].fits);
        kd_json_free(want);
        kd_json_free(got);
    }
}

static void battery_file(void **state)
{
    (void)state;
    char path[] = "/tmp/kd-battery-XXXXXX";
    const char *text =
        "[ {\"request\": {\"thinking\": false, \"n\": 1.50}, \"expected_call\": null, "
        "\"expected_text\": \"yes\"},\n {\"expected_text\": \"no\", \"expected_call\": "
        "{\"name\": \"f\"}, \"request\": {}} ]";
    struct kd_battery_file f;
    struct kd_err err;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(kd_file_write(path, text, strlen(text), &err), 0);
    assert_int_equal(kd_battery_load(&f, path, 0, &err), 0);
    assert_int_equal(f.count, 2);
    assert_memory_equal(f.item[0].request, "{\"thinking\": false, \"n\": 1.50}",
                        f.item[0].request_bytes);
    assert_false(f.item[0].thinking);
    assert_true(f.item[1].thinking);
    assert_int_equal(f.item[1].expected_bytes, 2);
    kd_battery_file_release(&f);
    static const char *const bad[] = {
        "{}",
        "[]",
        "[1]",
        "[{\"request\":{}}]",
        "[{\"request\":[],\"expected_text\":\"x\"}]",
        "[{\"request\":{},\"expected_text\":\"x\",\"expected_call\":3}]"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(kd_file_write(path, bad[i], strlen(bad[i]), &err), 0);
        assert_int_equal(kd_battery_load(&f, path, 0, &err), -1);
        assert_int_equal(err.code, KD_ECORRUPT);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures), cmocka_unit_test(require),      cmocka_unit_test(profile),
        cmocka_unit_test(span),    cmocka_unit_test(receipt),      cmocka_unit_test(reports),
        cmocka_unit_test(calls),   cmocka_unit_test(battery_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
