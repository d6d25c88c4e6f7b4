/* The stages of a layer whose rows are made on a device (model/k3_calib.h, class `fast`) and go
 * from there into its Hessian: the stream comes from the work files as it is stored, and goes back
 * so. */
#include "base/log.h"
#include "base/mem.h"
#include "convert/layer_work.h"

/* Where the rows of a stream file begin. */
static uint8_t *rows_at(const struct kd_job *j, const struct kd_rwmap *m, int64_t first)
{
    return m->data + first * j->cfg.hidden * (j->set.stream_bf16 ? 2 : 4);
}

static int send(const struct kd_job *j, const struct kd_layer_work *w, struct kd_k3_calib *c,
                const struct kd_rwmap *p, int64_t banks, int64_t first, int64_t T,
                struct kd_err *err)
{
    const void *bank[KD_LAYER_BANKS_MAX];
    const struct kd_k3_stored s = {
        .bf16 = j->set.stream_bf16, .banks = banks, .p = rows_at(j, p, first), .bank = bank};
    for (int64_t b = 0; b < banks; b++)
        bank[b] = rows_at(j, &w->bank[b], first);
    return kd_k3_calib_stream(c, &s, T, err);
}

int kd_there_attn_in(struct kd_job *j, struct kd_layer_work *w, struct kd_k3_calib *c,
                     int64_t first, int64_t T, struct kd_k3_rows *x, struct kd_err *err)
{
    return send(j, w, c, &w->p, w->banks_before, first, T, err) || kd_k3_calib_attn_in(c, x, err)
               ? -1
               : 0;
}

int kd_there_q_latent(struct kd_job *j, struct kd_layer_work *w, struct kd_k3_calib *c,
                      int64_t first, int64_t T, struct kd_k3_rows *x, struct kd_err *err)
{
    return kd_there_attn_in(j, w, c, first, T, x, err) || kd_k3_calib_q_latent(c, x, err) ? -1 : 0;
}

int kd_there_attn_core(struct kd_job *j, struct kd_layer_work *w, struct kd_k3_calib *c,
                       int64_t first, int64_t T, struct kd_k3_rows *x, struct kd_err *err)
{
    return kd_there_attn_in(j, w, c, first, T, x, err) || kd_k3_calib_attn_core(c, x, err) ? -1 : 0;
}

/* The attention once more, which takes less time than keeping its rows would take room. */
int kd_there_attn_out(struct kd_job *j, struct kd_layer_work *w, struct kd_k3_calib *c,
                      int64_t first, int64_t T, struct kd_k3_rows *x, struct kd_err *err)
{
    return kd_there_attn_core(j, w, c, first, T, x, err) ||
                   kd_k3_calib_attn_out(c, j->set.stream_bf16, rows_at(j, &w->mid, first), x, err)
               ? -1
               : 0;
}

static int ffn_in(struct kd_job *j, struct kd_layer_work *w, struct kd_k3_calib *c, int64_t first,
                  int64_t T, struct kd_k3_rows *x, struct kd_err *err)
{
    return send(j, w, c, &w->mid, w->banks_after, first, T, err) || kd_k3_calib_ffn_in(c, x, err)
               ? -1
               : 0;
}

int kd_there_inner(struct kd_job *j, struct kd_layer_work *w, struct kd_k3_calib *c, int64_t first,
                   int64_t T, struct kd_k3_rows *x, struct kd_err *err)
{
    return ffn_in(j, w, c, first, T, x, err) || kd_k3_calib_inner(c, x, err) ? -1 : 0;
}

int kd_there_latents(struct kd_job *j, struct kd_layer_work *w, struct kd_k3_calib *c,
                     int64_t first, int64_t T, struct kd_k3_rows *x, struct kd_err *err)
{
    int64_t topk = j->cfg.topk;
    uint16_t *z = (uint16_t *)(void *)w->z.data + first * j->cfg.latent;
    int32_t *ids = (int32_t *)(void *)w->ids.data + first * topk;
    float *wts = (float *)(void *)w->wts.data + first * topk;
    return ffn_in(j, w, c, first, T, x, err) || kd_k3_calib_latents(c, z, ids, wts, x, err) ? -1
                                                                                            : 0;
}

static const float *sums_at(const struct kd_job *j, const struct kd_layer_work *w, int64_t first)
{
    return (const float *)(const void *)w->u.data + first * j->cfg.latent;
}

int kd_there_latent_out(struct kd_job *j, struct kd_layer_work *w, struct kd_k3_calib *c,
                        int64_t first, int64_t T, struct kd_k3_rows *x, struct kd_err *err)
{
    return kd_k3_calib_latent_out(c, sums_at(j, w, first), T, x, err);
}

int kd_there_out(struct kd_job *j, struct kd_layer_work *w, struct kd_k3_calib *c, int64_t first,
                 int64_t T, struct kd_k3_rows *x, struct kd_err *err)
{
    return kd_there_inner(j, w, c, first, T, x, err) ||
                   kd_k3_calib_out(c, w->L.moe ? sums_at(j, w, first) : NULL, j->set.stream_bf16,
                                   rows_at(j, &w->next, first), x, err)
               ? -1
               : 0;
}

/* Rows that are not finite, or whose Hessian is elsewhere, come here. */
static int take_here(struct kd_job *j, struct kd_k3_calib *c, const char *what,
                     const struct kd_k3_rows *x, struct kd_hess *h, struct kd_err *err)
{
    float *rows;
    if (kd_mem_new(&rows, x->T * x->width, sizeof *rows, "rows of a device", err))
        return -1;
    int rc = kd_k3_calib_fetch(c, x, rows, err) ||
             kd_job_finite(j, what, rows, x->width, x->T, err) ||
             (h && kd_hess_add(j->run, h, rows, x->width, x->T, err));
    kd_mem_free(rows);
    return rc ? -1 : 0;
}

static int take(struct kd_job *j, struct kd_k3_calib *c, const char *what, struct kd_k3_rows *x,
                int64_t seen, struct kd_hess *h, struct kd_err *err)
{
    bool finite, done = !h || seen <= 0;
    if (kd_k3_calib_check(c, x, &finite, err))
        return -1;
    if (!finite)
        return take_here(j, c, what, x, NULL, err);
    x->T = seen < x->T ? seen : x->T;
    if (!done && kd_hess_add_there(h, x->index, x->x, x->width, x->T, &done, err))
        return -1;
    return done ? 0 : take_here(j, c, what, x, h, err);
}

int kd_there_run(struct kd_job *j, struct kd_layer_work *w, kd_layer_there *rows, const char *what,
                 struct kd_hess *h, int64_t tokens, bool *done, struct kd_err *err)
{
    struct kd_k3_calib *c;
    int rc = kd_k3_calib_open(&c, j->run, &j->cfg, &w->L, j->block_T, j->text->cols, err);
    *done = c != NULL;
    kd_log(KD_LOG_INFO, "convert", "layer=%lld rows=%s on=%s", (long long)w->L.index, what,
           c ? "device" : "cpu");
    for (int64_t b = 0; !rc && c && b < kd_job_blocks(j); b++) {
        struct kd_k3_rows x;
        int64_t first, T;
        kd_job_block(j, b, &first, &T);
        rc = kd_job_stop_check(j, err) || rows(j, w, c, first, T, &x, err) ||
             take(j, c, what, &x, tokens - first, h, err);
    }
    kd_k3_calib_close(c);
    return rc ? -1 : 0;
}
