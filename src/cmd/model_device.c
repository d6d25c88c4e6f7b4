#include "cmd/model_device.h"

#include "cmd/device.h"

int kd_cmd_model_device(const char *text, int *device, struct kd_err *err)
{
    int index[KD_GPU_ENCODE_DEVICES], count;
    *device = 0;
    if (kd_cmd_device_parse(text, index, &count, err))
        return -1;
    if (count > 1)
        return kd_fail(err, KD_EUSAGE, "--device: a model runs on one device, not on '%s'", text);
    *device = count ? index[0] + 1 : 0;
    return 0;
}
