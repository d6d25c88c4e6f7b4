/* The statistics behind the figures: quantiles, bootstrap over clusters, intervals of shares. All
 * deterministic, all in a fixed order of operations. Definitions: docs/quality-metrics.md. */
#ifndef KD_GATE_STATS_H
#define KD_GATE_STATS_H

#include "base/err.h"

#include <stdint.h>

struct kd_interval {
    double lo, hi;
};

/* Ascending order, in place. Values must not be NaN. */
void kd_stats_sort(double *v, int64_t count);
/* Quantile of ascending values, linear between order statistics: position q*(count-1). 0 for none.
 */
double kd_stats_quantile(const double *sorted, int64_t count, double q);
double kd_stats_mean(const double *v, int64_t count); /* ascending sum; 0 for none */

/* 95 % percentile bootstrap of sum(sum)/sum(weight) over clusters drawn with replacement; 2,000
 * draws of stream `seed`. One cluster gives [mean, mean]. */
int kd_stats_bootstrap(const double *sum, const double *weight, int64_t clusters, uint64_t seed,
                       struct kd_interval *out, struct kd_err *err);

/* Wilson's 95 % score interval of hits out of n. */
struct kd_interval kd_stats_wilson(int64_t hits, int64_t n);
/* Change of a share between two paired tests, (gained - lost)/n, with Bonett and Price's adjusted
 * Wald 95 % interval (one is added to both counts of flips). */
struct kd_interval kd_stats_paired(int64_t lost, int64_t gained, int64_t n);
/* Exact two-sided McNemar probability of a split at least this uneven. */
double kd_stats_mcnemar(int64_t lost, int64_t gained);

#endif
