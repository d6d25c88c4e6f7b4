/* The figures of the published documents about K3 on small machines: each computed anew from that
 * document's own assumptions, beside it what it should be and why. */
#ifndef KD_PLAN_DOCUMENTS_H
#define KD_PLAN_DOCUMENTS_H

#include "plan/bytes.h"

enum { KD_DOC_FIGURES = 128 };

struct kd_doc_figure {
    const char *id;    /* "spark-room", for tests and JSON */
    const char *where; /* the document */
    const char *what;
    const char *unit;
    double quoted;    /* as printed there */
    double tolerance; /* of its rounding */
    double value;     /* from its own assumptions */
    char formula[200];
    bool corrected;
    double right;
    const char *reason;
};

struct kd_doc {
    struct kd_doc_figure f[KD_DOC_FIGURES];
    int count;
};
int kd_doc_make(struct kd_doc *d, struct kd_err *err) KD_MUST;
/* NULL when there is none. */
const struct kd_doc_figure *kd_doc_find(const struct kd_doc *d, const char *id);

/* Appendix B of the serving specification: a planner's output for eight machines. */
enum { KD_DOC_PLANS = 8 };
struct kd_doc_plan {
    const char *name;
    double ms, tok_s, tok_s_256k, tok_s_draft, prefill;                     /* as printed there */
    double got_ms, got_tok_s, got_tok_s_256k, got_tok_s_draft, got_prefill; /* ours */
};
void kd_doc_plans(struct kd_doc_plan out[KD_DOC_PLANS]);

#endif
