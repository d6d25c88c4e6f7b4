/* gate/endpoint: expected turns without a tokenizer, requests as they are sent, answers as they
 * come. */
#include "gate/endpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kd_json *parse(const char *text)
{
    struct kd_json *v;
    struct kd_err err;
    assert_int_equal(kd_json_parse(&v, text, strlen(text), "test", &err), 0);
    return v;
}

/* Every turn of the battery, put together again from its parts, is itself. */
static void wants(void **state)
{
    char path[4096];
    struct kd_battery_file f;
    struct kd_err err;
    const char *data = getenv("KONDENSE_TEST_DATA");
    int64_t thinking = 0, calls = 0;
    (void)state;
    snprintf(path, sizeof path, "%s/agent-battery.json", data ? data : "tests/data");
    assert_int_equal(kd_battery_load(&f, path, 0, &err), 0);
    for (int64_t i = 0; i < f.count; i++) {
        const struct kd_battery_item *it = &f.item[i];
        struct kd_want w;
        struct kd_buf b;
        assert_int_equal(kd_want_parse(&w, it, &err), 0);
        kd_buf_init(&b, 1 << 20);
        if (it->thinking)
            kd_buf_printf(&b, "%s<|close|>think<|sep|><|open|>response<|sep|>",
                          w.think.data ? w.think.data : "");
        kd_buf_printf(&b, "%s<|close|>response<|sep|>", w.content.data ? w.content.data : "");
        assert_true(b.size_bytes < it->expected_bytes);
        assert_memory_equal(b.data, it->expected, b.size_bytes);
        assert_null(w.content.data ? strstr(w.content.data, "<|") : NULL);
        thinking += it->thinking;
        calls += kd_json_kind(it->call) == KD_JSON_OBJECT;
        kd_buf_release(&b);
        kd_want_release(&w);
    }
    assert_true(thinking > 100 && thinking < f.count && calls > 100 && calls < f.count);
    kd_battery_file_release(&f);
}

static void bad_wants(void **state)
{
    static const struct {
        const char *text;
        bool thinking, call, ok;
    } t[] = {
        {"Hi<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>", false, false, true},
        {"T<|close|>think<|sep|><|close|>message<|sep|>", true, false, true}, /* no answer */
        {"Hi<|close|>response<|sep|>", true, false, false},
        {"Hi", false, false, false},
        {"T<|close|>think<|sep|><|open|>response<|sep|>Hi", true, false, false},
        {"<|close|>response<|sep|>", false, true, false},
        {"<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"x\" ", false, false,
         false},
        {"<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"x\" ", false, true, true},
    };
    struct kd_json *call = parse("{\"name\": \"x\", \"arguments\": {}}");
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct kd_want w;
        struct kd_err err;
        const struct kd_battery_item it = {.expected = t[i].text,
                                           .expected_bytes = strlen(t[i].text),
                                           .call = t[i].call ? call : NULL,
                                           .thinking = t[i].thinking};
        assert_int_equal(kd_want_parse(&w, &it, &err), t[i].ok ? 0 : -1);
        kd_want_release(&w);
    }
    kd_json_free(call);
}

static void requests(void **state)
{
    static const char req[] =
        "{\"messages\": [ {\"role\":\"user\", \"content\":\"1.0\"} ], \"thinking\": true,\n"
        "\"thinking_effort\": \"low\", \"seed\": 1e0, \"temperature\": 1, \"stream\": true}";
    struct kd_json *v = parse(req);
    const struct kd_battery_item it = {.request = req,
                                       .request_bytes = strlen(req),
                                       .parsed = v,
                                       .expected = "0123456789",
                                       .expected_bytes = 10,
                                       .thinking = true};
    struct kd_buf b;
    struct kd_err err;
    (void)state;
    kd_buf_init(&b, 1 << 16);
    assert_int_equal(kd_endpoint_body(&b, &it, "a\"b", &err), 0);
    assert_string_equal(b.data,
                        "{\"model\":\"a\\\"b\",\"messages\":[ {\"role\":\"user\", "
                        "\"content\":\"1.0\"} ],\"seed\":1e0,\"stream\":false,\"temperature\":0,"
                        "\"max_tokens\":47,\"chat_template_kwargs\":{\"thinking\":true,"
                        "\"thinking_effort\":\"low\"}}");
    kd_buf_release(&b);
    kd_json_free(v);
}

#define ANSWER(message, finish)                                                                    \
    "{\"choices\":[{\"finish_reason\":" finish ",\"message\":" message "}]}"
#define CALL(args) "{\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":" args "}}]}"

static void answers(void **state)
{
    static const struct {
        const char *body, *think, *content; /* think NULL: not shown */
        bool ended, bad;
        size_t calls;
    } t[] = {
        {ANSWER("{\"content\":\"a\",\"reasoning_content\":\"b\"}", "\"stop\""), "b", "a", true,
         false, 0},
        {ANSWER("{\"content\":null,\"reasoning\":\"c\"}", "\"eos\""), "c", "", true, false, 0},
        {ANSWER("{\"reasoning_content\":null,\"reasoning\":\"\"}", "null"), "", "", true, false, 0},
        {ANSWER("{\"content\":\"a\"}", "\"length\""), NULL, "a", false, false, 0},
        {ANSWER("{\"content\":\"a\"}", "\"content_filter\""), NULL, "a", false, false, 0},
        {ANSWER(CALL("\"{\\\"x\\\":1}\""), "\"tool_calls\""), NULL, "", true, false, 1},
        {ANSWER(CALL("\"{\\\"x\\\":1}}, {\""), "\"stop\""), NULL, "", true, true, 0},
        {ANSWER(CALL("\"\""), "\"stop\""), NULL, "", true, true, 0},
        {ANSWER(CALL("\"[]\""), "\"stop\""), NULL, "", true, true, 1},
        {ANSWER(CALL("{\"x\":1}"), "\"stop\""), NULL, "", true, true, 0},
        {ANSWER("{\"tool_calls\":[7]}", "\"stop\""), NULL, "", true, true, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct kd_said a;
        struct kd_err err;
        assert_int_equal(kd_said_parse(&a, t[i].body, strlen(t[i].body), &err), 0);
        assert_int_equal(a.has_think, t[i].think != NULL);
        assert_string_equal(a.think.size_bytes ? a.think.data : "", t[i].think ? t[i].think : "");
        assert_string_equal(a.content.size_bytes ? a.content.data : "", t[i].content);
        assert_int_equal(a.ended, t[i].ended);
        assert_int_equal(a.bad_call, t[i].bad);
        assert_int_equal(kd_json_count(a.calls), t[i].calls);
        kd_said_release(&a);
    }
}

/* Arguments nested to the parser's limit have no room for the call around them. */
static void deep_arguments(void **state)
{
    enum { DEEP = 2040 };
    struct kd_buf b;
    struct kd_said a;
    struct kd_err err;
    (void)state;
    for (int deep = DEEP; deep < DEEP + 12; deep++) {
        kd_buf_init(&b, 1 << 20);
        kd_buf_str(&b, "{\"choices\":[{\"message\":{\"tool_calls\":[{\"function\":{\"name\":\"f\","
                       "\"arguments\":\"");
        for (int i = 0; i < deep; i++)
            kd_buf_str(&b, "{\\\"a\\\":");
        kd_buf_char(&b, '1');
        for (int i = 0; i < deep; i++)
            kd_buf_char(&b, '}');
        kd_buf_str(&b, "\"}}]}}]}");
        assert_int_equal(kd_said_parse(&a, b.data, b.size_bytes, &err), 0);
        assert_true(a.bad_call || kd_json_count(a.calls) == 1);
        assert_true(deep < DEEP + 11 || a.bad_call);
        kd_said_release(&a);
        kd_buf_release(&b);
    }
}

static void no_answers(void **state)
{
    static const char *const t[] = {"",
                                    "nonsense",
                                    "{}",
                                    "[]",
                                    "7",
                                    "{\"choices\":{}}",
                                    "{\"choices\":[]}",
                                    "{\"choices\":[7]}",
                                    "{\"choices\":[{\"message\":null}]}",
                                    ANSWER("{\"content\":1}", "\"stop\""),
                                    ANSWER("{\"content\":[]}", "\"stop\""),
                                    ANSWER("{\"reasoning\":1}", "\"stop\""),
                                    ANSWER("{\"tool_calls\":1}", "\"stop\"")};
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct kd_said a;
        struct kd_err err = {.code = KD_OK};
        assert_int_equal(kd_said_parse(&a, t[i], strlen(t[i]), &err), -1);
        assert_int_equal(err.code, KD_EREMOTE);
    }
}

static void models(void **state)
{
    static const struct {
        const char *body, *model; /* NULL: refused */
    } t[] = {{"{\"data\":[{\"id\":\"m\"}]}", "m"},
             {"{\"data\":[{\"id\":\"m\"},{\"id\":\"n\"}]}", NULL},
             {"{\"data\":[]}", NULL},
             {"{\"data\":[{\"id\":\"\"}]}", NULL},
             {"{\"data\":[{\"id\":\"01234567\"}]}", NULL},
             {"{\"data\":\"m\"}", NULL},
             {"<html>", NULL}};
    char out[8];
    struct kd_err err;
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        assert_int_equal(kd_endpoint_model(out, sizeof out, t[i].body, strlen(t[i].body), &err),
                         t[i].model ? 0 : -1);
        if (t[i].model)
            assert_string_equal(out, t[i].model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wants),   cmocka_unit_test(bad_wants),      cmocka_unit_test(requests),
        cmocka_unit_test(answers), cmocka_unit_test(deep_arguments), cmocka_unit_test(no_answers),
        cmocka_unit_test(models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
