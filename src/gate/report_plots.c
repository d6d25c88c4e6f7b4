#include "gate/report_plots.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The frame every plot is drawn in, in SVG units. */
enum { W = 520, H = 220, LEFT = 46, RIGHT = 510, TOP = 12, BOTTOM = 190 };

static void begin(struct kd_buf *out, const char *title, const char *note)
{
    kd_buf_printf(out,
                  "<section class=\"plot\"><h2>%s</h2><p class=\"note\">%s</p>\n"
                  "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n",
                  title, note, W, H, title);
}

static void end(struct kd_buf *out)
{
    kd_buf_str(out, "</svg></section>\n");
}

static double y_of(double value, double lo, double hi)
{
    double share = hi > lo ? (value - lo) / (hi - lo) : 0;
    share = share < 0 ? 0 : share > 1 ? 1 : share;
    return BOTTOM - share * (BOTTOM - TOP);
}

/* A round step that cuts span into three to seven. */
static double step_of(double span)
{
    double step = pow(10, floor(log10(span > 0 ? span : 1)) - 1);
    static const double times[] = {1, 2, 2.5, 5, 10, 20, 25, 50};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        if (span / (step * times[i]) <= 5.5)
            return step * times[i];
    return span;
}

static void grid(struct kd_buf *out, double lo, double hi, double scale, const char *unit)
{
    double step = step_of(hi - lo);
    for (int i = 0; i < 12; i++) {
        double v = (ceil(lo / step - 1e-9) + i) * step;
        if (v > hi + step * 1e-9)
            break;
        double y = y_of(v, lo, hi);
        kd_buf_printf(out,
                      "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                      "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g%s</text>\n",
                      LEFT, RIGHT, y, y, LEFT - 6, y + 4, v * scale, unit);
    }
}

static void label(struct kd_buf *out, double x, const char *text)
{
    kd_buf_printf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x,
                  BOTTOM + 15, text);
}

/* "2^-12" as people read it: 0.00024 */
static void short_number(char *out, size_t size, double v)
{
    if (v == 0 || v >= 0.001)
        snprintf(out, size, "%.2g", v);
    else
        snprintf(out, size, "%.0e", v);
}

static double x_of_kld(double v, double width)
{
    /* Bin 0 ends at 2^-20, each further one is a factor of 2. */
    double at = v > 0 ? log2(v) + 21 : 0;
    at = at < 0 ? 0 : at > KD_KLD_BINS ? KD_KLD_BINS : at;
    return LEFT + at * width;
}

void kd_plot_kld(struct kd_buf *out, const struct kd_check *c)
{
    double width = (double)(RIGHT - LEFT) / KD_KLD_BINS, most = 0;
    char text[32];
    for (int b = 0; b < KD_KLD_BINS; b++)
        most = fmax(most, (double)c->kld_bin[b] / (double)c->tokens);
    begin(out, "KLD of positions",
          "Share of positions, each bar a factor of 2. Lines: median, 95 % and 99 %.");
    grid(out, 0, most, 100, "%");
    for (int b = 0; b < KD_KLD_BINS; b++) {
        double share = (double)c->kld_bin[b] / (double)c->tokens, y = y_of(share, 0, most);
        kd_buf_printf(out,
                      "<rect class=\"fa\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                      "rx=\"1.5\"><title>from %.2g nats: %lld positions</title></rect>\n",
                      LEFT + b * width + 1, y, width - 2, BOTTOM - y, kd_kld_bin_floor(b),
                      (long long)c->kld_bin[b]);
    }
    const double q[3] = {c->kld_median, c->kld_p95, c->kld_p99};
    static const char *const name[3] = {"median", "95 %", "99 %"};
    for (int i = 0; i < 3; i++) {
        double x = x_of_kld(q[i], width);
        kd_buf_printf(out,
                      "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"><title>%s: "
                      "%.4g nats</title></line>\n",
                      x, x, TOP, BOTTOM, name[i], q[i]);
    }
    for (int b = 1; b < KD_KLD_BINS; b += 4) {
        short_number(text, sizeof text, kd_kld_bin_floor(b));
        label(out, LEFT + b * width, text);
    }
    kd_buf_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">nats</text>\n", RIGHT,
                  BOTTOM + 28);
    end(out);
}

void kd_plot_bands(struct kd_buf *out, const struct kd_check *c)
{
    int count = 0;
    double most = 0;
    for (; count < KD_BANDS && c->band[count].tokens; count++)
        most = fmax(most, c->band[count].kld);
    most = most > 0 ? most * 1.1 : 1;
    begin(out, "KLD by position in the row", "Mean over the positions of each band, in nats.");
    grid(out, 0, most, 1, "");
    double room = (double)(RIGHT - LEFT) / count, width = room * 0.6 < 90 ? room * 0.6 : 90;
    for (int b = 0; b < count; b++) {
        const struct kd_band *d = &c->band[b];
        double x = LEFT + (b + 0.5) * room, y = y_of(d->kld, 0, most);
        int64_t last = (b + 1 < count ? c->band[b + 1].first : c->cols) - 1;
        char text[64];
        kd_buf_printf(out,
                      "<rect class=\"fa\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                      "rx=\"2\"><title>%lld positions, same top-1 %.2f %%</title></rect>\n"
                      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.4f</text>\n",
                      x - width / 2, y, width, BOTTOM - y, (long long)d->tokens, 100 * d->top1, x,
                      y - 5, d->kld);
        snprintf(text, sizeof text, "%lld\u2013%lld", (long long)d->first, (long long)last);
        label(out, x, text);
    }
    end(out);
}

static void layer_labels(struct kd_buf *out, int64_t layers, double room)
{
    char text[24];
    int64_t every = (layers + 11) / 12;
    for (int64_t l = 0; l < layers; l += every) {
        snprintf(text, sizeof text, "%lld", (long long)l);
        label(out, LEFT + ((double)l + 0.5) * room, text);
    }
    kd_buf_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">layer</text>\n", RIGHT,
                  BOTTOM + 28);
}

static void bound_line(struct kd_buf *out, const char *name, double v, double lo)
{
    double y = y_of(v, lo, 1);
    kd_buf_printf(out,
                  "<line class=\"bound\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"><title>%s "
                  "required: %.4g</title></line>\n",
                  LEFT, RIGHT, y, y, name, v);
}

void kd_plot_router(struct kd_buf *out, const struct kd_check *c, const struct kd_verdict *v)
{
    double low = c->router_min, room = (double)(RIGHT - LEFT) / (double)c->layer_count;
    if (c->router_min_layer < 0)
        return;
    for (int i = 0; i < v->count; i++)
        if (!strncmp(v->r[i].figure, "router", 6))
            low = fmin(low, v->r[i].bound);
    double lo = floor((low - 0.02) * 10) / 10;
    lo = lo < 0 ? 0 : lo > 0.9 ? 0.9 : lo;
    begin(
        out, "Router agreement by layer",
        "Share of the source's experts that the quantized model takes too. The axis does not start "
        "at 0; dashed: required.");
    grid(out, lo, 1, 100, "%");
    for (int64_t l = 0; l < c->layer_count; l++) {
        if (!c->layer[l].moe)
            continue;
        double y = y_of(c->layer[l].share, lo, 1);
        kd_buf_printf(out,
                      "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                      "rx=\"1.5\"><title>layer %lld: %.2f %%</title></rect>\n",
                      l == c->router_min_layer ? "fb" : "fa", LEFT + ((double)l + 0.15) * room, y,
                      room * 0.7, BOTTOM - y, (long long)l, 100 * c->layer[l].share);
    }
    for (int i = 0; i < v->count; i++)
        if (!strncmp(v->r[i].figure, "router", 6))
            bound_line(out, v->r[i].figure, v->r[i].bound, lo);
    layer_labels(out, c->layer_count, room);
    end(out);
}

void kd_plot_margins(struct kd_buf *out, const struct kd_check *c)
{
    double kept[KD_MARGIN_BINS] = {0}, lost[KD_MARGIN_BINS] = {0}, most = 0, all = 0;
    double width = (double)(RIGHT - LEFT) / KD_MARGIN_BINS;
    char text[32];
    if (c->router_min_layer < 0)
        return;
    for (int b = 0; b < KD_MARGIN_BINS; b++) {
        for (int64_t l = 0; l < c->layer_count; l++) {
            kept[b] += (double)c->layer[l].agree.bin_kept[b];
            lost[b] += (double)c->layer[l].agree.bin_lost[b];
        }
        most = fmax(most, kept[b] + lost[b]);
        all += kept[b] + lost[b];
    }
    begin(
        out, "Routing margins",
        "Score of the last expert taken less the first not taken, in the source; share of choices."
        "<span class=\"key\" style=\"background:var(--a)\"></span>set kept"
        "<span class=\"key\" style=\"background:var(--b)\"></span>an expert lost");
    grid(out, 0, most / all, 100, "%");
    for (int b = 0; b < KD_MARGIN_BINS; b++) {
        double y = y_of(kept[b], 0, most), top = y_of(kept[b] + lost[b], 0, most);
        double x = LEFT + b * width + 1.5;
        kd_buf_printf(out,
                      "<rect class=\"fa\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>"
                      "<rect class=\"fb\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\">"
                      "<title>from %.2g: %.0f kept, %.0f with a lost one</title></rect>\n",
                      x, y, width - 3, BOTTOM - y, x, top, width - 3, y - top,
                      kd_router_bin_floor(b), kept[b], lost[b]);
    }
    for (int b = 1; b < KD_MARGIN_BINS; b += 3) {
        short_number(text, sizeof text, kd_router_bin_floor(b));
        label(out, LEFT + b * width, text);
    }
    end(out);
}

void kd_plot_stream(struct kd_buf *out, const struct kd_check *c)
{
    double most = 0, room = (double)(RIGHT - LEFT) / (double)c->layer_count;
    for (int64_t l = 0; l < c->layer_count; l++)
        most = fmax(most, c->layer[l].stream);
    most = most > 0 ? most * 1.05 : 1;
    begin(out, "Error of the residual stream",
          "|quantized \u2212 source| / |source| after each layer, over the sampled positions.");
    grid(out, 0, most, 1, "");
    kd_buf_str(out, "<polyline class=\"la\" points=\"");
    for (int64_t l = 0; l < c->layer_count; l++)
        kd_buf_printf(out, "%.1f,%.1f ", LEFT + ((double)l + 0.5) * room,
                      y_of(c->layer[l].stream, 0, most));
    kd_buf_str(out, "\"/>\n");
    for (int64_t l = 0; l < c->layer_count; l++)
        kd_buf_printf(out,
                      "<circle class=\"fa\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\"><title>layer %lld: "
                      "%.5f</title></circle>\n",
                      LEFT + ((double)l + 0.5) * room, y_of(c->layer[l].stream, 0, most),
                      c->layer_count > 40 ? "2" : "3.5", (long long)l, c->layer[l].stream);
    layer_labels(out, c->layer_count, room);
    end(out);
}

/* One bar a kind of answer: both right, lost, gained, both wrong; one model alone: right, wrong. */
static void flip_bar(struct kd_buf *out, const char *name, const struct kd_flips *f, int64_t n,
                     bool paired, int y)
{
    const int64_t part[4] = {f->src_right - f->lost, f->lost, f->gained,
                             n - f->src_right - f->gained};
    static const char *const fill[4] = {"var(--a)", "var(--bad)", "var(--good)", "var(--grid)"};
    static const char *const both[4] = {"right in both", "right to wrong", "wrong to right",
                                        "wrong in both"};
    static const char *const alone[4] = {"right", "", "", "wrong"};
    const char *const *what = paired ? both : alone;
    double x = 130, full = 850;
    kd_buf_printf(out, "<text x=\"0\" y=\"%d\">%s</text>\n", y + 15, name);
    for (int i = 0; i < 4; i++) {
        double w = full * (double)part[i] / (double)n;
        kd_buf_printf(out,
                      "<rect x=\"%.1f\" y=\"%d\" width=\"%.2f\" height=\"22\" style=\"fill:%s\">"
                      "<title>%s: %lld</title></rect>\n",
                      x, y, w, fill[i], what[i], (long long)part[i]);
        x += w;
    }
}

void kd_plot_flips(struct kd_buf *out, const struct kd_battery *b)
{
    kd_buf_str(out,
               "<p class=\"note\"><span class=\"key\" style=\"background:var(--a);margin-left:0\">"
               "</span>right");
    if (b->paired)
        kd_buf_str(out, " in both<span class=\"key\" style=\"background:var(--bad)\"></span>"
                        "right \u2192 wrong<span class=\"key\" "
                        "style=\"background:var(--good)\"></span>wrong \u2192 right");
    kd_buf_str(out, "<span class=\"key\" style=\"background:var(--grid)\"></span>wrong");
    kd_buf_str(out, b->paired ? " in both" : "");
    kd_buf_str(out, "</p>\n<svg viewBox=\"0 0 1000 66\" role=\"img\" aria-label=\"turns\">\n");
    flip_bar(out, "exact turns", &b->exact, b->requests, b->paired, 4);
    flip_bar(out, "valid tool calls", &b->calls, b->requests, b->paired, 36);
    kd_buf_str(out, "</svg>\n");
}
