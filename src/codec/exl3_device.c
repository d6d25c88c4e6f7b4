/* The parts of quantizing a tensor that a device does: same operations, same order, same bits
 * (gpu/encode.h). */
#include "codec/exl3_work.h"

int kd_exl3_device_open(struct kd_exl3_work *q, struct kd_err *err)
{
    if (!q->run->encoder)
        return 0;
    struct kd_gpu_tensor_shape shape = {.k = q->k,
                                        .n = q->n,
                                        .rate = q->spec->rate,
                                        .cb = q->spec->cb,
                                        .seam = q->spec->recipe.seam,
                                        .square = q->l != NULL};
    return kd_gpu_tensor_open(&q->device, q->run->encoder, &shape, err);
}

int kd_exl3_device_ldlq(struct kd_exl3_work *q, bool feedback, double *mse, struct kd_err *err)
{
    struct kd_gpu_ldlq job = {.feedback = feedback, .codes = q->codes};
    if ((feedback && kd_gpu_tensor_put(q->device, KD_GPU_L, q->l, err)) ||
        kd_gpu_tensor_put(q->device, KD_GPU_ROTATED, q->r, err) ||
        kd_gpu_tensor_ldlq(q->device, &job, err) ||
        kd_gpu_tensor_get(q->device, KD_GPU_VALUES, q->t, err))
        return -1;
    *mse = job.sum / (double)(q->k * q->n);
    return 0;
}
