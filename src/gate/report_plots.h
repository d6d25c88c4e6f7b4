/* The plots of the HTML page, inline SVG. Private to the gate. */
#ifndef KD_GATE_REPORT_PLOTS_H
#define KD_GATE_REPORT_PLOTS_H

#include "gate/report.h"

/* The style sheet of the pages. */
extern const char kd_report_style[];

void kd_plot_kld(struct kd_buf *out, const struct kd_check *c);
void kd_plot_bands(struct kd_buf *out, const struct kd_check *c);
void kd_plot_router(struct kd_buf *out, const struct kd_check *c, const struct kd_verdict *v);
void kd_plot_margins(struct kd_buf *out, const struct kd_check *c);
void kd_plot_stream(struct kd_buf *out, const struct kd_check *c);
void kd_plot_flips(struct kd_buf *out, const struct kd_battery *b);

#endif
