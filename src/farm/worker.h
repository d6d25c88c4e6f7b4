/* A worker: joins a farm, takes experts, encodes them, sends their units. It keeps the inputs of
 * one layer as files in its folder (mapped, so that memory is not what limits it), a few experts'
 * weights in memory, and results that could not be delivered in a spool.
 *
 * Threads: the caller's encodes, and one more for each further lane; others claim and fetch,
 * upload, and beat. The coordinator may be away for half an hour: results wait, nothing is lost. */
#ifndef KD_FARM_WORKER_H
#define KD_FARM_WORKER_H

#include "farm/task.h"

enum { KD_WORKER_LANES = 48 };

struct kd_worker_opts {
    const char *url;       /* NULL: the join file's */
    const char *join_file; /* worker.join */
    const char *dir;       /* its folder: key, inputs, spool; made if missing */
    const char *name;      /* of this host in reports; NULL: its host name */
    const char *share;     /* the shared folder's path here; NULL: the join file's, "none": no */
    const char *device;    /* "cpu", "cuda:0": for reports; what computes is run->encoder */
    const struct kd_run *run;
    int lanes; /* experts side by side (1, at most KD_WORKER_LANES): for run->encoder,
                  which is faster the more there are */
    bool fit;  /* fewer where run->encoder has no room for so many of a layer's */
    const volatile int *stop; /* set: finish or hand back, within half a minute */
    int64_t memory_bytes;     /* for weights that wait; 0: 512 MiB */
    bool stay;                /* after a run's end wait for the next one */
    /* Called half a minute after a stop with an expert still running, once that is handed back:
     * ends the process. NULL: the expert is waited for. */
    void (*end_now)(void);
    double away_s; /* without a coordinator for so long: give up; 0: 1800 */
    /* The worker's own copy of the source: expert e of a layer, or -1. NULL: weights are fetched.
     * Its bytes are held against the coordinator's digest. */
    int (*own)(void *ctx, int64_t layer, int64_t expert, struct kd_farm_task *t,
               struct kd_err *err);
    void *ctx;
};
int kd_worker_run(const struct kd_worker_opts *o, struct kd_err *err) KD_MUST;

#endif
