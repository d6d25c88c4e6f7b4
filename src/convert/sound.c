/* What of a source no conversion may carry on: values that are NaN or infinite in what stays as
 * stored (norms, biases, kept matrices), and NaN among the scales of MXFP4. The quantizer looks at
 * its own weights; of those only the head is looked at here, before hours of work and not after. */
#include "base/mem.h"
#include "convert/layer_work.h"

#include <stdatomic.h>
#include <string.h>

enum { E8M0_NAN = 255 };

struct scan {
    const struct kd_job *j;
    _Atomic int64_t first; /* lowest entry of the plan with a bad value */
    int64_t begin;         /* entry that item 0 is */
};

/* Offset of the first element whose exponent is all ones, or -1. */
static int64_t bad_16(const uint8_t *data, int64_t count, unsigned exponent)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t v;
        memcpy(&v, data + 2 * i, sizeof v);
        if ((v & exponent) == exponent)
            return i;
    }
    return -1;
}

static int64_t bad_32(const uint8_t *data, int64_t count)
{
    const uint32_t exponent = 0x7f800000u;
    for (int64_t i = 0; i < count; i++) {
        uint32_t v;
        memcpy(&v, data + 4 * i, sizeof v);
        if ((v & exponent) == exponent)
            return i;
    }
    return -1;
}

static bool is_scale(const struct kd_tensor *t)
{
    static const char end[] = ".weight_scale";
    size_t n = strlen(t->name), m = strlen(end);
    return n >= m && !strcmp(t->name + n - m, end) &&
           (t->dtype == KD_DT_U8 || t->dtype == KD_DT_F8_E8M0);
}

static int64_t first_bad(const struct kd_tensor *t)
{
    const uint8_t *hit;
    if (t->dtype == KD_DT_BF16)
        return bad_16(t->data, t->bytes / 2, 0x7f80);
    if (t->dtype == KD_DT_F16)
        return bad_16(t->data, t->bytes / 2, 0x7c00);
    if (t->dtype == KD_DT_F32)
        return bad_32(t->data, t->bytes / 4);
    hit = is_scale(t) && t->bytes ? memchr(t->data, E8M0_NAN, (size_t)t->bytes) : NULL;
    return hit ? hit - t->data : -1;
}

/* All that is kept as stored, and lm_head, whose outputs no later layer sees. Vision is carried as
 * it is. */
static bool looked_at(const struct kd_job *j, const struct kd_out_tensor *t)
{
    return t->shard <= j->cfg.layers && t->src->data &&
           (!t->quantized || (t->expert < 0 && t->layer < 0));
}

static void scan_one(void *ctx, int64_t item, int worker)
{
    struct scan *s = ctx;
    int64_t i = s->begin + item;
    const struct kd_out_tensor *t = &s->j->rates.t[i];
    (void)worker;
    if (!looked_at(s->j, t) || i > atomic_load(&s->first))
        return;
    if (first_bad(t->src) >= 0)
        for (int64_t old = atomic_load(&s->first);
             i < old && !atomic_compare_exchange_weak(&s->first, &old, i);)
            ;
    kd_map_forget(t->src->data, t->src->bytes);
}

int kd_job_sound(const struct kd_job *j, int64_t shard, struct kd_err *err)
{
    struct scan s = {.j = j};
    int64_t end = j->rates.count;
    if (shard >= 0) {
        s.begin = j->rates.shard_first[shard];
        end = j->rates.shard_first[shard + 1];
    }
    atomic_init(&s.first, j->rates.count);
    kd_pool_run(j->run->pool, end - s.begin, scan_one, &s);
    int64_t i = atomic_load(&s.first);
    if (i == j->rates.count)
        return 0;
    const struct kd_tensor *t = j->rates.t[i].src;
    return kd_fail(err, KD_ECORRUPT, "%s: element %lld is %s; the source is damaged", t->name,
                   (long long)first_bad(t), is_scale(t) ? "a NaN scale (255)" : "NaN or infinite");
}
