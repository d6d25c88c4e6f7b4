/* Ranks as threads of one process: buffers meet at a barrier, and each rank sums a piece of them
 * for all, in ascending rank, so everyone ends with the same bits. */
#include "base/mem.h"
#include "comm/comm.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

enum { WAIT_S = 600 }; /* a rank that failed never comes; nobody waits for ever */

struct local {
    pthread_mutex_t lock;
    pthread_cond_t all_here;
    int ranks, here;
    bool broken;
    uint64_t round;
    float **buf;
    int64_t *count;
};

static int meet(struct kd_comm *c, struct kd_err *err)
{
    struct local *g = c->ctx;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    pthread_mutex_lock(&g->lock);
    uint64_t round = g->round;
    if (++g->here == g->ranks) {
        g->here = 0;
        g->round++;
        pthread_cond_broadcast(&g->all_here);
    }
    while (round == g->round && !g->broken)
        if (pthread_cond_timedwait(&g->all_here, &g->lock, &until) == ETIMEDOUT &&
            round == g->round) {
            g->broken = true;
            pthread_cond_broadcast(&g->all_here);
        }
    bool broken = g->broken;
    pthread_mutex_unlock(&g->lock);
    if (broken)
        return kd_fail(err, KD_ETIMEOUT, "rank %d of %d: the others did not come within %d s",
                       c->rank, c->ranks, WAIT_S);
    return 0;
}

static int all_reduce(struct kd_comm *c, float *buf, int64_t count, struct kd_err *err)
{
    struct local *g = c->ctx;
    g->buf[c->rank] = buf;
    g->count[c->rank] = count;
    if (meet(c, err))
        return -1;
    for (int i = 0; i < g->ranks; i++)
        if (g->count[i] != count)
            return kd_fail(err, KD_EINVAL, "rank %d sums %lld values, rank %d %lld", c->rank,
                           (long long)count, i, (long long)g->count[i]);
    /* This rank's piece; nobody else touches these places in any buffer. */
    int64_t lo = count * c->rank / g->ranks, hi = count * (c->rank + 1) / g->ranks;
    for (int64_t i = lo; i < hi; i++) {
        float sum = g->buf[0][i];
        for (int k = 1; k < g->ranks; k++)
            sum += g->buf[k][i];
        for (int k = 0; k < g->ranks; k++)
            g->buf[k][i] = sum;
    }
    return meet(c, err);
}

int kd_comm_local_open(struct kd_comm *comms, int ranks, struct kd_err *err)
{
    struct local *g;
    if (ranks < 1 || ranks > 1024)
        return kd_fail(err, KD_EINVAL, "%d ranks: 1 to 1024", ranks);
    if (kd_mem_zero(&g, 1, sizeof *g, "ranks", err))
        return -1;
    if (kd_mem_zero(&g->buf, ranks, sizeof *g->buf, "ranks", err) ||
        kd_mem_zero(&g->count, ranks, sizeof *g->count, "ranks", err)) {
        kd_mem_free(g->buf);
        kd_mem_free(g);
        return -1;
    }
    g->ranks = ranks;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->all_here, NULL);
    for (int i = 0; i < ranks; i++)
        comms[i] = (struct kd_comm){
            .rank = i, .ranks = ranks, .all_reduce = all_reduce, .barrier = meet, .ctx = g};
    return 0;
}

void kd_comm_local_close(struct kd_comm *comms)
{
    struct local *g = comms[0].ctx;
    pthread_cond_destroy(&g->all_here);
    pthread_mutex_destroy(&g->lock);
    kd_mem_free(g->buf);
    kd_mem_free(g->count);
    kd_mem_free(g);
}
