/* What the model itself said: the tokens of whole answers, found again by the message that a client
 * sends back. Rendering such a message anew may give other tokens (text can be cut in other ways,
 * numbers and keys written otherwise), and from there on no cached prefix would fit. Whoever
 * changes a message, or leaves its thinking out, gets the rendering.
 *
 *     kd_said_begin(&m, owner, thinking);
 *     kd_said_text(&m, reasoning, n); kd_said_text(&m, content, n);
 *     kd_said_call(&m, id, name, arguments, n);
 *     if (!kd_said_key(&m, key)) kd_said_put(s, key, ids, count);
 *
 * Kept within a byte limit, the longest unused go first; with kd_said_keep in a file too, so that a
 * conversation goes on after a restart as if there had been none (docs/formats/answers.md).
 * Thread-safe; a kd_said_message is not. */
#ifndef KD_SERVE_SAID_H
#define KD_SERVE_SAID_H

#include "base/buf.h"
#include "base/err.h"
#include "text/tok.h"

#include <stdbool.h>

struct kd_said;
int kd_said_open(struct kd_said **out, int64_t max_bytes, struct kd_err *err) KD_MUST;
void kd_said_close(struct kd_said *s);

struct kd_said_message {
    struct kd_buf b;
};
/* thinking: the message's tokens begin inside the think element. */
void kd_said_begin(struct kd_said_message *m, const char *owner, bool thinking);
void kd_said_text(struct kd_said_message *m, const char *text, size_t bytes);
/* Arguments as JSON text: its spaces do not count, spelling and order of its members do. */
void kd_said_call(struct kd_said_message *m, const char *id, const char *name, const char *args,
                  size_t bytes);
/* The key, and the end of m. -1: no memory. */
int kd_said_key(struct kd_said_message *m, char key[65]);

/* Of equal keys the later stays. A table that has no memory keeps nothing. */
void kd_said_put(struct kd_said *s, const char key[65], const int32_t *ids, int64_t count);
/* Appends the ids to out; false: not there (or no memory). */
bool kd_said_get(struct kd_said *s, const char key[65], struct kd_ids *out);

/* Takes in what the file says, if it is this model's, and adds to it whatever is put from then on;
 * the folder belongs to this process. A file that grew to several times the byte limit is written
 * anew. One that cannot be added to any more is told of once, and left. `model`: 64 hex digits. */
int kd_said_keep(struct kd_said *s, const char *path, const char *model,
                 struct kd_err *err) KD_MUST;
/* The bytes of such a file. Returns how many of them are whole, 0 when it is another model's. */
int64_t kd_said_read(struct kd_said *s, const void *data, int64_t bytes, const char *model);

#endif
