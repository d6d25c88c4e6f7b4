/* The worker: who runs next, on what, for how long. Each turn of the loop:
 *   cancels and deadlines; admission, as far as places and the memory's plan go; one token (and its
 *   drafts) of every sequence that decodes; prefill as far as the step's aim allows, the shortest
 *   first, but nobody is passed over for ever; then what came of it goes out. */
#include "base/clock.h"
#include "base/log.h"
#include "serve/engine_int.h"

#include <errno.h>
#include <string.h>

enum { PASSED_MAX = 8, IDLE_CHUNK = 128 };

static bool late(const struct kd_request *r, double now)
{
    return r->spec.deadline_s > 0 && now >= r->spec.deadline_s;
}

/* Lock held. A request that never ran: its choices end here. */
static void end_queued(struct kd_engine *e, struct kd_request **at, enum kd_finish why, double now)
{
    struct kd_request *r = *at;
    *at = r->next;
    r->next = NULL;
    e->queued--;
    for (int64_t i = 0; i < r->spec.choices; i++) {
        kd_choice_end(&r->choices[i], why, NULL);
        kd_request_publish(&r->choices[i], now);
    }
    r->where = KD_OVER;
    if (r->spec.ready)
        r->spec.ready(r->spec.ready_ctx);
    pthread_cond_broadcast(&r->changed);
    if (!e->queue && !e->running)
        pthread_cond_broadcast(&e->idle);
}

static void sweep(struct kd_engine *e, double now)
{
    pthread_mutex_lock(&e->lock);
    for (struct kd_request **at = &e->queue; *at;) {
        if ((*at)->cancelled || e->stop)
            end_queued(e, at, KD_FINISH_CANCEL, now);
        else if (late(*at, now))
            end_queued(e, at, KD_FINISH_TIMEOUT, now);
        else
            at = &(*at)->next;
    }
    for (struct kd_request *r = e->running; r; r = r->next) {
        bool cancelled = r->cancelled || e->stop;
        if (!cancelled && !late(r, now))
            continue;
        for (int64_t i = 0; i < r->spec.choices; i++)
            kd_choice_end(&r->choices[i], cancelled ? KD_FINISH_CANCEL : KD_FINISH_TIMEOUT, NULL);
    }
    pthread_mutex_unlock(&e->lock);
}

static int64_t running_of(const struct kd_engine *e, const char *owner)
{
    int64_t n = 0;
    for (const struct kd_request *r = e->running; r; r = r->next)
        n += strcmp(r->spec.owner, owner) ? 0 : r->open;
    return n;
}

/* Lock held. The next of the queue: of the owner with the least running, in the order they came;
 * background last. */
static struct kd_request **next_queued(struct kd_engine *e)
{
    struct kd_request **best = NULL;
    int64_t least = 0;
    for (struct kd_request **at = &e->queue; *at; at = &(*at)->next) {
        int64_t n = running_of(e, (*at)->spec.owner) + ((*at)->spec.background ? 1 << 20 : 0);
        if (!best || n < least) {
            best = at;
            least = n;
        }
    }
    return best;
}

/* Lock held. */
static bool admit_one(struct kd_engine *e, double now)
{
    struct kd_request **at = next_queued(e), *r = at ? *at : NULL;
    if (!r || e->running_choices + r->spec.choices > e->o.max_running)
        return false;
    int64_t all = r->need_bytes + r->spec.choices * r->choice_bytes;
    if (e->reserved + all > e->o.memory_bytes)
        return false;
    *at = r->next;
    e->queued--;
    e->reserved += all;
    for (int64_t i = 0; i < r->spec.choices; i++)
        r->choices[i].reserved = r->choice_bytes + (i ? 0 : r->need_bytes);
    e->running_choices += r->spec.choices;
    r->where = KD_RUNNING;
    r->admit_s = now;
    kd_histogram_add(&e->m.queue_wait, now - r->submit_s);
    struct kd_request **end = &e->running;
    while (*end)
        end = &(*end)->next;
    r->next = NULL;
    *end = r;
    return true;
}

static void admit(struct kd_engine *e, double now)
{
    for (bool again = true; again;) {
        bool all_run = kd_plan_unpark(e);
        pthread_mutex_lock(&e->lock);
        while (all_run && admit_one(e, now))
            ;
        again = e->queue && e->idle_on; /* idle work makes room */
        pthread_mutex_unlock(&e->lock);
        if (again)
            kd_idle_drop(e);
    }
}

static void count_cache(struct kd_engine *e, struct kd_choice *c)
{
    pthread_mutex_lock(&e->lock);
    c->r->usage.cached_tokens = c->lane.fed;
    e->m.prompt_tokens += c->lane.prompt;
    e->m.cached_tokens += c->lane.fed;
    *(c->lane.fed ? &e->m.cache_hits : &e->m.cache_misses) += 1;
    pthread_mutex_unlock(&e->lock);
}

/* Choice 0 of a request that was just admitted, or whose prefix was just read, from the disk or by
 * another's prefill. */
static void set_out(struct kd_engine *e, struct kd_request *r)
{
    struct kd_choice *c = &r->choices[0];
    struct kd_err err;
    int rc = 0;
    if (c->stage == KD_STAGE_START)
        for (int64_t i = 0; i < r->spec.choices && !rc; i++) {
            rc = kd_choice_begin(&r->choices[i], &err);
            if (i)
                r->choices[i].stage = KD_STAGE_SIBLING;
        }
    if (!rc && c->stage == KD_STAGE_START && r->spec.max_tokens)
        rc = kd_lane_read(e, &c->lane, &c->logits, &err);
    if (!rc && c->logits) {
        c->stage = KD_STAGE_READ;
        count_cache(e, c);
        return;
    }
    if (!rc)
        rc = kd_lane_begin(e, &c->lane, !c->loaded, &c->load, &err);
    if (rc) {
        for (int64_t i = 0; i < r->spec.choices; i++)
            kd_choice_end(&r->choices[i], KD_FINISH_ERROR, &err);
        return;
    }
    c->loaded = true;
    if (c->load) {
        c->stage = KD_STAGE_LOAD;
    } else if (kd_lane_follows(e, c)) {
        kd_k3_seq_close(c->lane.seq);
        c->lane.seq = NULL;
        c->stage = KD_STAGE_FOLLOW;
    } else {
        c->stage = KD_STAGE_PREFILL;
        count_cache(e, c);
    }
}

static void start_all(struct kd_engine *e)
{
    if (e->prefix)
        kd_prefix_poll(e->prefix);
    for (struct kd_request *r = e->running; r; r = r->next) {
        const struct kd_choice *c = &r->choices[0];
        if (c->stage == KD_STAGE_START ||
            (c->stage == KD_STAGE_LOAD && !kd_prefix_loading(e->prefix, c->load)) ||
            (c->stage == KD_STAGE_FOLLOW && !kd_lane_follows(e, c)))
            set_out(e, r);
    }
}

static void add(struct kd_engine *e, struct kd_choice *c, struct kd_lane *l, int64_t count)
{
    e->todo[e->todo_count++] = (struct kd_todo){.c = c, .lane = l, .count = count};
}

/* Which readers are slow, and how many sequences decode. */
static int64_t look_around(struct kd_engine *e)
{
    int64_t decoding = 0, paused = 0, parked = 0;
    e->any_read = false;
    pthread_mutex_lock(&e->lock);
    for (struct kd_request *r = e->running; r; r = r->next) {
        bool full = r->ring_used >= e->o.events;
        for (int64_t i = 0; i < r->spec.choices; i++) {
            struct kd_choice *c = &r->choices[i];
            c->paused = full && c->stage == KD_STAGE_DECODE;
            e->any_read = e->any_read || c->stage == KD_STAGE_READ;
            paused += c->paused;
            parked += c->stage == KD_STAGE_PARKED;
            decoding += c->stage == KD_STAGE_DECODE && !c->paused;
        }
    }
    e->m.paused = paused;
    e->m.parked = parked;
    pthread_mutex_unlock(&e->lock);
    return decoding;
}

/* As the tokens were made: one by one, or as a draft, which has the same bits. */
static void add_replay(struct kd_engine *e, struct kd_choice *c)
{
    int64_t left = c->lane.ids.count - 1 - c->lane.fed, most = c->draftable ? KD_K3_DRAFT_MAX : 1;
    add(e, c, &c->lane, left < most ? left : most);
    e->todo[e->todo_count - 1].draft = c->draftable;
}

static void add_decodes(struct kd_engine *e, int64_t decoding)
{
    for (struct kd_request *r = e->running; r; r = r->next)
        for (int64_t i = 0; i < r->spec.choices; i++) {
            struct kd_choice *c = &r->choices[i];
            c->starved = false;
            if (c->stage == KD_STAGE_REPLAY)
                add_replay(e, c);
            if (c->stage != KD_STAGE_DECODE || c->paused)
                continue;
            c->starved = !kd_plan_grow(c);
            if (c->starved)
                continue;
            kd_draft_plan(e, c, decoding);
            add(e, c, &c->lane, 1 + c->draft_count);
        }
}

static bool is_taken(const struct kd_engine *e, const struct kd_choice *c)
{
    for (int64_t i = 0; i < e->todo_count; i++)
        if (e->todo[i].c == c)
            return true;
    return false;
}

/* Rather the one than the other, when both wait with a prefill. */
static bool before(const struct kd_lane *a, const struct kd_lane *b)
{
    bool overdue_a = a->passed >= PASSED_MAX, overdue_b = b->passed >= PASSED_MAX;
    if (overdue_a != overdue_b)
        return overdue_a;
    return a->prompt - a->fed < b->prompt - b->fed;
}

static struct kd_choice *best_prefill(const struct kd_engine *e)
{
    struct kd_choice *best = NULL;
    for (struct kd_request *r = e->running; r; r = r->next)
        for (int64_t i = 0; i < r->spec.choices; i++) {
            struct kd_choice *c = &r->choices[i];
            if (c->stage == KD_STAGE_PREFILL && !is_taken(e, c) &&
                (!best || before(&c->lane, &best->lane)))
                best = c;
        }
    return best;
}

static void add_prefill(struct kd_engine *e, int64_t budget)
{
    struct kd_choice *c;
    for (int64_t left = budget; (c = best_prefill(e)) != NULL;) {
        int64_t n = kd_lane_next(e, &c->lane, left) - c->lane.fed;
        if (left < budget && n > left)
            break;
        c->lane.passed = 0;
        add(e, c, &c->lane, n);
        left -= n;
    }
    for (struct kd_request *r = e->running; r; r = r->next)
        for (int64_t i = 0; i < r->spec.choices; i++) {
            c = &r->choices[i];
            c->lane.passed += c->stage == KD_STAGE_PREFILL && !is_taken(e, c);
        }
}

/* The step's todo list. When all that could run starve, one gives way to the others. */
static void plan(struct kd_engine *e)
{
    int64_t decoding = look_around(e), budget = e->o.chunk;
    e->todo_count = 0;
    add_decodes(e, decoding);
    if (decoding && e->prefill_rate > 0) {
        double fit = e->prefill_rate * e->o.step_ms * 1e-3;
        if (fit < (double)budget)
            budget = fit < KD_K3_PAGE ? KD_K3_PAGE : (int64_t)fit / KD_K3_PAGE * KD_K3_PAGE;
    }
    add_prefill(e, budget);
    if (!e->todo_count && !e->any_read && kd_plan_park_one(e)) {
        plan(e);
        return;
    }
    if (!e->todo_count && !e->running && kd_idle_ready(e))
        add(e, NULL, &e->idle_lane, kd_lane_next(e, &e->idle_lane, IDLE_CHUNK) - e->idle_lane.fed);
}

/* A request whose choices have all ended and told so. */
static void retire(struct kd_engine *e, struct kd_request **at)
{
    struct kd_request *r = *at;
    if (r->spec.ready)
        r->spec.ready(r->spec.ready_ctx);
    pthread_mutex_lock(&e->lock);
    *at = r->next;
    double took = r->end_s - r->admit_s;
    e->service_s = e->service_s > 0 ? e->service_s + 0.1 * (took - e->service_s) : took;
    r->where = KD_OVER;
    pthread_cond_broadcast(&r->changed);
    if (!e->queue && !e->running)
        pthread_cond_broadcast(&e->idle);
    pthread_mutex_unlock(&e->lock);
}

/* What came of the step goes out; what has ended gives back what it had. */
static void deliver(struct kd_engine *e)
{
    double now = kd_clock_s();
    int64_t ended = 0;
    for (struct kd_request *r = e->running; r; r = r->next)
        for (int64_t i = 0; i < r->spec.choices; i++) {
            struct kd_choice *c = &r->choices[i];
            if (!c->finish || c->told)
                continue;
            if (c->finish == KD_FINISH_STOP || c->finish == KD_FINISH_LENGTH)
                kd_idle_remember(e, c);
            kd_choice_release(c);
            ended++;
        }
    pthread_mutex_lock(&e->lock);
    for (struct kd_request *r = e->running; r; r = r->next) {
        r->news = false;
        for (int64_t i = 0; i < r->spec.choices; i++)
            r->news |= kd_request_publish(&r->choices[i], now);
    }
    e->running_choices -= ended;
    pthread_mutex_unlock(&e->lock);
    /* Not under the lock: who wakes takes it first. */
    for (struct kd_request **at = &e->running, *r; (r = *at) != NULL;) {
        if (r->news)
            pthread_cond_broadcast(&r->changed);
        if (!r->open) {
            retire(e, at);
            continue;
        }
        if (r->news && r->spec.ready)
            r->spec.ready(r->spec.ready_ctx);
        at = &r->next;
    }
}

static struct timespec wake_time(const struct kd_engine *e, double now)
{
    double when = now + 60;
    for (const struct kd_request *r = e->queue; r; r = r->next)
        if (r->spec.deadline_s > 0 && r->spec.deadline_s < when)
            when = r->spec.deadline_s;
    for (const struct kd_request *r = e->running; r; r = r->next)
        if (r->spec.deadline_s > 0 && r->spec.deadline_s < when)
            when = r->spec.deadline_s;
    when += 1e-4;
    return (struct timespec){(time_t)when, (long)((when - (double)(time_t)when) * 1e9)};
}

/* Nothing can run: waits for news or a deadline. */
static void rest(struct kd_engine *e)
{
    pthread_mutex_lock(&e->lock);
    struct timespec t = wake_time(e, kd_clock_s());
    while (!e->poked && !e->stop)
        if (pthread_cond_timedwait(&e->wake, &e->lock, &t) == ETIMEDOUT)
            break;
    pthread_mutex_unlock(&e->lock);
}

static bool news(struct kd_engine *e, bool *stop)
{
    pthread_mutex_lock(&e->lock);
    e->poked = false;
    *stop = e->stop && !e->running && !e->queue;
    pthread_mutex_unlock(&e->lock);
    return !*stop;
}

void *kd_sched_thread(void *engine)
{
    struct kd_engine *e = engine;
    bool stop;
    while (news(e, &stop)) {
        double now = kd_clock_s();
        sweep(e, now);
        admit(e, now);
        start_all(e);
        plan(e);
        if (e->todo_count || e->any_read)
            kd_step_run(e);
        if (e->idle_on && e->idle_lane.fed >= e->idle_lane.prompt - 1)
            kd_idle_drop(e);
        bool quiet = !e->todo_count && !e->any_read;
        for (const struct kd_request *r = e->running; r && quiet; r = r->next)
            for (int64_t i = 0; i < r->spec.choices; i++)
                quiet = quiet && r->choices[i].stage != KD_STAGE_ENDED;
        deliver(e);
        if (quiet)
            rest(e);
    }
    return NULL;
}
