/* The API of `kondense serve`: what its endpoints share. One struct kd_api serves any number of
 * connections at once; the engine is attached when the model is open, until then requests are told
 * to come back. */
#ifndef KD_SERVE_API_H
#define KD_SERVE_API_H

#include "net/metrics.h"
#include "net/srv.h"
#include "serve/engine.h"
#include "serve/grammar.h"

#include <stdatomic.h>

struct kd_store;
struct kd_said;

/* Zero in any field: the default in parentheses. Strings must outlive the server. */
struct kd_api_options {
    const char *model_id;    /* the name clients use */
    const char *fingerprint; /* system_fingerprint */
    bool any_model;          /* take any name */
    int64_t max_tokens;      /* of an answer where the client says nothing (131072) */
    double timeout_s;        /* of a request, queue included (0: none) */
    const char *effort;      /* low, high, max (max) */
    int64_t experts_used;    /* 0: the model's */
    double expert_mass;      /* 0: off */
    bool shared_cache;       /* caches and stored responses are not kept apart by key */
    bool tell_usage_last;    /* Moonshot's form: usage in the last choice of a stream too */
    int64_t store_bytes;     /* stored responses (64 MiB) */
    double store_s;          /* how long they are kept (3600) */
    int64_t said_bytes;      /* tokens of answers, for the turns after them (32 MiB) */
    const char *cache_dir;   /* where they are kept for the next start too, or NULL; the engine's */
};

struct kd_api {
    struct kd_api_options o;
    struct kd_engine *_Atomic engine;
    const struct kd_tok *tok;
    const struct kd_k3_cfg *cfg;
    struct kd_vocab *vocab;
    struct kd_store *store;
    struct kd_said *said;
    struct kd_srv *srv;
    int64_t created, context;
    atomic_bool draining;
    struct kd_counts replies;      /* by path and status */
    _Atomic int64_t aborted;       /* clients that went before the answer was whole */
    _Atomic int64_t dropped_calls; /* of tools that were not declared */
    _Atomic int64_t reasoning_tokens, answer_tokens, failed;
    _Atomic uint64_t serial;
    uint64_t salt;
};

int kd_api_init(struct kd_api *api, const struct kd_api_options *o, struct kd_err *err) KD_MUST;
/* The model is open: requests are taken from now on. */
int kd_api_attach(struct kd_api *api, struct kd_engine *e, struct kd_err *err) KD_MUST;
void kd_api_release(struct kd_api *api); /* after the server is closed */

extern const struct kd_route kd_api_routes[]; /* ctx: struct kd_api */
/* struct kd_srv_options' fail: OpenAI's form, and Anthropic's under /v1/messages. */
void kd_api_fail(void *ctx, const char *path, const struct kd_fault *f, const char *id,
                 struct kd_buf *out);
/* Counts a finished request; to be called from the server's log hook. */
void kd_api_count(struct kd_api *api, const struct kd_access *a);

/* The attached engine, or NULL after answering 503. */
struct kd_engine *kd_api_engine(struct kd_api *api, struct kd_req *r);
/* prefix and 24 hexadecimal digits, never twice the same. */
void kd_api_new_id(struct kd_api *api, const char *prefix, char out[40]);
/* The owner of caches and stored responses for this request. */
const char *kd_api_owner(const struct kd_api *api, const struct kd_req *r);
int64_t kd_api_now(void); /* seconds since 1970 */

/* Handlers, one file a family. */
void kd_api_chat(void *ctx, struct kd_req *r);
void kd_api_completions(void *ctx, struct kd_req *r);
void kd_api_models(void *ctx, struct kd_req *r);
void kd_api_model(void *ctx, struct kd_req *r);
void kd_api_responses(void *ctx, struct kd_req *r);
void kd_api_response_get(void *ctx, struct kd_req *r);
void kd_api_response_delete(void *ctx, struct kd_req *r);
void kd_api_messages(void *ctx, struct kd_req *r);
void kd_api_count_tokens(void *ctx, struct kd_req *r);
void kd_api_tokenize(void *ctx, struct kd_req *r);
void kd_api_detokenize(void *ctx, struct kd_req *r);
void kd_api_template(void *ctx, struct kd_req *r);
void kd_api_props(void *ctx, struct kd_req *r);
void kd_api_slots(void *ctx, struct kd_req *r);
void kd_api_health(void *ctx, struct kd_req *r);
void kd_api_ready(void *ctx, struct kd_req *r);
void kd_api_metrics(void *ctx, struct kd_req *r);
void kd_api_version(void *ctx, struct kd_req *r);

#endif
