#include "cmd/bench.h"
#include "cmd/cmd.h"
#include "cmd/encode_begin.h"
#include "cmd/model_device.h"
#include "farm/farm.h"

#include <stdio.h>
#include <string.h>

static struct {
    const char *model, *rate, *require, *texts, *ledger, *units, *device, *shape, *calib_class;
    double seconds, bpw, trunk_bpw, head_bpw;
    int64_t threads, tiles, prompt, passages, layers, blocks, lanes, rows;
    bool json, account, exact;
} o = {.seconds = 1, .bpw = 2.3125, .trunk_bpw = 4, .head_bpw = 6, .prompt = 4000, .passages = 8};

static const struct kd_opt opts[] = {
    {.name = "seconds",
     .letter = 's',
     .type = KD_OPT_NUM,
     .out = &o.seconds,
     .arg = "S",
     .help = "seconds for each figure, over five repeats (serve: of each repeat); default 1",
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
     .help = "encode: Gaussian tiles for the error; default 1024; quantize: tiles of all tensors, "
             "default ten tensors a lane",
     .min = 4,
     .max = 1 << 26},
    {.name = "passages",
     .type = KD_OPT_INT,
     .out = &o.passages,
     .arg = "N",
     .help = "serve: passages of each text; default 8",
     .min = 1,
     .max = 4096},
    {.name = "model",
     .letter = 'm',
     .type = KD_OPT_STR,
     .out = &o.model,
     .arg = "DIR",
     .help = "forward, serve: the model to run"},
    {.name = "require",
     .type = KD_OPT_STR,
     .out = &o.require,
     .arg = "LIST",
     .help = "serve, farm: end with 3 unless these are met, as toks=15,ttft=2 or "
             "pgbench=0.5,memory=5"},
    {.name = "prompt",
     .type = KD_OPT_INT,
     .out = &o.prompt,
     .arg = "N",
     .help = "serve: tokens of the prompt for ttft and warm; default 4000",
     .min = 128,
     .max = 1 << 22},
    {.name = "text",
     .type = KD_OPT_STR,
     .out = &o.texts,
     .arg = "FILES",
     .help = "serve: measure drafts on these texts too, comma separated"},
    {.name = "ledger",
     .type = KD_OPT_STR,
     .out = &o.ledger,
     .arg = "CONNINFO",
     .help = "farm: a PostgreSQL server, measured beside pgbench; default SQLite"},
    {.name = "layers",
     .type = KD_OPT_INT,
     .out = &o.layers,
     .arg = "N",
     .help = "farm, forward with --shape: the first N layers; default all",
     .min = 1,
     .max = 1000},
    {.name = "units",
     .type = KD_OPT_STR,
     .out = &o.units,
     .arg = "LIST",
     .help = "farm: the coordinator and its workers, to simulate: machines as for plan (gb300, "
             "spark:8, FILE), or tiles/s and TFLOP/s as 351000/47 (0: encodes nothing)"},
    KD_OPT_ROW_MODEL_DEVICE(&o.device),
    {.name = "blocks",
     .type = KD_OPT_INT,
     .out = &o.blocks,
     .arg = "N",
     .help = "encode, decode on a device: at most so many blocks at once, as on one with fewer "
             "multiprocessors; default as many as fit",
     .min = 1,
     .max = 65535},
    {.name = "lanes",
     .type = KD_OPT_INT,
     .out = &o.lanes,
     .arg = "N",
     .help = "quantize: tensors under way at once, as convert --lanes; default 48",
     .min = 1,
     .max = KD_FARM_LANES},
    {.name = "shape",
     .type = KD_OPT_STR,
     .out = &o.shape,
     .arg = "k3|FILE",
     .help = "forward: no model but random weights in the shape of K3 or a config.json, made on "
             "the device; quantize, calib: whose matrices, default k3"},
    KD_OPT_ROW_CALIB_CLASS(&o.calib_class),
    {.name = "rows",
     .type = KD_OPT_INT,
     .out = &o.rows,
     .arg = "N",
     .help = "calib: tokens of each figure; default 16384 on a device, 256 on the CPU",
     .min = 1,
     .max = 1 << 24},
    {.name = "bpw",
     .type = KD_OPT_NUM,
     .out = &o.bpw,
     .arg = "R",
     .help = "of the shape's experts; default 2.3125",
     .num_min = 1,
     .num_max = 8},
    {.name = "trunk-bpw",
     .type = KD_OPT_NUM,
     .out = &o.trunk_bpw,
     .arg = "R",
     .help = "of the shape's trunk, as in convert; 0: BF16; default 4",
     .num_min = 0,
     .num_max = 8},
    {.name = "head-bpw",
     .type = KD_OPT_NUM,
     .out = &o.head_bpw,
     .arg = "R",
     .help = "of the shape's lm_head; 0: BF16; default 6",
     .num_min = 0,
     .num_max = 8},
    {.name = "account",
     .type = KD_OPT_FLAG,
     .out = &o.account,
     .help = "forward on a device: where the time of a step and of a prefill goes, by the device's "
             "own events"},
    {.name = "exact",
     .type = KD_OPT_FLAG,
     .out = &o.exact,
     .help = "forward of a model: as generate --exact"},
    KD_OPT_ROW_THREADS(&o.threads),
    KD_OPT_ROW_JSON(&o.json),
    {0},
};

/* An option of another benchmark would be a question that gets no answer. */
static int check_options(const char *what, const char *model, struct kd_err *err)
{
    bool farm = !strcmp(what, "farm"), serve = !strcmp(what, "serve"),
         forward = !strcmp(what, "forward"),
         codec = !strcmp(what, "encode") || !strcmp(what, "decode"),
         quantize = !strcmp(what, "quantize"), calib = !strcmp(what, "calib");
    const struct {
        const char *name;
        bool given, fits;
    } used[] = {{"--rate", o.rate, codec || quantize},
                {"--tiles", o.tiles > 0, quantize || !strcmp(what, "encode")},
                {"--require", o.require, serve || farm},
                {"--text", o.texts, serve},
                {"--ledger", o.ledger, farm},
                {"--layers", o.layers > 0, farm || (forward && o.shape)},
                {"--units", o.units, farm},
                {"--device", o.device, forward || codec || quantize || calib},
                {"--blocks", o.blocks > 0, codec && o.device},
                {"--lanes", o.lanes > 0, quantize},
                {"--shape", o.shape, forward || quantize || calib},
                {"--calib-class", o.calib_class, calib},
                {"--rows", o.rows > 0, calib},
                {"--account", o.account, forward && o.device},
                {"--exact", o.exact, forward && !o.shape},
                {"MODEL", model, !farm && !codec && !quantize && !calib}};
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        if (used[i].given && !used[i].fits)
            return kd_fail(err, KD_EUSAGE, "bench %s has no use for %s (see kondense bench -h)",
                           what, used[i].name);
    return 0;
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    static const struct {
        const char *name;
        int (*run)(const struct kd_bench *b, struct kd_err *err);
    } what[] = {{"encode", kd_bench_encode},     {"decode", kd_bench_decode},
                {"quantize", kd_bench_quantize}, {"calib", kd_bench_calib},
                {"forward", kd_bench_forward},   {"serve", kd_bench_serve},
                {"farm", kd_bench_farm}};
    struct kd_buf out;
    struct kd_jw w = {.out = &out};
    struct kd_kern kern;
    struct kd_run with;
    size_t at = 0;
    while (at < sizeof what / sizeof *what && strcmp(what[at].name, argv[0]) != 0)
        at++;
    if (at == sizeof what / sizeof *what)
        return kd_fail(err, KD_EUSAGE,
                       "'%s' is not a benchmark (encode, decode, quantize, calib, forward, serve, "
                       "farm)",
                       argv[0]);
    if (argc > 1 && o.model)
        return kd_fail(err, KD_EUSAGE, "two models: '%s' and --model %s", argv[1], o.model);
    if (check_options(argv[0], argc > 1 ? argv[1] : NULL, err) ||
        kd_cmd_run_open(&with, &kern, o.threads, err))
        return -1;
    struct kd_bench b = {.run = &with,
                         .one = {.kern = &kern},
                         .seconds = o.seconds,
                         .model = argc > 1 ? argv[1] : o.model,
                         .require = o.require,
                         .prompt = o.prompt,
                         .passages = o.passages,
                         .texts = o.texts,
                         .rate = o.rate,
                         .ledger = o.ledger,
                         .units = o.units,
                         .layers = o.layers,
                         .device = o.device,
                         .blocks = o.blocks,
                         .lanes = (int)o.lanes,
                         .shape = o.shape,
                         .calib_class = o.calib_class,
                         .rows = o.rows,
                         .bpw = o.bpw,
                         .trunk_bpw = o.trunk_bpw,
                         .head_bpw = o.head_bpw,
                         .account = o.account,
                         .exact = o.exact,
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
    if (o.json && (!rc || err->code == KD_EGATE)) {
        struct kd_err late;
        if (kd_buf_ok(&out, "result", &late) ||
            fwrite(out.data, 1, out.size_bytes, stdout) != out.size_bytes)
            rc = kd_fail(err, KD_EIO, "the result could not be written");
    }
    kd_buf_release(&out);
    kd_cmd_run_close(&with);
    return rc ? -1 : 0;
}

const struct kd_cmd kd_cmd_bench = {
    .name = "bench",
    .summary =
        "measure encoding, calibration, decoding, the forward pass, the server and the farm's "
        "ledger",
    .args = "encode|decode|quantize|calib|forward|serve|farm [MODEL]",
    .example = "kondense bench encode --rate 2 --json\n"
               "kondense bench encode --device cuda --rate 2 --blocks 48\n"
               "kondense bench quantize --device cuda --rate 2\n"
               "kondense bench calib --device cuda --calib-class fast --rows 131072\n"
               "kondense bench forward --model k3-nano\n"
               "kondense bench forward --device cuda --shape k3 --layers 12\n"
               "kondense bench serve model --require toks=15,ttft=2",
    .opts = opts,
    .args_min = 1,
    .args_max = 2,
    .run = run,
    .details =
        "Every figure is measured five times; the median, the lowest and the highest are "
        "given. Decoding streams its matrices from 256 MB of memory, and the rate of a plain "
        "reader stands beside it as the limit of this machine in the same run. Products with EXL3 "
        "codes are also set against the multipliers: the operations that a weight takes, over the "
        "lanes a cycle that were measured. On a device each stands beside its rate of copying, and "
        "up to 16 tokens of EXL3 on compute capability 9.0 beside the rate at which the loop's "
        "instructions can be issued, where that was counted (2, 2.3125, 3 and 4 bits). Those "
        "called fast are the ones that generate, chat and "
        "serve take, unless told --exact.\n\n"
        "encode and decode with --device measure a device's kernels alone, from codes and tiles "
        "that lie there: tiles a second beside their costs' way through the device's memory, and "
        "products of K3's shapes (and of sixteen experts for a token) beside what its memory gives "
        "a copy.\n\n"
        "quantize takes an expert's projection from its Hessian to packed tiles on a device, again "
        "and again in as many lanes as a conversion has: tiles a second, and of all searches, "
        "those "
        "for the scales too, the share of the bare search that was measured just before; once more "
        "without the start and the end of the run, when lanes are empty.\n\n"
        "calib takes --rows tokens through what a conversion does before it quantizes, at K3's "
        "shapes: the Hessian of an expert's inner rows (two products with 2 bits, then x^T x), "
        "that "
        "of the inputs of a layer's trunk, from here and in class fast from the device's memory "
        "too, and the trunk's widest BF16 product; tokens a second, and the share of what the "
        "multipliers give (in class fast the matrix units, where their rate is known: compute "
        "capability 9.0). Times are of whole calls, copies of rows and sums among them; the "
        "latents "
        "of a layer lie on the device, as in a conversion. An expert's figure is of one expert at "
        "a "
        "time.\n\n"
        "forward on a device also tells what a step of decoding has to move through its memory, "
        "what "
        "that takes at the rate of copying, measured first, and how much more the step took; per "
        "93 layers too, K3's number. With --account it measures nothing of that but the parts of a "
        "layer, then each of their kernels, with none beginning before the one in front is done, "
        "beside the step as it is.\n\n"
        "serve opens a server on a free port and is its client: seconds to the end of an answer of "
        "one token for a prompt of --prompt tokens that nobody has sent before (ttft), and for the "
        "same prompt once more (warm); one answer (toks) and sixteen at once (batch), their ratio, "
        "and what share of their bound the sixteen reach; and overhead, the CPU time outside the "
        "engine's threads over all but the clients'. The bound is what the stored matrices allow: "
        "each is decoded once a step (of the experts those that were chosen) and multiplied for "
        "each token, at the rates of both that are measured between the rounds: the model's own "
        "matrices in their own shapes, all of one kind after the other, with one token and with "
        "sixteen, on the same threads, the shortest of all passes. Attention, states and whatever "
        "else a step does are not in it. --require takes these names with the least (for ttft, "
        "warm and overhead the most) that is good enough.\n\n"
        "farm takes the ledger through all of K3's jobs, claim, beat and result of each, in one "
        "process: with --ledger the same transactions by pgbench stand beside (--require "
        "pgbench=0.5: at least half of its rate), and memory after the last layer beside that "
        "after "
        "layer 10 (memory=5: at most 5 % more). Then how long a farm would take: by the published "
        "plan's own rates, and by those of machines, each told with where its figures come from, "
        "this machine's measured now.",
};
