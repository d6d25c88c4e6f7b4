/* The memory's plan: what sequences hold is reserved before they hold it, an answer's part as it
 * grows. When nobody can grow, the latest to come gives up its state and keeps its tokens; with
 * memory again, it reads its prompt and replays its own tokens by the recurrence that made them, so
 * its answer goes on with the bits it would have had. */
#include "serve/engine_int.h"

int64_t kd_plan_bytes(const struct kd_engine *e, int64_t tokens)
{
    return e->fixed_bytes + (tokens + KD_K3_PAGE - 1) / KD_K3_PAGE * e->page_bytes;
}

static bool reserve(struct kd_choice *c, int64_t bytes)
{
    struct kd_engine *e = c->r->e;
    kd_idle_drop(e); /* its memory comes after anybody's who is waited for */
    pthread_mutex_lock(&e->lock);
    bool fits = e->reserved + bytes <= e->o.memory_bytes;
    if (fits) {
        e->reserved += bytes;
        c->reserved += bytes;
    }
    pthread_mutex_unlock(&e->lock);
    return fits;
}

/* Tokens to plan for: what is there and the next part of the answer. */
static int64_t next_planned(const struct kd_choice *c)
{
    const struct kd_engine *e = c->r->e;
    int64_t most = c->lane.prompt + c->r->spec.max_tokens, n = c->lane.ids.count + e->o.grow_tokens;
    most = most < e->o.context ? most : e->o.context;
    return n < most ? n : most;
}

bool kd_plan_grow(struct kd_choice *c)
{
    const struct kd_engine *e = c->r->e;
    if (c->lane.ids.count < c->planned)
        return true;
    int64_t n = next_planned(c);
    if (!reserve(c, kd_plan_bytes(e, n) - kd_plan_bytes(e, c->planned)))
        return false;
    c->planned = n;
    return true;
}

bool kd_plan_park_one(struct kd_engine *e)
{
    struct kd_choice *last = NULL;
    for (struct kd_request *r = e->running; r; r = r->next)
        for (int64_t i = 0; i < r->spec.choices; i++)
            if (r->choices[i].stage == KD_STAGE_DECODE && r->choices[i].starved)
                last = &r->choices[i];
    if (!last)
        return false;
    kd_k3_seq_close(last->lane.seq);
    last->lane.seq = NULL;
    last->lane.fed = 0;
    last->stage = KD_STAGE_PARKED;
    last->draftable = last->starved = false;
    pthread_mutex_lock(&e->lock);
    e->reserved -= last->reserved;
    last->reserved = 0;
    e->m.parkings++;
    e->poked = true; /* there may be room now, for this one too */
    pthread_mutex_unlock(&e->lock);
    return true;
}

static bool unpark(struct kd_engine *e, struct kd_choice *c)
{
    int64_t n = next_planned(c), bytes = kd_plan_bytes(e, n), load;
    struct kd_err err;
    c->draftable = !e->device && reserve(c, bytes + kd_k3_draft_bytes(e->cfg));
    if (!c->draftable && !reserve(c, bytes))
        return false;
    c->planned = n;
    c->stage = KD_STAGE_PREFILL;
    if (kd_lane_begin(e, &c->lane, false, &load, &err))
        kd_choice_end(c, KD_FINISH_ERROR, &err);
    return true;
}

bool kd_plan_unpark(struct kd_engine *e)
{
    for (struct kd_request *r = e->running; r; r = r->next)
        for (int64_t i = 0; i < r->spec.choices; i++)
            if (r->choices[i].stage == KD_STAGE_PARKED && !unpark(e, &r->choices[i]))
                return false;
    return true;
}
