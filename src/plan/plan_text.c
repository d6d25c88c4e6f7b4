/* The screen: first the verdicts, then what they stand on. */
#include "plan/plan_report.h"

#include "base/show.h"

#include <stdio.h>
#include <string.h>

static const double gib = 1073741824.0;

enum { COLUMNS = 100 };

/* Bytes of `text` that go on a line of `width` columns; *over: more is left on its line. Breaks at
 * a space; a bracket that would be cut in the right half goes to the next line. */
static size_t line_of(const char *text, int width, bool *over)
{
    size_t n = 0, cut = 0, open = 0;
    int at = 0, open_at = 0;
    for (; text[n] && text[n] != '\n'; n++) {
        at += ((unsigned char)text[n] & 0xc0) != 0x80; /* not the rest of a character */
        if (at > width) {
            *over = true;
            if (open_at > width / 2)
                cut = open - 1;
            return cut ? cut : n;
        }
        if (text[n] == ' ')
            cut = n;
        if (text[n] == '(' && n && text[n - 1] == ' ') {
            open = n;
            open_at = at;
        } else if (text[n] == ')') {
            open_at = 0;
        }
    }
    *over = false;
    return n;
}

/* Lines of text in at most 100 columns, `indent` of them empty; what is cut off a line goes below
 * it, `hang` columns further in. */
static void wrapped(struct kd_buf *out, const char *text, int indent, int hang)
{
    while (*text) {
        bool over = true;
        for (int in = indent; over; in = indent + hang) {
            size_t n = line_of(text, COLUMNS - in, &over);
            kd_buf_printf(out, "%*s%.*s\n", n ? in : 0, "", (int)n, text);
            for (text += n; over && *text == ' ';)
                text++;
        }
        text += *text == '\n';
    }
}

enum { TEXT_MAX = 1 << 20 };

/* The same for what was written into a buffer, which it releases. */
static void wrapped_all(struct kd_buf *out, struct kd_buf *text, int indent, int hang)
{
    if (!kd_buf_ok(text, "text", NULL) && text->data)
        wrapped(out, text->data, indent, hang);
    kd_buf_release(text);
}

static void head(struct kd_buf *out, const struct kd_plan *p)
{
    const struct kd_plan_model *m = p->model;
    char all[32], active[32], name[96], tokens[32], text[320];
    kd_show_count(all, sizeof all, m->total_params);
    kd_show_count(active, sizeof active, m->active_params);
    kd_show_exact(tokens, sizeof tokens, (int64_t)p->use.context);
    snprintf(
        text, sizeof text,
        "%s: %s parameters, %s used for a token. %g sequence%s of %s tokens, %lld-bit cache%s.",
        kd_show_text(name, sizeof name, m->name), all, active, p->use.sequences,
        p->use.sequences > 1 ? "s" : "", tokens, (long long)p->use.cache_width * 8,
        p->use.cut_cache ? ", dealt over the devices" : "");
    wrapped(out, text, 0, 0);
}

static void hours_text(char *out, size_t size, const struct kd_plan_hours h[2])
{
    if (h[0].total > 0)
        kd_plan_span_range(out, size, h[0].total * 3600, h[1].total * 3600);
    else
        snprintf(out, size, "no figure");
}

/* "12.3", or "12.3 to 45" where the two differ. */
static const char *range(char *out, size_t size, double lo, double hi)
{
    char a[32], b[32];
    snprintf(a, sizeof a, lo >= 100 ? "%.0f" : "%.3g", lo);
    snprintf(b, sizeof b, hi >= 100 ? "%.0f" : "%.3g", hi);
    if (strcmp(a, b) != 0)
        snprintf(out, size, "%s to %s", a, b);
    else
        snprintf(out, size, "%s", a);
    return out;
}

static void speed(struct kd_buf *out, const struct kd_plan *p, const struct kd_plan_fit *f)
{
    char band[80], ceiling[80], load[32];
    kd_plan_span(load, sizeof load, f->load_s);
    kd_buf_printf(
        out, "  speed: expect %s tok/s (ceiling %s), prompts at %.0f tok/s%s%s\n",
        range(band, sizeof band, f->band[0], f->band[1]),
        range(ceiling, sizeof ceiling, f->step[0].tokens_s, f->step[KD_HITS - 1].tokens_s),
        f->prefill.tokens_s, f->load_s > 0 ? ", loaded in " : "", f->load_s > 0 ? load : "");
    if (p->use.context > p->use.at)
        kd_buf_printf(out, "         at %.0f tokens; with %.0f in the cache the ceiling is %s\n",
                      p->use.at, p->use.context,
                      range(ceiling, sizeof ceiling, f->full[0], f->full[1]));
}

static void verdict(struct kd_buf *out, const struct kd_plan *p, const struct kd_plan_column *c)
{
    const struct kd_machine *m = &c->machine;
    const struct kd_plan_fit *f = c->chosen;
    char text[256], one[80], all[80];
    kd_buf_char(out, '\n');
    if (m->count > 1)
        kd_buf_printf(out, "%d x ", m->count);
    kd_buf_printf(out, "%s\n", kd_show_text(text, sizeof text, m->title));
    kd_plan_sentence(text, sizeof text, p, c);
    wrapped(out, text, 2, 0);
    if (f->verdict == KD_PLAN_NOT_SUPPORTED)
        return;
    if (f->verdict != KD_PLAN_TOO_BIG)
        speed(out, p, f);
    if (c->best_rate > 0)
        kd_buf_printf(out, "  the rate that just fits: %.2f bits for the experts\n", c->best_rate);
    else
        kd_buf_str(out, "  no rate fits in memory, not even 1 bit\n");
    hours_text(one, sizeof one, c->one);
    hours_text(all, sizeof all, c->all);
    kd_buf_printf(out, "  making it: %s on one%s%s%s\n", one, m->count > 1 ? ", " : "",
                  m->count > 1 ? all : "", m->count > 1 ? " on all of them" : "");
}

static void compared(struct kd_buf *out, const struct kd_plan_column *c)
{
    static const char *const word[] = {[KD_PLAN_FITS] = "fits",
                                       [KD_PLAN_FROM_DISK] = "from disk",
                                       [KD_PLAN_TOO_BIG] = "too big",
                                       [KD_PLAN_NOT_SUPPORTED] = "no"};
    const struct kd_plan_fit *f = c->chosen;
    char name[96], band[80] = "-", hours[80], price[32] = "-", prompts[32] = "-";
    snprintf(name, sizeof name, c->machine.count > 1 ? "%s:%d" : "%s", c->machine.key,
             c->machine.count);
    bool runs = f->verdict == KD_PLAN_FITS || f->verdict == KD_PLAN_FROM_DISK;
    if (runs) {
        range(band, sizeof band, f->band[0], f->band[1]);
        snprintf(prompts, sizeof prompts, "%.0f", f->prefill.tokens_s);
    }
    hours_text(hours, sizeof hours, c->machine.count > 1 ? c->all : c->one);
    if (f->price_usd > 0)
        snprintf(price, sizeof price, "%.0f", f->price_usd);
    kd_buf_printf(out, "  %-14.14s %-9s %-14.14s %6.1f %6.1f %-13s %7s %-15s %6s\n", name,
                  word[f->verdict], c->chosen_name, f->device_gib + f->cache_gib,
                  kd_machine_room_gib(&c->machine), band, prompts, hours, price);
}

/* Machines side by side, and all of them as one farm. */
static void together(struct kd_buf *out, const struct kd_plan *p)
{
    char text[80];
    if (p->columns < 2)
        return;
    kd_buf_printf(out, "\n  %-14s %-9s %-14s %6s %6s %-13s %7s %-15s %6s\n", "side by side", "",
                  "form", "GiB", "of", "tok/s", "prompts", "making it", "USD");
    for (int i = 0; i < p->columns; i++)
        compared(out, &p->column[i]);
    hours_text(text, sizeof text, p->together);
    kd_buf_printf(out, "\nmaking it on all of these machines together: %s\n", text);
}

enum { FORMS_A_BLOCK = 4 }; /* side by side in 100 columns */

/* Rows of the sizes of forms from..to-1. */
static void some_sizes(struct kd_buf *out, const struct kd_plan *p, int from, int to, bool small)
{
    static const char *const title[KD_K3_KINDS] = {
        "routed experts",   "KDA attention",  "MLA attention", "routers",
        "latent down, up",  "shared experts", "dense MLP",     "norms",
        "embedding",        "head",           "last norm",     "vision tower",
        "vision projector", "unknown"};
    const struct kd_plan_fit *fit = p->column[0].fit;
    const double unit = small ? 1048576.0 : gib;
    kd_buf_printf(out, "  %-18s", "");
    for (int t = from; t < to; t++)
        kd_buf_printf(out, " %16s", p->target[t].name);
    kd_buf_char(out, '\n');
    for (int k = 0; k < KD_K3_KINDS; k++) {
        double most = 0;
        for (int t = 0; t < p->targets; t++)
            most += (double)fit[t].bytes.kind[k];
        if (!(most > 0))
            continue;
        kd_buf_printf(out, "  %-18s", title[k]);
        for (int t = from; t < to; t++)
            kd_buf_printf(out, " %16.2f", (double)fit[t].bytes.kind[k] / unit);
        kd_buf_char(out, '\n');
    }
    kd_buf_printf(out, "  %-18s", "all files");
    for (int t = from; t < to; t++)
        kd_buf_printf(out, " %16.2f", (double)fit[t].bytes.file_bytes / unit);
    kd_buf_printf(out, "\n  %-18s", "  bytes");
    for (int t = from; t < to; t++)
        kd_buf_printf(out, " %16lld", (long long)fit[t].bytes.file_bytes);
    kd_buf_printf(out, "\n  %-18s", "read for a token");
    for (int t = from; t < to; t++) {
        const struct kd_plan_bytes *b = &fit[t].bytes;
        kd_buf_printf(out, " %13.2f %s", ((double)b->trunk + b->token_expert) / (small ? 1e6 : 1e9),
                      small ? "MB" : "GB");
    }
    kd_buf_char(out, '\n');
}

/* Sizes by kind of tensor, a column for each form. */
static void sizes(struct kd_buf *out, const struct kd_plan *p)
{
    double most = 0;
    for (int t = 0; t < p->targets; t++)
        if ((double)p->column[0].fit[t].bytes.file_bytes > most)
            most = (double)p->column[0].fit[t].bytes.file_bytes;
    bool small = most < gib;
    kd_buf_printf(out, "\nSizes, %s\n", small ? "MiB" : "GiB");
    for (int t = 0; t < p->targets; t += FORMS_A_BLOCK) {
        int to = t + FORMS_A_BLOCK < p->targets ? t + FORMS_A_BLOCK : p->targets;
        if (t)
            kd_buf_char(out, '\n');
        some_sizes(out, p, t, to, small);
    }
}

static void one_form(struct kd_buf *out, const char *name, const struct kd_plan_fit *f)
{
    char devices[16] = "-", ceiling[80], band[80];
    if (f->devices_needed)
        snprintf(devices, sizeof devices, "%d", f->devices_needed);
    kd_buf_printf(out, "  %-16s %8.1f %8.1f %8.1f %7s", name, f->device_gib, f->cache_gib,
                  -f->short_gib, devices);
    if (f->verdict == KD_PLAN_TOO_BIG)
        kd_buf_str(out, "   does not fit\n");
    else
        kd_buf_printf(
            out, "  %-14s %-14s %s\n",
            range(ceiling, sizeof ceiling, f->step[0].tokens_s, f->step[KD_HITS - 1].tokens_s),
            range(band, sizeof band, f->band[0], f->band[1]), kd_plan_verdict_text(f->verdict));
}

static void forms(struct kd_buf *out, const struct kd_plan *p, const struct kd_plan_column *c)
{
    kd_buf_printf(out, "  %-16s %8s %8s %8s %7s  %-14s %s\n", "form", "weights", "caches", "free",
                  "devices", "ceiling", "expect");
    for (int t = 0; t < p->targets; t++)
        one_form(out, p->target[t].name, &c->fit[t]);
    if (c->best_rate > 0 && !kd_plan_listed(p, c->best_rate))
        one_form(out, c->best_target.name, &c->best);
    for (int q = 0; q < p->quants; q++)
        one_form(out, kd_plan_published[q].name, &c->quant[q]);
    kd_buf_str(out,
               "  GiB on each device after cutting; devices that would hold it in memory; tok/s "
               "over the range\n  of hit rates\n");
}

static void places(struct kd_buf *out, const struct kd_plan_column *c)
{
    kd_buf_printf(out, "\n  %-10s %9s %9s %9s %9s %9s %9s  GiB\n", "memory", "in all", "reserve",
                  "caches", "trunk", "experts", "free");
    for (int i = 0; i < c->machine.tiers; i++) {
        const struct kd_plan_place *l = &c->chosen->place[i];
        kd_buf_printf(out, "  %-10s %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f  at %.4g GB/s\n",
                      kd_mem_name(c->machine.tier[i].kind), c->machine.tier[i].gib.v, l->reserve,
                      l->cache, l->trunk, l->experts, l->free, c->machine.tier[i].gb_s.v);
    }
}

static void hits(struct kd_buf *out, const struct kd_plan_fit *f)
{
    if (f->verdict == KD_PLAN_TOO_BIG || !f->tiered)
        return;
    kd_buf_printf(out,
                  "\n  %.0f %% of the experts are in the fastest memory; what that is worth "
                  "depends on the text:\n"
                  "    hit rate  one after the other  both at once  tok/s\n",
                  100 * f->resident);
    for (int h = 0; h < KD_HITS; h++)
        kd_buf_printf(out, "    %8.2f  %19.1f  %12.1f  (%s)\n", f->hit[h], f->step[h].tokens_s,
                      f->overlapped[h], kd_hit_name[h]);
}

static void making(struct kd_buf *out, const struct kd_plan *p, const struct kd_plan_column *c)
{
    const struct kd_plan_hours *h[2] = {c->one, c->all};
    static const char *const who[2] = {"one", "all"};
    kd_buf_printf(out, "\n  hours to make %-12s %13s %13s %13s %13s %13s\n", p->made_name,
                  "encoding", "calibration", "trunk", "serial", "in all");
    for (int i = 0; i < (c->machine.count > 1 ? 2 : 1); i++)
        if (h[i][0].total > 0)
            kd_buf_printf(
                out,
                "  on %-23s %5.1f \u2013 %5.1f %5.1f \u2013 %5.1f %5.1f \u2013 %5.1f %5.1f "
                "\u2013 %5.1f %5.1f \u2013 %5.1f\n",
                who[i], h[i][0].encode, h[i][1].encode, h[i][0].calibrate, h[i][1].calibrate,
                h[i][0].trunk, h[i][1].trunk, h[i][0].serial, h[i][1].serial, h[i][0].total,
                h[i][1].total);
}

void kd_plan_money(struct kd_buf *out, const struct kd_plan *p, const struct kd_plan_column *c)
{
    const struct kd_plan_fit *f = c->chosen;
    const struct kd_machine *m = &c->machine;
    char days[32];
    if (f->verdict == KD_PLAN_TOO_BIG || !(m->price_usd.v > 0))
        return;
    kd_plan_span(days, sizeof days, f->break_even_days < 0 ? -1 : f->break_even_days * 86400);
    kd_buf_printf(out,
                  "$%.0f (%s) and %.0f W (%s). Against an API at $%g a million output tokens (%s), "
                  "running day and night at %.3g tok/s: even after %s; electricity $%.2f a million "
                  "at $%g a kWh (%s).",
                  f->price_usd, m->price_usd.source, f->watts, m->watts.source, p->use.api_usd_out,
                  kd_api_usd_out.source, f->band[1], days, f->usd_per_mtok_power, p->use.usd_kwh,
                  kd_usd_kwh.source);
}

static void details(struct kd_buf *out, const struct kd_plan *p, const struct kd_plan_column *c,
                    bool explain)
{
    char title[96];
    struct kd_buf long_lines;
    kd_buf_printf(out, "\n%s%s\n", kd_show_text(title, sizeof title, c->machine.title),
                  c->machine.count > 1 ? ", each of them" : "");
    if (c->chosen->verdict == KD_PLAN_NOT_SUPPORTED) {
        wrapped(out, c->machine.why_not, 2, 0);
        return;
    }
    forms(out, p, c);
    places(out, c);
    hits(out, c->chosen);
    making(out, p, c);
    kd_buf_char(out, '\n');
    kd_buf_init(&long_lines, TEXT_MAX);
    kd_plan_money(&long_lines, p, c);
    wrapped_all(out, &long_lines, 2, 0);
    if (*c->machine.note) {
        char note[1024];
        snprintf(note, sizeof note, "Note: %s.", c->machine.note);
        kd_buf_char(out, '\n');
        wrapped(out, note, 2, 0);
    }
    if (explain) {
        kd_buf_str(out, "\n  How the numbers come about\n");
        kd_buf_init(&long_lines, TEXT_MAX);
        kd_plan_explain(&long_lines, p, c);
        wrapped_all(out, &long_lines, 0, 23);
    }
}

static void probe_text(struct kd_buf *out, const struct kd_probe *p)
{
    kd_buf_printf(out, "\nMeasured here in %.1f s: %s, %d threads, %s\n", p->seconds, p->cpu,
                  p->threads, p->isa);
    if (p->load > 0.5 * p->threads)
        kd_buf_printf(out,
                      "  this machine is busy (load %.1f): rates are too low and do not agree\n",
                      p->load);
    kd_buf_printf(out, "  memory %.1f GiB (%.1f free), read at %.1f GB/s\n", p->ram_gib,
                  p->ram_free_gib, p->ram_gb_s);
    if (p->disk_gb_s > 0)
        kd_buf_printf(out, "  drive under %s: %.2f GB/s, %.0f GiB free\n", p->disk_path,
                      p->disk_gb_s, p->disk_free_gib);
    else
        kd_buf_printf(out, "  drive: not measured (%s)\n", p->disk_why);
    if (p->gpu.there)
        kd_buf_printf(out, "  GPU: %s, %.1f GiB (%.1f free), %.0f GB/s; %d of them\n", p->gpu.name,
                      p->gpu.gib, p->gpu.free_gib, p->gpu.gb_s, p->gpu.count);
    else
        kd_buf_printf(out, "  GPU: none (%s)\n", p->gpu.why);
    kd_buf_printf(out,
                  "  encoder %.0f tiles/s; products at one token %.1f (BF16), %.1f (MXFP4), %.1f "
                  "(EXL3, 2 bits) Gweights/s\n",
                  p->tiles_s, p->decode_gweights[0], p->decode_gweights[1], p->decode_gweights[2]);
}

static void forecast_text(struct kd_buf *out, const struct kd_forecast *f)
{
    char span[32], parts[4][32];
    const double part[4] = {f->search_s, f->hessian_s, f->products_s, f->feedback_s};
    kd_plan_span(span, sizeof span, f->convert_s);
    for (int i = 0; i < 4; i++)
        kd_plan_span(parts[i], sizeof parts[i], part[i]);
    kd_buf_printf(out,
                  "  decoding this model here, one sequence: %.4g tok/s (%s, with made-up weights: "
                  "layers %.3g ms, head %.3g ms)\n",
                  1 / f->token_s, f->whole ? "all its layers run" : "one layer of each kind run",
                  f->layers_s * 1e3, f->head_s * 1e3);
    kd_buf_printf(
        out,
        "  converting it here: %s (search %s, Hessians %s, products %s, feedback and refit "
        "%s)\n",
        span, parts[0], parts[1], parts[2], parts[3]);
}

static void figures(struct kd_buf *out, const struct kd_doc *d)
{
    kd_buf_str(out, "\nThe documents' figures: as printed there, computed anew from their own "
                    "assumptions, and as they should be\n");
    const char *where = "";
    for (int i = 0; i < d->count; i++) {
        const struct kd_doc_figure *f = &d->f[i];
        if (strcmp(where, f->where) != 0)
            kd_buf_printf(out, "  %s\n", f->where);
        where = f->where;
        kd_buf_printf(out, "    %-44s %10.6g %-5s = %-10.6g %s\n", f->what, f->quoted, f->unit,
                      f->value, f->formula);
        if (f->corrected)
            kd_buf_printf(out, "    %-44s %10.4g %-5s   %s\n", "  right:", f->right, f->unit,
                          f->reason);
    }
}

void kd_plan_text(struct kd_buf *out, const struct kd_plan *p, const struct kd_plan_show *show)
{
    head(out, p);
    for (int i = 0; i < p->columns; i++)
        verdict(out, p, &p->column[i]);
    together(out, p);
    if (p->probe)
        probe_text(out, p->probe);
    if (p->forecast)
        forecast_text(out, p->forecast);
    if (!show->brief) {
        sizes(out, p);
        for (int i = 0; i < p->columns; i++)
            details(out, p, &p->column[i], show->explain);
    }
    if (show->figures && p->doc.count) {
        struct kd_buf lines;
        kd_buf_init(&lines, TEXT_MAX);
        figures(&lines, &p->doc);
        wrapped_all(out, &lines, 0, 8);
    }
    for (const struct kd_glossary *g = kd_plan_glossary; show->glossary && g->word; g++) {
        char line[512];
        if (g == kd_plan_glossary)
            kd_buf_str(out, "\nWords\n");
        snprintf(line, sizeof line, "%-14s %s", g->word, g->means);
        wrapped(out, line, 2, 15);
    }
    if (!show->brief && !show->explain)
        kd_buf_str(out, "\n--explain shows each formula with its numbers, --figures the documents' "
                        "figures beside the\nright ones, --glossary the words.\n");
}
