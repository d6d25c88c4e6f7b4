/* The linear algebra around LDLQ, on the tensor's own stream: what one thread waits for goes before
 * the searches of the others. */
#include "gpu/encode_la.cuh"

#include "gpu/encode_int.cuh"
#include "gpu/tn.cuh"

static int up(const struct kd_gpu_tensor *t, float *to, const float *from, int64_t count,
              struct kd_err *err)
{
    return kd_gpu_tensor_copy(t, to, from, 4 * count, cudaMemcpyHostToDevice, err);
}

/* After kernels: whether they started, their end, then `bytes` of what they left. (A copy into
 * ordinary memory waits too, but awake.) */
static int down(const struct kd_gpu_tensor *t, void *to, const void *from, int64_t bytes,
                struct kd_err *err)
{
    if (kd_gpu_failed(cudaGetLastError(), err, "encoding") || kd_gpu_tensor_settle(t, err))
        return -1;
    return bytes && (kd_gpu_tensor_copy(t, to, from, bytes, cudaMemcpyDeviceToHost, err) ||
                     kd_gpu_tensor_settle(t, err))
               ? -1
               : 0;
}

template <enum kd_la_stored TYPE>
static int load(struct kd_gpu_tensor *t, const struct kd_gpu_source *w, int64_t width, int64_t ld,
                struct kd_err *err)
{
    const int64_t k = t->shape.k, n = t->shape.n, scales = (w->cols + 31) / 32;
    uint8_t *from = (uint8_t *)t->r, *scale = from + width * w->rows;
    const struct kd_la_load_job j = {from, scale, width, scales, w->rows, w->cols, t->w, n, t->bad};

    if (w->rows > n || w->cols > k)
        return kd_fail(err, KD_EINVAL, "a matrix of %lld x %lld for a tensor of %lld x %lld",
                       (long long)w->rows, (long long)w->cols, (long long)n, (long long)k);
    if (kd_gpu_tensor_here(t, err) ||
        kd_gpu_failed(cudaMemsetAsync(t->bad, 0, sizeof *t->bad, t->stream), err, "encoding") ||
        kd_gpu_tensor_copy_rows(t, from, width, w->data, ld, width, w->rows, err) ||
        (TYPE == KD_LA_MXFP4 &&
         kd_gpu_tensor_copy_rows(t, scale, scales, w->scale, w->ld_scale, scales, w->rows, err)))
        return -1;
    KD_LAUNCH(kd_la_load<TYPE>, k / KD_LA_SIDE * (n / KD_LA_SIDE), KD_LA_THREADS, KD_LA_SIDE_SHARED,
              t->stream, j);
    return 0;
}

extern "C" int kd_gpu_tensor_load(struct kd_gpu_tensor *t, const struct kd_gpu_source *w,
                                  bool *finite, struct kd_err *err)
{
    int32_t bad = 0;
    int rc = w->type == KD_GPU_MAT_F32    ? load<KD_LA_F32>(t, w, 4 * w->cols, 4 * w->ld, err)
             : w->type == KD_GPU_MAT_BF16 ? load<KD_LA_BF16>(t, w, 2 * w->cols, 2 * w->ld, err)
             : w->type == KD_GPU_MAT_MXFP4
                 ? load<KD_LA_MXFP4>(t, w, (w->cols + 1) / 2, w->ld, err)
                 : kd_fail(err, KD_EINVAL, "weights of type %d on a device", (int)w->type);
    if (rc || down(t, &bad, t->bad, sizeof bad, err))
        return -1;
    *finite = !bad;
    return 0;
}

template <enum kd_la_basis WHAT>
static int basis(struct kd_gpu_tensor *t, const float *in, float *out, int64_t rows, int64_t cols,
                 const float *left, const float *right, struct kd_err *err)
{
    const struct kd_la_basis_job j = {in, out, rows, cols, t->left, t->right};
    if (kd_gpu_tensor_here(t, err) || up(t, t->left, left, rows, err) ||
        up(t, t->right, right, cols, err) ||
        kd_gpu_failed(cudaFuncSetAttribute((const void *)kd_la_basis_kernel<WHAT>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           KD_LA_TILE_SHARED),
                      err, "shared memory for a basis"))
        return -1;
    KD_LAUNCH(kd_la_basis_kernel<WHAT>, rows / KD_LA_TILE * (cols / KD_LA_TILE), KD_LA_THREADS,
              KD_LA_TILE_SHARED, t->stream, j);
    return 0;
}

extern "C" int kd_gpu_tensor_rotate(struct kd_gpu_tensor *t, const float *su, const float *sv,
                                    struct kd_err *err)
{
    return basis<KD_LA_ROTATE>(t, t->w, t->r, t->shape.k, t->shape.n, su, sv, err) ||
                   down(t, NULL, NULL, 0, err)
               ? -1
               : 0;
}

extern "C" int kd_gpu_tensor_unrotate(struct kd_gpu_tensor *t, const float *su, const float *sv,
                                      struct kd_err *err)
{
    return basis<KD_LA_UNROTATE>(t, t->t, t->t, t->shape.k, t->shape.n, su, sv, err) ||
                   down(t, NULL, NULL, 0, err)
               ? -1
               : 0;
}

/* L's diagonal plus `add`, into t->left. */
static void diagonal_of(struct kd_gpu_tensor *t, float add)
{
    KD_LAUNCH(kd_la_take_diagonal, (t->shape.k + KD_LA_THREADS - 1) / KD_LA_THREADS, KD_LA_THREADS,
              0, t->stream, t->l, t->shape.k, add, t->left);
}

extern "C" int kd_gpu_tensor_square(struct kd_gpu_tensor *t, const float *left, const float *right,
                                    float *diagonal, struct kd_err *err)
{
    const int64_t k = t->shape.k;
    if (basis<KD_LA_SQUARE>(t, t->h, t->l, k, k, left, right, err))
        return -1;
    diagonal_of(t, 0.0f);
    return down(t, diagonal, t->left, 4 * k, err);
}

extern "C" int kd_gpu_tensor_cholesky(struct kd_gpu_tensor *t, float add, bool *good,
                                      struct kd_err *err)
{
    const int64_t k = t->shape.k;
    int32_t bad = 0;
    *good = false;
    if (kd_gpu_tensor_here(t, err) ||
        kd_gpu_failed(cudaMemsetAsync(t->bad, 0, sizeof *t->bad, t->stream), err, "encoding") ||
        kd_gpu_failed(cudaFuncSetAttribute((const void *)kd_la_diagonal,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           KD_LA_TILE_SHARED),
                      err, "shared memory for Cholesky") ||
        kd_gpu_failed(cudaFuncSetAttribute((const void *)kd_la_panel,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           KD_LA_PANEL_SHARED),
                      err, "shared memory for Cholesky"))
        return -1;
    diagonal_of(t, add);
    for (int64_t p = 0; p < k; p += KD_LA_TILE) {
        const int64_t rest = k - p - KD_LA_TILE;
        float *panel = t->l + p * k + p + KD_LA_TILE;
        const struct kd_gpu_tn_job tn = {
            panel, panel, panel + KD_LA_TILE * k, k, k, k, KD_LA_TILE, rest, rest, true, true};
        KD_LAUNCH(kd_la_diagonal, 1, KD_LA_THREADS, KD_LA_TILE_SHARED, t->stream, t->l, k, p,
                  t->bad);
        if (!rest)
            break;
        KD_LAUNCH(kd_la_panel, rest / KD_LA_TILE, KD_LA_TILE, KD_LA_PANEL_SHARED, t->stream, t->l,
                  k, p);
        if (kd_gpu_tn_launch(t->stream, &tn, err))
            return -1;
    }
    if (down(t, &bad, t->bad, sizeof bad, err))
        return -1;
    *good = !bad;
    return 0;
}

extern "C" int kd_gpu_tensor_ldl(struct kd_gpu_tensor *t, struct kd_err *err)
{
    const int64_t k = t->shape.k, chunks = (k + KD_LA_THREADS - 1) / KD_LA_THREADS;
    if (kd_gpu_tensor_here(t, err))
        return -1;
    KD_LAUNCH(kd_la_ldl, k / KD_LA_SUB * chunks, KD_LA_THREADS, KD_LA_THREADS * 4, t->stream, t->l,
              k, chunks);
    KD_LAUNCH(kd_la_ldl_clear, k, KD_LA_THREADS, 0, t->stream, t->l, k);
    return down(t, NULL, NULL, 0, err);
}

/* out = HESSIAN x. */
static int times_hessian(struct kd_gpu_tensor *t, const float *x, float *out, struct kd_err *err)
{
    const int64_t k = t->shape.k, n = t->shape.n;
    const struct kd_gpu_tn_job tn = {t->h, x, out, k, n, n, k, k, n, false, false};
    return kd_gpu_failed(cudaMemsetAsync(out, 0, (size_t)(4 * k * n), t->stream), err,
                         "encoding") ||
                   kd_gpu_tn_launch(t->stream, &tn, err)
               ? -1
               : 0;
}

static int column_dots(struct kd_gpu_tensor *t, const float *x, const float *y, double *out,
                       struct kd_err *err)
{
    KD_LAUNCH(kd_la_column_dots, t->shape.n / KD_LA_ROWS, KD_LA_ROWS, 0, t->stream, x, y,
              t->shape.k, t->shape.n, t->sum);
    return down(t, out, t->sum, 8 * t->shape.n, err);
}

extern "C" int kd_gpu_tensor_weigh(struct kd_gpu_tensor *t, double *dot, struct kd_err *err)
{
    return kd_gpu_tensor_here(t, err) || times_hessian(t, t->w, t->r, err) ||
                   column_dots(t, t->w, t->r, dot, err)
               ? -1
               : 0;
}

extern "C" int kd_gpu_tensor_quads(struct kd_gpu_tensor *t, double *quad, struct kd_err *err)
{
    return kd_gpu_tensor_here(t, err) || times_hessian(t, t->t, t->spare, err) ||
                   column_dots(t, t->t, t->spare, quad, err)
               ? -1
               : 0;
}

static int row_dots(struct kd_gpu_tensor *t, const float *x, const float *y, double *out,
                    struct kd_err *err)
{
    KD_LAUNCH(kd_la_row_dots, t->shape.k / KD_LA_ROWS, KD_LA_THREADS, KD_LA_ROWS_SHARED, t->stream,
              x, y, t->shape.n, t->sum);
    return down(t, out, t->sum, 8 * t->shape.k, err);
}

extern "C" int kd_gpu_tensor_dots(struct kd_gpu_tensor *t, double *column, double *row,
                                  struct kd_err *err)
{
    if (kd_gpu_tensor_here(t, err))
        return -1;
    return column ? column_dots(t, t->t, t->r, column, err) : row_dots(t, t->t, t->r, row, err);
}

extern "C" int kd_gpu_tensor_columns(struct kd_gpu_tensor *t, double *sum, struct kd_err *err)
{
    return kd_gpu_tensor_here(t, err) || column_dots(t, t->w, t->w, sum, err) ? -1 : 0;
}

extern "C" int kd_gpu_tensor_rows(struct kd_gpu_tensor *t, const float *sv, double *sum,
                                  struct kd_err *err)
{
    const int64_t k = t->shape.k, n = t->shape.n;
    if (kd_gpu_tensor_here(t, err) || up(t, t->right, sv, n, err))
        return -1;
    KD_LAUNCH(kd_la_row_ms, k / KD_LA_ROWS, KD_LA_THREADS, KD_LA_MS_SHARED, t->stream, t->w,
              t->right, n, t->sum);
    return down(t, sum, t->sum, 8 * k, err);
}

extern "C" int kd_gpu_tensor_energy(struct kd_gpu_tensor *t, double *energy, struct kd_err *err)
{
    const int64_t n = t->shape.n, tiles = t->shape.k / KD_TILE * (n / KD_TILE);
    if (kd_gpu_tensor_here(t, err))
        return -1;
    KD_LAUNCH(kd_la_energy, (tiles + KD_LA_TILE - 1) / KD_LA_TILE, KD_LA_TILE, 0, t->stream, t->r,
              n, tiles, t->sum);
    return down(t, energy, t->sum, 8 * tiles, err);
}

extern "C" int kd_gpu_tensor_sample(struct kd_gpu_tensor *t, const int64_t *pick, int64_t tiles,
                                    double drift, struct kd_err *err)
{
    int64_t *numbers = (int64_t *)t->sum;
    if (tiles < 1 || tiles > kd_encode_samples(&t->shape))
        return kd_fail(err, KD_EINVAL, "a scale search over %lld tiles", (long long)tiles);
    if (kd_gpu_tensor_here(t, err) ||
        kd_gpu_tensor_copy(t, numbers, pick, 8 * tiles, cudaMemcpyHostToDevice, err))
        return -1;
    KD_LAUNCH(kd_la_sample, tiles, KD_LA_THREADS, 0, t->stream, t->r, t->shape.n, numbers, drift,
              t->sample);
    t->samples = tiles;
    return down(t, NULL, NULL, 0, err);
}

extern "C" int kd_gpu_tensor_stretch(struct kd_gpu_tensor *t, const float *rows,
                                     const float *columns, struct kd_err *err)
{
    const int64_t k = t->shape.k, n = t->shape.n;
    if (kd_gpu_tensor_here(t, err) || (rows && up(t, t->left, rows, k, err)) ||
        (columns && up(t, t->right, columns, n, err)))
        return -1;
    KD_LAUNCH(kd_la_stretch, k, KD_LA_THREADS, 0, t->stream, t->t, n, rows ? t->left : NULL,
              t->right);
    return down(t, NULL, NULL, 0, err);
}

extern "C" int kd_gpu_tensor_gram(struct kd_gpu_tensor *t, float *diagonal, struct kd_err *err)
{
    const int64_t k = t->shape.k, n = t->shape.n;
    const struct kd_gpu_tn_job tn = {t->spare, t->spare, t->l, k, k, k, n, k, k, true, false};
    if (kd_gpu_tensor_here(t, err) ||
        kd_gpu_failed(cudaMemsetAsync(t->l, 0, (size_t)(4 * k * k), t->stream), err, "encoding"))
        return -1;
    KD_LAUNCH(kd_la_transpose, k / KD_LA_SIDE * (n / KD_LA_SIDE), KD_LA_THREADS, KD_LA_SIDE_SHARED,
              t->stream, t->t, k, n, t->spare);
    if (kd_gpu_tn_launch(t->stream, &tn, err))
        return -1;
    KD_LAUNCH(kd_la_times, k, KD_LA_THREADS, 0, t->stream, t->l, t->h, k);
    diagonal_of(t, 0.0f);
    return down(t, diagonal, t->left, 4 * k, err);
}

/* 99 KB: a block of a GB10 and of RTX cards has no more. */
static_assert(KD_LA_SOLVE_SHARED + 4 * KD_LA_SOLVE_HELD <= 99 << 10 &&
                  KD_LA_TILE_SHARED <= 99 << 10 && KD_LA_PANEL_SHARED <= 99 << 10,
              "linear algebra on the smallest device");

extern "C" int kd_gpu_tensor_solve(struct kd_gpu_tensor *t, float *rhs, struct kd_err *err)
{
    const int64_t k = t->shape.k;
    const bool held = k <= KD_LA_SOLVE_HELD;
    if (kd_gpu_tensor_here(t, err) || up(t, t->left, rhs, k, err) ||
        kd_gpu_failed(cudaFuncSetAttribute((const void *)kd_la_solve,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           KD_LA_SOLVE_SHARED + 4 * KD_LA_SOLVE_HELD),
                      err, "shared memory for a system"))
        return -1;
    KD_LAUNCH(kd_la_solve, 1, KD_LA_SOLVERS, KD_LA_SOLVE_SHARED + (held ? 4 * k : 0), t->stream,
              t->l, k, t->left, held);
    return down(t, rhs, t->left, 4 * k, err);
}

extern "C" int kd_gpu_tensor_error(struct kd_gpu_tensor *t, double *power, double *error,
                                   struct kd_err *err)
{
    const int64_t count = t->shape.k * t->shape.n;
    if (kd_gpu_tensor_here(t, err) || row_dots(t, t->w, t->w, power, err))
        return -1;
    KD_LAUNCH(kd_la_error, (count + KD_LA_THREADS - 1) / KD_LA_THREADS, KD_LA_THREADS, 0, t->stream,
              t->w, count, t->t);
    return row_dots(t, t->t, t->t, error, err);
}
