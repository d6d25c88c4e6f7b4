#include "gate/stats.h"

#include "base/mem.h"
#include "base/rand.h"
#include "num/logsum.h"

#include <math.h>
#include <stdlib.h>

enum { DRAWS = 2000 };

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void kd_stats_sort(double *v, int64_t count)
{
    if (count > 1)
        qsort(v, (size_t)count, sizeof *v, ascending);
}

double kd_stats_quantile(const double *sorted, int64_t count, double q)
{
    if (count < 1)
        return 0;
    double at = q * (double)(count - 1);
    int64_t i = (int64_t)at;
    if (i >= count - 1)
        return sorted[count - 1];
    double part = at - (double)i;
    return sorted[i] + part * (sorted[i + 1] - sorted[i]);
}

double kd_stats_mean(const double *v, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += v[i];
    return count > 0 ? sum / (double)count : 0;
}

int kd_stats_bootstrap(const double *sum, const double *weight, int64_t clusters, uint64_t seed,
                       struct kd_interval *out, struct kd_err *err)
{
    double *mean;
    out->lo = out->hi = 0;
    if (clusters < 1)
        return 0;
    if (kd_mem_new(&mean, DRAWS, sizeof *mean, "bootstrap draws", err))
        return -1;
    for (int64_t d = 0; d < DRAWS; d++) {
        double s = 0, w = 0;
        for (int64_t i = 0; i < clusters; i++) {
            uint64_t at = (uint64_t)(d * clusters + i);
            int64_t pick = (int64_t)(kd_rand_unit(seed, at) * (double)clusters);
            s += sum[pick];
            w += weight[pick];
        }
        mean[d] = w > 0 ? s / w : 0;
    }
    kd_stats_sort(mean, DRAWS);
    out->lo = kd_stats_quantile(mean, DRAWS, 0.025);
    out->hi = kd_stats_quantile(mean, DRAWS, 0.975);
    kd_mem_free(mean);
    return 0;
}

static const double z95 = 1.959963984540054;

struct kd_interval kd_stats_wilson(int64_t hits, int64_t n)
{
    struct kd_interval out = {0, 1};
    if (n < 1)
        return out;
    double m = (double)n, p = (double)hits / m, zz = z95 * z95;
    double mid = (p + zz / (2 * m)) / (1 + zz / m);
    double half = z95 / (1 + zz / m) * sqrt(p * (1 - p) / m + zz / (4 * m * m));
    out.lo = hits == 0 ? 0 : mid - half;
    out.hi = hits == n ? 1 : mid + half;
    return out;
}

struct kd_interval kd_stats_paired(int64_t lost, int64_t gained, int64_t n)
{
    struct kd_interval out = {-1, 1};
    if (n < 1)
        return out;
    double m = (double)n + 2, down = ((double)lost + 1) / m, up = ((double)gained + 1) / m;
    double half = z95 * sqrt((down + up - (up - down) * (up - down)) / m);
    out.lo = up - down - half < -1 ? -1 : up - down - half;
    out.hi = up - down + half > 1 ? 1 : up - down + half;
    return out;
}

double kd_stats_mcnemar(int64_t lost, int64_t gained)
{
    int64_t n = lost + gained, few = lost < gained ? lost : gained;
    /* Twice the lower tail of the binomial with one half; terms by their logarithm, so that large
     * counts do not overflow. */
    double term = -(double)n * 0.6931471805599453, tail = 0;
    for (int64_t i = 0; i <= few; i++) {
        if (i > 0)
            term += kd_log64((double)(n - i + 1)) - kd_log64((double)i);
        tail += kd_exp64(term);
    }
    return tail * 2 > 1 ? 1 : tail * 2;
}
