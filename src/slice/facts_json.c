#include "base/json.h"
#include "slice/facts.h"

#include <stdio.h>
#include <string.h>

static void int_or_null(struct kd_jw *w, const char *key, int64_t v)
{
    if (v >= 0)
        kd_jw_int(w, key, v);
    else
        kd_jw_null(w, key);
}

static void num_or_null(struct kd_jw *w, const char *key, bool known, double v)
{
    if (known)
        kd_jw_num(w, key, v);
    else
        kd_jw_null(w, key);
}

static void numbers(struct kd_jw *w, const struct kd_facts *f)
{
    bool d = f->declared_params > 0;
    kd_jw_open(w, "bits", '{');
    num_or_null(w, "declared", d, kd_facts_declared(f));
    num_or_null(w, "real", f->sum.params > 0, kd_facts_real(f));
    num_or_null(w, "real_data", f->sum.params > 0,
                8 * (double)f->data_bytes / (double)(f->sum.params ? f->sum.params : 1));
    kd_jw_close(w, '}');
    kd_jw_open(w, "missing", '{');
    num_or_null(w, "parameters", d, kd_facts_missing(f));
    num_or_null(w, "bytes", f->src_bytes > 0, kd_facts_missing_bytes(f));
    kd_jw_close(w, '}');
    kd_jw_open(w, "parameters", '{');
    kd_jw_int(w, "present", f->sum.params);
    int_or_null(w, "declared", f->declared_params);
    kd_jw_str(w, "declared_by",
              f->declared_params < 0 ? "NOT KNOWN"
              : f->declared_given    ? "command line"
                                     : "exact count of the source");
    kd_jw_int(w, "routed", f->sum.routed_params);
    kd_jw_int(w, "vision", f->sum.vision_params);
    int_or_null(w, "active", f->active);
    kd_jw_close(w, '}');
}

static void source(struct kd_jw *w, const struct kd_facts *f)
{
    static const char *const by[] = {"NOT KNOWN", "given", "slice record", "widths"};
    kd_jw_open(w, "source", '{');
    kd_jw_str(w, "known_by", by[f->of]);
    kd_jw_str(w, "name", f->of_name);
    kd_jw_str(w, "commit", *f->of_commit ? f->of_commit : "NOT KNOWN");
    int_or_null(w, "parameters", f->src_params);
    int_or_null(w, "bytes", f->src_bytes);
    int_or_null(w, "layers", f->src_layers);
    int_or_null(w, "experts", f->src_experts);
    int_or_null(w, "experts_used", f->src_used);
    int_or_null(w, "expert_width", f->src_width);
    int_or_null(w, "routed_parameters", f->src_routed);
    int_or_null(w, "active_parameters", f->src_active);
    kd_jw_bool(w, "without_vision", f->of_text_only);
    kd_jw_close(w, '}');
}

static void structure(struct kd_jw *w, const struct kd_facts *f)
{
    const struct kd_fact_shape *s = &f->shape;
    double routed = kd_facts_routed(f);
    kd_jw_open(w, "structure", '{');
    kd_jw_str(w, "architecture", f->arch);
    int_or_null(w, "layers", s->layers);
    int_or_null(w, "layers_kda", s->kda);
    int_or_null(w, "layers_mla", s->mla);
    int_or_null(w, "layers_dense", s->dense);
    int_or_null(w, "experts", s->experts);
    int_or_null(w, "experts_used", s->used);
    int_or_null(w, "experts_shared", s->shared);
    int_or_null(w, "expert_width", s->width);
    num_or_null(w, "routed_share_of_whole_model", routed >= 0, routed);
    if (f->has_record) {
        kd_jw_bool(w, "record_intact", f->record_intact);
        kd_jw_bool(w, "blocks_whole", f->record.blocks_whole);
        kd_jw_open(w, "layers_kept", '[');
        for (int64_t i = 0; i < f->record.layer_count; i++)
            kd_jw_int(w, NULL, f->record.layers_kept[i]);
        kd_jw_close(w, ']');
        kd_jw_open(w, "experts_kept", '[');
        for (int64_t i = 0; i < f->record.lists * f->record.expert_count; i++)
            kd_jw_int(w, NULL, f->record.experts_kept[i]);
        kd_jw_close(w, ']');
    }
    kd_jw_close(w, '}');
}

static void tables(struct kd_jw *w, const struct kd_facts *f)
{
    kd_jw_open(w, "types", '[');
    for (int i = 0; i < f->type_count; i++) {
        kd_jw_open(w, NULL, '{');
        kd_jw_str(w, "type", f->types[i].name);
        kd_jw_int(w, "tensors", f->types[i].tensors);
        kd_jw_int(w, "elements", f->types[i].elements);
        kd_jw_int(w, "bytes", f->types[i].bytes);
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, ']');
    kd_jw_open(w, "largest", '[');
    for (int i = 0; i < f->big_count; i++) {
        kd_jw_open(w, NULL, '{');
        kd_jw_str(w, "name", f->big[i].name);
        kd_jw_str(w, "type", f->big[i].type);
        kd_jw_int(w, "elements", f->big[i].elements);
        kd_jw_int(w, "bytes", f->big[i].bytes);
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, ']');
}

static void judged(struct kd_jw *w, const struct kd_facts *f)
{
    kd_jw_open(w, "quality", '{');
    kd_jw_str(w, "gate", kd_fact_gate_name(f->gate));
    num_or_null(w, "kld", f->kld >= 0, f->kld);
    num_or_null(w, "top1", f->top1 >= 0, f->top1);
    kd_jw_close(w, '}');
    kd_jw_open(w, "speed", '{');
    int_or_null(w, "bytes_a_token", f->token_bytes);
    num_or_null(w, "tokens_a_second", f->tok_s > 0, f->tok_s);
    num_or_null(w, "implied_bytes_a_second", f->tok_s > 0 && f->token_bytes >= 0,
                f->tok_s * (double)f->token_bytes);
    num_or_null(w, "memory_bytes_a_second", f->bandwidth > 0, f->bandwidth);
    kd_jw_close(w, '}');
    kd_jw_open(w, "claims", '[');
    for (int i = 0; i < f->claim_count; i++) {
        const struct kd_fact_claim *c = &f->claims[i];
        kd_jw_open(w, NULL, '{');
        kd_jw_str(w, "by", c->by);
        kd_jw_str(w, "text", c->text);
        kd_jw_str(w, "what", c->what);
        kd_jw_num(w, "claimed", c->claimed);
        num_or_null(w, "held", c->known, c->held);
        kd_jw_bool(w, "holds", c->holds);
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, ']');
    kd_jw_open(w, "requirements", '[');
    for (int i = 0; i < f->want_count; i++) {
        const struct kd_fact_want *r = &f->wants[i];
        kd_jw_open(w, NULL, '{');
        kd_jw_str(w, "figure", r->figure);
        if (!r->no_bound)
            kd_jw_num(w, r->at_most ? "at_most" : "at_least", r->bound);
        num_or_null(w, "value", r->measured, r->value);
        kd_jw_bool(w, "pass", r->pass);
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, ']');
}

static void one(struct kd_jw *w, const struct kd_facts *f)
{
    kd_jw_open(w, NULL, '{');
    kd_jw_str(w, "path", f->path);
    kd_jw_str(w, "format", f->format);
    kd_jw_str(w, "name", f->name);
    kd_jw_str(w, "size_label", f->size_label);
    kd_jw_str(w, "licence", *f->licence ? f->licence : "NOT STATED");
    kd_jw_int(w, "files", f->files);
    kd_jw_int(w, "file_bytes", f->file_bytes);
    kd_jw_int(w, "head_bytes", f->head_bytes);
    kd_jw_int(w, "data_bytes", f->data_bytes);
    kd_jw_int(w, "tensors", f->tensors);
    kd_jw_str(w, "sha256", *f->sha256 ? f->sha256 : "NOT COMPUTED");
    numbers(w, f);
    source(w, f);
    structure(w, f);
    kd_jw_str(w, "lossy_chain", f->chain);
    tables(w, f);
    judged(w, f);
    kd_jw_close(w, '}');
}

void kd_facts_json(struct kd_buf *out, const struct kd_facts *f, int count)
{
    struct kd_jw w = {.out = out};
    kd_jw_open(&w, NULL, '{');
    kd_jw_str(&w, "made_by", "Kondense " KD_VERSION);
    kd_jw_open(&w, "receipts", '[');
    for (int i = 0; i < count; i++)
        one(&w, &f[i]);
    kd_jw_close(&w, ']');
    kd_jw_close(&w, '}');
    kd_buf_char(out, '\n');
}
