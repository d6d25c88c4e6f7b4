/* How jobs end: done, failed, run out, thrown away. Every function is one transaction. */
#include "base/log.h"
#include "farm/ledger_int.h"

#include <stdio.h>
#include <string.h>

/* A job's row, locked for this transaction. */
struct row {
    bool there;
    char state[16], sha[72], done_by[KD_WORKER_ID_MAX], blamed[512];
    int64_t failures, crashes, solo;
};

static int read_row(struct kd_ledger *l, int64_t id, struct row *r, struct kd_err *err)
{
    memset(r, 0, sizeof *r);
    if (kd_ledger_exec(
            l,
            kd_db_is_sqlite(&l->db)
                ? "SELECT state, sha, done_by, blamed, failures, crashes, solo FROM job WHERE "
                  "run=?1 AND id=?2"
                : "SELECT state, sha, done_by, blamed, failures, crashes, solo FROM job WHERE "
                  "run=?1 AND id=?2 FOR UPDATE",
            KD_DB_ARGS(kd_db_s(l->run), kd_db_i(id)), err))
        return -1;
    if (!l->rows.count)
        return 0;
    r->there = true;
    snprintf(r->state, sizeof r->state, "%s", kd_db_text(&l->rows, 0, 0));
    snprintf(r->sha, sizeof r->sha, "%s", kd_db_text(&l->rows, 0, 1));
    snprintf(r->done_by, sizeof r->done_by, "%s", kd_db_text(&l->rows, 0, 2));
    snprintf(r->blamed, sizeof r->blamed, "%s", kd_db_text(&l->rows, 0, 3));
    r->failures = kd_db_int(&l->rows, 0, 4);
    r->crashes = kd_db_int(&l->rows, 0, 5);
    r->solo = kd_db_int(&l->rows, 0, 6);
    return 0;
}

static int first_result(struct kd_ledger *l, const struct kd_result *r, int64_t id,
                        struct kd_err *err)
{
    double now = l->now();
    if (kd_ledger_exec(
            l,
            "UPDATE job SET state='DONE', sha=?3, done_by=?4, done_attempt=?5, proxy=?6, "
            "seconds=?7, done_at=?8 WHERE run=?1 AND id=?2",
            KD_DB_ARGS(kd_db_s(l->run), kd_db_i(id), kd_db_s(r->sha256), kd_db_s(r->worker),
                       kd_db_i(r->attempt), kd_db_d(r->proxy), kd_db_d(r->seconds), kd_db_d(now)),
            err) ||
        kd_ledger_end_leases(l, id, r->attempt, "superseded", "another's result came first", err))
        return -1;
    /* Seconds an expert, smoothed over about eight; a tensor of the trunk says nothing of them. */
    return kd_ledger_exec(
        l,
        "UPDATE worker SET done=done+1, busy=busy+?3, rate=CASE WHEN CAST(?5 AS BIGINT)>=65280 "
        "THEN "
        "rate WHEN rate>0 THEN rate+(CAST(?3 AS DOUBLE PRECISION)-rate)/8 ELSE ?3 END, "
        "last_seen=?4 WHERE run=?1 AND id=?2",
        KD_DB_ARGS(kd_db_s(l->run), kd_db_s(r->worker), kd_db_d(r->seconds), kd_db_d(now),
                   kd_db_i(r->expert)),
        err);
}

int kd_ledger_done(struct kd_ledger *l, const struct kd_result *r, enum kd_done *what,
                   char other_by[KD_WORKER_ID_MAX], struct kd_err *err)
{
    int64_t id = kd_job_id(r->layer, r->expert);
    struct row row;
    if (kd_ledger_begin_synced(l, err))
        return -1;
    int rc = read_row(l, id, &row, err);
    if (!rc && !row.there)
        rc = kd_fail(err, KD_EINVAL, "expert %lld of layer %lld is no job of this run",
                     (long long)r->expert, (long long)r->layer);
    const char *name = "done";
    if (!rc && strcmp(row.state, "DONE") != 0) {
        *what = KD_DONE_FIRST;
        rc = first_result(l, r, id, err);
    } else if (!rc) {
        /* A unit found on disk has no digest in a rebuilt ledger; the caller has compared bytes. */
        bool same = !row.sha[0] || !strcmp(row.sha, r->sha256);
        *what = same ? KD_DONE_AGAIN : KD_DONE_DIFFERS;
        name = same ? "again" : "differs";
        rc = kd_ledger_exec(
            l, "UPDATE worker SET again=again+1, last_seen=?3 WHERE run=?1 AND id=?2",
            KD_DB_ARGS(kd_db_s(l->run), kd_db_s(r->worker), kd_db_d(l->now())), err);
        if (!rc)
            rc = kd_ledger_exec(l, "DELETE FROM lease WHERE run=?1 AND job=?2 AND attempt=?3",
                                KD_DB_ARGS(kd_db_s(l->run), kd_db_i(id), kd_db_i(r->attempt)), err);
    }
    if (!rc)
        rc = kd_ledger_event(l, r->layer, r->expert, r->attempt, r->worker, name, r->sha256, err);
    if (!rc && other_by)
        snprintf(other_by, KD_WORKER_ID_MAX, "%s", row.done_by);
    return kd_db_end(&l->db, rc, err);
}

/* Different hosts in a list such as ",a,b,". */
static int64_t hosts_in(const char *blamed)
{
    int64_t n = -1;
    for (; *blamed; blamed++)
        n += *blamed == ',';
    return n < 0 ? 0 : n;
}

static void blame(char *blamed, size_t size, const char *host)
{
    char mark[140];
    size_t n = strlen(blamed);
    snprintf(mark, sizeof mark, ",%s,", host);
    if (!strstr(blamed, mark) && n + strlen(host) + 2 < size)
        snprintf(blamed + n, size - n, "%s,", host);
}

static int host_of(struct kd_ledger *l, const char *worker, char *host, size_t size,
                   struct kd_err *err)
{
    if (kd_ledger_exec(l, "SELECT host FROM worker WHERE run=?1 AND id=?2",
                       KD_DB_ARGS(kd_db_s(l->run), kd_db_s(worker)), err))
        return -1;
    snprintf(host, size, "%s", kd_db_text(&l->rows, 0, 0));
    return 0;
}

/* Puts a job whose lease has just been deleted back, or into POISON. */
static int put_back(struct kd_ledger *l, int64_t id, const struct row *r, const char *blamed,
                    int64_t failures, int64_t crashes, bool solo, bool poison, double wait_s,
                    struct kd_err *err)
{
    if (!strcmp(r->state, "DONE"))
        return 0;
    return kd_ledger_exec(
        l,
        "UPDATE job SET failures=?3, crashes=?4, solo=?5, blamed=?6, not_before=?7, state=CASE "
        "WHEN CAST(?8 AS BIGINT)=1 THEN 'POISON' WHEN EXISTS (SELECT 1 FROM lease WHERE "
        "lease.run=job.run AND lease.job=job.id) THEN state ELSE 'READY' END WHERE run=?1 AND "
        "id=?2",
        KD_DB_ARGS(kd_db_s(l->run), kd_db_i(id), kd_db_i(failures), kd_db_i(crashes), kd_db_i(solo),
                   kd_db_s(blamed), kd_db_d(l->now() + wait_s), kd_db_i(poison)),
        err);
}

static int strike(struct kd_ledger *l, const char *worker, struct kd_err *err)
{
    double now = l->now();
    return kd_ledger_exec(
        l,
        "UPDATE worker SET strikes=CASE WHEN strike_at>CAST(?3 AS DOUBLE PRECISION)-600 THEN "
        "strikes+1 ELSE 1 END, strike_at=CASE WHEN strike_at>CAST(?3 AS DOUBLE PRECISION)-600 THEN "
        "strike_at ELSE ?3 END, state=CASE WHEN strike_at>CAST(?3 AS DOUBLE PRECISION)-600 AND "
        "strikes>=2 THEN 'QUARANTINED' ELSE state END WHERE run=?1 AND id=?2",
        KD_DB_ARGS(kd_db_s(l->run), kd_db_s(worker), kd_db_d(now)), err);
}

static int fail_one(struct kd_ledger *l, int64_t id, const char *worker, enum kd_fail_class why,
                    bool *poison, struct kd_err *err)
{
    struct row r;
    char host[128];
    if (read_row(l, id, &r, err) || host_of(l, worker, host, sizeof host, err))
        return -1;
    if (!r.there)
        return 0;
    if (why == KD_FAIL_MATH || why == KD_FAIL_CRASH)
        blame(r.blamed, sizeof r.blamed, host);
    int64_t f = r.failures + (why == KD_FAIL_MATH), c = r.crashes + (why == KD_FAIL_CRASH);
    bool solo = r.solo || (c >= 2 && hosts_in(r.blamed) >= 2);
    *poison = (why == KD_FAIL_MATH &&
               ((f >= 2 && hosts_in(r.blamed) >= 2) || f >= l->rules.failures_max)) ||
              (why == KD_FAIL_CRASH && ((r.solo && c >= 3) || c >= l->rules.crashes_max));
    double wait = 0;
    if (why == KD_FAIL_MATH)
        for (wait = 2; f-- > 1 && wait < 60;)
            wait *= 2;
    if (put_back(l, id, &r, r.blamed, r.failures + (why == KD_FAIL_MATH), c, solo, *poison, wait,
                 err))
        return -1;
    if (why == KD_FAIL_DEVICE && strike(l, worker, err))
        return -1;
    if (why == KD_FAIL_VERSION &&
        kd_ledger_exec(l, "UPDATE worker SET state='DRAINING' WHERE run=?1 AND id=?2",
                       KD_DB_ARGS(kd_db_s(l->run), kd_db_s(worker)), err))
        return -1;
    if (why == KD_FAIL_RETURN)
        return 0;
    return kd_ledger_exec(l,
                          why == KD_FAIL_CRASH
                              ? "UPDATE worker SET crashes=crashes+1 WHERE run=?1 AND id=?2"
                              : "UPDATE worker SET failures=failures+1 WHERE run=?1 AND id=?2",
                          KD_DB_ARGS(kd_db_s(l->run), kd_db_s(worker)), err);
}

int kd_ledger_fail(struct kd_ledger *l, int64_t layer, int64_t expert, int64_t attempt,
                   const char *worker, enum kd_fail_class why, const char *detail,
                   struct kd_err *err)
{
    int64_t id = kd_job_id(layer, expert);
    bool poison = false;
    if (kd_ledger_begin(l, err))
        return -1;
    int rc = kd_ledger_exec(
        l, "DELETE FROM lease WHERE run=?1 AND job=?2 AND attempt=?3 AND worker=?4",
        KD_DB_ARGS(kd_db_s(l->run), kd_db_i(id), kd_db_i(attempt), kd_db_s(worker)), err);
    /* Without a lease it was taken away before: whoever has the job now is not touched. */
    bool had = !rc && l->rows.changed > 0;
    if (had)
        rc = fail_one(l, id, worker, why, &poison, err);
    if (!rc && had)
        rc = kd_ledger_event(l, layer, expert, attempt, worker, kd_fail_name(why), detail, err);
    if (!rc && poison)
        rc = kd_ledger_event(l, layer, expert, attempt, worker, "poison", detail, err);
    return kd_db_end(&l->db, rc, err);
}

int kd_ledger_reap(struct kd_ledger *l, int64_t *reaped, struct kd_err *err)
{
    enum { MOST = 256 };
    struct {
        int64_t id, attempt;
        char worker[KD_WORKER_ID_MAX];
        bool crash;
    } out[MOST];
    *reaped = 0;
    if (kd_ledger_begin(l, err))
        return -1;
    int rc = kd_ledger_exec(
        l,
        "SELECT lease.job, lease.attempt, lease.worker, CASE WHEN worker.incarnation="
        "lease.incarnation AND worker.last_seen>=lease.expires THEN 0 ELSE 1 END FROM lease LEFT "
        "JOIN worker ON worker.run=lease.run AND worker.id=lease.worker WHERE lease.run=?1 AND "
        "lease.expires<?2 ORDER BY lease.job LIMIT 256",
        KD_DB_ARGS(kd_db_s(l->run), kd_db_d(l->now())), err);
    int64_t n = rc ? 0 : l->rows.count;
    for (int64_t i = 0; i < n; i++) {
        out[i].id = kd_db_int(&l->rows, i, 0);
        out[i].attempt = kd_db_int(&l->rows, i, 1);
        snprintf(out[i].worker, sizeof out[i].worker, "%s", kd_db_text(&l->rows, i, 2));
        out[i].crash = kd_db_int(&l->rows, i, 3) != 0;
    }
    for (int64_t i = 0; !rc && i < n; i++) {
        bool poison = false;
        rc = kd_ledger_exec(l,
                            "DELETE FROM lease WHERE run=?1 AND job=?2 AND attempt=?3 AND "
                            "expires<?4",
                            KD_DB_ARGS(kd_db_s(l->run), kd_db_i(out[i].id), kd_db_i(out[i].attempt),
                                       kd_db_d(l->now())),
                            err);
        if (rc || !l->rows.changed)
            continue;
        enum kd_fail_class why = out[i].crash ? KD_FAIL_CRASH : KD_FAIL_RETURN;
        int64_t layer = out[i].id / 65536, expert = out[i].id % 65536;
        rc = fail_one(l, out[i].id, out[i].worker, why, &poison, err);
        if (!rc)
            rc = kd_ledger_event(l, layer, expert, out[i].attempt, out[i].worker, "expire",
                                 kd_fail_name(why), err);
        if (!rc && poison)
            rc = kd_ledger_event(l, layer, expert, out[i].attempt, out[i].worker, "poison", "crash",
                                 err);
        ++*reaped;
    }
    return kd_db_end(&l->db, rc, err);
}

int kd_ledger_discard(struct kd_ledger *l, const char *worker, const struct kd_stage *open,
                      const char *why, int64_t *out, int64_t max, int64_t *count, int64_t *closed,
                      int64_t *since, struct kd_err *err)
{
    int64_t from = kd_job_id(open->layer, open->first), to = from + open->jobs;
    *count = *closed = 0;
    *since = -1;
    if (kd_ledger_begin_synced(l, err))
        return -1;
    int rc = kd_ledger_exec(
        l,
        "UPDATE job SET state='READY', done_by='', sha='discarded' WHERE run=?1 AND id>=?2 AND "
        "id<?4 AND "
        "done_by=?3 AND state='DONE' RETURNING expert",
        KD_DB_ARGS(kd_db_s(l->run), kd_db_i(from), kd_db_s(worker), kd_db_i(to)), err);
    for (int64_t i = 0; !rc && i < l->rows.count && *count < max; i++)
        out[(*count)++] = kd_db_int(&l->rows, i, 0);
    if (!rc)
        rc = kd_ledger_exec(
            l,
            "SELECT count(*), min(layer) FROM job WHERE run=?1 AND NOT (id>=?2 AND "
            "id<?4) AND done_by=?3 AND state='DONE'",
            KD_DB_ARGS(kd_db_s(l->run), kd_db_i(from), kd_db_s(worker), kd_db_i(to)), err);
    if (!rc && (*closed = kd_db_int(&l->rows, 0, 0)) > 0)
        *since = kd_db_int(&l->rows, 0, 1);
    if (!rc)
        rc = kd_ledger_exec(l, "UPDATE worker SET state='QUARANTINED' WHERE run=?1 AND id=?2",
                            KD_DB_ARGS(kd_db_s(l->run), kd_db_s(worker)), err);
    if (!rc)
        rc = kd_ledger_event(l, open->layer, -1, 0, worker, "discard", why, err);
    return kd_db_end(&l->db, rc, err);
}

int kd_ledger_redo(struct kd_ledger *l, int64_t layer, int64_t expert, const char *why,
                   struct kd_err *err)
{
    if (kd_ledger_begin_synced(l, err))
        return -1;
    int rc = kd_ledger_exec(
        l,
        "UPDATE job SET state='READY', done_by='', sha='discarded' WHERE run=?1 AND id=?2 AND "
        "state='DONE'",
        KD_DB_ARGS(kd_db_s(l->run), kd_db_i(kd_job_id(layer, expert))), err);
    if (!rc)
        rc = kd_ledger_event(l, layer, expert, 0, "", "redo", why, err);
    return kd_db_end(&l->db, rc, err);
}

int kd_ledger_discarded(struct kd_ledger *l, const struct kd_stage *open, int64_t *out, int64_t max,
                        int64_t *count, struct kd_err *err)
{
    int64_t from = kd_job_id(open->layer, open->first);
    *count = 0;
    if (kd_ledger_exec(l,
                       "SELECT expert FROM job WHERE run=?1 AND id>=?2 AND id<?3 AND "
                       "sha='discarded' AND state<>'DONE' ORDER BY id",
                       KD_DB_ARGS(kd_db_s(l->run), kd_db_i(from), kd_db_i(from + open->jobs)), err))
        return -1;
    for (; *count < l->rows.count && *count < max; ++*count)
        out[*count] = kd_db_int(&l->rows, *count, 0);
    return 0;
}

int kd_ledger_poisoned(struct kd_ledger *l, int64_t layer, int64_t *expert, int64_t *tries,
                       struct kd_err *err)
{
    *expert = -1;
    *tries = 0;
    if (kd_ledger_begin(l, err))
        return -1;
    int rc = kd_ledger_exec(
        l,
        "UPDATE job SET local_tries=local_tries+1 WHERE run=?1 AND id=(SELECT min(id) FROM job "
        "WHERE run=?1 AND id>=?2 AND id<?3 AND state='POISON') RETURNING expert, local_tries",
        KD_DB_ARGS(kd_db_s(l->run), kd_db_i(kd_job_id(layer, 0)), kd_db_i(kd_job_id(layer + 1, 0))),
        err);
    if (!rc && l->rows.count) {
        *expert = kd_db_int(&l->rows, 0, 0);
        *tries = kd_db_int(&l->rows, 0, 1);
    }
    return kd_db_end(&l->db, rc, err);
}
