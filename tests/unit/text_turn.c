/* text/turn: the battery's expected turns, missing closes, cuts at any place, streams of random
 * ids. */
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "text/chat.h"
#include "text/uclass.h"

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

/* Ids of text with control tokens written out; with `cut`, ordinary text is cut at random bytes and
 * its parts are encoded one by one, as a model may do that never learnt to merge them. */
static struct kd_ids ids_of(const struct kd_tok *tok, const char *text, uint64_t cut)
{
    struct kd_err err;
    struct kd_ids ids = {0};
    size_t bytes = strlen(text), n;
    for (size_t at = 0, begin = 0; at <= bytes; at++) {
        int32_t id = at < bytes ? kd_tok_special_at(tok, text + at, bytes - at, &n) : -1;
        if (id < 0 && at < bytes && !(cut && kd_rand_u64(cut, at) % 3 == 0))
            continue;
        assert_int_equal(kd_tok_encode(tok, text + begin, at - begin, &ids, &err), 0);
        begin = at;
        if (id >= 0) {
            assert_int_equal(kd_ids_add(&ids, id, &err), 0);
            begin = at + n;
            at = begin - 1;
        }
    }
    return ids;
}

static struct kd_turn_text parsed(const struct kd_tok *tok, enum kd_turn_part start,
                                  const char *text, uint64_t cut)
{
    struct kd_err err;
    struct kd_turn_text out;
    struct kd_ids ids = ids_of(tok, text, cut);
    if (kd_turn_parse(tok, start, ids.id, ids.count, &out, &err))
        fail_msg("%s", err.msg);
    kd_ids_release(&ids);
    return out;
}

static void assert_turn(const char *text, const char *think, const char *content, const char *calls,
                        bool ended)
{
    for (uint64_t cut = 0; cut < 8; cut++) {
        struct kd_turn_text t = parsed(cut % 2 ? nano : kimi, KD_TURN_THINK, text, cut / 2);
        assert_string_equal(t.think.data, think);
        assert_string_equal(t.content.data, content);
        assert_string_equal(t.calls_json.data, calls);
        assert_int_equal(t.ended, ended);
        kd_turn_text_release(&t);
    }
}

#define O            "<|open|>"
#define C            "<|close|>"
#define S            "<|sep|>"
#define E            "<|end_of_msg|>"
#define ARG(k, t, v) O "argument key=\"" k "\" type=\"" t "\"" S v C "argument" S
#define FINISH       C "message" S E

static void reads_whole_turns(void **state)
{
    (void)state;
    assert_turn("why" C "think" S O "response" S "Hello!" C "response" S FINISH, "why", "Hello!",
                "[]", true);
    assert_turn(C "think" S O "response" S C "response" S O "tools" S O
                  "call tool=\"f\" index=\"1\"" S ARG("s", "string", " a\"b<c>&\n")
                      ARG("n", "number", "-1.50") ARG("b", "boolean", "true")
                          ARG("z", "null", "null") ARG("l", "array", "[1, \"a\"]")
                              ARG("o", "object", "{ \"k\" : \"v\" }") C
                "call" S O "call tool=\"g\" index=\"2\"" S C "call" S C "tools" S FINISH,
                "", "",
                "[{\"name\":\"f\",\"arguments\":{\"s\":\" "
                "a\\\"b<c>&\\n\",\"n\":-1.50,\"b\":true,\"z\":null,"
                "\"l\":[1,\"a\"],\"o\":{\"k\":\"v\"}}},{\"name\":\"g\",\"arguments\":{}}]",
                true);
    assert_turn("a" C "think" S O "response" S "\xe4\xb8\xad\xf0\x9f\x8e\x89" C "response" S FINISH
                "rubbish",
                "a", "\xe4\xb8\xad\xf0\x9f\x8e\x89", "[]", true);
    assert_turn("x[EOS]y", "x", "", "[]", true);
    assert_turn("", "", "", "[]", false);
}

static void unescapes_attributes(void **state)
{
    (void)state;
    assert_turn(O "tools" S O "call tool=\"a &quot;&amp;quot; &lt;\" index=\"1\"" S ARG(
                    "&amp;", "string", "&amp;") C "call" S C "tools" S FINISH,
                "", "", "[{\"name\":\"a \\\"&quot; &lt;\",\"arguments\":{\"&\":\"&amp;\"}}]", true);
    assert_turn(O "tools" S O " call\n other=\"1\" tool = \"f\" x" S ARG("k", "string", "v") C
                " call " S FINISH,
                "", "", "[{\"name\":\"f\",\"arguments\":{\"k\":\"v\"}}]", true);
}

static void survives_missing_closes(void **state)
{
    (void)state;
    const char *call = "[{\"name\":\"f\",\"arguments\":{\"k\":1}}]";
#define CALL O "call tool=\"f\" index=\"1\"" S O "argument key=\"k\" type=\"number\"" S "1"
    assert_turn("t" O "response" S "r" C "message" S E, "t", "r", "[]", true);
    assert_turn("t" O "tools" S CALL C "argument" S C "call" S C "tools" S FINISH, "t", "", call,
                true);
    assert_turn("t" C "response" S O "tools" S CALL C "call" S C "tools" S FINISH, "t", "", call,
                true);
    assert_turn("t" C "think" S O "tools" S CALL C "tools" S FINISH, "t", "", call, true);
    assert_turn("t" O "tools" S CALL FINISH, "t", "", call, true);
    assert_turn("t" O "tools" S CALL E, "t", "", call, true);
    assert_turn("t" O "call tool=\"f\"" S ARG("k", "number", "1") E, "t", "", call, true);
    assert_turn("t" O "tools" S CALL O "call tool=\"g\"" S E, "t", "",
                "[{\"name\":\"f\",\"arguments\":{\"k\":1}},{\"name\":\"g\",\"arguments\":{}}]",
                true);
    assert_turn("t" O "tools" S CALL O "argument key=\"l\" type=\"number\"" S "2" E, "t", "",
                "[{\"name\":\"f\",\"arguments\":{\"k\":1,\"l\":2}}]", true);
    /* Separators missing before the next control token. */
    assert_turn("t" C "think" O "response" S "r" C "response" C "message" E, "t", "r", "[]", true);
    /* The stream ends inside a call: it is dropped. */
    assert_turn("t" O "tools" S CALL, "t", "", "[]", false);
    assert_turn("t" O "tools" S CALL C "argument" S C "call" S O "call tool=\"g\"" S, "t", "", call,
                false);
    /* A call without a name is dropped, one after the tools is none, nor is one after the message.
     */
    assert_turn(O "tools" S O "call index=\"1\"" S ARG("k", "number", "1") C "call" S CALL FINISH,
                "", "", call, true);
    assert_turn(O "tools" S C "tools" S CALL FINISH, "", "", "[]", true);
    assert_turn("t" C "message" S "x" O "response" S "y" E, "t", "", "[]", true);
#undef CALL
}

static void keeps_control_out_of_text(void **state)
{
    (void)state;
    assert_turn("a" S "b" O "what" S "c" C "unknown" S "d" O E, "abcd", "", "[]", true);
    assert_turn("a" C "think" S "gap" O "response" S "b[PAD]c" O "tool" S "d" FINISH, "a", "bcd",
                "[]", true);
    assert_turn(O "tools" S "x" O "call tool=\"f\"" S "y" O "argument key=\"k\" type=\"string\"" S
                  "p" O "q" S "r" C "argument" S "z" C "call" S FINISH,
                "", "", "[{\"name\":\"f\",\"arguments\":{\"k\":\"pr\"}}]", true);
    /* Spelled with ordinary tokens it is text. */
    struct kd_err err;
    struct kd_ids ids = {0};
    struct kd_turn_text t;
    const char *text = "the " E " token, " S;
    assert_int_equal(kd_tok_encode(kimi, text, strlen(text), &ids, &err), 0);
    assert_int_equal(kd_turn_parse(kimi, KD_TURN_RESPONSE, ids.id, ids.count, &t, &err), 0);
    assert_string_equal(t.content.data, text);
    kd_turn_text_release(&t);
    kd_ids_release(&ids);
}

static void always_gives_json(void **state)
{
    (void)state;
#define ONE(t, v) O "tools" S O "call tool=\"f\"" S ARG("k", t, v) E
#define GIVES(v)  "[{\"name\":\"f\",\"arguments\":{\"k\":" v "}}]"
    assert_turn(ONE("number", "one"), "", "", GIVES("\"one\""), true);
    assert_turn(ONE("number", ""), "", "", GIVES("\"\""), true);
    assert_turn(ONE("number", "1],[2"), "", "", GIVES("\"1],[2\""), true);
    assert_turn(ONE("number", "1e999"), "", "", GIVES("1e999"), true);
    assert_turn(ONE("object", "{\"a\":1,\"a\":2}"), "", "", GIVES("{\"a\":2}"), true);
    assert_turn(ONE("what", " 7 "), "", "", GIVES("7"), true);
    assert_turn(ONE("string", "7"), "", "", GIVES("\"7\""), true);
    assert_turn(ONE("string", "a"), "", "", GIVES("\"a\""), true);
    assert_turn(O "tools" S O "call tool=\"f\"" S ARG("k", "number", "1") ARG("x", "number", "2")
                    ARG("k", "number", "3") E,
                "", "", "[{\"name\":\"f\",\"arguments\":{\"k\":3,\"x\":2}}]", true);
    assert_turn("\xff\xe4\xb8" O "response" S "\xc3" E, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd",
                "\xef\xbf\xbd", "[]", true);
#undef ONE
#undef GIVES
}

static void reads_the_battery(void **state)
{
    (void)state;
    struct kd_err err;
    struct kd_json *battery;
    struct kd_buf want;
    kd_buf_init(&want, 1 << 20);
    assert_int_equal(kd_json_load(&battery, data_path("agent-battery.json"), 1 << 24, &err), 0);
    assert_int_equal(kd_json_count(battery), 1000);
    for (size_t i = 0; i < kd_json_count(battery); i++) {
        const struct kd_json *b = kd_json_at(battery, i), *call = kd_json_get(b, "expected_call");
        bool thinking = kd_json_true(kd_json_get(kd_json_get(b, "request"), "thinking"));
        struct kd_turn_text t =
            parsed(i % 2 ? kimi : nano, thinking ? KD_TURN_THINK : KD_TURN_RESPONSE,
                   kd_json_text(kd_json_get(b, "expected_text"), NULL), i % 5);
        struct kd_json *calls;
        assert_true(t.ended);
        assert_int_equal(
            kd_json_parse(&calls, t.calls_json.data, t.calls_json.size_bytes, "calls", &err), 0);
        assert_int_equal(kd_json_count(calls), t.call_count);
        if (kd_json_kind(call) == KD_JSON_OBJECT) {
            struct kd_buf got;
            kd_buf_init(&got, 1 << 20);
            kd_buf_clear(&want);
            assert_int_equal(t.call_count, 1);
            assert_int_equal(kd_json_dump(&want, call, &err), 0);
            assert_int_equal(kd_json_dump(&got, kd_json_at(calls, 0), &err), 0);
            assert_string_equal(got.data, want.data);
            kd_buf_release(&got);
        } else {
            assert_int_equal(t.call_count, 0);
        }
        kd_json_free(calls);
        kd_turn_text_release(&t);
    }
    kd_json_free(battery);
    kd_buf_release(&want);
}

static void assert_clean(const struct kd_buf *b)
{
    for (size_t at = 0, n; at < b->size_bytes; at += n) {
        uint32_t cp;
        n = kd_utf8_char((const unsigned char *)b->data + at, b->size_bytes - at, &cp);
        assert_int_not_equal(n, 0);
    }
    assert_null(strstr(b->data, "<|"));
}

/* Random streams: text is UTF-8 without control spellings, calls are JSON, the stream of a prefix
 * tells the beginning of what the whole tells. */
static void takes_any_ids(void **state)
{
    (void)state;
    static const char *const words[] = {O,
                                        O,
                                        O,
                                        C,
                                        C,
                                        C,
                                        S,
                                        S,
                                        S,
                                        S,
                                        "think",
                                        "response",
                                        "tools",
                                        "call tool=\"f\"",
                                        "argument key=\"k\" type=\"number\"",
                                        "argument key=\"q\" type=\"string\"",
                                        "call",
                                        "argument",
                                        "message",
                                        "1",
                                        "text",
                                        "\xe4\xb8",
                                        "\xad",
                                        " ",
                                        "\"",
                                        "[PAD]"};
    struct kd_err err;
    for (uint64_t round = 0; round < 4000; round++) {
        struct kd_ids ids = {0};
        struct kd_turn_text whole, part;
        for (uint64_t i = 0; i < 40; i++) {
            struct kd_ids more =
                ids_of(nano, words[kd_rand_u64(round, i) % (sizeof words / sizeof *words)], 0);
            for (int64_t k = 0; k < more.count; k++)
                assert_int_equal(kd_ids_add(&ids, more.id[k], &err), 0);
            kd_ids_release(&more);
        }
        assert_int_equal(kd_turn_parse(nano, KD_TURN_THINK, ids.id, ids.count, &whole, &err), 0);
        assert_clean(&whole.think);
        assert_clean(&whole.content);
        struct kd_json *calls;
        assert_int_equal(kd_json_parse(&calls, whole.calls_json.data, whole.calls_json.size_bytes,
                                       "calls", &err),
                         0);
        assert_int_equal(kd_json_count(calls), whole.call_count);
        kd_json_free(calls);
        int64_t cut = (int64_t)(kd_rand_u64(round, 99) % (uint64_t)ids.count);
        assert_int_equal(kd_turn_parse(nano, KD_TURN_THINK, ids.id, cut, &part, &err), 0);
        size_t n = part.content.size_bytes < 6
                       ? 0
                       : part.content.size_bytes - 6; /* held bytes came out as U+FFFD */
        assert_memory_equal(part.content.data, whole.content.data, n);
        assert_true(part.call_count <= whole.call_count);
        kd_turn_text_release(&part);
        kd_turn_text_release(&whole);
        kd_ids_release(&ids);
    }
}

static void refuses_foreign_ids(void **state)
{
    (void)state;
    struct kd_err err;
    struct kd_turn_text t;
    int64_t live = kd_mem_live_bytes();
    assert_int_equal(kd_turn_parse(nano, KD_TURN_THINK, (const int32_t[]){5, 4096}, 2, &t, &err),
                     -1);
    assert_int_equal(kd_turn_parse(nano, KD_TURN_THINK, (const int32_t[]){-1}, 1, &t, &err), -1);
    assert_int_equal(kd_turn_parse(nano, KD_TURN_END, NULL, 0, &t, &err), -1);
    assert_int_equal(kd_mem_live_bytes(), live);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_whole_turns),       cmocka_unit_test(unescapes_attributes),
        cmocka_unit_test(survives_missing_closes), cmocka_unit_test(keeps_control_out_of_text),
        cmocka_unit_test(always_gives_json),       cmocka_unit_test(reads_the_battery),
        cmocka_unit_test(takes_any_ids),           cmocka_unit_test(refuses_foreign_ids)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
