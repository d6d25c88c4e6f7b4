/* A request's fields, parsed and checked: every endpoint brings its request into the form of a chat
 * completion and comes here. Values of known fields are checked strictly, unknown fields ignored.
 */
#ifndef KD_SERVE_API_REQUEST_H
#define KD_SERVE_API_REQUEST_H

#include "serve/api.h"
#include "text/chat.h"
#include "text/jtree.h"

enum {
    KD_ASK_STOPS_MAX = 16,
    KD_ASK_TOOLS_MAX = 1024,
    KD_ASK_PROMPTS_MAX = 64, /* of one completion request */
    KD_ASK_BYTES_MAX = 256 << 20
};

/* A refusal: f's texts point into it or are constants. */
struct kd_bad {
    struct kd_fault f;
    char message[512], param[192];
};
/* Fills b with 400 (or status) and returns -1. param may be NULL; it is printed first, message
 * follows fmt. */
int kd_bad_at(struct kd_bad *b, int status, const char *code, const char *param, const char *fmt,
              ...) __attribute__((format(printf, 5, 6)));
void kd_bad_reply(struct kd_req *r, const struct kd_bad *b);

enum kd_tool_choice { KD_CHOOSE_AUTO, KD_CHOOSE_NONE, KD_CHOOSE_REQUIRED, KD_CHOOSE_NAMED };

struct kd_tool {
    const char *name;
    const struct kd_jnode *schema; /* "parameters", or NULL; in the ask's tree */
    bool strict;
};

struct kd_ask {
    struct kd_jtree tree; /* the request; strings below point into it */
    bool chat;
    bool thinking; /* the prompt ends inside the think element */
    const char *effort;
    struct kd_ids prompt[KD_ASK_PROMPTS_MAX];
    int64_t prompt_count;
    int64_t max_tokens, choices, min_tokens, thinking_budget; /* budget < 0: none */
    struct kd_sampling sampling;
    bool seeded;
    double presence, frequency, repetition;
    struct kd_bias *bias;
    int64_t bias_count;
    int logprobs; /* as kd_request_spec has it */
    const char *stops[KD_ASK_STOPS_MAX];
    size_t stop_bytes[KD_ASK_STOPS_MAX];
    int64_t stop_count;
    bool stream, include_usage, ignore_eos, echo, token_ids, background, parallel;
    struct kd_tool *tools; /* those of the list, then those of system messages */
    int64_t tool_count;
    enum kd_tool_choice choose;
    const char *chosen; /* the name, with NAMED */
    enum kd_grammar_answer answer;
    struct kd_grammar *grammar; /* or NULL */
};

/* owner: whose answers of before may be told by their own tokens. Both take over nothing; a must be
 * released also after a failure. */
int kd_ask_chat(struct kd_ask *a, struct kd_api *api, const char *owner, const char *json,
                size_t bytes, struct kd_bad *bad) KD_MUST;
int kd_ask_text(struct kd_ask *a, struct kd_api *api, const char *json, size_t bytes,
                struct kd_bad *bad) KD_MUST;
/* Only messages, tools and what else shapes the prompt: for counting. */
int kd_ask_count(struct kd_ask *a, struct kd_api *api, const char *owner, const char *json,
                 size_t bytes, struct kd_bad *bad) KD_MUST;
void kd_ask_release(struct kd_ask *a);
const struct kd_tool *kd_ask_tool(const struct kd_ask *a, const char *name);

/* The body as JSON with an object at the top. */
int kd_ask_parse(struct kd_jtree *t, const char *json, size_t bytes, struct kd_bad *bad) KD_MUST;
/* 404 unless the name is the model's. */
int kd_ask_model(const struct kd_api *api, const struct kd_jtree *t, struct kd_bad *bad) KD_MUST;

#endif
