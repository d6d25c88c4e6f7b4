#include "cmd/device.h"

#include "base/opt.h"
#include "gpu/gpu.h"

#include <stdio.h>
#include <string.h>

static int wrong(const char *text, struct kd_err *err)
{
    return kd_fail(err, KD_EUSAGE,
                   "--device: '%s' is neither cpu nor cuda, cuda:N or cuda:N,N (at most %d)", text,
                   KD_GPU_ENCODE_DEVICES);
}

int kd_cmd_device_parse(const char *text, int index[KD_GPU_ENCODE_DEVICES], int *count,
                        struct kd_err *err)
{
    *count = 0;
    if (!text || !strcmp(text, "cpu"))
        return 0;
    if (!strcmp(text, "cuda")) {
        index[(*count)++] = 0;
        return 0;
    }
    if (strncmp(text, "cuda:", 5) != 0)
        return wrong(text, err);
    for (const char *at = text + 5;;) {
        char number[16];
        size_t n = strcspn(at, ",");
        int64_t i;
        if (*count == KD_GPU_ENCODE_DEVICES || n >= sizeof number)
            return wrong(text, err);
        memcpy(number, at, n);
        number[n] = 0;
        if (kd_parse_int(number, 0, 1023, &i, err))
            return wrong(text, err);
        for (int k = 0; k < *count; k++)
            if (index[k] == (int)i)
                return kd_fail(err, KD_EUSAGE, "--device: '%s' names a device twice", text);
        index[(*count)++] = (int)i;
        if (!at[n])
            return 0;
        at += n + 1;
    }
}

int kd_cmd_encoder_open(struct kd_run *run, const char *text, struct kd_err *err)
{
    int index[KD_GPU_ENCODE_DEVICES], count;
    run->encoder = NULL;
    if (kd_cmd_device_parse(text, index, &count, err))
        return -1;
    if (!count || !kd_gpu_encoder_open(&run->encoder, index, count, 0, err))
        return 0;
    kd_cmd_offer_cpu(err, "use --device cpu");
    return -1;
}

void kd_cmd_offer_cpu(struct kd_err *err, const char *offer)
{
    size_t n = strlen(err->msg);
    bool mends = err->code == KD_EGPU || err->code == KD_ENOTSUP || err->code == KD_ENOMEM;
    if (mends && !strstr(err->msg, "--device cpu"))
        snprintf(err->msg + n, sizeof err->msg - n, "; %s", offer);
}

void kd_cmd_encoder_close(struct kd_run *run)
{
    kd_gpu_encoder_close(run->encoder);
    run->encoder = NULL;
}
