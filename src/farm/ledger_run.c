/* The schema, the workers and what a report shows. */
#include "base/mem.h"
#include "farm/ledger_int.h"

#include <stdio.h>
#include <string.h>

/* Types that both engines know. Names from outside never become part of a statement. */
static const char schema[] =
    "CREATE TABLE IF NOT EXISTS run(id TEXT PRIMARY KEY, version TEXT NOT NULL, epoch BIGINT NOT "
    "NULL, state TEXT NOT NULL, created DOUBLE PRECISION NOT NULL);"
    "CREATE TABLE IF NOT EXISTS layer(run TEXT NOT NULL, idx BIGINT NOT NULL, state TEXT NOT NULL, "
    "jobs BIGINT NOT NULL, opened DOUBLE PRECISION NOT NULL, closed DOUBLE PRECISION NOT NULL, "
    "PRIMARY KEY(run, idx));"
    "CREATE TABLE IF NOT EXISTS job(run TEXT NOT NULL, id BIGINT NOT NULL, layer BIGINT NOT NULL, "
    "expert BIGINT NOT NULL, cost DOUBLE PRECISION NOT NULL, bytes BIGINT NOT NULL, state TEXT NOT "
    "NULL, next_attempt BIGINT NOT NULL, failures BIGINT NOT NULL, crashes BIGINT NOT NULL, solo "
    "BIGINT NOT NULL, speculated BIGINT NOT NULL, local_tries BIGINT NOT NULL, not_before DOUBLE "
    "PRECISION NOT NULL, sha TEXT NOT NULL, done_by TEXT NOT NULL, done_attempt BIGINT NOT NULL, "
    "proxy DOUBLE PRECISION NOT NULL, seconds DOUBLE PRECISION NOT NULL, done_at DOUBLE PRECISION "
    "NOT NULL, blamed TEXT NOT NULL, PRIMARY KEY(run, id));"
    "CREATE INDEX IF NOT EXISTS job_ready ON job(run, layer, cost DESC) WHERE state='READY';"
    "CREATE INDEX IF NOT EXISTS job_open ON job(run, layer) WHERE state<>'DONE';"
    "CREATE TABLE IF NOT EXISTS lease(run TEXT NOT NULL, job BIGINT NOT NULL, attempt BIGINT NOT "
    "NULL, worker TEXT NOT NULL, incarnation TEXT NOT NULL, token TEXT NOT NULL, granted DOUBLE "
    "PRECISION NOT NULL, expires DOUBLE PRECISION NOT NULL, speculative BIGINT NOT NULL, PRIMARY "
    "KEY(run, job, attempt));"
    "CREATE INDEX IF NOT EXISTS lease_expires ON lease(run, expires);"
    "CREATE TABLE IF NOT EXISTS worker(run TEXT NOT NULL, id TEXT NOT NULL, host TEXT NOT NULL, "
    "incarnation TEXT NOT NULL, arch TEXT NOT NULL, device TEXT NOT NULL, version TEXT NOT NULL, "
    "state TEXT NOT NULL, rate DOUBLE PRECISION NOT NULL, slow BIGINT NOT NULL, done BIGINT NOT "
    "NULL, again BIGINT NOT NULL, failures BIGINT NOT NULL, crashes BIGINT NOT NULL, strikes "
    "BIGINT "
    "NOT NULL, strike_at DOUBLE PRECISION NOT NULL, busy DOUBLE PRECISION NOT NULL, down BIGINT "
    "NOT "
    "NULL, up BIGINT NOT NULL, last_seen DOUBLE PRECISION NOT NULL, joined DOUBLE PRECISION NOT "
    "NULL, lanes BIGINT NOT NULL, PRIMARY KEY(run, id));"
    "CREATE TABLE IF NOT EXISTS event(run TEXT NOT NULL, at DOUBLE PRECISION NOT NULL, layer "
    "BIGINT "
    "NOT NULL, expert BIGINT NOT NULL, attempt BIGINT NOT NULL, worker TEXT NOT NULL, what TEXT "
    "NOT "
    "NULL, detail TEXT NOT NULL);"
    "CREATE INDEX IF NOT EXISTS event_at ON event(run, at);";

int kd_ledger_schema(struct kd_ledger *l, struct kd_err *err)
{
    /* Two that begin at once would meet in PostgreSQL's catalogue; and a reader that asks for an
     * index that is there still locks its table, against a coordinator at work. */
    if (!kd_db_is_sqlite(&l->db)) {
        if (kd_ledger_exec(l, "SELECT to_regclass('event_at') IS NOT NULL", NULL, 0, err))
            return -1;
        if (!strcmp(kd_db_text(&l->rows, 0, 0), "t"))
            return 0;
        if (kd_db_begin(&l->db, err))
            return -1;
        int rc = kd_db_script(&l->db, "SELECT pg_advisory_xact_lock(7105645)", err) ||
                 kd_db_script(&l->db, schema, err);
        return kd_db_end(&l->db, rc ? -1 : 0, err);
    }
    return kd_db_script(&l->db, schema, err);
}

int kd_ledger_join(struct kd_ledger *l, const struct kd_worker_card *w, struct kd_err *err)
{
    if (kd_ledger_begin(l, err))
        return -1;
    double now = l->now();
    int rc = kd_ledger_exec(
        l,
        "INSERT INTO worker VALUES(?1,?2,?3,?4,?5,?6,?7,'ACTIVE',0,0,0,0,0,0,0,0,0,0,0,?8,?8,?9) "
        "ON CONFLICT(run,id) DO UPDATE SET host=excluded.host, incarnation=excluded.incarnation, "
        "arch=excluded.arch, device=excluded.device, version=excluded.version, "
        "lanes=excluded.lanes, "
        "state=CASE WHEN worker.state='QUARANTINED' THEN worker.state ELSE 'ACTIVE' END, "
        "last_seen=excluded.last_seen RETURNING state",
        KD_DB_ARGS(kd_db_s(l->run), kd_db_s(w->id), kd_db_s(w->host), kd_db_s(w->incarnation),
                   kd_db_s(w->arch), kd_db_s(w->device), kd_db_s(w->version), kd_db_d(now),
                   kd_db_i(w->lanes > 1 ? w->lanes : 1)),
        err);
    if (!rc && !strcmp(kd_db_text(&l->rows, 0, 0), "QUARANTINED"))
        rc = kd_fail(err, KD_EUSAGE,
                     "this worker is quarantined: its results were wrong or its "
                     "device failed too often");
    /* Its predecessor is dead: what that held runs out at once, and the reaper counts the crash. */
    if (!rc)
        rc = kd_ledger_exec(
            l, "UPDATE lease SET expires=0 WHERE run=?1 AND worker=?2 AND incarnation<>?3",
            KD_DB_ARGS(kd_db_s(l->run), kd_db_s(w->id), kd_db_s(w->incarnation)), err);
    if (!rc)
        rc = kd_ledger_event(l, -1, -1, 0, w->id, "join", w->host, err);
    return kd_db_end(&l->db, rc, err);
}

/* Drops a worker's leases, of one incarnation or (NULL) of all; each attempt gets its end. */
static int drop_leases(struct kd_ledger *l, const char *worker, const char *incarnation,
                       const char *why, struct kd_err *err)
{
    const char *of = incarnation ? incarnation : "";
    return kd_ledger_exec(
               l,
               "INSERT INTO event SELECT run, CAST(?3 AS DOUBLE PRECISION), job/65536, job%65536, "
               "attempt, worker, 'return', CAST(?4 AS TEXT) FROM lease WHERE run=?1 AND worker=?2 "
               "AND (CAST(?5 AS TEXT)='' OR incarnation=?5)",
               KD_DB_ARGS(kd_db_s(l->run), kd_db_s(worker), kd_db_d(l->now()), kd_db_s(why),
                          kd_db_s(of)),
               err) ||
                   kd_ledger_exec(l,
                                  "DELETE FROM lease WHERE run=?1 AND worker=?2 AND (CAST(?3 AS "
                                  "TEXT)='' OR incarnation=?3)",
                                  KD_DB_ARGS(kd_db_s(l->run), kd_db_s(worker), kd_db_s(of)), err)
               ? -1
               : 0;
}

int kd_ledger_forget(struct kd_ledger *l, const char *worker, struct kd_err *err)
{
    if (kd_ledger_begin(l, err))
        return -1;
    return kd_db_end(&l->db, drop_leases(l, worker, NULL, "restarted", err), err);
}

int kd_ledger_leave(struct kd_ledger *l, const char *worker, const char *incarnation,
                    struct kd_err *err)
{
    if (kd_ledger_begin(l, err))
        return -1;
    int rc = drop_leases(l, worker, incarnation, "left", err);
    if (!rc)
        rc = kd_ledger_exec(l,
                            "UPDATE job SET state='READY' WHERE run=?1 AND state='LEASED' AND NOT "
                            "EXISTS (SELECT 1 FROM lease WHERE lease.run=job.run AND "
                            "lease.job=job.id)",
                            KD_DB_ARGS(kd_db_s(l->run)), err);
    if (!rc)
        rc =
            kd_ledger_exec(l,
                           "UPDATE worker SET state=CASE WHEN state='QUARANTINED' THEN state ELSE "
                           "'GONE' END WHERE run=?1 AND id=?2 AND incarnation=?3",
                           KD_DB_ARGS(kd_db_s(l->run), kd_db_s(worker), kd_db_s(incarnation)), err);
    if (!rc)
        rc = kd_ledger_event(l, -1, -1, 0, worker, "leave", "", err);
    return kd_db_end(&l->db, rc, err);
}

int kd_ledger_worker_state(struct kd_ledger *l, const char *worker, const char *state,
                           const char *why, struct kd_err *err)
{
    if (kd_ledger_begin(l, err))
        return -1;
    int rc = worker
                 ? kd_ledger_exec(l, "UPDATE worker SET state=?3 WHERE run=?1 AND id=?2",
                                  KD_DB_ARGS(kd_db_s(l->run), kd_db_s(worker), kd_db_s(state)), err)
                 : kd_ledger_exec(l,
                                  "UPDATE worker SET state=?2 WHERE run=?1 AND state IN "
                                  "('ACTIVE','DEGRADED')",
                                  KD_DB_ARGS(kd_db_s(l->run), kd_db_s(state)), err);
    if (!rc && worker && !l->rows.changed)
        rc = kd_fail(err, KD_EUSAGE, "there is no worker '%s' in this run", worker);
    if (!rc)
        rc = kd_ledger_event(l, -1, -1, 0, worker ? worker : "*", state, why, err);
    return kd_db_end(&l->db, rc, err);
}

int kd_ledger_compare_rates(struct kd_ledger *l, struct kd_err *err)
{
    if (kd_ledger_begin(l, err))
        return -1;
    /* `rate` is seconds a job; the median of a worker's like is taken as the middle of them. */
    int rc = kd_ledger_exec(
        l,
        "UPDATE worker SET slow=CASE WHEN rate > 4 * (SELECT avg(m.rate) FROM (SELECT o.rate, "
        "row_number() OVER (ORDER BY o.rate) AS pos, count(*) OVER () AS n FROM worker o WHERE "
        "o.run=worker.run AND o.arch=worker.arch AND o.device=worker.device AND o.done>2 AND "
        "o.rate>0 AND o.state IN ('ACTIVE','DEGRADED')) m WHERE m.pos*2 BETWEEN m.n AND m.n+2) "
        "THEN slow+1 ELSE "
        "0 END WHERE run=?1 AND done>2 AND state IN ('ACTIVE','DEGRADED')",
        KD_DB_ARGS(kd_db_s(l->run)), err);
    if (!rc)
        rc = kd_ledger_exec(
            l,
            "UPDATE worker SET state=CASE WHEN slow>=3 THEN (CASE WHEN rate > 10 * (SELECT "
            "min(o.rate) FROM worker o WHERE o.run=worker.run AND o.arch=worker.arch AND "
            "o.device=worker.device AND o.done>2 AND o.rate>0) THEN 'DRAINING' ELSE 'DEGRADED' "
            "END) ELSE "
            "'ACTIVE' END WHERE run=?1 AND done>2 AND state IN ('ACTIVE','DEGRADED')",
            KD_DB_ARGS(kd_db_s(l->run)), err);
    return kd_db_end(&l->db, rc, err);
}

int kd_ledger_traffic(struct kd_ledger *l, const char *worker, int64_t down_bytes, int64_t up_bytes,
                      struct kd_err *err)
{
    if (kd_ledger_begin(l, err))
        return -1;
    return kd_db_end(&l->db,
                     kd_ledger_exec(l,
                                    "UPDATE worker SET down=down+?3, up=up+?4 WHERE run=?1 AND "
                                    "id=?2",
                                    KD_DB_ARGS(kd_db_s(l->run), kd_db_s(worker),
                                               kd_db_i(down_bytes), kd_db_i(up_bytes)),
                                    err),
                     err);
}

int kd_ledger_note(struct kd_ledger *l, int64_t layer, int64_t expert, int64_t attempt,
                   const char *worker, const char *what, const char *detail, struct kd_err *err)
{
    if (kd_ledger_begin(l, err))
        return -1;
    return kd_db_end(&l->db, kd_ledger_event(l, layer, expert, attempt, worker, what, detail, err),
                     err);
}

int kd_ledger_count(struct kd_ledger *l, int64_t layer, struct kd_layer_count *c,
                    struct kd_err *err)
{
    memset(c, 0, sizeof *c);
    c->layer = layer;
    if (kd_ledger_exec(
            l,
            "SELECT sum(CASE WHEN state='READY' THEN 1 ELSE 0 END), sum(CASE WHEN "
            "state='LEASED' THEN 1 ELSE 0 END), sum(CASE WHEN state='DONE' THEN 1 ELSE 0 "
            "END), sum(CASE WHEN state='POISON' THEN 1 ELSE 0 END) FROM job WHERE run=?1 "
            "AND id>=?2 AND id<?3",
            KD_DB_ARGS(kd_db_s(l->run), kd_db_i(kd_job_id(layer, 0)),
                       kd_db_i(kd_job_id(layer + 1, 0))),
            err))
        return -1;
    c->ready = kd_db_int(&l->rows, 0, 0);
    c->leased = kd_db_int(&l->rows, 0, 1);
    c->done = kd_db_int(&l->rows, 0, 2);
    c->poison = kd_db_int(&l->rows, 0, 3);
    return 0;
}

int kd_ledger_audit(struct kd_ledger *l, struct kd_audit *a, struct kd_err *err)
{
    memset(a, 0, sizeof *a);
    if (kd_ledger_exec(l,
                       "SELECT count(*), sum(CASE WHEN state='DONE' THEN 1 ELSE 0 END) FROM job "
                       "WHERE run=?1",
                       KD_DB_ARGS(kd_db_s(l->run)), err))
        return -1;
    a->jobs = kd_db_int(&l->rows, 0, 0);
    a->done = kd_db_int(&l->rows, 0, 1);
    if (kd_ledger_exec(
            l,
            "SELECT count(*), sum(CASE WHEN ends=0 THEN 1 ELSE 0 END) FROM (SELECT sum(CASE WHEN "
            "what IN ('claim','speculate') THEN 1 ELSE 0 END) AS begins, sum(CASE WHEN what IN "
            "('done','again','differs','superseded','expire','return','input','math','device',"
            "'version','crash') THEN 1 ELSE 0 END) AS ends FROM event WHERE run=?1 AND attempt>0 "
            "GROUP BY layer, expert, attempt) t WHERE begins>0",
            KD_DB_ARGS(kd_db_s(l->run)), err))
        return -1;
    a->attempts = kd_db_int(&l->rows, 0, 0);
    a->unexplained = kd_db_int(&l->rows, 0, 1);
    return 0;
}

static int status_layers(struct kd_ledger *l, struct kd_farm_status *s, struct kd_err *err)
{
    if (kd_ledger_exec(
            l,
            "SELECT layer.idx, layer.opened, layer.closed, sum(CASE WHEN "
            "job.state='READY' THEN 1 ELSE 0 END), sum(CASE WHEN job.state='LEASED' THEN "
            "1 ELSE 0 END), sum(CASE WHEN job.state='DONE' THEN 1 ELSE 0 END), sum(CASE "
            "WHEN job.state='POISON' THEN 1 ELSE 0 END) FROM layer LEFT JOIN job ON "
            "job.run=layer.run AND job.layer=layer.idx AND job.expert<65280 WHERE layer.run=?1 "
            "GROUP BY "
            "layer.idx, layer.opened, layer.closed ORDER BY layer.idx",
            KD_DB_ARGS(kd_db_s(l->run)), err) ||
        kd_mem_zero(&s->layers, l->rows.count, sizeof *s->layers, "status", err))
        return -1;
    for (int64_t i = 0; i < l->rows.count; i++)
        s->layers[i] = (struct kd_layer_count){.layer = kd_db_int(&l->rows, i, 0),
                                               .opened = kd_db_num(&l->rows, i, 1),
                                               .closed = kd_db_num(&l->rows, i, 2),
                                               .ready = kd_db_int(&l->rows, i, 3),
                                               .leased = kd_db_int(&l->rows, i, 4),
                                               .done = kd_db_int(&l->rows, i, 5),
                                               .poison = kd_db_int(&l->rows, i, 6)};
    s->layer_count = l->rows.count;
    if (kd_ledger_exec(l,
                       "SELECT sum(CASE WHEN state='DONE' THEN 1 ELSE 0 END), count(*) FROM job "
                       "WHERE run=?1 AND expert>=65280",
                       KD_DB_ARGS(kd_db_s(l->run)), err))
        return -1;
    s->trunk_done = kd_db_int(&l->rows, 0, 0);
    s->trunk_open = kd_db_int(&l->rows, 0, 1) - s->trunk_done;
    return 0;
}

static int status_workers(struct kd_ledger *l, struct kd_farm_status *s, struct kd_err *err)
{
    if (kd_ledger_exec(
            l,
            "SELECT id, host, incarnation, arch, device, version, state, rate, last_seen, "
            "joined, busy, done, again, failures, crashes, (SELECT count(*) FROM lease "
            "WHERE lease.run=worker.run AND lease.worker=worker.id), down, up, lanes FROM worker "
            "WHERE run=?1 ORDER BY joined, id",
            KD_DB_ARGS(kd_db_s(l->run)), err) ||
        kd_mem_zero(&s->workers, l->rows.count, sizeof *s->workers, "status", err))
        return -1;
    for (int64_t i = 0; i < l->rows.count; i++) {
        struct kd_worker_row *w = &s->workers[i];
        struct {
            char *to;
            size_t size;
        } text[] = {{w->card.id, sizeof w->card.id},
                    {w->card.host, sizeof w->card.host},
                    {w->card.incarnation, sizeof w->card.incarnation},
                    {w->card.arch, sizeof w->card.arch},
                    {w->card.device, sizeof w->card.device},
                    {w->card.version, sizeof w->card.version},
                    {w->state, sizeof w->state}};
        for (int k = 0; k < 7; k++)
            snprintf(text[k].to, text[k].size, "%s", kd_db_text(&l->rows, i, k));
        w->rate_s = kd_db_num(&l->rows, i, 7);
        w->last_seen = kd_db_num(&l->rows, i, 8);
        w->joined = kd_db_num(&l->rows, i, 9);
        w->busy_s = kd_db_num(&l->rows, i, 10);
        int64_t *counts[] = {&w->done, &w->again,      &w->failures, &w->crashes,
                             &w->held, &w->down_bytes, &w->up_bytes, &w->card.lanes};
        for (int k = 0; k < 8; k++)
            *counts[k] = kd_db_int(&l->rows, i, 11 + k);
    }
    s->worker_count = l->rows.count;
    return 0;
}

static int status_events(struct kd_ledger *l, int64_t most, struct kd_farm_status *s,
                         struct kd_err *err)
{
    if (kd_ledger_exec(l,
                       "SELECT at, layer, expert, attempt, worker, what, detail FROM event WHERE "
                       "run=?1 ORDER BY at DESC LIMIT ?2",
                       KD_DB_ARGS(kd_db_s(l->run), kd_db_i(most)), err) ||
        kd_mem_zero(&s->events, l->rows.count, sizeof *s->events, "status", err))
        return -1;
    for (int64_t i = 0; i < l->rows.count; i++) {
        struct kd_event_row *e = &s->events[i];
        e->at = kd_db_num(&l->rows, i, 0);
        e->layer = kd_db_int(&l->rows, i, 1);
        e->expert = kd_db_int(&l->rows, i, 2);
        e->attempt = kd_db_int(&l->rows, i, 3);
        snprintf(e->worker, sizeof e->worker, "%s", kd_db_text(&l->rows, i, 4));
        snprintf(e->what, sizeof e->what, "%s", kd_db_text(&l->rows, i, 5));
        snprintf(e->detail, sizeof e->detail, "%s", kd_db_text(&l->rows, i, 6));
    }
    s->event_count = l->rows.count;
    return 0;
}

int kd_ledger_status(struct kd_ledger *l, int64_t events_max, struct kd_farm_status *s,
                     struct kd_err *err)
{
    memset(s, 0, sizeof *s);
    if (kd_ledger_exec(l, "SELECT state, version, epoch, created FROM run WHERE id=?1",
                       KD_DB_ARGS(kd_db_s(l->run)), err))
        return -1;
    if (!l->rows.count)
        return kd_fail(err, KD_EUSAGE, "the ledger does not know this run");
    snprintf(s->state, sizeof s->state, "%s", kd_db_text(&l->rows, 0, 0));
    snprintf(s->version, sizeof s->version, "%s", kd_db_text(&l->rows, 0, 1));
    s->epoch = kd_db_int(&l->rows, 0, 2);
    s->created = kd_db_num(&l->rows, 0, 3);
    s->now = l->now();
    if (status_layers(l, s, err) || status_workers(l, s, err) ||
        status_events(l, events_max, s, err)) {
        kd_farm_status_release(s);
        return -1;
    }
    return 0;
}

void kd_farm_status_release(struct kd_farm_status *s)
{
    kd_mem_free(s->layers);
    kd_mem_free(s->workers);
    kd_mem_free(s->events);
    memset(s, 0, sizeof *s);
}

int kd_ledger_newest(const char *where, char run[65], struct kd_err *err)
{
    struct kd_ledger l;
    if (kd_ledger_open(&l, where, "", NULL, err))
        return -1;
    int rc = kd_ledger_exec(&l, "SELECT id FROM run ORDER BY created DESC LIMIT 1", NULL, 0, err);
    if (!rc && !l.rows.count)
        rc = kd_fail(err, KD_EUSAGE, "the ledger holds no run");
    if (!rc)
        snprintf(run, 65, "%s", kd_db_text(&l.rows, 0, 0));
    kd_ledger_close(&l);
    return rc;
}
