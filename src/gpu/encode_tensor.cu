/* A tensor on a device: where its parts lie, copies, and its jobs for the rounds. */
#include "gpu/encode_int.cuh"

/* codec/exl3_scale.c's full one. */
int64_t kd_encode_samples(const struct kd_gpu_tensor_shape *s)
{
    return 4 * (kd_most64(s->k, s->n) / KD_TILE) + 32;
}

/* Where the parts of a tensor lie; t NULL: only the size. */
static int64_t lay_out(const struct kd_gpu_tensor_shape *s, struct kd_gpu_tensor *t)
{
    enum { PARTS = 15 };
    const int64_t k = s->k, n = s->n, tiles = k / KD_TILE * (n / KD_TILE);
    const int64_t square = s->square ? 4 * k * k : 0, matrix = 4 * k * n;
    const int64_t sums =
        kd_most64(kd_most64(tiles, kd_most64(k, n)), KD_GPU_ENCODE_POINTS * kd_encode_samples(s));
    void *at[PARTS];
    const int64_t sizes[PARTS] = {s->hessian ? 0 : square,
                                  square,
                                  matrix,
                                  matrix,
                                  matrix,
                                  s->square ? matrix : 0,
                                  4 * KD_ENCODE_SPAN * n,
                                  4 * kd_most64(k, n),
                                  4 * kd_most64(k, n),
                                  kd_encode_samples(s) * KD_TILE_WEIGHTS * 4,
                                  tiles * kd_rate_tile_bytes(s->rate),
                                  8 * sums,
                                  8 * KD_GPU_ENCODE_POINTS,
                                  4 * KD_GPU_ENCODE_POINTS * kd_encode_samples(s),
                                  4};
    int64_t all = 0;
    for (int i = 0; i < PARTS; i++) {
        at[i] = t && sizes[i] ? t->memory + all : NULL;
        all += (sizes[i] + 255) / 256 * 256;
    }
    if (t) {
        t->own = (float *)at[0];
        t->h = s->hessian ? kd_encode_square_at(s->hessian, t) : t->own;
        t->l = (float *)at[1];
        t->w = (float *)at[2];
        t->r = (float *)at[3];
        t->t = (float *)at[4];
        t->spare = (float *)at[5];
        t->e = (float *)at[6];
        t->left = (float *)at[7];
        t->right = (float *)at[8];
        t->sample = (float *)at[9];
        t->codes = (uint8_t *)at[10];
        t->sum = (double *)at[11];
        t->scale = (double *)at[12];
        t->list = (int32_t *)at[13];
        t->bad = (int32_t *)at[14];
    }
    return all;
}

int kd_gpu_tensor_here(const struct kd_gpu_tensor *t, struct kd_err *err)
{
    return kd_gpu_failed(cudaSetDevice(t->index), err, "choosing the device");
}

/* Through the device's staging where that is faster. Who reads what comes back settles first, so it
 * does not matter that this waits. */
static int staged(const struct kd_gpu_tensor *t, const struct kd_stage_rows *r,
                  enum cudaMemcpyKind kind, bool *done, struct kd_err *err)
{
    *done = false;
    if (kind == cudaMemcpyDeviceToDevice || r->width * r->rows < KD_STAGE_LEAST)
        return 0;
    return (r->down && kd_gpu_tensor_settle(t, err)) ||
                   kd_stage_copy(kd_encode_stage(t->dev), t->stream, r, done, err)
               ? -1
               : 0;
}

int kd_gpu_tensor_copy(const struct kd_gpu_tensor *t, void *to, const void *from, int64_t bytes,
                       enum cudaMemcpyKind kind, struct kd_err *err)
{
    const struct kd_stage_rows r = {
        to, from, bytes, bytes, bytes, 1, kind == cudaMemcpyDeviceToHost};
    bool done;

    if (staged(t, &r, kind, &done, err))
        return -1;
    return done ? 0
                : kd_gpu_failed(cudaMemcpyAsync(to, from, (size_t)bytes, kind, t->stream), err,
                                "copying between host and device");
}

static int copy_rows(const struct kd_gpu_tensor *t, void *to, int64_t to_pitch, const void *from,
                     int64_t pitch, int64_t width, int64_t rows, enum cudaMemcpyKind kind,
                     struct kd_err *err)
{
    const struct kd_stage_rows r = {
        to, from, to_pitch, pitch, width, rows, kind == cudaMemcpyDeviceToHost};
    bool done;

    if (to_pitch == width && pitch == width)
        return kd_gpu_tensor_copy(t, to, from, width * rows, kind, err);
    if (staged(t, &r, kind, &done, err))
        return -1;
    return done ? 0
                : kd_gpu_failed(cudaMemcpy2DAsync(to, (size_t)to_pitch, from, (size_t)pitch,
                                                  (size_t)width, (size_t)rows, kind, t->stream),
                                err, "copying between host and device");
}

int kd_gpu_tensor_copy_rows(const struct kd_gpu_tensor *t, void *to, int64_t to_pitch,
                            const void *from, int64_t pitch, int64_t width, int64_t rows,
                            struct kd_err *err)
{
    return copy_rows(t, to, to_pitch, from, pitch, width, rows, cudaMemcpyHostToDevice, err);
}

int kd_gpu_tensor_fetch_rows(const struct kd_gpu_tensor *t, void *to, int64_t to_pitch,
                             const void *from, int64_t pitch, int64_t width, int64_t rows,
                             struct kd_err *err)
{
    return copy_rows(t, to, to_pitch, from, pitch, width, rows, cudaMemcpyDeviceToHost, err);
}

/* Sleeps: threads that look all the time would want a processor each. */
int kd_gpu_tensor_settle(const struct kd_gpu_tensor *t, struct kd_err *err)
{
    return kd_gpu_failed(cudaEventRecord(t->done, t->stream), err, "encoding") ||
                   kd_gpu_failed(cudaEventSynchronize(t->done), err, "encoding")
               ? -1
               : 0;
}

static float *part_of(const struct kd_gpu_tensor *t, enum kd_gpu_part p, int64_t *bytes)
{
    const int64_t k = t->shape.k, n = t->shape.n;
    float *const at[] = {t->own, t->l, t->w, t->r, t->t};
    *bytes = 4 * k * (p == KD_GPU_PART_HESSIAN || p == KD_GPU_PART_L ? k : n);
    return at[p];
}

static struct kd_encode_job job_of(struct kd_gpu_tensor *t)
{
    struct kd_encode_job j = {};
    j.t = t;
    j.part.rate = t->shape.rate;
    j.part.cb = t->shape.cb;
    j.part.k = t->shape.k;
    j.part.n = t->shape.n;
    j.part.sum = t->sum;
    return j;
}

extern "C" int64_t kd_gpu_tensor_bytes(const struct kd_gpu_tensor_shape *s)
{
    return lay_out(s, NULL);
}

/* What a thread waits for goes before the searches of the others. */
int kd_encode_space_open(struct kd_gpu_tensor *t, struct kd_gpu_encoder *e, struct kd_err *err)
{
    int lowest, highest;

    if (kd_encode_take_room(e, t, err))
        return -1;
    if (!kd_encode_take_turn(t, err) && !kd_gpu_tensor_here(t, err) &&
        !kd_gpu_failed(cudaDeviceGetStreamPriorityRange(&lowest, &highest), err, "a stream") &&
        !kd_gpu_failed(cudaStreamCreateWithPriority(&t->stream, cudaStreamNonBlocking, highest),
                       err, "a stream") &&
        !kd_gpu_failed(
            cudaEventCreateWithFlags(&t->done, cudaEventBlockingSync | cudaEventDisableTiming), err,
            "an event") &&
        !kd_gpu_failed(cudaMallocAsync((void **)&t->memory, (size_t)t->bytes, t->stream), err,
                       "device memory for a tensor"))
        return 0;
    kd_encode_space_close(t);
    return -1;
}

void kd_gpu_tensor_end(struct kd_gpu_tensor *t)
{
    if (!kd_gpu_tensor_here(t, NULL) && t->stream) {
        if (t->memory)
            cudaFreeAsync(t->memory, t->stream);
        cudaStreamSynchronize(t->stream);
        cudaStreamDestroy(t->stream);
    }
    if (t->done)
        cudaEventDestroy(t->done);
}

void kd_encode_space_close(struct kd_gpu_tensor *t)
{
    kd_gpu_tensor_end(t);
    kd_encode_give_turn(t);
    kd_encode_give_room(t);
}

extern "C" int kd_gpu_tensor_open(struct kd_gpu_tensor **out, struct kd_gpu_encoder *e,
                                  const struct kd_gpu_tensor_shape *s, struct kd_err *err)
{
    struct kd_gpu_tensor *t;

    *out = NULL;
    if (s->k < 1 || s->n < 1 || s->k % KD_ENCODE_SPAN || s->n % KD_ENCODE_COLUMNS)
        return kd_fail(err, KD_EINVAL, "a tensor of %lld x %lld on a device", (long long)s->k,
                       (long long)s->n);
    if (s->hessian && (!s->square || s->hessian->k != s->k))
        return kd_fail(err, KD_EINVAL, "a tensor of %lld inputs and a Hessian of %lld",
                       (long long)s->k, (long long)s->hessian->k);
    if (kd_mem_zero(&t, 1, sizeof *t, "a tensor on a device", err))
        return -1;
    t->shape = *s;
    t->bytes = lay_out(s, NULL);
    if (kd_encode_space_open(t, e, err)) {
        kd_mem_free(t);
        return -1;
    }
    lay_out(s, t);
    *out = t;
    return 0;
}

extern "C" void kd_gpu_tensor_close(struct kd_gpu_tensor *t)
{
    if (!t)
        return;
    kd_encode_space_close(t);
    kd_mem_free(t);
}

extern "C" int kd_gpu_tensor_put(struct kd_gpu_tensor *t, enum kd_gpu_part p, const float *from,
                                 struct kd_err *err)
{
    int64_t bytes;
    float *to = part_of(t, p, &bytes);
    return kd_gpu_tensor_here(t, err) ||
                   kd_gpu_tensor_copy(t, to, from, bytes, cudaMemcpyHostToDevice, err) ||
                   kd_gpu_tensor_settle(t, err)
               ? -1
               : 0;
}

extern "C" int kd_gpu_tensor_ldlq(struct kd_gpu_tensor *t, struct kd_gpu_ldlq *l,
                                  struct kd_err *err)
{
    const int64_t k = t->shape.k, n = t->shape.n;
    const int64_t tiles = k / KD_TILE * (n / KD_TILE), sums = tiles / KD_ENCODE_GROUP;
    struct kd_encode_job j = job_of(t);
    double *sum;

    j.feedback = l->feedback && t->l;
    j.row = k - KD_TILE;
    j.part.l = j.feedback ? t->l : NULL;
    j.part.r = t->r;
    j.part.t = t->t;
    j.part.e = t->e;
    j.part.codes = t->codes;
    if (kd_mem_new(&sum, sums, sizeof *sum, "LDLQ errors", err))
        return -1;
    int rc = kd_gpu_tensor_here(t, err) ||
             kd_gpu_tensor_copy(t, t->t, t->r, 4 * k * n, cudaMemcpyDeviceToDevice, err) ||
             kd_gpu_tensor_settle(t, err) || kd_encode_run(&j, err) ||
             kd_gpu_tensor_copy(t, l->codes, t->codes, tiles * kd_rate_tile_bytes(t->shape.rate),
                                cudaMemcpyDeviceToHost, err) ||
             kd_gpu_tensor_copy(t, sum, t->sum, 8 * sums, cudaMemcpyDeviceToHost, err) ||
             kd_gpu_tensor_settle(t, err);
    /* As the rows were made: from the last one up. */
    const int64_t across = n / KD_TILE / KD_ENCODE_GROUP;
    l->sum = 0.0;
    for (int64_t row = k / KD_TILE - 1; !rc && row >= 0; row--)
        for (int64_t i = 0; i < across; i++)
            l->sum += sum[row * across + i];
    kd_mem_free(sum);
    return rc ? -1 : 0;
}

extern "C" int kd_gpu_tensor_scale(struct kd_gpu_tensor *t, const struct kd_gpu_scale *s,
                                   struct kd_err *err)
{
    struct kd_encode_job j = job_of(t);

    if (s->points < 1 || s->points > KD_GPU_ENCODE_POINTS || s->stride < 1 || !t->samples)
        return kd_fail(err, KD_EINVAL, "a scale search of %d points over %lld tiles", s->points,
                       (long long)t->samples);
    const int64_t used = (t->samples + s->stride - 1) / s->stride;
    j.scale = true;
    j.part.groups = (used + KD_ENCODE_GROUP - 1) / KD_ENCODE_GROUP;
    j.part.tiles = t->samples;
    j.part.stride = s->stride;
    j.part.sample = t->sample;
    j.part.scale = t->scale;
    j.part.list = t->list;
    j.items = s->items;
    if (j.items < 1 || j.items > s->points * j.part.groups)
        return kd_fail(err, KD_EINVAL, "a scale search of %lld items", (long long)j.items);
    return kd_gpu_tensor_here(t, err) ||
                   kd_gpu_tensor_copy(t, t->scale, s->scale, 8 * s->points, cudaMemcpyHostToDevice,
                                      err) ||
                   kd_gpu_tensor_copy(t, t->list, s->item, 4 * j.items, cudaMemcpyHostToDevice,
                                      err) ||
                   kd_gpu_tensor_settle(t, err) || kd_encode_run(&j, err) ||
                   kd_gpu_tensor_copy(t, s->sum, t->sum, 8 * j.items, cudaMemcpyDeviceToHost,
                                      err) ||
                   kd_gpu_tensor_settle(t, err)
               ? -1
               : 0;
}
