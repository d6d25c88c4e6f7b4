#include "cmd/bench.h"
#include "cmd/cmd.h"

#include <stdio.h>
#include <string.h>

static struct {
    const char *model, *rate;
    double seconds;
    int64_t threads, tiles;
    bool json;
} o = {.seconds = 1, .tiles = 1024};

static const struct kd_opt opts[] = {
    {.name = "seconds",
     .letter = 's',
     .type = KD_OPT_NUM,
     .out = &o.seconds,
     .arg = "S",
     .help = "seconds for each figure, over five repeats; default 1",
     .num_min = 0.001,
     .num_max = 3600},
    {.name = "rate",
     .letter = 'r',
     .type = KD_OPT_STR,
     .out = &o.rate,
     .arg = "LIST",
     .help = "EXL3 rates, as 2,2.3125; default 1 to 8, 2.0625 and 2.3125 (decode: 2 to 4)"},
    {.name = "tiles",
     .type = KD_OPT_INT,
     .out = &o.tiles,
     .arg = "N",
     .help = "encode: Gaussian tiles for the error; default 1024",
     .min = 4,
     .max = 1 << 20},
    {.name = "model",
     .letter = 'm',
     .type = KD_OPT_STR,
     .out = &o.model,
     .arg = "DIR",
     .help = "forward: the model to run"},
    {.name = "threads",
     .letter = 'T',
     .type = KD_OPT_INT,
     .out = &o.threads,
     .arg = "N",
     .help = "threads; default one a CPU",
     .min = 1,
     .max = 4096},
    {.name = "json", .letter = 'j', .type = KD_OPT_FLAG, .out = &o.json, .help = "print JSON"},
    {0},
};

static int run(int argc, const char **argv, struct kd_err *err)
{
    static const struct {
        const char *name;
        int (*run)(const struct kd_bench *b, struct kd_err *err);
    } what[] = {
        {"encode", kd_bench_encode}, {"decode", kd_bench_decode}, {"forward", kd_bench_forward}};
    struct kd_buf out;
    struct kd_jw w = {.out = &out};
    struct kd_kern kern;
    struct kd_run with;
    size_t at = 0;
    (void)argc;
    while (at < sizeof what / sizeof *what && strcmp(what[at].name, argv[0]) != 0)
        at++;
    if (at == sizeof what / sizeof *what)
        return kd_fail(err, KD_EUSAGE, "'%s' is not a benchmark (encode, decode, forward)",
                       argv[0]);
    if (kd_cmd_run_open(&with, &kern, o.threads, err))
        return -1;
    struct kd_bench b = {.run = &with,
                         .one = {.kern = &kern},
                         .seconds = o.seconds,
                         .model = o.model,
                         .rate = o.rate,
                         .tiles = o.tiles,
                         .ghz = kd_bench_ghz(),
                         .w = &w,
                         .screen = !o.json};
    kd_buf_init(&out, 16 << 20);
    kd_jw_open(&w, NULL, '{');
    kd_jw_str(&w, "bench", argv[0]);
    kd_bench_machine(&w, &b);
    kd_jw_open(&w, "results", '[');
    if (b.screen) {
        char cpu[128];
        kd_bench_cpu_name(cpu, sizeof cpu);
        printf("%s, %d threads, %s, %.2f GHz; Kondense %s\n", cpu, kd_pool_threads(with.pool),
               kern.name, b.ghz, KD_VERSION);
    }
    int rc = what[at].run(&b, err);
    kd_jw_close(&w, ']');
    kd_jw_close(&w, '}');
    kd_buf_char(&out, '\n');
    if (!rc && o.json)
        rc = kd_buf_ok(&out, "result", err) ||
             fwrite(out.data, 1, out.size_bytes, stdout) != out.size_bytes;
    kd_buf_release(&out);
    kd_cmd_run_close(&with);
    return rc ? -1 : 0;
}

const struct kd_cmd kd_cmd_bench = {
    .name = "bench",
    .summary = "measure encoding, decoding and the forward pass on this machine",
    .args = "encode|decode|forward",
    .example = "kondense bench encode --rate 2 --json\n"
               "kondense bench forward --model k3-nano",
    .opts = opts,
    .args_min = 1,
    .args_max = 1,
    .run = run,
    .details =
        "Every figure is measured five times; the median, the lowest and the highest are "
        "given. Decoding streams its matrices from 256 MB of memory, and the rate of a plain "
        "reader stands beside it as the limit of this machine in the same run.",
};
