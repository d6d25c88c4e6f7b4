/* The screen: first the verdicts, then what they stand on. */
#include "plan/plan_report.h"

#include "base/show.h"

#include <stdio.h>
#include <string.h>

static const double gib = 1073741824.0;

static void head(struct kd_buf *out, const struct kd_plan *p)
{
    const struct kd_plan_model *m = p->model;
    char all[32], active[32], name[96], tokens[32];
    kd_show_count(all, sizeof all, m->total_params);
    kd_show_count(active, sizeof active, m->active_params);
    kd_show_exact(tokens, sizeof tokens, (int64_t)p->use.context);
    kd_buf_printf(out, "%s: %s parameters, %s used for a token. %g sequence%s of %s tokens, ",
                  kd_show_text(name, sizeof name, m->name), all, active, p->use.sequences,
                  p->use.sequences > 1 ? "s" : "", tokens);
    kd_buf_printf(out, "%lld-bit cache%s.\n", (long long)p->use.cache_width * 8,
                  p->use.cut_cache ? ", dealt over the devices" : "");
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

/* A paragraph in lines of at most 100 columns, two of them indentation; a bracket that would be cut
 * in the right half goes to the next line. */
static void wrapped(struct kd_buf *out, const char *text)
{
    enum { WIDTH = 98 };
    while (*text) {
        size_t n = strlen(text), open = 0;
        if (n > WIDTH) {
            for (n = WIDTH; n > 1 && text[n] != ' ';)
                n--;
            for (size_t i = 0; i < n; i++)
                open = text[i] == '(' ? i : text[i] == ')' ? 0 : open;
            n = open > WIDTH / 2 ? open - 1 : n;
        }
        kd_buf_printf(out, "  %.*s\n", (int)n, text);
        for (text += n; *text == ' ';)
            text++;
    }
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
    wrapped(out, text);
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
    kd_buf_printf(out, "  %-16.16s %-14s %-16s %9.1f %9.1f  %-14s %8s  %-18s %8s\n", name,
                  kd_plan_verdict_text(f->verdict), c->chosen_name, f->device_gib + f->cache_gib,
                  kd_machine_room_gib(&c->machine), band, prompts, hours, price);
}

/* Machines side by side, and all of them as one farm. */
static void together(struct kd_buf *out, const struct kd_plan *p)
{
    char text[80];
    if (p->columns < 2)
        return;
    kd_buf_printf(out, "\n  %-16s %-14s %-16s %9s %9s  %-14s %8s  %-18s %8s\n", "side by side", "",
                  "form", "GiB", "of", "tok/s", "prompts", "making it", "USD");
    for (int i = 0; i < p->columns; i++)
        compared(out, &p->column[i]);
    hours_text(text, sizeof text, p->together);
    kd_buf_printf(out, "\nmaking it on all of these machines together: %s\n", text);
}

/* Sizes by kind of tensor, a column for each form. */
static void sizes(struct kd_buf *out, const struct kd_plan *p)
{
    static const char *const title[KD_K3_KINDS] = {
        "routed experts",   "KDA attention",  "MLA attention", "routers",
        "latent down, up",  "shared experts", "dense MLP",     "norms",
        "embedding",        "head",           "last norm",     "vision tower",
        "vision projector", "unknown"};
    double most_bytes = 0;
    for (int t = 0; t < p->targets; t++)
        if ((double)p->column[0].fit[t].bytes.file_bytes > most_bytes)
            most_bytes = (double)p->column[0].fit[t].bytes.file_bytes;
    bool small = most_bytes < gib;
    const double unit = small ? 1048576.0 : gib;
    kd_buf_printf(out, "\nSizes, %s\n  %-18s", small ? "MiB" : "GiB", "");
    for (int t = 0; t < p->targets; t++)
        kd_buf_printf(out, " %16s", p->target[t].name);
    kd_buf_char(out, '\n');
    for (int k = 0; k < KD_K3_KINDS; k++) {
        double most = 0;
        for (int t = 0; t < p->targets; t++)
            most += (double)p->column[0].fit[t].bytes.kind[k];
        if (!(most > 0))
            continue;
        kd_buf_printf(out, "  %-18s", title[k]);
        for (int t = 0; t < p->targets; t++)
            kd_buf_printf(out, " %16.2f", (double)p->column[0].fit[t].bytes.kind[k] / unit);
        kd_buf_char(out, '\n');
    }
    kd_buf_printf(out, "  %-18s", "all files");
    for (int t = 0; t < p->targets; t++)
        kd_buf_printf(out, " %16.2f", (double)p->column[0].fit[t].bytes.file_bytes / unit);
    kd_buf_printf(out, "\n  %-18s", "  bytes");
    for (int t = 0; t < p->targets; t++)
        kd_buf_printf(out, " %16lld", (long long)p->column[0].fit[t].bytes.file_bytes);
    kd_buf_printf(out, "\n  %-18s", "read for a token");
    for (int t = 0; t < p->targets; t++) {
        const struct kd_plan_bytes *b = &p->column[0].fit[t].bytes;
        kd_buf_printf(out, " %13.2f %s", ((double)b->trunk + b->token_expert) / (small ? 1e6 : 1e9),
                      small ? "MB" : "GB");
    }
    kd_buf_char(out, '\n');
}

static void one_form(struct kd_buf *out, const char *name, const struct kd_plan_fit *f)
{
    char devices[16] = "-", ceiling[80], band[80];
    if (f->devices_needed)
        snprintf(devices, sizeof devices, "%d", f->devices_needed);
    kd_buf_printf(out, "  %-18s %9.1f %9.1f %9.1f %8s", name, f->device_gib, f->cache_gib,
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
    kd_buf_printf(out, "  %-18s %9s %9s %9s %8s  %-14s %s\n", "form", "weights", "caches", "free",
                  "devices", "ceiling", "expect");
    for (int t = 0; t < p->targets; t++)
        one_form(out, p->target[t].name, &c->fit[t]);
    if (c->best_rate > 0 && !kd_plan_listed(p, c->best_rate))
        one_form(out, c->best_target.name, &c->best);
    for (int q = 0; q < p->quants; q++)
        one_form(out, kd_plan_published[q].name, &c->quant[q]);
    kd_buf_str(out,
               "  GiB on each device after cutting; devices that would hold it in memory; tok/s "
               "over the range of hit rates\n");
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
                  "depends on the text:\n",
                  100 * f->resident);
    for (int h = 0; h < KD_HITS; h++)
        kd_buf_printf(out,
                      "    hit rate %.2f: %5.1f tok/s one memory after the other, %5.1f both at "
                      "once  (%s)\n",
                      f->hit[h], f->step[h].tokens_s, f->overlapped[h], kd_hit_name[h]);
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
    struct kd_buf money;
    kd_buf_printf(out, "\n%s%s\n", kd_show_text(title, sizeof title, c->machine.title),
                  c->machine.count > 1 ? ", each of them" : "");
    if (c->chosen->verdict == KD_PLAN_NOT_SUPPORTED) {
        kd_buf_printf(out, "  %s\n", c->machine.why_not);
        return;
    }
    forms(out, p, c);
    places(out, c);
    hits(out, c->chosen);
    making(out, p, c);
    kd_buf_init(&money, 1 << 16);
    kd_plan_money(&money, p, c);
    kd_buf_char(out, '\n');
    if (money.size_bytes && kd_buf_ok(&money, "money", NULL) == 0)
        wrapped(out, money.data);
    kd_buf_release(&money);
    if (*c->machine.note) {
        char note[1024];
        snprintf(note, sizeof note, "Note: %s.", c->machine.note);
        kd_buf_char(out, '\n');
        wrapped(out, note);
    }
    if (explain) {
        kd_buf_str(out, "\n  How the numbers come about\n");
        kd_plan_explain(out, p, c);
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

void kd_plan_figures_text(struct kd_buf *out, const struct kd_doc *d)
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
    if (show->figures && p->doc.count)
        kd_plan_figures_text(out, &p->doc);
    if (show->glossary) {
        kd_buf_str(out, "\nWords\n");
        for (const struct kd_glossary *g = kd_plan_glossary; g->word; g++)
            kd_buf_printf(out, "  %-14s %s\n", g->word, g->means);
    }
    if (!show->brief && !show->explain)
        kd_buf_str(out, "\n--explain shows each formula with its numbers, --figures the documents' "
                        "figures beside the right ones, --glossary the words.\n");
}
