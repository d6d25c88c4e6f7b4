/* L of the block LDL in the basis of the codes, and LDLQ over the tiles (EXL3 4.3 and 4.5). */
#include "codec/exl3_work.h"

#include "base/mem.h"
#include "codec/exl3_pack.h"
#include "la/la.h"

#include <string.h>

enum { TRIES_MAX = 11 };

struct square_job {
    struct kd_exl3_work *q;
    float *left, *right; /* what H is multiplied with on its sides */
    float *diagonal;
};

static void scale_item(void *ctx, int64_t i, int worker)
{
    (void)worker;
    const struct square_job *j = ctx;
    const struct kd_hess *h = j->q->h;
    int64_t k = h->k;
    for (int64_t c = 0; c < k; c++)
        j->q->l[i * k + c] = j->left[i] * h->h[i * k + c] * j->right[c];
}

/* The factors beside H: signs, or all of su brought near 1 by a power of two's reach (L does not
 * depend on a common factor). */
static void side_factors(const struct kd_exl3_work *q, float *left, float *right)
{
    double sum = 0.0;
    for (int64_t i = 0; i < q->k; i++)
        sum += (double)q->su[i] * (double)q->su[i];
    double unit = sum > 0.0 ? 1.0 / kd_exl3_pow32(sum / (double)q->k, 16) : 0.0;
    for (int64_t i = 0; i < q->k; i++) {
        right[i] = q->spec->recipe.matched ? (float)((double)q->su[i] * unit)
                   : q->su[i] < 0.0f       ? -1.0f
                                           : 1.0f;
        /* The mean diagonal is brought near 1, so that nothing leaves fp32's range. */
        left[i] = right[i] / (float)(q->mean_diag * (double)q->h->rows);
    }
}

static float damping_of(const float *diagonal, int64_t k, double damping)
{
    double sum = 0.0;
    for (int64_t i = 0; i < k; i++)
        sum += (double)diagonal[i];
    return (float)(damping * (sum / (double)k));
}

/* U of the damped H in the basis of the codes, into q->l or the device's. */
static int factor(struct square_job *j, double damping, bool *good, struct kd_err *err)
{
    struct kd_exl3_work *q = j->q;
    if (q->device)
        return kd_gpu_tensor_square(q->device, j->left, j->right, j->diagonal, err) ||
                       kd_gpu_tensor_cholesky(q->device, damping_of(j->diagonal, q->k, damping),
                                              good, err)
                   ? -1
                   : 0;
    kd_pool_run(q->run->pool, q->k, scale_item, j);
    kd_exl3_hadamard_2d(q->run, q->l, q->k, q->k);
    for (int64_t i = 0; i < q->k; i++)
        j->diagonal[i] = q->l[i * q->k + i];
    float add = damping_of(j->diagonal, q->k, damping);
    for (int64_t i = 0; i < q->k; i++)
        q->l[i * q->k + i] += add;
    *good = !kd_la_cholesky(q->run, q->l, q->k, NULL);
    return 0;
}

int kd_exl3_make_l(struct kd_exl3_work *q, int *tries, struct kd_err *err)
{
    struct square_job j = {.q = q};
    if (kd_mem_new(&j.left, 3 * q->k, sizeof *j.left, "scales", err))
        return -1;
    j.right = j.left + q->k;
    j.diagonal = j.right + q->k;
    side_factors(q, j.left, j.right);
    double damping = (double)q->spec->recipe.damping,
           step = 2.0 * (damping > 0.025 ? damping : 0.025);
    bool good = false;
    int rc = 0;
    for (*tries = 1; !rc && !good && *tries <= TRIES_MAX; ++*tries, damping += step)
        rc = factor(&j, damping, &good, err);
    *tries = good ? *tries - 1 : 0;
    if (!rc && good && q->device)
        rc = kd_gpu_tensor_ldl(q->device, err);
    else if (good)
        kd_la_block_ldl(q->run, q->l, q->k);
    kd_mem_free(j.left);
    return rc;
}

void kd_exl3_search(const struct kd_exl3_work *q, int worker, const float *targets, int64_t tiles,
                    uint16_t *states)
{
    q->run->kern->trellis_search(targets, tiles, q->spec->rate, q->spec->cb, q->spec->recipe.seam,
                                 states, q->search_scratch[worker]);
}

/* One row of tiles, row..row+16, in a span that ends at row `end`. */
struct ldlq_job {
    struct kd_exl3_work *q;
    bool feedback;
    int64_t row, span, end;
    float *e;     /* [128][n] errors of the span */
    double *part; /* squared error of each item */
};

static void group_item(void *ctx, int64_t item, int worker)
{
    const struct ldlq_job *j = ctx;
    struct kd_exl3_work *q = j->q;
    int64_t n = q->n, c0 = item * KD_EXL3_GROUP * KD_TILE, below = j->row + KD_TILE;
    int64_t tiles = (n - c0) / KD_TILE < KD_EXL3_GROUP ? (n - c0) / KD_TILE : KD_EXL3_GROUP;
    float *t = q->t + j->row * n + c0, *e = j->e + (j->row - j->span) * n + c0;
    const float *r = q->r + j->row * n + c0;
    if (j->feedback && below < j->end)
        q->run->kern->gemm_tn(q->l + below * q->k + j->row, q->k, j->e + (below - j->span) * n + c0,
                              n, j->end - below, KD_TILE, tiles * KD_TILE, t, n);
    float *target = q->targets + (int64_t)worker * KD_EXL3_GROUP * KD_TILE_WEIGHTS;
    uint16_t *states = q->states + (int64_t)worker * KD_EXL3_GROUP * KD_TILE_WEIGHTS;
    for (int64_t i = 0; i < tiles; i++)
        for (unsigned p = 0; p < KD_TILE_WEIGHTS; p++)
            target[i * KD_TILE_WEIGHTS + p] = t[kd_tile_row(p) * n + i * KD_TILE + kd_tile_col(p)];
    kd_exl3_search(q, worker, target, tiles, states);
    double sum = 0.0;
    size_t tile_bytes = kd_rate_tile_bytes(q->spec->rate);
    uint8_t *codes =
        q->codes + (size_t)(j->row / KD_TILE * (n / KD_TILE) + c0 / KD_TILE) * tile_bytes;
    for (int64_t i = 0; i < tiles; i++) {
        const uint16_t *s = states + i * KD_TILE_WEIGHTS;
        for (unsigned p = 0; p < KD_TILE_WEIGHTS; p++) {
            int64_t at = kd_tile_row(p) * n + i * KD_TILE + kd_tile_col(p);
            float v = kd_f16_f32(kd_codebook_f16(q->spec->cb, s[p]));
            double d = (double)t[at] - (double)v;
            sum += d * d;
            e[at] = r[at] - v;
            t[at] = v;
        }
        kd_exl3_pack(s, q->spec->rate, codes + (size_t)i * tile_bytes);
    }
    j->part[item] = sum;
}

int kd_exl3_ldlq(struct kd_exl3_work *q, bool feedback, double *mse, struct kd_err *err)
{
    int64_t n = q->n, items = (n / KD_TILE + KD_EXL3_GROUP - 1) / KD_EXL3_GROUP;
    struct ldlq_job j = {.q = q, .feedback = feedback};
    int rc = -1;
    if (q->device)
        return kd_exl3_device_ldlq(q, feedback, mse, err);
    if (kd_mem_new(&j.e, KD_LDLQ_SPAN * n, sizeof *j.e, "LDLQ errors", err) ||
        kd_mem_new(&j.part, items, sizeof *j.part, "LDLQ errors", err))
        goto out;
    double sum = 0.0;
    for (j.end = q->k; j.end > 0; j.end = j.span) {
        j.span = j.end - KD_LDLQ_SPAN;
        for (j.row = j.end - KD_TILE; j.row >= j.span; j.row -= KD_TILE) {
            kd_pool_run(q->run->pool, items, group_item, &j);
            for (int64_t i = 0; i < items; i++)
                sum += j.part[i];
        }
        if (feedback)
            kd_la_gemm_tn(q->run, q->l + j.span * q->k, q->k, j.e, n, j.end - j.span, j.span, n,
                          q->t, n);
    }
    *mse = sum / (double)(q->k * n);
    rc = 0;
out:
    kd_mem_free(j.e);
    kd_mem_free(j.part);
    return rc;
}
