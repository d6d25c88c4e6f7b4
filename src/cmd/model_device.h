/* --device of the commands that run a model: "cpu", or one CUDA device. */
#ifndef KD_CMD_MODEL_DEVICE_H
#define KD_CMD_MODEL_DEVICE_H

#include "base/err.h"
#include "base/opt.h"

#define KD_OPT_ROW_MODEL_DEVICE(where)                                                             \
    {                                                                                              \
        .name = "device", .type = KD_OPT_STR, .out = (where), .arg = "cpu|cuda[:N]",               \
        .help = "where the model runs; cuda is cuda:0 (cpu)"                                       \
    }

#define KD_OPT_ROW_EXACT(where)                                                                    \
    {                                                                                              \
        .name = "exact", .type = KD_OPT_FLAG, .out = (where),                                      \
        .help = "products as convert and check take them: some 2e-4 nearer, and slower"            \
    }

/* `device` of struct kd_k3_open (model/k3.h). KD_EUSAGE. */
int kd_cmd_model_device(const char *text, int *device, struct kd_err *err) KD_MUST;

#endif
