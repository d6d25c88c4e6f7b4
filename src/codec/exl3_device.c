/* The parts of quantizing a tensor that a device does: same operations, same order, same bits
 * (gpu/encode.h). */
#include "codec/exl3_work.h"

int kd_exl3_device_open(struct kd_exl3_work *q, struct kd_err *err)
{
    struct kd_gpu_tensor_shape shape = {.k = q->k,
                                        .n = q->n,
                                        .rate = q->spec->rate,
                                        .cb = q->spec->cb,
                                        .seam = q->spec->recipe.seam,
                                        .square = q->h != NULL};
    if (!q->run->encoder)
        return 0;
    return kd_gpu_tensor_open(&q->device, q->run->encoder, &shape, err) ||
                   kd_gpu_tensor_put(q->device, KD_GPU_WEIGHTS, q->w, err) ||
                   (q->h && kd_gpu_tensor_put(q->device, KD_GPU_HESSIAN, q->h->h, err))
               ? -1
               : 0;
}

int kd_exl3_device_rotate(struct kd_exl3_work *q, float *out, struct kd_err *err)
{
    return kd_gpu_tensor_rotate(q->device, q->su, q->sv, err) ||
                   (out && kd_gpu_tensor_get(q->device, KD_GPU_ROTATED, out, err))
               ? -1
               : 0;
}

int kd_exl3_device_ldlq(struct kd_exl3_work *q, bool feedback, double *mse, struct kd_err *err)
{
    struct kd_gpu_ldlq job = {.feedback = feedback, .codes = q->codes};
    if (kd_gpu_tensor_ldlq(q->device, &job, err))
        return -1;
    *mse = job.sum / (double)(q->k * q->n);
    return 0;
}
