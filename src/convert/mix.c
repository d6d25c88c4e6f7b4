#include "convert/mix.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/show.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RECEIPT_MAX = 1 << 30 };

/* Of a file: so many times the shards fit an int64_t. */
static const int64_t file_bytes_max = INT64_C(1) << 50;

static int load(struct kd_json **v, const char *dir, const char *name, struct kd_err *err)
{
    char path[4096];
    if (kd_path_join(path, sizeof path, dir, name, err))
        return -1;
    return kd_json_load(v, path, RECEIPT_MAX, err);
}

/* Two values of two documents, compared as text. */
static bool same(const struct kd_json *a, const struct kd_json *b)
{
    struct kd_buf x, y;
    kd_buf_init(&x, RECEIPT_MAX);
    kd_buf_init(&y, RECEIPT_MAX);
    bool eq = !kd_json_dump(&x, a, NULL) && !kd_json_dump(&y, b, NULL) &&
              x.size_bytes == y.size_bytes && !memcmp(x.data, y.data, x.size_bytes);
    kd_buf_release(&x);
    kd_buf_release(&y);
    return eq;
}

static int check_pair(const struct kd_json *ra, const struct kd_json *rb, struct kd_err *err)
{
    const struct kd_json *sa = kd_json_get(ra, "settings"), *sb = kd_json_get(rb, "settings");
    const struct kd_json *fa = kd_json_get(sa, "rates"), *fb = kd_json_get(sb, "rates");
    static const char *const alike[] = {"trunk_bpw", "head_bpw", "codebook"};
    if (!sa || !sb || !same(kd_json_get(sa, "source"), kd_json_get(sb, "source")))
        return kd_fail(err, KD_EINVAL,
                       "the two models are not of one source and one calibration text");
    for (size_t i = 0; i < sizeof alike / sizeof *alike; i++)
        if (!same(kd_json_get(fa, alike[i]), kd_json_get(fb, alike[i])))
            return kd_fail(err, KD_EINVAL, "the two models differ in %s", alike[i]);
    return 0;
}

/* Mean proxy error of each layer's routed experts. */
static int layer_damage(const struct kd_json *receipt, double *sum, int64_t *count, int64_t layers,
                        struct kd_err *err)
{
    void *iter = NULL;
    const char *key;
    struct kd_json *v;
    while (kd_json_next(kd_json_get(receipt, "tensors"), &iter, &key, &v)) {
        const char *at = strstr(key, "layers.");
        if (!at || !strstr(key, ".experts."))
            continue;
        int64_t l = strtoll(at + 7, NULL, 10);
        struct kd_json *proxy = kd_json_get(v, "proxy");
        if (l < 0 || l >= layers)
            return kd_fail(err, KD_ECORRUPT, "kondense.json names layer %lld of %lld", (long long)l,
                           (long long)layers);
        sum[l] += kd_json_num_value(proxy ? proxy : kd_json_get(v, "mse"));
        count[l]++;
    }
    for (int64_t l = 0; l < layers; l++)
        sum[l] = count[l] ? sum[l] / (double)count[l] : 0;
    return 0;
}

struct gain {
    int shard;
    int64_t bytes;
    double per_byte;
};

static int by_gain(const void *pa, const void *pb)
{
    const struct gain *a = pa, *b = pb;
    if (a->per_byte != b->per_byte)
        return a->per_byte > b->per_byte ? -1 : 1;
    return a->shard - b->shard;
}

/* Sizes of the shards in the receipts' order, which is the shards' own. */
static int sizes(const struct kd_json *receipt, int64_t *bytes, int *count, struct kd_err *err)
{
    void *iter = NULL;
    const char *key;
    struct kd_json *v;
    *count = 0;
    while (kd_json_next(kd_json_get(receipt, "files"), &iter, &key, &v)) {
        if (*count == KD_MIX_SHARDS_MAX)
            return kd_fail(err, KD_ECORRUPT, "kondense.json names more than %d files",
                           KD_MIX_SHARDS_MAX);
        if (kd_json_kind(v) != KD_JSON_INT || kd_json_int_value(v) < 0 ||
            kd_json_int_value(v) > file_bytes_max)
            return kd_fail(err, KD_ECORRUPT,
                           "kondense.json: the size of '%.60s' is no number of bytes", key);
        bytes[(*count)++] = kd_json_int_value(v);
    }
    return 0;
}

static int choose(struct kd_mix *m, const int64_t *a, const int64_t *b, const double *da,
                  const double *db, int64_t size_bytes, struct kd_err *err)
{
    struct gain *g;
    if (kd_mem_new(&g, m->layers, sizeof *g, "layers", err))
        return -1;
    m->bytes = m->a_bytes;
    for (int s = (int)m->layers; s < m->shards; s++) {
        m->from_b[s] = true;
        m->bytes += b[s] - a[s];
    }
    int n = 0;
    for (int l = 0; l < m->layers; l++) {
        int64_t more = b[l] - a[l];
        if (more <= 0) { /* a dense layer: the same codes; b's saw the better experts before it */
            m->from_b[l] = true;
            m->bytes += more;
            continue;
        }
        g[n++] = (struct gain){l, more, (da[l] - db[l]) / (double)more};
    }
    qsort(g, (size_t)n, sizeof *g, by_gain);
    for (int i = 0; i < n; i++)
        if (m->bytes + g[i].bytes <= size_bytes) {
            m->from_b[g[i].shard] = true;
            m->bytes += g[i].bytes;
            m->layers_from_b++;
        }
    kd_mem_free(g);
    return 0;
}

static int too_small(int64_t asked_bytes, int64_t least_bytes, struct kd_err *err)
{
    char asked[32], takes[32], least[32];
    kd_show_bytes(asked, sizeof asked, asked_bytes);
    kd_show_bytes(takes, sizeof takes, least_bytes);
    kd_size_text(least, sizeof least, least_bytes);
    return kd_fail(err, KD_EUSAGE,
                   "--size: %s is too small: the smaller model alone takes %s, so --size %s is the "
                   "least",
                   asked, takes, least);
}

int kd_mix_plan(struct kd_mix *m, const char *a, const char *b, int64_t size_bytes,
                struct kd_err *err)
{
    struct kd_json *ra = NULL, *rb = NULL;
    int64_t *bytes = NULL, *count = NULL;
    double *damage = NULL;
    int shards_b = 0;
    memset(m, 0, sizeof *m);
    int rc = load(&ra, a, "kondense.json", err) || load(&rb, b, "kondense.json", err) ||
             check_pair(ra, rb, err) ||
             kd_mem_zero(&bytes, 2 * KD_MIX_SHARDS_MAX, sizeof *bytes, "sizes", err) ||
             kd_mem_zero(&damage, 2 * KD_MIX_SHARDS_MAX, sizeof *damage, "errors", err) ||
             kd_mem_zero(&count, 2 * KD_MIX_SHARDS_MAX, sizeof *count, "counts", err) ||
             sizes(ra, bytes, &m->shards, err) ||
             sizes(rb, bytes + KD_MIX_SHARDS_MAX, &shards_b, err);
    if (!rc && (m->shards != shards_b || m->shards < 2))
        rc = kd_fail(err, KD_EINVAL, "the two models have %d and %d shards", m->shards, shards_b);
    if (!rc) {
        struct kd_json *layers = kd_json_get(kd_json_get(ra, "settings"), "layers");
        m->layers = layers ? kd_json_int_value(layers) : 0;
        if (m->layers < 1 || m->layers >= m->shards)
            rc = kd_fail(err, KD_ECORRUPT, "%s/kondense.json: %lld layers in %d shards", a,
                         (long long)m->layers, m->shards);
    }
    for (int s = 0; !rc && s < m->shards; s++) {
        m->a_bytes += bytes[s];
        m->b_bytes += bytes[KD_MIX_SHARDS_MAX + s];
    }
    if (!rc && m->a_bytes > m->b_bytes)
        rc = kd_fail(err, KD_EUSAGE, "'%s' is the larger model: give the smaller one first", a);
    if (!rc && size_bytes < m->a_bytes)
        rc = too_small(size_bytes, m->a_bytes, err);
    if (!rc)
        rc = layer_damage(ra, damage, count, m->layers, err) ||
             layer_damage(rb, damage + KD_MIX_SHARDS_MAX, count + KD_MIX_SHARDS_MAX, m->layers,
                          err) ||
             choose(m, bytes, bytes + KD_MIX_SHARDS_MAX, damage, damage + KD_MIX_SHARDS_MAX,
                    size_bytes, err);
    kd_json_free(ra);
    kd_json_free(rb);
    kd_mem_free(bytes);
    kd_mem_free(damage);
    kd_mem_free(count);
    return rc ? -1 : 0;
}

static int copy(const char *from_dir, const char *to_dir, const char *name, bool link_it,
                struct kd_err *err)
{
    char from[4096], to[4096];
    struct kd_map m;
    if (kd_path_join(from, sizeof from, from_dir, name, err) ||
        kd_path_join(to, sizeof to, to_dir, name, err))
        return -1;
    if (link_it && !link(from, to))
        return 0;
    if (kd_file_map(&m, from, err))
        return -1;
    int rc = kd_file_write(to, m.data ? (const void *)m.data : "", (size_t)m.size_bytes, err);
    kd_map_release(&m);
    return rc;
}

/* Shard number (from 1) in "model-00003-of-000010.safetensors". */
static int shard_number(const char *name)
{
    int n = 0;
    return sscanf(name, "model-%5d-of-", &n) == 1 ? n : 0;
}

/* Copies the members of one document's object whose shard (or layer) belongs to that side. */
static int take(struct kd_json *out, const struct kd_json *in, const struct kd_mix *m, bool b,
                bool by_layer, struct kd_err *err)
{
    void *iter = NULL;
    const char *key;
    struct kd_json *v;
    while (kd_json_next(in, &iter, &key, &v)) {
        int shard = shard_number(kd_json_text(v, NULL) ? kd_json_text(v, NULL) : key) - 1;
        const char *at = by_layer ? strstr(key, "layers.") : NULL;
        if (by_layer)
            shard = at ? (int)strtol(at + 7, NULL, 10) : (int)m->layers;
        if (shard < 0 || shard >= m->shards || m->from_b[shard] != b)
            continue;
        if (kd_json_set_copy(out, key, v))
            return kd_fail(err, KD_ENOMEM, "combining two models");
    }
    return 0;
}

static int put_json(const char *dst, const char *name, const struct kd_json *v, struct kd_err *err)
{
    struct kd_buf b;
    char path[4096];
    kd_buf_init(&b, RECEIPT_MAX);
    int rc = kd_json_dump(&b, v, err) || kd_path_join(path, sizeof path, dst, name, err) ||
             kd_file_write(path, b.data, b.size_bytes, err);
    kd_buf_release(&b);
    return rc ? -1 : 0;
}

/* A member object made of both sides' parts. */
static int merge(struct kd_json *out, const char *key, const struct kd_json *a,
                 const struct kd_json *b, const struct kd_mix *m, bool by_layer, struct kd_err *err)
{
    struct kd_json *both = kd_json_new_object();
    if (!both || take(both, kd_json_get(a, key), m, false, by_layer, err) ||
        take(both, kd_json_get(b, key), m, true, by_layer, err)) {
        kd_json_free(both);
        return kd_fail(err, KD_ENOMEM, "combining two models");
    }
    return kd_json_set(out, key, both) ? kd_fail(err, KD_ENOMEM, "combining two models") : 0;
}

/* What the mixed model's storage says of the whole: bytes of all tensors, average bits without the
 * head (weighted as convert does), and whether any rate is masked. */
struct facts {
    int64_t total_bytes;
    double bits, weights;
    bool masked;
};

static int facts_of(const struct kd_json *storage, struct facts *f, struct kd_err *err)
{
    void *iter = NULL, *inner;
    const char *key, *part;
    struct kd_json *entry, *stored;
    memset(f, 0, sizeof *f);
    while (kd_json_next(storage, &iter, &key, &entry)) {
        const char *format = kd_json_text(kd_json_get(entry, "quant_format"), NULL);
        double weights = 0;
        for (inner = NULL;
             kd_json_next(kd_json_get(entry, "stored_tensors"), &inner, &part, &stored);) {
            const struct kd_json *shape = kd_json_get(stored, "shape");
            int64_t bytes = kd_json_int_value(kd_json_get(stored, "n_bytes"));
            if (bytes < 0 || bytes > file_bytes_max - f->total_bytes)
                return kd_fail(err, KD_ECORRUPT,
                               "quantization_config.json: the bytes of '%.60s' cannot be", key);
            f->total_bytes += bytes;
            if (format && kd_json_count(shape) == 3) /* the codes: tiles of 256 weights */
                weights = 256.0 * kd_json_num_value(kd_json_at(shape, 0)) *
                          kd_json_num_value(kd_json_at(shape, 1));
        }
        f->masked |= format && !strcmp(format, "exl3-masked");
        if (!strstr(key, "layers."))
            continue;
        f->bits += weights * kd_json_num_value(kd_json_get(entry, "bits_per_weight"));
        f->weights += weights;
    }
    double bits = f->weights > 0 ? f->bits / f->weights : 0;
    return bits >= 0 && bits < 1000 ? 0
                                    : kd_fail(err, KD_ECORRUPT,
                                              "quantization_config.json: its bits a weight "
                                              "cannot be");
}

/* Both config files' block, as convert writes it, with the facts of this model. */
static int set_facts(struct kd_json *block, const struct facts *f, struct kd_err *err)
{
    static const char *const keys[] = {"quant_method", "bits"};
    struct kd_json *v = NULL;
    struct kd_buf text;
    double bits = f->weights > 0 ? f->bits / f->weights : 0;
    kd_buf_init(&text, 4096);
    struct kd_jw w = {.out = &text};
    kd_jw_open(&w, NULL, '{');
    kd_jw_str(&w, keys[0], f->masked ? "exl3-masked" : "exl3");
    kd_jw_num(&w, keys[1], (double)(int64_t)(bits * 100 + 0.5) / 100);
    kd_jw_close(&w, '}');
    int rc =
        kd_buf_ok(&text, "mix", err) || kd_json_parse(&v, text.data, text.size_bytes, "mix", err);
    for (int i = 0; !rc && i < 2; i++)
        if (kd_json_set_copy(block, keys[i], kd_json_get(v, keys[i])))
            rc = kd_fail(err, KD_ENOMEM, "combining two models");
    kd_json_free(v);
    kd_buf_release(&text);
    return rc ? -1 : 0;
}

static int set_int(struct kd_json *obj, const char *key, int64_t value, struct kd_err *err)
{
    struct kd_json *v = NULL;
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    if (kd_json_parse(&v, text, strlen(text), key, err))
        return -1;
    return kd_json_set(obj, key, v) ? kd_fail(err, KD_ENOMEM, "combining two models") : 0;
}

static int load_both(struct kd_json **xa, struct kd_json **xb, const char *a, const char *b,
                     const char *name, struct kd_err *err)
{
    *xa = *xb = NULL;
    return load(xa, a, name, err) || load(xb, b, name, err) ? -1 : 0;
}

static int write_storage(const struct kd_mix *m, const char *a, const char *b, const char *dst,
                         struct facts *f, struct kd_err *err)
{
    struct kd_json *xa, *xb;
    int rc = load_both(&xa, &xb, a, b, "quantization_config.json", err) ||
             merge(xa, "tensor_storage", xa, xb, m, true, err);
    if (!rc) {
        rc = facts_of(kd_json_get(xa, "tensor_storage"), f, err) || set_facts(xa, f, err) ||
             put_json(dst, "quantization_config.json", xa, err);
    }
    kd_json_free(xa);
    kd_json_free(xb);
    return rc ? -1 : 0;
}

static int write_index(const struct kd_mix *m, const char *a, const char *b, const char *dst,
                       const struct facts *f, struct kd_err *err)
{
    struct kd_json *xa, *xb;
    int rc = load_both(&xa, &xb, a, b, "model.safetensors.index.json", err) ||
             merge(xa, "weight_map", xa, xb, m, false, err);
    struct kd_json *meta = rc ? NULL : kd_json_get(xa, "metadata");
    if (!rc)
        rc = (meta && set_int(meta, "total_size", f->total_bytes, err)) ||
             put_json(dst, "model.safetensors.index.json", xa, err);
    kd_json_free(xa);
    kd_json_free(xb);
    return rc ? -1 : 0;
}

static int write_config(const char *a, const char *dst, const struct facts *f, struct kd_err *err)
{
    struct kd_json *config = NULL;
    if (load(&config, a, "config.json", err))
        return -1;
    struct kd_json *block = kd_json_get(config, "quantization_config");
    int rc = block ? set_facts(block, f, err)
                   : kd_fail(err, KD_ECORRUPT, "%s/config.json has no quantization_config", a);
    rc = rc || put_json(dst, "config.json", config, err);
    kd_json_free(config);
    return rc ? -1 : 0;
}

/* The lists of tensors that fell back, each layer's from its own side. */
static int merge_fallbacks(struct kd_json *ra, const struct kd_json *rb, const struct kd_mix *m,
                           struct kd_err *err)
{
    const struct kd_json *side[2] = {kd_json_get(ra, "fallbacks"), kd_json_get(rb, "fallbacks")};
    struct kd_json *list, *v = NULL;
    void *iter = NULL;
    const char *kind;
    struct kd_buf text;
    kd_buf_init(&text, RECEIPT_MAX);
    struct kd_jw w = {.out = &text};
    kd_jw_open(&w, NULL, '{');
    while (kd_json_next(side[0], &iter, &kind, &list)) {
        kd_jw_open(&w, kind, '[');
        for (int s = 0; s < 2; s++) {
            const struct kd_json *names = kd_json_get(side[s], kind);
            for (size_t i = 0; i < kd_json_count(names); i++) {
                const char *name = kd_json_text(kd_json_at(names, i), NULL);
                const char *at = name ? strstr(name, "layers.") : NULL;
                int64_t shard = at ? strtoll(at + 7, NULL, 10) : m->layers;
                if (name && shard >= 0 && shard < m->shards && m->from_b[shard] == (s == 1))
                    kd_jw_str(&w, NULL, name);
            }
        }
        kd_jw_close(&w, ']');
    }
    kd_jw_close(&w, '}');
    int rc = kd_buf_ok(&text, "fallbacks", err) ||
             kd_json_parse(&v, text.data, text.size_bytes, "fallbacks", err);
    if (!rc && kd_json_set(ra, "fallbacks", v))
        rc = kd_fail(err, KD_ENOMEM, "combining two models");
    kd_buf_release(&text);
    return rc ? -1 : 0;
}

/* What loads both loads the mix; where only one side is loaded, its refusal is the mix's. */
static int merge_loaders(struct kd_json *ra, const struct kd_json *rb, struct kd_err *err)
{
    struct kd_json *la = kd_json_get(ra, "loaders");
    const struct kd_json *lb = kd_json_get(rb, "loaders");
    static const char *const rules[] = {"any_exl3_with_a_k_per_expert",
                                        "exllamav3_rule_one_k_per_projection"};
    for (size_t i = 0; la && i < sizeof rules / sizeof *rules; i++) {
        const char *other = kd_json_text(kd_json_get(lb, rules[i]), NULL);
        if (other && !strncmp(other, "no", 2) &&
            kd_json_set_copy(la, rules[i], kd_json_get(lb, rules[i])))
            return kd_fail(err, KD_ENOMEM, "combining two models");
    }
    return 0;
}

static int write_receipt(const struct kd_mix *m, const char *a, const char *b, const char *dst,
                         struct kd_err *err)
{
    struct kd_json *xa, *xb, *mix = NULL;
    struct kd_buf note;
    kd_buf_init(&note, 1 << 20);
    struct kd_jw w = {.out = &note};
    kd_jw_open(&w, NULL, '{');
    kd_jw_open(&w, "layers_of_the_higher_rate", '[');
    for (int l = 0; l < m->layers; l++)
        if (m->from_b[l])
            kd_jw_int(&w, NULL, l);
    kd_jw_close(&w, ']');
    kd_jw_int(&w, "lower_bytes", m->a_bytes);
    kd_jw_int(&w, "higher_bytes", m->b_bytes);
    kd_jw_close(&w, '}');
    int rc = load_both(&xa, &xb, a, b, "kondense.json", err) ||
             merge(xa, "tensors", xa, xb, m, true, err) ||
             merge(xa, "files", xa, xb, m, false, err) || merge_fallbacks(xa, xb, m, err) ||
             merge_loaders(xa, xb, err) ||
             kd_json_parse(&mix, note.data, note.size_bytes, "mix", err);
    if (!rc) {
        rc = set_int(xa, "total_bytes", m->bytes, err) || kd_json_set_copy(xa, "mix", mix);
        kd_json_del(xa, "verdict");
        kd_json_del(xa, "bits");
        rc = rc || put_json(dst, "kondense.json", xa, err);
    }
    kd_buf_release(&note);
    kd_json_free(mix);
    kd_json_free(xa);
    kd_json_free(xb);
    return rc ? -1 : 0;
}

int kd_mix_write(const struct kd_mix *m, const char *a, const char *b, const char *dst,
                 struct kd_err *err)
{
    static const char *const others[] = {"tiktoken.model", "tokenizer_config.json",
                                         "generation_config.json"};
    char name[64], path[4096];
    if (kd_path_join(path, sizeof path, dst, "config.json", err))
        return -1;
    if (kd_file_exists(path))
        return kd_fail(err, KD_EUSAGE, "'%s' already holds a finished model; choose another folder",
                       dst);
    if (kd_dir_make(dst, err))
        return -1;
    for (int s = 0; s < m->shards; s++) {
        snprintf(name, sizeof name, "model-%05d-of-%06d.safetensors", s + 1, m->shards);
        if (copy(m->from_b[s] ? b : a, dst, name, true, err))
            return -1;
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!kd_path_join(path, sizeof path, a, others[i], err) && kd_file_exists(path) &&
            copy(a, dst, others[i], false, err))
            return -1;
    struct facts f;
    return write_storage(m, a, b, dst, &f, err) || write_index(m, a, b, dst, &f, err) ||
                   write_receipt(m, a, b, dst, err) || write_config(a, dst, &f, err)
               ? -1
               : 0;
}
