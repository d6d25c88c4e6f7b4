/* The engine behind `kondense serve`: one worker thread owns the model and runs all requests by
 * continuous batching; any number of threads hand in requests and drain their results.
 *
 *     struct kd_engine *e;
 *     kd_engine_open(&e, "model-folder", &(struct kd_engine_options){.threads = 2}, err);
 *     struct kd_request *r;
 *     if (kd_engine_submit(e, &spec, &r, &refusal, err)) ...           // 429, 400, 503
 *     while ((n = kd_request_wait(r, events, 16, 0.5)) >= 0)           // until all choices ended
 *         for (i = 0; i < n; i++) use(&events[i]);
 *     kd_request_release(r);                                           // cancels what still runs
 *     kd_engine_close(e);
 *
 * Determinism. The tokens of a request depend on its spec and the model alone: not on what else
 * runs, on the number of threads, on the prefix cache being warm or cold, on speculation. Prefill
 * is cut at absolute multiples of 64 tokens; a cached state is one that such a prefill left. On a
 * device, where few rows are summed in another order than many, a prompt's pieces go through the
 * model one by one and decoding tokens at most 16 at a time; nothing is drafted there.
 *
 * Threads. Functions on kd_engine may be called from any thread. Functions on one kd_request belong
 * to one thread at a time, except kd_request_cancel. Hooks run on the worker. */
#ifndef KD_SERVE_ENGINE_H
#define KD_SERVE_ENGINE_H

#include "base/buf.h"
#include "base/err.h"
#include "model/k3.h"
#include "model/sample.h"
#include "text/tok.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    KD_ENGINE_CHOICES_MAX = 128,
    KD_ENGINE_TOP_MAX = 20,     /* logprobs of other tokens shown with a token */
    KD_ENGINE_STOPS_MAX = 64,   /* stop strings, stop ids */
    KD_ENGINE_STOP_BYTES = 1024 /* of one stop string */
};

struct kd_engine;
struct kd_request;

/* Zero in any field: the default in parentheses. */
struct kd_engine_options {
    int threads;              /* of the model (all CPUs) */
    int64_t max_running;      /* sequences at once; each choice is one (16) */
    int64_t max_queued;       /* requests that wait; more are refused (64) */
    int64_t max_queued_owner; /* of one owner (max_queued) */
    int64_t memory_bytes;     /* of all running sequences (a quarter of the machine's; with a model
                                 on a device four fifths of what is free there, the cache's next) */
    int64_t grow_tokens;  /* memory is planned for so many tokens of an answer at a time (4096) */
    int64_t context;      /* tokens of one sequence (the model's) */
    int64_t chunk;        /* tokens of prefill in one step, a multiple of 64 (512) */
    double step_ms;       /* a step's aim while others decode: prefill is cut to fit (250) */
    int64_t cache_bytes;  /* prefix cache in memory (a quarter of memory_bytes); < 0: none */
    const char *disk_dir; /* prefix cache on disk (none); the folder is locked */
    int64_t disk_bytes;   /* (16 GiB) */
    int64_t disk_min_tokens;        /* shorter prefixes stay in memory (512) */
    int64_t checkpoint_tokens;      /* extra checkpoints in long prompts, this far apart (8192) */
    int64_t events;                 /* results a request holds before its sequences pause (256) */
    int64_t draft_max;              /* tokens drafted ahead by n-grams (4); < 0: no speculation */
    bool no_idle_prefill;           /* do not prefill answers again when there is nothing to do */
    const struct kd_k3_open *model; /* eps_latent, comm, part, device */
};

/* What a caller knows about its text, one for each choice, all callbacks on the worker and quick.
 * Any may be NULL. They are no longer called once the choice has ended. */
struct kd_hooks {
    void *ctx;
    /* Before a token is drawn: bit id % 64 of bits[id / 64] says whether id may come next; all
     * bits are set at the call. 1: bits were changed, 0: anything goes, -1: error, ends the choice.
     */
    int (*mask)(void *ctx, uint64_t *bits, int64_t vocab, struct kd_err *err);
    /* After a token was drawn, once for each, in order: appends the bytes of *visible* text that
     * become certain with it. Stop strings are looked for in that text. Without this hook: the
     * token's bytes, none for special tokens. -1: error, ends the choice. */
    int (*token)(void *ctx, int32_t id, struct kd_buf *visible, struct kd_err *err);
};

struct kd_bias {
    int32_t id;
    float add; /* to the logit */
};

/* One request. Everything is copied by kd_engine_submit except the hooks' contexts, which must
 * live until kd_request_release returns. */
struct kd_request_spec {
    const int32_t *prompt; /* at least one id */
    int64_t prompt_count;
    int64_t max_tokens;          /* >= 0; 0: only the prompt is read (into the cache) */
    int64_t choices;             /* n; 0 is 1. Choice i draws with sampling.choice + i */
    struct kd_sampling sampling; /* the caller makes up a seed where the client gave none */
    double presence, frequency;  /* subtracted from logits of ids made so far: presence +
                                    frequency * times */
    double repetition; /* > 0; 0 is 1: logits of ids in prompt or answer are divided by it (if
                          positive) or multiplied */
    const struct kd_bias *bias;
    int64_t bias_count;
    int logprobs; /* 0: none, 1 + N: the token's and the N likeliest (N <= KD_ENGINE_TOP_MAX) */
    const int32_t *stop_ids; /* drawn, reported, and the end (reason stop) */
    int64_t stop_id_count;
    const char *const *stops; /* strings in the visible text */
    const size_t *stop_bytes;
    int64_t stop_count;
    bool ignore_eos;      /* benchmarks: stop ids may be drawn and do not stop */
    int64_t experts_used; /* 0: the model's */
    double expert_mass;   /* 0: off; else the fewest experts with this share of the weights */
    char owner[65];       /* hex of the API key's hash; "" for all who share. Caches are by owner */
    double deadline_s;    /* kd_clock_s() at which it ends with reason timeout; 0: none */
    bool background;      /* waits for all others in the queue */
    const struct kd_hooks *hooks; /* [choices] or NULL */
    void (*ready)(
        void *ctx); /* may be NULL: called on the worker when events wait; must not block */
    void *ready_ctx;
};

enum kd_finish {
    KD_FINISH_NONE,
    KD_FINISH_STOP,   /* stop id or stop string */
    KD_FINISH_LENGTH, /* max_tokens or the context is full */
    KD_FINISH_CANCEL,
    KD_FINISH_TIMEOUT,
    KD_FINISH_ERROR /* kd_request_error tells */
};
const char *kd_finish_name(enum kd_finish f);

struct kd_top {
    int32_t id;
    float logprob;
};

/* One token of one choice, or (id -1) an end without a token of its own. Tokens whose visible text
 * may be the start of a stop string are held back until that is decided. A choice's last event has
 * finish != NONE; after a stop string's match tokens wholly inside the match are not reported. */
struct kd_event {
    int64_t choice;
    int32_t id;
    const char *text; /* the token's bytes; lives as long as the engine */
    size_t text_bytes;
    int64_t keep_bytes; /* -1: all. Else only so many bytes of what `token` made visible for this
                           id come before the stop string */
    float logprob;      /* of the unchanged logits; 0 unless asked for */
    int top_count;
    struct kd_top top[KD_ENGINE_TOP_MAX];
    enum kd_finish finish;
    int32_t stop; /* which stop string matched (finish STOP), or -1 */
};

/* Why a request was not taken. */
enum kd_refusal {
    KD_REFUSE_NONE,
    KD_REFUSE_BAD,      /* the spec is wrong (400) */
    KD_REFUSE_TOO_LONG, /* prompt and max_tokens exceed the context or the planned memory (400) */
    KD_REFUSE_FULL,     /* queue full (429), see retry_s */
    KD_REFUSE_DRAINING, /* shutting down (503) */
    KD_REFUSE_ERROR     /* out of memory, the worker has failed (500) */
};
struct kd_refused {
    enum kd_refusal why;
    double retry_s; /* an estimate of when a place is free; > 0 with FULL */
};

/* Opens model and tokenizer of a folder and starts the worker. Strings are copied. */
int kd_engine_open(struct kd_engine **out, const char *dir, const struct kd_engine_options *o,
                   struct kd_err *err) KD_MUST;
/* Cancels everything, joins the threads. All requests must have been released. */
void kd_engine_close(struct kd_engine *e);
/* No new requests from now on; waits up to timeout_s for the running ones. 0: all done; -1: some
 * were left, and have been cancelled. */
int kd_engine_drain(struct kd_engine *e, double timeout_s);

const struct kd_tok *kd_engine_tok(const struct kd_engine *e);
const struct kd_k3_cfg *kd_engine_config(const struct kd_engine *e);
const struct kd_ckpt *kd_engine_ckpt(const struct kd_engine *e);
const char *kd_engine_model_hash(const struct kd_engine *e); /* 64 hex digits: weights and config */
/* The largest max_tokens that a request of so many prompt tokens and choices is taken with; < 0:
 * none is. An answer's memory is reserved as it grows (grow_tokens), so a large one costs nothing
 * before. */
int64_t kd_engine_room(const struct kd_engine *e, int64_t prompt_count, int64_t choices);
/* The routing of every token from now on goes to trace(ctx, layer, position, ids, weights), on the
 * worker; NULL switches it off. To be set before the first request. */
void kd_engine_trace(struct kd_engine *e,
                     void (*trace)(void *ctx, int64_t layer, int64_t seq, int64_t pos,
                                   const int32_t *ids, const float *w),
                     void *ctx);

/* 0 and *out, or -1 with refused->why (err has the sentence). Never waits for the model. */
int kd_engine_submit(struct kd_engine *e, const struct kd_request_spec *spec,
                     struct kd_request **out, struct kd_refused *refused,
                     struct kd_err *err) KD_MUST;
/* Up to `max` events into `events`. Waits up to timeout_s for the first. Number of events (0: none
 * came in time), or -1 when every choice has ended and its events are taken. */
int64_t kd_request_wait(struct kd_request *r, struct kd_event *events, int64_t max,
                        double timeout_s);
/* All choices end within one step with reason cancel. Any thread. */
void kd_request_cancel(struct kd_request *r);
/* Cancels if need be, waits until the worker no longer uses it (at most one step), frees it. */
void kd_request_release(struct kd_request *r);
/* Why a choice ended with KD_FINISH_ERROR: valid after its last event. */
const struct kd_err *kd_request_error(const struct kd_request *r);

/* May be read at any time; final after wait has returned -1. */
struct kd_usage {
    int64_t prompt_tokens, cached_tokens; /* cached: of the prompt, from memory or disk */
    int64_t made_tokens;                  /* of all choices, also those not reported */
    int64_t draft_tokens, draft_accepted, draft_steps; /* steps that had drafts */
    double queued_s, first_token_s;                    /* since submit; first_token_s 0 before it */
    double total_s;                                    /* submit to the last choice's end, or now */
    int64_t experts_used; /* as the request ran: the model's number if not cut */
    double expert_mass;   /* 0: off */
    int64_t place;        /* requests before it in the queue; 0 once it runs */
    bool running;
};
void kd_request_usage(const struct kd_request *r, struct kd_usage *u);

/* Histograms with fixed upper bounds: count[i] observations <= bound[i], not cumulative; the last
 * has no bound. */
enum { KD_HISTOGRAM_BINS = 20 };
struct kd_histogram {
    int64_t count[KD_HISTOGRAM_BINS];
    int64_t total;
    double sum;
};
extern const double kd_histogram_bound[KD_HISTOGRAM_BINS - 1]; /* seconds: 1 ms ... 600 s */

struct kd_engine_metrics {
    int64_t requests, refused, finished[KD_FINISH_ERROR + 1]; /* finished: choices by reason */
    int64_t queued, running, paused; /* requests; sequences; sequences whose reader is slow */
    int64_t parked, parkings; /* sequences that had to give their memory back, now and so far */
    int64_t prompt_tokens, prefill_tokens, decode_tokens; /* prefill: really computed */
    int64_t idle_prefill_tokens;
    int64_t cache_hits, cache_misses, cached_tokens;
    int64_t cache_bytes, cache_entries, cache_evicted;
    int64_t disk_hits, disk_bytes, disk_entries, disk_written, disk_refused; /* refused: damaged,
                                                                 of another model or version */
    int64_t draft_tokens, draft_accepted;
    int64_t steps;
    int64_t memory_planned_bytes, memory_used_bytes; /* of memory_bytes: budget, reserved now */
    double busy_s;                                   /* worker in the model */
    double cpu_s;                     /* CPU time of the worker and the model's threads */
    double prefill_rate, decode_rate; /* tokens/s, recent */
    double draft_rate;                /* accepted of drafted, recent */
    struct kd_histogram first_token, per_token, queue_wait, step;
};
void kd_engine_metrics(struct kd_engine *e, struct kd_engine_metrics *m);
/* What runs and waits: requests in the order they came, the running ones first. Their number, at
 * most `max`. */
struct kd_slot {
    char owner[65];
    bool running;
    int64_t choices, prompt_tokens, cached_tokens, made_tokens;
    double queued_s, running_s;
};
int64_t kd_engine_slots(struct kd_engine *e, struct kd_slot *out, int64_t max);
/* False once the worker has failed for good (health check); err says why. */
bool kd_engine_healthy(struct kd_engine *e, struct kd_err *err);

#endif
