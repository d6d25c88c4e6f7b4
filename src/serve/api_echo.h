/* Answers that come back in later requests: told to the model in the tokens it made them with, if
 * the client has left them as they were (serve/said.h). */
#ifndef KD_SERVE_API_ECHO_H
#define KD_SERVE_API_ECHO_H

#include "serve/api_stream.h"

/* Appends the ids of a rendered chat. messages: the list it was rendered from, in t. */
int kd_echo_ids(struct kd_api *api, const char *owner, const struct kd_jtree *t,
                const struct kd_jnode *messages, bool thinking, const struct kd_chat *chat,
                struct kd_ids *out, struct kd_err *err) KD_MUST;
/* A turn that came to its own end, all of it told to the client. */
void kd_echo_keep(struct kd_api *api, const char *owner, const struct kd_choice *c, bool thinking,
                  const struct kd_ids *made);

#endif
