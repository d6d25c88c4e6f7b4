/* The card: one page, nothing from elsewhere. The declared number never stands without the real one
 * beside it. */
#include "base/show.h"
#include "slice/facts.h"

#include <stdio.h>
#include <string.h>

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1d1f23;--dim:#646a73;"
    "--line:#e3e4e6;--p0:#2563a8;--p1:#c2572b;--p2:#3f9a63;--p3:#d29a2b;--p4:#8a6bb8;--p5:#8b929b;"
    "--good:#1e7b45;--bad:#b3261e;--amber:#9a6400;--soft:#eef0f2}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#15171a;--card:#1d2024;--ink:#e7e8ea;"
    "--dim:#9aa1ab;--line:#33373d;--p0:#6ba6e8;--p1:#e98a5c;--p2:#58b57e;--p3:#d8a84a;"
    "--p4:#b095dd;--p5:#6c737d;--good:#5cc48a;--bad:#f0857d;--amber:#e0b050;--soft:#2a2e33}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);"
    "font:15px/1.5 system-ui,sans-serif}main{max-width:960px;margin:0 auto;padding:28px 20px "
    "48px}\n"
    "h1{font-size:22px;margin:0;overflow-wrap:anywhere}h2{font-size:15px;margin:0 0 6px}\n"
    ".dim{color:var(--dim);font-size:13px;margin:2px 0 0;overflow-wrap:anywhere}\n"
    "section{background:var(--card);border:1px solid var(--line);border-radius:10px;"
    "padding:14px 16px;margin:12px 0;overflow-x:auto}\n"
    ".three{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:12px;"
    "margin:18px 0 12px}.three>div{background:var(--card);border:1px solid var(--line);"
    "border-radius:10px;padding:12px 16px}.k{color:var(--dim);font-size:13px}"
    ".v{font-size:30px;font-weight:650;font-variant-numeric:tabular-nums}\n"
    "table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}"
    "th,td{text-align:right;padding:4px 0 4px 12px;border-bottom:1px solid var(--line);"
    "vertical-align:top}th:first-child,td:first-child{text-align:left;padding-left:0}"
    "td.l{text-align:left}th{color:var(--dim);font-weight:500}tr:last-child td{border-bottom:0}\n"
    ".good{color:var(--good)}.bad{color:var(--bad);font-weight:650}"
    ".amber{color:var(--amber);font-weight:650}\n"
    "svg{display:block;width:100%;height:auto}svg text{font:11px system-ui,sans-serif;"
    "fill:var(--dim)}.there{fill:var(--p0)}.gone{fill:var(--soft)}\n"
    ".key{display:inline-block;width:10px;height:10px;border-radius:2px;margin:0 5px 0 12px}\n"
    "@media print{body{background:#fff}section{break-inside:avoid}}\n";

static const char *count_text(char *out, size_t size, int64_t v)
{
    if (v < 0)
        snprintf(out, size, "NOT KNOWN");
    else
        kd_show_exact(out, size, v);
    return out;
}

static void card(struct kd_buf *out, const char *key, const char *value, const char *small)
{
    kd_buf_str(out, "<div><div class=\"k\">");
    kd_html_text(out, key);
    kd_buf_str(out, "</div><div class=\"v\">");
    kd_html_text(out, value);
    kd_buf_str(out, "</div><div class=\"dim\">");
    kd_html_text(out, small);
    kd_buf_str(out, "</div></div>\n");
}

static void three(struct kd_buf *out, const struct kd_facts *f)
{
    char v[40], s[160], n[32];
    kd_buf_str(out, "<div class=\"three\">\n");
    snprintf(v, sizeof v, "NOT KNOWN");
    snprintf(s, sizeof s, "nobody declares parameters");
    if (f->declared_params > 0) {
        kd_show_exact(n, sizeof n, f->declared_params);
        kd_fact_bits(v, sizeof v, kd_facts_declared(f));
        snprintf(s, sizeof s, "over %s parameters%s", n, f->declared_given ? " as declared" : "");
    }
    card(out, "Declared bits a parameter", v, s);
    kd_show_exact(n, sizeof n, f->sum.params);
    snprintf(v, sizeof v, "%.3f", kd_facts_real(f));
    snprintf(s, sizeof s, "over the %s that are there", n);
    card(out, "Real bits a parameter", v, s);
    snprintf(v, sizeof v, "NOT KNOWN");
    if (f->declared_params > 0)
        snprintf(v, sizeof v, "%.2f %%", 100 * kd_facts_missing(f));
    snprintf(s, sizeof s, "bytes: not known");
    if (f->src_bytes > 0)
        snprintf(s, sizeof s, "bytes: %.2f %%", 100 * kd_facts_missing_bytes(f));
    card(out, "Parameters missing", v, s);
    kd_buf_str(out, "</div>\n");
}

/* What is there of the declared parameters, to scale. */
static void share_bar(struct kd_buf *out, const struct kd_facts *f)
{
    if (f->declared_params <= 0)
        return;
    double there = 900 * (1 - kd_facts_missing(f));
    there = there < 0 ? 0 : there > 900 ? 900 : there;
    kd_buf_printf(
        out,
        "<section><h2>Of the model it is called after</h2><svg viewBox=\"0 0 900 44\">"
        "<rect class=\"gone\" width=\"900\" height=\"22\" rx=\"3\"/><rect class=\"there\" "
        "width=\"%.2f\" height=\"22\" rx=\"1\"/><text x=\"0\" y=\"38\">%.2f %% is there"
        "</text></svg></section>\n",
        there, 100 * (1 - kd_facts_missing(f)));
}

static void row(struct kd_buf *out, const char *what, const char *now, const char *before,
                const char *class)
{
    kd_buf_str(out, "<tr><td>");
    kd_html_text(out, what);
    kd_buf_printf(out, "</td><td class=\"%s\">", class);
    kd_html_text(out, now);
    kd_buf_str(out, "</td><td>");
    kd_html_text(out, before);
    kd_buf_str(out, "</td></tr>\n");
}

static void number_row(struct kd_buf *out, const char *what, int64_t now, int64_t before)
{
    char a[32], b[32];
    row(out, what, count_text(a, sizeof a, now), count_text(b, sizeof b, before),
        now < 0                       ? "amber"
        : before >= 0 && now < before ? "bad"
                                      : "");
}

static void structure(struct kd_buf *out, const struct kd_facts *f)
{
    char a[120];
    kd_buf_str(out, "<section><h2>What is in it</h2><table><tr><th></th><th>here</th><th>whole "
                    "model</th></tr>\n");
    number_row(out, "Layers", f->shape.layers, f->src_layers);
    number_row(out, "Experts in a layer", f->shape.experts, f->src_experts);
    number_row(out, "Experts used for a token", f->shape.used, f->src_used);
    number_row(out, "Neurons of an expert", f->shape.width, f->src_width);
    number_row(out, "Routed weights", f->sum.routed_params, f->src_routed);
    number_row(out, "Parameters for a token", f->active, f->src_active);
    number_row(out, "Parameters", f->sum.params, f->src_params);
    number_row(out, "Bytes", f->of == KD_OF_RECORD ? f->data_bytes : f->file_bytes, f->src_bytes);
    row(out, "Lossy chain", f->chain, "", "");
    row(out, "Quality gate", kd_fact_gate_name(f->gate), "",
        f->gate == KD_GATE_PASS  ? "good"
        : f->gate < KD_GATE_PASS ? "amber"
                                 : "bad");
    if (f->kld >= 0) {
        snprintf(a, sizeof a, "%.5f nats", f->kld);
        row(out, "KLD", a, "", "");
    }
    snprintf(a, sizeof a, "NOT MEASURED");
    if (f->tok_s > 0)
        snprintf(a, sizeof a, "%.2f tokens/s, %.1f GB/s implied", f->tok_s,
                 f->tok_s * (double)(f->token_bytes > 0 ? f->token_bytes : 0) / 1e9);
    row(out, "Speed", a, "", f->tok_s > 0 ? "" : "amber");
    row(out, "Licence", *f->licence ? f->licence : "NOT STATED", "", *f->licence ? "" : "amber");
    row(out, "Slice record",
        !f->has_record     ? "none"
        : f->record_intact ? "intact"
                           : "EDITED, not used",
        "", f->has_record && !f->record_intact ? "bad" : "");
    row(out, "SHA-256", *f->sha256 ? f->sha256 : "NOT COMPUTED", "", *f->sha256 ? "" : "amber");
    kd_buf_str(out, "</table></section>\n");
}

static void types(struct kd_buf *out, const struct kd_facts *f)
{
    char a[32], b[32];
    double at = 0, all = (double)(f->data_bytes ? f->data_bytes : 1);
    kd_buf_str(out, "<section><h2>Bytes by type</h2><svg viewBox=\"0 0 900 24\">");
    for (int i = 0; i < f->type_count; i++) {
        double w = 900 * (double)f->types[i].bytes / all;
        kd_buf_printf(out, "<rect x=\"%.2f\" width=\"%.2f\" height=\"22\" fill=\"var(--p%d)\"/>",
                      at, w, i < 5 ? i : 5);
        at += w;
    }
    kd_buf_str(out, "</svg><table><tr><th>type</th><th>tensors</th><th>elements</th><th>bytes</th>"
                    "<th>bits each</th><th>share</th></tr>\n");
    for (int i = 0; i < f->type_count; i++) {
        const struct kd_fact_type *t = &f->types[i];
        kd_buf_printf(out, "<tr><td><span class=\"key\" style=\"background:var(--p%d)\"></span>",
                      i < 5 ? i : 5);
        kd_html_text(out, t->name);
        kd_show_exact(a, sizeof a, t->elements);
        kd_show_exact(b, sizeof b, t->bytes);
        kd_buf_printf(out, "</td><td>%lld</td><td>%s</td><td>%s</td>", (long long)t->tensors, a, b);
        if (t->elements)
            kd_buf_printf(out, "<td>%.4f</td>", 8 * (double)t->bytes / (double)t->elements);
        else
            kd_buf_str(out, "<td>scales</td>");
        kd_buf_printf(out, "<td>%.2f %%</td></tr>\n", 100 * (double)t->bytes / all);
    }
    kd_buf_str(out, "</table><h2 style=\"margin-top:14px\">Largest tensors</h2><table>\n");
    for (int i = 0; i < f->big_count; i++) {
        kd_buf_str(out, "<tr><td>");
        kd_html_text(out, f->big[i].name);
        kd_show_exact(b, sizeof b, f->big[i].bytes);
        kd_buf_printf(out, "</td><td>%s</td><td>%s</td><td>%.2f %%</td></tr>\n", f->big[i].type, b,
                      100 * (double)f->big[i].bytes / all);
    }
    kd_buf_str(out, "</table></section>\n");
}

static void claims(struct kd_buf *out, const struct kd_facts *f)
{
    if (!f->claim_count && !f->want_count)
        return;
    kd_buf_str(out, "<section><h2>Claims and requirements</h2><table>\n");
    for (int i = 0; i < f->claim_count; i++) {
        const struct kd_fact_claim *c = &f->claims[i];
        kd_buf_str(out, "<tr><td>");
        kd_html_text(out, c->by);
        kd_buf_str(out, "</td><td class=\"l\">");
        kd_html_text(out, c->text);
        kd_buf_printf(out, " %s</td><td>%.6g</td><td class=\"%s\">%s</td></tr>\n", c->what, c->held,
                      c->holds ? "good" : "bad",
                      !c->known  ? "cannot be told"
                      : c->holds ? "holds"
                                 : "CONTRADICTED");
    }
    for (int i = 0; i < f->want_count; i++) {
        const struct kd_fact_want *w = &f->wants[i];
        kd_buf_printf(out, "<tr><td>required</td><td class=\"l\">%s", w->figure);
        if (!w->no_bound)
            kd_buf_printf(out, " %s %.6g", w->at_most ? "at most" : "at least", w->bound);
        kd_buf_str(out, "</td><td>");
        if (w->measured)
            kd_buf_printf(out, "%.6g", w->value);
        else
            kd_buf_str(out, "NOT MEASURED");
        kd_buf_printf(out, "</td><td class=\"%s\">%s</td></tr>\n", w->pass ? "good" : "bad",
                      w->pass ? "met" : "NOT MET");
    }
    kd_buf_str(out, "</table></section>\n");
}

/* Rungs: the headline moves with what was deleted, the real number with what was left. */
static void ladder(struct kd_buf *out, const struct kd_facts *f, int count)
{
    char a[32], b[32];
    kd_buf_str(out,
               "<section><h2>Ladder</h2><table><tr><th>file</th><th>layers</th><th>experts</th>"
               "<th>used</th><th>parameters</th><th>size</th><th>real</th><th>declared</th>"
               "<th>missing</th></tr>\n");
    for (int i = 0; i < count; i++) {
        const struct kd_facts *g = &f[i];
        const char *slash = strrchr(g->path, '/');
        kd_buf_str(out, "<tr><td>");
        kd_html_text(out, slash && slash[1] ? slash + 1 : g->path);
        kd_show_exact(a, sizeof a, g->sum.params);
        kd_show_bytes(b, sizeof b, g->file_bytes);
        kd_buf_printf(out,
                      "</td><td>%lld</td><td>%lld</td><td>%lld</td><td>%s</td><td>%s</td><td>%.4f"
                      "</td>",
                      (long long)g->shape.layers, (long long)g->shape.experts,
                      (long long)g->shape.used, a, b, kd_facts_real(g));
        if (g->declared_params > 0)
            kd_buf_printf(out, "<td>%.4f</td><td>%.2f %%</td></tr>\n", kd_facts_declared(g),
                          100 * kd_facts_missing(g));
        else
            kd_buf_str(out, "<td class=\"amber\">NOT KNOWN</td><td class=\"amber\">NOT KNOWN</td>"
                            "</tr>\n");
    }
    kd_buf_str(out, "</table></section>\n");
}

void kd_facts_html(struct kd_buf *out, const struct kd_facts *f, int count)
{
    kd_buf_str(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
                    "name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>"
                    "Receipt: ");
    kd_html_text(out, f->path);
    kd_buf_str(out, "</title>\n<style>\n");
    kd_buf_str(out, style);
    kd_buf_str(out, "</style>\n</head>\n<body>\n<main>\n");
    if (count > 1)
        ladder(out, f, count);
    for (int i = 0; i < count; i++) {
        kd_buf_str(out, "<h1>");
        kd_html_text(out, f[i].path);
        kd_buf_printf(out, "</h1>\n<p class=\"dim\">%s, %lld tensors; ", f[i].format,
                      (long long)f[i].tensors);
        kd_html_text(out, *f[i].name ? f[i].name : f[i].arch);
        kd_buf_str(out, "; Kondense " KD_VERSION "</p>\n");
        three(out, &f[i]);
        share_bar(out, &f[i]);
        structure(out, &f[i]);
        claims(out, &f[i]);
        types(out, &f[i]);
    }
    kd_buf_str(out, "</main>\n</body>\n</html>\n");
}
