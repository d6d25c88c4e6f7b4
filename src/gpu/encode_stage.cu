#include "gpu/encode_stage.cuh"

extern "C" {
#include "base/pool.h"
}

#include <string.h>

enum { STAGE_THREADS = 8 };

struct kd_stage_slot {
    unsigned char *at;
    cudaEvent_t done; /* of the last copy out of it */
    bool taken;
};

struct kd_stage {
    int index;
    struct kd_pool *pool;
    pthread_mutex_t lock, pool_lock; /* of the slots; who has the pool's threads */
    pthread_cond_t free_slot;
    int next;
    struct kd_stage_slot slot[KD_STAGE_SLOTS];
};

int kd_stage_open(struct kd_stage **out, int index, struct kd_err *err)
{
    struct kd_stage *s;

    *out = NULL;
    if (kd_mem_zero(&s, 1, sizeof *s, "copies to a device", err))
        return -1;
    s->index = index;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->pool_lock, NULL);
    pthread_cond_init(&s->free_slot, NULL);
    if (kd_pool_open(&s->pool, STAGE_THREADS, err)) {
        kd_stage_close(s);
        return -1;
    }
    for (kd_stage_slot &x : s->slot)
        if (kd_gpu_failed(cudaMallocHost((void **)&x.at, KD_STAGE_SLOT), err,
                          "memory for copies") ||
            kd_gpu_failed(cudaEventCreateWithFlags(&x.done, cudaEventDisableTiming), err,
                          "an event")) {
            kd_stage_close(s);
            return -1;
        }
    *out = s;
    return 0;
}

void kd_stage_close(struct kd_stage *s)
{
    if (!s)
        return;
    kd_pool_close(s->pool);
    for (kd_stage_slot &x : s->slot) {
        if (x.done) {
            cudaEventSynchronize(x.done);
            cudaEventDestroy(x.done);
        }
        if (x.at)
            cudaFreeHost(x.at);
    }
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->pool_lock);
    pthread_cond_destroy(&s->free_slot);
    kd_mem_free(s);
}

namespace
{

struct stage_job {
    struct kd_stage *s;
    cudaStream_t stream;
    struct kd_stage_rows r;
    int64_t each; /* rows of a piece */
    pthread_mutex_t lock;
    bool failed;
    struct kd_err err;
};

/* In turns, so that the one taken is the one whose copy began first. */
kd_stage_slot *take_slot(struct kd_stage *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->slot[s->next].taken)
        pthread_cond_wait(&s->free_slot, &s->lock);
    kd_stage_slot *x = &s->slot[s->next];
    s->next = (s->next + 1) % KD_STAGE_SLOTS;
    x->taken = true;
    pthread_mutex_unlock(&s->lock);
    return x;
}

void give_slot(struct kd_stage *s, kd_stage_slot *x)
{
    pthread_mutex_lock(&s->lock);
    x->taken = false;
    pthread_cond_broadcast(&s->free_slot);
    pthread_mutex_unlock(&s->lock);
}

void move_rows(unsigned char *to, int64_t to_pitch, const unsigned char *from, int64_t from_pitch,
               int64_t width, int64_t rows)
{
    if (to_pitch == width && from_pitch == width) {
        memcpy(to, from, (size_t)(width * rows));
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * to_pitch, from + i * from_pitch, (size_t)width);
}

int stage_up(const struct stage_job *j, kd_stage_slot *x, int64_t first, int64_t rows,
             struct kd_err *err)
{
    const struct kd_stage_rows *r = &j->r;

    move_rows(x->at, r->width, (const unsigned char *)r->from + first * r->from_pitch,
              r->from_pitch, r->width, rows);
    return kd_gpu_failed(cudaMemcpy2DAsync((unsigned char *)r->to + first * r->to_pitch,
                                           (size_t)r->to_pitch, x->at, (size_t)r->width,
                                           (size_t)r->width, (size_t)rows, cudaMemcpyHostToDevice,
                                           j->stream),
                         err, "copying to the device") ||
                   kd_gpu_failed(cudaEventRecord(x->done, j->stream), err, "copying to the device")
               ? -1
               : 0;
}

int stage_down(const struct stage_job *j, kd_stage_slot *x, int64_t first, int64_t rows,
               struct kd_err *err)
{
    const struct kd_stage_rows *r = &j->r;

    if (kd_gpu_failed(cudaMemcpy2DAsync(x->at, (size_t)r->width,
                                        (const unsigned char *)r->from + first * r->from_pitch,
                                        (size_t)r->from_pitch, (size_t)r->width, (size_t)rows,
                                        cudaMemcpyDeviceToHost, j->stream),
                      err, "copying from the device") ||
        kd_gpu_failed(cudaEventRecord(x->done, j->stream), err, "copying from the device") ||
        kd_gpu_failed(cudaEventSynchronize(x->done), err, "copying from the device"))
        return -1;
    move_rows((unsigned char *)r->to + first * r->to_pitch, r->to_pitch, x->at, r->width, r->width,
              rows);
    return 0;
}

void stage_piece(void *ctx, int64_t i, int)
{
    struct stage_job *j = (struct stage_job *)ctx;
    const int64_t first = i * j->each,
                  rows = j->r.rows - first < j->each ? j->r.rows - first : j->each;
    kd_stage_slot *x = take_slot(j->s);
    struct kd_err err;
    int rc = kd_gpu_failed(cudaSetDevice(j->s->index), &err, "choosing the device") ||
             kd_gpu_failed(cudaEventSynchronize(x->done), &err, "copying") ||
             (j->r.down ? stage_down(j, x, first, rows, &err) : stage_up(j, x, first, rows, &err));
    give_slot(j->s, x);
    if (!rc)
        return;
    pthread_mutex_lock(&j->lock);
    if (!j->failed)
        j->err = err;
    j->failed = true;
    pthread_mutex_unlock(&j->lock);
}

} // namespace

int kd_stage_copy(struct kd_stage *s, cudaStream_t stream, const struct kd_stage_rows *r,
                  bool *done, struct kd_err *err)
{
    struct stage_job j = {s, stream, *r, 1, {}, false, {}};

    *done = false;
    if (r->width * r->rows < KD_STAGE_LEAST)
        return 0;
    if (r->to_pitch == r->width && r->from_pitch == r->width) {
        /* One row as long as all, cut anywhere. */
        const int64_t bytes = r->width * r->rows, whole = bytes / KD_STAGE_LEAST * KD_STAGE_LEAST;
        j.r.width = j.r.to_pitch = j.r.from_pitch = KD_STAGE_LEAST;
        j.r.rows = whole / KD_STAGE_LEAST;
        if (whole < bytes &&
            kd_gpu_failed(
                cudaMemcpyAsync((unsigned char *)r->to + whole,
                                (const unsigned char *)r->from + whole, (size_t)(bytes - whole),
                                r->down ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream),
                err, "copying between host and device"))
            return -1;
    } else if (r->width > KD_STAGE_SLOT) {
        return 0;
    }
    j.each = KD_STAGE_SLOT / j.r.width;
    const int64_t pieces = (j.r.rows + j.each - 1) / j.each;
    pthread_mutex_init(&j.lock, NULL);
    if (pieces > 1 && !pthread_mutex_trylock(&s->pool_lock)) {
        kd_pool_run(s->pool, pieces, stage_piece, &j);
        pthread_mutex_unlock(&s->pool_lock);
    } else {
        for (int64_t i = 0; i < pieces; i++)
            stage_piece(&j, i, 0);
    }
    pthread_mutex_destroy(&j.lock);
    if (j.failed && err)
        *err = j.err;
    *done = !j.failed;
    return j.failed ? -1 : 0;
}
