/* One expert from its inputs to the bytes of its unit: what a conversion on one machine, a worker
 * and the coordinator's checks all call, so that nobody can compute anything else. */
#ifndef KD_FARM_ENCODE_H
#define KD_FARM_ENCODE_H

#include "base/buf.h"
#include "codec/expert.h"
#include "farm/unit.h"

/* An expert's work: everything but the layer's inputs. */
struct kd_farm_task {
    int64_t expert;
    struct kd_mat w1, w3, w2; /* the source's */
    struct kd_quant_spec spec[3];
    uint32_t plain_won; /* for the unit's figures */
    uint64_t digest;    /* of the job, for the unit's head */
    char path[4096];    /* of the unit on the coordinator's disk; "" on a worker */
};
/* The unit's bytes into out (which is initialised here). */
int kd_farm_encode(const struct kd_run *run, const struct kd_layer_inputs *in,
                   const struct kd_farm_task *t, struct kd_buf *out, struct kd_err *err) KD_MUST;
/* A small expert made of random numbers, encoded: the digest of its unit. The same on every machine
 * of class `exact`; a worker whose own differs may not join. */
int kd_farm_canary(const struct kd_run *run, char sha256[65], struct kd_err *err) KD_MUST;
/* Bytes of the unit this task makes. */
int64_t kd_farm_unit_bytes(const struct kd_farm_task *t);
/* Holds a unit that came from elsewhere against the source: shapes and rates as planned, scales
 * finite, the error of each decoded matrix what its figures say, and the expert's output on up to
 * `rows` of its routed tokens no further from the source's than those errors allow. KD_ECORRUPT
 * says what is wrong. */
int kd_farm_check(const struct kd_run *run, const struct kd_layer_inputs *in,
                  const struct kd_farm_task *t, const struct kd_unit *u, int64_t rows,
                  struct kd_err *err) KD_MUST;

#endif
