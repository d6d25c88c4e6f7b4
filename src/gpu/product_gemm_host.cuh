/* What the .cu files of products of many rows share. Kernels of one kind are compiled apart, as
 * each holds code for every rate. */
#ifndef KD_GPU_PRODUCT_GEMM_HOST_CUH
#define KD_GPU_PRODUCT_GEMM_HOST_CUH

#include "gpu/product.cuh"
#include "gpu/product_many.cuh"

struct kd_gemm_kind {
    void (*dense)(kd_gemm::dense_args);
    void (*experts)(kd_gemm::half_args);
    int planes, tokens;
};
template <class KIND> static inline const struct kd_gemm_kind *kd_gemm_kind_of(void)
{
    static const struct kd_gemm_kind k = {
        kd_gemm::multiply_dense<KIND>, kd_gemm::multiply_experts<KIND>, KIND::planes, KIND::tokens};
    return &k;
}
const struct kd_gemm_kind *kd_gpu_gemm_fast(void);
const struct kd_gemm_kind *kd_gpu_gemm_values(bool mul1);
/* NULL: a matrix of this type has no products of many rows in this class. */
const struct kd_gemm_kind *kd_gpu_gemm_kind(enum kd_gpu_class cls, enum kd_gpu_mat_type type,
                                            enum kd_codebook cb);

/* Scratch for one of the jobs of a call; all of a call have one kind. */
int64_t kd_gpu_gemm_scratch(const struct kd_gpu_mat *w, int64_t T);
int kd_gpu_gemm(struct kd_gpu *g, const struct kd_gemm_kind *kind, const struct kd_gpu_job *jobs,
                int count, int64_t T, void *scratch, struct kd_err *err);

/* Blocks of a launch of `tasks`: one a multiprocessor. */
static inline int64_t kd_gpu_gemm_blocks(const struct kd_gpu *g, int64_t tasks)
{
    const int64_t most = g->product_blocks > 0 && g->product_blocks < g->facts.sms
                             ? g->product_blocks
                             : g->facts.sms;

    return tasks < most ? tasks : most;
}

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
