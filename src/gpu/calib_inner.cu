/* The Hessian of an expert's inner rows on a device. */
#include "gpu/calib_int.cuh"

#include <math.h>

using namespace kd_calib;

namespace
{

enum { THREADS = 256 };

/* out[i] = weight[i] * x[row[i] - first], a row a block. */
struct kd_calib_gather_job {
    const float *x; /* [.][n] */
    int64_t n, first;
    const int32_t *row;
    const float *weight;
    float *out;
    int32_t *bad;
};

KD_KERNEL void KD_BOUNDS(THREADS, 4) kd_calib_gather(KD_ARGS kd_calib_gather_job j)
{
    const int64_t i = kd_block(), from = (j.row[i] - j.first) * j.n;
    bool bad = false;

    for (int64_t c = kd_thread(); c < j.n; c += THREADS) {
        const float v = j.weight[i] * j.x[from + c];
        bad |= !isfinite(v);
        j.out[i * j.n + c] = v;
    }
    if (bad)
        *j.bad = 1;
}

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
        rows = kd_least64(up_to(j->T, PAD), ROWS);
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

int begin_inner(const struct kd_gpu_tensor *t, const struct kd_gpu_inner *j, inner_space *s,
                struct kd_err *err)
{
    if (put_inner(t, j, s, err))
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
    const kd_calib_inner_job in = {s->c1,   s->c3,       up_to(T, PAD), n,
                                   T,       j->w1->rows, s->w1.svh,     s->w3.svh,
                                   j->beta, j->linear,   s->inner,      s->bad};
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
    KD_LAUNCH(kd_calib_gather, to - from, THREADS, 0, t->stream, g);
    return add_rows(t->stream, s->chosen, to - from, n, s->routed_h, err);
}

} // namespace

int kd_calib::take_inner(const struct kd_gpu_tensor *t, const struct kd_gpu_inner *j, int64_t n,
                         const float *h, const float *routed_h, const int32_t *bad, bool *good,
                         struct kd_err *err)
{
    const int64_t square = 4 * n * n;
    int32_t some = 0;

    if (kd_gpu_tensor_copy(t, &some, bad, sizeof some, cudaMemcpyDeviceToHost, err) ||
        kd_gpu_tensor_settle(t, err))
        return -1;
    *good = !some;
    if (some)
        return 0;
    return kd_gpu_tensor_copy(t, j->h, h, square, cudaMemcpyDeviceToHost, err) ||
                   (j->routed_h && kd_gpu_tensor_copy(t, j->routed_h, routed_h, square,
                                                      cudaMemcpyDeviceToHost, err)) ||
                   kd_gpu_tensor_settle(t, err)
               ? -1
               : 0;
}

extern "C" int64_t kd_gpu_inner_bytes(const struct kd_gpu_encoder *e, const struct kd_gpu_inner *j)
{
    inner_space s;
    return kd_encode_is_fast(e) ? fast_inner_bytes(j) : s.take(j, nullptr);
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
    if (kd_encode_is_fast(e))
        return fast_inner_sums(e, j, done, err);
    int rc = open_space(&t, e, s.take(j, nullptr), err);
    if (rc)
        return rc < 0 ? -1 : 0;
    s.take(j, t.memory);
    rc = begin_inner(&t, j, &s, err);
    auto add = [&](const uint16_t *z, int64_t first, int64_t T, int64_t from, int64_t to) {
        return add_inner(&t, j, &s, z, first, T, from, to, err);
    };
    rc = rc || each_piece(&t, j, s.rows, s.z, add, err) ||
         take_inner(&t, j, s.w1.s.n, s.h, s.routed_h, s.bad, &good, err);
    kd_encode_space_close(&t);
    *done = !rc && good;
    return rc ? -1 : 0;
}
