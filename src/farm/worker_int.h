/* Shared by the worker's files: worker.c (its threads), worker_net.c (its calls). */
#ifndef KD_FARM_WORKER_INT_H
#define KD_FARM_WORKER_INT_H

#include "base/file.h"
#include "farm/home.h"
#include "farm/wire.h"
#include "farm/worker.h"
#include "net/call.h"

#include <pthread.h>
#include <stdatomic.h>

/* One layer's inputs, shared by its jobs. */
struct kd_inputs {
    struct kd_wire_layer wire;
    struct kd_layer_inputs in; /* with its pointers */
    struct kd_map z;
    struct kd_hess hess;
    int32_t *ids;
    float *w;
    int refs;
    int lanes; /* experts of it side by side, once one is there; 0: not known */
};

enum kd_work_state { KD_WORK_FREE, KD_WORK_FETCH, KD_WORK_READY, KD_WORK_RUN, KD_WORK_OUT };

struct kd_work {
    enum kd_work_state state;
    int64_t order; /* of arrival */
    struct kd_wire_job job;
    struct kd_inputs *inputs;
    struct kd_buf weights;
    struct kd_buf unit; /* OUT */
    int64_t ms, layer;
    bool lost;
};

/* A folder that shows nothing is not waited for again and again: of one thread. */
struct kd_share_luck {
    int missed;
    double again; /* not before */
};

struct kd_worker {
    struct kd_worker_opts o;
    struct kd_join_file join;
    char url[512], share[2048], id[KD_WORKER_ID_MAX], key[KD_KEY_MAX], incarnation[65], canary[65],
        host[128];
    double beat_s;
    pthread_mutex_t lock;
    pthread_mutex_t trunk; /* held while a tensor of the trunk has the whole pool */
    struct kd_pool *lane_pool[KD_WORKER_LANES]; /* of several lanes; NULL: one thread */
    pthread_cond_t changed;
    struct kd_work work[KD_LEDGER_HELD_MAX];
    struct kd_inputs *inputs; /* of the newest layer */
    int64_t order;
    double stop_at;             /* 0: not asked to stop */
    _Atomic double heard;       /* of the coordinator, last */
    atomic_bool over, finished; /* over: threads end; finished: the coordinator has no more */
    struct kd_err fatal;
    atomic_bool failed;
    struct kd_share_luck fetching, putting;
    atomic_bool no_trunk; /* a tensor of the trunk did not fit in memory: no more of them */
    int64_t done;
};

void kd_worker_fatal(struct kd_worker *w, const struct kd_err *err);
bool kd_worker_stopping(struct kd_worker *w);
/* Waits for news, at most so long. Without the lock. */
void kd_worker_wait(struct kd_worker *w, int ms);

/* worker_net.c. Each thread has its own client. */
int kd_worker_client(struct kd_worker *w, struct kd_client **c, double total_s,
                     struct kd_err *err) KD_MUST;
/* Joins, or joins again; waits for a coordinator that is away. */
int kd_worker_join(struct kd_worker *w, struct kd_err *err) KD_MUST;
/* 0 with an answer in r, any status; else it could not be reached. */
int kd_worker_post(struct kd_worker *w, struct kd_client *c, const char *what,
                   const struct kd_buf *body, struct kd_reply *r, struct kd_err *err) KD_MUST;
int kd_worker_report(struct kd_worker *w, struct kd_client *c, int64_t layer,
                     const struct kd_wire_job *j, enum kd_fail_class why, const char *detail,
                     struct kd_err *err) KD_MUST;
/* A blob into memory, verified. */
int kd_worker_fetch(struct kd_worker *w, struct kd_client *c, const struct kd_blob_ref *b,
                    struct kd_buf *out, struct kd_err *err) KD_MUST;
/* The inputs of a layer, from the worker's folder where they are. */
int kd_worker_inputs(struct kd_worker *w, struct kd_client *c, const struct kd_wire_layer *l,
                     struct kd_inputs **out, struct kd_err *err) KD_MUST;
void kd_inputs_drop(struct kd_worker *w, struct kd_inputs *in); /* under the lock */
/* Through the shared folder where there is one, else PUT. *status 0: not reached. */
int kd_worker_put(struct kd_worker *w, struct kd_client *c, const struct kd_wire_put *p,
                  const void *data, size_t bytes, int *status, struct kd_err *err) KD_MUST;

#endif
