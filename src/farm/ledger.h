/* The ledger: which job is whose, and what became of it. Rules of who gets what, leases, failure
 * classes, poison and speculation (farm specification 2.2 to 2.7), as transactions over one schema
 * on SQLite or PostgreSQL. It is soft state: the units on disk are the truth, and kd_ledger_settle
 * makes a lost or doubtful ledger agree with them.
 *
 * A job is READY, LEASED, DONE or POISON. Only the coordinator speaks to the ledger; workers ask it
 * over HTTPS and have no account here. Its clock is the only clock.
 *
 *     READY  --claim-->  LEASED  --done-->  DONE        (also from READY and POISON: late is right)
 *     LEASED --reap, fail, hand back--> READY, or POISON after the stated tries
 *     DONE   --discard--> READY          (its worker turned out to be wrong)
 *
 * Several kd_ledger may be open on one database, each in its own thread. KD_ENET: the server is
 * away; every call may simply be made again. KD_ECANCEL: another coordinator has taken the run
 * over. */
#ifndef KD_FARM_LEDGER_H
#define KD_FARM_LEDGER_H

#include "farm/db.h"

enum kd_fail_class {
    KD_FAIL_RETURN,  /* handed back: nobody's fault */
    KD_FAIL_INPUT,   /* the path to the inputs; fetched again, no penalty */
    KD_FAIL_MATH,    /* the job: retried on another host, from two hosts poison */
    KD_FAIL_DEVICE,  /* the worker: three strikes in ten minutes and it is out */
    KD_FAIL_VERSION, /* the worker may not go on */
    KD_FAIL_CRASH,   /* lease over and worker silent (the reaper says so) */
    KD_FAIL_COUNT
};
const char *kd_fail_name(enum kd_fail_class c);
/* KD_FAIL_COUNT for a name that is none. */
enum kd_fail_class kd_fail_of(const char *name);

/* Zero in any field: the default in parentheses. */
struct kd_farm_rules {
    double lease_s;       /* at least this long (30) */
    double spec_s;        /* a lease older than this may get a second worker (15) */
    double batch_s;       /* work handed out at once, by the worker's rate (4) */
    int64_t batch_max;    /* (16) */
    int64_t crashes_max;  /* of a job, on whatever hosts (6) */
    int64_t failures_max; /* of a job in its arithmetic (3) */
};

enum { KD_WORKER_ID_MAX = 64, KD_LEDGER_HELD_MAX = 64 };

struct kd_ledger {
    struct kd_db db;
    struct kd_db_rows rows;
    char run[65];
    int64_t epoch; /* of this coordinator; 0: a reader */
    struct kd_farm_rules rules;
    double (*now)(void); /* seconds since 1970; a test may set its own */
};

struct kd_grant {
    int64_t layer, expert, attempt;
    bool speculative;
    double lease_s;
};
/* A layer's jobs are numbered: its experts by their id, and from here on the trunk's tensors, in
 * the order in which the layer makes them. What is called `expert` below is this number. */
enum { KD_JOB_TRUNK = 65280 };
static inline int64_t kd_job_id(int64_t layer, int64_t expert)
{
    return layer * 65536 + expert;
}

/* Makes the schema where it is missing. */
int kd_ledger_open(struct kd_ledger *l, const char *where, const char *run,
                   const struct kd_farm_rules *rules, struct kd_err *err) KD_MUST;
void kd_ledger_close(struct kd_ledger *l);
/* Takes the run: a new epoch, with which every other coordinator's next change is refused. version:
 * of the program, for people. */
int kd_ledger_take(struct kd_ledger *l, const char *version, struct kd_err *err) KD_MUST;
/* For another kd_ledger of the same coordinator. */
void kd_ledger_share(struct kd_ledger *l, const struct kd_ledger *with);
/* "running", "done", "halted: why" */
int kd_ledger_run_state(struct kd_ledger *l, const char *state, struct kd_err *err) KD_MUST;

/* Opens a stage of a layer, its experts (first = 0) or some of its trunk (first >= KD_JOB_TRUNK):
 * jobs first..first+count-1 exist, `cost` and upload limit `bytes` given for each (cost < 0: no
 * job); on_disk: its unit is there and whole. The disk wins in both directions; leases that live
 * stay. */
struct kd_job_plan {
    double cost;
    int64_t bytes;
    bool on_disk;
};
int kd_ledger_settle(struct kd_ledger *l, int64_t layer, int64_t first,
                     const struct kd_job_plan *jobs, int64_t count, struct kd_err *err) KD_MUST;
int kd_ledger_close_layer(struct kd_ledger *l, int64_t layer, struct kd_err *err) KD_MUST;

struct kd_worker_card {
    char id[KD_WORKER_ID_MAX], host[128], incarnation[65], arch[32], device[64], version[32];
    int64_t lanes; /* jobs that it works at side by side; 0: one */
};
/* A worker that passed every check: ACTIVE, its leases of an earlier incarnation given back. -1
 * with KD_EUSAGE for one that is quarantined. */
int kd_ledger_join(struct kd_ledger *l, const struct kd_worker_card *w, struct kd_err *err) KD_MUST;
/* A polite end: what it holds goes back, it is GONE. */
int kd_ledger_leave(struct kd_ledger *l, const char *worker, const char *incarnation,
                    struct kd_err *err) KD_MUST;
/* Drops what a worker of this process held before it was killed: nobody's fault. */
int kd_ledger_forget(struct kd_ledger *l, const char *worker, struct kd_err *err) KD_MUST;
/* What is worked at: jobs first..first+jobs-1 of a layer. */
struct kd_stage {
    int64_t layer, first, jobs;
};
/* At most `most` jobs of the open stage for a worker (fewer by its rate); 0 when there is none, or
 * the worker may not take any. token: chosen by the worker, the same again for a call whose reply
 * was lost. */
struct kd_claim {
    const char *worker, *incarnation, *token;
    int64_t most;
    struct kd_stage open;
};
int kd_ledger_claim(struct kd_ledger *l, const struct kd_claim *c, struct kd_grant *out,
                    int64_t *count, struct kd_err *err) KD_MUST;

struct kd_held {
    int64_t layer, expert, attempt;
    bool lost; /* out: taken away, stop it */
};
struct kd_beat {
    bool drain; /* take no more */
    bool known; /* false: join again */
};
int kd_ledger_beat(struct kd_ledger *l, const char *worker, const char *incarnation,
                   struct kd_held *held, int64_t count, struct kd_beat *out,
                   struct kd_err *err) KD_MUST;

struct kd_result {
    int64_t layer, expert, attempt;
    const char *worker, *sha256;
    double proxy, seconds;
    int64_t bytes;
};
enum kd_done {
    KD_DONE_FIRST,  /* this result counts */
    KD_DONE_AGAIN,  /* a second one with the same digest */
    KD_DONE_DIFFERS /* a second one with another digest: somebody is wrong; other_by says who */
};
int kd_ledger_done(struct kd_ledger *l, const struct kd_result *r, enum kd_done *what,
                   char other_by[KD_WORKER_ID_MAX], struct kd_err *err) KD_MUST;
int kd_ledger_fail(struct kd_ledger *l, int64_t layer, int64_t expert, int64_t attempt,
                   const char *worker, enum kd_fail_class why, const char *detail,
                   struct kd_err *err) KD_MUST;
/* Leases that ran out; returns how many through *reaped. */
int kd_ledger_reap(struct kd_ledger *l, int64_t *reaped, struct kd_err *err) KD_MUST;
/* The worker's results of the open stage become READY again: their numbers into out (at most max),
 * how many into *count; *closed: results it had in stages before, *since: the layer of the first of
 * those. The worker is QUARANTINED. */
int kd_ledger_discard(struct kd_ledger *l, const char *worker, const struct kd_stage *open,
                      const char *why, int64_t *out, int64_t max, int64_t *count, int64_t *closed,
                      int64_t *since, struct kd_err *err) KD_MUST;
/* One result only, of whoever. */
int kd_ledger_redo(struct kd_ledger *l, int64_t layer, int64_t expert, const char *why,
                   struct kd_err *err) KD_MUST;
/* Jobs of the stage whose unit was discarded so and which have none since (at most max): what lies
 * under their names is wrong. A coordinator that died after the discard has not removed it. */
int kd_ledger_discarded(struct kd_ledger *l, const struct kd_stage *open, int64_t *out, int64_t max,
                        int64_t *count, struct kd_err *err) KD_MUST;
/* A POISON job for the coordinator itself, or -1 in *expert. *tries: how often it was begun here.
 */
int kd_ledger_poisoned(struct kd_ledger *l, int64_t layer, int64_t *expert, int64_t *tries,
                       struct kd_err *err) KD_MUST;
/* "ACTIVE", "DEGRADED", "DRAINING", "QUARANTINED", "GONE"; worker NULL: all that are ACTIVE or
 * DEGRADED. */
int kd_ledger_worker_state(struct kd_ledger *l, const char *worker, const char *state,
                           const char *why, struct kd_err *err) KD_MUST;
/* Marks workers that are far slower than their like, once per call (rates below a quarter of the
 * median of their arch and device for three calls: DEGRADED; below a tenth: DRAINING). */
int kd_ledger_compare_rates(struct kd_ledger *l, struct kd_err *err) KD_MUST;
int kd_ledger_traffic(struct kd_ledger *l, const char *worker, int64_t down_bytes, int64_t up_bytes,
                      struct kd_err *err) KD_MUST;
int kd_ledger_note(struct kd_ledger *l, int64_t layer, int64_t expert, int64_t attempt,
                   const char *worker, const char *what, const char *detail,
                   struct kd_err *err) KD_MUST;

struct kd_layer_count {
    int64_t layer, ready, leased, done, poison;
    double opened, closed;
};
/* All jobs of a layer; the times are not asked for. */
int kd_ledger_count(struct kd_ledger *l, int64_t layer, struct kd_layer_count *c,
                    struct kd_err *err) KD_MUST;

/* Whether the ledger adds up: every attempt that was handed out has an end in the events (done,
 * failed, run out, given back, or another's result came first). */
struct kd_audit {
    int64_t jobs, done; /* of the run */
    int64_t attempts, unexplained;
};
int kd_ledger_audit(struct kd_ledger *l, struct kd_audit *a, struct kd_err *err) KD_MUST;

/* Everything a report shows. */
struct kd_worker_row {
    struct kd_worker_card card;
    char state[16];
    double rate_s, last_seen, joined, busy_s; /* rate_s: seconds a job, smoothed; 0: none yet */
    int64_t done, again, failures, crashes, held, down_bytes, up_bytes;
};
struct kd_event_row {
    double at;
    int64_t layer, expert, attempt;
    char worker[KD_WORKER_ID_MAX], what[24], detail[160];
};
struct kd_farm_status {
    char state[160], version[32];
    int64_t epoch;
    double now, created;
    struct kd_layer_count *layers; /* those whose experts have begun; their experts alone */
    int64_t layer_count;
    int64_t trunk_done, trunk_open; /* tensors of the trunk, of all layers begun */
    struct kd_worker_row *workers;
    int64_t worker_count;
    struct kd_event_row *events; /* the newest first, at most events_max */
    int64_t event_count;
};
int kd_ledger_status(struct kd_ledger *l, int64_t events_max, struct kd_farm_status *s,
                     struct kd_err *err) KD_MUST;
void kd_farm_status_release(struct kd_farm_status *s);
/* The newest run in a database, for readers: its id into run. */
int kd_ledger_newest(const char *where, char run[65], struct kd_err *err) KD_MUST;

#endif
