/* The small files of a finished model: index, quantization_config.json, tokenizer files, the
 * receipt kondense.json and, last, config.json. A folder without config.json is an unfinished
 * conversion. */
#include "base/hash.h"
#include "base/mem.h"
#include "convert/job.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK = 1 << 20 };

/* JSON streamed to a file: at K3's size these documents have 100 MB and more. */
struct sink {
    struct kd_outfile file;
    struct kd_buf buf;
    struct kd_jw w;
};

static int sink_open(struct sink *s, const struct kd_job *j, const char *name, struct kd_err *err)
{
    char path[4096];
    memset(s, 0, sizeof *s);
    kd_buf_init(&s->buf, 1u << 30);
    s->w.out = &s->buf;
    return kd_path_join(path, sizeof path, j->dst, name, err) || kd_out_open(&s->file, path, err)
               ? -1
               : 0;
}

static int sink_flush(struct sink *s, size_t over, struct kd_err *err)
{
    if (kd_buf_ok(&s->buf, s->file.path, err))
        return -1;
    if (s->buf.size_bytes <= over)
        return 0;
    int rc = kd_out_write(&s->file, s->buf.data, (int64_t)s->buf.size_bytes, err);
    kd_buf_clear(&s->buf);
    return rc;
}

static int sink_close(struct sink *s, int rc, struct kd_err *err)
{
    kd_buf_char(&s->buf, '\n');
    if (!rc)
        rc = sink_flush(s, 0, err);
    if (!rc)
        rc = kd_out_commit(&s->file, err);
    else
        kd_out_abort(&s->file);
    kd_buf_release(&s->buf);
    return rc ? -1 : 0;
}

/* The names under which one output tensor is stored. */
static int parts_of(const struct kd_job *j, const struct kd_out_tensor *t, char parts[5][16])
{
    static const char *const cb_names[] = {NULL, "mcg", "mul1"};
    int n = 0;
    if (!t->quantized)
        return 0;
    bool masked = t->rate16 % 16 != 0;
    snprintf(parts[n++], 16, masked ? "ktrellis" : "trellis");
    snprintf(parts[n++], 16, "suh");
    snprintf(parts[n++], 16, "svh");
    if (cb_names[j->rates.wish.cb])
        snprintf(parts[n++], 16, "%s", cb_names[j->rates.wish.cb]);
    if (masked)
        snprintf(parts[n++], 16, "kmask");
    return n;
}

int kd_job_write_index(const struct kd_job *j, struct kd_err *err)
{
    struct sink s;
    char name[512], shard[64], parts[5][16];
    int64_t total = 0;
    for (int64_t i = 0; i < j->rates.count; i++)
        total += j->rates.t[i].bytes;
    if (sink_open(&s, j, "model.safetensors.index.json", err))
        return -1;
    int rc = 0;
    kd_jw_open(&s.w, NULL, '{');
    kd_jw_open(&s.w, "metadata", '{');
    kd_jw_int(&s.w, "total_size", total);
    kd_jw_close(&s.w, '}');
    kd_jw_open(&s.w, "weight_map", '{');
    for (int64_t i = 0; !rc && i < j->rates.count; i++) {
        const struct kd_out_tensor *t = &j->rates.t[i];
        int n = parts_of(j, t, parts);
        kd_rates_shard_name(&j->rates, t->shard, shard, sizeof shard);
        if (!n)
            kd_jw_str(&s.w, t->key, shard);
        for (int p = 0; p < n; p++) {
            snprintf(name, sizeof name, "%s.%s", t->key, parts[p]);
            kd_jw_str(&s.w, name, shard);
        }
        rc = sink_flush(&s, CHUNK, err);
    }
    kd_jw_close(&s.w, '}');
    kd_jw_close(&s.w, '}');
    return sink_close(&s, rc, err);
}

static bool any_masked(const struct kd_job *j)
{
    for (int64_t i = 0; i < j->rates.count; i++)
        if (j->rates.t[i].quantized && j->rates.t[i].rate16 % 16)
            return true;
    return false;
}

/* Whether each projection has one K over all experts of a layer (exllamav3's rule). */
static bool uniform(const struct kd_job *j)
{
    const struct kd_out_tensor *seen[KD_PROJ_COUNT] = {NULL};
    for (int64_t i = 0; i < j->rates.count; i++) {
        const struct kd_out_tensor *t = &j->rates.t[i];
        if (!t->quantized || t->expert < 0)
            continue;
        if (seen[t->proj] && seen[t->proj]->layer == t->layer && seen[t->proj]->rate16 != t->rate16)
            return false;
        seen[t->proj] = t;
    }
    return true;
}

static const char *codebook_name(enum kd_codebook cb)
{
    return cb == KD_CB_MUL1 ? "mul1" : cb == KD_CB_MCG ? "mcg" : "3inst";
}

/* The block both config files carry. Masked rates get a method name of their own, so that a loader
 * that only knows EXL3 refuses the model instead of misreading it. */
static void quant_block(const struct kd_job *j, struct kd_jw *w)
{
    struct kd_rate_sum e = kd_rates_sum(&j->rates, 'e'), t = kd_rates_sum(&j->rates, 't');
    double weights = (double)(e.trellis_weights + t.trellis_weights);
    double bits =
        weights > 0 ? (e.k * (double)e.trellis_weights + t.k * (double)t.trellis_weights) / weights
                    : 0;
    kd_jw_str(w, "quant_method", any_masked(j) ? "exl3-masked" : "exl3");
    kd_jw_str(w, "version", "Kondense " KD_VERSION);
    kd_jw_num(w, "bits", (double)(int64_t)(bits * 100 + 0.5) / 100);
    kd_jw_num(w, "head_bits", kd_rates_sum(&j->rates, 'h').k);
    kd_jw_open(w, "calibration", '{');
    kd_jw_int(w, "rows", j->text->rows);
    kd_jw_int(w, "cols", j->text->cols);
    kd_jw_close(w, '}');
    kd_jw_str(w, "out_scales", "always");
    kd_jw_str(w, "codebook", codebook_name(j->rates.wish.cb));
}

static void stored_tensor(struct kd_jw *w, const char *key, const char *part, int rank,
                          const int64_t *shape, int64_t bytes, const char *dtype)
{
    char name[512];
    snprintf(name, sizeof name, "%s%s%s", key, *part ? "." : "", part);
    kd_jw_open(w, name, '{');
    kd_jw_open(w, "shape", '[');
    for (int i = 0; i < rank; i++)
        kd_jw_int(w, NULL, shape[i]);
    kd_jw_close(w, ']');
    kd_jw_int(w, "n_bytes", bytes);
    kd_jw_str(w, "dtype", dtype);
    kd_jw_close(w, '}');
}

static const char *torch_name(const char *dtype)
{
    static const char *const names[][2] = {
        {"BF16", "torch.bfloat16"}, {"F16", "torch.float16"}, {"F32", "torch.float32"},
        {"U8", "torch.uint8"},      {"I8", "torch.int8"},     {"I16", "torch.int16"},
        {"I32", "torch.int32"},     {"I64", "torch.int64"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i][0], dtype))
            return names[i][1];
    return dtype;
}

static void storage_entry(const struct kd_job *j, struct kd_jw *w, const struct kd_out_tensor *t)
{
    kd_jw_open(w, t->key, '{');
    kd_jw_open(w, "stored_tensors", '{');
    if (!t->quantized) {
        stored_tensor(w, t->key, "", t->rank, t->shape, t->src_bytes, torch_name(t->dtype_name));
        kd_jw_close(w, '}');
        kd_jw_close(w, '}');
        return;
    }
    int64_t k = kd_exl3_pad(t->cols), n = kd_exl3_pad(t->rows);
    int64_t tiles[3] = {k / 16, n / 16, t->rate16};
    bool masked = t->rate16 % 16 != 0;
    stored_tensor(w, t->key, masked ? "ktrellis" : "trellis", 3, tiles,
                  k / 16 * (n / 16) * t->rate16 * 2, "torch.int16");
    stored_tensor(w, t->key, "suh", 1, &k, 2 * k, "torch.float16");
    stored_tensor(w, t->key, "svh", 1, &n, 2 * n, "torch.float16");
    if (j->rates.wish.cb != KD_CB_3INST)
        stored_tensor(w, t->key, codebook_name(j->rates.wish.cb), 0, NULL, 4, "torch.int32");
    if (masked)
        stored_tensor(w, t->key, "kmask", 0, NULL, 4, "torch.int32");
    kd_jw_close(w, '}');
    kd_jw_str(w, "quant_format", masked ? "exl3-masked" : "exl3");
    if (masked)
        kd_jw_num(w, "bits_per_weight", (double)t->rate16 / 16);
    else
        kd_jw_int(w, "bits_per_weight", t->rate16 / 16);
    if (j->rates.wish.cb == KD_CB_MUL1)
        kd_jw_int(w, "mul1_multiplier", 0x83DCD12D);
    else if (j->rates.wish.cb == KD_CB_MCG)
        kd_jw_int(w, "mcg_multiplier", 0xCBAC1FED);
    kd_jw_close(w, '}');
}

int kd_job_write_quant_config(const struct kd_job *j, struct kd_err *err)
{
    struct sink s;
    if (sink_open(&s, j, "quantization_config.json", err))
        return -1;
    int rc = 0;
    kd_jw_open(&s.w, NULL, '{');
    quant_block(j, &s.w);
    kd_jw_open(&s.w, "tensor_storage", '{');
    for (int64_t i = 0; !rc && i < j->rates.count; i++) {
        storage_entry(j, &s.w, &j->rates.t[i]);
        rc = sink_flush(&s, CHUNK, err);
    }
    kd_jw_close(&s.w, '}');
    kd_jw_close(&s.w, '}');
    return sink_close(&s, rc, err);
}

static int copy_others(const struct kd_job *j, struct kd_err *err)
{
    char from[4096], to[4096];
    DIR *dir = opendir(kd_ckpt_dir(j->ck));
    if (!dir)
        return kd_fail_sys(err, "cannot list '%s'", kd_ckpt_dir(j->ck));
    int rc = 0;
    struct dirent *e;
    while (!rc && (e = readdir(dir))) {
        if (!kd_ckpt_is_beside(e->d_name) || kd_name_ends(e->d_name, ".tmp") ||
            kd_path_join(from, sizeof from, kd_ckpt_dir(j->ck), e->d_name, err) ||
            !kd_file_exists(from))
            continue;
        struct kd_map m;
        rc = kd_path_join(to, sizeof to, j->dst, e->d_name, err) || kd_file_map(&m, from, err);
        if (!rc) {
            rc = kd_file_write(to, m.data ? (const void *)m.data : "", (size_t)m.size_bytes, err);
            kd_map_release(&m);
        }
    }
    closedir(dir);
    return rc ? -1 : 0;
}

int kd_job_write_config(const struct kd_job *j, struct kd_json *config, struct kd_err *err)
{
    struct kd_buf block, out;
    struct kd_json *quant = NULL;
    char path[4096];
    kd_buf_init(&block, 1 << 20);
    kd_buf_init(&out, 1 << 26);
    struct kd_jw w = {.out = &block};
    kd_jw_open(&w, NULL, '{');
    quant_block(j, &w);
    kd_jw_close(&w, '}');
    int rc = kd_json_parse(&quant, block.data, block.size_bytes, "quantization block", err);
    if (!rc) {
        struct kd_json *text = kd_json_get(config, "text_config");
        struct kd_json *holder = text && kd_json_get(text, "quantization_config") ? text : config;
        struct kd_json *old = kd_json_get(holder, "quantization_config");
        if (old && kd_json_set_copy(quant, "original_quantization_config", old))
            rc = kd_fail(err, KD_ENOMEM, "config.json");
        if (!rc && old)
            kd_json_del(holder, "quantization_config");
        if (!rc && kd_json_set_copy(config, "quantization_config", quant))
            rc = kd_fail(err, KD_ENOMEM, "config.json");
    }
    if (!rc)
        rc = kd_json_dump(&out, config, err) ||
             kd_path_join(path, sizeof path, j->dst, "config.json", err) ||
             kd_file_write(path, out.data, out.size_bytes, err);
    kd_json_free(quant);
    kd_buf_release(&block);
    kd_buf_release(&out);
    return rc ? -1 : 0;
}

static int config_of_source(const struct kd_job *j, struct kd_err *err)
{
    struct kd_json *config = NULL;
    char path[4096];
    int rc = kd_path_join(path, sizeof path, kd_ckpt_dir(j->ck), "config.json", err) ||
             kd_json_load(&config, path, 1 << 26, err) || kd_job_write_config(j, config, err);
    kd_json_free(config);
    return rc ? -1 : 0;
}

static void rate_class(const struct kd_job *j, struct kd_jw *w, const char *name, char which)
{
    struct kd_rate_sum s = kd_rates_sum(&j->rates, which);
    kd_jw_open(w, name, '{');
    kd_jw_int(w, "tensors", s.tensors);
    kd_jw_int(w, "weights", s.weights);
    kd_jw_int(w, "bytes", s.bytes);
    if (which != 's')
        kd_jw_num(w, "k", s.k);
    kd_jw_num(w, "real", s.real);
    kd_jw_close(w, '}');
}

static int load_figures(const struct kd_job *j, int32_t shard, struct kd_unit_figures *out,
                        struct kd_err *err)
{
    int64_t count = j->rates.shard_first[shard + 1] - j->rates.shard_first[shard];
    char path[4096];
    struct kd_buf b;
    kd_buf_init(&b, (size_t)count * sizeof *out);
    int rc = kd_job_path(j, path, sizeof path, err, "figures.%05d", shard) ||
             kd_file_read(&b, path, (size_t)count * sizeof *out, err);
    if (!rc && b.size_bytes != (size_t)count * sizeof *out)
        rc = kd_fail(err, KD_ECORRUPT, "'%s' is damaged; remove '%s' and convert again", path,
                     j->dst);
    if (!rc && count)
        memcpy(out, b.data, b.size_bytes);
    kd_buf_release(&b);
    return rc ? -1 : 0;
}

static void tensor_figures(struct kd_jw *w, const struct kd_out_tensor *t,
                           const struct kd_unit_figures *f)
{
    kd_jw_open(w, t->key, '{');
    w->compact = true;
    kd_jw_num(w, "k", (double)t->rate16 / 16);
    kd_jw_num(w, "mse", f->mse);
    if (f->proxy >= 0)
        kd_jw_num(w, "proxy", f->proxy);
    kd_jw_num(w, "rel", f->rel_fro);
    kd_jw_num(w, "scale", (double)f->scale);
    if (f->fallback)
        kd_jw_int(w, "fallback", f->fallback);
    if (f->cholesky_tries > 1)
        kd_jw_int(w, "cholesky_tries", f->cholesky_tries);
    kd_jw_close(w, '}');
    w->compact = false;
}

static int write_tensors(const struct kd_job *j, struct sink *s, struct kd_err *err)
{
    struct kd_unit_figures *figures = NULL;
    if (kd_mem_zero(&figures, j->rates.count, sizeof *figures, "figures", err))
        return -1;
    int rc = 0;
    for (int32_t k = 0; !rc && k < j->rates.shard_count; k++)
        rc = load_figures(j, k, figures + j->rates.shard_first[k], err);
    kd_jw_open(&s->w, "tensors", '{');
    for (int64_t i = 0; !rc && i < j->rates.count; i++) {
        if (j->rates.t[i].quantized)
            tensor_figures(&s->w, &j->rates.t[i], &figures[i]);
        rc = sink_flush(s, CHUNK, err);
    }
    kd_jw_close(&s->w, '}');
    kd_jw_open(&s->w, "fallbacks", '{');
    static const struct {
        const char *name;
        uint32_t bit;
    } kinds[] = {{"plain_tiles", 1},
                 {"few_routed_tokens", 2},
                 {"all_token_hessian", 4},
                 {"plain_recipe_won", 8}};
    for (size_t n = 0; !rc && n < sizeof kinds / sizeof *kinds; n++) {
        kd_jw_open(&s->w, kinds[n].name, '[');
        for (int64_t i = 0; !rc && i < j->rates.count; i++)
            if (j->rates.t[i].quantized && (figures[i].fallback & kinds[n].bit)) {
                kd_jw_str(&s->w, NULL, j->rates.t[i].key);
                rc = sink_flush(s, CHUNK, err);
            }
        kd_jw_close(&s->w, ']');
    }
    kd_jw_close(&s->w, '}');
    kd_mem_free(figures);
    return rc;
}

/* Recipe auto: which recipe each layer's experts took, and by how much it won. */
static int write_choices(const struct kd_job *j, struct sink *s, struct kd_err *err)
{
    if (j->set.recipe != KD_RECIPE_AUTO)
        return 0;
    kd_jw_open(&s->w, "auto", '[');
    for (int64_t l = 0; l < j->cfg.layers; l++) {
        struct kd_json *choice;
        char path[4096];
        if (kd_job_path(j, path, sizeof path, err, "recipe.%03lld", (long long)l))
            return -1;
        if (!kd_file_exists(path))
            continue; /* no experts */
        if (kd_json_load(&choice, path, 4096, err))
            return -1;
        kd_jw_copy(&s->w, NULL, choice);
        kd_json_free(choice);
    }
    kd_jw_close(&s->w, ']');
    return sink_flush(s, CHUNK, err);
}

static void write_padding(const struct kd_job *j, struct kd_jw *w)
{
    kd_jw_open(w, "padded", '[');
    for (int64_t i = 0; i < j->rates.count; i++) {
        const struct kd_out_tensor *t = &j->rates.t[i];
        if (t->quantized && (t->rows % 128 || t->cols % 128))
            kd_jw_str(w, NULL, t->key);
    }
    kd_jw_close(w, ']');
    kd_jw_open(w, "kept_for_padding", '[');
    for (int64_t i = 0; i < j->rates.count; i++)
        if (j->rates.t[i].kept_for_padding)
            kd_jw_str(w, NULL, j->rates.t[i].key);
    kd_jw_close(w, ']');
}

/* Digests that were not known when the settings were written. */
static int final_source(const struct kd_job *j, struct kd_json *set, struct kd_err *err)
{
    struct kd_json *source;
    if (!j->source_final)
        return 0;
    if (kd_json_parse(&source, j->source_final, strlen(j->source_final), "source", err))
        return -1;
    return kd_json_set(set, "source", source) ? kd_fail(err, KD_ENOMEM, "kondense.json") : 0;
}

static int write_receipt(const struct kd_job *j, struct kd_err *err)
{
    struct sink s;
    struct kd_buf settings;
    struct kd_json *set = NULL;
    char path[4096], name[64];
    kd_buf_init(&settings, 1 << 26);
    int rc = kd_job_path(j, path, sizeof path, err, "settings.json") ||
             kd_file_read(&settings, path, 1 << 26, err) ||
             kd_json_parse(&set, settings.data, settings.size_bytes, path, err) ||
             final_source(j, set, err) || sink_open(&s, j, "kondense.json", err);
    kd_buf_release(&settings);
    if (rc) {
        kd_json_free(set);
        return -1;
    }
    kd_jw_open(&s.w, NULL, '{');
    kd_jw_str(&s.w, "made_by", "Kondense " KD_VERSION);
    kd_jw_copy(&s.w, "settings", set);
    kd_jw_open(&s.w, "bits", '{');
    rate_class(j, &s.w, "experts", 'e');
    rate_class(j, &s.w, "trunk", 't');
    rate_class(j, &s.w, "head", 'h');
    rate_class(j, &s.w, "stored", 's');
    kd_jw_close(&s.w, '}');
    kd_jw_open(&s.w, "files", '{');
    for (int32_t k = 0; k < j->rates.shard_count; k++) {
        kd_rates_shard_name(&j->rates, k, name, sizeof name);
        kd_jw_int(&s.w, name, j->rates.shard_bytes[k]);
    }
    kd_jw_close(&s.w, '}');
    kd_jw_int(&s.w, "total_bytes", j->rates.total_bytes);
    kd_jw_open(&s.w, "loaders", '{');
    kd_jw_bool(&s.w, "kondense", true);
    kd_jw_str(&s.w, "any_exl3_with_a_k_per_expert", any_masked(j) ? "no: masked rates" : "yes");
    kd_jw_str(&s.w, "exllamav3_rule_one_k_per_projection",
              any_masked(j) ? "no: masked rates"
              : uniform(j)  ? "yes"
                            : "no: K varies by expert");
    kd_jw_close(&s.w, '}');
    write_padding(j, &s.w);
    rc = write_choices(j, &s, err) || write_tensors(j, &s, err);
    kd_jw_close(&s.w, '}');
    kd_json_free(set);
    return sink_close(&s, rc, err);
}

int kd_job_write_small(struct kd_job *j, struct kd_err *err)
{
    return kd_job_write_index(j, err) || kd_job_write_quant_config(j, err) || copy_others(j, err) ||
                   write_receipt(j, err) || config_of_source(j, err)
               ? -1
               : 0;
}
