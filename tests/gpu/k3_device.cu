/* K3's operations beside products on a device, at K3's shapes: against the CPU (bits where they are
 * promised, double precision within a bound elsewhere), then their times as a graph runs them.
 * Without a device: 77, a skip. */
#include "gpu/device.cuh"
extern "C" {
#include "gpu/graph.h"
#include "gpu/memory.h"
}
#include "gpu/k3_reference.h"
#include "gpu/must.h"

#include <functional>

enum {
    HIDDEN = 7168,
    HEADS = 96,
    D = KD_GPU_K3_DIM,
    CH = HEADS * D,
    LORA = 512,
    WIDTH = LORA + KD_GPU_K3_ROPE,
    QD = D + KD_GPU_K3_ROPE,
    EXPERTS = 896,
    TOPK = 16,
    STATE = HEADS * D * D + 9 * CH, /* floats of one KDA layer */
    REPEAT = 20
};

static struct kd_gpu *gpu;
static struct kd_err err;
static int failures;

static void hold(bool good, const char *what, double figure)
{
    printf("  %-46s %.3g%s\n", what, figure, good ? "" : "  WRONG");
    failures += !good;
}

/* Device memory with the values of a host array, or zeros. */
template <class T> struct there {
    T *at = nullptr;
    int64_t count = 0;
    explicit there(int64_t n) : count(n)
    {
        void *p;
        must(kd_gpu_alloc(gpu, &p, n * (int64_t)sizeof(T), "a test's array", &err));
        at = (T *)p;
    }
    explicit there(const std::vector<T> &v) : there((int64_t)v.size())
    {
        must(kd_gpu_upload(gpu, at, v.data(), count * (int64_t)sizeof(T), &err));
    }
    there(const there &) = delete;
    ~there()
    {
        kd_gpu_release(gpu, at);
    }
    std::vector<T> back() const
    {
        std::vector<T> v((size_t)count);
        must(kd_gpu_download(gpu, v.data(), at, count * (int64_t)sizeof(T), &err));
        return v;
    }
};

/* Sequences of a batch: `count` rows each, `pos` positions before them. */
struct batch {
    std::vector<there<void *> *> tables;
    there<kd_gpu_k3_seg> seg;
    there<int32_t> row_seg, ids;
    std::vector<kd_gpu_k3_seg> host;
    kd_gpu_k3_batch b;
    struct one {
        int64_t count, pos;
        float *kda;
        std::vector<void *> pages;
    };
    explicit batch(const std::vector<one> &s)
        : seg((int64_t)s.size()), row_seg(rows_of(s)), ids(rows_of(s)), b()
    {
        std::vector<int32_t> of, tokens;
        for (const one &o : s) {
            tables.push_back(new there<void *>(o.pages.empty() ? std::vector<void *>(1) : o.pages));
            host.push_back({(int64_t)of.size(), o.count, o.pos, o.kda, tables.back()->at});
            b.longest = std::max(b.longest, o.pos + o.count);
            for (int64_t i = 0; i < o.count; i++)
                of.push_back((int32_t)host.size() - 1);
        }
        for (size_t i = 0; i < of.size(); i++)
            tokens.push_back((int32_t)(i * 7 % 50));
        must(
            kd_gpu_upload(gpu, seg.at, host.data(), (int64_t)(host.size() * sizeof host[0]), &err));
        must(kd_gpu_upload(gpu, row_seg.at, of.data(), (int64_t)of.size() * 4, &err));
        must(kd_gpu_upload(gpu, ids.at, tokens.data(), (int64_t)tokens.size() * 4, &err));
        b.rows = (int64_t)of.size();
        b.segs = (int64_t)s.size();
        b.ids = ids.at;
        b.row_seg = row_seg.at;
        b.seg = seg.at;
        b.host = host.data();
    }
    ~batch()
    {
        for (there<void *> *t : tables)
            delete t;
    }
    static int64_t rows_of(const std::vector<one> &s)
    {
        int64_t n = 0;
        for (const one &o : s)
            n += o.count;
        return n;
    }
};

static void check_mix(int banks, bool push, bool replace, bool more)
{
    enum { ROWS = 3 };
    values v((uint64_t)banks);
    floats p = v.some(ROWS * HIDDEN), bank = v.some((size_t)(banks + 1) * ROWS * HIDDEN, 2),
           a = v.some(ROWS * HIDDEN), b = v.some(ROWS * HIDDEN), query = v.some(HIDDEN, 0.05f),
           norm = v.some(HIDDEN, 0.3f, 1);
    there<float> dp(p), dbank(bank), da(a), db(b), dq(query), dn(norm), out(ROWS * HIDDEN);
    kd_gpu_k3_mix m = {ROWS,    HIDDEN, p.data(),     bank.data(),
                       ROWS,    banks,  a.data(),     more ? b.data() : nullptr,
                       replace, push,   query.data(), norm.data(),
                       nullptr, 1e-5f,  nullptr};
    floats p_want = p, bank_want = bank;
    const std::vector<double> want = mix_want(m, &p_want, &bank_want);
    m.p = dp.at;
    m.bank = dbank.at;
    m.add = da.at;
    m.more = more ? db.at : nullptr;
    m.query = dq.at;
    m.norm = dn.at;
    m.out = out.at;
    must(kd_gpu_k3_mix_run(gpu, &m, &err));
    const double d = apart(out.back(), want);
    char what[64];
    snprintf(what, sizeof what, "mix, %d banks%s, of double precision", banks, push ? " + 1" : "");
    hold(d < 1e-6 && !bits_differ(dp.back(), p_want) && !bits_differ(dbank.back(), bank_want), what,
         d);
}

/* Projections and weights of a KDA layer. */
struct kda_layer {
    floats q, k, v, gate, z, beta, taps[3], decay, dt, norm;
    there<float> dq, dk, dv, dgate, dz, dbeta, t0, t1, t2, ddecay, ddt, dnorm, y;
    explicit kda_layer(values &r, int64_t rows, float middle = 0)
        : q(r.some((size_t)(rows * CH), 2)), k(r.some((size_t)(rows * CH), 2)),
          v(r.some((size_t)(rows * CH), 2)), gate(r.some((size_t)(rows * CH), 3)),
          z(r.some((size_t)(rows * CH), 3, middle)),
          beta(r.some((size_t)(rows * HEADS), 3)), taps{r.some(CH * 4), r.some(CH * 4),
                                                        r.some(CH * 4)},
          decay(r.some(HEADS, 1, 2)), dt(r.some(CH)), norm(r.some(D, 0.3f, 1)), dq(q), dk(k), dv(v),
          dgate(gate), dz(z), dbeta(beta), t0(taps[0]), t1(taps[1]), t2(taps[2]), ddecay(decay),
          ddt(dt), dnorm(norm), y(rows * CH)
    {
    }
    kd_gpu_k3_kda device(int64_t state, float *work = nullptr) const
    {
        return {HEADS,    4,     true,  -5.0f, 1e-5f,     dq.at,  dk.at,    dv.at, dgate.at, dz.at,
                dbeta.at, t0.at, t1.at, t2.at, ddecay.at, ddt.at, dnorm.at, state, y.at,     work};
    }
    kd_gpu_k3_kda host() const
    {
        return {HEADS,          4,
                true,           -5.0f,
                1e-5f,          q.data(),
                k.data(),       v.data(),
                gate.data(),    z.data(),
                beta.data(),    taps[0].data(),
                taps[1].data(), taps[2].data(),
                decay.data(),   dt.data(),
                norm.data(),    0,
                nullptr,        nullptr};
    }
};

static void check_kda(const struct kd_kern &k)
{
    enum { ROWS = 7 };
    values v(3);
    kda_layer L(v, ROWS);
    floats state[2] = {v.some(STATE), v.some(STATE)}, want(ROWS * CH);
    there<float> s0(state[0]), s1(state[1]);
    batch b({{5, 0, s0.at, {}}, {2, 0, s1.at, {}}});
    const kd_gpu_k3_kda a = L.device(0);
    for (int i = 0; i < 2; i++) {
        const kd_gpu_k3_seg seg = {i ? 5 : 0, i ? 2 : 5, 0, state[i].data(), nullptr};
        kda_want(k, L.host(), seg, want.data());
    }
    must(kd_gpu_k3_kda_run(gpu, &b.b, &a, &err));
    const size_t bad = bits_differ(L.y.back(), want) + bits_differ(s0.back(), state[0]) +
                       bits_differ(s1.back(), state[1]);
    hold(!bad, "KDA, 5 + 2 tokens: bits unlike the CPU's", (double)bad);
}

/* Chunks against the recurrence, from the middle of a chunk on; then cut at a chunk's end. */
static void check_kda_chunks(const struct kd_kern &k)
{
    enum { ROWS = 3 + 3 * 64 + 9, CUT = 3 + 64 };
    values v(5);
    kda_layer L(v, ROWS, -4); /* little decays */
    floats state = v.some(STATE), want(ROWS * CH);
    there<float> s0(state), s1(state), work(kd_gpu_k3_kda_floats(HEADS, ROWS));
    batch b({{ROWS, 61, s0.at, {}}});
    kd_gpu_k3_kda a = L.device(0, work.at);
    const kd_gpu_k3_seg seg = {0, ROWS, 61, state.data(), nullptr};
    kda_want(k, L.host(), seg, want.data());
    must(kd_gpu_k3_kda_run(gpu, &b.b, &a, &err));
    const floats whole = L.y.back(), after = s0.back();
    const double far = std::max(apart(whole, std::vector<double>(want.begin(), want.end())),
                                apart(after, std::vector<double>(state.begin(), state.end())));
    hold(far < 4e-6, "KDA in chunks, 204 tokens", far);
    for (int half = 0; half < 2; half++) {
        const int64_t from = half ? CUT : 0;
        batch part({{half ? ROWS - CUT : CUT, 61 + from, s1.at, {}}});
        kd_gpu_k3_kda c = a;
        for (const float **x : {&c.q, &c.k, &c.v, &c.gate, &c.z})
            *x += from * CH;
        c.beta += from * HEADS;
        c.y += from * CH;
        must(kd_gpu_k3_kda_run(gpu, &part.b, &c, &err));
    }
    const size_t bad = bits_differ(L.y.back(), whole) + bits_differ(s1.back(), after);
    hold(!bad, "KDA in chunks, cut at a chunk's end: bits that differ", (double)bad);
}

static void check_route(const struct kd_kern &k)
{
    enum { ROWS = 64 };
    values v(4);
    floats logits = v.some(ROWS * EXPERTS, 4), bias = v.some(EXPERTS, 0.02f), w(ROWS * TOPK);
    std::vector<int32_t> ids(ROWS * TOPK);
    for (size_t i = 0; i < logits.size(); i += 5)
        logits[i] = 2.0f;
    for (size_t e = 0; e < EXPERTS; e += 3)
        bias[e] = 0.01f;
    there<float> dl(logits), db(bias), dw(ROWS * TOPK);
    there<int32_t> di(ROWS * TOPK);
    kd_gpu_k3_route a = {ROWS, EXPERTS, TOPK, TOPK, true, 1, 0, dl.at, db.at, di.at, dw.at};
    must(kd_gpu_k3_route_run(gpu, &a, &err));
    a.logits = logits.data();
    a.bias = bias.data();
    for (int64_t r = 0; r < ROWS; r++)
        route_want(k, a, r, &ids[(size_t)(r * TOPK)], &w[(size_t)(r * TOPK)]);
    const size_t bad = bits_differ(dw.back(), w) + (di.back() != ids);
    hold(!bad, "router, 64 rows with ties: unlike the CPU's", (double)bad);
}

/* Pages of one layer. */
static std::vector<void *> pages_of(void *memory, int64_t positions, bool fast)
{
    std::vector<void *> p;
    for (int64_t i = 0; i < positions; i += KD_GPU_K3_PAGE)
        p.push_back((char *)memory + i * WIDTH * (fast ? 2 : 4));
    return p;
}

/* Attention of `few` rows at the end of a context and one in its midst. */
static void check_mla(int64_t positions, int few, bool fast)
{
    const int rows = few + 1;
    values v((uint64_t)positions);
    const int64_t room = (positions + KD_GPU_K3_PAGE - 1) / KD_GPU_K3_PAGE * KD_GPU_K3_PAGE;
    floats cache = v.some((size_t)(room * WIDTH)), q = v.some((size_t)(rows * HEADS * QD), 2),
           gate = v.some((size_t)(rows * CH)), kv_b = v.some((size_t)HEADS * 2 * D * LORA, 0.05f);
    std::vector<uint16_t> half(kv_b.size()), half_cache(cache.size());
    for (size_t i = 0; i < half.size(); i++) {
        half[i] = kd_f32_bf16(kv_b[i]);
        kv_b[i] = kd_bf16_f32(half[i]);
    }
    for (size_t i = 0; fast && i < cache.size(); i++) {
        half_cache[i] = kd_f32_f16(cache[i]);
        cache[i] = kd_f16_f32(half_cache[i]);
    }
    there<float> dc(cache), dq(q), dg(gate), y(rows * CH);
    there<uint16_t> dkv(half), dhalf(half_cache);
    std::vector<void *> pages = pages_of(fast ? (void *)dhalf.at : dc.at, room, fast);
    std::vector<const float *> host;
    for (int64_t i = 0; i < room; i += KD_GPU_K3_PAGE)
        host.push_back(cache.data() + i * WIDTH);
    batch b({{few, positions - few, nullptr, pages}, {1, 40, nullptr, pages}});
    floats got[2];
    kd_gpu_k3_mla m = {HEADS, LORA, fast, dq.at, dg.at, dkv.at, true, 0, nullptr, 0, y.at, 0};
    for (int way = 0; way < 2; way++) {
        there<float> work(kd_gpu_k3_mla_floats(fast, HEADS, LORA, rows, b.b.longest,
                                               way ? 1 : 1 << 30, &m.parts));
        m.work = work.at;
        must(kd_gpu_k3_mla_run(gpu, &b.b, &m, &err));
        got[way] = y.back();
    }
    /* The first row, the last one of the first sequence, and the other sequence's. */
    const int held[3] = {0, few - 1, few};
    floats some;
    std::vector<double> want(3 * CH);
    m.q = q.data();
    m.gate = gate.data();
    for (int i = 0; i < 3; i++) {
        const int r = held[i];
        mla_want(m, host.data(), r, r < few ? positions - few + 1 + r : 41, kv_b,
                 &want[(size_t)(i * CH)]);
        some.insert(some.end(), got[0].begin() + r * CH, got[0].begin() + (r + 1) * CH);
    }
    char what[80];
    snprintf(what, sizeof what, "MLA%s, %d rows, %lld positions, of double precision",
             fast ? " fast" : "", rows, (long long)positions);
    const double d = apart(some, want);
    hold(d < (fast ? 1e-3 : 3e-6), what, d);
    hold(!bits_differ(got[0], got[1]), "  parts at once and in turn: bits that differ",
         (double)bits_differ(got[0], got[1]));
    batch alone({{1, positions - 1, nullptr, pages}});
    there<float> work(kd_gpu_k3_mla_floats(fast, HEADS, LORA, 1, positions, 1 << 30, &m.parts)),
        one(CH);
    const int last = few - 1;
    m = {HEADS,
         LORA,
         fast,
         dq.at + last * HEADS * QD,
         dg.at + last * CH,
         dkv.at,
         true,
         0,
         work.at,
         m.parts,
         one.at,
         0};
    must(kd_gpu_k3_mla_run(gpu, &alone.b, &m, &err));
    const size_t bad =
        bits_differ(one.back(), floats(got[0].begin() + last * CH, got[0].begin() + few * CH));
    hold(!bad, "  a row alone: bits that differ", (double)bad);
}

/* A prompt of 200 tokens after 500, another of 70 and three rows of a third: some rows against
 * double precision; the first alone, in cuts and in little room has the same bits. */
static void check_prompts(void)
{
    enum { POS = 500, COUNT = 200, ROWS = COUNT + 3 + 70, CUT = 77, ROOM = 768 };
    values v(31);
    floats cache = v.some((size_t)(ROOM * WIDTH)), q = v.some((size_t)ROWS * HEADS * QD, 2),
           gate = v.some((size_t)(ROWS * CH)), kv_b = v.some((size_t)HEADS * 2 * D * LORA, 0.05f);
    std::vector<uint16_t> half, half_cache;
    for (float &x : kv_b) {
        half.push_back(kd_f32_bf16(x));
        x = kd_bf16_f32(half.back());
    }
    for (float &x : cache) {
        half_cache.push_back(kd_f32_f16(x));
        x = kd_f16_f32(half_cache.back());
    }
    there<float> dq(q), dg(gate), y(ROWS * CH);
    there<uint16_t> dkv(half), dcache(half_cache);
    const std::vector<void *> pages = pages_of(dcache.at, ROOM, true);
    std::vector<const float *> host;
    for (int64_t i = 0; i < ROOM; i += KD_GPU_K3_PAGE)
        host.push_back(cache.data() + i * WIDTH);
    /* Rows from `row` on, with `more` bytes of work space. */
    auto run = [&](const std::vector<batch::one> &s, int64_t row, int64_t least) {
        batch b(s);
        kd_gpu_k3_mla m = {HEADS,
                           LORA,
                           true,
                           dq.at + row * HEADS * QD,
                           dg.at + row * CH,
                           dkv.at,
                           true,
                           0,
                           nullptr,
                           0,
                           y.at + row * CH,
                           0};
        m.floats = kd_gpu_k3_mla_floats(true, HEADS, LORA, b.b.rows, b.b.longest, 0, &m.parts);
        m.floats = least ? least : m.floats;
        there<float> work(m.floats);
        m.work = work.at;
        must(kd_gpu_k3_mla_run(gpu, &b.b, &m, &err));
        return y.back();
    };
    const floats all =
        run({{COUNT, POS, nullptr, pages}, {3, 40, nullptr, pages}, {70, 0, nullptr, pages}}, 0, 0);
    const int held[][2] = {{0, POS + 1}, {77, POS + 78}, {199, POS + 200}, {200, 41},
                           {202, 43},    {203, 1},       {272, 70}};
    floats some;
    std::vector<double> want(7 * CH);
    const kd_gpu_k3_mla m = {HEADS, LORA, true,    q.data(), gate.data(), nullptr,
                             true,  0,    nullptr, 0,        nullptr,     0};
    for (int i = 0; i < 7; i++) {
        mla_want(m, host.data(), held[i][0], held[i][1], kv_b, &want[(size_t)(i * CH)]);
        some.insert(some.end(), all.begin() + held[i][0] * CH, all.begin() + (held[i][0] + 1) * CH);
    }
    const double d = apart(some, want);
    hold(d < 1e-3, "MLA of prompts, 200 + 3 + 70 rows", d);
    const std::vector<batch::one> alone = {{COUNT, POS, nullptr, pages}};
    const size_t whole = bits_differ(run(alone, 0, 0), all);
    hold(!whole, "  a prompt alone: bits that differ", (double)whole);
    int64_t parts;
    const int64_t little = kd_gpu_k3_mla_floats(true, HEADS, LORA, COUNT, 128, 0, &parts);
    const size_t spans = bits_differ(run(alone, 0, little), all);
    hold(!spans, "  in less room: bits that differ", (double)spans);
    run({{CUT, POS, nullptr, pages}}, 0, 0);
    const size_t cut = bits_differ(run({{COUNT - CUT, POS + CUT, nullptr, pages}}, CUT, 0), all);
    hold(!cut, "  cut: bits that differ", (double)cut);
}

static void check_rows(const struct kd_kern &k)
{
    values v(9);
    floats x = v.some(2 * HIDDEN, 10), u = v.some(2 * HIDDEN, 40), w = v.some(HIDDEN),
           all(2 * HIDDEN), want(HIDDEN);
    there<float> dx(x), du(u), dw(w), out(2 * HIDDEN);
    must(kd_gpu_k3_situ(gpu, dx.at, du.at, 4, 25, 2 * HIDDEN, out.at, &err));
    k.situ(x.data(), u.data(), 4, 25, all.data(), 2 * HIDDEN);
    hold(!bits_differ(out.back(), all), "SiTU: bits unlike the CPU's",
         (double)bits_differ(out.back(), all));
    must(kd_gpu_k3_norm(gpu, dx.at, dw.at, 1e-5f, 2, HIDDEN, out.at, &err));
    k.rmsnorm(&x[HIDDEN], w.data(), 1e-5f, HIDDEN, want.data());
    const floats got = out.back();
    const double d = apart(floats(got.begin() + HIDDEN, got.end()),
                           std::vector<double>(want.begin(), want.end()));
    hold(d < 1e-6, "norm, of the CPU's", d);
}

/* Microseconds of one of `repeat` launches in a graph: the median of seven runs after one. */
static double time_us(const std::function<int(int)> &launch, int repeat = REPEAT)
{
    struct kd_gpu_graph *graph;
    std::vector<float> ms;
    must(kd_gpu_graph_begin(gpu, &err));
    for (int i = 0; i < repeat; i++)
        must(launch(i));
    must(kd_gpu_graph_end(gpu, &graph, &err));
    for (int i = 0; i < 8; i++) {
        float t = 0;
        cudaEventRecord(gpu->begin, gpu->stream);
        must(kd_gpu_graph_run(gpu, graph, &err));
        cudaEventRecord(gpu->end, gpu->stream);
        must(kd_gpu_wait(gpu, &err));
        cudaEventElapsedTime(&t, gpu->begin, gpu->end);
        if (i)
            ms.push_back(t);
    }
    kd_gpu_graph_free(graph);
    std::sort(ms.begin(), ms.end());
    return ms[3] * 1e3 / repeat;
}

static double copy_rate(void)
{
    const int64_t bytes = (int64_t)1 << 30;
    there<unsigned char> a(bytes), b(bytes);
    const double us = time_us([&](int) { return kd_gpu_copy(gpu, b.at, a.at, bytes, &err); });
    return 2e-3 * (double)bytes / us;
}

/* most: GB/s; peak: TFLOP/s, 0 where there is no share of it to print. */
static void line(const char *what, double us, double bytes, double most, double flops,
                 double peak = 0)
{
    printf("  %-46s %8.2f us", what, us);
    if (bytes > 0)
        printf("  %7.0f GB/s (%3.0f %%)", bytes / us * 1e-3, bytes / us * 1e-1 / most);
    if (flops > 0)
        printf("  %6.2f TFLOP/s", flops / us * 1e-6);
    if (peak > 0)
        printf(" (%3.0f %%)", flops / us * 1e-4 / peak);
    printf("\n");
}

static void time_kda(double most)
{
    enum { LAYERS = 8, SEQS = 64 };
    values v(1);
    kda_layer L(v, 4096);
    there<float> state((int64_t)SEQS * LAYERS * STATE);
    for (int n : {1, 8, 64}) {
        std::vector<batch::one> s;
        for (int i = 0; i < n; i++)
            s.push_back({1, 100, state.at + (int64_t)i * LAYERS * STATE, {}});
        batch b(s);
        char what[64];
        snprintf(what, sizeof what, "KDA step, %d sequences", n);
        const double us = time_us([&](int i) {
            const kd_gpu_k3_kda a = L.device(i % LAYERS * (int64_t)STATE);
            return kd_gpu_k3_kda_run(gpu, &b.b, &a, &err);
        });
        line(what, us, 8.0 * STATE * n, most, 0);
    }
    there<float> work(kd_gpu_k3_kda_floats(HEADS, 4096));
    const struct {
        int rows, n;
        bool chunks;
    } shape[] = {{512, 1, false}, {512, 8, false}, {512, 1, true},
                 {512, 8, true},  {4096, 1, true}, {4096, 8, true}};
    for (const auto &c : shape) {
        std::vector<batch::one> s;
        for (int i = 0; i < c.n; i++)
            s.push_back({c.rows / c.n, 0, state.at + (int64_t)i * LAYERS * STATE, {}});
        batch b(s);
        char what[64];
        snprintf(what, sizeof what, "KDA, %d tokens in %d sequences%s", c.rows, c.n,
                 c.chunks ? ", chunks" : "");
        /* Six arrays of rows are read or written at least. */
        line(what,
             time_us(
                 [&](int i) {
                     const kd_gpu_k3_kda a =
                         L.device(i % LAYERS * (int64_t)STATE, c.chunks ? work.at : nullptr);
                     return kd_gpu_k3_kda_run(gpu, &b.b, &a, &err);
                 },
                 c.rows > 512 ? 4 : REPEAT),
             24.0 * CH * c.rows, most, 0);
    }
}

/* Random values of a megabyte, over and over. */
template <class T> static void fill(const there<T> &to, const std::vector<T> &some)
{
    int64_t n = std::min<int64_t>((int64_t)some.size(), to.count);
    must(kd_gpu_upload(gpu, to.at, some.data(), n * (int64_t)sizeof(T), &err));
    for (int64_t more; n < to.count; n += more) {
        more = std::min(n, to.count - n);
        must(kd_gpu_copy(gpu, to.at + n, to.at, more * (int64_t)sizeof(T), &err));
    }
}

/* One call over a context of n for each of some rows; kv_b is another one each time. */
struct mla_timing {
    enum { SEQS = 64, LAYERS = 4 };
    static constexpr int64_t LONGEST = 32768;
    there<float> q, gate, y, work;
    there<uint16_t> kv_b, cache;
    explicit mla_timing(int64_t room)
        : q(SEQS * HEADS * QD), gate(SEQS * CH), y(SEQS * CH), work(room),
          kv_b((int64_t)LAYERS * HEADS * 2 * D * LORA), cache(SEQS * (LONGEST + 64) * WIDTH)
    {
        values v(2);
        std::vector<uint16_t> halves, bf16;
        const floats few = v.some(1 << 18);
        for (float x : few) {
            halves.push_back(kd_f32_f16(x));
            bf16.push_back(kd_f32_bf16(0.05f * x));
        }
        fill(q, few);
        fill(kv_b, bf16);
        fill(cache, halves);
    }
    void run(int64_t rows, int64_t n, bool fast, double most)
    {
        std::vector<batch::one> s;
        const int64_t bytes = fast ? 2 : 4, each = cache.count / SEQS * 2 / bytes;
        for (int64_t i = 0; i < rows; i++)
            s.push_back({1, n - 1, nullptr,
                         pages_of((char *)cache.at + i * (each / 64 * 64) * bytes, n, fast)});
        batch b(s);
        kd_gpu_k3_mla m = {HEADS, LORA, fast, q.at, gate.at, kv_b.at, true, 0, work.at, 0, y.at, 0};
        kd_gpu_k3_mla_floats(fast, HEADS, LORA, rows, n, work.count, &m.parts);
        char what[64];
        snprintf(what, sizeof what, "MLA%s, %lld rows over %lld", fast ? " fast" : "",
                 (long long)rows, (long long)n);
        const int64_t weights = kv_b.count / LAYERS;
        const double us = time_us([&](int i) {
            m.kv_b = kv_b.at + i % LAYERS * weights;
            return kd_gpu_k3_mla_run(gpu, &b.b, &m, &err);
        });
        line(what, us, (double)(bytes * rows * n * WIDTH + 2 * weights), most,
             2.0 * HEADS * (WIDTH + LORA) * (double)(rows * n));
    }
};

static void time_mla(double most)
{
    int64_t parts;
    mla_timing t(kd_gpu_k3_mla_floats(true, HEADS, LORA, 512, mla_timing::LONGEST, 0, &parts));
    for (int64_t n : {(int64_t)64, (int64_t)1024, (int64_t)4096, mla_timing::LONGEST})
        for (int64_t rows : {1, 2, 8, 32, 64})
            t.run(rows, n, true, most);
    for (int64_t rows : {1, 8, 64})
        t.run(rows, 1024, false, most);
    there<float> cq(64 * 1536), kv(64 * WIDTH), norm(1536);
    for (int64_t rows : {1, 64}) {
        std::vector<batch::one> s;
        for (int64_t i = 0; i < rows; i++)
            s.push_back({1, 63, nullptr, pages_of(t.cache.at + i * 64 * WIDTH, 64, true)});
        batch b(s);
        const kd_gpu_k3_latents in = {1536, LORA, true, 1e-6f, cq.at, kv.at, norm.at, norm.at, 0};
        char what[64];
        snprintf(what, sizeof what, "MLA norms and cache rows, %lld rows", (long long)rows);
        line(what, time_us([&](int) { return kd_gpu_k3_latents_run(gpu, &b.b, &in, &err); }), 0, 1,
             0);
    }
}

/* Prompts, the last `rows` tokens of n: in the form that few rows have, then in their own. */
static void time_prompts(void)
{
    enum { MOST = 32768 };
    values v(6);
    const floats few = v.some(1 << 20);
    std::vector<uint16_t> halves, bf16;
    for (float x : few) {
        halves.push_back(kd_f32_f16(x));
        bf16.push_back(kd_f32_bf16(0.05f * x));
    }
    there<float> q((int64_t)MOST * HEADS * QD), gate((int64_t)MOST * CH), y((int64_t)MOST * CH);
    there<uint16_t> kv_b((int64_t)HEADS * 2 * D * LORA), cache((int64_t)MOST * WIDTH);
    fill(q, few);
    fill(kv_b, bf16);
    fill(cache, halves);
    int64_t parts;
    there<float> work(kd_gpu_k3_mla_floats(true, HEADS, LORA, 4096, MOST, 0, &parts));
    there<float> all(kd_gpu_k3_mla_floats(true, HEADS, LORA, MOST, MOST, 0, &parts));
    const double peak = kd_gpu_facts(gpu)->sms * 4096 * 1.98e-3; /* Hopper's, in fp16 */
    const int64_t shape[][2] = {{512, 512},  {4096, 4096}, {16384, 16384}, {32768, 32768},
                                {512, 4096}, {512, 16384}, {4096, 16384},  {4096, 32768}};
    for (const auto &i : shape)
        for (bool own : {false, true}) {
            const int64_t rows = i[0], n = i[1];
            if (!own && rows * n > (int64_t)4096 * 4096)
                continue;
            batch b({{rows, n - rows, nullptr, pages_of(cache.at, n, true)}});
            b.b.host = own ? b.b.host : nullptr;
            const there<float> &room = rows > 4096 ? all : work;
            kd_gpu_k3_mla m = {HEADS, LORA, true,    q.at, gate.at, kv_b.at,
                               true,  0,    room.at, 0,    y.at,    room.count};
            kd_gpu_k3_mla_floats(true, HEADS, LORA, rows, n, room.count, &m.parts);
            char what[64];
            snprintf(what, sizeof what, "MLA, %lld tokens up to %lld%s", (long long)rows,
                     (long long)n, own ? "" : ", latents");
            const double pairs = (double)rows * ((double)n - 0.5 * (double)(rows - 1));
            line(what,
                 time_us([&](int) { return kd_gpu_k3_mla_run(gpu, &b.b, &m, &err); },
                         rows * n > 1 << 22 ? 2 : 5),
                 0, 1, 2.0 * HEADS * (own ? QD + D : WIDTH + LORA) * pairs, peak);
        }
}

static void time_rows(void)
{
    values v(8);
    floats some = v.some(512 * EXPERTS, 3);
    there<float> p(64 * HIDDEN), bank(9 * 64 * HIDDEN), a(64 * HIDDEN), w(HIDDEN), out(64 * HIDDEN),
        logits(some), weight(512 * TOPK);
    there<int32_t> ids(512 * TOPK);
    for (int banks : {1, 4, 8})
        for (int64_t rows : {1, 8, 64}) {
            const kd_gpu_k3_mix m = {rows,  HIDDEN, p.at, bank.at, rows,    banks, a.at,  a.at,
                                     false, false,  w.at, w.at,    nullptr, 1e-5f, out.at};
            char what[64];
            snprintf(what, sizeof what, "mix and norm, %d banks, %lld rows", banks,
                     (long long)rows);
            line(what, time_us([&](int) { return kd_gpu_k3_mix_run(gpu, &m, &err); }), 0, 1, 0);
        }
    for (int64_t rows : {1, 64, 512}) {
        const kd_gpu_k3_route r = {rows, EXPERTS,   TOPK, TOPK,   true,     1,
                                   0,    logits.at, w.at, ids.at, weight.at};
        char what[64];
        snprintf(what, sizeof what, "router, %lld rows", (long long)rows);
        line(what, time_us([&](int) { return kd_gpu_k3_route_run(gpu, &r, &err); }), 0, 1, 0);
    }
    for (int64_t rows : {1, 64}) {
        char what[64];
        snprintf(what, sizeof what, "norm of 3584, %lld rows", (long long)rows);
        line(what, time_us([&](int) {
                 return kd_gpu_k3_norm(gpu, p.at, w.at, 1e-5f, rows, 3584, p.at, &err);
             }),
             0, 1, 0);
        snprintf(what, sizeof what, "SiTU of 6144, %lld rows", (long long)rows);
        line(what, time_us([&](int) {
                 return kd_gpu_k3_situ(gpu, p.at, a.at, 4, 25, rows * 6144, p.at, &err);
             }),
             0, 1, 0);
    }
}

/* With a word: what concerns prompts alone. */
int main(int argc, char **argv)
{
    const bool prompts = argc > 1;
    struct kd_kern k;
    (void)argv;
    if (!kd_gpu_count()) {
        printf("no device: skipped\n");
        return 77;
    }
    must(kd_gpu_open(&gpu, 0, &err));
    must(kd_kern_pick(&k, &err));
    printf("%s, against the CPU:\n", kd_gpu_facts(gpu)->name);
    if (!prompts) {
        check_mix(0, true, true, false);
        check_mix(2, false, false, true);
        check_mix(7, true, true, false);
        check_mix(8, false, false, true);
        check_rows(k);
        check_kda(k);
        check_route(k);
        check_mla(131, 2, false);
        check_mla(5000, 2, false);
        check_mla(131, 2, true);
        check_mla(5000, 2, true);
    }
    check_kda_chunks(k);
    check_mla(400, 39, true);
    check_prompts();
    const double most = copy_rate();
    printf("copying 1 GiB: %.0f GB/s; shares below are of that\n", most);
    time_kda(most);
    if (!prompts) {
        time_mla(most);
        time_rows();
    }
    time_prompts();
    kd_gpu_close(gpu);
    printf(failures ? "%d WRONG\n" : "all as it should be\n", failures);
    return failures != 0;
}
