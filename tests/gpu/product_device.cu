/* Products on a device against the CPU's, and their speed beside what the device can read and
 * issue. Without a device: 77, a skip. An argument "short" leaves the times out, "quick" most of
 * the cases and times, "profile" all but three products (for a profiler); "many": products of many
 * rows alone; "plain": those of F32, BF16 and MXFP4. */
#include "gpu/gemm_device.cuh"

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
    must(kd_gpu_mul(g, cls, &job, 1, 0, scratch, bytes, &err)); /* no rows: nothing */
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
static int hold_fast(struct kd_gpu *g, const struct kd_kern *k, bool quick)
{
    static const struct shape shapes[] = {{256, 384}, {200, 300}, {128, 1664}};
    int64_t bad = 0, cases = 0;
    std::vector<float> want;
    double worst = 0;

    for (unsigned rate = 16; rate <= 128; rate += quick ? 7 : 1) {
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
        must(kd_mat_mul(&on, &m, f.x.data(), f.C, f.T, exact.data(), f.rows, &err));
        worst = std::max(worst, relative(exact, y));
    }
    printf("decoding mode: %lld of %lld rows differ from its definition; at most %.2g off "
           "the values' product\n",
           (long long)bad, (long long)cases, worst);
    return bad != 0 || !(worst < 4e-4);
}

/* The mode for checks: within its bound, for some rates and every codebook. */
static int hold_values(struct kd_gpu *g, const struct kd_kern *k, bool quick)
{
    double worst = 0;

    for (unsigned i = 0; i < (quick ? 12 : 48); i++) {
        const unsigned rate = i < 16 ? 16 + 8 * (i % 15) : 16 + (37 * i) % 113;
        fixture f;
        struct kd_run on = {};
        on.kern = k;
        fixture_make(&f, rate, (kd_codebook)(i % 3), i % 2 ? 256 : 330, i % 5 ? 640 : 2200,
                     1 + i % 17);
        const std::vector<float> y = product(g, KD_GPU_VALUES, &f, f.T);
        const kd_mat m = fixture_mat(&f);
        std::vector<float> exact(y.size());
        must(kd_mat_mul(&on, &m, f.x.data(), f.C, f.T, exact.data(), f.rows, &err));
        worst = std::max(worst, relative(exact, y));
    }
    printf("checking mode: at most %.2g off\n", worst);
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

/* Instructions a weight of the kernels' loops, a matrix instruction as those whose place it takes.
 * For checks: two sets of rows, and a matrix instruction to add bytes up. */
static double instructions(const struct limits *l, enum kd_gpu_class cls, unsigned rate16,
                           int64_t T)
{
    return cls == KD_GPU_VALUES ? (rate16 == 32 ? 4.0 : 4.2) + 0.75 * (l->matrix - 1.0)
                                : kd_gpu_mul_cost(rate16, T, l->matrix);
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
    const double read = codes / l->bytes,
                 issue = weights * instructions(l, cls, rate16, T) / l->issues;
    printf(
        "%s %6.4f bits %5lld x %5lld %2lld rows: %7.2f us, %5.0f GB/s, %5.2f Tweights/s, %3.0f %% "
        "of %s\n",
        cls == KD_GPU_FAST ? "decode" : "check ", rate16 / 16.0, (long long)s.rows,
        (long long)s.cols, (long long)T, t * 1e6, codes / t * 1e-9, weights / t * 1e-12,
        100.0 * std::max(read, issue) / t, read > issue ? "bandwidth" : "issue rate");
    for (void *p : {(void *)memory, (void *)x, (void *)y, scratch})
        kd_gpu_release(g, p);
}

/* The three products that a profiler is to look at, twice each. */
static void profile(struct kd_gpu *g)
{
    static const struct {
        unsigned rate;
        int64_t T;
    } three[] = {{32, 1}, {37, 1}, {32, 8}};

    for (const auto &p : three) {
        struct kd_gpu_source s = {};
        struct kd_gpu_mat m;
        loaded on(g);
        s.type = KD_GPU_MAT_EXL3;
        s.rows = s.rows_padded = 12288;
        s.cols = s.cols_padded = 7168;
        s.rate = kd_rate_from16(p.rate);
        s.cb = KD_CB_MUL1;
        must(kd_gpu_mat_make(g, &m, &s, 1, on.get(kd_gpu_mat_bytes(&s)), &err));
        const struct kd_gpu_job job = {&m, on.copy(noise(p.T * s.cols)), s.cols,
                                       (float *)on.get(4 * p.T * s.rows), s.rows};
        const int64_t bytes = kd_gpu_mul_scratch(&job, 1, p.T);
        void *scratch = on.get(bytes);
        for (int i = 0; i < 2; i++)
            must(kd_gpu_mul(g, KD_GPU_FAST, &job, 1, p.T, scratch, bytes, &err));
        must(kd_gpu_wait(g, &err));
    }
}

static void time_plains(struct kd_gpu *g, const struct limits *l)
{
    for (int64_t T : {1, 2, 4, 8, 16}) {
        time_plain(g, l, KD_GPU_MAT_BF16, 12288, 7168, T);
        time_plain(g, l, KD_GPU_MAT_MXFP4, 12288, 7168, T);
    }
    for (int64_t T : {1, 4, 8, 16}) {
        time_plain(g, l, KD_GPU_MAT_BF16, 896, 7168, T);
        time_plain(g, l, KD_GPU_MAT_F32, 896, 7168, T);
    }
    time_plain(g, l, KD_GPU_MAT_BF16, 163840, 7168, 1);
    time_plain(g, l, KD_GPU_MAT_BF16, 163840, 7168, 16);
}

static void time_all(struct kd_gpu *g, bool quick)
{
    static const struct shape shapes[] = {{12288, 7168}, {7168, 12288}};
    const struct limits all = limits_of(g, 0), few = limits_of(g, 48);

    for (const struct shape &s : shapes)
        for (unsigned rate : {32u, 37u, 48u, 64u})
            for (int64_t T : {1, 4, 8, 16})
                if (!quick || (s.rows == 12288 && rate < 48))
                    time_one(g, &all, KD_GPU_FAST, rate, s, T);
    for (unsigned rate : {32u, 64u})
        for (int64_t T : {1, 16})
            if (!quick)
                time_one(g, &all, KD_GPU_VALUES, rate, shapes[0], T);
    time_plains(g, &all);
    time_experts(g, &all, KD_GPU_MAT_EXL3, 32, 32, {1, 8, 64});
    if (!quick) {
        time_experts(g, &all, KD_GPU_MAT_EXL3, 32, 42, {1, 8, 64});
        time_experts(g, &all, KD_GPU_MAT_MXFP4, 32, 32, {1, 8});
    }
    time_many(g, &all, quick);
    printf("on 48 blocks:\n");
    kd_gpu_mul_limit(g, 48);
    for (unsigned rate : {32u, 37u, 48u, 64u})
        for (int64_t T : {1, 8})
            if (!quick || rate == 32)
                time_one(g, &few, KD_GPU_FAST, rate, shapes[0], T);
    kd_gpu_mul_limit(g, 0);
}

int main(int argc, char **argv)
{
    const bool quick = argc > 1 && !strcmp(argv[1], "quick");
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
    if (argc > 1 && !strcmp(argv[1], "profile")) {
        profile(g);
        kd_gpu_close(g);
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "many")) {
        bad |= hold_many(g, &k) | hold_plain(g, &k) | hold_experts(g, &k, false);
        const struct limits all = limits_of(g, 0);
        time_many(g, &all, false);
        kd_gpu_close(g);
        return bad;
    }
    if (argc > 1 && !strcmp(argv[1], "plain")) {
        bad |= hold_plain(g, &k);
        const struct limits all = limits_of(g, 0);
        time_plains(g, &all);
        kd_gpu_close(g);
        return bad;
    }
    bad |= hold_fast(g, &k, quick);
    bad |= hold_values(g, &k, quick);
    bad |= hold_plain(g, &k);
    bad |= hold_experts(g, &k, quick);
    bad |= hold_rows(g) | hold_many(g, &k);
    if (argc < 2 || strcmp(argv[1], "short"))
        time_all(g, quick);
    kd_gpu_close(g);
    return bad;
}
