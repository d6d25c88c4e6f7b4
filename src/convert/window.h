/* A remote source of which only a few shards are on this disk at a time. Its small files and the
 * heads of its shards are fetched first, so that it opens as a checkpoint like any other; a shard's
 * bytes are fetched when a layer needs them (ahead of it, by a thread of its own), verified, used,
 * and deleted.
 *
 *     kd_window_open(&w, "hf:owner/name", &so, "out", stopped, err);
 *     kd_window_need(w, layer, err);       its shards are there now
 *     kd_window_ahead(w, layer + 1);       ... and these will be
 *     kd_window_done(w, layer, err);       those that no later layer wants go
 *
 * Layer -1 stands for the embedding, the head and the norms around them; the number of layers for
 * all that a conversion carries along at its end (layer -1 and, say, vision). Folder DST/.source:
 *   model/   small files, and of each shard its head with a hole behind it
 *   shards/  shards that are there (net/fetch.h: resumed after anything)
 *   digests  SHA-256 of shards whose source says none, as they were read
 *
 * One thread. Touching a tensor whose shard is not there is a crash, never a zero. */
#ifndef KD_CONVERT_WINDOW_H
#define KD_CONVERT_WINDOW_H

#include "fmt/ckpt.h"
#include "net/source.h"
#include "text/corpus.h"

struct kd_window;

int kd_window_open(struct kd_window **out, const char *where, const struct kd_source_opts *so,
                   const char *dst, bool (*stopped)(void), struct kd_err *err) KD_MUST;
struct kd_ckpt *kd_window_ckpt(struct kd_window *w);
/* How many layers; from the tensors' names. */
int64_t kd_window_layers(const struct kd_window *w);
int kd_window_need(struct kd_window *w, int64_t layer, struct kd_err *err) KD_MUST;
void kd_window_ahead(struct kd_window *w, int64_t layer);
int kd_window_done(struct kd_window *w, int64_t layer, struct kd_err *err) KD_MUST;
/* Digests by shard of the checkpoint: as the source says them ("" where it does not: the same in
 * every run), or as far as shards were read too. */
const char (*kd_window_digests(const struct kd_window *w, bool read))[65];
/* Most bytes and shards of the source on disk at one time so far, and bytes fetched. */
struct kd_window_stats {
    int64_t peak_bytes, largest_three_bytes, fetched_bytes, source_bytes;
    int peak_shards;
};
struct kd_window_stats kd_window_stats(struct kd_window *w);
/* Where it comes from, and the commit or "". */
const char *kd_window_where(const struct kd_window *w);
const char *kd_window_commit(const struct kd_window *w);
/* Ends the thread. `remove`: DST/.source goes. */
int kd_window_close(struct kd_window *w, bool remove, struct kd_err *err);

#endif
