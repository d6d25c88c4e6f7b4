#include "convert/synth.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/rand.h"
#include "base/show.h"
#include "convert/job.h"
#include "convert/synth_int.h"
#include "fmt/exl3_file.h"
#include "num/half.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NAME_MAX_BYTES = 160, SLAB = 8 << 20, PIECE = 64 << 10 };

struct kd_synth {
    struct kd_synth_opts o;
    struct kd_json *config; /* of what is made */
    struct kd_k3_cfg whole, cut;
    struct kd_k3_map map, whole_map;
    struct kd_tensor *list; /* names, as the release has them */
    char (*names)[NAME_MAX_BYTES];
    int64_t count;
    struct kd_rates rates;
};

static bool is_exl3(const struct kd_synth *s)
{
    return s->o.wish.experts_bpw > 0;
}

/* Every tensor's name in the released form. */
static int list_names(struct kd_synth *s, struct kd_err *err)
{
    const struct kd_k3_cfg *c = &s->cut;
    struct kd_k3_name n;
    int64_t moe = 0, most;
    for (int64_t l = 0; l < c->layers; l++)
        moe += kd_k3_is_moe(c, l);
    most = (c->layers + 1) * kd_k3_row_count() + moe * c->experts * 6;
    if (kd_mem_zero(&s->list, most, sizeof *s->list, "tensor list", err) ||
        kd_mem_new(&s->names, most, sizeof *s->names, "tensor names", err))
        return -1;
    for (int64_t l = -1; l < c->layers; l++) {
        for (int row = 0; row < kd_k3_row_count(); row++)
            s->count += kd_k3_row_tensor(&s->map, row, l, s->names[s->count], sizeof *s->names, &n);
        for (int64_t e = 0; l >= 0 && kd_k3_is_moe(c, l) && e < c->experts; e++)
            for (int p = 0; p < 6; p++)
                snprintf(s->names[s->count++], sizeof *s->names,
                         "%smodel.layers.%lld.block_sparse_moe.experts.%lld.w%d.weight_%s",
                         c->nested ? "language_model." : "", (long long)l, (long long)e, p / 2 + 1,
                         p % 2 ? "scale" : "packed");
    }
    for (int64_t i = 0; i < s->count; i++)
        s->list[i] = (struct kd_tensor){.name = s->names[i], .rank = -1};
    return 0;
}

static int take_config(struct kd_synth *s, const struct kd_json *config, struct kd_err *err)
{
    struct kd_buf text;
    kd_buf_init(&text, 1 << 24);
    int rc = kd_json_dump(&text, config, err) ||
             kd_json_parse(&s->config, text.data, text.size_bytes, "config", err);
    kd_buf_release(&text);
    if (rc || kd_k3_cfg_parse(&s->whole, s->config, NULL, err) ||
        kd_k3_cfg_check(&s->whole, s->config, err) ||
        kd_synth_shape(s->config, &s->whole, &s->o, &s->cut, err) ||
        kd_k3_map_init(&s->map, &s->cut, s->config, err) ||
        kd_k3_map_init(&s->whole_map, &s->whole, s->config, err))
        return -1;
    if (s->o.last < 0)
        s->o.last = s->whole.layers - 1;
    if (s->cut.moe_inter % 32 || s->cut.latent % 32)
        return kd_fail(err, KD_EINVAL, "MXFP4 experts need widths that are multiples of 32");
    return 0;
}

int kd_synth_open(struct kd_synth **out, const struct kd_json *config, const char *what,
                  const struct kd_synth_opts *o, struct kd_err *err)
{
    struct kd_synth *s;
    *out = NULL;
    if (kd_mem_zero(&s, 1, sizeof *s, "made model", err))
        return -1;
    s->o = *o;
    if (take_config(s, config, err)) {
        kd_synth_close(s);
        return err->code == KD_EUSAGE || err->code == KD_ENOTSUP ? -1 : kd_wrap(err, "%s", what);
    }
    if (list_names(s, err) ||
        kd_rates_plan_names(&s->rates, s->list, s->count, s->config, &s->cut, &s->o.wish, err)) {
        kd_synth_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

void kd_synth_close(struct kd_synth *s)
{
    if (!s)
        return;
    kd_rates_release(&s->rates);
    kd_json_free(s->config);
    kd_mem_free(s->list);
    kd_mem_free(s->names);
    kd_mem_free(s);
}

void kd_synth_facts(const struct kd_synth *s, struct kd_synth_facts *f)
{
    *f = (struct kd_synth_facts){.layers = s->cut.layers,
                                 .tensors = s->rates.count,
                                 .shards = s->rates.shard_count,
                                 .file_bytes = s->rates.total_bytes};
    for (int64_t i = 0; i < s->rates.count; i++) {
        const struct kd_out_tensor *t = &s->rates.t[i];
        *(t->layer < 0 ? &f->end_bytes : &f->layer_bytes) += t->bytes;
    }
    if (is_exl3(s))
        f->experts = kd_rates_sum(&s->rates, 'e');
}

/* The stream of a tensor: by its layer's number in the whole model and its name in the layer, so
 * that a range of layers and all of them have the same weights. */
static uint64_t seed_of(const struct kd_synth *s, const struct kd_out_tensor *t, const char *part)
{
    const char *name = t->key, *dot = strstr(name, ".layers.");
    int64_t layer = t->layer < 0 ? -1 : t->layer + s->o.first;
    if (dot && t->layer >= 0)
        name = strchr(dot + 8, '.');
    uint64_t own = kd_rand_fork(s->o.seed, (uint64_t)layer + 1);
    return kd_rand_fork(kd_rand_fork(own, kd_fnv64(name)), kd_fnv64(part));
}

/* `name` as the whole model has it. */
static void whole_name(const struct kd_synth *s, const struct kd_out_tensor *t, const char *name,
                       char *out, size_t size)
{
    const char *at = strstr(name, ".layers.");
    const char *rest = at && t->layer >= 0 ? strchr(at + 8, '.') : NULL;
    if (rest)
        snprintf(out, size, "%.*s%lld%s", (int)(at + 8 - name), name,
                 (long long)(t->layer + s->o.first), rest);
    else
        snprintf(out, size, "%s", name);
}

static int64_t power_of(int64_t inputs)
{
    int64_t shift = 0; /* 1/sqrt(inputs), as the codes' rms is about 2 */
    while ((int64_t)1 << (2 * shift) < 4 * inputs)
        shift++;
    return shift;
}

/* What a tensor that stays as the release stores it is filled with. */
static void fill_of(const struct kd_k3_name *n, int64_t inputs, struct kd_synth_item *it)
{
    const char *row = kd_k3_row_name(n->row);
    it->type = !strcmp(n->dtype, "F32") ? 'f' : !strcmp(n->dtype, "BF16") ? 'b' : 'u';
    if (n->part == KD_K3_PACKED) {
        it->kind = KD_SYNTH_CODES;
    } else if (n->part == KD_K3_SCALE) {
        it->kind = KD_SYNTH_SCALES;
        it->gain = (float)(127 - power_of(32 * inputs));
    } else if (kd_name_ends(row, "norm")) {
        it->kind = KD_SYNTH_NORM;
    } else if (kd_name_ends(row, "A_log")) {
        it->kind = KD_SYNTH_UNIT;
    } else if (kd_name_ends(row, "bias")) {
        it->gain = 0.2f;
    } else {
        it->gain = (n->kind == KD_K3_ROUTER  ? 2.0f
                    : n->kind == KD_K3_EMBED ? sqrtf((float)inputs)
                                             : 1.0f) /
                   sqrtf((float)inputs);
    }
}

/* Where a cut tensor begins in the whole one. */
static int64_t begin_of(const struct kd_synth *s, int64_t cut, int64_t whole)
{
    return cut == whole ? 0 : s->o.rank * cut;
}

static int stored_item(const struct kd_synth *s, const struct kd_out_tensor *t,
                       struct kd_synth_item *it, struct kd_err *err)
{
    struct kd_k3_name cut, whole;
    char name[NAME_MAX_BYTES + 24];
    whole_name(s, t, t->key, name, sizeof name);
    if (!kd_k3_name_parse(&s->map, t->key, &cut) || !kd_k3_name_parse(&s->whole_map, name, &whole))
        return kd_fail(err, KD_EINVAL, "%s: no tensor of this model", t->key);
    int last = cut.rank - 1;
    *it = (struct kd_synth_item){.rows = 1, .cols = 1, .whole_cols = 1};
    it->seed = seed_of(s, t, "");
    fill_of(&cut, whole.shape[last], it);
    it->row0 = begin_of(s, cut.shape[0], whole.shape[0]);
    /* A_log is stored wider than it is long where heads are few. */
    if (it->kind == KD_SYNTH_UNIT)
        it->row0 = begin_of(s, s->cut.kda_heads, s->whole.kda_heads);
    for (int d = 0; d < last; d++)
        it->rows *= cut.shape[d];
    if (last) {
        it->cols = cut.shape[last];
        it->whole_cols = whole.shape[last];
        it->col0 = begin_of(s, it->cols, it->whole_cols);
    } else {
        it->rows = cut.shape[0];
    }
    return 0;
}

/* The tensors of an EXL3 group that have more than one element: codes, input and output scales. */
static int exl3_items(const struct kd_synth *s, const struct kd_out_tensor *t,
                      struct kd_synth_item it[3], struct kd_err *err)
{
    struct kd_k3_name whole;
    char key[NAME_MAX_BYTES], name[NAME_MAX_BYTES + 24];
    snprintf(key, sizeof key, "%s.trellis", t->key);
    whole_name(s, t, key, name, sizeof name);
    if (!kd_k3_name_parse(&s->whole_map, name, &whole))
        return kd_fail(err, KD_EINVAL, "%s: no matrix of this model", t->key);
    int64_t k = kd_exl3_pad(t->cols), n = kd_exl3_pad(t->rows);
    int64_t k0 = begin_of(s, t->cols, whole.cols), n0 = begin_of(s, t->rows, whole.rows);
    /* Standard deviation of what random codes decode to. */
    float spread = s->o.wish.cb == KD_CB_MUL1 ? 1.0f : 1.24371088f;
    it[0] = (struct kd_synth_item){.kind = KD_SYNTH_BITS,
                                   .type = 'u',
                                   .rows = k / KD_TILE * (n / KD_TILE),
                                   .cols = kd_rate_tile_bytes(kd_rate_from16(t->rate16)),
                                   .row0 = k0 / KD_TILE,
                                   .col0 = n0 / KD_TILE,
                                   .grid = n / KD_TILE,
                                   .whole_grid = kd_exl3_pad(whole.rows) / KD_TILE,
                                   .seed = seed_of(s, t, "trellis")};
    it[1] = (struct kd_synth_item){.kind = KD_SYNTH_SIGNS,
                                   .type = 'h',
                                   .rows = k,
                                   .cols = 1,
                                   .whole_cols = 1,
                                   .row0 = k0,
                                   .gain = 1,
                                   .seed = seed_of(s, t, "suh")};
    it[2] = it[1];
    it[2].rows = n;
    it[2].row0 = n0;
    it[2].gain = 1 / (spread * sqrtf((float)whole.cols));
    it[2].seed = seed_of(s, t, "svh");
    return 0;
}

/* A slab of rows, made piece by piece by all threads. */
struct slab {
    const struct kd_synth_item *it;
    int64_t lo, hi, step;
    uint8_t *out;
};

static void make_piece(void *ctx, int64_t i, int worker)
{
    const struct slab *b = ctx;
    int64_t lo = b->lo + i * b->step, hi = lo + b->step < b->hi ? lo + b->step : b->hi;
    (void)worker;
    kd_synth_rows(b->it, lo, hi, b->out + (lo - b->lo) * kd_synth_row_bytes(b->it));
}

static int put_item(const struct kd_synth *s, const struct kd_run *run, struct kd_st_writer *w,
                    const struct kd_synth_item *it, uint8_t *buf, struct kd_err *err)
{
    int64_t row = kd_synth_row_bytes(it), many = SLAB / row;
    for (int64_t lo = 0; lo < it->rows; lo += many) {
        struct slab b = {.it = it, .lo = lo, .out = buf, .step = (PIECE + row - 1) / row};
        b.hi = it->rows - lo < many ? it->rows : lo + many;
        if (s->o.stopped && s->o.stopped())
            return kd_fail(err, KD_ECANCEL, "stopped; the same command goes on with it");
        kd_pool_run(run->pool, (b.hi - lo + b.step - 1) / b.step, make_piece, &b);
        if (kd_st_put(w, buf, (b.hi - lo) * row, err))
            return -1;
        kd_progress_add((b.hi - lo) * row, NULL);
    }
    return 0;
}

/* In the order of kd_exl3_plan. */
static int put_tensor(const struct kd_synth *s, const struct kd_run *run, struct kd_st_writer *w,
                      const struct kd_out_tensor *t, uint8_t *buf, struct kd_err *err)
{
    struct kd_synth_item it[3];
    if (!t->quantized)
        return stored_item(s, t, &it[0], err) || put_item(s, run, w, &it[0], buf, err) ? -1 : 0;
    if (exl3_items(s, t, it, err))
        return -1;
    for (int i = 0; i < 3; i++)
        if (put_item(s, run, w, &it[i], buf, err))
            return -1;
    return kd_exl3_put_marks(w, kd_rate_from16(t->rate16), s->o.wish.cb, err);
}

static int write_shard(const struct kd_synth *s, const struct kd_run *run, int32_t shard,
                       const char *path, uint8_t *buf, struct kd_err *err)
{
    struct kd_st_plan p;
    struct kd_st_writer w;
    char note[64];
    memset(&w, 0, sizeof w);
    if (kd_rates_shard_plan(&s->rates, shard, &p, err))
        return -1;
    int rc = kd_st_open(&w, path, &p, err);
    snprintf(note, sizeof note, "shard %d of %d", shard + 1, s->rates.shard_count);
    kd_progress_add(0, note);
    for (int64_t i = s->rates.shard_first[shard]; !rc && i < s->rates.shard_first[shard + 1]; i++)
        rc = put_tensor(s, run, &w, &s->rates.t[i], buf, err);
    if (!rc)
        rc = kd_st_commit(&w, err);
    else
        kd_st_abort(&w);
    kd_st_plan_release(&p);
    return rc;
}

static void base64(struct kd_buf *b, uint8_t byte)
{
    static const char d[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    kd_buf_printf(b, "%c%c==", d[byte >> 2], d[(byte & 3) << 4]);
}

static int write_tokenizer(const char *dst, struct kd_err *err)
{
    static const struct {
        int slot;
        const char *text;
    } special[] = {{0, "[BOS]"},          {1, "[EOS]"},     {2, "<|end_of_msg|>"},
                   {3, "<|open|>"},       {4, "<|close|>"}, {5, "<|sep|>"},
                   {21, "<|media_pad|>"}, {254, "[UNK]"},   {255, "[PAD]"}};
    struct kd_buf b;
    char path[4096];
    kd_buf_init(&b, 1 << 20);
    for (int i = 0; i < 256; i++) {
        base64(&b, (uint8_t)i);
        kd_buf_printf(&b, " %d\n", i);
    }
    int rc = kd_path_join(path, sizeof path, dst, "tiktoken.model", err) ||
             kd_buf_ok(&b, path, err) || kd_file_write(path, b.data, b.size_bytes, err);
    kd_buf_clear(&b);
    kd_buf_str(&b, "{\n  \"added_tokens_decoder\": {");
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        kd_buf_printf(&b, "%s\n    \"%d\": {\"content\": \"%s\", \"special\": %s}", i ? "," : "",
                      256 + special[i].slot, special[i].text, i >= 3 && i <= 5 ? "false" : "true");
    kd_buf_str(&b,
               "\n  },\n  \"bos_token\": \"[BOS]\",\n  \"eos_token\": \"[EOS]\",\n  \"pad_token\": "
               "\"[PAD]\",\n"
               "  \"unk_token\": \"[UNK]\",\n  \"tokenizer_class\": \"TikTokenTokenizer\"\n}\n");
    if (!rc)
        rc = kd_path_join(path, sizeof path, dst, "tokenizer_config.json", err) ||
             kd_buf_ok(&b, path, err) || kd_file_write(path, b.data, b.size_bytes, err);
    kd_buf_release(&b);
    return rc ? -1 : 0;
}

/* What decides the bytes; also the receipt. */
static void write_facts(const struct kd_synth *s, struct kd_buf *out)
{
    static const char *const cb[] = {"3inst", "mcg", "mul1"};
    const struct kd_rate_wish *wish = &s->o.wish;
    struct kd_jw w = {.out = out};
    kd_jw_open(&w, NULL, '{');
    kd_jw_str(&w, "made_by", "Kondense " KD_VERSION);
    kd_jw_str(&w, "weights", "made: no model's");
    kd_jw_int(&w, "first_layer", s->o.first);
    kd_jw_int(&w, "last_layer", s->o.last);
    kd_jw_int(&w, "of_layers", s->whole.layers);
    kd_jw_int(&w, "rank", s->o.ranks > 1 ? s->o.rank : 0);
    kd_jw_int(&w, "ranks", s->o.ranks > 1 ? s->o.ranks : 1);
    kd_jw_int(&w, "seed", (int64_t)s->o.seed);
    kd_jw_str(&w, "form", is_exl3(s) ? "exl3" : "mxfp4");
    if (is_exl3(s)) {
        kd_jw_num(&w, "experts_bpw", wish->experts_bpw);
        kd_jw_num(&w, "trunk_bpw", wish->trunk_bpw);
        kd_jw_num(&w, "head_bpw", wish->head_bpw);
        kd_jw_str(&w, "codebook", cb[wish->cb]);
    }
    kd_jw_copy(&w, "config", s->config);
    kd_jw_close(&w, '}');
    kd_buf_char(out, '\n');
}

static int shard_path(const struct kd_synth *s, const char *dst, int32_t shard, char *out,
                      size_t size, bool *there, struct kd_err *err)
{
    char name[64];
    kd_rates_shard_name(&s->rates, shard, name, sizeof name);
    if (kd_path_join(out, size, dst, name, err))
        return -1;
    *there = kd_file_exists(out);
    return 0;
}

/* Refuses a folder that was not begun here and has a file of one of our names: it would be kept as
 * if it had been made, or written over. */
static int refuse_foreign(const struct kd_synth *s, const char *dst, struct kd_err *err)
{
    static const char *const small[] = {"model.safetensors.index.json", "tiktoken.model",
                                        "tokenizer_config.json", "synth.json", "config.json"};
    int32_t shards = s->rates.shard_count, files = (int32_t)(sizeof small / sizeof *small);
    char path[4096];
    bool there;
    for (int32_t i = 0; i < shards + files; i++) {
        if (i < shards) {
            if (shard_path(s, dst, i, path, sizeof path, &there, err))
                return -1;
        } else if (kd_path_join(path, sizeof path, dst, small[i - shards], err)) {
            return -1;
        }
        if (!access(path, F_OK))
            return kd_fail(err, KD_EUSAGE,
                           "'%s' is there and was not made by this command: "
                           "choose another folder",
                           path);
    }
    return 0;
}

/* Writes down what is made, or holds it against what the folder was begun with: until the config
 * is there that is the work folder's, from then on the finished model's own. */
static int hold_facts(const struct kd_synth *s, const char *dst, const char *in, bool finished,
                      struct kd_err *err)
{
    struct kd_buf now, old;
    char path[4096];
    if (kd_path_join(path, sizeof path, in, "synth.json", err))
        return -1;
    bool begun = finished || kd_file_exists(path);
    kd_buf_init(&now, 1 << 24);
    kd_buf_init(&old, 1 << 24);
    write_facts(s, &now);
    int rc = kd_buf_ok(&now, path, err);
    if (!rc && !begun)
        rc = refuse_foreign(s, dst, err) || kd_file_write(path, now.data, now.size_bytes, err);
    else if (!rc)
        rc = kd_file_read(&old, path, 1 << 24, err);
    if (!rc && begun &&
        (old.size_bytes != now.size_bytes || memcmp(old.data, now.data, now.size_bytes) != 0))
        rc = kd_fail(err, KD_EUSAGE,
                     "'%s' was begun with another config or other options (compare %s): use the "
                     "same ones, or remove the folder",
                     dst, path);
    kd_buf_release(&now);
    kd_buf_release(&old);
    /* Before it was begun, nothing in it is ours to sweep. */
    return rc || (begun && kd_dir_sweep(dst, err)) ? -1 : 0;
}

/* Whether DST may be written into; finished: a killed run had already finished it. */
static int take_folder(const struct kd_synth *s, const char *dst, const char *work, int *lock,
                       bool *finished, struct kd_err *err)
{
    char path[4096];
    *finished = false;
    if (kd_path_join(path, sizeof path, dst, "config.json", err))
        return -1;
    if (kd_file_exists(path) && !kd_dir_exists(work))
        return kd_fail(err, KD_EUSAGE, "'%s' already holds a model; choose another folder", dst);
    *finished = kd_file_exists(path);
    return kd_dir_make(work, err) || kd_dir_lock(work, lock, err) ||
                   hold_facts(s, dst, *finished ? dst : work, *finished, err)
               ? -1
               : 0;
}

static int write_shards(const struct kd_synth *s, const struct kd_run *run, const char *dst,
                        struct kd_err *err)
{
    char path[4096], need[32], have[32];
    int64_t left = 0;
    uint8_t *buf;
    bool there;
    for (int32_t i = 0; i < s->rates.shard_count; i++) {
        if (shard_path(s, dst, i, path, sizeof path, &there, err))
            return -1;
        left += there ? 0 : s->rates.shard_bytes[i];
    }
    int64_t room = kd_disk_free_bytes(dst);
    kd_show_bytes(need, sizeof need, left);
    kd_show_bytes(have, sizeof have, room);
    if (room < left)
        return kd_fail(err, KD_EIO, "'%s' needs %s of disk, %s are free", dst, need, have);
    if (kd_mem_new(&buf, SLAB, 1, "made weights", err))
        return -1;
    kd_progress_begin("synth", "bytes", s->rates.total_bytes, s->rates.total_bytes - left);
    int rc = 0;
    for (int32_t i = 0; !rc && i < s->rates.shard_count; i++) {
        rc = shard_path(s, dst, i, path, sizeof path, &there, err);
        if (!rc && !there)
            rc = write_shard(s, run, i, path, buf, err);
    }
    kd_progress_end();
    kd_mem_free(buf);
    return rc;
}

/* Index, tokenizer, what was made, and last the config: a folder without it is unfinished. */
static int write_small(const struct kd_synth *s, const char *dst, struct kd_err *err)
{
    static const struct kd_corpus no_text;
    struct kd_job *j;
    struct kd_buf b;
    char path[4096];
    if (kd_mem_zero(&j, 1, sizeof *j, "model", err))
        return -1;
    j->rates = s->rates;
    j->text = &no_text;
    kd_buf_init(&b, 1 << 24);
    write_facts(s, &b);
    int rc = snprintf(j->dst, sizeof j->dst, "%s", dst) >= (int)sizeof j->dst
                 ? kd_fail(err, KD_EINVAL, "path '%.60s...' is too long", dst)
                 : kd_job_write_index(j, err) || write_tokenizer(dst, err) ||
                       kd_path_join(path, sizeof path, dst, "synth.json", err) ||
                       kd_buf_ok(&b, path, err) || kd_file_write(path, b.data, b.size_bytes, err);
    kd_buf_clear(&b);
    if (!rc && is_exl3(s))
        rc = kd_job_write_quant_config(j, err) || kd_job_write_config(j, s->config, err);
    else if (!rc)
        rc = kd_json_dump(&b, s->config, err) ||
             kd_path_join(path, sizeof path, dst, "config.json", err) ||
             kd_file_write(path, b.data, b.size_bytes, err);
    kd_buf_release(&b);
    kd_mem_free(j);
    return rc ? -1 : 0;
}

int kd_synth_write(const struct kd_synth *s, const struct kd_run *run, const char *dst,
                   struct kd_err *err)
{
    char work[4096];
    bool finished = false;
    int lock = -1;
    if (!*dst)
        return kd_fail(err, KD_EUSAGE, "the destination has no name: give a folder");
    int rc = kd_path_join(work, sizeof work, dst, ".synth", err) ||
             take_folder(s, dst, work, &lock, &finished, err) ||
             (!finished && (write_shards(s, run, dst, err) || write_small(s, dst, err))) ||
             kd_dir_remove(work, err);
    if (lock >= 0)
        close(lock);
    return rc ? -1 : 0;
}

bool kd_synth_made_of(const char *dir, struct kd_synth_made *m)
{
    struct kd_err no;
    struct kd_json *root = NULL;
    char path[4096];
    int rc = kd_path_join(path, sizeof path, dir, "synth.json", &no) || !kd_file_exists(path) ||
             kd_json_load(&root, path, 1 << 24, &no) ||
             kd_json_int(root, "of_layers", 1, KD_K3_LAYERS_MAX, &m->of, &no) ||
             kd_json_int(root, "first_layer", 0, m->of - 1, &m->first, &no) ||
             kd_json_int(root, "last_layer", m->first, m->of - 1, &m->last, &no) ||
             kd_json_int(root, "ranks", 1, 1 << 20, &m->ranks, &no) ||
             kd_json_int(root, "rank", 0, m->ranks - 1, &m->rank, &no) ||
             kd_json_int(root, "seed", 0, INT64_MAX, &m->seed, &no);
    kd_json_free(root);
    return !rc;
}
