/* A layer's inputs and an expert's weights as bytes, see wire.h. */
#include "base/mem.h"
#include "farm/wire.h"

#include <math.h>
#include <string.h>

int64_t kd_wire_weights_bytes(enum kd_mat_type type, int64_t rows, int64_t cols)
{
    return type == KD_MAT_F32    ? rows * cols * 4
           : type == KD_MAT_BF16 ? rows * cols * 2
                                 : rows * ((cols + 1) / 2) + rows * ((cols + 31) / 32);
}

static void add_rows(struct kd_buf *out, const void *data, int64_t rows, int64_t row_bytes,
                     int64_t stride)
{
    const uint8_t *p = data;
    if (stride == row_bytes) {
        kd_buf_add(out, p, (size_t)(rows * row_bytes));
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        kd_buf_add(out, p + r * stride, (size_t)row_bytes);
}

int kd_wire_weights_put(struct kd_buf *out, const struct kd_farm_task *t, struct kd_err *err)
{
    const struct kd_mat *m[3];
    int n = kd_farm_task_mats(t, m);
    kd_buf_init(out, KD_WIRE_BLOB_MAX);
    for (int i = 0; i < n; i++) {
        int64_t cols = m[i]->cols, rows = m[i]->rows;
        if (m[i]->type == KD_MAT_F32)
            add_rows(out, m[i]->data, rows, cols * 4, m[i]->ld * 4);
        else if (m[i]->type == KD_MAT_BF16)
            add_rows(out, m[i]->data, rows, cols * 2, m[i]->ld * 2);
        else if (m[i]->type == KD_MAT_MXFP4) {
            add_rows(out, m[i]->data, rows, (cols + 1) / 2, m[i]->ld);
            add_rows(out, m[i]->scale, rows, (cols + 31) / 32, m[i]->ld_scale);
        } else {
            return kd_fail(err, KD_ENOTSUP,
                           "weights stored in this form cannot be sent to workers");
        }
    }
    return kd_buf_ok(out, "a job's weights", err);
}

const void *kd_wire_weights_flat(const struct kd_farm_task *t, int64_t *bytes)
{
    const struct kd_mat *m = &t->w1;
    if (!t->trunk || (m->type != KD_MAT_F32 && m->type != KD_MAT_BF16) || m->ld != m->cols)
        return NULL;
    *bytes = kd_wire_weights_bytes(m->type, m->rows, m->cols);
    return m->data;
}

bool kd_farm_takes(const struct kd_farm_task *t)
{
    const struct kd_mat *m[3];
    int n = kd_farm_task_mats(t, m);
    int64_t k = t->w1.cols, bytes = 0;
    for (int i = 0; i < n; i++) {
        if (m[i]->type != KD_MAT_F32 && m[i]->type != KD_MAT_BF16 && m[i]->type != KD_MAT_MXFP4)
            return false;
        bytes += kd_wire_weights_bytes(m[i]->type, m[i]->rows, m[i]->cols);
    }
    return bytes <= KD_WIRE_BLOB_MAX && k * (k + 1) * 2 <= KD_WIRE_BLOB_MAX &&
           kd_farm_unit_bytes(t) <= KD_WIRE_UNIT_MAX;
}

int kd_wire_weights_get(struct kd_farm_task *t, const struct kd_wire_layer *l,
                        const struct kd_wire_job *j, const uint8_t *data, int64_t bytes,
                        struct kd_err *err)
{
    struct kd_mat *m[3] = {&t->w1, &t->w3, &t->w2};
    t->trunk = l->trunk;
    if (bytes != j->weights.bytes)
        return kd_fail(err, KD_ECORRUPT, "weights of %lld bytes", (long long)bytes);
    for (int i = 0; i < (l->trunk ? 1 : 3); i++) {
        int64_t rows = l->trunk ? j->rows : i == 2 ? l->in.latent : l->inter;
        int64_t cols = i == 2 ? l->inter : l->in.latent;
        *m[i] = (struct kd_mat){
            .type = j->type[i], .rows = rows, .cols = cols, .data = data, .ld = cols};
        if (j->type[i] == KD_MAT_MXFP4) {
            m[i]->ld = (cols + 1) / 2;
            m[i]->ld_scale = (cols + 31) / 32;
            m[i]->scale = data + rows * m[i]->ld;
        }
        data += kd_wire_weights_bytes(j->type[i], rows, cols);
    }
    return 0;
}

int kd_wire_hess_put(struct kd_buf *out, const struct kd_hess *h, struct kd_err *err)
{
    kd_buf_init(out, KD_WIRE_BLOB_MAX);
    for (int64_t i = 0; i < h->k_real; i++)
        kd_buf_add(out, h->h + i * h->k + i, (size_t)(h->k_real - i) * sizeof(float));
    return kd_buf_ok(out, "a Hessian", err);
}

int kd_wire_hess_get(struct kd_hess *h, const struct kd_wire_layer *l, const uint8_t *data,
                     struct kd_err *err)
{
    if (kd_hess_open(h, l->in.latent, err))
        return -1;
    for (int64_t i = 0; i < h->k_real; i++) {
        size_t n = (size_t)(h->k_real - i) * sizeof(float);
        memcpy(h->h + i * h->k + i, data, n);
        data += n;
    }
    h->rows = l->hess_rows;
    h->bad_rows = l->hess_bad_rows;
    kd_hess_close(h);
    return 0;
}

int kd_wire_routing_put(struct kd_buf *out, const struct kd_layer_inputs *in, struct kd_err *err)
{
    kd_buf_init(out, KD_WIRE_BLOB_MAX);
    uint8_t *ids = kd_buf_grow(out, (size_t)(in->T * in->topk * 2));
    if (ids)
        for (int64_t i = 0; i < in->T * in->topk; i++) {
            uint16_t id = (uint16_t)in->ids[i];
            memcpy(ids + 2 * i, &id, 2);
        }
    kd_buf_add(out, in->w, (size_t)(in->T * in->topk) * 4);
    return kd_buf_ok(out, "the routing", err);
}

int kd_wire_routing_get(int32_t **ids, float **w, const struct kd_wire_layer *l,
                        const uint8_t *data, struct kd_err *err)
{
    int64_t n = l->in.T * l->in.topk;
    *ids = NULL;
    *w = NULL;
    if (kd_mem_new(ids, n, sizeof **ids, "routing", err) ||
        kd_mem_new(w, n, sizeof **w, "routing", err)) {
        kd_mem_free(*ids);
        *ids = NULL;
        return -1;
    }
    memcpy(*w, data + 2 * n, (size_t)n * 4);
    int rc = 0;
    for (int64_t i = 0; i < n && !rc; i++) {
        uint16_t id;
        memcpy(&id, data + 2 * i, 2);
        (*ids)[i] = id;
        if (id >= l->experts || !isfinite((*w)[i]))
            rc = kd_fail(err, KD_ECORRUPT, "the routing names expert %d of %lld", id,
                         (long long)l->experts);
    }
    return rc;
}
