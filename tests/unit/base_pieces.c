/* base/pieces: names of pieces, and pieces mapped as the file they were. */
#include "base/pieces.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct kd_err err;

static void names(void **state)
{
    static const struct {
        const char *name;
        bool chopped;
        int base, no, count;
    } good[] = {{"x.gguf.part-03-of-05", true, 6, 3, 5},
                {"x.gguf.part2of12", true, 6, 2, 12},
                {"x.gguf-split-c", true, 6, 3, 0},
                {"x.gguf-split-ab", true, 6, 2, 0},
                {"x-00007-of-00014.gguf", false, 0, 7, 14},
                {"m-00001-of-000096.safetensors", false, 0, 1, 96}};
    static const char *const none[] = {"x.gguf",         "x.part6of5",
                                       "x.part0of5",     ".part1of2",
                                       "x.part1of2.txt", "x-00001-of-00014",
                                       "x-of-3.gguf",    "x-split-A",
                                       "x.part-1of2",    "x-9999999-of-9999999.gguf"};
    struct kd_piece p;
    char out[64];
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(kd_piece_parse(&p, good[i].name));
        assert_int_equal(p.chopped, good[i].chopped);
        assert_int_equal(p.no, good[i].no);
        assert_int_equal(p.count, good[i].count);
        if (p.chopped)
            assert_int_equal(p.base_bytes, good[i].base);
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_false(kd_piece_parse(&p, none[i]));
    assert_true(kd_piece_parse(&p, good[0].name) &&
                kd_piece_sister(out, sizeof out, good[0].name, &p, 5));
    assert_string_equal(out, "x.gguf.part-05-of-05");
    assert_true(kd_piece_parse(&p, good[4].name) &&
                kd_piece_sister(out, sizeof out, good[4].name, &p, 14));
    assert_string_equal(out, "x-00014-of-00014.gguf");
    assert_false(kd_piece_sister(out, 10, good[4].name, &p, 1));
    assert_false(kd_piece_sister(out, sizeof out, good[4].name, &p, 15));
    assert_true(kd_piece_parse(&p, good[3].name) &&
                kd_piece_sister(out, sizeof out, good[3].name, &p, 28));
    assert_string_equal(out, "x.gguf-split-bb");
    assert_false(kd_piece_sister(out, sizeof out, good[3].name, &p, 26 * 26 + 1));
    assert_true(kd_piece_parse(&p, good[2].name) &&
                kd_piece_sister(out, sizeof out, good[2].name, &p, 26));
    assert_string_equal(out, "x.gguf-split-z");
    assert_false(kd_piece_sister(out, sizeof out, good[2].name, &p, 27));
}

enum { BYTES = 300001 };
static uint8_t data[BYTES];

/* The data in pieces that end at `cut`, the last at the data's end; named by `fmt`, or by letters.
 */
static void chop(const char *dir, const char *fmt, const int64_t *cut, int count)
{
    char path[300], name[64];
    int64_t at = 0;
    for (int i = 0; i < count; i++) {
        int64_t end = i + 1 < count ? cut[i] : BYTES;
        if (fmt)
            snprintf(name, sizeof name, fmt, i + 1, count);
        else
            snprintf(name, sizeof name, "x.gguf-split-%c", 'a' + i);
        snprintf(path, sizeof path, "%s/%s", dir, name);
        assert_int_equal(kd_file_write(path, data + at, (size_t)(end - at), &err), 0);
        at = end;
    }
}

static void same(const char *dir, const char *name)
{
    char path[300], whole[300], want[300];
    struct kd_map m;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    snprintf(want, sizeof want, "%s/x.gguf", dir);
    if (kd_pieces_map(&m, path, whole, sizeof whole, &err))
        fail_msg("%s: %s", name, err.msg);
    assert_string_equal(whole, want);
    assert_int_equal(m.size_bytes, BYTES);
    assert_memory_equal(m.data, data, BYTES);
    kd_map_forget(m.data, m.size_bytes); /* what was copied has no file to come back from */
    assert_memory_equal(m.data, data, BYTES);
    kd_map_release(&m);
}

/* Cuts on pages, off them, several in one page, an empty piece. */
static void maps(void **state)
{
    static const int64_t cuts[][5] = {{65536, 131072, 196608, 262144},
                                      {1, 2, 3, 4},
                                      {65536, 65537, 131072, 131073},
                                      {100000, 100000, 131072, 300000},
                                      {4095, 4096, 4097, 70000}};
    char dir[] = "/tmp/kd.part1of2.XXXXXX", path[300]; /* not a piece itself */
    (void)state;
    for (int i = 0; i < BYTES; i++)
        data[i] = (uint8_t)((uint32_t)i * 2654435761u >> 23);
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        chop(dir, "x.gguf.part-%02d-of-%02d", cuts[i], 5);
        same(dir, "x.gguf.part-01-of-05");
        same(dir, "x.gguf.part-04-of-05");
        chop(dir, "x.gguf.part%dof%d", cuts[i], 5);
        same(dir, "x.gguf.part5of5");
        chop(dir, NULL, cuts[i], 5);
        same(dir, "x.gguf-split-c");
    }
    assert_int_equal(kd_dir_remove(dir, &err), 0);
    assert_int_equal(kd_dir_make(dir, &err), 0);
    chop(dir, "x.gguf.part-%02d-of-%02d", cuts[0], 5);
    snprintf(path, sizeof path, "%s/x.gguf.part-03-of-05", dir);
    assert_int_equal(unlink(path), 0);
    struct kd_map m;
    char whole[300];
    snprintf(path, sizeof path, "%s/x.gguf.part-01-of-05", dir);
    assert_int_equal(kd_pieces_map(&m, path, whole, sizeof whole, &err), -1);
    assert_non_null(strstr(err.msg, "piece 3 of 5"));
    assert_non_null(strstr(err.msg, "part-03-of-05"));
    assert_int_equal(kd_pieces_map(&m, path, whole, 10, &err), -1);
    snprintf(path, sizeof path, "%s/x.gguf", dir);
    assert_int_equal(kd_pieces_map(&m, path, whole, sizeof whole, &err), -1);
    assert_int_equal(kd_dir_remove(dir, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(maps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
