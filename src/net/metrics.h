/* Figures for Prometheus, as a table in text form. A writer, not a registry: whoever holds the
 * numbers says them when asked.
 *
 *     kd_metric(out, "kondense_requests_total", KD_METRIC_COUNTER, "Requests taken.", n);
 *
 * A metric with labels: kd_metric_head once, then kd_metric_value for each. Histograms take bounds
 * and counts that are not cumulative and write cumulative buckets, as the format wants. */
#ifndef KD_NET_METRICS_H
#define KD_NET_METRICS_H

#include "base/buf.h"

#include <pthread.h>
#include <stdint.h>

enum kd_metric_kind { KD_METRIC_COUNTER, KD_METRIC_GAUGE, KD_METRIC_HISTOGRAM };

void kd_metric_head(struct kd_buf *out, const char *name, enum kd_metric_kind kind,
                    const char *help);
/* labels: `path="/v1/models",status="200"` or NULL; values in them are the caller's to escape. */
void kd_metric_value(struct kd_buf *out, const char *name, const char *labels, double value);
void kd_metric(struct kd_buf *out, const char *name, enum kd_metric_kind kind, const char *help,
               double value);
/* bound[bins - 1]; count[bins], the last without a bound. */
void kd_metric_histogram(struct kd_buf *out, const char *name, const char *help,
                         const double *bound, const int64_t *count, int bins, double sum);

/* A small table of counters that are found by a pair of a constant text and a number. Thread-safe.
 */
enum { KD_COUNTS_ROWS = 128 };
struct kd_counts {
    pthread_mutex_t lock;
    struct {
        const char *key; /* a constant, compared as text */
        int code;
        int64_t count;
    } row[KD_COUNTS_ROWS];
    int rows;
};
void kd_counts_init(struct kd_counts *t);
void kd_counts_release(struct kd_counts *t);
void kd_counts_add(struct kd_counts *t, const char *key, int code, int64_t n);
/* name{key_label="...",code_label="..."} for each row. */
void kd_counts_write(struct kd_counts *t, struct kd_buf *out, const char *name,
                     const char *key_label, const char *code_label);

#endif
