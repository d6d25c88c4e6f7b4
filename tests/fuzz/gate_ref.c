/* Any bytes as a saved reference, its digest made right so that what is behind it is reached:
 * refused, or every section lies in the file and every id in its table. */
#include "base/assert.h"
#include "base/hash.h"
#include "fuzz/files.h"
#include "gate/ref.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static uint32_t sum(const void *data, int64_t count)
{
    const uint8_t *at = data;
    uint32_t s = 0, v;
    for (int64_t i = 0; i < count; i++) {
        memcpy(&v, at + 4 * i, 4);
        s += v;
    }
    return s;
}

static void use(const struct kd_ref *r)
{
    const struct kd_ref_head *h = r->head;
    int64_t n = h->rows * h->cols;
    const uint8_t *end = r->map.data + r->map.size_bytes;
    struct kd_k3_cfg cfg = {.hidden = h->hidden};
    struct kd_err err;
    volatile uint32_t s = 0;
    for (int64_t l = 0; l < h->layers; l++) {
        const int32_t *ids;
        const float *margin, *stream;
        kd_ref_layer(r, l, &ids, &margin, &stream);
        KD_ASSERT(!ids == (l < h->dense_layers) && !ids == !margin);
        if (ids)
            s += sum(ids, n * h->topk) + sum(margin, n);
        s += sum(stream, h->samples * h->hidden);
    }
    s += sum(r->lm_head.data, h->vocab * h->hidden * (h->head_type == KD_MAT_F32 ? 4 : 2) / 4);
    s += sum(r->hidden, n * h->hidden);
    KD_ASSERT((const uint8_t *)(r->hidden + n * h->hidden) + 64 == end);
    for (int64_t i = 0; i < n; i++)
        KD_ASSERT(r->ids[i] >= 0 && r->ids[i] < h->vocab && r->doc[i] >= 0 && r->doc[i] < h->docs &&
                  r->special + i < end);
    KD_ASSERT(strlen(h->name) < sizeof h->name);
    KD_ASSERT(kd_ref_fits(r, &cfg, &err) && err.code == KD_EINVAL); /* no model has no layers */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_ref r;
    struct kd_err err;
    char hex[65];
    uint8_t *copy = malloc(bytes + 1);
    KD_ASSERT(copy);
    memcpy(copy, data, bytes);
    if (bytes >= 64 && !kd_sha256_of(copy, bytes - 64, hex, &err))
        memcpy(copy + bytes - 64, hex, 64);
    if (!kd_ref_open(&r, fuzz_file("ref", copy, bytes), &err)) {
        use(&r);
        kd_ref_close(&r);
    } else {
        KD_ASSERT(err.code == KD_ECORRUPT && err.msg[0]);
    }
    free(copy);
    return 0;
}
