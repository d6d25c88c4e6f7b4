/* Any bytes as the head of a GGUF that says what it was cut from: refused, or ids inside its
 * source, and what is written of it is read again as the same. */
#include "base/assert.h"
#include "slice/record.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int read_head(struct kd_slice_record *r, const void *head, size_t bytes, bool *found,
                     bool *intact)
{
    struct kd_gguf_part part = {0};
    struct kd_heads h = {.gguf = true, .set = {.parts = &part, .part_count = 1}};
    struct kd_err err;
    *found = false;
    if (kd_gguf_parse(&part.head, head, (int64_t)bytes, -1, "fuzz", NULL, &err))
        return -1;
    int rc = kd_slice_record_read(r, &h, found, intact, &err);
    KD_ASSERT(!rc || (err.code == KD_ECORRUPT && err.msg[0]));
    kd_gguf_release(&part.head);
    return rc;
}

static void write_again(const struct kd_slice_record *r)
{
    struct kd_slice_record again;
    struct kd_gguf_plan p;
    struct kd_buf head, a, b;
    struct kd_err err;
    bool found, intact;
    kd_gguf_plan_init(&p);
    kd_buf_init(&head, KD_GGUF_HEAD_MAX);
    kd_buf_init(&a, 64 << 20);
    kd_buf_init(&b, 64 << 20);
    KD_ASSERT(!kd_slice_record_keys(&p, r, &err));
    if (!kd_gguf_plan_head(&p, &head, &err)) {
        KD_ASSERT(!read_head(&again, head.data, head.size_bytes, &found, &intact) && found &&
                  intact);
        KD_ASSERT(!kd_slice_record_json(&a, r, &err) && !kd_slice_record_json(&b, &again, &err));
        KD_ASSERT(a.size_bytes == b.size_bytes && !memcmp(a.data, b.data, a.size_bytes));
        kd_slice_record_release(&again);
    }
    kd_gguf_plan_release(&p);
    kd_buf_release(&head);
    kd_buf_release(&a);
    kd_buf_release(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_slice_record r;
    bool found, intact;
    if (read_head(&r, data, bytes, &found, &intact) || !found)
        return 0;
    for (int64_t i = 0; i < r.layer_count; i++)
        KD_ASSERT(r.layers_kept[i] >= 0 && r.layers_kept[i] < r.layers);
    for (int64_t i = 0; i < r.lists * r.expert_count; i++)
        KD_ASSERT(r.experts_kept[i] >= 0 && r.experts_kept[i] < r.experts);
    write_again(&r);
    kd_slice_record_release(&r);
    return 0;
}
