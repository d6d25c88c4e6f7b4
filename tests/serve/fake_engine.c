/* The engine's contract without a model: plays what the test asks for. The last user message of a
 * prompt is a program, one instruction a line:
 *
 *     say MARKUP      ids of this text, control tokens written out; may be given several times
 *     wait MS         pause before the next token
 *     slow MS         pause before every token from now on
 *     random SEED     tokens drawn from the mask (from all ordinary tokens without one)
 *     fail TEXT       the choice ends with an error
 *     loop            start again from the first instruction
 *     refuse full|draining|error|long
 *     die             the engine is broken from now on
 *
 * "\n" in MARKUP is a line end. A prompt without a program is answered with a short turn, or plays
 * the program in KONDENSE_FAKE_TURN. When the
 * program is over the turn ends: its stop token, or the limit. Everything else is the real program.
 */
#include "serve/engine.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "serve/grammar.h"
#include "text/chat.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUNNING_MAX = 4096, SCRIPT_MAX = 1 << 16 };

const double kd_histogram_bound[KD_HISTOGRAM_BINS - 1] = {
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600};

struct kd_engine {
    struct kd_tok *tok;
    struct kd_k3_cfg cfg;
    int64_t max_queued;
    _Atomic int64_t running, requests, refused, finished[KD_FINISH_ERROR + 1], prompt_tokens, made;
    atomic_bool draining, dead;
};

struct step {
    int32_t id; /* -1: from the mask, -2: fail, -3: start again */
    int wait_ms;
};

struct choice {
    int64_t at, made;
    double wake; /* the pause before the next token ends here; 0: none has begun */
    enum kd_finish finish;
    struct kd_err err;
    struct kd_buf text; /* visible so far */
    struct kd_ids held; /* tokens that may be part of a stop string */
    size_t *ends;       /* visible bytes after each of them */
    size_t told, base;  /* visible bytes told; before this token */
};

struct kd_request {
    struct kd_engine *e;
    struct kd_request_spec s;
    int32_t *stop_ids;
    char **stops;
    size_t *stop_bytes;
    struct kd_hooks *hooks;
    struct choice *c;
    struct step *script;
    int64_t steps, choice, ended;
    uint64_t random;
    char fail[200];
    atomic_bool cancelled;
    double began, first;
    struct kd_err err;
};

const char *kd_finish_name(enum kd_finish f)
{
    static const char *const names[] = {"none", "stop", "length", "cancel", "timeout", "error"};
    return names[f];
}

int kd_engine_open(struct kd_engine **out, const char *dir, const struct kd_engine_options *o,
                   struct kd_err *err)
{
    struct kd_engine *e;
    const char *slow = getenv("KONDENSE_FAKE_OPEN_MS");
    if (kd_mem_zero(&e, 1, sizeof *e, "engine", err))
        return -1;
    if (slow)
        usleep((unsigned)strtol(slow, NULL, 10) * 1000u);
    e->cfg.bos = e->cfg.eos = -1;
    e->cfg.context = o->context ? o->context : 4096;
    e->cfg.topk = 4;
    e->max_queued = o->max_queued;
    if (kd_tok_open(&e->tok, dir, err)) {
        kd_mem_free(e);
        return -1;
    }
    e->cfg.vocab = kd_tok_vocab(e->tok);
    *out = e;
    return 0;
}

void kd_engine_close(struct kd_engine *e)
{
    kd_tok_close(e->tok);
    kd_mem_free(e);
}

int kd_engine_drain(struct kd_engine *e, double timeout_s)
{
    double until = kd_clock_s() + timeout_s;
    e->draining = true;
    while (e->running && kd_clock_s() < until)
        usleep(10000);
    return e->running ? -1 : 0;
}

const struct kd_tok *kd_engine_tok(const struct kd_engine *e)
{
    return e->tok;
}

const struct kd_k3_cfg *kd_engine_config(const struct kd_engine *e)
{
    return &e->cfg;
}

const struct kd_ckpt *kd_engine_ckpt(const struct kd_engine *e)
{
    (void)e;
    return NULL;
}

const char *kd_engine_model_hash(const struct kd_engine *e)
{
    (void)e;
    return "fake";
}

void kd_engine_trace(struct kd_engine *e,
                     void (*trace)(void *ctx, int64_t layer, int64_t seq, int64_t pos,
                                   const int32_t *ids, const float *w),
                     void *ctx)
{
    (void)e;
    (void)trace;
    (void)ctx;
}

int64_t kd_engine_slots(struct kd_engine *e, struct kd_slot *out, int64_t max)
{
    (void)e;
    (void)out;
    (void)max;
    return 0;
}

int64_t kd_engine_room(const struct kd_engine *e, int64_t prompt_count, int64_t choices)
{
    (void)choices;
    return e->cfg.context - prompt_count;
}

static void add_step(struct kd_request *r, int32_t id, int wait_ms)
{
    if (r->steps < SCRIPT_MAX)
        r->script[r->steps++] = (struct step){id, wait_ms};
}

static void say(struct kd_request *r, const char *text, size_t bytes, int first, int each)
{
    struct kd_ids ids = {0};
    struct kd_buf b;
    kd_buf_init(&b, 1 << 20);
    for (size_t i = 0; i < bytes; i++) {
        bool line = text[i] == '\\' && i + 1 < bytes && text[i + 1] == 'n';
        kd_buf_char(&b, line ? '\n' : text[i]);
        i += line;
    }
    if (b.data && !kd_chat_markup_ids(r->e->tok, b.data, b.size_bytes, &ids, NULL))
        for (int64_t i = 0; i < ids.count; i++)
            add_step(r, ids.id[i], i ? each : first + each);
    kd_ids_release(&ids);
    kd_buf_release(&b);
}

/* 0, or a refusal. */
static enum kd_refusal compile(struct kd_request *r, const char *program)
{
    int wait = 0, slow = 0;
    bool any = false;
    for (const char *p = program; *p;) {
        size_t n = strcspn(p, "\n");
        any = true;
        if (!strncmp(p, "say ", 4)) {
            say(r, p + 4, n - 4, wait, slow);
            wait = 0;
        } else if (!strncmp(p, "wait ", 5)) {
            wait = (int)strtol(p + 5, NULL, 10);
        } else if (!strncmp(p, "slow ", 5)) {
            slow = (int)strtol(p + 5, NULL, 10);
        } else if (!strncmp(p, "random ", 7)) {
            r->random = (uint64_t)strtoll(p + 7, NULL, 10);
            for (int i = 0; i < 4000; i++)
                add_step(r, -1, slow);
        } else if (!strncmp(p, "fail ", 5)) {
            snprintf(r->fail, sizeof r->fail, "%.*s", (int)(n - 5), p + 5);
            add_step(r, -2, wait);
        } else if (!strncmp(p, "loop", 4)) {
            add_step(r, -3, 0);
        } else if (!strncmp(p, "die", 3)) {
            r->e->dead = true;
        } else if (!strncmp(p, "refuse ", 7)) {
            return p[7] == 'f'   ? KD_REFUSE_FULL
                   : p[7] == 'd' ? KD_REFUSE_DRAINING
                   : p[7] == 'l' ? KD_REFUSE_TOO_LONG
                                 : KD_REFUSE_ERROR;
        } else {
            any = false;
            break;
        }
        p += n + (p[n] == '\n');
    }
    const char *other = getenv("KONDENSE_FAKE_TURN");
    if (!any && other && strcmp(other, program) != 0) {
        r->steps = 0;
        return compile(r, other);
    }
    if (!any) {
        static const char turn[] =
            "I think.<|close|>think<|sep|><|open|>response<|sep|>Hello there.";
        r->steps = 0;
        say(r, turn, sizeof turn - 1, 0, 0);
    }
    return KD_REFUSE_NONE;
}

/* The text of the last user message: ordinary tokens between <|sep|> and <|close|>. */
static void last_user(const struct kd_request *r, struct kd_buf *out)
{
    const struct kd_tok *tok = r->e->tok;
    int32_t sep = kd_tok_special(tok, "<|sep|>"), open = kd_tok_special(tok, "<|open|>");
    int64_t begin = -1, end = 0;
    struct kd_buf tag;
    kd_buf_init(&tag, 1 << 20);
    for (int64_t i = 0; i < r->s.prompt_count; i++) {
        if (r->s.prompt[i] != open)
            continue;
        int64_t j = i + 1;
        kd_buf_clear(&tag);
        for (; j < r->s.prompt_count && r->s.prompt[j] != sep; j++) {
            size_t n;
            const char *s = kd_tok_bytes(tok, r->s.prompt[j], &n);
            kd_buf_add(&tag, s, n);
        }
        if (tag.data && !strncmp(tag.data, "message role=\"user\"", 19)) {
            begin = j + 1;
            for (end = begin; end < r->s.prompt_count && !kd_tok_is_special(tok, r->s.prompt[end]);)
                end++;
        }
    }
    if (begin < 0) { /* a text completion: its whole prompt */
        begin = 0;
        end = r->s.prompt_count;
    }
    for (int64_t i = begin; i < end; i++) {
        size_t n;
        const char *s = kd_tok_bytes(tok, r->s.prompt[i], &n);
        kd_buf_add(out, s, n);
    }
    kd_buf_add(out, "", 0);
    kd_buf_release(&tag);
}

static int copy(struct kd_request *r, const struct kd_request_spec *s, struct kd_err *err)
{
    int64_t n = s->choices ? s->choices : 1;
    r->s = *s;
    r->s.choices = n;
    int32_t *prompt;
    if (kd_mem_new(&prompt, s->prompt_count, sizeof *prompt, "prompt", err) ||
        kd_mem_zero(&r->c, n, sizeof *r->c, "choices", err) ||
        kd_mem_new(&r->script, SCRIPT_MAX, sizeof *r->script, "script", err) ||
        kd_mem_zero(&r->stops, s->stop_count + 1, sizeof *r->stops, "stops", err) ||
        kd_mem_zero(&r->stop_bytes, s->stop_count + 1, sizeof *r->stop_bytes, "stops", err) ||
        kd_mem_zero(&r->stop_ids, s->stop_id_count + 1, sizeof *r->stop_ids, "stops", err) ||
        kd_mem_zero(&r->hooks, n, sizeof *r->hooks, "hooks", err))
        return -1;
    memcpy(prompt, s->prompt, (size_t)s->prompt_count * sizeof *prompt);
    r->s.prompt = prompt;
    if (s->stop_id_count)
        memcpy(r->stop_ids, s->stop_ids, (size_t)s->stop_id_count * sizeof *r->stop_ids);
    for (int64_t i = 0; i < s->stop_count; i++) {
        r->stops[i] = strndup(s->stops[i], s->stop_bytes[i]);
        r->stop_bytes[i] = s->stop_bytes[i];
    }
    if (s->hooks)
        memcpy(r->hooks, s->hooks, (size_t)n * sizeof *r->hooks);
    for (int64_t i = 0; i < n; i++) {
        kd_buf_init(&r->c[i].text, 1 << 26);
        if (kd_mem_new(&r->c[i].ends, SCRIPT_MAX, sizeof(size_t), "held", err))
            return -1;
    }
    return 0;
}

static int refuse(struct kd_request *r, struct kd_refused *why, enum kd_refusal reason,
                  struct kd_err *err)
{
    static const char *const text[] = {
        "", "bad", "too long", "the queue is full", "shutting down", "out of memory"};
    why->why = reason;
    why->retry_s = reason == KD_REFUSE_FULL ? 1.5 : 0;
    r->e->refused++;
    r->e->running++; /* release takes it off */
    kd_request_release(r);
    return kd_fail(err, KD_EINVAL, "%s", text[reason]);
}

int kd_engine_submit(struct kd_engine *e, const struct kd_request_spec *spec,
                     struct kd_request **out, struct kd_refused *refused, struct kd_err *err)
{
    struct kd_request *r;
    struct kd_buf program;
    if (kd_mem_zero(&r, 1, sizeof *r, "request", err))
        return -1;
    r->e = e;
    kd_buf_init(&program, 1 << 24);
    if (copy(r, spec, err))
        return -1;
    last_user(r, &program);
    enum kd_refusal reason = compile(r, program.data);
    kd_buf_release(&program);
    if (e->draining)
        reason = KD_REFUSE_DRAINING;
    if (e->running >= e->max_queued)
        reason = KD_REFUSE_FULL;
    if (reason != KD_REFUSE_NONE)
        return refuse(r, refused, reason, err);
    e->running++;
    e->requests++;
    e->prompt_tokens += spec->prompt_count;
    r->began = kd_clock_s();
    *out = r;
    return 0;
}

/* Tells what is held up to (not including) held token `upto`, with the cut of the last. */
static int64_t give(struct kd_request *r, struct choice *c, struct kd_event *ev, int64_t max,
                    int64_t limit)
{
    int64_t n = 0;
    size_t begin = c->told;
    for (int64_t i = 0; i < c->held.count && n < max; i++) {
        size_t end = c->ends[i];
        struct kd_event *e = &ev[n];
        if (limit >= 0 && (size_t)limit <= begin && end > begin && i)
            break; /* wholly inside the match */
        memset(e, 0, sizeof *e);
        e->choice = c - r->c;
        e->id = c->held.id[i];
        e->text = kd_tok_bytes(r->e->tok, e->id, &e->text_bytes);
        e->keep_bytes = limit >= 0 && end > (size_t)limit
                            ? (int64_t)((size_t)limit > begin ? (size_t)limit - begin : 0)
                            : -1;
        e->stop = -1;
        if (r->s.logprobs) {
            e->logprob = -0.5F;
            e->top_count = r->s.logprobs - 1;
            for (int k = 0; k < e->top_count; k++)
                e->top[k] =
                    (struct kd_top){e->id + k < r->e->cfg.vocab ? e->id + k : k, -0.5F - (float)k};
        }
        begin = end;
        n++;
    }
    c->told = c->text.size_bytes;
    c->held.count = 0;
    return n;
}

/* Where a stop string ends the visible text: the offset of its beginning, or -1. */
static int64_t find_stop(const struct kd_request *r, const struct choice *c, size_t from,
                         int *which)
{
    int64_t best = -1;
    for (int64_t i = 0; i < r->s.stop_count; i++) {
        size_t back = r->stop_bytes[i] - 1, begin = from > back ? from - back : 0;
        const char *hit = c->text.data ? memmem(c->text.data + begin, c->text.size_bytes - begin,
                                                r->stops[i], r->stop_bytes[i])
                                       : NULL;
        if (hit && (best < 0 || hit - c->text.data < best)) {
            best = hit - c->text.data;
            *which = (int)i;
        }
    }
    return best;
}

static bool may_stop(const struct kd_request *r, const struct choice *c)
{
    for (int64_t i = 0; i < r->s.stop_count; i++)
        for (size_t n = r->stop_bytes[i] - 1; n; n--)
            if (n <= c->text.size_bytes &&
                !memcmp(c->text.data + c->text.size_bytes - n, r->stops[i], n))
                return true;
    return false;
}

static int32_t draw(struct kd_request *r, struct choice *c, int32_t want, struct kd_err *err)
{
    int64_t vocab = r->e->cfg.vocab, words = (vocab + 63) / 64, i = c - r->c;
    static _Thread_local uint64_t bits[1 << 12];
    memset(bits, 0xff, sizeof bits);
    if (words > 1 << 12)
        return want;
    int rc = r->hooks[i].mask ? r->hooks[i].mask(r->hooks[i].ctx, bits, vocab, err) : 0;
    if (rc < 0)
        return -1;
    if (want >= 0 && (bits[want / 64] >> (want % 64) & 1))
        return want;
    int32_t best = -1;
    double score = -1;
    for (int32_t id = 0; id < vocab; id++) {
        size_t n;
        if (!(bits[id / 64] >> (id % 64) & 1))
            continue;
        const char *s = kd_tok_bytes(r->e->tok, id, &n);
        bool special = kd_tok_is_special(r->e->tok, id);
        if (!s || (special && !rc))
            continue;
        double k = kd_rand_unit(r->random + r->s.sampling.seed + (uint64_t)i,
                                (uint64_t)c->made * 200000u + (uint64_t)id) /
                   (double)(n + 1);
        if (rc && c->made > 40)
            k += special ? 2 : n == 1 && strchr("}]\"", s[0]) ? 1 : 0;
        if (k > score) {
            score = k;
            best = id;
        }
    }
    return best;
}

static bool is_stop(const struct kd_request *r, int32_t id)
{
    for (int64_t i = 0; i < r->s.stop_id_count; i++)
        if (r->stop_ids[i] == id)
            return !r->s.ignore_eos;
    return false;
}

static int64_t end_choice(struct kd_request *r, struct choice *c, struct kd_event *ev, int64_t n,
                          enum kd_finish f, int stop)
{
    if (!n) {
        memset(&ev[0], 0, sizeof ev[0]);
        ev[0].id = -1;
        ev[0].choice = c - r->c;
        ev[0].keep_bytes = -1;
        n = 1;
    }
    ev[n - 1].finish = f;
    ev[n - 1].stop = stop;
    c->finish = f;
    r->ended++;
    r->e->finished[f]++;
    return n;
}

/* One token of a choice; number of events. */
static int64_t step(struct kd_request *r, struct choice *c, struct kd_event *ev, int64_t max)
{
    int32_t stop_id = r->s.stop_id_count ? r->stop_ids[0] : -1, id;
    int64_t i = c - r->c;
    int which = -1;
    struct step s = c->at < r->steps ? r->script[c->at] : (struct step){stop_id, 0};
    if (s.wait_ms > 0 && c->wake <= 0)
        c->wake = kd_clock_s() + s.wait_ms / 1000.0;
    if (!r->cancelled && kd_clock_s() < c->wake) {
        usleep(3000);
        return 0;
    }
    c->wake = 0;
    c->at++;
    if (r->cancelled)
        return end_choice(r, c, ev, give(r, c, ev, max, -1), KD_FINISH_CANCEL, -1);
    if (r->s.deadline_s > 0 && kd_clock_s() > r->s.deadline_s)
        return end_choice(r, c, ev, give(r, c, ev, max, -1), KD_FINISH_TIMEOUT, -1);
    if (s.id == -3) {
        c->at = 0;
        return 0;
    }
    if (s.id == -2) {
        kd_fail(&r->err, KD_ECORRUPT, "%s", r->fail);
        return end_choice(r, c, ev, give(r, c, ev, max, -1), KD_FINISH_ERROR, -1);
    }
    if (c->made >= r->s.max_tokens)
        return end_choice(r, c, ev, give(r, c, ev, max, -1), KD_FINISH_LENGTH, -1);
    id = draw(r, c, s.id, &r->err);
    size_t before = c->text.size_bytes;
    if (id < 0 || (r->hooks[i].token && r->hooks[i].token(r->hooks[i].ctx, id, &c->text, &r->err)))
        return end_choice(r, c, ev, give(r, c, ev, max, -1), KD_FINISH_ERROR, -1);
    c->made++;
    if (r->first <= 0)
        r->first = kd_clock_s();
    if (kd_ids_add(&c->held, id, NULL))
        return 0;
    c->ends[c->held.count - 1] = c->text.size_bytes;
    int64_t cut = find_stop(r, c, before, &which);
    if (cut >= 0)
        return end_choice(r, c, ev, give(r, c, ev, max, cut), KD_FINISH_STOP, which);
    if (is_stop(r, id))
        return end_choice(r, c, ev, give(r, c, ev, max, -1), KD_FINISH_STOP, -1);
    if (c->made >= r->s.max_tokens)
        return end_choice(r, c, ev, give(r, c, ev, max, -1), KD_FINISH_LENGTH, -1);
    return may_stop(r, c) && c->held.count < max - 1 ? 0 : give(r, c, ev, max, -1);
}

int64_t kd_request_wait(struct kd_request *r, struct kd_event *ev, int64_t max, double timeout_s)
{
    double until = kd_clock_s() + timeout_s;
    if (r->ended == r->s.choices)
        return -1;
    do {
        struct choice *c = &r->c[r->choice++ % r->s.choices];
        int64_t n = c->finish == KD_FINISH_NONE ? step(r, c, ev, max) : 0;
        r->e->made += n;
        if (n)
            return n;
    } while (kd_clock_s() < until);
    return 0;
}

void kd_request_cancel(struct kd_request *r)
{
    r->cancelled = true;
}

void kd_request_release(struct kd_request *r)
{
    r->e->running--;
    for (int64_t i = 0; i < r->s.choices; i++) {
        kd_buf_release(&r->c[i].text);
        kd_ids_release(&r->c[i].held);
        kd_mem_free(r->c[i].ends);
    }
    for (int64_t i = 0; i < r->s.stop_count; i++)
        free(r->stops[i]);
    union {
        const int32_t *in;
        void *out;
    } prompt = {.in = r->s.prompt};
    kd_mem_free(prompt.out);
    kd_mem_free(r->c);
    kd_mem_free(r->script);
    kd_mem_free(r->stops);
    kd_mem_free(r->stop_bytes);
    kd_mem_free(r->stop_ids);
    kd_mem_free(r->hooks);
    kd_mem_free(r);
}

const struct kd_err *kd_request_error(const struct kd_request *r)
{
    return &r->err;
}

void kd_request_usage(const struct kd_request *r, struct kd_usage *u)
{
    memset(u, 0, sizeof *u);
    u->prompt_tokens = r->s.prompt_count;
    u->cached_tokens = r->s.prompt_count / 64 * 64;
    for (int64_t i = 0; i < r->s.choices; i++)
        u->made_tokens += r->c[i].made;
    u->first_token_s = r->first > 0 ? r->first - r->began : 0;
    u->total_s = kd_clock_s() - r->began;
    u->experts_used = r->s.experts_used ? r->s.experts_used : r->e->cfg.topk;
    u->expert_mass = r->s.expert_mass;
    u->running = true;
}

void kd_engine_metrics(struct kd_engine *e, struct kd_engine_metrics *m)
{
    memset(m, 0, sizeof *m);
    m->requests = e->requests;
    m->refused = e->refused;
    m->running = e->running;
    m->prompt_tokens = e->prompt_tokens;
    m->decode_tokens = e->made;
    for (int i = 0; i <= KD_FINISH_ERROR; i++)
        m->finished[i] = e->finished[i];
}

bool kd_engine_healthy(struct kd_engine *e, struct kd_err *err)
{
    (void)err;
    return !e->dead;
}
