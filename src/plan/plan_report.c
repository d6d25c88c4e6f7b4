#include "plan/plan_report.h"

#include <stdio.h>
#include <string.h>

void kd_plan_span(char *out, size_t size, double seconds)
{
    if (seconds < 0)
        snprintf(out, size, "never");
    else if (seconds < 1)
        snprintf(out, size, "%.2f s", seconds);
    else if (seconds < 100)
        snprintf(out, size, "%.3g s", seconds);
    else if (seconds < 5400)
        snprintf(out, size, "%.0f min", seconds / 60);
    else if (seconds < 3600 * 72)
        snprintf(out, size, "%.3g h", seconds / 3600);
    else if (seconds < 86400 * 800.0)
        snprintf(out, size, "%.0f days", seconds / 86400);
    else
        snprintf(out, size, "%.0f years", seconds / 86400 / 365.25);
}

void kd_plan_span_range(char *out, size_t size, double low_s, double high_s)
{
    static const struct {
        double below_s, unit_s;
        const char *name;
    } units[] = {{100, 1, "s"},
                 {5400, 60, "min"},
                 {3600 * 72, 3600, "h"},
                 {86400 * 800.0, 86400, "days"},
                 {1e300, 86400 * 365.25, "years"}};
    int u = 0;
    while (high_s >= units[u].below_s && u < 4)
        u++;
    double low = low_s / units[u].unit_s, high = high_s / units[u].unit_s;
    snprintf(out, size,
             high < 10    ? "%.1f to %.1f %s"
             : high < 100 ? "%.3g to %.3g %s"
                          : "%.0f to %.0f %s",
             low, high, units[u].name);
}

/* A form's name after "as". */
static const char *as_name(const char *name)
{
    return !strncmp(name, "as ", 3) ? name + 3 : name;
}

void kd_plan_sentence(char *out, size_t size, const struct kd_plan *p,
                      const struct kd_plan_column *c)
{
    const struct kd_plan_fit *f = c->chosen;
    double room = kd_machine_room_gib(&c->machine);
    const char *each = c->machine.count > 1 ? " on each" : "";
    int n;
    switch (f->verdict) {
    case KD_PLAN_NOT_SUPPORTED:
        snprintf(out, size, "not supported: %s", c->machine.why_not);
        return;
    case KD_PLAN_FITS:
        n = snprintf(out, size,
                     "fits as %s: %.1f GiB of weights and %.1f of caches%s, room for %.1f",
                     as_name(c->chosen_name), f->device_gib, f->cache_gib, each, room);
        /* The better form that just misses. */
        for (int t = 1; t < p->targets && &c->fit[t] != f && n > 0 && n < (int)size; t++)
            if (p->target[t].form == KD_FORM_EXL3 && c->fit[t].short_gib > 0)
                n += snprintf(out + n, size - (size_t)n, " (%s is %.1f short)", p->target[t].name,
                              c->fit[t].short_gib);
        return;
    case KD_PLAN_FROM_DISK:
        snprintf(out, size,
                 "does not fit in memory (%.0f GiB short%s as %s); runs with experts read from the "
                 "drive",
                 f->short_gib, each, as_name(c->chosen_name));
        return;
    case KD_PLAN_TOO_BIG:
        break;
    }
    if (f->devices_needed)
        snprintf(out, size, "does not fit: %.0f GiB short%s as %s; %d of them would do",
                 f->short_gib, each, as_name(c->chosen_name), f->devices_needed);
    else
        snprintf(out, size, "does not fit: %.0f GiB short%s as %s", f->short_gib, each,
                 as_name(c->chosen_name));
}

bool kd_plan_listed(const struct kd_plan *p, double rate)
{
    for (int t = 0; t < p->targets; t++)
        if (p->target[t].form == KD_FORM_EXL3 && p->target[t].experts_bpw >= rate - 1e-9 &&
            p->target[t].experts_bpw <= rate + 1e-9)
            return true;
    return false;
}

/* The first form that fits, in the order of the targets (best quality first); else the highest rate
 * that fits; else the smallest form that the drive can hold; else the smallest. */
static void choose(struct kd_plan *p, struct kd_plan_column *c)
{
    int smallest = 0;
    c->chosen = NULL;
    for (int t = 0; t < p->targets && !c->chosen; t++) {
        if (c->fit[t].verdict == KD_PLAN_FITS) {
            c->chosen = &c->fit[t];
            c->chosen_name = p->target[t].name;
        }
        if (c->fit[t].bytes.tensor_bytes < c->fit[smallest].bytes.tensor_bytes)
            smallest = t;
    }
    if (!c->chosen && c->best_rate > 0 && c->best.verdict == KD_PLAN_FITS) {
        c->chosen = &c->best;
        c->chosen_name = c->best_target.name;
    }
    if (!c->chosen) {
        c->chosen = &c->fit[smallest];
        c->chosen_name = p->target[smallest].name;
    }
}

static int answer(struct kd_plan *p, struct kd_plan_column *c, struct kd_err *err)
{
    for (int t = 0; t < p->targets; t++)
        if (kd_plan_fit(&c->fit[t], p->model, &p->target[t], &c->machine, &p->use, err))
            return -1;
    if (kd_plan_best_rate(&c->best_rate, p->model, &c->machine, &p->use, err))
        return -1;
    if (c->best_rate > 0) {
        c->best_target = kd_plan_exl3(c->best_rate);
        if (kd_plan_fit(&c->best, p->model, &c->best_target, &c->machine, &p->use, err))
            return -1;
    }
    for (int q = 0; q < p->quants; q++)
        if (kd_plan_fit(&c->quant[q], p->model, &kd_plan_published[q], &c->machine, &p->use, err))
            return -1;
    choose(p, c);
    return 0;
}

static void hours(struct kd_plan *p)
{
    struct kd_machine all[KD_PLAN_MACHINES];
    for (int i = 0; i < p->columns; i++)
        all[i] = p->column[i].machine;
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < p->columns; i++) {
            p->column[i].one[s] = kd_plan_hours_one(&p->effort, &all[i], s);
            p->column[i].all[s] = kd_plan_hours_farm(&p->effort, &all[i], 1, s);
        }
        p->together[s] = kd_plan_hours_farm(&p->effort, all, p->columns, s);
    }
}

int kd_plan_make(struct kd_plan *p, struct kd_err *err)
{
    /* Hours are for the first EXL3 form asked for; its rate hardly matters. */
    struct kd_plan_target exl3 = kd_plan_exl3(2.3);
    p->made_name = "EXL3 2.3 bits";
    for (int t = p->targets - 1; t >= 0; t--)
        if (p->target[t].form == KD_FORM_EXL3) {
            exl3 = p->target[t];
            p->made_name = p->target[t].name;
        }
    p->quants = 0;
    while (p->model->built_in && *kd_plan_published[p->quants].name)
        p->quants++;
    if (kd_plan_count(&p->made, p->model, &exl3, err))
        return -1;
    kd_plan_effort(&p->effort, p->model, &p->made, p->tokens);
    for (int i = 0; i < p->columns; i++)
        if (answer(p, &p->column[i], err))
            return -1;
    hours(p);
    return p->model->built_in ? kd_doc_make(&p->doc, err) : 0;
}
