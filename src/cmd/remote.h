/* Options and environment of every command that reads remote files: --jobs, --rate, --allow-http,
 * --token-to-endpoint; HF_ENDPOINT, HF_TOKEN (then HF_TOKEN_PATH, then $HF_HOME/token), HF_HOME,
 * HF_HUB_CACHE, HF_HUB_OFFLINE as the hub's own tools read them. A command puts KD_REMOTE_OPTS into
 * its option table, or KD_REMOTE_OPTS_WITH(0) where -j is something else.
 *
 *     static const struct kd_opt opts[] = {KD_REMOTE_OPTS, {...}, {0}};
 *     struct kd_source_opts so;
 *     if (kd_cmd_source_opts(&so, err) || kd_source_open(&src, where, &so, err)) ... */
#ifndef KD_CMD_REMOTE_H
#define KD_CMD_REMOTE_H

#include "base/opt.h"
#include "net/source.h"

struct kd_remote_flags {
    int64_t jobs, rate;
    bool allow_http, allow_private, token_to_endpoint;
};
extern struct kd_remote_flags kd_remote;

// clang-format off
#define KD_REMOTE_OPTS KD_REMOTE_OPTS_WITH('j')
#define KD_REMOTE_OPTS_WITH(jobs_letter)                                                                    \
    {"jobs", jobs_letter, KD_OPT_INT, &kd_remote.jobs, "N", "requests at once (8)", .min = 1, .max = 64},    \
    {"rate", 0, KD_OPT_SIZE, &kd_remote.rate, "BYTES", "at most so many bytes a second, as 80M (no limit)"}, \
    {"allow-http", 0, KD_OPT_FLAG, &kd_remote.allow_http, NULL, "plain http to other hosts than this one"}, \
    {"allow-private", 0, KD_OPT_FLAG, &kd_remote.allow_private, NULL,                                       \
     "a redirect may lead into a private network"},                                                         \
    {"token-to-endpoint", 0, KD_OPT_FLAG, &kd_remote.token_to_endpoint, NULL,                               \
     "send the token to the server that HF_ENDPOINT names"}
// clang-format on

/* Fills so from the flags and the environment; its strings live until the program ends. */
int kd_cmd_source_opts(struct kd_source_opts *so, struct kd_err *err) KD_MUST;

#endif
