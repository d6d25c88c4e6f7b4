/* The pilot's report: one screen, JSON, one page. */
#include "base/json.h"
#include "base/show.h"
#include "plan/pilot.h"
#include "plan/plan_report.h"

#include <stdio.h>

static const char head[] =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
    "content=\"width=device-width\"><title>Kondense pilot</title><style>"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1b1f24;background:#fff}h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}"
    "table{border-collapse:collapse;width:100%}td,th{padding:.25rem .5rem;text-align:right;"
    "border-bottom:1px solid #d8dee4}td:first-child,th:first-child{text-align:left}"
    "svg{width:100%;height:auto}svg text{font-size:12px}.bad{color:#b3261e}.p0{fill:#2563a8}"
    ".p1{fill:#d29a2b}.p2{fill:#3f9a63}.p3{fill:#8a929c}.p4{fill:#7d4aa8}"
    "@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}"
    "td,th{border-color:#30363d}svg text{fill:#e6edf3}.bad{color:#f0857d}}</style>\n";

static double scaled_s(const struct kd_pilot *p, int scope, int part)
{
    double each = scope == KD_SCOPE_EXPERT && p->experts > 0
                      ? (double)p->model->cfg.experts / (double)p->experts
                      : 1;
    return p->part_s[scope][part] * each;
}

static const char *scope_name(int scope)
{
    return scope == KD_SCOPE_EXPERT ? "experts" : "trunk";
}

/* "KDA", or "MLA". */
static const char *kind_of(const struct kd_pilot *p)
{
    return p->model->cfg.mla[p->layer] ? "MLA" : "KDA";
}

static void title(const struct kd_pilot *p, char *out, size_t size)
{
    char shown[128];
    snprintf(out, size, "layer %lld of %lld of %s (%s, %lld experts) as %s", (long long)p->layer,
             (long long)p->model->cfg.layers, kd_show_text(shown, 40, p->source), kind_of(p),
             (long long)p->model->cfg.experts, p->form.name);
}

/* What the numbers are of, two sentences. */
static void inputs_text(const struct kd_pilot *p, char *out, size_t size)
{
    if (p->real)
        snprintf(out, size, "the source's own, %lld rows of %lld tokens", (long long)p->rows,
                 (long long)p->cols);
    else
        snprintf(out, size, "made, %lld rows of %lld tokens: %s", (long long)p->rows,
                 (long long)p->cols, p->why);
}

static void sample_text(const struct kd_pilot *p, char *out, size_t size)
{
    int64_t all = p->model->cfg.experts;
    if (p->experts < all)
        snprintf(out, size, "%lld of %lld experts; their times are scaled to all",
                 (long long)p->experts, (long long)all);
    else
        snprintf(out, size, "all %lld experts", (long long)all);
}

static void error_text(const struct kd_pilot *p, char *out, size_t size)
{
    if (!p->compared || !(p->error[1] > 0)) {
        snprintf(out, size, "not compared: no tokens held back reached the sampled experts");
        return;
    }
    double gain = 100 * (1 - p->error[0] / p->error[1]);
    snprintf(out, size,
             "%.4g default, %.4g plain: %.3g %% %s (%lld experts, %lld tokens held back)",
             p->error[0], p->error[1], gain < 0 ? -gain : gain, gain < 0 ? "more" : "less",
             (long long)p->compared, (long long)p->held_out);
}

static void rate_text(const struct kd_pilot *p, int scope, int part, char *out, size_t size)
{
    if (part == KD_PART_SEARCH && p->tiles_s[scope] > 0)
        snprintf(out, size, "%.4g tiles/s", p->tiles_s[scope]);
    else
        *out = 0;
}

static void parts_text(struct kd_buf *out, const struct kd_pilot *p)
{
    char time[32], rate[48];
    kd_plan_span(time, sizeof time, p->read_s);
    kd_buf_printf(out, "  %-20s %10s %7.1f %%   %.3g GB/s\n", "read", time,
                  100 * p->read_s / p->layer_s,
                  p->read_s > 0 ? (double)p->read_bytes / p->read_s / 1e9 : 0);
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < KD_PILOT_PARTS; i++) {
            char name[32];
            double x = scaled_s(p, s, i);
            if (!(x > 0))
                continue;
            kd_plan_span(time, sizeof time, x);
            rate_text(p, s, i, rate, sizeof rate);
            snprintf(name, sizeof name, "%s, %s", kd_pilot_part(i), scope_name(s));
            kd_buf_printf(out, "  %-20s %10s %7.1f %%%s%s\n", name, time, 100 * x / p->layer_s,
                          *rate ? "   " : "", rate);
        }
    kd_plan_span(time, sizeof time, p->layer_s);
    kd_buf_printf(out, "  %-20s %10s\n", "the layer", time);
}

/* The columns of a whole run. */
enum { COLUMNS = 6 };
static const char *const columns[COLUMNS] = {"read",  "encode", "calibrate",
                                             "trunk", "write",  "total"};

static void cells(const struct kd_pilot_row *r, char out[COLUMNS][32])
{
    const struct kd_pilot_hours *h = &r->hours;
    const double hours[COLUMNS] = {h->read, h->encode, h->calibrate, h->trunk, h->write, h->total};
    for (int i = 0; i < COLUMNS; i++)
        kd_plan_span(out[i], sizeof out[i], 3600 * hours[i]);
}

static void rows_text(struct kd_buf *out, const struct kd_pilot *p)
{
    char cell[COLUMNS][32];
    kd_buf_printf(out, "%-28s", "the whole run");
    for (int i = 0; i < COLUMNS; i++)
        kd_buf_printf(out, " %9s", columns[i]);
    kd_buf_char(out, '\n');
    for (int i = 0; i < p->rows_count; i++) {
        const struct kd_pilot_row *r = &p->row[i];
        kd_buf_printf(out, "  %-26.26s", r->name);
        if (!r->able) {
            kd_buf_str(out, "  cannot encode (kondense plan says why)\n");
            continue;
        }
        cells(r, cell);
        for (int k = 0; k < COLUMNS; k++)
            kd_buf_printf(out, " %9s", cell[k]);
        kd_buf_str(out, r->machines ? "  scaled\n" : "  measured\n");
    }
}

void kd_pilot_text(struct kd_buf *out, const struct kd_pilot *p)
{
    char text[256], peak[32], plan[32], a[32], b[32];
    title(p, text, sizeof text);
    kd_buf_printf(out, "%s\n", text);
    inputs_text(p, text, sizeof text);
    kd_buf_printf(out, "  inputs   %s\n", text);
    sample_text(p, text, sizeof text);
    kd_buf_printf(out, "  sample   %s\n  run on   %s\n", text, p->computes);
    parts_text(out, p);
    kd_show_bytes(peak, sizeof peak, p->peak_bytes);
    kd_show_bytes(plan, sizeof plan, p->planned_bytes);
    kd_buf_printf(out, "  memory   %s at most, of %s foretold for the whole run", peak, plan);
    if (p->device_bytes) {
        kd_show_bytes(peak, sizeof peak, p->device_bytes);
        kd_buf_printf(out, "; %s of the device", peak);
    }
    error_text(p, text, sizeof text);
    kd_buf_printf(out, "\n  error    %s\n", text);
    kd_plan_span(a, sizeof a, p->inputs_s);
    kd_plan_span(b, sizeof b, p->compare_s);
    kd_buf_printf(out, "  besides  %s for the inputs, %s for the comparison\n", a, b);
    rows_text(out, p);
    for (int i = 0; kd_pilot_limit(p, i, text, sizeof text); i++)
        kd_buf_printf(out, "past the limit: %s\n", text);
}

static void json_row(struct kd_jw *w, const struct kd_pilot_row *r)
{
    kd_jw_open(w, NULL, '{');
    kd_jw_str(w, "name", r->name);
    kd_jw_str(w, "basis", r->machines ? "scaled" : "measured");
    kd_jw_bool(w, "able", r->able);
    if (r->able) {
        kd_jw_num(w, "read_h", r->hours.read);
        kd_jw_num(w, "encode_h", r->hours.encode);
        kd_jw_num(w, "calibrate_h", r->hours.calibrate);
        kd_jw_num(w, "trunk_h", r->hours.trunk);
        kd_jw_num(w, "write_h", r->hours.write);
        kd_jw_num(w, "total_h", r->hours.total);
    }
    kd_jw_bool(w, "past_max_hours", r->late);
    kd_jw_close(w, '}');
}

static void json_parts(struct kd_jw *w, const struct kd_pilot *p)
{
    static const char *const keys[KD_PILOT_PARTS] = {"forward_s", "hessian_s", "search_s",
                                                     "write_s"};
    for (int s = 0; s < 2; s++) {
        kd_jw_open(w, scope_name(s), '{');
        for (int i = 0; i < KD_PILOT_PARTS; i++)
            kd_jw_num(w, keys[i], p->part_s[s][i]);
        kd_jw_num(w, "tiles_s", p->tiles_s[s]);
        kd_jw_close(w, '}');
    }
}

void kd_pilot_json(struct kd_buf *out, const struct kd_pilot *p)
{
    struct kd_jw w = {.out = out};
    kd_jw_open(&w, NULL, '{');
    kd_jw_str(&w, "source", p->source);
    kd_jw_str(&w, "computes", p->computes);
    kd_jw_int(&w, "layer", p->layer);
    kd_jw_int(&w, "of_layers", p->model->cfg.layers);
    kd_jw_str(&w, "attention", kind_of(p));
    kd_jw_num(&w, "experts_bpw", p->form.experts_bpw);
    kd_jw_str(&w, "inputs", p->real ? "real" : "made");
    if (!p->real)
        kd_jw_str(&w, "why_made", p->why);
    kd_jw_int(&w, "rows", p->rows);
    kd_jw_int(&w, "cols", p->cols);
    kd_jw_int(&w, "experts_encoded", p->experts);
    kd_jw_int(&w, "experts_in_layer", p->model->cfg.experts);
    kd_jw_num(&w, "inputs_s", p->inputs_s);
    kd_jw_num(&w, "read_s", p->read_s);
    kd_jw_int(&w, "read_bytes", p->read_bytes);
    kd_jw_int(&w, "written_bytes", p->written_bytes);
    kd_jw_num(&w, "wall_s", p->wall_s);
    kd_jw_num(&w, "compare_s", p->compare_s);
    json_parts(&w, p);
    kd_jw_num(&w, "layer_s", p->layer_s);
    kd_jw_int(&w, "peak_bytes", p->peak_bytes);
    kd_jw_int(&w, "planned_peak_bytes", p->planned_bytes);
    kd_jw_int(&w, "device_peak_bytes", p->device_bytes);
    kd_jw_open(&w, "error", '{');
    kd_jw_int(&w, "experts", p->compared);
    kd_jw_int(&w, "tokens_held_back", p->held_out);
    kd_jw_num(&w, "default", p->error[0]);
    kd_jw_num(&w, "plain", p->error[1]);
    kd_jw_close(&w, '}');
    kd_jw_open(&w, "whole_run", '[');
    for (int i = 0; i < p->rows_count; i++)
        json_row(&w, &p->row[i]);
    kd_jw_close(&w, ']');
    kd_jw_bool(&w, "past_a_limit", p->over);
    kd_jw_close(&w, '}');
    kd_buf_char(out, '\n');
}

/* Hours as bars of their parts. */
static void bars(struct kd_buf *out, const struct kd_pilot *p)
{
    double most = 0;
    for (int i = 0; i < p->rows_count; i++)
        if (p->row[i].able && p->row[i].hours.total > most)
            most = p->row[i].hours.total;
    if (!(most > 0))
        return;
    kd_buf_printf(out,
                  "<svg viewBox=\"0 0 960 %d\" role=\"img\" aria-label=\"hours of the whole run\">",
                  p->rows_count * 44);
    for (int i = 0; i < p->rows_count; i++) {
        const struct kd_pilot_hours *h = &p->row[i].hours;
        const double part[5] = {h->read, h->encode, h->calibrate, h->trunk, h->write};
        double x = 0;
        kd_buf_printf(out, "<text x=\"0\" y=\"%d\">", 44 * i + 13);
        kd_html_text(out, p->row[i].name);
        kd_buf_str(out, "</text>");
        for (int k = 0; k < 5 && p->row[i].able; k++) {
            double w = 860 * part[k] / most;
            kd_buf_printf(out,
                          "<rect class=\"p%d\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"20\">"
                          "<title>%s: %.3g h</title></rect>",
                          k, x, 44 * i + 18, w, columns[k], part[k]);
            x += w;
        }
        kd_buf_printf(out, "<text x=\"%.1f\" y=\"%d\">%.3g h</text>", x + 6, 44 * i + 33, h->total);
    }
    kd_buf_str(out, "</svg>\n");
}

static void html_parts(struct kd_buf *out, const struct kd_pilot *p)
{
    char time[32], rate[48];
    kd_buf_str(out, "<h2>The layer</h2><table><tr><th>part<th>trunk<th>experts<th>search\n");
    for (int i = 0; i < KD_PILOT_PARTS; i++) {
        kd_buf_printf(out, "<tr><td>%s", kd_pilot_part(i));
        for (int s = 0; s < 2; s++) {
            kd_plan_span(time, sizeof time, scaled_s(p, s, i));
            kd_buf_printf(out, "<td>%s", time);
        }
        rate_text(p, KD_SCOPE_EXPERT, i, rate, sizeof rate);
        kd_buf_printf(out, "<td>%s\n", rate);
    }
    kd_plan_span(time, sizeof time, p->layer_s);
    kd_buf_printf(out, "</table><p>All of it, reading at %.3g GB/s included: %s.</p>\n",
                  p->read_s > 0 ? (double)p->read_bytes / p->read_s / 1e9 : 0, time);
}

void kd_pilot_html(struct kd_buf *out, const struct kd_pilot *p)
{
    char text[256], peak[32], plan[32];
    kd_buf_str(out, head);
    title(p, text, sizeof text);
    kd_buf_str(out, "<h1>Pilot: ");
    kd_html_text(out, text);
    kd_buf_str(out, "</h1>\n<p>Inputs: ");
    inputs_text(p, text, sizeof text);
    kd_html_text(out, text);
    sample_text(p, text, sizeof text);
    kd_buf_printf(out, ". Sample: %s, on ", text);
    kd_html_text(out, p->computes);
    kd_show_bytes(peak, sizeof peak, p->peak_bytes);
    kd_show_bytes(plan, sizeof plan, p->planned_bytes);
    kd_buf_printf(out, ".</p>\n<p>Memory: %s at most, %s foretold for the whole run. ", peak, plan);
    error_text(p, text, sizeof text);
    kd_buf_str(out, "Error of the layer's output, squared and relative: ");
    kd_html_text(out, text);
    kd_buf_str(out, ".</p>\n");
    for (int i = 0; kd_pilot_limit(p, i, text, sizeof text); i++) {
        kd_buf_str(out, "<p class=\"bad\">Past the limit: ");
        kd_html_text(out, text);
        kd_buf_str(out, "</p>\n");
    }
    html_parts(out, p);
    kd_buf_str(out, "<h2>The whole run</h2>\n");
    bars(out, p);
    kd_buf_str(out, "<table><tr><th>machines");
    for (int k = 0; k < COLUMNS; k++)
        kd_buf_printf(out, "<th>%s", columns[k]);
    kd_buf_str(out, "<th>basis\n");
    for (int i = 0; i < p->rows_count; i++) {
        char cell[COLUMNS][32];
        kd_buf_str(out, "<tr><td>");
        kd_html_text(out, p->row[i].name);
        if (!p->row[i].able) {
            kd_buf_str(out, "<td colspan=\"7\">cannot encode\n");
            continue;
        }
        cells(&p->row[i], cell);
        for (int k = 0; k < COLUMNS; k++)
            kd_buf_printf(out, "<td>%s", cell[k]);
        kd_buf_printf(out, "<td>%s\n", p->row[i].machines ? "scaled" : "measured");
    }
    kd_buf_printf(out,
                  "</table>\n<p>Measured: this layer's rates for the whole model's work, as the "
                  "plan counts it. Scaled: that times the plan's ratio of the machines' search "
                  "and %d-bit rates; the drive as here.</p></html>\n",
                  p->fast ? 16 : 32);
}
