/* Products of many rows, run on the CPU (tests/gpu/emulate.h): each kind within its bound of kern's
 * product, and a row's bits the same whatever rows are beside it. */
#define KD_GPU_EMULATE
#include "gpu/product_f32.cuh"
#include "gpu/product_many_plan.cuh"
#include "gpu/product_pack.cuh"
#include "gpu/product_rows.cuh"

#include "gpu/product_check.h"

using namespace kd_gemm;

static std::vector<uint32_t> codes_of(const fixture *f)
{
    const int rate16 = (int)kd_rate_to16(f->rate), outs = (int)(f->R / 128),
              ins = (int)(f->C / 128);
    std::vector<uint32_t> codes((size_t)(f->R * f->C / 512 * rate16), 0xeeeeeeeeu);
    kd_codes::pack_args p = {f->tiles.data(), f->R / 16, codes.data(), rate16, ins, outs};

    kd_emulate((ins * outs * 128 + 255) / 256, 256, 16, [&] { kd_codes::pack_codes(p); });
    return codes;
}

/* As the host starts it: one job. */
template <class KIND>
static void run(dense_job job, int rows, int chunks, const float *x, int64_t ldx, float *y,
                int64_t ldy)
{
    const int64_t wide = 128ll * job.outs, bytes = whole_rows(rows) * 128 * 2 * job.ins;
    std::vector<uint8_t> prepared((size_t)(bytes * KIND::planes), 0x7f);
    std::vector<float> scale((size_t)rows, NAN), part((size_t)(chunks * rows * wide), NAN);
    dense_args a = {};
    const int tiles = (rows + KIND::tokens - 1) / KIND::tokens;

    job.from = x;
    job.ldx = ldx;
    job.x = prepared.data();
    job.scale = scale.data();
    job.y = y;
    job.ldy = ldy;
    job.part = part.data();
    job.blocks = (job.ins + chunks - 1) / chunks;
    job.chunks = chunks;
    a.job[0] = job;
    a.jobs = 1;
    a.rows = rows;
    a.planes = KIND::planes;
    a.tasks = tiles * chunks * job.outs;
    kd_emulate(3, THREADS, 64, [&] { prepare_dense(a); });
    tasks_args all = {};
    all.dense = a;
    kd_emulate(2, THREADS, shared_of(KIND::tokens), [&] { multiply_tasks<KIND>(all); });
    if (chunks > 1)
        kd_emulate(2, THREADS, 0, [&] { finish_dense(a); });
}

/* The first `few` rows alone, too. */
template <class F>
static int64_t differ(const std::vector<float> &all, int64_t wide, int few, F product)
{
    std::vector<float> y((size_t)(few * wide), 7.0f);
    int64_t bad = 0;

    product(few, y.data());
    for (size_t i = 0; i < y.size(); i++)
        bad += kd_f32_bits(y[i]) != kd_f32_bits(all[i]);
    return bad;
}

template <class KIND>
static int check_exl3(const kd_kern *kern, unsigned rate16, kd_codebook cb, int64_t rows,
                      int64_t cols, int64_t T, int few, int chunks)
{
    fixture f;
    kd_run on = {};
    kd_err err;

    on.kern = kern;
    fixture_make(&f, rate16, cb, rows, cols, T);
    for (int64_t i = 0; i < f.C; i++)
        f.x[(size_t)i] *= 1e6f; /* a row has its own scale */
    const std::vector<uint32_t> codes = codes_of(&f);
    dense_job job = {};
    job.ins = (int)(f.C / 128);
    job.outs = (int)(f.R / 128);
    job.w = {codes.data(), f.suh.data(), f.svh.data(), (int)rows, (int)cols,
             job.ins,      job.outs,     (int)rate16,  (int)cb,   {}};
    const auto product = [&](int n, float *y) {
        if (std::is_same<KIND, fast>::value && n <= NARROW_ROWS && rate16 <= NARROW_RATE)
            run<fast_narrow>(job, n, chunks, f.x.data(), f.C, y, rows);
        else
            run<KIND>(job, n, chunks, f.x.data(), f.C, y, rows);
    };
    product((int)T, f.y.data());
    std::vector<float> want((size_t)(T * rows));
    const kd_mat m = fixture_mat(&f);
    if (kd_mat_mul(&on, &m, f.x.data(), f.C, T, want.data(), rows, &err))
        return 1;
    for (int64_t i = 0; i < rows; i++) {
        want[(size_t)i] *= 1e-6f;
        f.y[(size_t)i] *= 1e-6f;
    }
    const double off = relative(want, f.y);
    for (int64_t i = 0; i < rows; i++)
        f.y[(size_t)i] *= 1e6f;
    product((int)T, f.y.data());
    const int64_t bad = few ? differ(f.y, rows, few, product) : 0;
    printf("%d planes, codebook %d, %.4f bits, %lld x %lld, %lld rows: %.2g off, %lld differ\n",
           KIND::planes, (int)cb, rate16 / 16.0, (long long)rows, (long long)cols, (long long)T,
           off, (long long)bad);
    return !(off < (KIND::planes == 1 ? 3e-4 : 1e-6)) || bad;
}

template <kd_plain::type TYPE>
static int check_plain(const kd_kern *kern, int64_t rows, int64_t cols, int64_t T, int few,
                       int chunks)
{
    const bool fp4 = TYPE == kd_plain::MXFP4;
    const int64_t ld = ((fp4 ? cols / 2 : 2 * cols) + 15) / 16 * 16, lds = (cols / 32 + 3) / 4 * 4,
                  ldx = (cols + 3) / 4 * 4;
    std::vector<uint8_t> w((size_t)(rows * ld), 0xff), scale((size_t)(rows * lds), 0xff);
    std::vector<float> x((size_t)(T * ldx), NAN), y((size_t)(T * rows), 7.0f), want = y;

    for (int64_t i = 0; i < rows * cols; i++)
        if (!fp4)
            ((uint16_t *)&w[(size_t)(i / cols * ld)])[i % cols] = kd_f32_bf16(gauss());
        else if (i % 2)
            w[(size_t)(i / cols * ld + i % cols / 2)] = (uint8_t)bits();
        else if (i % cols % 32 == 0)
            scale[(size_t)(i / cols * lds + i % cols / 32)] = (uint8_t)(118 + bits() % 6);
    for (int64_t i = 0; i < T * ldx; i++)
        if (i % ldx < cols)
            x[(size_t)i] = gauss();
    dense_job job = {};
    job.ins = (int)((cols + 127) / 128);
    job.outs = (int)((rows + 127) / 128);
    job.plain = {w.data(), scale.data(), ld, lds, (int)rows, (int)cols, 0, 1, 0};
    const auto product = [&](int n, float *to) {
        run<plain_kind<TYPE>>(job, n, chunks, x.data(), ldx, to, rows);
    };
    product((int)T, y.data());
    if (fp4)
        kern->mm_mxfp4(w.data(), ld, scale.data(), lds, rows, cols, x.data(), ldx, T, want.data(),
                       rows);
    else
        kern->mm_bf16((const uint16_t *)w.data(), ld / 2, rows, cols, x.data(), ldx, T, want.data(),
                      rows);
    const double off = relative(want, y);
    const int64_t bad = few ? differ(y, rows, few, product) : 0;
    printf("%s, %lld x %lld, %lld rows: %.2g off, %lld differ\n", fp4 ? "MXFP4" : "BF16",
           (long long)rows, (long long)cols, (long long)T, off, (long long)bad);
    return !(off < 4e-6) || bad;
}

/* F32 has kern's bits. */
static int check_f32(const kd_kern *kern, int rows, int cols, int T)
{
    using namespace kd_f32;
    const int ld = (cols + 3) / 4 * 4, tasks = (rows + OUTS - 1) / OUTS * ((T + ROWS - 1) / ROWS);
    std::vector<float> w((size_t)(rows * ld), NAN), x((size_t)(T * ld), NAN),
        y((size_t)(T * rows), 7.0f), want = y;
    kd_plain::dense_args a = {};
    int64_t bad = 0;

    for (int i = 0; i < rows * ld; i++)
        w[(size_t)i] = i % ld < cols ? gauss() : NAN;
    for (int i = 0; i < T * ld; i++)
        x[(size_t)i] = i % ld < cols ? gauss() : NAN;
    a.job[0] = {{(const uint8_t *)w.data(), nullptr, 4 * ld, 0, rows, cols, 0, 1, 0},
                x.data(),
                y.data(),
                ld,
                rows,
                0};
    a.jobs = 1;
    a.tokens = T;
    a.tasks = tasks;
    kd_emulate(2, kd_f32::THREADS, STAGES * STAGE_BYTES, [&] { multiply_f32(a); });
    kern->mm_f32(w.data(), ld, rows, cols, x.data(), ld, T, want.data(), rows);
    for (size_t i = 0; i < y.size(); i++)
        bad += kd_f32_bits(y[i]) != kd_f32_bits(want[i]);
    printf("F32, %d x %d, %d rows: %lld differ\n", rows, cols, T, (long long)bad);
    return bad != 0;
}

/* A layer of a few experts, one of which most tokens want; lists with gaps and with an expert
 * twice. MXFP4 where coded is false. */
enum { SOME = 3, TOP = 3, COLS = 160, INNER = 96, TOKENS = 60, SLAB = 64 };
struct layer {
    std::vector<entry> table;
    std::vector<fixture> f;
    std::vector<std::vector<uint32_t>> codes;
    std::vector<std::vector<uint8_t>> w, scale;
    std::vector<int32_t> ids;
    std::vector<float> x, weight;
};
static void layer_make(layer *l, bool coded)
{
    l->table.resize(SOME);
    l->f.resize(3 * SOME);
    for (size_t i = 0; i < 3 * SOME; i++) {
        const int rows = i % 3 < 2 ? INNER : COLS, cols = i % 3 < 2 ? COLS : INNER;
        fixture *f = &l->f[i];
        fixture_make(f, 32 + 5 * (unsigned)(i % 2), KD_CB_MUL1, rows, cols, 1);
        l->codes.push_back(codes_of(f));
        l->w.push_back(std::vector<uint8_t>((size_t)(rows * cols / 2)));
        l->scale.push_back(std::vector<uint8_t>((size_t)(rows * cols / 32 + 4)));
        for (uint8_t &b : l->w.back())
            b = (uint8_t)bits();
        for (uint8_t &b : l->scale.back())
            b = (uint8_t)(120 + bits() % 4);
        if (coded)
            l->table[i / 3].exl3[i % 3] = {l->codes.back().data(),
                                           f->suh.data(),
                                           f->svh.data(),
                                           rows,
                                           cols,
                                           (int)(f->C / 128),
                                           (int)(f->R / 128),
                                           (int)kd_rate_to16(f->rate),
                                           (int)KD_CB_MUL1,
                                           {}};
        else
            l->table[i / 3].plain[i % 3] = {l->w.back().data(),
                                            l->scale.back().data(),
                                            cols / 2,
                                            cols / 32,
                                            rows,
                                            cols,
                                            0,
                                            1,
                                            0};
    }
    for (int i = 0; i < TOKENS * TOP; i++) {
        l->ids.push_back(i % TOP == 0 ? 1 : (int)(bits() % (SOME + 1)) - 1);
        l->weight.push_back(0.1f + (float)(bits() % 100) / 100.0f);
    }
    for (int i = 0; i < TOKENS * COLS; i++)
        l->x.push_back(gauss());
}

static void layer_product(const layer *l, const kd_kern *kern, bool coded, size_t i, const float *x,
                          std::vector<float> *y)
{
    const fixture *f = &l->f[i];
    kd_run on = {};
    kd_err err;

    on.kern = kern;
    y->assign((size_t)f->rows, 0.0f);
    const kd_mat m = fixture_mat(f);
    if (!coded)
        kern->mm_mxfp4(l->w[i].data(), f->cols / 2, l->scale[i].data(), f->cols / 32, f->rows,
                       f->cols, x, f->cols, 1, y->data(), f->rows);
    else if (kd_mat_mul(&on, &m, x, f->C, 1, y->data(), f->rows, &err))
        exit(1);
}

static std::vector<float> layer_want(const layer *l, const kd_kern *kern, bool coded)
{
    std::vector<float> want((size_t)(TOKENS * COLS), 0.0f), a, b, y;

    for (int t = 0; t < TOKENS; t++)
        for (int e = 0; e < SOME; e++)
            for (int j = 0; j < TOP; j++) {
                const float *x = &l->x[(size_t)(t * COLS)];
                float *to = &want[(size_t)(t * COLS)];
                if (l->ids[(size_t)(t * TOP + j)] != e)
                    continue;
                layer_product(l, kern, coded, 3 * (size_t)e, x, &a);
                layer_product(l, kern, coded, 3 * (size_t)e + 1, x, &b);
                kern->situ(a.data(), b.data(), 3.0f, 5.0f, a.data(), INNER);
                layer_product(l, kern, coded, 3 * (size_t)e + 2, a.data(), &y);
                for (int c = 0; c < COLS; c++)
                    to[c] = fmaf(l->weight[(size_t)(t * TOP + j)], y[(size_t)c], to[c]);
            }
    return want;
}

template <class KIND> static int check_experts(const kd_kern *kern)
{
    const int rows = SLAB + GROUP_ROWS, pairs = TOKENS * TOP, slabs = (pairs + SLAB - 1) / SLAB;
    static many_plan plan;
    std::vector<group> of((size_t)(EXPERTS + pairs / GROUP_ROWS));
    std::vector<int32_t> pair((size_t)pairs), token = pair, order = pair, used((size_t)TOKENS);
    std::vector<uint8_t> prepared((size_t)(4 * 512 * rows));
    std::vector<float> scale((size_t)(2 * rows)), between((size_t)(rows * 2 * INNER)),
        out = between;
    std::vector<float> y((size_t)(TOKENS * COLS), 7.0f);
    layer l;

    layer_make(&l, KIND::coded);
    std::vector<int32_t> item[2] = {std::vector<int32_t>(2 * of.size(), -1),
                                    std::vector<int32_t>(of.size(), -1)};
    const many_lists lists = {&plan,
                              of.data(),
                              pair.data(),
                              token.data(),
                              order.data(),
                              used.data(),
                              {item[0].data(), item[1].data()}};
    const order_args o = {l.table.data(), lists, KIND::coded, KIND::coded ? (int)NARROW_ROWS : 0};
    int narrow = 0;
    const many_args m = {lists, l.ids.data(), TOKENS, TOP, SOME, SLAB};
    kd_emulate(1, EXPERTS, sizeof(count_shared), [&] { count_pairs(m); });
    kd_emulate((pairs + COLUMNS - 1) / COLUMNS, COLUMNS, 0, [&] { place_pairs(m); });
    kd_emulate(2 * slabs, KEYS, 8 * KEYS, [&] { order_items(o); });
    for (int s = 0; s < slabs; s++) {
        half_args a = {};
        a.table = l.table.data();
        a.l = lists;
        a.x = prepared.data();
        a.scale = scale.data();
        a.rows = rows;
        a.planes = KIND::planes;
        a.coded = KIND::coded;
        a.slab = s;
        a.beta = 3.0f;
        a.linear = 5.0f;
        for (a.down = 0; a.down < 2; a.down++) {
            a.from = a.down ? between.data() : l.x.data();
            a.ldx = a.down ? 2 * INNER : COLS;
            a.y = a.down ? out.data() : between.data();
            a.ldy = a.down ? COLS : 2 * INNER;
            a.cols = a.down ? INNER : COLS;
            a.columns = a.down ? COLS : INNER;
            kd_emulate(5, THREADS, 64, [&] { prepare_experts(a); });
            tasks_args all = {};
            all.half = a;
            all.experts = 1;
            kd_emulate(2, THREADS, shared_of(KIND::tokens), [&] { multiply_tasks<KIND>(all); });
            narrow += plan.narrow[a.down][s];
            all.half.narrow = 1;
            if (KIND::coded)
                kd_emulate(2, THREADS, shared_of(NARROW_ROWS),
                           [&] { multiply_tasks<fast_narrow>(all); });
        }
        const many_sum_args sum = {lists, out.data(), l.weight.data(), y.data(), COLS, COLS, TOP,
                                   COLS,  s};
        kd_emulate(TOKENS, COLUMNS, 256, [&] { sum_slab(sum); });
    }
    const double off = relative(layer_want(&l, kern, KIND::coded), y);
    printf("%s experts, %d groups in %d slabs, %d of their halves' matrices narrow: %.2g off\n",
           KIND::coded ? "EXL3" : "MXFP4", plan.groups, slabs, narrow, off);
    return !(off < (KIND::coded ? 1e-3 : 1e-5)) || plan.slab[1] == plan.groups ||
           (narrow == 0) == KIND::coded || narrow == 3 * plan.groups;
}

int main(void)
{
    kd_kern kern;
    int bad = 0;

    if (kd_kern_pick(&kern, nullptr))
        return 1;
    bad |= check_exl3<fast>(&kern, 32, KD_CB_MUL1, 256, 640, 140, 20, 2);
    bad |= check_exl3<fast>(&kern, 37, KD_CB_MUL1, 100, 330, 70, 17, 1);
    for (unsigned r : {16u, 24u, 43u, 48u, 60u, 64u, 80u, 128u, 97u})
        bad |= check_exl3<fast>(&kern, r, KD_CB_MUL1, 128, 128, 17, 0, 1);
    bad |= check_exl3<values<true>>(&kern, 32, KD_CB_MUL1, 128, 640, 70, 17, 1);
    bad |= check_exl3<values<true>>(&kern, 37, KD_CB_MUL1, 128, 256, 17, 0, 1);
    bad |= check_exl3<values<false>>(&kern, 48, KD_CB_MCG, 128, 256, 17, 0, 1);
    bad |= check_exl3<values<false>>(&kern, 35, KD_CB_3INST, 128, 128, 17, 0, 1);
    bad |= check_plain<kd_plain::BF16>(&kern, 200, 330, 70, 17, 1);
    bad |= check_plain<kd_plain::BF16>(&kern, 5, 7, 17, 0, 1);
    bad |= check_plain<kd_plain::MXFP4>(&kern, 130, 672, 70, 17, 2);
    bad |= check_f32(&kern, 70, 331, 37) | check_f32(&kern, 5, 7, 17);
    bad |= check_experts<fast>(&kern) | check_experts<plain_kind<kd_plain::MXFP4>>(&kern);
    return bad;
}
