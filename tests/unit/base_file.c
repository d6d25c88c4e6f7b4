/* base/file: reads with a limit, maps, whole-or-nothing writes, folders, names from outside, the
 * lock. */
#include "base/file.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64];
static struct kd_err err;

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/kd_file_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return kd_dir_remove(dir, &err);
}

static const char *in_dir(const char *name)
{
    static char path[256];
    assert_int_equal(kd_path_join(path, sizeof path, dir, name, &err), 0);
    return path;
}

static int entries(void)
{
    DIR *d = opendir(dir);
    int n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

static void writes_and_reads(void **state)
{
    (void)state;
    struct kd_buf b;
    kd_buf_init(&b, 1 << 20);
    assert_int_equal(kd_file_write(in_dir("a"), "hello", 5, &err), 0);
    assert_int_equal(kd_file_read(&b, in_dir("a"), 5, &err), 0);
    assert_string_equal(b.data, "hello");
    kd_buf_clear(&b);
    assert_true(kd_path_same(dir, in_dir(".")));
    assert_false(kd_path_same(dir, in_dir("a")));
    assert_false(kd_path_same(in_dir("none"), in_dir("none")));
    assert_int_equal(kd_file_read(&b, in_dir("a"), 4, &err), -1);
    assert_non_null(strstr(err.msg, "larger than the limit"));
    assert_int_equal(kd_file_read(&b, in_dir("none"), 4, &err), -1);
    assert_int_equal(err.code, KD_EIO);
    assert_non_null(strstr(err.msg, "none"));
    assert_int_equal(kd_file_size(in_dir("a"), &err), 5);
    assert_int_equal(kd_file_size(in_dir("none"), &err), -1);
    assert_true(kd_file_exists(in_dir("a")));
    assert_false(kd_file_exists(dir));
    assert_true(kd_dir_exists(dir));
    assert_false(kd_dir_exists(in_dir("a")));
    kd_buf_release(&b);
}

static void maps(void **state)
{
    (void)state;
    struct kd_map m;
    assert_int_equal(kd_file_write(in_dir("a"), "mapped", 6, &err), 0);
    assert_int_equal(kd_file_map(&m, in_dir("a"), &err), 0);
    assert_int_equal(m.size_bytes, 6);
    assert_memory_equal(m.data, "mapped", 6);
    kd_map_forget(m.data, m.size_bytes);
    assert_memory_equal(m.data, "mapped", 6);
    kd_map_release(&m);
    assert_null(m.data);
    assert_int_equal(kd_file_write(in_dir("empty"), "", 0, &err), 0);
    assert_int_equal(kd_file_map(&m, in_dir("empty"), &err), 0);
    assert_null(m.data);
    kd_map_release(&m);
    assert_int_equal(kd_file_map(&m, dir, &err), -1);
    assert_int_equal(kd_file_map(&m, in_dir("none"), &err), -1);
}

/* Until commit the old content stays; after abort nothing is left behind. */
static void whole_or_nothing(void **state)
{
    (void)state;
    struct kd_outfile f;
    struct kd_buf b;
    kd_buf_init(&b, 1 << 10);
    assert_int_equal(kd_file_write(in_dir("a"), "old", 3, &err), 0);
    assert_int_equal(kd_out_open(&f, in_dir("a"), &err), 0);
    assert_int_equal(kd_out_write(&f, "new", 3, &err), 0);
    assert_int_equal(f.written_bytes, 3);
    assert_int_equal(kd_file_read(&b, in_dir("a"), 9, &err), 0);
    assert_string_equal(b.data, "old");
    assert_int_equal(entries(), 2);
    kd_out_abort(&f);
    kd_out_abort(&f);
    assert_int_equal(entries(), 1);
    assert_int_equal(kd_out_open(&f, in_dir("a"), &err), 0);
    assert_int_equal(kd_out_write(&f, "newer", 5, &err), 0);
    assert_int_equal(kd_out_commit(&f, &err), 0);
    kd_out_abort(&f);
    kd_buf_clear(&b);
    assert_int_equal(kd_file_read(&b, in_dir("a"), 9, &err), 0);
    assert_string_equal(b.data, "newer");
    assert_int_equal(entries(), 1);
    struct stat st;
    mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(stat(in_dir("a"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0666 & ~mask);
    assert_int_equal(kd_out_open(&f, in_dir("no/such/a"), &err), -1);
    kd_out_abort(&f);
    /* A final name that cannot be taken: the temporary file goes too. */
    assert_int_equal(kd_out_open(&f, in_dir("sub"), &err), 0);
    assert_int_equal(kd_dir_make(in_dir("sub/x"), &err), 0);
    assert_int_equal(kd_out_commit(&f, &err), -1);
    assert_int_equal(entries(), 2);
    kd_buf_release(&b);
}

/* No file takes a pipe's, a device's or a folder's place, and nothing temporary stays. */
static void only_over_files(void **state)
{
    (void)state;
    struct stat st;
    assert_int_equal(mkfifo(in_dir("pipe"), 0600), 0);
    assert_int_equal(kd_file_write(in_dir("pipe"), "x", 1, &err), -1);
    assert_int_equal(err.code, KD_EIO);
    assert_non_null(strstr(err.msg, "not a plain file"));
    assert_int_equal(stat(in_dir("pipe"), &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(symlink("/dev/null", in_dir("link")), 0);
    assert_int_equal(kd_file_write(in_dir("link"), "x", 1, &err), -1);
    assert_int_equal(kd_file_write(dir, "x", 1, &err), -1);
    assert_int_equal(entries(), 2);
}

static void folders(void **state)
{
    (void)state;
    char outside[64] = "/tmp/kd_keep_XXXXXX";
    assert_non_null(mkdtemp(outside));
    assert_int_equal(kd_dir_make(in_dir("p/q/r"), &err), 0);
    assert_int_equal(kd_dir_make(in_dir("p/q/r"), &err), 0);
    assert_int_equal(kd_file_write(in_dir("p/q/file"), "x", 1, &err), 0);
    assert_int_equal(kd_dir_make(in_dir("p/q/file"), &err), -1);
    assert_int_equal(kd_dir_make(in_dir("p/q/file/s"), &err), -1);
    assert_int_equal(symlink(outside, in_dir("p/link")), 0);
    assert_int_equal(kd_dir_remove(in_dir("p"), &err), 0);
    assert_false(kd_dir_exists(in_dir("p")));
    assert_true(kd_dir_exists(outside));
    assert_int_equal(kd_dir_remove(in_dir("p"), &err), 0);
    assert_int_equal(rmdir(outside), 0);
    assert_true(kd_disk_free_bytes(dir) > 0);
    assert_true(kd_disk_free_bytes(in_dir("not/yet/there")) > 0);
    char path[8];
    assert_int_equal(kd_path_join(path, sizeof path, "abc", "defg", &err), -1);
    assert_int_equal(kd_path_join(path, sizeof path, "abc/", "def", &err), 0);
    assert_string_equal(path, "abc/def");
}

static void names_from_outside(void **state)
{
    (void)state;
    static const char *const bad[] = {"",     ".",    "..",       "a/b", "../x", "/etc/passwd",
                                      "a\\b", "a\nb", "a\x1b[2J", "\x7f"};
    static const char *const good[] = {"a", "...", ".hidden", "model-00001-of-000096.safetensors",
                                       "\xc3\xa9"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(kd_name_check(bad[i], &err), -1);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(kd_name_check(good[i], &err), 0);
}

static void lock(void **state)
{
    (void)state;
    int one, two;
    assert_int_equal(kd_dir_lock(dir, &one, &err), 0);
    assert_int_equal(kd_dir_lock(dir, &two, &err), -1);
    assert_non_null(strstr(err.msg, "in use"));
    close(one);
    assert_int_equal(kd_dir_lock(dir, &two, &err), 0);
    close(two);
    assert_int_equal(kd_dir_lock("/no/such/folder", &two, &err), -1);
}

static void work_rows(void **state)
{
    (void)state;
    const int64_t live = kd_mem_live_bytes();
    struct kd_rwmap m, lent;
    assert_int_equal(kd_rw_memory(&m, 1000, &err), 0);
    assert_int_equal(kd_mem_live_bytes() - live, 1000);
    memset(m.data, 7, 1000);
    kd_rw_lend(&lent, m.data, 1000);
    assert_int_equal(lent.data[999], 7);
    kd_rw_close(&lent); /* leaves it */
    assert_int_equal(m.data[999], 7);
    kd_rw_close(&m);
    assert_int_equal(kd_mem_live_bytes(), live);
    kd_mem_fail_nth(1);
    assert_int_equal(kd_rw_memory(&m, 1000, &err), -1);
    assert_non_null(strstr(err.msg, "work rows"));
    kd_rw_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(writes_and_reads, setup, teardown),
        cmocka_unit_test_setup_teardown(maps, setup, teardown),
        cmocka_unit_test_setup_teardown(whole_or_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(only_over_files, setup, teardown),
        cmocka_unit_test_setup_teardown(folders, setup, teardown),
        cmocka_unit_test(names_from_outside),
        cmocka_unit_test(work_rows),
        cmocka_unit_test_setup_teardown(lock, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
