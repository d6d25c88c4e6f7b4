#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/show.h"
#include "cmd/cmd.h"
#include "cmd/convert_farm.h"
#include "cmd/convert_gguf.h"
#include "cmd/device.h"
#include "cmd/discard.h"
#include "cmd/encode_begin.h"
#include "cmd/remote.h"
#include "convert/job.h"
#include "fmt/gguf.h"
#include "text/tok.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VARIANTS_MAX = 8 };

static struct {
    const char *bpw, *trunk, *head, *calib, *weight, *class, *recipe, *codebook, *json;
    const char *to, *trunk_type, *chat_template, *device;
    struct kd_discard_check check;
    int64_t split, size, rows, cols, seed, threads, lanes;
    double latent_eps, damping;
    bool uniform, resume, dry, quiet, discard;
    struct kd_convert_farm farm;
} o = {.to = "exl3",
       .farm = {.dir = "farm", .lease_s = 30, .sample = 64},
       .trunk_type = "bf16",
       .size = -1,
       .trunk = "4",
       .head = "6",
       .weight = "all",
       .class = "exact",
       .recipe = "default",
       .codebook = "mul1",
       .damping = -1};

static const struct kd_opt opts[] = {
    {"to", 0, KD_OPT_STR, &o.to, "exl3|gguf",
     "the form of DST: EXL3, or GGUF with MXFP4 experts as they are (exl3)",
     .choices = "exl3|gguf"},
    {"trunk-type", 0, KD_OPT_STR, &o.trunk_type, "bf16|q8_0|f32",
     "GGUF: the type of all matrices but the experts and the router (bf16)",
     .choices = "bf16|q8_0|f32"},
    {"split-size", 0, KD_OPT_SIZE, &o.split, "BYTES",
     "GGUF: cut into files of at most so much data, e.g. 50G (one file)"},
    {"chat-template", 0, KD_OPT_STR, &o.chat_template, "FILE",
     "GGUF: the template to store (what the source has; K3's release has none)"},
    {"bpw", 'b', KD_OPT_STR, &o.bpw, "R[,R]",
     "average bits of the routed experts, 1 to 8; several make several models in one pass (2.3)",
     .min = 0},
    {"size", 's', KD_OPT_SIZE, &o.size, "BYTES",
     "instead of --bpw: the highest rate whose weight files fit, e.g. 650G"},
    {"trunk-bpw", 0, KD_OPT_STR, &o.trunk, "R",
     "bits of the trunk, or 'stored'; o_proj gets 1 more, the latent projections 2 more (4)"},
    {"head-bpw", 0, KD_OPT_STR, &o.head, "R", "bits of lm_head, or 'stored' (6)"},
    {"calib", 'c', KD_OPT_STR, &o.calib, "FILE", "calibration text, or chats as JSONL (required)"},
    {"rows", 0, KD_OPT_INT, &o.rows, "N",
     "calibration rows (250; 64 when hidden_size is under 1024)", .min = 1, .max = 1000000},
    {"cols", 0, KD_OPT_INT, &o.cols, "N", "tokens a row (2048; 512 when hidden_size is under 1024)",
     .min = 2, .max = 1000000},
    {"calib-weight", 0, KD_OPT_STR, &o.weight, "all|routed",
     "tokens of an expert's own Hessian (all)", .choices = "all|routed"},
    KD_OPT_ROW_CALIB_CLASS(&o.class),
    {"recipe", 'r', KD_OPT_STR, &o.recipe, "NAME", "default, upstream, plain or auto (default)",
     .choices = "default|upstream|plain|auto"},
    {"uniform-k", 0, KD_OPT_FLAG, &o.uniform, NULL,
     "one whole K for each layer and projection (exllamav3's rule)"},
    {"codebook", 0, KD_OPT_STR, &o.codebook, "NAME", "mul1, mcg or 3inst (mul1)",
     .choices = "mul1|mcg|3inst"},
    {"damping", 0, KD_OPT_NUM, &o.damping, "X", "times the Hessian's mean diagonal (the recipe's)",
     .num_min = 0, .num_max = 10},
    {"latent-eps", 0, KD_OPT_NUM, &o.latent_eps, "X", "epsilon of the q_a and kv_a norms (1e-6)",
     .num_min = 1e-12, .num_max = 1e-2},
    {"seed", 0, KD_OPT_INT, &o.seed, "N", "of the random signs (0)", .min = 0, .max = INT64_MAX},
    {"resume", 0, KD_OPT_FLAG, &o.resume, NULL, "go on with an unfinished conversion"},
    {"dry-run", 'n', KD_OPT_FLAG, &o.dry, NULL,
     "print sizes, rates and needs; write nothing; the config and index are enough (with --calib "
     "the tokenizer too)"},
    {"discard-source", 0, KD_OPT_FLAG, &o.discard, NULL,
     "SRC is hf:owner/name or an address: shards are fetched ahead, used and deleted"},
    {"check-text", 0, KD_OPT_STR, &o.check.text, "FILE",
     "with --discard-source: check on this text in the same pass"},
    {"check-rows", 0, KD_OPT_INT, &o.check.rows, "N", "rows of the check (all)", .min = 1,
     .max = 1 << 20},
    {"check-cols", 0, KD_OPT_INT, &o.check.cols, "N", "tokens a row of the check (512)", .min = 2,
     .max = 1 << 20},
    {"save-ref", 0, KD_OPT_STR, &o.check.save_ref, "FILE",
     "with --check-text: keep what checks of other models need of the source"},
    KD_REMOTE_OPTS,
    KD_OPT_ROW_DEVICE(&o.device),
    {"lanes", 0, KD_OPT_INT, &o.lanes, "N",
     "experts side by side, each takes memory (as many as keep threads or devices busy, 48 a "
     "device)",
     .min = 1, .max = KD_FARM_LANES},
    KD_OPT_ROW_THREADS(&o.threads),
    {"farm", 0, KD_OPT_STR, &o.farm.url, "URL",
     "coordinate workers, who reach this machine at URL (docs/farm.md)"},
    {"farm-dir", 0, KD_OPT_STR, &o.farm.dir, "DIR", "the farm's keys: kondense farm init (farm)"},
    {"farm-report", 0, KD_OPT_STR, &o.farm.report, "FILE",
     "with --farm: who did what, as an HTML page at the end"},
    {"only-workers", 0, KD_OPT_FLAG, &o.farm.only_workers, NULL,
     "with --farm: encode experts on workers alone; this machine only checks"},
    {"sample", 0, KD_OPT_INT, &o.farm.sample, "N",
     "with --farm: encode one of N experts again here and compare (64)", .min = 1, .max = 1000000},
    {"lease", 0, KD_OPT_NUM, &o.farm.lease_s, "S",
     "with --farm: seconds after which a silent worker's expert goes to another (30)", .num_min = 1,
     .num_max = 86400},
    {"json", 0, KD_OPT_STR, &o.json, "FILE",
     "write the summary as JSON; - is standard output, without the text"},
    {"quiet", 'q', KD_OPT_FLAG, &o.quiet, NULL, "no progress"},
    {0}};

struct work {
    struct kd_kern kern;
    struct kd_run run;
    struct kd_ckpt *ck;
    struct kd_k3_cfg cfg;
    struct kd_tok *tok;
    struct kd_corpus text;
    struct kd_buf source;
    struct kd_rate_wish wish[VARIANTS_MAX]; /* of --bpw or --size, a model each */
    int wishes;
    struct kd_job job[VARIANTS_MAX];
    int jobs;
    struct kd_home home;
    int64_t planned;           /* peak of anonymous memory, as it was printed */
    bool fast;                 /* --calib-class */
    struct kd_discard discard; /* with --discard-source; its checkpoint is ck */
};

static bool stopped(void)
{
    return kd_cmd_stop != 0;
}

static int stored_or_bits(const char *name, const char *text, double *out, struct kd_err *err)
{
    *out = 0;
    if (!strcmp(text, "stored"))
        return 0;
    if (kd_parse_num(text, out, err) || *out < 1 || *out > 8)
        return kd_fail(err, KD_EUSAGE, "--%s: '%s' is not 1 to 8 bits or 'stored'", name, text);
    return 0;
}

/* The folder of one of several rates. */
static void variant_name(char *out, size_t size, const struct kd_rate_wish *w)
{
    snprintf(out, size, "%g", w->experts_bpw);
}

/* "2.0,2.3" into wishes. */
static int wishes(struct kd_rate_wish *w, int *count, struct kd_err *err)
{
    const char *bpw = o.bpw ? o.bpw : "2.3";
    struct kd_rate_wish base = {.size_bytes = o.size > 0 ? o.size : 0, .uniform_k = o.uniform};
    if (!o.size)
        return kd_fail(err, KD_EUSAGE, "--size 0 is too small for any model");
    if (o.size > 0 && o.bpw)
        return kd_fail(err, KD_EUSAGE, "--size and --bpw exclude each other: give one of them");
    base.cb = !strcmp(o.codebook, "mul1")  ? KD_CB_MUL1
              : !strcmp(o.codebook, "mcg") ? KD_CB_MCG
                                           : KD_CB_3INST;
    if (stored_or_bits("trunk-bpw", o.trunk, &base.trunk_bpw, err) ||
        stored_or_bits("head-bpw", o.head, &base.head_bpw, err))
        return -1;
    char part[32];
    *count = 0;
    for (const char *at = bpw;; at++) {
        size_t n = strcspn(at, ",");
        if (*count == VARIANTS_MAX || n >= sizeof part || !n)
            return kd_fail(err, KD_EUSAGE, "--bpw: '%s' is not a list of at most %d rates", bpw,
                           VARIANTS_MAX);
        memcpy(part, at, n);
        part[n] = 0;
        w[*count] = base;
        if (kd_parse_num(part, &w[*count].experts_bpw, err) || w[*count].experts_bpw < 1 ||
            w[*count].experts_bpw > 8)
            return kd_fail(err, KD_EUSAGE, "--bpw: '%s' is not 1 to 8 bits", part);
        for (int i = 0; i < *count; i++) {
            char a[32], b[32];
            variant_name(a, sizeof a, &w[i]);
            variant_name(b, sizeof b, &w[*count]);
            if (!strcmp(a, b))
                return kd_fail(err, KD_EUSAGE, "--bpw: %s is there twice", a);
        }
        ++*count;
        at += n;
        if (!*at)
            return 0;
    }
}

static enum kd_recipe_name recipe_name(void)
{
    return !strcmp(o.recipe, "upstream") ? KD_RECIPE_UPSTREAM
           : !strcmp(o.recipe, "plain")  ? KD_RECIPE_PLAIN
           : !strcmp(o.recipe, "auto")   ? KD_RECIPE_AUTO
                                         : KD_RECIPE_DEFAULT;
}

/* What is wrong whatever the source holds: told before a device is opened. */
static int check_usage(struct work *w, const char *src, const char *dst, struct kd_err *err)
{
    if (wishes(w->wish, &w->wishes, err))
        return -1;
    if (!strcmp(o.class, "fast") && o.farm.url)
        return kd_fail(err, KD_EUSAGE,
                       "--calib-class fast and --farm exclude each other: workers' bytes are "
                       "compared, and those of fast depend on the device");
    if (!o.calib && !o.dry)
        return kd_fail(err, KD_EUSAGE,
                       "--calib FILE is needed: text like the model's use, some 500 kB or more");
    if (!o.discard && (o.check.text || o.check.save_ref))
        return kd_fail(err, KD_EUSAGE,
                       "--check-text goes with --discard-source; else `kondense "
                       "check` does it");
    if (o.check.save_ref && !o.check.text)
        return kd_fail(err, KD_EUSAGE, "--save-ref needs --check-text");
    if (kd_cmd_put_could(o.json, dst, err) || kd_cmd_put_could(o.check.save_ref, dst, err))
        return -1;
    if (!o.discard && kd_source_is_remote(src))
        return kd_fail(err, KD_EUSAGE,
                       "SRC is not on this machine: add --discard-source, or fetch "
                       "it first (kondense fetch)");
    if (o.discard && !kd_source_is_remote(src))
        return kd_fail(err, KD_EUSAGE,
                       "--discard-source is for a source that can be had again: "
                       "hf:owner/name or an address");
    if (o.discard && o.dry)
        return kd_fail(err, KD_EUSAGE,
                       "a dry run wants the config and the index here: kondense "
                       "fetch SRC DIR --exclude '*.safetensors'");
    return kd_convert_farm_check(&o.farm, w->wishes, err);
}

/* The checkpoint: the user's own folder, or a remote one of which a few shards are here at a time.
 */
static int open_ckpt(struct work *w, const char *src, const char *dst, struct kd_err *err)
{
    /* A dry run needs the config and the index, no shard. */
    if (!o.discard)
        return kd_ckpt_open(&w->ck, src, o.dry, err);
    if (kd_discard_open(&w->discard, src, dst, err))
        return -1;
    w->ck = kd_window_ckpt(w->discard.win);
    return 0;
}

static int open_source(struct work *w, const char *src, const char *dst, struct kd_err *err)
{
    if (open_ckpt(w, src, dst, err))
        return -1;
    if (kd_cmd_encode_config(src, w->ck, &w->cfg, err))
        return -1;
    if (kd_ckpt_gguf(w->ck))
        return kd_fail(err, KD_EUSAGE,
                       "%s is a GGUF; EXL3 is made of the safetensors it was made of", src);
    for (int64_t i = 0; i < kd_ckpt_count(w->ck); i++)
        if (kd_name_ends(kd_ckpt_at(w->ck, i)->name, "trellis"))
            return kd_fail(err, KD_ENOTSUP,
                           "tensor %s is EXL3, which is not encoded again: convert the original",
                           kd_ckpt_at(w->ck, i)->name);
    if (o.latent_eps > 0)
        w->cfg.eps_latent = (float)o.latent_eps;
    return kd_cmd_encode_text(w->ck, &w->cfg, o.calib, o.rows, o.cols, &w->tok, &w->text, err);
}

static void print_device(const struct kd_run *run, const struct kd_job *jobs, int count, bool fast)
{
    char need[32], have[32];
    struct kd_gpu_encoder_facts f;
    if (!run->encoder)
        return;
    kd_gpu_encoder_facts(run->encoder, &f);
    int64_t most = kd_job_device_bytes(jobs, count);
    kd_show_bytes(need, sizeof need, most < f.memory_bytes ? most : f.memory_bytes);
    kd_show_bytes(have, sizeof have, f.memory_bytes);
    printf("device: %d x %s, at most %s of the %s free on each; %d lanes%s\n", f.devices, f.name,
           need, have, jobs[0].lanes, fast ? "; calibration in class fast" : "");
}

static void print_plan(const struct kd_job *j, int64_t planned)
{
    char total[32], peak[32], disk[32];
    struct kd_rate_sum e = kd_rates_sum(&j->rates, 'e'), t = kd_rates_sum(&j->rates, 't'),
                       h = kd_rates_sum(&j->rates, 'h'), s = kd_rates_sum(&j->rates, 's');
    kd_show_bytes(total, sizeof total, j->rates.total_bytes);
    kd_show_bytes(peak, sizeof peak, planned);
    kd_show_bytes(disk, sizeof disk, kd_job_disk_bytes(j));
    printf("%s\n", j->dst);
    printf("  %-16s %10s %14s %8s %8s\n", "", "tensors", "weights", "k", "real");
    printf("  %-16s %10lld %14lld %8.4f %8.4f\n", "routed experts", (long long)e.tensors,
           (long long)e.weights, e.k, e.real);
    printf("  %-16s %10lld %14lld %8.4f %8.4f\n", "trunk", (long long)t.tensors,
           (long long)t.weights, t.k, t.real);
    printf("  %-16s %10lld %14lld %8.4f %8.4f\n", "lm_head", (long long)h.tensors,
           (long long)h.weights, h.k, h.real);
    printf("  %-16s %10lld %14lld %8s %8.4f\n", "kept as stored", (long long)s.tensors,
           (long long)s.weights, "", s.real);
    printf("  weight files     %lld bytes (%s) in %d shards\n", (long long)j->rates.total_bytes,
           total, j->rates.shard_count);
    printf("  memory           at most %s (%lld bytes), besides pages of mapped files\n", peak,
           (long long)planned);
    printf("  disk             %s while it runs\n", disk);
    if (j->lanes > 1 && !j->run->encoder)
        printf("  lanes            %d experts at a time, %.3g threads each\n", j->lanes,
               (double)kd_pool_threads(j->run->pool) / j->lanes);
    fflush(stdout);
}

/* The folder of one of several models. */
static int model_path(const struct work *w, int i, const char *dst, char *out, size_t size,
                      struct kd_err *err)
{
    char name[32];
    variant_name(name, sizeof name, &w->wish[i]);
    bool alone = w->wishes == 1 || !*dst;
    int n = snprintf(out, size, "%s%s%s", dst, alone ? "" : "/", alone ? "" : name);
    return n < (int)size ? 0 : kd_fail(err, KD_EINVAL, "path '%.60s...' is too long", dst);
}

static struct kd_convert_settings settings_of(const struct work *w, int i)
{
    return (struct kd_convert_settings){.wish = w->wish[i],
                                        .recipe = recipe_name(),
                                        .weight_routed = !strcmp(o.weight, "routed"),
                                        .seed = (uint64_t)o.seed,
                                        .eps_latent = w->cfg.eps_latent,
                                        .damping = (float)o.damping,
                                        .stream_bf16 = w->cfg.hidden >= 1024,
                                        .calib_fast = w->fast};
}

/* Opens the jobs, or looks at what they would be and would find without writing. */
static int open_jobs(struct work *w, const char *dst, bool look, struct kd_err *err)
{
    char path[4096];
    int finished = 0;
    for (int i = 0; i < w->wishes; i++) {
        struct kd_convert_settings set = settings_of(w, i);
        struct kd_job *j = &w->job[i];
        if (model_path(w, i, dst, path, sizeof path, err) ||
            (look ? kd_job_foresee : kd_job_open)(j, &w->run, w->ck, &w->cfg, &w->text, &set,
                                                  w->source.data, path, o.resume, err))
            return -1;
        j->stopped = stopped;
        j->lanes = kd_job_lanes(j, o.lanes);
        w->jobs++;
        finished += j->finished && !j->swept;
    }
    if (finished == w->wishes && !w->discard.left)
        return kd_fail(err, KD_EUSAGE, "'%s' already holds a finished model; choose another folder",
                       dst);
    return 0;
}

static void close_jobs(struct work *w)
{
    for (int i = 0; i < w->jobs; i++)
        kd_job_close(&w->job[i]);
    w->jobs = 0;
}

/* What is refused for what stands there, before the source is read for its hash. */
static int look_first(struct work *w, const char *dst, struct kd_err *err)
{
    if (kd_job_source_known(&w->source, w->ck, &w->text, err) || open_jobs(w, dst, true, err))
        return -1;
    kd_buf_clear(&w->source);
    if (!o.dry)
        close_jobs(w);
    return 0;
}

static int check_disk(const struct work *w, struct kd_err *err)
{
    int64_t need = 0;
    for (int i = 0; i < w->jobs; i++)
        need += kd_job_disk_bytes(&w->job[i]);
    if (o.discard)
        need += kd_discard_disk(&w->discard, w->job, w->jobs, &o.check);
    int64_t have = kd_disk_free_bytes(w->job[0].dst);
    char needed[32], free_now[32];
    kd_show_bytes(needed, sizeof needed, need);
    kd_show_bytes(free_now, sizeof free_now, have);
    if (have < need)
        return kd_fail(err, KD_EIO,
                       "'%s' needs %s of disk, %s are free: make room and add --resume",
                       w->job[0].dst, needed, free_now);
    return 0;
}

/* All variants walk the layers together, so the source is read once. */
static int run_jobs(struct work *w, struct kd_err *err)
{
    int64_t total = 0, done = 0;
    for (int i = 0; i < w->jobs; i++) {
        total += w->job[i].tiles_total;
        done += w->job[i].tiles_done;
    }
    kd_progress_begin("convert", "tiles", total, done);
    if (o.discard) {
        int ended = kd_discard_run(&w->discard, &w->run, w->job, w->jobs, &o.check, err);
        kd_progress_end();
        return ended;
    }
    int rc = 0;
    for (int i = 0; !rc && i < w->jobs; i++)
        rc = kd_job_start(&w->job[i], err);
    for (int64_t l = 0; !rc && l < w->cfg.layers; l++)
        for (int i = 0; !rc && i < w->jobs; i++)
            rc = kd_job_layer(&w->job[i], l, err);
    for (int i = 0; !rc && i < w->jobs; i++)
        rc = kd_job_ends(&w->job[i], err);
    kd_progress_end();
    return rc;
}

static void model_json(struct kd_jw *j, const char *path, const struct kd_rates *r)
{
    struct kd_rate_sum e = kd_rates_sum(r, 'e');
    kd_jw_str(j, "path", path);
    kd_jw_int(j, "total_bytes", r->total_bytes);
    kd_jw_num(j, "experts_k", e.k);
    kd_jw_num(j, "experts_real", e.real);
}

static void print_done(const struct work *w, double seconds, int64_t peak, int64_t resident,
                       const struct kd_gpu_encoder_facts *f)
{
    char took[32];
    kd_clock_human(took, sizeof took, seconds);
    printf("done in %s, peak memory %lld bytes of %lld planned (%lld with pages of mapped files)\n",
           took, (long long)peak, (long long)w->planned, (long long)resident);
    if (o.discard)
        kd_discard_print(&w->discard);
    if (w->run.encoder)
        printf("device: %lld tiles searched in %lld rounds, %.1f s of the device's time, at most "
               "%lld bytes of it\n",
               (long long)f->tiles, (long long)f->rounds, f->targets_s + f->search_s + f->update_s,
               (long long)f->used_bytes);
    for (int i = 0; i < w->jobs && !o.check.text; i++)
        printf("next: kondense check SRC %s --text FILE --html report.html\n", w->job[i].dst);
}

static int summary(const struct work *w, double seconds, struct kd_err *err)
{
    int64_t peak = kd_mem_peak_bytes(), resident = kd_mem_resident_peak_bytes();
    struct kd_gpu_encoder_facts f = {0};
    if (w->run.encoder)
        kd_gpu_encoder_facts(w->run.encoder, &f);
    if (kd_cmd_screen(o.json, NULL))
        print_done(w, seconds, peak, resident, &f);
    if (!o.json)
        return 0;
    struct kd_buf b;
    kd_buf_init(&b, 1 << 20);
    struct kd_jw j = {.out = &b};
    kd_jw_open(&j, NULL, '{');
    kd_jw_num(&j, "seconds", seconds);
    kd_jw_int(&j, "peak_bytes", peak);
    kd_jw_int(&j, "planned_peak_bytes", w->planned);
    kd_jw_int(&j, "resident_peak_bytes", resident);
    if (w->run.encoder) {
        kd_jw_int(&j, "device_peak_bytes", f.used_bytes);
        kd_jw_int(&j, "device_tiles", f.tiles);
        kd_jw_num(&j, "device_seconds", f.targets_s + f.search_s + f.update_s);
    }
    if (o.discard)
        kd_discard_json(&w->discard, &j);
    kd_jw_open(&j, "models", '[');
    for (int i = 0; i < w->jobs; i++) {
        kd_jw_open(&j, NULL, '{');
        model_json(&j, w->job[i].dst, &w->job[i].rates);
        kd_jw_int(&j, "tiles", w->job[i].tiles_total);
        kd_jw_close(&j, '}');
    }
    kd_jw_close(&j, ']');
    kd_jw_close(&j, '}');
    kd_buf_char(&b, '\n');
    int rc = kd_cmd_put(&b, o.json, err);
    kd_buf_release(&b);
    return rc;
}

static int put_foreseen(const struct work *w, struct kd_err *err)
{
    struct kd_buf b;
    kd_buf_init(&b, 1 << 20);
    struct kd_jw j = {.out = &b};
    kd_jw_open(&j, NULL, '{');
    kd_jw_bool(&j, "dry_run", true);
    kd_jw_int(&j, "planned_peak_bytes", w->planned);
    kd_jw_open(&j, "models", '[');
    for (int i = 0; i < w->jobs; i++) {
        kd_jw_open(&j, NULL, '{');
        model_json(&j, w->job[i].dst, &w->job[i].rates);
        kd_jw_close(&j, '}');
    }
    kd_jw_close(&j, ']');
    kd_jw_close(&j, '}');
    kd_buf_char(&b, '\n');
    int rc = kd_cmd_put(&b, o.json, err);
    kd_buf_release(&b);
    return rc;
}

static void print_plans(const struct work *w)
{
    if (!kd_cmd_screen(o.json, NULL))
        return;
    for (int i = 0; i < w->jobs; i++)
        if (w->job[i].finished)
            printf("%s\n  finished before\n", w->job[i].dst);
        else
            print_plan(&w->job[i], w->planned);
    print_device(&w->run, w->job, w->jobs, w->fast);
    fflush(stdout);
}

/* What a run would make, take and say; nothing is written but the report. A disk that is too small
 * is not refused: the run may be meant for another. */
static int dry_run(struct work *w, struct kd_err *err)
{
    w->planned = kd_job_peak_bytes(w->job, w->jobs);
    print_plans(w);
    return kd_cmd_encode_fits(&w->run, w->job, w->jobs, err) || (o.json && put_foreseen(w, err))
               ? -1
               : 0;
}

static int convert(struct work *w, int argc, const char **argv, struct kd_err *err)
{
    double began = kd_clock_s();
    (void)argc;
    if (check_usage(w, argv[0], argv[1], err) ||
        kd_cmd_run_open(&w->run, &w->kern, o.threads, err) ||
        kd_cmd_encoder_open(&w->run, o.device, err) ||
        kd_cmd_encode_class(&w->run, o.class, &w->fast, err) ||
        open_source(w, argv[0], argv[1], err))
        return -1;
    if (look_first(w, argv[1], err))
        return -1;
    if (o.dry)
        return dry_run(w, err);
    kd_progress_quiet(o.quiet);
    if (kd_job_source_json(&w->source, w->ck, &w->text,
                           o.discard ? kd_window_digests(w->discard.win, false) : NULL, stopped,
                           err) ||
        open_jobs(w, argv[1], false, err) || check_disk(w, err))
        return -1;
    if (kd_cmd_encode_fits(&w->run, w->job, w->jobs, err))
        return -1;
    if (w->job[0].lanes > 1)
        kd_mem_keep_little();
    w->planned = kd_job_peak_bytes(w->job, w->jobs);
    print_plans(w);
    char log[4200];
    snprintf(log, sizeof log, "%s/convert.log", w->job[0].dst);
    if (kd_log_file(log, err) || kd_convert_farm_open(&o.farm, w->job, &w->home, err) ||
        run_jobs(w, err) ||
        (o.discard && kd_discard_figures(&w->discard, &w->run, w->job, w->jobs, err)))
        return -1;
    return summary(w, kd_clock_s() - began, err);
}

static int to_gguf(const char **argv, struct kd_err *err)
{
    struct kd_to_gguf set = {.trunk_type = kd_gguf_type_named(o.trunk_type),
                             .split_bytes = o.split,
                             .chat_template = o.chat_template,
                             .resume = o.resume,
                             .dry = o.dry,
                             .stopped = stopped};
    if (o.bpw || o.size >= 0 || o.calib || (o.class && strcmp(o.class, "exact") != 0))
        return kd_fail(err, KD_EUSAGE,
                       "--to gguf takes no --bpw, --size, --calib and --calib-class");
    if (o.device && strcmp(o.device, "cpu") != 0)
        return kd_fail(err, KD_EUSAGE, "--to gguf copies and casts: --device has nothing to do");
    kd_progress_quiet(o.quiet);
    return kd_cmd_convert_gguf(argv[0], argv[1], &set, o.threads, o.json, err);
}

/* A disk that fails or is full loses nothing. */
static void offer_resume(struct kd_err *err)
{
    size_t n = strlen(err->msg);
    if (!strstr(err->msg, "--resume"))
        snprintf(err->msg + n, sizeof err->msg - n,
                 "; what is finished stays: go on with --resume");
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    struct work *w;
    o.farm.silent = !kd_cmd_screen(o.json, NULL);
    if (!strcmp(o.to, "gguf"))
        return to_gguf(argv, err);
    if (o.split || o.chat_template)
        return kd_fail(err, KD_EUSAGE, "--split-size and --chat-template belong to --to gguf");
    if (kd_mem_zero(&w, 1, sizeof *w, "conversion", err))
        return -1;
    kd_buf_init(&w->source, 1 << 26);
    int rc = convert(w, argc, argv, err);
    if (rc && err->code == KD_EIO && w->jobs && !o.dry)
        offer_resume(err);
    if (rc && err->code == KD_EGPU)
        kd_cmd_offer_cpu(err, w->fast ? "what is finished stays: go on with --resume"
                                      : "what is finished stays: go on with --resume, with "
                                        "--device cpu if need be");
    close_jobs(w);
    kd_home_release(&w->home);
    if (kd_log_file(NULL, NULL))
        rc = -1;
    kd_corpus_release(&w->text);
    if (w->tok)
        kd_tok_close(w->tok);
    if (o.discard && kd_discard_close(&w->discard, !rc, err))
        rc = -1;
    else if (!o.discard && w->ck)
        kd_ckpt_close(w->ck);
    kd_buf_release(&w->source);
    kd_cmd_encoder_close(&w->run);
    kd_cmd_run_close(&w->run);
    kd_mem_free(w);
    return rc;
}

const struct kd_cmd kd_cmd_convert = {
    "convert",
    "quantize a checkpoint to EXL3, layer by layer, or write it as GGUF",
    "SRC DST",
    "kondense convert k3 k3-2.3 --bpw 2.3 --calib calib.txt\n"
    "kondense convert k3 k3.gguf --to gguf --trunk-type q8_0 --split-size 50G\n"
    "kondense convert hf:moonshotai/Kimi-K3 k3-2.3 --bpw 2.3 --calib calib.txt --discard-source",
    opts,
    2,
    2,
    run};
