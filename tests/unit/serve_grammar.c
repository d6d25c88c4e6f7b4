/* serve/grammar: random walks through the masks always end in what the rules ask for; masks agree
 * with what is taken, token by token; schemas that cannot be done are refused with their path; and
 * the limits: states, depth, time of a mask at the released vocabulary's size. */
#include "serve/grammar.h"

#include "base/clock.h"
#include "base/rand.h"
#include "text/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static struct kd_tok *tok;
static struct kd_vocab *vocab;
static struct kd_err err;

static struct kd_grammar *compile_json(struct kd_jtree *t, const char *schema, int rc)
{
    struct kd_grammar *g;
    assert_int_equal(kd_jtree_parse(t, schema, strlen(schema), &err), 0);
    struct kd_grammar_spec s = {.answer = KD_ANSWER_SCHEMA, .tree = t, .schema = kd_jtree_root(t)};
    err.msg[0] = 0;
    int got = kd_grammar_compile(&g, vocab, &s, &err);
    if (got != rc)
        fail_msg("%s: %d (%s)", schema, got, err.msg);
    return g;
}

static struct kd_grammar *compile_tools(struct kd_jtree *t, const char *schema, bool think,
                                        bool one)
{
    struct kd_grammar *g;
    assert_int_equal(kd_jtree_parse(t, schema, strlen(schema), &err), 0);
    struct kd_grammar_tool tools[] = {{"get_weather", t, kd_jtree_root(t)}, {"get_time", t, NULL}};
    struct kd_grammar_spec s = {
        .think = think, .calls = KD_CALLS_MUST, .tools = tools, .tool_count = 2, .one_call = one};
    if (kd_grammar_compile(&g, vocab, &s, &err))
        fail_msg("%s: %s", schema, err.msg);
    return g;
}

/* A walk: any allowed token, with a taste for short ones and, from `soon` steps on, for control
 * tokens and closing brackets. */
static bool walk(const struct kd_grammar *g, uint64_t seed, int steps, int soon, struct kd_ids *ids)
{
    int64_t n = kd_tok_vocab(tok), words = (n + 63) / 64;
    uint64_t *bits = malloc((size_t)words * 8);
    struct kd_turn_rule *r;
    assert_non_null(bits);
    assert_int_equal(kd_turn_rule_open(&r, g, &err), 0);
    ids->count = 0;
    bool done = false;
    for (int i = 0; i < steps && !done; i++) {
        int32_t best = -1;
        double score = -1;
        memset(bits, 0xff, (size_t)words * 8);
        if (kd_turn_rule_mask(r, bits, n, &err))
            fail_msg("no token: %s", err.msg);
        for (int32_t id = 0; id < n; id++) {
            size_t len = 0;
            if (!(bits[id / 64] >> (id % 64) & 1))
                continue;
            const char *s = kd_tok_bytes(tok, id, &len);
            double k = kd_rand_unit(seed, (uint64_t)i * 200000u + (uint64_t)id) / (double)(len + 1);
            bool ends = kd_tok_is_special(tok, id) || (len == 1 && strchr("}]\"0", s[0]));
            k += i > soon && ends ? (kd_tok_is_special(tok, id) ? 2 : s[0] == '0' ? 0.1 : 1) : 0;
            if (k > score) {
                score = k;
                best = id;
            }
        }
        assert_true(best >= 0);
        assert_int_equal(kd_ids_add(ids, best, &err), 0);
        if (kd_turn_rule_take(r, best, &err))
            fail_msg("took what the mask allowed: %s", err.msg);
        done = kd_turn_rule_done(r);
    }
    kd_turn_rule_close(r);
    free(bits);
    return done;
}

/* Whether the text is an answer the rules take, whole. */
static bool takes(const struct kd_grammar *g, const char *markup)
{
    struct kd_ids ids = {0};
    struct kd_turn_rule *r;
    bool ok = true;
    assert_int_equal(kd_chat_markup_ids(tok, markup, strlen(markup), &ids, &err), 0);
    assert_int_equal(kd_turn_rule_open(&r, g, &err), 0);
    for (int64_t i = 0; i < ids.count && ok; i++)
        ok = !kd_turn_rule_take(r, ids.id[i], &err);
    ok = ok && kd_turn_rule_done(r);
    kd_turn_rule_close(r);
    kd_ids_release(&ids);
    return ok;
}

#define END "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"

static void json_case(const char *schema, const char *const *yes, const char *const *no)
{
    struct kd_jtree t;
    struct kd_grammar *g = compile_json(&t, schema, 0);
    char text[4096];
    for (; *yes; yes++) {
        snprintf(text, sizeof text, "%s" END, *yes);
        if (!takes(g, text))
            fail_msg("%s does not take %s (%s)", schema, *yes, err.msg);
    }
    for (; *no; no++) {
        snprintf(text, sizeof text, "%s" END, *no);
        if (takes(g, text))
            fail_msg("%s takes %s", schema, *no);
    }
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct kd_ids ids = {0};
        struct kd_turn_text out;
        struct kd_jtree v;
        if (!walk(g, seed, 600, 30, &ids))
            fail_msg("%s: a walk does not end", schema);
        assert_int_equal(kd_turn_parse(tok, KD_TURN_RESPONSE, ids.id, ids.count, &out, &err), 0);
        if (kd_jtree_parse(&v, out.content.data, out.content.size_bytes, &err))
            fail_msg("%s: a walk gives %s (%s)", schema, out.content.data, err.msg);
        kd_jtree_release(&v);
        snprintf(text, sizeof text, "%.3000s" END, out.content.data);
        if (out.content.size_bytes < 3000 && !strstr(out.content.data, "<|") &&
            strlen(out.content.data) == out.content.size_bytes && !takes(g, text))
            fail_msg("%s: a walk's text cut otherwise is refused: %s", schema, out.content.data);
        kd_turn_text_release(&out);
        kd_ids_release(&ids);
    }
    kd_grammar_close(g);
    kd_jtree_release(&t);
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

static void schemas(void **state)
{
    (void)state;
    json_case("{\"type\":\"object\"}", LIST("{}", "{\"a\":[1,{\"b\":null}]}"),
              LIST("[]", "{ }", "1"));
    json_case("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
              "\"string\"}},\"required\":[\"a\"]}",
              LIST("{\"a\":1}", "{\"a\":-12,\"b\":\"x\"}", "{\"a\":0,\"b\":\"\\u00e4\\n\\\"\"}"),
              LIST("{}", "{\"b\":\"x\"}", "{\"a\":1,\"c\":2}", "{\"a\":1.5}", "{\"a\": 1}",
                   "{\"a\":01}", "{\"a\":1,}", "{\"b\":\"x\",\"a\":1}"));
    json_case(
        "{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"required\":[\"b\"]}",
        LIST("{\"b\":1}", "{\"a\":1,\"b\":1}", "{\"a\":1,\"b\":1,\"c\":1}", "{\"b\":1,\"c\":[]}"),
        LIST("{\"a\":1}", "{\"a\":1,\"c\":1}", "{}"));
    json_case("{\"properties\":{\"a\":{},\"b\":{}}}",
              LIST("{}", "{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"b\":2}"), LIST("{\"c\":1}", "{,}"));
    json_case("{\"properties\":{\"ab\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":"
              "\"boolean\"}}",
              LIST("{}", "{\"ab\":1}", "{\"ab\":1,\"x\":true}", "{\"a\":true}", "{\"abc\":false}"),
              LIST("{\"ab\":true}", "{\"x\":1}", "{\"a\\u0062\":true}"));
    json_case("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
              LIST("[1]", "[1,2,3]"), LIST("[]", "[1,2,3,4]", "[true]", "[1, 2]"));
    json_case("{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],"
              "\"items\":{\"type\":\"null\"}}",
              LIST("[]", "[\"a\"]", "[\"a\",1]", "[\"a\",1,null,null]"),
              LIST("[1]", "[\"a\",1,2]"));
    json_case("{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"}],\"minItems\":1}",
              LIST("[\"a\"]"), LIST("[]", "[\"a\",1]"));
    json_case("{\"type\":\"string\",\"minLength\":2,\"maxLength\":4}",
              LIST("\"ab\"", "\"\xc3\xa4\xc3\xb6\xc3\xbc\xe2\x82\xac\"", "\"\\n\\u20ac\""),
              LIST("\"a\"", "\"abcde\"", "\"\""));
    json_case("{\"enum\":[\"a\",\"ab\",1,null,{\"k\":[1,2]}]}",
              LIST("\"a\"", "\"ab\"", "1", "null", "{\"k\":[1,2]}"), LIST("\"b\"", "2", "{}"));
    json_case("{\"enum\":[\"a\",1],\"type\":\"string\"}", LIST("\"a\""), LIST("1"));
    json_case("{\"const\":null}", LIST("null"), LIST("1"));
    json_case("{\"type\":[\"string\",\"null\"]}", LIST("\"x\"", "null"), LIST("1"));
    json_case(
        "{\"anyOf\":[{\"type\":\"integer\",\"minimum\":5},{\"type\":\"object\",\"properties\":"
        "{\"x\":{\"type\":\"number\"}},\"required\":[\"x\"]}]}",
        LIST("5", "123", "{\"x\":-1.5e3}", "{\"x\":0.25}"), LIST("4", "{}", "-5"));
    json_case("{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},"
              "{\"properties\":{\"b\":{\"type\":\"null\"}}}]}",
              LIST("{\"a\":1}", "{\"a\":1,\"b\":null}"), LIST("{}", "{\"b\":null}"));
    json_case("{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
              "\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},\"required\":"
              "[\"v\",\"next\"]}},\"$ref\":\"#/$defs/n\"}",
              LIST("{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"),
              LIST("{\"v\":1}", "{\"v\":1,\"next\":{}}"));
}

static void numbers(void **state)
{
    (void)state;
    json_case("{\"type\":\"integer\",\"minimum\":-3,\"maximum\":120}",
              LIST("-3", "-1", "0", "7", "99", "100", "120"),
              LIST("-4", "121", "-0", "1200", "13.0"));
    json_case("{\"type\":\"integer\",\"minimum\":100,\"maximum\":199}", LIST("100", "155", "199"),
              LIST("99", "200", "1", "0"));
    json_case("{\"type\":\"integer\",\"maximum\":-5}", LIST("-5", "-17"), LIST("-4", "0", "5"));
    json_case("{\"type\":\"number\",\"minimum\":0.5,\"maximum\":1.25}",
              LIST("0.5", "0.75", "1", "1.25", "1.2"), LIST("0.4", "1.26", "2", "0", "-1", "5e-1"));
    json_case("{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":-0.5}", LIST("-1.5", "-1", "-0.5"),
              LIST("0", "-0.4", "-1.6", "1"));
    json_case("{\"type\":\"number\"}", LIST("0", "-0.0", "1e5", "1.5E-7", "12345678901234567890"),
              LIST("00", "1.", ".5", "+1", "1e", "-"));
}

static void refused(void **state)
{
    static const struct {
        const char *schema, *says;
    } t[] = {
        {"{\"type\":\"string\",\"pattern\":\"a+\"}", "$: 'pattern'"},
        {"{\"properties\":{\"a\":{\"items\":{\"not\":{}}}}}", "$.properties.a.items: 'not'"},
        {"{\"anyOf\":[{\"type\":\"null\"},{\"multipleOf\":2}]}", "$.anyOf[1]: 'multipleOf'"},
        {"{\"$ref\":\"#\"}", "nothing in between"},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", "nothing in between"},
        {"{\"$ref\":\"#/$defs/none\"}", "leads nowhere"},
        {"{\"$ref\":\"http://a/b\"}", "does not lead into"},
        {"{\"type\":\"strnig\"}", "'type'"},
        {"{\"type\":[]}", "empty list"},
        {"{\"enum\":[]}", "no value"},
        {"{\"enum\":[1],\"type\":\"string\"}", "no value"},
        {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "no number"},
        {"{\"type\":\"array\",\"minItems\":5,\"maxItems\":4}", "the least is over"},
        {"{\"type\":\"object\",\"anyOf\":[{\"required\":[\"a\"]}]}", "beside"},
        {"{\"items\":5}", "not a schema"},
        {"{\"minLength\":-1}", "not a count"},
        {"{\"allOf\":[{\"$ref\":\"#\"}]}", "loop"},
        {"{\"uniqueItems\":true,\"type\":\"array\"}", "'uniqueItems'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct kd_jtree tree;
        compile_json(&tree, t[i].schema, -1);
        if (!strstr(err.msg, t[i].says))
            fail_msg("%s: '%s' does not say '%s'", t[i].schema, err.msg, t[i].says);
        kd_jtree_release(&tree);
    }
    /* More states than there may be. */
    struct kd_buf big;
    struct kd_jtree tree;
    kd_buf_init(&big, 1 << 24);
    kd_buf_str(&big, "{\"enum\":[\"");
    for (int i = 0; i < 11000; i++)
        kd_buf_char(&big, 'x');
    kd_buf_str(&big, "\"]}");
    compile_json(&tree, big.data, -1);
    assert_non_null(strstr(err.msg, "10000 states"));
    kd_jtree_release(&tree);
    kd_buf_release(&big);
}

/* Deeper than 256 levels nothing opens. */
static void depth(void **state)
{
    struct kd_jtree t;
    struct kd_grammar *g = compile_json(&t, "{}", 0);
    char text[1024];
    (void)state;
    memset(text, '[', 100);
    memset(text + 100, ']', 100);
    snprintf(text + 200, sizeof text - 200, END);
    assert_true(takes(g, text));
    memset(text, '[', 300);
    memset(text + 300, ']', 300);
    snprintf(text + 600, sizeof text - 600, END);
    assert_false(takes(g, text));
    kd_grammar_close(g);
    kd_jtree_release(&t);
}

#define CALL(n, args)                                                                              \
    "<|open|>call tool=\"get_weather\" index=\"" n "\"<|sep|>" args "<|close|>call<|sep|>"
#define ARG(k, t, v)                                                                               \
    "<|open|>argument key=\"" k "\" type=\"" t "\"<|sep|>" v "<|close|>argument<|sep|>"
#define TOOLS_END "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
#define RESP                                                                                       \
    "<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"

static void calls(void **state)
{
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":"
        "\"integer\",\"minimum\":1,\"maximum\":9},\"unit\":{\"enum\":[\"C\",\"F\"]},\"more\":{"
        "\"type\":"
        "\"object\"}},\"required\":[\"city\"]}";
    struct kd_jtree t;
    struct kd_grammar *g = compile_tools(&t, schema, true, false);
    (void)state;
    assert_true(
        takes(g, "Hm \"\n" RESP CALL("1", ARG("city", "string", "York \"x\"\n")) TOOLS_END));
    assert_true(takes(g, RESP CALL("1", ARG("city", "string", "") ARG("days", "number", "3")
                                            ARG("unit", "string", "F")
                                                ARG("more", "object", "{\"a\": [1, 2]}"))
                             CALL("2", ARG("city", "string", "Rome")) TOOLS_END));
    /* Thinking that ends by the next element's tag. */
    assert_true(takes(g, "x<|open|>tools<|sep|>" CALL("1", ARG("city", "string", "a")) TOOLS_END));
    assert_true(
        takes(g, "x<|open|>response<|sep|>I look.<|close|>response<|sep|><|open|>tools<|sep|>" CALL(
                     "1", ARG("city", "string", "a")) TOOLS_END));
    assert_true(takes(
        g, RESP "<|open|>call tool=\"get_time\" index=\"1\"<|sep|>" ARG("any", "array", "[1, 2]")
               ARG("s", "string", "x") "<|close|>call<|sep|>" TOOLS_END));
    assert_false(takes(g, RESP TOOLS_END));
    assert_false(takes(g, "x<|close|>think<|sep|><|open|>response<|sep|>no" END));
    assert_false(takes(g, "x<|end_of_msg|>"));
    assert_false(takes(g, RESP CALL("2", ARG("city", "string", "a")) TOOLS_END));
    assert_false(takes(g, RESP CALL("1", ARG("days", "number", "3")) TOOLS_END));
    assert_false(takes(g, RESP CALL("1", ARG("city", "number", "3")) TOOLS_END));
    assert_false(
        takes(g, RESP CALL("1", ARG("city", "string", "a") ARG("days", "number", "10")) TOOLS_END));
    assert_false(
        takes(g, RESP CALL("1", ARG("city", "string", "a") ARG("unit", "string", "K")) TOOLS_END));
    assert_false(takes(
        g, RESP "<|open|>call tool=\"other\" index=\"1\"<|sep|><|close|>call<|sep|>" TOOLS_END));
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct kd_ids ids = {0};
        struct kd_turn_text out;
        assert_true(walk(g, seed, 900, 20, &ids));
        assert_int_equal(kd_turn_parse(tok, KD_TURN_THINK, ids.id, ids.count, &out, &err), 0);
        assert_true(out.call_count >= 1 && out.ended);
        kd_turn_text_release(&out);
        kd_ids_release(&ids);
    }
    kd_grammar_close(g);
    kd_jtree_release(&t);
    g = compile_tools(&t, schema, false, true);
    assert_true(takes(g, "<|close|>response<|sep|><|open|>tools<|sep|>" CALL(
                             "1", ARG("city", "string", "a")) TOOLS_END));
    assert_false(takes(
        g, "<|close|>response<|sep|><|open|>tools<|sep|>" CALL("1", ARG("city", "string", "a"))
               CALL("2", ARG("city", "string", "a")) TOOLS_END));
    kd_grammar_close(g);
    kd_jtree_release(&t);
}

/* Along a walk, the mask says of every token what taking it says. */
static void masks_agree(void **state)
{
    static const char *const s[] = {"{\"type\":\"object\",\"properties\":{\"n\":{\"type\":"
                                    "\"number\",\"minimum\":0.5,\"maximum\":20},"
                                    "\"s\":{\"type\":\"string\",\"maxLength\":6},\"e\":{\"enum\":["
                                    "\"ab\",\"abc\",\"\xc3\xa4\"]}},"
                                    "\"required\":[\"n\",\"s\",\"e\"]}",
                                    "{}"};
    int64_t n = kd_tok_vocab(tok), words = (n + 63) / 64;
    uint64_t *bits = malloc((size_t)words * 8);
    (void)state;
    assert_non_null(bits);
    for (int k = 0; k < 2; k++) {
        struct kd_jtree t;
        struct kd_grammar *g = compile_json(&t, s[k], 0);
        struct kd_ids ids = {0};
        walk(g, 7 + (uint64_t)k, 60, 15, &ids);
        for (int64_t cut = 0; cut < ids.count && cut < 24; cut++) {
            struct kd_turn_rule *r;
            assert_int_equal(kd_turn_rule_open(&r, g, &err), 0);
            for (int64_t i = 0; i < cut; i++)
                assert_int_equal(kd_turn_rule_take(r, ids.id[i], &err), 0);
            memset(bits, 0xff, (size_t)words * 8);
            assert_int_equal(kd_turn_rule_mask(r, bits, n, &err), 0);
            kd_turn_rule_close(r);
            for (int32_t id = (int32_t)cut; id < n; id += 3) {
                assert_int_equal(kd_turn_rule_open(&r, g, &err), 0);
                for (int64_t i = 0; i < cut; i++)
                    assert_int_equal(kd_turn_rule_take(r, ids.id[i], &err), 0);
                bool may = bits[id / 64] >> (id % 64) & 1, did = !kd_turn_rule_take(r, id, &err);
                if (may != did)
                    fail_msg("schema %d after %d tokens: id %d mask %d take %d", k, (int)cut, id,
                             may, did);
                kd_turn_rule_close(r);
            }
        }
        kd_ids_release(&ids);
        kd_grammar_close(g);
        kd_jtree_release(&t);
    }
    free(bits);
}

/* The released vocabulary: time of preparing and of masks, the worst ones met on walks. */
static void full_size(void **state)
{
    struct kd_tok *small = tok;
    struct kd_vocab *small_vocab = vocab;
    const char *root = getenv("KONDENSE_TEST_DATA");
    char dir[4096];
    (void)state;
    snprintf(dir, sizeof dir, "%s/kimi-tokenizer", root ? root : "tests/data");
    assert_int_equal(kd_tok_open(&tok, dir, &err), 0);
    double t0 = kd_clock_cpu_s();
    assert_int_equal(kd_vocab_open(&vocab, tok, &err), 0);
    double prepared = kd_clock_cpu_s() - t0, worst = 0, sum = 0;
    static const char *const s[] = {
        "{}",
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":50},\"b\":"
        "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"number\"},{\"type\":\"array\",\"items\":"
        "{\"type\":\"string\"}}]}},\"required\":[\"a\",\"b\"]}"};
    int64_t n = kd_tok_vocab(tok), words = (n + 63) / 64, masks = 0;
    uint64_t *bits = malloc((size_t)words * 8);
    assert_non_null(bits);
    for (int k = 0; k < 2; k++) {
        struct kd_jtree t;
        t0 = kd_clock_cpu_s();
        struct kd_grammar *g = compile_json(&t, s[k], 0);
        assert_true(kd_clock_cpu_s() - t0 < 0.1);
        for (uint64_t seed = 0; seed < 4; seed++) {
            struct kd_turn_rule *r;
            assert_int_equal(kd_turn_rule_open(&r, g, &err), 0);
            for (int i = 0; i < 60 && !kd_turn_rule_done(r); i++) {
                memset(bits, 0xff, (size_t)words * 8);
                t0 = kd_clock_cpu_s();
                assert_int_equal(kd_turn_rule_mask(r, bits, n, &err), 0);
                double d = kd_clock_cpu_s() - t0;
                worst = d > worst ? d : worst;
                sum += d;
                masks++;
                int32_t id = (int32_t)(kd_rand_u64(seed, (uint64_t)i) % (uint64_t)n);
                while (!(bits[id / 64] >> (id % 64) & 1))
                    id = (int32_t)((id + 1) % n);
                assert_int_equal(kd_turn_rule_take(r, id, &err), 0);
            }
            kd_turn_rule_close(r);
        }
        kd_grammar_close(g);
        kd_jtree_release(&t);
    }
    print_message(
        "vocabulary of %d: prepared in %.0f ms, mask %.3f ms on average, %.3f ms at worst\n",
        (int)n, prepared * 1e3, sum / (double)masks * 1e3, worst * 1e3);
#if !defined(__SANITIZE_ADDRESS__) && !defined(KD_DEBUG)
    assert_true(sum / (double)masks < 1e-3);
#endif
    free(bits);
    kd_vocab_close(vocab);
    kd_tok_close(tok);
    tok = small;
    vocab = small_vocab;
}

int main(void)
{
    const char *root = getenv("KONDENSE_TEST_DATA");
    char dir[4096];
    snprintf(dir, sizeof dir, "%s/k3-nano", root ? root : "tests/data");
    if (kd_tok_open(&tok, dir, &err) || kd_vocab_open(&vocab, tok, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(schemas),  cmocka_unit_test(numbers),
                                       cmocka_unit_test(refused),  cmocka_unit_test(depth),
                                       cmocka_unit_test(calls),    cmocka_unit_test(masks_agree),
                                       cmocka_unit_test(full_size)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    kd_vocab_close(vocab);
    kd_tok_close(tok);
    return rc;
}
