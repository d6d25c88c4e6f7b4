#include "convert/trial.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/rand.h"
#include "base/show.h"
#include "convert/layer_work.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Experts that both recipes are tried on (experts.c), spread over the layer. */
enum { COMPARED = 4 };

static int64_t layer_of(const char *name)
{
    const char *at = strstr(name, ".layers.");
    int64_t l = 0;
    if (!at && !strncmp(name, "layers.", 7))
        at = name - 1;
    if (!at)
        return -1;
    for (at += 8; *at >= '0' && *at <= '9'; at++)
        l = l * 10 + (*at - '0');
    return l;
}

static bool is_vision(const char *name)
{
    return !strncmp(name, "vision_tower.", 13) || !strncmp(name, "mm_projector.", 13);
}

/* Whether all of a layer (-1: of what is in none) is there; `why` gets what is not. */
static bool is_there(const struct kd_ckpt *ck, int64_t layer, char *why, size_t size)
{
    int64_t found = 0;
    for (int64_t i = 0; i < kd_ckpt_count(ck); i++) {
        const struct kd_tensor *t = kd_ckpt_at(ck, i);
        char name[64];
        if (is_vision(t->name) || layer_of(t->name) != layer)
            continue;
        found++;
        if (t->rank >= 0 && (t->data || !t->bytes))
            continue;
        snprintf(why, size, "%.60s is not there (%s)", kd_ckpt_shard_name(ck, t->shard),
                 kd_show_text(name, sizeof name, t->name));
        return false;
    }
    if (!found && layer < 0)
        snprintf(why, size, "embedding and head are not there");
    else if (!found)
        snprintf(why, size, "no tensor of layer %lld is there", (long long)layer);
    return found > 0;
}

/* Whether the source can be run up to the layer, or why not. */
static void find_inputs(const struct kd_job *j, struct kd_trial *t)
{
    if (t->made || !j->text->ids) {
        snprintf(t->why, sizeof t->why, t->made ? "as asked for" : "no --calib was given");
        return;
    }
    t->real = true;
    for (int64_t l = -1; l < t->layer && t->real; l++)
        t->real = is_there(j->ck, l, t->why, sizeof t->why);
}

/* The sample: those that both recipes are tried on first, the rest evenly spread. */
static int choose_experts(struct kd_job *j, struct kd_trial *t, struct kd_err *err)
{
    int64_t n = j->cfg.experts, most = n < COMPARED ? n : COMPARED;
    bool *keep;
    t->encoded = t->experts && t->experts < n ? t->experts : n;
    if (t->encoded == n)
        return 0;
    if (kd_mem_zero(&keep, n, sizeof *keep, "sampled experts", err))
        return -1;
    int64_t left = t->encoded;
    for (int64_t s = 0; s < most && left; s++, left--)
        keep[(2 * s + 1) * n / (2 * most)] = true;
    for (int64_t i = 0; i < left; i++) {
        int64_t e = (2 * i + 1) * n / (2 * left);
        while (keep[e % n])
            e++;
        keep[e % n] = true;
    }
    int rc = kd_rates_keep_experts(&j->rates, (int32_t)t->layer, keep, err);
    kd_mem_free(keep);
    return rc;
}

/* Every byte of the layer once. */
static void read_layer(const struct kd_job *j, struct kd_trial *t)
{
    double begun = kd_clock_s();
    for (int64_t i = 0; i < kd_ckpt_count(j->ck); i++) {
        const struct kd_tensor *x = kd_ckpt_at(j->ck, i);
        if (is_vision(x->name) || layer_of(x->name) != t->layer)
            continue;
        kd_pool_read(j->run->pool, x->data, x->bytes);
        t->read_bytes += x->bytes;
    }
    t->read_s = kd_clock_s() - begun;
}

/* The source's own layer over a block: the window's rows become those after it. */
static int pass_block(struct kd_job *j, struct kd_layer_work *w, int64_t first, int64_t T,
                      struct kd_err *err)
{
    const int64_t rows = T / j->text->cols;
    kd_layer_window(j, w, &w->p, w->banks_before, true, first, T);
    if (kd_layer_rows_begin(j, w, rows, err))
        return -1;
    int rc = kd_k3_layer_forward(j->run, &j->cfg, &w->L, j->source, NULL, &w->win, j->segs, rows,
                                 NULL, err);
    kd_layer_rows_end(j, rows);
    return rc;
}

static int pass_layer(struct kd_job *j, int64_t layer, struct kd_err *err)
{
    struct kd_layer_work w;
    struct kd_rwmap next = {0};
    int rc =
        kd_layer_work_open(j, &w, layer, err) || kd_job_stream_open(j, layer + 1, true, &next, err);
    for (int64_t b = 0; !rc && b < kd_job_blocks(j); b++) {
        int64_t first, T;
        kd_job_block(j, b, &first, &T);
        rc = kd_job_stop_check(j, err) || pass_block(j, &w, first, T, err);
        if (!rc)
            kd_job_rows_put(j, &next, first, T, w.win.p);
        kd_progress_add(T, NULL);
    }
    if (!rc)
        rc = kd_job_stream_commit(j, layer + 1, &next, err);
    kd_rw_close(&next);
    kd_layer_work_close(&w);
    /* Later layers read those of block starts alone. */
    if (!rc && layer % j->cfg.block)
        rc = kd_job_stream_drop(j, layer, err);
    return rc ? -1 : 0;
}

/* Rows of one block of a made stream. */
struct made {
    const struct kd_job *j;
    float *scale; /* [hidden] */
    uint64_t seed;
    int64_t first;
    float *out;
};

static void made_row(void *ctx, int64_t i, int worker)
{
    const struct made *m = ctx;
    int64_t H = m->j->cfg.hidden;
    uint64_t at = (uint64_t)((m->first + i) * H);
    (void)worker;
    for (int64_t c = 0; c < H; c++)
        m->out[i * H + c] = m->scale[c] * kd_rand_bell(m->seed, at + (uint64_t)c);
}

static int made_stream(struct kd_job *j, int64_t layer, struct kd_err *err)
{
    struct kd_rwmap p;
    struct made m = {.j = j, .seed = kd_rand_fork(j->set.seed, (uint64_t)layer), .out = j->win.p};
    int64_t H = j->cfg.hidden;
    if (kd_mem_new(&m.scale, H, sizeof *m.scale, "made inputs", err))
        return -1;
    /* 2^-2 to 2^2, as many in each octave; the same channels in every stream. */
    for (int64_t c = 0; c < H; c++) {
        double u = 4 * kd_rand_unit(j->set.seed, (uint64_t)c);
        m.scale[c] = 0.25f * (float)(1 << (int)u) * (float)(1 + u - (double)(int)u);
    }
    if (kd_job_stream_open(j, layer, true, &p, err)) {
        kd_mem_free(m.scale);
        return -1;
    }
    for (int64_t b = 0; b < kd_job_blocks(j); b++) {
        int64_t T;
        kd_job_block(j, b, &m.first, &T);
        kd_pool_run(j->run->pool, T, made_row, &m);
        kd_job_rows_put(j, &p, m.first, T, m.out);
    }
    int rc = kd_job_stream_commit(j, layer, &p, err);
    kd_rw_close(&p);
    kd_mem_free(m.scale);
    return rc;
}

/* The stream before the layer and those of the block starts before it. */
static int make_inputs(struct kd_job *j, struct kd_trial *t, struct kd_err *err)
{
    double begun = kd_clock_s();
    int rc = 0;
    if (t->real) {
        kd_progress_begin("inputs", "tokens", t->layer * j->T, 0);
        rc = kd_job_start(j, err);
        for (int64_t l = 0; !rc && l < t->layer; l++)
            rc = pass_layer(j, l, err) ? kd_wrap(err, "layer %lld", (long long)l) : 0;
        kd_progress_end();
    } else {
        for (int64_t l = 0; !rc && l < t->layer; l += j->cfg.block)
            rc = made_stream(j, l, err);
        if (!rc)
            rc = made_stream(j, t->layer, err);
    }
    t->inputs_s = kd_clock_s() - begun;
    return rc;
}

static int64_t tiles_of(const struct kd_job *j, int64_t layer)
{
    int64_t n = 0;
    for (int64_t i = j->rates.shard_first[layer]; i < j->rates.shard_first[layer + 1]; i++)
        if (j->rates.t[i].quantized)
            n += j->rates.t[i].rows * j->rates.t[i].cols / 256;
    return n;
}

int64_t kd_trial_rows_bytes(const struct kd_job *j, int64_t layer)
{
    /* Banks and the prefix, which may be one of them, then the one after the attention, the next.
     */
    int64_t streams = layer / j->cfg.block + 1 + (layer % j->cfg.block != 0) + 2;
    return streams * kd_job_stream_bytes(j) + kd_job_scratch_bytes(j);
}

int64_t kd_trial_disk_bytes(const struct kd_job *j, int64_t layer)
{
    return 2 * j->rates.shard_bytes[layer] + (j->in_memory ? 0 : kd_trial_rows_bytes(j, layer));
}

int kd_trial_run(struct kd_job *j, struct kd_trial *t, struct kd_err *err)
{
    if (!kd_k3_is_moe(&j->cfg, t->layer))
        return kd_fail(err, KD_EUSAGE, "--layer %lld has no experts: choose one of %lld to %lld",
                       (long long)t->layer, (long long)j->cfg.dense_layers,
                       (long long)j->cfg.layers - 1);
    if (!is_there(j->ck, t->layer, t->why, sizeof t->why))
        return kd_fail(err, KD_EIO, "layer %lld: %s", (long long)t->layer, t->why);
    find_inputs(j, t);
    t->expert_weights = 3 * j->cfg.moe_inter * j->cfg.latent;
    t->held_out = j->T - j->T_hess;
    if (choose_experts(j, t, err))
        return -1;
    read_layer(j, t);
    if (make_inputs(j, t, err))
        return -1;
    t->written_bytes = j->rates.shard_bytes[t->layer];
    j->trial = t;
    kd_progress_begin("pilot", "tiles", tiles_of(j, t->layer), 0);
    double begun = kd_clock_s();
    kd_parts_begin();
    int rc = kd_job_layer(j, t->layer, err);
    kd_parts_end(t->part_s);
    t->wall_s = kd_clock_s() - begun;
    kd_progress_end();
    j->trial = NULL;
    return rc;
}
