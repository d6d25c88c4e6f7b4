#include "serve/engine.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "serve/engine_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int64_t machine_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (int64_t)pages * size : (int64_t)1 << 30;
}

static void set_default(int64_t *v, int64_t value)
{
    if (*v == 0)
        *v = value;
}

static int set_options(struct kd_engine *e, const struct kd_engine_options *o, struct kd_err *err)
{
    struct kd_engine_options *p = &e->o;
    *p = *o;
    set_default(&p->max_running, 16);
    set_default(&p->max_queued, 64);
    set_default(&p->max_queued_owner, p->max_queued);
    set_default(&p->memory_bytes, machine_memory() / 4);
    set_default(&p->grow_tokens, 4096);
    set_default(&p->chunk, 512);
    set_default(&p->cache_bytes, p->memory_bytes / 4);
    set_default(&p->disk_bytes, (int64_t)16 << 30);
    set_default(&p->disk_min_tokens, 512);
    set_default(&p->checkpoint_tokens, 8192);
    set_default(&p->events, 256);
    set_default(&p->draft_max, 4);
    if (p->step_ms <= 0)
        p->step_ms = 250;
    if (p->draft_max >= KD_K3_DRAFT_MAX)
        p->draft_max = KD_K3_DRAFT_MAX - 1;
    p->disk_dir = NULL; /* e->disk_dir is the copy */
    p->model = NULL;
    if (p->max_running < 1 || p->max_running > 4096 || p->max_queued < 0 || p->chunk < KD_K3_PAGE ||
        p->chunk % KD_K3_PAGE || p->checkpoint_tokens < KD_K3_PAGE ||
        p->checkpoint_tokens % KD_K3_PAGE || p->grow_tokens < 1 || p->events < 1 ||
        p->memory_bytes < 0)
        return kd_fail(err, KD_EINVAL, "an option of the engine is outside its range");
    return 0;
}

/* Sequences and cached states lie on the model's device. */
static int plan_device(struct kd_engine *e, const struct kd_engine_options *o, struct kd_err *err)
{
    int64_t room;
    if (kd_k3_room(e->model, &room, err))
        return -1;
    room -= room / 16; /* pages come by the slab */
    if (!o->memory_bytes)
        e->o.memory_bytes = room / 5 * 4;
    if (!o->cache_bytes)
        e->o.cache_bytes = o->memory_bytes ? o->memory_bytes / 4 : room / 5;
    int64_t all = e->o.memory_bytes + (e->o.cache_bytes > 0 ? e->o.cache_bytes : 0);
    if (all > room)
        return kd_fail(err, KD_EINVAL,
                       "%lld bytes are planned for sequences and the prompts that are kept; the "
                       "device has %lld left for them",
                       (long long)all, (long long)room);
    e->device = true;
    e->o.draft_max = -1;
    return 0;
}

/* States differ in their last bits from one arithmetic to another, which a prompt's answer should
 * not depend on. */
static int hash_states(struct kd_engine *e, const struct kd_k3_open *o, struct kd_err *err)
{
    char text[80];
    int n = snprintf(text, sizeof text, "%s %s %s", e->hash, e->device ? "device" : "cpu",
                     o && o->fast ? "fast" : "exact");
    return kd_sha256_of(text, (size_t)n, e->state_hash, err);
}

static int open_model(struct kd_engine *e, const char *dir, const struct kd_engine_options *o,
                      struct kd_err *err)
{
    e->run.kern = &e->kern;
    if (kd_kern_pick(&e->kern, err) || kd_pool_open(&e->run.pool, e->o.threads, err) ||
        kd_k3_open(&e->model, dir, &e->run, o->model, err) || kd_tok_open(&e->tok, dir, err) ||
        (o->model && o->model->device && plan_device(e, o, err)))
        return -1;
    e->cfg = kd_k3_config(e->model);
    if (e->o.context <= 0 || e->o.context > e->cfg->context)
        e->o.context = e->cfg->context;
    e->fixed_bytes = kd_k3_state_bytes(e->cfg, 0);
    e->page_bytes = kd_k3_state_bytes(e->cfg, KD_K3_PAGE) - e->fixed_bytes;
    if (e->o.memory_bytes < e->fixed_bytes + e->page_bytes)
        return kd_fail(err, KD_EINVAL,
                       "%lld bytes are planned for sequences; one of this model takes %lld",
                       (long long)e->o.memory_bytes, (long long)(e->fixed_bytes + e->page_bytes));
    return kd_k3_fingerprint(e->model, e->hash, err) || hash_states(e, o->model, err) ? -1 : 0;
}

static int open_work(struct kd_engine *e, struct kd_err *err)
{
    int64_t n = e->o.max_running + 1, threads = kd_pool_threads(e->run.pool);
    e->mask_words = (e->cfg->vocab + 63) / 64;
    return kd_mem_zero(&e->todo, n, sizeof *e->todo, "work list", err) ||
                   kd_mem_zero(&e->feeds, n, sizeof *e->feeds, "work list", err) ||
                   kd_mem_zero(&e->round, n, sizeof(struct kd_todo *), "work list", err) ||
                   kd_mem_zero(&e->masks, n, e->mask_words * (int64_t)sizeof *e->masks, "masks",
                               err) ||
                   kd_mem_zero(&e->scratch, threads, e->cfg->vocab * (int64_t)sizeof *e->scratch,
                               "sampling", err)
               ? -1
               : 0;
}

static void poke(void *ctx)
{
    struct kd_engine *e = ctx;
    pthread_mutex_lock(&e->lock);
    e->poked = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

static int open_cache(struct kd_engine *e, struct kd_err *err)
{
    struct kd_prefix_options o = {.bytes = e->o.cache_bytes,
                                  .dir = e->disk_dir,
                                  .disk_bytes = e->o.disk_bytes,
                                  .disk_min_tokens = e->o.disk_min_tokens,
                                  .loaded = poke,
                                  .ctx = e};
    return e->o.cache_bytes > 0 ? kd_prefix_open(&e->prefix, e->model, e->state_hash, &o, err) : 0;
}

int kd_engine_open(struct kd_engine **out, const char *dir, const struct kd_engine_options *o,
                   struct kd_err *err)
{
    struct kd_engine *e;
    pthread_condattr_t attr;
    *out = NULL;
    if (kd_mem_zero(&e, 1, sizeof *e, "engine", err))
        return -1;
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->wake, &attr);
    pthread_cond_init(&e->idle, &attr);
    pthread_condattr_destroy(&attr);
    int rc = set_options(e, o, err);
    if (!rc && o->disk_dir) {
        size_t n = strlen(o->disk_dir) + 1;
        rc = kd_mem_new(&e->disk_dir, (int64_t)n, 1, "path", err);
        if (!rc)
            memcpy(e->disk_dir, o->disk_dir, n);
    }
    if (!rc)
        rc = open_model(e, dir, o, err) || open_work(e, err) || open_cache(e, err) ? -1 : 0;
    if (!rc && pthread_create(&e->worker, NULL, kd_sched_thread, e))
        rc = kd_fail(err, KD_ENOMEM, "no thread for the engine");
    if (rc) {
        kd_engine_close(e);
        return -1;
    }
    e->started = true;
    *out = e;
    return 0;
}

void kd_engine_close(struct kd_engine *e)
{
    if (!e)
        return;
    if (e->started) {
        pthread_mutex_lock(&e->lock);
        e->stop = e->draining = true;
        pthread_cond_signal(&e->wake);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->worker, NULL);
    }
    kd_idle_release(e);
    kd_prefix_close(e->prefix);
    kd_k3_logits_free(e->model, e->logits);
    kd_k3_close(e->model);
    kd_tok_close(e->tok);
    kd_pool_close(e->run.pool);
    kd_mem_free(e->todo);
    kd_mem_free(e->feeds);
    kd_mem_free(e->round);
    kd_mem_free(e->masks);
    kd_mem_free(e->scratch);
    kd_mem_free(e->disk_dir);
    pthread_cond_destroy(&e->wake);
    pthread_cond_destroy(&e->idle);
    pthread_mutex_destroy(&e->lock);
    kd_mem_free(e);
}

int kd_engine_drain(struct kd_engine *e, double timeout_s)
{
    double when = kd_clock_s() + timeout_s;
    struct timespec t = {(time_t)when, (long)((when - (double)(time_t)when) * 1e9)};
    pthread_mutex_lock(&e->lock);
    e->draining = true;
    while (e->queue || e->running)
        if (pthread_cond_timedwait(&e->idle, &e->lock, &t) == ETIMEDOUT)
            break;
    int rc = e->queue || e->running ? -1 : 0;
    for (struct kd_request *r = e->queue; r; r = r->next)
        r->cancelled = true;
    for (struct kd_request *r = e->running; r; r = r->next)
        r->cancelled = true;
    e->poked = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    return rc;
}

const struct kd_tok *kd_engine_tok(const struct kd_engine *e)
{
    return e->tok;
}

const struct kd_k3_cfg *kd_engine_config(const struct kd_engine *e)
{
    return e->cfg;
}

const struct kd_ckpt *kd_engine_ckpt(const struct kd_engine *e)
{
    return kd_k3_ckpt(e->model);
}

const char *kd_engine_model_hash(const struct kd_engine *e)
{
    return e->hash;
}

void kd_engine_trace(struct kd_engine *e,
                     void (*trace)(void *ctx, int64_t layer, int64_t seq, int64_t pos,
                                   const int32_t *ids, const float *w),
                     void *ctx)
{
    e->trace = trace;
    e->trace_ctx = ctx;
}

int64_t kd_engine_room(const struct kd_engine *e, int64_t prompt_count, int64_t choices)
{
    int64_t whole = prompt_count / KD_K3_PAGE, n = choices ? choices : 1;
    if (prompt_count < 1 || n < 1 || n > e->o.max_running || prompt_count > e->o.context)
        return -1;
    int64_t each = (e->o.memory_bytes - whole * e->page_bytes) / n - e->fixed_bytes;
    int64_t pages = each < 0 ? -1 : each / e->page_bytes;
    int64_t fits = pages < 0 ? -1 : (whole + pages) * KD_K3_PAGE - prompt_count;
    int64_t left = e->o.context - prompt_count;
    return fits < 0 ? -1 : fits < left ? fits : left;
}

/* Lock held. Seconds until a place in the queue is likely free. */
static double retry_after(const struct kd_engine *e)
{
    double one = e->service_s > 0 ? e->service_s : 1.0;
    double s = one * (double)(e->queued + 1) / (double)e->o.max_running;
    return s < 1.0 ? 1.0 : s > 600.0 ? 600.0 : s;
}

/* Lock held. */
static enum kd_refusal may_queue(const struct kd_engine *e, const struct kd_request *r,
                                 struct kd_refused *refused, struct kd_err *err)
{
    int64_t own = 0;
    for (const struct kd_request *q = e->queue; q; q = q->next)
        own += !strcmp(q->spec.owner, r->spec.owner);
    if (e->draining) {
        kd_fail(err, KD_ECANCEL, "the server is shutting down");
        return KD_REFUSE_DRAINING;
    }
    if (e->failed) {
        *err = e->failure;
        return KD_REFUSE_ERROR;
    }
    if (e->queued >= e->o.max_queued || own >= e->o.max_queued_owner) {
        refused->retry_s = retry_after(e);
        kd_fail(err, KD_ETIMEOUT, "%lld requests wait already; try again in %.0f s",
                (long long)e->queued, refused->retry_s);
        return KD_REFUSE_FULL;
    }
    return KD_REFUSE_NONE;
}

static int too_long(const struct kd_engine *e, const struct kd_request *r, struct kd_err *err)
{
    if (r->spec.prompt_count > e->o.context ||
        (r->spec.max_tokens && r->spec.prompt_count == e->o.context))
        return kd_fail(err, KD_EINVAL, "a prompt of %lld tokens: the context is %lld",
                       (long long)r->spec.prompt_count, (long long)e->o.context);
    if (r->most_bytes > e->o.memory_bytes)
        return kd_fail(err, KD_EINVAL,
                       "%lld tokens of prompt and up to %lld more, %lld times, take %lld bytes; "
                       "%lld are planned for sequences",
                       (long long)r->spec.prompt_count, (long long)r->spec.max_tokens,
                       (long long)r->spec.choices, (long long)r->most_bytes,
                       (long long)e->o.memory_bytes);
    return 0;
}

static void count_refusal(struct kd_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->m.refused++;
    pthread_mutex_unlock(&e->lock);
}

int kd_engine_submit(struct kd_engine *e, const struct kd_request_spec *spec,
                     struct kd_request **out, struct kd_refused *refused, struct kd_err *err)
{
    struct kd_request *r;
    *out = NULL;
    *refused = (struct kd_refused){0};
    if (kd_request_new(&r, e, spec, err)) {
        refused->why = err->code == KD_EINVAL ? KD_REFUSE_BAD : KD_REFUSE_ERROR;
        count_refusal(e);
        return -1;
    }
    if (too_long(e, r, err)) {
        refused->why = KD_REFUSE_TOO_LONG;
        kd_request_free(r);
        count_refusal(e);
        return -1;
    }
    pthread_mutex_lock(&e->lock);
    refused->why = may_queue(e, r, refused, err);
    if (refused->why == KD_REFUSE_NONE) {
        struct kd_request **end = &e->queue;
        while (*end)
            end = &(*end)->next;
        *end = r;
        e->queued++;
        e->m.requests++;
        e->poked = true;
        pthread_cond_signal(&e->wake);
    } else {
        e->m.refused++;
    }
    pthread_mutex_unlock(&e->lock);
    if (refused->why != KD_REFUSE_NONE) {
        kd_request_free(r);
        return -1;
    }
    *out = r;
    return 0;
}

void kd_engine_metrics(struct kd_engine *e, struct kd_engine_metrics *m)
{
    struct kd_prefix_figures f = {0};
    if (e->prefix)
        kd_prefix_figures(e->prefix, &f);
    pthread_mutex_lock(&e->lock);
    *m = e->m;
    m->queued = e->queued;
    m->running = e->running_choices;
    m->memory_planned_bytes = e->o.memory_bytes;
    m->memory_used_bytes = e->reserved;
    pthread_mutex_unlock(&e->lock);
    m->cpu_s = kd_clock_thread_s(e->worker) + kd_pool_cpu_s(e->run.pool);
    m->cache_bytes = f.bytes;
    m->cache_entries = f.entries;
    m->cache_evicted = f.evicted;
    m->disk_hits = f.disk_hits;
    m->disk_bytes = f.disk_bytes;
    m->disk_entries = f.disk_entries;
    m->disk_written = f.disk_written;
    m->disk_refused = f.disk_refused;
    m->draft_rate = m->draft_tokens ? (double)m->draft_accepted / (double)m->draft_tokens : 0;
}

int64_t kd_engine_slots(struct kd_engine *e, struct kd_slot *out, int64_t max)
{
    const struct kd_request *lists[2];
    int64_t n = 0;
    pthread_mutex_lock(&e->lock);
    double now = kd_clock_s();
    lists[0] = e->running;
    lists[1] = e->queue;
    for (int l = 0; l < 2; l++)
        for (const struct kd_request *r = lists[l]; r && n < max; r = r->next) {
            struct kd_slot *s = &out[n++];
            *s = (struct kd_slot){.running = l == 0,
                                  .choices = r->open,
                                  .prompt_tokens = r->usage.prompt_tokens,
                                  .cached_tokens = r->usage.cached_tokens,
                                  .made_tokens = r->usage.made_tokens,
                                  .queued_s = (l ? now : r->admit_s) - r->submit_s,
                                  .running_s = l ? 0 : now - r->admit_s};
            memcpy(s->owner, r->spec.owner, sizeof s->owner);
        }
    pthread_mutex_unlock(&e->lock);
    return n;
}

bool kd_engine_healthy(struct kd_engine *e, struct kd_err *err)
{
    pthread_mutex_lock(&e->lock);
    bool well = !e->failed;
    if (!well && err)
        *err = e->failure;
    pthread_mutex_unlock(&e->lock);
    return well;
}
