/* A request as its caller sees it: copied, waited for, cancelled, freed. */
#include "base/clock.h"
#include "base/mem.h"
#include "serve/engine_int.h"

#include <errno.h>
#include <math.h>
#include <string.h>

const double kd_histogram_bound[KD_HISTOGRAM_BINS - 1] = {
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1,   0.2,  0.35,
    0.5,   1.0,    2.0,   5.0,  10.0, 30.0,  60.0, 180.0, 600.0};

void kd_histogram_add(struct kd_histogram *h, double seconds)
{
    int i = 0;
    while (i < KD_HISTOGRAM_BINS - 1 && seconds > kd_histogram_bound[i])
        i++;
    h->count[i]++;
    h->total++;
    h->sum += seconds;
}

const char *kd_finish_name(enum kd_finish f)
{
    static const char *const names[] = {"none", "stop", "length", "cancel", "timeout", "error"};
    return names[f];
}

static int check_sampling(const struct kd_request_spec *s, struct kd_err *err)
{
    const struct kd_sampling *p = &s->sampling;
    const double all[] = {p->temperature, p->top_p,      p->min_p,      s->presence,
                          s->frequency,   s->repetition, s->expert_mass};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!isfinite(all[i]))
            return kd_fail(err, KD_EINVAL, "a sampling value is not a finite number");
    if (p->temperature < 0 || p->top_p < 0 || p->top_p > 1 || p->min_p < 0 || p->min_p > 1 ||
        p->top_k < 0 || s->repetition < 0)
        return kd_fail(err, KD_EINVAL, "a sampling value is outside its range");
    return 0;
}

static int check_ids(const struct kd_engine *e, const int32_t *ids, int64_t count, const char *what,
                     struct kd_err *err)
{
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= e->cfg->vocab)
            return kd_fail(err, KD_EINVAL, "%s %lld is token id %d; the model has %lld", what,
                           (long long)i, ids[i], (long long)e->cfg->vocab);
    return 0;
}

static int check_spec(const struct kd_engine *e, const struct kd_request_spec *s,
                      struct kd_err *err)
{
    int64_t n = s->choices ? s->choices : 1;
    if (s->prompt_count < 1 || s->max_tokens < 0)
        return kd_fail(err, KD_EINVAL,
                       "a prompt has at least one token, and an answer not fewer "
                       "than none");
    if (n < 1 || n > KD_ENGINE_CHOICES_MAX || n > e->o.max_running)
        return kd_fail(err, KD_EINVAL, "%lld choices: 1 to %lld", (long long)n,
                       (long long)(e->o.max_running < KD_ENGINE_CHOICES_MAX
                                       ? e->o.max_running
                                       : KD_ENGINE_CHOICES_MAX));
    if (s->logprobs < 0 || s->logprobs > KD_ENGINE_TOP_MAX + 1)
        return kd_fail(err, KD_EINVAL, "log probabilities of at most %d tokens", KD_ENGINE_TOP_MAX);
    if (s->stop_count < 0 || s->stop_count > KD_ENGINE_STOPS_MAX || s->stop_id_count < 0 ||
        s->stop_id_count > KD_ENGINE_STOPS_MAX)
        return kd_fail(err, KD_EINVAL, "at most %d stops", KD_ENGINE_STOPS_MAX);
    for (int64_t i = 0; i < s->stop_count; i++)
        if (s->stop_bytes[i] < 1 || s->stop_bytes[i] > KD_ENGINE_STOP_BYTES)
            return kd_fail(err, KD_EINVAL, "a stop string has 1 to %d bytes", KD_ENGINE_STOP_BYTES);
    for (int64_t i = 0; i < s->bias_count; i++)
        if (check_ids(e, &s->bias[i].id, 1, "bias", err) || !isfinite(s->bias[i].add))
            return kd_fail(err, KD_EINVAL, "a logit bias names no token or is no finite number");
    if (s->experts_used < 0 || s->experts_used > e->cfg->topk || s->expert_mass < 0 ||
        s->expert_mass > 1)
        return kd_fail(err, KD_EINVAL, "1 to %lld experts a token, a share of 0 to 1",
                       (long long)e->cfg->topk);
    if (!memchr(s->owner, 0, sizeof s->owner))
        return kd_fail(err, KD_EINVAL, "the owner's name has no end");
    return check_ids(e, s->prompt, s->prompt_count, "prompt", err) ||
                   check_ids(e, s->stop_ids, s->stop_id_count, "stop", err) ||
                   check_sampling(s, err)
               ? -1
               : 0;
}

/* A copy that goes with the request; NULL stays NULL. */
static int own(struct kd_request *r, void *pointer, const void *from, int64_t count, int64_t size,
               struct kd_err *err)
{
    void *copy = NULL;
    if (count > 0) {
        if (kd_mem_new(&copy, count, size, "request", err))
            return -1;
        memcpy(copy, from, (size_t)(count * size));
        r->owned[r->owned_count++] = copy;
    }
    memcpy(pointer, &copy, sizeof copy);
    return 0;
}

static int own_stops(struct kd_request *r, const struct kd_request_spec *s, struct kd_err *err)
{
    size_t all = 0;
    char *text, **at;
    for (int64_t i = 0; i < s->stop_count; i++)
        all += s->stop_bytes[i];
    if (!s->stop_count)
        return 0;
    if (kd_mem_new(&text, (int64_t)all, 1, "stop strings", err))
        return -1;
    r->owned[r->owned_count++] = text;
    if (kd_mem_new(&at, s->stop_count, sizeof(char *), "stop strings", err))
        return -1;
    r->owned[r->owned_count++] = at;
    for (int64_t i = 0; i < s->stop_count; i++) {
        memcpy(text, s->stops[i], s->stop_bytes[i]);
        at[i] = text;
        text += s->stop_bytes[i];
    }
    r->stops = (struct kd_stops){s->stop_count, at, r->spec.stop_bytes};
    return 0;
}

static void set_choices(struct kd_request *r)
{
    for (int64_t i = 0; i < r->spec.choices; i++) {
        struct kd_choice *c = &r->choices[i];
        c->r = r;
        c->index = i;
        c->pick = (struct kd_pick){.sampling = r->spec.sampling,
                                   .presence = r->spec.presence,
                                   .frequency = r->spec.frequency,
                                   .repetition = r->spec.repetition,
                                   .bias = r->spec.bias,
                                   .bias_count = r->spec.bias_count,
                                   .logprobs = r->spec.logprobs};
        c->pick.sampling.choice += (uint64_t)i;
        c->stop = -1;
    }
}

static void set_defaults(struct kd_request *r)
{
    struct kd_request_spec *s = &r->spec;
    s->choices = s->choices ? s->choices : 1;
    s->repetition = s->repetition > 0 ? s->repetition : 1.0;
    if (s->sampling.temperature < 1e-5)
        s->sampling.temperature = 0;
    if (s->experts_used == r->e->cfg->topk)
        s->experts_used = 0;
    if (s->expert_mass >= 1)
        s->expert_mass = 0;
    r->usage.prompt_tokens = s->prompt_count;
    r->usage.experts_used = s->experts_used ? s->experts_used : r->e->cfg->topk;
    r->usage.expert_mass = s->expert_mass;
    r->open = s->choices;
    r->submit_s = kd_clock_s();
}

/* Memory of the plan: the prompt's full pages once, the rest for each choice. */
static void set_need(struct kd_request *r)
{
    const struct kd_engine *e = r->e;
    int64_t most = e->o.context - r->spec.prompt_count;
    int64_t max = r->spec.max_tokens < most ? r->spec.max_tokens : most;
    int64_t first = max < e->o.grow_tokens ? max : e->o.grow_tokens;
    r->need_bytes = r->spec.prompt_count / KD_K3_PAGE * e->page_bytes;
    r->choice_bytes = kd_plan_bytes(e, r->spec.prompt_count + first) - r->need_bytes;
    r->most_bytes =
        r->need_bytes +
        r->spec.choices * (kd_plan_bytes(e, r->spec.prompt_count + max) - r->need_bytes);
    for (int64_t i = 0; i < r->spec.choices; i++)
        r->choices[i].planned = r->spec.prompt_count + first;
}

int kd_request_new(struct kd_request **out, struct kd_engine *e, const struct kd_request_spec *s,
                   struct kd_err *err)
{
    struct kd_request *r;
    pthread_condattr_t attr;
    *out = NULL;
    if (check_spec(e, s, err) || kd_mem_zero(&r, 1, sizeof *r, "request", err))
        return -1;
    r->e = e;
    r->spec = *s;
    kd_buf_init(&r->visible, 1 << 20);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->changed, &attr);
    pthread_condattr_destroy(&attr);
    set_defaults(r);
    if (own(r, &r->spec.prompt, s->prompt, s->prompt_count, sizeof *s->prompt, err) ||
        own(r, &r->spec.bias, s->bias, s->bias_count, sizeof *s->bias, err) ||
        own(r, &r->spec.stop_ids, s->stop_ids, s->stop_id_count, sizeof *s->stop_ids, err) ||
        own(r, &r->spec.stop_bytes, s->stop_bytes, s->stop_count, sizeof *s->stop_bytes, err) ||
        own(r, &r->hooks, s->hooks, s->hooks ? r->spec.choices : 0, sizeof *s->hooks, err) ||
        own_stops(r, s, err) ||
        kd_mem_zero(&r->choices, r->spec.choices, sizeof *r->choices, "choices", err)) {
        kd_request_free(r);
        return -1;
    }
    set_choices(r);
    set_need(r);
    *out = r;
    return 0;
}

void kd_request_free(struct kd_request *r)
{
    for (int64_t i = 0; r->choices && i < r->spec.choices; i++)
        kd_mem_free(r->choices[i].held);
    for (int i = 0; i < r->owned_count; i++)
        kd_mem_free(r->owned[i]);
    kd_mem_free(r->choices);
    kd_mem_free(r->ring);
    kd_buf_release(&r->visible);
    pthread_cond_destroy(&r->changed);
    kd_mem_free(r);
}

static int ring_room(struct kd_request *r, int64_t more)
{
    if (r->ring_used + more <= r->ring_cap)
        return 0;
    int64_t cap = r->ring_cap ? 2 * r->ring_cap : 32;
    struct kd_event *grown;
    while (cap < r->ring_used + more)
        cap *= 2;
    if (kd_mem_new(&grown, cap, sizeof *grown, "events", NULL))
        return -1;
    for (int64_t i = 0; r->ring_cap && i < r->ring_used; i++)
        grown[i] = r->ring[(r->ring_first + i) % r->ring_cap];
    kd_mem_free(r->ring);
    r->ring = grown;
    r->ring_cap = cap;
    r->ring_first = 0;
    return 0;
}

static void count_tokens(struct kd_choice *c, double now)
{
    struct kd_request *r = c->r;
    struct kd_engine_metrics *m = &r->e->m;
    if (c->new_made && r->usage.first_token_s <= 0) {
        r->usage.first_token_s = now - r->submit_s;
        kd_histogram_add(&m->first_token, r->usage.first_token_s);
    }
    for (int64_t i = 0; i < c->new_made && c->last_s > 0; i++)
        kd_histogram_add(&m->per_token, (now - c->last_s) / (double)c->new_made);
    if (c->new_made)
        c->last_s = now;
    r->usage.made_tokens += c->new_made;
    r->usage.draft_tokens += c->new_drafted;
    r->usage.draft_accepted += c->new_accepted;
    r->usage.draft_steps += c->new_draft_steps;
    m->decode_tokens += c->new_made;
    m->draft_tokens += c->new_drafted;
    m->draft_accepted += c->new_accepted;
    c->new_made = c->new_drafted = c->new_accepted = c->new_draft_steps = 0;
}

bool kd_request_publish(struct kd_choice *c, double now)
{
    struct kd_request *r = c->r;
    if (c->told)
        return false;
    bool news = c->ready || c->finish;
    count_tokens(c, now);
    if (c->ready && !ring_room(r, c->ready)) {
        for (int64_t i = 0; i < c->ready; i++)
            r->ring[(r->ring_first + r->ring_used++) % r->ring_cap] = c->held[i].ev;
    } else if (c->ready) {
        r->broken = true;
    }
    if (c->ready) {
        c->held_count -= c->ready;
        memmove(c->held, c->held + c->ready, (size_t)c->held_count * sizeof *c->held);
        c->ready = 0;
    }
    if (!c->finish)
        return news;
    c->told = true;
    r->e->m.finished[c->finish]++;
    if (!--r->open)
        r->end_s = now;
    if (r->broken && r->err.code == KD_OK)
        kd_fail(&r->err, KD_ENOMEM, "no memory for results");
    return news;
}

static struct timespec until(double when)
{
    struct timespec t;
    t.tv_sec = (time_t)when;
    t.tv_nsec = (long)((when - (double)t.tv_sec) * 1e9);
    return t;
}

int64_t kd_request_wait(struct kd_request *r, struct kd_event *events, int64_t max,
                        double timeout_s)
{
    struct kd_engine *e = r->e;
    struct timespec t = until(kd_clock_s() + (timeout_s > 0 ? timeout_s : 0));
    pthread_mutex_lock(&e->lock);
    while (!r->ring_used && r->open && timeout_s > 0)
        if (pthread_cond_timedwait(&r->changed, &e->lock, &t) == ETIMEDOUT)
            break;
    int64_t n = r->ring_used < max ? r->ring_used : max;
    bool was_full = r->ring_used >= e->o.events;
    for (int64_t i = 0; i < n; i++)
        events[i] = r->ring[(r->ring_first + i) % r->ring_cap];
    if (n) {
        r->ring_first = (r->ring_first + n) % r->ring_cap;
        r->ring_used -= n;
    }
    if (was_full && r->ring_used < e->o.events) {
        e->poked = true;
        pthread_cond_signal(&e->wake);
    }
    if (!n && !r->open)
        n = -1;
    pthread_mutex_unlock(&e->lock);
    return n;
}

void kd_request_cancel(struct kd_request *r)
{
    struct kd_engine *e = r->e;
    pthread_mutex_lock(&e->lock);
    r->cancelled = true;
    e->poked = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

void kd_request_release(struct kd_request *r)
{
    if (!r)
        return;
    struct kd_engine *e = r->e;
    kd_request_cancel(r);
    pthread_mutex_lock(&e->lock);
    while (r->where != KD_OVER)
        pthread_cond_wait(&r->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    kd_request_free(r);
}

const struct kd_err *kd_request_error(const struct kd_request *r)
{
    return &r->err;
}

void kd_request_usage(const struct kd_request *r, struct kd_usage *u)
{
    struct kd_engine *e = r->e;
    pthread_mutex_lock(&e->lock);
    double now = r->end_s > 0 ? r->end_s : kd_clock_s();
    *u = r->usage;
    u->running = r->where == KD_RUNNING;
    u->queued_s = (r->admit_s > 0 ? r->admit_s : now) - r->submit_s;
    u->total_s = now - r->submit_s;
    u->place = 0;
    if (r->where == KD_QUEUED)
        for (const struct kd_request *q = e->queue; q && q != r; q = q->next)
            u->place++;
    pthread_mutex_unlock(&e->lock);
}
