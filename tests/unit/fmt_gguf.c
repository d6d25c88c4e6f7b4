/* fmt/gguf: heads, sets and plans. Hostile files by the dozen: tests/hostile/make.py. */
#include "base/hash.h"
#include "fmt/gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct kd_err err;
static const int64_t ne[4] = {64, 3, 2, 1};

/* A head of every kind of value and three tensors; bytes of the data section follow it. */
static void build(struct kd_buf *out, int64_t alignment, bool data)
{
    struct kd_gguf_plan p;
    struct kd_buf words;
    int64_t offset, y = (256 + alignment - 1) / alignment * alignment;
    static const int16_t shorts[] = {-1, 2, 300};
    kd_gguf_plan_init(&p);
    kd_buf_init(&words, 1000);
    kd_buf_init(out, 1 << 20);
    kd_gguf_put_str(&words, "one", 3);
    kd_gguf_put_str(&words, "", 0);
    kd_gguf_put_str(&words, "three", 5);
    kd_gguf_plan_str(&p, "general.architecture", "test", 4);
    if (alignment != 32)
        kd_gguf_plan_int(&p, "general.alignment", KD_GV_U32, alignment);
    kd_gguf_plan_int(&p, "a.u8", KD_GV_U8, 255);
    kd_gguf_plan_int(&p, "a.i8", KD_GV_I8, -128);
    kd_gguf_plan_int(&p, "a.u16", KD_GV_U16, 65535);
    kd_gguf_plan_int(&p, "a.i32", KD_GV_I32, -7);
    kd_gguf_plan_int(&p, "a.i64", KD_GV_I64, INT64_MIN);
    kd_gguf_plan_int(&p, "a.bool", KD_GV_BOOL, 1);
    kd_gguf_plan_f32(&p, "a.f32", 0.25f);
    kd_gguf_plan_array(&p, "a.shorts", KD_GV_I16, 3, shorts, sizeof shorts);
    kd_gguf_plan_array(&p, "a.words", KD_GV_STR, 3, words.data, (int64_t)words.size_bytes);
    assert_int_equal(kd_gguf_plan_tensor(&p, "x", KD_GT_F32, 1, ne, &offset, &err), 0);
    assert_int_equal(offset, 0);
    assert_int_equal(kd_gguf_plan_tensor(&p, "y", KD_GT_Q8_0, 3, ne, &offset, &err), 0);
    assert_int_equal(offset, y);
    assert_int_equal(kd_gguf_plan_tensor(&p, "z", KD_GT_BF16, 1, ne, &offset, &err), 0);
    assert_int_equal(offset, y + (2 * 3 * 2 * 34 + alignment - 1) / alignment * alignment);
    assert_int_equal(kd_gguf_plan_head(&p, out, &err), 0);
    assert_int_equal(out->size_bytes + (size_t)p.data_bytes, kd_gguf_plan_file_bytes(&p));
    if (data)
        memset(kd_buf_grow(out, (size_t)p.data_bytes), 0, (size_t)p.data_bytes);
    kd_buf_release(&words);
    kd_gguf_plan_release(&p);
}

static void values(void **state)
{
    struct kd_buf b;
    struct kd_gguf g;
    int64_t v, at = 0, n;
    double d;
    bool yes;
    const char *text;
    (void)state;
    build(&b, 32, true);
    assert_int_equal(
        kd_gguf_parse(&g, b.data, (int64_t)b.size_bytes, (int64_t)b.size_bytes, "f", NULL, &err),
        0);
    assert_int_equal(g.kv_count, 10);
    assert_int_equal(g.tensor_count, 3);
    assert_int_equal(kd_gguf_int(&g, "a.u8", 0, 255, &v, &err), 0);
    assert_int_equal(v, 255);
    assert_int_equal(kd_gguf_int(&g, "a.i8", -128, 0, &v, &err), 0);
    assert_int_equal(v, -128);
    assert_int_equal(kd_gguf_int(&g, "a.i64", INT64_MIN, 0, &v, &err), 0);
    assert_true(v == INT64_MIN);
    assert_int_equal(kd_gguf_num(&g, "a.f32", &d, &err), 0);
    assert_true(d == 0.25);
    assert_int_equal(kd_gguf_num(&g, "a.i32", &d, &err), 0);
    assert_true(d == -7);
    assert_int_equal(kd_gguf_bool_or(&g, "a.bool", false, &yes, &err), 0);
    assert_true(yes);
    assert_int_equal(kd_gguf_item(kd_gguf_key(&g, "a.shorts"), 2, &v), 0);
    assert_int_equal(v, 300);
    assert_int_equal(kd_gguf_item(kd_gguf_key(&g, "a.shorts"), 0, &v), 0);
    assert_int_equal(v, -1);
    assert_int_equal(kd_gguf_item(kd_gguf_key(&g, "a.shorts"), 3, &v), -1);
    static const char *const words[] = {"one", "", "three"};
    for (int i = 0; i < 3; i++) {
        assert_true(kd_gguf_next_str(kd_gguf_key(&g, "a.words"), &at, &text, &n));
        assert_int_equal(n, strlen(words[i]));
        assert_memory_equal(text, words[i], (size_t)n);
    }
    assert_false(kd_gguf_next_str(kd_gguf_key(&g, "a.words"), &at, &text, &n));
    /* Wrong kinds, absent keys, bounds: each says the key. */
    assert_int_equal(kd_gguf_int(&g, "a.f32", 0, 1, &v, &err), -1);
    assert_string_equal(err.msg, "key 'a.f32' is a f32, not a whole number below 2^63");
    assert_int_equal(kd_gguf_int(&g, "a.u8", 0, 200, &v, &err), -1);
    assert_string_equal(err.msg, "key 'a.u8': 255 is outside 0 to 200");
    assert_int_equal(kd_gguf_int(&g, "b", 0, 200, &v, &err), -1);
    assert_string_equal(err.msg, "key 'b' is missing");
    assert_int_equal(kd_gguf_int_or(&g, "b", 0, 200, 9, &v, &err), 0);
    assert_int_equal(v, 9);
    const struct kd_gguf_tensor *t = kd_gguf_find(&g, "y");
    assert_int_equal(t->rank, 3);
    assert_int_equal(t->ne[1] * 10 + t->ne[3], 31);
    assert_int_equal(t->bytes, 2 * 3 * 2 * 34);
    kd_gguf_release(&g);
    kd_buf_release(&b);
}

/* A head copied pair by pair and tensor by tensor is the same bytes, and any start of it asks for
 * more than it is, never for more than the head. */
static void same_head(void **state)
{
    (void)state;
    for (int64_t alignment = 8; alignment <= 4096; alignment *= 4) {
        struct kd_buf b, again;
        struct kd_gguf g;
        struct kd_gguf_plan p;
        int64_t need;
        build(&b, alignment, true);
        int64_t size = (int64_t)b.size_bytes;
        assert_int_equal(kd_gguf_parse(&g, b.data, size, size, "f", NULL, &err), 0);
        assert_int_equal(g.alignment, alignment);
        kd_gguf_plan_init(&p);
        kd_buf_init(&again, 1 << 20);
        for (int64_t i = 0; i < g.kv_count; i++)
            kd_gguf_plan_copy(&p, &g.kv[i]);
        for (int64_t i = 0; i < g.tensor_count; i++)
            assert_int_equal(kd_gguf_plan_tensor(&p, g.tensors[i].name, g.tensors[i].type,
                                                 g.tensors[i].rank, g.tensors[i].ne, NULL, &err),
                             0);
        assert_int_equal(kd_gguf_plan_head(&p, &again, &err), 0);
        assert_int_equal(again.size_bytes, g.data_offset);
        assert_memory_equal(again.data, b.data, again.size_bytes);
        int64_t head = g.head_bytes;
        kd_gguf_release(&g);
        for (int64_t n = 0; n < head; n++) {
            uint8_t *part = malloc((size_t)n + 1);
            memcpy(part, b.data, (size_t)n);
            assert_int_equal(kd_gguf_parse(&g, part, n, size, "f", &need, &err), 0);
            assert_in_range(need, n + 1, head);
            assert_int_equal(kd_gguf_parse(&g, part, n, n, "f", NULL, &err), -1);
            free(part);
        }
        kd_gguf_plan_release(&p);
        kd_buf_release(&again);
        kd_buf_release(&b);
    }
}

/* The example of docs/formats/gguf.md. */
static void golden_bytes(void **state)
{
    static const uint8_t golden[96] = {
        'G', 'G', 'U', 'F', 3, 0, 0, 0, 1,   0, 0, 0, 0, 0, 0, 0, 0, 0, 0,    0,    0, 0, 0, 0,
        1,   0,   0,   0,   0, 0, 0, 0, 'x', 1, 0, 0, 0, 2, 0, 0, 0, 0, 0,    0,    0, 0, 0, 0,
        0,   0,   0,   0,   0, 0, 0, 0, 0,   0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x3f, 0, 0, 0, 0x40};
    static const int64_t two[1] = {2};
    struct kd_gguf_plan p;
    struct kd_buf b;
    struct kd_gguf g;
    (void)state;
    kd_gguf_plan_init(&p);
    kd_buf_init(&b, 100);
    assert_int_equal(kd_gguf_plan_tensor(&p, "x", KD_GT_F32, 1, two, NULL, &err), 0);
    assert_int_equal(kd_gguf_plan_head(&p, &b, &err), 0);
    assert_int_equal(kd_gguf_plan_file_bytes(&p), sizeof golden);
    assert_int_equal(b.size_bytes, 64);
    assert_memory_equal(b.data, golden, 64);
    assert_int_equal(kd_gguf_parse(&g, golden, 96, 96, "f", NULL, &err), 0);
    assert_memory_equal(golden + g.data_offset + g.tensors[0].offset, "\0\0\x80\x3f", 4);
    kd_gguf_release(&g);
    kd_buf_release(&b);
    kd_gguf_plan_release(&p);
}

static void refused_size(void **state)
{
    struct kd_buf b;
    struct kd_gguf g;
    (void)state;
    build(&b, 32, true);
    /* The last tensor's padding may be missing (z has 128 bytes, no padding; so cut one byte). */
    int64_t size = (int64_t)b.size_bytes;
    assert_int_equal(kd_gguf_parse(&g, b.data, size - 1, size - 1, "f.gguf", NULL, &err), -1);
    assert_non_null(strstr(err.msg, "f.gguf: the file has "));
    assert_non_null(strstr(err.msg, "it is cut short"));
    kd_buf_release(&b);
}

static void plans_refuse(void **state)
{
    struct kd_gguf_plan p;
    static const int64_t odd[1] = {33}, huge[2] = {INT64_C(1) << 40, INT64_C(1) << 40};
    (void)state;
    kd_gguf_plan_init(&p);
    kd_gguf_plan_int(&p, "a", KD_GV_U32, 1);
    assert_int_equal(kd_gguf_plan_tensor(&p, "x", KD_GT_Q8_0, 1, odd, NULL, &err), -1);
    assert_string_equal(err.msg, "tensor 'x': rows of 33 values are not whole blocks of 32 (Q8_0)");
    assert_int_equal(kd_gguf_plan_tensor(&p, "x", KD_GT_F32, 2, huge, NULL, &err), -1);
    assert_int_equal(kd_gguf_plan_tensor(&p, "x", 36, 1, odd, NULL, &err), -1);
    assert_string_equal(err.msg, "tensor 'x': type id 36 is not known here");
    kd_gguf_plan_int(&p, "b", KD_GV_U8, 256);
    assert_int_equal(kd_gguf_plan_tensor(&p, "y", KD_GT_F32, 1, odd, NULL, &err), -1);
    assert_string_equal(err.msg, "key 'b' does not fit its type");
    kd_gguf_plan_release(&p);
}

static void types(void **state)
{
    int known = 0;
    (void)state;
    for (int i = -1; i < 300; i++)
        known += kd_gguf_type_info(i) != NULL;
    assert_int_equal(known, 35);
    assert_int_equal(kd_gguf_type_named("iq2_xxs"), KD_GT_IQ2_XXS);
    assert_int_equal(kd_gguf_type_named("q9"), -1);
    assert_int_equal(kd_gguf_type_info(KD_GT_Q1_0)->file_type, 40);
}

static void split_names(void **state)
{
    int64_t no, count;
    size_t prefix;
    char name[64];
    (void)state;
    assert_true(kd_gguf_split_parse("d/K3-00002-of-00014.gguf", &no, &count, &prefix));
    assert_int_equal(no * 100 + count, 214);
    assert_int_equal(prefix, 4);
    assert_int_equal(kd_gguf_split_path(name, sizeof name, "d/K3-0000", prefix, 1, 14, &err), 0);
    assert_string_equal(name, "d/K3-00001-of-00014.gguf");
    static const char *const not [] = {"-00001-of-00002.gguf",  "a-00000-of-00002.gguf",
                                       "a-00003-of-00002.gguf", "a-0001-of-00002.gguf",
                                       "a-00001-of-00002.ggml", "a.gguf"};
    for (size_t i = 0; i < sizeof not / sizeof *not ; i++)
        assert_false(kd_gguf_split_parse(not [i], &no, &count, &prefix));
}

/* A set of three parts, the first without tensors; `no`, `count`, `total` of the last as told. */
static void write_set(const char *dir, int64_t last_no, int64_t last_count, int64_t total,
                      const char *last_tensor)
{
    for (int i = 0; i < 3; i++) {
        struct kd_gguf_plan p;
        struct kd_buf b;
        char path[200];
        kd_gguf_plan_init(&p);
        kd_buf_init(&b, 1 << 20);
        kd_gguf_plan_int(&p, "split.no", KD_GV_U16, i == 2 ? last_no : i);
        kd_gguf_plan_int(&p, "split.count", KD_GV_U16, i == 2 ? last_count : 3);
        kd_gguf_plan_int(&p, "split.tensors.count", KD_GV_I32, total);
        if (i)
            assert_int_equal(
                kd_gguf_plan_tensor(&p, i == 2 ? last_tensor : "x", KD_GT_F32, 1, ne, NULL, &err),
                0);
        assert_int_equal(kd_gguf_plan_head(&p, &b, &err), 0);
        memset(kd_buf_grow(&b, (size_t)p.data_bytes), 0, (size_t)p.data_bytes);
        snprintf(path, sizeof path, "%s/m-0000%d-of-00003.gguf", dir, i + 1);
        assert_int_equal(kd_file_write(path, b.data, b.size_bytes, &err), 0);
        kd_buf_release(&b);
        kd_gguf_plan_release(&p);
    }
}

/* The parts of a set one after the other: what `cat` makes of them. */
static void joined(const char *dir)
{
    char path[200];
    struct kd_buf b;
    struct kd_gguf_set s;
    kd_buf_init(&b, 1 << 20);
    for (int i = 1; i <= 3; i++) {
        snprintf(path, sizeof path, "%s/m-0000%d-of-00003.gguf", dir, i);
        assert_int_equal(kd_file_read(&b, path, 1 << 20, &err), 0);
    }
    snprintf(path, sizeof path, "%s/joined.gguf", dir);
    assert_int_equal(kd_file_write(path, b.data, b.size_bytes, &err), 0);
    assert_int_equal(kd_gguf_open(&s, path, &err), -1);
    if (!strstr(err.msg, "joined.gguf: it is one of 3 parts") || !strstr(err.msg, "joined into"))
        fail_msg("%s", err.msg);
    assert_int_equal(unlink(path), 0);
    kd_buf_release(&b);
}

static void sets(void **state)
{
    char dir[] = "/tmp/kd_gguf_XXXXXX", path[200];
    struct kd_gguf_set s;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/m-00002-of-00003.gguf", dir);
    write_set(dir, 2, 3, 2, "y");
    for (int folder = 0; folder < 2; folder++) {
        assert_true(kd_gguf_is(folder ? dir : path));
        assert_int_equal(kd_gguf_open(&s, folder ? dir : path, &err), 0);
        assert_int_equal(s.part_count, 3);
        assert_int_equal(s.parts[0].head.tensor_count, 0);
        assert_non_null(kd_gguf_find(&s.parts[2].head, "y"));
        kd_gguf_close(&s);
    }
    static const struct {
        int64_t no, count, total;
        const char *tensor, *reason;
    } bad[] = {
        {1, 3, 2, "y", "split.no says part 2, it is part 3"},
        {2, 4, 2, "y", "split.count says 4 parts, the set has 3"},
        {2, 3, 7, "y", "split.tensors.count says 7, the parts hold 2 tensors"},
        {2, 3, 2, "x", "tensor 'x' is in two parts"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_set(dir, bad[i].no, bad[i].count, bad[i].total, bad[i].tensor);
        assert_int_equal(kd_gguf_open(&s, path, &err), -1);
        if (!strstr(err.msg, bad[i].reason))
            fail_msg("'%s' does not say '%s'", err.msg, bad[i].reason);
    }
    write_set(dir, 2, 3, 2, "y");
    joined(dir);
    snprintf(path, sizeof path, "%s/m-00003-of-00003.gguf", dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(kd_gguf_open(&s, dir, &err), -1);
    assert_non_null(strstr(err.msg, "m-00003-of-00003.gguf"));
    assert_int_equal(kd_dir_remove(dir, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),       cmocka_unit_test(same_head),
        cmocka_unit_test(refused_size), cmocka_unit_test(golden_bytes),
        cmocka_unit_test(plans_refuse), cmocka_unit_test(types),
        cmocka_unit_test(split_names),  cmocka_unit_test(sets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
