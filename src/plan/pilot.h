/* What one measured layer says of a whole conversion: the plan's estimates replaced by what this
 * machine did, and other machines by that times the plan's ratio between them and this one. As
 * text, JSON and one HTML page.
 *
 *     p.model, p.form, what was measured, p.row[i].machine ...   // the caller's
 *     kd_pilot_make(&p, err);                                    // p.row[i].hours, p.over ... */
#ifndef KD_PLAN_PILOT_H
#define KD_PLAN_PILOT_H

#include "base/parts.h"
#include "plan/times.h"

enum { KD_PILOT_ROWS = 9, KD_PILOT_MACHINES = 8, KD_PILOT_PARTS = KD_PART_WAIT };

/* Hours of a whole conversion. calibrate: the experts' products and Hessians; trunk: everything
 * else but reading and writing, on a farm also what is sent. */
struct kd_pilot_hours {
    double read, encode, calibrate, trunk, write, total;
};

/* A list of machines that work together; the first row is this machine. */
struct kd_pilot_row {
    char name[160];
    struct kd_machine machine[KD_PILOT_MACHINES];
    int machines; /* 0: this one */
    struct kd_pilot_hours hours;
    bool able, late; /* some machine can encode; past max_hours, as one that cannot is of any */
};

struct kd_pilot {
    const struct kd_plan_model *model;
    struct kd_plan_target form;
    const char *source, *computes; /* the model's path; what computed */
    int64_t layer, rows, cols, held_out;
    bool real; /* inputs */
    const char *why;
    int64_t experts; /* encoded, of model->cfg.experts */
    double inputs_s, read_s, wall_s, compare_s;
    double part_s[2][KD_PILOT_PARTS]; /* of wall_s: KD_SCOPE_LAYER, KD_SCOPE_EXPERT */
    int64_t read_bytes, written_bytes;
    double error[2]; /* default, plain; compared 0: none */
    int64_t compared;
    int64_t peak_bytes, planned_bytes, device_bytes;
    bool fast; /* calibrated in class fast: others are held against this one by 16-bit products */
    double max_hours; /* 0: no limit */
    int64_t max_bytes;
    struct kd_machine here; /* as the plan has it: what others are held against */
    struct kd_pilot_row row[KD_PILOT_ROWS];
    int rows_count;
    /* made */
    double layer_s; /* this layer with all its experts */
    double tiles_s[2];
    bool over; /* past a limit */
};

int kd_pilot_make(struct kd_pilot *p, struct kd_err *err) KD_MUST;
void kd_pilot_text(struct kd_buf *out, const struct kd_pilot *p);
void kd_pilot_json(struct kd_buf *out, const struct kd_pilot *p);
void kd_pilot_html(struct kd_buf *out, const struct kd_pilot *p);
/* Short, for all of them: "forward", ...; and the sentences of what is past its limit, one a call
 * (i from 0), or false. */
const char *kd_pilot_part(int part);
bool kd_pilot_limit(const struct kd_pilot *p, int i, char *out, size_t size);

#endif
