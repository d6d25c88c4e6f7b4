/* Jobs and leases. Every function is one transaction. */
#include "farm/ledger.h"

#include "base/log.h"
#include "base/mem.h"
#include "farm/ledger_int.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *const class_names[KD_FAIL_COUNT] = {"return", "input",   "math",
                                                       "device", "version", "crash"};

const char *kd_fail_name(enum kd_fail_class c)
{
    return class_names[c];
}

enum kd_fail_class kd_fail_of(const char *name)
{
    int i = 0;
    while (i < KD_FAIL_COUNT && strcmp(name, class_names[i]) != 0)
        i++;
    return (enum kd_fail_class)i;
}

static double wall(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int kd_ledger_exec(struct kd_ledger *l, const char *sql, const struct kd_db_arg *args, int count,
                   struct kd_err *err)
{
    return kd_db_exec(&l->db, sql, args, count, &l->rows, err);
}

int kd_ledger_event(struct kd_ledger *l, int64_t layer, int64_t expert, int64_t attempt,
                    const char *worker, const char *what, const char *detail, struct kd_err *err)
{
    char cut[160];
    snprintf(cut, sizeof cut, "%s", detail);
    return kd_ledger_exec(l, "INSERT INTO event VALUES(?1,?2,?3,?4,?5,?6,?7,?8)",
                          KD_DB_ARGS(kd_db_s(l->run), kd_db_d(l->now()), kd_db_i(layer),
                                     kd_db_i(expert), kd_db_i(attempt), kd_db_s(worker),
                                     kd_db_s(what), kd_db_s(cut)),
                          err);
}

int kd_ledger_end_leases(struct kd_ledger *l, int64_t id, int64_t but, const char *what,
                         const char *detail, struct kd_err *err)
{
    struct {
        int64_t attempt;
        char worker[KD_WORKER_ID_MAX];
    } ended[8]; /* one job has two attempts at once, and a few that ran out */
    if (kd_ledger_exec(l, "DELETE FROM lease WHERE run=?1 AND job=?2 RETURNING attempt, worker",
                       KD_DB_ARGS(kd_db_s(l->run), kd_db_i(id)), err))
        return -1;
    int64_t n = l->rows.count < 8 ? l->rows.count : 8;
    for (int64_t i = 0; i < n; i++) {
        ended[i].attempt = kd_db_int(&l->rows, i, 0);
        snprintf(ended[i].worker, sizeof ended[i].worker, "%s", kd_db_text(&l->rows, i, 1));
    }
    for (int64_t i = 0; i < n; i++)
        if (ended[i].attempt != but && kd_ledger_event(l, id / 65536, id % 65536, ended[i].attempt,
                                                       ended[i].worker, what, detail, err))
            return -1;
    return 0;
}

/* In a transaction that has begun: 0, or it is rolled back. */
static int fence(struct kd_ledger *l, struct kd_err *err)
{
    if (!l->epoch)
        return 0;
    if (kd_ledger_exec(l, "SELECT epoch FROM run WHERE id=?1", KD_DB_ARGS(kd_db_s(l->run)), err))
        return kd_db_end(&l->db, -1, err);
    if (l->rows.count == 1 && kd_db_int(&l->rows, 0, 0) == l->epoch)
        return 0;
    kd_fail(err, KD_ECANCEL,
            "another coordinator has taken this run over (epoch %lld, here %lld): this one stops",
            (long long)kd_db_int(&l->rows, 0, 0), (long long)l->epoch);
    return kd_db_end(&l->db, -1, err);
}

int kd_ledger_begin(struct kd_ledger *l, struct kd_err *err)
{
    return kd_db_begin(&l->db, err) ? -1 : fence(l, err);
}

int kd_ledger_begin_synced(struct kd_ledger *l, struct kd_err *err)
{
    return kd_db_begin_synced(&l->db, err) ? -1 : fence(l, err);
}

int kd_ledger_open(struct kd_ledger *l, const char *where, const char *run,
                   const struct kd_farm_rules *rules, struct kd_err *err)
{
    memset(l, 0, sizeof *l);
    kd_db_rows_init(&l->rows);
    l->now = wall;
    snprintf(l->run, sizeof l->run, "%s", run);
    if (rules)
        l->rules = *rules;
    struct kd_farm_rules *r = &l->rules;
    r->lease_s = r->lease_s > 0 ? r->lease_s : 30;
    r->spec_s = r->spec_s > 0 ? r->spec_s : 15;
    r->batch_s = r->batch_s > 0 ? r->batch_s : 4;
    r->batch_max = r->batch_max > 0 ? r->batch_max : 16;
    r->crashes_max = r->crashes_max > 0 ? r->crashes_max : 6;
    r->failures_max = r->failures_max > 0 ? r->failures_max : 3;
    if (kd_db_open(&l->db, where, err) || kd_ledger_schema(l, err)) {
        kd_ledger_close(l);
        return -1;
    }
    return 0;
}

void kd_ledger_close(struct kd_ledger *l)
{
    kd_db_close(&l->db);
    kd_db_rows_release(&l->rows);
    memset(l, 0, sizeof *l);
}

void kd_ledger_share(struct kd_ledger *l, const struct kd_ledger *with)
{
    l->epoch = with->epoch;
    l->now = with->now;
    l->rules = with->rules;
}

int kd_ledger_take(struct kd_ledger *l, const char *version, struct kd_err *err)
{
    if (kd_db_begin(&l->db, err))
        return -1;
    int rc =
        kd_ledger_exec(l,
                       "INSERT INTO run VALUES(?1,?2,1,'running',?3) ON CONFLICT(id) DO UPDATE SET "
                       "epoch=run.epoch+1, version=excluded.version, state='running' "
                       "RETURNING epoch",
                       KD_DB_ARGS(kd_db_s(l->run), kd_db_s(version), kd_db_d(l->now())), err);
    int64_t epoch = rc ? 0 : kd_db_int(&l->rows, 0, 0);
    if (!rc)
        rc = kd_ledger_event(l, -1, -1, 0, "", "take", version, err);
    if (kd_db_end(&l->db, rc, err))
        return -1;
    l->epoch = epoch;
    return 0;
}

int kd_ledger_run_state(struct kd_ledger *l, const char *state, struct kd_err *err)
{
    char cut[150];
    snprintf(cut, sizeof cut, "%s", state);
    if (kd_ledger_begin(l, err))
        return -1;
    return kd_db_end(&l->db,
                     kd_ledger_exec(l, "UPDATE run SET state=?2 WHERE id=?1",
                                    KD_DB_ARGS(kd_db_s(l->run), kd_db_s(cut)), err),
                     err);
}

static int settle_one(struct kd_ledger *l, int64_t layer, int64_t e, const struct kd_job_plan *p,
                      struct kd_err *err)
{
    int64_t id = kd_job_id(layer, e);
    if (kd_ledger_exec(
            l,
            "INSERT INTO job(run,id,layer,expert,cost,bytes,state,next_attempt,failures,crashes,"
            "solo,speculated,local_tries,not_before,sha,done_by,done_attempt,proxy,seconds,done_at,"
            "blamed) VALUES(?1,?2,?3,?4,?5,?6,'READY',0,0,0,0,0,0,0,'','',0,0,0,0,',') "
            "ON CONFLICT(run,id) DO NOTHING",
            KD_DB_ARGS(kd_db_s(l->run), kd_db_i(id), kd_db_i(layer), kd_db_i(e), kd_db_d(p->cost),
                       kd_db_i(p->bytes)),
            err))
        return -1;
    if (p->on_disk) /* whoever made it: it is there and whole */
        return kd_ledger_end_leases(l, id, 0, "superseded", "its unit is on disk", err) ||
                       kd_ledger_exec(
                           l,
                           "UPDATE job SET state='DONE', done_at=?3, done_by=CASE WHEN done_by='' "
                           "THEN 'disk' ELSE done_by END WHERE run=?1 AND id=?2 AND state<>'DONE'",
                           KD_DB_ARGS(kd_db_s(l->run), kd_db_i(id), kd_db_d(l->now())), err)
                   ? -1
                   : 0;
    return kd_ledger_exec(
        l,
        "UPDATE job SET state='READY', done_by='', sha='' WHERE run=?1 AND id=?2 AND "
        "(state='DONE' OR (state='LEASED' AND NOT EXISTS (SELECT 1 FROM lease WHERE "
        "lease.run=job.run AND lease.job=job.id)))",
        KD_DB_ARGS(kd_db_s(l->run), kd_db_i(id)), err);
}

int kd_ledger_settle(struct kd_ledger *l, int64_t layer, int64_t first,
                     const struct kd_job_plan *jobs, int64_t count, struct kd_err *err)
{
    if (kd_ledger_begin(l, err))
        return -1;
    int64_t n = 0;
    int rc = 0;
    for (int64_t e = 0; !rc && e < count; e++)
        if (jobs[e].cost >= 0) {
            rc = settle_one(l, layer, first + e, &jobs[e], err);
            n++;
        }
    if (!rc && first < KD_JOB_TRUNK)
        rc = kd_ledger_exec(
            l,
            "INSERT INTO layer VALUES(?1,?2,'ENCODING',?3,?4,0) ON CONFLICT(run,idx) DO UPDATE "
            "SET state='ENCODING', jobs=excluded.jobs",
            KD_DB_ARGS(kd_db_s(l->run), kd_db_i(layer), kd_db_i(n), kd_db_d(l->now())), err);
    rc = kd_db_end(&l->db, rc, err);
    /* Plans made for empty tables would scan them whole. */
    if (!rc && !kd_db_is_sqlite(&l->db))
        rc = kd_db_script(&l->db, "ANALYZE job; ANALYZE lease; ANALYZE worker; ANALYZE run", err);
    return rc;
}

int kd_ledger_close_layer(struct kd_ledger *l, int64_t layer, struct kd_err *err)
{
    if (kd_ledger_begin(l, err))
        return -1;
    int rc = kd_ledger_exec(l, "UPDATE layer SET state='CLOSED', closed=?3 WHERE run=?1 AND idx=?2",
                            KD_DB_ARGS(kd_db_s(l->run), kd_db_i(layer), kd_db_d(l->now())), err);
    return kd_db_end(&l->db, rc, err);
}

/* What a claim may take, decided from the worker's row. */
struct claimer {
    char host[128];
    double rate;
    bool may, slow;
    int64_t held, lanes;
};

static int who(struct kd_ledger *l, const char *worker, const char *incarnation, struct claimer *c,
               struct kd_err *err)
{
    if (kd_ledger_exec(l,
                       "SELECT host, rate, state, incarnation, (SELECT count(*) FROM lease WHERE "
                       "lease.run=worker.run AND lease.worker=worker.id), lanes FROM worker WHERE "
                       "run=?1 AND id=?2",
                       KD_DB_ARGS(kd_db_s(l->run), kd_db_s(worker)), err))
        return -1;
    memset(c, 0, sizeof *c);
    const char *state = kd_db_text(&l->rows, 0, 2);
    if (!l->rows.count)
        return 0;
    snprintf(c->host, sizeof c->host, "%s", kd_db_text(&l->rows, 0, 0));
    c->rate = kd_db_num(&l->rows, 0, 1);
    c->slow = !strcmp(state, "DEGRADED");
    c->may =
        (c->slow || !strcmp(state, "ACTIVE")) && !strcmp(kd_db_text(&l->rows, 0, 3), incarnation);
    c->held = kd_db_int(&l->rows, 0, 4);
    c->lanes = kd_db_int(&l->rows, 0, 5);
    return 0;
}

static double lease_seconds(const struct kd_ledger *l, const struct claimer *c, int64_t held)
{
    double long_one = 6 * c->rate * (double)held;
    return long_one > l->rules.lease_s ? long_one : l->rules.lease_s;
}

static int grant(struct kd_ledger *l, const struct claimer *c, const struct kd_claim *q, int64_t id,
                 bool speculative, int64_t held, struct kd_grant *g, struct kd_err *err)
{
    double now = l->now(), ttl = lease_seconds(l, c, held);
    if (kd_ledger_exec(l,
                       "UPDATE job SET state='LEASED', next_attempt=next_attempt+1, "
                       "speculated=CASE WHEN CAST(?3 AS BIGINT)=1 THEN 1 ELSE speculated END "
                       "WHERE run=?1 AND id=?2 RETURNING next_attempt, layer, expert",
                       KD_DB_ARGS(kd_db_s(l->run), kd_db_i(id), kd_db_i(speculative)), err))
        return -1;
    *g = (struct kd_grant){.attempt = kd_db_int(&l->rows, 0, 0),
                           .layer = kd_db_int(&l->rows, 0, 1),
                           .expert = kd_db_int(&l->rows, 0, 2),
                           .speculative = speculative,
                           .lease_s = ttl};
    if (kd_ledger_exec(l, "INSERT INTO lease VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9)",
                       KD_DB_ARGS(kd_db_s(l->run), kd_db_i(id), kd_db_i(g->attempt),
                                  kd_db_s(q->worker), kd_db_s(q->incarnation), kd_db_s(q->token),
                                  kd_db_d(now), kd_db_d(now + ttl), kd_db_i(speculative)),
                       err))
        return -1;
    return kd_ledger_event(l, g->layer, g->expert, g->attempt, q->worker,
                           speculative ? "speculate" : "claim", "", err);
}

/* The reply to this very claim was lost. */
static int claimed_before(struct kd_ledger *l, const char *worker, const char *token, int64_t most,
                          struct kd_grant *out, int64_t *count, struct kd_err *err)
{
    if (kd_ledger_exec(l,
                       "SELECT job, attempt, expires, speculative FROM lease WHERE run=?1 AND "
                       "worker=?2 AND token=?3 ORDER BY job",
                       KD_DB_ARGS(kd_db_s(l->run), kd_db_s(worker), kd_db_s(token)), err))
        return -1;
    for (int64_t i = 0; i < l->rows.count && *count < most; i++) {
        int64_t id = kd_db_int(&l->rows, i, 0);
        out[(*count)++] = (struct kd_grant){.layer = id / 65536,
                                            .expert = id % 65536,
                                            .attempt = kd_db_int(&l->rows, i, 1),
                                            .lease_s = kd_db_num(&l->rows, i, 2) - l->now(),
                                            .speculative = kd_db_int(&l->rows, i, 3) != 0};
    }
    return 0;
}

/* How many jobs this worker gets: by its rate, and one at a time when few are left. */
static int batch(struct kd_ledger *l, const struct claimer *c, const struct kd_claim *q, int64_t *n,
                 struct kd_err *err)
{
    int64_t most = q->most < KD_LEDGER_HELD_MAX ? q->most : KD_LEDGER_HELD_MAX;
    if (kd_ledger_exec(l,
                       "SELECT (SELECT count(*) FROM job WHERE run=?1 AND state='READY' AND "
                       "layer=?2), (SELECT count(*) FROM worker WHERE run=?1 AND state IN "
                       "('ACTIVE','DEGRADED'))",
                       KD_DB_ARGS(kd_db_s(l->run), kd_db_i(q->open.layer)), err))
        return -1;
    int64_t ready = kd_db_int(&l->rows, 0, 0), workers = kd_db_int(&l->rows, 0, 1);
    double want = c->rate > 0 ? l->rules.batch_s / c->rate : 1;
    *n = want > (double)l->rules.batch_max ? l->rules.batch_max : want < 1 ? 1 : (int64_t)want;
    if (c->slow || ready < 3 * workers)
        *n = 1;
    if (*n > most)
        *n = most;
    /* What waits at a worker waits for that worker alone: none before its speed is known, then as
     * much as two claims, and always one beside those that run. */
    double ahead = c->rate > 0 ? 2 * l->rules.batch_s / c->rate : 0;
    int64_t cap = c->lanes > 1 ? c->lanes : 1;
    if (c->rate > 0)
        cap += ahead < 1 ? 1 : ahead > 1e6 ? 1000000 : (int64_t)ahead;
    if (*n > cap - c->held)
        *n = cap > c->held ? cap - c->held : 0;
    return 0;
}

/* Ready jobs into ids. A job that crashed on two hosts runs alone on its worker; one that this host
 * could not compute comes last here. */
static int pick(struct kd_ledger *l, const struct claimer *c, const struct kd_stage *s, int64_t n,
                int64_t *ids, int64_t *count, struct kd_err *err)
{
    char like[140];
    snprintf(like, sizeof like, "%%,%s,%%", c->host);
    if (kd_ledger_exec(l,
                       "SELECT id FROM job WHERE run=?1 AND state='READY' AND layer=?5 AND "
                       "expert>=?6 AND expert<?7 AND not_before<=?2 AND solo=0 ORDER BY (CASE WHEN "
                       "blamed LIKE ?4 THEN 1 ELSE 0 END), cost DESC, id LIMIT ?3 {lock}",
                       KD_DB_ARGS(kd_db_s(l->run), kd_db_d(l->now()), kd_db_i(n), kd_db_s(like),
                                  kd_db_i(s->layer), kd_db_i(s->first),
                                  kd_db_i(s->first + s->jobs)),
                       err))
        return -1;
    for (*count = 0; *count < l->rows.count; ++*count)
        ids[*count] = kd_db_int(&l->rows, *count, 0);
    if (*count || c->held)
        return 0;
    if (kd_ledger_exec(l,
                       "SELECT id FROM job WHERE run=?1 AND state='READY' AND layer=?3 AND "
                       "expert>=?4 AND expert<?5 AND not_before<=?2 AND solo=1 ORDER BY cost DESC, "
                       "id LIMIT 1 {lock}",
                       KD_DB_ARGS(kd_db_s(l->run), kd_db_d(l->now()), kd_db_i(s->layer),
                                  kd_db_i(s->first), kd_db_i(s->first + s->jobs)),
                       err))
        return -1;
    if (l->rows.count)
        ids[(*count)++] = kd_db_int(&l->rows, 0, 0);
    return 0;
}

/* Nothing is ready: a second worker, on another host, for the oldest lease that is overdue. At most
 * one extra attempt a job, and 5 % of a layer's jobs (or one for each worker). A rate is of
 * experts; a tensor of the trunk is up to eight of them (K3's dense layer). */
static int straggler(struct kd_ledger *l, const struct claimer *c, const struct kd_claim *q,
                     int64_t *id, struct kd_err *err)
{
    double after = 3 * c->rate > l->rules.spec_s ? 3 * c->rate : l->rules.spec_s;
    int64_t from = kd_job_id(q->open.layer, q->open.first);
    if (q->open.first >= KD_JOB_TRUNK)
        after *= 8;
    *id = -1;
    if (kd_ledger_exec(
            l,
            "SELECT job.id FROM job JOIN lease ON lease.run=job.run AND lease.job=job.id JOIN "
            "worker ON worker.run=job.run AND worker.id=lease.worker WHERE job.run=?1 AND "
            "job.state='LEASED' AND job.id>=?5 AND job.id<?6 AND job.speculated=0 AND job.solo=0 "
            "AND lease.granted<?2 AND lease.worker<>?3 AND "
            "worker.host<>?4 AND ((SELECT sum(other.speculated) FROM job other WHERE "
            "other.run=job.run AND other.id BETWEEN job.layer*65536 AND job.layer*65536+65535) * "
            "20 <= (SELECT layer.jobs FROM layer WHERE layer.run=job.run AND layer.idx=job.layer) "
            "OR (SELECT sum(other.speculated) FROM job other WHERE other.run=job.run AND other.id "
            "BETWEEN job.layer*65536 AND job.layer*65536+65535) < (SELECT count(*) FROM worker w "
            "WHERE w.run=job.run AND w.state IN ('ACTIVE','DEGRADED'))) ORDER BY lease.granted "
            "LIMIT 1 {lock}",
            KD_DB_ARGS(kd_db_s(l->run), kd_db_d(l->now() - after), kd_db_s(q->worker),
                       kd_db_s(c->host), kd_db_i(from), kd_db_i(from + q->open.jobs)),
            err))
        return -1;
    if (l->rows.count)
        *id = kd_db_int(&l->rows, 0, 0);
    return 0;
}

static int claim(struct kd_ledger *l, const struct kd_claim *q, struct kd_grant *out,
                 int64_t *count, struct kd_err *err)
{
    struct claimer c;
    int64_t ids[KD_LEDGER_HELD_MAX], n = 0, found = 0;
    if (claimed_before(l, q->worker, q->token, q->most, out, count, err))
        return -1;
    if (*count)
        return 0;
    if (who(l, q->worker, q->incarnation, &c, err))
        return -1;
    if (!c.may)
        return 0;
    if (batch(l, &c, q, &n, err) || pick(l, &c, &q->open, n, ids, &found, err))
        return -1;
    bool speculative = false;
    if (!found && !c.held) {
        if (straggler(l, &c, q, &ids[0], err))
            return -1;
        speculative = ids[0] >= 0;
        found = speculative;
    }
    for (int64_t i = 0; i < found; i++, ++*count)
        if (grant(l, &c, q, ids[i], speculative, c.held + found, &out[*count], err))
            return -1;
    return 0;
}

int kd_ledger_claim(struct kd_ledger *l, const struct kd_claim *c, struct kd_grant *out,
                    int64_t *count, struct kd_err *err)
{
    *count = 0;
    if (c->most < 1)
        return 0;
    if (kd_ledger_begin(l, err))
        return -1;
    int rc = claim(l, c, out, count, err);
    rc = kd_db_end(&l->db, rc, err);
    if (rc)
        *count = 0;
    return rc;
}

int kd_ledger_beat(struct kd_ledger *l, const char *worker, const char *incarnation,
                   struct kd_held *held, int64_t count, struct kd_beat *out, struct kd_err *err)
{
    memset(out, 0, sizeof *out);
    if (kd_ledger_begin(l, err))
        return -1;
    int rc = kd_ledger_exec(
        l,
        "UPDATE worker SET last_seen=?4 WHERE run=?1 AND id=?2 AND incarnation=?3 "
        "RETURNING state, rate",
        KD_DB_ARGS(kd_db_s(l->run), kd_db_s(worker), kd_db_s(incarnation), kd_db_d(l->now())), err);
    struct claimer c = {.rate = 0};
    if (!rc && l->rows.count) {
        const char *state = kd_db_text(&l->rows, 0, 0);
        out->known = strcmp(state, "GONE") != 0;
        out->drain = !strcmp(state, "DRAINING") || !strcmp(state, "QUARANTINED");
        c.rate = kd_db_num(&l->rows, 0, 1);
    }
    double expires = l->now() + lease_seconds(l, &c, count);
    for (int64_t i = 0; !rc && i < count; i++) {
        rc = kd_ledger_exec(
            l,
            "UPDATE lease SET expires=?6 WHERE run=?1 AND job=?2 AND attempt=?3 AND worker=?4 AND "
            "incarnation=?5",
            KD_DB_ARGS(kd_db_s(l->run), kd_db_i(kd_job_id(held[i].layer, held[i].expert)),
                       kd_db_i(held[i].attempt), kd_db_s(worker), kd_db_s(incarnation),
                       kd_db_d(expires)),
            err);
        held[i].lost = !rc && l->rows.changed == 0;
    }
    return kd_db_end(&l->db, rc, err);
}
