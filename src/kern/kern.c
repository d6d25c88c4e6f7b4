#include "kern/kern.h"
int kd_kern_pick(struct kd_kern *k, struct kd_err *err)
{
    (void)k;
    return kd_fail(err, KD_ENOTSUP, "no kernels yet");
}
