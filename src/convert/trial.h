/* One layer of a conversion, measured: where its time goes, what it takes, how much the default
 * recipe gains over plain codes. A job whose streams before that layer are the source's own, or
 * made where the layers before are not there. */
#ifndef KD_CONVERT_TRIAL_H
#define KD_CONVERT_TRIAL_H

#include "base/parts.h"
#include "convert/job.h"

enum { KD_TRIAL_WHY_BYTES = 160 };

struct kd_trial {
    /* asked for */
    int64_t layer;
    int64_t experts; /* so many are encoded, spread over the layer; 0: all */
    bool made;       /* made inputs whatever is there */
    /* found */
    bool real;                    /* the layer's inputs are the source's */
    char why[KD_TRIAL_WHY_BYTES]; /* where they are not */
    int64_t encoded;              /* experts */
    int64_t expert_weights;       /* of one */
    double read_s, inputs_s;      /* reading the layer once; making its inputs */
    int64_t read_bytes, written_bytes;
    double wall_s, experts_s;           /* all of the layer; of that, all experts' encoding */
    double part_s[KD_SCOPES][KD_PARTS]; /* experts': of all threads that encode together */
    double
        error[2]; /* of the layer's output on rows held back: default, plain; squared, relative */
    int64_t compared, held_out; /* experts, tokens */
};

/* The work: `j` was opened for the source with recipe auto and by_layer set, its dst a folder of
 * the caller's that goes. Fills what is found. Errors say which file of the layer is not there. */
int kd_trial_run(struct kd_job *j, struct kd_trial *t, struct kd_err *err) KD_MUST;

/* Rows of tokens: what they take of the disk, or of the memory (job.in_memory). */
int64_t kd_trial_rows_bytes(const struct kd_job *j, int64_t layer);
/* Free disk that it needs. */
int64_t kd_trial_disk_bytes(const struct kd_job *j, int64_t layer);

/* What made inputs are, for who says so. */
#define KD_TRIAL_MADE "independent normal values, channel scales from 1/4 to 4"

#endif
