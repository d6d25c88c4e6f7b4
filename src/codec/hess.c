#include "codec/hess.h"

#include "base/assert.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/parts.h"
#include "gpu/calib.h"
#include "kern/finite.h"
#include "la/la.h"

#include <math.h>

enum { PAD = 128 };

int kd_hess_open(struct kd_hess *h, int64_t k_real, struct kd_err *err)
{
    *h = (struct kd_hess){.k_real = k_real};
    if (k_real < 1 || k_real > INT32_MAX)
        return kd_fail(err, KD_EINVAL, "a Hessian of %lld inputs", (long long)k_real);
    h->k = (k_real + PAD - 1) / PAD * PAD;
    return kd_mem_zero(&h->h, h->k * h->k, sizeof *h->h, "Hessian", err);
}

void kd_hess_release(struct kd_hess *h)
{
    kd_gpu_square_close(h->shared);
    kd_gpu_sums_close(h->sums);
    kd_mem_free(h->h);
    *h = (struct kd_hess){0};
}

int kd_hess_on_device(const struct kd_run *run, struct kd_hess *h, struct kd_err *err)
{
    return run->encoder ? kd_gpu_sums_open(&h->sums, run->encoder, h->k, err) : 0;
}

static int add_rows(const struct kd_run *run, struct kd_hess *h, const float *x, int64_t ldx,
                    int64_t T, struct kd_err *err)
{
    if (ldx < h->k_real)
        return kd_fail(err, KD_EINVAL, "Hessian rows of %lld inputs, %lld given",
                       (long long)h->k_real, (long long)ldx);
    const bool good = kd_finite_rows(run, x, ldx, h->k_real, T);
    /* Runs of good rows: each entry's chain simply goes on. */
    for (int64_t t = 0; t < T;) {
        int64_t end = good ? T : t;
        while (end < T && kd_finite(x + end * ldx, h->k_real))
            end++;
        if (end > t) {
            if (!h->sums)
                kd_la_syrk(run, x + t * ldx, ldx, end - t, h->k_real, h->h, h->k);
            else if (kd_gpu_sums_add(h->sums, x + t * ldx, ldx, h->k_real, end - t, err))
                return -1;
            h->rows += end - t;
        }
        if (end < T)
            h->bad_rows++;
        t = end + 1;
    }
    return 0;
}

int kd_hess_add(const struct kd_run *run, struct kd_hess *h, const float *x, int64_t ldx, int64_t T,
                struct kd_err *err)
{
    int was = kd_part_enter(KD_PART_HESSIAN), rc = add_rows(run, h, x, ldx, T, err);
    kd_part_leave(was);
    return rc;
}

int kd_hess_add_there(struct kd_hess *h, int index, const float *x, int64_t ldx, int64_t T,
                      bool *done, struct kd_err *err)
{
    *done = false;
    if (!h->sums)
        return 0;
    int was = kd_part_enter(KD_PART_HESSIAN);
    int rc = kd_gpu_sums_add_there(h->sums, index, x, ldx, h->k_real, T, done, err);
    kd_part_leave(was);
    h->rows += !rc && *done ? T : 0;
    return rc;
}

void kd_hess_close(struct kd_hess *h)
{
    struct kd_run run = {0};
    KD_ASSERT(!h->sums);
    kd_la_mirror(&run, h->h, h->k);
}

int kd_hess_finish(struct kd_hess *h, struct kd_err *err)
{
    int was = kd_part_enter(KD_PART_HESSIAN);
    int rc = h->sums ? kd_gpu_sums_take(h->sums, h->h, err) : 0;
    if (!rc) {
        kd_gpu_sums_close(h->sums);
        h->sums = NULL;
        kd_hess_close(h);
    }
    kd_part_leave(was);
    return rc;
}

int kd_hess_share(const struct kd_run *run, struct kd_hess *h, struct kd_err *err)
{
    if (!run->encoder || h->shared || !kd_hess_usable(h, NULL))
        return 0;
    return kd_gpu_square_open(&h->shared, run->encoder, h->h, h->k, err);
}

bool kd_hess_usable(const struct kd_hess *h, double *mean_diag)
{
    double sum = 0.0;
    if (h && h->rows > 0)
        for (int64_t i = 0; i < h->k_real; i++)
            sum += (double)h->h[i * h->k + i];
    double mean = h && h->rows > 0 ? sum / (double)h->rows / (double)h->k_real : 0.0;
    if (mean_diag)
        *mean_diag = mean;
    return isfinite(mean) && mean >= 1e-20;
}

int kd_hess_digest(const struct kd_hess *h, char out[65], struct kd_err *err)
{
    struct kd_sha256 sha;
    if (kd_sha256_init(&sha, err))
        return -1;
    int64_t head[2] = {h->k_real, h->rows};
    kd_sha256_add(&sha, head, sizeof head);
    for (int64_t i = 0; i < h->k_real; i++)
        kd_sha256_add(&sha, h->h + i * h->k + i, (size_t)(h->k_real - i) * sizeof(float));
    kd_sha256_hex(&sha, out);
    return 0;
}
