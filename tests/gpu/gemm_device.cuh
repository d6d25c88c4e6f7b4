/* gpu_product_device: products of many rows. */
#ifndef KD_TESTS_GPU_GEMM_DEVICE_CUH
#define KD_TESTS_GPU_GEMM_DEVICE_CUH

#include "gpu/experts_device.cuh"

/* y of the first T rows of x. */
static std::vector<float> many_product(struct kd_gpu *g, enum kd_gpu_class cls,
                                       const struct kd_gpu_mat *m, const float *x, int64_t ldx,
                                       int64_t T)
{
    loaded l(g);
    const struct kd_gpu_job job = {m, x, ldx, (float *)l.get(4 * T * m->rows), m->rows};
    const int64_t bytes = kd_gpu_mul_scratch(&job, 1, T);
    void *scratch = l.get(bytes);

    for (int again = 0; again < 2; again++)
        must(kd_gpu_mul(g, cls, &job, 1, T, scratch, bytes, &err));
    return l.floats(job.y, T * m->rows);
}

/* Within the class's bound of the CPU, and bits that are the same for every T > KD_GPU_ROWS, on
 * fewer blocks too. */
static int64_t hold_bits(struct kd_gpu *g, enum kd_gpu_class cls, const struct kd_gpu_mat *m,
                         const float *x, int64_t ldx, const std::vector<float> &all)
{
    int64_t bad = 0;

    for (int64_t T : {17, 64, 129}) {
        kd_gpu_mul_limit(g, T == 64 ? 5 : 0);
        bad += differ(many_product(g, cls, m, x, ldx, T).data(), all.data(), T * m->rows) != 0;
    }
    kd_gpu_mul_limit(g, 0);
    return bad;
}

static int hold_many(struct kd_gpu *g, const struct kd_kern *k)
{
    static const struct {
        unsigned rate;
        enum kd_codebook cb;
        int64_t rows, cols;
    } coded[] = {
        {32, KD_CB_MUL1, 640, 2200}, {37, KD_CB_MUL1, 200, 1300}, {42, KD_CB_MUL1, 256, 640},
        {48, KD_CB_MUL1, 128, 128},  {64, KD_CB_MUL1, 256, 384},  {96, KD_CB_MUL1, 256, 384},
        {128, KD_CB_MUL1, 128, 640}, {101, KD_CB_MUL1, 128, 640}, {17, KD_CB_MUL1, 128, 640},
        {32, KD_CB_MCG, 330, 640},   {64, KD_CB_3INST, 128, 640}, {37, KD_CB_MCG, 128, 384}};
    const int64_t T = 300;
    double worst[2] = {}, plain = 0;
    int64_t bad = 0;

    for (const auto &c : coded)
        for (int cls = 0; cls < 2; cls++) {
            fixture f;
            struct kd_run on = {};
            loaded l(g);
            on.kern = k;
            fixture_make(&f, c.rate, c.cb, c.rows, c.cols, T);
            const struct kd_gpu_source s = source_of(&f);
            const struct kd_gpu_mat w = l.load(&s);
            const float *x = l.copy(f.x);
            const std::vector<float> y = many_product(g, (enum kd_gpu_class)cls, &w, x, f.C, T);
            const kd_mat m = fixture_mat(&f);
            std::vector<float> want(y.size());
            must(kd_mat_mul(&on, &m, f.x.data(), f.C, T, want.data(), f.rows, &err));
            const double off = relative(want, y);
            const bool exact = cls == KD_GPU_VALUES || c.cb != KD_CB_MUL1;
            worst[exact] = std::max(worst[exact], off);
            bad += hold_bits(g, (enum kd_gpu_class)cls, &w, x, f.C, y);
        }
    for (int type = KD_GPU_MAT_BF16; type <= KD_GPU_MAT_MXFP4; type++)
        for (int64_t cols : {1088, 96}) {
            plain_fixture f;
            loaded l(g);
            plain_make(&f, (enum kd_gpu_mat_type)type, 333, cols);
            const struct kd_gpu_mat w = l.load(&f.s);
            const std::vector<float> x = noise(T * cols);
            const float *on = l.copy(x);
            const std::vector<float> y = many_product(g, KD_GPU_FAST, &w, on, cols, T);
            std::vector<float> want(y.size());
            plain_want(k, &f.s, x.data(), cols, T, want.data());
            plain = std::max(plain, relative(want, y));
            bad += hold_bits(g, KD_GPU_FAST, &w, on, cols, y);
        }
    printf(
        "many rows: decoding at most %.2g, checks %.2g, BF16 and MXFP4 %.2g off; %lld calls with "
        "other numbers of rows differ\n",
        worst[0], worst[1], plain, (long long)bad);
    return bad || !(worst[0] < 4e-4) || !(worst[1] < 5e-6) || !(plain < 1e-5);
}

static void time_many_one(struct kd_gpu *g, enum kd_gpu_class cls, enum kd_gpu_mat_type type,
                          unsigned rate16, int64_t rows, int64_t cols, std::vector<int64_t> tokens)
{
    static const char *const names[] = {"", "F32", "BF16", "MXFP4", "EXL3"};
    struct kd_gpu_source s = {};
    std::vector<struct kd_gpu_mat> m;
    loaded on(g);

    s.type = type;
    s.rows = s.rows_padded = rows;
    s.cols = s.cols_padded = cols;
    s.rate = kd_rate_from16(rate16);
    s.cb = KD_CB_MUL1;
    const int64_t each = kd_gpu_mat_bytes(&s), copies = (120ll << 20) / each + 1;
    for (int64_t i = 0; i < copies; i++) {
        m.push_back({});
        must(kd_gpu_mat_make(g, &m.back(), &s, (uint64_t)i, on.get(each), &err));
    }
    printf("%s %-5s %6.4f bits %6lld x %5lld:", cls == KD_GPU_FAST ? "decode" : "check ",
           names[type], type == KD_GPU_MAT_EXL3 ? rate16 / 16.0 : 0.0, (long long)rows,
           (long long)cols);
    const int64_t most = tokens.back();
    const float *x = on.copy(noise(most * cols));
    float *y = (float *)on.get(4 * most * rows);
    for (int64_t T : tokens) {
        struct kd_gpu_job job = {&m[0], x, cols, y, rows};
        const int64_t bytes = kd_gpu_mul_scratch(&job, 1, T);
        loaded work(g);
        void *scratch = work.get(bytes);
        const int calls = T > 512 ? 3 : 12;
        const double t = seconds(g, 5,
                                 [&] {
                                     for (int i = 0; i < calls; i++) {
                                         job.w = &m[(size_t)(i % copies)];
                                         must(kd_gpu_mul(g, cls, &job, 1, T, scratch, bytes, &err));
                                     }
                                 }) /
                         calls;
        printf("  %lld: %.0f us %.0f", (long long)T, t * 1e6,
               2.0 * (double)(T * rows * cols) / t * 1e-12);
    }
    printf("\n");
}

static void time_many(struct kd_gpu *g, const struct limits *l, bool quick)
{
    const std::vector<int64_t> all = {32, 64, 128, 512, 2048};

    printf("many rows: microseconds and TFLOP/s\n");
    time_many_one(g, KD_GPU_FAST, KD_GPU_MAT_EXL3, 32, 12288, 7168, all);
    time_many_one(g, KD_GPU_FAST, KD_GPU_MAT_EXL3, 37, 12288, 7168, all);
    time_many_one(g, KD_GPU_FAST, KD_GPU_MAT_EXL3, 32, 7168, 12288, all);
    time_many_one(g, KD_GPU_FAST, KD_GPU_MAT_EXL3, 32, 3584, 7168, all);
    time_many_one(g, KD_GPU_FAST, KD_GPU_MAT_EXL3, 37, 1536, 7168, all);
    time_many_one(g, KD_GPU_FAST, KD_GPU_MAT_EXL3, 48, 12288, 7168, {64, 512});
    time_many_one(g, KD_GPU_FAST, KD_GPU_MAT_EXL3, 64, 12288, 7168, {64, 512});
    time_many_one(g, KD_GPU_FAST, KD_GPU_MAT_EXL3, 96, 12288, 7168, {64, 512});
    time_many_one(g, KD_GPU_VALUES, KD_GPU_MAT_EXL3, 32, 12288, 7168, {64, 512});
    time_many_one(g, KD_GPU_VALUES, KD_GPU_MAT_EXL3, 37, 12288, 7168, {64, 512});
    time_many_one(g, KD_GPU_FAST, KD_GPU_MAT_BF16, 0, 12288, 7168, {64, 512, 2048});
    time_many_one(g, KD_GPU_FAST, KD_GPU_MAT_MXFP4, 0, 12288, 7168, {64, 512, 2048});
    time_many_one(g, KD_GPU_FAST, KD_GPU_MAT_F32, 0, 896, 7168, {32, 64, 512, 2048});
    time_experts(g, l, KD_GPU_MAT_EXL3, 32, 42,
                 {-16, -32, 32, -64, 64, -128, 128, 129, 512, 2048, 4096});
    if (!quick)
        time_experts(g, l, KD_GPU_MAT_MXFP4, 32, 32, {64, 512, 4096});
}

#endif
