/* Encoding on a device: kd_quant_tensor's bytes against this machine's CPU, for several shapes,
 * rates and codebooks, all at once; then speed: products, and LDLQ of tensors of K3's expert size
 * from many lanes against the bare search. Without a device: 77, a skip.
 *
 *     gpu_encode_device [LANES [INPUTS OUTPUTS [TENSORS [SIXTEENTHS]]]]      16 3584 3072 4 32 */
#include "gpu/encode_account.h"
#include "gpu/encode_check.h"

extern "C" {
#include "base/clock.h"
#include "base/mem.h"
#include "gpu/gpu.h"
}

#include "gpu/tn.cuh"

#include <stdlib.h>
#include <time.h>

#include <atomic>
#include <mutex>

static const struct check_case cases[] = {
    {128, 128, 64, 32, KD_CB_MUL1, KD_RECIPE_DEFAULT, false, KD_MAT_F32},
    {1024, 1024, 512, 32, KD_CB_MUL1, KD_RECIPE_DEFAULT, false, KD_MAT_BF16},
    {512, 896, 512, 37, KD_CB_MUL1, KD_RECIPE_DEFAULT, false, KD_MAT_MXFP4},
    {700, 300, 256, 33, KD_CB_MUL1, KD_RECIPE_DEFAULT, true, KD_MAT_F32},
    {384, 640, 0, 32, KD_CB_MUL1, KD_RECIPE_PLAIN, false, KD_MAT_BF16},
    {256, 384, 256, 48, KD_CB_3INST, KD_RECIPE_UPSTREAM, true, KD_MAT_MXFP4},
    {256, 256, 256, 64, KD_CB_MCG, KD_RECIPE_DEFAULT, false, KD_MAT_F32},
    {128, 384, 256, 16, KD_CB_MUL1, KD_RECIPE_DEFAULT, false, KD_MAT_BF16},
    {128, 256, 128, 24, KD_CB_MUL1, KD_RECIPE_DEFAULT, false, KD_MAT_MXFP4},
    {256, 128, 128, 80, KD_CB_MUL1, KD_RECIPE_DEFAULT, false, KD_MAT_F32},
    {256, 128, 128, 100, KD_CB_MCG, KD_RECIPE_DEFAULT, false, KD_MAT_BF16},
    {128, 128, 128, 128, KD_CB_MUL1, KD_RECIPE_DEFAULT, false, KD_MAT_MXFP4},
    {1024, 512, 512, 32, KD_CB_MUL1, KD_RECIPE_DEFAULT, false, KD_MAT_F32},
};
enum { CASES = sizeof cases / sizeof *cases, MANY = 40 };

/* Products of the shapes that encoding has; the first ones against the CPU's kernel. */
static int products(const struct kd_kern *kern, int sms)
{
    static const struct {
        int64_t S, I, J;
        bool upper, minus, held;
    } shapes[] = {{37, 256, 384, false, false, true},     {128, 256, 256, true, true, true},
                  {128, 3456, 3072, false, false, false}, {3584, 3584, 3072, false, false, false},
                  {128, 3456, 3456, true, true, false},   {512, 3072, 3072, true, false, false}};
    struct kd_err err;
    int bad = 0;

    for (const auto &s : shapes) {
        const int64_t na = s.S * s.I, nb = s.S * s.J, nc = s.I * s.J;
        std::vector<float> a((size_t)na), b((size_t)nb), c((size_t)nc), got((size_t)nc);
        kd_gpu_bytes da, db, dc;
        cudaEvent_t begin, end;
        float best = 1e30f;
        for (int64_t i = 0; i < na; i++)
            a[(size_t)i] = (float)kd_rand_unit(1, (uint64_t)i) - 0.5f;
        for (int64_t i = 0; i < nb; i++)
            b[(size_t)i] = (float)kd_rand_unit(2, (uint64_t)i) - 0.5f;
        for (int64_t i = 0; i < nc; i++)
            c[(size_t)i] = (float)kd_rand_unit(3, (uint64_t)i) - 0.5f;
        if (da.get(4 * na, &err, "a") || db.get(4 * nb, &err, "b") || dc.get(4 * nc, &err, "c")) {
            check_complain(&err);
            return 1;
        }
        cudaMemcpy(da.at, a.data(), (size_t)na * 4, cudaMemcpyHostToDevice);
        cudaMemcpy(db.at, b.data(), (size_t)nb * 4, cudaMemcpyHostToDevice);
        cudaMemcpy(dc.at, c.data(), (size_t)nc * 4, cudaMemcpyHostToDevice);
        const struct kd_gpu_tn_job j = {(const float *)da.at,
                                        (const float *)db.at,
                                        (float *)dc.at,
                                        s.I,
                                        s.J,
                                        s.J,
                                        s.S,
                                        s.I,
                                        s.J,
                                        s.upper,
                                        s.minus};
        cudaEventCreate(&begin);
        cudaEventCreate(&end);
        for (int i = 0; i < (s.held ? 1 : 4); i++) {
            float ms;
            cudaEventRecord(begin, 0);
            bad += kd_gpu_tn_launch(0, &j, &err) != 0;
            cudaEventRecord(end, 0);
            bad += cudaEventSynchronize(end) != cudaSuccess;
            cudaEventElapsedTime(&ms, begin, end);
            best = ms < best ? ms : best;
        }
        int64_t wrong = 0;
        if (s.held) {
            cudaMemcpy(got.data(), dc.at, (size_t)nc * 4, cudaMemcpyDeviceToHost);
            for (float &x : a)
                x = s.minus ? -x : x;
            kern->gemm_tn(a.data(), s.I, b.data(), s.J, s.S, s.I, s.J, c.data(), s.J);
            for (int64_t i = 0; i < nc; i++)
                wrong += (!s.upper || i % s.J / 128 >= i / s.J / 128) &&
                         memcmp(&got[(size_t)i], &c[(size_t)i], 4) != 0;
        }
        const double flops = 2.0 * (double)s.S * (double)(s.upper ? s.I * (s.J + 128) / 2 : nc);
        printf("product S %5lld, %5lld x %5lld%s: %8.3f ms, %6.2f TFLOP/s, %lld wrong\n",
               (long long)s.S, (long long)s.I, (long long)s.J, s.upper ? ", upper" : "",
               (double)best, flops / best * 1e-9, (long long)wrong);
        bad += wrong != 0;
        cudaEventDestroy(begin);
        cudaEventDestroy(end);
    }
    printf("(fp32 peak at 1.98 GHz, %d multiprocessors: %.1f TFLOP/s)\n", sms, sms * 256 * 1.98e-3);
    return bad;
}

static double bare(struct kd_gpu *g, struct kd_rate rate, int64_t tiles)
{
    std::vector<float> target((size_t)tiles * 256);
    std::vector<uint16_t> states(target.size());
    struct kd_gpu_tile_figures f;
    struct kd_err err;
    double best = 0;
    for (size_t i = 0; i < target.size(); i++)
        target[i] = (float)(1.018 * check_gauss(5, (int64_t)i % 1000003));
    struct kd_gpu_tiles job = {target.data(), tiles, rate,          KD_CB_MUL1,
                               128,           0,     states.data(), KD_SEARCH_BY_DEVICE};
    for (int i = 0; i < 3; i++) {
        if (kd_gpu_search(g, &job, &f, &err)) {
            check_complain(&err);
            return 0;
        }
        best = (double)tiles / f.seconds > best ? (double)tiles / f.seconds : best;
    }
    return best;
}

/* What a search takes by the tiles that each block has. */
static int sizes(int sms)
{
    static const int each[] = {2, 4, 6, 8, 12, 24, 26, 48};
    static const unsigned rates[] = {32, 37};
    struct kd_gpu *g;
    struct kd_err err;

    if (kd_gpu_open(&g, 0, &err)) {
        check_complain(&err);
        return 1;
    }
    for (unsigned r : rates) {
        printf("search at %.4f bits, tiles a block:", r / 16.0);
        for (int i : each)
            printf(" %d %.3f ms,", i, 1e3 * i * sms / bare(g, kd_rate_from16(r), (int64_t)i * sms));
        printf("\n");
    }
    kd_gpu_close(g);
    return 0;
}

/* LDLQ alone: L and weights made of random numbers, as many lanes as wanted. */
static int ldlq(int lanes, int64_t k, int64_t n, int tensors)
{
    const struct kd_gpu_tensor_shape shape = {k,    n,   kd_rate_from16(32), KD_CB_MUL1, 128,
                                              true, NULL};
    const int64_t tiles = k / 16 * (n / 16);
    std::vector<float> l((size_t)(k * k)), r((size_t)(k * n));
    std::vector<std::thread> threads;
    std::vector<int> bad((size_t)lanes);
    struct kd_gpu_encoder_facts f;
    struct kd_gpu_encoder *e;
    struct kd_gpu *g;
    struct kd_err err;
    const int index = 0;
    int sum = 0;

    for (size_t i = 0; i < l.size(); i++)
        l[i] = (float)(0.2 / sqrt((double)k) * check_gauss(6, (int64_t)i % 1000003));
    for (size_t i = 0; i < r.size(); i++)
        r[i] = (float)check_gauss(7, (int64_t)i % 1000003);
    if (kd_gpu_open(&g, 0, &err)) {
        check_complain(&err);
        return 1;
    }
    const double alone = bare(g, shape.rate, lanes * (n / 16)), many = bare(g, shape.rate, 33792);
    kd_gpu_close(g);
    if (kd_gpu_encoder_open(&e, &index, 1, 0, &err)) {
        check_complain(&err);
        return 1;
    }
    const double began = kd_clock_s();
    double busy = 0;
    for (int i = 0; i < lanes; i++)
        threads.emplace_back([&, i] {
            std::vector<uint8_t> codes((size_t)tiles * 64);
            struct kd_gpu_ldlq job = {true, codes.data(), 0};
            struct kd_gpu_tensor *t;
            struct kd_err why;
            for (int b = 0; b < tensors; b++) {
                if (kd_gpu_tensor_open(&t, e, &shape, &why)) {
                    check_complain(&why);
                    bad[(size_t)i] = 1;
                    return;
                }
                if (kd_gpu_tensor_put(t, KD_GPU_PART_L, l.data(), &why) ||
                    kd_gpu_tensor_put(t, KD_GPU_PART_ROTATED, r.data(), &why) ||
                    kd_gpu_tensor_ldlq(t, &job, &why)) {
                    check_complain(&why);
                    bad[(size_t)i] = 1;
                }
                kd_gpu_tensor_close(t);
            }
            if (!i)
                printf("LDLQ %lld x %lld, K=2: MSE %.5f\n", (long long)k, (long long)n,
                       job.sum / (double)(k * n));
        });
    for (std::thread &x : threads)
        x.join();
    const double wall = kd_clock_s() - began;
    kd_gpu_encoder_facts(e, &f);
    kd_gpu_encoder_close(e);
    busy = f.targets_s + f.search_s + f.update_s;
    printf("%d lanes: %lld tiles in %.3f s, %.0f tiles/s (rounds alone %.0f); %lld rounds of %.0f "
           "tiles: before the search %.2f %%, search %.2f %%, after it %.2f %%\n",
           lanes, (long long)f.tiles, wall, (double)f.tiles / wall, (double)f.tiles / busy,
           (long long)f.rounds, (double)f.tiles / (double)f.rounds, 100 * f.targets_s / busy,
           100 * f.search_s / busy, 100 * f.update_s / busy);
    printf("bare search: %.0f tiles/s of %lld tiles at once, %.0f of 33792; rounds are %.1f %% and "
           "%.1f %% of it\n",
           alone, (long long)(lanes * (n / 16)), many, 100 * (double)f.tiles / busy / alone,
           100 * (double)f.tiles / busy / many);
    for (int x : bad)
        sum += x;
    return sum;
}

/* What lanes share while they quantize `count` tensors, the one with number 0 for the comparison.
 */
struct crew {
    struct kd_run run;
    const struct check_tensor *t;
    int count;
    std::atomic<int> next{0}, bad{0};
    std::mutex lock;
    std::vector<double> ended; /* since the start */
    double began, used_s;
    struct kd_quant_out first;
};

static void work(struct crew *c)
{
    struct kd_quant_spec spec = c->t->spec;
    struct kd_err err;
    struct timespec now;

    for (int i = c->next++; i < c->count && !c->bad; i = c->next++) {
        struct kd_quant_out out;
        spec.seed = c->t->spec.seed + (uint64_t)i;
        if (kd_quant_tensor(&c->run, &c->t->mat, &c->t->h, &spec, &out, &err)) {
            check_complain(&err);
            c->bad++;
            return;
        }
        std::lock_guard<std::mutex> one(c->lock);
        c->ended.push_back(kd_clock_s() - c->began);
        if (!i)
            c->first = out;
        else
            kd_quant_release(&out);
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    std::lock_guard<std::mutex> one(c->lock);
    c->used_s += (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void print_crew(const struct crew *c, int lanes, const struct kd_gpu_encoder_facts *f)
{
    const int64_t k = c->t->mat.cols, n = c->t->mat.rows;
    const double each = (double)(k / 16 * (n / 16)), wall = c->ended.back(), count = c->count;
    const double rounds = f->targets_s + f->search_s + f->update_s;
    const size_t from = (size_t)lanes - 1, to = (size_t)(c->count - lanes) - 1;

    printf("quantizing %lld x %lld, %.4f bits, %d lanes: %d tensors in %.3f s, %.0f tiles/s (%.0f "
           "with "
           "the scale searches)",
           (long long)n, (long long)k, kd_rate_to16(c->t->spec.rate) / 16.0, lanes, c->count, wall,
           each * count / wall, (double)f->tiles / wall);
    if (to > from && to < c->ended.size())
        printf("; without start and end %.0f",
               (double)(to - from) * each / (c->ended[to] - c->ended[from]));
    printf("\n   %.0f tiles a round, rounds are under way %.1f %% of the time (before the search "
           "%.2f %%, after it %.2f %%); a tensor is %.3f s at its turn; CPU %.3f s a tensor; "
           "%lld MiB of the device\n",
           (double)f->tiles / (double)f->rounds, 100 * rounds / wall, 100 * f->targets_s / rounds,
           100 * f->update_s / rounds, f->between_s / count, c->used_s / count,
           (long long)(f->used_bytes >> 20));
    printf(
        "   %lld rounds; searches on %.1f multiprocessors, %.0f tiles/s of each while they run\n",
        (long long)f->rounds, f->search_blocks_s / f->search_s,
        (double)f->tiles / f->search_blocks_s);
    account_print(lanes > 1 ? "beside others" : "alone", c->count);
}

/* kd_quant_tensor from the weights to the figures, none but the device and the lanes' own threads
 * at work; one result against the CPU's. */
static int whole(struct check_tensor *t, int lanes, int count)
{
    std::vector<std::thread> threads;
    struct kd_gpu_encoder_facts f;
    struct kd_gpu_encoder *e;
    struct crew c;
    struct kd_kern kern;
    struct kd_err err;
    const int index = 0;

    if (kd_kern_pick(&kern, &err) || kd_gpu_encoder_open(&e, &index, 1, 0, &err)) {
        check_complain(&err);
        return 1;
    }
    c.run = {&kern, NULL, e, false};
    c.t = t;
    c.count = count;
    c.used_s = 0;
    c.first = kd_quant_out();
    account_clear();
    c.began = kd_clock_s();
    if (kd_hess_share(&c.run, &t->h, &err)) {
        check_complain(&err);
        return 1;
    }
    for (int i = 0; i < lanes; i++)
        threads.emplace_back(work, &c);
    for (std::thread &x : threads)
        x.join();
    kd_gpu_encoder_facts(e, &f);
    kd_gpu_square_close(t->h.shared);
    t->h.shared = NULL;
    kd_gpu_encoder_close(e);
    if (c.bad)
        return 1;
    print_crew(&c, lanes, &f);
    const char *what = check_differs(&t->want, &c.first);
    printf("   %s\n", what ? what : "the CPU's bytes");
    kd_quant_release(&c.first);
    return what != NULL;
}

/* One lane, some and many more. */
static int whole_all(const struct kd_run *cpu, int lanes, int64_t k, int64_t n, unsigned sixteenths,
                     int tensors)
{
    const struct check_case c = {n,     k,           512, sixteenths, KD_CB_MUL1, KD_RECIPE_DEFAULT,
                                 false, KD_MAT_MXFP4};
    struct check_tensor t;
    struct kd_err err;

    if (check_make(&t, c, cpu, 77))
        return 1;
    const double began = kd_clock_s();
    if (check_quantize(&t, cpu, &t.want, &err)) {
        check_complain(&err);
        return 1;
    }
    printf("the CPU quantizes one in %.2f s\n", kd_clock_s() - began);
    int bad = whole(&t, 1, 2) + whole(&t, lanes, lanes * tensors);
    if (lanes < MANY)
        bad += whole(&t, MANY, MANY * tensors * 3 / 4);
    check_free(&t);
    return bad;
}

int main(int argc, char **argv)
{
    const int lanes = argc > 1 ? atoi(argv[1]) : 16;
    const int64_t k = argc > 3 ? atoll(argv[2]) : 3584, n = argc > 3 ? atoll(argv[3]) : 3072;
    struct kd_gpu_encoder *e;
    struct kd_kern kern;
    struct kd_pool *pool;
    struct kd_err err;
    const int index = 0;
    int bad = 0;

    if (!kd_gpu_count()) {
        printf("no device: skipped\n");
        return 77;
    }
    if (kd_kern_pick(&kern, &err) || kd_pool_open(&pool, 0, &err) ||
        kd_gpu_encoder_open(&e, &index, 1, 0, &err)) {
        check_complain(&err);
        return 1;
    }
    const struct kd_run cpu = {&kern, pool, NULL, false};
    bad += check_all(&cpu, e, cases, CASES);
    kd_gpu_encoder_close(e);
    bad += products(&kern, 132);
    bad += sizes(132);
    bad += ldlq(lanes, k, n, 1);
    bad += whole_all(&cpu, lanes, k, n, argc > 5 ? (unsigned)atoi(argv[5]) : 32,
                     argc > 4 ? atoi(argv[4]) : 4);
    kd_pool_close(pool);
    return bad != 0;
}
