/* The page: cards, tables, and what they stand on. Plots are in report_plots.c. */
#include "gate/report_plots.h"

#include "base/show.h"

#include <stdio.h>
#include <string.h>

const char kd_report_style[] =
    ":root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1d1f23;--dim:#646a73;"
    "--line:#e3e4e6;--grid:#ececee;--a:#2563a8;--b:#c2572b;--good:#1e7b45;--bad:#b3261e;"
    "--soft:#2563a81f}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#15171a;--card:#1d2024;--ink:#e7e8ea;"
    "--dim:#9aa1ab;--line:#33373d;--grid:#2a2e33;--a:#6ba6e8;--b:#e98a5c;--good:#5cc48a;"
    "--bad:#f0857d;--soft:#6ba6e82b}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--bg);color:var(--ink);"
    "font:15px/1.5 system-ui,-apple-system,\"Segoe UI\",Roboto,sans-serif}\n"
    "main{max-width:1120px;margin:0 auto;padding:28px 20px 48px}\n"
    "h1{font-size:24px;line-height:1.25;margin:0;font-weight:650;overflow-wrap:anywhere}\n"
    "h2{font-size:15px;margin:0 0 2px;font-weight:650}\n"
    ".meta,.note{color:var(--dim);font-size:13px;margin:4px 0 0;overflow-wrap:anywhere}\n"
    ".note{margin:0 0 8px}\n"
    ".badge{display:inline-block;vertical-align:3px;margin-left:10px;padding:1px 11px;"
    "border-radius:99px;font-size:13px;font-weight:650;color:var(--card)}\n"
    ".pass{background:var(--good)}.fail{background:var(--bad)}\n"
    ".good{color:var(--good)}.bad{color:var(--bad);font-weight:650}\n"
    ".cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(160px,1fr));gap:12px;"
    "margin:22px 0 12px}\n"
    ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));"
    "gap:12px}\n"
    ".card,.plot{background:var(--card);border:1px solid var(--line);border-radius:10px;"
    "padding:13px 16px}\n"
    ".plot{min-width:0;overflow-x:auto}\n"
    ".card .k{color:var(--dim);font-size:13px}\n"
    ".card .v{font-size:25px;font-weight:650;line-height:1.3;font-variant-numeric:tabular-nums}\n"
    ".card .s{color:var(--dim);font-size:12.5px;font-variant-numeric:tabular-nums}\n"
    "table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}\n"
    "th,td{text-align:right;padding:5px 0 5px 14px;border-bottom:1px solid var(--line)}\n"
    "th:first-child,td:first-child{text-align:left;padding-left:0}\n"
    "th{color:var(--dim);font-weight:500;font-size:13px}\n"
    "tr:last-child td{border-bottom:0}\n"
    "svg{display:block;width:100%;height:auto}\n"
    "svg text{font:11px system-ui,sans-serif;fill:var(--dim)}\n"
    ".grid{stroke:var(--grid)}.axis{stroke:var(--line)}\n"
    ".fa{fill:var(--a)}.fb{fill:var(--b)}.la{stroke:var(--a);fill:none;stroke-width:2}\n"
    ".bound{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:5 4}\n"
    ".mark{stroke:var(--b);stroke-width:1.5}\n"
    ".soft{fill:var(--soft)}\n"
    ".key{display:inline-block;width:10px;height:10px;border-radius:2px;margin:0 5px 0 12px}\n"
    ".wide{grid-column:1/-1}\n"
    "@media print{body{background:#fff}.card,.plot{break-inside:avoid}}\n";

static void card(struct kd_buf *out, const char *key, const char *value, const char *small)
{
    kd_buf_str(out, "<div class=\"card\"><div class=\"k\">");
    kd_html_text(out, key);
    kd_buf_str(out, "</div><div class=\"v\">");
    kd_html_text(out, value);
    kd_buf_str(out, "</div><div class=\"s\">");
    kd_html_text(out, small);
    kd_buf_str(out, "</div></div>\n");
}

static void title(struct kd_buf *out, const struct kd_check *c)
{
    kd_html_text(out, c->dst_name);
    if (*c->src_name) {
        kd_buf_str(out, " against ");
        kd_html_text(out, c->src_name);
    }
}

static void head(struct kd_buf *out, const struct kd_check *c, const struct kd_verdict *v)
{
    kd_buf_str(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                    "<title>");
    title(out, c);
    kd_buf_str(out, "</title>\n<style>\n");
    kd_buf_str(out, kd_report_style);
    kd_buf_str(out, "</style>\n</head>\n<body>\n<main>\n<h1>");
    title(out, c);
    if (v->count)
        kd_buf_printf(out, "<span class=\"badge %s\">%s</span>", v->pass ? "pass" : "fail",
                      v->pass ? "PASS" : "FAIL");
    kd_buf_str(out, "</h1>\n<p class=\"meta\">");
    if (c->has_text) {
        char tokens[32];
        kd_show_exact(tokens, sizeof tokens, c->tokens);
        kd_buf_printf(out,
                      "%s positions: %lld rows of %lld tokens out of %lld document%s; text sha256 "
                      "%.12s\u2026; ",
                      tokens, (long long)c->rows, (long long)c->cols, (long long)c->docs,
                      c->docs == 1 ? "" : "s", c->text_sha256);
    }
    kd_buf_str(out, "Kondense " KD_VERSION "</p>\n");
}

static void share_card(struct kd_buf *out, const char *key, const struct kd_flips *f, int64_t n)
{
    char v[48], s[96];
    snprintf(v, sizeof v, "%.1f %%", 100 * (double)f->dst_right / (double)n);
    snprintf(s, sizeof s, "%lld of %lld; 95 %%: %.1f to %.1f", (long long)f->dst_right,
             (long long)n, 100 * f->dst_range.lo, 100 * f->dst_range.hi);
    card(out, key, v, s);
}

static void cards(struct kd_buf *out, const struct kd_check *c)
{
    char v[48], s[96], a[32], b[32];
    kd_buf_str(out, "<div class=\"cards\">\n");
    if (c->has_text) {
        snprintf(v, sizeof v, "%.4f", c->kld_mean);
        snprintf(s, sizeof s, "nats; 95 %%: %.4f to %.4f", c->kld_range.lo, c->kld_range.hi);
        card(out, "KLD, mean", v, s);
        snprintf(v, sizeof v, "%.2f %%", 100 * c->top1);
        snprintf(s, sizeof s, "95 %%: %.2f to %.2f", 100 * c->top1_range.lo,
                 100 * c->top1_range.hi);
        card(out, "Same top-1", v, s);
        snprintf(v, sizeof v, "\u00d7%.4f", c->ppl_src > 0 ? c->ppl_dst / c->ppl_src : 0);
        snprintf(s, sizeof s, "%.3f \u2192 %.3f", c->ppl_src, c->ppl_dst);
        card(out, "Perplexity", v, s);
    }
    if (c->has_text && c->router_min_layer >= 0) {
        snprintf(v, sizeof v, "%.2f %%", 100 * c->router_mean);
        snprintf(s, sizeof s, "lowest %.2f %%, layer %lld", 100 * c->router_min,
                 (long long)c->router_min_layer);
        card(out, "Router agreement", v, s);
    }
    if (c->bits_experts > 0) {
        snprintf(v, sizeof v, "%.3f", c->bits_experts);
        snprintf(s, sizeof s, "%.3f with scales; trunk %.2f", c->bits_experts_real, c->bits_trunk);
        card(out, "Bits, experts", v, s);
    }
    if (c->dst.file_bytes) {
        kd_show_bytes(a, sizeof a, c->dst.file_bytes);
        kd_show_bytes(b, sizeof b, c->src_file_bytes);
        snprintf(s, sizeof s, "of %s; %.3f bits a weight", b, c->bits_file);
        card(out, "Size", a, s);
    }
    if (c->has_battery && c->battery.is_remote) {
        share_card(out, "Exact turns", &c->battery.exact, c->battery.requests);
        share_card(out, "Valid tool calls", &c->battery.calls, c->battery.requests);
    }
    kd_buf_str(out, "</div>\n");
}

static void requirements(struct kd_buf *out, const struct kd_verdict *v)
{
    if (!v->count)
        return;
    kd_buf_str(out, "<section class=\"plot wide\"><h2>Requirements</h2>\n<table><tr><th>figure</th>"
                    "<th>required</th><th>measured</th><th>verdict</th></tr>\n");
    for (int i = 0; i < v->count; i++) {
        const struct kd_require *r = &v->r[i];
        kd_buf_str(out, "<tr><td>");
        kd_html_text(out, r->figure);
        kd_buf_printf(out, "</td><td>%s %.6g</td>", r->at_most ? "\u2264" : "\u2265", r->bound);
        if (r->measured)
            kd_buf_printf(out, "<td>%.6g</td>", r->value);
        else
            kd_buf_str(out, "<td>not measured</td>");
        kd_buf_printf(out, "<td class=\"%s\">%s</td></tr>\n", r->pass ? "good" : "bad",
                      r->pass ? "pass" : "FAIL");
    }
    kd_buf_str(out, "</table></section>\n");
}

static void sizes(struct kd_buf *out, const struct kd_check *c)
{
    const struct kd_sizes *d = &c->dst;
    char size[32], count[32];
    kd_buf_str(
        out,
        "<section class=\"plot wide\"><h2>Bits and sizes</h2><p class=\"note\">K: code bits of "
        "the quantized matrices; real: all bytes of these tensors.</p>\n<table><tr>"
        "<th>part</th><th>weights</th><th>bytes</th><th>K</th><th>real</th></tr>\n");
    for (int p = 0; p < KD_PART_COUNT; p++) {
        if (!d->bytes[p])
            continue;
        kd_show_bytes(size, sizeof size, d->bytes[p]);
        kd_show_count(count, sizeof count, d->weights[p]);
        kd_buf_printf(out, "<tr><td>%s</td><td>%s</td><td>%s</td>",
                      kd_part_name((enum kd_part_kind)p), count, size);
        if (d->k[p] > 0)
            kd_buf_printf(out, "<td>%.3f</td>", d->k[p]);
        else
            kd_buf_str(out, "<td>\u2013</td>");
        kd_buf_printf(out, "<td>%.3f</td></tr>\n",
                      d->weights[p] ? 8 * (double)d->bytes[p] / (double)d->weights[p] : 0);
    }
    kd_show_bytes(size, sizeof size, d->file_bytes);
    kd_show_count(count, sizeof count, c->src_weights);
    kd_buf_printf(out,
                  "<tr><td>all files</td><td>%s</td><td>%s</td><td>\u2013</td><td>%.3f</td></tr>\n"
                  "</table></section>\n",
                  count, size, c->bits_file);
}

static void positions(struct kd_buf *out, const struct kd_check *c)
{
    kd_buf_str(out, "<section class=\"plot\"><h2>Control tokens</h2><p class=\"note\">A control "
                    "position reads or predicts a special token of the chat format.</p>\n<table>"
                    "<tr><th>positions</th><th>count</th><th>KLD</th><th>top-1</th></tr>\n");
    if (c->control_tokens)
        kd_buf_printf(out, "<tr><td>control</td><td>%lld</td><td>%.5f</td><td>%.2f %%</td></tr>\n",
                      (long long)c->control_tokens, c->control_kld, 100 * c->control_top1);
    else
        kd_buf_str(out, "<tr><td>control</td><td>0</td><td>\u2013</td><td>\u2013</td></tr>\n");
    kd_buf_printf(out, "<tr><td>other</td><td>%lld</td><td>%.5f</td><td>\u2013</td></tr>\n",
                  (long long)(c->tokens - c->control_tokens), c->plain_kld);
    kd_buf_printf(out,
                  "</table>\n<h2 style=\"margin-top:16px\">KLD</h2><table><tr><th>mean</th>"
                  "<th>median</th><th>p95</th><th>p99</th><th>max</th></tr>\n<tr><td>%.5f</td>"
                  "<td>%.5f</td><td>%.4f</td><td>%.4f</td><td>%.3f</td></tr>\n</table></section>\n",
                  c->kld_mean, c->kld_median, c->kld_p95, c->kld_p99, c->kld_max);
}

static void flip_row(struct kd_buf *out, const char *name, const struct kd_flips *f, int64_t n)
{
    double m = (double)n;
    kd_buf_printf(out,
                  "<tr><td>%s</td><td>%.1f %%</td><td>%.1f %%</td><td>%lld</td><td>%lld</td>"
                  "<td>%+.1f [%+.1f, %+.1f]</td><td>%.3g</td></tr>\n",
                  name, 100 * (double)f->src_right / m, 100 * (double)f->dst_right / m,
                  (long long)f->lost, (long long)f->gained, 100 * (double)(f->gained - f->lost) / m,
                  100 * f->change.lo, 100 * f->change.hi, f->probability);
}

static void share_row(struct kd_buf *out, const char *name, const struct kd_flips *f, int64_t n)
{
    kd_buf_printf(
        out, "<tr><td>%s</td><td>%lld of %lld</td><td>%.1f %%</td><td>%.1f to %.1f</td></tr>\n",
        name, (long long)f->dst_right, (long long)n, 100 * (double)f->dst_right / (double)n,
        100 * f->dst_range.lo, 100 * f->dst_range.hi);
}

/* What a server told of itself, and what it could not tell. */
static void remote(struct kd_buf *out, const struct kd_battery *b)
{
    const struct kd_battery_remote *r = &b->remote;
    kd_buf_str(out, "<p class=\"note\">Served as ");
    kd_html_text(out, r->model);
    kd_buf_str(out, " at ");
    kd_html_text(out, r->url);
    kd_buf_printf(out,
                  ", %lld requests. KLD and same top-1 are not measured: a server tells no logits "
                  "of the expected turns.",
                  (long long)b->requests);
    if (r->think_wanted && !r->shows_thinking)
        kd_buf_str(out, " It shows no thinking: exact means answer and call.");
    else if (r->think_wanted)
        kd_buf_printf(out, " It shows thinking in %lld of %lld answers where it is expected.",
                      (long long)r->think_shown, (long long)r->think_wanted);
    if (r->refused) {
        kd_buf_printf(out, " It refused %lld requests, counted as wrong; the first with: ",
                      (long long)r->refused);
        kd_html_text(out, r->why);
    }
    kd_buf_str(out, "</p>\n");
}

static void battery(struct kd_buf *out, const struct kd_battery *b)
{
    kd_buf_str(out, "<section class=\"plot wide\"><h2>Agent battery</h2>\n");
    if (b->is_remote)
        remote(out, b);
    else
        kd_buf_printf(out,
                      "<p class=\"note\">%lld requests; KLD %.5f and same top-1 %.2f %% over the "
                      "%lld tokens of the expected turns.</p>\n",
                      (long long)b->requests, b->kld, 100 * b->top1, (long long)b->tokens);
    kd_plot_flips(out, b);
    if (!b->paired) {
        kd_buf_str(out, "<table><tr><th>turns</th><th>right</th><th>share</th>"
                        "<th>95 % (Wilson)</th></tr>\n");
        share_row(out, "exact", &b->exact, b->requests);
        share_row(out, "valid tool calls", &b->calls, b->requests);
        kd_buf_str(out, "</table></section>\n");
        return;
    }
    kd_buf_printf(out,
                  "<table><tr><th>turns</th><th>source</th><th>%s</th><th>right \u2192 wrong</th>"
                  "<th>wrong \u2192 right</th><th>change</th><th>p</th></tr>\n",
                  b->is_remote ? "server" : "quantized");
    flip_row(out, "exact", &b->exact, b->requests);
    flip_row(out, "valid tool calls", &b->calls, b->requests);
    kd_buf_str(out, "</table><p class=\"note\">Change in points with a 95 % interval (Bonett and "
                    "Price); p: exact McNemar.</p></section>\n");
}

void kd_report_html(struct kd_buf *out, const struct kd_check *c, const struct kd_verdict *v)
{
    head(out, c, v);
    cards(out, c);
    kd_buf_str(out, "<div class=\"plots\">\n");
    requirements(out, v);
    if (c->has_text) {
        kd_plot_kld(out, c);
        kd_plot_bands(out, c);
        kd_plot_router(out, c, v);
        kd_plot_margins(out, c);
        kd_plot_stream(out, c);
        positions(out, c);
    }
    if (c->dst.file_bytes)
        sizes(out, c);
    if (c->has_battery)
        battery(out, &c->battery);
    kd_buf_str(out, "</div>\n</main>\n</body>\n</html>\n");
}
