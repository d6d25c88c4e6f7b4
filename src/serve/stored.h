/* Stored responses: JSON texts by id, kept apart by owner, with a limit of bytes (the oldest go)
 * and of time. Thread-safe. */
#ifndef KD_SERVE_STORED_H
#define KD_SERVE_STORED_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct kd_store;
int kd_store_open(struct kd_store **out, int64_t max_bytes, double keep_s,
                  struct kd_err *err) KD_MUST;
void kd_store_close(struct kd_store *s);
/* Copies. `body`: what GET answers; `history`: the conversation up to it, for the next turn. What
 * alone is over the limit is not kept. */
void kd_store_put(struct kd_store *s, const char *owner, const char *id, const struct kd_buf *body,
                  const struct kd_buf *history);
/* Appends what is there (either buffer may be NULL); false when there is none. */
bool kd_store_get(struct kd_store *s, const char *owner, const char *id, struct kd_buf *body,
                  struct kd_buf *history);
bool kd_store_remove(struct kd_store *s, const char *owner, const char *id);
int64_t kd_store_bytes(struct kd_store *s);

#endif
