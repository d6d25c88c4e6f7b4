/* Products with F32, BF16 and MXFP4 matrices and those of ggml's blocks: the launches. */
#include "gpu/product.cuh"
#include "gpu/product_f32.cuh"

using namespace kd_plain;

namespace
{

template <type TYPE, int TOKENS, int EACH>
int launch(struct kd_gpu *g, dense_args *a, struct kd_err *err)
{
    using s = shape<TYPE, TOKENS, EACH>;
    const int64_t limit = g->product_blocks;
    void *arguments[] = {a};

    for (int j = 0; j < a->jobs; j++) {
        a->job[j].first = a->tasks;
        a->tasks += (a->job[j].w.rows + s::rows - 1) / s::rows;
    }
    return kd_gpu_launch(g, (const void *)multiply_plain<TYPE, TOKENS, EACH>,
                         limit > 0 && limit < a->tasks ? limit : a->tasks, s::threads, s::memory,
                         arguments, "a product", err);
}

/* In tiles of several rows, if those are enough for all multiprocessors. */
template <type TYPE, int TOKENS>
int launch_tiles(struct kd_gpu *g, dense_args *a, struct kd_err *err)
{
    if constexpr (shape<TYPE, TOKENS, 1>::tiled) {
        int64_t rows = 0;
        for (int j = 0; j < a->jobs; j++)
            rows += a->job[j].w.rows;
        constexpr int each = tile_rows<TYPE, TOKENS>;
        if (rows >= (int64_t)g->facts.sms * shape<TYPE, TOKENS, each>::rows)
            return launch<TYPE, TOKENS, each>(g, a, err);
    }
    return launch<TYPE, TOKENS, 1>(g, a, err);
}

template <type TYPE> int launch_type(struct kd_gpu *g, dense_args *a, struct kd_err *err)
{
    return a->tokens <= 1   ? launch_tiles<TYPE, 1>(g, a, err)
           : a->tokens <= 2 ? launch_tiles<TYPE, 2>(g, a, err)
           : a->tokens <= 4 ? launch_tiles<TYPE, 4>(g, a, err)
           : a->tokens <= 8 ? launch_tiles<TYPE, 8>(g, a, err)
                            : launch_tiles<TYPE, 16>(g, a, err);
}

struct dense_args args_of(const struct kd_gpu_job *jobs, int count, int64_t from, int64_t rows)
{
    dense_args a = {};

    a.jobs = count;
    a.tokens = (int32_t)rows;
    for (int i = 0; i < count; i++)
        a.job[i] = {kd_gpu_plain_matrix(jobs[i].w),
                    jobs[i].x + from * jobs[i].ldx,
                    jobs[i].y + from * jobs[i].ldy,
                    jobs[i].ldx,
                    jobs[i].ldy,
                    0};
    return a;
}

} // namespace

int kd_gpu_mul_plain(struct kd_gpu *g, const struct kd_gpu_job *jobs, int count, int64_t from,
                     int64_t rows, struct kd_err *err)
{
    dense_args a = args_of(jobs, count, from, rows);

    switch (jobs[0].w->type) {
    case KD_GPU_MAT_F32:
        return launch_type<F32>(g, &a, err);
    case KD_GPU_MAT_BF16:
        return launch_type<BF16>(g, &a, err);
    case KD_GPU_MAT_BLOCK:
        return launch_type<BLOCK>(g, &a, err);
    default:
        return launch_type<MXFP4>(g, &a, err);
    }
}

int kd_gpu_mul_f32(struct kd_gpu *g, const struct kd_gpu_job *jobs, int count, int64_t T,
                   struct kd_err *err)
{
    const int64_t limit = g->product_blocks;
    dense_args a = args_of(jobs, count, 0, T);
    void *arguments[] = {&a};

    for (int j = 0; j < count; j++) {
        const int64_t tasks = (a.job[j].w.rows + kd_f32::OUTS - 1ll) / kd_f32::OUTS *
                              ((T + kd_f32::ROWS - 1) / kd_f32::ROWS);
        if (tasks > INT32_MAX - a.tasks)
            return kd_fail(err, KD_EINVAL, "a product with too many outputs");
        a.job[j].first = a.tasks;
        a.tasks += (int32_t)tasks;
    }
    return kd_gpu_launch(g, (const void *)kd_f32::multiply_f32,
                         limit > 0 && limit < a.tasks ? limit : a.tasks, kd_f32::THREADS,
                         kd_f32::STAGES * kd_f32::STAGE_BYTES, arguments, "a product", err);
}
