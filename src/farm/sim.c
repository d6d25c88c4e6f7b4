#include "farm/sim.h"

#include <string.h>

/* One layer's experts: when the last is done, and how long units 1.. have worked. */
static double layer(const struct kd_sim *s, enum kd_sim_mode mode, double *busy)
{
    double free_at[KD_SIM_UNITS_MAX] = {0}, end = 0;
    double encode = s->encode_s / s->jobs;
    /* Unit 0 does an expert's calibration in calib_s / jobs, another in proportion to its speed. */
    double with = mode == KD_SIM_EXPERT ? s->calib_s / s->jobs * s->speed[0] : 0;
    free_at[0] = mode == KD_SIM_EXPERT ? 0 : s->calib_s;
    for (int j = 0; j < s->jobs; j++) {
        int group = s->group > 0 ? s->group : 1, groups = (s->jobs + group - 1) / group;
        int released = j / group + 1; /* groups, when this one is */
        double ready = mode == KD_SIM_SERIAL     ? s->calib_s
                       : mode == KD_SIM_STREAMED ? s->calib_s * released / groups
                                                 : 0;
        int best = -1;
        double at = 0;
        for (int u = 0; u < s->units; u++) {
            double start = free_at[u] > ready ? free_at[u] : ready;
            double done = s->speed[u] > 0 ? start + (encode + with) / s->speed[u] : 0;
            if (s->speed[u] > 0 && (best < 0 || done < at)) {
                best = u;
                at = done;
            }
        }
        if (best < 0)
            return 0;
        if (best > 0)
            *busy += (encode + with) / s->speed[best];
        free_at[best] = at;
        end = at > end ? at : end;
    }
    return end > free_at[0] ? end : free_at[0];
}

void kd_farm_sim(const struct kd_sim *s, enum kd_sim_mode mode, struct kd_sim_out *out)
{
    double busy = 0, n = s->layers / 3600.0;
    memset(out, 0, sizeof *out);
    double t = layer(s, mode, &busy);
    out->calib_h = mode == KD_SIM_EXPERT ? 0 : s->calib_s * n;
    out->encode_h = t * n - out->calib_h;
    out->ship_h = s->ship_s * n;
    out->trunk_h = s->trunk_s * n;
    out->forward_h = s->forward_s * n;
    out->checkpoint_h = s->checkpoint_s * n;
    out->hours = t * n + out->ship_h + out->trunk_h + out->forward_h + out->checkpoint_h;
    double whole = t + s->ship_s + s->trunk_s + s->forward_s + s->checkpoint_s;
    if (s->units > 1 && whole > 0)
        out->idle_share = 1 - busy / (whole * (s->units - 1));
}
