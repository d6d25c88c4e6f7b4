/* What the .cu files of products of many rows share. Kernels of one kind are compiled apart, as
 * each holds code for every rate. */
#ifndef KD_GPU_PRODUCT_GEMM_HOST_CUH
#define KD_GPU_PRODUCT_GEMM_HOST_CUH

#include "gpu/product.cuh"
#include "gpu/product_many.cuh"

struct kd_gemm_kind {
    void (*kernel)(kd_gemm::tasks_args);
    int planes, tokens, blocks;        /* blocks: that share a multiprocessor */
    const struct kd_gemm_kind *narrow; /* for up to NARROW_ROWS rows, or NULL */
};
template <class KIND>
static inline const struct kd_gemm_kind *kd_gemm_kind_of(const struct kd_gemm_kind *narrow)
{
    static const struct kd_gemm_kind k = {kd_gemm::multiply_tasks<KIND>, KIND::planes, KIND::tokens,
                                          KIND::blocks, narrow};
    return &k;
}
const struct kd_gemm_kind *kd_gpu_gemm_fast(void);
const struct kd_gemm_kind *kd_gpu_gemm_narrow(void);
const struct kd_gemm_kind *kd_gpu_gemm_values(bool mul1);
/* NULL: a matrix of this type has no products of many rows in this class. */
const struct kd_gemm_kind *kd_gpu_gemm_kind(enum kd_gpu_class cls, enum kd_gpu_mat_type type,
                                            enum kd_codebook cb);

/* Scratch for one of the jobs of a call; all of a call have one kind. */
int64_t kd_gpu_gemm_scratch(const struct kd_gpu_mat *w, int64_t T);
int kd_gpu_gemm(struct kd_gpu *g, const struct kd_gemm_kind *kind, const struct kd_gpu_job *jobs,
                int count, int64_t T, void *scratch, struct kd_err *err);

/* Starts a kind's kernel for `tasks` tasks (more than there are if only the device knows). */
int kd_gpu_gemm_launch(struct kd_gpu *g, const struct kd_gemm_kind *kind, kd_gemm::tasks_args *a,
                       int64_t tasks, struct kd_err *err);

/* Work space of routed experts for many tokens. */
struct kd_gemm_space {
    kd_gemm::many_lists l;
    unsigned char *x;
    float *scale, *y;
    int32_t rows, slab; /* places that there is room for, those of a slab */
};
/* Its parts, from `at` on (NULL only counts); returns their bytes. */
int64_t kd_gpu_gemm_place(struct kd_gemm_space *s, const struct kd_gpu_experts_shape *shape,
                          char *at);
struct kd_gemm_experts {
    const kd_experts::entry *table;
    const struct kd_gemm_kind *kind;
    const struct kd_gemm_space *space;
    const struct kd_gpu_experts_shape *shape;
    bool coded;
};
int kd_gpu_gemm_experts(struct kd_gpu *g, const struct kd_gemm_experts *e,
                        const struct kd_gpu_experts_call *c, struct kd_err *err);

#endif
