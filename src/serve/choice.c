/* The worker's side of one choice: a token is entered, its text searched for stop strings, and what
 * is certain made ready to go out. */
#include "base/mem.h"
#include "serve/engine_int.h"

#include <string.h>

int kd_choice_begin(struct kd_choice *c, struct kd_err *err)
{
    struct kd_request *r = c->r;
    const struct kd_request_spec *s = &r->spec;
    c->accept = 0.5;
    c->lane.prompt = s->prompt_count;
    c->lane.key.experts_used = s->experts_used;
    c->lane.key.expert_mass = s->expert_mass;
    memcpy(c->lane.key.owner, s->owner, strlen(s->owner));
    kd_stop_scan_init(&c->scan);
    for (int64_t i = 0; i < s->prompt_count; i++)
        if (kd_ids_add(&c->lane.ids, s->prompt[i], err))
            return -1;
    if (!kd_pick_counts(&c->pick))
        return 0;
    if (kd_mem_zero(&c->counts, r->e->cfg->vocab, sizeof *c->counts, "penalties", err))
        return -1;
    for (int64_t i = 0; i < s->prompt_count; i++)
        c->counts[s->prompt[i]] = KD_PICK_PROMPT;
    return 0;
}

void kd_choice_release(struct kd_choice *c)
{
    struct kd_engine *e = c->r->e;
    kd_lane_release(&c->lane);
    kd_ngram_release(&c->ngram);
    kd_stop_scan_release(&c->scan);
    kd_mem_free(c->counts);
    kd_mem_free(c->logits);
    c->counts = NULL;
    c->logits = NULL;
    pthread_mutex_lock(&e->lock);
    e->reserved -= c->reserved;
    c->reserved = 0;
    pthread_mutex_unlock(&e->lock);
}

static int hold(struct kd_choice *c, const struct kd_event *ev, int64_t begin, int64_t end,
                struct kd_err *err)
{
    if (c->held_count == c->held_cap) {
        int64_t cap = c->held_cap ? 2 * c->held_cap : 16;
        struct kd_held *grown;
        if (kd_mem_new(&grown, cap, sizeof *grown, "events", err))
            return -1;
        if (c->held_count)
            memcpy(grown, c->held, (size_t)c->held_count * sizeof *grown);
        kd_mem_free(c->held);
        c->held = grown;
        c->held_cap = cap;
    }
    c->held[c->held_count++] = (struct kd_held){*ev, begin, end};
    return 0;
}

/* The last event held carries the end. */
static void finish(struct kd_choice *c, enum kd_finish why)
{
    struct kd_event *ev = &c->held[c->held_count - 1].ev;
    ev->finish = why;
    ev->stop = c->stop;
    c->ready = c->held_count;
    c->finish = why;
    c->stage = KD_STAGE_ENDED;
}

void kd_choice_end(struct kd_choice *c, enum kd_finish why, const struct kd_err *err)
{
    struct kd_request *r = c->r;
    struct kd_event ev = {.choice = c->index, .id = -1, .keep_bytes = -1, .stop = -1};
    if (c->stage == KD_STAGE_ENDED)
        return;
    if (err) {
        pthread_mutex_lock(&r->e->lock);
        if (r->err.code == KD_OK)
            r->err = *err;
        pthread_mutex_unlock(&r->e->lock);
    }
    /* Without memory for its last event the choice still ends: kd_request_wait returns -1. */
    if (hold(c, &ev, c->seen, c->seen, NULL)) {
        c->finish = why;
        c->stage = KD_STAGE_ENDED;
        c->ready = c->held_count;
        return;
    }
    finish(c, why);
}

/* The text a token makes visible, into r->visible. */
static int see(struct kd_choice *c, int32_t id, struct kd_err *err)
{
    struct kd_request *r = c->r;
    const struct kd_hooks *h = r->hooks ? &r->hooks[c->index] : NULL;
    const struct kd_tok *tok = r->e->tok;
    kd_buf_clear(&r->visible);
    if (h && h->token) {
        if (h->token(h->ctx, id, &r->visible, err))
            return -1;
    } else if (!kd_tok_is_special(tok, id)) {
        size_t n;
        const char *text = kd_tok_bytes(tok, id, &n);
        if (text)
            kd_buf_add(&r->visible, text, n);
    }
    return kd_buf_ok(&r->visible, "visible text of one token", err);
}

/* A stop string is complete: it begins at scan.certain. */
static void stop_at_match(struct kd_choice *c)
{
    int64_t at = c->scan.certain, n = 0;
    while (n < c->held_count && c->held[n].end <= at)
        n++;
    c->stop = (int32_t)c->scan.match;
    if (n < c->held_count && c->held[n].begin < at) {
        c->held[n].ev.keep_bytes = at - c->held[n].begin;
        c->held_count = n + 1;
        finish(c, KD_FINISH_STOP);
        return;
    }
    c->held_count = n;
    kd_choice_end(c, KD_FINISH_STOP, NULL);
}

static bool stops(const struct kd_choice *c, int32_t id)
{
    const struct kd_request_spec *s = &c->r->spec;
    if (s->ignore_eos)
        return false;
    if (id == c->r->e->cfg->eos)
        return true;
    for (int64_t i = 0; i < s->stop_id_count; i++)
        if (s->stop_ids[i] == id)
            return true;
    return false;
}

static struct kd_event event_of(const struct kd_choice *c, const struct kd_picked *p)
{
    struct kd_event ev = {.choice = c->index,
                          .id = p->id,
                          .keep_bytes = -1,
                          .logprob = p->logprob,
                          .top_count = p->top_count,
                          .stop = -1};
    ev.text = kd_tok_bytes(c->r->e->tok, p->id, &ev.text_bytes);
    memcpy(ev.top, p->top, sizeof ev.top);
    return ev;
}

void kd_choice_token(struct kd_choice *c, const struct kd_picked *p)
{
    struct kd_request *r = c->r;
    struct kd_event ev = event_of(c, p);
    struct kd_err err;
    if (kd_ids_add(&c->lane.ids, p->id, &err) || see(c, p->id, &err)) {
        kd_choice_end(c, KD_FINISH_ERROR, &err);
        return;
    }
    c->made++;
    c->new_made++;
    if (c->counts)
        c->counts[p->id]++;
    int64_t begin = c->seen;
    c->seen += (int64_t)r->visible.size_bytes;
    if (hold(c, &ev, begin, c->seen, &err) ||
        kd_stop_scan_add(&c->scan, &r->stops, r->visible.data, r->visible.size_bytes, &err)) {
        kd_choice_end(c, KD_FINISH_ERROR, &err);
        return;
    }
    if (c->scan.match >= 0)
        stop_at_match(c);
    else if (stops(c, p->id))
        finish(c, KD_FINISH_STOP);
    else if (c->made >= r->spec.max_tokens || c->lane.ids.count >= r->e->o.context)
        finish(c, KD_FINISH_LENGTH);
    while (c->ready < c->held_count && c->held[c->ready].end <= c->scan.certain)
        c->ready++;
}
