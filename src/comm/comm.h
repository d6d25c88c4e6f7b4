/* Sums over the ranks of a tensor-parallel group. The threads backend adds in rank order, so every
 * rank gets the same bits and a run can be repeated. Later backends: TCP, MPI (tests), NCCL. */
#ifndef KD_COMM_COMM_H
#define KD_COMM_COMM_H

#include "base/err.h"

#include <stdint.h>

struct kd_comm {
    int rank, ranks;
    /* buf[i] = sum over ranks, ascending rank, of their buf[i]; all ranks call with the same count.
     */
    int (*all_reduce)(struct kd_comm *c, float *buf, int64_t count, struct kd_err *err);
    int (*barrier)(struct kd_comm *c, struct kd_err *err);
    void *ctx;
};

/* Threads of one process: fills comms[0..ranks-1], one for each thread. */
int kd_comm_local_open(struct kd_comm *comms, int ranks, struct kd_err *err) KD_MUST;
void kd_comm_local_close(struct kd_comm *comms);

#endif
