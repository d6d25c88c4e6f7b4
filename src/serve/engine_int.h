/* Inside the engine. Who may touch what:
 *   lock    fields of requests and the engine marked so; held for moments, never over the model
 *   worker  everything of a request that runs, besides */
#ifndef KD_SERVE_ENGINE_INT_H
#define KD_SERVE_ENGINE_INT_H

#include "serve/engine.h"
#include "serve/ngram.h"
#include "serve/pick.h"
#include "serve/prefix.h"
#include "serve/stops.h"

#include <pthread.h>

enum { KD_BRANCHES = 4 };

/* A sequence on its way through the model. */
struct kd_lane {
    struct kd_k3_seq *seq;
    struct kd_ids ids;           /* prompt, then what was made */
    int64_t prompt;              /* how many are prefilled in chunks */
    int64_t fed;                 /* in the model; while below `prompt` a multiple of 64 */
    int64_t branch[KD_BRANCHES]; /* places for checkpoints besides the regular ones, or 0 */
    int64_t passed;              /* steps it had to wait for others' prefill */
    struct kd_prefix_key key;
};

enum kd_stage {
    KD_STAGE_START,  /* admitted, not looked up in the cache */
    KD_STAGE_LOAD,   /* the disk reads its prefix */
    KD_STAGE_FOLLOW, /* another's prefill is about to have its prefix */
    KD_STAGE_PREFILL,
    KD_STAGE_REPLAY,  /* was parked: its own tokens again, one by one, as they were made */
    KD_STAGE_PARKED,  /* without memory: all that is left are its tokens */
    KD_STAGE_READ,    /* the very same prompt was read before: its logits are there */
    KD_STAGE_SIBLING, /* waits for choice 0's prefill */
    KD_STAGE_DECODE,
    KD_STAGE_ENDED
};

struct kd_held {
    struct kd_event ev;
    int64_t begin, end; /* of its visible text in the choice's stream */
};

struct kd_choice {
    struct kd_request *r;
    int64_t index;
    enum kd_stage stage;
    bool paused; /* this step: the reader is slow */
    bool told;   /* its last event is published */
    struct kd_lane lane;
    int64_t load;     /* ticket */
    bool loaded;      /* the disk was asked once */
    bool starved;     /* this step: no memory for the next token */
    int64_t planned;  /* tokens there is memory for */
    int64_t reserved; /* bytes of the plan that go when this choice ends */
    bool draftable;   /* room for taking drafts back is reserved */
    float *logits;    /* of KD_STAGE_READ */
    struct kd_pick pick;
    int32_t *counts; /* for the penalties, or NULL */
    struct kd_ngram ngram;
    struct kd_stop_scan scan;
    int64_t seen;         /* bytes of visible text so far */
    struct kd_held *held; /* tokens not published: the first `ready` may be */
    int64_t held_count, held_cap, ready;
    int64_t made;
    int64_t new_made, new_drafted, new_accepted, new_draft_steps; /* since the last publishing */
    int32_t draft[KD_K3_DRAFT_MAX];
    int64_t draft_count;
    double accept;       /* how likely a drafted token is right, recent */
    int64_t since_draft; /* tokens made without any */
    int64_t probe_after; /* so many make it worth a try, 0: the first number */
    bool probing;
    double last_s;
    enum kd_finish finish;
    int32_t stop;
};

enum kd_where { KD_QUEUED, KD_RUNNING, KD_OVER };

struct kd_request {
    struct kd_engine *e;
    struct kd_request_spec spec; /* pointers into `owned` copies */
    struct kd_stops stops;
    struct kd_hooks *hooks;
    void *owned[7];
    int owned_count;
    int64_t need_bytes;   /* of the plan: prompt's pages, once */
    int64_t choice_bytes; /* and for each choice, to begin with */
    int64_t most_bytes;   /* all choices at their longest */
    struct kd_choice *choices;
    struct kd_buf visible; /* scratch: text of one token */
    /* lock */
    enum kd_where where;
    struct kd_request *next; /* of the queue or of the running ones */
    bool cancelled;
    bool news;    /* of this step, for those who wait; the engine thread's alone */
    bool broken;  /* events were lost for lack of memory */
    int64_t open; /* choices that have not told their end */
    struct kd_event *ring;
    int64_t ring_cap, ring_first, ring_used;
    pthread_cond_t changed;
    struct kd_err err;
    struct kd_usage usage;
    double submit_s, admit_s, end_s;
};

/* Time of a decode step as a + b * rows, fitted to recent steps. */
struct kd_cost {
    double w, r, t, rr, rt;
};

struct kd_idle_job {
    struct kd_ids ids;
    struct kd_prefix_key key;
};
enum { KD_IDLE_JOBS = 8 };

/* One feed of a step and what is to be done with its logits. */
struct kd_todo {
    struct kd_choice *c; /* NULL: the idle lane */
    struct kd_lane *lane;
    int64_t count;                /* tokens fed */
    int32_t ids[KD_K3_DRAFT_MAX]; /* a last token and its drafts */
    float *logits;                /* its rows */
    int64_t row, rows;            /* next to be looked at, all */
    bool draft;                   /* fed one by one */
    bool active;
    uint64_t *mask; /* of the round under way; NULL: anything goes */
    struct kd_picked picked;
    struct kd_err err;
    int rc;
};

struct kd_engine {
    struct kd_engine_options o;
    char *disk_dir;
    struct kd_kern kern;
    struct kd_run run;
    struct kd_k3_model *model;
    const struct kd_k3_cfg *cfg;
    struct kd_tok *tok;
    char hash[65], state_hash[65]; /* of the model; of what its states depend on */
    struct kd_prefix *prefix;
    int64_t fixed_bytes, page_bytes;
    pthread_t worker;
    bool started, device; /* device: the model is on one */
    void (*trace)(void *ctx, int64_t layer, int64_t seq, int64_t pos, const int32_t *ids,
                  const float *w);
    void *trace_ctx;

    pthread_mutex_t lock;
    pthread_cond_t wake; /* the worker */
    pthread_cond_t idle; /* drain: all is done */
    /* lock */
    bool stop, draining, failed, poked;
    struct kd_err failure;
    struct kd_request *queue, *running;
    int64_t queued, running_choices, reserved;
    double service_s; /* a request's time from admission to end, recent */
    struct kd_engine_metrics m;

    /* worker */
    struct kd_todo *todo; /* [max_running + 1] */
    int64_t todo_count;
    int64_t decode_rows; /* of this step */
    struct kd_k3_feed *feeds;
    float *logits, *scratch; /* scratch: vocab floats a thread */
    int64_t logits_rows;
    uint64_t *masks; /* [max_running + 1][mask_words] */
    int64_t mask_words;
    struct kd_todo **round;
    double prefill_rate, decode_rate; /* tokens/s, recent; copied to the metrics */
    struct kd_cost cost;
    int bad_steps;
    struct kd_lane idle_lane;
    bool idle_on;
    bool any_read;      /* a choice of KD_STAGE_READ waits for a step */
    int64_t idle_bytes; /* reserved for it */
    struct kd_idle_job idle_job[KD_IDLE_JOBS];
    int64_t idle_jobs;
};

/* request.c */
void kd_request_free(struct kd_request *r);
int kd_request_new(struct kd_request **out, struct kd_engine *e, const struct kd_request_spec *s,
                   struct kd_err *err) KD_MUST;
/* Lock held: events of a choice that may go out, and its end. True: those who wait for `changed`
 * must be told. */
bool kd_request_publish(struct kd_choice *c, double now);
void kd_histogram_add(struct kd_histogram *h, double seconds);

/* choice.c: the worker's side of one choice */
/* A token was chosen for it. Afterwards c->finish tells whether that ended it. */
void kd_choice_token(struct kd_choice *c, const struct kd_picked *p);
void kd_choice_end(struct kd_choice *c, enum kd_finish why, const struct kd_err *err);
/* Ended: gives back sequence and memory. */
void kd_choice_release(struct kd_choice *c);
int kd_choice_begin(struct kd_choice *c, struct kd_err *err) KD_MUST;

/* lane.c: prefill, checkpoints, and answers prefilled again in idle time */
void kd_lane_release(struct kd_lane *l);
/* Position up to which the next chunk of at most `budget` tokens (or one chunk of 64) goes. */
int64_t kd_lane_next(const struct kd_engine *e, const struct kd_lane *l, int64_t budget);
/* Whether it pays to wait for another sequence's prefill, which will leave a checkpoint this one
 * can start from. Asks that one to. */
bool kd_lane_follows(struct kd_engine *e, const struct kd_choice *c);
/* Stands at l->fed: keeps a checkpoint if this is a place for one. */
void kd_lane_checkpoint(struct kd_engine *e, const struct kd_lane *l);
/* Whether the whole prompt was read before: then the sequence stands at its end, with *logits. */
int kd_lane_read(struct kd_engine *e, struct kd_lane *l, float **logits,
                 struct kd_err *err) KD_MUST;
/* The prompt is read: keeps its end. */
void kd_lane_keep_end(struct kd_engine *e, const struct kd_lane *l, const float *logits);
/* The longest prefix the cache has, or a new sequence. *load: wait for the disk. */
int kd_lane_begin(struct kd_engine *e, struct kd_lane *l, bool disk, int64_t *load,
                  struct kd_err *err) KD_MUST;
void kd_idle_remember(struct kd_engine *e, const struct kd_choice *c);
/* Whether there is a lane to go on with. */
bool kd_idle_ready(struct kd_engine *e);
void kd_idle_drop(struct kd_engine *e);
void kd_idle_release(struct kd_engine *e);

/* plan.c: the memory's plan */
/* Bytes of a sequence of so many tokens. */
int64_t kd_plan_bytes(const struct kd_engine *e, int64_t tokens);
/* Memory for the next step of a choice that decodes. */
bool kd_plan_grow(struct kd_choice *c);
/* Takes a starved choice's memory, so that others can go on. False: there is none. */
bool kd_plan_park_one(struct kd_engine *e);
/* Lets parked choices set out again as far as there is memory. False: some have to wait on. */
bool kd_plan_unpark(struct kd_engine *e);

/* draft.c */
void kd_draft_plan(struct kd_engine *e, struct kd_choice *c, int64_t rows);
void kd_draft_result(struct kd_choice *c, int64_t accepted);
void kd_cost_add(struct kd_cost *k, double rows, double seconds);

/* step.c: one pass of the model over the todo list, and what comes of it. Choices may have ended
 * afterwards, none is released. */
void kd_step_run(struct kd_engine *e);

/* sched.c */
void *kd_sched_thread(void *engine);

#endif
