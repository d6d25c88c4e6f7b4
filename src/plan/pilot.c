#include "plan/pilot.h"

#include "base/show.h"

#include <stdio.h>
#include <string.h>

const char *kd_pilot_part(int part)
{
    static const char *const names[KD_PILOT_PARTS] = {"forward", "Hessians", "search", "write"};
    return names[part];
}

/* How many times longer than the plan says for `here`, of a part that the plan's effort `of` has
 * alone. 1 where there was nothing to do. */
static double slower(const struct kd_pilot *p, const struct kd_plan_effort *of, double seconds)
{
    double plan = kd_plan_hours_one(of, &p->here, 0).total * 3600;
    return plan > 0 && seconds > 0 ? seconds / plan : 1;
}

/* The whole run's effort, each part as much larger as this machine was slower than planned: the
 * plan's own formulas then give this machine its measured time and others theirs in proportion. */
static void scale(const struct kd_pilot *p, const struct kd_plan_effort *layer,
                  struct kd_plan_effort *all)
{
    const double *trunk = p->part_s[KD_SCOPE_LAYER], *expert = p->part_s[KD_SCOPE_EXPERT];
    struct kd_plan_effort one = {.tiles = layer->tiles};
    all->tiles *= slower(p, &one, expert[KD_PART_SEARCH]);
    one = (struct kd_plan_effort){.calibrate_flop = layer->calibrate_flop};
    all->calibrate_flop *= slower(p, &one, expert[KD_PART_FORWARD] + expert[KD_PART_HESSIAN]);
    one = (struct kd_plan_effort){.trunk_tiles = layer->trunk_tiles};
    all->trunk_tiles *= slower(p, &one, trunk[KD_PART_SEARCH]);
    one = (struct kd_plan_effort){.trunk_flop = layer->trunk_flop,
                                  .forward_flop = layer->forward_flop};
    double flops = slower(p, &one, trunk[KD_PART_FORWARD] + trunk[KD_PART_HESSIAN]);
    all->trunk_flop *= flops;
    all->forward_flop *= flops;
    all->sealed_gb = 0; /* writing and hashing were measured together */
}

static void fill_row(const struct kd_pilot *p, const struct kd_plan_effort *all, double read_h,
                     double write_h, struct kd_pilot_row *r)
{
    struct kd_plan_hours h = r->machines ? kd_plan_hours_farm(all, r->machine, r->machines, 0)
                                         : kd_plan_hours_one(all, &p->here, 0);
    r->able = h.total > 0;
    r->hours = (struct kd_pilot_hours){.read = read_h,
                                       .encode = h.encode,
                                       .calibrate = h.calibrate,
                                       .trunk = h.trunk + h.serial,
                                       .write = write_h,
                                       .total = h.total + read_h + write_h};
    r->late = p->max_hours > 0 && (!r->able || r->hours.total > p->max_hours);
}

/* Class fast multiplies on the units for 16 bits: the plan's formulas with those rates in the place
 * of the 32-bit ones. */
static void multiply_fast(struct kd_pilot *p)
{
    p->here.fp32_tflops.v = p->here.tflops.v;
    for (int i = 0; i < p->rows_count; i++)
        for (int m = 0; m < p->row[i].machines; m++)
            p->row[i].machine[m].fp32_tflops.v = p->row[i].machine[m].tflops.v;
}

static void rates(struct kd_pilot *p, const struct kd_plan_effort *layer)
{
    const double tiles[2] = {layer->trunk_tiles, layer->tiles};
    double each = p->experts > 0 ? (double)p->model->cfg.experts / (double)p->experts : 0;
    p->layer_s = p->read_s;
    for (int s = 0; s < 2; s++) {
        double search = p->part_s[s][KD_PART_SEARCH];
        p->tiles_s[s] = search > 0 ? tiles[s] / search : 0;
        for (int i = 0; i < KD_PILOT_PARTS; i++)
            p->layer_s += p->part_s[s][i] * (s == KD_SCOPE_EXPERT ? each : 1);
    }
}

int kd_pilot_make(struct kd_pilot *p, struct kd_err *err)
{
    struct kd_plan_bytes bytes;
    struct kd_plan_effort layer, all;
    double tokens = (double)p->rows * (double)p->cols;
    if (kd_plan_count(&bytes, p->model, &p->form, err))
        return -1;
    kd_plan_effort(&all, p->model, &bytes, tokens);
    kd_plan_effort_layer(&layer, p->model, &p->form, p->layer, (double)p->experts, tokens,
                         tokens - (double)p->held_out);
    rates(p, &layer);
    if (p->fast)
        multiply_fast(p);
    double write_s =
        p->part_s[KD_SCOPE_LAYER][KD_PART_WRITE] + p->part_s[KD_SCOPE_EXPERT][KD_PART_WRITE];
    double read_h =
        p->read_bytes > 0 ? p->read_s / (double)p->read_bytes * all.source_gb * 1e9 / 3600 : 0;
    double write_h = p->written_bytes > 0
                         ? write_s / (double)p->written_bytes * (double)bytes.file_bytes / 3600
                         : 0;
    scale(p, &layer, &all);
    p->over = p->max_bytes > 0 && p->peak_bytes > p->max_bytes;
    for (int i = 0; i < p->rows_count; i++) {
        fill_row(p, &all, read_h, write_h, &p->row[i]);
        p->over |= p->row[i].late;
    }
    return 0;
}

bool kd_pilot_limit(const struct kd_pilot *p, int i, char *out, size_t size)
{
    char a[32], b[32];
    if (p->max_bytes > 0 && p->peak_bytes > p->max_bytes && !i--) {
        kd_show_bytes(a, sizeof a, p->peak_bytes);
        kd_show_bytes(b, sizeof b, p->max_bytes);
        snprintf(out, size, "memory: %s are more than the %s allowed", a, b);
        return true;
    }
    for (int r = 0; r < p->rows_count; r++)
        if (p->row[r].late && !i--) {
            if (p->row[r].able)
                snprintf(out, size, "hours: %.3g on %s are more than the %.3g allowed",
                         p->row[r].hours.total, p->row[r].name, p->max_hours);
            else
                snprintf(out, size, "hours: %s cannot encode, in %.3g or any", p->row[r].name,
                         p->max_hours);
            return true;
        }
    return false;
}
