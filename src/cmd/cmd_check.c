#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "cmd/cmd.h"
#include "gate/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *text, *html, *json, *require, *profile, *save_ref, *ref, *battery, *work;
    int64_t rows, cols, battery_rows, threads;
    bool no_verdict;
} o;

static const struct kd_opt opts[] = {
    {.name = "text",
     .letter = 't',
     .type = KD_OPT_STR,
     .out = &o.text,
     .arg = "FILE",
     .help = "text to check on: plain, or chat requests as JSON lines"},
    {.name = "rows",
     .letter = 'r',
     .type = KD_OPT_INT,
     .out = &o.rows,
     .arg = "N",
     .help = "rows of the text to take; default all",
     .min = 1,
     .max = 1 << 20},
    {.name = "cols",
     .letter = 'c',
     .type = KD_OPT_INT,
     .out = &o.cols,
     .arg = "N",
     .help = "tokens a row; default 512",
     .min = 2,
     .max = 1 << 20},
    {.name = "require",
     .letter = 'R',
     .type = KD_OPT_STR,
     .out = &o.require,
     .arg = "LIST",
     .help = "bounds that must hold, as kld=0.1,top1=0.9,router=0.9; else exit code 3"},
    {.name = "profile",
     .letter = 'p',
     .type = KD_OPT_STR,
     .out = &o.profile,
     .arg = "NAME",
     .help = "bounds by name: k3",
     .choices = "k3"},
    {.name = "json",
     .letter = 'j',
     .type = KD_OPT_STR,
     .out = &o.json,
     .arg = "FILE",
     .help = "write the figures as JSON; - is standard output, without the screen"},
    {.name = "html",
     .letter = 'H',
     .type = KD_OPT_STR,
     .out = &o.html,
     .arg = "FILE",
     .help = "write one self-contained page with plots"},
    {.name = "save-ref",
     .type = KD_OPT_STR,
     .out = &o.save_ref,
     .arg = "FILE",
     .help = "keep what is needed of SRC, for later checks without it"},
    {.name = "ref",
     .type = KD_OPT_STR,
     .out = &o.ref,
     .arg = "FILE",
     .help = "use a kept reference in place of SRC"},
    {.name = "battery",
     .letter = 'b',
     .type = KD_OPT_STR,
     .out = &o.battery,
     .arg = "FILE",
     .help = "put this agent battery to both models too"},
    {.name = "battery-rows",
     .type = KD_OPT_INT,
     .out = &o.battery_rows,
     .arg = "N",
     .help = "requests of the battery to take; default all",
     .min = 1,
     .max = 1 << 30},
    {.name = "work",
     .letter = 'w',
     .type = KD_OPT_STR,
     .out = &o.work,
     .arg = "DIR",
     .help = "keep the streams in files there; default in memory"},
    {.name = "no-verdict",
     .type = KD_OPT_FLAG,
     .out = &o.no_verdict,
     .help = "leave DST/kondense.json as it is"},
    {.name = "threads",
     .letter = 'T',
     .type = KD_OPT_INT,
     .out = &o.threads,
     .arg = "N",
     .help = "threads; default one a CPU",
     .min = 1,
     .max = 4096},
    {0},
};

static int write_out(const char *path, const struct kd_buf *b, struct kd_err *err)
{
    if (kd_buf_ok(b, path, err))
        return -1;
    if (!strcmp(path, "-"))
        return fwrite(b->data, 1, b->size_bytes, stdout) == b->size_bytes
                   ? 0
                   : kd_fail(err, KD_EIO, "cannot write to standard output");
    return kd_file_write(path, b->data, b->size_bytes, err);
}

static int emit(const char *path, const struct kd_check *c, const struct kd_verdict *v,
                void (*report)(struct kd_buf *, const struct kd_check *, const struct kd_verdict *),
                struct kd_err *err)
{
    struct kd_buf b;
    if (!path)
        return 0;
    kd_buf_init(&b, 64 << 20);
    report(&b, c, v);
    int rc = write_out(path, &b, err);
    kd_buf_release(&b);
    return rc;
}

/* A source held against itself gets no receipt, and neither does a folder that cannot be written.
 */
static void note_verdict(const struct kd_check *c, const struct kd_verdict *v, const char *src,
                         const char *dst)
{
    char *a = src ? realpath(src, NULL) : NULL, *b = realpath(dst, NULL);
    struct kd_err err;
    bool same = a && b && !strcmp(a, b);
    free(a);
    free(b);
    if (!o.no_verdict && !same && kd_verdict_write(v, c, dst, &err))
        kd_log(KD_LOG_WARN, "check", "msg=\"the verdict was not written\" reason=\"%s\"", err.msg);
}

static int run_battery(struct kd_check *c, const struct kd_run *run, const char *src,
                       const char *dst, struct kd_err *err)
{
    struct kd_battery_file file;
    if (!o.battery)
        return 0;
    if (kd_battery_load(&file, o.battery, o.battery_rows, err))
        return -1;
    int rc = kd_battery_run(&c->battery, run, src, dst, &file, &kd_cmd_stop, err);
    c->has_battery = !rc;
    kd_battery_file_release(&file);
    return rc;
}

static int measure(struct kd_check *c, const struct kd_run *run, const char *src, const char *dst,
                   struct kd_err *err)
{
    struct kd_check_plan plan = {.src = src,
                                 .dst = dst,
                                 .text = o.text,
                                 .ref_in = o.ref,
                                 .ref_out = o.save_ref,
                                 .work = o.work,
                                 .rows = o.rows,
                                 .cols = o.cols,
                                 .stop = &kd_cmd_stop};
    if (o.text || o.ref || !o.battery) {
        if (kd_check_run(c, run, &plan, err))
            return -1;
    } else if (kd_check_sizes_of(c, src, dst, err)) {
        return -1;
    }
    return run_battery(c, run, src, dst, err);
}

static int judge(struct kd_check *c, struct kd_verdict *v, const char *src, const char *dst,
                 struct kd_err *err)
{
    if (o.profile && kd_verdict_profile(v, o.profile, c->bits_experts, err))
        return -1;
    kd_verdict_judge(v, c);
    const char *screen = o.json && !strcmp(o.json, "-") ? NULL : "-";
    if (emit(screen, c, v, kd_report_text, err) || emit(o.json, c, v, kd_report_json, err) ||
        emit(o.html, c, v, kd_report_html, err))
        return -1;
    note_verdict(c, v, src, dst);
    return kd_verdict_fail(v, err);
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    const char *src = argc == 2 ? argv[0] : NULL, *dst = argv[argc - 1];
    struct kd_verdict v = {.count = 0};
    struct kd_check c;
    struct kd_run with;
    struct kd_kern kern;
    memset(&c, 0, sizeof c);
    if (!src && !o.ref)
        return kd_fail(err, KD_EUSAGE, "two models are needed, SRC and DST, or --ref FILE and DST");
    if (!src && o.battery)
        return kd_fail(err, KD_EUSAGE, "--battery puts its requests to both models: SRC is needed");
    if (o.require && kd_verdict_parse(&v, o.require, err))
        return -1;
    if (kd_cmd_run_open(&with, &kern, o.threads, err))
        return -1;
    int rc = measure(&c, &with, src, dst, err);
    kd_cmd_run_close(&with);
    if (!rc)
        rc = judge(&c, &v, src, dst, err);
    kd_check_release(&c);
    return rc;
}

const struct kd_cmd kd_cmd_check = {
    .name = "check",
    .summary = "hold a quantized model against its source",
    .args = "[SRC] DST",
    .example = "kondense check k3-nano k3-nano-2.3 --text wiki.txt --html check.html\n"
               "kondense check k3 k3-2.3 -t wiki.txt --require kld=0.1,top1=0.9,router=0.9\n"
               "kondense check --ref k3.ref k3-2.0 --profile k3",
    .opts = opts,
    .args_min = 1,
    .args_max = 2,
    .run = run,
};
