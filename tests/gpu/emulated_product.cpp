/* Products on a device, run on the CPU (tests/gpu/emulate.h): the mode for decoding gives exactly
 * the integers that it should, the mode for checks is within rounding of kern's product. */
#define KD_GPU_EMULATE
#include "gpu/product_exl3.cuh"

extern "C" {
#include "kern/exl3_mul.h"
#include "num/exl3_ring.h"
}

static uint64_t state = 88172645463325252ull;
static uint32_t bits(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 24);
}
static float gauss(void)
{
    float s = 0;
    for (int i = 0; i < 12; i++)
        s += (float)(bits() & 0xffffffu) / 16777216.0f;
    return s - 6.0f;
}

struct fixture {
    kd_rate rate;
    kd_codebook cb;
    int64_t rows, cols, R, C, T; /* outputs, inputs; padded; tokens */
    std::vector<uint8_t> tiles;
    std::vector<uint16_t> suh, svh;
    std::vector<float> x, y;
    std::vector<uint32_t> codes;
};

static void fixture_make(fixture *f, unsigned rate16, kd_codebook cb, int64_t rows, int64_t cols,
                         int64_t T)
{
    f->rate = kd_rate_from16(rate16);
    f->cb = cb;
    f->rows = rows;
    f->cols = cols;
    f->R = (rows + 127) / 128 * 128;
    f->C = (cols + 127) / 128 * 128;
    f->T = T;
    f->tiles.resize((size_t)(f->R * f->C / 256 * 2 * rate16));
    for (uint8_t &b : f->tiles)
        b = (uint8_t)bits();
    f->suh.resize((size_t)f->C);
    f->svh.resize((size_t)f->R);
    for (uint16_t &h : f->suh)
        h = kd_f32_f16((bits() & 1 ? 0.02f : -0.02f) * (1.0f + (float)(bits() & 15u) / 16.0f));
    for (uint16_t &h : f->svh)
        h = kd_f32_f16(bits() & 1 ? 1.25f : -0.75f);
    f->x.resize((size_t)(T * f->C));
    for (float &v : f->x)
        v = gauss();
    f->y.assign((size_t)(T * rows), 7.0f);
    f->codes.assign((size_t)(f->R * f->C / 512 * rate16), 0xeeeeeeeeu);
    const int outs = (int)(f->R / 128), ins = (int)(f->C / 128);
    kd_codes::pack_args p = {f->tiles.data(), f->R / 16, f->codes.data(), (int)rate16, ins, outs};
    kd_emulate((ins * outs * 128 + 255) / 256, 256, 16, [&] { kd_codes::pack_codes(p); });
}

static kd_mat fixture_mat(const fixture *f)
{
    kd_mat m = {};
    m.type = KD_MAT_EXL3;
    m.rows = f->rows;
    m.cols = f->cols;
    m.data = f->tiles.data();
    m.ld = f->R / 16;
    m.rows_padded = f->R;
    m.cols_padded = f->C;
    m.suh = f->suh.data();
    m.svh = f->svh.data();
    m.rate = f->rate;
    m.cb = f->cb;
    return m;
}

/* As the host would start it, in `ranges` cuts of the outputs. */
template <class MODE> static void run(fixture *f, int ranges, int blocks)
{
    using namespace kd_exl3;
    const int outs = (int)(f->R / 128), ins = (int)(f->C / 128), T = (int)f->T;
    const cut c = cut_of(ins);
    const int groups = (T + GROUP - 1) / GROUP, rows = T < GROUP ? T : GROUP;
    std::vector<float> sums((size_t)(groups * GROUP * c.chunks * outs * 128));
    std::vector<int32_t> counter((size_t)(groups * outs), 0);
    dense_args a = {};

    a.job[0] = {{f->codes.data(), f->suh.data(), f->svh.data(), (int)f->rows, (int)f->cols, ins,
                 outs, (int)kd_rate_to16(f->rate), (int)f->cb},
                f->x.data(),
                f->y.data(),
                f->C,
                f->rows,
                0,
                0,
                0,
                ranges};
    a.jobs = 1;
    a.rows = T;
    a.tasks = c.chunks * ranges * groups;
    a.sums = sums.data();
    a.counter = counter.data();
    const int units = (outs * UNITS + ranges - 1) / ranges;
    kd_emulate(blocks, 32 * WARPS, (size_t)shared_bytes(rows, c.warps, units),
               [&] { multiply_dense<MODE>(a); });
    for (int32_t n : counter)
        if (n)
            printf("a counter is left at %d\n", n), exit(1);
}

/* The definition of the mode for decoding, one row. */
static void fast_row(const fixture *f, const kd_kern *kern, int64_t t, std::vector<float> *y)
{
    const kd_exl3::cut c = kd_exl3::cut_of((int)(f->C / 128));
    std::vector<float> r((size_t)f->C, 0.0f), out((size_t)f->R, 0.0f);
    const int64_t bytes = kd_rate_tile_bytes(f->rate);

    for (int64_t i = 0; i < f->cols; i++)
        r[(size_t)i] = f->x[(size_t)(t * f->C + i)] * kd_f16_f32(f->suh[(size_t)i]);
    kern->hadamard(r.data(), r.data(), f->C / 128);
    for (int chunk = 0; chunk < c.chunks; chunk++) {
        const int64_t first = 128ll * chunk * c.warps,
                      last = first + 128 * c.warps < f->C ? first + 128 * c.warps : f->C;
        float most = 0;
        int32_t total = 0;
        std::vector<int32_t> q((size_t)f->C), sum((size_t)f->R, 0), part;
        for (int64_t i = first; i < last; i++)
            most = fmaxf(most, fabsf(r[(size_t)i]));
        for (int64_t i = first; i < last; i++)
            total += q[(size_t)i] =
                (int32_t)rintf(r[(size_t)i] * (most > 0 ? 32639.0f / most : 0.0f));
        for (int64_t b = first; b < last; b += 128) {
            part.assign((size_t)f->R, 0);
            for (int64_t k = b / 16; k < b / 16 + 8; k++)
                for (int64_t n = 0; n < f->R / 16; n++) {
                    uint16_t states[256];
                    kd_ring_states(&f->tiles[(size_t)((k * (f->R / 16) + n) * bytes)], f->rate,
                                   states);
                    for (unsigned p = 0; p < 256; p++) {
                        const uint32_t s = states[p] * 0x83DCD12Du;
                        part[(size_t)(16 * n + kd_tile_col(p))] +=
                            q[(size_t)(16 * k + kd_tile_row(p))] * ((int)kd_byte_sum(s, 0) - 510);
                    }
                }
            for (int64_t n = 0; n < f->R; n++)
                sum[(size_t)n] += (part[(size_t)n] + 4) >> 3;
        }
        for (int64_t n = 0; n < f->R; n++) {
            const float v = fmaf((float)sum[(size_t)n], 7096.0f, -238.0f * (float)total) *
                            (most / 32639.0f * (1.0f / 131072.0f));
            out[(size_t)n] = chunk ? out[(size_t)n] + v : v;
        }
    }
    kern->hadamard(out.data(), out.data(), f->R / 128);
    y->resize((size_t)f->rows);
    for (int64_t n = 0; n < f->rows; n++)
        (*y)[(size_t)n] = out[(size_t)n] * kd_f16_f32(f->svh[(size_t)n]);
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
    else
        run<kd_exl3::fast<2>>(&f, ranges, blocks);
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
    if (kd_exl3_mul(&run_on, &m, f.x.data(), f.C, T, want.data(), rows, &err))
        return 1;
    double square = 0, off = 0;
    for (size_t i = 0; i < want.size(); i++) {
        const double d = (double)want[i] - (double)f.y[i];
        square += (double)want[i] * (double)want[i];
        off += d * d;
    }
    off = sqrt(off / square);
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
    for (unsigned r : {24u, 35u, 36u, 38u, 43u, 64u, 80u, 97u, 100u, 128u})
        bad |= check_fast(&kern, r, 128, 128, 1, 1, 1);
    bad |= check_values(&kern, 32, KD_CB_MUL1, 256, 1152, 2, 3);
    bad |= check_values(&kern, 37, KD_CB_MUL1, 128, 256, 11, 1);
    bad |= check_values(&kern, 48, KD_CB_MCG, 128, 128, 1, 1);
    bad |= check_values(&kern, 64, KD_CB_3INST, 128, 128, 8, 4);
    return bad;
}
