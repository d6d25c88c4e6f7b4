#include "cmd/discard.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/show.h"
#include "cmd/cmd.h"
#include "cmd/remote.h"
#include "gate/ref.h"
#include "gate/report.h"

#include <stdio.h>
#include <string.h>

static bool stopped(void)
{
    return kd_cmd_stop;
}

int kd_discard_open(struct kd_discard *d, const char *src, const char *dst, struct kd_err *err)
{
    struct kd_source_opts so;
    memset(d, 0, sizeof *d);
    kd_buf_init(&d->source, 1 << 26);
    if (snprintf(d->dir, sizeof d->dir, "%s/.source", dst) >= (int)sizeof d->dir)
        return kd_fail(err, KD_EINVAL, "path '%.60s...' is too long", dst);
    d->left = kd_dir_exists(d->dir);
    return kd_cmd_source_opts(&so, err) || kd_window_open(&d->win, src, &so, dst, stopped, err) ? -1
                                                                                                : 0;
}

/* Whether a layer's weights are still wanted by somebody. */
static bool wanted(const struct kd_discard *d, const struct kd_job *jobs, int count, int64_t layer)
{
    if (d->pass && kd_pass_next(d->pass) <= layer)
        return true;
    for (int i = 0; i < count; i++)
        if (!jobs[i].finished && !kd_job_shard_done(&jobs[i], (int32_t)layer))
            return true;
    return false;
}

static int open_pass(struct kd_discard *d, const struct kd_run *run, const struct kd_job *jobs,
                     int count, const struct kd_discard_check *check, struct kd_err *err)
{
    char work[2400], name[128];
    if (!check->text)
        return 0;
    snprintf(work, sizeof work, "%s/check", d->dir);
    snprintf(d->ref, sizeof d->ref, "%s/check.ref", d->dir);
    if (check->save_ref &&
        snprintf(d->ref, sizeof d->ref, "%s", check->save_ref) >= (int)sizeof d->ref)
        return kd_fail(err, KD_EINVAL, "path '%.60s...' is too long", check->save_ref);
    kd_check_name(name, sizeof name, kd_window_where(d->win));
    struct kd_pass_plan plan = {.text = check->text,
                                .work = work,
                                .name = name,
                                .rows = check->rows,
                                .cols = check->cols,
                                .stop = &kd_cmd_stop};
    if (kd_pass_open(&d->pass, run, kd_window_ckpt(d->win), &plan, err) ||
        kd_mem_zero(&d->made, count, sizeof(struct kd_pass *), "checks", err))
        return -1;
    plan.of = d->pass;
    for (int i = 0; i < count; i++) {
        kd_check_name(name, sizeof name, jobs[i].dst);
        snprintf(work, sizeof work, "%s/check.%s", d->dir, name);
        if (kd_pass_open(&d->made[i], run, kd_window_ckpt(d->win), &plan, err))
            return -1;
        d->made_count++;
    }
    return 0;
}

/* How the model stands against its source after a layer, for the log. */
static int note(const struct kd_discard *d, const struct kd_job *j, const struct kd_pass *made,
                int64_t l, struct kd_err *err)
{
    const struct kd_side *s = kd_pass_side(made);
    struct kd_pass_kept src, dst;
    struct kd_agreement agree = {0};
    if (!kd_k3_is_moe(&j->cfg, l))
        return 0;
    if (kd_pass_load(d->pass, l, &src, err))
        return -1;
    int rc = kd_pass_load(made, l, &dst, err);
    if (!rc) {
        kd_router_add(&agree, src.ids, dst.ids, src.margin, s->rows * s->cols, j->cfg.topk);
        kd_log(KD_LOG_INFO, "convert", "layer=%lld model=\"%s\" router=%.4f msg=checked",
               (long long)l, j->dst, kd_router_share(&agree));
        kd_map_release(&dst.map);
    }
    kd_map_release(&src.map);
    return rc;
}

/* The rows of the check through what was made of layer l, of each model that has not had them. */
static int made_layer(struct kd_discard *d, const struct kd_job *jobs, int64_t l,
                      struct kd_err *err)
{
    char name[64], path[4096];
    for (int i = 0; i < d->made_count; i++) {
        struct kd_ckpt *ck;
        if (kd_pass_next(d->made[i]) != l)
            continue;
        kd_rates_shard_name(&jobs[i].rates, (int32_t)l, name, sizeof name);
        if (kd_path_join(path, sizeof path, jobs[i].dst, name, err) ||
            kd_ckpt_open(&ck, path, false, err))
            return -1;
        int rc = kd_pass_layer(d->made[i], ck, err);
        kd_ckpt_close(ck);
        if (rc || note(d, &jobs[i], d->made[i], l, err))
            return -1;
    }
    return 0;
}

static int one_layer(struct kd_discard *d, struct kd_job *jobs, int count, int64_t l,
                     struct kd_err *err)
{
    if (kd_window_need(d->win, l, err))
        return -1;
    if (l + 1 < jobs->cfg.layers && wanted(d, jobs, count, l + 1))
        kd_window_ahead(d->win, l + 1);
    /* The check first: its stream is saved, and a layer whose shard is sealed is never read again.
     */
    if (d->pass && kd_pass_next(d->pass) == l && kd_pass_layer(d->pass, NULL, err))
        return -1;
    for (int i = 0; i < count; i++)
        if (kd_job_layer(&jobs[i], l, err))
            return -1;
    return 0;
}

/* Head, vision and what else lies outside layers; then the receipt can say every digest. */
static int ends(struct kd_discard *d, struct kd_job *jobs, int count, struct kd_err *err)
{
    int64_t layers = jobs->cfg.layers;
    char id[65];
    if (kd_window_need(d->win, layers, err) ||
        kd_job_source_json(&d->source, kd_window_ckpt(d->win), jobs->text,
                           kd_window_digests(d->win, true), NULL, err))
        return -1;
    for (int i = 0; i < count; i++) {
        jobs[i].source_final = d->source.data;
        if (kd_job_ends(&jobs[i], err))
            return -1;
    }
    if (d->pass &&
        (kd_source_id_receipt(jobs->dst, id, err) || kd_pass_finish(d->pass, d->ref, id, err)))
        return -1;
    return kd_window_done(d->win, layers, err);
}

int kd_discard_run(struct kd_discard *d, const struct kd_run *run, struct kd_job *jobs, int count,
                   const struct kd_discard_check *check, struct kd_err *err)
{
    int64_t layers = jobs->cfg.layers;
    if (kd_window_layers(d->win) != layers)
        return kd_fail(err, KD_ECORRUPT, "the source has tensors of %lld layers, its config %lld",
                       (long long)kd_window_layers(d->win), (long long)layers);
    if (kd_window_need(d->win, -1, err))
        return -1;
    for (int i = 0; i < count; i++) {
        jobs[i].by_layer = true;
        if (kd_job_start(&jobs[i], err))
            return -1;
    }
    if (open_pass(d, run, jobs, count, check, err))
        return -1;
    for (int64_t l = 0; l < layers; l++) {
        if ((wanted(d, jobs, count, l) && one_layer(d, jobs, count, l, err)) ||
            made_layer(d, jobs, l, err) || kd_window_done(d->win, l, err))
            return -1;
    }
    return ends(d, jobs, count, err);
}

int64_t kd_discard_disk(const struct kd_discard *d, const struct kd_job *jobs, int count,
                        const struct kd_discard_check *check)
{
    int64_t bytes = kd_window_stats(d->win).largest_three_bytes;
    const struct kd_k3_cfg *c = &jobs->cfg;
    int64_t cols = check->cols ? check->cols : 512;
    if (!check->text)
        return bytes;
    /* Of the source and each model two copies of the stream and its banks, of every layer routing,
     * margins and samples; the reference, which has those too. */
    int64_t text = kd_file_size(check->text, NULL);
    int64_t tokens = check->rows ? check->rows * cols : text > 0 ? text : 0;
    int64_t plane = tokens * c->hidden * 4;
    int64_t kept = (tokens * (c->topk + 1) * 4 + 2048 * c->hidden * 4) * c->layers;
    bytes += (1 + count) * (2 * plane * (kd_k3_banks(c) + 1) + kept);
    return bytes + kept + plane + c->vocab * c->hidden * 4;
}

static int put(const char *dst, const char *name, const struct kd_check *c,
               const struct kd_verdict *v,
               void (*write)(struct kd_buf *, const struct kd_check *, const struct kd_verdict *),
               struct kd_err *err)
{
    char path[4096];
    struct kd_buf b;
    kd_buf_init(&b, 64 << 20);
    write(&b, c, v);
    int rc = kd_buf_ok(&b, name, err);
    if (!rc && !name)
        fwrite(b.data, 1, b.size_bytes, stdout);
    else if (!rc)
        rc = kd_path_join(path, sizeof path, dst, name, err) ||
                     kd_file_write(path, b.data, b.size_bytes, err)
                 ? -1
                 : 0;
    kd_buf_release(&b);
    return rc;
}

int kd_discard_figures(struct kd_discard *d, const struct kd_run *run, const struct kd_job *jobs,
                       int count, struct kd_err *err)
{
    struct kd_verdict v = {.pass = true};
    if (!*d->ref)
        return 0;
    for (int i = 0; i < count; i++) {
        struct kd_check_plan plan = {
            .dst = jobs[i].dst, .ref_in = d->ref, .made = d->made[i], .stop = &kd_cmd_stop};
        struct kd_check c;
        int rc = kd_check_run(&c, run, &plan, err);
        kd_verdict_judge(&v, &c);
        if (!rc)
            rc = put(jobs[i].dst, NULL, &c, &v, kd_report_text, err) ||
                         put(jobs[i].dst, "check.json", &c, &v, kd_report_json, err) ||
                         put(jobs[i].dst, "check.html", &c, &v, kd_report_html, err) ||
                         kd_verdict_write(&v, &c, jobs[i].dst, err)
                     ? -1
                     : 0;
        kd_check_release(&c);
        if (rc)
            return -1;
    }
    return 0;
}

void kd_discard_print(const struct kd_discard *d)
{
    struct kd_window_stats s = kd_window_stats(d->win);
    char all[32], came[32], peak[32];
    kd_show_bytes(all, sizeof all, s.source_bytes);
    kd_show_bytes(came, sizeof came, s.fetched_bytes);
    kd_show_bytes(peak, sizeof peak, s.peak_bytes);
    printf(
        "source %s, %s of it fetched in this run; never more than %d shards of it on disk (%s)\n",
        all, came, s.peak_shards, peak);
    if (*kd_window_commit(d->win))
        printf("commit %s\n", kd_window_commit(d->win));
}

void kd_discard_json(const struct kd_discard *d, struct kd_jw *w)
{
    struct kd_window_stats s = kd_window_stats(d->win);
    kd_jw_open(w, "source", '{');
    kd_jw_str(w, "where", kd_window_where(d->win));
    kd_jw_str(w, "commit", kd_window_commit(d->win));
    kd_jw_int(w, "bytes", s.source_bytes);
    kd_jw_int(w, "fetched_bytes", s.fetched_bytes);
    kd_jw_int(w, "peak_disk_bytes", s.peak_bytes);
    kd_jw_int(w, "peak_shards", s.peak_shards);
    kd_jw_close(w, '}');
}

int kd_discard_close(struct kd_discard *d, bool done, struct kd_err *err)
{
    for (int i = 0; i < d->made_count; i++)
        kd_pass_close(d->made[i]);
    kd_mem_free(d->made);
    kd_pass_close(d->pass);
    kd_buf_release(&d->source);
    int rc = kd_window_close(d->win, done, err);
    memset(d, 0, sizeof *d);
    return rc;
}
