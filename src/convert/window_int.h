/* Shared by window.c (which shards, when) and window_fetch.c (the thread that brings them). */
#ifndef KD_CONVERT_WINDOW_INT_H
#define KD_CONVERT_WINDOW_INT_H

#include "convert/window.h"

#include <pthread.h>

enum { KD_WINDOW_SMALL_MAX = 256 << 20, KD_WINDOW_LAYERS_MAX = 100000 };

enum kd_shard_state { KD_SHARD_AWAY, KD_SHARD_WANTED, KD_SHARD_COMES, KD_SHARD_THERE };

struct kd_window {
    struct kd_source *src; /* the thread's, once it runs */
    struct kd_ckpt *ck;
    char dir[2048], model[2060], shards[2060];
    bool (*stopped)(void);
    int shard_count;
    int64_t layers, source_bytes;
    uint8_t *wants;     /* [layers + 2][shards]: of layer -1, of each layer, of the end */
    int *file;          /* of the source, by shard */
    char (*digest)[65]; /* said by the source, or read */
    char (*said)[65];
    int64_t *until;  /* the last row of `wants` that wants it */
    uint8_t *loaded; /* in its place in the checkpoint */
    /* under the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    pthread_t thread;
    uint8_t *state; /* enum kd_shard_state */
    int urgent;
    bool running, last, failed;
    struct kd_err err;
    int64_t peak_bytes, fetched_bytes;
    int peak_shards;
};

int kd_window_thread_begin(struct kd_window *w, struct kd_err *err) KD_MUST;
void kd_window_thread_end(struct kd_window *w);

#endif
