/* The one view of a database that the ledger has: SQLite in this process (ledger_sqlite.c) or a
 * PostgreSQL server (ledger_pg.c, libpq loaded at run time). Statements are written once, for both:
 * parameters are ?1, ?2, ..., values travel as text, `{lock}` stands for FOR UPDATE SKIP LOCKED
 * where the engine has it (SQLite has one writer at a time instead), `{share}` for FOR SHARE.
 *
 * A statement's text must be a constant: it is prepared once and found by its address. One thread
 * at a time for each kd_db; open more for more threads. */
#ifndef KD_FARM_DB_H
#define KD_FARM_DB_H

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

enum { KD_DB_STATEMENTS = 96, KD_DB_ARGS_MAX = 24 };

struct kd_db_arg {
    enum { KD_DB_INT, KD_DB_NUM, KD_DB_TEXT } type;
    int64_t i;
    double d;
    const char *s;
};
/* Written so that a call reads like its statement. */
#define kd_db_i(x) ((struct kd_db_arg){.type = KD_DB_INT, .i = (x)})
#define kd_db_d(x) ((struct kd_db_arg){.type = KD_DB_NUM, .d = (x)})
#define kd_db_s(x) ((struct kd_db_arg){.type = KD_DB_TEXT, .s = (x)})

/* An answer: cells as text in one block, NULL as "". */
struct kd_db_rows {
    int64_t count;
    int cols;
    int64_t changed; /* rows that the statement touched */
    struct kd_buf text;
    struct kd_buf at; /* size_t offsets of the cells */
};
void kd_db_rows_init(struct kd_db_rows *r);
void kd_db_rows_release(struct kd_db_rows *r);
const char *kd_db_text(const struct kd_db_rows *r, int64_t row, int col);
int64_t kd_db_int(const struct kd_db_rows *r, int64_t row, int col);
double kd_db_num(const struct kd_db_rows *r, int64_t row, int col);

struct kd_db;
struct kd_db_engine {
    const char *name;
    /* KD_ENET: the server cannot be reached; the next call connects again. */
    int (*open)(struct kd_db *db, const char *where, struct kd_err *err);
    void (*close)(struct kd_db *db);
    int (*exec)(struct kd_db *db, const char *sql, const struct kd_db_arg *args, int count,
                struct kd_db_rows *rows, struct kd_err *err);
    /* Several statements without parameters or answers. */
    int (*script)(struct kd_db *db, const char *sql, struct kd_err *err);
};
struct kd_db {
    const struct kd_db_engine *engine;
    void *ctx;
    bool in_tx, synced; /* synced: what the transaction at hand changes is on the disk at its end */
};
extern const struct kd_db_engine kd_db_sqlite, kd_db_pg;

/* where: "sqlite:PATH", or what libpq takes: "postgresql://..." or "host=... dbname=...". */
int kd_db_open(struct kd_db *db, const char *where, struct kd_err *err) KD_MUST;
void kd_db_close(struct kd_db *db);
bool kd_db_is_sqlite(const struct kd_db *db);
/* rows may be NULL; it is cleared first. */
int kd_db_exec(struct kd_db *db, const char *sql, const struct kd_db_arg *args, int count,
               struct kd_db_rows *rows, struct kd_err *err) KD_MUST;
#define KD_DB_ARGS(...)                                                                            \
    (const struct kd_db_arg[]){__VA_ARGS__},                                                       \
        (int)(sizeof((const struct kd_db_arg[]){__VA_ARGS__}) / sizeof(struct kd_db_arg))
int kd_db_script(struct kd_db *db, const char *sql, struct kd_err *err) KD_MUST;
/* A transaction that writes. _end commits when rc is 0, else rolls back; returns rc, or -1 when the
 * commit failed. */
int kd_db_begin(struct kd_db *db, struct kd_err *err) KD_MUST;
/* The same, and no power cut undoes it once _end has returned. PostgreSQL's are all of this kind.
 */
int kd_db_begin_synced(struct kd_db *db, struct kd_err *err) KD_MUST;
int kd_db_end(struct kd_db *db, int rc, struct kd_err *err);
/* For the engines: puts a cell at the end of rows; the statement with its marks replaced. */
void kd_db_cell(struct kd_db_rows *r, const char *text);
int kd_db_dialect(struct kd_buf *out, const char *sql, bool pg, struct kd_err *err) KD_MUST;

#endif
