/* The receipt for a person: the three numbers and what they stand on fit on the first screen. */
#include "base/show.h"
#include "slice/facts.h"

#include <stdio.h>
#include <string.h>

static void exact(struct kd_buf *out, int64_t v)
{
    char text[32];
    kd_show_exact(text, sizeof text, v);
    kd_buf_str(out, text);
}

static void of_number(struct kd_buf *out, int64_t now, int64_t before)
{
    if (now < 0)
        kd_buf_str(out, "NOT KNOWN");
    else
        exact(out, now);
    if (before >= 0) {
        kd_buf_str(out, " of ");
        exact(out, before);
    }
}

static void numbers(struct kd_buf *out, const struct kd_facts *f)
{
    char text[32];
    double d = kd_facts_declared(f), m = kd_facts_missing(f), mb = kd_facts_missing_bytes(f);
    kd_buf_str(out, "\n  DECLARED bits/param   ");
    if (d >= 0) {
        kd_buf_printf(out, "%9s   8 x file / ", kd_fact_bits(text, sizeof text, d));
        exact(out, f->declared_params);
        kd_buf_printf(out, " parameters, %s\n",
                      f->declared_given       ? "as declared"
                      : f->of == KD_OF_FAMILY ? "exact, by its widths a Kimi K3"
                      : f->of == KD_OF_RECORD ? "exact, by the slice's record"
                                              : "exact, of the model it is of");
    } else {
        kd_buf_str(out, "NOT KNOWN   nobody declares parameters (--declared-params, --of)\n");
    }
    kd_buf_printf(out, "  REAL bits/param       %9.3f   8 x file / ", kd_facts_real(f));
    exact(out, f->sum.params);
    kd_buf_printf(out, " parameters present (tensors alone %.4f)\n",
                  8 * (double)f->data_bytes / (double)(f->sum.params ? f->sum.params : 1));
    if (d >= 0)
        kd_buf_printf(out, "  MISSING parameters    %9s   1 - present / declared\n",
                      kd_fact_percent(text, sizeof text, m));
    if (mb > -1e9 && f->src_bytes > 0) {
        kd_show_bytes(text, sizeof text, f->src_bytes);
        char share[24];
        kd_buf_printf(out, "  MISSING bytes         %9s   1 - bytes / %s of '%s'\n",
                      kd_fact_percent(share, sizeof share, mb), text, f->of_name);
    } else {
        kd_buf_str(out, "  MISSING bytes         NOT KNOWN   no source to compare with (--of)\n");
    }
}

static void structure(struct kd_buf *out, const struct kd_facts *f)
{
    const struct kd_fact_shape *s = &f->shape;
    double routed = kd_facts_routed(f);
    kd_buf_str(out, "\n  layers        ");
    of_number(out, s->layers, f->src_layers);
    if (s->kda >= 0)
        kd_buf_printf(out, " (%lld KDA, %lld MLA; %lld dense)", (long long)s->kda,
                      (long long)s->mla, (long long)s->dense);
    if (f->has_record)
        kd_buf_str(out,
                   f->record.blocks_whole ? "; residual blocks whole" : "; residual blocks BROKEN");
    kd_buf_str(out, "\n  experts       ");
    of_number(out, s->experts, f->src_experts);
    kd_buf_str(out, " in each layer that has them");
    if (s->shared > 0)
        kd_buf_printf(out, ", %lld shared", (long long)s->shared);
    if (routed >= 0)
        kd_buf_printf(out, "; %.4f %% of the whole model's routed weights", 100 * routed);
    kd_buf_str(out, "\n  used a token  ");
    of_number(out, s->used, f->src_used);
    kd_buf_str(out, " (as stored; a loader can be told another number)\n  width         ");
    of_number(out, s->width, f->src_width);
    kd_buf_str(out, " neurons an expert\n  active        ");
    of_number(out, f->active, f->src_active);
    kd_buf_str(out, " parameters for a token\n");
}

static void types(struct kd_buf *out, const struct kd_facts *f)
{
    kd_buf_str(out, "  types         ");
    for (int i = 0; i < f->type_count; i++)
        kd_buf_printf(out, "%s%s %.1f %%", i ? ", " : "", f->types[i].name,
                      100 * (double)f->types[i].bytes /
                          (double)(f->data_bytes ? f->data_bytes : 1));
    kd_buf_printf(out, " of the bytes\n  lossy chain   %s\n", f->chain);
}

static void speed(struct kd_buf *out, const struct kd_facts *f)
{
    char text[32], most[32];
    kd_buf_str(out, "  speed         ");
    if (f->token_bytes < 0) {
        kd_buf_str(out, f->tok_s > 0 ? "given, but what a token reads is NOT KNOWN\n"
                                     : "NOT MEASURED\n");
        return;
    }
    kd_show_bytes(text, sizeof text, f->token_bytes);
    if (f->tok_s > 0) {
        double implied = (double)f->token_bytes * f->tok_s;
        kd_show_bytes(most, sizeof most, (int64_t)implied);
        kd_buf_printf(out, "%.2f tokens/s as stated; %s a token implies %s/s", f->tok_s, text,
                      most);
        if (f->bandwidth > 0) {
            kd_show_bytes(most, sizeof most, (int64_t)f->bandwidth);
            kd_buf_printf(out,
                          implied > f->bandwidth
                              ? ", MORE THAN the memory's %s/s: not with these experts used"
                              : ", within the memory's %s/s",
                          most);
        }
    } else {
        kd_buf_printf(out, "NOT MEASURED (%s a token)", text);
    }
    kd_buf_char(out, '\n');
}

static void quality(struct kd_buf *out, const struct kd_facts *f)
{
    kd_buf_printf(out, "  quality gate  %s", kd_fact_gate_name(f->gate));
    if (f->kld >= 0)
        kd_buf_printf(out, "; KLD %.5f", f->kld);
    if (f->top1 >= 0)
        kd_buf_printf(out, "; same top-1 %.2f %%", 100 * f->top1);
    kd_buf_char(out, '\n');
}

static void claims(struct kd_buf *out, const struct kd_facts *f)
{
    char shown[128];
    for (int i = 0; i < f->claim_count; i++) {
        const struct kd_fact_claim *c = &f->claims[i];
        kd_buf_printf(out, "  claim         %s: %s %s: ", c->by,
                      kd_show_text(shown, sizeof shown, c->text), c->what);
        if (!c->known)
            kd_buf_str(out, "cannot be told\n");
        else if (!strcmp(c->what, "bits for a parameter"))
            kd_buf_printf(out, "%s, the file has %.4f\n", c->holds ? "holds" : "CONTRADICTED",
                          c->held);
        else {
            kd_buf_printf(out, "%s, the file has ", c->holds ? "holds" : "CONTRADICTED");
            exact(out, (int64_t)c->held);
            kd_buf_char(out, '\n');
        }
    }
    for (int i = 0; i < f->want_count; i++) {
        const struct kd_fact_want *w = &f->wants[i];
        kd_buf_printf(out, "  required      %s", w->figure);
        if (!w->no_bound)
            kd_buf_printf(out, " %s %.6g", w->at_most ? "at most" : "at least", w->bound);
        if (!w->measured)
            kd_buf_str(out, ": NOT MEASURED");
        else if (!w->no_bound)
            kd_buf_printf(out, ": %.6g", w->value);
        kd_buf_str(out, w->pass ? ", met\n" : ", NOT MET\n");
    }
}

static void verified(struct kd_buf *out, const struct kd_facts *f)
{
    char shown[160], why[400];
    bool k3 =
        f->of == KD_OF_FAMILY || !strcmp(f->arch, "kimi-k3") || !strncmp(f->arch, "kimi_k", 6);
    kd_buf_printf(
        out, "  licence       %s%s\n",
        *f->licence ? kd_show_text(shown, sizeof shown, f->licence) : "none stated in the file",
        k3 ? " (the released Kimi K3 has its own licence, which covers what is made of it)" : "");
    kd_buf_str(out, "  checked       heads: names, places and sizes of all tensors inside their "
                    "files");
    kd_buf_str(out, !f->has_record     ? ""
                    : f->record_intact ? "; slice record INTACT"
                                       : "; slice record EDITED, not used");
    if (!f->h->k3)
        kd_buf_printf(out, "\n  not as K3     %s", kd_show_text(why, sizeof why, f->h->why.msg));
    kd_buf_printf(out, "\n  not checked   %s%s%s\n", *f->sha256 ? "" : "file digest (--sha256); ",
                  f->of == KD_OF_GIVEN ? "" : "the source itself (--of); ",
                  "that bytes are the source's (audit does); whole-file digest of a slice cannot "
                  "exist at its source");
    if (*f->sha256)
        kd_buf_printf(out, "  sha256        %s\n", f->sha256);
}

static void ids(struct kd_buf *out, const char *what, const int32_t *id, int64_t n)
{
    kd_buf_printf(out, "  %s ", what);
    for (int64_t i = 0; i < n;) {
        int64_t end = i;
        while (end + 1 < n && id[end + 1] == id[end] + 1)
            end++;
        kd_buf_printf(out, "%s%d", i ? "," : "", id[i]);
        if (end > i)
            kd_buf_printf(out, "-%d", id[end]);
        i = end + 1;
    }
    kd_buf_char(out, '\n');
}

static void record(struct kd_buf *out, const struct kd_facts *f)
{
    const struct kd_slice_record *r = &f->record;
    char shown[300];
    if (!f->has_record)
        return;
    kd_buf_printf(out, "\nSlice of '%s', commit %s, cut by %s\n",
                  kd_show_text(shown, sizeof shown, r->repo), *r->commit ? r->commit : "NOT KNOWN",
                  r->tool);
    ids(out, "layers kept:", r->layers_kept, r->layer_count);
    if (r->lists == 1)
        ids(out, "experts kept, in every layer:", r->experts_kept, r->expert_count);
    else
        kd_buf_printf(out, "  experts kept: %lld in each layer, each its own (see the record)\n",
                      (long long)r->expert_count);
}

static void tables(struct kd_buf *out, const struct kd_facts *f)
{
    char a[32], b[32], shown[200];
    kd_buf_printf(out, "\n%-10s %8s %22s %20s %9s\n", "type", "tensors", "elements", "bytes",
                  "bits each");
    for (int i = 0; i < f->type_count; i++) {
        const struct kd_fact_type *t = &f->types[i];
        kd_show_exact(a, sizeof a, t->elements);
        kd_show_exact(b, sizeof b, t->bytes);
        kd_buf_printf(out, "%-10s %8lld %22s %20s ", t->name, (long long)t->tensors, a, b);
        if (t->elements)
            kd_buf_printf(out, "%9.4f\n", 8 * (double)t->bytes / (double)t->elements);
        else
            kd_buf_printf(out, "%9s\n", "scales");
    }
    kd_buf_printf(out, "\n%-56s %-7s %20s %8s\n", "largest tensors", "type", "bytes", "share");
    for (int i = 0; i < f->big_count; i++) {
        const struct kd_fact_big *t = &f->big[i];
        kd_show_exact(b, sizeof b, t->bytes);
        kd_buf_printf(out, "%-56s %-7s %20s %6.2f %%\n", kd_show_text(shown, sizeof shown, t->name),
                      t->type, b, 100 * (double)t->bytes / (double)f->data_bytes);
    }
}

void kd_facts_text(struct kd_buf *out, const struct kd_facts *f)
{
    char size[32], shown[300];
    kd_show_bytes(size, sizeof size, f->file_bytes);
    kd_buf_printf(out, "%s: %s, %lld file%s, %s (", f->path, f->format, (long long)f->files,
                  f->files == 1 ? "" : "s", size);
    exact(out, f->file_bytes);
    kd_buf_printf(out, " bytes, head%s ", f->files == 1 ? "" : "s");
    exact(out, f->head_bytes);
    kd_buf_str(out, "), ");
    exact(out, f->tensors);
    kd_buf_str(out, " tensors\n");
    if (*f->name)
        kd_buf_printf(out, "called '%s'%s%s\n", kd_show_text(shown, sizeof shown, f->name),
                      *f->size_label ? ", size label " : "", f->size_label);
    numbers(out, f);
    structure(out, f);
    types(out, f);
    speed(out, f);
    quality(out, f);
    claims(out, f);
    verified(out, f);
    record(out, f);
    tables(out, f);
}

void kd_facts_ladder(struct kd_buf *out, const struct kd_facts *f, int count)
{
    kd_buf_printf(out, "\n%-28s %6s %8s %5s %18s %10s %8s %9s %9s  %s\n", "ladder", "layers",
                  "experts", "used", "parameters", "bytes", "real", "declared", "missing",
                  "quality gate");
    for (int i = 0; i < count; i++, f++) {
        char params[32], bytes[32], declared[24] = "NOT KNOWN", missing[24] = "NOT KNOWN";
        const char *slash = strrchr(f->path, '/');
        kd_show_exact(params, sizeof params, f->sum.params);
        kd_show_bytes(bytes, sizeof bytes, f->file_bytes);
        if (f->declared_params > 0) {
            kd_fact_bits(declared, sizeof declared, kd_facts_declared(f));
            kd_fact_percent(missing, sizeof missing, kd_facts_missing(f));
        }
        kd_buf_printf(out, "%-28s %6lld %8lld %5lld %18s %10s %8.4f %9s %9s  %s\n",
                      slash && slash[1] ? slash + 1 : f->path, (long long)f->shape.layers,
                      (long long)f->shape.experts, (long long)f->shape.used, params, bytes,
                      kd_facts_real(f), declared, missing, kd_fact_gate_name(f->gate));
    }
}
