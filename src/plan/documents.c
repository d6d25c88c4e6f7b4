#include "plan/documents.h"

#include "base/mem.h"
#include "plan/roofline.h"
#include "plan/times.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char PLAN[] = "plan for 8 Sparks or one GB300, Oct 2026";
static const char THREAD[] = "hardware thread of the model page, 2026";
static const char POST[] = "post on 0.0086 bits, Oct 2026";
static const char SERVING[] = "serving specification, Nov 2026";
static const char FARM[] = "farm specification, Nov 2026";

static const double gib = 1073741824.0;

/* Constants that a document uses without saying so: solved from its results (gguf-slicing,
 * Decision 9). */
static const double back_trunk_bits = 4.16, back_margin_gib = 5.7, back_gb300_reserve_gib = 64.7,
                    back_nvfp4_rest_bits = 11.05, back_h100_headroom_gb = 5,
                    back_h100_headroom_more_gb = 8, back_gb300_work_gib = 13.6;

/* What the documents state. */
static const double trunk_gb = 28.9, spark_gb_s = 220, spark_us = 40, hbm_gb_s = 7100 * 0.85,
                    c2c_gb_s = 349, anchor_hours = 43.2, glm_params = 753e9, calib_tokens = 512000;

static struct kd_doc_figure *add(struct kd_doc *d, const char *id, const char *where,
                                 const char *what, double quoted, double tolerance,
                                 const char *unit, double value)
{
    struct kd_doc_figure *f = &d->f[d->count];
    if (d->count < KD_DOC_FIGURES)
        d->count++;
    *f = (struct kd_doc_figure){.id = id,
                                .where = where,
                                .what = what,
                                .quoted = quoted,
                                .tolerance = tolerance,
                                .unit = unit,
                                .value = value};
    return f;
}

__attribute__((format(printf, 2, 3))) static void how(struct kd_doc_figure *f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->formula, sizeof f->formula, fmt, ap);
    va_end(ap);
}

static void right(struct kd_doc_figure *f, double value, const char *reason)
{
    f->corrected = true;
    f->right = value;
    f->reason = reason;
}

/* The model, and our own sizes to set beside the documents'. */
struct facts {
    struct kd_plan_model m;
    struct kd_plan_bytes native, exl3_23, exl3_20;
    double routed, rest, active_rest, expert;
    double spark_hours[2]; /* of a conversion as kondense does it, low and high */
};

static int facts_make(struct facts *x, struct kd_err *err)
{
    struct kd_plan_target native = kd_plan_native(), high = kd_plan_exl3(2.3),
                          low = kd_plan_exl3(2.0);
    if (kd_plan_model_k3(&x->m, err) || kd_plan_count(&x->native, &x->m, &native, err) ||
        kd_plan_count(&x->exl3_23, &x->m, &high, err) ||
        kd_plan_count(&x->exl3_20, &x->m, &low, err))
        return -1;
    struct kd_machine spark;
    struct kd_plan_effort effort;
    if (kd_machine_find(&spark, "spark", err))
        return -1;
    kd_plan_effort(&effort, &x->m, &x->exl3_23, calib_tokens);
    for (int i = 0; i < 2; i++)
        x->spark_hours[i] = kd_plan_hours_one(&effort, &spark, i).total;
    x->routed = (double)x->m.params[KD_K3_ROUTED];
    x->rest = (double)x->m.total_params - x->routed;
    x->expert = (double)x->m.expert_params;
    x->active_rest =
        (double)x->m.active_params - (double)(x->m.moe_layers * x->m.cfg.topk) * x->expert;
    return 0;
}

static void model_figures(struct kd_doc *d, const struct facts *x)
{
    struct kd_doc_figure *f;
    f = add(d, "routed", PLAN, "parameters of the routed experts", 2.72e12, 5e9, "", x->routed);
    how(f, "92 layers x 896 experts x 3 x 3584 x 3072");
    f = add(d, "routed-share", PLAN, "their share", 97.9, 0.06, "%",
            100 * x->routed / (double)x->m.total_params);
    how(f, "%.4g / %.4g", x->routed, (double)x->m.total_params);
    f = add(d, "rest", PLAN, "everything else", 57e9, 5e8, "", x->rest);
    how(f, "%.6g - %.6g", (double)x->m.total_params, x->routed);
    f = add(d, "experts", PLAN, "experts in all", 82432, 0, "", 92.0 * 896);
    how(f, "92 x 896");
    f = add(d, "active", PLAN, "parameters of a token", 104e9, 5e8, "", (double)x->m.active_params);
    how(f, "92 x 16 x %.0f + %.6g (all text weights but the embedding)", x->expert, x->active_rest);
    f = add(d, "native-size", PLAN, "MXFP4 checkpoint", 1454, 0.5, "GiB",
            (double)x->native.tensor_bytes / gib);
    how(f, "%lld bytes / 2^30", (long long)x->native.tensor_bytes);
    f = add(d, "nvfp4-size", PLAN, "NVFP4 checkpoint", 1500, 1, "GiB",
            (x->routed * 4.5 / 8 + x->rest * back_nvfp4_rest_bits / 8) / gib);
    how(f, "(%.4g x 4.5 + %.4g x %.2f) / 8 / 2^30; the %.2f is backed out of the published size",
        x->routed, x->rest, back_nvfp4_rest_bits, back_nvfp4_rest_bits);
}

static void size_figures(struct kd_doc *d, const struct facts *x)
{
    struct kd_doc_figure *f;
    double embed = 2.0 * 163840 * 7168;
    static const char reason[] =
        "scales of every expert, o_proj at 5 bits, latent projections and head at 6, what stays as "
        "stored (2.86 G weights) and the vision tower: what `kondense convert` really writes";
    f = add(d, "size-2.3", PLAN, "EXL3, experts at 2.3 bits", 758, 0.5, "GiB",
            (x->routed * 2.3 / 8 + trunk_gb * 1e9 + embed) / gib);
    how(f, "(%.6g x 2.3 / 8 + 28.9e9 + 2 x 163840 x 7168) / 2^30", x->routed);
    right(f, (double)x->exl3_23.file_bytes / gib, reason);
    f = add(d, "size-2.0", PLAN, "EXL3, experts at 2.0 bits", 663, 0.5, "GiB",
            (x->routed * 2.0 / 8 + trunk_gb * 1e9 + embed) / gib);
    how(f, "(%.6g x 2.0 / 8 + 28.9e9 + 2 x 163840 x 7168) / 2^30", x->routed);
    right(f, (double)x->exl3_20.file_bytes / gib, reason);
    f = add(d, "trunk-read", PLAN, "read for every token outside the experts", 28.9, 0.05, "GB",
            x->active_rest * back_trunk_bits / 8 / 1e9);
    how(f,
        "%.6g weights x %.2f / 8; the %.2f is backed out (trunk 4, head 6, router BF16 give "
        "28.96)",
        x->active_rest, back_trunk_bits, back_trunk_bits);
    right(f, (double)x->exl3_23.trunk / 1e9, "the recipe of exl3 Decision 1, counted by tensor");
    double token = 16.0 * 92 * x->expert * 2.3 / 8 / 1e9;
    f = add(d, "expert-read", PLAN, "experts of a token at 2.3 bits", 14.0, 0.05, "GB", token);
    how(f, "16 x 92 x %.0f x 2.3 / 8", x->expert);
    right(f, x->exl3_23.token_expert / 1e9, "with scales");
    f = add(d, "token-read", PLAN, "a token's bytes in all", 42.9, 0.05, "GB", trunk_gb + token);
    how(f, "28.9 + %.2f", token);
    right(f, ((double)x->exl3_23.trunk + x->exl3_23.token_expert) / 1e9, "both corrected");
    f = add(d, "trunk-fp8", PLAN, "the trunk at FP8", 55, 0.6, "GB", x->active_rest / 1e9);
    how(f, "%.6g x 1 byte", x->active_rest);
    right(f, x->active_rest / 1e9, "55 does not follow: one byte a weight makes 55.6");
    f = add(d, "trunk-bf16", PLAN, "the trunk at BF16", 107, 4.2, "GB", x->active_rest * 2 / 1e9);
    how(f, "%.6g x 2 bytes", x->active_rest);
    right(f, x->active_rest * 2 / 1e9, "107 does not follow: two bytes a weight make 111.1");
}

static void spark_figures(struct kd_doc *d, const struct facts *x)
{
    struct kd_doc_figure *f;
    double room = 115.7 - 7 - 6 - back_margin_gib, token = 16.0 * 92 * x->expert * 2.3 / 8 / 1e9;
    double rank = (trunk_gb + token) / 8, read_ms = rank / spark_gb_s * 1e3,
           net_ms = 186 * spark_us / 1e3;
    f = add(d, "spark-room", PLAN, "room for weights on a Spark", 97, 0.5, "GiB", room);
    how(f, "115.7 - 7 (cache) - 6 (work) - %.1f (stated nowhere, backed out)", back_margin_gib);
    f = add(d, "sparks-room", PLAN, "on eight", 776, 4, "GiB", 8 * room);
    how(f, "8 x %.1f", room);
    f = add(d, "spark-weights", PLAN, "weights of each of eight Sparks", 94.7, 0.15, "GiB",
            758.0 / 8);
    how(f, "758 / 8");
    right(f, (double)kd_plan_cut_of(&x->exl3_23, &x->m, 8).bytes / gib,
          "whole 128-blocks to each device, the embedding and small matrices in full on all, and "
          "the true size");
    f = add(d, "rank-read", PLAN, "read for a token on each Spark", 5.36, 0.005, "GB", rank);
    how(f, "(28.9 + %.2f) / 8", token);
    right(f, rank + 0.19 * 7 / 8,
          "with the latent projections and the router cut as well, which needs more collectives "
          "(below); q_a and kv_a stay whole");
    f = add(d, "rank-ms", PLAN, "reading it", 24.4, 0.05, "ms", read_ms);
    how(f, "%.3f GB / 220 GB/s", rank);
    f = add(d, "net-ms", PLAN, "collectives", 7.4, 0.05, "ms", net_ms);
    how(f, "186 x 40 us");
    right(
        f, 278 * spark_us / 1e3,
        "5.36 GB a rank needs every projection cut: 370 collectives, 92 of them hidden; and 40 us "
        "is a figure of two Sparks, nobody has published eight");
    f = add(d, "spark-tok", PLAN, "ceiling on eight Sparks", 31, 0.5, "tok/s",
            1e3 / (read_ms + net_ms));
    how(f, "1 / (%.1f + %.2f ms)", read_ms, net_ms);
    right(f, 25.9, "serving appendix B, latents cut, 40 us: 38.6 ms; 32 at 15 us, 18 at 100 us");
}

static void gb300_figures(struct kd_doc *d, const struct facts *x)
{
    struct kd_doc_figure *f;
    double experts_gib = x->routed * 2.0 / 8 / gib, token = 16.0 * 92 * x->expert * 2 / 8 / 1e9;
    double trunk_gib = (trunk_gb * 1e9 + 2.0 * 163840 * 7168) / gib;
    f = add(d, "gb300-hbm", PLAN, "GPU memory of a GB300", 250.7, 0.05, "GiB", 250.7);
    how(f, "an input of the document, measured there");
    f = add(d, "gb300-room", PLAN, "room for weights on a GB300", 680, 0.5, "GiB",
            250.7 + 494 - back_gb300_reserve_gib);
    how(f, "250.7 + 494 - %.1f (stated nowhere, backed out; its figure's own 62 gives 682.7)",
        back_gb300_reserve_gib);
    double hot = 250.7 - trunk_gib - 7 - back_gb300_work_gib;
    f = add(d, "gb300-hot", PLAN, "experts in HBM at 2.0 bits", 201, 0.6, "GiB", hot);
    how(f, "250.7 - %.1f (trunk, embedding) - 7 (cache) - %.1f (backed out); %.0f %% of %.1f",
        trunk_gib, back_gb300_work_gib, 100 * hot / experts_gib, experts_gib);
    f = add(d, "gb300-cold", PLAN, "the others, in Grace memory", 432, 1, "GiB", experts_gib - 201);
    how(f, "%.1f - 201", experts_gib);
    double fast = (trunk_gb + 0.75 * token) / hbm_gb_s, slow = 0.25 * token / c2c_gb_s;
    f = add(d, "gb300-hbm-ms", PLAN, "reads from HBM", 6.3, 0.05, "ms", fast * 1e3);
    how(f, "(28.9 + 0.75 x %.3f) / (7100 x 0.85 GB/s)", token);
    f = add(d, "gb300-c2c-ms", PLAN, "reads over C2C", 8.7, 0.05, "ms", slow * 1e3);
    how(f, "0.25 x %.3f / 349 GB/s", token);
    f = add(d, "gb300-tok", PLAN, "ceiling on a GB300", 67, 0.5, "tok/s", 1 / (fast + slow));
    how(f, "1 / (%.2f + %.2f ms)", fast * 1e3, slow * 1e3);
    right(
        f, 52.8,
        "0.75 of the reads from 32 % of the experts is for one domain; 0.635 was measured on mixed "
        "text: 52.8 one after the other, 78.7 with both memories at once; with almost no skew "
        "(0.35) 35.4");
}

static void convert_figures(struct kd_doc *d, const struct facts *x)
{
    struct kd_doc_figure *f;
    double ratio = (double)x->m.total_params / glm_params,
           h_bytes = 4.0 * (3584.0 * 3584 + 3072.0 * 3072);
    double forward = 2 * calib_tokens * x->routed,
           hessian = 2 * calib_tokens * 82432 * (3584.0 * 3584 + 3072.0 * 3072);
    double one_lo = anchor_hours * 3.69 * 0.65, one_hi = anchor_hours * 3.69;
    f = add(d, "scale", PLAN, "K3's parameters over GLM-5.3's", 3.69, 0.005, "", ratio);
    how(f, "%.6g / 753e9", (double)x->m.total_params);
    f = add(d, "spark-hours-low", PLAN, "conversion on one GB10, from", 104, 0.5, "h", one_lo);
    how(f, "43.2 h x 3.69 x 0.65");
    right(f, x->spark_hours[0], "the same, low end");
    f = add(d, "spark-hours-high", PLAN, "to", 159, 0.5, "h", one_hi);
    how(f, "43.2 h x 3.69 x 1.0");
    right(
        f, x->spark_hours[1],
        "the search costs the same at every rate; with a faster kernel (exl3 5.4), one expert at a "
        "time in memory and shared Hessians one Spark is enough (estimate, high end)");
    f = add(d, "gb300-hours-low", PLAN, "on one GB300, from", 35, 0.55, "h", one_lo / 3);
    how(f, "%.1f / 3", one_lo);
    f = add(d, "gb300-hours-high", PLAN, "to", 64, 0.5, "h", one_hi / 2.5);
    how(f, "%.1f / 2.5", one_hi);
    f = add(d, "farm-hours-low", PLAN, "GB300 and 8 Sparks, from", 14, 0.5, "h",
            0.15 * one_lo / 3 + 0.85 * one_lo / 11 + 0.5);
    how(f, "0.15 x %.1f + 0.85 x %.1f / 11 + 0.5", one_lo / 3, one_lo);
    f = add(d, "farm-hours-high", PLAN, "to", 28, 0.5, "h",
            0.25 * one_hi / 2.5 + 0.75 * one_hi / 10.5 + 0.5);
    how(f, "0.25 x %.1f + 0.75 x %.1f / 10.5 + 0.5", one_hi / 2.5, one_hi);
    right(f, 16, "streaming experts to the farm while calibration goes on: 10 to 16 h (farm 0)");
    f = add(d, "pilot-low", PLAN, "one layer on a GB300, from", 23, 0.6, "min",
            one_lo / 3 / 92 * 60);
    how(f, "%.1f h / 92", one_lo / 3);
    f = add(d, "pilot-high", PLAN, "to", 42, 0.5, "min", one_hi / 2.5 / 92 * 60);
    how(f, "%.1f h / 92", one_hi / 2.5);
    f = add(d, "calib-flop", PLAN, "calibrating all experts", 4.67, 0.005, "EFLOP",
            (forward + hessian) / 1e18);
    how(f, "2 x 512000 x (%.4g + 82432 x (3584^2 + 3072^2)) = %.2f + %.2f", x->routed,
        forward / 1e18, hessian / 1e18);
    right(f, 2.66,
          "gate and up share one Hessian a layer; w2's output is needed for routed tokens "
          "only: farm Decision 4");
    f = add(d, "layer-bf16", PLAN, "a layer's experts in BF16", 55, 0.2, "GiB",
            896 * x->expert * 2 / gib);
    how(f, "896 x %.0f x 2", x->expert);
    f = add(d, "layer-hessians", PLAN, "a layer's Hessians in fp32", 74, 0.5, "GiB",
            896 * h_bytes / gib);
    how(f, "896 x 4 x (3584^2 + 3072^2)");
    right(f, 896 * 4 * 3072.0 * 3072 / gib,
          "one input Hessian for all experts; encoded one expert "
          "at a time, only one of them exists at once");
    f = add(d, "layer-work", PLAN, "a layer's working set", 190, 6.5, "GiB",
            (896 * x->expert * 2 + 896 * h_bytes + 8 * calib_tokens * 7168 * 2) / gib);
    how(f, "55.1 + 74.4 + 8 x 512000 x 7168 x 2 / 2^30 (54.7)");
    right(f, 32,
          "`kondense convert` takes one expert at a time: under 32 GiB of memory, streams "
          "on disk");
    f = add(d, "layer-net", PLAN, "a layer over the network", 130, 0.6, "GiB",
            (896 * x->expert * 2 + 896 * h_bytes) / gib);
    how(f, "896 x (%.0f x 2 + 4 x (3584^2 + 3072^2))", x->expert);
    right(f, 30.4, "MXFP4 weights, one shared input Hessian, packed triangles: farm 3");
}

static void thread_figures(struct kd_doc *d, const struct facts *x)
{
    struct kd_doc_figure *f;
    static const struct {
        const char *id, *what;
        double bytes, quoted;
    } rows[] = {{"thread-bf16", "2.8T x 2 bytes x 1.25", 2, 5600},
                {"thread-int8", "2.8T x 1 byte x 1.25", 1, 2800},
                {"thread-int4", "2.8T x 0.55 byte x 1.25", 0.55, 1540},
                {"thread-q2k", "2.8T x 0.35 byte x 1.25", 0.35, 980}};
    double native = (double)x->native.tensor_bytes / 1e9;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        f = add(d, rows[i].id, THREAD, rows[i].what, rows[i].quoted, 0.5, "GB",
                2800 * rows[i].bytes);
        how(f, "2800 x %.2f; the factor 1.25 is printed and not applied (with it: %.0f)",
            rows[i].bytes, 2800 * rows[i].bytes * 1.25);
        right(f, native,
              "the released weights are MXFP4: counted, not estimated; overheads are "
              "added, not a factor");
    }
    f = add(d, "thread-mxfp4", THREAD, "2.8T x 0.5 byte x 1.25", 1750, 0.5, "GB",
            2800 * 0.5 * 1.25);
    how(f, "2800 x 0.5 x 1.25");
    right(f, native,
          "17 bytes for 32 values, 16 bits for the rest: 1,446.5 + 114.4; caches are "
          "27,648 B a token and 464.6 MB a sequence");
    f = add(d, "h100-21", THREAD, "H100 80 GB needed", 21, 0.5, "cards",
            (double)(int)(native / (80 - back_h100_headroom_gb) + 0.999999));
    how(f, "%.2f / (80 - %.0f) = %.2f, rounded up; headroom backed out", native,
        back_h100_headroom_gb, native / (80 - back_h100_headroom_gb));
    f = add(d, "h100-22", THREAD, "H100 80 GB needed, priced there", 22, 0.5, "cards",
            (double)(int)(native / (80 - back_h100_headroom_more_gb) + 0.999999));
    how(f, "%.2f / (80 - %.0f) = %.2f, rounded up; headroom backed out", native,
        back_h100_headroom_more_gb, native / (80 - back_h100_headroom_more_gb));
    f = add(d, "thread-8-h100", THREAD, "8 x H100 80 GB for 1,540 GB", 640, 0.5, "GB", 8 * 80);
    how(f, "8 x 80");
    right(f, native, "640 is less than 1,540: at least 20 cards hold the weights alone");
    f = add(d, "thread-experts", THREAD, "experts of each of 8 GPUs", 112, 0.5, "", 896.0 / 8);
    how(f, "896 / 8 in each layer");
    right(f, 112 * 92 * 17547264.0 / 1e9, "GB on each GPU: 112 x 92 layers x 17.55 MB");
    f = add(d, "thread-16-sparks", THREAD, "weights of each of 16 Sparks", 97.6, 0.05, "GB",
            native / 16);
    how(f, "%.2f / 16; stated as possible there, the figure is gguf-slicing 6.1's", native);
    f = add(d, "post-bandwidth", POST, "weight traffic at 11.27 tok/s", 176, 0.5, "GB/s",
            15.64 * 11.27);
    how(f, "15.64 GB x 11.27 tok/s");
    f = add(d, "post-declared", POST, "bits of the file over all parameters", 0.0086, 0.00005,
            "bits", 8 * 3010550816.0 / 2.8e12);
    how(f, "8 x 3,010,550,816 / 2.8e12");
    right(f, 8 * 3010550816.0 / 15599198864.0, "over the parameters that are in the file");
    f = add(d, "post-missing", POST, "weights that are missing", 99.4, 0.05, "%",
            100 * (1 - 15599198864.0 / 2.8e12));
    how(f, "1 - 15,599,198,864 / 2.8e12");
}

/* Serving 3.1, 7.3 and farm 6.2: this project's own tables, from their own formulas. */
static void own_figures(struct kd_doc *d, const struct facts *x)
{
    struct kd_doc_figure *f;
    double state = (double)kd_plan_state_bytes(&x->m),
           cache = (double)kd_plan_cache_token_bytes(&x->m, 2),
           token = 16.0 * 92 * x->expert / 8 / 1e9;
    f = add(d, "cache-token", SERVING, "latent cache of a token, BF16", 27648, 0, "B", cache);
    how(f, "24 layers x (512 + 64) x 2");
    f = add(d, "cache-256k", SERVING, "of 256K tokens", 6.75, 0.005, "GiB", cache * 262144 / gib);
    how(f, "27,648 x 262,144 / 2^30");
    f = add(d, "state", SERVING, "KDA state of a sequence", 464.6, 0.05, "MB", state / 1e6);
    how(f, "69 x (96 x 128 x 128 + 3 x 3 x 12288) x 4");
    static const struct {
        const char *id;
        double us, quoted;
    } net[] = {{"sweep-12", 12, 36.9}, {"sweep-25", 25, 33.9},   {"sweep-40", 40, 30.9},
               {"sweep-50", 50, 29.3}, {"sweep-100", 100, 23.0}, {"sweep-200", 200, 16.1},
               {"sweep-415", 415, 9.8}};
    double rank_ms = (trunk_gb + token * 2.3) / 8 / spark_gb_s * 1e3;
    double state_ms = 2 * state / 8 / (spark_gb_s * 1e9) * 1e3;
    for (size_t i = 0; i < sizeof net / sizeof *net; i++) {
        f = add(d, net[i].id, SERVING, "eight Sparks, 186 collectives", net[i].quoted, 0.06,
                "tok/s", 1e3 / (rank_ms + state_ms + 186 * net[i].us / 1e3));
        how(f, "1 / (%.2f + %.2f (state) + 186 x %.0f us)", rank_ms, state_ms, net[i].us);
    }
    static const struct {
        const char *id;
        double read, colls, at40, at20;
    } plans[] = {{"plan-a", 8.55, 186, 46.3, 42.6},
                 {"plan-b", 6.44, 186, 36.8, 33.0},
                 {"plan-c", 5.36, 278, 35.6, 29.9}};
    double latent_gb = 4.727 * back_trunk_bits / 8, router_gb = 1.18;
    double read[] = {rank_ms * spark_gb_s / 1e3 + (latent_gb + router_gb) * 7 / 8,
                     rank_ms * spark_gb_s / 1e3 + latent_gb / 2 * 7 / 8,
                     rank_ms * spark_gb_s / 1e3};
    for (size_t i = 0; i < 3; i++) {
        f = add(d, plans[i].id, FARM, "read on each Spark by plan A, B, C", plans[i].read, 0.015,
                "GB", read[i]);
        how(f, "(28.9 + 13.98) / 8 + what is replicated x 7/8: latent %.2f GB, router %.2f GB",
            latent_gb, router_gb);
    }
    f = add(d, "plan-a-40", FARM, "a token by plan A at 40 us", 46.3, 0.06, "ms",
            read[0] / spark_gb_s * 1e3 + 186 * 0.040);
    how(f, "%.2f GB / 220 GB/s + 186 x 40 us", read[0]);
    f = add(d, "plan-b-40", FARM, "by plan B, 92 gathers hidden behind 39 us", 36.8, 0.12, "ms",
            read[1] / spark_gb_s * 1e3 + 186 * 0.040 + 92 * 0.001);
    how(f, "%.2f GB / 220 GB/s + 186 x 40 us + 92 x (40 - 39) us", read[1]);
    f = add(d, "plan-c-20", FARM, "by plan C at 20 us", 29.9, 0.06, "ms",
            read[2] / spark_gb_s * 1e3 + 278 * 0.020);
    how(f, "%.2f GB / 220 GB/s + 278 x 20 us", read[2]);
    f = add(d, "ship", FARM, "inputs of all layers to 8 workers", 41, 0.5, "min",
            92 * 8 * calib_tokens * 3584 * 2 / 1e9 / 1.087 / 60);
    how(f, "92 x 8 x 3.67 GB / 1.087 GB/s (10 GbE)");
}

int kd_doc_make(struct kd_doc *d, struct kd_err *err)
{
    struct facts *x;
    memset(d, 0, sizeof *d);
    if (kd_mem_zero(&x, 1, sizeof *x, "figures", err))
        return -1;
    int rc = facts_make(x, err);
    if (!rc) {
        model_figures(d, x);
        size_figures(d, x);
        spark_figures(d, x);
        gb300_figures(d, x);
        convert_figures(d, x);
        thread_figures(d, x);
        own_figures(d, x);
    }
    kd_mem_free(x);
    return rc;
}

const struct kd_doc_figure *kd_doc_find(const struct kd_doc *d, const char *id)
{
    for (int i = 0; i < d->count; i++)
        if (!strcmp(d->f[i].id, id))
            return &d->f[i];
    return NULL;
}

/* Serving appendix B, its constants. */
static const struct kd_roof appendix = {.trunk_gb = 28.9,
                                        .state_gb = 0.4646,
                                        .cache_token_kb = 27.648,
                                        .experts_over_topk = 56,
                                        .hidden = 7168,
                                        .row_sums = 186,
                                        .linear_gflop = 208,
                                        .context_mflop = 1.47,
                                        .ranks = 1,
                                        .link_gb_s = 25,
                                        .payload_bytes = 43008,
                                        .sequences = 1,
                                        .accept = {0.8, 0.65}};

static void plan_one(struct kd_doc_plan *p, struct kd_roof r, double bpw)
{
    double weights = 3.0 * 3584 * 3072 * 92;
    r.token_expert_gb = weights * 16 * bpw / 8 / 1e9;
    r.all_expert_gb = weights * 896 * bpw / 8 / 1e9;
    struct kd_roof_step s = kd_roof_decode(&r);
    p->got_ms = s.total_ms;
    p->got_tok_s = s.tokens_s;
    p->got_prefill = kd_roof_prefill(&r, 4096, 8192).tokens_s;
    struct kd_roof far = r, draft = r;
    far.context = 262144;
    p->got_tok_s_256k = kd_roof_decode(&far).tokens_s;
    draft.drafts = 2;
    p->got_tok_s_draft = kd_roof_decode(&draft).tokens_s;
}

static struct kd_roof sparks(double collectives, double us, double replicated, double fixed)
{
    struct kd_roof r = appendix;
    r.ranks = 8;
    r.gb_s = 220;
    r.tflops = 15.5;
    r.collectives = collectives;
    r.collective_us = us;
    r.replicated_gb = replicated;
    r.fixed_ms = fixed;
    return r;
}

/* Shares of reads and of bytes, tier by tier. */
static struct kd_roof tiered(double gb_s, double tflops, const double share[3],
                             const double store[3], const double speed[3], bool overlap)
{
    struct kd_roof r = appendix;
    r.gb_s = gb_s;
    r.tflops = tflops;
    r.tiers = 3;
    r.overlap = overlap;
    for (int i = 0; i < 3; i++) {
        r.tier_share[i] = share[i];
        r.tier_store[i] = store[i];
        r.tier_gb_s[i] = speed[i];
    }
    return r;
}

void kd_doc_plans(struct kd_doc_plan out[KD_DOC_PLANS])
{
    static const struct kd_doc_plan printed[KD_DOC_PLANS] = {
        {.name = "seed 8 Sparks", 32.9, 30.4, 15.2, 46.9, 564},
        {.name = "8 Sparks, cut latents, 40us", 38.6, 25.9, 14.0, 41.7, 564},
        {.name = "8 Sparks, cut latents, 15us", 31.0, 32.2, 15.6, 48.2, 564},
        {.name = "8 Sparks, replicated latents", 43.4, 23.0, 13.1, 38.7, 564},
        {.name = "seed GB300", 15.2, 66.0, 61.1, 66.2, 2996},
        {.name = "GB300 h=.635 overlap", 12.7, 78.7, 78.7, 61.9, 2996},
        {.name = "PC 5090+256GB+2xNVMe", 259.9, 3.8, 3.8, 3.2, 213},
        {.name = "PC 64GB Gen4 trunk in RAM", 1783.6, 0.6, 0.5, 0.5, 9}};
    const double gb300[3] = {6035, 349, 1}, pc[3] = {1500, 160, 25}, small[3] = {60, 6.5, 1};
    memcpy(out, printed, sizeof printed);
    plan_one(&out[0], sparks(186, 40, 0, 0), 2.3);
    plan_one(&out[1], sparks(277, 40, 0.19, 1), 2.3);
    plan_one(&out[2], sparks(277, 15, 0.19, 0.4), 2.3);
    plan_one(&out[3], sparks(186, 40, 2.65, 0), 2.3);
    plan_one(&out[4],
             tiered(6035, 1000, (double[]){0.75, 0.25, 0}, (double[]){0.32, 0.68, 0}, gb300, false),
             2.0);
    plan_one(
        &out[5],
        tiered(6035, 1000, (double[]){0.635, 0.365, 0}, (double[]){0.32, 0.68, 0}, gb300, true),
        2.0);
    plan_one(&out[6],
             tiered(1500, 100, (double[]){0, 0.6, 0.4}, (double[]){0, 0.35, 0.65}, pc, false), 2.0);
    plan_one(&out[7],
             tiered(60, 2, (double[]){0.35, 0.65, 0}, (double[]){0.05, 0.95, 0}, small, false),
             2.0);
}
