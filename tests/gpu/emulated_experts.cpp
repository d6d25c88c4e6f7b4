/* Products of F32, BF16, MXFP4 matrices, of ggml's blocks and of routed experts on a device, run on
 * the CPU (tests/gpu/emulate.h): kern's bits, and for EXL3 those of the mode for decoding. */
#define KD_GPU_EMULATE
#include "gpu/product.cuh"
#include "gpu/product_pack.cuh"
#include "gpu/product_places.cuh"

#include "gpu/block_check.h"
#include "gpu/product_check.h"

#include <array>

static kd_kern kern;

/* Matrices of plain types in a device's layout. */
struct plain_fixture {
    int64_t rows, cols, ld, lds;
    std::vector<uint8_t> w, scale;
    const kd_block_format *format; /* BLOCK */
    kd_plain::matrix m;
};
static void plain_make(plain_fixture *f, kd_plain::type type, int64_t rows, int64_t cols,
                       const kd_block_format *format = nullptr)
{
    const int64_t bytes = type == kd_plain::F32     ? 4 * cols
                          : type == kd_plain::BF16  ? 2 * cols
                          : type == kd_plain::BLOCK ? cols / format->elems * format->bytes
                                                    : cols / 2;
    f->rows = rows;
    f->cols = cols;
    f->format = format;
    f->ld = (bytes + 15) / 16 * 16;
    f->lds = (cols / 32 + 3) / 4 * 4;
    f->w.assign((size_t)(rows * f->ld), 0xff); /* NaNs between the rows */
    f->scale.assign((size_t)(rows * f->lds), 0xff);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; type == kd_plain::BLOCK && i < cols / format->elems; i++)
            block_make(format, &f->w[(size_t)(r * f->ld + i * format->bytes)], bits);
        for (int64_t i = 0; type != kd_plain::BLOCK && i < cols; i++) {
            const float v = gauss();
            if (type == kd_plain::F32)
                memcpy(&f->w[(size_t)(r * f->ld + 4 * i)], &v, 4);
            else if (type == kd_plain::BF16)
                ((uint16_t *)&f->w[(size_t)(r * f->ld)])[i] = kd_f32_bf16(v);
            else if (i % 2)
                f->w[(size_t)(r * f->ld + i / 2)] = (uint8_t)bits();
        }
        for (int64_t i = 0; i < cols / 32; i++)
            f->scale[(size_t)(r * f->lds + i)] =
                (uint8_t)(i % 5 == 4 ? bits() % 255 : 118 + bits() % 6);
    }
    f->m = {f->w.data(),
            f->scale.data(),
            f->ld,
            f->lds,
            (int32_t)rows,
            (int32_t)cols,
            format ? (int32_t)format->kind : 0,
            format ? (int32_t)format->elems : 1,
            format ? (int32_t)format->bytes : 0};
}
static void plain_want(const plain_fixture *f, kd_plain::type type, const float *x, int64_t ldx,
                       int64_t T, float *y)
{
    if (type == kd_plain::F32)
        kern.mm_f32((const float *)f->w.data(), f->ld / 4, f->rows, f->cols, x, ldx, T, y, f->rows);
    else if (type == kd_plain::BF16)
        kern.mm_bf16((const uint16_t *)f->w.data(), f->ld / 2, f->rows, f->cols, x, ldx, T, y,
                     f->rows);
    else if (type == kd_plain::BLOCK)
        kern.mm_block(f->format, f->w.data(), f->ld, f->rows, f->cols, x, ldx, T, y, f->rows);
    else
        kern.mm_mxfp4(f->w.data(), f->ld, f->scale.data(), f->lds, f->rows, f->cols, x, ldx, T, y,
                      f->rows);
}

/* Two matrices of one type in one launch. */
template <kd_plain::type TYPE, int TOKENS, int EACH = 1>
static int check_plain(int64_t cols, int64_t T, const kd_block_format *first = nullptr,
                       const kd_block_format *second = nullptr)
{
    using s = kd_plain::shape<TYPE, TOKENS, EACH>;
    const int64_t rows[2] = {s::rows + 5, 3}, ldx = (cols + 3) / 4 * 4 + 4;
    std::vector<float> x((size_t)(T * ldx), NAN), y[2], want[2];
    kd_plain::dense_args a = {};
    plain_fixture f[2];
    int64_t bad = 0;

    for (int64_t i = 0; i < T * ldx; i++)
        if (i % ldx < cols)
            x[(size_t)i] = gauss();
    a.jobs = 2;
    a.tokens = (int32_t)T;
    for (int i = 0; i < 2; i++) {
        plain_make(&f[i], TYPE, rows[i], cols, i ? second : first);
        y[i].assign((size_t)(T * rows[i]), 7.0f);
        want[i].assign((size_t)(T * rows[i]), 0.0f);
        a.job[i] = {f[i].m, x.data(), y[i].data(), ldx, rows[i], a.tasks};
        a.tasks += (int32_t)((rows[i] + s::rows - 1) / s::rows);
        plain_want(&f[i], TYPE, x.data(), ldx, T, want[i].data());
    }
    kd_emulate(2, s::threads, (size_t)s::memory,
               [&] { kd_plain::multiply_plain<TYPE, TOKENS, EACH>(a); });
    for (int i = 0; i < 2; i++)
        for (size_t j = 0; j < y[i].size(); j++)
            bad += kd_f32_bits(y[i][j]) != kd_f32_bits(want[i][j]) &&
                   !(isnan(y[i][j]) && isnan(want[i][j]));
    printf("%s, %lld inputs, %lld rows: %lld wrong\n",
           TYPE == kd_plain::F32    ? "F32"
           : TYPE == kd_plain::BF16 ? "BF16"
           : first                  ? first->name
                                    : "MXFP4",
           (long long)cols, (long long)T, (long long)bad);
    return bad != 0;
}

/* A layer of a few experts; tokens' lists with gaps and with an expert twice. */
enum { SOME = 4, TOP = 3, COLS = 160, INNER = 96 };
struct layer {
    std::vector<int32_t> ids;
    std::vector<float> x, weight, inner, out, y, want;
    int64_t T;
};
static void layer_make(layer *l, int64_t T)
{
    l->T = T;
    l->x.resize((size_t)(T * COLS));
    l->y.assign((size_t)(T * (COLS + 1)), 7.0f);
    l->want.assign((size_t)(T * COLS), 0.0f);
    l->inner.assign((size_t)(T * TOP * INNER), NAN);
    l->out.assign((size_t)(T * TOP * COLS), NAN);
    for (float &v : l->x)
        v = gauss();
    for (int64_t i = 0; i < T * TOP; i++) {
        l->ids.push_back(i == 1 ? -1 : i == 4 ? l->ids[3] : (int32_t)(bits() % SOME));
        l->weight.push_back(0.1f + (float)(bits() % 100) / 100.0f);
    }
}
/* The definition; f(expert, which, x, y): a product with one row. */
template <class F> static void layer_want(layer *l, F product)
{
    for (int64_t t = 0; t < l->T; t++)
        for (int32_t e = 0; e < SOME; e++)
            for (int j = 0; j < TOP; j++) {
                std::vector<float> a, b, y;
                float *to = &l->want[(size_t)(t * COLS)];
                if (l->ids[(size_t)(t * TOP + j)] != e)
                    continue;
                product(e, 0, &l->x[(size_t)(t * COLS)], &a);
                product(e, 1, &l->x[(size_t)(t * COLS)], &b);
                kern.situ(a.data(), b.data(), 3.0f, 5.0f, a.data(), INNER);
                product(e, 2, a.data(), &y);
                for (int c = 0; c < COLS; c++)
                    to[c] = fmaf(l->weight[(size_t)(t * TOP + j)], y[(size_t)c], to[c]);
            }
}
static int layer_check(const layer *l, const char *what)
{
    int64_t bad = 0;

    for (int64_t t = 0; t < l->T; t++)
        for (int c = 0; c < COLS; c++)
            bad += l->y[(size_t)(t * (COLS + 1) + c)] != l->want[(size_t)(t * COLS + c)];
    printf("%s experts, %lld tokens: %lld wrong\n", what, (long long)l->T, (long long)bad);
    return bad != 0;
}

/* The sum with its norm: that of the sum alone, which is there. */
static void norm_check(const layer *l, kd_experts::sum_args s)
{
    using namespace kd_k3;
    std::vector<float> norm(COLS), y((size_t)(l->T * COLS)), want = y;

    for (int c = 0; c < COLS; c++)
        norm[(size_t)c] = gauss();
    for (size_t i = 0; i < want.size(); i++)
        want[i] = l->y[i / COLS * (COLS + 1) + i % COLS];
    s.y = y.data();
    s.ldy = COLS;
    s.norm = norm.data();
    s.eps = 1e-5f;
    kd_emulate((int)l->T, NORM_THREADS, sizeof(kd_experts::sum_shared),
               [&] { kd_experts::sum_norm(s); });
    kd_emulate((int)l->T, NORM_THREADS, 4 * NORM_THREADS / 32, [&] {
        KD_SHARED(memory);
        norm_row r;
        r.load(&want[(size_t)(kd_block() * COLS)], COLS);
        r.scale(s.norm, s.eps, COLS, (float *)memory);
        r.store(&want[(size_t)(kd_block() * COLS)], COLS);
    });
    if (memcmp(y.data(), want.data(), 4 * y.size()))
        printf("the norm of the sum is not that of the sum\n"), exit(1);
}

/* Both halves and what is around them, as the host starts it; run(half) does one half. alone: one
 * token, without a plan. */
template <class F>
static void layer_run(layer *l, kd_experts::half_args *a, int rows, bool alone, F run)
{
    using namespace kd_experts;
    static plan p;
    const plan_args planned = {l->ids.data(), &p, (int)l->T, TOP, SOME, rows};
    const sum_args s = {&p,
                        alone ? l->ids.data() : nullptr,
                        l->out.data(),
                        l->weight.data(),
                        l->y.data(),
                        COLS,
                        COLS + 1,
                        TOP,
                        SOME,
                        COLS,
                        nullptr,
                        0.0f};

    if (alone)
        a->ids = l->ids.data();
    else if (l->T * TOP <= 32)
        kd_emulate(1, 32, 0, [&] { plan_few(planned); });
    else
        kd_emulate(1, PAIRS, sizeof(plan_shared), [&] { plan_pairs(planned); });
    a->top = TOP;
    a->experts = SOME;
    a->p = &p;
    a->x = l->x.data();
    a->ldx = COLS;
    a->beta = 3.0f;
    a->linear = 5.0f;
    run();
    a->down = 1;
    a->x = l->inner.data();
    a->ldx = INNER;
    a->y = l->out.data();
    a->ldy = COLS;
    run();
    kd_emulate((int)l->T, COLUMNS, sizeof(sum_shared), [&] { sum_experts(s); });
    norm_check(l, s);
}

/* Blocks: each matrix of an expert in a format of its own. */
template <kd_plain::type TYPE> static int check_some(int64_t T)
{
    using namespace kd_experts;
    static const enum kd_block_kind kinds[3] = {KD_BLOCK_Q4_0, KD_BLOCK_IQ4_NL, KD_BLOCK_Q8_0};
    constexpr bool blocks = TYPE == kd_plain::BLOCK;
    std::vector<entry> table(SOME);
    std::vector<std::array<struct kd_gpu_mat, 3>> mat(SOME);
    std::vector<plain_fixture> f(3 * SOME);
    std::vector<float> both((size_t)(T * TOP * 2 * INNER), NAN);
    half_args a = {};
    layer l;

    layer_make(&l, T);
    for (int i = 0; i < 3 * SOME; i++) {
        plain_make(&f[(size_t)i], TYPE, i % 3 < 2 ? INNER : COLS, i % 3 < 2 ? COLS : INNER,
                   blocks ? block_format(kinds[i % 3]) : nullptr);
        for (uint8_t &b : f[(size_t)i].scale)
            b = (uint8_t)(119 + b % 4);
        const plain_fixture *m = &f[(size_t)i];
        struct kd_gpu_mat *to = &mat[(size_t)(i / 3)][(size_t)(i % 3)];
        *to = {};
        to->type = blocks ? KD_GPU_MAT_BLOCK : KD_GPU_MAT_MXFP4;
        to->rows = m->rows;
        to->cols = m->cols;
        to->data = m->w.data();
        to->scale = m->scale.data();
        to->format = m->format;
    }
    for (int i = 0; i < SOME; i++)
        table[(size_t)i] = kd_gpu_expert(mat[(size_t)i].data());
    layer_want(&l, [&](int e, int which, const float *x, std::vector<float> *y) {
        const plain_fixture *m = &f[(size_t)(3 * e + which)];
        y->resize((size_t)m->rows);
        plain_want(m, TYPE, x, m->cols, 1, y->data());
    });
    a.table = table.data();
    a.y = both.data();
    a.ldy = 2 * INNER;
    layer_run(&l, &a, T == 1 ? 1 : 8, false, [&] {
        using one = kd_plain::shape<TYPE, 1, kd_plain::expert_rows<TYPE>>;
        using eight = kd_plain::shape<TYPE, 8, kd_plain::expert_rows<TYPE>>;
        a.outs = a.down ? COLS : INNER;
        if (T == 1)
            kd_emulate(3, one::threads, one::memory, [&] { multiply_experts_plain<TYPE, 1>(a); });
        else
            kd_emulate(3, eight::threads, eight::memory,
                       [&] { multiply_experts_plain<TYPE, 8>(a); });
        if (!a.down)
            kd_emulate(2, COLUMNS, 0, [&] {
                situ_places(a.p, both.data(), 2 * INNER, l.inner.data(), INNER, INNER, a.beta,
                            a.linear);
            });
    });
    return layer_check(&l, blocks ? "block" : "MXFP4");
}

static std::vector<uint32_t> codes_of(const fixture *f)
{
    const int rate16 = (int)kd_rate_to16(f->rate), outs = (int)(f->R / 128),
              ins = (int)(f->C / 128);
    std::vector<uint32_t> codes((size_t)(f->R * f->C / 512 * rate16));
    kd_codes::pack_args p = {f->tiles.data(), f->R / 16, codes.data(), rate16, ins, outs};

    kd_emulate((ins * outs * 128 + 255) / 256, 256, 16, [&] { kd_codes::pack_codes(p); });
    return codes;
}

/* blocks: of a launch; few take even shares of all units, many whole parts of matrices. */
template <int SETS> static int check_exl3(int64_t T, int blocks)
{
    using namespace kd_experts;
    std::vector<entry> table(SOME);
    std::vector<std::array<struct kd_gpu_mat, 3>> mat(SOME);
    std::vector<fixture> f(3 * SOME);
    std::vector<std::vector<uint32_t>> codes;
    std::vector<float> sums((size_t)(T * TOP * 2 * 256), NAN);
    std::vector<int32_t> counter((size_t)(T * TOP * 2), 0);
    half_args a = {};
    layer l;

    layer_make(&l, T);
    for (int i = 0; i < 3 * SOME; i++) {
        fixture *m = &f[(size_t)i];
        fixture_make(m, 32 + 5 * (unsigned)(i % 2), KD_CB_MUL1, i % 3 < 2 ? INNER : COLS,
                     i % 3 < 2 ? COLS : INNER, 1);
        codes.push_back(codes_of(m));
        mat[(size_t)(i / 3)][i % 3] = {
            KD_GPU_MAT_EXL3, m->rows,       m->cols,       m->R,    m->C,  codes.back().data(),
            nullptr,         m->suh.data(), m->svh.data(), m->rate, m->cb, nullptr};
    }
    for (int i = 0; i < SOME; i++)
        table[(size_t)i] = kd_gpu_expert(mat[(size_t)i].data());
    layer_want(&l, [&](int e, int which, const float *x, std::vector<float> *y) {
        fixture *m = &f[(size_t)(3 * e + which)];
        std::copy(x, x + m->cols, m->x.begin());
        fast_row(m, &kern, 0, y);
    });
    a.table = table.data();
    a.y = l.inner.data();
    a.ldy = INNER;
    a.sums = sums.data();
    a.counter = counter.data();
    layer_run(&l, &a, 4 * SETS, T == 1, [&] {
        a.ins = a.down ? 1 : 2;
        a.outs = a.down ? 2 : 1;
        a.cut = kd_exl3::cut_of(a.ins);
        a.room = 3 * 4 * SETS;
        using mode = kd_exl3::fast<SETS>;
        tasks_args all = {};
        all.half = a;
        all.experts = 1;
        kd_emulate(blocks, 256, (size_t)kd_exl3::shared_bytes(mode::packed, 4 * SETS, a.ins, 3),
                   [&] { multiply_tasks<mode>(all); });
    });
    for (int32_t n : counter)
        if (n)
            printf("a counter is left at %d\n", n), exit(1);
    return layer_check(&l, "EXL3");
}

/* Eight values at a time are those of the decoder of whole blocks. */
static int check_values_of_blocks(void)
{
    int64_t bad = 0, formats = 0;

    for (int kind = KD_BLOCK_Q8_0; kind <= KD_BLOCK_Q2_0; kind++, formats++) {
        const kd_block_format *f = block_format((enum kd_block_kind)kind);
        for (int n = 0; n < 500; n++) {
            uint8_t b[512];
            float want[256], got[8];
            for (int64_t i = 0; i < f->bytes; i++)
                b[i] = (uint8_t)bits();
            f->decode(b, 1, want);
            for (int e = 0; e < f->elems / 8; e++) {
                kd_eights::eight(kind, b, e, got);
                for (int j = 0; j < 8; j++)
                    bad += kd_f32_bits(got[j]) != kd_f32_bits(want[8 * e + j]) &&
                           !(isnan(got[j]) && isnan(want[8 * e + j]));
            }
        }
    }
    printf("values of %lld formats: %lld wrong\n", (long long)formats, (long long)bad);
    return bad != 0;
}

/* Every format beside another in one launch, in rows of whole blocks that are no whole pieces. */
static int check_blocks(void)
{
    int bad = 0;

    for (int kind = KD_BLOCK_Q8_0; kind <= KD_BLOCK_Q2_0; kind++) {
        const kd_block_format *f = block_format((enum kd_block_kind)kind),
                              *q8 = block_format(KD_BLOCK_Q8_0);
        const int64_t cols = (f->elems == 32 ? 13 : 5) * f->elems;
        switch (kind % 5) {
        case 0:
            bad |= check_plain<kd_plain::BLOCK, 1>(cols, 1, f, q8);
            break;
        case 1:
            bad |= check_plain<kd_plain::BLOCK, 2>(cols, 2, f, q8);
            break;
        case 2:
            bad |= check_plain<kd_plain::BLOCK, 4>(cols, 3, f, q8);
            break;
        case 3:
            bad |= check_plain<kd_plain::BLOCK, 8>(cols, 7, f, q8);
            break;
        default:
            bad |= check_plain<kd_plain::BLOCK, 16>(cols, 13, f, q8);
        }
    }
    return bad;
}

int main(void)
{
    int bad = 0;

    if (kd_kern_pick(&kern, nullptr))
        return 1;
    bad |= check_plain<kd_plain::F32, 1>(900, 1) | check_plain<kd_plain::F32, 4, 6>(129, 3);
    bad |= check_plain<kd_plain::F32, 16, 6>(391, 11) | check_plain<kd_plain::F32, 8>(7, 6);
    bad |= check_plain<kd_plain::BF16, 1, 6>(1033, 1) | check_plain<kd_plain::BF16, 2>(528, 2);
    bad |= check_plain<kd_plain::BF16, 16, 6>(514, 16) | check_plain<kd_plain::BF16, 8>(300, 5);
    bad |= check_plain<kd_plain::MXFP4, 1>(960, 1) | check_plain<kd_plain::MXFP4, 4>(416, 4);
    bad |= check_plain<kd_plain::MXFP4, 16>(160, 9) | check_plain<kd_plain::MXFP4, 8>(128, 8);
    bad |= check_plain<kd_plain::MXFP4, 1, 2>(2080, 1) | check_plain<kd_plain::MXFP4, 2, 2>(96, 2);
    bad |=
        check_plain<kd_plain::MXFP4, 8, 3>(544, 7) | check_plain<kd_plain::MXFP4, 16, 6>(1152, 15);
    bad |= check_some<kd_plain::MXFP4>(1) | check_some<kd_plain::MXFP4>(9) |
           check_some<kd_plain::MXFP4>(11);
    bad |= check_some<kd_plain::BLOCK>(1) | check_some<kd_plain::BLOCK>(9) |
           check_some<kd_plain::BLOCK>(11);
    bad |= check_values_of_blocks() | check_blocks();
    bad |= check_exl3<1>(2, 5) | check_exl3<2>(8, 3) | check_exl3<1>(1, 9);
    return bad;
}
