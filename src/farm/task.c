#include "farm/task.h"

#include "base/parts.h"

#include <string.h>

static int encode_tensor(const struct kd_run *run, const struct kd_farm_task *t, struct kd_buf *out,
                         struct kd_err *err)
{
    struct kd_quant_out q;
    if (kd_quant_tensor(run, &t->w1, t->hess, &t->spec[0], &q, err))
        return -1;
    const struct kd_quant_out *one = &q;
    int rc = kd_unit_bytes(out, t->digest, &one, 1, NULL, err);
    kd_quant_release(&q);
    return rc;
}

int kd_farm_quantize(const struct kd_run *run, const struct kd_layer_inputs *in,
                     const struct kd_farm_task *t, struct kd_buf *out, struct kd_err *err)
{
    struct kd_expert_out q;
    kd_buf_init(out, 0);
    if (t->trunk)
        return encode_tensor(run, t, out, err);
    int was = kd_scope_enter(KD_SCOPE_EXPERT, KD_PART_FORWARD);
    int bad = kd_expert_quantize(run, t->expert, &t->w1, &t->w3, &t->w2, in, t->spec, &q, err);
    kd_part_leave(was);
    if (bad)
        return -1;
    struct kd_unit_info info = {.routed_rows = q.routed_rows,
                                .few_rows = q.fallback,
                                .all_token_hessian = q.all_token_hessian,
                                .plain_won = t->plain_won};
    memcpy(info.hess_digest, q.hess_digest, sizeof q.hess_digest);
    const struct kd_quant_out *three[] = {&q.w1, &q.w3, &q.w2};
    int rc = kd_unit_bytes(out, t->digest, three, 3, &info, err);
    kd_expert_release(&q);
    return rc;
}
