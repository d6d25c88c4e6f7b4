/* What convert and pilot begin with: the source's config, the calibration text, room on a device.
 */
#ifndef KD_CMD_ENCODE_BEGIN_H
#define KD_CMD_ENCODE_BEGIN_H

#include "base/opt.h"
#include "convert/job.h"
#include "text/tok.h"

#define KD_OPT_ROW_CALIB_CLASS(where)                                                              \
    {                                                                                              \
        .name = "calib-class", .type = KD_OPT_STR, .out = (where), .arg = "exact|fast",            \
        .help = "calibration on a device: the CPU's bits, or bf16, bytes that depend on it "       \
                "(exact)",                                                                         \
        .choices = "exact|fast"                                                                    \
    }

/* The config of the checkpoint at `src`, whole and with nothing unknown in it. */
int kd_cmd_encode_config(const char *src, const struct kd_ckpt *ck, struct kd_k3_cfg *cfg,
                         struct kd_err *err) KD_MUST;
/* text->rows and cols: what is asked for, or for 0 what suits the model's width. With `calib` the
 * file's tokens too, by the checkpoint's tokenizer, which then is the caller's to close. */
int kd_cmd_encode_text(const struct kd_ckpt *ck, const struct kd_k3_cfg *cfg, const char *calib,
                       int64_t rows, int64_t cols, struct kd_tok **tok, struct kd_corpus *text,
                       struct kd_err *err) KD_MUST;
/* The class of the calibration of a run whose devices are open, for `exact` and `fast`; KD_EUSAGE
 * for what the CPU cannot do. */
int kd_cmd_encode_class(const struct kd_run *run, const char *name, bool *fast,
                        struct kd_err *err) KD_MUST;
/* KD_ENOMEM where a device has no room for the jobs' largest tensor. */
int kd_cmd_encode_fits(const struct kd_run *run, const struct kd_job *jobs, int count,
                       struct kd_err *err) KD_MUST;

#endif
