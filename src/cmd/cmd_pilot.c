#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/show.h"
#include "cmd/cmd.h"
#include "cmd/device.h"
#include "cmd/encode_begin.h"
#include "convert/trial.h"
#include "plan/pilot.h"
#include "plan/probe.h"
#include "text/tok.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OUT_MAX = 16 << 20 };

static struct {
    struct kd_opt_list machines;
    const char *on, *calib, *class, *device, *work, *json, *html;
    int64_t layer, rows, cols, experts, memory, threads, lanes, seed;
    double bpw, trunk, head, max_hours;
    bool made, quiet;
} o = {.class = "exact", .layer = -1, .bpw = 2.3, .trunk = 4, .head = 6};

static const struct kd_opt opts[] = {
    {"layer", 'l', KD_OPT_INT, &o.layer, "L", "the layer, counted from 0 (the first with experts)",
     .min = 0, .max = KD_K3_LAYERS_MAX},
    {"machines", 'm', KD_OPT_LIST, &o.machines, "LIST",
     "presets and machine files of plan that work together, as spark:8,gb300; again for another"},
    {"on", 0, KD_OPT_STR, &o.on, "NAME|FILE",
     "which machine this is, to scale others by (measured, where the CPU computes)"},
    {"calib", 'c', KD_OPT_STR, &o.calib, "FILE",
     "calibration text, for inputs of the source's own where the layers before are here"},
    {"rows", 0, KD_OPT_INT, &o.rows, "N",
     "calibration rows (250; 64 when hidden_size is under 1024)", .min = 2, .max = 1000000},
    {"cols", 0, KD_OPT_INT, &o.cols, "N", "tokens a row (2048; 512 when hidden_size is under 1024)",
     .min = 2, .max = 1000000},
    {"made-inputs", 0, KD_OPT_FLAG, &o.made, NULL, "made inputs whatever is here"},
    KD_OPT_ROW_CALIB_CLASS(&o.class),
    {"bpw", 'b', KD_OPT_NUM, &o.bpw, "R", "average bits of the routed experts (2.3)", .num_min = 1,
     .num_max = 8},
    {"trunk-bpw", 0, KD_OPT_NUM, &o.trunk, "R", "bits of the trunk (4)", .num_min = 1,
     .num_max = 8},
    {"head-bpw", 0, KD_OPT_NUM, &o.head, "R", "bits of lm_head (6)", .num_min = 1, .num_max = 8},
    {"experts", 'e', KD_OPT_INT, &o.experts, "N",
     "encode so many of the layer's experts and scale their times (all)", .min = 1, .max = 1 << 20},
    {"max-hours", 0, KD_OPT_NUM, &o.max_hours, "H",
     "exit code 3 when the whole run takes longer, on this machine or a list, or cannot be there",
     .num_min = 1e-9, .num_max = 1e9},
    {"memory", 0, KD_OPT_SIZE, &o.memory, "BYTES", "exit code 3 when the peak is more"},
    {"seed", 0, KD_OPT_INT, &o.seed, "N", "of signs and made inputs (0)", .min = 0,
     .max = INT64_MAX},
    {"work", 0, KD_OPT_STR, &o.work, "DIR",
     "where the layer and the rows of its tokens are written for the time (the layer in $TMPDIR or "
     "/tmp, the rows in memory where that has room)"},
    KD_OPT_ROW_DEVICE(&o.device),
    {"lanes", 0, KD_OPT_INT, &o.lanes, "N",
     "experts side by side (as many as keep threads or devices busy, 48 a device)", .min = 1,
     .max = KD_FARM_LANES},
    KD_OPT_ROW_THREADS(&o.threads),
    {"json", 'j', KD_OPT_STR, &o.json, "FILE",
     "write everything as JSON; - is standard output, without the screen"},
    {"html", 'H', KD_OPT_STR, &o.html, "FILE", "write one self-contained page; - as with --json"},
    {"quiet", 'q', KD_OPT_FLAG, &o.quiet, NULL, "no progress"},
    {0}};

struct work {
    struct kd_kern kern;
    struct kd_run run;
    struct kd_ckpt *ck;
    struct kd_k3_cfg cfg;
    struct kd_tok *tok;
    struct kd_corpus text;
    struct kd_job job;
    struct kd_trial trial;
    bool fast; /* --calib-class */
    struct kd_plan_model model;
    struct kd_probe probe;
    struct kd_pilot pilot;
    char dir[4096], computes[160];
};

static bool stopped(void)
{
    return kd_cmd_stop != 0;
}

static int open_source(struct work *w, const char *src, struct kd_err *err)
{
    if (kd_ckpt_open(&w->ck, src, true, err))
        return -1;
    if (!kd_ckpt_config(w->ck) || kd_ckpt_gguf(w->ck))
        return kd_fail(err, KD_EUSAGE, "%s: a pilot is of a safetensors checkpoint's folder", src);
    if (kd_cmd_encode_config(src, w->ck, &w->cfg, err))
        return -1;
    if (o.layer < 0)
        o.layer = w->cfg.dense_layers;
    if (o.layer >= w->cfg.layers)
        return kd_fail(err, KD_EUSAGE, "--layer %lld: the model has layers 0 to %lld",
                       (long long)o.layer, (long long)w->cfg.layers - 1);
    if (kd_plan_model_of(&w->model, kd_ckpt_config(w->ck), src, err))
        return -1;
    return kd_cmd_encode_text(w->ck, &w->cfg, o.calib, o.rows, o.cols, &w->tok, &w->text, err);
}

static int open_folder(struct work *w, struct kd_err *err)
{
    const char *tmp = getenv("TMPDIR");
    const char *in = o.work ? o.work : tmp && *tmp ? tmp : "/tmp";
    if (!*in)
        return kd_fail(err, KD_EUSAGE, "--work '': name a folder");
    if (snprintf(w->dir, sizeof w->dir, "%s/kondense-pilot.XXXXXX", in) >= (int)sizeof w->dir) {
        *w->dir = 0;
        return kd_fail(err, KD_EUSAGE, "'%.60s...' is too long for a work folder", in);
    }
    if (!mkdtemp(w->dir)) {
        *w->dir = 0;
        return kd_fail_sys(err, "cannot make a folder for the time in '%s'", in);
    }
    return 0;
}

/* Rows in memory, unless a folder is named or they and the rest would take more than three quarters
 * of what there is. */
static void place_rows(struct work *w)
{
    int64_t rows = kd_trial_rows_bytes(&w->job, o.layer), plan = kd_job_peak_bytes(&w->job, 1);
    w->job.in_memory = !o.work && rows + plan <= kd_mem_available_bytes() / 4 * 3;
    w->pilot.planned_bytes = plan + (w->job.in_memory ? rows : 0);
}

/* What it will take, before it does. */
static void say_needs(const struct work *w)
{
    char memory[32], disk[32], rows[32], device[32], of_it[80];
    struct kd_gpu_encoder_facts f;
    if (o.quiet || !kd_cmd_screen(o.json, o.html))
        return;
    kd_show_bytes(memory, sizeof memory, w->pilot.planned_bytes);
    kd_show_bytes(disk, sizeof disk, kd_trial_disk_bytes(&w->job, o.layer));
    kd_show_bytes(rows, sizeof rows, kd_trial_rows_bytes(&w->job, o.layer));
    snprintf(of_it, sizeof of_it, " (%s of it the rows of tokens)", rows);
    printf("needs %s of memory%s, %s of disk in %s%s\n", memory, w->job.in_memory ? of_it : "",
           disk, w->dir, w->job.in_memory ? "" : of_it);
    if (w->run.encoder) {
        int64_t most = kd_job_device_bytes(&w->job, 1);
        kd_gpu_encoder_facts(w->run.encoder, &f);
        kd_show_bytes(device, sizeof device, most < f.memory_bytes ? most : f.memory_bytes);
        printf("      at most %s of each device's memory\n", device);
    }
    fflush(stdout);
}

static int check_room(const struct work *w, struct kd_err *err)
{
    char need[32], have[32];
    int64_t wants = kd_trial_disk_bytes(&w->job, o.layer), room = kd_disk_free_bytes(w->dir);
    kd_show_bytes(need, sizeof need, wants);
    kd_show_bytes(have, sizeof have, room);
    if (room < wants)
        return kd_fail(err, KD_EIO, "'%s' needs %s of disk, %s are free: see --work", w->dir, need,
                       have);
    return kd_cmd_encode_fits(&w->run, &w->job, 1, err);
}

static int open_job(struct work *w, struct kd_err *err)
{
    struct kd_convert_settings set = {
        .wish = {.experts_bpw = o.bpw, .trunk_bpw = o.trunk, .head_bpw = o.head, .cb = KD_CB_MUL1},
        .recipe = KD_RECIPE_AUTO, /* rows are held back; both recipes are tried on a few experts */
        .seed = (uint64_t)o.seed,
        .eps_latent = w->cfg.eps_latent,
        .damping = -1,
        .stream_bf16 = w->cfg.hidden >= 1024,
        .calib_fast = w->fast};
    if (open_folder(w, err) ||
        kd_job_open(&w->job, &w->run, w->ck, &w->cfg, &w->text, &set, "{}", w->dir, false, err))
        return -1;
    w->job.stopped = stopped;
    w->job.by_layer = true;
    w->job.lanes = kd_job_lanes(&w->job, o.lanes);
    if (!w->job.rates.expert_tensors)
        return kd_fail(err, KD_EUSAGE,
                       "%s: its experts cannot be encoded; is it made of codes already?",
                       kd_ckpt_dir(w->ck));
    place_rows(w);
    return check_room(w, err);
}

/* "spark:8,gb300" */
static int add_list(struct kd_pilot *p, const char *text, struct kd_err *err)
{
    struct kd_pilot_row *r = &p->row[p->rows_count];
    char part[4096];
    if (p->rows_count == KD_PILOT_ROWS)
        return kd_fail(err, KD_EUSAGE, "--machines: at most %d lists", KD_PILOT_ROWS - 1);
    kd_show_text(r->name, sizeof r->name, text);
    for (const char *at = text;; at += strcspn(at, ",") + 1) {
        size_t n = strcspn(at, ",");
        if (!n || n >= sizeof part || r->machines == KD_PILOT_MACHINES)
            return kd_fail(err, KD_EUSAGE, "--machines: '%s' is not a list of at most %d machines",
                           r->name, KD_PILOT_MACHINES);
        memcpy(part, at, n);
        part[n] = 0;
        if (kd_machine_find(&r->machine[r->machines++], part, err))
            return -1;
        if (!at[n])
            break;
    }
    p->rows_count++;
    return 0;
}

static int take_machines(struct work *w, struct kd_err *err)
{
    struct kd_pilot *p = &w->pilot;
    int index[KD_GPU_ENCODE_DEVICES], devices;
    if (kd_cmd_device_parse(o.device, index, &devices, err))
        return -1;
    p->rows_count = 1;
    snprintf(p->row[0].name, sizeof p->row[0].name, "this machine");
    /* By itself any reference gives the same hours. */
    p->here = (struct kd_machine){.count = 1, .supported = true};
    p->here.tiles_s.v = 1e6;
    p->here.fp32_tflops.v = p->here.tflops.v = 1;
    for (int i = 0; i < o.machines.count; i++)
        if (add_list(p, o.machines.v[i], err))
            return -1;
    if (o.on && kd_machine_find(&p->here, o.on, err))
        return -1;
    if (o.on && (!p->here.supported || !(p->here.tiles_s.v > 0) || !(p->here.fp32_tflops.v > 0)))
        return kd_fail(err, KD_EUSAGE, "--on %s: the plan has no encoding rate for it", o.on);
    if (o.machines.count && !o.on && devices)
        return kd_fail(err, KD_EUSAGE,
                       "--machines with --device cuda needs --on: which of plan's machines this "
                       "is, to scale the others by");
    return 0;
}

static void note_computes(struct work *w)
{
    struct kd_gpu_encoder_facts f;
    int threads = kd_pool_threads(w->run.pool);
    if (w->run.encoder) {
        kd_gpu_encoder_facts(w->run.encoder, &f);
        snprintf(w->computes, sizeof w->computes, "%d x %.80s%s", f.devices, f.name,
                 w->fast ? ", calibration in class fast" : "");
        w->pilot.device_bytes = f.used_bytes;
    } else {
        snprintf(w->computes, sizeof w->computes, "the CPU, %d thread%s, %d lane%s", threads,
                 threads > 1 ? "s" : "", w->job.lanes, w->job.lanes > 1 ? "s" : "");
    }
}

/* What was measured; experts' parts as shares of the wall time of encoding them. */
static void take_results(struct work *w)
{
    struct kd_pilot *p = &w->pilot;
    const struct kd_trial *t = &w->trial;
    double sum = 0;
    p->model = &w->model;
    p->form = kd_plan_exl3(o.bpw);
    p->form.trunk_bpw = o.trunk;
    p->form.head_bpw = o.head;
    p->source = kd_ckpt_dir(w->ck);
    p->computes = w->computes;
    p->layer = t->layer;
    p->rows = w->text.rows;
    p->cols = w->text.cols;
    p->held_out = t->held_out;
    p->real = t->real;
    p->why = t->why;
    p->experts = t->encoded;
    p->inputs_s = t->inputs_s;
    p->read_s = t->read_s;
    p->wall_s = t->wall_s;
    p->read_bytes = t->read_bytes;
    p->written_bytes = t->written_bytes;
    p->compared = t->compared;
    p->max_hours = o.max_hours;
    p->max_bytes = o.memory;
    p->fast = w->fast;
    memcpy(p->error, t->error, sizeof p->error);
    for (int i = 0; i < KD_PILOT_PARTS; i++) {
        p->part_s[KD_SCOPE_LAYER][i] = t->part_s[KD_SCOPE_LAYER][i];
        p->compare_s += t->part_s[KD_SCOPE_COMPARE][i];
        sum += t->part_s[KD_SCOPE_EXPERT][i];
    }
    for (int i = 0; i < KD_PILOT_PARTS && sum > 0; i++)
        p->part_s[KD_SCOPE_EXPERT][i] = t->experts_s * t->part_s[KD_SCOPE_EXPERT][i] / sum;
}

static int put(const char *path, void (*make)(struct kd_buf *, const struct kd_pilot *),
               const struct kd_pilot *p, struct kd_err *err)
{
    struct kd_buf b;
    kd_buf_init(&b, OUT_MAX);
    make(&b, p);
    int rc = kd_buf_ok(&b, "pilot", err) || kd_cmd_put(&b, path, err) ? -1 : 0;
    kd_buf_release(&b);
    return rc;
}

static int report(const struct kd_pilot *p, struct kd_err *err)
{
    bool screen = kd_cmd_screen(o.json, o.html);
    char text[256];
    /* The screen first: what was measured is not lost to a file that cannot be written. */
    if ((screen && put("-", kd_pilot_text, p, err)) ||
        (o.json && put(o.json, kd_pilot_json, p, err)) ||
        (o.html && put(o.html, kd_pilot_html, p, err)))
        return -1;
    if (p->over && kd_pilot_limit(p, 0, text, sizeof text))
        return kd_fail(err, KD_EGATE, "past the limit: %s", text);
    return 0;
}

static int pilot(struct work *w, const char *src, struct kd_err *err)
{
    kd_progress_quiet(o.quiet);
    if (kd_cmd_reports_check(o.json, o.html, err) || take_machines(w, err) ||
        kd_cmd_run_open(&w->run, &w->kern, o.threads, err) ||
        kd_cmd_encoder_open(&w->run, o.device, err) ||
        kd_cmd_encode_class(&w->run, o.class, &w->fast, err) || open_source(w, src, err) ||
        open_job(w, err))
        return -1;
    if (w->job.lanes > 1)
        kd_mem_keep_little();
    w->trial = (struct kd_trial){.layer = o.layer, .experts = o.experts, .made = o.made};
    say_needs(w);
    if (kd_trial_run(&w->job, &w->trial, err)) {
        size_t n = strlen(err->msg);
        if (err->code == KD_ENOMEM && w->job.in_memory)
            snprintf(err->msg + n, sizeof err->msg - n,
                     "; --work DIR keeps the rows of tokens in files");
        return -1;
    }
    w->pilot.peak_bytes = kd_mem_peak_bytes();
    note_computes(w);
    take_results(w);
    if (o.machines.count && !o.on) {
        if (kd_probe_make(&w->probe, &w->run, NULL, err))
            return -1;
        kd_probe_machine(&w->pilot.here, &w->probe);
    }
    return kd_pilot_make(&w->pilot, err) || report(&w->pilot, err) ? -1 : 0;
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    struct work *w;
    struct kd_err more;
    (void)argc;
    if (kd_mem_zero(&w, 1, sizeof *w, "pilot", err))
        return -1;
    w->job.lock = -1;
    int rc = pilot(w, argv[0], err);
    if (rc && err->code == KD_EGPU)
        kd_cmd_offer_cpu(err, w->fast ? "nothing is lost: run it again"
                                      : "nothing is lost: run it again, with --device cpu if need "
                                        "be");
    if (rc && err->code == KD_ECANCEL)
        kd_fail(err, KD_ECANCEL, "stopped; nothing is left of it");
    kd_job_close(&w->job);
    if (*w->dir && kd_dir_remove(w->dir, &more) && !rc)
        rc = kd_fail(err, more.code, "%s", more.msg);
    kd_corpus_release(&w->text);
    if (w->tok)
        kd_tok_close(w->tok);
    if (w->ck)
        kd_ckpt_close(w->ck);
    kd_cmd_encoder_close(&w->run);
    kd_cmd_run_close(&w->run);
    kd_mem_free(w);
    return rc;
}

const struct kd_cmd kd_cmd_pilot = {
    .name = "pilot",
    .summary = "convert one layer and say how long the whole conversion takes",
    .args = "SRC",
    .example = "kondense pilot k3 --layer 1 --experts 16 --machines spark:8,gb300 --max-hours 60",
    .opts = opts,
    .args_min = 1,
    .args_max = 1,
    .run = run,
    .details =
        "SRC is a checkpoint of which only the layer's shards need to be here. The layer is read, "
        "calibrated, encoded and written as convert does it, into a folder that is removed; time "
        "is told by part, with the peak of memory and the error of the layer's output on rows "
        "held back (an eighth), of the default recipe and of plain codes on four experts.\n\n"
        "The layer's inputs are the source's own when --calib is given and the layers before it, "
        "embedding and head are here (they are run, which takes its time); else they are "
        "made: " KD_TRIAL_MADE ". Times hardly depend on that, errors do.\n\n"
        "The whole run's hours are the measured rates for the work of all layers, as plan counts "
        "it. Lists of machines are scaled: the measured time of each part times the plan's ratio "
        "between this machine and theirs (trellis tiles for encoding, 32-bit products for the "
        "rest, 16-bit ones in class fast). This machine's own figures are measured for that, or "
        "those of --on."};
