/* The battery put to a server that speaks OpenAI's chat completions. The answer comes as text, not
 * as ids, so a turn is exact when its parts are: thinking (where the server shows any), answer and
 * tool call. What only logits tell is not measured. Definitions: docs/quality-metrics.md. */
#ifndef KD_GATE_ENDPOINT_H
#define KD_GATE_ENDPOINT_H

#include "gate/battery.h"

struct kd_endpoint {
    const char *url;   /* the API's base as clients know it (https://host/v1), a host alone, or the
                        * address of chat/completions itself */
    const char *model; /* NULL: the one that the server names */
    const char *key_file; /* NULL: no key */
    bool allow_http;
    int64_t parallel; /* requests at a time, at least 1 */
    double timeout_s; /* of one answer; 0: 600 */
    const volatile int *stop;
};

/* Puts all requests to the server; exact and call are [file->count]. A request that the server
 * refuses (400, 413, 422, 500) is a wrong turn; it ends the run when none of the first 8 is taken.
 * Everything else that goes wrong ends it at once, naming the request. */
int kd_endpoint_run(bool *exact, bool *call, struct kd_battery_remote *info,
                    const struct kd_endpoint *e, const struct kd_battery_file *file,
                    struct kd_err *err) KD_MUST;

/* An answer's parts. */
struct kd_said {
    struct kd_buf think, content;
    struct kd_json *calls; /* [{name, arguments}] */
    bool has_think;        /* the server shows thinking, be it empty */
    bool ended;            /* not cut by the token limit or a filter */
    bool bad_call;         /* a call whose arguments are no JSON object */
};
/* body: a chat.completion. KD_EREMOTE with what is wrong when it is none. */
int kd_said_parse(struct kd_said *a, const char *body, size_t bytes, struct kd_err *err) KD_MUST;
void kd_said_release(struct kd_said *a);

/* The parts of an expected turn (its control tokens written out), without a tokenizer. */
struct kd_want {
    struct kd_buf think, content;
};
int kd_want_parse(struct kd_want *w, const struct kd_battery_item *it, struct kd_err *err) KD_MUST;
void kd_want_release(struct kd_want *w);

/* The name of the one model in a list of models (/v1/models) into out. */
int kd_endpoint_model(char *out, size_t size, const char *body, size_t bytes,
                      struct kd_err *err) KD_MUST;
/* The request as the server is asked: the battery's own members as they are spelled, greedy. */
int kd_endpoint_body(struct kd_buf *out, const struct kd_battery_item *it, const char *model,
                     struct kd_err *err) KD_MUST;

#endif
