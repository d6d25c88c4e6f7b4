/* The embedded engine's errors: the file they are about, and what the system said. */
#include "farm/db.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/kondense-db-XXXXXX", file[64], where[80];

static int fill(struct kd_db *db, struct kd_err *err)
{
    int rc = kd_db_script(db, "CREATE TABLE t (x TEXT)", err);
    for (int i = 0; i < 64 && !rc; i++)
        rc = kd_db_script(db, "INSERT INTO t VALUES (hex(zeroblob(4096)))", err);
    return rc;
}

static void a_limit_on_file_sizes_is_told(void **state)
{
    (void)state;
    struct rlimit was, small;
    struct kd_err err = {0};
    struct kd_db db;
    assert_int_equal(kd_db_open(&db, where, &err), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    signal(SIGXFSZ, SIG_IGN);
    small = (struct rlimit){.rlim_cur = 128 << 10, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = fill(&db, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    kd_db_close(&db);
    assert_int_equal(rc, -1);
    assert_int_equal(err.code, KD_EIO);
    assert_non_null(strstr(err.msg, file));
    assert_non_null(strstr(err.msg, "File too large"));
}

static void what_is_no_database_is_named(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct kd_db db;
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    for (int i = 0; i < 1000; i++)
        fputs("not a database\n", f);
    fclose(f);
    assert_int_equal(kd_db_open(&db, where, &err), -1);
    assert_int_equal(err.code, KD_ECORRUPT);
    assert_non_null(strstr(err.msg, file));
}

static int clean(void **state)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    (void)state;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char path[80];
        snprintf(path, sizeof path, "%s%s", file, ends[i]);
        unlink(path);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_limit_on_file_sizes_is_told, clean),
        cmocka_unit_test_teardown(what_is_no_database_is_named, clean),
    };
    if (!mkdtemp(folder))
        return 1;
    snprintf(file, sizeof file, "%s/ledger.db", folder);
    snprintf(where, sizeof where, "sqlite:%s", file);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    return rmdir(folder) ? 1 : rc;
}
