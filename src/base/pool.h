/* A pool of threads for loops. Work is cut by the caller into `count` items whose results do not
 * depend on which thread runs them, so the thread count never changes a result. Items are handed
 * out in order, one at a time. A run from inside a run is done by the calling thread alone.
 *
 *     kd_pool_run(pool, rows, row_block, &job);
 *
 * A pool may be NULL: then everything runs on the calling thread. */
#ifndef KD_BASE_POOL_H
#define KD_BASE_POOL_H

#include "base/err.h"

#include <stdint.h>

struct kd_pool;

/* threads = 0: one for each CPU this process may use. The caller's thread counts as one. */
int kd_pool_open(struct kd_pool **pool, int threads, struct kd_err *err) KD_MUST;
/* `lanes` pools with the threads of `pool` divided among them, for work side by side. A lane of one
 * thread, and a single lane, gets NULL. Those opened are the caller's to close also after an error.
 */
int kd_pool_split(const struct kd_pool *pool, int lanes, struct kd_pool **lane,
                  struct kd_err *err) KD_MUST;
void kd_pool_close(struct kd_pool *pool);
int kd_pool_threads(const struct kd_pool *pool);
/* CPU time of its threads so far, in seconds, the callers' own not counted. */
double kd_pool_cpu_s(const struct kd_pool *pool);
/* Calls fn(ctx, i, worker) for each i in 0..count-1; worker is 0..threads-1 and no two calls run
 * with the same worker at one time (for scratch memory). Returns when all are done. */
void kd_pool_run(struct kd_pool *pool, int64_t count, void (*fn)(void *ctx, int64_t i, int worker),
                 void *ctx);
/* Reads `bytes` bytes once, in pieces of 1 MiB over the pool, and does nothing else with them: the
 * time it takes is what memory gives a plain reader. Returns the exclusive or of their 64-bit words
 * (a last piece that is shorter than a word counts as if zeros followed), so that no read can be
 * left out. */
uint64_t kd_pool_read(struct kd_pool *pool, const void *data, int64_t bytes);

#endif
