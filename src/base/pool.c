#include "base/pool.h"

#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

enum { THREADS_MAX = 1024 };

struct kd_pool {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pthread_t *threads;
    int thread_count;    /* helpers; the caller is one more */
    int wanted, running; /* helpers that may still join the run; that have */
    bool stop;
    void (*fn)(void *ctx, int64_t i, int worker);
    void *ctx;
    int64_t count;
    atomic_llong next;
};

static _Thread_local bool inside;

struct start {
    struct kd_pool *pool;
    int worker;
};

static void drain(struct kd_pool *p, int worker)
{
    inside = true;
    for (;;) {
        int64_t i = atomic_fetch_add(&p->next, 1);
        if (i >= p->count)
            break;
        p->fn(p->ctx, i, worker);
    }
    inside = false;
}

static void *helper(void *arg)
{
    struct start s = *(struct start *)arg;
    kd_mem_free(arg);
    struct kd_pool *p = s.pool;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stop && !p->wanted)
            pthread_cond_wait(&p->work, &p->lock);
        if (p->stop)
            break;
        p->wanted--;
        p->running++;
        pthread_mutex_unlock(&p->lock);
        drain(p, s.worker);
        pthread_mutex_lock(&p->lock);
        if (!--p->running)
            pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int kd_pool_open(struct kd_pool **pool, int threads, struct kd_err *err)
{
    *pool = NULL;
    if (threads < 0 || threads > THREADS_MAX)
        return kd_fail(err, KD_EINVAL, "%d threads: give 1 to %d, or 0 for all CPUs", threads,
                       THREADS_MAX);
    if (!threads) {
        cpu_set_t set;
        threads = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    }
    struct kd_pool *p;
    if (kd_mem_zero(&p, 1, sizeof *p, "thread pool", err))
        return -1;
    if (kd_mem_zero(&p->threads, threads, sizeof *p->threads, "thread pool", err)) {
        kd_mem_free(p);
        return -1;
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    for (int i = 0; i + 1 < threads; i++) {
        struct start *s;
        if (kd_mem_new(&s, 1, sizeof *s, "thread pool", err)) {
            kd_pool_close(p);
            return -1;
        }
        s->pool = p;
        s->worker = i + 1;
        int rc = pthread_create(&p->threads[i], NULL, helper, s);
        if (rc) {
            kd_mem_free(s);
            kd_pool_close(p);
            return kd_fail(err, KD_ENOMEM, "cannot start thread %d of %d", i + 1, threads);
        }
        p->thread_count++;
    }
    *pool = p;
    return 0;
}

int kd_pool_split(const struct kd_pool *pool, int lanes, struct kd_pool **lane, struct kd_err *err)
{
    const int threads = kd_pool_threads(pool);

    for (int i = 0; i < lanes; i++)
        lane[i] = NULL;
    for (int i = 0; i < lanes && lanes > 1; i++) {
        const int mine = threads / lanes + (i < threads % lanes);
        if (mine > 1 && kd_pool_open(&lane[i], mine, err))
            return -1;
    }
    return 0;
}

void kd_pool_close(struct kd_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->thread_count; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    kd_mem_free(p->threads);
    kd_mem_free(p);
}

int kd_pool_threads(const struct kd_pool *p)
{
    return p ? p->thread_count + 1 : 1;
}

double kd_pool_cpu_s(const struct kd_pool *p)
{
    double sum = 0;
    for (int i = 0; p && i < p->thread_count; i++)
        sum += kd_clock_thread_s(p->threads[i]);
    return sum;
}

void kd_pool_run(struct kd_pool *p, int64_t count, void (*fn)(void *ctx, int64_t i, int worker),
                 void *ctx)
{
    if (!p || !p->thread_count || inside || count <= 1) {
        bool was = inside;
        inside = true;
        for (int64_t i = 0; i < count; i++)
            fn(ctx, i, 0);
        inside = was;
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->ctx = ctx;
    p->count = count;
    atomic_store(&p->next, 0);
    /* No more helpers than there is work for, and nobody waits for one that comes too late. */
    p->wanted = count - 1 < p->thread_count ? (int)(count - 1) : p->thread_count;
    if (p->wanted == p->thread_count)
        pthread_cond_broadcast(&p->work);
    else
        for (int i = 0; i < p->wanted; i++)
            pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
    drain(p, 0);
    pthread_mutex_lock(&p->lock);
    p->wanted = 0;
    while (p->running)
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

enum { READ_PIECE = 1 << 20 };

struct reader {
    const uint8_t *data;
    int64_t bytes;
    _Atomic uint64_t sum;
};

static void read_piece(void *ctx, int64_t i, int worker)
{
    struct reader *r = ctx;
    const uint8_t *at = r->data + i * READ_PIECE;
    int64_t left = r->bytes - i * READ_PIECE, n = left < READ_PIECE ? left : READ_PIECE, j = 0;
    uint64_t s[4] = {0}, v[4];
    (void)worker;
    for (; j + 32 <= n; j += 32) {
        memcpy(v, at + j, 32);
        for (int l = 0; l < 4; l++)
            s[l] ^= v[l];
    }
    memset(v, 0, sizeof v);
    memcpy(v, at + j, (size_t)(n - j));
    atomic_fetch_xor(&r->sum, s[0] ^ s[1] ^ s[2] ^ s[3] ^ v[0] ^ v[1] ^ v[2] ^ v[3]);
}

uint64_t kd_pool_read(struct kd_pool *pool, const void *data, int64_t bytes)
{
    struct reader r = {.data = data, .bytes = bytes};
    kd_pool_run(pool, (bytes + READ_PIECE - 1) / READ_PIECE, read_piece, &r);
    return r.sum;
}
