#include "base/file.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/show.h"
#include "cmd/cmd.h"
#include "convert/synth.h"
#include "plan/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *config, *layers, *rank, *format, *json;
    int64_t seed, threads;
    double bpw, trunk, head;
    bool dry, quiet;
} o = {.format = "mxfp4", .bpw = 2.3, .trunk = 4, .head = 6};

static const struct kd_opt opts[] = {
    {"config", 'c', KD_OPT_STR, &o.config, "release|FILE",
     "config.json whose shape the model gets; 'release': Kimi K3's, which is built in (required)"},
    {"layers", 'l', KD_OPT_STR, &o.layers, "A-B", "only these of its layers, counted from 0 (all)"},
    {"rank", 0, KD_OPT_STR, &o.rank, "R/N",
     "rank R's cut of a model dealt to N, R from 0: heads and widths (0/1, all of it)"},
    {"format", 0, KD_OPT_STR, &o.format, "mxfp4|exl3",
     "as released, or EXL3 of random codes (mxfp4)", .choices = "mxfp4|exl3"},
    {"bpw", 'b', KD_OPT_NUM, &o.bpw, "R", "EXL3: average bits of the routed experts (2.3)",
     .num_min = 1, .num_max = 8},
    {"trunk-bpw", 0, KD_OPT_NUM, &o.trunk, "R", "EXL3: bits of the trunk; 0: BF16 (4)",
     .num_min = 0, .num_max = 8},
    {"head-bpw", 0, KD_OPT_NUM, &o.head, "R", "EXL3: bits of lm_head; 0: BF16 (6)", .num_min = 0,
     .num_max = 8},
    {"seed", 0, KD_OPT_INT, &o.seed, "N", "of the weights (0)", .min = 0, .max = INT64_MAX},
    {"dry-run", 'n', KD_OPT_FLAG, &o.dry, NULL, "print sizes; write nothing; DST is not needed"},
    {"json", 'j', KD_OPT_STR, &o.json, "FILE", "also write the sizes as JSON; - is the screen"},
    {"quiet", 'q', KD_OPT_FLAG, &o.quiet, NULL, "no progress"},
    KD_OPT_ROW_THREADS(&o.threads),
    {0}};

static bool stopped(void)
{
    return kd_cmd_stop != 0;
}

/* Two numbers with `sep` between and nothing else. */
static bool two_numbers(const char *text, char sep, int64_t *a, int64_t *b)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    long x = strtol(text, &end, 10);
    if (*end != sep || end[1] < '0' || end[1] > '9')
        return false;
    long y = strtol(end + 1, &end, 10);
    *a = x;
    *b = y;
    return !*end && x <= 1 << 20 && y <= 1 << 20;
}

static int options(struct kd_synth_opts *s, struct kd_err *err)
{
    int64_t rank = 0, ranks = 1;
    *s = (struct kd_synth_opts){.last = -1, .seed = (uint64_t)o.seed, .stopped = stopped};
    if (o.layers && !two_numbers(o.layers, '-', &s->first, &s->last))
        return kd_fail(err, KD_EUSAGE, "--layers: '%s' is not A-B, as 3-14", o.layers);
    if (o.rank && (!two_numbers(o.rank, '/', &rank, &ranks) || rank >= ranks))
        return kd_fail(err, KD_EUSAGE, "--rank: '%s' is not R/N with R from 0 to N - 1, as 0/8",
                       o.rank);
    s->rank = (int)rank;
    s->ranks = (int)ranks;
    if (strcmp(o.format, "exl3") != 0)
        return 0;
    if ((o.trunk > 0 && o.trunk < 1) || (o.head > 0 && o.head < 1))
        return kd_fail(err, KD_EUSAGE, "--trunk-bpw and --head-bpw are 1 to 8 bits, or 0");
    s->wish = (struct kd_rate_wish){
        .experts_bpw = o.bpw, .trunk_bpw = o.trunk, .head_bpw = o.head, .cb = KD_CB_MUL1};
    return 0;
}

static int open_config(struct kd_json **config, struct kd_err *err)
{
    if (!o.config)
        return kd_fail(err, KD_EUSAGE,
                       "--config is needed: the config.json whose shape to use, or 'release'");
    return strcmp(o.config, "release") != 0 ? kd_json_load(config, o.config, 1 << 24, err)
                                            : kd_plan_config_k3(config, err);
}

static int write_json(const struct kd_synth_facts *f, struct kd_err *err)
{
    struct kd_buf b;
    kd_buf_init(&b, 1 << 16);
    struct kd_jw w = {.out = &b};
    kd_jw_open(&w, NULL, '{');
    kd_jw_int(&w, "layers", f->layers);
    kd_jw_int(&w, "tensors", f->tensors);
    kd_jw_int(&w, "shards", f->shards);
    kd_jw_int(&w, "layer_bytes", f->layer_bytes);
    kd_jw_int(&w, "end_bytes", f->end_bytes);
    kd_jw_int(&w, "file_bytes", f->file_bytes);
    if (f->experts.weights) {
        kd_jw_num(&w, "experts_k", f->experts.k);
        kd_jw_num(&w, "experts_real", f->experts.real);
    }
    kd_jw_close(&w, '}');
    kd_buf_char(&b, '\n');
    int rc = kd_buf_ok(&b, o.json, err) || kd_cmd_put(&b, o.json, err) ? -1 : 0;
    kd_buf_release(&b);
    return rc;
}

static void print(const struct kd_synth_facts *f, const char *dst)
{
    char layers[32], ends[32], files[32];
    kd_show_bytes(layers, sizeof layers, f->layer_bytes);
    kd_show_bytes(ends, sizeof ends, f->end_bytes);
    kd_show_bytes(files, sizeof files, f->file_bytes);
    printf("%s: made weights in the shape of %s\n", dst, o.config);
    printf("  layers        %3lld  %20lld bytes (%s)\n", (long long)f->layers,
           (long long)f->layer_bytes, layers);
    printf("  the ends           %20lld bytes (%s)\n", (long long)f->end_bytes, ends);
    printf("  weight files  %3lld  %20lld bytes (%s)\n", (long long)f->shards,
           (long long)f->file_bytes, files);
    if (f->experts.weights)
        printf("  experts            %.4f bits, %.4f with their scales\n", f->experts.k,
               f->experts.real);
}

static int make(const struct kd_synth *s, const char *dst, struct kd_err *err)
{
    struct kd_synth_facts f;
    struct kd_kern kern;
    struct kd_run r = {0};
    bool screen = kd_cmd_screen(o.json, NULL);
    if (!o.dry && !dst)
        return kd_fail(err, KD_EUSAGE, "DST is needed: the folder for the model");
    kd_progress_quiet(o.quiet);
    kd_synth_facts(s, &f);
    int rc = 0;
    if (!o.dry)
        rc = kd_cmd_run_open(&r, &kern, o.threads, err) || kd_synth_write(s, &r, dst, err);
    kd_cmd_run_close(&r);
    if (rc)
        return -1;
    if (screen)
        print(&f, dst ? dst : "dry run");
    return o.json ? write_json(&f, err) : 0;
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    struct kd_synth_opts so;
    struct kd_json *config = NULL;
    struct kd_synth *s = NULL;
    int rc = options(&so, err) || open_config(&config, err) ||
             kd_cmd_put_could(o.json, argc ? argv[0] : NULL, err) ||
             kd_synth_open(&s, config, o.config, &so, err) || make(s, argc ? argv[0] : NULL, err);
    kd_synth_close(s);
    kd_json_free(config);
    return rc ? -1 : 0;
}

const struct kd_cmd kd_cmd_synth = {
    .name = "synth",
    .summary = "write a model of any shape with made weights",
    .args = "[DST]",
    .example =
        "kondense synth /tmp/awkward --config tests/data/awkward/config.json --seed 7\n"
        "kondense synth /data/k3-12 --config release --layers 1-12 --format exl3 --bpw 2.3125",
    .opts = opts,
    .args_min = 0,
    .args_max = 1,
    .run = run,
    .details =
        "Layers A to B of the shape become a model of their own, numbered from 0, which every "
        "command takes: config.json has their number and kinds, synth.json says which they were. "
        "The weights of a layer are the same in every range. Experts have the codes and scales "
        "of released rows as often as those (MXFP4) or random codes (EXL3); the rest is normal, "
        "scaled to keep a forward pass finite. A vision tower is not made.\n\n"
        "A rank's cut has an equal part of the heads (both attentions) and of the widths of "
        "experts, shared experts and dense layers, in multiples of 128; router, latent "
        "projections, "
        "embedding and head are whole. It is the part that rank holds of the model of the same "
        "seed, and a model by itself as far as shapes go.\n\n"
        "Same options and seed, same bytes, whatever the threads. Killed, the same command goes "
        "on; whole files stay."};
