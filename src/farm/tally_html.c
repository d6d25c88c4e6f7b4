/* One page, nothing from outside. */
#include "base/clock.h"
#include "base/show.h"
#include "farm/tally.h"

#include <stdio.h>
#include <string.h>

static const char head[] =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Encode farm</title><style>"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1b1f24;background:#fff}h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}"
    "table{border-collapse:collapse;width:100%}td,th{padding:.25rem .5rem;text-align:right;"
    "border-bottom:1px solid #d8dee4}td:first-child,th:first-child{text-align:left}"
    "svg{width:100%;height:auto}.done{fill:#2a6f4e}.open{fill:#c98a1b}.bad{fill:#b3261e}"
    ".axis{fill:#57606a;font-size:11px}@media(prefers-color-scheme:dark){body{color:#e6edf3;"
    "background:#0d1117}td,th{border-color:#30363d}.axis{fill:#8b949e}}</style>\n";

static void escaped(struct kd_buf *out, const char *text)
{
    for (; *text; text++)
        if (*text == '<')
            kd_buf_str(out, "&lt;");
        else if (*text == '&')
            kd_buf_str(out, "&amp;");
        else if (*text == '"')
            kd_buf_str(out, "&quot;");
        else
            kd_buf_char(out, *text);
}

/* Seconds of each layer as bars, the open one in another colour. */
static void layer_plot(struct kd_buf *out, const struct kd_farm_status *s)
{
    double most = 0;
    char text[32];
    for (int64_t i = 0; i < s->layer_count; i++) {
        const struct kd_layer_count *c = &s->layers[i];
        double t = (c->closed > 0 ? c->closed : s->now) - c->opened;
        most = t > most ? t : most;
    }
    if (!(most > 0))
        return;
    double step = 900.0 / (double)s->layer_count;
    kd_buf_str(out, "<h2>Seconds of encoding in each layer</h2><svg viewBox=\"0 0 960 220\" "
                    "role=\"img\" aria-label=\"seconds of encoding in each layer\">");
    for (int64_t i = 0; i < s->layer_count; i++) {
        const struct kd_layer_count *c = &s->layers[i];
        double t = (c->closed > 0 ? c->closed : s->now) - c->opened, h = 180 * t / most;
        kd_buf_printf(out,
                      "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\">"
                      "<title>layer %lld: %.1f s, %lld experts</title></rect>",
                      c->poison       ? "bad"
                      : c->closed > 0 ? "done"
                                      : "open",
                      50 + step * (double)i, 190 - h, step > 2 ? step - 1 : step, h,
                      (long long)c->layer, t, (long long)c->done);
    }
    kd_clock_human(text, sizeof text, most);
    kd_buf_printf(out,
                  "<text class=\"axis\" x=\"0\" y=\"16\">%s</text><text class=\"axis\" x=\"0\" "
                  "y=\"190\">0</text><text class=\"axis\" x=\"50\" y=\"208\">layer %lld</text>"
                  "<text class=\"axis\" x=\"950\" y=\"208\" text-anchor=\"end\">%lld</text></svg>",
                  text, (long long)s->layers[0].layer,
                  (long long)s->layers[s->layer_count - 1].layer);
}

static void worker_plot(struct kd_buf *out, const struct kd_farm_status *s)
{
    int64_t all = 0;
    for (int64_t i = 0; i < s->worker_count; i++)
        all += s->workers[i].done;
    if (!all)
        return;
    kd_buf_printf(out,
                  "<h2>Share of each worker</h2><svg viewBox=\"0 0 960 %lld\" role=\"img\" "
                  "aria-label=\"experts encoded by each worker\">",
                  (long long)(24 * s->worker_count + 6));
    for (int64_t i = 0; i < s->worker_count; i++) {
        const struct kd_worker_row *w = &s->workers[i];
        double share = (double)w->done / (double)all;
        bool out_of = !strcmp(w->state, "QUARANTINED");
        kd_buf_printf(out, "<text class=\"axis\" x=\"0\" y=\"%lld\">", (long long)(24 * i + 17));
        escaped(out, w->card.host);
        kd_buf_printf(out,
                      " %s</text><rect class=\"%s\" x=\"200\" y=\"%lld\" width=\"%.1f\" "
                      "height=\"18\"/><text class=\"axis\" x=\"%.1f\" y=\"%lld\">%.1f %%</text>",
                      w->card.id, out_of ? "bad" : "done", (long long)(24 * i + 4), 660 * share,
                      206 + 660 * share, (long long)(24 * i + 17), 100 * share);
    }
    kd_buf_str(out, "</svg>");
}

static void worker_table(struct kd_buf *out, const struct kd_farm_status *s)
{
    char down[32], up[32];
    kd_buf_str(out, "<h2>Workers</h2><table><tr><th>worker<th>host<th>arch<th>state<th>done<th>"
                    "twice<th>s/expert<th>failed<th>crashed<th>received<th>sent<th>idle</tr>");
    for (int64_t i = 0; i < s->worker_count; i++) {
        const struct kd_worker_row *w = &s->workers[i];
        kd_show_bytes(down, sizeof down, w->down_bytes);
        kd_show_bytes(up, sizeof up, w->up_bytes);
        kd_buf_printf(out, "<tr><td>%s<td>", w->card.id);
        escaped(out, w->card.host);
        kd_buf_str(out, "<td>");
        escaped(out, w->card.arch);
        kd_buf_printf(
            out, "<td>%s<td>%lld<td>%lld<td>%.2f<td>%lld<td>%lld<td>%s<td>%s<td>%.0f %%</tr>",
            w->state, (long long)w->done, (long long)w->again, w->rate_s, (long long)w->failures,
            (long long)w->crashes, down, up, 100 * kd_farm_idle(s, w));
    }
    kd_buf_str(out, "</table>");
}

static void machines_table(struct kd_buf *out, const struct kd_farm_status *s,
                           const struct kd_farm_forecast *f)
{
    char text[64];
    double experts_s, rest_s;
    if (!kd_farm_on(s, f, 1, &experts_s, &rest_s))
        return;
    kd_buf_printf(out,
                  "<h2>The whole run on other numbers of workers</h2><p>From this run's rates: "
                  "%.2f experts a second, and the coordinator's own part and the trunk, which do "
                  "not shrink.</p><table><tr><th>workers<th>experts<th>the rest<th>in all</tr>",
                  f->rate);
    for (int64_t n = 1; n <= 64 && kd_farm_on(s, f, n, &experts_s, &rest_s); n *= 2) {
        kd_buf_printf(out, "<tr><td>%lld<td>", (long long)n);
        kd_clock_human(text, sizeof text, experts_s);
        kd_buf_printf(out, "%s<td>", text);
        kd_clock_human(text, sizeof text, rest_s);
        kd_buf_printf(out, "%s<td>", text);
        kd_clock_human(text, sizeof text, experts_s + rest_s);
        kd_buf_printf(out, "%s</tr>", text);
    }
    kd_buf_str(out, "</table>");
}

static void event_table(struct kd_buf *out, const struct kd_farm_status *s)
{
    kd_buf_str(out, "<h2>What happened</h2><table><tr><th>seconds<th>layer<th>expert<th>attempt"
                    "<th>worker<th>what<th>detail</tr>");
    for (int64_t i = 0; i < s->event_count; i++) {
        const struct kd_event_row *e = &s->events[i];
        if (!strcmp(e->what, "claim") || !strcmp(e->what, "done"))
            continue;
        kd_buf_printf(out, "<tr><td>%.1f<td>%lld<td>%lld<td>%lld<td>%s<td>%s<td>",
                      e->at - s->created, (long long)e->layer, (long long)e->expert,
                      (long long)e->attempt, e->worker, e->what);
        escaped(out, e->detail);
        kd_buf_str(out, "</tr>");
    }
    kd_buf_str(out, "</table>");
}

void kd_farm_html(struct kd_buf *out, const struct kd_farm_status *s, int64_t layers_total)
{
    struct kd_farm_forecast f;
    char text[64];
    kd_farm_forecast_of(s, layers_total, &f);
    kd_buf_str(out, head);
    kd_clock_human(text, sizeof text, s->now - s->created);
    kd_buf_str(out, "<h1>Encode farm</h1><p>");
    escaped(out, s->state);
    kd_buf_printf(out, ", for %s; %lld experts done, %lld to come", text, (long long)f.jobs_done,
                  (long long)f.jobs_left);
    if (s->trunk_done + s->trunk_open)
        kd_buf_printf(out, "; %lld tensors of the trunk done", (long long)s->trunk_done);
    if (f.rate > 0) {
        kd_clock_human(text, sizeof text, f.left_s);
        kd_buf_printf(out, ", about %s more", text);
    }
    kd_buf_printf(out, ". Coordinator's epoch %lld.</p>", (long long)s->epoch);
    layer_plot(out, s);
    worker_plot(out, s);
    worker_table(out, s);
    machines_table(out, s, &f);
    event_table(out, s);
    kd_buf_str(out, "</html>\n");
}
