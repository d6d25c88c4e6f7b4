#include "net/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

void kd_metric_head(struct kd_buf *out, const char *name, enum kd_metric_kind kind,
                    const char *help)
{
    static const char *const kinds[] = {"counter", "gauge", "histogram"};
    kd_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kinds[kind]);
}

static void number(struct kd_buf *out, double v)
{
    if (isnan(v))
        kd_buf_str(out, "NaN\n");
    else if (isinf(v))
        kd_buf_str(out, v < 0 ? "-Inf\n" : "+Inf\n");
    else
        kd_buf_printf(out, "%.17g\n", v);
}

void kd_metric_value(struct kd_buf *out, const char *name, const char *labels, double value)
{
    kd_buf_str(out, name);
    if (labels)
        kd_buf_printf(out, "{%s}", labels);
    kd_buf_char(out, ' ');
    number(out, value);
}

void kd_metric(struct kd_buf *out, const char *name, enum kd_metric_kind kind, const char *help,
               double value)
{
    kd_metric_head(out, name, kind, help);
    kd_metric_value(out, name, NULL, value);
}

void kd_metric_histogram(struct kd_buf *out, const char *name, const char *help,
                         const double *bound, const int64_t *count, int bins, double sum)
{
    int64_t total = 0;
    kd_metric_head(out, name, KD_METRIC_HISTOGRAM, help);
    for (int i = 0; i < bins; i++) {
        total += count[i];
        if (i + 1 < bins)
            kd_buf_printf(out, "%s_bucket{le=\"%.6g\"} %" PRId64 "\n", name, bound[i], total);
        else
            kd_buf_printf(out, "%s_bucket{le=\"+Inf\"} %" PRId64 "\n", name, total);
    }
    kd_buf_printf(out, "%s_sum ", name);
    number(out, sum);
    kd_buf_printf(out, "%s_count %" PRId64 "\n", name, total);
}

void kd_counts_init(struct kd_counts *t)
{
    memset(t, 0, sizeof *t);
    pthread_mutex_init(&t->lock, NULL);
}

void kd_counts_release(struct kd_counts *t)
{
    pthread_mutex_destroy(&t->lock);
}

void kd_counts_add(struct kd_counts *t, const char *key, int code, int64_t n)
{
    int i;
    pthread_mutex_lock(&t->lock);
    for (i = 0; i < t->rows; i++)
        if (t->row[i].code == code && !strcmp(t->row[i].key, key))
            break;
    if (i == t->rows && t->rows < KD_COUNTS_ROWS) {
        t->row[i].key = key;
        t->row[i].code = code;
        t->row[i].count = 0;
        t->rows++;
    }
    if (i < KD_COUNTS_ROWS)
        t->row[i].count += n;
    pthread_mutex_unlock(&t->lock);
}

void kd_counts_write(struct kd_counts *t, struct kd_buf *out, const char *name,
                     const char *key_label, const char *code_label)
{
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < t->rows; i++)
        kd_buf_printf(out, "%s{%s=\"%s\",%s=\"%d\"} %" PRId64 "\n", name, key_label, t->row[i].key,
                      code_label, t->row[i].code, t->row[i].count);
    pthread_mutex_unlock(&t->lock);
}
