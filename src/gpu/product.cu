/* Products on a device: which kernels, in which grids. */
#include "gpu/product_gemm_host.cuh"

namespace
{

using namespace kd_exl3;

enum {
    COUNTERS = 65536,       /* at the start of scratch */
    SUMS_BYTES = 39 << 10,  /* of a task's sums in shared memory, at most */
    SHARED_MOST = 99 << 10, /* what every device gives a block */
    ROWS_MOST = 1 << 20,    /* of a product; kernels count in 32 bits */
    KEYS = KD_GPU_MAT_BLOCK + 2
};

int64_t job_floats(const struct kd_gpu_mat *w, int64_t rows)
{
    const int ins = (int)(w->cols_padded / SIDE);

    return rows * cut_of(ins).chunks * w->rows_padded;
}

int check(const struct kd_gpu_job *jobs, int count, int64_t T, struct kd_err *err)
{
    if (count < 1 || count > KD_GPU_JOBS || T < 0 || T > ROWS_MOST)
        return kd_fail(err, KD_EINVAL, "%d products of %lld rows at once", count, (long long)T);
    for (int i = 0; i < count; i++) {
        if (jobs[i].ldx % 4 || (uintptr_t)jobs[i].x % 16)
            return kd_fail(err, KD_EINVAL, "activations of a product that are not aligned");
        if (jobs[i].w->type == KD_GPU_MAT_NONE)
            return kd_fail(err, KD_EINVAL, "a product with no matrix");
    }
    return 0;
}

/* Up to KD_GPU_ROWS rows of EXL3 jobs that one kernel serves. */
int mul_exl3(struct kd_gpu *g, enum kd_gpu_class cls, const struct kd_gpu_job *jobs, int count,
             int64_t rows, void *scratch, struct kd_err *err)
{
    const struct kd_gpu_plan p = kd_gpu_plan_of(g, cls, jobs[0].w->cb, rows);
    kd_experts::tasks_args all = {};
    dense_args &a = all.dense;
    int64_t work = 0, floats = 0, counters = 0, shared = 0;

    for (int i = 0; i < count; i++)
        work += jobs[i].w->rows_padded * jobs[i].w->cols_padded;
    for (int i = 0; i < count; i++) {
        const struct kd_gpu_mat *w = jobs[i].w;
        dense_job *j = &a.job[i];
        j->w = kd_gpu_matrix(w);
        j->x = jobs[i].x;
        j->y = jobs[i].y;
        j->ldx = jobs[i].ldx;
        j->ldy = jobs[i].ldy;
        j->sums = floats;
        j->counter = (int32_t)counters;
        j->first = a.tasks;
        const int units = j->w.outs * UNITS, each = j->w.cut.chunks * p.groups;
        j->units =
            spread_of(kd_gpu_ranges(&p, each, units,
                                    p.slots * ((double)w->rows_padded * w->cols_padded / work)),
                      units);
        a.tasks += each * j->units.ranges;
        floats += job_floats(w, rows);
        counters += (int64_t)p.groups * p.rows * j->w.outs;
        const int64_t s = kd_gpu_plan_shared(&p, j->w.cut.warps, spread_most(j->units));
        shared = s > shared ? s : shared;
    }
    if (counters > COUNTERS)
        return kd_fail(err, KD_EINVAL, "a product with too many outputs");
    a.jobs = count;
    a.rows = (int32_t)rows;
    a.group = p.rows;
    a.counter = (int32_t *)scratch;
    a.sums = (float *)scratch + COUNTERS;
    void *arguments[] = {&all};
    return kd_gpu_launch(g, (const void *)p.kernel, a.tasks < p.slots ? a.tasks : p.slots,
                         32 * WARPS, shared, arguments, "a product", err);
}

/* Jobs of one key share launches. */
int key_of(const struct kd_gpu_mat *w)
{
    return w->type == KD_GPU_MAT_EXL3 && w->cb != KD_CB_MUL1 ? KEYS - 1 : (int)w->type;
}

int mul_key(struct kd_gpu *g, enum kd_gpu_class cls, const struct kd_gpu_job *jobs, int count,
            int64_t T, void *scratch, struct kd_err *err)
{
    const struct kd_gpu_mat *w = jobs[0].w;
    const struct kd_gemm_kind *kind =
        T > KD_GPU_ROWS ? kd_gpu_gemm_kind(cls, w->type, w->cb) : NULL;

    if (kind)
        return kd_gpu_gemm(g, kind, jobs, count, T, (int32_t *)scratch + COUNTERS, err);
    if (w->type == KD_GPU_MAT_EXL3)
        return mul_exl3(g, cls, jobs, count, T, scratch, err);
    if (w->type == KD_GPU_MAT_F32 && T > KD_GPU_ROWS)
        return kd_gpu_mul_f32(g, jobs, count, T, err);
    for (int64_t t = 0; t < T; t += KD_GPU_ROWS)
        if (kd_gpu_mul_plain(g, jobs, count, t, T - t < KD_GPU_ROWS ? T - t : (int)KD_GPU_ROWS,
                             err))
            return -1;
    return 0;
}

} // namespace

int kd_gpu_units_most(const struct kd_gpu_plan *p)
{
    const int64_t left = SHARED_MOST - kd_gpu_plan_shared(p, WARPS, 0);

    return (int)((left < SUMS_BYTES ? left : (int)SUMS_BYTES) / (4 * ROW_STRIDE * p->rows));
}

struct kd_gpu_plan kd_gpu_plan_of(struct kd_gpu *g, enum kd_gpu_class cls, enum kd_codebook cb,
                                  int64_t rows)
{
    struct kd_gpu_plan p = {};
    int shared = 0, most = fast<4>::rows;

    if (cls != KD_GPU_FAST || cb != KD_CB_MUL1) {
        p.kernel = kd_gpu_tasks_values(cb == KD_CB_MUL1);
        most = values<2, true>::rows;
    } else if (rows <= fast<1>::rows) {
        p.kernel = kd_gpu_tasks_fast4();
        p.packed = fast<1>::packed;
    } else if (rows <= fast<2>::rows) {
        p.kernel = kd_gpu_tasks_fast8();
        p.packed = fast<2>::packed;
    } else {
        p.kernel = kd_gpu_tasks_fast16();
        p.packed = fast<4>::packed;
    }
    p.rows = rows < most ? (int)rows : most;
    p.groups = (int)((rows + most - 1) / most);
    cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor, g->index);
    const int64_t block = kd_gpu_plan_shared(&p, WARPS, kd_gpu_units_most(&p)) + 1024;
    p.slots = (shared >= 2 * block ? 2 : 1) * g->facts.sms;
    if (g->product_blocks > 0 && g->product_blocks < p.slots)
        p.slots = g->product_blocks;
    return p;
}

int kd_gpu_ranges(const struct kd_gpu_plan *p, int64_t tasks_each, int units, double slots)
{
    int ranges = (int)(slots / (double)tasks_each), most = kd_gpu_units_most(p);

    ranges = ranges < 1 ? 1 : ranges > units ? units : ranges;
    for (int times = 2; (units + ranges - 1) / ranges > most; times++) {
        ranges = (int)(times * slots / (double)tasks_each);
        ranges = ranges < 1 ? 1 : ranges > units ? units : ranges;
    }
    return ranges;
}

int kd_gpu_launch(struct kd_gpu *g, const void *kernel, int64_t blocks, int threads, int64_t shared,
                  void **arguments, const char *what, struct kd_err *err)
{
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t c = {};

    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3((unsigned)blocks);
    c.blockDim = dim3((unsigned)threads);
    c.dynamicSmemBytes = (size_t)shared;
    c.stream = g->stream;
    c.attrs = &early;
    c.numAttrs = g->facts.major >= 9; /* others know no early starts */
    if (shared > 48 << 10 &&
        kd_gpu_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           shared > SHARED_MOST ? (int)shared : (int)SHARED_MOST),
                      err, what))
        return -1;
    if (kd_gpu_failed(cudaLaunchKernelExC(&c, kernel, arguments), err, what))
        return -1;
    kd_gpu_mark(g, what);
    return 0;
}

extern "C" void kd_gpu_mul_limit(struct kd_gpu *g, int blocks)
{
    g->product_blocks = blocks;
}

extern "C" int64_t kd_gpu_mul_scratch(const struct kd_gpu_job *jobs, int count, int64_t T)
{
    int64_t bytes = 0;

    for (int i = 0; i < count; i++)
        if (T > KD_GPU_ROWS)
            bytes += kd_gpu_gemm_scratch(jobs[i].w, T);
        else if (jobs[i].w->type == KD_GPU_MAT_EXL3)
            bytes += 4 * job_floats(jobs[i].w, T);
    return 4 * COUNTERS + bytes;
}

extern "C" int kd_gpu_mul(struct kd_gpu *g, enum kd_gpu_class cls, const struct kd_gpu_job *jobs,
                          int count, int64_t T, void *scratch, int64_t scratch_bytes,
                          struct kd_err *err)
{
    if (check(jobs, count, T, err) ||
        kd_gpu_failed(cudaSetDevice(g->index), err, "choosing the device"))
        return -1;
    if (scratch_bytes < kd_gpu_mul_scratch(jobs, count, T))
        return kd_fail(err, KD_EINVAL, "a product with %lld bytes of scratch, not %lld",
                       (long long)scratch_bytes, (long long)kd_gpu_mul_scratch(jobs, count, T));
    for (int key = 0; T > 0 && key < KEYS; key++) {
        struct kd_gpu_job some[KD_GPU_JOBS];
        int n = 0;
        for (int i = 0; i < count; i++)
            if (key_of(jobs[i].w) == key)
                some[n++] = jobs[i];
        if (n && mul_key(g, cls, some, n, T, scratch, err))
            return -1;
    }
    return 0;
}
