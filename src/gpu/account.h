/* Where a device's time goes: events between the parts of some work on its stream.
 *
 *     kd_gpu_account_begin(g, each, err);
 *     kd_gpu_account_at(g, "attention");      what follows is this part, until the next
 *     ... calls ...
 *     kd_gpu_account_end(g, &account, err);   waits; adds to what the account has
 *
 * Not during a recording. Launches queue up behind a kernel that waits for a moment, so that no
 * time of the host's is in the figures; an event keeps a kernel from beginning before the one in
 * front is done. Names are constants. */
#ifndef KD_GPU_ACCOUNT_H
#define KD_GPU_ACCOUNT_H

#include "gpu/gpu.h"

#include <stdbool.h>

enum { KD_GPU_ACCOUNT_ROWS = 128 };

struct kd_gpu_account {
    struct {
        const char *part, *kernel; /* kernel: NULL unless `each` */
        int64_t count;
        double ms;
    } row[KD_GPU_ACCOUNT_ROWS]; /* as they came first; others are left out */
    int rows;
};

/* each: an event behind each launch that is known by name, not for each part. */
int kd_gpu_account_begin(struct kd_gpu *g, bool each, struct kd_err *err) KD_MUST;
/* Nothing where no account is under way. */
void kd_gpu_account_at(struct kd_gpu *g, const char *part);
int kd_gpu_account_end(struct kd_gpu *g, struct kd_gpu_account *a, struct kd_err *err) KD_MUST;

#endif
