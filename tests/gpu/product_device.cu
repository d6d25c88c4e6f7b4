/* Products on a device against the CPU's, and their speed beside what the device can read and
 * issue. Without a device: 77, a skip. An argument "short" leaves the times out. */
#include "gpu/device.cuh"
#include "gpu/product_check.h"

extern "C" {
#include "gpu/product.h"
}

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>

static struct kd_err err;

static void must(int rc)
{
    if (rc) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
}
static void cuda(cudaError_t rc)
{
    must(kd_gpu_failed(rc, &err, "the test"));
}
static void *device_bytes(struct kd_gpu *g, int64_t bytes)
{
    void *p;

    must(kd_gpu_alloc(g, &p, bytes, "a test", &err));
    return p;
}

static struct kd_gpu_source source_of(const fixture *f)
{
    struct kd_gpu_source s = {};

    s.type = KD_GPU_MAT_EXL3;
    s.rows = f->rows;
    s.cols = f->cols;
    s.data = f->tiles.data();
    s.ld = f->R / 16;
    s.rows_padded = f->R;
    s.cols_padded = f->C;
    s.suh = f->suh.data();
    s.svh = f->svh.data();
    s.rate = f->rate;
    s.cb = f->cb;
    return s;
}

/* y of the first T rows. */
static std::vector<float> product(struct kd_gpu *g, enum kd_gpu_class cls, const fixture *f,
                                  int64_t T)
{
    const struct kd_gpu_source s = source_of(f);
    struct kd_gpu_mat m;
    std::vector<float> y((size_t)(T * f->rows));
    void *memory = device_bytes(g, kd_gpu_mat_bytes(&s));
    float *x = (float *)device_bytes(g, T * f->C * 4),
          *out = (float *)device_bytes(g, T * f->rows * 4);

    must(kd_gpu_mat_load(g, &m, &s, memory, &err));
    must(kd_gpu_upload(g, x, f->x.data(), T * f->C * 4, &err));
    const struct kd_gpu_job job = {&m, x, f->C, out, f->rows};
    const int64_t bytes = kd_gpu_mul_scratch(&job, 1, T);
    void *scratch = device_bytes(g, bytes);
    must(kd_gpu_mul(g, cls, &job, 1, T, scratch, bytes, &err));
    must(kd_gpu_mul(g, cls, &job, 1, T, scratch, bytes, &err)); /* scratch as the first left it */
    must(kd_gpu_download(g, y.data(), out, T * f->rows * 4, &err));
    for (void *p : {memory, (void *)x, (void *)out, scratch})
        kd_gpu_release(g, p);
    return y;
}

struct shape {
    int64_t rows, cols;
};

/* Every rate with the mode for decoding: bit for bit what it is to be. */
static int hold_fast(struct kd_gpu *g, const struct kd_kern *k)
{
    static const struct shape shapes[] = {{256, 384}, {200, 300}, {128, 1664}};
    int64_t bad = 0, cases = 0;
    std::vector<float> want;
    double worst = 0;

    for (unsigned rate = 16; rate <= 128; rate++) {
        const struct shape s = shapes[rate % 3];
        fixture f;
        struct kd_run on = {};
        on.kern = k;
        fixture_make(&f, rate, KD_CB_MUL1, s.rows, s.cols, rate % 7 ? 3 : 7);
        const std::vector<float> y = product(g, KD_GPU_FAST, &f, f.T);
        for (int64_t t = 0; t < f.T; t++) {
            fast_row(&f, k, t, &want);
            bad += memcmp(want.data(), &y[(size_t)(t * f.rows)], want.size() * 4) != 0;
            cases++;
        }
        const kd_mat m = fixture_mat(&f);
        std::vector<float> exact(y.size());
        must(kd_exl3_mul(&on, &m, f.x.data(), f.C, f.T, exact.data(), f.rows, &err));
        worst = std::max(worst, relative(exact, y));
    }
    printf(
        "decoding mode, 113 rates: %lld of %lld rows differ from its definition; at most %.2g off "
        "the values' product\n",
        (long long)bad, (long long)cases, worst);
    return bad != 0 || !(worst < 4e-4);
}

/* The mode for checks: within its bound, for some rates and every codebook. */
static int hold_values(struct kd_gpu *g, const struct kd_kern *k)
{
    double worst = 0;

    for (unsigned i = 0; i < 48; i++) {
        const unsigned rate = i < 16 ? 16 + 8 * (i % 15) : 16 + (37 * i) % 113;
        fixture f;
        struct kd_run on = {};
        on.kern = k;
        fixture_make(&f, rate, (kd_codebook)(i % 3), i % 2 ? 256 : 330, i % 5 ? 640 : 2200,
                     1 + i % 17);
        const std::vector<float> y = product(g, KD_GPU_VALUES, &f, f.T);
        const kd_mat m = fixture_mat(&f);
        std::vector<float> exact(y.size());
        must(kd_exl3_mul(&on, &m, f.x.data(), f.C, f.T, exact.data(), f.rows, &err));
        worst = std::max(worst, relative(exact, y));
    }
    printf("checking mode, 48 cases: at most %.2g off\n", worst);
    return !(worst < 5e-6);
}

/* A row has the same bits whatever rows are beside it. */
static int hold_rows(struct kd_gpu *g)
{
    int64_t bad = 0;

    for (int cls = 0; cls < 2; cls++)
        for (unsigned rate : {32u, 37u, 64u}) {
            fixture f;
            fixture_make(&f, rate, KD_CB_MUL1, 640, 1408, 16);
            const std::vector<float> all = product(g, (enum kd_gpu_class)cls, &f, 16);
            for (int64_t T = 1; T < 16; T++) {
                kd_gpu_mul_limit(g, T % 3 ? 0 : 5);
                const std::vector<float> y = product(g, (enum kd_gpu_class)cls, &f, T);
                bad += memcmp(y.data(), all.data(), y.size() * 4) != 0;
            }
        }
    kd_gpu_mul_limit(g, 0);
    printf("rows alone and together: %lld of 90 calls differ\n", (long long)bad);
    return bad != 0;
}

/* What the device can do. */
__global__ void __launch_bounds__(1024) read_all(const uint4 *from, int64_t count, uint32_t *out)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t sum = 0;

    for (; i + 3 * step < count; i += 4 * step) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = __ldcs(from + i + j * step);
#pragma unroll
        for (int j = 0; j < 4; j++)
            sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (sum == 1234567)
        *out = sum;
}
/* Multiplications and byte permutations in turn, 16 x 64 of each a pass. */
__global__ void __launch_bounds__(512) issue_all(uint32_t seed, int passes, uint32_t *out)
{
    uint32_t x[16];

#pragma unroll
    for (int i = 0; i < 16; i++)
        x[i] = seed * (threadIdx.x + i);
    for (int p = 0; p < passes; p++)
#pragma unroll 8
        for (int r = 0; r < 64; r++)
#pragma unroll
            for (int i = 0; i < 16; i++)
                x[i] = __byte_perm(x[i] * 0x83DCD12Du + seed, x[(i + 1) % 16], 0x4215);
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < 16; i++)
        sum += x[i];
    if (sum == 1234567)
        *out = sum;
}

/* Seconds of one run of what `record` adds to the stream, median over `times`. */
template <class F> static double seconds(struct kd_gpu *g, int times, F record)
{
    cudaGraph_t graph;
    cudaGraphExec_t run;
    std::vector<double> took;

    cuda(cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal));
    record();
    cuda(cudaStreamEndCapture(g->stream, &graph));
    cuda(cudaGraphInstantiate(&run, graph, 0));
    for (int i = 0; i < times + 2; i++) {
        float ms;
        cuda(cudaEventRecord(g->begin, g->stream));
        cuda(cudaGraphLaunch(run, g->stream));
        cuda(cudaEventRecord(g->end, g->stream));
        cuda(cudaEventSynchronize(g->end));
        cuda(cudaEventElapsedTime(&ms, g->begin, g->end));
        if (i >= 2)
            took.push_back(ms * 1e-3);
    }
    cudaGraphExecDestroy(run);
    cudaGraphDestroy(graph);
    std::sort(took.begin(), took.end());
    return took[took.size() / 2];
}

struct limits {
    double bytes, issues; /* a second */
};

static struct limits limits_of(struct kd_gpu *g, int blocks)
{
    const int64_t size = 2ll << 30;
    const int sms = blocks ? blocks : g->facts.sms, passes = 200;
    void *memory = device_bytes(g, size);
    struct limits l;

    l.bytes = (double)size / seconds(g, 5, [&] {
                  read_all<<<2 * sms, 1024, 0, g->stream>>>((uint4 *)memory, size / 16,
                                                            (uint32_t *)memory);
              });
    l.issues = 2.0 * 16 * 64 * passes * 512 * 2 * sms / seconds(g, 5, [&] {
                   issue_all<<<2 * sms, 512, 0, g->stream>>>(3, passes, (uint32_t *)memory);
               });
    cuda(cudaGetLastError());
    kd_gpu_release(g, memory);
    printf("%d multiprocessors: %.0f GB/s read, %.3g instructions/s (a thread's)\n", sms,
           l.bytes * 1e-9, l.issues);
    return l;
}

/* Instructions a weight of the kernels' loops (cuobjdump -sass, sm_90). */
static double instructions(enum kd_gpu_class cls, unsigned rate16)
{
    if (cls == KD_GPU_VALUES)
        return rate16 == 32 ? 4.0 : 4.2;
    return rate16 == 32 ? 3.3 : rate16 == 37 ? 4.1 : rate16 == 48 ? 3.6 : 3.4;
}

static void time_one(struct kd_gpu *g, const struct limits *l, enum kd_gpu_class cls,
                     unsigned rate16, struct shape s, int64_t T)
{
    const int calls = 24;
    struct kd_gpu_source src = {};
    std::vector<struct kd_gpu_mat> mats;

    src.type = KD_GPU_MAT_EXL3;
    src.rows = src.rows_padded = s.rows;
    src.cols = src.cols_padded = s.cols;
    src.rate = kd_rate_from16(rate16);
    src.cb = KD_CB_MUL1;
    const int64_t each = kd_gpu_mat_bytes(&src), copies = (200ll << 20) / each + 2;
    char *memory = (char *)device_bytes(g, each * copies);
    mats.resize((size_t)copies);
    for (int64_t i = 0; i < copies; i++)
        must(kd_gpu_mat_make(g, &mats[(size_t)i], &src, (uint64_t)i, memory + each * i, &err));
    float *x = (float *)device_bytes(g, T * s.cols * 4),
          *y = (float *)device_bytes(g, T * s.rows * 4);
    std::vector<float> host((size_t)(T * s.cols));
    for (float &v : host)
        v = gauss();
    must(kd_gpu_upload(g, x, host.data(), T * s.cols * 4, &err));
    struct kd_gpu_job job = {&mats[0], x, s.cols, y, s.rows};
    const int64_t bytes = kd_gpu_mul_scratch(&job, 1, T);
    void *scratch = device_bytes(g, bytes);
    const double t = seconds(g, 9,
                             [&] {
                                 for (int i = 0; i < calls; i++) {
                                     job.w = &mats[(size_t)(i % copies)];
                                     must(kd_gpu_mul(g, cls, &job, 1, T, scratch, bytes, &err));
                                 }
                             }) /
                     calls;
    const double weights = (double)(s.rows * s.cols), codes = weights * rate16 / 128.0;
    const double read = codes / l->bytes, issue = weights * instructions(cls, rate16) / l->issues;
    printf(
        "%s %6.4f bits %5lld x %5lld %2lld rows: %7.2f us, %5.0f GB/s, %5.2f Tweights/s, %3.0f %% "
        "of %s\n",
        cls == KD_GPU_FAST ? "decode" : "check ", rate16 / 16.0, (long long)s.rows,
        (long long)s.cols, (long long)T, t * 1e6, codes / t * 1e-9, weights / t * 1e-12,
        100.0 * std::max(read, issue) / t, read > issue ? "bandwidth" : "issue rate");
    for (void *p : {(void *)memory, (void *)x, (void *)y, scratch})
        kd_gpu_release(g, p);
}

static void time_all(struct kd_gpu *g)
{
    static const struct shape shapes[] = {{12288, 7168}, {7168, 12288}};
    const struct limits all = limits_of(g, 0), few = limits_of(g, 48);

    for (const struct shape &s : shapes)
        for (unsigned rate : {32u, 37u, 48u, 64u})
            for (int64_t T : {1, 4, 8, 16})
                time_one(g, &all, KD_GPU_FAST, rate, s, T);
    for (unsigned rate : {32u, 64u})
        for (int64_t T : {1, 16})
            time_one(g, &all, KD_GPU_VALUES, rate, shapes[0], T);
    printf("on 48 blocks:\n");
    kd_gpu_mul_limit(g, 48);
    for (unsigned rate : {32u, 37u, 48u, 64u})
        for (int64_t T : {1, 8})
            time_one(g, &few, KD_GPU_FAST, rate, shapes[0], T);
    kd_gpu_mul_limit(g, 0);
}

int main(int argc, char **argv)
{
    struct kd_gpu *g;
    struct kd_kern k;
    int bad = 0;

    if (!kd_gpu_count()) {
        printf("no device: skipped\n");
        return 77;
    }
    must(kd_kern_pick(&k, &err));
    must(kd_gpu_open(&g, 0, &err));
    printf("%s, %d multiprocessors, %d.%d\n", kd_gpu_facts(g)->name, kd_gpu_facts(g)->sms,
           kd_gpu_facts(g)->major, kd_gpu_facts(g)->minor);
    bad |= hold_fast(g, &k);
    bad |= hold_values(g, &k);
    bad |= hold_rows(g);
    if (argc < 2 || strcmp(argv[1], "short"))
        time_all(g);
    kd_gpu_close(g);
    return bad;
}
