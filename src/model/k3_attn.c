#include "model/k3_int.h"

int kd_k3_attn_core(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                    const float *x, int64_t T, const struct kd_k3_seg *segs, int64_t seg_count,
                    float *y, struct kd_err *err)
{
    int64_t rows = 0;
    for (int64_t s = 0; s < seg_count; s++) {
        if (segs[s].count < 1 || segs[s].first != rows)
            return kd_fail(err, KD_EINVAL,
                           "segment %lld does not start where the one before it ends",
                           (long long)s);
        rows += segs[s].count;
    }
    if (rows != T)
        return kd_fail(err, KD_EINVAL, "segments cover %lld of %lld rows", (long long)rows,
                       (long long)T);
    int rc = L->mla ? kd_k3_mla_core(r, c, L, x, T, segs, seg_count, y, err)
                    : kd_k3_kda_core(r, c, L, x, T, segs, seg_count, y, err);
    return rc ? kd_wrap(err, "attention of layer %lld", (long long)L->index) : 0;
}
