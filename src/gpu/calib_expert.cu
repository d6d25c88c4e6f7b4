/* An expert on a device: its outputs, and the weighted sum of many. */
#include "gpu/calib_int.cuh"

using namespace kd_calib;

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
        rows = kd_least64(up_to(T, PAD), ROWS);
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

/* Whether the three fit each other, and are of types that products take. */
bool is_expert(const struct kd_gpu_source w[3])
{
    return w[0].type != KD_GPU_MAT_NONE && w[0].type == w[1].type && w[2].type != KD_GPU_MAT_NONE &&
           w[0].rows == w[1].rows && w[0].cols == w[1].cols && w[2].cols == w[0].rows;
}

/* y = w2 situ(w1 x, w3 x) on the device. */
void one_expert(const struct kd_gpu_tensor *t, const struct kd_gpu_source w[3], expert_space *s,
                float beta, float linear, int64_t T)
{
    const int64_t n = s->inner, tc = up_to(T, PAD), out = s->w[2].s.n;
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
    if (T < 1 || !is_expert(w))
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

/* ---- the sum of a layer's experts ---- */

struct kd_gpu_routed {
    struct kd_gpu_encoder *e;
    int device;
    struct kd_gpu_tensor t;
    int64_t T, latent;
    float *u;    /* [T][latent] */
    uint16_t *z; /* likewise */
};

namespace
{

struct pick_job {
    const uint16_t *z;
    const int32_t *row;
    float *x; /* [rows][n] */
    int64_t n;
};

/* x[i] = z[row[i]], a row a block. */
KD_KERNEL void KD_BOUNDS(256, 4) pick_rows(KD_ARGS pick_job j)
{
    const int64_t to = kd_block() * j.n, from = j.row[kd_block()] * j.n;

    for (int64_t c = kd_thread(); c < j.n; c += 256)
        j.x[to + c] = kd_bf16_f32(j.z[from + c]);
}

struct blend_job {
    const float *y; /* [rows][n] */
    const int32_t *row;
    const float *weight;
    float *u;
    int64_t n;
};

/* u[row[i]] += weight[i] y[i] as kern's axpy, a row a block; no row is there twice. */
KD_KERNEL void KD_BOUNDS(256, 4) blend_rows(KD_ARGS blend_job j)
{
    const int64_t from = kd_block() * j.n, to = j.row[kd_block()] * j.n;
    const float weight = j.weight[kd_block()];

    for (int64_t c = kd_thread(); c < j.n; c += 256)
        j.u[to + c] = fmaf(weight, j.y[from + c], j.u[to + c]);
}

/* The list and what one class or the other needs. */
struct routed_space {
    int32_t *row;
    float *weight;
    expert_space exact;
    fast_expert fast;

    int64_t take(const struct kd_gpu_source w[3], int64_t count, bool is_fast, unsigned char *base)
    {
        parts p = {base};
        p.take(&row, 4 * count);
        p.take(&weight, 4 * count);
        unsigned char *rest = base ? base + p.at : nullptr;
        return p.at + (is_fast ? fast.take(w, count, rest) : exact.take(w, count, rest));
    }
};

int blend_exact(const struct kd_gpu_routed *r, const struct kd_gpu_source w[3], routed_space *s,
                int64_t count, float beta, float linear, struct kd_err *err)
{
    const struct kd_gpu_tensor *t = &r->t;
    expert_space *x = &s->exact;

    for (int i = 0; i < 3; i++)
        if (x->w[i].put(t, &w[i], err))
            return -1;
    for (int64_t first = 0; first < count; first += x->rows) {
        const int64_t n = kd_least64(x->rows, count - first);
        const pick_job pick = {r->z, s->row + first, x->x, r->latent};
        const blend_job blend = {x->y, s->row + first, s->weight + first, r->u, r->latent};
        KD_LAUNCH(pick_rows, n, 256, 0, t->stream, pick);
        one_expert(t, w, x, beta, linear, n);
        KD_LAUNCH(blend_rows, n, 256, 0, t->stream, blend);
    }
    return 0;
}

int blend_fast(const struct kd_gpu_routed *r, const struct kd_gpu_source w[3], routed_space *s,
               int64_t count, float beta, float linear, struct kd_err *err)
{
    const struct kd_gpu_tensor *t = &r->t;
    fast_expert *x = &s->fast;

    if (x->begin(t, w, err))
        return -1;
    for (int64_t first = 0; first < count; first += x->rows) {
        const int64_t n = kd_least64(x->rows, count - first);
        const blend_job blend = {x->y, s->row + first, s->weight + first, r->u, r->latent};
        if (x->run(t, w, r->z, s->row + first, n, beta, linear, err))
            return -1;
        KD_LAUNCH(blend_rows, n, 256, 0, t->stream, blend);
    }
    return 0;
}

} // namespace

extern "C" int kd_gpu_routed_open(struct kd_gpu_routed **out, struct kd_gpu_encoder *e, int part,
                                  const uint16_t *z, int64_t T, int64_t latent, struct kd_err *err)
{
    struct kd_gpu_routed *r;
    bool room = false;

    *out = NULL;
    if (kd_mem_zero(&r, 1, sizeof *r, "experts on a device", err))
        return -1;
    r->e = e;
    r->device = part % kd_encode_devices(e);
    r->T = T;
    r->latent = latent;
    r->t.bytes = 6 * T * latent;
    int rc = open_own(&r->t, e, r->device, &room, err);
    if (!rc && room) {
        r->u = (float *)r->t.memory;
        r->z = (uint16_t *)(r->u + T * latent);
        rc = kd_gpu_failed(cudaMemsetAsync(r->u, 0, (size_t)(4 * T * latent), r->t.stream), err,
                           "a sum of experts") ||
             kd_gpu_tensor_copy(&r->t, r->z, z, 2 * T * latent, cudaMemcpyHostToDevice, err);
    }
    if (rc || !room) {
        kd_gpu_routed_close(r);
        return rc ? -1 : 0;
    }
    *out = r;
    return 0;
}

extern "C" void kd_gpu_routed_close(struct kd_gpu_routed *r)
{
    if (!r)
        return;
    close_own(&r->t, r->e, r->device);
    kd_mem_free(r);
}

extern "C" int kd_gpu_routed_add(struct kd_gpu_routed *r, const struct kd_gpu_source w[3],
                                 const int32_t *row, const float *weight, int64_t count, float beta,
                                 float linear, bool *done, struct kd_err *err)
{
    const bool fast = kd_encode_is_fast(r->e);
    const struct kd_gpu_tensor *t = &r->t;
    unsigned char *memory = NULL;
    routed_space s;

    *done = false;
    if (!is_expert(w) || w[0].cols != r->latent || w[2].rows != r->latent)
        return 0;
    const int64_t bytes = s.take(w, count, fast, NULL);
    if (!kd_encode_hold(r->e, r->device, 1, bytes, false))
        return 0;
    int rc = kd_gpu_tensor_here(t, err) ||
             kd_gpu_failed(cudaMallocAsync((void **)&memory, (size_t)bytes, t->stream), err,
                           "device memory for an expert");
    if (!rc) {
        s.take(w, count, fast, memory);
        rc = kd_gpu_tensor_copy(t, s.row, row, 4 * count, cudaMemcpyHostToDevice, err) ||
             kd_gpu_tensor_copy(t, s.weight, weight, 4 * count, cudaMemcpyHostToDevice, err) ||
             (fast ? blend_fast(r, w, &s, count, beta, linear, err)
                   : blend_exact(r, w, &s, count, beta, linear, err)) ||
             started(err);
    }
    if (memory)
        cudaFreeAsync(memory, t->stream);
    rc = rc || kd_gpu_tensor_settle(t, err);
    kd_encode_let_go(r->e, r->device, 1, bytes);
    *done = !rc;
    return rc ? -1 : 0;
}

extern "C" int kd_gpu_routed_take(struct kd_gpu_routed *r, float *u, struct kd_err *err)
{
    return kd_gpu_tensor_here(&r->t, err) ||
                   kd_gpu_tensor_copy(&r->t, u, r->u, 4 * r->T * r->latent, cudaMemcpyDeviceToHost,
                                      err) ||
                   kd_gpu_tensor_settle(&r->t, err)
               ? -1
               : 0;
}
