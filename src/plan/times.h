/* How long a conversion takes, on one device and on many (farm Decisions 1 to 9; exl3 5). Hours
 * come as a low and a high figure: low is the encoder at the machine's tile rate and fp32 at 70 %
 * of its peak, high a quarter of the tile rate (the kernel that exists elsewhere) and 35 %. */
#ifndef KD_PLAN_TIMES_H
#define KD_PLAN_TIMES_H

#include "plan/bytes.h"
#include "plan/machine.h"

/* Work of a whole conversion. */
struct kd_plan_effort {
    double tiles; /* of the experts, scale search included */
    double trunk_tiles;
    double calibrate_flop; /* experts: forward of all tokens and the down-projections' Hessians */
    double trunk_flop;     /* forward passes and Hessians outside the experts */
    double forward_flop;   /* quantized experts on their routed tokens */
    double latent_gb;      /* inputs of one layer, to each worker */
    double sealed_gb;      /* output of a layer */
    double source_gb;
    int64_t layers;
};
void kd_plan_effort(struct kd_plan_effort *e, const struct kd_plan_model *m,
                    const struct kd_plan_bytes *b, double tokens);

/* Of one layer with experts alone: `experts` of them, their Hessians of hess_tokens; nothing is
 * sealed. */
void kd_plan_effort_layer(struct kd_plan_effort *e, const struct kd_plan_model *m,
                          const struct kd_plan_target *t, int64_t layer, double experts,
                          double tokens, double hess_tokens);

struct kd_plan_hours {
    double encode, calibrate, trunk, serial, total;
};
/* scale: 0 low, 1 high. One device does all of it. */
struct kd_plan_hours kd_plan_hours_one(const struct kd_plan_effort *e, const struct kd_machine *m,
                                       int scale);
/* All devices of all machines encode and calibrate experts; the fastest one does the trunk and the
 * serial parts, inputs go out over 10 GbE. */
struct kd_plan_hours kd_plan_hours_farm(const struct kd_plan_effort *e, const struct kd_machine *m,
                                        int machines, int scale);
/* Seconds of a 10 GbE link for one layer's inputs to `workers` others. */
double kd_plan_ship_s(const struct kd_plan_effort *e, int workers);

#endif
