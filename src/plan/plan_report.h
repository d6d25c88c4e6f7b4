/* A whole plan: a model, forms of it, machines; the answers; and the same as text, JSON and one
 * HTML page. */
#ifndef KD_PLAN_PLAN_REPORT_H
#define KD_PLAN_PLAN_REPORT_H

#include "base/json.h"
#include "plan/answer.h"
#include "plan/documents.h"
#include "plan/forecast.h"
#include "plan/probe.h"
#include "plan/times.h"

enum { KD_PLAN_MACHINES = 8, KD_PLAN_TARGETS = 8, KD_PLAN_QUANTS = 12 };

/* One machine's answers. */
struct kd_plan_column {
    struct kd_machine machine;
    struct kd_plan_fit fit[KD_PLAN_TARGETS];
    double best_rate;        /* bits that just fit; 0: none */
    struct kd_plan_fit best; /* with that rate */
    struct kd_plan_target best_target;
    const struct kd_plan_fit *chosen; /* what the verdict speaks of */
    const char *chosen_name;
    struct kd_plan_fit quant[KD_PLAN_QUANTS]; /* published ones, K3 only */
    struct kd_plan_hours one[2], all[2];      /* to make the chosen form; low, high */
};

struct kd_plan {
    const struct kd_plan_model *model;
    struct kd_plan_use use;
    double tokens; /* of calibration */
    struct kd_plan_target target[KD_PLAN_TARGETS];
    int targets;
    struct kd_plan_column column[KD_PLAN_MACHINES];
    int columns;
    int quants;
    struct kd_plan_bytes made; /* the form that the hours are for */
    const char *made_name;
    struct kd_plan_effort effort;
    struct kd_plan_hours together[2]; /* all machines as one farm */
    struct kd_doc doc;                /* K3 only */
    const struct kd_probe *probe;     /* --this, or NULL */
    const struct kd_forecast *forecast;
};

/* Fills what follows from model, use, tokens, targets and the columns' machines. The caller keeps
 * the struct where it is (answers point into it). */
int kd_plan_make(struct kd_plan *p, struct kd_err *err) KD_MUST;

struct kd_plan_show {
    bool explain; /* formulas with their numbers */
    bool figures; /* the documents' */
    bool glossary;
    bool brief; /* the verdicts alone */
};
void kd_plan_text(struct kd_buf *out, const struct kd_plan *p, const struct kd_plan_show *show);
void kd_plan_json(struct kd_buf *out, const struct kd_plan *p);
void kd_plan_html(struct kd_buf *out, const struct kd_plan *p);

/* Parts of them. Lines of "name: formula = value". */
void kd_plan_explain(struct kd_buf *out, const struct kd_plan *p, const struct kd_plan_column *c);
/* A sentence on price, power and the break-even; nothing when the machine has no price. */
void kd_plan_money(struct kd_buf *out, const struct kd_plan *p, const struct kd_plan_column *c);
struct kd_glossary {
    const char *word, *means;
};
extern const struct kd_glossary kd_plan_glossary[]; /* ends with NULL */
/* Whether a form of this rate is among the targets already. */
bool kd_plan_listed(const struct kd_plan *p, double rate);
/* "12 s", "3 min", "14 h", "6 days"; "never" for negative ones. */
void kd_plan_span(char *out, size_t size, double seconds);
/* "12.6 to 33.4 h": both ends in the unit of the larger. */
void kd_plan_span_range(char *out, size_t size, double low_s, double high_s);
/* The sentence of a verdict: what fits or does not, and by how much. */
void kd_plan_sentence(char *out, size_t size, const struct kd_plan *p,
                      const struct kd_plan_column *c);

#endif
