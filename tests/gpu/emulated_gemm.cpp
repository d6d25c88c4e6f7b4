/* Products of many rows, run on the CPU (tests/gpu/emulate.h): each kind within its bound of kern's
 * product, and a row's bits the same whatever rows are beside it. */
#define KD_GPU_EMULATE
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
    kd_emulate(2, THREADS, SHARED_BYTES, [&] { multiply_dense<KIND>(a); });
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
             job.ins,      job.outs,     (int)rate16,  (int)cb};
    const auto product = [&](int n, float *y) {
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
           KIND::planes, (int)cb, rate16 / 16.0, (long long)rows, (long long)cols, (long long)T, off,
           (long long)bad);
    return !(off < (KIND::planes == 1 ? 3e-4 : 1e-6)) || bad;
}

template <kd_plain::type TYPE>
static int check_plain(const kd_kern *kern, int64_t rows, int64_t cols, int64_t T, int few,
                       int chunks)
{
    const bool fp4 = TYPE == kd_plain::MXFP4;
    const int64_t ld = ((fp4 ? cols / 2 : 2 * cols) + 15) / 16 * 16,
                  lds = (cols / 32 + 3) / 4 * 4, ldx = (cols + 3) / 4 * 4;
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
    job.plain = {w.data(), scale.data(), ld, lds, (int)rows, (int)cols};
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
    return bad;
}
