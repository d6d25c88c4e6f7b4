#include "base/mem.h"
#include "base/show.h"
#include "cmd/cmd.h"
#include "cmd/inspect.h"
#include "convert/synth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    bool json, tensors, cpu;
} o;

static const struct kd_opt opts[] = {
    KD_OPT_ROW_JSON(&o.json),
    {"tensors", 't', KD_OPT_FLAG, &o.tensors, NULL, "list each tensor: dtype, shape, bytes, shard"},
    {"cpu", 0, KD_OPT_FLAG, &o.cpu, NULL,
     "say which kernels this CPU runs and why (PATH may be left out)"},
    {0}};

enum { OUT_MAX = 1 << 30, FLUSH_AT = 1 << 20, SHOWN = 12 };

static const char *const kind_titles[KD_K3_KINDS] = {
    "routed experts",    "KDA attention", "MLA attention",    "router",    "latent down, up, norm",
    "shared experts",    "dense MLP",     "norms and res",    "embedding", "head",
    "last norm and res", "vision tower",  "vision projector", "unknown"};
static const char *const class_names[KD_CLASSES] = {"experts", "trunk", "head", "stored"};

static int flush(struct kd_buf *b, struct kd_err *err)
{
    if (kd_buf_ok(b, "output", err))
        return -1;
    if (b->size_bytes && fwrite(b->data, 1, b->size_bytes, stdout) != b->size_bytes)
        return kd_fail_sys(err, "cannot write to standard output");
    kd_buf_clear(b);
    return 0;
}

static double bits(const struct kd_inspect_sum *s)
{
    return s->params ? 8.0 * (double)s->bytes / (double)s->params : 0;
}

static double code_bits(const struct kd_inspect *in, int c)
{
    return in->classes[c].params ? in->rate16[c] / 16 / (double)in->classes[c].params : 0;
}

static const char *storage(const struct kd_inspect *in)
{
    if (kd_ckpt_gguf(in->ck))
        return "gguf";
    bool exl3 = in->parts[KD_K3_CODES], mxfp4 = in->parts[KD_K3_PACKED];
    return exl3 && mxfp4 ? "exl3+mxfp4" : exl3 ? "exl3" : mxfp4 ? "mxfp4" : "plain";
}

/* Index total and sum: 0 no index, 1 they agree, -1 they do not, 2 cannot be told. */
static int total_verdict(const struct kd_inspect *in)
{
    int64_t want = kd_ckpt_index_total(in->ck);
    return want < 0 ? 0 : in->unsized ? 2 : want == in->total.bytes ? 1 : -1;
}

static void sum_line(struct kd_buf *b, const char *title, const struct kd_inspect_sum *s,
                     int64_t of)
{
    char tensors[32], params[32], bytes[32];
    kd_show_exact(tensors, sizeof tensors, s->tensors);
    kd_show_exact(params, sizeof params, s->params);
    kd_show_exact(bytes, sizeof bytes, s->bytes);
    kd_buf_printf(b, "  %-22s %11s %21s %21s %6.2f %%\n", title, tensors, params, bytes,
                  of ? 100.0 * (double)s->bytes / (double)of : 0.0);
}

static void text_table(struct kd_buf *b, const struct kd_inspect *in)
{
    struct kd_inspect_sum other = in->total;
    kd_buf_printf(b, "\n  %-22s %11s %21s %21s %8s\n", "part", "tensors", "parameters", "bytes",
                  "share");
    for (int k = 0; k < KD_K3_KINDS; k++)
        if (in->kinds[k].tensors)
            sum_line(b, kind_titles[k], &in->kinds[k], in->total.bytes);
    other.tensors -= in->kinds[KD_K3_ROUTED].tensors;
    other.params -= in->kinds[KD_K3_ROUTED].params;
    other.bytes -= in->kinds[KD_K3_ROUTED].bytes;
    sum_line(b, "all but the experts", &other, in->total.bytes);
    sum_line(b, "total", &in->total, in->total.bytes);
}

static void text_head(struct kd_buf *b, const struct kd_inspect *in, const char *path)
{
    const struct kd_k3_cfg *c = &in->cfg;
    char total[32], active[32], exact[32], act_exact[32], vocab[32], context[32], shown[512];
    kd_show_count(total, sizeof total, in->total.params);
    kd_show_count(active, sizeof active, in->active);
    kd_show_exact(exact, sizeof exact, in->total.params);
    kd_show_exact(act_exact, sizeof act_exact, in->active);
    kd_show_exact(vocab, sizeof vocab, c->vocab);
    kd_show_exact(context, sizeof context, c->context);
    kd_buf_printf(b, "%s: %s%s\n", kd_show_text(shown, sizeof shown, path),
                  *c->arch ? c->arch : "no architecture named",
                  c->nested ? "" : " (bare text config)");
    kd_buf_printf(b, "  layers      %lld: %lld KDA, %lld MLA; %lld dense, %lld MoE",
                  (long long)c->layers, (long long)in->layers_kda, (long long)in->layers_mla,
                  (long long)(c->layers - in->layers_moe), (long long)in->layers_moe);
    if (c->block)
        kd_buf_printf(b, "; residual blocks of %lld", (long long)c->block);
    kd_buf_printf(b, "\n  width       %lld; vocabulary %s; context %s\n", (long long)c->hidden,
                  vocab, context);
    kd_buf_printf(b, "  KDA         %lld heads of %lld, convolution %lld, gate %s\n",
                  (long long)c->kda_heads, (long long)c->kda_dim, (long long)c->conv,
                  c->bounded_gate ? "bounded" : "softplus");
    kd_buf_printf(
        b, "  MLA         %lld heads: query rank %lld, latent %lld + %lld, key %lld, value %lld\n",
        (long long)c->heads, (long long)c->q_lora, (long long)c->kv_lora, (long long)c->rope,
        (long long)c->nope, (long long)c->v_dim);
    kd_buf_printf(b, "  experts     %lld a layer, %lld used, %lld shared; width %lld",
                  (long long)c->experts, (long long)c->topk, (long long)c->shared,
                  (long long)c->moe_inter);
    if (c->latent)
        kd_buf_printf(b, " in a latent of %lld", (long long)c->latent);
    kd_buf_printf(b, "\n  parameters  %s (%s), used for a token %s (%s)\n", exact, total, act_exact,
                  active);
}

static void text_shards(struct kd_buf *b, const struct kd_inspect *in)
{
    int count = kd_ckpt_shard_count(in->ck), shown = 0;
    char total[32], human[32];
    kd_show_exact(total, sizeof total, kd_ckpt_index_total(in->ck));
    kd_show_bytes(human, sizeof human, in->total.bytes);
    kd_buf_printf(b, "  shards      %d of %d present", in->shards_present, count);
    for (int i = 0; i < count && in->shards_present; i++) {
        if (kd_ckpt_shard_present(in->ck, i) || ++shown > 3)
            continue;
        kd_buf_printf(b, "%s%s", shown == 1 ? "; missing " : ", ", kd_ckpt_shard_name(in->ck, i));
    }
    if (shown > 3)
        kd_buf_printf(b, " and %d more", shown - 3);
    kd_buf_printf(b, "\n  stored as   %s, %s%s", storage(in), human,
                  in->shards_present < count ? ", sizes of absent shards from the config" : "");
    static const char *const verdict[] = {"", "; the index agrees"};
    int v = total_verdict(in);
    if (v == 2)
        kd_buf_printf(
            b, "\n              %lld tensors of absent shards have no size that anything tells",
            (long long)in->unsized);
    else if (v < 0)
        kd_buf_printf(b, "\n              the index says %s bytes: it does not agree", total);
    else
        kd_buf_str(b, verdict[v]);
    kd_buf_char(b, '\n');
}

static void text_made(struct kd_buf *b, const struct kd_inspect *in)
{
    struct kd_synth_made m;
    if (!kd_synth_made_of(kd_ckpt_dir(in->ck), &m))
        return;
    kd_buf_printf(b, "  made        layers %lld to %lld of %lld", (long long)m.first,
                  (long long)m.last, (long long)m.of);
    if (m.ranks > 1)
        kd_buf_printf(b, ", rank %lld of %lld", (long long)m.rank, (long long)m.ranks);
    kd_buf_printf(b, ", seed %lld: weights of no model\n", (long long)m.seed);
}

static void json_made(struct kd_jw *w, const struct kd_inspect *in)
{
    struct kd_synth_made m;
    if (!kd_synth_made_of(kd_ckpt_dir(in->ck), &m))
        return;
    kd_jw_open(w, "made", '{');
    kd_jw_int(w, "first_layer", m.first);
    kd_jw_int(w, "last_layer", m.last);
    kd_jw_int(w, "of_layers", m.of);
    kd_jw_int(w, "rank", m.rank);
    kd_jw_int(w, "ranks", m.ranks);
    kd_jw_int(w, "seed", m.seed);
    kd_jw_close(w, '}');
}

static void text_bits(struct kd_buf *b, const struct kd_inspect *in)
{
    kd_buf_printf(b, "\n  %-22s %21s %10s %10s\n", "bits a weight", "parameters", "codes", "real");
    for (int c = 0; c < KD_CLASSES; c++) {
        char params[32];
        static const char *const titles[] = {"routed experts", "EXL3 trunk", "head",
                                             "others, as stored"};
        kd_show_exact(params, sizeof params, in->classes[c].params);
        if (in->classes[c].tensors)
            kd_buf_printf(b, "  %-22s %21s %10.4f %10.4f\n", titles[c], params, code_bits(in, c),
                          bits(&in->classes[c]));
    }
    kd_buf_printf(b, "  %-22s %21s %10s %10.4f\n", "all", "", "", bits(&in->total));
}

static void text_tally(struct kd_buf *b, const char *title, const struct kd_tally *t)
{
    char shown[512];
    if (!t->text.count)
        return;
    kd_buf_printf(b, "\n%s (%lld)\n", title, (long long)kd_tally_total(t));
    for (int64_t i = 0; i < t->text.count && i < SHOWN; i++)
        kd_buf_printf(b, "  %8lld  %s\n", (long long)kd_tally_count(t, i),
                      kd_show_text(shown, sizeof shown, t->text.at[i]));
    if (t->text.count > SHOWN)
        kd_buf_printf(b, "            and %lld more kinds: see --json\n",
                      (long long)(t->text.count - SHOWN));
}

static void tensor_shape(struct kd_buf *b, const struct kd_tensor *t)
{
    kd_buf_char(b, '[');
    for (int i = 0; i < t->rank; i++)
        kd_buf_printf(b, "%s%lld", i ? "," : "", (long long)t->shape[i]);
    kd_buf_char(b, ']');
}

static int text_tensors(struct kd_buf *b, const struct kd_inspect *in, struct kd_err *err)
{
    kd_buf_char(b, '\n');
    for (int64_t i = 0; i < kd_ckpt_count(in->ck); i++) {
        const struct kd_tensor *t = kd_ckpt_at(in->ck, i);
        if (t->rank < 0) {
            kd_buf_printf(b, "%s  (in %s, which is not there)\n", t->name,
                          kd_ckpt_shard_name(in->ck, t->shard));
        } else {
            kd_buf_printf(b, "%s  %s ", t->name, t->dtype_name);
            tensor_shape(b, t);
            kd_buf_printf(b, " %lld  %s\n", (long long)t->bytes,
                          kd_ckpt_shard_name(in->ck, t->shard));
        }
        if (b->size_bytes > FLUSH_AT && flush(b, err))
            return -1;
    }
    return 0;
}

static int print_text(struct kd_buf *b, const struct kd_inspect *in, const char *path,
                      struct kd_err *err)
{
    text_head(b, in, path);
    text_shards(b, in);
    text_made(b, in);
    text_table(b, in);
    text_bits(b, in);
    if (in->unknown_keys.size_bytes)
        kd_buf_printf(b, "\nconfig keys that are not known\n  %s\n", in->unknown_keys.data);
    text_tally(b, "tensors that are not known", &in->unknown);
    text_tally(b, "unexpected dtypes", &in->odd_dtypes);
    text_tally(b, "shapes that disagree with the config", &in->odd_shapes);
    text_tally(b, "tensors that the config asks for and that are not there", &in->missing);
    if (in->refusal.code != KD_OK)
        kd_buf_printf(b, "\nconvert, check and generate would refuse it: %s\n", in->refusal.msg);
    return o.tensors ? text_tensors(b, in, err) : 0;
}

static void json_config(struct kd_jw *w, const struct kd_inspect *in)
{
    const struct kd_k3_cfg *c = &in->cfg;
    kd_jw_open(w, "config", '{');
    kd_jw_int(w, "layers", c->layers);
    kd_jw_int(w, "kda_layers", in->layers_kda);
    kd_jw_int(w, "mla_layers", in->layers_mla);
    kd_jw_int(w, "dense_layers", c->layers - in->layers_moe);
    kd_jw_int(w, "moe_layers", in->layers_moe);
    kd_jw_int(w, "residual_block", c->block);
    kd_jw_int(w, "hidden", c->hidden);
    kd_jw_int(w, "vocab", c->vocab);
    kd_jw_int(w, "context", c->context);
    kd_jw_int(w, "kda_heads", c->kda_heads);
    kd_jw_int(w, "kda_dim", c->kda_dim);
    kd_jw_bool(w, "kda_bounded_gate", c->bounded_gate);
    kd_jw_int(w, "mla_heads", c->heads);
    kd_jw_int(w, "experts", c->experts);
    kd_jw_int(w, "experts_used", c->topk);
    kd_jw_int(w, "shared_experts", c->shared);
    kd_jw_int(w, "expert_width", c->moe_inter);
    kd_jw_int(w, "latent", c->latent);
    kd_jw_int(w, "dense_width", c->dense_inter);
    kd_jw_close(w, '}');
}

static void json_sum(struct kd_jw *w, const char *key, const struct kd_inspect_sum *s)
{
    kd_jw_open(w, key, '{');
    kd_jw_int(w, "tensors", s->tensors);
    kd_jw_int(w, "parameters", s->params);
    kd_jw_int(w, "bytes", s->bytes);
    kd_jw_close(w, '}');
}

static void json_tally(struct kd_jw *w, const char *key, const struct kd_tally *t)
{
    kd_jw_open(w, key, '[');
    for (int64_t i = 0; i < t->text.count; i++) {
        kd_jw_open(w, NULL, '{');
        kd_jw_str(w, "what", t->text.at[i]);
        kd_jw_int(w, "count", kd_tally_count(t, i));
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, ']');
}

static void json_sizes(struct kd_jw *w, const struct kd_inspect *in)
{
    const struct kd_inspect_sum *routed = &in->kinds[KD_K3_ROUTED];
    kd_jw_open(w, "parameters", '{');
    kd_jw_int(w, "total", in->total.params);
    kd_jw_int(w, "active", in->active);
    kd_jw_int(w, "routed", routed->params);
    kd_jw_int(w, "other", in->total.params - routed->params);
    kd_jw_close(w, '}');
    kd_jw_open(w, "bytes", '{');
    kd_jw_int(w, "total", in->total.bytes);
    kd_jw_int(w, "routed", routed->bytes);
    kd_jw_int(w, "routed_packed", in->packed_bytes);
    kd_jw_int(w, "routed_scales", in->scale_bytes);
    kd_jw_int(w, "other", in->total.bytes - routed->bytes);
    if (kd_ckpt_index_total(in->ck) < 0)
        kd_jw_null(w, "index_total");
    else
        kd_jw_int(w, "index_total", kd_ckpt_index_total(in->ck));
    if (total_verdict(in) == 1 || total_verdict(in) == -1)
        kd_jw_bool(w, "index_agrees", total_verdict(in) == 1);
    else
        kd_jw_null(w, "index_agrees");
    kd_jw_int(w, "unsized_tensors", in->unsized);
    kd_jw_close(w, '}');
    kd_jw_open(w, "kinds", '{');
    for (int k = 0; k < KD_K3_KINDS; k++)
        json_sum(w, kd_k3_kind_name((enum kd_k3_kind)k), &in->kinds[k]);
    kd_jw_close(w, '}');
    kd_jw_open(w, "bits", '{');
    for (int c = 0; c < KD_CLASSES; c++) {
        kd_jw_open(w, class_names[c], '{');
        kd_jw_int(w, "parameters", in->classes[c].params);
        kd_jw_int(w, "bytes", in->classes[c].bytes);
        kd_jw_num(w, "k", code_bits(in, c));
        kd_jw_num(w, "real", bits(&in->classes[c]));
        kd_jw_close(w, '}');
    }
    kd_jw_num(w, "file", bits(&in->total));
    kd_jw_close(w, '}');
}

static void json_shards(struct kd_jw *w, const struct kd_inspect *in)
{
    kd_jw_open(w, "shards", '{');
    kd_jw_int(w, "count", kd_ckpt_shard_count(in->ck));
    kd_jw_int(w, "present", in->shards_present);
    kd_jw_open(w, "missing", '[');
    for (int i = 0; i < kd_ckpt_shard_count(in->ck); i++)
        if (!kd_ckpt_shard_present(in->ck, i))
            kd_jw_str(w, NULL, kd_ckpt_shard_name(in->ck, i));
    kd_jw_close(w, ']');
    kd_jw_close(w, '}');
}

static int json_tensors(struct kd_jw *w, const struct kd_inspect *in, struct kd_err *err)
{
    kd_jw_open(w, "tensors", '[');
    for (int64_t i = 0; i < kd_ckpt_count(in->ck); i++) {
        const struct kd_tensor *t = kd_ckpt_at(in->ck, i);
        struct kd_k3_name n;
        kd_k3_name_parse(&in->map, t->name, &n);
        kd_jw_open(w, NULL, '{');
        kd_jw_str(w, "name", t->name);
        kd_jw_str(w, "kind", kd_k3_kind_name(n.kind));
        kd_jw_str(w, "shard", kd_ckpt_shard_name(in->ck, t->shard));
        if (t->rank >= 0) {
            kd_jw_str(w, "dtype", t->dtype_name);
            kd_jw_open(w, "shape", '[');
            for (int d = 0; d < t->rank; d++)
                kd_jw_int(w, NULL, t->shape[d]);
            kd_jw_close(w, ']');
            kd_jw_int(w, "bytes", t->bytes);
        }
        kd_jw_close(w, '}');
        if (w->out->size_bytes > FLUSH_AT && flush(w->out, err))
            return -1;
    }
    kd_jw_close(w, ']');
    return 0;
}

/* "a, b" as an array. */
static void json_words(struct kd_jw *w, const char *key, const struct kd_buf *words)
{
    kd_jw_open(w, key, '[');
    for (const char *c = words->data ? words->data : ""; *c;) {
        const char *end = strstr(c, ", ");
        size_t n = end ? (size_t)(end - c) : strlen(c);
        kd_jw_strn(w, NULL, c, n);
        c += n + (end ? 2 : 0);
    }
    kd_jw_close(w, ']');
}

static int json_model(struct kd_jw *w, const struct kd_inspect *in, const char *path,
                      struct kd_err *err)
{
    kd_jw_str(w, "path", path);
    kd_jw_str(w, "architecture", in->cfg.arch);
    kd_jw_bool(w, "nested", in->cfg.nested);
    kd_jw_str(w, "storage", storage(in));
    json_config(w, in);
    kd_jw_int(w, "tensor_count", in->total.tensors);
    json_sizes(w, in);
    json_shards(w, in);
    json_made(w, in);
    json_tally(w, "dtypes", &in->dtypes);
    json_words(w, "unknown_keys", &in->unknown_keys);
    json_tally(w, "unknown_tensors", &in->unknown);
    json_tally(w, "odd_dtypes", &in->odd_dtypes);
    json_tally(w, "odd_shapes", &in->odd_shapes);
    json_tally(w, "missing_tensors", &in->missing);
    kd_jw_bool(w, "runs", in->refusal.code == KD_OK);
    if (in->refusal.code == KD_OK)
        kd_jw_null(w, "refusal");
    else
        kd_jw_str(w, "refusal", in->refusal.msg);
    return o.tensors ? json_tensors(w, in, err) : 0;
}

static int show_model(struct kd_buf *b, struct kd_jw *w, const char *path, struct kd_err *err)
{
    struct kd_ckpt *ck;
    struct kd_inspect *in;
    if (kd_ckpt_open(&ck, path, true, err))
        return -1;
    int rc = kd_mem_new(&in, 1, sizeof *in, "inspect", err);
    if (!rc) {
        rc = kd_inspect_open(in, ck, err);
        if (rc)
            kd_wrap(err, "%s", path);
        if (!rc)
            rc = o.json ? json_model(w, in, path, err) : print_text(b, in, path, err);
        kd_inspect_close(in);
        kd_mem_free(in);
    }
    kd_ckpt_close(ck);
    return rc;
}

static int show_cpu(struct kd_buf *b, struct kd_jw *w, struct kd_err *err)
{
    struct kd_kern kern;
    const char *asked = getenv("KONDENSE_ISA");
    bool forced = asked && *asked;
    if (kd_kern_pick(&kern, err))
        return -1;
    const char *why =
        forced ? "KONDENSE_ISA asks for them" : "the best of those that this CPU runs";
    if (o.json) {
        kd_jw_open(w, "cpu", '{');
        kd_jw_str(w, "kernels", kern.name);
        kd_jw_str(w, "why", why);
    } else {
        kd_buf_printf(b, "kernels: %s, %s\n", kern.name, why);
    }
    for (int i = 0; i < KD_ISA_COUNT; i++) {
        struct kd_kern k;
        struct kd_err no;
        bool runs = !kd_kern_for(&k, (enum kd_isa)i, &no);
        if (o.json)
            kd_jw_bool(w, kd_isa_name((enum kd_isa)i), runs);
        else
            kd_buf_printf(b, "  %-8s %s\n", kd_isa_name((enum kd_isa)i),
                          runs ? "runs here" : no.msg);
    }
    if (o.json)
        kd_jw_close(w, '}');
    return 0;
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    if (!argc && !o.cpu)
        return kd_fail(err, KD_EUSAGE,
                       "too few arguments: kondense inspect PATH (see kondense inspect -h)");
    struct kd_buf b;
    kd_buf_init(&b, OUT_MAX);
    struct kd_jw w = {.out = &b};
    if (o.json)
        kd_jw_open(&w, NULL, '{');
    int rc = o.cpu ? show_cpu(&b, &w, err) : 0;
    if (!rc && argc)
        rc = show_model(&b, &w, argv[0], err);
    if (!rc && o.json) {
        kd_jw_close(&w, '}');
        kd_buf_char(&b, '\n');
    }
    if (!rc)
        rc = flush(&b, err);
    kd_buf_release(&b);
    return rc;
}

const struct kd_cmd kd_cmd_inspect = {
    .name = "inspect",
    .summary = "show what a checkpoint holds",
    .args = "PATH",
    .example = "kondense inspect k3-nano --json",
    .opts = opts,
    .args_min = 0,
    .args_max = 1,
    .run = run,
    .details =
        "PATH is a folder with config.json and safetensors shards, or config.json and the index "
        "alone\n"
        "(model.safetensors.index.json, also gzipped): then sizes are derived from the config; or "
        "a GGUF file,\n"
        "any file of a split set, or a folder with one. Headers are\n"
        "read, weights never. What is not known is named and counted, not refused; a broken file "
        "is an\n"
        "error that names the file, the tensor and the reason.\n"
        "\n"
        "JSON keys: path, architecture, nested (text_config inside), storage (plain, mxfp4, exl3, "
        "exl3+mxfp4\n"
        "or gguf), config (layers, kda_layers, mla_layers, dense_layers, moe_layers, "
        "residual_block,\n"
        "hidden, vocab, context, kda_heads, kda_dim, kda_bounded_gate, mla_heads, experts, "
        "experts_used,\n"
        "shared_experts, expert_width, latent, dense_width), tensor_count, parameters (total, "
        "active,\n"
        "routed, other), bytes (total, routed, routed_packed, routed_scales, other, index_total,\n"
        "index_agrees, unsized_tensors), kinds (routed, kda, mla, router, latent, shared, dense, "
        "norms,\n"
        "embed, head, final, vision, projector, unknown; each with tensors, parameters, bytes), "
        "bits\n"
        "(experts, trunk, head, stored, each with parameters, bytes, k = average width of the "
        "codes, real =\n"
        "all bytes x 8 / parameters; file), shards (count, present, missing), dtypes, "
        "unknown_keys,\n"
        "unknown_tensors, odd_dtypes, odd_shapes, missing_tensors (lists of what and count), runs, "
        "refusal\n"
        "(why convert, check and generate would refuse it, or null); with --tensors also tensors "
        "(name,\n"
        "kind, shard, dtype, shape, bytes); with --cpu also cpu (kernels, why, and a flag for "
        "each\n"
        "instruction set)."};
