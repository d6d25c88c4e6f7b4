#include "base/pool.h"

#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

enum { THREADS_MAX = 1024, LOOKS = 16 };

/* Going to sleep and being woken takes tens of microseconds, as long as a layer of a small model:
 * so who runs out of work looks for more before it sleeps. At most this long, and half as long each
 * time it was for nothing: a thread that is waited for may wait for a CPU itself. */
static const double patience_most_s = 100e-6, patience_least_s = 4e-6;

struct kd_pool {
    pthread_mutex_t lock; /* for sleeping alone; a run takes it only to wake somebody */
    pthread_cond_t work, done;
    pthread_t *threads;
    int thread_count; /* helpers; the caller is one more */
    bool looks;       /* there is a CPU for each thread: waiting awake takes nothing from others */
    atomic_bool stop;
    /* Low half: helpers that may still join the run; high half: that have. A helper reads the run
     * only between joining and leaving, and the caller changes it only when both are 0. */
    _Atomic uint64_t gate;
    atomic_int asleep; /* helpers that wait for `work` */
    atomic_bool waits; /* the caller waits for `done` */
    double patience_s; /* the caller's */
    void (*fn)(void *ctx, int64_t i, int worker);
    void *ctx;
    int64_t count;
    atomic_llong next;
};

static const uint64_t joined_one = UINT64_C(1) << 32, may_join = UINT32_MAX;

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

static void breathe(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool work_is_there(const struct kd_pool *p)
{
    return (atomic_load(&p->gate) & may_join) || atomic_load(&p->stop);
}

static bool all_have_left(const struct kd_pool *p)
{
    return atomic_load(&p->gate) < joined_one;
}

/* True as soon as `seen` is, false if it is not for as long as the patience lasts. */
static bool look(const struct kd_pool *p, bool (*seen)(const struct kd_pool *p), double *patience_s)
{
    if (seen(p))
        return true;
    for (double until = p->looks ? kd_clock_s() + *patience_s : 0; p->looks;) {
        for (int i = 0; i < LOOKS; i++) {
            breathe();
            if (seen(p)) {
                *patience_s *= *patience_s < patience_most_s ? 2 : 1;
                return true;
            }
        }
        if (kd_clock_s() > until)
            break;
    }
    *patience_s /= *patience_s > patience_least_s ? 2 : 1;
    return false;
}

static bool join(struct kd_pool *p)
{
    uint64_t g = atomic_load(&p->gate);
    while (g & may_join)
        if (atomic_compare_exchange_weak(&p->gate, &g, g - 1 + joined_one))
            return true;
    return false;
}

static void leave(struct kd_pool *p)
{
    if (atomic_fetch_sub(&p->gate, joined_one) >= 2 * joined_one || !atomic_load(&p->waits))
        return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->lock);
}

static void *helper(void *arg)
{
    struct start s = *(struct start *)arg;
    kd_mem_free(arg);
    struct kd_pool *p = s.pool;
    double patience_s = patience_least_s;
    while (!atomic_load(&p->stop)) {
        if (!look(p, work_is_there, &patience_s)) {
            pthread_mutex_lock(&p->lock);
            atomic_fetch_add(&p->asleep, 1); /* before the last look: run() sees one or the other */
            while (!work_is_there(p))
                pthread_cond_wait(&p->work, &p->lock);
            atomic_fetch_sub(&p->asleep, 1);
            pthread_mutex_unlock(&p->lock);
        }
        if (join(p)) {
            drain(p, s.worker);
            leave(p);
        }
    }
    return NULL;
}

/* CPUs that this process may use; 0: not known. */
static int cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 0 : CPU_COUNT(&set);
}

int kd_pool_open(struct kd_pool **pool, int threads, struct kd_err *err)
{
    *pool = NULL;
    if (threads < 0 || threads > THREADS_MAX)
        return kd_fail(err, KD_EINVAL, "%d threads: give 1 to %d, or 0 for all CPUs", threads,
                       THREADS_MAX);
    const int all = cpus();
    if (!threads)
        threads = all ? all : 1;
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
    p->looks = threads <= all;
    p->patience_s = patience_least_s;
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
    atomic_store(&p->stop, true);
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

static void wake(struct kd_pool *p, int64_t wanted)
{
    pthread_mutex_lock(&p->lock);
    if (wanted == p->thread_count)
        pthread_cond_broadcast(&p->work);
    else
        for (int64_t i = 0; i < wanted; i++)
            pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
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
    p->fn = fn;
    p->ctx = ctx;
    p->count = count;
    atomic_store(&p->next, 0);
    /* No more helpers than there is work for, and nobody waits for one that comes too late. */
    int64_t wanted = count - 1 < p->thread_count ? count - 1 : p->thread_count;
    atomic_store(&p->gate, (uint64_t)wanted);
    if (atomic_load(&p->asleep))
        wake(p, wanted);
    drain(p, 0);
    atomic_fetch_and(&p->gate, ~may_join);
    if (look(p, all_have_left, &p->patience_s))
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->waits, true);
    while (!all_have_left(p))
        pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->waits, false);
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
