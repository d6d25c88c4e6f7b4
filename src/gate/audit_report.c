/* An audit's result: a screen, JSON, one page. */
#include "base/show.h"
#include "gate/audit.h"
#include "gate/report_plots.h"

#include <math.h>
#include <stdio.h>

static void share(char *out, size_t size, double p)
{
    snprintf(out, size, p < 0.001 ? "%.3f %%" : "%.2f %%", 100 * p);
}

static const char *rule(const struct kd_audit *a, char *out, size_t size)
{
    if (a->has_receipt)
        snprintf(out, size, "bad is an expert whose error is not the one its receipt says");
    else
        snprintf(out, size, "no receipt; bad is an expert whose relative error is over %.4f",
                 a->limit);
    return out;
}

void kd_audit_text(struct kd_buf *out, const struct kd_audit *a)
{
    char model[300], source[300], b[2][32], t[2][32], bound[32], why[128];
    kd_show_text(model, sizeof model, a->model);
    kd_show_text(source, sizeof source, a->source);
    kd_show_bytes(b[0], sizeof b[0], a->model_bytes);
    kd_show_bytes(b[1], sizeof b[1], a->source_bytes);
    kd_show_bytes(t[0], sizeof t[0], a->model_total);
    kd_show_bytes(t[1], sizeof t[1], a->source_total);
    share(bound, sizeof bound, a->bound);
    kd_buf_printf(out, "%s%s%.12s\n  of %s%s%.12s\n", model, *a->model_commit ? " at " : "",
                  a->model_commit, source, *a->source_commit ? " at " : "", a->source_commit);
    kd_buf_printf(out, "experts     %lld of %lld, chosen at random\n", (long long)a->n,
                  (long long)a->population);
    kd_buf_printf(out, "fetched     %s of %s, and %s of the source's %s\n", b[0], t[0], b[1], t[1]);
    kd_buf_printf(out, "error       median %.4f, largest %.4f (|Wq - W| / |W|)\n", a->median,
                  a->worst);
    kd_buf_printf(out, "bad         %lld: %s\n", (long long)a->bad, rule(a, why, sizeof why));
    kd_buf_printf(out, "supports    under %s of all experts are bad, with 95 %% confidence\n",
                  bound);
    int64_t shown = 0;
    for (int64_t i = 0; i < a->n && shown < 10; i++) {
        const struct kd_audit_expert *e = &a->expert[i];
        if (!e->bad)
            continue;
        kd_buf_printf(out, "  layer %lld expert %lld: error %.4f", (long long)e->layer,
                      (long long)e->expert, e->rel);
        if (e->said[0] >= 0)
            kd_buf_printf(out, "; w1 w3 w2 %.4f %.4f %.4f, the receipt says %.4f %.4f %.4f",
                          e->rel_of[0], e->rel_of[1], e->rel_of[2], e->said[0], e->said[1],
                          e->said[2]);
        kd_buf_char(out, '\n');
        shown++;
    }
    if (shown < a->bad)
        kd_buf_printf(out, "  and %lld more\n", (long long)(a->bad - shown));
}

void kd_audit_json(struct kd_buf *out, const struct kd_audit *a)
{
    struct kd_jw w = {.out = out};
    kd_jw_open(&w, NULL, '{');
    kd_jw_str(&w, "model", a->model);
    kd_jw_str(&w, "model_commit", a->model_commit);
    kd_jw_str(&w, "source", a->source);
    kd_jw_str(&w, "source_commit", a->source_commit);
    kd_jw_int(&w, "experts", a->n);
    kd_jw_int(&w, "population", a->population);
    kd_jw_bool(&w, "receipt", a->has_receipt);
    kd_jw_int(&w, "bad", a->bad);
    kd_jw_num(&w, "bound_95", a->bound);
    kd_jw_num(&w, "median", a->median);
    kd_jw_num(&w, "largest", a->worst);
    kd_jw_num(&w, "limit", a->limit);
    kd_jw_int(&w, "model_bytes_fetched", a->model_bytes);
    kd_jw_int(&w, "source_bytes_fetched", a->source_bytes);
    kd_jw_open(&w, "sample", '[');
    for (int64_t i = 0; i < a->n; i++) {
        const struct kd_audit_expert *e = &a->expert[i];
        kd_jw_open(&w, NULL, '{');
        w.compact = true;
        kd_jw_int(&w, "layer", e->layer);
        kd_jw_int(&w, "expert", e->expert);
        kd_jw_num(&w, "bits", e->k);
        kd_jw_num(&w, "error", e->rel);
        kd_jw_num(&w, "w1", e->rel_of[0]);
        kd_jw_num(&w, "w3", e->rel_of[1]);
        kd_jw_num(&w, "w2", e->rel_of[2]);
        if (e->said[0] >= 0)
            kd_jw_num(&w, "receipt_w1", e->said[0]);
        if (e->said[1] >= 0)
            kd_jw_num(&w, "receipt_w3", e->said[1]);
        if (e->said[2] >= 0)
            kd_jw_num(&w, "receipt_w2", e->said[2]);
        kd_jw_bool(&w, "bad", e->bad);
        kd_jw_close(&w, '}');
        w.compact = false;
    }
    kd_jw_close(&w, ']');
    kd_jw_close(&w, '}');
    kd_buf_char(out, '\n');
}

/* Each expert a dot: error over layer. */
static void plot(struct kd_buf *out, const struct kd_audit *a)
{
    int64_t layers = 1;
    double top = a->limit;
    for (int64_t i = 0; i < a->n; i++) {
        const struct kd_audit_expert *e = &a->expert[i];
        if (e->layer >= layers)
            layers = e->layer + 1;
        if (isfinite(e->rel) && e->rel > top)
            top = e->rel;
    }
    top = top > 0 ? 1.1 * top : 1;
    kd_buf_str(out,
               "<div class=\"plot\"><h2>Relative error by layer</h2><p class=\"note\">one dot an "
               "expert</p><svg viewBox=\"0 0 720 240\" role=\"img\">");
    for (int i = 0; i <= 4; i++) {
        double y = 210 - 50 * i;
        kd_buf_printf(out,
                      "<line class=\"grid\" x1=\"50\" x2=\"710\" y1=\"%.1f\" y2=\"%.1f\"/>"
                      "<text x=\"44\" y=\"%.1f\" text-anchor=\"end\">%.3f</text>",
                      y, y, y + 4, top * i / 4);
    }
    for (int64_t i = 0; i < a->n; i++) {
        const struct kd_audit_expert *e = &a->expert[i];
        double x = 50 + 660 * ((double)e->layer + 0.5) / (double)layers;
        double y = isfinite(e->rel) ? 210 - 200 * e->rel / top : 10;
        kd_buf_printf(out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\"/>",
                      e->bad ? "fb" : "fa", x, y, e->bad ? "5" : "2.5");
    }
    kd_buf_printf(out,
                  "<text x=\"50\" y=\"230\">layer 0</text><text x=\"710\" y=\"230\" "
                  "text-anchor=\"end\">layer %lld</text></svg></div>",
                  (long long)layers - 1);
}

static void card(struct kd_buf *out, const char *key, const char *value)
{
    kd_buf_printf(out,
                  "<div class=\"card\"><div class=\"k\">%s</div><div class=\"v\">%s</div></div>",
                  key, value);
}

void kd_audit_html(struct kd_buf *out, const struct kd_audit *a)
{
    char v[64], why[128];
    kd_buf_str(out,
               "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta "
               "name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>Audit of ");
    kd_html_text(out, a->model);
    kd_buf_printf(out, "</title><style>\n%s</style></head><body><main><h1>", kd_report_style);
    kd_html_text(out, a->model);
    kd_buf_printf(out, "<span class=\"badge %s\">%s</span></h1><p class=\"meta\">of ",
                  a->bad ? "fail" : "pass", a->bad ? "bad experts" : "no bad expert");
    kd_html_text(out, a->source);
    kd_buf_str(out, ". ");
    kd_html_text(out, rule(a, why, sizeof why));
    kd_buf_str(out, ".</p><div class=\"cards\">");
    snprintf(v, sizeof v, "%lld of %lld", (long long)a->n, (long long)a->population);
    card(out, "experts looked at", v);
    snprintf(v, sizeof v, "%lld", (long long)a->bad);
    card(out, "bad", v);
    share(v, sizeof v, a->bound);
    card(out, "bad in the whole model, at most (95 %)", v);
    snprintf(v, sizeof v, "%.4f", a->median);
    card(out, "median relative error", v);
    kd_show_bytes(v, sizeof v, a->model_bytes + a->source_bytes);
    card(out, "fetched", v);
    kd_buf_str(out, "</div>");
    plot(out, a);
    kd_buf_str(out,
               "<div class=\"card\"><h2>Bad experts</h2><table><tr><th>layer, expert</th>"
               "<th>error</th><th>w1</th><th>w3</th><th>w2</th><th>the receipt says</th></tr>");
    for (int64_t i = 0; i < a->n; i++) {
        const struct kd_audit_expert *e = &a->expert[i];
        if (!e->bad)
            continue;
        kd_buf_printf(out, "<tr><td>%lld, %lld</td><td class=\"bad\">%.4f</td>",
                      (long long)e->layer, (long long)e->expert, e->rel);
        for (int p = 0; p < 3; p++)
            kd_buf_printf(out, "<td>%.4f</td>", e->rel_of[p]);
        if (e->said[0] >= 0)
            kd_buf_printf(out, "<td>%.4f, %.4f, %.4f</td></tr>", e->said[0], e->said[1],
                          e->said[2]);
        else
            kd_buf_str(out, "<td></td></tr>");
    }
    kd_buf_str(out, "</table></div></main></body></html>\n");
}
