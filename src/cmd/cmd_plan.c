#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/show.h"
#include "cmd/cmd.h"
#include "cmd/remote.h"
#include "fmt/gguf.h"
#include "gate/view.h"
#include "plan/forecast.h"
#include "plan/plan_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OUT_MAX = 64 << 20 };

static struct {
    struct kd_opt_list machine;
    const char *bpw, *cache, *json, *html, *disk;
    int64_t context, at, sequences, rows, cols, threads;
    double api, kwh;
    bool cut_cache, document, here, explain, figures, glossary, brief;
} o = {.bpw = "2.3,2.0",
       .cache = "bf16",
       .sequences = 1,
       .at = 8192,
       .rows = 250,
       .cols = 2048,
       .api = -1,
       .kwh = -1};

static const struct kd_opt opts[] = {
    {"machine", 'm', KD_OPT_LIST, &o.machine, "NAME[:N]|FILE",
     "a preset, N of them, or a description in JSON; again to compare (spark:8 and gb300)"},
    {"this", 0, KD_OPT_FLAG, &o.here, NULL,
     "measure the present machine (some 5 s) and answer for it"},
    {"disk", 0, KD_OPT_STR, &o.disk, "DIR", "with --this: the drive to measure (MODEL's, or here)"},
    {"bpw", 'b', KD_OPT_STR, &o.bpw, "R[,R]",
     "bits of the experts, beside the native form and the rate that just fits (2.3,2.0)"},
    {"document", 0, KD_OPT_FLAG, &o.document, NULL,
     "also the plan document's recipe at these rates"},
    {"context", 'c', KD_OPT_INT, &o.context, "N",
     "tokens of each sequence to have room for (262144)", .min = 1, .max = INT64_C(1) << 40},
    {"at", 0, KD_OPT_INT, &o.at, "N", "tokens in the cache when speeds are told (8192)", .min = 0,
     .max = INT64_C(1) << 40},
    {"sequences", 's', KD_OPT_INT, &o.sequences, "N", "sequences at once (1)", .min = 1,
     .max = 100000},
    {"cache", 0, KD_OPT_STR, &o.cache, "TYPE",
     "values of the latent cache: f32, bf16 or fp8 (bf16)", .choices = "f32|bf16|fp8"},
    {"cut-cache", 0, KD_OPT_FLAG, &o.cut_cache, NULL,
     "deal the latent cache over the devices, instead of all of it on each"},
    {"rows", 0, KD_OPT_INT, &o.rows, "N", "calibration rows of a conversion (250)", .min = 1,
     .max = 1000000},
    {"cols", 0, KD_OPT_INT, &o.cols, "N", "tokens a row (2048)", .min = 2, .max = 1000000},
    {"api", 0, KD_OPT_NUM, &o.api, "USD", "price of a million output tokens elsewhere (15)",
     .num_min = 0, .num_max = 1e6},
    {"kwh", 0, KD_OPT_NUM, &o.kwh, "USD", "price of a kilowatt hour (0.17)", .num_min = 0,
     .num_max = 1e3},
    {"explain", 'e', KD_OPT_FLAG, &o.explain, NULL, "every formula with its numbers and sources"},
    {"figures", 'f', KD_OPT_FLAG, &o.figures, NULL,
     "the published documents' figures, computed anew, beside the right ones"},
    {"glossary", 'g', KD_OPT_FLAG, &o.glossary, NULL, "what the words mean"},
    {"brief", 0, KD_OPT_FLAG, &o.brief, NULL, "the verdicts alone"},
    KD_REMOTE_OPTS_WITH(0),
    {"json", 'j', KD_OPT_STR, &o.json, "FILE",
     "write everything as JSON; - is standard output, without the screen"},
    {"html", 'H', KD_OPT_STR, &o.html, "FILE", "write one self-contained page; - as with --json"},
    KD_OPT_ROW_THREADS(&o.threads),
    {0}};

struct plan_run {
    struct kd_plan plan;
    struct kd_plan_model model;
    struct kd_ckpt *ck;  /* its own, or the view's */
    struct kd_view view; /* of a model that is not here */
    char work[4096];     /* where its heads lie */
    double stored_bpw;   /* of its experts */
    struct kd_kern kern;
    struct kd_run run;
    struct kd_probe probe;
    struct kd_forecast forecast;
};

/* A model that is not here: its heads alone. */
static int open_remote(struct plan_run *r, const char *where, struct kd_err *err)
{
    struct kd_source_opts so;
    const struct kd_json *config;
    const char *tmp = getenv("TMPDIR");
    if (kd_cmd_source_opts(&so, err))
        return -1;
    if (snprintf(r->work, sizeof r->work, "%s/kondense-plan.XXXXXX", tmp && *tmp ? tmp : "/tmp") >=
        (int)sizeof r->work)
        return kd_fail(err, KD_EUSAGE, "TMPDIR is too long");
    if (!mkdtemp(r->work)) {
        *r->work = 0;
        return kd_fail_sys(err, "cannot make a folder for the time in '%s'",
                           tmp && *tmp ? tmp : "/tmp");
    }
    kd_progress_quiet(o.brief);
    if (kd_view_open(&r->view, where, &so, r->work, err) ||
        kd_view_config(&r->view, &config, err) ||
        kd_plan_model_of(&r->model, config, kd_source_where(r->view.src), err) ||
        kd_view_take(&r->view, NULL, NULL, err))
        return -1;
    r->ck = r->view.ck;
    return 0;
}

static int open_model(struct plan_run *r, const char *path, struct kd_err *err)
{
    if (!path)
        return kd_plan_model_k3(&r->model, err);
    if (kd_source_is_remote(path))
        return open_remote(r, path, err);
    if (kd_gguf_is(path)) {
        if (kd_ckpt_open(&r->ck, path, true, err))
            return -1;
        if (!kd_ckpt_config(r->ck))
            return kd_fail(err, KD_ENOTSUP, "%s: this GGUF is not a Kimi K3", path);
        return kd_plan_model_of(&r->model, kd_ckpt_config(r->ck), path, err);
    }
    if (kd_plan_model_load(&r->model, path, err))
        return -1;
    if (!kd_dir_exists(path))
        return 0;
    /* Where shards or an index are, they say what the model really takes. */
    struct kd_err no;
    if (kd_ckpt_open(&r->ck, path, true, &no))
        r->ck = NULL;
    return 0;
}

static void add_target(struct kd_plan *p, struct kd_plan_target t)
{
    if (p->targets < KD_PLAN_TARGETS)
        p->target[p->targets++] = t;
}

static int rates(struct kd_plan *p, struct kd_err *err)
{
    char part[32];
    for (const char *at = o.bpw;; at++) {
        size_t n = strcspn(at, ",");
        double bits;
        if (!n || n >= sizeof part)
            return kd_fail(err, KD_EUSAGE, "--bpw: '%s' is not a list of rates", o.bpw);
        memcpy(part, at, n);
        part[n] = 0;
        if (kd_parse_num(part, &bits, err) || bits < 1 || bits > 8)
            return kd_fail(err, KD_EUSAGE, "--bpw: '%s' is not 1 to 8 bits", part);
        bool listed = kd_plan_listed(p, bits);
        if (!listed && p->targets == KD_PLAN_TARGETS)
            return kd_fail(err, KD_EUSAGE, "--bpw: more than %d forms", KD_PLAN_TARGETS);
        if (!listed)
            add_target(p, kd_plan_exl3(bits));
        if (!listed && o.document)
            add_target(p, kd_plan_document(bits));
        at += n;
        if (!*at)
            return 0;
    }
}

static int targets(struct plan_run *r, struct kd_err *err)
{
    struct kd_plan *p = &r->plan;
    if (r->ck) {
        struct kd_plan_target t = {.form = KD_FORM_STORED, .name = "as stored", .ck = r->ck};
        struct kd_plan_bytes b;
        if (kd_plan_count(&b, &r->model, &t, err))
            return -1;
        add_target(p, t);
        r->stored_bpw = b.real_bpw;
    } else {
        add_target(p, kd_plan_native());
    }
    return rates(p, err);
}

static int add_machine(struct kd_plan *p, const char *name, struct kd_err *err)
{
    if (p->columns == KD_PLAN_MACHINES)
        return kd_fail(err, KD_EUSAGE, "at most %d machines", KD_PLAN_MACHINES);
    return kd_machine_find(&p->column[p->columns++].machine, name, err);
}

/* How the weights at hand are stored, as far as speed goes: 4.25 bits are the release's. */
static struct kd_plan_target stored_form(const struct plan_run *r)
{
    double bits = r->stored_bpw;
    if (!(bits > 0) || (bits > 4.24 && bits < 4.26))
        return kd_plan_native();
    return kd_plan_exl3(bits < 1 ? 1 : bits > 8 ? 8 : bits);
}

/* What a token and a conversion take here, if the model is one that this memory holds. */
static int forecasts(struct plan_run *r, struct kd_err *err)
{
    double all = 0, free_bytes = r->probe.ram_free_gib * 1073741824.0;
    bool small = r->model.cfg.hidden < 1024;
    struct kd_plan_target exl3 = kd_plan_exl3(2.3);
    for (int t = r->plan.targets - 1; t >= 0; t--)
        if (r->plan.target[t].form == KD_FORM_EXL3)
            exl3 = r->plan.target[t];
    for (int k = 0; k < KD_K3_KINDS; k++)
        all += (double)r->model.params[k];
    if (all / 2 > free_bytes)
        return 0;
    /* convert's own defaults. */
    int64_t rows = small && o.rows == 250 ? 64 : o.rows,
            cols = small && o.cols == 2048 ? 512 : o.cols;
    struct kd_plan_target form = stored_form(r);
    double budget = free_bytes / 3;
    budget = budget < 2e9 ? budget : 2e9;
    if (kd_forecast_decode(&r->forecast, &r->run, &r->model, &form, (int64_t)budget, err) ||
        kd_forecast_convert(&r->forecast, &r->run, &r->model, &exl3, rows, cols, err))
        return -1;
    r->plan.forecast = &r->forecast;
    return 0;
}

static int measure(struct plan_run *r, const char *model, struct kd_err *err)
{
    struct kd_plan *p = &r->plan;
    const char *disk = o.disk ? o.disk : model && kd_dir_exists(model) ? model : ".";
    if (kd_cmd_run_open(&r->run, &r->kern, o.threads, err) ||
        kd_probe_make(&r->probe, &r->run, disk, err))
        return -1;
    kd_probe_machine(&p->column[p->columns++].machine, &r->probe);
    p->probe = &r->probe;
    return forecasts(r, err);
}

static int write_out(const char *path, void (*make)(struct kd_buf *, const struct kd_plan *),
                     const struct kd_plan *p, struct kd_err *err)
{
    struct kd_buf b;
    int rc;
    kd_buf_init(&b, OUT_MAX);
    make(&b, p);
    rc = kd_cmd_put(&b, path, err);
    kd_buf_release(&b);
    return rc;
}

static int show(const struct kd_plan *p, struct kd_err *err)
{
    struct kd_plan_show s = {o.explain, o.figures, o.glossary, o.brief};
    bool screen = kd_cmd_screen(o.json, o.html);
    struct kd_buf b;
    int rc = 0;
    if (o.json)
        rc = write_out(o.json, kd_plan_json, p, err);
    if (!rc && o.html)
        rc = write_out(o.html, kd_plan_html, p, err);
    if (rc || !screen)
        return rc;
    kd_buf_init(&b, OUT_MAX);
    kd_plan_text(&b, p, &s);
    rc = kd_buf_ok(&b, "plan", err);
    if (!rc && fwrite(b.data, 1, b.size_bytes, stdout) != b.size_bytes)
        rc = kd_fail_sys(err, "cannot write to standard output");
    kd_buf_release(&b);
    return rc;
}

static int plan(struct plan_run *r, const char *model, struct kd_err *err)
{
    struct kd_plan *p = &r->plan;
    if (o.disk && !o.here)
        return kd_fail(err, KD_EUSAGE, "--disk goes with --this");
    if (kd_cmd_reports_check(o.json, o.html, err) || open_model(r, model, err))
        return -1;
    int64_t longest = r->model.cfg.context;
    if (!o.context)
        o.context = longest < 262144 ? longest : 262144;
    if (o.context > longest)
        return kd_fail(err, KD_EUSAGE, "--context %lld: the model has at most %lld",
                       (long long)o.context, (long long)longest);
    p->model = &r->model;
    p->tokens = (double)o.rows * (double)o.cols;
    p->use = (struct kd_plan_use){.context = (double)o.context,
                                  .at = (double)(o.at < o.context ? o.at : o.context),
                                  .sequences = (double)o.sequences,
                                  .cache_width = !strcmp(o.cache, "f32")    ? 4
                                                 : !strcmp(o.cache, "bf16") ? 2
                                                                            : 1,
                                  .cut_cache = o.cut_cache,
                                  .api_usd_out = o.api >= 0 ? o.api : kd_api_usd_out.v,
                                  .usd_kwh = o.kwh >= 0 ? o.kwh : kd_usd_kwh.v};
    if (targets(r, err) || (o.here && measure(r, model, err)))
        return -1;
    for (int i = 0; i < o.machine.count; i++)
        if (add_machine(p, o.machine.v[i], err))
            return -1;
    if (!p->columns && (add_machine(p, "spark:8", err) || add_machine(p, "gb300", err)))
        return -1;
    return kd_plan_make(p, err) || show(p, err) ? -1 : 0;
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    struct plan_run *r;
    if (kd_mem_zero(&r, 1, sizeof *r, "plan", err))
        return -1;
    int rc = plan(r, argc ? argv[0] : NULL, err);
    struct kd_err more;
    if (r->ck && r->ck != r->view.ck)
        kd_ckpt_close(r->ck);
    kd_view_close(&r->view);
    if (*r->work && kd_dir_remove(r->work, &more) && !rc)
        rc = kd_fail(err, more.code, "%s", more.msg);
    kd_cmd_run_close(&r->run);
    kd_mem_free(r);
    return rc;
}

const struct kd_cmd kd_cmd_plan = {
    .name = "plan",
    .summary = "say what fits where, how fast, and how long it takes to make",
    .args = "[MODEL]",
    .example = "kondense plan --machine spark:8 --machine gb300\n"
               "kondense plan k3-mini --this\n"
               "kondense plan hf:unsloth/Kimi-K3-GGUF/UD-IQ1_S --machine gb300",
    .opts = opts,
    .args_min = 0,
    .args_max = 1,
    .run = run,
    .details =
        "Without MODEL the model is Kimi K3, whose shape is built in; MODEL is a config.json, a "
        "folder with one, whose shards or index are counted where they are there, a GGUF, or any "
        "of "
        "them that is not here (hf:owner/name[@revision][/folder], an https address): of that, "
        "heads alone are read.\n\n"
        "Presets: spark, gb300, h100, h200, b200, b300, rtx-pro-6000, 5090, 4090, 3090, 8gb, pc, "
        "mac. "
        "A description in JSON has the keys of docs/plan.md; unknown keys are errors.\n\n"
        "Sizes are exact. Speeds are ceilings from memory traffic and a band of 0.45 to 0.70 of "
        "them, "
        "which engines have reached; hit rates of hot experts are always a range. Each number has "
        "its source or the word estimate (--explain)."};
