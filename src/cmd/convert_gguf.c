#include "cmd/convert_gguf.h"

#include "base/json.h"
#include "base/show.h"
#include "cmd/cmd.h"
#include "fmt/gguf.h"
#include "model/k3.h"

#include <stdio.h>

/* What was written must open as the model it was made of. */
static int check_result(const struct kd_k3_cfg *cfg, const char *path, struct kd_err *err)
{
    struct kd_ckpt *ck;
    struct kd_k3_cfg again;
    if (kd_ckpt_open(&ck, path, false, err))
        return -1;
    int rc = kd_k3_cfg_parse(&again, kd_ckpt_config(ck), NULL, err) ||
             kd_k3_cfg_check(&again, kd_ckpt_config(ck), err) || kd_k3_known(&again, ck, err);
    if (!rc && (again.hidden != cfg->hidden || again.layers != cfg->layers ||
                again.experts != cfg->experts || again.vocab != cfg->vocab))
        rc = kd_fail(err, KD_ECORRUPT, "%s does not read back as the model it was made of", path);
    kd_ckpt_close(ck);
    return rc ? -1 : 0;
}

static void print_done(const struct kd_to_gguf_done *d, const struct kd_to_gguf *set)
{
    char all[32], experts[32], trunk[32], floats[32];
    kd_show_bytes(all, sizeof all, d->file_bytes);
    kd_show_bytes(experts, sizeof experts, d->mxfp4_bytes);
    kd_show_bytes(trunk, sizeof trunk, d->trunk_bytes);
    kd_show_bytes(floats, sizeof floats, d->f32_bytes);
    printf("%s%s\n", d->path, set->dry ? " (not written)" : "");
    printf("  %lld tensors, %lld parameters, %lld part%s, %lld bytes (%s)\n", (long long)d->tensors,
           (long long)d->parameters, (long long)d->parts, d->parts == 1 ? "" : "s",
           (long long)d->file_bytes, all);
    printf("  MXFP4 %s, %s %s, F32 %s; %.4f bits a parameter\n", experts,
           kd_gguf_type_info(set->trunk_type)->name, trunk, floats,
           8 * (double)d->file_bytes / (double)d->parameters);
}

static int write_json(const struct kd_to_gguf_done *d, const char *path, struct kd_err *err)
{
    struct kd_buf b;
    kd_buf_init(&b, 1 << 16);
    struct kd_jw w = {.out = &b};
    kd_jw_open(&w, NULL, '{');
    kd_jw_str(&w, "path", d->path);
    kd_jw_int(&w, "parts", d->parts);
    kd_jw_int(&w, "tensors", d->tensors);
    kd_jw_int(&w, "parameters", d->parameters);
    kd_jw_int(&w, "data_bytes", d->data_bytes);
    kd_jw_int(&w, "file_bytes", d->file_bytes);
    kd_jw_int(&w, "mxfp4_bytes", d->mxfp4_bytes);
    kd_jw_int(&w, "trunk_bytes", d->trunk_bytes);
    kd_jw_int(&w, "f32_bytes", d->f32_bytes);
    kd_jw_close(&w, '}');
    kd_buf_char(&b, '\n');
    int rc = kd_cmd_put(&b, path, err);
    kd_buf_release(&b);
    return rc;
}

static int convert(const struct kd_ckpt *ck, const char *src, const char *dst,
                   const struct kd_to_gguf *set, const struct kd_run *run, const char *json,
                   struct kd_err *err)
{
    struct kd_k3_cfg cfg;
    struct kd_to_gguf_done done;
    if (!kd_ckpt_config(ck))
        return kd_fail(err, KD_EINVAL, "'%s' has no config.json; name the model's folder", src);
    if (kd_k3_cfg_parse(&cfg, kd_ckpt_config(ck), NULL, err) ||
        kd_k3_cfg_check(&cfg, kd_ckpt_config(ck), err) || kd_k3_known(&cfg, ck, err))
        return kd_wrap(err, "%s", src);
    if (kd_to_gguf(ck, &cfg, src, dst, set, run, &done, err))
        return -1;
    if (!set->dry && check_result(&cfg, done.path, err))
        return -1;
    if (kd_cmd_screen(json, NULL))
        print_done(&done, set);
    return json ? write_json(&done, json, err) : 0;
}

int kd_cmd_convert_gguf(const char *src, const char *dst, const struct kd_to_gguf *set,
                        int64_t threads, const char *json, struct kd_err *err)
{
    struct kd_kern kern;
    struct kd_run run;
    struct kd_ckpt *ck;
    /* A dry run needs the config and the index, no shard. */
    if (kd_ckpt_open(&ck, src, set->dry, err))
        return -1;
    int rc = kd_cmd_run_open(&run, &kern, threads, err);
    if (!rc) {
        rc = convert(ck, src, dst, set, &run, json, err);
        kd_cmd_run_close(&run);
    }
    kd_ckpt_close(ck);
    return rc;
}
