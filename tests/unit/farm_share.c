/* The shared folder: what counts, what does not yet, and what never leads out of it. */
#include "base/hash.h"
#include "farm/share.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];
static const char text[] = "what a blob holds";
static char sha[65];

static void write_text(const char *path, const char *what, size_t n)
{
    struct kd_err err;
    assert_int_equal(kd_file_write(path, what, n, &err), 0);
}

static void whole_or_not_there(void **state)
{
    (void)state;
    struct kd_err err;
    struct kd_buf b;
    char path[4096], to[128];
    kd_buf_init(&b, 1 << 10);
    assert_int_equal(kd_share_blob(dir, sha, path, &err), 0);
    assert_int_equal(kd_share_read(path, sha, sizeof text, &b, NULL, &err), -1);
    assert_int_equal(err.code, KD_ECORRUPT);
    /* As it shows before its bytes do: empty, short, of the right length and zero. */
    char zero[sizeof text] = {0};
    write_text(path, "", 0);
    assert_int_equal(kd_share_read(path, sha, sizeof text, &b, NULL, &err), -1);
    write_text(path, text, 5);
    assert_int_equal(kd_share_read(path, sha, sizeof text, &b, NULL, &err), -1);
    write_text(path, zero, sizeof zero);
    assert_int_equal(kd_share_read(path, sha, sizeof text, &b, NULL, &err), -1);
    assert_int_equal(err.code, KD_ECORRUPT);
    assert_int_equal(b.size_bytes, 0);
    write_text(path, text, sizeof text);
    assert_int_equal(kd_share_read(path, sha, sizeof text, &b, NULL, &err), 0);
    assert_int_equal(b.size_bytes, sizeof text);
    assert_memory_equal(b.data, text, sizeof text);
    /* Into a file. */
    struct kd_outfile f;
    snprintf(to, sizeof to, "%s/copy", dir);
    assert_int_equal(kd_out_open(&f, to, &err), 0);
    assert_int_equal(kd_share_read(path, sha, sizeof text, NULL, &f, &err), 0);
    assert_int_equal(kd_out_commit(&f, &err), 0);
    assert_int_equal(kd_file_size(to, &err), sizeof text);
    kd_buf_release(&b);
}

static void nothing_leads_elsewhere(void **state)
{
    (void)state;
    struct kd_err err;
    struct kd_buf b;
    char path[4096], from[128];
    kd_buf_init(&b, 1 << 10);
    assert_int_equal(kd_share_blob(dir, "../../etc/passwd", path, &err), -1);
    assert_int_equal(kd_share_unit(dir, sha, "../w", path, &err), -1);
    assert_int_equal(kd_share_unit(dir, sha, "", path, &err), -1);
    assert_int_equal(kd_share_unit(dir, sha, "w12345678", path, &err), 0);
    /* A link to a file of the right bytes is not one. */
    snprintf(from, sizeof from, "%s/elsewhere", dir);
    write_text(from, text, sizeof text);
    assert_int_equal(symlink(from, path), 0);
    assert_int_equal(kd_share_read(path, sha, sizeof text, &b, NULL, &err), -1);
    assert_int_equal(unlink(path), 0);
    kd_buf_release(&b);
}

static void a_start_empties_it(void **state)
{
    (void)state;
    struct kd_err err;
    char blob[4096], unit[4096], folder[4096];
    assert_int_equal(kd_share_blob(dir, sha, blob, &err), 0);
    assert_int_equal(kd_share_unit(dir, sha, "w12345678", unit, &err), 0);
    snprintf(folder, sizeof folder, "%s/b/of-somebody", dir);
    write_text(blob, text, sizeof text);
    write_text(unit, text, sizeof text);
    assert_int_equal(kd_dir_make(folder, &err), 0);
    kd_share_sweep(dir);
    assert_true(!kd_file_exists(blob) && kd_file_exists(unit) && kd_dir_exists(folder));
    assert_int_equal(kd_share_open(dir, &err), 0);
    assert_true(!kd_file_exists(unit) && kd_share_seen(dir));
    assert_false(kd_share_seen("/nonexistent"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole_or_not_there),
                                       cmocka_unit_test(nothing_leads_elsewhere),
                                       cmocka_unit_test(a_start_empties_it)};
    struct kd_err err;
    snprintf(dir, sizeof dir, "/tmp/kondense-share-XXXXXX");
    if (!mkdtemp(dir) || kd_share_open(dir, &err) || kd_sha256_of(text, sizeof text, sha, &err))
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    return kd_dir_remove(dir, &err) ? 1 : rc;
}
