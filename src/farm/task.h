/* One job from its inputs to the bytes of its unit, an expert or a tensor of the trunk: what a
 * conversion on one machine, a worker and the coordinator's checks all call, so that nobody can
 * compute anything else. */
#ifndef KD_FARM_TASK_H
#define KD_FARM_TASK_H

#include "base/buf.h"
#include "codec/expert.h"
#include "farm/unit.h"

/* An expert's work: everything but the layer's inputs. Or a tensor's: w1 and spec[0] alone. */
struct kd_farm_task {
    int64_t expert;
    bool trunk;                 /* one tensor, whose inputs' Hessian is hess */
    const struct kd_hess *hess; /* NULL: a recipe that needs none; unused by experts */
    struct kd_mat w1, w3, w2;   /* the source's */
    struct kd_quant_spec spec[3];
    uint32_t plain_won; /* for the unit's figures */
    uint64_t digest;    /* of the job, for the unit's head */
    char path[4096];    /* of the unit on the coordinator's disk; "" on a worker */
};
/* Matrices of the task, in the order of its unit. */
static inline int kd_farm_task_mats(const struct kd_farm_task *t, const struct kd_mat *m[3])
{
    m[0] = &t->w1;
    m[1] = &t->w3;
    m[2] = &t->w2;
    return t->trunk ? 1 : 3;
}
/* The unit's bytes into out (which is initialised here). `in` is the layer's, unused by the trunk.
 */
int kd_farm_quantize(const struct kd_run *run, const struct kd_layer_inputs *in,
                     const struct kd_farm_task *t, struct kd_buf *out, struct kd_err *err) KD_MUST;
/* The same; what coordinators and workers call, so that a test may have a worker go wrong. */
int kd_farm_encode(const struct kd_run *run, const struct kd_layer_inputs *in,
                   const struct kd_farm_task *t, struct kd_buf *out, struct kd_err *err) KD_MUST;
/* A small expert made of random numbers, encoded: the digest of its unit. The same on every machine
 * of class `exact`; a worker whose own differs may not join. */
int kd_farm_canary(const struct kd_run *run, char sha256[65], struct kd_err *err) KD_MUST;
/* Whether a tensor of the trunk may be a job for workers: its form can be sent, and neither its
 * weights, its Hessian nor its unit is larger than the wire takes. */
bool kd_farm_takes(const struct kd_farm_task *t);
/* Bytes of the unit this task makes. */
int64_t kd_farm_unit_bytes(const struct kd_farm_task *t);
/* Holds a unit that came from elsewhere against the source: shapes and rates as planned, scales
 * finite, the error of each decoded matrix what its figures say, and an expert's output on up to
 * `rows` of its routed tokens no further from the source's than those errors allow. KD_ECORRUPT
 * says what is wrong. */
int kd_farm_check(const struct kd_run *run, const struct kd_layer_inputs *in,
                  const struct kd_farm_task *t, const struct kd_unit *u, int64_t rows,
                  struct kd_err *err) KD_MUST;

#endif
