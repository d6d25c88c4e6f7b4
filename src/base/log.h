/* Log lines in logfmt on stderr. KONDENSE_LOG=info or =warn,convert=debug sets levels per
 * component. A log line first wipes the progress line. Thread-safe.
 *
 *     kd_log(KD_LOG_INFO, "convert", "layer=%d ms=%.0f msg=\"sealed\"", layer, ms);
 */
#ifndef KD_BASE_LOG_H
#define KD_BASE_LOG_H

#include "base/err.h"

#include <stdbool.h>

enum kd_log_level { KD_LOG_ERROR, KD_LOG_WARN, KD_LOG_INFO, KD_LOG_DEBUG };

/* The spec as KONDENSE_LOG has it; NULL keeps the default (warn). */
int kd_log_setup(const char *spec, struct kd_err *err) KD_MUST;
bool kd_log_on(enum kd_log_level level, const char *component);
void kd_log(enum kd_log_level level, const char *component, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Lines also go to this file (appended), at info and above, e.g. convert.log; NULL closes it. */
int kd_log_file(const char *path, struct kd_err *err) KD_MUST;

#endif
