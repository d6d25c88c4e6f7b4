/* text/tok: the reference's token vectors, the scanner against PCRE2's matcher, hostile files. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "text/bpe.h"
#include "text/split.h"
#include "text/tok.h"

#include <pcre2.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Kimi's pattern with the class intersections as look-aheads, Script and White_Space spelled out.
 */
#define NOT_HAN "(?!\\p{sc:Han})"
#define UPPER   "(?:" NOT_HAN "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])"
#define LOWER   "(?:" NOT_HAN "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])"
#define SHORT   "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define WS      "\\t-\\r\\x{85}\\p{Z}"
static const char pattern[] =
    "[\\p{sc:Han}]+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" SHORT
    "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" SHORT "|\\p{N}{1,3}| ?[^" WS
    "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|[" WS "]+(?![^" WS "])|[" WS "]+";

static char data_dir[3000];
static struct kd_tok *kimi;

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
    return kd_tok_open(&kimi, data_path("kimi-tokenizer"), &err);
}

static int teardown(void **state)
{
    (void)state;
    kd_tok_close(kimi);
    return 0;
}

static void assert_round_trip(const struct kd_tok *tok, const char *text, size_t bytes)
{
    struct kd_err err;
    struct kd_ids ids = {0};
    struct kd_buf back;
    kd_buf_init(&back, 1 << 26);
    assert_int_equal(kd_tok_encode(tok, text, bytes, &ids, &err), 0);
    for (int64_t i = 0; i < ids.count; i++)
        assert_false(kd_tok_is_special(tok, ids.id[i]));
    assert_int_equal(kd_tok_decode(tok, ids.id, ids.count, &back, &err), 0);
    assert_int_equal(back.size_bytes, bytes);
    assert_memory_equal(back.data ? back.data : "", text, bytes);
    kd_ids_release(&ids);
    kd_buf_release(&back);
}

static void gives_the_reference_ids(void **state)
{
    (void)state;
    struct kd_err err;
    struct kd_buf file;
    kd_buf_init(&file, 1 << 24);
    assert_int_equal(kd_file_read(&file, data_path("vectors/k3-tokens.jsonl"), 1 << 24, &err), 0);
    int lines = 0;
    for (char *s = file.data, *nl; (nl = strchr(s, '\n')); s = nl + 1, lines++) {
        struct kd_json *v;
        size_t bytes;
        assert_int_equal(kd_json_parse(&v, s, (size_t)(nl - s), "vector", &err), 0);
        const char *text = kd_json_text(kd_json_get(v, "text"), &bytes);
        const struct kd_json *want = kd_json_get(v, "ids");
        struct kd_ids ids = {0};
        assert_int_equal(kd_tok_encode(kimi, text, bytes, &ids, &err), 0);
        assert_int_equal(ids.count, kd_json_count(want));
        for (int64_t i = 0; i < ids.count; i++)
            assert_int_equal(ids.id[i], kd_json_int_value(kd_json_at(want, (size_t)i)));
        assert_round_trip(kimi, text, bytes);
        kd_ids_release(&ids);
        kd_json_free(v);
    }
    assert_int_equal(lines, 23);
    kd_buf_release(&file);
}

static void knows_the_special_tokens(void **state)
{
    (void)state;
    struct kd_err err;
    size_t n;
    assert_int_equal(kd_tok_vocab(kimi), 163840);
    assert_int_equal(kd_tok_special(kimi, "<|open|>"), 163587);
    assert_int_equal(kd_tok_special(kimi, "<|end_of_msg|>"), 163586);
    assert_int_equal(kd_tok_special(kimi, "<|reserved_token_163592|>"), 163592);
    assert_int_equal(kd_tok_special(kimi, "<|reserved_token_163587|>"), -1);
    assert_string_equal(kd_tok_bytes(kimi, 163839, &n), "[PAD]");
    assert_null(kd_tok_bytes(kimi, 163840, &n));
    assert_null(kd_tok_bytes(kimi, -1, &n));
    struct kd_tok *nano;
    assert_int_equal(kd_tok_open(&nano, data_path("k3-nano"), &err), 0);
    assert_int_equal(kd_tok_vocab(nano), 4096);
    assert_int_equal(kd_tok_special(nano, "<|open|>"), 3843);
    for (int32_t id = 163584; id < 163840; id++) {
        const char *s = kd_tok_bytes(kimi, id, &n);
        assert_round_trip(kimi, s, n);
        assert_round_trip(nano, s, n);
    }
    kd_tok_close(nano);
}

/* A code point from the blocks where the classes meet, with ASCII and odd characters in between. */
static uint32_t draw(uint64_t r)
{
    static const uint32_t odd[] = {
        ' ',    ' ',      '\n',    '\r',    '\t',   '\'',  's',    'T',    0x17f,  'l',
        'E',    'r',      0x212a,  0x1c5,   0x2b0,  0x301, 0x3007, 0x3005, 0x3001, 0x2e80,
        0x2f00, 0x4e00,   0x9fff,  0x20000, 0x180e, 0x85,  0xa0,   0x3000, 0x200b, 0x1c,
        0xfeff, 0x10ffff, 0x1f389, '_',     '0',    0x660, 0xbd,   0x2167, 0x0,    0x7f};
    static const uint32_t block[] = {0x20,    0xa0,    0x100,   0x370,   0x400,  0x590,
                                     0x600,   0x900,   0xe00,   0x1100,  0x1e00, 0x2000,
                                     0x2e00,  0x3000,  0x4e00,  0xac00,  0xfb00, 0x10400,
                                     0x16a00, 0x1d400, 0x1f000, 0x2a700, 0xe0000};
    uint32_t pick = (uint32_t)(r & 0xff), v = (uint32_t)(r >> 32);
    if (pick < 100)
        return odd[v % (sizeof odd / sizeof *odd)];
    if (pick < 150)
        return 0x20 + v % 0x5f;
    uint32_t c =
        pick < 240 ? block[(r >> 8) % (sizeof block / sizeof *block)] + v % 0x100 : v % 0x110000;
    return c >= 0xd800 && c <= 0xdfff ? 'x' : c;
}

static size_t put(char *s, uint32_t c)
{
    if (c < 0x80)
        s[0] = (char)c;
    else if (c < 0x800)
        s[0] = (char)(0xc0 | c >> 6);
    else if (c < 0x10000)
        s[0] = (char)(0xe0 | c >> 12);
    else
        s[0] = (char)(0xf0 | c >> 18);
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6)
        s[i] = (char)(0x80 | (c & 0x3f));
    return n;
}

static void splits_as_the_pattern_does(void **state)
{
    (void)state;
    struct kd_err err;
    struct kd_uclass u;
    int code;
    PCRE2_SIZE at;
    char text[64 * 4];
    assert_int_equal(kd_uclass_open(&u, &err), 0);
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    assert_non_null(re);
    (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
    pcre2_match_data *md = pcre2_match_data_create_from_pattern(re, NULL);
    for (uint64_t round = 0; round < 300000; round++) {
        size_t bytes = 0;
        int64_t chars = 1 + (int64_t)(kd_rand_u64(1, round) % 24);
        for (int64_t i = 0; i < chars; i++)
            bytes += put(text + bytes, draw(kd_rand_u64(2, round * 64 + (uint64_t)i)));
        for (at = 0; at < bytes;) {
            int rc = pcre2_match(re, (PCRE2_SPTR)text, bytes, at,
                                 PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, md, NULL);
            assert_int_equal(rc, 1);
            size_t want = pcre2_get_ovector_pointer(md)[1] - at;
            size_t got = kd_split_piece(&u, (const unsigned char *)text + at, bytes - at);
            if (got != want)
                fail_msg("round %llu at %zu of %zu: %zu bytes, PCRE2 has %zu",
                         (unsigned long long)round, (size_t)at, bytes, got, want);
            at += want;
        }
    }
    pcre2_match_data_free(md);
    pcre2_code_free(re);
    kd_uclass_close(&u);
}

static void keeps_any_bytes(void **state)
{
    (void)state;
    unsigned char text[300];
    for (uint64_t round = 0; round < 20000; round++) {
        size_t bytes = kd_rand_u64(3, round) % sizeof text;
        for (size_t i = 0; i < bytes; i++) {
            uint64_t r = kd_rand_u64(4, round * 512 + i);
            text[i] = round % 2 ? (unsigned char)r
                                : (unsigned char)"\xe4\xb8\xad\xff a\xc2\xf0\x9f"[r % 9];
        }
        assert_round_trip(kimi, (const char *)text, bytes);
    }
}

/* Merging by its definition: join the leftmost pair of lowest rank until there is none. */
static int64_t merge_plainly(const struct kd_bpe *b, const uint8_t *s, size_t bytes, int32_t *out)
{
    size_t cut[300];
    size_t parts = bytes;
    for (size_t i = 0; i <= bytes; i++)
        cut[i] = i;
    for (;;) {
        int32_t best = -1;
        size_t where = 0;
        for (size_t i = 0; i + 2 <= parts; i++) {
            int32_t r = kd_bpe_rank(b, s + cut[i], cut[i + 2] - cut[i]);
            if (r >= 0 && (best < 0 || r < best)) {
                best = r;
                where = i;
            }
        }
        if (best < 0)
            break;
        memmove(cut + where + 1, cut + where + 2, (parts - where - 1) * sizeof *cut);
        parts--;
    }
    for (size_t i = 0; i < parts; i++)
        out[i] = kd_bpe_rank(b, s + cut[i], cut[i + 1] - cut[i]);
    return (int64_t)parts;
}

static void merges_by_the_definition(void **state)
{
    (void)state;
    struct kd_err err;
    struct kd_buf file;
    struct kd_bpe b;
    struct kd_bpe_work w = {0};
    uint8_t s[256];
    int32_t got[256], want[256];
    kd_buf_init(&file, 1 << 24);
    assert_int_equal(kd_file_read(&file, data_path("kimi-tokenizer/tiktoken.model"), 1 << 24, &err),
                     0);
    assert_int_equal(kd_bpe_open(&b, file.data, file.size_bytes, &err), 0);
    for (uint64_t round = 0; round < 20000; round++) {
        size_t bytes = 1 + kd_rand_u64(5, round) % 60;
        for (size_t i = 0; i < bytes; i++)
            s[i] = (uint8_t)("etaoin shrdlu\xe0\xb8\x81\xa7"[kd_rand_u64(6, round * 64 + i) % 17]);
        if (round % 5 == 0)
            memset(s, s[0], bytes);
        int64_t n = kd_bpe_encode(&b, &w, s, bytes, got, &err);
        assert_int_equal(n, merge_plainly(&b, s, bytes, want));
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
    }
    kd_bpe_work_release(&w);
    kd_bpe_close(&b);
    kd_buf_release(&file);
}

static void cuts_where_the_reference_cuts(void **state)
{
    (void)state;
    static char text[1000000];
    int64_t chars = 0;
    memset(text, 'a', sizeof text);
    assert_int_equal(kd_split_chunk((unsigned char *)text, 25000, &chars), 25000);
    chars = 0;
    assert_int_equal(kd_split_chunk((unsigned char *)text, 25001, &chars), 25000);
    assert_int_equal(kd_split_chunk((unsigned char *)text + 25000, 1, &chars), 1);
    for (size_t i = 9; i < sizeof text; i += 10)
        text[i] = ' ';
    chars = 0;
    assert_int_equal(kd_split_chunk((unsigned char *)text, sizeof text, &chars), 400000);
    assert_int_equal(kd_split_chunk((unsigned char *)text + 400000, sizeof text - 400000, &chars),
                     400000);
    /* Characters are counted, not bytes, and a space run counts as a run too. */
    for (size_t i = 0; i < sizeof text - 1; i += 2)
        memcpy(text + i, "\xc3\xa9", 2);
    chars = 0;
    assert_int_equal(kd_split_chunk((unsigned char *)text, 100000, &chars), 50000);
    memset(text, ' ', sizeof text);
    chars = 0;
    assert_int_equal(kd_split_chunk((unsigned char *)text, 100000, &chars), 25000);
    memset(text, 'a', sizeof text);
    assert_round_trip(kimi, text, sizeof text);
}

static void open_with(const char *model, size_t bytes, const char *config, const char *wrong)
{
    struct kd_err err;
    struct kd_tok *tok;
    char dir[] = "/tmp/kd-tok-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tiktoken.model", dir);
    assert_int_equal(kd_file_write(path, model, bytes, &err), 0);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    assert_int_equal(kd_file_write(path, config, strlen(config), &err), 0);
    int64_t live = kd_mem_live_bytes();
    int rc = kd_tok_open(&tok, dir, &err);
    if (wrong) {
        assert_int_equal(rc, -1);
        if (!strstr(err.msg, wrong))
            fail_msg("'%s' does not say '%s'", err.msg, wrong);
    } else {
        assert_int_equal(rc, 0);
        assert_int_equal(kd_tok_vocab(tok), 512);
        kd_tok_close(tok);
    }
    assert_int_equal(kd_mem_live_bytes(), live);
    assert_int_equal(kd_dir_remove(dir, &err), 0);
}

static void refuses_broken_files(void **state)
{
    (void)state;
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static char model[8192], bad[8192 + 64];
    size_t n = 0;
    for (unsigned c = 0; c < 256; c++)
        n += (size_t)snprintf(model + n, sizeof model - n, "%c%c== %u\n", digits[c >> 2],
                              digits[(c & 3) << 4], c);
    const char *good = "{\"added_tokens_decoder\":{\"256\":{\"content\":\"<|open|>\"}}}";
    open_with(model, n, good, NULL);
    open_with(model, n - 9, good, "255 tokens");
    open_with(model, n, "{}", "'added_tokens_decoder' is missing");
    open_with(model, n, "{\"added_tokens_decoder\":{\"255\":{\"content\":\"x\"}}}",
              "'255' is not in 256 to 511");
    open_with(model, n, "{\"added_tokens_decoder\":{\"512\":{\"content\":\"x\"}}}",
              "'512' is not in");
    open_with(model, n, "{\"added_tokens_decoder\":{\"300\":{}}}", "300 has no content");
    open_with(model, n, "{\"added_tokens_decoder\":{\"300\":{\"content\":\"\"}}}", "empty");
    open_with(
        model, n,
        "{\"added_tokens_decoder\":{\"300\":{\"content\":\"x\"},\"301\":{\"content\":\"x\"}}}",
        "two added tokens are 'x'");
    static const char *const extra[][2] = {{"QUI= 255\n", "twice"},
                                           {"QUI= 257\n", "only 257 tokens"},
                                           {"QQ== 256\n", "the same token"},
                                           {"QUI= -1\n", "not a number"},
                                           {"QUI=\n", "not 'token rank'"},
                                           {"Q!I= 256\n", "not base64"},
                                           {"QUJ= 256\n", "not base64"},
                                           {"QUI 256\n", "not base64"},
                                           {" 256\n", "empty"},
                                           {"QUI= 99999999999\n", "not 'token rank'"}};
    for (size_t i = 0; i < sizeof extra / sizeof *extra; i++) {
        memcpy(bad, model, n);
        size_t m = strlen(extra[i][0]);
        memcpy(bad + n, extra[i][0], m);
        open_with(bad, n + m, good, extra[i][1]);
    }
    memcpy(bad, model, n);
    memcpy(bad, "QUI=", 4);
    open_with(bad, n, good, "no token for the byte 0x00");
}

static void survives_lack_of_memory(void **state)
{
    (void)state;
    struct kd_err err;
    int64_t live = kd_mem_live_bytes(), nth = 0;
    static char text[4000];
    memset(text, 'q', sizeof text);
    for (int done = 0; !done;) {
        struct kd_tok *tok;
        struct kd_ids ids = {0};
        kd_mem_fail_nth(++nth);
        done = !kd_tok_open(&tok, data_path("k3-nano"), &err) &&
               !kd_tok_encode(tok, text, sizeof text, &ids, &err);
        kd_mem_fail_nth(0);
        kd_ids_release(&ids);
        kd_tok_close(tok);
        assert_int_equal(kd_mem_live_bytes(), live);
        assert_in_range(nth, 1, 2000);
        nth += nth > 10 ? 40 : 0;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gives_the_reference_ids),
                                       cmocka_unit_test(knows_the_special_tokens),
                                       cmocka_unit_test(splits_as_the_pattern_does),
                                       cmocka_unit_test(keeps_any_bytes),
                                       cmocka_unit_test(merges_by_the_definition),
                                       cmocka_unit_test(cuts_where_the_reference_cuts),
                                       cmocka_unit_test(refuses_broken_files),
                                       cmocka_unit_test(survives_lack_of_memory)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
