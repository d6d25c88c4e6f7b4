/* Products of many rows: which kernels, in which grids. */
#include "gpu/product_gemm_host.cuh"
#include "gpu/product_rows.cuh"

using namespace kd_gemm;

namespace
{

enum {
    PIECE = 1024,     /* rows of one launch, half as many where activations have two planes */
    TARGET = 132,     /* blocks that a matrix is cut into where it has fewer outputs */
    CHUNK_BLOCKS = 8, /* of inputs of a chunk, at least */
    ALIGN = 256
};

int64_t whole(int64_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}
int blocks_of(int64_t n)
{
    return (int)((n + SIDE - 1) / SIDE);
}

/* How the inputs are cut: an even number of blocks of 128 each, so that both sets of warps have
 * as many. */
struct cut {
    int32_t chunks, blocks;
};
struct cut cut_of(int ins, int outs)
{
    int n = TARGET / outs;

    n = n > ins / CHUNK_BLOCKS ? ins / CHUNK_BLOCKS : n;
    n = n < 1 ? 1 : n;
    const int blocks = ((ins + n - 1) / n + 1) / 2 * 2;
    return {(ins + blocks - 1) / blocks, blocks};
}

/* The parts of scratch that a job of `rows` rows in one launch needs. */
int64_t x_bytes(const struct kd_gpu_mat *w, int64_t rows, int planes)
{
    return whole_rows(rows) * 128 * 2 * blocks_of(w->cols) * planes;
}
int64_t part_bytes(const struct kd_gpu_mat *w, int64_t rows)
{
    const struct cut c = cut_of(blocks_of(w->cols), blocks_of(w->rows));

    return c.chunks > 1 ? 4 * rows * c.chunks * blocks_of(w->rows) * SIDE : 0;
}

template <class A>
int launch(struct kd_gpu *g, void (*kernel)(A), int64_t blocks, int64_t shared, A *a,
           struct kd_err *err)
{
    void *arguments[] = {a};

    return kd_gpu_launch(g, (const void *)kernel, blocks, THREADS, shared, arguments,
                         "a product of many rows", err);
}

/* The kind for so many rows of these. */
const struct kd_gemm_kind *kind_for(const struct kd_gemm_kind *kind, const struct kd_gpu_job *jobs,
                                    int count, int64_t rows)
{
    bool narrow = kind->narrow && rows <= NARROW_ROWS;

    for (int i = 0; narrow && i < count; i++)
        narrow = (int)kd_rate_to16(jobs[i].w->rate) <= NARROW_RATE;
    return narrow ? kind->narrow : kind;
}

} // namespace

int kd_gpu_gemm_launch(struct kd_gpu *g, const struct kd_gemm_kind *kind, kd_gemm::tasks_args *a,
                       int64_t tasks, struct kd_err *err)
{
    const int64_t all = (int64_t)kind->blocks * g->facts.sms;
    const int64_t most = g->product_blocks > 0 && g->product_blocks < all ? g->product_blocks : all;
    void *arguments[] = {a};

    return kd_gpu_launch(g, (const void *)kind->kernel, tasks < most ? tasks : most, THREADS,
                         shared_of(kind->tokens), arguments, "a product of many rows", err);
}

const struct kd_gemm_kind *kd_gpu_gemm_kind(enum kd_gpu_class cls, enum kd_gpu_mat_type type,
                                            enum kd_codebook cb)
{
    if (type == KD_GPU_MAT_EXL3)
        return cls == KD_GPU_FAST && cb == KD_CB_MUL1 ? kd_gpu_gemm_fast()
                                                      : kd_gpu_gemm_values(cb == KD_CB_MUL1);
    if (cls != KD_GPU_FAST)
        return NULL;
    return type == KD_GPU_MAT_BF16    ? kd_gemm_kind_of<plain_kind<kd_plain::BF16>>(NULL)
           : type == KD_GPU_MAT_MXFP4 ? kd_gemm_kind_of<plain_kind<kd_plain::MXFP4>>(NULL)
                                      : NULL;
}

int64_t kd_gpu_gemm_scratch(const struct kd_gpu_mat *w, int64_t T)
{
    const int64_t rows = T < PIECE ? T : (int64_t)PIECE, two = T < PIECE / 2 ? T : PIECE / 2;
    const int64_t one = w->type == KD_GPU_MAT_EXL3 ? x_bytes(w, rows, 1) : 0,
                  both = x_bytes(w, two, 2);

    if (w->type == KD_GPU_MAT_F32 || w->type == KD_GPU_MAT_BLOCK)
        return 0;
    return whole(one > both ? one : both) + whole(4 * rows) + whole(part_bytes(w, rows));
}

int kd_gpu_gemm(struct kd_gpu *g, const struct kd_gemm_kind *kind, const struct kd_gpu_job *jobs,
                int count, int64_t T, void *scratch, struct kd_err *err)
{
    const int64_t most = PIECE / kind->planes;

    for (int64_t from = 0; from < T; from += most) {
        const int64_t rows = T - from < most ? T - from : most;
        const struct kd_gemm_kind *some = kind_for(kind, jobs, count, rows);
        char *at = (char *)scratch;
        kd_gemm::tasks_args all = {};
        dense_args &a = all.dense;
        bool parts = false;
        a.jobs = count;
        a.rows = (int32_t)rows;
        a.planes = kind->planes;
        for (int i = 0; i < count; i++) {
            const struct kd_gpu_mat *w = jobs[i].w;
            dense_job *j = &a.job[i];
            if (w->type == KD_GPU_MAT_EXL3)
                j->w = kd_gpu_matrix(w);
            else
                j->plain = kd_gpu_plain_matrix(w);
            j->from = jobs[i].x + from * jobs[i].ldx;
            j->ldx = jobs[i].ldx;
            j->y = jobs[i].y + from * jobs[i].ldy;
            j->ldy = jobs[i].ldy;
            j->ins = blocks_of(w->cols);
            j->outs = blocks_of(w->rows);
            const struct cut c = cut_of(j->ins, j->outs);
            j->chunks = c.chunks;
            j->blocks = c.blocks;
            j->first = a.tasks;
            a.tasks += (int32_t)((rows + some->tokens - 1) / some->tokens) * c.chunks * j->outs;
            j->x = (unsigned char *)at;
            at += whole(x_bytes(w, rows, kind->planes));
            j->scale = (float *)at;
            at += whole(4 * rows);
            j->part = (float *)at;
            at += whole(part_bytes(w, rows));
            parts |= c.chunks > 1;
        }
        if (launch(g, prepare_dense, count * rows, 64, &a, err) ||
            kd_gpu_gemm_launch(g, some, &all, a.tasks, err) ||
            (parts && launch(g, finish_dense, 4 * g->facts.sms, 0, &a, err)))
            return -1;
    }
    return 0;
}
