/* Shared by fetch.c (what is there, what is wanted, the run) and fetch_seal.c (checking and naming
 * of finished files). */
#ifndef KD_NET_FETCH_INT_H
#define KD_NET_FETCH_INT_H

#include "net/fetch.h"
#include "net/journal.h"

#include <pthread.h>

struct kd_fetch_item {
    struct kd_fetch_file pub;
    char *path, *part;
    int fd;               /* of the part, or -1 */
    uint64_t *xxh;        /* of the pieces, as the journal says */
    uint64_t tag;         /* hash of the ETag they came with; 0: none */
    uint8_t *have;        /* pieces: 0 no, 1 the journal says so, 2 sound */
    int64_t pieces, left; /* pieces still to come */
    bool dirty;           /* bytes not yet synced */
};

/* A piece on its way. */
struct kd_fetch_piece {
    struct kd_fetch *f;
    int item;
    int64_t no, begin, bytes, got;
};

struct kd_fetch {
    struct kd_source *s;
    struct kd_fetch_opts o;
    char *dst;
    int lock;
    struct kd_fetch_item *items;
    int count;
    struct kd_journal journal;
    double flushed_s;
    int64_t pending_bytes; /* done, not yet synced */
    /* the sealing thread and its queue: items whose pieces are all there */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    pthread_t thread;
    int *queue;
    int queue_head, queue_tail;
    bool running, last; /* last: no more will come */
    bool failed;
    struct kd_err err; /* of the sealing thread */
};

/* Starts and ends the sealing thread. _end waits for the queue and returns its error. */
int kd_fetch_seal_begin(struct kd_fetch *f, struct kd_err *err) KD_MUST;
int kd_fetch_seal_end(struct kd_fetch *f, struct kd_err *err) KD_MUST;
void kd_fetch_seal_put(struct kd_fetch *f, int item);
/* Holds a whole file at path against the source's digests: 0 sound (*verified: there was one), 1
 * another file, -1 with err. */
int kd_fetch_hold(struct kd_fetch *f, int file, const char *path, bool *verified, char sha256[65],
                  struct kd_err *err) KD_MUST;

#endif
