/* fmt/ckpt and fmt/stindex: folders of shards, with an index and without, hostile and healthy. */
#include "fmt/ckpt.h"

#include "base/mem.h"
#include "fmt/stindex.h"
#include "unit/fmt_util.h"

#include <zlib.h>

#define ONE "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}} "
#define TWO "{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}} "

static struct kd_err err;
static struct kd_ckpt *ck;

static void bad_dir(const char *dir, bool allow_missing, enum kd_code code, const char *reason)
{
    int64_t live = kd_mem_live_bytes();
    err = (struct kd_err){.msg = ""};
    if (!kd_ckpt_open(&ck, dir, allow_missing, &err))
        fail_msg("'%s' was taken instead of '%s'", dir, reason);
    assert_null(ck);
    if (!strstr(err.msg, reason))
        fail_msg("'%s' does not say '%s'", err.msg, reason);
    assert_int_equal(err.code, code);
    assert_int_equal(kd_mem_live_bytes(), live);
}

static void bad(enum kd_code code, const char *reason)
{
    bad_dir(fmt_dir, false, code, reason);
}

static void good(int64_t count)
{
    if (kd_ckpt_open(&ck, fmt_dir, false, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(kd_ckpt_count(ck), count);
}

static void index_of(const char *map)
{
    char text[2000];
    snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":7},\"weight_map\":{%s}}", map);
    fmt_text("model.safetensors.index.json", text);
}

static void indexed(void **state)
{
    (void)state;
    fmt_text("config.json", "{\"x\":1}");
    fmt_shard("s1.safetensors", ONE, 4);
    fmt_shard("s2.safetensors", TWO, 3);
    fmt_shard("stray.safetensors", ONE, 4);
    index_of("\"b\":\"s2.safetensors\",\"a\":\"s1.safetensors\"");
    good(2);
    assert_string_equal(kd_ckpt_at(ck, 0)->name, "a");
    assert_string_equal(kd_ckpt_at(ck, 1)->name, "b");
    assert_null(kd_ckpt_at(ck, 2));
    assert_null(kd_ckpt_at(ck, -1));
    assert_ptr_equal(kd_ckpt_find(ck, "b"), kd_ckpt_at(ck, 1));
    assert_null(kd_ckpt_find(ck, "c"));
    assert_int_equal(kd_ckpt_find(ck, "b")->data[2], 2);
    assert_int_equal(kd_ckpt_find(ck, "b")->shard, 1);
    assert_int_equal(kd_ckpt_index_total(ck), 7);
    assert_int_equal(kd_ckpt_shard_count(ck), 2);
    assert_string_equal(kd_ckpt_shard_name(ck, 0), "s1.safetensors");
    assert_true(kd_ckpt_shard_present(ck, 0));
    assert_int_equal(kd_json_int_value(kd_json_get(kd_ckpt_config(ck), "x")), 1);
    kd_ckpt_forget(ck, kd_ckpt_at(ck, 0));
    assert_int_equal(kd_ckpt_at(ck, 0)->data[3], 3);
    kd_ckpt_close(ck);
}

static void without_index(void **state)
{
    (void)state;
    fmt_text("config.json", "{}");
    bad(KD_EINVAL, "no *.safetensors");
    fmt_shard("s2.safetensors", TWO, 3);
    fmt_shard("s1.safetensors", ONE, 4);
    fmt_text("notes.txt", "not a shard");
    good(2);
    assert_string_equal(kd_ckpt_shard_name(ck, 0), "s1.safetensors");
    assert_int_equal(kd_ckpt_index_total(ck), -1);
    kd_ckpt_close(ck);
    fmt_shard("s3.safetensors", ONE, 4);
    bad(KD_ECORRUPT, "s3.safetensors: tensor 'a' is also in s1.safetensors");
    /* model.safetensors stands for itself, whatever lies beside it. */
    fmt_shard("model.safetensors", TWO, 3);
    good(1);
    kd_ckpt_close(ck);
}

static void single_file(void **state)
{
    (void)state;
    fmt_shard("s1.safetensors", ONE, 4);
    assert_int_equal(kd_ckpt_open(&ck, fmt_path("s1.safetensors"), false, &err), 0);
    assert_int_equal(kd_ckpt_count(ck), 1);
    assert_null(kd_ckpt_config(ck));
    assert_string_equal(kd_ckpt_dir(ck), fmt_dir);
    kd_ckpt_close(ck);
    fmt_text("junk", "junk");
    bad_dir(fmt_path("junk"), false, KD_ECORRUPT, "too few");
}

static void broken_folder(void **state)
{
    (void)state;
    bad_dir("/no/such/folder", true, KD_EINVAL, "cannot open '/no/such/folder'");
    bad(KD_EINVAL, "no config.json");
    fmt_text("config.json", "{\"a\":1,\"a\":2}");
    bad(KD_ECORRUPT, "config.json");
    fmt_text("config.json", "[]");
    bad(KD_ECORRUPT, "not a JSON object");
    fmt_text("config.json", "{\"hidden_size\": NaN}");
    bad(KD_ECORRUPT, "not valid JSON");
    fmt_text("config.json", "{}");
    fmt_text("model.safetensors.index.json", "");
    bad(KD_ECORRUPT, "index.json: JSON at byte 0");
}

static void index_and_shards_disagree(void **state)
{
    (void)state;
    fmt_text("config.json", "{}");
    fmt_shard("s1.safetensors", ONE, 4);
    fmt_shard("s2.safetensors", TWO, 3);
    index_of("\"a\":\"s1.safetensors\"");
    good(1);
    kd_ckpt_close(ck);
    index_of("\"a\":\"s1.safetensors\",\"z\":\"s1.safetensors\"");
    bad(KD_ECORRUPT, "tensor 'z' is in the index but not here");
    index_of("\"z\":\"s1.safetensors\"");
    bad(KD_ECORRUPT, "s1.safetensors: tensor 'a' is not in the index");
    index_of("\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"");
    bad(KD_ECORRUPT,
        "s1.safetensors: tensor 'a' is here, but the index puts it into s2.safetensors");
    index_of("\"a\":\"s1.safetensors\",\"b\":\"gone.safetensors\"");
    bad(KD_EIO, "gone.safetensors: the shard that the index names is not there");
    assert_int_equal(kd_ckpt_open(&ck, fmt_dir, true, &err), 0);
    const struct kd_tensor *t = kd_ckpt_find(ck, "b");
    assert_int_equal(t->rank, -1);
    assert_null(t->data);
    assert_false(kd_ckpt_shard_present(ck, t->shard));
    assert_int_equal(kd_ckpt_find(ck, "a")->rank, 1);
    kd_ckpt_forget(ck, t);
    kd_ckpt_close(ck);
    /* The same tensor in two shards. */
    fmt_shard("s2.safetensors", ONE, 4);
    index_of("\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"");
    bad(KD_ECORRUPT,
        "s2.safetensors: tensor 'a' is here, but the index puts it into s1.safetensors");
}

static void hostile_index(void **state)
{
    (void)state;
    fmt_text("config.json", "{}");
    static const char *const maps[][2] = {
        {"\"a\":\"../s1.safetensors\"", "tensor 'a': its shard"},
        {"\"a\":\"/etc/passwd\"", "path separator"},
        {"\"a\":\"x/../../y\"", "path separator"},
        {"\"a\":\"..\"", "not allowed"},
        {"\"a\":\"\"", "not allowed"},
        {"\"a\":\"-rf\"", "begins with '-'"},
        {"\"a\":\"s\\u001b[2J\"", "control byte"},
        {"\"a\":\"s\\u0000\"", "NUL"},
        {"\"a\":1", "not a string"},
        {"\"a\":[\"s1\"]", "not a string"},
        {"\"a\":\"s1\",\"a\":\"s1\"", "tensor 'a' twice"},
        {"\"\":\"s1\"", "without a name"},
        {"\"a\\u0007\":\"s1\"", "control character"},
    };
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        index_of(maps[i][0]);
        bad(KD_ECORRUPT, maps[i][1]);
    }
    static const char *const texts[][2] = {
        {"[]", "not an object"},
        {"{}", "weight_map is missing"},
        {"{\"weight_map\":[]}", "weight_map is not an object"},
        {"{\"weight_map\":{},\"weight_map\":{}}", "'weight_map' twice"},
        {"{\"weight_map\":{}} x", "follows the end"},
        {"{\"metadata\":{\"total_size\":-1},\"weight_map\":{}}", "total_size"},
        {"{\"metadata\":{\"total_size\":1.5},\"weight_map\":{}}", "total_size"},
        {"{\"metadata\":{\"total_size\":\"7\"},\"weight_map\":{}}", "total_size"},
        {"{\"metadata\":{\"total_size\":1,\"total_size\":1},\"weight_map\":{}}",
         "'total_size' twice"},
        {"{\"metadata\":7,\"weight_map\":{}}", "metadata is not an object"},
        {"{\"metadata\":{\"x\":{\"y\":1,\"y\":2}},\"weight_map\":{}}", "'y' twice"},
        {"{\"other\":[{\"y\":1,\"y\":2}],\"weight_map\":{}}", "'y' twice"},
        {"{\"o\":[[[[[[[[[1]]]]]]]]],\"weight_map\":{}}", "levels"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        fmt_text("model.safetensors.index.json", texts[i][0]);
        bad(KD_ECORRUPT, texts[i][1]);
    }
    char name[400];
    memset(name, 'x', sizeof name);
    memcpy(name, "\"a\":\"", 5);
    memcpy(name + 300, "\"", 2);
    index_of(name);
    bad(KD_ECORRUPT, "too long");
}

static void gzipped(void **state)
{
    (void)state;
    static const char text[] = "{\"metadata\":{\"total_size\":4.0,\"more\":[1,{\"k\":null}]},"
                               "\"weight_map\":{\"a\":\"s1.safetensors\"},\"extra\":true}";
    fmt_text("config.json", "{}");
    fmt_shard("s1.safetensors", ONE, 4);
    const char *path = fmt_path("model.safetensors.index.json.gz");
    gzFile f = gzopen(path, "wb");
    gzwrite(f, text, sizeof text - 1);
    gzclose(f);
    good(1);
    assert_int_equal(kd_ckpt_index_total(ck), 4);
    kd_ckpt_close(ck);
    struct kd_buf b;
    kd_buf_init(&b, 1 << 16);
    assert_int_equal(kd_file_read(&b, path, 1 << 16, &err), 0);
    for (size_t cut = 1; cut < b.size_bytes; cut++) {
        fmt_put("model.safetensors.index.json.gz", b.data, cut);
        assert_int_equal(kd_ckpt_open(&ck, fmt_dir, false, &err), -1);
    }
    for (size_t i = 0; i < b.size_bytes; i++) {
        b.data[i] = (char)(b.data[i] ^ 0x40);
        fmt_put("model.safetensors.index.json.gz", b.data, b.size_bytes);
        b.data[i] = (char)(b.data[i] ^ 0x40);
        if (!kd_ckpt_open(&ck, fmt_dir, false, &err))
            kd_ckpt_close(ck);
    }
    kd_buf_release(&b);
}

/* A gzip bomb stops at the limit on the text, not at the end of the memory. */
static void bomb(void **state)
{
    (void)state;
    if (KD_TEST_SLOW) /* half a gigabyte of text */
        skip();
    static char spaces[1 << 20];
    memset(spaces, ' ', sizeof spaces);
    fmt_text("config.json", "{}");
    gzFile f = gzopen(fmt_path("model.safetensors.index.json.gz"), "wb1");
    for (int i = 0; i < 513; i++)
        gzwrite(f, spaces, sizeof spaces);
    gzclose(f);
    bad(KD_ECORRUPT, "larger than its limit");
}

static void misaligned(void **state)
{
    (void)state;
    fmt_text("config.json", "{}");
    fmt_shard("model.safetensors",
              "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
              "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]}}",
              5);
    bad(KD_ENOTSUP, "tensor 'b' (F32) does not begin on a multiple");
}

static void memory_runs_out(void **state)
{
    (void)state;
    fmt_text("config.json", "{}");
    fmt_shard("s1.safetensors", ONE, 4);
    fmt_shard("s2.safetensors", TWO, 3);
    index_of("\"b\":\"s2.safetensors\",\"a\":\"s1.safetensors\"");
    int64_t live = kd_mem_live_bytes();
    int rc = -1;
    for (int nth = 1; rc && nth < 200; nth++) {
        kd_mem_fail_nth(nth);
        rc = kd_ckpt_open(&ck, fmt_dir, false, &err);
        kd_mem_fail_nth(0);
        if (rc)
            assert_int_equal(err.code, KD_ENOMEM);
        else
            kd_ckpt_close(ck);
        assert_int_equal(kd_mem_live_bytes(), live);
    }
    assert_int_equal(rc, 0);
}

static const char *data_dir(void)
{
    const char *dir = getenv("KONDENSE_TEST_DATA");
    return dir ? dir : "tests/data";
}

static void nano(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s/k3-nano", data_dir());
    if (!kd_dir_exists(path))
        skip();
    assert_int_equal(kd_ckpt_open(&ck, path, false, &err), 0);
    assert_int_equal(kd_ckpt_count(ck), 1788);
    int64_t sum = 0;
    for (int64_t i = 0; i < kd_ckpt_count(ck); i++) {
        const struct kd_tensor *t = kd_ckpt_at(ck, i);
        assert_ptr_equal(kd_ckpt_find(ck, t->name), t);
        assert_true(!i || strcmp(kd_ckpt_at(ck, i - 1)->name, t->name) < 0);
        sum += t->bytes;
    }
    assert_int_equal(sum, 23705216);
    assert_int_equal(kd_ckpt_index_total(ck), 23705216);
    kd_ckpt_close(ck);
}

/* The released index: 497,220 names, 60 MB of JSON. */
static void released(void **state)
{
    (void)state;
    char path[512];
    const char *shared = getenv("KONDENSE_SHARED");
    snprintf(path, sizeof path, "%s/release", shared ? shared : "../shared");
    if (!shared && !kd_dir_exists(path))
        snprintf(path, sizeof path, "%s/../../../shared/release", data_dir());
    if (!kd_dir_exists(path))
        skip();
    assert_int_equal(kd_ckpt_open(&ck, path, true, &err), 0);
    assert_int_equal(kd_ckpt_count(ck), 497220);
    assert_int_equal(kd_ckpt_index_total(ck), INT64_C(1560860324864));
    assert_int_equal(kd_ckpt_shard_count(ck), 96);
    const struct kd_tensor *t = kd_ckpt_find(
        ck, "language_model.model.layers.92.block_sparse_moe.experts.895.w3.weight_scale");
    assert_non_null(t);
    assert_string_equal(kd_ckpt_shard_name(ck, t->shard), "model-00093-of-000096.safetensors");
    kd_ckpt_close(ck);
    bad_dir(path, false, KD_EIO, "is not there");
}

#define IN_DIR(f) cmocka_unit_test_setup_teardown(f, fmt_setup, fmt_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(indexed),
        IN_DIR(without_index),
        IN_DIR(single_file),
        IN_DIR(broken_folder),
        IN_DIR(index_and_shards_disagree),
        IN_DIR(hostile_index),
        IN_DIR(gzipped),
        IN_DIR(bomb),
        IN_DIR(misaligned),
        IN_DIR(memory_runs_out),
        cmocka_unit_test(nano),
        cmocka_unit_test(released),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
