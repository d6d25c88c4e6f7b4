/* Putting the battery to two models. Each expected turn is first given to a model as a whole
 * (teacher forced): that yields the KLD, and where the model's own choice is the expected id at
 * every position, greedy generation gives exactly this turn. Only turns that leave the expected
 * path are generated on from there. */
#include "gate/battery.h"

#include "base/mem.h"
#include "base/progress.h"
#include "gate/kld.h"
#include "model/k3.h"
#include "text/chat.h"

#include <string.h>

enum { BATCH = 32, BATCH_BYTES = 128 << 20 };

struct turn {
    struct kd_ids prompt, want; /* ids of the request, of the expected turn */
    struct kd_ids got;          /* what a model makes of it */
    int64_t row;                /* first of its rows in the batch's positions */
};

struct run {
    struct kd_k3_model *model[2]; /* src, dst */
    int sides;                    /* 1: src alone */
    const struct kd_battery_file *file;
    const struct kd_run *run;
    struct kd_tok *tok;
    int32_t stop[2];
    int64_t vocab;
    bool *exact[2], *call[2]; /* [requests] */
    double kld_sum;
    int64_t tokens, same;
    struct turn turn[BATCH];
    struct kd_k3_seq *seq[BATCH];
    int64_t count; /* turns of the batch */
    int64_t rows;
    struct kd_pos *pos; /* [rows] */
};

static int load_turn(struct run *r, const struct kd_battery_item *it, struct turn *t,
                     struct kd_err *err)
{
    struct kd_chat chat = {0};
    t->prompt.count = t->want.count = 0;
    int rc = kd_chat_render(&chat, it->request, it->request_bytes, err) ||
             kd_chat_ids(&chat, r->tok, &t->prompt, err) ||
             kd_chat_markup_ids(r->tok, it->expected, it->expected_bytes, &t->want, err);
    kd_chat_release(&chat);
    if (!rc && (!t->prompt.count || !t->want.count))
        rc = kd_fail(err, KD_ECORRUPT, "it has no prompt or no expected turn");
    return rc ? -1 : 0;
}

/* As many turns as fit: their expected rows' logits of both models are held at once. */
static int load_batch(struct run *r, int64_t first, struct kd_err *err)
{
    r->count = r->rows = 0;
    while (r->count < BATCH && first + r->count < r->file->count) {
        struct turn *t = &r->turn[r->count];
        if (load_turn(r, &r->file->item[first + r->count], t, err))
            return kd_wrap(err, "battery request %lld", (long long)(first + r->count));
        if (r->count && (r->rows + t->want.count) * r->vocab * 8 > BATCH_BYTES)
            break;
        t->row = r->rows;
        r->rows += t->want.count;
        r->count++;
    }
    return 0;
}

static void close_seqs(struct run *r)
{
    for (int i = 0; i < BATCH; i++)
        if (r->seq[i]) {
            kd_k3_seq_close(r->seq[i]);
            r->seq[i] = NULL;
        }
}

static int force(struct run *r, struct kd_k3_model *m, float *logits, struct kd_err *err)
{
    struct kd_k3_feed feed[BATCH];
    struct kd_ids tail[BATCH] = {{0}};
    int64_t n = 0;
    int rc = 0;
    for (int64_t i = 0; i < r->count && !rc; i++) {
        struct turn *t = &r->turn[i];
        rc = kd_k3_seq_open(&r->seq[i], m, err);
        if (!rc && t->prompt.count > 1)
            feed[n++] = (struct kd_k3_feed){
                .seq = r->seq[i], .ids = t->prompt.id, .count = t->prompt.count - 1, .want = 0};
    }
    if (!rc && n)
        rc = kd_k3_forward(m, feed, n, NULL, NULL, err);
    /* The last prompt id and all but the last expected one: a row of logits for each expected id.
     */
    for (int64_t i = 0; i < r->count && !rc; i++) {
        struct turn *t = &r->turn[i];
        rc = kd_ids_add(&tail[i], t->prompt.id[t->prompt.count - 1], err);
        for (int64_t j = 0; j + 1 < t->want.count && !rc; j++)
            rc = kd_ids_add(&tail[i], t->want.id[j], err);
        feed[i] = (struct kd_k3_feed){
            .seq = r->seq[i], .ids = tail[i].id, .count = tail[i].count, .want = 2};
    }
    if (!rc)
        rc = kd_k3_forward(m, feed, r->count, NULL, logits, err);
    for (int64_t i = 0; i < r->count; i++)
        kd_ids_release(&tail[i]);
    close_seqs(r);
    return rc;
}

static int32_t best(const float *logits, int64_t vocab)
{
    int64_t at = 0;
    for (int64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[at])
            at = i;
    return (int32_t)at;
}

static bool over(const struct run *r, const struct turn *t)
{
    int32_t last = t->got.id[t->got.count - 1];
    return last == r->stop[0] || last == r->stop[1] ||
           t->got.count >= t->want.count + t->want.count / 2 + 32;
}

/* Fills got with the expected ids up to the model's first other choice, that choice included. */
static int begin_turn(const struct run *r, struct turn *t, bool dst, struct kd_err *err)
{
    t->got.count = 0;
    for (int64_t j = 0; j < t->want.count; j++) {
        const struct kd_pos *p = &r->pos[t->row + j];
        int32_t id = dst ? p->top_dst : p->top_src;
        if (kd_ids_add(&t->got, id, err))
            return -1;
        if (id != t->want.id[j])
            break;
    }
    return 0;
}

static bool is_exact(const struct turn *t)
{
    return t->got.count == t->want.count &&
           !memcmp(t->got.id, t->want.id, (size_t)t->want.count * sizeof *t->want.id);
}

/* Greedy, all unfinished turns of the batch together. */
static int go_on(struct run *r, struct kd_k3_model *m, float *logits, struct kd_err *err)
{
    struct kd_k3_feed feed[BATCH];
    struct kd_ids start[BATCH] = {{0}};
    struct turn *who[BATCH];
    int64_t n = 0;
    int rc = 0;
    for (int64_t i = 0; i < r->count && !rc; i++) {
        struct turn *t = &r->turn[i];
        if (is_exact(t) || over(r, t))
            continue;
        rc = kd_k3_seq_open(&r->seq[i], m, err);
        for (int64_t j = 0; j < t->prompt.count && !rc; j++)
            rc = kd_ids_add(&start[n], t->prompt.id[j], err);
        for (int64_t j = 0; j < t->got.count && !rc; j++)
            rc = kd_ids_add(&start[n], t->got.id[j], err);
        who[n] = t;
        feed[n] = (struct kd_k3_feed){
            .seq = r->seq[i], .ids = start[n].id, .count = start[n].count, .want = 1};
        n++;
    }
    int64_t made = n;
    while (n && !rc) {
        rc = kd_k3_forward(m, feed, n, NULL, logits, err);
        int64_t left = 0;
        for (int64_t i = 0; i < n && !rc; i++) {
            struct turn *t = who[i];
            rc = kd_ids_add(&t->got, best(logits + i * r->vocab, r->vocab), err);
            if (rc || over(r, t))
                continue;
            who[left] = t;
            feed[left++] = (struct kd_k3_feed){
                .seq = feed[i].seq, .ids = &t->got.id[t->got.count - 1], .count = 1, .want = 1};
        }
        n = left;
    }
    for (int64_t i = 0; i < made; i++)
        kd_ids_release(&start[i]);
    close_seqs(r);
    return rc;
}

static int judge(struct run *r, const struct turn *t, const struct kd_battery_item *it, bool *exact,
                 bool *call, struct kd_err *err)
{
    struct kd_turn_text text = {0};
    struct kd_json *calls;
    *exact = is_exact(t);
    if (kd_turn_parse(r->tok, it->thinking ? KD_TURN_THINK : KD_TURN_RESPONSE, t->got.id,
                      t->got.count, &text, err))
        return -1;
    int rc = kd_json_parse(&calls, text.calls_json.data ? text.calls_json.data : "[]",
                           text.calls_json.data ? text.calls_json.size_bytes : 2, "calls", err);
    if (rc) {
        *call = false; /* a call that is no JSON, or names an argument twice */
        rc = 0;
    } else {
        *call = text.ended && kd_battery_call_fits(it->call, calls);
        kd_json_free(calls);
    }
    kd_turn_text_release(&text);
    return rc;
}

static int compare(struct run *r, const float *src, const float *dst, struct kd_err *err)
{
    int32_t *next;
    if (kd_mem_new(&next, r->rows, sizeof *next, "expected ids", err))
        return -1;
    for (int64_t i = 0; i < r->count; i++)
        memcpy(next + r->turn[i].row, r->turn[i].want.id,
               (size_t)r->turn[i].want.count * sizeof *next);
    kd_kld_block(r->run, src, dst, r->vocab, next, r->rows, r->pos);
    kd_mem_free(next);
    for (int64_t i = 0; i < r->rows; i++) {
        if (r->pos[i].bad)
            return kd_fail(err, KD_ECORRUPT, "a logit of the battery is not finite");
        r->kld_sum += r->pos[i].kld;
        r->same += r->pos[i].top_src == r->pos[i].top_dst;
    }
    r->tokens += r->rows;
    return 0;
}

static int run_batch(struct run *r, int64_t first, struct kd_err *err)
{
    float *logits;
    int64_t rows = r->rows > BATCH ? r->rows : BATCH;
    if (kd_mem_new(&r->pos, r->rows, sizeof *r->pos, "battery positions", err) ||
        kd_k3_logits_new(r->model[0], &logits, 2 * rows, err))
        return -1;
    float *second = logits + rows * r->vocab;
    bool both = r->sides == 2;
    int rc = force(r, r->model[0], logits, err) || (both && force(r, r->model[1], second, err)) ||
             compare(r, logits, both ? second : logits, err);
    for (int side = 0; side < r->sides && !rc; side++) {
        for (int64_t i = 0; i < r->count && !rc; i++)
            rc = begin_turn(r, &r->turn[i], side == 1, err);
        if (!rc)
            rc = go_on(r, r->model[side], logits, err);
        for (int64_t i = 0; i < r->count && !rc; i++)
            rc = judge(r, &r->turn[i], &r->file->item[first + i], &r->exact[side][first + i],
                       &r->call[side][first + i], err);
    }
    kd_k3_logits_free(r->model[0], logits);
    return rc ? -1 : 0;
}

static int open_all(struct run *r, const char *src, const char *dst, struct kd_err *err)
{
    int64_t n = r->file->count;
    if (kd_tok_open(&r->tok, src, err) || kd_k3_open(&r->model[0], src, r->run, NULL, err) ||
        (dst && kd_k3_open(&r->model[1], dst, r->run, NULL, err)))
        return -1;
    r->sides = dst ? 2 : 1;
    r->vocab = kd_k3_config(r->model[0])->vocab;
    if (dst && kd_k3_config(r->model[1])->vocab != r->vocab)
        return kd_fail(err, KD_EINVAL, "the two models differ in their vocabulary");
    r->stop[0] = kd_tok_special(r->tok, "<|end_of_msg|>");
    r->stop[1] = kd_tok_special(r->tok, "[EOS]");
    for (int side = 0; side < 2; side++)
        if (kd_mem_zero(&r->exact[side], n, sizeof(bool), "battery results", err) ||
            kd_mem_zero(&r->call[side], n, sizeof(bool), "battery results", err))
            return -1;
    return 0;
}

static void close_all(struct run *r)
{
    for (int side = 0; side < 2; side++) {
        if (r->model[side])
            kd_k3_close(r->model[side]);
        kd_mem_free(r->exact[side]);
        kd_mem_free(r->call[side]);
    }
    for (int i = 0; i < BATCH; i++) {
        kd_ids_release(&r->turn[i].prompt);
        kd_ids_release(&r->turn[i].want);
        kd_ids_release(&r->turn[i].got);
    }
    kd_mem_free(r->pos);
    if (r->tok)
        kd_tok_close(r->tok);
}

/* Both models' answers, or src's alone (dst NULL), into r. */
static int run_all(struct run *r, const char *src, const char *dst, const volatile int *stop,
                   struct kd_err *err)
{
    int rc = open_all(r, src, dst, err);
    kd_progress_begin("battery", "requests", r->file->count, 0);
    for (int64_t first = 0; first < r->file->count && !rc; first += r->count) {
        rc = load_batch(r, first, err);
        if (!rc && stop && *stop)
            rc = kd_fail(err, KD_ECANCEL, "stopped at battery request %lld", (long long)first);
        if (!rc)
            rc = run_batch(r, first, err);
        kd_mem_free(r->pos);
        r->pos = NULL;
        kd_progress_add(r->count, NULL);
    }
    kd_progress_end();
    return rc;
}

int kd_battery_run(struct kd_battery *b, const struct kd_run *run, const char *src, const char *dst,
                   const struct kd_battery_file *file, const volatile int *stop, struct kd_err *err)
{
    struct run *r;
    if (kd_mem_zero(&r, 1, sizeof *r, "battery run", err))
        return -1;
    r->file = file;
    r->run = run;
    memset(b, 0, sizeof *b);
    int rc = run_all(r, src, dst, stop, err);
    if (!rc) {
        b->requests = file->count;
        b->tokens = r->tokens;
        b->paired = b->has_kld = true;
        b->kld = r->kld_sum / (double)r->tokens;
        b->top1 = (double)r->same / (double)r->tokens;
        memcpy(b->sha256, file->sha256, sizeof b->sha256);
        kd_battery_flips(&b->exact, r->exact[0], r->exact[1], b->requests);
        kd_battery_flips(&b->calls, r->call[0], r->call[1], b->requests);
    }
    close_all(r);
    kd_mem_free(r);
    return rc;
}

int kd_battery_one(bool *exact, bool *call, int64_t *tokens, const struct kd_run *run,
                   const char *model, const struct kd_battery_file *file, const volatile int *stop,
                   struct kd_err *err)
{
    struct run *r;
    if (kd_mem_zero(&r, 1, sizeof *r, "battery run", err))
        return -1;
    r->file = file;
    r->run = run;
    int rc = run_all(r, model, NULL, stop, err);
    if (!rc) {
        memcpy(exact, r->exact[0], (size_t)file->count * sizeof *exact);
        memcpy(call, r->call[0], (size_t)file->count * sizeof *call);
        *tokens = r->tokens;
    }
    close_all(r);
    kd_mem_free(r);
    return rc;
}
