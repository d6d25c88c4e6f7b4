#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"
#include "cmd/bench_serve.h"
#include "model/k3.h"

#include <stdio.h>
#include <string.h>

enum { CLASSES = 32, T_MAX = 16, PASSES = 3 };
static const int64_t sample_bytes = 256 << 20;

struct times {
    double wall, cpu; /* 0: not measured */
};

/* All matrices that are stored in one way. */
struct class
{
    enum kd_mat_type type;
    unsigned sixteenths; /* bits of a weight, EXL3 */
    double trunk;        /* weights every token goes through */
    double *expert;      /* [layers] weights of a mean expert */
    struct kd_mat *mat;  /* the sample */
    int64_t mats, cap, bytes, weights, rows;
    struct times one, all; /* of the sample with 1 and T_MAX tokens, the shortest so far */
};

struct kd_bound {
    const struct kd_k3_cfg *cfg;
    const struct kd_run *run;
    struct kd_k3_layer *layer;
    int64_t layers;
    struct kd_k3_ends ends;
    struct kd_store *store;
    struct class class[CLASSES];
    int classes;
    int64_t cols_max;
    float *x, *y;
    struct kd_mat_job *job;
};

static struct class *class_of(struct kd_bound *b, const struct kd_mat *m, struct kd_err *err)
{
    unsigned rate = m->type == KD_MAT_EXL3 ? kd_rate_to16(m->rate) : 0;
    for (int i = 0; i < b->classes; i++)
        if (b->class[i].type == m->type && b->class[i].sixteenths == rate)
            return &b->class[i];
    if (b->classes == CLASSES) {
        kd_fail(err, KD_ENOTSUP, "more than %d ways of storing a matrix", CLASSES);
        return NULL;
    }
    struct class *c = &b->class[b->classes];
    *c = (struct class){.type = m->type, .sixteenths = rate};
    if (kd_mem_zero(&c->expert, b->cfg->layers, sizeof *c->expert, "bound", err))
        return NULL;
    b->classes++;
    return c;
}

/* Into its class; expert_of: the layer it is an expert's of, or -1. */
static int add(struct kd_bound *b, const struct kd_mat *m, int64_t expert_of, struct kd_err *err)
{
    if (m->type == KD_MAT_NONE)
        return 0;
    struct class *c = class_of(b, m, err);
    if (!c)
        return -1;
    double weights = (double)m->rows * (double)m->cols;
    if (expert_of >= 0)
        c->expert[expert_of] += weights / (double)b->cfg->experts;
    else
        c->trunk += weights;
    if (c->bytes + kd_mat_bytes(m) > sample_bytes && c->mats)
        return 0;
    if (c->mats == c->cap) {
        struct kd_mat *more;
        c->cap = c->cap ? 2 * c->cap : 64;
        if (kd_mem_new(&more, c->cap, sizeof *more, "bound", err))
            return -1;
        if (c->mats)
            memcpy(more, c->mat, (size_t)c->mats * sizeof *more);
        kd_mem_free(c->mat);
        c->mat = more;
    }
    c->mat[c->mats++] = *m;
    c->bytes += kd_mat_bytes(m);
    c->weights += m->rows * m->cols;
    c->rows += m->rows;
    b->cols_max = m->cols > b->cols_max ? m->cols : b->cols_max;
    return 0;
}

static int add_layer(struct kd_bound *b, const struct kd_k3_layer *L, struct kd_err *err)
{
    const struct kd_mat *m[] = {&L->q,      &L->k,           &L->v,        &L->f_a,  &L->f_b,
                                &L->b,      &L->q_a,         &L->q_b,      &L->kv_a, &L->kv_b,
                                &L->g,      &L->o,           &L->gate,     &L->up,   &L->down,
                                &L->router, &L->routed_down, &L->routed_up};
    for (size_t i = 0; i < sizeof m / sizeof *m; i++)
        if (add(b, m[i], -1, err))
            return -1;
    for (int64_t e = 0; L->moe && e < b->cfg->experts; e++) {
        struct kd_expert x;
        if (b->store->get(b->store, L->index, e, &x, err) || add(b, &x.w1, L->index, err) ||
            add(b, &x.w3, L->index, err) || add(b, &x.w2, L->index, err))
            return -1;
    }
    return 0;
}

static int make_room(struct kd_bound *b, struct kd_err *err)
{
    int64_t rows = 0, mats = 0;
    for (int i = 0; i < b->classes; i++) {
        rows = b->class[i].rows > rows ? b->class[i].rows : rows;
        mats = b->class[i].mats > mats ? b->class[i].mats : mats;
    }
    if (kd_mem_new(&b->x, b->cols_max * T_MAX, sizeof *b->x, "inputs", err) ||
        kd_mem_new(&b->y, rows * T_MAX, sizeof *b->y, "outputs", err) ||
        kd_mem_new(&b->job, mats, sizeof *b->job, "bound", err))
        return -1;
    for (int64_t i = 0; i < b->cols_max * T_MAX; i++)
        b->x[i] = (float)(kd_rand_unit(17, (uint64_t)i) * 2 - 1);
    return 0;
}

int kd_bound_open(struct kd_bound **out, const struct kd_k3_cfg *cfg, const struct kd_ckpt *ck,
                  const struct kd_run *run, struct kd_err *err)
{
    struct kd_bound *b;
    *out = NULL;
    if (kd_mem_zero(&b, 1, sizeof *b, "bound", err))
        return -1;
    b->cfg = cfg;
    b->run = run;
    int rc = kd_mem_zero(&b->layer, cfg->layers, sizeof *b->layer, "bound", err) ||
             kd_k3_store_open(&b->store, cfg, ck, NULL, err) ||
             kd_k3_ends_load(&b->ends, cfg, ck, err) || add(b, &b->ends.head, -1, err);
    for (int64_t l = 0; !rc && l < cfg->layers; l++) {
        rc = kd_k3_layer_load(&b->layer[l], cfg, ck, l, NULL, err);
        b->layers += !rc;
        if (!rc)
            rc = add_layer(b, &b->layer[l], err);
    }
    if (rc || make_room(b, err)) {
        kd_bound_close(b);
        return -1;
    }
    *out = b;
    return 0;
}

void kd_bound_close(struct kd_bound *b)
{
    if (!b)
        return;
    for (int64_t l = 0; l < b->layers; l++)
        kd_k3_layer_release(&b->layer[l]);
    kd_k3_ends_release(&b->ends);
    if (b->store)
        kd_k3_store_close(b->store);
    for (int i = 0; i < b->classes; i++) {
        kd_mem_free(b->class[i].expert);
        kd_mem_free(b->class[i].mat);
    }
    kd_mem_free(b->layer);
    kd_mem_free(b->x);
    kd_mem_free(b->y);
    kd_mem_free(b->job);
    kd_mem_free(b);
}

static void keep_shorter(double *best, double seconds)
{
    *best = *best <= 0 || seconds < *best ? seconds : *best;
}

/* All of a class's sample with T tokens each, some times. */
static int time_class(struct kd_bound *b, const struct class *c, int64_t T, struct times *best,
                      struct kd_err *err)
{
    float *y = b->y;
    for (int64_t i = 0; i < c->mats; i++) {
        b->job[i] = (struct kd_mat_job){
            .w = &c->mat[i], .x = b->x, .ldx = b->cols_max, .T = T, .y = y, .ldy = c->mat[i].rows};
        y += c->mat[i].rows * T;
    }
    for (int i = 0; i < PASSES; i++) {
        double wall = kd_clock_s(), cpu = kd_clock_cpu_s();
        if (kd_mat_mul_many(b->run, b->job, c->mats, err))
            return -1;
        keep_shorter(&best->wall, kd_clock_s() - wall);
        keep_shorter(&best->cpu, kd_clock_cpu_s() - cpu);
    }
    return 0;
}

int kd_bound_measure(struct kd_bound *b, struct kd_err *err)
{
    for (int i = 0; i < b->classes; i++) {
        struct class *c = &b->class[i];
        if (time_class(b, c, 1, &c->one, err) || time_class(b, c, T_MAX, &c->all, err))
            return -1;
    }
    return 0;
}

/* Seconds a weight, and a weight and token. */
static void rates(const struct class *c, bool cpu, double *decode, double *multiply)
{
    double one = (cpu ? c->one.cpu : c->one.wall) / (double)c->weights;
    double all = (cpu ? c->all.cpu : c->all.wall) / (double)c->weights;
    *multiply = all > one ? (all - one) / (T_MAX - 1) : 0;
    *decode = one > *multiply ? one - *multiply : 0;
}

double kd_bound_step_s(const struct kd_bound *b, int64_t T, const double *distinct, bool cpu)
{
    double sum = 0, tokens = (double)T, decode, multiply;
    for (int i = 0; i < b->classes; i++) {
        const struct class *c = &b->class[i];
        rates(c, cpu, &decode, &multiply);
        sum += c->trunk * (decode + tokens * multiply);
        for (int64_t l = 0; l < b->cfg->layers; l++)
            sum += c->expert[l] * (distinct[l] * decode + tokens * (double)b->cfg->topk * multiply);
    }
    return sum;
}

static void name_class(const struct class *c, char out[32])
{
    static const char *const names[] = {"none", "F32", "BF16", "MXFP4", "EXL3"};
    if (c->sixteenths)
        snprintf(out, 32, "EXL3 %.4g bits", c->sixteenths / 16.0);
    else
        snprintf(out, 32, "%s", names[c->type]);
}

void kd_bound_put(const struct kd_bound *b, const struct kd_bench *to)
{
    kd_jw_open(to->w, NULL, '{');
    kd_jw_open(to->w, "rates", '[');
    for (int i = 0; i < b->classes; i++) {
        const struct class *c = &b->class[i];
        double experts = 0, decode, multiply;
        char name[32];
        for (int64_t l = 0; l < b->cfg->layers; l++)
            experts += c->expert[l] * (double)b->cfg->experts;
        name_class(c, name);
        rates(c, false, &decode, &multiply);
        kd_jw_open(to->w, NULL, '{');
        kd_jw_str(to->w, "type", name);
        kd_jw_num(to->w, "trunk_weights", c->trunk);
        kd_jw_num(to->w, "expert_weights", experts);
        kd_jw_num(to->w, "decode_ns", decode * 1e9);
        kd_jw_num(to->w, "multiply_ns", multiply * 1e9);
        kd_jw_close(to->w, '}');
        if (to->screen)
            printf("  %-16s %8.2f M weights in the trunk, %8.2f M in experts; decode %.4f ns, "
                   "multiply %.4f ns a weight\n",
                   name, c->trunk * 1e-6, experts * 1e-6, decode * 1e9, multiply * 1e9);
    }
    kd_jw_close(to->w, ']');
    kd_jw_close(to->w, '}');
}
