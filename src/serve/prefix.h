/* The prefix cache: states of sequences at multiples of 64 tokens, as a prefill cut at such
 * multiples left them (KDA states and latent pages together; one without the other is never kept).
 * In memory under a byte budget, least recently used out first; with a folder, also on disk,
 * written and read by a thread of its own. What one owner put in, another does not find.
 *
 * Files (docs/formats/prefix-cache.md): named by hash and length, written beside and renamed, mode
 * 0600; header and payload carry checksums; a file of another model, build of the format or owner,
 * or a damaged one is refused, the damaged one removed. The folder is locked.
 *
 * All functions belong to the worker's thread, except kd_prefix_figures. */
#ifndef KD_SERVE_PREFIX_H
#define KD_SERVE_PREFIX_H

#include "model/k3.h"

struct kd_prefix;
struct kd_prefix_options {
    int64_t bytes;   /* memory; 0: nothing is kept */
    const char *dir; /* NULL: no disk */
    int64_t disk_bytes;
    int64_t disk_min_tokens;   /* of a file, and of what reading one must save */
    void (*loaded)(void *ctx); /* a load has ended: call kd_prefix_poll; any thread */
    void *ctx;
};
int kd_prefix_open(struct kd_prefix **out, const struct kd_k3_model *m, const char *fingerprint,
                   const struct kd_prefix_options *o, struct kd_err *err) KD_MUST;
/* Ends the disk's thread after what it has to write. */
void kd_prefix_close(struct kd_prefix *p);

/* What a state depends on besides the tokens. Bytes after the owner's end are zero. */
struct kd_prefix_key {
    char owner[65];
    int64_t experts_used;
    double expert_mass;
};
bool kd_prefix_same_key(const struct kd_prefix_key *a, const struct kd_prefix_key *b);
/* A new sequence in the state of the longest cached prefix of ids[0..limit), or *seq NULL. If
 * `disk` and the disk has one that is worth reading, that is asked for: *load is then the ticket,
 * else 0. */
int kd_prefix_find(struct kd_prefix *p, const struct kd_prefix_key *k, const int32_t *ids,
                   int64_t limit, bool disk, struct kd_k3_seq **seq, int64_t *load,
                   struct kd_err *err) KD_MUST;
/* Takes in what was read. */
void kd_prefix_poll(struct kd_prefix *p);
bool kd_prefix_loading(const struct kd_prefix *p, int64_t ticket);
/* Tokens, a multiple of 64, up to which an entry agrees with ids[0..limit): a place where others
 * are likely to branch off too. */
int64_t kd_prefix_branch(const struct kd_prefix *p, const struct kd_prefix_key *k,
                         const int32_t *ids, int64_t limit);
/* Whether this very prefix is there. */
bool kd_prefix_has(const struct kd_prefix *p, const struct kd_prefix_key *k, const int32_t *ids,
                   int64_t count);
/* Keeps a copy of seq, which stands at ids[0..pos), pos a multiple of 64. A cache that cannot take
 * it (memory, budget) is no error. */
void kd_prefix_put(struct kd_prefix *p, const struct kd_prefix_key *k, const int32_t *ids,
                   const struct kd_k3_seq *seq);

/* The end of a whole prompt, at any position, with the logits of its last token: of use to the very
 * same prompt alone, which then begins its answer at once. Memory only. */
void kd_prefix_put_end(struct kd_prefix *p, const struct kd_prefix_key *k, const int32_t *ids,
                       const struct kd_k3_seq *seq, const float *logits, int64_t vocab);
/* A new sequence and a copy of the logits, or *seq NULL. */
int kd_prefix_find_end(struct kd_prefix *p, const struct kd_prefix_key *k, const int32_t *ids,
                       int64_t count, struct kd_k3_seq **seq, float **logits,
                       struct kd_err *err) KD_MUST;

struct kd_prefix_figures {
    int64_t bytes, entries, evicted;
    int64_t disk_bytes, disk_entries, disk_hits, disk_written, disk_refused;
};
void kd_prefix_figures(struct kd_prefix *p, struct kd_prefix_figures *f);

#endif
