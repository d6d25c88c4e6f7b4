/* The device's kernels for K3 outside of products, run on the CPU (tests/gpu/emulate.h): KDA and
 * the router give the CPU's bits, the residual mix and attention stay within a bound of double
 * precision, and no row's bits depend on how rows are fed. */
#define KD_GPU_EMULATE
#include "gpu/k3_launch.cuh"

#include "gpu/k3_reference.h"

using namespace kd_k3;

static int failures;

static void hold(bool good, const char *what, double figure)
{
    printf("%-40s %.3g%s\n", what, figure, good ? "" : "  WRONG");
    failures += !good;
}

static void test_mix(int banks, bool push, bool replace, bool more, bool add, const char *what)
{
    enum { ROWS = 2, HIDDEN = 520, HELD = 3 };
    values v((uint64_t)banks + 7);
    floats p = v.some(HELD * HIDDEN), bank = v.some((size_t)(banks + 1) * HELD * HIDDEN, 2),
           a = v.some(HELD * HIDDEN), b = v.some(HELD * HIDDEN), query = v.some(HIDDEN, 0.2f),
           norm = v.some(HIDDEN, 0.3f, 1), out(ROWS * HIDDEN);
    const int32_t pick[ROWS] = {2, 0};
    kd_gpu_k3_mix m = {ROWS,    HIDDEN, p.data(),     bank.data(), HELD, banks, a.data(),  b.data(),
                       replace, push,   query.data(), norm.data(), pick, 1e-5f, out.data()};
    m.add = add ? m.add : nullptr;
    m.more = more ? m.more : nullptr;
    floats p_want = p, bank_want = bank;
    const std::vector<double> want = mix_want(m, &p_want, &bank_want);
    launch_mix(m, 0);
    const double d = apart(out, want);
    hold(d < 1e-6 && !bits_differ(p, p_want) && !bits_differ(bank, bank_want), what, d);
}

/* Two sequences, tokens fed in cuts; the states and outputs must be the CPU's each time. */
static void test_kda(void)
{
    enum { HEADS = 2, CH = HEADS * KD_GPU_K3_DIM, ROWS = 7, STATE = 64 };
    const size_t floats_each = STATE + CH * KD_GPU_K3_DIM + 9 * CH;
    values v(3);
    struct kd_kern k;
    floats q = v.some(ROWS * CH, 2), kk = v.some(ROWS * CH, 2), vv = v.some(ROWS * CH, 2),
           gate = v.some(ROWS * CH, 3), z = v.some(ROWS * CH, 3), beta = v.some(ROWS * HEADS, 3),
           taps[3] = {v.some(CH * 4), v.some(CH * 4), v.some(CH * 4)}, decay = v.some(HEADS, 1, 2),
           dt = v.some(CH), norm = v.some(KD_GPU_K3_DIM, 0.3f, 1), y(ROWS * CH, -7),
           want(ROWS * CH);
    floats state[2] = {v.some(floats_each), v.some(floats_each)}, wanted[2] = {state[0], state[1]};
    kd_gpu_k3_kda a = {HEADS,          4,
                       true,           -5.0f,
                       1e-5f,          q.data(),
                       kk.data(),      vv.data(),
                       gate.data(),    z.data(),
                       beta.data(),    taps[0].data(),
                       taps[1].data(), taps[2].data(),
                       decay.data(),   dt.data(),
                       norm.data(),    STATE,
                       y.data()};
    if (kd_kern_pick(&k, nullptr)) {
        failures++;
        return;
    }
    /* Rows 0..4 of the first sequence, 5 and 6 of the second: at once, then token by token. */
    for (int cut = 0; cut < 2; cut++) {
        for (int s = 0; s < 2; s++) {
            kd_gpu_k3_seg seg = {s ? 5 : 0, s ? 2 : 5, 0, wanted[s].data(), nullptr};
            kda_want(k, a, seg, want.data());
        }
        for (int64_t t = 0; t < (cut ? 5 : 1); t++) {
            kd_gpu_k3_seg seg[2] = {{t, cut ? 1 : 5, 0, state[0].data(), nullptr},
                                    {5 + t, cut ? 1 : 2, 0, state[1].data(), nullptr}};
            launch_kda({ROWS, cut && t > 1 ? 1 : 2, nullptr, nullptr, seg, 8}, a, 0);
        }
        const size_t bad = bits_differ(y, want) + bits_differ(state[0], wanted[0]) +
                           bits_differ(state[1], wanted[1]);
        hold(!bad, cut ? "KDA token by token: bits that differ" : "KDA: bits that differ",
             (double)bad);
    }
}

/* What works on rows or values alone. */
static void test_rows(void)
{
    enum { ROWS = 2, N = 300 };
    values v(5);
    struct kd_kern k;
    floats x = v.some(ROWS * N, 20), u = v.some(ROWS * N, 40), w = v.some(N), out(ROWS * N),
           want(N);
    std::vector<uint16_t> table(4 * N);
    const int32_t ids[ROWS] = {3, 1};
    size_t bad = 0;
    if (kd_kern_pick(&k, nullptr)) {
        failures++;
        return;
    }
    KD_LAUNCH(situ_all, (ROWS * N + NORM_THREADS - 1) / NORM_THREADS, NORM_THREADS, 0, 0, x.data(),
              u.data(), 4.0f, 25.0f, (int64_t)(ROWS * N), out.data());
    floats all(ROWS * N);
    k.situ(x.data(), u.data(), 4.0f, 25.0f, all.data(), ROWS * N);
    hold(!bits_differ(out, all), "SiTU: bits that differ", (double)bits_differ(out, all));
    KD_LAUNCH(norm_rows, ROWS, NORM_THREADS, NORM_THREADS / 32 * sizeof(float), 0, x.data(),
              w.data(), 1e-5f, (int64_t)N, out.data());
    k.rmsnorm(&x[N], w.data(), 1e-5f, N, want.data());
    const double d =
        apart(floats(out.begin() + N, out.end()), std::vector<double>(want.begin(), want.end()));
    hold(d < 5e-7, "norm", d);
    for (uint16_t &h : table)
        h = kd_f32_bf16(v.next());
    KD_LAUNCH(embed_rows, ROWS, NORM_THREADS, 0, 0, ids, table.data(), true, (int64_t)N,
              out.data());
    for (size_t i = 0; i < out.size(); i++)
        bad += out[i] != kd_bf16_f32(table[(size_t)ids[i / N] * N + i % N]);
    KD_LAUNCH(embed_rows, 1, NORM_THREADS, 0, 0, ids + 1, x.data(), false, (int64_t)N, out.data());
    bad += memcmp(out.data(), &x[N], N * sizeof(float)) != 0;
    hold(!bad, "embedding: values that differ", (double)bad);
}

struct cache {
    std::vector<floats> memory;
    std::vector<float *> page;
    cache(values &v, int64_t positions, size_t page_floats)
    {
        for (int64_t i = 0; i < positions; i += KD_GPU_K3_PAGE)
            memory.push_back(v.some(page_floats, 2));
        for (floats &f : memory)
            page.push_back(f.data());
    }
};

/* The first sequence has LAST - ROWS + 2 .. LAST positions for its rows, the second one.  */
template <int LORA, bool BF16, int ROWS> static void test_mla(int heads, const char *what)
{
    enum { LAST = 131, LAYERS = 2, Q_LORA = 96, W = LORA + KD_GPU_K3_ROPE, PARTS = 4 };
    const int64_t page_floats = LAYERS * KD_GPU_K3_PAGE * W;
    values v(LORA + (unsigned)heads);
    cache c[2] = {cache(v, LAST, (size_t)page_floats), cache(v, 3, (size_t)page_floats)};
    kd_gpu_k3_seg seg[2] = {{0, ROWS - 1, LAST - ROWS + 1, nullptr, c[0].page.data()},
                            {ROWS - 1, 1, 0, nullptr, c[1].page.data()}};
    int32_t row_seg[ROWS] = {0};
    row_seg[ROWS - 1] = 1;
    const kd_gpu_k3_batch b = {ROWS, 2, nullptr, row_seg, seg, LAST};
    floats q = v.some((size_t)(ROWS * heads * 192), 2), gate = v.some((size_t)(ROWS * heads * 128)),
           kv = v.some(ROWS * W, 2), cq = v.some(ROWS * Q_LORA), q_norm = v.some(Q_LORA, 1, 1),
           kv_norm = v.some(LORA, 0.3f, 1), kv_b = v.some((size_t)(heads * 256 * LORA), 0.2f);
    std::vector<uint16_t> half(kv_b.size());
    for (size_t i = 0; i < half.size(); i++) {
        half[i] = kd_f32_bf16(kv_b[i]);
        kv_b[i] = BF16 ? kd_bf16_f32(half[i]) : kv_b[i];
    }
    launch_latents(b,
                   {Q_LORA, LORA, 1e-6f, cq.data(), kv.data(), q_norm.data(), kv_norm.data(),
                    page_floats / LAYERS},
                   0);
    const float *put = c[0].page[(LAST - 1) / 64] + page_floats / LAYERS + (LAST - 1) % 64 * W;
    double square = 0, d = 0;
    for (int i = 0; i < LORA; i++)
        square += (double)kv[(ROWS - 2) * W + (size_t)i] * kv[(ROWS - 2) * W + (size_t)i];
    for (int i = 0; i < LORA; i++)
        d = std::max(d,
                     std::fabs(put[i] - kv[(ROWS - 2) * W + (size_t)i] /
                                            std::sqrt(square / LORA + 1e-6) * kv_norm[(size_t)i]));
    hold(d < 1e-6 && !memcmp(put + LORA, &kv[(ROWS - 2) * W + LORA], 4 * KD_GPU_K3_ROPE),
         "  cache rows, absolute difference", d);

    floats got[2];
    std::vector<double> want((size_t)(ROWS * heads * 128));
    for (int way = 0; way < 2; way++) { /* parts side by side, then one after the other */
        int64_t parts;
        floats y(want.size(), -7),
            work((size_t)mla_floats(heads, LORA, ROWS, LAST, way ? 1 : 1 << 30, &parts), NAN);
        kd_gpu_k3_mla m = {heads,
                           LORA,
                           q.data(),
                           gate.data(),
                           BF16 ? (const void *)half.data() : kv_b.data(),
                           BF16,
                           page_floats / LAYERS,
                           work.data(),
                           parts,
                           y.data()};
        if (parts != (way ? 1 : PARTS))
            failures++;
        launch_mla<LORA>(mla_args_of(b, m), BF16, 0);
        got[way] = y;
        for (int64_t r = 0; r < ROWS && !way; r++)
            mla_want(m, c[row_seg[r]].page.data(), r, r < ROWS - 1 ? LAST - ROWS + 2 + r : 1, kv_b,
                     &want[(size_t)(r * heads * 128)]);
    }
    d = apart(got[0], want);
    hold(d < 2e-6 && !bits_differ(got[0], got[1]), what, d);
    /* The last two rows alone. */
    kd_gpu_k3_seg few[2] = {{0, 1, LAST - 1, nullptr, c[0].page.data()},
                            {1, 1, 0, nullptr, c[1].page.data()}};
    const int32_t few_seg[2] = {0, 1};
    int64_t parts;
    floats y((size_t)(2 * heads * 128)),
        work((size_t)mla_floats(heads, LORA, 2, LAST, 1 << 30, &parts));
    const size_t from = (size_t)((ROWS - 2) * heads);
    launch_mla<LORA>(mla_args_of({2, 2, nullptr, few_seg, few, LAST},
                                 {heads, LORA, &q[from * 192], &gate[from * 128],
                                  BF16 ? (const void *)half.data() : kv_b.data(), BF16,
                                  page_floats / LAYERS, work.data(), parts, y.data()}),
                     BF16, 0);
    hold(!memcmp(y.data(), &got[0][from * 128], y.size() * 4), "  two rows alone: same bits", 0);
}

static void test_route(int64_t experts, int64_t topk, int64_t used, bool renormalize)
{
    enum { ROWS = 3 };
    values v((uint64_t)experts);
    struct kd_kern k;
    floats logits = v.some((size_t)(ROWS * experts), 3), bias = v.some((size_t)experts, 0.01f),
           w((size_t)(ROWS * topk)), want_w = w;
    std::vector<int32_t> ids(w.size(), -7), want_ids = ids;
    if (kd_kern_pick(&k, nullptr)) {
        failures++;
        return;
    }
    for (int64_t e = 0; e < experts; e++) { /* ties of the highest, a NaN, the lowest */
        logits[(size_t)e] = e % 3 ? logits[(size_t)e] : 4.0f;
        bias[(size_t)e] = e % 3 ? bias[(size_t)e] : 0.25f;
    }
    logits[(size_t)experts + 1] = NAN;
    bias[2] = -INFINITY;
    const kd_gpu_k3_route a = {ROWS, experts,       topk,        used,       renormalize, 2.5f,
                               0,    logits.data(), bias.data(), ids.data(), w.data()};
    launch_route(a, 0);
    for (int64_t r = 0; r < ROWS; r++)
        route_want(k, a, r, &want_ids[(size_t)(r * topk)], &want_w[(size_t)(r * topk)]);
    hold(ids == want_ids && !bits_differ(w, want_w), "router, experts", (double)experts);
}

/* Weights .5 .3 .2 in the router's order, by mass. */
static void test_mass(void)
{
    const float logits[4] = {0, 1, 2, -9}, bias[4] = {9, 5, 1, 0};
    float w[3];
    int32_t ids[3];
    kd_gpu_k3_route a = {1, 4, 3, 3, true, 1, 0.5, logits, bias, ids, w};
    launch_route(a, 0);
    bool good = ids[0] == 2 && ids[1] == 1 && ids[2] == -1 && w[2] == 0;
    good = good && std::fabs(w[0] + w[1] - 1) < 1e-6 && w[0] > w[1];
    hold(good, "router, mass", w[0]);
}

int main(void)
{
    test_mix(0, true, true, false, true, "mix, first layer's attention output");
    test_mix(0, false, false, false, false, "mix of the embedding alone");
    test_mix(2, false, false, true, true, "mix, two banks");
    test_mix(4, true, true, false, true, "mix, four banks and a push");
    test_mix(8, false, false, true, true, "mix, eight banks");
    test_mix(14, true, true, false, true, "mix, fifteen banks");
    test_rows();
    test_kda();
    test_mla<128, true, 6>(2, "MLA, latents of 128, two heads");
    test_mla<256, false, 2>(4, "MLA, latents of 256, fp32");
    test_mla<512, true, 2>(19, "MLA, latents of 512, 19 heads");
    test_route(896, 16, 16, true);
    test_route(32, 4, 3, false);
    test_mass();
    return failures != 0;
}
