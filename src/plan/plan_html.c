/* One page, no scripts, nothing from elsewhere: verdicts, the memory of each machine as stacked
 * bars, every form against the room, and the documents' figures. */
#include "plan/plan_report.h"

#include "base/show.h"

#include <stdio.h>
#include <string.h>

static const double gib = 1073741824.0;

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1d1f23;--dim:#646a73;"
    "--line:#e3e4e6;--p0:#b9bec6;--p1:#d29a2b;--p2:#2563a8;--p3:#3f9a63;--p4:#eef0f2;"
    "--good:#1e7b45;--bad:#b3261e}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#15171a;--card:#1d2024;--ink:#e7e8ea;"
    "--dim:#9aa1ab;--line:#33373d;--p0:#5a616b;--p1:#d8a84a;--p2:#5b97dc;--p3:#58b57e;"
    "--p4:#2a2e33;--good:#5cc48a;--bad:#f0857d}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);"
    "font:15px/1.5 system-ui,sans-serif}main{max-width:1120px;margin:0 auto;padding:28px 20px 48px}"
    "h1{font-size:24px;margin:0}h2{font-size:17px;margin:0 0 4px}h3{font-size:14px;margin:14px 0 "
    "2px}"
    "section{background:var(--card);border:1px solid var(--line);border-radius:10px;"
    "padding:14px 16px;margin:14px 0;overflow-x:auto}"
    ".dim,.note{color:var(--dim);font-size:13px}.good{color:var(--good)}.bad{color:var(--bad)}"
    ".says{font-size:16px;margin:2px 0 6px}"
    "table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}"
    "th,td{text-align:right;padding:4px 0 4px 12px;border-bottom:1px solid var(--line);"
    "vertical-align:top}th:first-child,td:first-child{text-align:left;padding-left:0}"
    "td.l,th.l{text-align:left}th{color:var(--dim);font-weight:500}"
    "svg{display:block;width:100%;height:auto}svg text{font:12px system-ui,sans-serif;"
    "fill:var(--ink)}svg .d{fill:var(--dim)}"
    ".p0{fill:var(--p0)}.p1{fill:var(--p1)}.p2{fill:var(--p2)}.p3{fill:var(--p3)}.p4{fill:var(--p4)"
    "}"
    ".room{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:5 4}"
    ".key{display:inline-block;width:11px;height:11px;border-radius:2px;margin:0 5px 0 12px}\n";

static const char *const part_name[] = {"reserve", "caches", "trunk", "experts", "free"};

static void cell(struct kd_buf *out, const char *class, const char *text)
{
    kd_buf_printf(out, "<td class=\"%s\">", class);
    kd_html_text(out, text);
    kd_buf_str(out, "</td>");
}

static void legend(struct kd_buf *out)
{
    kd_buf_str(out, "<p class=\"note\">");
    for (int i = 0; i < 5; i++)
        kd_buf_printf(out, "<span class=\"key\" style=\"background:var(--p%d)\"></span>%s", i,
                      part_name[i]);
    kd_buf_str(out, "</p>\n");
}

/* One bar a memory, as long as its size; drives are drawn short and say so. */
static void memory_bars(struct kd_buf *out, const struct kd_plan_column *c)
{
    const struct kd_machine *m = &c->machine;
    double most = 0;
    int y = 6;
    for (int i = 0; i < m->tiers; i++)
        if (m->tier[i].kind != KD_MEM_NVME && m->tier[i].gib.v > most)
            most = m->tier[i].gib.v;
    kd_buf_printf(
        out, "<svg viewBox=\"0 0 1000 %d\" role=\"img\" aria-label=\"memory of one device\">\n",
        10 + 40 * m->tiers);
    for (int i = 0; i < m->tiers; i++, y += 40) {
        const struct kd_plan_place *l = &c->chosen->place[i];
        bool drive = m->tier[i].kind == KD_MEM_NVME;
        const double part[5] = {l->reserve, l->cache, l->trunk, l->experts, l->free};
        double x = 130, full = 620 * (drive ? 1 : m->tier[i].gib.v / most);
        kd_buf_printf(out, "<text x=\"0\" y=\"%d\">%s</text>", y + 19,
                      kd_mem_name(m->tier[i].kind));
        for (int k = 0; k < 5; k++) {
            double w = full * part[k] / m->tier[i].gib.v;
            if (!(w > 0))
                continue;
            kd_buf_printf(out,
                          "<rect class=\"p%d\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"28\">"
                          "<title>%s: %.1f GiB</title></rect>",
                          k, x, y, w, part_name[k], part[k]);
            if (w > 46)
                kd_buf_printf(out, "<text x=\"%.1f\" y=\"%d\">%.0f</text>", x + 6, y + 19, part[k]);
            x += w;
        }
        kd_buf_printf(out, "<text class=\"d\" x=\"%.1f\" y=\"%d\">%.4g GiB, %.4g GB/s%s</text>\n",
                      x + 8, y + 19, m->tier[i].gib.v, m->tier[i].gb_s.v,
                      drive ? " (not to scale)" : "");
    }
    kd_buf_str(out, "</svg>\n");
}

/* Weights of every form against the room that is left beside the caches. */
static void form_bar(struct kd_buf *out, const char *name, const struct kd_plan_fit *f, double full,
                     int y)
{
    double w = 640 * f->device_gib / full;
    bool fits = f->verdict == KD_PLAN_FITS;
    kd_buf_printf(out, "<text x=\"0\" y=\"%d\">", y + 14);
    kd_html_text(out, name);
    kd_buf_printf(out,
                  "</text><rect class=\"%s\" x=\"170\" y=\"%d\" width=\"%.1f\" height=\"18\"/>"
                  "<text class=\"d\" x=\"%.1f\" y=\"%d\">%.1f GiB%s</text>\n",
                  fits ? "p3" : "p0", y, w, 176 + w, y + 14, f->device_gib, fits ? " fits" : "");
}

static void form_bars(struct kd_buf *out, const struct kd_plan *p, const struct kd_plan_column *c)
{
    bool best = c->best_rate > 0 && !kd_plan_listed(p, c->best_rate);
    int rows = p->targets + p->quants + best, y = 4;
    double room = kd_machine_room_gib(&c->machine) - c->chosen->cache_gib, full = room;
    for (int t = 0; t < p->targets; t++)
        full = c->fit[t].device_gib > full ? c->fit[t].device_gib : full;
    for (int q = 0; q < p->quants; q++)
        full = c->quant[q].device_gib > full ? c->quant[q].device_gib : full;
    kd_buf_printf(out,
                  "<h3>Every form against the room beside the caches, GiB on %s device</h3>\n<svg "
                  "viewBox=\"0 0 1000 %d\" role=\"img\" aria-label=\"forms against the room\">\n",
                  c->machine.count > 1 ? "each" : "the", 24 * rows + 22);
    for (int t = 0; t < p->targets; t++, y += 24)
        form_bar(out, p->target[t].name, &c->fit[t], full, y);
    if (best) {
        form_bar(out, c->best_target.name, &c->best, full, y);
        y += 24;
    }
    for (int q = 0; q < p->quants; q++, y += 24)
        form_bar(out, kd_plan_published[q].name, &c->quant[q], full, y);
    if (room > 0)
        kd_buf_printf(out,
                      "<line class=\"room\" x1=\"%.1f\" x2=\"%.1f\" y1=\"0\" y2=\"%d\"/><text "
                      "class=\"d\" x=\"%.1f\" y=\"%d\">room %.1f</text>\n",
                      170 + 640 * room / full, 170 + 640 * room / full, y, 174 + 640 * room / full,
                      y + 14, room);
    kd_buf_str(out, "</svg>\n");
}

static void speeds(struct kd_buf *out, const struct kd_plan_fit *f)
{
    if (f->verdict == KD_PLAN_TOO_BIG)
        return;
    kd_buf_str(out, "<h3>Speed, tok/s</h3>\n<table><tr><th>hit rate</th><th>ceiling</th><th>both "
                    "memories at once</th><th>ms a token</th><th class=\"l\">for</th></tr>\n");
    for (int h = 0; h < (f->tiered ? KD_HITS : 1); h++)
        kd_buf_printf(
            out,
            "<tr><td>%.2f</td><td>%.2f</td><td>%.2f</td><td>%.2f</td><td class=\"l\">%s</td>"
            "</tr>\n",
            f->hit[h], f->step[h].tokens_s, f->overlapped[h], f->step[h].total_ms,
            f->tiered ? kd_hit_name[h] : "all experts in the fastest memory");
    kd_buf_printf(out,
                  "</table>\n<p class=\"note\">Expect %.2f to %.2f: %.2f to %.2f of the ceiling is "
                  "what engines have reached. Prompts at %.0f tok/s.</p>\n",
                  f->band[0], f->band[1], kd_roof_band[0], kd_roof_band[1], f->prefill.tokens_s);
}

static void hour_row(struct kd_buf *out, const char *who, const struct kd_plan_hours h[2])
{
    kd_buf_printf(out,
                  "<tr><td>%s</td><td>%.1f\u2013%.1f</td><td>%.1f\u2013%.1f</td><td>%.1f\u2013%.1f"
                  "</td><td>%.1f\u2013%.1f</td><td>%.1f\u2013%.1f</td></tr>\n",
                  who, h[0].encode, h[1].encode, h[0].calibrate, h[1].calibrate, h[0].trunk,
                  h[1].trunk, h[0].serial, h[1].serial, h[0].total, h[1].total);
}

static void sources(struct kd_buf *out, const struct kd_plan *p, const struct kd_plan_column *c)
{
    struct kd_buf lines;
    kd_buf_init(&lines, 1 << 20);
    kd_plan_explain(&lines, p, c);
    kd_buf_str(out, "<details><summary>Every formula with its numbers and sources</summary>\n<pre "
                    "style=\"white-space:pre-wrap;font-size:12.5px\">");
    if (lines.data)
        for (char *at = lines.data, *end; *at; at = end + 1) {
            end = strchr(at, '\n');
            if (!end)
                break;
            *end = 0;
            kd_html_text(out, at + (strncmp(at, "    ", 4) ? 0 : 4));
            kd_buf_char(out, '\n');
        }
    kd_buf_str(out, "</pre></details>\n");
    kd_buf_release(&lines);
}

static void column(struct kd_buf *out, const struct kd_plan *p, const struct kd_plan_column *c)
{
    char text[256];
    struct kd_buf costs;
    bool good = c->chosen->verdict == KD_PLAN_FITS;
    kd_buf_str(out, "<section><h2>");
    if (c->machine.count > 1)
        kd_buf_printf(out, "%d \u00d7 ", c->machine.count);
    kd_html_text(out, c->machine.title);
    kd_plan_sentence(text, sizeof text, p, c);
    kd_buf_printf(out, "</h2>\n<p class=\"says %s\">", good ? "good" : "bad");
    kd_html_text(out, text);
    kd_buf_str(out, "</p>\n");
    if (c->chosen->verdict != KD_PLAN_NOT_SUPPORTED) {
        if (c->best_rate > 0)
            kd_buf_printf(out, "<p>The rate that just fits: %.2f bits for the experts.</p>\n",
                          c->best_rate);
        kd_buf_printf(out, "<h3>Memory of %s device, GiB</h3>\n",
                      c->machine.count > 1 ? "each" : "the");
        legend(out);
        memory_bars(out, c);
        form_bars(out, p, c);
        speeds(out, c->chosen);
        if (c->one[0].total > 0) {
            kd_buf_printf(out,
                          "<h3>Hours to make %s</h3>\n<table><tr><th></th><th>encoding</th>"
                          "<th>calibration</th><th>trunk</th><th>serial</th><th>in all</th></tr>\n",
                          p->made_name);
            hour_row(out, "one", c->one);
            if (c->machine.count > 1)
                hour_row(out, "all", c->all);
            kd_buf_str(out, "</table>\n");
        }
        kd_buf_init(&costs, 1 << 16);
        kd_plan_money(&costs, p, c);
        if (costs.size_bytes) {
            kd_buf_str(out, "<h3>Cost</h3>\n<p>");
            kd_html_text(out, costs.data);
            kd_buf_str(out, "</p>\n");
        }
        kd_buf_release(&costs);
        if (*c->machine.note) {
            kd_buf_str(out, "<p class=\"note\">");
            kd_html_text(out, c->machine.note);
            kd_buf_str(out, "</p>\n");
        }
        sources(out, p, c);
    }
    kd_buf_str(out, "</section>\n");
}

static void sizes(struct kd_buf *out, const struct kd_plan *p)
{
    kd_buf_str(out, "<section><h2>Sizes</h2>\n<table><tr><th>GiB</th>");
    for (int t = 0; t < p->targets; t++) {
        kd_buf_str(out, "<th>");
        kd_html_text(out, p->target[t].name);
        kd_buf_str(out, "</th>");
    }
    kd_buf_str(out, "</tr>\n");
    for (int k = 0; k < KD_K3_KINDS; k++) {
        if (!p->column[0].fit[0].bytes.kind[k])
            continue;
        kd_buf_printf(out, "<tr><td>%s</td>", kd_k3_kind_name((enum kd_k3_kind)k));
        for (int t = 0; t < p->targets; t++)
            kd_buf_printf(out, "<td>%.2f</td>", (double)p->column[0].fit[t].bytes.kind[k] / gib);
        kd_buf_str(out, "</tr>\n");
    }
    kd_buf_str(out, "<tr><td>all files</td>");
    for (int t = 0; t < p->targets; t++)
        kd_buf_printf(out, "<td>%.2f</td>", (double)p->column[0].fit[t].bytes.file_bytes / gib);
    kd_buf_str(out, "</tr></table></section>\n");
}

static void figures(struct kd_buf *out, const struct kd_doc *d)
{
    char number[64];
    kd_buf_str(out,
               "<section><h2>The documents' figures</h2><p class=\"note\">As printed, computed "
               "anew from their own assumptions, and as they should be.</p>\n<table><tr><th>figure"
               "</th><th>printed</th><th>computed</th><th class=\"l\">formula</th><th>right</th>"
               "<th class=\"l\">why</th></tr>\n");
    for (int i = 0; i < d->count; i++) {
        const struct kd_doc_figure *f = &d->f[i];
        kd_buf_str(out, "<tr>");
        cell(out, "l", f->what);
        snprintf(number, sizeof number, "%.6g %s", f->quoted, f->unit);
        cell(out, "", number);
        snprintf(number, sizeof number, "%.6g", f->value);
        cell(out, "", number);
        cell(out, "l", f->formula);
        if (f->corrected)
            snprintf(number, sizeof number, "%.4g", f->right);
        else
            snprintf(number, sizeof number, "stands");
        cell(out, "", number);
        cell(out, "l", f->corrected ? f->reason : "");
        kd_buf_str(out, "</tr>\n");
    }
    kd_buf_str(out, "</table></section>\n");
}

static void glossary(struct kd_buf *out)
{
    kd_buf_str(out, "<section><h2>Words</h2>\n<table>\n");
    for (const struct kd_glossary *g = kd_plan_glossary; g->word; g++) {
        kd_buf_str(out, "<tr>");
        cell(out, "l", g->word);
        cell(out, "l", g->means);
        kd_buf_str(out, "</tr>\n");
    }
    kd_buf_str(out, "</table></section>\n");
}

/* A row a machine. */
static void compared(struct kd_buf *out, const struct kd_plan *p)
{
    char text[128];
    kd_buf_str(out,
               "<section><h2>Side by side</h2>\n<table><tr><th>machine</th><th class=\"l\">verdict"
               "</th><th class=\"l\">form</th><th>weights and caches, GiB</th><th>room, "
               "GiB</th><th>tok/s</th>"
               "<th>prompts, tok/s</th><th>hours to make</th><th>USD</th></tr>\n");
    for (int i = 0; i < p->columns; i++) {
        const struct kd_plan_column *c = &p->column[i];
        const struct kd_plan_fit *f = c->chosen;
        const struct kd_plan_hours *h = c->machine.count > 1 ? c->all : c->one;
        bool runs = f->verdict == KD_PLAN_FITS || f->verdict == KD_PLAN_FROM_DISK;
        kd_buf_str(out, "<tr>");
        snprintf(text, sizeof text, c->machine.count > 1 ? "%s:%d" : "%s", c->machine.key,
                 c->machine.count);
        cell(out, "l", text);
        cell(out, "l", kd_plan_verdict_text(f->verdict));
        cell(out, "l", c->chosen_name);
        kd_buf_printf(out, "<td>%.1f</td><td>%.1f</td>", f->device_gib + f->cache_gib,
                      kd_machine_room_gib(&c->machine));
        if (runs)
            kd_buf_printf(out, "<td>%.1f\u2013%.1f</td><td>%.0f</td>", f->band[0], f->band[1],
                          f->prefill.tokens_s);
        else
            kd_buf_str(out, "<td>\u2013</td><td>\u2013</td>");
        kd_buf_printf(out, "<td>%.1f\u2013%.1f</td><td>%.0f</td></tr>\n", h[0].total, h[1].total,
                      f->price_usd);
    }
    kd_buf_str(out, "</table></section>\n");
}

void kd_plan_html(struct kd_buf *out, const struct kd_plan *p)
{
    char all[32], active[32];
    kd_show_count(all, sizeof all, p->model->total_params);
    kd_show_count(active, sizeof active, p->model->active_params);
    kd_buf_str(out,
               "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
               "name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Plan: ");
    kd_html_text(out, p->model->name);
    kd_buf_printf(out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n<h1>", style);
    kd_html_text(out, p->model->name);
    kd_buf_printf(
        out,
        "</h1>\n<p class=\"dim\">%s parameters, %s of them for a token; %g sequence%s of %.0f "
        "tokens; Kondense " KD_VERSION "</p>\n",
        all, active, p->use.sequences, p->use.sequences > 1 ? "s" : "", p->use.context);
    if (p->columns > 1)
        compared(out, p);
    for (int i = 0; i < p->columns; i++)
        column(out, p, &p->column[i]);
    if (p->columns > 1) {
        kd_buf_str(out,
                   "<section><h2>Hours on all of these machines together</h2>\n<table><tr><th>"
                   "</th><th>encoding</th><th>calibration</th><th>trunk</th><th>serial</th><th>in "
                   "all</th></tr>\n");
        hour_row(out, "together", p->together);
        kd_buf_str(out, "</table></section>\n");
    }
    sizes(out, p);
    if (p->doc.count)
        figures(out, &p->doc);
    glossary(out);
    kd_buf_str(out, "</main>\n</body>\n</html>\n");
}
