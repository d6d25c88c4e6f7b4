/* Requirements on a check's figures, and the verdict written into the receipt. */
#ifndef KD_GATE_VERDICT_H
#define KD_GATE_VERDICT_H

#include "gate/check.h"

enum { KD_REQUIRE_MAX = 16 };

struct kd_require {
    char figure[24];
    bool at_most; /* else at least */
    double bound;
    double value;
    bool measured, pass; /* not measured: not passed */
};
struct kd_verdict {
    struct kd_require r[KD_REQUIRE_MAX];
    int count;
    bool pass; /* all of them; true without any */
};

/* "kld=0.1,top1=0.9": kld, kld.median, kld.p95, kld.p99, control.kld, ppl.ratio, bits.file at most;
 * top1, router, router.min, battery.exact, battery.calls at least. Appends; a figure given twice
 * keeps the stricter bound. */
int kd_verdict_parse(struct kd_verdict *v, const char *list, struct kd_err *err) KD_MUST;
/* "k3": KLD at most 0.070 at 2.0 bits and 0.050 from 2.3 on (the listed rate next below, the
 * experts' K rounded to hundredths), router at least 0.90 and none under 0.85. */
int kd_verdict_profile(struct kd_verdict *v, const char *name, double experts_k,
                       struct kd_err *err) KD_MUST;
/* Fills value and pass. */
void kd_verdict_judge(struct kd_verdict *v, const struct kd_check *c);
/* The first failed ones in one sentence: "kld 0.12 is over 0.1, ..."; returns -1 with KD_EGATE, 0
 * when all passed. */
int kd_verdict_fail(const struct kd_verdict *v, struct kd_err *err) KD_MUST;
/* Puts "verdict" into DIR/kondense.json, byte for byte the same otherwise; made when missing. */
int kd_verdict_write(const struct kd_verdict *v, const struct kd_check *c, const char *dir,
                     struct kd_err *err) KD_MUST;

#endif
