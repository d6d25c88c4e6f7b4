/* PostgreSQL through libpq, which is loaded when a ledger names a server: Debian's libpq-dev for
 * two architectures exclude each other, and a machine without PostgreSQL should not need it. The
 * prototypes are those of libpq's documentation, chapter "libpq - C Library".
 *
 * An error without an SQLSTATE is a lost connection: on a route that drops packets libpq says
 * nothing more. The transaction is gone then, and the next call connects anew. */
#include "base/log.h"
#include "base/mem.h"
#include "farm/db.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct pg_conn;
struct pg_result;

/* Values of libpq-fe.h and postgres_ext.h. */
enum { CONNECTION_OK = 0, PGRES_COMMAND_OK = 1, PGRES_TUPLES_OK = 2, PG_DIAG_SQLSTATE = 'C' };

static struct {
    void *lib;
    struct pg_conn *(*connectdb)(const char *info);
    int (*status)(const struct pg_conn *);
    void (*finish)(struct pg_conn *);
    char *(*error_message)(const struct pg_conn *);
    struct pg_result *(*exec)(struct pg_conn *, const char *sql);
    struct pg_result *(*prepare)(struct pg_conn *, const char *name, const char *sql, int params,
                                 const unsigned *types);
    struct pg_result *(*exec_prepared)(struct pg_conn *, const char *name, int params,
                                       const char *const *values, const int *lengths,
                                       const int *formats, int result_format);
    int (*result_status)(const struct pg_result *);
    int (*ntuples)(const struct pg_result *);
    int (*nfields)(const struct pg_result *);
    char *(*getvalue)(const struct pg_result *, int row, int col);
    char *(*cmd_tuples)(struct pg_result *);
    char *(*error_field)(const struct pg_result *, int field);
    void (*clear)(struct pg_result *);
    void (*(*set_notice)(struct pg_conn *, void (*f)(void *, const char *),
                         void *arg))(void *, const char *);
} pq;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

static int load(struct kd_err *err)
{
    static const struct {
        const char *name;
        void *to;
    } names[] = {{"PQconnectdb", &pq.connectdb},
                 {"PQstatus", &pq.status},
                 {"PQfinish", &pq.finish},
                 {"PQerrorMessage", &pq.error_message},
                 {"PQexec", &pq.exec},
                 {"PQprepare", &pq.prepare},
                 {"PQexecPrepared", &pq.exec_prepared},
                 {"PQresultStatus", &pq.result_status},
                 {"PQntuples", &pq.ntuples},
                 {"PQnfields", &pq.nfields},
                 {"PQgetvalue", &pq.getvalue},
                 {"PQcmdTuples", &pq.cmd_tuples},
                 {"PQresultErrorField", &pq.error_field},
                 {"PQclear", &pq.clear},
                 {"PQsetNoticeProcessor", &pq.set_notice}};
    int rc = 0;
    pthread_mutex_lock(&loading);
    if (!pq.lib) {
        void *lib = dlopen("libpq.so.5", RTLD_NOW | RTLD_LOCAL);
        if (!lib)
            rc =
                kd_fail(err, KD_ENOTSUP,
                        "a PostgreSQL ledger needs libpq.so.5 (Debian: libpq5), which is not here");
        for (size_t i = 0; !rc && i < sizeof names / sizeof *names; i++) {
            void *f = dlsym(lib, names[i].name);
            if (!f)
                rc = kd_fail(err, KD_ENOTSUP, "libpq.so.5 has no %s", names[i].name);
            else
                memcpy(names[i].to, &f, sizeof f);
        }
        if (!rc)
            pq.lib = lib;
        else if (lib)
            dlclose(lib);
    }
    pthread_mutex_unlock(&loading);
    return rc;
}

struct server {
    struct pg_conn *conn;
    char where[1024];
    const char *kept[KD_DB_STATEMENTS]; /* prepared on this connection, named s0, s1, ... */
    int kept_count;
};

static void no_notice(void *ctx, const char *text)
{
    (void)ctx;
    kd_log(KD_LOG_DEBUG, "farm", "ledger=\"%.200s\"", text);
}

static void one_line(char *out, size_t size, const char *text)
{
    size_t n = 0;
    for (; *text && *text != '\n' && n + 1 < size; text++)
        out[n++] = *text;
    out[n] = 0;
}

static void hang_up(struct server *s)
{
    if (s->conn)
        pq.finish(s->conn);
    s->conn = NULL;
    s->kept_count = 0;
}

static int connect_it(struct server *s, struct kd_err *err)
{
    char info[1600], why[300];
    bool url = !strncmp(s->where, "postgres", 8) && strstr(s->where, "://");
    /* Timeouts: a server that vanished is noticed in seconds, and none of ours holds a lock. */
    static const char *const set =
        "SET statement_timeout='10s'; SET idle_in_transaction_session_timeout='15s'; "
        "SET client_min_messages='warning'";
    static const char *const keys[] = {"connect_timeout=2",     "keepalives_idle=2",
                                       "keepalives_interval=1", "keepalives_count=3",
                                       "tcp_user_timeout=4000", "application_name=kondense"};
    size_t n = (size_t)snprintf(info, sizeof info, "%s", s->where);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *glue = !url ? " " : i || strchr(s->where, '?') ? "&" : "?";
        n += (size_t)snprintf(info + n, sizeof info - n, "%s%s", glue, keys[i]);
    }
    s->conn = pq.connectdb(info);
    if (!s->conn || pq.status(s->conn) != CONNECTION_OK) {
        one_line(why, sizeof why, s->conn ? pq.error_message(s->conn) : "no memory");
        hang_up(s);
        return kd_fail(err, KD_ENET, "ledger: %s", why);
    }
    pq.set_notice(s->conn, no_notice, NULL);
    struct pg_result *r = pq.exec(s->conn, set);
    bool ok = r && pq.result_status(r) == PGRES_COMMAND_OK;
    pq.clear(r);
    if (ok)
        return 0;
    hang_up(s);
    return kd_fail(err, KD_ENET, "ledger: the server does not take our settings");
}

/* Why a statement failed; drops a connection that is lost. */
static int fail(struct kd_db *db, const struct pg_result *r, struct kd_err *err)
{
    struct server *s = db->ctx;
    const char *state = r ? pq.error_field(r, PG_DIAG_SQLSTATE) : NULL;
    char why[300];
    one_line(why, sizeof why, pq.error_message(s->conn));
    /* 57P: the server is shutting down or starting; 08: connection; 53: out of resources. */
    bool lost = !state || !*state || !strncmp(state, "57P", 3) || !strncmp(state, "08", 2);
    if (lost)
        hang_up(s);
    enum kd_code code =
        lost                       ? KD_ENET
        : !strncmp(state, "53", 2) ? KD_EIO
        : !strncmp(state, "40", 2) || !strncmp(state, "55", 2) || !strncmp(state, "57014", 5)
            ? KD_ETIMEOUT
            : KD_EINVAL;
    return kd_fail(err, code, "ledger: %s%s%s", why, lost ? "" : ", SQLSTATE ", lost ? "" : state);
}

static int reach(struct kd_db *db, struct kd_err *err)
{
    struct server *s = db->ctx;
    if (s->conn)
        return 0;
    if (db->in_tx)
        return kd_fail(err, KD_ENET, "ledger: the connection was lost within a transaction");
    return connect_it(s, err);
}

static int script(struct kd_db *db, const char *sql, struct kd_err *err)
{
    struct server *s = db->ctx;
    if (reach(db, err))
        return -1;
    struct pg_result *r = pq.exec(s->conn, sql);
    int st = r ? pq.result_status(r) : -1;
    int rc = st == PGRES_COMMAND_OK || st == PGRES_TUPLES_OK ? 0 : fail(db, r, err);
    pq.clear(r);
    return rc;
}

static int prepared(struct kd_db *db, const char *sql, int count, char name[16], struct kd_err *err)
{
    struct server *s = db->ctx;
    struct kd_buf b;
    int i = 0;
    while (i < s->kept_count && s->kept[i] != sql)
        i++;
    snprintf(name, 16, "s%d", i);
    if (i < s->kept_count)
        return 0;
    if (i == KD_DB_STATEMENTS)
        return kd_fail(err, KD_EINVAL, "too many statements");
    kd_buf_init(&b, 1 << 17);
    int rc = kd_db_dialect(&b, sql, true, err);
    if (!rc) {
        struct pg_result *r = pq.prepare(s->conn, name, b.data, count, NULL);
        rc = r && pq.result_status(r) == PGRES_COMMAND_OK ? 0 : fail(db, r, err);
        pq.clear(r);
    }
    kd_buf_release(&b);
    if (!rc)
        s->kept[s->kept_count++] = sql;
    return rc;
}

static int exec(struct kd_db *db, const char *sql, const struct kd_db_arg *args, int count,
                struct kd_db_rows *rows, struct kd_err *err)
{
    struct server *s = db->ctx;
    const char *values[KD_DB_ARGS_MAX];
    char number[KD_DB_ARGS_MAX][32], name[16];
    if (count > KD_DB_ARGS_MAX)
        return kd_fail(err, KD_EINVAL, "a statement with %d values", count);
    if (reach(db, err) || prepared(db, sql, count, name, err))
        return -1;
    for (int i = 0; i < count; i++) {
        values[i] = args[i].type == KD_DB_TEXT ? args[i].s : number[i];
        if (args[i].type == KD_DB_INT)
            snprintf(number[i], sizeof number[i], "%lld", (long long)args[i].i);
        else if (args[i].type == KD_DB_NUM)
            snprintf(number[i], sizeof number[i], "%.17g", args[i].d);
    }
    struct pg_result *r = pq.exec_prepared(s->conn, name, count, values, NULL, NULL, 0);
    int st = r ? pq.result_status(r) : -1, rc = 0;
    if (st != PGRES_COMMAND_OK && st != PGRES_TUPLES_OK)
        rc = fail(db, r, err);
    else if (rows) {
        rows->count = pq.ntuples(r);
        rows->cols = pq.nfields(r);
        for (int i = 0; i < rows->count; i++)
            for (int c = 0; c < rows->cols; c++)
                kd_db_cell(rows, pq.getvalue(r, i, c));
        rows->changed = strtoll(pq.cmd_tuples(r), NULL, 10);
    }
    pq.clear(r);
    return rc;
}

static void close_it(struct kd_db *db)
{
    hang_up(db->ctx);
    kd_mem_free(db->ctx);
}

static int open_it(struct kd_db *db, const char *where, struct kd_err *err)
{
    struct server *s;
    if (load(err) || kd_mem_zero(&s, 1, sizeof *s, "ledger", err))
        return -1;
    db->ctx = s;
    if (snprintf(s->where, sizeof s->where, "%s", where) >= (int)sizeof s->where) {
        kd_mem_free(s);
        return kd_fail(err, KD_EINVAL, "the ledger's address is too long");
    }
    if (connect_it(s, err)) {
        kd_mem_free(s);
        return -1;
    }
    return 0;
}

const struct kd_db_engine kd_db_pg = {"postgresql", open_it, close_it, exec, script};
