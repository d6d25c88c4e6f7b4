/* What the .cu files of products share. Kernels of one mode are compiled apart, as each holds code
 * for every rate. */
#ifndef KD_GPU_PRODUCT_CUH
#define KD_GPU_PRODUCT_CUH

#include "gpu/device.cuh"
#include "gpu/product_experts.cuh"

extern "C" {
#include "gpu/product.h"
}

typedef void (*kd_tasks_kernel)(kd_experts::tasks_args);

/* For up to 4 rows of a task, 8, 16. */
kd_tasks_kernel kd_gpu_tasks_fast4(void);
kd_tasks_kernel kd_gpu_tasks_fast8(void);
kd_tasks_kernel kd_gpu_tasks_fast16(void);
kd_tasks_kernel kd_gpu_tasks_values(bool mul1);

/* Bytes between rows of an F32, BF16, MXFP4 or BLOCK matrix on a device, and of MXFP4's scales:
 * pieces of 16 and of 4 bytes can be read from every row on. */
static inline int64_t kd_gpu_stored_bytes(enum kd_gpu_mat_type type, int64_t cols,
                                          const struct kd_block_format *format)
{
    return type == KD_GPU_MAT_F32     ? cols * 4
           : type == KD_GPU_MAT_BF16  ? cols * 2
           : type == KD_GPU_MAT_BLOCK ? cols / format->elems * format->bytes
                                      : cols / 2;
}
static inline int64_t kd_gpu_row_bytes(enum kd_gpu_mat_type type, int64_t cols,
                                       const struct kd_block_format *format)
{
    return (kd_gpu_stored_bytes(type, cols, format) + 15) / 16 * 16;
}
static inline int64_t kd_gpu_scale_bytes(int64_t cols)
{
    return (cols / 32 + 3) / 4 * 4;
}

/* Matrices as kernels see them. */
static inline kd_exl3::matrix kd_gpu_matrix(const struct kd_gpu_mat *m)
{
    return {(const uint32_t *)m->data,
            m->suh,
            m->svh,
            (int32_t)m->rows,
            (int32_t)m->cols,
            (int32_t)(m->cols_padded / kd_codes::SIDE),
            (int32_t)(m->rows_padded / kd_codes::SIDE),
            (int32_t)kd_rate_to16(m->rate),
            (int32_t)m->cb,
            kd_exl3::cut_of((int)(m->cols_padded / kd_codes::SIDE))};
}
static inline kd_plain::matrix kd_gpu_plain_matrix(const struct kd_gpu_mat *m)
{
    const bool blocks = m->type == KD_GPU_MAT_BLOCK;

    return {(const uint8_t *)m->data,
            m->scale,
            kd_gpu_row_bytes(m->type, m->cols, m->format),
            kd_gpu_scale_bytes(m->cols),
            (int32_t)m->rows,
            (int32_t)m->cols,
            blocks ? (int32_t)m->format->kind : 0,
            blocks ? (int32_t)m->format->elems : 1,
            blocks ? (int32_t)m->format->bytes : 0};
}

/* An expert's, of which only those of its type are there: others have no inputs to cut. */
static inline kd_experts::entry kd_gpu_expert(const struct kd_gpu_mat m[3])
{
    kd_experts::entry e = {};

    for (int i = 0; i < 3; i++)
        if (m[i].type == KD_GPU_MAT_EXL3)
            e.exl3[i] = kd_gpu_matrix(&m[i]);
        else
            e.plain[i] = kd_gpu_plain_matrix(&m[i]);
    return e;
}

/* What is common to the tasks of one launch with EXL3 matrices. */
struct kd_gpu_plan {
    kd_tasks_kernel kernel;
    int packed;       /* the mode's */
    int rows, groups; /* of a task, of the launch */
    int slots;        /* blocks that run at a time */
};
struct kd_gpu_plan kd_gpu_plan_of(struct kd_gpu *g, enum kd_gpu_class cls, enum kd_codebook cb,
                                  int64_t rows);
static inline int64_t kd_gpu_plan_shared(const struct kd_gpu_plan *p, int warps, int units)
{
    return kd_exl3::shared_bytes(p->packed, p->rows, warps, units);
}
/* Cuts of a matrix's units so that all its tasks fill `slots` blocks, or a multiple of them, and
 * each task's sums fit shared memory. */
int kd_gpu_ranges(const struct kd_gpu_plan *p, int64_t tasks_each, int units, double slots);
/* Units that a task of p->rows rows may have. */
int kd_gpu_units_most(const struct kd_gpu_plan *p);

/* Up to 16 rows from row `from` on, of jobs that have one type: F32, BF16 or MXFP4. */
int kd_gpu_mul_plain(struct kd_gpu *g, const struct kd_gpu_job *jobs, int count, int64_t from,
                     int64_t rows, struct kd_err *err);
/* Any number of rows of F32 jobs. */
int kd_gpu_mul_f32(struct kd_gpu *g, const struct kd_gpu_job *jobs, int count, int64_t T,
                   struct kd_err *err);

/* A launch that may begin before the one ahead of it in the stream is done; such a kernel waits by
 * itself (kd_launch_wait). */
int kd_gpu_launch(struct kd_gpu *g, const void *kernel, int64_t blocks, int threads, int64_t shared,
                  void **arguments, const char *what, struct kd_err *err);

#endif
