/* What the memory and the disk part of the prefix cache share. */
#ifndef KD_SERVE_PREFIX_INT_H
#define KD_SERVE_PREFIX_INT_H

#include "serve/prefix.h"

#include <stdatomic.h>

/* A cached state. The sequence inside never moves on, so the worker may copy it while the disk's
 * thread writes it. */
struct kd_prefix_entry {
    atomic_int refs;
    uint64_t hash; /* chain over the blocks of 64 ids, from the model's and the key's hash */
    int64_t count;
    struct kd_prefix_key key;
    int32_t *ids; /* [count] */
    struct kd_k3_seq *seq;
    float *logits; /* of an end: of its last token; never on disk */
    int64_t logits_count;
    struct kd_prefix_entry *next;          /* of its bucket, or of a list of loads */
    struct kd_prefix_entry *newer, *older; /* by last use */
};
int kd_prefix_entry_new(struct kd_prefix_entry **out, uint64_t hash, const struct kd_prefix_key *k,
                        const int32_t *ids, int64_t count, struct kd_err *err) KD_MUST;
void kd_prefix_entry_drop(struct kd_prefix_entry *e);
bool kd_prefix_entry_is(const struct kd_prefix_entry *e, uint64_t hash,
                        const struct kd_prefix_key *k, const int32_t *ids, int64_t count);

/* The folder of files, and the thread that reads and writes them. Thread-safe. */
struct kd_prefix_disk;
int kd_prefix_disk_open(struct kd_prefix_disk **out, const struct kd_k3_model *m,
                        const char *fingerprint, const struct kd_prefix_options *o,
                        struct kd_err *err) KD_MUST;
void kd_prefix_disk_close(struct kd_prefix_disk *d);
bool kd_prefix_disk_has(struct kd_prefix_disk *d, uint64_t hash, int64_t count);
/* Writes it some time, if it is long enough and not there. */
void kd_prefix_disk_save(struct kd_prefix_disk *d, struct kd_prefix_entry *e);
/* Reads a file some time; the ticket, or 0 if memory is out. `want` is an entry without a sequence;
 * it is taken over. */
int64_t kd_prefix_disk_load(struct kd_prefix_disk *d, struct kd_prefix_entry *want);
/* Entries read so far (a list by next; the caller's now), and the last ticket that has ended. */
struct kd_prefix_entry *kd_prefix_disk_poll(struct kd_prefix_disk *d, int64_t *through);
void kd_prefix_disk_figures(struct kd_prefix_disk *d, struct kd_prefix_figures *f);

#endif
