/* The products of class `fast` alone, on a device: samples of what they give against sums in
 * float64, the same bits however their blocks share the work, and their rates by the device's own
 * clock. */
#ifndef KD_TESTS_GPU_CALIB_PRODUCTS_CUH
#define KD_TESTS_GPU_CALIB_PRODUCTS_CUH

#include "gpu/calib_int.cuh"
#include "gpu/calib_out.cuh"

#include <math.h>

#include <algorithm>
#include <vector>

/* A matrix of bf16 values, about as many of each sign, of mean square 1. */
struct products_matrix {
    std::vector<uint16_t> value;
    struct kd_gpu_bytes there;
    int64_t rows = 0, pitch = 0;

    void make(int64_t r, int64_t cols, uint64_t seed)
    {
        struct kd_err err;

        rows = r;
        pitch = cols;
        value.resize((size_t)(r * cols));
        uint64_t s = seed * 0x9e3779b97f4a7c15u + 1;
        for (uint16_t &v : value) {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            const int64_t four = (int64_t)(s & 0xffff) + (int64_t)(s >> 16 & 0xffff) +
                                 (int64_t)(s >> 32 & 0xffff) + (int64_t)(s >> 48);
            v = kd_f32_bf16((float)(four - 131070) / 37837.0f);
        }
        must(there.get(2 * r * cols, &err, "a matrix"));
        cudaMemcpy(there.at, value.data(), value.size() * 2, cudaMemcpyHostToDevice);
    }
    kd_calib::planes planes() const
    {
        return {(uint16_t *)there.at, nullptr, pitch};
    }
    double at(int64_t r, int64_t c) const
    {
        return (double)kd_bf16_f32(value[(size_t)(r * pitch + c)]);
    }
};

/* Row i of a times row j of b, and of their absolute values. */
static inline double products_sum(const products_matrix &a, int64_t i, const products_matrix &b,
                                  int64_t j, double *all)
{
    double sum = 0;
    *all = 0;
    for (int64_t k = 0; k < a.pitch; k++) {
        const double x = a.at(i, k) * b.at(j, k);
        sum += x;
        *all += fabs(x);
    }
    return sum;
}

/* Rows and columns whose entries are looked at: the edges of tiles, and some between. */
static inline std::vector<int64_t> products_places(int64_t n, uint64_t seed)
{
    std::vector<int64_t> p = {0, n - 1};
    for (int64_t i = 0; i < 14; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        p.push_back((int64_t)(seed >> 33) % n);
        if (128 * i + 127 < n)
            p.push_back(128 * i + (i & 1 ? 127 : 0));
    }
    return p;
}

struct products_clock {
    cudaStream_t stream;
    cudaEvent_t begin, end;

    products_clock()
    {
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cudaEventCreate(&begin);
        cudaEventCreate(&end);
    }
    ~products_clock()
    {
        cudaEventDestroy(begin);
        cudaEventDestroy(end);
        cudaStreamDestroy(stream);
    }
    /* Milliseconds, the median of some. */
    template <class CALL> double of(CALL call)
    {
        enum { RUNS = 7 };
        float ms[RUNS];
        for (int i = -2; i < RUNS; i++) {
            cudaEventRecord(begin, stream);
            call();
            cudaEventRecord(end, stream);
            if (cudaEventSynchronize(end) != cudaSuccess)
                return -1;
            if (i >= 0)
                cudaEventElapsedTime(&ms[i], begin, end);
        }
        std::sort(ms, ms + RUNS);
        return (double)ms[RUNS / 2];
    }
    template <class CALL> void rate(const char *what, double macs, CALL call)
    {
        const double ms = of(call);
        printf("%-52s %8.3f ms, %5.1f TFLOP/s\n", what, ms, 2e-9 * macs / ms);
    }
};

/* y of `bytes`, poisoned, after a call. */
template <class T, class CALL>
static inline std::vector<T> products_take(products_clock *c, void *y, int64_t count, int fill,
                                           CALL call)
{
    std::vector<T> out((size_t)count);

    cudaMemsetAsync(y, fill, out.size() * sizeof(T), c->stream);
    call();
    cudaMemcpyAsync(out.data(), y, out.size() * sizeof(T), cudaMemcpyDeviceToHost, c->stream);
    if (cudaStreamSynchronize(c->stream) != cudaSuccess)
        printf("a product failed: %s\n", cudaGetErrorString(cudaGetLastError()));
    return out;
}

static inline int products_said(const char *what, int64_t m, int64_t n, int64_t k, double worst,
                                bool same)
{
    const bool good = worst <= 1.0 && same;
    printf("%s %lld x %lld, %lld inputs: %.2f of the bound%s%s\n", what, (long long)m, (long long)n,
           (long long)k, worst, same ? "" : ", other bits the second time", good ? "" : ": WRONG");
    return !good;
}

struct products_job {
    int64_t m, n, k; /* outputs or inputs, rows, inputs of a sum */
};

/* y[n][m] = b a^T. */
static inline int products_rows(products_clock *c, const products_job &p, bool timed)
{
    products_matrix a, b;
    struct kd_gpu_bytes y, count;
    struct kd_err err;
    double worst = 0, all;

    a.make(p.m, p.k, 1);
    b.make(p.n, p.k, 2);
    must(y.get(4 * p.m * p.n, &err, "y") || count.get(4, &err, "y"));
    auto call = [&](int32_t *with) {
        must(kd_calib::fast_multiply(c->stream, a.planes(), p.m, b.planes(), p.n, (float *)y.at,
                                     p.m, with, &err));
    };
    const std::vector<float> got =
        products_take<float>(c, y.at, p.m * p.n, 0xff, [&] { call((int32_t *)count.at); });
    const std::vector<float> again =
        products_take<float>(c, y.at, p.m * p.n, 0xff, [&] { call(nullptr); });
    for (int64_t i : products_places(p.m, 3))
        for (int64_t j : products_places(p.n, 4)) {
            const double want = products_sum(a, i, b, j, &all);
            const double off = fabs((double)got[(size_t)(j * p.m + i)] - want) / all * 0x1p16;
            worst = off <= worst ? worst : off;
        }
    if (timed)
        c->rate("rows", (double)(p.m * p.n) * (double)p.k, [&] { call((int32_t *)count.at); });
    return products_said("rows", p.m, p.n, p.k, worst,
                         !memcmp(got.data(), again.data(), 4 * got.size()));
}

/* h += x x^T, over a sum that is there. */
static inline int products_sums(products_clock *c, const products_job &p, bool timed)
{
    products_matrix x;
    struct kd_gpu_bytes h, count;
    struct kd_err err;
    const std::vector<float> was((size_t)(p.m * p.m), 3.0f);
    double worst = 0, all;

    x.make(p.m, p.k, 5);
    must(h.get(4 * p.m * p.m, &err, "h") || count.get(kd_calib::fast_count_bytes(p.m), &err, "h"));
    auto call = [&](int32_t *with) {
        must(kd_calib::fast_sums(c->stream, x.planes(), p.m, (float *)h.at, &err, with));
    };
    auto over = [&](int32_t *with) {
        cudaMemcpyAsync(h.at, was.data(), 4 * was.size(), cudaMemcpyHostToDevice, c->stream);
        call(with);
    };
    const std::vector<float> got =
        products_take<float>(c, h.at, p.m * p.m, 0xff, [&] { over((int32_t *)count.at); });
    const std::vector<float> again =
        products_take<float>(c, h.at, p.m * p.m, 0xff, [&] { over(nullptr); });
    bool same = true;
    for (int64_t i = 0; i < p.m; i++)
        same &= !memcmp(&got[(size_t)(i * p.m + i)], &again[(size_t)(i * p.m + i)],
                        (size_t)(4 * (p.m - i)));
    for (int64_t i : products_places(p.m, 6))
        for (int64_t j : products_places(p.m, 7)) {
            const double want = 3.0 + products_sum(x, i, x, j, &all);
            const double off =
                fabs((double)got[(size_t)(i * p.m + j)] - want) / (double)p.k * 0x1p14;
            if (j >= i)
                worst = off <= worst ? worst : off;
        }
    if (timed)
        c->rate("sums", 0.5 * (double)(p.m * p.m) * (double)p.k,
                [&] { call((int32_t *)count.at); });
    return products_said("sums", p.m, p.m, p.k, worst, same);
}

static inline double products_situ(double g, double u, double beta, double linear)
{
    return beta * tanh(g / beta) / (1.0 + exp(-g)) * linear * tanh(u / linear);
}

/* Gate and up of m / 2 outputs each, by turns of eight; the last `none` rows of x are not there. */
static inline int products_turned(products_clock *c, const products_job &p, bool turned,
                                  int64_t none, bool timed)
{
    const int64_t half = p.m / 2, wide = turned ? half : p.n, ld = turned ? p.n : half;
    const float beta = 1.5f, linear = 3.0f;
    products_matrix a, b;
    struct kd_gpu_bytes y, bad, count;
    struct kd_err err;
    double worst = 0, all;

    a.make(p.m, p.k, 8);
    b.make(p.n, p.k, 9);
    const float scale = 1.0f / sqrtf((float)p.k);
    for (uint16_t &v : a.value)
        v = kd_f32_bf16(kd_bf16_f32(v) * scale);
    cudaMemcpy(a.there.at, a.value.data(), a.value.size() * 2, cudaMemcpyHostToDevice);
    must(y.get(2 * wide * ld, &err, "y") || bad.get(4, &err, "y") || count.get(4, &err, "y"));
    cudaMemset(bad.at, 0, 4);
    auto call = [&](int32_t *with) {
        const kd_calib::planes to = {(uint16_t *)y.at, nullptr, ld};
        must(kd_calib::fast_inner(c->stream, a.planes(), half, half - 1, b.planes(), p.n - none,
                                  beta, linear, turned, to, (int32_t *)bad.at, with, &err));
    };
    const std::vector<uint16_t> got =
        products_take<uint16_t>(c, y.at, wide * ld, 0xff, [&] { call((int32_t *)count.at); });
    const std::vector<uint16_t> again =
        products_take<uint16_t>(c, y.at, wide * ld, 0xff, [&] { call(nullptr); });
    for (int64_t i : products_places(half, 10))
        for (int64_t j : products_places(p.n, 11)) {
            const int64_t gate = i / kd_fast::PAIR * (2 * kd_fast::PAIR) + i % kd_fast::PAIR;
            double want =
                products_situ(products_sum(a, gate, b, j, &all),
                              products_sum(a, gate + kd_fast::PAIR, b, j, &all), beta, linear);
            want = i < half - 1 && j < p.n - none ? want : 0.0;
            const uint16_t was = got[(size_t)(turned ? i * ld + j : j * ld + i)];
            const double off =
                fabs((double)kd_bf16_f32(was) - want) / (fabs(want) * 0x1p-8 + 0x1p-13);
            worst = off <= worst ? worst : off;
        }
    if (timed)
        c->rate("turned", (double)(p.m * p.n) * (double)p.k, [&] { call((int32_t *)count.at); });
    return products_said(turned ? "turned" : "inner", p.m, p.n, p.k, worst,
                         !memcmp(got.data(), again.data(), 2 * got.size()));
}

static inline int hold_products_alone(void)
{
    products_clock c;

    printf("products of class fast: %s\n",
           kd_calib::wide_is_here() ? "warpgroups" : "matrix units of any kind");
    int bad = products_rows(&c, {300, 130, 96}, false);
    bad += products_rows(&c, {3584, 8192, 3072}, true);
    bad += products_sums(&c, {384, 0, 160}, false);
    bad += products_sums(&c, {640, 0, 4096 * 3 + 32}, false);
    bad += products_sums(&c, {3072, 0, 16384}, true);
    bad += products_sums(&c, {7168, 0, 2048}, true);
    bad += products_turned(&c, {512, 320, 224}, true, 5, false);
    bad += products_turned(&c, {512, 320, 224}, false, 31, false);
    bad += products_turned(&c, {6144, 8192, 3584}, false, 0, true);
    bad += products_turned(&c, {6144, 16384, 3584}, true, 0, true);
    return bad;
}

#endif
