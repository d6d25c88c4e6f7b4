/* Calibration on devices: which kernels over which pieces. */
#include "gpu/calib.cuh"

extern "C" {
#include "gpu/calib.h"
}
#include "gpu/encode_int.cuh"

void kd_gpu_chains_launch(cudaStream_t stream, const struct kd_calib_chains_job *j)
{
    KD_LAUNCH(kd_calib_chains, j->half * (j->rows / kd_tn::TN_TILE) * (j->n / kd_tn::TN_TILE),
              kd_tn::TN_THREADS, kd_tn::TN_SHARED, stream, *j);
}

/* Smaller in a test, which has small matrices. */
#ifndef KD_CALIB_ROWS
#define KD_CALIB_ROWS          1024
#define KD_CALIB_COLUMNS_BYTES (128 << 20)
#endif

namespace
{

enum {
    ROWS = KD_CALIB_ROWS,                   /* of a piece */
    COLUMNS_BYTES = KD_CALIB_COLUMNS_BYTES, /* of weights as floats at once, or 128 columns */
    SUMS_ROWS = 1024
};

int64_t up_to(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Parts of a space one after the other; without a space only their sizes. */
struct parts {
    unsigned char *base;
    int64_t at = 0;

    template <class T> void take(T **out, int64_t bytes)
    {
        *out = base ? (T *)(base + at) : nullptr;
        at += up_to(bytes, 256);
    }
};

/* ---- a matrix as it is stored ---- */

struct shape {
    int64_t n, inputs; /* outputs up to 128; chains * deep */
    int64_t deep, half;
    int64_t lines, width, pitch; /* of its data, bytes; pitch: in host memory */
    int64_t scales;              /* bytes a row */
};

shape shape_of(const struct kd_gpu_source *w)
{
    shape s = {};

    if (w->type == KD_GPU_MAT_EXL3) {
        const int64_t tile = kd_rate_tile_bytes(w->rate);
        s.n = w->rows_padded;
        s.half = KD_CALIB_EXL3_CHAINS / 2;
        s.deep = w->cols_padded / KD_CALIB_EXL3_CHAINS;
        s.lines = w->cols_padded / KD_TILE;
        s.width = w->rows_padded / KD_TILE * tile;
        s.pitch = w->ld * tile;
    } else {
        const bool packed = w->type == KD_GPU_MAT_MXFP4;
        const int64_t each = w->type == KD_GPU_MAT_F32 ? 4 : 2;
        s.n = up_to(w->rows, KD_CALIB_BLOCK);
        s.half = KD_CALIB_DOT_CHAINS / 2;
        s.deep = (w->cols + KD_CALIB_DOT_CHAINS - 1) / KD_CALIB_DOT_CHAINS;
        s.lines = w->rows;
        s.width = packed ? (w->cols + 1) / 2 : each * w->cols;
        s.pitch = packed ? w->ld : each * w->ld;
        s.scales = packed ? (w->cols + 31) / 32 : 0;
    }
    s.inputs = 2 * s.half * s.deep;
    return s;
}

struct stored {
    shape s;
    uint8_t *data, *scale;
    uint16_t *suh, *svh;

    void take(parts *p, const struct kd_gpu_source *w)
    {
        const bool exl3 = w->type == KD_GPU_MAT_EXL3;
        s = shape_of(w);
        p->take(&data, s.lines * s.width);
        p->take(&scale, s.scales * s.lines);
        p->take(&suh, exl3 ? 2 * w->cols_padded : 0);
        p->take(&svh, exl3 ? 2 * w->rows_padded : 0);
    }
    int put(const struct kd_gpu_tensor *t, const struct kd_gpu_source *w, struct kd_err *err)
    {
        if (kd_gpu_tensor_copy_rows(t, data, s.width, w->data, s.pitch, s.width, s.lines, err) ||
            (s.scales && kd_gpu_tensor_copy_rows(t, scale, s.scales, w->scale, w->ld_scale,
                                                 s.scales, s.lines, err)))
            return -1;
        return w->type == KD_GPU_MAT_EXL3 && (kd_gpu_tensor_copy(t, suh, w->suh, 2 * w->cols_padded,
                                                                 cudaMemcpyHostToDevice, err) ||
                                              kd_gpu_tensor_copy(t, svh, w->svh, 2 * w->rows_padded,
                                                                 cudaMemcpyHostToDevice, err))
                   ? -1
                   : 0;
    }
};

template <enum kd_calib_stored TYPE>
void launch_rows(const struct kd_gpu_tensor *t, const kd_calib_rows_job &j)
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

/* A thread has four of T x n outputs. */
int64_t blocks_of(int64_t T, int64_t n)
{
    return (T * n / 4 + KD_CALIB_THREADS - 1) / KD_CALIB_THREADS;
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

int started(struct kd_err *err)
{
    return kd_gpu_failed(cudaGetLastError(), err, "calibrating");
}

/* A space of so many bytes: 1 when a device has no room for it. */
int open_space(struct kd_gpu_tensor *t, struct kd_gpu_encoder *e, int64_t bytes, struct kd_err *err)
{
    struct kd_err why = {};
    *t = {};
    t->bytes = bytes;
    if (!kd_encode_space_open(t, e, &why))
        return 0;
    if (why.code == KD_ENOMEM)
        return 1;
    if (err)
        *err = why;
    return -1;
}

/* ---- a product ---- */

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

extern "C" int64_t kd_gpu_calib_mul_bytes(const struct kd_gpu_source *w, int64_t T)
{
    product p;
    return multiplies(w, T) ? p.take(w, T, nullptr) : 0;
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

/* ---- an expert ---- */

namespace
{

struct expert_space {
    stored w[3];
    int64_t rows, inner;
    float *x, *y, *a, *b, *c1, *c3, *mid;
    int32_t *bad;

    int64_t take(const struct kd_gpu_source src[3], int64_t T, unsigned char *base)
    {
        parts p = {base};
        for (int i = 0; i < 3; i++)
            w[i].take(&p, &src[i]);
        rows = kd_least64(up_to(T, KD_CALIB_BLOCK), ROWS);
        inner = w[0].s.n;
        const int64_t out = w[2].s.half * w[2].s.n, in = w[0].s.half * inner;
        p.take(&x, 4 * rows * src[0].cols);
        p.take(&y, 4 * rows * src[2].rows);
        p.take(&a, 4 * rows * kd_most64(w[0].s.inputs, w[2].s.inputs));
        p.take(&b, 4 * kd_most64(w[0].s.inputs * inner, w[2].s.inputs * w[2].s.n));
        p.take(&c1, 4 * rows * kd_most64(in, out));
        p.take(&c3, 4 * rows * w[1].s.half * inner);
        p.take(&mid, 4 * rows * inner);
        p.take(&bad, 4);
        return p.at;
    }
};

/* y = w2 situ(w1 x, w3 x) on the device. */
void one_expert(const struct kd_gpu_tensor *t, const struct kd_gpu_source w[3], expert_space *s,
                float beta, float linear, int64_t T)
{
    const int64_t n = s->inner, tc = up_to(T, KD_CALIB_BLOCK), out = s->w[2].s.n;
    float *const c[2] = {s->c1, s->c3};
    const kd_calib_inner_job in = {s->c1,       s->c3,       tc,   n,      T,      w[0].rows,
                                   s->w[0].svh, s->w[1].svh, beta, linear, s->mid, s->bad};
    const kd_calib_sums_job sums = {s->c1, tc, out, T, 0, w[2].rows, s->y, w[2].rows, s->w[2].svh};
    for (int i = 0; i < 2; i++) {
        turn(t, &w[i], s->w[i], s->x, false, w[i].cols, T, s->a);
        expand(t, &w[i], s->w[i], 0, n, s->b);
        multiply(t, s->w[i], s->a, T, s->b, n, c[i]);
    }
    inner_of(t, &w[0], in);
    turn(t, &w[2], s->w[2], s->mid, false, n, T, s->a);
    expand(t, &w[2], s->w[2], 0, out, s->b);
    multiply(t, s->w[2], s->a, T, s->b, out, s->c1);
    fold(t, &w[2], sums);
}

} // namespace

extern "C" int kd_gpu_calib_expert(struct kd_gpu_encoder *e, const struct kd_gpu_source w[3],
                                   const float *x, int64_t T, float beta, float linear, float *y,
                                   bool *done, struct kd_err *err)
{
    const int64_t cols = w[0].cols, rows = w[2].rows;
    struct kd_gpu_tensor t;
    expert_space s;

    *done = false;
    if (T < 1 || w[0].type == KD_GPU_MAT_NONE || w[0].type != w[1].type ||
        w[2].type == KD_GPU_MAT_NONE || w[0].rows != w[1].rows || w[0].cols != w[1].cols ||
        w[2].cols != w[0].rows)
        return 0;
    int rc = open_space(&t, e, s.take(w, T, nullptr), err);
    if (rc)
        return rc < 0 ? -1 : 0;
    s.take(w, T, t.memory);
    for (int i = 0; !rc && i < 3; i++)
        rc = s.w[i].put(&t, &w[i], err);
    for (int64_t first = 0; !rc && first < T; first += s.rows) {
        const int64_t n = kd_least64(s.rows, T - first);
        rc = kd_gpu_tensor_copy(&t, s.x, x + first * cols, 4 * n * cols, cudaMemcpyHostToDevice,
                                err);
        if (rc)
            break;
        one_expert(&t, w, &s, beta, linear, n);
        rc = started(err) || kd_gpu_tensor_copy(&t, y + first * rows, s.y, 4 * n * rows,
                                                cudaMemcpyDeviceToHost, err);
    }
    if (!rc)
        rc = kd_gpu_tensor_settle(&t, err);
    kd_encode_space_close(&t);
    *done = !rc;
    return rc ? -1 : 0;
}

/* ---- a Hessian ---- */

/* h += x^T x over S rows of k floats. */
static int add_rows(cudaStream_t stream, const float *x, int64_t S, int64_t k, float *h,
                    struct kd_err *err)
{
    const struct kd_gpu_tn_job j = {x, x, h, k, k, k, S, k, k, true, false};
    return kd_gpu_tn_launch(stream, &j, err);
}

struct kd_gpu_sums {
    struct kd_gpu_encoder *e;
    int device;
    int64_t k, bytes;
    struct kd_gpu_tensor t; /* its stream and its device's index */
    float *h, *x;           /* [k][k], [SUMS_ROWS][k] */
};

extern "C" int64_t kd_gpu_sums_bytes(int64_t k)
{
    return 4 * k * (k + SUMS_ROWS);
}

static int open_sums(struct kd_gpu_sums *s, struct kd_err *err)
{
    struct kd_gpu_tensor *t = &s->t;
    t->dev = kd_encode_device_at(s->e, s->device);
    t->index = kd_encode_device_index(s->e, s->device);
    if (kd_gpu_tensor_here(t, err) ||
        kd_gpu_failed(cudaStreamCreateWithPriority(&t->stream, cudaStreamNonBlocking, 0), err,
                      "a stream") ||
        kd_gpu_failed(
            cudaEventCreateWithFlags(&t->done, cudaEventBlockingSync | cudaEventDisableTiming), err,
            "an event") ||
        kd_gpu_failed(cudaMallocAsync((void **)&t->memory, (size_t)s->bytes, t->stream), err,
                      "device memory for a Hessian"))
        return -1;
    s->h = (float *)t->memory;
    s->x = s->h + s->k * s->k;
    return kd_gpu_failed(cudaMemsetAsync(s->h, 0, (size_t)s->bytes, t->stream), err, "a Hessian");
}

extern "C" int kd_gpu_sums_open(struct kd_gpu_sums **out, struct kd_gpu_encoder *e, int64_t k,
                                struct kd_err *err)
{
    struct kd_gpu_sums *s;
    int device = 0;

    *out = NULL;
    if (k < 1 || k % KD_CALIB_BLOCK)
        return kd_fail(err, KD_EINVAL, "a Hessian of %lld inputs on a device", (long long)k);
    while (device < kd_encode_devices(e) && !kd_encode_hold(e, device, 1, kd_gpu_sums_bytes(k)))
        device++;
    if (device == kd_encode_devices(e))
        return 0;
    if (kd_mem_zero(&s, 1, sizeof *s, "a Hessian on a device", err)) {
        kd_encode_let_go(e, device, 1, kd_gpu_sums_bytes(k));
        return -1;
    }
    s->e = e;
    s->device = device;
    s->k = k;
    s->bytes = kd_gpu_sums_bytes(k);
    if (open_sums(s, err)) {
        kd_gpu_sums_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

extern "C" void kd_gpu_sums_close(struct kd_gpu_sums *s)
{
    if (!s)
        return;
    if (!kd_gpu_tensor_here(&s->t, NULL) && s->t.stream) {
        if (s->t.memory)
            cudaFreeAsync(s->t.memory, s->t.stream);
        cudaStreamSynchronize(s->t.stream);
        cudaStreamDestroy(s->t.stream);
    }
    if (s->t.done)
        cudaEventDestroy(s->t.done);
    kd_encode_let_go(s->e, s->device, 1, s->bytes);
    kd_mem_free(s);
}

extern "C" int kd_gpu_sums_add(struct kd_gpu_sums *s, const float *x, int64_t ldx, int64_t cols,
                               int64_t T, struct kd_err *err)
{
    if (cols > s->k)
        return kd_fail(err, KD_EINVAL, "%lld inputs of a Hessian of %lld", (long long)cols,
                       (long long)s->k);
    if (kd_gpu_tensor_here(&s->t, err))
        return -1;
    for (int64_t t = 0; t < T; t += SUMS_ROWS) {
        const int64_t n = kd_least64(SUMS_ROWS, T - t);
        if (kd_gpu_tensor_copy_rows(&s->t, s->x, 4 * s->k, x + t * ldx, 4 * ldx, 4 * cols, n,
                                    err) ||
            add_rows(s->t.stream, s->x, n, s->k, s->h, err))
            return -1;
    }
    return kd_gpu_tensor_settle(&s->t, err);
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

extern "C" int kd_gpu_latents_open(struct kd_gpu_latents **out, struct kd_gpu_encoder *e,
                                   const uint16_t *z, int64_t T, int64_t latent, struct kd_err *err)
{
    const int count = kd_encode_devices(e);
    struct kd_gpu_latents *l;

    *out = NULL;
    if (!kd_encode_hold(e, 0, count, 2 * T * latent))
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

/* ---- an expert's inner rows ---- */

namespace
{

struct inner_space {
    stored w1, w3;
    int64_t rows;
    uint16_t *z;
    float *a, *b1, *b3, *c1, *c3, *inner, *chosen, *h, *routed_h, *weight;
    int32_t *row, *bad;

    int64_t take(const struct kd_gpu_inner *j, unsigned char *base)
    {
        const bool routed = j->routed_h != NULL;
        parts p = {base};
        w1.take(&p, j->w1);
        w3.take(&p, j->w3);
        rows = kd_least64(up_to(j->T, KD_CALIB_BLOCK), ROWS);
        const int64_t n = w1.s.n, inputs = w1.s.inputs, square = 4 * n * n;
        p.take(&z, j->latents ? 0 : 2 * rows * j->w1->cols);
        p.take(&a, 4 * rows * inputs);
        p.take(&b1, 4 * n * inputs);
        p.take(&b3, 4 * n * inputs);
        p.take(&c1, 4 * w1.s.half * rows * n);
        p.take(&c3, 4 * w1.s.half * rows * n);
        p.take(&inner, 4 * rows * n);
        p.take(&chosen, routed ? 4 * rows * n : 0);
        p.take(&h, square);
        p.take(&routed_h, routed ? square : 0);
        p.take(&weight, 4 * j->routed);
        p.take(&row, 4 * j->routed);
        p.take(&bad, 4);
        return p.at;
    }
};

/* The matrices, the list of routed rows, and empty sums. */
int begin_inner(const struct kd_gpu_tensor *t, const struct kd_gpu_inner *j, inner_space *s,
                struct kd_err *err)
{
    const int64_t square = 4 * s->w1.s.n * s->w1.s.n;
    if (s->w1.put(t, j->w1, err) || s->w3.put(t, j->w3, err) ||
        kd_gpu_failed(cudaMemsetAsync(s->h, 0, (size_t)square, t->stream), err, "a Hessian") ||
        kd_gpu_failed(cudaMemsetAsync(s->bad, 0, sizeof *s->bad, t->stream), err, "a Hessian"))
        return -1;
    if (j->routed_h &&
        (kd_gpu_failed(cudaMemsetAsync(s->routed_h, 0, (size_t)square, t->stream), err,
                       "a Hessian") ||
         kd_gpu_tensor_copy(t, s->weight, j->weight, 4 * j->routed, cudaMemcpyHostToDevice, err) ||
         kd_gpu_tensor_copy(t, s->row, j->row, 4 * j->routed, cudaMemcpyHostToDevice, err)))
        return -1;
    expand(t, j->w1, s->w1, 0, s->w1.s.n, s->b1);
    expand(t, j->w3, s->w3, 0, s->w3.s.n, s->b3);
    return 0;
}

/* Rows first .. first + T, of which routed ones are [from, to) of the list. */
int add_inner(const struct kd_gpu_tensor *t, const struct kd_gpu_inner *j, inner_space *s,
              const uint16_t *z, int64_t first, int64_t T, int64_t from, int64_t to,
              struct kd_err *err)
{
    const int64_t n = s->w1.s.n;
    const kd_calib_inner_job in = {s->c1,     s->c3,     up_to(T, KD_CALIB_BLOCK),
                                   n,         T,         j->w1->rows,
                                   s->w1.svh, s->w3.svh, j->beta,
                                   j->linear, s->inner,  s->bad};
    turn(t, j->w1, s->w1, z, true, j->w1->cols, T, s->a);
    multiply(t, s->w1, s->a, T, s->b1, n, s->c1);
    turn(t, j->w3, s->w3, z, true, j->w1->cols, T, s->a);
    multiply(t, s->w3, s->a, T, s->b3, n, s->c3);
    inner_of(t, j->w1, in);
    if (add_rows(t->stream, s->inner, T, n, s->h, err))
        return -1;
    if (to == from)
        return 0;
    const kd_calib_gather_job g = {s->inner,         n,         first, s->row + from,
                                   s->weight + from, s->chosen, s->bad};
    KD_LAUNCH(kd_calib_gather, to - from, KD_CALIB_THREADS, 0, t->stream, g);
    return add_rows(t->stream, s->chosen, to - from, n, s->routed_h, err);
}

int all_inner(const struct kd_gpu_tensor *t, const struct kd_gpu_inner *j, inner_space *s,
              struct kd_err *err)
{
    const int64_t latent = j->w1->cols;
    int64_t from = 0;

    if (begin_inner(t, j, s, err))
        return -1;
    for (int64_t first = 0; first < j->T; first += s->rows) {
        const int64_t T = kd_least64(s->rows, j->T - first);
        const uint16_t *z =
            j->latents ? j->latents->at[kd_encode_device_of(t)] + first * latent : s->z;
        int64_t to = from;
        while (j->routed_h && to < j->routed && j->row[to] < first + T)
            to++;
        if ((!j->latents && kd_gpu_tensor_copy(t, s->z, j->z + first * latent, 2 * T * latent,
                                               cudaMemcpyHostToDevice, err)) ||
            add_inner(t, j, s, z, first, T, from, to, err) || started(err))
            return -1;
        from = to;
    }
    return kd_gpu_tensor_settle(t, err);
}

/* What the sums came to, unless a row was not finite. */
int take_inner(const struct kd_gpu_tensor *t, const struct kd_gpu_inner *j, const inner_space *s,
               bool *good, struct kd_err *err)
{
    const int64_t square = 4 * s->w1.s.n * s->w1.s.n;
    int32_t bad = 0;

    if (kd_gpu_tensor_copy(t, &bad, s->bad, sizeof bad, cudaMemcpyDeviceToHost, err) ||
        kd_gpu_tensor_settle(t, err))
        return -1;
    *good = !bad;
    if (bad)
        return 0;
    return kd_gpu_tensor_copy(t, j->h, s->h, square, cudaMemcpyDeviceToHost, err) ||
                   (j->routed_h && kd_gpu_tensor_copy(t, j->routed_h, s->routed_h, square,
                                                      cudaMemcpyDeviceToHost, err)) ||
                   kd_gpu_tensor_settle(t, err)
               ? -1
               : 0;
}

} // namespace

extern "C" int64_t kd_gpu_inner_bytes(const struct kd_gpu_inner *j)
{
    inner_space s;
    return s.take(j, nullptr);
}

extern "C" int kd_gpu_inner_sums(struct kd_gpu_encoder *e, const struct kd_gpu_inner *j, bool *done,
                                 struct kd_err *err)
{
    struct kd_gpu_tensor t;
    inner_space s;
    bool good = false;

    *done = false;
    if (j->w1->type != KD_GPU_MAT_EXL3 || j->w3->type != KD_GPU_MAT_EXL3 ||
        j->w1->rows_padded != j->w3->rows_padded || j->w1->cols_padded != j->w3->cols_padded)
        return 0;
    int rc = open_space(&t, e, s.take(j, nullptr), err);
    if (rc)
        return rc < 0 ? -1 : 0;
    s.take(j, t.memory);
    rc = all_inner(&t, j, &s, err) || take_inner(&t, j, &s, &good, err);
    kd_encode_space_close(&t);
    *done = !rc && good;
    return rc ? -1 : 0;
}
