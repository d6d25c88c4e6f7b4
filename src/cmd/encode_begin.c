#include "cmd/encode_begin.h"

#include "base/show.h"
#include "gpu/encoder.h"

#include <string.h>

int kd_cmd_encode_config(const char *src, const struct kd_ckpt *ck, struct kd_k3_cfg *cfg,
                         struct kd_err *err)
{
    if (kd_k3_cfg_parse(cfg, kd_ckpt_config(ck), NULL, err) ||
        kd_k3_cfg_check(cfg, kd_ckpt_config(ck), err))
        return kd_wrap(err, "%s/config.json", src);
    return kd_k3_known(cfg, ck, err) ? kd_wrap(err, "%s", src) : 0;
}

int kd_cmd_encode_text(const struct kd_ckpt *ck, const struct kd_k3_cfg *cfg, const char *calib,
                       int64_t rows, int64_t cols, struct kd_tok **tok, struct kd_corpus *text,
                       struct kd_err *err)
{
    bool small = cfg->hidden < 1024;
    text->rows = rows ? rows : small ? 64 : 250;
    text->cols = cols ? cols : small ? 512 : 2048;
    if (!calib)
        return 0;
    if (kd_tok_open(tok, kd_ckpt_dir(ck), err) ||
        kd_corpus_load(text, *tok, calib, text->rows, text->cols, err))
        return -1;
    for (int64_t i = 0; i < text->rows * text->cols; i++)
        if (text->ids[i] < 0 || text->ids[i] >= cfg->vocab)
            return kd_fail(err, KD_EINVAL, "%s: the tokenizer gives id %d, the model has %lld",
                           calib, text->ids[i], (long long)cfg->vocab);
    return 0;
}

int kd_cmd_encode_class(const struct kd_run *run, const char *name, bool *fast, struct kd_err *err)
{
    *fast = !strcmp(name, "fast");
    if (*fast && !run->encoder)
        return kd_fail(err, KD_EUSAGE,
                       "--calib-class fast is for --device cuda: on the CPU there is exact alone");
    if (*fast)
        kd_gpu_encoder_calibrate(run->encoder, KD_GPU_CALIB_FAST);
    return 0;
}

/* The lowest rate of a plan that the devices cannot search, or 0. */
static unsigned too_low(const struct kd_run *run, const struct kd_job *jobs, int count)
{
    unsigned rate16 = 0;
    for (int v = 0; v < count; v++)
        for (int64_t i = 0; !jobs[v].finished && i < jobs[v].rates.count; i++) {
            const struct kd_out_tensor *t = &jobs[v].rates.t[i];
            if (t->quantized && (!rate16 || t->rate16 < rate16) &&
                !kd_gpu_encoder_searches(run->encoder, kd_rate_from16(t->rate16)))
                rate16 = t->rate16;
        }
    return rate16;
}

int kd_cmd_encode_fits(const struct kd_run *run, const struct kd_job *jobs, int count,
                       struct kd_err *err)
{
    char need[32], have[32];
    struct kd_gpu_encoder_facts f;
    if (!run->encoder)
        return 0;
    kd_gpu_encoder_facts(run->encoder, &f);
    unsigned rate16 = too_low(run, jobs, count);
    if (rate16)
        return kd_fail(err, KD_ENOTSUP,
                       "a search at %.4g bits needs more shared memory than a block of %s has: use "
                       "--device cpu, or 2 bits and more",
                       rate16 / 16.0, f.name);
    int64_t least = kd_job_device_least(jobs, count);
    kd_show_bytes(need, sizeof need, least);
    kd_show_bytes(have, sizeof have, f.memory_bytes);
    if (least > f.memory_bytes)
        return kd_fail(err, KD_ENOMEM,
                       "the largest tensor needs %s of device memory, %s are free on %s: use "
                       "--device cpu",
                       need, have, f.name);
    return 0;
}
