#include "plan/plan_report.h"

#include <string.h>

static void model(struct kd_jw *w, const struct kd_plan *p)
{
    const struct kd_plan_model *m = p->model;
    kd_jw_open(w, "model", '{');
    kd_jw_str(w, "name", m->name);
    kd_jw_bool(w, "built_in", m->built_in);
    kd_jw_int(w, "parameters", m->total_params);
    kd_jw_int(w, "active", m->active_params);
    kd_jw_int(w, "expert", m->expert_params);
    kd_jw_int(w, "cache_token_bytes", kd_plan_cache_token_bytes(m, p->use.cache_width));
    kd_jw_int(w, "state_bytes", kd_plan_state_bytes(m));
    kd_jw_open(w, "parameters_by_kind", '{');
    for (int k = 0; k < KD_K3_KINDS; k++)
        if (m->params[k])
            kd_jw_int(w, kd_k3_kind_name((enum kd_k3_kind)k), m->params[k]);
    kd_jw_close(w, '}');
    kd_jw_close(w, '}');
    kd_jw_open(w, "use", '{');
    kd_jw_num(w, "context", p->use.context);
    kd_jw_num(w, "at", p->use.at);
    kd_jw_num(w, "sequences", p->use.sequences);
    kd_jw_int(w, "cache_bits", p->use.cache_width * 8);
    kd_jw_bool(w, "cut_cache", p->use.cut_cache);
    kd_jw_num(w, "api_usd_out", p->use.api_usd_out);
    kd_jw_str(w, "api_source", kd_api_usd_out.source);
    kd_jw_num(w, "usd_kwh", p->use.usd_kwh);
    kd_jw_close(w, '}');
}

static void form(struct kd_jw *w, const struct kd_plan_target *t, const struct kd_plan_bytes *b)
{
    kd_jw_open(w, NULL, '{');
    kd_jw_str(w, "name", t->name);
    kd_jw_int(w, "file_bytes", b->file_bytes);
    kd_jw_int(w, "tensor_bytes", b->tensor_bytes);
    kd_jw_int(w, "trunk_bytes", b->trunk);
    kd_jw_num(w, "token_expert_bytes", b->token_expert);
    kd_jw_num(w, "experts_real_bits", b->real_bpw);
    if (t->kld > 0)
        kd_jw_num(w, "kld", t->kld);
    if (t->source)
        kd_jw_str(w, "source", t->source);
    kd_jw_open(w, "bytes_by_kind", '{');
    for (int k = 0; k < KD_K3_KINDS; k++)
        if (b->kind[k])
            kd_jw_int(w, kd_k3_kind_name((enum kd_k3_kind)k), b->kind[k]);
    kd_jw_close(w, '}');
    kd_jw_close(w, '}');
}

static void steps(struct kd_jw *w, const struct kd_plan_fit *f)
{
    kd_jw_num(w, "resident", f->resident);
    kd_jw_open(w, "speeds", '[');
    for (int h = 0; h < KD_HITS; h++) {
        kd_jw_open(w, NULL, '{');
        kd_jw_num(w, "curve", kd_hit_at_032[h]);
        kd_jw_num(w, "hit_rate", f->hit[h]);
        kd_jw_num(w, "ceiling_tok_s", f->step[h].tokens_s);
        kd_jw_num(w, "ceiling_overlapped_tok_s", f->overlapped[h]);
        kd_jw_open(w, "ms", '{');
        for (int i = 0; i < KD_ROOF_PARTS; i++)
            kd_jw_num(w, kd_roof_part_name((enum kd_roof_part)i), f->step[h].ms[i]);
        kd_jw_close(w, '}');
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, ']');
    kd_jw_open(w, "expect_tok_s", '[');
    kd_jw_num(w, NULL, f->band[0]);
    kd_jw_num(w, NULL, f->band[1]);
    kd_jw_close(w, ']');
    kd_jw_open(w, "ceiling_full_context_tok_s", '[');
    kd_jw_num(w, NULL, f->full[0]);
    kd_jw_num(w, NULL, f->full[1]);
    kd_jw_close(w, ']');
    kd_jw_num(w, "prefill_tok_s", f->prefill.tokens_s);
    kd_jw_num(w, "load_s", f->load_s);
    kd_jw_num(w, "break_even_days", f->break_even_days);
    kd_jw_num(w, "power_usd_per_mtok", f->usd_per_mtok_power);
}

static void fit(struct kd_jw *w, const char *key, const char *name, const struct kd_plan_fit *f,
                const struct kd_machine *m)
{
    kd_jw_open(w, key, '{');
    kd_jw_str(w, "form", name);
    kd_jw_str(w, "verdict", kd_plan_verdict_text(f->verdict));
    kd_jw_num(w, "device_gib", f->device_gib);
    kd_jw_num(w, "cache_gib", f->cache_gib);
    kd_jw_num(w, "free_gib", -f->short_gib);
    kd_jw_int(w, "devices_needed", f->devices_needed);
    kd_jw_open(w, "places", '[');
    for (int i = 0; i < m->tiers; i++) {
        const struct kd_plan_place *l = &f->place[i];
        kd_jw_open(w, NULL, '{');
        kd_jw_str(w, "memory", kd_mem_name(m->tier[i].kind));
        kd_jw_num(w, "reserve_gib", l->reserve);
        kd_jw_num(w, "cache_gib", l->cache);
        kd_jw_num(w, "trunk_gib", l->trunk);
        kd_jw_num(w, "experts_gib", l->experts);
        kd_jw_num(w, "free_gib", l->free);
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, ']');
    if (f->verdict != KD_PLAN_TOO_BIG)
        steps(w, f);
    kd_jw_close(w, '}');
}

static void hours(struct kd_jw *w, const char *key, const struct kd_plan_hours h[2])
{
    static const char *const ends[] = {"low", "high"};
    kd_jw_open(w, key, '{');
    for (int i = 0; i < 2; i++) {
        kd_jw_open(w, ends[i], '{');
        kd_jw_num(w, "encode", h[i].encode);
        kd_jw_num(w, "calibrate", h[i].calibrate);
        kd_jw_num(w, "trunk", h[i].trunk);
        kd_jw_num(w, "serial", h[i].serial);
        kd_jw_num(w, "total", h[i].total);
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, '}');
}

static void column(struct kd_jw *w, const struct kd_plan *p, const struct kd_plan_column *c)
{
    char text[256];
    struct kd_buf described;
    struct kd_json *m = NULL;
    kd_jw_open(w, NULL, '{');
    kd_jw_int(w, "count", c->machine.count);
    kd_jw_bool(w, "supported", c->machine.supported);
    kd_buf_init(&described, 1 << 20);
    kd_machine_write(&described, &c->machine);
    if (!kd_json_parse(&m, described.data, described.size_bytes, "machine", NULL))
        kd_jw_copy(w, "machine", m);
    kd_json_free(m);
    kd_buf_release(&described);
    kd_plan_sentence(text, sizeof text, p, c);
    kd_jw_str(w, "verdict", text);
    kd_jw_num(w, "room_gib", kd_machine_room_gib(&c->machine));
    kd_jw_num(w, "best_rate", c->best_rate);
    fit(w, "chosen", c->chosen_name, c->chosen, &c->machine);
    kd_jw_open(w, "forms", '[');
    for (int t = 0; t < p->targets; t++)
        fit(w, NULL, p->target[t].name, &c->fit[t], &c->machine);
    kd_jw_close(w, ']');
    if (c->best_rate > 0)
        fit(w, "best", c->best_target.name, &c->best, &c->machine);
    kd_jw_open(w, "published", '[');
    for (int q = 0; q < p->quants; q++)
        fit(w, NULL, kd_plan_published[q].name, &c->quant[q], &c->machine);
    kd_jw_close(w, ']');
    hours(w, "hours_on_one", c->one);
    hours(w, "hours_on_all", c->all);
    kd_jw_close(w, '}');
}

static void figures(struct kd_jw *w, const struct kd_doc *d)
{
    kd_jw_open(w, "documents", '[');
    for (int i = 0; i < d->count; i++) {
        const struct kd_doc_figure *f = &d->f[i];
        kd_jw_open(w, NULL, '{');
        kd_jw_str(w, "id", f->id);
        kd_jw_str(w, "document", f->where);
        kd_jw_str(w, "what", f->what);
        kd_jw_str(w, "unit", f->unit);
        kd_jw_num(w, "quoted", f->quoted);
        kd_jw_num(w, "computed", f->value);
        kd_jw_str(w, "formula", f->formula);
        if (f->corrected) {
            kd_jw_num(w, "right", f->right);
            kd_jw_str(w, "reason", f->reason);
        }
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, ']');
}

static void probe(struct kd_jw *w, const struct kd_probe *p)
{
    kd_jw_open(w, "measured", '{');
    kd_jw_str(w, "cpu", p->cpu);
    kd_jw_int(w, "threads", p->threads);
    kd_jw_str(w, "isa", p->isa);
    kd_jw_num(w, "ram_gib", p->ram_gib);
    kd_jw_num(w, "ram_free_gib", p->ram_free_gib);
    kd_jw_num(w, "load", p->load);
    kd_jw_num(w, "ram_gb_s", p->ram_gb_s);
    kd_jw_num(w, "disk_gb_s", p->disk_gb_s);
    kd_jw_str(w, "disk_why", p->disk_why);
    kd_jw_bool(w, "gpu", p->gpu.there);
    kd_jw_str(w, "gpu_name", p->gpu.there ? p->gpu.name : p->gpu.why);
    kd_jw_num(w, "gpu_gib", p->gpu.gib);
    kd_jw_num(w, "gpu_gb_s", p->gpu.gb_s);
    kd_jw_num(w, "tiles_s", p->tiles_s);
    kd_jw_num(w, "fma_gflops", p->fma_gflops);
    static const char *const types[] = {"bf16", "mxfp4", "exl3"};
    kd_jw_open(w, "decode_gweights_s", '{');
    for (int i = 0; i < 3; i++)
        kd_jw_num(w, types[i], p->decode_gweights[i]);
    kd_jw_close(w, '}');
    kd_jw_open(w, "batch_gmacs_s", '{');
    for (int i = 0; i < 3; i++)
        kd_jw_num(w, types[i], p->mul_gmacs[i]);
    kd_jw_close(w, '}');
    kd_jw_close(w, '}');
}

static void forecast(struct kd_jw *w, const struct kd_forecast *f)
{
    kd_jw_open(w, "forecast", '{');
    kd_jw_num(w, "token_s", f->token_s);
    kd_jw_num(w, "tokens_s", 1 / f->token_s);
    kd_jw_num(w, "layers_s", f->layers_s);
    kd_jw_num(w, "head_s", f->head_s);
    kd_jw_int(w, "stand_ins", f->stand_ins);
    kd_jw_bool(w, "whole", f->whole);
    kd_jw_num(w, "convert_s", f->convert_s);
    kd_jw_num(w, "search_s", f->search_s);
    kd_jw_num(w, "hessian_s", f->hessian_s);
    kd_jw_num(w, "products_s", f->products_s);
    kd_jw_num(w, "feedback_s", f->feedback_s);
    kd_jw_num(w, "tiles", f->tiles);
    kd_jw_num(w, "hessian_gmac", f->hessian_gmac);
    kd_jw_num(w, "products_gmac", f->products_gmac);
    kd_jw_num(w, "feedback_gmac", f->feedback_gmac);
    kd_jw_close(w, '}');
}

void kd_plan_json(struct kd_buf *out, const struct kd_plan *p)
{
    struct kd_jw w = {.out = out};
    kd_jw_open(&w, NULL, '{');
    kd_jw_int(&w, "format", 1);
    kd_jw_str(&w, "version", KD_VERSION);
    model(&w, p);
    kd_jw_open(&w, "forms", '[');
    for (int t = 0; t < p->targets; t++)
        form(&w, &p->target[t], &p->column[0].fit[t].bytes);
    kd_jw_close(&w, ']');
    if (p->quants) {
        kd_jw_open(&w, "published", '[');
        for (int q = 0; q < p->quants; q++)
            form(&w, &kd_plan_published[q], &p->column[0].quant[q].bytes);
        kd_jw_close(&w, ']');
    }
    kd_jw_str(&w, "made", p->made_name);
    kd_jw_open(&w, "machines", '[');
    for (int i = 0; i < p->columns; i++)
        column(&w, p, &p->column[i]);
    kd_jw_close(&w, ']');
    hours(&w, "hours_together", p->together);
    if (p->probe)
        probe(&w, p->probe);
    if (p->forecast)
        forecast(&w, p->forecast);
    if (p->doc.count)
        figures(&w, &p->doc);
    kd_jw_close(&w, '}');
    kd_buf_char(out, '\n');
}
