/* Inside this folder: connections, shared by the gate (srv_gate.c) and the requests (srv.c). */
#ifndef KD_NET_SRV_INT_H
#define KD_NET_SRV_INT_H

#include "net/head.h"
#include "net/srv.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

enum kd_conn_state {
    KD_CONN_GATE,    /* its first head is awaited; the gate's thread owns it */
    KD_CONN_LINGER,  /* refused by the gate; what still comes is thrown away */
    KD_CONN_READING, /* microhttpd reads a request */
    KD_CONN_RUNNING, /* a handler works */
    KD_CONN_WRITING, /* the client has to take something */
    KD_CONN_IDLE     /* between requests */
};

struct kd_conn {
    struct kd_conn *next;
    int fd;
    _Atomic int state;
    _Atomic double deadline; /* shut when it passes; 0: none */
    double born;             /* gate: first byte or arrival */
    bool first_byte;
    bool last_request; /* this request's reply closes */
    struct kd_head head;
    char peer[64], local[64]; /* addresses without ports */
};

struct kd_srv {
    struct kd_srv_options o;
    struct MHD_Daemon *mhd;
    pthread_t thread;
    pthread_mutex_t lock; /* of the list */
    pthread_rwlock_t keys_lock;
    char key[KD_SRV_KEYS_MAX][65];
    int keys;
    struct kd_conn *conns;
    int64_t count;
    int listener, epoll, wake, port;
    atomic_bool stopping, closing, over;
    _Atomic uint64_t serial;
    char salt[17];
    char host[256];
};

void kd_srv_new_id(struct kd_srv *s, char out[40]);
/* A refusal written straight to a socket that no reply has been started on. */
void kd_srv_refuse(struct kd_srv *s, struct kd_conn *c, const struct kd_head *h);
/* Waits for the next request on a connection that microhttpd keeps open: true when a sound head
 * lies in the socket. Otherwise the socket has been shut. */
bool kd_srv_next_head(struct kd_srv *s, struct kd_conn *c);
int kd_srv_gate_open(struct kd_srv *s, struct kd_err *err) KD_MUST;
void kd_srv_gate_close(struct kd_srv *s);
/* Takes a connection out of the list and frees it; the socket stays. */
void kd_srv_forget(struct kd_srv *s, struct kd_conn *c);

#endif
