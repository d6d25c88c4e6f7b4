#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "cmd/cmd.h"
#include "cmd/device.h"
#include "fmt/gguf.h"
#include "gate/endpoint.h"
#include "gate/report.h"

#include <stdio.h>
#include <string.h>

static struct {
    const char *text, *html, *json, *require, *profile, *save_ref, *ref, *battery, *work;
    const char *endpoint, *model, *key_file, *device;
    int64_t rows, cols, battery_rows, threads, parallel;
    double timeout;
    bool no_verdict, allow_http;
} o = {.parallel = 4, .timeout = 600};

static const struct kd_opt opts[] = {
    {.name = "text",
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
    {.name = "endpoint",
     .letter = 'e',
     .type = KD_OPT_STR,
     .out = &o.endpoint,
     .arg = "URL",
     .help = "put the battery to this OpenAI-compatible server, e.g. http://127.0.0.1:8000/v1; "
             "with SRC to that model too"},
    {.name = "model",
     .letter = 'm',
     .type = KD_OPT_STR,
     .out = &o.model,
     .arg = "NAME",
     .help = "the server's model; default the only one it names"},
    {.name = "key-file",
     .type = KD_OPT_STR,
     .out = &o.key_file,
     .arg = "FILE",
     .help = "the server's API key, in a file that only its owner can read"},
    {.name = "parallel",
     .type = KD_OPT_INT,
     .out = &o.parallel,
     .arg = "N",
     .help = "requests to the server at a time; default 4",
     .min = 1,
     .max = 256},
    {.name = "timeout",
     .type = KD_OPT_NUM,
     .out = &o.timeout,
     .arg = "S",
     .help = "seconds that the server has for an answer; default 600",
     .num_min = 0.1,
     .num_max = 86400},
    {.name = "allow-http",
     .type = KD_OPT_FLAG,
     .out = &o.allow_http,
     .help = "plain http to another machine too (text and key can be read on the way)"},
    {.name = "work",
     .letter = 'w',
     .type = KD_OPT_STR,
     .out = &o.work,
     .arg = "DIR",
     .help = "keep the streams in files there; default in memory"},
    {.name = "no-verdict",
     .type = KD_OPT_FLAG,
     .out = &o.no_verdict,
     .help = "leave DST/kondense.json as it is (a GGUF has none)"},
    {.name = "device",
     .type = KD_OPT_STR,
     .out = &o.device,
     .arg = "cpu|cuda[:N,N]",
     .help = "where products of many rows are made, with the same figures; cuda is cuda:0 (cpu)"},
    KD_OPT_ROW_THREADS(&o.threads),
    {0},
};

static int emit(const char *path, const struct kd_check *c, const struct kd_verdict *v,
                void (*report)(struct kd_buf *, const struct kd_check *, const struct kd_verdict *),
                struct kd_err *err)
{
    struct kd_buf b;
    if (!path)
        return 0;
    kd_buf_init(&b, 64 << 20);
    report(&b, c, v);
    int rc = kd_cmd_put(&b, path, err);
    kd_buf_release(&b);
    return rc;
}

/* A source held against itself gets no receipt, and neither does a folder that cannot be written.
 */
static void note_verdict(const struct kd_check *c, const struct kd_verdict *v, const char *src,
                         const char *dst)
{
    struct kd_err err;
    bool same = src && kd_path_same(src, dst);
    /* A GGUF has no receipt beside it: its folder may hold several. */
    if (!o.no_verdict && !same && !kd_gguf_is(dst) && kd_verdict_write(v, c, dst, &err))
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

/* The server's turns, and SRC's own where it is given, into a battery. */
static int ask_server(struct kd_battery *b, const struct kd_run *run, const char *src,
                      const struct kd_battery_file *file, struct kd_err *err)
{
    const struct kd_endpoint e = {.url = o.endpoint,
                                  .model = o.model,
                                  .key_file = o.key_file,
                                  .allow_http = o.allow_http,
                                  .parallel = o.parallel,
                                  .timeout_s = o.timeout,
                                  .stop = &kd_cmd_stop};
    int64_t n = file->count;
    bool *right;
    memset(b, 0, sizeof *b);
    if (kd_mem_zero(&right, 4 * n, sizeof *right, "battery results", err))
        return -1;
    bool *exact = right, *call = right + n, *src_exact = right + 2 * n, *src_call = right + 3 * n;
    int rc = kd_endpoint_run(exact, call, &b->remote, &e, file, err);
    if (!rc && src)
        rc = kd_battery_one(src_exact, src_call, &b->tokens, run, src, file, &kd_cmd_stop, err);
    if (!rc) {
        b->requests = n;
        b->is_remote = true;
        b->paired = src != NULL;
        memcpy(b->sha256, file->sha256, sizeof b->sha256);
        kd_battery_flips(&b->exact, src ? src_exact : exact, exact, n);
        kd_battery_flips(&b->calls, src ? src_call : call, call, n);
    }
    kd_mem_free(right);
    return rc;
}

static int measure_server(struct kd_check *c, const struct kd_run *run, const char *src,
                          struct kd_err *err)
{
    struct kd_battery_file file;
    if (kd_battery_load(&file, o.battery, o.battery_rows, err))
        return -1;
    int rc = ask_server(&c->battery, run, src, &file, err);
    kd_battery_file_release(&file);
    if (rc)
        return -1;
    c->has_battery = true;
    snprintf(c->dst_name, sizeof c->dst_name, "%s", c->battery.remote.model);
    if (src)
        kd_check_name(c->src_name, sizeof c->src_name, src);
    return 0;
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
    const char *screen = kd_cmd_screen(o.json, o.html) ? "-" : NULL;
    if (emit(screen, c, v, kd_report_text, err) || emit(o.json, c, v, kd_report_json, err) ||
        emit(o.html, c, v, kd_report_html, err))
        return -1;
    if (dst)
        note_verdict(c, v, src, dst);
    return kd_verdict_fail(v, err);
}

/* Which models there must be for what is asked. */
static int check_usage(const char *src, const char *dst, struct kd_err *err)
{
    if (o.endpoint) {
        if (!o.battery)
            return kd_fail(err, KD_EUSAGE,
                           "--endpoint needs --battery FILE: a server is judged by "
                           "its turns");
        if (o.text || o.ref || o.save_ref)
            return kd_fail(err, KD_EUSAGE,
                           "--text and references need logits, which a server does "
                           "not tell");
        if (dst)
            return kd_fail(err, KD_EUSAGE,
                           "--endpoint takes the place of DST: give SRC or nothing");
        return 0;
    }
    if (!src && !o.ref)
        return kd_fail(err, KD_EUSAGE, "two models are needed, SRC and DST, or --ref FILE and DST");
    if (!dst)
        return kd_fail(err, KD_EUSAGE, "DST, the model to check, is missing");
    if (!src && o.battery)
        return kd_fail(err, KD_EUSAGE, "--battery puts its requests to both models: SRC is needed");
    return 0;
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    bool alone = argc == 1 && !o.endpoint; /* one model is DST, held against a reference */
    const char *src = argc && !alone ? argv[0] : NULL,
               *dst = alone || argc == 2 ? argv[argc - 1] : NULL;
    struct kd_verdict v = {.count = 0};
    struct kd_check c;
    struct kd_run with;
    struct kd_kern kern;
    memset(&c, 0, sizeof c);
    if (check_usage(src, dst, err) || kd_cmd_reports_check(o.json, o.html, err) ||
        (o.save_ref && kd_out_could(o.save_ref, err)) ||
        (o.require && kd_verdict_parse(&v, o.require, err)) ||
        kd_cmd_run_open(&with, &kern, o.threads, err))
        return -1;
    int rc = kd_cmd_encoder_open(&with, o.device, err);
    if (!rc)
        rc = o.endpoint ? measure_server(&c, &with, src, err) : measure(&c, &with, src, dst, err);
    kd_cmd_encoder_close(&with);
    kd_cmd_run_close(&with);
    if (!rc)
        rc = judge(&c, &v, src, dst, err);
    kd_check_release(&c);
    return rc;
}

const struct kd_cmd kd_cmd_check = {
    .name = "check",
    .summary = "hold a quantized model against its source",
    .args = "[SRC] [DST]",
    .example = "kondense check k3-nano k3-nano-2.3 --text wiki.txt --html check.html\n"
               "kondense check k3 k3-2.3 --text wiki.txt --require kld=0.1,top1=0.9,router=0.9\n"
               "kondense check --ref k3.ref k3-2.0 --profile k3\n"
               "kondense check --battery turns.json --endpoint http://127.0.0.1:8000/v1",
    .opts = opts,
    .args_min = 0,
    .args_max = 2,
    .run = run,
};
