#include "convert/job.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"
#include "convert/settings.h"
#include "kern/finite.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Tokens a block aims at: a few rows, so that stage scratch stays in the tens of megabytes. */
enum { BLOCK_TOKENS = 2048, DEVICE_BLOCKS = 4 };

int kd_job_path(const struct kd_job *j, char *out, size_t size, struct kd_err *err, const char *fmt,
                ...)
{
    size_t n = strlen(j->work);
    va_list ap;
    if (n + 2 > size)
        return kd_fail(err, KD_EINVAL, "path '%.60s...' is too long", j->work);
    memcpy(out, j->work, n);
    out[n] = '/';
    va_start(ap, fmt);
    int used = vsnprintf(out + n + 1, size - n - 1, fmt, ap);
    va_end(ap);
    if (used < 0 || (size_t)used >= size - n - 1)
        return kd_fail(err, KD_EINVAL, "path '%.60s...' is too long", j->work);
    return 0;
}

bool kd_job_shard_done(const struct kd_job *j, int32_t shard)
{
    char name[64], path[4096];
    kd_rates_shard_name(&j->rates, shard, name, sizeof name);
    return !kd_path_join(path, sizeof path, j->dst, name, NULL) && kd_file_exists(path);
}

int64_t kd_job_block_tokens(const struct kd_corpus *text)
{
    int64_t rows = BLOCK_TOKENS / text->cols;
    return (rows < 1 ? 1 : rows > text->rows ? text->rows : rows) * text->cols;
}

int64_t kd_job_held_rows(const struct kd_job *j)
{
    /* The more the better are experts' matrices used that go to a device. */
    int64_t rows = j->run->encoder ? DEVICE_BLOCKS * j->block_T : j->block_T,
            held = j->T - j->T_hess;
    return held < rows ? held : rows;
}

int64_t kd_job_blocks(const struct kd_job *j)
{
    return (j->T + j->block_T - 1) / j->block_T;
}

void kd_job_block(const struct kd_job *j, int64_t b, int64_t *first, int64_t *T)
{
    *first = b * j->block_T;
    *T = j->T - *first < j->block_T ? j->T - *first : j->block_T;
}

int64_t kd_job_stream_bytes(const struct kd_job *j)
{
    return j->T * j->cfg.hidden * (j->set.stream_bf16 ? 2 : 4);
}

/* Rows on their way from and into a stream file. */
struct rows_get {
    const uint16_t *in;
    float *out;
    int64_t width;
};
struct rows_put {
    const float *in;
    uint16_t *out;
    int64_t width;
};

static void get_item(void *ctx, int64_t t, int worker)
{
    const struct rows_get *m = ctx;
    const uint16_t *in = m->in + t * m->width;
    float *out = m->out + t * m->width;
    (void)worker;
    for (int64_t i = 0; i < m->width; i++)
        out[i] = kd_bf16_f32(in[i]);
}

static void put_item(void *ctx, int64_t t, int worker)
{
    const struct rows_put *m = ctx;
    const float *in = m->in + t * m->width;
    uint16_t *out = m->out + t * m->width;
    (void)worker;
    for (int64_t i = 0; i < m->width; i++)
        out[i] = kd_f32_bf16(in[i]);
}

void kd_job_rows_get(const struct kd_job *j, const struct kd_rwmap *file, int64_t first, int64_t T,
                     float *out)
{
    int64_t width = j->cfg.hidden, at = first * width;
    if (!j->set.stream_bf16) {
        memcpy(out, file->data + 4 * at, (size_t)(T * width) * 4);
        return;
    }
    struct rows_get m = {(const uint16_t *)(const void *)file->data + at, out, width};
    kd_pool_run(j->run->pool, T, get_item, &m);
}

void kd_job_rows_put(const struct kd_job *j, struct kd_rwmap *file, int64_t first, int64_t T,
                     const float *in)
{
    int64_t width = j->cfg.hidden, at = first * width;
    if (!j->set.stream_bf16) {
        memcpy(file->data + 4 * at, in, (size_t)(T * width) * 4);
        return;
    }
    struct rows_put m = {in, (uint16_t *)(void *)file->data + at, width};
    kd_pool_run(j->run->pool, T, put_item, &m);
}

static uint64_t stream_hash(const struct kd_job *j, const struct kd_rwmap *m)
{
    return kd_xxh64(m->data, (size_t)kd_job_stream_bytes(j), j->digest);
}

int kd_job_stream_open(struct kd_job *j, int64_t layer, bool make, struct kd_rwmap *m,
                       struct kd_err *err)
{
    char path[4096];
    int64_t bytes = kd_job_stream_bytes(j);
    uint64_t hash;
    if (j->in_memory && make)
        return kd_rw_memory(m, bytes, err);
    if (j->in_memory && j->stream[layer]) {
        kd_rw_lend(m, j->stream[layer], bytes);
        return 0;
    }
    if (kd_job_path(j, path, sizeof path, err, "stream.%03lld", (long long)layer))
        return -1;
    if (make)
        return kd_rw_open(m, path, bytes + (int64_t)sizeof hash, err);
    if (kd_rw_reopen(m, path, bytes + (int64_t)sizeof hash, err))
        return kd_wrap(err, "a work file is lost; remove '%s' and convert again", j->dst);
    if (j->stream_known[layer])
        return 0;
    memcpy(&hash, m->data + bytes, sizeof hash);
    if (hash != stream_hash(j, m)) {
        kd_rw_close(m);
        return kd_fail(err, KD_ECORRUPT, "'%s' is damaged; remove '%s' and convert again", path,
                       j->dst);
    }
    j->stream_known[layer] = true;
    return 0;
}

int kd_job_stream_commit(struct kd_job *j, int64_t layer, struct kd_rwmap *m, struct kd_err *err)
{
    if (j->in_memory) {
        kd_mem_free(j->stream[layer]);
        j->stream[layer] = m->data;
        kd_rw_lend(m, m->data, m->size_bytes);
        return 0;
    }
    uint64_t hash = stream_hash(j, m);
    memcpy(m->data + kd_job_stream_bytes(j), &hash, sizeof hash);
    j->stream_known[layer] = true;
    return kd_rw_commit(m, err);
}

int kd_job_stream_drop(struct kd_job *j, int64_t layer, struct kd_err *err)
{
    char path[4096];
    kd_mem_free(j->stream[layer]);
    j->stream[layer] = NULL;
    if (kd_job_path(j, path, sizeof path, err, "stream.%03lld", (long long)layer))
        return -1;
    unlink(path);
    return 0;
}

static int stop_error(struct kd_err *err)
{
    return kd_fail(err, KD_ECANCEL, "stopped; run the same command with --resume to go on");
}

int kd_job_stop_check(const struct kd_job *j, struct kd_err *err)
{
    return j->stopped && j->stopped() ? stop_error(err) : 0;
}

int kd_job_finite(const struct kd_job *j, const char *what, const float *x, int64_t width,
                  int64_t rows, struct kd_err *err)
{
    if (kd_finite_rows(j->run, x, width, width, rows))
        return 0;
    return kd_fail(err, KD_ECORRUPT,
                   "%s: an activation is not finite; a weight of the source here or before is NaN "
                   "or infinite",
                   what);
}

/* The source's JSON after its shards. */
static int source_rest(struct kd_buf *out, struct kd_jw *w, const struct kd_ckpt *ck,
                       const struct kd_corpus *text, struct kd_err *err)
{
    char path[4096], hex[65];
    kd_jw_close(w, ']');
    if (kd_path_join(path, sizeof path, kd_ckpt_dir(ck), "config.json", err) ||
        kd_sha256_file(path, hex, err))
        return -1;
    kd_jw_str(w, "config_sha256", hex);
    if (text->ids) {
        kd_jw_open(w, "calibration", '{');
        kd_jw_str(w, "sha256", text->sha256);
        kd_jw_int(w, "rows", text->rows);
        kd_jw_int(w, "cols", text->cols);
        kd_jw_close(w, '}');
    } else {
        kd_jw_null(w, "calibration"); /* a dry run's */
    }
    kd_jw_close(w, '}');
    return kd_buf_ok(out, "source list", err);
}

int kd_job_source_json(struct kd_buf *out, const struct kd_ckpt *ck, const struct kd_corpus *text,
                       const char (*digests)[65], bool (*stopped)(void), struct kd_err *err)
{
    struct kd_jw w = {.out = out};
    char path[4096], hex[65];
    int64_t total = 0;
    for (int s = 0; s < kd_ckpt_shard_count(ck); s++) {
        if (kd_path_join(path, sizeof path, kd_ckpt_dir(ck), kd_ckpt_shard_name(ck, s), err))
            return -1;
        int64_t bytes = kd_file_size(path, err);
        if (bytes < 0)
            return -1;
        total += bytes;
    }
    if (!digests)
        kd_progress_begin("hash source", "bytes", total, 0);
    kd_jw_open(&w, NULL, '{');
    kd_jw_open(&w, "shards", '[');
    for (int s = 0; s < kd_ckpt_shard_count(ck); s++) {
        const char *name = kd_ckpt_shard_name(ck, s);
        if (stopped && stopped())
            return stop_error(err);
        if (kd_path_join(path, sizeof path, kd_ckpt_dir(ck), name, err) ||
            (!digests && kd_sha256_file(path, hex, err)))
            return -1;
        int64_t bytes = kd_file_size(path, err);
        if (digests)
            memcpy(hex, digests[s], sizeof hex);
        kd_jw_open(&w, NULL, '{');
        kd_jw_str(&w, "name", name);
        kd_jw_int(&w, "bytes", bytes);
        if (*hex)
            kd_jw_str(&w, "sha256", hex);
        else
            kd_jw_null(&w, "sha256");
        kd_jw_close(&w, '}');
        if (!digests)
            kd_progress_add(bytes, name);
    }
    if (!digests)
        kd_progress_end();
    return source_rest(out, &w, ck, text, err);
}

int kd_job_source_known(struct kd_buf *out, const struct kd_ckpt *ck, const struct kd_corpus *text,
                        struct kd_err *err)
{
    struct kd_jw w = {.out = out};
    char path[4096];
    kd_jw_open(&w, NULL, '{');
    kd_jw_open(&w, "shards", '[');
    for (int s = 0; s < kd_ckpt_shard_count(ck); s++) {
        if (kd_path_join(path, sizeof path, kd_ckpt_dir(ck), kd_ckpt_shard_name(ck, s), err))
            return -1;
        kd_jw_open(&w, NULL, '{');
        kd_jw_str(&w, "name", kd_ckpt_shard_name(ck, s));
        if (kd_file_exists(path))
            kd_jw_int(&w, "bytes", kd_file_size(path, NULL));
        else
            kd_jw_null(&w, "bytes");
        kd_jw_null(&w, "sha256");
        kd_jw_close(&w, '}');
    }
    return source_rest(out, &w, ck, text, err);
}

static int take_window(struct kd_job *j, struct kd_err *err)
{
    int64_t rows = j->block_T / j->text->cols;
    if (kd_k3_stream_init(&j->win, &j->cfg, j->block_T, err) ||
        kd_mem_zero(&j->segs, rows, sizeof *j->segs, "segments", err) ||
        kd_mem_zero(&j->states, rows, sizeof *j->states, "states", err))
        return -1;
    return 0;
}

static void count_tiles(struct kd_job *j)
{
    for (int64_t i = 0; i < j->rates.count; i++) {
        const struct kd_out_tensor *t = &j->rates.t[i];
        if (!t->quantized)
            continue;
        int64_t tiles = kd_exl3_pad(t->rows) / 16 * (kd_exl3_pad(t->cols) / 16);
        j->tiles_total += tiles;
        if (kd_job_shard_done(j, t->shard))
            j->tiles_done += tiles;
    }
}

/* What a job is before the destination is looked at. */
static int begin(struct kd_job *j, const struct kd_run *run, const struct kd_ckpt *ck,
                 const struct kd_k3_cfg *cfg, const struct kd_corpus *text,
                 const struct kd_convert_settings *set, const char *dst, struct kd_err *err)
{
    memset(j, 0, sizeof *j);
    j->lock = -1;
    j->run = run;
    j->ck = ck;
    j->cfg = *cfg;
    j->text = text;
    j->set = *set;
    j->recipe = kd_recipe_of(set->recipe);
    if (set->damping >= 0)
        j->recipe.damping = set->damping;
    j->T = text->rows * text->cols;
    j->block_T = kd_job_block_tokens(text);
    /* Recipe auto holds the last eighth of the rows back from the experts' Hessians. */
    j->T_hess =
        set->recipe == KD_RECIPE_AUTO ? (text->rows - (text->rows + 7) / 8) * text->cols : j->T;
    if (j->T_hess < 1)
        return kd_fail(err, KD_EUSAGE, "recipe auto needs at least two calibration rows");
    if (!*dst)
        return kd_fail(err, KD_EUSAGE, "the destination has no name: give a folder");
    if (snprintf(j->dst, sizeof j->dst, "%s", dst) >= (int)sizeof j->dst)
        return kd_fail(err, KD_EINVAL, "path '%.60s...' is too long", dst);
    snprintf(j->work, sizeof j->work, "%s/.work", dst);
    return kd_rates_plan(&j->rates, ck, &j->cfg, &set->wish, err) || kd_job_find_trunk(j, err) ? -1
                                                                                               : 0;
}

/* What kd_job_open would find under the destination. */
static int look(struct kd_job *j, const char *source_json, bool resume, struct kd_err *err)
{
    char path[4096];
    if (kd_path_join(path, sizeof path, j->dst, "config.json", err))
        return -1;
    bool work_left = kd_dir_exists(j->work);
    bool refused = kd_file_exists(path) && kd_settings_finished(j, source_json, resume, err);
    if (refused && !work_left)
        return -1;
    j->swept = j->finished && work_left;
    if (kd_dir_could(j->work, err) || (work_left && kd_dir_unused(j->work, err)))
        return -1;
    if (refused) /* again: the sentence */
        return kd_settings_finished(j, source_json, resume, err);
    return j->finished ? 0 : kd_settings_look(j, source_json, resume, err);
}

int kd_job_foresee(struct kd_job *j, const struct kd_run *run, const struct kd_ckpt *ck,
                   const struct kd_k3_cfg *cfg, const struct kd_corpus *text,
                   const struct kd_convert_settings *set, const char *source_json, const char *dst,
                   bool resume, struct kd_err *err)
{
    if (!begin(j, run, ck, cfg, text, set, dst, err) && !look(j, source_json, resume, err))
        return 0;
    kd_job_close(j);
    return -1;
}

int kd_job_open(struct kd_job *j, const struct kd_run *run, const struct kd_ckpt *ck,
                const struct kd_k3_cfg *cfg, const struct kd_corpus *text,
                const struct kd_convert_settings *set, const char *source_json, const char *dst,
                bool resume, struct kd_err *err)
{
    char path[4096];
    if (begin(j, run, ck, cfg, text, set, dst, err) ||
        kd_path_join(path, sizeof path, dst, "config.json", err))
        goto fail;
    bool work_left = kd_dir_exists(j->work);
    if (kd_file_exists(path) && (kd_settings_finished(j, source_json, resume, err) || !work_left)) {
        if (!j->finished)
            goto fail;
        return 0;
    }
    if (kd_dir_make(j->work, err) || kd_dir_lock(j->work, &j->lock, err))
        goto fail;
    if (j->finished) {
        if (kd_dir_remove(j->work, err))
            goto fail;
        j->swept = true;
        return 0;
    }
    if (kd_file_exists(path)) { /* another process finished it meanwhile */
        kd_fail(err, KD_EUSAGE, "'%s' already holds a finished model; choose another folder", dst);
        goto fail;
    }
    if (kd_settings_take(j, source_json, resume, err) || kd_dir_sweep(j->dst, err) ||
        take_window(j, err) || kd_k3_store_open(&j->source, &j->cfg, ck, NULL, err))
        goto fail;
    count_tiles(j);
    return 0;
fail:
    kd_job_close(j);
    return -1;
}

/* Where `kondense farm` finds the ledger. */
static int write_farm_json(const struct kd_job *j, const char *ledger, const char *run,
                           struct kd_err *err)
{
    struct kd_buf b;
    char path[4096];
    kd_buf_init(&b, 1 << 16);
    struct kd_jw w = {.out = &b};
    kd_jw_open(&w, NULL, '{');
    kd_jw_str(&w, "ledger", ledger);
    kd_jw_str(&w, "run", run);
    kd_jw_int(&w, "layers", j->cfg.layers);
    kd_jw_close(&w, '}');
    kd_buf_char(&b, '\n');
    int rc = kd_buf_ok(&b, "farm.json", err) ||
             kd_job_path(j, path, sizeof path, err, "farm.json") ||
             kd_file_write(path, b.data, b.size_bytes, err);
    kd_buf_release(&b);
    return rc ? -1 : 0;
}

int kd_job_farm(struct kd_job *j, const struct kd_farm_opts *with, struct kd_err *err)
{
    struct kd_farm_opts o = with ? *with : (struct kd_farm_opts){0};
    char ledger[4200], run[65], bad[4096], path[4096];
    if (kd_job_path(j, path, sizeof path, err, "ledger.db") ||
        kd_job_path(j, bad, sizeof bad, err, "bad"))
        return -1;
    snprintf(ledger, sizeof ledger, "sqlite:%s", path);
    snprintf(run, sizeof run, "%016llx%016llx", (unsigned long long)j->digest,
             (unsigned long long)kd_fnv64(j->dst));
    if (!o.ledger || !*o.ledger)
        o.ledger = ledger;
    o.run_id = run;
    o.layers = j->cfg.layers;
    o.digest = j->digest;
    o.run = j->run;
    o.lanes = j->lanes;
    o.stopped = j->stopped;
    o.bad_dir = bad;
    return write_farm_json(j, o.ledger, run, err) || kd_farm_open(&j->farm, &o, err) ? -1 : 0;
}

void kd_job_close(struct kd_job *j)
{
    kd_farm_close(j->farm, j->finished ? NULL : "stopped");
    kd_rates_release(&j->rates);
    kd_k3_stream_release(&j->win);
    kd_mem_free(j->segs);
    kd_mem_free(j->states);
    for (int64_t l = 0; l <= KD_K3_LAYERS_MAX; l++)
        kd_mem_free(j->stream[l]);
    if (j->source)
        kd_k3_store_close(j->source);
    if (j->lock >= 0)
        close(j->lock);
    memset(j, 0, sizeof *j);
    j->lock = -1;
}

int64_t kd_job_scratch_bytes(const struct kd_job *j)
{
    const struct kd_k3_cfg *c = &j->cfg;
    int64_t kda = 4 * c->kda_heads * c->kda_dim, mla = 4 * c->heads * c->v_dim;
    int64_t widest = kda > mla ? kda : mla, experts = 6 * c->latent + 8 * c->topk;
    if (j->trunk_bytes) /* the rows of the attention are made again */
        widest = 0;
    return j->T * (widest > experts ? widest : experts); /* one after the other */
}

int64_t kd_job_disk_bytes(const struct kd_job *j)
{
    /* Shards to come, the units of one layer beside its shard, and the streams: the banks, two
     * prefixes and the layer's scratch. */
    int64_t left = 0, layer_most = 0;
    if (j->finished)
        return 0;
    for (int32_t s = 0; s < j->rates.shard_count; s++) {
        if (!kd_job_shard_done(j, s))
            left += j->rates.shard_bytes[s];
        if (s < j->cfg.layers && j->rates.shard_bytes[s] > layer_most)
            layer_most = j->rates.shard_bytes[s];
    }
    int64_t streams = (kd_k3_banks(&j->cfg) + 3) * kd_job_stream_bytes(j);
    char path[4096];
    /* What a resume finds is not needed again. */
    for (int64_t l = 0; l <= j->cfg.layers && streams > 0; l++)
        if (!kd_job_path(j, path, sizeof path, NULL, "stream.%03lld", (long long)l) &&
            kd_file_exists(path))
            streams -= kd_job_stream_bytes(j);
    if (streams < 0)
        streams = 0;
    return left + layer_most + streams + kd_job_scratch_bytes(j);
}
