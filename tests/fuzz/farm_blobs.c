/* The blobs of any claim, made of any bytes, a zero byte between the two: refused, or ids of the
 * layer's experts with finite weights, a Hessian, and matrices that lie in their blob. */
#include "base/assert.h"
#include "base/mem.h"
#include "farm/wire.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOB_MAX = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* A blob of exactly so many bytes: the input's over and over. */
static uint8_t *blob(int64_t size, const uint8_t *data, size_t bytes)
{
    uint8_t *out = malloc((size_t)size);
    KD_ASSERT(out);
    for (int64_t i = 0; i < size; i++)
        out[i] = bytes ? data[i % (int64_t)bytes] : 0;
    return out;
}

static void routing(const struct kd_wire_layer *l, const uint8_t *data, size_t bytes)
{
    uint8_t *b = blob(l->routing.bytes, data, bytes);
    int32_t *ids;
    float *w;
    struct kd_err err;
    if (!kd_wire_routing_get(&ids, &w, l, b, &err))
        for (int64_t i = 0; i < l->in.T * l->in.topk; i++)
            KD_ASSERT(ids[i] >= 0 && ids[i] < l->experts && isfinite(w[i]));
    kd_mem_free(ids);
    kd_mem_free(w);
    free(b);
}

static void hessian(const struct kd_wire_layer *l, const uint8_t *data, size_t bytes)
{
    uint8_t *b = blob(l->hess.bytes, data, bytes);
    struct kd_hess h;
    struct kd_err err;
    KD_ASSERT(!kd_wire_hess_get(&h, l, b, &err) && h.k_real == l->in.latent);
    kd_hess_release(&h);
    free(b);
}

static void weights(const struct kd_wire_layer *l, const struct kd_wire_job *j, const uint8_t *data,
                    size_t bytes)
{
    uint8_t *b = blob(j->weights.bytes, data, bytes);
    const uint8_t *end = b + j->weights.bytes;
    struct kd_farm_task t = {0};
    const struct kd_mat *const m[3] = {&t.w1, &t.w3, &t.w2};
    struct kd_err err;
    KD_ASSERT(!kd_wire_weights_get(&t, l, j, b, j->weights.bytes, &err));
    for (int i = 0; i < (l->trunk ? 1 : 3); i++) {
        const uint8_t *at = m[i]->data;
        int64_t size = kd_wire_weights_bytes(m[i]->type, m[i]->rows, m[i]->cols);
        KD_ASSERT(at >= b && m[i]->rows > 0 && m[i]->cols > 0 && size <= end - at);
        if (m[i]->type == KD_MAT_MXFP4)
            KD_ASSERT(m[i]->scale + m[i]->rows * m[i]->ld_scale == at + size);
    }
    free(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct kd_wire_claim c;
    const uint8_t *zero = bytes ? memchr(data, 0, bytes) : NULL;
    size_t n = zero ? (size_t)(zero - data) : bytes, left = zero ? bytes - n - 1 : 0;
    struct kd_err err;
    if (kd_wire_claim_read(&c, (const char *)data, n, &err) || !c.count)
        return 0;
    if (c.layer.hess.bytes && c.layer.hess.bytes <= BLOB_MAX)
        hessian(&c.layer, data + bytes - left, left);
    if (!c.layer.trunk && c.layer.routing.bytes <= BLOB_MAX)
        routing(&c.layer, data + bytes - left, left);
    for (int64_t i = 0; i < c.count; i++)
        if (c.job[i].weights.bytes <= BLOB_MAX)
            weights(&c.layer, &c.job[i], data + bytes - left, left);
    return 0;
}
