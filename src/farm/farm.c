/* The loop over a layer, on the coordinator or on the one machine there is. */
#include "farm/farm.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/show.h"
#include "farm/farm_int.h"
#include "farm/tally.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SAMPLE_EVERY = 64, AWAY_MAX_S = 1800 };

static const char local[] = "local";

void kd_farm_fatal(struct kd_farm *f, const struct kd_err *err)
{
    pthread_mutex_lock(&f->lock);
    if (!f->failed)
        f->fatal = *err;
    f->failed = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

int kd_farm_plan(struct kd_farm *f, int64_t e, struct kd_farm_task *t, bool *wanted,
                 struct kd_err *err)
{
    pthread_mutex_lock(&f->plan_lock);
    int rc = f->layer->plan(f->layer->ctx, e, t, wanted, err);
    pthread_mutex_unlock(&f->plan_lock);
    return rc;
}

static int stop_check(struct kd_farm *f, struct kd_err *err)
{
    pthread_mutex_lock(&f->lock);
    bool failed = f->failed;
    if (failed && err)
        *err = f->fatal;
    pthread_mutex_unlock(&f->lock);
    if (failed)
        return -1;
    if (f->o.stopped && f->o.stopped())
        return kd_fail(err, KD_ECANCEL, "stopped; run the same command with --resume to go on");
    return 0;
}

/* Waits for news from handlers, a little. */
static void wait_a_little(struct kd_farm *f, int ms)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += (long)ms * 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_mutex_lock(&f->lock);
    pthread_cond_timedwait(&f->changed, &f->lock, &t);
    pthread_mutex_unlock(&f->lock);
}

/* After a failed call: 0 to make it again. The server of the ledger may be away, and with workers a
 * full disk is waited for, too: they hold results that a stop would lose. */
static int away(struct kd_farm *f, double *since, struct kd_err *err)
{
    bool full = err->code == KD_EIO && f->o.home;
    if (err->code != KD_ENET && err->code != KD_ETIMEOUT && !full)
        return -1;
    double now = kd_clock_s();
    if (*since <= 0) {
        *since = now;
        kd_log(KD_LOG_WARN, "farm", "msg=\"%s, waiting\" why=\"%s\"",
               full ? "the disk is full" : "the ledger is away", err->msg);
    }
    if (now - *since > AWAY_MAX_S || stop_check(f, err))
        return -1;
    wait_a_little(f, 300);
    return 0;
}

/* The coordinator's own claims live as long as its process. (In a farm of one nobody reaps.) */
static int beat_for_local(struct kd_farm *f, struct kd_err *err)
{
    struct kd_held h[KD_FARM_LANES];
    struct kd_beat b;
    int64_t n = 0;
    int rc;
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < KD_FARM_LANES; i++)
        if (f->holds[i])
            h[n++] = f->held[i];
    pthread_mutex_unlock(&f->lock);
    KD_WITH_LEDGER(f, rc, kd_ledger_beat(&f->ledger, local, f->incarnation, h, n, &b, err));
    return rc;
}

/* One of the threads that encode here. The first is the caller of kd_farm_layer. */
struct lane {
    struct kd_farm *f;
    struct kd_run run;
    int index, count; /* count: of all */
    pthread_t thread;
};

static void hold(const struct lane *w, const struct kd_grant *g)
{
    struct kd_farm *f = w->f;
    pthread_mutex_lock(&f->lock);
    f->holds[w->index] = g != NULL;
    if (g)
        f->held[w->index] = (struct kd_held){g->layer, g->expert, g->attempt, false};
    pthread_mutex_unlock(&f->lock);
}

static void *reap(void *arg)
{
    struct kd_farm *f = arg;
    double compared = kd_clock_s();
    while (!f->over) {
        struct kd_err err = {0};
        int64_t n = 0;
        int rc;
        rc = beat_for_local(f, &err);
        if (!rc)
            KD_WITH_LEDGER(f, rc, kd_ledger_reap(&f->ledger, &n, &err));
        if (!rc && kd_clock_s() - compared > 10) {
            compared = kd_clock_s();
            KD_WITH_LEDGER(f, rc, kd_ledger_compare_rates(&f->ledger, &err));
        }
        if (rc && err.code == KD_ECANCEL)
            kd_farm_fatal(f, &err);
        if (n) {
            kd_log(KD_LOG_INFO, "farm", "expired_leases=%lld", (long long)n);
            pthread_cond_broadcast(&f->changed);
        }
        for (int i = 0; i < 10 && !f->over; i++)
            usleep(100000);
    }
    return NULL;
}

static int open_ledger(struct kd_farm *f, struct kd_err *err)
{
    struct kd_worker_card me = {.version = KD_VERSION, .lanes = f->o.lanes};
    snprintf(me.device, sizeof me.device, "%s", f->o.run->encoder ? "cuda" : "cpu");
    snprintf(me.id, sizeof me.id, "%s", local);
    snprintf(me.incarnation, sizeof me.incarnation, "%s", f->incarnation);
    snprintf(me.arch, sizeof me.arch, "%s", f->o.run->kern->name);
    if (gethostname(me.host, sizeof me.host - 1))
        snprintf(me.host, sizeof me.host, "coordinator");
    return kd_ledger_open(&f->ledger, f->o.ledger, f->o.run_id, &f->o.rules, err) ||
                   kd_ledger_take(&f->ledger, KD_VERSION, err) ||
                   kd_ledger_forget(&f->ledger, local, err) || kd_ledger_join(&f->ledger, &me, err)
               ? -1
               : 0;
}

/* A SQLite ledger that cannot be read is made anew: it is soft state. */
static int open_or_remake(struct kd_farm *f, struct kd_err *err)
{
    char path[4096];
    if (!open_ledger(f, err))
        return 0;
    bool lite = !strncmp(f->o.ledger, "sqlite:", 7);
    kd_ledger_close(&f->ledger);
    if (!lite || (err->code != KD_ECORRUPT && err->code != KD_EINVAL))
        return -1;
    kd_log(KD_LOG_WARN, "farm", "msg=\"the ledger is damaged; made anew from the units\"");
    static const char *const tails[] = {"", "-wal", "-shm"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s%s", f->o.ledger + 7, tails[i]);
        if (unlink(path) && errno != ENOENT)
            return kd_fail_sys(err, "cannot remove '%s'", path);
    }
    return open_ledger(f, err);
}

int kd_farm_open(struct kd_farm **out, const struct kd_farm_opts *o, struct kd_err *err)
{
    struct kd_farm *f;
    *out = NULL;
    if (kd_mem_zero(&f, 1, sizeof *f, "farm", err))
        return -1;
    f->o = *o;
    snprintf(f->bad_dir, sizeof f->bad_dir, "%s", o->bad_dir ? o->bad_dir : "");
    f->o.sample_every = o->sample_every > 0 ? o->sample_every : SAMPLE_EVERY;
    f->o.lanes = o->lanes < 1 ? 1 : o->lanes > KD_FARM_LANES ? KD_FARM_LANES : o->lanes;
    pthread_mutex_init(&f->ledger_lock, NULL);
    pthread_mutex_init(&f->lock, NULL);
    pthread_mutex_init(&f->plan_lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    pthread_rwlock_init(&f->layer_lock, NULL);
    int rc = kd_pool_split(f->o.run->pool, f->o.lanes, f->lane_pool, err) ||
             kd_home_random(f->incarnation, 16, err) || open_or_remake(f, err);
    f->o.ledger = f->o.run_id = f->o.bad_dir = NULL; /* the caller's, during this call */
    if (!rc && o->home) {
        rc = kd_farm_canary(o->run, f->canary, err) || kd_coord_open(f, err);
        if (!rc && pthread_create(&f->reaper, NULL, reap, f))
            rc = kd_fail(err, KD_ENOMEM, "cannot start a thread");
        f->reaping = !rc;
    }
    if (rc) {
        kd_farm_close(f, NULL);
        return -1;
    }
    *out = f;
    return 0;
}

/* The run is over: workers hear it at their next call, and are given a few seconds to say goodbye.
 */
static void dismiss(struct kd_farm *f)
{
    struct kd_farm_status s;
    struct kd_err err;
    f->finished = true;
    for (int i = 0; i < 30; i++) {
        int64_t left = 0;
        int rc;
        KD_WITH_LEDGER(f, rc, kd_ledger_status(&f->ledger, 0, &s, &err));
        if (rc)
            return;
        for (int64_t k = 0; k < s.worker_count; k++)
            left += strcmp(s.workers[k].card.id, local) != 0 &&
                    strcmp(s.workers[k].state, "GONE") != 0 &&
                    s.now - s.workers[k].last_seen < f->ledger.rules.lease_s;
        kd_farm_status_release(&s);
        if (!left)
            return;
        usleep(100000);
    }
}

/* Who did what, into the log and the report, before the ledger goes with the work folder. */
static int sum_up(struct kd_farm *f, struct kd_err *err)
{
    struct kd_farm_status s;
    struct kd_buf b;
    int rc = 0;
    if (kd_ledger_status(&f->ledger, 2000, &s, err))
        return -1;
    struct kd_audit a;
    if (kd_ledger_audit(&f->ledger, &a, err)) {
        kd_farm_status_release(&s);
        return -1;
    }
    kd_log(a.unexplained ? KD_LOG_WARN : KD_LOG_INFO, "farm",
           "jobs=%lld jobs_done=%lld attempts=%lld unexplained=%lld", (long long)a.jobs,
           (long long)a.done, (long long)a.attempts, (long long)a.unexplained);
    for (int64_t i = 0; i < s.worker_count; i++) {
        const struct kd_worker_row *w = &s.workers[i];
        kd_log(KD_LOG_INFO, "farm",
               "worker=%s host=%s state=%s done=%lld again=%lld failures=%lld crashes=%lld "
               "seconds_per_expert=%.3f down_bytes=%lld up_bytes=%lld",
               w->card.id, w->card.host, w->state, (long long)w->done, (long long)w->again,
               (long long)w->failures, (long long)w->crashes, w->rate_s, (long long)w->down_bytes,
               (long long)w->up_bytes);
    }
    if (f->o.report) {
        kd_buf_init(&b, 64 << 20);
        kd_farm_html(&b, &s, f->o.layers);
        rc = kd_buf_ok(&b, f->o.report, err) ||
             kd_file_write(f->o.report, b.data, b.size_bytes, err);
        kd_buf_release(&b);
    }
    kd_farm_status_release(&s);
    return rc ? -1 : 0;
}

bool kd_farm_spreads(const struct kd_farm *f)
{
    return f && f->o.home;
}

void kd_farm_close(struct kd_farm *f, const char *state)
{
    struct kd_err err;
    if (!f)
        return;
    if (f->srv && state && !strcmp(state, "done"))
        dismiss(f);
    f->over = true;
    if (f->reaping)
        pthread_join(f->reaper, NULL);
    kd_coord_close(f);
    if (state && f->ledger.epoch && kd_ledger_run_state(&f->ledger, state, &err))
        kd_log(KD_LOG_WARN, "farm", "msg=\"the ledger was not told the end\" why=\"%s\"", err.msg);
    else if (state && f->o.home && sum_up(f, &err))
        kd_log(KD_LOG_WARN, "farm", "msg=\"no report\" why=\"%s\"", err.msg);
    kd_ledger_close(&f->ledger);
    for (int i = 0; i < KD_FARM_LANES; i++)
        kd_pool_close(f->lane_pool[i]);
    pthread_rwlock_destroy(&f->layer_lock);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    pthread_mutex_destroy(&f->plan_lock);
    pthread_mutex_destroy(&f->ledger_lock);
    kd_mem_free(f);
}

/* What of the layer is on disk. A damaged unit is removed and made again. */
static int look_at_disk(struct kd_farm *f, struct kd_job_plan *plan, struct kd_err *err)
{
    const struct kd_farm_layer *l = f->layer;
    for (int64_t e = 0; e < l->experts; e++) {
        struct kd_farm_task t;
        struct kd_unit u;
        struct kd_err why;
        bool wanted;
        plan[e].cost = -1;
        if (kd_farm_plan(f, e, &t, &wanted, err))
            return -1;
        if (!wanted)
            continue;
        memcpy(f->disk_path, t.path, sizeof t.path);
        plan[e].cost = (double)(t.w1.rows * t.w1.cols * (t.trunk ? 1 : 3));
        plan[e].bytes = kd_farm_unit_bytes(&t);
        if (plan[e].bytes > f->unit_bytes_max)
            f->unit_bytes_max = plan[e].bytes;
        f->slot[e].state = KD_SLOT_OPEN;
        f->left++;
        if (!kd_file_exists(t.path))
            continue;
        if (!kd_unit_open(&u, t.path, f->o.digest, &why)) {
            kd_unit_close(&u);
            f->slot[e].state = KD_SLOT_DONE;
            plan[e].on_disk = true;
            f->left--;
        } else if (why.code != KD_ECORRUPT) {
            *err = why;
            return -1;
        } else {
            kd_log(KD_LOG_WARN, "farm", "msg=\"a damaged unit is made again\" why=\"%s\"", why.msg);
            if (unlink(t.path))
                return kd_fail_sys(err, "cannot remove '%s'", t.path);
        }
    }
    return 0;
}

/* Units that an earlier life of this coordinator found wrong and did not come to remove. */
static int drop_discarded(struct kd_farm *f, struct kd_err *err)
{
    struct kd_stage open = kd_farm_stage(f);
    struct kd_farm_task t;
    int64_t *list, n = 0;
    double since = 0;
    bool wanted;
    int rc;
    if (kd_mem_zero(&list, open.jobs, sizeof *list, "jobs", err))
        return -1;
    do
        KD_WITH_LEDGER(f, rc, kd_ledger_discarded(&f->ledger, &open, list, open.jobs, &n, err));
    while (rc && !away(f, &since, err));
    for (int64_t i = 0; !rc && i < n; i++) {
        rc = kd_farm_plan(f, list[i] - open.first, &t, &wanted, err);
        if (!rc && unlink(t.path) && errno != ENOENT)
            rc = kd_fail_sys(err, "cannot remove '%s'", t.path);
    }
    kd_mem_free(list);
    return rc ? -1 : 0;
}

static int open_layer(struct kd_farm *f, const struct kd_farm_layer *l, struct kd_err *err)
{
    struct kd_job_plan *plan = NULL;
    double since = 0;
    int rc;
    pthread_rwlock_wrlock(&f->layer_lock);
    f->layer = l;
    f->left = 0;
    f->unit_bytes_max = 0;
    rc = kd_mem_zero(&f->slot, l->experts, sizeof *f->slot, "jobs", err) ||
         kd_mem_zero(&plan, l->experts, sizeof *plan, "jobs", err) || drop_discarded(f, err) ||
         look_at_disk(f, plan, err);
    do
        if (!rc)
            KD_WITH_LEDGER(f, rc,
                           kd_ledger_settle(&f->ledger, l->layer, l->trunk, plan, l->experts, err));
    while (rc && plan && !(rc = away(f, &since, err)));
    if (!rc && f->left && f->o.home)
        rc = kd_coord_layer(f, err);
    kd_mem_free(plan);
    pthread_rwlock_unlock(&f->layer_lock);
    return rc ? -1 : 0;
}

static void close_layer(struct kd_farm *f)
{
    pthread_rwlock_wrlock(&f->layer_lock);
    if (f->o.home)
        kd_coord_layer_end(f);
    f->layer = NULL;
    kd_mem_free(f->slot);
    f->slot = NULL;
    pthread_rwlock_unlock(&f->layer_lock);
}

static void tell(struct kd_farm *f)
{
    for (int64_t e = 0; e < f->layer->experts; e++) {
        pthread_mutex_lock(&f->lock);
        bool now = f->slot[e].state == KD_SLOT_DONE && !f->slot[e].told;
        f->slot[e].told |= now;
        pthread_mutex_unlock(&f->lock);
        if (now)
            f->layer->done(f->layer->ctx, e);
    }
}

static int encode_here(const struct lane *w, int64_t e, int64_t attempt, struct kd_err *err)
{
    struct kd_farm *f = w->f;
    struct kd_farm_task t;
    struct kd_buf unit;
    char sha[65];
    bool wanted;
    enum kd_store what;
    double began = kd_clock_s();
    if (kd_farm_plan(f, e, &t, &wanted, err))
        return -1;
    if (kd_farm_encode(&w->run, f->layer->in, &t, &unit, err))
        return kd_wrap(err, "%s %lld", t.trunk ? "tensor" : "expert", (long long)e);
    struct kd_result r = {.layer = f->layer->layer,
                          .expert = kd_farm_number(f, e),
                          .attempt = attempt,
                          .worker = local,
                          .sha256 = sha,
                          .seconds = (kd_clock_s() - began) / w->count,
                          .bytes = (int64_t)unit.size_bytes};
    int rc = kd_sha256_of(unit.data, unit.size_bytes, sha, err);
    if (!rc)
        rc = kd_farm_store(f, e, &t, unit.data, (int64_t)unit.size_bytes, &r, &what, err);
    kd_buf_release(&unit);
    if (rc && err->code == KD_ENET)
        return 0; /* it is on disk; the ledger hears of it later */
    return rc;
}

/* With workers a full disk is waited for: the job goes back, and nothing is handed out meanwhile.
 */
static int encode_claimed(const struct lane *w, const struct kd_grant *g, struct kd_err *err)
{
    struct kd_farm *f = w->f;
    int64_t e = kd_farm_place(f, g->layer, g->expert);
    if (e < 0)
        return kd_fail(err, KD_EINVAL, "the ledger gave job %lld of layer %lld, which is not open",
                       (long long)g->expert, (long long)g->layer);
    hold(w, g);
    int rc = encode_here(w, e, g->attempt, err);
    hold(w, NULL);
    if (!rc || !f->o.home || err->code != KD_EIO)
        return rc;
    kd_log(KD_LOG_WARN, "farm", "msg=\"cannot store a unit; waiting\" why=\"%s\"", err->msg);
    KD_WITH_LEDGER(f, rc,
                   kd_ledger_fail(&f->ledger, g->layer, g->expert, g->attempt, local,
                                  KD_FAIL_RETURN, err->msg, err));
    wait_a_little(f, 900);
    return rc;
}

/* Experts that no worker could do, on this machine. Three tries, counted in the ledger, so that one
 * that kills this process too does not do so for ever. */
static int do_poisoned(const struct lane *w, bool *did, struct kd_err *err)
{
    struct kd_farm *f = w->f;
    int64_t number = -1, tries = 0;
    int rc;
    *did = false;
    KD_WITH_LEDGER(f, rc, kd_ledger_poisoned(&f->ledger, f->layer->layer, &number, &tries, err));
    int64_t e = rc || number < 0 ? -1 : kd_farm_place(f, f->layer->layer, number);
    if (rc || e < 0)
        return rc;
    if (tries > 3)
        return kd_fail(
            err, KD_EREMOTE,
            "job %lld of layer %lld: no worker could encode it, and this machine neither "
            "(kondense farm status says how they failed)",
            (long long)number, (long long)f->layer->layer);
    kd_log(KD_LOG_WARN, "farm", "layer=%lld expert=%lld msg=\"poisoned; encoded here\"",
           (long long)f->layer->layer, (long long)number);
    *did = true;
    return encode_here(w, e, 0, err);
}

/* A unit to be encoded again, or -1. */
static int64_t next_check(struct kd_farm *f)
{
    int64_t e = 0;
    pthread_mutex_lock(&f->lock);
    while (e < f->layer->experts && !f->slot[e].check)
        e++;
    if (e < f->layer->experts)
        f->slot[e].check = false;
    else
        e = -1;
    pthread_mutex_unlock(&f->lock);
    return e;
}

static bool complete(struct kd_farm *f)
{
    pthread_mutex_lock(&f->lock);
    bool all = f->left == 0;
    for (int64_t e = 0; all && e < f->layer->experts; e++)
        all = !f->slot[e].check;
    pthread_mutex_unlock(&f->lock);
    return all;
}

/* One more expert, if there is one to be had. */
static int claim_one(const struct lane *w, bool *did, struct kd_err *err)
{
    struct kd_farm *f = w->f;
    struct kd_grant g;
    char token[64];
    int64_t n = 0;
    int rc;
    struct kd_claim c = {local, f->incarnation, token, 1, kd_farm_stage(f)};
    *did = false;
    pthread_mutex_lock(&f->lock);
    int64_t serial = f->serial++;
    pthread_mutex_unlock(&f->lock);
    snprintf(token, sizeof token, "%.16s.%lld", f->incarnation, (long long)serial);
    KD_WITH_LEDGER(f, rc, kd_ledger_claim(&f->ledger, &c, &g, &n, err));
    if (rc || !n)
        return rc;
    *did = true;
    return encode_claimed(w, &g, err);
}

/* One thing to do, the most pressing first. */
static int step(const struct lane *w, struct kd_err *err)
{
    struct kd_farm *f = w->f;
    int64_t e = next_check(f);
    bool did = false;
    if (e >= 0)
        return kd_farm_recheck(f, e, err);
    if (kd_farm_catch_up(f, err))
        return -1;
    f->disk_full = !kd_farm_disk_ok(f);
    if (!f->o.only_workers && !f->disk_full && claim_one(w, &did, err))
        return -1;
    if (!did && do_poisoned(w, &did, err))
        return -1;
    if (!did)
        wait_a_little(f, 100);
    return 0;
}

/* The other lanes encode, and leave all else to the first. */
static void *lane_main(void *arg)
{
    struct lane *w = arg;
    struct kd_farm *f = w->f;
    struct kd_err err;
    double since = 0;
    while (!f->lanes_over && !stop_check(f, NULL)) {
        bool did = false;
        int rc = f->disk_full ? 0 : claim_one(w, &did, &err);
        if (!rc)
            since = 0;
        else if (away(f, &since, &err))
            kd_farm_fatal(f, &err);
        if (!rc && !did)
            wait_a_little(f, 100);
    }
    return NULL;
}

/* Fills lane[], starts all but the first, and says how many there are. Tensors of the trunk are
 * large and few: one after the other, with the whole pool. */
static int start_lanes(struct kd_farm *f, bool trunk, struct lane *lane)
{
    int count = trunk || f->o.lanes < 1 ? 1 : f->o.lanes, made = 1;
    f->lanes_over = false;
    f->disk_full = false;
    for (int i = 0; i < count; i++) {
        lane[i] = (struct lane){.f = f, .run = *f->o.run, .index = i, .count = count};
        if (count > 1)
            lane[i].run.pool = f->lane_pool[i];
    }
    /* Fewer threads than wished only take longer. */
    while (made < count && !f->o.only_workers &&
           !pthread_create(&lane[made].thread, NULL, lane_main, &lane[made]))
        made++;
    return made;
}

static void end_lanes(struct kd_farm *f, struct lane *lane, int made)
{
    f->lanes_over = true;
    for (int i = 1; i < made; i++)
        pthread_join(lane[i].thread, NULL);
}

int kd_farm_layer(struct kd_farm *f, const struct kd_farm_layer *l, struct kd_err *err)
{
    struct lane lane[KD_FARM_LANES];
    double since = 0;
    int rc = open_layer(f, l, err), lanes = rc ? 0 : start_lanes(f, l->trunk > 0, lane);
    while (!rc) {
        tell(f);
        if (complete(f))
            break;
        rc = stop_check(f, err);
        if (rc)
            break;
        rc = step(&lane[0], err);
        if (!rc)
            since = 0;
        else
            rc = away(f, &since, err);
    }
    end_lanes(f, lane, lanes);
    if (!rc && !l->trunk)
        do
            KD_WITH_LEDGER(f, rc, kd_ledger_close_layer(&f->ledger, l->layer, err));
        while (rc && !(rc = away(f, &since, err)) && (rc = 1));
    close_layer(f);
    return rc ? -1 : 0;
}
