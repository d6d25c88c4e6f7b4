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

/* After kernels: whether they started, then `bytes` of what they left, then the end of it all. */
static int down(const struct kd_gpu_tensor *t, void *to, const void *from, int64_t bytes,
                struct kd_err *err)
{
    if (kd_gpu_failed(cudaGetLastError(), err, "encoding") ||
        (bytes && kd_gpu_tensor_copy(t, to, from, bytes, cudaMemcpyDeviceToHost, err)))
        return -1;
    return kd_gpu_tensor_settle(t, err);
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
    return kd_gpu_tensor_here(t, err) || times_hessian(t, t->t, t->w, err) ||
                   column_dots(t, t->t, t->w, quad, err)
               ? -1
               : 0;
}

extern "C" int kd_gpu_tensor_dots(struct kd_gpu_tensor *t, double *column, double *row,
                                  struct kd_err *err)
{
    const int64_t k = t->shape.k, n = t->shape.n;
    if (kd_gpu_tensor_here(t, err))
        return -1;
    if (column)
        return column_dots(t, t->t, t->r, column, err);
    KD_LAUNCH(kd_la_row_dots, k / KD_LA_ROWS, KD_LA_THREADS, KD_LA_ROWS_SHARED, t->stream, t->t,
              t->r, n, t->sum);
    return down(t, row, t->sum, 8 * k, err);
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
    const struct kd_gpu_tn_job tn = {t->w, t->w, t->l, k, k, k, n, k, k, true, false};
    if (kd_gpu_tensor_here(t, err) ||
        kd_gpu_failed(cudaMemsetAsync(t->l, 0, (size_t)(4 * k * k), t->stream), err, "encoding"))
        return -1;
    KD_LAUNCH(kd_la_transpose, k / 32 * (n / 32), KD_LA_THREADS, 32 * 33 * 4, t->stream, t->t, k, n,
              t->w);
    if (kd_gpu_tn_launch(t->stream, &tn, err))
        return -1;
    KD_LAUNCH(kd_la_times, k, KD_LA_THREADS, 0, t->stream, t->l, t->h, k);
    diagonal_of(t, 0.0f);
    return down(t, diagonal, t->left, 4 * k, err);
}
