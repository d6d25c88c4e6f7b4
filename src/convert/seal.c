/* Start and end of a conversion: the embedding, sealing a shard, the head. */
#include "base/log.h"
#include "base/mem.h"
#include "convert/layer_work.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

int kd_job_unit_path(const struct kd_job *j, const struct kd_out_tensor *t, char *out, size_t size,
                     struct kd_err *err)
{
    if (t->expert >= 0)
        return kd_job_path(j, out, size, err, "%03d/expert.%05d.unit", t->shard, t->expert);
    const char *name = strstr(t->key, "layers.");
    name = t->layer >= 0 && name ? strchr(name + 7, '.') + 1 : t->key;
    return kd_job_path(j, out, size, err, "%03d/%s.unit", t->shard, name);
}

int kd_job_mend(const struct kd_job *j, int32_t shard, struct kd_err *err)
{
    char path[4096], last[4096] = "", aside[4096 + 16];
    struct kd_unit unit;
    struct kd_err why;
    for (int64_t i = j->rates.shard_first[shard]; i < j->rates.shard_first[shard + 1]; i++) {
        if (!j->rates.t[i].quantized)
            continue;
        if (kd_job_unit_path(j, &j->rates.t[i], path, sizeof path, err))
            return -1;
        if (!strcmp(path, last) || !kd_file_exists(path))
            continue;
        memcpy(last, path, sizeof last); /* an expert's three tensors share a unit */
        if (!kd_unit_open(&unit, path, j->digest, &why)) {
            kd_unit_close(&unit);
            continue;
        }
        if (why.code != KD_ECORRUPT) {
            *err = why;
            return -1;
        }
        snprintf(aside, sizeof aside, "%s.damaged", path);
        if (rename(path, aside))
            return kd_fail_sys(err, "cannot set '%s' aside", path);
        kd_log(KD_LOG_WARN, "convert", "unit=\"%s\" msg=\"damaged; set aside and made again\"",
               path);
    }
    return 0;
}

/* The stream before layer 0: the embedding of every calibration token. */
int kd_job_start(struct kd_job *j, struct kd_err *err)
{
    struct kd_rwmap p;
    struct kd_k3_ends ends;
    char path[4096];
    if (kd_job_path(j, path, sizeof path, err, "stream.000"))
        return -1;
    /* A later stream means that this one was made and maybe dropped. */
    if (j->finished)
        return 0;
    if (kd_job_sound(j, j->by_layer ? j->cfg.layers : -1, err))
        return -1;
    if (kd_file_exists(path) || kd_job_shard_done(j, 0))
        return 0;
    if (kd_k3_ends_load(&ends, &j->cfg, j->ck, err))
        return -1;
    int rc = kd_job_stream_open(j, 0, true, &p, err);
    for (int64_t b = 0; !rc && b < kd_job_blocks(j); b++) {
        int64_t first, T;
        kd_job_block(j, b, &first, &T);
        struct kd_k3_stream s = j->win;
        s.T = T;
        rc = kd_k3_embed(j->run, &j->cfg, &ends, j->text->ids + first, T, &s, err);
        if (!rc)
            kd_job_rows_put(j, &p, first, T, s.p);
    }
    if (!rc)
        rc = kd_job_stream_commit(j, 0, &p, err);
    kd_rw_close(&p);
    kd_k3_ends_release(&ends);
    return rc ? -1 : 0;
}

/* Writes one tensor of a shard; `unit` is the one opened last (an expert's three tensors share it).
 */
static int put_tensor(struct kd_job *j, struct kd_st_writer *w, const struct kd_out_tensor *t,
                      struct kd_unit *unit, char *unit_path, struct kd_unit_figures *figures,
                      struct kd_err *err)
{
    char path[4096];
    if (!t->quantized) {
        if (kd_st_put(w, t->src->data, t->src->bytes, err))
            return -1;
        kd_map_forget(t->src->data, t->src->bytes);
        return 0;
    }
    if (kd_job_unit_path(j, t, path, sizeof path, err))
        return -1;
    if (strcmp(path, unit_path) != 0) {
        kd_unit_close(unit);
        unit_path[0] = 0;
        if (kd_unit_open(unit, path, j->digest, err))
            return -1;
        memcpy(unit_path, path, sizeof path);
    }
    int i = t->expert >= 0 ? (int)t->proj : 0;
    struct kd_exl3_tensor x = kd_unit_tensor(unit, i);
    if (i >= unit->count || x.k != kd_exl3_pad(t->cols) || x.n != kd_exl3_pad(t->rows) ||
        kd_rate_to16(x.rate) != t->rate16)
        return kd_fail(err, KD_ECORRUPT, "'%s' is not the planned tensor; remove it and resume",
                       path);
    *figures = unit->figures[i];
    if (unit->info.few_rows)
        figures->fallback |= 2;
    if (unit->info.all_token_hessian)
        figures->fallback |= 4;
    if (unit->info.plain_won)
        figures->fallback |= 8;
    return kd_exl3_put(w, &x, err);
}

int kd_job_seal(struct kd_job *j, int32_t shard, struct kd_err *err)
{
    int64_t first = j->rates.shard_first[shard], count = j->rates.shard_first[shard + 1] - first;
    struct kd_unit_figures *figures = NULL;
    struct kd_st_plan plan;
    struct kd_st_writer w;
    struct kd_unit unit;
    char name[64], path[4096], unit_path[4096] = "";
    memset(&unit, 0, sizeof unit);
    memset(&w, 0, sizeof w);
    kd_rates_shard_name(&j->rates, shard, name, sizeof name);
    if (kd_path_join(path, sizeof path, j->dst, name, err) ||
        kd_mem_zero(&figures, count ? count : 1, sizeof *figures, "figures", err))
        return -1;
    if (kd_rates_shard_plan(&j->rates, shard, &plan, err)) {
        kd_mem_free(figures);
        return -1;
    }
    int rc = kd_st_open(&w, path, &plan, err);
    for (int64_t i = 0; !rc && i < count; i++)
        rc = put_tensor(j, &w, &j->rates.t[first + i], &unit, unit_path, &figures[i], err);
    kd_unit_close(&unit);
    /* The figures come first: a shard with its final name has them. */
    char side[4096];
    if (!rc)
        rc = kd_job_path(j, side, sizeof side, err, "figures.%05d", shard) ||
             kd_file_write(side, figures, (size_t)count * sizeof *figures, err);
    if (!rc)
        rc = kd_st_commit(&w, err);
    else
        kd_st_abort(&w);
    kd_st_plan_release(&plan);
    kd_mem_free(figures);
    if (rc)
        return -1;
    if (kd_job_path(j, side, sizeof side, err, "%03d", shard) || kd_dir_remove(side, err))
        return -1;
    /* Streams before block starts stay as banks; the others have served. */
    return shard < j->cfg.layers && shard % j->cfg.block ? kd_job_stream_drop(j, shard, err) : 0;
}

/* The last stream's normed rows: input of lm_head. */
static int head_hessian(struct kd_job *j, struct kd_k3_ends *ends, struct kd_hess *h,
                        struct kd_err *err)
{
    struct kd_layer_work w;
    float *x = NULL;
    memset(&w, 0, sizeof w);
    int rc = kd_job_stream_open(j, j->cfg.layers, false, &w.p, err);
    int64_t banks = kd_k3_banks(&j->cfg);
    for (int64_t b = 0; !rc && b < banks; b++)
        rc = kd_job_stream_open(j, b * j->cfg.block, false, &w.bank[b], err);
    if (!rc)
        rc = kd_mem_new(&x, j->block_T * j->cfg.hidden, sizeof *x, "final rows", err);
    for (int64_t b = 0; !rc && b < kd_job_blocks(j); b++) {
        int64_t first, T;
        kd_job_block(j, b, &first, &T);
        kd_layer_window(j, &w, &w.p, banks, true, first, T);
        rc = kd_job_stop_check(j, err) || kd_k3_final(j->run, &j->cfg, ends, &w.win, x, err) ||
             kd_job_finite(j, "inputs", x, j->cfg.hidden, T, err);
        if (!rc)
            rc = kd_hess_add(j->run, h, x, j->cfg.hidden, T, err);
    }
    kd_mem_free(x);
    kd_rw_close(&w.p);
    for (int64_t b = 0; b < KD_LAYER_BANKS_MAX; b++)
        kd_rw_close(&w.bank[b]);
    return rc || kd_hess_finish(h, err) ? -1 : 0;
}

static int head(struct kd_job *j, struct kd_err *err)
{
    int32_t shard = (int32_t)j->cfg.layers;
    const struct kd_out_tensor *t = NULL;
    struct kd_k3_ends ends;
    struct kd_hess h;
    char path[4096];
    for (int64_t i = j->rates.shard_first[shard]; i < j->rates.shard_first[shard + 1]; i++)
        if (j->rates.t[i].quantized)
            t = &j->rates.t[i];
    if (!t || kd_job_shard_done(j, shard))
        return 0;
    if (kd_job_path(j, path, sizeof path, err, "%03d", shard) || kd_dir_make(path, err) ||
        kd_job_mend(j, shard, err) || kd_k3_ends_load(&ends, &j->cfg, j->ck, err))
        return -1;
    struct kd_layer_work w;
    memset(&w, 0, sizeof w);
    memset(&h, 0, sizeof h);
    int rc = kd_hess_open(&h, j->cfg.hidden, err) || kd_hess_on_device(j->run, &h, err) ||
             head_hessian(j, &ends, &h, err) ||
             kd_layer_linear(j, &w, t, "head_in", &h, &ends.head, err);
    if (w.trunk_count)
        kd_unit_close(&w.trunk[0]);
    kd_hess_release(&h);
    kd_k3_ends_release(&ends);
    return rc ? -1 : 0;
}

int kd_job_ends(struct kd_job *j, struct kd_err *err)
{
    if (j->finished)
        return 0;
    if (head(j, err))
        return kd_wrap(err, "lm_head");
    for (int32_t s = (int32_t)j->cfg.layers; s < j->rates.shard_count; s++)
        if (!kd_job_shard_done(j, s) && kd_job_seal(j, s, err))
            return -1;
    if (kd_job_write_small(j, err))
        return -1;
    kd_farm_close(j->farm, "done");
    j->farm = NULL;
    return kd_dir_remove(j->work, err);
}
