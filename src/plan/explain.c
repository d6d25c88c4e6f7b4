/* Every formula of an answer with its numbers and where they come from. */
#include "plan/plan_report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const double gib = 1073741824.0;

static void line(struct kd_buf *out, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void line(struct kd_buf *out, const char *name, const char *fmt, ...)
{
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    kd_buf_printf(out, "    %-18s %s\n", name, text);
}

static void sourced(struct kd_buf *out, const char *name, const char *unit,
                    const struct kd_sourced *n)
{
    line(out, name, "%.6g %s  [%s]", n->v, unit, n->source);
}

static void inputs(struct kd_buf *out, const struct kd_machine *m)
{
    for (int i = 0; i < m->tiers; i++) {
        char name[40];
        snprintf(name, sizeof name, "%s size", kd_mem_name(m->tier[i].kind));
        sourced(out, name, "GiB", &m->tier[i].gib);
        snprintf(name, sizeof name, "%s speed", kd_mem_name(m->tier[i].kind));
        sourced(out, name, "GB/s", &m->tier[i].gb_s);
        snprintf(name, sizeof name, "%s reserve", kd_mem_name(m->tier[i].kind));
        sourced(out, name, "GiB", &m->tier[i].reserve);
    }
    sourced(out, "products", "TFLOPS, prefill", &m->tflops);
    sourced(out, "fp32 peak", "TFLOPS, calibration", &m->fp32_tflops);
    sourced(out, "encoder", "tiles/s", &m->tiles_s);
    if (m->count > 1) {
        sourced(out, "link", "GB/s", &m->link_gb_s);
        sourced(out, "collective", "us", &m->collective_us);
    }
    sourced(out, "power", "W", &m->watts);
    sourced(out, "price", "USD", &m->price_usd);
}

static void memory(struct kd_buf *out, const struct kd_plan *p, const struct kd_plan_column *c)
{
    const struct kd_plan_fit *f = c->chosen;
    const struct kd_plan_use *u = &p->use;
    double token = (double)kd_plan_cache_token_bytes(p->model, u->cache_width),
           state = (double)kd_plan_state_bytes(p->model);
    int n = c->machine.count, dealt = u->cut_cache ? n : 1;
    line(out, "room", "sum of (size - reserve) without drives = %.1f GiB",
         kd_machine_room_gib(&c->machine));
    if (n > 1)
        line(out, "weights on each",
             "whole 128-blocks and heads of each of %d, %.2f GB in full on all = %.1f GiB of %.1f",
             n, ((double)f->bytes.replicated + (double)f->bytes.embed) / 1e9, f->device_gib,
             (double)f->bytes.tensor_bytes / gib);
    line(out, "caches", "%g x (%g tokens x %.0f B / %d + %.1f MB of KDA state / %d) = %.2f GiB",
         u->sequences, u->context, token, dealt, state / 1e6, n, f->cache_gib);
    line(out, "free", "%.1f - %.1f - %.2f = %.1f GiB", kd_machine_room_gib(&c->machine),
         f->device_gib, f->cache_gib, -f->short_gib);
}

static void experts(struct kd_buf *out, const struct kd_plan_fit *f, int h)
{
    const struct kd_roof *r = &f->roof[h];
    char text[400] = "";
    size_t n = 0;
    for (int i = 0; i < r->tiers && n < sizeof text; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%.3f x %.2f GB / %d / %.4g GB/s",
                              i ? " + " : "", r->tier_share[i], r->token_expert_gb, r->ranks,
                              r->tier_gb_s[i]);
    if (!r->tiers)
        snprintf(text, sizeof text, "%.2f GB / %d / %.4g GB/s", r->token_expert_gb, r->ranks,
                 r->gb_s);
    if (r->imbalance > 0)
        line(out, h ? "" : "experts", "(%s) x %.2f (dealt out whole: fullest rank) = %.2f ms", text,
             r->imbalance, f->step[h].ms[KD_ROOF_EXPERTS]);
    else
        line(out, h ? "" : "experts", "%s = %.2f ms", text, f->step[h].ms[KD_ROOF_EXPERTS]);
}

static void decode(struct kd_buf *out, const struct kd_plan_fit *f)
{
    const struct kd_roof *r = &f->roof[0];
    const struct kd_roof_step *s = &f->step[0];
    if (r->trunk_spill_gb > 0)
        line(out, "trunk", "%.2f GB / %d / %.4g GB/s + %.2f GB / %d / %.4g GB/s = %.2f ms",
             r->trunk_gb - r->trunk_spill_gb, r->ranks, r->gb_s, r->trunk_spill_gb, r->ranks,
             r->spill_gb_s, s->ms[KD_ROOF_TRUNK]);
    else
        line(out, "trunk", "%.2f GB / %d / %.4g GB/s = %.2f ms", r->trunk_gb, r->ranks, r->gb_s,
             s->ms[KD_ROOF_TRUNK]);
    for (int h = 0; h < (f->tiered ? KD_HITS : 1); h++)
        experts(out, f, h);
    if (r->ranks > 1)
        line(out, "replicated", "%.2f GB x %d/%d / %.4g GB/s = %.2f ms", r->replicated_gb,
             r->ranks - 1, r->ranks, r->gb_s, s->ms[KD_ROOF_REPLICATED]);
    line(out, "state", "%g x 2 x %.4f GB / %d / %.4g GB/s = %.2f ms", r->sequences, r->state_gb,
         r->ranks, r->gb_s, s->ms[KD_ROOF_STATE]);
    line(out, "cache", "%g x %g tokens x %.3f kB / %g / %.4g GB/s = %.2f ms", r->sequences,
         r->context, r->cache_token_kb, r->cut_cache, r->gb_s, s->ms[KD_ROOF_CACHE]);
    if (r->ranks > 1)
        line(out, "network", "%.0f x (%.3g us + 2 x %d/%d x %.0f B x %g / %.4g GB/s) = %.2f ms",
             r->collectives, r->collective_us, r->ranks - 1, r->ranks, r->payload_bytes,
             r->sequences, r->link_gb_s, s->ms[KD_ROOF_NET]);
    line(out, "fixed", "launches, sampling = %.2f ms  [serving 7.1, estimate]", r->fixed_ms);
    line(out, "ceiling", "%g / %.2f ms = %.2f tok/s, to %g / %.2f ms = %.2f tok/s", r->sequences,
         s->total_ms, s->tokens_s, r->sequences, f->step[KD_HITS - 1].total_ms,
         f->step[KD_HITS - 1].tokens_s);
    line(out, "expect", "%.2f x %.2f = %.2f, to %.2f x %.2f = %.2f tok/s", kd_roof_band[0],
         s->tokens_s, f->band[0], kd_roof_band[1], f->step[KD_HITS - 1].tokens_s, f->band[1]);
    line(out, "prefill",
         "%.0f tokens / max(read %.3f s, compute %.3f s = %.0f x (%.1f GFLOP + %.2f MFLOP x "
         "context) "
         "/ %d x %.4g TFLOPS, network %.3f s) = %.1f tok/s",
         f->prefill_chunk, f->prefill.read_s, f->prefill.compute_s, f->prefill_chunk,
         r->linear_gflop, r->context_mflop, r->ranks, r->tflops, f->prefill.net_s,
         f->prefill.tokens_s);
}

static void making(struct kd_buf *out, const struct kd_plan *p, const struct kd_plan_column *c)
{
    const struct kd_plan_effort *e = &p->effort;
    const struct kd_machine *m = &c->machine;
    if (!(c->one[0].total > 0))
        return;
    line(out, "encode",
         "%.4g tiles (scale search 1.146 of them) / %.4g tiles/s, to a quarter of the "
         "rate = %.1f to %.1f h",
         e->tiles, m->tiles_s.v, c->one[0].encode, c->one[1].encode);
    line(out, "calibrate",
         "%.3g FLOP (all tokens through gate and up, down's Hessians) / (%.4g TFLOPS "
         "x 0.70 to 0.35) = %.1f to %.1f h",
         e->calibrate_flop, m->fp32_tflops.v, c->one[0].calibrate, c->one[1].calibrate);
    line(out, "trunk", "%.3g tiles and %.3g FLOP = %.1f to %.1f h", e->trunk_tiles, e->trunk_flop,
         c->one[0].trunk, c->one[1].trunk);
    line(out, "serial",
         "%.3g FLOP of the quantized experts, %lld x %.2f GB hashed at 2.04 GB/s = %.1f "
         "to %.1f h",
         e->forward_flop, (long long)e->layers, e->sealed_gb, c->one[0].serial, c->one[1].serial);
    if (m->count > 1)
        line(out, "on all",
             "(encode + calibrate) / %d + trunk + serial + %lld layers x %d x %.2f GB / "
             "1.087 GB/s (10 GbE, %.1f h) = %.1f to %.1f h",
             m->count, (long long)e->layers, m->count - 1, e->latent_gb,
             (double)e->layers * kd_plan_ship_s(e, m->count - 1) / 3600, c->all[0].total,
             c->all[1].total);
    line(out, "not in it",
         "fetching %.0f GB, and a GPU encoder that the program does not have yet "
         "where the rate is a GPU's",
         e->source_gb);
}

static void money(struct kd_buf *out, const struct kd_plan *p, const struct kd_plan_column *c)
{
    const struct kd_plan_fit *f = c->chosen;
    if (!(f->price_usd > 0))
        return;
    line(out, "even after",
         "$%.0f / (%.2f tok/s x 86400 x $%g / 1e6 - %.0f W x 24 h x $%g / 1000) = %.4g days",
         f->price_usd, f->band[1], p->use.api_usd_out, f->watts, p->use.usd_kwh,
         f->break_even_days);
}

void kd_plan_explain(struct kd_buf *out, const struct kd_plan *p, const struct kd_plan_column *c)
{
    inputs(out, &c->machine);
    memory(out, p, c);
    if (c->chosen->verdict != KD_PLAN_TOO_BIG) {
        decode(out, c->chosen);
        if (c->chosen->load_s > 0)
            line(out, "load", "weights that are in memory over the drive's speed = %.1f s",
                 c->chosen->load_s);
    }
    making(out, p, c);
    if (c->chosen->verdict != KD_PLAN_TOO_BIG)
        money(out, p, c);
}
