/* K3's chat format: a request becomes segments (text, is_markup) that are tokenised one by one
 * (k3-model 5.3; numbers as Python's json.dumps writes them). And back: ids become thinking, answer
 * and tool calls. */
#ifndef KD_TEXT_CHAT_H
#define KD_TEXT_CHAT_H

#include "base/json.h"
#include "text/tok.h"

struct kd_segment {
    size_t begin, bytes; /* into the text of kd_chat */
    bool markup;
};
/* An assistant's turn among the segments: from behind the opening tag of its first element, where
 * its making would have begun, to the end of its message. */
struct kd_chat_turn {
    int64_t message; /* of the request's list */
    int64_t first, count;
};
struct kd_chat {
    struct kd_buf text;
    struct kd_segment *seg;
    int64_t count, cap;
    struct kd_chat_turn *turn; /* in order */
    int64_t turns, turn_cap;
};
/* request_json: {"messages": [...], "tools": [...], "thinking": true, "thinking_effort": "max",
 * "tool_choice": ..., "response_format": ..., "add_generation_prompt": true}. Raw text, since
 * numbers must keep their spelling. */
int kd_chat_render(struct kd_chat *c, const char *request_json, size_t bytes,
                   struct kd_err *err) KD_MUST;
void kd_chat_release(struct kd_chat *c);
/* Appends the ids of segments [first, first + count), or of all. */
int kd_chat_ids_of(const struct kd_chat *c, int64_t first, int64_t count, const struct kd_tok *tok,
                   struct kd_ids *out, struct kd_err *err) KD_MUST;
int kd_chat_ids(const struct kd_chat *c, const struct kd_tok *tok, struct kd_ids *out,
                struct kd_err *err) KD_MUST;
/* Encodes text in which control tokens are written out ("<|open|>message..."): markup only where
 * `trusted` callers (goldens, expected turns of a battery) say so. */
int kd_chat_markup_ids(const struct kd_tok *tok, const char *text, size_t bytes, struct kd_ids *out,
                       struct kd_err *err) KD_MUST;

/* Incremental parser of an assistant turn, fed with ids. Its result does not depend on how the
 * stream is cut; missing closes are survived; text between elements, unknown elements' tags and
 * control tokens are dropped. Callbacks get bytes as they become certain: whole characters, each
 * byte that is not UTF-8 as U+FFFD. Argument text is what the model wrote: raw for type "string",
 * meant as JSON for others. */
enum kd_turn_part {
    KD_TURN_THINK,
    KD_TURN_RESPONSE,
    KD_TURN_CALL_BEGIN,
    KD_TURN_ARG_BEGIN,
    KD_TURN_ARG,
    KD_TURN_ARG_END,
    KD_TURN_CALL_END,
    KD_TURN_END
};
struct kd_turn;
/* start: KD_TURN_THINK or KD_TURN_RESPONSE, where the prompt left off. on(ctx, part, name, type,
 * text, bytes): name is the tool's (CALL_BEGIN) or the argument's (ARG_BEGIN), type the argument's.
 */
int kd_turn_open(struct kd_turn **t, const struct kd_tok *tok, enum kd_turn_part start,
                 void (*on)(void *ctx, enum kd_turn_part part, const char *name, const char *type,
                            const char *text, size_t bytes),
                 void *ctx, struct kd_err *err) KD_MUST;
/* 1 when the turn has ended (stop token), 0 to go on, -1 on error. */
int kd_turn_feed(struct kd_turn *t, int32_t id, struct kd_err *err);
/* End of stream, with or without a stop token: hands out bytes still held and KD_TURN_END if no
 * stop token did. A call that is open has had no KD_TURN_CALL_END: it is incomplete. */
int kd_turn_finish(struct kd_turn *t, struct kd_err *err) KD_MUST;
void kd_turn_close(struct kd_turn *t);

/* Whole turn at once: reasoning, content and calls as {"name":...,"arguments":{...}} JSON text. An
 * argument that is no JSON though its type says so becomes a string; of equal keys the last wins;
 * an incomplete call is left out. */
struct kd_turn_text {
    struct kd_buf think, content, calls_json; /* calls_json: a JSON array, "[]" when none */
    int64_t call_count;
    bool ended; /* a stop token was seen; ids after it are not looked at */
};
int kd_turn_parse(const struct kd_tok *tok, enum kd_turn_part start, const int32_t *ids,
                  int64_t count, struct kd_turn_text *out, struct kd_err *err) KD_MUST;
void kd_turn_text_release(struct kd_turn_text *t);

#endif
