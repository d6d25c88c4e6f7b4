/* A receipt: what a model's files hold beside what is said of them. Filled once from heads, printed
 * as text, JSON or a page. The three numbers, in the order they are always printed:
 *
 *   declared = 8 * file bytes / parameters declared     (what a headline divides by)
 *   real     = 8 * file bytes / parameters present
 *   missing  = 1 - parameters present / parameters declared
 *
 * so declared = real * present / declared parameters: a small declared number says how much was
 * deleted, no more. */
#ifndef KD_SLICE_FACTS_H
#define KD_SLICE_FACTS_H

#include "slice/record.h"

enum { KD_FACT_TYPES = 64, KD_FACT_BIG = 10, KD_FACT_CLAIMS = 16, KD_FACT_WANTS = 16 };

struct kd_fact_type {
    char name[16]; /* "Q1_0"; "MXFP4" for packed codes and their scales, "EXL3" for all of it */
    int64_t tensors, elements, bytes;
};

struct kd_fact_big {
    const char *name; /* of the heads */
    char type[16];
    int64_t elements, bytes;
};

/* One claim: by whom, what, and what the file has. */
struct kd_fact_claim {
    char by[32], what[32], text[64];
    double claimed, held;
    bool known, holds; /* not known: nothing here tells */
};

struct kd_fact_want {
    char figure[24];
    bool at_most, no_bound, measured, pass;
    double bound, value;
};

/* Where the whole model's figures come from. */
enum kd_fact_of { KD_OF_NOTHING, KD_OF_GIVEN, KD_OF_RECORD, KD_OF_FAMILY };

enum kd_fact_gate {
    KD_GATE_NOT_MEASURED,
    KD_GATE_NO_BOUND,
    KD_GATE_PASS,
    KD_GATE_FAIL,
    KD_GATE_FAIL_AS_DESIGNED
};

struct kd_fact_shape {
    int64_t layers, kda, mla, dense; /* -1: not known */
    int64_t experts, used, shared, width, latent, hidden, vocab;
};

struct kd_facts {
    const struct kd_heads *h;
    char path[1024], format[16], arch[64], name[256], size_label[64], licence[128];
    int64_t files, file_bytes, head_bytes, data_bytes, tensors;
    struct kd_heads_sum sum;
    struct kd_fact_shape shape;
    int64_t active, token_bytes; /* parameters a token goes through, bytes that it reads; -1 */
    struct kd_fact_type types[KD_FACT_TYPES];
    int type_count;
    struct kd_fact_big big[KD_FACT_BIG];
    int big_count;

    bool has_record, record_intact;
    struct kd_slice_record record;

    enum kd_fact_of of;
    char of_name[256], of_commit[65];
    bool of_text_only; /* its vision part is left out, as this file has none */
    /* Of the whole model; -1: not known. */
    int64_t src_params, src_bytes, src_layers, src_experts, src_used, src_width, src_routed,
        src_active;
    int64_t declared_params; /* -1: nobody declared any */
    bool declared_given;     /* on the command line; else the whole model's */

    char chain[400];
    enum kd_fact_gate gate;
    double kld, top1;        /* of the check; < 0: not there */
    double tok_s, bandwidth; /* as given; 0: not */
    char sha256[65];         /* of a single local file, when asked for; else "" */

    struct kd_fact_claim claims[KD_FACT_CLAIMS];
    int claim_count;
    struct kd_fact_want wants[KD_FACT_WANTS];
    int want_count;
};

struct kd_facts_opts {
    const struct kd_heads *of; /* the model it is of, or NULL */
    double declared_params;    /* 0: not given */
    double tok_s, bandwidth;   /* bytes a second; 0: not given */
    const char *gate;          /* a check's JSON or kondense.json; NULL: the one in the folder */
    bool hash;
};

/* h must stay, and live as long as f. */
int kd_facts_make(struct kd_facts *f, const struct kd_heads *h, const struct kd_facts_opts *o,
                  struct kd_err *err) KD_MUST;
void kd_facts_release(struct kd_facts *f);

/* -1 where it is not known. Shares are of one. */
double kd_facts_declared(const struct kd_facts *f);
double kd_facts_real(const struct kd_facts *f);
double kd_facts_missing(const struct kd_facts *f);
double kd_facts_missing_bytes(const struct kd_facts *f);
double kd_facts_routed(const struct kd_facts *f); /* routed weights kept, of the whole model */

/* Claims in general.name and size_label ("2.8T", "A50B"): part of kd_facts_make. This adds one of
 * the command line: "1.544" bits for each parameter that is there, or "2.8T" parameters. */
int kd_facts_claim(struct kd_facts *f, const char *text, struct kd_err *err) KD_MUST;
/* "missing=0.01,routed=0.99,claims,gate": at most real, declared, missing, missing.bytes; at least
 * routed, layers, experts, width, used, active; claims: none contradicted; gate: passed. */
int kd_facts_want(struct kd_facts *f, const char *list, struct kd_err *err) KD_MUST;
/* 0, or -1 with KD_EGATE and the first that does not hold. Claims in the file count only under
 * require "claims" or beside a claim of the command line. */
int kd_facts_judge(const struct kd_facts *f, struct kd_err *err) KD_MUST;
void kd_facts_claims_of_names(struct kd_facts *f);

/* "0.0086", "4.2500"; small numbers with three digits. "99.44 %": never 100 while something is
 * left. */
const char *kd_fact_bits(char *out, size_t size, double v);
const char *kd_fact_percent(char *out, size_t size, double share);

const char *kd_fact_gate_name(enum kd_fact_gate g); /* "FAIL AS DESIGNED" */
void kd_facts_text(struct kd_buf *out, const struct kd_facts *f);
/* Several: the rungs of a ladder, one line each. */
void kd_facts_ladder(struct kd_buf *out, const struct kd_facts *f, int count);
void kd_facts_json(struct kd_buf *out, const struct kd_facts *f, int count);
void kd_facts_html(struct kd_buf *out, const struct kd_facts *f, int count);

#endif
