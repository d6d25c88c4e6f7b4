/* Results: written once, told to the ledger, and what follows when two differ. */
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/rand.h"
#include "base/show.h"
#include "farm/farm_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char local[] = "local";

/* Digest of the unit on disk. */
static int disk_digest(struct kd_slot *s, const char *path, struct kd_err *err)
{
    return s->sha[0] ? 0 : kd_sha256_file(path, s->sha, err);
}

/* A sample of foreign units: each worker's first, then one in sample_every by a hash of its place.
 */
static bool sampled(const struct kd_farm *f, int64_t e, const char *by)
{
    /* Of the trunk every tensor may be its worker's only one in the stage. */
    bool first = !f->layer->trunk;
    for (int64_t i = 0; first && i < f->layer->experts; i++)
        first = i == e || strcmp(f->slot[i].by, by) != 0;
    int64_t id = kd_job_id(f->layer->layer, kd_farm_number(f, e));
    uint64_t h = kd_rand_u64((uint64_t)id, f->o.digest);
    return first || h % (uint64_t)f->o.sample_every == 0;
}

static int tell_ledger(struct kd_farm *f, int64_t e, struct kd_err *err)
{
    struct kd_slot *s = &f->slot[e];
    enum kd_done what;
    struct kd_result r = {.layer = f->layer->layer,
                          .expert = kd_farm_number(f, e),
                          .attempt = s->attempt,
                          .worker = s->by,
                          .sha256 = s->sha,
                          .seconds = s->seconds,
                          .proxy = s->proxy,
                          .bytes = s->bytes};
    int rc;
    KD_WITH_LEDGER(f, rc, kd_ledger_done(&f->ledger, &r, &what, NULL, err));
    if (rc)
        return -1;
    pthread_mutex_lock(&f->lock);
    if (s->state == KD_SLOT_STORED) {
        s->state = KD_SLOT_DONE;
        f->left--;
    }
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    kd_coord_forget(f, e);
    return 0;
}

int kd_farm_store(struct kd_farm *f, int64_t e, const struct kd_farm_task *t, const void *data,
                  int64_t bytes, const struct kd_result *r, enum kd_store *what, struct kd_err *err)
{
    struct kd_slot *s = &f->slot[e];
    int rc = 0;
    /* Writing under the lock: one unit at a time goes to the disk, which is one as well. */
    pthread_mutex_lock(&f->lock);
    if (s->state == KD_SLOT_OPEN) {
        rc = kd_file_write(t->path, data, (size_t)bytes, err);
        if (!rc) {
            s->state = KD_SLOT_STORED;
            s->attempt = r->attempt;
            s->seconds = r->seconds;
            s->proxy = r->proxy;
            s->bytes = bytes;
            snprintf(s->sha, sizeof s->sha, "%s", r->sha256);
            bool foreign = strcmp(r->worker, local) != 0;
            s->check = foreign && sampled(f, e, r->worker);
            snprintf(s->by, sizeof s->by, "%s", r->worker);
        }
        *what = KD_STORE_NEW;
        pthread_mutex_unlock(&f->lock);
        return rc ? -1 : tell_ledger(f, e, err);
    }
    rc = disk_digest(s, t->path, err);
    bool same = !rc && !strcmp(s->sha, r->sha256);
    *what = same ? KD_STORE_SAME : KD_STORE_DIFFERS;
    if (!rc && !same) {
        snprintf(s->other_sha, sizeof s->other_sha, "%s", r->sha256);
        snprintf(s->other_by, sizeof s->other_by, "%s", r->worker);
        s->check = true;
    }
    bool told = s->state == KD_SLOT_DONE;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    if (rc)
        return -1;
    if (!told && tell_ledger(f, e, err))
        return -1;
    enum kd_done done;
    KD_WITH_LEDGER(f, rc, kd_ledger_done(&f->ledger, r, &done, NULL, err));
    return rc;
}

int kd_farm_catch_up(struct kd_farm *f, struct kd_err *err)
{
    for (int64_t e = 0; e < f->layer->experts; e++) {
        pthread_mutex_lock(&f->lock);
        bool late = f->slot[e].state == KD_SLOT_STORED;
        pthread_mutex_unlock(&f->lock);
        if (late && tell_ledger(f, e, err))
            return -1;
    }
    return 0;
}

bool kd_farm_disk_ok(struct kd_farm *f)
{
    if (!f->o.home) /* alone, a full disk ends the run with its message, and a resume goes on */
        return true;
    int64_t have = kd_disk_free_bytes(f->disk_path), need = f->left * f->unit_bytes_max + (4 << 20);
    if (have < 0 || have >= need)
        return true;
    double now = kd_clock_s();
    if (now - f->disk_said > 30) {
        char a[32], b[32];
        f->disk_said = now;
        kd_show_bytes(a, sizeof a, need);
        kd_show_bytes(b, sizeof b, have);
        kd_log(KD_LOG_WARN, "farm",
               "msg=\"the disk is full: no work is handed out until there is room\" "
               "layer_needs=\"%s\" free=\"%s\"",
               a, b);
    }
    return false;
}

/* The slot's unit goes, and the job with it. */
static int reopen(struct kd_farm *f, int64_t e, struct kd_err *err)
{
    struct kd_farm_task t;
    bool wanted;
    if (kd_farm_plan(f, e, &t, &wanted, err))
        return -1;
    pthread_mutex_lock(&f->lock);
    struct kd_slot *s = &f->slot[e];
    int rc = unlink(t.path) && errno != ENOENT ? kd_fail_sys(err, "cannot remove '%s'", t.path) : 0;
    if (s->state == KD_SLOT_DONE)
        f->left++;
    s->state = KD_SLOT_OPEN;
    s->check = false;
    s->sha[0] = s->by[0] = s->other_sha[0] = s->other_by[0] = 0;
    pthread_mutex_unlock(&f->lock);
    return rc;
}

/* A worker computes wrong bytes: all it did in this stage goes. */
static int throw_out(struct kd_farm *f, const char *worker, const char *why, struct kd_err *err)
{
    struct kd_stage open = kd_farm_stage(f);
    int64_t list[1024], n = 0, closed = 0, first = -1;
    int rc;
    kd_log(KD_LOG_WARN, "farm",
           "worker=%s msg=\"wrong bytes: its results of layer %lld are made again\" why=\"%s\"",
           worker, (long long)f->layer->layer, why);
    do {
        KD_WITH_LEDGER(f, rc,
                       kd_ledger_discard(&f->ledger, worker, &open, why, list, 1024, &n, &closed,
                                         &first, err));
        for (int64_t i = 0; !rc && i < n; i++)
            rc = reopen(f, list[i] - open.first, err);
    } while (!rc && n == 1024);
    if (!rc && closed)
        return kd_fail(
            err, KD_EREMOTE,
            "worker %s computed wrong bytes, and %lld of its results have served already, "
            "the first in layer %lld: go back with kondense farm rebuild --from-layer "
            "%lld",
            worker, (long long)closed, (long long)first, (long long)first);
    return rc;
}

int kd_farm_recheck(struct kd_farm *f, int64_t e, struct kd_err *err)
{
    struct kd_farm_task t;
    struct kd_buf unit;
    char sha[65], why[200], stored[65], by[KD_WORKER_ID_MAX], other[65], other_by[KD_WORKER_ID_MAX];
    bool wanted;
    if (kd_farm_plan(f, e, &t, &wanted, err))
        return -1;
    pthread_mutex_lock(&f->lock);
    struct kd_slot *s = &f->slot[e];
    bool there = s->state != KD_SLOT_OPEN;
    int rc = there ? disk_digest(s, t.path, err) : 0;
    memcpy(stored, s->sha, sizeof stored);
    memcpy(by, s->by, sizeof by);
    memcpy(other, s->other_sha, sizeof other);
    memcpy(other_by, s->other_by, sizeof other_by);
    s->other_sha[0] = s->other_by[0] = 0;
    pthread_mutex_unlock(&f->lock);
    if (rc || !there)
        return rc;
    int64_t number = kd_farm_number(f, e);
    if (kd_farm_encode(f->o.run, f->layer->in, &t, &unit, err))
        return kd_wrap(err, "job %lld", (long long)number);
    rc = kd_sha256_of(unit.data, unit.size_bytes, sha, err);
    kd_buf_release(&unit);
    if (rc)
        return -1;
    snprintf(why, sizeof why, "job %lld is %.12s here, %.12s from the worker", (long long)number,
             sha, strcmp(stored, sha) != 0 ? stored : other);
    bool bad = strcmp(stored, sha) != 0;
    KD_WITH_LEDGER(f, rc,
                   kd_ledger_note(&f->ledger, f->layer->layer, number, 0, by,
                                  bad ? "wrong" : "checked", bad ? why : sha, err));
    if (!rc && bad && by[0] && strcmp(by, local) != 0)
        rc = throw_out(f, by, why, err);
    else if (!rc && bad) { /* found on disk, by nobody known: this one alone */
        KD_WITH_LEDGER(f, rc, kd_ledger_redo(&f->ledger, f->layer->layer, number, why, err));
        if (!rc)
            rc = reopen(f, e, err);
    }
    if (!rc && other[0] && strcmp(other, sha) != 0)
        rc = throw_out(f, other_by, why, err);
    return rc;
}
