#include "gate/report.h"

#include "base/show.h"

#include <stdio.h>
#include <string.h>

/* A bar of `width` cells in eighths, value of full; at least a hair for anything above zero. */
static void bar(struct kd_buf *out, double value, double full, int width)
{
    static const char *const part[] = {"",       "\u258f", "\u258e", "\u258d",
                                       "\u258c", "\u258b", "\u258a", "\u2589"};
    double share = full > 0 ? value / full : 0;
    share = share < 0 ? 0 : share > 1 ? 1 : share;
    int eighths = (int)(share * 8 * (double)width + 0.5), used = 0;
    if (!eighths && value > 0)
        eighths = 1;
    for (; eighths >= 8; eighths -= 8, used++)
        kd_buf_str(out, "\u2588");
    if (eighths) {
        kd_buf_str(out, part[eighths]);
        used++;
    }
    for (; used < width; used++)
        kd_buf_char(out, ' ');
}

static void head(struct kd_buf *out, const struct kd_check *c, const struct kd_verdict *v)
{
    char src[40], dst[40], tokens[32];
    kd_show_exact(tokens, sizeof tokens, c->tokens);
    kd_buf_str(out, kd_show_text(dst, sizeof dst, c->dst_name));
    if (*c->src_name)
        kd_buf_printf(out, " against %s", kd_show_text(src, sizeof src, c->src_name));
    if (c->has_text)
        kd_buf_printf(out, ", %s tokens", tokens);
    kd_buf_printf(out, "%s\n", !v->count ? "" : v->pass ? ": PASS" : ": FAIL");
}

static void top(struct kd_buf *out, const struct kd_check *c)
{
    kd_buf_printf(out, "KLD         %.5f nats  [%.5f, %.5f] 95 %% over %lld %s\n", c->kld_mean,
                  c->kld_range.lo, c->kld_range.hi, (long long)c->clusters,
                  c->by_documents ? "documents" : "rows");
    kd_buf_printf(out, "            median %.5f   p95 %.4f   p99 %.4f   max %.3f\n", c->kld_median,
                  c->kld_p95, c->kld_p99, c->kld_max);
    kd_buf_printf(out, "top-1       %.2f %%  [%.2f, %.2f]\n", 100 * c->top1, 100 * c->top1_range.lo,
                  100 * c->top1_range.hi);
    kd_buf_printf(out, "perplexity  %.4f \u2192 %.4f  (\u00d7%.4f)\n", c->ppl_src, c->ppl_dst,
                  c->ppl_src > 0 ? c->ppl_dst / c->ppl_src : 0);
    if (c->control_tokens)
        kd_buf_printf(out, "control     KLD %.5f at %lld positions, %.5f elsewhere\n",
                      c->control_kld, (long long)c->control_tokens, c->plain_kld);
    double most = 0;
    for (int b = 0; b < KD_BANDS; b++)
        most = c->band[b].kld > most ? c->band[b].kld : most;
    for (int b = 0; b < KD_BANDS && c->band[b].tokens; b++) {
        int64_t end = b + 1 < KD_BANDS && c->band[b + 1].tokens ? c->band[b + 1].first : c->cols;
        kd_buf_printf(out, "%s%5lld\u2013%-5lld ", b ? "          " : "position  ",
                      (long long)c->band[b].first, (long long)end - 1);
        bar(out, c->band[b].kld, most, 30);
        kd_buf_printf(out, " %.5f\n", c->band[b].kld);
    }
}

/* One cell a layer, eight steps from 0.8 to 1; neighbours share a cell when there are too many. */
static void routers(struct kd_buf *out, const struct kd_check *c)
{
    static const char *const step[] = {"\u2581", "\u2582", "\u2583", "\u2584",
                                       "\u2585", "\u2586", "\u2587", "\u2588"};
    int64_t group = (c->layer_count + 59) / 60;
    if (c->router_min_layer < 0)
        return;
    kd_buf_printf(out, "router      mean %.2f %%, lowest %.2f %% in layer %lld\n",
                  100 * c->router_mean, 100 * c->router_min, (long long)c->router_min_layer);
    kd_buf_str(out, "  layers    ");
    for (int64_t l = 0; l < c->layer_count; l += group) {
        double low = 1;
        bool moe = false;
        for (int64_t i = l; i < l + group && i < c->layer_count; i++)
            if (c->layer[i].moe) {
                moe = true;
                low = c->layer[i].share < low ? c->layer[i].share : low;
            }
        int i = (int)((low - 0.8) / 0.2 * 8);
        kd_buf_str(out, !moe ? "\u00b7" : step[i < 0 ? 0 : i > 7 ? 7 : i]);
    }
    kd_buf_str(out, "  from 80 to 100 % kept\n");
    kd_buf_printf(out, "stream      relative error %.4f after the last layer\n",
                  c->layer[c->layer_count - 1].stream);
}

static void sizes(struct kd_buf *out, const struct kd_check *c)
{
    char dst[32], src[32];
    if (!c->dst.file_bytes)
        return;
    kd_show_bytes(dst, sizeof dst, c->dst.file_bytes);
    kd_show_bytes(src, sizeof src, c->src_file_bytes);
    kd_buf_str(out, "bits        ");
    if (c->bits_experts > 0)
        kd_buf_printf(out, "experts %.3f (real %.3f)   ", c->bits_experts, c->bits_experts_real);
    kd_buf_printf(out, "trunk %.3f (real %.3f)   file %.3f\n", c->bits_trunk, c->bits_trunk_real,
                  c->bits_file);
    kd_buf_printf(out, "size        %s of %s\n", dst, src);
}

static void flips(struct kd_buf *out, const char *name, const struct kd_flips *f, int64_t n)
{
    double m = (double)n;
    kd_buf_printf(
        out, "%s %.1f %% \u2192 %.1f %%, %lld lost, %lld gained: %+.1f points [%+.1f, %+.1f]\n",
        name, 100 * (double)f->src_right / m, 100 * (double)f->dst_right / m, (long long)f->lost,
        (long long)f->gained, 100 * (double)(f->gained - f->lost) / m, 100 * f->change.lo,
        100 * f->change.hi);
}

static void share(struct kd_buf *out, const char *name, const struct kd_flips *f, int64_t n)
{
    kd_buf_printf(out, "%s %.1f %% [%.1f, %.1f], %lld of %lld\n", name,
                  100 * (double)f->dst_right / (double)n, 100 * f->dst_range.lo,
                  100 * f->dst_range.hi, (long long)f->dst_right, (long long)n);
}

static void remote(struct kd_buf *out, const struct kd_battery_remote *r)
{
    kd_buf_printf(out, "server      %s\n", r->url);
    if (!r->think_wanted)
        return;
    if (r->shows_thinking)
        kd_buf_printf(out,
                      "            shows thinking in %lld of %lld answers where it is expected\n",
                      (long long)r->think_shown, (long long)r->think_wanted);
    else
        kd_buf_str(out, "            shows no thinking: exact means answer and call\n");
}

static void battery(struct kd_buf *out, const struct kd_battery *b)
{
    kd_buf_printf(out, "battery     %lld requests, KLD ", (long long)b->requests);
    if (b->has_kld)
        kd_buf_printf(out, "%.5f over their expected turns\n", b->kld);
    else
        kd_buf_str(out, "not measured: a server tells no logits\n");
    if (b->is_remote)
        remote(out, &b->remote);
    (b->paired ? flips : share)(out, "  exact    ", &b->exact, b->requests);
    (b->paired ? flips : share)(out, "  calls    ", &b->calls, b->requests);
    if (b->is_remote && b->remote.refused)
        kd_buf_printf(out, "  refused   %lld, counted as wrong; first: %s\n",
                      (long long)b->remote.refused, b->remote.why);
}

static void requirements(struct kd_buf *out, const struct kd_verdict *v)
{
    int shown = 0;
    for (int i = 0; i < v->count; i++) {
        const struct kd_require *r = &v->r[i];
        if (r->pass)
            continue;
        if (++shown > 4)
            break;
        if (r->measured)
            kd_buf_printf(out, "FAIL %-13s %.6g, required %s %.6g\n", r->figure, r->value,
                          r->at_most ? "at most" : "at least", r->bound);
        else
            kd_buf_printf(out, "FAIL %-13s not measured, required %s %.6g\n", r->figure,
                          r->at_most ? "at most" : "at least", r->bound);
    }
    int passed = 0;
    for (int i = 0; i < v->count; i++)
        passed += v->r[i].pass;
    if (v->count)
        kd_buf_printf(out, "%s %d of %d requirements met\n", v->pass ? "PASS" : "FAIL", passed,
                      v->count);
}

void kd_report_text(struct kd_buf *out, const struct kd_check *c, const struct kd_verdict *v)
{
    head(out, c, v);
    if (c->has_text) {
        top(out, c);
        routers(out, c);
    }
    sizes(out, c);
    if (c->has_battery)
        battery(out, &c->battery);
    requirements(out, v);
}
