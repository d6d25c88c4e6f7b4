#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/show.h"
#include "cmd/cmd.h"
#include "cmd/remote.h"
#include "slice/slice.h"

#include <stdio.h>
#include <string.h>

static struct {
    const char *experts, *layers, *requant, *json;
    int64_t used, gap, request, threads;
    bool keep_head, dry, break_blocks, quiet;
} o = {.gap = 1 << 20, .request = 16 << 20};

// clang-format off
static const struct kd_opt opts[] = {
    {"experts", 'e', KD_OPT_STR, &o.experts, "LIST", "N: the first N; 0-15,20: these; top:FILE[:N]: a trace's most used, or JSON {layer: [ids]} (all)"},
    {"layers", 'l', KD_OPT_STR, &o.layers, "LIST", "N: the first N; 0-11,24-35: these; whole blocks of the attention residual (all)"},
    {"experts-used", 'u', KD_OPT_INT, &o.used, "K", "experts of a token (as in the source)", .min = 1, .max = 65536},
    {"requant", 0, KD_OPT_STR, &o.requant, "TYPE", "matrices of a GGUF in this type (as they are)", .choices = "Q1_0|MXFP4|Q8_0|F16|BF16"},
    {"keep-head", 0, KD_OPT_FLAG, &o.keep_head, NULL, "with --requant: output.weight stays as it is"},
    {"break-blocks", 0, KD_OPT_FLAG, &o.break_blocks, NULL, "layers may break blocks of the attention residual"},
    {"dry-run", 'n', KD_OPT_FLAG, &o.dry, NULL, "read heads alone, print the byte plan, write nothing"},
    {"gap", 0, KD_OPT_SIZE, &o.gap, "BYTES", "ranges nearer than this are one request (1M)", .min = 1, .max = 1 << 30},
    {"request", 0, KD_OPT_SIZE, &o.request, "BYTES", "of one request at most (16M)", .min = 65536, .max = 64 << 20},
    KD_REMOTE_OPTS,
    {"threads", 't', KD_OPT_INT, &o.threads, "N", "threads that convert (one for each CPU)", .min = 1, .max = 1024},
    {"json", 0, KD_OPT_STR, &o.json, "FILE", "write plan and result as JSON, '-' for standard output"},
    {"quiet", 'q', KD_OPT_FLAG, &o.quiet, NULL, "no progress line"},
    {0}};
// clang-format on

static bool stopped(void)
{
    return kd_cmd_stop;
}

static void line(const char *what, int64_t bytes, int64_t of)
{
    char text[32], exact[32];
    kd_show_bytes(text, sizeof text, bytes);
    kd_show_exact(exact, sizeof exact, bytes);
    printf("  %-16s %10s  %20s bytes", what, text, exact);
    if (of)
        printf("  %6.2f %%", 100 * (double)bytes / (double)of);
    printf("\n");
}

static void print_plan(const struct kd_slice *s, const struct kd_source *src, const char *dst)
{
    const struct kd_slice_figures *f = kd_slice_figures(s);
    char shown[512], took[32], a[32], b[32];
    printf("%s%s%s\n", kd_show_text(shown, sizeof shown, kd_source_where(src)),
           *kd_source_commit(src) ? " at " : "", kd_source_commit(src));
    printf("keeps   %lld of %lld layers, %lld of %lld experts, %lld of %lld used for a token%s\n",
           (long long)f->layers_kept, (long long)f->layers, (long long)f->experts_kept,
           (long long)f->experts, (long long)f->used_now, (long long)f->used,
           f->blocks_whole ? "" : "; blocks of the attention residual are broken");
    printf("tensors %lld: %lld copied, %lld sliced, %lld dropped\n", (long long)f->tensors,
           (long long)f->copied, (long long)f->sliced, (long long)f->dropped);
    kd_show_exact(a, sizeof a, f->params_kept);
    kd_show_exact(b, sizeof b, f->params);
    printf("weights %s of %s parameters, %.2f %%\n", a, b,
           100 * (double)f->params_kept / (double)f->params);
    if (f->converted)
        printf("convert %lld tensors to %s%s\n", (long long)f->converted, o.requant,
               f->rows_unfit ? "; those whose rows are no whole blocks stay" : "");
    printf("plan    %.16s\n", f->plan_hash);
    line("wanted", f->wanted_bytes, f->source_bytes);
    line("heads (read)", f->head_bytes, f->source_bytes);
    line("gaps, discarded", f->gap_bytes, f->source_bytes);
    line("never requested", f->untouched_bytes, f->source_bytes);
    line("source", f->source_bytes, 0);
    line("disk needed", f->out_bytes, f->source_bytes);
    line("disk free", kd_disk_free_bytes(dst), 0);
    printf("  %-16s %10lld\n", "requests", (long long)f->requests);
    if (kd_remote.rate) {
        kd_clock_human(took, sizeof took,
                       (double)(f->wanted_bytes + f->gap_bytes) / (double)kd_remote.rate);
        printf("  %-16s %10s  at the rate given\n", "time", took);
    }
}

static void print_done(const struct kd_slice_figures *f, const struct kd_source_stats *st,
                       const char *dst, double seconds)
{
    char size[32], took[32];
    kd_show_bytes(size, sizeof size, f->out_bytes);
    kd_clock_human(took, sizeof took, seconds);
    printf("%s: %lld tensors, %s in %s, opened and held against the plan\n", dst,
           (long long)f->out_tensors, size, took);
    if (f->resumed)
        printf("  %lld of %lld requests were there already\n", (long long)f->resumed,
               (long long)f->requests);
    if (st->requests)
        printf("  %lld requests, %lld retries\n", (long long)st->requests, (long long)st->retries);
    if (f->power > 0)
        printf("  converted: relative squared error %.4g against what was read%s\n",
               f->error / f->power, f->resumed ? " (of this run)" : "");
    if (f->zero_spans)
        printf("  warning: %lld ranges are nothing but zeros: the source may have holes\n",
               (long long)f->zero_spans);
    if (f->zero_scales)
        printf("  warning: %lld blocks have so small values that their scale is 0\n",
               (long long)f->zero_scales);
    if (!f->everything)
        printf("  whole-file digest: NOT CHECKED (slice); quality: NOT MEASURED\n"
               "  what is in it: kondense receipt '%s'; licence terms of the source go with it\n",
               dst);
}

static int write_json(const struct kd_slice *s, const struct kd_source *src, bool done,
                      struct kd_err *err)
{
    const struct kd_slice_figures *f = kd_slice_figures(s);
    const struct kd_source_stats *st = kd_source_stats(src);
    struct kd_buf b;
    kd_buf_init(&b, 64 << 20);
    struct kd_jw j = {.out = &b};
    const struct {
        const char *key;
        int64_t value;
    } whole[] = {{"layers", f->layers},
                 {"layers_kept", f->layers_kept},
                 {"experts", f->experts},
                 {"experts_kept", f->experts_kept},
                 {"experts_used", f->used_now},
                 {"source_experts_used", f->used},
                 {"tensors", f->tensors},
                 {"tensors_copied", f->copied},
                 {"tensors_sliced", f->sliced},
                 {"tensors_dropped", f->dropped},
                 {"tensors_converted", f->converted},
                 {"parameters", f->params},
                 {"parameters_kept", f->params_kept},
                 {"source_bytes", f->source_bytes},
                 {"wanted_bytes", f->wanted_bytes},
                 {"head_bytes", f->head_bytes},
                 {"gap_bytes", f->gap_bytes},
                 {"never_requested_bytes", f->untouched_bytes},
                 {"planned_requests", f->requests},
                 {"out_bytes", f->out_bytes}};
    kd_jw_open(&j, NULL, '{');
    kd_jw_str(&j, "source", kd_source_where(src));
    kd_jw_str(&j, "commit", kd_source_commit(src));
    kd_jw_str(&j, "plan_sha256", f->plan_hash);
    kd_jw_bool(&j, "blocks_whole", f->blocks_whole);
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        kd_jw_int(&j, whole[i].key, whole[i].value);
    kd_jw_open(&j, "files", '[');
    for (int64_t i = 0; i < f->out_files; i++) {
        int64_t bytes;
        const char *name = kd_slice_file(s, i, &bytes);
        kd_jw_open(&j, NULL, '{');
        kd_jw_str(&j, "name", name);
        kd_jw_int(&j, "bytes", bytes);
        kd_jw_close(&j, '}');
    }
    kd_jw_close(&j, ']');
    kd_jw_bool(&j, "written", done);
    if (done) {
        kd_jw_int(&j, "requests", st->requests);
        kd_jw_int(&j, "retries", st->retries);
        kd_jw_int(&j, "resumed_requests", f->resumed);
        kd_jw_int(&j, "zero_ranges", f->zero_spans);
        kd_jw_int(&j, "zero_scales", f->zero_scales);
        if (f->power > 0)
            kd_jw_num(&j, "relative_squared_error", f->error / f->power);
    }
    kd_jw_close(&j, '}');
    kd_buf_char(&b, '\n');
    int rc = kd_cmd_put(&b, o.json, err);
    kd_buf_release(&b);
    return rc;
}

static int slice(struct kd_source *src, const char *dst, struct kd_pool *pool, struct kd_err *err)
{
    struct kd_slice *s;
    struct kd_slice_opts so = {
        .keep = {o.experts, o.layers, o.used, o.break_blocks},
        .requant = o.requant ? kd_gguf_type_named(o.requant) : -1,
        .keep_head = o.keep_head,
        .limits = {o.gap, o.request},
        .pool = pool,
        .stopped = stopped,
    };
    double began = kd_clock_s();
    bool text = kd_cmd_screen(o.json, NULL);
    if (kd_slice_open(&s, src, &so, err))
        return -1;
    if (kd_slice_could(s, dst, err)) {
        kd_slice_close(s);
        return -1;
    }
    if (text)
        print_plan(s, src, dst);
    int rc = o.dry ? 0 : kd_slice_run(s, dst, err);
    if (!rc && !o.dry && text)
        print_done(kd_slice_figures(s), kd_source_stats(src), dst, kd_clock_s() - began);
    if (!rc && o.json)
        rc = write_json(s, src, !o.dry, err);
    kd_slice_close(s);
    return rc;
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    struct kd_source_opts so;
    struct kd_source *src;
    struct kd_pool *pool;
    (void)argc;
    kd_progress_quiet(o.quiet);
    if (o.keep_head && !o.requant)
        return kd_fail(err, KD_EUSAGE, "--keep-head goes with --requant");
    if (kd_cmd_put_could(o.json, argv[1], err) || kd_cmd_source_opts(&so, err))
        return -1;
    so.get.piece_bytes = o.request;
    so.gap_bytes = -1; /* the plan has joined them */
    if (kd_source_open(&src, argv[0], &so, err))
        return -1;
    int rc = kd_pool_open(&pool, (int)o.threads, err);
    if (!rc) {
        rc = slice(src, argv[1], pool, err);
        kd_pool_close(pool);
    }
    kd_source_close(src);
    return rc;
}

static const char details[] =
    "SRC is a GGUF file, a split set or a folder of safetensors shards: a local path, "
    "hf:owner/name[@revision][/path] or an https address. Of remote files only the ranges that are "
    "needed are fetched. DST is a .gguf file for a GGUF, else a folder.\n\n"
    "Router rows, correction bias and the experts' matrices follow one sorted list; layers are "
    "renumbered, and what is kept by layer in the metadata is gathered. Layers are kept in whole "
    "blocks of the attention residual (12 layers in K3; the last block of the source may be "
    "short), at least one MLA and one KDA layer. A slice of everything is its source, byte for "
    "byte; a split GGUF comes out merged.\n\n"
    "top:FILE reads a trace (pairs of u32: layer, expert) and keeps each layer's N most used "
    "experts, by default as many as a token uses; or JSON {\"layer\": [ids]}, the same number in "
    "each layer.\n\n"
    "Work is done in DST.part/ with a journal: after a stop or a kill the same command goes on "
    "from there. DST appears when the result opened as a model and every tensor of the source is "
    "accounted for as copied, sliced or dropped. The result carries what was cut from what (keys "
    "slice.*, or slice.json); *kondense receipt* reads it.";

const struct kd_cmd kd_cmd_slice = {
    "slice",
    "cut a smaller model out of a larger one, local or remote, in one pass",
    "SRC DST",
    "kondense slice hf:unsloth/Kimi-K3-GGUF/UD-Q4_K_XL k3-12x16.gguf --layers 12 "
    "--experts 16",
    opts,
    2,
    2,
    run,
    details};
