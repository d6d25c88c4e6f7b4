/* --device: what computes. "cpu", or CUDA devices by number: "cuda", "cuda:1", "cuda:0,1". */
#ifndef KD_CMD_DEVICE_H
#define KD_CMD_DEVICE_H

#include "gpu/encoder.h"
#include "kern/mat.h"

#define KD_OPT_ROW_DEVICE(where)                                                                   \
    {                                                                                              \
        .name = "device", .type = KD_OPT_STR, .out = (where), .arg = "cpu|cuda[:N[,N]]",           \
        .help = "what computes; cuda is cuda:0; the bytes do not depend on it (cpu)"               \
    }

/* The numbers of the CUDA devices in `text`, *count 0 for the CPU (and for NULL). KD_EUSAGE. */
int kd_cmd_device_parse(const char *text, int index[KD_GPU_ENCODE_DEVICES], int *count,
                        struct kd_err *err) KD_MUST;
/* Encoding on those devices: run->encoder, NULL for the CPU. Ends with kd_cmd_encoder_close. */
int kd_cmd_encoder_open(struct kd_run *run, const char *text, struct kd_err *err) KD_MUST;
void kd_cmd_encoder_close(struct kd_run *run);
/* After an error that the CPU may not have (the device, what it cannot do, its memory): what the
 * user may do, unless it says so. */
void kd_cmd_offer_cpu(struct kd_err *err, const char *offer);

#endif
