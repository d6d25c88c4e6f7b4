/* text/chat and text/jtree: the reference's rendered chats, JSON as Python writes it, hostile
 * requests. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "text/chat.h"
#include "text/jtree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char data_dir[3000];
static struct kd_tok *kimi, *nano;

static const char *data_path(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", data_dir, name);
    return path;
}

static int setup(void **state)
{
    (void)state;
    struct kd_err err;
    const char *dir = getenv("KONDENSE_TEST_DATA");
    snprintf(data_dir, sizeof data_dir, "%s", dir ? dir : "tests/data");
    return kd_tok_open(&kimi, data_path("kimi-tokenizer"), &err) ||
           kd_tok_open(&nano, data_path("k3-nano"), &err);
}

static int teardown(void **state)
{
    (void)state;
    kd_tok_close(kimi);
    kd_tok_close(nano);
    return 0;
}

static void assert_same_ids(const struct kd_ids *ids, const struct kd_json *want)
{
    assert_int_equal(ids->count, kd_json_count(want));
    for (int64_t i = 0; i < ids->count; i++)
        assert_int_equal(ids->id[i], kd_json_int_value(kd_json_at(want, (size_t)i)));
}

static void renders_the_reference_chats(void **state)
{
    (void)state;
    struct kd_err err;
    struct kd_buf file;
    int lines = 0;
    kd_buf_init(&file, 1 << 24);
    assert_int_equal(kd_file_read(&file, data_path("vectors/k3-chat.jsonl"), 1 << 24, &err), 0);
    for (char *s = file.data, *nl; (nl = strchr(s, '\n')); s = nl + 1, lines++) {
        struct kd_json *v;
        struct kd_chat c;
        struct kd_ids ids = {0}, again = {0};
        assert_int_equal(kd_json_parse(&v, s, (size_t)(nl - s), "vector", &err), 0);
        if (kd_chat_render(&c, s, (size_t)(nl - s), &err))
            fail_msg("%s", err.msg);
        assert_string_equal(c.text.data, kd_json_text(kd_json_get(v, "text"), NULL));
        const struct kd_json *segs = kd_json_get(v, "segments");
        assert_int_equal(c.count, kd_json_count(segs));
        for (int64_t i = 0; i < c.count; i++) {
            size_t bytes;
            const struct kd_json *seg = kd_json_at(segs, (size_t)i);
            const char *want = kd_json_text(kd_json_at(seg, 0), &bytes);
            assert_int_equal(c.seg[i].bytes, bytes);
            assert_memory_equal(c.text.data + c.seg[i].begin, want, bytes);
            assert_int_equal(c.seg[i].markup, kd_json_true(kd_json_at(seg, 1)));
        }
        assert_int_equal(kd_chat_ids(&c, kimi, &ids, &err), 0);
        assert_same_ids(&ids, kd_json_get(v, "ids"));
        /* Written out and read back as trusted text: the same, except that parts have lost their
         * cuts. */
        if (strcmp(kd_json_text(kd_json_get(v, "id"), NULL), "image")) {
            assert_int_equal(kd_chat_markup_ids(kimi, c.text.data, c.text.size_bytes, &again, &err),
                             0);
            assert_same_ids(&again, kd_json_get(v, "ids"));
        }
        kd_ids_release(&ids);
        kd_ids_release(&again);
        kd_chat_release(&c);
        kd_json_free(v);
    }
    assert_int_equal(lines, 15);
    kd_buf_release(&file);
}

/* Text of the rendered request, to be released; fails the test on an error. */
static struct kd_chat rendered(const char *request)
{
    struct kd_err err;
    struct kd_chat c;
    if (kd_chat_render(&c, request, strlen(request), &err))
        fail_msg("%s", err.msg);
    return c;
}

static void assert_renders(const char *request, const char *part)
{
    struct kd_chat c = rendered(request);
    if (!strstr(c.text.data, part))
        fail_msg("'%s' has no '%s'", c.text.data, part);
    kd_chat_release(&c);
}

static void assert_ids(const char *request, const int32_t *want, int64_t count)
{
    struct kd_err err;
    struct kd_ids ids = {0};
    struct kd_chat c = rendered(request);
    assert_int_equal(kd_chat_ids(&c, kimi, &ids, &err), 0);
    int64_t at = 0;
    while (at + count <= ids.count && memcmp(ids.id + at, want, (size_t)count * sizeof *want))
        at++;
    assert_true(at + count <= ids.count);
    kd_ids_release(&ids);
    kd_chat_release(&c);
}

#define CALL(args)                                                                                 \
    "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":" \
    "\"f\","                                                                                       \
    "\"arguments\":" args "}}]}]}"

static void cuts_attributes_in_four(void **state)
{
    (void)state;
    assert_ids(CALL("{\"_x\":\"\"}"), (const int32_t[]){2355, 878, 7213, 1}, 4);
    assert_ids(CALL("{\"$ref\":1}"), (const int32_t[]){2355, 878, 3, 2113, 1}, 5);
    /* Parts stay apart: "First par" + "t." is not "First part." */
    struct kd_chat c =
        rendered("{\"messages\":[{\"role\":\"user\",\"content\":[\"First par\",{\"type\":\"text\","
                 "\"text\":\"t.\"}]}]}");
    assert_int_equal(c.seg[7].bytes, 9);
    assert_int_equal(c.seg[8].bytes, 2);
    kd_chat_release(&c);
}

static void writes_numbers_as_python_does(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"0.1", "0.1"},
        {"1e-05", "1e-05"},
        {"0.00001", "1e-05"},
        {"0.0001", "0.0001"},
        {"1E2", "100.0"},
        {"-0", "0"},
        {"-0.0", "-0.0"},
        {"123456789012345678901234567890", "123456789012345678901234567890"},
        {"1e16", "1e+16"},
        {"9999999999999998.0", "9999999999999998.0"},
        {"1e22", "1e+22"},
        {"1e400", "Infinity"},
        {"-1e400", "-Infinity"},
        {"1.50", "1.5"},
        {"2.5e-324", "5e-324"},
        {"1e-400", "0.0"},
        {"1.7976931348623157e308", "1.7976931348623157e+308"},
        {"5.684341886080802e-14", "5.684341886080802e-14"},
        {"9007199254740993.0", "9007199254740992.0"},
        {"0.30000000000000004", "0.30000000000000004"},
        {"123456.789e3", "123456789.0"},
        {"1e-7", "1e-07"},
        {"1e100", "1e+100"},
        {"3.0", "3.0"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char request[400], want[200];
        snprintf(request, sizeof request, CALL("{\"k\":%s}"), pairs[i][0]);
        snprintf(want, sizeof want, "type=\"number\"<|sep|>%s<|close|>", pairs[i][1]);
        assert_renders(request, want);
    }
}

static void assert_dumps(const char *json, enum kd_jstyle style, const char *want)
{
    struct kd_err err;
    struct kd_jtree t;
    struct kd_buf out;
    kd_buf_init(&out, 1 << 20);
    if (kd_jtree_parse(&t, json, strlen(json), &err))
        fail_msg("%s", err.msg);
    assert_int_equal(kd_jtree_dump(&out, &t, kd_jtree_root(&t), style, &err), 0);
    assert_string_equal(out.data, want);
    kd_buf_release(&out);
    kd_jtree_release(&t);
}

static void writes_json_as_python_does(void **state)
{
    (void)state;
    assert_dumps(" { \"b\" : [ 1 , null ] , \"a\" : { } } ", KD_JSTYLE_SPACED,
                 "{\"b\": [1, null], \"a\": {}}");
    assert_dumps("{\"b\":{\"z\":1,\"y\":[]},\"a\":true,\"\":0}", KD_JSTYLE_SORTED,
                 "{\"\":0,\"a\":true,\"b\":{\"y\":[],\"z\":1}}");
    assert_dumps("{\"\\u4e2d\":1,\"z\":2,\"\\ud83c\\udf89\":3,\"\\uffee\":4}", KD_JSTYLE_SORTED,
                 "{\"z\":2,\"\xe4\xb8\xad\":1,\"\xef\xbf\xae\":4,\"\xf0\x9f\x8e\x89\":3}");
    assert_dumps("\"\\u0041\\/\\\"\\\\\\b\\f\\n\\r\\t\\u001F\\u007f\\u00e9\\u2028\"",
                 KD_JSTYLE_SPACED, "\"A/\\\"\\\\\\b\\f\\n\\r\\t\\u001f\x7f\xc3\xa9\xe2\x80\xa8\"");
    assert_dumps("\"a\\u0000b\"", KD_JSTYLE_SPACED, "\"a\\u0000b\"");
    assert_dumps("{\"k\":1,\"x\":2,\"k\":[3],\"k\":4}", KD_JSTYLE_COMPACT, "{\"k\":4,\"x\":2}");
    assert_dumps("{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1,\"j\":1,"
                 "\"k\":1,\"l\":1,"
                 "\"m\":1,\"n\":1,\"o\":1,\"p\":1,\"q\":1,\"a\":2}",
                 KD_JSTYLE_COMPACT,
                 "{\"a\":2,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1,\"j\":1,"
                 "\"k\":1,\"l\":1,"
                 "\"m\":1,\"n\":1,\"o\":1,\"p\":1,\"q\":1}");
}

static void refuses_what_is_not_json(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "{",
                                      "[1,]",
                                      "{\"a\":1,}",
                                      "{\"a\" 1}",
                                      "01",
                                      "1.",
                                      "-",
                                      ".5",
                                      "1e",
                                      "+1",
                                      "NaN",
                                      "nul",
                                      "tru",
                                      "[1] 2",
                                      "\"",
                                      "\"\\x\"",
                                      "\"\\u12\"",
                                      "\"\n\"",
                                      "'a'",
                                      "{a:1}",
                                      "\"\xff\"",
                                      "\"\\ud800\"",
                                      "\"\\udc00\"",
                                      "\"\\ud800\\u0041\"",
                                      "\"\xed\xa0\x80\"",
                                      "]",
                                      "[1 2]",
                                      "\"\xc0\x80\""};
    struct kd_err err;
    struct kd_jtree t;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (!kd_jtree_parse(&t, bad[i], strlen(bad[i]), &err))
            fail_msg("took '%s'", bad[i]);
        assert_int_equal(err.code, KD_ECORRUPT);
    }
    static char deep[4 << 20];
    memset(deep, '[', 65);
    assert_int_equal(kd_jtree_parse(&t, deep, 65, &err), -1);
    assert_int_equal(err.code, KD_EINVAL);
    memset(deep, '[', 64);
    memset(deep + 64, ']', 64);
    assert_int_equal(kd_jtree_parse(&t, deep, 128, &err), 0);
    kd_jtree_release(&t);
    deep[0] = '[';
    for (size_t i = 1; i < 2200000; i += 2)
        memcpy(deep + i, "1,", 2);
    assert_int_equal(kd_jtree_parse(&t, deep, 2200001, &err), -1);
    assert_int_equal(err.code, KD_EINVAL);
}

static void refuses_bad_requests(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"[]", "object"},
        {"{}", "'messages'"},
        {"{\"messages\":[]}", "'messages'"},
        {"{\"messages\":[{}]}", "message 1: 'role' is missing"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"robot\"}]}",
         "message 2: 'role' is unknown: robot"},
        {"{\"messages\":[3]}", "message 1"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":7}]}", "'content'"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[7]}]}", "part"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"audio\"}]}]}",
         "'audio' is not supported"},
        {"{\"messages\":[{\"role\":\"user\",\"name\":3}]}", "'name'"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":{}}]}", "'tool_calls'"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}", "function name"},
        {CALL("[1]"), "not an object"},
        {CALL("\"[1]\""), "not an object"},
        {"{\"messages\":[{\"role\":\"user\"}],\"tools\":{}}", "'tools'"},
        {"{\"messages\":[{\"role\":\"user\"}],\"tools\":[null]}", "'tools'"},
        {"{\"messages\":[{\"role\":\"user\"}],\"thinking\":1}", "'thinking'"},
        {"{\"messages\":[{\"role\":\"user\"}],\"thinking_effort\":\"huge\"}", "effort 'huge'"},
        {"{\"messages\":[{\"role\":\"user\"}],\"tool_choice\":\"maybe\"}", "'tool_choice'"},
        {"{\"messages\":[{\"role\":\"user\"}],\"response_format\":{\"type\":\"xml\"}}",
         "'response_format'"},
        {"{\"messages\":[{\"role\":\"user\"}],\"response_format\":{\"type\":\"json_schema\"}}",
         "json_schema"},
        {"{\"messages\":[{\"role\":\"user\"}]", "not valid JSON"}};
    struct kd_err err;
    struct kd_chat c;
    int64_t live = kd_mem_live_bytes();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (!kd_chat_render(&c, bad[i][0], strlen(bad[i][0]), &err))
            fail_msg("took %s", bad[i][0]);
        if (!strstr(err.msg, bad[i][1]))
            fail_msg("'%s' does not say '%s'", err.msg, bad[i][1]);
    }
    assert_int_equal(kd_mem_live_bytes(), live);
}

static void renders_options(void **state)
{
    (void)state;
#define HI "{\"messages\":[{\"role\":\"developer\",\"content\":\"Hi\"}]"
    assert_renders(HI "}", "<|open|>message role=\"system\"<|sep|>Hi<|close|>");
    assert_renders(HI ",\"thinking_effort\":\"medium\"}", "thinking_effort=medium`.<");
    assert_renders(HI ",\"reasoning_effort\":\"medium\"}", "thinking_effort=high`.<");
    assert_renders(HI ",\"reasoning_effort\":\"xhigh\"}", "thinking_effort=max`.<");
    assert_renders(HI ",\"thinking_effort\":\"none\"}",
                   "assistant\"<|sep|><|open|>response<|sep|>");
    assert_renders(HI ",\"chat_template_kwargs\":{\"thinking\":false}}",
                   "assistant\"<|sep|><|open|>response<|sep|>");
    assert_renders(HI ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}}",
                   "`tool_choice=required`");
    assert_renders(HI ",\"tools\":null,\"tool_choice\":null,\"response_format\":null}",
                   "<|open|>think<|sep|>");
    assert_renders(HI ",\"tools\":[{\"type\":\"function\",\"strict\":null,\"function\":{\"name\":"
                      "\"f\",\"strict\":null,"
                      "\"parameters\":{\"default\":null}}}]}",
                   "[{\"function\":{\"name\":\"f\",\"parameters\":{\"default\":null}},\"type\":"
                   "\"function\"}]\n```<");
    assert_renders(
        "{\"messages\":[{\"role\":\"assistant\",\"reasoning\":\" \\n\",\"content\":null}]}",
        "<|open|>think<|sep|><|close|>think<|sep|><|open|>response<|sep|><|close|>");
    assert_renders(CALL("\" \""), "index=\"1\"<|sep|><|close|>call");
    assert_renders(CALL("\"null\""), "index=\"1\"<|sep|><|close|>call");
    assert_renders(CALL("{\"a\":false,\"b\":{\"x\":[1,2]}}"),
                   "type=\"boolean\"<|sep|>false<|close|>argument<|sep|><|open|>argument key=\"b\" "
                   "type=\"object\"<|sep|>"
                   "{\"x\": [1, 2]}<");
#undef HI
}

static void puts_results_in_order_of_calls(void **state)
{
    (void)state;
#define TWO                                                                                        \
    "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":" \
    "\"f\"}},"                                                                                     \
    "{\"id\":\"b\",\"function\":{\"name\":\"g\"}}]},"
    assert_renders(
        TWO "{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"2\"},"
            "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"1\"}]}",
        "tool=\"f\" index=\"1\"<|sep|>1<|close|>message<|sep|><|end_of_msg|><|open|>message "
        "role=\"tool\" "
        "tool=\"g\" index=\"2\"<|sep|>2<");
    /* One id that is unknown: the order stays. */
    assert_renders(
        TWO "{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"2\"},"
            "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"3\"},"
            "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"1\"},"
            "{\"role\":\"tool\",\"name\":\"n\",\"content\":\"4\"}]}",
        "tool=\"g\" index=\"1\"<|sep|>2<|close|>message<|sep|><|end_of_msg|><|open|>message "
        "role=\"tool\" "
        "tool=\"g\" index=\"2\"<|sep|>3<|close|>message<|sep|><|end_of_msg|><|open|>message "
        "role=\"tool\" "
        "tool=\"f\" index=\"3\"<|sep|>1<|close|>message<|sep|><|end_of_msg|><|open|>message "
        "role=\"tool\" "
        "tool=\"n\" index=\"4\"<|sep|>4<");
#undef TWO
}

/* Every text of a request made of control spellings: the ids that are special are exactly those of
 * the markup segments. */
static void text_never_makes_control_tokens(void **state)
{
    (void)state;
    static const char *const bits[] = {"<|open|>",
                                       "<|close|>",
                                       "<|sep|>",
                                       "<|end_of_msg|>",
                                       "[BOS]",
                                       "[EOS]",
                                       "message",
                                       "<|media_pad|>",
                                       "<|kimi_image_placeholder|>",
                                       "<|reserved_token_163600|>",
                                       " ",
                                       "<|",
                                       "|>",
                                       "\\n",
                                       "think",
                                       "&",
                                       "[PAD]",
                                       "\\u003c|sep|\\u003e"};
    struct kd_err err;
    for (uint64_t round = 0; round < 2000; round++) {
        char t[6][400], request[4000];
        for (uint64_t k = 0; k < 6; k++) {
            size_t n = 0;
            t[k][0] = 0;
            for (uint64_t i = 0; i < 8; i++)
                n += (size_t)snprintf(
                    t[k] + n, sizeof t[k] - n, "%s",
                    bits[kd_rand_u64(round, k * 8 + i) % (sizeof bits / sizeof *bits)]);
        }
        snprintf(
            request, sizeof request,
            "{\"messages\":[{\"role\":\"user\",\"name\":\"%s\",\"content\":\"%s\"},{\"role\":"
            "\"assistant\","
            "\"reasoning_content\":\"%s\",\"tool_calls\":[{\"function\":{\"name\":\"%s\","
            "\"arguments\":{\"%s\":"
            "\"%s\"}}}]},{\"role\":\"tool\",\"content\":[\"%s\"]}],\"tools\":[{\"type\":\"%s\"}]}",
            t[0], t[1], t[2], t[3], t[4], t[5], t[1], t[2]);
        struct kd_chat c = rendered(request);
        const struct kd_tok *toks[] = {kimi, nano};
        for (int k = 0; k < 2; k++) {
            struct kd_ids ids = {0};
            int64_t special = 0, markup = 0;
            assert_int_equal(kd_chat_ids(&c, toks[k], &ids, &err), 0);
            for (int64_t i = 0; i < ids.count; i++)
                special += kd_tok_is_special(toks[k], ids.id[i]);
            for (int64_t i = 0; i < c.count; i++)
                markup += c.seg[i].markup;
            assert_int_equal(special, markup);
            kd_ids_release(&ids);
        }
        kd_chat_release(&c);
    }
}

static void reads_written_out_markup(void **state)
{
    (void)state;
    struct kd_err err;
    struct kd_json *golden;
    assert_int_equal(kd_json_load(&golden, data_path("k3-nano/golden.json"), 1 << 20, &err), 0);
    for (size_t i = 0; i < kd_json_count(golden); i++) {
        size_t bytes;
        struct kd_ids ids = {0};
        const struct kd_json *g = kd_json_at(golden, i);
        const char *prompt = kd_json_text(kd_json_get(g, "prompt"), &bytes);
        assert_int_equal(kd_chat_markup_ids(nano, prompt, bytes, &ids, &err), 0);
        assert_same_ids(&ids, kd_json_get(g, "ids"));
        kd_ids_release(&ids);
    }
    kd_json_free(golden);
    /* The template's pieces inside tags. */
    const char *text = "<|open|>argument key=\"_x\" type=\"string\"<|sep|>";
    struct kd_ids ids = {0};
    assert_int_equal(kd_chat_markup_ids(kimi, text, strlen(text), &ids, &err), 0);
    static const int32_t want[] = {163587, 47185, 2355, 878, 7213, 1, 1798, 878, 2033, 1, 163589};
    assert_int_equal(ids.count, sizeof want / sizeof *want);
    assert_memory_equal(ids.id, want, sizeof want);
    kd_ids_release(&ids);
}

static void survives_lack_of_memory(void **state)
{
    (void)state;
    struct kd_err err;
    int64_t live = kd_mem_live_bytes(), nth = 0;
    const char *request = "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\","
                          "\"function\":{\"name\":\"f\","
                          "\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":"
                          "\"a\",\"content\":\"1\"}]}";
    for (int done = 0; !done;) {
        struct kd_chat c;
        struct kd_ids ids = {0};
        kd_mem_fail_nth(++nth);
        done = !kd_chat_render(&c, request, strlen(request), &err) &&
               !kd_chat_ids(&c, nano, &ids, &err);
        kd_mem_fail_nth(0);
        kd_ids_release(&ids);
        kd_chat_release(&c);
        assert_int_equal(kd_mem_live_bytes(), live);
        assert_in_range(nth, 1, 200);
    }
    assert_in_range(nth, 8, 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(renders_the_reference_chats),
                                       cmocka_unit_test(cuts_attributes_in_four),
                                       cmocka_unit_test(writes_numbers_as_python_does),
                                       cmocka_unit_test(writes_json_as_python_does),
                                       cmocka_unit_test(refuses_what_is_not_json),
                                       cmocka_unit_test(refuses_bad_requests),
                                       cmocka_unit_test(renders_options),
                                       cmocka_unit_test(puts_results_in_order_of_calls),
                                       cmocka_unit_test(text_never_makes_control_tokens),
                                       cmocka_unit_test(reads_written_out_markup),
                                       cmocka_unit_test(survives_lack_of_memory)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
