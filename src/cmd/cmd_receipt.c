#include "base/file.h"
#include "base/mem.h"
#include "cmd/cmd.h"
#include "cmd/remote.h"
#include "slice/facts.h"

#include <stdio.h>
#include <string.h>

static struct {
    const char *of, *claim, *require, *json, *html, *gate;
    double declared, tok_s, bandwidth;
    bool hash;
} o;

// clang-format off
static const struct kd_opt opts[] = {
    {"of", 0, KD_OPT_STR, &o.of, "SRC", "the model it is of, local or remote; its heads are read"},
    {"declared-params", 0, KD_OPT_NUM, &o.declared, "N", "parameters that the headline divides by, as 2.8e12 (the source's exact count)", .num_min = 0, .num_max = 1e18},
    {"claim", 0, KD_OPT_STR, &o.claim, "N", "bits for a parameter (1.544) or parameters (2.8T); exit code 3 when the file has another number"},
    {"require", 0, KD_OPT_STR, &o.require, "LIST", "as missing=0.01,routed=0.99,claims,gate; exit code 3 when not met"},
    {"gate", 0, KD_OPT_STR, &o.gate, "FILE", "a check's JSON, or kondense.json (the one in the folder)"},
    {"tok-s", 0, KD_OPT_NUM, &o.tok_s, "N", "tokens a second as somebody states them", .num_min = 0, .num_max = 1e18},
    {"bandwidth", 0, KD_OPT_NUM, &o.bandwidth, "N", "bytes a second of the memory they were read from, as 273e9", .num_min = 0, .num_max = 1e18},
    {"sha256", 0, KD_OPT_FLAG, &o.hash, NULL, "of the file"},
    KD_REMOTE_OPTS,
    {"json", 0, KD_OPT_STR, &o.json, "FILE", "write it as JSON, '-' for standard output"},
    {"html", 0, KD_OPT_STR, &o.html, "FILE", "write it as a page"},
    {0}};
// clang-format on

enum { RUNGS = 16, TEXT_MAX = 16 << 20 };

struct rung {
    struct kd_source *src;
    struct kd_heads *h;
};

static int open_rung(struct rung *r, const char *where, struct kd_err *err)
{
    struct kd_source_opts so;
    if (kd_cmd_source_opts(&so, err) || kd_source_open(&r->src, where, &so, err))
        return -1;
    return kd_heads_open(&r->h, r->src, err) ? kd_wrap(err, "%s", where) : 0;
}

static void close_rung(struct rung *r)
{
    kd_heads_close(r->h);
    kd_source_close(r->src);
}

static int print(const struct kd_facts *f, int count, struct kd_err *err)
{
    struct kd_buf b;
    kd_buf_init(&b, TEXT_MAX);
    int rc = 0;
    if (kd_cmd_screen(o.json, o.html)) {
        if (count == 1)
            kd_facts_text(&b, f);
        else
            for (int i = 0; i < count; i++) {
                kd_buf_str(&b, i ? "\n" : "");
                kd_facts_text(&b, &f[i]);
            }
        if (count > 1)
            kd_facts_ladder(&b, f, count);
        rc = kd_cmd_put(&b, "-", err);
    }
    kd_buf_clear(&b);
    if (!rc && o.json) {
        kd_facts_json(&b, f, count);
        rc = kd_cmd_put(&b, o.json, err);
    }
    kd_buf_clear(&b);
    if (!rc && o.html) {
        kd_facts_html(&b, f, count);
        rc = kd_cmd_put(&b, o.html, err);
    }
    kd_buf_release(&b);
    return rc;
}

static int receipts(struct rung *r, struct kd_facts *f, int count, const char **paths,
                    struct kd_err *err)
{
    struct kd_facts_opts fo = {.declared_params = o.declared,
                               .tok_s = o.tok_s,
                               .bandwidth = o.bandwidth,
                               .gate = o.gate,
                               .hash = o.hash};
    if (o.of && open_rung(&r[RUNGS], o.of, err))
        return -1;
    fo.of = r[RUNGS].h;
    for (int i = 0; i < count; i++)
        if (open_rung(&r[i], paths[i], err) || kd_facts_make(&f[i], r[i].h, &fo, err) ||
            (o.claim && kd_facts_claim(&f[i], o.claim, err)) ||
            (o.require && kd_facts_want(&f[i], o.require, err)))
            return -1;
    if (print(f, count, err))
        return -1;
    for (int i = 0; i < count; i++)
        if (kd_facts_judge(&f[i], err))
            return count > 1 ? kd_wrap(err, "%s", paths[i]) : -1;
    return 0;
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    static struct rung rungs[RUNGS + 1];
    struct kd_facts *f;
    if (kd_cmd_reports_check(o.json, o.html, err) ||
        kd_mem_zero(&f, argc, sizeof *f, "receipts", err))
        return -1;
    int rc = receipts(rungs, f, argc, argv, err);
    for (int i = 0; i < argc; i++)
        kd_facts_release(&f[i]);
    for (int i = 0; i <= RUNGS; i++)
        close_rung(&rungs[i]);
    kd_mem_free(f);
    return rc;
}

static const char details[] =
    "PATH is a GGUF file or set, a folder of safetensors shards, an EXL3 folder, or the same far "
    "away; only heads are read. Several make a ladder.\n\n"
    "declared = 8 x file bytes / parameters declared; real = 8 x file bytes / parameters present; "
    "missing = 1 - present / declared. Parameters are counted from tensor tables: packed codes as "
    "the values they hold, scales as none. What the whole model has comes from --of, else from the "
    "record that a slice carries, else from the widths of a known family.\n\n"
    "--claim N is held against the real bits for a parameter (with T, B or M: against the "
    "parameters present), to the digits given; the declared number is not a property of the file "
    "and satisfies no claim. general.name and general.size_label count as claims when a claim is "
    "given or claims are required. Figures of --require: at most real, declared, missing, "
    "missing.bytes; at least routed, layers, experts, width, used, active (shares of the whole "
    "model); claims; gate.\n\n"
    "The quality gate is that of *kondense check*, in kondense.json; FAIL AS DESIGNED when it "
    "failed and the model's record says that layers or experts were taken out.";

const struct kd_cmd kd_cmd_receipt = {
    "receipt", "what a model's files hold beside what is said of them",
    "PATH...", "kondense receipt k3-12x16.gguf --declared-params 2.8e12 --html card.html",
    opts,      1,
    RUNGS,     run,
    details};
