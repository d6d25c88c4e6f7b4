/* The device's kernels for K3 outside of products, run on the CPU (tests/gpu/emulate.h): KDA and
 * the router give the CPU's bits, the residual mix and attention stay within a bound of double
 * precision, and no row's bits depend on how rows are fed or how many share a block. */
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
    const floats p_was = p, bank_was = bank;
    launch_mix(m, true, 0);
    const double d = apart(out, want);
    bool good = d < 1e-6 && !bits_differ(p, p_want) && !bits_differ(bank, bank_want);
    /* One block in the place of a team. */
    const floats team = out;
    p = p_was;
    bank = bank_was;
    launch_mix(m, false, 0);
    good =
        good && !bits_differ(out, team) && !bits_differ(p, p_want) && !bits_differ(bank, bank_want);
    hold(good, what, d);
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
                       y.data(),       nullptr};
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
            launch_kda({ROWS, cut && t > 1 ? 1 : 2, nullptr, nullptr, seg, 8, seg}, a, 0);
        }
        const size_t bad = bits_differ(y, want) + bits_differ(state[0], wanted[0]) +
                           bits_differ(state[1], wanted[1]);
        hold(!bad, cut ? "KDA token by token: bits that differ" : "KDA: bits that differ",
             (double)bad);
    }
}

/* Whole chunks between tokens one by one, several sequences; then the first of them cut where a
 * chunk ends. */
static void test_kda_chunks(void)
{
    enum { HEADS = 2, CH = HEADS * KD_GPU_K3_DIM, ROWS = 133 + 64 + 5, CUT = 67, STATE = 64 };
    const size_t floats_each = STATE + CH * KD_GPU_K3_DIM + 9 * CH;
    values v(11);
    struct kd_kern k;
    floats q = v.some(ROWS * CH, 2), kk = v.some(ROWS * CH, 2), vv = v.some(ROWS * CH, 2),
           gate = v.some(ROWS * CH, 3), z = v.some(ROWS * CH, 3, -3),
           beta = v.some(ROWS * HEADS, 3),
           taps[3] = {v.some(CH * 4), v.some(CH * 4), v.some(CH * 4)}, decay = v.some(HEADS, 1, 2),
           dt = v.some(CH), norm = v.some(KD_GPU_K3_DIM, 0.3f, 1), y(ROWS * CH, -7),
           want(ROWS * CH), work((size_t)kda_floats(HEADS, ROWS), NAN);
    floats state[4] = {v.some(floats_each), v.some(floats_each), v.some(floats_each), {}},
           wanted[3] = {state[0], state[1], state[2]};
    const int64_t first[3] = {0, 133, 197}, count[3] = {133, 64, 5}, pos[3] = {61, 0, 0};
    kd_gpu_k3_kda a = {HEADS,          4,
                       true,           -5.0f,
                       1e-5f,          q.data(),
                       kk.data(),      vv.data(),
                       gate.data(),    z.data(),
                       beta.data(),    taps[0].data(),
                       taps[1].data(), taps[2].data(),
                       decay.data(),   dt.data(),
                       norm.data(),    STATE,
                       y.data(),       work.data()};
    kd_gpu_k3_seg seg[3];
    double far = 0;
    if (kd_kern_pick(&k, nullptr)) {
        failures++;
        return;
    }
    state[3] = state[0];
    for (int s = 0; s < 3; s++) {
        seg[s] = {first[s], count[s], pos[s], wanted[s].data(), nullptr};
        kda_want(k, a, seg[s], want.data());
        seg[s].kda = state[s].data();
    }
    launch_kda({ROWS, 3, nullptr, nullptr, seg, 200, seg}, a, 0);
    far = apart(y, std::vector<double>(want.begin(), want.end()));
    for (int s = 0; s < 3; s++)
        far =
            std::max(far, apart(state[s], std::vector<double>(wanted[s].begin(), wanted[s].end())));
    hold(far < 4e-6, "KDA in chunks", far);
    const size_t tail = (size_t)first[2] * CH;
    hold(!memcmp(&y[tail], &want[tail], 5 * CH * sizeof(float)) &&
             !bits_differ(state[2], wanted[2]),
         "KDA without a whole chunk: bits that differ", 0);

    const floats whole = y;
    seg[0] = {0, CUT, 61, state[3].data(), nullptr};
    launch_kda({CUT, 1, nullptr, nullptr, seg, 200, seg}, a, 0);
    seg[0] = {CUT, 133 - CUT, 61 + CUT, state[3].data(), nullptr};
    launch_kda({133 - CUT, 1, nullptr, nullptr, seg, 200, seg}, a, 0);
    hold(!memcmp(y.data(), whole.data(), 133 * CH * sizeof(float)) &&
             !bits_differ(state[3], state[0]),
         "KDA cut at the end of a chunk: bits that differ", 0);
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
    launch_situ(x.data(), u.data(), 4.0f, 25.0f, ROWS * N, out.data(), 0);
    floats all(ROWS * N);
    k.situ(x.data(), u.data(), 4.0f, 25.0f, all.data(), ROWS * N);
    hold(!bits_differ(out, all), "SiTU: bits that differ", (double)bits_differ(out, all));
    launch_norm(x.data(), w.data(), 1e-5f, ROWS, N, out.data(), 0);
    k.rmsnorm(&x[N], w.data(), 1e-5f, N, want.data());
    const double d =
        apart(floats(out.begin() + N, out.end()), std::vector<double>(want.begin(), want.end()));
    hold(d < 5e-7, "norm", d);
    for (uint16_t &h : table)
        h = kd_f32_bf16(v.next());
    kd_gpu_k3_batch b = {ROWS, 1, ids, nullptr, nullptr, 1, nullptr};
    launch_embed(b, table.data(), true, N, out.data(), 0);
    for (size_t i = 0; i < out.size(); i++)
        bad += out[i] != kd_bf16_f32(table[(size_t)ids[i / N] * N + i % N]);
    b.ids = ids + 1;
    b.rows = 1;
    launch_embed(b, x.data(), false, N, out.data(), 0);
    bad += memcmp(out.data(), &x[N], N * sizeof(float)) != 0;
    hold(!bad, "embedding: values that differ", (double)bad);
}

/* A sequence's cache, as the kernels have it and as floats. */
struct cache {
    bool half;
    std::vector<floats> memory;
    std::vector<std::vector<uint16_t>> halves;
    std::vector<void *> page;
    cache(values &v, int64_t positions, size_t page_values, bool fast) : half(fast)
    {
        for (int64_t i = 0; i < positions; i += KD_GPU_K3_PAGE) {
            memory.push_back(v.some(page_values, 2));
            halves.emplace_back();
            for (float x : memory.back())
                halves.back().push_back(kd_f32_f16(x));
        }
        for (size_t i = 0; i < memory.size(); i++)
            page.push_back(half ? (void *)halves[i].data() : memory[i].data());
    }
    /* As it is now. */
    std::vector<const float *> values_now()
    {
        std::vector<const float *> at;
        for (size_t i = 0; i < memory.size(); i++) {
            for (size_t j = 0; half && j < memory[i].size(); j++)
                memory[i][j] = kd_f16_f32(halves[i][j]);
            at.push_back(memory[i].data());
        }
        return at;
    }
};

struct mla_case {
    int lora, heads, rows;
    bool bf16, fast;
    double bound;
    const char *what;
};

static void launch_attention(int lora, const mla_args &a, const mla_case &c)
{
    if (lora == 128)
        c.fast ? launch_mla_fast<128>(a, 0) : launch_mla<128>(a, c.bf16, 0);
    else if (lora == 256)
        c.fast ? launch_mla_fast<256>(a, 0) : launch_mla<256>(a, c.bf16, 0);
    else
        c.fast ? launch_mla_fast<512>(a, 0) : launch_mla<512>(a, c.bf16, 0);
}

/* The first sequence has last - rows + 2 .. last positions for its rows, the second one. */
static void test_mla(const mla_case &m)
{
    enum { LAYERS = 2, Q_LORA = 96 };
    const int64_t last = m.fast ? 300 : 131, w = m.lora + KD_GPU_K3_ROPE;
    const int rows = m.rows, heads = m.heads;
    const int64_t page_values = LAYERS * KD_GPU_K3_PAGE * w;
    values v((uint64_t)(m.lora + heads));
    cache c[2] = {cache(v, last, (size_t)page_values, m.fast),
                  cache(v, 3, (size_t)page_values, m.fast)};
    kd_gpu_k3_seg seg[2] = {{0, rows - 1, last - rows + 1, nullptr, c[0].page.data()},
                            {rows - 1, 1, 0, nullptr, c[1].page.data()}};
    std::vector<int32_t> row_seg((size_t)rows);
    row_seg.back() = 1;
    const kd_gpu_k3_batch b = {rows, 2, nullptr, row_seg.data(), seg, last, seg};
    floats q = v.some((size_t)(rows * heads * 192), 2), gate = v.some((size_t)(rows * heads * 128)),
           kv = v.some((size_t)(rows * w), 2), cq = v.some((size_t)(rows * Q_LORA)),
           q_norm = v.some(Q_LORA, 1, 1), kv_norm = v.some((size_t)m.lora, 0.3f, 1),
           kv_b = v.some((size_t)(heads * 256 * m.lora), 0.2f);
    std::vector<uint16_t> half(kv_b.size());
    for (size_t i = 0; i < half.size(); i++) {
        half[i] = kd_f32_bf16(kv_b[i]);
        kv_b[i] = m.bf16 ? kd_bf16_f32(half[i]) : kv_b[i];
    }
    launch_latents(b,
                   {Q_LORA, m.lora, m.fast, 1e-6f, cq.data(), kv.data(), q_norm.data(),
                    kv_norm.data(), page_values / LAYERS},
                   0);
    const std::vector<const float *> now[2] = {c[0].values_now(), c[1].values_now()};
    const float *put = now[0][(size_t)(last - 1) / 64] + page_values / LAYERS + (last - 1) % 64 * w;
    const float *fed = &kv[(size_t)((rows - 2) * w)];
    double square = 0, d = 0;
    for (int i = 0; i < m.lora; i++)
        square += (double)fed[i] * fed[i];
    for (int i = 0; i < w; i++) {
        const double x = i < m.lora
                             ? fed[i] / std::sqrt(square / m.lora + 1e-6) * kv_norm[(size_t)i]
                             : (double)fed[i];
        d = std::max(d, std::fabs(put[i] - x));
    }
    hold(d < (m.fast ? 2e-3 : 1e-6), "  cache rows, absolute difference", d);

    floats got[2];
    std::vector<double> want((size_t)(rows * heads * 128));
    for (int way = 0; way < 2; way++) { /* parts side by side, then one after the other */
        int64_t parts;
        floats y(want.size(), -7),
            work((size_t)mla_floats(m.fast, heads, m.lora, rows, last, way ? 1 : 1 << 30, &parts),
                 NAN);
        const kd_gpu_k3_mla a = {heads,       m.lora,
                                 m.fast,      q.data(),
                                 gate.data(), m.bf16 ? (const void *)half.data() : kv_b.data(),
                                 m.bf16,      page_values / LAYERS,
                                 work.data(), parts,
                                 y.data(),    0};
        if (parts != (way ? 1 : 4))
            failures++;
        launch_attention(m.lora, mla_args_of(b, a), m);
        got[way] = y;
        for (int64_t r = 0; r < rows && !way; r++)
            mla_want(a, now[row_seg[(size_t)r]].data(), r, r < rows - 1 ? last - rows + 2 + r : 1,
                     kv_b, &want[(size_t)(r * heads * 128)]);
    }
    d = apart(got[0], want);
    hold(d < m.bound && !bits_differ(got[0], got[1]), m.what, d);
    /* The last two rows alone. */
    kd_gpu_k3_seg few[2] = {{0, 1, last - 1, nullptr, c[0].page.data()},
                            {1, 1, 0, nullptr, c[1].page.data()}};
    const int32_t few_seg[2] = {0, 1};
    int64_t parts;
    floats y((size_t)(2 * heads * 128)),
        work((size_t)mla_floats(m.fast, heads, m.lora, 2, last, 1 << 30, &parts));
    const size_t from = (size_t)((rows - 2) * heads);
    launch_attention(m.lora,
                     mla_args_of({2, 2, nullptr, few_seg, few, last, few},
                                 {heads, m.lora, m.fast, &q[from * 192], &gate[from * 128],
                                  m.bf16 ? (const void *)half.data() : kv_b.data(), m.bf16,
                                  page_values / LAYERS, work.data(), parts, y.data(), 0}),
                     m);
    hold(!memcmp(y.data(), &got[0][from * 128], y.size() * 4), "  two rows alone: same bits", 0);
}

/* How many heads share a block changes no bits. */
static void test_head_tiles(void)
{
    enum { HEADS = 20, LORA = 128, W = LORA + KD_GPU_K3_ROPE, N = 70 };
    values v(12);
    cache c(v, N, KD_GPU_K3_PAGE * W, true);
    kd_gpu_k3_seg seg = {0, 1, N - 1, nullptr, c.page.data()};
    const int32_t row_seg = 0;
    std::vector<uint16_t> latent;
    for (float x : v.some(HEADS * W))
        latent.push_back(kd_f32_f16(x));
    floats slot[2] = {floats(HEADS * (LORA + MLA_SLOT)), floats(HEADS * (LORA + MLA_SLOT))};
    for (int way = 0; way < 2; way++) {
        const mla_args a = {{1, 1, nullptr, &row_seg, &seg, N, &seg},
                            HEADS,
                            0,
                            FAST_PART,
                            nullptr,
                            nullptr,
                            nullptr,
                            latent.data(),
                            slot[way].data(),
                            1,
                            nullptr,
                            0};
        way ? launch_attend_fast<LORA, 3>(a, 0) : launch_attend_fast<LORA, 1>(a, 0);
    }
    const size_t bad = bits_differ(slot[0], slot[1]);
    hold(!bad, "heads in blocks of 16 and 48: bits that differ", (double)bad);
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

/* Rows as they are stored, and whether they are finite; a block and a part of one. */
static void test_stored(void)
{
    enum { COUNT = NORM_THREADS + 9 };
    values v(5);
    floats x = v.some(COUNT, 3);
    const floats was = x;
    std::vector<uint16_t> out(COUNT);
    int32_t bad = 0;
    int wrong = 0;
    launch_round(x.data(), COUNT, out.data(), 0);
    for (int i = 0; i < COUNT; i++)
        wrong += out[(size_t)i] != kd_f32_bf16(was[(size_t)i]) ||
                 x[(size_t)i] != kd_bf16_f32(out[(size_t)i]);
    launch_finite(x.data(), COUNT, &bad, 0);
    wrong += bad;
    for (const float odd : {INFINITY, -INFINITY, NAN}) {
        bad = 0;
        x[COUNT - 1] = odd;
        launch_finite(x.data(), COUNT, &bad, 0);
        wrong += !bad;
    }
    hold(!wrong, "rows as stored, and finite", wrong);
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
    test_stored();
    test_kda();
    test_kda_chunks();
    test_mla({128, 2, 6, true, false, 2e-6, "MLA, latents of 128, two heads"});
    test_mla({256, 4, 2, false, false, 2e-6, "MLA, latents of 256, fp32"});
    test_mla({512, 19, 2, true, false, 2e-6, "MLA, latents of 512, 19 heads"});
    test_mla({128, 2, 35, true, true, 1e-3, "MLA on tensor cores, latents of 128, two heads"});
    test_mla({256, 4, 2, true, true, 1e-3, "MLA on tensor cores, latents of 256"});
    test_mla({512, 19, 2, true, true, 1e-3, "MLA on tensor cores, latents of 512, 19 heads"});
    test_head_tiles();
    test_route(896, 16, 16, true);
    test_route(1000, 32, 30, true);
    test_route(72, 8, 8, true);
    test_route(20, 4, 3, false);
    test_mass();
    return failures != 0;
}
