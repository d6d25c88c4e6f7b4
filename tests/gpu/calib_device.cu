/* Calibration on a device: products of every kind of matrix, Hessians and whole experts with this
 * machine's CPU's bits, pieces and their ends included; then the time of the chains alone and of
 * whole calls, copies included, at K3's shapes. Without a device: 77, a skip.
 *
 *     gpu_calib_device [products|fast] */
#include "gpu/calib_check.h"
#include "gpu/must.h"

extern "C" {
#include "base/clock.h"
}

#include "gpu/calib_products.cuh"
#include "gpu/chains.cuh"

#include <algorithm>

static int hold_bits(const struct kd_run *cpu, const struct kd_run *run)
{
    static const struct calib_case all[] = {
        {KD_MAT_F32, 40, 100, 130, 0, KD_CB_MUL1},
        {KD_MAT_F32, 2000, 1024, 1100, 0, KD_CB_MUL1},
        {KD_MAT_F32, 200, 7, 1, 0, KD_CB_MUL1},
        {KD_MAT_BF16, 1030, 480, 2049, 0, KD_CB_MUL1},
        {KD_MAT_BF16, 4500, 7168, 300, 0, KD_CB_MUL1}, /* two pieces of columns */
        {KD_MAT_MXFP4, 3072, 3584, 257, 0, KD_CB_MUL1},
        {KD_MAT_EXL3, 3072, 3584, 1025, 32, KD_CB_MUL1},
        {KD_MAT_EXL3, 130, 200, 140, 37, KD_CB_MUL1},
        {KD_MAT_EXL3, 640, 1280, 1500, 16, KD_CB_MCG},
        {KD_MAT_EXL3, 384, 256, 200, 125, KD_CB_3INST},
        {KD_MAT_EXL3, 100, 128, 64, 128, KD_CB_MUL1},
    };
    int bad = 0;

    for (const struct calib_case &c : all)
        bad += calib_product(cpu, run->encoder, c);
    bad += calib_whole_expert(cpu, run->encoder, KD_MAT_MXFP4, KD_MAT_MXFP4, 3584, 3072, 146);
    bad += calib_whole_expert(cpu, run->encoder, KD_MAT_EXL3, KD_MAT_EXL3, 768, 640, 1100);
    bad += calib_whole_expert(cpu, run->encoder, KD_MAT_EXL3, KD_MAT_BF16, 100, 130, 5);
    bad += calib_hessian(cpu, run, 200, 90);
    bad += calib_hessian(cpu, run, 1500, 2500);
    bad += calib_expert_check(cpu, run, 512, 640, 2100, true, true);
    bad += calib_expert_check(cpu, run, 256, 384, 1500, true, false);
    bad += calib_expert_check(cpu, run, 384, 200, 700, false, false);
    printf("%d products, 3 experts, 2 Hessians, 3 experts encoded: %d with other bits\n",
           (int)(sizeof all / sizeof *all), bad);
    return bad;
}

static int hold_fast(const struct kd_run *cpu, const struct kd_run *run)
{
    static const struct calib_case all[] = {
        {KD_MAT_F32, 2000, 1024, 1100, 0, KD_CB_MUL1},
        {KD_MAT_BF16, 1030, 480, 2049, 0, KD_CB_MUL1},
        {KD_MAT_BF16, 24000, 7168, 100, 0, KD_CB_MUL1}, /* two pieces of columns */
        {KD_MAT_MXFP4, 3072, 3584, 257, 0, KD_CB_MUL1},
        {KD_MAT_EXL3, 3072, 3584, 1025, 32, KD_CB_MUL1},
        {KD_MAT_EXL3, 130, 200, 140, 37, KD_CB_MUL1},
    };
    int bad = calib_sum(cpu, run->encoder, false, KD_MAT_EXL3, KD_MAT_EXL3, 512, 384, 3000);

    kd_gpu_encoder_calibrate(run->encoder, KD_GPU_CALIB_FAST);
    for (const struct calib_case &c : all)
        bad += calib_fast_product(cpu, run->encoder, c);
    bad += calib_fast_hessian(cpu, run, 200, 90) + calib_fast_hessian(cpu, run, 1500, 9000);
    bad +=
        calib_fast_inner(run, 512, 640, 20000, true) + calib_fast_inner(run, 100, 100, 70, false);
    bad += calib_fast_inner(run, 3584, 3072, 9000, true);
    bad += calib_sum(cpu, run->encoder, true, KD_MAT_EXL3, KD_MAT_EXL3, 512, 640, 3000);
    bad += calib_sum(cpu, run->encoder, true, KD_MAT_MXFP4, KD_MAT_MXFP4, 3584, 3072, 300);
    kd_gpu_encoder_calibrate(run->encoder, KD_GPU_CALIB_EXACT);
    printf("fast: 6 products, 2 Hessians, 3 inner ones, 2 sums: %d out of bounds\n", bad);
    return bad;
}

/* The chains alone. */
static int time_chains(int64_t inputs, int64_t rows, int64_t n, int half, double peak)
{
    enum { RUNS = 7 };
    struct kd_gpu_bytes a, b, c;
    struct kd_err err;
    cudaEvent_t begin, end;
    float ms[RUNS];

    must(a.get(4 * inputs * rows, &err, "a"));
    must(b.get(4 * inputs * n, &err, "b"));
    must(c.get(4 * half * rows * n, &err, "c"));
    cudaMemset(a.at, 0, (size_t)(4 * inputs * rows));
    cudaMemset(b.at, 0, (size_t)(4 * inputs * n));
    const kd_calib_chains_job j = {
        (const float *)a.at, (const float *)b.at, rows, n, inputs / 2 / half, rows, half,
        (float *)c.at};
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    for (float &x : ms) {
        cudaEventRecord(begin, 0);
        kd_gpu_chains_launch(0, &j);
        cudaEventRecord(end, 0);
        if (cudaEventSynchronize(end) != cudaSuccess)
            return 1;
        cudaEventElapsedTime(&x, begin, end);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::sort(ms, ms + RUNS);
    const double tflops = 2e-9 * (double)inputs * (double)rows * (double)n / ms[RUNS / 2];
    printf("%2d chains, %5lld inputs, %5lld x %5lld: %8.3f ms, %5.1f TFLOP/s, %3.0f %% of fp32\n",
           2 * half, (long long)inputs, (long long)rows, (long long)n, (double)ms[RUNS / 2], tflops,
           100 * tflops / peak);
    return 0;
}

/* A call from host memory, twice; the second counts. */
template <class CALL> static void time_call(const char *what, double macs, double peak, CALL call)
{
    double seconds = 0;
    for (int i = 0; i < 2; i++) {
        const double t = kd_clock_s();
        call();
        seconds = kd_clock_s() - t;
    }
    printf("%-52s %8.1f ms, %5.1f TFLOP/s, %3.0f %% of peak\n", what, 1e3 * seconds,
           2e-12 * macs / seconds, 2e-10 * macs / seconds / peak);
}

/* peak: of fp32, or of bf16 where the class is fast. */
static void time_calls(const struct kd_run *run, bool fast, double peak)
{
    enum { LATENT = 3584, INTER = 3072, HIDDEN = 7168, OUT = 12288, ROWS = 4096 };
    static const int64_t rows[] = {128, 16384, 131072,
                                   524288}; /* the first: what is always there */
    const int64_t T = fast ? 524288 : 16384, few = 16384;
    struct calib_matrix w1, w3, w2, m;
    struct kd_gpu_latents *there = NULL;
    struct kd_gpu_routed *r = NULL;
    struct kd_hess h = {};
    struct kd_err err;
    std::vector<uint16_t> z((size_t)T * LATENT), wide((size_t)HIDDEN * OUT);
    std::vector<float> x((size_t)ROWS * HIDDEN, 0.5f), y((size_t)ROWS * OUT);
    std::vector<float> sum((size_t)INTER * INTER), weight(9362, 0.1f);
    std::vector<int32_t> row;
    bool done = false;

    kd_gpu_encoder_calibrate(run->encoder, fast ? KD_GPU_CALIB_FAST : KD_GPU_CALIB_EXACT);
    printf("class %s\n", fast ? "fast" : "exact");
    for (int64_t i = 0; i < few * LATENT; i++)
        z[(size_t)i] = kd_f32_bf16((float)(1.2 * (kd_rand_unit(7, (uint64_t)i) - 0.5)));
    for (int64_t t = few; t < T; t += few)
        memcpy(&z[(size_t)(t * LATENT)], &z[0], (size_t)(2 * few * LATENT));
    for (size_t i = 0; i < wide.size(); i++)
        wide[i] = kd_f32_bf16((float)(i % 241) * 0.0001f - 0.012f);
    for (size_t i = 0; i < weight.size(); i++)
        row.push_back((int32_t)i);
    calib_make(&w1, KD_MAT_EXL3, INTER, LATENT, 32, KD_CB_MUL1, 1);
    calib_make(&w3, KD_MAT_EXL3, INTER, LATENT, 32, KD_CB_MUL1, 2);
    calib_make(&w2, KD_MAT_EXL3, LATENT, INTER, 32, KD_CB_MUL1, 3);
    const struct kd_gpu_source w[3] = {kd_mat_source(&w1.mat), kd_mat_source(&w3.mat),
                                       kd_mat_source(&w2.mat)};
    struct kd_gpu_inner j = {};
    j.w1 = &w[0];
    j.w3 = &w[1];
    j.T = 16384;
    j.z = z.data();
    j.beta = 4.0f;
    j.linear = 25.0f;
    j.h = sum.data();
    const double macs = 2.0 * LATENT * INTER + 0.5 * INTER * INTER;
    time_call("an expert's inner Hessian, 16,384 rows", (double)j.T * macs, peak,
              [&] { must(kd_gpu_inner_sums(run->encoder, &j, &done, &err)); });
    must(kd_gpu_latents_open(&there, run->encoder, z.data(), T, LATENT, &err));
    j.latents = there;
    for (int64_t n : rows) {
        char what[64];
        if (n > T)
            break;
        j.T = n;
        snprintf(what, sizeof what, "%lld rows, latents on the device", (long long)n);
        time_call(what, (double)n * macs, peak,
                  [&] { must(kd_gpu_inner_sums(run->encoder, &j, &done, &err)); });
    }
    kd_gpu_latents_close(there);
    if (!done)
        printf("not done\n");
    must(kd_gpu_routed_open(&r, run->encoder, 0, z.data(), 16384, LATENT, &err));
    time_call("an expert's share of a layer's sum, 9,362 rows",
              (double)weight.size() * 3.0 * LATENT * INTER, peak, [&] {
                  must(kd_gpu_routed_add(r, w, row.data(), weight.data(), (int64_t)row.size(), 4.0f,
                                         25.0f, &done, &err));
              });
    kd_gpu_routed_close(r);
    if (!done)
        printf("not done\n");
    m.mat = {};
    m.mat.type = KD_MAT_BF16;
    m.mat.rows = OUT;
    m.mat.cols = m.mat.ld = HIDDEN;
    m.mat.data = wide.data();
    time_call("BF16 7168 -> 12288, 4,096 rows", (double)ROWS * HIDDEN * OUT, peak,
              [&] { must(kd_mat_mul(run, &m.mat, x.data(), HIDDEN, ROWS, y.data(), OUT, &err)); });
    must(kd_hess_open(&h, HIDDEN, &err));
    must(kd_hess_on_device(run, &h, &err));
    time_call("a Hessian of 7168 inputs, 4,096 rows", 0.5 * ROWS * HIDDEN * HIDDEN, peak,
              [&] { must(kd_hess_add(run, &h, x.data(), HIDDEN, ROWS, &err)); });
    kd_hess_release(&h);
}

int main(int argc, char **argv)
{
    const bool fast_only = argc > 1 && !strcmp(argv[1], "fast");
    const int index = 0;
    struct kd_gpu_encoder *e;
    struct kd_kern kern;
    struct kd_gpu *g;
    struct kd_err err;

    if (!kd_gpu_count()) {
        printf("no device\n");
        return 77;
    }
    must(kd_kern_pick(&kern, &err));
    must(kd_gpu_open(&g, 0, &err));
    const double peak = kd_gpu_facts(g)->sms * 256 * 1.98e-3;
    printf("%s, fp32 at 1.98 GHz %.1f TFLOP/s\n", kd_gpu_facts(g)->name, peak);
    int bad = hold_products_alone();
    if (argc > 1 && !strcmp(argv[1], "products"))
        return bad != 0;
    must(kd_gpu_encoder_open(&e, &index, 1, 0, &err));
    const struct kd_run cpu = {&kern, NULL, NULL, false}, run = {&kern, NULL, e, false};
    bad += hold_fast(&cpu, &run);
    if (!fast_only) {
        bad += hold_bits(&cpu, &run);
        bad += time_chains(3584, 1024, 3072, 4, peak) + time_chains(7168, 1024, 4096, 8, peak) +
               time_chains(3072, 256, 3584, 4, peak);
        time_calls(&run, false, peak);
    }
    time_calls(&run, true, 16 * peak); /* dense, of Hopper's own instructions */
    kd_gpu_encoder_close(e);
    kd_gpu_close(g);
    return bad != 0;
}
