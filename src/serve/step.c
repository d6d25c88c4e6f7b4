/* One step: the todo list through the model, then tokens drawn row by row. Feeds that differ in how
 * many experts they use go through the model one group after the other. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/engine_int.h"

#include <string.h>

static bool drafting(const struct kd_todo *t)
{
    return t->c && t->c->stage == KD_STAGE_DECODE && t->c->draft_count;
}

static int wanted(const struct kd_todo *t)
{
    const struct kd_choice *c = t->c;
    bool reads_on = !c || t->lane->fed + t->count < t->lane->prompt;
    if (reads_on || !c->r->spec.max_tokens || (c->made && c->stage != KD_STAGE_DECODE))
        return 0;
    return drafting(t) ? 2 : 1;
}

static bool same_cut(const struct kd_todo *a, const struct kd_todo *b)
{
    return a->lane->key.experts_used == b->lane->key.experts_used &&
           a->lane->key.expert_mass == b->lane->key.expert_mass;
}

/* Whether todo `i` goes through the model together with those from `from` on. */
static bool joins(const struct kd_engine *e, int64_t from, int64_t i)
{
    const struct kd_todo *a = &e->todo[from], *b = &e->todo[i];
    return same_cut(a, b) &&
           (!e->device || (a->count == 1 && b->count == 1 && i - from < KD_K3_DEVICE_FEW));
}

/* Groups of one cut side by side, each in its order. */
static void group(struct kd_engine *e)
{
    for (int64_t i = 1; i < e->todo_count; i++) {
        int64_t to = i;
        for (int64_t j = 0; j < i; j++)
            if (same_cut(&e->todo[j], &e->todo[i]))
                to = j + 1;
        if (to == i)
            continue;
        struct kd_todo t = e->todo[i];
        memmove(&e->todo[to + 1], &e->todo[to], (size_t)(i - to) * sizeof t);
        e->todo[to] = t;
    }
}

/* Feeds and places of logits. */
static int prepare(struct kd_engine *e, struct kd_err *err)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < e->todo_count; i++) {
        struct kd_todo *t = &e->todo[i];
        int want = wanted(t);
        t->row = 0;
        t->rows = want == 2 ? t->count : want;
        rows += t->rows;
        e->feeds[i] = (struct kd_k3_feed){.seq = t->lane->seq,
                                          .ids = t->lane->ids.id + t->lane->fed,
                                          .count = t->count,
                                          .want = want,
                                          .draft = want == 2 || t->draft};
        if (want != 2)
            continue;
        t->ids[0] = t->lane->ids.id[t->lane->fed];
        memcpy(t->ids + 1, t->c->draft, (size_t)t->c->draft_count * sizeof *t->ids);
        e->feeds[i].ids = t->ids;
    }
    if (rows > e->logits_rows) {
        kd_k3_logits_free(e->model, e->logits);
        e->logits = NULL;
        e->logits_rows = 0;
        if (kd_k3_logits_new(e->model, &e->logits, rows, err))
            return -1;
        e->logits_rows = rows;
    }
    rows = 0;
    for (int64_t i = 0; i < e->todo_count; i++) {
        e->todo[i].logits = e->logits ? e->logits + rows * e->cfg->vocab : NULL;
        rows += e->todo[i].rows;
    }
    return 0;
}

static void fail_todo(struct kd_engine *e, struct kd_todo *t, const struct kd_err *err)
{
    t->active = false;
    if (!t->c) {
        kd_idle_drop(e);
        return;
    }
    struct kd_request *r = t->c->r;
    for (int64_t i = 0; i < r->spec.choices; i++)
        if (&r->choices[i] == t->c || r->choices[i].stage == KD_STAGE_SIBLING)
            kd_choice_end(&r->choices[i], KD_FINISH_ERROR, err);
}

/* Through the model. A group that fails ends its choices: their states are no longer known. */
static void forward(struct kd_engine *e)
{
    struct kd_err err;
    bool ready = !prepare(e, &err);
    for (int64_t from = 0, to; from < e->todo_count; from = to) {
        const struct kd_prefix_key *k = &e->todo[from].lane->key;
        struct kd_k3_options o = {.experts_used = k->experts_used,
                                  .expert_mass = k->expert_mass,
                                  .trace = e->trace,
                                  .trace_ctx = e->trace_ctx};
        for (to = from + 1; to < e->todo_count && joins(e, from, to); to++)
            ;
        int rc = ready ? kd_k3_forward(e->model, e->feeds + from, to - from, &o,
                                       e->todo[from].logits, &err)
                       : -1;
        for (int64_t i = from; i < to; i++) {
            e->todo[i].active = !rc;
            if (rc)
                fail_todo(e, &e->todo[i], &err);
        }
        if (rc)
            kd_log(KD_LOG_ERROR, "serve", "msg=\"a step failed: %s\"", err.msg);
        e->bad_steps = rc ? e->bad_steps + 1 : 0;
        if (e->bad_steps >= 3) {
            pthread_mutex_lock(&e->lock);
            e->failed = true;
            e->failure = err;
            pthread_mutex_unlock(&e->lock);
        }
    }
}

/* The prompt is read: the other choices of the request set out from here, with the same logits. */
static void fan_out(struct kd_engine *e, const struct kd_todo *t)
{
    struct kd_request *r = t->c->r;
    const struct kd_lane *from = t->lane;
    if (r->spec.max_tokens)
        kd_lane_keep_end(e, from, t->logits);
    for (int64_t i = 0; i < r->spec.choices; i++) {
        struct kd_choice *c = &r->choices[i];
        struct kd_err err;
        if (c->stage != KD_STAGE_SIBLING && c != t->c)
            continue;
        if (!r->spec.max_tokens) {
            kd_choice_end(c, KD_FINISH_LENGTH, NULL);
            continue;
        }
        if (c != t->c) {
            if (kd_k3_seq_copy(&c->lane.seq, from->seq, &err)) {
                kd_choice_end(c, KD_FINISH_ERROR, &err);
                continue;
            }
            c->lane.fed = from->fed;
            e->todo[e->todo_count++] = (struct kd_todo){
                .c = c, .lane = &c->lane, .logits = t->logits, .rows = 1, .active = true};
        }
        c->stage = KD_STAGE_DECODE;
    }
}

/* Prompts that were read before begin their answers here. */
static void begin_read(struct kd_engine *e)
{
    for (struct kd_request *r = e->running; r; r = r->next) {
        struct kd_choice *c = &r->choices[0];
        if (c->stage != KD_STAGE_READ)
            continue;
        struct kd_todo *t = &e->todo[e->todo_count++];
        *t = (struct kd_todo){
            .c = c, .lane = &c->lane, .logits = c->logits, .rows = 1, .active = true};
        fan_out(e, t);
    }
}

/* A parked choice on its way back to where it was. */
static void back_again(struct kd_choice *c)
{
    if (c->lane.fed == c->lane.ids.count - 1)
        c->stage = KD_STAGE_DECODE;
    else if (c->lane.fed >= c->lane.prompt)
        c->stage = KD_STAGE_REPLAY;
}

/* What was fed is in: positions, checkpoints. */
static void advance(struct kd_engine *e)
{
    for (int64_t i = 0, n = e->todo_count; i < n; i++) {
        struct kd_todo *t = &e->todo[i];
        if (!t->active)
            continue;
        t->lane->fed += t->count;
        if (t->c && t->c->stage == KD_STAGE_DECODE)
            continue;
        if (t->lane->fed <= t->lane->prompt)
            kd_lane_checkpoint(e, t->lane);
        if (t->c && t->c->made)
            back_again(t->c);
        else if (t->c && t->lane->fed == t->lane->prompt)
            fan_out(e, t);
    }
    begin_read(e);
    for (int64_t i = 0; i < e->todo_count; i++)
        e->todo[i].active = e->todo[i].active && e->todo[i].rows > 0;
}

static void pick_item(void *ctx, int64_t i, int worker)
{
    struct kd_engine *e = ctx;
    struct kd_todo *t = e->round[i];
    int64_t v = e->cfg->vocab;
    if (t->rc)
        return;
    t->rc = kd_pick_token(&t->c->pick, t->c->counts, t->mask, t->logits + t->row * v, v,
                          t->lane->ids.count, e->scratch + worker * v, &t->picked, &t->err);
}

static void ask_mask(struct kd_engine *e, struct kd_todo *t, uint64_t *bits)
{
    const struct kd_hooks *h = t->c->r->hooks ? &t->c->r->hooks[t->c->index] : NULL;
    t->rc = 0;
    t->mask = NULL;
    if (!h || !h->mask)
        return;
    memset(bits, 0xff, (size_t)e->mask_words * sizeof *bits);
    int rc = h->mask(h->ctx, bits, e->cfg->vocab, &t->err);
    t->mask = rc > 0 ? bits : NULL;
    t->rc = rc < 0 ? -1 : 0;
}

/* After the last token that counts: drafts that were wrong are taken back. */
static void settle_draft(struct kd_todo *t)
{
    struct kd_choice *c = t->c;
    struct kd_err err;
    if (t->rows < 2) {
        c->since_draft++;
        return;
    }
    int64_t accepted = t->row; /* rows before the last one drawn from agreed */
    kd_draft_result(c, accepted);
    c->new_drafted += c->draft_count;
    c->new_accepted += accepted;
    c->new_draft_steps++;
    c->lane.fed -= t->count - (accepted + 1);
    c->draft_count = 0;
    if (c->stage != KD_STAGE_ENDED && kd_k3_seq_keep(c->lane.seq, accepted + 1, &err))
        kd_choice_end(c, KD_FINISH_ERROR, &err);
}

static void take(struct kd_todo *t)
{
    struct kd_choice *c = t->c;
    if (t->rc)
        kd_choice_end(c, KD_FINISH_ERROR, &t->err);
    else
        kd_choice_token(c, &t->picked);
    bool goes_on =
        c->stage != KD_STAGE_ENDED && t->row + 1 < t->rows && t->picked.id == c->draft[t->row];
    if (goes_on) {
        t->row++;
        return;
    }
    t->active = false;
    settle_draft(t);
}

/* Draws the tokens of all rows; of a draft as long as it is right. */
static void draw(struct kd_engine *e)
{
    for (;;) {
        int64_t n = 0;
        for (int64_t i = 0; i < e->todo_count; i++)
            if (e->todo[i].active) {
                ask_mask(e, &e->todo[i], e->masks + n * e->mask_words);
                e->round[n++] = &e->todo[i];
            }
        if (!n)
            return;
        kd_pool_run(e->run.pool, n, pick_item, e);
        for (int64_t i = 0; i < n; i++)
            take(e->round[i]);
    }
}

static void smooth(double *rate, double value)
{
    *rate = *rate > 0 ? *rate + 0.2 * (value - *rate) : value;
}

void kd_step_run(struct kd_engine *e)
{
    double start = kd_clock_s();
    int64_t prefill = 0, idle = 0;
    e->decode_rows = 0;
    for (int64_t i = 0; i < e->todo_count; i++) {
        const struct kd_todo *t = &e->todo[i];
        if (!t->c)
            idle += t->count;
        else if (t->c->stage == KD_STAGE_DECODE)
            e->decode_rows += t->count;
        else
            prefill += t->count;
    }
    group(e);
    forward(e);
    double seconds = kd_clock_s() - start;
    advance(e);
    draw(e);
    if (!prefill && !idle && e->decode_rows)
        kd_cost_add(&e->cost, (double)e->decode_rows, seconds);
    if (prefill + idle)
        smooth(&e->prefill_rate, (double)(prefill + idle) / seconds);
    if (e->decode_rows)
        smooth(&e->decode_rate, (double)e->decode_rows / seconds);
    pthread_mutex_lock(&e->lock);
    struct kd_engine_metrics *m = &e->m;
    m->steps++;
    m->prefill_tokens += prefill;
    m->idle_prefill_tokens += idle;
    m->busy_s += seconds;
    m->prefill_rate = e->prefill_rate;
    m->decode_rate = e->decode_rate;
    kd_histogram_add(&m->step, seconds);
    pthread_mutex_unlock(&e->lock);
}
