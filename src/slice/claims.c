/* What is said of a model against what it holds: numbers in its names, on the command line, and
 * requirements. */
#include "base/opt.h"
#include "slice/facts.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* A decimal number at s: its value, half a unit of its last digit, its length. */
static size_t decimal(const char *s, double *value, double *half)
{
    double v = 0, unit = 1;
    size_t n = 0;
    bool point = false;
    for (; n < 24 && (isdigit((unsigned char)s[n]) || (s[n] == '.' && !point && n)); n++) {
        if (s[n] == '.') {
            if (!isdigit((unsigned char)s[n + 1]))
                break;
            point = true;
            continue;
        }
        v = v * 10 + (s[n] - '0');
        unit = point ? unit / 10 : unit;
    }
    *value = v * unit;
    *half = unit / 2;
    return n;
}

static double suffix(char c)
{
    return c == 'T' || c == 't'   ? 1e12
           : c == 'B' || c == 'b' ? 1e9
           : c == 'M' || c == 'm' ? 1e6
                                  : 0;
}

static void add(struct kd_facts *f, const char *by, const char *what, const char *text, size_t n,
                double claimed, double held, double room)
{
    if (f->claim_count == KD_FACT_CLAIMS)
        return;
    struct kd_fact_claim *c = &f->claims[f->claim_count++];
    snprintf(c->by, sizeof c->by, "%s", by);
    snprintf(c->what, sizeof c->what, "%s", what);
    snprintf(c->text, sizeof c->text, "%.*s", (int)n, text);
    c->claimed = claimed;
    c->held = held;
    c->known = held >= 0;
    double off = claimed > held ? claimed - held : held - claimed;
    c->holds = c->known && off <= room * (1 + 1e-9);
}

/* "2.8T", "A50B": counts of parameters, where a number ends in a unit and a word ends with it. */
static void counts_in(struct kd_facts *f, const char *by, const char *text)
{
    for (const char *s = text; *s; s++) {
        double v, half, unit;
        bool active = (*s == 'A' || *s == 'a') && isdigit((unsigned char)s[1]);
        if (s > text && (isalnum((unsigned char)s[-1]) || s[-1] == '.') &&
            !(s[-1] == '.' && active))
            continue;
        const char *digits = s + active;
        size_t n = isdigit((unsigned char)*digits) ? decimal(digits, &v, &half) : 0;
        if (!n || (unit = suffix(digits[n])) <= 0 || isalnum((unsigned char)digits[n + 1]))
            continue;
        add(f, by, active ? "active parameters" : "parameters", s, n + 1 + (size_t)active, v * unit,
            (double)(active ? f->active : f->sum.params), half * unit);
        s = digits + n;
    }
}

void kd_facts_claims_of_names(struct kd_facts *f)
{
    /* A slice that calls itself one names the whole model in saying so. */
    if (strncmp(f->name, "slice of ", 9) != 0)
        counts_in(f, "general.name", f->name);
    counts_in(f, "general.size_label", f->size_label);
}

int kd_facts_claim(struct kd_facts *f, const char *text, struct kd_err *err)
{
    double v, half;
    size_t n = isdigit((unsigned char)*text) ? decimal(text, &v, &half) : 0;
    double unit = n ? suffix(text[n]) : 0;
    if (!n || (text[n] && (unit <= 0 || text[n + 1])))
        return kd_fail(err, KD_EUSAGE,
                       "--claim: '%s' is neither bits for a parameter (1.544) nor a number of "
                       "parameters (2.8T)",
                       text);
    if (unit > 0)
        add(f, "--claim", "parameters", text, n + 1, v * unit, (double)f->sum.params, half * unit);
    else
        add(f, "--claim", "bits for a parameter", text, n, v, kd_facts_real(f), half);
    return 0;
}

static double ratio(int64_t a, int64_t b)
{
    return a >= 0 && b > 0 ? (double)a / (double)b : -1;
}

static bool any_contradicted(const struct kd_facts *f)
{
    for (int i = 0; i < f->claim_count; i++)
        if (f->claims[i].known && !f->claims[i].holds)
            return true;
    return false;
}

static double value_of(const struct kd_facts *f, const char *figure)
{
    const struct kd_fact_shape *s = &f->shape;
    const struct {
        const char *name;
        double value;
    } all[] = {{"real", kd_facts_real(f)},
               {"declared", kd_facts_declared(f)},
               {"missing", kd_facts_missing(f)},
               {"missing.bytes", kd_facts_missing_bytes(f)},
               {"routed", kd_facts_routed(f)},
               {"layers", ratio(s->layers, f->src_layers)},
               {"experts", ratio(s->experts, f->src_experts)},
               {"width", ratio(s->width, f->src_width)},
               {"used", ratio(s->used, f->src_used)},
               {"active", ratio(f->active, f->src_active)},
               {"claims", any_contradicted(f) ? 0 : 1},
               {"gate", f->gate == KD_GATE_NOT_MEASURED ? -1 : f->gate == KD_GATE_PASS}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, figure))
            return all[i].value;
    return -2;
}

static int want_one(struct kd_facts *f, const char *text, size_t n, struct kd_err *err)
{
    static const char *const at_most[] = {"real", "declared", "missing", "missing.bytes"};
    struct kd_fact_want w = {.bound = 1};
    size_t name = 0;
    while (name < n && text[name] != '=')
        name++;
    snprintf(w.figure, sizeof w.figure, "%.*s", (int)name, text);
    w.no_bound = !strcmp(w.figure, "claims") || !strcmp(w.figure, "gate");
    w.value = name < sizeof w.figure ? value_of(f, w.figure) : -2;
    if (w.value < -1.5)
        return kd_fail(err, KD_EUSAGE,
                       "'%.*s' cannot be required (real, declared, missing, missing.bytes, routed, "
                       "layers, experts, width, used, active, claims, gate)",
                       (int)name, text);
    if (w.no_bound != (name == n))
        return kd_fail(err, KD_EUSAGE, w.no_bound ? "'%s' takes no number" : "'%s' needs a bound",
                       w.figure);
    char number[40];
    snprintf(number, sizeof number, "%.*s", (int)(n - name - (name < n)), text + name + (name < n));
    if (!w.no_bound && kd_parse_num(number, &w.bound, err))
        return kd_wrap(err, "%s", w.figure);
    for (size_t i = 0; i < sizeof at_most / sizeof *at_most; i++)
        w.at_most |= !strcmp(at_most[i], w.figure);
    w.measured = w.value > -1 || (!strncmp(w.figure, "missing", 7) && w.value != -1);
    w.pass = w.measured && (w.at_most ? w.value <= w.bound : w.value >= w.bound);
    if (f->want_count == KD_FACT_WANTS)
        return kd_fail(err, KD_EUSAGE, "too many requirements");
    f->wants[f->want_count++] = w;
    return 0;
}

int kd_facts_want(struct kd_facts *f, const char *list, struct kd_err *err)
{
    for (const char *at = list;;) {
        size_t n = strcspn(at, ",");
        if (want_one(f, at, n, err))
            return kd_wrap(err, "--require");
        if (!at[n])
            return 0;
        at += n + 1;
    }
}

static int contradicted(const struct kd_facts *f, const struct kd_fact_claim *c, struct kd_err *err)
{
    double declared = kd_facts_declared(f), v, half;
    if (!strcmp(c->what, "bits for a parameter")) {
        decimal(c->text, &v, &half);
        bool headline = declared >= 0 && declared - v <= half && v - declared <= half;
        if (headline)
            return kd_fail(err, KD_EGATE,
                           "%s: %s %s is what the declared parameters give; %.2f %% of them are "
                           "not in the file, and those that are have %.4f",
                           c->by, c->text, c->what, 100 * kd_facts_missing(f), c->held);
        return kd_fail(err, KD_EGATE, "%s: %s %s is not what the file has, %.4f", c->by, c->text,
                       c->what, c->held);
    }
    return kd_fail(err, KD_EGATE, "%s claims %s %s, the file has %.0f", c->by, c->text, c->what,
                   c->held);
}

int kd_facts_judge(const struct kd_facts *f, struct kd_err *err)
{
    bool strict = false;
    for (int i = 0; i < f->claim_count; i++)
        strict |= !strcmp(f->claims[i].by, "--claim");
    for (int i = 0; i < f->want_count; i++)
        strict |= !strcmp(f->wants[i].figure, "claims");
    for (int i = f->claim_count; strict && i-- > 0;) /* the command line's first */
        if (f->claims[i].known && !f->claims[i].holds)
            return contradicted(f, &f->claims[i], err);
    for (int i = 0; i < f->want_count; i++) {
        const struct kd_fact_want *w = &f->wants[i];
        if (w->pass)
            continue;
        if (!w->measured)
            return kd_fail(err, KD_EGATE, "requirement not met: %s is NOT MEASURED", w->figure);
        if (w->no_bound)
            return kd_fail(err, KD_EGATE, "requirement not met: %s (%s)", w->figure,
                           kd_fact_gate_name(f->gate));
        return kd_fail(err, KD_EGATE, "requirement not met: %s %.6g is %s %.6g", w->figure,
                       w->value, w->at_most ? "over" : "under", w->bound);
    }
    return 0;
}
