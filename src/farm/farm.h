/* Encoding a layer's experts: on this machine alone, or with workers. One path for both: the ledger
 * says whose an expert is, whoever has it calls kd_farm_encode, and its unit on disk is the result.
 * A farm of one has a SQLite ledger in the work folder and no server. With workers the trunk's
 * tensors are jobs as well, stage by stage (those that share an input).
 *
 *     kd_farm_open(&f, &opts, err);
 *     for each layer: kd_farm_layer(f, &layer, err);     every unit is on disk after it
 *     kd_farm_close(f);
 *
 * With workers: a server (net/srv.h behind net/tls.h) hands out work and inputs and takes units,
 * which are checked (kd_farm_check) before they count; a sample is encoded again here and compared
 * byte for byte. Wrong bytes cost their worker all it did in the open layer, and the run stops when
 * it has results in earlier ones. */
#ifndef KD_FARM_FARM_H
#define KD_FARM_FARM_H

#include "farm/home.h"
#include "farm/ledger.h"
#include "farm/task.h"

struct kd_farm;

enum { KD_FARM_LANES = 512 };

struct kd_farm_opts {
    const char *ledger; /* see kd_ledger_open */
    const char *run_id; /* of this conversion: settings and place */
    uint64_t digest;    /* of units */
    const struct kd_run *run;
    int lanes;             /* experts encoded side by side, among whom the pool's threads are
                              divided (1); at most KD_FARM_LANES */
    bool (*stopped)(void); /* may be NULL */
    struct kd_farm_rules rules;
    /* With workers: */
    const struct kd_home *home; /* NULL: a farm of one */
    const char *bad_dir;        /* refused units are kept here */
    bool only_workers;          /* encode nothing here but checks and poisoned experts */
    const char *report;         /* an HTML page is written here at the end; may be NULL */
    int64_t layers;             /* of the model, for the report */
    int64_t sample_every;       /* one unit in this many is encoded again (64); 1: all */
};
/* ledger, run_id and bad_dir are copied, all else outlives the farm. */
int kd_farm_open(struct kd_farm **out, const struct kd_farm_opts *o, struct kd_err *err) KD_MUST;
/* state: "done", "stopped", or NULL: leaves what is there. */
void kd_farm_close(struct kd_farm *f, const char *state);

/* A stage: a layer's experts, or tensors of its trunk. */
struct kd_farm_layer {
    int64_t layer, experts;
    const struct kd_layer_inputs *in; /* of experts */
    int64_t trunk;                    /* 0: experts; else the number of the first tensor's job */
    const struct kd_hess *hess;       /* of the tensors' common input, or NULL */
    void *ctx;
    /* Work e of 0..experts-1, or *wanted = false when it stays as stored. Asked from several
     * threads, one at a time. */
    int (*plan)(void *ctx, int64_t e, struct kd_farm_task *t, bool *wanted, struct kd_err *err);
    /* Its unit is there; called once for each, by the thread in kd_farm_layer. */
    void (*done)(void *ctx, int64_t e);
};
int kd_farm_layer(struct kd_farm *f, const struct kd_farm_layer *l, struct kd_err *err) KD_MUST;
/* Whether others encode too. */
bool kd_farm_spreads(const struct kd_farm *f);
/* The port that workers reach, 0 for a farm of one. */
int kd_farm_port(const struct kd_farm *f);

#endif
