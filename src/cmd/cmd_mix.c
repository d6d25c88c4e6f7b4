#include "base/file.h"
#include "base/show.h"
#include "cmd/cmd.h"
#include "convert/mix.h"
#include "gate/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct {
    const char *source, *text, *uniform;
    int64_t size, rows, cols, threads;
    bool keep;
} o = {.cols = 512};

static const struct kd_opt opts[] = {
    {"size", 's', KD_OPT_SIZE, &o.size, "BYTES",
     "weight files of the result at most, e.g. 650G (required)"},
    {"source", 0, KD_OPT_STR, &o.source, "SRC", "the original, to measure against (required)"},
    {"text", 0, KD_OPT_STR, &o.text, "FILE", "evaluation text (required)"},
    {"uniform", 'u', KD_OPT_STR, &o.uniform, "MODEL",
     "a uniform conversion of this size; without it the bar is read off between A and B"},
    {"rows", 0, KD_OPT_INT, &o.rows, "N", "rows of text (all)", .min = 1, .max = 1000000},
    {"cols", 0, KD_OPT_INT, &o.cols, "N", "tokens a row (512)", .min = 2, .max = 1000000},
    {"keep", 'k', KD_OPT_FLAG, &o.keep, NULL,
     "keep the result even if it does not beat the uniform rate"},
    KD_OPT_ROW_THREADS(&o.threads),
    {0}};

static int kld_of(const struct kd_run *run, const char *model, double *kld, struct kd_err *err)
{
    struct kd_check c;
    struct kd_check_plan plan = {.src = o.source,
                                 .dst = model,
                                 .text = o.text,
                                 .rows = o.rows,
                                 .cols = o.cols,
                                 .stop = &kd_cmd_stop};
    int rc = kd_check_run(&c, run, &plan, err);
    *kld = c.kld_mean;
    kd_check_release(&c);
    return rc;
}

/* KLD falls about exponentially with size: a straight line in the logarithm between the two. */
static double between(double a_kld, double b_kld, const struct kd_mix *m)
{
    /* A copy of one of them: nothing is beaten by what a logarithm rounds off. */
    if (m->bytes == m->a_bytes || m->bytes == m->b_bytes)
        return m->bytes == m->a_bytes ? a_kld : b_kld;
    double share = m->b_bytes > m->a_bytes
                       ? (double)(m->bytes - m->a_bytes) / (double)(m->b_bytes - m->a_bytes)
                       : 1;
    return exp(log(a_kld) * (1 - share) + log(b_kld) * share);
}

static int judge(const struct kd_run *run, const struct kd_mix *m, const char **argv,
                 const char *made, bool *wins, struct kd_err *err)
{
    double a, b, mix, bar;
    if (kld_of(run, made, &mix, err))
        return -1;
    if (o.uniform) {
        if (kld_of(run, o.uniform, &bar, err))
            return -1;
    } else {
        if (kld_of(run, argv[0], &a, err) || kld_of(run, argv[1], &b, err))
            return -1;
        if (!(a > 0) || !(b > 0))
            return kd_fail(err, KD_EINVAL, "a KLD of 0 leaves nothing to compare");
        bar = between(a, b, m);
        printf("KLD of A %.5f (%lld bytes), of B %.5f (%lld bytes)\n", a, (long long)m->a_bytes, b,
               (long long)m->b_bytes);
    }
    *wins = mix < bar;
    printf("KLD of the mix %.5f, of %s %.5f\n", mix,
           o.uniform ? o.uniform : "a uniform rate of this size, read off between A and B,", bar);
    return 0;
}

/* The mix is made and judged beside its destination and gets its name only when it is kept: nothing
 * that was there before is touched, and what was not judged never looks finished. */
static int take_place(const char *dst, char *made, size_t size, struct kd_err *err)
{
    size_t n = strlen(dst);
    while (n > 1 && dst[n - 1] == '/')
        n--;
    if (!n || n + 8 > size)
        return kd_fail(err, KD_EUSAGE, "'%.60s' cannot be the name of a folder", dst);
    memcpy(made, dst, n);
    made[n] = 0;
    if (!access(made, F_OK) && rmdir(made))
        return kd_fail(err, KD_EUSAGE,
                       "'%s' is there and is not an empty folder; choose another one", dst);
    memcpy(made + n, ".mixing", 8);
    if (!access(made, F_OK))
        return kd_fail(err, KD_EUSAGE,
                       "'%s' is there, perhaps of a mix that was stopped: remove it", made);
    return kd_dir_could(made, err);
}

/* What is only wanted once the mix is written, which may take hours. */
static int check_beside(struct kd_err *err)
{
    const char *const models[] = {o.source, o.uniform};
    if (!kd_file_exists(o.text))
        return kd_fail(err, KD_EIO, "cannot open '%s': it is not there, or not a plain file",
                       o.text);
    for (int i = 0; i < 2; i++) {
        struct kd_ckpt *ck;
        if (!models[i])
            continue;
        if (kd_ckpt_open(&ck, models[i], false, err))
            return -1;
        kd_ckpt_close(ck);
    }
    return 0;
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    struct kd_kern kern;
    struct kd_run run = {0};
    static struct kd_mix m;
    char bytes[32], made[4096];
    (void)argc;
    if (!o.size || !o.source || !o.text)
        return kd_fail(err, KD_EUSAGE,
                       "--size, --source and --text are needed (see kondense mix -h)");
    if (kd_mix_plan(&m, argv[0], argv[1], o.size, err) || check_beside(err) ||
        take_place(argv[2], made, sizeof made, err))
        return -1;
    kd_show_bytes(bytes, sizeof bytes, m.bytes);
    printf("%s: %lld of %lld layers at the higher rate, %lld bytes (%s)\n", argv[2],
           (long long)m.layers_from_b, (long long)m.layers, (long long)m.bytes, bytes);
    bool wins = false;
    int rc = kd_mix_write(&m, argv[0], argv[1], made, err) ||
                     kd_cmd_run_open(&run, &kern, o.threads, err) ||
                     judge(&run, &m, argv, made, &wins, err)
                 ? -1
                 : 0;
    kd_cmd_run_close(&run);
    if (!rc && (wins || o.keep) && rename(made, argv[2]))
        rc = kd_fail_sys(err, "cannot rename '%s' to '%s'", made, argv[2]);
    if (rc || (!wins && !o.keep)) {
        struct kd_err ignored;
        if (kd_dir_remove(made, &ignored))
            fprintf(stderr, "kondense mix: %s\n", ignored.msg);
    }
    if (!rc && !wins)
        return kd_fail(err, KD_EGATE, "the mix does not beat the uniform rate at equal size%s",
                       o.keep ? "" : "; it was not kept");
    return rc;
}

const struct kd_cmd kd_cmd_mix = {
    "mix",     "combine two finished rates layer by layer, kept only if it beats the uniform rate",
    "A B DST", "kondense mix k3-2.0 k3-3.0 k3-mix --size 700G --source k3 --text wiki.txt",
    opts,      3,
    3,         run};
