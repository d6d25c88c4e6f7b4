/* Random experts of a quantized model held against its source, by byte range: of both, only the
 * heads of their files and the bytes of the chosen experts are read. Either may be safetensors
 * (EXL3 and MXFP4 too) or a GGUF. Each expert's three matrices are decoded into the original basis;
 * its relative error is |Wq - W| / |W| over all three.
 *
 * With a receipt (kondense.json), an expert is bad when a matrix's error is not the one that the
 * receipt says (within `tolerance` of it); without, when its error is over `limit`, or, when no
 * limit is given, over 1.5 times the sample's median. One whose error is not finite or reaches 1
 * (it has nothing of the source left) is bad in any case.
 *
 * `bound`: the share of bad experts in the whole model that the sample excludes with 95 % (exact,
 * one-sided; none bad of n: 1 - 0.05^(1/n)). Choosing without replacement only makes it safer. */
#ifndef KD_GATE_AUDIT_H
#define KD_GATE_AUDIT_H

#include "base/json.h"
#include "model/k3.h"
#include "net/source.h"

struct kd_audit_plan {
    const char *model, *source; /* as kd_source_open takes them */
    const struct kd_source_opts *opts;
    const char *work; /* a folder for holes and pieces; made, and emptied after */
    int64_t n;
    uint64_t seed;
    double tolerance; /* 0: 0.001 */
    double limit;     /* 0: by the median */
    const volatile int *stop;
};

struct kd_audit_expert {
    int64_t layer, expert;
    double rel, rel_of[3], k; /* of w1, w3, w2; bits a weight of the codes (GGUF: of blocks) */
    double said[3];           /* by the receipt; < 0: nothing */
    bool bad;
};

struct kd_audit {
    char model[256], source[256], model_commit[64], source_commit[64];
    struct kd_audit_expert *expert; /* in order of layer and expert */
    int64_t n, bad, population;
    bool has_receipt;
    double median, worst, limit, bound;
    int64_t model_bytes, source_bytes; /* fetched */
    int64_t model_total, source_total; /* what the files have */
};

/* Fills *a; kd_audit_release after it, failed or not. */
int kd_audit_run(struct kd_audit *a, const struct kd_run *run, const struct kd_audit_plan *plan,
                 struct kd_err *err) KD_MUST;
void kd_audit_release(struct kd_audit *a);
/* Puts what a receipt's text says of the experts of the sample into their `said`. */
int kd_audit_receipt(struct kd_audit *a, const char *text, size_t bytes,
                     struct kd_err *err) KD_MUST;
/* The highest share of bad ones in the whole of which so few or fewer in n have 5 %. */
double kd_audit_bound(int64_t bad, int64_t n);
void kd_audit_text(struct kd_buf *out, const struct kd_audit *a);
void kd_audit_json(struct kd_buf *out, const struct kd_audit *a);
void kd_audit_html(struct kd_buf *out, const struct kd_audit *a);

#endif
