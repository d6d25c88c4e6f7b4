#include "farm/worker.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"
#include "farm/worker_int.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { AWAY_S = 1800, GRACE_S = 25, AT_ONCE = 3, CANARY_JOBS = 2000 };

void kd_worker_fatal(struct kd_worker *w, const struct kd_err *err)
{
    pthread_mutex_lock(&w->lock);
    if (!w->failed)
        w->fatal = *err;
    w->failed = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static bool asked_to_stop(const struct kd_worker *w)
{
    return w->o.stop && __atomic_load_n(w->o.stop, __ATOMIC_RELAXED);
}

bool kd_worker_stopping(struct kd_worker *w)
{
    return w->over || w->failed || asked_to_stop(w);
}

void kd_worker_wait(struct kd_worker *w, int ms)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += (long)ms * 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_mutex_lock(&w->lock);
    pthread_cond_timedwait(&w->changed, &w->lock, &t);
    pthread_mutex_unlock(&w->lock);
}

/* Waits that grow and scatter: 0.2 to 5 s. */
static void back_off(struct kd_worker *w, int *tries)
{
    double s = 0.2;
    for (int i = 0; i < *tries && s < 5; i++)
        s *= 1.7;
    ++*tries;
    double jitter = (double)((uint64_t)(kd_clock_s() * 1e6) % 1000) / 1000;
    kd_worker_wait(w, (int)(1000 * (s < 5 ? s : 5) * (0.5 + 0.5 * jitter)));
}

static void release(struct kd_worker *w, struct kd_work *k)
{
    kd_buf_release(&k->weights);
    kd_buf_release(&k->unit);
    kd_inputs_drop(w, k->inputs);
    memset(k, 0, sizeof *k);
    pthread_cond_broadcast(&w->changed);
}

/* The oldest work in this state, or NULL. Under the lock. */
static struct kd_work *oldest(struct kd_worker *w, enum kd_work_state s)
{
    struct kd_work *best = NULL;
    for (int i = 0; i < KD_LEDGER_HELD_MAX; i++)
        if (w->work[i].state == s && (!best || w->work[i].order < best->order))
            best = &w->work[i];
    return best;
}

static int64_t count(struct kd_worker *w, bool waiting_only)
{
    int64_t n = 0;
    for (int i = 0; i < KD_LEDGER_HELD_MAX; i++)
        n += waiting_only ? w->work[i].state == KD_WORK_FETCH || w->work[i].state == KD_WORK_READY
                          : w->work[i].state != KD_WORK_FREE;
    return n;
}

/* How many more jobs to ask for: enough to keep busy while the next come, within memory. */
static int64_t appetite(struct kd_worker *w)
{
    pthread_mutex_lock(&w->lock);
    int64_t waiting = count(w, true), all = count(w, false), most = KD_WIRE_JOBS_MAX, size = 0;
    for (int i = 0; i < KD_LEDGER_HELD_MAX; i++)
        if (w->work[i].state != KD_WORK_FREE && w->work[i].job.weights.bytes > size)
            size = w->work[i].job.weights.bytes;
    pthread_mutex_unlock(&w->lock);
    if (size > 0 && w->o.memory_bytes / size < most)
        most = w->o.memory_bytes / size;
    most = most < 1 ? 1 : most;
    if (waiting >= AT_ONCE + w->o.lanes - 2 || all > KD_LEDGER_HELD_MAX - KD_WIRE_JOBS_MAX)
        return 0;
    return most > waiting ? most - waiting : 0;
}

/* Takes a job off the list and says why. */
static void give_up(struct kd_worker *w, struct kd_client *c, struct kd_work *k,
                    enum kd_fail_class why, const char *detail)
{
    struct kd_err err;
    if (kd_worker_report(w, c, k->layer, &k->job, why, detail, &err))
        kd_log(KD_LOG_WARN, "worker", "msg=\"cannot report\" why=\"%s\"", err.msg);
    pthread_mutex_lock(&w->lock);
    release(w, k);
    pthread_mutex_unlock(&w->lock);
}

/* The worker's own copy of an expert, when its bytes are the coordinator's. */
static bool own_weights(struct kd_worker *w, struct kd_work *k)
{
    struct kd_farm_task t;
    struct kd_err err;
    char sha[65] = "";
    if (!w->o.own || k->inputs->wire.trunk || w->o.own(w->o.ctx, k->layer, k->job.expert, &t, &err))
        return false;
    if (!kd_wire_weights_put(&k->weights, &t, &err) &&
        (int64_t)k->weights.size_bytes == k->job.weights.bytes &&
        !kd_sha256_of(k->weights.data, k->weights.size_bytes, sha, &err) &&
        !strcmp(sha, k->job.weights.sha256))
        return true;
    kd_buf_release(&k->weights);
    kd_log(KD_LOG_WARN, "worker",
           "layer=%lld expert=%lld msg=\"the own copy has other bytes; fetched instead\"",
           (long long)k->layer, (long long)k->job.expert);
    return false;
}

/* Fetches what claimed jobs need. */
static void fetch_claimed(struct kd_worker *w, struct kd_client *c, struct kd_client *data)
{
    struct kd_err err = {0};
    for (;;) {
        pthread_mutex_lock(&w->lock);
        struct kd_work *k = oldest(w, KD_WORK_FETCH);
        bool lost = k && k->lost;
        if (lost)
            release(w, k);
        pthread_mutex_unlock(&w->lock);
        if (!k)
            return;
        if (lost)
            continue;
        if (own_weights(w, k) || !kd_worker_fetch(w, data, &k->job.weights, &k->weights, &err)) {
            pthread_mutex_lock(&w->lock);
            k->state = KD_WORK_READY;
            pthread_cond_broadcast(&w->changed);
            pthread_mutex_unlock(&w->lock);
            continue;
        }
        kd_log(KD_LOG_WARN, "worker", "msg=\"cannot fetch\" why=\"%s\"", err.msg);
        give_up(w, c, k, KD_FAIL_INPUT, err.msg);
    }
}

static void hand_back(struct kd_worker *w, struct kd_client *c, const struct kd_wire_claim *claim,
                      enum kd_fail_class why, const char *detail)
{
    struct kd_err err;
    for (int64_t i = 0; i < claim->count; i++)
        if (kd_worker_report(w, c, claim->layer.layer, &claim->job[i], why, detail, &err))
            return;
}

/* Whether a tensor's working set fits (codec/quant.c: three copies of the weights in float, three
 * matrices of the Hessian's size). A worker that would have to swap is no help: others have it. */
static bool room_for(const struct kd_wire_claim *claim)
{
    int64_t k = claim->layer.in.latent, most = 0, have = kd_mem_available_bytes();
    for (int64_t i = 0; i < claim->count; i++)
        if (claim->job[i].rows > most)
            most = claim->job[i].rows;
    return !claim->layer.trunk || have <= 0 || 12 * k * (k + most) < have;
}

static int take_claim(struct kd_worker *w, struct kd_client *c, struct kd_client *data,
                      const struct kd_wire_claim *claim, struct kd_err *err)
{
    struct kd_inputs *in;
    if (!claim->count)
        return 0;
    if (!room_for(claim)) {
        w->no_trunk = true;
        kd_log(KD_LOG_WARN, "worker",
               "layer=%lld msg=\"too little memory for the trunk's tensors: experts only\"",
               (long long)claim->layer.layer);
        hand_back(w, c, claim, KD_FAIL_RETURN, "too little memory");
        return 0;
    }
    if (kd_worker_inputs(w, data, &claim->layer, &in, err)) {
        hand_back(w, c, claim, err->code == KD_EIO ? KD_FAIL_RETURN : KD_FAIL_INPUT, err->msg);
        return -1;
    }
    pthread_mutex_lock(&w->lock);
    for (int64_t i = 0; i < claim->count; i++)
        for (int k = 0; k < KD_LEDGER_HELD_MAX; k++)
            if (w->work[k].state == KD_WORK_FREE) {
                w->work[k] = (struct kd_work){.state = KD_WORK_FETCH,
                                              .order = w->order++,
                                              .job = claim->job[i],
                                              .layer = claim->layer.layer,
                                              .inputs = in};
                in->refs++;
                break;
            }
    pthread_mutex_unlock(&w->lock);
    fetch_claimed(w, c, data);
    return 0;
}

/* One claim. The token stays the same until an answer has come, so that a lost reply loses nothing.
 */
static int claim_once(struct kd_worker *w, struct kd_client *c, struct kd_client *data,
                      char token[33], int64_t most, struct kd_wire_claim *claim, int *status,
                      struct kd_err *err)
{
    struct kd_buf b;
    struct kd_reply r;
    *status = 0;
    if (!*token && kd_home_random(token, 16, err))
        return -1;
    kd_buf_init(&b, 1 << 16);
    kd_reply_init(&r);
    struct kd_jw jw = {.out = &b};
    kd_jw_open(&jw, NULL, '{');
    kd_jw_str(&jw, "token", token);
    kd_jw_str(&jw, "incarnation", w->incarnation);
    kd_jw_int(&jw, "most", most);
    kd_jw_bool(&jw, "trunk", !w->no_trunk);
    kd_jw_close(&jw, '}');
    int rc = kd_worker_post(w, c, "claim", &b, &r, err);
    if (!rc) {
        *status = r.status;
        rc = r.status == 200 ? kd_wire_claim_read(claim, r.body.data, r.body.size_bytes, err)
                             : kd_reply_fail(&r, w->url, err);
        if (r.status == 200)
            *token = 0;
    }
    kd_buf_release(&b);
    kd_reply_release(&r);
    if (rc)
        return -1;
    if (claim->drain)
        w->finished = true;
    return take_claim(w, c, data, claim, err);
}

static void *fetcher(void *arg)
{
    struct kd_worker *w = arg;
    struct kd_client *c = NULL, *data = NULL;
    struct kd_wire_claim *claim = NULL;
    struct kd_err err = {0};
    char token[33] = "";
    int tries = 0, status;
    if (kd_worker_client(w, &c, 15, &err) || kd_worker_client(w, &data, 120, &err) ||
        kd_mem_zero(&claim, 1, sizeof *claim, "claim", &err))
        kd_worker_fatal(w, &err);
    while (!kd_worker_stopping(w) && !w->finished) {
        int64_t most = appetite(w);
        if (!most) {
            kd_worker_wait(w, 100);
            continue;
        }
        if (claim_once(w, c, data, token, most, claim, &status, &err)) {
            if (status == 401) { /* the coordinator's folder is another one */
                kd_worker_fatal(w, &err);
                break;
            }
            if (tries == 0)
                kd_log(KD_LOG_WARN, "worker", "msg=\"no work\" why=\"%s\"", err.msg);
            back_off(w, &tries);
        } else {
            tries = 0;
            if (!claim->count)
                kd_worker_wait(w, claim->wait_for_disk ? 2000 : 250);
        }
    }
    kd_client_close(c);
    kd_client_close(data);
    kd_mem_free(claim);
    return NULL;
}

/* The coordinator does not know this life of the worker: its ledger was made anew. */
static void join_again(struct kd_worker *w)
{
    struct kd_err err;
    if (kd_worker_join(w, &err))
        kd_worker_fatal(w, &err);
}

static int beat_once(struct kd_worker *w, struct kd_client *c, struct kd_err *err)
{
    struct kd_wire_beat b = {.count = 0}, lost;
    struct kd_buf body;
    struct kd_reply r;
    struct kd_json *o = NULL;
    bool known = true, drain = false;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < KD_LEDGER_HELD_MAX; i++)
        if (w->work[i].state != KD_WORK_FREE)
            b.held[b.count++] = (struct kd_held){w->work[i].layer, w->work[i].job.expert,
                                                 w->work[i].job.attempt, false};
    pthread_mutex_unlock(&w->lock);
    kd_buf_init(&body, 1 << 16);
    kd_reply_init(&r);
    struct kd_jw jw = {.out = &body};
    kd_jw_open(&jw, NULL, '{');
    kd_jw_str(&jw, "incarnation", w->incarnation);
    kd_wire_beat_write(&jw, "held", &b, false);
    kd_jw_close(&jw, '}');
    int rc = kd_worker_post(w, c, "beat", &body, &r, err);
    if (!rc && r.status != 200)
        rc = kd_reply_fail(&r, w->url, err);
    if (!rc)
        rc = kd_json_parse(&o, r.body.data, r.body.size_bytes, "beat", err) ||
             kd_json_bool_or(o, "known", true, &known, err) ||
             kd_json_bool_or(o, "drain", false, &drain, err) ||
             kd_wire_beat_read(&lost, o, "lost", err);
    kd_json_free(o);
    kd_buf_release(&body);
    kd_reply_release(&r);
    if (rc)
        return -1;
    pthread_mutex_lock(&w->lock);
    for (int64_t i = 0; i < lost.count; i++)
        for (int k = 0; k < KD_LEDGER_HELD_MAX; k++) {
            struct kd_work *x = &w->work[k];
            if (x->state != KD_WORK_FREE && x->layer == lost.held[i].layer &&
                x->job.expert == lost.held[i].expert && x->job.attempt == lost.held[i].attempt)
                x->lost = true;
        }
    pthread_mutex_unlock(&w->lock);
    if (drain)
        w->finished = true;
    if (!known)
        join_again(w);
    return 0;
}

/* Half a minute after a stop was asked for, a job that still runs is handed back and the process
 * ends under it. */
static void end_in_time(struct kd_worker *w, struct kd_client *c)
{
    struct kd_err err;
    double now = kd_clock_s();
    if (!asked_to_stop(w))
        return;
    if (!(w->stop_at > 0))
        w->stop_at = now;
    if (now - w->stop_at < GRACE_S || !w->o.end_now)
        return;
    for (int i = 0; i < KD_LEDGER_HELD_MAX; i++)
        if (w->work[i].state != KD_WORK_FREE &&
            kd_worker_report(w, c, w->work[i].layer, &w->work[i].job, KD_FAIL_RETURN, "stopped",
                             &err))
            break;
    kd_log(KD_LOG_WARN, "worker", "msg=\"stopped in the middle of a job; it was handed back\"");
    w->o.end_now();
}

static void *beater(void *arg)
{
    struct kd_worker *w = arg;
    struct kd_client *c;
    struct kd_err err = {0};
    double next = 0, limit = w->o.away_s > 0 ? w->o.away_s : AWAY_S;
    if (kd_worker_client(w, &c, 15, &err)) {
        kd_worker_fatal(w, &err);
        return NULL;
    }
    while (!w->over) {
        end_in_time(w, c);
        if (kd_clock_s() >= next) {
            next = kd_clock_s() + w->beat_s;
            if (beat_once(w, c, &err) && kd_clock_s() - w->heard > limit) {
                kd_fail(&err, KD_ENET, "no coordinator for %.0f s: gave up", limit);
                kd_worker_fatal(w, &err);
            }
        }
        kd_worker_wait(w, 100);
    }
    kd_client_close(c);
    return NULL;
}

static int spool_path(const struct kd_worker *w, const struct kd_wire_put *p, char *out,
                      struct kd_err *err)
{
    char name[160];
    snprintf(name, sizeof name, "spool/%lld.%lld.%lld.%s.%lld", (long long)p->layer,
             (long long)p->expert, (long long)p->attempt, p->sha256, (long long)p->ms);
    return kd_path_join(out, 4096, w->o.dir, name, err);
}

static int put_of(const struct kd_work *k, struct kd_wire_put *p, struct kd_err *err)
{
    *p = (struct kd_wire_put){
        .layer = k->layer, .expert = k->job.expert, .attempt = k->job.attempt, .ms = k->ms};
    return kd_sha256_of(k->unit.data, k->unit.size_bytes, p->sha256, err);
}

/* Sends one result until it is taken or refused. False: stopping, and it is still here. */
static bool deliver(struct kd_worker *w, struct kd_client *c, const struct kd_wire_put *p,
                    const void *data, size_t bytes)
{
    struct kd_err err = {0};
    int tries = 0, damaged = 0, status;
    while (kd_worker_put(w, c, p, data, bytes, &status, &err)) {
        bool refused = status >= 400 && status < 500;
        if (refused && !(strstr(err.msg, "not those of its digest") && damaged++ < 3)) {
            kd_log(KD_LOG_WARN, "worker", "layer=%lld expert=%lld msg=\"refused\" why=\"%s\"",
                   (long long)p->layer, (long long)p->expert, err.msg);
            return true;
        }
        if (tries == 0)
            kd_log(KD_LOG_WARN, "worker", "msg=\"cannot deliver yet\" why=\"%s\"", err.msg);
        if (kd_worker_stopping(w) && tries > 1)
            return false;
        back_off(w, &tries);
    }
    return true;
}

/* Results of an earlier life. */
static void deliver_spool(struct kd_worker *w, struct kd_client *c)
{
    char path[4096], file[4096];
    struct kd_err err;
    struct dirent *e;
    if (kd_path_join(path, sizeof path, w->o.dir, "spool", &err))
        return;
    DIR *dir = opendir(path);
    while (dir && (e = readdir(dir))) {
        struct kd_wire_put p;
        struct kd_map m;
        if (kd_wire_put_read(&p, e->d_name, &err) ||
            kd_path_join(file, sizeof file, path, e->d_name, &err) || kd_file_map(&m, file, &err))
            continue;
        bool sent = m.data && deliver(w, c, &p, m.data, (size_t)m.size_bytes);
        kd_map_release(&m);
        if (sent)
            unlink(file);
    }
    if (dir)
        closedir(dir);
}

static void *uploader(void *arg)
{
    struct kd_worker *w = arg;
    struct kd_client *c;
    struct kd_err err = {0};
    struct kd_wire_put p;
    char path[4096];
    if (kd_worker_client(w, &c, 120, &err)) {
        kd_worker_fatal(w, &err);
        return NULL;
    }
    deliver_spool(w, c);
    for (;;) {
        pthread_mutex_lock(&w->lock);
        struct kd_work *k = oldest(w, KD_WORK_OUT);
        pthread_mutex_unlock(&w->lock);
        if (!k && w->over)
            break;
        if (!k) {
            kd_worker_wait(w, 100);
            continue;
        }
        int rc = put_of(k, &p, &err);
        if (!rc && !deliver(w, c, &p, k->unit.data, k->unit.size_bytes))
            rc = spool_path(w, &p, path, &err) ||
                 kd_file_write(path, k->unit.data, k->unit.size_bytes, &err);
        if (rc)
            kd_log(KD_LOG_WARN, "worker",
                   "msg=\"a result is lost; it will be made again\" why=\"%s\"", err.msg);
        pthread_mutex_lock(&w->lock);
        release(w, k);
        pthread_mutex_unlock(&w->lock);
    }
    kd_client_close(c);
    return NULL;
}

/* One of several lanes. */
struct lane {
    struct kd_worker *w;
    int index;
    pthread_t thread;
};

/* The run's threads are shared out among several lanes. Tensors of the trunk are large and few: one
 * after the other, with the whole pool. */
static int encode(const struct lane *lane, struct kd_work *k, const struct kd_farm_task *t,
                  struct kd_buf *unit, struct kd_err *err)
{
    struct kd_worker *w = lane->w;
    struct kd_run run = *w->o.run;
    if (w->o.lanes > 1 && !t->trunk)
        run.pool = w->lane_pool[lane->index];
    if (w->o.lanes > 1 && t->trunk)
        pthread_mutex_lock(&w->trunk);
    int rc = kd_farm_encode(&run, &k->inputs->in, t, unit, err);
    if (w->o.lanes > 1 && t->trunk)
        pthread_mutex_unlock(&w->trunk);
    return rc;
}

/* The canary once more: a machine that has begun to compute otherwise ends itself. */
static void ask_canary(const struct lane *lane)
{
    struct kd_worker *w = lane->w;
    struct kd_run run = *w->o.run;
    struct kd_err err;
    char sha[65];
    if (w->o.lanes > 1)
        run.pool = w->lane_pool[lane->index];
    if (kd_farm_canary(&run, sha, &err)) {
        kd_wrap(&err, "the canary failed");
        kd_worker_fatal(w, &err);
    } else if (strcmp(sha, w->canary) != 0) {
        kd_fail(&err, KD_EGPU,
                "this machine encoded the canary to %.12s when it joined and to %.12s now: its "
                "arithmetic is not to be trusted",
                w->canary, sha);
        kd_worker_fatal(w, &err);
    }
}

/* Encodes one job; a failure is the job's (arithmetic) or the worker's (memory). */
static void run_one(const struct lane *lane, struct kd_client *c, struct kd_work *k)
{
    struct kd_worker *w = lane->w;
    struct kd_farm_task t = {.expert = k->job.expert,
                             .hess = k->inputs->wire.hess.bytes ? &k->inputs->hess : NULL,
                             .plain_won = k->job.plain_won,
                             .digest = k->inputs->wire.digest};
    struct kd_err err = {0};
    struct kd_buf unit;
    double began = kd_clock_s();
    memcpy(t.spec, k->job.spec, sizeof t.spec);
    kd_buf_init(&unit, 0);
    if (kd_wire_weights_get(&t, &k->inputs->wire, &k->job, (const uint8_t *)k->weights.data,
                            (int64_t)k->weights.size_bytes, &err) ||
        encode(lane, k, &t, &unit, &err)) {
        kd_buf_release(&unit);
        kd_log(KD_LOG_WARN, "worker", "layer=%lld expert=%lld why=\"%s\"", (long long)k->layer,
               (long long)k->job.expert, err.msg);
        give_up(w, c, k,
                err.code == KD_ENOMEM || err.code == KD_EGPU ? KD_FAIL_DEVICE : KD_FAIL_MATH,
                err.msg);
        if (err.code == KD_EGPU)
            ask_canary(lane);
        return;
    }
    pthread_mutex_lock(&w->lock);
    k->ms = (int64_t)((kd_clock_s() - began) * 1000);
    k->unit = unit;
    kd_buf_release(&k->weights);
    k->state = KD_WORK_OUT;
    bool due = ++w->done % CANARY_JOBS == 0;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    kd_progress_add(1, NULL);
    if (due)
        ask_canary(lane);
}

static void say_leave(struct kd_worker *w, struct kd_client *c)
{
    struct kd_buf b;
    struct kd_reply r;
    struct kd_err err;
    kd_buf_init(&b, 1 << 12);
    kd_reply_init(&r);
    struct kd_jw jw = {.out = &b};
    kd_jw_open(&jw, NULL, '{');
    kd_jw_str(&jw, "incarnation", w->incarnation);
    kd_jw_close(&jw, '}');
    if (kd_worker_post(w, c, "leave", &b, &r, &err))
        kd_log(KD_LOG_INFO, "worker", "msg=\"left without a word\" why=\"%s\"", err.msg);
    kd_buf_release(&b);
    kd_reply_release(&r);
}

/* Whether this job may begin beside those that run. Under the lock. */
static bool has_room(const struct kd_worker *w, const struct kd_work *k)
{
    struct kd_inputs *in = k->inputs;
    int running = 0;
    if (!w->o.fit || in->wire.trunk)
        return true;
    if (!in->lanes) {
        in->lanes = kd_expert_room_of(w->o.run, &in->in, in->wire.inter, k->job.spec).lanes;
        kd_log(KD_LOG_INFO, "worker", "layer=%lld lanes=%d of=%d", (long long)k->layer, in->lanes,
               w->o.lanes);
    }
    for (int i = 0; i < KD_LEDGER_HELD_MAX; i++)
        running += w->work[i].state == KD_WORK_RUN;
    return running < in->lanes;
}

/* Encodes until there is no more to do here. In each lane. */
static void encode_all(const struct lane *lane, struct kd_client *c)
{
    struct kd_worker *w = lane->w;
    for (;;) {
        pthread_mutex_lock(&w->lock);
        struct kd_work *k = oldest(w, KD_WORK_READY);
        bool lost = k && k->lost, more = count(w, true) > 0;
        if (k && lost)
            release(w, k);
        else if (k && !has_room(w, k))
            k = NULL;
        else if (k && !kd_worker_stopping(w))
            k->state = KD_WORK_RUN;
        pthread_mutex_unlock(&w->lock);
        if (kd_worker_stopping(w) || (w->finished && !more && !k))
            break;
        if (!k)
            kd_worker_wait(w, 100);
        else if (!lost)
            run_one(lane, c, k);
    }
}

/* What has not begun goes back. */
static void return_rest(struct kd_worker *w, struct kd_client *c)
{
    for (;;) {
        pthread_mutex_lock(&w->lock);
        struct kd_work *k = oldest(w, KD_WORK_READY);
        pthread_mutex_unlock(&w->lock);
        if (!k)
            break;
        give_up(w, c, k, KD_FAIL_RETURN, "leaving");
    }
}

static void *lane_main(void *arg)
{
    const struct lane *lane = arg;
    struct kd_worker *w = lane->w;
    struct kd_client *c;
    struct kd_err err;
    if (kd_worker_client(w, &c, 15, &err)) {
        kd_worker_fatal(w, &err);
        return NULL;
    }
    encode_all(lane, c);
    kd_client_close(c);
    return NULL;
}

/* The caller is one of the lanes. Fewer threads than wished only take longer. */
static void encode_in_lanes(struct kd_worker *w, struct kd_client *c)
{
    struct lane lane[KD_WORKER_LANES] = {{.w = w}};
    int made = 1;
    for (; made < w->o.lanes; made++) {
        lane[made] = (struct lane){.w = w, .index = made};
        if (pthread_create(&lane[made].thread, NULL, lane_main, &lane[made]))
            break;
    }
    encode_all(&lane[0], c);
    while (--made > 0)
        pthread_join(lane[made].thread, NULL);
    return_rest(w, c);
}

/* Starts the three threads; on a failure those that run are ended. */
static int start(struct kd_worker *w, pthread_t thread[3], struct kd_err *err)
{
    static void *(*const entry[3])(void *) = {fetcher, uploader, beater};
    for (int i = 0; i < 3; i++)
        if (pthread_create(&thread[i], NULL, entry[i], w)) {
            w->over = true;
            while (i--)
                pthread_join(thread[i], NULL);
            return kd_fail(err, KD_ENOMEM, "cannot start a thread");
        }
    return 0;
}

static int work(struct kd_worker *w, struct kd_err *err)
{
    pthread_t thread[3];
    struct kd_client *c;
    w->heard = kd_clock_s();
    w->over = w->finished = false;
    if (kd_worker_client(w, &c, 15, err))
        return -1;
    int rc = start(w, thread, err);
    if (!rc) {
        encode_in_lanes(w, c);
        pthread_join(thread[0], NULL);
        encode_in_lanes(w, c); /* what the fetcher brought while it ended */
        w->over = true;
        pthread_cond_broadcast(&w->changed);
        pthread_join(thread[1], NULL);
        pthread_join(thread[2], NULL);
        say_leave(w, c);
    }
    kd_client_close(c);
    return rc;
}

static int prepare(struct kd_worker *w, int *lock, struct kd_err *err)
{
    char path[4096];
    const char *subs[] = {"inputs", "spool"};
    for (int i = 0; i < 2; i++)
        if (kd_path_join(path, sizeof path, w->o.dir, subs[i], err) || kd_dir_make(path, err))
            return -1;
    if (chmod(w->o.dir, 0700))
        return kd_fail_sys(err, "cannot make '%s' private", w->o.dir);
    if (kd_dir_lock(w->o.dir, lock, err) || kd_join_read(&w->join, w->o.join_file, err))
        return -1;
    snprintf(w->url, sizeof w->url, "%s", w->o.url && *w->o.url ? w->o.url : w->join.url);
    size_t n = strlen(w->url);
    while (n && w->url[n - 1] == '/')
        w->url[--n] = 0;
    const char *share = w->o.share ? w->o.share : w->join.share;
    if (strcmp(share, "none") != 0)
        snprintf(w->share, sizeof w->share, "%s", share);
    if (w->o.name && *w->o.name)
        snprintf(w->host, sizeof w->host, "%s", w->o.name);
    else if (gethostname(w->host, sizeof w->host - 1))
        snprintf(w->host, sizeof w->host, "unknown");
    return kd_url_check(w->url, false, NULL, err) || kd_home_random(w->incarnation, 16, err) ||
                   kd_farm_canary(w->o.run, w->canary, err)
               ? -1
               : 0;
}

int kd_worker_run(const struct kd_worker_opts *o, struct kd_err *err)
{
    struct kd_worker *w;
    int lock = -1;
    if (kd_mem_zero(&w, 1, sizeof *w, "worker", err))
        return -1;
    w->o = *o;
    w->o.memory_bytes = o->memory_bytes > 0 ? o->memory_bytes : 512ll << 20;
    w->o.lanes = o->lanes < 1 ? 1 : o->lanes > KD_WORKER_LANES ? KD_WORKER_LANES : o->lanes;
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->trunk, NULL);
    pthread_cond_init(&w->changed, NULL);
    int rc = kd_pool_split(w->o.run->pool, w->o.lanes, w->lane_pool, err) || prepare(w, &lock, err)
                 ? -1
                 : 0;
    while (!rc) {
        rc = kd_worker_join(w, err);
        if (rc)
            break;
        kd_log(KD_LOG_INFO, "worker", "id=%s url=%s msg=\"joined\"", w->id, w->url);
        rc = work(w, err);
        if (!w->o.stay || w->failed || asked_to_stop(w))
            break;
        kd_worker_wait(w, 2000);
    }
    if (!rc && w->failed) {
        *err = w->fatal;
        rc = -1;
    }
    if (!rc && asked_to_stop(w))
        rc = kd_fail(err, KD_ECANCEL, "stopped; %lld experts were encoded", (long long)w->done);
    for (int i = 0; i < KD_WORKER_LANES; i++)
        kd_pool_close(w->lane_pool[i]);
    kd_inputs_drop(w, w->inputs);
    kd_join_release(&w->join);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    pthread_mutex_destroy(&w->trunk);
    explicit_bzero(w->key, sizeof w->key);
    kd_mem_free(w);
    if (lock >= 0)
        close(lock);
    return rc;
}
