/* Products on a device, run on the CPU (tests/gpu/emulate.h): the mode for decoding gives exactly
 * the integers that it should, the mode for checks is within rounding of kern's product. */
#define KD_GPU_EMULATE
#include "gpu/product_experts.cuh"
#include "gpu/product_pack.cuh"

#include "gpu/product_check.h"

/* The matrix in a device's order. */
static std::vector<uint32_t> codes_of(const fixture *f)
{
    const int rate16 = (int)kd_rate_to16(f->rate), outs = (int)(f->R / 128),
              ins = (int)(f->C / 128);
    std::vector<uint32_t> codes((size_t)(f->R * f->C / 512 * rate16), 0xeeeeeeeeu);
    kd_codes::pack_args p = {f->tiles.data(), f->R / 16, codes.data(), rate16, ins, outs};

    kd_emulate((ins * outs * 128 + 255) / 256, 256, 16, [&] { kd_codes::pack_codes(p); });
    return codes;
}

/* As the host would start it, in `ranges` cuts of the outputs. */
template <class MODE> static void run(fixture *f, int ranges, int blocks)
{
    using namespace kd_exl3;
    const int outs = (int)(f->R / 128), ins = (int)(f->C / 128), T = (int)f->T;
    const cut c = cut_of(ins);
    const int most = MODE::rows, groups = (T + most - 1) / most, rows = T < most ? T : most;
    std::vector<float> sums((size_t)(T * c.chunks * outs * 128));
    std::vector<int32_t> counter((size_t)(groups * rows * outs), 0);
    const std::vector<uint32_t> codes = codes_of(f);
    kd_experts::tasks_args all = {};
    dense_args &a = all.dense;

    a.job[0] = {{codes.data(), f->suh.data(), f->svh.data(), (int)f->rows, (int)f->cols, ins, outs,
                 (int)kd_rate_to16(f->rate), (int)f->cb, c},
                f->x.data(),
                f->y.data(),
                f->C,
                f->rows,
                0,
                0,
                0,
                spread_of(ranges, outs * UNITS)};
    a.jobs = 1;
    a.rows = T;
    a.group = rows;
    a.tasks = c.chunks * ranges * groups;
    a.sums = sums.data();
    a.counter = counter.data();
    const size_t shared =
        (size_t)shared_bytes(MODE::packed, rows, c.warps, spread_most(a.job[0].units));
    kd_emulate(blocks, 32 * WARPS, shared, [&] { kd_experts::multiply_tasks<MODE>(all); });
    for (int32_t n : counter)
        if (n)
            printf("a counter is left at %d\n", n), exit(1);
}

static int check_fast(const kd_kern *kern, unsigned rate16, int64_t rows, int64_t cols, int64_t T,
                      int ranges, int blocks)
{
    fixture f;
    std::vector<float> want;
    int64_t bad = 0;

    fixture_make(&f, rate16, KD_CB_MUL1, rows, cols, T);
    if (T <= 4)
        run<kd_exl3::fast<1>>(&f, ranges, blocks);
    else if (T <= 8)
        run<kd_exl3::fast<2>>(&f, ranges, blocks);
    else
        run<kd_exl3::fast<4>>(&f, ranges, blocks);
    for (int64_t t = 0; t < T; t++) {
        fast_row(&f, kern, t, &want);
        for (int64_t n = 0; n < rows; n++)
            bad += want[(size_t)n] != f.y[(size_t)(t * rows + n)];
    }
    printf("fast, %.4f bits, %lld x %lld, %lld rows: %lld wrong\n", rate16 / 16.0, (long long)rows,
           (long long)cols, (long long)T, (long long)bad);
    return bad != 0;
}

/* Of |x| |w|: the pairs of fp16 leave 2^-22 of the chunk's largest activation, sums 2^-19 of it. */
static int check_values(const kd_kern *kern, unsigned rate16, kd_codebook cb, int64_t rows,
                        int64_t cols, int64_t T, int ranges)
{
    fixture f;
    kd_run run_on = {};

    run_on.kern = kern;
    fixture_make(&f, rate16, cb, rows, cols, T);
    if (cb == KD_CB_MUL1)
        run<kd_exl3::values<2, true>>(&f, ranges, 3);
    else
        run<kd_exl3::values<2, false>>(&f, ranges, 3);
    std::vector<float> want((size_t)(T * rows));
    const kd_mat m = fixture_mat(&f);
    kd_err err;
    if (kd_mat_mul(&run_on, &m, f.x.data(), f.C, T, want.data(), rows, &err))
        return 1;
    const double off = relative(want, f.y);
    printf("values, codebook %d, %.4f bits, %lld x %lld, %lld rows: %.2g off\n", (int)cb,
           rate16 / 16.0, (long long)rows, (long long)cols, (long long)T, off);
    return !(off < 2e-6);
}

int main(void)
{
    kd_kern kern;
    int bad = 0;

    if (kd_kern_pick(&kern, nullptr))
        return 1;
    bad |= check_fast(&kern, 32, 256, 256, 1, 3, 2);
    bad |= check_fast(&kern, 37, 200, 1200, 3, 5, 4);
    bad |= check_fast(&kern, 48, 128, 128, 5, 1, 1);
    bad |= check_fast(&kern, 16, 128, 100, 9, 1, 1);
    bad |= check_fast(&kern, 32, 128, 300, 16, 2, 1);
    for (unsigned r : {24u, 35u, 36u, 38u, 43u, 64u, 80u, 97u, 100u, 128u})
        bad |= check_fast(&kern, r, 128, 128, 1, 1, 1);
    bad |= check_values(&kern, 32, KD_CB_MUL1, 256, 1152, 2, 3);
    bad |= check_values(&kern, 37, KD_CB_MUL1, 128, 256, 11, 1);
    bad |= check_values(&kern, 48, KD_CB_MCG, 128, 128, 1, 1);
    bad |= check_values(&kern, 64, KD_CB_3INST, 128, 128, 8, 4);
    return bad;
}
