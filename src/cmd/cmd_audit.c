#include "base/file.h"
#include "base/progress.h"
#include "cmd/cmd.h"
#include "cmd/remote.h"
#include "gate/audit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    const char *of, *json, *html, *work;
    int64_t n, seed, threads;
    double tolerance, limit;
    bool quiet;
} o = {.n = 300, .tolerance = 0.001};

// clang-format off
static const struct kd_opt opts[] = {
    {"of", 0, KD_OPT_STR, &o.of, "SRC", "the source that it was made of (required)"},
    {"experts", 'n', KD_OPT_INT, &o.n, "N", "how many, chosen at random (300)", .min = 1, .max = 1 << 20},
    {"seed", 0, KD_OPT_INT, &o.seed, "N", "of the choice (0)", .min = 0, .max = INT64_MAX},
    {"tolerance", 0, KD_OPT_NUM, &o.tolerance, "X",
     "how far an error may be from the receipt's, as a share of it (0.001)", .num_min = 1e-9, .num_max = 1},
    {"limit", 0, KD_OPT_NUM, &o.limit, "X",
     "the largest relative error that is not bad (with a receipt: what it says; else 1.5 times the median)",
     .num_min = 1e-9, .num_max = 1},
    {"work", 'w', KD_OPT_STR, &o.work, "DIR", "where the fetched pieces lie for the time (TMPDIR, else /tmp)"},
    KD_REMOTE_OPTS,
    KD_OPT_ROW_THREADS(&o.threads),
    {"json", 0, KD_OPT_STR, &o.json, "FILE", "write the figures as JSON; - is standard output, without the screen"},
    {"html", 0, KD_OPT_STR, &o.html, "FILE", "write one self-contained page with a plot"},
    {"quiet", 'q', KD_OPT_FLAG, &o.quiet, NULL, "no progress line"},
    {0}};
// clang-format on

static int put(const char *path, const struct kd_audit *a,
               void (*write)(struct kd_buf *, const struct kd_audit *), struct kd_err *err)
{
    struct kd_buf b;
    if (!path)
        return 0;
    kd_buf_init(&b, 256 << 20);
    write(&b, a);
    int rc = kd_cmd_put(&b, path, err);
    kd_buf_release(&b);
    return rc;
}

static int audit(const char *model, const char *work, struct kd_err *err)
{
    struct kd_source_opts so;
    struct kd_kern kern;
    struct kd_run run;
    struct kd_audit a;
    if (kd_cmd_reports_check(o.json, o.html, err) || kd_cmd_source_opts(&so, err) ||
        kd_cmd_run_open(&run, &kern, o.threads, err))
        return -1;
    struct kd_audit_plan plan = {.model = model,
                                 .source = o.of,
                                 .opts = &so,
                                 .work = work,
                                 .n = o.n,
                                 .seed = (uint64_t)o.seed,
                                 .tolerance = o.tolerance,
                                 .limit = o.limit,
                                 .stop = &kd_cmd_stop};
    int rc = kd_audit_run(&a, &run, &plan, err);
    kd_cmd_run_close(&run);
    if (!rc) {
        rc = put(kd_cmd_screen(o.json, o.html) ? "-" : NULL, &a, kd_audit_text, err) ||
                     put(o.json, &a, kd_audit_json, err) || put(o.html, &a, kd_audit_html, err)
                 ? -1
                 : 0;
    }
    if (!rc && a.bad)
        rc = kd_fail(err, KD_EGATE, "%lld of %lld experts are bad", (long long)a.bad,
                     (long long)a.n);
    kd_audit_release(&a);
    return rc;
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    char work[4096];
    const char *tmp = getenv("TMPDIR");
    (void)argc;
    if (!o.of)
        return kd_fail(err, KD_EUSAGE, "--of SRC is needed: what it was made of");
    kd_progress_quiet(o.quiet);
    if (snprintf(work, sizeof work, "%s/kondense-audit.XXXXXX",
                 o.work        ? o.work
                 : tmp && *tmp ? tmp
                               : "/tmp") >= (int)sizeof work)
        return kd_fail(err, KD_EUSAGE, "--work: the path is too long");
    if ((o.work && kd_dir_make(o.work, err)))
        return -1;
    if (!mkdtemp(work))
        return kd_fail_sys(err, "cannot make a folder for the time, '%s'", work);
    int rc = audit(argv[0], work, err);
    rmdir(work);
    return rc;
}

static const char details[] =
    "MODEL and SRC are hf:owner/name[@revision][/folder], https addresses or local: safetensors, "
    "EXL3 or GGUF, also split or chopped. Of remote ones only the heads and the chosen experts' "
    "bytes are fetched: some 8 GB for 300 experts of K3, not 2 TB.\n\n"
    "The exit code is 3 when an expert is bad. With a receipt (kondense.json, as convert writes "
    "it) that is one whose error differs from the receipt's; without, one over --limit.";

const struct kd_cmd kd_cmd_audit = {
    "audit",
    "hold random experts of anybody's quantized model against its source",
    "MODEL",
    "kondense audit hf:somebody/K3-2.3bpw --of hf:moonshotai/Kimi-K3 -n 300\n"
    "kondense audit hf:unsloth/Kimi-K3-GGUF/UD-IQ1_S --of hf:moonshotai/Kimi-K3 -n 300",
    opts,
    1,
    1,
    run,
    details};
