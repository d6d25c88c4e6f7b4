/* Shared by the coordinator's files: farm.c (the loop), farm_store.c (results), coord.c (HTTPS). */
#ifndef KD_FARM_FARM_INT_H
#define KD_FARM_FARM_INT_H

#include "farm/farm.h"
#include "farm/wire.h"

#include <pthread.h>
#include <stdatomic.h>

enum kd_slot_state {
    KD_SLOT_NONE,   /* stays as stored */
    KD_SLOT_OPEN,   /* no unit yet */
    KD_SLOT_STORED, /* its unit is on disk, the ledger does not know yet */
    KD_SLOT_DONE
};

/* One job of the open stage. */
struct kd_slot {
    enum kd_slot_state state;
    bool told;          /* the layer's `done` was called */
    bool check;         /* to be encoded again here */
    char other_sha[65]; /* a second result that differs from the unit on disk, and whose */
    char other_by[KD_WORKER_ID_MAX];
    char by[KD_WORKER_ID_MAX], sha[65]; /* of the unit on disk; "" when found there */
    int64_t attempt, bytes;
    double seconds, proxy;
    struct kd_blob_ref weights; /* once asked for */
    bool gone;                  /* no longer in the shared folder */
};

struct kd_blob {
    struct kd_blob_ref ref;
    const uint8_t *data;
    struct kd_buf own; /* data's memory, or unused */
};

/* In all of the coordinator's files e is a job's place in the open stage (0, 1, ...), and what the
 * ledger and the wire call it is its number: an expert's is its place. */
struct kd_farm {
    struct kd_farm_opts o;
    char incarnation[65], canary[65];
    struct kd_ledger ledger;
    pthread_mutex_t ledger_lock; /* of ledger */
    pthread_mutex_t lock;        /* of slots, and of fatal */
    pthread_mutex_t plan_lock;   /* the layer's plan is asked by one thread at a time */
    pthread_cond_t changed;
    pthread_rwlock_t layer_lock; /* held for reading by handlers, for writing to open and close */
    const struct kd_farm_layer *layer;
    struct kd_slot *slot;
    int64_t left;                       /* slots not DONE */
    int64_t serial;                     /* of local claims */
    struct kd_held held[KD_FARM_LANES]; /* each lane's claim; the reaper's thread keeps them */
    bool holds[KD_FARM_LANES];
    struct kd_pool *lane_pool[KD_FARM_LANES]; /* of more than one lane; NULL: one thread */
    atomic_bool lanes_over, disk_full;
    struct kd_err fatal;
    bool failed;
    int64_t unit_bytes_max;
    double disk_said;
    char disk_path[4096]; /* of some unit: where the room is needed */
    char bad_dir[4096];   /* "": refused units are not kept */
    /* workers */
    const char *hosts[KD_HOME_NAMES_MAX];
    struct kd_srv *srv;
    struct kd_tls *tls;
    bool served;       /* the open stage has been described to workers */
    const char *share; /* the shared folder, or NULL */
    struct kd_blob z, hess, routing;
    struct kd_wire_layer wire;
    pthread_t reaper;
    bool reaping;
    atomic_bool over, finished; /* finished: workers are told to leave */
};

/* A ledger call under its lock. */
#define KD_WITH_LEDGER(f, rc, call)                                                                \
    do {                                                                                           \
        pthread_mutex_lock(&(f)->ledger_lock);                                                     \
        (rc) = (call);                                                                             \
        pthread_mutex_unlock(&(f)->ledger_lock);                                                   \
    } while (0)

static inline int64_t kd_farm_number(const struct kd_farm *f, int64_t e)
{
    return f->layer->trunk + e;
}
static inline struct kd_stage kd_farm_stage(const struct kd_farm *f)
{
    return (struct kd_stage){f->layer->layer, f->layer->trunk, f->layer->experts};
}
/* -1: no job of the open stage. */
static inline int64_t kd_farm_place(const struct kd_farm *f, int64_t layer, int64_t number)
{
    const struct kd_farm_layer *l = f->layer;
    return l && layer == l->layer && number >= l->trunk && number < l->trunk + l->experts
               ? number - l->trunk
               : -1;
}
int kd_farm_plan(struct kd_farm *f, int64_t e, struct kd_farm_task *t, bool *wanted,
                 struct kd_err *err) KD_MUST;
/* Ends the run: the loop returns this error. */
void kd_farm_fatal(struct kd_farm *f, const struct kd_err *err);

enum kd_store {
    KD_STORE_NEW,    /* it is the unit now */
    KD_STORE_SAME,   /* there was one with these bytes */
    KD_STORE_DIFFERS /* there was another: to be encoded again here */
};
/* Writes the bytes of job e's unit unless one is there, and tells the ledger. KD_ENET: the ledger
 * is away; the unit is on disk all the same, and the loop tells it later. */
int kd_farm_store(struct kd_farm *f, int64_t e, const struct kd_farm_task *t, const void *data,
                  int64_t bytes, const struct kd_result *r, enum kd_store *what,
                  struct kd_err *err) KD_MUST;
/* Tells the ledger of units that it has not heard of. */
int kd_farm_catch_up(struct kd_farm *f, struct kd_err *err) KD_MUST;
/* Encodes job e again and draws the conclusions. */
int kd_farm_recheck(struct kd_farm *f, int64_t e, struct kd_err *err) KD_MUST;
/* Whether there is room for what the layer still makes; says so every half minute when not. */
bool kd_farm_disk_ok(struct kd_farm *f);

/* coord.c */
int kd_coord_open(struct kd_farm *f, struct kd_err *err) KD_MUST;
void kd_coord_close(struct kd_farm *f);
/* Under layer_lock for writing. */
int kd_coord_layer(struct kd_farm *f, struct kd_err *err) KD_MUST;
void kd_coord_layer_end(struct kd_farm *f);
/* Job e is done: its weights need not be shared any more. */
void kd_coord_forget(struct kd_farm *f, int64_t e);

#endif
