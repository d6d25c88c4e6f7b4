/* How long a farm takes: the experts of a layer handed one by one to whichever unit is done with
 * them first, the trunk's tensors stage by stage, and the parts that one machine does alone. A
 * model, for plans: seconds in, hours out. */
#ifndef KD_FARM_SIM_H
#define KD_FARM_SIM_H

enum { KD_SIM_UNITS_MAX = 64 };

enum kd_sim_mode {
    KD_SIM_SERIAL,   /* unit 0 calibrates the whole layer, then all encode */
    KD_SIM_STREAMED, /* experts are released as unit 0 calibrates; it joins when it is done */
    KD_SIM_EXPERT    /* an expert's calibration goes with its encoding, wherever that is */
};

/* Seconds are of one layer and of one unit alone. Unit 0 is the coordinator. */
struct kd_sim {
    int layers, jobs; /* of experts: 92 layers of 896 */
    int group;        /* experts that a streamed calibration releases together; 0: one by one */
    int units;
    double encode_s[KD_SIM_UNITS_MAX]; /* all experts; 0: this unit encodes nothing */
    double calib_s[KD_SIM_UNITS_MAX];  /* their calibration */
    double trunk_s[KD_SIM_UNITS_MAX];  /* encoding the trunk's tensors */
    int trunk_alone;                   /* 1: the coordinator does those itself */
    /* by the coordinator alone, and nobody encodes meanwhile */
    double ship_s, inputs_s, forward_s, checkpoint_s; /* inputs_s: of the trunk, its Hessians */
};
struct kd_sim_out {
    double hours;
    /* What the wall time was. Of the experts' time, calibration is the units' share in it. */
    double calib_h, encode_h, ship_h, trunk_h, inputs_h, forward_h, checkpoint_h;
    double idle_share; /* of the units other than the coordinator, over the whole run */
    const char *limit; /* the longest of the above, in words */
};
void kd_farm_sim(const struct kd_sim *s, enum kd_sim_mode mode, struct kd_sim_out *out);

#endif
