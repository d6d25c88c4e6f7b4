/* One layer of a conversion: calibrate, encode, and pass the quantized layer's output on. Order
 * within a layer (exl3 Decision 11): attention inputs, o_proj, then latent-down and shared experts,
 * then the experts; each stage sees the quantized stages before it. */
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/parts.h"
#include "base/progress.h"
#include "base/rand.h"
#include "convert/job.h"
#include "convert/layer_work.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static int64_t tiles_of(const struct kd_out_tensor *t)
{
    return kd_exl3_pad(t->rows) / 16 * (kd_exl3_pad(t->cols) / 16);
}

const struct kd_out_tensor *kd_layer_tensor(const struct kd_job *j, int64_t layer,
                                            const char *suffix)
{
    size_t m = strlen(suffix);
    for (int64_t i = j->rates.shard_first[layer]; i < j->rates.shard_first[layer + 1]; i++) {
        const struct kd_out_tensor *t = &j->rates.t[i];
        size_t n = strlen(t->key);
        if (t->quantized && t->expert < 0 && n >= m && !strcmp(t->key + n - m, suffix))
            return t;
    }
    return NULL;
}

/* Signs of tensors that share an input are drawn from the input's name, the others from their own.
 */
static uint64_t seed_of(const struct kd_job *j, const char *name)
{
    return kd_rand_fork(j->set.seed, kd_fnv64(name));
}

struct kd_quant_spec kd_layer_spec(const struct kd_job *j, const struct kd_out_tensor *t,
                                   const char *input)
{
    char name[96];
    snprintf(name, sizeof name, "%d.%s", t->layer, input);
    return (struct kd_quant_spec){.rate = kd_rate_from16(t->rate16),
                                  .cb = j->rates.wish.cb,
                                  .recipe = j->recipe,
                                  .seed = seed_of(j, t->key),
                                  .input_seed = seed_of(j, name)};
}

/* Quantizes a trunk linear unless its unit is there already. */
static int make_unit(struct kd_job *j, const struct kd_out_tensor *t, const char *input,
                     const struct kd_hess *h, const struct kd_mat *mat, const char *path,
                     struct kd_err *err)
{
    struct kd_quant_spec spec = kd_layer_spec(j, t, input);
    struct kd_quant_out q;
    const struct kd_quant_out *one = &q;
    if (kd_file_exists(path))
        return 0;
    kd_progress_add(0, t->key);
    if (kd_quant_tensor(j->run, mat, h, &spec, &q, err))
        return kd_wrap(err, "%s", t->key);
    int rc = kd_unit_write(path, j->digest, &one, 1, NULL, err);
    kd_quant_release(&q);
    return rc ? -1 : 0;
}

/* The same, and leaves it mapped in `unit`. */
int kd_layer_linear(struct kd_job *j, struct kd_layer_work *w, const struct kd_out_tensor *t,
                    const char *input, const struct kd_hess *h, struct kd_mat *mat,
                    struct kd_err *err)
{
    char path[4096];
    struct kd_unit *unit = &w->trunk[w->trunk_count];
    KD_ASSERT(w->trunk_count < KD_LAYER_TRUNK_MAX);
    if (kd_job_stop_check(j, err) || kd_job_unit_path(j, t, path, sizeof path, err) ||
        make_unit(j, t, input, h, mat, path, err) || kd_unit_open(unit, path, j->digest, err))
        return -1;
    w->trunk_count++;
    *mat = unit->mat[0];
    kd_progress_add(tiles_of(t), NULL);
    return 0;
}

/* Tensors that share one input, and where their matrices are. */
struct group {
    const char *suffix;
    struct kd_mat *mat;
};

static bool units_there(const struct kd_job *j, int64_t layer, const struct group *g, int count)
{
    char path[4096];
    for (int i = 0; i < count; i++) {
        const struct kd_out_tensor *t = kd_layer_tensor(j, layer, g[i].suffix);
        if (t && (kd_job_unit_path(j, t, path, sizeof path, NULL) || !kd_file_exists(path)))
            return false;
    }
    return true;
}

/* A stage's tensors as jobs of the farm. */
struct crew {
    struct kd_job *j;
    const struct kd_out_tensor *t[KD_LAYER_TRUNK_MAX];
    const struct kd_mat *mat[KD_LAYER_TRUNK_MAX];
    const char *input;
    const struct kd_hess *hess;
    bool ready; /* their Hessian is there, or needs none */
};

static int task_of(void *ctx, int64_t i, struct kd_farm_task *t, bool *wanted, struct kd_err *err)
{
    const struct crew *c = ctx;
    *t = (struct kd_farm_task){
        .trunk = true, .hess = c->hess, .w1 = *c->mat[i], .digest = c->j->digest};
    t->spec[0] = kd_layer_spec(c->j, c->t[i], c->input);
    *wanted = kd_farm_takes(t);
    if (!*wanted)
        return 0;
    if (kd_job_unit_path(c->j, c->t[i], t->path, sizeof t->path, err))
        return -1;
    return c->ready || kd_file_exists(t->path)
               ? 0
               : kd_fail(err, KD_ECORRUPT, "'%s' was whole and is damaged now; resume", t->path);
}

static void note_unit(void *ctx, int64_t i)
{
    const struct crew *c = ctx;
    kd_progress_add(0, c->t[i]->key);
}

/* With workers: the stage's units are made by whoever is free. Those that no wire takes are left to
 * kd_layer_linear. Called for a stage that is whole, too, so that the ledger knows. */
static int spread(struct kd_job *j, struct kd_layer_work *w, const struct group *g, int count,
                  const char *input, const struct kd_hess *h, bool ready, struct kd_err *err)
{
    struct crew c = {.j = j, .input = input, .hess = h, .ready = ready};
    struct kd_farm_layer l = {.layer = w->L.index,
                              .trunk = KD_JOB_TRUNK + w->trunk_count,
                              .hess = h,
                              .ctx = &c,
                              .plan = task_of,
                              .done = note_unit};
    if (!kd_farm_spreads(j->farm))
        return 0;
    for (int i = 0; i < count; i++) {
        const struct kd_out_tensor *t = kd_layer_tensor(j, w->L.index, g[i].suffix);
        if (!t)
            continue;
        c.t[l.experts] = t;
        c.mat[l.experts++] = g[i].mat;
    }
    return l.experts ? kd_farm_layer(j->farm, &l, err) : 0;
}

/* Tensors of one stage on a device. */
struct beside {
    struct kd_job *j;
    const struct kd_out_tensor *t[KD_JOB_BESIDE];
    const struct kd_mat *mat[KD_JOB_BESIDE];
    const char *input;
    const struct kd_hess *hess;
    atomic_int failed;
    struct kd_err err; /* of the one that set `failed` */
};

static void beside_item(void *ctx, int64_t i, int worker)
{
    struct beside *b = ctx;
    char path[4096];
    struct kd_err err = {0};
    (void)worker;
    if ((kd_job_stop_check(b->j, &err) ||
         kd_job_unit_path(b->j, b->t[i], path, sizeof path, &err) ||
         make_unit(b->j, b->t[i], b->input, b->hess, b->mat[i], path, &err)) &&
        !atomic_exchange(&b->failed, 1))
        b->err = err;
}

/* A stage's units side by side on the run's devices, where one alone would leave them idle between
 * its steps; those that are left are kd_layer_linear's. */
static int make_beside(struct kd_job *j, const struct kd_layer_work *w, const struct group *g,
                       int count, const char *input, const struct kd_hess *h, struct kd_err *err)
{
    struct beside b = {.j = j, .input = input, .hess = h};
    int n = 0;
    for (int i = 0; i < count && n < KD_JOB_BESIDE; i++) {
        const struct kd_out_tensor *t = kd_layer_tensor(j, w->L.index, g[i].suffix);
        if (!t)
            continue;
        b.t[n] = t;
        b.mat[n++] = g[i].mat;
    }
    if (!j->run->encoder || n < 2)
        return 0;
    int was = kd_part_enter(KD_PART_SEARCH);
    kd_pool_run(j->run->pool, n, beside_item, &b);
    kd_part_leave(was);
    return atomic_load(&b.failed) ? kd_fail(err, b.err.code, "%s", b.err.msg) : 0;
}

/* A stage's rows, here and on a device. */
struct stage_rows {
    kd_layer_rows *here;
    kd_layer_there *there;
};

static int blocks_here(struct kd_job *j, struct kd_layer_work *w, kd_layer_rows *rows,
                       const char *input, int64_t k, struct kd_hess *h, struct kd_err *err)
{
    float *x;
    int rc = kd_mem_new(&x, j->block_T * k, sizeof *x, "stage inputs", err);
    for (int64_t b = 0; !rc && b < kd_job_blocks(j); b++) {
        int64_t first, T;
        kd_job_block(j, b, &first, &T);
        rc = kd_job_stop_check(j, err) || rows(j, w, first, T, x, err) ||
             kd_job_finite(j, input, x, k, T, err) || (h && kd_hess_add(j->run, h, x, k, T, err));
    }
    kd_mem_free(x);
    return rc ? -1 : 0;
}

/* One stage: its rows are the inputs of the group [T][k]; they make the Hessian, unless every unit
 * of the group is there already. `always` runs the rows all the same (a stage that leaves something
 * behind). */
static int stage(struct kd_job *j, struct kd_layer_work *w, const struct group *g, int count,
                 const char *input, int64_t k, bool always, struct stage_rows rows,
                 struct kd_err *err)
{
    struct kd_hess h;
    bool there = units_there(j, w->L.index, g, count), done;
    bool hess = !there && (j->recipe.feedback || j->recipe.row_power > 0);
    int rc = 0;
    memset(&h, 0, sizeof h);
    if (hess)
        rc = kd_hess_open(&h, k, err) || kd_hess_on_device(j->run, &h, err);
    if (!rc && (hess || always)) {
        rc = kd_there_run(j, w, rows.there, input, hess ? &h : NULL, j->T, &done, err) ||
             (!done && blocks_here(j, w, rows.here, input, k, hess ? &h : NULL, err));
        if (!rc && hess)
            rc = kd_hess_finish(&h, err) || kd_hess_share(j->run, &h, err);
    }
    if (!rc)
        rc = spread(j, w, g, count, input, hess ? &h : NULL, !there, err) ||
             make_beside(j, w, g, count, input, hess ? &h : NULL, err);
    for (int i = 0; !rc && i < count; i++) {
        const struct kd_out_tensor *t = kd_layer_tensor(j, w->L.index, g[i].suffix);
        if (t)
            rc = kd_layer_linear(j, w, t, input, hess ? &h : NULL, g[i].mat, err);
    }
    kd_hess_release(&h);
    return rc;
}

/* The window filled with the stream before the attention (prefix from `p`). */
void kd_layer_window(const struct kd_job *j, struct kd_layer_work *w, const struct kd_rwmap *p,
                     int64_t banks, bool started, int64_t first, int64_t T)
{
    struct kd_k3_stream *s = &w->win;
    *s = j->win;
    s->T = T;
    s->banks = banks;
    s->started = started;
    kd_job_rows_get(j, p, first, T, s->p);
    for (int64_t b = 0; b < banks; b++)
        kd_job_rows_get(j, &w->bank[b], first, T, s->bank + b * s->bank_rows * s->hidden);
}

static int rows_attn_in(struct kd_job *j, struct kd_layer_work *w, int64_t first, int64_t T,
                        float *x, struct kd_err *err)
{
    kd_layer_window(j, w, &w->p, w->banks_before, true, first, T);
    return kd_k3_attn_in(j->run, &j->cfg, &w->L, &w->win, x, err);
}

static int rows_q_latent(struct kd_job *j, struct kd_layer_work *w, int64_t first, int64_t T,
                         float *cq, struct kd_err *err)
{
    float *x;
    if (kd_mem_new(&x, T * j->cfg.hidden, sizeof *x, "attention inputs", err))
        return -1;
    int rc = rows_attn_in(j, w, first, T, x, err);
    if (!rc)
        rc = kd_k3_q_latent(j->run, &j->cfg, &w->L, x, T, cq, err);
    kd_mem_free(x);
    return rc;
}

int kd_layer_rows_begin(struct kd_job *j, const struct kd_layer_work *w, int64_t rows,
                        struct kd_err *err)
{
    const int64_t cols = j->text->cols;
    for (int64_t i = 0; i < rows; i++) {
        if (kd_k3_state_init(&j->states[i], &j->cfg, &w->L, err)) {
            kd_layer_rows_end(j, i);
            return -1;
        }
        j->segs[i] = (struct kd_k3_seg){i * cols, cols, &j->states[i]};
    }
    return 0;
}

void kd_layer_rows_end(struct kd_job *j, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++)
        kd_k3_state_release(&j->states[i]);
}

/* Rows on their way into a work file. */
struct keep_job {
    const float *from;
    float *to;
    int64_t n;
};

static void keep_item(void *ctx, int64_t t, int worker)
{
    const struct keep_job *j = ctx;
    (void)worker;
    memcpy(j->to + t * j->n, j->from + t * j->n, (size_t)j->n * sizeof *j->to);
}

static int attn_core(struct kd_job *j, struct kd_layer_work *w, int64_t first, int64_t T, float *y,
                     struct kd_err *err)
{
    float *x;
    const int64_t rows = T / j->text->cols;
    if (kd_mem_new(&x, T * j->cfg.hidden, sizeof *x, "attention inputs", err))
        return -1;
    int rc = rows_attn_in(j, w, first, T, x, err);
    if (!rc)
        rc = kd_layer_rows_begin(j, w, rows, err);
    if (!rc) {
        rc = kd_k3_attn_core(j->run, &j->cfg, &w->L, x, T, j->segs, rows, y, err);
        kd_layer_rows_end(j, rows);
    }
    kd_mem_free(x);
    return rc;
}

/* The rows are kept: o_proj is not there yet. */
static int rows_attn_core(struct kd_job *j, struct kd_layer_work *w, int64_t first, int64_t T,
                          float *y, struct kd_err *err)
{
    if ((!w->y.data && kd_layer_scratch(j, &w->y, "attn", j->T * w->y_width * 4, err)) ||
        attn_core(j, w, first, T, y, err))
        return -1;
    struct keep_job keep = {y, (float *)(void *)w->y.data + first * w->y_width, w->y_width};
    kd_pool_run(j->run->pool, T, keep_item, &keep);
    return 0;
}

int kd_layer_scratch(struct kd_job *j, struct kd_rwmap *m, const char *name, int64_t bytes,
                     struct kd_err *err)
{
    char path[4096];
    if (j->in_memory)
        return kd_rw_memory(m, bytes, err);
    if (kd_job_path(j, path, sizeof path, err, "scratch.%s", name))
        return -1;
    return kd_rw_open(m, path, bytes, err);
}

static int attention(struct kd_job *j, struct kd_layer_work *w, struct kd_err *err)
{
    struct kd_k3_layer *L = &w->L;
    struct group kda[] = {{"self_attn.q_proj", &L->q},
                          {"self_attn.k_proj", &L->k},
                          {"self_attn.v_proj", &L->v},
                          {"self_attn.g_proj", &L->g}};
    struct group mla[] = {{"self_attn.q_a_proj", &L->q_a}, {"self_attn.g_proj", &L->g}};
    struct group q_b[] = {{"self_attn.q_b_proj", &L->q_b}}, o[] = {{"self_attn.o_proj", &L->o}};
    const struct stage_rows in = {rows_attn_in, kd_there_attn_in},
                            latent = {rows_q_latent, kd_there_q_latent},
                            core = {rows_attn_core, kd_there_attn_core};
    w->y_width = L->mla ? j->cfg.heads * j->cfg.v_dim : j->cfg.kda_heads * j->cfg.kda_dim;
    if (L->mla) {
        if (stage(j, w, mla, 2, "attn_in", j->cfg.hidden, false, in, err) ||
            stage(j, w, q_b, 1, "q_latent", j->cfg.q_lora, false, latent, err))
            return -1;
    } else if (stage(j, w, kda, 4, "attn_in", j->cfg.hidden, false, in, err)) {
        return -1;
    }
    return stage(j, w, o, 1, "attn_out", w->y_width, false, core, err);
}

/* p after the attention goes to `mid`; the rows are the FFN's normed inputs. */
static int rows_ffn_in_first(struct kd_job *j, struct kd_layer_work *w, int64_t first, int64_t T,
                             float *x, struct kd_err *err)
{
    float *a, *made = NULL;
    int rc = kd_mem_new(&a, T * j->cfg.hidden, sizeof *a, "attention output", err);
    if (!rc && !w->y.data)
        rc = kd_mem_new(&made, T * w->y_width, sizeof *made, "attention rows", err) ||
             attn_core(j, w, first, T, made, err);
    kd_layer_window(j, w, &w->p, w->banks_before, true, first, T);
    const float *y = made ? made : (const float *)(const void *)w->y.data + first * w->y_width;
    if (!rc)
        rc = kd_mat_mul(j->run, &w->L.o, y, w->y_width, T, a, j->cfg.hidden, err);
    kd_mem_free(made);
    if (!rc) {
        kd_k3_add_attn(j->run, &j->cfg, &w->L, &w->win, a);
        kd_job_rows_put(j, &w->mid, first, T, w->win.p);
        rc = kd_layer_ffn_in(j, w, first, T, x, err);
    }
    kd_mem_free(a);
    return rc;
}

/* From what `mid` holds (rounded as the stream is), so that a later pass sees the same. */
int kd_layer_ffn_in(struct kd_job *j, struct kd_layer_work *w, int64_t first, int64_t T, float *x,
                    struct kd_err *err)
{
    kd_layer_window(j, w, &w->mid, w->banks_after, true, first, T);
    return kd_k3_ffn_in(j->run, &j->cfg, &w->L, &w->win, x, err);
}

static int rows_inner(struct kd_job *j, struct kd_layer_work *w, int64_t first, int64_t T, float *s,
                      struct kd_err *err)
{
    float *x;
    if (kd_mem_new(&x, T * j->cfg.hidden, sizeof *x, "FFN inputs", err))
        return -1;
    int rc = kd_layer_ffn_in(j, w, first, T, x, err);
    if (!rc)
        rc = kd_k3_mlp_inner(j->run, &j->cfg, &w->L.gate, &w->L.up, x, T, s, err);
    kd_mem_free(x);
    return rc;
}

static int ffn_inputs(struct kd_job *j, struct kd_layer_work *w, struct kd_err *err)
{
    struct kd_k3_layer *L = &w->L;
    struct group dense[] = {{"mlp.gate_proj", &L->gate}, {"mlp.up_proj", &L->up}};
    struct group moe[] = {{"routed_expert_down_proj", &L->routed_down},
                          {"shared_experts.gate_proj", &L->gate},
                          {"shared_experts.up_proj", &L->up}};
    struct group down[] = {{L->moe ? "shared_experts.down_proj" : "mlp.down_proj", &L->down}};
    const struct stage_rows in = {rows_ffn_in_first, kd_there_attn_out},
                            inner = {rows_inner, kd_there_inner};
    if (kd_layer_scratch(j, &w->mid, "mid", kd_job_stream_bytes(j), err))
        return -1;
    int rc = L->moe ? stage(j, w, moe, 3, "ffn_in", j->cfg.hidden, true, in, err)
                    : stage(j, w, dense, 2, "ffn_in", j->cfg.hidden, true, in, err);
    if (rc)
        return -1;
    kd_rw_close(&w->y); /* it has served */
    return stage(j, w, down, 1, "ffn_inner", L->gate.rows, false, inner, err);
}

/* Rows of both parts of the FFN. */
struct sum_job {
    const float *add;
    float *f;
    int64_t n;
};

static void sum_item(void *ctx, int64_t t, int worker)
{
    const struct sum_job *j = ctx;
    const float *restrict add = j->add + t * j->n;
    float *restrict f = j->f + t * j->n;
    (void)worker;
    for (int64_t i = 0; i < j->n; i++)
        f[i] = add[i] + f[i];
}

/* The stream after the layer: p = mid + f, f = routed_up(norm(u)) + down(inner). */
static int pass_on_here(struct kd_job *j, struct kd_layer_work *w, struct kd_err *err)
{
    int64_t H = j->cfg.hidden, latent = j->cfg.latent, inner = w->L.gate.rows, B = j->block_T;
    float *s = NULL, *f = NULL, *r = NULL;
    int rc = kd_mem_new(&s, B * (inner > latent ? inner : latent), sizeof *s, "FFN inner", err) ||
             kd_mem_new(&f, B * H, sizeof *f, "FFN output", err) ||
             kd_mem_new(&r, B * H, sizeof *r, "FFN output", err);
    for (int64_t b = 0; !rc && b < kd_job_blocks(j); b++) {
        int64_t first, T;
        kd_job_block(j, b, &first, &T);
        rc = kd_job_stop_check(j, err) || rows_inner(j, w, first, T, s, err) ||
             kd_mat_mul(j->run, &w->L.down, s, inner, T, f, H, err);
        if (!rc && w->L.moe) {
            const float *u = (const float *)(const void *)w->u.data + first * latent;
            kd_k3_latent_norm(j->run, &j->cfg, &w->L, u, T, s);
            rc = kd_mat_mul(j->run, &w->L.routed_up, s, latent, T, r, H, err);
            struct sum_job sum = {r, f, H};
            if (!rc)
                kd_pool_run(j->run->pool, T, sum_item, &sum);
        }
        if (!rc) {
            kd_layer_window(j, w, &w->mid, w->banks_after, true, first, T);
            kd_k3_add_ffn(j->run, &w->win, f);
            kd_job_rows_put(j, &w->next, first, T, w->win.p);
            rc = kd_job_finite(j, "output", w->win.p, H, T, err);
        }
    }
    kd_mem_free(s);
    kd_mem_free(f);
    kd_mem_free(r);
    return rc ? -1 : 0;
}

static int pass_on(struct kd_job *j, struct kd_layer_work *w, struct kd_err *err)
{
    bool done;
    return kd_job_stream_open(j, w->L.index + 1, true, &w->next, err) ||
                   kd_there_run(j, w, kd_there_out, "output", NULL, 0, &done, err) ||
                   (!done && pass_on_here(j, w, err)) ||
                   kd_job_stream_commit(j, w->L.index + 1, &w->next, err)
               ? -1
               : 0;
}

static int rows_latent_normed(struct kd_job *j, struct kd_layer_work *w, int64_t first, int64_t T,
                              float *x, struct kd_err *err)
{
    (void)err;
    kd_k3_latent_norm(j->run, &j->cfg, &w->L,
                      (const float *)(const void *)w->u.data + first * j->cfg.latent, T, x);
    return 0;
}

int kd_layer_work_open(struct kd_job *j, struct kd_layer_work *w, int64_t layer, struct kd_err *err)
{
    memset(w, 0, sizeof *w);
    w->banks_before = (layer + j->cfg.block - 1) / j->cfg.block;
    w->banks_after = layer / j->cfg.block + 1;
    if (kd_k3_layer_load(&w->L, &j->cfg, j->ck, layer, NULL, err) ||
        kd_job_stream_open(j, layer, false, &w->p, err))
        return -1;
    /* A bank is the prefix before its block's first layer; at a block start the newest is p itself.
     */
    for (int64_t b = 0; b < w->banks_after; b++)
        if (kd_job_stream_open(j, b * j->cfg.block, false, &w->bank[b], err))
            return -1;
    return 0;
}

void kd_layer_work_close(struct kd_layer_work *w)
{
    kd_k3_layer_release(&w->L);
    for (int i = 0; i < w->trunk_count; i++)
        kd_unit_close(&w->trunk[i]);
    for (int64_t e = 0; w->expert && e < w->expert_count; e++)
        kd_unit_close(&w->expert[e]);
    kd_mem_free(w->expert);
    struct kd_rwmap *maps[] = {&w->p, &w->mid, &w->next, &w->y, &w->z, &w->ids, &w->wts, &w->u};
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++)
        kd_rw_close(maps[i]);
    for (int64_t b = 0; b < KD_LAYER_BANKS_MAX; b++)
        kd_rw_close(&w->bank[b]);
}

int kd_job_layer(struct kd_job *j, int64_t layer, struct kd_err *err)
{
    struct kd_layer_work w;
    char dir[4096];
    struct group up[] = {{"routed_expert_up_proj", NULL}};
    const struct stage_rows sums = {rows_latent_normed, kd_there_latent_out};
    if (j->finished || kd_job_shard_done(j, (int32_t)layer))
        return 0;
    if (kd_k3_banks(&j->cfg) > KD_LAYER_BANKS_MAX)
        return kd_fail(err, KD_ENOTSUP, "%lld attention-residual blocks are more than %d",
                       (long long)kd_k3_banks(&j->cfg), KD_LAYER_BANKS_MAX);
    int rc = kd_job_path(j, dir, sizeof dir, err, "%03lld", (long long)layer) ||
             kd_dir_make(dir, err) || kd_job_mend(j, (int32_t)layer, err);
    if (!rc && j->by_layer)
        rc = kd_job_sound(j, layer, err);
    if (!rc)
        rc = kd_layer_work_open(j, &w, layer, err);
    else
        return -1;
    up[0].mat = &w.L.routed_up;
    if (!rc)
        rc = attention(j, &w, err) || ffn_inputs(j, &w, err);
    if (!rc && w.L.moe)
        rc = kd_layer_experts(j, &w, err) ||
             stage(j, &w, up, 1, "latent_out", j->cfg.latent, false, sums, err);
    if (!rc)
        rc = pass_on(j, &w, err);
    kd_layer_work_close(&w);
    if (!rc)
        rc = kd_job_seal(j, (int32_t)layer, err);
    if (rc)
        return kd_wrap(err, "layer %lld", (long long)layer);
    kd_log(KD_LOG_INFO, "convert", "layer=%lld msg=sealed", (long long)layer);
    return 0;
}
