/* A checkpoint's weights onto a device, tensor by tensor out of the map; what that takes is counted
 * first, by the same walk. */
#include "base/mem.h"
#include "base/progress.h"
#include "base/show.h"
#include "kern/mat_source.h"
#include "model/k3_device.h"

#include <stddef.h>
#include <stdio.h>

enum {
    PLAIN_ROWS = 1024, /* of a matrix made plain at a time */
    WORK_SHARE = 8     /* long passes may take 1/8 of what weights leave */
};

/* One walk over the weights: counting (no memory), or loading. */
struct loader {
    struct kd_k3_device *d;
    unsigned char *memory;
    int64_t at; /* bytes taken */
    bool quiet; /* somebody else's progress is under way */
};

static void *take(struct loader *l, int64_t bytes)
{
    void *p = l->memory ? l->memory + l->at : NULL;
    l->at += (bytes + 255) / 256 * 256;
    return p;
}

static int source_of(const struct kd_mat *m, struct kd_gpu_source *s, struct kd_err *err)
{
    *s = kd_mat_source(m);
    if (m->type == KD_MAT_BLOCK && m->format->elems > 1) {
        s->type = KD_GPU_MAT_BLOCK;
        s->format = m->format;
    }
    if (m->type != KD_MAT_NONE && (!s->type || kd_gpu_mat_bytes(s) < 0))
        return kd_fail(err, KD_ENOTSUP, "weights of type %s are not for a device; use the CPU",
                       m->format ? m->format->name : "unknown");
    return 0;
}

/* Blocks of one value (F16 of a GGUF), which no kernel takes: as fp32. */
static int load_as_floats(struct loader *l, const struct kd_mat *from, struct kd_gpu_mat *to,
                          struct kd_err *err)
{
    struct kd_mat floats = {
        .type = KD_MAT_F32, .rows = from->rows, .cols = from->cols, .ld = from->cols};
    struct kd_gpu_source s = kd_mat_source(&floats);
    int64_t bytes = kd_gpu_mat_bytes(&s);
    void *memory = take(l, bytes);
    float *x;
    *to = (struct kd_gpu_mat){.type = s.type, .rows = s.rows, .cols = s.cols};
    if (!memory)
        return 0;
    if (!l->quiet)
        kd_progress_add(bytes, NULL);
    if (kd_mem_new(&x, from->rows * from->cols, sizeof *x, "a matrix", err))
        return -1;
    s.data = x;
    int rc = kd_mat_dequant(&l->d->m->run, from, x, from->cols, err) ||
             kd_gpu_mat_load(l->d->g, to, &s, memory, err);
    kd_mem_free(x);
    return rc ? -1 : 0;
}

static int load_mat(struct loader *l, const struct kd_mat *from, struct kd_gpu_mat *to,
                    struct kd_err *err)
{
    struct kd_gpu_source s;
    if (from->type == KD_MAT_BLOCK && from->format->elems == 1)
        return load_as_floats(l, from, to, err);
    if (source_of(from, &s, err))
        return -1;
    if (!s.type) {
        to->type = KD_GPU_MAT_NONE;
        return 0;
    }
    int64_t bytes = kd_gpu_mat_bytes(&s);
    void *memory = take(l, bytes);
    /* The shape, for whoever counts work space. */
    *to = (struct kd_gpu_mat){.type = s.type,
                              .rows = s.rows,
                              .cols = s.cols,
                              .rows_padded = s.rows_padded,
                              .cols_padded = s.cols_padded,
                              .rate = s.rate,
                              .cb = s.cb,
                              .format = s.format};
    if (!memory)
        return 0;
    if (!l->quiet)
        kd_progress_add(bytes, NULL);
    return s.data ? kd_gpu_mat_load(l->d->g, to, &s, memory, err)
                  : kd_gpu_mat_make(l->d->g, to, &s, (uint64_t)l->at, memory, err);
}

static int load_floats(struct loader *l, const float *from, int64_t count, float **to,
                       struct kd_err *err)
{
    *to = from ? take(l, count * (int64_t)sizeof **to) : NULL;
    return *to ? kd_gpu_upload(l->d->g, *to, from, count * (int64_t)sizeof **to, err) : 0;
}

/* Rows one after the other, BF16 where they are stored so, else fp32. */
static int load_plain(struct loader *l, const struct kd_mat *from, const void **to, bool *bf16,
                      struct kd_err *err)
{
    struct kd_gpu *g = l->d->g;
    bool plain = (from->type == KD_MAT_BF16 || from->type == KD_MAT_F32) && from->ld == from->cols;
    *bf16 = plain && from->type == KD_MAT_BF16;
    int64_t row = from->cols * (*bf16 ? 2 : 4);
    unsigned char *out = take(l, from->rows * row);
    *to = out;
    if (!out)
        return 0;
    if (!l->quiet)
        kd_progress_add(from->rows * row, NULL);
    if (plain && !from->data) {
        struct kd_gpu_source s;
        struct kd_gpu_mat made;
        return source_of(from, &s, err) || kd_gpu_mat_make(g, &made, &s, (uint64_t)l->at, out, err)
                   ? -1
                   : 0;
    }
    if (plain)
        return kd_gpu_upload(g, out, from->data, from->rows * row, err);
    float *some;
    if (kd_mem_new(&some, PLAIN_ROWS * from->cols, sizeof *some, "rows of a matrix", err))
        return -1;
    int rc = 0;
    for (int64_t r = 0; r < from->rows && !rc; r += PLAIN_ROWS) {
        int64_t n = from->rows - r < PLAIN_ROWS ? from->rows - r : PLAIN_ROWS;
        struct kd_mat part;
        rc = kd_mat_slice(from, r, r + n, 0, from->cols, &part, err) ||
             kd_mat_dequant(&l->d->m->run, &part, some, from->cols, err) ||
             kd_gpu_upload(g, out + r * row, some, n * row, err);
    }
    kd_mem_free(some);
    return rc ? -1 : 0;
}

/* What a layer has, here and there. */
#define KD_PAIR(name)                                                                              \
    {                                                                                              \
        offsetof(struct kd_k3_layer, name), offsetof(struct kd_k3_device_layer, name)              \
    }
static const struct {
    size_t from, to;
} mats[] = {KD_PAIR(q),           KD_PAIR(k),        KD_PAIR(v),   KD_PAIR(f_a),  KD_PAIR(f_b),
            KD_PAIR(b),           KD_PAIR(q_a),      KD_PAIR(q_b), KD_PAIR(kv_a), KD_PAIR(g),
            KD_PAIR(o),           KD_PAIR(gate),     KD_PAIR(up),  KD_PAIR(down), KD_PAIR(router),
            KD_PAIR(routed_down), KD_PAIR(routed_up)};
#undef KD_PAIR

static int load_vectors(struct loader *l, const struct kd_k3_layer *L, struct kd_k3_device_layer *D,
                        struct kd_err *err)
{
    const struct kd_k3_cfg *c = &l->d->m->cfg;
    int64_t hid = c->hidden, ch = L->heads * c->kda_dim;
    const struct {
        const float *from;
        float **to;
        int64_t count;
    } all[] = {{L->input_norm, &D->input_norm, hid},
               {L->post_norm, &D->post_norm, hid},
               {L->attn_res, &D->attn_res, hid},
               {L->mlp_res, &D->mlp_res, hid},
               {L->q_conv, &D->q_conv, ch * c->conv},
               {L->k_conv, &D->k_conv, ch * c->conv},
               {L->v_conv, &D->v_conv, ch * c->conv},
               {L->decay, &D->decay, L->heads},
               {L->dt_bias, &D->dt_bias, ch},
               {L->o_norm, &D->o_norm, c->kda_dim},
               {L->q_a_norm, &D->q_a_norm, c->q_lora},
               {L->kv_a_norm, &D->kv_a_norm, c->kv_lora},
               {L->router_bias, &D->router_bias, c->experts},
               {L->routed_norm, &D->routed_norm, c->latent}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (load_floats(l, all[i].from, all[i].count, all[i].to, err))
            return -1;
    return 0;
}

/* All of a layer but its experts. */
static int load_trunk(struct loader *l, const struct kd_k3_layer *L, struct kd_k3_device_layer *D,
                      struct kd_err *err)
{
    for (size_t i = 0; i < sizeof mats / sizeof *mats; i++)
        if (load_mat(l, (const struct kd_mat *)(const void *)((const char *)L + mats[i].from),
                     (struct kd_gpu_mat *)(void *)((char *)D + mats[i].to), err))
            return -1;
    if (L->mla && load_plain(l, &L->kv_b, &D->kv_b, &D->kv_b_bf16, err))
        return -1;
    return load_vectors(l, L, D, err);
}

int kd_k3_device_load_trunk(struct kd_k3_device *d, int64_t l, int64_t *bytes, struct kd_err *err)
{
    struct kd_k3_device_layer *D = &d->layers[l];
    struct loader load = {.d = d};
    if (load_trunk(&load, &d->m->layers[l], D, err))
        return -1;
    if (bytes) {
        *bytes = load.at;
        return 0;
    }
    if (kd_gpu_alloc(d->g, &D->memory, load.at, "a layer's weights", err))
        return -1;
    load = (struct loader){.d = d, .memory = D->memory, .quiet = d->quiet};
    return load_trunk(&load, &d->m->layers[l], D, err);
}

/* The experts of a layer; table: [experts][3], NULL to count. */
static int load_experts(struct loader *l, int64_t layer, struct kd_gpu_mat (*table)[3],
                        struct kd_err *err)
{
    const struct kd_k3_model *m = l->d->m;
    struct kd_store *store = m->store;
    struct kd_gpu_mat none[3];
    for (int64_t e = 0; e < m->cfg.experts; e++) {
        struct kd_expert x;
        if (store->get(store, layer, e, &x, err))
            return -1;
        if (!x.ready && (!store->wait || store->wait(store, layer, e, &x, err)))
            return store->wait ? -1 : kd_fail(err, KD_EINVAL, "it never becomes ready");
        struct kd_gpu_mat *to = table ? table[e] : none;
        int rc = load_mat(l, &x.w1, &to[0], err) || load_mat(l, &x.w3, &to[1], err) ||
                         load_mat(l, &x.w2, &to[2], err)
                     ? -1
                     : 0;
        if (store->done)
            store->done(store, layer, e);
        if (rc)
            return kd_wrap(err, "expert %lld", (long long)e);
    }
    return 0;
}

static struct kd_gpu_experts_shape shape_of(const struct kd_k3_cfg *c, int64_t rows)
{
    return (struct kd_gpu_experts_shape){.experts = c->experts,
                                         .cols = c->latent,
                                         .inner = c->moe_inter,
                                         .tokens = rows,
                                         .top = c->topk};
}

static int load_layer(struct kd_k3_device *d, int64_t n, struct kd_err *err)
{
    const struct kd_k3_model *m = d->m;
    const struct kd_k3_layer *L = &m->layers[n];
    struct kd_k3_device_layer *D = &d->layers[n];
    struct loader count = {.d = d}, l = {.d = d};
    char note[64];
    snprintf(note, sizeof note, "layer %lld of %lld", (long long)n, (long long)m->cfg.layers);
    kd_progress_add(0, note);
    if (kd_k3_device_load_trunk(d, n, NULL, err))
        return -1;
    if (!L->moe)
        return 0;
    const struct kd_gpu_experts_shape shape = shape_of(&m->cfg, d->rows_max);
    struct kd_gpu_experts *share = NULL;
    for (int64_t i = 0; i < n && !share; i++)
        share = d->layers[i].experts;
    struct kd_gpu_mat(*table)[3];
    count.at = l.at = 0;
    if (load_experts(&count, n, NULL, err) ||
        kd_gpu_alloc(d->g, &D->experts_memory, count.at, "a layer's experts", err) ||
        kd_gpu_experts_open(&D->experts, d->g, &shape, share, err) ||
        kd_mem_zero(&table, m->cfg.experts, sizeof *table, "expert table", err))
        return -1;
    l.memory = D->experts_memory;
    int rc = load_experts(&l, n, table, err) ||
             kd_gpu_experts_set(D->experts, 0, m->cfg.experts, (const struct kd_gpu_mat(*)[3])table,
                                err);
    kd_mem_free(table);
    return rc ? -1 : 0;
}

static int load_ends(struct loader *l, struct kd_err *err)
{
    struct kd_k3_device *d = l->d;
    const struct kd_k3_ends *e = &d->m->ends;
    int64_t hid = d->m->cfg.hidden;
    return load_plain(l, &e->embed, &d->embed, &d->embed_bf16, err) ||
                   load_mat(l, &e->head, &d->head, err) ||
                   load_floats(l, e->norm, hid, &d->norm, err) ||
                   load_floats(l, e->out_res, hid, &d->out_res, err)
               ? -1
               : 0;
}

/* Bytes of all weights. */
static int count_all(struct kd_k3_device *d, int64_t *weights, struct kd_err *err)
{
    const struct kd_k3_model *m = d->m;
    struct loader l = {.d = d};
    if (load_ends(&l, err))
        return -1;
    for (int64_t n = 0; n < m->cfg.layers; n++) {
        if (load_trunk(&l, &m->layers[n], &d->layers[n], err) ||
            (m->layers[n].moe && load_experts(&l, n, NULL, err)))
            return kd_wrap(err, "layer %lld", (long long)n);
    }
    *weights = l.at;
    return 0;
}

/* Work space of passes of d->rows_max rows. */
static int64_t work_bytes(struct kd_k3_device *d)
{
    const struct kd_k3_model *m = d->m;
    const struct kd_gpu_experts_shape shape = shape_of(&m->cfg, d->rows_max);
    int64_t bytes = kd_k3_device_work_bytes(d);
    bool shared = false;
    for (int64_t n = 0; n < m->cfg.layers; n++)
        if (m->layers[n].moe) {
            bytes += kd_gpu_experts_bytes(&shape, shared);
            shared = true;
        }
    return bytes;
}

/* As many rows a pass as leave most of the memory to sequences: experts have more rows each then.
 */
static int choose_rows(struct kd_k3_device *d, int64_t weights, struct kd_err *err)
{
    int64_t free_bytes, work;
    int64_t sequence = d->kda_floats * 4 + KD_K3_DEVICE_SLAB * kd_k3_device_page_bytes(d);
    char need[32], held[32], extra[32], each[32], room[32];
    if (kd_gpu_free_bytes(d->g, &free_bytes, err))
        return -1;
    for (d->rows_max = KD_K3_DEVICE_ROWS;; d->rows_max /= 2) {
        work = work_bytes(d);
        if (d->rows_max <= KD_K3_FORWARD_ROWS ||
            work <= (free_bytes - weights - sequence) / WORK_SHARE)
            break;
    }
    if (weights + work + sequence <= free_bytes)
        return 0;
    kd_show_bytes(need, sizeof need, weights + work + sequence);
    kd_show_bytes(held, sizeof held, weights);
    kd_show_bytes(extra, sizeof extra, work);
    kd_show_bytes(each, sizeof each, sequence);
    kd_show_bytes(room, sizeof room, free_bytes);
    return kd_fail(err, KD_EGPU,
                   "cuda:%d (%s) has %s free, this model needs %s: %s of weights, %s of work "
                   "space, %s for one sequence; use the CPU, a smaller model or fewer bits",
                   d->index, kd_gpu_facts(d->g)->name, room, need, held, extra, each);
}

int kd_k3_device_load(struct kd_k3_device *d, struct kd_err *err)
{
    struct loader count = {.d = d}, l = {.d = d};
    int64_t weights = 0;
    if (count_all(d, &weights, err) || choose_rows(d, weights, err))
        return -1;
    kd_progress_begin("load", "bytes", weights, 0);
    int rc = load_ends(&count, err) ||
             kd_gpu_alloc(d->g, &d->ends_memory, count.at, "embedding and head", err);
    l.memory = d->ends_memory;
    rc = rc || load_ends(&l, err);
    for (int64_t n = 0; n < d->m->cfg.layers && !rc; n++)
        rc = load_layer(d, n, err) ? kd_wrap(err, "layer %lld", (long long)n) : 0;
    rc = rc || kd_gpu_wait(d->g, err);
    kd_progress_end();
    return rc ? -1 : 0;
}
