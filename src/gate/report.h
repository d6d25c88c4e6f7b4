/* A check's result for a program (JSON), for a terminal (one screen), and as one HTML page. */
#ifndef KD_GATE_REPORT_H
#define KD_GATE_REPORT_H

#include "gate/verdict.h"

/* The whole document. Holds neither time nor path, so that two runs give the same bytes. */
void kd_report_json(struct kd_buf *out, const struct kd_check *c, const struct kd_verdict *v);
/* Its members, for a document that has others: the figures, and "pass" with "requirements". */
void kd_report_members(struct kd_jw *w, const struct kd_check *c);
void kd_report_verdict_members(struct kd_jw *w, const struct kd_verdict *v);
/* At most 24 lines of 100 columns, UTF-8. */
void kd_report_text(struct kd_buf *out, const struct kd_check *c, const struct kd_verdict *v);
/* One file, no scripts, nothing loaded from elsewhere; light or dark as the reader's system is. */
void kd_report_html(struct kd_buf *out, const struct kd_check *c, const struct kd_verdict *v);

#endif
