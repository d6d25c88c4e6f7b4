#include "kern/mat_source.h"

struct kd_gpu_source kd_mat_source(const struct kd_mat *w)
{
    static const enum kd_gpu_mat_type types[] = {
        [KD_MAT_NONE] = KD_GPU_MAT_NONE, [KD_MAT_F32] = KD_GPU_MAT_F32,
        [KD_MAT_BF16] = KD_GPU_MAT_BF16, [KD_MAT_MXFP4] = KD_GPU_MAT_MXFP4,
        [KD_MAT_EXL3] = KD_GPU_MAT_EXL3, [KD_MAT_BLOCK] = KD_GPU_MAT_NONE};
    return (struct kd_gpu_source){.type = types[w->type],
                                  .rows = w->rows,
                                  .cols = w->cols,
                                  .data = w->data,
                                  .ld = w->ld,
                                  .scale = w->scale,
                                  .ld_scale = w->ld_scale,
                                  .rows_padded = w->rows_padded,
                                  .cols_padded = w->cols_padded,
                                  .suh = w->suh,
                                  .svh = w->svh,
                                  .rate = w->rate,
                                  .cb = w->cb};
}
