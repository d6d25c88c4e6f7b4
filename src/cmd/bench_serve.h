/* The parts of bench serve: calls to a server of this process over its socket, and the bound that
 * the matrices set. */
#ifndef KD_CMD_BENCH_SERVE_H
#define KD_CMD_BENCH_SERVE_H

#include "cmd/bench.h"
#include "fmt/ckpt.h"
#include "model/k3_cfg.h"

#include <pthread.h>
#include <stdatomic.h>

/* One POST to 127.0.0.1 on a thread of its own, whose CPU time is the client's. */
struct kd_call {
    pthread_t thread;
    int port;
    const char *path;
    struct kd_buf body;
    atomic_bool stop;       /* to be hung up */
    _Atomic int64_t events; /* server-sent events so far */
    /* once it is joined */
    int status;
    bool whole; /* came to its end */
    double sent_s, end_s;
    struct kd_buf reply; /* the beginning of what came, for a person */
};
/* c->port, path and body are set; release also after a failure. */
int kd_call_start(struct kd_call *c, struct kd_err *err) KD_MUST;
/* Waits for its end (`stop`: asks for it); -1 unless it was stopped or is a whole reply of 200. */
int kd_call_end(struct kd_call *c, bool stop, struct kd_err *err) KD_MUST;
void kd_call_release(struct kd_call *c);

/* What the stored matrices allow. For each way of storing there are two rates, measured on a sample
 * of the model's own matrices of at most 256 MB, all threads in one parallel region: products with
 * one and with 16 tokens give seconds a weight to decode it, once a step, and seconds a weight and
 * token to multiply it. A step of T tokens then takes at least
 *
 *     sum over matrices outside the experts: weights * (decode + T * multiply)
 *   + sum over layers: weights of an expert * (distinct experts * decode + T * topk * multiply)
 *
 * Attention over the context, the recurrence, norms and sampling are not in it. */
struct kd_bound;
int kd_bound_open(struct kd_bound **out, const struct kd_k3_cfg *cfg, const struct kd_ckpt *ck,
                  const struct kd_run *run, struct kd_err *err) KD_MUST;
void kd_bound_close(struct kd_bound *b);
/* Measures every rate once more; the shortest times count, for what else the machine does makes
 * them longer. */
int kd_bound_measure(struct kd_bound *b, struct kd_err *err) KD_MUST;
/* Seconds of a step, of the clock or (cpu) of all threads together. distinct[layer]: experts that
 * its T tokens go through, on average. */
double kd_bound_step_s(const struct kd_bound *b, int64_t T, const double *distinct, bool cpu);
/* The rates as JSON, an array `rates`, and for a person. */
void kd_bound_put(const struct kd_bound *b, const struct kd_bench *to);

#endif
