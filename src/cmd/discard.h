/* `kondense convert REMOTE DST --discard-source`: the source's shards come one after the other, are
 * used and deleted; the check's rows go through the source's layers and those made of them in the
 * same pass. */
#ifndef KD_CMD_DISCARD_H
#define KD_CMD_DISCARD_H

#include "convert/job.h"
#include "convert/window.h"
#include "gate/pass.h"

struct kd_discard {
    struct kd_window *win;
    struct kd_pass *pass;  /* of the source; NULL: no check */
    struct kd_pass **made; /* of each model */
    int made_count;
    struct kd_buf source; /* the receipt's part on the source, all digests known */
    char dir[2200];       /* DST/.source */
    char ref[2400];
    bool left; /* an earlier run was here */
};

/* What to check on, with defaults as `kondense check` has them; text NULL: no check. */
struct kd_discard_check {
    const char *text, *save_ref;
    int64_t rows, cols;
};

int kd_discard_open(struct kd_discard *d, const char *src, const char *dst,
                    struct kd_err *err) KD_MUST;
/* All layers and what follows them. Bytes of the check's work files are in kd_discard_disk. */
int kd_discard_run(struct kd_discard *d, const struct kd_run *run, struct kd_job *jobs, int count,
                   const struct kd_discard_check *check, struct kd_err *err) KD_MUST;
/* Disk beside the output: three shards at most, and the check's streams. */
int64_t kd_discard_disk(const struct kd_discard *d, const struct kd_job *jobs, int count,
                        const struct kd_discard_check *check);
/* The check's figures of each model: on standard output, in DST/check.json and DST/check.html. Only
 * the heads are multiplied here; all layers were run as they were made. */
int kd_discard_figures(struct kd_discard *d, const struct kd_run *run, const struct kd_job *jobs,
                       int count, struct kd_err *err) KD_MUST;
void kd_discard_print(const struct kd_discard *d);
void kd_discard_json(const struct kd_discard *d, struct kd_jw *w);
/* done: the work folder goes. */
int kd_discard_close(struct kd_discard *d, bool done, struct kd_err *err);

#endif
