/* Prefill in chunks that end at absolute multiples of 64, checkpoints, idle prefill. */
#include "base/log.h"
#include "serve/engine_int.h"

#include <string.h>

enum {
    FOLLOW_MIN = 128, /* tokens that waiting must save */
    END_MIN = 512     /* shorter prompts are soon read to their ends from the last checkpoint */
};

void kd_lane_release(struct kd_lane *l)
{
    kd_k3_seq_close(l->seq);
    kd_ids_release(&l->ids);
    memset(l, 0, sizeof *l);
}

static int64_t down64(int64_t n)
{
    return n - n % KD_K3_PAGE;
}

/* The last place of the prompt a later prompt can start from: at least one token must follow it to
 * give logits. */
static int64_t last_checkpoint(const struct kd_lane *l)
{
    return down64(l->prompt - 1);
}

static bool is_checkpoint(const struct kd_engine *e, const struct kd_lane *l, int64_t at)
{
    bool is = at == last_checkpoint(l) || at % e->o.checkpoint_tokens == 0;
    for (int i = 0; i < KD_BRANCHES; i++)
        is = is || at == l->branch[i];
    return e->prefix && at > 0 && is;
}

/* Asks for a checkpoint at `at`, not yet passed. False: the lane has enough of them to make. */
static bool mark(const struct kd_engine *e, struct kd_lane *l, int64_t at)
{
    if (is_checkpoint(e, l, at))
        return true;
    for (int i = 0; i < KD_BRANCHES; i++)
        if (l->branch[i] <= l->fed) {
            l->branch[i] = at;
            return true;
        }
    return false;
}

/* Tokens from which both could go on. */
static int64_t shared(const struct kd_lane *a, const struct kd_lane *b)
{
    int64_t n = last_checkpoint(a), m = last_checkpoint(b), at = 0;
    n = n < m ? n : m;
    while (at < n && !memcmp(a->ids.id + at, b->ids.id + at, KD_K3_PAGE * sizeof *a->ids.id))
        at += KD_K3_PAGE;
    return at;
}

bool kd_lane_follows(struct kd_engine *e, const struct kd_choice *c)
{
    const struct kd_lane *l = &c->lane;
    for (struct kd_request *r = e->running; e->prefix && r; r = r->next) {
        struct kd_choice *o = &r->choices[0];
        if (o == c || o->stage != KD_STAGE_PREFILL || !kd_prefix_same_key(&o->lane.key, &l->key))
            continue;
        int64_t at = shared(l, &o->lane);
        if (at > o->lane.fed && at - l->fed >= FOLLOW_MIN && mark(e, &o->lane, at))
            return true;
    }
    return false;
}

int64_t kd_lane_next(const struct kd_engine *e, const struct kd_lane *l, int64_t budget)
{
    int64_t end = down64(l->fed + budget);
    if (end <= l->fed)
        end = down64(l->fed) + KD_K3_PAGE;
    end = end < l->prompt ? end : l->prompt;
    /* On a device the prompt's last piece is always the same one, cached or not. */
    if (e->prefix || e->device) {
        int64_t every = e->o.checkpoint_tokens, next = (l->fed / every + 1) * every;
        int64_t marks[KD_BRANCHES + 2] = {last_checkpoint(l), next};
        memcpy(marks + 2, l->branch, sizeof l->branch);
        for (int i = 0; i < KD_BRANCHES + 2; i++)
            if (marks[i] > l->fed && marks[i] < end)
                end = marks[i];
    }
    return end;
}

void kd_lane_checkpoint(struct kd_engine *e, const struct kd_lane *l)
{
    if (is_checkpoint(e, l, l->fed))
        kd_prefix_put(e->prefix, &l->key, l->ids.id, l->seq);
}

int kd_lane_read(struct kd_engine *e, struct kd_lane *l, float **logits, struct kd_err *err)
{
    *logits = NULL;
    if (!e->prefix || l->prompt < END_MIN)
        return 0;
    if (kd_prefix_find_end(e->prefix, &l->key, l->ids.id, l->prompt, &l->seq, logits, err))
        return -1;
    l->fed = l->seq ? l->prompt : 0;
    return 0;
}

void kd_lane_keep_end(struct kd_engine *e, const struct kd_lane *l, const float *logits)
{
    if (e->prefix && l->prompt >= END_MIN)
        kd_prefix_put_end(e->prefix, &l->key, l->ids.id, l->seq, logits, e->cfg->vocab);
}

int kd_lane_begin(struct kd_engine *e, struct kd_lane *l, bool disk, int64_t *load,
                  struct kd_err *err)
{
    *load = 0;
    if (e->prefix) {
        int64_t limit = last_checkpoint(l);
        if (kd_prefix_find(e->prefix, &l->key, l->ids.id, limit, disk, &l->seq, load, err))
            return -1;
        if (*load)
            return 0;
        l->fed = l->seq ? kd_k3_seq_pos(l->seq) : 0;
        int64_t branch = kd_prefix_branch(e->prefix, &l->key, l->ids.id, limit);
        memset(l->branch, 0, sizeof l->branch);
        l->branch[0] = branch > l->fed ? branch : 0;
    }
    return l->seq ? 0 : kd_k3_seq_open(&l->seq, e->model, err);
}

/* The end of an answer that stood: the next turn begins with it. */
void kd_idle_remember(struct kd_engine *e, const struct kd_choice *c)
{
    const struct kd_lane *l = &c->lane;
    if (e->o.no_idle_prefill || !e->prefix || c->index || !c->made ||
        down64(l->ids.count) <= last_checkpoint(l))
        return;
    if (e->idle_jobs == KD_IDLE_JOBS) { /* the oldest goes */
        kd_ids_release(&e->idle_job[0].ids);
        memmove(e->idle_job, e->idle_job + 1, (KD_IDLE_JOBS - 1) * sizeof e->idle_job[0]);
        e->idle_jobs--;
    }
    struct kd_idle_job *j = &e->idle_job[e->idle_jobs];
    memset(j, 0, sizeof *j);
    j->key = l->key;
    for (int64_t i = 0; i < down64(l->ids.count); i++)
        if (kd_ids_add(&j->ids, l->ids.id[i], NULL)) {
            kd_ids_release(&j->ids);
            return;
        }
    e->idle_jobs++;
}

/* Reserves a sequence of so many tokens, if the plan has room for one more. */
static bool room_for(struct kd_engine *e, int64_t tokens)
{
    int64_t bytes = e->fixed_bytes + (tokens + KD_K3_PAGE - 1) / KD_K3_PAGE * e->page_bytes;
    pthread_mutex_lock(&e->lock);
    bool fits = e->reserved + bytes <= e->o.memory_bytes;
    if (fits)
        e->reserved += e->idle_bytes = bytes;
    pthread_mutex_unlock(&e->lock);
    return fits;
}

void kd_idle_drop(struct kd_engine *e)
{
    kd_lane_release(&e->idle_lane);
    pthread_mutex_lock(&e->lock);
    e->reserved -= e->idle_bytes;
    pthread_mutex_unlock(&e->lock);
    e->idle_bytes = 0;
    e->idle_on = false;
}

/* The next job as a lane, or false. A lane's last id is there only to stand after the last
 * checkpoint; it is never fed. */
static bool take_job(struct kd_engine *e)
{
    struct kd_lane *l = &e->idle_lane;
    struct kd_idle_job j = e->idle_job[--e->idle_jobs];
    int64_t load;
    struct kd_err err;
    memset(l, 0, sizeof *l);
    l->ids = j.ids;
    l->key = j.key;
    if (kd_ids_add(&l->ids, 0, NULL) || !room_for(e, l->ids.count))
        return false;
    l->prompt = l->ids.count;
    if (kd_lane_begin(e, l, false, &load, &err)) {
        kd_log(KD_LOG_WARN, "serve", "msg=\"idle prefill: %s\"", err.msg);
        return false;
    }
    return l->fed < last_checkpoint(l);
}

bool kd_idle_ready(struct kd_engine *e)
{
    while (!e->idle_on && e->idle_jobs) {
        e->idle_on = take_job(e);
        if (!e->idle_on)
            kd_idle_drop(e);
    }
    return e->idle_on;
}

void kd_idle_release(struct kd_engine *e)
{
    kd_idle_drop(e);
    while (e->idle_jobs)
        kd_ids_release(&e->idle_job[--e->idle_jobs].ids);
}
