/* Encoding on devices: tensors and their memory, and one thread a device that searches the tiles of
 * all tensors in rounds. A round is queued while the one before it runs, so the host never stands
 * between two rounds; a job joins with the next round that is queued and leaves with its last. */
#include "gpu/encode.cuh"
#include "gpu/search.cuh"
#include "gpu/tn.cuh"

extern "C" {
#include "base/clock.h"
}

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Smaller in a test, which has small matrices. */
#ifndef KD_ENCODE_ROUND_TILES
#define KD_ENCODE_ROUND_TILES 32768
#endif

enum {
    ROUNDS = 2, /* queued at once */
    /* tiles of one round at most, unless one row of tiles has more */
    ROUND_TILES = KD_ENCODE_ROUND_TILES,
    SCALE_ITEMS = 512,   /* of one scale search in one round */
    BLOCK_TILES = 48,    /* of one search for each block, if there are so many */
    STAMPS = 4,          /* events of a round */
    HELD_SHARE = 4,      /* what stays, such as shared Hessians, may take this part of the memory */
    LOADED = 256 << 20,  /* device memory for kernels, their stacks, and rounding up */
    TARGET_BYTES = 1024, /* of a tile in a round */
    STATES_BYTES = 512,
    TARGETS_SHARED = (KD_ENCODE_SPAN * KD_TILE + KD_TILE * (KD_ENCODE_COLUMNS + 1)) * 4,
    VALUES_SHARED =
        KD_ENCODE_GROUP * KD_TILE_WEIGHTS * (8 + 2) + KD_TILE * (KD_ENCODE_GROUP * KD_TILE + 1) * 4
};

struct kd_encode_turn {
    cudaEvent_t stamp[STAMPS];
    struct kd_encode_job *last; /* jobs that end with it */
    int64_t tiles;
    int blocks; /* of its searches, of the largest */
};

struct kd_encode_device {
    struct kd_gpu *gpu;
    struct kd_stage *stage;
    struct kd_gpu_encoder *owner;
    pthread_t thread;
    pthread_cond_t work, room; /* news for the thread; memory was given back */
    bool started;
    int open;                                      /* tensors on it or waiting for it */
    int64_t budget, used, used_most, next, ticket; /* memory; who waits gets it in order */
    int64_t held;                                  /* of used, by kd_encode_hold */
    int turns, turns_wanted, searching;            /* held, waited for, held by scale searches */
    int64_t turn_next, turn_ticket;
    double turn_seconds;
    struct kd_encode_job *queue, *active;
    struct kd_encode_turn turn_of[ROUNDS];
    int64_t made, ended; /* rounds */
    float *target;
    uint16_t *states;
    int64_t room_tiles;
    bool failed;
    struct kd_err why;
    int64_t tiles;
    double seconds[3], block_seconds;
};

struct kd_gpu_encoder {
    pthread_mutex_t lock;
    pthread_cond_t done; /* some job */
    bool stop, fast;
    int count;
    struct kd_encode_device dev[KD_GPU_ENCODE_DEVICES];
};

/* ---- the rounds ---- */

static bool same_search(const struct kd_encode_job *a, const struct kd_encode_job *b)
{
    const struct kd_encode_part *p = &a->part, *q = &b->part;
    return kd_rate_to16(p->rate) == kd_rate_to16(q->rate) && p->cb == q->cb &&
           a->t->shape.seam == b->t->shape.seam;
}

static int64_t tiles_of(const struct kd_encode_job *j)
{
    return j->scale ? kd_least64(j->items - j->part.item, SCALE_ITEMS) * KD_ENCODE_GROUP
                    : j->part.n / KD_TILE;
}

struct kd_encode_group {
    struct kd_rate rate;
    enum kd_codebook cb;
    int seam;
    int64_t first, tiles;
};

/* What one round does. */
struct kd_encode_plan {
    struct kd_encode_round ldlq, scale;
    int64_t ldlq_columns, scale_blocks, tiles;
    int blocks; /* multiprocessors that are its searches' */
    struct kd_encode_group group[KD_ENCODE_JOBS];
    int groups;
    struct kd_encode_job *spans[KD_ENCODE_JOBS]; /* whose span ends with it */
    int span_count;
};

static void plan_job(struct kd_encode_plan *p, struct kd_encode_job *j)
{
    struct kd_encode_part part = j->part;
    part.first = p->tiles;
    p->tiles += tiles_of(j);
    if (j->scale) {
        part.block = (int32_t)p->scale_blocks;
        p->scale_blocks += tiles_of(j) / KD_ENCODE_GROUP;
        p->scale.part[p->scale.count++] = part;
        j->part.item += tiles_of(j) / KD_ENCODE_GROUP;
        return;
    }
    part.row = j->row;
    part.end = (j->row / KD_ENCODE_SPAN + 1) * KD_ENCODE_SPAN;
    part.block = (int32_t)p->ldlq_columns; /* in columns: both kernels' blocks are parts of it */
    p->ldlq_columns += part.n;
    p->ldlq.part[p->ldlq.count++] = part;
    if (j->feedback && j->row % KD_ENCODE_SPAN == 0 && j->row)
        p->spans[p->span_count++] = j;
    j->row -= KD_TILE;
}

static bool ends(const struct kd_encode_job *j)
{
    return j->scale ? j->part.item >= j->items : j->row < 0;
}

/* Scale searches go first, then tensors with the fewest rows left: they end one after the other, so
 * that the linear algebra of one runs beside the searches of others. */
static bool goes_before(const struct kd_encode_job *a, const struct kd_encode_job *b)
{
    return a->scale != b->scale ? a->scale : !a->scale && a->row < b->row;
}

/* The jobs that come first; how many. */
static int sort_jobs(const struct kd_encode_device *d, struct kd_encode_job *list[KD_ENCODE_JOBS])
{
    int count = 0;
    for (struct kd_encode_job *j = d->active; j; j = j->next) {
        int at = count;
        while (at && goes_before(j, list[at - 1]))
            at--;
        if (at == KD_ENCODE_JOBS)
            continue;
        count += count < KD_ENCODE_JOBS;
        memmove(list + at + 1, list + at, (size_t)(count - 1 - at) * sizeof *list);
        list[at] = j;
    }
    return count;
}

/* Jobs of one kind of search after each other, as many as fill its blocks and there is room for;
 * those that end with this round move to *last. */
static void plan_round(struct kd_encode_device *d, struct kd_encode_plan *p, int spare,
                       struct kd_encode_job **last)
{
    bool taken[KD_ENCODE_JOBS] = {};
    struct kd_encode_job *list[KD_ENCODE_JOBS];
    const int count = sort_jobs(d, list);

    memset(p, 0, sizeof *p);
    p->blocks = kd_gpu_facts(d->gpu)->sms - spare;
    p->ldlq.target = p->scale.target = d->target;
    p->ldlq.states = p->scale.states = d->states;
    for (int i = 0; i < count; i++) {
        if (taken[i])
            continue;
        struct kd_encode_group *g = &p->group[p->groups];
        *g = {list[i]->part.rate, list[i]->part.cb, list[i]->t->shape.seam, p->tiles, 0};
        for (int k = i; k < count; k++) {
            if (taken[k] || !same_search(list[i], list[k]))
                continue;
            const int64_t more = tiles_of(list[k]);
            taken[k] = true;
            if ((p->tiles && p->tiles + more > d->room_tiles) ||
                (g->tiles && g->tiles + more > p->blocks * BLOCK_TILES))
                continue; /* a later round */
            plan_job(p, list[k]);
            g->tiles = p->tiles - g->first;
        }
        p->groups += g->tiles > 0;
    }
    for (struct kd_encode_job **at = &d->active; *at;) {
        struct kd_encode_job *j = *at;
        if (!ends(j)) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        j->next = *last;
        *last = j;
    }
}

static int grow(struct kd_encode_device *d, int64_t tiles, struct kd_err *err)
{
    if (tiles <= d->room_tiles)
        return 0;
    cudaFree(d->target); /* waits for the rounds under way */
    cudaFree(d->states);
    d->target = nullptr;
    d->states = nullptr;
    d->room_tiles = 0;
    if (kd_gpu_failed(cudaMalloc((void **)&d->target, (size_t)tiles * TARGET_BYTES), err,
                      "device memory for tiles") ||
        kd_gpu_failed(cudaMalloc((void **)&d->states, (size_t)tiles * STATES_BYTES), err,
                      "device memory for states"))
        return -1;
    d->room_tiles = tiles;
    return 0;
}

/* A kernel's blocks are columns / width: the parts say which columns are theirs. */
static struct kd_encode_round in_blocks(const struct kd_encode_round *q, int width)
{
    struct kd_encode_round r = *q;
    for (int i = 0; i < r.count; i++)
        r.part[i].block /= width;
    return r;
}

static int stamp(struct kd_encode_device *d, struct kd_encode_turn *r, int i, struct kd_err *err)
{
    return kd_gpu_failed(cudaEventRecord(r->stamp[i], d->gpu->stream), err, "an event");
}

static int before_search(struct kd_encode_device *d, const struct kd_encode_plan *p,
                         struct kd_err *err)
{
    cudaStream_t s = d->gpu->stream;
    if (p->ldlq.count) {
        const struct kd_encode_round q = in_blocks(&p->ldlq, KD_ENCODE_COLUMNS);
        KD_LAUNCH(kd_encode_targets, p->ldlq_columns / KD_ENCODE_COLUMNS, KD_ENCODE_COLUMNS,
                  TARGETS_SHARED, s, q);
    }
    if (p->scale.count)
        KD_LAUNCH(kd_encode_scale_targets, p->scale_blocks, KD_ENCODE_THREADS, 0, s, p->scale);
    return kd_gpu_failed(cudaGetLastError(), err, "preparing tiles");
}

static int after_search(struct kd_encode_device *d, const struct kd_encode_plan *p,
                        struct kd_err *err)
{
    const int width = KD_ENCODE_GROUP * KD_TILE;
    cudaStream_t s = d->gpu->stream;
    if (p->ldlq.count) {
        const struct kd_encode_round q = in_blocks(&p->ldlq, width);
        KD_LAUNCH(kd_encode_values, p->ldlq_columns / width, KD_ENCODE_THREADS, VALUES_SHARED, s,
                  q);
    }
    if (p->scale.count)
        KD_LAUNCH(kd_encode_scale_sums, p->scale_blocks, KD_ENCODE_THREADS,
                  KD_ENCODE_GROUP * KD_TILE_WEIGHTS * 8, s, p->scale);
    if (kd_gpu_failed(cudaGetLastError(), err, "after the search"))
        return -1;
    /* The rows above a finished span get its errors. */
    struct kd_gpu_tn_job tn[KD_ENCODE_JOBS];
    for (int i = 0; i < p->span_count; i++) {
        const struct kd_encode_job *j = p->spans[i];
        const struct kd_encode_part *q = &j->part;
        const int64_t span = j->row + KD_TILE;
        tn[i] = {q->l + span * q->k, q->e, q->t, q->k,  q->n, q->n,
                 KD_ENCODE_SPAN,     span, q->n, false, false};
    }
    return kd_gpu_tn_launch_all(s, tn, p->span_count, err);
}

/* A search fills every multiprocessor that it has for milliseconds, and chains of small kernels
 * would wait that long for each of theirs. So, while there are such chains, one multiprocessor is
 * always theirs. They go first wherever a search's block ends, and it has one on each, so that none
 * waits longer than one search. Under the lock. */
static int spare_of(const struct kd_encode_device *d)
{
    return d->turns + d->turns_wanted > d->searching && kd_gpu_facts(d->gpu)->sms > 1;
}

/* As few blocks as have no more pairs of tiles each than with all that are free. */
static int blocks_of(int64_t tiles, int most)
{
    const int64_t each = (tiles + 2 * most - 1) / (2 * most) * 2;
    return (int)((tiles + each - 1) / each);
}

static int queue_round(struct kd_encode_device *d, struct kd_encode_turn *r,
                       const struct kd_encode_plan *p, struct kd_err *err)
{
    r->tiles = p->tiles;
    r->blocks = 0;
    if (stamp(d, r, 0, err) || before_search(d, p, err) || stamp(d, r, 1, err))
        return -1;
    for (int i = 0; i < p->groups; i++) {
        const struct kd_encode_group *g = &p->group[i];
        const int blocks = blocks_of(g->tiles, p->blocks);
        r->blocks = blocks > r->blocks ? blocks : r->blocks;
        if (kd_gpu_search_launch(d->gpu, d->gpu->stream, g->rate, g->cb, g->seam, blocks,
                                 d->target + g->first * KD_TILE_WEIGHTS,
                                 d->states + g->first * KD_TILE_WEIGHTS, g->tiles, err))
            return -1;
    }
    return stamp(d, r, 2, err) || after_search(d, p, err) || stamp(d, r, 3, err) ? -1 : 0;
}

/* Waits for the oldest round. */
static int end_round(struct kd_encode_device *d, struct kd_err *err)
{
    struct kd_encode_turn *r = &d->turn_of[d->ended % ROUNDS];
    if (kd_gpu_failed(cudaEventSynchronize(r->stamp[STAMPS - 1]), err, "encoding"))
        return -1;
    for (int i = 0; i + 1 < STAMPS; i++) {
        float ms = 0;
        if (kd_gpu_failed(cudaEventElapsedTime(&ms, r->stamp[i], r->stamp[i + 1]), err, "encoding"))
            return -1;
        d->seconds[i] += ms * 1e-3;
        if (i == 1)
            d->block_seconds += ms * 1e-3 * r->blocks;
    }
    return 0;
}

/* Under the lock. */
static void tell(struct kd_encode_device *d, struct kd_encode_job *list, int rc)
{
    while (list) {
        struct kd_encode_job *j = list;
        list = j->next;
        j->rc = rc;
        j->done = true;
    }
    pthread_cond_broadcast(&d->owner->done);
}

/* Under the lock. The device's thread ends; whoever waits hears why. */
static void fail(struct kd_encode_device *d, const struct kd_err *err)
{
    d->failed = true;
    d->why = *err;
    for (int i = 0; i < ROUNDS; i++) {
        tell(d, d->turn_of[i].last, -1);
        d->turn_of[i].last = NULL;
    }
    tell(d, d->active, -1);
    tell(d, d->queue, -1);
    d->active = d->queue = NULL;
    pthread_cond_broadcast(&d->room);
}

/* Queues a round when there is a job and fewer than ROUNDS are under way, else ends one. Under the
 * lock, which it leaves while it works. */
static int step(struct kd_encode_device *d, struct kd_err *err)
{
    pthread_mutex_t *lock = &d->owner->lock;
    while (d->queue) {
        struct kd_encode_job *j = d->queue;
        d->queue = j->next;
        j->next = d->active;
        d->active = j;
    }
    int rc = 0;
    if (d->active && d->made - d->ended < ROUNDS) {
        static_assert(sizeof(struct kd_encode_plan) < 64 << 10, "on the stack");
        struct kd_encode_plan p;
        struct kd_encode_job *last = NULL;
        struct kd_encode_turn *r = &d->turn_of[d->made % ROUNDS];
        const int spare = spare_of(d);
        int64_t widest = ROUND_TILES;
        for (const struct kd_encode_job *j = d->active; j; j = j->next)
            widest = kd_most64(widest, tiles_of(j));
        pthread_mutex_unlock(lock);
        rc = grow(d, widest, err);
        if (!rc) {
            plan_round(d, &p, spare, &last);
            rc = queue_round(d, r, &p, err);
        }
        pthread_mutex_lock(lock);
        r->last = last;
        d->made++;
        return rc;
    }
    pthread_mutex_unlock(lock);
    rc = end_round(d, err);
    pthread_mutex_lock(lock);
    if (!rc) {
        struct kd_encode_turn *r = &d->turn_of[d->ended++ % ROUNDS];
        d->tiles += r->tiles;
        tell(d, r->last, 0);
        r->last = NULL;
    }
    return rc;
}

static void *rounds(void *arg)
{
    struct kd_encode_device *d = (struct kd_encode_device *)arg;
    pthread_mutex_t *lock = &d->owner->lock;
    struct kd_err err;
    int rc = kd_gpu_failed(cudaSetDevice(d->gpu->index), &err, "choosing the device");

    pthread_mutex_lock(lock);
    while (!rc && !d->owner->stop) {
        if (!d->queue && !d->active && d->made == d->ended)
            pthread_cond_wait(&d->work, lock);
        else
            rc = step(d, &err);
    }
    if (rc)
        fail(d, &err);
    pthread_mutex_unlock(lock);
    return NULL;
}

/* ---- turns, all under the lock ---- */

static int take_turn(struct kd_gpu_tensor *t)
{
    struct kd_encode_device *d = t->dev;
    const int64_t ticket = d->turn_ticket++;
    d->turns_wanted++;
    while (!d->failed && (ticket != d->turn_next || d->turns == KD_ENCODE_TURNS))
        pthread_cond_wait(&d->room, &d->owner->lock);
    d->turns_wanted--;
    if (d->failed)
        return -1;
    d->turn_next++;
    d->turns++;
    t->turn = true;
    t->turn_began = kd_clock_s();
    pthread_cond_broadcast(&d->room);
    return 0;
}

static void give_turn(struct kd_gpu_tensor *t)
{
    struct kd_encode_device *d = t->dev;
    if (!t->turn)
        return;
    t->turn = false;
    d->turns--;
    d->turn_seconds += kd_clock_s() - t->turn_began;
    pthread_cond_broadcast(&d->room);
}

int kd_encode_take_turn(struct kd_gpu_tensor *t, struct kd_err *err)
{
    pthread_mutex_lock(&t->dev->owner->lock);
    int rc = take_turn(t);
    if (rc && err)
        *err = t->dev->why;
    pthread_mutex_unlock(&t->dev->owner->lock);
    return rc;
}

void kd_encode_give_turn(struct kd_gpu_tensor *t)
{
    pthread_mutex_lock(&t->dev->owner->lock);
    give_turn(t);
    pthread_mutex_unlock(&t->dev->owner->lock);
}

/* Hands a job in and waits for its end. */
int kd_encode_run(struct kd_encode_job *j, struct kd_err *err)
{
    struct kd_encode_device *d = j->t->dev;
    pthread_mutex_t *lock = &d->owner->lock;
    pthread_mutex_lock(lock);
    if (d->failed) {
        j->rc = -1;
    } else {
        j->next = d->queue;
        d->queue = j;
        if (!j->scale)
            give_turn(j->t);
        d->searching += j->scale;
        pthread_cond_signal(&d->work);
        while (!j->done)
            pthread_cond_wait(&d->owner->done, lock);
        d->searching -= j->scale;
        if (!j->rc && !j->scale)
            j->rc = take_turn(j->t);
    }
    if (j->rc && err)
        *err = d->why;
    pthread_mutex_unlock(lock);
    return j->rc;
}

/* ---- devices ---- */

static int open_device(struct kd_encode_device *d, int index, int64_t memory_bytes,
                       struct kd_err *err)
{
    cudaMemPool_t pool;
    uint64_t keep = UINT64_MAX;

    if (kd_gpu_open(&d->gpu, index, err))
        return -1;
    const struct kd_gpu_facts *f = kd_gpu_facts(d->gpu);
    d->budget = f->free_bytes - f->free_bytes / 32 - LOADED -
                (int64_t)ROUND_TILES * (TARGET_BYTES + STATES_BYTES) -
                kd_gpu_search_room(f, ROUND_TILES);
    if (memory_bytes && memory_bytes < d->budget)
        d->budget = memory_bytes;
    if (d->budget <= 0)
        return kd_fail(err, KD_ENOMEM,
                       "%s has %lld bytes of memory free: use the CPU (--device cpu)", f->name,
                       (long long)f->free_bytes);
    if (kd_gpu_failed(cudaDeviceGetDefaultMemPool(&pool, index), err, "device memory") ||
        kd_gpu_failed(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), err,
                      "device memory") ||
        kd_stage_open(&d->stage, index, err) || grow(d, ROUND_TILES, err))
        return -1;
    for (int i = 0; i < ROUNDS; i++)
        for (int k = 0; k < STAMPS; k++)
            if (kd_gpu_failed(
                    cudaEventCreateWithFlags(&d->turn_of[i].stamp[k], cudaEventBlockingSync), err,
                    "an event"))
                return -1;
    if (pthread_create(&d->thread, NULL, rounds, d))
        return kd_fail(err, KD_ENOMEM, "cannot start a thread");
    d->started = true;
    return 0;
}

static void close_device(struct kd_encode_device *d)
{
    if (d->started)
        pthread_join(d->thread, NULL);
    if (d->gpu) {
        cudaSetDevice(d->gpu->index);
        kd_stage_close(d->stage);
        cudaFree(d->target);
        cudaFree(d->states);
        for (int i = 0; i < ROUNDS; i++)
            for (int k = 0; k < STAMPS; k++)
                if (d->turn_of[i].stamp[k])
                    cudaEventDestroy(d->turn_of[i].stamp[k]);
        kd_gpu_close(d->gpu);
    }
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->room);
}

/* ---- memory ---- */

/* The device with the fewest tensors; memory in the order of asking. */
int kd_encode_take_room(struct kd_gpu_encoder *e, struct kd_gpu_tensor *t, struct kd_err *err)
{
    int rc = 0;
    pthread_mutex_lock(&e->lock);
    struct kd_encode_device *d = &e->dev[0];
    for (int i = 1; i < e->count; i++)
        if (e->dev[i].open < d->open)
            d = &e->dev[i];
    if (t->bytes > d->budget - d->held) {
        rc = kd_fail(err, KD_ENOMEM,
                     "a tensor of %lld x %lld needs %lld bytes of device memory, %s has %lld for "
                     "it: use the CPU (--device cpu)",
                     (long long)t->shape.n, (long long)t->shape.k, (long long)t->bytes,
                     kd_gpu_facts(d->gpu)->name, (long long)(d->budget - d->held));
    } else {
        const int64_t ticket = d->ticket++;
        d->open++;
        while (!d->failed && (ticket != d->next || d->used + t->bytes > d->budget))
            pthread_cond_wait(&d->room, &e->lock);
        if (d->failed) {
            *err = d->why;
            d->open--;
            rc = -1;
        } else {
            d->next++;
            d->used += t->bytes;
            d->used_most = kd_most64(d->used_most, d->used);
            t->dev = d;
            t->index = d->gpu->index;
        }
        pthread_cond_broadcast(&d->room);
    }
    pthread_mutex_unlock(&e->lock);
    return rc;
}

void kd_encode_give_room(struct kd_gpu_tensor *t)
{
    struct kd_encode_device *d = t->dev;
    pthread_mutex_lock(&d->owner->lock);
    d->used -= t->bytes;
    d->open--;
    pthread_cond_broadcast(&d->room);
    pthread_mutex_unlock(&d->owner->lock);
}

bool kd_encode_hold(struct kd_gpu_encoder *e, int first, int count, int64_t bytes, bool briefly)
{
    bool room = true;
    pthread_mutex_lock(&e->lock);
    for (int i = first; i < first + count; i++) {
        const struct kd_encode_device *d = &e->dev[i];
        room &= briefly || d->held + bytes <= d->budget / HELD_SHARE;
        room &= d->used + bytes <= d->budget;
    }
    for (int i = first; i < first + count && room; i++) {
        struct kd_encode_device *d = &e->dev[i];
        d->used += bytes;
        d->held += bytes;
        d->used_most = kd_most64(d->used_most, d->used);
    }
    pthread_mutex_unlock(&e->lock);
    return room;
}

void kd_encode_let_go(struct kd_gpu_encoder *e, int first, int count, int64_t bytes)
{
    pthread_mutex_lock(&e->lock);
    for (int i = first; i < first + count; i++) {
        struct kd_encode_device *d = &e->dev[i];
        d->used -= bytes;
        d->held -= bytes;
        pthread_cond_broadcast(&d->room);
    }
    pthread_mutex_unlock(&e->lock);
}

int kd_encode_devices(const struct kd_gpu_encoder *e)
{
    return e->count;
}

bool kd_encode_is_fast(const struct kd_gpu_encoder *e)
{
    return e->fast;
}

extern "C" void kd_gpu_encoder_calibrate(struct kd_gpu_encoder *e, enum kd_gpu_calib_class c)
{
    e->fast = c == KD_GPU_CALIB_FAST;
}

extern "C" bool kd_gpu_encoder_searches(const struct kd_gpu_encoder *e, struct kd_rate rate)
{
    bool all = true;

    for (int i = 0; i < e->count; i++)
        all &= kd_gpu_search_fits(kd_gpu_facts(e->dev[i].gpu), rate);
    return all;
}

int kd_encode_device_index(const struct kd_gpu_encoder *e, int device)
{
    return e->dev[device].gpu->index;
}

struct kd_encode_device *kd_encode_device_at(struct kd_gpu_encoder *e, int device)
{
    return &e->dev[device];
}

struct kd_stage *kd_encode_stage(const struct kd_encode_device *d)
{
    return d->stage;
}

int kd_encode_device_of(const struct kd_gpu_tensor *t)
{
    return (int)(t->dev - t->dev->owner->dev);
}

extern "C" int kd_gpu_square_open(struct kd_gpu_square **out, struct kd_gpu_encoder *e,
                                  const float *h, int64_t k, struct kd_err *err)
{
    struct kd_gpu_square *s;

    *out = NULL;
    if (kd_mem_zero(&s, 1, sizeof *s, "a Hessian on a device", err))
        return -1;
    s->e = e;
    s->k = k;
    s->bytes = 4 * k * k;
    if (!kd_encode_hold(e, 0, e->count, s->bytes, false)) {
        kd_mem_free(s);
        return 0;
    }
    for (int i = 0; i < e->count; i++)
        if (kd_gpu_failed(cudaSetDevice(e->dev[i].gpu->index), err, "choosing the device") ||
            kd_gpu_failed(cudaMalloc((void **)&s->at[i], (size_t)s->bytes), err,
                          "device memory for a Hessian") ||
            kd_gpu_failed(cudaMemcpy(s->at[i], h, (size_t)s->bytes, cudaMemcpyHostToDevice), err,
                          "copying a Hessian")) {
            kd_gpu_square_close(s);
            return -1;
        }
    *out = s;
    return 0;
}

extern "C" void kd_gpu_square_close(struct kd_gpu_square *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->e->count; i++)
        if (cudaSetDevice(s->e->dev[i].gpu->index) == cudaSuccess)
            cudaFree(s->at[i]);
    kd_encode_let_go(s->e, 0, s->e->count, s->bytes);
    kd_mem_free(s);
}

const float *kd_encode_square_at(const struct kd_gpu_square *s, const struct kd_gpu_tensor *t)
{
    return s->at[t->dev - s->e->dev];
}

extern "C" int kd_gpu_encoder_open(struct kd_gpu_encoder **out, const int *index, int count,
                                   int64_t memory_bytes, struct kd_err *err)
{
    struct kd_gpu_encoder *e;

    *out = NULL;
    if (count < 1 || count > KD_GPU_ENCODE_DEVICES)
        return kd_fail(err, KD_EINVAL, "%d devices: give 1 to %d", count, KD_GPU_ENCODE_DEVICES);
    if (kd_mem_zero(&e, 1, sizeof *e, "an encoder", err))
        return -1;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->done, NULL);
    for (int i = 0; i < count; i++) {
        struct kd_encode_device *d = &e->dev[e->count++];
        d->owner = e;
        pthread_cond_init(&d->work, NULL);
        pthread_cond_init(&d->room, NULL);
        if (open_device(d, index[i], memory_bytes, err)) {
            kd_gpu_encoder_close(e);
            return -1;
        }
    }
    *out = e;
    return 0;
}

extern "C" void kd_gpu_encoder_close(struct kd_gpu_encoder *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    for (int i = 0; i < e->count; i++)
        pthread_cond_signal(&e->dev[i].work);
    pthread_mutex_unlock(&e->lock);
    for (int i = 0; i < e->count; i++)
        close_device(&e->dev[i]);
    pthread_cond_destroy(&e->done);
    pthread_mutex_destroy(&e->lock);
    kd_mem_free(e);
}

extern "C" void kd_gpu_encoder_facts(struct kd_gpu_encoder *e, struct kd_gpu_encoder_facts *f)
{
    memset(f, 0, sizeof *f);
    pthread_mutex_lock(&e->lock);
    f->devices = e->count;
    f->host_bytes = (int64_t)e->count * KD_STAGE_SLOTS * KD_STAGE_SLOT;
    snprintf(f->name, sizeof f->name, "%s", kd_gpu_facts(e->dev[0].gpu)->name);
    for (int i = 0; i < e->count; i++) {
        const struct kd_encode_device *d = &e->dev[i];
        if (!i || d->budget < f->memory_bytes)
            f->memory_bytes = d->budget;
        f->used_bytes = kd_most64(f->used_bytes, d->used_most);
        f->rounds += d->ended;
        f->tiles += d->tiles;
        f->targets_s += d->seconds[0];
        f->search_s += d->seconds[1];
        f->update_s += d->seconds[2];
        f->search_blocks_s += d->block_seconds;
        f->between_s += d->turn_seconds;
    }
    pthread_mutex_unlock(&e->lock);
}
