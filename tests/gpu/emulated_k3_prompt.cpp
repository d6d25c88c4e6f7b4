/* Attention over prompts (gpu/k3_mla_prompt.cuh) on the CPU: within its bound of double precision;
 * a row's bits depend neither on the room there is, nor on the cut of its sequence, nor on the
 * sequences beside it, and the rows of short segments keep the bits of the absorbed form. */
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

enum { HEADS = 2, LORA = 128, W = LORA + KD_GPU_K3_ROPE, QD = 192, CH = HEADS * KD_GPU_K3_DIM };

/* Sequences' caches and rows; the rows of all their tokens are one after the other. */
struct prompts {
    struct one {
        int64_t tokens;
        std::vector<std::vector<uint16_t>> half;
        std::vector<floats> value;
        std::vector<void *> page;
        std::vector<const float *> at;
        int64_t row;
    };
    std::vector<one> seq;
    floats q, gate, kv_b;
    std::vector<uint16_t> weights;
    bool wide = false;

    prompts(values &v, const std::vector<int64_t> &tokens)
    {
        int64_t rows = 0;
        for (int64_t n : tokens) {
            one s = {n, {}, {}, {}, {}, rows};
            for (int64_t i = 0; i < n; i += KD_GPU_K3_PAGE) {
                s.value.push_back(v.some(KD_GPU_K3_PAGE * W, 2));
                s.half.emplace_back();
                for (int64_t j = 0; j < KD_GPU_K3_PAGE * W; j++) {
                    float &x = s.value.back()[(size_t)j];
                    x = i + j / W < n ? x : NAN; /* as memory that nobody wrote */
                    s.half.back().push_back(kd_f32_f16(x));
                    x = kd_f16_f32(s.half.back().back());
                }
            }
            seq.push_back(s);
            rows += n;
        }
        for (one &s : seq)
            for (size_t i = 0; i < s.half.size(); i++) {
                s.page.push_back(s.half[i].data());
                s.at.push_back(s.value[i].data());
            }
        q = v.some((size_t)(rows * HEADS * QD), 2);
        gate = v.some((size_t)(rows * CH));
        kv_b = v.some(HEADS * 256 * LORA, 0.2f);
        for (size_t i = 0; i < kv_b.size(); i++) { /* rows of other sizes, and of nothing */
            const size_t row = i / LORA;
            kv_b[i] *= row % 7 == 3 ? 0x1p-40f : row % 7 == 5 ? 0.0f : 1.0f;
            weights.push_back(kd_f32_bf16(kv_b[i]));
            kv_b[i] = kd_bf16_f32(weights.back());
        }
    }
    struct part {
        size_t of;
        int64_t pos, count;
    };
    /* Rows of a call, for each of its parts one after the other. */
    floats run(const std::vector<part> &parts, int64_t positions) const
    {
        std::vector<kd_gpu_k3_seg> seg;
        std::vector<int32_t> row_seg;
        floats qs, gates;
        int64_t rows = 0, longest = 0;
        for (const part &p : parts) {
            const one &s = seq[p.of];
            seg.push_back({rows, p.count, p.pos, nullptr, s.page.data()});
            row_seg.insert(row_seg.end(), (size_t)p.count, (int32_t)seg.size() - 1);
            const int64_t from = s.row + p.pos, to = from + p.count;
            qs.insert(qs.end(), q.begin() + from * HEADS * QD, q.begin() + to * HEADS * QD);
            gates.insert(gates.end(), gate.begin() + from * CH, gate.begin() + to * CH);
            rows += p.count;
            longest = std::max(longest, p.pos + p.count);
        }
        const kd_gpu_k3_batch b = {
            rows, (int64_t)seg.size(), nullptr, row_seg.data(), seg.data(), longest, seg.data()};
        kd_gpu_k3_mla m = {HEADS, LORA, true,    qs.data(), gates.data(), weights.data(),
                           true,  0,    nullptr, 0,         nullptr,      0};
        floats y((size_t)(rows * CH), -7);
        m.floats = mla_floats(true, HEADS, LORA, rows, longest, 0, &m.parts);
        if (positions)
            m.floats =
                prompt_fixed(HEADS, LORA, rows) + positions / PROMPT_TILE * prompt_piece(HEADS);
        floats work((size_t)m.floats + 8, NAN);
        m.work = work.data() + (16 - (uintptr_t)work.data() % 16) % 16 / 4;
        m.y = y.data();
        launch_mla_batch<LORA>(b, m, wide, 0);
        return y;
    }
    double apart_from(const floats &y, size_t of) const
    {
        const one &s = seq[of];
        const kd_gpu_k3_mla m = {HEADS,
                                 LORA,
                                 true,
                                 &q[(size_t)(s.row * HEADS * QD)],
                                 &gate[(size_t)(s.row * CH)],
                                 nullptr,
                                 true,
                                 0,
                                 nullptr,
                                 0,
                                 nullptr,
                                 0};
        std::vector<double> want((size_t)(s.tokens * CH));
        for (int64_t r = 0; r < s.tokens; r++)
            mla_want(m, s.at.data(), r, r + 1, kv_b, &want[(size_t)(r * CH)]);
        return apart(y, want);
    }
};

static size_t other_bits(const floats &a, int64_t row, const floats &b, int64_t at, int64_t rows)
{
    return bits_differ(floats(a.begin() + row * CH, a.begin() + (row + rows) * CH),
                       floats(b.begin() + at * CH, b.begin() + (at + rows) * CH));
}

static void test(prompts &p, bool wide)
{
    p.wide = wide;
    printf("%s\n", wide ? "products of warpgroups:" : "products of warps:");
    const floats alone = p.run({{0, 0, 300}}, 0);
    const double d = p.apart_from(alone, 0);
    hold(d < 1e-3, "a prompt of 300 tokens", d);
    hold(!bits_differ(alone, p.run({{0, 0, 300}}, 128)), "  128 positions at a time: bits", 0);
    hold(!bits_differ(alone, p.run({{0, 0, 300}}, 256)), "  256 positions at a time: bits", 0);
    const floats first = p.run({{0, 0, 67}}, 0), rest = p.run({{0, 67, 233}}, 256);
    hold(!other_bits(alone, 0, first, 0, 67) && !other_bits(alone, 67, rest, 0, 233),
         "  cut after 67: bits", 0);
    const floats few = p.run({{2, 0, 20}}, 0), last = p.run({{3, 65, 1}}, 0);
    const floats all = p.run({{3, 65, 1}, {2, 0, 20}, {0, 67, 233}, {1, 0, 70}}, 0);
    hold(!other_bits(all, 0, last, 0, 1) && !other_bits(all, 1, few, 0, 20) &&
             !other_bits(all, 21, rest, 0, 233),
         "beside others: bits", 0);
    const double e = p.apart_from(floats(all.end() - 70 * CH, all.end()), 1);
    hold(e < 1e-3, "a prompt of 70 tokens beside others", e);
}

int main(void)
{
    values v(21);
    prompts p(v, {300, 70, 20, 66});
    test(p, false);
    test(p, true);
    return failures != 0;
}
