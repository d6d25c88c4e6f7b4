#include "farm/sim.h"

#include <string.h>

/* A stage's tensors, as shares of the trunk's weights of a K3 layer (KDA, three in four): q, k, v,
 * g; o; latent-down, shared gate and up; shared down; latent-up. */
static const struct {
    int count;
    double share[4];
} stages[] = {{4, {0.1412, 0.1412, 0.1412, 0.1412}},
              {1, {0.1412}},
              {3, {0.0706, 0.0706, 0.0412}},
              {1, {0.0706}},
              {1, {0.0412}}};

/* The unit that would be done first with work that takes alone_s[u] * share and may begin at
 * `ready`; its end into *at. -1: nobody works. */
static int first_done(const struct kd_sim *s, const double *free_at, const double *alone_s,
                      const double *more_s, double share, double ready, double *at)
{
    int best = -1;
    for (int u = 0; u < s->units; u++) {
        double start = free_at[u] > ready ? free_at[u] : ready;
        double done = start + (alone_s[u] + (more_s ? more_s[u] : 0)) * share;
        if (alone_s[u] > 0 && (best < 0 || done < *at)) {
            best = u;
            *at = done;
        }
    }
    return best;
}

/* One layer's experts: when the last is done, and how long units 1.. have worked. */
static double experts(const struct kd_sim *s, enum kd_sim_mode mode, double *busy, double *calib)
{
    double free_at[KD_SIM_UNITS_MAX] = {0}, end = 0, all = 0;
    const double *with = mode == KD_SIM_EXPERT ? s->calib_s : NULL;
    int group = s->group > 0 ? s->group : 1, groups = (s->jobs + group - 1) / group;
    free_at[0] = mode == KD_SIM_EXPERT ? 0 : s->calib_s[0];
    for (int j = 0; j < s->jobs; j++) {
        int released = j / group + 1; /* groups, when this one is */
        double at = 0, ready = mode == KD_SIM_SERIAL     ? s->calib_s[0]
                               : mode == KD_SIM_STREAMED ? s->calib_s[0] * released / groups
                                                         : 0;
        int u = first_done(s, free_at, s->encode_s, with, 1.0 / s->jobs, ready, &at);
        if (u < 0)
            return 0;
        double took = (s->encode_s[u] + (with ? with[u] : 0)) / s->jobs;
        if (u > 0)
            *busy += took;
        all += took;
        *calib += with ? with[u] / s->jobs : 0;
        free_at[u] = at;
        end = at > end ? at : end;
    }
    end = end > free_at[0] ? end : free_at[0];
    /* Everyone works all the time, so a share of the work is that share of the time. */
    *calib = with ? end * (*calib / all) : s->calib_s[0];
    return end;
}

static double trunk(const struct kd_sim *s, double *busy)
{
    double t = 0;
    if (s->trunk_alone)
        return s->trunk_s[0];
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        double free_at[KD_SIM_UNITS_MAX] = {0}, end = 0;
        for (int k = 0; k < stages[i].count; k++) {
            double at = 0;
            int u = first_done(s, free_at, s->trunk_s, NULL, stages[i].share[k], 0, &at);
            if (u < 0)
                return 0;
            if (u > 0)
                *busy += at - free_at[u];
            free_at[u] = at;
            end = at > end ? at : end;
        }
        t += end;
    }
    return t;
}

void kd_farm_sim(const struct kd_sim *s, enum kd_sim_mode mode, struct kd_sim_out *out)
{
    double busy = 0, calib = 0, n = s->layers / 3600.0;
    memset(out, 0, sizeof *out);
    double t = experts(s, mode, &busy, &calib), own = trunk(s, &busy);
    out->calib_h = calib * n;
    out->encode_h = t * n - out->calib_h;
    out->ship_h = s->ship_s * n;
    out->trunk_h = own * n;
    out->inputs_h = s->inputs_s * n;
    out->forward_h = s->forward_s * n;
    out->checkpoint_h = s->checkpoint_s * n;
    double whole = t + own + s->ship_s + s->inputs_s + s->forward_s + s->checkpoint_s;
    out->hours = whole * n;
    if (s->units > 1 && whole > 0)
        out->idle_share = 1 - busy / (whole * (s->units - 1));
    const struct {
        double h;
        const char *name;
    } parts[] = {{out->calib_h, "calibration"},         {out->encode_h, "encoding"},
                 {out->ship_h, "shipping of inputs"},   {out->trunk_h, "encoding of the trunk"},
                 {out->inputs_h, "the trunk's inputs"}, {out->forward_h, "the quantized forward"},
                 {out->checkpoint_h, "checkpoints"}};
    double most = -1;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].h > most) {
            most = parts[i].h;
            out->limit = parts[i].name;
        }
}
