/* Calibration on devices: products of many rows, Hessians, latents; which kernels over which
 * pieces. */
#include "gpu/calib.cuh"
#include "gpu/calib_int.cuh"

void kd_gpu_chains_launch(cudaStream_t stream, const struct kd_calib_chains_job *j)
{
    KD_LAUNCH(kd_calib_chains, j->half * (j->rows / kd_tn::TN_TILE) * (j->n / kd_tn::TN_TILE),
              kd_tn::TN_THREADS, kd_tn::TN_SHARED, stream, *j);
}

namespace kd_calib
{

/* A thread has four of T x n outputs. */
static int64_t blocks_of(int64_t T, int64_t n)
{
    return (T * n / 4 + KD_CALIB_THREADS - 1) / KD_CALIB_THREADS;
}

template <enum kd_calib_stored TYPE>
static void launch_rows(const struct kd_gpu_tensor *t, const kd_calib_rows_job &j)
{
    const int64_t blocks = up_to(KD_CALIB_DOT_CHAINS * j.deep, KD_CALIB_SIDE) / KD_CALIB_SIDE *
                           (j.across / KD_CALIB_SIDE);
    KD_LAUNCH(kd_calib_rows<TYPE>, blocks, KD_CALIB_THREADS, KD_CALIB_SIDE_SHARED, t->stream, j);
}

/* Columns c0 .. c0 + n of the matrix as floats [inputs][n], inputs chain after chain. */
void expand(const struct kd_gpu_tensor *t, const struct kd_gpu_source *w, const stored &m,
            int64_t c0, int64_t n, float *out)
{
    if (w->type == KD_GPU_MAT_EXL3) {
        const kd_calib_codes_job j = {m.data + c0 / KD_TILE * kd_rate_tile_bytes(w->rate),
                                      w->rows_padded / KD_TILE,
                                      w->rate,
                                      w->cb,
                                      m.s.deep,
                                      out,
                                      n};
        KD_LAUNCH(kd_calib_codes, m.s.lines * (n / KD_CALIB_BLOCK), KD_CALIB_THREADS,
                  KD_CALIB_CODES_SHARED, t->stream, j);
        return;
    }
    const kd_calib_rows_job j = {m.data + c0 * m.s.width,
                                 m.scale + c0 * m.s.scales,
                                 m.s.width,
                                 m.s.scales,
                                 w->rows - c0,
                                 w->cols,
                                 m.s.deep,
                                 out,
                                 n,
                                 n,
                                 -0.0f};
    if (w->type == KD_GPU_MAT_F32)
        launch_rows<KD_CALIB_F32>(t, j);
    else if (w->type == KD_GPU_MAT_BF16)
        launch_rows<KD_CALIB_BF16>(t, j);
    else
        launch_rows<KD_CALIB_MXFP4>(t, j);
}

/* T rows on the device, ldx apart, as the chains need them: [inputs][tc], tc = T up to 128. */
void turn(const struct kd_gpu_tensor *t, const struct kd_gpu_source *w, const stored &m,
          const void *x, bool bf16, int64_t ldx, int64_t T, float *out)
{
    const int64_t tc = up_to(T, KD_CALIB_BLOCK);
    if (w->type == KD_GPU_MAT_EXL3) {
        const kd_calib_rotate_job j = {x, bf16, ldx, T, w->cols, m.s.deep, m.suh, out, tc};
        KD_LAUNCH(kd_calib_rotate, w->cols_padded / KD_CALIB_BLOCK * (tc / KD_CALIB_SIDE),
                  KD_CALIB_THREADS, KD_CALIB_ROTATE_SHARED, t->stream, j);
        return;
    }
    const kd_calib_rows_job j = {(const uint8_t *)x, nullptr, 4 * ldx, 0,  T,   w->cols,
                                 m.s.deep,           out,     tc,      tc, 0.0f};
    launch_rows<KD_CALIB_F32>(t, j);
}

/* c = [half][tc][n] for the turned rows and n expanded columns. */
void multiply(const struct kd_gpu_tensor *t, const stored &m, const float *a, int64_t T,
              const float *b, int64_t n, float *c)
{
    const int64_t tc = up_to(T, KD_CALIB_BLOCK);
    const kd_calib_chains_job j = {a, b, tc, n, m.s.deep, tc, (int)m.s.half, c};
    kd_gpu_chains_launch(t->stream, &j);
}

void fold(const struct kd_gpu_tensor *t, const struct kd_gpu_source *w, const kd_calib_sums_job &j)
{
    if (w->type == KD_GPU_MAT_EXL3)
        KD_LAUNCH(kd_calib_sums<true>, blocks_of(j.T, j.n), KD_CALIB_THREADS, 0, t->stream, j);
    else
        KD_LAUNCH(kd_calib_sums<false>, blocks_of(j.T, j.n), KD_CALIB_THREADS, 0, t->stream, j);
}

void inner_of(const struct kd_gpu_tensor *t, const struct kd_gpu_source *w,
              const kd_calib_inner_job &j)
{
    if (w->type == KD_GPU_MAT_EXL3)
        KD_LAUNCH(kd_calib_inner<true>, blocks_of(j.T, j.n), KD_CALIB_THREADS, 0, t->stream, j);
    else
        KD_LAUNCH(kd_calib_inner<false>, blocks_of(j.T, j.n), KD_CALIB_THREADS, 0, t->stream, j);
}

int add_rows(cudaStream_t stream, const float *x, int64_t S, int64_t k, float *h,
             struct kd_err *err)
{
    const struct kd_gpu_tn_job j = {x, x, h, k, k, k, S, k, k, true, false};
    return kd_gpu_tn_launch(stream, &j, err);
}

/* A stream of its own. */
static int open_stream(struct kd_gpu_tensor *t, struct kd_gpu_encoder *e, int device,
                       struct kd_err *err)
{
    t->dev = kd_encode_device_at(e, device);
    t->index = kd_encode_device_index(e, device);
    return kd_gpu_tensor_here(t, err) ||
                   kd_gpu_failed(cudaStreamCreateWithPriority(&t->stream, cudaStreamNonBlocking, 0),
                                 err, "a stream") ||
                   kd_gpu_failed(cudaEventCreateWithFlags(&t->done, cudaEventBlockingSync |
                                                                        cudaEventDisableTiming),
                                 err, "an event")
               ? -1
               : 0;
}

int open_own(struct kd_gpu_tensor *t, struct kd_gpu_encoder *e, int device, bool *room,
             struct kd_err *err)
{
    const int64_t bytes = t->bytes;

    *room = kd_encode_hold(e, device, 1, bytes, false);
    if (!*room) {
        t->bytes = 0;
        return 0;
    }
    return open_stream(t, e, device, err) ||
                   kd_gpu_failed(cudaMallocAsync((void **)&t->memory, (size_t)bytes, t->stream),
                                 err, "device memory for sums")
               ? -1
               : 0;
}

void close_own(struct kd_gpu_tensor *t, struct kd_gpu_encoder *e, int device)
{
    if (!t->dev)
        return;
    kd_gpu_tensor_end(t);
    kd_encode_let_go(e, device, 1, t->bytes);
}

} // namespace kd_calib

using namespace kd_calib;

/* ---- a product ---- */

namespace
{

struct product {
    stored m;
    int64_t rows, columns; /* of a piece */
    float *x, *y, *a, *b, *c;

    int64_t take(const struct kd_gpu_source *w, int64_t T, unsigned char *base)
    {
        parts p = {base};
        m.take(&p, w);
        rows = kd_least64(up_to(T, KD_CALIB_BLOCK), ROWS);
        columns = COLUMNS_BYTES / (4 * m.s.inputs) / KD_CALIB_BLOCK * KD_CALIB_BLOCK;
        columns = kd_least64(m.s.n, kd_most64(columns, KD_CALIB_BLOCK));
        p.take(&x, 4 * rows * w->cols);
        p.take(&y, 4 * rows * w->rows);
        p.take(&a, 4 * rows * m.s.inputs);
        p.take(&b, 4 * columns * m.s.inputs);
        p.take(&c, 4 * m.s.half * rows * columns);
        return p.at;
    }
    /* Of T rows that are turned; y on the device. */
    void all_columns(const struct kd_gpu_tensor *t, const struct kd_gpu_source *w, int64_t T)
    {
        for (int64_t c0 = 0; c0 < m.s.n; c0 += columns) {
            const int64_t n = kd_least64(columns, m.s.n - c0);
            const kd_calib_sums_job j = {
                c, up_to(T, KD_CALIB_BLOCK), n, T, c0, w->rows, y, w->rows, m.svh + c0};
            expand(t, w, m, c0, n, b);
            multiply(t, m, a, T, b, n, c);
            fold(t, w, j);
        }
    }
};

bool multiplies(const struct kd_gpu_source *w, int64_t T)
{
    return w->type != KD_GPU_MAT_NONE && T > 0 && w->rows > 0 && w->cols > 0;
}

} // namespace

extern "C" int64_t kd_gpu_calib_mul_bytes(const struct kd_gpu_encoder *e,
                                          const struct kd_gpu_source *w, int64_t T)
{
    product p;
    return !multiplies(w, T)      ? 0
           : kd_encode_is_fast(e) ? fast_mul_bytes(w, T)
                                  : p.take(w, T, nullptr);
}

extern "C" int kd_gpu_calib_mul(struct kd_gpu_encoder *e, const struct kd_gpu_source *w,
                                const float *x, int64_t ldx, int64_t T, float *y, int64_t ldy,
                                bool *done, struct kd_err *err)
{
    struct kd_gpu_tensor t;
    product p;

    *done = false;
    if (!multiplies(w, T))
        return 0;
    if (kd_encode_is_fast(e))
        return fast_mul(e, w, x, ldx, T, y, ldy, done, err);
    int rc = open_space(&t, e, p.take(w, T, nullptr), err);
    if (rc)
        return rc < 0 ? -1 : 0;
    p.take(w, T, t.memory);
    rc = p.m.put(&t, w, err);
    for (int64_t first = 0; !rc && first < T; first += p.rows) {
        const int64_t n = kd_least64(p.rows, T - first);
        rc = kd_gpu_tensor_copy_rows(&t, p.x, 4 * w->cols, x + first * ldx, 4 * ldx, 4 * w->cols, n,
                                     err);
        if (rc)
            break;
        turn(&t, w, p.m, p.x, false, w->cols, n, p.a);
        p.all_columns(&t, w, n);
        rc = started(err) || kd_gpu_tensor_fetch_rows(&t, y + first * ldy, 4 * ldy, p.y,
                                                      4 * w->rows, 4 * w->rows, n, err);
    }
    if (!rc)
        rc = kd_gpu_tensor_settle(&t, err);
    kd_encode_space_close(&t);
    *done = !rc;
    return rc ? -1 : 0;
}

/* ---- a Hessian ---- */

struct kd_gpu_sums {
    struct kd_gpu_encoder *e;
    int device;
    int64_t k, rows;        /* rows: of a piece */
    struct kd_gpu_tensor t; /* its stream and its device's index */
    float *h, *x;           /* [k][k], [rows][k] */
    planes turned;          /* class `fast`: [k][rows] */
};

static int64_t sums_rows(const struct kd_gpu_encoder *e)
{
    return kd_encode_is_fast(e) ? 2 * SUMS_ROWS : SUMS_ROWS;
}

extern "C" int64_t kd_gpu_sums_bytes(const struct kd_gpu_encoder *e, int64_t k)
{
    return 4 * k * (k + sums_rows(e)) + (kd_encode_is_fast(e) ? 2 * k * sums_rows(e) : 0);
}

extern "C" int kd_gpu_sums_open(struct kd_gpu_sums **out, struct kd_gpu_encoder *e, int64_t k,
                                struct kd_err *err)
{
    struct kd_gpu_sums *s;
    bool room = false;
    int rc = 0;

    *out = NULL;
    if (k < 1 || k % KD_CALIB_BLOCK)
        return kd_fail(err, KD_EINVAL, "a Hessian of %lld inputs on a device", (long long)k);
    if (kd_mem_zero(&s, 1, sizeof *s, "a Hessian on a device", err))
        return -1;
    s->e = e;
    s->k = k;
    s->rows = sums_rows(e);
    for (; !rc && !room && s->device < kd_encode_devices(e); s->device += !room) {
        s->t.bytes = kd_gpu_sums_bytes(e, k);
        rc = open_own(&s->t, e, s->device, &room, err);
    }
    if (!rc && room) {
        s->h = (float *)s->t.memory;
        s->x = s->h + k * k;
        s->turned = {(uint16_t *)(s->x + s->rows * k), nullptr, s->rows};
        rc = kd_gpu_failed(cudaMemsetAsync(s->h, 0, (size_t)s->t.bytes, s->t.stream), err,
                           "a Hessian");
    }
    if (rc || !room) {
        kd_gpu_sums_close(s);
        return rc ? -1 : 0;
    }
    *out = s;
    return 0;
}

extern "C" void kd_gpu_sums_close(struct kd_gpu_sums *s)
{
    if (!s)
        return;
    close_own(&s->t, s->e, s->device);
    kd_mem_free(s);
}

/* T rows of `cols` inputs on the device, `ldx` apart; class `fast`. */
static int add_fast(struct kd_gpu_sums *s, const float *x, int64_t ldx, int64_t cols, int64_t T,
                    struct kd_err *err)
{
    planes turned = s->turned;

    turned.pitch = up_to(T, 32);
    /* Inputs from `cols` on: other pitches may have left something there. */
    if (up_to(cols, 32) < s->k &&
        kd_gpu_failed(cudaMemsetAsync(turned.hi, 0, (size_t)(2 * s->k * turned.pitch), s->t.stream),
                      err, "a Hessian"))
        return -1;
    fast_turn(s->t.stream, x, ldx, T, cols, turned);
    return fast_sums(s->t.stream, turned, s->k, s->h, err) || started(err);
}

/* Before rows of `cols` inputs. */
static int begin_rows(const struct kd_gpu_sums *s, int64_t cols, struct kd_err *err)
{
    if (cols > s->k)
        return kd_fail(err, KD_EINVAL, "%lld inputs of a Hessian of %lld", (long long)cols,
                       (long long)s->k);
    return kd_gpu_tensor_here(&s->t, err);
}

extern "C" int kd_gpu_sums_add(struct kd_gpu_sums *s, const float *x, int64_t ldx, int64_t cols,
                               int64_t T, struct kd_err *err)
{
    if (begin_rows(s, cols, err))
        return -1;
    for (int64_t t = 0; t < T; t += s->rows) {
        const int64_t n = kd_least64(s->rows, T - t);
        if (kd_gpu_tensor_copy_rows(&s->t, s->x, 4 * s->k, x + t * ldx, 4 * ldx, 4 * cols, n,
                                    err) ||
            (kd_encode_is_fast(s->e) ? add_fast(s, s->x, s->k, s->k, n, err)
                                     : add_rows(s->t.stream, s->x, n, s->k, s->h, err)))
            return -1;
    }
    return 0;
}

extern "C" int kd_gpu_sums_add_there(struct kd_gpu_sums *s, int index, const float *x, int64_t ldx,
                                     int64_t cols, int64_t T, bool *done, struct kd_err *err)
{
    *done = kd_encode_is_fast(s->e) && s->t.index == index;
    if (!*done)
        return 0;
    if (begin_rows(s, cols, err))
        return -1;
    for (int64_t t = 0; t < T; t += s->rows)
        if (add_fast(s, x + t * ldx, ldx, cols, kd_least64(s->rows, T - t), err))
            return -1;
    return kd_gpu_tensor_settle(&s->t, err);
}

extern "C" bool kd_gpu_calib_is_fast(const struct kd_gpu_encoder *e)
{
    return kd_encode_is_fast(e);
}

extern "C" bool kd_gpu_calib_hold(struct kd_gpu_encoder *e, int64_t bytes, int *index)
{
    *index = kd_encode_device_index(e, 0);
    return kd_encode_hold(e, 0, 1, bytes, true);
}

extern "C" void kd_gpu_calib_let_go(struct kd_gpu_encoder *e, int64_t bytes)
{
    kd_encode_let_go(e, 0, 1, bytes);
}

struct kd_gpu_ferry {
    struct kd_gpu_tensor t; /* its device's index and a stream */
};

extern "C" int kd_gpu_ferry_open(struct kd_gpu_ferry **out, struct kd_gpu_encoder *e,
                                 struct kd_err *err)
{
    *out = NULL;
    if (kd_mem_zero(out, 1, sizeof **out, "copies", err))
        return -1;
    if (open_stream(&(*out)->t, e, 0, err)) {
        kd_gpu_ferry_close(*out);
        *out = NULL;
        return -1;
    }
    return 0;
}

extern "C" void kd_gpu_ferry_close(struct kd_gpu_ferry *f)
{
    if (!f)
        return;
    kd_gpu_tensor_end(&f->t);
    kd_mem_free(f);
}

extern "C" int kd_gpu_ferry_up(struct kd_gpu_ferry *f, void *to, const void *from, int64_t bytes,
                               struct kd_err *err)
{
    return kd_gpu_tensor_here(&f->t, err) ||
                   kd_gpu_tensor_copy(&f->t, to, from, bytes, cudaMemcpyHostToDevice, err)
               ? -1
               : 0;
}

extern "C" int kd_gpu_ferry_down(struct kd_gpu_ferry *f, void *to, const void *from, int64_t bytes,
                                 struct kd_err *err)
{
    return kd_gpu_tensor_here(&f->t, err) ||
                   kd_gpu_tensor_copy(&f->t, to, from, bytes, cudaMemcpyDeviceToHost, err) ||
                   kd_gpu_tensor_settle(&f->t, err)
               ? -1
               : 0;
}

extern "C" int kd_gpu_ferry_wait(struct kd_gpu_ferry *f, struct kd_err *err)
{
    return kd_gpu_tensor_here(&f->t, err) || kd_gpu_tensor_settle(&f->t, err) ? -1 : 0;
}

extern "C" int kd_gpu_sums_take(struct kd_gpu_sums *s, float *h, struct kd_err *err)
{
    return kd_gpu_tensor_here(&s->t, err) ||
                   kd_gpu_tensor_copy(&s->t, h, s->h, 4 * s->k * s->k, cudaMemcpyDeviceToHost,
                                      err) ||
                   kd_gpu_tensor_settle(&s->t, err)
               ? -1
               : 0;
}

/* ---- latents ---- */

struct kd_gpu_latents {
    struct kd_gpu_encoder *e;
    int64_t bytes;
    uint16_t *at[KD_GPU_ENCODE_DEVICES];
};

const uint16_t *kd_calib::latents_at(const struct kd_gpu_latents *l, const struct kd_gpu_tensor *t)
{
    return l->at[kd_encode_device_of(t)];
}

extern "C" int kd_gpu_latents_open(struct kd_gpu_latents **out, struct kd_gpu_encoder *e,
                                   const uint16_t *z, int64_t T, int64_t latent, struct kd_err *err)
{
    const int count = kd_encode_devices(e);
    struct kd_gpu_latents *l;

    *out = NULL;
    if (!kd_encode_hold(e, 0, count, 2 * T * latent, false))
        return 0;
    if (kd_mem_zero(&l, 1, sizeof *l, "latents on a device", err)) {
        kd_encode_let_go(e, 0, count, 2 * T * latent);
        return -1;
    }
    l->e = e;
    l->bytes = 2 * T * latent;
    for (int i = 0; i < count; i++)
        if (kd_gpu_failed(cudaSetDevice(kd_encode_device_index(e, i)), err,
                          "choosing the device") ||
            kd_gpu_failed(cudaMalloc((void **)&l->at[i], (size_t)l->bytes), err,
                          "device memory for latents") ||
            kd_gpu_failed(cudaMemcpy(l->at[i], z, (size_t)l->bytes, cudaMemcpyHostToDevice), err,
                          "copying latents")) {
            kd_gpu_latents_close(l);
            return -1;
        }
    *out = l;
    return 0;
}

extern "C" void kd_gpu_latents_close(struct kd_gpu_latents *l)
{
    if (!l)
        return;
    for (int i = 0; i < kd_encode_devices(l->e); i++)
        if (cudaSetDevice(kd_encode_device_index(l->e, i)) == cudaSuccess)
            cudaFree(l->at[i]);
    kd_encode_let_go(l->e, 0, kd_encode_devices(l->e), l->bytes);
    kd_mem_free(l);
}
