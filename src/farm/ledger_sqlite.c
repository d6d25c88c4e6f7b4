/* The embedded engine: SQLite with a write-ahead log. Claims and beats are not synced one by one: a
 * power cut costs the last moments of them, and leases end by themselves. What the disk cannot tell
 * again, who made a unit and which units are wrong, is (kd_db_begin_synced). */
#include "base/mem.h"
#include "farm/db.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

struct lite {
    sqlite3 *db;
    struct {
        const char *sql;
        sqlite3_stmt *stmt;
    } kept[KD_DB_STATEMENTS];
    int kept_count;
    char file[200]; /* for messages */
};

/* What the system said of the last failure, as each file keeps its own; 0: nothing. */
static int system_says(const struct lite *l)
{
    int sys = sqlite3_system_errno(l->db);
    sqlite3_file *log = NULL;
    if (!sys)
        sqlite3_file_control(l->db, "main", SQLITE_FCNTL_LAST_ERRNO, &sys);
    if (!sys && !sqlite3_file_control(l->db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &log) && log &&
        log->pMethods)
        log->pMethods->xFileControl(log, SQLITE_FCNTL_LAST_ERRNO, &sys);
    return sys;
}

static int fail(const struct lite *l, struct kd_err *err)
{
    int rc = sqlite3_errcode(l->db);
    enum kd_code code = rc == SQLITE_FULL || rc == SQLITE_IOERR          ? KD_EIO
                        : rc == SQLITE_CORRUPT || rc == SQLITE_NOTADB    ? KD_ECORRUPT
                        : rc == SQLITE_BUSY || rc == SQLITE_LOCKED       ? KD_ETIMEOUT
                        : rc == SQLITE_NOMEM                             ? KD_ENOMEM
                        : rc == SQLITE_CANTOPEN || rc == SQLITE_READONLY ? KD_EIO
                                                                         : KD_EINVAL;
    int sys = rc == SQLITE_IOERR ? system_says(l) : 0;
    if (sys) { /* "disk I/O error" is also what a limit on file sizes is called */
        errno = sys;
        return kd_fail_sys(err, "ledger '%s': %s", l->file, sqlite3_errmsg(l->db));
    }
    return kd_fail(err, code, "ledger '%s': %s", l->file, sqlite3_errmsg(l->db));
}

static void close_it(struct kd_db *db)
{
    struct lite *l = db->ctx;
    for (int i = 0; i < l->kept_count; i++)
        sqlite3_finalize(l->kept[i].stmt);
    sqlite3_close(l->db);
    kd_mem_free(l);
}

static int script(struct kd_db *db, const char *sql, struct kd_err *err)
{
    struct lite *l = db->ctx;
    return sqlite3_exec(l->db, sql, NULL, NULL, NULL) ? fail(l, err) : 0;
}

static int open_it(struct kd_db *db, const char *where, struct kd_err *err)
{
    struct lite *l;
    if (kd_mem_zero(&l, 1, sizeof *l, "ledger", err))
        return -1;
    db->ctx = l;
    snprintf(l->file, sizeof l->file, "%s", where);
    int rc = sqlite3_open(where, &l->db) ? fail(l, err) : 0;
    if (!rc) {
        sqlite3_busy_timeout(l->db, 10000);
        rc = script(db,
                    "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-512;"
                    "PRAGMA foreign_keys=OFF; PRAGMA temp_store=MEMORY",
                    err);
    }
    if (!rc)
        return 0;
    close_it(db);
    return -1;
}

static sqlite3_stmt *statement(struct lite *l, const char *sql, struct kd_err *err)
{
    for (int i = 0; i < l->kept_count; i++)
        if (l->kept[i].sql == sql)
            return l->kept[i].stmt;
    if (l->kept_count == KD_DB_STATEMENTS) {
        kd_fail(err, KD_EINVAL, "too many statements");
        return NULL;
    }
    struct kd_buf b;
    sqlite3_stmt *s = NULL;
    kd_buf_init(&b, 1 << 17);
    if (!kd_db_dialect(&b, sql, false, err)) {
        if (sqlite3_prepare_v3(l->db, b.data, -1, SQLITE_PREPARE_PERSISTENT, &s, NULL))
            fail(l, err);
        else
            l->kept[l->kept_count++] = (__typeof__(l->kept[0])){sql, s};
    }
    kd_buf_release(&b);
    return s;
}

static int exec(struct kd_db *db, const char *sql, const struct kd_db_arg *args, int count,
                struct kd_db_rows *rows, struct kd_err *err)
{
    struct lite *l = db->ctx;
    sqlite3_stmt *s = statement(l, sql, err);
    if (!s)
        return -1;
    for (int i = 0; i < count; i++) {
        const struct kd_db_arg *a = &args[i];
        int rc = a->type == KD_DB_INT   ? sqlite3_bind_int64(s, i + 1, a->i)
                 : a->type == KD_DB_NUM ? sqlite3_bind_double(s, i + 1, a->d)
                                        : sqlite3_bind_text(s, i + 1, a->s, -1, SQLITE_STATIC);
        if (rc)
            return fail(l, err);
    }
    int rc;
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        if (!rows)
            continue;
        rows->cols = sqlite3_column_count(s);
        for (int c = 0; c < rows->cols; c++)
            kd_db_cell(rows, (const char *)sqlite3_column_text(s, c));
        rows->count++;
    }
    int bad = rc == SQLITE_DONE ? 0 : fail(l, err);
    if (rows)
        rows->changed = sqlite3_changes64(l->db);
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    return bad;
}

const struct kd_db_engine kd_db_sqlite = {"sqlite", open_it, close_it, exec, script};
