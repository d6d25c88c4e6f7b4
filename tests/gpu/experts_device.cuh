/* gpu_product_device: F32, BF16 and MXFP4 matrices, calls with several types, routed experts. */
#ifndef KD_TESTS_GPU_EXPERTS_DEVICE_CUH
#define KD_TESTS_GPU_EXPERTS_DEVICE_CUH

#include "gpu/product_device.cuh"

/* A matrix of a plain type in host memory, with more than needed between its rows. */
struct plain_fixture {
    struct kd_gpu_source s;
    std::vector<uint8_t> data, scale;
};
static void plain_make(plain_fixture *f, enum kd_gpu_mat_type type, int64_t rows, int64_t cols)
{
    const int64_t ld = type == KD_GPU_MAT_MXFP4 ? cols / 2 + 3 : cols + 5;
    const int64_t bytes = type == KD_GPU_MAT_F32 ? 4 : type == KD_GPU_MAT_BF16 ? 2 : 1;

    f->data.resize((size_t)(rows * ld * bytes));
    for (int64_t i = 0; i < rows * ld; i++) {
        const float v = gauss();
        if (type == KD_GPU_MAT_F32)
            memcpy(&f->data[(size_t)(4 * i)], &v, 4);
        else if (type == KD_GPU_MAT_BF16)
            ((uint16_t *)f->data.data())[i] = kd_f32_bf16(v);
        else
            f->data[(size_t)i] = (uint8_t)bits();
    }
    f->s = {};
    f->s.type = type;
    f->s.rows = rows;
    f->s.cols = cols;
    f->s.data = f->data.data();
    f->s.ld = ld;
    if (type == KD_GPU_MAT_MXFP4) {
        f->s.ld_scale = cols / 32 + 1;
        f->scale.resize((size_t)(rows * f->s.ld_scale));
        for (uint8_t &b : f->scale)
            b = (uint8_t)(118 + bits() % 6);
        f->s.scale = f->scale.data();
    }
}
static void plain_want(const struct kd_kern *k, const struct kd_gpu_source *s, const float *x,
                       int64_t ldx, int64_t T, float *y)
{
    if (s->type == KD_GPU_MAT_F32)
        k->mm_f32((const float *)s->data, s->ld, s->rows, s->cols, x, ldx, T, y, s->rows);
    else if (s->type == KD_GPU_MAT_BF16)
        k->mm_bf16((const uint16_t *)s->data, s->ld, s->rows, s->cols, x, ldx, T, y, s->rows);
    else
        k->mm_mxfp4((const uint8_t *)s->data, s->ld, s->scale, s->ld_scale, s->rows, s->cols, x,
                    ldx, T, y, s->rows);
}

static std::vector<float> noise(int64_t count)
{
    std::vector<float> v((size_t)count);
    for (float &x : v)
        x = gauss();
    return v;
}

static int64_t differ(const float *a, const float *b, int64_t count)
{
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++)
        n += memcmp(a + i, b + i, 4) != 0;
    return n;
}

/* All types in one call, and kern's bits for those that promise them. */
static int hold_plain(struct kd_gpu *g, const struct kd_kern *k)
{
    static const int64_t widths[][2] = {{64, 4096}, {37, 1032}, {200, 100}, {5, 4}, {97, 2080}};
    int64_t bad = 0, cases = 0;
    double worst = 0;

    for (const auto &w : widths)
        for (int64_t T : {1, 2, 3, 7, 16, 17, 45}) {
            const int64_t rows = w[0], cols = w[1], ldx = (cols + 3) / 4 * 4;
            const bool fp4 = cols % 32 == 0;
            plain_fixture f[3];
            fixture e;
            loaded l(g);
            struct kd_gpu_mat m[4];
            struct kd_gpu_job jobs[4];
            const std::vector<float> x = noise(T * ldx);
            float *on = l.copy(x);
            fixture_make(&e, 37, KD_CB_MUL1, rows, cols, 1);
            const struct kd_gpu_source s = source_of(&e);
            for (int i = 0; i < 4; i++) {
                if (i < 3)
                    plain_make(&f[i],
                               i == 0   ? KD_GPU_MAT_F32
                               : i == 1 ? KD_GPU_MAT_BF16
                               : fp4    ? KD_GPU_MAT_MXFP4
                                        : KD_GPU_MAT_F32,
                               rows, cols);
                m[i] = l.load(i < 3 ? &f[i].s : &s);
                jobs[i] = {&m[i], on, ldx, (float *)l.get(4 * T * rows), rows};
            }
            const int64_t bytes = kd_gpu_mul_scratch(jobs, 4, T);
            void *scratch = l.get(bytes);
            must(kd_gpu_mul(g, KD_GPU_FAST, jobs, 4, T, scratch, bytes, &err));
            for (int i = 0; i < 3; i++) {
                std::vector<float> want((size_t)(T * rows));
                plain_want(k, &f[i].s, x.data(), ldx, T, want.data());
                const std::vector<float> got = l.floats(jobs[i].y, T * rows);
                if (T <= KD_GPU_ROWS || f[i].s.type == KD_GPU_MAT_F32)
                    bad += differ(want.data(), got.data(), T * rows);
                else
                    worst = std::max(worst, relative(want, got));
                cases++;
            }
            const std::vector<float> y = l.floats(jobs[3].y, T * rows);
            must(kd_gpu_mul(g, KD_GPU_FAST, jobs + 3, 1, T, scratch, bytes, &err));
            bad += differ(y.data(), l.floats(jobs[3].y, T * rows).data(), T * rows);
            cases++;
        }
    printf(
        "F32, BF16, MXFP4 and all together, %lld products: %lld values differ; many rows at most "
        "%.2g off\n",
        (long long)cases, (long long)bad, worst);
    return bad != 0 || !(worst < 1e-5);
}

/* One expert after the other by products of few rows, the rest on the CPU. */
struct layer {
    int64_t experts, cols, inner, T, top;
    std::vector<struct kd_gpu_mat> m; /* [experts][3] */
    std::vector<int32_t> ids;
    std::vector<float> x, weight;
};
static std::vector<float> layer_want(struct kd_gpu *g, const struct kd_kern *k,
                                     enum kd_gpu_class cls, const layer *l, const float *x)
{
    loaded on(g);
    std::vector<float> want((size_t)(l->T * l->cols), 0.0f);
    float *a = (float *)on.get(4 * l->T * l->inner), *b = (float *)on.get(4 * l->T * l->inner),
          *y = (float *)on.get(4 * l->T * l->cols);

    for (int64_t e = 0; e < l->experts; e++) {
        const struct kd_gpu_mat *m = &l->m[(size_t)(3 * e)];
        struct kd_gpu_job jobs[3] = {{m, x, l->cols, a, l->inner},
                                     {m + 1, x, l->cols, b, l->inner},
                                     {m + 2, a, l->inner, y, l->cols}};
        loaded work(g);
        const int64_t bytes = kd_gpu_mul_scratch(jobs, 3, KD_GPU_ROWS);
        void *scratch = work.get(bytes);
        const auto few = [&](int first, int count) {
            for (int64_t t = 0; t < l->T; t += KD_GPU_ROWS) {
                struct kd_gpu_job some[2];
                for (int i = 0; i < count; i++) {
                    some[i] = jobs[first + i];
                    some[i].x += t * some[i].ldx;
                    some[i].y += t * some[i].ldy;
                }
                must(kd_gpu_mul(g, cls, some, count, std::min(l->T - t, (int64_t)KD_GPU_ROWS),
                                scratch, bytes, &err));
            }
        };
        few(0, 2);
        std::vector<float> u = on.floats(a, l->T * l->inner), v = on.floats(b, l->T * l->inner);
        k->situ(u.data(), v.data(), 4.0f, 7.0f, u.data(), l->T * l->inner);
        must(kd_gpu_upload(g, a, u.data(), 4 * l->T * l->inner, &err));
        few(2, 1);
        const std::vector<float> out = on.floats(y, l->T * l->cols);
        for (int64_t i = 0; i < l->T * l->top; i++)
            if (l->ids[(size_t)i] == e)
                k->axpy(l->weight[(size_t)i], &out[(size_t)(i / l->top * l->cols)],
                        &want[(size_t)(i / l->top * l->cols)], l->cols);
    }
    return want;
}

static int hold_experts(struct kd_gpu *g, const struct kd_kern *k, bool quick)
{
    int64_t bad = 0, cases = 0;
    double worst[3] = {};

    for (int kind = 0; kind < 3; kind++) { /* EXL3 for decoding, for checks; MXFP4 */
        const enum kd_gpu_class cls = kind == 1 ? KD_GPU_VALUES : KD_GPU_FAST;
        loaded l(g);
        layer a = {24, 1184, 416, 0, 8, {}, {}, {}, {}};
        std::vector<fixture> exl3((size_t)(3 * a.experts));
        std::vector<plain_fixture> fp4((size_t)(3 * a.experts));
        for (size_t i = 0; i < exl3.size(); i++) {
            const int64_t rows = i % 3 < 2 ? a.inner : a.cols, cols = i % 3 < 2 ? a.cols : a.inner;
            if (kind == 2)
                plain_make(&fp4[i], KD_GPU_MAT_MXFP4, rows, cols);
            else
                fixture_make(&exl3[i], 32 + (unsigned)i % 7, KD_CB_MUL1, rows, cols, 1);
            const struct kd_gpu_source s = kind == 2 ? fp4[i].s : source_of(&exl3[i]);
            a.m.push_back(l.load(&s));
        }
        const struct kd_gpu_experts_shape shape = {a.experts, a.cols, a.inner, 2500, a.top};
        struct kd_gpu_experts *first, *e;
        must(kd_gpu_experts_open(&first, g, &shape, NULL, &err));
        must(kd_gpu_experts_open(&e, g, &shape, first, &err));
        must(kd_gpu_experts_set(e, 0, a.experts, (const struct kd_gpu_mat(*)[3])a.m.data(), &err));
        for (int64_t T : {1, 4, 5, 64, 128, 200, 2500}) {
            if (quick && (T == 64 || T == 128 || T > 200))
                continue;
            a.T = T;
            a.ids.clear();
            a.weight.clear();
            for (int64_t i = 0; i < T * a.top; i++) {
                a.ids.push_back((int32_t)(bits() % 25) - 1);
                a.weight.push_back(0.1f + (float)(bits() % 100) / 100.0f);
            }
            a.x = noise(T * a.cols);
            const float *x = l.copy(a.x);
            float *y = (float *)l.get(4 * T * a.cols);
            const struct kd_gpu_experts_call c = {
                x,    a.cols, T, l.copy(a.ids), l.copy(a.weight), a.top,
                4.0f, 7.0f,   y, a.cols,        nullptr,          0.0f};
            for (int again = 0; again < 2; again++)
                must(kd_gpu_experts_mul(e, cls, &c, &err));
            const std::vector<float> want = layer_want(g, k, cls, &a, x),
                                     got = l.floats(y, T * a.cols);
            cases++;
            if (T <= (kind == 2 ? (int)KD_GPU_ROWS : (int)KD_GPU_EXPERT_ROWS)) {
                bad += differ(want.data(), got.data(), T * a.cols);
                continue;
            }
            worst[kind] = std::max(worst[kind], relative(want, got));
            /* Fewer tokens, but as many as make them many: the same bits. */
            struct kd_gpu_experts_call part = c;
            part.T = T - T / 4;
            must(kd_gpu_experts_mul(e, cls, &part, &err));
            bad += differ(l.floats(y, part.T * a.cols).data(), got.data(), part.T * a.cols);
        }
        kd_gpu_experts_close(e);
        kd_gpu_experts_close(first);
    }
    printf("experts, %lld calls: %lld values differ from products one by one; many tokens at most "
           "%.2g, for checks %.2g, MXFP4 %.2g off\n",
           (long long)cases, (long long)bad, worst[0], worst[1], worst[2]);
    return bad != 0 || !(worst[0] < 1e-3) || !(worst[1] < 1e-5) || !(worst[2] < 1e-5);
}

static void time_plain(struct kd_gpu *g, const struct limits *l, enum kd_gpu_mat_type type,
                       int64_t rows, int64_t cols, int64_t T)
{
    static const char *const names[] = {"", "F32", "BF16", "MXFP4"};
    const int calls = 12;
    struct kd_gpu_source s = {};
    std::vector<struct kd_gpu_mat> m;
    loaded on(g);

    s.type = type;
    s.rows = rows;
    s.cols = cols;
    const int64_t each = kd_gpu_mat_bytes(&s), copies = (200ll << 20) / each + 1;
    for (int64_t i = 0; i < copies; i++) {
        m.push_back({});
        must(kd_gpu_mat_make(g, &m.back(), &s, (uint64_t)i, on.get(each), &err));
    }
    struct kd_gpu_job job = {&m[0], on.copy(noise(T * cols)), cols, (float *)on.get(4 * T * rows),
                             rows};
    const int64_t bytes = kd_gpu_mul_scratch(&job, 1, T);
    void *scratch = on.get(bytes);
    const double t =
        seconds(g, 5,
                [&] {
                    for (int i = 0; i < calls; i++) {
                        job.w = &m[(size_t)(i % copies)];
                        must(kd_gpu_mul(g, KD_GPU_FAST, &job, 1, T, scratch, bytes, &err));
                    }
                }) /
        calls;
    printf("%-5s %6lld x %5lld %2lld rows: %7.2f us, %5.0f GB/s, %3.0f %% of bandwidth\n",
           names[type], (long long)rows, (long long)cols, (long long)T, t * 1e6, each / t * 1e-9,
           100.0 * each / l->bytes / t);
}

/* K3's routed experts: 16 of 896, each token its own; rates from `low` to `high`. Below 0: so many
 * tokens, beside others that have no experts, the way of many tokens. */
static void time_experts(struct kd_gpu *g, const struct limits *l, enum kd_gpu_mat_type type,
                         unsigned low, unsigned high, std::vector<int64_t> tokens)
{
    const int64_t experts = type == KD_GPU_MAT_MXFP4 ? 256 : 896, cols = 3584, inner = 3072,
                  top = 16, most = tokens.back();
    const struct kd_gpu_experts_shape shape = {experts, cols, inner, most, top};
    std::vector<struct kd_gpu_mat> m((size_t)(3 * experts));
    std::vector<int64_t> bytes((size_t)experts, 0);
    struct kd_gpu_experts *e;
    loaded on(g);

    for (int64_t i = 0; i < 3 * experts; i++) {
        struct kd_gpu_source s = {};
        s.type = type;
        s.rows = s.rows_padded = i % 3 < 2 ? inner : cols;
        s.cols = s.cols_padded = i % 3 < 2 ? cols : inner;
        s.rate = kd_rate_from16(low + bits() % (high - low + 1));
        s.cb = KD_CB_MUL1;
        const int64_t each = kd_gpu_mat_bytes(&s);
        must(kd_gpu_mat_make(g, &m[(size_t)i], &s, (uint64_t)i, on.get(each), &err));
        bytes[(size_t)(i / 3)] += each;
    }
    must(kd_gpu_experts_open(&e, g, &shape, NULL, &err));
    must(kd_gpu_experts_set(e, 0, experts, (const struct kd_gpu_mat(*)[3])m.data(), &err));
    for (int64_t all : tokens) {
        const int64_t some = all < 0 ? -all : all,
                      T = all < 0 ? std::max(some, (int64_t)KD_GPU_EXPERT_ROWS + 1) : all;
        const int calls = T > 512 ? 2 : 8;
        std::vector<int32_t> ids((size_t)(calls * T * top), -1);
        double read = 0, groups = 0;
        for (int c = 0; c < calls; c++) {
            std::vector<char> used((size_t)experts, 0);
            for (int64_t t = 0; t < some; t++)
                for (int64_t j = 0; j < top; j++) {
                    int32_t *at = &ids[(size_t)((c * T + t) * top)];
                    do
                        at[j] = (int32_t)(bits() % (uint32_t)experts);
                    while (std::find(at, at + j, at[j]) != at + j);
                    read += used[(size_t)at[j]] ? 0.0 : (double)bytes[(size_t)at[j]];
                    groups += !used[(size_t)at[j]];
                    used[(size_t)at[j]] = 1;
                }
        }
        const int32_t *list = on.copy(ids);
        const float *weight = on.copy(noise(T * top));
        struct kd_gpu_experts_call c = {
            on.copy(noise(T * cols)),      cols, T,       list, weight, top, 4.0f, 7.0f,
            (float *)on.get(4 * T * cols), cols, nullptr, 0.0f};
        const double t = seconds(g, 5,
                                 [&] {
                                     for (int i = 0; i < calls; i++) {
                                         c.ids = list + i * T * top;
                                         must(kd_gpu_experts_mul(e, KD_GPU_FAST, &c, &err));
                                     }
                                 }) /
                         calls;
        printf("experts %s %.4f to %.4f bits, %2lld tokens%s: %7.1f us, %.0f experts, %5.0f GB/s, "
               "%5.2f Tweights/s, %3.0f %% of bandwidth, %4.0f TFLOP/s\n",
               type == KD_GPU_MAT_MXFP4 ? "MXFP4" : "EXL3", low / 16.0, high / 16.0,
               (long long)some, all < 0 ? " as many" : "", t * 1e6, groups / calls,
               read / calls / t * 1e-9, groups / calls * 3.0 * (double)(cols * inner) / t * 1e-12,
               100.0 * read / calls / l->bytes / t,
               6.0 * (double)(some * top * cols * inner) / t * 1e-12);
    }
    kd_gpu_experts_close(e);
}

#endif
