/* An answer on its way: the engine's tokens become thinking, answer and tool calls, choice by
 * choice, as fragments that are certain when they are told. An answer that is not streamed is the
 * same fragments, collected; so both are equal by construction.
 *
 * Tool arguments: fragments of one JSON text. A string goes out as it is made where the model and
 * the tool's schema both say string; other values when they are complete, brought into the schema's
 * type where that loses nothing. Calls of tools that were not declared are dropped and counted; of
 * equal keys the first wins. */
#ifndef KD_SERVE_API_STREAM_H
#define KD_SERVE_API_STREAM_H

#include "serve/api_request.h"

enum kd_part {
    KD_PART_THINK,
    KD_PART_TEXT,
    KD_PART_CALL, /* call's id and name are known */
    KD_PART_ARGS,
    KD_PART_CALL_END
};

struct kd_call {
    int64_t index;
    char id[40];
    struct kd_buf name, args;
    bool complete;
};

struct kd_choice {
    int64_t index, prompt; /* which of the prompts */
    struct kd_buf think, text;
    struct kd_call **calls;
    int64_t call_count, call_cap;
    enum kd_finish finish;
    int32_t stop;           /* which stop string ended it, or -1 */
    struct kd_buf logprobs; /* JSON items of `content`, with commas between, not yet told */
    struct kd_buf all_logprobs;
    struct kd_buf ids; /* JSON numbers, when asked for */
    int64_t made, reasoning;
    struct kd_err err; /* with KD_FINISH_ERROR */
    struct kd_choice_work *work;
};

struct kd_sink {
    void *ctx;
    /* c->logprobs belongs to a TEXT part; whoever prints it clears it. NULL: nobody listens. */
    void (*part)(void *ctx, struct kd_choice *c, enum kd_part part, const struct kd_call *call,
                 const char *text, size_t bytes);
    void (*end)(void *ctx, struct kd_choice *c);
};

struct kd_flow {
    struct kd_api *api;
    struct kd_ask ask;
    struct kd_sink sink;
    struct kd_request **runs; /* one for each prompt */
    int64_t run_count, running;
    struct kd_choice *choice; /* [prompts * n] */
    int64_t choice_count, ended;
    struct kd_usage usage; /* sums over the runs, as of the last kd_flow_usage */
    struct kd_hooks *hooks;
    char owner[65];
    int64_t dropped; /* calls of tools that were not declared */
    bool oom;
};

/* Takes over the ask (also when it fails) and starts it; bad says why not, retry_s is for 429. */
int kd_flow_open(struct kd_flow *f, struct kd_api *api, struct kd_ask *ask, const char *owner,
                 double *retry_s, struct kd_bad *bad) KD_MUST;
/* Tells what has come, waiting up to timeout_s for the first. 1: all choices have ended; -1: failed
 * (a choice's err says why). */
int kd_flow_next(struct kd_flow *f, double timeout_s);
/* To the end. -1 also when the client has gone. */
int kd_flow_wait(struct kd_flow *f, struct kd_req *r);
const struct kd_usage *kd_flow_usage(struct kd_flow *f);
int64_t kd_flow_reasoning(const struct kd_flow *f);
/* `,"kondense":{...}`: with how many experts the answer was made. */
void kd_flow_making(struct kd_flow *f, struct kd_buf *out);
/* "stop", "length", "tool_calls". */
const char *kd_choice_reason(const struct kd_choice *c);
/* The calls that are whole. */
int64_t kd_choice_calls(const struct kd_choice *c);
/* Cancels what runs and frees all. Adds figures to the request's log line (r may be NULL). */
void kd_flow_close(struct kd_flow *f, struct kd_req *r);
/* Answers a request that kd_flow_open refused. */
void kd_flow_refuse(struct kd_req *r, double retry_s, const struct kd_bad *bad);
/* The fault of a flow that failed. */
void kd_flow_fault(const struct kd_flow *f, struct kd_bad *bad);
/* Log probabilities of one token as the chat API has them (chat) or as four fields of text
 * completions need; see api_stream.c. */
void kd_flow_token_json(struct kd_buf *out, const struct kd_tok *tok, int32_t id, double logprob);

#endif
