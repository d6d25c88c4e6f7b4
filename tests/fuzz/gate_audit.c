/* Any bytes as the receipt that an audit reads: refused, or only what it says of experts of the
 * sample is taken, and finite. */
#include "base/assert.h"
#include "gate/audit.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_audit_expert sample[] = {{.layer = 1, .expert = 0, .said = {-1, -1, -1}},
                                       {.layer = 1, .expert = 7, .said = {-1, -1, -1}},
                                       {.layer = 92, .expert = 895, .said = {-1, -1, -1}}};
    struct kd_audit a = {.expert = sample, .n = 3};
    struct kd_err err;
    if (kd_audit_receipt(&a, (const char *)data, bytes, &err))
        KD_ASSERT(err.code == KD_ECORRUPT && err.msg[0]);
    for (int i = 0; i < 3; i++)
        for (int p = 0; p < 3; p++)
            KD_ASSERT(isfinite(sample[i].said[p]));
    return 0;
}
