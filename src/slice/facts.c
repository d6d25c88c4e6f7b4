#include "slice/facts.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/show.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECEIPT_MAX = 1 << 30 };

static void add_type(struct kd_facts *f, const struct kd_head_tensor *t, int64_t params)
{
    const char *name = kd_head_type(t);
    int i = 0;
    while (i < f->type_count && strcmp(f->types[i].name, name) != 0)
        i++;
    if (i == KD_FACT_TYPES)
        return; /* formats have fewer types */
    if (i == f->type_count)
        snprintf(f->types[f->type_count++].name, sizeof f->types->name, "%s", name);
    f->types[i].tensors++;
    f->types[i].elements += params;
    f->types[i].bytes += t->bytes;
}

static void add_big(struct kd_facts *f, const struct kd_head_tensor *t, int64_t params)
{
    int at = f->big_count;
    while (at > 0 && f->big[at - 1].bytes < t->bytes)
        at--;
    if (at == KD_FACT_BIG)
        return;
    int last = f->big_count < KD_FACT_BIG ? f->big_count++ : KD_FACT_BIG - 1;
    memmove(&f->big[at + 1], &f->big[at], (size_t)(last - at) * sizeof *f->big);
    f->big[at] = (struct kd_fact_big){.name = t->name, .elements = params, .bytes = t->bytes};
    snprintf(f->big[at].type, sizeof f->big[at].type, "%s", kd_head_type(t));
}

static int by_bytes(const void *a, const void *b)
{
    const struct kd_fact_type *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static void count(struct kd_facts *f)
{
    const struct kd_heads *h = f->h;
    for (int64_t i = 0; i < h->count; i++) {
        int64_t params = kd_head_params(h, &h->t[i]);
        add_type(f, &h->t[i], params);
        add_big(f, &h->t[i], params);
    }
    qsort(f->types, (size_t)f->type_count, sizeof *f->types, by_bytes);
    bool exl3 = false;
    for (int i = 0; i < f->type_count; i++)
        exl3 |= !strcmp(f->types[i].name, "EXL3");
    snprintf(f->format, sizeof f->format, "%s", h->gguf ? "GGUF" : exl3 ? "EXL3" : "safetensors");
    kd_heads_sum(h, &f->sum);
    f->files = h->part_count;
    f->file_bytes = h->file_bytes;
    f->data_bytes = h->data_bytes;
    f->head_bytes = 0;
    for (int i = 0; i < h->part_count; i++)
        f->head_bytes += h->parts[i].head_bytes;
    f->tensors = h->count;
}

static void gguf_text(const struct kd_gguf *g, const char *key, char *out, size_t size)
{
    const char *text = NULL;
    int64_t n = 0;
    if (!kd_gguf_str_or(g, key, &text, &n, NULL) && text)
        snprintf(out, size, "%.*s", (int)(n < (int64_t)size ? n : (int64_t)size - 1), text);
}

static int64_t gguf_number(const struct kd_gguf *g, const char *arch, const char *key)
{
    char full[160];
    int64_t v;
    snprintf(full, sizeof full, "%s.%s", arch, key);
    return kd_gguf_key(g, full) && !kd_gguf_int(g, full, 0, INT64_MAX, &v, NULL) ? v : -1;
}

static int64_t config_number(const struct kd_heads *h, const char *a, const char *b)
{
    const struct kd_json *v = kd_heads_config(h, a);
    v = v || !b ? v : kd_heads_config(h, b);
    return kd_json_kind(v) == KD_JSON_INT ? kd_json_int_value(v) : -1;
}

/* Any family's figures, by the names that most use. */
static void shape_of_others(const struct kd_heads *h, const char *arch, struct kd_fact_shape *s)
{
    if (h->gguf) {
        const struct kd_gguf *g = &h->set.parts[0].head;
        s->layers = gguf_number(g, arch, "block_count");
        s->dense = gguf_number(g, arch, "leading_dense_block_count");
        s->experts = gguf_number(g, arch, "expert_count");
        s->used = gguf_number(g, arch, "expert_used_count");
        s->shared = gguf_number(g, arch, "expert_shared_count");
        s->width = gguf_number(g, arch, "expert_feed_forward_length");
        s->latent = gguf_number(g, arch, "expert_latent_length");
        s->hidden = gguf_number(g, arch, "embedding_length");
        s->vocab = gguf_number(g, arch, "vocab_size");
        return;
    }
    s->layers = config_number(h, "num_hidden_layers", NULL);
    s->experts = config_number(h, "num_experts", "n_routed_experts");
    if (s->experts < 0)
        s->experts = config_number(h, "num_local_experts", NULL);
    s->used = config_number(h, "num_experts_per_tok", "num_experts_per_token");
    s->shared = config_number(h, "num_shared_experts", "n_shared_experts");
    s->width = config_number(h, "moe_intermediate_size", NULL);
    s->hidden = config_number(h, "hidden_size", NULL);
    s->vocab = config_number(h, "vocab_size", NULL);
    s->dense = config_number(h, "first_k_dense_replace", NULL);
}

static void shape_of(const struct kd_heads *h, const char *arch, struct kd_fact_shape *s)
{
    const struct kd_k3_cfg *c = &h->cfg;
    memset(s, 0xff, sizeof *s);
    if (!h->k3) {
        shape_of_others(h, arch, s);
        return;
    }
    *s = (struct kd_fact_shape){.layers = c->layers,
                                .dense = c->dense_layers,
                                .experts = c->experts,
                                .used = c->topk,
                                .shared = c->shared,
                                .width = c->moe_inter,
                                .latent = c->latent,
                                .hidden = c->hidden,
                                .vocab = c->vocab};
    for (int64_t l = 0; l < c->layers; l++) {
        s->mla += c->mla[l] != 0;
        s->kda += c->mla[l] == 0;
    }
}

/* Whether the tokens choose among experts, and how many. */
static bool chooses(const struct kd_fact_shape *s)
{
    return s->used >= 0 && s->used <= s->experts && s->experts > 0;
}

static void describe(struct kd_facts *f)
{
    const struct kd_heads *h = f->h;
    if (h->gguf) {
        const struct kd_gguf *g = &h->set.parts[0].head;
        gguf_text(g, "general.architecture", f->arch, sizeof f->arch);
        gguf_text(g, "general.name", f->name, sizeof f->name);
        gguf_text(g, "general.size_label", f->size_label, sizeof f->size_label);
        gguf_text(g, "general.license", f->licence, sizeof f->licence);
    } else {
        const char *text = kd_json_text(kd_json_get(h->config, "model_type"), NULL);
        snprintf(f->arch, sizeof f->arch, "%s", text ? text : "");
        for (int i = 0; i < kd_source_count(h->src); i++) {
            const char *name = kd_source_at(h->src, i)->name;
            if (!strncmp(name, "LICENSE", 7) || !strncmp(name, "LICENCE", 7))
                snprintf(f->licence, sizeof f->licence, "see %s", name);
        }
    }
    shape_of(h, f->arch, &f->shape);
    const struct kd_fact_shape *s = &f->shape;
    f->active = f->token_bytes = -1;
    if (f->sum.routed_params && !chooses(s))
        return;
    f->active = kd_heads_active(&f->sum, s->used, s->experts);
    f->token_bytes = f->sum.bytes - f->sum.embed_bytes - f->sum.vision_bytes;
    if (f->sum.routed_bytes)
        f->token_bytes -= f->sum.routed_bytes - f->sum.routed_bytes / s->experts * s->used;
}

static void whole_given(struct kd_facts *f, const struct kd_heads *of)
{
    struct kd_heads_sum sum;
    struct kd_fact_shape s;
    char arch[64] = "";
    if (of->gguf)
        gguf_text(&of->set.parts[0].head, "general.architecture", arch, sizeof arch);
    shape_of(of, arch, &s);
    kd_heads_sum(of, &sum);
    f->of = KD_OF_GIVEN;
    f->of_text_only = sum.vision_params && !f->sum.vision_params;
    kd_heads_name(of, f->of_name, sizeof f->of_name);
    snprintf(f->of_commit, sizeof f->of_commit, "%s", kd_source_commit(of->src));
    f->src_params = sum.params - (f->of_text_only ? sum.vision_params : 0);
    f->src_bytes = of->file_bytes;
    f->src_layers = s.layers;
    f->src_experts = s.experts;
    f->src_used = s.used;
    f->src_width = s.width;
    f->src_routed = sum.routed_params;
    f->src_active = chooses(&s) ? kd_heads_active(&sum, s.used, s.experts) : -1;
}

/* K3 is known by what a slice leaves as it was: hidden width, latent, vocabulary. */
static bool is_k3(const struct kd_facts *f)
{
    return f->shape.hidden == 7168 && f->shape.latent == 3584 && f->shape.vocab == 163840;
}

/* Parameters of a record's routed experts; -1 where the latent width is not known, or cannot be. */
static int64_t routed_of(const struct kd_slice_record *r, int64_t latent)
{
    int64_t one, all;
    if (latent < 1 || kd_mul64(3 * r->width, latent, &one) ||
        kd_mul64((r->layers - r->dense) * r->experts, one, &all))
        return -1;
    return all;
}

static void whole_model(struct kd_facts *f, const struct kd_heads *of)
{
    const struct kd_slice_record *r = &f->record;
    f->src_params = f->src_bytes = f->src_layers = f->src_experts = f->src_used = -1;
    f->src_width = f->src_routed = f->src_active = -1;
    if (of) {
        whole_given(f, of);
    } else if (f->has_record && f->record_intact) {
        f->of = KD_OF_RECORD;
        snprintf(f->of_name, sizeof f->of_name, "%s", r->repo);
        snprintf(f->of_commit, sizeof f->of_commit, "%s", r->commit);
        f->src_params = r->params;
        f->src_bytes = r->data_bytes;
        f->src_layers = r->layers;
        f->src_experts = r->experts;
        f->src_used = r->used;
        f->src_width = r->width;
        f->src_active = r->active;
        f->src_routed = routed_of(r, f->shape.latent);
    } else if (is_k3(f)) {
        f->of = KD_OF_FAMILY;
        snprintf(f->of_name, sizeof f->of_name, "Kimi K3");
        f->src_params = INT64_C(2779483135584);
        f->src_layers = 93;
        f->src_experts = 896;
        f->src_used = 16;
        f->src_width = 3072;
        f->src_routed = INT64_C(2722740830208);
    }
}

/* The types a source has, then what was made of them. */
static void chain(struct kd_facts *f, const struct kd_heads *of)
{
    char mine[200], its[180];
    kd_heads_mix(f->h, mine, sizeof mine);
    if (f->has_record && f->record_intact) {
        snprintf(f->chain, sizeof f->chain, "%s", f->record.chain);
    } else if (of) {
        kd_heads_mix(of, its, sizeof its);
        if (strcmp(its, mine) != 0)
            snprintf(f->chain, sizeof f->chain, "%s > %s", its, mine);
        else
            snprintf(f->chain, sizeof f->chain, "%s", mine);
    } else if (!strcmp(f->format, "EXL3")) {
        const struct kd_json *q = kd_json_get(f->h->config, "quantization_config");
        bool mxfp4 = kd_json_get(q, "original_quantization_config") != NULL;
        snprintf(f->chain, sizeof f->chain, "%s > %s", mxfp4 ? "MXFP4" : "NOT RECORDED", mine);
    } else {
        snprintf(f->chain, sizeof f->chain, "NOT RECORDED > %s", mine);
    }
}

/* "verdict" of a kondense.json, or a check's own JSON. */
static void read_verdict(struct kd_facts *f, const struct kd_json *root)
{
    const struct kd_json *v = kd_json_get(root, "verdict");
    v = v ? v : root;
    const struct kd_json *pass = kd_json_get(v, "pass"),
                         *kld = kd_json_get(kd_json_get(v, "kld"), "mean"),
                         *top1 = kd_json_get(v, "top1");
    enum kd_json_kind k = kd_json_kind(kld), t = kd_json_kind(top1);
    if (k == KD_JSON_INT || k == KD_JSON_REAL)
        f->kld = kd_json_num_value(kld);
    if (t == KD_JSON_INT || t == KD_JSON_REAL)
        f->top1 = kd_json_num_value(top1);
    if (kd_json_kind(pass) == KD_JSON_BOOL)
        f->gate = kd_json_true(pass) ? KD_GATE_PASS : KD_GATE_FAIL;
    else if (f->kld >= 0 || f->top1 >= 0)
        f->gate = KD_GATE_NO_BOUND;
    /* Whoever deletes experts or layers, and says so in the file, meant it. */
    bool cut = f->has_record && (f->record.layer_count < f->record.layers ||
                                 f->record.expert_count < f->record.experts);
    if (f->gate == KD_GATE_FAIL && cut)
        f->gate = KD_GATE_FAIL_AS_DESIGNED;
}

static int gate(struct kd_facts *f, const char *path, struct kd_err *err)
{
    struct kd_json *root;
    struct kd_buf b;
    f->kld = f->top1 = -1;
    if (path) {
        if (kd_json_load(&root, path, RECEIPT_MAX, err))
            return -1;
        read_verdict(f, root);
        kd_json_free(root);
        return 0;
    }
    int file = f->h->gguf ? -1 : kd_source_find(f->h->src, "kondense.json");
    if (file < 0)
        return 0;
    kd_buf_init(&b, RECEIPT_MAX);
    int rc = kd_source_load(f->h->src, file, RECEIPT_MAX, &b, err) ||
             kd_json_parse(&root, b.data, b.size_bytes, "kondense.json", err);
    kd_buf_release(&b);
    if (rc)
        return -1;
    read_verdict(f, root);
    kd_json_free(root);
    return 0;
}

static int hash(struct kd_facts *f, struct kd_err *err)
{
    const char *path = kd_source_path(f->h->src, f->h->parts[0].file);
    if (f->files != 1 || !path)
        return kd_fail(err, KD_EUSAGE, "'%s': only a single local file is hashed", f->path);
    return kd_sha256_file(path, f->sha256, err);
}

int kd_facts_make(struct kd_facts *f, const struct kd_heads *h, const struct kd_facts_opts *o,
                  struct kd_err *err)
{
    memset(f, 0, sizeof *f);
    f->h = h;
    kd_show_text(f->path, sizeof f->path, kd_source_where(h->src));
    count(f);
    describe(f);
    if (kd_slice_record_read(&f->record, h, &f->has_record, &f->record_intact, err))
        return kd_wrap(err, "%s", f->path);
    whole_model(f, o->of);
    f->declared_given = o->declared_params > 0;
    f->declared_params = f->declared_given ? (int64_t)o->declared_params : f->src_params;
    chain(f, o->of);
    f->tok_s = o->tok_s;
    f->bandwidth = o->bandwidth;
    kd_facts_claims_of_names(f);
    if (gate(f, o->gate, err) || (o->hash && hash(f, err))) {
        kd_facts_release(f);
        return -1;
    }
    return 0;
}

void kd_facts_release(struct kd_facts *f)
{
    kd_slice_record_release(&f->record);
}

double kd_facts_declared(const struct kd_facts *f)
{
    return f->declared_params > 0 ? 8 * (double)f->file_bytes / (double)f->declared_params : -1;
}

double kd_facts_real(const struct kd_facts *f)
{
    return f->sum.params ? 8 * (double)f->file_bytes / (double)f->sum.params : -1;
}

double kd_facts_missing(const struct kd_facts *f)
{
    return f->declared_params > 0 ? 1 - (double)f->sum.params / (double)f->declared_params : -1;
}

double kd_facts_missing_bytes(const struct kd_facts *f)
{
    /* A record knows its source's tensors, not the files they were in. */
    int64_t here = f->of == KD_OF_RECORD ? f->data_bytes : f->file_bytes;
    return f->src_bytes > 0 ? 1 - (double)here / (double)f->src_bytes : -1;
}

double kd_facts_routed(const struct kd_facts *f)
{
    return f->src_routed > 0 ? (double)f->sum.routed_params / (double)f->src_routed : -1;
}

const char *kd_fact_gate_name(enum kd_fact_gate g)
{
    static const char *const names[] = {"NOT MEASURED", "MEASURED, NO REQUIREMENT", "PASS", "FAIL",
                                        "FAIL AS DESIGNED"};
    return names[g];
}

const char *kd_fact_bits(char *out, size_t size, double v)
{
    snprintf(out, size, v > 0 && v < 0.001 ? "%.3g" : "%.4f", v);
    return out;
}

const char *kd_fact_percent(char *out, size_t size, double share)
{
    double v = 100 * share;
    int digits = 2;
    while (digits < 9 && ((v < 100 && v > 99.99) || (v > 0 && v < 0.01))) {
        snprintf(out, size, "%.*f", digits, v);
        if (strncmp(out, "100", 3) != 0 && strspn(out, "0.") != strlen(out))
            break;
        digits++;
    }
    snprintf(out, size, "%.*f %%", digits, v);
    return out;
}
