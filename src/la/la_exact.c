#include "la/la.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* BLOCK is a multiple of every kernel's tile of c; CHUNK rows are negated at a time. */
enum { BLOCK = KD_LA_BLOCK, CHUNK = 128, SUB = 16 };

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t blocks_of(int64_t n)
{
    return (n + BLOCK - 1) / BLOCK;
}

/* One block of c, at most BLOCK x BLOCK: c += a^T b, or c -= a^T b (negation is exact). */
static void tn_block(const struct kd_kern *kern, const float *a, int64_t lda, const float *b,
                     int64_t ldb, int64_t S, int64_t I, int64_t J, float *c, int64_t ldc,
                     bool minus)
{
    if (!minus) {
        kern->gemm_tn(a, lda, b, ldb, S, I, J, c, ldc);
        return;
    }
    _Alignas(64) float less[CHUNK * BLOCK];
    for (int64_t s = 0; s < S; s += CHUNK) {
        int64_t rows = min64(CHUNK, S - s);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < I; i++)
                less[r * BLOCK + i] = -a[(s + r) * lda + i];
        kern->gemm_tn(less, BLOCK, b + s * ldb, ldb, rows, I, J, c, ldc);
    }
}

struct tn_job {
    const struct kd_kern *kern;
    const float *a, *b;
    int64_t lda, ldb, S, I, J;
    float *c;
    int64_t ldc;
    bool upper, minus; /* upper: only blocks on and above the diagonal */
};

static void tn_item(void *ctx, int64_t item, int worker)
{
    (void)worker;
    const struct tn_job *j = ctx;
    int64_t nj = blocks_of(j->J), bi = item / nj, bj = item % nj;
    if (j->upper && bj < bi)
        return;
    int64_t i0 = bi * BLOCK, j0 = bj * BLOCK;
    tn_block(j->kern, j->a + i0, j->lda, j->b + j0, j->ldb, j->S, min64(BLOCK, j->I - i0),
             min64(BLOCK, j->J - j0), j->c + i0 * j->ldc + j0, j->ldc, j->minus);
}

static void tn_run(const struct kd_run *run, const struct tn_job *j)
{
    struct tn_job job = *j;
    job.kern = run->kern;
    kd_pool_run(run->pool, blocks_of(j->I) * blocks_of(j->J), tn_item, &job);
}

void kd_la_gemm_tn(const struct kd_run *run, const float *a, int64_t lda, const float *b,
                   int64_t ldb, int64_t S, int64_t I, int64_t J, float *c, int64_t ldc)
{
    tn_run(run,
           &(struct tn_job){
               .a = a, .lda = lda, .b = b, .ldb = ldb, .S = S, .I = I, .J = J, .c = c, .ldc = ldc});
}

void kd_la_syrk(const struct kd_run *run, const float *x, int64_t ldx, int64_t T, int64_t k,
                float *h, int64_t ldh)
{
    tn_run(run, &(struct tn_job){.a = x,
                                 .lda = ldx,
                                 .b = x,
                                 .ldb = ldx,
                                 .S = T,
                                 .I = k,
                                 .J = k,
                                 .c = h,
                                 .ldc = ldh,
                                 .upper = true});
}

struct square_job {
    const struct kd_kern *kern;
    float *h;
    int64_t k, p, nb; /* panel rows p..p+nb */
};

static void mirror_item(void *ctx, int64_t bi, int worker)
{
    (void)worker;
    const struct square_job *j = ctx;
    int64_t k = j->k, r1 = min64((bi + 1) * BLOCK, k);
    for (int64_t c0 = 0; c0 < r1; c0 += BLOCK)
        for (int64_t r = bi * BLOCK; r < r1; r++)
            for (int64_t c = c0; c < min64(c0 + BLOCK, r); c++)
                j->h[r * k + c] = j->h[c * k + r];
}

void kd_la_mirror(const struct kd_run *run, float *h, int64_t k)
{
    struct square_job j = {.h = h, .k = k};
    kd_pool_run(run->pool, blocks_of(k), mirror_item, &j);
}

/* Rows r..r+rows of a panel (width w) given all rows above them in that panel are done: subtract
 * nothing more, divide by the diagonal and eliminate inside these rows. u is the diagonal block. */
static void solve_sub(const struct kd_kern *kern, const float *u, int64_t k, int64_t r,
                      int64_t rows, float *x, int64_t w)
{
    for (int64_t q = r; q < r + rows; q++) {
        float d = u[q * k + q], *xq = x + q * k;
        for (int64_t c = 0; c < w; c++)
            xq[c] /= d;
        for (int64_t s = q + 1; s < r + rows; s++)
            kern->axpy(-u[q * k + s], xq, x + s * k, w);
    }
}

/* The part of the panel right of its diagonal block: U_pp^T X = H, a strip of BLOCK columns an
 * item. */
static void panel_item(void *ctx, int64_t item, int worker)
{
    (void)worker;
    const struct square_job *j = ctx;
    int64_t k = j->k, c0 = j->p + j->nb + item * BLOCK, w = min64(BLOCK, k - c0);
    const float *u = j->h + j->p * k + j->p;
    float *x = j->h + j->p * k + c0;
    for (int64_t r = 0; r < j->nb; r += SUB) {
        int64_t rows = min64(SUB, j->nb - r);
        if (r)
            tn_block(j->kern, u + r, k, x, k, r, rows, w, x + r * k, k, true);
        solve_sub(j->kern, u, k, r, rows, x, w);
    }
}

/* U of one diagonal block; the failing row, or -1. */
static int64_t factor_diagonal(const struct kd_kern *kern, float *u, int64_t k, int64_t nb)
{
    for (int64_t q = 0; q < nb; q++) {
        float d = u[q * k + q];
        if (!(d > 0.0f) || !isfinite(d))
            return q;
        d = sqrtf(d);
        u[q * k + q] = d;
        for (int64_t c = q + 1; c < nb; c++)
            u[q * k + c] /= d;
        for (int64_t s = q + 1; s < nb; s++)
            kern->axpy(-u[q * k + s], u + q * k + s, u + s * k + s, nb - s);
    }
    return -1;
}

int kd_la_cholesky(const struct kd_run *run, float *h, int64_t k, struct kd_err *err)
{
    for (int64_t p = 0; p < k; p += BLOCK) {
        int64_t nb = min64(BLOCK, k - p), rest = k - p - nb;
        int64_t bad = factor_diagonal(run->kern, h + p * k + p, k, nb);
        if (bad >= 0)
            return kd_fail(err, KD_EINVAL,
                           "matrix of %lld rows is not positive definite at row %lld", (long long)k,
                           (long long)(p + bad));
        struct square_job j = {.kern = run->kern, .h = h, .k = k, .p = p, .nb = nb};
        kd_pool_run(run->pool, blocks_of(rest), panel_item, &j);
        const float *panel = h + p * k + p + nb;
        tn_run(run, &(struct tn_job){.a = panel,
                                     .lda = k,
                                     .b = panel,
                                     .ldb = k,
                                     .S = nb,
                                     .I = rest,
                                     .J = rest,
                                     .c = h + (p + nb) * k + p + nb,
                                     .ldc = k,
                                     .upper = true,
                                     .minus = true});
    }
    return 0;
}

/* Block b of L: (U_bb^-1 U[b, right of it])^T into the lower triangle, zeros into the upper. */
static void ldl_item(void *ctx, int64_t item, int worker)
{
    (void)worker;
    const struct square_job *j = ctx;
    int64_t k = j->k, p = item * SUB;
    float *u = j->h + p * k + p;
    _Alignas(64) float m[SUB * CHUNK];
    for (int64_t c0 = p + SUB; c0 < k; c0 += CHUNK) {
        int64_t w = min64(CHUNK, k - c0);
        for (int64_t q = SUB - 1; q >= 0; q--) {
            float *mq = m + q * CHUNK, d = u[q * k + q];
            memcpy(mq, j->h + (p + q) * k + c0, (size_t)w * sizeof *mq);
            for (int64_t s = q + 1; s < SUB; s++)
                j->kern->axpy(-u[q * k + s], m + s * CHUNK, mq, w);
            for (int64_t c = 0; c < w; c++)
                mq[c] /= d;
        }
        for (int64_t c = 0; c < w; c++)
            for (int64_t q = 0; q < SUB; q++)
                j->h[(c0 + c) * k + p + q] = m[q * CHUNK + c];
    }
    for (int64_t q = 0; q < SUB; q++)
        memset(u + q * k, 0, (size_t)(k - p) * sizeof *u);
}

void kd_la_block_ldl(const struct kd_run *run, float *h, int64_t k)
{
    struct square_job j = {.kern = run->kern, .h = h, .k = k};
    kd_pool_run(run->pool, k / SUB, ldl_item, &j);
}

void kd_la_solve_factored(const struct kd_run *run, const float *u, int64_t k, float *rhs)
{
    for (int64_t p = 0; p < k; p++) {
        rhs[p] /= u[p * k + p];
        run->kern->axpy(-rhs[p], u + p * k + p + 1, rhs + p + 1, k - p - 1);
    }
    for (int64_t p = k - 1; p >= 0; p--)
        rhs[p] =
            (rhs[p] - run->kern->dot(u + p * k + p + 1, rhs + p + 1, k - p - 1)) / u[p * k + p];
}

int kd_la_solve(const struct kd_run *run, float *h, int64_t k, float *rhs, struct kd_err *err)
{
    if (kd_la_cholesky(run, h, k, err))
        return -1;
    kd_la_solve_factored(run, h, k, rhs);
    return 0;
}
