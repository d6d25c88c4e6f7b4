/* The parts of quantizing a tensor that a device does: same operations, same order, same bits
 * (gpu/encoder.h). */
#include "codec/exl3_work.h"

#include "base/mem.h"
#include "kern/mat_source.h"

static int open_tensor(struct kd_exl3_work *q, struct kd_err *err)
{
    struct kd_gpu_tensor_shape shape = {.k = q->k,
                                        .n = q->n,
                                        .rate = q->spec->rate,
                                        .cb = q->spec->cb,
                                        .seam = q->spec->recipe.seam,
                                        .square = q->h != NULL,
                                        .hessian = q->h ? q->h->shared : NULL};
    return kd_gpu_tensor_open(&q->device, q->run->encoder, &shape, err) ||
                   (q->h && !q->h->shared &&
                    kd_gpu_tensor_put(q->device, KD_GPU_PART_HESSIAN, q->h->h, err))
               ? -1
               : 0;
}

/* A matrix that the device does not read, as floats. */
static int put_floats(struct kd_exl3_work *q, const struct kd_mat *w, bool *finite,
                      struct kd_err *err)
{
    float *x;
    if (kd_mem_new(&x, w->rows * w->cols, sizeof *x, "weights", err))
        return -1;
    const struct kd_gpu_source s = {
        .type = KD_GPU_MAT_F32, .rows = w->rows, .cols = w->cols, .data = x, .ld = w->cols};
    int rc = kd_mat_dequant(q->run, w, x, w->cols, err) ||
             kd_gpu_tensor_load(q->device, &s, finite, err);
    kd_mem_free(x);
    return rc ? -1 : 0;
}

int kd_exl3_device_load(struct kd_exl3_work *q, const struct kd_mat *w, bool *finite,
                        struct kd_err *err)
{
    const struct kd_gpu_source s = kd_mat_source(w);
    if (open_tensor(q, err))
        return -1;
    return s.type == KD_GPU_MAT_EXL3 || s.type == KD_GPU_MAT_NONE
               ? put_floats(q, w, finite, err)
               : kd_gpu_tensor_load(q->device, &s, finite, err);
}

int kd_exl3_device_ldlq(struct kd_exl3_work *q, bool feedback, double *mse, struct kd_err *err)
{
    struct kd_gpu_ldlq job = {.feedback = feedback, .codes = q->codes};
    if (kd_gpu_tensor_ldlq(q->device, &job, err))
        return -1;
    *mse = job.sum / (double)(q->k * q->n);
    return 0;
}
