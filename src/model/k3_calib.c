#include "model/k3_calib.h"

#include "base/mem.h"
#include "gpu/calib.h"
#include "model/k3_device.h"

#include <string.h>

struct kd_k3_calib {
    struct kd_gpu_encoder *encoder;
    struct kd_gpu_ferry *ferry;
    int64_t held; /* bytes of it */
    struct kd_k3_model m;
    struct kd_k3_device d; /* of one layer, without ends, experts and sequences */
    struct kd_k3_device_layer layer;
    struct kd_k3_device_at at;
    int64_t segs, cols;         /* of a whole block; tokens of each */
    struct kd_gpu_k3_seg *host; /* [segs], what `seg` is on the device */
    void *memory;
    /* parts of it */
    struct kd_gpu_k3_seg *seg;
    int32_t *ids, *row_seg; /* ids: 0, 1, ... */
    void **page;            /* [segs][pages] */
    float *states;          /* [segs][kda_floats] */
    unsigned char *cache;   /* [segs][pages][page] */
    uint16_t *raw;          /* [banks + 1][rows][hidden], as stored */
    int32_t *bad;
};

static int64_t pages_of(const struct kd_k3_calib *c)
{
    return (c->cols + KD_K3_PAGE - 1) / KD_K3_PAGE;
}

static void *part(unsigned char *base, int64_t *at, int64_t bytes)
{
    void *p = base ? base + *at : NULL;
    *at += (bytes + 255) / 256 * 256;
    return p;
}

/* Their places in `base`, or with NULL their size. */
static int64_t lay_out(struct kd_k3_calib *c, unsigned char *base)
{
    int64_t at = 0, rows = c->d.rows_max, pages = pages_of(c);
    c->seg = part(base, &at, c->segs * (int64_t)sizeof *c->seg);
    c->ids = part(base, &at, rows * (int64_t)sizeof *c->ids);
    c->row_seg = part(base, &at, rows * (int64_t)sizeof *c->row_seg);
    c->page = part(base, &at, c->segs * pages * (int64_t)sizeof *c->page);
    c->states = part(base, &at, c->segs * c->d.kda_floats * 4);
    c->cache = part(base, &at, c->segs * pages * kd_k3_device_page_bytes(&c->d));
    c->raw = part(base, &at, 2 * (kd_k3_banks(&c->m.cfg) + 1) * rows * c->m.cfg.hidden);
    c->bad = part(base, &at, sizeof *c->bad);
    return at;
}

/* Everything but memory: what it will take, weights included. */
static int begin(struct kd_k3_calib *c, const struct kd_run *run, const struct kd_k3_cfg *cfg,
                 struct kd_k3_layer *L, int64_t rows, int64_t cols, int64_t *bytes,
                 struct kd_err *err)
{
    int64_t weights;
    c->m = (struct kd_k3_model){.cfg = *cfg, .run = *run, .layers = L};
    c->d = (struct kd_k3_device){.m = &c->m,
                                 .cls = KD_GPU_FAST,
                                 .fast = kd_k3_device_plain_kv_b(L),
                                 .layers = &c->layer,
                                 .layer_count = 1,
                                 .quiet = true,
                                 .context = cols,
                                 .rows_max = rows};
    c->at.d = &c->d;
    c->segs = rows / cols;
    c->cols = cols;
    kd_k3_device_place_states(&c->d);
    if (kd_k3_device_fits(&c->m, err) || kd_k3_device_load_trunk(&c->d, 0, &weights, err))
        return -1;
    *bytes = weights + kd_k3_device_work_bytes(&c->d) + lay_out(c, NULL);
    return 0;
}

/* What the kernels are told of a block. */
static int send_batch(struct kd_k3_calib *c, struct kd_err *err)
{
    int64_t rows = c->d.rows_max, pages = pages_of(c), each = kd_k3_device_page_bytes(&c->d);
    void **page = NULL;
    int32_t *row = NULL;
    int rc = kd_mem_new(&c->host, c->segs, sizeof *c->host, "segments", err) ||
             kd_mem_new(&page, c->segs * pages, sizeof *page, "pages", err) ||
             kd_mem_new(&row, 2 * rows, sizeof *row, "rows", err);
    for (int64_t s = 0; !rc && s < c->segs; s++) {
        c->host[s] = (struct kd_gpu_k3_seg){.first = s * c->cols,
                                            .count = c->cols,
                                            .kda = c->states + s * c->d.kda_floats,
                                            .page = c->page + s * pages};
        for (int64_t i = 0; i < pages; i++)
            page[s * pages + i] = c->cache + (s * pages + i) * each;
    }
    for (int64_t t = 0; !rc && t < rows; t++) {
        row[t] = (int32_t)t;
        row[rows + t] = (int32_t)(t / c->cols);
    }
    if (!rc)
        rc = kd_gpu_upload(c->d.g, c->seg, c->host, c->segs * (int64_t)sizeof *c->host, err) ||
             kd_gpu_upload(c->d.g, c->page, page, c->segs * pages * (int64_t)sizeof *page, err) ||
             kd_gpu_upload(c->d.g, c->ids, row, rows * (int64_t)sizeof *row, err) ||
             kd_gpu_upload(c->d.g, c->row_seg, row + rows, rows * (int64_t)sizeof *row, err);
    kd_mem_free(page);
    kd_mem_free(row);
    return rc ? -1 : 0;
}

static int open_parts(struct kd_k3_calib *c, struct kd_err *err)
{
    int64_t bytes = lay_out(c, NULL), parts;
    if (kd_gpu_ferry_open(&c->ferry, c->encoder, err) || kd_gpu_open(&c->d.g, c->d.index, err) ||
        kd_k3_device_load_trunk(&c->d, 0, NULL, err) ||
        kd_gpu_alloc(c->d.g, &c->d.work_memory, kd_k3_device_work_bytes(&c->d), "work space",
                     err) ||
        kd_gpu_alloc(c->d.g, &c->memory, bytes, "a block of rows", err))
        return -1;
    kd_k3_device_work_place(&c->d);
    lay_out(c, c->memory);
    kd_gpu_k3_mla_floats(c->d.fast, c->m.cfg.heads, c->m.cfg.kv_lora, c->d.rows_max, c->cols,
                         c->d.w.mla_floats, &parts);
    c->at.parts = parts;
    if (send_batch(c, err))
        return -1;
    c->at.b = (struct kd_gpu_k3_batch){
        .ids = c->ids, .row_seg = c->row_seg, .seg = c->seg, .longest = c->cols, .host = c->host};
    return 0;
}

int kd_k3_calib_open(struct kd_k3_calib **out, const struct kd_run *run,
                     const struct kd_k3_cfg *cfg, struct kd_k3_layer *L, int64_t rows, int64_t cols,
                     struct kd_err *err)
{
    struct kd_k3_calib *c;
    struct kd_err why = {0};
    int64_t bytes;
    *out = NULL;
    if (!run->encoder || !kd_gpu_calib_is_fast(run->encoder))
        return 0;
    if (kd_mem_zero(&c, 1, sizeof *c, "a layer on a device", err))
        return -1;
    if (begin(c, run, cfg, L, rows, cols, &bytes, &why) ||
        !kd_gpu_calib_hold(run->encoder, bytes, &c->d.index)) {
        kd_mem_free(c);
        return why.code == KD_ENOMEM ? kd_fail(err, why.code, "%s", why.msg) : 0;
    }
    c->encoder = run->encoder;
    c->held = bytes;
    if (open_parts(c, err)) {
        kd_k3_calib_close(c);
        return -1;
    }
    *out = c;
    return 0;
}

void kd_k3_calib_close(struct kd_k3_calib *c)
{
    if (!c)
        return;
    if (c->d.g) {
        kd_gpu_release(c->d.g, c->layer.memory);
        kd_gpu_release(c->d.g, c->d.work_memory);
        kd_gpu_release(c->d.g, c->memory);
    }
    kd_gpu_close(c->d.g);
    kd_gpu_ferry_close(c->ferry);
    kd_gpu_calib_let_go(c->encoder, c->held);
    kd_mem_free(c->host);
    kd_mem_free(c);
}

int kd_k3_calib_bytes(const struct kd_run *run, const struct kd_k3_cfg *cfg, bool f32, int64_t rows,
                      int64_t cols, int64_t *bytes, struct kd_err *err)
{
    bool seen[2][2] = {{false}};
    *bytes = 0;
    if (!run->encoder || !kd_gpu_calib_is_fast(run->encoder))
        return 0;
    for (int64_t l = 0; l < cfg->layers; l++) {
        bool *kind = &seen[cfg->mla[l]][kd_k3_is_moe(cfg, l)];
        struct kd_k3_layer L = {0};
        struct kd_k3_calib c = {0};
        struct kd_err why;
        int64_t n = 0;
        if (*kind)
            continue;
        *kind = true;
        if (kd_k3_made_layer(&L, cfg, l, f32, err))
            return -1;
        if (!begin(&c, run, cfg, &L, rows, cols, &n, &why) && n > *bytes)
            *bytes = n;
        kd_k3_layer_release(&L);
    }
    return 0;
}

/* ---- the stages ---- */

/* Device memory, which must be there, to the host. */
static int fetch(struct kd_k3_calib *c, void *to, const void *from, int64_t bytes,
                 struct kd_err *err)
{
    return kd_gpu_wait(c->d.g, err) || kd_gpu_ferry_down(c->ferry, to, from, bytes, err) ? -1 : 0;
}

/* Stored rows = x, which becomes what is stored. */
static int store(struct kd_k3_calib *c, bool bf16, float *x, void *to, struct kd_err *err)
{
    int64_t n = c->at.b.rows * c->m.cfg.hidden;
    if (!bf16)
        return fetch(c, to, x, 4 * n, err);
    return kd_gpu_k3_round(c->d.g, x, n, c->raw, err) || fetch(c, to, c->raw, 2 * n, err) ? -1 : 0;
}

int kd_k3_calib_stream(struct kd_k3_calib *c, const struct kd_k3_stored *s, int64_t T,
                       struct kd_err *err)
{
    const struct kd_k3_device_work *w = &c->d.w;
    int64_t hidden = c->m.cfg.hidden, n = T * hidden;
    c->at.b.rows = T;
    c->at.b.segs = T / c->cols;
    c->at.banks = (int)s->banks;
    /* Nobody is at work on the device: what the stage before left has been looked at. */
    for (int64_t b = -1; b < s->banks; b++) {
        const void *from = b < 0 ? s->p : s->bank[b];
        void *to = s->bf16 ? (void *)(c->raw + (b + 1) * n) : b < 0 ? w->p : w->bank + b * n;
        if (kd_gpu_ferry_up(c->ferry, to, from, (s->bf16 ? 2 : 4) * n, err))
            return -1;
    }
    if (kd_gpu_ferry_wait(c->ferry, err))
        return -1;
    for (int64_t b = -1; s->bf16 && b < s->banks; b++)
        if (kd_gpu_k3_embed(c->d.g, &c->at.b, c->raw + (b + 1) * n, true, hidden,
                            b < 0 ? w->p : w->bank + b * n, err))
            return -1;
    return 0;
}

static void rows_are(const struct kd_k3_calib *c, const float *x, int64_t width,
                     struct kd_k3_rows *out)
{
    *out = (struct kd_k3_rows){.x = x, .T = c->at.b.rows, .width = width, .index = c->d.index};
}

int kd_k3_calib_attn_in(struct kd_k3_calib *c, struct kd_k3_rows *x, struct kd_err *err)
{
    const struct kd_gpu_k3_mix in = {
        .query = c->layer.attn_res, .norm = c->layer.input_norm, .out = c->d.w.x};
    rows_are(c, c->d.w.x, c->m.cfg.hidden, x);
    return kd_k3_device_mix(&c->at, in, err);
}

int kd_k3_calib_q_latent(struct kd_k3_calib *c, struct kd_k3_rows *x, struct kd_err *err)
{
    rows_are(c, c->d.w.cq, c->m.cfg.q_lora, x);
    return kd_k3_device_q_latent(&c->at, 0, err);
}

int kd_k3_calib_attn_core(struct kd_k3_calib *c, struct kd_k3_rows *x, struct kd_err *err)
{
    rows_are(c, c->d.w.y, c->m.layers->o.cols, x);
    return kd_gpu_zero(c->d.g, c->states, c->at.b.segs * c->d.kda_floats * 4, err) ||
                   kd_k3_device_attention(&c->at, 0, err)
               ? -1
               : 0;
}

/* The FFN's normed input, after `add`, or nothing, went into the stream. */
static int ffn_in(struct kd_k3_calib *c, const float *add, struct kd_err *err)
{
    struct kd_gpu_k3_mix mid = {
        .add = add, .query = c->layer.mlp_res, .norm = c->layer.post_norm, .out = c->d.w.x};
    mid.push = mid.replace = add && c->m.layers->index % c->m.cfg.block == 0;
    return kd_k3_device_mix(&c->at, mid, err);
}

int kd_k3_calib_attn_out(struct kd_k3_calib *c, bool bf16, void *mid, struct kd_k3_rows *x,
                         struct kd_err *err)
{
    const struct kd_k3_device_work *w = &c->d.w;
    rows_are(c, w->x, c->m.cfg.hidden, x);
    return kd_k3_device_mul(&c->at, 0, KD_K3_ATTN_OUT, err) || ffn_in(c, w->a, err) ||
                   store(c, bf16, w->p, mid, err) || ffn_in(c, NULL, err)
               ? -1
               : 0;
}

int kd_k3_calib_ffn_in(struct kd_k3_calib *c, struct kd_k3_rows *x, struct kd_err *err)
{
    rows_are(c, c->d.w.x, c->m.cfg.hidden, x);
    return ffn_in(c, NULL, err);
}

int kd_k3_calib_inner(struct kd_k3_calib *c, struct kd_k3_rows *x, struct kd_err *err)
{
    rows_are(c, c->d.w.inner, c->m.layers->gate.rows, x);
    return kd_k3_device_mul(&c->at, 0, KD_K3_MLP_IN, err) || kd_k3_device_mlp(&c->at, 0, err) ? -1
                                                                                              : 0;
}

int kd_k3_calib_latents(struct kd_k3_calib *c, uint16_t *z, int32_t *ids, float *weight,
                        struct kd_k3_rows *x, struct kd_err *err)
{
    const struct kd_k3_device_work *w = &c->d.w;
    int64_t latent = c->m.cfg.latent, T = c->at.b.rows, n = T * latent, topk = c->m.cfg.topk;
    uint16_t *rounded = (uint16_t *)(void *)w->u;
    rows_are(c, w->latent, latent, x);
    return kd_k3_device_mul(&c->at, 0, KD_K3_LATENT_IN, err) ||
                   kd_k3_device_route(&c->at, 0, topk, 0, err) ||
                   kd_gpu_k3_round(c->d.g, w->latent, n, rounded, err) ||
                   fetch(c, z, rounded, 2 * n, err) ||
                   kd_gpu_download(c->d.g, ids, w->ids, 4 * T * topk, err) ||
                   kd_gpu_download(c->d.g, weight, w->weight, 4 * T * topk, err)
               ? -1
               : 0;
}

int kd_k3_calib_latent_out(struct kd_k3_calib *c, const float *u, int64_t T, struct kd_k3_rows *x,
                           struct kd_err *err)
{
    c->at.b.rows = T;
    rows_are(c, c->d.w.u, c->m.cfg.latent, x);
    return kd_gpu_wait(c->d.g, err) ||
                   kd_gpu_ferry_up(c->ferry, c->d.w.u, u, 4 * T * c->m.cfg.latent, err) ||
                   kd_gpu_ferry_wait(c->ferry, err) || kd_k3_device_latent_norm(&c->at, 0, err)
               ? -1
               : 0;
}

int kd_k3_calib_out(struct kd_k3_calib *c, const float *u, bool bf16, void *next,
                    struct kd_k3_rows *x, struct kd_err *err)
{
    const struct kd_k3_device_work *w = &c->d.w;
    const struct kd_k3_layer *L = c->m.layers;
    const struct kd_gpu_k3_mix last = {.add = w->f,
                                       .more = u && L->gate.type != KD_MAT_NONE ? w->shared : NULL,
                                       .norm = c->layer.post_norm,
                                       .out = w->x};
    if ((u && kd_k3_calib_latent_out(c, u, c->at.b.rows, x, err)) ||
        kd_k3_device_mul(&c->at, 0, KD_K3_FFN_OUT, err) || kd_k3_device_mix(&c->at, last, err))
        return -1;
    rows_are(c, w->p, c->m.cfg.hidden, x);
    return store(c, bf16, w->p, next, err);
}

int kd_k3_calib_check(struct kd_k3_calib *c, const struct kd_k3_rows *x, bool *finite,
                      struct kd_err *err)
{
    int32_t bad = 0;
    int rc = kd_gpu_zero(c->d.g, c->bad, sizeof bad, err) ||
             kd_gpu_k3_finite(c->d.g, x->x, x->T * x->width, c->bad, err) ||
             kd_gpu_download(c->d.g, &bad, c->bad, sizeof bad, err);
    *finite = !bad;
    return rc ? -1 : 0;
}

int kd_k3_calib_fetch(struct kd_k3_calib *c, const struct kd_k3_rows *x, float *to,
                      struct kd_err *err)
{
    return fetch(c, to, x->x, 4 * x->T * x->width, err);
}
