/* The calibration in class `fast`: which kernels over which pieces. */
#include "gpu/calib_fast.cuh"
#include "gpu/calib_int.cuh"

namespace kd_calib
{

template <enum kd_calib_stored TYPE>
static void launch_planes(const struct kd_gpu_tensor *t, const kd_fast::planes_job &j, int64_t rows)
{
    KD_LAUNCH(kd_fast::make_planes<TYPE>, rows, kd_fast::THREADS, 0, t->stream, j);
}

void fast_rows(const struct kd_gpu_tensor *t, const void *x, bool bf16, int64_t ldx, int64_t cols,
               const int32_t *row, int64_t T, const planes &out)
{
    const kd_fast::planes_job j = {
        (const uint8_t *)x, nullptr, (bf16 ? 2 : 4) * ldx, 0, T, cols, row, out.hi, out.lo,
        out.pitch,          false};
    if (bf16)
        launch_planes<KD_CALIB_BF16>(t, j, T);
    else
        launch_planes<KD_CALIB_F32>(t, j, T);
}

int fast_weights(const struct kd_gpu_tensor *t, const struct kd_gpu_source *w, const stored &m,
                 int64_t c0, int64_t n, const planes &out, bool both, struct kd_err *err)
{
    if (w->type == KD_GPU_MAT_EXL3) {
        const int64_t across = w->cols_padded / PAD;
        const kd_fast::codes_job j = {m.data + c0 / KD_TILE * kd_rate_tile_bytes(w->rate),
                                      w->rows_padded / KD_TILE,
                                      w->rate,
                                      w->cb,
                                      m.suh,
                                      m.svh + c0,
                                      across,
                                      out.hi,
                                      out.lo,
                                      out.pitch,
                                      both};
        if (kd_gpu_failed(cudaFuncSetAttribute((const void *)kd_fast::make_codes,
                                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               kd_fast::CODES_SHARED),
                          err, "shared memory for codes"))
            return -1;
        KD_LAUNCH(kd_fast::make_codes, n / PAD * across, kd_fast::THREADS, kd_fast::CODES_SHARED,
                  t->stream, j);
        return 0;
    }
    const kd_fast::planes_job j = {m.data + c0 * m.s.width,
                                   m.scale + c0 * m.s.scales,
                                   m.s.width,
                                   m.s.scales,
                                   w->rows - c0,
                                   w->cols,
                                   nullptr,
                                   out.hi,
                                   out.lo,
                                   out.pitch,
                                   both};
    if (w->type == KD_GPU_MAT_F32)
        launch_planes<KD_CALIB_F32>(t, j, n);
    else if (w->type == KD_GPU_MAT_BF16)
        launch_planes<KD_CALIB_BF16>(t, j, n);
    else
        launch_planes<KD_CALIB_MXFP4>(t, j, n);
    return 0;
}

void fast_turn(cudaStream_t stream, const float *x, int64_t ldx, int64_t T, int64_t k,
               const planes &out)
{
    const kd_fast::turn_job j = {x, ldx, T, k, out.pitch / kd_fast::SIDE, out.hi, out.pitch};
    KD_LAUNCH(kd_fast::make_turned, up_to(k, kd_fast::SIDE) / kd_fast::SIDE * j.across,
              kd_fast::THREADS, kd_fast::TURN_SHARED, stream, j);
}

/* 99 KB: a block of a GB10 and of RTX cards has no more. */
static_assert(kd_fast::MULTIPLY_SHARED <= 99 << 10 && kd_fast::CODES_SHARED <= 99 << 10,
              "products on the smallest device");

template <enum kd_fast::kind KIND>
static int launch_multiply(cudaStream_t stream, const kd_fast::multiply_job &j, int32_t *count,
                           struct kd_err *err)
{
    if (wide_is_here())
        return wide_multiply(stream, KIND, j, count, err);
    if (kd_gpu_failed(cudaFuncSetAttribute((const void *)kd_fast::multiply_planes<KIND>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           kd_fast::MULTIPLY_SHARED),
                      err, "shared memory for a product"))
        return -1;
    KD_LAUNCH(kd_fast::multiply_planes<KIND>, kd_fast::tiles_of(j.m, j.n), kd_fast::THREADS,
              kd_fast::MULTIPLY_SHARED, stream, j);
    return 0;
}

/* The planes of w x: all but low times low. */
static kd_fast::multiply_job product_of(const planes &w, const planes &x, int64_t m, int64_t n)
{
    kd_fast::multiply_job j = {};
    j.plane[j.planes++] = {w.hi, x.hi};
    if (x.lo)
        j.plane[j.planes++] = {w.hi, x.lo};
    if (w.lo)
        j.plane[j.planes++] = {w.lo, x.hi};
    j.lda = j.k = w.pitch;
    j.ldb = x.pitch;
    j.m = m;
    j.n = n;
    return j;
}

int fast_multiply(cudaStream_t stream, const planes &w, int64_t rows, const planes &x, int64_t T,
                  float *y, int64_t ldy, int32_t *count, struct kd_err *err)
{
    kd_fast::multiply_job j = product_of(w, x, rows, T);
    j.y = y;
    j.ldy = ldy;
    return launch_multiply<kd_fast::ROWS>(stream, j, count, err);
}

int fast_sums(cudaStream_t stream, const planes &x, int64_t k, float *h, struct kd_err *err,
              int32_t *count)
{
    kd_fast::multiply_job j = product_of(x, x, k, k);
    j.y = h;
    j.ldy = k;
    if (count && wide_is_here())
        return launch_multiply<kd_fast::SUMS>(stream, j, count, err);
    for (int64_t at = 0; at < x.pitch; at += kd_fast::SEGMENT) {
        j.plane[0] = {x.hi + at, x.hi + at};
        j.k = kd_least64(kd_fast::SEGMENT, x.pitch - at);
        if (launch_multiply<kd_fast::SUMS>(stream, j, NULL, err))
            return -1;
    }
    return 0;
}

int fast_inner(cudaStream_t stream, const planes &w, int64_t n, int64_t outs, const planes &x,
               int64_t T, float beta, float linear, bool turned, const planes &out, int32_t *bad,
               int32_t *count, struct kd_err *err)
{
    const float twice = -2.88539008f; /* -2 / ln 2 */

    kd_fast::multiply_job j = product_of(w, x, 2 * n, up_to(T, kd_fast::DEEP));
    j.rows = T;
    j.outs = outs;
    j.hi = out.hi;
    j.lo = out.lo;
    j.ldo = out.pitch;
    j.beta = beta;
    j.linear = linear;
    j.over_beta = 1.0f / beta;
    j.over_linear = linear > 0.0f ? 1.0f / linear : 0.0f;
    j.by_beta = twice * j.over_beta;
    j.by_linear = twice * j.over_linear;
    j.bad = bad;
    return turned ? launch_multiply<kd_fast::TURNED>(stream, j, count, err)
                  : launch_multiply<kd_fast::INNER>(stream, j, count, err);
}

/* ---- a product ---- */

namespace
{

struct fast_product {
    stored m;
    int64_t rows, columns; /* of a piece */
    float *x, *y;
    planes a, b;
    int32_t *count;

    int64_t take(const struct kd_gpu_source *w, int64_t T, unsigned char *base)
    {
        parts p = {base};
        m.take(&p, w);
        const int64_t deep = fast_pitch(w);
        rows = kd_least64(up_to(T, PAD), FAST_ROWS);
        columns = kd_most64(COLUMNS_BYTES / deep / PAD * PAD, PAD); /* half as wide as floats */
        columns = kd_least64(m.s.n, columns);
        p.take(&x, 4 * rows * w->cols);
        p.take(&y, 4 * rows * w->rows);
        a.take(&p, columns, deep, fast_split(w));
        b.take(&p, rows, deep, true);
        p.take(&count, fast_count_bytes(0));
        return p.at;
    }
    int all_columns(const struct kd_gpu_tensor *t, const struct kd_gpu_source *w, int64_t T,
                    struct kd_err *err)
    {
        for (int64_t c0 = 0; c0 < m.s.n; c0 += columns) {
            const int64_t n = kd_least64(columns, m.s.n - c0);
            if (fast_weights(t, w, m, c0, n, a, false, err) ||
                fast_multiply(t->stream, a, kd_least64(n, w->rows - c0), b, T, y + c0, w->rows,
                              count, err))
                return -1;
        }
        return 0;
    }
};

} // namespace

int64_t fast_mul_bytes(const struct kd_gpu_source *w, int64_t T)
{
    fast_product p;
    return p.take(w, T, nullptr);
}

int fast_mul(struct kd_gpu_encoder *e, const struct kd_gpu_source *w, const float *x, int64_t ldx,
             int64_t T, float *y, int64_t ldy, bool *done, struct kd_err *err)
{
    struct kd_gpu_tensor t;
    fast_product p;
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
        fast_rows(&t, p.x, false, w->cols, w->cols, nullptr, n, p.b);
        rc = p.all_columns(&t, w, n, err) || started(err) ||
             kd_gpu_tensor_fetch_rows(&t, y + first * ldy, 4 * ldy, p.y, 4 * w->rows, 4 * w->rows,
                                      n, err);
    }
    if (!rc)
        rc = kd_gpu_tensor_settle(&t, err);
    kd_encode_space_close(&t);
    *done = !rc;
    return rc ? -1 : 0;
}

/* ---- an expert's inner rows ---- */

namespace
{

struct fast_space {
    stored w1, w3;
    int64_t rows;
    planes w, z, inner, chosen; /* both matrices by turns; [T][], [k][T], [k][routed] */
    uint16_t *raw;              /* z as it comes, unless it is there */
    float *h, *routed_h, *weight;
    int32_t *row, *bad, *count;

    int64_t take(const struct kd_gpu_inner *j, unsigned char *base)
    {
        const bool routed = j->routed_h != NULL;
        const int64_t deep = fast_pitch(j->w1);
        parts p = {base};
        w1.take(&p, j->w1);
        w3.take(&p, j->w3);
        rows = kd_least64(up_to(j->T, PAD), FAST_ROWS);
        const int64_t n = w1.s.n, square = 4 * n * n;
        w.take(&p, 2 * n, deep, false);
        p.take(&raw, j->latents ? 0 : 2 * rows * j->w1->cols);
        z.take(&p, deep == j->w1->cols ? 0 : rows, deep, false);
        inner.take(&p, n, rows, false);
        chosen.take(&p, routed ? n : 0, rows, false);
        p.take(&h, square);
        p.take(&routed_h, routed ? square : 0);
        p.take(&weight, 4 * j->routed);
        p.take(&row, 4 * j->routed);
        p.take(&bad, 4);
        p.take(&count, fast_count_bytes(n));
        return p.at;
    }
};

int begin_fast(const struct kd_gpu_tensor *t, const struct kd_gpu_inner *j, fast_space *s,
               struct kd_err *err)
{
    planes up = s->w;
    up.hi += kd_fast::PAIR * up.pitch;
    if (put_inner(t, j, s, err))
        return -1;
    return fast_weights(t, j->w1, s->w1, 0, s->w1.s.n, s->w, true, err) ||
                   fast_weights(t, j->w3, s->w3, 0, s->w3.s.n, up, true, err)
               ? -1
               : 0;
}

/* Rows first .. first + T, of which routed ones are [from, to) of the list. */
int add_fast(const struct kd_gpu_tensor *t, const struct kd_gpu_inner *j, fast_space *s,
             const uint16_t *z, int64_t first, int64_t T, int64_t from, int64_t to,
             struct kd_err *err)
{
    const int64_t n = s->w1.s.n, latent = j->w1->cols;
    planes x = s->z, inner = s->inner, chosen = s->chosen;

    if (x.pitch == latent)
        x.hi = const_cast<uint16_t *>(z);
    else
        fast_rows(t, z, true, latent, latent, nullptr, T, x);
    inner.pitch = up_to(T, kd_fast::DEEP);
    if (fast_inner(t->stream, s->w, n, j->w1->rows, x, T, j->beta, j->linear, true, inner, s->bad,
                   s->count, err) ||
        fast_sums(t->stream, inner, n, s->h, err, s->count))
        return -1;
    if (to == from)
        return 0;
    chosen.pitch = up_to(to - from, kd_fast::DEEP);
    const kd_fast::choose_job c = {inner.hi,      inner.pitch,      first,
                                   s->row + from, s->weight + from, to - from,
                                   chosen.hi,     chosen.pitch,     s->bad};
    KD_LAUNCH(kd_fast::choose_rows, n, kd_fast::THREADS, 0, t->stream, c);
    return fast_sums(t->stream, chosen, n, s->routed_h, err, s->count);
}

} // namespace

int64_t fast_inner_bytes(const struct kd_gpu_inner *j)
{
    fast_space s;
    return s.take(j, nullptr);
}

int fast_inner_sums(struct kd_gpu_encoder *e, const struct kd_gpu_inner *j, bool *done,
                    struct kd_err *err)
{
    struct kd_gpu_tensor t;
    fast_space s;
    bool good = false;
    int rc = open_space(&t, e, s.take(j, nullptr), err);
    if (rc)
        return rc < 0 ? -1 : 0;
    s.take(j, t.memory);
    rc = begin_fast(&t, j, &s, err);
    auto add = [&](const uint16_t *z, int64_t first, int64_t T, int64_t from, int64_t to) {
        return add_fast(&t, j, &s, z, first, T, from, to, err);
    };
    rc = rc || each_piece(&t, j, s.rows, s.raw, add, err) ||
         take_inner(&t, j, s.w1.s.n, s.h, s.routed_h, s.bad, &good, err);
    kd_encode_space_close(&t);
    *done = !rc && good;
    return rc ? -1 : 0;
}

/* ---- an expert ---- */

int64_t fast_expert::take(const struct kd_gpu_source src[3], int64_t count, unsigned char *base)
{
    parts p = {base};
    for (int i = 0; i < 3; i++)
        w[i].take(&p, &src[i]);
    rows = kd_least64(up_to(count, PAD), FAST_ROWS);
    both.take(&p, 2 * w[0].s.n, fast_pitch(&src[0]), fast_split(&src[0]));
    down.take(&p, w[2].s.n, fast_pitch(&src[2]), fast_split(&src[2]));
    x.take(&p, rows, both.pitch, false);
    mid.take(&p, rows, w[0].s.n, true);
    p.take(&y, 4 * rows * src[2].rows);
    p.take(&bad, 4);
    p.take(&taken, fast_count_bytes(0));
    return p.at;
}

int fast_expert::begin(const struct kd_gpu_tensor *t, const struct kd_gpu_source src[3],
                       struct kd_err *err)
{
    planes up = both;
    up.hi += kd_fast::PAIR * up.pitch;
    if (up.lo)
        up.lo += kd_fast::PAIR * up.pitch;
    for (int i = 0; i < 3; i++)
        if (w[i].put(t, &src[i], err))
            return -1;
    return fast_weights(t, &src[0], w[0], 0, w[0].s.n, both, true, err) ||
                   fast_weights(t, &src[1], w[1], 0, w[1].s.n, up, true, err) ||
                   fast_weights(t, &src[2], w[2], 0, w[2].s.n, down, false, err)
               ? -1
               : 0;
}

int fast_expert::run(const struct kd_gpu_tensor *t, const struct kd_gpu_source src[3],
                     const uint16_t *z, const int32_t *row, int64_t n, float beta, float linear,
                     struct kd_err *err)
{
    fast_rows(t, z, true, src[0].cols, src[0].cols, row, n, x);
    return fast_inner(t->stream, both, w[0].s.n, src[0].rows, x, n, beta, linear, false, mid, bad,
                      taken, err) ||
                   fast_multiply(t->stream, down, src[2].rows, mid, n, y, src[2].rows, taken, err)
               ? -1
               : 0;
}

} // namespace kd_calib
