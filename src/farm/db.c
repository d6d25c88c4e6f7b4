#include "farm/db.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES_MAX = 256 << 20, CELLS_BYTES_MAX = 64 << 20, SQL_BYTES_MAX = 64 << 10 };

void kd_db_rows_init(struct kd_db_rows *r)
{
    memset(r, 0, sizeof *r);
    kd_buf_init(&r->text, TEXT_BYTES_MAX);
    kd_buf_init(&r->at, CELLS_BYTES_MAX);
}

void kd_db_rows_release(struct kd_db_rows *r)
{
    kd_buf_release(&r->text);
    kd_buf_release(&r->at);
    memset(r, 0, sizeof *r);
}

void kd_db_cell(struct kd_db_rows *r, const char *text)
{
    size_t at = r->text.size_bytes;
    kd_buf_add(&r->at, &at, sizeof at);
    kd_buf_add(&r->text, text ? text : "", strlen(text ? text : "") + 1);
}

const char *kd_db_text(const struct kd_db_rows *r, int64_t row, int col)
{
    size_t at;
    if (row < 0 || row >= r->count || col < 0 || col >= r->cols)
        return "";
    memcpy(&at, r->at.data + ((size_t)row * (size_t)r->cols + (size_t)col) * sizeof at, sizeof at);
    return r->text.data + at;
}

int64_t kd_db_int(const struct kd_db_rows *r, int64_t row, int col)
{
    return strtoll(kd_db_text(r, row, col), NULL, 10);
}

double kd_db_num(const struct kd_db_rows *r, int64_t row, int col)
{
    return strtod(kd_db_text(r, row, col), NULL);
}

int kd_db_open(struct kd_db *db, const char *where, struct kd_err *err)
{
    bool lite = !strncmp(where, "sqlite:", 7);
    memset(db, 0, sizeof *db);
    db->engine = lite ? &kd_db_sqlite : &kd_db_pg;
    if (db->engine->open(db, lite ? where + 7 : where, err)) {
        db->engine = NULL;
        return -1;
    }
    return 0;
}

void kd_db_close(struct kd_db *db)
{
    if (db->engine)
        db->engine->close(db);
    memset(db, 0, sizeof *db);
}

bool kd_db_is_sqlite(const struct kd_db *db)
{
    return db->engine == &kd_db_sqlite;
}

int kd_db_exec(struct kd_db *db, const char *sql, const struct kd_db_arg *args, int count,
               struct kd_db_rows *rows, struct kd_err *err)
{
    if (rows) {
        kd_buf_clear(&rows->text);
        kd_buf_clear(&rows->at);
        rows->count = rows->changed = 0;
        rows->cols = 0;
    }
    if (db->engine->exec(db, sql, args, count, rows, err))
        return -1;
    return rows ? kd_buf_ok(&rows->text, "ledger's answer", err) ||
                          kd_buf_ok(&rows->at, "ledger's answer", err)
                      ? -1
                      : 0
                : 0;
}

int kd_db_script(struct kd_db *db, const char *sql, struct kd_err *err)
{
    return db->engine->script(db, sql, err);
}

int kd_db_begin(struct kd_db *db, struct kd_err *err)
{
    if (kd_db_script(db, kd_db_is_sqlite(db) ? "BEGIN IMMEDIATE" : "BEGIN", err))
        return -1;
    db->in_tx = true;
    return 0;
}

/* A commit in this mode writes the log's earlier commits, too. */
int kd_db_begin_synced(struct kd_db *db, struct kd_err *err)
{
    db->synced = kd_db_is_sqlite(db);
    if (db->synced && kd_db_script(db, "PRAGMA synchronous=FULL", err))
        return -1;
    return kd_db_begin(db, err);
}

int kd_db_end(struct kd_db *db, int rc, struct kd_err *err)
{
    struct kd_err ignored;
    db->in_tx = false;
    rc = rc || kd_db_script(db, "COMMIT", err) ? -1 : 0;
    /* After a lost connection there is nothing to roll back. */
    if (rc && kd_db_script(db, "ROLLBACK", &ignored))
        return -1;
    if (db->synced && kd_db_script(db, "PRAGMA synchronous=NORMAL", &ignored))
        return rc; /* then the next ones are synced as well */
    db->synced = false;
    return rc;
}

int kd_db_dialect(struct kd_buf *out, const char *sql, bool pg, struct kd_err *err)
{
    for (const char *p = sql; *p; p++) {
        if (!strncmp(p, "{lock}", 6)) {
            kd_buf_str(out, pg ? "FOR UPDATE SKIP LOCKED" : "");
            p += 5;
        } else if (!strncmp(p, "{share}", 7)) {
            kd_buf_str(out, pg ? "FOR SHARE" : "");
            p += 6;
        } else if (*p == '?' && pg) {
            kd_buf_char(out, '$');
        } else {
            kd_buf_char(out, *p);
        }
    }
    if (out->size_bytes > SQL_BYTES_MAX)
        return kd_fail(err, KD_EINVAL, "a statement is too long");
    return kd_buf_ok(out, "statement", err);
}
