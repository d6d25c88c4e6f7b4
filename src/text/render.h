/* Inside this folder: the chat template over a parsed request. */
#ifndef KD_TEXT_RENDER_H
#define KD_TEXT_RENDER_H

#include "text/chat.h"
#include "text/jtree.h"

/* `generate`: what "add_generation_prompt" is when the request does not say. */
int kd_chat_render_tree(struct kd_chat *c, const struct kd_jtree *request, bool generate,
                        struct kd_err *err) KD_MUST;

#endif
