/* How long a farm takes: the experts of a layer handed one by one to whichever unit is free first,
 * and the parts that one machine does alone beside it. A model, for plans: rates in, hours out. */
#ifndef KD_FARM_SIM_H
#define KD_FARM_SIM_H

enum { KD_SIM_UNITS_MAX = 64 };

enum kd_sim_mode {
    KD_SIM_SERIAL,   /* unit 0 calibrates the whole layer, then all encode */
    KD_SIM_STREAMED, /* experts are released as unit 0 calibrates; it joins when it is done */
    KD_SIM_EXPERT    /* an expert's calibration goes with its encoding, wherever that is */
};

struct kd_sim {
    int layers, jobs; /* of experts: 92 layers of 896 */
    int group;        /* experts that a streamed calibration releases together; 0: one by one */
    int units;
    double
        speed[KD_SIM_UNITS_MAX]; /* of each unit; unit 0 is the coordinator, 0: does not encode */
    double encode_s;             /* of a layer's experts by a unit of speed 1 */
    double calib_s;              /* of a layer's experts by unit 0 */
    /* of each layer, by the coordinator alone, and nobody encodes meanwhile */
    double ship_s, trunk_s, forward_s, checkpoint_s;
};
struct kd_sim_out {
    double hours;
    double calib_h, encode_h, ship_h, trunk_h, forward_h, checkpoint_h; /* what the wall time was */
    double idle_share; /* of the units other than the coordinator, over the whole run */
};
void kd_farm_sim(const struct kd_sim *s, enum kd_sim_mode mode, struct kd_sim_out *out);

#endif
