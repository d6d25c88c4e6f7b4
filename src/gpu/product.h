/* Matrices on a device and their products, y[t][r] = sum over k of w[r][k] x[t][k].
 *
 *     struct kd_gpu_mat w;
 *     kd_gpu_alloc(g, &memory, kd_gpu_mat_bytes(&source), "weights", err);
 *     kd_gpu_mat_load(g, &w, &source, memory, err);
 *     kd_gpu_mul(g, KD_GPU_FAST, &(struct kd_gpu_job){&w, x, ldx, y, ldy}, 1, T, scratch, bytes,
 * err);
 *
 * Products only add kernels to the device's stream: they allocate nothing, wait for nothing and may
 * be captured in a graph. x, y, ids, weights and scratch are device memory; activations are fp32.
 *
 * Row-invariant: for T <= KD_GPU_ROWS the bits of y[t] depend on x[t] and the matrix alone: not on
 * T, on the other rows, on the other jobs, nor on the number of multiprocessors. (Partial sums are
 * exact integers, or floats in one fixed order.) Above that a row has the same bits for every T >
 * KD_GPU_ROWS, not always those for fewer rows.
 *
 * Precision, relative to |x| |w| of the row (docs/numerics.md):
 *
 * - F32 has the bits of kern's mm_f32, BLOCK those of mm_block; BF16 and MXFP4 have those of
 *   mm_bf16 and mm_mxfp4 up to KD_GPU_ROWS rows and for checks. Else activations are pairs of bf16
 *   (16 bits), sums fp32.
 *
 * - EXL3, KD_GPU_VALUES: the codebook's fp16 values, activations as pairs of fp16 (22 bits). For
 *   checks.
 *
 * - EXL3, KD_GPU_FAST: for decoding. With codebook mul1 up to KD_GPU_ROWS rows: activations as
 *   16-bit integers, a step for each 1,024 inputs or fewer, values without their rounding to fp16,
 *   exact integer sums. Above: the codebook's values, activations as fp16, sums fp32. The other
 *   codebooks: as KD_GPU_VALUES. */
#ifndef KD_GPU_PRODUCT_H
#define KD_GPU_PRODUCT_H

#include "gpu/memory.h"
#include "num/block.h"

#include <stdbool.h>

enum {
    KD_GPU_ROWS = 16,        /* more rows go through the matrix units */
    KD_GPU_EXPERT_ROWS = 64, /* the same for tokens of EXL3 experts, which share each with few */
    KD_GPU_JOBS = 8          /* of one kd_gpu_mul */
};

enum kd_gpu_class { KD_GPU_VALUES, KD_GPU_FAST };

/* What a weight takes of a multiprocessor's time to issue, in a thread's instructions (128 a
 * cycle), in KD_GPU_FAST with codebook mul1 on compute capability 9.0: those of the kernels' loops
 * (cuobjdump -sass), of which a matrix instruction counts `matrix`, the others whose place it
 * takes. That binds there, not memory. 0: not counted at this rate (sixteenths) or T. */
#define KD_GPU_MUL_MATRIX 5.4 /* measured on an H200 */
static inline double kd_gpu_mul_cost(unsigned rate16, int64_t T, double matrix)
{
    static const struct {
        unsigned rate16;
        double all[3]; /* T to 4, 8, 16 */
    } loops[] = {{32, {3.28, 4.16, 5.52}},
                 {37, {3.88, 4.77, 6.12}},
                 {48, {3.92, 4.80, 6.16}},
                 {64, {3.28, 4.16, 5.52}}};

    for (int i = 0; i < 4; i++)
        if (loops[i].rate16 == rate16 && T >= 1 && T <= KD_GPU_ROWS) {
            const int sets = T <= 4 ? 1 : T <= 8 ? 2 : 4;
            return loops[i].all[sets / 2] + 0.25 * sets * (matrix - 1.0);
        }
    return 0.0;
}

enum kd_gpu_mat_type {
    KD_GPU_MAT_NONE,
    KD_GPU_MAT_F32,
    KD_GPU_MAT_BF16,
    KD_GPU_MAT_MXFP4,
    KD_GPU_MAT_EXL3,
    KD_GPU_MAT_BLOCK /* ggml's blocks, of one value: none */
};

/* A matrix in host memory, with the meanings of struct kd_mat (kern/mat.h). */
struct kd_gpu_source {
    enum kd_gpu_mat_type type;
    int64_t rows, cols;   /* outputs, inputs */
    const void *data;     /* F32, BF16 values; MXFP4 packed codes; EXL3 tiles */
    int64_t ld;           /* F32, BF16: elements between rows; MXFP4: bytes between packed rows;
                             EXL3: tiles between tile rows; BLOCK: bytes between rows */
    const uint8_t *scale; /* MXFP4 */
    int64_t ld_scale;
    int64_t rows_padded, cols_padded; /* EXL3, as the vectors */
    const uint16_t *suh, *svh;
    struct kd_rate rate;
    enum kd_codebook cb;
    const struct kd_block_format *format; /* BLOCK; cols are whole blocks */
};

/* A matrix in device memory, which it borrows; plain data, free to copy. EXL3 codes lie in an order
 * of their own there (gpu/product_codes.cuh). */
struct kd_gpu_mat {
    enum kd_gpu_mat_type type;
    int64_t rows, cols;
    int64_t rows_padded, cols_padded; /* EXL3 only */
    const void *data;
    const uint8_t *scale;      /* MXFP4 */
    const uint16_t *suh, *svh; /* EXL3 */
    struct kd_rate rate;
    enum kd_codebook cb;
    const struct kd_block_format *format; /* BLOCK; in the host's memory */
};

/* Device memory that a matrix takes, a multiple of 256; -1 for a type or shape that is not known.
 */
int64_t kd_gpu_mat_bytes(const struct kd_gpu_source *s);
/* Into `memory` (aligned to 256, kd_gpu_mat_bytes()), in stream order. The source's memory as for
 * kd_gpu_upload. Not during a capture. */
int kd_gpu_mat_load(struct kd_gpu *g, struct kd_gpu_mat *m, const struct kd_gpu_source *s,
                    void *memory, struct kd_err *err) KD_MUST;
/* The same matrix, with the random but valid codes of `seed` made on the device (tests and timing;
 * s->data, scale, suh, svh are not read). */
int kd_gpu_mat_make(struct kd_gpu *g, struct kd_gpu_mat *m, const struct kd_gpu_source *s,
                    uint64_t seed, void *memory, struct kd_err *err) KD_MUST;

/* y[t*ldy + r] for r < w->rows, from x[t*ldx + k], k < w->cols. Jobs run side by side in one launch
 * where they are of one type, so y of one may not be x of another. ldx a multiple of 4, x aligned
 * to 16. */
struct kd_gpu_job {
    const struct kd_gpu_mat *w;
    const float *x;
    int64_t ldx;
    float *y;
    int64_t ldy;
};
/* Scratch bytes that kd_gpu_mul needs for these jobs (pointers to activations are not read). One
 * scratch may serve any number of calls one after the other; it must have been zeros once (as
 * kd_gpu_alloc gives it), and what a product leaves there serves the next. */
int64_t kd_gpu_mul_scratch(const struct kd_gpu_job *jobs, int count, int64_t T);
int kd_gpu_mul(struct kd_gpu *g, enum kd_gpu_class cls, const struct kd_gpu_job *jobs, int count,
               int64_t T, void *scratch, int64_t scratch_bytes, struct kd_err *err) KD_MUST;

/* Products use at most so many blocks at a time from now on, 0: as many as fit (to see what a
 * smaller device would do). No bits change. */
void kd_gpu_mul_limit(struct kd_gpu *g, int blocks);

/* The routed experts of one layer: for each token t and its list of experts ids[t][0..top),
 *
 *     y[t] = sum over j, by ascending id, of weight[t][j] * (w2 situ(w1 x[t], w3 x[t]))
 *
 * one fma each, starting from +0 (situ: docs/numerics.md). An id of -1 is no expert; an id that
 * occurs twice in a list counts twice, in the list's order. All experts are EXL3, MXFP4 or BLOCK;
 * a rate or format may differ for every matrix, the shapes and the codebook may not. Row-invariant
 * as products are, with KD_GPU_EXPERT_ROWS for EXL3. */
struct kd_gpu_experts;
struct kd_gpu_experts_shape {
    int64_t experts;     /* ids 0 .. experts - 1, at most 1,024 */
    int64_t cols, inner; /* of w1 and w3: inner x cols; of w2: cols x inner */
    int64_t tokens, top; /* at most so many of a call: up to 8,192; up to 32 */
};
/* Makes the table and work space for calls, all of it here. Several layers of one shape may share
 * the work space of the first (`share`, NULL for none), which must be closed last. */
int kd_gpu_experts_open(struct kd_gpu_experts **out, struct kd_gpu *g,
                        const struct kd_gpu_experts_shape *shape, struct kd_gpu_experts *share,
                        struct kd_err *err) KD_MUST;
void kd_gpu_experts_close(struct kd_gpu_experts *e);
/* Device bytes that kd_gpu_experts_open takes with and without `share`. */
int64_t kd_gpu_experts_bytes(const struct kd_gpu_experts_shape *shape, bool shared);
/* What the ids first .. first + count - 1 are, in stream order; m holds w1, w3, w2 of each. Takes
 * effect for graphs captured before, too. */
int kd_gpu_experts_set(struct kd_gpu_experts *e, int64_t first, int64_t count,
                       const struct kd_gpu_mat (*m)[3], struct kd_err *err) KD_MUST;
struct kd_gpu_experts_call {
    const float *x; /* [T][ldx], aligned to 16, ldx a multiple of 4 */
    int64_t ldx, T;
    const int32_t *ids;  /* [T][top] */
    const float *weight; /* [T][top] */
    int64_t top;
    float beta, linear; /* of situ */
    float *y;           /* [T][ldy] */
    int64_t ldy;
    /* NULL, or [cols]: y[t] is kd_gpu_k3_norm's of that sum, which must be as it wants rows; ldy
     * is cols. */
    const float *norm;
    float eps;
};
int kd_gpu_experts_mul(struct kd_gpu_experts *e, enum kd_gpu_class cls,
                       const struct kd_gpu_experts_call *c, struct kd_err *err) KD_MUST;

#endif
